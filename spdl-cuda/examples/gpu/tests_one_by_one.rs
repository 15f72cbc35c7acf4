//! Runs each test in a separate process, so that a crash or a hang affects no other test.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use serde_json::json;

use crate::suite::Suite;

/// A test gets at most 1 / this number of the remaining time.
const TIME_FRACTION: u32 = 2;

/// Runs all tests. Returns the outcome and its reason.
pub(crate) fn run(
    suite: &mut Suite<'_>,
    measurement: &str,
    deadline: Instant,
) -> Result<(&'static str, String), String> {
    let program = suite.folder.join("tests").join("gpu");
    if !program.is_file() {
        return Ok(("unsupported", format!("{:?} not found", program.display().to_string())));
    }
    let tests = match list(suite, &program) {
        Ok(tests) => tests,
        Err(reason) => {
            let program = program.display().to_string();
            return Ok(("failed", format!("cannot list the tests of {program:?}: {reason}")));
        }
    };
    let mut failed = 0;
    for test in &tests {
        let mut command = Command::new(&program);
        // The output is not captured, so that the output of a killed test is in the log.
        command.args([test, "--exact", "--nocapture"]);
        suite.prepare(&mut command);
        let mut log = suite.log.try_clone().map_err(|error| error.to_string())?;
        let now = Instant::now();
        let limit = now + deadline.saturating_duration_since(now) / TIME_FRACTION;
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

/// The names of all tests.
fn list(suite: &Suite<'_>, program: &Path) -> Result<Vec<String>, String> {
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
