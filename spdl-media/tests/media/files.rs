//! Paths of the test files.

use std::path::PathBuf;

/// A folder of this crate.
pub(crate) fn own(folder: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// A file of `tests/data`, made by `golden/make_golden.py`.
pub(crate) fn data(name: &str) -> Vec<u8> {
    std::fs::read(own("tests/data").join(name)).unwrap()
}

/// The folder of photos of this repository.
pub(crate) fn photos() -> PathBuf {
    own("../assets/photos")
}

/// The folder of third-party test files outside of the repository: `SPDL_CORPORA`, or a folder beside
/// the repository. Prints a line and returns `None` if it does not exist.
pub(crate) fn corpora() -> Option<PathBuf> {
    let folder = match std::env::var_os("SPDL_CORPORA") {
        Some(folder) => PathBuf::from(folder),
        None => own("../../shared/corpora"),
    };
    if folder.is_dir() {
        return Some(folder);
    }
    println!("SKIPPED: corpora not present");
    None
}
