//! Whether a store has ever answered, and what is done while it refuses connections and never has.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spdl_core::Error;

/// So long a store is tried that refuses connections and has never answered: it may just be starting.
/// Mostly its address is wrong. One that has answered before is restarted, and waited for.
pub(super) const STRANGER_PATIENCE: Duration = Duration::from_secs(2);

/// The cause of an error: nothing listens where the connection was to go. The error itself says so in
/// words, and this adds none.
#[derive(Debug)]
pub(crate) struct ConnectionRefused;

impl fmt::Display for ConnectionRefused {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl std::error::Error for ConnectionRefused {}

fn is_refused(error: &Error) -> bool {
    std::error::Error::source(error).is_some_and(|cause| cause.is::<ConnectionRefused>())
}

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

    /// Whether nobody has ever been met there, and nobody is.
    pub(super) fn is_stranger(&self, error: &Error) -> bool {
        is_refused(error) && !self.has_answered.load(Ordering::Relaxed)
    }

    /// The first of several counts.
    pub(super) fn listen(&self, listener: Box<Listener>) {
        let _ = self.listener.set(listener);
    }

    /// Tells of the first refusal.
    pub(super) fn tell(&self, error: &Error) {
        if let Some(listener) = self.listener.get()
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
