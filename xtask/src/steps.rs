//! Steps of `test` and `soak`: each step passes, fails or is skipped, and has a separate log.

use std::collections::BTreeMap;
use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::tools::{Output, Workspace, cargo, command, cpu_time_of_children};

/// A check with a name.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&Workspace, &mut Output) -> Result<Counts>,
}

/// Column width of step names.
const WIDTH: usize = 17;

/// Number of log lines shown for a failed step.
const SHOWN_LINES: usize = 60;

/// Prints the name and the description of each step.
pub(crate) fn list(steps: &[Step]) {
    for step in steps {
        println!("{:<WIDTH$}{}", step.name, step.about);
    }
}

/// The steps with the given names, in table order; all steps if `only` is empty.
pub(crate) fn choose<'a>(steps: &'a [Step], only: &[String]) -> Result<Vec<&'a Step>> {
    for name in only {
        if !steps.iter().any(|step| step.name == name) {
            let names: Vec<_> = steps.iter().map(|step| step.name).collect();
            bail!("unknown step {name:?}; the steps are: {}", names.join(", "));
        }
    }
    let chosen = |step: &&Step| only.is_empty() || only.iter().any(|name| name == step.name);
    Ok(steps.iter().filter(chosen).collect())
}

/// Results and times of all steps so far.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    sum: Counts,
    failed_steps: Vec<String>,
    times: Vec<StepTime>,
}

/// The times of one step.
#[derive(Debug)]
struct StepTime {
    name: &'static str,
    wall: Duration,
    /// User and system time of the step's child processes.
    cpu: Duration,
}

impl Tally {
    /// Runs a step, and writes its log to `target/xtask-logs/LOG.log`. Kills the commands of the
    /// step after `limit`.
    pub(crate) fn run(
        &mut self,
        workspace: &Workspace,
        step: &Step,
        log: &str,
        limit: Duration,
    ) -> Result<()> {
        let logs = workspace.target.join("xtask-logs");
        fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
        let log = logs.join(format!("{log}.log"));
        let (start, cpu) = (Instant::now(), cpu_time_of_children());
        let counts = run_step(workspace, step, &log, limit)?;
        let cpu = cpu_time_of_children().saturating_sub(cpu);
        self.times.push(StepTime { name: step.name, wall: start.elapsed(), cpu });
        if counts.failed > 0 {
            self.failed_steps.push(format!("{}: {}", step.name, workspace.shown(&log)));
            let names = counts.failed_tests.iter().map(|test| format!("{}: {test}", step.name));
            self.failed_steps.extend(names);
        }
        self.sum.add(counts);
        Ok(())
    }

    /// Whether any test has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.sum.failed > 0
    }

    /// Prints the reasons of skipped tests, the times of the steps (if there are several), the
    /// failures and the total; returns the exit code.
    pub(crate) fn conclude(&self) -> ExitCode {
        println!();
        for (reason, times) in &self.sum.reasons {
            let times = if *times > 1 { format!(" ({times} times)") } else { String::new() };
            println!("SKIPPED: {reason}{times}");
        }
        if self.times.len() > 1 {
            println!("{}", time_table(&self.times));
        }
        for step in &self.failed_steps {
            println!("FAILED: {step}");
        }
        let Counts { passed, failed, skipped, .. } = self.sum;
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        if self.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

/// A table of the steps, slowest first: wall time and CPU time in seconds, and share of the total
/// wall time. The last row is the total.
fn time_table(times: &[StepTime]) -> String {
    let mut sorted: Vec<&StepTime> = times.iter().collect();
    sorted.sort_by_key(|step| std::cmp::Reverse(step.wall));
    let wall: Duration = times.iter().map(|step| step.wall).sum();
    let cpu: Duration = times.iter().map(|step| step.cpu).sum();
    let row = |name: &str, own_wall: Duration, own_cpu: Duration| {
        let share = 100.0 * own_wall.as_secs_f64() / wall.as_secs_f64().max(1e-9);
        let (own_wall, own_cpu) = (own_wall.as_secs_f64(), own_cpu.as_secs_f64());
        format!("{name:<WIDTH$}{own_wall:>9.1}{own_cpu:>10.1}{share:>7.1} %\n")
    };
    let mut table = format!("{:<WIDTH$}{:>9}{:>10}{:>9}\n", "step", "seconds", "CPU s", "share");
    for step in sorted {
        table.push_str(&row(step.name, step.wall, step.cpu));
    }
    table.push_str(&row("total", wall, cpu));
    table
}

fn run_step(workspace: &Workspace, step: &Step, log: &Path, limit: Duration) -> Result<Counts> {
    // If the output is not a terminal, print the name before the step runs: an interrupted log then
    // ends with the name of the running step.
    let spinner = std::io::stderr().is_terminal().then(|| {
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
        let spinner = ProgressBar::new_spinner()
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
            .with_message(format!("{}: {}", step.name, step.about));
        spinner.enable_steady_tick(Duration::from_millis(100));
        spinner
    });
    if spinner.is_none() {
        print!("{:<WIDTH$}", step.name);
        std::io::stdout().flush()?;
    }

    let start = Instant::now();
    let mut output = Output::log(log.to_owned(), limit)?;
    let counts = (step.run)(workspace, &mut output).unwrap_or_else(|error| {
        output.say(&format!("error: {error:#}"));
        Counts::one_failed()
    });
    let seconds = start.elapsed().as_secs_f64();

    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
        print!("{:<WIDTH$}", step.name);
    }
    let verdict = match (counts.failed, counts.passed) {
        (0, 0) => "skipped",
        (0, _) => "ok",
        _ => "FAILED",
    };
    println!("{verdict:<8}{seconds:>7.1} s   {}", counts.summary());
    for note in &counts.notes {
        println!("    {note}");
    }
    if counts.failed > 0 {
        let text = String::from_utf8_lossy(&fs::read(log)?).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        println!("---- the end of {} ----", workspace.shown(log));
        for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
            println!("{line}");
        }
        println!("----");
    }
    Ok(counts)
}

/// Results of a step or a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// Reasons for skipped tests, each with its number of occurrences.
    reasons: BTreeMap<String, u64>,
    /// Names of failed tests, if known.
    failed_tests: Vec<String>,
    /// Lines to print after the result of the step.
    pub(crate) notes: Vec<String>,
}

impl Counts {
    pub(crate) fn one_passed() -> Self {
        Counts { passed: 1, ..Counts::default() }
    }

    pub(crate) fn passed(passed: usize) -> Self {
        Counts { passed: passed as u64, ..Counts::default() }
    }

    pub(crate) fn one_failed() -> Self {
        Counts { failed: 1, ..Counts::default() }
    }

    /// The result of one failed test with this name.
    pub(crate) fn one_failed_test(name: &str) -> Self {
        Counts { failed_tests: vec![name.to_owned()], ..Counts::one_failed() }
    }

    #[cfg(test)]
    pub(crate) fn failed_tests(&self) -> &[String] {
        &self.failed_tests
    }

    pub(crate) fn one_skipped(reason: &str) -> Self {
        Counts { skipped: 1, reasons: [(reason.to_owned(), 1)].into(), ..Counts::default() }
    }

    pub(crate) fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.failed_tests.extend(other.failed_tests);
        for (reason, times) in other.reasons {
            *self.reasons.entry(reason).or_default() += times;
        }
    }

    pub(crate) fn ran(&self) -> u64 {
        self.passed + self.failed + self.skipped
    }

    fn summary(&self) -> String {
        match self.ran() {
            1 => String::new(),
            _ => {
                format!("{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
            }
        }
    }

    /// Parses the output of `cargo test -- --show-output`.
    ///
    /// A passing test that prints a line `SKIPPED: reason` counts as skipped. The test harness
    /// prints the output of each passing test in a separate section.
    pub(crate) fn of_cargo_test(text: &str) -> Self {
        let mut counts = Counts::default();
        let mut of_passing_tests = false;
        let mut section_counted = true;
        let mut skipped_by_themselves = 0;
        for line in text.lines() {
            if let Some(result) = line.strip_prefix("test result: ") {
                section_counted = true;
                let (_, numbers) = result.split_once(". ").unwrap_or_default();
                for (number, word) in numbered_words(numbers, ';') {
                    match word {
                        "passed" => counts.passed += number,
                        "failed" => counts.failed += number,
                        "ignored" => counts.skipped += number,
                        _ => {}
                    }
                }
            } else if line == "successes:" || line == "failures:" {
                of_passing_tests = line == "successes:";
                section_counted = true;
            } else if line.starts_with("---- ") && line.ends_with(" stdout ----") {
                section_counted = false;
            } else if let Some(test) = line.strip_suffix(" ... FAILED") {
                counts.failed_tests.push(test.strip_prefix("test ").unwrap_or(test).to_owned());
            } else if let Some(reason) = line.trim_start().strip_prefix("SKIPPED: ") {
                *counts.reasons.entry(reason.trim().to_owned()).or_default() += 1;
                if of_passing_tests && !section_counted {
                    section_counted = true;
                    skipped_by_themselves += 1;
                }
            }
        }
        counts.passed = counts.passed.saturating_sub(skipped_by_themselves);
        counts.skipped += skipped_by_themselves;
        counts
    }

    /// Parses the output of `pytest -rfEs`.
    pub(crate) fn of_pytest(text: &str) -> Self {
        let mut counts = Counts::default();
        for line in text.lines() {
            if let Some(test) = line.strip_prefix("FAILED ").or(line.strip_prefix("ERROR ")) {
                counts.failed_tests.push(test.to_owned());
            }
            if let Some(skip) = line.strip_prefix("SKIPPED [") {
                // "SKIPPED [2] path.py:12: reason"
                let (times, place) = skip.split_once("] ").unwrap_or(("1", skip));
                let reason = place.split_once(": ").map_or(place, |(_, reason)| reason);
                let reason = reason.strip_prefix("SKIPPED: ").unwrap_or(reason).trim();
                let times = times.parse().unwrap_or(1);
                *counts.reasons.entry(reason.to_owned()).or_default() += times;
            }
        }
        let summary = text.lines().rev().find_map(|line| {
            let line = line.trim_matches(|character| character == '=' || character == ' ');
            let (numbers, time) = line.rsplit_once(" in ")?;
            time.starts_with(|character: char| character.is_ascii_digit()).then_some(numbers)
        });
        for (number, word) in numbered_words(summary.unwrap_or_default(), ',') {
            match word {
                "passed" => counts.passed += number,
                "failed" | "error" | "errors" | "xpassed" => counts.failed += number,
                // Tests that are expected to fail (xfail) count neither as passed nor as failed.
                "skipped" | "xfailed" => counts.skipped += number,
                _ => {}
            }
        }
        counts
    }
}

/// Parses text such as `3 passed, 1 skipped` to `(3, "passed")`, `(1, "skipped")`.
fn numbered_words(text: &str, separator: char) -> impl Iterator<Item = (u64, &str)> {
    text.split(separator).filter_map(|part| {
        let (number, word) = part.trim().split_once(' ')?;
        Some((number.parse().ok()?, word))
    })
}

/// Runs `cargo test` with the arguments that `set_up` adds; fails if it runs fewer than `at_least`
/// tests.
pub(crate) fn cargo_test(
    workspace: &Workspace,
    output: &mut Output,
    at_least: u64,
    set_up: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<Counts> {
    let mut cargo = cargo();
    cargo.args(["test", "--no-fail-fast"]).current_dir(&workspace.root);
    // With `--show-output`, rustdoc compiles each documentation test as a separate program.
    if !set_up(&mut cargo).get_args().any(|argument| argument == "--doc") {
        cargo.args(["--", "--show-output"]);
    }
    let (status, text) = output.run_and_read(&mut cargo)?;
    finish_tests(output, Counts::of_cargo_test(&text), at_least, status)
}

/// Builds all test programs of the selected packages, and runs two at a time, each with two threads
/// per CPU, because many tests only wait. The second thread runs the documentation tests first.
pub(crate) fn test_programs(
    workspace: &Workspace,
    output: &mut Output,
    limit: Duration,
    selection: &[&str],
) -> Result<Counts> {
    let mut build = cargo();
    build.args(["test", "--tests", "--no-run"]).args(selection);
    build.args(["--message-format", "json-render-diagnostics"]).current_dir(&workspace.root);
    let (status, text) = output.run_and_read(&mut build)?;
    ensure!(status.success(), "cannot build the tests: {status}");
    let mut programs: Vec<_> = text.lines().filter_map(TestProgram::of_message).collect();
    programs.sort_by_key(|program| !SLOW_PROGRAMS.contains(&&*program.name));
    let programs = Mutex::new(programs.into_iter());
    let times = Mutex::new(Vec::new());
    let threads = (2 * thread::available_parallelism().map_or(1, Into::into)).to_string();
    let mut counts = in_threads(workspace, output, 2, limit, |thread, output| {
        let timed = |name: String, start: Instant| {
            times.lock().map(|mut times| times.push((start.elapsed(), name)))
        };
        let mut counts = Counts::default();
        if thread == 1 {
            let start = Instant::now();
            counts = cargo_test(workspace, output, 1, |cargo| cargo.args(selection).arg("--doc"))?;
            drop(timed("documentation tests".to_owned(), start));
        }
        let mut overall = ExitStatus::default();
        loop {
            let next = programs.lock().map_err(|_| anyhow!("the other thread panicked"))?.next();
            let Some(TestProgram { name, path, folder }) = next else { break };
            let start = Instant::now();
            let mut tests = command(path);
            tests.args(["--show-output", "--test-threads", &threads]);
            tests.current_dir(&folder).env("CARGO_MANIFEST_DIR", folder);
            let (status, text) = output.run_and_read(&mut tests)?;
            if !status.success() {
                overall = status;
            }
            counts.add(Counts::of_cargo_test(&text));
            drop(timed(name, start));
        }
        finish_tests(output, counts, 1, overall)
    })?;
    let mut times = times.into_inner().unwrap_or_default();
    times.sort_by(|one, other| other.cmp(one));
    let shown = |(time, name): &(Duration, String)| format!("{name} {:.1} s", time.as_secs_f64());
    let slowest: Vec<String> = times.iter().take(SLOWEST_PROGRAMS).map(shown).collect();
    counts.notes.push(format!("slowest: {}", slowest.join(", ")));
    Ok(counts)
}

/// The programs that run first, so that none of them runs alone at the end.
const SLOW_PROGRAMS: [&str; 4] =
    ["spdl-cli program", "spdl-core engine", "spdl-io stores", "spdl-io machine"];

/// Number of test programs whose times are printed.
const SLOWEST_PROGRAMS: usize = 10;

/// A test program that cargo has built.
#[derive(Debug, PartialEq, Eq)]
struct TestProgram {
    /// The names of the package and of the target.
    name: String,
    path: PathBuf,
    /// The folder of the package.
    folder: PathBuf,
}

impl TestProgram {
    /// Reads a message of cargo; `None` if the message is not about a test program.
    fn of_message(message: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(message).ok()?;
        let path = message["executable"].as_str()?.into();
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        let package = folder.file_name()?.to_string_lossy();
        let name = format!("{package} {}", message["target"]["name"].as_str()?);
        message["profile"]["test"].as_bool()?.then_some(TestProgram { name, path, folder })
    }
}

/// Runs `run` in `threads` threads, with the arguments 0, 1, and so on; appends the logs of all
/// threads except the first to `output`.
pub(crate) fn in_threads(
    workspace: &Workspace,
    output: &mut Output,
    threads: usize,
    limit: Duration,
    run: impl Fn(usize, &mut Output) -> Result<Counts> + Sync,
) -> Result<Counts> {
    let mut logs = Vec::new();
    for thread in 1..threads {
        logs.push(Output::log(workspace.target.join(format!("thread-{thread}.log")), limit)?);
    }
    let (counts, of_others) = thread::scope(|scope| {
        let run = &run;
        let others: Vec<_> = (logs.iter_mut().zip(1..))
            .map(|(log, thread)| scope.spawn(move || run(thread, log)))
            .collect();
        let counts = run(0, output);
        (counts, others.into_iter().map(|other| other.join()).collect::<Vec<_>>())
    });
    for log in &logs {
        output.say(&log.text()?);
    }
    let mut counts = counts?;
    for of_other in of_others {
        let Ok(of_other) = of_other else { bail!("a thread panicked") };
        counts.add(of_other?);
    }
    Ok(counts)
}

/// Result of a test run, from its counts and its exit status.
pub(crate) fn finish_tests(
    output: &mut Output,
    mut counts: Counts,
    at_least: u64,
    status: ExitStatus,
) -> Result<Counts> {
    if counts.failed > 0 {
        output.say(&format!("{} tests failed", counts.failed));
    } else if !status.success() {
        // The cause is a compile error, or a test program that crashed before it printed its
        // summary.
        output.say(&format!("the command failed with {status}, but it reported no failed test"));
        counts.failed += 1;
    } else {
        let ran = counts.ran();
        ensure!(ran > 0, "no test was run");
        ensure!(ran >= at_least, "{ran} tests were run, expected {at_least} or more");
    }
    Ok(counts)
}

/// Runs the unit tests of `spdl-core` whose names start with the name of a model checker (loom or
/// shuttle).
///
/// They are built with `--cfg spdl_MODEL`, which replaces locks, atomics and threads by the types
/// of the model checker. Only `spdl-core` is compiled again; the dependencies are shared with all
/// other tests. The profile is `test` or, for optimised code, `bench`.
pub(crate) fn model_tests(
    workspace: &Workspace,
    output: &mut Output,
    model: &str,
    profile: &str,
    at_least: u64,
    set_up: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<Counts> {
    let mut build = cargo();
    build
        .args(["rustc", "-p", "spdl-core", "--profile", profile, "--lib", "--message-format"])
        .args(["json-render-diagnostics", "--", "--cfg", &format!("spdl_{model}")])
        .current_dir(&workspace.root);
    let (status, text) = output.run_and_read(&mut build)?;
    ensure!(status.success(), "cannot build the tests for {model}: {status}");
    let program = text.lines().rev().find_map(|line| {
        let message: Value = serde_json::from_str(line).ok()?;
        Some(message["executable"].as_str()?.to_owned())
    });
    let program = program.context("cargo reports no test program")?;
    let folder = workspace.root.join("spdl-core");
    let mut tests = command(program);
    tests.args([&format!("{model}_"), "--show-output"]).current_dir(&folder);
    tests.env("CARGO_MANIFEST_DIR", &folder);
    let (status, text) = output.run_and_read(set_up(&mut tests))?;
    finish_tests(output, Counts::of_cargo_test(&text), at_least, status)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn steps_are_chosen_by_name_in_their_own_order() {
        let step = |name| Step { name, about: "", run: |_, _| Ok(Counts::one_passed()) };
        let steps = ["a", "b", "c"].map(step);
        let chosen = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|&name| name.to_owned()).collect();
            choose(&steps, &only).map(|steps| steps.iter().map(|step| step.name).collect())
        };
        let all: Vec<&str> = chosen(&[]).unwrap();
        assert_eq!(all, ["a", "b", "c"]);
        assert_eq!(chosen(&["c", "a"]).unwrap(), ["a", "c"]);
        assert!(chosen(&["d"]).unwrap_err().to_string().contains("a, b, c"));
    }

    #[test]
    fn results_of_all_test_programs_are_summed() {
        let text = "\
test a ... ok
test shapes::b ... FAILED

test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.2s
";
        let counts = Counts::of_cargo_test(text);
        assert_eq!((counts.passed, counts.failed, counts.skipped), (7, 2, 1));
        assert_eq!(counts.failed_tests, ["shapes::b"]);
    }

    #[test]
    fn a_test_that_skips_itself_counts_as_skipped_once() {
        let text = "\
successes:

---- a stdout ----
SKIPPED: corpora not present
SKIPPED: corpora not present

---- b stdout ----
  SKIPPED: no GPU found

---- c stdout ----
something else

successes:
    a
    b
    c

test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        let counts = Counts::of_cargo_test(text);
        assert_eq!((counts.passed, counts.failed, counts.skipped), (1, 0, 2));
        let reasons = [("corpora not present".to_owned(), 2), ("no GPU found".to_owned(), 1)];
        assert_eq!(counts.reasons, BTreeMap::from(reasons));
    }

    #[test]
    fn a_failing_test_that_printed_skipped_still_counts_as_failed() {
        let text = "\
failures:

---- a stdout ----
SKIPPED: corpora not present
thread 'a' panicked

failures:
    a

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        let counts = Counts::of_cargo_test(text);
        assert_eq!((counts.passed, counts.failed, counts.skipped), (1, 1, 0));
    }

    #[test]
    fn pytest_summaries_are_read_with_and_without_rulers() {
        let text = "\
.s.s
=========================== short test summary info ============================
SKIPPED [2] spdl-python/tests/test_loader.py:12: corpora not present
FAILED spdl-python/tests/test_loader.py::test_it - assert 1 == 2
=================== 12 passed, 2 skipped, 1 failed in 0.52s ====================
";
        let counts = Counts::of_pytest(text);
        assert_eq!((counts.passed, counts.failed, counts.skipped), (12, 1, 2));
        assert_eq!(counts.reasons, BTreeMap::from([("corpora not present".to_owned(), 2)]));
        assert_eq!(
            counts.failed_tests,
            ["spdl-python/tests/test_loader.py::test_it - assert 1 == 2"]
        );
        assert_eq!(Counts::of_pytest("3 passed in 61.02s (0:01:01)").passed, 3);
        assert_eq!(Counts::of_pytest("1 failed, 1 error in 1s").failed, 2);
        assert_eq!(Counts::of_pytest("no tests ran in 0.01s").ran(), 0);
    }

    #[test]
    fn a_command_that_fails_without_a_failed_test_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = Output::log(folder.path().join("log"), LIMIT).unwrap();
        let passed = Counts { passed: 3, ..Counts::default() };
        let aborted = ExitStatus::from_raw(6);
        assert_eq!(finish_tests(&mut output, passed.clone(), 1, aborted).unwrap().failed, 1);
        assert!(output.text().unwrap().contains("signal: 6"));
        let succeeded = ExitStatus::default();
        assert_eq!(finish_tests(&mut output, passed, 1, succeeded).unwrap().failed, 0);
    }

    #[test]
    fn a_run_of_too_few_tests_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = Output::log(folder.path().join("log"), LIMIT).unwrap();
        let passed = |passed| Counts { passed, ..Counts::default() };
        let mut finish =
            |counts, at_least| finish_tests(&mut output, counts, at_least, ExitStatus::default());
        assert!(finish(passed(0), 0).is_err());
        assert!(finish(passed(24), 25).is_err());
        assert_eq!(finish(passed(25), 25).unwrap(), passed(25));
    }

    #[test]
    fn test_programs_are_read_from_the_messages_of_cargo() {
        let message = |is_test: bool| {
            format!(
                r#"{{"executable":"/t/b-1","manifest_path":"/w/a/Cargo.toml","target":{{"name":"b"}},"profile":{{"test":{is_test}}}}}"#
            )
        };
        let expected =
            TestProgram { name: "a b".to_owned(), path: "/t/b-1".into(), folder: "/w/a".into() };
        assert_eq!(TestProgram::of_message(&message(true)), Some(expected));
        // An example, a library, and a line that is not a message.
        assert_eq!(TestProgram::of_message(&message(false)), None);
        let library = r#"{"executable":null,"manifest_path":"/w/a/Cargo.toml"}"#;
        assert_eq!(TestProgram::of_message(library), None);
        assert_eq!(TestProgram::of_message("Compiling a"), None);
    }

    #[test]
    fn a_step_beyond_its_time_limit_is_killed_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let mut output =
            Output::log(folder.path().join("log"), Duration::from_millis(100)).unwrap();
        let start = Instant::now();
        let mut shell = Command::new("sh");
        let error = output.run(shell.args(["-c", "sleep 60 & wait"])).unwrap_err();
        assert!(error.to_string().contains("time limit"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
