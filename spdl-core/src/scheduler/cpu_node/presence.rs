//! Who is at work on a stage, and the barrier at the end of an epoch.

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts the workers of a stage, and lets one of them deal with the end of an epoch while no other
/// holds an item or an instance.
///
/// A worker [enters](Presence::enter), asks whether the epoch [is ending](Presence::is_ending), and
/// only then takes an instance, and an item with it. Whoever deals with the end says so first, and
/// counts the workers then. So either it counts the other one, or the other one sees it.
///
/// Where two find the end at once, it may be that none is alone. Whoever leaves last looks again
/// before it sleeps, as workers always do.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    running: AtomicUsize,
    /// Whether a worker deals with the end of an epoch.
    ending: AtomicBool,
}

impl Presence {
    /// How many workers there are.
    pub(crate) fn count(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    /// Counts a worker in. Says how many there were before.
    pub(crate) fn enter(&self) -> usize {
        self.running.fetch_add(1, Ordering::SeqCst)
    }

    /// Counts a worker out, who has put down what it took.
    pub(crate) fn leave(&self) {
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether all instances are another worker's, who deals with the end of an epoch. Asked by one
    /// that has entered.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Makes this the worker that deals with the end of an epoch, where nobody else does.
    fn claim_end(&self) -> bool {
        // Only the one that claims it writes: so it cannot be lost that it was given back.
        self.ending.compare_exchange(false, true, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Lets this worker, which has entered, `end` the epoch, where its end `comes_next` and nobody
    /// else is at work. Says whether it has.
    pub(crate) fn end_epoch(
        &self,
        comes_next: impl Fn() -> bool,
        end: impl FnOnce() -> bool,
    ) -> bool {
        if !comes_next() || !self.claim_end() {
            return false;
        }
        // The end may be gone since that look: another worker may have dealt with it. From here on
        // nobody else does. Where it still comes next, nothing can be taken; so if this is the only
        // worker now, all that came before the end has been put down.
        // The count is written, not only read: so whoever enters behind it reads what was written
        // before, too. (A load would do by the order of all `SeqCst` operations, which loom does not
        // know: it takes them as acquiring and releasing.)
        let alone = comes_next() && self.running.fetch_add(0, Ordering::SeqCst) == 1;
        let ended = alone && end();
        self.ending.store(false, Ordering::SeqCst);
        ended
    }
}
