//! [`PipelineModel`]: predicts the throughput of a pipeline after a change.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::memory::budget::MemoryStatistics;
use crate::observe::histogram::Quantiles;
use crate::observe::interval::Interval;
use crate::observe::queueing::{Station, share_in_order, throughput};
use crate::observe::setting_names::SettingNames;
use crate::observe::statistics::{
    CacheUse, ConsumerStatistics, GilStatistics, InFlightRate, QueueStatistics, StageKind,
    StageStatistics, Statistics, WorkerTimes,
};

/// A change of a pipeline's settings, or of the work that the pipeline does.
///
/// [`PipelineModel::describe`] writes a change as a phrase.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case", tag = "setting"))]
pub enum SettingChange {
    /// The number of threads of the shared worker pool. Stages whose concurrency is the present
    /// number of threads, as by default, follow.
    Threads {
        /// The new number.
        threads: usize,
    },
    /// The number of CPUs that the pipeline gets. Other programs use none of them. If there are as
    /// many threads as CPUs, as by default, the number of threads follows.
    Cpus {
        /// The new number; part of a CPU is allowed.
        cpus: f64,
    },
    /// The concurrency of a stage. For an async stage, this is the in-flight window.
    Concurrency {
        /// The stage.
        stage: Arc<str>,
        /// The new number of items.
        items: usize,
    },
    /// The capacity of the queue after a stage.
    Queue {
        /// The stage.
        stage: Arc<str>,
        /// The new number of items.
        items: usize,
    },
    /// The work for each item of a stage: its processing time, and its bytes.
    Cost {
        /// The stage.
        stage: Arc<str>,
        /// Factor of the present work.
        factor: f64,
    },
    /// The share of the items that a stage finds in its cache.
    CacheShare {
        /// The stage.
        stage: Arc<str>,
        /// The new share, in 0..=1.
        share: f64,
    },
    /// The stage emits outputs in order of completion instead of input order.
    CompletionOrder {
        /// The stage.
        stage: Arc<str>,
    },
    /// The memory budget.
    Memory {
        /// The new budget in bytes.
        bytes: usize,
    },
    /// Python functions run in parallel: in processes, or in a free-threaded Python.
    WithoutGil,
    /// The time in which the consumer uses an item, usually a training step.
    StepTime {
        /// The new time.
        #[cfg_attr(feature = "serde", serde(rename = "seconds", with = "crate::seconds"))]
        time: Duration,
    },
}

impl SettingChange {
    /// The stage that changes; `None` if the change concerns the whole pipeline.
    pub fn stage(&self) -> Option<&Arc<str>> {
        match self {
            SettingChange::Concurrency { stage, .. }
            | SettingChange::Queue { stage, .. }
            | SettingChange::Cost { stage, .. }
            | SettingChange::CacheShare { stage, .. }
            | SettingChange::CompletionOrder { stage } => Some(stage),
            _ => None,
        }
    }
}

/// The resource that limits the throughput in the model.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case", tag = "kind", content = "stage"))]
pub enum Resource {
    /// The time in which the consumer uses an item.
    Consumer,
    /// A source, which produces one item at a time.
    Source(Arc<str>),
    /// The concurrency of a stage: the in-flight window of an async stage.
    Concurrency(Arc<str>),
    /// The highest rate of the store or disk of an async stage: bandwidth, or requests per second.
    Medium(Arc<str>),
    /// The CPUs.
    Cpus,
    /// The number of worker threads.
    Threads,
    /// Python's GIL.
    Gil,
    /// The thread of the event loop, which runs async functions.
    EventLoop,
    /// The memory budget.
    Memory,
    /// The capacity of the queue after a stage.
    Queue(Arc<str>),
    /// The input order, which a stage restores.
    Order(Arc<str>),
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Consumer => write!(f, "the consumer"),
            Resource::Source(stage) => write!(f, "the source {stage:?}"),
            Resource::Concurrency(stage) => write!(f, "the concurrency of stage {stage:?}"),
            Resource::Medium(stage) => write!(f, "the store of stage {stage:?}"),
            Resource::Cpus => write!(f, "the CPUs"),
            Resource::Threads => write!(f, "the worker threads"),
            Resource::Gil => write!(f, "the GIL"),
            Resource::EventLoop => write!(f, "the event loop"),
            Resource::Memory => write!(f, "the memory budget"),
            Resource::Queue(stage) => write!(f, "the queue after stage {stage:?}"),
            Resource::Order(stage) => write!(f, "the input order of stage {stage:?}"),
        }
    }
}

/// What a [`PipelineModel`] expects of a pipeline.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Prediction {
    /// Number of items delivered to the consumer per second.
    #[cfg_attr(feature = "serde", serde(rename = "items_per_s"))]
    pub throughput: f64,
    /// The change of the throughput, relative to the measured throughput: 0.5 means half as much
    /// again.
    pub gain: f64,
    /// The mean time that the consumer waits for an item.
    #[cfg_attr(feature = "serde", serde(rename = "consumer_wait_s", with = "crate::seconds"))]
    pub consumer_wait: Duration,
    /// What limits the throughput then.
    pub limited_by: Resource,
}

/// A queueing model of a pipeline, made from its statistics.
///
/// The model is a closed queueing network, solved by mean-value analysis. Its stations are the
/// source, the async stages (as many servers as items in flight), the worker threads and the CPUs
/// (with the sum of the work of all CPU stages), the GIL (one server), and the consumer. As many
/// items circulate as the queues and the concurrency of the stages admit. Each queue is also
/// solved alone, with the slowest station on either side. Three things reduce capacities: the
/// highest rate of a store, the memory budget, and stages that restore the input order.
///
/// All throughputs of the model are multiplied by one factor, so that the throughput of the present
/// configuration is the measured throughput.
///
/// ```
/// use spdl_core::PipelineBuilder;
/// use spdl_core::observe::{PipelineModel, SettingChange};
/// # use std::time::Duration;
/// let sleep = |n: u32| { std::thread::sleep(Duration::from_millis(1)); Ok(n) };
/// let mut pipeline = PipelineBuilder::from_iter(0..60).map("wait", sleep).threads(1).build()?;
/// let monitor = pipeline.monitor();
/// assert_eq!(pipeline.by_ref().count(), 60);
/// if let Some(model) = PipelineModel::from_statistics(&monitor.statistics()) {
///     let two = SettingChange::Threads { threads: 2 };
///     println!("with two threads: {:.0} items/s", model.predict(&[two]).throughput);
/// }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PipelineModel {
    /// Delivered items per second.
    measured: f64,
    /// The throughput of the model in the present configuration.
    modelled: f64,
    /// The throughput of the slowest resource in the present configuration.
    bound: f64,
    present: Configuration,
}

/// The settings and the work of a pipeline.
#[derive(Clone, Debug)]
struct Configuration {
    threads: f64,
    /// CPUs that the process may use.
    machine: usize,
    /// CPUs that the pipeline gets.
    cpus: f64,
    has_gil: bool,
    /// CPU time of the event loop for one item of the consumer.
    event_loop: f64,
    /// The consumer's time for one item.
    step: f64,
    /// Present if the memory budget limits the items in flight.
    memory: Option<ModelMemory>,
    stages: Vec<ModelStage>,
}

/// A memory budget that limits the items in flight.
#[derive(Clone, Copy, Debug)]
struct ModelMemory {
    budget: f64,
    /// The bytes of the items in flight of async stages.
    in_flight: f64,
    /// The number of items in flight that fit, relative to the present number.
    factor: f64,
}

/// One stage of the model. Times are in seconds, rates per second.
#[derive(Clone, Debug)]
struct ModelStage {
    name: Arc<str>,
    kind: StageKind,
    dedicated: bool,
    ordered: bool,
    holds_gil: bool,
    /// Inputs and outputs of the stage for one item of the consumer.
    inputs: f64,
    outputs: f64,
    /// CPU time and waiting time for one input.
    cpu: f64,
    wait: f64,
    concurrency: usize,
    /// Capacity of the queue after the stage.
    places: usize,
    /// The highest rate of the store, in inputs that the cache lacks.
    store_rate: f64,
    /// Mean number of items in flight, if the memory budget limits them.
    in_flight: Option<f64>,
    cache: Option<CacheUse>,
    /// Representative service times, relative to the mean.
    times: Vec<f64>,
    /// Squared coefficient of variation of the service time.
    variation: f64,
}

/// The measurements of a run or of an interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measurements<'a> {
    pub(super) elapsed: Duration,
    pub(super) threads: usize,
    pub(super) cpus: usize,
    pub(super) workers: Option<WorkerTimes>,
    pub(super) gil: Option<GilStatistics>,
    pub(super) event_loop: Option<WorkerTimes>,
    pub(super) stages: &'a [StageStatistics],
    pub(super) queues: &'a [QueueStatistics],
    pub(super) consumer: &'a ConsumerStatistics,
    pub(super) memory: MemoryStatistics,
    pub(super) setting_names: &'a SettingNames,
}

impl<'a> From<&'a Statistics> for Measurements<'a> {
    fn from(from: &'a Statistics) -> Self {
        Measurements {
            elapsed: from.elapsed,
            threads: from.threads,
            cpus: from.cpus,
            workers: from.workers,
            gil: from.gil,
            event_loop: from.event_loop,
            stages: &from.stages,
            queues: &from.queues,
            consumer: &from.consumer,
            memory: from.memory,
            setting_names: &from.setting_names,
        }
    }
}

impl<'a> From<&'a Interval> for Measurements<'a> {
    fn from(from: &'a Interval) -> Self {
        Measurements {
            elapsed: from.length,
            threads: from.threads,
            cpus: from.cpus,
            workers: from.workers,
            gil: from.gil,
            event_loop: from.event_loop,
            stages: &from.stages,
            queues: &from.queues,
            consumer: &from.consumer,
            memory: from.memory,
            setting_names: &from.setting_names,
        }
    }
}

/// Memory limits the items in flight if stages wait for memory for more than this share of the
/// time.
pub(super) const MEMORY_WAITED: f64 = 0.5;
/// Worker threads lack CPUs if they wait for a CPU for more than this share of their CPU time.
const LACKS_CPUS: f64 = 0.1;
/// The rate of a store is saturated if more items in flight gain less than this share of what they
/// would gain at constant latency.
const SATURATED_GAIN: f64 = 0.4;
/// A store with requests of at least this many bytes is limited by its bandwidth, and otherwise by
/// the number of requests per second.
pub(super) const LARGE_REQUEST: f64 = (256 << 10) as f64;
/// Rates of fewer items are combined.
const MIN_ITEMS: u64 = 16;
/// The squared coefficient of variation that is assumed for the consumer.
const STEP_VARIATION: f64 = 0.05;
/// A queue limits the throughput if the throughput is below this share of that of the slowest
/// station.
const QUEUE_LIMITS: f64 = 0.9;

impl Measurements<'_> {
    /// The measured time after the first item was ready.
    pub(super) fn time(&self) -> f64 {
        let first = self.queues.last().map_or(Duration::ZERO, |queue| queue.first_wait);
        self.elapsed.saturating_sub(first).as_secs_f64()
    }

    pub(super) fn throughput(&self) -> f64 {
        let time = self.time();
        if time > 0.0 { self.consumer.items as f64 / time } else { 0.0 }
    }

    /// The consumer's mean time for one item.
    pub(super) fn step(&self) -> f64 {
        let used = self.elapsed.saturating_sub(self.consumer.waited).as_secs_f64();
        used / self.consumer.items.max(1) as f64
    }

    /// The number of CPUs that the worker threads got, if they wanted more; otherwise all CPUs.
    pub(super) fn cpus_got(&self) -> f64 {
        let cpus = self.cpus.max(1) as f64;
        let elapsed = self.elapsed.as_secs_f64();
        match self.workers {
            Some(WorkerTimes { on_cpu, waited })
                if elapsed > 0.0 && waited.as_secs_f64() > LACKS_CPUS * on_cpu.as_secs_f64() =>
            {
                let got = on_cpu.as_secs_f64() / elapsed;
                let wanted = got + waited.as_secs_f64() / elapsed;
                // Threads that wanted fewer CPUs would get the same share of more.
                (got * (cpus / wanted).max(1.0)).clamp(0.05, cpus)
            }
            _ => cpus,
        }
    }

    /// The share of the time in which stages waited for memory.
    pub(super) fn memory_waited(&self) -> f64 {
        let elapsed = self.elapsed.as_secs_f64();
        if elapsed > 0.0 { (self.memory.waited.as_secs_f64() / elapsed).min(1.0) } else { 0.0 }
    }

    /// CPU time and waiting time of one item of a stage on the CPU pool, in seconds.
    pub(super) fn cpu_and_wait(&self, stage: &StageStatistics) -> (f64, f64) {
        let busy = stage.busy.as_secs_f64();
        let items = stage.items.max(1) as f64;
        let on_pool = || self.stages.iter().filter(|stage| stage.kind.uses_cpu_pool());
        let all: f64 = on_pool().map(|stage| stage.busy.as_secs_f64()).sum();
        let Some(share) = stage.cpu_share else {
            // A thread that waits for a CPU counts as busy.
            let threads = all / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
            let got = self.cpus_got();
            return (busy / items * (got / threads).min(1.0), 0.0);
        };
        let cpu = busy * share.clamp(0.0, 1.0);
        let preempted = self.workers.map_or(0.0, |workers| {
            cpu * workers.waited.as_secs_f64() / workers.on_cpu.as_secs_f64().max(f64::MIN_POSITIVE)
        });
        let in_python: f64 =
            on_pool().filter(|it| it.holds_gil).map(|it| it.busy.as_secs_f64()).sum();
        let for_gil = match self.gil {
            Some(gil) if stage.holds_gil && in_python > 0.0 => {
                gil.waited.as_secs_f64() * busy / in_python
            }
            _ => 0.0,
        };
        let wait = (busy - cpu - preempted - for_gil).max(0.0);
        (cpu / items, wait / items)
    }
}

/// Rates of at least [`MIN_ITEMS`] items, by the number of items in flight, smallest first. Rates of fewer items are
/// combined with those of the next larger numbers; the last ones are left out if they are too few.
fn known_rates(rates: &[InFlightRate]) -> Vec<InFlightRate> {
    let mut sorted: Vec<InFlightRate> = rates.iter().filter(|it| it.items > 0).copied().collect();
    sorted.sort_by(|a, b| a.in_flight.total_cmp(&b.in_flight));
    let mut known = Vec::new();
    let mut few: Option<InFlightRate> = None;
    for rate in sorted {
        let all = few.take().map_or(rate, |few| few.plus(rate));
        if all.items >= MIN_ITEMS {
            known.push(all);
        } else {
            few = Some(all);
        }
    }
    known
}

/// The highest rate of a store in items per second, if more items in flight did not raise it.
pub(super) fn saturated_rate(rates: &[InFlightRate]) -> Option<f64> {
    let known = known_rates(rates);
    let most = *known.last()?;
    // The largest window that is clearly smaller.
    let fewer = *known.iter().rev().find(|it| it.in_flight * 1.2 <= most.in_flight)?;
    let all = known.into_iter().reduce(InFlightRate::plus)?;
    let bytes_per_item = all.bytes as f64 / all.items as f64;
    let rate = |of: InFlightRate| match bytes_per_item >= LARGE_REQUEST {
        // The bandwidth limits, and of few items, the sizes differ by chance.
        true => of.bytes as f64 / bytes_per_item / of.time.as_secs_f64(),
        false => of.per_second(),
    };
    let possible = most.in_flight / fewer.in_flight - 1.0;
    let gained = rate(most) / rate(fewer) - 1.0;
    // If fewer items were faster, the difference is noise.
    let highest = if gained >= 0.0 { rate(most) } else { rate(fewer.plus(most)) };
    (gained < SATURATED_GAIN * possible).then_some(highest)
}

/// The lowest mean latency at any number of items in flight, by Little's law.
fn lowest_latency(rates: &[InFlightRate]) -> Option<f64> {
    let known = known_rates(rates).into_iter().filter(|it| it.per_second() > 0.0);
    known.map(|it| it.in_flight / it.per_second()).min_by(f64::total_cmp)
}

impl PipelineModel {
    /// A model of the pipeline since its start. `None` before the first item was delivered.
    pub fn from_statistics(statistics: &Statistics) -> Option<Self> {
        PipelineModel::new(&statistics.into())
    }

    /// A model of the pipeline in an interval. `None` if no item was delivered.
    pub fn from_interval(interval: &Interval) -> Option<Self> {
        PipelineModel::new(&interval.into())
    }

    pub(super) fn new(measured: &Measurements<'_>) -> Option<Self> {
        let rate = measured.throughput();
        let is_empty = measured.stages.is_empty() || measured.stages.len() != measured.queues.len();
        if rate <= 0.0 || !rate.is_finite() || is_empty {
            return None;
        }
        let present = Configuration::new(measured);
        let Solution { throughput, bound, .. } = present.solve();
        let model = PipelineModel { measured: rate, modelled: throughput, bound, present };
        throughput.is_finite().then_some(model)
    }

    /// The measured throughput: items delivered to the consumer per second.
    pub fn throughput(&self) -> f64 {
        self.measured
    }

    /// The number of source items, usually samples, for one item of the consumer, usually a batch.
    pub fn source_items(&self) -> f64 {
        self.present.stages.first().map_or(1.0, |source| source.outputs)
    }

    /// The throughput of the model before calibration, relative to the measured throughput.
    ///
    /// If this is far from 1, then something that the model does not contain limits the pipeline.
    pub fn fit(&self) -> f64 {
        self.modelled / self.measured
    }

    /// Predicts the effect of changes that are made together. Without changes, predicts the present.
    ///
    /// A change of an unknown stage has no effect.
    pub fn predict(&self, changes: &[SettingChange]) -> Prediction {
        let mut changed = self.present.clone();
        changes.iter().for_each(|change| changed.apply(change));
        let Solution { throughput: modelled, bound, limited_by } = changed.solve();
        // A pipeline that is faster than its model now is not faster than all its parts later.
        let ahead = (self.measured / self.bound).max(1.0);
        let stores = changed.store_capacity();
        let ahead_of_stores = (self.measured / self.present.store_capacity()).max(1.0);
        let throughput = (self.measured * modelled / self.modelled)
            .min(bound * ahead)
            .min(stores * ahead_of_stores);
        let wait = (1.0 / throughput - changed.step).max(0.0);
        Prediction {
            throughput,
            gain: throughput / self.measured - 1.0,
            consumer_wait: Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX),
            limited_by,
        }
    }

    /// A phrase for a change, with the present value: `4 instead of 2 threads`.
    pub fn describe(&self, change: &SettingChange) -> String {
        let stage = |name: &Arc<str>| self.present.stages.iter().find(|it| it.name == *name);
        match change {
            SettingChange::Threads { threads } => {
                format!("{threads} instead of {} threads", self.present.threads)
            }
            SettingChange::Cpus { cpus } => {
                format!("{} instead of {} CPUs", tenths(*cpus), tenths(self.present.cpus))
            }
            SettingChange::Concurrency { stage: name, items } => {
                let what = match stage(name) {
                    Some(it) if it.kind.uses_cpu_pool() => "as the concurrency of",
                    _ => "items in flight in",
                };
                let now = stage(name).map_or(0, |it| it.concurrency);
                format!("{items} instead of {now} {what} {name:?}")
            }
            SettingChange::Queue { stage: name, items } => {
                let now = stage(name).map_or(0, |it| it.places);
                format!("a queue of {items} instead of {now} items after {name:?}")
            }
            SettingChange::Cost { stage: name, factor } if *factor == 0.5 => {
                let is_async = stage(name).is_some_and(|it| it.kind == StageKind::Async);
                let what = if is_async { "requests or bytes" } else { "work" };
                format!("half the {what} per item in {name:?}")
            }
            SettingChange::Cost { stage: name, factor } => {
                format!("{:.0} % of the work per item in {name:?}", factor * 100.0)
            }
            SettingChange::CacheShare { stage: name, share } => {
                let now = stage(name).and_then(|it| it.cache).map_or(0.0, |cache| cache.share);
                format!(
                    "a cache for {:.0} instead of {:.0} % of the items of {name:?}",
                    share * 100.0,
                    now * 100.0
                )
            }
            SettingChange::CompletionOrder { stage } => format!("order of completion in {stage:?}"),
            SettingChange::Memory { bytes } => {
                format!("a memory budget of {}", crate::memory::footprint::ByteSize(*bytes))
            }
            SettingChange::WithoutGil => "Python functions in processes".into(),
            SettingChange::StepTime { time } => format!(
                "a step of {} instead of {} ms",
                milliseconds(time.as_secs_f64()),
                milliseconds(self.present.step)
            ),
        }
    }
}

impl PipelineModel {
    /// A change without values, for a list of changes that do not help.
    pub(super) fn in_short(&self, change: &SettingChange) -> Option<String> {
        let is_on_pool = |name: &Arc<str>| {
            let stage = self.present.stages.iter().find(|it| it.name == *name);
            stage.is_some_and(|it| it.kind.uses_cpu_pool())
        };
        match change {
            SettingChange::Threads { .. } => Some("more threads".into()),
            SettingChange::Cpus { .. } => Some("more CPUs".into()),
            SettingChange::Memory { .. } => Some("more memory".into()),
            SettingChange::Concurrency { stage, .. } if is_on_pool(stage) => {
                Some(format!("a higher concurrency of {stage:?}"))
            }
            SettingChange::Concurrency { stage, .. } => {
                Some(format!("more items in flight in {stage:?}"))
            }
            _ => None,
        }
    }
}

/// A number with one decimal digit, if the digit is not 0.
fn tenths(number: f64) -> f64 {
    (number * 10.0).round() / 10.0
}

fn milliseconds(seconds: f64) -> String {
    let milliseconds = seconds * 1e3;
    if milliseconds < 10.0 { format!("{milliseconds:.1}") } else { format!("{milliseconds:.0}") }
}

impl Configuration {
    fn new(from: &Measurements<'_>) -> Self {
        let memory_limits = from.memory_waited() > MEMORY_WAITED && from.memory.limit_bytes > 0;
        let flow = flow(from);
        let stages = from.stages.iter().zip(from.queues).zip(flow);
        let stages = stages.map(|((stage, queue), (inputs, outputs))| {
            let mut new = ModelStage::new(from, stage, queue, inputs, outputs);
            let is_measured = memory_limits && stage.kind == StageKind::Async;
            new.in_flight =
                is_measured.then(|| stage.busy.as_secs_f64() / from.elapsed.as_secs_f64());
            new
        });
        let stages: Vec<ModelStage> = stages.collect();
        let items = stages.iter().zip(from.stages);
        let in_flight: f64 = items
            .map(|(new, stage)| {
                let bytes = stage.bytes as f64 / stage.items_out.max(1) as f64;
                new.in_flight.unwrap_or(0.0) * bytes
            })
            .sum();
        let budget = from.memory.limit_bytes as f64;
        // Without known sizes, all memory is that of items in flight.
        let in_flight = if in_flight > 0.0 { in_flight.min(budget) } else { budget };
        Configuration {
            threads: from.threads.max(1) as f64,
            machine: from.cpus,
            cpus: from.cpus_got(),
            has_gil: from.gil.is_some(),
            event_loop: from.event_loop.map_or(0.0, |it| it.on_cpu.as_secs_f64())
                / from.consumer.items.max(1) as f64,
            step: from.step(),
            memory: memory_limits.then_some(ModelMemory { budget, in_flight, factor: 1.0 }),
            stages,
        }
    }

    fn apply(&mut self, change: &SettingChange) {
        match change {
            SettingChange::Threads { threads } => self.set_threads((*threads).max(1)),
            SettingChange::Cpus { cpus } => {
                self.cpus = cpus.max(0.05);
                if self.threads as usize == self.machine {
                    self.set_threads((cpus.round() as usize).max(1));
                }
            }
            SettingChange::Concurrency { stage, items } => {
                self.edit(stage, |it| {
                    it.concurrency = (*items).max(1);
                    // `Control::set_concurrency` enlarges the queue as well.
                    it.places = it.places.max(it.concurrency);
                });
            }
            SettingChange::Queue { stage, items } => {
                self.edit(stage, |it| it.places = (*items).max(1))
            }
            SettingChange::Cost { stage, factor } => self.edit(stage, |it| {
                let factor = factor.max(1e-6);
                it.cpu *= factor;
                it.wait *= factor;
                it.store_rate /= factor;
            }),
            SettingChange::CacheShare { stage, share } => {
                self.edit(stage, |it| it.set_cached(*share))
            }
            SettingChange::CompletionOrder { stage } => self.edit(stage, |it| it.ordered = false),
            SettingChange::Memory { bytes } => {
                // Items in later stages need the same memory as before.
                if let Some(memory) = &mut self.memory {
                    let more = *bytes as f64 - memory.budget;
                    memory.factor = (1.0 + more / memory.in_flight).max(0.01);
                }
            }
            SettingChange::WithoutGil => self.has_gil = false,
            SettingChange::StepTime { time } => self.step = time.as_secs_f64(),
        }
    }

    fn set_threads(&mut self, threads: usize) {
        let before = self.threads as usize;
        let shared = |it: &&mut ModelStage| it.kind.uses_cpu_pool() && !it.dedicated;
        for stage in self.stages.iter_mut().filter(shared) {
            if stage.concurrency == before {
                stage.concurrency = threads;
                stage.places = stage.places.max(threads);
            }
        }
        self.threads = threads as f64;
    }

    fn edit(&mut self, stage: &Arc<str>, change: impl FnOnce(&mut ModelStage)) {
        if let Some(found) = self.stages.iter_mut().find(|it| it.name == *stage) {
            change(found);
        }
    }

    /// The stages that share the worker threads.
    fn on_shared_threads(&self) -> impl Iterator<Item = &ModelStage> {
        self.stages.iter().filter(|stage| stage.kind.uses_cpu_pool() && !stage.dedicated)
    }

    /// The worker threads, the CPUs and the GIL, with the work of all their stages.
    fn shared(&self) -> Vec<(Resource, Station)> {
        let cpu: f64 = self.stages.iter().map(|it| it.inputs * it.cpu).sum();
        let on_threads: f64 = self.on_shared_threads().map(|it| it.inputs * it.service()).sum();
        let with_gil: f64 =
            self.stages.iter().filter(|it| it.holds_gil).map(|it| it.inputs * it.cpu).sum();
        let mut shared = vec![(Resource::Cpus, Station { demand: cpu, servers: self.cpus })];
        let threads = Station { demand: on_threads, servers: self.threads };
        // Threads that only compute need no more than the CPUs.
        if threads.capacity() < 0.98 * shared[0].1.capacity() {
            shared.push((Resource::Threads, threads));
        }
        if self.event_loop > 0.0 {
            let event_loop = Station { demand: self.event_loop, servers: 1.0 };
            shared.push((Resource::EventLoop, event_loop));
        }
        if self.has_gil {
            shared.push((Resource::Gil, Station { demand: with_gil, servers: 1.0 }));
        }
        shared
    }

    /// The capacity of a stage alone, in items of the consumer per second.
    fn capacity(&self, stage: &ModelStage) -> (f64, Resource) {
        let name = || Arc::clone(&stage.name);
        let servers = self.servers(stage);
        let station = Station { demand: stage.inputs * stage.service(), servers: servers as f64 };
        let concurrency = match stage.kind {
            StageKind::Source => Resource::Source(name()),
            _ => Resource::Concurrency(name()),
        };
        let mut least = (station.capacity(), concurrency);
        let mut consider = |rate: f64, resource: Resource| {
            if rate < least.0 {
                least = (rate, resource);
            }
        };
        // An output keeps its place in the queue from the start of its processing.
        if stage.places < servers {
            let places = Station { servers: stage.places as f64, ..station };
            consider(places.capacity(), Resource::Queue(name()));
        }
        if let (Some(in_flight), Some(memory)) = (stage.in_flight, self.memory) {
            let fits = Station { servers: (in_flight * memory.factor).max(0.1), ..station };
            consider(fits.capacity(), Resource::Memory);
        }
        if stage.ordered && servers > 1 {
            let share = share_in_order(&stage.times, servers, stage.places);
            if share < 0.97 {
                consider(station.capacity() * share, Resource::Order(name()));
            }
        }
        if let Some(rate) = stage.store_capacity() {
            consider(rate, Resource::Medium(name()));
        }
        least
    }

    /// How many items of the consumer the saturated stores deliver per second.
    fn store_capacity(&self) -> f64 {
        let rates = self.stages.iter().filter_map(ModelStage::store_capacity);
        rates.fold(f64::INFINITY, f64::min)
    }

    /// How many items a stage processes concurrently at most.
    fn servers(&self, stage: &ModelStage) -> usize {
        let is_shared = stage.kind.uses_cpu_pool() && !stage.dedicated;
        let most = if is_shared { self.threads as usize } else { usize::MAX };
        stage.concurrency.min(most).max(1)
    }

    /// The capacity of each stage alone.
    fn capacities(&self) -> Vec<(f64, Resource)> {
        self.stages.iter().map(|stage| self.capacity(stage)).collect()
    }

    /// The throughput of the slowest resource.
    fn bound(&self, capacities: &[(f64, Resource)]) -> (f64, Resource) {
        let consumer = Station { demand: self.step, servers: 1.0 };
        let shared = self.shared().into_iter().map(|(resource, it)| (it.capacity(), resource));
        // If a stage may use all threads, the threads limit it.
        let all = shared.chain(capacities.iter().cloned());
        let all = all.chain([(consumer.capacity(), Resource::Consumer)]);
        all.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, Resource::Consumer))
    }

    /// Solves the model.
    fn solve(&self) -> Solution {
        let capacities = self.capacities();
        let (bound, mut limited_by) = self.bound(&capacities);
        let mut throughput = bound.min(self.whole());
        for (at, stage) in self.stages.iter().enumerate() {
            let rate = self.across_queue(at, &capacities);
            if rate < throughput {
                throughput = rate;
                if rate < QUEUE_LIMITS * bound {
                    limited_by = Resource::Queue(Arc::clone(&stage.name));
                }
            }
        }
        Solution { throughput, bound, limited_by }
    }

    /// Mean-value analysis of all stations. Its customers are the smallest items of the pipeline:
    /// a queue of batches admits as many as the batches contain.
    fn whole(&self) -> f64 {
        let flows = self.stages.iter().map(|it| it.inputs.max(it.outputs));
        let parts = flows.fold(1.0, f64::max);
        let mut stations = vec![Station { demand: self.step / parts, servers: 1.0 }];
        let per_part = |station: Station| Station { demand: station.demand / parts, ..station };
        stations.extend(self.shared().into_iter().map(|(_, station)| per_part(station)));
        let mut population = parts;
        for stage in &self.stages {
            let servers = self.servers(stage) as f64;
            if !stage.kind.uses_cpu_pool() || stage.dedicated {
                let demand = stage.inputs * stage.service();
                stations.push(per_part(Station { demand, servers }));
            }
            population += stage.places as f64 * parts / stage.outputs.max(f64::MIN_POSITIVE);
        }
        throughput(&stations, population) / parts
    }

    /// The throughput of the stages before and after a queue. The customers are the places of the
    /// queue, and the items that the next stage processes.
    fn across_queue(&self, at: usize, capacities: &[(f64, Resource)]) -> f64 {
        let (before, after) = self.stages.split_at(at + 1);
        let stage = &self.stages[at];
        let (pool_before, pool_after) = (uses_pool(before), uses_pool(after));
        let shared = self.shared().into_iter().map(|(_, station)| station.capacity());
        let shared = shared.fold(f64::INFINITY, f64::min);
        let slowest = |stages: &[ModelStage], capacities: &[(f64, Resource)], uses_pool: bool| {
            let own = stages.iter().zip(capacities).map(|(it, own)| (own.0, it.variation));
            // Threads are not bound to one side of the queue.
            let shared = (uses_pool && !(pool_before && pool_after)).then_some((shared, 1.0));
            let all = own.chain(shared);
            all.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, 0.0))
        };
        let upstream = slowest(before, &capacities[..=at], pool_before);
        let mut downstream = slowest(after, &capacities[at + 1..], pool_after);
        let consumer = Station { demand: self.step, servers: 1.0 }.capacity();
        if consumer < downstream.0 {
            downstream = (consumer, STEP_VARIATION);
        }
        if !upstream.0.is_finite() || !downstream.0.is_finite() {
            return f64::INFINITY;
        }
        // An aggregating stage takes the items of a whole output.
        let taken = after.first().map_or(1.0, |next| {
            let grouped = next.inputs / next.outputs.max(f64::MIN_POSITIVE);
            if grouped > 1.5 { grouped } else { self.servers(next) as f64 }
        });
        let customers = stage.places as f64 + taken;
        let is_slowest = capacities[at].0 <= upstream.0 * 1.001;
        let servers = if is_slowest { self.servers(stage).min(stage.places) as f64 } else { 1.0 };
        let outputs = stage.outputs.max(f64::MIN_POSITIVE);
        let stations = [
            Station { demand: servers / upstream.0 / outputs, servers },
            Station { demand: 1.0 / downstream.0 / outputs, servers: 1.0 },
        ];
        // Mean-value analysis assumes exponential service times, whose variation is 1. With less
        // variation, a queue has the effect of a longer one.
        let variation = (upstream.1 + downstream.1).clamp(0.1, 50.0);
        let soft = throughput(&stations, customers * 2.0 / variation);
        let cycle = stations[0].demand + stations[1].demand;
        soft.min(customers / cycle) / outputs
    }
}

/// The throughput of a configuration in items of the consumer per second, before calibration.
struct Solution {
    throughput: f64,
    /// The throughput of the slowest resource, if the others never delay it.
    bound: f64,
    limited_by: Resource,
}

fn uses_pool(stages: &[ModelStage]) -> bool {
    stages.iter().any(|stage| stage.kind.uses_cpu_pool() && !stage.dedicated)
}

/// Inputs and outputs of each stage for one item of the consumer.
///
/// In a chain, the ratio of inputs and outputs of each stage is used. The ratio of inputs and
/// delivered items would count the items that are still in queues.
fn flow(from: &Measurements<'_>) -> Vec<(f64, f64)> {
    let joins = |stage: &StageStatistics| matches!(stage.kind, StageKind::Merge | StageKind::Route);
    let sources = from.stages.iter().filter(|stage| stage.kind == StageKind::Source).count();
    let delivered = from.consumer.items.max(1) as f64;
    if sources != 1 || from.stages.iter().any(joins) {
        let of = |stage: &StageStatistics| {
            (stage.items as f64 / delivered, stage.items_out as f64 / delivered)
        };
        return from.stages.iter().map(of).collect();
    }
    let mut outputs = 1.0;
    let mut flow: Vec<(f64, f64)> = Vec::new();
    for stage in from.stages.iter().rev() {
        let ratio = match stage.items_out {
            0 => 1.0,
            out => stage.items as f64 / out as f64,
        };
        flow.push((outputs * ratio, outputs));
        outputs *= ratio;
    }
    flow.reverse();
    flow
}

impl ModelStage {
    fn new(
        from: &Measurements<'_>,
        stage: &StageStatistics,
        queue: &QueueStatistics,
        inputs: f64,
        outputs: f64,
    ) -> Self {
        let mean = stage.busy.as_secs_f64() / stage.items.max(1) as f64;
        let missed = 1.0 - stage.cache.map_or(0.0, |cache| cache.share);
        let rate = saturated_rate(&stage.rates);
        let (cpu, wait) = match stage.kind.uses_cpu_pool() {
            true => from.cpu_and_wait(stage),
            // At a saturated store, latency grows with the number of items in flight.
            false => match rate.and_then(|_| lowest_latency(&stage.rates)) {
                Some(latency) => (0.0, latency.min(mean)),
                None => (0.0, mean),
            },
        };
        let times = representative_times(&stage.service, mean);
        let variation = squared_variation(&times);
        ModelStage {
            name: Arc::clone(&stage.name),
            kind: stage.kind,
            dedicated: stage.dedicated,
            ordered: stage.ordered,
            holds_gil: stage.holds_gil,
            inputs,
            outputs,
            cpu,
            wait,
            concurrency: stage.concurrency.max(1),
            places: queue.capacity.max(1),
            store_rate: rate.map_or(f64::INFINITY, |rate| rate * missed),
            in_flight: None,
            cache: stage.cache,
            times,
            variation,
        }
    }

    /// How many items of the consumer a saturated store delivers per second; `None` if it is not saturated.
    fn store_capacity(&self) -> Option<f64> {
        let missed = self.inputs * (1.0 - self.cache.map_or(0.0, |cache| cache.share));
        (self.store_rate.is_finite() && missed > 0.0).then(|| self.store_rate / missed)
    }

    /// Processing time of one input.
    fn service(&self) -> f64 {
        self.cpu + self.wait
    }

    /// Changes the share of items that are in the cache.
    fn set_cached(&mut self, share: f64) {
        let Some(cache) = &mut self.cache else { return };
        let hit = cache.hit.as_secs_f64();
        let missed = (1.0 - cache.share).max(1e-3);
        let miss = (self.wait - cache.share * hit).max(0.0) / missed;
        cache.share = share.clamp(0.0, 1.0);
        self.wait = cache.share * hit + (1.0 - cache.share) * miss;
    }
}

/// If the 99th percentile of a time exceeds the 90th by this factor, then a few times are long, and
/// no times are in between.
const JUMP: f64 = 3.0;
/// Number of representative service times.
const TIMES: usize = 2000;

/// Service times with about these quantiles and this mean, relative to the mean, in an order that is
/// like a random one.
///
/// The quantiles leave open how many times between 0.9 and 0.99 are long. The mean decides.
fn representative_times(quantiles: &Quantiles, mean: f64) -> Vec<f64> {
    let [p50, p90, p99, max] =
        [quantiles.p50, quantiles.p90, quantiles.p99, quantiles.max].map(|time| time.as_secs_f64());
    if mean <= 0.0 || p50 <= 0.0 {
        return vec![1.0; TIMES];
    }
    let least = (2.0 * p50 - p90).max(0.0);
    let body = 0.5 * (least + p50) / 2.0 + 0.4 * (p50 + p90) / 2.0;
    let smooth = body + 0.09 * (p90 + p99) / 2.0 + 0.01 * p99;
    // The share of long times, and their length.
    let (long, slow) = if p99 > JUMP * p90 {
        (((mean - body - 0.1 * p90) / (p99 - p90)).clamp(0.01, 0.1), p99)
    } else if mean > 1.05 * smooth && max > p99 {
        // Fewer than 1 % are long, so that p99 does not show them.
        (((mean - smooth) / (max - p99)).min(0.01), max)
    } else {
        (0.0, max)
    };
    let tail = if p99 > JUMP * p90 { p90 } else { p99 };
    let time = |share: f64| {
        if share >= 1.0 - long {
            slow
        } else if share < 0.5 {
            least + (p50 - least) * share / 0.5
        } else if share < 0.9 {
            p50 + (p90 - p50) * (share - 0.5) / 0.4
        } else {
            p90 + (tail - p90) * ((share - 0.9) / 0.09).min(1.0)
        }
    };
    let mut order: Vec<u64> = (0..TIMES as u64).collect();
    order.sort_by_key(|&at| scrambled(at));
    let times: Vec<f64> = order.iter().map(|&at| time((at as f64 + 0.5) / TIMES as f64)).collect();
    let sum: f64 = times.iter().sum();
    times.into_iter().map(|time| time * TIMES as f64 / sum).collect()
}

/// A number like a random one: the output function of SplitMix64.
fn scrambled(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn squared_variation(times: &[f64]) -> f64 {
    let squares: f64 = times.iter().map(|time| (time - 1.0).powi(2)).sum();
    squares / times.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn is_about(value: f64, expected: f64, tolerance: f64) {
        assert!((value / expected - 1.0).abs() <= tolerance, "{value} for {expected}");
    }

    /// A stage with `items` inputs of `time` seconds each, and `outputs` outputs.
    fn stage(
        name: &str,
        kind: StageKind,
        concurrency: usize,
        (items, outputs): (u64, u64),
        time: f64,
    ) -> StageStatistics {
        let mut stage = StageStatistics::new(name, kind, concurrency);
        (stage.items, stage.items_out) = (items, outputs);
        stage.busy = seconds(time * items as f64);
        (stage.service.p50, stage.service.p90) = (seconds(time), seconds(time));
        (stage.service.p99, stage.service.max) = (seconds(time), seconds(time));
        stage.cpu_share = kind.uses_cpu_pool().then_some(1.0);
        stage
    }

    /// Ten seconds in which 100 batches of 32 items were delivered: 8 in flight of 25 ms each.
    fn statistics() -> Statistics {
        let stages = vec![
            stage("keys", StageKind::Source, 1, (3600, 3600), 1e-6),
            stage("fetch", StageKind::Async, 8, (3300, 3300), 0.025),
            stage("decode", StageKind::Cpu, 4, (3200, 3200), 0.002),
            stage("batch", StageKind::Cpu, 1, (3200, 100), 1e-6),
        ];
        let queue = |capacity| QueueStatistics { capacity, ..QueueStatistics::default() };
        Statistics {
            elapsed: seconds(10.0),
            threads: 4,
            cpus: 4,
            stages,
            queues: vec![queue(256), queue(16), queue(64), queue(2)],
            consumer: ConsumerStatistics {
                items: 100,
                waited: seconds(9.0),
                ..ConsumerStatistics::default()
            },
            ..Statistics::default()
        }
    }

    #[test]
    fn the_present_configuration_has_the_measured_throughput() {
        let model = PipelineModel::from_statistics(&statistics()).unwrap();
        is_about(model.predict(&[]).throughput, 10.0, 1e-9);
        is_about(model.fit(), 1.0, 0.05);
        assert_eq!(model.source_items(), 32.0, "items in queues are not counted");
        assert_eq!(model.predict(&[]).limited_by, Resource::Concurrency("fetch".into()));
        is_about(model.predict(&[]).consumer_wait.as_secs_f64(), 0.09, 0.01);
        assert!(PipelineModel::from_statistics(&Statistics::default()).is_none());
    }

    #[test]
    fn a_wider_window_helps_until_another_resource_limits() {
        let model = PipelineModel::from_statistics(&statistics()).unwrap();
        let window =
            |items| model.predict(&[SettingChange::Concurrency { stage: "fetch".into(), items }]);
        is_about(window(16).gain, 1.0, 0.05);
        // Four CPUs decode 2000 items/s, or 62.5 batches/s.
        let wide = window(512);
        is_about(wide.throughput, 62.5, 0.05);
        assert!(matches!(wide.limited_by, Resource::Cpus | Resource::Threads), "{wide:?}");
        // An unknown stage, and changes that do not matter.
        let unknown = SettingChange::Concurrency { stage: "other".into(), items: 99 };
        assert_eq!(model.predict(&[unknown]).gain, 0.0);
        assert!(model.predict(&[SettingChange::Threads { threads: 8 }]).gain.abs() < 0.02);
        assert!(model.predict(&[SettingChange::WithoutGil]).gain.abs() < 1e-9);
        // A consumer that takes 200 ms for a batch.
        let slow = model.predict(&[SettingChange::StepTime { time: seconds(0.2) }]);
        is_about(slow.throughput, 5.0, 0.02);
    }

    #[test]
    fn cpus_and_work_change_a_pipeline_that_computes() {
        let mut busy = statistics();
        busy.stages[1] = stage("fetch", StageKind::Async, 8, (3300, 3300), 0.001);
        busy.stages[2] = stage("decode", StageKind::Cpu, 4, (3200, 3200), 0.0124);
        let model = PipelineModel::from_statistics(&busy).unwrap();
        // Threads and the concurrency of the stage follow the number of CPUs.
        is_about(model.predict(&[SettingChange::Cpus { cpus: 8.0 }]).gain, 1.0, 0.05);
        let half = SettingChange::Cost { stage: "decode".into(), factor: 0.5 };
        is_about(model.predict(std::slice::from_ref(&half)).gain, 1.0, 0.05);
        is_about(model.predict(&[half, SettingChange::Cpus { cpus: 2.0 }]).throughput, 10.0, 0.05);
        assert!(model.predict(&[SettingChange::Threads { threads: 8 }]).gain.abs() < 0.02);
        // Threads that wait need no CPUs.
        busy.stages[2].cpu_share = Some(0.1);
        let model = PipelineModel::from_statistics(&busy).unwrap();
        is_about(model.predict(&[SettingChange::Threads { threads: 8 }]).gain, 1.0, 0.05);
    }

    #[test]
    fn a_saturated_store_gains_from_its_cache_only() {
        let mut slow = statistics();
        let rate = |in_flight, items| InFlightRate::new(in_flight, items, seconds(1.0));
        slow.stages[1].rates = vec![rate(4.0, 310), rate(8.0, 320), rate(64.0, 3)];
        slow.stages[1].cache = Some(CacheUse::new(0.5, Duration::ZERO));
        let model = PipelineModel::from_statistics(&slow).unwrap();
        let fetch = || "fetch".into();
        let wide = model.predict(&[SettingChange::Concurrency { stage: fetch(), items: 64 }]);
        assert!(wide.gain.abs() < 0.05, "{wide:?}");
        assert_eq!(wide.limited_by, Resource::Medium(fetch()));
        // Half as many misses as before.
        let cached = model.predict(&[SettingChange::CacheShare { stage: fetch(), share: 0.75 }]);
        is_about(cached.gain, 1.0, 0.1);
    }

    #[test]
    fn rates_tell_latency_from_saturation() {
        let rate = |in_flight, items| InFlightRate::new(in_flight, items, seconds(1.0));
        assert_eq!(saturated_rate(&[rate(16.0, 100)]), None);
        assert_eq!(saturated_rate(&[rate(16.0, 100), rate(32.0, 195)]), None);
        assert_eq!(saturated_rate(&[rate(32.0, 110), rate(16.0, 100)]), Some(110.0));
        assert_eq!(saturated_rate(&[rate(31.0, 100), rate(32.0, 100)]), None, "about the same");
        assert_eq!(saturated_rate(&[rate(1.0, 3), rate(32.0, 100)]), None, "few items");
        let few = [rate(4.0, 8), rate(6.0, 8), rate(10.0, 9), rate(14.0, 7), rate(24.0, 100)];
        assert_eq!(saturated_rate(&few), None);
        // 16 items with 5 in flight, and 16 with 12, in two seconds each.
        assert_eq!(saturated_rate(&few[..4]), Some(8.0));
        assert_eq!(saturated_rate(&[rate(16.0, 100), rate(32.0, 80)]), Some(90.0));
        // The start does not count.
        let started = [rate(1.0, 16), rate(16.0, 100), rate(32.0, 80)];
        assert_eq!(saturated_rate(&started), Some(90.0));
        // Twice as many items, which happen to be half as large.
        let of = |in_flight, items, bytes| InFlightRate { bytes, ..rate(in_flight, items) };
        let sizes = [of(8.0, 20, 20 << 20), of(16.0, 40, 20 << 20)];
        assert_eq!(saturated_rate(&sizes), Some(30.0));
        assert_eq!(
            saturated_rate(&[of(8.0, 20, 2000), of(16.0, 40, 2000)]),
            None,
            "small requests"
        );
    }

    #[test]
    fn representative_times_have_the_quantiles_and_the_mean() {
        let of = |[p50, p90, p99, max]: [f64; 4], mean| {
            let [p50, p90, p99, max] = [p50, p90, p99, max].map(seconds);
            representative_times(&Quantiles { p50, p90, p99, max }, mean)
        };
        let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len() as f64;
        // 2 % of the items take 50 times as long; then 0.5 %, which p99 does not show.
        let straggling = of([0.01, 0.011, 0.5, 0.5], 0.98 * 0.01 + 0.02 * 0.5);
        is_about(mean(&straggling), 1.0, 1e-9);
        let slow = straggling.iter().filter(|time| **time > 5.0).count();
        is_about(slow as f64 / TIMES as f64, 0.02, 0.1);
        let rare = of([0.01, 0.011, 0.011, 0.5], 0.995 * 0.01 + 0.005 * 0.5);
        let slow = rare.iter().filter(|time| **time > 5.0).count();
        is_about(slow as f64 / TIMES as f64, 0.005, 0.25);
        // An exponential distribution has the variation 1, equal times have 0.
        let exponential = of([0.693, 2.303, 4.605, 9.0], 1.0);
        is_about(squared_variation(&exponential), 1.0, 0.3);
        assert!(squared_variation(&of([0.1; 4], 0.1)) < 1e-6);
        assert_eq!(squared_variation(&of([0.0; 4], 0.0)), 0.0);
    }

    #[test]
    fn changes_are_described_with_the_present_values() {
        let model = PipelineModel::from_statistics(&statistics()).unwrap();
        let fetch = || Arc::<str>::from("fetch");
        for (change, text) in [
            (SettingChange::Threads { threads: 8 }, "8 instead of 4 threads"),
            (
                SettingChange::Concurrency { stage: fetch(), items: 64 },
                "64 instead of 8 items in flight in \"fetch\"",
            ),
            (
                SettingChange::Queue { stage: fetch(), items: 64 },
                "a queue of 64 instead of 16 items after \"fetch\"",
            ),
            (
                SettingChange::Cost { stage: fetch(), factor: 0.5 },
                "half the requests or bytes per item in \"fetch\"",
            ),
            (SettingChange::StepTime { time: seconds(0.005) }, "a step of 5.0 instead of 10 ms"),
        ] {
            assert_eq!(model.describe(&change), text);
        }
    }
}
