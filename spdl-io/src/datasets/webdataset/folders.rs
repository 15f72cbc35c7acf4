//! [`ClassFolders`]: classes that are folders in an archive.

use std::collections::BTreeSet;

use crate::datasets::image_folder::is_split_name;
use crate::fetch::Key;
use crate::records::IMAGE_EXTENSIONS;

/// The maximum number of classes. If there are more folders, they are not classes.
const MAX_CLASSES: usize = 1_000_000;

/// The folders that are classes: those directly below the common folder of all images.
pub(super) struct ClassFolders {
    /// The depth of the common folder.
    depth: usize,
    /// The class names, sorted by their bytes.
    names: Vec<Box<[u8]>>,
}

impl ClassFolders {
    /// Derives class folders from image names, if each image is in a folder below the common folder. `None` if
    /// all folders are named like splits (`train`, `val`), or are [hash buckets](are_hash_buckets).
    pub(super) fn of<'a>(images: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Self> {
        let mut names = images.clone();
        let mut common: Vec<&[u8]> = folders_of(names.next()?).collect();
        for name in names {
            if common.is_empty() {
                break;
            }
            let same = common.iter().zip(folders_of(name)).take_while(|(a, b)| *a == b).count();
            common.truncate(same);
        }
        let depth = common.len();
        let mut classes = BTreeSet::new();
        for name in images {
            classes.insert(folders_of(name).nth(depth)?);
            if classes.len() > MAX_CLASSES {
                return None;
            }
        }
        let is_split = |name: &&[u8]| std::str::from_utf8(name).is_ok_and(is_split_name);
        if classes.iter().all(is_split) || are_hash_buckets(&classes) {
            return None;
        }
        Some(ClassFolders { depth, names: classes.into_iter().map(Into::into).collect() })
    }

    /// The label of a sample; −1 if it is in no class folder.
    pub(super) fn label(&self, name: &[u8]) -> i64 {
        let folder = folders_of(name).nth(self.depth);
        let index = folder.and_then(|it| self.names.binary_search_by(|name| (**name).cmp(it)).ok());
        index.map_or(-1, |index| index as i64)
    }

    /// The class names.
    pub(super) fn names(&self) -> Vec<String> {
        self.names.iter().map(|name| Key::from_bytes(name).to_string()).collect()
    }
}

/// Whether folders look like hash buckets: hexadecimal numbers of equal length, with at least two digits
/// (`00`, `01`, `3f`).
///
/// Not hash buckets: consecutive numbers (`0` to `9`, `000` to `999`), names such as `n01440764`, and words
/// without decimal digits, such as `bee` and `cab`.
fn are_hash_buckets(folders: &BTreeSet<&[u8]>) -> bool {
    if are_consecutive(folders) {
        return false;
    }
    let len = folders.first().map_or(0, |name| name.len());
    let is_hex = |name: &&[u8]| name.len() == len && name.iter().all(u8::is_ascii_hexdigit);
    let has_digit = folders.iter().any(|name| name.iter().any(u8::is_ascii_digit));
    len >= 2 && has_digit && folders.iter().all(is_hex)
}

/// Whether folders are consecutive decimal numbers of equal length, starting with 0 or 1.
fn are_consecutive(folders: &BTreeSet<&[u8]>) -> bool {
    let len = folders.first().map_or(0, |name| name.len());
    let number = |name: &[u8]| {
        let is_decimal = name.len() == len && name.iter().all(u8::is_ascii_digit);
        std::str::from_utf8(name).ok().filter(|_| is_decimal)?.parse::<u64>().ok()
    };
    let Some(first @ 0..=1) = folders.first().and_then(|name| number(name)) else { return false };
    (first..).zip(folders).all(|(expected, name)| number(name) == Some(expected))
}

/// The folders of a sample, the outermost first.
fn folders_of(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = name.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    name[..end].split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// Whether a field name has the extension of an image: `jpg`, `left.png`.
pub(super) fn is_image(field: &str) -> bool {
    IMAGE_EXTENSIONS.contains(&field.rsplit('.').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(names: &[&str]) -> Option<(Vec<String>, Vec<i64>)> {
        let bytes = || names.iter().map(|name| name.as_bytes());
        let folders = ClassFolders::of(bytes())?;
        Some((folders.names(), bytes().map(|name| folders.label(name)).collect()))
    }

    #[test]
    fn classes_are_the_folders_below_the_common_folder() {
        for (names, classes, expected) in [
            (&["dog/1", "cat/1", "dog/2"][..], &["cat", "dog"][..], &[1, 0, 1][..]),
            (&["train/cat/1", "train/dog/more/1"], &["cat", "dog"], &[0, 1]),
            (&["./a/x/1", "a//y/1", "/a/x/2"], &["x", "y"], &[0, 1, 0]),
            // Sorted by bytes, not as numbers.
            (&["2/1", "10/1", "Z/1", "a/1"], &["10", "2", "Z", "a"], &[1, 0, 2, 3]),
            // Digits, WordNet identifiers, words of hexadecimal letters.
            (&["0/1", "9/1", "3/1"], &["0", "3", "9"], &[0, 2, 1]),
            (&["9/1", "10/1"], &["10", "9"], &[1, 0]),
            (&["n01440764/1", "n01443537/1"], &["n01440764", "n01443537"], &[0, 1]),
            (&["bee/1", "cab/1"], &["bee", "cab"], &[0, 1]),
            // Consecutive numbers with leading zeros.
            (&["002/1", "000/1", "001/1"], &["000", "001", "002"], &[2, 0, 1]),
            (&["train/02/1", "train/01/1"], &["01", "02"], &[1, 0]),
        ] {
            let found = labels(names).unwrap_or_else(|| panic!("no classes in {names:?}"));
            assert_eq!(found, (classes.iter().map(|&it| it.into()).collect(), expected.to_vec()));
        }
    }

    #[test]
    fn ambiguous_folders_are_not_classes() {
        for names in [
            &[][..],
            &["1", "2"],
            // A single common folder.
            &["images/1", "images/2"],
            &["train/cat/1"],
            // An image outside of the folders.
            &["cat/1", "dog/1", "2"],
            &["x/cat/1", "x/dog/1", "x/2"],
            &["train/cat/1", "Val/cat/1"],
            // Hash buckets, and numbers with gaps.
            &["00/1", "01/1", "3f/1"],
            &["images/0a3/1", "images/FF0/1"],
            &["00000/1", "00002/1"],
            &["02/1", "03/1"],
            &["000/1", "001/1", "0a0/1"],
        ] {
            assert_eq!(labels(names), None, "{names:?}");
        }
        // A split name among other names is a class.
        assert!(labels(&["test/1", "cat/1"]).is_some());
    }
}
