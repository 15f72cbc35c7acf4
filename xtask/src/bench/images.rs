//! `cargo xtask bench images`: JPEG files to batches, beside the usual Python loaders.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};

use super::contest::{self, Contestant, Run, median};
use super::peers::{self, Peer, Task};
use super::plot::{self, Bar};
use crate::dataset::{self, Settings};
use crate::demo::{Mode, build_spdl};
use crate::tools::{Output, Workspace, cargo, command};

/// JPEG files to batches of 32 x 224 x 224 x 3 unsigned bytes, against the usual Python loaders.
///
/// Each peer does the same work on the same files, but for two that are marked: libjpeg-turbo alone
/// only decodes (whole, from memory), and tf.data without antialiasing looks different. Peers are
/// installed below target/, each set in an environment of its own; what cannot be installed or run
/// is named with the reason. The contestants take turns (A B C A B C) after one warm-up each; medians
/// are shown. A peer's time counts from building its loader to its last batch, with the start of its
/// workers and without imports. Memory is the peak of the resident sizes of all its processes,
/// sampled every 50 ms.
///
/// The table, a plot and where our time goes are written to docs/benchmarks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench images
  cargo xtask bench images --mode train --check imagenet
  cargo xtask bench images --all-peers                        torch and TensorFlow are gigabytes
  cargo xtask bench images --peers libjpeg-turbo,spdl,dali
  cargo xtask bench images --data /data/imagenet/val --epochs 1 --out imagenet.md")]
pub(crate) struct Images {
    /// Number of images in the demo data set, made when it is not there
    #[arg(long, default_value_t = 2000, conflicts_with = "data")]
    images: u32,
    /// A folder of class folders with JPEGs, instead of the demo data set
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Runs of each contestant
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
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
    /// The peers [default: libjpeg-turbo,pillow,simplejpeg]
    #[arg(long, value_name = "A,B", value_delimiter = ',', value_enum)]
    peers: Vec<Peer>,
    /// All peers
    #[arg(long, conflicts_with = "peers")]
    all_peers: bool,
    /// An interpreter that can import torch, torchvision, numpy and PIL, instead of installing them
    #[arg(long, value_name = "PROGRAM")]
    torch_python: Option<PathBuf>,
    /// Fail where a ratio that we promise is missed
    #[arg(long, value_enum, value_name = "WHAT")]
    check: Option<Check>,
    /// The Markdown file; the plot lies beside it [default: docs/benchmarks/images-MODE.md]
    #[arg(long, value_name = "FILE", conflicts_with = "print_only")]
    out: Option<PathBuf>,
    /// Write no files
    #[arg(long)]
    print_only: bool,
    /// Do not measure where our time goes
    #[arg(long)]
    no_shares: bool,
}

/// What is promised for which images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    /// Images like those of ImageNet: eval at least 0.95 times as fast as libjpeg-turbo decodes
    /// alone, train at least 1.2 times as fast as our own eval
    Imagenet,
    /// Photographs of 2 to 12 megapixels: at least 1.3 times as fast as libjpeg-turbo alone
    Photos,
}

const EVAL_TO_TURBO: f64 = 0.95;
const TRAIN_TO_EVAL: f64 = 1.2;
const PHOTOS_TO_TURBO: f64 = 1.3;

const OURS: &str = "SPDL in Rust";
const OUR_EVAL: &str = "SPDL in Rust, eval crop";

pub(super) fn run(workspace: &Workspace, arguments: &Images) -> Result<()> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let workers = arguments.workers.unwrap_or(cpus + 1);
    ensure!(
        arguments.data.is_none() || arguments.out.is_some() || arguments.print_only,
        "for a data set of your own, say where to write (--out FILE), or --print-only"
    );
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

    let mut contestants = vec![ours(workspace, arguments, &data, OURS, arguments.mode)];
    if arguments.mode == Mode::Train && arguments.check == Some(Check::Imagenet) {
        contestants.push(ours(workspace, arguments, &data, OUR_EVAL, Mode::Eval));
    }
    let chosen = match (arguments.all_peers, &arguments.peers[..]) {
        (true, _) => Peer::value_variants(),
        (false, []) => &Peer::DEFAULT[..],
        (false, peers) => peers,
    };
    let task = Task {
        data: &data,
        mode: arguments.mode.name(),
        epochs: arguments.epochs,
        workers,
        torch_python: arguments.torch_python.as_deref(),
    };
    contestants.extend(peers::prepare(workspace, chosen, &task)?);
    contest::measure_all(&mut contestants, arguments.repeats)?;

    let table = table(&contestants);
    println!("\n{table}");
    let shares = if arguments.no_shares { None } else { shares(workspace, &data) };
    if let Some(shares) = &shares {
        println!("{shares}");
    }
    if !arguments.print_only {
        let name = format!("docs/benchmarks/images-{}.md", arguments.mode.name());
        let page = arguments.out.clone().unwrap_or_else(|| workspace.root.join(name));
        let plot = page.with_extension("svg");
        write(&plot, &picture(arguments, &contestants))?;
        let plot_name = plot.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = Report { arguments, contestants: &contestants, workers, cpus, plot: &plot_name }
            .text(&table, shares.as_deref());
        write(&page, &text)?;
    }
    match arguments.check {
        Some(check) => promises(check, arguments.mode, &contestants),
        None => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("written to {}", path.display());
    Ok(())
}

fn ours(
    workspace: &Workspace,
    arguments: &Images,
    data: &Path,
    name: &'static str,
    mode: Mode,
) -> Contestant {
    let data = data.display().to_string();
    let epochs = arguments.epochs.to_string();
    let words = ["bench", &data, "--mode", mode.name(), "--epochs", &epochs];
    let fixed = ["--size", "224", "--batch", "32", "--layout", "nhwc-u8", "--json"];
    let words = words.into_iter().chain(fixed).map(str::to_owned).collect();
    Contestant::new(name, workspace.program("release", "spdl"), words)
}

/// Compares what was measured with what is promised, and says each.
fn promises(check: Check, mode: Mode, contestants: &[Contestant]) -> Result<()> {
    let (other, least) = match (check, mode) {
        (Check::Photos, _) => (Peer::LibjpegTurbo.name(), PHOTOS_TO_TURBO),
        (Check::Imagenet, Mode::Eval) => (Peer::LibjpegTurbo.name(), EVAL_TO_TURBO),
        (Check::Imagenet, Mode::Train) => (OUR_EVAL, TRAIN_TO_EVAL),
    };
    let Some(other) = contestants.iter().find(|contestant| contestant.name == other) else {
        bail!("--check needs the contestant {other}, which did not run");
    };
    let ratio = contestants[0].ratio_to(other);
    let line = format!(
        "{} is {ratio:.3} times as fast as {}; promised: at least {least}",
        contestants[0].name, other.name
    );
    ensure!(ratio >= least, "{line}");
    println!("{line}");
    Ok(())
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
        let (least, most) = range(contestant);
        let rate = contestant.rate();
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {:<width$} | {:>8.0} | {:>5.1}% | {:>11.2} | {:>8.0} | {:>6.0} | {:>10.0}% | {:>11.2} |",
            contestant.name,
            rate,
            100.0 * (most - least) / rate,
            median(contestant.of(|run| run.cpu_s_per_1000)),
            median(contestant.of(|run| run.first_batch_ms)),
            median(contestant.of(|run| run.peak_rss_bytes as f64)) / 1e6,
            100.0 * median(contestant.of(|run| run.foreign_cpu)),
            contestants[0].ratio_to(contestant),
        );
    }
    text
}

/// The smallest and the largest rate.
fn range(contestant: &Contestant) -> (f64, f64) {
    let rates = contestant.of(Run::images_per_s);
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    (least, rates.into_iter().fold(0.0, f64::max))
}

fn picture(arguments: &Images, contestants: &[Contestant]) -> String {
    let bars = contestants.iter().map(|contestant| Bar {
        label: contestant.name.to_owned(),
        value: contestant.rate(),
        range: range(contestant),
        ours: contestant.name == OURS,
    });
    let title = format!("JPEG files to batches, {} crop", arguments.mode.name());
    let unit =
        format!("images/s, median of {} runs; the line shows their range", arguments.repeats);
    plot::bars(&title, &unit, bars.collect())
}

/// Where the time of one image goes, by the example `decode_speed` of `spdl-media` on one thread:
/// its figures, and what follows from them. `None`, with the reason printed, where it does not run.
fn shares(workspace: &Workspace, data: &Path) -> Option<String> {
    let mut build = cargo();
    build.args(["build", "--release", "-p", "spdl-media", "--example", "decode_speed"]);
    let program = workspace.program("release/examples", "decode_speed");
    let figures = Output::Terminal.run(build.current_dir(&workspace.root)).and_then(|()| {
        let output = command(program).arg(data).stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "decode_speed failed: {}", output.status);
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    });
    match figures {
        Ok(text) => Some(share_table(&text)),
        Err(error) => {
            println!("SKIPPED: where our time goes: {error:#}");
            None
        }
    }
}

/// The steps of `decode_speed` from which shares follow: what each does beyond the one before.
const STEPS: [(&str, &str); 3] = [
    ("entropy, skipped", "entropy decoding"),
    ("planes", "inverse transform"),
    ("RGB", "upsampling and colour"),
];

/// Lines such as `planes, region   123.4   120.1`: the name, the median and the least, in µs.
fn share_table(text: &str) -> String {
    let mut figures = Vec::new();
    for line in text.lines() {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let last = words.pop().and_then(|word| word.parse::<f64>().ok());
        let middle = words.pop().and_then(|word| word.parse::<f64>().ok());
        if let (Some(median), Some(_)) = (middle, last) {
            figures.push((words.join(" "), median));
        }
    }
    let of = |name: &str| figures.iter().find(|(found, _)| found == name).map(|(_, time)| *time);
    let mut table = String::new();
    if let (Some(whole), Some(planes), Some(entropy)) = (of("RGB"), of(STEPS[1].0), of(STEPS[0].0))
    {
        table.push_str("| of decoding a whole image to RGB | µs | share |\n|---|--:|--:|\n");
        let mut before = 0.0;
        for ((_, name), until) in STEPS.into_iter().zip([entropy, planes, whole]) {
            let time = until - before;
            let _ = writeln!(table, "| {name} | {time:.0} | {:.0} % |", 100.0 * time / whole);
            before = until;
        }
        table.push('\n');
        let rest: Vec<_> = figures.iter().filter(|(name, _)| name.starts_with("fill")).collect();
        if !rest.is_empty() {
            table.push_str(
                "| the whole way into a batch | µs | of it entropy decoding of the whole file |\n\
                 |---|--:|--:|\n",
            );
            for (name, time) in rest {
                let _ = writeln!(table, "| {name} | {time:.0} | {:.0} % |", 100.0 * entropy / time);
            }
            table.push('\n');
        }
    }
    let _ = write!(table, "```text\n{}\n```\n", text.trim_end());
    table
}

struct Report<'a> {
    arguments: &'a Images,
    contestants: &'a [Contestant],
    workers: usize,
    cpus: usize,
    plot: &'a str,
}

impl Report<'_> {
    fn text(&self, table: &str, shares: Option<&str>) -> String {
        let Report { arguments, contestants, workers, cpus, plot } = self;
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
        let versions: String = contestants
            .iter()
            .filter(|contestant| !contestant.versions.is_empty())
            .map(|contestant| format!("- {}: {}\n", contestant.name, contestant.versions))
            .collect();
        let shares = match shares {
            Some(shares) => format!(
                "\n## Where our time goes\n\nOne thread, files in memory, µs per image \
                 (`cargo run --release -p spdl-media --example decode_speed -- FOLDER`).\n\n{shares}"
            ),
            None => String::new(),
        };
        format!(
            "# Images: JPEG files to batches\n\n\
             {files} {what}, unsigned bytes, batches of 32 x 224 x 224 x 3; {images} images a run, files in \
             the page cache.\n\n\
             ![The rates as bars]({plot})\n\n\
             {table}\n\
             {cpus} CPUs ({cpu}); {workers} workers for each peer. Contestants took turns, one warm-up and \
             {repeats} runs each; medians; spread = (largest - smallest) / median. A peer's time counts from \
             building its loader to its last batch, imports excluded. RSS is the peak of the sum over all \
             processes of a contestant; others' CPU is what other programs took of all CPUs. The last column \
             is the median of the ratios of neighbouring runs; differences under 10 % are noise.\n\n\
             \"{turbo}\" decodes whole files from memory with as many threads, and does nothing else: the \
             bound for loaders that decode the whole image with it. \"{aliased}\" does less work than the \
             others and looks different.\n\n\
             Versions:\n\n{versions}\n\
             Made by `cargo xtask bench images --mode {mode} --repeats {repeats} --epochs {epochs}`.\n\
             {shares}",
            images = contestants[0].runs[0].images,
            turbo = Peer::LibjpegTurbo.name(),
            aliased = Peer::TensorflowAliased.name(),
            repeats = arguments.repeats,
            mode = arguments.mode.name(),
            epochs = arguments.epochs,
        )
    }
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
        let mut contestant = Contestant::new(name, PathBuf::new(), Vec::new());
        contestant.runs = seconds.iter().map(run).collect();
        contestant
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
    fn a_missed_promise_is_an_error_that_tells_both_numbers() {
        let turbo = Peer::LibjpegTurbo.name();
        let check = |check, mode, other: &'static str, seconds: f64| {
            promises(check, mode, &[contestant(OURS, &[1.0]), contestant(other, &[seconds])])
        };
        assert!(check(Check::Imagenet, Mode::Eval, turbo, 0.96).is_ok());
        let error = check(Check::Imagenet, Mode::Eval, turbo, 0.94).unwrap_err().to_string();
        assert!(error.contains("0.940") && error.contains("0.95"), "{error}");
        assert!(check(Check::Photos, Mode::Eval, turbo, 1.31).is_ok());
        assert!(check(Check::Photos, Mode::Eval, turbo, 1.29).is_err());
        assert!(check(Check::Imagenet, Mode::Train, OUR_EVAL, 1.21).is_ok());
        assert!(check(Check::Imagenet, Mode::Train, OUR_EVAL, 1.19).is_err());
        assert!(check(Check::Imagenet, Mode::Train, turbo, 9.0).is_err(), "nothing to compare");
    }

    #[test]
    fn shares_are_what_each_step_adds() {
        let text = "2 images of x: µs per image, median and least:\n\
            entropy, skipped         60.0      59.0\nplanes      80.0   79.0\n\
            RGB   100.0 99.0\nfill eval nhwc-u8  120.0 110.0\n";
        let table = share_table(text);
        for row in [
            "| entropy decoding | 60 | 60 % |",
            "| inverse transform | 20 | 20 % |",
            "| upsampling and colour | 20 | 20 % |",
            "| fill eval nhwc-u8 | 120 | 50 % |",
        ] {
            assert!(table.contains(row), "{row} in {table}");
        }
        // An older or newer tool: its own words remain.
        assert_eq!(share_table("decode 9"), "```text\ndecode 9\n```\n");
    }
}
