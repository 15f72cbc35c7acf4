//! Local file access that stores, caches, archives and data sets share.
//!
//! | file | what it holds |
//! |---|---|
//! | `error` | [`os_error`]: converts an error of the operating system, and adds the file name |
//! | `open_files` | retries when the limit on open files is reached |
//! | `io_threads` | [`IoThreads`]: a thread pool for blocking I/O; calls that fail if they make no progress |
//! | `watched` | reads on the calling thread that fail if they make no progress |
//! | `walk` | [`Walker`]: sorted listings of folders, in parallel |
//!
//! Imports: `fetch` (for [`Key`](crate::fetch::Key)).

mod error;
mod io_threads;
pub(crate) mod open_files;
mod walk;
mod watched;

pub(crate) use self::error::os_error;
pub(crate) use self::io_threads::IoThreads;
#[cfg(feature = "local")]
pub(crate) use self::io_threads::ReadProgress;
pub(crate) use self::walk::{Folder, FolderPath, Listing, Walker, bytes};
pub(crate) use self::watched::{read_regular_file, watched};
