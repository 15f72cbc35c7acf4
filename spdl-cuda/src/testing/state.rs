//! The state of the fake driver.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::thread::ThreadId;

use super::kernels::RunKernel;
use super::memory::FakeAllocations;
use super::race_detector::{AccessHistory, VectorClock, Violation, ViolationKind};
use super::streams::{FakeEvent, FakeStream};

/// When queued work runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Immediately.
    Prompt,
    /// When the host waits for the work, or in [`run_all`](super::FakeDriver::run_all).
    Held,
    /// At random times and in a random valid order, which depend on this seed.
    Seeded(u64),
}

/// Calls that fail: a range of call numbers, or the next call of a function.
pub(super) struct InjectedFault {
    pub(super) calls: Range<usize>,
    pub(super) function: Option<String>,
    pub(super) code: u32,
}

pub(super) struct FakeState {
    pub(super) schedule: Schedule,
    pub(super) random: u64,
    pub(super) calls: BTreeMap<&'static str, usize>,
    pub(super) call_count: usize,
    pub(super) fault: Option<InjectedFault>,
    /// Number of event records and waits so far, and the index of the skipped one, if any.
    pub(super) order_count: usize,
    pub(super) skipped_call: Option<usize>,
    pub(super) contexts: Vec<usize>,
    pub(super) compute_capability: (i32, i32),
    pub(super) current: HashMap<ThreadId, Vec<usize>>,
    /// Whether other code captures a graph, and the capture modes that threads have set.
    pub(super) is_captured: bool,
    pub(super) capture_modes: HashMap<ThreadId, i32>,
    pub(super) streams: BTreeMap<usize, FakeStream>,
    /// Streams under capture.
    pub(super) captured: BTreeSet<usize>,
    /// The per-thread default streams.
    pub(super) thread_streams: HashMap<ThreadId, usize>,
    pub(super) events: BTreeMap<usize, FakeEvent>,
    pub(super) records: u64,
    /// Event records that have not completed.
    pub(super) pending: BTreeSet<u64>,
    pub(super) memories: FakeAllocations,
    pub(super) capacity: usize,
    pub(super) next_address: u64,
    /// Registered host memory by address: length and accesses.
    pub(super) registered: BTreeMap<usize, (usize, AccessHistory)>,
    /// Accesses to unregistered host memory.
    pub(super) unregistered: AccessHistory,
    pub(super) modules: BTreeSet<usize>,
    /// Functions: module and name.
    pub(super) functions: BTreeMap<usize, (usize, String)>,
    /// The function that runs kernels and library work; if `None`, they do nothing.
    pub(super) run_kernel: Option<Box<RunKernel>>,
    /// Resources that the driver failed to destroy.
    pub(super) abandoned: usize,
    /// The work that the host has observed as complete.
    pub(super) known: VectorClock,
    pub(super) handles: usize,
    pub(super) violations: Vec<Violation>,
}

impl FakeState {
    pub(super) fn new(devices: usize, schedule: Schedule) -> Self {
        let random = if let Schedule::Seeded(seed) = schedule { seed } else { 0 };
        FakeState {
            schedule,
            random,
            calls: BTreeMap::new(),
            call_count: 0,
            fault: None,
            order_count: 0,
            skipped_call: None,
            contexts: vec![0; devices],
            compute_capability: (9, 0),
            current: HashMap::new(),
            is_captured: false,
            capture_modes: HashMap::new(),
            streams: BTreeMap::new(),
            captured: BTreeSet::new(),
            thread_streams: HashMap::new(),
            events: BTreeMap::new(),
            records: 0,
            pending: BTreeSet::new(),
            memories: BTreeMap::new(),
            capacity: usize::MAX,
            // This address is outside of all host addresses.
            next_address: 1 << 60,
            registered: BTreeMap::new(),
            unregistered: AccessHistory::default(),
            modules: BTreeSet::new(),
            functions: BTreeMap::new(),
            run_kernel: None,
            abandoned: 0,
            known: VectorClock::default(),
            handles: 0x100,
            violations: Vec::new(),
        }
    }

    /// Returns a handle that was never used.
    pub(super) fn new_handle(&mut self) -> usize {
        self.handles += 1;
        self.handles
    }

    pub(super) fn violate(&mut self, kind: ViolationKind, message: impl Into<String>) {
        self.violations.push(Violation { kind, message: message.into() });
    }

    /// The next random number (SplitMix64).
    pub(super) fn draw(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % below as u64) as usize
    }
}

impl fmt::Debug for FakeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FakeState({} calls, {} violations)", self.call_count, self.violations.len())
    }
}
