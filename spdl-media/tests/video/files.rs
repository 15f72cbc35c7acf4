//! The files of this folder, for `tests/video.rs` and `tests/video_index.rs`.

use std::path::PathBuf;

pub(crate) fn read(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/video").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The lines of the golden list of a file with this first field, without the field.
pub(crate) fn golden(name: &str, kind: &str) -> Vec<String> {
    let list = String::from_utf8(read(&format!("{name}.tsv"))).expect("text");
    let lines = list.lines().filter_map(|line| line.strip_prefix(kind)?.strip_prefix('\t'));
    lines.map(str::to_owned).collect()
}
