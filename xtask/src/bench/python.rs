//! `cargo xtask bench python`: compares the Python package with `spdl bench`, PyTorch's DataLoader
//! and upstream.

use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::Value;

use super::contest::{self, Contestant, median};
use super::peers::{self, Peer, PeerTask};
use super::{plot, table};
use crate::dataset;
use crate::demo::build_spdl;
use crate::tools::{Output, Workspace};
use crate::wheel;

/// Compare `spdl_rs` with `spdl bench`, torchvision in PyTorch's DataLoader, and upstream (the
/// original SPDL).
///
/// There are four measurements: the rate of `ImageLoader`; the time to open an Arrow table; the time per item of a
/// pipeline of Python functions; and how much a loader slows down a training loop that holds the GIL for half
/// of its time. Each program runs once to warm up; then the runs are interleaved (A B C A B C).
///
/// The command writes tables and a plot to docs/benchmarks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench python
  cargo xtask bench python --check
  cargo xtask bench python --no-peers --print-only")]
pub(crate) struct Python {
    /// Number of measured runs of each program
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Number of epochs in each run of the first measurement (images)
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Do not install torch, torchvision and upstream's package, and do not measure them
    #[arg(long)]
    no_peers: bool,
    /// Python interpreter with torch, torchvision, numpy and Pillow; if given, torch and
    /// torchvision are not installed
    #[arg(long, value_name = "PROGRAM")]
    torch_python: Option<PathBuf>,
    /// Fail if a figure misses its promised value or was not measured
    #[arg(long)]
    check: bool,
    /// Print the results, but do not update docs/benchmarks
    #[arg(long)]
    print_only: bool,
}

const LOADER: &str = "spdl_rs.ImageLoader";
const FIELDS: &str = "spdl_rs.Loader, image and label";
const BATCH_MAP: &str = "spdl_rs.Loader, and batch_map";
const MAP: &str = "spdl_rs.Loader, and map";
const PROGRAM: &str = "spdl bench, our program";
const FUNCTIONS: &str = "spdl_rs, three functions";
const UPSTREAM_FUNCTIONS: &str = "spdl (Python, C++), three functions";
const BESIDE_LOADER: &str = "training loop with an ImageLoader";
const BESIDE_PROCESS: &str = "training loop with spdl bench in another process";
const ALONE: &str = "training loop alone";
const TABLE: &str = "spdl_rs.Loader, Arrow table of 1,000,000 rows";

/// Number of worker processes of PyTorch's DataLoader, and concurrency of upstream's decoding.
const WORKERS: usize = 2;
/// Minimum ratios of rates.
const OF_PROGRAM: f64 = 0.95;
const OF_LOADER: f64 = 0.97;
const OF_TORCHVISION: f64 = 1.5;
const OF_UPSTREAM: f64 = 2.5;
/// Maximum ratio of our memory to the memory of PyTorch's DataLoader.
const OF_TORCH_MEMORY: f64 = 0.2;
/// Maximum time from the first import of a program to its first batch, in milliseconds.
const FIRST_BATCH_MS: f64 = 300.0;
/// Maximum time of the main thread per sample if a Python function maps each sample, in microseconds.
const MAP_US: f64 = 8.0;
/// Maximum times to open a table after Arrow has opened it, and to its first batch, in milliseconds.
const OPEN_MS: f64 = 50.0;
const FIRST_OF_TABLE_MS: f64 = 300.0;
/// Maximum memory that a table may need up to its first batch, in MB. Its columns have 208 MB.
const COPIED_MB: f64 = 21.0;
/// Maximum time per item and per stage, in microseconds.
const ITEM_US: f64 = 5.0;
const STAGES: f64 = 3.0;
/// Minimum ratio of the speed of a training loop with a loader in its process to the speed of a
/// training loop with a loader in another process.
const OF_TRAINER: f64 = 0.97;

pub(super) fn run(workspace: &Workspace, arguments: &Python) -> Result<()> {
    let data = dataset::for_benchmarks(workspace)?;
    build_spdl(workspace)?;
    let venv = wheel::install(workspace, &mut Output::Terminal, "venv-bench-python", false)?;
    venv.install(&mut Output::Terminal, &["pyarrow"])?;
    let python = venv.python();
    let program = workspace.program("release", "spdl").display().to_string();
    let folder = data.display().to_string();
    let epochs = arguments.epochs.to_string();
    let script = |name: &'static str, script: &str, python: &Path, words: &[&str]| {
        let script = workspace.root.join("xtask/python_bench").join(script).display().to_string();
        let words = words.iter().map(|&word| word.to_owned());
        Contestant::new(name, python.to_owned(), [script].into_iter().chain(words).collect())
    };

    let rust = ["bench", &folder, "--epochs", &epochs, "--json", "--no-checksum"];
    let rust = rust.map(str::to_owned).to_vec();
    let loader = |name: &'static str, kind: &str| {
        let words = [&folder, "--epochs", &epochs, "--loader", kind];
        script(name, "image_loader.py", &python, &words)
    };
    let mut images = vec![
        script(LOADER, "image_loader.py", &python, &[&folder, "--epochs", &epochs]),
        loader(FIELDS, "Loader"),
        loader(BATCH_MAP, "batch_map"),
        loader(MAP, "map"),
        Contestant::new(PROGRAM, workspace.program("release", "spdl"), rust),
    ];
    let mut functions = vec![script(FUNCTIONS, "functions.py", &python, &["spdl_rs"])];
    if !arguments.no_peers {
        let task = PeerTask {
            data: &data,
            mode: "eval",
            epochs: arguments.epochs,
            workers: WORKERS,
            torch_python: arguments.torch_python.as_deref(),
        };
        images.extend(peers::prepare(workspace, &[Peer::Torchvision, Peer::Spdl], &task)?);
        match peers::interpreter(workspace, Peer::Spdl, &task) {
            Ok(python) => {
                let words = ["spdl", "--passes", "1"];
                functions.push(script(UPSTREAM_FUNCTIONS, "functions.py", &python, &words));
            }
            Err(error) => println!("SKIPPED: {UPSTREAM_FUNCTIONS}: {error:#}"),
        }
    }
    let trainer = |name, words: &[&str]| {
        let words: Vec<&str> = [folder.as_str()].iter().chain(words).copied().collect();
        script(name, "trainer.py", &python, &words)
    };
    let mut trainers = vec![
        trainer(BESIDE_LOADER, &["loader"]),
        trainer(BESIDE_PROCESS, &["process", "--program", &program]),
        trainer(ALONE, &["nothing"]),
    ];
    let tables = workspace.target.join("bench-tables").display().to_string();
    let mut table = vec![script(TABLE, "arrow_table.py", &python, &[&tables])];
    for contestants in [&mut images, &mut table, &mut functions, &mut trainers] {
        contest::measure_all(contestants, arguments.repeats)?;
    }

    let parts = [
        Part {
            title: "Images to batches",
            note: "Each loader reads JPEG files of the sizes in ImageNet, from the page cache, and makes \
                   uint8 batches of 32 x 224 x 224 x 3. Torch's loader has 2 worker processes. Time is measured \
                   from the construction of the iterator to the last batch, without imports. The function of \
                   the third row does nothing: it is called with each batch.",
            unit: "images/s",
            contestants: &images,
        },
        Part {
            title: "Arrow table",
            note: "The table has a binary column of 200 bytes per row and a column of numbers, in a file that pyarrow maps \
                   into memory. The loader delivers 400 shuffled batches of 256 rows.",
            unit: "rows/s",
            contestants: &table,
        },
        Part {
            title: "Pipelines of Python functions",
            note: "A pipeline passes 20,000 numbers through three functions that do nothing, each with \
                   concurrency 2. The time per item and per stage is 1,000,000 / (3 x the rate) microseconds.",
            unit: "items/s",
            contestants: &functions,
        },
        Part {
            title: "A training loop that holds the GIL for half of its time",
            note: "Each training step computes in pure Python and then waits 5 ms. An `ImageLoader` with one thread \
                   runs concurrently at full speed, in the same process. For comparison, `spdl bench` does the \
                   same work in another process, which uses the same CPU time but not the GIL of the loop.",
            unit: "steps/s",
            contestants: &trainers,
        },
    ];
    let verdicts = verdicts([&images, &table, &functions, &trainers]);
    for Part { title, unit, contestants, .. } in &parts {
        println!("\n{title}\n\n{}", table::of_medians(contestants, unit));
    }
    verdicts.iter().for_each(|(_, line)| println!("{line}"));
    if !arguments.print_only {
        write(workspace, arguments, &parts, &verdicts)?;
    }
    let missed = verdicts.iter().filter(|(kept, _)| !kept).count();
    ensure!(
        !arguments.check || missed == 0,
        "{missed} of the promises were missed or not measured"
    );
    Ok(())
}

/// One measurement and the programs that it compares.
struct Part<'a> {
    title: &'static str,
    note: &'static str,
    unit: &'static str,
    contestants: &'a [Contestant],
}

/// Promised and measured figures, and whether each promise is kept. A promise that was not measured
/// counts as missed.
fn verdicts(measured: [&[Contestant]; 4]) -> Vec<(bool, String)> {
    let named = |name: &str| {
        let mut all = measured.into_iter().flatten();
        all.find(|contestant| contestant.name == name)
    };
    let said = |kept: bool, line: String| table::verdict(kept, &line);
    let least = |ours: &str, other: &str, times: f64| match (named(ours), named(other)) {
        (Some(ours), Some(other)) => {
            let ratio = ours.ratio_to(other);
            said(
                ratio >= times,
                format!(
                    "{}: {ratio:.3} x the rate of {other}; promised: at least {times} x",
                    ours.name,
                    other = other.name
                ),
            )
        }
        _ => said(false, format!("not measured: {ours} compared with {other}")),
    };
    let most = |what: &str, found: Option<f64>, limit: f64| match found {
        Some(found) => {
            said(found <= limit, format!("{found:.2} {what}; promised: at most {limit}"))
        }
        None => said(false, format!("not measured: {what}")),
    };
    let memory =
        |name: &str| named(name).map(|it| median(it.of(|run| run.peak_memory_bytes as f64)));
    let torch = Peer::Torchvision.name();
    let share = memory(LOADER).zip(memory(torch)).map(|(ours, other)| ours / other);
    let reported = |name: &str, key: &str| {
        let of = |report: &Value| report[key].as_f64();
        let values: Vec<f64> = named(name)?.reports.iter().filter_map(of).collect();
        (!values.is_empty()).then(|| median(values))
    };
    let item_us = named(FUNCTIONS).map(|it| 1e6 / (STAGES * it.rate()));
    vec![
        least(LOADER, PROGRAM, OF_PROGRAM),
        least(FIELDS, LOADER, OF_LOADER),
        least(BATCH_MAP, LOADER, OF_LOADER),
        least(LOADER, torch, OF_TORCHVISION),
        least(LOADER, Peer::Spdl.name(), OF_UPSTREAM),
        most("x the memory of torch's loader", share, OF_TORCH_MEMORY),
        most(
            "ms from the first import to the first batch",
            reported(LOADER, "import_to_first_batch_ms"),
            FIRST_BATCH_MS,
        ),
        most(
            "µs of the main thread per sample, if a Python function maps each sample",
            reported(MAP, "main_thread_us"),
            MAP_US,
        ),
        most("ms to open the Arrow table", reported(TABLE, "open_ms"), OPEN_MS),
        most("ms to its first batch", reported(TABLE, "first_batch_ms"), FIRST_OF_TABLE_MS),
        most("MB more memory up to its first batch", reported(TABLE, "copied_mb"), COPIED_MB),
        most("µs per item and per stage, for stages that are Python functions", item_us, ITEM_US),
        least(BESIDE_LOADER, BESIDE_PROCESS, OF_TRAINER),
    ]
}

fn write(
    workspace: &Workspace,
    arguments: &Python,
    parts: &[Part<'_>],
    verdicts: &[(bool, String)],
) -> Result<()> {
    let folder = workspace.root.join("docs/benchmarks");
    let count = thread::available_parallelism().map_or(1, usize::from);
    let Python { repeats, epochs, .. } = arguments;
    let mut text = format!(
        "# Python\n\n\
         The machine has {count} CPUs ({cpu}). Runs of the loaders are interleaved: one warm-up and {repeats} measured runs each. Figures are \
         medians; \"spread\" is (largest - smallest) / median. Memory is the peak of the sum over all \
         processes (PSS). \"first ms\" is the time to the first batch or item in milliseconds. \"CPU \
         s/1,000\" is the CPU time in seconds per 1,000 images, items or steps. \"others' CPU\" is the \
         share of all CPUs that other programs used. The last column is the rate of the first row divided by the rate of this row: the median over \
         pairs of consecutive runs.\n\n\
         Command: `cargo xtask bench python --repeats {repeats} --epochs {epochs}`.\n",
        cpu = table::cpu_model(),
    );
    if let [images, ..] = parts {
        let unit = format!("images/s, median of {repeats} runs; the line shows their range");
        let bars = table::bars(images.contestants, |name| name == LOADER);
        table::write(&folder.join("python.svg"), &plot::bars("Python", &unit, bars))?;
        text.push_str("\n![Bar chart of the rates](python.svg)\n");
    }
    for Part { title, note, unit, contestants } in parts {
        text += &table::section(title, note, unit, contestants);
    }
    text += &table::promises(verdicts);
    table::write(&folder.join("python.md"), &text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::table::tests::contestant;
    use super::*;

    fn kept(loader_s: f64, item_s: f64, beside_s: f64, first_ms: f64, open_ms: f64) -> Vec<bool> {
        let mut loader = contestant(LOADER, &[loader_s]);
        loader.reports = vec![json!({ "import_to_first_batch_ms": first_ms })];
        let mut torch = contestant(Peer::Torchvision.name(), &[1.6]);
        torch.runs[0].peak_memory_bytes *= 6;
        let others =
            [(FIELDS, 1.0), (BATCH_MAP, 1.0), (MAP, 1.0), (PROGRAM, 1.0), (Peer::Spdl.name(), 2.6)];
        let mut others = others.map(|(name, seconds)| contestant(name, &[seconds]));
        others[2].reports = vec![json!({ "main_thread_us": open_ms / 10.0 })];
        let mut table = contestant(TABLE, &[1.0]);
        table.reports =
            vec![json!({ "open_ms": open_ms, "first_batch_ms": 100.0, "copied_mb": open_ms })];
        let images: Vec<_> = [loader, torch].into_iter().chain(others).collect();
        let functions = [contestant(FUNCTIONS, &[item_s])];
        let trainers = [contestant(BESIDE_LOADER, &[beside_s]), contestant(BESIDE_PROCESS, &[1.0])];
        let measured = verdicts([&images, &[table], &functions, &trainers]);
        measured.into_iter().map(|(kept, _)| kept).collect()
    }

    #[test]
    fn promises_beyond_their_thresholds_are_not_kept() {
        // 1000 items in 15 ms are 5 µs per item and per stage.
        assert_eq!(kept(1.0, 0.014, 1.02, 299.0, 20.0), [true; 13]);
        assert_eq!(
            kept(1.07, 0.016, 1.04, 301.0, 90.0),
            [false, true, true, false, false, true, false, false, false, true, false, false, false]
        );
    }

    #[test]
    fn unmeasured_promises_are_not_kept() {
        let verdicts = verdicts([&[contestant(LOADER, &[1.0])], &[], &[], &[]]);
        assert!(verdicts.iter().filter(|(kept, _)| *kept).count() == 0, "{verdicts:?}");
    }
}
