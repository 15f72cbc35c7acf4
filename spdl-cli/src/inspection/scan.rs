//! Scans all members of a data set in one pass over its bytes.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use spdl_core::{Error, ErrorKind};
use spdl_io::Key;
use spdl_io::archive::{TarKind, TarStream};
use spdl_io::records::Encoding;
use spdl_io::shards::{ShardRecord, Sums};
use twox_hash::xxhash3_128::Hasher;

use super::archive::Archive;
use super::data_set::DataSet;
use super::defect::Defect;
use super::scan_item::{ArchiveEnd, Member, ScanItem};
use crate::datasets::extensions::MediaType;
use crate::datasets::member_name::key_and_field;

/// Whether checksums are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumMode {
    Compared,
    Ignored,
}

/// Scans all archives or samples of a data set in order.
pub(crate) fn scan(
    set: &Arc<DataSet>,
    checksums: ChecksumMode,
) -> spdl_core::Result<Box<dyn Iterator<Item = ScanItem> + Send>> {
    if let DataSet::Samples(samples) = &**set {
        return Ok(Box::new(samples.scan()?));
    }
    let set = Arc::clone(set);
    let archives = move |at| match &*set {
        DataSet::Archives { archives, .. } => Some(Scan::open(at, archives.get(at)?, checksums)),
        DataSet::Samples(_) => None,
    };
    Ok(Box::new((0..).map_while(archives).flatten()))
}

/// The scan of one archive.
struct Scan {
    archive: usize,
    /// Items that are not yet returned.
    pending: VecDeque<ScanItem>,
    stream: Option<TarStream<HashingReader>>,
    sum: Arc<Mutex<Hasher>>,
    by_manifest: bool,
    /// The expected checksum of the whole archive.
    expected: Option<u128>,
    /// The expected checksums of the members, if known.
    sums: Option<Sums>,
    sums_missing: bool,
    members: usize,
    /// The key of the previous member.
    sample: Option<Key>,
    /// The number of members according to the manifest or the checksum file.
    known_members: u64,
    is_valid: bool,
}

/// A reader that hashes all bytes that it reads.
struct HashingReader {
    archive: Box<dyn Read + Send>,
    sum: Arc<Mutex<Hasher>>,
}

impl Read for HashingReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.archive.read(buffer)?;
        // A poisoned lock is harmless: the hasher is in a valid state even after a panic.
        self.sum.lock().unwrap_or_else(PoisonError::into_inner).write(&buffer[..read]);
        Ok(read)
    }
}

impl Scan {
    fn open(number: usize, archive: &Archive, checksums: ChecksumMode) -> Self {
        let sum = Arc::new(Mutex::new(Hasher::new()));
        let found;
        let mut pass = Scan {
            archive: number,
            pending: VecDeque::new(),
            stream: None,
            sum: Arc::clone(&sum),
            by_manifest: archive.record.is_some(),
            expected: None,
            sums: None,
            sums_missing: false,
            members: 0,
            sample: None,
            known_members: archive.record.as_ref().map_or(0, ShardRecord::members),
            is_valid: true,
        };
        match archive.location.open() {
            Ok((archive, size)) => {
                found = size;
                pass.stream = Some(TarStream::new(HashingReader { archive, sum }));
            }
            Err(error) => {
                pass.push_defect(Defect::new(number, None, &error));
                pass.done(false, false, false);
                return pass;
            }
        }
        if let Some((found, record)) = found.zip(archive.record.as_ref())
            && found != record.bytes
        {
            let reason = format!("wrong size: {found} bytes, expected {}", record.bytes);
            pass.push_defect(Defect::corrupt(number, None, reason));
        }
        match checksums {
            ChecksumMode::Compared => pass.open_checksums(archive),
            // The checksum file has one line for each member.
            ChecksumMode::Ignored if pass.known_members == 0 => {
                let sums = archive.location.sums();
                pass.known_members = sums.map_or(0, |(sums, _)| sums.as_slice().len() as u64);
            }
            ChecksumMode::Ignored => {}
        }
        pass
    }

    fn open_checksums(&mut self, archive: &Archive) {
        let record = archive.record.as_ref();
        self.expected = record.and_then(ShardRecord::sum);
        match archive.location.sums() {
            Ok((_, sum)) if record.is_some_and(|record| record.sum_of_sums() != Some(sum)) => {
                let reason = "the checksum file of its members does not match the manifest";
                self.push_defect(Defect::corrupt(self.archive, None, reason));
            }
            Ok((sums, _)) => {
                self.known_members = self.known_members.max(sums.as_slice().len() as u64);
                self.sums = Some(sums);
            }
            Err(error) if record.is_none() && error.kind() == ErrorKind::NotFound => {
                self.sums_missing = true;
            }
            Err(error) => {
                let mut defect = Defect::new(self.archive, None, &error);
                defect.reason = format!("{}.sums: {}", archive.location.file_name(), defect.reason);
                self.push_defect(defect);
            }
        }
    }

    fn push_defect(&mut self, defect: Defect) {
        self.is_valid = false;
        self.pending.push_back(ScanItem::Defect(defect));
    }

    /// Ends the scan of the archive.
    fn done(&mut self, was_read: bool, wrong_sum: bool, is_whole: bool) {
        self.stream = None;
        let seen = self.members as u64;
        self.pending.push_back(ScanItem::End(ArchiveEnd {
            archive: self.archive,
            was_read,
            wrong_sum,
            by_manifest: self.by_manifest,
            sums_missing: self.sums_missing,
            members: self.known_members.max(seen),
            unseen: self.known_members.saturating_sub(seen),
            end_missing: !is_whole && self.known_members == 0,
        }));
    }

    /// The name and checksum of the next member according to the checksum file.
    fn expected_member(&self) -> Option<(Key, u128)> {
        let sum = self.sums.as_ref()?.as_slice().get(self.members)?;
        Some((sum.name.clone(), sum.xxh3_128))
    }

    /// Reads the next entry of the archive, and queues the items that result from it.
    fn step(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let entry = match stream.next_entry() {
            Ok(Some(entry)) => entry,
            Ok(None) => return self.end(),
            Err(error) => return self.stop_at_header(&error),
        };
        if entry.kind != TarKind::File {
            return;
        }
        let data = stream.data();
        let expected = self.expected_member();
        self.members += 1;
        let (sum, defect) = match (&self.sums, expected) {
            (None, _) => (None, None),
            (Some(_), Some((name, sum))) if name == entry.key => (Some(sum), None),
            (Some(_), other) => {
                let reason = match other {
                    Some((name, _)) => format!("unexpected member: expected \"{name}\" here"),
                    None => "unexpected member: the checksum file does not list it".to_owned(),
                };
                (None, Some(Defect::corrupt(self.archive, Some(entry.key.clone()), reason)))
            }
        };
        self.is_valid &= defect.is_none();
        let name = entry.key.as_bytes();
        let ending = name.rsplit(|&byte| byte == b'.').next().unwrap_or_default();
        let (sample, field) = key_and_field(name).unwrap_or((name, ending));
        let sample = Key::from_bytes(sample);
        if self.sample.as_ref() != Some(&sample) {
            self.sample = Some(sample);
            self.pending.push_back(ScanItem::Sample);
        }
        match data {
            Ok(data) => {
                let media = MediaType::of_member(name, &data);
                let field = Key::from_bytes(field).to_string();
                let number = || Encoding::Integer.decode(data.clone()).ok()?.as_i64();
                let label = if field == "cls" { number() } else { None };
                self.pending.push_back(ScanItem::Member(Member {
                    archive: self.archive,
                    field,
                    media,
                    name: entry.key,
                    offset: Some(entry.data_offset),
                    data,
                    sum,
                    defect,
                    label,
                }));
            }
            Err(error) => {
                let defect = Defect::new(self.archive, Some(entry.key), &error);
                match error.kind() {
                    // Skip the damaged member and continue.
                    ErrorKind::Unsupported | ErrorKind::LimitExceeded => self.push_defect(defect),
                    _ => self.stop_at(defect, self.members),
                }
            }
        }
    }

    /// Ends the scan at a damaged header or a truncated archive.
    fn stop_at_header(&mut self, error: &Error) {
        let expected = self.expected_member();
        let defect = Defect::new(self.archive, expected.map(|(name, _)| name), error);
        self.stop_at(defect, self.members + 1);
    }

    /// Ends the scan at a defect in the `members`-th member; the rest of the archive is unreadable.
    fn stop_at(&mut self, mut defect: Defect, members: usize) {
        let all = self.sums.as_ref().map_or(0, |sums| sums.as_slice().len());
        match all.saturating_sub(members) {
            0 => {}
            1 => defect.reason.push_str("; the following member could not be checked"),
            more => {
                defect.reason.push_str(&format!("; {more} following members could not be checked"))
            }
        }
        self.push_defect(defect);
        self.done(true, false, false);
    }

    fn end(&mut self) {
        if let Some((name, _)) = self.expected_member() {
            let reason = "the member is missing";
            self.push_defect(Defect::corrupt(self.archive, Some(name), reason));
        }
        let found = self.sum.lock().unwrap_or_else(PoisonError::into_inner).finish_128();
        let wrong_sum = self.is_valid && self.expected.is_some_and(|sum| sum != found);
        self.done(true, wrong_sum, true);
    }
}

impl Iterator for Scan {
    type Item = ScanItem;

    fn next(&mut self) -> Option<ScanItem> {
        loop {
            if let Some(found) = self.pending.pop_front() {
                return Some(found);
            }
            // The stream is `None` after the last item.
            self.stream.as_ref()?;
            self.step();
        }
    }
}
