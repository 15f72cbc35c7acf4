//! What time it is, and waiting; by a runtime, or by the hand of a test.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spdl_core::{BoxFuture, Runtime};

pub(super) trait Clock: Debug + Send + Sync {
    fn now(&self) -> Instant;
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The machine's monotonic clock, which no change of the time of day moves.
#[derive(Debug)]
pub(super) struct RuntimeClock(pub(super) Arc<dyn Runtime>);

impl Clock for RuntimeClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.0.sleep(duration)
    }
}
