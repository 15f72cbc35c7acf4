//! `cargo xtask test`: everything that must hold before a change is merged.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::features::{self, Features};
use crate::steps::{self, Counts, Step, Tally, cargo_test, finish_tests, model_tests};
use crate::tools::{Output, Workspace, cargo, cargo_tool, command, require_programs};
use crate::venv::Venv;
use crate::{corpus, dataset, fuzz, tidy, wheel};

/// Run every check: format, lints, tests, docs, features, fuzz targets, models, the Python wheel and
/// examples, licences.
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

const STEPS: [Step; 19] = [
    Step { name: "programs", about: "what optional features are built with", run: programs },
    Step { name: "fmt", about: "cargo fmt --check", run: fmt },
    Step { name: "tidy", about: "crate layers, unsafe code, paths, manifests", run: tidy },
    Step { name: "clippy", about: "all lints, all features; warnings are errors", run: clippy },
    Step { name: "test", about: "unit, integration and doc tests, all features", run: test },
    Step {
        name: "test-default",
        about: "unit and doc tests, and the program, with default features",
        run: test_default,
    },
    Step { name: "example", about: "a fetcher of somebody else, on spdl-io alone", run: example },
    Step { name: "doc", about: "cargo doc; warnings are errors", run: doc },
    Step {
        name: "features",
        about: "every combination of features that matters compiles",
        run: features,
    },
    Step { name: "corpus", about: "damaged files in child processes", run: corpus::test },
    Step { name: "fuzz", about: "every fuzz target for 40 s", run: fuzz::test },
    Step { name: "loom", about: "every interleaving of the models named loom_*", run: loom },
    Step { name: "shuttle", about: "whole pipelines under random schedules", run: shuttle },
    Step { name: "python", about: "the wheel, and its tests in target/venv-test", run: python },
    Step {
        name: "examples-python",
        about: "examples/python, and tests with JAX, pyarrow and PyTorch",
        run: examples_python,
    },
    Step { name: "free-threaded", about: "the same without a GIL", run: free_threaded },
    Step { name: "types", about: "the wheel's types, by pyright and stubtest", run: types },
    Step { name: "deny", about: "licences, sources and duplicates of dependencies", run: deny },
    Step { name: "advisories", about: "known vulnerabilities of dependencies", run: advisories },
];

/// No step takes nearly as long; a test that hangs must not hang everything.
const STEP_LIMIT: Duration = Duration::from_secs(30 * 60);

/// How many models there are at least: one that is no longer found is no longer checked.
const LOOM_MODELS: u64 = 35;

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<ExitCode> {
    if arguments.list {
        steps::list(&STEPS);
        return Ok(ExitCode::SUCCESS);
    }
    let mut tally = Tally::default();
    for step in steps::choose(&STEPS, &arguments.only)? {
        tally.run(workspace, step, step.name, STEP_LIMIT)?;
    }
    Ok(tally.conclude())
}

/// Feature `turbojpeg` builds libjpeg-turbo, with its assembler code.
fn programs(_: &Workspace, output: &mut Output) -> Result<Counts> {
    require_programs(output, "libjpeg-turbo (feature `turbojpeg`)", &["cmake", "nasm"])?;
    Ok(Counts::one_passed())
}

fn fmt(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let check = |arguments: &[&str], folder: &Path, output: &mut Output| {
        let mut fmt = cargo();
        fmt.arg("fmt").args(arguments).args(["--check", "--", "--color", "never"]);
        output.run(fmt.current_dir(folder))
    };
    check(&["--all"], &workspace.root, output)?;
    // These are no part of the workspace.
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

/// The Python module is left out: it links to no Python by design, and pytest tests it.
const PYTHON_CRATE: &str = "spdl-python";

fn test(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    cargo_test(workspace, output, 1, |cargo| {
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
    // Whole pipelines do not depend on features; what each crate promises by itself may.
    let units =
        ["--lib", "--bins", "--test", "program", "--test", "local", "--test", "image_folder"];
    let docs = ["--doc"];
    let mut counts = Counts::default();
    for targets in [&units[..], &docs] {
        counts.add(cargo_test(workspace, output, 1, |cargo| cargo.args(&packages).args(targets))?);
    }
    Ok(counts)
}

/// A crate that is no part of the workspace, as those of other people are not.
const EXAMPLE: &str = "examples/acme-fetcher";

fn example(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let folder = workspace.root.join(EXAMPLE);
    let target = workspace.target.join("example");
    fs::create_dir_all(&target).with_context(|| format!("cannot create {}", target.display()))?;
    fuzz::lock_versions(workspace, "acme-fetcher", &folder, &target)?;
    cargo_test(workspace, output, 4, |cargo| {
        cargo.arg("--manifest-path").arg(folder.join("Cargo.toml")).arg("--target-dir").arg(target)
    })
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

/// The crate with the most features, which is checked beside all others.
const MEDIA_CRATE: &str = "spdl-media";

/// Clippy instead of `cargo check`: it shares all dependencies with the step before, and denies
/// warnings in our crates alone. All features together are left to that step. One crate takes one CPU,
/// so two are checked at a time; the other has a target folder and a log of its own.
fn features(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let checks = combinations(workspace)?;
    if checks.is_empty() {
        output.say("no crate has optional features");
        return Ok(Counts::one_passed());
    }
    let (media, others): (Vec<_>, Vec<_>) =
        checks.into_iter().partition(|(package, _)| *package == MEDIA_CRATE);
    let target = workspace.target.join("features");
    fs::create_dir_all(&target).with_context(|| format!("cannot create {}", target.display()))?;
    let mut log = Output::log(target.join("features.log"), STEP_LIMIT)?;
    let mut counts = Counts::default();
    let of_media = std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let counts = check_all(
                workspace,
                &mut log,
                &media,
                &["--target-dir".as_ref(), target.as_os_str()],
            );
            (counts, log)
        });
        counts.add(check_all(workspace, output, &others, &[]));
        beside.join()
    });
    let Ok((of_media, log)) = of_media else { bail!("the other thread panicked") };
    counts.add(of_media);
    output.say(&log.text()?);
    Ok(counts)
}

/// Crates, each with features that must compile together.
fn combinations(workspace: &Workspace) -> Result<Vec<(&str, String)>> {
    let mut all = Vec::new();
    for package in &workspace.packages {
        let name = package["name"].as_str().unwrap_or_default();
        let features = Features::of(package);
        let mut groups = BTreeSet::new();
        for target in package["targets"].as_array().into_iter().flatten() {
            let kinds = target["kind"].as_array().into_iter().flatten();
            if kinds
                .into_iter()
                .any(|kind| ["lib", "bin", "cdylib"].map(Value::from).contains(kind))
                && let Some(root) = target["src_path"].as_str()
            {
                groups.extend(features::groups(Path::new(root))?);
            }
        }
        let combinations = features.combinations(&groups).into_iter();
        all.extend(combinations.map(|combination| (name, combination.join(","))));
    }
    Ok(all)
}

fn check_all(
    workspace: &Workspace,
    output: &mut Output,
    checks: &[(&str, String)],
    arguments: &[&OsStr],
) -> Counts {
    let mut counts = Counts::default();
    for (package, features) in checks {
        let result = output.run(
            cargo()
                .args(["clippy", "--quiet", "-p", package, "--no-default-features"])
                .args(["--features", features])
                .args(arguments)
                .args(["--", "-D", "warnings"])
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
    counts
}

fn loom(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    model_tests(workspace, output, "loom", LOOM_MODELS, |cargo| cargo)
}

fn shuttle(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    model_tests(workspace, output, "shuttle", 1, |cargo| cargo)
}

/// On two versions of Python where they are here, at once, since tests wait more than they compute.
fn python(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let (usual, other) = wheel::install_for_tests_twice(workspace, output)?;
    let Some(other) = other else {
        let mut counts = pytest(workspace, output, &usual, 1, without_frameworks)?;
        counts.add(Counts::one_skipped("only one version of Python is here to run its tests"));
        return Ok(counts);
    };
    let mut log = Output::log(workspace.target.join("python-other.log"), STEP_LIMIT)?;
    let (counts, on_other) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let counts = pytest(workspace, &mut log, &other, 1, without_frameworks);
            (counts, log)
        });
        (pytest(workspace, output, &usual, 1, without_frameworks), beside.join())
    });
    let Ok((on_other, log)) = on_other else { bail!("the other thread panicked") };
    output.say(&log.text()?);
    let mut counts = counts?;
    counts.add(on_other?);
    Ok(counts)
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

/// The photographs' data set that `.ci/run` shows at its end, so that it is made once.
const EXAMPLE_IMAGES: dataset::Settings =
    dataset::Settings { shape: dataset::Shape::Imagenet, images: 200, classes: 10, seed: 0 };

/// How many tests there are at least without PyTorch.
const TESTS_WITH_FRAMEWORKS: u64 = 50;

/// Every example, and the tests that need another library. PyTorch is large: it is installed where
/// `SPDL_TEST_TORCH=1` asks for it, from where pip's own variables say; else what needs it skips itself.
fn examples_python(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let with_torch = env::var("SPDL_TEST_TORCH").is_ok_and(|value| value == "1");
    let photos = workspace.root.join("assets/photos");
    let parent = workspace.target.join("demo");
    let (images, _) = dataset::find_or_make(&photos, &parent, EXAMPLE_IMAGES)?;
    let venv = wheel::install_with_frameworks(workspace, output, with_torch)?;
    pytest(workspace, output, &venv, TESTS_WITH_FRAMEWORKS, |pytest| {
        pytest.args(["-m", "frameworks"]).env("SPDL_TEST_IMAGES", images)
    })
}

/// Runs the Python package's tests, or those that `set_up` chooses.
fn pytest(
    workspace: &Workspace,
    output: &mut Output,
    venv: &Venv,
    at_least: u64,
    set_up: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<Counts> {
    let mut pytest = command(venv.python());
    pytest
        .args(["-m", "pytest", "-rfEs", "-p", "no:cacheprovider", "spdl-python/tests"])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(&workspace.root);
    let (status, text) = output.run_and_read(set_up(&mut pytest))?;
    finish_tests(output, Counts::of_pytest(&text), at_least, status.success())
}

/// Versions that do not change what they complain of from one day to the next.
const TYPE_CHECKERS: [&str; 2] = ["mypy==1.18.2", "pyright==1.1.414"];

/// Pyright checks the package's own code, and stubtest that the native module is what its stub says.
fn types(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    let venv = wheel::install(workspace, output, "venv-types", true)?;
    venv.install(output, &TYPE_CHECKERS)?;
    let mut stubtest = command(venv.python());
    stubtest
        .args(["-m", "mypy.stubtest", "spdl_rs._spdl_rs", "--allowlist"])
        .arg(workspace.root.join("spdl-python/tests/stubtest-allowlist.txt"))
        // Where no folder is named like the package.
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
    // It says how many it found, where it ran at all: it needs Node.js, which it fetches where it is not.
    counts.add(match (status.success(), text.contains(" errors, ") || text.contains(" error, ")) {
        (true, true) => Counts::one_passed(),
        (false, true) => bail!("pyright failed: {status}"),
        (_, false) => {
            Counts::one_skipped("pyright does not run here (Node.js could not be set up)")
        }
    });
    Ok(counts)
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
    fn a_misspelt_manifest_key_is_found() {
        let text = "warning: a/Cargo.toml: unused manifest key: dependencies.b.defualt-features\n";
        assert_eq!(manifest_warning(text), Some(text.trim_end()));
        assert_eq!(manifest_warning("    Checking a v0.1.0\nwarning: unused variable\n"), None);
    }
}
