//! [`ShardWriter`]: writes samples into shards.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};
use twox_hash::xxhash3_128::Hasher;

use super::files;
use super::journal::{FinishedShard, JOURNAL, Journal};
use super::manifest::{MANIFEST, MAX_LISTED_SKIPS, Manifest};
use super::shard_file::{Members, ShardFile};
use super::{IndexParts, ShardPlan, ShardRecord, Skipped, Sums};
use crate::fetch::Key;

/// The result of [`ShardWriter::open`].
#[derive(Debug)]
pub enum Opened {
    /// The folder already holds the requested data set.
    Complete(Manifest),
    /// Samples must be added, from [`ShardWriter::position`] on.
    Writing(ShardWriter),
}

/// Writes samples into tar shards; see the [module](crate::shards) for an example.
///
/// A sample is a key and named fields of bytes. Samples are added in source order, each with its
/// position in the source. The output depends only on the plan and the samples.
///
/// # After an interruption
///
/// Each shard is written to a `.partial` file, synced to disk, renamed, and then recorded in a
/// journal (`manifest.journal`), which exists until the manifest is written. When the writer opens
/// an incomplete data set, it keeps the recorded shards up to the first with a wrong checksum, and
/// writes the others again. After a `kill -9` or a power failure, the writer therefore repeats the
/// work of at most one shard. The bytes of the shards are the same as without the interruption.
///
/// Dropping a writer keeps the finished shards and the journal.
#[derive(Debug)]
pub struct ShardWriter {
    folder: PathBuf,
    plan: ShardPlan,
    journal: Journal,
    finished: Vec<FinishedShard>,
    current: Option<Box<ShardFile>>,
    /// Samples skipped since the last shard was finished.
    skipped: u64,
    skipped_samples: Vec<Skipped>,
    /// Number of skipped samples that are listed so far.
    named: usize,
    position: u64,
    failed: bool,
    index_parts: Option<Arc<dyn IndexParts>>,
    /// Keeps the folder locked.
    _lock: Option<File>,
}

impl ShardWriter {
    /// Opens a folder, and creates it if it does not exist.
    ///
    /// # Errors
    /// - `InvalidArgument` if the plan is invalid, the folder holds other files, or it holds a data
    ///   set with another plan, complete or with finished shards. [`Error::changes`] lists the
    ///   differences. [`ShardPlan::overwrite`] allows replacing the data set.
    /// - `Unavailable` if another writer has locked the folder. Some file systems do not support
    ///   such locks.
    /// - `NotFound` or `Corrupt` if a shard of a complete data set is missing or has another size.
    ///   `Corrupt` if the first line of the journal is damaged.
    /// - Errors of [`Manifest::read`] and of the operating system.
    pub fn open(folder: impl AsRef<Path>, plan: &ShardPlan) -> Result<Opened> {
        let folder = folder.as_ref();
        plan.validate()?;
        let failed = |error| files::failed("cannot create the output folder", folder, error);
        fs::create_dir_all(folder).map_err(failed)?;
        let lock = files::lock_folder(folder)?;
        // An unreadable manifest is an error, so that its shards are never overwritten.
        let mut names = vec![plan.name.clone()];
        let manifest = match Manifest::read(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            manifest => Some(manifest?),
        };
        names.extend(manifest.as_ref().map(|manifest| manifest.plan.name.clone()));
        let finished = match (Journal::read(folder)?, manifest) {
            (Some((existing, finished)), manifest) => {
                let same = plan.check_same(&existing);
                names.push(existing.name);
                // If no shard is finished, the plan may differ. If a complete data set was being overwritten, a
                // different plan still requires `overwrite`.
                let is_bound = !finished.is_empty() || manifest.is_some();
                match same {
                    Ok(()) => valid_shards(folder, finished)?,
                    Err(_) if plan.overwrite || !is_bound => Vec::new(),
                    Err(error) => return Err(error.with_key(Key::from_path(folder).display_name())),
                }
            }
            (None, Some(_)) if plan.overwrite => Vec::new(),
            (None, Some(manifest)) => {
                plan.check_same(&manifest.plan)
                    .map_err(|error| error.with_key(Key::from_path(folder).display_name()))?;
                check_complete(folder, &manifest)?;
                return Ok(Opened::Complete(manifest));
            }
            (None, None) => {
                check_empty(folder)?;
                Vec::new()
            }
        };
        // From here on, the journal defines the content. Other files of the data set are removed.
        let journal = Journal::create(folder, plan, &finished)?;
        files::remove(&folder.join(MANIFEST))?;
        for name in &names {
            remove_unfinished(folder, name, &finished)?;
        }
        files::sync_folder(folder)?;
        Ok(Opened::Writing(ShardWriter {
            folder: folder.to_owned(),
            plan: plan.clone(),
            journal,
            position: finished.last().map_or(0, |last| last.shard.end),
            named: finished.iter().map(|shard| shard.skipped_samples.len()).sum(),
            finished,
            current: None,
            skipped: 0,
            skipped_samples: Vec::new(),
            failed: false,
            index_parts: None,
            _lock: lock,
        }))
    }

    /// Sets that part indexes of members are stored in the index files of shards. They do not change the archives.
    #[must_use]
    pub fn with_part_indexes(mut self, index_parts: Arc<dyn IndexParts>) -> Self {
        self.index_parts = Some(index_parts);
        self
    }

    /// Returns the source position of the next sample to add: 0 for a new data set.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Returns the number of samples in finished shards.
    pub fn finished_samples(&self) -> u64 {
        self.finished.iter().map(|finished| finished.shard.samples).sum()
    }

    /// Returns the finished shards.
    pub fn finished_shards(&self) -> impl ExactSizeIterator<Item = &ShardRecord> {
        self.finished.iter().map(|finished| &finished.shard)
    }

    /// Writes a sample: a member `key.field` for each field, in the given order.
    ///
    /// # Errors
    /// - `InvalidArgument` if `position` is before the next position. Also if the key is empty, is
    ///   absolute, has `.`, `..` or empty segments, contains a NUL byte, has a dot in its last
    ///   segment, or already exists in the shard. Also if there are no fields, or a field name is
    ///   empty, is repeated, or contains a slash or NUL byte.
    /// - `LimitExceeded` if a field has 8 GiB or more.
    /// - Errors of the operating system. After such an error, the writer accepts no more samples.
    pub fn add(&mut self, position: u64, key: &[u8], fields: &[(&str, &[u8])]) -> Result<()> {
        self.check_position(position)?;
        check_sample(key, fields)
            .map_err(|error| error.with_key(Key::from_bytes(key).display_name()))?;
        let members = Members::new(key, fields)
            .map_err(|error| error.with_key(Key::from_bytes(key).display_name()))?;
        let added = self.put(position, &members);
        // The sample may be partially written.
        self.failed |=
            added.as_ref().is_err_and(|error| error.kind() != ErrorKind::InvalidArgument);
        if self.failed {
            self.current = None;
        }
        added
    }

    /// Records that a sample of the source is skipped, with the reason.
    ///
    /// # Errors
    /// `InvalidArgument` if `position` is before the next position.
    pub fn skip(&mut self, position: u64, key: &str, reason: &str) -> Result<()> {
        self.check_position(position)?;
        self.skipped += 1;
        if self.named < MAX_LISTED_SKIPS {
            self.named += 1;
            let (key, reason) = (key.to_owned(), reason.to_owned());
            self.skipped_samples.push(Skipped { position, key, reason });
        }
        self.position = position + 1;
        Ok(())
    }

    /// Writes the last shard and the manifest. `end` is the number of samples of the source.
    ///
    /// # Errors
    /// `InvalidArgument` if `end` is before the next position. Errors of the operating system.
    pub fn finish(mut self, end: u64) -> Result<Manifest> {
        if end < self.position {
            self.check_position(end)?;
        }
        self.check_position(self.position)?;
        self.close(end)?;
        let skipped = self.skipped + self.finished.iter().map(|shard| shard.skipped).sum::<u64>();
        let mut named = Vec::new();
        let mut shards = Vec::new();
        for finished in self.finished {
            shards.push(finished.shard);
            named.extend(finished.skipped_samples);
        }
        // Samples skipped after the last shard.
        named.append(&mut self.skipped_samples);
        let manifest = Manifest::new(self.plan, shards, skipped, named);
        files::write_atomically(&self.folder.join(MANIFEST), &manifest.to_text()?)?;
        files::sync_folder(&self.folder)?;
        files::remove(&self.folder.join(JOURNAL))?;
        Ok(manifest)
    }

    fn put(&mut self, position: u64, members: &Members<'_>) -> Result<()> {
        let is_full = self.current.as_ref().is_some_and(|shard| {
            shard.bytes_with(members) > self.plan.shard_bytes
                || self.plan.shard_samples.is_some_and(|most| shard.samples() >= most)
        });
        if is_full {
            self.close(position)?;
        }
        let shard = match &mut self.current {
            Some(shard) => shard,
            None => {
                let name = self.plan.shard_name(self.finished.len());
                self.current.insert(Box::new(ShardFile::create(self.folder.join(name))?))
            }
        };
        shard.add(members, self.index_parts.as_deref())?;
        self.position = position + 1;
        Ok(())
    }

    /// Finishes the current shard, if one is open. `end` is the position after its last sample.
    fn close(&mut self, end: u64) -> Result<()> {
        let Some(shard) = self.current.take() else { return Ok(()) };
        let first = self.finished.last().map_or(0, |last| last.shard.end);
        let shard = shard.finish(&self.folder, first, end).inspect_err(|_| self.failed = true)?;
        let (skipped, skipped_samples) =
            (std::mem::take(&mut self.skipped), std::mem::take(&mut self.skipped_samples));
        let finished = FinishedShard { shard, skipped, skipped_samples };
        self.journal.append(&finished).inspect_err(|_| self.failed = true)?;
        self.finished.push(finished);
        Ok(())
    }

    fn check_position(&self, position: u64) -> Result<()> {
        let message = if self.failed {
            "an earlier write failed; open a new writer to resume".to_owned()
        } else if position == u64::MAX {
            "the position exceeds the maximum of 2^64 - 2".to_owned()
        } else if position < self.position {
            format!("position {position} is out of order: expected at least {}", self.position)
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }
}

/// Returns the shards with valid checksums, up to the first corrupt one.
fn valid_shards(folder: &Path, finished: Vec<FinishedShard>) -> Result<Vec<FinishedShard>> {
    let mut valid_shards: Vec<FinishedShard> = Vec::new();
    for shard in finished {
        let record = &shard.shard;
        let path = folder.join(&record.name);
        let follows = valid_shards.last().map_or(0, |last| last.shard.end) == record.first;
        let is_valid = || {
            let sums = Sums::read(&path).ok().map(|(_, sum)| sum);
            sums.is_some() && sums == record.sum_of_sums() && file_sum(&path) == record.sum()
        };
        if !(follows && is_valid()) {
            break;
        }
        valid_shards.push(shard);
    }
    Ok(valid_shards)
}

/// Returns the XXH3-128 hash of a regular file, or `None` if it cannot be read.
fn file_sum(path: &Path) -> Option<u128> {
    if !fs::symlink_metadata(path).ok()?.is_file() {
        return None;
    }
    let mut file = File::open(path).ok()?;
    let mut sum = Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).ok()? {
            0 => return Some(sum.finish_128()),
            read => sum.write(&buffer[..read]),
        }
    }
}

/// Checks that the shards of a complete data set exist and have the right sizes.
fn check_complete(folder: &Path, manifest: &Manifest) -> Result<()> {
    for shard in &manifest.shards {
        let path = folder.join(&shard.name);
        let key = Key::from_path(&path).display_name();
        let found = fs::metadata(&path).map(|found| found.len());
        let found = found
            .map_err(|error| files::failed("cannot find a shard of this data set", &path, error))?;
        if found != shard.bytes {
            let message =
                format!("the shard has {found} bytes, but the manifest lists {}", shard.bytes);
            return Err(Error::new(ErrorKind::Corrupt, message).with_key(key));
        }
    }
    Ok(())
}

/// Checks that the folder of a new data set is empty.
fn check_empty(folder: &Path) -> Result<()> {
    let failed = |error| files::failed("cannot list folder", folder, error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        // An interrupted run may leave a partially written journal.
        if files::partial_of(JOURNAL.as_ref()).as_os_str() != name {
            let name = Key::from_path(Path::new(&name));
            let message =
                format!("the output folder is not empty: it contains {name}; use an empty folder");
            let key = Key::from_path(folder).display_name();
            return Err(Error::new(ErrorKind::InvalidArgument, message).with_key(key));
        }
    }
    Ok(())
}

/// Removes all files of a data set with this name that do not belong to finished shards.
fn remove_unfinished(folder: &Path, name: &str, finished: &[FinishedShard]) -> Result<()> {
    let failed = |error| files::failed("cannot list folder", folder, error);
    let is_finished = |shard: &str| finished.iter().any(|finished| finished.shard.name == shard);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let found = entry.file_name();
        let Some(found) = found.to_str() else { continue };
        let Some(shard) = shard_of(found, name) else { continue };
        let is_partial = found.ends_with(".partial") || found.ends_with(".tmp");
        if is_partial || !is_finished(shard) {
            files::remove(&entry.path())?;
        }
    }
    Ok(())
}

/// Returns the shard of this data set to which a file belongs.
fn shard_of<'a>(file: &'a str, name: &str) -> Option<&'a str> {
    let rest = file.strip_prefix(name)?.strip_prefix('-')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let suffix = rest.get(digits..)?.strip_prefix(".tar")?;
    let is_index = suffix.strip_prefix(".idx.").is_some_and(|rest| rest.ends_with(".tmp"));
    let known = ["", ".partial", ".idx", ".sums", ".sums.partial"].contains(&suffix) || is_index;
    (digits >= 6 && known).then(|| &file[..file.len() - suffix.len()])
}

/// Rejects keys and fields that readers would misinterpret or extract outside the folder.
fn check_sample(key: &[u8], fields: &[(&str, &[u8])]) -> Result<()> {
    let invalid = |message: &str| Err(Error::new(ErrorKind::InvalidArgument, message));
    let mut parts = key.split(|&byte| byte == b'/').peekable();
    while let Some(part) = parts.next() {
        if part.is_empty() || part == b"." || part == b".." || part.contains(&0) {
            return invalid(
                "invalid key: a segment is empty, is '.' or '..', or contains a NUL byte",
            );
        }
        if parts.peek().is_none() && part.contains(&b'.') {
            return invalid(
                "invalid key: readers would truncate the key at the dot in its last segment",
            );
        }
    }
    if fields.is_empty() {
        return invalid("the sample has no fields");
    }
    for (at, (field, _)) in fields.iter().enumerate() {
        if field.is_empty() || field.contains(['/', '\0']) {
            return invalid(&format!(
                "invalid field name {field:?}: it must not be empty or contain a slash or NUL byte"
            ));
        }
        if fields[..at].iter().any(|(before, _)| before == field) {
            return invalid(&format!("duplicate field name {field:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_data_set_are_recognized() {
        for (file, shard) in [
            ("a-000001.tar", Some("a-000001.tar")),
            ("a-000001.tar.partial", Some("a-000001.tar")),
            ("a-1000001.tar.idx", Some("a-1000001.tar")),
            ("a-000001.tar.sums.partial", Some("a-000001.tar")),
            ("a-000001.tar.idx.77-0.tmp", Some("a-000001.tar")),
            ("a-00001.tar", None),
            ("a-000001.tar.gz", None),
            ("b-000001.tar", None),
            ("a-b-000001.tar", None),
            ("a-000001.txt", None),
        ] {
            assert_eq!(shard_of(file, "a"), shard, "{file}");
        }
    }
}
