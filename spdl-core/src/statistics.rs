//! What a pipeline did: the numbers that say where the time went.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::buffer::PoolStatistics;
use crate::failure::Dropped;
use crate::histogram::{Histogram, Quantiles};

/// A snapshot of a pipeline's counters, taken at any time, while it runs or after it has ended.
///
/// All times are wall time since the start. The names are the same in logs, JSON and Python.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
pub struct Statistics {
    /// Time since the start; it stands still once the pipeline has ended.
    pub elapsed: Duration,
    /// Worker threads of the CPU pool.
    pub threads: usize,
    /// The stages from source to consumer.
    pub stages: Vec<StageStatistics>,
    /// The queues between them; `queues[i]` follows `stages[i]`, the last one feeds the consumer.
    pub queues: Vec<QueueStatistics>,
    /// What the consumer saw.
    pub consumer: ConsumerStatistics,
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
    /// The share of the time in which something was ready for the consumer, in 0..=1. Near 1, the
    /// consumer is never starved; near 0, it takes everything at once and waits.
    pub fn data_readiness(&self) -> f64 {
        let elapsed = self.elapsed.as_secs_f64();
        match self.queues.last() {
            Some(queue) if elapsed > 0.0 => (1.0 - queue.get_wait.as_secs_f64() / elapsed).max(0.0),
            _ => 0.0,
        }
    }
}

/// What kind of work a stage does, and thereby what its concurrency means.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageKind {
    /// Names items. Runs on the runtime, one at a time.
    Source,
    /// Waits. Runs on the runtime, many in flight.
    Async,
    /// Computes on the CPU pool.
    Cpu,
    /// Computes on the CPU pool and writes into batches.
    Fill,
}

impl StageKind {
    /// `source`, `async`, `cpu` or `fill`.
    pub fn as_str(self) -> &'static str {
        match self {
            StageKind::Source => "source",
            StageKind::Async => "async",
            StageKind::Cpu => "cpu",
            StageKind::Fill => "fill",
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
    /// The time spent in it, summed over everything that ran at once.
    pub busy: Duration,
    /// The time one item takes.
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
    pub put_wait: Duration,
    /// How long it was empty, so that the stage after it had to wait.
    pub get_wait: Duration,
}

/// What the consumer saw.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default)]
pub struct ConsumerStatistics {
    /// Items (batches, mostly) delivered.
    pub items: u64,
    /// From the start to the first item; `None` before it.
    pub first_item: Option<Duration>,
    /// How long the consumer waited in all.
    pub waited: Duration,
    /// How long it waited for one item.
    pub wait: Quantiles,
}

/// The counters behind [`StageStatistics`].
#[derive(Debug)]
pub(crate) struct StageMeter {
    pub(crate) name: Arc<str>,
    pub(crate) kind: StageKind,
    pub(crate) concurrency: AtomicUsize,
    items: AtomicU64,
    failures: AtomicU64,
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

    /// The mean time of one item so far.
    pub(crate) fn mean_service(&self) -> Option<Duration> {
        let items = self.items.load(Ordering::Relaxed);
        let nanos = self.busy_nanos.load(Ordering::Relaxed);
        nanos.checked_div(items).map(Duration::from_nanos)
    }

    pub(crate) fn snapshot(&self) -> StageStatistics {
        StageStatistics {
            name: Arc::clone(&self.name),
            kind: self.kind,
            concurrency: self.concurrency.load(Ordering::Relaxed),
            items: self.items.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            busy: Duration::from_nanos(self.busy_nanos.load(Ordering::Relaxed)),
            service: self.service.quantiles(),
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

    pub(crate) fn snapshot(&self) -> ConsumerStatistics {
        let items = self.items.load(Ordering::Relaxed);
        let nanos = |n: &AtomicU64| Duration::from_nanos(n.load(Ordering::Relaxed));
        ConsumerStatistics {
            items,
            first_item: (items > 0).then(|| nanos(&self.first_item_nanos)),
            waited: nanos(&self.waited_nanos),
            wait: self.wait.quantiles(),
        }
    }
}
