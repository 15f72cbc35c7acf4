//! The samples to pack, each with its key in the shards.

use std::collections::{HashMap, HashSet};
use std::path::MAIN_SEPARATOR;
use std::sync::Arc;

use spdl_core::{Dataset, Result};
use spdl_io::datasets::DatasetKind;
use spdl_io::records::StoredField;
use spdl_io::{Key, StoredRecord};
use twox_hash::XxHash3_128;

use crate::datasets::input::InputDataset;

/// The samples to pack, in the order of the data set.
#[derive(Debug)]
pub(crate) struct PackSource {
    pub(crate) opened: InputDataset,
    /// The common prefix that is removed from file keys: the folder of the images, or of the list.
    folder: Vec<u8>,
    /// By index of the sample: keys to which a number was appended to make them unique.
    keys: HashMap<u64, Box<[u8]>>,
}

/// A sample to pack.
#[derive(Clone, Debug)]
pub(crate) struct PackItem {
    /// The locations of the sample's fields, or the error if the sample is unreadable.
    pub(crate) record: Result<StoredRecord>,
    /// The name in messages.
    pub(crate) name: Key,
    /// The key in the shards.
    pub(crate) key: Box<[u8]>,
}

impl PackSource {
    pub(crate) fn new(opened: InputDataset) -> Self {
        let first = opened.first().as_bytes();
        let is_separator = |byte: &u8| *byte == b'/' || *byte == MAIN_SEPARATOR as u8;
        let folder = match opened.set.kind {
            DatasetKind::ImageFolder
                if first.is_empty() || first.last().is_some_and(is_separator) =>
            {
                first.to_vec()
            }
            DatasetKind::ImageFolder => [first, b"/"].concat(),
            _ => {
                let len = first.iter().rposition(is_separator).map_or(0, |at| at + 1);
                first[..len].to_vec()
            }
        };
        let mut source = PackSource { opened, folder, keys: HashMap::new() };
        source.make_keys_unique();
        source
    }

    /// Appends a number to each key that an earlier sample already has. Needs 16 bytes of memory
    /// per key, for its hash.
    fn make_keys_unique(&mut self) {
        let mut taken = HashSet::new();
        let mut repeated = Vec::new();
        for index in 0..self.len() {
            // Samples that cannot be read are not written, so they need no key.
            let Ok(PackItem { record: Ok(_), key, .. }) = self.item(index) else { continue };
            if !taken.insert(XxHash3_128::oneshot(&key)) {
                repeated.push((index, key));
            }
        }
        let mut last = HashMap::new();
        for (index, key) in repeated {
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
    }

    /// The kind of the data set.
    pub(crate) fn kind(&self) -> String {
        self.opened.set.kind.to_string()
    }

    pub(crate) fn classes(&self) -> &[String] {
        &self.opened.set.classes
    }

    /// The name of a sample in messages, and its key in the shards.
    fn name_and_key(&self, record: &StoredRecord) -> (Key, Vec<u8>) {
        let key = record.key.as_bytes();
        match self.opened.set.kind {
            DatasetKind::ImageFolder | DatasetKind::FileList => {
                let below = key.strip_prefix(&self.folder[..]).unwrap_or(key);
                (Key::from_bytes(below), key_of_file(below))
            }
            DatasetKind::TarShards | DatasetKind::ZipShards => {
                (record.key.clone(), key_of_archive_sample(record))
            }
            _ => (record.key.clone(), key_of_row(key)),
        }
    }
}

impl Dataset for PackSource {
    type Item = PackItem;

    fn len(&self) -> u64 {
        self.opened.set.samples.len()
    }

    /// Never fails: an unreadable sample also becomes an item, so that its error is handled in
    /// order.
    fn item(&self, index: u64) -> Result<PackItem> {
        let record = self.opened.set.samples.item(index);
        let (name, key) = match &record {
            Ok(record) => self.name_and_key(record),
            Err(error) => {
                let name = error.key().map_or_else(|| format!("sample {index}"), str::to_owned);
                (Key::from(name), Vec::new())
            }
        };
        let key = self.keys.get(&index).cloned().unwrap_or_else(|| key.into());
        Ok(PackItem { record, name, key })
    }

    fn content_hash(&self) -> Option<u64> {
        self.opened.set.samples.content_hash()
    }

    fn key(&self, item: &PackItem) -> Option<Arc<str>> {
        Some(item.name.display_name())
    }
}

/// The key of a file: its path or URL without extension, URL scheme, user information and query.
/// Other dots of the file name are replaced.
fn key_of_file(name: &[u8]) -> Vec<u8> {
    let path = match name.windows(3).position(|part| part == b"://") {
        // Query, fragment and user information may contain secrets.
        Some(at) => {
            let place = name[at + 3..].split(|byte| b"?#".contains(byte)).next();
            let place = place.unwrap_or_default();
            let host = place.iter().position(|&byte| byte == b'/').unwrap_or(place.len());
            let user = place[..host].iter().rposition(|&byte| byte == b'@').map_or(0, |at| at + 1);
            &place[user..]
        }
        None => name,
    };
    let file = path.iter().rposition(|&byte| byte == b'/' || byte == MAIN_SEPARATOR as u8);
    let file = file.map_or(0, |at| at + 1);
    let end =
        path[file..].iter().rposition(|&byte| byte == b'.').map_or(path.len(), |at| file + at);
    valid_key(&path[..end])
}

/// The key of a sample in an archive, without the name of the archive.
fn key_of_archive_sample(record: &StoredRecord) -> Vec<u8> {
    let archive = record.fields.iter().find_map(|(_, field)| match field {
        StoredField::At(extent, _) => Some(extent.object.as_bytes()),
        _ => None,
    });
    let of_row = || Some(record.row.as_ref()?.group.object()?.as_bytes());
    let archive = archive.or_else(of_row);
    let key = record.key.as_bytes();
    let name = archive.and_then(|archive| key.strip_prefix(archive)?.strip_prefix(b":"));
    valid_key(name.unwrap_or(key))
}

/// `FILE/ROW` for a row of a table.
fn key_of_row(key: &[u8]) -> Vec<u8> {
    let colon = key.iter().rposition(|&byte| byte == b':').unwrap_or(key.len());
    let (file, row) = key.split_at(colon);
    let name = file.rsplit(|&byte| byte == b'/' || byte == MAIN_SEPARATOR as u8).next();
    let row = row.strip_prefix(b":").unwrap_or(row);
    [&key_of_file(name.unwrap_or_default())[..], b"/", row].concat()
}

/// A valid key: no part is empty, `.` or `..`, and the last part has no dot.
fn valid_key(name: &[u8]) -> Vec<u8> {
    let parts = name.split(|&byte| byte == b'/' || byte == MAIN_SEPARATOR as u8);
    let parts = parts.filter(|part| !part.is_empty() && *part != b".");
    let mut parts: Vec<Vec<u8>> =
        parts.map(|part| if part == b".." { b"__".to_vec() } else { part.to_vec() }).collect();
    for part in &mut parts {
        part.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'_');
    }
    match parts.last_mut() {
        Some(last) => last.iter_mut().filter(|byte| **byte == b'.').for_each(|byte| *byte = b'_'),
        None => parts.push(b"sample".to_vec()),
    }
    parts.join(&b'/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datasets::input::Fields;
    use spdl_io::records::{Encoding, Extent};

    #[test]
    fn a_key_has_no_dot_in_its_last_part() {
        for (name, key) in [
            ("cat/1.jpg", "cat/1"),
            ("a.b/1.2.3.JPG", "a.b/1_2_3"),
            ("a.b/1", "a.b/1"),
            ("x..png", "x_"),
            ("größe 1.webp", "größe 1"),
        ] {
            assert_eq!(key_of_file(name.as_bytes()), key.as_bytes(), "{name}");
        }
        assert_eq!(key_of_file(b"caf\xe9.jpg"), b"caf\xe9");
    }

    #[test]
    fn keys_contain_no_parent_folders_and_no_secrets() {
        for (name, key) in [
            ("/data/1.jpg", "data/1"),
            ("../../1.jpg", "__/__/1"),
            ("a//./b.jpg", "a/b"),
            ("https://me:secret@host/a/1.jpg?token=secret", "host/a/1"),
            ("https://host?x=a/b", "host"),
            ("/", "sample"),
            (".", "sample"),
        ] {
            assert_eq!(String::from_utf8_lossy(&key_of_file(name.as_bytes())), key, "{name}");
        }
    }

    #[test]
    fn archive_samples_keep_their_keys_and_rows_become_file_and_number() {
        let of = |key: &str, object: &str| {
            let extent = Extent::part(object, 512..1024);
            let record = StoredRecord::new(key).with_stored("jpg", extent, Encoding::Bytes);
            String::from_utf8(key_of_archive_sample(&record)).unwrap()
        };
        assert_eq!(of("a/b:c.tar:d:e/0001", "a/b:c.tar"), "d:e/0001");
        assert_eq!(of("x.tar:./cat/1", "x.tar"), "cat/1");
        assert_eq!(of("x.tar:../1", "x.tar"), "__/1");
        let of = |key: &str| String::from_utf8(key_of_row(key.as_bytes())).unwrap();
        assert_eq!(of("a/train-0.v2.parquet:17"), "train-0_v2/17");
        assert_eq!(of("shard.00000.mds:3"), "shard_00000/3");
    }

    #[test]
    fn keys_are_unique() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.gif", "a.jpg", "a.png", "a_2.png", "b.c.png", "b_c.png"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let opened =
            InputDataset::open(&[folder.path().to_owned()], Fields::default(), "cannot open")
                .unwrap();
        let source = PackSource::new(opened);
        let keys: Vec<_> = (0..source.len())
            .map(|index| String::from_utf8(source.item(index).unwrap().key.into()).unwrap())
            .collect();
        assert_eq!(keys, ["a", "a_3", "a_4", "a_2", "b_c", "b_c_2"]);
    }
}
