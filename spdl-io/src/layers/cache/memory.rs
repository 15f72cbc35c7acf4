//! The tier in memory.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::CachePolicy;
use super::entry::EntryId;

/// Entries in memory, up to a number of bytes.
pub(super) struct Memory {
    policy: CachePolicy,
    max_bytes: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By what decides who stays: the largest goes first.
    entries: BTreeMap<Rank, (EntryId, Bytes)>,
    /// Where the entries of recent use are; empty for the other policy.
    ranks: BTreeMap<u128, Rank>,
    bytes: u64,
    /// Uses so far.
    clock: u64,
}

/// An entry's place among the others: when it was used, counted backwards (0 where that does not
/// matter), and its hash.
type Rank = (u64, u128);

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

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that panics runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: &EntryId) -> Option<Bytes> {
        let mut state = self.state();
        if self.policy == CachePolicy::StableSubset {
            return state
                .entries
                .get(&(0, id.hash))
                .filter(|(kept, _)| kept == id)
                .cloned()
                .map(second);
        }
        let rank = *state.ranks.get(&id.hash)?;
        let (kept, bytes) = state.entries.remove(&rank)?;
        let found = (kept == *id).then(|| bytes.clone());
        let rank = state.next_rank(id.hash);
        state.entries.insert(rank, (kept, bytes));
        found
    }

    /// Takes an entry in, and gives those back that have no place here: others, or this one.
    pub(super) fn put(&self, id: &EntryId, bytes: &Bytes) -> Vec<(EntryId, Bytes)> {
        let len = bytes.len() as u64;
        if len > self.max_bytes {
            return vec![(id.clone(), bytes.clone())];
        }
        let mut state = self.state();
        let rank = match self.policy {
            CachePolicy::StableSubset => (0, id.hash),
            CachePolicy::Recent => {
                let old = state.ranks.get(&id.hash).copied();
                if let Some((_, old)) = old.and_then(|rank| state.entries.remove(&rank)) {
                    state.bytes -= old.len() as u64;
                }
                state.next_rank(id.hash)
            }
        };
        if let Some((_, old)) = state.entries.insert(rank, (id.clone(), bytes.clone())) {
            state.bytes -= old.len() as u64;
        }
        state.bytes += len;
        let mut left = Vec::new();
        while state.bytes > self.max_bytes
            && let Some(((_, hash), entry)) = state.entries.pop_last()
        {
            state.bytes -= entry.1.len() as u64;
            state.ranks.remove(&hash);
            left.push(entry);
        }
        left
    }

    /// Takes in what was found in the other tier, where recent use counts; else [`put`](Memory::put).
    pub(super) fn promote(&self, id: &EntryId, bytes: &Bytes) -> Vec<(EntryId, Bytes)> {
        match self.policy {
            CachePolicy::StableSubset => Vec::new(),
            CachePolicy::Recent => self.put(id, bytes),
        }
    }
}

impl State {
    fn next_rank(&mut self, hash: u128) -> Rank {
        self.clock += 1;
        let rank = (u64::MAX - self.clock, hash);
        self.ranks.insert(hash, rank);
        rank
    }
}

fn second<A, B>((_, b): (A, B)) -> B {
    b
}
