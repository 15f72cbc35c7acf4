//! Atomic file writes, which survive a power failure.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::Key;
use crate::files::os_error;

/// Returns the temporary name of a file that is being written: its name plus `.partial`.
pub(super) fn partial_of(path: &Path) -> PathBuf {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    partial.into()
}

/// Creates an empty file. Removes an existing file first, so that a symbolic link is not followed.
pub(super) fn create(path: &Path) -> Result<File> {
    remove(path)?;
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    file.map_err(|error| failed("cannot create file", path, error))
}

/// Removes a file or a link, if it exists.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("cannot remove file", path, error))
        }
        _ => Ok(()),
    }
}

/// Syncs a partial file to disk and renames it to its final name.
pub(super) fn finish(file: &File, partial: &Path, path: &Path) -> Result<()> {
    let written = file.sync_all().and_then(|()| fs::rename(partial, path));
    written.map_err(|error| failed("cannot write file", path, error))
}

/// Writes a file atomically.
pub(super) fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = partial_of(path);
    let mut file = create(&partial)?;
    let written = file.write_all(bytes);
    let written = written.map_err(|error| failed("cannot write file", path, error));
    written.and_then(|()| finish(&file, &partial, path)).inspect_err(|_| {
        // The next run removes a partial file that remains.
        let _ = fs::remove_file(&partial);
    })
}

/// Syncs a folder, so that its directory entries survive a power failure. Only on Unix.
pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|error| failed("cannot sync folder", folder, error))?;
    }
    Ok(())
}

/// Locks a folder against other writers until the returned file is dropped or the process ends.
///
/// Returns `None` if the operating system does not support such locks.
pub(super) fn lock_folder(folder: &Path) -> Result<Option<File>> {
    let Ok(file) = File::open(folder) else { return Ok(None) };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            let message = "another process is writing shards to this folder";
            let key = Key::from_path(folder).display_name();
            Err(Error::new(ErrorKind::Unavailable, message).with_key(key))
        }
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

pub(super) fn failed(message: &str, path: &Path, error: io::Error) -> Error {
    os_error(message, &Key::from_path(path), error)
}
