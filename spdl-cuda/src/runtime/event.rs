//! Events of a context, recycled when they are dropped.

use std::fmt;
use std::sync::Arc;

use super::context::Context;
use crate::driver::{Driver, DriverResult, EventHandle};

/// An event, which others use again once it is dropped.
pub(crate) struct Event {
    handle: EventHandle,
    is_timer: bool,
    context: Arc<Context>,
}

impl Event {
    pub(crate) fn new(context: &Arc<Context>) -> DriverResult<Event> {
        Event::of_kind(context, false)
    }

    /// One that tells when it was reached.
    pub(crate) fn timer(context: &Arc<Context>) -> DriverResult<Event> {
        Event::of_kind(context, true)
    }

    fn of_kind(context: &Arc<Context>, is_timer: bool) -> DriverResult<Event> {
        let spare = context.spare_events(is_timer).pop();
        let handle = match spare {
            Some(handle) => handle,
            None if is_timer => context.attempt(|driver| driver.create_timer())?,
            None => context.attempt(|driver| driver.create_event())?,
        };
        Ok(Event { handle, is_timer, context: Arc::clone(context) })
    }

    /// The seconds from `earlier` to this; both are timers, and have been reached.
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

    pub(crate) fn is_reached(&self) -> DriverResult<bool> {
        self.context.attempt(|driver| driver.query_event(&self.handle))
    }

    pub(crate) fn wait(&self) -> DriverResult<()> {
        self.context.attempt(|driver| driver.synchronize_event(&self.handle))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let handle = EventHandle(self.handle.0);
        self.context.spare_events(self.is_timer).push(handle);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:#x})", self.handle.0)
    }
}
