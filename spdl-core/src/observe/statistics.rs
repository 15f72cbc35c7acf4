//! [`Statistics`]: counters and times of stages, queues and the consumer.

use std::fmt;
use std::sync::{Arc, OnceLock};
// Standard atomics instead of `crate::sync`: model checkers need not explore these counters,
// because the control flow does not depend on them.
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::error::ErrorKind;
use crate::memory::budget::MemoryStatistics;
use crate::memory::buffer::PoolStatistics;
use crate::observe::histogram::{Counts, Histogram, Quantiles};
use crate::observe::setting_names::SettingNames;
use crate::observe::slowest::{SlowItem, SlowestItems};
use crate::observe::stalls::{Activity, StageProgress};
use crate::observe::tuner::TuningDecision;
use crate::source::sample::SampleId;
use crate::stage::Medium;
use crate::stage::aggregate::FillRate;
use crate::sync::Counter;

/// A snapshot of a pipeline's counters, while the pipeline runs or after its end.
///
/// Counts and durations cover the time since the start of the pipeline. Durations are wall-clock
/// times. In JSON, durations are in seconds, and the names of their fields end with `_s`.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Statistics {
    /// The pipeline's number in this process, counted from 0 in the order of building.
    pub pipeline: u64,
    /// Time from the start until now, or until the end of the pipeline.
    #[cfg_attr(feature = "serde", serde(rename = "elapsed_s", with = "crate::seconds"))]
    pub elapsed: Duration,
    /// Number of worker threads of the CPU pool.
    pub threads: usize,
    /// Number of CPUs that this process may use.
    pub cpus: usize,
    /// CPU time of the worker threads of the pool; `None` if the system does not report it.
    pub workers: Option<WorkerTimes>,
    /// Requests for Python's GIL; `None` if no stage runs Python functions.
    pub gil: Option<GilStatistics>,
    /// CPU time of the thread of the event loop; `None` if no async stage runs on an event loop, or
    /// if the system does not report it.
    pub event_loop: Option<WorkerTimes>,
    /// The stages from source to consumer.
    pub stages: Vec<StageStatistics>,
    /// The queues; `queues[i]` follows `stages[i]`, and the last one feeds the consumer.
    pub queues: Vec<QueueStatistics>,
    /// Deliveries to the consumer.
    pub consumer: ConsumerStatistics,
    /// The memory budget and its use.
    pub memory: MemoryStatistics,
    /// The pool of batch buffers.
    pub buffers: PoolStatistics,
    /// The first [`MAX_DROPPED_LISTED`] samples that a failure policy dropped.
    pub dropped: Vec<Dropped>,
    /// Number of all dropped samples.
    pub dropped_total: u64,
    /// Number of dropped samples for each stage and kind of error.
    pub dropped_counts: Vec<DroppedCount>,
    /// Number of samples left out with incomplete batches (`drop_last`) or by an early end of an
    /// epoch.
    pub left_out: u64,
    /// The items that took longest in a stage, the slowest first: at most
    /// [`MAX_SLOWEST_LISTED`](crate::observe::MAX_SLOWEST_LISTED).
    pub slowest: Vec<SlowItem>,
    /// The changes of settings that [`tune`](crate::PipelineBuilder::tune) has tried, oldest first;
    /// at most the last 256.
    pub decisions: Vec<TuningDecision>,
    /// How users change the settings, for the [diagnosis](Self::diagnose).
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) setting_names: SettingNames,
}

/// Maximum length of [`Statistics::dropped`]; further dropped samples are only counted.
pub const MAX_DROPPED_LISTED: usize = 100_000;

impl Statistics {
    /// The share of the time in which a batch was ready for the consumer, in 0..=1.
    ///
    /// The time before the first batch does not count. The value is 0 before the first batch. Near
    /// 1, the consumer waits for almost no batch. Near 0, the consumer waits for almost every
    /// batch.
    pub fn data_readiness(&self) -> f64 {
        self.queues.last().map_or(0.0, |queue| queue.readiness(self.elapsed))
    }
}

/// Writes one line for the pipeline and one for each stage.
///
/// ```
/// # use spdl_core::PipelineBuilder;
/// let mut pipeline = PipelineBuilder::from_iter(0..9).map("double", |n| Ok(2 * n)).build()?;
/// assert_eq!(pipeline.by_ref().count(), 9);
/// let text = pipeline.statistics().to_string();
/// assert!(text.contains(": 9 delivered ("));
/// assert!(text.contains(":1:double["));
/// # Ok::<(), spdl_core::Error>(())
/// ```
impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pipeline {}, {:.1} s: {} delivered ({:.1}/s), ready {:.0} %, waited {:.1?} at p99, {} \
             dropped",
            self.pipeline,
            self.elapsed.as_secs_f64(),
            self.consumer.items,
            per_second(self.consumer.items, self.elapsed),
            self.data_readiness() * 100.0,
            self.consumer.wait.p99,
            self.dropped_total,
        )?;
        write_stages(f, self.pipeline, &self.stages, &self.queues, self.elapsed)
    }
}

pub(crate) fn per_second(items: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { items as f64 / time.as_secs_f64() }
}

/// Writes one line for each stage and the queue after it.
pub(crate) fn write_stages(
    f: &mut fmt::Formatter<'_>,
    pipeline: u64,
    stages: &[StageStatistics],
    queues: &[QueueStatistics],
    time: Duration,
) -> fmt::Result {
    for (index, stage) in stages.iter().enumerate() {
        write!(
            f,
            "\n{pipeline}:{index}:{}[{}]: {} items ({:.1}/s), {} failed, busy {:.0} %, {:.1?} at p50, \
             {:.1?} at p99",
            stage.name,
            stage.concurrency,
            stage.items,
            per_second(stage.items, time),
            stage.failures,
            stage.busy_share(time) * 100.0,
            stage.service.p50,
            stage.service.p99,
        )?;
        if let Some(rate) = stage.fill_rate {
            write!(f, ", filled {:.1} %", rate * 100.0)?;
        }
        if let Some(queue) = queues.get(index) {
            write!(f, ", queue {:.1} of {}", queue.mean_len, queue.capacity)?;
        }
    }
    Ok(())
}

/// The kind of a stage, which determines where it runs and what its concurrency means.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum StageKind {
    /// A source. Runs on the runtime, one item at a time.
    Source,
    /// An async stage. Runs on the runtime, with many items in flight.
    Async,
    /// A stage that computes on the CPU pool.
    Cpu,
    /// A stage that computes on the CPU pool and writes into batches.
    Fill,
    /// A merge of several branches. Runs on the runtime.
    Merge,
    /// A path of a route, or the join of its paths. Runs on the runtime.
    Route,
}

impl StageKind {
    /// The name: `source`, `async`, `cpu`, `fill`, `merge` or `route`.
    pub fn as_str(self) -> &'static str {
        match self {
            StageKind::Source => "source",
            StageKind::Async => "async",
            StageKind::Cpu => "cpu",
            StageKind::Fill => "fill",
            StageKind::Merge => "merge",
            StageKind::Route => "route",
        }
    }

    /// Whether stages of this kind run on the CPU pool.
    pub fn uses_cpu_pool(self) -> bool {
        matches!(self, StageKind::Cpu | StageKind::Fill)
    }
}

/// CPU time of worker threads, as the system reports it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct WorkerTimes {
    /// Time on a CPU, summed over threads.
    #[cfg_attr(feature = "serde", serde(rename = "on_cpu_s", with = "crate::seconds"))]
    pub on_cpu: Duration,
    /// Time in which threads could run, but waited for a CPU, summed over threads.
    #[cfg_attr(feature = "serde", serde(rename = "waited_s", with = "crate::seconds"))]
    pub waited: Duration,
}

impl WorkerTimes {
    /// The sum of two times.
    pub(crate) fn plus(self, other: WorkerTimes) -> WorkerTimes {
        WorkerTimes { on_cpu: self.on_cpu + other.on_cpu, waited: self.waited + other.waited }
    }

    /// The times since `earlier`.
    pub(crate) fn since(self, earlier: WorkerTimes) -> WorkerTimes {
        WorkerTimes {
            on_cpu: self.on_cpu.saturating_sub(earlier.on_cpu),
            waited: self.waited.saturating_sub(earlier.waited),
        }
    }
}

/// Requests of worker threads for Python's global interpreter lock (GIL).
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct GilStatistics {
    /// The share of the requests that waited for another thread, in 0..=1.
    pub contended: f64,
    /// Waiting time of the requests, summed over threads.
    #[cfg_attr(feature = "serde", serde(rename = "waited_s", with = "crate::seconds"))]
    pub waited: Duration,
}

/// How fast an async stage was with about the same number of items in flight.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct InFlightRate {
    /// The mean number of items in flight.
    pub in_flight: f64,
    /// Number of items that completed.
    pub items: u64,
    /// Time in which they completed.
    #[cfg_attr(feature = "serde", serde(rename = "time_s", with = "crate::seconds"))]
    pub time: Duration,
    /// Bytes of their outputs, if outputs are [measured](crate::PipelineBuilder::measured); otherwise 0.
    pub bytes: u64,
}

impl InFlightRate {
    /// A rate of `items` items in `time`, with `in_flight` items in flight.
    pub fn new(in_flight: f64, items: u64, time: Duration) -> Self {
        InFlightRate { in_flight, items, time, bytes: 0 }
    }

    /// Number of items per second.
    pub fn per_second(&self) -> f64 {
        per_second(self.items, self.time)
    }

    /// The sums of items, times and bytes; `in_flight` is the mean over items.
    pub(crate) fn plus(self, other: InFlightRate) -> InFlightRate {
        let items = self.items + other.items;
        let in_flight = self.in_flight * self.items as f64 + other.in_flight * other.items as f64;
        InFlightRate {
            in_flight: in_flight / items.max(1) as f64,
            items,
            time: self.time + other.time,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Items that a stage read from a cache.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct CacheUse {
    /// The share of the items that were in the cache, in 0..=1.
    pub share: f64,
    /// The mean processing time of an item that was in the cache.
    #[cfg_attr(feature = "serde", serde(rename = "hit_s", with = "crate::seconds"))]
    pub hit: Duration,
}

impl CacheUse {
    /// The use of a cache that had `share` of the items, each of which took `hit`.
    pub fn new(share: f64, hit: Duration) -> Self {
        CacheUse { share, hit }
    }
}

/// Statistics of one stage.
#[non_exhaustive]
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct StageStatistics {
    /// The name given to the builder.
    pub name: Arc<str>,
    /// The kind of the stage.
    pub kind: StageKind,
    /// Maximum number of items that the stage processes at the same time.
    pub concurrency: usize,
    /// Whether the stage has [dedicated threads](crate::StageOptions::dedicated), as many as its
    /// concurrency.
    pub dedicated: bool,
    /// Whether the stage emits its outputs in input order.
    pub ordered: bool,
    /// Whether the function of the stage [holds Python's GIL](crate::StageOptions::holds_gil).
    pub holds_gil: bool,
    /// What an async stage mostly waits for.
    pub medium: Medium,
    /// Number of items processed, including failed ones.
    pub items: u64,
    /// Number of items that failed.
    pub failures: u64,
    /// Number of repeated attempts of [`Retried`](crate::stage::Retried): all but the first per item.
    pub retries: u64,
    /// Number of outputs: zero or more for each input.
    pub items_out: u64,
    /// The share of the capacity of outputs that is not padding, in 0..=1. `None` if outputs have no
    /// capacity: see [`Aggregator::fill_rate`](crate::stage::Aggregator::fill_rate).
    pub fill_rate: Option<f64>,
    /// Processing time, summed over concurrent items.
    #[cfg_attr(feature = "serde", serde(rename = "busy_s", with = "crate::seconds"))]
    pub busy: Duration,
    /// Processing time per item.
    #[cfg_attr(feature = "serde", serde(rename = "service_s"))]
    pub service: Quantiles,
    /// The share of the processing time in which a stage of the CPU pool used a CPU, in 0..=1.
    /// Estimated from a sample; `None` if no item was sampled or the system does not report it.
    pub cpu_share: Option<f64>,
    /// Rates of an async stage by the number of items in flight, smallest first, while its window was full, or while
    /// inputs waited and downstream had no item. Several rates show whether more items in flight make the stage faster.
    pub rates: Vec<InFlightRate>,
    /// Bytes of all outputs, if outputs are [measured](crate::PipelineBuilder::measured).
    pub bytes: u64,
    /// The cache of the stage, if it has one and reports it.
    pub cache: Option<CacheUse>,
}

impl StageStatistics {
    /// Statistics of a stage that has processed nothing.
    pub fn new(name: impl Into<Arc<str>>, kind: StageKind, concurrency: usize) -> Self {
        StageStatistics {
            name: name.into(),
            kind,
            concurrency,
            dedicated: false,
            ordered: false,
            holds_gil: false,
            medium: Medium::Unknown,
            items: 0,
            failures: 0,
            retries: 0,
            items_out: 0,
            fill_rate: None,
            busy: Duration::ZERO,
            service: Quantiles::default(),
            cpu_share: None,
            rates: Vec::new(),
            bytes: 0,
            cache: None,
        }
    }

    /// The average share of the concurrency in use during `elapsed`, in 0..=1.
    pub fn busy_share(&self, elapsed: Duration) -> f64 {
        let available = elapsed.as_secs_f64() * self.concurrency as f64;
        if available > 0.0 { (self.busy.as_secs_f64() / available).min(1.0) } else { 0.0 }
    }
}

/// Statistics of one queue.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct QueueStatistics {
    /// Maximum number of items.
    pub capacity: usize,
    /// Current number of items.
    pub len: usize,
    /// Number of items that passed through.
    pub items: u64,
    /// Average number of items over time.
    pub mean_len: f64,
    /// Time in which the queue was full, so that the upstream stage could not put an item.
    #[cfg_attr(feature = "serde", serde(rename = "put_wait_s", with = "crate::seconds"))]
    pub put_wait: Duration,
    /// Time in which the queue was empty, so that the downstream stage could not get an item.
    #[cfg_attr(feature = "serde", serde(rename = "get_wait_s", with = "crate::seconds"))]
    pub get_wait: Duration,
    /// The part of `get_wait` before the first item: the start-up.
    #[cfg_attr(feature = "serde", serde(rename = "first_wait_s", with = "crate::seconds"))]
    pub first_wait: Duration,
    /// Waiting time of one put; 0 for a put that did not wait.
    #[cfg_attr(feature = "serde", serde(rename = "wait_per_put_s"))]
    pub wait_per_put: Quantiles,
    /// Waiting time of one get; 0 for a get that did not wait.
    #[cfg_attr(feature = "serde", serde(rename = "wait_per_get_s"))]
    pub wait_per_get: Quantiles,
    /// The share of the time in which the queue was not empty, in 0..=1, including start-up.
    pub occupancy: f64,
}

impl QueueStatistics {
    /// The share of the time after start-up in which the queue was not empty, in 0..=1.
    pub(crate) fn readiness(&self, elapsed: Duration) -> f64 {
        let time = elapsed.saturating_sub(self.first_wait).as_secs_f64();
        if time == 0.0 || (self.items == 0 && self.len == 0) {
            return 0.0;
        }
        let empty = self.get_wait.saturating_sub(self.first_wait).as_secs_f64();
        (1.0 - empty / time).max(0.0)
    }
}

/// Statistics of the deliveries to the consumer.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ConsumerStatistics {
    /// Number of delivered items, usually batches.
    pub items: u64,
    /// Time from the start to the first item; `None` before the first item.
    #[cfg_attr(feature = "serde", serde(rename = "first_item_s", with = "crate::seconds::option"))]
    pub first_item: Option<Duration>,
    /// Total time in which the consumer waited.
    #[cfg_attr(feature = "serde", serde(rename = "waited_s", with = "crate::seconds"))]
    pub waited: Duration,
    /// Waiting time of the consumer for one item; 0 for an item that was delivered without a wait.
    #[cfg_attr(feature = "serde", serde(rename = "wait_s"))]
    pub wait: Quantiles,
}

/// A sample that a failure policy dropped.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Dropped {
    /// Epoch and position of the sample.
    pub id: SampleId,
    /// The key of the sample, from the source if it provides one, otherwise from the error.
    pub key: Option<Arc<str>>,
    /// The stage in which the sample failed.
    pub stage: Arc<str>,
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The error message with its causes.
    pub reason: String,
}

/// The number of samples that a stage dropped because of errors of one kind.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DroppedCount {
    /// The stage in which the samples failed.
    pub stage: Arc<str>,
    /// The kind of the errors.
    pub kind: ErrorKind,
    /// The number of samples.
    pub count: u64,
}

/// Returns what a stage does at the moment.
pub(crate) type ActivityProbe = Box<dyn Fn() -> Activity + Send + Sync>;

/// The counters of [`StageStatistics`].
pub(crate) struct StageMeter {
    pub(crate) name: Arc<str>,
    pub(crate) kind: StageKind,
    pub(crate) concurrency: AtomicUsize,
    dedicated: AtomicBool,
    holds_gil: AtomicBool,
    items: AtomicU64,
    failures: AtomicU64,
    pub(crate) retries: Counter,
    items_out: AtomicU64,
    fill_used: AtomicU64,
    fill_capacity: AtomicU64,
    busy_nanos: AtomicU64,
    service: Histogram,
    pub(crate) slowest: SlowestItems,
    ordered: AtomicBool,
    medium: OnceLock<Medium>,
    bytes: AtomicU64,
    /// Busy time of sampled runs, and the CPU time of their threads.
    sampled_nanos: AtomicU64,
    sampled_cpu_nanos: AtomicU64,
    /// Present for an async stage that has completed an item.
    rates: OnceLock<Box<[RateMeter]>>,
    /// What the stage does, if a task runs it.
    activity: AtomicU8,
    /// Returns what the stage does, if workers run it.
    probe: OnceLock<ActivityProbe>,
}

impl StageMeter {
    pub(crate) fn new(name: Arc<str>, kind: StageKind, concurrency: usize) -> Self {
        StageMeter {
            name,
            kind,
            concurrency: AtomicUsize::new(concurrency),
            dedicated: AtomicBool::new(false),
            holds_gil: AtomicBool::new(false),
            items: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            retries: Counter::default(),
            items_out: AtomicU64::new(0),
            fill_used: AtomicU64::new(0),
            fill_capacity: AtomicU64::new(0),
            busy_nanos: AtomicU64::new(0),
            service: Histogram::default(),
            slowest: SlowestItems::default(),
            ordered: AtomicBool::new(false),
            medium: OnceLock::new(),
            bytes: AtomicU64::new(0),
            sampled_nanos: AtomicU64::new(0),
            sampled_cpu_nanos: AtomicU64::new(0),
            rates: OnceLock::new(),
            activity: AtomicU8::new(Activity::Idle as u8),
            probe: OnceLock::new(),
        }
    }

    /// Sets that the stage has dedicated threads.
    pub(crate) fn set_dedicated(&self) {
        self.dedicated.store(true, Ordering::Relaxed);
    }

    /// Sets that the function of the stage holds Python's GIL.
    pub(crate) fn set_holds_gil(&self) {
        self.holds_gil.store(true, Ordering::Relaxed);
    }

    /// Sets that the stage emits its outputs in input order.
    pub(crate) fn set_ordered(&self) {
        self.ordered.store(true, Ordering::Relaxed);
    }

    /// Sets what the stage waits for.
    pub(crate) fn set_medium(&self, medium: Medium) {
        let _ = self.medium.set(medium);
    }

    /// Sets what the stage does.
    pub(crate) fn set_activity(&self, activity: Activity) {
        self.activity.store(activity as u8, Ordering::Relaxed);
    }

    /// Sets the function that returns what the stage does.
    pub(crate) fn set_probe(&self, probe: impl Fn() -> Activity + Send + Sync + 'static) {
        let _ = self.probe.set(Box::new(probe));
    }

    /// The progress and the activity of the stage.
    pub(crate) fn progress(&self) -> StageProgress {
        let stored = || Activity::from_number(self.activity.load(Ordering::Relaxed));
        let activity = self.probe.get().map_or_else(stored, |probe| probe());
        let paused = self.concurrency.load(Ordering::Relaxed) == 0;
        StageProgress {
            stage: Arc::clone(&self.name),
            kind: self.kind,
            items: self.items.load(Ordering::Relaxed),
            items_out: self.items_out.load(Ordering::Relaxed),
            activity: match activity {
                Activity::WaitsForMemory | Activity::WaitsForWorker if paused => Activity::Idle,
                activity => activity,
            },
        }
    }

    /// Counts `items` that took `time` together, of which `failures` failed.
    pub(crate) fn record(&self, items: u64, failures: u64, time: Duration) {
        if items == 0 {
            return;
        }
        self.items.fetch_add(items, Ordering::Relaxed);
        if failures > 0 {
            self.failures.fetch_add(failures, Ordering::Relaxed);
        }
        self.busy_nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        self.service.record(time / u32::try_from(items).unwrap_or(u32::MAX), items);
    }

    /// Counts the CPU time of a run that took `busy`.
    pub(crate) fn sampled(&self, busy: Duration, cpu: Duration) {
        self.sampled_nanos.fetch_add(busy.as_nanos() as u64, Ordering::Relaxed);
        self.sampled_cpu_nanos.fetch_add(cpu.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Counts `items` of an async stage with `bytes` that completed within `took`, while `in_flight` items were in flight.
    pub(crate) fn completed(&self, items: usize, bytes: usize, in_flight: usize, took: Duration) {
        let rates = self
            .rates
            .get_or_init(|| (0..=rate_bucket(usize::MAX)).map(|_| RateMeter::default()).collect());
        let rate = &rates[rate_bucket(in_flight)];
        rate.items.fetch_add(items as u64, Ordering::Relaxed);
        rate.in_flight.fetch_add((items * in_flight) as u64, Ordering::Relaxed);
        rate.nanos.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        rate.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts the bytes of an output.
    pub(crate) fn measured(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Counts outputs.
    pub(crate) fn emitted(&self, items: u64) {
        self.items_out.fetch_add(items, Ordering::Relaxed);
    }

    /// Adds to the fill rate of outputs.
    pub(crate) fn filled(&self, more: FillRate) {
        self.fill_used.fetch_add(more.used, Ordering::Relaxed);
        self.fill_capacity.fetch_add(more.capacity, Ordering::Relaxed);
    }

    /// The mean processing time of an item.
    pub(crate) fn mean_service(&self) -> Option<Duration> {
        let items = self.items.load(Ordering::Relaxed);
        let nanos = self.busy_nanos.load(Ordering::Relaxed);
        nanos.checked_div(items).map(Duration::from_nanos)
    }

    pub(crate) fn snapshot(&self) -> StageStatistics {
        self.raw().statistics()
    }

    /// A copy of the counters, from which later snapshots are subtracted.
    pub(crate) fn raw(&self) -> StageSnapshot {
        StageSnapshot {
            name: Arc::clone(&self.name),
            kind: self.kind,
            concurrency: self.concurrency.load(Ordering::Relaxed),
            dedicated: self.dedicated.load(Ordering::Relaxed),
            holds_gil: self.holds_gil.load(Ordering::Relaxed),
            items: self.items.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            retries: self.retries.get(),
            items_out: self.items_out.load(Ordering::Relaxed),
            filled: FillRate {
                used: self.fill_used.load(Ordering::Relaxed),
                capacity: self.fill_capacity.load(Ordering::Relaxed),
            },
            busy_nanos: self.busy_nanos.load(Ordering::Relaxed),
            service: self.service.counts(),
            ordered: self.ordered.load(Ordering::Relaxed),
            medium: self.medium.get().copied().unwrap_or_default(),
            bytes: self.bytes.load(Ordering::Relaxed),
            sampled_nanos: self.sampled_nanos.load(Ordering::Relaxed),
            sampled_cpu_nanos: self.sampled_cpu_nanos.load(Ordering::Relaxed),
            rates: self
                .rates
                .get()
                .map_or_else(Vec::new, |rates| rates.iter().map(RateMeter::counts).collect()),
        }
    }
}

/// The counters of [`InFlightRate`].
#[derive(Default)]
struct RateMeter {
    items: AtomicU64,
    /// The sum over items of the number of items in flight.
    in_flight: AtomicU64,
    nanos: AtomicU64,
    bytes: AtomicU64,
}

impl RateMeter {
    fn counts(&self) -> [u64; 4] {
        let counts = [&self.items, &self.in_flight, &self.nanos, &self.bytes];
        counts.map(|count| count.load(Ordering::Relaxed))
    }
}

/// The bucket of rates with this number of items in flight: exact up to 7, then four for each power
/// of two, up to 4096.
fn rate_bucket(in_flight: usize) -> usize {
    let in_flight = in_flight.min(4096);
    let power = in_flight.max(1).ilog2();
    match power {
        0..3 => in_flight,
        _ => 8 + 4 * (power as usize - 3) + ((in_flight >> (power - 2)) & 3),
    }
}

impl fmt::Debug for StageMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw().fmt(f)
    }
}

/// A snapshot of a [`StageMeter`], or the difference of two.
#[derive(Clone, Debug)]
pub(crate) struct StageSnapshot {
    name: Arc<str>,
    kind: StageKind,
    concurrency: usize,
    dedicated: bool,
    holds_gil: bool,
    pub(crate) items: u64,
    failures: u64,
    retries: u64,
    items_out: u64,
    filled: FillRate,
    pub(crate) busy_nanos: u64,
    service: Counts,
    ordered: bool,
    medium: Medium,
    bytes: u64,
    sampled_nanos: u64,
    sampled_cpu_nanos: u64,
    /// The counts of each [`RateMeter`].
    rates: Vec<[u64; 4]>,
}

impl StageSnapshot {
    /// The difference to an `earlier` snapshot.
    pub(crate) fn since(&self, earlier: &StageSnapshot) -> StageSnapshot {
        StageSnapshot {
            name: Arc::clone(&self.name),
            kind: self.kind,
            concurrency: self.concurrency,
            dedicated: self.dedicated,
            holds_gil: self.holds_gil,
            items: self.items.saturating_sub(earlier.items),
            failures: self.failures.saturating_sub(earlier.failures),
            retries: self.retries.saturating_sub(earlier.retries),
            items_out: self.items_out.saturating_sub(earlier.items_out),
            filled: self.filled.since(earlier.filled),
            busy_nanos: self.busy_nanos.saturating_sub(earlier.busy_nanos),
            service: self.service.since(&earlier.service),
            ordered: self.ordered,
            medium: self.medium,
            bytes: self.bytes.saturating_sub(earlier.bytes),
            sampled_nanos: self.sampled_nanos.saturating_sub(earlier.sampled_nanos),
            sampled_cpu_nanos: self.sampled_cpu_nanos.saturating_sub(earlier.sampled_cpu_nanos),
            rates: self.rates_since(earlier),
        }
    }

    fn rates_since(&self, earlier: &StageSnapshot) -> Vec<[u64; 4]> {
        let rate = |(at, now): (usize, &[u64; 4])| {
            let then = earlier.rates.get(at).copied().unwrap_or_default();
            std::array::from_fn(|count| now[count].saturating_sub(then[count]))
        };
        self.rates.iter().enumerate().map(rate).collect()
    }

    pub(crate) fn statistics(&self) -> StageStatistics {
        StageStatistics {
            name: Arc::clone(&self.name),
            kind: self.kind,
            concurrency: self.concurrency,
            dedicated: self.dedicated,
            items: self.items,
            failures: self.failures,
            retries: self.retries,
            items_out: self.items_out,
            fill_rate: self.filled.share(),
            busy: Duration::from_nanos(self.busy_nanos),
            service: self.service.quantiles(),
            ordered: self.ordered,
            holds_gil: self.holds_gil,
            medium: self.medium,
            cpu_share: (self.sampled_nanos > 0)
                .then(|| (self.sampled_cpu_nanos as f64 / self.sampled_nanos as f64).min(1.0)),
            rates: self.rates(),
            bytes: self.bytes,
            cache: None,
        }
    }

    fn rates(&self) -> Vec<InFlightRate> {
        let rates = self.rates.iter().filter(|[items, ..]| *items > 0);
        let rate = |&[items, in_flight, nanos, bytes]: &[u64; 4]| {
            let in_flight = in_flight as f64 / items as f64;
            InFlightRate { in_flight, items, time: Duration::from_nanos(nanos), bytes }
        };
        rates.map(rate).collect()
    }
}

/// The counters of [`QueueStatistics`], protected by the lock of the queue.
///
/// Before each change, the queue calls [`touch`](Self::touch) with its state before the change.
/// After the change, the queue calls [`put`](Self::put) or [`got`](Self::got). Memory is constant,
/// and each `touch` reads the clock once. Counting begins with [`start`](Self::start).
#[derive(Debug, Default)]
pub(crate) struct QueueMeter {
    last: Option<Instant>,
    nanos: u64,
    item_seconds: f64,
    full_nanos: u64,
    empty_nanos: u64,
    first_wait_nanos: u64,
    /// Whether the queue ever had an item.
    had_items: bool,
    /// Time in which the queue was full since the last put, and empty since the last get.
    full_run: Duration,
    empty_run: Duration,
    puts: Counts,
    gets: Counts,
}

impl QueueMeter {
    /// Starts or restarts the clock. Counts are kept.
    pub(crate) fn start(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Counts the time since the last touch, in which the queue had `len` items. Time in which the
    /// queue is closed and empty does not count.
    pub(crate) fn touch(&mut self, len: usize, full: bool, closed: bool) {
        let Some(last) = self.last else { return };
        let now = Instant::now();
        self.last = Some(now);
        self.advance(now.duration_since(last), len, full, closed);
    }

    fn advance(&mut self, time: Duration, len: usize, full: bool, closed: bool) {
        if closed && len == 0 {
            return;
        }
        let nanos = time.as_nanos() as u64;
        self.nanos += nanos;
        self.item_seconds += len as f64 * time.as_secs_f64();
        if full {
            self.full_nanos += nanos;
            self.full_run += time;
        }
        if len == 0 {
            self.empty_nanos += nanos;
            self.empty_run += time;
            if !self.had_items {
                self.first_wait_nanos += nanos;
            }
        } else {
            self.had_items = true;
        }
    }

    /// Counts `items` that were put together. The first item waited for as long as the queue was
    /// full since the last put. The other items did not wait.
    pub(crate) fn put(&mut self, items: u64) {
        if let Some(others) = items.checked_sub(1) {
            let waited = std::mem::take(&mut self.full_run);
            self.put_waited(waited);
            self.puts.record(Duration::ZERO, others);
        }
    }

    /// Counts `items` that were taken together. The get of the first item waited for as long as the
    /// queue was empty since the last get. The other items were ready.
    pub(crate) fn got(&mut self, items: u64) {
        if let Some(others) = items.checked_sub(1) {
            let waited = std::mem::take(&mut self.empty_run);
            self.got_after(waited);
            self.gets.record(Duration::ZERO, others);
        }
    }

    /// Counts one item whose put waited for `wait`.
    pub(crate) fn put_waited(&mut self, wait: Duration) {
        self.puts.record(wait, 1);
    }

    /// Counts one item whose get waited for `wait`.
    pub(crate) fn got_after(&mut self, wait: Duration) {
        self.gets.record(wait, 1);
    }

    /// Time in which the queue was empty, as of the last touch.
    pub(crate) fn empty_time(&self) -> Duration {
        Duration::from_nanos(self.empty_nanos)
    }

    /// A copy of the counters as of the last touch, to be evaluated after the lock is released.
    pub(crate) fn raw(&self, capacity: usize, len: usize, items: u64) -> QueueSnapshot {
        QueueSnapshot {
            capacity,
            len,
            items,
            nanos: self.nanos,
            item_seconds: self.item_seconds,
            full_nanos: self.full_nanos,
            empty_nanos: self.empty_nanos,
            first_wait_nanos: self.first_wait_nanos,
            puts: self.puts.clone(),
            gets: self.gets.clone(),
        }
    }
}

/// A snapshot of a [`QueueMeter`], or the difference of two.
#[derive(Clone, Debug)]
pub(crate) struct QueueSnapshot {
    capacity: usize,
    len: usize,
    items: u64,
    nanos: u64,
    item_seconds: f64,
    full_nanos: u64,
    empty_nanos: u64,
    first_wait_nanos: u64,
    puts: Counts,
    gets: Counts,
}

impl QueueSnapshot {
    /// The difference to an `earlier` snapshot.
    pub(crate) fn since(&self, earlier: &QueueSnapshot) -> QueueSnapshot {
        QueueSnapshot {
            capacity: self.capacity,
            len: self.len,
            items: self.items.saturating_sub(earlier.items),
            nanos: self.nanos.saturating_sub(earlier.nanos),
            item_seconds: (self.item_seconds - earlier.item_seconds).max(0.0),
            full_nanos: self.full_nanos.saturating_sub(earlier.full_nanos),
            empty_nanos: self.empty_nanos.saturating_sub(earlier.empty_nanos),
            first_wait_nanos: self.first_wait_nanos.saturating_sub(earlier.first_wait_nanos),
            puts: self.puts.since(&earlier.puts),
            gets: self.gets.since(&earlier.gets),
        }
    }

    pub(crate) fn statistics(&self) -> QueueStatistics {
        let time = Duration::from_nanos(self.nanos).as_secs_f64();
        let share = |part: f64| if time > 0.0 { part / time } else { 0.0 };
        let empty = Duration::from_nanos(self.empty_nanos);
        QueueStatistics {
            capacity: self.capacity,
            len: self.len,
            items: self.items,
            mean_len: share(self.item_seconds),
            put_wait: Duration::from_nanos(self.full_nanos),
            get_wait: empty,
            first_wait: Duration::from_nanos(self.first_wait_nanos),
            wait_per_put: self.puts.quantiles(),
            wait_per_get: self.gets.quantiles(),
            occupancy: share(time - empty.as_secs_f64()).clamp(0.0, 1.0),
        }
    }
}

/// The counters of [`ConsumerStatistics`].
#[derive(Debug, Default)]
pub(crate) struct ConsumerMeter {
    items: AtomicU64,
    first_item_nanos: AtomicU64,
    waited_nanos: AtomicU64,
    wait: Histogram,
}

impl ConsumerMeter {
    /// Counts an item delivered after a wait of `wait`, `since_start` after the start.
    pub(crate) fn delivered(&self, wait: Duration, since_start: Duration) {
        if self.items.fetch_add(1, Ordering::Relaxed) == 0 {
            self.first_item_nanos.store(since_start.as_nanos() as u64, Ordering::Relaxed);
        }
        self.waited_nanos.fetch_add(wait.as_nanos() as u64, Ordering::Relaxed);
        self.wait.record(wait, 1);
    }

    /// Counts items delivered together with a counted one, without a wait.
    pub(crate) fn delivered_at_once(&self, items: u64) {
        self.items.fetch_add(items, Ordering::Relaxed);
        self.wait.record(Duration::ZERO, items);
    }

    pub(crate) fn snapshot(&self) -> ConsumerStatistics {
        self.raw().statistics()
    }

    /// A copy of the counters, from which later snapshots are subtracted.
    pub(crate) fn raw(&self) -> ConsumerSnapshot {
        let items = self.items.load(Ordering::Relaxed);
        let nanos = |n: &AtomicU64| Duration::from_nanos(n.load(Ordering::Relaxed));
        ConsumerSnapshot {
            items,
            first_item: (items > 0).then(|| nanos(&self.first_item_nanos)),
            waited: nanos(&self.waited_nanos),
            wait: self.wait.counts(),
        }
    }
}

/// A snapshot of a [`ConsumerMeter`], or the difference of two.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerSnapshot {
    items: u64,
    first_item: Option<Duration>,
    waited: Duration,
    wait: Counts,
}

impl ConsumerSnapshot {
    /// The difference to an `earlier` snapshot. `first_item` remains the value of the whole run.
    pub(crate) fn since(&self, earlier: &ConsumerSnapshot) -> ConsumerSnapshot {
        ConsumerSnapshot {
            items: self.items.saturating_sub(earlier.items),
            first_item: self.first_item,
            waited: self.waited.saturating_sub(earlier.waited),
            wait: self.wait.since(&earlier.wait),
        }
    }

    pub(crate) fn statistics(&self) -> ConsumerStatistics {
        ConsumerStatistics {
            items: self.items,
            first_item: self.first_item,
            waited: self.waited,
            wait: self.wait.quantiles(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn is_about(value: Duration, expected: Duration) {
        let ratio = value.as_secs_f64() / expected.as_secs_f64();
        assert!((0.93..1.07).contains(&ratio), "{value:?} for {expected:?}");
    }

    #[test]
    fn times_of_a_full_and_an_empty_queue() {
        let mut meter = QueueMeter::default();
        meter.advance(20 * MS, 0, false, false);
        meter.put(2);
        meter.advance(30 * MS, 2, true, false);
        meter.got(1);
        meter.advance(10 * MS, 1, false, false);
        meter.put(1);
        meter.advance(10 * MS, 2, true, false);
        meter.got(2);
        meter.advance(30 * MS, 0, false, false);
        let statistics = meter.raw(2, 0, 3).statistics();
        assert_eq!((statistics.capacity, statistics.len, statistics.items), (2, 0, 3));
        assert_eq!(statistics.put_wait, 40 * MS);
        assert_eq!(statistics.get_wait, 50 * MS);
        assert_eq!(statistics.first_wait, 20 * MS);
        assert!((statistics.occupancy - 0.5).abs() < 1e-9);
        assert!((statistics.mean_len - 0.9).abs() < 1e-9, "{}", statistics.mean_len);
        // After 20 ms of start-up, the queue was not empty for 50 of 80 ms.
        assert!((statistics.readiness(100 * MS) - 0.625).abs() < 1e-9);
    }

    #[test]
    fn only_the_first_item_of_a_group_waits() {
        let mut meter = QueueMeter::default();
        meter.advance(5 * MS, 0, false, false);
        meter.put(4);
        meter.advance(8 * MS, 4, true, false);
        meter.got(4);
        meter.put(10);
        let statistics = meter.raw(4, 0, 4).statistics();
        assert_eq!(statistics.wait_per_get.p50, Duration::ZERO);
        assert_eq!(statistics.wait_per_get.max, 5 * MS);
        is_about(statistics.wait_per_get.p99, 5 * MS);
        assert_eq!(statistics.wait_per_put.p90, Duration::ZERO);
        assert_eq!(statistics.wait_per_put.max, 8 * MS);
        for _ in 0..50 {
            meter.put(1);
            meter.got(1);
        }
        let statistics = meter.raw(4, 0, 54).statistics();
        assert_eq!(statistics.wait_per_put.p90, Duration::ZERO, "the wait is counted once");
        assert_eq!(statistics.wait_per_get.p90, Duration::ZERO, "the wait is counted once");
        meter.put(0);
        meter.got(0);
        assert_eq!(meter.raw(4, 0, 4).puts.quantiles(), statistics.wait_per_put);
    }

    #[test]
    fn waits_measured_by_the_caller_are_recorded() {
        let mut meter = QueueMeter::default();
        meter.put_waited(7 * MS);
        meter.got_after(3 * MS);
        let statistics = meter.raw(1, 0, 1).statistics();
        assert_eq!(statistics.wait_per_put.max, 7 * MS);
        assert_eq!(statistics.wait_per_get.max, 3 * MS);
    }

    #[test]
    fn time_after_the_end_does_not_count() {
        let mut meter = QueueMeter::default();
        meter.advance(MS, 1, false, true);
        meter.advance(100 * MS, 0, false, true);
        let statistics = meter.raw(1, 0, 1).statistics();
        assert_eq!((statistics.get_wait, statistics.occupancy), (Duration::ZERO, 1.0));
    }

    #[test]
    fn nothing_is_counted_before_the_start() {
        let mut meter = QueueMeter::default();
        meter.touch(0, false, false);
        assert_eq!(meter.nanos, 0);
        meter.start(Instant::now());
        std::thread::sleep(MS);
        meter.touch(0, false, false);
        assert!(meter.nanos >= 1_000_000 && meter.empty_nanos == meter.nanos);
    }

    #[test]
    fn readiness_leaves_the_start_up_out() {
        let queue = |items, first_wait, get_wait| QueueStatistics {
            items,
            first_wait: first_wait * MS,
            get_wait: get_wait * MS,
            ..Default::default()
        };
        assert_eq!(queue(0, 50, 50).readiness(51 * MS), 0.0, "no item was ready yet");
        assert_eq!(queue(1, 50, 50).readiness(50 * MS), 0.0);
        assert_eq!(queue(9, 50, 50).readiness(100 * MS), 1.0);
        assert_eq!(queue(9, 50, 75).readiness(100 * MS), 0.5);
        assert_eq!(queue(9, 0, 75).readiness(Duration::ZERO), 0.0);
    }

    #[test]
    fn rates_are_counted_by_the_number_of_items_in_flight() {
        let meter = StageMeter::new("fetch".into(), StageKind::Async, 64);
        for _ in 0..10 {
            meter.completed(1, 5, 1, 10 * MS);
            meter.completed(1, 5, 62, 2 * MS);
            meter.completed(1, 5, 64, MS);
        }
        let before = meter.raw();
        meter.completed(1, 5, 64, 3 * MS);
        let of = |rate: &InFlightRate| {
            assert_eq!(rate.bytes, 5 * rate.items);
            (rate.in_flight, rate.items, rate.time)
        };
        let rates: Vec<_> = meter.snapshot().rates.iter().map(of).collect();
        assert_eq!(rates, [(1.0, 10, 100 * MS), (62.0, 10, 20 * MS), (64.0, 11, 13 * MS)]);
        let rates = meter.raw().since(&before).statistics().rates;
        assert_eq!(rates.iter().map(of).collect::<Vec<_>>(), [(64.0, 1, 3 * MS)]);
        // Buckets are in the order of the numbers, without gaps.
        let buckets: Vec<usize> = (1..5000).map(rate_bucket).collect();
        assert!(buckets.is_sorted() && buckets.iter().max() == Some(&rate_bucket(usize::MAX)));
        assert!((1..5000).all(|n| rate_bucket(n) - rate_bucket(n.max(2) - 1) <= 1));
    }

    #[test]
    fn a_stage_counts_inputs_and_outputs() {
        let meter = StageMeter::new("split".into(), StageKind::Cpu, 2);
        meter.record(2, 1, 4 * MS);
        meter.emitted(5);
        let before = meter.raw();
        meter.record(1, 0, 9 * MS);
        meter.emitted(3);
        let all = meter.snapshot();
        assert_eq!((all.items, all.failures, all.items_out, all.busy), (3, 1, 8, 13 * MS));
        let part = meter.raw().since(&before).statistics();
        assert_eq!((part.items, part.failures, part.items_out, part.busy), (1, 0, 3, 9 * MS));
        assert_eq!((all.fill_rate, part.fill_rate), (None, None));
        meter.filled(FillRate { used: 3, capacity: 4 });
        let before = meter.raw();
        meter.filled(FillRate { used: 1, capacity: 4 });
        assert_eq!(meter.snapshot().fill_rate, Some(0.5));
        assert_eq!(meter.raw().since(&before).statistics().fill_rate, Some(0.25));
        is_about(part.service.p50, 9 * MS);
    }
}

#[cfg(all(test, feature = "serde"))]
mod serde_tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_in_json_are_seconds_with_the_suffix_s() {
        let meter = StageMeter::new("decode".into(), StageKind::Cpu, 4);
        meter.record(1, 0, Duration::from_millis(250));
        let consumer = ConsumerStatistics {
            first_item: Some(Duration::from_millis(1500)),
            ..ConsumerStatistics::default()
        };
        let statistics = Statistics {
            elapsed: Duration::from_millis(2500),
            stages: vec![meter.snapshot()],
            queues: vec![QueueStatistics::default()],
            consumer,
            ..Statistics::default()
        };
        let json = serde_json::to_value(&statistics).unwrap();
        assert_eq!(json["elapsed_s"], 2.5);
        assert_eq!(json["stages"][0]["name"], "decode");
        assert_eq!(json["stages"][0]["kind"], "cpu");
        assert_eq!(json["stages"][0]["busy_s"], 0.25);
        assert_eq!(json["stages"][0]["service_s"]["max"], 0.25);
        assert_eq!(json["queues"][0]["get_wait_s"], 0.0);
        assert_eq!(json["consumer"]["first_item_s"], 1.5);
        assert_eq!(json["dropped"], json!([]));
        let nothing = serde_json::to_value(Statistics::default()).unwrap();
        assert_eq!(nothing["consumer"]["first_item_s"], json!(null));
    }

    #[test]
    fn a_dropped_sample_in_json() {
        let dropped = Dropped {
            id: crate::source::sample::SampleId { epoch: 1, index: 2 },
            key: Some("a.jpg".into()),
            stage: "decode".into(),
            kind: crate::error::ErrorKind::NotFound,
            reason: "gone".into(),
        };
        let json = serde_json::to_value(dropped).unwrap();
        let id = json!({ "epoch": 1, "index": 2 });
        let expected = json!({
            "id": id, "key": "a.jpg", "stage": "decode", "kind": "not-found", "reason": "gone",
        });
        assert_eq!(json, expected);
    }
}
