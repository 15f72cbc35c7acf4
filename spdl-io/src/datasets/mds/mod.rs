//! [`MdsDataset`]: MDS shards, the format of MosaicML Streaming.
//!
//! | file | what it holds |
//! |---|---|
//! | `index` | `index.json` of MDS |
//! | `shard` | shards that start with the offsets of their samples, as MDS and LitData have them |
//! | `column` | the columns of a sample and their encodings |
//! | `tagged` | lists and dictionaries of LitData |

pub(super) mod column;
mod index;
pub(super) mod shard;
mod tagged;

use std::fmt;
#[cfg(feature = "local")]
use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "local")]
use spdl_core::block_on;
use spdl_core::{Dataset, Result};

use self::shard::{ShardIndex, SharedShard};
use super::common::ContentHash;
#[cfg(feature = "local")]
use super::common::local_fetcher;
use super::sharded::{Sharded, Shards, impl_dataset};
use crate::fetch::{Fetcher, Key};
use crate::layers::default_part_cache_bytes;
use crate::records::StoredRecord;

/// The samples of an MDS data set of version 2, as MosaicML's `MDSWriter` writes it.
///
/// - Opening reads `index.json` only.
/// - Uncompressed shards: each sample is read by one range request, and the sample offsets of its
///   shard by another one. The offsets are buffered, 4 bytes each, also up to
///   [`MdsOptions::cache_bytes`].
/// - Compressed shards are read and decompressed as a whole. Concurrent reads share the work, and the data
///   are buffered up to [`MdsOptions::cache_bytes`].
///
/// | column | field |
/// |---|---|
/// | `int`, `int8` to `int64`, `uint8` to `uint64`, `str_int` | [`FieldValue::Integer`](crate::FieldValue::Integer) |
/// | `float16`, `float32`, `float64`, `str_float` | [`FieldValue::Float`](crate::FieldValue::Float) |
/// | `str`, `str_decimal` | [`FieldValue::Text`](crate::FieldValue::Text) |
/// | `bytes`, `jpeg`, `png` | [`FieldValue::Bytes`](crate::FieldValue::Bytes), not decoded |
/// | `list[jpeg]`, `list[png]`, `jpeg_array` | [`FieldValue::List`](crate::FieldValue::List) of [`FieldValue::Bytes`](crate::FieldValue::Bytes) |
/// | `ndarray` with or without type and shape; `pil` | [`FieldValue::Array`](crate::FieldValue::Array) |
/// | `json` | [`FieldValue::Json`](crate::FieldValue::Json) |
/// | `pkl` | `Unsupported`, because unpickling executes code |
///
/// For compressed shards, the hashes `xxh64`, `xxh3_64` and `xxh3_128` of the index are verified. If the index
/// contains a path outside its folder, opening fails with `Corrupt`.
///
/// ```
/// use spdl_core::Dataset;
/// use spdl_core::source::sampler::ShardWindow;
/// use spdl_io::datasets::MdsDataset;
/// # #[cfg(feature = "local")] {
/// # let folder = "tests/data/mds/plain";
/// let samples = MdsDataset::open(folder)?; // "data/imagenet/train"
/// let order = ShardWindow::new(samples.shard_lens(), 10_000, 7)?;
/// println!("{} samples, {} shards are open concurrently", samples.len(), order.open_shards());
/// # assert_eq!(samples.len(), 5);
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct MdsDataset {
    shards: Shards<Arc<SharedShard>>,
}

/// Options of [`MdsDataset`] and [`LitDataset`](super::LitDataset).
#[derive(Clone, Debug)]
pub struct MdsOptions {
    cache_bytes: u64,
    max_shard_bytes: u64,
}

impl Default for MdsOptions {
    fn default() -> Self {
        MdsOptions { cache_bytes: default_part_cache_bytes(), max_shard_bytes: 1 << 30 }
    }
}

impl MdsOptions {
    /// Sets how many bytes of decompressed shards and offsets are buffered. Default: an eighth of
    /// the [usable memory](spdl_core::memory::usable_memory), at most 1 GiB.
    ///
    /// The shard that was read last is buffered even if it exceeds the limit. For a shuffled epoch,
    /// all open shards should fit
    /// ([`ShardWindow::open_shards`](spdl_core::source::sampler::ShardWindow::open_shards));
    /// otherwise shards are read repeatedly.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Sets the maximum size of a compressed shard, before and after decompression, in bytes.
    /// Uncompressed shards have no limit. Default: 1 GiB.
    #[must_use]
    pub fn max_shard_bytes(mut self, bytes: u64) -> Self {
        self.max_shard_bytes = bytes;
        self
    }
}

impl MdsDataset {
    /// Opens the local data set with `index.json` in `folder`. The call blocks; asynchronous code calls
    /// [`fetch`](MdsDataset::fetch).
    ///
    /// # Errors
    /// The errors of [`fetch`](MdsDataset::fetch).
    #[cfg(feature = "local")]
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        MdsDataset::open_with(folder, &MdsOptions::default())
    }

    /// [`open`](MdsDataset::open) with options.
    ///
    /// # Errors
    /// The errors of [`fetch`](MdsDataset::fetch).
    #[cfg(feature = "local")]
    pub fn open_with(folder: impl AsRef<Path>, options: &MdsOptions) -> Result<Self> {
        block_on(MdsDataset::fetch(&local_fetcher(), Key::from_path(folder), options))
    }

    /// Opens the data set of a store with `index.json` in `folder`. The empty key is the root of the store.
    ///
    /// # Errors
    /// - The errors of the fetcher.
    /// - `Corrupt` for an invalid index, and for files outside of the folder. `LimitExceeded` for
    ///   an index of more than 256 MiB, and for more than 4,096 columns.
    /// - `Unsupported` for other versions and formats, and for compression other than `zstd` (feature
    ///   `zstd`) and `gz` (feature `gzip`).
    pub async fn fetch(
        fetcher: &Arc<dyn Fetcher>,
        folder: impl Into<Key>,
        options: &MdsOptions,
    ) -> Result<Self> {
        MdsDataset::of_index(&ShardIndex::read(fetcher, &folder.into()).await?, options)
    }

    pub(super) fn of_index(index: &ShardIndex, options: &MdsOptions) -> Result<Self> {
        Ok(MdsDataset { shards: index.shards(index::parse(&index.text), options)? })
    }
}

impl Sharded for MdsDataset {
    type Shard = Arc<SharedShard>;

    fn sample(&self, shard: &Self::Shard, row: u64) -> Result<StoredRecord> {
        Ok(shard.sample(row))
    }

    fn content(&self) -> ContentHash {
        shard::content("mds", &self.shards)
    }
}

impl_dataset!(
    MdsDataset,
    "samples of each shard",
    "the names, sizes, sample counts and columns of the shards"
);

impl fmt::Debug for MdsDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (samples, shards) = (self.shards.total(), self.shards.len());
        write!(f, "MdsDataset({samples} samples in {shards} shards)")
    }
}
