//! `cargo xtask test`: everything that must hold before a change is merged.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::tools::{Output, Workspace, cargo, cargo_tool, command};
use crate::{tidy, wheel};

/// Run every check: format, lints, tests, docs, features, models, the Python wheel, licences.
///
/// All steps run, even after one has failed. What a step prints is kept in target/xtask-logs; the
/// end of it is shown when the step fails. What this machine cannot run is listed as `SKIPPED:`
/// with the reason. The last line gives the sum: `N passed, N failed, N skipped`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask test
  cargo xtask test --list
  cargo xtask test --only fmt clippy tidy     the quick ones, before a commit")]
pub(crate) struct Arguments {
    /// Run only these steps
    #[arg(long, value_name = "STEP", num_args = 1..)]
    only: Vec<String>,
    /// List the steps
    #[arg(long)]
    list: bool,
}

struct Step {
    name: &'static str,
    about: &'static str,
    run: fn(&Workspace, &mut Output) -> Result<Counts>,
}

const STEPS: [Step; 11] = [
    Step { name: "fmt", about: "cargo fmt --check", run: fmt },
    Step { name: "tidy", about: "crate layers, unsafe code, paths, manifests", run: tidy },
    Step { name: "clippy", about: "all lints, all features; warnings are errors", run: clippy },
    Step { name: "test", about: "unit, integration and doc tests, all features", run: test },
    Step { name: "test-default", about: "the same with default features", run: test_default },
    Step { name: "doc", about: "cargo doc; warnings are errors", run: doc },
    Step { name: "features", about: "every combination of features compiles", run: features },
    Step { name: "loom", about: "every interleaving of the models named loom_*", run: loom },
    Step { name: "python", about: "the wheel, and its tests in target/venv-test", run: python },
    Step { name: "deny", about: "licences, sources and duplicates of dependencies", run: deny },
    Step { name: "advisories", about: "known vulnerabilities of dependencies", run: advisories },
];

/// No step takes nearly as long; a test that hangs must not hang everything.
const STEP_LIMIT: Duration = Duration::from_secs(30 * 60);

/// How many lines of a failing step's log are shown.
const SHOWN_LINES: usize = 60;

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<ExitCode> {
    if arguments.list {
        for step in &STEPS {
            println!("{:<14}{}", step.name, step.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    for name in &arguments.only {
        if !STEPS.iter().any(|step| step.name == name) {
            let names = STEPS.map(|step| step.name).join(", ");
            bail!("no step is named {name:?}; the steps are: {names}");
        }
    }
    let chosen = |step: &&Step| {
        arguments.only.is_empty() || arguments.only.iter().any(|name| name == step.name)
    };

    let logs = workspace.target.join("xtask-logs");
    fs::create_dir_all(&logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let mut sum = Counts::default();
    let mut failed_steps = Vec::new();
    for step in STEPS.iter().filter(chosen) {
        let log = logs.join(format!("{}.log", step.name));
        let counts = run_step(workspace, step, &log)?;
        if counts.failed > 0 {
            failed_steps.push(format!("{}: {}", step.name, workspace.shown(&log)));
        }
        sum.add(counts);
    }

    println!();
    for (reason, times) in &sum.reasons {
        let times = if *times > 1 { format!(" ({times} times)") } else { String::new() };
        println!("SKIPPED: {reason}{times}");
    }
    for step in &failed_steps {
        println!("FAILED: {step}");
    }
    println!("{} passed, {} failed, {} skipped", sum.passed, sum.failed, sum.skipped);
    Ok(if sum.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_step(workspace: &Workspace, step: &Step, log: &Path) -> Result<Counts> {
    // Without a terminal the name comes first, so that one can see where a log ends.
    let spinner = std::io::stderr().is_terminal().then(|| {
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
        let spinner = ProgressBar::new_spinner()
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
            .with_message(format!("{}: {}", step.name, step.about));
        spinner.enable_steady_tick(Duration::from_millis(100));
        spinner
    });
    if spinner.is_none() {
        print!("{:<14}", step.name);
        std::io::stdout().flush()?;
    }

    let start = Instant::now();
    let mut output = Output::log(log.to_owned(), STEP_LIMIT)?;
    let counts = (step.run)(workspace, &mut output).unwrap_or_else(|error| {
        output.say(&format!("error: {error:#}"));
        Counts::one_failed()
    });
    let seconds = start.elapsed().as_secs_f64();

    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
        print!("{:<14}", step.name);
    }
    let verdict = match (counts.failed, counts.passed) {
        (0, 0) => "skipped",
        (0, _) => "ok",
        _ => "FAILED",
    };
    println!("{verdict:<8}{seconds:>7.1} s   {}", counts.summary());
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

/// What a step or a run has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: u64,
    failed: u64,
    skipped: u64,
    /// Why tests were skipped, and how often each reason was given.
    reasons: BTreeMap<String, u64>,
}

impl Counts {
    fn one_passed() -> Self {
        Counts { passed: 1, ..Counts::default() }
    }

    fn one_failed() -> Self {
        Counts { failed: 1, ..Counts::default() }
    }

    fn one_skipped(reason: &str) -> Self {
        Counts { skipped: 1, reasons: [(reason.to_owned(), 1)].into(), ..Counts::default() }
    }

    fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        for (reason, times) in other.reasons {
            *self.reasons.entry(reason).or_default() += times;
        }
    }

    fn ran(&self) -> u64 {
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

    /// Reads what `cargo test -- --show-output` prints.
    ///
    /// A test that prints a line `SKIPPED: reason` has checked nothing: it counts as skipped, not as
    /// passed. The harness prints each passing test's output in a section of its own.
    fn of_cargo_test(text: &str) -> Self {
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

    /// Reads what `pytest -rs` prints.
    fn of_pytest(text: &str) -> Self {
        let mut counts = Counts::default();
        for line in text.lines() {
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
                "passed" | "xfailed" => counts.passed += number,
                "failed" | "error" | "errors" | "xpassed" => counts.failed += number,
                "skipped" => counts.skipped += number,
                _ => {}
            }
        }
        counts
    }
}

/// `3 passed, 1 skipped` as `(3, "passed")`, `(1, "skipped")`.
fn numbered_words(text: &str, separator: char) -> impl Iterator<Item = (u64, &str)> {
    text.split(separator).filter_map(|part| {
        let (number, word) = part.trim().split_once(' ')?;
        Some((number.parse().ok()?, word))
    })
}

fn fmt(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    output.run(
        cargo()
            .args(["fmt", "--all", "--check", "--", "--color", "never"])
            .current_dir(&workspace.root),
    )?;
    Ok(Counts::one_passed())
}

fn tidy(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let findings = tidy::findings(workspace)?;
    for finding in &findings {
        output.say(finding);
    }
    ensure!(findings.is_empty(), "{} findings", findings.len());
    Ok(Counts::one_passed())
}

fn clippy(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let mut clippy = cargo();
    clippy
        .args(["clippy", "--workspace", "--all-targets", "--all-features", "--"])
        .args(["-D", "warnings"])
        .current_dir(&workspace.root);
    let (status, text) = output.run_and_read(&mut clippy)?;
    ensure!(status.success(), "clippy failed: {status}");
    if let Some(warning) = manifest_warning(&text) {
        bail!("{warning}");
    }
    Ok(Counts::one_passed())
}

/// Cargo's first warning about a manifest. A misspelt key such as `defualt-features` does nothing
/// else, and lints cannot deny it.
fn manifest_warning(text: &str) -> Option<&str> {
    text.lines().find(|line| line.starts_with("warning: ") && line.contains("manifest key"))
}

/// Runs `cargo test` with these arguments; a run of no test at all is a failure.
fn cargo_test(
    workspace: &Workspace,
    output: &mut Output,
    set_up: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<Counts> {
    let mut cargo = cargo();
    cargo.args(["test", "--no-fail-fast"]).current_dir(&workspace.root);
    set_up(&mut cargo).args(["--", "--show-output"]);
    let (status, text) = output.run_and_read(&mut cargo)?;
    finish_tests(output, Counts::of_cargo_test(&text), status.success())
}

fn finish_tests(output: &mut Output, mut counts: Counts, succeeded: bool) -> Result<Counts> {
    if counts.ran() == 0 {
        bail!("no test was run");
    }
    if counts.failed > 0 {
        output.say(&format!("{} tests failed", counts.failed));
    } else if !succeeded {
        // Something did not compile, or a test program crashed before it could count.
        output.say("the command failed although no single test did");
        counts.failed += 1;
    }
    Ok(counts)
}

/// The Python module is left out: it links to no Python by design, and pytest tests it.
const PYTHON_CRATE: &str = "spdl-python";

fn test(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    cargo_test(workspace, output, |cargo| {
        cargo.args(["--workspace", "--all-features", "--exclude", PYTHON_CRATE])
    })
}

fn test_default(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let mut packages = Vec::new();
    for package in workspace.packages.iter().filter(|package| package["name"] != PYTHON_CRATE) {
        let features = Features::of(package);
        if features.enabled_by(&["default"]) != features.enabled_by(&features.names()) {
            packages.extend(["-p", package["name"].as_str().unwrap_or_default()]);
        }
    }
    if packages.is_empty() {
        output.say("every crate's default features are all it has");
        return Ok(Counts::one_passed());
    }
    cargo_test(workspace, output, |cargo| cargo.args(packages))
}

fn doc(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    output.run(
        cargo()
            .args(["doc", "--workspace", "--no-deps", "--all-features"])
            .env("RUSTDOCFLAGS", "-Dwarnings")
            .current_dir(&workspace.root),
    )?;
    Ok(Counts::one_passed())
}

/// Clippy instead of `cargo check`: it shares all dependencies with the step before, and denies
/// warnings in our crates alone. All features together are left to that step.
fn features(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let mut counts = Counts::default();
    for package in &workspace.packages {
        let name = package["name"].as_str().unwrap_or_default();
        let features = Features::of(package);
        for combination in features.combinations() {
            let result = output.run(
                cargo()
                    .args(["clippy", "--quiet", "-p", name, "--no-default-features"])
                    .args(["--features", &combination.join(","), "--", "-D", "warnings"])
                    .current_dir(&workspace.root),
            );
            match result {
                Ok(()) => counts.passed += 1,
                Err(error) => {
                    output.say(&format!("error: {error:#}"));
                    counts.failed += 1;
                }
            }
        }
    }
    if counts.ran() == 0 {
        output.say("no crate has optional features");
        return Ok(Counts::one_passed());
    }
    Ok(counts)
}

/// A crate's features and what each turns on, without other crates' features.
struct Features(BTreeMap<String, Vec<String>>);

impl Features {
    fn of(package: &Value) -> Self {
        let features = package["features"].as_object().into_iter().flatten();
        Features(
            features
                .map(|(name, implied)| {
                    let implied = implied.as_array().into_iter().flatten();
                    let implied = implied.filter_map(|name| name.as_str().map(str::to_owned));
                    (name.clone(), implied.collect())
                })
                .collect(),
        )
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).filter(|name| *name != "default").collect()
    }

    /// All that these features turn on in this crate, themselves included.
    fn enabled_by(&self, names: &[&str]) -> BTreeSet<&str> {
        let mut waiting: Vec<&str> = names.to_vec();
        let mut enabled = BTreeSet::new();
        while let Some(name) = waiting.pop() {
            if let Some((name, implied)) = self.0.get_key_value(name)
                && enabled.insert(name.as_str())
            {
                waiting.extend(implied.iter().map(String::as_str));
            }
        }
        enabled.remove("default");
        enabled
    }

    /// The sets of features to try: all of them where there are few, else none, each, each pair and
    /// all but one. Sets that turn on the same are tried once; the set of all is left out.
    fn combinations(&self) -> Vec<Vec<&str>> {
        const FEW: usize = 7;
        let names = self.names();
        let mut seen = BTreeSet::from([self.enabled_by(&names)]);
        let mut combinations = Vec::new();
        let mut add = |set: Vec<&'_ str>| {
            if seen.insert(self.enabled_by(&set)) {
                // The names of `self`, which outlive the argument.
                combinations.push(
                    names.iter().copied().filter(|name| set.contains(name)).collect::<Vec<_>>(),
                );
            }
        };
        if names.len() <= FEW {
            for bits in 0..1_u32 << names.len() {
                let chosen = names.iter().enumerate().filter(|(i, _)| bits >> i & 1 == 1);
                add(chosen.map(|(_, name)| *name).collect());
            }
        } else {
            add(Vec::new());
            for (i, first) in names.iter().enumerate() {
                add(vec![first]);
                for second in &names[i + 1..] {
                    add(vec![first, second]);
                }
                add(names.iter().copied().filter(|name| name != first).collect());
            }
        }
        combinations
    }
}

fn loom(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    cargo_test(workspace, output, |cargo| {
        cargo
            .args(["-p", "spdl-core", "--release", "--lib", "loom_", "--target-dir"])
            .arg(workspace.target.join("loom"))
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env("RUSTFLAGS", "--cfg spdl_loom")
            // Linking with optimisation across crates would take longer than the models run.
            .env("CARGO_PROFILE_RELEASE_LTO", "off")
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
    })
}

fn python(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let venv = wheel::install_for_tests(workspace, output)?;
    let (status, text) = output.run_and_read(
        command(venv.python())
            .args(["-m", "pytest", "-rs", "-p", "no:cacheprovider", "spdl-python/tests"])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .current_dir(&workspace.root),
    )?;
    finish_tests(output, Counts::of_pytest(&text), status.success())
}

const DENY: (&str, &str) = ("cargo-deny", "0.20.2");

fn deny(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let program = cargo_tool(workspace, output, DENY.0, DENY.1)?;
    output.run(
        command(program)
            .args(["--all-features", "check", "bans", "licenses", "sources"])
            .current_dir(&workspace.root),
    )?;
    Ok(Counts::one_passed())
}

fn advisories(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let program = cargo_tool(workspace, output, DENY.0, DENY.1)?;
    let (status, text) = output.run_and_read(
        command(program)
            .args(["--all-features", "check", "advisories"])
            .current_dir(&workspace.root),
    )?;
    if status.success() {
        return Ok(Counts::one_passed());
    }
    if text.contains("failed to fetch advisory database") {
        return Ok(Counts::one_skipped("advisory database not reachable"));
    }
    bail!("cargo-deny failed: {status}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_test_programs_are_summed() {
        let text = "\
test a ... ok

test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 9 filtered out; finished in 1.2s
";
        let counts = Counts::of_cargo_test(text);
        assert_eq!((counts.passed, counts.failed, counts.skipped), (7, 2, 1));
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
=================== 12 passed, 2 skipped, 1 failed in 0.52s ====================
";
        let counts = Counts::of_pytest(text);
        assert_eq!((counts.passed, counts.failed, counts.skipped), (12, 1, 2));
        assert_eq!(counts.reasons, BTreeMap::from([("corpora not present".to_owned(), 2)]));
        assert_eq!(Counts::of_pytest("3 passed in 61.02s (0:01:01)").passed, 3);
        assert_eq!(Counts::of_pytest("1 failed, 1 error in 1s").failed, 2);
        assert_eq!(Counts::of_pytest("no tests ran in 0.01s").ran(), 0);
    }

    #[test]
    fn a_command_that_fails_without_a_failed_test_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = Output::log(folder.path().join("log"), STEP_LIMIT).unwrap();
        let passed = Counts { passed: 3, ..Counts::default() };
        assert_eq!(finish_tests(&mut output, passed.clone(), false).unwrap().failed, 1);
        assert_eq!(finish_tests(&mut output, passed, true).unwrap().failed, 0);
        assert!(finish_tests(&mut output, Counts::default(), true).is_err());
    }

    #[test]
    fn a_misspelt_manifest_key_is_found() {
        let text = "warning: a/Cargo.toml: unused manifest key: dependencies.b.defualt-features\n";
        assert_eq!(manifest_warning(text), Some(text.trim_end()));
        assert_eq!(manifest_warning("    Checking a v0.1.0\nwarning: unused variable\n"), None);
    }

    fn features(list: &[(&str, &[&str])]) -> Features {
        let entry = |(name, implied): &(&str, &[&str])| {
            ((*name).to_owned(), implied.iter().map(|&name| name.to_owned()).collect())
        };
        Features(list.iter().map(entry).collect())
    }

    #[test]
    fn few_features_are_tried_in_every_combination_that_differs() {
        let independent = features(&[("default", &["a"]), ("a", &[]), ("b", &["dep:b"])]);
        let expected: [&[&str]; 3] = [&[], &["a"], &["b"]];
        assert_eq!(independent.combinations(), expected);

        let nested = features(&[("a", &[]), ("b", &["a"]), ("c", &[])]);
        let expected: [&[&str]; 5] = [&[], &["a"], &["b"], &["c"], &["a", "c"]];
        assert_eq!(nested.combinations(), expected);
        assert!(features(&[]).combinations().is_empty());
    }

    #[test]
    fn many_features_are_tried_alone_in_pairs_and_all_but_one() {
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let list: Vec<(&str, &[&str])> = names.iter().map(|&name| (name, &[][..])).collect();
        let many = features(&list);
        // None, 8 alone, 28 pairs, 8 times all but one.
        assert_eq!(many.combinations().len(), 1 + 8 + 28 + 8);
    }

    #[test]
    fn a_step_that_takes_too_long_is_stopped_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let mut output =
            Output::log(folder.path().join("log"), Duration::from_millis(100)).unwrap();
        let start = Instant::now();
        let mut shell = Command::new("sh");
        let error = output.run(shell.args(["-c", "sleep 60 & wait"])).unwrap_err();
        assert!(error.to_string().contains("in time"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(30));
    }
}
