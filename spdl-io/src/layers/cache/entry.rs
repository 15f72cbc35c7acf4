//! The identity of a cache entry, and the format of its file.

use std::sync::Arc;

use bytes::Bytes;
use twox_hash::XxHash3_128;

/// Magic number of an entry's file. The last byte is the version of the format.
const MAGIC: &[u8; 8] = b"SPDLcch\x01";

/// Length of the header: magic, length of the name (u64), length of the contents (u64), and a
/// hash (XXH3-128) of both lengths, name and contents. Numbers are little-endian.
pub(super) const HEADER: usize = 8 + 8 + 8 + 16;

/// Separates the name from the version.
const VERSION: &[u8; 9] = b"\0version\0";

/// The namespace, name and version of an entry, and a hash of the name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EntryId {
    /// Hash of namespace and name. All versions share the hash, so that a new version replaces the
    /// old one, and the stable subset does not depend on versions.
    pub(super) hash: u128,
    name: Arc<[u8]>,
}

/// The result of parsing an entry's file.
#[derive(Debug, PartialEq)]
pub(super) enum StoredEntry {
    /// The contents of the expected entry.
    Contents(Bytes),
    /// A valid entry with the same hash, such as an older version.
    Other,
    Corrupt,
}

impl EntryId {
    /// Creates an identity. `None` is a separate version.
    pub(super) fn new(namespace: &str, name: &[u8], version: Option<&[u8]>) -> Self {
        let length = (namespace.len() as u64).to_le_bytes();
        let mut full = [&length[..], namespace.as_bytes(), name].concat();
        let hash = XxHash3_128::oneshot(&full);
        if let Some(version) = version {
            full.extend_from_slice(VERSION);
            full.extend_from_slice(version);
        }
        EntryId { hash, name: full.into() }
    }

    /// Returns the length of the file for contents of `bytes` bytes.
    pub(super) fn file_len(&self, bytes: usize) -> u64 {
        (HEADER + self.name.len() + bytes) as u64
    }

    /// Returns the header and the name, which precede the contents.
    pub(super) fn head(&self, contents: &[u8]) -> Vec<u8> {
        let mut head = Vec::with_capacity(HEADER + self.name.len());
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&(self.name.len() as u64).to_le_bytes());
        head.extend_from_slice(&(contents.len() as u64).to_le_bytes());
        head.extend_from_slice(&checksum(&self.name, contents).to_le_bytes());
        head.extend_from_slice(&self.name);
        head
    }

    /// Parses a file, and checks its hash, name and version.
    pub(super) fn contents(&self, file: Bytes) -> StoredEntry {
        let start = HEADER + self.name.len();
        match file.get(start..) {
            Some(body) if file[..start] == self.head(body)[..] => {
                StoredEntry::Contents(file.slice(start..))
            }
            _ if is_valid(&file) => StoredEntry::Other,
            _ => StoredEntry::Corrupt,
        }
    }
}

/// Returns whether a file is a valid entry of any name.
fn is_valid(file: &[u8]) -> bool {
    let name_len = file.get(MAGIC.len()..).and_then(|rest| rest.first_chunk());
    let name_len = name_len.and_then(|&len| usize::try_from(u64::from_le_bytes(len)).ok());
    let name = name_len.and_then(|len| file.get(HEADER..)?.get(..len));
    let Some(name) = name else { return false };
    let id = EntryId { hash: 0, name: name.into() };
    let (head, contents) = file.split_at(HEADER + name.len());
    head == &id.head(contents)[..]
}

fn checksum(name: &[u8], contents: &[u8]) -> u128 {
    let mut hasher = XxHash3_128::new();
    hasher.write(&(name.len() as u64).to_le_bytes());
    hasher.write(&(contents.len() as u64).to_le_bytes());
    hasher.write(name);
    hasher.write(contents);
    hasher.finish_128()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_separate_namespace_and_name() {
        let ids = [("", "ab"), ("a", "b"), ("ab", ""), ("b", "a")];
        let mut hashes: Vec<u128> = ids
            .iter()
            .map(|(space, name)| EntryId::new(space, name.as_bytes(), None).hash)
            .collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), ids.len());
    }

    #[test]
    fn versions_share_a_hash_and_are_distinguished() {
        let of = |version: Option<&[u8]>| EntryId::new("space", b"name", version);
        let (none, first, second) = (of(None), of(Some(b"1")), of(Some(b"2")));
        assert!(none.hash == first.hash && first.hash == second.hash);
        for id in [&none, &first, &second] {
            let file = [&id.head(b"bytes")[..], b"bytes"].concat();
            for wanted in [&none, &first, &second] {
                let found = wanted.contents(file.clone().into());
                match wanted == id {
                    true => assert_eq!(found, StoredEntry::Contents(Bytes::from_static(b"bytes"))),
                    false => {
                        assert_eq!(found, StoredEntry::Other, "{wanted:?} reads the file of {id:?}")
                    }
                }
            }
        }
    }

    #[test]
    fn changed_and_truncated_files_are_corrupt() {
        let id = EntryId::new("space", b"name", None);
        let contents = b"some bytes";
        let file = [&id.head(contents)[..], contents].concat();
        assert_eq!(file.len() as u64, id.file_len(contents.len()));
        assert_eq!(
            id.contents(file.clone().into()),
            StoredEntry::Contents(Bytes::from_static(contents))
        );
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 0x10;
            assert_eq!(id.contents(changed.into()), StoredEntry::Corrupt, "byte {at}");
            assert_eq!(
                id.contents(file[..at].to_vec().into()),
                StoredEntry::Corrupt,
                "truncated at {at}"
            );
        }
        assert_eq!(id.contents([&file[..], b"x"].concat().into()), StoredEntry::Corrupt, "longer");
        let other = EntryId::new("space", b"game", None);
        assert_eq!(other.contents(file.into()), StoredEntry::Other, "another name");
    }
}
