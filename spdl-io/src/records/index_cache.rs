//! [`IndexCache`]: the headers and tables of files, for other samples of the same files.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::fetch::Key;
use crate::records::PartialFile;

/// A cache of the parts of files that list where samples are: headers and tables.
///
/// With them, another sample of the same file needs only its own bytes. Entries belong to a version of
/// an object; objects of stores that report no versions are not cached. The least recently used entries
/// are dropped first. Clones share the memory, which is not part of the memory budget of a pipeline.
///
/// ```
/// use spdl_io::records::IndexCache;
/// let cache = IndexCache::new(16 << 20);
/// assert_eq!(cache.bytes(), 0);
/// ```
#[derive(Clone)]
pub struct IndexCache {
    shared: Arc<SharedIndices>,
    /// The number of the data set, if a source consists of several.
    part: usize,
}

struct SharedIndices {
    max_bytes: u64,
    state: Mutex<IndexState>,
}

#[derive(Default)]
struct IndexState {
    files: HashMap<(usize, Key, u64), CachedIndex>,
    bytes: u64,
    /// A counter that orders uses by time.
    uses: u64,
}

struct CachedIndex {
    index: FileIndex,
    last_use: u64,
}

/// The version of an object, and the parts of a file in it.
#[derive(Clone)]
pub(super) struct FileIndex {
    /// Without a store for other parts.
    pub(super) file: PartialFile,
    pub(super) version: Arc<str>,
    /// The size of the object, if it is known.
    pub(super) object_size: Option<u64>,
}

impl IndexCache {
    /// The default size in bytes: 64 MiB.
    pub const DEFAULT_BYTES: u64 = 64 << 20;

    /// A cache of at most `max_bytes` bytes.
    pub fn new(max_bytes: u64) -> Self {
        let shared = SharedIndices { max_bytes, state: Mutex::default() };
        IndexCache { shared: Arc::new(shared), part: 0 }
    }

    /// The number of cached bytes.
    pub fn bytes(&self) -> u64 {
        self.state().bytes
    }

    /// The same cache for the data set of this number.
    pub(super) fn of_part(&self, part: usize) -> Self {
        IndexCache { shared: Arc::clone(&self.shared), part }
    }

    /// The entry of the file that starts at `start` of an object. `version` is the required version.
    pub(super) fn get(
        &self,
        object: &Key,
        start: u64,
        version: Option<&Arc<str>>,
    ) -> Option<FileIndex> {
        let mut state = self.state();
        state.uses += 1;
        let last_use = state.uses;
        let entry = state.files.get_mut(&(self.part, object.clone(), start))?;
        if version.is_some_and(|version| *version != entry.index.version) {
            return None;
        }
        entry.last_use = last_use;
        Some(entry.index.clone())
    }

    /// Stores an entry. Its bytes are copied, because a part may share the memory of a larger read.
    pub(super) fn put(&self, object: &Key, start: u64, index: &FileIndex) {
        let bytes = index.file.bytes_in_memory();
        if bytes > self.shared.max_bytes {
            return;
        }
        let mut file = PartialFile::new(index.file.size());
        index.file.parts().for_each(|(at, part)| file.insert(at, Bytes::copy_from_slice(part)));
        let index = FileIndex { file, ..index.clone() };
        let mut state = self.state();
        state.uses += 1;
        let entry = CachedIndex { index, last_use: state.uses };
        state.remove(&(self.part, object.clone(), start));
        state.files.insert((self.part, object.clone(), start), entry);
        state.bytes += bytes;
        while state.bytes > self.shared.max_bytes {
            let oldest = state.files.iter().min_by_key(|(_, entry)| entry.last_use);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            state.remove(&oldest);
        }
    }

    /// Drops the entry of a file, because the object has changed.
    pub(super) fn remove(&self, object: &Key, start: u64) {
        self.state().remove(&(self.part, object.clone(), start));
    }

    fn state(&self) -> MutexGuard<'_, IndexState> {
        // No code under the lock panics.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for IndexCache {
    fn default() -> Self {
        IndexCache::new(IndexCache::DEFAULT_BYTES)
    }
}

impl IndexState {
    fn remove(&mut self, key: &(usize, Key, u64)) {
        let removed = self.files.remove(key);
        self.bytes -= removed.map_or(0, |entry| entry.index.file.bytes_in_memory());
    }
}

impl fmt::Debug for IndexCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IndexCache({} of {} bytes)", self.bytes(), self.shared.max_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(bytes: usize, version: &str) -> FileIndex {
        let mut file = PartialFile::new(1 << 20);
        file.insert(10, vec![1; bytes].into());
        FileIndex { file, version: version.into(), object_size: None }
    }

    #[test]
    fn the_least_recently_used_entry_is_dropped() {
        let cache = IndexCache::new(100);
        let keys = ["a", "b", "c"].map(Key::from);
        cache.put(&keys[0], 0, &index(40, "1"));
        cache.put(&keys[1], 0, &index(40, "1"));
        assert!(cache.get(&keys[0], 0, None).is_some());
        cache.put(&keys[2], 0, &index(50, "1"));
        assert!(cache.get(&keys[1], 0, None).is_none());
        assert!(cache.get(&keys[0], 0, None).is_some());
        assert_eq!(cache.bytes(), 90);
        cache.put(&keys[0], 0, &index(30, "2"));
        assert_eq!(cache.bytes(), 80);
        // An entry that is larger than the cache replaces none.
        cache.put(&keys[1], 0, &index(101, "1"));
        assert_eq!(cache.bytes(), 80);
        cache.remove(&keys[0], 0);
        assert_eq!(cache.bytes(), 50);
    }

    #[test]
    fn entries_have_an_object_a_position_a_data_set_and_a_version() {
        let (cache, key) = (IndexCache::default(), Key::from("a"));
        cache.put(&key, 5, &index(8, "1"));
        assert!(cache.get(&key, 5, Some(&"1".into())).is_some());
        assert!(cache.get(&key, 5, Some(&"2".into())).is_none());
        assert!(cache.get(&key, 6, None).is_none());
        assert!(cache.get(&"b".into(), 5, None).is_none());
        assert!(cache.of_part(1).get(&key, 5, None).is_none());
    }
}
