//! `cargo xtask bench`: our speed beside that of others, in one interleaved run.

use std::fmt::Write as _;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::dataset::{self, Settings};
use crate::demo::{Mode, build_spdl};
use crate::engine_bench::{self, Overhead, Scaling, Stragglers};
use crate::tools::{Output, Venv, Workspace, command, describe, with_descendants};

/// Measure our speed, on this machine, beside that of others in the same run.
#[derive(Debug, Subcommand)]
pub(crate) enum Benchmark {
    Images(Images),
    Overhead(Overhead),
    Scaling(Scaling),
    Stragglers(Stragglers),
}

/// JPEG files to batches of 32 x 224 x 224 x 3 unsigned bytes, against the usual Python loaders.
///
/// Peers: Pillow in a pool of threads; libjpeg-turbo (simplejpeg) with OpenCV's area filter in a
/// pool of threads, the fastest one that antialiases; Pillow in torch's DataLoader where torch can
/// be imported. Each does the same work on the same files. The contestants take turns (A B C A B C)
/// after one warm-up each; medians are shown. A peer's time counts from building its loader to its
/// last batch, with the start of its workers and without imports. Memory is the peak of the resident
/// sizes of all its processes, sampled every 50 ms.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench images
  cargo xtask bench images --mode train --repeats 5
  cargo xtask bench images --data /data/imagenet/val --epochs 1
  cargo xtask bench images --torch-python ~/torch/bin/python --out docs/benchmarks/images.md")]
pub(crate) struct Images {
    /// Number of images in the demo data set, made when it is not there
    #[arg(long, default_value_t = 2000, conflicts_with = "data")]
    images: u32,
    /// A folder of class folders with JPEGs, instead of the demo data set
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Runs of each contestant
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// How often the data set is read in a run
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// eval: resize and centre crop; train: random crop and flip
    #[arg(long, value_enum, default_value_t = Mode::Eval)]
    mode: Mode,
    /// Threads or processes of each peer [default: CPUs + 1, the best in our scans]
    #[arg(long)]
    workers: Option<usize>,
    /// An interpreter that can import torch, numpy and PIL
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    torch_python: PathBuf,
    /// Also write the result to this file, as Markdown
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(crate) fn run(workspace: &Workspace, benchmark: &Benchmark) -> Result<()> {
    match benchmark {
        Benchmark::Images(arguments) => images(workspace, arguments),
        Benchmark::Overhead(arguments) => engine_bench::overhead(workspace, arguments),
        Benchmark::Scaling(arguments) => engine_bench::scaling(workspace, arguments),
        Benchmark::Stragglers(arguments) => engine_bench::stragglers(workspace, arguments),
    }
}

/// One loader under test.
struct Contestant {
    name: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
    runs: Vec<Run>,
}

/// What one run of a contestant took.
#[derive(Clone, Copy, Debug)]
struct Run {
    images: u64,
    seconds: f64,
    cpu_s_per_1000: f64,
    first_batch_ms: f64,
    peak_rss_bytes: u64,
    /// The share of all CPU time that others took meanwhile.
    foreign_cpu: f64,
}

impl Run {
    fn images_per_s(&self) -> f64 {
        self.images as f64 / self.seconds
    }
}

fn images(workspace: &Workspace, arguments: &Images) -> Result<()> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let workers = arguments.workers.unwrap_or(cpus + 1);
    let data = match &arguments.data {
        Some(data) => fs::canonicalize(data)
            .with_context(|| format!("cannot find the data set {}", data.display()))?,
        None => {
            let settings = Settings {
                images: arguments.images,
                classes: arguments.images.clamp(1, 50),
                seed: 0,
            };
            let photos = workspace.root.join("assets/photos");
            dataset::prepare(&photos, &workspace.target.join("demo"), settings)?
        }
    };
    build_spdl(workspace)?;

    let mut contestants = vec![ours(workspace, arguments, &data)];
    contestants.extend(peers(workspace, arguments, &data, workers)?);

    for contestant in &mut contestants {
        eprintln!("warm-up: {}", contestant.name);
        contestant.measure()?;
    }
    for repeat in 1..=arguments.repeats {
        for contestant in &mut contestants {
            let run = contestant.measure()?;
            eprintln!(
                "run {repeat} of {}: {}: {:.0} images/s (others took {:.0} % of the CPUs)",
                arguments.repeats,
                contestant.name,
                run.images_per_s(),
                100.0 * run.foreign_cpu
            );
            contestant.runs.push(run);
        }
    }
    let delivered = contestants[0].runs[0].images;
    for contestant in &contestants {
        if let Some(run) = contestant.runs.iter().find(|run| run.images != delivered) {
            bail!("{} delivered {} images, SPDL {delivered}", contestant.name, run.images);
        }
    }

    let table = table(&contestants);
    println!("\n{table}");
    if let Some(out) = &arguments.out {
        let text = report(arguments, workers, cpus, delivered, &table);
        fs::write(out, text).with_context(|| format!("cannot write {}", out.display()))?;
        println!("written to {}", out.display());
    }
    Ok(())
}

fn ours(workspace: &Workspace, arguments: &Images, data: &Path) -> Contestant {
    let data = data.display().to_string();
    let epochs = arguments.epochs.to_string();
    let words = ["bench", &data, "--mode", arguments.mode.name(), "--epochs", &epochs];
    let fixed = ["--size", "224", "--batch", "32", "--layout", "nhwc-u8", "--json"];
    Contestant {
        name: "SPDL in Rust",
        program: workspace.program("release", "spdl"),
        arguments: words.into_iter().chain(fixed).map(str::to_owned).collect(),
        runs: Vec::new(),
    }
}

/// The peers that can be installed or found here; says which cannot.
fn peers(
    workspace: &Workspace,
    arguments: &Images,
    data: &Path,
    workers: usize,
) -> Result<Vec<Contestant>> {
    let output = &mut Output::Terminal;
    let venv = Venv::prepare(workspace, output, "venv-bench", &["numpy"])?;
    let scripts = workspace.root.join("xtask/peers");
    let mut peers = Vec::new();
    let mut add = |name, program: PathBuf, script: &str| {
        let epochs = arguments.epochs.to_string();
        let workers = workers.to_string();
        let script = scripts.join(script).display().to_string();
        let data = data.display().to_string();
        let mode = arguments.mode.name();
        let words = [&script, &data, "--mode", mode, "--epochs", &epochs, "--workers", &workers];
        let arguments = words.map(str::to_owned).to_vec();
        peers.push(Contestant { name, program, arguments, runs: Vec::new() });
    };

    let pool: [(_, &[&str], &str, _); 2] = [
        ("thread pool: Pillow", &["pillow"], "import PIL.Image", "pillow_pool.py"),
        (
            "thread pool: simplejpeg + OpenCV area",
            &["simplejpeg", "opencv-python-headless"],
            "import simplejpeg, cv2",
            "simplejpeg_opencv_pool.py",
        ),
    ];
    for (name, packages, import, script) in pool {
        if !can_run(&venv.python(), import) {
            output.say(&format!("installing {} for the comparison", packages.join(", ")));
            if let Err(error) = venv.install(output, packages) {
                output.say(&format!("SKIPPED: {name}: {error:#}"));
                continue;
            }
        }
        add(name, venv.python(), script);
    }

    let torch = [venv.python(), arguments.torch_python.clone()]
        .into_iter()
        .find(|python| can_run(python, "import torch, numpy, PIL.Image"));
    match torch {
        Some(python) => add("torch DataLoader: Pillow", python, "pillow_torch.py"),
        None => output.say(&format!(
            "SKIPPED: torch DataLoader: {} cannot import torch, numpy and PIL (--torch-python)",
            arguments.torch_python.display()
        )),
    }
    ensure!(!peers.is_empty(), "there is nothing to compare with");
    Ok(peers)
}

fn can_run(python: &Path, code: &str) -> bool {
    let status = command(python).args(["-c", code]).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

impl Contestant {
    fn measure(&self) -> Result<Run> {
        let mut command = command(&self.program);
        command
            .args(&self.arguments)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let before = CpuTicks::now();
        let (text, peak_rss_bytes) = run_and_watch(&mut command)?;
        let foreign_cpu = CpuTicks::now().foreign_since(&before);
        let result: Value = serde_json::from_str(text.trim()).with_context(|| {
            format!("`{}` printed no JSON object: {text:?}", describe(&command))
        })?;
        let number = |key: &str| {
            result[key].as_f64().with_context(|| format!("{} reports no {key}", self.name))
        };
        let images =
            result["images"].as_u64().with_context(|| format!("{}: no images", self.name))?;
        ensure!(images > 0, "{} delivered nothing", self.name);
        Ok(Run {
            images,
            seconds: number("seconds")?,
            cpu_s_per_1000: number("cpu_s_per_1000")?,
            first_batch_ms: number("first_batch_ms")?,
            peak_rss_bytes,
            foreign_cpu,
        })
    }
}

/// Runs a command; returns what it printed and the peak of its processes' resident sizes.
fn run_and_watch(command: &mut Command) -> Result<(String, u64)> {
    let described = describe(command);
    let mut child = command.spawn().with_context(|| format!("cannot run `{described}`"))?;
    let mut pipe = child.stdout.take().context("the output is not captured")?;
    let reader = thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).map(|_| text)
    });
    let mut peak = 0;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        peak = peak.max(with_descendants(child.id()).into_iter().map(resident_bytes).sum());
        thread::sleep(Duration::from_millis(50));
    };
    ensure!(status.success(), "`{described}` failed: {status}");
    let Ok(text) = reader.join() else { bail!("the thread that reads the output panicked") };
    Ok((text?, peak))
}

fn resident_bytes(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    1024 * kib.unwrap_or(0)
}

/// How the machine's CPUs have spent their time so far, in ticks. All zero where `/proc` is absent.
#[derive(Clone, Copy, Debug, Default)]
struct CpuTicks {
    all: u64,
    idle: u64,
    our_children: u64,
}

impl CpuTicks {
    fn now() -> Self {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        CpuTicks::read(&stat, &own)
    }

    /// Reads `/proc/stat` and a process's own `stat`; see proc(5).
    fn read(stat: &str, own: &str) -> Self {
        // user, nice, system, idle, waiting for disks, interrupts (2), stolen by other machines; the
        // two after these are guests', which user and nice hold already.
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
        // After the name in brackets: state is field 3, the children's user and system time 16, 17.
        let fields = own.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
        CpuTicks {
            all: ticks.iter().sum(),
            idle: ticks.iter().skip(3).take(2).sum(),
            our_children: fields.skip(13).take(2).filter_map(|word| word.parse::<u64>().ok()).sum(),
        }
    }

    fn foreign_since(&self, before: &CpuTicks) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let idle = self.idle.saturating_sub(before.idle);
        let ours = self.our_children.saturating_sub(before.our_children);
        all.saturating_sub(idle).saturating_sub(ours) as f64 / all.max(1) as f64
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// A Markdown table of medians. The first contestant is ours.
fn table(contestants: &[Contestant]) -> String {
    let width = contestants.iter().map(|contestant| contestant.name.len()).max().unwrap_or(0);
    let mut text = format!(
        "| {:<width$} | images/s | spread | CPU s/1,000 | first ms | RSS MB | others' CPU | ours / this |\n\
         |-{}-|---------:|-------:|------------:|---------:|-------:|------------:|------------:|\n",
        "loader",
        "-".repeat(width)
    );
    for contestant in contestants {
        let of = |value: fn(&Run) -> f64| contestant.runs.iter().map(value).collect::<Vec<_>>();
        let rates = of(Run::images_per_s);
        let rate = median(rates.clone());
        let spread = rates.iter().fold(0.0_f64, |most, rate| most.max(*rate))
            - rates.iter().fold(f64::INFINITY, |least, rate| least.min(*rate));
        // Neighbours in time are compared, so that a slow minute of the machine hits both.
        let pairs = contestants[0].runs.iter().zip(&contestant.runs);
        let ratios = pairs.map(|(ours, theirs)| ours.images_per_s() / theirs.images_per_s());
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {:<width$} | {:>8.0} | {:>5.1}% | {:>11.2} | {:>8.0} | {:>6.0} | {:>10.0}% | {:>11.2} |",
            contestant.name,
            rate,
            100.0 * spread / rate,
            median(of(|run| run.cpu_s_per_1000)),
            median(of(|run| run.first_batch_ms)),
            median(of(|run| run.peak_rss_bytes as f64)) / 1e6,
            100.0 * median(of(|run| run.foreign_cpu)),
            median(ratios.collect()),
        );
    }
    text
}

fn report(arguments: &Images, workers: usize, cpus: usize, images: u64, table: &str) -> String {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cpu = cpu.map_or("unknown CPU", |(_, name)| name.trim());
    let what = match arguments.mode {
        Mode::Eval => "Resize shorter side to 256, centre crop 224",
        Mode::Train => "Random resized crop 224, horizontal flip",
    };
    let files = if arguments.data.is_some() {
        "A data set of the user's."
    } else {
        "The demo data set: JPEGs of about 470 x 390 pixels and 100 KB (`cargo xtask demo`)."
    };
    format!(
        "# Images: JPEG files to batches\n\n\
         {files} {what}, unsigned bytes, batches of 32 x 224 x 224 x 3; {images} images a run, files in \
         the page cache.\n\n\
         {table}\n\
         {cpus} CPUs ({cpu}); {workers} workers for each peer. Contestants took turns, one warm-up and \
         {repeats} runs each; medians; spread = (largest - smallest) / median. A peer's time counts from \
         building its loader to its last batch, imports excluded. RSS is the peak of the sum over all \
         processes of a contestant; others' CPU is what other programs took of all CPUs. The last column is the median of the ratios of neighbouring runs; \
         differences under 10 % are noise.\n\n\
         Made by `cargo xtask bench images --mode {mode} --repeats {repeats} --epochs {epochs}`.\n",
        repeats = arguments.repeats,
        mode = arguments.mode.name(),
        epochs = arguments.epochs,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contestant(name: &'static str, seconds: &[f64]) -> Contestant {
        let run = |&seconds: &f64| Run {
            images: 1000,
            seconds,
            cpu_s_per_1000: 1.5,
            first_batch_ms: 40.0,
            peak_rss_bytes: 100_000_000,
            foreign_cpu: 0.02,
        };
        let runs = seconds.iter().map(run).collect();
        Contestant { name, program: PathBuf::new(), arguments: Vec::new(), runs }
    }

    #[test]
    fn ratios_are_medians_of_neighbouring_runs() {
        // The machine was slow in the second round, which hit both.
        let ours = contestant("ours", &[1.0, 4.0, 1.0]);
        let peer = contestant("peer", &[2.0, 8.0, 2.0]);
        let table = table(&[ours, peer]);
        let cells =
            |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
        let rows: Vec<_> = table.lines().map(cells).collect();
        assert_eq!(rows[2][1..9], ["ours", "1000", "75.0%", "1.50", "40", "100", "2%", "1.00"]);
        assert_eq!(rows[3][1..9], ["peer", "500", "75.0%", "1.50", "40", "100", "2%", "2.00"]);
    }

    #[test]
    fn the_median_of_an_even_number_of_runs_lies_between_the_middle_two() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn what_neither_idles_nor_is_ours_is_foreign() {
        let own = |ticks: u64| format!("7 (a name) b) S 1 7 7 0 -1 0 0 0 0 0 9 9 {ticks} 5 20 0 1");
        let before = CpuTicks::read("cpu  100 0 20 900 10 0 0 0 50 0\ncpu0 1 1", &own(40));
        let after = CpuTicks::read("cpu  160 0 30 920 10 0 0 10 99 0\ncpu0 1 1", &own(90));
        // 100 ticks in all: 20 idle, 50 ours, 30 foreign.
        assert!((after.foreign_since(&before) - 0.3).abs() < 1e-9);
    }

    #[test]
    fn memory_and_output_of_a_command_are_seen() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 0.3; echo done"]).stdout(Stdio::piped());
        let (text, peak) = run_and_watch(&mut command).unwrap();
        assert_eq!(text, "done\n");
        assert!(peak > 100_000, "{peak}");
        let mut failing = Command::new("sh");
        assert!(run_and_watch(failing.args(["-c", "exit 3"]).stdout(Stdio::piped())).is_err());
    }
}
