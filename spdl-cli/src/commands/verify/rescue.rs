//! How what is whole of a damaged data set is saved.

use std::path::{Path, PathBuf};

use crate::datasets::address::{is_address, shown};
use crate::ui::format::{for_shell, printable};

/// The command that packs what is whole of a data set of which something is bad: two lines, or nothing
/// where nothing would come of it.
pub(super) fn advice(paths: &[PathBuf], bad: u64, images: u64) -> String {
    // Sets of samples without images are not packed; and what is secret is not shown.
    let is_shown = |path: &PathBuf| shown(std::slice::from_ref(path)) == *path;
    if bad == 0 || images == 0 || !paths.iter().all(is_shown) {
        return String::new();
    }
    let destination = destination(paths);
    let words = paths.iter().chain([&destination]).map(|path| path.to_str().map(for_shell));
    let Some(words) = words.collect::<Option<Vec<_>>>() else { return String::new() };
    let words = printable(&words.join(" "));
    format!(
        "what is whole can be packed as a new set:\n    spdl pack {words} --on-error skip --check\n"
    )
}

/// A folder that is not there yet: beside the data set, where it is a folder of this machine.
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
    // There is always another number.
    all.find(|folder| !folder.exists()).unwrap_or_else(|| beside.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_set_lies_beside_the_old_one_under_a_name_that_is_free() {
        let place = tempfile::tempdir().unwrap();
        let set = place.path().join("set");
        std::fs::create_dir(&set).unwrap();
        let of = |paths: &[&Path]| {
            destination(&paths.iter().map(|path| path.to_path_buf()).collect::<Vec<_>>())
        };
        assert_eq!(of(&[&set.join("")]), place.path().join("set-rescued"));
        std::fs::create_dir(place.path().join("set-rescued")).unwrap();
        assert_eq!(of(&[&set]), place.path().join("set-rescued-2"));
        // Not in the folder itself, whatever it is called.
        assert_eq!(of(&[Path::new(".")]), Path::new("./../rescued"));
        assert_eq!(of(&[Path::new("a.tar"), Path::new("b.tar")]), Path::new("rescued"));
        assert_eq!(of(&[Path::new("s3://bucket/set")]), Path::new("rescued"));
    }

    #[test]
    fn nothing_is_told_where_nothing_would_come_of_it() {
        let paths = |path: &str| vec![PathBuf::from(path)];
        assert!(advice(&paths("a.tar"), 1, 1).contains("spdl pack a.tar rescued --on-error skip"));
        for (path, bad, images) in [
            ("a.tar", 0, 1),
            ("a.tar", 1, 0),
            ("https://me:secret@host/a.tar", 1, 1),
            ("https://host/a.tar?signature", 1, 1),
        ] {
            assert_eq!(advice(&paths(path), bad, images), "", "{path}");
        }
    }
}
