//! Metrics and spans of a pipeline arrive in OpenTelemetry.

#[allow(dead_code, unreachable_pub, reason = "a program")]
#[path = "../examples/opentelemetry.rs"]
mod example;

#[test]
fn stages_have_metrics_and_spans() {
    let exported = example::run().unwrap();
    for name in ["spdl_stage_items_total", "spdl_data_readiness_ratio", "spdl_dropped_total"] {
        assert!(exported.metrics.contains(name), "{name}: {:?}", exported.metrics);
    }
    let spans = exported.spans.iter().filter(|span| span.name == "stage");
    let stages: Vec<String> = spans
        .filter_map(|span| span.attributes.iter().find(|it| it.key.as_str() == "stage"))
        .map(|attribute| attribute.value.to_string())
        .collect();
    assert!(stages.iter().any(|it| it == "decode"), "{stages:?}");
    assert!(stages.iter().any(|it| it == "batch"), "{stages:?}");
}
