//! Why a run failed, as one line for people and an exit code for programs.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use spdl_core::{Error, ErrorKind};

use super::changed_options;
use super::format::printable;
use super::stderr;

/// The exit code of a failed run.
const FAILED: u8 = 1;
/// The exit code of a command line that makes no sense; `clap` uses the same.
const BAD_USAGE: u8 = 2;

/// Why a run failed: `what: file: reason`.
#[derive(Debug)]
pub(crate) struct Failure {
    line: String,
    code: u8,
    /// The signal that ended the run: the program ends by it too.
    signal: Option<i32>,
    /// Whether it is that what was read is damaged.
    is_damage: bool,
}

impl Failure {
    /// A failed run: what was under way, which file it was about, and why it failed.
    pub(crate) fn new(what: &str, file: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Failure {
            line: format!("{what}: {file}: {reason}"),
            code: FAILED,
            signal: None,
            is_damage: false,
        }
    }

    /// A failed run, told by an error that knows its file, unless that is `otherwise`.
    pub(crate) fn of(what: &str, error: &Error, otherwise: &Path) -> Self {
        // Whoever reads it has the command line before them, and no builder.
        let reason = changed_options::in_own_words(error.changes()).unwrap_or_else(|| {
            error.reason().replace("`State::combine`", "--resume and the files of all ranks")
        });
        let failure = match error.key() {
            Some(key) => Failure::new(what, key, reason),
            None => Failure::new(what, otherwise.display(), reason),
        };
        let is_damage = matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Truncated);
        Failure { is_damage, ..failure }
    }

    /// Whether it is that what was read is damaged.
    pub(crate) fn is_about_damage(&self) -> bool {
        self.is_damage
    }

    /// A failed run, told in a sentence.
    pub(crate) fn sentence(line: String) -> Self {
        Failure { line, code: FAILED, signal: None, is_damage: false }
    }

    /// A command line that makes no sense.
    pub(crate) fn usage(reason: impl fmt::Display) -> Self {
        Failure { line: reason.to_string(), code: BAD_USAGE, signal: None, is_damage: false }
    }

    /// The same, with what can be done about it.
    pub(crate) fn and(mut self, advice: &str) -> Self {
        self.line = format!("{}; {advice}", self.line);
        self
    }

    /// The same, of a run that this signal ended.
    pub(crate) fn by_signal(mut self, signal: i32) -> Self {
        self.signal = Some(signal);
        self
    }

    /// Tells people, and gives the code for programs.
    pub(crate) fn report(&self) -> ExitCode {
        stderr::note(&self.to_string());
        if let Some(signal) = self.signal {
            // Whoever waits for the program shall see that it was the signal. Should that not work,
            // the code says that the run did not end.
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        ExitCode::from(self.code)
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
    fn methods_of_rust_are_not_what_the_command_line_knows() {
        let error = Error::new(ErrorKind::InvalidArgument, "use `State::combine`");
        let told = Failure::of("cannot resume", &error, "run.state".as_ref()).to_string();
        assert!(!told.contains("State::") && told.contains("--resume"), "{told}");
    }

    #[test]
    fn a_failure_is_one_line_that_names_what_file_and_reason() {
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
