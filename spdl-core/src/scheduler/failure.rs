//! Failure policies, and the record of dropped items and of errors that end the pipeline.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result, guarded};
use crate::item::ItemHeader;
use crate::observe::statistics::{Dropped, DroppedCount, MAX_DROPPED_LISTED};
use crate::source::sample::SampleId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// At most this many errors that end the pipeline are recorded.
const MAX_FATAL: usize = 16;
/// The error about too many failures names at most this many of them.
const FAILURES_NAMED: usize = 3;

/// Failure policy of a stage: what to do with an item that fails.
///
/// A [fatal](Error::is_fatal) error ends the pipeline regardless of the policy, and an error of the kind
/// [`MissingValue`](ErrorKind::MissingValue) drops the item regardless of the policy. A batch contains
/// the next item instead of an item that was dropped before, so all batches of an epoch except the
/// last are full. At most 100,000 dropped items are [listed](crate::Statistics::dropped); all are
/// counted. [`Pipeline::take_dropped`](crate::Pipeline::take_dropped) returns the dropped items that
/// precede each output.
///
/// If items of an epoch failed and the consumer received no item of this epoch, the pipeline ends
/// with an error at the end of the epoch, under every policy. See
/// [`allow_total_loss`](crate::PipelineBuilder::allow_total_loss).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum OnError {
    /// The first failure ends the pipeline. The consumer receives the results that were finished
    /// before, then the error. The default.
    #[default]
    Raise,
    /// A failed item is dropped, counted and listed, up to a limit. An exceeded limit ends the pipeline
    /// with an error of the kind [`TooManyFailures`](ErrorKind::TooManyFailures).
    Skip {
        /// How many items may fail; one more failure ends the pipeline. `None`: no limit.
        at_most: Option<u64>,
    },
    /// A failed item is dropped, counted and listed, up to a share of the items. The share is
    /// checked at each failure and when the stage ends.
    SkipShare {
        /// The maximum of failed items / tried items, in (0, 1]. If several stages share the
        /// policy, failed items is the sum over these stages, and tried items is the largest of
        /// their counts.
        at_most: f64,
        /// The share is checked only if at least this many items were tried.
        after: u64,
        /// Whether the share is checked when the stage ends even if fewer items were tried.
        at_end: bool,
    },
}

impl OnError {
    /// Drops failed items, without a limit.
    pub const SKIP: OnError = OnError::Skip { at_most: None };

    /// Returns `InvalidArgument` for a share outside (0, 1].
    pub(crate) fn validate(self) -> Result<()> {
        match self {
            OnError::SkipShare { at_most, .. } if !(at_most > 0.0 && at_most <= 1.0) => {
                let message =
                    format!("invalid share of failed items: {at_most}; it must be in (0, 1]");
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
            OnError::SkipShare { at_most, after, at_end } => {
                let end = if *at_end { " and at the end" } else { "" };
                write!(f, "skip at most {} % after {after} items{end}", at_most * 100.0)
            }
        }
    }
}

/// Called for each dropped item, at the moment of the drop.
pub(crate) type DropListener = Box<dyn Fn(&Dropped) -> Result<()> + Send + Sync>;

/// What the stage does after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureAction {
    Continue,
    Halt,
}

/// A policy with its counters. Several stages may share one budget.
#[derive(Debug)]
pub(crate) struct FailureBudget {
    policy: OnError,
    items: AtomicU64,
    failed: AtomicU64,
    /// Whether an error has reported that the limit is exceeded.
    is_exceeded: AtomicBool,
    first: Mutex<FirstFailures>,
}

/// The first failures, for the error if the limit is exceeded.
#[derive(Debug, Default)]
struct FirstFailures {
    /// The stage of the first failure.
    stage: Option<Arc<str>>,
    /// At most [`FAILURES_NAMED`].
    reasons: Vec<String>,
}

/// The decision of the policy about a failure.
enum Decision {
    /// Drop the item.
    Drop,
    /// End the pipeline with the item's error.
    Raise,
    /// End the pipeline because the limit is exceeded, with this reason.
    OverBudget(String),
}

impl FailureBudget {
    pub(crate) fn new(policy: OnError) -> Self {
        FailureBudget {
            policy,
            items: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            is_exceeded: AtomicBool::new(false),
            first: Mutex::default(),
        }
    }

    /// Records how many items a stage has tried so far, failed ones included. If several stages
    /// share a budget, the budget uses the largest of their counts.
    pub(crate) fn tried(&self, items_of_stage: u64) {
        self.items.fetch_max(items_of_stage, Ordering::Relaxed);
    }

    pub(crate) fn is_share(&self) -> bool {
        matches!(self.policy, OnError::SkipShare { .. })
    }

    /// Counts a failure and applies the policy.
    fn failed(&self, error: &Error) -> Decision {
        if self.policy == OnError::Raise {
            return Decision::Raise;
        }
        let mut first = self.first.lock();
        if first.reasons.len() < FAILURES_NAMED {
            let key = error.key().map_or_else(String::new, |key| format!("{key}: "));
            first.reasons.push(format!("{key}{}", error.reason()));
            if first.stage.is_none() {
                first.stage = error.stage().map(Arc::from);
            }
        }
        drop(first);
        let before = self.failed.fetch_add(1, Ordering::Relaxed);
        let over = match self.policy {
            OnError::Skip { at_most: Some(most) } if before >= most => {
                let items = if most == 1 { "item" } else { "items" };
                Some(format!(
                    "more than {most} {items} failed, the limit of the failure policy (on_error)"
                ))
            }
            _ => self.share_exceeded(false),
        };
        over.map_or(Decision::Drop, Decision::OverBudget)
    }

    /// If the share of failed items exceeds the limit, the reason for the error message.
    fn share_exceeded(&self, is_end: bool) -> Option<String> {
        let OnError::SkipShare { at_most, after, at_end } = self.policy else { return None };
        let items = self.items.load(Ordering::Relaxed);
        let failed = self.failed.load(Ordering::Relaxed);
        let is_checked = items >= after || (is_end && at_end);
        (is_checked && failed as f64 > at_most * items as f64).then(|| {
            let most = at_most * 100.0;
            format!(
                "{failed} of {items} items failed; the failure policy (on_error) allows {most} %"
            )
        })
    }

    /// The error if the share of failed items exceeds the limit when a stage ends.
    pub(crate) fn end(&self) -> Option<Error> {
        self.exceeded(self.share_exceeded(true)?)
    }

    /// The error about an exceeded limit; `None` if an earlier error reported it.
    fn exceeded(&self, why: String) -> Option<Error> {
        if self.is_exceeded.swap(true, Ordering::Relaxed) {
            return None;
        }
        let first = self.first.lock();
        let message = format!("{why}; first failures: {}", first.reasons.join("; "));
        let error = Error::new(ErrorKind::TooManyFailures, message);
        // Several stages may share the policy, so the stage that ends is not the one that failed.
        Some(match &first.stage {
            Some(stage) => error.with_stage(Arc::clone(stage)),
            None => error,
        })
    }
}

/// Failures of a pipeline: errors that end it, and dropped items.
#[derive(Default)]
pub(crate) struct Failures {
    fatal: Mutex<Vec<Error>>,
    dropped: Mutex<DroppedItems>,
    dropped_total: AtomicU64,
    listeners: Vec<DropListener>,
}

/// The dropped items of a pipeline.
#[derive(Default)]
struct DroppedItems {
    /// At most [`MAX_DROPPED_LISTED`] items.
    list: Vec<Dropped>,
    /// At most [`MAX_DROPPED_LISTED`] items that the consumer has not taken.
    pending: Vec<Dropped>,
    counts: BTreeMap<(Arc<str>, &'static str), DroppedCount>,
    /// For each epoch that has not ended: how many items were dropped, and the first one.
    epochs: BTreeMap<u64, (u64, Dropped)>,
}

impl DroppedItems {
    fn add(&mut self, dropped: &Dropped) {
        let Dropped { id, stage, kind, .. } = dropped;
        let count = DroppedCount { stage: Arc::clone(stage), kind: *kind, count: 0 };
        let reason = (Arc::clone(stage), kind.as_str());
        self.counts.entry(reason).or_insert(count).count += 1;
        let (of_epoch, first) = self.epochs.entry(id.epoch).or_insert_with(|| (0, dropped.clone()));
        *of_epoch += 1;
        if *id < first.id {
            first.clone_from(dropped);
        }
        for list in [&mut self.list, &mut self.pending] {
            if list.len() < MAX_DROPPED_LISTED {
                list.push(dropped.clone());
            }
        }
    }
}

impl Failures {
    pub(crate) fn new(listeners: Vec<DropListener>) -> Self {
        Failures { listeners, ..Failures::default() }
    }

    /// Applies a policy to a failed item of `stage`.
    pub(crate) fn item_failed(
        &self,
        failure_budget: &FailureBudget,
        stage: &Arc<str>,
        header: &ItemHeader,
        error: Error,
    ) -> FailureAction {
        let error = error.with_stage(Arc::clone(stage));
        let error = match header.key() {
            Some(key) => error.with_key(Arc::clone(key)),
            None => error,
        };
        if error.is_fatal() {
            return self.halt(header, error);
        }
        let decision = match error.kind() {
            ErrorKind::MissingValue => Decision::Drop,
            _ => failure_budget.failed(&error),
        };
        match decision {
            Decision::Drop => {}
            Decision::Raise => return self.halt(header, error),
            // The item is not dropped: a run that resumes processes it again.
            Decision::OverBudget(why) => {
                return match failure_budget.exceeded(why) {
                    Some(over) => {
                        let over = over.with_stage(Arc::clone(stage)).with_failed_item(error);
                        self.halt(header, over)
                    }
                    None => halt_without_error(header),
                };
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
        self.dropped.lock().add(&dropped);
        // The other listeners are called even if one listener returns an error.
        let mut verdict = FailureAction::Continue;
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

    /// Records an item's error that ends the pipeline. On a route, the item's ticket fails too, so
    /// that all outputs before the item in input order are still delivered.
    fn halt(&self, header: &ItemHeader, error: Error) -> FailureAction {
        self.raise(error);
        halt_without_error(header)
    }

    /// Records an error that ends the pipeline.
    pub(crate) fn raise(&self, error: Error) {
        let mut fatal = self.fatal.lock();
        if fatal.len() < MAX_FATAL {
            fatal.push(error);
        }
    }

    /// Removes and returns the error that ended the pipeline, with later ones attached.
    pub(crate) fn take_fatal(&self) -> Option<Error> {
        let mut all = std::mem::take(&mut *self.fatal.lock()).into_iter();
        let first = all.next()?;
        Some(first.with_others(all))
    }

    /// Whether an error ends the pipeline and the consumer has not received this error yet.
    pub(crate) fn is_fatal(&self) -> bool {
        !self.fatal.lock().is_empty()
    }

    pub(crate) fn dropped_total(&self) -> u64 {
        self.dropped_total.load(Ordering::Relaxed)
    }

    /// The listed dropped items by position, and the counts by reason.
    pub(crate) fn dropped(&self) -> (Vec<Dropped>, Vec<DroppedCount>) {
        let dropped = self.dropped.lock();
        let (mut list, counts) = (dropped.list.clone(), dropped.counts.values().cloned().collect());
        drop(dropped);
        list.sort_by_key(|dropped| dropped.id);
        (list, counts)
    }

    /// Removes and returns the dropped items before `end` that no earlier call returned, by position.
    pub(crate) fn take_dropped(&self, end: Option<SampleId>) -> Vec<Dropped> {
        if self.dropped_total() == 0 {
            return Vec::new();
        }
        let mut dropped = self.dropped.lock();
        let is_due = |item: &mut Dropped| end.is_none_or(|end| item.id < end);
        let mut taken: Vec<Dropped> = dropped.pending.extract_if(.., is_due).collect();
        taken.sort_by_key(|dropped| dropped.id);
        taken
    }

    /// Ends an epoch. If items of the epoch were dropped and none was `delivered`, returns the error
    /// for the consumer.
    pub(crate) fn end_epoch(&self, epoch: u64, delivered: bool) -> Result<()> {
        if self.dropped_total() == 0 {
            return Ok(());
        }
        let of_epoch = self.dropped.lock().epochs.remove(&epoch);
        let Some((count, Dropped { key, stage, kind, reason, .. })) =
            of_epoch.filter(|_| !delivered)
        else {
            return Ok(());
        };
        let samples = if count == 1 { "sample" } else { "samples" };
        let message = format!(
            "epoch {epoch} delivered no sample, and {count} {samples} failed; first failure: \
             {reason}"
        );
        let error = Error::new(kind, message).with_stage(stage);
        Err(match key {
            Some(key) => error.with_key(key),
            None => error,
        })
    }
}

/// Halts the stage of an item. On a route, the item's ticket fails too.
fn halt_without_error(header: &ItemHeader) -> FailureAction {
    if let Some(ticket) = header.ticket() {
        ticket.fail();
    }
    FailureAction::Halt
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failures").field("fatal", &self.fatal).finish_non_exhaustive()
    }
}
