//! Event count: workers sleep without polling and without lost wake-ups.

use std::fmt;
use std::time::Instant;

use crate::sync::atomic::{AtomicUsize, Ordering, fence};
use crate::sync::{Condvar, Mutex};

/// An event count on which workers sleep.
///
/// A worker announces itself ([`prepare`](Signal::prepare)), looks for work *once more*, and only
/// then waits. A producer reads the number of announced workers *after* it has added work. One of
/// the two memory fences executes first, so either the worker sees the work or the producer sees
/// the worker. If no worker sleeps, a producer executes only one fence and one load.
#[derive(Default)]
pub(crate) struct Signal {
    /// Announced workers; changed under the lock, read without it.
    announced: AtomicUsize,
    state: Mutex<SignalState>,
    changed: Condvar,
    /// The function that requests a worker of the caller's executor. These workers end instead of
    /// sleeping.
    call: Option<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Debug, Default)]
struct SignalState {
    /// Number of wake-ups. A worker with an older permit does not sleep.
    version: u64,
    /// Announced workers with [`Interest::Some`].
    partial: usize,
}

/// Which work a sleeping worker can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Any work.
    All,
    /// Only work of downstream stages: the worker waits inside a stage.
    Some,
}

/// Permission to sleep until the next wake-up after it was issued.
#[derive(Debug)]
#[must_use]
pub(crate) struct SleepPermit {
    version: u64,
    interest: Interest,
}

impl Signal {
    pub(crate) fn new() -> Self {
        Signal {
            announced: AtomicUsize::new(0),
            state: Mutex::new(SignalState::default()),
            changed: Condvar::new(),
            call: None,
        }
    }

    /// A signal for workers of the caller's executor: `call` requests a worker.
    pub(crate) fn calling(call: impl Fn() + Send + Sync + 'static) -> Self {
        Signal { call: Some(Box::new(call)), ..Signal::new() }
    }

    /// Announces a worker. Look for work after this, then [`wait`](Signal::wait) or
    /// [`cancel`](Signal::cancel).
    pub(crate) fn prepare(&self, interest: Interest) -> SleepPermit {
        let mut state = self.state.lock();
        self.announced.fetch_add(1, Ordering::SeqCst);
        state.partial += usize::from(interest == Interest::Some);
        let version = state.version;
        drop(state);
        fence(Ordering::SeqCst);
        SleepPermit { version, interest }
    }

    pub(crate) fn cancel(&self, permit: SleepPermit) {
        let mut state = self.state.lock();
        self.leave(&mut state, permit.interest);
    }

    /// Sleeps until the next wake-up; returns immediately if there was one since `prepare`.
    pub(crate) fn wait(&self, permit: SleepPermit) {
        let mut state = self.state.lock();
        while state.version == permit.version {
            state = self.changed.wait(state);
        }
        self.leave(&mut state, permit.interest);
    }

    /// Like [`wait`](Signal::wait), but not longer than until `deadline`.
    pub(crate) fn wait_until(&self, permit: SleepPermit, deadline: Instant) {
        let mut state = self.state.lock();
        while state.version == permit.version {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left);
        }
        self.leave(&mut state, permit.interest);
    }

    fn leave(&self, state: &mut SignalState, interest: Interest) {
        self.announced.fetch_sub(1, Ordering::SeqCst);
        state.partial -= usize::from(interest == Interest::Some);
    }

    /// Wakes one worker, after new work was added.
    pub(crate) fn wake_one(&self) {
        self.wake(false);
    }

    /// Wakes every worker, for example when the pipeline ends.
    pub(crate) fn wake_all(&self) {
        self.wake(true);
    }

    fn wake(&self, all: bool) {
        fence(Ordering::SeqCst);
        if let Some(call) = &self.call {
            call();
        }
        if self.announced.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut state = self.state.lock();
        state.version += 1;
        // A worker with `Interest::Some` may not be able to do the new work, so all are woken.
        let all = all || state.partial > 0;
        drop(state);
        if all {
            self.changed.notify_all();
        } else {
            self.changed.notify_one();
        }
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signal")
    }
}
