//! `cargo xtask test`: runs every check that must pass before a change is merged.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::feature_checks::{self, Selection};
use crate::steps::{
    self, Counts, Step, Tally, cargo_test, finish_tests, in_threads, model_tests, test_programs,
};
use crate::tools::{
    CHECK_SETTINGS, EXAMPLES, Output, SELECTION, Workspace, cargo, cargo_tool, command,
    installed_cargo_tool, require_programs,
};
use crate::venv::Venv;
use crate::{acceptance, corpus, dataset, ffmpeg, fuzz, tidy, wheel};

/// Run the checks that every change must pass: format, lints, tests, docs, features, models, the
/// Python wheel, licences, known vulnerabilities.
///
/// A failed step does not stop the later steps. The output of each step is kept in
/// target/xtask-logs; if the step fails, the end of that log is printed. A test that cannot run on
/// this machine is listed as `SKIPPED:` with the reason. A table shows how long each step took. The
/// last line is the total: `N passed, N failed, N skipped`.
///
/// Longer checks run in `cargo xtask soak` only: fuzz targets with libFuzzer and AddressSanitizer;
/// tests with default features; compiling with each feature alone, with each pair, and with all features but one;
/// licence files of dependencies;
/// Python tests with the wheel of maturin, on a second version of Python; more random cases of property
/// tests and model checks; more pipeline cycles; and network faults for 30 minutes. Tests on a CUDA device
/// run in `cargo xtask gpu`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask test
  cargo xtask test --list
  cargo xtask test --only fmt clippy tidy     the quick steps, before a commit")]
pub(crate) struct TestArguments {
    /// Run only these steps; --list prints their names
    #[arg(long, value_name = "STEP", num_args = 1..)]
    only: Vec<String>,
    /// List the steps, and run none
    #[arg(long)]
    list: bool,
}

const STEPS: [Step; 17] = [
    Step { name: "programs", about: "install build tools of optional features", run: programs },
    Step { name: "fmt", about: "cargo fmt --check", run: fmt },
    Step { name: "tidy", about: "layers, modules, words, names, licences, commits", run: tidy },
    Step { name: "clippy", about: "all lints, all features; warnings are errors", run: clippy },
    Step { name: "test", about: "unit, integration and fuzz tests, all features", run: test },
    Step { name: "doctest", about: "documentation tests, all features", run: doctest },
    Step { name: "corpus", about: "decode damaged files in child processes", run: corpus::test },
    Step { name: "loom", about: "every thread interleaving of the tests loom_*", run: loom },
    Step { name: "shuttle", about: "whole pipelines under random thread schedules", run: shuttle },
    Step { name: "example", about: "a third-party fetcher that depends on spdl-io", run: example },
    Step { name: "doc", about: "cargo doc; warnings are errors", run: doc },
    Step {
        name: "features",
        about: "compile each crate without features, and with its default ones",
        run: features,
    },
    Step { name: "python", about: "the wheel and its tests, in target/venv-test", run: python },
    Step {
        name: "examples-python",
        about: "examples/python, and tests with JAX, pyarrow and PyTorch",
        run: examples_python,
    },
    Step { name: "free-threaded", about: "the Python tests without a GIL", run: free_threaded },
    Step { name: "types", about: "types of the Python package: pyright and stubtest", run: types },
    Step {
        name: "advisories",
        about: "known vulnerabilities of dependencies, if cargo-deny is installed",
        run: advisories,
    },
];

/// Steps that mostly compile. They run beside the other steps, whose tests also wait.
const BESIDE: [&str; 10] = [
    "fmt",
    "tidy",
    "clippy",
    "doctest",
    "loom",
    "shuttle",
    "example",
    "doc",
    "features",
    "advisories",
];

/// Time limit of a step, far above its usual duration.
const STEP_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Minimum number of loom tests that must run.
const LOOM_MODELS: u64 = 35;

pub(crate) fn run(workspace: &Workspace, arguments: &TestArguments) -> Result<ExitCode> {
    if arguments.list {
        steps::list(&STEPS);
        return Ok(ExitCode::SUCCESS);
    }
    let mut tally = Tally::default();
    let chosen = steps::choose(&STEPS, &arguments.only)?;
    // The step `programs` installs what others need.
    let (first, others): (Vec<_>, Vec<_>) =
        chosen.into_iter().partition(|step| step.name == "programs");
    for step in first {
        tally.run(workspace, step, step.name, STEP_LIMIT)?;
    }
    tally.run_side_by_side(workspace, &others, &BESIDE, STEP_LIMIT)?;
    Ok(tally.conclude())
}

/// Installs CMake and NASM: the feature `turbojpeg` builds libjpeg-turbo with its assembler code.
/// Installs FFmpeg's headers and clang for the feature `ffmpeg`.
pub(crate) fn programs(_: &Workspace, output: &mut Output) -> Result<Counts> {
    require_programs(output, "libjpeg-turbo (feature `turbojpeg`)", &["cmake", "nasm"])?;
    ffmpeg::require_system_ffmpeg(output)?;
    Ok(Counts::one_passed())
}

fn fmt(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let check = |arguments: &[&str], folder: &Path, output: &mut Output| {
        let mut fmt = cargo();
        fmt.arg("fmt").args(arguments).args(["--check", "--", "--color", "never"]);
        output.run(fmt.current_dir(folder))
    };
    check(&["--all"], &workspace.root, output)?;
    // These packages are not members of the workspace.
    for package in fuzz::PACKAGES {
        check(&[], &workspace.root.join(package).join("fuzz"), output)?;
    }
    check(&[], &workspace.root.join(EXAMPLE), output)?;
    Ok(Counts::one_passed())
}

fn tidy(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let findings = tidy::findings(workspace)?;
    for finding in &findings {
        output.say(finding);
    }
    ensure!(findings.is_empty(), "{} findings", findings.len());
    acceptance::check_page(workspace)?;
    Ok(Counts::one_passed())
}

fn clippy(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let mut clippy = cargo();
    clippy
        .args(["clippy", "--workspace", "--all-targets", "--all-features"])
        .args(CHECK_SETTINGS)
        .arg("--")
        .args(["-D", "warnings"])
        .current_dir(&workspace.root);
    let (status, text) = output.run_and_read(&mut clippy)?;
    ensure!(status.success(), "clippy failed: {status}");
    if let Some(warning) = manifest_warning(&text) {
        bail!("{warning}");
    }
    Ok(Counts::one_passed())
}

/// Cargo's first warning about a manifest, such as a misspelt key. Lint settings cannot turn such
/// warnings into errors.
fn manifest_warning(text: &str) -> Option<&str> {
    text.lines().find(|line| line.starts_with("warning: ") && line.contains("manifest key"))
}

fn test(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    test_programs(workspace, output, &SELECTION, &EXAMPLES)
}

fn doctest(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    cargo_test(workspace, output, 1, |cargo| cargo.args(SELECTION).arg("--doc"))
}

/// Runs the tests that depend on features with default features, for each crate that has features
/// beyond its default features.
pub(crate) fn test_default(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let packages = feature_checks::packages_with_optional_features(workspace);
    // `spdl-python` has no Rust tests, because an extension module does not link to Python.
    let packages = packages.into_iter().filter(|name| *name != "spdl-python");
    let packages: Vec<&str> = packages.flat_map(|name| ["-p", name]).collect();
    if packages.is_empty() {
        output.say("no tested crate has features beyond the default ones");
        return Ok(Counts::one_passed());
    }
    // Tests of whole pipelines do not depend on features, so they are not repeated.
    let units =
        ["--lib", "--bins", "--test", "program", "--test", "local", "--test", "image_folder"];
    let docs = ["--doc"];
    let mut counts = Counts::default();
    for targets in [&units[..], &docs] {
        counts.add(cargo_test(workspace, output, 1, |cargo| cargo.args(&packages).args(targets))?);
    }
    Ok(counts)
}

/// The folder of an example of a third-party crate, which is not a member of the workspace.
const EXAMPLE: &str = "examples/acme-fetcher";

fn example(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let folder = workspace.root.join(EXAMPLE);
    fuzz::lock_versions(workspace, "acme-fetcher", &folder, &workspace.target)?;
    cargo_test(workspace, output, 4, |cargo| {
        // The folder and the profile of the workspace, so that dependencies are not compiled again.
        cargo.arg("--manifest-path").arg(folder.join("Cargo.toml")).arg("--target-dir");
        cargo.arg(&workspace.target).args(["--config", "profile.dev.debug=false"]);
        cargo.args(["--config", "profile.dev.lto=\"off\""])
    })
}

fn doc(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    output.run(
        cargo()
            .args(["doc", "--workspace", "--no-deps", "--all-features"])
            .args(CHECK_SETTINGS)
            .env("RUSTDOCFLAGS", "-Dwarnings")
            .current_dir(&workspace.root),
    )?;
    Ok(Counts::one_passed())
}

fn features(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    feature_checks::check(workspace, output, Selection::Ends)
}

fn loom(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    model_tests(workspace, output, "loom", "test", LOOM_MODELS, |cargo| cargo)
}

fn shuttle(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    model_tests(workspace, output, "shuttle", "test", 1, |cargo| cargo)
}

/// Number of pytest processes: more than CPUs, because many tests mostly wait.
pub(crate) const PYTEST_PROCESSES: usize = 4;

/// Number of groups of test files. A pytest process runs one group, so that no process has many
/// slow files left while the others have ended.
const PYTEST_GROUPS: usize = 16;

fn python(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let venv = wheel::install_for_tests(workspace, output)?;
    python_suite(workspace, output, &venv, PYTEST_PROCESSES)
}

/// Runs all Python tests that need no other framework, in so many concurrent processes.
pub(crate) fn python_suite(
    workspace: &Workspace,
    output: &mut Output,
    venv: &Venv,
    processes: usize,
) -> Result<Counts> {
    let files = test_files(workspace)?;
    let next = AtomicUsize::new(0);
    in_threads(output, processes, |_, output| {
        let mut counts = Counts::default();
        loop {
            let group = next.fetch_add(1, Ordering::Relaxed);
            if group >= PYTEST_GROUPS {
                return Ok(counts);
            }
            let files = files.iter().skip(group).step_by(PYTEST_GROUPS);
            counts.add(pytest_files(workspace, output, venv, 1, |pytest| {
                without_frameworks(pytest).arg("--durations=5").args(files);
            })?);
        }
    })
}

/// Runs the tests of a wheel that maturin builds, on the newest other version of Python if one is installed.
pub(crate) fn python_by_maturin(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let venv = wheel::install_for_tests_by_maturin(workspace, output)?;
    pytest(workspace, output, &venv, 1, without_frameworks)
}

fn free_threaded(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let python = match wheel::free_threaded_python() {
        Ok(python) => python,
        Err(error) => return Ok(Counts::one_skipped(&error.to_string())),
    };
    let venv = wheel::install_for_tests_without_gil(workspace, output, &python)?;
    pytest(workspace, output, &venv, 1, without_frameworks)
}

fn without_frameworks(pytest: &mut Command) -> &mut Command {
    pytest.args(["-m", "not frameworks"])
}

/// The data set that the demo at the end of `.ci/run` also uses, so that the data set is created
/// only once.
const EXAMPLE_IMAGES: dataset::Settings =
    dataset::Settings { shape: dataset::Shape::Imagenet, images: 200, classes: 10, seed: 0 };

/// Minimum number of tests marked `frameworks`.
const TESTS_WITH_FRAMEWORKS: u64 = 50;

/// Runs the examples and the tests that need another library, with PyTorch of pip or without PyTorch.
///
/// pip uses the package index that it is configured to use.
pub(crate) fn with_frameworks(
    workspace: &Workspace,
    output: &mut Output,
    torch_by_pip: bool,
) -> Result<Counts> {
    let photos = workspace.root.join("assets/photos");
    let parent = workspace.target.join("demo");
    let (images, _) = dataset::find_or_make(&photos, &parent, EXAMPLE_IMAGES)?;
    let venv = wheel::install_with_frameworks(workspace, output, torch_by_pip)?;
    pytest(workspace, output, &venv, TESTS_WITH_FRAMEWORKS, |pytest| {
        pytest.args(["-m", "frameworks"]).env("SPDL_TEST_IMAGES", &images)
    })
}

/// Runs the tests of [`with_frameworks`]; the tests with Debian's PyTorch run concurrently.
///
/// With `SPDL_TEST_TORCH=1`, pip installs PyTorch instead.
fn examples_python(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    if env::var("SPDL_TEST_TORCH").is_ok_and(|value| value == "1") {
        return with_frameworks(workspace, output, true);
    }
    let with_debian_torch = |output: &mut Output| {
        let venv = match wheel::install_with_debian_torch(workspace, output) {
            Ok(venv) => venv,
            Err(error) => return Ok(Counts::one_skipped(&format!("no PyTorch: {error:#}"))),
        };
        let files = torch_tests(workspace)?;
        pytest_files(workspace, output, &venv, 1, |pytest| {
            pytest.args(["-m", "frameworks"]).args(&files);
        })
    };
    in_threads(output, 2, |thread, output| match thread {
        0 => with_frameworks(workspace, output, false),
        _ => with_debian_torch(output),
    })
}

/// The Python test files, relative to the root.
fn test_files(workspace: &Workspace) -> Result<Vec<String>> {
    let folder = workspace.root.join("spdl-python/tests");
    let mut files = Vec::new();
    for entry in
        fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("test_") && name.ends_with(".py") {
            files.push(workspace.shown(&path));
        }
    }
    files.sort();
    Ok(files)
}

/// The test files that import PyTorch if it is installed.
fn torch_tests(workspace: &Workspace) -> Result<Vec<String>> {
    let mut files = test_files(workspace)?;
    let imports_torch = |file: &String| {
        fs::read_to_string(workspace.root.join(file))
            .is_ok_and(|text| text.contains("importorskip(\"torch"))
    };
    files.retain(imports_torch);
    Ok(files)
}

/// Runs the tests of the Python package that the arguments added by `set_up` select.
fn pytest(
    workspace: &Workspace,
    output: &mut Output,
    venv: &Venv,
    at_least: u64,
    set_up: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<Counts> {
    pytest_files(workspace, output, venv, at_least, |pytest| {
        set_up(pytest).arg("spdl-python/tests");
    })
}

/// Runs pytest with the files and arguments that `set_up` adds.
fn pytest_files(
    workspace: &Workspace,
    output: &mut Output,
    venv: &Venv,
    at_least: u64,
    set_up: impl FnOnce(&mut Command),
) -> Result<Counts> {
    let mut pytest = command(venv.python());
    pytest
        .args(["-m", "pytest", "-rfEs", "-p", "no:cacheprovider"])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(&workspace.root);
    set_up(&mut pytest);
    let (status, text) = output.run_and_read(&mut pytest)?;
    finish_tests(output, Counts::of_pytest(&text), at_least, status)
}

/// Versions are exact, so that the results do not change from one day to the next.
const TYPE_CHECKERS: [&str; 2] = ["mypy==1.18.2", "pyright==1.1.414"];

/// Pyright checks the Python code; stubtest compares the native module with its stub.
///
/// Both are installed into the environment of the step `python`.
fn types(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let venv = wheel::install_for_tests(workspace, output)?;
    venv.install(output, &TYPE_CHECKERS)?;
    let mut stubtest = command(venv.python());
    stubtest
        .args(["-m", "mypy.stubtest", "spdl_rs._spdl_rs", "--allowlist"])
        .arg(workspace.root.join("spdl-python/tests/stubtest-allowlist.txt"))
        // Use a folder that has no subfolder with the name of the package.
        .current_dir(&workspace.target);
    output.run(&mut stubtest)?;
    let mut counts = Counts::one_passed();
    let (status, text) = output.run_and_read(
        command(venv.program("pyright"))
            .arg("--pythonpath")
            .arg(venv.python())
            .arg("spdl-python/python")
            .current_dir(&workspace.root),
    )?;
    // Pyright needs Node.js, and downloads Node.js if necessary. If the download fails, Pyright
    // prints no summary.
    counts.add(match (status.success(), text.contains(" errors, ") || text.contains(" error, ")) {
        (true, true) => Counts::one_passed(),
        (false, true) => bail!("pyright failed: {status}"),
        (_, false) => {
            Counts::one_skipped("pyright printed no summary; Node.js is probably unavailable")
        }
    });
    Ok(counts)
}

const DENY: (&str, &str) = ("cargo-deny", "0.20.2");

/// cargo-deny reads the licence files; `tidy` only reads the manifests.
pub(crate) fn deny(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let program = cargo_tool(workspace, output, DENY.0, DENY.1)?;
    output.run(
        command(program)
            .args(["--all-features", "check", "bans", "licenses", "sources"])
            .current_dir(&workspace.root),
    )?;
    Ok(Counts::one_passed())
}

/// Compares the dependencies with the list of known vulnerabilities, if cargo-deny is installed.
///
/// Building cargo-deny takes minutes, so that only `cargo xtask soak` does so.
fn advisories(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    match installed_cargo_tool(workspace, DENY.0, DENY.1) {
        Some(program) => check_advisories(workspace, output, &program),
        None => Ok(Counts::one_skipped(
            "cargo-deny is not installed; `cargo xtask soak --only advisories` installs it",
        )),
    }
}

/// Installs cargo-deny if missing, and compares the dependencies with the list of known vulnerabilities.
pub(crate) fn install_and_check_advisories(
    workspace: &Workspace,
    output: &mut Output,
) -> Result<Counts> {
    let program = cargo_tool(workspace, output, DENY.0, DENY.1)?;
    check_advisories(workspace, output, &program)
}

fn check_advisories(workspace: &Workspace, output: &mut Output, program: &Path) -> Result<Counts> {
    let (status, text) = output.run_and_read(
        command(program)
            .args(["--all-features", "check", "advisories"])
            .current_dir(&workspace.root),
    )?;
    if status.success() {
        return Ok(Counts::one_passed());
    }
    if text.contains("failed to fetch advisory database") {
        return Ok(Counts::one_skipped("the advisory database is not reachable"));
    }
    bail!("cargo-deny failed: {status}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_manifest_key_is_found() {
        let text = "warning: a/Cargo.toml: unused manifest key: dependencies.b.defualt-features\n";
        assert_eq!(manifest_warning(text), Some(text.trim_end()));
        assert_eq!(manifest_warning("    Checking a v0.1.0\nwarning: unused variable\n"), None);
    }
}
