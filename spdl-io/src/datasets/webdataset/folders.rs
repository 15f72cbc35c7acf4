//! Classes that an archive keeps in folders, as a folder of images does.

use std::collections::BTreeSet;

use crate::datasets::image_folder::is_part_of_data;
use crate::fetch::Key;
use crate::records::IMAGE_EXTENSIONS;

/// Where there are more folders, they are none of classes.
const MOST_CLASSES: usize = 1_000_000;

/// The folders that are classes: those directly below the one that all images lie in.
pub(super) struct ClassFolders {
    /// How many folders lie around them.
    depth: usize,
    /// Their names, sorted by their bytes.
    names: Vec<Box<[u8]>>,
}

impl ClassFolders {
    /// Of these names of images, where each lies in a folder below the one that all lie in. Folders that
    /// are named as parts of a data set (`train`, `val`, …), or that [hashes](are_buckets) spread the images
    /// over, are no classes.
    pub(super) fn of<'a>(images: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Self> {
        let mut names = images.clone();
        let mut around: Vec<&[u8]> = folders_of(names.next()?).collect();
        for name in names {
            if around.is_empty() {
                break;
            }
            let same = around.iter().zip(folders_of(name)).take_while(|(a, b)| *a == b).count();
            around.truncate(same);
        }
        let depth = around.len();
        let mut classes = BTreeSet::new();
        for name in images {
            classes.insert(folders_of(name).nth(depth)?);
            if classes.len() > MOST_CLASSES {
                return None;
            }
        }
        let is_part = |name: &&[u8]| std::str::from_utf8(name).is_ok_and(is_part_of_data);
        if classes.iter().all(is_part) || are_buckets(&classes) {
            return None;
        }
        Some(ClassFolders { depth, names: classes.into_iter().map(Into::into).collect() })
    }

    /// The label of a sample of this name; −1 where it lies in none of the folders.
    pub(super) fn label(&self, name: &[u8]) -> i64 {
        let folder = folders_of(name).nth(self.depth);
        let place = folder.and_then(|it| self.names.binary_search_by(|name| (**name).cmp(it)).ok());
        place.map_or(-1, |place| place as i64)
    }

    /// The names of the classes.
    pub(super) fn names(&self) -> Vec<String> {
        self.names.iter().map(|name| Key::from_bytes(name).to_string()).collect()
    }
}

/// Whether folders are mostly ones that hashes spread files over: all are hexadecimal numbers of one length
/// (`00`, `01`, `3f`), of two digits at least. `0` to `9` are classes, and so are `000` to `999`, as they
/// count; `n01440764` is one, and so are the words `bee` and `cab`, as no decimal digit is in them.
fn are_buckets(folders: &BTreeSet<&[u8]>) -> bool {
    if do_count(folders) {
        return false;
    }
    let len = folders.first().map_or(0, |name| name.len());
    let is_hex = |name: &&[u8]| name.len() == len && name.iter().all(u8::is_ascii_hexdigit);
    let has_digit = folders.iter().any(|name| name.iter().any(u8::is_ascii_digit));
    len >= 2 && has_digit && folders.iter().all(is_hex)
}

/// Whether all are decimal numbers of one length, the first 0 or 1 and each one more than the last: sorted
/// by their bytes they are sorted as numbers, too.
fn do_count(folders: &BTreeSet<&[u8]>) -> bool {
    let len = folders.first().map_or(0, |name| name.len());
    let number = |name: &[u8]| {
        let is_decimal = name.len() == len && name.iter().all(u8::is_ascii_digit);
        std::str::from_utf8(name).ok().filter(|_| is_decimal)?.parse::<u64>().ok()
    };
    let Some(first @ 0..=1) = folders.first().and_then(|name| number(name)) else { return false };
    (first..).zip(folders).all(|(expected, name)| number(name) == Some(expected))
}

/// The folders that a sample lies in, the outermost first.
fn folders_of(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = name.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    name[..end].split(|&byte| byte == b'/').filter(|part| !part.is_empty() && *part != b".")
}

/// Whether a field of this name is an image: `jpg`, `left.png`.
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
    fn classes_are_the_folders_below_the_one_that_all_images_lie_in() {
        for (names, classes, expected) in [
            (&["dog/1", "cat/1", "dog/2"][..], &["cat", "dog"][..], &[1, 0, 1][..]),
            (&["train/cat/1", "train/dog/more/1"], &["cat", "dog"], &[0, 1]),
            (&["./a/x/1", "a//y/1", "/a/x/2"], &["x", "y"], &[0, 1, 0]),
            // By their bytes, not as numbers.
            (&["2/1", "10/1", "Z/1", "a/1"], &["10", "2", "Z", "a"], &[1, 0, 2, 3]),
            // Digits that are classes, names of WordNet, words of the letters of hexadecimal numbers.
            (&["0/1", "9/1", "3/1"], &["0", "3", "9"], &[0, 2, 1]),
            (&["9/1", "10/1"], &["10", "9"], &[1, 0]),
            (&["n01440764/1", "n01443537/1"], &["n01440764", "n01443537"], &[0, 1]),
            (&["bee/1", "cab/1"], &["bee", "cab"], &[0, 1]),
            // Numbers that count, with zeros before them.
            (&["002/1", "000/1", "001/1"], &["000", "001", "002"], &[2, 0, 1]),
            (&["train/02/1", "train/01/1"], &["01", "02"], &[1, 0]),
        ] {
            let found = labels(names).unwrap_or_else(|| panic!("no classes in {names:?}"));
            assert_eq!(found, (classes.iter().map(|&it| it.into()).collect(), expected.to_vec()));
        }
    }

    #[test]
    fn folders_that_may_be_something_else_are_no_classes() {
        for names in [
            &[][..],
            &["1", "2"],
            // One folder around everything says nothing.
            &["images/1", "images/2"],
            &["train/cat/1"],
            // An image beside the folders.
            &["cat/1", "dog/1", "2"],
            &["x/cat/1", "x/dog/1", "x/2"],
            &["train/cat/1", "Val/cat/1"],
            // Hashes, and numbers that leave some out.
            &["00/1", "01/1", "3f/1"],
            &["images/0a3/1", "images/FF0/1"],
            &["00000/1", "00002/1"],
            &["02/1", "03/1"],
            &["000/1", "001/1", "0a0/1"],
        ] {
            assert_eq!(labels(names), None, "{names:?}");
        }
        // One that is called so among others is a class.
        assert!(labels(&["test/1", "cat/1"]).is_some());
    }
}
