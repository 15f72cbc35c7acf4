//! [`Footprint`] of records and their values.

use spdl_core::Footprint;

use crate::records::{FieldValue, PartialFile, Record};

impl Footprint for FieldValue {
    fn footprint(&self) -> usize {
        let heap = match self {
            FieldValue::Bytes(bytes) => bytes.len(),
            FieldValue::Parts(file) => {
                size_of::<PartialFile>()
                    + usize::try_from(file.bytes_in_memory()).unwrap_or(usize::MAX)
            }
            FieldValue::Text(text) => text.len(),
            FieldValue::Integers(numbers) => size_of_val(&numbers[..]),
            FieldValue::Floats(numbers) => size_of_val(&numbers[..]),
            FieldValue::List(fields) => fields.iter().map(Footprint::footprint).sum(),
            FieldValue::Array(array) => array.data().len() + size_of_val(array.shape()),
            FieldValue::Json(value) => json_heap(value),
            FieldValue::Bool(_)
            | FieldValue::Integer(_)
            | FieldValue::Float(_)
            | FieldValue::Null => 0,
        };
        size_of::<Self>() + heap
    }
}

impl Footprint for Record {
    fn footprint(&self) -> usize {
        let fields = self.fields.iter();
        size_of::<Self>()
            + self.key.as_bytes().len()
            + fields.map(|(name, value)| name.footprint() + value.footprint()).sum::<usize>()
    }
}

/// The heap memory of a JSON value, in bytes.
fn json_heap(value: &serde_json::Value) -> usize {
    use serde_json::Value;
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => {
            values.iter().map(|value| size_of::<Value>() + json_heap(value)).sum()
        }
        Value::Object(members) => members
            .iter()
            .map(|(name, value)| {
                size_of::<String>() + name.len() + size_of::<Value>() + json_heap(value)
            })
            .sum(),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    }
}
