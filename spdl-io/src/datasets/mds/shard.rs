//! Shards that start with the number and the offsets of their samples, as MDS and LitData have them.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::Deserialize;
use spdl_core::{Error, ErrorKind, Result};
use twox_hash::{XxHash3_64, XxHash3_128, XxHash64};

use super::MdsOptions;
use super::column::Columns;
use crate::archive::{Decompress, DecompressLimits};
use crate::datasets::common::{ContentHash, check_size, row_key, u32_at};
use crate::datasets::sharded::{Shard, Shards};
use crate::fetch::{Fetcher, Key};
use crate::layers::{CachedBytes, PartCache};
use crate::records::{FieldRequest, FieldValue, PackedRows, StoredRecord};

/// The maximum size of `index.json`, in bytes: about 500,000 shards.
const MAX_INDEX_BYTES: u64 = 1 << 28;

/// The file `index.json` of a data set.
pub(in crate::datasets) struct ShardIndex {
    folder: Vec<u8>,
    key: Key,
    pub(in crate::datasets) text: Bytes,
}

impl ShardIndex {
    /// # Errors
    /// The errors of the fetcher.
    pub(in crate::datasets) async fn read(
        fetcher: &Arc<dyn Fetcher>,
        folder: &Key,
    ) -> Result<Self> {
        let mut folder = folder.as_bytes().to_vec();
        if folder.last().is_some_and(|last| *last != b'/') {
            folder.push(b'/');
        }
        let key = Key::from_bytes(&[&folder, &b"index.json"[..]].concat());
        let text = fetcher.read_whole(&key, &MAX_INDEX_BYTES).await?;
        Ok(ShardIndex { folder, key, text })
    }

    /// The shards of the parsed index.
    ///
    /// # Errors
    /// The error of `infos`; `Unsupported` if the build cannot decompress a shard.
    pub(in crate::datasets) fn shards(
        &self,
        infos: Result<Vec<ShardInfo>>,
        options: &MdsOptions,
    ) -> Result<Shards<Arc<SharedShard>>> {
        let located = |error: Error| error.with_key(self.key.display_name());
        let infos = infos.map_err(located)?;
        for info in &infos {
            let inside = info.litdata.filter(|inside| *inside != Inside::Nothing);
            let whole = info.zip.as_ref().map(|(_, compression)| *compression);
            whole
                .or(inside.map(|_| Compression::Zstd))
                .map_or(Ok(()), check_feature)
                .map_err(located)?;
        }
        let parts = Arc::new(PartCache::new(options.cache_bytes));
        let shards = infos.into_iter().enumerate().map(|(number, info)| {
            let key = |file: &FileInfo| {
                Key::from_bytes(&[&self.folder, file.basename.as_bytes()].concat())
            };
            let zip = info.zip.as_ref().map(|(zip, _)| key(zip));
            let raw = key(&info.raw);
            let (max_bytes, parts) = (options.max_shard_bytes, Arc::clone(&parts));
            let number = number as u32;
            let shard = OffsetShard { number, raw, zip, info, max_bytes, parts };
            Arc::new(SharedShard(Arc::new(shard)))
        });
        Shards::new(shards.collect())
    }
}

/// A hash of names, sizes, sample counts and columns of shards.
pub(in crate::datasets) fn content(format: &str, shards: &Shards<Arc<SharedShard>>) -> ContentHash {
    let mut hash = ContentHash::new(format);
    for SharedShard(shard) in shards.iter().map(AsRef::as_ref) {
        hash.bytes(shard.info.raw.basename.as_bytes());
        hash.number(shard.info.raw.bytes);
        hash.number(shard.info.samples.into());
        let names = &shard.info.columns.names;
        hash.number(names.len() as u64);
        names.iter().for_each(|name| hash.bytes(name.as_bytes()));
    }
    hash
}

/// A shard, from the index.
#[derive(Debug)]
pub(in crate::datasets) struct ShardInfo {
    pub(in crate::datasets) columns: Arc<Columns>,
    pub(in crate::datasets) samples: u32,
    pub(in crate::datasets) raw: FileInfo,
    /// The compressed file, which is stored instead of `raw`.
    pub(in crate::datasets) zip: Option<(FileInfo, Compression)>,
    /// What LitData compresses inside the file; `None` for MDS.
    pub(in crate::datasets) litdata: Option<Inside>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::datasets) enum Compression {
    Zstd,
    Gzip,
}

/// What is compressed with Zstandard inside the file of a LitData chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::datasets) enum Inside {
    Nothing,
    /// Each sample.
    Samples,
    /// Groups of samples.
    Frames,
}

/// A file of a shard.
#[derive(Debug, Deserialize)]
pub(in crate::datasets) struct FileInfo {
    pub(in crate::datasets) basename: String,
    /// The size in bytes; 0, which means unknown, for a compressed chunk of LitData.
    pub(in crate::datasets) bytes: u64,
    #[serde(default)]
    hashes: BTreeMap<String, String>,
}

impl FileInfo {
    /// # Errors
    /// The errors of [`check_name`](FileInfo::check_name).
    pub(in crate::datasets) fn new(basename: String, bytes: u64) -> Result<Self> {
        let file = FileInfo { basename, bytes, hashes: BTreeMap::new() };
        file.check_name().map(|()| file)
    }

    /// The file, if its size is unknown.
    pub(in crate::datasets) fn of_unknown_size(&self) -> Self {
        FileInfo { basename: self.basename.clone(), bytes: 0, hashes: BTreeMap::new() }
    }

    /// Checks that the path stays below the folder of the index.
    ///
    /// # Errors
    /// `Corrupt` for other paths.
    pub(super) fn check_name(&self) -> Result<()> {
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
    fn check_hashes(&self, data: &[u8]) -> Result<()> {
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

struct OffsetShard {
    /// The position in the index.
    number: u32,
    raw: Key,
    zip: Option<Key>,
    info: ShardInfo,
    max_bytes: u64,
    /// The parts of all shards, by number of the shard: part 0 is the head, and the others are frames.
    parts: Arc<PartCache<(u32, u32), ShardPart>>,
}

/// A buffered part of a shard.
#[derive(Default)]
struct ShardPart {
    /// The start of each sample, and the end of the last one; empty in a frame. If there are frames, relative
    /// to the samples before compression.
    offsets: Vec<u32>,
    frames: Vec<Frame>,
    /// The whole shard or frame, if it is compressed.
    data: Option<Bytes>,
}

/// A group of samples that LitData compresses together.
struct Frame {
    first: u32,
    end: u32,
    /// The place in the file.
    start: u64,
    size: u32,
}

/// The size of the file header of a chunk with frames, in bytes.
const FRAMED_HEADER: u64 = 24;
/// The size of an entry of the frame table, in bytes.
const FRAME_ENTRY: usize = 24;

impl CachedBytes for ShardPart {
    fn cached_bytes(&self) -> u64 {
        let data = self.data.as_ref().map_or(0, |data| data.len());
        (data + 4 * self.offsets.len() + FRAME_ENTRY * self.frames.len()) as u64
    }
}

impl ShardInfo {
    /// The size of the sample count and the offsets at the start of the shard, in bytes.
    fn head_bytes(&self) -> u64 {
        4 * (u64::from(self.samples) + 2)
    }

    /// The possible sizes of the file before compression. Versions of LitData store the size with or without
    /// the offsets in the index.
    fn sizes(&self) -> [u64; 2] {
        let head = self.litdata.map_or(0, |_| self.head_bytes());
        [self.raw.bytes, self.raw.bytes.saturating_add(head)]
    }
}

impl OffsetShard {
    async fn part(
        self: &Arc<Self>,
        fetcher: &Arc<dyn Fetcher>,
        frame: Option<(u32, &Frame, u32)>,
    ) -> Result<Arc<ShardPart>> {
        let (shard, source) = (Arc::clone(self), Arc::clone(fetcher));
        let Some((number, frame, bytes)) = frame else {
            let read = || async move {
                match (&shard.zip, shard.info.litdata) {
                    (Some(zip), _) => shard.read_whole(&source, zip).await,
                    (None, Some(Inside::Frames)) => shard.read_frames(&source).await,
                    (None, _) => shard.read_offsets(&source).await,
                }
            };
            return self.parts.get((self.number, 0), read).await;
        };
        let range = frame.start..frame.start + u64::from(frame.size);
        let read = || async move {
            let start = range.start;
            let compressed = source.read(&shard.raw, Some(range)).await?;
            let threads = shard.parts.threads();
            let located =
                |error: Error| error.with_key(shard.raw.display_name()).with_offset(start);
            let data = threads.run(move || decompress(&compressed, bytes.into())).await;
            let data = data.and_then(|data| match data.len() == bytes as usize {
                true => Ok(data),
                false => Err(corrupt(format!("frame has {} bytes; expected {bytes}", data.len()))),
            });
            Ok(ShardPart { data: Some(data.map_err(located)?), ..ShardPart::default() })
        };
        self.parts.get((self.number, number + 1), read).await
    }

    async fn read_offsets(&self, fetcher: &Arc<dyn Fetcher>) -> Result<ShardPart> {
        let size = self.info.sizes()[1];
        if self.info.head_bytes() > size {
            return Err(self.too_small());
        }
        let head = fetcher.read(&self.raw, Some(0..self.info.head_bytes())).await?;
        Ok(ShardPart { offsets: self.check_offsets(&head, size)?, ..ShardPart::default() })
    }

    /// Reads the offsets and the table of frames of LitData: magic number, version and flags (16 bits each),
    /// number of samples, samples per frame, number of frames (32 bits each), offsets, table.
    async fn read_frames(&self, fetcher: &Arc<dyn Fetcher>) -> Result<ShardPart> {
        let wrong = |message: String, at: u64| {
            corrupt(message).with_key(self.raw.display_name()).with_offset(at)
        };
        let (samples, size) = (self.info.samples, self.info.sizes()[1]);
        let table_at = FRAMED_HEADER + self.info.head_bytes() - 4;
        if table_at > size {
            return Err(self.too_small());
        }
        let head = fetcher.read(&self.raw, Some(0..table_at)).await?;
        if !head.starts_with(b"LDFZ01\0\0\x01\0") {
            return Err(wrong("expected the header of compressed frames, version 1".into(), 0));
        }
        if u32_at(&head, 12) != Some(samples) {
            let found = u32_at(&head, 12).unwrap_or_default();
            let message = format!("chunk has {found} samples, but the index lists {samples}");
            return Err(wrong(message, 12));
        }
        let offsets =
            self.parse_offsets(&head[FRAMED_HEADER as usize..], 0, u64::from(u32::MAX))?;
        let count = u32_at(&head, 20).unwrap_or_default();
        let table_end = table_at + u64::from(count) * FRAME_ENTRY as u64;
        if count > samples || table_end > size {
            return Err(wrong(format!("{count} frames exceed the chunk"), 20));
        }
        let table = match count {
            0 => Bytes::new(),
            _ => fetcher.read(&self.raw, Some(table_at..table_end)).await?,
        };
        let mut frames: Vec<Frame> = Vec::new();
        for (number, entry) in table.chunks_exact(FRAME_ENTRY).enumerate() {
            let word = |at| u32_at(entry, at).unwrap_or_default();
            let start = u64::from(word(8)) | u64::from(word(12)) << 32;
            let first = frames.last().map_or(0, |frame| frame.end);
            let end = first.saturating_add(word(4));
            let bytes = offsets.get(end as usize).zip(offsets.get(first as usize));
            let is_valid = word(0) == first
                && first < end
                && bytes.is_some_and(|(end, first)| end - first == word(20))
                && start.checked_add(word(16).into()).is_some_and(|end| end <= size);
            if !is_valid {
                let at = table_at + (number * FRAME_ENTRY) as u64;
                return Err(wrong(format!("invalid entry of frame {number}"), at));
            }
            frames.push(Frame { first, end, start, size: word(16) });
        }
        if frames.last().map_or(0, |frame| frame.end) != samples {
            return Err(wrong("the frames do not cover all samples".into(), 20));
        }
        Ok(ShardPart { offsets, frames, data: None })
    }

    async fn read_whole(
        self: &Arc<Self>,
        fetcher: &Arc<dyn Fetcher>,
        zip: &Key,
    ) -> Result<ShardPart> {
        let Some((file, _)) = &self.info.zip else { return Err(self.too_small()) };
        let largest = self.info.sizes()[1].max(file.bytes);
        self.check_max(largest).map_err(|error| error.with_key(zip.display_name()))?;
        let limit = if file.bytes == 0 { self.max_bytes } else { file.bytes };
        let compressed = fetcher.read_whole(zip, &limit).await?;
        let shard = Arc::clone(self);
        let work = move || shard.decompress(&compressed);
        self.parts.threads().run(work).await.map_err(|error| error.with_key(zip.display_name()))
    }

    fn check_max(&self, bytes: u64) -> Result<()> {
        if bytes <= self.max_bytes {
            return Ok(());
        }
        let message =
            format!("shard of {bytes} bytes exceeds the limit of {} bytes", self.max_bytes);
        Err(Error::new(ErrorKind::LimitExceeded, message))
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
        let sizes = self.info.sizes();
        let data = decompress(compressed, sizes[1])?;
        if !sizes.contains(&(data.len() as u64)) {
            let message = format!(
                "decompressed shard has {} bytes, but the index lists {}",
                data.len(),
                self.info.raw.bytes
            );
            return Err(corrupt(message));
        }
        self.info.raw.check_hashes(&data)?;
        if self.info.head_bytes() > data.len() as u64 {
            return Err(self.too_small());
        }
        let offsets = self.check_offsets(&data, data.len() as u64)?;
        Ok(ShardPart { offsets, frames: Vec::new(), data: Some(data) })
    }

    /// Parses and validates the count and the offsets at the start of a shard of `size` bytes.
    fn check_offsets(&self, shard: &[u8], size: u64) -> Result<Vec<u32>> {
        let samples = self.info.samples;
        if u32_at(shard, 0) != Some(samples) {
            let found = u32_at(shard, 0).unwrap_or_default();
            let message = format!("shard has {found} samples, but the index lists {samples}");
            return Err(corrupt(message).with_offset(0).with_key(self.raw.display_name()));
        }
        let offsets = self.parse_offsets(&shard[4..], self.info.head_bytes(), size)?;
        if self.info.litdata.is_some() && samples > 0 && offsets.first() == offsets.last() {
            let message = "the samples of this chunk are an Arrow table, in which LitData stores samples \
                           without images and tensors; write them as Parquet files instead";
            let error = Error::new(ErrorKind::Unsupported, message);
            return Err(error.with_key(self.raw.display_name()));
        }
        Ok(offsets)
    }

    /// Parses the offsets of all samples, which ascend from `first` to at most `last`.
    fn parse_offsets(&self, words: &[u8], first: u64, last: u64) -> Result<Vec<u32>> {
        let offsets: Vec<u32> =
            (0..=self.info.samples as usize).map_while(|word| u32_at(words, 4 * word)).collect();
        let mut before = first;
        for (sample, &offset) in offsets.iter().enumerate() {
            if u64::from(offset) < before || u64::from(offset) > last {
                let message = format!(
                    "offset {offset} of sample {sample} is out of range: expected {before} to {last}"
                );
                let error = corrupt(message).with_offset(4 * (sample as u64 + 1));
                return Err(error.with_key(self.raw.display_name()));
            }
            before = offset.into();
        }
        Ok(offsets)
    }

    /// The bytes of a sample from `start` to `end`, and their offset for messages.
    async fn sample(
        self: &Arc<Self>,
        fetcher: &Arc<dyn Fetcher>,
        part: &ShardPart,
        row: u64,
        [start, end]: [u32; 2],
    ) -> Result<(Bytes, u64)> {
        // Copies, so that a sample does not keep the whole shard in memory.
        let copy = |data: &Bytes, first: u32| {
            Bytes::copy_from_slice(&data[(start - first) as usize..(end - first) as usize])
        };
        let frame = part.frames.partition_point(|frame| u64::from(frame.end) <= row);
        if let Some(found) = part.frames.get(frame) {
            let first = part.offsets[found.first as usize];
            let bytes = part.offsets[found.end as usize] - first;
            self.check_max(bytes.into())?;
            let frame = self.part(fetcher, Some((frame as u32, found, bytes))).await?;
            let data = frame.data.as_ref().map(|data| copy(data, first));
            return Ok((data.unwrap_or_default(), found.start));
        }
        let sample = match &part.data {
            Some(data) => copy(data, 0),
            None => fetcher.read(&self.raw, Some(start.into()..end.into())).await?,
        };
        Ok((sample, start.into()))
    }

    fn too_small(&self) -> Error {
        let message = format!(
            "shard of {} bytes is too small for {} samples",
            self.info.raw.bytes, self.info.samples
        );
        corrupt(message).with_key(self.raw.display_name())
    }
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, message)
}

/// Decompresses data to at most `max_bytes` bytes.
fn decompress(compressed: &[u8], max_bytes: u64) -> Result<Bytes> {
    let limits = DecompressLimits::default().max_bytes(max_bytes);
    let mut data = Vec::new();
    let read = Decompress::detect(compressed, limits)?.read_to_end(&mut data);
    read.map_err(|error| match error.downcast::<Error>() {
        Ok(typed) => typed,
        Err(other) => other.into(),
    })?;
    data.shrink_to_fit();
    Ok(data.into())
}

impl fmt::Debug for OffsetShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OffsetShard({} with {} samples)", self.raw, self.info.samples)
    }
}

/// A shared shard, for [`PackedRows`].
#[derive(Debug)]
pub(in crate::datasets) struct SharedShard(Arc<OffsetShard>);

impl SharedShard {
    pub(in crate::datasets) fn sample(self: &Arc<Self>, row: u64) -> StoredRecord {
        StoredRecord::new(row_key(&self.0.raw, row)).with_row(Arc::clone(self) as _, row)
    }
}

impl Shard for Arc<SharedShard> {
    fn rows(&self) -> u64 {
        self.0.info.samples.into()
    }
}

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
        if self.0.info.litdata == Some(Inside::Samples) {
            return Ok(None);
        }
        let part = self.0.part(fetcher, None).await?;
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
        let part = shard.part(fetcher, None).await?;
        let pair = usize::try_from(row).ok().and_then(|row| part.offsets.get(row..)?.first_chunk());
        let Some([start, end]) = pair.copied() else {
            let message =
                format!("row {row} is out of range: the shard has {} samples", shard.info.samples);
            let error = Error::new(ErrorKind::InvalidArgument, message);
            return Err(error.with_key(shard.raw.display_name()));
        };
        // Errors name the sample, and the offset in the shard.
        let located = |error: Error, start: u64| {
            let offset = error.offset().unwrap_or_default();
            let key = row_key(&shard.raw, row).display_name();
            error.with_key(key).with_offset(start + offset)
        };
        check_size((end - start).into(), request.max_bytes())
            .map_err(|error| located(error, start.into()))?;
        let (mut sample, at) = shard.sample(fetcher, &part, row, [start, end]).await?;
        if shard.info.litdata == Some(Inside::Samples) {
            let max_bytes = request.max_bytes();
            let work = move || decompress(&sample, max_bytes);
            let data = shard.parts.threads().run(work).await;
            sample = data.map_err(|error| located(error, at))?;
        }
        shard.info.columns.decode(&sample, request).map_err(|error| located(error, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_outside_of_the_folder_are_refused() {
        let check = |name: &str| FileInfo::new(name.into(), 0);
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
