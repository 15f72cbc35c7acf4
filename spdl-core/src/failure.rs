//! What happens to a sample that fails, and the record of those that did.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::statistics::MAX_DROPPED_LISTED;
use crate::sync::Mutex;
use crate::{Error, ErrorKind, SampleId};

/// The policy for items that fail in a stage.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The first failure ends the pipeline; the consumer gets what was finished before, then the
    /// error. The default: no sample is ever missing unnoticed.
    #[default]
    Raise,
    /// The item is dropped, counted and listed, up to a budget.
    Skip {
        /// How many the stage may drop; one more ends the pipeline. `None`: any number.
        at_most: Option<u64>,
    },
}

impl OnError {
    /// Drops any number of failed items.
    pub const SKIP: OnError = OnError::Skip { at_most: None };
}

/// A sample that a failure policy dropped.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Who it was.
    pub id: SampleId,
    /// What people call it, where the source says so.
    pub key: Option<Arc<str>>,
    /// The stage in which it failed.
    pub stage: Arc<str>,
    /// The kind of failure.
    pub kind: ErrorKind,
    /// What went wrong, with its causes.
    pub reason: String,
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    GoOn,
    Halt,
}

/// The failures of a pipeline: the one that ends it, and those it lives with.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    fatal: Mutex<Option<Error>>,
    halted: AtomicBool,
    dropped: Mutex<Vec<Dropped>>,
    dropped_total: AtomicU64,
}

impl Failures {
    /// Applies `policy` to a failed item. `dropped_here` counts what the stage has dropped.
    pub(crate) fn item_failed(
        &self,
        policy: OnError,
        dropped_here: &AtomicU64,
        stage: &Arc<str>,
        id: SampleId,
        key: Option<&Arc<str>>,
        error: Error,
    ) -> Verdict {
        let error = error.with_stage(Arc::clone(stage));
        let error = match key {
            Some(key) => error.with_key(Arc::clone(key)),
            None => error,
        };
        let budget = match policy {
            OnError::Raise => {
                self.raise(error);
                return Verdict::Halt;
            }
            OnError::Skip { at_most } => at_most,
        };
        if budget.is_some_and(|budget| dropped_here.fetch_add(1, Ordering::Relaxed) >= budget) {
            let message = format!(
                "more than {} items failed, which is as many as may be skipped; the last: {}",
                budget.unwrap_or_default(),
                error.message()
            );
            let mut over = Error::new(error.kind(), message).with_stage(Arc::clone(stage));
            if let Some(key) = error.key() {
                over = over.with_key(key);
            }
            self.raise(over.with_source(error));
            return Verdict::Halt;
        }
        self.dropped_total.fetch_add(1, Ordering::Relaxed);
        let mut dropped = self.dropped.lock();
        if dropped.len() < MAX_DROPPED_LISTED {
            dropped.push(Dropped {
                id,
                key: key.cloned(),
                stage: Arc::clone(stage),
                kind: error.kind(),
                reason: error.reason(),
            });
        }
        Verdict::GoOn
    }

    /// Keeps the first error that ends the pipeline.
    pub(crate) fn raise(&self, error: Error) {
        self.fatal.lock().get_or_insert(error);
        self.halted.store(true, Ordering::SeqCst);
    }

    /// Whether work should end because of a failure.
    pub(crate) fn halted(&self) -> bool {
        self.halted.load(Ordering::SeqCst)
    }

    /// The error that ended the pipeline, once.
    pub(crate) fn take_fatal(&self) -> Option<Error> {
        self.fatal.lock().take()
    }

    pub(crate) fn dropped(&self) -> (Vec<Dropped>, u64) {
        let mut dropped = self.dropped.lock().clone();
        dropped.sort_by_key(|dropped| dropped.id);
        (dropped, self.dropped_total.load(Ordering::Relaxed))
    }
}

/// A panic's payload as an error.
pub(crate) fn panicked(payload: Box<dyn std::any::Any + Send>) -> Error {
    let words = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned());
    let words = words.unwrap_or_else(|| "a value that is no text".into());
    Error::new(ErrorKind::Panicked, format!("panicked: {words}"))
}
