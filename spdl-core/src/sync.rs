//! Locks, atomics, condition variables and threads.
//!
//! With `--cfg spdl_loom` or `--cfg spdl_shuttle`, they are replaced by the types of the model
//! checkers loom and shuttle. (A plain `--cfg loom` would also change dependencies.)

#[cfg(spdl_loom)]
use loom::sync as imp;
#[cfg(spdl_shuttle)]
use shuttle::sync as imp;
use std::fmt;
#[cfg(not(any(spdl_loom, spdl_shuttle)))]
use std::sync as imp;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

pub(crate) use imp::MutexGuard;
pub(crate) use imp::atomic;

#[cfg(spdl_shuttle)]
pub(crate) use shuttle::thread;
#[cfg(not(spdl_shuttle))]
pub(crate) use std::thread;

/// Returns whether a thread has ended; always false under shuttle, which cannot report it.
pub(crate) fn has_ended<T>(thread: &thread::JoinHandle<T>) -> bool {
    #[cfg(spdl_shuttle)]
    let ended = {
        let _ = thread;
        false
    };
    #[cfg(not(spdl_shuttle))]
    let ended = thread.is_finished();
    ended
}

/// Whether a model checker runs this code. If so, no loop spins, because the model checker would
/// have to explore each iteration.
pub(crate) const MODELLED: bool = cfg!(any(spdl_loom, spdl_shuttle));

/// A mutex without poisoning: the code that uses it keeps the data consistent even if it panics.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(imp::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(imp::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar(imp::Condvar);

impl Condvar {
    pub(crate) fn new() -> Self {
        Condvar(imp::Condvar::new())
    }

    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// The end of a thread. Other threads can wait for it with a deadline.
#[derive(Debug, Default)]
pub(crate) struct ThreadEnd {
    ended: Mutex<bool>,
    changed: Condvar,
}

impl ThreadEnd {
    /// Waits until the thread has ended or `deadline` has passed. Returns whether it has ended.
    pub(crate) fn wait_until(&self, deadline: Instant) -> bool {
        let mut ended = self.ended.lock();
        while !*ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            ended = self.changed.wait_timeout(ended, left);
        }
        true
    }
}

/// Signals the end of a thread when this guard is dropped, also during a panic.
pub(crate) struct ThreadEndGuard(pub(crate) Arc<ThreadEnd>);

impl Drop for ThreadEndGuard {
    fn drop(&mut self) {
        *self.0.ended.lock() = true;
        self.0.changed.notify_all();
    }
}

/// A monotonic counter; clones share one value.
///
/// Stages with one instance per worker share a counter, as [`Retried`] does.
///
/// [`Retried`]: crate::stage::Retried
///
/// ```
/// let counter = spdl_core::observe::Counter::default();
/// counter.clone().add(2);
/// assert_eq!(counter.get(), 2);
/// ```
#[derive(Clone, Default)]
pub struct Counter(Arc<atomic::AtomicU64>);

impl Counter {
    /// Adds `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, atomic::Ordering::Relaxed);
    }

    /// Returns the sum over all clones.
    pub fn get(&self) -> u64 {
        self.0.load(atomic::Ordering::Relaxed)
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counter({})", self.get())
    }
}
