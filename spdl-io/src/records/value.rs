//! [`FieldValue`] and [`Encoding`]: the values of fields, and how bytes encode them.

use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use crate::archive::NpyArray;
use crate::records::PartialFile;

/// The decoded value of one field of a sample.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue {
    /// Raw bytes: an encoded image, audio, or another format that a later stage decodes.
    Bytes(Bytes),
    /// A file of which only the parts that the sample needs are in memory: see
    /// [`FetchFields::select_parts`](super::FetchFields::select_parts).
    Parts(Arc<PartialFile>),
    /// Text.
    Text(Arc<str>),
    /// A boolean.
    Bool(bool),
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Float(f64),
    /// A list of integers.
    Integers(Vec<i64>),
    /// A list of floating-point numbers.
    Floats(Vec<f64>),
    /// A list of values of any type.
    List(Vec<FieldValue>),
    /// A NumPy array.
    Array(NpyArray),
    /// A JSON value.
    Json(serde_json::Value),
    /// The field exists and is null.
    Null,
}

impl FieldValue {
    /// The type, for messages: `bytes`, `text`, `a list of integers`.
    pub fn kind(&self) -> &'static str {
        match self {
            FieldValue::Bytes(_) => "bytes",
            FieldValue::Parts(_) => "parts of a file",
            FieldValue::Text(_) => "text",
            FieldValue::Bool(_) => "a boolean",
            FieldValue::Integer(_) => "an integer",
            FieldValue::Float(_) => "a float",
            FieldValue::Integers(_) => "a list of integers",
            FieldValue::Floats(_) => "a list of floats",
            FieldValue::List(_) => "a list",
            FieldValue::Array(_) => "a NumPy array",
            FieldValue::Json(_) => "JSON",
            FieldValue::Null => "null",
        }
    }

    /// The value as JSON; `None` for bytes, parts of files and NumPy arrays. JSON has `null` in place of NaN and infinity.
    pub fn to_json(&self) -> Option<serde_json::Value> {
        Some(match self {
            FieldValue::Json(value) => value.clone(),
            FieldValue::Text(text) => (&**text).into(),
            FieldValue::Bool(value) => (*value).into(),
            FieldValue::Integer(value) => (*value).into(),
            FieldValue::Float(value) => (*value).into(),
            FieldValue::Integers(values) => values.clone().into(),
            FieldValue::Floats(values) => values.clone().into(),
            FieldValue::List(values) => {
                values.iter().map(FieldValue::to_json).collect::<Option<Vec<_>>>()?.into()
            }
            FieldValue::Null => serde_json::Value::Null,
            FieldValue::Bytes(_) | FieldValue::Parts(_) | FieldValue::Array(_) => return None,
        })
    }

    /// The bytes; `None` for any other type.
    pub fn as_bytes(&self) -> Option<&Bytes> {
        match self {
            FieldValue::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The text, or a JSON string; `None` for any other type.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            FieldValue::Text(text) => Some(text),
            FieldValue::Json(value) => value.as_str(),
            _ => None,
        }
    }

    /// The integer, or a JSON integer; `None` for any other type.
    pub fn as_i64(&self) -> Option<i64> {
        match self {
            FieldValue::Integer(number) => Some(*number),
            FieldValue::Json(value) => value.as_i64(),
            _ => None,
        }
    }

    /// The number, integer or floating point; `None` for any other type. Integers above 2⁵³ are
    /// rounded.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            FieldValue::Float(number) => Some(*number),
            FieldValue::Integer(number) => Some(*number as f64),
            FieldValue::Json(value) => value.as_f64(),
            _ => None,
        }
    }
}

/// How the stored bytes of a field encode its value.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Raw bytes: [`FieldValue::Bytes`].
    Bytes,
    /// UTF-8 text, unchanged, including line ends: [`FieldValue::Text`].
    Text,
    /// A decimal integer; surrounding white space is ignored: [`FieldValue::Integer`].
    Integer,
    /// JSON of at most 127 nesting levels: [`FieldValue::Json`].
    Json,
    /// A NumPy array in the `.npy` format: [`FieldValue::Array`].
    Npy,
    /// A Python pickle. Decoding always fails with `Unsupported`, because unpickling executes code
    /// from the file. To get the bytes, use [`Encoding::Bytes`].
    Pickle,
}

impl Encoding {
    /// Decodes a value. `Bytes` and arrays share the memory of `bytes`.
    ///
    /// ```
    /// use spdl_io::FieldValue;
    /// use spdl_io::records::Encoding;
    /// assert_eq!(Encoding::Integer.decode("7\n".into())?, FieldValue::Integer(7));
    /// assert_eq!(Encoding::Text.decode("a cat".into())?.as_str(), Some("a cat"));
    /// assert!(Encoding::Pickle.decode("I7\n.".into()).is_err());
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// - `Corrupt` if the bytes do not encode such a value, with the offset of the error.
    /// - `Truncated` if an array ends early, with the offset of the end.
    /// - `Unsupported` for pickles, and for element types that [`NpyArray`] does not support.
    pub fn decode(self, bytes: Bytes) -> Result<FieldValue> {
        match self {
            Encoding::Bytes => Ok(FieldValue::Bytes(bytes)),
            Encoding::Text => Ok(FieldValue::Text(text(&bytes)?.into())),
            Encoding::Integer => {
                let text = text(&bytes)?;
                let number = text.trim().parse().map_err(|error| {
                    corrupt(format!("expected an integer, found {}", abbreviated(text)), 0)
                        .with_source(error)
                })?;
                Ok(FieldValue::Integer(number))
            }
            Encoding::Json => {
                serde_json::from_slice(&bytes).map(FieldValue::Json).map_err(|error| {
                    let offset =
                        line_start(&bytes, error.line()) + error.column().saturating_sub(1);
                    corrupt("invalid JSON", offset.min(bytes.len())).with_source(error)
                })
            }
            Encoding::Npy => NpyArray::from_bytes(bytes).map(FieldValue::Array),
            Encoding::Pickle => {
                let message = "cannot decode a Python pickle: unpickling executes code from the \
                    file; select other fields, or read this field as bytes";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }
}

fn text(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes)
        .map_err(|error| corrupt("invalid UTF-8", error.valid_up_to()).with_source(error))
}

/// The first 40 characters of a text, in quotation marks, for messages.
pub(crate) fn abbreviated(text: &str) -> String {
    const MAX_CHARS: usize = 40;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// The offset of the start of a line; lines count from 1.
fn line_start(bytes: &[u8], line: usize) -> usize {
    let mut ends =
        bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    match line.checked_sub(2) {
        Some(before) => ends.nth(before).unwrap_or(bytes.len()),
        None => 0,
    }
}

fn corrupt(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset as u64)
}
