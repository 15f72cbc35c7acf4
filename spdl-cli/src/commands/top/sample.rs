//! The statistics of one line of a monitor socket, as the cells that are shown.

use std::time::Duration;

use serde::Deserialize;

use crate::ui::format::{bytes, count, measured, percent, printable, seconds, time};

/// A memory budget of at least this many bytes is no limit.
const NO_LIMIT: u64 = 1 << 60;

/// The columns of [`TopSample::stages`].
pub(crate) const COLUMNS: [&str; 9] =
    ["stage", "kind", "concurrency", "items/s", "busy", "p50", "p99", "queue", "filled"];
/// The number of columns with text, which are left-aligned.
pub(crate) const TEXT_COLUMNS: usize = 2;

/// Statistics since the line before.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct TopSample {
    pub(crate) pid: u32,
    pub(crate) pipeline: u64,
    pub(crate) ended: bool,
    started_after_s: f64,
    length_s: f64,
    pub(crate) items_per_s: f64,
    pub(crate) data_readiness: f64,
    /// The diagnosis in words.
    diagnosis: String,
    bottleneck: Bottleneck,
    cpus: u64,
    workers: Option<Workers>,
    stages: Vec<Stage>,
    queues: Vec<Queue>,
    memory: Memory,
    dropped: u64,
}

#[derive(Clone, Debug, Deserialize)]
struct Bottleneck {
    source_items: f64,
    consumer_waits: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct Workers {
    on_cpu_s: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct Stage {
    name: String,
    kind: String,
    concurrency: u64,
    items: u64,
    busy_s: f64,
    service_s: Service,
}

#[derive(Clone, Debug, Deserialize)]
struct Service {
    p50: f64,
    p99: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct Queue {
    capacity: u64,
    mean_len: f64,
    occupancy: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct Memory {
    limit_bytes: u64,
    live_bytes: u64,
}

/// The line of a socket that serves enough readers.
#[derive(Deserialize)]
struct MonitorRefusal {
    error: String,
}

impl TopSample {
    /// Parses a line. Returns the reason if it has no statistics.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|error| match serde_json::from_str(line) {
            Ok(MonitorRefusal { error }) => error,
            Err(_) => format!("not a line of a monitor socket: {error}"),
        })
    }

    /// The process, the pipeline, and how long the pipeline has run.
    pub(crate) fn title(&self) -> String {
        let state = if self.ended { "ended after" } else { "running for" };
        let elapsed = seconds(self.started_after_s + self.length_s);
        format!("process {}, pipeline {}, {state} {elapsed}", self.pid, self.pipeline)
    }

    /// The diagnosis, in one to three sentences.
    pub(crate) fn diagnosis(&self) -> String {
        printable(&self.diagnosis)
    }

    /// Names and values of the pipeline.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        let samples = self.items_per_s * self.bottleneck.source_items;
        let mut rate = format!("{} items/s", measured(self.items_per_s));
        if self.bottleneck.source_items > 1.0 {
            rate += &format!(" ({} samples/s)", measured(samples));
        }
        let readiness = format!(
            "{}; the consumer waits for {} of the time",
            percent(self.data_readiness),
            percent(self.bottleneck.consumer_waits)
        );
        let memory = match self.memory.limit_bytes {
            limit if limit >= NO_LIMIT => bytes(self.memory.live_bytes),
            limit => format!("{} of {}", bytes(self.memory.live_bytes), bytes(limit)),
        };
        let cpu = match &self.workers {
            Some(workers) if self.length_s > 0.0 => {
                format!("{:.2} of {}", workers.on_cpu_s / self.length_s, self.cpus)
            }
            _ => format!("– of {}", self.cpus),
        };
        let mut facts =
            vec![("rate", rate), ("readiness", readiness), ("memory", memory), ("CPUs", cpu)];
        if self.dropped > 0 {
            facts.push(("dropped", format!("{} samples", count(self.dropped))));
        }
        facts
    }

    /// A row for each stage, with the cells of [`COLUMNS`].
    pub(crate) fn stages(&self) -> Vec<[String; COLUMNS.len()]> {
        let row = |(at, stage): (usize, &Stage)| {
            let share = stage.busy_s / (self.length_s * stage.concurrency as f64);
            let per_second = stage.items as f64 / self.length_s;
            let service = |value: f64| match stage.items {
                0 => "–".to_owned(),
                _ => time(Duration::try_from_secs_f64(value).unwrap_or_default()),
            };
            let [queue, filled] = match self.queues.get(at) {
                Some(queue) => [
                    format!("{:.1} of {}", queue.mean_len, queue.capacity),
                    percent(queue.occupancy),
                ],
                None => Default::default(),
            };
            [
                printable(&stage.name),
                printable(&stage.kind),
                count(stage.concurrency),
                measured(per_second),
                if share.is_finite() { percent(share.min(1.0)) } else { "–".into() },
                service(stage.service_s.p50),
                service(stage.service_s.p99),
                queue,
                filled,
            ]
        };
        self.stages.iter().enumerate().map(row).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    /// A line with one stage.
    pub(in crate::commands::top) fn line(items_per_s: f64) -> String {
        let quantiles = json!({"p50": 0.002, "p90": 0.003, "p99": 0.0045, "max": 0.005});
        json!({
            "pid": 4321, "pipeline": 3, "number": 5, "ended": false, "started_after_s": 70.0,
            "length_s": 2.0, "items_per_s": items_per_s, "data_readiness": 0.25,
            "diagnosis": "The CPUs limit the throughput. A second sentence.",
            "bottleneck": {"source_items": 64.0, "consumer_waits": 0.5},
            "cpus": 4, "workers": {"on_cpu_s": 3.0, "waited_s": 0.0},
            "stages": [{
                "name": "decode\u{1b}", "kind": "fill", "concurrency": 4, "items": 1000,
                "busy_s": 6.0, "service_s": quantiles,
            }],
            "queues": [{"capacity": 2, "mean_len": 0.25, "occupancy": 0.25}],
            "memory": {"limit_bytes": 2_000_000_000, "live_bytes": 500_000_000},
            "dropped": 7,
        })
        .to_string()
    }

    #[test]
    fn a_line_becomes_cells() {
        let sample = TopSample::parse(&line(8.0)).unwrap();
        assert_eq!(sample.title(), "process 4321, pipeline 3, running for 72.0 s");
        let facts = [
            ("rate", "8.000 items/s (512.0 samples/s)"),
            ("readiness", "25 %; the consumer waits for 50 % of the time"),
            ("memory", "500.0 MB of 2.0 GB"),
            ("CPUs", "1.50 of 4"),
            ("dropped", "7 samples"),
        ];
        assert_eq!(sample.facts(), facts.map(|(name, value)| (name, value.to_owned())));
        let row =
            [r"decode\x1b", "fill", "4", "500.0", "75 %", "2.00 ms", "4.50 ms", "0.2 of 2", "25 %"];
        assert_eq!(sample.stages(), [row.map(str::to_owned)]);
    }

    #[test]
    fn other_lines_have_a_reason() {
        let refused = TopSample::parse(r#"{"error":"8 readers are connected already"}"#);
        assert_eq!(refused.unwrap_err(), "8 readers are connected already");
        let other = TopSample::parse("HTTP/1.1 400").unwrap_err();
        assert!(other.starts_with("not a line of a monitor socket: "), "{other}");
    }
}
