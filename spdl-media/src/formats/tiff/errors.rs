//! Errors of TIFF decoding.

use spdl_core::{Error, ErrorKind};

pub(super) const NAME: &str = "tiff";

/// An error after `rows` complete rows.
pub(super) struct RowError {
    pub(super) rows: u32,
    pub(super) error: Error,
}

impl From<Error> for RowError {
    fn from(error: Error) -> Self {
        RowError { rows: 0, error }
    }
}

/// Converts an error of a complete chunk: data that end early in it are corrupt, not truncated. If
/// such data counted as truncated, a region without the chunk would have to report the same
/// truncation, although the region does not read the chunk.
pub(super) fn classify(error: Error, is_there: bool) -> Error {
    match (error.kind(), error.offset()) {
        (ErrorKind::Truncated, offset) if is_there => {
            let damaged = Error::new(ErrorKind::Corrupt, error.message().to_owned());
            offset.map_or(damaged.clone(), |offset| damaged.with_offset(offset))
        }
        _ => error,
    }
}

pub(super) fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("unsupported: {what}"))
}
