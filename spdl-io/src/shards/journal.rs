//! The journal: which shards are finished while a data set is being written.
//!
//! The first line holds the plan, and each further line a shard. A line is the XXH3-128 hash of its
//! JSON object as 32 hexadecimal digits, a space, and the object. The writer creates the journal
//! before the first shard, and removes it after writing the manifest. A reader ignores all lines
//! from the first truncated or corrupt one on, and their shards are written again.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use spdl_core::{Error, ErrorKind, Result};
use twox_hash::XxHash3_128;

use super::files;
use super::{ShardPlan, ShardRecord, Skipped};
use crate::fetch::Key;
use crate::files::read_regular_file;

/// Name of the journal file. If it exists, the data set is incomplete.
pub const JOURNAL: &str = "manifest.journal";
/// Size limit of a journal in bytes.
const MAX_JOURNAL_BYTES: u64 = 1 << 30;
const VERSION: u32 = 1;

/// A finished shard, and the samples skipped before its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FinishedShard {
    pub(super) shard: ShardRecord,
    pub(super) skipped: u64,
    pub(super) skipped_samples: Vec<Skipped>,
}

#[derive(Serialize, Deserialize)]
struct JournalHeader {
    version: u32,
    plan: ShardPlan,
}

#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Creates a journal with the shards that are already finished.
    pub(super) fn create(
        folder: &Path,
        plan: &ShardPlan,
        finished: &[FinishedShard],
    ) -> Result<Self> {
        let path = folder.join(JOURNAL);
        let mut lines = line(&JournalHeader { version: VERSION, plan: plan.clone() })?;
        for shard in finished {
            lines.extend_from_slice(&line(shard)?);
        }
        files::write_atomically(&path, &lines)?;
        files::sync_folder(folder)?;
        let file = OpenOptions::new().append(true).open(&path);
        let file = file.map_err(|error| files::failed("cannot write the journal", &path, error))?;
        Ok(Journal { file, path })
    }

    /// Appends a finished shard.
    pub(super) fn append(&mut self, shard: &FinishedShard) -> Result<()> {
        let written = self.file.write_all(&line(shard)?).and_then(|()| self.file.sync_data());
        written.map_err(|error| files::failed("cannot write the journal", &self.path, error))
    }

    /// Reads the journal of a folder. Returns `None` if the folder has no journal.
    pub(super) fn read(folder: &Path) -> Result<Option<(ShardPlan, Vec<FinishedShard>)>> {
        let path = folder.join(JOURNAL);
        let failed = |error| files::failed("cannot read the journal", &path, error);
        let text = match read_regular_file(&path, MAX_JOURNAL_BYTES) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(failed)?,
        };
        parse(&text).map(Some).map_err(|error| error.with_key(Key::from_path(&path).display_name()))
    }
}

fn line(value: &impl Serialize) -> Result<Vec<u8>> {
    let text = serde_json::to_string(value).map_err(|error| {
        Error::new(ErrorKind::Internal, "cannot write the journal").with_source(error)
    })?;
    Ok(format!("{:032x} {text}\n", XxHash3_128::oneshot(text.as_bytes())).into_bytes())
}

/// Parses the lines up to the first corrupt one.
fn parse(text: &[u8]) -> Result<(ShardPlan, Vec<FinishedShard>)> {
    let mut lines = text.split_inclusive(|&byte| byte == b'\n').map_while(content);
    let head = lines.next().and_then(|line| serde_json::from_slice::<JournalHeader>(line).ok());
    let Some(head) = head.filter(|head| head.version == VERSION) else {
        let message = "the first line is corrupt or has another version; to restart, use an \
                       empty folder";
        return Err(Error::new(ErrorKind::Corrupt, message));
    };
    Ok((head.plan, lines.map_while(|line| serde_json::from_slice(line).ok()).collect()))
}

/// Returns the object of a line if its checksum is valid.
fn content(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b"\n")?;
    let (sum, rest) = line.split_at_checked(32)?;
    let text = rest.strip_prefix(b" ")?;
    let expected = format!("{:032x}", XxHash3_128::oneshot(text));
    (sum == expected.as_bytes()).then_some(text)
}
