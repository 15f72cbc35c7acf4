//! [`ArrowDataset`]: the rows of an Arrow table in memory.
//!
//! | file | what it holds |
//! |---|---|
//! | `schema` | columns as fields of a sample |
//! | `value` | values of arrays as fields |

mod schema;
mod value;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::NullBuffer;
use arrow_schema::Schema;
use async_trait::async_trait;
use spdl_core::{Dataset, Error, ErrorKind, Result};

use self::schema::{ArrowColumn, ArrowColumnKind};
use super::common::{
    ContentHash, HUGGING_FACE, class_names, is_address, no_labels, row_key, with_context,
};
use super::sharded::{Shard, Shards};
use crate::fetch::{Fetcher, Key};
use crate::records::field_sizes::{FieldSizes, size_of_field};
use crate::records::{Encoding, Extent, FieldRequest, FieldValue, PackedRows, StoredRecord};

/// The rows of an Arrow table, such as those of polars, pyarrow, DuckDB and Hugging Face's `datasets`.
///
/// The table is neither copied nor scanned: binary values share its memory. A row is found by binary search over
/// the record batches.
///
/// | column | field |
/// |---|---|
/// | a file of Hugging Face, such as an image: a struct of `bytes` and `path` | [`FieldValue::Bytes`]: the bytes, or, if they are null, the content of the local file `path`; [`FieldValue::Text`] with the suffix `.path` |
/// | binary, large, of fixed size, or views | [`FieldValue::Bytes`] |
/// | strings, large or views | [`FieldValue::Text`] |
/// | boolean; integers; floats | [`FieldValue::Bool`]; [`FieldValue::Integer`]; [`FieldValue::Float`] |
/// | dates, times, durations | [`FieldValue::Integer`]: days, or the units of the column |
/// | lists, large or of fixed size | [`FieldValue::Integers`], [`FieldValue::Floats`]; with nulls, or of other types, [`FieldValue::List`] |
/// | other structs, and lists of structs | [`FieldValue::Json`]; members of structs also as one field each, with names joined by dots |
/// | dictionaries | the field of their values |
/// | null | [`FieldValue::Null`] |
///
/// Decimals, intervals, unions, maps, list views, run-end encoded columns, and binary members of structs are not
/// supported: such columns are omitted, or fail with `Unsupported` if they are requested by name.
///
/// ```
/// use std::sync::Arc;
/// use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
/// use spdl_core::Dataset;
/// use spdl_io::datasets::ArrowDataset;
/// let columns: [(&str, ArrayRef); 2] = [
///     ("text", Arc::new(StringArray::from(vec!["a cat", "a dog"]))),
///     ("label", Arc::new(Int64Array::from(vec![0, 1]))),
/// ];
/// let batch = RecordBatch::try_from_iter(columns)?;
/// let samples = ArrowDataset::new("pets", &batch.schema(), vec![batch])?;
/// assert_eq!((samples.len(), samples.item(1)?.key.to_string()), (2, "pets:1".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ArrowDataset {
    /// One part for each table.
    parts: Shards<Arc<ArrowRows>>,
    hash: OnceLock<u64>,
}

/// The rows of a table that are samples.
struct ArrowRows {
    table: Arc<ArrowTable>,
    /// The row of each sample; `None` if the samples are all rows in their order.
    order: Option<Vec<u64>>,
}

/// The columns of all record batches.
struct ArrowTable {
    name: Key,
    columns: Vec<ArrowColumn>,
    /// The class names of `ClassLabel` columns of Hugging Face's `datasets`.
    classes: HashMap<String, Vec<String>>,
    /// The names of the supported columns.
    names: Vec<Arc<str>>,
    batches: Shards<ArrowBatch>,
}

/// A record batch: one cell for each column.
struct ArrowBatch {
    rows: u64,
    cells: Vec<ArrowCell>,
}

/// The values of a column in one record batch.
struct ArrowCell {
    values: ArrayRef,
    /// The nulls of the structs that contain the column.
    nulls: Option<NullBuffer>,
}

impl ArrowCell {
    /// # Errors
    /// `InvalidArgument` if the batch has no such column.
    fn of(batch: &RecordBatch, column: &ArrowColumn) -> Result<Self> {
        let mismatch = || {
            let message =
                format!("a record batch lacks the column {:?} of the schema", column.name);
            Error::new(ErrorKind::InvalidArgument, message)
        };
        let (first, members) = column.path.split_first().ok_or_else(mismatch)?;
        let mut values = batch.columns().get(*first).ok_or_else(mismatch)?;
        let mut nulls = None;
        for &member in members {
            nulls = NullBuffer::union(nulls.as_ref(), values.nulls());
            let structs = values.as_struct_opt().ok_or_else(mismatch)?;
            values = structs.columns().get(member).ok_or_else(mismatch)?;
        }
        if *values.data_type() != column.data_type {
            return Err(mismatch());
        }
        Ok(ArrowCell { values: Arc::clone(values), nulls })
    }

    fn is_null(&self, row: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
    }

    fn value(&self, row: usize) -> Result<FieldValue> {
        match self.is_null(row) {
            true => Ok(FieldValue::Null),
            false => value::value(&self.values, row),
        }
    }

    /// A member of a struct.
    fn member(&self, member: usize, row: usize) -> Result<FieldValue> {
        match self.values.as_struct_opt() {
            Some(structs) if !self.is_null(row) && !structs.is_null(row) => {
                value::value(structs.column(member), row)
            }
            _ => Ok(FieldValue::Null),
        }
    }
}

impl Shard for ArrowBatch {
    fn rows(&self) -> u64 {
        self.rows
    }
}

impl Shard for Arc<ArrowRows> {
    fn rows(&self) -> u64 {
        self.len()
    }
}

impl ArrowDataset {
    /// The number of samples whose values are part of the [content hash](Dataset::content_hash).
    const HASHED_SAMPLES: u64 = 16;
    /// The number of bytes of a value that are part of the content hash.
    const HASHED_BYTES: usize = 1 << 16;

    /// The rows of record batches. `name` begins the keys of the samples: `NAME:ROW`.
    ///
    /// # Errors
    /// `InvalidArgument` if a batch does not have the columns of the schema.
    pub fn new(name: impl Into<Key>, schema: &Schema, batches: Vec<RecordBatch>) -> Result<Self> {
        let columns = schema::columns(schema);
        let of_batch = |batch: RecordBatch| {
            let cells = columns.iter().map(|column| ArrowCell::of(&batch, column));
            Ok(ArrowBatch { rows: batch.num_rows() as u64, cells: cells.collect::<Result<_>>()? })
        };
        let batches = batches.into_iter().map(of_batch).collect::<Result<_>>()?;
        let names = columns.iter().filter(|it| !matches!(it.kind, ArrowColumnKind::Unsupported(_)));
        let names = names.map(|column| Arc::clone(&column.name)).collect();
        let (name, batches) = (name.into(), Shards::new(batches)?);
        let metadata = schema.metadata().get(HUGGING_FACE);
        let classes = metadata.map_or_else(HashMap::new, |it| class_names(it));
        let table = Arc::new(ArrowTable { name, columns, classes, names, batches });
        ArrowDataset::of_parts(vec![Arc::new(ArrowRows { table, order: None })])
    }

    fn of_parts(parts: Vec<Arc<ArrowRows>>) -> Result<Self> {
        Ok(ArrowDataset { parts: Shards::new(parts)?, hash: OnceLock::new() })
    }

    /// The samples of several tables with the same columns, one table after another. The keys of samples are those
    /// in their tables.
    ///
    /// [`OpenedDataset::name_classes`](super::OpenedDataset::name_classes) compares the class names of the tables if
    /// [`shard_lens`](super::OpenedDataset::shard_lens) are those of this data set.
    ///
    /// # Errors
    /// `InvalidArgument`, with the names of both tables, if the names, types or order of their columns differ.
    pub fn concatenated<'a>(tables: impl IntoIterator<Item = &'a ArrowDataset>) -> Result<Self> {
        let parts = tables.into_iter().flat_map(|table| table.parts.iter().map(Arc::clone));
        let parts: Vec<Arc<ArrowRows>> = parts.collect();
        for part in parts.iter().skip(1) {
            check_same_columns(&parts[0].table, &part.table)?;
        }
        ArrowDataset::of_parts(parts)
    }

    /// The number of rows of each table.
    pub fn shard_lens(&self) -> Vec<u64> {
        self.parts.lens()
    }

    /// The data set with these rows of the table, in this order. A row may occur several times.
    ///
    /// # Errors
    /// `InvalidArgument` for a row that does not exist, and for [several tables](Self::concatenated).
    pub fn select(self, rows: Vec<u64>) -> Result<Self> {
        let [part] = self.parts.iter().as_slice() else {
            let message = "select rows of each table before the tables are concatenated";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let table = Arc::clone(&part.table);
        let total = table.batches.total();
        if let Some(row) = rows.iter().find(|row| **row >= total) {
            let message = format!("row {row} is out of range: the table has {total} rows");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        ArrowDataset::of_parts(vec![Arc::new(ArrowRows { table, order: Some(rows) })])
    }

    /// Whether all values are in memory: no sample has a file that must be read.
    pub fn is_in_memory(&self) -> bool {
        let is_in_memory = |(cell, column): (&ArrowCell, &ArrowColumn)| match column.kind {
            ArrowColumnKind::Files { bytes, .. } => {
                let structs = cell.values.as_struct_opt();
                structs.is_some_and(|structs| structs.column(bytes).null_count() == 0)
            }
            _ => true,
        };
        let mut tables = self.parts.iter().map(|part| &part.table);
        tables.all(|table| {
            let mut cells = table.batches.iter().flat_map(|it| it.cells.iter().zip(&table.columns));
            cells.all(is_in_memory)
        })
    }

    fn hash(&self) -> u64 {
        let mut hash = ContentHash::new("arrow");
        hash.number(self.len());
        let first = self.parts.iter().next();
        let columns = first.map_or(&[][..], |part| &part.table.columns);
        columns.iter().for_each(|column| hash.bytes(column.name.as_bytes()));
        let samples = self.len().min(Self::HASHED_SAMPLES);
        for number in 0..samples {
            // Evenly spaced, from the first to the last.
            let span = u128::from(self.len() - 1);
            let index = span * u128::from(number) / u128::from(samples - 1).max(1);
            let Ok((part, index)) = self.parts.locate(index as u64) else { continue };
            let Ok((batch, row)) = part.locate(index) else { continue };
            for (cell, column) in batch.cells.iter().zip(columns) {
                let value = match column.kind {
                    // Their members are columns.
                    ArrowColumnKind::Files { bytes, .. } => cell.member(bytes, row),
                    ArrowColumnKind::Values => cell.value(row),
                    ArrowColumnKind::Unsupported(_) => continue,
                };
                add_to_hash(&mut hash, &value.unwrap_or(FieldValue::Null));
            }
        }
        hash.finish()
    }
}

impl ArrowRows {
    fn len(&self) -> u64 {
        self.order.as_ref().map_or(self.table.batches.total(), |order| order.len() as u64)
    }

    /// The record batch of a sample, and the row in it.
    ///
    /// # Errors
    /// `InvalidArgument` if `index` is out of range.
    fn locate(&self, index: u64) -> Result<(&ArrowBatch, usize)> {
        let out_of_range = || {
            let len = self.len();
            let message = format!("index {index} is out of range: the data set has {len} samples");
            Error::new(ErrorKind::InvalidArgument, message)
        };
        let row = match &self.order {
            None => index,
            Some(order) => {
                let row = usize::try_from(index).ok().and_then(|index| order.get(index));
                *row.ok_or_else(out_of_range)?
            }
        };
        let (batch, row) = self.table.batches.locate(row)?;
        Ok((batch, usize::try_from(row).map_err(|_| out_of_range())?))
    }

    /// The value of a column; `None` for a file that must be read.
    fn value_of(
        &self,
        cell: &ArrowCell,
        column: &ArrowColumn,
        row: usize,
    ) -> Result<Option<FieldValue>> {
        let name = &column.name;
        let value = match column.kind {
            ArrowColumnKind::Unsupported(_) => {
                return Err(self.unsupported(name).unwrap_or_else(internal));
            }
            ArrowColumnKind::Files { bytes, path } => match path_of(cell, bytes, path, row)? {
                None => cell.member(bytes, row),
                Some(path) if is_address(&path) => {
                    let message = format!(
                        "column {name:?} has no bytes, and its path is an address: only local files are read"
                    );
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                Some(_) => return Ok(None),
            },
            ArrowColumnKind::Values => cell.value(row),
        };
        value.map(Some).map_err(|error| with_context(error, &format!("column {name}")))
    }
}

/// # Errors
/// `InvalidArgument` if the columns of two tables differ.
fn check_same_columns(first: &ArrowTable, other: &ArrowTable) -> Result<()> {
    let is_same = |(a, b): (&ArrowColumn, &ArrowColumn)| {
        (&a.name, &a.path, a.kind) == (&b.name, &b.path, b.kind)
            && a.data_type.equals_datatype(&b.data_type)
    };
    let (mine, theirs) = (&first.columns, &other.columns);
    let pairs = mine.iter().zip(theirs);
    let at = pairs.take_while(|pair| is_same(*pair)).count();
    if at == mine.len().max(theirs.len()) {
        return Ok(());
    }
    let shown = |columns: &[ArrowColumn]| match columns.get(at) {
        Some(ArrowColumn { name, data_type, .. }) => format!("{name:?} of type {data_type}"),
        None => "absent".to_owned(),
    };
    let message = format!(
        "the columns of {} and {} differ: column {at} is {} and {}; open tables with other columns as separate \
         data sets",
        first.name,
        other.name,
        shown(mine),
        shown(theirs)
    );
    Err(Error::new(ErrorKind::InvalidArgument, message))
}

/// Adds the kind and the start of a value.
fn add_to_hash(hash: &mut ContentHash, value: &FieldValue) {
    hash.bytes(value.kind().as_bytes());
    let mut add = |bytes: &[u8]| {
        hash.number(bytes.len() as u64);
        hash.bytes(&bytes[..bytes.len().min(ArrowDataset::HASHED_BYTES)]);
    };
    match value {
        FieldValue::Bytes(bytes) => add(bytes),
        FieldValue::Text(text) => add(text.as_bytes()),
        FieldValue::Float(number) => hash.number(number.to_bits()),
        FieldValue::Floats(numbers) => {
            numbers.iter().for_each(|number| hash.number(number.to_bits()));
        }
        FieldValue::List(values) => values.iter().for_each(|value| add_to_hash(hash, value)),
        value => add(value.to_json().unwrap_or_default().to_string().as_bytes()),
    }
}

impl Dataset for ArrowDataset {
    type Item = StoredRecord;

    fn len(&self) -> u64 {
        self.parts.total()
    }

    fn item(&self, index: u64) -> Result<StoredRecord> {
        let (part, index) = self.parts.locate(index)?;
        let table = &part.table;
        let (batch, row) = part.locate(index)?;
        let mut record = StoredRecord::new(row_key(&table.name, index));
        for (cell, column) in batch.cells.iter().zip(&table.columns) {
            if let ArrowColumnKind::Files { bytes, path } = column.kind
                && let Some(path) = path_of(cell, bytes, path, row)?
                // Requests for the field fail.
                && !is_address(&path)
            {
                let file = Extent::whole(Key::from_path(&*path));
                record = record.with_stored(Arc::clone(&column.name), file, Encoding::Bytes);
            }
        }
        Ok(record.with_row(Arc::clone(part) as _, index))
    }

    /// A hash of the number of samples, the names of the columns, and the values of 16 samples, of each value
    /// at most 64 KiB.
    fn content_hash(&self) -> Option<u64> {
        Some(*self.hash.get_or_init(|| self.hash()))
    }

    fn key(&self, item: &StoredRecord) -> Option<Arc<str>> {
        Some(item.key.display_name())
    }
}

/// The path of a file that must be read; `None` if its bytes are in the table.
fn path_of(cell: &ArrowCell, bytes: usize, path: usize, row: usize) -> Result<Option<Arc<str>>> {
    let bytes = cell.values.as_struct_opt().map(|structs| structs.column(bytes));
    if !bytes.is_some_and(|bytes| bytes.is_null(row)) {
        return Ok(None);
    }
    match cell.member(path, row)? {
        FieldValue::Text(path) if !path.is_empty() => Ok(Some(path)),
        _ => Ok(None),
    }
}

#[async_trait]
impl PackedRows for ArrowRows {
    fn names(&self) -> &[Arc<str>] {
        &self.table.names
    }

    fn unsupported(&self, name: &str) -> Option<Error> {
        let column = self.table.columns.iter().find(|column| *column.name == *name)?;
        let ArrowColumnKind::Unsupported(why) = column.kind else { return None };
        let data_type = &column.data_type;
        let message =
            format!("cannot read column {name:?} of type {data_type}: {why} not supported");
        Some(Error::new(ErrorKind::Unsupported, message).with_key(self.table.name.display_name()))
    }

    fn class_names(&self, name: &str) -> Option<&[String]> {
        self.table.classes.get(name).map(Vec::as_slice)
    }

    fn no_labels(&self, name: &str) -> Option<Error> {
        let column = self.table.columns.iter().find(|column| *column.name == *name)?;
        Some(no_labels(name, column.no_labels()?).with_key(self.table.name.display_name()))
    }

    async fn texts(
        &self,
        _fetcher: &Arc<dyn Fetcher>,
        name: &str,
        max_texts: usize,
    ) -> Result<Option<BTreeSet<String>>> {
        let has_name = |column: &ArrowColumn| *column.name == *name;
        let Some(at) = self.table.columns.iter().position(has_name) else { return Ok(None) };
        let mut texts = BTreeSet::new();
        for batch in self.table.batches.iter() {
            let cell = &batch.cells[at];
            let is_null = |row| cell.is_null(row);
            let added = value::add_texts(&cell.values, is_null, &mut texts, max_texts);
            let added = added.map_err(|error| {
                with_context(error, &format!("column {name}"))
                    .with_key(self.table.name.display_name())
            })?;
            if !added {
                return Ok(None);
            }
        }
        Ok(Some(texts))
    }

    fn value(&self, row: u64, name: &str) -> Result<Option<FieldValue>> {
        let (batch, row) = self.locate(row)?;
        let mut columns = batch.cells.iter().zip(&self.table.columns);
        let found = columns.find(|(_, column)| *column.name == *name);
        found.map_or(Ok(None), |(cell, column)| self.value_of(cell, column, row))
    }

    async fn read(
        &self,
        _fetcher: &Arc<dyn Fetcher>,
        row: u64,
        request: &FieldRequest,
    ) -> Result<Vec<(Arc<str>, FieldValue)>> {
        let (batch, row) = self.locate(row)?;
        let mut fields = Vec::new();
        let mut sizes = FieldSizes::new(request.max_bytes());
        for (cell, column) in batch.cells.iter().zip(&self.table.columns) {
            if !request.wants(&column.name) {
                continue;
            }
            if request.names().is_none() && matches!(column.kind, ArrowColumnKind::Unsupported(_)) {
                continue;
            }
            // For a file that must be read, the sample has another field.
            let Some(value) = self.value_of(cell, column, row)? else { continue };
            sizes.add(&column.name, size_of_field(&value));
            sizes.check()?;
            fields.push((Arc::clone(&column.name), value));
        }
        Ok(fields)
    }
}

fn internal() -> Error {
    Error::new(ErrorKind::Internal, "a supported column was refused")
}

impl fmt::Debug for ArrowRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, columns) = (self.len(), self.table.columns.len());
        write!(f, "ArrowRows({rows} rows of {} with {columns} columns)", self.table.name)
    }
}

impl fmt::Debug for ArrowDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArrowDataset")?;
        f.debug_list().entries(self.parts.iter()).finish()
    }
}
