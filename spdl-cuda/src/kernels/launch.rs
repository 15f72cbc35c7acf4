//! The kernels on a device: loaded once, then started for a batch at a time, and nobody waits.
//!
//! ```text
//!  sources ──event──┐
//!  table, pinned ──copy──► kernels ──► slab of samples ──event──► consumer's stream
//!                              └─event─► sources and table are free
//! ```

use std::fmt;
use std::sync::Arc;

use spdl_core::Result;
use spdl_core::memory::Upload;

use super::invalid;
use super::modules::module_for;
use super::plan::ResizePlan;
use super::sample::SampleFormat;
use super::table::{BatchTable, ENTRY_BYTES, KERNELS, Launch};
use crate::driver::{
    Driver, DriverResult, FunctionHandle, LaunchDimensions, MemoryAccess, ModuleHandle,
    StreamHandle,
};
use crate::pixels::SourceImage;
use crate::runtime::{
    CopyFence, CopyStream, CudaDevice, CudaMemory, DeviceInner, Event, Slab, describe,
};

/// The kernels of this module on a device, with a stream of their own.
///
/// ```no_run
/// use std::sync::Arc;
/// use spdl_cuda::CudaDevice;
/// # use spdl_cuda::CudaMemory;
/// use spdl_cuda::kernels::{ImageKernels, PixelBox, ResizePlan, SampleFormat};
/// use spdl_cuda::pixels::{DevicePlane, SourceImage};
/// # fn decoded() -> Arc<CudaMemory> { unimplemented!() }
/// use spdl_core::memory::DeviceMemory;
///
/// let device = CudaDevice::open(0)?;
/// let kernels = ImageKernels::new(&device)?;
/// let mut batch = kernels.batch(&SampleFormat::new(224, 224), 32)?;
/// // Rows of RGB in memory of the device: a decoder's, or uploaded.
/// let memory = decoded();
/// let plane = DevicePlane { address: memory.address() as u64, pitch: 3 * 500 };
/// let image = SourceImage::rgb8(500, 375, plane)?;
/// let whole = PixelBox { left: 0.0, top: 0.0, width: 500.0, height: 375.0 };
/// batch.push(&memory, &image, &ResizePlan::new(whole, 224, 224))?;
/// let upload = kernels.launch(batch)?;
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct ImageKernels {
    functions: [FunctionHandle; KERNELS.len()],
    /// `None` only once it is unloaded.
    module: Option<ModuleHandle>,
    architecture: &'static str,
    /// Where tables are copied and kernels run. It holds the host memory that tables lie in.
    stream: CopyStream,
    device: Arc<DeviceInner>,
}

/// Samples of a batch that are to be made in one go; see [`ImageKernels::batch`].
pub struct SampleBatch {
    format: SampleFormat,
    table: BatchTable,
    room: usize,
    /// `None` only once it is launched.
    output: Option<Slab>,
    sources: Vec<Arc<CudaMemory>>,
    reads: Vec<MemoryAccess>,
    device: Arc<DeviceInner>,
}

/// Samples that are being made.
pub(crate) struct StartedBatch {
    pub(crate) memory: CudaMemory,
    /// Behind the kernels: nothing that they read is read after it.
    pub(crate) done: Arc<Event>,
}

impl ImageKernels {
    /// Loads the kernels that were compiled for the device, or lets the driver compile them.
    ///
    /// # Errors
    /// `Unsupported` for a device of compute capability below 7.5, and where the driver would have to
    /// compile them and cannot; what the driver says.
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
            // SAFETY: the image is a whole cubin, or PTX with a zero byte at its end.
            let handle = unsafe { driver.load_module(&image)? };
            match functions(driver, &handle) {
                Ok(functions) => Ok((handle, functions)),
                Err(error) => {
                    // SAFETY: none of its kernels was started.
                    let _ = unsafe { driver.unload_module(handle) };
                    Err(error)
                }
            }
        })?;
        let (module, architecture) = (Some(handle), module.architecture());
        Ok(ImageKernels { functions, module, architecture, stream, device })
    }

    /// What the kernels were compiled for: `sm_90`, or `compute_75` where the driver has compiled them.
    pub fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// A batch with room for so many samples of this format. Samples are added one by one; those that
    /// are there when it is [launched](ImageKernels::launch) are the batch.
    ///
    /// # Errors
    /// `InvalidArgument` where such samples cannot be, or for a batch of none; `LimitExceeded` where
    /// the device has no memory for it.
    pub fn batch(&self, format: &SampleFormat, room: usize) -> Result<SampleBatch> {
        let table = BatchTable::new(format)?;
        let bytes = usize::try_from(format.bytes()).ok().and_then(|bytes| bytes.checked_mul(room));
        let Some(bytes) = bytes.filter(|&bytes| bytes > 0) else {
            return Err(invalid(format!("there can be no batch of {room} such samples")));
        };
        self.device.context.check("make samples of a batch")?;
        let output = Some(self.device.slabs.take(bytes)?);
        let (sources, reads) = (Vec::new(), Vec::new());
        let (format, device) = (format.clone(), Arc::clone(&self.device));
        Ok(SampleBatch { format, table, room, output, sources, reads, device })
    }

    /// Starts to make the samples, behind all that brings their images, and returns at once. The
    /// images' memory is free when the samples are made, whoever drops it before.
    ///
    /// # Errors
    /// `InvalidArgument` for a batch without samples, or of another device; what the driver says.
    pub fn launch(&self, batch: SampleBatch) -> Result<Upload> {
        let StartedBatch { memory, done } = self.launch_behind(batch, &[])?;
        Ok(Upload { memory: Box::new(memory), ready: Box::new(CopyFence(done)) })
    }

    /// The same, behind these events, too: of what brings images that are no [`CudaMemory`].
    pub(crate) fn launch_behind(
        &self,
        mut batch: SampleBatch,
        behind: &[Arc<Event>],
    ) -> Result<StartedBatch> {
        let doing = "make samples of a batch";
        let context = &self.device.context;
        let len = batch.len() * batch.format.bytes() as usize;
        if len == 0 || !Arc::ptr_eq(&self.device, &batch.device) {
            return Err(invalid("expected samples on the device of the kernels".to_owned()));
        }
        context.check(doing)?;
        let failed = |error| context.error(error, doing);
        self.stream.recycle_completed().map_err(failed)?;
        let done = Arc::new(Event::new(context).map_err(failed)?);
        let emptied = BatchTable::new(&batch.format)?;
        let (entries, launches) = std::mem::replace(&mut batch.table, emptied).finish();
        // Always as long as for a full batch, so that the same memory is used again.
        let table_bytes = batch.room * ENTRY_BYTES;
        let mut host = self.device.buffers.take(table_bytes)?;
        host[..entries.len()].copy_from_slice(&entries);
        let mut table = self.device.slabs.take(table_bytes)?;
        let Some(mut output) = batch.output.take() else {
            self.device.slabs.recycle(table);
            return Err(invalid("the batch was launched before".to_owned()));
        };
        let stream = self.stream.handle();
        let written = MemoryAccess::written(output.memory.address.0, len as u64);
        let mut has_waited = false;
        let started = context.attempt(|driver| {
            for event in output.pending_for(stream).chain(table.pending_for(stream)) {
                driver.wait_event(stream, event.handle())?;
            }
            has_waited = true;
            for event in batch.sources.iter().map(|source| source.ready()).chain(behind) {
                driver.wait_event(stream, event.handle())?;
            }
            let address = table.memory.address;
            // SAFETY: both are as long, and held until the event behind this is reached: the host's
            // by the stream, the slab since it is only written and freed behind that event.
            unsafe { driver.copy_to_device(address, host.as_ptr(), entries.len(), stream)? };
            for launch in &launches {
                // SAFETY: as above; so are the images, and the slab for the samples.
                unsafe { self.start(driver, launch, address.0, &batch.reads, written)? };
            }
            driver.record_event(done.handle(), stream)
        });
        if let Err(error) = started {
            let is_over = self.stream.recycle_or_withhold(host);
            for slab in [output, table] {
                self.device.slabs.recycle_after_failure(slab, is_over && has_waited);
            }
            if !is_over {
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

    /// Starts a kernel.
    ///
    /// # Safety
    /// The table lies, or will lie, at `table`; what its entries tell exists until the kernel has ended.
    unsafe fn start(
        &self,
        driver: &dyn Driver,
        launch: &Launch,
        table: u64,
        reads: &[MemoryAccess],
        written: MemoryAccess,
    ) -> DriverResult<()> {
        let (offset, bytes) = launch.part();
        let mut touched = vec![MemoryAccess::read(table + offset, bytes), written];
        touched.extend_from_slice(reads);
        let shape = LaunchDimensions { grid: launch.grid, block: launch.block, shared_bytes: 0 };
        let argument = launch.argument(table).to_ne_bytes();
        let at = KERNELS.iter().position(|name| *name == launch.function()).unwrap_or(0);
        let stream: &StreamHandle = self.stream.handle();
        // SAFETY: the kernel has one argument, the address of its part of the table; the rest is up to
        // the caller.
        unsafe { driver.launch(&self.functions[at], shape, &[&argument], &touched, stream) }
    }
}

fn functions(driver: &dyn Driver, module: &ModuleHandle) -> DriverResult<[FunctionHandle; 4]> {
    let [first, second, third, fourth] = KERNELS.map(|name| driver.function(module, name));
    Ok([first?, second?, third?, fourth?])
}

impl Drop for ImageKernels {
    fn drop(&mut self) {
        // Where a kernel may still run, its code stays.
        let Some(module) = self.module.take().filter(|_| self.stream.synchronize()) else { return };
        // SAFETY: no kernel of it runs, and its functions are dropped with this.
        self.device.context.release(|driver| unsafe { driver.unload_module(module) });
    }
}

impl fmt::Debug for ImageKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageKernels({}, {:?})", self.architecture, self.device.context)
    }
}

impl SampleBatch {
    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds the sample of an image in `memory`, behind those that are there.
    ///
    /// # Errors
    /// `InvalidArgument` where there is no room left, where the image does not lie in this memory, or
    /// this on another device; and as of [`BatchTable::push`].
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
                "the image does not lie in the {len} bytes at {start:#x} of the kernels' device"
            )));
        }
        // SAFETY: the memory is kept until the kernels are done with it.
        unsafe { self.push_foreign(image, plan)? };
        if !self.sources.iter().any(|source| Arc::ptr_eq(source, memory)) {
            self.sources.push(Arc::clone(memory));
        }
        Ok(())
    }

    /// Adds the sample of an image that lies in memory of somebody else.
    ///
    /// # Errors
    /// As of [`push`](SampleBatch::push).
    ///
    /// # Safety
    /// The image lies there from the events on that it is launched behind, and until the kernels are
    /// [done](StartedBatch::done).
    pub(crate) unsafe fn push_foreign(
        &mut self,
        image: &SourceImage,
        plan: &ResizePlan,
    ) -> Result<()> {
        let at = self.len();
        let output = self.output.as_ref().filter(|_| at < self.room);
        let Some(output) = output else {
            return Err(invalid(format!("a batch of {} samples has no room for more", self.room)));
        };
        let place = output.memory.address.0 + at as u64 * self.format.bytes();
        self.table.push(image, plan, place)?;
        self.reads
            .extend(image.extents().map(|(address, bytes)| MemoryAccess::read(address, bytes)));
        Ok(())
    }
}

impl Drop for SampleBatch {
    fn drop(&mut self) {
        // Nothing was told to use it.
        if let Some(output) = self.output.take() {
            self.device.slabs.recycle(output);
        }
    }
}

impl fmt::Debug for SampleBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SampleBatch({} of {} samples, {:?})", self.len(), self.room, self.format)
    }
}
