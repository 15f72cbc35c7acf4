//! Conversion of errors of the operating system.

use std::io;

use spdl_core::{Error, ErrorKind};

use crate::fetch::Key;
use crate::files::open_files;

/// Converts an error of the operating system, and keeps it as the source.
pub(crate) fn os_error(message: &str, key: &Key, error: io::Error) -> Error {
    if open_files::is_too_many_open_files(&error) {
        // `Unavailable`, because a retry may succeed after other files are closed.
        let message = format!("{message}: too many open files; raise the limit (`ulimit -n`)");
        return Error::new(ErrorKind::Unavailable, message)
            .with_key(key.display_name())
            .with_source(error);
    }
    let kind = match error.kind() {
        io::ErrorKind::NotADirectory => ErrorKind::NotFound,
        other => Error::from(io::Error::from(other)).kind(),
    };
    Error::new(kind, message).with_key(key.display_name()).with_source(error)
}
