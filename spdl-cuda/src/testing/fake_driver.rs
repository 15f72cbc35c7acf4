//! The fake driver: methods by which tests control it, statistics and reports.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::kernels::RunningKernel;
use super::memory;
use super::race_detector::{AccessKind, Violation};
use super::state::{FakeState, InjectedFault, Schedule};
use super::streams::{FakeEvent, StreamOp};
use crate::runtime::{ConsumerEvent, ConsumerStream};

/// The calls that synchronise, or may synchronise, host and device.
const SYNCHRONIZING: [&str; 7] = [
    "cuCtxSynchronize",
    "cuEventSynchronize",
    "cuStreamSynchronize",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
];

/// The calls that allocate memory or create resources.
const ALLOCATING: [&str; 5] = [
    "cuMemAlloc_v2",
    "cuMemHostRegister_v2",
    "cuEventCreate",
    "cuStreamCreateWithPriority",
    "cuModuleLoadData",
];

/// A driver without a device, for tests. It delays queued work and detects races.
///
/// Streams are queues, and the [`Schedule`] decides when queued work runs; copies move real bytes.
/// When an access is queued, it is also checked with vector clocks of the streams and the host:
/// conflicting accesses must be ordered by streams, events or waits of the host. So a missing wait
/// is detected even if it causes no error in this run.
///
/// ```
/// use spdl_core::Device;
/// use spdl_cuda::CudaDevice;
/// use spdl_cuda::testing::{FakeDriver, Schedule};
///
/// let driver = FakeDriver::new(1, Schedule::Held);
/// let device = CudaDevice::on(driver.clone(), 0)?;
/// let upload = device.upload(device.host_buffer(100)?)?;
/// assert!(!upload.ready.is_done()?, "queued work runs only when the host waits");
/// upload.ready.wait()?;
/// drop((upload, device));
/// assert_eq!(driver.violations(), []);
/// assert!(driver.live_resources().is_empty());
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct FakeDriver(Arc<Mutex<FakeState>>);

/// Counts of existing resources.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveResources {
    /// Retained primary contexts.
    pub contexts: usize,
    /// Current contexts of all threads.
    pub current_contexts: usize,
    /// Streams.
    pub streams: usize,
    /// Events.
    pub events: usize,
    /// Allocations of device memory.
    pub allocations: usize,
    /// Bytes of those allocations.
    pub allocated_bytes: usize,
    /// Registered host memory ranges.
    pub registrations: usize,
    /// Modules.
    pub modules: usize,
    /// Resources that the driver failed to destroy. The other counts do not include them.
    pub abandoned: usize,
}

impl LiveResources {
    /// Whether no resources exist, except abandoned ones.
    pub fn is_empty(&self) -> bool {
        *self == LiveResources { abandoned: self.abandoned, ..LiveResources::default() }
    }
}

/// The bytes that a kernel of a consumer reads when it runs.
#[derive(Clone, Debug)]
pub struct KernelRead(Arc<Mutex<Option<Vec<u8>>>>);

impl KernelRead {
    /// The bytes; `None` before the kernel has run.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl FakeDriver {
    /// A driver with this number of devices.
    pub fn new(devices: usize, schedule: Schedule) -> Self {
        FakeDriver(Arc::new(Mutex::new(FakeState::new(devices, schedule))))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs all queued work that can proceed.
    pub fn run_all(&self) {
        let mut state = self.state();
        while state.step() {}
    }

    /// After `after` more calls, makes `count` calls fail with `code`.
    pub fn fail_calls(&self, after: usize, count: usize, code: u32) {
        let mut state = self.state();
        let first = state.call_count.saturating_add(after);
        state.fault =
            Some(InjectedFault { calls: first..first.saturating_add(count), function: None, code });
    }

    /// Makes the next call of a function fail with `code`.
    pub fn fail_next(&self, function: &str, code: u32) {
        let function = Some(function.to_owned());
        self.state().fault = Some(InjectedFault { calls: 0..usize::MAX, function, code });
    }

    /// Skips one event record or wait, after `after` more of these calls, as if the program had
    /// omitted the skipped call.
    pub fn skip_order_call(&self, after: usize) {
        let mut state = self.state();
        state.skipped_call = Some(state.order_count + after);
    }

    /// The number of event records and waits.
    pub fn order_calls(&self) -> usize {
        self.state().order_count
    }

    /// Sets the device memory in bytes.
    pub fn set_memory(&self, bytes: usize) {
        self.state().capacity = bytes;
    }

    /// Sets the compute capability of the devices.
    pub fn set_compute_capability(&self, major: i32, minor: i32) {
        self.state().compute_capability = (major, minor);
    }

    /// Begins or ends a stream capture by other code, in the global mode.
    pub fn set_foreign_capture(&self, is_captured: bool) {
        self.state().is_captured = is_captured;
    }

    /// Begins or ends the capture of a consumer stream.
    pub fn set_stream_captured(&self, stream: &ConsumerStream, is_captured: bool) {
        let mut state = self.state();
        let stream = state.stream_of(stream.handle().0);
        if is_captured {
            state.captured.insert(stream);
        } else {
            state.captured.remove(&stream);
        }
    }

    /// Whether this thread is in the global capture mode, the default, which forbids calls that
    /// invalidate captures.
    pub fn is_strict(&self) -> bool {
        let thread = std::thread::current().id();
        self.state().capture_modes.get(&thread).is_none_or(|mode| *mode == 0)
    }

    /// The number of calls of a function.
    pub fn calls_of(&self, function: &str) -> usize {
        self.state().calls.get(function).copied().unwrap_or(0)
    }

    /// The number of all calls.
    pub fn calls(&self) -> usize {
        self.state().call_count
    }

    /// The number of calls that synchronise, or may synchronise, host and device.
    pub fn synchronisations(&self) -> usize {
        SYNCHRONIZING.iter().map(|function| self.calls_of(function)).sum()
    }

    /// The number of calls that allocate memory or create resources.
    pub fn allocations(&self) -> usize {
        ALLOCATING.iter().map(|function| self.calls_of(function)).sum()
    }

    /// The violations found so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.state().violations.clone()
    }

    /// The resources that exist.
    pub fn live_resources(&self) -> LiveResources {
        let state = self.state();
        LiveResources {
            contexts: state.contexts.iter().sum(),
            current_contexts: state.current.values().map(Vec::len).sum(),
            streams: state.streams.values().filter(|stream| stream.is_owned).count(),
            events: state.events.len(),
            allocations: state.memories.len(),
            allocated_bytes: state.memories.values().map(|memory| memory.bytes.len()).sum(),
            registrations: state.registered.len(),
            modules: state.modules.len(),
            abandoned: state.abandoned,
        }
    }

    /// Allocates device memory for other code. Returns the address.
    pub fn allocate_elsewhere(&self, bytes: usize) -> Option<u64> {
        self.state().allocate(bytes)
    }

    /// Frees memory of [`allocate_elsewhere`](FakeDriver::allocate_elsewhere).
    pub fn free_elsewhere(&self, address: u64) {
        self.state().free(address);
    }

    /// Creates a stream of a consumer.
    pub fn consumer_stream(&self) -> ConsumerStream {
        let mut state = self.state();
        let handle = state.new_handle();
        state.add_stream(handle, false);
        ConsumerStream::of(handle)
    }

    /// Destroys a stream of a consumer.
    pub fn end_consumer_stream(&self, stream: &ConsumerStream) {
        self.state().streams.remove(&stream.handle().0);
    }

    /// Records a new event on a consumer stream.
    pub fn consumer_event(&self, stream: &ConsumerStream) -> ConsumerEvent {
        let mut state = self.state();
        let handle = state.new_handle();
        state.events.insert(handle, FakeEvent::default());
        state.record(handle, stream.handle().0);
        ConsumerEvent::of(handle)
    }

    /// Sets the function that runs kernels and library work. By default, they do nothing. The
    /// accesses that they declare are checked in any case.
    pub fn run_kernels_with(&self, run: impl FnMut(&mut RunningKernel<'_>) + Send + 'static) {
        self.state().run_kernel = Some(Box::new(run));
    }

    /// Queues a kernel on a consumer stream that reads device memory.
    pub fn read_by_kernel(
        &self,
        stream: &ConsumerStream,
        address: usize,
        bytes: usize,
    ) -> KernelRead {
        let read = KernelRead(Arc::default());
        let (address, output) = (address as u64, read.clone());
        let work = StreamOp::Look(Box::new(move |memories| {
            let bytes = memory::load(memories, address, bytes).map(<[u8]>::to_vec);
            *output.0.lock().unwrap_or_else(PoisonError::into_inner) = bytes;
        }));
        let range = address..address + bytes as u64;
        self.state().enqueue(stream.handle().0, &[(range, AccessKind::KernelReads)], work);
        read
    }

    /// Queues a kernel on a consumer stream that fills device memory.
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
        self.state().enqueue(stream.handle().0, &[(range, AccessKind::KernelWrites)], work);
    }

    /// Records a write of the program to host memory. Copies also detect changed bytes without this
    /// call.
    pub fn host_writes(&self, memory: &[u8]) {
        self.state().record_host_access(range_of(memory), AccessKind::HostWrites);
    }

    /// Records a read of the program from host memory.
    pub fn host_reads(&self, memory: &[u8]) {
        self.state().record_host_access(range_of(memory), AccessKind::HostReads);
    }
}

impl fmt::Debug for FakeDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state().fmt(f)
    }
}

/// Whether a call invalidates captures of other threads, unless its thread is in the relaxed mode.
pub(super) fn invalidates_captures(call: &str) -> bool {
    SYNCHRONIZING.contains(&call) || call == "cuEventQuery"
}

fn range_of(memory: &[u8]) -> std::ops::Range<u64> {
    let start = memory.as_ptr().addr() as u64;
    start..start + memory.len() as u64
}

/// Reads host memory, as a device does.
pub(super) fn read_host(address: usize, bytes: usize) -> Vec<u8> {
    let from = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: the caller of the copy guarantees that the memory exists until the copy completes.
    unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec()
}

/// Writes host memory, as a device does.
pub(super) fn write_host(address: usize, data: &[u8]) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(address);
    // SAFETY: the caller of the copy guarantees that the memory exists and is not used by others
    // until the copy completes.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) };
}
