//! What lies on the device, who uses it, and how it comes back to the host.

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

/// Memory of a CUDA device that holds an array of a batch, or will soon.
///
/// A consumer lets each of its streams [wait](CudaMemory::wait_on) for the copy, and uses the memory
/// there; nothing waits on the host. When this is dropped, the memory is free for the next batch, as
/// soon as all those streams have done what they were told before.
pub struct CudaMemory {
    device: Arc<DeviceInner>,
    /// `None` only while it is dropped.
    slab: Option<Slab>,
    len: usize,
    copied: Arc<Event>,
    uses: Mutex<Uses>,
}

/// Who uses it beside the copy that brought it.
#[derive(Default)]
struct Uses {
    streams: Vec<User>,
    /// Behind downloads.
    events: Vec<Arc<Event>>,
    /// Whether something may use it of which nobody will know when it is over.
    unsure: bool,
}

/// A consumer's stream that uses it.
struct User {
    stream: ConsumerStream,
    /// Which said so: one of the default streams is another in each.
    thread: ThreadId,
    /// Whether the stream itself was told to wait for the copy. One that waits for another stream may
    /// be told so later than we are asked about it.
    has_waited: bool,
}

impl Uses {
    fn add(&mut self, stream: &ConsumerStream, has_waited: bool) {
        let thread = thread::current().id();
        match self.streams.iter_mut().find(|user| user.is(stream, thread)) {
            Some(user) => user.has_waited |= has_waited,
            None => self.streams.push(User { stream: stream.clone(), thread, has_waited }),
        }
    }

    /// Whether what this thread tells `stream` comes behind the copy.
    fn is_behind(&self, stream: &ConsumerStream) -> bool {
        let thread = thread::current().id();
        self.streams.iter().any(|user| user.has_waited && user.is(stream, thread))
    }
}

impl User {
    fn is(&self, stream: &ConsumerStream, thread: ThreadId) -> bool {
        self.stream == *stream && self.thread == thread
    }
}

impl CudaMemory {
    pub(crate) fn new(
        device: Arc<DeviceInner>,
        slab: Slab,
        len: usize,
        copied: Arc<Event>,
    ) -> Self {
        CudaMemory { device, slab: Some(slab), len, copied, uses: Mutex::default() }
    }

    /// The memory of an array, where it is of this kind.
    pub fn of(array: &DeviceArray) -> Option<&CudaMemory> {
        (array.memory() as &dyn Any).downcast_ref()
    }

    /// Lets what `stream` is told from now on wait until the bytes are there, and remembers that
    /// `stream` uses them.
    ///
    /// # Errors
    /// `InvalidArgument` while `stream` is captured into a graph, which is left as it was; what the driver
    /// says. Then `stream` must not use the memory.
    pub fn wait_on(&self, stream: &ConsumerStream) -> Result<()> {
        self.device.context.run("let a stream wait for a batch", |driver| {
            stream.check_not_captured(driver)?;
            driver.wait_event(stream.handle(), self.copied.handle())
        })?;
        self.uses().add(stream, true);
        Ok(())
    }

    /// Remembers that `stream` uses the memory, which [`wait_on`](CudaMemory::wait_on) does, too. It is
    /// for streams that wait for another consumer's: it lets nothing wait itself.
    pub fn record_stream(&self, stream: &ConsumerStream) {
        self.uses().add(stream, false);
    }

    /// Starts to copy it to the host, behind what `after` has been told so far, and returns at once.
    ///
    /// # Errors
    /// `LimitExceeded` where there is no memory on the host; `InvalidArgument` while `after` is captured
    /// into a graph, which is left as it was; what the driver says.
    pub fn download(&self, after: Option<&ConsumerStream>) -> Result<Download> {
        self.download_part(0, self.len, after, None)
    }

    /// The same of `bytes` bytes that begin `offset` bytes in, also behind an event of a consumer's.
    ///
    /// # Errors
    /// `InvalidArgument` where they do not lie within; as of [`download`](CudaMemory::download).
    pub fn download_part(
        &self,
        offset: usize,
        bytes: usize,
        after: Option<&ConsumerStream>,
        event: Option<&ConsumerEvent>,
    ) -> Result<Download> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.len) {
            let message = format!("{bytes} bytes from byte {offset} on are more than {}", self.len);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let DeviceInner { context, downloads, buffers, .. } = &*self.device;
        let doing = "copy a batch from the device";
        context.check(doing)?;
        if let Some(stream) = after {
            context.run(doing, |driver| stream.check_not_captured(driver))?;
        }
        downloads.give_back_finished().map_err(|error| context.error(error, doing))?;
        let mut buffer = buffers.take(bytes)?;
        let to = buffer.as_mut_ptr();
        let new_event = || Event::new(context).map_err(|error| context.error(error, doing));
        let done = Arc::new(new_event()?);
        let is_behind = after.is_some_and(|stream| self.uses().is_behind(stream));
        let told = after.map(|stream| Ok::<_, Error>((stream, new_event()?))).transpose()?;
        let started = context.attempt(|driver| {
            let stream = downloads.handle();
            if !is_behind {
                driver.wait_event(stream, self.copied.handle())?;
            }
            if let Some((consumer, told)) = &told {
                driver.record_event(told.handle(), consumer.handle())?;
                driver.wait_event(stream, told.handle())?;
            }
            if let Some(event) = event {
                driver.wait_event(stream, event.handle())?;
            }
            if let Some(memory) = self.handle().filter(|_| bytes > 0) {
                let from = DeviceAddress(memory.address.0 + offset as u64);
                // SAFETY: the buffer is held until the copy is done, and so is the slab: by the event
                // among its uses. Both are at least so long.
                unsafe { driver.copy_to_host(to, from, bytes, stream)? };
            }
            driver.record_event(done.handle(), stream)
        });
        if let Err(error) = started {
            let is_done = downloads.give_back_unsure(buffer);
            self.uses().unsure |= !is_done;
            return Err(context.error(error, doing));
        }
        self.uses().events.push(Arc::clone(&done));
        Ok(Download { device: Arc::clone(&self.device), buffer: Some(buffer), done })
    }

    /// Behind what brings the bytes.
    pub(crate) fn copied(&self) -> &Arc<Event> {
        &self.copied
    }

    /// Where it begins, and how many bytes it has.
    pub(crate) fn extent(&self) -> (u64, u64) {
        (self.address() as u64, self.len as u64)
    }

    /// Whether it is memory of this device.
    pub(crate) fn is_of(&self, device: &Arc<DeviceInner>) -> bool {
        Arc::ptr_eq(&self.device, device)
    }

    /// The device that it is memory of.
    #[cfg(feature = "python")]
    pub(crate) fn device(&self) -> &Arc<DeviceInner> {
        &self.device
    }

    /// Remembers that something of ours uses the memory until `done` is reached.
    pub(crate) fn used_until(&self, done: &Arc<Event>) {
        self.uses().events.push(Arc::clone(done));
    }

    /// Remembers that something of ours may use it, nobody knows until when.
    pub(crate) fn used_unsurely(&self) {
        self.uses().unsure = true;
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
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

    /// For kernels of streams that [wait](CudaMemory::wait_on) for it.
    fn address(&self) -> usize {
        self.slab.as_ref().map_or(0, |slab| slab.memory.address.0 as usize)
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        let Some(mut slab) = self.slab.take() else { return };
        let context = &self.device.context;
        let Uses { streams, events, unsure } = std::mem::take(&mut *self.uses());
        if unsure {
            return self.device.slabs.give_up(slab);
        }
        // Work of ours with it is behind the copy, and so are streams that have waited for that. Of
        // others it is only known that they use it.
        slab.is_behind_writer = !events.is_empty() || streams.iter().any(|user| user.has_waited);
        slab.uses.extend(events);
        for User { stream, thread, .. } in streams {
            let used = Event::new(context).and_then(|used| {
                context.attempt(|driver| {
                    if stream.is_per_thread() && thread != thread::current().id() {
                        // From here that stream cannot be named. But work in the legacy default stream
                        // comes after all that is in it, and a wait is such work.
                        let legacy = ConsumerStream::legacy_default();
                        legacy.check_not_captured(driver)?;
                        driver.wait_event(legacy.handle(), self.copied.handle())?;
                        return driver.record_event(used.handle(), legacy.handle());
                    }
                    // An event there would be part of the graph: nobody else could wait for it.
                    stream.check_not_captured(driver)?;
                    driver.record_event(used.handle(), stream.handle())
                })?;
                Ok(used)
            });
            match used {
                Ok(used) => slab.uses.push(Arc::new(used)),
                Err(_) => return self.device.slabs.give_up(slab),
            }
        }
        self.device.slabs.give_back(slab);
    }
}

impl fmt::Debug for CudaMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ordinal = self.device.context.ordinal();
        write!(f, "CudaMemory({} bytes at {:#x} of device {ordinal})", self.len, self.address())
    }
}

/// Done once the bytes are on the device.
#[derive(Debug)]
pub(crate) struct Copied(pub(crate) Arc<Event>);

impl Fence for Copied {
    fn is_done(&self) -> Result<bool> {
        is_done(&self.0)
    }

    fn wait(&self) -> Result<()> {
        wait(&self.0)
    }
}

fn is_done(event: &Event) -> Result<bool> {
    event.is_reached().map_err(|error| event.context().error(error, "copy a batch"))
}

fn wait(event: &Event) -> Result<()> {
    event.wait().map_err(|error| event.context().error(error, "copy a batch"))
}

/// A copy from the device to the host that is under way.
pub struct Download {
    device: Arc<DeviceInner>,
    /// `None` only once it is handed out.
    buffer: Option<HostBuffer>,
    done: Arc<Event>,
}

impl Download {
    /// Whether the bytes are there, without waiting.
    ///
    /// # Errors
    /// The failure of the copy.
    pub fn is_done(&self) -> Result<bool> {
        is_done(&self.done)
    }

    /// Waits until they are, and hands them out.
    ///
    /// # Errors
    /// The failure of the copy.
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
