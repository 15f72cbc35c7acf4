//! Values of Arrow arrays as fields.
//!
//! Offsets and indices of the arrays are checked, because the program that exported them need not have checked
//! them.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, ByteViewType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type,
    Int32Type, Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, GenericByteViewArray, OffsetSizeTrait};
use arrow_buffer::Buffer;
use arrow_schema::DataType;
use bytes::Bytes;
use serde_json::Value;
use spdl_core::{Error, ErrorKind, Result};

use super::schema::value_type;
use crate::datasets::common::unsigned;
use crate::records::{Encoding, FieldValue};

/// The value of a row, which exists. Bytes share the memory of the array.
pub(super) fn value(array: &dyn Array, row: usize) -> Result<FieldValue> {
    if array.is_null(row) {
        return Ok(FieldValue::Null);
    }
    if let Some((buffer, range)) = bytes_of(array, row)? {
        let bytes =
            Bytes::from_owner(SharedBytes(buffer.slice_with_length(range.start, range.len())));
        return match array.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                Encoding::Text.decode(bytes)
            }
            _ => Ok(FieldValue::Bytes(bytes)),
        };
    }
    Ok(match array.data_type() {
        DataType::Null => FieldValue::Null,
        DataType::Boolean => FieldValue::Bool(array.as_boolean().value(row)),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let values = dictionary.values();
            value(values, index_of(dictionary.keys(), row, values.len())?)?
        }
        DataType::Struct(fields) => {
            let columns = fields.iter().zip(array.as_struct().columns());
            let members = columns
                .map(|(field, column)| Ok((field.name().clone(), json(&value(column, row)?)?)));
            FieldValue::Json(Value::Object(members.collect::<Result<_>>()?))
        }
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            list(lists.values(), range_of(lists.value_offsets(), row, lists.values().len())?)?
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            list(lists.values(), range_of(lists.value_offsets(), row, lists.values().len())?)?
        }
        DataType::FixedSizeList(_, len) => {
            let lists = array.as_fixed_size_list();
            list(lists.values(), fixed_range(*len, row, lists.values().len())?)?
        }
        _ => match numbers(array, row..row + 1, Form::One)? {
            Some(number) => number,
            None => {
                let message = format!("values of type {} are not supported", array.data_type());
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        },
    })
}

/// The memory of an Arrow buffer.
struct SharedBytes(Buffer);

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The items of a list.
fn list(items: &dyn Array, range: Range<usize>) -> Result<FieldValue> {
    if has_structs(items.data_type()) {
        let items = range.map(|item| json(&value(items, item)?));
        return Ok(FieldValue::Json(Value::Array(items.collect::<Result<_>>()?)));
    }
    let has_nulls = items.nulls().is_some() && range.clone().any(|item| items.is_null(item));
    if !has_nulls && let Some(numbers) = numbers(items, range.clone(), Form::List)? {
        return Ok(numbers);
    }
    range.map(|item| value(items, item)).collect::<Result<_>>().map(FieldValue::List)
}

fn has_structs(data_type: &DataType) -> bool {
    match value_type(data_type) {
        DataType::Struct(_) => true,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            has_structs(item.data_type())
        }
        _ => false,
    }
}

fn json(value: &FieldValue) -> Result<Value> {
    value.to_json().ok_or_else(|| {
        let message = format!("a struct with {} is not supported", value.kind());
        Error::new(ErrorKind::Unsupported, message)
    })
}

/// Whether numbers are a list, or a single number.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    List,
    One,
}

impl Form {
    fn integers<T: Copy + Into<i64>>(self, values: &[T]) -> FieldValue {
        match (self, values) {
            (Form::One, [one]) => FieldValue::Integer((*one).into()),
            _ => FieldValue::Integers(values.iter().map(|&number| number.into()).collect()),
        }
    }

    fn floats<T: Copy + Into<f64>>(self, values: &[T]) -> FieldValue {
        match (self, values) {
            (Form::One, [one]) => FieldValue::Float((*one).into()),
            _ => FieldValue::Floats(values.iter().map(|&number| number.into()).collect()),
        }
    }
}

/// The numbers of rows without nulls; `None` if the type is not numeric.
fn numbers(array: &dyn Array, rows: Range<usize>, form: Form) -> Result<Option<FieldValue>> {
    fn of<T: ArrowPrimitiveType>(array: &dyn Array, rows: Range<usize>) -> &[T::Native] {
        &array.as_primitive::<T>().values()[rows]
    }
    Ok(Some(match array.data_type() {
        DataType::Int8 => form.integers(of::<Int8Type>(array, rows)),
        DataType::Int16 => form.integers(of::<Int16Type>(array, rows)),
        DataType::Int32 => form.integers(of::<Int32Type>(array, rows)),
        DataType::Int64 => form.integers(of::<Int64Type>(array, rows)),
        DataType::UInt8 => form.integers(of::<UInt8Type>(array, rows)),
        DataType::UInt16 => form.integers(of::<UInt16Type>(array, rows)),
        DataType::UInt32 => form.integers(of::<UInt32Type>(array, rows)),
        DataType::UInt64 => {
            let numbers = of::<UInt64Type>(array, rows)
                .iter()
                .map(|&number| Ok(unsigned(number)?.as_i64().unwrap_or_default()));
            form.integers(&numbers.collect::<Result<Vec<i64>>>()?)
        }
        DataType::Float16 => form.floats(of::<Float16Type>(array, rows)),
        DataType::Float32 => form.floats(of::<Float32Type>(array, rows)),
        DataType::Float64 => form.floats(of::<Float64Type>(array, rows)),
        DataType::Date32 | DataType::Time32(_) => {
            form.integers(&array.to_data().buffer::<i32>(0)[rows])
        }
        DataType::Date64
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_) => form.integers(&array.to_data().buffer::<i64>(0)[rows]),
        _ => return Ok(None),
    }))
}

/// The buffer and the range of the bytes of a text or a binary value; `None` for other types.
fn bytes_of(array: &dyn Array, row: usize) -> Result<Option<(&Buffer, Range<usize>)>> {
    fn of_offsets<'a, O: OffsetSizeTrait>(
        buffer: &'a Buffer,
        offsets: &[O],
        row: usize,
    ) -> Result<(&'a Buffer, Range<usize>)> {
        Ok((buffer, range_of(offsets, row, buffer.len())?))
    }
    Ok(Some(match array.data_type() {
        DataType::Utf8 => {
            let array = array.as_string::<i32>();
            of_offsets(array.values(), array.value_offsets(), row)?
        }
        DataType::LargeUtf8 => {
            let array = array.as_string::<i64>();
            of_offsets(array.values(), array.value_offsets(), row)?
        }
        DataType::Binary => {
            let array = array.as_binary::<i32>();
            of_offsets(array.values(), array.value_offsets(), row)?
        }
        DataType::LargeBinary => {
            let array = array.as_binary::<i64>();
            of_offsets(array.values(), array.value_offsets(), row)?
        }
        DataType::Utf8View => of_view(array.as_string_view(), row)?,
        DataType::BinaryView => of_view(array.as_binary_view(), row)?,
        DataType::FixedSizeBinary(size) => {
            let buffer = array.as_fixed_size_binary().values();
            (buffer, fixed_range(*size, row, buffer.len())?)
        }
        _ => return Ok(None),
    }))
}

/// The bytes of a view: inside the view, or in one of the data buffers.
fn of_view<T: ByteViewType>(
    array: &GenericByteViewArray<T>,
    row: usize,
) -> Result<(&Buffer, Range<usize>)> {
    /// Longer values are in a data buffer.
    const MAX_INLINE: usize = 12;
    let views = array.views();
    // Four 32-bit numbers: the length; the first bytes; the index of the data buffer; the offset in it.
    let view = *views.get(row).ok_or_else(inconsistent)?;
    let part = |at: u32| (view >> (32 * at)) as u32 as usize;
    let len = part(0);
    if len <= MAX_INLINE {
        let start = row * size_of::<u128>() + size_of::<u32>();
        return Ok((views.inner(), start..start + len));
    }
    let buffer = array.data_buffers().get(part(2)).ok_or_else(inconsistent)?;
    let (start, end) = (part(3), part(3).saturating_add(len));
    if end > buffer.len() {
        return Err(inconsistent());
    }
    Ok((buffer, start..end))
}

/// The range of a row, from offsets into `len` items.
fn range_of<O: OffsetSizeTrait>(offsets: &[O], row: usize, len: usize) -> Result<Range<usize>> {
    let ends = offsets.get(row..).and_then(|rest| rest.first_chunk::<2>());
    let ends = ends.and_then(|[start, end]| Some((start.to_usize()?, end.to_usize()?)));
    match ends {
        Some((start, end)) if start <= end && end <= len => Ok(start..end),
        _ => Err(inconsistent()),
    }
}

/// The range of a row, if each row has `size` of the `len` items.
fn fixed_range(size: i32, row: usize, len: usize) -> Result<Range<usize>> {
    let size = usize::try_from(size).map_err(|_| inconsistent())?;
    let start = row.checked_mul(size).ok_or_else(inconsistent)?;
    match start.checked_add(size) {
        Some(end) if end <= len => Ok(start..end),
        _ => Err(inconsistent()),
    }
}

/// The position in the values of a dictionary.
fn index_of(keys: &dyn Array, row: usize, len: usize) -> Result<usize> {
    let key = match numbers(keys, row..row + 1, Form::One)? {
        Some(FieldValue::Integer(key)) => usize::try_from(key).ok(),
        _ => None,
    };
    key.filter(|key| *key < len).ok_or_else(inconsistent)
}

fn inconsistent() -> Error {
    Error::new(ErrorKind::Corrupt, "invalid offset or index in an Arrow array")
}

/// Adds the distinct texts of a column of texts or floating-point numbers, as [`PackedRows::texts`] describes;
/// returns `false` for other types. Fails if there are more than `max_texts`.
///
/// [`PackedRows::texts`]: crate::records::PackedRows::texts
pub(super) fn add_texts(
    array: &dyn Array,
    is_null: impl Fn(usize) -> bool,
    texts: &mut BTreeSet<String>,
    max_texts: usize,
) -> Result<bool> {
    let mut add = |text: String| {
        texts.insert(text);
        if texts.len() > max_texts {
            let message = format!("more than {max_texts} distinct text values");
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        Ok(())
    };
    let rows = (0..array.len()).filter(|&row| !is_null(row) && !array.is_null(row));
    match value_type(array.data_type()) {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let (values, indices) = match array.as_any_dictionary_opt() {
                Some(dictionary) => (dictionary.values().as_ref(), Some(dictionary.keys())),
                None => (array, None),
            };
            let mut seen = HashSet::new();
            for row in rows {
                let row = match indices {
                    Some(keys) => index_of(keys, row, values.len())?,
                    None => row,
                };
                if let Some((buffer, range)) = bytes_of(values, row)?
                    && seen.insert(&buffer[range])
                    && let FieldValue::Text(text) = value(values, row)?
                {
                    add(text.as_ref().to_owned())?;
                }
            }
            Ok(true)
        }
        DataType::Float16 | DataType::Float32 | DataType::Float64 => {
            for row in rows {
                if let FieldValue::Float(number) = value(array, row)? {
                    add(number.to_string())?;
                    if number.fract() != 0.0 {
                        break;
                    }
                }
            }
            Ok(true)
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::BinaryViewArray;

    use super::*;

    #[test]
    fn offsets_and_indices_outside_their_values_are_corrupt() {
        assert_eq!(range_of(&[0_i32, 2, 5], 1, 5).unwrap(), 2..5);
        for (offsets, row) in [([0_i32, 2, 6], 1), ([0, 3, 2], 1), ([-1, 2, 5], 0), ([0, 2, 5], 2)]
        {
            let error = range_of(&offsets, row, 5).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{offsets:?}, row {row}");
        }
        assert_eq!(fixed_range(3, 1, 6).unwrap(), 3..6);
        assert!(fixed_range(3, 2, 8).is_err());
        assert!(fixed_range(-3, 0, 8).is_err());
        let keys = arrow_array::Int8Array::from(vec![0, 3, -1]);
        assert_eq!(index_of(&keys, 0, 3).unwrap(), 0);
        assert!(index_of(&keys, 1, 3).is_err());
        assert!(index_of(&keys, 2, 3).is_err());
        let views = BinaryViewArray::from(vec![&b"short"[..], b"longer than twelve bytes"]);
        for row in 0..2 {
            let (buffer, range) = of_view(&views, row).unwrap();
            assert_eq!(&buffer[range], views.value(row));
        }
        assert!(of_view(&views, 2).is_err());
    }
}
