//! The `index.json` file of an MDS data set.

use std::sync::Arc;

use serde::Deserialize;
use spdl_core::{Error, ErrorKind, Result};

use super::column::Columns;
use super::shard::{Compression, FileInfo, ShardInfo};
use crate::datasets::common::with_context;

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
    let mut columns: Option<Arc<Columns>> = None;
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
    fn check(self, before: Option<&Arc<Columns>>) -> Result<ShardInfo> {
        check_version(self.version)?;
        if self.format != "mds" {
            let message = format!("unsupported format {:?}; expected \"mds\"", self.format);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let columns =
            Columns::of_mds(&self.column_names, &self.column_encodings, &self.column_sizes)?;
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
        Ok(ShardInfo { columns, samples, raw: self.raw_data, zip, litdata: None })
    }
}
