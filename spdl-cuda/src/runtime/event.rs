//! CUDA events. A dropped event is kept in its context for reuse.

use std::fmt;
use std::hint;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::context::Context;
use crate::driver::{Driver, DriverResult, EventHandle};

/// The time for which a wait polls the event before it sleeps: a copy of 1 MiB takes about 20 µs,
/// but a thread that sleeps may wake 100 µs late.
const POLL_TIME: Duration = Duration::from_micros(50);

/// A CUDA event, which is reused after it is dropped.
pub(crate) struct Event {
    handle: EventHandle,
    has_timing: bool,
    context: Arc<Context>,
}

impl Event {
    pub(crate) fn new(context: &Arc<Context>) -> DriverResult<Event> {
        Event::of_kind(context, false)
    }

    /// An event that records the time at which it completes.
    pub(crate) fn with_timing(context: &Arc<Context>) -> DriverResult<Event> {
        Event::of_kind(context, true)
    }

    fn of_kind(context: &Arc<Context>, has_timing: bool) -> DriverResult<Event> {
        let spare = context.spare_events(has_timing).pop();
        let handle = match spare {
            Some(handle) => handle,
            None if has_timing => context.attempt(|driver| driver.create_timing_event())?,
            None => context.attempt(|driver| driver.create_event())?,
        };
        Ok(Event { handle, has_timing, context: Arc::clone(context) })
    }

    /// The seconds from `earlier` to this event. Both events must have timing, and must have
    /// completed.
    pub(crate) fn seconds_since(&self, earlier: &Event) -> DriverResult<f64> {
        let elapsed = |driver: &dyn Driver| driver.elapsed(&earlier.handle, &self.handle);
        self.context.attempt(elapsed).map(|milliseconds| f64::from(milliseconds) / 1000.0)
    }

    pub(crate) fn handle(&self) -> &EventHandle {
        &self.handle
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn is_complete(&self) -> DriverResult<bool> {
        self.context.attempt(|driver| driver.query_event(&self.handle))
    }

    pub(crate) fn wait(&self) -> DriverResult<()> {
        self.context.attempt(|driver| {
            let start = Instant::now();
            while start.elapsed() < POLL_TIME {
                if driver.query_event(&self.handle)? {
                    return Ok(());
                }
                hint::spin_loop();
            }
            driver.synchronize_event(&self.handle)
        })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let handle = EventHandle(self.handle.0);
        self.context.spare_events(self.has_timing).push(handle);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:#x})", self.handle.0)
    }
}
