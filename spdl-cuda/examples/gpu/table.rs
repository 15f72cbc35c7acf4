//! The results as a Markdown table.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::Outcome;
use crate::suite::{NAMES, is_failure};

/// Prints the table of a `results.jsonl`. A truncated last line is ignored.
pub(crate) fn print_file(path: &Path) -> Outcome {
    let text = fs::read_to_string(path)
        .map_err(|error| format!("cannot read {:?}: {error}", path.display().to_string()))?;
    let lines: Vec<Value> =
        text.lines().map_while(|line| serde_json::from_str(line).ok()).collect();
    println!("{}", markdown(&lines));
    Ok(())
}

/// Formats a section for each measurement, followed by the failures.
pub(crate) fn markdown(lines: &[Value]) -> String {
    let mut text = String::new();
    if let Some(run) = lines.iter().find(|line| line["kind"] == "run") {
        let word = |name: &str| run[name].as_str().unwrap_or("?");
        let parts = &run["parts"];
        let _ = writeln!(
            text,
            "{}, {}; driver {}; {} x {}; commit {}",
            word("date"),
            word("device"),
            parts["driver"].as_str().unwrap_or("?"),
            run["cpus"],
            word("cpu"),
            word("commit"),
        );
    }
    for name in NAMES {
        let of_measurement: Vec<&Value> =
            lines.iter().filter(|line| line["measurement"] == name).collect();
        if !of_measurement.is_empty() {
            let _ = writeln!(text, "\n## {name}\n");
            section(&mut text, &of_measurement);
        }
    }
    let failures: Vec<&Value> = lines.iter().filter(|line| is_failure(line)).collect();
    let _ = writeln!(text, "\n{} failures", failures.len());
    for line in failures {
        let _ = writeln!(text, "- {line}");
    }
    text
}

fn section(text: &mut String, lines: &[&Value]) {
    let word = |value: &Value| value.as_str().unwrap_or_default().replace('|', "/");
    let of_kind = |kind: &'static str| lines.iter().filter(move |line| line["kind"] == kind);
    let tests = of_kind("test").count();
    if tests > 0 {
        let passed = of_kind("test").filter(|line| line["passed"] == true).count();
        let _ = writeln!(text, "{passed} of {tests} tests passed");
    }
    if of_kind("figure").next().is_some() {
        let _ = writeln!(text, "| case | figure | value | unit |\n|---|---|---|---|");
        for line in of_kind("figure") {
            let value = rounded(line["value"].as_f64().unwrap_or(f64::NAN));
            let [case, name, unit] = ["case", "name", "unit"].map(|of| word(&line[of]));
            let _ = writeln!(text, "| {case} | {name} | {value} | {unit} |");
        }
    }
    if of_kind("promise").next().is_some() {
        let _ = writeln!(text, "\n| promise | holds | found | expected |\n|---|---|---|---|");
        for line in of_kind("promise") {
            let holds = if line["holds"] == true { "yes" } else { "NO" };
            let [promise, found, wanted] = ["promise", "found", "wanted"].map(|of| word(&line[of]));
            let _ = writeln!(text, "| {promise} | {holds} | {found} | {wanted} |");
        }
    }
    for line in of_kind("unsupported") {
        let _ = writeln!(text, "\nunsupported: {}: {}", word(&line["case"]), word(&line["reason"]));
    }
    for line in of_kind("note") {
        let _ = writeln!(text, "\n{}", word(&line["text"]));
    }
    for line in of_kind("end").filter(|line| line["outcome"] != "done") {
        let [program, outcome, reason] = ["program", "outcome", "reason"].map(|of| word(&line[of]));
        let _ = writeln!(text, "\n{program}: {outcome}: {reason}");
    }
}

/// Formats a number with 3, 1 or 0 decimals, depending on its magnitude.
fn rounded(value: f64) -> String {
    match value.abs() {
        small if small > 0.0 && small < 10.0 => format!("{value:.3}"),
        middle if middle < 1000.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
