//! Locks, atomics, waiting and threads, behind one door: `--cfg spdl_loom` and `--cfg spdl_shuttle`
//! swap in the model checkers' own. (Plain `loom` would switch dependencies as well.)

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

/// Whether a thread has ended. A modelled one does not say so; it may always be still at work.
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

/// Whether a model checker runs this: then nothing spins, since each turn is a step to explore.
pub(crate) const MODELLED: bool = cfg!(any(spdl_loom, spdl_shuttle));

/// A mutex whose users leave its data whole even where they panic, so poisoning says nothing.
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

/// Whether a thread has done its work.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    over: Mutex<bool>,
    changed: Condvar,
}

impl Ended {
    /// Waits for it, but not longer than until `deadline`. Says whether it has ended.
    pub(crate) fn wait_until(&self, deadline: Instant) -> bool {
        let mut over = self.over.lock();
        while !*over {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            over = self.changed.wait_timeout(over, left);
        }
        true
    }
}

/// Tells that a thread has ended, however it does.
pub(crate) struct Ends(pub(crate) Arc<Ended>);

impl Drop for Ends {
    fn drop(&mut self) {
        *self.0.over.lock() = true;
        self.0.changed.notify_all();
    }
}

/// A count that grows: its clones are handles of the same number.
///
/// Stages that exist once per worker count together with it, as [`RetriedStage`] does.
///
/// [`RetriedStage`]: crate::stage::RetriedStage
///
/// ```
/// let counter = spdl_core::observe::Counter::default();
/// counter.clone().add(2);
/// assert_eq!(counter.get(), 2);
/// ```
#[derive(Clone, Default)]
pub struct Counter(Arc<atomic::AtomicU64>);

impl Counter {
    /// Counts `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, atomic::Ordering::Relaxed);
    }

    /// How many were counted so far, by all handles.
    pub fn get(&self) -> u64 {
        self.0.load(atomic::Ordering::Relaxed)
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counter({})", self.get())
    }
}
