//! Data sets in Parquet files.

mod column;
mod footer;
mod pages;
mod schema;
mod thrift;

use std::collections::BTreeSet;
use std::fmt;
#[cfg(feature = "local")]
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
#[cfg(feature = "local")]
use spdl_core::block_on;
use spdl_core::{Dataset, Error, ErrorKind, Result};

use self::column::ColumnPart;
use self::footer::RowGroup;
use self::schema::{ColumnKind, ParquetColumn};
#[cfg(feature = "local")]
use super::common::local_fetcher;
use super::common::{ContentHash, ShardOffsets, check_size, row_key, shown};
use super::part_cache::PartCache;
use super::patterns::{self, FilePatterns};
use crate::fetch::{Fetcher, Key};
use crate::records::{FieldRequest, FieldValue, PackedRows, StoredRecord};

/// What Parquet files are called.
const NAMES: FilePatterns<'static> = FilePatterns { in_folder: "*.parquet", index_suffix: None };

/// The rows of Parquet files, as Hugging Face's `datasets` and others write them.
///
/// Opening reads the end of each file, which says how many rows there are. Of a row group only the
/// columns that are asked for are read, each by one range; once for all who read it at the time, and
/// they are kept while there is room ([`ParquetOptions::cache_bytes`]). So samples of one row group
/// should be read near each other: [`shard_lens`](ParquetDataset::shard_lens) are the lengths for a
/// [`ShardWindow`](spdl_core::source::sampler::ShardWindow), whose window decides how many are open at once.
///
/// | column | field |
/// |---|---|
/// | an image, as Hugging Face has it: a group of `bytes` and `path` | [`FieldValue::Bytes`] under the group's name, and [`FieldValue::Text`] under that and `.path` |
/// | binary, of fixed or any length | [`FieldValue::Bytes`] |
/// | string, enum; JSON | [`FieldValue::Text`]; [`FieldValue::Json`] |
/// | boolean; integers of 8 to 64 bits; floats of 16 to 64 | [`FieldValue::Bool`]; [`FieldValue::Integer`]; [`FieldValue::Float`] |
/// | dates and times | [`FieldValue::Integer`]: days, or the units of the column |
/// | lists of these | [`FieldValue::Integers`], [`FieldValue::Floats`]; with nulls, or of others, [`FieldValue::List`] |
/// | members of other groups | a field each, the names joined by dots |
/// | null | [`FieldValue::Null`] |
///
/// Decimal numbers, lists of lists and times of 96 bits are left out, and `Unsupported` where they are
/// asked for by name; so is the encoding `DELTA_BYTE_ARRAY`. Pages may be compressed by Snappy, gzip,
/// Brotli, LZ4 or Zstandard. Checksums of pages are compared where there are any.
///
/// ```
/// use spdl_core::Dataset;
/// use spdl_io::datasets::ParquetDataset;
/// # #[cfg(feature = "local")] {
/// # let pattern = "tests/data/parquet/{images,images}.parquet";
/// let samples = ParquetDataset::open(pattern)?; // "data/train-*.parquet"
/// println!("{} samples in {} row groups", samples.len(), samples.shard_lens().len());
/// println!("{:?}", samples.item(0)?.names().collect::<Vec<_>>());
/// # assert_eq!(samples.len(), 20);
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct ParquetDataset {
    groups: Vec<Arc<ParquetGroup>>,
    offsets: ShardOffsets,
    files: usize,
}

/// How Parquet files are opened and read.
#[derive(Clone, Debug)]
pub struct ParquetOptions {
    cache_bytes: u64,
    max_column_bytes: u64,
    concurrency: usize,
}

impl Default for ParquetOptions {
    fn default() -> Self {
        ParquetOptions { cache_bytes: 1 << 30, max_column_bytes: 1 << 30, concurrency: 8 }
    }
}

impl ParquetOptions {
    /// How many bytes of columns of row groups, decompressed, are kept for the next sample; the one used
    /// last is kept in any case. Default: 1 GiB. Where samples are shuffled, all row groups that are
    /// open at once should fit: else they are read again and again.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// The largest column of a row group that is read, in bytes, compressed or decompressed. Default:
    /// 1 GiB.
    #[must_use]
    pub fn max_column_bytes(mut self, bytes: u64) -> Self {
        self.max_column_bytes = bytes;
        self
    }

    /// How many files are opened at once, at least 1. Default: 8.
    #[must_use]
    pub fn concurrency(mut self, files: usize) -> Self {
        self.concurrency = files.max(1);
        self
    }
}

impl ParquetDataset {
    /// The files of this machine that `pattern` means, as for
    /// [`WebDataset::open`](super::WebDataset::open); of a folder, all its `*.parquet`. Waits until
    /// they are opened: async code calls [`fetch`](ParquetDataset::fetch).
    ///
    /// # Errors
    /// As [`fetch_files`](ParquetDataset::fetch_files); `NotFound` where the pattern means no files;
    /// as [`expand_braces`](super::expand_braces).
    #[cfg(feature = "local")]
    pub fn open(pattern: &str) -> Result<Self> {
        ParquetDataset::open_with(pattern, &ParquetOptions::default())
    }

    /// The same with options of the caller's.
    ///
    /// # Errors
    /// As [`open`](ParquetDataset::open).
    #[cfg(feature = "local")]
    pub fn open_with(pattern: &str, options: &ParquetOptions) -> Result<Self> {
        let files = patterns::local_keys(pattern, &NAMES)?;
        block_on(ParquetDataset::fetch_files(&local_fetcher(), files, options))
    }

    /// These files of this machine, in this order.
    ///
    /// # Errors
    /// As [`open`](ParquetDataset::open); `InvalidArgument` where there are none.
    #[cfg(feature = "local")]
    pub fn open_files<P: AsRef<Path>>(
        paths: impl IntoIterator<Item = P>,
        options: &ParquetOptions,
    ) -> Result<Self> {
        let files: Vec<_> = paths.into_iter().map(Key::from_path).collect();
        block_on(ParquetDataset::fetch_files(&local_fetcher(), files, options))
    }

    /// The files of a store that `pattern` means, as for [`open`](ParquetDataset::open); a folder ends with a
    /// slash here. It, `*` and `?` need a store that lists.
    ///
    /// # Errors
    /// As [`fetch_files`](ParquetDataset::fetch_files), and `NotFound` where the pattern means no files.
    pub async fn fetch(
        fetcher: &Arc<dyn Fetcher>,
        pattern: &str,
        options: &ParquetOptions,
    ) -> Result<Self> {
        let files = patterns::stored_keys(&**fetcher, pattern, &NAMES).await?;
        ParquetDataset::fetch_files(fetcher, files, options).await
    }

    /// These files of a store, whose rows follow each other in this order. They need not have the same
    /// columns.
    ///
    /// # Errors
    /// `InvalidArgument` where there are no files; `Corrupt` for what is no Parquet file or contradicts
    /// itself; `LimitExceeded` where a file's description is longer than 64 MiB; `Unsupported` for
    /// encrypted files, and for a fetcher that tells no sizes or reads no ranges; what the fetcher
    /// answers.
    pub async fn fetch_files(
        fetcher: &Arc<dyn Fetcher>,
        files: impl IntoIterator<Item = impl Into<Key>>,
        options: &ParquetOptions,
    ) -> Result<Self> {
        let files: Vec<Key> = files.into_iter().map(Into::into).collect();
        if files.is_empty() {
            let message = "the list of Parquet files is empty";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let file_count = files.len();
        let parts = Arc::new(PartCache::new(options.cache_bytes));
        let threads = &parts.threads();
        let read = |key: Key| async move {
            let read = async {
                let (data_end, footer) = footer::read(fetcher, &key).await?;
                let parse = move || {
                    footer::parse(&footer, data_end).map_err(|error| error.with_offset(data_end))
                };
                threads.run(parse).await
            };
            let footer = read.await.map_err(|error| error.with_key(key.display_name()))?;
            Ok::<_, Error>((key, footer))
        };
        let footers: Vec<_> =
            stream::iter(files).map(read).buffered(options.concurrency).try_collect().await?;
        let mut groups = Vec::new();
        for (key, footer) in footers {
            let is_supported =
                |column: &&ParquetColumn| !matches!(column.kind, ColumnKind::Unsupported(_));
            let names = footer.columns.iter().filter(is_supported);
            let names = names.map(|column| Arc::clone(&column.name)).collect();
            let file = Arc::new(ParquetFile { key, names, columns: footer.columns });
            let mut first_row = 0_u64;
            for (number, rows) in footer.groups.into_iter().enumerate() {
                let next = first_row.saturating_add(rows.rows);
                groups.push(Arc::new(ParquetGroup {
                    place: groups.len(),
                    number,
                    first_row,
                    rows,
                    max_bytes: options.max_column_bytes,
                    file: Arc::clone(&file),
                    parts: Arc::clone(&parts),
                }));
                first_row = next;
            }
        }
        let offsets = ShardOffsets::new(groups.iter().map(|group| group.rows.rows))?;
        Ok(ParquetDataset { groups, offsets, files: file_count })
    }

    /// How many rows each row group holds, those of the first file first: for
    /// [`ShardWindow`](spdl_core::source::sampler::ShardWindow).
    pub fn shard_lens(&self) -> Vec<u64> {
        self.offsets.lens()
    }
}

#[derive(Debug)]
struct ParquetFile {
    key: Key,
    /// Those of the columns that can be read.
    names: Vec<Arc<str>>,
    columns: Vec<ParquetColumn>,
}

/// A row group of a file.
struct ParquetGroup {
    /// Its place among those of all files.
    place: usize,
    /// Its place in the file.
    number: usize,
    /// The number of its first row in the file.
    first_row: u64,
    rows: RowGroup,
    max_bytes: u64,
    file: Arc<ParquetFile>,
    /// By row group and column.
    parts: Arc<PartCache<(usize, usize), ColumnPart>>,
}

impl ParquetGroup {
    async fn column(&self, fetcher: &Arc<dyn Fetcher>, at: usize) -> Result<Arc<ColumnPart>> {
        let leaf = self.file.columns[at].leaf;
        let read = || {
            let (fetcher, file) = (Arc::clone(fetcher), Arc::clone(&self.file));
            let chunk = self.rows.chunks[leaf].clone();
            let (rows, max_bytes, threads) = (self.rows.rows, self.max_bytes, self.parts.threads());
            let group = self.number;
            async move {
                let start = chunk.start;
                let name = file.columns[at].name.clone();
                // Errors of what is in the file tell where: the row group, the column, the byte.
                let located = |error: Error| {
                    let message = format!("row group {group}, column {name}: {}", error.message());
                    let offset = start + error.offset().unwrap_or_default();
                    let located = Error::new(error.kind(), message).with_offset(offset);
                    match std::error::Error::source(&error) {
                        Some(cause) => located.with_source(cause.to_string()),
                        None => located,
                    }
                    .with_key(file.key.display_name())
                };
                let len = chunk.end - start;
                if len > max_bytes {
                    let message = format!("{len} bytes, of {max_bytes} allowed");
                    return Err(located(Error::new(ErrorKind::LimitExceeded, message)));
                }
                let bytes = fetcher.read(&file.key, Some(start..chunk.end)).await?;
                let columns = Arc::clone(&file);
                let decode = move || {
                    let column = &columns.columns[at];
                    ColumnPart::decode(column, &chunk, bytes, rows, max_bytes)
                };
                threads.run(decode).await.map_err(located)
            }
        };
        self.parts.get((self.place, leaf), read).await
    }
}

#[async_trait]
impl PackedRows for ParquetGroup {
    fn names(&self) -> &[Arc<str>] {
        &self.file.names
    }

    fn object(&self) -> Option<&Key> {
        Some(&self.file.key)
    }

    async fn texts(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        name: &str,
        most: usize,
    ) -> Result<Option<BTreeSet<String>>> {
        let is_meant = |column: &ParquetColumn| *column.name == *name;
        let Some(at) = self.file.columns.iter().position(is_meant) else { return Ok(None) };
        let column = &self.file.columns[at];
        if column.kind != ColumnKind::Text || column.item_level.is_some() {
            return Ok(None);
        }
        let mut texts = BTreeSet::new();
        let part = self.column(fetcher, at).await?;
        part.add_texts(&mut texts, most).map_err(|error| {
            let message = format!("row group {}, column {name}: {}", self.number, error.message());
            Error::new(error.kind(), message).with_key(self.file.key.display_name())
        })?;
        Ok(Some(texts))
    }

    async fn read(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        request: &FieldRequest,
    ) -> Result<Vec<(Arc<str>, FieldValue)>> {
        // Errors of a value name the sample.
        let key = row_key(&self.file.key, self.first_row.saturating_add(row)).display_name();
        if row >= self.rows.rows {
            let message = format!("row {row} of {} in a row group", self.rows.rows);
            return Err(Error::new(ErrorKind::InvalidArgument, message).with_key(key));
        }
        let mut wanted = Vec::new();
        for (at, column) in self.file.columns.iter().enumerate() {
            match column.kind {
                _ if !request.wants(&column.name) => {}
                ColumnKind::Unsupported(why) if request.names().is_some() => {
                    let message = format!("the column {} cannot be read: {why}", column.name);
                    return Err(Error::new(ErrorKind::Unsupported, message).with_key(key));
                }
                ColumnKind::Unsupported(_) => {}
                _ => wanted.push(at),
            }
        }
        let parts = try_join_all(wanted.iter().map(|at| self.column(fetcher, *at))).await?;
        let mut fields = Vec::with_capacity(wanted.len());
        let mut bytes = 0_u64;
        for (at, part) in wanted.into_iter().zip(parts) {
            let column = &self.file.columns[at];
            let field = part.field(column, row).map_err(|error| {
                let message = format!("column {}: {}", column.name, error.message());
                Error::new(error.kind(), message).with_key(Arc::clone(&key))
            })?;
            bytes = bytes.saturating_add(size_of_field(&field));
            check_size(bytes, request.max_bytes())
                .map_err(|error| error.with_key(Arc::clone(&key)))?;
            fields.push((Arc::clone(&column.name), field));
        }
        Ok(fields)
    }
}

/// How many bytes a value takes, about.
fn size_of_field(field: &FieldValue) -> u64 {
    match field {
        FieldValue::Bytes(bytes) => bytes.len() as u64,
        FieldValue::Text(text) => text.len() as u64,
        FieldValue::Integers(list) => 8 * list.len() as u64,
        FieldValue::Floats(list) => 8 * list.len() as u64,
        FieldValue::List(list) => list.iter().map(size_of_field).sum(),
        _ => 8,
    }
}

impl Dataset for ParquetDataset {
    type Item = StoredRecord;

    fn len(&self) -> u64 {
        self.offsets.total()
    }

    fn item(&self, index: u64) -> Result<StoredRecord> {
        let (group, row) = self.offsets.locate(index)?;
        let group = Arc::clone(&self.groups[group]);
        let key = row_key(&group.file.key, group.first_row.saturating_add(row));
        Ok(StoredRecord::new(key).with_row(group, row))
    }

    /// Of the names of the files, without their folders, their columns, and the rows and sizes of all
    /// row groups.
    fn content_hash(&self) -> Option<u64> {
        let mut hash = ContentHash::new("parquet");
        for group in &self.groups {
            hash.name(&group.file.key);
            hash.number(group.rows.rows);
            group.rows.chunks.iter().for_each(|chunk| hash.number(chunk.end - chunk.start));
            if group.number == 0 {
                group.file.columns.iter().for_each(|column| hash.bytes(column.name.as_bytes()));
            }
        }
        Some(hash.finish())
    }

    fn key(&self, item: &StoredRecord) -> Option<Arc<str>> {
        shown(item)
    }
}

impl fmt::Debug for ParquetGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, file, rows) = (self.number, &self.file.key, self.rows.rows);
        write!(f, "ParquetGroup({number} of {file} with {rows} rows)")
    }
}

impl fmt::Debug for ParquetDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, groups) = (self.offsets.total(), self.groups.len());
        write!(f, "ParquetDataset({rows} rows in {groups} row groups of {} files)", self.files)
    }
}
