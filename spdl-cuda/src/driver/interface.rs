//! The CUDA driver, as far as this crate calls it.
//!
//! All calls go through one trait, so that the same code runs on the driver of a machine
//! (`loaded.rs`) and on one that executes nothing until it is told to, and finds whatever happens in
//! no order (`fake/`, feature `testing`). It adds nothing: each method is one call of the driver.
//!
//! What the driver hands out cannot be copied, and is taken back by value: nothing can be used after
//! it was destroyed. What touches memory by its address is `unsafe`.

use super::error::DriverError;
use std::fmt::Debug;

/// What a call of the driver ends with.
pub(crate) type DriverResult<T> = Result<T, DriverError>;

/// A device of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceId(pub(crate) i32);

/// A device's primary context, retained once.
#[derive(Debug)]
pub(crate) struct ContextHandle {
    pub(crate) raw: usize,
    pub(crate) device: DeviceId,
}

/// A stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StreamHandle(pub(crate) usize);

/// An event: a place in a stream that others can wait for.
#[derive(Debug)]
pub(crate) struct EventHandle(pub(crate) usize);

/// Memory of a device.
#[derive(Debug)]
pub(crate) struct MemoryHandle {
    pub(crate) address: DeviceAddress,
    pub(crate) bytes: usize,
}

/// Host memory that the driver has locked where it is.
#[derive(Debug)]
pub(crate) struct RegistrationHandle(pub(crate) usize);

/// Machine code that was loaded into a context.
#[derive(Debug)]
pub(crate) struct ModuleHandle(pub(crate) usize);

/// A kernel in a module.
#[derive(Debug)]
pub(crate) struct FunctionHandle(pub(crate) usize);

/// An address in the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeviceAddress(pub(crate) u64);

/// Numbers that describe a device. The values are the driver's own.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum DeviceAttribute {
    /// How many multiprocessors it has.
    Multiprocessors = 16,
    /// Which bus it is on.
    PciBus = 33,
    /// Which device of that bus it is.
    PciDevice = 34,
    /// How many copies it makes at the same time.
    CopyEngines = 40,
    /// Which of the buses that have this number.
    PciDomain = 50,
    /// The first number of its compute capability.
    ComputeMajor = 75,
    /// The second one.
    ComputeMinor = 76,
}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchShape {
    /// Blocks, in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block, in x, y and z.
    pub block: [u32; 3],
    /// Shared memory of a block beside what the kernel declares, in bytes.
    pub shared_bytes: u32,
}

/// Memory of a device that work of a stream reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touched {
    pub(crate) address: DeviceAddress,
    pub(crate) bytes: u64,
    pub(crate) writes: bool,
}

impl Touched {
    pub(crate) fn read(address: u64, bytes: u64) -> Touched {
        Touched { address: DeviceAddress(address), bytes, writes: false }
    }

    pub(crate) fn written(address: u64, bytes: u64) -> Touched {
        Touched { address: DeviceAddress(address), bytes, writes: true }
    }
}

/// Rows of bytes that are copied within the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowsCopy {
    /// Where the first row is.
    pub(crate) from: DeviceAddress,
    /// From a row to the next one there, in bytes.
    pub(crate) from_pitch: usize,
    /// Where the first row goes.
    pub(crate) to: DeviceAddress,
    /// From a row to the next one there, in bytes.
    pub(crate) to_pitch: usize,
    /// How long a row is, in bytes: not longer than from a row to the next one.
    pub(crate) row_bytes: usize,
    /// How many rows there are.
    pub(crate) rows: usize,
}

/// The calls. Those behind [`exchange_capture_mode`](Driver::exchange_capture_mode) need a current
/// context.
///
/// Each fails with what the driver says, which may be the failure of earlier work on the device.
#[allow(clippy::missing_errors_doc, reason = "all methods fail alike, as is said above")]
pub(crate) trait Driver: Debug + Send + Sync + 'static {
    /// The CUDA version that the driver knows: 12040 is 12.4.
    fn version(&self) -> DriverResult<i32>;

    /// How many devices there are.
    fn device_count(&self) -> DriverResult<u32>;

    /// The device with this number.
    fn device(&self, ordinal: u32) -> DriverResult<DeviceId>;

    /// What its maker calls it.
    fn device_name(&self, device: DeviceId) -> DriverResult<String>;

    /// A number that describes it.
    fn device_attribute(&self, device: DeviceId, attribute: DeviceAttribute) -> DriverResult<i32>;

    /// How much memory it has, in bytes.
    fn device_memory(&self, device: DeviceId) -> DriverResult<usize>;

    /// The context that all users of the device in this process share; made for the first of them.
    fn retain_primary_context(&self, device: DeviceId) -> DriverResult<ContextHandle>;

    /// Gives it back; it ends with its last user.
    fn release_primary_context(&self, context: ContextHandle) -> DriverResult<()>;

    /// Makes a context the current one of this thread, above that which was.
    fn push_context(&self, context: &ContextHandle) -> DriverResult<()>;

    /// Makes that the current one again which was before.
    fn pop_context(&self) -> DriverResult<()>;

    /// How strictly the driver keeps this thread from calls that graphs captured by other threads do not
    /// bear: sets it, and returns what it was. 2 is not at all.
    fn exchange_capture_mode(&self, mode: i32) -> DriverResult<i32>;

    /// Whether what the stream is told now becomes part of a graph. It fails for the legacy default stream
    /// while a stream is captured that waits for that one.
    fn is_capturing(&self, stream: &StreamHandle) -> DriverResult<bool>;

    /// Waits until all work in the current context is done. *The host waits.*
    fn synchronize_context(&self) -> DriverResult<()>;

    /// The priorities of streams: the least, and the greatest, which is the smaller number.
    fn stream_priorities(&self) -> DriverResult<(i32, i32)>;

    /// A stream that does not wait for the default stream.
    fn create_stream(&self, priority: i32) -> DriverResult<StreamHandle>;

    /// Ends a stream; what is under way in it goes on.
    fn destroy_stream(&self, stream: StreamHandle) -> DriverResult<()>;

    /// Waits until all work of a stream is done. *The host waits.*
    fn synchronize_stream(&self, stream: &StreamHandle) -> DriverResult<()>;

    /// An event that measures no time, and for which the host waits asleep.
    fn create_event(&self) -> DriverResult<EventHandle>;

    /// An event that tells when it was reached, and for which the host waits asleep.
    fn create_timer(&self) -> DriverResult<EventHandle>;

    /// The milliseconds from one [timer](Driver::create_timer) to another, both of which have been
    /// reached.
    fn elapsed(&self, from: &EventHandle, to: &EventHandle) -> DriverResult<f32>;

    /// Ends an event; who waits for it goes on waiting.
    fn destroy_event(&self, event: EventHandle) -> DriverResult<()>;

    /// Puts an event behind all that is in a stream now, instead of where it was.
    fn record_event(&self, event: &EventHandle, stream: &StreamHandle) -> DriverResult<()>;

    /// Lets what comes into a stream from now on wait until an event has been reached, as it is
    /// recorded now.
    fn wait_event(&self, stream: &StreamHandle, event: &EventHandle) -> DriverResult<()>;

    /// Whether an event has been reached, or was never recorded.
    fn query_event(&self, event: &EventHandle) -> DriverResult<bool>;

    /// Waits until an event has been reached. *The host waits.*
    fn synchronize_event(&self, event: &EventHandle) -> DriverResult<()>;

    /// Memory of the device, more than no bytes of it. *The device may wait.*
    fn allocate(&self, bytes: usize) -> DriverResult<MemoryHandle>;

    /// Gives it back. *The device waits.*
    ///
    /// # Safety
    /// Nothing that is under way uses it.
    unsafe fn free(&self, memory: MemoryHandle) -> DriverResult<()>;

    /// Locks host memory where it is, for all contexts. *The device may wait.*
    ///
    /// # Safety
    /// The memory exists until it is [unregistered](Driver::unregister_host).
    unsafe fn register_host(
        &self,
        address: *mut u8,
        bytes: usize,
    ) -> DriverResult<RegistrationHandle>;

    /// Lets it go. *The device may wait.*
    ///
    /// # Safety
    /// Nothing that is under way uses it.
    unsafe fn unregister_host(&self, memory: RegistrationHandle) -> DriverResult<()>;

    /// Copies from the host to the device, as work of a stream.
    ///
    /// # Safety
    /// Until that work is done both places exist, they are at least `bytes` long, and nobody writes
    /// to the one on the host.
    unsafe fn copy_to_device(
        &self,
        to: DeviceAddress,
        from: *const u8,
        bytes: usize,
        stream: &StreamHandle,
    ) -> DriverResult<()>;

    /// Copies from the device to the host, as work of a stream.
    ///
    /// # Safety
    /// Until that work is done both places exist, they are at least `bytes` long, and nobody reads
    /// or writes the one on the host.
    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DeviceAddress,
        bytes: usize,
        stream: &StreamHandle,
    ) -> DriverResult<()>;

    /// Copies rows within the memory of the device, as work of a stream.
    ///
    /// # Safety
    /// Until that work is done both places exist, and are at least as long as the rows take there.
    unsafe fn copy_rows(&self, copy: &RowsCopy, stream: &StreamHandle) -> DriverResult<()>;

    /// Loads machine code, or PTX, into the current context.
    ///
    /// # Safety
    /// The image is whole: a cubin, a fat binary, or PTX that ends with a zero byte.
    unsafe fn load_module(&self, image: &[u8]) -> DriverResult<ModuleHandle>;

    /// Unloads it.
    ///
    /// # Safety
    /// No kernel of it runs, and none of its functions is used again.
    unsafe fn unload_module(&self, module: ModuleHandle) -> DriverResult<()>;

    /// The kernel of this name.
    fn function(&self, module: &ModuleHandle, name: &str) -> DriverResult<FunctionHandle>;

    /// Runs a kernel, as work of a stream. `touched` is all that it uses of the device's memory, for
    /// drivers that check that.
    ///
    /// # Safety
    /// The parameters are those of the kernel, each as long as it is declared, and what the kernel
    /// uses through them exists until it has ended.
    unsafe fn launch(
        &self,
        function: &FunctionHandle,
        shape: LaunchShape,
        parameters: &[&[u8]],
        touched: &[Touched],
        stream: &StreamHandle,
    ) -> DriverResult<()>;

    /// Tells of work that a library has put into a stream, and what it uses of the device's memory. It
    /// is no call of the driver: only for drivers that check that.
    fn put_by_library(
        &self,
        library: &'static str,
        touched: &[Touched],
        stream: &StreamHandle,
    ) -> DriverResult<()> {
        let _ = (library, touched, stream);
        Ok(())
    }
}
