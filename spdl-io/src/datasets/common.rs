//! Helpers that several data sets share: keys, hashes, size checks, numbers.

#[cfg(any(feature = "arrow", feature = "parquet"))]
use std::collections::HashMap;
use std::io::Write;
#[cfg(feature = "local")]
use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};
use twox_hash::XxHash3_128;

#[cfg(feature = "local")]
use crate::fetch::Fetcher;
use crate::fetch::Key;
use crate::records::FieldValue;
#[cfg(any(feature = "arrow", feature = "parquet"))]
use crate::records::Remedy;
#[cfg(feature = "local")]
use crate::stores::LocalFetcher;

/// The fetcher for local paths.
#[cfg(feature = "local")]
pub(crate) fn local_fetcher() -> Arc<dyn Fetcher> {
    Arc::new(LocalFetcher::new())
}

/// The key of a sample: the object and the row, `OBJECT:ROW`.
pub(crate) fn row_key(object: &Key, row: u64) -> Key {
    // Most keys need no other memory than that of the key.
    let mut text = [0; 128];
    let mut rest = &mut text[..];
    let written = rest.write_all(object.as_bytes()).and_then(|()| write!(rest, ":{row}"));
    let free = rest.len();
    match written {
        Ok(()) => Key::from_bytes(&text[..text.len() - free]),
        Err(_) => Key::from_bytes(&[object.as_bytes(), format!(":{row}").as_bytes()].concat()),
    }
}

/// Whether a path in a table is an address of a store.
#[cfg(any(feature = "arrow", feature = "parquet"))]
pub(crate) fn is_address(path: &str) -> bool {
    path.contains("://")
}

/// The key of the metadata of Hugging Face's `datasets`, in the schema of a table.
#[cfg(any(feature = "arrow", feature = "parquet"))]
pub(crate) const HUGGING_FACE: &str = "huggingface";

/// The class names of each `ClassLabel` column, from the metadata of Hugging Face's `datasets`.
#[cfg(any(feature = "arrow", feature = "parquet"))]
pub(crate) fn class_names(metadata: &str) -> HashMap<String, Vec<String>> {
    // Metadata of other programs may have the same key.
    let Ok(metadata) = serde_json::from_str::<serde_json::Value>(metadata) else {
        return HashMap::new();
    };
    let Some(features) = metadata["info"]["features"].as_object() else { return HashMap::new() };
    let labels = features.iter().filter(|(_, feature)| feature["_type"] == "ClassLabel");
    let named = labels.filter_map(|(column, feature)| {
        let names = feature["names"].as_array()?.iter();
        let names = names.map(|name| name.as_str().map(str::to_owned));
        Some((column.clone(), names.collect::<Option<Vec<String>>>()?))
    });
    named.collect()
}

/// A hash of the content of a data set. Variable-length parts are prefixed with their length.
pub(crate) struct ContentHash(XxHash3_128);

impl ContentHash {
    pub(crate) fn new(format: &str) -> Self {
        let mut hash = ContentHash::without_format();
        hash.bytes(format.as_bytes());
        hash
    }

    pub(crate) fn without_format() -> Self {
        ContentHash(XxHash3_128::new())
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.write(bytes);
    }

    pub(crate) fn number(&mut self, number: u64) {
        self.0.write(&number.to_le_bytes());
    }

    /// Adds the file name of an object, without its folders: the location does not matter.
    pub(crate) fn name(&mut self, object: &Key) {
        let name = object.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        self.bytes(name);
    }

    pub(crate) fn finish(&self) -> u64 {
        self.0.finish_128() as u64
    }
}

/// Prepends `context` to the message of an error, and keeps kind, offset, key and cause.
pub(crate) fn with_context(error: Error, context: &str) -> Error {
    let mut wrapped = Error::new(error.kind(), format!("{context}: {}", error.message()));
    if let Some(offset) = error.offset() {
        wrapped = wrapped.with_offset(offset);
    }
    if let Some(key) = error.key() {
        wrapped = wrapped.with_key(key);
    }
    wrapped.with_cause_of(error)
}

/// Checks that the fields of a sample do not exceed the limit of a request.
pub(crate) fn check_size(bytes: u64, max_bytes: u64) -> Result<()> {
    if bytes <= max_bytes {
        return Ok(());
    }
    let message = format!("sample of {bytes} bytes exceeds the limit of {max_bytes} bytes");
    Err(Error::new(ErrorKind::LimitExceeded, message))
}

/// The error of using the column `name` for labels. `what` describes its values as a plural noun.
#[cfg(any(feature = "arrow", feature = "parquet"))]
pub(crate) fn no_labels(name: &str, what: &str) -> Error {
    let message = format!(
        "column {name:?} holds {what}, which are no labels: labels are integers or class names"
    );
    Error::new(ErrorKind::InvalidArgument, message).with_source(Remedy::LabelField)
}

/// A little-endian number; `None` if out of range.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

/// An IEEE 754 half-precision number, converted exactly.
pub(crate) fn half_to_f64(bits: u16) -> f64 {
    let fraction = f64::from(bits & 0x3FF);
    let value = match bits >> 10 & 0x1F {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1024.0 + fraction) * 2_f64.powi(i32::from(exponent) - 25),
    };
    if bits >> 15 == 1 { -value } else { value }
}

/// An unsigned number as an integer field.
///
/// # Errors
/// `Unsupported` for a number of 2⁶³ or more.
pub(crate) fn unsigned(number: u64) -> Result<FieldValue> {
    i64::try_from(number).map(FieldValue::Integer).map_err(|_| {
        let message = format!("number {number} exceeds the range of 64-bit signed integers");
        Error::new(ErrorKind::Unsupported, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_rows_end_with_the_number() {
        let long = "x".repeat(200);
        for (name, row) in [("a", 0), ("a b", 70), ("", u64::MAX), (&long, 1_000_000)] {
            assert_eq!(row_key(&name.into(), row).to_string(), format!("{name}:{row}"));
        }
        assert_eq!(row_key(&Key::from_bytes(b"\xff"), 12).as_bytes(), b"\xff:12");
    }

    #[test]
    fn half_precision_is_exact() {
        let cases = [
            (0x0000, 0.0),
            (0x0001, 5.960_464_477_539_063e-8),
            (0x03FF, 6.097_555_160_522_461e-5),
            (0x0400, 6.103_515_625e-5),
            (0x3C00, 1.0),
            (0xC100, -2.5),
            (0x7BFF, 65504.0),
            (0x7C00, f64::INFINITY),
            (0xFC00, f64::NEG_INFINITY),
        ];
        for (bits, value) in cases {
            assert_eq!(half_to_f64(bits), value, "{bits:#x}");
        }
        assert!(half_to_f64(0x7E00).is_nan());
    }
}
