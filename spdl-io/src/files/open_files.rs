//! Retries when the limit of open files is reached.

use std::io;
#[cfg(feature = "local")]
use std::time::{Duration, Instant};

/// Error codes of Unix: the process (`EMFILE`) or the system (`ENFILE`) has too many open files.
const TOO_MANY: [i32; 2] = [24, 23];

/// How long an open call is retried. Files that are open for a read are closed soon.
#[cfg(feature = "local")]
const RETRY_TIME: Duration = Duration::from_secs(2);
#[cfg(feature = "local")]
const FIRST_DELAY: Duration = Duration::from_millis(1);
#[cfg(feature = "local")]
const MAX_DELAY: Duration = Duration::from_millis(50);

/// Returns whether a call failed because too many files are open.
pub(crate) fn is_too_many_open_files(error: &io::Error) -> bool {
    cfg!(unix) && error.raw_os_error().is_some_and(|code| TOO_MANY.contains(&code))
}

/// Opens a file. If too many files are open, calls `release` and retries for up to 2 s.
///
/// The operating system does not report when a file is closed, so the call is retried with doubling
/// delays.
#[cfg(feature = "local")]
pub(crate) fn open_with_retries<T>(
    open: impl Fn() -> io::Result<T>,
    release: impl FnOnce(),
) -> io::Result<T> {
    let first = open();
    if !first.as_ref().is_err_and(is_too_many_open_files) {
        return first;
    }
    release();
    let (began, mut delay) = (Instant::now(), FIRST_DELAY);
    loop {
        match open() {
            Err(error) if is_too_many_open_files(&error) && began.elapsed() < RETRY_TIME => {
                std::thread::sleep(delay);
                delay = (2 * delay).min(MAX_DELAY);
            }
            opened => return opened,
        }
    }
}

#[cfg(all(test, unix, feature = "local"))]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Opens a file of which the first `refused` attempts fail with the error `code`. Returns the
    /// number of attempts, whether files were released, and the result.
    fn open(refused: u32, code: i32) -> (u32, bool, io::Result<()>) {
        let (calls, release) = (Cell::new(0), Cell::new(false));
        let attempt = || {
            calls.set(calls.get() + 1);
            match calls.get() > refused {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(code)),
            }
        };
        let opened = open_with_retries(attempt, || release.set(true));
        (calls.get(), release.get(), opened)
    }

    #[test]
    fn too_many_open_files_is_retried_and_other_errors_are_not() {
        for code in TOO_MANY {
            let (calls, release, opened) = open(5, code);
            assert!(
                calls == 6 && release && opened.is_ok(),
                "{code}: {calls} {release} {opened:?}"
            );
        }
        let (calls, release, opened) = open(5, 2);
        assert!(calls == 1 && !release && opened.is_err(), "{calls} {release} {opened:?}");
        let (calls, release, opened) = open(0, 24);
        assert!(calls == 1 && !release && opened.is_ok(), "{calls} {release} {opened:?}");
    }

    #[test]
    fn retries_end_after_the_retry_time() {
        let began = Instant::now();
        let (calls, _, opened) = open(u32::MAX, 24);
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(24));
        assert!(calls > 10 && began.elapsed() >= RETRY_TIME, "{calls} in {:?}", began.elapsed());
    }
}
