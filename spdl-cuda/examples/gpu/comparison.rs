//! G5: our best rates of decoding JPEGs beside torchvision's, which another process has measured.

use serde_json::{Value, json};

use crate::samples;

const MEASUREMENT: &str = "g3";
const LEAST_RATIO: f64 = 1.3;

/// A line for each work that both have measured, and one for each that torchvision has not.
pub(crate) fn beside_torchvision(lines: &[Value]) -> Vec<Value> {
    let works = ["decode only", samples::WORK];
    works.iter().filter_map(|work| compared(lines, work)).collect()
}

fn compared(lines: &[Value], work: &str) -> Option<Value> {
    let ours = best_rate(lines, work, "")?;
    let promise = format!("G5: {work}, beside torchvision, the best rates");
    Some(match best_rate(lines, work, ", torchvision") {
        Some(theirs) => json!({
            "kind": "promise",
            "measurement": MEASUREMENT,
            "promise": promise,
            "holds": ours / theirs >= LEAST_RATIO,
            "found": format!("{:.2} times: {ours:.0} and {theirs:.0} images/s", ours / theirs),
            "wanted": format!("{LEAST_RATIO} times"),
        }),
        None => json!({
            "kind": "unsupported",
            "measurement": MEASUREMENT,
            "case": promise,
            "reason": "torchvision has measured nothing",
        }),
    })
}

/// The best rate of a work among batches of all sizes.
fn best_rate(lines: &[Value], work: &str, whose: &str) -> Option<f64> {
    let rates = lines.iter().filter_map(|line| {
        let size = line["case"].as_str()?.strip_prefix(work)?.strip_prefix(", batches of ")?;
        size.strip_suffix(whose)?.parse::<u32>().ok()?;
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
    fn g5_the_best_rates_are_compared_and_what_one_lacks_is_not() {
        let mut lines = vec![
            figure("decode only, batches of 8", "rate", 900.0),
            figure("decode only, batches of 32", "rate", 1300.0),
            figure("decode only, batches of 32", "a batch, p50", 5000.0),
            figure("decode only, batches of 8, torchvision", "rate", 1000.0),
            figure("decode only, batches of 32, torchvision", "rate", 500.0),
            figure("decode, resize to 224 and normalise, batches of 8", "rate", 70.0),
        ];
        let found = beside_torchvision(&lines);
        assert_eq!(found.len(), 2);
        assert_eq!((&found[0]["kind"], &found[0]["holds"]), (&"promise".into(), &true.into()));
        assert_eq!(found[0]["found"], "1.30 times: 1300 and 1000 images/s");
        assert_eq!(found[1]["kind"], "unsupported");
        lines.push(figure("decode only, batches of 1, torchvision", "rate", 1001.0));
        assert_eq!(beside_torchvision(&lines)[0]["holds"], false);
        assert_eq!(beside_torchvision(&lines[3..5]), [] as [Value; 0]);
    }
}
