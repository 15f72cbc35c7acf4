//! Who touches which bytes, in which order: vector clocks, and what is wrong by them.

use std::fmt;
use std::ops::Range;

/// What a piece of work comes after: of each stream, by its number, how many pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct VectorClock(Vec<u64>);

/// A piece of work: the how manieth of which stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) stream: usize,
    pub(super) number: u64,
}

impl VectorClock {
    /// Whether this comes after that piece of work.
    pub(super) fn is_after(&self, ticket: Ticket) -> bool {
        self.0.get(ticket.stream).is_some_and(|&number| number >= ticket.number)
    }

    /// Comes after all that `other` comes after.
    pub(super) fn join(&mut self, other: &VectorClock) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// The next piece of work of this stream.
    pub(super) fn advance(&mut self, stream: usize) -> Ticket {
        if self.0.len() <= stream {
            self.0.resize(stream + 1, 0);
        }
        self.0[stream] += 1;
        Ticket { stream, number: self.0[stream] }
    }
}

/// What somebody did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessKind {
    /// A copy to the device reads host memory.
    CopyReadsHost,
    /// A copy to the device writes there.
    CopyWritesDevice,
    /// A copy to the host reads memory of the device.
    CopyReadsDevice,
    /// A copy to the host writes there.
    CopyWritesHost,
    /// A kernel reads.
    KernelReads,
    /// A kernel writes.
    KernelWrites,
    /// The program reads host memory.
    HostReads,
    /// The program writes host memory.
    HostWrites,
    /// Memory is freed, or let go.
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
            AccessKind::CopyReadsHost => "a copy to the device reads the host's memory",
            AccessKind::CopyWritesDevice => "a copy to the device writes there",
            AccessKind::CopyReadsDevice => "a copy to the host reads the device's memory",
            AccessKind::CopyWritesHost => "a copy to the host writes there",
            AccessKind::KernelReads => "a kernel reads",
            AccessKind::KernelWrites => "a kernel writes",
            AccessKind::HostReads => "the program reads",
            AccessKind::HostWrites => "the program writes",
            AccessKind::Release => "the memory is let go",
        })
    }
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViolationKind {
    /// A consumer reads what has not arrived, or not in any order with its arrival: a wait is missing.
    ReadBeforeArrival,
    /// Memory of the device is written while somebody may still use it.
    OverwrittenInUse,
    /// The program writes, or reads, host memory while a copy uses it.
    HostDuringCopy,
    /// Memory is freed, or let go, while somebody may still use it.
    ReleasedInUse,
    /// Memory is used that was freed, or never was any, or past its end.
    NoSuchMemory,
    /// A stream, event or context is used that is none, or was destroyed.
    NoSuchHandle,
    /// A call breaks off the capture of a graph by somebody else.
    DisturbsCapture,
    /// A call that needs a current context was made without.
    NoCurrentContext,
    /// The host waits for work that waits for something that never comes.
    WaitsForever,
    /// A kernel uses memory that it was not said to use.
    Undeclared,
}

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// What is wrong.
    pub kind: ViolationKind,
    /// What happened, in words for people.
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
    deed: AccessKind,
    ticket: Ticket,
}

/// The accesses to a piece of memory that the host does not know to be over. Those it knows of come
/// before all that is yet to come.
#[derive(Debug, Default)]
pub(super) struct AccessHistory(Vec<Access>);

impl AccessHistory {
    /// Forgets what is over, and checks whether `deed` comes after all that it is in conflict with.
    pub(super) fn check(
        &mut self,
        known: &VectorClock,
        clock: &VectorClock,
        range: &Range<u64>,
        deed: AccessKind,
    ) -> Option<Violation> {
        self.0.retain(|access| !known.is_after(access.ticket));
        let earlier = self.0.iter().find(|access| {
            let overlaps = access.range.start < range.end && range.start < access.range.end;
            let conflicts = access.deed.writes() || deed.writes();
            overlaps && conflicts && !clock.is_after(access.ticket)
        })?;
        let message = format!(
            "{deed} ({:#x}..{:#x}) in no order with an earlier one: {} ({:#x}..{:#x}, stream {})",
            range.start,
            range.end,
            earlier.deed,
            earlier.range.start,
            earlier.range.end,
            earlier.ticket.stream
        );
        Some(Violation { kind: kind_of(earlier.deed, deed), message })
    }

    /// Remembers it. What it covers and comes after needs no more remembering.
    pub(super) fn add(
        &mut self,
        clock: &VectorClock,
        range: Range<u64>,
        deed: AccessKind,
        ticket: Ticket,
    ) {
        self.0.retain(|access| {
            let covered = range.start <= access.range.start && access.range.end <= range.end;
            let replaced = deed.writes() || !access.deed.writes();
            !(covered && replaced && clock.is_after(access.ticket))
        });
        self.0.push(Access { range, deed, ticket });
    }
}

fn kind_of(earlier: AccessKind, later: AccessKind) -> ViolationKind {
    match (earlier, later) {
        (_, AccessKind::Release) => ViolationKind::ReleasedInUse,
        (_, AccessKind::HostReads | AccessKind::HostWrites) => ViolationKind::HostDuringCopy,
        (AccessKind::CopyReadsHost | AccessKind::CopyWritesHost, _) => {
            ViolationKind::HostDuringCopy
        }
        (_, later) if later.writes() => ViolationKind::OverwrittenInUse,
        _ => ViolationKind::ReadBeforeArrival,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_of_one_stream_is_in_order_and_that_of_two_only_by_a_join() {
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
    fn two_reads_are_no_conflict_and_neither_are_ranges_beside_each_other() {
        let (known, mut history) = (VectorClock::default(), AccessHistory::default());
        let mut reader = VectorClock::default();
        let ticket = reader.advance(0);
        history.add(&reader, 0..10, AccessKind::KernelReads, ticket);
        let other = VectorClock::default();
        let mut check = |range, deed| history.check(&known, &other, &range, deed).map(|v| v.kind);
        assert_eq!(check(0..10, AccessKind::KernelReads), None);
        assert_eq!(check(10..20, AccessKind::CopyWritesDevice), None);
        let overwritten = Some(ViolationKind::OverwrittenInUse);
        assert_eq!(check(9..10, AccessKind::CopyWritesDevice), overwritten);
        assert_eq!(check(0..1, AccessKind::Release), Some(ViolationKind::ReleasedInUse));
    }

    #[test]
    fn what_the_host_knows_to_be_over_is_forgotten() {
        let mut history = AccessHistory::default();
        let mut copy = VectorClock::default();
        let ticket = copy.advance(0);
        history.add(&copy, 0..10, AccessKind::CopyReadsHost, ticket);
        let nothing = VectorClock::default();
        let found = history.check(&nothing, &nothing, &(0..1), AccessKind::HostWrites).unwrap();
        assert_eq!(found.kind, ViolationKind::HostDuringCopy);
        assert_eq!(history.check(&copy, &copy, &(0..1), AccessKind::HostWrites), None);
        assert_eq!(history.check(&nothing, &nothing, &(0..1), AccessKind::HostWrites), None);
    }
}
