//! Paths and contents of the test files.

#![allow(dead_code, reason = "the features decide which functions are used")]

use std::io::Read;
use std::path::PathBuf;

use spdl_media::{Image, Size};

pub(crate) fn own(folder: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// A file of `tests/formats/data`, made by `make_data.py`.
pub(crate) fn data(name: &str) -> Vec<u8> {
    std::fs::read(own("tests/formats/data").join(name)).unwrap()
}

/// A file of `tests/data`: formats of the default features.
pub(crate) fn common(name: &str) -> Vec<u8> {
    std::fs::read(own("tests/data").join(name)).unwrap()
}

/// The names of all files in a folder.
pub(crate) fn names(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(own(folder)).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
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

/// The pixels of a file of `make_data.py` by an independent decoder.
pub(crate) fn expected(name: &str) -> Image {
    let packed = data(&format!("{name}.rgb"));
    let mut content = Vec::new();
    flate2::read::ZlibDecoder::new(&packed[..]).read_to_end(&mut content).unwrap();
    let side = |at: usize| u32::from_le_bytes(content[at..at + 4].try_into().unwrap());
    Image { size: Size::new(side(0), side(4)), pixels: content[8..].to_vec() }
}

/// The maximum and the mean absolute difference of samples.
pub(crate) fn difference(one: &[u8], other: &[u8]) -> (u8, f64) {
    assert_eq!(one.len(), other.len());
    let differences = one.iter().zip(other).map(|(a, b)| a.abs_diff(*b));
    let sum: f64 = differences.clone().map(f64::from).sum();
    (differences.max().unwrap_or(0), sum / one.len().max(1) as f64)
}
