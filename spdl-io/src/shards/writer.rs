//! Samples one after another become shards.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use spdl_core::{Error, ErrorKind, Result};
use twox_hash::xxhash3_128::Hasher;

use super::files;
use super::journal::{Finished, JOURNAL, Journal};
use super::manifest::{MANIFEST, MOST_SKIPPED, Manifest};
use super::shard_file::{Members, ShardFile};
use super::{ShardPlan, ShardRecord, Skipped, Sums};
use crate::fetch::Key;

/// What there is to do, once a folder was looked at.
#[derive(Debug)]
pub enum Opened {
    /// Nothing: the folder holds the set that was asked for.
    Complete(Manifest),
    /// To add samples, from [`ShardWriter::position`] on.
    Writing(ShardWriter),
}

/// Writes samples into shards; see the [module](crate::shards) for an example.
///
/// A sample is a key and fields with their bytes. Samples are added in the order of their source, each
/// with its position there; the writer asks to go on at a position after it was interrupted. What is
/// written is a function of the plan and the samples alone.
///
/// # After an interruption
///
/// Every shard is written under another name (`.partial`), brought to the disk, renamed, and then
/// entered in a journal (`manifest.journal`), which is there until the manifest is. Where a journal is
/// found, the shards that it names are kept if their checksums are right, up to the first that is not;
/// everything else of an unfinished set is written anew. So a `kill -9` or a loss of power costs a shard
/// of work, and no byte differs afterwards.
///
/// A writer that is dropped leaves the finished shards and the journal.
#[derive(Debug)]
pub struct ShardWriter {
    folder: PathBuf,
    plan: ShardPlan,
    journal: Journal,
    finished: Vec<Finished>,
    current: Option<Box<ShardFile>>,
    /// What was left out since the last shard was finished.
    skipped: u64,
    skipped_samples: Vec<Skipped>,
    /// How many samples were left out and named before.
    named: usize,
    position: u64,
    failed: bool,
    /// Held, and never looked at.
    _lock: Option<File>,
}

impl ShardWriter {
    /// Looks at a folder, makes it where it is missing, and says what is to be done.
    ///
    /// # Errors
    /// `InvalidArgument` where the plan makes no sense, where a set of another plan was written there
    /// or begun (unless it is to be [overwritten](ShardPlan::overwrite), or no shard of it was finished), with
    /// what differs in its [changes](Error::changes), and where the folder holds other files; `Unavailable` where another program writes there; `NotFound` and `Corrupt` where a
    /// complete set lacks a shard, or one has another size; as [`Manifest::read`]; what the operating
    /// system answers.
    pub fn open(folder: impl AsRef<Path>, plan: &ShardPlan) -> Result<Opened> {
        let folder = folder.as_ref();
        plan.validate()?;
        let failed = |error| files::failed("cannot write to this folder", folder, error);
        fs::create_dir_all(folder).map_err(failed)?;
        let lock = files::lock_folder(folder)?;
        // What cannot be read is nobody's, and never overwritten.
        let mut names = vec![plan.name.clone()];
        let manifest = match Manifest::read(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            manifest => Some(manifest?),
        };
        names.extend(manifest.as_ref().map(|manifest| manifest.plan.name.clone()));
        let finished = match (Journal::read(folder)?, manifest) {
            (Some((there, finished)), manifest) => {
                let same = plan.check_same(&there);
                names.push(there.name);
                // A run that has finished nothing binds no other. Where a set was to be overwritten and
                // still is there, it is not lost by mistake.
                let is_bound = !finished.is_empty() || manifest.is_some();
                match same {
                    Ok(()) => kept(folder, finished)?,
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
        // From here on the journal says what the folder holds; all else of a set goes.
        let journal = Journal::create(folder, plan, &finished)?;
        files::remove(&folder.join(MANIFEST))?;
        for name in &names {
            remove_others(folder, name, &finished)?;
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
            _lock: lock,
        }))
    }

    /// The position in the source at which to go on: 0 for a new set.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// How many samples are in shards that were finished before, by this writer or another.
    pub fn finished_samples(&self) -> u64 {
        self.finished.iter().map(|finished| finished.shard.samples).sum()
    }

    /// The shards that are finished.
    pub fn finished_shards(&self) -> impl ExactSizeIterator<Item = &ShardRecord> {
        self.finished.iter().map(|finished| &finished.shard)
    }

    /// Writes a sample: `key.field` for each field, in the order in which they are given.
    ///
    /// # Errors
    /// `InvalidArgument` where the position is not behind that of the last sample; where the key is
    /// empty, absolute, climbs with `..`, has empty parts, or has a dot in its last part (which would
    /// end the key); where a field is empty or holds a slash or a zero byte, or is there twice; where
    /// the key is in the shard already. `LimitExceeded` for a field of 8 GiB or more. What the
    /// operating system answers; nothing more can be written then.
    pub fn add(&mut self, position: u64, key: &[u8], fields: &[(&str, &[u8])]) -> Result<()> {
        self.check_position(position)?;
        check_sample(key, fields)
            .map_err(|error| error.with_key(Key::from_bytes(key).display_name()))?;
        let members = Members::new(key, fields)
            .map_err(|error| error.with_key(Key::from_bytes(key).display_name()))?;
        let added = self.put(position, &members);
        // A part of the sample may be written.
        self.failed |=
            added.as_ref().is_err_and(|error| error.kind() != ErrorKind::InvalidArgument);
        if self.failed {
            self.current = None;
        }
        added
    }

    /// Says that a sample of the source is left out, and why.
    ///
    /// # Errors
    /// `InvalidArgument` where the position is not behind that of the last sample.
    pub fn skip(&mut self, position: u64, key: &str, reason: &str) -> Result<()> {
        self.check_position(position)?;
        self.skipped += 1;
        if self.named < MOST_SKIPPED {
            self.named += 1;
            let (key, reason) = (key.to_owned(), reason.to_owned());
            self.skipped_samples.push(Skipped { position, key, reason });
        }
        self.position = position + 1;
        Ok(())
    }

    /// Ends the set: its last shard and its manifest. `end` is the number of samples of the source.
    ///
    /// # Errors
    /// `InvalidArgument` where `end` is before the last sample; what the operating system answers.
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
        // Those that no shard has entered, as there is none behind them.
        named.append(&mut self.skipped_samples);
        let manifest = Manifest::new(self.plan, shards, skipped, named);
        files::write_whole(&self.folder.join(MANIFEST), &manifest.to_text()?)?;
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
        shard.add(members)?;
        self.position = position + 1;
        Ok(())
    }

    /// Finishes the shard under way, if there is one; `end` is the position behind it.
    fn close(&mut self, end: u64) -> Result<()> {
        let Some(shard) = self.current.take() else { return Ok(()) };
        let first = self.finished.last().map_or(0, |last| last.shard.end);
        let shard = shard.finish(&self.folder, first, end).inspect_err(|_| self.failed = true)?;
        let (skipped, skipped_samples) =
            (std::mem::take(&mut self.skipped), std::mem::take(&mut self.skipped_samples));
        let finished = Finished { shard, skipped, skipped_samples };
        self.journal.append(&finished).inspect_err(|_| self.failed = true)?;
        self.finished.push(finished);
        Ok(())
    }

    fn check_position(&self, position: u64) -> Result<()> {
        let message = if self.failed {
            "a writer that has failed writes nothing more; open another one to go on".to_owned()
        } else if position == u64::MAX {
            "no source has so many samples".to_owned()
        } else if position < self.position {
            format!("position {position} comes after {} positions are done", self.position)
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }
}

/// The shards that are as they were finished, up to the first that is not.
fn kept(folder: &Path, finished: Vec<Finished>) -> Result<Vec<Finished>> {
    let mut kept: Vec<Finished> = Vec::new();
    for shard in finished {
        let record = &shard.shard;
        let path = folder.join(&record.name);
        let follows = kept.last().map_or(0, |last| last.shard.end) == record.first;
        let is_whole = || {
            let sums = Sums::read(&path).ok().map(|(_, sum)| sum);
            sums.is_some() && sums == record.sum_of_sums() && file_sum(&path) == record.sum()
        };
        if !(follows && is_whole()) {
            break;
        }
        kept.push(shard);
    }
    Ok(kept)
}

/// The checksum of a file; `None` where it cannot be read, or is none.
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

/// Looks for the files of a complete set, by their sizes.
fn check_complete(folder: &Path, manifest: &Manifest) -> Result<()> {
    for shard in &manifest.shards {
        let path = folder.join(&shard.name);
        let key = Key::from_path(&path).display_name();
        let found = fs::metadata(&path).map(|found| found.len());
        let found =
            found.map_err(|error| files::failed("a shard of this set is missing", &path, error))?;
        if found != shard.bytes {
            let message = format!("a shard of {} bytes has {found}", shard.bytes);
            return Err(Error::new(ErrorKind::Corrupt, message).with_key(key));
        }
    }
    Ok(())
}

/// A folder with files that are none of ours is not written to.
fn check_empty(folder: &Path) -> Result<()> {
    let failed = |error| files::failed("cannot list this folder", folder, error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        // A journal that was being begun.
        if files::partial_of(JOURNAL.as_ref()).as_os_str() != name {
            let name = Key::from_path(Path::new(&name));
            let message = format!("shards go to an empty folder, and this one holds {name}");
            let key = Key::from_path(folder).display_name();
            return Err(Error::new(ErrorKind::InvalidArgument, message).with_key(key));
        }
    }
    Ok(())
}

/// Removes what belongs to a set of this name and is not finished: shards, what lies beside them, and
/// partial files.
fn remove_others(folder: &Path, name: &str, finished: &[Finished]) -> Result<()> {
    let failed = |error| files::failed("cannot list this folder", folder, error);
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

/// Which shard of this set a file belongs to.
fn shard_of<'a>(file: &'a str, name: &str) -> Option<&'a str> {
    let rest = file.strip_prefix(name)?.strip_prefix('-')?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let beside = rest.get(digits..)?.strip_prefix(".tar")?;
    let is_index = beside.strip_prefix(".idx.").is_some_and(|rest| rest.ends_with(".tmp"));
    let known = ["", ".partial", ".idx", ".sums", ".sums.partial"].contains(&beside) || is_index;
    (digits >= 6 && known).then(|| &file[..file.len() - beside.len()])
}

/// Refuses what readers would take for other samples, or unpack elsewhere.
fn check_sample(key: &[u8], fields: &[(&str, &[u8])]) -> Result<()> {
    let invalid = |message: &str| Err(Error::new(ErrorKind::InvalidArgument, message));
    let mut parts = key.split(|&byte| byte == b'/').peekable();
    while let Some(part) = parts.next() {
        if part.is_empty() || part == b"." || part == b".." || part.contains(&0) {
            return invalid(
                "the parts of a key are neither empty nor '.' nor '..', and hold no zero byte",
            );
        }
        if parts.peek().is_none() && part.contains(&b'.') {
            return invalid("a dot in the last part of a key would end it");
        }
    }
    if fields.is_empty() {
        return invalid("a sample without fields");
    }
    for (at, (field, _)) in fields.iter().enumerate() {
        if field.is_empty() || field.contains(['/', '\0']) {
            return invalid("the name of a field is not empty, and holds no slash or zero byte");
        }
        if fields[..at].iter().any(|(before, _)| before == field) {
            return invalid("a field is there twice");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_set_are_known_as_its_own() {
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
