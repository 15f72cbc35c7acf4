//! Streams that this crate creates: for copies and for kernels.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spdl_core::Result;
use spdl_core::memory::HostBuffer;

use super::context::Context;
use super::event::Event;
use crate::driver::{DriverResult, StreamHandle};

/// A stream for copies in one direction or for image kernels, and the host buffers that copies in
/// flight use.
///
/// The stream is non-blocking (not ordered with the default stream) and has the greatest priority.
pub(crate) struct CopyStream {
    handle: StreamHandle,
    context: Arc<Context>,
    in_flight: Mutex<InFlight>,
}

#[derive(Default)]
struct InFlight {
    /// Buffers in the order in which the stream copies them, each with an event that completes
    /// after the copy.
    copies: VecDeque<(Arc<Event>, HostBuffer)>,
    /// Buffers that a copy may still use, and for which no event exists that completes when the
    /// copy ends.
    withheld: Vec<HostBuffer>,
}

impl CopyStream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<CopyStream> {
        let handle = context.run("create a stream for copies", |driver| {
            let (_, greatest) = driver.stream_priorities()?;
            driver.create_stream(greatest)
        })?;
        Ok(CopyStream { handle, context: Arc::clone(context), in_flight: Mutex::default() })
    }

    pub(crate) fn handle(&self) -> &StreamHandle {
        &self.handle
    }

    fn in_flight(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a host buffer until `copied` completes. The buffer then returns to its pool.
    pub(crate) fn hold(&self, copied: Arc<Event>, buffer: HostBuffer) {
        self.in_flight().copies.push_back((copied, buffer));
    }

    /// Returns the buffers of completed copies to their pool. Does not block.
    pub(crate) fn recycle_completed(&self) -> DriverResult<()> {
        loop {
            let mut in_flight = self.in_flight();
            let Some((copied, _)) = in_flight.copies.front() else { return Ok(()) };
            if !copied.is_complete()? {
                return Ok(());
            }
            let completed = in_flight.copies.pop_front();
            drop(in_flight);
            drop(completed);
        }
    }

    /// Bytes of host memory that copies in flight use.
    pub(crate) fn in_flight_bytes(&self) -> usize {
        let in_flight = self.in_flight();
        let copies = in_flight.copies.iter().map(|(_, buffer)| buffer);
        copies.chain(&in_flight.withheld).map(|buffer| buffer.len()).sum()
    }

    /// Waits until all copies have completed, and returns whether the wait succeeded.
    pub(crate) fn synchronize(&self) -> bool {
        // The first call may return the error of earlier asynchronous work, so it is repeated.
        let wait = || self.context.attempt(|driver| driver.synchronize_stream(&self.handle));
        wait().or_else(|_| wait()).is_ok()
    }

    /// Waits for the stream after a failed call, then recycles `buffer`. If the wait fails, the
    /// buffer is kept until the stream is destroyed. Returns whether the buffer was recycled.
    pub(crate) fn recycle_or_withhold(&self, buffer: HostBuffer) -> bool {
        let is_done = self.synchronize();
        if !is_done {
            self.in_flight().withheld.push(buffer);
        }
        is_done
    }
}

impl Drop for CopyStream {
    fn drop(&mut self) {
        let is_done = self.synchronize();
        let InFlight { copies, withheld } = std::mem::take(&mut *self.in_flight());
        for buffer in copies.into_iter().map(|(_, buffer)| buffer).chain(withheld) {
            if !is_done {
                // The device may still use the buffer, so its memory is leaked.
                std::mem::forget(buffer);
            }
        }
        let handle = StreamHandle(self.handle.0);
        self.context.release(|driver| driver.destroy_stream(handle));
    }
}

impl fmt::Debug for CopyStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let copies = self.in_flight().copies.len();
        write!(f, "CopyStream({:#x}, {copies} copies in flight)", self.handle.0)
    }
}

/// A non-blocking stream of the least priority, for decoders.
pub(crate) struct ComputeStream {
    handle: StreamHandle,
    context: Arc<Context>,
}

impl ComputeStream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<ComputeStream> {
        let handle = context.run("create a stream for decoding", |driver| {
            let (least, _) = driver.stream_priorities()?;
            driver.create_stream(least)
        })?;
        Ok(ComputeStream { handle, context: Arc::clone(context) })
    }

    pub(crate) fn handle(&self) -> &StreamHandle {
        &self.handle
    }

    /// Makes all further work of the stream wait for `events`.
    pub(crate) fn wait_for(&self, events: &[Arc<Event>]) -> DriverResult<()> {
        self.context.attempt(|driver| {
            events.iter().try_for_each(|event| driver.wait_event(&self.handle, event.handle()))
        })
    }

    /// Records `event` after all work that is queued so far.
    pub(crate) fn record(&self, event: &Event) -> DriverResult<()> {
        self.context.attempt(|driver| driver.record_event(event.handle(), &self.handle))
    }

    /// Waits until all work has completed, and returns whether the wait succeeded.
    pub(crate) fn synchronize(&self) -> bool {
        // The first call may return the error of earlier asynchronous work, so it is repeated.
        let wait = || self.context.attempt(|driver| driver.synchronize_stream(&self.handle));
        wait().or_else(|_| wait()).is_ok()
    }
}

impl Drop for ComputeStream {
    fn drop(&mut self) {
        let handle = StreamHandle(self.handle.0);
        self.context.release(|driver| driver.destroy_stream(handle));
    }
}
