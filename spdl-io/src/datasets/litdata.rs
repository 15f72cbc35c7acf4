//! [`LitDataset`]: data sets that Lightning's LitData optimised.

use std::fmt;
#[cfg(feature = "local")]
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
#[cfg(feature = "local")]
use spdl_core::block_on;
use spdl_core::{Dataset, Error, ErrorKind, Result};

#[cfg(feature = "local")]
use super::common::local_fetcher;
use super::common::{ContentHash, with_context};
use super::mds::MdsOptions;
use super::mds::column::Columns;
use super::mds::shard::{self, Compression, FileInfo, Inside, ShardIndex, ShardInfo, SharedShard};
use super::sharded::{Sharded, Shards, impl_dataset};
use crate::fetch::{Fetcher, Key};
use crate::records::StoredRecord;

/// The samples of a data set that LitData wrote with `optimize`: `index.json` and chunks.
///
/// - Opening reads `index.json` only. The samples of a chunk are then read as those of an
///   [`MdsDataset`](super::MdsDataset), by one request each, unless they are compressed.
/// - Compression with Zstandard (feature `zstd`): of whole chunks, of groups of samples, or of each sample.
///   Decompressed chunks and groups are buffered: see [`MdsOptions`].
/// - Each leaf of a sample is a field. Its name is its path, such as `image`, or `meta.id` for a dictionary in
///   a dictionary; the parts of tuples and lists are numbered from 0. A sample with one leaf has the field `0`.
/// - LitData stores no checksums.
/// - Memory use: 4 bytes per sample of the chunks that are in use.
///
/// | leaf | field |
/// |---|---|
/// | `int`; `float`; `bool`; `str`, `text` | [`Integer`](crate::FieldValue::Integer), [`Float`](crate::FieldValue::Float), [`Bool`](crate::FieldValue::Bool), [`Text`](crate::FieldValue::Text) |
/// | `jpeg`, `image`, `bytes`, `file`, `tifffile`, `video`, `audio` and other files | [`Bytes`](crate::FieldValue::Bytes), not decoded |
/// | `jpeg_array` | [`List`](crate::FieldValue::List) of bytes |
/// | `numpy`, `tensor`, with or without header; `pil` | [`Array`](crate::FieldValue::Array); `bfloat16` is `Unsupported` |
/// | `json` | [`Integers`](crate::FieldValue::Integers), [`Floats`](crate::FieldValue::Floats), otherwise [`Json`](crate::FieldValue::Json) |
/// | `pickle`, `graph` | `Unsupported`, because unpickling executes code |
///
/// ```
/// use spdl_core::Dataset;
/// use spdl_io::datasets::LitDataset;
/// # #[cfg(feature = "local")] {
/// # let folder = "tests/data/litdata/plain";
/// let samples = LitDataset::open(folder)?; // "data/optimized"
/// let sample = samples.item(0)?;
/// assert!(sample.names().any(|name| name == "image"));
/// # assert_eq!(samples.shard_lens(), [3, 2]);
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct LitDataset {
    shards: Shards<Arc<SharedShard>>,
}

impl LitDataset {
    /// Opens the local data set with `index.json` in `folder`. The call blocks; asynchronous code calls
    /// [`fetch`](LitDataset::fetch).
    ///
    /// # Errors
    /// The errors of [`fetch`](LitDataset::fetch).
    #[cfg(feature = "local")]
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let options = MdsOptions::default();
        block_on(LitDataset::fetch(&local_fetcher(), Key::from_path(folder), &options))
    }

    /// Opens the data set of a store with `index.json` in `folder`. The empty key is the root of the store.
    ///
    /// # Errors
    /// - The errors of the fetcher.
    /// - `Corrupt` for an invalid index, and for files outside of the folder. `LimitExceeded` for
    ///   an index of more than 256 MiB, and for more than 4,096 leaves.
    /// - `Unsupported` for encrypted data sets, for item loaders other than `PyTreeLoader` (such as
    ///   `TokensLoader`), and for compression other than Zstandard.
    pub async fn fetch(
        fetcher: &Arc<dyn Fetcher>,
        folder: impl Into<Key>,
        options: &MdsOptions,
    ) -> Result<Self> {
        LitDataset::of_index(&ShardIndex::read(fetcher, &folder.into()).await?, options)
    }

    pub(super) fn of_index(index: &ShardIndex, options: &MdsOptions) -> Result<Self> {
        Ok(LitDataset { shards: index.shards(parse(&index.text), options)? })
    }

    /// Whether an index is one of LitData, not of MDS.
    pub(super) fn is_index(index: &ShardIndex) -> bool {
        #[derive(Deserialize)]
        struct Members {
            chunks: Option<IgnoredAny>,
        }
        let members = serde_json::from_slice::<Members>(&index.text);
        members.is_ok_and(|members| members.chunks.is_some())
    }
}

/// The maximum length of all field names together, in bytes.
const MAX_NAMES_BYTES: usize = 1 << 20;

#[derive(Deserialize)]
struct LitIndex {
    chunks: Vec<LitChunk>,
    config: Option<Config>,
}

#[derive(Deserialize)]
struct LitChunk {
    chunk_bytes: u64,
    chunk_size: u32,
    filename: String,
    /// The number of tokens.
    #[serde(default)]
    dim: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    compression: Option<String>,
    #[serde(default)]
    compression_level: Option<String>,
    #[serde(default)]
    data_format: Option<Vec<String>>,
    #[serde(default)]
    data_spec: Option<String>,
    #[serde(default)]
    encryption: Option<IgnoredAny>,
    #[serde(default)]
    item_loader: Option<String>,
}

/// The chunks of an index.
fn parse(text: &[u8]) -> Result<Vec<ShardInfo>> {
    let index: LitIndex = serde_json::from_slice(text).map_err(|error| {
        Error::new(ErrorKind::Corrupt, "invalid LitData index").with_source(error)
    })?;
    let Some(config) = index.config.filter(|_| !index.chunks.is_empty()) else {
        return Ok(Vec::new());
    };
    let has_tokens = index.chunks.iter().any(|chunk| chunk.dim.is_some());
    let (whole, inside) = config.check(has_tokens)?;
    let formats = config.data_format.unwrap_or_default();
    let numbered = || (0..formats.len()).map(|leaf| leaf.to_string()).collect();
    let names = config.data_spec.as_deref().and_then(leaf_names).unwrap_or_else(numbered);
    if names.is_empty() || names.len() != formats.len() {
        let message = format!(
            "the numbers of leaves in `data_spec` ({}) and `data_format` ({}) must be equal and at least 1",
            names.len(),
            formats.len()
        );
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let columns = Arc::new(Columns::of_litdata(&names, &formats)?);
    let chunks = index.chunks.into_iter().enumerate().map(|(number, chunk)| {
        let located =
            |error| with_context(error, &format!("chunk {number} ({:?})", chunk.filename));
        // A name may contain the level of compression, as in `chunk-0-0.zstd:4.bin`.
        let checked = chunk.filename.replace(".zstd:", ".zstd.");
        let mut raw = FileInfo::new(checked, chunk.chunk_bytes).map_err(located)?;
        raw.basename.clone_from(&chunk.filename);
        let zip = whole.map(|compression| (raw.of_unknown_size(), compression));
        let (columns, samples) = (Arc::clone(&columns), chunk.chunk_size);
        Ok(ShardInfo { columns, samples, raw, zip, litdata: Some(inside) })
    });
    chunks.collect()
}

impl Config {
    /// The compression of whole chunks, and inside of chunks.
    fn check(&self, has_tokens: bool) -> Result<(Option<Compression>, Inside)> {
        let unsupported = |message: String| Err(Error::new(ErrorKind::Unsupported, message));
        if self.encryption.is_some() {
            return unsupported("encrypted LitData chunks are not supported".into());
        }
        match self.item_loader.as_deref() {
            None | Some("PyTreeLoader") if !has_tokens => {}
            Some("ParquetLoader") => {
                return unsupported(
                    "the index lists Parquet files; open these files instead".into(),
                );
            }
            loader => {
                let loader = loader.filter(|_| !has_tokens).unwrap_or("TokensLoader");
                return unsupported(format!(
                    "unsupported item loader {loader:?}; expected \"PyTreeLoader\""
                ));
            }
        }
        let Some(name) = &self.compression else { return Ok((None, Inside::Nothing)) };
        if name.split(':').next() != Some("zstd") {
            return unsupported(format!("unsupported compression {name:?}; expected zstd"));
        }
        match self.compression_level.as_deref() {
            None | Some("chunk") => Ok((Some(Compression::Zstd), Inside::Nothing)),
            Some("batch") => Ok((None, Inside::Frames)),
            Some("sample") => Ok((None, Inside::Samples)),
            Some(level) => unsupported(format!(
                "unsupported compression level {level:?}; expected chunk, batch or sample"
            )),
        }
    }
}

/// A node of the tree of containers in a sample, as `torch.utils._pytree` writes it in JSON.
#[derive(Deserialize)]
struct TreeNode {
    #[serde(rename = "type")]
    container: Option<String>,
    /// JSON; for a dictionary, the list of its keys.
    context: Option<String>,
    children_spec: Vec<TreeNode>,
}

/// The paths of the leaves; `None` if the text is not JSON, as that of early versions.
fn leaf_names(spec: &str) -> Option<Vec<String>> {
    let (_, root): (u64, TreeNode) = serde_json::from_str(spec).ok()?;
    if root.container.is_none() {
        return Some(vec!["0".to_owned()]);
    }
    let (mut names, mut bytes_left) = (Vec::new(), MAX_NAMES_BYTES);
    root.collect("", &mut names, &mut bytes_left)?;
    Some(names)
}

impl TreeNode {
    /// Appends the paths of the leaves below `path`; `None` if they take too much memory.
    fn collect(&self, path: &str, names: &mut Vec<String>, bytes_left: &mut usize) -> Option<()> {
        *bytes_left = bytes_left.checked_sub(path.len())?;
        if self.container.is_none() {
            names.push(path.to_owned());
            return Some(());
        }
        let keys: Option<Vec<serde_json::Value>> =
            self.context.as_deref().and_then(|context| serde_json::from_str(context).ok());
        let keys = keys.filter(|keys| keys.len() == self.children_spec.len());
        for (number, child) in self.children_spec.iter().enumerate() {
            let name = match keys.as_ref().map(|keys| &keys[number]) {
                Some(serde_json::Value::String(key)) => key.clone(),
                Some(key) => key.to_string(),
                None => number.to_string(),
            };
            let dot = if path.is_empty() { "" } else { "." };
            child.collect(&format!("{path}{dot}{name}"), names, bytes_left)?;
        }
        Some(())
    }
}

impl Sharded for LitDataset {
    type Shard = Arc<SharedShard>;

    fn sample(&self, shard: &Self::Shard, row: u64) -> Result<StoredRecord> {
        Ok(shard.sample(row))
    }

    fn content(&self) -> ContentHash {
        shard::content("litdata", &self.shards)
    }
}

impl_dataset!(
    LitDataset,
    "samples of each chunk",
    "the names, sizes, sample counts and fields of the chunks"
);

impl fmt::Debug for LitDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (samples, chunks) = (self.shards.total(), self.shards.len());
        write!(f, "LitDataset({samples} samples in {chunks} chunks)")
    }
}
