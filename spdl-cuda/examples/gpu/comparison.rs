//! G5: compares the best rates of decoding JPEGs with those of torchvision, which another process
//! measures.

use serde_json::{Value, json};

use crate::samples;

const MEASUREMENT: &str = "g3";
/// The end of the names of the cases of torchvision.
const TORCHVISION: &str = ", torchvision";
const MIN_RATIO: f64 = 1.3;

/// Returns a line for each workload with a rate of SPDL. The kind of the line is `unsupported` if
/// torchvision has no rate for the workload.
pub(crate) fn compare_with_torchvision(lines: &[Value]) -> Vec<Value> {
    let workloads = ["decode only", samples::WORKLOAD];
    workloads.iter().filter_map(|workload| compare(lines, workload)).collect()
}

fn compare(lines: &[Value], workload: &str) -> Option<Value> {
    let spdl = best_rate(lines, workload, false)?;
    let promise = format!("G5: {workload}, best rates compared with torchvision");
    Some(match best_rate(lines, workload, true) {
        Some(torchvision) => json!({
            "kind": "promise",
            "measurement": MEASUREMENT,
            "promise": promise,
            "holds": spdl / torchvision >= MIN_RATIO,
            "found": format!(
                "{:.2} times: {spdl:.0} and {torchvision:.0} images/s",
                spdl / torchvision
            ),
            "wanted": format!("{MIN_RATIO} times"),
        }),
        None => json!({
            "kind": "unsupported",
            "measurement": MEASUREMENT,
            "case": promise,
            "reason": "torchvision was not measured",
        }),
    })
}

/// The best rate of a workload, of torchvision or of SPDL, among all batch sizes and numbers of
/// decoders.
fn best_rate(lines: &[Value], workload: &str, of_torchvision: bool) -> Option<f64> {
    let rates = lines.iter().filter_map(|line| {
        let case = line["case"].as_str()?.strip_prefix(workload)?.strip_prefix(", batches of ")?;
        if case.ends_with(TORCHVISION) != of_torchvision {
            return None;
        }
        (line["kind"] == "figure" && line["name"] == "rate").then(|| line["value"].as_f64())?
    });
    rates.max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(case: &str, name: &str, value: f64) -> Value {
        json!({"kind": "figure", "measurement": "g3", "case": case, "name": name, "value": value})
    }

    #[test]
    fn g5_best_rates_of_each_workload_are_compared() {
        let mut lines = vec![
            figure("decode only, batches of 8", "rate", 900.0),
            figure("decode only, batches of 32, 2 decoders", "rate", 1300.0),
            figure("decode only, batches of 32", "batch time, p50", 5000.0),
            figure("decode only, batches of 8, torchvision", "rate", 1000.0),
            figure("decode only, batches of 32, torchvision", "rate", 500.0),
            figure("decode, resize to 224 and normalise, batches of 8", "rate", 70.0),
        ];
        let found = compare_with_torchvision(&lines);
        assert_eq!(found.len(), 2);
        assert_eq!((&found[0]["kind"], &found[0]["holds"]), (&"promise".into(), &true.into()));
        assert_eq!(found[0]["found"], "1.30 times: 1300 and 1000 images/s");
        assert_eq!(found[1]["kind"], "unsupported");
        lines.push(figure("decode only, batches of 1, torchvision", "rate", 1001.0));
        assert_eq!(compare_with_torchvision(&lines)[0]["holds"], false);
        assert_eq!(compare_with_torchvision(&lines[3..5]), [] as [Value; 0]);
    }
}
