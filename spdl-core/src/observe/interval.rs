//! [`Interval`]: statistics of a part of a run.

use std::fmt;
use std::time::Duration;

use crate::memory::budget::MemoryStatistics;
use crate::observe::setting_names::SettingNames;
use crate::observe::statistics::{
    ConsumerSnapshot, ConsumerStatistics, GilStatistics, QueueSnapshot, QueueStatistics,
    StageSnapshot, StageStatistics, WorkerTimes, per_second, write_stages,
};
use crate::observe::thread_times::GilRequests;

/// Statistics of a pipeline in one interval of time.
///
/// Fields have the same names and meanings as in [`Statistics`](crate::Statistics), with two
/// differences. `dropped` is a number, not a list. Counts, durations and quantiles cover only this
/// interval, unless a field documents otherwise. `Display` writes one line for the pipeline and one
/// for each stage, for a log.
#[non_exhaustive]
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Interval {
    /// The pipeline's number in this process, as in [`Statistics`](crate::Statistics).
    pub pipeline: u64,
    /// The interval's number, counted from 0.
    pub number: u64,
    /// Time from the start of the pipeline to the start of the interval.
    #[cfg_attr(feature = "serde", serde(rename = "started_after_s", with = "crate::seconds"))]
    pub started_after: Duration,
    /// Length of the interval.
    #[cfg_attr(feature = "serde", serde(rename = "length_s", with = "crate::seconds"))]
    pub length: Duration,
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
    /// The queues; `queues[i]` follows `stages[i]`. Capacity and length are those at the end of the
    /// interval.
    pub queues: Vec<QueueStatistics>,
    /// Deliveries to the consumer. `first_item` is the time of the first item of the whole run.
    pub consumer: ConsumerStatistics,
    /// The memory budget at the end of the interval; `waited` covers only the interval.
    pub memory: MemoryStatistics,
    /// Number of samples that a failure policy dropped.
    pub dropped: u64,
    /// Number of samples left out with incomplete batches or by an early end of an epoch.
    pub left_out: u64,
    /// How users change the settings, for the [diagnosis](Self::diagnose).
    #[cfg_attr(feature = "serde", serde(skip))]
    pub(crate) setting_names: SettingNames,
}

impl Interval {
    /// The share of the interval in which a batch was ready, in 0..=1.
    ///
    /// The time before the first item of the run does not count.
    pub fn data_readiness(&self) -> f64 {
        self.queues.last().map_or(0.0, |queue| queue.readiness(self.length))
    }

    /// Number of items delivered to the consumer per second.
    pub fn items_per_second(&self) -> f64 {
        per_second(self.consumer.items, self.length)
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pipeline {}, {:.1} s to {:.1} s: {} delivered ({:.1}/s), ready {:.0} %, waited {:.1?} \
             at p99, {} dropped",
            self.pipeline,
            self.started_after.as_secs_f64(),
            (self.started_after + self.length).as_secs_f64(),
            self.consumer.items,
            self.items_per_second(),
            self.data_readiness() * 100.0,
            self.consumer.wait.p99,
            self.dropped,
        )?;
        write_stages(f, self.pipeline, &self.stages, &self.queues, self.length)
    }
}

/// A snapshot of all counters of a pipeline.
#[derive(Clone, Debug)]
pub(crate) struct RawSnapshot {
    pub(crate) pipeline: u64,
    /// Time since the start.
    pub(crate) elapsed: Duration,
    pub(crate) threads: usize,
    pub(crate) cpus: usize,
    pub(crate) workers: Option<WorkerTimes>,
    pub(crate) event_loop: Option<WorkerTimes>,
    pub(crate) gil: Option<GilRequests>,
    pub(crate) stages: Vec<StageSnapshot>,
    pub(crate) queues: Vec<QueueSnapshot>,
    pub(crate) consumer: ConsumerSnapshot,
    pub(crate) memory: MemoryStatistics,
    pub(crate) dropped: u64,
    pub(crate) left_out: u64,
    pub(crate) setting_names: SettingNames,
}

/// Computes the intervals between successive snapshots. Stores only the last snapshot.
#[derive(Debug, Default)]
pub(crate) struct Snapshotter {
    /// Boxed, so that a pipeline without interval reports stores only a null pointer.
    last: Option<Box<RawSnapshot>>,
    number: u64,
}

impl Snapshotter {
    /// The interval from the last snapshot, or from the start, to `raw`.
    pub(crate) fn interval(&mut self, raw: RawSnapshot) -> Interval {
        let last = self.last.as_deref();
        let started_after = last.map_or(Duration::ZERO, |last| last.elapsed);
        let earlier_stages = last.map_or(&[][..], |last| &last.stages);
        let stage = |(at, now): (usize, &StageSnapshot)| match earlier_stages.get(at) {
            Some(earlier) => now.since(earlier).statistics(),
            None => now.statistics(),
        };
        let earlier_queues = last.map_or(&[][..], |last| &last.queues);
        let queue = |(at, now): (usize, &QueueSnapshot)| match earlier_queues.get(at) {
            Some(earlier) => now.since(earlier).statistics(),
            None => now.statistics(),
        };
        let times_since = |now: Option<WorkerTimes>, earlier: Option<WorkerTimes>| {
            now.map(|now| earlier.map_or(now, |earlier| now.since(earlier)))
        };
        let earlier_gil = last.and_then(|last| last.gil).unwrap_or_default();
        let interval = Interval {
            pipeline: raw.pipeline,
            number: self.number,
            started_after,
            length: raw.elapsed.saturating_sub(started_after),
            threads: raw.threads,
            cpus: raw.cpus,
            workers: times_since(raw.workers, last.and_then(|last| last.workers)),
            gil: raw.gil.map(|now| now.since(earlier_gil).statistics()),
            event_loop: times_since(raw.event_loop, last.and_then(|last| last.event_loop)),
            stages: raw.stages.iter().enumerate().map(stage).collect(),
            queues: raw.queues.iter().enumerate().map(queue).collect(),
            consumer: match last {
                Some(last) => raw.consumer.since(&last.consumer).statistics(),
                None => raw.consumer.statistics(),
            },
            memory: last.map_or(raw.memory, |last| raw.memory.since(last.memory)),
            dropped: raw.dropped.saturating_sub(last.map_or(0, |last| last.dropped)),
            left_out: raw.left_out.saturating_sub(last.map_or(0, |last| last.left_out)),
            setting_names: raw.setting_names.clone(),
        };
        self.number += 1;
        self.last = Some(Box::new(raw));
        interval
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::statistics::{ConsumerMeter, QueueMeter, StageKind, StageMeter};

    const MS: Duration = Duration::from_millis(1);

    struct Counters {
        stage: StageMeter,
        queue: QueueMeter,
        consumer: ConsumerMeter,
        waited: Duration,
        gil: GilRequests,
    }

    impl Counters {
        fn new() -> Self {
            Counters {
                stage: StageMeter::new("decode".into(), StageKind::Cpu, 2),
                queue: QueueMeter::default(),
                consumer: ConsumerMeter::default(),
                waited: Duration::ZERO,
                gil: GilRequests::default(),
            }
        }

        fn raw(&self, elapsed: Duration, dropped: u64) -> RawSnapshot {
            RawSnapshot {
                pipeline: 3,
                elapsed,
                threads: 2,
                cpus: 2,
                workers: None,
                event_loop: None,
                gil: Some(self.gil),
                stages: vec![self.stage.raw()],
                queues: vec![self.queue.raw(4, 1, dropped)],
                consumer: self.consumer.raw(),
                memory: MemoryStatistics {
                    limit_bytes: 100,
                    waited: self.waited,
                    ..Default::default()
                },
                dropped,
                left_out: 2 * dropped,
                setting_names: SettingNames::default(),
            }
        }
    }

    fn is_about(value: Duration, expected: Duration) {
        let ratio = value.as_secs_f64() / expected.as_secs_f64();
        assert!((0.93..1.07).contains(&ratio), "{value:?} for {expected:?}");
    }

    #[test]
    fn an_interval_excludes_earlier_counts() {
        let mut counters = Counters::new();
        let mut snapshotter = Snapshotter::default();
        counters.stage.record(100, 3, 1000 * MS);
        counters.stage.emitted(97);
        counters.consumer.delivered(40 * MS, 60 * MS);
        counters.queue.put_waited(6 * MS);
        counters.waited = 5 * MS;
        counters.gil = GilRequests { all: 100, contended: 100, waited: 50 * MS };
        let first = snapshotter.interval(counters.raw(1000 * MS, 3));
        assert_eq!(
            (first.number, first.started_after, first.length),
            (0, Duration::ZERO, 1000 * MS)
        );
        assert_eq!((first.stages[0].items, first.stages[0].items_out), (100, 97));
        assert_eq!((first.dropped, first.left_out), (3, 6));
        is_about(first.stages[0].service.p50, 10 * MS);

        counters.stage.record(10, 0, 20 * MS);
        counters.stage.emitted(10);
        counters.consumer.delivered(2 * MS, 1200 * MS);
        counters.queue.put_waited(MS);
        counters.waited = 12 * MS;
        counters.gil = GilRequests { all: 300, contended: 150, waited: 57 * MS };
        let second = snapshotter.interval(counters.raw(1500 * MS, 4));
        assert_eq!((second.pipeline, second.number, second.threads), (3, 1, 2));
        assert_eq!((second.started_after, second.length), (1000 * MS, 500 * MS));
        let stage = &second.stages[0];
        assert_eq!((stage.items, stage.failures, stage.items_out), (10, 0, 10));
        assert_eq!(stage.busy, 20 * MS);
        is_about(stage.service.p50, 2 * MS);
        is_about(stage.service.p99, 2 * MS);
        is_about(second.queues[0].wait_per_put.max, MS);
        assert_eq!(second.consumer.items, 1);
        assert_eq!(second.consumer.waited, 2 * MS);
        is_about(second.consumer.wait.max, 2 * MS);
        assert_eq!(second.consumer.first_item, Some(60 * MS));
        assert_eq!((second.memory.limit_bytes, second.memory.waited), (100, 7 * MS));
        assert_eq!((second.dropped, second.left_out), (1, 2));
        assert_eq!(second.items_per_second(), 2.0);
        assert_eq!(second.gil.map(|gil| (gil.contended, gil.waited)), Some((0.25, 7 * MS)));

        let idle = snapshotter.interval(counters.raw(1600 * MS, 4));
        assert_eq!((idle.stages[0].items, idle.consumer.items, idle.dropped), (0, 0, 0));
        assert_eq!(idle.stages[0].service, Default::default());
    }

    #[test]
    fn an_interval_is_displayed_as_one_line_per_pipeline_and_stage() {
        let counters = Counters::new();
        counters.stage.record(50, 1, 500 * MS);
        let text = Snapshotter::default().interval(counters.raw(1000 * MS, 1)).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].starts_with("pipeline 3, 0.0 s to 1.0 s: 0 delivered"), "{text}");
        assert!(lines[0].ends_with("1 dropped"), "{text}");
        assert!(lines[1].starts_with("3:0:decode[2]: 50 items (50.0/s), 1 failed, busy 25 %"));
        assert!(lines[1].ends_with("queue 0.0 of 4"), "{text}");
    }
}
