//! `cargo xtask corpus`: runs decoders on all files of a folder, in child processes.

mod agreement;
mod frames;
#[path = "../../../fuzz/mutate.rs"]
mod mutate;
mod worker;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use self::frames::FrameAgreement;
use self::worker::{Allowance, Outcome, Verdict, Worker};
use crate::steps::Counts;
use crate::tools::{Output, Workspace, cargo};

/// Decode each file of a folder in child processes, with every decoder that recognizes the file.
///
/// Each file is inspected and decoded: whole, in part, into planes, at reduced size, with missing
/// rows filled if truncated, and as a training sample. By default, a child process may use 1 GiB of
/// address space, and 10 s of CPU time per request. Integer overflow checks and debug assertions
/// are enabled. With --mutants, damaged copies of each recognized file are decoded too; the damage
/// is the same for the same seed and the same files.
///
/// The table counts decoded files and kinds of errors by decoder. Failures are panics, aborts,
/// hangs, exceeded memory limits and contradicting results; a failure makes this command fail. The
/// first 100 failures are listed with the commands that reproduce them.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask corpus ../shared/corpora
  cargo xtask corpus ../shared/corpora --mutants 20 --seed 7
  cargo xtask corpus ../shared/corpora --pillow       compare with Pillow
  cargo xtask corpus ../shared/corpora --ffmpeg       compare frames with the program ffmpeg
  cargo xtask corpus broken.png                       one file
  cargo xtask corpus broken.bin --decoder png         a file whose signature is damaged")]
pub(crate) struct CorpusArguments {
    /// A folder, searched recursively, or one file
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Number of damaged copies to decode for each recognized file
    #[arg(long, value_name = "N", default_value_t = 0)]
    mutants: u32,
    /// Seed of the random damage
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Number of concurrent child processes [default: number of CPUs available to the process]
    #[arg(long, value_name = "J")]
    jobs: Option<NonZeroUsize>,
    /// Use only this decoder, even for files that it does not recognize
    #[arg(long, value_name = "NAME")]
    decoder: Option<String>,
    /// Compare which files our decoders and Pillow can decode
    ///
    /// Pillow's results, by file hash, are read from DIR/ORACLE_pillow.tsv. DIR/MANIFEST.tsv maps
    /// the hashes to paths.
    #[arg(long)]
    pillow: bool,
    /// Compare the planes of all frames of MP4, MOV, Matroska and WebM files with those of the program ffmpeg
    ///
    /// Nothing is compared if the program is not installed.
    #[arg(long)]
    ffmpeg: bool,
    /// Maximum CPU time of one decoding request, in seconds; the maximum wall-clock time is
    /// six times as long
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// Maximum address space of a child process, in MiB
    #[arg(long, value_name = "N", default_value_t = 1024)]
    memory_mib: u64,
    /// Detect invalid memory accesses of dependencies by AddressSanitizer, without a limit of memory
    #[arg(long)]
    address_sanitizer: bool,
    /// Print a JSON object instead of tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(workspace: &Workspace, arguments: &CorpusArguments) -> Result<ExitCode> {
    let program = build_worker(workspace, &mut Output::Terminal, arguments.address_sanitizer)?;
    let settings = CorpusSettings {
        address_sanitizer: arguments.address_sanitizer,
        mutants: arguments.mutants,
        seed: arguments.seed,
        jobs: arguments.jobs,
        decoder: arguments.decoder.clone().unwrap_or_default(),
        seconds: arguments.seconds,
        memory_mib: arguments.memory_mib,
        ffmpeg: arguments.ffmpeg,
    };
    let results = try_all(workspace, &program, &arguments.path, &settings)?;
    let agreement = match arguments.pillow {
        true => Some(agreement::compare(&arguments.path, &results.of_files())?),
        false => None,
    };
    let frames = match arguments.ffmpeg {
        true => results.compare_frames(&program)?,
        false => None,
    };
    if arguments.json {
        let mut report = results.json();
        if let Some(frames) = &frames {
            report["ffmpeg"] = frames.json();
        }
        if let Some(agreement) = &agreement {
            report["pillow"] = agreement.json();
        }
        println!("{report:#}");
    } else {
        print!("{}", results.text());
        if let Some(agreement) = &agreement {
            print!("{}", agreement.text());
        }
        match &frames {
            Some(frames) => print!("{}", frames.text()),
            None if arguments.ffmpeg => println!("{NO_FFMPEG}"),
            None => {}
        }
    }
    let is_equal = frames.is_none_or(|frames| frames.is_complete());
    let has_failed = results.failures().next().is_some() || !is_equal;
    Ok(if has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A step of `cargo xtask test`: decodes the small files of the repository with many damaged copies
/// each, and the corpora, if present, with three damaged copies per file.
pub(crate) fn test(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    // The build profile of the tests: decoders are optimised, and all checks are enabled.
    let mut build = cargo();
    build
        .args(["build", "--quiet", "--workspace", "--exclude", "spdl-python"])
        .args(["--all-features", "--example", WORKER])
        .current_dir(&workspace.root);
    output.run(&mut build)?;
    let program = workspace.program("debug/examples", WORKER);
    check(workspace, output, &program, [40, 3], &CorpusSettings::default())
}

/// The step of `cargo xtask soak`: as [`test()`], with more damaged copies, and other ones each time.
pub(crate) fn soak(workspace: &Workspace, output: &mut Output) -> Result<Counts> {
    soak_with(workspace, output, false)
}

/// As [`soak()`], with AddressSanitizer.
pub(crate) fn soak_with_address_sanitizer(
    workspace: &Workspace,
    output: &mut Output,
) -> Result<Counts> {
    soak_with(workspace, output, true)
}

fn soak_with(
    workspace: &Workspace,
    output: &mut Output,
    address_sanitizer: bool,
) -> Result<Counts> {
    let program = build_worker(workspace, output, address_sanitizer)?;
    let seed = SystemTime::UNIX_EPOCH.elapsed()?.as_secs();
    output.say(&format!("seed of the damage: {seed}"));
    let ffmpeg = !address_sanitizer;
    let settings = CorpusSettings { seed, address_sanitizer, ffmpeg, ..CorpusSettings::default() };
    check(workspace, output, &program, [400, 20], &settings)
}

/// Builds the program that decodes files: optimised, with all checks.
fn build_worker(
    workspace: &Workspace,
    output: &mut Output,
    address_sanitizer: bool,
) -> Result<PathBuf> {
    let mut build = cargo();
    build
        .args(["build", "--quiet", "--profile", "corpus", "-p", "spdl-media"])
        .args(["--all-features", "--example", WORKER])
        .current_dir(&workspace.root);
    let mut program = workspace.program("corpus/examples", WORKER);
    if address_sanitizer {
        // With `--target`, the flags do not apply to build scripts and procedural macros.
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let target = workspace.target.join("address-sanitizer");
        build
            .args(["--target", &platform, "--target-dir"])
            .arg(&target)
            // Sanitizers are unstable compiler flags.
            .env("RUSTC_BOOTSTRAP", "1")
            .env("RUSTFLAGS", "-Zsanitizer=address");
        program = target.join(platform).join("corpus/examples").join(WORKER);
    }
    output.run(&mut build)?;
    Ok(program)
}

/// Decodes the files of the repository and of the corpora, with these numbers of damaged copies each.
fn check(
    workspace: &Workspace,
    output: &mut Output,
    program: &Path,
    [of_own, of_corpora]: [u32; 2],
    settings: &CorpusSettings,
) -> Result<Counts> {
    let mut counts = Counts::default();
    // The files of unusual formats are many.
    let own = [
        ("data", of_own),
        ("audio", of_own),
        ("mp3", of_own),
        ("video", of_own),
        ("formats/data", of_own / 4),
        ("formats/variants", of_own / 4),
    ]
    .map(|(folder, copies)| (workspace.root.join("spdl-media/tests").join(folder), copies));
    let corpora = match std::env::var_os("SPDL_CORPORA") {
        Some(folder) => PathBuf::from(folder),
        None => workspace.root.join("../shared/corpora"),
    };
    for (folder, mutants) in own.into_iter().chain([(corpora, of_corpora)]) {
        if !folder.is_dir() {
            counts.add(Counts::one_skipped("corpora not present"));
            continue;
        }
        let settings = CorpusSettings { mutants, ..settings.clone() };
        let results = try_all(workspace, program, &folder, &settings)?;
        output.say(&results.text());
        let mut failed = results.failures().next().is_some() || results.trials.is_empty();
        if settings.ffmpeg {
            match results.compare_frames(program)? {
                Some(frames) => {
                    output.say(&frames.text());
                    failed |= !frames.is_complete();
                }
                None => output.say(NO_FFMPEG),
            }
        }
        counts.add(if failed { Counts::one_failed() } else { Counts::one_passed() });
    }
    Ok(counts)
}

/// The example program of `spdl-media` that decodes files in a child process.
const WORKER: &str = "corpus_worker";

/// Containers whose frames are compared with those of the program `ffmpeg`. `ffmpeg` stands for all that only the FFmpeg
/// library reads, such as AVI and MPEG-TS.
const CONTAINERS: [&str; 3] = ["mp4", "matroska", "ffmpeg"];
const NO_FFMPEG: &str = "frames are not compared: the program ffmpeg is not installed";

/// Decoders that are not in default registries.
const ON_REQUEST: [&str; 2] = ["turbojpeg", "zune-jpeg"];

/// Settings of a run.
#[derive(Clone, Debug)]
struct CorpusSettings {
    mutants: u32,
    seed: u64,
    jobs: Option<NonZeroUsize>,
    /// Names of decoders, separated by commas; if empty, all decoders that recognize the file.
    decoder: String,
    seconds: u64,
    memory_mib: u64,
    address_sanitizer: bool,
    /// Whether frames are compared with those of the program `ffmpeg`.
    ffmpeg: bool,
}

impl Default for CorpusSettings {
    fn default() -> Self {
        CorpusSettings {
            mutants: 0,
            seed: 0,
            jobs: None,
            decoder: String::new(),
            seconds: 10,
            memory_mib: 1024,
            address_sanitizer: false,
            ffmpeg: false,
        }
    }
}

/// A file, or a damaged copy of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subject {
    file: usize,
    mutant: Option<u32>,
}

/// Result of one decoder for one file or damaged copy.
#[derive(Debug)]
struct Trial {
    subject: Subject,
    verdict: Verdict,
    /// Path of the stored damaged copy, if its outcome is a failure, such as a panic.
    copy: Option<PathBuf>,
}

/// Results of all files and damaged copies.
#[derive(Debug)]
struct Results {
    root: PathBuf,
    /// Paths of the files, relative to the root, with `/` as separator.
    names: Vec<String>,
    trials: Vec<Trial>,
    unclaimed: usize,
    seconds: f64,
}

fn try_all(
    workspace: &Workspace,
    program: &Path,
    path: &Path,
    settings: &CorpusSettings,
) -> Result<Results> {
    let start = Instant::now();
    let (root, names) = files_below(path)?;
    let folder = workspace.target.join("corpus");
    let copies = folder.join("failures");
    fs::create_dir_all(&copies).with_context(|| format!("cannot create {}", copies.display()))?;
    let allowance = Allowance {
        program: program.to_owned(),
        memory_bytes: settings.memory_mib << 20,
        limits_address_space: !settings.address_sanitizer,
        time: Duration::from_secs(settings.seconds),
        folder,
    };
    let jobs = settings.jobs.or_else(|| thread::available_parallelism().ok());
    let jobs = jobs.map_or(1, usize::from);
    let read = |name: &str| {
        let path = if name.is_empty() { root.clone() } else { root.join(name) };
        fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };

    let whole: Vec<Subject> = (0..names.len()).map(|file| Subject { file, mutant: None }).collect();
    let mut trials = run_jobs("files", &allowance, jobs, &whole, |worker, subject| {
        let verdicts = worker.judge(&read(&names[subject.file])?, &settings.decoder)?;
        Ok(verdicts.into_iter().map(|verdict| Trial { subject, verdict, copy: None }).collect())
    })?;

    // For each file: the decoders that recognize it. For each decoder: the files that it
    // recognizes. A damaged copy may contain parts of another file of the same decoder.
    let mut claims = vec![Vec::new(); names.len()];
    let mut by_decoder: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for Trial { subject, verdict, .. } in &trials {
        claims[subject.file].push(verdict.decoder.clone());
        by_decoder.entry(&verdict.decoder).or_default().push(subject.file);
    }
    let claimed = || (0..names.len()).filter(|&file| !claims[file].is_empty());
    let unclaimed = names.len() - claimed().count();
    let mutants: Vec<Subject> = claimed()
        .flat_map(|file| {
            (0..settings.mutants).map(move |number| Subject { file, mutant: Some(number) })
        })
        .collect();
    let damaged = run_jobs("mutants", &allowance, jobs, &mutants, |worker, subject| {
        let Some(number) = subject.mutant else { return Ok(Vec::new()) };
        let name = &names[subject.file];
        let decoders = &claims[subject.file];
        let family = &by_decoder[decoders[0].as_str()];
        let other = family[(subject.file + 1 + number as usize) % family.len()];
        let bytes =
            mutate::mutant(&read(name)?, &read(&names[other])?, name, settings.seed, number);
        let verdicts = worker.judge(&bytes, &decoders.join(","))?;
        let trials = verdicts.into_iter().map(|verdict| {
            let copy = verdict.outcome.is_failure().then(|| {
                let label = format!("{name} {} {number}", settings.seed);
                copies.join(format!("{}-{:016x}.bin", verdict.decoder, digest(&label)))
            });
            if let Some(copy) = &copy {
                fs::write(copy, &bytes)
                    .with_context(|| format!("cannot write {}", copy.display()))?;
            }
            Ok(Trial { subject, verdict, copy })
        });
        trials.collect()
    })?;
    drop(by_decoder);
    trials.extend(damaged);
    Ok(Results { root, names, trials, unclaimed, seconds: start.elapsed().as_secs_f64() })
}

/// Runs `work` on every file or damaged copy, with one thread and one child process per job.
///
/// Results have the order of the input.
fn run_jobs(
    what: &str,
    allowance: &Allowance,
    jobs: usize,
    subjects: &[Subject],
    work: impl Fn(&mut Worker, Subject) -> Result<Vec<Trial>> + Sync,
) -> Result<Vec<Trial>> {
    let progress = ProgressBar::new(subjects.len() as u64).with_style(
        ProgressStyle::with_template(&format!("{{bar:40}} {{pos}}/{{len}} {what}, {{eta}} left"))?,
    );
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let found = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs)
            .map(|number| {
                let (next, failed, found, progress, work) =
                    (&next, &failed, &found, &progress, &work);
                scope.spawn(move || -> Result<()> {
                    let mut worker = Worker::new(allowance, number);
                    while !failed.load(Ordering::Relaxed) {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        let Some(&subject) = subjects.get(at) else { break };
                        let trials = work(&mut worker, subject);
                        if trials.is_err() {
                            failed.store(true, Ordering::Relaxed);
                        }
                        let mut found = found.lock().unwrap_or_else(|broken| broken.into_inner());
                        found.push((at, trials?));
                        progress.inc(1);
                    }
                    Ok(())
                })
            })
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(result) => result?,
                Err(_) => bail!("a thread that monitors a child process panicked"),
            }
        }
        Ok(())
    })?;
    progress.finish_and_clear();
    let mut found = found.into_inner().unwrap_or_else(|broken| broken.into_inner());
    found.sort_by_key(|(at, _)| *at);
    Ok(found.into_iter().flat_map(|(_, trials)| trials).collect())
}

/// The files of a folder, recursively and sorted; one empty name if `path` is a file.
fn files_below(path: &Path) -> Result<(PathBuf, Vec<String>)> {
    let metadata = fs::metadata(path).with_context(|| format!("cannot find {}", path.display()))?;
    if metadata.is_file() {
        return Ok((path.to_owned(), vec![String::new()]));
    }
    let mut names = Vec::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                let name = entry.path().strip_prefix(path)?.to_string_lossy().replace('\\', "/");
                names.push(name);
            }
        }
    }
    ensure!(!names.is_empty(), "there are no files in {}", path.display());
    names.sort();
    Ok((path.to_owned(), names))
}

/// FNV-1a hash, for the file names of damaged copies.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The maximum number of listed failures.
const LISTED: usize = 100;

impl Results {
    fn failures(&self) -> impl Iterator<Item = &Trial> {
        self.trials.iter().filter(|trial| trial.verdict.outcome.is_failure())
    }

    /// For each undamaged file, the result of the first decoder of the default registry, or of
    /// another decoder if no decoder of the default registry recognizes the file.
    fn of_files(&self) -> BTreeMap<&str, &Verdict> {
        let is_asked_for = |verdict: &Verdict| ON_REQUEST.contains(&verdict.decoder.as_str());
        let mut verdicts = BTreeMap::new();
        for trial in self.trials.iter().filter(|trial| trial.subject.mutant.is_none()) {
            let name = self.names[trial.subject.file].as_str();
            let verdict = verdicts.entry(name).or_insert(&trial.verdict);
            if is_asked_for(verdict) && !is_asked_for(&trial.verdict) {
                *verdict = &trial.verdict;
            }
        }
        verdicts
    }

    /// Compares the frames of the videos that we decode; `None` if the program `ffmpeg` is not installed.
    fn compare_frames(&self, program: &Path) -> Result<Option<FrameAgreement>> {
        let is_decoded = |trial: &&Trial| {
            let Verdict { decoder, outcome, .. } = &trial.verdict;
            let is_video = CONTAINERS.contains(&decoder.as_str());
            is_video && *outcome == Outcome::Ok && trial.subject.mutant.is_none()
        };
        let decoded = self.trials.iter().filter(is_decoded);
        let names = decoded.map(|trial| self.names[trial.subject.file].as_str());
        frames::compare(program, &self.root, names)
    }

    /// The number of each outcome, by decoder and by whether the file is a damaged copy.
    fn counts(&self) -> BTreeMap<(&str, bool), BTreeMap<Outcome, u64>> {
        let mut counts: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
        for Trial { subject, verdict, .. } in &self.trials {
            let row = counts.entry((verdict.decoder.as_str(), subject.mutant.is_some()));
            *row.or_default().entry(verdict.outcome).or_default() += 1;
        }
        counts
    }

    fn text(&self) -> String {
        let mut text = format!("{:<10} {:<8} {:>7}", "decoder", "of", "all");
        for outcome in Outcome::ALL {
            let _ = write!(text, " {:>width$}", outcome.name(), width = outcome.name().len());
        }
        text.push('\n');
        for ((decoder, damaged), row) in self.counts() {
            let of = if damaged { "mutants" } else { "files" };
            let _ = write!(text, "{decoder:<10} {of:<8} {:>7}", row.values().sum::<u64>());
            for outcome in Outcome::ALL {
                let number = row.get(&outcome).copied().unwrap_or(0);
                let _ = write!(text, " {number:>width$}", width = outcome.name().len());
            }
            text.push('\n');
        }
        let _ = writeln!(
            text,
            "{} files, {} of them recognized by no decoder; {} trials in {:.0} s",
            self.names.len(),
            self.unclaimed,
            self.trials.len(),
            self.seconds
        );
        let failures: Vec<&Trial> = self.failures().collect();
        for trial in failures.iter().take(LISTED) {
            let Verdict { decoder, outcome, request, message } = &trial.verdict;
            let _ = writeln!(
                text,
                "\n{} in {decoder}, {request}: {}\n  {message}\n  again: {}",
                outcome.name().to_uppercase(),
                self.shown(trial.subject),
                self.again(trial)
            );
        }
        if failures.len() > LISTED {
            let _ = writeln!(text, "\n… and {} more", failures.len() - LISTED);
        }
        text
    }

    fn shown(&self, subject: Subject) -> String {
        let name = &self.names[subject.file];
        let name = if name.is_empty() { self.root.display().to_string() } else { name.clone() };
        match subject.mutant {
            Some(number) => format!("{name}, mutant {number}"),
            None => name,
        }
    }

    /// The command that reproduces a result.
    fn again(&self, trial: &Trial) -> String {
        let name = &self.names[trial.subject.file];
        let path = match &trial.copy {
            Some(copy) => copy.clone(),
            None if name.is_empty() => self.root.clone(),
            None => self.root.join(name),
        };
        let quoted = path.display().to_string().replace('\'', r"'\''");
        format!("cargo xtask corpus '{quoted}' --decoder {}", trial.verdict.decoder)
    }

    fn json(&self) -> Value {
        let rows = self.counts().into_iter().map(|((decoder, damaged), row)| {
            let outcomes: serde_json::Map<String, Value> = Outcome::ALL
                .into_iter()
                .map(|outcome| {
                    (outcome.name().to_owned(), row.get(&outcome).copied().unwrap_or(0).into())
                })
                .collect();
            json!({"decoder": decoder, "mutants": damaged, "outcomes": outcomes})
        });
        let failures = self.failures().map(|trial| {
            json!({
                "decoder": trial.verdict.decoder,
                "outcome": trial.verdict.outcome.name(),
                "request": trial.verdict.request,
                "message": trial.verdict.message,
                "file": self.names[trial.subject.file],
                "mutant": trial.subject.mutant,
                "again": self.again(trial),
            })
        });
        json!({
            "files": self.names.len(),
            "unclaimed": self.unclaimed,
            "trials": self.trials.len(),
            "seconds": self.seconds,
            "rows": rows.collect::<Vec<_>>(),
            "failures": failures.collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(file: usize, mutant: Option<u32>, outcome: Outcome) -> Trial {
        let word = |text: &str| text.to_owned();
        let (decoder, request, message) = (word("png"), word("decode"), word("why"));
        let copy = mutant.map(|_| PathBuf::from("copies/it's.bin"));
        let verdict = Verdict { decoder, outcome, request, message };
        Trial { subject: Subject { file, mutant }, verdict, copy }
    }

    #[test]
    fn the_table_counts_files_and_mutants_separately_and_gives_commands() {
        let results = Results {
            root: PathBuf::from("dir"),
            names: vec!["a.png".to_owned(), "b.txt".to_owned()],
            trials: vec![
                trial(0, None, Outcome::Ok),
                trial(0, Some(0), Outcome::Corrupt),
                trial(0, Some(1), Outcome::Hang),
            ],
            unclaimed: 1,
            seconds: 1.0,
        };
        let text = results.text();
        let row = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start)).unwrap();
            line.split_whitespace().skip(2).map(|word| word.parse().unwrap()).collect::<Vec<u64>>()
        };
        assert_eq!(row("png        files"), [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(row("png        mutants"), [2, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0]);
        assert!(text.contains("HANG in png, decode: a.png, mutant 1"), "{text}");
        let again = r"cargo xtask corpus 'copies/it'\''s.bin' --decoder png";
        assert!(text.contains(again), "{text}");
        assert_eq!(results.json()["failures"][0]["again"], again);
        assert_eq!(results.of_files()["a.png"].outcome, Outcome::Ok);
    }

    #[test]
    fn the_default_decoder_gives_the_outcome_of_a_file() {
        let by = |decoder: &str, outcome| {
            let mut trial = trial(0, None, outcome);
            trial.verdict.decoder = decoder.to_owned();
            trial
        };
        let results = Results {
            root: PathBuf::from("dir"),
            names: vec!["a.jpg".to_owned()],
            trials: vec![
                by("zune-jpeg", Outcome::Corrupt),
                by("jpeg", Outcome::Ok),
                by("turbojpeg", Outcome::Truncated),
            ],
            unclaimed: 0,
            seconds: 1.0,
        };
        assert_eq!(results.of_files()["a.jpg"].outcome, Outcome::Ok);
    }

    #[test]
    fn files_below_a_folder_and_single_files_are_found() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("x/y")).unwrap();
        fs::write(folder.path().join("x/y/b"), "").unwrap();
        fs::write(folder.path().join("x/a"), "").unwrap();
        assert_eq!(files_below(folder.path()).unwrap().1, ["x/a", "x/y/b"]);
        let file = folder.path().join("x/a");
        assert_eq!(files_below(&file).unwrap(), (file, vec![String::new()]));
        assert!(files_below(&folder.path().join("z")).is_err());
    }
}
