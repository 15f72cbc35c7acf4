//! A CUDA device: uploads of batches, buffers and statistics.

use std::fmt;
use std::sync::Arc;

use spdl_core::memory::{BufferPool, HostBuffer, Space, Upload};
use spdl_core::{Device, Result};

use super::affinity::cpus_near;
use super::consumer::ConsumerEvent;
use super::context::Context;
use super::description::{DeviceDescription, describe};
use super::device_inner::DeviceInner;
use super::event::Event;
use super::memory::{CopyFence, CudaMemory};
use super::pinned::pinned_buffers;
use super::slabs::{DeviceAllocator, SlabPool, SlabStatistics};
use super::stream::CopyStream;
use crate::driver::{Driver, LoadedDriver};
use crate::libraries::Search;

/// A CUDA device. Clones share one device: open it once.
///
/// [`upload`](Device::upload) queues a copy on a dedicated stream. After the first batches, uploads
/// of batches of the same size allocate no memory and do not block the host. Pass
/// [`buffers`](CudaDevice::buffers) to the pipeline, so that batches are assembled in pinned
/// memory.
///
/// The device uses the primary context, as training frameworks do. This crate never resets the
/// context, and leaves the current context of the calling thread unchanged.
///
/// ```no_run
/// use std::sync::Arc;
/// # use spdl_core::{Batch, PipelineBuilder};
/// # fn numbers() -> PipelineBuilder<Batch> { unimplemented!() }
/// use spdl_cuda::{ConsumerStream, CudaDevice, CudaMemory};
///
/// let device = CudaDevice::open(0)?;
/// let pipeline =
///     numbers().buffers(device.buffers()).upload("upload", Arc::new(device.clone())).build()?;
/// let stream = ConsumerStream::legacy_default();
/// for batch in pipeline {
///     let batch = batch?;
///     for (name, array) in batch.arrays() {
///         let memory = CudaMemory::of(array).expect("the upload stage wrote to a CUDA device");
///         memory.wait_on(&stream)?;
///         // ... launch kernels on `stream` that read `memory.address()`
///     }
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct CudaDevice(Arc<DeviceInner>);

/// The memory that a device uses, and failures that no call could return.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceStatistics {
    /// The device memory pool.
    pub slabs: SlabStatistics,
    /// Bytes of host memory that copies in flight use.
    pub copying_bytes: usize,
    /// Number of resources that could not be destroyed.
    pub release_failures: usize,
}

impl CudaDevice {
    /// Opens device `ordinal`, in the numbering of the CUDA driver, from 0.
    ///
    /// # Errors
    /// `Unsupported` if the driver is missing or too old, with a remedy; `InvalidArgument` if the
    /// device does not exist; errors of the driver.
    pub fn open(ordinal: u32) -> Result<CudaDevice> {
        CudaDevice::open_with(ordinal, &Search::default())
    }

    /// Like [`open`](CudaDevice::open), with additional places to search for the driver.
    ///
    /// # Errors
    /// The errors of [`open`](CudaDevice::open).
    pub fn open_with(ordinal: u32, search: &Search) -> Result<CudaDevice> {
        let driver = LoadedDriver::load(search)
            .map_err(|error| error.into_error(&format!("open CUDA device {ordinal}")))?;
        CudaDevice::with_driver(Arc::new(driver), ordinal)
    }

    pub(crate) fn with_driver(driver: Arc<dyn Driver>, ordinal: u32) -> Result<CudaDevice> {
        let context = Context::open(driver, ordinal)?;
        let near_cpus = Arc::from(cpus_near(context.driver(), context.device()));
        Ok(CudaDevice(Arc::new(DeviceInner {
            uploads: CopyStream::new(&context)?,
            downloads: CopyStream::new(&context)?,
            slabs: SlabPool::new(&context),
            buffers: pinned_buffers(&context, &near_cpus),
            near_cpus,
            context,
        })))
    }

    pub(crate) fn inner(&self) -> &Arc<DeviceInner> {
        &self.0
    }

    #[cfg(feature = "python")]
    pub(crate) fn of_inner(inner: &Arc<DeviceInner>) -> CudaDevice {
        CudaDevice(Arc::clone(inner))
    }

    /// The ordinal of the device.
    pub fn ordinal(&self) -> u32 {
        self.0.context.ordinal()
    }

    /// Returns the attributes of the device, such as its name and compute capability.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn description(&self) -> Result<DeviceDescription> {
        let context = &self.0.context;
        describe(context.driver(), context.device())
            .map_err(|error| context.error(error, "read the attributes of the device"))
    }

    /// The CPUs of the NUMA node of the device, in the numbering of Linux; empty if unknown.
    ///
    /// Pinned [buffers](CudaDevice::buffers) are allocated on that node if the process may use one
    /// of these CPUs. Threads fill the buffers fastest if they run on these CPUs: see
    /// [`StageOptions::pinned`](spdl_core::StageOptions::pinned).
    pub fn near_cpus(&self) -> &[usize] {
        &self.0.near_cpus
    }

    /// A pool of pinned buffers, for
    /// [`PipelineBuilder::buffers`](spdl_core::PipelineBuilder::buffers).
    pub fn buffers(&self) -> BufferPool {
        self.0.buffers.clone()
    }

    /// Uses `allocator` instead of the driver for all further allocations of the device memory
    /// pool.
    pub fn set_allocator(&self, allocator: Arc<dyn DeviceAllocator>) {
        self.0.slabs.set_allocator(allocator);
    }

    /// Returns whether an event of a consumer has completed. Does not block.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn is_complete(&self, event: &ConsumerEvent) -> Result<bool> {
        self.0.context.run("query an event", |driver| driver.query_event(event.handle()))
    }

    /// Returns the memory in use, and the number of resources that could not be destroyed.
    pub fn statistics(&self) -> DeviceStatistics {
        let DeviceInner { uploads, downloads, slabs, context, .. } = &*self.0;
        DeviceStatistics {
            slabs: slabs.statistics(),
            copying_bytes: uploads.in_flight_bytes() + downloads.in_flight_bytes(),
            release_failures: context.release_failures(),
        }
    }
}

impl Device for CudaDevice {
    fn space(&self) -> Space {
        Space::Cuda { ordinal: self.ordinal() }
    }

    fn host_buffer(&self, bytes: usize) -> Result<HostBuffer> {
        let DeviceInner { uploads, buffers, context, .. } = &*self.0;
        uploads
            .recycle_completed()
            .map_err(|error| context.error(error, "allocate host memory for a batch"))?;
        buffers.take(bytes)
    }

    fn upload(&self, host: HostBuffer) -> Result<Upload> {
        let DeviceInner { uploads, slabs, context, .. } = &*self.0;
        let doing = "copy a batch to the device";
        context.check(doing)?;
        uploads.recycle_completed().map_err(|error| context.error(error, doing))?;
        let event = Event::new(context).map_err(|error| context.error(error, doing))?;
        let copied = Arc::new(event);
        let mut slab = slabs.take(host.len())?;
        let mut has_waited = false;
        let started = context.attempt(|driver| {
            let stream = uploads.handle();
            for event in slab.pending_for(stream) {
                driver.wait_event(stream, event.handle())?;
            }
            has_waited = true;
            if !host.is_empty() {
                let (to, from) = (slab.memory.address, host.as_ptr());
                // SAFETY: both are at least this long, and exist until `copied` completes: the
                // stream holds the buffer, and the slab is written or freed only after that event.
                unsafe { driver.copy_to_device(to, from, host.len(), stream)? };
            }
            driver.record_event(copied.handle(), stream)
        });
        if let Err(error) = started {
            let is_done = uploads.recycle_or_withhold(host);
            slabs.recycle_after_failure(slab, is_done && has_waited);
            return Err(context.error(error, doing));
        }
        slab.record_write(uploads.handle(), &copied);
        let len = host.len();
        uploads.hold(Arc::clone(&copied), host);
        let memory = CudaMemory::new(Arc::clone(&self.0), slab, len, Arc::clone(&copied));
        Ok(Upload { memory: Box::new(memory), ready: Box::new(CopyFence(copied)) })
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDevice({})", self.ordinal())
    }
}
