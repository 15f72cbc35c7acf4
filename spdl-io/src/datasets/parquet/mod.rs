//! [`ParquetDataset`]: the rows of Parquet files.
//!
//! | file | what it holds |
//! |---|---|
//! | `footer` | the footer of a file: its schema and row groups |
//! | `schema` | columns as fields of a sample |
//! | `pages` | checks of page headers before anything is decompressed |
//! | `column` | a decoded column chunk, and its values |
//! | `thrift` | the Thrift compact protocol |

mod column;
mod footer;
mod pages;
mod schema;
mod thrift;
mod values;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
#[cfg(feature = "local")]
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use parquet::basic::ConvertedType;
use spdl_core::{Dataset, Error, ErrorKind, Result};

use self::column::ColumnPart;
use self::footer::{Footer, RowGroup};
use self::schema::{ColumnKind, ParquetColumn};
use super::common::{ContentHash, is_address, no_labels, row_key, with_context};
use super::patterns::FilePatterns;
use super::sharded::{Shard, Sharded, Shards, impl_dataset, impl_openers, read_files};
use crate::fetch::{Fetcher, Key};
use crate::layers::{PartCache, default_part_cache_bytes};
use crate::records::field_sizes::{FieldSizes, size_of_field};
use crate::records::{FieldRequest, FieldValue, PackedRows, StoredRecord};

/// The rows of Parquet files, such as those of Hugging Face's `datasets`.
///
/// - Opening reads the footer of each file.
/// - Each requested column of a row group is read by one range request. Concurrent reads share the work, and
///   the decoded columns are buffered up to [`ParquetOptions::cache_bytes`].
/// - Samples of one row group should be read close together: pass
///   [`shard_lens`](ParquetDataset::shard_lens) to a
///   [`ShardWindow`](spdl_core::source::sampler::ShardWindow), whose size limits the number of open row
///   groups.
///
/// | column | field |
/// |---|---|
/// | an image of Hugging Face: a group of `bytes` and `path` | [`FieldValue::Bytes`] with the name of the group: the bytes, or, if they are null, the content of the file `path`; [`FieldValue::Text`] with the suffix `.path` |
/// | binary, of fixed or variable length | [`FieldValue::Bytes`] |
/// | string, enum; JSON | [`FieldValue::Text`]; [`FieldValue::Json`] |
/// | boolean; integers of 8 to 64 bits; floats of 16 to 64 | [`FieldValue::Bool`]; [`FieldValue::Integer`]; [`FieldValue::Float`] |
/// | dates and times | [`FieldValue::Integer`]: days, or the units of the column |
/// | lists of these | [`FieldValue::Integers`], [`FieldValue::Floats`]; with nulls, or of other types, [`FieldValue::List`] |
/// | members of other groups | one field each, with names joined by dots |
/// | null | [`FieldValue::Null`] |
///
/// The file of an image is read from the same store, at a path that is relative to the folder of the Parquet file. On
/// the local file system, the path may be absolute. Addresses are not supported. Caches of samples do not notice that such
/// a file has changed.
///
/// Decimals, nested lists and 96-bit timestamps are not supported: such columns are omitted, or
/// fail with `Unsupported` if they are requested by name. Reading a column with the encoding
/// `DELTA_BYTE_ARRAY` always fails with `Unsupported`. Pages may be compressed with Snappy, gzip,
/// Brotli, LZ4 or Zstandard. Page checksums are verified if present.
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
    /// The row groups of all files.
    shards: Shards<Arc<ParquetGroup>>,
    files: usize,
}

/// Options of [`ParquetDataset`].
#[derive(Clone, Debug)]
pub struct ParquetOptions {
    cache_bytes: u64,
    max_column_bytes: u64,
    concurrency: usize,
}

impl Default for ParquetOptions {
    fn default() -> Self {
        ParquetOptions {
            cache_bytes: default_part_cache_bytes(),
            max_column_bytes: 1 << 30,
            concurrency: 8,
        }
    }
}

impl ParquetOptions {
    /// Sets the maximum size of the cache of decoded columns, in bytes. Default: an eighth of the
    /// [usable memory](spdl_core::memory::usable_memory), at most 1 GiB.
    ///
    /// The cache keeps the column that was read last, even if it exceeds the limit. For a shuffled
    /// epoch, all open row groups should fit; otherwise columns are read repeatedly.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Sets the maximum size of a column chunk, compressed or decompressed, in bytes. Default: 1 GiB.
    #[must_use]
    pub fn max_column_bytes(mut self, bytes: u64) -> Self {
        self.max_column_bytes = bytes;
        self
    }

    /// Sets how many files are opened concurrently; 0 means 1. Default: 8.
    #[must_use]
    pub fn concurrency(mut self, files: usize) -> Self {
        self.concurrency = files.max(1);
        self
    }

    #[expect(clippy::unused_self, reason = "the same call for all data sets")]
    fn patterns(&self) -> FilePatterns<'static> {
        FilePatterns { in_folder: "*.parquet", index_suffix: None }
    }
}

impl_openers! {
    ParquetDataset, ParquetOptions, "`*.parquet` files", #[cfg(feature = "local")];
    /// Opens files of a store, in this order. The files may have different columns.
    ///
    /// # Errors
    /// - `InvalidArgument` for an empty list.
    /// - `Corrupt` for an invalid Parquet file.
    /// - `LimitExceeded` for a footer of more than 64 MiB.
    /// - `Unsupported` for encrypted files, and for a fetcher without sizes or range requests.
    /// - The errors of the fetcher.
}

impl ParquetDataset {
    async fn fetch_keys(
        fetcher: &Arc<dyn Fetcher>,
        files: Vec<Key>,
        options: &ParquetOptions,
    ) -> Result<Self> {
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
        let footers = read_files(files, "Parquet files", options.concurrency, read).await?;
        let files = footers.len();
        let mut groups = Vec::new();
        for (key, footer) in footers {
            let is_supported =
                |column: &&ParquetColumn| !matches!(column.kind, ColumnKind::Unsupported(_));
            let names = footer.columns.iter().filter(is_supported);
            let names = names.map(|column| Arc::clone(&column.name)).collect();
            let Footer { columns, structs, groups: of_file, classes } = footer;
            let file = Arc::new(ParquetFile { key, names, columns, structs, classes });
            let mut first_row = 0_u64;
            for (number, rows) in of_file.into_iter().enumerate() {
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
        Ok(ParquetDataset { shards: Shards::new(groups)?, files })
    }
}

#[derive(Debug)]
struct ParquetFile {
    key: Key,
    /// The names of the supported columns.
    names: Vec<Arc<str>>,
    columns: Vec<ParquetColumn>,
    structs: Vec<(Arc<str>, &'static str)>,
    classes: HashMap<String, Vec<String>>,
}

/// A row group of a file.
pub(super) struct ParquetGroup {
    /// The position among the row groups of all files.
    place: usize,
    /// The position in the file.
    number: usize,
    /// The number of its first row in the file.
    first_row: u64,
    rows: RowGroup,
    max_bytes: u64,
    file: Arc<ParquetFile>,
    /// Keyed by row group and column.
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
                // Errors name the row group, the column and the offset in the file.
                let located = |error: Error| {
                    let offset = start + error.offset().unwrap_or_default();
                    with_context(error, &format!("row group {group}, column {name}"))
                        .with_offset(offset)
                        .with_key(file.key.display_name())
                };
                let len = chunk.end - start;
                if len > max_bytes {
                    let message =
                        format!("size of {len} bytes exceeds the limit of {max_bytes} bytes");
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

    /// The positions of the requested columns in the file. `key` names the sample in an error.
    fn wanted(&self, request: &FieldRequest, key: &Arc<str>) -> Result<Vec<usize>> {
        let mut wanted = Vec::new();
        for (at, column) in self.file.columns.iter().enumerate() {
            match column.kind {
                _ if !request.wants(&column.name) => {}
                ColumnKind::Unsupported(why) if request.names().is_some() => {
                    return Err(unsupported(column, why).with_key(Arc::clone(key)));
                }
                ColumnKind::Unsupported(_) => {}
                _ => wanted.push(at),
            }
        }
        Ok(wanted)
    }

    fn row_key(&self, row: u64) -> Arc<str> {
        row_key(&self.file.key, self.first_row.saturating_add(row)).display_name()
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

    fn unsupported(&self, name: &str) -> Option<Error> {
        let ParquetFile { columns, structs, key, .. } = &*self.file;
        let error = match columns.iter().find(|column| *column.name == *name) {
            Some(column) => match column.kind {
                ColumnKind::Unsupported(why) => unsupported(column, why),
                _ => return None,
            },
            None => {
                let (_, type_name) = structs.iter().find(|(found, _)| **found == *name)?;
                let message = format!(
                    "cannot read column {name:?} of type {type_name}: {type_name}s are not supported"
                );
                Error::new(ErrorKind::Unsupported, message)
            }
        };
        Some(error.with_key(key.display_name()))
    }

    fn class_names(&self, name: &str) -> Option<&[String]> {
        self.file.classes.get(name).map(Vec::as_slice)
    }

    fn no_labels(&self, name: &str) -> Option<Error> {
        let column = self.file.columns.iter().find(|column| *column.name == *name)?;
        Some(no_labels(name, column.no_labels()?).with_key(self.file.key.display_name()))
    }

    async fn texts(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        name: &str,
        max_texts: usize,
    ) -> Result<Option<BTreeSet<String>>> {
        let has_name = |column: &ParquetColumn| *column.name == *name;
        let Some(at) = self.file.columns.iter().position(has_name) else { return Ok(None) };
        let column = &self.file.columns[at];
        let has_texts =
            matches!(column.kind, ColumnKind::Text | ColumnKind::Float | ColumnKind::Half);
        if !has_texts || column.item_level.is_some() {
            return Ok(None);
        }
        let mut texts = BTreeSet::new();
        let part = self.column(fetcher, at).await?;
        part.add_texts(&mut texts, max_texts).map_err(|error| {
            with_context(error, &format!("row group {}, column {name}", self.number))
                .with_key(self.file.key.display_name())
        })?;
        Ok(Some(texts))
    }

    async fn row_bytes(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        request: &FieldRequest,
    ) -> Result<Option<u64>> {
        let wanted = self.wanted(request, &self.row_key(row))?;
        let parts = try_join_all(wanted.iter().map(|at| self.column(fetcher, *at))).await?;
        // Values are copied from the decoded columns.
        Ok(Some(parts.iter().map(|part| part.field_bytes(row)).sum()))
    }

    async fn file_of(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        name: &str,
    ) -> Result<Option<Key>> {
        let path = format!("{name}.path");
        if !self.file.names.iter().any(|name| **name == *path) {
            return Ok(None);
        }
        // The limit of the request is for the file.
        let request = FieldRequest::all(u64::MAX).only([path]);
        match &self.read(fetcher, row, &request).await?[..] {
            [(_, FieldValue::Text(path))] if !path.is_empty() => {
                let file = named_file(&self.file.key, path);
                file.map(Some).map_err(|error| {
                    with_context(error, &format!("column {name}")).with_key(self.row_key(row))
                })
            }
            _ => Ok(None),
        }
    }

    async fn read(
        &self,
        fetcher: &Arc<dyn Fetcher>,
        row: u64,
        request: &FieldRequest,
    ) -> Result<Vec<(Arc<str>, FieldValue)>> {
        // Errors of values name the sample.
        let key = self.row_key(row);
        if row >= self.rows.rows {
            let message =
                format!("row {row} is out of range: the row group has {} rows", self.rows.rows);
            return Err(Error::new(ErrorKind::InvalidArgument, message).with_key(key));
        }
        let wanted = self.wanted(request, &key)?;
        let parts = try_join_all(wanted.iter().map(|at| self.column(fetcher, *at))).await?;
        let mut fields = Vec::with_capacity(wanted.len());
        let mut sizes = FieldSizes::new(request.max_bytes());
        for (at, part) in wanted.into_iter().zip(parts) {
            let column = &self.file.columns[at];
            let field = part.field(column, row).map_err(|error| {
                with_context(error, &format!("column {}", column.name)).with_key(Arc::clone(&key))
            })?;
            sizes.add(&column.name, size_of_field(&field));
            sizes.check().map_err(|error| error.with_key(Arc::clone(&key)))?;
            fields.push((Arc::clone(&column.name), field));
        }
        Ok(fields)
    }
}

/// The key of the file at `path`, which the rows of the object `rows` name.
///
/// # Errors
/// `Unsupported` if the file is in another store.
fn named_file(rows: &Key, path: &str) -> Result<Key> {
    let is_remote = rows.as_str().is_some_and(is_address);
    if is_address(path) || (is_remote && path.starts_with('/')) {
        let message = format!(
            "the bytes are null, and the path {path:?} is not in the store of the Parquet file: only files of the \
             same store are read; store the bytes of files"
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(Key::from_path(rows.to_path().with_file_name(path)))
}

/// The error for a column of an unsupported type. `why` is the plural noun of the type.
fn unsupported(column: &ParquetColumn, why: &str) -> Error {
    let (name, descriptor) = (&column.name, &column.descriptor);
    let physical = descriptor.physical_type();
    let stored = match descriptor.converted_type() {
        ConvertedType::NONE => physical.to_string(),
        converted => format!("{converted} ({physical})"),
    };
    let message = format!("cannot read column {name:?} of type {stored}: {why} not supported");
    Error::new(ErrorKind::Unsupported, message)
}

impl Shard for Arc<ParquetGroup> {
    fn rows(&self) -> u64 {
        self.rows.rows
    }
}

impl Sharded for ParquetDataset {
    type Shard = Arc<ParquetGroup>;

    fn sample(&self, shard: &Self::Shard, row: u64) -> Result<StoredRecord> {
        let group = Arc::clone(shard);
        let key = row_key(&group.file.key, group.first_row.saturating_add(row));
        Ok(StoredRecord::new(key).with_row(group, row))
    }

    fn content(&self) -> ContentHash {
        let mut hash = ContentHash::new("parquet");
        for group in self.shards.iter() {
            hash.name(&group.file.key);
            hash.number(group.rows.rows);
            group.rows.chunks.iter().for_each(|chunk| hash.number(chunk.end - chunk.start));
            if group.number == 0 {
                group.file.columns.iter().for_each(|column| hash.bytes(column.name.as_bytes()));
            }
        }
        hash
    }
}

impl_dataset!(
    ParquetDataset,
    "rows of each row group, in the order of the files",
    "the file names, their columns, and the rows and sizes of all row groups"
);

impl fmt::Debug for ParquetGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, file, rows) = (self.number, &self.file.key, self.rows.rows);
        write!(f, "ParquetGroup({number} of {file} with {rows} rows)")
    }
}

impl fmt::Debug for ParquetDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, groups) = (self.shards.total(), self.shards.len());
        write!(f, "ParquetDataset({rows} rows in {groups} row groups of {} files)", self.files)
    }
}
