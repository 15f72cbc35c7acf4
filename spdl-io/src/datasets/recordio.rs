//! [`RecordIoDataset`]: RecordIO files of MXNet with images.
//!
//! A part of a record consists of a magic number, a word with the kind of the part (3 bits) and the size of the
//! data (29 bits), the data, and padding to a multiple of 4 bytes. All numbers are little-endian. The writer
//! splits a record wherever the magic number would occur in it.

use std::fmt;
#[cfg(feature = "local")]
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::{Dataset, Error, ErrorKind, Result};

use super::common::{ContentHash, check_size, row_key, u32_at, unsigned, with_context};
use super::patterns::FilePatterns;
use super::sharded::{
    Shard, Sharded, Shards, impl_dataset, impl_openers, read_files, walk_records,
};
use crate::fetch::{Fetcher, Key};
use crate::records::{FieldRequest, FieldValue, PackedRows, StoredRecord};

const MAGIC: u32 = 0xCED7_230A;
/// The size of magic number and length, in bytes.
const HEADER: usize = 8;
/// The size of flag, label and two numbers before the labels and the image, in bytes.
const IMAGE_HEADER: usize = 24;
/// The largest part of a record that is neither a label nor the image, in bytes.
const FRAME: u64 = (HEADER + IMAGE_HEADER + 3) as u64;
/// The maximum size of an index file, in bytes: about 50 million records.
const MAX_INDEX_BYTES: u64 = 1 << 30;

/// The samples of RecordIO files (`.rec`), as MXNet's `im2rec` and `recordio.pack` write them.
///
/// | field | value |
/// |---|---|
/// | `image` | [`FieldValue::Bytes`], not decoded |
/// | `label` | the label of a record with one label: [`FieldValue::Integer`] if it is integral, otherwise [`FieldValue::Float`] |
/// | `labels` | the labels of a record with a list of labels: [`FieldValue::Floats`] |
/// | `id`, `id2` | [`FieldValue::Integer`]; `id2` only if it is not 0 |
///
/// - Each record is read by one range request. The format has no checksums.
/// - Opening reads the index `NAME.idx` next to `NAME.rec`, or else the header of each record; a file of small
///   records is read completely. An index that does not fit the file is ignored. Samples are in the order of
///   the file; records that the index does not list are no samples.
/// - Opening also reads the start of the first record, which determines the [field
///   names](crate::StoredRecord::names) of all samples: `label`, or `labels`.
/// - Memory use: 8 bytes per record.
///
/// ```
/// use spdl_core::Dataset;
/// use spdl_io::datasets::RecordIoDataset;
/// # #[cfg(feature = "local")] {
/// # let pattern = "tests/data/recordio/a.rec";
/// let samples = RecordIoDataset::open(pattern)?; // "data/train-*.rec"
/// println!("{} samples in {} files", samples.len(), samples.shard_lens().len());
/// # assert_eq!(samples.len(), 5);
/// let sample = samples.item(0)?; // data/train-000.rec:0
/// assert_eq!(sample.names().collect::<Vec<_>>(), ["image", "label", "id"]);
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct RecordIoDataset {
    shards: Shards<Arc<RecordIoFile>>,
}

/// Options of [`RecordIoDataset`].
#[derive(Clone, Debug)]
pub struct RecordIoOptions {
    concurrency: usize,
}

impl Default for RecordIoOptions {
    fn default() -> Self {
        RecordIoOptions { concurrency: 8 }
    }
}

impl RecordIoOptions {
    /// Sets how many files are opened concurrently; 0 means 1. Default: 8.
    #[must_use]
    pub fn concurrency(mut self, files: usize) -> Self {
        self.concurrency = files.max(1);
        self
    }

    #[expect(clippy::unused_self, reason = "the same call for all data sets")]
    fn patterns(&self) -> FilePatterns<'static> {
        FilePatterns { in_folder: "*.rec", index_suffix: None }
    }
}

impl_openers! {
    RecordIoDataset, RecordIoOptions, "`*.rec` files", #[cfg(feature = "local")];
    /// Opens files of a store, in this order.
    ///
    /// # Errors
    /// - `InvalidArgument` for an empty list.
    /// - `Corrupt` if a record does not start with the magic number, or if its parts have the wrong order.
    /// - `Truncated` if a file ends inside a record.
    /// - `Unsupported` for a fetcher without sizes or range requests.
    /// - The errors of the fetcher.
}

impl RecordIoDataset {
    async fn fetch_keys(
        fetcher: &Arc<dyn Fetcher>,
        files: Vec<Key>,
        options: &RecordIoOptions,
    ) -> Result<Self> {
        let read = |key: Key| async move {
            let (first, ends) = find_records(fetcher, &key).await?;
            Ok::<_, Error>(RecordIoFile { key, first, ends, names: [].into() })
        };
        let mut files = read_files(files, "RecordIO files", options.concurrency, read).await?;
        if let Some(file) = files.iter().find(|file| !file.ends.is_empty()) {
            let names = file.first_names(fetcher).await?;
            files.iter_mut().for_each(|file| file.names = Arc::clone(&names));
        }
        Ok(RecordIoDataset { shards: Shards::new(files.into_iter().map(Arc::new).collect())? })
    }
}

/// The start of the first record, and the end of each record.
async fn find_records(fetcher: &Arc<dyn Fetcher>, key: &Key) -> Result<(u64, Vec<u64>)> {
    let size = fetcher.stat(key).await?.size;
    let name = key.as_bytes();
    let index = Key::from_bytes(&[name.strip_suffix(b".rec").unwrap_or(name), b".idx"].concat());
    match fetcher.read_whole(&index, &MAX_INDEX_BYTES).await {
        Ok(text) => {
            if let Some(found) = parse_index(&text, size) {
                return Ok(found);
            }
        }
        // Without a valid index, read the file.
        Err(error) if !error.kind().is_transient() => {}
        Err(error) => return Err(error),
    }
    let mut is_inside = false;
    let header = |header: &[u8; HEADER]| {
        let (kind, len) = parse_header(header)?;
        if kind > 3 || matches!(kind, 0 | 1) == is_inside {
            return Err(wrong_part(kind));
        }
        is_inside = matches!(kind, 1 | 2);
        Ok((HEADER as u64 + len.next_multiple_of(4), !is_inside))
    };
    let ends = walk_records(fetcher, key, size, header).await?;
    if ends.last().copied().unwrap_or_default() != size {
        let error =
            Error::new(ErrorKind::Truncated, "the file ends inside a record of several parts");
        return Err(error.with_key(key.display_name()).with_offset(size));
    }
    Ok((0, ends))
}

/// The kind of a part and the size of its data.
fn parse_header(header: &[u8]) -> Result<(u32, u64)> {
    let word = |at| u32_at(header, at).ok_or_else(|| truncated("the file ends inside a record"));
    let found = word(0)?;
    if found != MAGIC {
        let message = format!(
            "expected the magic number {MAGIC:#010x} of a record, found {found:#010x}: the file is damaged, or \
             its index (`.idx`) is outdated"
        );
        return Err(Error::new(ErrorKind::Corrupt, message));
    }
    let word = word(4)?;
    Ok((word >> 29, (word & ((1 << 29) - 1)).into()))
}

fn wrong_part(kind: u32) -> Error {
    Error::new(ErrorKind::Corrupt, format!("unexpected part of kind {kind} in a record"))
}

fn truncated(message: &str) -> Error {
    Error::new(ErrorKind::Truncated, message)
}

/// The records of an index: one line per record, with its number and its offset. `None` if the index does not
/// fit a file of `size` bytes.
fn parse_index(text: &[u8], size: u64) -> Option<(u64, Vec<u64>)> {
    let mut starts = Vec::new();
    for line in std::str::from_utf8(text).ok()?.lines() {
        let (_, offset) = line.trim_end().rsplit_once('\t')?;
        let offset: u64 = offset.parse().ok()?;
        if !offset.is_multiple_of(4) || offset >= size {
            return None;
        }
        starts.push(offset);
    }
    starts.sort_unstable();
    starts.dedup();
    // The end of a record is the start of the next one.
    let first = *starts.first()?;
    starts.remove(0);
    starts.push(size);
    starts.shrink_to_fit();
    Some((first, starts))
}

/// The data of the record at the start of `bytes`. Offsets of errors are relative to the record.
fn join_parts(bytes: &Bytes) -> Result<Bytes> {
    let mut joined: Option<Vec<u8>> = None;
    let mut at = 0;
    loop {
        let located = |error: Error| error.with_offset(at as u64);
        let header = bytes.get(at..).unwrap_or_default();
        let (kind, len) = parse_header(header).map_err(located)?;
        let start = at + HEADER;
        // Lossless: the size has 29 bits.
        let end = start + len as usize;
        if end > bytes.len() {
            return Err(located(truncated("the file ends inside a record")));
        }
        match (kind, &mut joined) {
            (0, None) => return Ok(bytes.slice(start..end)),
            (1, None) => joined = Some(bytes[start..end].to_vec()),
            (2 | 3, Some(data)) => {
                data.extend_from_slice(&MAGIC.to_le_bytes());
                data.extend_from_slice(&bytes[start..end]);
                if kind == 3 {
                    return Ok(std::mem::take(data).into());
                }
            }
            _ => return Err(located(wrong_part(kind))),
        }
        at = end.next_multiple_of(4);
    }
}

/// The fields of an image record.
fn parse_fields(data: &Bytes, request: &FieldRequest) -> Result<Vec<(Arc<str>, FieldValue)>> {
    let too_small =
        || Error::new(ErrorKind::Corrupt, "the record is too small for an image and its header");
    let word = |at| u32_at(data, at).ok_or_else(too_small);
    let long = |at| Ok::<_, Error>(u64::from(word(at)?) | u64::from(word(at + 4)?) << 32);
    let float = |at| Ok::<_, Error>(f64::from(f32::from_bits(word(at)?)));
    let (count, id, id2) = (word(0)? as usize, long(8)?, long(16)?);
    let start = count.checked_mul(4).and_then(|bytes| bytes.checked_add(IMAGE_HEADER));
    let start = start.filter(|start| *start <= data.len()).ok_or_else(too_small)?;
    let mut fields = Vec::new();
    let mut add = |name: &str, value: Result<FieldValue>| {
        if request.wants(name) {
            let value = value.map_err(|error| with_context(error, &format!("field {name:?}")))?;
            fields.push((name.into(), value));
        }
        Ok::<_, Error>(())
    };
    add("image", Ok(FieldValue::Bytes(data.slice(start..))))?;
    if count < 2 {
        let label = float(if count == 0 { 4 } else { IMAGE_HEADER })?;
        let is_integer = label.fract() == 0.0 && label.abs() < 9e15;
        let label =
            if is_integer { FieldValue::Integer(label as i64) } else { FieldValue::Float(label) };
        add("label", Ok(label))?;
    }
    if count > 0 && request.wants("labels") {
        let labels = (0..count).map(|number| float(IMAGE_HEADER + 4 * number));
        add("labels", labels.collect::<Result<_>>().map(FieldValue::Floats))?;
    }
    add("id", unsigned(id))?;
    if id2 > 0 {
        add("id2", unsigned(id2))?;
    }
    Ok(fields)
}

/// A file, the start of its first record, and the end of each record.
pub(super) struct RecordIoFile {
    key: Key,
    first: u64,
    ends: Vec<u64>,
    names: Arc<[Arc<str>]>,
}

impl RecordIoFile {
    /// The offsets of a record: its start, and the end, exclusive.
    fn extent(&self, row: u64) -> Option<(u64, u64)> {
        let row = usize::try_from(row).ok()?;
        let end = *self.ends.get(row)?;
        let before = row.checked_sub(1).map(|before| self.ends.get(before).copied());
        Some((before.unwrap_or(Some(self.first))?, end))
    }

    /// The field names, from the flag of the first record.
    async fn first_names(&self, fetcher: &Arc<dyn Fetcher>) -> Result<Arc<[Arc<str>]>> {
        let Some((start, end)) = self.extent(0) else { return Ok([].into()) };
        let end = end.min(start + (HEADER + IMAGE_HEADER) as u64);
        let record = fetcher.read(&self.key, Some(start..end)).await?;
        let count = parse_header(&record).and_then(|_| {
            let count = u32_at(&record, HEADER);
            count.ok_or_else(|| {
                Error::new(ErrorKind::Corrupt, "the record is too small for an image header")
            })
        });
        let located =
            |error: Error| error.with_key(row_key(&self.key, 0).display_name()).with_offset(start);
        let label = match count.map_err(located)? {
            0 => &["label"][..],
            1 => &["label", "labels"],
            _ => &["labels"],
        };
        Ok(["image"].iter().chain(label).chain(&["id"]).map(|name| (*name).into()).collect())
    }
}

#[async_trait]
impl PackedRows for RecordIoFile {
    fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    fn object(&self) -> Option<&Key> {
        Some(&self.key)
    }

    async fn row_bytes(
        &self,
        _: &Arc<dyn Fetcher>,
        row: u64,
        _: &FieldRequest,
    ) -> Result<Option<u64>> {
        let Some((start, end)) = self.extent(row) else { return Ok(None) };
        Ok(Some(end - start))
    }

    async fn read(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        request: &FieldRequest,
    ) -> Result<Vec<(Arc<str>, FieldValue)>> {
        let Some((start, end)) = self.extent(row) else {
            let message =
                format!("row {row} is out of range: the file has {} records", self.ends.len());
            let error = Error::new(ErrorKind::InvalidArgument, message);
            return Err(error.with_key(self.key.display_name()));
        };
        // Errors name the sample, and the offset in the file.
        let located = |error: Error| {
            let offset = error.offset().unwrap_or_default();
            error.with_key(row_key(&self.key, row).display_name()).with_offset(start + offset)
        };
        check_size(end - start, request.max_bytes().saturating_add(FRAME)).map_err(located)?;
        let record = fetcher.read(&self.key, Some(start..end)).await?;
        let data = join_parts(&record).map_err(located)?;
        parse_fields(&data, request).map_err(located)
    }
}

impl Shard for Arc<RecordIoFile> {
    fn rows(&self) -> u64 {
        self.ends.len() as u64
    }
}

impl Sharded for RecordIoDataset {
    type Shard = Arc<RecordIoFile>;

    fn sample(&self, shard: &Self::Shard, row: u64) -> Result<StoredRecord> {
        let shard = Arc::clone(shard);
        Ok(StoredRecord::new(row_key(&shard.key, row)).with_row(shard, row))
    }

    fn content(&self) -> ContentHash {
        let mut hash = ContentHash::new("recordio");
        for shard in self.shards.iter() {
            hash.name(&shard.key);
            hash.number(shard.ends.len() as u64);
            hash.number(shard.first);
            shard.ends.iter().for_each(|&end| hash.number(end));
        }
        hash
    }
}

impl_dataset!(
    RecordIoDataset,
    "records of each file",
    "the file names and the offsets of all records"
);

impl fmt::Debug for RecordIoFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordIoFile({} with {} records)", self.key, self.ends.len())
    }
}

impl fmt::Debug for RecordIoDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (records, files) = (self.shards.total(), self.shards.len());
        write!(f, "RecordIoDataset({records} records in {files} files)")
    }
}
