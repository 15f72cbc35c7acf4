//! A decoded column chunk, and its values as fields.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{CompressionCodec, Type as PhysicalType};
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArray,
    FixedLenByteArrayType, FloatType, Int32Type, Int64Type,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::serialized_reader::SerializedPageReader;
use spdl_core::{Error, ErrorKind, Result};

use super::pages::{self, CheckedPages};
use super::schema::{ColumnKind, ParquetColumn};
use crate::datasets::common::{half_to_f64, unsigned};
use crate::layers::CachedBytes;
use crate::records::{Encoding, FieldValue};

/// The number of rows that are decoded per call.
const STEP: usize = 4096;

/// The location and the compression of a column chunk.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) codec: CompressionCodec,
    pub(super) has_dictionary: bool,
    pub(super) values: i64,
}

/// A decoded column chunk.
pub(super) struct ColumnPart {
    rows: RowValues,
    values: ColumnValues,
    cached_bytes: u64,
}

/// The mapping from rows to values.
enum RowValues {
    /// One value per row.
    Required,
    /// One value per row, or [`NULL`].
    Optional(Vec<u32>),
    /// One list per row: `items` from one of the `starts` to the next.
    Lists { starts: Vec<u32>, items: Vec<u32> },
}

/// Markers instead of the index of a value: null, an empty list, a null list.
const NULL: u32 = u32::MAX;
const EMPTY: u32 = u32::MAX - 1;
const NO_LIST: u32 = u32::MAX - 2;

enum ColumnValues {
    Bools(Vec<bool>),
    Ints(Vec<i32>),
    Longs(Vec<i64>),
    Floats(Vec<f32>),
    Doubles(Vec<f64>),
    Bytes(Vec<ByteArray>),
    Fixed(Vec<FixedLenByteArray>),
}

impl CachedBytes for ColumnPart {
    fn cached_bytes(&self) -> u64 {
        self.cached_bytes
    }
}

impl ColumnPart {
    /// Decodes a chunk of `rows` rows. Offsets of errors are relative to the chunk.
    pub(super) fn decode(
        column: &ParquetColumn,
        chunk: &Chunk,
        bytes: Bytes,
        rows: u64,
        max_bytes: u64,
    ) -> Result<ColumnPart> {
        let page_bytes = pages::check(&bytes, &column.descriptor, rows, max_bytes)?;
        // The `parquet` crate may panic on a corrupt chunk.
        let decoded = catch_unwind(AssertUnwindSafe(|| decode(column, chunk, bytes, rows)));
        let mut part = decoded.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Corrupt, "inconsistent values in a Parquet column"))
        })?;
        part.cached_bytes += page_bytes;
        Ok(part)
    }

    /// The bytes of the binary values and texts of a row; 0 if there is no such row.
    pub(super) fn field_bytes(&self, row: u64) -> u64 {
        let Ok(row) = usize::try_from(row) else { return 0 };
        let items = match &self.rows {
            RowValues::Required => return self.value_bytes(row),
            RowValues::Optional(rows) => rows.get(row..).unwrap_or_default().get(..1),
            RowValues::Lists { starts, items } => starts
                .get(row..)
                .and_then(<[u32]>::first_chunk)
                .and_then(|&[start, end]| items.get(start as usize..end as usize)),
        };
        // The marks of missing values are beyond the last value.
        items.unwrap_or_default().iter().map(|&item| self.value_bytes(item as usize)).sum()
    }

    fn value_bytes(&self, at: usize) -> u64 {
        let len = match &self.values {
            ColumnValues::Bytes(values) => values.get(at).map(|value| value.len()),
            ColumnValues::Fixed(values) => values.get(at).map(|value| value.len()),
            _ => None,
        };
        len.unwrap_or_default() as u64
    }

    /// The value of a row.
    pub(super) fn field(&self, column: &ParquetColumn, row: u64) -> Result<FieldValue> {
        // The row is within the row group, but the pages of the column have fewer rows.
        let none = || Error::new(ErrorKind::Corrupt, format!("the column has no row {row}"));
        let row = usize::try_from(row).map_err(|_| none())?;
        match &self.rows {
            RowValues::Required => self.value(column.kind, row),
            RowValues::Optional(rows) => match *rows.get(row).ok_or_else(none)? {
                NULL => Ok(FieldValue::Null),
                value => self.value(column.kind, value as usize),
            },
            RowValues::Lists { starts, items } => {
                let [start, end] =
                    starts.get(row..).and_then(<[u32]>::first_chunk).ok_or_else(none)?;
                match items.get(*start as usize..*end as usize).ok_or_else(none)? {
                    [NO_LIST] => Ok(FieldValue::Null),
                    [EMPTY] => self.list(column.kind, &[]),
                    items => self.list(column.kind, items),
                }
            }
        }
    }

    /// Adds the distinct texts of a column of texts or floating-point numbers. Fails if there are more than
    /// `max_texts`.
    pub(super) fn add_texts(&self, texts: &mut BTreeSet<String>, max_texts: usize) -> Result<()> {
        let mut add = |text: &str| {
            if !texts.contains(text) {
                texts.insert(text.to_owned());
                if texts.len() > max_texts {
                    let message = format!("more than {max_texts} distinct text values");
                    return Err(Error::new(ErrorKind::LimitExceeded, message));
                }
            }
            Ok(())
        };
        match &self.values {
            ColumnValues::Bytes(values) => values.iter().try_for_each(|value| {
                let text = std::str::from_utf8(value.data()).map_err(|error| {
                    Error::new(ErrorKind::Corrupt, "invalid UTF-8").with_source(error)
                })?;
                add(text)
            }),
            ColumnValues::Floats(values) => {
                let values = values.iter().map(|value| f64::from(*value));
                up_to_a_fraction(values).try_for_each(|value| add(&value.to_string()))
            }
            ColumnValues::Doubles(values) => up_to_a_fraction(values.iter().copied())
                .try_for_each(|value| add(&value.to_string())),
            ColumnValues::Fixed(values) => {
                let values = values.iter().map(|value| half(value.data()));
                let values = values.collect::<Result<Vec<_>>>()?;
                up_to_a_fraction(values.into_iter()).try_for_each(|value| add(&value.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn list(&self, kind: ColumnKind, items: &[u32]) -> Result<FieldValue> {
        let value = |item: &u32| match *item {
            NULL => Ok(FieldValue::Null),
            item => self.value(kind, item as usize),
        };
        let fields = items.iter().map(value).collect::<Result<Vec<FieldValue>>>()?;
        let is_whole = |kinds: &[ColumnKind]| kinds.contains(&kind) && !items.contains(&NULL);
        if is_whole(&[ColumnKind::Integer, ColumnKind::SmallUnsigned, ColumnKind::Unsigned]) {
            return Ok(FieldValue::Integers(
                fields.iter().filter_map(FieldValue::as_i64).collect(),
            ));
        }
        if is_whole(&[ColumnKind::Float, ColumnKind::Half]) {
            return Ok(FieldValue::Floats(fields.iter().filter_map(FieldValue::as_f64).collect()));
        }
        Ok(FieldValue::List(fields))
    }

    fn value(&self, kind: ColumnKind, at: usize) -> Result<FieldValue> {
        let field = match &self.values {
            ColumnValues::Bools(values) => values.get(at).map(|value| Ok(FieldValue::Bool(*value))),
            ColumnValues::Ints(values) => values.get(at).map(|value| match kind {
                ColumnKind::SmallUnsigned => Ok(FieldValue::Integer(i64::from(*value as u32))),
                _ => Ok(FieldValue::Integer((*value).into())),
            }),
            ColumnValues::Longs(values) => values.get(at).map(|value| match kind {
                ColumnKind::Unsigned => unsigned(*value as u64),
                _ => Ok(FieldValue::Integer(*value)),
            }),
            ColumnValues::Floats(values) => {
                values.get(at).map(|value| Ok(FieldValue::Float((*value).into())))
            }
            ColumnValues::Doubles(values) => {
                values.get(at).map(|value| Ok(FieldValue::Float(*value)))
            }
            ColumnValues::Bytes(values) => {
                values.get(at).map(|value| bytes_field(kind, value.data()))
            }
            ColumnValues::Fixed(values) => {
                values.get(at).map(|value| bytes_field(kind, value.data()))
            }
        };
        field.unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Corrupt, "the column has fewer values than rows"))
        })
    }
}

/// The numbers up to the first one that is not an integer, inclusive.
fn up_to_a_fraction(values: impl Iterator<Item = f64>) -> impl Iterator<Item = f64> {
    let mut ended = false;
    values.take_while(move |value| {
        let takes = !ended;
        ended |= value.fract() != 0.0;
        takes
    })
}

/// Copies the bytes, so that a sample does not keep the pages of its row group in memory.
fn bytes_field(kind: ColumnKind, bytes: &[u8]) -> Result<FieldValue> {
    let encoding = match kind {
        ColumnKind::Half => return half(bytes).map(FieldValue::Float),
        ColumnKind::Text => Encoding::Text,
        ColumnKind::Json => Encoding::Json,
        _ => Encoding::Bytes,
    };
    encoding.decode(Bytes::copy_from_slice(bytes))
}

fn half(bytes: &[u8]) -> Result<f64> {
    let bits = <[u8; 2]>::try_from(bytes)
        .map(u16::from_le_bytes)
        .map_err(|_| Error::new(ErrorKind::Corrupt, "a 16-bit float is not stored in 2 bytes"))?;
    Ok(half_to_f64(bits))
}

fn decode(column: &ParquetColumn, chunk: &Chunk, bytes: Bytes, rows: u64) -> Result<ColumnPart> {
    match column.descriptor.physical_type() {
        PhysicalType::BOOLEAN => typed::<BoolType>(column, chunk, bytes, rows, ColumnValues::Bools),
        PhysicalType::INT32 => typed::<Int32Type>(column, chunk, bytes, rows, ColumnValues::Ints),
        PhysicalType::INT64 => typed::<Int64Type>(column, chunk, bytes, rows, ColumnValues::Longs),
        PhysicalType::FLOAT => typed::<FloatType>(column, chunk, bytes, rows, ColumnValues::Floats),
        PhysicalType::DOUBLE => {
            typed::<DoubleType>(column, chunk, bytes, rows, ColumnValues::Doubles)
        }
        PhysicalType::BYTE_ARRAY => {
            typed::<ByteArrayType>(column, chunk, bytes, rows, ColumnValues::Bytes)
        }
        PhysicalType::FIXED_LEN_BYTE_ARRAY => {
            typed::<FixedLenByteArrayType>(column, chunk, bytes, rows, ColumnValues::Fixed)
        }
        PhysicalType::INT96 => {
            Err(Error::new(ErrorKind::Unsupported, "96-bit timestamps are not supported"))
        }
    }
}

fn typed<T: DataType>(
    column: &ParquetColumn,
    chunk: &Chunk,
    bytes: Bytes,
    rows: u64,
    wrap: fn(Vec<T::T>) -> ColumnValues,
) -> Result<ColumnPart> {
    let descriptor = &column.descriptor;
    // The reader sees only the chunk, at offset 0.
    let metadata = ColumnChunkMetaData::builder(Arc::clone(descriptor))
        .set_compression_codec(chunk.codec)
        .set_num_values(chunk.values)
        .set_total_compressed_size(bytes.len() as i64)
        .set_data_page_offset(0)
        .set_dictionary_page_offset(chunk.has_dictionary.then_some(0))
        .build()
        .map_err(failed)?;
    let row_count = usize::try_from(rows).map_err(|_| fewer(rows, 0))?;
    let pages =
        SerializedPageReader::new(Arc::new(bytes), &metadata, row_count, None).map_err(failed)?;
    let definition = descriptor.max_def_level();
    let pages = CheckedPages::new(pages, descriptor);
    let mut reader = ColumnReaderImpl::<T>::new(Arc::clone(descriptor), Box::new(pages));
    let (mut values, mut definitions, mut repetitions) = (Vec::new(), Vec::new(), Vec::new());
    let mut read = 0;
    while read < row_count {
        let step = STEP.min(row_count - read);
        let (records, _, levels) = reader
            .read_records(step, Some(&mut definitions), Some(&mut repetitions), &mut values)
            .map_err(failed)?;
        if records == 0 && levels == 0 {
            return Err(fewer(rows, read));
        }
        read += records;
    }
    let rows = match column.item_level {
        Some(item_level) => lists(&definitions, &repetitions, definition, item_level),
        None if definition > 0 => RowValues::Optional(numbered(&definitions, definition)),
        None => RowValues::Required,
    };
    let entries = match &rows {
        RowValues::Required => 0,
        RowValues::Optional(rows) => rows.len(),
        RowValues::Lists { starts, items } => starts.len() + items.len(),
    };
    let cached_bytes = (4 * entries + size_of::<T::T>() * values.len()) as u64;
    values.shrink_to_fit();
    Ok(ColumnPart { rows, values: wrap(values), cached_bytes })
}

/// The index of the value for each definition level, or [`NULL`].
fn numbered(definitions: &[i16], definition: i16) -> Vec<u32> {
    let mut next = 0;
    let number = |level: &i16| {
        if *level < definition {
            return NULL;
        }
        next += 1;
        next - 1
    };
    definitions.iter().map(number).collect()
}

fn lists(definitions: &[i16], repetitions: &[i16], definition: i16, item_level: i16) -> RowValues {
    let mut items = numbered(definitions, definition);
    let mut starts = Vec::new();
    for (at, (item, level)) in items.iter_mut().zip(definitions).enumerate() {
        if repetitions.get(at) == Some(&0) {
            starts.push(at as u32);
        }
        // One level below the items, the list exists and is empty.
        if *level < item_level {
            *item = if *level == item_level - 1 { EMPTY } else { NO_LIST };
        }
    }
    starts.push(items.len() as u32);
    RowValues::Lists { starts, items }
}

fn fewer(rows: u64, found: usize) -> Error {
    let message = format!("the column has {found} rows, but its row group has {rows}");
    Error::new(ErrorKind::Corrupt, message)
}

/// Converts an error of the `parquet` crate.
pub(super) fn failed(error: ParquetError) -> Error {
    match error {
        ParquetError::NYI(what) => {
            Error::new(ErrorKind::Unsupported, format!("unsupported Parquet feature: {what}"))
        }
        error => Error::new(ErrorKind::Corrupt, "corrupt Parquet file").with_source(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // promise: R1
    #[test]
    fn a_column_with_fewer_rows_than_its_group_is_corrupt() {
        let lists = |starts: &[u32], items: &[u32]| RowValues::Lists {
            starts: starts.to_vec(),
            items: items.to_vec(),
        };
        let column =
            |rows| ColumnPart { rows, values: ColumnValues::Ints(vec![7]), cached_bytes: 0 };
        let schema = parquet::schema::parser::parse_message_type("message a { optional int32 b; }");
        let schema = parquet::schema::types::SchemaDescriptor::new(Arc::new(schema.unwrap()));
        let [ref described] = super::super::schema::columns(&schema)[..] else { unreachable!() };
        for rows in [
            RowValues::Required,
            RowValues::Optional(vec![0]),
            lists(&[0, 1], &[0]),
            lists(&[0, 1, 9], &[0]),
        ] {
            let part = column(rows);
            assert!(part.field(described, 0).is_ok());
            let error = part.field(described, 1).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
    }
}
