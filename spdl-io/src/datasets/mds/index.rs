//! The `index.json` file of an MDS data set.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use spdl_core::{Error, ErrorKind, Result};
use twox_hash::{XxHash3_64, XxHash3_128, XxHash64};

use super::column::MdsColumns;
use crate::datasets::common::with_context;

/// A shard, from the index.
#[derive(Debug)]
pub(super) struct ShardInfo {
    pub(super) columns: Arc<MdsColumns>,
    pub(super) samples: u32,
    pub(super) raw: FileInfo,
    /// The compressed file, which is stored instead of `raw`.
    pub(super) zip: Option<(FileInfo, Compression)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Zstd,
    Gzip,
}

/// A file of a shard.
#[derive(Debug, Deserialize)]
pub(super) struct FileInfo {
    pub(super) basename: String,
    pub(super) bytes: u64,
    #[serde(default)]
    hashes: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct MdsIndex {
    version: u64,
    shards: Vec<ShardEntry>,
}

/// A shard of the index. Other formats than MDS lack the optional fields.
#[derive(Deserialize)]
struct ShardEntry {
    version: u64,
    format: String,
    #[serde(default)]
    column_names: Vec<String>,
    #[serde(default)]
    column_encodings: Vec<String>,
    #[serde(default)]
    column_sizes: Vec<Option<u64>>,
    #[serde(default)]
    compression: Option<String>,
    samples: u64,
    raw_data: FileInfo,
    #[serde(default)]
    zip_data: Option<FileInfo>,
}

/// The shards of an index.
pub(super) fn parse(text: &[u8]) -> Result<Vec<ShardInfo>> {
    let index: MdsIndex = serde_json::from_slice(text)
        .map_err(|error| Error::new(ErrorKind::Corrupt, "invalid MDS index").with_source(error))?;
    check_version(index.version)?;
    let mut columns: Option<Arc<MdsColumns>> = None;
    let mut shards = Vec::with_capacity(index.shards.len());
    for shard in index.shards {
        let name = shard.raw_data.basename.clone();
        let shard = shard
            .check(columns.as_ref())
            .map_err(|error| with_context(error, &format!("shard {} ({name:?})", shards.len())))?;
        columns = Some(Arc::clone(&shard.columns));
        shards.push(shard);
    }
    Ok(shards)
}

fn check_version(version: u64) -> Result<()> {
    if version == 2 {
        return Ok(());
    }
    let message = format!("unsupported MDS version {version}; expected version 2");
    Err(Error::new(ErrorKind::Unsupported, message))
}

impl ShardEntry {
    fn check(self, before: Option<&Arc<MdsColumns>>) -> Result<ShardInfo> {
        check_version(self.version)?;
        if self.format != "mds" {
            let message = format!("unsupported format {:?}; expected \"mds\"", self.format);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let columns =
            MdsColumns::new(&self.column_names, &self.column_encodings, &self.column_sizes)?;
        let columns = match before {
            Some(before) if **before == columns => Arc::clone(before),
            _ => Arc::new(columns),
        };
        let samples = u32::try_from(self.samples).map_err(|_| {
            let message = format!("{} samples exceed the maximum of an MDS shard", self.samples);
            Error::new(ErrorKind::Corrupt, message)
        })?;
        self.raw_data.check_name()?;
        let zip = match self.zip_data {
            None => None,
            Some(zip) => {
                zip.check_name()?;
                let name = self.compression.as_deref().unwrap_or_default();
                // The name may end with a level, as in `zstd:11`.
                let compression = match name.split(':').next() {
                    Some("zstd") => Compression::Zstd,
                    Some("gz") => Compression::Gzip,
                    _ => {
                        let message =
                            format!("unsupported compression {name:?}; expected zstd or gz");
                        return Err(Error::new(ErrorKind::Unsupported, message));
                    }
                };
                Some((zip, compression))
            }
        };
        Ok(ShardInfo { columns, samples, raw: self.raw_data, zip })
    }
}

impl FileInfo {
    /// Checks that the path stays below the folder of the index.
    fn check_name(&self) -> Result<()> {
        let name = &self.basename;
        let is_invalid = |character: char| character.is_control() || "\\:?#".contains(character);
        let leads_away = |part: &str| matches!(part, "" | "." | "..");
        if !name.contains(is_invalid) && !name.split('/').any(leads_away) {
            return Ok(());
        }
        let message = format!(
            "invalid file name {name:?}: expected a path below the folder of the index, without \
             backslashes, colons, `?`, `#` and control characters"
        );
        Err(Error::new(ErrorKind::Corrupt, message))
    }

    /// Verifies the hashes that are fast to compute: `xxh64`, `xxh3_64` and `xxh3_128`. Others are ignored.
    pub(super) fn check_hashes(&self, data: &[u8]) -> Result<()> {
        for (name, wanted) in &self.hashes {
            let found = match name.as_str() {
                "xxh64" => format!("{:016x}", XxHash64::oneshot(0, data)),
                "xxh3_64" => format!("{:016x}", XxHash3_64::oneshot(data)),
                "xxh3_128" | "xxh128" => format!("{:032x}", XxHash3_128::oneshot(data)),
                _ => continue,
            };
            if !found.eq_ignore_ascii_case(wanted) {
                let message = format!("{name} mismatch of {:?}", self.basename);
                return Err(Error::new(ErrorKind::Corrupt, message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_outside_of_the_folder_are_refused() {
        let check = |name: &str| {
            FileInfo { basename: name.into(), bytes: 0, hashes: BTreeMap::new() }.check_name()
        };
        for name in ["shard.00000.mds", "0/shard.00000.mds", "a b/..c/d"] {
            check(name).unwrap();
        }
        for name in [
            "",
            "/etc/passwd",
            "../x",
            "a/../../x",
            "a//b",
            "./a",
            "a\\..\\b",
            "C:x",
            "a\0",
            "http://x/y",
        ] {
            assert_eq!(check(name).unwrap_err().kind(), ErrorKind::Corrupt, "{name:?}");
        }
    }
}
