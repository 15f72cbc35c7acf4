//! Memory of the device and of the host: what exists, and who may touch it when.

use std::collections::BTreeMap;
use std::ops::Range;

use super::accesses::{AccessHistory, AccessKind, Ticket, VectorClock, ViolationKind};
use super::world::FakeState;

pub(super) struct FakeAllocation {
    pub(super) bytes: Vec<u8>,
    history: AccessHistory,
}

pub(super) type FakeAllocations = BTreeMap<u64, FakeAllocation>;

impl FakeState {
    /// Notes that something is done to memory, and checks that it comes after all that it is in
    /// conflict with.
    pub(super) fn touch(
        &mut self,
        clock: &VectorClock,
        range: Range<u64>,
        deed: AccessKind,
        ticket: Option<Ticket>,
    ) {
        if range.is_empty() {
            return;
        }
        let on_device = !matches!(
            deed,
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
            let locked = self.locked.range_mut(..=range.start as usize).next_back();
            let locked = locked.filter(|(start, (len, _))| range.end as usize <= **start + len);
            Some(locked.map_or(&mut self.unlocked, |(_, (_, history))| history))
        };
        let Some(history) = history else {
            let message = format!("{deed} at {:#x}..{:#x}", range.start, range.end);
            return self.violate(ViolationKind::NoSuchMemory, message);
        };
        self.violations.extend(history.check(&self.known, clock, &range, deed));
        if let Some(ticket) = ticket {
            history.add(clock, range, deed, ticket);
        }
    }

    /// Notes that the program reads or writes host memory.
    pub(super) fn host_touches(&mut self, range: Range<u64>, deed: AccessKind) {
        let known = self.known.clone();
        self.touch(&known, range, deed, None);
    }

    /// Checks that nobody uses this locked memory any more.
    pub(super) fn let_go(&mut self, address: usize) {
        let Some((len, mut history)) = self.locked.remove(&address) else {
            return self.violate(ViolationKind::NoSuchMemory, "this memory is not locked");
        };
        let range = address as u64..(address + len) as u64;
        let found = history.check(&self.known, &self.known, &range, AccessKind::Release);
        self.violations.extend(found);
    }

    pub(super) fn free(&mut self, address: u64) {
        let len = self.memories.get(&address).map_or(0, |memory| memory.bytes.len());
        let known = self.known.clone();
        self.touch(&known, address..address + len as u64, AccessKind::Release, None);
        self.memories.remove(&address);
    }

    pub(super) fn allocate(&mut self, bytes: usize) -> Option<u64> {
        let taken: usize = self.memories.values().map(|memory| memory.bytes.len()).sum();
        if bytes > self.capacity.saturating_sub(taken) {
            return None;
        }
        let address = self.next_address;
        // Never the same address again, and a gap, so that what is freed stays known to be none.
        self.next_address += (bytes as u64).next_multiple_of(4096) + 4096;
        let memory = FakeAllocation { bytes: vec![0xcc; bytes], history: AccessHistory::default() };
        self.memories.insert(address, memory);
        Some(address)
    }

    pub(super) fn is_locked(&self, address: usize, bytes: usize) -> bool {
        let before = self.locked.range(..=address).next_back();
        before.is_some_and(|(start, (len, _))| address + bytes <= start + len)
    }

    pub(super) fn store(&mut self, to: u64, data: &[u8]) {
        store(&mut self.memories, to, data);
    }
}

/// Writes bytes of the device. What is no memory was reported when the work was queued.
pub(super) fn store(memories: &mut FakeAllocations, to: u64, data: &[u8]) {
    if let Some((start, memory)) = memories.range_mut(..=to).next_back() {
        let at = (to - start) as usize;
        if let Some(place) = memory.bytes.get_mut(at..at + data.len()) {
            place.copy_from_slice(data);
        }
    }
}

/// Bytes of the device.
pub(super) fn load(memories: &FakeAllocations, from: u64, bytes: usize) -> Option<&[u8]> {
    let (start, memory) = memories.range(..=from).next_back()?;
    let at = (from - start) as usize;
    memory.bytes.get(at..at + bytes)
}
