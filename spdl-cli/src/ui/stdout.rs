//! Standard output.

use std::io::{ErrorKind, Write};

use super::failure::Failure;

/// Writes to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        // Whoever reads has read enough, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result
            .map_err(|error| Failure::new("cannot write the result", "standard output", error)),
    }
}
