//! Where samples come from. Another kind of source is another way to make a [`Source`].

use std::collections::{HashMap, HashSet};
use std::path::{MAIN_SEPARATOR, Path};
use std::sync::Arc;

use spdl_core::{Dataset, Result};
use spdl_io::{ImageFolder, Key};
use twox_hash::XxHash3_128;

/// What is to be packed, in the order in which it is listed.
#[derive(Debug)]
pub(crate) struct Source {
    images: ImageFolder,
    /// How long the part of each path is that is not below the root.
    prefix: usize,
    /// The keys that are not those of the path, by number, as another image has that one.
    keys: HashMap<u64, Box<[u8]>>,
}

/// An image that is to be packed.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// Where its bytes are.
    pub(crate) file: Key,
    /// Its name below the root.
    pub(crate) name: Key,
    /// The key of its sample.
    pub(crate) key: Box<[u8]>,
    /// The number of its class; -1 where there are none.
    pub(crate) label: i64,
}

impl Source {
    /// A folder of images.
    pub(crate) fn of_folder(root: &Path, images: ImageFolder) -> Result<Self> {
        let root = Key::from_path(root);
        let root = root.as_bytes();
        let separated =
            root.last().is_some_and(|&last| last == b'/' || last == MAIN_SEPARATOR as u8);
        let prefix = root.len() + usize::from(!separated && !root.is_empty());
        let mut source = Source { images, prefix, keys: HashMap::new() };
        source.make_keys_unique()?;
        Ok(source)
    }

    /// Where two images would have one key, all but the first get a number. Hashes are remembered, not
    /// keys: 16 bytes for each.
    fn make_keys_unique(&mut self) -> Result<()> {
        let mut taken = HashSet::new();
        let mut again = Vec::new();
        for index in 0..self.len() {
            let key = self.item(index)?.key;
            if !taken.insert(XxHash3_128::oneshot(&key)) {
                again.push((index, key));
            }
        }
        let mut last = HashMap::new();
        for (index, key) in again {
            let number: &mut u64 = last.entry(key.clone()).or_insert(1);
            let unique = loop {
                *number += 1;
                let unique = [&key, "_".as_bytes(), number.to_string().as_bytes()].concat();
                if taken.insert(XxHash3_128::oneshot(&unique)) {
                    break unique;
                }
            };
            self.keys.insert(index, unique.into());
        }
        Ok(())
    }

    /// What kind of source it is.
    pub(crate) fn kind(&self) -> &'static str {
        "image folder"
    }

    pub(crate) fn classes(&self) -> &[String] {
        self.images.classes()
    }
}

impl Dataset for Source {
    type Item = Item;

    fn len(&self) -> u64 {
        self.images.len()
    }

    fn item(&self, index: u64) -> Result<Item> {
        let image = self.images.item(index)?;
        let name = image.value.as_bytes().get(self.prefix..).unwrap_or_default();
        let key = self.keys.get(&index).cloned().unwrap_or_else(|| key_of(name).into());
        let name = Key::from_bytes(name);
        Ok(Item { file: image.value, name, key, label: image.label })
    }

    fn content_hash(&self) -> Option<u64> {
        self.images.content_hash()
    }

    fn key(&self, item: &Item) -> Option<Arc<str>> {
        Some(item.file.display_name())
    }
}

/// A path without its last extension, and without other dots in its last part.
fn key_of(name: &[u8]) -> Vec<u8> {
    let mut key: Vec<u8> =
        name.iter().map(|&byte| if byte == MAIN_SEPARATOR as u8 { b'/' } else { byte }).collect();
    let file = key.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    if let Some(dot) = key[file..].iter().rposition(|&byte| byte == b'.') {
        key.truncate(file + dot);
    }
    key[file..].iter_mut().filter(|byte| **byte == b'.').for_each(|byte| *byte = b'_');
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_no_dot_in_its_last_part() {
        for (name, key) in [
            ("cat/1.jpg", "cat/1"),
            ("a.b/1.2.3.JPG", "a.b/1_2_3"),
            ("x..png", "x_"),
            ("größe 1.webp", "größe 1"),
        ] {
            assert_eq!(key_of(name.as_bytes()), key.as_bytes(), "{name}");
        }
        assert_eq!(key_of(b"caf\xe9.jpg"), b"caf\xe9");
    }

    #[test]
    fn no_two_images_have_one_key() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.gif", "a.jpg", "a.png", "a_2.png", "b.c.png", "b_c.png"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let images = ImageFolder::open(folder.path()).unwrap();
        let source = Source::of_folder(folder.path(), images).unwrap();
        let keys: Vec<_> = (0..source.len())
            .map(|index| String::from_utf8(source.item(index).unwrap().key.into()).unwrap())
            .collect();
        assert_eq!(keys, ["a", "a_3", "a_4", "a_2", "b_c", "b_c_2"]);
    }
}
