//! Errors of decoder crates as errors of `spdl-core`.

use std::fmt::Display;
use std::io;

use spdl_core::{Error, ErrorKind};

/// Converts an I/O error of a decoder that reads from memory: `UnexpectedEof` means that the input
/// ends early, and all other kinds are errors of the format.
pub(super) fn read_error(format: &str, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            Error::new(ErrorKind::Truncated, format!("truncated {format}: the data end early"))
        }
        io::ErrorKind::Unsupported => unsupported(format, error),
        _ => corrupt(format, error),
    }
}

// Only the first message of an error chain is used, because it already contains the other messages.

pub(super) fn corrupt(format: &str, error: impl Display) -> Error {
    Error::new(ErrorKind::Corrupt, format!("corrupt {format}: {error}"))
}

pub(super) fn unsupported(format: &str, error: impl Display) -> Error {
    Error::new(ErrorKind::Unsupported, format!("unsupported {format}: {error}"))
}

pub(super) fn limit_exceeded(format: &str) -> Error {
    Error::new(
        ErrorKind::LimitExceeded,
        format!("decoding the {format} needs more memory than the limit"),
    )
}
