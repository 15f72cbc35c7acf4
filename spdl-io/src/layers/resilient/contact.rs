//! Whether a store has ever answered, and what is done while it cannot be reached and never has.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spdl_core::Error;

use crate::fetch::Unreached;

/// So long a store is tried that refuses connections, or whose name nobody has, and that has never
/// answered: it may just be starting. Mostly its address is wrong. One that has answered before is restarted, and
/// waited for.
pub(super) const STRANGER_PATIENCE: Duration = Duration::from_secs(2);

type Listener = dyn Fn(&Error) + Send + Sync;

/// What is known of a store.
#[derive(Default)]
pub(super) struct Contact {
    has_answered: AtomicBool,
    was_told: AtomicBool,
    listener: OnceLock<Box<Listener>>,
}

impl Contact {
    pub(super) fn answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    /// Notes that the store is there, where it was what failed: a refusal is an answer.
    pub(super) fn failed(&self, error: &Error) {
        if Unreached::of(error).is_none() {
            self.answered();
        }
    }

    /// Whether nobody has ever been met there, and nobody is.
    pub(super) fn is_stranger(&self, error: &Error) -> bool {
        let is_nobody =
            matches!(Unreached::of(error), Some(Unreached::Refused | Unreached::NoAddress));
        is_nobody && !self.has_answered.load(Ordering::Relaxed)
    }

    /// The first of several counts.
    pub(super) fn listen(&self, listener: Box<Listener>) {
        let _ = self.listener.set(listener);
    }

    /// Tells of the first failure to reach a store that has never answered.
    pub(super) fn tell(&self, error: &Error) {
        if let Some(listener) = self.listener.get()
            && Unreached::of(error).is_some()
            && !self.has_answered.load(Ordering::Relaxed)
            && !self.was_told.swap(true, Ordering::Relaxed)
        {
            listener(error);
        }
    }
}

impl fmt::Debug for Contact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contact").field("has_answered", &self.has_answered).finish_non_exhaustive()
    }
}
