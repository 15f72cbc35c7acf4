//! Files that are there whole or not at all, also after a loss of power.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::Key;
use crate::files::os_error;

/// The name of a file that is being written: `.partial` is added.
pub(super) fn partial_of(path: &Path) -> PathBuf {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    partial.into()
}

/// A new, empty file. What bears its name is removed before, so that no link is followed.
pub(super) fn create(path: &Path) -> Result<File> {
    remove(path)?;
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    file.map_err(|error| failed("cannot write this file", path, error))
}

/// Removes a file, or a link, if it is there.
pub(super) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("cannot remove this file", path, error))
        }
        _ => Ok(()),
    }
}

/// Puts the bytes of a file that was written to where it belongs.
pub(super) fn finish(file: &File, partial: &Path, path: &Path) -> Result<()> {
    let written = file.sync_all().and_then(|()| fs::rename(partial, path));
    written.map_err(|error| failed("cannot write this file", path, error))
}

/// Writes a file, whole or not at all.
pub(super) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = partial_of(path);
    let mut file = create(&partial)?;
    let written = file.write_all(bytes);
    let written = written.map_err(|error| failed("cannot write this file", path, error));
    written.and_then(|()| finish(&file, &partial, path)).inspect_err(|_| {
        // What cannot be removed either is removed by the next run.
        let _ = fs::remove_file(&partial);
    })
}

/// Makes sure that the names of files in a folder are kept, where the system knows how.
pub(super) fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|error| failed("cannot write this folder", folder, error))?;
    }
    Ok(())
}

/// Keeps other writers away from a folder, as long as the value lives, and no longer than the process.
/// `None` where the system has no such locks for folders.
pub(super) fn lock_folder(folder: &Path) -> Result<Option<File>> {
    let Ok(file) = File::open(folder) else { return Ok(None) };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => {
            let message = "another program is writing shards to this folder";
            let key = Key::from_path(folder).display_name();
            Err(Error::new(ErrorKind::Unavailable, message).with_key(key))
        }
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

pub(super) fn failed(message: &str, path: &Path, error: io::Error) -> Error {
    os_error(message, &Key::from_path(path), error)
}
