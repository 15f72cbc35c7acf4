//! [`Tuner`]: tries one change of a setting at a time, and keeps it if the throughput rises, or if a
//! smaller number is as fast.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::observe::diagnosis::{Limit, settings};
use crate::observe::interval::Interval;
use crate::observe::model::{Measurements, PipelineModel, SettingChange};
use crate::observe::statistics::{StageKind, StageStatistics};

/// A change is tried after a short interval if the model predicts at least this gain, which a short
/// trial can measure.
const CLEAR_GAIN: f64 = 0.2;
/// A change is tried after a long interval if the model predicts at least this gain.
const WORTH_TRYING: f64 = 0.03;
const SHORT: Duration = Duration::from_millis(500);
const LONG: Duration = Duration::from_secs(2);
/// Of several values of one setting, the smallest that gains this share of the largest gain.
const ENOUGH: f64 = 0.97;
/// A change is kept if it gains this share of the predicted gain, or [`GAIN_TO_KEEP`].
const SHARE_TO_KEEP: f64 = 0.25;
const GAIN_TO_KEEP: f64 = 0.02;
/// A smaller number is kept if the rate falls by at most this share, which is noise.
const NOISE: f64 = 0.005;
/// The in-flight window is halved if no more than this share of it is used.
const SHARE_IN_USE: f64 = 0.25;
/// The tuner halves no window of fewer items.
const MIN_WINDOW: usize = 16;
/// A change that gains only with a second one is kept if the rate falls by at most this share.
const FIRST_OF_TWO: f64 = 0.02;
/// A setting that was reset is not tried again for this number of intervals. The number doubles
/// each time, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: u32 = 16;
const LONGEST_PAUSE: u32 = 512;
/// Reset settings may be tried again if the rate differs by more than this factor from the rate at
/// the trial, in [`DIFFERENT_INTERVALS`] consecutive intervals.
const DIFFERENT: f64 = 1.25;
const DIFFERENT_INTERVALS: u32 = 2;
/// No setting is raised if stages waited for memory for more than this share of the time.
const MEMORY_WAITED: f64 = 0.05;
/// Threads mostly wait if they use a CPU for less than this share of their busy time.
const WAITS: f64 = 0.5;
/// One change raises a number by at most this factor.
const LARGEST_STEP: usize = 4;
/// The largest number of threads for each CPU, for functions that wait.
const MAX_THREADS_PER_CPU: usize = 16;
/// The largest number of threads that the tuner sets.
const MAX_THREADS: usize = 64;
/// The largest capacity of a queue between stages, and of the last queue.
const MAX_QUEUE: usize = 1024;
const MAX_PREFETCH: usize = 64;
/// Number of items from which a rate is precise enough.
const MIN_ITEMS: u64 = 64;
/// Maximum number of decisions that are kept.
const MAX_DECISIONS: usize = 256;

/// A change that a [`Tuner`] has tried.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct TuningDecision {
    /// Time from the start of the pipeline to the change.
    #[cfg_attr(feature = "serde", serde(rename = "time_s", with = "crate::seconds"))]
    pub time: Duration,
    /// The setting and its new value.
    pub change: SettingChange,
    /// The value before the change.
    pub from: usize,
    /// What limited the throughput, and the predicted gain.
    pub reason: String,
    /// Items per second before the change, of the last stage that processed enough of them.
    pub rate_before: f64,
    /// Items per second of the same stage after the change; `None` while the trial lasts.
    pub rate_after: Option<f64>,
    /// Whether the change was kept or reset; `None` while the trial lasts.
    pub kept: Option<bool>,
}

impl TuningDecision {
    /// The value after the change.
    pub fn to(&self) -> usize {
        value_of(&self.change)
    }

    /// The name of the setting, `threads`, `concurrency` or `queue`, and its stage.
    pub fn setting(&self) -> (&'static str, Option<&str>) {
        match &self.change {
            SettingChange::Concurrency { stage, .. } => ("concurrency", Some(stage)),
            SettingChange::Queue { stage, .. } => ("queue", Some(stage)),
            _ => ("threads", None),
        }
    }
}

/// Writes one line for a log: `12.5 s: "fetch" concurrency 16 → 64, 210 → 790 items/s, kept (…)`.
impl fmt::Display for TuningDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} s: ", self.time.as_secs_f64())?;
        let (setting, stage) = self.setting();
        if let Some(stage) = stage {
            write!(f, "{stage:?} ")?;
        }
        write!(f, "{setting} {} → {}, {:.1}", self.from, self.to(), self.rate_before)?;
        if let (Some(after), Some(kept)) = (self.rate_after, self.kept) {
            let end = if kept { "kept" } else { "reset" };
            write!(f, " → {after:.1} items/s, {end}")?;
        } else {
            f.write_str(" items/s")?;
        }
        write!(f, " ({})", self.reason)
    }
}

/// Chooses changes of settings from measured intervals.
///
/// The tuner changes one setting at a time: the number of threads, the concurrency of a stage, or
/// the capacity of a queue. It tries the change for which [`PipelineModel`] predicts the largest
/// gain, compares the rates before and after, and keeps the change only if the rate has risen. It
/// tries fewer threads if threads wait for the GIL, or outnumber the CPUs, and half of an in-flight
/// window that is hardly used. It changes nothing while the consumer limits the pipeline, and
/// enlarges nothing while stages wait for memory.
///
/// A setting that was reset is left alone for some time, or until the rate changes by a quarter
/// without the tuner: the store or the consumer has changed.
///
/// [`PipelineBuilder::tune`](crate::PipelineBuilder::tune) runs a tuner in a pipeline. Use this type
/// to tune something else, such as a simulation.
///
/// ```
/// use spdl_core::PipelineBuilder;
/// use spdl_core::observe::{SettingChange, Tuner};
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
/// let wait = |n: u32| { std::thread::sleep(Duration::from_millis(1)); Ok(n) };
/// let changes = Arc::new(Mutex::new(Vec::new()));
/// let (mut tuner, seen) = (Tuner::new(), Arc::clone(&changes));
/// let pipeline = PipelineBuilder::from_iter(0..200)
///     .map("wait", wait)
///     .threads(1)
///     .every(Duration::from_millis(50), move |interval| {
///         seen.lock().unwrap().extend(tuner.next(interval));
///     })
///     .build()?;
/// assert_eq!(pipeline.count(), 200);
/// // One thread waits most of the time, so more threads are tried.
/// # if !changes.lock().unwrap().is_empty() {
/// assert!(matches!(changes.lock().unwrap()[0], SettingChange::Threads { .. }));
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Tuner {
    fixed: Vec<Arc<str>>,
    only_waiting: bool,
    phase: TuningPhase,
    /// Whether the last evaluation proposed no change.
    is_calm: bool,
    reset: Vec<ResetSetting>,
    decisions: VecDeque<TuningDecision>,
}

/// What the next interval measures.
#[derive(Clone, Debug, Default)]
enum TuningPhase {
    /// The start of the pipeline, or the time just after a change.
    #[default]
    Settling,
    SettlingTrial(TuningTrial),
    Trial(TuningTrial),
    Steady,
}

/// A change whose effect is being measured. Its decision is the last one.
#[derive(Clone, Debug)]
struct TuningTrial {
    /// The index of the stage whose rate is compared.
    stage: usize,
    /// The least rate at which the change is kept.
    needed: f64,
    length: Duration,
    /// Whether the trial began in an earlier run.
    is_resumed: bool,
}

/// A change that is considered.
#[derive(Debug)]
struct Proposal {
    change: SettingChange,
    /// The least gain with which the change is kept.
    needed: f64,
    /// Length of the interval that measures the change.
    length: Duration,
    reason: String,
}

/// A setting that was tried in one direction, without success.
#[derive(Clone, Debug)]
struct ResetSetting {
    change: SettingChange,
    raises: bool,
    rate: f64,
    /// Number of intervals until the next trial.
    pause: u32,
    next_pause: u32,
    /// Number of consecutive intervals with another rate.
    different: u32,
}

impl Tuner {
    /// A tuner that has measured nothing.
    pub fn new() -> Self {
        Tuner::default()
    }

    /// Never changes the concurrency of this stage.
    #[must_use]
    pub fn keep_concurrency(mut self, stage: impl Into<Arc<str>>) -> Self {
        self.fixed.push(stage.into());
        self
    }

    /// Changes only the number of threads, and raises it only while the threads mostly wait.
    #[must_use]
    pub fn only_waiting(self) -> Self {
        Tuner { only_waiting: true, ..self }
    }

    /// The decisions so far, oldest first; at most the last 256.
    pub fn decisions(&self) -> impl ExactSizeIterator<Item = &TuningDecision> {
        self.decisions.iter()
    }

    /// How long the next interval should last: half a second, or two seconds if the effect to measure
    /// is small.
    pub fn length(&self) -> Duration {
        match &self.phase {
            TuningPhase::Settling | TuningPhase::SettlingTrial(_) => SHORT,
            TuningPhase::Trial(trial) => trial.length,
            TuningPhase::Steady if self.is_calm => LONG,
            TuningPhase::Steady => SHORT,
        }
    }

    /// Evaluates an interval, and returns the change to make now.
    ///
    /// The change is one of [`Threads`](SettingChange::Threads),
    /// [`Concurrency`](SettingChange::Concurrency) and [`Queue`](SettingChange::Queue). Each interval
    /// begins at the end of the previous one, and lasts for at least [`length`](Self::length). It
    /// should contain at least 64 items, if the pipeline is fast enough.
    pub fn next(&mut self, interval: &Interval) -> Option<SettingChange> {
        let measured = Measurements::from(interval);
        let now = interval.started_after + interval.length;
        self.reset.iter_mut().for_each(|it| it.pause = it.pause.saturating_sub(1));
        match std::mem::take(&mut self.phase) {
            TuningPhase::Settling => {
                self.phase = TuningPhase::Steady;
                None
            }
            TuningPhase::SettlingTrial(trial) => {
                self.phase = TuningPhase::Trial(trial);
                None
            }
            TuningPhase::Trial(trial) => self.judge(&trial, &measured, now),
            TuningPhase::Steady => self.try_next(&measured, now),
        }
    }

    /// Prepares the tuner for the next run of the same pipeline. Returns a change to make at its start.
    ///
    /// A trial continues in the next run. If it began before the last run, the runs are too short to
    /// measure the change, which is reset.
    pub(crate) fn next_run(&mut self) -> Option<SettingChange> {
        self.fixed.clear();
        // Times of decisions count from the start of their run.
        self.decisions.retain(|decision| decision.kept.is_none());
        match std::mem::take(&mut self.phase) {
            TuningPhase::SettlingTrial(mut trial) | TuningPhase::Trial(mut trial) => {
                if trial.is_resumed {
                    self.decisions.back_mut()?.kept = Some(false);
                    return self.undo_last();
                }
                trial.is_resumed = true;
                self.phase = TuningPhase::SettlingTrial(trial);
                None
            }
            TuningPhase::Settling | TuningPhase::Steady => None,
        }
    }

    /// Ends a trial.
    fn judge(
        &mut self,
        trial: &TuningTrial,
        measured: &Measurements<'_>,
        now: Duration,
    ) -> Option<SettingChange> {
        let rate = rate(measured, trial.stage);
        // If the consumer limits now, the rate does not depend on the change.
        let kept = rate >= trial.needed || matches!(measured.limit(), Limit::Consumer { .. });
        let decision = self.decisions.back_mut()?;
        (decision.rate_after, decision.kept) = (Some(rate), Some(kept));
        if kept {
            let raises = decision.to() > decision.from;
            let at = self.reset.iter().position(|it| it.concerns(&decision.change, raises));
            if let Some(at) = at {
                self.reset.swap_remove(at);
            }
            return self.try_next(measured, now);
        }
        self.undo_last()
    }

    /// Returns the change that resets the setting of the last decision.
    fn undo_last(&mut self) -> Option<SettingChange> {
        let decision = self.decisions.back()?;
        let (change, from, raises) =
            (decision.change.clone(), decision.from, decision.to() > decision.from);
        let at = self.reset.iter().position(|it| it.concerns(&change, raises));
        let rate = decision.rate_before;
        let pause = at.map_or(FIRST_PAUSE, |at| self.reset.swap_remove(at).next_pause);
        let next_pause = (2 * pause).min(LONGEST_PAUSE);
        let undo = with_value(&change, from);
        self.reset.push(ResetSetting { change, raises, rate, pause, next_pause, different: 0 });
        // The phase is `Settling`.
        Some(undo)
    }

    /// Starts a trial, if a change is promising.
    fn try_next(&mut self, measured: &Measurements<'_>, now: Duration) -> Option<SettingChange> {
        self.phase = TuningPhase::Steady;
        self.is_calm = true;
        let limit = measured.limit();
        if matches!(limit, Limit::Consumer { .. } | Limit::Unknown | Limit::AllFailed { .. }) {
            return None;
        }
        let enough = measured.stages.iter().rposition(|stage| stage.items >= MIN_ITEMS);
        let stage = enough.unwrap_or(measured.stages.len() - 1);
        let rate = rate(measured, stage);
        self.reset.retain_mut(|it| !it.is_outdated(rate));
        let Proposal { change, needed, length, reason } = self.propose(measured, &limit)?;
        let from = present(measured, &change)?;
        self.is_calm = false;
        if self.decisions.len() == MAX_DECISIONS {
            self.decisions.pop_front();
        }
        self.decisions.push_back(TuningDecision {
            time: now,
            change: change.clone(),
            from,
            reason,
            rate_before: rate,
            rate_after: None,
            kept: None,
        });
        let needed = rate * (1.0 + needed);
        self.phase =
            TuningPhase::SettlingTrial(TuningTrial { stage, needed, length, is_resumed: false });
        Some(change)
    }

    fn propose(&self, measured: &Measurements<'_>, limit: &Limit) -> Option<Proposal> {
        if self.only_waiting && !threads_wait(measured, limit) {
            return None;
        }
        let model = PipelineModel::new(measured)?;
        let present = model.predict(&[]);
        let gain = |changes: &[SettingChange]| model.predict(changes).gain;
        let groups = settings(measured).into_iter().map(|group| self.possible(measured, group));
        let chosen = groups.filter_map(|group| smallest(group, &gain));
        let mut chosen: Vec<(SettingChange, f64)> = chosen.collect();
        chosen.sort_by(|a, b| b.1.total_cmp(&a.1));
        let proposal = |change: SettingChange, with: Option<&SettingChange>, gained: f64| {
            let with = with.map_or(String::new(), |it| format!(", with {}", model.describe(it)));
            let (what, by) = (model.describe(&change), gained * 100.0);
            let limit = &present.limited_by;
            let reason = format!("limited by {limit}; {what}{with}: {by:+.0} %");
            (change, reason)
        };
        let is_long = measured.elapsed >= LONG;
        let worth = if is_long { WORTH_TRYING } else { CLEAR_GAIN };
        if let Some((change, gained)) = chosen.first().filter(|it| it.1 >= worth) {
            let (change, reason) = proposal(change.clone(), None, *gained);
            let needed = (SHARE_TO_KEEP * gained).min(GAIN_TO_KEEP);
            let length = if *gained >= CLEAR_GAIN { SHORT } else { LONG };
            return Some(Proposal { change, needed, length, reason });
        }
        if !is_long || self.only_waiting {
            return None;
        }
        let length = LONG;
        // Two resources limit equally. The first change gains nothing without the second.
        for (at, (first, _)) in chosen.iter().enumerate() {
            for (second, _) in &chosen[at + 1..] {
                let gained = gain(&[first.clone(), second.clone()]);
                if gained >= WORTH_TRYING {
                    let (change, reason) = proposal(first.clone(), Some(second), gained);
                    return Some(Proposal { change, needed: -FIRST_OF_TWO, length, reason });
                }
            }
        }
        let fewer = fewer_threads(measured, limit);
        let fewer = fewer.map(|threads| SettingChange::Threads { threads });
        let mut smaller = fewer.into_iter().chain(smaller_windows(measured));
        let change = smaller.find(|it| self.may_lower(measured, it))?;
        let reason = format!("limited by {}; {}", present.limited_by, model.describe(&change));
        Some(Proposal { change, needed: -NOISE, length, reason })
    }

    /// Whether a change to a smaller number may be tried.
    fn may_lower(&self, measured: &Measurements<'_>, change: &SettingChange) -> bool {
        let is_fixed = change.stage().is_some_and(|stage| self.fixed.contains(stage));
        let is_lower = present(measured, change).is_some_and(|from| value_of(change) < from);
        is_lower && !is_fixed && !self.is_reset(change, false)
    }

    /// The changes of one setting that may be tried.
    fn possible(
        &self,
        measured: &Measurements<'_>,
        group: Vec<SettingChange>,
    ) -> Vec<SettingChange> {
        let may = |change: &SettingChange| match present(measured, change) {
            Some(from) => !self.is_reset(change, true) && self.allows(measured, change, from),
            None => false,
        };
        group.into_iter().filter(may).collect()
    }

    fn allows(&self, measured: &Measurements<'_>, change: &SettingChange, from: usize) -> bool {
        let most_threads = MAX_THREADS.min(MAX_THREADS_PER_CPU * measured.cpus.max(1));
        let has_memory = measured.memory_waited() <= MEMORY_WAITED;
        let is_step = value_of(change) <= LARGEST_STEP * from;
        match change {
            SettingChange::Threads { threads } => has_memory && *threads <= most_threads,
            _ if self.only_waiting => false,
            SettingChange::Concurrency { stage, items } => {
                // A function with a concurrency of 1 may not support more.
                let is_fixed = from < 2 || self.fixed.contains(stage);
                let has_threads = stage_named(measured, stage).is_some_and(|it| it.dedicated);
                let most = if has_threads { most_threads } else { usize::MAX };
                has_memory && is_step && !is_fixed && *items <= most
            }
            SettingChange::Queue { stage, items } => {
                let is_last = measured.stages.last().is_some_and(|it| it.name == *stage);
                let most = if is_last { MAX_PREFETCH } else { MAX_QUEUE };
                let is_stage = stage_named(measured, stage)
                    .is_some_and(|it| it.kind == StageKind::Async || it.kind.uses_cpu_pool());
                has_memory && is_step && is_stage && *items <= most
            }
            _ => false,
        }
    }

    fn is_reset(&self, change: &SettingChange, raises: bool) -> bool {
        self.reset.iter().any(|it| it.pause > 0 && it.concerns(change, raises))
    }
}

impl ResetSetting {
    /// Whether a change is one of the same setting in the same direction.
    fn concerns(&self, change: &SettingChange, raises: bool) -> bool {
        self.raises == raises && with_value(&self.change, 0) == with_value(change, 0)
    }

    /// Whether the pipeline behaves differently than at the trial.
    fn is_outdated(&mut self, rate: f64) -> bool {
        let is_different = rate > self.rate * DIFFERENT || rate * DIFFERENT < self.rate;
        self.different = if is_different { self.different + 1 } else { 0 };
        self.different >= DIFFERENT_INTERVALS
    }
}

/// Of the values of one setting, the smallest that gains nearly as much as the best.
fn smallest(
    group: Vec<SettingChange>,
    gain: &impl Fn(&[SettingChange]) -> f64,
) -> Option<(SettingChange, f64)> {
    let gains: Vec<f64> = group.iter().map(|it| gain(std::slice::from_ref(it))).collect();
    let best = gains.iter().copied().fold(0.0, f64::max);
    let mut all = group.into_iter().zip(gains);
    all.find(|(_, gained)| *gained >= ENOUGH * best)
}

/// Whether the threads of the shared pool mostly wait, so that more of them may be faster.
fn threads_wait(measured: &Measurements<'_>, limit: &Limit) -> bool {
    use Limit::{Concurrency, Order, Queue, Threads};
    let may_gain =
        matches!(limit, Threads { .. } | Order { .. } | Queue { .. } | Concurrency { .. });
    let on_pool = || measured.stages.iter().filter(|it| it.kind.uses_cpu_pool() && !it.dedicated);
    let busy: f64 = on_pool().map(|stage| stage.busy.as_secs_f64()).sum();
    let computing = |it: &StageStatistics| it.items as f64 * measured.cpu_and_wait(it).0;
    may_gain && on_pool().map(computing).sum::<f64>() < WAITS * busy
}

/// A smaller number of threads that may be as fast.
fn fewer_threads(measured: &Measurements<'_>, limit: &Limit) -> Option<usize> {
    let (threads, cpus) = (measured.threads, measured.cpus.max(1));
    match limit {
        Limit::Gil { .. } if threads > 1 => Some(threads.div_ceil(2)),
        Limit::Cpu { .. } | Limit::OtherPrograms { .. } if threads > cpus => Some(cpus),
        _ => None,
    }
}

/// Half of the in-flight window, for each async stage that uses only a small part of it.
fn smaller_windows(measured: &Measurements<'_>) -> impl Iterator<Item = SettingChange> {
    let elapsed = measured.elapsed.as_secs_f64();
    let is_large = move |stage: &&StageStatistics| {
        // By Little's law, the mean number of items in flight.
        let in_use = stage.busy.as_secs_f64() / elapsed.max(f64::MIN_POSITIVE);
        stage.kind == StageKind::Async
            && stage.items >= MIN_ITEMS
            && stage.concurrency > MIN_WINDOW
            && in_use <= SHARE_IN_USE * stage.concurrency as f64
    };
    let halved = |stage: &StageStatistics| SettingChange::Concurrency {
        stage: Arc::clone(&stage.name),
        items: (stage.concurrency / 2).max(MIN_WINDOW),
    };
    measured.stages.iter().filter(is_large).map(halved)
}

/// Items per second of a stage.
fn rate(measured: &Measurements<'_>, stage: usize) -> f64 {
    let items = measured.stages.get(stage).map_or(0, |stage| stage.items);
    items as f64 / measured.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
}

fn stage_named<'a>(measured: &Measurements<'a>, name: &str) -> Option<&'a StageStatistics> {
    measured.stages.iter().find(|stage| &*stage.name == name)
}

/// The present value of the setting that a change concerns.
fn present(measured: &Measurements<'_>, change: &SettingChange) -> Option<usize> {
    match change {
        SettingChange::Threads { .. } => Some(measured.threads),
        SettingChange::Concurrency { stage, .. } => {
            stage_named(measured, stage).map(|it| it.concurrency)
        }
        SettingChange::Queue { stage, .. } => {
            let at = measured.stages.iter().position(|it| it.name == *stage)?;
            measured.queues.get(at).map(|queue| queue.capacity)
        }
        _ => None,
    }
}

/// The value that a change sets.
fn value_of(change: &SettingChange) -> usize {
    match change {
        SettingChange::Threads { threads } => *threads,
        SettingChange::Concurrency { items, .. } | SettingChange::Queue { items, .. } => *items,
        _ => 0,
    }
}

/// The same change with another value.
fn with_value(change: &SettingChange, value: usize) -> SettingChange {
    let mut change = change.clone();
    match &mut change {
        SettingChange::Threads { threads: old }
        | SettingChange::Concurrency { items: old, .. }
        | SettingChange::Queue { items: old, .. } => *old = value,
        _ => {}
    }
    change
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_continues_in_the_next_run_only() {
        let mut tuner = Tuner::new();
        let change = SettingChange::Threads { threads: 8 };
        tuner.decisions.push_back(TuningDecision {
            time: SHORT,
            change: change.clone(),
            from: 2,
            reason: String::new(),
            rate_before: 100.0,
            rate_after: None,
            kept: None,
        });
        let trial = TuningTrial { stage: 0, needed: 110.0, length: SHORT, is_resumed: false };
        tuner.phase = TuningPhase::Trial(trial);
        assert_eq!(tuner.next_run(), None);
        assert!(matches!(tuner.phase, TuningPhase::SettlingTrial(_)));
        assert_eq!(tuner.next_run(), Some(SettingChange::Threads { threads: 2 }));
        assert!(tuner.is_reset(&change, true) && matches!(tuner.phase, TuningPhase::Settling));
        assert_eq!(tuner.decisions[0].kept, Some(false));
        // Later runs do not list the decisions of this one.
        assert_eq!(tuner.next_run(), None);
        assert_eq!(tuner.decisions().len(), 0);
    }
}
