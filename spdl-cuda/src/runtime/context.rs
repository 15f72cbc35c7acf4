//! The primary context of a device: retained once per opened device, made current only during a
//! call, never reset.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use spdl_core::Result;

use crate::driver::{ContextHandle, DeviceId, Driver, DriverError, DriverResult, EventHandle};

/// `CU_STREAM_CAPTURE_MODE_RELAXED`. Some training frameworks capture graphs in the global mode.
/// Calls of other threads, such as an event query, invalidate a capture in this mode, unless the
/// calling thread is in the relaxed mode. The streams of this crate are never part of such a graph.
const RELAXED: i32 = 2;

/// The driver and the primary context of one device. All resources of the context keep this value
/// alive.
pub(crate) struct Context {
    driver: Arc<dyn Driver>,
    handle: ContextHandle,
    ordinal: u32,
    /// The sticky error that made the device unusable.
    lost: OnceLock<DriverError>,
    spare_events: Mutex<Vec<EventHandle>>,
    /// Number of resources that could not be destroyed.
    release_failures: AtomicUsize,
}

impl Context {
    pub(crate) fn open(driver: Arc<dyn Driver>, ordinal: u32) -> Result<Arc<Context>> {
        let retained =
            driver.device(ordinal).and_then(|device| driver.retain_primary_context(device));
        let handle =
            retained.map_err(|error| error.into_error(&format!("open CUDA device {ordinal}")))?;
        Ok(Arc::new(Context {
            driver,
            handle,
            ordinal,
            lost: OnceLock::new(),
            spare_events: Mutex::default(),
            release_failures: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// The `CUcontext`, for NVIDIA's libraries.
    pub(crate) fn raw(&self) -> usize {
        self.handle.raw
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.handle.device
    }

    pub(crate) fn release_failures(&self) -> usize {
        self.release_failures.load(Ordering::Relaxed)
    }

    /// Fails if an earlier sticky error made the device unusable.
    pub(crate) fn check(&self, doing: &str) -> Result<()> {
        self.lost.get().map_or(Ok(()), |lost| Err(self.error(*lost, doing)))
    }

    pub(crate) fn error(&self, error: DriverError, doing: &str) -> spdl_core::Error {
        error.into_error(&format!("{doing} (CUDA device {})", self.ordinal))
    }

    /// Runs `work` with this context current, and restores the previous context. `doing` completes
    /// the message "cannot …".
    pub(crate) fn run<T>(
        &self,
        doing: &str,
        work: impl FnOnce(&dyn Driver) -> DriverResult<T>,
    ) -> Result<T> {
        self.attempt(work).map_err(|error| self.error(error, doing))
    }

    /// Like [`run`](Context::run), but returns the error of the driver unchanged.
    pub(crate) fn attempt<T>(
        &self,
        work: impl FnOnce(&dyn Driver) -> DriverResult<T>,
    ) -> DriverResult<T> {
        if let Some(lost) = self.lost.get() {
            return Err(*lost);
        }
        let result = self.make_current().and_then(|_current| work(&*self.driver));
        result.inspect_err(|error| {
            if error.is_sticky() {
                let _ = self.lost.set(*error);
            }
        })
    }

    fn make_current(&self) -> DriverResult<CurrentContext<'_>> {
        self.driver.push_context(&self.handle)?;
        let mut current = CurrentContext { driver: &*self.driver, capture_mode: None };
        current.capture_mode = Some(self.driver.exchange_capture_mode(RELAXED)?);
        Ok(current)
    }

    /// Destroys a resource, even after a sticky error. A failure is only counted, because
    /// destructors cannot return it.
    pub(crate) fn release(&self, work: impl FnOnce(&dyn Driver) -> DriverResult<()>) {
        // The first call may return the error of earlier asynchronous work, so it is repeated.
        let current = self.make_current().or_else(|_| self.make_current());
        let released = current.and_then(|_current| work(&*self.driver));
        if released.is_err() {
            self.release_failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all work of the device has completed, and returns whether it has.
    pub(crate) fn synchronize(&self) -> bool {
        // The first call may return the error of earlier asynchronous work, so it is repeated.
        let wait = || self.attempt(|driver| driver.synchronize_context());
        wait().or_else(|_| wait()).is_ok()
    }

    pub(super) fn spare_events(&self) -> MutexGuard<'_, Vec<EventHandle>> {
        self.spare_events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let events = std::mem::take(&mut *self.spare_events());
        for event in events {
            self.release(|driver| driver.destroy_event(event));
        }
        let handle = ContextHandle { ..self.handle };
        // A destructor cannot return the error.
        let _ = self.driver.release_primary_context(handle);
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(CUDA device {})", self.ordinal)
    }
}

/// A guard that keeps the context current on this thread until it is dropped.
struct CurrentContext<'a> {
    driver: &'a dyn Driver,
    /// The previous capture mode of the thread.
    capture_mode: Option<i32>,
}

impl Drop for CurrentContext<'_> {
    fn drop(&mut self) {
        // Errors here do not affect the result of the completed work.
        if let Some(mode) = self.capture_mode {
            let _ = self.driver.exchange_capture_mode(mode);
        }
        let _ = self.driver.pop_context();
    }
}
