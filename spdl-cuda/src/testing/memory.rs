//! Device memory and registered host memory, with their accesses.

use std::collections::BTreeMap;
use std::ops::Range;

use super::race_detector::{AccessHistory, AccessKind, OperationId, VectorClock, ViolationKind};
use super::state::FakeState;

pub(super) struct FakeAllocation {
    pub(super) bytes: Vec<u8>,
    history: AccessHistory,
}

pub(super) type FakeAllocations = BTreeMap<u64, FakeAllocation>;

impl FakeState {
    /// Records an access, and checks that it is ordered after all conflicting accesses.
    pub(super) fn record_access(
        &mut self,
        clock: &VectorClock,
        range: Range<u64>,
        kind: AccessKind,
        id: Option<OperationId>,
    ) {
        if range.is_empty() {
            return;
        }
        let on_device = !matches!(
            kind,
            AccessKind::CopyReadsHost
                | AccessKind::CopyWritesHost
                | AccessKind::HostReads
                | AccessKind::HostWrites
        );
        let history = if on_device {
            let memory = self.memories.range_mut(..=range.start).next_back();
            memory
                .filter(|(start, memory)| range.end <= **start + memory.bytes.len() as u64)
                .map(|(_, memory)| &mut memory.history)
        } else {
            let registered = self.registered.range_mut(..=range.start as usize).next_back();
            let registered =
                registered.filter(|(start, (len, _))| range.end as usize <= **start + len);
            Some(registered.map_or(&mut self.unregistered, |(_, (_, history))| history))
        };
        let Some(history) = history else {
            let message = format!("{kind} at {:#x}..{:#x}", range.start, range.end);
            return self.violate(ViolationKind::InvalidAddress, message);
        };
        self.violations.extend(history.check(&self.known, clock, &range, kind));
        if let Some(id) = id {
            history.add(clock, range, kind, id);
        }
    }

    /// Records an access of the program to host memory.
    pub(super) fn record_host_access(&mut self, range: Range<u64>, kind: AccessKind) {
        let known = self.known.clone();
        self.record_access(&known, range, kind, None);
    }

    /// Unregisters host memory, and checks that no work uses it.
    pub(super) fn unregister(&mut self, address: usize) {
        let Some((len, mut history)) = self.registered.remove(&address) else {
            return self.violate(ViolationKind::InvalidAddress, "the memory is not registered");
        };
        let range = address as u64..(address + len) as u64;
        let found = history.check(&self.known, &self.known, &range, AccessKind::Release);
        self.violations.extend(found);
    }

    pub(super) fn free(&mut self, address: u64) {
        let len = self.memories.get(&address).map_or(0, |memory| memory.bytes.len());
        let known = self.known.clone();
        self.record_access(&known, address..address + len as u64, AccessKind::Release, None);
        self.memories.remove(&address);
    }

    pub(super) fn allocate(&mut self, bytes: usize) -> Option<u64> {
        let taken: usize = self.memories.values().map(|memory| memory.bytes.len()).sum();
        if bytes > self.capacity.saturating_sub(taken) {
            return None;
        }
        let address = self.next_address;
        // Addresses have gaps and are never reused, so that accesses to freed memory are detected.
        self.next_address += (bytes as u64).next_multiple_of(4096) + 4096;
        let memory = FakeAllocation { bytes: vec![0xcc; bytes], history: AccessHistory::default() };
        self.memories.insert(address, memory);
        Some(address)
    }

    pub(super) fn is_registered(&self, address: usize, bytes: usize) -> bool {
        let before = self.registered.range(..=address).next_back();
        before.is_some_and(|(start, (len, _))| address + bytes <= start + len)
    }

    pub(super) fn store(&mut self, to: u64, data: &[u8]) {
        store(&mut self.memories, to, data);
    }
}

/// Writes device memory. Invalid addresses are not reported again: they were reported when the work
/// was queued.
pub(super) fn store(memories: &mut FakeAllocations, to: u64, data: &[u8]) {
    if let Some((start, memory)) = memories.range_mut(..=to).next_back() {
        let at = (to - start) as usize;
        if let Some(place) = memory.bytes.get_mut(at..at + data.len()) {
            place.copy_from_slice(data);
        }
    }
}

/// Reads device memory.
pub(super) fn load(memories: &FakeAllocations, from: u64, bytes: usize) -> Option<&[u8]> {
    let (start, memory) = memories.range(..=from).next_back()?;
    let at = (from - start) as usize;
    memory.bytes.get(at..at + bytes)
}
