//! `cargo xtask bench tar`: measures readers of tar shards, without decoding: ours, webdataset and
//! upstream's.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::thread;

use anyhow::{Result, ensure};
use clap::Args;

use super::contest::{self, Contestant};
use super::tar_shards::{self, TarShape};
use super::{peers, plot, table};
use crate::tools::{Output, Workspace, cargo};
use crate::venv::Venv;

/// Read the samples of tar shards without decoding, and compare with webdataset and upstream's
/// `iter_tarfile`.
///
/// All readers read the same shards from the page cache. Each reader is one process, except
/// PyTorch's DataLoader (--torch), which has two worker processes. Each reader runs once to warm
/// up; then the runs are interleaved (A B C A B C), and medians are shown. Our readers are: a
/// pipeline over a `WebDataset`, which can read samples in any order and decodes fields;
/// `TarStream` on one thread and with one thread per CPU; and `TarSlice` with one thread per CPU.
/// `TarStream` and `TarSlice` read sequentially, like `iter_tarfile`. The other readers (peers) are
/// installed below target/; a peer that cannot be installed is listed with the reason.
///
/// The command writes tables and plots to docs/benchmarks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench tar
  cargo xtask bench tar --check
  cargo xtask bench tar --torch --print-only     downloads gigabytes: torch")]
pub(crate) struct Tar {
    /// Number of measured runs of each reader
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Also measure webdataset with PyTorch's DataLoader and two worker processes
    #[arg(long)]
    torch: bool,
    /// Fail if a figure misses its promised value or was not measured
    #[arg(long)]
    check: bool,
    /// Print the results, but do not update docs/benchmarks
    #[arg(long)]
    print_only: bool,
}

const PIPELINE: &str = "SPDL in Rust, pipeline";
const STREAM: &str = "SPDL in Rust, TarStream";
const STREAM_IN_THREADS: &str = "SPDL in Rust, TarStream, one thread per CPU";
const SLICE_IN_THREADS: &str = "SPDL in Rust, TarSlice, one thread per CPU";
const WEBDATASET: &str = "webdataset";
const WEBDATASET_TORCH: &str = "webdataset, torch DataLoader, 2 workers";
const UPSTREAM: [&str; 4] = [
    "iter_tarfile of files",
    "iter_tarfile of files, one thread per CPU",
    "iter_tarfile of bytes",
    "iter_tarfile of bytes, one thread per CPU",
];

/// Minimum ratios of our rates to the rates of webdataset and of upstream's fastest reader.
const TIMES_WEBDATASET: f64 = 5.0;
const TIMES_UPSTREAM: f64 = 2.0;

/// The two sets of shards: large and small samples.
struct Set {
    name: &'static str,
    title: &'static str,
    shape: TarShape,
    epochs: u32,
}

const SETS: [Set; 2] = [
    Set {
        name: "large",
        title: "Samples of about 100 KB",
        shape: TarShape { shards: 8, samples_per_shard: 1250, bytes: 100_000 },
        epochs: 3,
    },
    Set {
        name: "small",
        title: "Samples of about 2 KB",
        shape: TarShape { shards: 8, samples_per_shard: 6250, bytes: 2_000 },
        epochs: 1,
    },
];

pub(super) fn run(workspace: &Workspace, arguments: &Tar) -> Result<()> {
    let mut build = cargo();
    build.args(["build", "--release", "-p", "spdl-io", "--example", "tar_samples"]);
    Output::Terminal.run(build.current_dir(&workspace.root))?;
    let peers = installed(workspace, arguments.torch);

    let (mut missed, mut page) = (0, String::new());
    for set in SETS {
        let folder = workspace.target.join("bench-tar").join(set.name);
        let shards = tar_shards::prepare(&folder, set.shape)?;
        let mut contestants = contestants(workspace, &peers, &set, &shards);
        contest::measure_all(&mut contestants, arguments.repeats)?;
        let table = table::of_medians(&contestants, "samples/s");
        println!("\n{}\n\n{table}", set.title);
        let verdicts = verdicts(&contestants);
        for (kept, line) in &verdicts {
            missed += usize::from(!kept);
            println!("{line}");
        }
        let plot = format!("tar-{}.svg", set.name);
        if !arguments.print_only {
            let repeats = arguments.repeats;
            let unit = format!("samples/s, median of {repeats} runs; the line shows their range");
            let bars = table::bars(&contestants, |name| name.starts_with("SPDL in Rust"));
            let path = workspace.root.join("docs/benchmarks").join(&plot);
            table::write(&path, &plot::bars(set.title, &unit, bars))?;
        }
        page += &section(&set, &plot, &table, &verdicts, &contestants);
    }
    if !arguments.print_only {
        let text = format!("{}{page}", introduction(arguments));
        table::write(&workspace.root.join("docs/benchmarks/tar.md"), &text)?;
    }
    ensure!(!arguments.check || missed == 0, "{missed} of the promises were missed");
    Ok(())
}

/// A Python interpreter, and the versions of the packages under test.
struct TarPeer {
    python: PathBuf,
    versions: String,
}

struct Peers {
    webdataset: Option<TarPeer>,
    torch: Option<TarPeer>,
    upstream: Option<TarPeer>,
}

fn installed(workspace: &Workspace, torch: bool) -> Peers {
    let prepare = |what: &str, environment: &str, packages: &[&str]| {
        let venv = Venv::prepare(workspace, &mut Output::Terminal, environment, packages);
        match venv {
            Ok(venv) => {
                let python = venv.python();
                let versions = peers::versions(&python, packages);
                Some(TarPeer { python, versions })
            }
            Err(error) => {
                println!("SKIPPED: {what}: {error:#}");
                None
            }
        }
    };
    if !torch {
        println!("SKIPPED: {WEBDATASET_TORCH}: torch takes gigabytes; --torch installs it");
    }
    Peers {
        webdataset: prepare(WEBDATASET, "venv-bench-tar", &["webdataset"]),
        torch: torch
            .then(|| prepare(WEBDATASET_TORCH, "venv-bench-tar-torch", &["webdataset", "torch"]))
            .flatten(),
        upstream: prepare(
            "iter_tarfile",
            "venv-bench-spdl",
            &["numpy", "spdl", "spdl-core", "spdl-io"],
        ),
    }
}

fn contestants(
    workspace: &Workspace,
    peers: &Peers,
    set: &Set,
    shards: &[PathBuf],
) -> Vec<Contestant> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let words = |first: Vec<String>| -> Vec<String> {
        let shards = shards.iter().map(|shard| shard.display().to_string());
        first.into_iter().chain([set.epochs.to_string()]).chain(shards).collect()
    };
    let ours = |name: &'static str, way: String| {
        let program = workspace.program("release/examples", "tar_samples");
        Contestant::new(name, program, words(vec![way]))
    };
    let mut all = vec![
        ours(PIPELINE, "pipeline".to_owned()),
        ours(STREAM, "stream:1".to_owned()),
        ours(STREAM_IN_THREADS, format!("stream:{threads}")),
        ours(SLICE_IN_THREADS, format!("slice:{threads}")),
    ];
    let mut others = |peer: &Option<TarPeer>, name: &'static str, script: &str, way: String| {
        if let Some(TarPeer { python, versions }) = peer {
            let script = workspace.root.join("xtask/peers").join(script).display().to_string();
            let mut contestant = Contestant::new(name, python.clone(), words(vec![script, way]));
            contestant.versions.clone_from(versions);
            all.push(contestant);
        }
    };
    let Peers { webdataset, torch, upstream } = peers;
    others(webdataset, WEBDATASET, "tar_webdataset.py", "plain".to_owned());
    others(torch, WEBDATASET_TORCH, "tar_webdataset.py", "workers:2".to_owned());
    let ways = ["stream:1".to_owned(), format!("stream:{threads}")];
    let ways = ways.into_iter().chain(["slice:1".to_owned(), format!("slice:{threads}")]);
    for (name, way) in UPSTREAM.into_iter().zip(ways) {
        others(upstream, name, "tar_iter_tarfile.py", way);
    }
    all
}

/// Promised and measured figures, and whether each promise is kept. A promise that was not measured
/// counts as missed.
fn verdicts(contestants: &[Contestant]) -> Vec<(bool, String)> {
    let named = |name: &str| contestants.iter().find(|contestant| contestant.name == name);
    let said = |kept: bool, line: String| table::verdict(kept, &line);
    let faster = |ours: &str, other: Option<&Contestant>, what: &str, times: f64| {
        let (Some(ours), Some(other)) = (named(ours), other) else {
            return said(false, format!("not measured: {what}"));
        };
        let ratio = ours.ratio_to(other);
        said(
            ratio >= times,
            format!("{}: {ratio:.2} x the rate of {what}; promised: at least {times} x", ours.name),
        )
    };
    let webdataset = named(WEBDATASET);
    let upstream = UPSTREAM.into_iter().filter_map(named);
    let upstream = upstream.max_by(|a, b| a.rate().total_cmp(&b.rate()));
    let fastest = upstream.map_or("iter_tarfile", |it| it.name);
    vec![
        faster(PIPELINE, webdataset, WEBDATASET, TIMES_WEBDATASET),
        faster(STREAM_IN_THREADS, webdataset, WEBDATASET, TIMES_WEBDATASET),
        faster(STREAM_IN_THREADS, upstream, fastest, TIMES_UPSTREAM),
    ]
}

fn introduction(arguments: &Tar) -> String {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    format!(
        "# Tar shards to samples, not decoded\n\n\
         The samples have two members each (`jpg`, `cls`); the shards are in the page cache. Each reader is one \
         process and receives the bytes of every member. The machine has {cpus} CPUs ({cpu}). Runs of the readers are interleaved: one \
         warm-up and {repeats} measured runs each. Figures are medians; \"spread\" is (largest - \
         smallest) / median. \
         Time is measured from opening the shards, or constructing the loader, to the last sample, without \
         imports; \"first ms\" is the time to the first sample in milliseconds. \"CPU s/1,000\" is the \
         CPU time in seconds per 1,000 samples. \"others' CPU\" is the share of all CPUs that other \
         programs used. Memory is the peak of the sum over all \
         processes (PSS), sampled every 100 ms. The last column is the rate of the first row divided by the rate of this row: \
         the median over pairs of consecutive runs.\n\n\
         - \"pipeline\": `WebDataset`, `FetchRecord` and `LocalFetcher` with all defaults. Each sample is a \
         separate read, so the samples can be read in any order; `cls` is parsed as a number. The warm-up run wrote the \
         index file of each shard.\n\
         - `TarStream` and `iter_tarfile` of files read each shard from start to end; a sample consists of \
         consecutive members with the same base name. `TarSlice` and `iter_tarfile` of bytes read shards that are \
         completely in memory.\n\n\
         Command: `cargo xtask bench tar --repeats {repeats}`.\n",
        cpu = table::cpu_model(),
        repeats = arguments.repeats,
    )
}

fn section(
    set: &Set,
    plot: &str,
    table: &str,
    verdicts: &[(bool, String)],
    contestants: &[Contestant],
) -> String {
    let TarShape { shards, samples_per_shard, .. } = set.shape;
    let mut text = format!(
        "\n## {}\n\n{shards} shards of {samples_per_shard} samples, {} samples per run.\n\n\
         ![Bar chart of the rates]({plot})\n\n{table}\nPromises:\n\n",
        set.title,
        set.shape.samples() as u64 * u64::from(set.epochs),
    );
    for (_, line) in verdicts {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "- {line}");
    }
    let _ = write!(text, "\nVersions:\n\n{}", table::versions(contestants));
    text
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::contestant;
    use super::*;

    fn kept(pipeline: f64, stream: f64, others: &[(&'static str, f64)]) -> Vec<bool> {
        let mut all = vec![
            contestant(PIPELINE, &[1.0 / pipeline]),
            contestant(STREAM_IN_THREADS, &[1.0 / stream]),
        ];
        all.extend(others.iter().map(|&(name, rate)| contestant(name, &[1.0 / rate])));
        verdicts(&all).into_iter().map(|(kept, _)| kept).collect()
    }

    #[test]
    fn ratios_are_those_to_webdataset_and_to_the_fastest_of_upstream() {
        let others = [(WEBDATASET, 1.0), (UPSTREAM[0], 3.0), (UPSTREAM[3], 4.0)];
        assert_eq!(kept(5.01, 8.01, &others), [true, true, true]);
        assert_eq!(kept(4.99, 8.01, &others), [false, true, true]);
        assert_eq!(kept(5.01, 7.99, &others), [true, true, false]);
        assert_eq!(kept(5.01, 4.99, &others[..2]), [true, false, false]);
    }

    #[test]
    fn unmeasured_promises_are_not_kept() {
        assert_eq!(kept(9.0, 9.0, &[]), [false, false, false]);
        assert_eq!(kept(9.0, 9.0, &[(WEBDATASET, 1.0)]), [true, true, false]);
    }
}
