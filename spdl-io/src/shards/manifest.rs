//! [`Manifest`]: the content of a written data set, and the settings that produced it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use spdl_core::{Error, ErrorKind, Result};

use super::ShardPlan;
use crate::fetch::Key;
use crate::files::{os_error, read_regular_file};

/// File name of the manifest.
pub const MANIFEST: &str = "manifest.json";
const FORMAT: &str = "spdl-shards";
const VERSION: u32 = 1;
/// Size limit of a manifest in bytes.
const MAX_MANIFEST_BYTES: u64 = 256 << 20;
/// Maximum number of skipped samples that are listed.
pub(super) const MAX_LISTED_SKIPS: usize = 100_000;

/// The content of a folder of shards: the file `manifest.json`.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format: `spdl-shards`.
    pub format: String,
    /// The version of the format: 1.
    pub version: u32,
    /// Settings that determine the bytes of the shards.
    pub plan: ShardPlan,
    /// Number of samples.
    pub samples: u64,
    /// Size of all shards in bytes, without index and checksum files.
    pub bytes: u64,
    /// Number of skipped samples of the source.
    pub skipped: u64,
    /// Totals of each field, by name.
    pub fields: BTreeMap<String, FieldSummary>,
    /// Shards in order.
    pub shards: Vec<ShardRecord>,
    /// The first 100,000 skipped samples.
    pub skipped_samples: Vec<Skipped>,
}

/// Totals of one field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldSummary {
    /// Number of samples with this field.
    pub samples: u64,
    /// Total size in bytes.
    pub bytes: u64,
}

/// Description of one shard.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardRecord {
    /// File name, in the folder of the manifest.
    pub name: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Number of samples.
    pub samples: u64,
    /// XXH3-128 hash of the file, as 32 hexadecimal digits.
    pub xxh3_128: String,
    /// XXH3-128 hash of its checksum file (`.sums`), as 32 hexadecimal digits.
    pub sums_xxh3_128: String,
    /// First source position of the shard. The positions from `first` to `end` include skipped
    /// samples.
    pub first: u64,
    /// Source position at which the next shard begins.
    pub end: u64,
    /// Totals of each field in this shard, by name.
    pub fields: BTreeMap<String, FieldSummary>,
}

/// A skipped sample of the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Position in the source.
    pub position: u64,
    /// Name in the source.
    pub key: String,
    /// Why the sample was skipped.
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

    /// Maximum size of a manifest: 256 MiB.
    pub const MAX_BYTES: u64 = MAX_MANIFEST_BYTES;

    /// Reads the manifest of a folder.
    ///
    /// # Errors
    /// Errors of the operating system, such as `NotFound`. `Corrupt` if the file is not a manifest,
    /// or if a shard does not have the name that the plan gives it. `InvalidArgument` if the plan
    /// is invalid. `Unsupported` if the manifest has another version. `LimitExceeded` if it is
    /// larger than 256 MiB.
    pub fn read(folder: impl AsRef<Path>) -> Result<Self> {
        let path = folder.as_ref().join(MANIFEST);
        let key = Key::from_path(&path);
        let failed = |error| os_error("cannot read the manifest", &key, error);
        let text = read_regular_file(&path, MAX_MANIFEST_BYTES + 1).map_err(failed)?;
        if text.len() as u64 > MAX_MANIFEST_BYTES {
            let message = format!("the manifest exceeds the limit of {MAX_MANIFEST_BYTES} bytes");
            return Err(Error::new(ErrorKind::LimitExceeded, message).with_key(key.display_name()));
        }
        Manifest::parse(&text).map_err(|error| error.with_key(key.display_name()))
    }

    /// Parses the text of a manifest.
    ///
    /// # Errors
    /// `Corrupt`, `InvalidArgument` and `Unsupported` as [`read`](Manifest::read).
    pub fn parse(text: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct ManifestHeader {
            format: String,
            version: u32,
        }
        let corrupt = |error: serde_json::Error| {
            Error::new(ErrorKind::Corrupt, "not a manifest of shards").with_source(error)
        };
        let head: ManifestHeader = serde_json::from_slice(text).map_err(corrupt)?;
        if head.format != FORMAT {
            let message = format!("expected format {FORMAT:?}, found {:?}", head.format);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        if head.version != VERSION {
            let version = head.version;
            let message =
                format!("manifest version {version} is not supported; expected {VERSION}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(corrupt)?;
        manifest.plan.validate()?;
        for (number, shard) in manifest.shards.iter().enumerate() {
            // Also prevents names outside the folder.
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

    /// Returns the class names in the order of their numbers. Empty if there are none.
    pub fn classes(&self) -> &[String] {
        &self.plan.classes
    }
}

impl ShardRecord {
    /// Returns the hash of the file as a number. `None` if the text is not 32 hexadecimal digits.
    pub fn sum(&self) -> Option<u128> {
        sum_of(&self.xxh3_128)
    }

    /// Returns the number of members: the fields of all samples.
    pub fn members(&self) -> u64 {
        self.fields.values().map(|field| field.samples).sum()
    }

    /// Returns the hash of the checksum file as a number. `None` if the text is not 32 hexadecimal
    /// digits.
    pub fn sum_of_sums(&self) -> Option<u128> {
        sum_of(&self.sums_xxh3_128)
    }
}

/// Parses 32 hexadecimal digits.
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
    fn manifests_are_preserved_and_totals_add_up() {
        let written = manifest(3);
        assert_eq!((written.samples, written.bytes, written.fields["jpg"].bytes), (6, 30, 15));
        assert_eq!(Manifest::parse(&written.to_text().unwrap()).unwrap(), written);
        assert_eq!(written.shards[0].sum_of_sums(), Some(u128::MAX));
    }

    #[test]
    fn other_formats_and_versions_are_rejected() {
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
