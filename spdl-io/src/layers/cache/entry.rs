//! An entry of a cache: who it is, and what its file looks like.

use std::sync::Arc;

use bytes::Bytes;
use twox_hash::XxHash3_128;

/// The first bytes of an entry's file; the last of them is the version of the format.
const MAGIC: &[u8; 8] = b"SPDLcch\x01";

/// Behind the magic: the length of the name, that of the contents, and the hash of all that follows
/// the header, with both lengths before it. Numbers are little-endian.
pub(super) const HEADER: usize = 8 + 8 + 8 + 16;

/// Stands between a name and its version.
const VERSION: &[u8; 9] = b"\0version\0";

/// The full name of an entry, with the version of what it holds, and its hash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EntryId {
    /// Of the name without the version: another version has the same place, so that one never lies
    /// beside the other, and those that are kept are the same whatever changes.
    pub(super) hash: u128,
    name: Arc<[u8]>,
}

/// What a file is to an entry.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    /// Its contents.
    Contents(Bytes),
    /// Another entry of the same place: an older version.
    Other,
    Damaged,
}

impl EntryId {
    /// No version is one too.
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

    /// How long the file of an entry with so many bytes is.
    pub(super) fn file_len(&self, bytes: usize) -> u64 {
        (HEADER + self.name.len() + bytes) as u64
    }

    /// What comes before the contents.
    pub(super) fn head(&self, contents: &[u8]) -> Vec<u8> {
        let mut head = Vec::with_capacity(HEADER + self.name.len());
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&(self.name.len() as u64).to_le_bytes());
        head.extend_from_slice(&(contents.len() as u64).to_le_bytes());
        head.extend_from_slice(&checksum(&self.name, contents).to_le_bytes());
        head.extend_from_slice(&self.name);
        head
    }

    /// The contents of a file, where it is whole and of this very name and version.
    pub(super) fn contents(&self, file: Vec<u8>) -> Found {
        let start = HEADER + self.name.len();
        match file.get(start..) {
            Some(body) if file[..start] == self.head(body)[..] => {
                Found::Contents(Bytes::from(file).slice(start..))
            }
            _ if is_whole(&file) => Found::Other,
            _ => Found::Damaged,
        }
    }
}

/// Whether a file is a whole entry, of whatever name.
fn is_whole(file: &[u8]) -> bool {
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
    fn names_and_namespaces_cannot_be_mixed_up() {
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
    fn versions_share_a_place_and_are_not_mixed_up() {
        let of = |version: Option<&[u8]>| EntryId::new("space", b"name", version);
        let (none, first, second) = (of(None), of(Some(b"1")), of(Some(b"2")));
        assert!(none.hash == first.hash && first.hash == second.hash);
        for id in [&none, &first, &second] {
            let file = [&id.head(b"bytes")[..], b"bytes"].concat();
            for asked in [&none, &first, &second] {
                let found = asked.contents(file.clone());
                match asked == id {
                    true => assert_eq!(found, Found::Contents(Bytes::from_static(b"bytes"))),
                    false => assert_eq!(found, Found::Other, "{asked:?} in the place of {id:?}"),
                }
            }
        }
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_seen() {
        let id = EntryId::new("space", b"name", None);
        let contents = b"some bytes";
        let file = [&id.head(contents)[..], contents].concat();
        assert_eq!(file.len() as u64, id.file_len(contents.len()));
        assert_eq!(id.contents(file.clone()), Found::Contents(Bytes::from_static(contents)));
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 0x10;
            assert_eq!(id.contents(changed), Found::Damaged, "byte {at}");
            assert_eq!(id.contents(file[..at].to_vec()), Found::Damaged, "cut at {at}");
        }
        assert_eq!(id.contents([&file[..], b"x"].concat()), Found::Damaged, "longer");
        let other = EntryId::new("space", b"game", None);
        assert_eq!(other.contents(file), Found::Other, "another name");
    }
}
