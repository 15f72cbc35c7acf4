//! Clock and timers, of a runtime or of a test.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spdl_core::{BoxFuture, Runtime};

pub(super) trait Clock: Debug + Send + Sync {
    fn now(&self) -> Instant;
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The monotonic system clock, independent of changes of the wall-clock time.
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
