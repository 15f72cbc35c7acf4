//! Serves the statistics of pipelines to Prometheus, with the names and labels of
//! `spdl_core::observe::MetricsExporter`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::connection::Connection;
use crate::ui::failure::Failure;
use crate::ui::stderr;

const FAILED: &str = "cannot serve the metrics";
/// Time between attempts to connect to a pipeline, and to accept a connection.
const RETRY: Duration = Duration::from_millis(300);
/// The time for a request. A client that does not read the response for this time is disconnected.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest head of a request, in bytes.
const LONGEST_HEAD: usize = 16 << 10;

/// How a value of a line becomes a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricKind {
    /// The value is added to a counter.
    Count,
    /// The value in seconds is added to a counter of nanoseconds.
    Nanoseconds,
    Gauge,
    /// An object of quantiles, with a gauge for each.
    Quantiles,
}

use MetricKind::{Count, Gauge, Nanoseconds, Quantiles};

/// Names of metrics, and the keys of their values in the statistics.
type MetricTable = [(&'static str, MetricKind, &'static str)];

const OF_STAGE: &MetricTable = &[
    ("spdl_stage_items_total", Count, "items"),
    ("spdl_stage_items_out_total", Count, "items_out"),
    ("spdl_stage_failures_total", Count, "failures"),
    ("spdl_stage_busy_nanoseconds_total", Nanoseconds, "busy_s"),
    ("spdl_stage_fill_ratio", Gauge, "fill_rate"),
    ("spdl_stage_concurrency", Gauge, "concurrency"),
    ("spdl_stage_service_seconds", Quantiles, "service_s"),
];
const OF_QUEUE: &MetricTable = &[
    ("spdl_queue_items_total", Count, "items"),
    ("spdl_queue_length", Gauge, "len"),
    ("spdl_queue_mean_length", Gauge, "mean_len"),
    ("spdl_queue_capacity", Gauge, "capacity"),
    ("spdl_queue_occupancy_ratio", Gauge, "occupancy"),
    ("spdl_queue_put_wait_nanoseconds_total", Nanoseconds, "put_wait_s"),
    ("spdl_queue_get_wait_nanoseconds_total", Nanoseconds, "get_wait_s"),
    ("spdl_queue_put_wait_seconds", Quantiles, "wait_per_put_s"),
    ("spdl_queue_get_wait_seconds", Quantiles, "wait_per_get_s"),
];
const OF_CONSUMER: &MetricTable = &[
    ("spdl_consumer_items_total", Count, "items"),
    ("spdl_consumer_waited_nanoseconds_total", Nanoseconds, "waited_s"),
    ("spdl_consumer_wait_seconds", Quantiles, "wait_s"),
];
const OF_MEMORY: &MetricTable = &[
    ("spdl_memory_budget_bytes", Gauge, "limit_bytes"),
    ("spdl_memory_live_bytes", Gauge, "live_bytes"),
    ("spdl_memory_peak_bytes", Gauge, "peak_bytes"),
    ("spdl_memory_waited_nanoseconds_total", Nanoseconds, "waited_s"),
];
const OF_PIPELINE: &MetricTable = &[
    ("spdl_data_readiness_ratio", Gauge, "data_readiness"),
    ("spdl_dropped_total", Count, "dropped"),
    ("spdl_left_out_total", Count, "left_out"),
];
const BUSY_RATIO: &str = "spdl_stage_busy_ratio";
const QUANTILES: [(&str, &str); 4] =
    [("p50", "0.5"), ("p90", "0.9"), ("p99", "0.99"), ("max", "1")];

/// A counter of all pipelines with one socket.
#[derive(Debug, Default)]
struct Counter {
    /// The sum of the pipelines before.
    earlier: f64,
    /// The value of the last pipeline.
    last: f64,
}

/// Values by the name of the metric, and then by their labels.
#[derive(Debug, Default)]
struct Exposition {
    counters: BTreeMap<&'static str, BTreeMap<String, Counter>>,
    gauges: BTreeMap<&'static str, BTreeMap<String, f64>>,
}

impl Exposition {
    /// Begins a connection, whose first line has the statistics since the start of the pipeline. They replace those of the
    /// last connection if it was to the same pipeline.
    fn begin(&mut self, pipeline: &str, is_same: bool) {
        let of_pipeline = label("pipeline", pipeline);
        for (labels, counter) in self.counters.values_mut().flatten() {
            if labels.starts_with(&of_pipeline) {
                let last = std::mem::take(&mut counter.last);
                counter.earlier += if is_same { 0.0 } else { last };
            }
        }
    }

    /// Adds the statistics since the line before.
    fn add(&mut self, pipeline: &str, line: &Value) {
        let labels = label("pipeline", pipeline);
        let list = |key: &str| line[key].as_array().map(Vec::as_slice).unwrap_or_default();
        for (at, stage) in list("stages").iter().enumerate() {
            let name = stage["name"].as_str().unwrap_or_default();
            let labels = format!("{labels},{}", label("stage", name));
            self.add_all(OF_STAGE, &labels, stage);
            let number = |value: &Value| value.as_f64().unwrap_or_default();
            let available = number(&line["length_s"]) * number(&stage["concurrency"]);
            let busy = if available > 0.0 { number(&stage["busy_s"]) / available } else { 0.0 };
            self.set(BUSY_RATIO, labels.clone(), busy.min(1.0));
            if let Some(queue) = list("queues").get(at) {
                self.add_all(OF_QUEUE, &labels, queue);
            }
        }
        self.add_all(OF_CONSUMER, &labels, &line["consumer"]);
        self.add_all(OF_MEMORY, &labels, &line["memory"]);
        self.add_all(OF_PIPELINE, &labels, line);
    }

    fn add_all(&mut self, table: &MetricTable, labels: &str, from: &Value) {
        for &(name, kind, key) in table {
            let value = &from[key];
            let mut count = |value: f64| {
                let of_name = self.counters.entry(name).or_default();
                of_name.entry(labels.to_owned()).or_default().last += value;
            };
            match (kind, value.as_f64()) {
                (Count, Some(value)) => count(value),
                (Nanoseconds, Some(value)) => count((value * 1e9).round()),
                (Gauge, Some(value)) => self.set(name, labels.to_owned(), value),
                (Quantiles, _) => {
                    for (key, quantile) in QUANTILES {
                        if let Some(value) = value[key].as_f64() {
                            let labels = format!("{labels},{}", label("quantile", quantile));
                            self.set(name, labels, value);
                        }
                    }
                }
                // Not every stage has every value.
                (_, None) => {}
            }
        }
    }

    fn set(&mut self, name: &'static str, labels: String, value: f64) {
        self.gauges.entry(name).or_default().insert(labels, value);
    }

    /// Removes the gauges of a pipeline that has ended. Its counters stay, because the next epoch
    /// continues them.
    fn end(&mut self, pipeline: &str) {
        let of_pipeline = label("pipeline", pipeline);
        for values in self.gauges.values_mut() {
            values.retain(|labels, _| !labels.starts_with(&of_pipeline));
        }
    }

    /// The text that Prometheus reads.
    fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a `String` cannot fail.
        for (name, values) in &self.counters {
            let _ = writeln!(text, "# TYPE {name} counter");
            for (labels, Counter { earlier, last }) in values {
                let _ = writeln!(text, "{name}{{{labels}}} {}", earlier + last);
            }
        }
        for (name, values) in self.gauges.iter().filter(|(_, values)| !values.is_empty()) {
            let _ = writeln!(text, "# TYPE {name} gauge");
            for (labels, value) in values {
                let _ = writeln!(text, "{name}{{{labels}}} {value}");
            }
        }
        text
    }
}

/// A label in the text format.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
    format!("{name}=\"{value}\"")
}

/// Serves the statistics of the pipelines with these monitor sockets, until the program is stopped.
/// Pipelines may start and end meanwhile.
pub(super) fn serve(sockets: &[PathBuf], address: SocketAddr) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::new(FAILED, address, error);
    let mut names = BTreeSet::new();
    let exposition = Arc::new(Mutex::new(Exposition::default()));
    let listener = TcpListener::bind(address).map_err(failed)?;
    for socket in sockets {
        let name = socket.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if !names.insert(name.clone()) {
            let reason =
                format!("two sockets have the name {name:?}, which is the label `pipeline`");
            return Err(Failure::usage(reason));
        }
        let (socket, exposition) = (socket.clone(), Arc::clone(&exposition));
        let watch = move || watch(&socket, &name, &exposition);
        thread::Builder::new().name("top-reader".into()).spawn(watch).map_err(failed)?;
    }
    let address = listener.local_addr().map_err(failed)?;
    stderr::note(&format!("spdl: metrics at http://{address}/metrics"));
    loop {
        match listener.accept() {
            // A client that disconnects is no failure of this program.
            Ok((client, _)) => drop(respond(&client, &exposition)),
            // For example, the process has too many open files.
            Err(_) => thread::sleep(RETRY),
        }
    }
}

/// Reads the lines of a socket, also those of later pipelines.
fn watch(socket: &Path, pipeline: &str, exposition: &Mutex<Exposition>) {
    let update = |change: &dyn Fn(&mut Exposition)| {
        change(&mut exposition.lock().unwrap_or_else(PoisonError::into_inner));
    };
    let mut reported = String::new();
    // The process of a pipeline that was connected, and has not ended.
    let mut unended: Option<Value> = None;
    loop {
        // Before its start and after its end, a pipeline has no socket.
        if let Ok(mut connection) = Connection::open(socket) {
            let mut is_first = true;
            let failure = loop {
                match connection.next() {
                    Ok(Some(line)) => {
                        let line: Value = serde_json::from_str(&line.text).unwrap_or_default();
                        let process = line["pid"].clone();
                        update(&|exposition| {
                            if is_first {
                                exposition.begin(pipeline, unended.as_ref() == Some(&process));
                            }
                            exposition.add(pipeline, &line);
                        });
                        is_first = false;
                        unended = Some(process).filter(|_| line["ended"] != true);
                    }
                    Ok(None) => break None,
                    Err(failure) => break Some(failure.to_string()),
                }
            };
            update(&|exposition| exposition.end(pipeline));
            if let Some(failure) = failure.filter(|failure| *failure != reported) {
                stderr::note(&failure);
                reported = failure;
            }
        }
        thread::sleep(RETRY);
    }
}

/// Answers one request.
fn respond(mut client: &TcpStream, exposition: &Mutex<Exposition>) -> io::Result<()> {
    let until = Instant::now() + TIMEOUT;
    client.set_write_timeout(Some(TIMEOUT))?;
    let (mut head, mut part) = (Vec::new(), [0; 1024]);
    while head.len() < LONGEST_HEAD && !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut part)? {
            0 => break,
            count => head.extend_from_slice(&part[..count]),
        }
    }
    let head = String::from_utf8_lossy(&head);
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (status, body) = match (words.next(), words.next()) {
        (Some("GET"), Some("/metrics")) => {
            ("200 OK", exposition.lock().unwrap_or_else(PoisonError::into_inner).text())
        }
        _ => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
    };
    let length = body.len();
    let response = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    client.write_all(response.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::sample::tests::line;
    use super::*;

    #[test]
    fn counters_add_up_and_gauges_end_with_their_pipeline() {
        let mut exposition = Exposition::default();
        let mut line: Value = serde_json::from_str(&line(8.0)).unwrap();
        line["stages"][0]["name"] = "a\"b\n".into();
        exposition.add("train", &line);
        exposition.add("train", &line);
        exposition.add("train-2", &line);
        let text = exposition.text();
        for expected in [
            "# TYPE spdl_stage_items_total counter\n",
            "spdl_stage_items_total{pipeline=\"train\",stage=\"a\\\"b\\n\"} 2000\n",
            "spdl_stage_busy_nanoseconds_total{pipeline=\"train\",stage=\"a\\\"b\\n\"} 12000000000\n",
            "spdl_stage_busy_ratio{pipeline=\"train\",stage=\"a\\\"b\\n\"} 0.75\n",
            "spdl_dropped_total{pipeline=\"train\"} 14\n",
            "spdl_dropped_total{pipeline=\"train-2\"} 7\n",
            "spdl_stage_service_seconds{pipeline=\"train\",stage=\"a\\\"b\\n\",quantile=\"0.99\"} 0.0045\n",
        ] {
            assert!(text.contains(expected), "no {expected:?} in\n{text}");
        }
        assert_eq!(text.matches("# TYPE spdl_dropped_total").count(), 1);
        assert!(!text.contains("spdl_stage_fill_ratio"), "no value: {text}");
        exposition.end("train");
        let text = exposition.text();
        assert!(text.contains("spdl_dropped_total{pipeline=\"train\"} 14\n"), "{text}");
        assert!(!text.contains("spdl_data_readiness_ratio{pipeline=\"train\"}"), "{text}");
        assert!(text.contains("spdl_data_readiness_ratio{pipeline=\"train-2\"} 0.25\n"), "{text}");
    }

    #[test]
    fn a_second_connection_to_a_pipeline_counts_nothing_twice() {
        let mut exposition = Exposition::default();
        let line: Value = serde_json::from_str(&line(8.0)).unwrap();
        let mut dropped = |is_same| {
            exposition.begin("train", is_same);
            exposition.add("train", &line);
            let text = exposition.text();
            let value = text
                .lines()
                .find_map(|it| it.strip_prefix("spdl_dropped_total{pipeline=\"train\"} "));
            value.unwrap().to_owned()
        };
        assert_eq!([dropped(false), dropped(true), dropped(false)], ["7", "7", "14"]);
    }
}
