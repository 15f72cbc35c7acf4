//! Data sets in TFRecord files.

mod example;
mod framing;

use std::fmt;
#[cfg(feature = "local")]
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt, stream};
#[cfg(feature = "local")]
use spdl_core::block_on;
use spdl_core::{Dataset, Error, ErrorKind, Result};

#[cfg(feature = "local")]
use super::common::local_fetcher;
use super::common::{ContentHash, ShardOffsets, check_size, row_key, shown};
use super::patterns::{self, FilePatterns};
use crate::fetch::{Fetcher, Key};
use crate::records::{FieldRequest, FieldValue, PackedRows, StoredRecord};

pub use example::parse_example;

/// The largest index file that is read, in bytes: one of some 50 million records.
const MAX_INDEX_BYTES: u64 = 1 << 30;

/// Samples in TFRecord files, each a `tf.train.Example`: its features are the fields.
///
/// What a feature becomes [`parse_example`] says. A record is read by itself, by one range, and its
/// checksum is compared; no more than the features that are asked for are taken from it.
///
/// Opening walks over the lengths of all records, for which a file of small records is read as a
/// whole. An index beside it makes that unnecessary: `FILE.idx`, with a line for each record, its
/// offset and its size in bytes, as DALI's `tfrecord2idx` and the Python package `tfrecord` write it.
/// An index that is not of the file as it is now is not used.
///
/// In memory a record takes 8 bytes. Files that are compressed as a whole are `Unsupported`, since they
/// have no single records to read.
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
    shards: Vec<Arc<TfRecordFile>>,
    offsets: ShardOffsets,
}

/// How TFRecord files are opened and read.
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
    /// Whether a record is one field, `record`, of bytes as they are: for records that are no
    /// `tf.train.Example`. Default: false.
    #[must_use]
    pub fn raw(mut self, raw: bool) -> Self {
        self.raw = raw;
        self
    }

    /// Whether the checksum of the data is compared when a record is read. That of the length always
    /// is. Default: true.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// What follows the name of a file in that of its index; `None` where there are no indices, and
    /// nobody shall look for one. Default: `.idx`.
    #[must_use]
    pub fn index_suffix(mut self, suffix: Option<&str>) -> Self {
        self.index_suffix = suffix.map(str::to_owned);
        self
    }

    /// How many files are opened at once, at least 1. Default: 8.
    #[must_use]
    pub fn concurrency(mut self, files: usize) -> Self {
        self.concurrency = files.max(1);
        self
    }

    fn names(&self) -> FilePatterns<'_> {
        FilePatterns { in_folder: "*.tfrecord", index_suffix: self.index_suffix.as_deref() }
    }
}

impl TfRecordDataset {
    /// The files of this machine that `pattern` means, as for
    /// [`WebDataset::open`](super::WebDataset::open); of a folder, all its `*.tfrecord`. Waits until
    /// they are opened: async code calls [`fetch`](TfRecordDataset::fetch).
    ///
    /// # Errors
    /// As [`fetch_files`](TfRecordDataset::fetch_files); `NotFound` where the pattern means no files;
    /// as [`expand_braces`](super::expand_braces).
    #[cfg(feature = "local")]
    pub fn open(pattern: &str) -> Result<Self> {
        TfRecordDataset::open_with(pattern, &TfRecordOptions::default())
    }

    /// The same with options of the caller's.
    ///
    /// # Errors
    /// As [`open`](TfRecordDataset::open).
    #[cfg(feature = "local")]
    pub fn open_with(pattern: &str, options: &TfRecordOptions) -> Result<Self> {
        let files = patterns::local_keys(pattern, &options.names())?;
        block_on(TfRecordDataset::fetch_files(&local_fetcher(), files, options))
    }

    /// These files of this machine, in this order.
    ///
    /// # Errors
    /// As [`open`](TfRecordDataset::open); `InvalidArgument` where there are none.
    #[cfg(feature = "local")]
    pub fn open_files<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        options: &TfRecordOptions,
    ) -> Result<Self> {
        let files: Vec<_> = paths.into_iter().map(Key::from_path).collect();
        block_on(TfRecordDataset::fetch_files(&local_fetcher(), files, options))
    }

    /// The files of a store that `pattern` means, as for [`open`](TfRecordDataset::open); a folder ends with a
    /// slash here. It, `*` and `?` need a store that lists.
    ///
    /// # Errors
    /// As [`fetch_files`](TfRecordDataset::fetch_files), and `NotFound` where the pattern means no files.
    pub async fn fetch(
        fetcher: &Arc<dyn Fetcher>,
        pattern: &str,
        options: &TfRecordOptions,
    ) -> Result<Self> {
        let files = patterns::stored_keys(&**fetcher, pattern, &options.names()).await?;
        TfRecordDataset::fetch_files(fetcher, files, options).await
    }

    /// These files of a store, in this order.
    ///
    /// # Errors
    /// `InvalidArgument` where there are no files; `Corrupt` where a length does not agree with its
    /// checksum, `Truncated` where a file ends inside a record, both with the byte; `Unsupported` for
    /// compressed files, and for a fetcher that tells no sizes or reads no ranges; what the fetcher
    /// answers.
    pub async fn fetch_files(
        fetcher: &Arc<dyn Fetcher>,
        files: impl IntoIterator<Item = impl Into<Key>>,
        options: &TfRecordOptions,
    ) -> Result<Self> {
        let files: Vec<Key> = files.into_iter().map(Into::into).collect();
        if files.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "the list of TFRecord files is empty",
            ));
        }
        let read = |key: Key| async move {
            let ends = find_records(fetcher, &key, options).await?;
            Ok::<_, Error>((key, ends))
        };
        let found = stream::iter(files).map(read).buffered(options.concurrency);
        let found: Vec<(Key, Vec<u64>)> = found.try_collect().await?;
        let offsets = ShardOffsets::new(found.iter().map(|(_, ends)| ends.len() as u64))?;
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
            // The features of the first record are those that all are expected to have.
            let first = shard((key.clone(), ends[..1].to_vec()), Arc::clone(&names));
            let features = first.read(fetcher, 0, &FieldRequest::all(u64::MAX)).await?;
            names = features.into_iter().map(|(name, _)| name).collect();
        }
        let shards = found.into_iter().map(|found| Arc::new(shard(found, Arc::clone(&names))));
        Ok(TfRecordDataset { shards: shards.collect(), offsets })
    }

    /// How many records each file holds: for [`ShardWindow`](spdl_core::source::sampler::ShardWindow).
    pub fn shard_lens(&self) -> Vec<u64> {
        self.offsets.lens()
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
        match fetcher.read_at_most(&index, MAX_INDEX_BYTES).await {
            Ok(text) => {
                if let Some(ends) = framing::parse_index(&text, size) {
                    return Ok(ends);
                }
            }
            // Without an index, or with one that is no use, the file itself tells.
            Err(error) if !error.kind().is_transient() => {}
            Err(error) => return Err(error),
        }
    }
    framing::walk(fetcher, key, size).await
}

/// The one field of a record that is not looked into.
const RECORD: &str = "record";

/// A file, and where its records end.
struct TfRecordFile {
    key: Key,
    ends: Vec<u64>,
    names: Arc<[Arc<str>]>,
    raw: bool,
    verify: bool,
}

#[async_trait]
impl PackedRows for TfRecordFile {
    fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    fn object(&self) -> Option<&Key> {
        Some(&self.key)
    }

    async fn read(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        request: &FieldRequest,
    ) -> Result<Vec<(Arc<str>, FieldValue)>> {
        let row = usize::try_from(row).unwrap_or(usize::MAX);
        let Some(&end) = self.ends.get(row) else {
            let message = format!("record {row} of {} was asked for", self.ends.len());
            return Err(
                Error::new(ErrorKind::InvalidArgument, message).with_key(self.key.display_name())
            );
        };
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        // Errors of what is in the file name the sample, and the byte of the file.
        let located = |error: Error, from: u64| {
            let offset = error.offset().unwrap_or_default();
            let key = row_key(&self.key, row as u64).display_name();
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

impl Dataset for TfRecordDataset {
    type Item = StoredRecord;

    fn len(&self) -> u64 {
        self.offsets.total()
    }

    fn item(&self, index: u64) -> Result<StoredRecord> {
        let (shard, row) = self.offsets.locate(index)?;
        let shard = Arc::clone(&self.shards[shard]);
        Ok(StoredRecord::new(row_key(&shard.key, row)).with_row(shard, row))
    }

    /// Of the names of the files, without their folders, and of the ends of all records.
    fn content_hash(&self) -> Option<u64> {
        let mut hash = ContentHash::new("tfrecord");
        for shard in &self.shards {
            hash.name(&shard.key);
            hash.number(shard.ends.len() as u64);
            shard.ends.iter().for_each(|&end| hash.number(end));
        }
        Some(hash.finish())
    }

    fn key(&self, item: &StoredRecord) -> Option<Arc<str>> {
        shown(item)
    }
}

impl fmt::Debug for TfRecordFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TfRecordFile({} with {} records)", self.key, self.ends.len())
    }
}

impl fmt::Debug for TfRecordDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (records, files) = (self.offsets.total(), self.shards.len());
        write!(f, "TfRecordDataset({records} records in {files} files)")
    }
}
