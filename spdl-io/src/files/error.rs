//! Errors of the operating system as errors of this library.

use std::io;

use spdl_core::{Error, ErrorKind};

use crate::fetch::Key;
use crate::files::open_files;

/// A failure of the operating system, its words kept as the cause.
pub(crate) fn os_error(message: &str, key: &Key, error: io::Error) -> Error {
    if open_files::are_too_many(&error) {
        // Others close theirs, sooner or later.
        let message = format!("{message}, as too many files are open (see `ulimit -n`)");
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
