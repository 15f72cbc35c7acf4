//! An entry of a cache: who it is, and what its file looks like.

use std::sync::Arc;

use bytes::Bytes;
use twox_hash::XxHash3_128;

/// The first bytes of an entry's file; the last of them is the version of the format.
const MAGIC: &[u8; 8] = b"SPDLcch\x01";

/// Behind the magic: the length of the name, that of the contents, and the hash of all that follows
/// the header, with both lengths before it. Numbers are little-endian.
pub(super) const HEADER: usize = 8 + 8 + 8 + 16;

/// The full name of an entry, and its hash.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EntryId {
    pub(super) hash: u128,
    name: Arc<[u8]>,
}

impl EntryId {
    pub(super) fn new(namespace: &str, name: &[u8]) -> Self {
        let length = (namespace.len() as u64).to_le_bytes();
        let name: Arc<[u8]> = [&length[..], namespace.as_bytes(), name].concat().into();
        EntryId { hash: XxHash3_128::oneshot(&name), name }
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

    /// The contents of a file, where it is whole and of this very name.
    pub(super) fn contents(&self, file: Vec<u8>) -> Option<Bytes> {
        let start = HEADER + self.name.len();
        let body = file.get(start..)?;
        if file[..start] != self.head(body)[..] {
            return None;
        }
        Some(Bytes::from(file).slice(start..))
    }
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
        let mut hashes: Vec<u128> =
            ids.iter().map(|(space, name)| EntryId::new(space, name.as_bytes()).hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), ids.len());
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_seen() {
        let id = EntryId::new("space", b"name");
        let contents = b"some bytes";
        let file = [&id.head(contents)[..], contents].concat();
        assert_eq!(file.len() as u64, id.file_len(contents.len()));
        assert_eq!(id.contents(file.clone()).unwrap(), &contents[..]);
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 0x10;
            assert_eq!(id.contents(changed), None, "byte {at}");
            assert_eq!(id.contents(file[..at].to_vec()), None, "cut at {at}");
        }
        assert_eq!(id.contents([&file[..], b"x"].concat()), None, "longer");
        assert_eq!(EntryId::new("space", b"game").contents(file), None, "another name");
    }
}
