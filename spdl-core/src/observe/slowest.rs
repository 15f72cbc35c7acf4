//! [`SlowItem`]: the items that took longest in a stage, in constant memory.

use std::fmt;
use std::sync::Arc;
// Standard atomics instead of `crate::sync`: model checkers need not explore these counters,
// because the control flow does not depend on them.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::observe::statistics::{StageStatistics, WorkerTimes};
use crate::source::sample::SampleId;

/// Maximum length of [`Statistics::slowest`](crate::Statistics::slowest).
pub const MAX_SLOWEST_LISTED: usize = 10;

/// The size explains a long time if the item has at least this many times the mean bytes.
const LARGE: f64 = 2.0;
/// And if the time is at most this many times longer than the size explains.
const PROPORTIONAL: f64 = 3.0;
/// A stage of the CPU pool computes if it uses a CPU for at least this share of its time.
const COMPUTES: f64 = 0.5;
/// Other programs or threads explain a long time if the worker threads that could run waited for a CPU for at
/// least this share of the time.
const WAITED_FOR_CPU: f64 = 0.25;

/// An item that took long in a stage, compared with the other items of the stage.
///
/// `Display` writes the item, its times, and the likely cause.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct SlowItem {
    /// Epoch and position of the item.
    pub id: SampleId,
    /// The key of the item, if the source provides one.
    pub key: Option<Arc<str>>,
    /// The stage.
    pub stage: Arc<str>,
    /// The processing time of the item.
    #[cfg_attr(feature = "serde", serde(rename = "time_s", with = "crate::seconds"))]
    pub time: Duration,
    /// The median processing time of the stage.
    #[cfg_attr(feature = "serde", serde(rename = "median_s", with = "crate::seconds"))]
    pub median: Duration,
    /// Bytes of the item: of the output of a stage that waits, of the input of other stages; `None`
    /// if they are not [measured](crate::PipelineBuilder::measured).
    pub bytes: Option<u64>,
    /// Mean bytes of the items of the stage, if they are measured.
    pub mean_bytes: Option<u64>,
    /// Why the item took long.
    pub cause: SlowCause,
}

/// Why an item took long.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum SlowCause {
    /// The item is larger than the others, and the time is in proportion.
    Size,
    /// A store, disk or other resource responded late.
    Latency,
    /// The worker threads waited for CPUs that other programs or threads used.
    Cpu,
    /// The work on this item takes longer than its size explains, for example because of its
    /// format.
    Work,
}

impl SlowCause {
    /// The name: `size`, `latency`, `cpu` or `work`.
    pub fn as_str(self) -> &'static str {
        match self {
            SlowCause::Size => "size",
            SlowCause::Latency => "latency",
            SlowCause::Cpu => "cpu",
            SlowCause::Work => "work",
        }
    }
}

impl fmt::Display for SlowItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.key {
            Some(key) => write!(f, "{key}")?,
            None => write!(f, "{}", self.id)?,
        }
        write!(f, ": {:.1?} in {} (median {:.1?})", self.time, self.stage, self.median)?;
        if let (Some(bytes), Some(mean)) = (self.bytes, self.mean_bytes) {
            write!(f, ", {bytes} bytes (mean {mean})")?;
        }
        match self.cause {
            SlowCause::Cpu => f.write_str(", because other programs or threads used the CPUs"),
            cause => write!(f, ", because of its {}", cause.as_str()),
        }
    }
}

/// The items of one stage that took longest. Recording an item that is not among them costs one
/// atomic load.
#[derive(Debug, Default)]
pub(crate) struct SlowestItems {
    /// The shortest time in the full list; 0 while the list is not full.
    least_nanos: AtomicU64,
    items: Mutex<Vec<TimedItem>>,
}

/// An item and its time.
#[derive(Clone, Debug)]
pub(crate) struct TimedItem {
    id: SampleId,
    key: Option<Arc<str>>,
    time: Duration,
    bytes: Option<usize>,
}

impl SlowestItems {
    /// Adds an item if it is one of the slowest.
    pub(crate) fn record(
        &self,
        id: SampleId,
        key: Option<&Arc<str>>,
        time: Duration,
        bytes: Option<usize>,
    ) {
        if time.as_nanos() <= u128::from(self.least_nanos.load(Ordering::Relaxed)) {
            return;
        }
        let item = TimedItem { id, key: key.cloned(), time, bytes };
        let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
        let at = items.partition_point(|other| other.time >= time);
        items.insert(at, item);
        items.truncate(MAX_SLOWEST_LISTED);
        if let [.., last] = &items[..]
            && items.len() == MAX_SLOWEST_LISTED
        {
            self.least_nanos.store(last.time.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn items(&self) -> Vec<TimedItem> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The slowest items of all stages, at most one entry per item and key. `of_stages` has the items
/// of each of `stages`.
pub(crate) fn slowest(
    stages: &[StageStatistics],
    of_stages: &[Vec<TimedItem>],
    workers: Option<WorkerTimes>,
) -> Vec<SlowItem> {
    let waited = workers.map_or(0.0, |workers| {
        let waited = workers.waited.as_secs_f64();
        waited / (workers.on_cpu.as_secs_f64() + waited).max(1e-9)
    });
    // The inputs of a stage have the mean size of the outputs of the last measured stage before it.
    let mut mean_bytes = None;
    let mut all = Vec::new();
    for (stage, items) in stages.iter().zip(of_stages) {
        if stage.bytes > 0 && stage.items_out > 0 {
            mean_bytes = Some(stage.bytes / stage.items_out);
        }
        all.extend(items.iter().map(|item| slow_item(stage, item, mean_bytes, waited)));
    }
    all.sort_by_key(|item| std::cmp::Reverse(item.time));
    let mut slowest: Vec<SlowItem> = Vec::new();
    for item in all {
        // Samples of several epochs have the same key.
        let is_same =
            |it: &SlowItem| it.id == item.id || (item.key.is_some() && it.key == item.key);
        if slowest.len() < MAX_SLOWEST_LISTED && !slowest.iter().any(is_same) {
            slowest.push(item);
        }
    }
    slowest
}

/// `waited`: the share of the time in which worker threads that could run waited for a CPU.
fn slow_item(
    stage: &StageStatistics,
    item: &TimedItem,
    mean_bytes: Option<u64>,
    waited: f64,
) -> SlowItem {
    let (time, median) = (item.time, stage.service.p50);
    let mean_bytes = mean_bytes.filter(|_| item.bytes.is_some());
    let larger = match (item.bytes, mean_bytes) {
        (Some(bytes), Some(mean @ 1..)) => bytes as f64 / mean as f64,
        _ => 1.0,
    };
    let slower = time.as_secs_f64() / median.as_secs_f64().max(1e-9);
    let computes =
        stage.kind.uses_cpu_pool() && stage.cpu_share.is_none_or(|share| share >= COMPUTES);
    let cause = match computes {
        _ if larger >= LARGE && slower <= PROPORTIONAL * larger => SlowCause::Size,
        _ if waited >= WAITED_FOR_CPU && stage.kind.uses_cpu_pool() => SlowCause::Cpu,
        true => SlowCause::Work,
        false => SlowCause::Latency,
    };
    SlowItem {
        id: item.id,
        key: item.key.clone(),
        stage: Arc::clone(&stage.name),
        time,
        median,
        bytes: item.bytes.map(|bytes| bytes as u64),
        mean_bytes,
        cause,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::histogram::Quantiles;
    use crate::observe::statistics::StageKind;

    const MS: Duration = Duration::from_millis(1);

    fn id(index: u64) -> SampleId {
        SampleId { epoch: 0, index }
    }

    fn stage(name: &str, kind: StageKind, median: Duration) -> StageStatistics {
        let service = Quantiles { p50: median, ..Quantiles::default() };
        StageStatistics { service, ..StageStatistics::new(name, kind, 1) }
    }

    #[test]
    fn only_the_slowest_items_are_kept() {
        let slowest = SlowestItems::default();
        // Every item is one of the slowest once, in an order that is not sorted.
        for index in 0..100 {
            slowest.record(id(index), None, (index * 37 % 100) as u32 * MS, None);
        }
        let times: Vec<_> = slowest.items().iter().map(|item| item.time / 1_000_000).collect();
        let expected: Vec<_> = (90..100).rev().map(Duration::from_nanos).collect();
        assert_eq!(times, expected);
        assert_eq!(slowest.least_nanos.load(Ordering::Relaxed), 90_000_000);
    }

    #[test]
    fn the_cause_is_the_size_only_if_the_time_is_in_proportion() {
        let mut fetch = stage("fetch", StageKind::Async, 10 * MS);
        (fetch.bytes, fetch.items_out) = (100_000, 100);
        let decode = stage("decode", StageKind::Fill, 2 * MS);
        let item =
            |index, time, bytes| TimedItem { id: id(index), key: None, time, bytes: Some(bytes) };
        let fetched = vec![item(1, 900 * MS, 1_000), item(2, 45 * MS, 4_000)];
        let decoded =
            vec![item(3, 30 * MS, 9_000), item(4, 25 * MS, 1_100), item(1, 20 * MS, 1_000)];
        let (stages, items) = ([fetch, decode], [fetched, decoded]);
        let all = slowest(&stages, &items, None);
        let causes: Vec<_> = all.iter().map(|item| (item.id.index, item.cause)).collect();
        let expected = [
            (1, SlowCause::Latency),
            (2, SlowCause::Size),
            (3, SlowCause::Size),
            (4, SlowCause::Work),
        ];
        assert_eq!(causes, expected, "sample 1 is listed once, with its slowest stage");
        assert_eq!((all[2].bytes, all[2].mean_bytes), (Some(9_000), Some(1_000)));
        let text = all[1].to_string();
        assert!(
            text.ends_with("in fetch (median 10.0ms), 4000 bytes (mean 1000), because of its size"),
            "{text}"
        );
        // The worker threads waited for a CPU for a third of the time.
        let workers = WorkerTimes { on_cpu: 200 * MS, waited: 100 * MS };
        let all = slowest(&stages, &items, Some(workers));
        let causes: Vec<_> = all.iter().map(|item| item.cause).collect();
        assert_eq!(causes, [SlowCause::Latency, SlowCause::Size, SlowCause::Size, SlowCause::Cpu]);
        let text = all[3].to_string();
        assert!(text.ends_with("because other programs or threads used the CPUs"), "{text}");
    }
}
