//! A shard that is being written.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use spdl_core::{Error, ErrorKind, Result};
use twox_hash::XxHash3_128;
use twox_hash::xxhash3_128::Hasher;

use super::header::{END, headers, padded};
use super::{FieldSummary, IndexParts, ShardRecord, Sums, files, sums};
use crate::archive::{ArchiveStamp, TarEntry, TarIndex, TarKind, TarOptions};
use crate::fetch::Key;
use crate::records::WHOLE_BYTES;

/// Number of attempts to write an index that is newer than its archive. The delay between attempts
/// doubles, from 1 ms.
const INDEX_ATTEMPTS: u32 = 6;

/// A shard in a partial file, which is removed on drop unless the shard is finished.
pub(super) struct ShardFile {
    path: PathBuf,
    partial: PathBuf,
    file: Option<BufWriter<File>>,
    sum: Hasher,
    bytes: u64,
    samples: u64,
    fields: BTreeMap<String, FieldSummary>,
    entries: Vec<TarEntry>,
    part_indexes: Vec<(usize, Vec<u8>)>,
    sums: Vec<u8>,
    /// Hashes of the keys of all samples in the shard.
    keys: HashSet<u128>,
}

/// A sample as tar members.
pub(super) struct Members<'a> {
    key: &'a [u8],
    fields: &'a [(&'a str, &'a [u8])],
    headers: Vec<Vec<u8>>,
    /// Size in the archive in bytes, including headers and padding.
    pub(super) bytes: u64,
}

impl<'a> Members<'a> {
    /// # Errors
    /// `LimitExceeded` if a field has 8 GiB or more.
    pub(super) fn new(key: &'a [u8], fields: &'a [(&'a str, &'a [u8])]) -> Result<Self> {
        let mut members = Members { key, fields, headers: Vec::new(), bytes: 0 };
        for (field, data) in fields {
            let name = [key, b".", field.as_bytes()].concat();
            let headers = headers(&name, data.len() as u64)?;
            members.bytes += (headers.len() + padded(data.len())) as u64;
            members.headers.push(headers);
        }
        Ok(members)
    }
}

impl ShardFile {
    pub(super) fn create(path: PathBuf) -> Result<Self> {
        let partial = files::partial_of(&path);
        let file = files::create(&partial)?;
        Ok(ShardFile {
            path,
            partial,
            file: Some(BufWriter::with_capacity(1 << 20, file)),
            sum: Hasher::new(),
            bytes: 0,
            samples: 0,
            fields: BTreeMap::new(),
            entries: Vec::new(),
            part_indexes: Vec::new(),
            sums: Vec::new(),
            keys: HashSet::new(),
        })
    }

    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the size of the archive with another sample, in bytes.
    pub(super) fn bytes_with(&self, members: &Members<'_>) -> u64 {
        self.bytes + members.bytes + END as u64
    }

    /// Writes a sample.
    pub(super) fn add(
        &mut self,
        members: &Members<'_>,
        index_parts: Option<&dyn IndexParts>,
    ) -> Result<()> {
        if !self.keys.insert(XxHash3_128::oneshot(members.key)) {
            let message = "duplicate key in one shard: readers would merge the samples";
            let key = Key::from_bytes(members.key).display_name();
            return Err(Error::new(ErrorKind::InvalidArgument, message).with_key(key));
        }
        for ((field, data), headers) in members.fields.iter().zip(&members.headers) {
            let name = [members.key, b".", field.as_bytes()].concat();
            let header_offset = self.bytes;
            self.write(headers)?;
            let data_offset = self.bytes;
            self.write(data)?;
            self.write(&[0; 512][..padded(data.len()) - data.len()])?;
            sums::append(&mut self.sums, &name, XxHash3_128::oneshot(data));
            let summary = self.fields.entry((*field).to_owned()).or_default();
            summary.samples += 1;
            summary.bytes += data.len() as u64;
            // Smaller files are read by one request.
            let index_parts = index_parts.filter(|_| data.len() as u64 > WHOLE_BYTES);
            let part_index = index_parts.and_then(|parts| parts.index(field, data));
            self.part_indexes.extend(part_index.map(|index| (self.entries.len(), index)));
            self.entries.push(TarEntry {
                key: Key::from_bytes(&name),
                kind: TarKind::File,
                link_target: None,
                size: data.len() as u64,
                header_offset,
                data_offset,
                mtime: Some(0),
            });
        }
        self.samples += 1;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sum.write(bytes);
        self.bytes += bytes.len() as u64;
        match &mut self.file {
            Some(file) => file
                .write_all(bytes)
                .map_err(|error| files::failed("cannot write shard", &self.path, error)),
            None => unreachable!("only `finish` takes the file, and it consumes the shard"),
        }
    }

    /// Ends the archive, and writes its checksums and index. `first..end` are the source positions
    /// of its samples.
    pub(super) fn finish(mut self, folder: &Path, first: u64, end: u64) -> Result<ShardRecord> {
        self.write(&[0; END])?;
        let Some(file) = self.file.take() else { unreachable!("only this call takes the file") };
        let failed = |error| files::failed("cannot write shard", &self.path, error);
        let file = file.into_inner().map_err(|error| failed(error.into_error()))?;
        files::write_atomically(&Sums::path_of(&self.path), &self.sums)?;
        files::finish(&file, &self.partial, &self.path)?;
        drop(file);
        self.save_index()?;
        files::sync_folder(folder)?;
        let name = self.path.file_name().unwrap_or_default();
        Ok(ShardRecord {
            name: name.to_string_lossy().into_owned(),
            bytes: self.bytes,
            samples: self.samples,
            xxh3_128: format!("{:032x}", self.sum.finish_128()),
            sums_xxh3_128: format!("{:032x}", XxHash3_128::oneshot(&self.sums)),
            first,
            end,
            fields: std::mem::take(&mut self.fields),
        })
    }

    /// Writes the index. The clock of the file system is coarse. If the index does not have a later
    /// modification time than the archive, readers would reject the index, so the write is
    /// repeated.
    fn save_index(&mut self) -> Result<()> {
        let stamp = ArchiveStamp::of_file(&self.path)?;
        let options = TarOptions::default();
        let entries = std::mem::take(&mut self.entries).into_iter().map(Ok);
        let mut index = TarIndex::from_entries(entries, stamp.clone(), options)?;
        index.set_part_indexes(&std::mem::take(&mut self.part_indexes));
        for attempt in 0..INDEX_ATTEMPTS {
            index.save(TarIndex::path_of(&self.path))?;
            if TarIndex::load(&self.path, &stamp, options).is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(1 << attempt));
        }
        // A missing index is not an error: readers create one.
        Ok(())
    }
}

impl std::fmt::Debug for ShardFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ShardFile({}, {} samples)", Key::from_path(&self.path), self.samples)
    }
}

impl Drop for ShardFile {
    fn drop(&mut self) {
        // A finished shard has no partial file. The next run removes a file that remains.
        let _ = fs::remove_file(&self.partial);
    }
}
