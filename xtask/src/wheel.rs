//! `cargo xtask wheel`: the Python package.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::tools::{Output, Workspace, command};
use crate::venv::{self, Venv};

/// Build the Python wheel (abi3: one wheel for every Python from 3.10 on).
///
/// Uses maturin in a virtual environment of its own, target/venv. The wheel is written to
/// target/wheels and its path is printed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask wheel
  cargo xtask wheel --dev          quicker to build, slower to run
  pip install target/wheels/*.whl")]
pub(crate) struct Arguments {
    /// Build without optimisation of our own crates
    #[arg(long)]
    dev: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let wheel = build(workspace, &mut Output::Terminal, arguments.dev)?;
    println!("{}", wheel.display());
    Ok(())
}

/// Builds the wheel and returns its path.
pub(crate) fn build(workspace: &Workspace, output: &mut Output, dev: bool) -> Result<PathBuf> {
    let venv = Venv::prepare(workspace, output, "venv", &["maturin>=1.16,<1.17"])?;
    let folder = workspace.target.join("wheels");
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let mut maturin = command(venv.program("maturin"));
    maturin
        .args(["build", "--manifest-path", "spdl-python/Cargo.toml", "--out"])
        .arg(&folder)
        .arg("--interpreter")
        .arg(venv.python())
        .current_dir(&workspace.root);
    if !dev {
        maturin.arg("--release");
    }
    output.run(&mut maturin)?;
    let mut wheels: Vec<PathBuf> = fs::read_dir(&folder)
        .with_context(|| format!("maturin made no {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .collect();
    match (wheels.pop(), wheels.is_empty()) {
        (Some(wheel), true) => Ok(wheel),
        _ => bail!("expected exactly one wheel in {}", folder.display()),
    }
}

/// Builds the wheel quickly and installs it, with what its tests need, into `target/venv-test`.
pub(crate) fn install_for_tests(workspace: &Workspace, output: &mut Output) -> Result<Venv> {
    let wheel = build(workspace, output, true)?;
    prepare_for_tests(workspace, output, None, "venv-test", &wheel)
}

/// The same with an interpreter of another version beside the usual one, where there is such a one, in
/// `target/venv-test-other`.
pub(crate) fn install_for_tests_twice(
    workspace: &Workspace,
    output: &mut Output,
) -> Result<(Venv, Option<Venv>)> {
    let wheel = build(workspace, output, true)?;
    let usual = prepare_for_tests(workspace, output, None, "venv-test", &wheel)?;
    let other = venv::other_python(&usual).map(|python| {
        prepare_for_tests(workspace, output, Some(&python), "venv-test-other", &wheel)
    });
    Ok((usual, other.transpose()?))
}

fn prepare_for_tests(
    workspace: &Workspace,
    output: &mut Output,
    interpreter: Option<&Path>,
    name: &str,
    wheel: &Path,
) -> Result<Venv> {
    let venv = install_wheel(workspace, output, interpreter, name, wheel)?;
    venv.install(output, &["pytest"])?;
    if venv.install(output, &["pillow"]).is_err() {
        output.say("pillow could not be installed: tests that compare with it skip themselves");
    }
    Ok(venv)
}

/// Libraries that the examples, and tests marked `frameworks`, work with. What cannot be installed is
/// what those skip.
const FRAMEWORKS: [&str; 4] = ["pillow", "jax", "pyarrow", "matplotlib"];

/// From the usual index it brings 5 GB along, nearly all of them for GPUs.
const TORCH: [&str; 2] = ["torch", "torchdata"];

/// As `install_for_tests`, with other libraries, into `target/venv-frameworks`.
pub(crate) fn install_with_frameworks(
    workspace: &Workspace,
    output: &mut Output,
    with_torch: bool,
) -> Result<Venv> {
    let venv = install(workspace, output, "venv-frameworks", true)?;
    venv.install(output, &["pytest"])?;
    let torch = if with_torch { &TORCH[..] } else { &[] };
    for name in FRAMEWORKS.iter().chain(torch) {
        if venv.install(output, &[name]).is_err() {
            output.say(&format!("{name} could not be installed: what needs it skips itself"));
        }
    }
    Ok(venv)
}

/// Builds the wheel, without optimisation where `dev`, and installs it into an environment of that name
/// below target/.
pub(crate) fn install(
    workspace: &Workspace,
    output: &mut Output,
    name: &str,
    dev: bool,
) -> Result<Venv> {
    let wheel = build(workspace, output, dev)?;
    install_wheel(workspace, output, None, name, &wheel)
}

fn install_wheel(
    workspace: &Workspace,
    output: &mut Output,
    interpreter: Option<&Path>,
    name: &str,
    wheel: &Path,
) -> Result<Venv> {
    let venv = Venv::prepare_with(workspace, output, interpreter, name, &["numpy"])?;
    output.say("installing the wheel");
    let options = ["--force-reinstall", "--no-deps"].map(AsRef::as_ref);
    venv.install(output, &[&options[..], &[wheel.as_os_str()]].concat())?;
    Ok(venv)
}
