//! `cargo xtask fuzz`: runs libFuzzer on all parsers of untrusted files.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::ffmpeg;
use crate::steps::Counts;
use crate::tools::{Output, Workspace, cargo_tool, command, require_programs};

/// Run libFuzzer on decoders and readers.
///
/// The command installs cargo-fuzz into target/tools and builds each fuzz target. Seeds are small
/// files of the repository, and of ../shared/corpora if present; the corpus is kept in
/// target/fuzz/corpus. The stable toolchain suffices: unstable compiler flags are enabled for this
/// build only. libFuzzer needs a C++ compiler.
///
/// Inputs that fail are written to target/fuzz/artifacts and printed with the command that
/// reproduces the failure; then this command fails. `cargo xtask test` runs the same targets as
/// ordinary tests.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask fuzz
  cargo xtask fuzz --seconds 3600 --jobs 8 --all-formats    run each target for an hour
  cargo xtask fuzz --target png --sanitizer none    faster, but finds fewer errors in unsafe code
  cargo xtask fuzz --target png --input FILE        run only this input")]
pub(crate) struct FuzzArguments {
    /// How long each target runs, in seconds
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// Run only this target; may be repeated
    #[arg(long, value_name = "NAME")]
    target: Vec<String>,
    /// Number of concurrent targets [default: number of CPUs available to the process]
    #[arg(long, value_name = "J")]
    jobs: Option<NonZeroUsize>,
    /// Detector of memory errors
    #[arg(long, value_enum, default_value_t = Sanitizer::Address)]
    sanitizer: Sanitizer,
    /// Run the target on this file only; requires exactly one --target
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Also run third-party decoders: JPEG XL, OpenEXR and others
    #[arg(long)]
    all_formats: bool,
    /// List the targets, and run none
    #[arg(long)]
    list: bool,
}

/// Memory checker of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sanitizer {
    /// AddressSanitizer: detects out-of-bounds accesses and use after free
    Address,
    /// No memory checker
    None,
}

impl Sanitizer {
    fn name(self) -> &'static str {
        match self {
            Sanitizer::Address => "address",
            Sanitizer::None => "none",
        }
    }
}

const CARGO_FUZZ: (&str, &str) = ("cargo-fuzz", "0.13.2");

/// The packages that have fuzz targets in their folder `fuzz`. The names of targets are unique
/// across packages.
pub(crate) const PACKAGES: [&str; 3] = ["spdl-media", "spdl-io", "spdl-cuda"];

/// The features of `spdl-io` that parse untrusted files.
const OF_FILES: &str = "spdl-io/parquet,spdl-io/zip";

/// Features that need additional build tools, and features without parsers.
const LEFT_OUT_FEATURES: [&str; 3] = ["default", "testing", "turbojpeg"];

/// Features of third-party parsers, which take minutes to build, and features of encoders.
const OF_OTHERS: [&str; 6] = ["encode", "exr", "jxl", "more-formats", "webp-lossy", "zune-jpeg"];

/// Limits of one input.
const TIMEOUT_S: u32 = 10;
const MEMORY_MIB: u32 = 1024;

/// Maximum size of a seed.
const LARGEST_SEED: u64 = 64 << 10;

pub(crate) fn run(workspace: &Workspace, arguments: &FuzzArguments) -> Result<ExitCode> {
    let all = targets(workspace)?;
    if arguments.list {
        for name in all {
            println!("{name}");
        }
        return Ok(ExitCode::SUCCESS);
    }
    for name in &arguments.target {
        ensure!(all.contains(name), "unknown target {name:?}; the targets are: {}", all.join(", "));
    }
    let chosen = if arguments.target.is_empty() { all } else { arguments.target.clone() };
    let output = &mut Output::Terminal;
    require_programs(output, "libFuzzer", &["g++"])?;
    ffmpeg::require_system_ffmpeg(output)?;
    let built = build(workspace, output, arguments.sanitizer, arguments.all_formats)?;
    if let Some(input) = &arguments.input {
        let [target] = &chosen[..] else { bail!("--input requires exactly one --target") };
        let mut again = command(built.join(target));
        again.args(limits()).arg(input);
        output.run(&mut again)?;
        return Ok(ExitCode::SUCCESS);
    }
    let jobs = arguments.jobs.or_else(|| thread::available_parallelism().ok());
    let jobs = jobs.map_or(1, usize::from);
    let runs = fuzz_all(workspace, &built, &chosen, arguments.seconds, jobs, true)?;
    println!("sanitizer: {}", arguments.sanitizer.name());
    print!("{}", table(&runs));
    let failed = runs.iter().any(|run| run.finding.is_some());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// How long each target runs in `cargo xtask soak`.
const SOAK_SECONDS: u64 = 60;

/// The step of `cargo xtask soak`: runs all targets, with all formats; the number of concurrent
/// targets is twice the number of CPUs.
///
/// Each target counts as a test. The test fails if an input fails or if no input was run.
pub(crate) fn soak(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    if let Err(reason) = require_programs(output, "libFuzzer", &["g++"]) {
        return Ok(Counts::one_skipped(&format!("{reason:#}")));
    }
    ffmpeg::require_system_ffmpeg(output)?;
    let targets = targets(workspace)?;
    ensure!(!targets.is_empty(), "there are no fuzz targets");
    let built = build(workspace, output, Sanitizer::Address, true)?;
    let jobs = 2 * thread::available_parallelism().map_or(1, usize::from);
    let runs = fuzz_all(workspace, &built, &targets, SOAK_SECONDS, jobs, false)?;
    output.say(&table(&runs));
    let mut counts = counted(&runs);
    counts.notes.extend(table(&runs).lines().map(str::to_owned));
    Ok(counts)
}

fn counted(runs: &[FuzzRun]) -> Counts {
    let mut counts = Counts::default();
    for run in runs {
        let has_run = run.executions.parse::<u64>().is_ok_and(|executions| executions > 0);
        match &run.finding {
            None if has_run => counts.add(Counts::one_passed()),
            _ => counts.add(Counts::one_failed_test(&run.target)),
        }
    }
    counts
}

/// The names of the targets, from the names of their files.
fn targets(workspace: &Workspace) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for package in PACKAGES {
        let folder = workspace.root.join(package).join("fuzz/fuzz_targets");
        for entry in
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?
        {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "rs") {
                names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
            }
        }
    }
    names.sort();
    Ok(names)
}

/// Builds all targets and returns the folder of the programs.
fn build(
    workspace: &Workspace,
    output: &mut Output,
    sanitizer: Sanitizer,
    all_formats: bool,
) -> Result<PathBuf> {
    let cargo_fuzz = cargo_tool(workspace, output, CARGO_FUZZ.0, CARGO_FUZZ.1)?;
    let target = workspace.target.join("fuzz").join(sanitizer.name());
    fs::create_dir_all(&target).with_context(|| format!("cannot create {}", target.display()))?;
    for package in PACKAGES {
        let folder = workspace.root.join(package).join("fuzz");
        lock_versions(workspace, package, &folder, &target)?;
        let features = match package {
            "spdl-media" => features(workspace, all_formats),
            "spdl-io" => OF_FILES.to_owned(),
            _ => String::new(),
        };
        output.run(
            command(&cargo_fuzz)
                .args(["build", "--fuzz-dir"])
                .arg(&folder)
                .arg("--target-dir")
                .arg(&target)
                .args(["--sanitizer", sanitizer.name()])
                .args(["--features", &features])
                // Coverage instrumentation and sanitizers are unstable compiler flags.
                .env("RUSTC_BOOTSTRAP", "1")
                .env_remove("CARGO_TARGET_DIR")
                .env_remove("RUSTFLAGS")
                .current_dir(&folder),
        )?;
    }
    // cargo-fuzz builds in release mode, in a folder with the name of the platform.
    for entry in fs::read_dir(&target)? {
        let programs = entry?.path().join("release");
        if programs.join("any").is_file() && programs.parent() != Some(&target) {
            return Ok(programs);
        }
    }
    bail!("cargo-fuzz built no programs in {}", target.display())
}

/// Copies the workspace's lock file to a package outside of the workspace, if the lock file has
/// changed.
///
/// Cargo then adds to the copy the dependencies that only that package has.
pub(crate) fn lock_versions(
    workspace: &Workspace,
    package: &str,
    folder: &Path,
    target: &Path,
) -> Result<()> {
    let lock = fs::read(workspace.root.join("Cargo.lock")).context("cannot read Cargo.lock")?;
    let stamp = target.join(format!("{package}.lock"));
    let own = folder.join("Cargo.lock");
    if !own.is_file() || fs::read(&stamp).ok().as_ref() != Some(&lock) {
        fs::write(&own, &lock).with_context(|| format!("cannot write {}", own.display()))?;
        fs::write(&stamp, &lock).with_context(|| format!("cannot write {}", stamp.display()))?;
    }
    Ok(())
}

/// The features of `spdl-media` for the fuzz targets, in the syntax of `--features`.
fn features(workspace: &Workspace, all_formats: bool) -> String {
    let media = workspace.packages.iter().find(|package| package["name"] == "spdl-media");
    let names = media.and_then(|package| package["features"].as_object());
    let names = names.into_iter().flat_map(|features| features.keys());
    let chosen = names.map(String::as_str).filter(|name| {
        !LEFT_OUT_FEATURES.contains(name) && (all_formats || !OF_OTHERS.contains(name))
    });
    let chosen = chosen.map(|name| format!("spdl-media/{name}"));
    // The targets of FFmpeg have a feature of the fuzz package.
    std::iter::once("ffmpeg".to_owned()).chain(chosen).collect::<Vec<_>>().join(",")
}

/// Result of one target.
struct FuzzRun {
    target: String,
    executions: String,
    per_second: String,
    coverage: String,
    /// The failing input and error, with the command that reproduces the failure.
    finding: Option<String>,
}

fn limits() -> [String; 3] {
    [
        format!("-timeout={TIMEOUT_S}"),
        format!("-rss_limit_mb={MEMORY_MIB}"),
        format!("-malloc_limit_mb={MEMORY_MIB}"),
    ]
}

/// Runs the targets, `jobs` at a time, and returns their results in order.
fn fuzz_all(
    workspace: &Workspace,
    built: &Path,
    targets: &[String],
    seconds: u64,
    jobs: usize,
    shows_progress: bool,
) -> Result<Vec<FuzzRun>> {
    let folder = workspace.target.join("fuzz");
    let seeds = folder.join("seeds");
    make_seeds(workspace, &seeds)?;
    let progress = ProgressBar::new(targets.len() as u64).with_style(ProgressStyle::with_template(
        "{bar:40} {pos}/{len} fuzz targets {msg} {elapsed}",
    )?);
    match shows_progress {
        true => progress.enable_steady_tick(Duration::from_secs(1)),
        false => progress.set_draw_target(ProgressDrawTarget::hidden()),
    }
    let mut waiting: VecDeque<&String> = targets.iter().collect();
    let mut running: Vec<Fuzzer> = Vec::new();
    let mut done = BTreeMap::new();
    while !waiting.is_empty() || !running.is_empty() {
        while running.len() < jobs
            && let Some(target) = waiting.pop_front()
        {
            running.push(Fuzzer::start(built, &folder, &seeds, target, seconds)?);
        }
        let mut still = Vec::new();
        for mut fuzzer in running {
            match fuzzer.child.try_wait()? {
                None => still.push(fuzzer),
                Some(status) => {
                    let run = fuzzer.finish(status.success())?;
                    done.insert(run.target.clone(), run);
                    progress.inc(1);
                }
            }
        }
        running = still;
        let names: Vec<_> = running.iter().map(|fuzzer| fuzzer.target.as_str()).collect();
        progress.set_message(format!("({})", names.join(", ")));
        thread::sleep(Duration::from_millis(100));
    }
    progress.finish_and_clear();
    Ok(targets.iter().filter_map(|target| done.remove(target)).collect())
}

/// A running target. Dropping it kills the process.
struct Fuzzer {
    target: String,
    child: Child,
    log: PathBuf,
    artifacts: PathBuf,
}

impl Fuzzer {
    fn start(
        built: &Path,
        folder: &Path,
        seeds: &Path,
        target: &str,
        seconds: u64,
    ) -> Result<Self> {
        let [corpus, artifacts] =
            ["corpus", "artifacts"].map(|name| folder.join(name).join(target));
        for folder in [&corpus, &artifacts] {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
        }
        let log = folder.join(format!("{target}.log"));
        let file =
            File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let program = built.join(target);
        let child = command(&program)
            .args(limits())
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={LARGEST_SEED}"))
            .arg(format!("-artifact_prefix={}/", artifacts.display()))
            .arg("-print_final_stats=1")
            .arg(corpus)
            .args(seeds_of(target, seeds))
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot run {}", program.display()))?;
        Ok(Fuzzer { target: target.to_owned(), child, log, artifacts })
    }

    fn finish(&self, succeeded: bool) -> Result<FuzzRun> {
        let text =
            fs::read(&self.log).with_context(|| format!("cannot read {}", self.log.display()))?;
        let text = String::from_utf8_lossy(&text);
        Ok(FuzzRun {
            target: self.target.clone(),
            executions: word_after(&text, "stat::number_of_executed_units:"),
            per_second: word_after(&text, "stat::average_exec_per_sec:"),
            coverage: word_after(&text, " cov:"),
            finding: (!succeeded).then(|| self.finding(&text)),
        })
    }

    fn finding(&self, text: &str) -> String {
        let panic = text.lines().skip_while(|line| !line.contains(" panicked at "));
        let mut what = panic.take(3).collect::<Vec<_>>().join("\n  ");
        if what.is_empty() {
            let error = text.lines().find(|line| line.contains("ERROR: "));
            what = error.or(text.lines().last()).unwrap_or_default().to_owned();
        }
        let written =
            text.lines().rev().find_map(|line| line.split("Test unit written to ").nth(1));
        let file = written.map_or_else(|| self.artifacts.display().to_string(), str::to_owned);
        format!(
            "{what}\n  again: cargo xtask fuzz --target {} --input {file}\n  log: {}",
            self.target,
            self.log.display()
        )
    }
}

impl Drop for Fuzzer {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The word after the last occurrence of `label`.
fn word_after(text: &str, label: &str) -> String {
    let after = text.rsplit_once(label).map_or("", |(_, after)| after);
    after.split_whitespace().next().unwrap_or("?").to_owned()
}

/// Copies seeds into one folder per format: test files of the repository, and files of the corpora.
fn make_seeds(workspace: &Workspace, folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    for format in SIGNATURES.iter().map(|(format, _)| *format).chain([OTHER]) {
        let folder = folder.join(format);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
    }
    let mut number = 0_u32;
    let mut copy = |path: &Path, format: Option<&str>| -> Result<()> {
        let Ok(metadata) = path.metadata() else { return Ok(()) };
        if metadata.is_file() && metadata.len() <= LARGEST_SEED {
            let bytes =
                fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            number += 1;
            let format = format.or_else(|| format_of(&bytes)).unwrap_or(OTHER);
            fs::write(folder.join(format).join(number.to_string()), bytes)?;
        }
        Ok(())
    };
    let own = ["audio", "data", "formats/data", "formats/variants", "mp3", "packets", "video"];
    for own in own {
        let own = workspace.root.join("spdl-media/tests").join(own);
        for entry in fs::read_dir(&own).with_context(|| format!("cannot list {}", own.display()))? {
            let path = entry?.path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            if !extension.is_some_and(|extension| EXPECTED.contains(&extension)) {
                copy(&path, None)?;
            }
        }
    }
    let videos = workspace.root.join("spdl-cuda/tests/data/video");
    for entry in
        fs::read_dir(&videos).with_context(|| format!("cannot list {}", videos.display()))?
    {
        copy(&entry?.path(), None)?;
    }
    // The format of these files is known only from their folder, not from their contents.
    for (format, own) in [
        ("litdata", "litdata/plain"),
        ("litdata", "litdata/batch"),
        ("lmdb", "lmdb/files"),
        ("lmdb", "lmdb/pairs"),
        ("mds", "mds/plain"),
        ("parquet", "parquet"),
        ("recordio", "recordio"),
        ("tfrecord", "tfrecord"),
    ] {
        let own = workspace.root.join("spdl-io/tests/data").join(own);
        for entry in fs::read_dir(&own).with_context(|| format!("cannot list {}", own.display()))? {
            copy(&entry?.path(), Some(format))?;
        }
    }
    let corpora = match std::env::var_os("SPDL_CORPORA") {
        Some(folder) => PathBuf::from(folder),
        None => workspace.root.join("../shared/corpora"),
    };
    if let Ok(manifest) = fs::read_to_string(corpora.join("MANIFEST.tsv")) {
        for line in manifest.lines().skip(1) {
            if let [corpus, _, _, _, _, path] = line.split('\t').collect::<Vec<_>>()[..] {
                copy(&corpora.join(corpus).join("files").join(path), None)?;
            }
        }
    }
    Ok(())
}

/// Extensions of expected values, tables and programs beside the test files, which are not seeds.
const EXPECTED: [&str; 7] = ["f32", "i16", "rgb", "rs", "sh", "tsv", "yuv"];

/// Signatures (magic bytes) by format. The fuzz target of a format has the name of the format.
const SIGNATURES: [(&str, &[&[u8]]); 22] = [
    ("annexb", &[b"\0\0\0\x01"]),
    ("bmp", &[b"BM"]),
    ("gif", &[b"GIF8"]),
    ("ivf", &[b"DKIF"]),
    ("jpeg", &[b"\xFF\xD8\xFF"]),
    // Formats that are identified by the name of the folder.
    ("litdata", &[]),
    ("lmdb", &[]),
    ("matroska", &[b"\x1A\x45\xDF\xA3"]),
    ("mds", &[]),
    // The first box of MP4 is identified at offset 4.
    ("mp4", &[]),
    ("npy", &[b"\x93NUMPY"]),
    ("packets", &[b"SPDLPKT"]),
    ("parquet", &[b"PAR1"]),
    ("png", &[b"\x89PNG"]),
    ("recordio", &[]),
    // tar is identified by a signature at offset 257.
    ("tar", &[]),
    ("tfrecord", &[]),
    ("tiff", &[b"II*\0", b"MM\0*"]),
    ("audio", &[b"fLaC", b"OggS", b"ID3", b"\xFF\xFB", b"\xFF\xF3", b"\xFF\xFD", b"\xFF\xF1"]),
    ("wav", &[b"RF64", b"BW64", b"RIFX", b"riff"]),
    ("webp", &[b"RIFF"]),
    ("zip", &[b"PK\x03\x04", b"PK\x05\x06"]),
];

/// The folder for seeds of all other formats.
const OTHER: &str = "other";

fn format_of(file: &[u8]) -> Option<&'static str> {
    if file.get(257..262) == Some(b"ustar") {
        return Some("tar");
    }
    if file.starts_with(b"RIFF") && file.get(8..12) == Some(b"WAVE") {
        return Some("wav");
    }
    if file.get(4..8) == Some(b"ftyp") {
        return Some("mp4");
    }
    let is_it = |starts: &[&[u8]]| starts.iter().any(|start| file.starts_with(start));
    SIGNATURES.iter().find(|(_, starts)| is_it(starts)).map(|(format, _)| *format)
}

/// The seed folders of a target: the folders of the formats whose names are part of the name of the
/// target; if there are none, all folders.
fn seeds_of(target: &str, seeds: &Path) -> Vec<PathBuf> {
    let all = || SIGNATURES.iter().map(|(format, _)| *format).chain([OTHER]);
    let own: Vec<_> =
        all().filter(|format| target.split('_').any(|word| word == *format)).collect();
    let chosen = if own.is_empty() { all().collect() } else { own };
    chosen.into_iter().map(|format| seeds.join(format)).collect()
}

fn table(runs: &[FuzzRun]) -> String {
    let row = |columns: [&str; 5]| {
        let [target, executions, per_second, coverage, result] = columns;
        format!("{target:<14} {executions:>12} {per_second:>8} {coverage:>10}  {result}\n")
    };
    let mut text = row(["target", "executions", "per s", "coverage", "result"]);
    for FuzzRun { target, executions, per_second, coverage, finding } in runs {
        let result = finding.as_deref().unwrap_or("nothing found");
        text.push_str(&row([target, executions, per_second, coverage, result]));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn fuzzer(script: &str, folder: &Path) -> FuzzRun {
        let log = folder.join("log");
        let file = File::create(&log).unwrap();
        let mut child = Command::new("sh").args(["-c", script]).stderr(file).spawn().unwrap();
        let status = child.wait().unwrap();
        let artifacts = folder.to_owned();
        Fuzzer { target: "png".to_owned(), child, log, artifacts }.finish(status.success()).unwrap()
    }

    #[test]
    fn a_target_starts_from_files_of_its_format() {
        let folder = Path::new("seeds");
        assert_eq!(seeds_of("jpeg_region", folder), [folder.join("jpeg")]);
        assert_eq!(seeds_of("fill", folder).len(), 23);
        assert_eq!(seeds_of("mp4_tables", folder), [folder.join("mp4")]);
        assert_eq!(seeds_of("tar_index", folder), [folder.join("tar")]);
        assert_eq!(format_of(b"MM\0*rest"), Some("tiff"));
        assert_eq!(format_of(b"\0\0\0\x01\x67"), Some("annexb"));
        assert_eq!(format_of(&[&[b'a'; 257][..], b"ustar\0"].concat()), Some("tar"));
        assert_eq!(format_of(b"RIFF\x08\0\0\0WAVEfmt "), Some("wav"));
        assert_eq!(format_of(b"RIFF\x08\0\0\0WEBPVP8 "), Some("webp"));
        assert_eq!(format_of(b"\0\0\0\x14ftypisom"), Some("mp4"));
        assert_eq!(format_of(b"\x1A\x45\xDF\xA3\x01"), Some("matroska"));
        assert_eq!(format_of(b"text"), None);
    }

    #[test]
    fn a_run_is_read_from_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let script = "echo '#7 NEW cov: 5 ft: 9' >&2; echo '#9 DONE cov: 12 ft: 9' >&2
            echo 'stat::number_of_executed_units: 99' >&2
            echo 'stat::average_exec_per_sec:     33' >&2";
        let run = fuzzer(script, folder.path());
        assert_eq!((run.executions.as_str(), run.coverage.as_str()), ("99", "12"));
        assert_eq!((run.per_second.as_str(), &run.finding), ("33", &None));
        assert!(table(&[run]).contains("nothing found"));
    }

    #[test]
    fn a_target_fails_by_a_finding_and_without_a_run() {
        let run = |executions: &str, finding: Option<&str>| FuzzRun {
            target: format!("after {executions}"),
            executions: executions.into(),
            per_second: "1".into(),
            coverage: "1".into(),
            finding: finding.map(str::to_owned),
        };
        let counts = counted(&[run("5", None), run("7", Some("oh no")), run("?", None)]);
        assert_eq!((counts.passed, counts.failed, counts.skipped), (1, 2, 0));
        assert_eq!(counts.failed_tests(), ["after 7", "after ?"]);
    }

    #[test]
    fn a_finding_contains_its_reason_and_the_command_to_repeat_it() {
        let folder = tempfile::tempdir().unwrap();
        let script = "echo \"thread 'x' (1) panicked at src/a.rs:1:2:\" >&2; echo 'oh no' >&2
            echo 'artifact_prefix=x/; Test unit written to x/crash-1' >&2; exit 77";
        let finding = fuzzer(script, folder.path()).finding.unwrap();
        assert!(finding.contains("panicked at src/a.rs:1:2:\n  oh no"), "{finding}");
        assert!(finding.contains("cargo xtask fuzz --target png --input x/crash-1"), "{finding}");
        let script = "echo '==1== ERROR: libFuzzer: out-of-memory (malloc(9))' >&2; exit 71";
        let finding = fuzzer(script, folder.path()).finding.unwrap();
        assert!(finding.contains("out-of-memory"), "{finding}");
    }
}
