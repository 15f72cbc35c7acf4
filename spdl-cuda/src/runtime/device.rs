//! A CUDA device as the place where batches go.

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
use super::memory::{Copied, CudaMemory};
use super::pinned::pinned_buffers;
use super::slabs::{DeviceAllocator, SlabStatistics, Slabs};
use super::stream::CopyStream;
use crate::driver::{Driver, LoadedDriver};
use crate::libraries::Search;

/// A CUDA device. Clones are the same device: open it once.
///
/// An [upload](Device::upload) is queued on a stream of its own and returns at once; in the steady
/// state nothing waits on the host, and nothing is allocated. Give a pipeline the device's
/// [buffers](CudaDevice::buffers), so that its batches lie in pinned memory from the start.
///
/// The device's primary context is used, the same as by training frameworks. It is never reset, and a
/// thread that calls this keeps the context that was its current one.
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
///         let memory = CudaMemory::of(array).expect("it was sent to a CUDA device");
///         memory.wait_on(&stream)?;
///         // ... launch kernels on `stream` that read `memory.address()`
///     }
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct CudaDevice(Arc<DeviceInner>);

/// What a device has lent, and what went wrong unnoticed.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceStatistics {
    /// The device's memory.
    pub slabs: SlabStatistics,
    /// Bytes of the host's memory that copies under way use.
    pub copying_bytes: usize,
    /// How often something could not be destroyed.
    pub release_failures: usize,
}

impl CudaDevice {
    /// Opens device `ordinal`, counted from 0 as the CUDA driver counts.
    ///
    /// # Errors
    /// `Unsupported` where there is no driver, or too old a one, with what to do; `InvalidArgument`
    /// where there is no such device; what the driver says.
    pub fn open(ordinal: u32) -> Result<CudaDevice> {
        CudaDevice::open_with(ordinal, &Search::default())
    }

    /// The same, with places where to search for the driver.
    ///
    /// # Errors
    /// As of [`open`](CudaDevice::open).
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
            slabs: Slabs::new(&context),
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

    /// The number by which it was opened.
    pub fn ordinal(&self) -> u32 {
        self.0.context.ordinal()
    }

    /// What it is.
    ///
    /// # Errors
    /// What the driver says.
    pub fn description(&self) -> Result<DeviceDescription> {
        let context = &self.0.context;
        describe(context.driver(), context.device())
            .map_err(|error| context.error(error, "describe a device"))
    }

    /// The CPUs of the host that are near the device, as Linux numbers them; none where nobody knows.
    ///
    /// Its pinned [buffers](CudaDevice::buffers) lie near them, where the host has several nodes of
    /// memory. Threads that fill those do best there, too:
    /// [`StageOptions::pinned`](spdl_core::StageOptions::pinned).
    pub fn near_cpus(&self) -> &[usize] {
        &self.0.near_cpus
    }

    /// Pinned buffers for batches to be assembled in: for
    /// [`PipelineBuilder::buffers`](spdl_core::PipelineBuilder::buffers).
    pub fn buffers(&self) -> BufferPool {
        self.0.buffers.clone()
    }

    /// Takes the device's memory from `allocator` from now on, and not from the driver.
    pub fn set_allocator(&self, allocator: Arc<dyn DeviceAllocator>) {
        self.0.slabs.set_allocator(allocator);
    }

    /// Whether all is done that an event of a consumer's is behind, without waiting.
    ///
    /// # Errors
    /// What the driver says.
    pub fn is_reached(&self, event: &ConsumerEvent) -> Result<bool> {
        self.0.context.run("ask for an event", |driver| driver.query_event(event.handle()))
    }

    /// What is lent now.
    pub fn statistics(&self) -> DeviceStatistics {
        let DeviceInner { uploads, downloads, slabs, context, .. } = &*self.0;
        DeviceStatistics {
            slabs: slabs.statistics(),
            copying_bytes: uploads.held_bytes() + downloads.held_bytes(),
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
        // What copies have finished with is there to be used again.
        uploads
            .give_back_finished()
            .map_err(|error| context.error(error, "take host memory for a batch"))?;
        buffers.take(bytes)
    }

    fn upload(&self, host: HostBuffer) -> Result<Upload> {
        let DeviceInner { uploads, slabs, context, .. } = &*self.0;
        let doing = "copy a batch to the device";
        context.check(doing)?;
        uploads.give_back_finished().map_err(|error| context.error(error, doing))?;
        let event = Event::new(context).map_err(|error| context.error(error, doing))?;
        let copied = Arc::new(event);
        let mut slab = slabs.take(host.len())?;
        let mut has_waited = false;
        let started = context.attempt(|driver| {
            let stream = uploads.handle();
            for event in slab.under_way(stream) {
                driver.wait_event(stream, event.handle())?;
            }
            has_waited = true;
            if !host.is_empty() {
                let (to, from) = (slab.memory.address, host.as_ptr());
                // SAFETY: both are held until the event behind this is reached: the buffer by the
                // stream, the slab since it is only written and freed behind that event. Both are at
                // least so long.
                unsafe { driver.copy_to_device(to, from, host.len(), stream)? };
            }
            driver.record_event(copied.handle(), stream)
        });
        if let Err(error) = started {
            let is_over = uploads.give_back_unsure(host);
            slabs.give_back_after_failure(slab, is_over && has_waited);
            return Err(context.error(error, doing));
        }
        slab.written_by(uploads.handle(), &copied);
        let len = host.len();
        uploads.hold(Arc::clone(&copied), host);
        let memory = CudaMemory::new(Arc::clone(&self.0), slab, len, Arc::clone(&copied));
        Ok(Upload { memory: Box::new(memory), ready: Box::new(Copied(copied)) })
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDevice({})", self.ordinal())
    }
}
