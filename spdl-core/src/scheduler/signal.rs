//! How workers sleep when there is nothing to do, and are woken when there is.

use std::fmt;
use std::time::Instant;

use crate::sync::atomic::{AtomicUsize, Ordering, fence};
use crate::sync::{Condvar, Mutex};

/// Puts workers to sleep without polling and without losing a wake-up.
///
/// A worker announces itself ([`prepare`](Signal::prepare)), looks for work *once more*, and only
/// then waits. Whoever makes work looks at the announcements *after* making it. Of the two fences
/// one comes first, so either the worker sees the work or the maker sees the worker. While nobody
/// sleeps, making work costs a fence and a load.
#[derive(Default)]
pub(crate) struct Signal {
    /// Announced workers; changed under the lock, read without it.
    announced: AtomicUsize,
    state: Mutex<SignalState>,
    changed: Condvar,
    /// Where workers do not sleep but leave: calls one.
    call: Option<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Debug, Default)]
struct SignalState {
    /// Counts wake-ups: a worker whose ticket is older need not sleep.
    version: u64,
    /// Announced workers that can only do a part of the work; see [`Interest::Some`].
    partial: usize,
}

/// What a worker that goes to sleep could do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Any work.
    All,
    /// Only some of it: it waits inside a stage, for the stages behind that one.
    Some,
}

/// Permission to sleep until something happens that is newer than it.
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

    /// A signal for workers of a pool that is not ours: `call` asks for one to come.
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

    pub(crate) fn cancel(&self, ticket: SleepPermit) {
        let mut state = self.state.lock();
        self.leave(&mut state, ticket.interest);
    }

    /// Sleeps until woken; returns at once where that has happened since `prepare`.
    pub(crate) fn wait(&self, ticket: SleepPermit) {
        let mut state = self.state.lock();
        while state.version == ticket.version {
            state = self.changed.wait(state);
        }
        self.leave(&mut state, ticket.interest);
    }

    /// Like [`wait`](Signal::wait), but not longer than until `deadline`.
    pub(crate) fn wait_until(&self, ticket: SleepPermit, deadline: Instant) {
        let mut state = self.state.lock();
        while state.version == ticket.version {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.changed.wait_timeout(state, left);
        }
        self.leave(&mut state, ticket.interest);
    }

    fn leave(&self, state: &mut SignalState, interest: Interest) {
        self.announced.fetch_sub(1, Ordering::SeqCst);
        state.partial -= usize::from(interest == Interest::Some);
    }

    /// Wakes a worker for work that has just been made.
    pub(crate) fn wake_one(&self) {
        self.wake(false);
    }

    /// Wakes every worker: the pipeline ends.
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
        // A worker that can do only a part might swallow the wake-up meant for another.
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
