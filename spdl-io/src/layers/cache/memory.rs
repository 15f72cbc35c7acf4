//! The memory tier of a cache.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::CachePolicy;
use super::entry::EntryId;

/// Entries in memory, up to a limit in bytes.
pub(super) struct Memory {
    policy: CachePolicy,
    max_bytes: u64,
    state: Mutex<MemoryEntries>,
}

#[derive(Default)]
struct MemoryEntries {
    /// Entries by eviction order: the largest key is evicted first.
    entries: BTreeMap<EvictionKey, (EntryId, Bytes)>,
    /// Keys of `entries` by hash, for the policy `Recent`. Empty for `StableSubset`.
    keys: BTreeMap<u128, EvictionKey>,
    bytes: u64,
    /// Number of uses so far.
    clock: u64,
}

/// Eviction order: the time of the last use, counted backwards (0 for `StableSubset`), and the
/// hash.
type EvictionKey = (u64, u128);

impl Memory {
    pub(super) fn new(policy: CachePolicy, max_bytes: u64) -> Self {
        Memory { policy, max_bytes, state: Mutex::default() }
    }

    pub(super) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    pub(super) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    fn state(&self) -> MutexGuard<'_, MemoryEntries> {
        // No code that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: &EntryId) -> Option<Bytes> {
        let mut state = self.state();
        if self.policy == CachePolicy::StableSubset {
            return state
                .entries
                .get(&(0, id.hash))
                .filter(|(stored, _)| stored == id)
                .cloned()
                .map(second);
        }
        let key = *state.keys.get(&id.hash)?;
        let (stored, bytes) = state.entries.remove(&key)?;
        let found = (stored == *id).then(|| bytes.clone());
        let key = state.next_key(id.hash);
        state.entries.insert(key, (stored, bytes));
        found
    }

    /// Inserts an entry. Returns the evicted entries, possibly including the new one.
    pub(super) fn put(&self, id: &EntryId, bytes: &Bytes) -> Vec<(EntryId, Bytes)> {
        let len = bytes.len() as u64;
        if len > self.max_bytes {
            return vec![(id.clone(), bytes.clone())];
        }
        let mut state = self.state();
        let key = match self.policy {
            CachePolicy::StableSubset => (0, id.hash),
            CachePolicy::Recent => {
                let old = state.keys.get(&id.hash).copied();
                if let Some((_, old)) = old.and_then(|key| state.entries.remove(&key)) {
                    state.bytes -= old.len() as u64;
                }
                state.next_key(id.hash)
            }
        };
        if let Some((_, old)) = state.entries.insert(key, (id.clone(), bytes.clone())) {
            state.bytes -= old.len() as u64;
        }
        state.bytes += len;
        let mut evicted = Vec::new();
        while state.bytes > self.max_bytes
            && let Some(((_, hash), entry)) = state.entries.pop_last()
        {
            state.bytes -= entry.1.len() as u64;
            state.keys.remove(&hash);
            evicted.push(entry);
        }
        evicted
    }

    /// Inserts an entry found on disk, for the policy `Recent`. As [`put`](Memory::put).
    pub(super) fn promote(&self, id: &EntryId, bytes: &Bytes) -> Vec<(EntryId, Bytes)> {
        match self.policy {
            CachePolicy::StableSubset => Vec::new(),
            CachePolicy::Recent => self.put(id, bytes),
        }
    }
}

impl MemoryEntries {
    fn next_key(&mut self, hash: u128) -> EvictionKey {
        self.clock += 1;
        let key = (u64::MAX - self.clock, hash);
        self.keys.insert(hash, key);
        key
    }
}

fn second<A, B>((_, b): (A, B)) -> B {
    b
}
