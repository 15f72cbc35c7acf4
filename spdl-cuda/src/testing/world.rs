//! All that the fake driver knows.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::thread::ThreadId;

use super::accesses::{AccessHistory, VectorClock, Violation, ViolationKind};
use super::kernels::RunKernel;
use super::memory::FakeAllocations;
use super::streams::{FakeEvent, FakeStream};

/// When queued work is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// At once.
    Prompt,
    /// Not before somebody waits for it, or [`run_all`](super::FakeDriver::run_all).
    Held,
    /// Now and then, streams in any order that is allowed, all by this number.
    Seeded(u64),
}

/// Calls that fail: those with these numbers, or the next one of a function.
pub(super) struct Fault {
    pub(super) calls: Range<usize>,
    pub(super) function: Option<String>,
    pub(super) code: u32,
}

pub(super) struct FakeState {
    pub(super) schedule: Schedule,
    pub(super) random: u64,
    pub(super) calls: BTreeMap<&'static str, usize>,
    pub(super) call_count: usize,
    pub(super) fault: Option<Fault>,
    /// Records and waits so far, and which of them does nothing.
    pub(super) order_count: usize,
    pub(super) left_out: Option<usize>,
    pub(super) contexts: Vec<usize>,
    pub(super) compute_capability: (i32, i32),
    pub(super) current: HashMap<ThreadId, Vec<usize>>,
    /// Whether somebody captures a graph, and the modes of threads that have set one.
    pub(super) is_captured: bool,
    pub(super) capture_modes: HashMap<ThreadId, i32>,
    pub(super) streams: BTreeMap<usize, FakeStream>,
    /// Those that are captured into a graph.
    pub(super) captured: BTreeSet<usize>,
    /// The default streams of threads.
    pub(super) thread_streams: HashMap<ThreadId, usize>,
    pub(super) events: BTreeMap<usize, FakeEvent>,
    pub(super) records: u64,
    /// Records that are not yet reached.
    pub(super) pending: BTreeSet<u64>,
    pub(super) memories: FakeAllocations,
    pub(super) capacity: usize,
    pub(super) next_address: u64,
    /// Host memory that is locked: where, how long, who uses it.
    pub(super) locked: BTreeMap<usize, (usize, AccessHistory)>,
    /// Accesses to host memory that is not.
    pub(super) unlocked: AccessHistory,
    pub(super) modules: BTreeSet<usize>,
    /// Functions: the module of each, and its name.
    pub(super) functions: BTreeMap<usize, (usize, String)>,
    /// What kernels, and the work of libraries, do. `None`: nothing.
    pub(super) run_kernel: Option<Box<RunKernel>>,
    /// How long the device has worked, in microseconds of its own, and when
    /// records of timers were reached.
    pub(super) time: u64,
    pub(super) timed: BTreeSet<u64>,
    pub(super) reached: BTreeMap<u64, u64>,
    /// What could not be destroyed since the call failed.
    pub(super) abandoned: usize,
    /// What the host knows to be done.
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
            left_out: None,
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
            // Where no address of the host is.
            next_address: 1 << 60,
            locked: BTreeMap::new(),
            unlocked: AccessHistory::default(),
            modules: BTreeSet::new(),
            functions: BTreeMap::new(),
            run_kernel: None,
            time: 0,
            timed: BTreeSet::new(),
            reached: BTreeMap::new(),
            abandoned: 0,
            known: VectorClock::default(),
            handles: 0x100,
            violations: Vec::new(),
        }
    }

    /// A number that was never a handle.
    pub(super) fn new_handle(&mut self) -> usize {
        self.handles += 1;
        self.handles
    }

    pub(super) fn violate(&mut self, kind: ViolationKind, message: impl Into<String>) {
        self.violations.push(Violation { kind, message: message.into() });
    }

    /// The next random number (splitmix64).
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
        write!(f, "World({} calls, {} violations)", self.call_count, self.violations.len())
    }
}
