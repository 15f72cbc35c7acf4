//! `cargo xtask wheel`: the Python package.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::tools::{Output, Workspace, command};
use crate::venv::{self, Venv};

/// Build the Python wheel (abi3: one wheel for every Python from 3.10 on).
///
/// Uses maturin in a virtual environment of its own, target/venv. The wheel is written to
/// target/wheels; its path, size and tag are printed.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask wheel
  cargo xtask wheel --dev             quicker to build, slower to run
  cargo xtask wheel --free-threaded   for python3.14t, say; abi3 wheels are not for those
  pip install target/wheels/*.whl")]
pub(crate) struct Arguments {
    /// Build without optimisation of our own crates
    #[arg(long)]
    dev: bool,
    /// Build for a Python without a GIL, to target/wheels-free-threaded: that which
    /// SPDL_FREE_THREADED_PYTHON names, or python3.14t and so on
    #[arg(long)]
    free_threaded: bool,
}

/// The most bytes that a wheel for users may have.
const MOST_BYTES: u64 = 15_000_000;

/// The oldest Python without a GIL that PyO3 builds for.
const OLDEST_FREE_THREADED: (u32, u32) = (3, 14);

/// Names the program of a Python without a GIL.
const FREE_THREADED_PYTHON: &str = "SPDL_FREE_THREADED_PYTHON";

pub(crate) fn run(workspace: &Workspace, arguments: &Arguments) -> Result<()> {
    let output = &mut Output::Terminal;
    let wheel = if arguments.free_threaded {
        let python = free_threaded_python()?;
        build_with(workspace, output, arguments.dev, Some(&python))?
    } else {
        build(workspace, output, arguments.dev)?
    };
    println!("{}", wheel.display());
    let bytes = fs::metadata(&wheel).with_context(|| wheel.display().to_string())?.len();
    let platform = check(&wheel, if arguments.dev { 0 } else { bytes })?;
    println!("{:.1} MB, {platform}", bytes as f64 / 1e6);
    Ok(())
}

/// Builds the wheel and returns its path.
pub(crate) fn build(workspace: &Workspace, output: &mut Output, dev: bool) -> Result<PathBuf> {
    build_with(workspace, output, dev, None)
}

/// Builds the wheel for one Python alone, or where there is none for all.
fn build_with(
    workspace: &Workspace,
    output: &mut Output,
    dev: bool,
    python: Option<&Path>,
) -> Result<PathBuf> {
    let venv = Venv::prepare(workspace, output, "venv", &["maturin>=1.16,<1.17"])?;
    let name = if python.is_some() { "wheels-free-threaded" } else { "wheels" };
    let folder = workspace.target.join(name);
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let mut maturin = command(venv.program("maturin"));
    maturin
        .args(["build", "--manifest-path", "spdl-python/Cargo.toml", "--out"])
        .arg(&folder)
        .arg("--interpreter")
        .arg(python.map_or_else(|| venv.python(), Path::to_owned))
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

/// Checks that a wheel is one for users, by its name and size, and returns the platform it is for.
fn check(wheel: &Path, bytes: u64) -> Result<String> {
    let name = wheel.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let platform = name.rsplit('-').next().unwrap_or_default().to_owned();
    ensure!(
        bytes <= MOST_BYTES,
        "{name} has {bytes} bytes, more than {MOST_BYTES}: what is new in it?"
    );
    ensure!(
        !platform.starts_with("linux"),
        "{name} is for this machine alone, and not manylinux: it needs libraries that other machines \
         may not have; `maturin build --auditwheel check` names them"
    );
    Ok(platform)
}

/// A Python without a GIL that PyO3 builds for.
///
/// # Errors
/// What to do where there is none.
pub(crate) fn free_threaded_python() -> Result<PathBuf> {
    let (major, oldest) = OLDEST_FREE_THREADED;
    if let Some(named) = env::var_os(FREE_THREADED_PYTHON) {
        ensure!(
            is_free_threaded(Path::new(&named)),
            "{FREE_THREADED_PYTHON} names {}, which is no free-threaded Python {major}.{oldest} or newer",
            named.display()
        );
        return Ok(named.into());
    }
    let names = (oldest..oldest + 6).map(|minor| PathBuf::from(format!("python{major}.{minor}t")));
    names.into_iter().find(|program| is_free_threaded(program)).with_context(|| {
        format!(
            "no free-threaded Python {major}.{oldest} or newer was found: put python{major}.{oldest}t \
             on the PATH, or name one by {FREE_THREADED_PYTHON}; from its source it is built with \
             `./configure --disable-gil`"
        )
    })
}

fn is_free_threaded(program: &Path) -> bool {
    let script = format!(
        "import sys, sysconfig\nfree = sysconfig.get_config_var('Py_GIL_DISABLED')\n\
         sys.exit(not free or sys.version_info < {OLDEST_FREE_THREADED:?})"
    );
    let status = command(program).args(["-c", &script]).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
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

/// The same for a Python without a GIL, into `target/venv-test-free-threaded`.
pub(crate) fn install_for_tests_without_gil(
    workspace: &Workspace,
    output: &mut Output,
    python: &Path,
) -> Result<Venv> {
    let wheel = build_with(workspace, output, true, Some(python))?;
    prepare_for_tests(workspace, output, Some(python), "venv-test-free-threaded", &wheel)
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
    // Where there is no wheel of it, building it would need libraries.
    if venv.install(output, &["--only-binary=:all:", "pillow"]).is_err() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wheel_for_users_is_small_and_for_many_machines() {
        let check =
            |name: &str, bytes| check(Path::new(name), bytes).map_err(|error| error.to_string());
        let manylinux = "target/wheels/spdl_rs-0.1.0-cp310-abi3-manylinux_2_34_x86_64.whl";
        assert_eq!(check(manylinux, 8_000_000).as_deref(), Ok("manylinux_2_34_x86_64"));
        let free = "spdl_rs-0.1.0-cp314-cp314t-macosx_11_0_arm64.whl";
        assert_eq!(check(free, 15_000_000).as_deref(), Ok("macosx_11_0_arm64"));
        let error = check(manylinux, 15_000_001).unwrap_err();
        assert!(error.contains("15000001 bytes"), "{error}");
        let error = check("spdl_rs-0.1.0-cp310-abi3-linux_x86_64.whl", 8_000_000).unwrap_err();
        assert!(error.contains("this machine alone"), "{error}");
    }

    #[test]
    fn what_is_no_python_without_a_gil_is_none() {
        for program in ["no-such-program", "false"] {
            assert!(!is_free_threaded(Path::new(program)), "{program}");
        }
    }
}
