//! Which shards are finished, while a set is being written.
//!
//! A line for the plan, and one for each shard: the XXH3 sum of 128 bits of the rest of the line, a space,
//! and an object. It is there from before the first shard until the manifest is there. A last line that
//! is cut was being written when the power went; its shard is written again.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use spdl_core::{Error, ErrorKind, Result};
use twox_hash::XxHash3_128;

use super::files;
use super::{ShardPlan, ShardRecord, Skipped};
use crate::fetch::Key;

/// The file in which a set that is being written says how far it has come. Where it is there, the set
/// is not complete.
pub const JOURNAL: &str = "manifest.journal";
/// No journal is larger, in bytes.
const LARGEST: u64 = 1 << 30;
const VERSION: u32 = 1;

/// A shard that is there for good, and what was left out beside its samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Finished {
    pub(super) shard: ShardRecord,
    pub(super) skipped: u64,
    pub(super) skipped_samples: Vec<Skipped>,
}

#[derive(Serialize, Deserialize)]
struct Head {
    version: u32,
    plan: ShardPlan,
}

#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    path: PathBuf,
}

impl Journal {
    /// Begins one, with the shards that are there already.
    pub(super) fn create(folder: &Path, plan: &ShardPlan, finished: &[Finished]) -> Result<Self> {
        let path = folder.join(JOURNAL);
        let mut lines = line(&Head { version: VERSION, plan: plan.clone() })?;
        for shard in finished {
            lines.extend_from_slice(&line(shard)?);
        }
        files::write_whole(&path, &lines)?;
        files::sync_folder(folder)?;
        let file = OpenOptions::new().append(true).open(&path);
        let file =
            file.map_err(|error| files::failed("cannot write this journal", &path, error))?;
        Ok(Journal { file, path })
    }

    /// Enters a shard.
    pub(super) fn append(&mut self, shard: &Finished) -> Result<()> {
        let written = self.file.write_all(&line(shard)?).and_then(|()| self.file.sync_data());
        written.map_err(|error| files::failed("cannot write this journal", &self.path, error))
    }

    /// What a journal says; `None` where there is none.
    pub(super) fn read(folder: &Path) -> Result<Option<(ShardPlan, Vec<Finished>)>> {
        let path = folder.join(JOURNAL);
        let failed = |error| files::failed("cannot read this journal", &path, error);
        let file = match File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let mut text = Vec::new();
        file.take(LARGEST).read_to_end(&mut text).map_err(failed)?;
        parse(&text).map(Some).map_err(|error| error.with_key(Key::from_path(&path).display_name()))
    }
}

fn line(value: &impl Serialize) -> Result<Vec<u8>> {
    let text = serde_json::to_string(value).map_err(|error| {
        Error::new(ErrorKind::Internal, "cannot write the journal").with_source(error)
    })?;
    Ok(format!("{:032x} {text}\n", XxHash3_128::oneshot(text.as_bytes())).into_bytes())
}

/// What the lines say up to the first that is damaged.
fn parse(text: &[u8]) -> Result<(ShardPlan, Vec<Finished>)> {
    let mut lines = text.split_inclusive(|&byte| byte == b'\n').map_while(content);
    let head = lines.next().and_then(|line| serde_json::from_slice::<Head>(line).ok());
    let Some(head) = head.filter(|head| head.version == VERSION) else {
        let message =
            "this is no journal of this version; remove it, and what it is of, to begin anew";
        return Err(Error::new(ErrorKind::Corrupt, message));
    };
    Ok((head.plan, lines.map_while(|line| serde_json::from_slice(line).ok()).collect()))
}

/// The object of a line, where its sum is right.
fn content(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b"\n")?;
    let (sum, rest) = line.split_at_checked(32)?;
    let text = rest.strip_prefix(b" ")?;
    let expected = format!("{:032x}", XxHash3_128::oneshot(text));
    (sum == expected.as_bytes()).then_some(text)
}
