//! CUDA events. A dropped event is kept in its context for reuse.

use std::fmt;
use std::hint;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::context::Context;
use crate::driver::{DriverResult, EventHandle};

/// The time for which a wait polls the event before it sleeps: a copy of 1 MiB takes about 20 µs,
/// but a thread that sleeps may wake 100 µs late.
const POLL_TIME: Duration = Duration::from_micros(50);

/// A CUDA event, which is reused after it is dropped.
pub(crate) struct Event {
    handle: EventHandle,
    context: Arc<Context>,
}

impl Event {
    pub(crate) fn new(context: &Arc<Context>) -> DriverResult<Event> {
        let spare = context.spare_events().pop();
        let handle = match spare {
            Some(handle) => handle,
            None => context.attempt(|driver| driver.create_event())?,
        };
        Ok(Event { handle, context: Arc::clone(context) })
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
        self.context.spare_events().push(handle);
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:#x})", self.handle.0)
    }
}
