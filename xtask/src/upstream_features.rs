//! `cargo xtask features`: which features of upstream's SPDL work here, by the tests that say so.
//!
//! The features are the rows of `docs/features.tsv`: an ID and a name. A test of the Python package
//! whose name begins with an ID, such as `test_b03_none_drops_the_item`, is a test of that feature.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::tools::{Output, Workspace, command};
use crate::wheel;

/// Show which features of upstream's SPDL work here: ID, tests, passed or failed or missing.
///
/// Builds the wheel, runs the Python package's tests, and sorts them by the feature that their names
/// begin with. A feature works where it has tests and none of them fails.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask features
  cargo xtask features --missing        what has no test, or one that fails
  cargo xtask features --group B,L      pipelines only
  cargo xtask features --write          docs/features.md, too")]
pub(crate) struct Arguments {
    /// Only features whose IDs begin so
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    group: Vec<String>,
    /// Only features that do not work
    #[arg(long)]
    missing: bool,
    /// Write the table to docs/features.md
    #[arg(long, conflicts_with_all = ["missing", "group"])]
    write: bool,
}

const TABLE: &str = "docs/features.tsv";

/// How the tests of a feature went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tests {
    passed: u32,
    failed: u32,
    skipped: u32,
}

#[derive(Debug, PartialEq)]
enum State {
    Works,
    Fails,
    /// All its tests were skipped.
    Skipped,
    Missing,
}

impl Tests {
    fn state(self) -> State {
        match self {
            Tests { failed: 1.., .. } => State::Fails,
            Tests { passed: 1.., .. } => State::Works,
            Tests { skipped: 1.., .. } => State::Skipped,
            Tests { .. } => State::Missing,
        }
    }

    fn told(self) -> String {
        let Tests { passed, failed, skipped } = self;
        let word = match self.state() {
            State::Works => "works",
            State::Fails => "FAILS",
            State::Skipped => "skipped",
            State::Missing => return "missing".to_owned(),
        };
        let mut told = format!("{word}: {passed} passed");
        for (number, what) in [(failed, "failed"), (skipped, "skipped")] {
            if number > 0 {
                // Writing to a string cannot fail.
                let _ = write!(told, ", {number} {what}");
            }
        }
        told
    }
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<ExitCode> {
    let table = workspace.root.join(TABLE);
    let table =
        fs::read_to_string(&table).with_context(|| format!("cannot read {}", table.display()))?;
    let features = features(&table)?;
    let output = &mut Output::Terminal;
    let venv = wheel::install_for_tests(workspace, output)?;
    println!("running the tests");
    let tests = command(venv.python())
        .args(["-m", "pytest", "-v", "--no-header", "-p", "no:cacheprovider", "--color=no"])
        .arg("spdl-python/tests")
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(&workspace.root)
        .output()?;
    let text = String::from_utf8_lossy(&tests.stdout).into_owned();
    let found = results(&text);
    ensure!(!found.is_empty(), "no test ran:\n{text}\n{}", String::from_utf8_lossy(&tests.stderr));
    let unknown: Vec<_> = found.keys().filter(|id| !is_known(id, &features)).collect();
    ensure!(unknown.is_empty(), "tests are named after features that {TABLE} lacks: {unknown:?}");

    let of = |id: &str| found.get(id).copied().unwrap_or_default();
    let shown = |id: &str| {
        let in_group =
            arguments.group.is_empty() || arguments.group.iter().any(|group| id.starts_with(group));
        in_group && !(arguments.missing && of(id).state() == State::Works)
    };
    let shown = features.iter().filter(|(id, _)| shown(id));
    println!();
    for (id, name) in shown {
        println!("{id}  {name:<90}  {}", of(id).told());
    }
    let works = features.iter().filter(|(id, _)| of(id).state() == State::Works).count();
    let fails = features.iter().filter(|(id, _)| of(id).state() == State::Fails).count();
    println!("\n{works} of {} features work, {fails} fail", features.len());
    if arguments.write {
        let page = workspace.root.join("docs/features.md");
        fs::write(&page, self::page(&features, &found, works))
            .with_context(|| format!("cannot write {}", page.display()))?;
        println!("written to {}", page.display());
    }
    Ok(if fails == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The IDs and names of a table with a line for each feature.
fn features(table: &str) -> Result<Vec<(String, String)>> {
    let row = |line: &str| {
        let row = line.split_once('\t').filter(|(id, _)| is_id(&id.to_ascii_lowercase()));
        let (id, name) = row.with_context(|| format!("{TABLE}: no ID, tab and name: {line:?}"))?;
        Ok((id.to_owned(), name.to_owned()))
    };
    table.lines().map(row).collect()
}

/// Whether the table has it. Those with a W are of upstream's weak points, which are no features.
fn is_known(id: &str, features: &[(String, String)]) -> bool {
    id.starts_with('W') || features.iter().any(|(known, _)| known == id)
}

/// A letter and two digits.
fn is_id(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() == 3 && bytes[0].is_ascii_lowercase() && bytes[1..].iter().all(u8::is_ascii_digit)
}

/// The tests of each feature, from what `pytest -v` prints.
fn results(text: &str) -> BTreeMap<String, Tests> {
    let mut found = BTreeMap::<String, Tests>::new();
    for line in text.lines() {
        let Some((_, test)) = line.split_once("::test_") else { continue };
        let Some(id) = test.get(..3).filter(|id| is_id(id)) else { continue };
        let tests = found.entry(id.to_ascii_uppercase()).or_default();
        match outcome(test) {
            Some(" PASSED" | " XFAIL") => tests.passed += 1,
            Some(" SKIPPED") => tests.skipped += 1,
            Some(_) => tests.failed += 1,
            None => {}
        }
    }
    found
}

const OUTCOMES: [&str; 6] = [" PASSED", " XFAIL", " SKIPPED", " FAILED", " ERROR", " XPASS"];

/// The last one in a line: names of parameters may hold anything.
fn outcome(line: &str) -> Option<&'static str> {
    let at = |outcome: &&str| line.rfind(*outcome);
    OUTCOMES.into_iter().filter(|outcome| at(outcome).is_some()).max_by_key(at)
}

fn page(features: &[(String, String)], found: &BTreeMap<String, Tests>, works: usize) -> String {
    let mut text = format!(
        "# Features of upstream's SPDL\n\n\
         {works} of {} have tests here that pass. The IDs are those that the names of tests of the Python \
         package begin with (`spdl-python/tests`).\n\n\
         Made by `cargo xtask features --write`.\n\n| ID | feature | state |\n|----|---------|-------|\n",
        features.len()
    );
    for (id, name) in features {
        let told = found.get(id).copied().unwrap_or_default().told();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {id} | {} | {told} |", name.replace('|', "\\|"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_sorted_by_the_feature_in_their_names() {
        let text = "\
tests/test_a.py::test_b03_none_drops_the_item PASSED                 [ 10%]
tests/test_a.py::test_b03_order[in [order] PASSED] FAILED            [ 20%]
tests/test_a.py::TestIt::test_l01_start SKIPPED (no time)            [ 30%]
tests/test_a.py::test_c02 PASSED                                     [ 40%]
tests/test_a.py::test_batches PASSED                                 [ 50%]
FAILED tests/test_a.py::test_b03_order - AssertionError";
        let found = results(text);
        let tests = |passed, failed, skipped| Tests { passed, failed, skipped };
        assert_eq!(found["B03"], tests(1, 1, 0));
        assert_eq!(found["C02"], tests(1, 0, 0));
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found["L01"], tests(0, 0, 1));
        let states = [tests(1, 1, 0), tests(1, 0, 1), tests(0, 0, 1), tests(0, 0, 0)];
        let states = states.map(Tests::state);
        assert_eq!(states, [State::Fails, State::Works, State::Skipped, State::Missing]);
    }

    #[test]
    fn every_test_is_named_after_a_feature_of_the_table() {
        let features = features(include_str!("../../docs/features.tsv")).unwrap();
        let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/../spdl-python/tests");
        let mut named = 0;
        for file in fs::read_dir(tests).unwrap() {
            let file = file.unwrap().path();
            if file.extension().is_none_or(|extension| extension != "py") {
                continue;
            }
            for line in fs::read_to_string(&file).unwrap().lines() {
                let Some(name) = line.trim_start().strip_prefix("def test_") else { continue };
                let Some(id) = name.get(..3).filter(|id| is_id(id)) else { continue };
                assert!(
                    is_known(&id.to_ascii_uppercase(), &features),
                    "{}: {line}",
                    file.display()
                );
                named += 1;
            }
        }
        assert!(named > 500, "{named} tests are named after a feature");
    }

    #[test]
    fn the_table_has_every_feature_once() {
        let features = features(include_str!("../../docs/features.tsv")).unwrap();
        let mut ids: Vec<_> = features.iter().map(|(id, _)| id).collect();
        assert_eq!(ids.len(), 160);
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 160);
        assert!(super::features("B1\tshort").is_err());
    }
}
