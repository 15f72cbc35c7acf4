//! `cargo xtask features`: writes to `docs/acceptance.md` which features and promises have tests.
//!
//! The tables `docs/features.tsv` and `docs/promises.tsv` list IDs and names. A test is attached to
//! an ID by a comment line above it, `// feature: B03, L04` or `// promise: R11` (`#` in Python).
//! The line `// promise of this file: R25` attaches all tests of a file. A Python test whose name
//! contains an ID after `test_` or `test_promise_`, such as `test_b03_none_drops_the_item`, is
//! attached to that feature or promise. The comment `# feature: none` above a test, or
//! `# feature of this file: none`, prevents this for tests that exercise only a stub. A test whose
//! name contains `refuse` is not attached to a feature, unless by a comment for the whole file. A
//! test marked `xfail` is not attached to anything.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::tools::{Workspace, text_files};

/// Write docs/acceptance.md: each feature and promise with its state and its tests.
///
/// The state is `missing` if no test is attached. If a test is attached, the state is `part` if the
/// table names what is missing, and `works` otherwise. With --results, the command also prints the
/// attached tests that failed in the last run, and fails if there are any.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask features
  cargo xtask features --missing      features and promises that are missing or partly working
  cargo xtask features --group B,L    only features of pipelines
  cargo xtask features --results target/xtask-logs    also list the failures of the last test run")]
pub(crate) struct FeaturesArguments {
    /// List the features and promises whose IDs begin with one of these prefixes, and do not update
    /// the page
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    group: Vec<String>,
    /// List the features and promises that are missing or work in part, and do not update the page
    #[arg(long)]
    missing: bool,
    /// Folder with the logs of `cargo xtask test`
    #[arg(long, value_name = "DIR")]
    results: Option<std::path::PathBuf>,
}

const FEATURES: &str = "docs/features.tsv";
const PROMISES: &str = "docs/promises.tsv";
const PAGE: &str = "docs/acceptance.md";

/// Maximum number of test names per row of the page.
const SHOWN_TESTS: usize = 3;

/// Sections of the page: kind, prefix of the IDs, title.
const SECTIONS: [(Kind, &str, &str); 26] = [
    (Kind::Feature, "B", "Pipeline construction"),
    (Kind::Feature, "L", "Pipeline object"),
    (Kind::Feature, "C", "Concurrency"),
    (Kind::Feature, "F", "Failures"),
    (Kind::Feature, "M", "Merges and paths"),
    (Kind::Feature, "E", "Epochs"),
    (Kind::Feature, "S", "Hooks and statistics"),
    (Kind::Feature, "T", "Profiling, logging, tracing"),
    (Kind::Feature, "X", "Subprocesses and subinterpreters"),
    (Kind::Feature, "A", "Shared memory"),
    (Kind::Feature, "Q", "Samplers and sources"),
    (Kind::Feature, "D", "Data loaders"),
    (Kind::Feature, "I", "High-level loading"),
    (Kind::Feature, "K", "Demuxing"),
    (Kind::Feature, "V", "Decoding, filters, encoding"),
    (Kind::Feature, "G", "CUDA"),
    (Kind::Feature, "R", "Archives and arrays"),
    (Kind::Feature, "U", "Tools, examples, guides"),
    (Kind::Promise, "R", "Reliability and security"),
    (Kind::Promise, "G", "GPU"),
    (Kind::Promise, "IMG", "Images"),
    (Kind::Promise, "DATA", "Data sets, stores, archives"),
    (Kind::Promise, "DEV", "CUDA devices"),
    (Kind::Promise, "CORE", "Engine"),
    (Kind::Promise, "CLI", "Program"),
    (Kind::Promise, "PY", "Python"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Feature,
    Promise,
}

/// A feature or a promise.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    kind: Kind,
    id: String,
    name: String,
    /// What is missing, if the feature works in part.
    gap: Option<String>,
}

/// The names of the tests of each feature or promise.
type Tests = BTreeMap<(Kind, String), BTreeSet<String>>;

pub(crate) fn run(workspace: &Workspace, arguments: &FeaturesArguments) -> Result<ExitCode> {
    let rows = rows(workspace)?;
    let tests = tests(workspace, &rows)?;
    let page = page(&rows, &tests);
    let prints_only = arguments.missing || !arguments.group.is_empty();
    let failed = match &arguments.results {
        Some(folder) => failed_tests(folder)?,
        None => BTreeSet::new(),
    };
    let mut failures = 0;
    for row in &rows {
        let own = tests.get(&(row.kind, row.id.clone()));
        let state = state(row, own);
        let in_group = arguments.group.is_empty()
            || arguments.group.iter().any(|group| row.id.starts_with(group.as_str()));
        if prints_only && in_group && !(arguments.missing && state == "works") {
            let count = own.map_or(0, BTreeSet::len);
            println!("{:<7} {:<70} {state}, {count} tests", row.id, row.name);
        }
        for name in own.into_iter().flatten().filter(|name| failed.contains(*name)) {
            println!("FAILED: {} {}: {name}", row.id, row.name);
            failures += 1;
        }
    }
    println!("{}", summary(&rows, &tests));
    if !prints_only {
        let path = workspace.root.join(PAGE);
        fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
        println!("written to {PAGE}");
    }
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Fails if the committed page differs from the generated page.
pub(crate) fn check_page(workspace: &Workspace) -> Result<()> {
    let rows = rows(workspace)?;
    let page = page(&rows, &tests(workspace, &rows)?);
    let path = workspace.root.join(PAGE);
    let found = fs::read_to_string(&path).unwrap_or_default();
    ensure!(found == page, "{PAGE} is out of date; run: cargo xtask features");
    Ok(())
}

fn rows(workspace: &Workspace) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (kind, table) in [(Kind::Feature, FEATURES), (Kind::Promise, PROMISES)] {
        let path = workspace.root.join(table);
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        rows.extend(parse_table(kind, &text).with_context(|| table.to_owned())?);
    }
    Ok(rows)
}

/// Parses lines of `ID<tab>name` or `ID<tab>name<tab>what is missing`.
fn parse_table(kind: Kind, text: &str) -> Result<Vec<Row>> {
    let mut rows: Vec<Row> = Vec::new();
    for line in text.lines() {
        let mut columns = line.split('\t').map(str::to_owned);
        let (Some(id), Some(name)) = (columns.next(), columns.next()) else {
            anyhow::bail!("expected an ID, a tab and a name, found {line:?}");
        };
        ensure!(is_id(&id), "invalid ID {id:?}");
        ensure!(section(kind, &id).is_some(), "no section for the ID {id:?}");
        ensure!(rows.iter().all(|row| row.id != id), "{id} is listed twice");
        rows.push(Row { kind, id, name, gap: columns.next() });
    }
    Ok(rows)
}

/// Whether a text consists of capital letters followed by digits.
fn is_id(text: &str) -> bool {
    let digits = text.trim_start_matches(|letter: char| letter.is_ascii_uppercase());
    digits.len() < text.len() && !digits.is_empty() && digits.bytes().all(|it| it.is_ascii_digit())
}

fn section(kind: Kind, id: &str) -> Option<usize> {
    let letters = id.trim_end_matches(|letter: char| letter.is_ascii_digit());
    SECTIONS.iter().position(|(of, prefix, _)| *of == kind && *prefix == letters)
}

/// All tests of the repository that are attached to a row.
fn tests(workspace: &Workspace, rows: &[Row]) -> Result<Tests> {
    let mut tests = Tests::new();
    for path in text_files(&workspace.root)? {
        let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
        if !matches!(extension.as_str(), "rs" | "py") || path.ends_with("xtask/src/acceptance.rs") {
            continue;
        }
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let found = scan(&text, extension == "py").with_context(|| workspace.shown(&path))?;
        for (kind, id, test) in found {
            // IDs that begin with W denote weaknesses of upstream, not features.
            if kind == Kind::Feature && id.starts_with('W') {
                continue;
            }
            ensure!(
                rows.iter().any(|row| row.kind == kind && row.id == id),
                "{}: test {test:?} names the unknown ID {id}",
                workspace.shown(&path)
            );
            tests.entry((kind, id)).or_default().insert(test);
        }
    }
    Ok(tests)
}

/// The tests of a file that are attached to an ID: kind, ID and name of the test.
fn scan(text: &str, is_python: bool) -> Result<Vec<(Kind, String, String)>> {
    let comment = if is_python { "# " } else { "// " };
    let mut of_file: Vec<(Kind, String)> = Vec::new();
    let mut excluded = false;
    // The IDs in comments above the next function.
    let mut above: Vec<(Kind, String)> = Vec::new();
    let (mut is_excluded, mut is_test, mut is_expected_failure) = (false, false, false);
    let mut found = Vec::new();
    for line in text.lines() {
        let code = line.trim_start();
        if let Some((kind, whole_file, ids)) = marker(code, comment) {
            for id in ids.split(',').map(str::trim) {
                match (id, whole_file) {
                    ("none", true) => excluded = true,
                    ("none", false) => is_excluded = true,
                    (id, _) => {
                        ensure!(is_id(id), "invalid ID {id:?} in {code:?}");
                        let list = if whole_file { &mut of_file } else { &mut above };
                        list.push((kind, id.to_owned()));
                    }
                }
            }
            continue;
        }
        let name = match is_python {
            true => code.strip_prefix("async ").unwrap_or(code).strip_prefix("def "),
            false => function_name(code),
        };
        if let Some(name) = name {
            let name: String = name
                .chars()
                .take_while(|letter| letter.is_alphanumeric() || *letter == '_')
                .collect();
            is_test |= is_python && name.starts_with("test_");
            ensure!(is_test || above.is_empty(), "the function {name:?} is not a test");
            if is_python && is_test && !(excluded || is_excluded) {
                above.extend(id_in_name(&name));
            }
            // A test that expects a refusal does not exercise the feature.
            if name.contains("refuse") {
                above.retain(|(kind, _)| *kind == Kind::Promise);
            }
            if is_test && !is_expected_failure {
                above.extend(of_file.iter().cloned());
                found.extend(above.drain(..).map(|(kind, id)| (kind, id, name.clone())));
            }
            above.clear();
            (is_excluded, is_test, is_expected_failure) = (false, false, false);
        } else if is_python {
            is_expected_failure |= code.starts_with("@") && code.contains("xfail");
        } else {
            is_test |= code.starts_with("#[test]") || code.starts_with("#[tokio::test");
        }
    }
    ensure!(above.is_empty(), "no test follows the comment with the IDs {above:?}");
    Ok(found)
}

/// The ID that the name of a Python test begins with: `test_b03_…` or `test_promise_g12_…`.
fn id_in_name(name: &str) -> Option<(Kind, String)> {
    let name = name.strip_prefix("test_")?;
    let (kind, rest) = match name.strip_prefix("promise_") {
        Some(rest) => (Kind::Promise, rest),
        None => (Kind::Feature, name),
    };
    let id = rest.split('_').next().unwrap_or_default().to_ascii_uppercase();
    let letters = id.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let is_own = letters.len() == 1 && (kind == Kind::Promise || id.len() == 3);
    (is_id(&id) && is_own).then_some((kind, id))
}

/// Parses a comment that attaches tests: feature or promise, whether the comment applies to the
/// whole file, and the IDs.
fn marker<'a>(code: &'a str, comment: &str) -> Option<(Kind, bool, &'a str)> {
    let text = code.strip_prefix(comment)?;
    for (kind, word) in [(Kind::Feature, "feature"), (Kind::Promise, "promise")] {
        if let Some(rest) = text.strip_prefix(word) {
            if let Some(ids) = rest.strip_prefix(": ") {
                return Some((kind, false, ids));
            }
            if let Some(ids) = rest.strip_prefix(" of this file: ") {
                return Some((kind, true, ids));
            }
        }
    }
    None
}

/// If a function starts in this line: the text after `fn `, which begins with the function's name.
fn function_name(code: &str) -> Option<&str> {
    let words = ["pub(crate) ", "pub(super) ", "pub ", "async ", "const ", "unsafe "];
    let mut code = code;
    while let Some(rest) = words.iter().find_map(|word| code.strip_prefix(word)) {
        code = rest;
    }
    code.strip_prefix("fn ")
}

fn state(row: &Row, tests: Option<&BTreeSet<String>>) -> &'static str {
    match (tests.is_some(), &row.gap) {
        (false, _) => "missing",
        (true, Some(_)) => "part",
        (true, None) => "works",
    }
}

fn summary(rows: &[Row], tests: &Tests) -> String {
    let line = |kind: Kind, what: &str| {
        let own: Vec<&Row> = rows.iter().filter(|row| row.kind == kind).collect();
        let count = |wanted: &str| {
            let of = |row: &&&Row| state(row, tests.get(&(kind, row.id.clone()))) == wanted;
            own.iter().filter(of).count()
        };
        let (works, part, missing) = (count("works"), count("part"), count("missing"));
        format!(
            "Of {} {what}, {works} work, {part} work in part and {missing} are missing.",
            own.len()
        )
    };
    format!("{}\n{}", line(Kind::Feature, "features"), line(Kind::Promise, "promises"))
}

fn page(rows: &[Row], tests: &Tests) -> String {
    let mut text = format!(
        "# Acceptance\n\n\
         Generated by `cargo xtask features` from `features.tsv`, `promises.tsv` and the tests; do not \
         edit. The features are those of upstream (the original SPDL). A feature or promise works if a \
         test exercises it, and works in part if its note describes what is missing. A test does not \
         count if it only checks that an unsupported feature is rejected, or if it is expected to fail. \
         `cargo xtask test` runs these tests, except those that this machine must skip. Tests of GPU \
         features use an emulated driver; `cargo xtask gpu` repeats them on a device. `cargo xtask soak` \
         runs longer versions, and the tests with PyTorch's libraries of pip.\n\n{}\n",
        summary(rows, tests)
    );
    for (index, (kind, prefix, title)) in SECTIONS.iter().enumerate() {
        let own: Vec<&Row> = rows
            .iter()
            .filter(|row| row.kind == *kind && section(*kind, &row.id) == Some(index))
            .collect();
        if own.is_empty() {
            continue;
        }
        let what = match kind {
            Kind::Feature => "feature",
            Kind::Promise => "promise",
        };
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n## {prefix}: {title}\n\n| ID | {what} | state | tests |\n|---|---|---|---|\n"
        );
        for row in own {
            let found = tests.get(&(*kind, row.id.clone()));
            let mut shown: Vec<String> = found
                .into_iter()
                .flatten()
                .take(SHOWN_TESTS)
                .map(|test| format!("`{test}`"))
                .collect();
            let more = found.map_or(0, BTreeSet::len).saturating_sub(SHOWN_TESTS);
            if more > 0 {
                shown.push(format!("{more} more"));
            }
            let gap = row.gap.as_ref().map(|gap| format!(": {gap}")).unwrap_or_default();
            let cells = [&row.name, &format!("{}{gap}", state(row, found)), &shown.join(", ")];
            let cells = cells.map(|cell| cell.replace('|', "\\|"));
            let _ = writeln!(text, "| {} | {} |", row.id, cells.join(" | "));
        }
    }
    text
}

/// Names of the tests that failed, from the logs of `cargo test` and pytest in a folder.
fn failed_tests(folder: &Path) -> Result<BTreeSet<String>> {
    let mut failed = BTreeSet::new();
    for log in ["test.log", "python.log", "examples-python.log"] {
        let path = folder.join(log);
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        failed.extend(failed_in(&String::from_utf8_lossy(&text)));
    }
    Ok(failed)
}

fn failed_in(log: &str) -> BTreeSet<String> {
    let of_line = |line: &str| {
        // `test module::name ... FAILED`, and `FAILED path.py::name[parameters] - reason`.
        let test = match line.strip_suffix(" ... FAILED") {
            Some(test) => test.strip_prefix("test ")?,
            None => {
                let test = line.strip_prefix("FAILED ").or(line.strip_prefix("ERROR "))?;
                test.split([' ', '[']).next()?
            }
        };
        test.rsplit("::").next().map(str::to_owned)
    };
    log.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, is_python: bool) -> Vec<String> {
        let found = scan(text, is_python).unwrap();
        found.into_iter().map(|(kind, id, test)| format!("{kind:?} {id} {test}")).collect()
    }

    #[test]
    fn rust_tests_are_attached_by_comments() {
        let text = "\
// promise of this file: R25
#[test]
// feature: B03, L04
// promise: R1
fn one() {}

fn helper() {}

    /// Of a module.
    #[test]
    fn two() {}
";
        let expected = [
            "Feature B03 one",
            "Feature L04 one",
            "Promise R1 one",
            "Promise R25 one",
            "Promise R25 two",
        ];
        assert_eq!(found(text, false), expected);
        assert!(scan("// feature: B03\nfn helper() {}\n", false).is_err());
        assert!(scan("// feature: 12\n#[test]\nfn one() {}\n", false).is_err());
        assert!(scan("// feature: B03\n", false).is_err());
    }

    #[test]
    fn python_tests_are_attached_by_name_or_comment() {
        let text = "\
def test_b03_drops():
# promise: R6
def test_ctrl_c():
@pytest.mark.xfail
def test_b04_not_yet():
# feature: none
def test_b05_is_a_stub():
    async def test_c01_waits():
def test_b06_twice_is_refused():
def test_promise_g12_exits():
def helper_b06():
";
        let expected = [
            "Feature B03 test_b03_drops",
            "Promise R6 test_ctrl_c",
            "Feature C01 test_c01_waits",
            "Promise G12 test_promise_g12_exits",
        ];
        assert_eq!(found(text, true), expected);
        assert!(found("# feature of this file: none\ndef test_b03_drops():\n", true).is_empty());
    }

    #[test]
    fn tables_list_each_id_once() {
        let features = parse_table(Kind::Feature, include_str!("../../docs/features.tsv")).unwrap();
        assert_eq!(features.len(), 160);
        let promises = parse_table(Kind::Promise, include_str!("../../docs/promises.tsv")).unwrap();
        assert!(promises.len() >= 37, "{}", promises.len());
        assert!(parse_table(Kind::Feature, "B01\ta\nB01\tb").is_err());
        assert!(parse_table(Kind::Feature, "B1").is_err());
        assert!(parse_table(Kind::Feature, "Y01\tunknown section").is_err());
    }

    #[test]
    fn a_row_without_a_test_is_missing() {
        let row = |id: &str, gap: Option<&str>| Row {
            kind: Kind::Feature,
            id: id.to_owned(),
            name: format!("name of {id}"),
            gap: gap.map(str::to_owned),
        };
        let rows = [row("B01", None), row("B02", Some("no | of it")), row("B03", None)];
        let names = |count: usize| (0..count).map(|i| format!("test_{i}")).collect();
        let tests: Tests = [
            ((Kind::Feature, "B01".to_owned()), names(5)),
            ((Kind::Feature, "B02".to_owned()), names(1)),
        ]
        .into();
        let page = page(&rows, &tests);
        for line in [
            "| B01 | name of B01 | works | `test_0`, `test_1`, `test_2`, 2 more |",
            "| B02 | name of B02 | part: no \\| of it | `test_0` |",
            "| B03 | name of B03 | missing |  |",
            "Of 3 features, 1 work, 1 work in part and 1 are missing.",
        ] {
            assert!(page.contains(line), "{line}\n{page}");
        }
    }

    #[test]
    fn failures_are_read_from_logs() {
        let log = "\
test order::one ... ok
test order::two ... FAILED
FAILED spdl-python/tests/test_a.py::test_b03[x y] - assert 1
";
        let expected = ["test_b03", "two"].map(str::to_owned);
        assert_eq!(failed_in(log), BTreeSet::from(expected));
    }
}
