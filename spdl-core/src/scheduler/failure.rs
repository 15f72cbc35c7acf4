//! What happens to a sample that fails, and the record of those that did.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result, guarded};
use crate::item::ItemHeader;
use crate::observe::statistics::{Dropped, MAX_DROPPED_LISTED};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// How many items a stage has seen before a share of failures says anything.
const PROBATION: u64 = 100;
/// How many failures that end the pipeline are kept.
const MOST_FATAL: usize = 16;

/// The policy for items that fail in a stage.
///
/// A dropped item's place is always taken by the next one: batches stay full, except for the last
/// one of an epoch.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum OnError {
    /// The first failure ends the pipeline; the consumer gets what was finished before, then the
    /// error. The default: no sample is ever missing unnoticed.
    #[default]
    Raise,
    /// The item is dropped, counted and listed, up to a budget.
    Skip {
        /// How many may be dropped; one more ends the pipeline. `None`: any number.
        at_most: Option<u64>,
    },
    /// The item is dropped, counted and listed, as long as the share of failed items stays within a
    /// budget. It is judged from the 100th item on, at each failure and at the end.
    SkipShare {
        /// The largest share of items that may fail, in (0, 1]: of those that the stage has tried,
        /// or, where stages share the policy, of those that the stage has tried that tried most.
        at_most: f64,
    },
}

impl OnError {
    /// Drops any number of failed items.
    pub const SKIP: OnError = OnError::Skip { at_most: None };

    /// Checks that the policy means something.
    pub(crate) fn validate(self) -> Result<()> {
        match self {
            OnError::SkipShare { at_most } if !(at_most > 0.0 && at_most <= 1.0) => {
                let message = format!("a share of {at_most} may fail; it must be in (0, 1]");
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for OnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OnError::Raise => f.write_str("raise"),
            OnError::Skip { at_most: None } => f.write_str("skip"),
            OnError::Skip { at_most: Some(most) } => write!(f, "skip at most {most}"),
            OnError::SkipShare { at_most } => write!(f, "skip at most {} %", at_most * 100.0),
        }
    }
}

/// Told of each dropped sample, as it is dropped.
pub(crate) type DropListener = Box<dyn Fn(&Dropped) -> Result<()> + Send + Sync>;

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    GoOn,
    Halt,
}

/// A policy and what has been spent of its budget, by one stage or by several.
#[derive(Debug)]
pub(crate) struct Tolerance {
    policy: OnError,
    items: AtomicU64,
    failed: AtomicU64,
}

/// What follows from a failure.
enum Decision {
    /// The item is dropped.
    Drop,
    /// The failure ends the pipeline as it is.
    Raise,
    /// The failure is one too many, and why.
    OverBudget(String),
}

impl Tolerance {
    pub(crate) fn new(policy: OnError) -> Self {
        Tolerance { policy, items: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    /// Takes in how many items a stage has tried so far, whether they failed or not. Of several
    /// stages that share a budget, the one that has tried most says how many there were.
    pub(crate) fn tried(&self, items_of_stage: u64) {
        self.items.fetch_max(items_of_stage, Ordering::Relaxed);
    }

    pub(crate) fn judges_share(&self) -> bool {
        matches!(self.policy, OnError::SkipShare { .. })
    }

    /// Counts a failure, and decides what follows from it.
    fn failed(&self) -> Decision {
        let over = match self.policy {
            OnError::Raise => return Decision::Raise,
            OnError::Skip { at_most } => {
                let before = self.failed.fetch_add(1, Ordering::Relaxed);
                at_most.filter(|&most| before >= most).map(|most| {
                    let items = if most == 1 { "item" } else { "items" };
                    format!("more than {most} {items} failed, which is as many as may be skipped")
                })
            }
            OnError::SkipShare { .. } => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                self.share_exceeded()
            }
        };
        over.map_or(Decision::Drop, Decision::OverBudget)
    }

    /// Says so where the share of failed items is too large.
    pub(crate) fn share_exceeded(&self) -> Option<String> {
        let OnError::SkipShare { at_most } = self.policy else { return None };
        let items = self.items.load(Ordering::Relaxed);
        let failed = self.failed.load(Ordering::Relaxed);
        (items >= PROBATION && failed as f64 > at_most * items as f64).then(|| {
            let most = at_most * 100.0;
            format!("{failed} of {items} items failed, and at most {most} % may be skipped")
        })
    }
}

/// The failures of a pipeline: those that end it, and those it lives with.
#[derive(Default)]
pub(crate) struct Failures {
    fatal: Mutex<Vec<Error>>,
    dropped: Mutex<Vec<Dropped>>,
    dropped_total: AtomicU64,
    listeners: Vec<DropListener>,
}

impl Failures {
    pub(crate) fn new(listeners: Vec<DropListener>) -> Self {
        Failures { listeners, ..Failures::default() }
    }

    /// Applies a policy to a failed item of `stage`.
    pub(crate) fn item_failed(
        &self,
        tolerance: &Tolerance,
        stage: &Arc<str>,
        header: &ItemHeader,
        error: Error,
    ) -> Verdict {
        let error = error.with_stage(Arc::clone(stage));
        let error = match header.key() {
            Some(key) => error.with_key(Arc::clone(key)),
            None => error,
        };
        if error.is_fatal() {
            return self.halt(header, error);
        }
        match tolerance.failed() {
            Decision::Drop => {}
            Decision::Raise => return self.halt(header, error),
            Decision::OverBudget(why) => {
                let message = format!("{why}; the last: {}", error.message());
                let mut over = Error::new(error.kind(), message).with_stage(Arc::clone(stage));
                if let Some(key) = error.key() {
                    over = over.with_key(key);
                }
                // Its words are said; what caused it is not.
                return self.halt(header, over.with_cause_of(error));
            }
        }
        self.dropped_total.fetch_add(1, Ordering::Relaxed);
        let dropped = Dropped {
            id: header.id,
            key: header.key().cloned().or_else(|| error.key().map(Arc::from)),
            stage: Arc::clone(stage),
            kind: error.kind(),
            reason: error.reason(),
        };
        let mut list = self.dropped.lock();
        if list.len() < MAX_DROPPED_LISTED {
            list.push(dropped.clone());
        }
        drop(list);
        // All of them hear of it, whatever one of them says.
        let mut verdict = Verdict::GoOn;
        for listener in &self.listeners {
            if let Err(error) = guarded(|| listener(&dropped)).0 {
                let error = error.with_stage(Arc::clone(stage));
                let error = match header.key() {
                    Some(key) => error.with_key(Arc::clone(key)),
                    None => error,
                };
                verdict = self.halt(header, error);
            }
        }
        verdict
    }

    /// Keeps an error of an item that ends the pipeline: where order is restored, at its place.
    fn halt(&self, header: &ItemHeader, error: Error) -> Verdict {
        self.raise(error);
        if let Some(ticket) = header.ticket() {
            ticket.fail();
        }
        Verdict::Halt
    }

    /// Keeps an error that ends the pipeline.
    pub(crate) fn raise(&self, error: Error) {
        let mut fatal = self.fatal.lock();
        if fatal.len() < MOST_FATAL {
            fatal.push(error);
        }
    }

    /// The error that ended the pipeline, once, with those that came together with it.
    pub(crate) fn take_fatal(&self) -> Option<Error> {
        let mut all = std::mem::take(&mut *self.fatal.lock()).into_iter();
        let first = all.next()?;
        Some(first.with_others(all))
    }

    /// Whether something ends the pipeline that the consumer has not been told yet.
    pub(crate) fn is_fatal(&self) -> bool {
        !self.fatal.lock().is_empty()
    }

    pub(crate) fn dropped_total(&self) -> u64 {
        self.dropped_total.load(Ordering::Relaxed)
    }

    pub(crate) fn dropped(&self) -> (Vec<Dropped>, u64) {
        let mut dropped = self.dropped.lock().clone();
        dropped.sort_by_key(|dropped| dropped.id);
        (dropped, self.dropped_total())
    }
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failures").field("fatal", &self.fatal).finish_non_exhaustive()
    }
}
