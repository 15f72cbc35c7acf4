//! The trait of the CUDA driver API, as far as this crate calls it, and the handles of its
//! resources.
//!
//! All calls of a loaded driver go through the trait, so that the same code runs on `libcuda`
//! (`loaded.rs`) and on the fake driver for tests (`testing/`). Each method except
//! `note_library_work` stands for one function of the driver API.
//!
//! Handles cannot be copied, and destroying a resource consumes its handle. A method that accesses
//! memory by address is `unsafe`.

use std::fmt::Debug;

use super::error::DriverError;

/// The result of a driver call.
pub(crate) type DriverResult<T> = Result<T, DriverError>;

/// A device of the driver API (`CUdevice`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceId(pub(crate) i32);

/// The primary context of a device, retained once.
#[derive(Debug)]
pub(crate) struct ContextHandle {
    pub(crate) raw: usize,
    pub(crate) device: DeviceId,
}

/// A stream of the driver API (`CUstream`).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StreamHandle(pub(crate) usize);

/// An event (`CUevent`): a position in a stream, for which other streams and the host can wait.
#[derive(Debug)]
pub(crate) struct EventHandle(pub(crate) usize);

/// An allocation of device memory.
#[derive(Debug)]
pub(crate) struct MemoryHandle {
    pub(crate) address: DeviceAddress,
    pub(crate) bytes: usize,
}

/// Host memory that the driver has pinned.
#[derive(Debug)]
pub(crate) struct RegistrationHandle(pub(crate) usize);

/// A module (`CUmodule`): machine code loaded into a context.
#[derive(Debug)]
pub(crate) struct ModuleHandle(pub(crate) usize);

/// A function (`CUfunction`): a kernel of a module.
#[derive(Debug)]
pub(crate) struct FunctionHandle(pub(crate) usize);

/// A device address (`CUdeviceptr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DeviceAddress(pub(crate) u64);

/// Device attributes, with the values of `CUdevice_attribute`.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum DeviceAttribute {
    /// Number of multiprocessors.
    Multiprocessors = 16,
    /// Identifier of the PCI bus.
    PciBus = 33,
    /// Identifier of the PCI device on its bus.
    PciDevice = 34,
    /// Number of copies that can run concurrently.
    CopyEngines = 40,
    /// Identifier of the PCI domain.
    PciDomain = 50,
    /// Major compute capability.
    ComputeMajor = 75,
    /// Minor compute capability.
    ComputeMinor = 76,
}

/// Grid and block dimensions of a kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaunchDimensions {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub shared_bytes: u32,
}

/// A range of device memory that queued work reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryAccess {
    pub(crate) address: DeviceAddress,
    pub(crate) bytes: u64,
    pub(crate) writes: bool,
}

impl MemoryAccess {
    pub(crate) fn read(address: u64, bytes: u64) -> MemoryAccess {
        MemoryAccess { address: DeviceAddress(address), bytes, writes: false }
    }

    pub(crate) fn written(address: u64, bytes: u64) -> MemoryAccess {
        MemoryAccess { address: DeviceAddress(address), bytes, writes: true }
    }
}

/// A pitched copy within device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memcpy2D {
    /// The first row of the source.
    pub(crate) from: DeviceAddress,
    /// Distance between rows of the source, in bytes.
    pub(crate) from_pitch: usize,
    /// The first row of the target.
    pub(crate) to: DeviceAddress,
    /// Distance between rows of the target, in bytes.
    pub(crate) to_pitch: usize,
    /// Length of a row in bytes, at most the smaller pitch.
    pub(crate) row_bytes: usize,
    /// Number of rows.
    pub(crate) rows: usize,
}

/// The calls of the driver API. The methods after
/// [`exchange_capture_mode`](Driver::exchange_capture_mode) need a current context.
///
/// Each method returns the error of the driver, which may have been caused by earlier asynchronous
/// work.
#[allow(clippy::missing_errors_doc, reason = "all methods fail as documented above")]
pub(crate) trait Driver: Debug + Send + Sync + 'static {
    /// The CUDA version of the driver: 12040 means 12.4.
    fn version(&self) -> DriverResult<i32>;

    /// The number of devices.
    fn device_count(&self) -> DriverResult<u32>;

    /// The device with this ordinal.
    fn device(&self, ordinal: u32) -> DriverResult<DeviceId>;

    /// The product name.
    fn device_name(&self, device: DeviceId) -> DriverResult<String>;

    /// An attribute of a device.
    fn device_attribute(&self, device: DeviceId, attribute: DeviceAttribute) -> DriverResult<i32>;

    /// Total memory of a device in bytes.
    fn device_memory(&self, device: DeviceId) -> DriverResult<usize>;

    /// Retains the primary context, which all users of the device in this process share.
    fn retain_primary_context(&self, device: DeviceId) -> DriverResult<ContextHandle>;

    /// Releases the primary context. The last release destroys the context.
    fn release_primary_context(&self, context: ContextHandle) -> DriverResult<()>;

    /// Pushes a context on the stack of this thread, which makes it current.
    fn push_context(&self, context: &ContextHandle) -> DriverResult<()>;

    /// Pops the current context, which makes the previous one current.
    fn pop_context(&self) -> DriverResult<()>;

    /// Sets the stream capture mode of this thread, and returns the previous mode. The value 2 is
    /// the relaxed mode.
    ///
    /// While another thread captures a stream in the global mode, which is the default, a
    /// potentially unsafe call of this thread fails and invalidates the capture. The relaxed mode
    /// permits such calls.
    fn exchange_capture_mode(&self, mode: i32) -> DriverResult<i32>;

    /// Whether a stream is being captured into a graph.
    ///
    /// Fails for the legacy default stream while a blocking stream is being captured.
    fn is_capturing(&self, stream: &StreamHandle) -> DriverResult<bool>;

    /// Waits until all work of the current context has completed. *Blocks the host.*
    fn synchronize_context(&self) -> DriverResult<()>;

    /// The least and the greatest stream priority. A smaller number is a greater priority.
    fn stream_priorities(&self) -> DriverResult<(i32, i32)>;

    /// Creates a non-blocking stream: no implicit order with the legacy default stream.
    fn create_stream(&self, priority: i32) -> DriverResult<StreamHandle>;

    /// Destroys a stream. Its queued work still runs.
    fn destroy_stream(&self, stream: StreamHandle) -> DriverResult<()>;

    /// Waits until all work of a stream has completed. *Blocks the host.*
    fn synchronize_stream(&self, stream: &StreamHandle) -> DriverResult<()>;

    /// Creates an event without timing. A host thread that waits for the event sleeps.
    fn create_event(&self) -> DriverResult<EventHandle>;

    /// Destroys an event. Waits that are queued for it stay valid.
    fn destroy_event(&self, event: EventHandle) -> DriverResult<()>;

    /// Records an event: it completes after all work that is now in the stream. Replaces the
    /// previous record.
    fn record_event(&self, event: &EventHandle, stream: &StreamHandle) -> DriverResult<()>;

    /// Makes all further work of a stream wait for the current record of an event.
    fn wait_event(&self, stream: &StreamHandle, event: &EventHandle) -> DriverResult<()>;

    /// Whether an event has completed. An event that was never recorded counts as completed.
    fn query_event(&self, event: &EventHandle) -> DriverResult<bool>;

    /// Waits until an event has completed. *Blocks the host.*
    fn synchronize_event(&self, event: &EventHandle) -> DriverResult<()>;

    /// Allocates device memory, at least one byte. *May synchronise the device.*
    fn allocate(&self, bytes: usize) -> DriverResult<MemoryHandle>;

    /// Frees device memory. *Synchronises the device.*
    ///
    /// # Safety
    /// No work in flight uses the memory.
    unsafe fn free(&self, memory: MemoryHandle) -> DriverResult<()>;

    /// Pins host memory for all contexts. *May synchronise the device.*
    ///
    /// # Safety
    /// The memory exists until it is [unregistered](Driver::unregister_host).
    unsafe fn register_host(
        &self,
        address: *mut u8,
        bytes: usize,
    ) -> DriverResult<RegistrationHandle>;

    /// Unpins host memory. *May synchronise the device.*
    ///
    /// # Safety
    /// No work in flight uses the memory.
    unsafe fn unregister_host(&self, memory: RegistrationHandle) -> DriverResult<()>;

    /// Queues a copy from the host to the device.
    ///
    /// # Safety
    /// Until the copy completes, both ranges exist, are at least `bytes` long, and no thread writes
    /// to the host range.
    unsafe fn copy_to_device(
        &self,
        to: DeviceAddress,
        from: *const u8,
        bytes: usize,
        stream: &StreamHandle,
    ) -> DriverResult<()>;

    /// Queues a copy from the device to the host.
    ///
    /// # Safety
    /// Until the copy completes, both ranges exist, are at least `bytes` long, and no thread reads
    /// or writes the host range.
    unsafe fn copy_to_host(
        &self,
        to: *mut u8,
        from: DeviceAddress,
        bytes: usize,
        stream: &StreamHandle,
    ) -> DriverResult<()>;

    /// Queues a pitched copy within device memory.
    ///
    /// # Safety
    /// Until the copy completes, both ranges exist, and are at least as long as their rows.
    unsafe fn copy_rows(&self, copy: &Memcpy2D, stream: &StreamHandle) -> DriverResult<()>;

    /// Loads machine code or PTX into the current context.
    ///
    /// # Safety
    /// The image is complete: a cubin, a fat binary, or PTX with a terminating NUL.
    unsafe fn load_module(&self, image: &[u8]) -> DriverResult<ModuleHandle>;

    /// Unloads a module.
    ///
    /// # Safety
    /// No kernel of the module runs, and none of its functions is used again.
    unsafe fn unload_module(&self, module: ModuleHandle) -> DriverResult<()>;

    /// The kernel of this name.
    fn function(&self, module: &ModuleHandle, name: &str) -> DriverResult<FunctionHandle>;

    /// Queues a kernel launch. `accesses` lists all device memory that the kernel uses, for drivers
    /// that check the order of accesses.
    ///
    /// # Safety
    /// The parameters match the declaration of the kernel in number and size. All memory that the
    /// kernel accesses through them exists until the kernel has ended.
    unsafe fn launch(
        &self,
        function: &FunctionHandle,
        dimensions: LaunchDimensions,
        parameters: &[&[u8]],
        accesses: &[MemoryAccess],
        stream: &StreamHandle,
    ) -> DriverResult<()>;

    /// Declares work that a library has queued on a stream, and the device memory that it uses.
    ///
    /// Not a call of the driver API: only drivers that check the order of accesses implement it.
    fn note_library_work(
        &self,
        library: &'static str,
        accesses: &[MemoryAccess],
        stream: &StreamHandle,
    ) -> DriverResult<()> {
        let _ = (library, accesses, stream);
        Ok(())
    }
}
