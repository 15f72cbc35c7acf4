//! The members of a shard as samples: those that follow each other and share a name.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};

use crate::archive::{TarIndex, TarKind};
use crate::fetch::Key;

/// The samples of one shard, in the order of the archive.
pub(super) struct TarShard {
    /// The archive.
    pub(super) key: Key,
    /// A hash of its size and version, where a store told them.
    pub(super) version: Option<u64>,
    /// Its size.
    pub(super) bytes: u64,
    /// Whether its headers are damaged somewhere, so that nobody knows what lies behind.
    pub(super) is_truncated: bool,
    samples: Vec<SampleEnd>,
    /// The names of all samples, joined.
    names: Vec<u8>,
    members: Vec<SampleMember>,
    /// By the number in [`SampleMember::extension`].
    pub(super) extensions: Vec<Arc<str>>,
    /// Why some samples cannot be read, by their number, in its order.
    failures: Vec<(u32, Error)>,
}

/// Where the name and the members of a sample end; they start where those of the last one end.
#[derive(Clone, Copy)]
struct SampleEnd {
    name_end: u32,
    member_end: u32,
}

#[derive(Clone, Copy)]
pub(super) struct SampleMember {
    /// Where its data start in the archive.
    start: u64,
    size: u64,
    /// What it is, by its number in the shard and later in the data set.
    pub(super) extension: u32,
}

impl SampleMember {
    pub(super) fn range(&self) -> Range<u64> {
        self.start..self.start + self.size
    }
}

/// Splits a member's name into that of its sample and its extension: all behind the first dot of the
/// last part of the path. `None` for what belongs to no sample: hidden files, names without an
/// extension, and what says something about the archive (`__…__`).
pub(super) fn split_name(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let first_part = name.split(|&byte| byte == b'/').next().unwrap_or_default();
    if first_part.len() >= 4 && first_part.starts_with(b"__") && first_part.ends_with(b"__") {
        return None;
    }
    let base = name.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let dot = name[base..].iter().position(|&byte| byte == b'.')?;
    (dot > 0).then(|| (&name[..base + dot], &name[base + dot + 1..]))
}

impl TarShard {
    /// Groups the members of an archive. Where its headers are damaged somewhere, the last sample
    /// before that, which may lack members, is one that fails with `damage`.
    pub(super) fn new(key: Key, index: &TarIndex, damage: Option<Error>) -> Result<Self> {
        let mut grouping = Grouping {
            shard: TarShard {
                key,
                version: None,
                bytes: index.stamp().size(),
                is_truncated: damage.is_some(),
                samples: Vec::new(),
                names: Vec::new(),
                members: Vec::new(),
                extensions: Vec::new(),
                failures: Vec::new(),
            },
            numbers: HashMap::new(),
            last_sample_with: Vec::new(),
        };
        for number in 0..index.len() {
            let is_file = matches!(
                index.kind(number),
                Some(TarKind::File | TarKind::HardLink | TarKind::Sparse | TarKind::Other(_))
            );
            let split = index.name(number).and_then(split_name);
            if let Some((name, extension)) = split.filter(|_| is_file) {
                grouping.member(index, number, name, extension)?;
            }
        }
        if let Some(damage) = damage {
            grouping.damage(damage)?;
        }
        let mut shard = grouping.shard;
        shard.samples.shrink_to_fit();
        shard.names.shrink_to_fit();
        shard.members.shrink_to_fit();
        Ok(shard)
    }

    /// How many samples there are, those that fail included.
    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    pub(super) fn name(&self, sample: usize) -> Option<&[u8]> {
        let end = self.samples.get(sample)?.name_end;
        let start = sample.checked_sub(1).map_or(0, |before| self.samples[before].name_end);
        self.names.get(start as usize..end as usize)
    }

    /// The members of a sample, in the order of the archive.
    ///
    /// # Errors
    /// Why it cannot be read, where it is one that fails.
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

    /// Why some samples cannot be read.
    pub(super) fn failures(&self) -> impl Iterator<Item = &Error> {
        self.failures.iter().map(|(_, error)| error)
    }

    /// All members of samples that can be read, to give their extensions the numbers of the data set.
    pub(super) fn members_mut(&mut self) -> &mut [SampleMember] {
        &mut self.members
    }

    /// What people call a sample, or one of its members.
    pub(super) fn shown(&self, name: &[u8], extension: Option<&str>) -> Key {
        let end = extension.map(|it| format!(".{it}")).unwrap_or_default();
        Key::from_bytes(&[self.key.as_bytes(), b":", name, end.as_bytes()].concat())
    }
}

struct Grouping {
    shard: TarShard,
    numbers: HashMap<Arc<str>, u32>,
    /// For each extension, one more than the number of the last sample that has it.
    last_sample_with: Vec<u32>,
}

impl Grouping {
    fn member(
        &mut self,
        index: &TarIndex,
        number: usize,
        name: &[u8],
        extension: &[u8],
    ) -> Result<()> {
        let last = self.shard.len().checked_sub(1);
        if last.and_then(|last| self.shard.name(last)) != Some(name) {
            self.start_sample(name)?;
        }
        if self.has_failed() {
            return Ok(());
        }
        let extension: Arc<str> = String::from_utf8_lossy(extension).to_lowercase().into();
        let shown = self.shard.shown(name, Some(&extension));
        let file = match index.file(number) {
            Ok(file) => file,
            Err(error) => {
                let message =
                    format!("this member of the sample cannot be read: {}", error.message());
                let mut failure = Error::new(error.kind(), message);
                if let Some(entry) = index.entry(number) {
                    failure = failure.with_offset(entry.header_offset);
                }
                return self.fail(failure.with_key(shown.display_name()));
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
            let message = format!("the sample has two members with the extension {extension:?}");
            let offset = index.entry(number).map_or(0, |entry| entry.header_offset);
            let error = Error::new(ErrorKind::Corrupt, message).with_offset(offset);
            return self.fail(error.with_key(shown.display_name()));
        }
        self.shard.members.push(SampleMember {
            start: file.data_offset,
            size: file.size,
            extension: extension_number,
        });
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
        // There are no more members than fit into 32 bits, or an error was returned.
        let member_end = self.shard.members.len() as u32;
        self.shard.samples.push(SampleEnd { name_end, member_end });
        Ok(())
    }

    fn has_failed(&self) -> bool {
        let failed = self.shard.failures.last().map(|(sample, _)| *sample as usize);
        failed.is_some() && failed == self.shard.len().checked_sub(1)
    }

    /// The sample at hand is one that fails.
    fn fail(&mut self, error: Error) -> Result<()> {
        let Some(last) = self.shard.len().checked_sub(1) else { return Ok(()) };
        let start = last.checked_sub(1).map_or(0, |before| self.shard.samples[before].member_end);
        self.shard.members.truncate(start as usize);
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
            // That sample fails for a reason of its own; the damage must be told as well.
            self.start_sample(b"")?;
        }
        let last = self.shard.len().saturating_sub(1);
        let name = self.shard.name(last).unwrap_or_default().to_vec();
        let before = match last {
            0 => "no sample".to_owned(),
            1 => "1 sample".to_owned(),
            before => format!("{before} samples"),
        };
        let message = format!(
            "the shard is damaged from here on: {}; {before} of it came before, and nobody knows how many \
             are behind",
            damage.message()
        );
        let mut error = Error::new(damage.kind(), message);
        if let Some(offset) = damage.offset() {
            error = error.with_offset(offset);
        }
        let shown = match name.is_empty() {
            true => self.shard.key.display_name(),
            false => self.shard.shown(&name, None).display_name(),
        };
        // What the damage says of itself is told above, so only what is behind it is its cause.
        self.fail(error.with_key(shown).with_cause_of(damage))
    }

    fn too_much(&self, what: &str) -> Error {
        let message = format!("the shard has more {what} than can be kept");
        Error::new(ErrorKind::LimitExceeded, message).with_key(self.shard.key.display_name())
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::io;

    use super::*;

    #[test]
    fn what_caused_the_damage_of_a_shard_is_kept_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("1.tar");
        tar::Builder::new(std::fs::File::create(&path).unwrap()).finish().unwrap();
        let index = TarIndex::open(&path).unwrap();
        let inner = Error::new(ErrorKind::Io, "no bytes").with_source(io::Error::other("a wire"));
        let damage = Error::new(ErrorKind::Corrupt, "it is cut").with_source(inner);
        let shard = TarShard::new("1.tar".into(), &index, Some(damage)).unwrap();
        let cause = shard.failures[0].1.source().unwrap();
        let cause: &Error = cause.downcast_ref().unwrap();
        assert_eq!(cause.message(), "no bytes");
        assert!(cause.source().unwrap().is::<io::Error>());
    }
}
