//! Groups the members of an archive into samples: consecutive members with the same name.

use std::collections::HashMap;
#[cfg(feature = "zip")]
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

#[cfg(feature = "zip")]
use super::{folders::is_image, zip::ZipArchive};
use crate::archive::{TarIndex, TarKind};
use crate::fetch::Key;
use crate::shards::sums;

/// The samples of one shard: of a tar archive in archive order, of a zip archive sorted by name.
pub(in crate::datasets) struct ArchiveShard {
    pub(super) key: Key,
    /// The archive, if it is a zip archive.
    #[cfg(feature = "zip")]
    pub(super) zip: Option<Arc<ZipArchive>>,
    /// A hash of the size and version, for shards of a store.
    pub(super) version: Option<u64>,
    /// The size of the archive.
    pub(super) bytes: u64,
    /// Whether a header is damaged, so that later samples are unknown.
    pub(super) is_truncated: bool,
    samples: Vec<SampleEnd>,
    /// The names of all samples, concatenated.
    names: Vec<u8>,
    members: Vec<SampleMember>,
    /// The low 64 bits of the XXH3-128 hash of each member; empty without a checksum file.
    sums: Vec<u64>,
    /// The starts of members with a part index, in ascending order, and these indexes.
    part_indexes: Vec<(u64, Bytes)>,
    /// Indexed by [`SampleMember::extension`].
    pub(super) extensions: Vec<Arc<str>>,
    /// The errors of bad samples, sorted by sample number.
    failures: Vec<(u32, Error)>,
}

/// The end of the name and of the members of a sample. They start at the end of the previous sample.
#[derive(Clone, Copy)]
struct SampleEnd {
    name_end: u32,
    member_end: u32,
}

#[derive(Clone, Copy)]
pub(super) struct SampleMember {
    /// The offset of the data in a tar archive, or the number of the member of a zip archive.
    pub(super) start: u64,
    size: u64,
    /// The index of the extension: at first in the list of the shard, later in the list of the data set.
    pub(super) extension: u32,
}

impl SampleMember {
    pub(super) fn range(&self) -> Range<u64> {
        self.start..self.start + self.size
    }
}

/// The checksum file of a shard.
pub(super) fn checksum_file(shard: &Key) -> Key {
    Key::from_bytes(&[shard.as_bytes(), b".sums"].concat())
}

/// Splits a member name into the name of its sample and the extension, at the first dot of the last path
/// component. `None` for hidden files, names without an extension, and archive metadata (`__…__`).
pub(in crate::datasets) fn split_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    split_name_at(name, |base| base.iter().position(|&byte| byte == b'.'))
}

/// [`split_name`] at the last dot, as names of files are split.
#[cfg(feature = "zip")]
fn split_file_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    split_name_at(name, |base| base.iter().rposition(|&byte| byte == b'.'))
}

fn split_name_at(name: &[u8], dot: impl Fn(&[u8]) -> Option<usize>) -> Option<(&[u8], &[u8])> {
    let first_part = name.split(|&byte| byte == b'/').next().unwrap_or_default();
    if first_part.len() >= 4 && first_part.starts_with(b"__") && first_part.ends_with(b"__") {
        return None;
    }
    let base = name.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    // Hidden files begin with a dot.
    let dot = dot(&name[base..]).filter(|_| name[base] != b'.')?;
    Some((&name[..base + dot], &name[base + dot + 1..]))
}

/// Whether the members of an archive look like files of a folder of images: all are images, and the texts between the
/// first and the last dot, such as `1` of `cat.1.jpg`, differ too much to be names of fields. There are more such texts
/// than names before the first dot, or at least 2 texts of which none occurs twice.
#[cfg(feature = "zip")]
fn are_image_files<'a>(members: impl Iterator<Item = &'a [u8]>) -> bool {
    let (mut names, mut fields, mut with_field) = (HashSet::new(), HashSet::new(), 0);
    for (name, extension) in members.filter_map(split_name) {
        let extension = String::from_utf8_lossy(extension).to_lowercase();
        let (field, extension) = extension.rsplit_once('.').unwrap_or(("", &extension));
        if !is_image(extension) {
            return false;
        }
        names.insert(name);
        if !field.is_empty() {
            with_field += 1;
            fields.insert(field.to_owned());
        }
    }
    fields.len() > names.len() || (fields.len() >= 2 && fields.len() == with_field)
}

impl ArchiveShard {
    /// Groups the members of an archive. With `damage`, the last sample, which may lack members, fails with
    /// that error. `sums` is the text of the checksum file.
    ///
    /// # Errors
    /// `Corrupt` if the checksum file is invalid, or belongs to another archive. `LimitExceeded` for
    /// more than 2³² samples or members.
    pub(super) fn new(
        key: Key,
        index: &TarIndex,
        damage: Option<Error>,
        sums: Option<&[u8]>,
    ) -> Result<Self> {
        let mut grouping = Grouping::new(key, index.stamp().size());
        grouping.shard.is_truncated = damage.is_some();
        let mut lines = sums.map(sums::lines);
        for number in 0..index.len() {
            let is_file = matches!(
                index.kind(number),
                Some(TarKind::File | TarKind::HardLink | TarKind::Sparse | TarKind::Other(_))
            );
            if let Some(lines) = lines.as_mut().filter(|_| is_file) {
                let line = lines.next().transpose().map_err(|error| grouping.in_sums(error))?;
                let name = index.name(number);
                let line = line.filter(|(found, _)| name.is_some_and(|name| **found == *name));
                let (_, sum) = line.ok_or_else(|| grouping.other_sums(name))?;
                grouping.sum = Some(sum as u64);
            }
            if let (Some(part_index), Some(range)) =
                (index.part_index(number), index.data_range(number))
            {
                grouping.shard.part_indexes.push((range.start, part_index));
            }
            let split = index.name(number).and_then(split_name);
            if let Some((name, extension)) = split.filter(|_| is_file) {
                let offset = || index.entry(number).map(|entry| entry.header_offset);
                let file = index.file(number).map(|file| (file.data_offset, file.size));
                grouping.member(name, extension, offset, file)?;
            }
        }
        if let Some(damage) = damage {
            grouping.damage(damage)?;
        }
        Ok(grouping.finish())
    }

    /// Groups the members of a zip archive of `bytes` bytes. If they [look like](are_image_files) a folder of images,
    /// names end at the last dot.
    ///
    /// # Errors
    /// `LimitExceeded` for more than 2³² samples or members.
    #[cfg(feature = "zip")]
    pub(super) fn of_zip(archive: ZipArchive, bytes: u64) -> Result<Self> {
        let mut grouping = Grouping::new(archive.key.clone(), bytes);
        let are_files = are_image_files(archive.entries.iter().map(|entry| entry.key.as_bytes()));
        let split = if are_files { split_file_name } else { split_name };
        for (number, entry) in archive.entries.iter().enumerate() {
            if let Some((name, extension)) = split(entry.key.as_bytes()) {
                let file = archive.range(number).map(|_| (number as u64, entry.size));
                grouping.member(name, extension, || Some(entry.header_offset), file)?;
            }
        }
        Ok(ArchiveShard { zip: Some(Arc::new(archive)), ..grouping.finish() })
    }

    /// The number of samples, including bad ones.
    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    pub(super) fn name(&self, sample: usize) -> Option<&[u8]> {
        let end = self.samples.get(sample)?.name_end;
        let start = sample.checked_sub(1).map_or(0, |before| self.samples[before].name_end);
        self.names.get(start as usize..end as usize)
    }

    /// The members of a sample, in archive order.
    ///
    /// # Errors
    /// The error of a bad sample.
    pub(super) fn members(&self, sample: usize) -> Result<&[SampleMember]> {
        let failure = u32::try_from(sample).ok().and_then(|sample| {
            self.failures.binary_search_by_key(&sample, |(failed, _)| *failed).ok()
        });
        if let Some((_, error)) = failure.and_then(|at| self.failures.get(at)) {
            return Err(error.clone());
        }
        let Some(&SampleEnd { member_end, .. }) = self.samples.get(sample) else { return Ok(&[]) };
        let start = sample.checked_sub(1).map_or(0, |before| self.samples[before].member_end);
        Ok(self.members.get(start as usize..member_end as usize).unwrap_or_default())
    }

    /// The offset of the first member of a sample; `None` for a sample without members.
    pub(super) fn start_of(&self, sample: usize) -> Option<u64> {
        let first = sample.checked_sub(1).map_or(0, |before| self.samples[before].member_end);
        let end = self.samples.get(sample)?.member_end;
        self.members.get(first as usize..end as usize)?.first().map(|member| member.start)
    }

    /// The offset after the last member of a sample; `None` for a sample without members.
    pub(super) fn end_of(&self, sample: usize) -> Option<u64> {
        let first = sample.checked_sub(1).map_or(0, |before| self.samples[before].member_end);
        let end = self.samples.get(sample)?.member_end;
        self.members.get(first as usize..end as usize)?.last().map(|member| member.range().end)
    }

    /// The checksum of each of the [`members`](Self::members) of a sample; empty without a checksum file.
    pub(super) fn sums(&self, sample: usize) -> &[u64] {
        let Some(&SampleEnd { member_end, .. }) = self.samples.get(sample) else { return &[] };
        let start = sample.checked_sub(1).map_or(0, |before| self.samples[before].member_end);
        self.sums.get(start as usize..member_end as usize).unwrap_or_default()
    }

    /// Where the parts of a member are, if the index of the shard has it.
    pub(super) fn part_index(&self, member: &SampleMember) -> Option<Bytes> {
        let at = self.part_indexes.binary_search_by_key(&member.start, |(start, _)| *start).ok()?;
        Some(self.part_indexes[at].1.clone())
    }

    /// The number of bytes of all part indexes.
    pub(super) fn part_index_bytes(&self) -> u64 {
        self.part_indexes.iter().map(|(_, index)| index.len() as u64).sum()
    }

    pub(super) fn drop_part_indexes(&mut self) {
        self.part_indexes = Vec::new();
    }

    /// The errors of bad samples.
    pub(super) fn failures(&self) -> impl Iterator<Item = &Error> {
        self.failures.iter().map(|(_, error)| error)
    }

    /// All members, to renumber their extensions for the data set.
    pub(super) fn members_mut(&mut self) -> &mut [SampleMember] {
        &mut self.members
    }

    /// The key of a sample, or of one of its members, for messages.
    pub(super) fn sample_key(&self, name: &[u8], extension: Option<&str>) -> Key {
        let end = extension.map(|it| format!(".{it}")).unwrap_or_default();
        Key::from_bytes(&[self.key.as_bytes(), b":", name, end.as_bytes()].concat())
    }
}

struct Grouping {
    shard: ArchiveShard,
    numbers: HashMap<Arc<str>, u32>,
    /// For each extension, the number of the last sample with it, plus 1.
    last_sample_with: Vec<u32>,
    /// The checksum of the current member.
    sum: Option<u64>,
}

impl Grouping {
    fn new(key: Key, bytes: u64) -> Self {
        Grouping {
            shard: ArchiveShard {
                key,
                #[cfg(feature = "zip")]
                zip: None,
                version: None,
                bytes,
                is_truncated: false,
                samples: Vec::new(),
                names: Vec::new(),
                members: Vec::new(),
                sums: Vec::new(),
                part_indexes: Vec::new(),
                extensions: Vec::new(),
                failures: Vec::new(),
            },
            numbers: HashMap::new(),
            last_sample_with: Vec::new(),
            sum: None,
        }
    }

    fn finish(self) -> ArchiveShard {
        let mut shard = self.shard;
        shard.samples.shrink_to_fit();
        shard.names.shrink_to_fit();
        shard.members.shrink_to_fit();
        shard.sums.shrink_to_fit();
        shard.part_indexes.shrink_to_fit();
        shard
    }

    /// Adds a member whose header is at `offset`: the `start` and the size of its [`SampleMember`], or the error of
    /// reading it.
    fn member(
        &mut self,
        name: &[u8],
        extension: &[u8],
        offset: impl Fn() -> Option<u64>,
        file: Result<(u64, u64)>,
    ) -> Result<()> {
        let last = self.shard.len().checked_sub(1);
        if last.and_then(|last| self.shard.name(last)) != Some(name) {
            self.start_sample(name)?;
        }
        if self.has_failed() {
            return Ok(());
        }
        let extension: Arc<str> = String::from_utf8_lossy(extension).to_lowercase().into();
        let key = self.shard.sample_key(name, Some(&extension));
        let (start, size) = match file {
            Ok(file) => file,
            Err(error) => {
                let message = format!("cannot read this member of the sample: {}", error.message());
                let mut failure = Error::new(error.kind(), message);
                if let Some(offset) = offset() {
                    failure = failure.with_offset(offset);
                }
                return self.fail(failure.with_key(key.display_name()));
            }
        };
        let next = self.numbers.len() as u32;
        let extension_number = *self.numbers.entry(Arc::clone(&extension)).or_insert_with(|| {
            self.shard.extensions.push(Arc::clone(&extension));
            self.last_sample_with.push(0);
            next
        });
        let this_sample = self.shard.samples.len() as u32;
        let seen_in = &mut self.last_sample_with[extension_number as usize];
        if std::mem::replace(seen_in, this_sample) == this_sample {
            let message = format!("duplicate field {extension:?} in the sample");
            let offset = offset().unwrap_or_default();
            let error = Error::new(ErrorKind::Corrupt, message).with_offset(offset);
            return self.fail(error.with_key(key.display_name()));
        }
        self.shard.members.push(SampleMember { start, size, extension: extension_number });
        self.shard.sums.extend(self.sum);
        let member_end = self.shard.members.len();
        let member_end = u32::try_from(member_end).map_err(|_| self.too_much("members"))?;
        if let Some(sample) = self.shard.samples.last_mut() {
            sample.member_end = member_end;
        }
        Ok(())
    }

    fn start_sample(&mut self, name: &[u8]) -> Result<()> {
        self.shard.names.extend_from_slice(name);
        let name_end = u32::try_from(self.shard.names.len()).map_err(|_| self.too_much("names"))?;
        if self.shard.len() as u64 >= u64::from(u32::MAX) {
            return Err(self.too_much("samples"));
        }
        // Lossless: `member` limits the number of members to 32 bits.
        let member_end = self.shard.members.len() as u32;
        self.shard.samples.push(SampleEnd { name_end, member_end });
        Ok(())
    }

    fn has_failed(&self) -> bool {
        let failed = self.shard.failures.last().map(|(sample, _)| *sample as usize);
        failed.is_some() && failed == self.shard.len().checked_sub(1)
    }

    /// Marks the last sample as bad.
    fn fail(&mut self, error: Error) -> Result<()> {
        let Some(last) = self.shard.len().checked_sub(1) else { return Ok(()) };
        let start = last.checked_sub(1).map_or(0, |before| self.shard.samples[before].member_end);
        self.shard.members.truncate(start as usize);
        self.shard.sums.truncate(start as usize);
        self.shard.samples[last].member_end = start;
        if !self.has_failed() {
            self.shard.failures.push((last as u32, error));
        }
        Ok(())
    }

    fn damage(&mut self, damage: Error) -> Result<()> {
        if self.shard.len() == 0 {
            self.start_sample(b"")?;
        }
        if self.has_failed() {
            // The last sample has another error already, so add a sample for this one.
            self.start_sample(b"")?;
        }
        let last = self.shard.len().saturating_sub(1);
        let name = self.shard.name(last).unwrap_or_default().to_vec();
        let before = match last {
            0 => "no sample precedes".to_owned(),
            1 => "1 sample precedes".to_owned(),
            before => format!("{before} samples precede"),
        };
        let message = format!(
            "the shard is damaged from here: {}; {before} the damage, and the number of samples \
             after the damage is unknown",
            damage.message()
        );
        let mut error = Error::new(damage.kind(), message);
        if let Some(offset) = damage.offset() {
            error = error.with_offset(offset);
        }
        let key = match name.is_empty() {
            true => self.shard.key.display_name(),
            false => self.shard.sample_key(&name, None).display_name(),
        };
        // The message already includes the message of the damage, so only the cause of the damage is attached.
        self.fail(error.with_key(key).with_cause_of(damage))
    }

    /// Adds the name of the checksum file to an error.
    fn in_sums(&self, error: Error) -> Error {
        let message =
            format!("{}; delete the checksum file, or pack the samples again", error.message());
        let offset = error.offset();
        let error = Error::new(error.kind(), message);
        let error = offset.into_iter().fold(error, Error::with_offset);
        error.with_key(checksum_file(&self.shard.key).display_name())
    }

    fn other_sums(&self, name: Option<&[u8]>) -> Error {
        let name = Key::from_bytes(name.unwrap_or_default());
        let message = format!(
            "the checksum file does not match its archive: the archive has the member {:?} here",
            name.display_name()
        );
        self.in_sums(Error::new(ErrorKind::Corrupt, message))
    }

    fn too_much(&self, what: &str) -> Error {
        let message = format!("the shard has too many {what}");
        Error::new(ErrorKind::LimitExceeded, message).with_key(self.shard.key.display_name())
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::io;

    use super::*;

    #[test]
    fn the_cause_of_a_damaged_shard_is_attached_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.tar");
        tar::Builder::new(std::fs::File::create(&path).unwrap()).finish().unwrap();
        let index = TarIndex::open(&path).unwrap();
        let inner =
            Error::new(ErrorKind::Io, "no bytes").with_source(io::Error::other("connection lost"));
        let damage = Error::new(ErrorKind::Corrupt, "the shard is truncated").with_source(inner);
        let shard = ArchiveShard::new("1.tar".into(), &index, Some(damage), None).unwrap();
        let cause = shard.failures[0].1.source().unwrap();
        let cause: &Error = cause.downcast_ref().unwrap();
        assert_eq!(cause.message(), "no bytes");
        assert!(cause.source().unwrap().is::<io::Error>());
    }
}
