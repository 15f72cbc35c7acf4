//! Whether a store has ever responded. Unreachable stores that have never responded fail fast.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spdl_core::Error;

use crate::fetch::Unreached;

/// Retry time for a store that has never responded and is unreachable: a refused connection or an
/// unknown host name.
///
/// The usual cause is a wrong address. The time allows a server to finish starting.
pub(super) const FIRST_CONTACT_TIMEOUT: Duration = Duration::from_secs(2);

type Listener = dyn Fn(&Error) + Send + Sync;

/// What is known about the reachability of a store.
#[derive(Default)]
pub(super) struct Reachability {
    has_responded: AtomicBool,
    was_reported: AtomicBool,
    listener: OnceLock<Box<Listener>>,
}

impl Reachability {
    pub(super) fn mark_responded(&self) {
        self.has_responded.store(true, Ordering::Relaxed);
    }

    /// Records a failed request. An error response proves that the store is reachable.
    pub(super) fn failed(&self, error: &Error) {
        if Unreached::of(error).is_none() {
            self.mark_responded();
        }
    }

    /// Returns whether the store is unreachable and has never responded.
    pub(super) fn is_unreachable(&self, error: &Error) -> bool {
        let is_no_server =
            matches!(Unreached::of(error), Some(Unreached::Refused | Unreached::NoAddress));
        is_no_server && !self.has_responded.load(Ordering::Relaxed)
    }

    /// Sets the listener. Only the first call has an effect.
    pub(super) fn set_listener(&self, listener: Box<Listener>) {
        let _ = self.listener.set(listener);
    }

    /// Calls the listener for the first failure to reach a store that has never responded.
    pub(super) fn report(&self, error: &Error) {
        if let Some(listener) = self.listener.get()
            && Unreached::of(error).is_some()
            && !self.has_responded.load(Ordering::Relaxed)
            && !self.was_reported.swap(true, Ordering::Relaxed)
        {
            listener(error);
        }
    }
}

impl fmt::Debug for Reachability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reachability")
            .field("has_responded", &self.has_responded)
            .finish_non_exhaustive()
    }
}
