//! The running workers of a stage, and the barrier at the end of an epoch.

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts the running workers of a stage, and serializes the end of an epoch.
///
/// A worker first calls [`enter`](Presence::enter), then checks [`is_ending`](Presence::is_ending),
/// and only then takes an instance and an item. The worker that ends an epoch first sets `ending`
/// and then reads the count. Therefore either it counts the other worker, or the other worker sees
/// `ending`.
///
/// If two workers find the end concurrently, each may count the other, and neither ends the epoch.
/// In this case, the last worker that leaves ends it, because workers check again before they
/// sleep.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    running: AtomicUsize,
    /// Whether a worker is ending an epoch.
    ending: AtomicBool,
}

impl Presence {
    /// Number of running workers.
    pub(crate) fn count(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    /// Adds a worker. Returns the previous count.
    pub(crate) fn enter(&self) -> usize {
        self.running.fetch_add(1, Ordering::SeqCst)
    }

    /// Removes a worker, after it returned its instance and item.
    pub(crate) fn leave(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether another worker is ending an epoch and owns all instances. Only for a worker that has
    /// entered.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Claims the end of the epoch for this worker. Returns false if another worker has it.
    fn claim_end(&self) -> bool {
        // The flag is written only by the worker that changes it, so a reset is never lost.
        self.ending.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Calls `end` if the end of the epoch `is_next` and no other worker runs. The caller has
    /// entered. Returns whether the epoch has ended.
    pub(crate) fn end_epoch(&self, is_next: impl Fn() -> bool, end: impl FnOnce() -> bool) -> bool {
        if !is_next() || !self.claim_end() {
            return false;
        }
        // Another worker may have ended the epoch since the first check. From here on, no other
        // worker can end it. If the end is still next, no worker can take an item. Therefore, if
        // this is the only worker, all items before the end are finished. The count is written, not
        // only read, so that a worker that enters later also sees earlier writes. With the total
        // order of `SeqCst` operations a load would suffice, but loom models `SeqCst` only as
        // acquire and release.
        let alone = is_next() && self.running.fetch_add(0, Ordering::SeqCst) == 1;
        let ended = alone && end();
        self.ending.store(false, Ordering::SeqCst);
        ended
    }
}
