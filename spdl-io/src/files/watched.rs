//! Reads of local files that fail if they make no progress.

use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use spdl_core::Result;
use spdl_core::runtime::{ReadProgress, WatchedFile, run_watched};

use super::os_error;
use crate::fetch::Key;

/// Time after which a read without progress fails.
pub(crate) const STALL_TIMEOUT: Duration =
    if cfg!(test) { Duration::from_secs(1) } else { spdl_core::runtime::STALL_TIMEOUT };

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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;

    use spdl_core::{Error, ErrorKind};

    use crate::archive::{ArchiveStamp, TarIndex, TarOptions};
    use crate::datasets::{FileList, WebDataset};
    use crate::shards::{Manifest, Sums};

    /// Reading this file waits for the next message of the kernel.
    const BLOCKING: &str = "/proc/kmsg";

    #[test]
    fn reads_of_other_files_without_progress_fail_with_their_name() {
        if fs::File::open(BLOCKING).is_err() {
            println!("SKIPPED: this user cannot open {BLOCKING}");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let shard = folder.path().join("a.tar");
        let path = |name: &str| folder.path().join(name);
        fs::write(&shard, [0; 1024]).unwrap();
        // An index that is older than its archive is not read.
        let file = fs::File::options().write(true).open(&shard).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
        for name in ["a.tar.sums", "a.tar.idx", "manifest.json", "list.txt"] {
            std::os::unix::fs::symlink(BLOCKING, path(name)).unwrap();
        }
        let stamp = ArchiveStamp::of_file(&shard).unwrap();
        let stalled = |name: &str, error: Error| {
            assert_eq!(error.kind(), ErrorKind::Timeout, "{}", error.report());
            assert_eq!(error.key(), path(name).to_str(), "{}", error.report());
            assert!(error.report().to_string().contains("no progress"), "{}", error.report());
        };
        stalled("a.tar.sums", Sums::read(&shard).unwrap_err());
        let index = TarIndex::load(&shard, &stamp, TarOptions::default());
        stalled("a.tar.idx", index.err().unwrap());
        stalled("manifest.json", Manifest::read(folder.path()).unwrap_err());
        stalled("list.txt", FileList::open(path("list.txt")).unwrap_err());
        // The index is optional, and the checksums are not.
        stalled("a.tar.sums", WebDataset::open(shard.to_str().unwrap()).unwrap_err());
    }
}
