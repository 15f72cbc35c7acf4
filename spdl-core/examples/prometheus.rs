//! Serves the statistics of a pipeline to Prometheus, for the Grafana board `docs/grafana.json`.
//!
//! ```text
//! cargo run --release -p spdl-core --features metrics --example prometheus -- 127.0.0.1:9464 &
//! curl http://127.0.0.1:9464/metrics
//! ```
//!
//! Prometheus, or the Prometheus receiver of an OpenTelemetry Collector, reads this address.

use std::error::Error;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use spdl_core::PipelineBuilder;
use spdl_core::observe::MetricsExporter;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:9464".into());
    // A separate thread answers the requests.
    PrometheusBuilder::new().with_http_listener(address.parse::<SocketAddr>()?).install()?;
    let exporter = MetricsExporter::new().named("train");
    exporter.describe();

    let decode = |number: u64| {
        sleep(Duration::from_millis(2 + number % 3));
        Ok(number)
    };
    let pipeline = PipelineBuilder::from_iter(0..)
        .map("decode", decode)
        .batch("batch", 32, false)
        .every(Duration::from_secs(1), move |interval| exporter.publish_interval(interval))
        .build()?;
    for batch in pipeline {
        let _batch = batch?;
        // The training step.
        sleep(Duration::from_millis(20));
    }
    Ok(())
}
