//! Results on standard output.

use std::io::{ErrorKind, Write};

use super::failure::Failure;

/// Writes to standard output; a closed pipe is no error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // The reader, such as `head`, needs no more.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result
            .map_err(|error| Failure::new("cannot write the result", "standard output", error)),
    }
}
