//! A device's primary context: retained once, made current for each piece of work, never reset.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::driver::{ContextHandle, DeviceId, Driver, DriverError, DriverResult, EventHandle};
use spdl_core::Result;

/// The capture mode in which a thread may call everything. Some training frameworks capture graphs in
/// such a way that a call by any other thread would break that off, such as the question whether an
/// event is reached; work on our streams is no part of their graphs.
const RELAXED: i32 = 2;

/// The driver, and its context for one device. Whatever was made in it holds it.
pub(crate) struct Context {
    driver: Arc<dyn Driver>,
    handle: ContextHandle,
    ordinal: u32,
    /// After which error the device can no longer be used.
    lost: OnceLock<DriverError>,
    spare_events: Mutex<Vec<EventHandle>>,
    spare_timers: Mutex<Vec<EventHandle>>,
    /// How often something could not be destroyed.
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
            spare_timers: Mutex::default(),
            release_failures: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    pub(crate) fn driver(&self) -> &dyn Driver {
        &*self.driver
    }

    /// What the driver calls it, for libraries of NVIDIA's.
    pub(crate) fn raw(&self) -> usize {
        self.handle.raw
    }

    pub(crate) fn device(&self) -> DeviceId {
        self.handle.device
    }

    pub(crate) fn release_failures(&self) -> usize {
        self.release_failures.load(Ordering::Relaxed)
    }

    /// Fails where an earlier error has ended all use of the device.
    pub(crate) fn check(&self, doing: &str) -> Result<()> {
        self.lost.get().map_or(Ok(()), |lost| Err(self.error(*lost, doing)))
    }

    pub(crate) fn error(&self, error: DriverError, doing: &str) -> spdl_core::Error {
        error.into_error(&format!("{doing} (CUDA device {})", self.ordinal))
    }

    /// Does `work` with the context as the current one, and leaves that which was. `doing` ends a
    /// sentence that begins with "cannot".
    pub(crate) fn run<T>(
        &self,
        doing: &str,
        work: impl FnOnce(&dyn Driver) -> DriverResult<T>,
    ) -> Result<T> {
        self.attempt(work).map_err(|error| self.error(error, doing))
    }

    /// The same, with the driver's own error.
    pub(crate) fn attempt<T>(
        &self,
        work: impl FnOnce(&dyn Driver) -> DriverResult<T>,
    ) -> DriverResult<T> {
        if let Some(lost) = self.lost.get() {
            return Err(*lost);
        }
        let result = self.enter().and_then(|_entered| work(&*self.driver));
        result.inspect_err(|error| {
            if error.is_sticky() {
                let _ = self.lost.set(*error);
            }
        })
    }

    fn enter(&self) -> DriverResult<Entered<'_>> {
        self.driver.push_context(&self.handle)?;
        let mut entered = Entered { driver: &*self.driver, capture_mode: None };
        entered.capture_mode = Some(self.driver.exchange_capture_mode(RELAXED)?);
        Ok(entered)
    }

    /// Destroys something, also where the device is lost. A failure is counted, nothing else: it
    /// is no news to whoever just lets go.
    pub(crate) fn release(&self, work: impl FnOnce(&dyn Driver) -> DriverResult<()>) {
        // The first try may tell the failure of other work.
        let entered = self.enter().or_else(|_| self.enter());
        let released = entered.and_then(|_entered| work(&*self.driver));
        if released.is_err() {
            self.release_failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all work of the device is done. Whether it is.
    pub(crate) fn settle(&self) -> bool {
        let wait = || self.attempt(|driver| driver.synchronize_context());
        wait().or_else(|_| wait()).is_ok()
    }

    pub(super) fn spare_events(&self, is_timer: bool) -> MutexGuard<'_, Vec<EventHandle>> {
        let spare = if is_timer { &self.spare_timers } else { &self.spare_events };
        spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        for is_timer in [false, true] {
            let events = std::mem::take(&mut *self.spare_events(is_timer));
            for event in events {
                self.release(|driver| driver.destroy_event(event));
            }
        }
        let handle = ContextHandle { ..self.handle };
        // Nobody is left to be told.
        let _ = self.driver.release_primary_context(handle);
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(CUDA device {})", self.ordinal)
    }
}

/// The context is this thread's current one, until this is dropped.
struct Entered<'a> {
    driver: &'a dyn Driver,
    /// What it was.
    capture_mode: Option<i32>,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // What was done is done, whatever these say.
        if let Some(mode) = self.capture_mode {
            let _ = self.driver.exchange_capture_mode(mode);
        }
        let _ = self.driver.pop_context();
    }
}
