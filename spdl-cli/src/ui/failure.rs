//! The error of the program: one line on standard error, and the exit code.

use std::fmt;
use std::path::Path;

use spdl_core::{Error, ErrorKind};

use super::advice::with_advice;
use super::changed_options;
use super::format::printable;
use super::stderr;

/// The exit code of a failed run.
const FAILED: u8 = 1;
/// The exit code for an invalid command line; `clap` uses the same code.
const BAD_USAGE: u8 = 2;

/// Why the program failed, as one line: `what: file: reason`.
#[derive(Debug)]
pub(crate) struct Failure {
    line: String,
    code: u8,
    /// The signal that stopped the run. The process then terminates itself with this signal.
    signal: Option<i32>,
    /// Whether the cause is corrupt or truncated input.
    is_damage: bool,
}

impl Failure {
    /// Creates a failure from the operation, the file, and the reason.
    pub(crate) fn new(what: &str, file: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Failure {
            line: format!("{what}: {file}: {reason}"),
            code: FAILED,
            signal: None,
            is_damage: false,
        }
    }

    /// Creates a failure from an error of a library; the file is the error's key, or
    /// `default_file`.
    pub(crate) fn of(what: &str, error: &Error, default_file: &Path) -> Self {
        // Library messages name Rust methods; users of the program need the names of options
        // instead.
        let reason = changed_options::describe(error.changes()).unwrap_or_else(|| {
            error.reason().replace("`State::combine`", "--resume and the files of all ranks")
        });
        let reason = with_advice(reason, error);
        let failure = match error.key() {
            Some(key) => Failure::new(what, key, reason),
            None => Failure::new(what, default_file.display(), reason),
        };
        let is_damage = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Truncated);
        Failure { is_damage, ..failure }
    }

    /// Whether the cause is corrupt or truncated input.
    pub(crate) fn is_about_damage(&self) -> bool {
        self.is_damage
    }

    /// Creates a failure from a complete message line.
    pub(crate) fn sentence(line: String) -> Self {
        Failure { line, code: FAILED, signal: None, is_damage: false }
    }

    /// Creates a failure for an invalid command line.
    pub(crate) fn usage(reason: impl fmt::Display) -> Self {
        Failure { line: reason.to_string(), code: BAD_USAGE, signal: None, is_damage: false }
    }

    /// Appends `; advice`.
    pub(crate) fn and(mut self, advice: &str) -> Self {
        self.line = format!("{}; {advice}", self.line);
        self
    }

    /// Sets the exit code.
    pub(crate) fn with_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// Records that this signal stopped the run.
    pub(crate) fn by_signal(mut self, signal: i32) -> Self {
        self.signal = Some(signal);
        self
    }

    /// Prints the line on standard error and returns the exit code.
    pub(crate) fn report(&self) -> u8 {
        stderr::note(&self.to_string());
        if let Some(signal) = self.signal {
            // The process terminates itself by the signal, so that its parent process sees the
            // signal. If the default handler returns, the exit code reports the failure.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        self.code
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spdl: {}", printable(&self.line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_options_instead_of_rust_methods() {
        let error = Error::new(ErrorKind::InvalidArgument, "use `State::combine`");
        let line = Failure::of("cannot resume", &error, "run.state".as_ref()).to_string();
        assert!(!line.contains("State::") && line.contains("--resume"), "{line}");
    }

    #[test]
    fn a_failure_is_one_line_of_operation_file_and_reason() {
        let error = Error::new(ErrorKind::Truncated, "it ends\nearly").with_offset(7);
        let with_key =
            Failure::of("decode failed", &error.clone().with_key("a\x1b.jpg"), "".as_ref());
        assert_eq!(
            with_key.to_string(),
            r"spdl: decode failed: a\x1b.jpg: it ends\x0aearly (at byte 7)"
        );
        let without = Failure::of("decode failed", &error, "photos".as_ref());
        assert!(without.to_string().starts_with("spdl: decode failed: photos: "));
    }
}
