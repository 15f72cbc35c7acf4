//! When as many files are open as may be: whoever needs another one waits for others to close theirs.

use std::io;
#[cfg(feature = "local")]
use std::time::{Duration, Instant};

/// Errors of Unix: the process (`EMFILE`) or the machine (`ENFILE`) has as many as it may.
const TOO_MANY: [i32; 2] = [24, 23];

/// How long one is waited for. Those who hold files to read them close them soon.
#[cfg(feature = "local")]
const PATIENCE: Duration = Duration::from_secs(2);
#[cfg(feature = "local")]
const FIRST_WAIT: Duration = Duration::from_millis(1);
#[cfg(feature = "local")]
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// Whether a file, or a connection, was refused because too many are open.
pub(crate) fn are_too_many(error: &io::Error) -> bool {
    cfg!(unix) && error.raw_os_error().is_some_and(|code| TOO_MANY.contains(&code))
}

/// Opens a file; where too many are open, lets go of those that need not be, and tries again for a
/// while. Nobody tells when one is closed, hence the waits, which double.
#[cfg(feature = "local")]
pub(crate) fn patiently<T>(
    open: impl Fn() -> io::Result<T>,
    let_go: impl FnOnce(),
) -> io::Result<T> {
    let first = open();
    if !first.as_ref().is_err_and(are_too_many) {
        return first;
    }
    let_go();
    let (began, mut wait) = (Instant::now(), FIRST_WAIT);
    loop {
        match open() {
            Err(error) if are_too_many(&error) && began.elapsed() < PATIENCE => {
                std::thread::sleep(wait);
                wait = (2 * wait).min(LONGEST_WAIT);
            }
            opened => return opened,
        }
    }
}

#[cfg(all(test, unix, feature = "local"))]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How many calls there were, whether files were let go, and what came of it, where the first
    /// `refused` calls fail with an error of the system.
    fn open(refused: u32, code: i32) -> (u32, bool, io::Result<()>) {
        let (calls, let_go) = (Cell::new(0), Cell::new(false));
        let try_it = || {
            calls.set(calls.get() + 1);
            match calls.get() > refused {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(code)),
            }
        };
        let opened = patiently(try_it, || let_go.set(true));
        (calls.get(), let_go.get(), opened)
    }

    #[test]
    fn a_file_is_waited_for_while_too_many_are_open_and_other_errors_are_told_at_once() {
        for code in TOO_MANY {
            let (calls, let_go, opened) = open(5, code);
            assert!(calls == 6 && let_go && opened.is_ok(), "{code}: {calls} {let_go} {opened:?}");
        }
        let (calls, let_go, opened) = open(5, 2);
        assert!(calls == 1 && !let_go && opened.is_err(), "{calls} {let_go} {opened:?}");
        let (calls, let_go, opened) = open(0, 24);
        assert!(calls == 1 && !let_go && opened.is_ok(), "{calls} {let_go} {opened:?}");
    }

    #[test]
    fn the_wait_for_a_file_ends() {
        let began = Instant::now();
        let (calls, _, opened) = open(u32::MAX, 24);
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(24));
        assert!(calls > 10 && began.elapsed() >= PATIENCE, "{calls} in {:?}", began.elapsed());
    }
}
