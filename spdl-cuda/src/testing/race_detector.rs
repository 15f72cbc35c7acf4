//! Race detection: vector clocks find conflicting accesses that are not ordered.

use std::fmt;
use std::ops::Range;

/// A vector clock: for each stream, the number of operations that precede this point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VectorClock(Vec<u64>);

/// An operation: a stream and its sequence number in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OperationId {
    pub(super) stream: usize,
    pub(super) number: u64,
}

impl VectorClock {
    /// Whether the operation precedes the clock.
    pub(super) fn is_after(&self, operation: OperationId) -> bool {
        self.0.get(operation.stream).is_some_and(|&number| number >= operation.number)
    }

    /// Merges another clock: the result is ordered after both.
    pub(super) fn join(&mut self, other: &VectorClock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Adds an operation of a stream.
    pub(super) fn advance(&mut self, stream: usize) -> OperationId {
        if self.0.len() <= stream {
            self.0.resize(stream + 1, 0);
        }
        self.0[stream] += 1;
        OperationId { stream, number: self.0[stream] }
    }
}

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessKind {
    /// A copy to the device reads host memory.
    CopyReadsHost,
    /// A copy to the device writes device memory.
    CopyWritesDevice,
    /// A copy to the host reads device memory.
    CopyReadsDevice,
    /// A copy to the host writes host memory.
    CopyWritesHost,
    /// A kernel reads device memory.
    KernelReads,
    /// A kernel writes device memory.
    KernelWrites,
    /// The program reads host memory.
    HostReads,
    /// The program writes host memory.
    HostWrites,
    /// Memory is freed or unregistered.
    Release,
}

impl AccessKind {
    fn writes(self) -> bool {
        !matches!(
            self,
            AccessKind::CopyReadsHost
                | AccessKind::CopyReadsDevice
                | AccessKind::KernelReads
                | AccessKind::HostReads
        )
    }
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessKind::CopyReadsHost => "a copy to the device reads host memory",
            AccessKind::CopyWritesDevice => "a copy to the device writes device memory",
            AccessKind::CopyReadsDevice => "a copy to the host reads device memory",
            AccessKind::CopyWritesHost => "a copy to the host writes host memory",
            AccessKind::KernelReads => "a kernel reads",
            AccessKind::KernelWrites => "a kernel writes",
            AccessKind::HostReads => "the program reads",
            AccessKind::HostWrites => "the program writes",
            AccessKind::Release => "the memory is released",
        })
    }
}

/// The kind of a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViolationKind {
    /// A read that is not ordered after the write of the same bytes: a wait is missing.
    ReadBeforeWrite,
    /// A write to device memory that other work may still use.
    OverwrittenInUse,
    /// The program accesses host memory while a copy uses it.
    HostAccessDuringCopy,
    /// Memory is freed or unregistered while other work may still use it.
    ReleasedInUse,
    /// An access to memory that was freed or never allocated, or beyond the end of an allocation.
    InvalidAddress,
    /// The use of an invalid or destroyed stream, event or context.
    InvalidHandle,
    /// A call that invalidates a stream capture of other code.
    InvalidatesCapture,
    /// A call without the required current context.
    NoCurrentContext,
    /// The host waits for work that never completes.
    Deadlock,
    /// A kernel accesses memory that its launch did not declare.
    UndeclaredAccess,
}

/// A violation of the rules of the driver API, or a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The kind.
    pub kind: ViolationKind,
    /// A description.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.message)
    }
}

#[derive(Debug)]
struct Access {
    range: Range<u64>,
    kind: AccessKind,
    id: OperationId,
}

/// The accesses to a memory range whose completion the host has not observed. Observed accesses
/// precede all later accesses, so they need no entry.
#[derive(Debug, Default)]
pub(super) struct AccessHistory(Vec<Access>);

impl AccessHistory {
    /// Removes completed accesses, and checks that an access is ordered after all conflicting
    /// accesses.
    pub(super) fn check(
        &mut self,
        known: &VectorClock,
        clock: &VectorClock,
        range: &Range<u64>,
        kind: AccessKind,
    ) -> Option<Violation> {
        self.0.retain(|access| !known.is_after(access.id));
        let earlier = self.0.iter().find(|access| {
            let overlaps = access.range.start < range.end && range.start < access.range.end;
            let conflicts = access.kind.writes() || kind.writes();
            overlaps && conflicts && !clock.is_after(access.id)
        })?;
        let message = format!(
            "{kind} ({:#x}..{:#x}) is not ordered after an earlier access: {} ({:#x}..{:#x}, stream {})",
            range.start,
            range.end,
            earlier.kind,
            earlier.range.start,
            earlier.range.end,
            earlier.id.stream
        );
        Some(Violation { kind: violation_kind(earlier.kind, kind), message })
    }

    /// Adds an access. Removes earlier accesses that precede it and that it covers.
    pub(super) fn add(
        &mut self,
        clock: &VectorClock,
        range: Range<u64>,
        kind: AccessKind,
        id: OperationId,
    ) {
        self.0.retain(|access| {
            let covered = range.start <= access.range.start && access.range.end <= range.end;
            let replaced = kind.writes() || !access.kind.writes();
            !(covered && replaced && clock.is_after(access.id))
        });
        self.0.push(Access { range, kind, id });
    }
}

fn violation_kind(earlier: AccessKind, later: AccessKind) -> ViolationKind {
    match (earlier, later) {
        (_, AccessKind::Release) => ViolationKind::ReleasedInUse,
        (_, AccessKind::HostReads | AccessKind::HostWrites) => ViolationKind::HostAccessDuringCopy,
        (AccessKind::CopyReadsHost | AccessKind::CopyWritesHost, _) => {
            ViolationKind::HostAccessDuringCopy
        }
        (_, later) if later.writes() => ViolationKind::OverwrittenInUse,
        _ => ViolationKind::ReadBeforeWrite,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_ordered_only_by_a_join() {
        let (mut first, mut second) = (VectorClock::default(), VectorClock::default());
        let one = first.advance(0);
        let two = second.advance(1);
        assert!(first.is_after(one) && !first.is_after(two) && !second.is_after(one));
        second.join(&first);
        assert!(second.is_after(one) && second.is_after(two));
        let three = first.advance(0);
        assert!(!second.is_after(three));
    }

    #[test]
    fn reads_and_disjoint_ranges_do_not_conflict() {
        let (known, mut history) = (VectorClock::default(), AccessHistory::default());
        let mut reader = VectorClock::default();
        let id = reader.advance(0);
        history.add(&reader, 0..10, AccessKind::KernelReads, id);
        let other = VectorClock::default();
        let mut check = |range, kind| history.check(&known, &other, &range, kind).map(|v| v.kind);
        assert_eq!(check(0..10, AccessKind::KernelReads), None);
        assert_eq!(check(10..20, AccessKind::CopyWritesDevice), None);
        let overwritten = Some(ViolationKind::OverwrittenInUse);
        assert_eq!(check(9..10, AccessKind::CopyWritesDevice), overwritten);
        assert_eq!(check(0..1, AccessKind::Release), Some(ViolationKind::ReleasedInUse));
    }

    #[test]
    fn completed_accesses_are_removed() {
        let mut history = AccessHistory::default();
        let mut copy = VectorClock::default();
        let id = copy.advance(0);
        history.add(&copy, 0..10, AccessKind::CopyReadsHost, id);
        let nothing = VectorClock::default();
        let found = history.check(&nothing, &nothing, &(0..1), AccessKind::HostWrites).unwrap();
        assert_eq!(found.kind, ViolationKind::HostAccessDuringCopy);
        assert_eq!(history.check(&copy, &copy, &(0..1), AccessKind::HostWrites), None);
        assert_eq!(history.check(&nothing, &nothing, &(0..1), AccessKind::HostWrites), None);
    }
}
