//! Streams: ours, for copies, and those of consumers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spdl_core::Result;
use spdl_core::memory::HostBuffer;

use super::context::Context;
use super::event::Event;
use crate::driver::{DriverResult, StreamHandle};

/// A stream of ours for copies in one direction, and the host memory that those under way use.
///
/// It waits for no other stream unless told to, and goes before others where both have work.
pub(crate) struct CopyStream {
    handle: StreamHandle,
    context: Arc<Context>,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    /// What copies under way use, in the order of the stream, and the event behind each.
    copying: VecDeque<(Arc<Event>, HostBuffer)>,
    /// What some copy may use of which nobody will know when it is done.
    unsure: Vec<HostBuffer>,
}

impl CopyStream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<CopyStream> {
        let handle = context.run("make a stream for copies", |driver| {
            let (_, greatest) = driver.stream_priorities()?;
            driver.create_stream(greatest)
        })?;
        Ok(CopyStream { handle, context: Arc::clone(context), held: Mutex::default() })
    }

    pub(crate) fn handle(&self) -> &StreamHandle {
        &self.handle
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps host memory until `copied` is reached. Then it goes back to its pool.
    pub(crate) fn hold(&self, copied: Arc<Event>, buffer: HostBuffer) {
        self.held().copying.push_back((copied, buffer));
    }

    /// Gives back what finished copies have used. Nobody waits.
    pub(crate) fn give_back_finished(&self) -> DriverResult<()> {
        loop {
            let mut held = self.held();
            let Some((copied, _)) = held.copying.front() else { return Ok(()) };
            if !copied.is_reached()? {
                return Ok(());
            }
            let finished = held.copying.pop_front();
            drop(held);
            drop(finished);
        }
    }

    /// How much host memory copies under way use, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        let held = self.held();
        let copying = held.copying.iter().map(|(_, buffer)| buffer);
        copying.chain(&held.unsure).map(|buffer| buffer.len()).sum()
    }

    /// Waits until all copies are done. Whether they are: an error may be that of other work, so
    /// there is a second try.
    pub(crate) fn settle(&self) -> bool {
        let wait = || self.context.attempt(|driver| driver.synchronize_stream(&self.handle));
        wait().or_else(|_| wait()).is_ok()
    }

    /// Lets go of memory that a failed call may have left in use: now, where no copy is under way any
    /// more, or else when the device is left. Whether it is now.
    pub(crate) fn give_back_unsure(&self, buffer: HostBuffer) -> bool {
        let is_done = self.settle();
        if !is_done {
            self.held().unsure.push(buffer);
        }
        is_done
    }
}

impl Drop for CopyStream {
    fn drop(&mut self) {
        let is_done = self.settle();
        let Held { copying, unsure } = std::mem::take(&mut *self.held());
        for buffer in copying.into_iter().map(|(_, buffer)| buffer).chain(unsure) {
            if !is_done {
                // Whether the device still uses it, nobody knows. Better it is never used again.
                std::mem::forget(buffer);
            }
        }
        let handle = StreamHandle(self.handle.0);
        self.context.release(|driver| driver.destroy_stream(handle));
    }
}

impl fmt::Debug for CopyStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CopyStream({:#x}, {} copies under way)",
            self.handle.0,
            self.held().copying.len()
        )
    }
}

/// A stream of ours for what computes.
pub(crate) struct WorkStream {
    handle: StreamHandle,
    context: Arc<Context>,
}

impl WorkStream {
    pub(crate) fn new(context: &Arc<Context>) -> Result<WorkStream> {
        let handle = context.run("make a stream for decoding", |driver| {
            let (least, _) = driver.stream_priorities()?;
            driver.create_stream(least)
        })?;
        Ok(WorkStream { handle, context: Arc::clone(context) })
    }

    pub(crate) fn handle(&self) -> &StreamHandle {
        &self.handle
    }

    /// Lets what it is told from now on wait for these.
    pub(crate) fn wait_for(&self, events: &[Arc<Event>]) -> DriverResult<()> {
        self.context.attempt(|driver| {
            events.iter().try_for_each(|event| driver.wait_event(&self.handle, event.handle()))
        })
    }

    /// Puts an event behind what it was told so far.
    pub(crate) fn record(&self, event: &Event) -> DriverResult<()> {
        self.context.attempt(|driver| driver.record_event(event.handle(), &self.handle))
    }

    /// Waits until all of it is done. Whether it is.
    pub(crate) fn settle(&self) -> bool {
        let wait = || self.context.attempt(|driver| driver.synchronize_stream(&self.handle));
        wait().or_else(|_| wait()).is_ok()
    }
}

impl Drop for WorkStream {
    fn drop(&mut self) {
        let handle = StreamHandle(self.handle.0);
        self.context.release(|driver| driver.destroy_stream(handle));
    }
}
