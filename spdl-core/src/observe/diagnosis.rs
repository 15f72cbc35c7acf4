//! [`Diagnosis`]: what limits a pipeline, and how much a change would gain.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::memory::footprint::ByteSize;
use crate::observe::interval::Interval;
use crate::observe::model::{
    LARGE_REQUEST, MEMORY_WAITED, Measurements, PipelineModel, Prediction, Resource, SettingChange,
    saturated_rate,
};
use crate::observe::statistics::{StageKind, StageStatistics, Statistics, WorkerTimes};
use crate::stage::Medium;

/// A resource is saturated above this share of its capacity.
const SATURATED: f64 = 0.85;
/// Memory is the bottleneck only if more than this share of the budget was in use at the peak.
const MEMORY_SPENT: f64 = 0.95;
/// The consumer is the bottleneck only if at least this share of the time was after start-up.
const SETTLED: f64 = 0.1;
/// Other programs use the CPUs if threads that could run got less than this share of the CPUs.
const CPUS_GOT: f64 = 0.75;
/// The GIL is the bottleneck if more than this share of the requests for it waited.
const GIL_CONTENDED: f64 = 0.5;
/// Or if the requests waited for more than this share of the time of the Python functions.
const GIL_WAITED: f64 = 0.3;
/// Or if Python functions use most of one CPU, but not more, and requests wait for more than
/// [`GIL_HELD_WAITS`] of the time.
const GIL_ONE_CPU: f64 = 1.1;
const GIL_HELD_WAITS: f64 = 0.05;
/// A stage computes if it uses a CPU for at least this share of its time.
const COMPUTES: f64 = 0.75;
/// A queue limits if it is both full and empty for more than this share of the time.
const FULL_AND_EMPTY: f64 = 0.2;
/// A stage waits for the input order if its places are all in use for more than this share of the
/// time.
const PLACES_USED: f64 = 0.4;
/// An async stage limits if, for more than this share of the time, its in-flight window was full, or its inputs waited for
/// memory or for their order while downstream had no item.
const LIMITED: f64 = 0.5;
/// A change that gains less than this is not worth a recommendation.
const WORTHWHILE: f64 = 0.05;
/// A change that gains less than this does not help.
const USELESS: f64 = 0.02;
/// Of several values of one setting, the smallest that gains this share of the largest gain.
const ENOUGH: f64 = 0.9;
/// The minimum number of delivered items since the start for which effects are predicted.
const MIN_DELIVERED: u64 = 4;
/// The largest in-flight window that is recommended.
const MAX_WINDOW: usize = 512;

/// What limits a pipeline, what would help and by how much, and what would not.
///
/// `Display` writes at most three sentences.
///
/// ```
/// # use spdl_core::PipelineBuilder;
/// let mut pipeline = PipelineBuilder::from_iter(0..9).map("double", |n| Ok(2 * n)).build()?;
/// assert_eq!(pipeline.by_ref().count(), 9);
/// let diagnosis = pipeline.statistics().diagnose();
/// println!("{diagnosis}");
/// for effect in &diagnosis.helps {
///     println!("{}: {:+.0} %", effect.description, effect.prediction.gain * 100.0);
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Diagnosis {
    /// The bottleneck, with the evidence.
    pub limit: Limit,
    /// Items delivered per second, after the first one was ready.
    #[cfg_attr(feature = "serde", serde(rename = "items_per_s"))]
    pub throughput: f64,
    /// Source items, usually samples, for one delivered item, usually a batch.
    pub source_items: f64,
    /// The share of the time in which the consumer waited, in 0..=1.
    pub consumer_waits: f64,
    /// Changes that help: settings first, then changes of the work or the machine; each with the
    /// largest gain first.
    pub helps: Vec<Effect>,
    /// Changes that gain less than 2 %.
    pub does_not_help: Vec<Effect>,
    /// The number of delivered items, if it is too small to predict effects.
    #[cfg_attr(feature = "serde", serde(skip))]
    too_few: Option<u64>,
}

/// A change, and what the [`PipelineModel`] predicts of it.
#[non_exhaustive]
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Effect {
    /// The change.
    pub change: SettingChange,
    /// The change in words, with the present value.
    pub description: String,
    /// The change without values, for a list of changes that do not help.
    #[cfg_attr(feature = "serde", serde(skip))]
    in_short: Option<String>,
    /// How a user makes the change, as [`SettingNames`](crate::observe::SettingNames) name it; empty
    /// if they are not set, and for a change of the work or the machine.
    pub setting: String,
    /// The throughput after the change.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub prediction: Prediction,
}

/// The bottleneck of a pipeline. `Display` writes it as a sentence.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case", tag = "kind"))]
pub enum Limit {
    /// No item was delivered in the measured time, so the bottleneck is unknown.
    Unknown,
    /// No item was delivered, because all items failed in one stage.
    AllFailed {
        /// The first stage in which all items failed.
        stage: Arc<str>,
        /// Number of items that failed in the stage.
        items: u64,
    },
    /// The consumer: after start-up, a batch was ready more than 85 % of the time, and start-up
    /// took at most 90 % of the measured time.
    Consumer {
        /// The share of the time after start-up in which a batch was ready, in 0..=1.
        readiness: f64,
    },
    /// The CPUs: worker threads use them for more than 85 % of the time.
    Cpu {
        /// The share of the CPUs in use, in 0..=1.
        busy: f64,
        /// Number of worker threads.
        threads: usize,
        /// Number of CPUs that the process may use.
        cpus: usize,
        /// The stage with the most busy time.
        stage: Arc<str>,
        /// The share of this stage in the busy time of all stages on the CPU pool, in 0..=1.
        part: f64,
    },
    /// Other programs, or other threads of this process, use the CPUs that the worker threads need.
    OtherPrograms {
        /// The mean number of CPUs that the worker threads got.
        got: f64,
        /// Number of worker threads.
        threads: usize,
        /// Number of CPUs that the process may use.
        cpus: usize,
        /// The stage with the most busy time.
        stage: Arc<str>,
        /// The share of this stage in the busy time of all stages on the CPU pool, in 0..=1.
        part: f64,
    },
    /// The number of worker threads: all are busy, although CPUs are free.
    Threads {
        /// The share of the time in which the threads are busy, in 0..=1.
        busy: f64,
        /// The share of the busy time in which the threads use a CPU, in 0..=1. They wait for the
        /// remaining time, for example for files.
        computing: f64,
        /// Number of worker threads.
        threads: usize,
        /// Number of CPUs that the process may use.
        cpus: usize,
        /// The stage with the most busy time.
        stage: Arc<str>,
        /// The share of this stage in the busy time of all stages on the CPU pool, in 0..=1.
        part: f64,
    },
    /// Python's GIL: worker threads run Python code one at a time.
    Gil {
        /// The share of the requests for the GIL that waited, in 0..=1.
        contended: f64,
        /// The mean number of CPUs that the Python functions use, as far as it is known.
        used: f64,
        /// Number of worker threads.
        threads: usize,
        /// The stage of Python functions with the most busy time.
        stage: Arc<str>,
        /// The share of this stage in the busy time of all such stages, in 0..=1.
        part: f64,
    },
    /// The thread of the event loop, which uses a CPU for more than 85 % of the time.
    EventLoop {
        /// The async stage with the most busy time.
        stage: Arc<str>,
        /// The share of the time in which the thread uses a CPU, in 0..=1.
        busy: f64,
    },
    /// The source: producing items takes more than 85 % of the time.
    Source {
        /// The source.
        stage: Arc<str>,
        /// The share of the time in which the source produces items, in 0..=1.
        busy: f64,
    },
    /// The memory budget: at the peak since the start of the pipeline, more than 95 % of the budget
    /// was in use, and stages wait for memory for more than half of the measured time.
    Memory {
        /// The budget in bytes.
        budget: usize,
        /// The maximum share of the budget in use since the start of the pipeline, in 0..=1.
        used: f64,
        /// The share of the time in which a stage waited for memory, in 0..=1.
        waited: f64,
    },
    /// The latency of a store, or of another thing that an async stage waits for: more than 85 % of
    /// the in-flight window is in use.
    Latency {
        /// The stage.
        stage: Arc<str>,
        /// What the stage waits for.
        medium: Medium,
        /// The in-flight window.
        concurrency: usize,
        /// The share of the window in use, in 0..=1.
        busy: f64,
        /// The median time of an item.
        #[cfg_attr(feature = "serde", serde(rename = "latency_s", with = "crate::seconds"))]
        latency: Duration,
    },
    /// The bandwidth of a network or disk: more items in flight did not raise the rate.
    Bandwidth {
        /// The stage.
        stage: Arc<str>,
        /// What the stage waits for.
        medium: Medium,
        /// The highest number of bytes per second.
        bytes_per_s: f64,
        /// The in-flight window.
        concurrency: usize,
    },
    /// The number of requests per second (IOPS) of a store or disk: more requests in flight did not
    /// raise the rate.
    Requests {
        /// The stage.
        stage: Arc<str>,
        /// What the stage waits for.
        medium: Medium,
        /// The highest number of requests per second.
        requests_per_s: f64,
        /// The in-flight window.
        concurrency: usize,
    },
    /// The concurrency of a CPU stage: more than 85 % of the concurrency is in use, although
    /// threads and CPUs are free.
    Concurrency {
        /// The stage.
        stage: Arc<str>,
        /// The concurrency of the stage.
        concurrency: usize,
        /// The share of the concurrency in use, in 0..=1.
        busy: f64,
    },
    /// The queue after a stage: it is too short for the stage's concurrency, or for varying
    /// processing times.
    Queue {
        /// The stage before the queue.
        stage: Arc<str>,
        /// The capacity of the queue.
        capacity: usize,
        /// The share of the time in which all places of the queue were in use, in 0..=1.
        full: f64,
        /// The share of the time in which the next stage found no item, in 0..=1.
        empty: f64,
    },
    /// The input order: finished items of a stage wait for an earlier, slow item.
    Order {
        /// The stage.
        stage: Arc<str>,
        /// The share of the time in which finished items use all places, in 0..=1.
        stalled: f64,
        /// The median processing time.
        #[cfg_attr(feature = "serde", serde(rename = "usual_s", with = "crate::seconds"))]
        usual: Duration,
        /// The 99th percentile of the processing time.
        #[cfg_attr(feature = "serde", serde(rename = "slow_s", with = "crate::seconds"))]
        slow: Duration,
    },
    /// No resource is saturated.
    Balance {
        /// The stage with the largest share of its concurrency in use.
        stage: Arc<str>,
        /// The share of the concurrency in use, in 0..=1.
        busy: f64,
    },
}

impl Statistics {
    /// The bottleneck of the pipeline since its start, and the effects of changes.
    ///
    /// Effects are predicted if at least 4 items were delivered; before, rates are mostly those of the start.
    pub fn diagnose(&self) -> Diagnosis {
        let measured = self.into();
        let few = self.consumer.items;
        Diagnosis::new(&measured, (1..MIN_DELIVERED).contains(&few).then_some(few))
    }

    /// The bottleneck of the pipeline since its start.
    pub fn limit(&self) -> Limit {
        Measurements::from(self).limit()
    }
}

impl Interval {
    /// The bottleneck of the pipeline in this interval, and the effects of changes.
    pub fn diagnose(&self) -> Diagnosis {
        Diagnosis::new(&self.into(), None)
    }

    /// The bottleneck of the pipeline in this interval.
    pub fn limit(&self) -> Limit {
        Measurements::from(self).limit()
    }
}

impl Diagnosis {
    /// `too_few`: the number of delivered items, if they are too few for predictions.
    fn new(measured: &Measurements<'_>, too_few: Option<u64>) -> Self {
        let elapsed = measured.elapsed.as_secs_f64();
        let waited = measured.consumer.waited.as_secs_f64();
        let model = PipelineModel::new(measured);
        let mut diagnosis = Diagnosis {
            limit: measured.limit(),
            throughput: measured.throughput(),
            source_items: model.as_ref().map_or(1.0, PipelineModel::source_items),
            consumer_waits: if elapsed > 0.0 { (waited / elapsed).min(1.0) } else { 0.0 },
            helps: Vec::new(),
            does_not_help: Vec::new(),
            too_few,
        };
        if let (Some(model), None) = (&model, too_few) {
            diagnosis.add_effects(model, measured);
        }
        diagnosis
    }

    /// Predicts the effects of all candidates.
    fn add_effects(&mut self, model: &PipelineModel, measured: &Measurements<'_>) {
        let effect = |change: SettingChange| Effect {
            prediction: model.predict(std::slice::from_ref(&change)),
            description: model.describe(&change),
            in_short: model.in_short(&change),
            setting: String::new(),
            change,
        };
        // Only changes that a user can make.
        let named = |mut effect: Effect| {
            if !effect.change.is_work() {
                effect.setting = measured.setting_names.name_of(&effect.change, measured.stages)?;
            }
            Some(effect)
        };
        let mut groups = [settings(measured), work(measured, &self.limit)].map(|groups| {
            let chosen = groups.into_iter().filter_map(|group| smallest(group, &effect));
            let mut chosen: Vec<Effect> = chosen.filter_map(named).collect();
            chosen.sort_by(|a, b| b.prediction.gain.total_cmp(&a.prediction.gain));
            chosen
        });
        let is_gil = matches!(self.limit, Limit::Gil { .. });
        let is_cure = |it: &Effect| is_gil && it.change == SettingChange::WithoutGil;
        let useless = groups[0].extract_if(.., |it| it.prediction.gain < USELESS && !is_cure(it));
        self.does_not_help = useless.collect();
        let worthwhile = groups.into_iter().flatten();
        self.helps =
            worthwhile.filter(|it| it.prediction.gain >= WORTHWHILE || is_cure(it)).collect();
        // The cause is the GIL, although other programs may use the CPUs that processes would use.
        self.helps.sort_by_key(|it| !is_cure(it));
    }

    /// The second sentence: what would help.
    fn advice(&self) -> Option<String> {
        let first = self.helps.first()?;
        let (change, then) = (capitalized(&first.in_words()), &first.prediction.limited_by);
        let mut text = match first.prediction.gain >= WORTHWHILE {
            true => format!(
                "{change} would give about {} samples/s ({:+.0} %)",
                rounded(first.prediction.throughput * self.source_items),
                first.prediction.gain * 100.0
            ),
            false => format!("{change} would help"),
        };
        if !self.is_limited_by(then) {
            text += &format!(", then {then} would limit");
        }
        let other =
            self.helps.iter().skip(1).find(|it| it.change.is_work() != first.change.is_work());
        if let Some(other) = other {
            text += &format!(
                "; {} would give {:+.0} %",
                other.in_words(),
                other.prediction.gain * 100.0
            );
        }
        text.push('.');
        Some(text)
    }

    /// Whether this resource is the present bottleneck.
    fn is_limited_by(&self, resource: &Resource) -> bool {
        match (&self.limit, resource) {
            (Limit::Consumer { .. }, Resource::Consumer)
            | (Limit::Cpu { .. } | Limit::OtherPrograms { .. }, Resource::Cpus)
            | (Limit::Threads { .. }, Resource::Threads)
            | (Limit::Gil { .. }, Resource::Gil)
            | (Limit::EventLoop { .. }, Resource::EventLoop)
            | (Limit::Memory { .. }, Resource::Memory) => true,
            (Limit::Source { stage, .. }, Resource::Source(other))
            | (
                Limit::Latency { stage, .. } | Limit::Concurrency { stage, .. },
                Resource::Concurrency(other),
            )
            | (
                Limit::Bandwidth { stage, .. } | Limit::Requests { stage, .. },
                Resource::Medium(other),
            )
            | (Limit::Queue { stage, .. }, Resource::Queue(other))
            | (Limit::Order { stage, .. }, Resource::Order(other)) => stage == other,
            _ => false,
        }
    }

    /// The third sentence: what would not help.
    fn warning(&self) -> Option<String> {
        if let Limit::Consumer { .. } = self.limit {
            let gain = 1.0 / (1.0 - self.consumer_waits).max(0.01) - 1.0;
            return Some(format!("Faster loading would gain at most {:.0} %.", gain * 100.0));
        }
        let mut names: Vec<&str> =
            self.does_not_help.iter().filter_map(|it| it.in_short.as_deref()).collect();
        names.dedup();
        names.sort_by_key(|name| *name != "more threads");
        names.truncate(2);
        match &names[..] {
            [] => None,
            names => Some(format!("{} would not help.", capitalized(&names.join(" or ")))),
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.limit)?;
        if matches!(self.limit, Limit::Unknown | Limit::AllFailed { .. }) {
            return Ok(());
        }
        if let Some(few) = self.too_few {
            let were = if few == 1 { "item was" } else { "items were" };
            return write!(
                f,
                " Only {few} {were} delivered, too few to predict the effects of changes."
            );
        }
        for sentence in [self.advice(), self.warning()].into_iter().flatten() {
            write!(f, " {sentence}")?;
        }
        Ok(())
    }
}

impl Effect {
    /// The change, and how to make it: `8 instead of 2 threads (--threads 8)`.
    fn in_words(&self) -> String {
        match self.setting.as_str() {
            "" => self.description.clone(),
            setting => format!("{} ({setting})", self.description),
        }
    }
}

impl SettingChange {
    /// Whether the change is one of the work or of the machine, not of a setting.
    fn is_work(&self) -> bool {
        matches!(
            self,
            SettingChange::Cpus { .. }
                | SettingChange::Cost { .. }
                | SettingChange::StepTime { .. }
        )
    }
}

/// Changes of settings: groups of values of one setting, the smallest change first.
pub(super) fn settings(measured: &Measurements<'_>) -> Vec<Vec<SettingChange>> {
    let mut groups = Vec::new();
    let shares_pool = |stage: &StageStatistics| stage.kind.uses_cpu_pool() && !stage.dedicated;
    let threads = measured.threads.max(1);
    if measured.stages.iter().any(shares_pool) {
        let more = [measured.cpus, 2 * threads, 4 * threads];
        let mut more: Vec<usize> = more.into_iter().filter(|&more| more > threads).collect();
        more.sort_unstable();
        groups.push(more.into_iter().map(|threads| SettingChange::Threads { threads }).collect());
    }
    let stages = measured.stages.iter().zip(measured.queues);
    for (stage, queue) in stages.filter(|(stage, _)| stage.items > 0) {
        let name = || Arc::clone(&stage.name);
        let groups_items = stage.items_out > 0 && stage.items >= 2 * stage.items_out;
        let is_adjustable = match stage.kind {
            StageKind::Async => true,
            StageKind::Cpu | StageKind::Fill => !groups_items,
            _ => false,
        };
        if is_adjustable {
            let most = if shares_pool(stage) { threads } else { MAX_WINDOW };
            let items = [2, 4, 8].map(|times| stage.concurrency * times);
            let items = items.into_iter().map(|items| items.min(most));
            let items = items.filter(|&items| items > stage.concurrency);
            groups.push(
                items.map(|items| SettingChange::Concurrency { stage: name(), items }).collect(),
            );
        }
        if stage.kind != StageKind::Source {
            let items = [2, 4, 16, 64].map(|times| queue.capacity * times);
            let items = items.into_iter().filter(|&items| items <= 4096);
            groups.push(items.map(|items| SettingChange::Queue { stage: name(), items }).collect());
        }
        if stage.ordered && stage.concurrency > 1 {
            groups.push(vec![SettingChange::CompletionOrder { stage: name() }]);
        }
        if stage.cache.is_some_and(|cache| cache.share < 0.99) {
            groups.push(vec![SettingChange::CacheShare { stage: name(), share: 1.0 }]);
        }
    }
    let budget = measured.memory.limit_bytes;
    if budget > 0 && measured.memory_waited() > MEMORY_WAITED {
        let bytes = [2, 4].map(|times| budget.saturating_mul(times));
        groups.push(bytes.into_iter().map(|bytes| SettingChange::Memory { bytes }).collect());
    }
    if measured.gil.is_some() && measured.stages.iter().any(|stage| stage.holds_gil) {
        groups.push(vec![SettingChange::WithoutGil]);
    }
    groups
}

/// Changes of the work, and of the machine.
fn work(measured: &Measurements<'_>, limit: &Limit) -> Vec<Vec<SettingChange>> {
    let mut groups = Vec::new();
    match limit {
        Limit::OtherPrograms { cpus, .. } => {
            groups.push(vec![SettingChange::Cpus { cpus: *cpus as f64 }])
        }
        Limit::Cpu { cpus, .. } => {
            groups.push(vec![SettingChange::Cpus { cpus: 2.0 * *cpus as f64 }])
        }
        Limit::Consumer { .. } => {
            let time = Duration::try_from_secs_f64(measured.step() / 2.0).unwrap_or_default();
            groups.push(vec![SettingChange::StepTime { time }]);
        }
        _ => {}
    }
    let cost = |stage: &StageStatistics| {
        vec![SettingChange::Cost { stage: Arc::clone(&stage.name), factor: 0.5 }]
    };
    // Less work does not shorten a wait.
    let waits = |stage: &StageStatistics| matches!(limit, Limit::Latency { stage: it, .. } if *it == stage.name);
    let works = measured.stages.iter().filter(|stage| stage.items > 0 && !waits(stage));
    groups.extend(works.map(cost));
    groups
}

/// Of the values of one setting, the smallest that gains nearly as much as the best.
fn smallest(
    group: Vec<SettingChange>,
    effect: &impl Fn(SettingChange) -> Effect,
) -> Option<Effect> {
    let effects: Vec<Effect> = group.into_iter().map(effect).collect();
    let best = effects.iter().map(|it| it.prediction.gain).fold(0.0, f64::max);
    let enough = effects.iter().position(|it| it.prediction.gain >= ENOUGH * best);
    effects.into_iter().nth(enough.unwrap_or(0))
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// A number with three significant digits.
fn rounded(number: f64) -> String {
    let digits = (2.0 - number.abs().max(1e-9).log10().floor()).clamp(0.0, 3.0) as usize;
    format!("{number:.digits$}")
}

impl Measurements<'_> {
    pub(super) fn limit(&self) -> Limit {
        if self.consumer.items == 0 || self.elapsed.is_zero() {
            return self.all_failed().unwrap_or(Limit::Unknown);
        }
        let readiness = self.queues.last().map_or(0.0, |queue| queue.readiness(self.elapsed));
        let gil = self.gil_limit();
        // A consumer in Python waits for the GIL within its step.
        let waits_for_gil = gil.is_some() && self.workers_hold_gil();
        if readiness > SATURATED && self.is_settled() && !waits_for_gil {
            return Limit::Consumer { readiness };
        }
        // A stage that waits for memory, for an earlier item or for a place also uses its
        // concurrency, so these are checked first.
        let found = gil.or_else(|| self.pool_limit()).or_else(|| self.memory_limit());
        let found = found.or_else(|| self.event_loop_limit()).or_else(|| self.stage_limit());
        let found = found.or_else(|| self.order_limit()).or_else(|| self.queue_limit());
        found.or_else(|| self.limiting_async_stage()).unwrap_or_else(|| match self.fullest() {
            Some((stage, busy)) => Limit::Balance { stage: Arc::clone(&stage.name), busy },
            None => Limit::Unknown,
        })
    }

    /// The share of the measured time, in 0..=1.
    fn share(&self, time: Duration) -> f64 {
        (time.as_secs_f64() / self.elapsed.as_secs_f64()).min(1.0)
    }

    /// The first stage in which all items failed, if no item was delivered.
    fn all_failed(&self) -> Option<Limit> {
        let failed = |stage: &&StageStatistics| {
            stage.failures > 0 && stage.failures == stage.items && stage.items_out == 0
        };
        let stage = self.stages.iter().find(failed).filter(|_| self.consumer.items == 0)?;
        Some(Limit::AllFailed { stage: Arc::clone(&stage.name), items: stage.items })
    }

    /// Whether at least [`SETTLED`] of the time was after start-up.
    fn is_settled(&self) -> bool {
        let first_wait = self.queues.last().map_or(Duration::ZERO, |queue| queue.first_wait);
        self.elapsed.saturating_sub(first_wait) >= self.elapsed.mul_f64(SETTLED)
    }

    fn on_pool(&self) -> impl Iterator<Item = &StageStatistics> {
        self.stages.iter().filter(|stage| stage.kind.uses_cpu_pool())
    }

    /// The mean number of stages of `stages` that are busy.
    fn busy<'s>(&self, stages: impl Iterator<Item = &'s StageStatistics>) -> f64 {
        let busy: f64 = stages.map(|stage| stage.busy.as_secs_f64()).sum();
        busy / self.elapsed.as_secs_f64()
    }

    fn gil_limit(&self) -> Option<Limit> {
        let gil = self.gil?;
        let in_python = || self.stages.iter().filter(|stage| stage.holds_gil);
        let stage = in_python().max_by_key(|stage| stage.busy)?;
        let busy = self.busy(in_python());
        let waited = gil.waited.as_secs_f64() / self.elapsed.as_secs_f64();
        let waits =
            gil.contended > GIL_CONTENDED || waited > GIL_WAITED * busy || self.workers_hold_gil();
        (waits && self.threads > 1 && busy > 0.5).then(|| Limit::Gil {
            contended: gil.contended,
            used: self.busy_on_cpu(in_python()),
            threads: self.threads,
            stage: Arc::clone(&stage.name),
            part: self.busy([stage].into_iter()) / busy,
        })
    }

    /// Whether the Python functions of the worker threads hold the GIL nearly all the time.
    ///
    /// A thread that loses the GIL within a function makes no request that is measured.
    fn workers_hold_gil(&self) -> bool {
        let waited = self.gil.map_or(0.0, |gil| gil.waited.as_secs_f64());
        let cpu = self.busy_on_cpu(self.stages.iter().filter(|stage| stage.holds_gil));
        cpu * self.preempted() > SATURATED
            && cpu < GIL_ONE_CPU
            && waited > GIL_HELD_WAITS * self.elapsed.as_secs_f64()
    }

    /// The mean number of CPUs that stages use, as far as their CPU time is known.
    fn busy_on_cpu<'s>(&self, stages: impl Iterator<Item = &'s StageStatistics>) -> f64 {
        let used =
            |stage: &StageStatistics| stage.busy.as_secs_f64() * stage.cpu_share.unwrap_or(0.0);
        stages.map(used).sum::<f64>() / self.elapsed.as_secs_f64()
    }

    /// The time in which worker threads could run, relative to the time in which they ran.
    fn preempted(&self) -> f64 {
        let ratio = |it: WorkerTimes| it.waited.as_secs_f64() / it.on_cpu.as_secs_f64();
        1.0 + self.workers.map(ratio).filter(|it| it.is_finite()).unwrap_or(0.0)
    }

    fn event_loop_limit(&self) -> Option<Limit> {
        let busy = self.share(self.event_loop?.on_cpu);
        let on_loop = self.stages.iter().filter(|stage| stage.kind == StageKind::Async);
        let stage = on_loop.max_by_key(|stage| stage.busy)?;
        (busy > SATURATED).then(|| Limit::EventLoop { stage: Arc::clone(&stage.name), busy })
    }

    /// The CPUs, other programs, or the number of threads.
    fn pool_limit(&self) -> Option<Limit> {
        let heaviest = self.on_pool().max_by_key(|stage| stage.busy)?;
        let all_busy = self.busy(self.on_pool());
        let stage = || Arc::clone(&heaviest.name);
        let part = self.busy([heaviest].into_iter()) / all_busy;
        let shared = || self.on_pool().filter(|stage| !stage.dedicated);
        let dedicated = self.on_pool().filter(|stage| stage.dedicated);
        // The shared workers count only if a stage uses them.
        let own_threads = if shared().next().is_some() { self.threads } else { 0 };
        let threads =
            dedicated.map(|stage| stage.concurrency).fold(own_threads, usize::saturating_add);
        let (cpus, at_most) = (self.cpus, threads.min(self.cpus).max(1) as f64);
        if let Some(workers) = self.workers {
            let got = workers.on_cpu.as_secs_f64() / self.elapsed.as_secs_f64();
            let wanted = got + workers.waited.as_secs_f64() / self.elapsed.as_secs_f64();
            if wanted > SATURATED * at_most && got < CPUS_GOT * at_most {
                return Some(Limit::OtherPrograms { got, threads, cpus, stage: stage(), part });
            }
        }
        // Without known CPU times, busy threads count as computing.
        let computing = |stage: &StageStatistics| {
            let (cpu, _) = self.cpu_and_wait(stage);
            stage.items as f64 * cpu / self.elapsed.as_secs_f64()
        };
        let used: f64 = self.on_pool().map(computing).sum();
        if used > SATURATED * cpus as f64 {
            let busy = (used / cpus as f64).min(1.0);
            return Some(Limit::Cpu { busy, threads, cpus, stage: stage(), part });
        }
        let busy = self.busy(shared()) / own_threads.max(1) as f64;
        // A stage whose concurrency is used up limits although it does not use all threads.
        (own_threads > 0 && busy > SATURATED).then(|| Limit::Threads {
            busy: busy.min(1.0),
            computing: (shared().map(computing).sum::<f64>() / self.busy(shared())).min(1.0),
            threads: own_threads,
            cpus,
            stage: stage(),
            part,
        })
    }

    fn memory_limit(&self) -> Option<Limit> {
        let (budget, peak) = (self.memory.limit_bytes, self.memory.peak_bytes);
        let (used, waited) = (peak as f64 / budget.max(1) as f64, self.memory_waited());
        (budget > 0 && used > MEMORY_SPENT && waited > MEMORY_WAITED).then_some(Limit::Memory {
            budget,
            used: used.min(1.0),
            waited,
        })
    }

    /// The stage with the largest share of its concurrency in use.
    fn fullest(&self) -> Option<(&StageStatistics, f64)> {
        let busy = |stage: &StageStatistics| stage.busy_share(self.elapsed);
        let stages = self.stages.iter().map(|stage| (stage, busy(stage)));
        stages.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// A stage whose concurrency is in use.
    fn stage_limit(&self) -> Option<Limit> {
        let (found, busy) = self.fullest().filter(|(_, busy)| *busy > SATURATED)?;
        let (stage, concurrency) = (Arc::clone(&found.name), found.concurrency);
        if found.kind == StageKind::Source {
            return Some(Limit::Source { stage, busy });
        }
        if found.kind.uses_cpu_pool() {
            return Some(Limit::Concurrency { stage, concurrency, busy });
        }
        Some(self.store_limit(found, busy))
    }

    /// The latency, the bandwidth or the request rate of the store that an async stage reads.
    fn store_limit(&self, found: &StageStatistics, busy: f64) -> Limit {
        let (stage, concurrency) = (Arc::clone(&found.name), found.concurrency);
        let medium = found.medium;
        let Some(rate) = saturated_rate(&found.rates) else {
            let latency = found.service.p50;
            return Limit::Latency { stage, medium, concurrency, busy, latency };
        };
        let bytes = found.bytes as f64 / found.items.max(1) as f64;
        if bytes >= LARGE_REQUEST {
            Limit::Bandwidth { stage, medium, bytes_per_s: rate * bytes, concurrency }
        } else {
            Limit::Requests { stage, medium, requests_per_s: rate, concurrency }
        }
    }

    /// An async stage that limited for most of the time: its in-flight window was full, but has grown since, or inputs
    /// waited for memory or for their order while downstream had no item.
    fn limiting_async_stage(&self) -> Option<Limit> {
        let on_loop = self.stages.iter().filter(|stage| stage.kind == StageKind::Async);
        let full = |stage: &StageStatistics| {
            self.share(stage.rates.iter().map(|rate| rate.time).sum::<Duration>())
        };
        let (found, busy) = on_loop
            .map(|stage| (stage, full(stage)))
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|(_, full)| *full > LIMITED)?;
        Some(self.store_limit(found, busy))
    }

    /// The stages with their queues: times in which all places were in use, and in which there was
    /// no item, after the first one.
    fn places(&self) -> impl Iterator<Item = (&StageStatistics, usize, f64, f64)> {
        self.stages.iter().zip(self.queues).map(|(stage, queue)| {
            let empty = self.share(queue.get_wait.saturating_sub(queue.first_wait));
            (stage, queue.capacity, self.share(queue.put_wait), empty)
        })
    }

    /// A stage that restores the input order, whose places hold finished items.
    fn order_limit(&self) -> Option<Limit> {
        let stalls = |(stage, capacity, full, empty): &(&StageStatistics, usize, f64, f64)| {
            let servers = stage.concurrency.min(*capacity) as f64;
            let in_service = stage.busy.as_secs_f64() / self.elapsed.as_secs_f64();
            stage.ordered
                && stage.concurrency > 1
                && *full > PLACES_USED
                && *empty > FULL_AND_EMPTY
                && in_service < SATURATED * servers
        };
        let most = self.places().filter(stalls).max_by(|a, b| a.2.total_cmp(&b.2));
        most.map(|(stage, _, full, _)| Limit::Order {
            stage: Arc::clone(&stage.name),
            stalled: full,
            usual: stage.service.p50,
            slow: stage.service.p99,
        })
    }

    /// A queue that is full for a part of the time, and empty for another part.
    fn queue_limit(&self) -> Option<Limit> {
        let least = |it: &(&StageStatistics, usize, f64, f64)| it.2.min(it.3);
        let most = self.places().max_by(|a, b| least(a).total_cmp(&least(b)))?;
        let (stage, capacity, full, empty) = most;
        (full.min(empty) > FULL_AND_EMPTY).then(|| Limit::Queue {
            stage: Arc::clone(&stage.name),
            capacity,
            full,
            empty,
        })
    }
}

fn percent(share: f64) -> f64 {
    (share * 100.0).round()
}

/// A share of the work: `all`, or a percentage.
fn share_text(part: f64) -> String {
    match percent(part) {
        100.0 => "all".to_owned(),
        percent => format!("{percent} %"),
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The thing that an async stage waits for.
fn medium_name(medium: Medium) -> &'static str {
    match medium {
        Medium::Network => "network",
        Medium::Disk => "disk",
        Medium::Unknown => "store",
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Unknown => {
                write!(f, "The pipeline has not run long enough to find the bottleneck.")
            }
            Limit::AllFailed { stage, items } => write!(
                f,
                "Nothing was delivered: {items} of {items} item{} failed in stage {stage:?}.",
                plural(usize::try_from(*items).unwrap_or(usize::MAX)),
            ),
            Limit::Consumer { readiness } => write!(
                f,
                "The consumer is the bottleneck: a batch was ready {} % of the time.",
                percent(*readiness)
            ),
            Limit::Cpu { threads, cpus, stage, part, .. } if threads > cpus => write!(
                f,
                "The CPU is the bottleneck: {threads} worker threads share {cpus} CPU{}, and {} of \
                 the work is in stage {stage:?}.",
                plural(*cpus),
                share_text(*part),
            ),
            Limit::Cpu { busy, cpus, stage, part, .. } => write!(
                f,
                "The CPU is the bottleneck: the worker threads use {} % of {cpus} CPU{}, and {} of \
                 the work is in stage {stage:?}.",
                percent(*busy),
                plural(*cpus),
                share_text(*part),
            ),
            Limit::OtherPrograms { got, threads, cpus, stage, part } => write!(
                f,
                "Other programs, or other threads, are the bottleneck: {threads} worker thread{} \
                 got {got:.1} of {cpus} CPU{}, and {} of the work is in stage {stage:?}.",
                plural(*threads),
                plural(*cpus),
                share_text(*part),
            ),
            Limit::Threads { busy, computing, threads, cpus, stage, part } => {
                let activity = match *computing >= COMPUTES {
                    true => String::new(),
                    false => {
                        let use_it = if *threads == 1 { "uses" } else { "use" };
                        format!(" but {use_it} a CPU for {} % of that,", percent(*computing))
                    }
                };
                write!(
                    f,
                    "The worker threads are the bottleneck: {threads} thread{} on {cpus} CPU{} {} \
                     busy {} % of the time,{activity} and {} of the work is in stage {stage:?}.",
                    plural(*threads),
                    plural(*cpus),
                    if *threads == 1 { "is" } else { "are" },
                    percent(*busy),
                    share_text(*part),
                )
            }
            Limit::Gil { contended, used, threads, stage, part } => {
                let evidence = match *contended > GIL_CONTENDED || *used == 0.0 {
                    true => format!("{} % of the requests for the GIL waited", percent(*contended)),
                    false => format!("use {used:.1} CPUs together"),
                };
                write!(
                    f,
                    "The GIL is the bottleneck: the {threads} worker threads run Python code one \
                     at a time, {evidence}, and {} of the work is in stage {stage:?}.",
                    share_text(*part),
                )
            }
            Limit::EventLoop { stage, busy } => write!(
                f,
                "The event loop is the bottleneck: its thread uses a CPU {} % of the time, because \
                 async functions compute, most of all in stage {stage:?}; let worker threads or \
                 processes compute.",
                percent(*busy),
            ),
            Limit::Source { stage, busy } => write!(
                f,
                "The source is the bottleneck: {stage:?} takes {} % of the time to produce its \
                 items, one after another.",
                percent(*busy),
            ),
            Limit::Memory { budget, used, waited } => write!(
                f,
                "The memory budget is the bottleneck: {} % of its {} were in use, and stages \
                 waited for memory {} % of the time.",
                percent(*used),
                ByteSize(*budget),
                percent(*waited)
            ),
            Limit::Latency { stage, medium, concurrency, busy, latency } => {
                match medium {
                    Medium::Unknown => write!(f, "Stage {stage:?} is the bottleneck")?,
                    medium => write!(f, "The {} latency is the bottleneck", medium_name(*medium))?,
                }
                write!(
                    f,
                    ": {} % of the {concurrency} item{} that may be in flight in stage {stage:?} \
                     wait, each for {latency:.1?} at p50, while CPUs are free.",
                    percent(*busy),
                    plural(*concurrency),
                )
            }
            Limit::Bandwidth { stage, medium, bytes_per_s, concurrency } => write!(
                f,
                "The {} bandwidth is the bottleneck: stage {stage:?} reads {}/s, and did not \
                 become faster with up to {concurrency} items in flight.",
                medium_name(*medium),
                ByteSize(*bytes_per_s as usize),
            ),
            Limit::Requests { stage, medium, requests_per_s, concurrency } => write!(
                f,
                "The requests per second (IOPS) of the {} are the bottleneck: stage {stage:?} \
                 makes {} requests/s, and did not become faster with up to {concurrency} in \
                 flight.",
                medium_name(*medium),
                rounded(*requests_per_s),
            ),
            Limit::Concurrency { stage, concurrency, busy } => write!(
                f,
                "Stage {stage:?} is the bottleneck: with a concurrency of {concurrency}, it is \
                 busy {} % of the time while CPUs are free.",
                percent(*busy)
            ),
            Limit::Queue { stage, capacity, full, empty } => write!(
                f,
                "The queue after stage {stage:?} is the bottleneck: its capacity of {capacity} is in \
                 use {} % of the time, and the next stage found no item {} % of the time.",
                percent(*full),
                percent(*empty),
            ),
            Limit::Order { stage, stalled, usual, slow } => write!(
                f,
                "The input order is the bottleneck: finished items of stage {stage:?} wait for an \
                 earlier one {} % of the time, because items take {usual:.1?} at p50 and \
                 {slow:.1?} at p99.",
                percent(*stalled),
            ),
            Limit::Balance { stage, busy } => write!(
                f,
                "Nothing is saturated; the busiest stage, {stage:?}, uses {} % of its \
                 concurrency. Start-up, waits between stages, or other programs take the \
                 remaining time.",
                percent(*busy)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::budget::MemoryStatistics;
    use crate::observe::setting_names::SettingNames;
    use crate::observe::statistics::{
        ConsumerStatistics, GilStatistics, InFlightRate, QueueStatistics, WorkerTimes,
    };

    fn statistics(stages: &[(&str, StageKind, usize, f64)], empty_seconds: f64) -> Statistics {
        let stage = |&(name, kind, concurrency, busy): &(&str, StageKind, usize, f64)| {
            let mut stage = StageStatistics::new(name, kind, concurrency);
            (stage.items, stage.items_out) = (100, 100);
            stage.busy = Duration::from_secs_f64(busy);
            stage
        };
        Statistics {
            elapsed: Duration::from_secs(10),
            threads: 2,
            cpus: 2,
            stages: stages.iter().map(stage).collect(),
            queues: vec![
                QueueStatistics {
                    items: 100,
                    get_wait: Duration::from_secs_f64(empty_seconds),
                    capacity: 64,
                    ..Default::default()
                };
                stages.len()
            ],
            consumer: ConsumerStatistics {
                items: 100,
                waited: Duration::from_secs_f64(empty_seconds),
                ..Default::default()
            },
            ..Default::default()
        }
    }

    #[test]
    fn saturated_resources_are_reported() {
        let busy_cpu = [("fetch", StageKind::Async, 8, 20.0), ("decode", StageKind::Fill, 2, 19.5)];
        assert_eq!(
            statistics(&busy_cpu, 9.0).limit(),
            Limit::Cpu { busy: 0.975, threads: 2, cpus: 2, stage: "decode".into(), part: 1.0 }
        );
        assert!(matches!(statistics(&busy_cpu, 0.5).limit(), Limit::Consumer { .. }));
        let slow_store =
            [("fetch", StageKind::Async, 8, 78.0), ("decode", StageKind::Fill, 2, 4.0)];
        let limit = statistics(&slow_store, 9.0).limit();
        assert!(matches!(&limit, Limit::Latency { stage, .. } if &**stage == "fetch"));
        assert!(limit.to_string().contains("98 % of the 8 items"), "{limit}");
        let idle = [("fetch", StageKind::Async, 8, 1.0), ("decode", StageKind::Fill, 2, 4.0)];
        assert!(matches!(statistics(&idle, 9.0).limit(), Limit::Balance { .. }));
    }

    #[test]
    fn a_slow_source_is_the_bottleneck() {
        let stages = [("keys", StageKind::Source, 1, 9.0), ("decode", StageKind::Fill, 2, 4.0)];
        let limit = statistics(&stages, 9.0).limit();
        assert_eq!(limit, Limit::Source { stage: "keys".into(), busy: 0.9 });
        let text = limit.to_string();
        assert!(text.contains("\"keys\" takes 90 % of the time"), "{text}");
        // A source that is fast enough is not named.
        let stages = [("keys", StageKind::Source, 1, 2.0), ("fetch", StageKind::Async, 8, 78.0)];
        assert!(matches!(statistics(&stages, 9.0).limit(), Limit::Latency { .. }));
    }

    #[test]
    fn more_threads_are_advised_if_cpus_are_free() {
        let mut single = statistics(&[("decode", StageKind::Fill, 1, 9.9)], 9.0);
        single.threads = 1;
        let diagnosis = single.diagnose();
        assert!(matches!(diagnosis.limit, Limit::Threads { threads: 1, cpus: 2, .. }));
        let text = diagnosis.to_string();
        assert!(text.contains("2 instead of 1 threads would give about "), "{text}");
        let gain = diagnosis.helps[0].prediction.gain;
        assert!((0.9..1.01).contains(&gain), "{text}");
        single.cpus = 1;
        let diagnosis = single.diagnose();
        assert!(matches!(diagnosis.limit, Limit::Cpu { threads: 1, cpus: 1, .. }), "{diagnosis}");
        let named = |it: &Effect| it.description == "2 instead of 1 CPUs";
        assert!(diagnosis.helps.iter().any(named), "{diagnosis:?}");
        assert!(diagnosis.to_string().contains("More threads would not help."), "{diagnosis}");
    }

    #[test]
    fn cpu_is_the_bottleneck_with_more_threads_than_cpus() {
        // 16 threads on 2 CPUs are busy or preempted half of the time.
        let mut crowded = statistics(&[("decode", StageKind::Fill, 16, 85.0)], 9.0);
        crowded.threads = 16;
        let limit = crowded.limit();
        assert!(matches!(limit, Limit::Cpu { busy: 1.0, threads: 16, cpus: 2, .. }), "{limit}");
        assert!(limit.to_string().contains("16 worker threads share 2 CPUs"), "{limit}");
        crowded.cpus = 16;
        assert!(matches!(crowded.limit(), Limit::Balance { .. }), "{}", crowded.limit());
    }

    #[test]
    fn threads_of_a_stage_count_as_worker_threads() {
        let mut own = statistics(&[("decode", StageKind::Cpu, 8, 60.0)], 9.0);
        own.threads = 1;
        own.stages[0].dedicated = true;
        let limit = own.limit();
        assert!(matches!(limit, Limit::Cpu { busy: 1.0, threads: 8, cpus: 2, .. }), "{limit}");
        assert!(limit.to_string().contains("8 worker threads share 2 CPUs"), "{limit}");
        // Two CPUs are half used by two threads.
        let mut idle = statistics(&[("decode", StageKind::Cpu, 2, 9.9)], 9.0);
        idle.stages[0].dedicated = true;
        idle.threads = 1;
        assert!(matches!(idle.limit(), Limit::Balance { .. }), "{}", idle.limit());
    }

    #[test]
    fn memory_is_the_bottleneck_if_stages_wait_for_it() {
        let stages = [("fetch", StageKind::Async, 8, 78.0), ("decode", StageKind::Fill, 2, 4.0)];
        let of = |peak_bytes, waited| {
            let mut statistics = statistics(&stages, 9.0);
            let waited = Duration::from_secs(waited);
            statistics.memory =
                MemoryStatistics { limit_bytes: 1000, peak_bytes, waited, ..Default::default() };
            statistics.limit()
        };
        let limit = of(980, 6);
        assert_eq!(limit, Limit::Memory { budget: 1000, used: 0.98, waited: 0.6 });
        let text = limit.to_string();
        assert!(text.contains("98 % of its 1000 bytes") && text.contains("60 %"), "{text}");
        assert!(matches!(of(940, 6), Limit::Latency { .. }), "memory was available");
        assert!(matches!(of(1000, 4), Limit::Latency { .. }), "waits were short");
    }

    #[test]
    fn memory_is_not_the_limit_if_the_consumer_is_slow_or_the_cpu_is_busy() {
        let memory = MemoryStatistics {
            limit_bytes: 1000,
            peak_bytes: 1000,
            waited: Duration::from_secs(10),
            ..Default::default()
        };
        let mut slow_consumer = statistics(&[("decode", StageKind::Fill, 2, 4.0)], 0.1);
        slow_consumer.memory = memory;
        assert!(matches!(slow_consumer.limit(), Limit::Consumer { .. }));
        let mut busy = statistics(&[("decode", StageKind::Fill, 2, 19.5)], 9.0);
        busy.memory = memory;
        assert!(matches!(busy.limit(), Limit::Cpu { .. }));
    }

    #[test]
    fn consumer_is_no_bottleneck_just_after_the_start() {
        let decode = [("decode", StageKind::Fill, 2, 19.5)];
        let mut statistics = statistics(&decode, 9.95);
        statistics.queues[0].first_wait = Duration::from_millis(9_950);
        assert_eq!(statistics.data_readiness(), 1.0);
        assert!(matches!(statistics.limit(), Limit::Cpu { .. }), "{}", statistics.limit());
        // After twice the time, the consumer is the bottleneck.
        statistics.elapsed = Duration::from_secs(20);
        assert!(matches!(statistics.limit(), Limit::Consumer { readiness } if readiness == 1.0));
        statistics.consumer.items = 0;
        assert_eq!(statistics.limit(), Limit::Unknown);
    }

    #[test]
    fn a_stage_in_which_all_items_failed_is_reported() {
        let stages = [("fetch", StageKind::Async, 8, 3.0), ("decode", StageKind::Fill, 2, 0.2)];
        let mut failed = statistics(&stages, 9.0);
        failed.consumer.items = 0;
        (failed.stages[1].failures, failed.stages[1].items_out) = (99, 0);
        // One item may be in flight to the consumer.
        assert_eq!(failed.limit(), Limit::Unknown);
        failed.stages[1].failures = 100;
        assert_eq!(failed.limit(), Limit::AllFailed { stage: "decode".into(), items: 100 });
        let text = failed.limit().to_string();
        assert_eq!(text, "Nothing was delivered: 100 of 100 items failed in stage \"decode\".");
        failed.consumer.items = 1;
        assert!(!matches!(failed.limit(), Limit::AllFailed { .. }));
    }

    #[test]
    fn cpus_that_other_programs_use_are_reported() {
        let mut shared = statistics(&[("decode", StageKind::Fill, 2, 19.5)], 9.0);
        let times = |on_cpu, waited| {
            let seconds = Duration::from_secs_f64;
            Some(WorkerTimes { on_cpu: seconds(on_cpu), waited: seconds(waited) })
        };
        shared.stages[0].cpu_share = Some(0.5);
        shared.workers = times(9.7, 9.7);
        let diagnosis = shared.diagnose();
        assert!(matches!(diagnosis.limit, Limit::OtherPrograms { cpus: 2, .. }), "{diagnosis}");
        let text = diagnosis.to_string();
        assert!(text.contains("2 worker threads got 1.0 of 2 CPUs"), "{text}");
        let frees = |it: &Effect| it.change == SettingChange::Cpus { cpus: 2.0 };
        assert!(diagnosis.helps.iter().any(frees), "{text}");
        shared.stages[0].cpu_share = Some(0.99);
        shared.workers = times(19.3, 0.2);
        assert!(matches!(shared.limit(), Limit::Cpu { .. }), "{}", shared.limit());
    }

    #[test]
    fn threads_that_wait_are_not_the_cpu() {
        let mut waiting = statistics(&[("read", StageKind::Cpu, 2, 19.5)], 9.0);
        waiting.stages[0].cpu_share = Some(0.1);
        let text = waiting.diagnose().to_string();
        assert!(text.contains("but use a CPU for 10 % of that"), "{text}");
        assert!(text.contains("instead of 2 threads would give"), "{text}");
    }

    #[test]
    fn the_gil_is_the_bottleneck_if_its_requests_wait() {
        let mut python = statistics(&[("tokenize", StageKind::Cpu, 2, 19.5)], 9.0);
        python.stages[0].holds_gil = true;
        python.stages[0].cpu_share = Some(0.5);
        let contended = |contended| GilStatistics { contended, waited: Duration::from_millis(200) };
        python.gil = Some(contended(0.1));
        assert!(!matches!(python.limit(), Limit::Gil { .. }), "{}", python.limit());
        python.gil = Some(contended(0.9));
        let diagnosis = python.diagnose();
        assert!(matches!(diagnosis.limit, Limit::Gil { .. }), "{diagnosis}");
        assert!(diagnosis.to_string().contains("90 % of the requests"), "{diagnosis}");
        assert_eq!(diagnosis.helps[0].change, SettingChange::WithoutGil, "{diagnosis}");
    }

    #[test]
    fn for_the_gil_only_processes_are_recommended() {
        let mut python = statistics(&[("tokenize", StageKind::Cpu, 4, 38.0)], 9.0);
        python.threads = 4;
        python.stages[0].holds_gil = true;
        // Other programs use one of two CPUs, so that processes would gain little now.
        for (cpu_share, waited) in [(0.25, 0.1), (0.25, 9.0)] {
            python.stages[0].cpu_share = Some(cpu_share);
            let seconds = Duration::from_secs_f64;
            python.workers = Some(WorkerTimes { on_cpu: seconds(9.5), waited: seconds(waited) });
            python.gil = Some(GilStatistics { contended: 0.9, waited: seconds(25.0) });
            python.setting_names = SettingNames::new(|change, _| match change {
                SettingChange::WithoutGil => Some("processes=4".to_owned()),
                SettingChange::Threads { .. } => Some("threads".to_owned()),
                _ => None,
            });
            let diagnosis = python.diagnose();
            assert!(matches!(diagnosis.limit, Limit::Gil { .. }), "{diagnosis}");
            assert_eq!(diagnosis.helps[0].change, SettingChange::WithoutGil, "{diagnosis}");
            let text = diagnosis.to_string();
            assert!(text.contains("Python functions in processes (processes=4) would"), "{text}");
            assert!(!text.contains("threads would give"), "{text}");
        }
    }

    #[test]
    fn the_gil_is_the_bottleneck_of_long_calls_that_lose_it() {
        // Two threads share the GIL within calls, and seldom request it.
        let mut python = statistics(&[("map", StageKind::Cpu, 2, 19.0)], 9.0);
        python.stages[0].holds_gil = true;
        let set = |python: &mut Statistics, cpu_share, contended, waited| {
            python.stages[0].cpu_share = Some(cpu_share);
            let waited = Duration::from_secs_f64(waited);
            python.gil = Some(GilStatistics { contended, waited });
            python.limit()
        };
        let limit = set(&mut python, 0.47, 0.06, 1.0);
        assert!(matches!(limit, Limit::Gil { .. }), "{limit}");
        // Functions that release the GIL do not wait for it, or use more than one CPU.
        let limit = set(&mut python, 0.47, 0.06, 0.1);
        assert!(!matches!(limit, Limit::Gil { .. }), "{limit}");
        let limit = set(&mut python, 0.9, 0.06, 1.0);
        assert!(!matches!(limit, Limit::Gil { .. }), "{limit}");
        // A consumer that waits for the GIL within its step finds a batch ready afterwards.
        let mut ready = statistics(&[("map", StageKind::Cpu, 2, 19.0)], 0.5);
        ready.stages[0].holds_gil = true;
        let limit = set(&mut ready, 0.47, 0.06, 1.0);
        assert!(matches!(limit, Limit::Gil { .. }), "{limit}");
        let limit = set(&mut ready, 0.3, 0.06, 1.0);
        assert!(matches!(limit, Limit::Consumer { .. }), "{limit}");
        // One worker thread cannot wait for another.
        ready.threads = 1;
        let limit = set(&mut ready, 0.47, 0.06, 1.0);
        assert!(matches!(limit, Limit::Consumer { .. }), "{limit}");
    }

    #[test]
    fn a_window_that_was_full_while_it_grew_is_the_bottleneck() {
        let stages = [("fetch", StageKind::Async, 180, 300.0), ("decode", StageKind::Fill, 2, 8.0)];
        let mut growing = statistics(&stages, 9.0);
        assert!(matches!(growing.limit(), Limit::Balance { .. }), "{}", growing.limit());
        let rate = |in_flight, items| InFlightRate::new(in_flight, items, Duration::from_secs(3));
        growing.stages[0].rates = vec![rate(16.0, 600), rate(80.0, 2900)];
        let limit = growing.limit();
        assert!(matches!(limit, Limit::Latency { .. }), "{limit}");
    }

    #[test]
    fn a_saturated_store_is_named_although_its_window_is_not_full() {
        // A quarter of the places wait for memory or for the order of items.
        let stages = [("fetch", StageKind::Async, 16, 120.0), ("decode", StageKind::Fill, 2, 4.0)];
        let mut bound = statistics(&stages, 9.0);
        let rate = |in_flight, items| InFlightRate::new(in_flight, items, Duration::from_secs(2));
        bound.stages[0].bytes = 100 << 20;
        bound.stages[0].medium = Medium::Network;
        bound.stages[0].rates = vec![rate(9.0, 34), rate(13.0, 33), rate(16.0, 36)];
        let diagnosis = bound.diagnose();
        assert!(diagnosis.to_string().starts_with("The network bandwidth"), "{diagnosis}");
        let more = |it: &&Effect| !it.change.is_work();
        assert!(diagnosis.helps.iter().find(more).is_none(), "{diagnosis}");
    }

    #[test]
    fn changes_without_a_setting_are_not_recommended() {
        let stages = [("fetch", StageKind::Async, 8, 78.0), ("decode", StageKind::Fill, 2, 4.0)];
        let mut slow_store = statistics(&stages, 9.0);
        let text = slow_store.diagnose().to_string();
        assert!(text.contains("items in flight in \"fetch\" would give"), "{text}");
        let named = |name: Option<&'static str>| {
            SettingNames::new(move |change, stages| {
                assert_eq!(stages.len(), 2);
                let is_fetch = change.stage().is_some_and(|stage| &**stage == "fetch");
                name.filter(|_| is_fetch).map(str::to_owned)
            })
        };
        slow_store.setting_names = named(Some("--tune"));
        let diagnosis = slow_store.diagnose();
        let text = diagnosis.to_string();
        assert!(text.contains("items in flight in \"fetch\" (--tune) would give"), "{text}");
        assert_eq!(diagnosis.helps[0].setting, "--tune");
        slow_store.setting_names = named(None);
        let diagnosis = slow_store.diagnose();
        assert!(diagnosis.helps.iter().all(|it| it.change.is_work()), "{diagnosis:?}");
        assert!(diagnosis.does_not_help.is_empty(), "{diagnosis:?}");
    }

    #[test]
    fn a_store_that_does_not_become_faster_is_saturated() {
        let stages = [("fetch", StageKind::Async, 32, 315.0), ("decode", StageKind::Fill, 2, 4.0)];
        let mut bound = statistics(&stages, 9.0);
        let rate = |in_flight, items| InFlightRate::new(in_flight, items, Duration::from_secs(1));
        bound.stages[0].rates = vec![rate(16.0, 100), rate(32.0, 190)];
        assert!(matches!(bound.limit(), Limit::Latency { .. }), "{}", bound.limit());
        bound.stages[0].rates = vec![rate(16.0, 100), rate(32.0, 104)];
        let limit = bound.limit();
        assert!(matches!(limit, Limit::Requests { requests_per_s: 104.0, .. }), "{limit}");
        bound.stages[0].bytes = 100 << 20;
        bound.stages[0].medium = Medium::Network;
        let limit = bound.limit();
        assert!(limit.to_string().starts_with("The network bandwidth"), "{limit}");
        let diagnosis = bound.diagnose();
        assert!(diagnosis.to_string().contains("would not help"), "{diagnosis}");
        let window = |it: &&Effect| matches!(it.change, SettingChange::Concurrency { .. });
        assert!(diagnosis.helps.iter().find(window).is_none(), "{diagnosis}");
    }

    #[test]
    fn less_work_is_no_advice_for_a_stage_that_waits() {
        let stages = [("fetch", StageKind::Async, 8, 78.0), ("decode", StageKind::Fill, 2, 4.0)];
        let diagnosis = statistics(&stages, 9.0).diagnose();
        assert!(matches!(diagnosis.limit, Limit::Latency { .. }), "{diagnosis}");
        assert!(!diagnosis.helps.is_empty(), "{diagnosis}");
        let of_work = |it: &Effect| matches!(it.change, SettingChange::Cost { .. });
        assert!(!diagnosis.helps.iter().any(of_work), "{diagnosis}");
    }

    #[test]
    fn a_diagnosis_has_at_most_three_sentences() {
        let stages = [("fetch", StageKind::Async, 8, 78.0), ("decode", StageKind::Fill, 2, 4.0)];
        for diagnosis in
            [statistics(&stages, 9.0), statistics(&stages, 0.5)].map(|it| it.diagnose())
        {
            let text = diagnosis.to_string();
            assert!((1..=3).contains(&text.matches(". ").count().saturating_add(1)), "{text}");
            assert!(text.ends_with('.'), "{text}");
        }
    }

    #[test]
    fn effects_are_not_predicted_from_few_items() {
        let stages = [("fetch", StageKind::Async, 8, 78.0), ("decode", StageKind::Fill, 2, 4.0)];
        let mut started = statistics(&stages, 9.0);
        for (items, words) in
            [(1, "Only 1 item was delivered,"), (3, "Only 3 items were delivered,")]
        {
            started.consumer.items = items;
            // A batch has four items.
            started.stages[0].items_out = 4 * items;
            let diagnosis = started.diagnose();
            assert!(
                diagnosis.helps.is_empty() && diagnosis.does_not_help.is_empty(),
                "{diagnosis:?}"
            );
            let text = diagnosis.to_string();
            assert!(text.contains(words) && !text.contains("would"), "{text}");
            assert_eq!(diagnosis.source_items, 4.0, "known from the first batch on");
        }
        started.consumer.items = 4;
        assert!(!started.diagnose().helps.is_empty());
        started.consumer.items = 0;
        assert!(!started.diagnose().to_string().contains("too few"));
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_diagnosis_is_data() {
        let stages = [("fetch", StageKind::Async, 8, 78.0), ("decode", StageKind::Fill, 2, 4.0)];
        let json = serde_json::to_value(statistics(&stages, 9.0).diagnose()).unwrap();
        assert_eq!(
            (&json["limit"]["kind"], &json["limit"]["stage"]),
            (&"latency".into(), &"fetch".into())
        );
        let best = &json["helps"][0];
        assert_eq!(best["change"]["setting"], "concurrency");
        assert!(best["gain"].as_f64().unwrap() > 0.5 && best["items_per_s"].is_f64(), "{json}");
        assert!(best["limited_by"]["kind"].is_string(), "{json}");
    }

    #[test]
    fn an_interval_has_a_limit() {
        let whole = statistics(&[("decode", StageKind::Fill, 2, 19.5)], 9.0);
        let interval = Interval {
            length: whole.elapsed,
            threads: whole.threads,
            cpus: whole.cpus,
            stages: whole.stages.clone(),
            queues: whole.queues.clone(),
            consumer: whole.consumer,
            ..Default::default()
        };
        assert_eq!(interval.limit(), whole.limit());
        assert!(matches!(interval.limit(), Limit::Cpu { .. }));
    }
}
