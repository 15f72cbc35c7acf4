//! The `spdl pack` command that keeps the valid samples of a damaged data set.

use std::path::{Path, PathBuf};

use crate::datasets::address::{is_address, shown};
use crate::ui::format::{for_shell, printable};

/// Two lines with the command; empty if there are no defects or no media files, or if a path is not
/// UTF-8 or contains secrets.
pub(super) fn advice(paths: &[PathBuf], defects: u64, has_media: bool) -> String {
    let has_no_secret = |path: &PathBuf| shown(std::slice::from_ref(path)) == *path;
    if defects == 0 || !has_media || !paths.iter().all(has_no_secret) {
        return String::new();
    }
    let destination = destination(paths);
    let words = paths.iter().chain([&destination]).map(|path| path.to_str().map(for_shell));
    let Some(words) = words.collect::<Option<Vec<_>>>() else { return String::new() };
    let words = printable(&words.join(" "));
    format!(
        "to pack the valid samples as a new set:\n    spdl pack {words} --on-error skip --check\n"
    )
}

/// The output folder of the command: next to the data set if it is a local folder, else in the
/// current folder.
fn destination(paths: &[PathBuf]) -> PathBuf {
    let beside = match paths {
        [folder] if !is_address(folder) && folder.is_dir() => match folder.file_name() {
            Some(name) => {
                folder.with_file_name([name.to_string_lossy(), "-rescued".into()].concat())
            }
            None => folder.join("../rescued"),
        },
        _ => Path::new("rescued").to_owned(),
    };
    let numbered = (2..).map(|number| PathBuf::from(format!("{}-{number}", beside.display())));
    let mut all = std::iter::once(beside.clone()).chain(numbered);
    // The iterator is infinite, so a free name is always found.
    all.find(|folder| !folder.exists()).unwrap_or_else(|| beside.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_destination_is_a_new_folder_next_to_the_data_set() {
        let place = tempfile::tempdir().unwrap();
        let set = place.path().join("set");
        std::fs::create_dir(&set).unwrap();
        let of = |paths: &[&Path]| {
            destination(&paths.iter().map(|path| path.to_path_buf()).collect::<Vec<_>>())
        };
        assert_eq!(of(&[&set.join("")]), place.path().join("set-rescued"));
        std::fs::create_dir(place.path().join("set-rescued")).unwrap();
        assert_eq!(of(&[&set]), place.path().join("set-rescued-2"));
        // The output folder is never inside the data set.
        assert_eq!(of(&[Path::new(".")]), Path::new("./../rescued"));
        assert_eq!(of(&[Path::new("a.tar"), Path::new("b.tar")]), Path::new("rescued"));
        assert_eq!(of(&[Path::new("s3://bucket/set")]), Path::new("rescued"));
    }

    #[test]
    fn there_is_no_advice_without_defects_or_media_or_with_secrets() {
        let paths = |path: &str| vec![PathBuf::from(path)];
        assert!(
            advice(&paths("a.tar"), 1, true).contains("spdl pack a.tar rescued --on-error skip")
        );
        for (path, bad, media) in [
            ("a.tar", 0, true),
            ("a.tar", 1, false),
            ("https://me:secret@host/a.tar", 1, true),
            ("https://host/a.tar?signature", 1, true),
        ] {
            assert_eq!(advice(&paths(path), bad, media), "", "{path}");
        }
    }
}
