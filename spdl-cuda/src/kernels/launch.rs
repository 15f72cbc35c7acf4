//! The kernels of a device: loaded once, then launched per batch, without blocking.
//!
//! ```text
//!  images ────event────┐
//!  pinned table ──copy──► kernels ──► slab of samples ──event──► stream of the consumer
//!                             └──event──► images and table may be reused
//! ```

use std::fmt;
use std::sync::Arc;

use spdl_core::Result;
use spdl_core::memory::Upload;
use spdl_media::transform::TensorSpec;

use super::invalid;
use super::modules::module_for;
use super::plan::ResizePlan;
use super::table::{BatchTable, ENTRY_BYTES, KERNELS, Launch};
use crate::driver::{
    Driver, DriverResult, FunctionHandle, LaunchDimensions, MemoryAccess, ModuleHandle,
    StreamHandle,
};
use crate::pixels::SourceImage;
use crate::runtime::{
    CopyFence, CopyStream, CudaDevice, CudaMemory, DeviceInner, Event, Slab, describe,
};

/// The image kernels of a device, with a dedicated stream.
///
/// ```no_run
/// use std::sync::Arc;
/// use spdl_cuda::CudaDevice;
/// # use spdl_cuda::CudaMemory;
/// use spdl_cuda::kernels::{ImageKernels, ResizePlan};
/// use spdl_cuda::pixels::{DevicePlane, SourceImage};
/// # fn decoded() -> Arc<CudaMemory> { unimplemented!() }
/// use spdl_core::memory::DeviceMemory;
/// use spdl_media::transform::TensorSpec;
/// use spdl_media::{Orientation, Size};
///
/// let device = CudaDevice::open(0)?;
/// let kernels = ImageKernels::new(&device)?;
/// let (stored, sample) = (Size::new(500, 375), Size::new(224, 224));
/// let mut batch = kernels.batch(&TensorSpec::new(sample), 32)?;
/// // Interleaved RGB in device memory: decoded there, or uploaded.
/// let memory = decoded();
/// let plane = DevicePlane { address: memory.address() as u64, pitch: 3 * 500 };
/// let image = SourceImage::rgb8(500, 375, plane)?;
/// let plan = ResizePlan::whole(stored, Orientation::Upright, sample);
/// batch.push(&memory, &image, &plan)?;
/// let upload = kernels.launch(batch)?;
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct ImageKernels {
    functions: [FunctionHandle; KERNELS.len()],
    /// `None` only during drop.
    module: Option<ModuleHandle>,
    architecture: &'static str,
    /// The stream of table copies and kernels. The stream also keeps the host memory of the tables
    /// that are in use.
    stream: CopyStream,
    device: Arc<DeviceInner>,
}

/// The images of a batch before its launch; see [`ImageKernels::batch`].
pub struct SampleBatch {
    format: TensorSpec,
    table: BatchTable,
    capacity: usize,
    /// `None` only after the launch.
    output: Option<Slab>,
    sources: Vec<Arc<CudaMemory>>,
    reads: Vec<MemoryAccess>,
    device: Arc<DeviceInner>,
}

/// A launched batch.
pub(crate) struct StartedBatch {
    pub(crate) memory: CudaMemory,
    /// An event that completes after the kernels; from then on, they read no memory.
    pub(crate) done: Arc<Event>,
}

impl ImageKernels {
    /// Loads the kernels for a device. The driver compiles the PTX if there is no cubin for the
    /// device.
    ///
    /// # Errors
    /// `Unsupported` for a compute capability below 7.5, or if the driver cannot compile the PTX;
    /// errors of the driver.
    pub fn new(device: &CudaDevice) -> Result<ImageKernels> {
        let device = Arc::clone(device.inner());
        let context = &device.context;
        let doing = "load the image kernels";
        let description = describe(context.driver(), context.device())
            .map_err(|error| context.error(error, doing))?;
        let (major, minor) = description.compute_capability;
        let number = |number: i32| u32::try_from(number).unwrap_or(0);
        let module = module_for(number(major), number(minor))?;
        let stream = CopyStream::new(context)?;
        let image = module.image();
        let (handle, functions) = context.run(doing, |driver| {
            // SAFETY: the image is a complete cubin, or PTX with a terminating NUL.
            let handle = unsafe { driver.load_module(&image)? };
            match functions(driver, &handle) {
                Ok(functions) => Ok((handle, functions)),
                Err(error) => {
                    // SAFETY: no kernel of the module was launched.
                    let _ = unsafe { driver.unload_module(handle) };
                    Err(error)
                }
            }
        })?;
        let (module, architecture) = (Some(handle), module.architecture());
        Ok(ImageKernels { functions, module, architecture, stream, device })
    }

    /// The architecture of the kernels, for example `sm_90`; `compute_75` if the driver compiled
    /// the PTX.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Creates an empty batch for up to `capacity` samples. [`launch`](ImageKernels::launch)
    /// computes the added samples.
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid format or a capacity of 0; `LimitExceeded` if device memory
    /// is exhausted.
    pub fn batch(&self, format: &TensorSpec, capacity: usize) -> Result<SampleBatch> {
        let table = BatchTable::new(format)?;
        let bytes =
            usize::try_from(format.bytes()).ok().and_then(|bytes| bytes.checked_mul(capacity));
        let Some(bytes) = bytes.filter(|&bytes| bytes > 0) else {
            return Err(invalid(format!(
                "invalid batch of {capacity} samples of {} bytes: empty, or too large",
                format.bytes()
            )));
        };
        self.device.context.check("write samples of a batch")?;
        let output = Some(self.device.slabs.take(bytes)?);
        let (sources, reads) = (Vec::new(), Vec::new());
        let device = Arc::clone(&self.device);
        Ok(SampleBatch { format: *format, table, capacity, output, sources, reads, device })
    }

    /// Queues the kernels after the work that writes the images, and returns immediately. The
    /// memory of the images is kept until the kernels complete.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty batch, or a batch of another device; `LimitExceeded` if host
    /// or device memory is exhausted; errors of the driver.
    pub fn launch(&self, batch: SampleBatch) -> Result<Upload> {
        let StartedBatch { memory, done } = self.launch_after(batch, &[])?;
        Ok(Upload { memory: Box::new(memory), ready: Box::new(CopyFence(done)) })
    }

    /// Like [`launch`](ImageKernels::launch), but the kernels also wait for the events `after`. Use
    /// this method for images outside of [`CudaMemory`].
    pub(crate) fn launch_after(
        &self,
        mut batch: SampleBatch,
        after: &[Arc<Event>],
    ) -> Result<StartedBatch> {
        let doing = "write samples of a batch";
        let context = &self.device.context;
        let len = batch.len() * batch.format.bytes() as usize;
        if len == 0 || !Arc::ptr_eq(&self.device, &batch.device) {
            return Err(invalid(
                "expected a non-empty batch on the device of the kernels".to_owned(),
            ));
        }
        context.check(doing)?;
        let failed = |error| context.error(error, doing);
        self.stream.recycle_completed().map_err(failed)?;
        let done = Arc::new(Event::new(context).map_err(failed)?);
        let emptied = BatchTable::new(&batch.format)?;
        let (entries, launches) = std::mem::replace(&mut batch.table, emptied).finish();
        // The slab has the size of a full batch, so that incomplete batches reuse the same memory.
        let table_bytes = batch.capacity * ENTRY_BYTES;
        let mut host = self.device.buffers.take(table_bytes)?;
        host[..entries.len()].copy_from_slice(&entries);
        let mut table = self.device.slabs.take(table_bytes)?;
        let Some(mut output) = batch.output.take() else {
            self.device.slabs.recycle(table);
            return Err(invalid("this batch was already launched".to_owned()));
        };
        let stream = self.stream.handle();
        let written = MemoryAccess::written(output.memory.address.0, len as u64);
        let mut has_waited = false;
        let started = context.attempt(|driver| {
            for event in output.pending_for(stream).chain(table.pending_for(stream)) {
                driver.wait_event(stream, event.handle())?;
            }
            has_waited = true;
            for event in batch.sources.iter().map(|source| source.ready()).chain(after) {
                driver.wait_event(stream, event.handle())?;
            }
            let address = table.memory.address;
            // SAFETY: both are long enough, and exist until `done` completes: the stream holds the
            // host buffer, and the slab is written or freed only after that event.
            unsafe { driver.copy_to_device(address, host.as_ptr(), entries.len(), stream)? };
            for launch in &launches {
                // SAFETY: as above, for the images and the slab of the samples, too.
                unsafe { self.launch_kernel(driver, launch, address.0, &batch.reads, written)? };
            }
            driver.record_event(done.handle(), stream)
        });
        if let Err(error) = started {
            let is_done = self.stream.recycle_or_withhold(host);
            for slab in [output, table] {
                self.device.slabs.recycle_after_failure(slab, is_done && has_waited);
            }
            if !is_done {
                batch.sources.iter().for_each(|source| source.record_unknown_use());
            }
            return Err(failed(error));
        }
        self.stream.hold(Arc::clone(&done), host);
        batch.sources.iter().for_each(|source| source.record_use(&done));
        table.record_write(stream, &done);
        self.device.slabs.recycle(table);
        output.record_write(stream, &done);
        let memory = CudaMemory::new(Arc::clone(&self.device), output, len, Arc::clone(&done));
        Ok(StartedBatch { memory, done })
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// When the kernel runs, the table is at `table`. The images and outputs of its entries exist
    /// until the kernel has ended.
    unsafe fn launch_kernel(
        &self,
        driver: &dyn Driver,
        launch: &Launch,
        table: u64,
        reads: &[MemoryAccess],
        written: MemoryAccess,
    ) -> DriverResult<()> {
        let (offset, bytes) = launch.part();
        let mut accesses = vec![MemoryAccess::read(table + offset, bytes), written];
        accesses.extend_from_slice(reads);
        let dimensions =
            LaunchDimensions { grid: launch.grid, block: launch.block, shared_bytes: 0 };
        let argument = launch.argument(table).to_ne_bytes();
        let at = KERNELS.iter().position(|name| *name == launch.function()).unwrap_or(0);
        let stream: &StreamHandle = self.stream.handle();
        // SAFETY: the only argument of the kernel is the address of its part of the table. The
        // caller guarantees the rest.
        unsafe { driver.launch(&self.functions[at], dimensions, &[&argument], &accesses, stream) }
    }
}

fn functions(driver: &dyn Driver, module: &ModuleHandle) -> DriverResult<[FunctionHandle; 4]> {
    let [first, second, third, fourth] = KERNELS.map(|name| driver.function(module, name));
    Ok([first?, second?, third?, fourth?])
}

impl Drop for ImageKernels {
    fn drop(&mut self) {
        // If a kernel may still be running, its code is not unloaded.
        let Some(module) = self.module.take().filter(|_| self.stream.synchronize()) else { return };
        // SAFETY: no kernel of the module runs, and its functions are dropped with it.
        self.device.context.release(|driver| unsafe { driver.unload_module(module) });
    }
}

impl fmt::Debug for ImageKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageKernels({}, {:?})", self.architecture, self.device.context)
    }
}

impl SampleBatch {
    /// The number of samples.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether the batch has no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the sample of an image in `memory`.
    ///
    /// # Errors
    /// `InvalidArgument` if the batch is full, the image is not inside `memory`, or `memory` is on
    /// another device; otherwise the errors of [`BatchTable::push`].
    pub fn push(
        &mut self,
        memory: &Arc<CudaMemory>,
        image: &SourceImage,
        plan: &ResizePlan,
    ) -> Result<()> {
        let (start, len) = memory.extent();
        let is_inside = |(address, bytes): (u64, u64)| {
            let end = address.checked_add(bytes);
            start <= address && end.is_some_and(|end| end <= start + len)
        };
        if !memory.is_of(&self.device) || !image.extents().all(is_inside) {
            return Err(invalid(format!(
                "invalid image: not inside the {len} bytes at {start:#x}, or on another device"
            )));
        }
        // SAFETY: the batch keeps the memory until the kernels complete.
        unsafe { self.push_foreign(image, plan)? };
        if !self.sources.iter().any(|source| Arc::ptr_eq(source, memory)) {
            self.sources.push(Arc::clone(memory));
        }
        Ok(())
    }

    /// Adds the sample of an image in memory that this batch does not keep.
    ///
    /// # Errors
    /// The errors of [`push`](SampleBatch::push).
    ///
    /// # Safety
    /// The image exists from the completion of the events of [`ImageKernels::launch_after`] until
    /// the kernels are [done](StartedBatch::done).
    pub(crate) unsafe fn push_foreign(
        &mut self,
        image: &SourceImage,
        plan: &ResizePlan,
    ) -> Result<()> {
        let at = self.len();
        let output = self.output.as_ref().filter(|_| at < self.capacity);
        let Some(output) = output else {
            return Err(invalid(format!("the batch is full: it has {} samples", self.capacity)));
        };
        let sample = output.memory.address.0 + at as u64 * self.format.bytes();
        self.table.push(image, plan, sample)?;
        self.reads
            .extend(image.extents().map(|(address, bytes)| MemoryAccess::read(address, bytes)));
        Ok(())
    }
}

impl Drop for SampleBatch {
    fn drop(&mut self) {
        // No work uses the slab, so it can be reused immediately.
        if let Some(output) = self.output.take() {
            self.device.slabs.recycle(output);
        }
    }
}

impl fmt::Debug for SampleBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SampleBatch({} of {} samples, {:?})", self.len(), self.capacity, self.format)
    }
}
