//! Reads of local files that fail if they make no progress.

use std::io::{self, Read};
use std::path::Path;

use spdl_core::Result;
use spdl_core::runtime::{ReadProgress, STALL_TIMEOUT, WatchedFile, run_watched};

use super::os_error;
use crate::fetch::Key;

/// Runs `work`, which reads the file `key`, on a separate thread.
///
/// # Errors
/// The errors of `work`; `Timeout` with `message` and the key if `work` makes no progress.
pub(crate) fn watched<T: Send + 'static>(
    message: &str,
    key: &Key,
    work: impl FnOnce(&ReadProgress) -> Result<T> + Send + 'static,
) -> Result<T> {
    run_watched(STALL_TIMEOUT, work).map_err(|error| os_error(message, key, error))?
}

/// Reads up to `max_bytes` of a regular file.
pub(crate) fn read_regular_file(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    run_watched(STALL_TIMEOUT, move |progress| {
        let mut bytes = Vec::new();
        WatchedFile::open_regular(&path, progress)?.take(max_bytes).read_to_end(&mut bytes)?;
        Ok(bytes)
    })?
}
