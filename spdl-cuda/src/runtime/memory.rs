//! Device memory of a batch: its consumers, its recycling, and downloads to the host.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use super::consumer::{ConsumerEvent, ConsumerStream};
use super::device_inner::DeviceInner;
use super::event::Event;
use super::slabs::Slab;
use crate::driver::{DeviceAddress, MemoryHandle};
use spdl_core::memory::{DeviceMemory, Fence, HostBuffer, Space};
use spdl_core::stage::DeviceArray;
use spdl_core::{Error, ErrorKind, Result};

/// Device memory that holds an array of a batch, or will hold it once a copy in flight completes.
///
/// A consumer makes each of its streams [wait](CudaMemory::wait_on) for the copy, and then uses the
/// memory on those streams. The host does not wait. After the memory is dropped, the pool can reuse
/// it: the next write waits, on the device, for the work that these streams had queued before the
/// drop.
pub struct CudaMemory {
    device: Arc<DeviceInner>,
    /// `None` only during drop.
    slab: Option<Slab>,
    len: usize,
    /// An event that completes when the bytes are written.
    ready: Arc<Event>,
    uses: Mutex<PendingUses>,
}

/// Uses of the memory after the first write.
#[derive(Default)]
struct PendingUses {
    streams: Vec<ConsumerUse>,
    /// Events that complete after downloads and kernels of this crate.
    events: Vec<Arc<Event>>,
    /// Whether a failed call may have left work that uses the memory for an unknown time.
    has_unknown_use: bool,
}

/// A stream of a consumer that uses the memory.
struct ConsumerUse {
    stream: ConsumerStream,
    /// The thread that registered the stream, because each thread has a separate per-thread default
    /// stream.
    thread: ThreadId,
    /// Whether the stream itself waits for `ready`. If not, it may wait for another stream of the
    /// consumer, possibly later.
    has_waited: bool,
}

impl PendingUses {
    fn add(&mut self, stream: &ConsumerStream, has_waited: bool) {
        let thread = thread::current().id();
        match self.streams.iter_mut().find(|user| user.is(stream, thread)) {
            Some(user) => user.has_waited |= has_waited,
            None => self.streams.push(ConsumerUse { stream: stream.clone(), thread, has_waited }),
        }
    }

    /// Whether `ready` precedes further work of this thread on `stream`.
    fn is_ordered(&self, stream: &ConsumerStream) -> bool {
        let thread = thread::current().id();
        self.streams.iter().any(|user| user.has_waited && user.is(stream, thread))
    }
}

impl ConsumerUse {
    fn is(&self, stream: &ConsumerStream, thread: ThreadId) -> bool {
        self.stream == *stream && self.thread == thread
    }
}

impl CudaMemory {
    pub(crate) fn new(device: Arc<DeviceInner>, slab: Slab, len: usize, ready: Arc<Event>) -> Self {
        CudaMemory { device, slab: Some(slab), len, ready, uses: Mutex::default() }
    }

    /// The CUDA memory of an array; `None` if the array is on another kind of device.
    pub fn of(array: &DeviceArray) -> Option<&CudaMemory> {
        (array.memory() as &dyn Any).downcast_ref()
    }

    /// Makes all further work of `stream` wait until the bytes are written, and records that
    /// `stream` uses the memory.
    ///
    /// # Errors
    /// `InvalidArgument` while `stream` is being captured into a graph; the capture stays valid.
    /// Errors of the driver. After an error, `stream` must not use the memory.
    pub fn wait_on(&self, stream: &ConsumerStream) -> Result<()> {
        self.device.context.run("make a stream wait for a batch", |driver| {
            stream.check_not_captured(driver)?;
            driver.wait_event(stream.handle(), self.ready.handle())
        })?;
        self.uses().add(stream, true);
        Ok(())
    }

    /// Records that `stream` uses the memory, without making it wait.
    ///
    /// Use this method for streams that wait for another stream of the consumer.
    /// [`wait_on`](CudaMemory::wait_on) also records the use.
    pub fn record_stream(&self, stream: &ConsumerStream) {
        self.uses().add(stream, false);
    }

    /// Queues a copy to the host, and returns immediately. The copy waits for all work queued on
    /// `after`.
    ///
    /// # Errors
    /// `LimitExceeded` if host memory is exhausted; `InvalidArgument` while `after` is being
    /// captured into a graph; the capture stays valid. Errors of the driver.
    pub fn download(&self, after: Option<&ConsumerStream>) -> Result<Download> {
        self.download_part(0, self.len, after, None)
    }

    /// Like [`download`](CudaMemory::download), for `bytes` bytes from `offset`. The copy also
    /// waits for `event`.
    ///
    /// # Errors
    /// `InvalidArgument` if the range exceeds the memory; otherwise the errors of
    /// [`download`](CudaMemory::download).
    pub fn download_part(
        &self,
        offset: usize,
        bytes: usize,
        after: Option<&ConsumerStream>,
        event: Option<&ConsumerEvent>,
    ) -> Result<Download> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.len) {
            let message = format!(
                "invalid range: {bytes} bytes from offset {offset} exceed the {} bytes of the memory",
                self.len
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let DeviceInner { context, downloads, buffers, .. } = &*self.device;
        let doing = "copy a batch from the device";
        context.check(doing)?;
        if let Some(stream) = after {
            context.run(doing, |driver| stream.check_not_captured(driver))?;
        }
        downloads.recycle_completed().map_err(|error| context.error(error, doing))?;
        let mut buffer = buffers.take(bytes)?;
        let to = buffer.as_mut_ptr();
        let new_event = || Event::new(context).map_err(|error| context.error(error, doing));
        let done = Arc::new(new_event()?);
        let is_ordered = after.is_some_and(|stream| self.uses().is_ordered(stream));
        let preceding = after.map(|stream| Ok::<_, Error>((stream, new_event()?))).transpose()?;
        let started = context.attempt(|driver| {
            let stream = downloads.handle();
            if !is_ordered {
                driver.wait_event(stream, self.ready.handle())?;
            }
            if let Some((consumer, queued)) = &preceding {
                driver.record_event(queued.handle(), consumer.handle())?;
                driver.wait_event(stream, queued.handle())?;
            }
            if let Some(event) = event {
                driver.wait_event(stream, event.handle())?;
            }
            if let Some(memory) = self.handle().filter(|_| bytes > 0) {
                let from = DeviceAddress(memory.address.0 + offset as u64);
                // SAFETY: both are at least this long, and exist until the copy completes: the
                // download holds the buffer, and `done` among the uses protects the slab.
                unsafe { driver.copy_to_host(to, from, bytes, stream)? };
            }
            driver.record_event(done.handle(), stream)
        });
        if let Err(error) = started {
            let is_done = downloads.recycle_or_withhold(buffer);
            self.uses().has_unknown_use |= !is_done;
            return Err(context.error(error, doing));
        }
        self.uses().events.push(Arc::clone(&done));
        Ok(Download { device: Arc::clone(&self.device), buffer: Some(buffer), done })
    }

    /// An event that completes when the bytes are written.
    pub(crate) fn ready(&self) -> &Arc<Event> {
        &self.ready
    }

    /// Address and length in bytes.
    pub(crate) fn extent(&self) -> (u64, u64) {
        (self.address() as u64, self.len as u64)
    }

    /// Whether the memory belongs to `device`.
    pub(crate) fn is_of(&self, device: &Arc<DeviceInner>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// The device of the memory.
    #[cfg(feature = "python")]
    pub(crate) fn device(&self) -> &Arc<DeviceInner> {
        &self.device
    }

    /// Records that work of this crate uses the memory until `done` completes.
    pub(crate) fn record_use(&self, done: &Arc<Event>) {
        self.uses().events.push(Arc::clone(done));
    }

    /// Records that work of this crate may use the memory for an unknown time.
    pub(crate) fn record_unknown_use(&self) {
        self.uses().has_unknown_use = true;
    }

    fn uses(&self) -> MutexGuard<'_, PendingUses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self) -> Option<&MemoryHandle> {
        self.slab.as_ref().map(|slab| &slab.memory).filter(|_| self.len > 0)
    }
}

impl DeviceMemory for CudaMemory {
    fn space(&self) -> Space {
        Space::Cuda { ordinal: self.device.context.ordinal() }
    }

    fn len(&self) -> usize {
        self.len
    }

    /// The device address, for kernels on streams that [wait](CudaMemory::wait_on) for the memory.
    fn address(&self) -> usize {
        self.slab.as_ref().map_or(0, |slab| slab.memory.address.0 as usize)
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        let Some(mut slab) = self.slab.take() else { return };
        let context = &self.device.context;
        let PendingUses { streams, events, has_unknown_use } = std::mem::take(&mut *self.uses());
        if has_unknown_use {
            return self.device.slabs.withhold(slab);
        }
        // Work of this crate, and work of streams that waited, is ordered after the write. Other
        // streams only registered a use.
        slab.is_behind_writer = !events.is_empty() || streams.iter().any(|user| user.has_waited);
        slab.uses.extend(events);
        for ConsumerUse { stream, thread, .. } in streams {
            let used = Event::new(context).and_then(|used| {
                context.attempt(|driver| {
                    if stream.is_per_thread() && thread != thread::current().id() {
                        // This thread cannot access the per-thread default stream of another
                        // thread. It uses the legacy default stream instead: work there is ordered
                        // after all per-thread streams, and a wait counts as work.
                        let legacy = ConsumerStream::legacy_default();
                        legacy.check_not_captured(driver)?;
                        driver.wait_event(legacy.handle(), self.ready.handle())?;
                        return driver.record_event(used.handle(), legacy.handle());
                    }
                    // During a capture, a record would become a node of the graph, and other
                    // streams could not wait for it.
                    stream.check_not_captured(driver)?;
                    driver.record_event(used.handle(), stream.handle())
                })?;
                Ok(used)
            });
            match used {
                Ok(used) => slab.uses.push(Arc::new(used)),
                Err(_) => return self.device.slabs.withhold(slab),
            }
        }
        self.device.slabs.recycle(slab);
    }
}

impl fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ordinal = self.device.context.ordinal();
        write!(f, "CudaMemory({} bytes at {:#x} of device {ordinal})", self.len, self.address())
    }
}

/// A fence that completes when the bytes are on the device.
#[derive(Debug)]
pub(crate) struct CopyFence(pub(crate) Arc<Event>);

impl Fence for CopyFence {
    fn is_done(&self) -> Result<bool> {
        is_done(&self.0)
    }

    fn wait(&self) -> Result<()> {
        wait(&self.0)
    }
}

fn is_done(event: &Event) -> Result<bool> {
    event.is_complete().map_err(|error| event.context().error(error, "copy a batch"))
}

fn wait(event: &Event) -> Result<()> {
    event.wait().map_err(|error| event.context().error(error, "copy a batch"))
}

/// A device-to-host copy in flight.
pub struct Download {
    device: Arc<DeviceInner>,
    /// `None` only after `wait` returned the buffer.
    buffer: Option<HostBuffer>,
    done: Arc<Event>,
}

impl Download {
    /// Returns whether the copy has completed. Does not block.
    ///
    /// # Errors
    /// The error of the copy.
    pub fn is_done(&self) -> Result<bool> {
        is_done(&self.done)
    }

    /// Waits for the copy and returns the bytes.
    ///
    /// # Errors
    /// The error of the copy.
    pub fn wait(mut self) -> Result<HostBuffer> {
        wait(&self.done)?;
        match self.buffer.take() {
            Some(buffer) => Ok(buffer),
            None => self.device.buffers.take(0),
        }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.device.downloads.hold(Arc::clone(&self.done), buffer);
        }
    }
}

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.buffer.as_ref().map_or(0, |buffer| buffer.len());
        write!(f, "Download({bytes} bytes)")
    }
}
