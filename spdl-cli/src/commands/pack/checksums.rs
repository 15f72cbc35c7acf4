//! Checksum files of source archives, so that `pack` does not copy corrupt members.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use spdl_core::{AsyncContext, AsyncStage, Error, ErrorKind, PipelineBuilder, Result, async_trait};
use spdl_io::datasets::DatasetKind;
use spdl_io::records::StoredField;
use spdl_io::shards::Sums;
use spdl_io::{Fetcher, Key, StoredRecord};
use twox_hash::XxHash3_128;

use super::source::PackSource;
use crate::datasets::member_name::key_and_field;
use crate::datasets::sample_files::Sample;

/// The checksums of members, keyed by a hash of archive and name; about 50 bytes per member.
/// Members of one name with different checksums are left out.
#[derive(Debug, Default)]
pub(super) struct ArchiveChecksums {
    sums: HashMap<u128, u128>,
}

impl ArchiveChecksums {
    /// Reads the checksum file of each source archive, and returns the errors of unreadable
    /// checksum files.
    ///
    /// The result is empty for data sets other than tar shards. A checksum file that is missing, or
    /// that the user has no permission to read, is not an error.
    ///
    /// # Errors
    /// Transient errors, such as a failed connection.
    pub(super) fn read(source: &PackSource) -> Result<(Self, Vec<Error>)> {
        let mut checksums = ArchiveChecksums::default();
        let mut unread = Vec::new();
        let set = &source.opened.set;
        if set.kind != DatasetKind::TarShards {
            return Ok((checksums, unread));
        }
        let mut archives = HashSet::new();
        for number in 0..set.samples.len() {
            // The pipeline reports samples that cannot be read.
            let Ok(record) = set.samples.item(number) else { continue };
            if let Some(archive) = archive_of(&record).filter(|it| !archives.contains(*it)) {
                archives.insert(archive.clone());
            }
        }
        let read = source
            .opened
            .with_runtime(PipelineBuilder::from_iter(archives))?
            .async_stage("checksums", ReadSums(Arc::clone(&set.fetcher)))
            .build()?;
        for found in read {
            let (archive, sums) = found?;
            match sums {
                Ok(sums) => checksums.add(&archive, &sums),
                Err(error) if error.kind().is_transient() => return Err(error),
                Err(error) => match error.kind() {
                    ErrorKind::NotFound | ErrorKind::PermissionDenied => {}
                    _ => unread.push(error),
                },
            }
        }
        Ok((checksums, unread))
    }

    fn add(&mut self, archive: &Key, sums: &Sums) {
        let mut ambiguous = Vec::new();
        for sum in sums.as_slice() {
            let member = hash_of(archive, &lower_field(sum.name.as_bytes()));
            if self.sums.insert(member, sum.xxh3_128).is_some_and(|before| before != sum.xxh3_128) {
                ambiguous.push(member);
            }
        }
        // Two members of the same name have different checksums: neither is compared.
        ambiguous.iter().for_each(|member| {
            self.sums.remove(member);
        });
    }

    /// Compares the fields of a sample with their checksums, if the archive has checksums.
    ///
    /// # Errors
    /// `Corrupt` if a checksum differs.
    pub(super) fn compare(&self, record: &StoredRecord, sample: &Sample) -> Result<()> {
        let Some(archive) = archive_of(record).filter(|_| !self.sums.is_empty()) else {
            return Ok(());
        };
        let key = record.key.as_bytes();
        let name = key.strip_prefix(archive.as_bytes()).and_then(|rest| rest.strip_prefix(b":"));
        for file in &sample.files {
            let name = [name.unwrap_or(key), b".", file.field.as_bytes()].concat();
            let Some(&was) = self.sums.get(&hash_of(archive, &name)) else { continue };
            let found = XxHash3_128::oneshot(&file.data);
            if found != was {
                let message = format!("checksum mismatch: {found:032x}, expected {was:032x}");
                let member = [key, b".", file.field.as_bytes()].concat();
                let error = Error::new(ErrorKind::Corrupt, message);
                return Err(error.with_key(Key::from_bytes(&member).display_name()));
            }
        }
        Ok(())
    }
}

/// The archive of a sample.
fn archive_of(record: &StoredRecord) -> Option<&Key> {
    record.fields.iter().find_map(|(_, field)| match field {
        StoredField::At(extent, _) => Some(&extent.object),
        _ => None,
    })
}

/// The name of a member; the part after the first dot is in lower case, as in the names of fields.
fn lower_field(name: &[u8]) -> Vec<u8> {
    match key_and_field(name) {
        Some((key, field)) => {
            [key, b".", String::from_utf8_lossy(field).to_lowercase().as_bytes()].concat()
        }
        None => name.to_vec(),
    }
}

fn hash_of(archive: &Key, member: &[u8]) -> u128 {
    XxHash3_128::oneshot(&[archive.as_bytes(), &[0], member].concat())
}

/// The stage that reads the checksum file of an archive.
struct ReadSums(Arc<dyn Fetcher>);

#[async_trait]
impl AsyncStage<Key> for ReadSums {
    type Out = (Key, Result<Sums>);

    async fn process(&self, archive: Key, _: &AsyncContext) -> Result<Self::Out> {
        let key = Key::from_bytes(&[archive.as_bytes(), b".sums"].concat());
        let text = self.0.read_whole(&key, &Sums::MAX_BYTES).await;
        let sums = text.and_then(|text| {
            Sums::parse(&text).map_err(|error| error.with_key(key.display_name()))
        });
        Ok((archive, sums))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datasets::sample_files::{Role, SampleFile};
    use spdl_io::records::{Encoding, Extent};

    #[test]
    fn a_member_is_compared_with_its_own_checksum_only() {
        let line =
            |data: &[u8], name: &str| format!("{:032x}  {name}\n", XxHash3_128::oneshot(data));
        let text = line(b"one", "x/a.PNG") + &line(b"1", "x/a.cls") + &line(b"2", "x/a.cls");
        let mut checksums = ArchiveChecksums::default();
        checksums.add(&"s.tar".into(), &Sums::parse(text.as_bytes()).unwrap());
        let compare = |archive: &str, field: &str, data: &'static [u8]| {
            let extent = Extent::part(archive, 0..1);
            let key = format!("{archive}:x/a");
            let record = StoredRecord::new(key).with_stored(field, extent, Encoding::Bytes);
            let (field, data) = (field.into(), data.into());
            let file =
                SampleFile { field, name: String::new(), offset: None, data, role: Role::Other };
            checksums.compare(&record, &Sample { files: vec![file], label: -1 })
        };
        assert!(compare("s.tar", "png", b"one").is_ok());
        let error = compare("s.tar", "png", b"two").unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Corrupt, Some("s.tar:x/a.png")));
        // A member of another archive, a field without a checksum, and a field with two checksums.
        assert!(compare("t.tar", "png", b"two").is_ok());
        assert!(compare("s.tar", "txt", b"two").is_ok());
        assert!(compare("s.tar", "cls", b"3").is_ok());
    }
}
