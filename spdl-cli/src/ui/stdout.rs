//! Results on standard output.

use std::io::{self, ErrorKind, Write};

use super::failure::Failure;

/// Writes to standard output; a closed pipe is not an error.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    check(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

/// Converts the result of a write to standard output; a closed pipe is not an error.
pub(crate) fn check(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        // A program that reads this output, such as `head`, has closed the pipe because it needs no
        // more.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written
            .map_err(|error| Failure::new("cannot write the result", "standard output", error)),
    }
}
