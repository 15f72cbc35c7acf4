//! [`TfRecordDataset`]: TFRecord files of `tf.train.Example`.
//!
//! | file | what it holds |
//! |---|---|
//! | `framing` | record headers, checksums, index files |
//! | `example` | [`parse_example`]: the protocol buffer messages |

mod example;
mod framing;

use std::fmt;
#[cfg(feature = "local")]
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use spdl_core::{Dataset, Error, ErrorKind, Result};

use super::common::{ContentHash, check_size, row_key};
use super::patterns::FilePatterns;
use super::sharded::{Shard, Sharded, Shards, impl_dataset, impl_openers, read_files};
use crate::fetch::{Fetcher, Key};
use crate::records::{FieldRequest, FieldValue, PackedRows, StoredRecord};

pub use example::parse_example;

/// The maximum size of an index file, in bytes: about 50 million records.
const MAX_INDEX_BYTES: u64 = 1 << 30;

/// The samples of TFRecord files. Each record is a `tf.train.Example` whose features are the fields.
///
/// - Each record is read by one range request, and its checksum is verified unless
///   [`TfRecordOptions::verify`] is false. Only requested features are parsed: see
///   [`parse_example`].
/// - Opening reads the lengths of all records; a file of small records is read completely. An index
///   file avoids this: `FILE.idx` with the offset and size of each record per line, as DALI's
///   `tfrecord2idx` and the Python package `tfrecord` write it. An index that does not match the
///   file is ignored.
/// - Opening also reads the first record, whose features are the [field
///   names](crate::StoredRecord::names) of all samples. A feature that the first record lacks
///   cannot be requested by name.
/// - Memory use: 8 bytes per record.
/// - Compressed files fail with `Unsupported`, because their records cannot be read separately.
///
/// ```
/// use spdl_core::Dataset;
/// use spdl_io::datasets::TfRecordDataset;
/// # #[cfg(feature = "local")] {
/// # let pattern = "tests/data/tfrecord/a.tfrecord";
/// let samples = TfRecordDataset::open(pattern)?; // "data/train-*-of-00128.tfrecord"
/// println!("{} samples in {} files", samples.len(), samples.shard_lens().len());
/// let sample = samples.item(0)?; // data/train-00000-of-00128.tfrecord:0
/// # assert_eq!((samples.len(), sample.key.as_str()), (5, Some("tests/data/tfrecord/a.tfrecord:0")));
/// assert!(sample.names().any(|name| name == "image/class/label"));
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// The format is that of TensorFlow's guide "TFRecord and tf.train.Example".
pub struct TfRecordDataset {
    shards: Shards<Arc<TfRecordFile>>,
}

/// Options of [`TfRecordDataset`].
#[derive(Clone, Debug)]
pub struct TfRecordOptions {
    raw: bool,
    verify: bool,
    index_suffix: Option<String>,
    concurrency: usize,
}

impl Default for TfRecordOptions {
    fn default() -> Self {
        let index_suffix = Some(".idx".to_owned());
        TfRecordOptions { raw: false, verify: true, index_suffix, concurrency: 8 }
    }
}

impl TfRecordOptions {
    /// Sets whether each record is one field `record` of raw bytes, for records that are not
    /// `tf.train.Example`. Default: false.
    #[must_use]
    pub fn raw(mut self, raw: bool) -> Self {
        self.raw = raw;
        self
    }

    /// Sets whether reads verify the checksum of the data. The checksum of the length is always verified.
    /// Default: true.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Sets the suffix of index files; with `None`, no index files are looked up. Default: `.idx`.
    #[must_use]
    pub fn index_suffix(mut self, suffix: Option<&str>) -> Self {
        self.index_suffix = suffix.map(str::to_owned);
        self
    }

    /// Sets how many files are opened concurrently; 0 means 1. Default: 8.
    #[must_use]
    pub fn concurrency(mut self, files: usize) -> Self {
        self.concurrency = files.max(1);
        self
    }

    fn patterns(&self) -> FilePatterns<'_> {
        FilePatterns { in_folder: "*.tfrecord", index_suffix: self.index_suffix.as_deref() }
    }
}

impl_openers! {
    TfRecordDataset, TfRecordOptions, "`*.tfrecord` files", #[cfg(feature = "local")];
    /// Opens files of a store, in this order.
    ///
    /// # Errors
    /// - `InvalidArgument` for an empty list.
    /// - `Corrupt` if the checksum of a length does not match.
    /// - `Truncated` if a file ends inside a record.
    /// - The errors of [`parse_example`] for the first record.
    /// - `Unsupported` for compressed files, and for a fetcher without sizes or range requests.
    /// - The errors of the fetcher.
}

impl TfRecordDataset {
    async fn fetch_keys(
        fetcher: &Arc<dyn Fetcher>,
        files: Vec<Key>,
        options: &TfRecordOptions,
    ) -> Result<Self> {
        let read = |key: Key| async move {
            let ends = find_records(fetcher, &key, options).await?;
            Ok::<_, Error>((key, ends))
        };
        let found = read_files(files, "TFRecord files", options.concurrency, read).await?;
        let shard = |(key, ends), names| TfRecordFile {
            key,
            ends,
            names,
            raw: options.raw,
            verify: options.verify,
        };
        let mut names: Arc<[Arc<str>]> =
            if options.raw { [RECORD.into()].into() } else { [].into() };
        if let Some((key, ends)) = found.iter().find(|(_, ends)| !ends.is_empty())
            && !options.raw
        {
            // The first record determines the field names of all records.
            let first = shard((key.clone(), ends[..1].to_vec()), Arc::clone(&names));
            let features = first.read(fetcher, 0, &FieldRequest::all(u64::MAX)).await?;
            names = features.into_iter().map(|(name, _)| name).collect();
        }
        let shards = found.into_iter().map(|found| Arc::new(shard(found, Arc::clone(&names))));
        Ok(TfRecordDataset { shards: Shards::new(shards.collect())? })
    }
}

async fn find_records(
    fetcher: &Arc<dyn Fetcher>,
    key: &Key,
    options: &TfRecordOptions,
) -> Result<Vec<u64>> {
    let size = fetcher.stat(key).await?.size;
    if let Some(suffix) = &options.index_suffix {
        let index = Key::from_bytes(&[key.as_bytes(), suffix.as_bytes()].concat());
        match fetcher.read_whole(&index, &MAX_INDEX_BYTES).await {
            Ok(text) => {
                if let Some(ends) = framing::parse_index(&text, size) {
                    return Ok(ends);
                }
            }
            // Without a valid index, read the file.
            Err(error) if !error.kind().is_transient() => {}
            Err(error) => return Err(error),
        }
    }
    framing::walk(fetcher, key, size).await
}

/// The field name of raw records.
const RECORD: &str = "record";

/// A file, and the end of each record.
pub(super) struct TfRecordFile {
    key: Key,
    ends: Vec<u64>,
    names: Arc<[Arc<str>]>,
    raw: bool,
    verify: bool,
}

impl TfRecordFile {
    /// The offsets of a record: its start, and the end, exclusive.
    fn extent(&self, row: u64) -> Option<(u64, u64)> {
        let row = usize::try_from(row).ok()?;
        let end = *self.ends.get(row)?;
        let start = row.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied())?;
        Some((start, end))
    }
}

#[async_trait]
impl PackedRows for TfRecordFile {
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
            return Err(
                Error::new(ErrorKind::InvalidArgument, message).with_key(self.key.display_name())
            );
        };
        // Errors name the sample, and the offset in the file.
        let located = |error: Error, from: u64| {
            let offset = error.offset().unwrap_or_default();
            let key = row_key(&self.key, row).display_name();
            error.with_key(key).with_offset(start + from + offset)
        };
        check_size(end - start, request.max_bytes().saturating_add(framing::FRAME))
            .map_err(|error| located(error, 0))?;
        let record = fetcher.read(&self.key, Some(start..end)).await?;
        let data =
            framing::check_record(&record, self.verify).map_err(|error| located(error, 0))?;
        if self.raw {
            let field = request.wants(RECORD).then(|| (RECORD.into(), FieldValue::Bytes(data)));
            return Ok(field.into_iter().collect());
        }
        parse_example(&data, request).map_err(|error| located(error, framing::HEADER))
    }
}

impl Shard for Arc<TfRecordFile> {
    fn rows(&self) -> u64 {
        self.ends.len() as u64
    }
}

impl Sharded for TfRecordDataset {
    type Shard = Arc<TfRecordFile>;

    fn sample(&self, shard: &Self::Shard, row: u64) -> Result<StoredRecord> {
        let shard = Arc::clone(shard);
        Ok(StoredRecord::new(row_key(&shard.key, row)).with_row(shard, row))
    }

    fn content(&self) -> ContentHash {
        let mut hash = ContentHash::new("tfrecord");
        for shard in self.shards.iter() {
            hash.name(&shard.key);
            hash.number(shard.ends.len() as u64);
            shard.ends.iter().for_each(|&end| hash.number(end));
        }
        hash
    }
}

impl_dataset!(
    TfRecordDataset,
    "records of each file",
    "the file names and the end offsets of all records"
);

impl fmt::Debug for TfRecordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TfRecordFile({} with {} records)", self.key, self.ends.len())
    }
}

impl fmt::Debug for TfRecordDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (records, files) = (self.shards.total(), self.shards.len());
        write!(f, "TfRecordDataset({records} records in {files} files)")
    }
}
