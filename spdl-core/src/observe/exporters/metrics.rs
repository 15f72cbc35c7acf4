//! [`MetricsExporter`]: publishes statistics through the crate `metrics`.

use std::time::Duration;

use metrics::{Label, Unit, counter, gauge};

use crate::memory::budget::MemoryStatistics;
use crate::observe::histogram::Quantiles;
use crate::observe::interval::Interval;
use crate::observe::statistics::{
    ConsumerStatistics, QueueStatistics, StageStatistics, Statistics,
};

/// Publishes statistics through the [`metrics`](https://docs.rs/metrics) facade.
///
/// The recorder that the program has installed receives the metrics. Without a recorder, the
/// exporter has no effect.
///
/// All metrics have the label `pipeline`: the pipeline's number in the process, or the name given
/// with [`named`](Self::named). Metrics of a stage, and of the queue after the stage, have the
/// label `stage`. Quantiles are gauges with the label `quantile`: `0.5`, `0.9`, `0.99` or `1` (the
/// maximum).
///
/// | metric | kind | meaning |
/// |---|---|---|
/// | `spdl_stage_items_total` | counter | items processed, including failed ones |
/// | `spdl_stage_items_out_total` | counter | outputs |
/// | `spdl_stage_failures_total` | counter | items that failed |
/// | `spdl_stage_busy_nanoseconds_total` | counter | processing time, summed over concurrent items |
/// | `spdl_stage_busy_ratio` | gauge | share of the concurrency in use, 0 to 1 |
/// | `spdl_stage_fill_ratio` | gauge | share of the capacity of outputs that is not padding, 0 to 1; only of stages that pack or bucket |
/// | `spdl_stage_concurrency` | gauge | maximum number of concurrent items |
/// | `spdl_stage_service_seconds` | gauge, quantiles | processing time per item |
/// | `spdl_queue_items_total` | counter | items that passed through |
/// | `spdl_queue_length` | gauge | current number of items |
/// | `spdl_queue_mean_length` | gauge | average number of items |
/// | `spdl_queue_capacity` | gauge | maximum number of items |
/// | `spdl_queue_occupancy_ratio` | gauge | share of the time in which the queue was not empty, 0 to 1 |
/// | `spdl_queue_put_wait_nanoseconds_total` | counter | time in which the queue was full |
/// | `spdl_queue_get_wait_nanoseconds_total` | counter | time in which the queue was empty |
/// | `spdl_queue_put_wait_seconds` | gauge, quantiles | wait of one put |
/// | `spdl_queue_get_wait_seconds` | gauge, quantiles | wait of one get |
/// | `spdl_consumer_items_total` | counter | items delivered |
/// | `spdl_consumer_waited_nanoseconds_total` | counter | time in which the consumer waited |
/// | `spdl_consumer_wait_seconds` | gauge, quantiles | wait of the consumer for one item |
/// | `spdl_data_readiness_ratio` | gauge | share of the time after start-up in which a batch was ready, 0 to 1 |
/// | `spdl_memory_budget_bytes` | gauge | the memory budget; 0 without a budget |
/// | `spdl_memory_live_bytes` | gauge | bytes of the budget in use |
/// | `spdl_memory_peak_bytes` | gauge | maximum of bytes in use since the start |
/// | `spdl_memory_waited_nanoseconds_total` | counter | time in which a stage waited for memory |
/// | `spdl_dropped_total` | counter | samples dropped by a failure policy |
/// | `spdl_left_out_total` | counter | samples left out, for example with incomplete batches |
///
/// For each pipeline, call only one of two methods. With
/// [`publish_interval`](Self::publish_interval), gauges describe the last interval. With
/// [`publish`](Self::publish), gauges describe the whole run. Counters are the same with both
/// methods.
///
/// ```
/// # use spdl_core::{DatasetSource, PipelineBuilder};
/// # use spdl_core::observe::MetricsExporter;
/// let exporter = MetricsExporter::new().named("train");
/// exporter.describe();
/// let mut pipeline = PipelineBuilder::new(DatasetSource::new(vec![1, 2, 3])).build()?;
/// assert_eq!(pipeline.by_ref().count(), 3);
/// exporter.publish(&pipeline.statistics());
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct MetricsExporter {
    name: Option<String>,
}

/// How the value of a counter is updated.
#[derive(Clone, Copy)]
enum Count {
    /// The value is the total.
    Absolute,
    /// The value is added to the total.
    Increment,
}

/// The published statistics of an interval or of the whole run.
struct PublishedStatistics<'a> {
    time: Duration,
    stages: &'a [StageStatistics],
    queues: &'a [QueueStatistics],
    consumer: &'a ConsumerStatistics,
    memory: MemoryStatistics,
    readiness: f64,
    dropped: u64,
    left_out: u64,
}

/// Metrics with the same labels.
struct Group {
    labels: Vec<Label>,
    count: Count,
}

impl Group {
    fn counter(&self, name: &'static str, value: u64) {
        let counter = counter!(name, self.labels.iter());
        match self.count {
            Count::Absolute => counter.absolute(value),
            Count::Increment => counter.increment(value),
        }
    }

    fn nanoseconds(&self, name: &'static str, time: Duration) {
        self.counter(name, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn gauge(&self, name: &'static str, value: f64) {
        gauge!(name, self.labels.iter()).set(value);
    }

    fn quantiles(&self, name: &'static str, quantiles: &Quantiles) {
        let values = [
            ("0.5", quantiles.p50),
            ("0.9", quantiles.p90),
            ("0.99", quantiles.p99),
            ("1", quantiles.max),
        ];
        for (quantile, value) in values {
            let mut labels = self.labels.clone();
            labels.push(Label::from_static_parts("quantile", quantile));
            gauge!(name, labels).set(value.as_secs_f64());
        }
    }
}

impl MetricsExporter {
    /// Creates an exporter that labels pipelines with their numbers.
    pub fn new() -> Self {
        MetricsExporter::default()
    }

    /// Labels the pipeline with a name instead of its number.
    ///
    /// If several pipelines of a process have the same name, their metrics are mixed.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Describes the metrics to the recorder. Call it once, after the recorder is installed.
    pub fn describe(&self) {
        for (name, unit, meaning) in COUNTERS {
            metrics::describe_counter!(*name, *unit, *meaning);
        }
        for (name, unit, meaning) in GAUGES {
            metrics::describe_gauge!(*name, *unit, *meaning);
        }
    }

    /// Publishes the statistics of the whole run so far.
    pub fn publish(&self, statistics: &Statistics) {
        let view = PublishedStatistics {
            time: statistics.elapsed,
            stages: &statistics.stages,
            queues: &statistics.queues,
            consumer: &statistics.consumer,
            memory: statistics.memory,
            readiness: statistics.data_readiness(),
            dropped: statistics.dropped_total,
            left_out: statistics.left_out,
        };
        self.publish_view(statistics.pipeline, &view, Count::Absolute);
    }

    /// Publishes an interval. Call it once for each interval.
    pub fn publish_interval(&self, interval: &Interval) {
        let view = PublishedStatistics {
            time: interval.length,
            stages: &interval.stages,
            queues: &interval.queues,
            consumer: &interval.consumer,
            memory: interval.memory,
            readiness: interval.data_readiness(),
            dropped: interval.dropped,
            left_out: interval.left_out,
        };
        self.publish_view(interval.pipeline, &view, Count::Increment);
    }

    fn publish_view(&self, pipeline: u64, view: &PublishedStatistics<'_>, count: Count) {
        let pipeline = self.name.clone().unwrap_or_else(|| pipeline.to_string());
        let all = Group { labels: vec![Label::new("pipeline", pipeline)], count };
        for (index, stage) in view.stages.iter().enumerate() {
            let mut labels = all.labels.clone();
            labels.push(Label::new("stage", stage.name.to_string()));
            let group = Group { labels, count };
            publish_stage(&group, stage, view.time);
            if let Some(queue) = view.queues.get(index) {
                publish_queue(&group, queue);
            }
        }
        all.counter("spdl_consumer_items_total", view.consumer.items);
        all.nanoseconds("spdl_consumer_waited_nanoseconds_total", view.consumer.waited);
        all.quantiles("spdl_consumer_wait_seconds", &view.consumer.wait);
        all.gauge("spdl_data_readiness_ratio", view.readiness);
        all.gauge("spdl_memory_budget_bytes", view.memory.limit_bytes as f64);
        all.gauge("spdl_memory_live_bytes", view.memory.live_bytes as f64);
        all.gauge("spdl_memory_peak_bytes", view.memory.peak_bytes as f64);
        all.nanoseconds("spdl_memory_waited_nanoseconds_total", view.memory.waited);
        all.counter("spdl_dropped_total", view.dropped);
        all.counter("spdl_left_out_total", view.left_out);
    }
}

fn publish_stage(group: &Group, stage: &StageStatistics, time: Duration) {
    group.counter("spdl_stage_items_total", stage.items);
    group.counter("spdl_stage_items_out_total", stage.items_out);
    group.counter("spdl_stage_failures_total", stage.failures);
    group.nanoseconds("spdl_stage_busy_nanoseconds_total", stage.busy);
    group.gauge("spdl_stage_busy_ratio", stage.busy_share(time));
    if let Some(rate) = stage.fill_rate {
        group.gauge("spdl_stage_fill_ratio", rate);
    }
    group.gauge("spdl_stage_concurrency", stage.concurrency as f64);
    group.quantiles("spdl_stage_service_seconds", &stage.service);
}

fn publish_queue(group: &Group, queue: &QueueStatistics) {
    group.counter("spdl_queue_items_total", queue.items);
    group.gauge("spdl_queue_length", queue.len as f64);
    group.gauge("spdl_queue_mean_length", queue.mean_len);
    group.gauge("spdl_queue_capacity", queue.capacity as f64);
    group.gauge("spdl_queue_occupancy_ratio", queue.occupancy);
    group.nanoseconds("spdl_queue_put_wait_nanoseconds_total", queue.put_wait);
    group.nanoseconds("spdl_queue_get_wait_nanoseconds_total", queue.get_wait);
    group.quantiles("spdl_queue_put_wait_seconds", &queue.wait_per_put);
    group.quantiles("spdl_queue_get_wait_seconds", &queue.wait_per_get);
}

const COUNTERS: &[(&str, Unit, &str)] = &[
    ("spdl_stage_items_total", Unit::Count, "Items processed, including failed ones."),
    ("spdl_stage_items_out_total", Unit::Count, "Outputs of the stage."),
    ("spdl_stage_failures_total", Unit::Count, "Items that failed."),
    (
        "spdl_stage_busy_nanoseconds_total",
        Unit::Nanoseconds,
        "Processing time, summed over concurrent items.",
    ),
    ("spdl_queue_items_total", Unit::Count, "Items that passed the queue after the stage."),
    (
        "spdl_queue_put_wait_nanoseconds_total",
        Unit::Nanoseconds,
        "Time in which the queue was full.",
    ),
    (
        "spdl_queue_get_wait_nanoseconds_total",
        Unit::Nanoseconds,
        "Time in which the queue was empty.",
    ),
    ("spdl_consumer_items_total", Unit::Count, "Items delivered."),
    (
        "spdl_consumer_waited_nanoseconds_total",
        Unit::Nanoseconds,
        "Time in which the consumer waited.",
    ),
    (
        "spdl_memory_waited_nanoseconds_total",
        Unit::Nanoseconds,
        "Time in which a stage waited for memory.",
    ),
    ("spdl_dropped_total", Unit::Count, "Samples dropped by a failure policy."),
    ("spdl_left_out_total", Unit::Count, "Samples left out, for example with incomplete batches."),
];

const GAUGES: &[(&str, Unit, &str)] = &[
    ("spdl_stage_busy_ratio", Unit::Count, "Share of the concurrency in use, 0 to 1."),
    ("spdl_stage_fill_ratio", Unit::Count, "Share of outputs that is not padding, 0 to 1."),
    ("spdl_stage_concurrency", Unit::Count, "Maximum number of concurrent items."),
    ("spdl_stage_service_seconds", Unit::Seconds, "Processing time per item."),
    ("spdl_queue_length", Unit::Count, "Current number of items in the queue."),
    ("spdl_queue_mean_length", Unit::Count, "Average number of items in the queue."),
    ("spdl_queue_capacity", Unit::Count, "Maximum number of items in the queue."),
    (
        "spdl_queue_occupancy_ratio",
        Unit::Count,
        "Share of the time in which the queue was not empty, 0 to 1.",
    ),
    ("spdl_queue_put_wait_seconds", Unit::Seconds, "Wait of one put."),
    ("spdl_queue_get_wait_seconds", Unit::Seconds, "Wait of one get."),
    ("spdl_consumer_wait_seconds", Unit::Seconds, "Wait of the consumer for one item."),
    (
        "spdl_data_readiness_ratio",
        Unit::Count,
        "Share of the time in which a batch was ready, 0 to 1.",
    ),
    ("spdl_memory_budget_bytes", Unit::Bytes, "The memory budget; 0 without a budget."),
    ("spdl_memory_live_bytes", Unit::Bytes, "Bytes of the budget in use."),
    ("spdl_memory_peak_bytes", Unit::Bytes, "Maximum of bytes in use since the start."),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::statistics::{QueueMeter, StageKind, StageMeter};
    use crate::stage::aggregate::FillRate;
    use crate::sync::Mutex;
    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder,
        SharedString,
    };
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    /// A recorder that stores values by name and labels, in the notation of Prometheus.
    #[derive(Default)]
    struct MemoryRecorder {
        values: Arc<Mutex<BTreeMap<String, f64>>>,
        described: Mutex<BTreeSet<String>>,
    }

    struct MemoryMetric(String, Arc<Mutex<BTreeMap<String, f64>>>);

    impl MemoryMetric {
        fn update(&self, change: impl FnOnce(f64) -> f64) {
            let mut values = self.1.lock();
            let value = values.entry(self.0.clone()).or_default();
            *value = change(*value);
        }
    }

    impl CounterFn for MemoryMetric {
        fn increment(&self, value: u64) {
            self.update(|sum| sum + value as f64);
        }

        fn absolute(&self, value: u64) {
            self.update(|_| value as f64);
        }
    }

    impl GaugeFn for MemoryMetric {
        fn increment(&self, value: f64) {
            self.update(|sum| sum + value);
        }

        fn decrement(&self, value: f64) {
            self.update(|sum| sum - value);
        }

        fn set(&self, value: f64) {
            self.update(|_| value);
        }
    }

    impl MemoryRecorder {
        fn slot(&self, key: &Key) -> Arc<MemoryMetric> {
            let labels: Vec<String> =
                key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let name = format!("{}{{{}}}", key.name(), labels.join(","));
            Arc::new(MemoryMetric(name, Arc::clone(&self.values)))
        }

        fn get(&self, name: &str) -> f64 {
            let values = self.values.lock();
            *values.get(name).unwrap_or_else(|| panic!("no {name} in {values:#?}"))
        }
    }

    impl Recorder for MemoryRecorder {
        fn describe_counter(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
            self.described.lock().insert(name.as_str().to_owned());
        }

        fn describe_gauge(&self, name: KeyName, _: Option<Unit>, _: SharedString) {
            self.described.lock().insert(name.as_str().to_owned());
        }

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.slot(key))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.slot(key))
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    fn interval() -> Interval {
        let meter = StageMeter::new("decode".into(), StageKind::Cpu, 2);
        meter.record(10, 1, Duration::from_secs(1));
        meter.emitted(9);
        meter.filled(FillRate { used: 3, capacity: 4 });
        let mut queue = QueueMeter::default();
        queue.put_waited(Duration::from_millis(500));
        Interval {
            pipeline: 4,
            length: Duration::from_secs(2),
            stages: vec![meter.snapshot()],
            queues: vec![queue.raw(8, 3, 9).statistics()],
            consumer: ConsumerStatistics {
                items: 6,
                waited: Duration::from_micros(5),
                ..Default::default()
            },
            memory: MemoryStatistics { limit_bytes: 1000, live_bytes: 10, ..Default::default() },
            dropped: 1,
            left_out: 2,
            ..Default::default()
        }
    }

    #[test]
    fn an_interval_is_published_under_the_documented_names() {
        let memory = MemoryRecorder::default();
        metrics::with_local_recorder(&memory, || {
            MetricsExporter::new().publish_interval(&interval());
        });
        let stage = |name: &str| memory.get(&format!("spdl_{name}{{pipeline=4,stage=decode}}"));
        assert_eq!(stage("stage_items_total"), 10.0);
        assert_eq!(stage("stage_items_out_total"), 9.0);
        assert_eq!(stage("stage_failures_total"), 1.0);
        assert_eq!(stage("stage_busy_nanoseconds_total"), 1e9);
        assert_eq!(stage("stage_busy_ratio"), 0.25);
        assert_eq!(stage("stage_fill_ratio"), 0.75);
        assert_eq!(stage("stage_concurrency"), 2.0);
        assert_eq!(stage("queue_items_total"), 9.0);
        assert_eq!(stage("queue_length"), 3.0);
        assert_eq!(stage("queue_capacity"), 8.0);
        let service =
            memory.get("spdl_stage_service_seconds{pipeline=4,stage=decode,quantile=0.99}");
        assert!((service / 0.1 - 1.0).abs() < 0.07, "{service}");
        let put = "spdl_queue_put_wait_seconds{pipeline=4,stage=decode,quantile=1}";
        assert_eq!(memory.get(put), 0.5);
        assert_eq!(memory.get("spdl_consumer_items_total{pipeline=4}"), 6.0);
        assert_eq!(memory.get("spdl_consumer_waited_nanoseconds_total{pipeline=4}"), 5e3);
        assert_eq!(memory.get("spdl_data_readiness_ratio{pipeline=4}"), 1.0);
        assert_eq!(memory.get("spdl_memory_budget_bytes{pipeline=4}"), 1000.0);
        assert_eq!(memory.get("spdl_memory_live_bytes{pipeline=4}"), 10.0);
        assert_eq!(memory.get("spdl_dropped_total{pipeline=4}"), 1.0);
        assert_eq!(memory.get("spdl_left_out_total{pipeline=4}"), 2.0);
    }

    #[test]
    fn intervals_are_added_and_statistics_replace() {
        let memory = MemoryRecorder::default();
        let exporter = MetricsExporter::new().named("train");
        metrics::with_local_recorder(&memory, || {
            exporter.publish_interval(&interval());
            exporter.publish_interval(&interval());
        });
        let items = "spdl_stage_items_total{pipeline=train,stage=decode}";
        assert_eq!(memory.get(items), 20.0);
        assert_eq!(memory.get("spdl_memory_live_bytes{pipeline=train}"), 10.0);
        let statistics = Statistics {
            stages: interval().stages,
            elapsed: Duration::from_secs(2),
            ..Default::default()
        };
        metrics::with_local_recorder(&memory, || {
            exporter.publish(&statistics);
            exporter.publish(&statistics);
        });
        assert_eq!(memory.get(items), 10.0);
    }

    #[test]
    fn published_and_described_metrics_are_the_same() {
        let memory = MemoryRecorder::default();
        metrics::with_local_recorder(&memory, || {
            MetricsExporter::new().describe();
            MetricsExporter::new().publish_interval(&interval());
        });
        let values = memory.values.lock();
        let published: BTreeSet<String> =
            values.keys().map(|key| key.split('{').next().unwrap_or_default().to_owned()).collect();
        assert_eq!(*memory.described.lock(), published);
        let table = include_str!("metrics.rs");
        for name in published {
            assert!(table.contains(&format!("/// | `{name}` |")), "{name} is not documented");
        }
    }
}
