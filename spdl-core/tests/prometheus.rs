//! Metrics as Prometheus reads them, and the Grafana board that shows them.
#![expect(clippy::unwrap_used, reason = "a test that cannot continue should panic")]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;
use spdl_core::observe::MetricsExporter;
use spdl_core::{Error, ErrorKind, OnError, PipelineBuilder};

/// Publishes the intervals of a pipeline, and returns the text that Prometheus reads.
fn rendered() -> String {
    let handle = PrometheusBuilder::new().install_recorder().unwrap();
    let exporter = MetricsExporter::new().named("train");
    exporter.describe();
    let odd = |n: u64| match n {
        3 => Err(Error::new(ErrorKind::Corrupt, "no number")),
        n => Ok(n),
    };
    let pipeline = PipelineBuilder::from_iter(0..10)
        .map("odd", odd)
        .batch("batch", 2, false)
        .on_error(OnError::SKIP)
        .every(Duration::from_secs(3600), move |interval| exporter.publish_interval(interval))
        .build()
        .unwrap();
    assert_eq!(pipeline.count(), 5);
    handle.render()
}

/// All names with the prefix of this project in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("spdl_")).collect()
}

#[test]
fn the_grafana_board_uses_metrics_and_labels_that_are_emitted() {
    let text = rendered();
    assert!(
        text.contains("spdl_stage_failures_total{pipeline=\"train\",stage=\"odd\"} 1"),
        "{text}"
    );
    let values = text.lines().filter(|line| !line.starts_with('#'));
    let emitted: BTreeSet<&str> = values.flat_map(names).collect();

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/grafana.json");
    let board: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let mut shown = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let used = names(query);
            assert!(!used.is_empty() && used.is_subset(&emitted), "{query}: not emitted");
            shown.extend(used);
            // Labels of the filter and of the legend.
            let legend = target["legendFormat"].as_str().unwrap();
            for label in ["pipeline", "stage", "quantile"] {
                let uses = query.contains(&format!("{label}="))
                    || legend.contains(&format!("{{{{{label}}}}}"));
                let has = |name: &&str| {
                    text.lines().any(|line| {
                        line.starts_with(&format!("{name}{{"))
                            && line.contains(&format!("{label}=\""))
                    })
                };
                assert!(!uses || names(query).iter().all(has), "{query}: no label {label}");
            }
        }
    }
    assert!(shown.len() > 10, "{shown:?}");
    let variable = board["templating"]["list"][1]["query"]["query"].as_str().unwrap();
    assert!(names(variable).is_subset(&emitted), "{variable}");
}
