//! Steps of `test` and `soak`: each step passes, fails or is skipped, and has a separate log.

use std::collections::BTreeMap;
use std::fs;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::tools::{Output, Priority, Workspace, cargo, command};

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
#[derive(Debug)]
pub(crate) struct Tally {
    start: Instant,
    sum: Counts,
    failed_steps: Vec<String>,
    times: Vec<StepTime>,
}

impl Default for Tally {
    fn default() -> Self {
        let (sum, failed_steps, times) = Default::default();
        Tally { start: Instant::now(), sum, failed_steps, times }
    }
}

/// The times of one step.
#[derive(Debug)]
struct StepTime {
    name: &'static str,
    wall: Duration,
    /// User and system time of the step's commands.
    cpu: Duration,
}

/// The result of a step.
struct Finished {
    counts: Counts,
    time: StepTime,
    /// The path of its log, relative to the root.
    log: String,
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
        self.add(run_step(workspace, step, log, limit, Priority::Usual)?);
        Ok(())
    }

    /// Runs steps in their order. A second thread runs the steps with the names `beside`; their commands have a low
    /// priority, so that they use the CPU time that the other steps leave.
    pub(crate) fn run_side_by_side(
        &mut self,
        workspace: &Workspace,
        steps: &[&Step],
        beside: &[&str],
        limit: Duration,
    ) -> Result<()> {
        let (others, first): (Vec<&Step>, Vec<&Step>) =
            steps.iter().partition(|step| beside.contains(&step.name));
        let tally = Mutex::new(self);
        let run = |steps: Vec<&Step>, priority: Priority| -> Result<()> {
            for step in steps {
                let finished = run_step(workspace, step, step.name, limit, priority)?;
                tally.lock().map_err(|_| anyhow!("the other thread panicked"))?.add(finished);
            }
            Ok(())
        };
        thread::scope(|scope| {
            let others = scope.spawn(|| run(others, Priority::Low));
            run(first, Priority::Usual)?;
            others.join().map_err(|_| anyhow!("the other thread panicked"))?
        })
    }

    fn add(&mut self, Finished { counts, time, log }: Finished) {
        if counts.failed > 0 {
            self.failed_steps.push(format!("{}: {log}", time.name));
            let mut tests = BTreeMap::<&str, (&str, u64)>::new();
            for test in &counts.failed_tests {
                // pytest appends the message, which may differ between runs.
                let name = test.split_once(" - ").map_or(test.as_str(), |(name, _)| name);
                tests.entry(name).or_insert((test, 0)).1 += 1;
            }
            for (test, times) in tests.into_values() {
                let times = if times > 1 { format!(" ({times} times)") } else { String::new() };
                self.failed_steps.push(format!("{}: {test}{times}", time.name));
            }
        }
        self.times.push(time);
        self.sum.add(counts);
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
            println!("{}", time_table(&self.times, self.start.elapsed()));
        }
        for step in &self.failed_steps {
            println!("FAILED: {step}");
        }
        let Counts { passed, failed, skipped, .. } = self.sum;
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        if self.has_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

/// A table of the steps, slowest first: wall time and CPU time in seconds. The last row is the total; its wall time is
/// shorter than the sum if steps ran side by side.
fn time_table(times: &[StepTime], total: Duration) -> String {
    let mut sorted: Vec<&StepTime> = times.iter().collect();
    sorted.sort_by_key(|step| std::cmp::Reverse(step.wall));
    let row = |name: &str, wall: Duration, cpu: Duration| {
        format!("{name:<WIDTH$}{:>9.1}{:>10.1}\n", wall.as_secs_f64(), cpu.as_secs_f64())
    };
    let mut table = format!("{:<WIDTH$}{:>9}{:>10}\n", "step", "seconds", "CPU s");
    for step in sorted {
        table.push_str(&row(step.name, step.wall, step.cpu));
    }
    table.push_str(&row("total", total, times.iter().map(|step| step.cpu).sum()));
    table
}

/// The running steps, on a terminal.
static RUNNING: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Shows a step with the time for which it has run. If the output is not a terminal, prints its name: the end of an
/// interrupted log then shows which steps ran.
fn show_running(step: &Step) -> Option<ProgressBar> {
    if !std::io::stderr().is_terminal() {
        println!("{:<WIDTH$}started", step.name);
        return None;
    }
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
    let spinner = ProgressBar::new_spinner()
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
        .with_message(format!("{}: {}", step.name, step.about));
    let spinner = RUNNING.add(spinner);
    spinner.enable_steady_tick(Duration::from_millis(100));
    Some(spinner)
}

fn run_step(
    workspace: &Workspace,
    step: &Step,
    log: &str,
    limit: Duration,
    priority: Priority,
) -> Result<Finished> {
    let logs = workspace.target.join("xtask-logs");
    fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let log = logs.join(format!("{log}.log"));
    let spinner = show_running(step);
    let start = Instant::now();
    let mut output = Output::log(log.clone(), limit, priority)?;
    let counts = (step.run)(workspace, &mut output).unwrap_or_else(|error| {
        output.say(&format!("error: {error:#}"));
        Counts::one_failed()
    });
    let time = StepTime { name: step.name, wall: start.elapsed(), cpu: output.cpu_time() };
    let verdict = match (counts.failed, counts.passed) {
        (0, 0) => "skipped",
        (0, _) => "ok",
        _ => "FAILED",
    };
    let mut shown = format!(
        "{:<WIDTH$}{verdict:<8}{:>7.1} s   {}\n",
        step.name,
        time.wall.as_secs_f64(),
        counts.summary()
    );
    for note in &counts.notes {
        shown.push_str(&format!("    {note}\n"));
    }
    let text = if counts.failed > 0 { output.text()? } else { String::new() };
    let log = workspace.shown(&log);
    if counts.failed > 0 {
        let lines: Vec<&str> = text.lines().collect();
        shown.push_str(&format!("---- the end of {log} ----\n"));
        for line in &lines[lines.len().saturating_sub(SHOWN_LINES)..] {
            shown.push_str(&format!("{line}\n"));
        }
        shown.push_str("----\n");
    }
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    // In one piece, because another step may print at the same time.
    RUNNING.suspend(|| {
        print!("{shown}");
        std::io::stdout().flush()
    })?;
    Ok(Finished { counts, time, log })
}

/// Results of a step or a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
    /// Reasons for skipped tests, each with its number of occurrences.
    reasons: BTreeMap<String, u64>,
    /// Names of failed tests, if known; a test that failed in several runs occurs several times.
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

/// Builds all test programs of the selected packages, the examples that they run, and the Python module. Runs two programs at a time,
/// each with two threads per CPU, because many tests only wait.
pub(crate) fn test_programs(
    workspace: &Workspace,
    output: &mut Output,
    selection: &[&str],
    examples: &[&str],
) -> Result<Counts> {
    // One command, so that Cargo keeps its lock until all is compiled.
    let mut build = cargo();
    build.args(["build", "--lib", "--tests"]).args(selection);
    build.args(examples.iter().flat_map(|name| ["--example", name]));
    build.args(["--message-format", "json-render-diagnostics"]).current_dir(&workspace.root);
    let (status, text) = output.run_and_read(&mut build)?;
    ensure!(status.success(), "cannot build the tests: {status}");
    let mut programs: Vec<_> = text.lines().filter_map(TestProgram::of_message).collect();
    programs.sort_by_key(|program| {
        let place = SLOW_PROGRAMS.iter().position(|slow| *slow == program.name);
        place.unwrap_or(SLOW_PROGRAMS.len())
    });
    let programs = Mutex::new(programs.into_iter());
    let times = Mutex::new(Vec::new());
    let threads = (2 * thread::available_parallelism().map_or(1, Into::into)).to_string();
    let mut counts = in_threads(output, 2, |_, output| {
        let mut counts = Counts::default();
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
            if let Ok(mut times) = times.lock() {
                times.push((start.elapsed(), name));
            }
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
const SLOW_PROGRAMS: [&str; 10] = [
    "spdl-cli program",
    "spdl-core engine",
    "spdl-media spdl_media",
    "spdl-io stores",
    "spdl-media formats",
    "spdl-core simulated",
    "spdl-cuda order",
    "spdl-io machine",
    "spdl-io cache",
    "spdl-cli soak",
];

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
    output: &mut Output,
    threads: usize,
    run: impl Fn(usize, &mut Output) -> Result<Counts> + Sync,
) -> Result<Counts> {
    let mut logs = Vec::new();
    for thread in 1..threads {
        logs.extend(output.of_thread(thread)?);
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
        output.append(log)?;
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
    use std::sync::atomic::{AtomicBool, Ordering};

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
    fn steps_beside_others_run_concurrently_and_with_low_priority() {
        static HAS_STARTED: AtomicBool = AtomicBool::new(false);
        fn first(_: &Workspace, output: &mut Output) -> Result<Counts> {
            while !HAS_STARTED.load(Ordering::Relaxed) {
                output.run(&mut Command::new("true"))?;
            }
            let (_, niceness) = output.run_and_read(&mut Command::new("nice"))?;
            ensure!(!niceness.ends_with("19\n"), "{niceness}");
            Ok(Counts::one_passed())
        }
        fn beside(_: &Workspace, output: &mut Output) -> Result<Counts> {
            HAS_STARTED.store(true, Ordering::Relaxed);
            let (_, niceness) = output.run_and_read(&mut Command::new("nice"))?;
            ensure!(niceness.ends_with("19\n"), "{niceness}");
            Ok(Counts::one_failed_test("a test"))
        }
        let folder = tempfile::tempdir().unwrap();
        let (root, target) = (folder.path().to_owned(), folder.path().to_owned());
        let workspace = Workspace { root, target, packages: Vec::new() };
        let steps: [Step; 2] = [("first", first as fn(&_, &mut _) -> _), ("beside", beside)]
            .map(|(name, run)| Step { name, about: "", run });
        let mut tally = Tally::default();
        let steps: Vec<&Step> = steps.iter().collect();
        tally.run_side_by_side(&workspace, &steps, &["beside"], LIMIT).unwrap();
        assert_eq!((tally.sum.passed, tally.sum.failed), (1, 1));
        assert_eq!(tally.failed_steps, ["beside: xtask-logs/beside.log", "beside: a test"]);
    }

    #[test]
    fn a_test_that_failed_in_several_runs_is_listed_once() {
        let failed = |message: &str| Counts::one_failed_test(&format!("a.py::b{message}"));
        let mut counts = failed(" - assert 1 == 2");
        counts.add(failed(" - assert 1 == 3"));
        counts.add(Counts::one_failed_test("a.py::c"));
        let time = StepTime { name: "suite", wall: Duration::ZERO, cpu: Duration::ZERO };
        let mut tally = Tally::default();
        tally.add(Finished { counts, time, log: "log".to_owned() });
        let expected = ["suite: log", "suite: a.py::b - assert 1 == 2 (2 times)", "suite: a.py::c"];
        assert_eq!(tally.failed_steps, expected);
    }

    #[test]
    fn the_cpu_time_of_commands_is_added() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = Output::log(folder.path().join("log"), LIMIT, Priority::Usual).unwrap();
        let script = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done";
        output.run(Command::new("sh").args(["-c", script])).unwrap();
        let before = output.cpu_time();
        assert!(before > Duration::from_millis(20), "{before:?}");
        let mut thread = output.of_thread(1).unwrap().unwrap();
        thread.run(Command::new("sh").args(["-c", script])).unwrap();
        output.append(&thread).unwrap();
        assert_eq!(output.cpu_time(), before + thread.cpu_time());
        assert!(thread.cpu_time() > Duration::ZERO);
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
        let mut output = Output::log(folder.path().join("log"), LIMIT, Priority::Usual).unwrap();
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
        let mut output = Output::log(folder.path().join("log"), LIMIT, Priority::Usual).unwrap();
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
            Output::log(folder.path().join("log"), Duration::from_millis(100), Priority::Low)
                .unwrap();
        let start = Instant::now();
        let mut shell = Command::new("sh");
        let error = output.run(shell.args(["-c", "sleep 60 & wait"])).unwrap_err();
        assert!(error.to_string().contains("time limit"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
