//! A driver without a device, for tests: it does work late, in any order that is allowed, and reports
//! whatever is done in no order at all.
//!
//! Streams are queues. What lies in them is done when the [`Schedule`] says so, as on a device that
//! is far behind; copies then move real bytes. Apart from that each access is checked when it is
//! queued: by vector clocks of the streams and the host, two accesses to the same bytes, one of them
//! a write, have to be in an order that follows from streams, events and what the host has waited
//! for. So a missing wait is found also in a run where it does no harm.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::accesses::{AccessKind, Violation};
use super::kernels::RunningKernel;
use super::memory;
use super::streams::{FakeEvent, StreamOp};
use super::world::{FakeState, Fault, Schedule};
use crate::runtime::{ConsumerEvent, ConsumerStream};

/// The calls by which the host waits for the device, or the device for the host.
const SYNCHRONISING: [&str; 7] = [
    "cuCtxSynchronize",
    "cuEventSynchronize",
    "cuStreamSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
];

/// The calls that take memory, or make something that has to be destroyed.
const ALLOCATING: [&str; 5] = [
    "cuMemAlloc_v2",
    "cuMemHostRegister_v2",
    "cuEventCreate",
    "cuStreamCreateWithPriority",
    "cuModuleLoadData",
];

/// A driver without a device.
///
/// ```
/// use spdl_core::Device;
/// use spdl_cuda::CudaDevice;
/// use spdl_cuda::testing::{FakeDriver, Schedule};
///
/// let driver = FakeDriver::new(1, Schedule::Held);
/// let device = CudaDevice::on(driver.clone(), 0)?;
/// let upload = device.upload(device.host_buffer(100)?)?;
/// assert!(!upload.ready.is_done()?, "nothing is done until somebody waits for it");
/// upload.ready.wait()?;
/// drop((upload, device));
/// assert_eq!(driver.violations(), []);
/// assert!(driver.live_resources().is_empty());
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct FakeDriver(Arc<Mutex<FakeState>>);

/// What was made and not yet destroyed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveResources {
    /// How often primary contexts are retained.
    pub contexts: usize,
    /// Current contexts of all threads.
    pub current_contexts: usize,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Pieces of memory of the device.
    pub allocations: usize,
    /// Their bytes.
    pub allocated_bytes: usize,
    /// Pieces of host memory that are locked.
    pub registrations: usize,
    /// Modules.
    pub modules: usize,
    /// What could not be destroyed, since the call for that failed. Counted nowhere else.
    pub abandoned: usize,
}

impl LiveResources {
    /// Whether there is nothing, but for what could not be destroyed.
    pub fn is_empty(&self) -> bool {
        *self == LiveResources { abandoned: self.abandoned, ..LiveResources::default() }
    }
}

/// What a consumer's kernel has read; there once it has run.
#[derive(Clone, Debug)]
pub struct KernelRead(Arc<Mutex<Option<Vec<u8>>>>);

impl KernelRead {
    /// The bytes, where the kernel has run.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl FakeDriver {
    /// A driver of so many devices.
    pub fn new(devices: usize, schedule: Schedule) -> Self {
        FakeDriver(Arc::new(Mutex::new(FakeState::new(devices, schedule))))
    }

    pub(super) fn world(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does all work that is queued and can be done.
    pub fn run_all(&self) {
        let mut world = self.world();
        while world.step() {}
    }

    /// Lets `count` calls fail with `code`, the first of them after `after` more.
    pub fn fail_calls(&self, after: usize, count: usize, code: u32) {
        let mut world = self.world();
        let first = world.call_count.saturating_add(after);
        world.fault =
            Some(Fault { calls: first..first.saturating_add(count), function: None, code });
    }

    /// Lets the next call of a function fail with `code`.
    pub fn fail_next(&self, function: &str, code: u32) {
        let function = Some(function.to_owned());
        self.world().fault = Some(Fault { calls: 0..usize::MAX, function, code });
    }

    /// Lets one record or wait do nothing, the one after `after` more: as if the program had
    /// forgotten it.
    pub fn leave_out(&self, after: usize) {
        let mut world = self.world();
        world.left_out = Some(world.order_count + after);
    }

    /// How many records and waits there were.
    pub fn order_calls(&self) -> usize {
        self.world().order_count
    }

    /// The device has this many bytes.
    pub fn set_memory(&self, bytes: usize) {
        self.world().capacity = bytes;
    }

    /// The devices have this compute capability.
    pub fn set_compute_capability(&self, major: i32, minor: i32) {
        self.world().compute_capability = (major, minor);
    }

    /// Lets somebody else capture a graph, in the strictest mode, or end that.
    pub fn set_captured(&self, is_captured: bool) {
        self.world().is_captured = is_captured;
    }

    /// Lets a stream of somebody else be captured into a graph, or ends that.
    pub fn set_stream_captured(&self, stream: &ConsumerStream, is_captured: bool) {
        let mut world = self.world();
        let stream = world.stream_of(stream.handle().0);
        if is_captured {
            world.captured.insert(stream);
        } else {
            world.captured.remove(&stream);
        }
    }

    /// Whether this thread is kept from calls that others' captures do not bear, as it is from the
    /// start.
    pub fn is_strict(&self) -> bool {
        let thread = std::thread::current().id();
        self.world().capture_modes.get(&thread).is_none_or(|mode| *mode == 0)
    }

    /// How often a function was called.
    pub fn calls_of(&self, function: &str) -> usize {
        self.world().calls.get(function).copied().unwrap_or(0)
    }

    /// How many calls there were.
    pub fn calls(&self) -> usize {
        self.world().call_count
    }

    /// How often the host waited for the device, or the device for the host.
    pub fn synchronisations(&self) -> usize {
        SYNCHRONISING.iter().map(|function| self.calls_of(function)).sum()
    }

    /// How often memory was taken, or something made that has to be destroyed.
    pub fn allocations(&self) -> usize {
        ALLOCATING.iter().map(|function| self.calls_of(function)).sum()
    }

    /// What must not happen, and did.
    pub fn violations(&self) -> Vec<Violation> {
        self.world().violations.clone()
    }

    /// What was made and not yet destroyed.
    pub fn live_resources(&self) -> LiveResources {
        let world = self.world();
        LiveResources {
            contexts: world.contexts.iter().sum(),
            current_contexts: world.current.values().map(Vec::len).sum(),
            streams: world.streams.values().filter(|stream| stream.is_ours).count(),
            events: world.events.len(),
            allocations: world.memories.len(),
            allocated_bytes: world.memories.values().map(|memory| memory.bytes.len()).sum(),
            registrations: world.locked.len(),
            modules: world.modules.len(),
            abandoned: world.abandoned,
        }
    }

    /// Memory of the device that somebody else takes, by its address.
    pub fn take_memory(&self, bytes: usize) -> Option<u64> {
        self.world().allocate(bytes)
    }

    /// Gives it back.
    pub fn give_memory_back(&self, address: u64) {
        self.world().free(address);
    }

    /// A stream of somebody else, such as a training framework.
    pub fn consumer_stream(&self) -> ConsumerStream {
        let mut world = self.world();
        let handle = world.new_handle();
        world.add_stream(handle, false);
        ConsumerStream::of(handle)
    }

    /// Ends a stream of somebody else.
    pub fn end_consumer_stream(&self, stream: &ConsumerStream) {
        self.world().streams.remove(&stream.handle().0);
    }

    /// An event of somebody else, behind all that is in a stream of theirs now.
    pub fn consumer_event(&self, stream: &ConsumerStream) -> ConsumerEvent {
        let mut world = self.world();
        let handle = world.new_handle();
        world.events.insert(handle, FakeEvent::default());
        world.record(handle, stream.handle().0);
        ConsumerEvent::of(handle)
    }

    /// Says what kernels that are launched do, and the work that libraries put into streams. Without
    /// it they do nothing; what they use is checked either way.
    pub fn run_kernels_by(&self, run: impl FnMut(&mut RunningKernel<'_>) + Send + 'static) {
        self.world().run_kernel = Some(Box::new(run));
    }

    /// Lets a kernel of a stream read memory of the device.
    pub fn read_by_kernel(
        &self,
        stream: &ConsumerStream,
        address: usize,
        bytes: usize,
    ) -> KernelRead {
        let seen = KernelRead(Arc::default());
        let (address, place) = (address as u64, seen.clone());
        let work = StreamOp::Look(Box::new(move |memories| {
            let bytes = memory::load(memories, address, bytes).map(<[u8]>::to_vec);
            *place.0.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
        }));
        let range = address..address + bytes as u64;
        self.world().enqueue(stream.handle().0, &[(range, AccessKind::KernelReads)], work);
        seen
    }

    /// Lets a kernel of a stream set memory of the device.
    pub fn write_by_kernel(
        &self,
        stream: &ConsumerStream,
        address: usize,
        bytes: usize,
        value: u8,
    ) {
        let to = address as u64;
        let range = to..to + bytes as u64;
        let work = StreamOp::Fill { to, value, bytes };
        self.world().enqueue(stream.handle().0, &[(range, AccessKind::KernelWrites)], work);
    }

    /// Tells that the program writes this memory now. Copies notice it also untold, where the
    /// bytes change.
    pub fn host_writes(&self, memory: &[u8]) {
        self.world().host_touches(range_of(memory), AccessKind::HostWrites);
    }

    /// Tells that the program reads this memory now.
    pub fn host_reads(&self, memory: &[u8]) {
        self.world().host_touches(range_of(memory), AccessKind::HostReads);
    }
}

impl fmt::Debug for FakeDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.world().fmt(f)
    }
}

/// Whether a call breaks off captures of other threads, unless its thread is in the relaxed mode.
pub(super) fn disturbs_captures(call: &str) -> bool {
    SYNCHRONISING.contains(&call) || call == "cuEventQuery"
}

fn range_of(memory: &[u8]) -> std::ops::Range<u64> {
    let start = memory.as_ptr().addr() as u64;
    start..start + memory.len() as u64
}

/// Reads host memory, as a device does.
pub(super) fn read_host(address: usize, bytes: usize) -> Vec<u8> {
    let from = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: who queued the copy promised that this memory exists until the copy is done.
    unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec()
}

/// Writes host memory, as a device does.
pub(super) fn write_host(address: usize, data: &[u8]) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY: who queued the copy promised that this memory exists, and is used by nobody else, until
    // the copy is done.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
}
