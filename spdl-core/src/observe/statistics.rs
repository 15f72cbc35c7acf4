//! What a pipeline did: the numbers that say where the time went.

use std::fmt;
use std::sync::Arc;
// Counters that nobody waits for or decides by stay out of the model checkers' sight.
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::error::ErrorKind;
use crate::memory::budget::MemoryStatistics;
use crate::memory::buffer::PoolStatistics;
use crate::observe::histogram::{Counts, Histogram, Quantiles};
use crate::source::sample::SampleId;
use crate::stage::aggregate::FillRate;

/// A snapshot of a pipeline's counters, taken at any time, while it runs or after it has ended.
///
/// All times are wall time since the start. The names are the same in logs, JSON and Python.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Statistics {
    /// The pipeline's number in this process, counted from 0 in the order of building.
    pub pipeline: u64,
    /// Time since the start; it stands still once the pipeline has ended.
    #[cfg_attr(feature = "serde", serde(rename = "elapsed_s", with = "crate::seconds"))]
    pub elapsed: Duration,
    /// Worker threads of the CPU pool.
    pub threads: usize,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// The stages from source to consumer.
    pub stages: Vec<StageStatistics>,
    /// The queues between them; `queues[i]` follows `stages[i]`, the last one feeds the consumer.
    pub queues: Vec<QueueStatistics>,
    /// What the consumer saw.
    pub consumer: ConsumerStatistics,
    /// The memory budget and what of it is in use.
    pub memory: MemoryStatistics,
    /// Batch memory.
    pub buffers: PoolStatistics,
    /// Samples that a failure policy dropped, by identity; at most [`MAX_DROPPED_LISTED`].
    pub dropped: Vec<Dropped>,
    /// How many samples were dropped in all.
    pub dropped_total: u64,
    /// Samples left out with short last batches (`drop_last`).
    pub left_out: u64,
}

/// How many dropped samples are kept with their names; more are only counted.
pub const MAX_DROPPED_LISTED: usize = 100_000;

impl Statistics {
    /// The share of the time in which something was ready for the consumer, in 0..=1, from the
    /// moment on at which there was something for the first time; 0 before that. Near 1, the
    /// consumer is never starved; near 0, it takes everything at once and waits.
    pub fn data_readiness(&self) -> f64 {
        self.queues.last().map_or(0.0, |queue| queue.readiness(self.elapsed))
    }
}

/// A line for the pipeline and one for every stage, for people to read.
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

/// A line for every stage, with the queue behind it.
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

/// What kind of work a stage does, and thereby what its concurrency means.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum StageKind {
    /// Names items. Runs on the runtime, one at a time.
    Source,
    /// Waits. Runs on the runtime, many in flight.
    Async,
    /// Computes on the CPU pool.
    Cpu,
    /// Computes on the CPU pool and writes into batches.
    Fill,
    /// Takes items from several branches. Runs on the runtime.
    Merge,
    /// A path of a route, or where its paths join again. Runs on the runtime.
    Route,
}

impl StageKind {
    /// `source`, `async`, `cpu`, `fill`, `merge` or `route`.
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

    /// Whether it runs on the CPU pool.
    pub fn uses_cpu_pool(self) -> bool {
        matches!(self, StageKind::Cpu | StageKind::Fill)
    }
}

/// What one stage did.
#[non_exhaustive]
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct StageStatistics {
    /// The name given to the builder.
    pub name: Arc<str>,
    /// What kind of work it does.
    pub kind: StageKind,
    /// How many items it may work on at once.
    pub concurrency: usize,
    /// Items it has finished, failed ones included.
    pub items: u64,
    /// Items that failed.
    pub failures: u64,
    /// Items it has handed on: none, one or many for each that it has taken in.
    pub items_out: u64,
    /// How much of the room in its outputs is used, in 0..=1; the rest is padding. `None` where
    /// there is nothing to be filled; see [`Aggregator::fill_rate`](crate::stage::Aggregator::fill_rate).
    pub fill_rate: Option<f64>,
    /// The time spent in it, summed over everything that ran at once.
    #[cfg_attr(feature = "serde", serde(rename = "busy_s", with = "crate::seconds"))]
    pub busy: Duration,
    /// The time one item takes.
    #[cfg_attr(feature = "serde", serde(rename = "service_s"))]
    pub service: Quantiles,
}

impl StageStatistics {
    /// The share of its concurrency that was in use on average, in 0..=1.
    pub fn busy_share(&self, elapsed: Duration) -> f64 {
        let available = elapsed.as_secs_f64() * self.concurrency as f64;
        if available > 0.0 { (self.busy.as_secs_f64() / available).min(1.0) } else { 0.0 }
    }
}

/// What one queue held.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct QueueStatistics {
    /// How many items it may hold.
    pub capacity: usize,
    /// How many it holds now.
    pub len: usize,
    /// Items that have gone through.
    pub items: u64,
    /// How many it held on average over time.
    pub mean_len: f64,
    /// How long it was full, so that the stage before it had to wait.
    #[cfg_attr(feature = "serde", serde(rename = "put_wait_s", with = "crate::seconds"))]
    pub put_wait: Duration,
    /// How long it was empty, so that the stage after it had to wait.
    #[cfg_attr(feature = "serde", serde(rename = "get_wait_s", with = "crate::seconds"))]
    pub get_wait: Duration,
    /// The part of `get_wait` that passed before its very first item: the start-up.
    #[cfg_attr(feature = "serde", serde(rename = "first_wait_s", with = "crate::seconds"))]
    pub first_wait: Duration,
    /// How long putting one item in had to wait for room.
    #[cfg_attr(feature = "serde", serde(rename = "wait_per_put_s"))]
    pub wait_per_put: Quantiles,
    /// How long taking one item out had to wait for it.
    #[cfg_attr(feature = "serde", serde(rename = "wait_per_get_s"))]
    pub wait_per_get: Quantiles,
    /// The share of the time in which it was not empty, in 0..=1, start-up included.
    pub occupancy: f64,
}

impl QueueStatistics {
    /// The share of the time after its start-up in which it was not empty, in 0..=1.
    pub(crate) fn readiness(&self, elapsed: Duration) -> f64 {
        let time = elapsed.saturating_sub(self.first_wait).as_secs_f64();
        if time == 0.0 || (self.items == 0 && self.len == 0) {
            return 0.0;
        }
        let empty = self.get_wait.saturating_sub(self.first_wait).as_secs_f64();
        (1.0 - empty / time).max(0.0)
    }
}

/// What the consumer saw.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct ConsumerStatistics {
    /// Items (batches, mostly) delivered.
    pub items: u64,
    /// From the start to the first item; `None` before it.
    #[cfg_attr(feature = "serde", serde(rename = "first_item_s", with = "crate::seconds::option"))]
    pub first_item: Option<Duration>,
    /// How long the consumer waited in all.
    #[cfg_attr(feature = "serde", serde(rename = "waited_s", with = "crate::seconds"))]
    pub waited: Duration,
    /// How long it waited for one item.
    #[cfg_attr(feature = "serde", serde(rename = "wait_s"))]
    pub wait: Quantiles,
}

/// A sample that a failure policy dropped.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Dropped {
    /// Who it was.
    pub id: SampleId,
    /// What people call it, where the source says so, or else the error.
    pub key: Option<Arc<str>>,
    /// The stage in which it failed.
    pub stage: Arc<str>,
    /// The kind of failure.
    pub kind: ErrorKind,
    /// What went wrong, with its causes.
    pub reason: String,
}

/// The counters behind [`StageStatistics`].
#[derive(Debug)]
pub(crate) struct StageMeter {
    pub(crate) name: Arc<str>,
    pub(crate) kind: StageKind,
    pub(crate) concurrency: AtomicUsize,
    items: AtomicU64,
    failures: AtomicU64,
    items_out: AtomicU64,
    fill_used: AtomicU64,
    fill_capacity: AtomicU64,
    busy_nanos: AtomicU64,
    service: Histogram,
}

impl StageMeter {
    pub(crate) fn new(name: Arc<str>, kind: StageKind, concurrency: usize) -> Self {
        StageMeter {
            name,
            kind,
            concurrency: AtomicUsize::new(concurrency),
            items: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            items_out: AtomicU64::new(0),
            fill_used: AtomicU64::new(0),
            fill_capacity: AtomicU64::new(0),
            busy_nanos: AtomicU64::new(0),
            service: Histogram::default(),
        }
    }

    /// Counts a run of `items` that took `time` together, `failures` of them in vain.
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

    /// Counts `items` that were handed on.
    pub(crate) fn emitted(&self, items: u64) {
        self.items_out.fetch_add(items, Ordering::Relaxed);
    }

    /// Counts how well outputs are filled.
    pub(crate) fn filled(&self, more: FillRate) {
        self.fill_used.fetch_add(more.used, Ordering::Relaxed);
        self.fill_capacity.fetch_add(more.capacity, Ordering::Relaxed);
    }

    /// The mean time of one item so far.
    pub(crate) fn mean_service(&self) -> Option<Duration> {
        let items = self.items.load(Ordering::Relaxed);
        let nanos = self.busy_nanos.load(Ordering::Relaxed);
        nanos.checked_div(items).map(Duration::from_nanos)
    }

    pub(crate) fn snapshot(&self) -> StageStatistics {
        self.raw().statistics()
    }

    /// The counters as they are now, to be compared with later ones.
    pub(crate) fn raw(&self) -> StageSnapshot {
        StageSnapshot {
            name: Arc::clone(&self.name),
            kind: self.kind,
            concurrency: self.concurrency.load(Ordering::Relaxed),
            items: self.items.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            items_out: self.items_out.load(Ordering::Relaxed),
            filled: FillRate {
                used: self.fill_used.load(Ordering::Relaxed),
                capacity: self.fill_capacity.load(Ordering::Relaxed),
            },
            busy_nanos: self.busy_nanos.load(Ordering::Relaxed),
            service: self.service.counts(),
        }
    }
}

/// A [`StageMeter`] at one moment, or between two.
#[derive(Clone, Debug)]
pub(crate) struct StageSnapshot {
    name: Arc<str>,
    kind: StageKind,
    concurrency: usize,
    pub(crate) items: u64,
    failures: u64,
    items_out: u64,
    filled: FillRate,
    pub(crate) busy_nanos: u64,
    service: Counts,
}

impl StageSnapshot {
    /// What was counted after `earlier`.
    pub(crate) fn since(&self, earlier: &StageSnapshot) -> StageSnapshot {
        StageSnapshot {
            name: Arc::clone(&self.name),
            kind: self.kind,
            concurrency: self.concurrency,
            items: self.items.saturating_sub(earlier.items),
            failures: self.failures.saturating_sub(earlier.failures),
            items_out: self.items_out.saturating_sub(earlier.items_out),
            filled: self.filled.since(earlier.filled),
            busy_nanos: self.busy_nanos.saturating_sub(earlier.busy_nanos),
            service: self.service.since(&earlier.service),
        }
    }

    pub(crate) fn statistics(&self) -> StageStatistics {
        StageStatistics {
            name: Arc::clone(&self.name),
            kind: self.kind,
            concurrency: self.concurrency,
            items: self.items,
            failures: self.failures,
            items_out: self.items_out,
            fill_rate: self.filled.share(),
            busy: Duration::from_nanos(self.busy_nanos),
            service: self.service.quantiles(),
        }
    }
}

/// The counters behind [`QueueStatistics`], for the lock of the queue.
///
/// The queue says before each change how it has been until then ([`touch`](Self::touch)), and then
/// what the change is ([`put`](Self::put), [`got`](Self::got)). Constant memory; one look at the
/// clock per touch; nothing is counted before [`start`](Self::start).
#[derive(Debug, Default)]
pub(crate) struct QueueMeter {
    last: Option<Instant>,
    nanos: u64,
    item_seconds: f64,
    full_nanos: u64,
    empty_nanos: u64,
    first_wait_nanos: u64,
    /// Whether there was an item at any time.
    had_items: bool,
    /// For how long the queue was full since the last put, and empty since the last get.
    full_run: Duration,
    empty_run: Duration,
    puts: Counts,
    gets: Counts,
}

impl QueueMeter {
    /// Starts the clock; goes on where it was if it was started before.
    pub(crate) fn start(&mut self, now: Instant) {
        self.last = Some(now);
    }

    /// Counts the time since the last touch, in which the queue held `len` items and had no room
    /// (`full`). The time of a queue that is empty for good (`closed`) does not count.
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

    /// Counts `items` put in together: the first had to wait for as long as the queue was full
    /// since the last put, the others then found room.
    pub(crate) fn put(&mut self, items: u64) {
        if let Some(others) = items.checked_sub(1) {
            let waited = std::mem::take(&mut self.full_run);
            self.put_waited(waited);
            self.puts.record(Duration::ZERO, others);
        }
    }

    /// Counts `items` taken out together: the first was waited for as long as the queue was empty
    /// since the last get, the others then were there.
    pub(crate) fn got(&mut self, items: u64) {
        if let Some(others) = items.checked_sub(1) {
            let waited = std::mem::take(&mut self.empty_run);
            self.got_after(waited);
            self.gets.record(Duration::ZERO, others);
        }
    }

    /// Counts one item whose put had to wait for this long.
    pub(crate) fn put_waited(&mut self, wait: Duration) {
        self.puts.record(wait, 1);
    }

    /// Counts one item for which the get had to wait for this long.
    pub(crate) fn got_after(&mut self, wait: Duration) {
        self.gets.record(wait, 1);
    }

    /// For how long there was nothing in it, as of the last touch.
    pub(crate) fn empty_time(&self) -> Duration {
        Duration::from_nanos(self.empty_nanos)
    }

    /// The counters as of the last touch; turn it into statistics after the lock is released.
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

/// A [`QueueMeter`] at one moment, or between two.
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
    /// What was counted after `earlier`.
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

/// The counters behind [`ConsumerStatistics`].
#[derive(Debug, Default)]
pub(crate) struct ConsumerMeter {
    items: AtomicU64,
    first_item_nanos: AtomicU64,
    waited_nanos: AtomicU64,
    wait: Histogram,
}

impl ConsumerMeter {
    /// Counts an item that came after `wait`, `since_start` after the start.
    pub(crate) fn delivered(&self, wait: Duration, since_start: Duration) {
        if self.items.fetch_add(1, Ordering::Relaxed) == 0 {
            self.first_item_nanos.store(since_start.as_nanos() as u64, Ordering::Relaxed);
        }
        self.waited_nanos.fetch_add(wait.as_nanos() as u64, Ordering::Relaxed);
        self.wait.record(wait, 1);
    }

    /// Counts items that came together with one that was counted: nobody waited for them.
    pub(crate) fn delivered_at_once(&self, items: u64) {
        self.items.fetch_add(items, Ordering::Relaxed);
        self.wait.record(Duration::ZERO, items);
    }

    pub(crate) fn snapshot(&self) -> ConsumerStatistics {
        self.raw().statistics()
    }

    /// The counters as they are now, to be compared with later ones.
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

/// A [`ConsumerMeter`] at one moment, or between two.
#[derive(Clone, Debug)]
pub(crate) struct ConsumerSnapshot {
    items: u64,
    first_item: Option<Duration>,
    waited: Duration,
    wait: Counts,
}

impl ConsumerSnapshot {
    /// What was counted after `earlier`. The first item stays the first of all.
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
    fn a_queue_knows_how_long_it_was_full_and_empty() {
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
        // After 20 ms of start-up, it held something for 50 of 80 ms.
        assert!((statistics.readiness(100 * MS) - 0.625).abs() < 1e-9);
    }

    #[test]
    fn only_the_first_of_a_run_has_waited() {
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
        assert_eq!(statistics.wait_per_put.p90, Duration::ZERO, "that wait is over");
        assert_eq!(statistics.wait_per_get.p90, Duration::ZERO, "that wait is over");
        meter.put(0);
        meter.got(0);
        assert_eq!(meter.raw(4, 0, 4).puts.quantiles(), statistics.wait_per_put);
    }

    #[test]
    fn a_wait_can_be_told_by_the_one_who_waited() {
        let mut meter = QueueMeter::default();
        meter.put_waited(7 * MS);
        meter.got_after(3 * MS);
        let statistics = meter.raw(1, 0, 1).statistics();
        assert_eq!(statistics.wait_per_put.max, 7 * MS);
        assert_eq!(statistics.wait_per_get.max, 3 * MS);
    }

    #[test]
    fn a_queue_that_has_ended_waits_for_nothing() {
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
        assert_eq!(queue(0, 50, 50).readiness(51 * MS), 0.0, "nothing was ready yet");
        assert_eq!(queue(1, 50, 50).readiness(50 * MS), 0.0);
        assert_eq!(queue(9, 50, 50).readiness(100 * MS), 1.0);
        assert_eq!(queue(9, 50, 75).readiness(100 * MS), 0.5);
        assert_eq!(queue(9, 0, 75).readiness(Duration::ZERO), 0.0);
    }

    #[test]
    fn a_stage_counts_what_it_takes_in_and_hands_on() {
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
    fn times_in_json_are_seconds_and_say_so() {
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
    fn a_dropped_sample_in_json_tells_all() {
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
