//! Where the tests' files are.

use std::path::PathBuf;

/// A folder of this crate.
pub(crate) fn own(folder: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// One of the small files that `golden/make_golden.py` makes.
pub(crate) fn data(name: &str) -> Vec<u8> {
    std::fs::read(own("tests/data").join(name)).unwrap()
}

/// The photographs of the repository.
pub(crate) fn photos() -> PathBuf {
    own("../assets/photos")
}

/// Files of other projects, which are not part of the repository: beside it, or where
/// `SPDL_CORPORA` says. `None`, and a word on it, where they are not.
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
