//! The manifest of a written data set: what there is, and how it was made.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};
use spdl_core::{Error, ErrorKind, Result};

use super::ShardPlan;
use crate::fetch::Key;
use crate::files::os_error;

/// The name of the manifest's file.
pub const MANIFEST: &str = "manifest.json";
const FORMAT: &str = "spdl-shards";
const VERSION: u32 = 1;
/// No manifest is larger, in bytes.
const LARGEST: u64 = 256 << 20;
/// So many samples that were left out are named.
pub(super) const MOST_SKIPPED: usize = 100_000;

/// What a folder of shards holds, as `manifest.json` says it.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// `spdl-shards`.
    pub format: String,
    /// The version of the format: 1.
    pub version: u32,
    /// What decided the bytes.
    pub plan: ShardPlan,
    /// How many samples there are.
    pub samples: u64,
    /// The bytes of all shards, without what lies beside them.
    pub bytes: u64,
    /// How many samples of the source were left out.
    pub skipped: u64,
    /// What samples consist of, by the names of fields.
    pub fields: BTreeMap<String, FieldSummary>,
    /// The shards, in their order.
    pub shards: Vec<ShardRecord>,
    /// The first 100,000 samples that were left out.
    pub skipped_samples: Vec<Skipped>,
}

/// What there is of one field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldSummary {
    /// How many samples have it.
    pub samples: u64,
    /// Its bytes in all of them.
    pub bytes: u64,
}

/// One shard.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRecord {
    /// The name of its file, in the folder of the manifest.
    pub name: String,
    /// The size of the file.
    pub bytes: u64,
    /// How many samples it holds.
    pub samples: u64,
    /// The XXH3 sum of 128 bits of the file, as 32 hexadecimal digits.
    pub xxh3_128: String,
    /// The same of the file with the checksums of its members.
    pub sums_xxh3_128: String,
    /// The position in the source from which on it holds the samples.
    pub first: u64,
    /// The position behind the last one.
    pub end: u64,
    /// What its samples consist of.
    pub fields: BTreeMap<String, FieldSummary>,
}

/// A sample of the source that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Its position in the source.
    pub position: u64,
    /// Its name there.
    pub key: String,
    /// Why.
    pub reason: String,
}

impl Manifest {
    pub(super) fn new(
        plan: ShardPlan,
        shards: Vec<ShardRecord>,
        skipped: u64,
        skipped_samples: Vec<Skipped>,
    ) -> Self {
        let mut fields = BTreeMap::new();
        for (name, of_shard) in shards.iter().flat_map(|shard| &shard.fields) {
            let field: &mut FieldSummary = fields.entry(name.clone()).or_default();
            field.samples += of_shard.samples;
            field.bytes += of_shard.bytes;
        }
        Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            samples: shards.iter().map(|shard| shard.samples).sum(),
            bytes: shards.iter().map(|shard| shard.bytes).sum(),
            plan,
            skipped,
            fields,
            shards,
            skipped_samples,
        }
    }

    /// The most bytes that a manifest may have: 256 MiB.
    pub const MAX_BYTES: u64 = LARGEST;

    /// Reads the manifest of a folder.
    ///
    /// # Errors
    /// What the operating system answers: `NotFound` where there is none; `Corrupt` where it is no
    /// manifest, or names a file outside the folder; `Unsupported` where it is of another version;
    /// `LimitExceeded` where it is larger than 256 MiB.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self> {
        let path = folder.as_ref().join(MANIFEST);
        let key = Key::from_path(&path);
        let failed = |error| os_error("cannot read this manifest", &key, error);
        let mut text = Vec::new();
        let file = File::open(&path).map_err(failed)?;
        file.take(LARGEST + 1).read_to_end(&mut text).map_err(failed)?;
        if text.len() as u64 > LARGEST {
            let message = format!("a manifest of more than {LARGEST} bytes");
            return Err(Error::new(ErrorKind::LimitExceeded, message).with_key(key.display_name()));
        }
        Manifest::parse(&text).map_err(|error| error.with_key(key.display_name()))
    }

    /// Reads the text of a manifest.
    ///
    /// # Errors
    /// `Corrupt` and `Unsupported` as [`read`](Manifest::read).
    pub fn parse(text: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            version: u32,
        }
        let corrupt = |error: serde_json::Error| {
            Error::new(ErrorKind::Corrupt, "this is no manifest of shards").with_source(error)
        };
        let head: Head = serde_json::from_slice(text).map_err(corrupt)?;
        if head.format != FORMAT {
            let message = format!("expected the format {FORMAT:?}, found {:?}", head.format);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        if head.version != VERSION {
            let version = head.version;
            let message = format!("a manifest of version {version}; this program knows {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(corrupt)?;
        manifest.plan.validate()?;
        for (number, shard) in manifest.shards.iter().enumerate() {
            // So no name leads out of the folder.
            let expected = manifest.plan.shard_name(number);
            if shard.name != expected {
                let message = format!("shard {number} is named {:?}, not {expected:?}", shard.name);
                return Err(Error::new(ErrorKind::Corrupt, message));
            }
        }
        Ok(manifest)
    }

    pub(super) fn to_text(&self) -> Result<Vec<u8>> {
        let text = serde_json::to_vec_pretty(self);
        let mut text = text.map_err(|error| {
            Error::new(ErrorKind::Internal, "cannot write the manifest").with_source(error)
        })?;
        text.push(b'\n');
        Ok(text)
    }

    /// The names of the classes, by their numbers; empty where there are none.
    pub fn classes(&self) -> &[String] {
        &self.plan.classes
    }
}

impl ShardRecord {
    /// The sum of the file as a number; `None` where the manifest holds none.
    pub fn sum(&self) -> Option<u128> {
        sum_of(&self.xxh3_128)
    }

    /// How many members it has: the fields of all its samples.
    pub fn members(&self) -> u64 {
        self.fields.values().map(|field| field.samples).sum()
    }

    /// The sum of the file with the members' checksums.
    pub fn sum_of_sums(&self) -> Option<u128> {
        sum_of(&self.sums_xxh3_128)
    }
}

/// 32 hexadecimal digits as a number.
pub(super) fn sum_of(text: &str) -> Option<u128> {
    let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    digits.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(shards: usize) -> Manifest {
        let plan = ShardPlan::new("a").recipe("seed", 7).classes(["cat"]);
        let shard = |number| ShardRecord {
            name: plan.shard_name(number),
            bytes: 10,
            samples: 2,
            xxh3_128: "0".repeat(32),
            sums_xxh3_128: "f".repeat(32),
            first: 0,
            end: 2,
            fields: BTreeMap::from([("jpg".to_owned(), FieldSummary { samples: 2, bytes: 5 })]),
        };
        Manifest::new(plan.clone(), (0..shards).map(shard).collect(), 0, Vec::new())
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written_and_adds_up() {
        let written = manifest(3);
        assert_eq!((written.samples, written.bytes, written.fields["jpg"].bytes), (6, 30, 15));
        assert_eq!(Manifest::parse(&written.to_text().unwrap()).unwrap(), written);
        assert_eq!(written.shards[0].sum_of_sums(), Some(u128::MAX));
    }

    #[test]
    fn what_is_no_manifest_of_this_version_is_refused() {
        let text = String::from_utf8(manifest(2).to_text().unwrap()).unwrap();
        for (from, to, kind) in [
            ("spdl-shards", "other", ErrorKind::Corrupt),
            ("\"version\": 1", "\"version\": 2", ErrorKind::Unsupported),
            ("\"a-000001.tar\"", "\"../a-000001.tar\"", ErrorKind::Corrupt),
            ("\"samples\": 4", "\"samples\": -4", ErrorKind::Corrupt),
            ("\"name\": \"a\"", "\"name\": \"../a\"", ErrorKind::InvalidArgument),
            ("}", "", ErrorKind::Corrupt),
        ] {
            let changed = text.replacen(from, to, 1);
            assert_ne!(changed, text, "{from}");
            assert_eq!(Manifest::parse(changed.as_bytes()).unwrap_err().kind(), kind, "{from}");
        }
    }
}
