//! `cargo xtask wheel`: builds the Python package.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::tools::{
    EXAMPLES, Output, SELECTION, Workspace, cargo, command, copy_tree, install_packages,
    pyo3_config, require_programs,
};
use crate::venv::{self, Venv};
use crate::{bundle, ffmpeg};

/// Build the Python wheel (abi3: one wheel for Python 3.10 and newer).
///
/// Installs maturin into the virtual environment target/venv. Writes the wheel to target/wheels and
/// prints its path, size and tag. On Linux, the wheel contains an FFmpeg library under the LGPL with
/// its licence, the reference to its source and its configuration; `cargo xtask ffmpeg` builds it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask wheel
  cargo xtask wheel --dev             faster to build, slower to run
  cargo xtask wheel --no-ffmpeg       without video formats; all code under MIT or similar licences
  cargo xtask wheel --free-threaded   for python3.14t, which cannot load abi3 wheels
  pip install target/wheels/*.whl")]
pub(crate) struct WheelArguments {
    /// Build with the dev profile instead of the release profile. The wheel links to the system's
    /// FFmpeg if its headers are installed, and contains no FFmpeg
    #[arg(long)]
    dev: bool,
    /// Build without FFmpeg, for distributors that may not ship LGPL code. Videos are then errors of
    /// the kind `unsupported`
    #[arg(long)]
    no_ffmpeg: bool,
    /// Build for a free-threaded Python, in target/wheels-free-threaded. The interpreter is
    /// $SPDL_FREE_THREADED_PYTHON, or python3.14t or newer on the PATH
    #[arg(long)]
    free_threaded: bool,
}

/// Size limits of a release wheel without and with the FFmpeg library, in bytes.
const MOST_BYTES: [u64; 2] = [15_000_000, 20_000_000];

/// The FFmpeg libraries that the native module links to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ffmpeg {
    Absent,
    /// The system's libraries, found by pkg-config.
    System,
    /// The library of `cargo xtask ffmpeg`, which the wheel contains.
    Bundled,
}

impl Ffmpeg {
    /// The bundled library for a release on Linux. For a dev wheel, the system's libraries if their
    /// headers are installed, because building the bundled library takes minutes.
    fn usual(dev: bool) -> Self {
        match (dev, cfg!(target_os = "linux")) {
            (false, true) => Ffmpeg::Bundled,
            (true, _) if ffmpeg::system_has_ffmpeg() => Ffmpeg::System,
            _ => Ffmpeg::Absent,
        }
    }
}

/// Oldest free-threaded Python that PyO3 supports.
const OLDEST_FREE_THREADED: (u32, u32) = (3, 14);

/// Environment variable with the path of a free-threaded Python.
const FREE_THREADED_PYTHON: &str = "SPDL_FREE_THREADED_PYTHON";

pub(crate) fn run(workspace: &Workspace, arguments: &WheelArguments) -> Result<()> {
    let output = &mut Output::Terminal;
    let dev = arguments.dev;
    let ffmpeg = if arguments.no_ffmpeg { Ffmpeg::Absent } else { Ffmpeg::usual(dev) };
    let python = arguments.free_threaded.then(free_threaded_python).transpose()?;
    let wheel = build_with(workspace, output, dev, python.as_deref(), ffmpeg)?;
    println!("{}", wheel.display());
    let bytes = fs::metadata(&wheel).with_context(|| wheel.display().to_string())?.len();
    let platform = check(&wheel, if dev { 0 } else { bytes }, ffmpeg)?;
    println!("{:.1} MB, {platform}", bytes as f64 / 1e6);
    Ok(())
}

/// Builds the wheel with the usual FFmpeg and returns its path.
fn build(workspace: &Workspace, output: &mut Output, dev: bool) -> Result<PathBuf> {
    build_with(workspace, output, dev, None, Ffmpeg::usual(dev))
}

/// Profile, interpreter and FFmpeg of a wheel.
type WheelVariant = (bool, Option<PathBuf>, Ffmpeg);

/// Wheels that this process has built.
static BUILT: Mutex<Vec<(WheelVariant, PathBuf)>> = Mutex::new(Vec::new());

/// Builds the wheel for one interpreter, or an abi3 wheel. A process builds each wheel only once.
pub(crate) fn build_with(
    workspace: &Workspace,
    output: &mut Output,
    dev: bool,
    python: Option<&Path>,
    ffmpeg: Ffmpeg,
) -> Result<PathBuf> {
    let Ok(mut built) = BUILT.lock() else { bail!("an earlier build of the wheel panicked") };
    let settings = (dev, python.map(Path::to_owned), ffmpeg);
    let same = |(of, path): &&(WheelVariant, PathBuf)| *of == settings && path.is_file();
    if let Some((_, path)) = built.iter().find(same) {
        return Ok(path.clone());
    }
    let path = build_anew(workspace, output, dev, python, ffmpeg)?;
    built.push((settings, path.clone()));
    Ok(path)
}

/// Packages that build wheels.
const BUILD_REQUIREMENTS: [&str; 3] = ["maturin>=1.16,<1.17", "wheel>=0.45,<1", "zopfli>=0.4,<0.5"];

/// The wheel of the tests that this process has packed.
static PACKED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Packs the wheel of the tests with the dev profile, and returns its path. A process packs it only once.
///
/// The crates of its module have the same features as in the Rust tests, so that each crate is compiled once for both.
fn pack_for_tests(workspace: &Workspace, output: &mut Output) -> Result<PathBuf> {
    let Ok(mut packed) = PACKED.lock() else { bail!("an earlier build of the wheel panicked") };
    if let Some(path) = packed.as_ref().filter(|path| path.is_file()) {
        return Ok(path.clone());
    }
    let mut build = cargo();
    // An example needs the features of the development dependencies, as the tests do.
    build.args(["build", "--lib", "--example", EXAMPLES[0]]).args(SELECTION);
    output.run(build.current_dir(&workspace.root))?;
    let venv = Venv::prepare(workspace, output, "venv", &BUILD_REQUIREMENTS)?;
    let folder = workspace.target.join("wheels-tests");
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let (root, content) = (workspace.root.join("spdl-python"), folder.join("content"));
    let package = content.join("spdl_rs");
    copy_tree(&root.join("python/spdl_rs"), &package, &["py", "pyi", "typed"])?;
    let module = workspace.target.join("debug/lib_spdl_rs.so");
    fs::copy(&module, package.join("_spdl_rs.abi3.so"))
        .with_context(|| format!("cannot copy {}", module.display()))?;
    let mut metadata = command(venv.program("maturin"));
    metadata.args(["pep517", "write-dist-info", "--compatibility", "linux", "--interpreter"]);
    metadata.arg(venv.python()).arg("--metadata-directory").arg(&content);
    output.run(metadata.env("PYO3_CONFIG_FILE", pyo3_config()).current_dir(root))?;
    let mut pack = command(venv.python());
    pack.args(["-m", "wheel", "pack", "--dest-dir"]).args([&folder, &content]);
    output.run(&mut pack)?;
    Ok(packed.insert(only_wheel(&folder)?).clone())
}

fn build_anew(
    workspace: &Workspace,
    output: &mut Output,
    dev: bool,
    python: Option<&Path>,
    ffmpeg: Ffmpeg,
) -> Result<PathBuf> {
    let venv = Venv::prepare(workspace, output, "venv", &BUILD_REQUIREMENTS)?;
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
    if python.is_none() {
        maturin.env("PYO3_CONFIG_FILE", pyo3_config());
    }
    if !dev {
        maturin.arg("--release");
        // The package has the command too, which seldom runs: small rather than fast. Not in the profile, because
        // rustc optimises all crates of a program like its last crate, which would be this one.
        maturin.args(["--config", "profile.release.package.spdl-cli.opt-level='s'"]);
    }
    let bundled = match ffmpeg {
        Ffmpeg::Bundled => {
            require_programs(output, "the feature `ffmpeg`", &["clang", "pkg-config"])?;
            Some(ffmpeg::build(workspace, output)?)
        }
        Ffmpeg::Absent | Ffmpeg::System => None,
    };
    if ffmpeg != Ffmpeg::Absent {
        // maturin would copy the libraries into the wheel under other names.
        maturin.args(["--features", "ffmpeg", "--auditwheel", "skip"]);
    }
    if let Some(bundled) = &bundled {
        maturin.env("PKG_CONFIG_LIBDIR", bundled.join("lib/pkgconfig"));
        maturin.env_remove("PKG_CONFIG_PATH").env_remove("FFMPEG_DIR");
        maturin.args(["--", "-C", &bundle::link_argument()]);
    }
    output.run(&mut maturin)?;
    let wheel = only_wheel(&folder)?;
    match bundled {
        Some(bundled) => bundle::add_ffmpeg(workspace, output, &venv, &wheel, &bundled),
        None => Ok(wheel),
    }
}

/// The path of the wheel in a folder.
fn only_wheel(folder: &Path) -> Result<PathBuf> {
    let mut wheels: Vec<PathBuf> = fs::read_dir(folder)
        .with_context(|| format!("maturin made no {}", folder.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .collect();
    match (wheels.pop(), wheels.is_empty()) {
        (Some(wheel), true) => Ok(wheel),
        _ => bail!("expected exactly one wheel in {}", folder.display()),
    }
}

/// Checks the name and the size of a wheel; returns its platform tag.
fn check(wheel: &Path, bytes: u64, ffmpeg: Ffmpeg) -> Result<String> {
    let most_bytes = MOST_BYTES[usize::from(ffmpeg == Ffmpeg::Bundled)];
    let name = wheel.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let platform = name.rsplit('-').next().unwrap_or_default().to_owned();
    ensure!(
        bytes <= most_bytes,
        "{name} has {bytes} bytes, more than {most_bytes}; check for new dependencies"
    );
    ensure!(
        ffmpeg == Ffmpeg::System || !platform.starts_with("linux"),
        "{name} is not a manylinux wheel: it links to libraries that other machines may not have; \
         run `maturin build --auditwheel check` to list them"
    );
    Ok(platform)
}

/// The path of a free-threaded Python that PyO3 supports.
///
/// # Errors
/// If no such interpreter is found.
pub(crate) fn free_threaded_python() -> Result<PathBuf> {
    let (major, oldest) = OLDEST_FREE_THREADED;
    if let Some(named) = env::var_os(FREE_THREADED_PYTHON) {
        ensure!(
            is_free_threaded(Path::new(&named)),
            "{FREE_THREADED_PYTHON} is {:?}, not a free-threaded Python {major}.{oldest} or newer",
            named.display().to_string()
        );
        return Ok(named.into());
    }
    let names = (oldest..oldest + 6).map(|minor| PathBuf::from(format!("python{major}.{minor}t")));
    names.into_iter().find(|program| is_free_threaded(program)).with_context(|| {
        format!(
            "no free-threaded Python {major}.{oldest} or newer found; put python{major}.{oldest}t on \
             the PATH or set {FREE_THREADED_PYTHON} (build it with `./configure --disable-gil`)"
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

/// Packs the wheel of the tests, and installs it and the test tools into `target/venv-test`.
pub(crate) fn install_for_tests(workspace: &Workspace, output: &mut Output) -> Result<Venv> {
    let wheel = pack_for_tests(workspace, output)?;
    prepare_for_tests(workspace, output, None, "venv-test", &wheel)
}

/// Like `install_for_tests`, for a wheel that maturin builds with the features of a release, and for another version
/// of Python if one is installed, into `target/venv-test-other`.
pub(crate) fn install_for_tests_by_maturin(
    workspace: &Workspace,
    output: &mut Output,
) -> Result<Venv> {
    let wheel = build(workspace, output, true)?;
    let usual = Venv::prepare(workspace, output, "venv", &BUILD_REQUIREMENTS)?;
    let python = venv::other_python(&usual);
    prepare_for_tests(workspace, output, python.as_deref(), "venv-test-other", &wheel)
}

/// Like `install_for_tests`, for a free-threaded Python, into `target/venv-test-free-threaded`.
pub(crate) fn install_for_tests_without_gil(
    workspace: &Workspace,
    output: &mut Output,
    python: &Path,
) -> Result<Venv> {
    let wheel = build_with(workspace, output, true, Some(python), Ffmpeg::usual(true))?;
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
    // If Pillow has no binary wheel for this platform, building it would need system libraries.
    if venv.install(output, &["--only-binary=:all:", "pillow"]).is_err() {
        output.say("cannot install pillow: tests that compare with it are skipped");
    }
    Ok(venv)
}

/// Libraries that the examples and the tests marked `frameworks` need.
const FRAMEWORKS: [&str; 11] = [
    "pillow",
    "jax",
    "pyarrow",
    "polars",
    "duckdb",
    "matplotlib",
    "hydra-core",
    "av",
    "opencv-python-headless",
    "datasets",
    "webdataset",
];

/// With the default index, these packages download 5 GB, mostly libraries for GPUs.
const TORCH: [&str; 6] =
    ["torch", "torchdata", "torchvision", "pycocotools", "accelerate", "lightning"];

/// Like `install_for_tests`, with `FRAMEWORKS` and optionally PyTorch, into
/// `target/venv-frameworks`.
///
/// Tests of a library that cannot be installed are skipped.
pub(crate) fn install_with_frameworks(
    workspace: &Workspace,
    output: &mut Output,
    with_torch: bool,
) -> Result<Venv> {
    let wheel = pack_for_tests(workspace, output)?;
    let venv = install_wheel(workspace, output, None, "venv-frameworks", &wheel)?;
    venv.install(output, &["pytest"])?;
    let torch = if with_torch { &TORCH[..] } else { &[] };
    for name in FRAMEWORKS.iter().chain(torch) {
        if venv.install(output, &[name]).is_err() {
            output.say(&format!("cannot install {name}: tests that need it are skipped"));
        }
    }
    Ok(venv)
}

/// The interpreter that Debian's Python packages are installed for.
const DEBIAN_PYTHON: &str = "/usr/bin/python3";

/// Installs Debian's PyTorch; then installs the wheel and pytest into `target/venv-torch`.
///
/// The environment uses Debian's NumPy, because Debian's PyTorch is compiled for that version.
///
/// # Errors
/// If Debian's PyTorch is not installed and cannot be installed.
pub(crate) fn install_with_debian_torch(
    workspace: &Workspace,
    output: &mut Output,
) -> Result<Venv> {
    let python = Path::new(DEBIAN_PYTHON);
    ensure!(python.is_file(), "there is no {DEBIAN_PYTHON}");
    let imports_torch =
        || command(python).args(["-c", "import torch"]).status().is_ok_and(|it| it.success());
    if !imports_torch() {
        let why = "tests that compare with PyTorch need Debian's python3-torch (150 MB)";
        install_packages(output, why, &["python3-torch", "python3-venv"])?;
        ensure!(imports_torch(), "python3-torch is installed, but `import torch` fails");
    }
    let wheel = pack_for_tests(workspace, output)?;
    let venv = Venv::prepare_on_system_packages(workspace, output, python, "venv-torch")?;
    install_into(output, &venv, &wheel)?;
    venv.install(output, &["pytest"])?;
    Ok(venv)
}

/// Builds the wheel and installs it into the environment `target/NAME`.
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
    install_into(output, &venv, wheel)?;
    Ok(venv)
}

fn install_into(output: &mut Output, venv: &Venv, wheel: &Path) -> Result<()> {
    output.say("installing the wheel");
    let options = ["--force-reinstall", "--no-deps"].map(AsRef::as_ref);
    venv.install(output, &[&options[..], &[wheel.as_os_str()]].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_wheel_is_small_and_manylinux() {
        let check = |name: &str, bytes| {
            check(Path::new(name), bytes, Ffmpeg::Absent).map_err(|error| error.to_string())
        };
        let manylinux = "target/wheels/spdl_rs-0.1.0-cp310-abi3-manylinux_2_34_x86_64.whl";
        assert_eq!(check(manylinux, 8_000_000).as_deref(), Ok("manylinux_2_34_x86_64"));
        let free = "spdl_rs-0.1.0-cp314-cp314t-macosx_11_0_arm64.whl";
        assert_eq!(check(free, 15_000_000).as_deref(), Ok("macosx_11_0_arm64"));
        let error = check(manylinux, 15_000_001).unwrap_err();
        assert!(error.contains("15000001 bytes"), "{error}");
        let error = check("spdl_rs-0.1.0-cp310-abi3-linux_x86_64.whl", 8_000_000).unwrap_err();
        assert!(error.contains("not a manylinux wheel"), "{error}");
    }

    #[test]
    fn a_wheel_with_ffmpeg_may_be_larger() {
        let wheel = Path::new("spdl_rs-0.1.0-cp310-abi3-manylinux_2_34_x86_64.whl");
        assert!(check(wheel, 20_000_000, Ffmpeg::Bundled).is_ok());
        assert!(check(wheel, 20_000_001, Ffmpeg::Bundled).is_err());
        // A dev wheel that links to the system's FFmpeg is for this machine only.
        let local = Path::new("spdl_rs-0.1.0-cp310-abi3-linux_x86_64.whl");
        assert!(check(local, 0, Ffmpeg::System).is_ok());
    }

    #[test]
    fn programs_that_are_not_python_are_not_free_threaded() {
        for program in ["no-such-program", "false"] {
            assert!(!is_free_threaded(Path::new(program)), "{program}");
        }
    }
}
