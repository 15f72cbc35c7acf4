//! Errors of JPEG decoding, with the offset in the file.

use spdl_core::{Error, ErrorKind};

pub(super) fn corrupt(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Corrupt, message).with_offset(offset as u64)
}

pub(super) fn truncated(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Truncated, message).with_offset(offset as u64)
}

pub(super) fn unsupported(message: impl Into<String>, offset: usize) -> Error {
    Error::new(ErrorKind::Unsupported, message).with_offset(offset as u64)
}
