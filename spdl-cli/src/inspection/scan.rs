//! All members of a data set, one pass over its bytes.

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
use crate::datasets::member_name::{is_image, key_and_field};

/// Whether checksums are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChecksumMode {
    Compared,
    Ignored,
}

/// An iterator over a data set.
pub(crate) fn scan(
    set: &Arc<DataSet>,
    checksums: ChecksumMode,
) -> spdl_core::Result<Box<dyn Iterator<Item = ScanItem> + Send>> {
    if let DataSet::Samples(samples) = &**set {
        return Ok(Box::new(samples.found()?));
    }
    let set = Arc::clone(set);
    let archives = move |at| match &*set {
        DataSet::Archives { archives, .. } => Some(Scan::open(at, archives.get(at)?, checksums)),
        DataSet::Samples(_) => None,
    };
    Ok(Box::new((0..).map_while(archives).flatten()))
}

/// A pass over one archive.
struct Scan {
    archive: usize,
    /// What is told first.
    told: VecDeque<ScanItem>,
    stream: Option<TarStream<Summing>>,
    sum: Arc<Mutex<Hasher>>,
    by_manifest: bool,
    /// The sum that the archive should have.
    expected: Option<u128>,
    /// Those that its members should have; `None` where nobody knows.
    sums: Option<Sums>,
    lacks_sums: bool,
    members: usize,
    /// The sample of the member before.
    sample: Option<Key>,
    /// How many there are by the manifest, or by their checksums.
    known_members: u64,
    is_sound: bool,
}

/// Sums up what is read through it.
struct Summing {
    archive: Box<dyn Read + Send>,
    sum: Arc<Mutex<Hasher>>,
}

impl Read for Summing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.archive.read(buffer)?;
        // A sum is never left half done.
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
            told: VecDeque::new(),
            stream: None,
            sum: Arc::clone(&sum),
            by_manifest: archive.record.is_some(),
            expected: None,
            sums: None,
            lacks_sums: false,
            members: 0,
            sample: None,
            known_members: archive.record.as_ref().map_or(0, ShardRecord::members),
            is_sound: true,
        };
        match archive.place.open() {
            Ok((archive, size)) => {
                found = size;
                pass.stream = Some(TarStream::new(Summing { archive, sum }));
            }
            Err(error) => {
                pass.bad(Defect::new(number, None, &error));
                pass.done(false, false, false);
                return pass;
            }
        }
        if let Some((found, record)) = found.zip(archive.record.as_ref())
            && found != record.bytes
        {
            let reason = format!("it has {found} bytes, and had {}", record.bytes);
            pass.bad(Defect::corrupt(number, None, reason));
        }
        match checksums {
            ChecksumMode::Compared => pass.open_checksums(archive),
            // They also tell how many members there were.
            ChecksumMode::Ignored if pass.known_members == 0 => {
                let sums = archive.place.sums();
                pass.known_members = sums.map_or(0, |(sums, _)| sums.as_slice().len() as u64);
            }
            ChecksumMode::Ignored => {}
        }
        pass
    }

    fn open_checksums(&mut self, archive: &Archive) {
        let record = archive.record.as_ref();
        self.expected = record.and_then(ShardRecord::sum);
        match archive.place.sums() {
            Ok((_, sum)) if record.is_some_and(|record| record.sum_of_sums() != Some(sum)) => {
                let reason = "the file of its members' checksums is not the one that was written";
                self.bad(Defect::corrupt(self.archive, None, reason));
            }
            Ok((sums, _)) => {
                self.known_members = self.known_members.max(sums.as_slice().len() as u64);
                self.sums = Some(sums);
            }
            Err(error) if record.is_none() && error.kind() == ErrorKind::NotFound => {
                self.lacks_sums = true;
            }
            Err(error) => {
                let mut bad = Defect::new(self.archive, None, &error);
                bad.reason = format!("{}.sums: {}", archive.place.file_name(), bad.reason);
                self.bad(bad);
            }
        }
    }

    fn bad(&mut self, bad: Defect) {
        self.is_sound = false;
        self.told.push_back(ScanItem::Defect(bad));
    }

    /// Nothing of the archive comes any more.
    fn done(&mut self, was_read: bool, wrong_sum: bool, is_whole: bool) {
        self.stream = None;
        let seen = self.members as u64;
        self.told.push_back(ScanItem::End(ArchiveEnd {
            archive: self.archive,
            was_read,
            wrong_sum,
            by_manifest: self.by_manifest,
            lacks_sums: self.lacks_sums,
            members: self.known_members.max(seen),
            unseen: self.known_members.saturating_sub(seen),
            lacks_end: !is_whole && self.known_members == 0,
        }));
    }

    /// The checksum of the next member, and its name.
    fn promised(&self) -> Option<(Key, u128)> {
        let sum = self.sums.as_ref()?.as_slice().get(self.members)?;
        Some((sum.name.clone(), sum.xxh3_128))
    }

    /// Reads up to the next member.
    fn step(&mut self) {
        let Some(stream) = &mut self.stream else { return };
        let entry = match stream.next_entry() {
            Ok(Some(entry)) => entry,
            Ok(None) => return self.end(),
            Err(error) => return self.broken(&error),
        };
        if entry.kind != TarKind::File {
            return;
        }
        let data = stream.data();
        let promised = self.promised();
        self.members += 1;
        let (sum, bad) = match (&self.sums, promised) {
            (None, _) => (None, None),
            (Some(_), Some((name, sum))) if name == entry.key => (Some(sum), None),
            (Some(_), other) => {
                let other = other.map_or("none was".to_owned(), |(name, _)| format!("{name} was"));
                let reason = format!("{other} written in its place");
                (None, Some(Defect::corrupt(self.archive, Some(entry.key.clone()), reason)))
            }
        };
        self.is_sound &= bad.is_none();
        let name = entry.key.as_bytes();
        let ending = name.rsplit(|&byte| byte == b'.').next().unwrap_or_default();
        let (sample, field) = key_and_field(name).unwrap_or((name, ending));
        let sample = Key::from_bytes(sample);
        if self.sample.as_ref() != Some(&sample) {
            self.sample = Some(sample);
            self.told.push_back(ScanItem::Sample);
        }
        match data {
            Ok(data) => {
                let is_image = is_image(name);
                let field = Key::from_bytes(field).to_string();
                let number = || Encoding::Integer.decode(data.clone()).ok()?.as_i64();
                let label = if field == "cls" { number() } else { None };
                self.told.push_back(ScanItem::Member(Member {
                    archive: self.archive,
                    field,
                    is_image,
                    name: entry.key,
                    offset: Some(entry.data_offset),
                    data,
                    sum,
                    bad,
                    label,
                }));
            }
            Err(error) => {
                let bad = Defect::new(self.archive, Some(entry.key), &error);
                match error.kind() {
                    // It is passed over.
                    ErrorKind::Unsupported | ErrorKind::LimitExceeded => self.bad(bad),
                    _ => self.broken_off(bad, self.members),
                }
            }
        }
    }

    /// A header, or the end of the archive, is damaged: nothing behind it can be found.
    fn broken(&mut self, error: &Error) {
        let promised = self.promised();
        let bad = Defect::new(self.archive, promised.map(|(name, _)| name), error);
        self.broken_off(bad, self.members + 1);
    }

    /// Nothing comes behind what is bad, which is the last of so many members.
    fn broken_off(&mut self, mut bad: Defect, members: usize) {
        let all = self.sums.as_ref().map_or(0, |sums| sums.as_slice().len());
        match all.saturating_sub(members) {
            0 => {}
            1 => bad.reason.push_str("; the member behind it could not be checked"),
            more => {
                bad.reason.push_str(&format!("; {more} members behind it could not be checked"))
            }
        }
        self.bad(bad);
        self.done(true, false, false);
    }

    fn end(&mut self) {
        if let Some((name, _)) = self.promised() {
            let reason = "it was written, and is not there";
            self.bad(Defect::corrupt(self.archive, Some(name), reason));
        }
        let found = self.sum.lock().unwrap_or_else(PoisonError::into_inner).finish_128();
        let wrong_sum = self.is_sound && self.expected.is_some_and(|sum| sum != found);
        self.done(true, wrong_sum, true);
    }
}

impl Iterator for Scan {
    type Item = ScanItem;

    fn next(&mut self) -> Option<ScanItem> {
        loop {
            if let Some(found) = self.told.pop_front() {
                return Some(found);
            }
            // Once it is done there is none.
            self.stream.as_ref()?;
            self.step();
        }
    }
}
