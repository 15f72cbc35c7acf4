//! Exports the metrics and spans of a pipeline through OpenTelemetry.
//!
//! `cargo run --release -p spdl-core --features metrics,tracing --example opentelemetry`
//!
//! The exporters of this program keep everything in memory, and the program prints it. A training
//! uses the exporters of the crate `opentelemetry-otlp` instead, which send it to a collector.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::collections::BTreeSet;
use std::error::Error;
use std::time::Duration;

use metrics_exporter_opentelemetry::Recorder;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use spdl_core::PipelineBuilder;
use spdl_core::observe::{MetricsExporter, TracingHook};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// What the exporters received.
#[derive(Debug)]
pub struct Exported {
    /// The names of the metrics.
    pub metrics: BTreeSet<String>,
    /// The spans that ended.
    pub spans: Vec<SpanData>,
}

/// Runs a pipeline, and returns what it exported.
///
/// # Errors
/// If a recorder or a subscriber is installed already, or the pipeline fails.
pub fn run() -> Result<Exported, Box<dyn Error>> {
    let (metrics, spans) = (InMemoryMetricExporter::default(), InMemorySpanExporter::default());
    let reader = PeriodicReader::builder(metrics.clone()).build();
    let (provider, recorder) =
        Recorder::builder("spdl").with_meter_provider(|it| it.with_reader(reader)).build();
    metrics::set_global_recorder(recorder)?;

    let tracer = SdkTracerProvider::builder().with_simple_exporter(spans.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(tracer.tracer("spdl"));
    // At the level INFO, each stage has a span; at DEBUG, each item.
    tracing_subscriber::registry().with(LevelFilter::INFO).with(layer).try_init()?;

    let exporter = MetricsExporter::new().named("train");
    exporter.describe();
    let pipeline = PipelineBuilder::from_iter(0..100)
        .map("decode", |n| Ok(2 * n))
        .batch("batch", 10, false)
        .hook(TracingHook::new())
        .every(Duration::from_secs(5), move |interval| exporter.publish_interval(interval))
        .build()?;
    for batch in pipeline {
        let _batch = batch?;
    }
    provider.force_flush()?;
    tracer.force_flush()?;

    let received = metrics.get_finished_metrics()?;
    let scopes = received.iter().flat_map(|one| one.scope_metrics());
    let names = scopes.flat_map(|scope| scope.metrics().map(|one| one.name().to_owned()));
    Ok(Exported { metrics: names.collect(), spans: spans.get_finished_spans()? })
}

fn main() -> Result<(), Box<dyn Error>> {
    let exported = run()?;
    for name in exported.metrics {
        println!("metric {name}");
    }
    for span in exported.spans {
        println!("span {} {:?}", span.name, span.attributes);
    }
    Ok(())
}
