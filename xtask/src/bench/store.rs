//! `cargo xtask bench store`: compares loading from a store with latency and from local files.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use super::contest::{self, Contestant, median};
use super::{plot, table};
use crate::dataset;
use crate::tools::{Output, Workspace, cargo, command};

/// Compare the speed of loading images as batches from a store with latency and from local files.
///
/// `spdl bench` reads the same files from three sources: a folder; an S3 server on loopback with
/// delayed responses; and a second such server, which never responds to 1 % of the requests.
/// `spdl bench` chooses the number of requests in flight. If the machine has more than one CPU,
/// `spdl bench` decodes on all CPUs but one; the network thread and the servers, which are separate
/// processes, use the remaining CPU. Each source is read once to warm up; then the runs are
/// interleaved (A B C A B C). The in-flight window grows in the first epoch; the result is the
/// median of the other epochs.
///
/// The command writes a table and a plot to docs/benchmarks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench store
  cargo xtask bench store --check
  cargo xtask bench store --latency 100 --print-only")]
pub(crate) struct Store {
    /// Number of measured runs for each of the three sources
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeats: u32,
    /// Number of epochs in each run
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(2..=64))]
    epochs: u32,
    /// Delay of each response of the servers, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 30)]
    latency: u32,
    /// Fail if a measured figure misses its promised value
    #[arg(long)]
    check: bool,
    /// Print the results, but do not update docs/benchmarks
    #[arg(long)]
    print_only: bool,
}

const LOCAL: &str = "files of this machine";
const STORE: &str = "a store";
const LOSSY: &str = "a store that loses 1 % of the requests";
pub(super) const BUCKET: &str = "bucket";
const LOST: f64 = 0.01;

/// Minimum ratios of rates: store to local files, and store with lost requests to store without.
const OF_LOCAL: f64 = 0.95;
const OF_CLEAN: f64 = 0.95;
/// The ratio of the p99 to the median time of a read must be below this limit.
const P99_TO_P50: f64 = 3.0;
/// Maximum ratio of additional requests to reads.
const MORE_REQUESTS: f64 = 0.05;

pub(super) fn run(workspace: &Workspace, arguments: &Store) -> Result<()> {
    let data = dataset::for_benchmarks(workspace)?;
    build(workspace)?;

    let cpus = allowed_cpus();
    let threads = cpus.len().saturating_sub(1).max(1);
    let last = cpus.last().filter(|_| cpus.len() > 1).copied();
    let start = |lost| Server::start(workspace, &data, arguments.latency, lost, None, last);
    let (clean, lossy) = (start(0.0)?, start(LOST)?);
    let contestant = |name, data: &str, server: Option<&Server>| {
        let program = workspace.program("release", "spdl").display().to_string();
        let epochs = arguments.epochs.to_string();
        let mut words = server.map_or_else(Vec::new, Server::environment);
        words.extend([program, "bench".into(), data.into(), "--json".into()]);
        words.extend(["--epochs".into(), epochs, "--threads".into(), threads.to_string()]);
        Contestant::new(name, PathBuf::from("env"), words).warm()
    };
    let bucket = format!("s3://{BUCKET}/");
    let mut contestants = vec![
        contestant(LOCAL, &data.display().to_string(), None),
        contestant(STORE, &bucket, Some(&clean)),
        contestant(LOSSY, &bucket, Some(&lossy)),
    ];
    contest::measure_all(&mut contestants, arguments.repeats)?;
    ensure!(contestants.len() == 3, "not every source could be measured");
    let checksums = contestants.iter().flat_map(|it| &it.reports).map(|it| &it["checksum"]);
    let checksums: Vec<&Value> = checksums.collect();
    ensure!(
        checksums.iter().all(|checksum| checksum.is_string() && *checksum == checksums[0]),
        "the checksums of the batches differ: {checksums:?}"
    );
    let reads = (u64::from(arguments.repeats) + 1) * u64::from(arguments.epochs);
    let reads = reads * u64::from(dataset::BENCHMARK_IMAGES);
    let more = lossy.stop()?.more_than(reads);
    let clean = clean.stop()?.more_than(reads);

    let table = table::of_medians(&contestants, "images/s");
    let reads = reads_table(&contestants);
    let verdicts = verdicts(&contestants, clean, more);
    println!("\n{table}\n{reads}");
    verdicts.iter().for_each(|(_, line)| println!("{line}"));
    if !arguments.print_only {
        write(workspace, arguments, &contestants, threads, &verdicts)?;
    }
    let missed = verdicts.iter().filter(|(kept, _)| !kept).count();
    ensure!(!arguments.check || missed == 0, "{missed} of the promises were missed");
    Ok(())
}

/// Builds the program and the server.
pub(super) fn build(workspace: &Workspace) -> Result<()> {
    for words in [
        &["-p", "spdl-cli", "--features", "s3"][..],
        &["-p", "spdl-io", "--features", "http,testing", "--example", "store_server"],
    ] {
        let mut build = cargo();
        build.args(["build", "--release"]).args(words);
        Output::Terminal.run(build.current_dir(&workspace.root))?;
    }
    Ok(())
}

/// Packs a folder as tar shards.
pub(super) fn pack(workspace: &Workspace, folder: &Path, shards: &Path) -> Result<()> {
    let mut pack = command(workspace.program("release", "spdl"));
    pack.arg("pack").args([folder, shards]);
    pack.args(["--shard-size", "64MB", "--overwrite", "--json"]);
    contest::report(&mut pack)?;
    Ok(())
}

/// The CPUs that this process may use.
pub(super) fn allowed_cpus() -> Vec<usize> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    numbers(allowed.unwrap_or_default())
}

/// Parses a list of CPUs such as `0-3,8`.
fn numbers(list: &str) -> Vec<usize> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse::<usize>().ok()?)
    });
    ranges.flatten().collect()
}

/// A store in a separate process.
pub(super) struct Server {
    process: Child,
    /// The server exits when this pipe is closed.
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
    url: String,
}

/// Statistics of a server.
pub(super) struct Served {
    pub(super) requests: u64,
}

impl Served {
    /// The ratio of additional requests to reads; requests that list objects count as additional.
    fn more_than(&self, reads: u64) -> f64 {
        self.requests as f64 / reads as f64 - 1.0
    }
}

impl Server {
    /// `checksum` is the checksum in the headers of whole objects: `crc32c` or `md5`.
    pub(super) fn start(
        workspace: &Workspace,
        data: &Path,
        latency: u32,
        lost: f64,
        checksum: Option<&str>,
        cpu: Option<usize>,
    ) -> Result<Self> {
        let program = workspace.program("release/examples", "store_server");
        let mut server = match cpu {
            Some(cpu) => {
                let mut pinned = command("taskset");
                pinned.args(["-c", &cpu.to_string()]).arg(program);
                pinned
            }
            None => Command::new(program),
        };
        server.arg(data).args([BUCKET, &latency.to_string(), &lost.to_string()]).args(checksum);
        server.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = server.spawn().context("cannot start the server or `taskset`")?;
        let input = process.stdin.take();
        let output = process.stdout.take().context("the server's standard output is not piped")?;
        let mut server =
            Server { process, input, output: BufReader::new(output), url: String::new() };
        server.url = server.line().context("the server printed no address")?;
        Ok(server)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(!line.is_empty(), "the server has exited");
        Ok(line.trim().to_owned())
    }

    /// Environment variables with the address and the credentials of the store.
    pub(super) fn environment(&self) -> Vec<String> {
        let variables = [
            ("AWS_ENDPOINT_URL", self.url.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_ACCESS_KEY_ID", "example"),
            ("AWS_SECRET_ACCESS_KEY", "nothing secret"),
            ("AWS_REGION", "nowhere-1"),
        ];
        variables.map(|(name, value)| format!("{name}={value}")).into()
    }

    pub(super) fn stop(mut self) -> Result<Served> {
        drop(self.input.take());
        let reported: Value = serde_json::from_str(&self.line()?)?;
        let requests = reported["requests"]
            .as_u64()
            .context("the server did not report the number of requests")?;
        Ok(Served { requests })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Durations and in-flight window of reads: medians over the runs.
#[derive(Clone, Copy)]
struct Reads {
    p50_ms: f64,
    p99_ms: f64,
    in_flight: f64,
}

fn reads(contestant: &Contestant) -> Reads {
    let of = |find: &dyn Fn(&Value) -> Option<f64>| {
        let reports = contestant.reports.iter();
        let values: Vec<f64> = reports.filter_map(|report| find(fetch_stage(report)?)).collect();
        if values.is_empty() { f64::NAN } else { median(values) }
    };
    Reads {
        p50_ms: of(&|stage| stage["service_ms"]["p50"].as_f64()),
        p99_ms: of(&|stage| stage["service_ms"]["p99"].as_f64()),
        in_flight: of(&|stage| stage["concurrency"].as_f64()),
    }
}

pub(super) fn fetch_stage(report: &Value) -> Option<&Value> {
    report["stages"].as_array()?.iter().find(|stage| stage["name"] == "fetch")
}

fn reads_table(contestants: &[Contestant]) -> String {
    let mut text = "| reads | p50 ms | p99 ms | in-flight window at the end |\n\
                    |-------|-------:|-------:|----------------------------:|\n"
        .to_owned();
    for contestant in contestants {
        let Reads { p50_ms, p99_ms, in_flight } = reads(contestant);
        let name = contestant.name;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {name} | {p50_ms:.2} | {p99_ms:.2} | {in_flight:.0} |");
    }
    text
}

/// Promised and measured figures, and whether each promise is kept. The last two arguments are
/// ratios of additional requests to reads.
fn verdicts(contestants: &[Contestant], clean_more: f64, lossy_more: f64) -> Vec<(bool, String)> {
    let [local, store, lossy] = contestants else { return Vec::new() };
    let said = |kept: bool, line: String| table::verdict(kept, &line);
    let of_local = store.ratio_to(local);
    let of_clean = lossy.ratio_to(store);
    let Reads { p50_ms, p99_ms, .. } = reads(lossy);
    let tail = p99_ms / p50_ms;
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    vec![
        said(
            of_local >= OF_LOCAL,
            format!("{of_local:.3} x the rate of {LOCAL}; promised: at least {OF_LOCAL} x"),
        ),
        said(
            of_clean >= OF_CLEAN,
            format!(
                "with 1 % of the requests lost: {of_clean:.3} x the rate of {STORE}; promised: at least {OF_CLEAN} x"
            ),
        ),
        said(
            tail < P99_TO_P50,
            format!(
                "with 1 % of the requests lost: p99 of reads is {tail:.2} x p50; promised: less than {P99_TO_P50} x"
            ),
        ),
        said(
            lossy_more <= MORE_REQUESTS,
            format!(
                "with 1 % of the requests lost: {} more requests than reads (without losses: {}); promised: at most {}",
                percent(lossy_more),
                percent(clean_more),
                percent(MORE_REQUESTS)
            ),
        ),
    ]
}

fn write(
    workspace: &Workspace,
    arguments: &Store,
    contestants: &[Contestant],
    threads: usize,
    verdicts: &[(bool, String)],
) -> Result<()> {
    let folder = workspace.root.join("docs/benchmarks");
    let Store { repeats, epochs, latency, .. } = arguments;
    let unit = format!("images/s, median of {repeats} runs; the line shows their range");
    let bars = table::bars(contestants, |_| true);
    table::write(&folder.join("store.svg"), &plot::bars("A store with latency", &unit, bars))?;
    let count = thread::available_parallelism().map_or(1, usize::from);
    let mut text = format!(
        "# A store with latency\n\n\
         `spdl bench` loads 2,000 images of the sizes in ImageNet into uint8 batches of 32 x 224 x 224 x 3 \
         from three sources: a folder in the page cache; an S3 server on loopback that delays each response by \
         {latency} ms; and the same server, which does not respond to 1 % of the requests. The machine \
         has {count} CPUs ({cpu}). The number of decoding threads is {threads}. The remaining CPU runs the network thread and the server. Runs of the sources \
         are interleaved: one warm-up and {repeats} runs of {epochs} epochs each. Figures are medians; \
         \"spread\" is (largest - smallest) / median. The rate is the median of all epochs except the first, in which the in-flight window grows; \
         the other columns cover the whole run; \"first ms\" is the time to the first batch in \
         milliseconds. \"CPU s/1,000\" is the CPU time in seconds \
         per 1,000 images, and \"others' CPU\" is the share of all CPUs that other programs used. All \
         runs delivered the same bytes. The last column \
         is the rate of the first row divided by the rate of this row: the median over pairs of consecutive \
         runs.\n\n\
         Command: `cargo xtask bench store --repeats {repeats} --epochs {epochs} --latency {latency}`.\n\n\
         ![Bar chart of the rates](store.svg)\n\n{table}\n\
         The next table shows the duration of one read in all epochs, from its request to its last byte, \
         including retries. It also shows the in-flight window that the engine chose.\n\n{reads}\n\
         Promises:\n\n",
        cpu = table::cpu_model(),
        table = table::of_medians(contestants, "images/s"),
        reads = reads_table(contestants),
    );
    for (_, line) in verdicts {
        let _ = writeln!(text, "- {line}");
    }
    table::write(&folder.join("store.md"), &text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::table::tests::contestant;
    use super::*;

    fn kept(seconds: [f64; 3], p99: f64, more: f64) -> Vec<bool> {
        let mut all: Vec<_> = [LOCAL, STORE, LOSSY]
            .into_iter()
            .zip(seconds)
            .map(|(name, s)| contestant(name, &[s]))
            .collect();
        for contestant in &mut all {
            let fetch =
                json!({"name": "fetch", "concurrency": 64, "service_ms": {"p50": 30, "p99": p99}});
            contestant.reports = vec![json!({"stages": [{"name": "source"}, fetch]})];
        }
        verdicts(&all, 0.0, more).into_iter().map(|(kept, _)| kept).collect()
    }

    #[test]
    fn each_promise_is_evaluated_separately() {
        assert_eq!(kept([1.0, 1.05, 1.10], 89.0, 0.05), [true; 4]);
        assert_eq!(kept([1.0, 1.06, 1.10], 89.0, 0.05), [false, true, true, true]);
        assert_eq!(kept([1.0, 1.05, 1.11], 89.0, 0.05), [true, false, true, true]);
        assert_eq!(kept([1.0, 1.05, 1.10], 90.0, 0.05), [true, true, false, true]);
        assert_eq!(kept([1.0, 1.05, 1.10], 89.0, 0.051), [true, true, true, false]);
    }

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(numbers("\t0-1\n"), [0, 1]);
        assert_eq!(numbers("2,4-6"), [2, 4, 5, 6]);
        assert_eq!(numbers(""), [0_usize; 0]);
    }

    #[test]
    fn requests_are_counted_beyond_the_reads() {
        assert!((Served { requests: 1050 }.more_than(1000) - 0.05).abs() < 1e-12);
    }
}
