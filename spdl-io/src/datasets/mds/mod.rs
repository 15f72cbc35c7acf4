//! [`MdsDataset`]: MDS shards, the format of MosaicML Streaming.
//!
//! | file | what it holds |
//! |---|---|
//! | `index` | `index.json` |
//! | `column` | column encodings |

mod column;
mod index;

use std::fmt;
use std::io::Read;
#[cfg(feature = "local")]
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
#[cfg(feature = "local")]
use spdl_core::block_on;
use spdl_core::{Dataset, Error, ErrorKind, Result};

use self::index::{Compression, FileInfo, ShardInfo};
#[cfg(feature = "local")]
use super::common::local_fetcher;
use super::common::{ContentHash, check_size, row_key, u32_at};
use super::part_cache::{CachedBytes, PartCache, default_part_cache_bytes};
use super::sharded::{Shard, Sharded, Shards, impl_dataset};
use crate::archive::{Decompress, DecompressLimits};
use crate::fetch::{Fetcher, Key};
use crate::records::{FieldRequest, FieldValue, PackedRows, StoredRecord};

/// The maximum size of `index.json`, in bytes: about 500,000 shards.
const MAX_INDEX_BYTES: u64 = 1 << 28;

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
/// | `int`, `int8` to `int64`, `uint8` to `uint64`, `str_int` | [`FieldValue::Integer`] |
/// | `float16`, `float32`, `float64`, `str_float` | [`FieldValue::Float`] |
/// | `str`, `str_decimal` | [`FieldValue::Text`] |
/// | `bytes`, `jpeg`, `png` | [`FieldValue::Bytes`], not decoded |
/// | `list[jpeg]`, `list[png]`, `jpeg_array` | [`FieldValue::List`] of [`FieldValue::Bytes`] |
/// | `ndarray` with or without type and shape; `pil` | [`FieldValue::Array`] |
/// | `json` | [`FieldValue::Json`] |
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

/// Options of [`MdsDataset`].
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
        let mut folder = folder.into().as_bytes().to_vec();
        if folder.last().is_some_and(|last| *last != b'/') {
            folder.push(b'/');
        }
        let index = Key::from_bytes(&[&folder, &b"index.json"[..]].concat());
        let text = fetcher.read_whole(&index, &MAX_INDEX_BYTES).await?;
        let located = |error: Error| error.with_key(index.display_name());
        let infos = index::parse(&text).map_err(located)?;
        for (_, compression) in infos.iter().filter_map(|info| info.zip.as_ref()) {
            check_feature(*compression).map_err(located)?;
        }
        let parts = Arc::new(PartCache::new(options.cache_bytes));
        let shards = infos.into_iter().enumerate().map(|(number, info)| {
            let key =
                |file: &FileInfo| Key::from_bytes(&[&folder, file.basename.as_bytes()].concat());
            let zip = info.zip.as_ref().map(|(zip, _)| key(zip));
            let raw = key(&info.raw);
            let max_bytes = options.max_shard_bytes;
            let shard = MdsShard { number, raw, zip, info, max_bytes, parts: Arc::clone(&parts) };
            Arc::new(SharedShard(Arc::new(shard)))
        });
        Ok(MdsDataset { shards: Shards::new(shards.collect())? })
    }
}

fn check_feature(compression: Compression) -> Result<()> {
    let (is_enabled, feature) = match compression {
        Compression::Zstd => (cfg!(feature = "zstd"), "zstd"),
        Compression::Gzip => (cfg!(feature = "gzip"), "gzip"),
    };
    if is_enabled {
        return Ok(());
    }
    let message = format!("cannot decompress shards: this build lacks the feature `{feature}`");
    Err(Error::new(ErrorKind::Unsupported, message))
}

struct MdsShard {
    /// The position in the index.
    number: usize,
    raw: Key,
    zip: Option<Key>,
    info: ShardInfo,
    max_bytes: u64,
    parts: Arc<PartCache<usize, ShardPart>>,
}

/// The buffered data of a shard: its sample offsets and, if it is compressed, its content.
struct ShardPart {
    /// The start of each sample, and the end of the last one.
    offsets: Vec<u32>,
    /// The whole shard, if it is compressed.
    data: Option<Bytes>,
}

impl CachedBytes for ShardPart {
    fn cached_bytes(&self) -> u64 {
        let data = self.data.as_ref().map_or(0, |data| data.len());
        (data + 4 * self.offsets.len()) as u64
    }
}

impl MdsShard {
    /// The size of the sample count and the offsets at the start of the shard, in bytes.
    fn head_bytes(&self) -> u64 {
        4 * (u64::from(self.info.samples) + 2)
    }

    async fn part(self: &Arc<Self>, fetcher: &Arc<dyn Fetcher>) -> Result<Arc<ShardPart>> {
        let read = || {
            let (shard, fetcher) = (Arc::clone(self), Arc::clone(fetcher));
            async move {
                match &shard.zip {
                    None => shard.read_offsets(&fetcher).await,
                    Some(zip) => shard.read_whole(&fetcher, zip).await,
                }
            }
        };
        self.parts.get(self.number, read).await
    }

    async fn read_offsets(&self, fetcher: &Arc<dyn Fetcher>) -> Result<ShardPart> {
        if self.head_bytes() > self.info.raw.bytes {
            return Err(self.too_small());
        }
        let head = fetcher.read(&self.raw, Some(0..self.head_bytes())).await?;
        Ok(ShardPart { offsets: self.check_offsets(&head)?, data: None })
    }

    async fn read_whole(
        self: &Arc<Self>,
        fetcher: &Arc<dyn Fetcher>,
        zip: &Key,
    ) -> Result<ShardPart> {
        let Some((file, _)) = &self.info.zip else { return Err(self.too_small()) };
        let largest = self.info.raw.bytes.max(file.bytes);
        if largest > self.max_bytes {
            let message =
                format!("shard of {largest} bytes exceeds the limit of {} bytes", self.max_bytes);
            let error = Error::new(ErrorKind::LimitExceeded, message);
            return Err(error.with_key(zip.display_name()));
        }
        let compressed = fetcher.read_whole(zip, &file.bytes).await?;
        let shard = Arc::clone(self);
        let work = move || shard.decompress(&compressed);
        self.parts.threads().run(work).await.map_err(|error| error.with_key(zip.display_name()))
    }

    /// Decompresses the shard. Offsets of errors refer to the compressed data.
    fn decompress(&self, compressed: &[u8]) -> Result<ShardPart> {
        let Some((file, _)) = &self.info.zip else { return Err(self.too_small()) };
        if (compressed.len() as u64) < file.bytes {
            let message = format!(
                "compressed shard has {} bytes, but the index lists {}",
                compressed.len(),
                file.bytes
            );
            return Err(Error::new(ErrorKind::Truncated, message));
        }
        file.check_hashes(compressed)?;
        let limits = DecompressLimits::default().max_bytes(self.info.raw.bytes);
        let mut data = Vec::new();
        Decompress::detect(compressed, limits)?.read_to_end(&mut data).map_err(
            |error| match error.downcast::<Error>() {
                Ok(typed) => typed,
                Err(other) => other.into(),
            },
        )?;
        if data.len() as u64 != self.info.raw.bytes {
            let message = format!(
                "decompressed shard has {} bytes, but the index lists {}",
                data.len(),
                self.info.raw.bytes
            );
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        self.info.raw.check_hashes(&data)?;
        if self.head_bytes() > data.len() as u64 {
            return Err(self.too_small());
        }
        data.shrink_to_fit();
        Ok(ShardPart { offsets: self.check_offsets(&data)?, data: Some(data.into()) })
    }

    /// Parses and validates the offsets at the start of the shard.
    fn check_offsets(&self, shard: &[u8]) -> Result<Vec<u32>> {
        let corrupt = |message: String, at: usize| {
            let error = Error::new(ErrorKind::Corrupt, message).with_offset(at as u64);
            error.with_key(self.raw.display_name())
        };
        let samples = self.info.samples;
        if u32_at(shard, 0) != Some(samples) {
            let found = u32_at(shard, 0).unwrap_or_default();
            let message = format!("shard has {found} samples, but the index lists {samples}");
            return Err(corrupt(message, 0));
        }
        let offsets: Vec<u32> =
            (1..samples as usize + 2).map_while(|word| u32_at(shard, 4 * word)).collect();
        let mut before = self.head_bytes();
        for (sample, &offset) in offsets.iter().enumerate() {
            if u64::from(offset) < before || u64::from(offset) > self.info.raw.bytes {
                let message = format!(
                    "offset {offset} of sample {sample} is out of range: expected {before} to {}",
                    self.info.raw.bytes
                );
                return Err(corrupt(message, 4 * (sample + 1)));
            }
            before = offset.into();
        }
        Ok(offsets)
    }

    fn too_small(&self) -> Error {
        let message = format!(
            "shard of {} bytes is too small for {} samples",
            self.info.raw.bytes, self.info.samples
        );
        Error::new(ErrorKind::Corrupt, message).with_key(self.raw.display_name())
    }
}

/// A shared shard, for [`PackedRows`].
#[derive(Debug)]
pub(super) struct SharedShard(Arc<MdsShard>);

#[async_trait]
impl PackedRows for SharedShard {
    fn names(&self) -> &[Arc<str>] {
        &self.0.info.columns.names
    }

    fn object(&self) -> Option<&Key> {
        Some(self.0.zip.as_ref().unwrap_or(&self.0.raw))
    }

    async fn row_bytes(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        _: &FieldRequest,
    ) -> Result<Option<u64>> {
        let part = self.0.part(fetcher).await?;
        let pair = usize::try_from(row).ok().and_then(|row| part.offsets.get(row..)?.first_chunk());
        Ok(pair.map(|&[start, end]| (end - start).into()))
    }

    async fn read(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        request: &FieldRequest,
    ) -> Result<Vec<(Arc<str>, FieldValue)>> {
        let SharedShard(shard) = self;
        let part = shard.part(fetcher).await?;
        let pair = usize::try_from(row).ok().and_then(|row| part.offsets.get(row..)?.first_chunk());
        let Some([start, end]) = pair.copied() else {
            let message =
                format!("row {row} is out of range: the shard has {} samples", shard.info.samples);
            let error = Error::new(ErrorKind::InvalidArgument, message);
            return Err(error.with_key(shard.raw.display_name()));
        };
        // Errors name the sample, and the offset in the shard.
        let located = |error: Error| {
            let offset = error.offset().unwrap_or_default();
            let key = row_key(&shard.raw, row).display_name();
            error.with_key(key).with_offset(u64::from(start) + offset)
        };
        check_size((end - start).into(), request.max_bytes()).map_err(located)?;
        let sample = match &part.data {
            // Copy, so that a sample does not keep the whole shard in memory.
            Some(data) => Bytes::copy_from_slice(&data[start as usize..end as usize]),
            None => fetcher.read(&shard.raw, Some(start.into()..end.into())).await?,
        };
        shard.info.columns.decode(&sample, request).map_err(located)
    }
}

impl Shard for Arc<SharedShard> {
    fn rows(&self) -> u64 {
        self.0.info.samples.into()
    }
}

impl Sharded for MdsDataset {
    type Shard = Arc<SharedShard>;

    fn sample(&self, shard: &Self::Shard, row: u64) -> Result<StoredRecord> {
        let shard = Arc::clone(shard);
        Ok(StoredRecord::new(row_key(&shard.0.raw, row)).with_row(shard, row))
    }

    fn content(&self) -> ContentHash {
        let mut hash = ContentHash::new("mds");
        for SharedShard(shard) in self.shards.iter().map(AsRef::as_ref) {
            hash.bytes(shard.info.raw.basename.as_bytes());
            hash.number(shard.info.raw.bytes);
            hash.number(shard.info.samples.into());
            let names = &shard.info.columns.names;
            hash.number(names.len() as u64);
            names.iter().for_each(|name| hash.bytes(name.as_bytes()));
        }
        hash
    }
}

impl_dataset!(
    MdsDataset,
    "samples of each shard",
    "the names, sizes, sample counts and columns of the shards"
);

impl fmt::Debug for MdsShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MdsShard({} with {} samples)", self.raw, self.info.samples)
    }
}

impl fmt::Debug for MdsDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (samples, shards) = (self.shards.total(), self.shards.len());
        write!(f, "MdsDataset({samples} samples in {shards} shards)")
    }
}
