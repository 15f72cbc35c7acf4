//! The tests, each in a process of its own: one that crashes, or does not end, stops no other.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::json;

use crate::suite::Suite;

/// No test takes more than this part of the time that is left.
const MOST_OF_TIME: u32 = 3;

/// What became of all of them, and why.
pub(crate) fn run(
    suite: &mut Suite<'_>,
    measurement: &str,
    deadline: Instant,
) -> Result<(&'static str, String), String> {
    let program = suite.folder.join("tests").join("gpu");
    if !program.is_file() {
        return Ok(("unsupported", format!("{} is not there", program.display())));
    }
    let tests = match listed(suite, &program) {
        Ok(tests) => tests,
        Err(reason) => return Ok(("failed", format!("{}: {reason}", program.display()))),
    };
    let mut failed = 0;
    for test in &tests {
        let mut command = Command::new(&program);
        // What it prints is seen at once, also where it is killed.
        command.args([test, "--exact", "--nocapture"]);
        suite.prepare(&mut command);
        let mut log = suite.log.try_clone().map_err(|error| error.to_string())?;
        let now = Instant::now();
        let limit = now + deadline.saturating_duration_since(now) / MOST_OF_TIME;
        let (outcome, reason) = suite.watch(command, limit, |line| {
            let _ = writeln!(log, "{line}");
            let skipped = line.split_once("SKIPPED: ");
            Ok(skipped.map(|(_, reason)| {
                json!({
                    "kind": "unsupported", "measurement": measurement, "case": test,
                    "reason": reason,
                })
            }))
        })?;
        let passed = outcome == "done";
        failed += usize::from(!passed);
        suite.add(json!({
            "kind": "test",
            "measurement": measurement,
            "name": test,
            "passed": passed,
            "reason": if passed { String::new() } else { format!("{outcome}: {reason}") },
        }))?;
    }
    Ok(match failed {
        _ if tests.is_empty() => ("failed", format!("{} has no tests", program.display())),
        0 => ("done", String::new()),
        _ => ("failed", format!("{failed} of {} tests failed; see log.txt", tests.len())),
    })
}

/// The names of its tests.
fn listed(suite: &Suite<'_>, program: &Path) -> Result<Vec<String>, String> {
    let mut command = Command::new(program);
    command.args(["--list", "--format", "terse"]);
    suite.prepare(&mut command);
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(output.status.to_string());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect())
}
