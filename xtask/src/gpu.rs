//! `cargo xtask gpu`: tests and measurements on a CUDA device of this machine or of another
//! machine.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use crate::dataset::{self, Settings, Shape};
use crate::tools::{Output, Workspace, cargo, command, copy_tree};
use crate::venv::Venv;
use crate::wheel::{self, Ffmpeg};

/// Run the tests that need a CUDA device, and measure copies, decoders, kernels and training on it.
///
/// Without a device, the command prints `SKIPPED: no GPU` with the reason; with SPDL_REQUIRE_GPU=1
/// it fails instead. If there is a device, the command writes all programs and files into the
/// folder target/gpu and starts the program `run` of that folder. The total time is divided among
/// the tests and measurements. Each result is written immediately to results.jsonl in the folder
/// for results; a table of all results is shown at the end.
///
/// With --pack, the command only writes the programs and files to a folder, which can be copied to
/// another machine. That machine needs a CUDA driver, and PyTorch for comparisons, but neither
/// cargo nor a network.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask gpu
  cargo xtask gpu --only tests,g1,g2 --minutes 5
  cargo xtask gpu --pack gpu-pack        pack for a machine with a GPU; prints the command to run there

The measurements are described by: target/gpu/run --help")]
pub(crate) struct GpuArguments {
    /// Write the programs and files for another machine to this folder; run nothing
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["only", "minutes", "out", "python", "tiny"])]
    pack: Option<PathBuf>,
    /// Run only these, separated by commas: tests (all tests), g1 to g8 (measurements)
    #[arg(long, value_name = "NAMES")]
    only: Option<String>,
    /// Total time of the tests and measurements, in minutes [default: 9]
    #[arg(long, value_name = "N")]
    minutes: Option<f64>,
    /// Folder for the results [default: target/gpu/results]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Python interpreter with PyTorch, for comparisons [default: python3]
    #[arg(long, value_name = "PROGRAM")]
    python: Option<String>,
    /// Measure with the smallest sizes, to check that the programs work
    #[arg(long)]
    tiny: bool,
    /// Build without optimisation, to test this command
    #[arg(long)]
    dev: bool,
}

/// Size limit of a packed folder, in bytes.
const MOST_BYTES: u64 = 64 << 20;

/// NVIDIA's library that the pack includes, because machines with PyTorch rarely have it.
const NVJPEG: &str = "nvidia-nvjpeg>=13,<14";

/// The images to decode; their files have about 100 KB each.
const IMAGES: Settings = Settings { shape: Shape::Imagenet, images: 64, classes: 8, seed: 0 };

pub(crate) fn run(workspace: &Workspace, arguments: &GpuArguments) -> Result<ExitCode> {
    let output = &mut Output::Terminal;
    if let Some(folder) = &arguments.pack {
        pack(workspace, output, folder, arguments.dev)?;
        println!("Copy the folder to a machine with a GPU, and run there:");
        println!("  {}/run", folder.file_name().unwrap_or(folder.as_os_str()).display());
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(reason) = no_device(Path::new("/dev"), env::var_os("SPDL_CUDA_DRIVER")) {
        ensure!(env::var_os("SPDL_REQUIRE_GPU").is_none(), "a GPU is required: {reason}");
        println!("SKIPPED: no GPU: {reason}");
        return Ok(ExitCode::SUCCESS);
    }
    let folder = workspace.target.join("gpu");
    pack(workspace, output, &folder, arguments.dev)?;
    let status = command(folder.join("run")).args(words(arguments)).status();
    let succeeded = status.context("cannot run the packed program")?.success();
    Ok(if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the arguments for the packed program `run`.
fn words(arguments: &GpuArguments) -> Vec<OsString> {
    let GpuArguments { only, minutes, out, python, tiny, .. } = arguments;
    let options = [
        ("--only", only.clone().map(OsString::from)),
        ("--minutes", minutes.map(|minutes| minutes.to_string().into())),
        ("--out", out.clone().map(OsString::from)),
        ("--python", python.clone().map(OsString::from)),
    ];
    let given = options.into_iter().filter_map(|(name, value)| Some([name.into(), value?]));
    given.flatten().chain(tiny.then(|| "--tiny".into())).collect()
}

/// The reason why this machine has no CUDA device; `None` if only the driver can answer.
fn no_device(devices: &Path, driver: Option<OsString>) -> Option<String> {
    // Device files of the drivers for Linux and for WSL.
    let files = ["nvidiactl", "dxg"];
    let is_plain = cfg!(target_os = "linux")
        && driver.is_none()
        && !files.iter().any(|file| devices.join(file).exists());
    is_plain.then(|| "this machine has neither /dev/nvidiactl nor /dev/dxg".to_owned())
}

/// Writes the packed programs and files to `folder`.
fn pack(workspace: &Workspace, output: &mut Output, folder: &Path, dev: bool) -> Result<()> {
    make_empty(folder)?;
    let program = build(workspace, &["build", "--example", "gpu"], dev)?;
    copy_program(&program, &folder.join("run"))?;
    let tests = build(workspace, &["test", "--no-run", "--test", "gpu"], dev)?;
    copy_program(&tests, &folder.join("tests/gpu"))?;
    let sources = workspace.root.join("spdl-cuda/examples/gpu");
    copy_tree(&sources.join("python"), &folder.join("python"), &["py"])?;
    copy_tree(&sources.join("videos"), &folder.join("videos"), &["h264", "hevc", "ivf", "tsv"])?;
    install_packages(workspace, output, &folder.join("site"), dev)?;
    let photos = workspace.root.join("assets/photos");
    let (images, _) = dataset::find_or_make(&photos, &workspace.target.join("gpu-images"), IMAGES)?;
    copy_tree(&images, &folder.join("images"), &["jpg"])?;
    fs::write(folder.join("commit"), commit(workspace))?;
    check_size(report(folder)?)
}

fn check_size(bytes: u64) -> Result<()> {
    ensure!(
        bytes < MOST_BYTES,
        "the packed folder has {bytes} bytes, but the limit is {MOST_BYTES}; remove files or raise \
         the limit"
    );
    Ok(())
}

/// Prints the size of each part of a pack; returns the total size in bytes.
fn report(folder: &Path) -> Result<u64> {
    let mut total = 0;
    let mut entries: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let bytes = bytes_of(&entry.path())?;
        total += bytes;
        println!("{:<8} {:>6.1} MB", entry.file_name().display(), bytes as f64 / 1e6);
    }
    println!("{:<8} {:>6.1} MB in {}", "all", total as f64 / 1e6, folder.display());
    Ok(total)
}

fn bytes_of(path: &Path) -> Result<u64> {
    let about = fs::symlink_metadata(path).with_context(|| path.display().to_string())?;
    if !about.is_dir() {
        return Ok(about.len());
    }
    fs::read_dir(path)?.map(|entry| bytes_of(&entry?.path())).sum()
}

/// Creates the folder of a pack, and removes the parts of an earlier pack. Fails if the folder
/// exists and is neither empty nor a pack.
fn make_empty(folder: &Path) -> Result<()> {
    let shown = folder.display();
    if let Ok(mut entries) = fs::read_dir(folder) {
        let is_pack = folder.join("run").is_file() && folder.join("tests").is_dir();
        ensure!(
            is_pack || entries.next().is_none(),
            "{shown} exists and is not a pack of this command"
        );
        for part in ["tests", "python", "site", "images", "videos"] {
            let path = folder.join(part);
            if path.is_dir() {
                fs::remove_dir_all(&path).with_context(|| path.display().to_string())?;
            }
        }
    }
    fs::create_dir_all(folder.join("tests")).with_context(|| format!("cannot create {shown}"))
}

/// Builds a program of `spdl-cuda` and returns its path.
fn build(workspace: &Workspace, words: &[&str], dev: bool) -> Result<PathBuf> {
    let mut cargo = cargo();
    cargo
        .args(words)
        .args([
            "-p",
            "spdl-cuda",
            "--features",
            "images",
            "--message-format",
            "json-render-diagnostics",
        ])
        .current_dir(&workspace.root)
        .stderr(std::process::Stdio::inherit());
    if !dev {
        cargo.arg("--release");
    }
    println!("building: cargo {}", words.join(" "));
    let built = cargo.output().context("cannot run cargo")?;
    ensure!(built.status.success(), "cargo {} failed", words.join(" "));
    let text = String::from_utf8_lossy(&built.stdout);
    executable(&text).with_context(|| format!("cargo {} built no program", words.join(" ")))
}

/// The path of the program `gpu`, from cargo's JSON messages.
fn executable(messages: &str) -> Option<PathBuf> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let made = messages.filter(|message| message["target"]["name"] == "gpu");
    made.filter_map(|message| message["executable"].as_str().map(PathBuf::from)).next_back()
}

/// Copies a program, and removes its symbols and line tables if `strip` is installed. Panic
/// messages still contain file and line.
fn copy_program(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    let stripped = Command::new("strip").arg("--strip-all").arg(to).status();
    if !stripped.is_ok_and(|status| status.success()) {
        println!("{} is not stripped, because `strip` is not installed", to.display());
    }
    Ok(())
}

/// Installs the wheel and nvJPEG into a folder for `PYTHONPATH`.
fn install_packages(
    workspace: &Workspace,
    output: &mut Output,
    site: &Path,
    dev: bool,
) -> Result<()> {
    // The GPU machine may have no FFmpeg, or another version.
    let wheel = wheel::build_with(workspace, output, dev, None, Ffmpeg::Absent)?;
    let venv = Venv::prepare(workspace, output, "venv-gpu", &[])?;
    let options =
        ["--no-deps", "--no-compile", "--only-binary=:all:", "--target"].map(AsRef::as_ref);
    let install = |what: &std::ffi::OsStr, output: &mut Output| {
        venv.install(output, &[&options[..], &[site.as_os_str(), what]].concat())
    };
    install(wheel.as_os_str(), output)?;
    if install(NVJPEG.as_ref(), output).is_err() {
        output.say("cannot pack nvJPEG; it is measured only if the GPU machine has it");
    }
    ensure!(site.join("spdl_rs").is_dir(), "pip did not install spdl_rs into {}", site.display());
    Ok(())
}

/// The hash of the commit, and whether the working tree has uncommitted changes.
fn commit(workspace: &Workspace) -> String {
    let git = |words: &[&str]| {
        let output = command("git").args(words).current_dir(&workspace.root).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    match (git(&["rev-parse", "--short=12", "HEAD"]), git(&["status", "--porcelain"])) {
        (Some(commit), Some(changes)) if changes.is_empty() => commit,
        (Some(commit), _) => format!("{commit}, changed"),
        (None, _) => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_drivers_files_there_is_no_device_unless_a_driver_is_named() {
        let devices = tempfile::tempdir().unwrap();
        let reason = no_device(devices.path(), None).unwrap();
        assert!(reason.contains("/dev/nvidiactl"), "{reason}");
        assert_eq!(no_device(devices.path(), Some("stub.so".into())), None);
        fs::write(devices.path().join("nvidiactl"), "").unwrap();
        assert_eq!(no_device(devices.path(), None), None);
    }

    #[test]
    fn a_large_pack_is_an_error() {
        assert!(check_size(MOST_BYTES - 1).is_ok());
        let error = check_size(MOST_BYTES).unwrap_err().to_string();
        assert!(error.contains("67108864 bytes"), "{error}");
    }

    #[test]
    fn the_size_of_a_pack_is_that_of_all_its_files() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/c"), [0; 70]).unwrap();
        fs::write(folder.path().join("d"), [0; 7]).unwrap();
        assert_eq!(report(folder.path()).unwrap(), 77);
    }

    #[test]
    fn other_folders_are_kept_and_an_old_pack_is_replaced() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("pack");
        make_empty(&folder).unwrap();
        make_empty(&folder).unwrap_err();
        fs::write(folder.join("run"), "").unwrap();
        fs::create_dir_all(folder.join("images/old")).unwrap();
        fs::create_dir_all(folder.join("results")).unwrap();
        make_empty(&folder).unwrap();
        assert!(!folder.join("images").exists() && folder.join("results").exists());
        let theirs = parent.path().join("theirs");
        fs::create_dir_all(theirs.join("images")).unwrap();
        let error = make_empty(&theirs).unwrap_err().to_string();
        assert!(error.contains("is not a pack of this command"), "{error}");
        assert!(theirs.join("images").exists());
    }

    #[test]
    fn the_program_is_the_one_that_cargo_names() {
        let messages = r#"
{"reason":"compiler-artifact","target":{"name":"spdl_cuda"},"executable":null}
{"reason":"compiler-artifact","target":{"name":"gpu"},"executable":"/t/deps/gpu-1"}
{"reason":"build-finished","success":true}"#;
        assert_eq!(executable(messages), Some("/t/deps/gpu-1".into()));
        assert_eq!(executable("{}\nnot JSON"), None);
    }

    #[test]
    fn only_given_options_are_passed_on() {
        let arguments = GpuArguments {
            pack: None,
            only: Some("g1,g2".to_owned()),
            minutes: Some(2.5),
            out: None,
            python: None,
            tiny: true,
            dev: false,
        };
        assert_eq!(words(&arguments), ["--only", "g1,g2", "--minutes", "2.5", "--tiny"]);
    }

    #[test]
    fn only_files_of_the_endings_are_copied_with_their_folders() {
        let parent = tempfile::tempdir().unwrap();
        let (from, to) = (parent.path().join("from"), parent.path().join("to"));
        for file in ["a.py", "b/c.ivf", "b/d.txt", "__pycache__/e.py"] {
            fs::create_dir_all(from.join(file).parent().unwrap()).unwrap();
            fs::write(from.join(file), "").unwrap();
        }
        copy_tree(&from, &to, &["py", "ivf"]).unwrap();
        assert!(to.join("a.py").is_file() && to.join("b/c.ivf").is_file());
        assert!(!to.join("b/d.txt").exists() && !to.join("__pycache__").exists());
    }
}
