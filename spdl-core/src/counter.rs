//! A number that whoever has a handle may count up or read.

use std::fmt;
use std::sync::Arc;

use crate::sync::atomic::{AtomicU64, Ordering};

/// A count that grows: its clones are handles of the same number.
///
/// Stages that exist once per worker count together with it, as [`RetriedStage`] does.
///
/// [`RetriedStage`]: crate::RetriedStage
///
/// ```
/// let counter = spdl_core::Counter::default();
/// counter.clone().add(2);
/// assert_eq!(counter.get(), 2);
/// ```
#[derive(Clone, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    /// Counts `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// How many were counted so far, by all handles.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Counter({})", self.get())
    }
}
