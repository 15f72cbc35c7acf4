//! The errors of the crates that decode, as ours.

use std::fmt::Display;
use std::io;

use spdl_core::{Error, ErrorKind};

/// An error of a decoder that reads from memory: there, the only reason for not getting bytes is
/// that there are none.
pub(super) fn read_error(format: &str, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::new(ErrorKind::Truncated, format!("the {format} data end early"))
        }
        io::ErrorKind::Unsupported => unsupported(format, error),
        _ => corrupt(format, error),
    }
}

// The causes of these crates repeat themselves in a chain; their first words are enough.

pub(super) fn corrupt(format: &str, error: impl Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("damaged {format} data: {error}"))
}

pub(super) fn unsupported(format: &str, error: impl Display) -> Error {
    Error::new(ErrorKind::Unsupported, format!("unsupported {format} data: {error}"))
}

pub(super) fn limit_exceeded(format: &str) -> Error {
    Error::new(
        ErrorKind::LimitExceeded,
        format!("decoding the {format} data takes more memory than the limit allows"),
    )
}
