//! The sizes of the fields of a sample, compared with the limit of a request.

use spdl_core::{Error, ErrorKind, Footprint, Result};

use crate::records::{FieldValue, Remedy};

/// Adds the sizes of the fields of one sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldSizes<'a> {
    max_bytes: u64,
    bytes: u64,
    /// The name and the size of the largest field.
    largest: (&'a str, u64),
}

impl<'a> FieldSizes<'a> {
    /// Creates the sizes of a sample without fields, which may have `max_bytes` bytes.
    pub(crate) fn new(max_bytes: u64) -> Self {
        FieldSizes { max_bytes, bytes: 0, largest: ("", 0) }
    }

    /// Adds a field of this size in bytes.
    pub(crate) fn add(&mut self, name: &'a str, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        if bytes > self.largest.1 {
            self.largest = (name, bytes);
        }
    }

    /// The maximum size in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.max_bytes
    }

    /// The size of all fields in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Checks that the fields do not exceed the limit.
    ///
    /// # Errors
    /// `LimitExceeded`, with the largest field in the message and without a key.
    pub(crate) fn check(&self) -> Result<()> {
        let FieldSizes { max_bytes, bytes, largest: (name, largest) } = self;
        if bytes <= max_bytes {
            return Ok(());
        }
        let message = format!(
            "sample of {bytes} bytes exceeds the limit of {max_bytes} bytes; its largest field {name:?} \
             has {largest} bytes"
        );
        Err(Error::new(ErrorKind::LimitExceeded, message).with_source(Remedy::MaxFileBytes))
    }
}

/// The approximate size of a value in bytes. Single numbers do not count.
pub(crate) fn size_of_field(field: &FieldValue) -> u64 {
    match field {
        FieldValue::Bytes(bytes) => bytes.len() as u64,
        FieldValue::Text(text) => text.len() as u64,
        FieldValue::Integers(list) => 8 * list.len() as u64,
        FieldValue::Floats(list) => 8 * list.len() as u64,
        FieldValue::List(list) => list.iter().map(size_of_field).sum(),
        FieldValue::Array(_) => field.footprint() as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_largest_field() {
        let mut sizes = FieldSizes::new(10);
        for (name, bytes) in [("txt", 3), ("png", 6), ("cls", 1)] {
            sizes.add(name, bytes);
            assert!(sizes.check().is_ok(), "{sizes:?}");
        }
        sizes.add("json", 1);
        let error = sizes.check().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert_eq!(
            error.message(),
            "sample of 11 bytes exceeds the limit of 10 bytes; its largest field \"png\" has 6 bytes"
        );
        assert_eq!(Remedy::of(&error), Some(Remedy::MaxFileBytes));
        sizes.add("npy", u64::MAX);
        assert_eq!(sizes.bytes(), u64::MAX);
    }
}
