//! `cargo xtask bench tune`: compares tuned loaders with default settings and with a search on a grid.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::thread;

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::Value;

use super::contest::{self, median};
use super::plot::Bar;
use super::{plot, store, table};
use crate::dataset;
use crate::tools::{Output, Workspace, command};
use crate::wheel;

/// Compare tuned loaders with default settings, and with the best settings of a search on a grid.
///
/// There are five workloads: local JPEG files; an S3 server on loopback with 80 ms per response; tar shards on a
/// throttled disk; a Python function that waits; and videos of two sizes, if `cargo xtask bench video` has made them.
/// For each, a short run with each point of a grid finds the best static settings. Then runs without tuning, with
/// default settings (only threads that wait are tuned), tuned, and with the best settings are interleaved. Their rates are measured after the first 10 s. For the server,
/// more tuned runs begin with 5 ms per response, which becomes 80 ms after 10 s.
///
/// The command writes tables and a plot to docs/benchmarks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench tune
  cargo xtask bench tune --only function --rounds 1 --print-only
  cargo xtask bench tune --check")]
pub(crate) struct Tune {
    /// Number of runs of each kind
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Length of a run in seconds
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(14..))]
    seconds: u32,
    /// Measure only these workloads: jpeg, store, tar, function, video
    #[arg(long, num_args = 1.., value_name = "WORKLOAD", value_parser = clap::builder::PossibleValuesParser::new(WORKLOADS.map(|it| it.0)))]
    only: Vec<String>,
    /// Fail if a measured figure misses its promised value
    #[arg(long)]
    check: bool,
    /// Print the results, but do not update docs/benchmarks
    #[arg(long)]
    print_only: bool,
}

/// Name and title.
const WORKLOADS: [(&str, &str); 5] = [
    ("jpeg", "local JPEG files"),
    ("store", "a store with 80 ms per response"),
    ("tar", "tar shards on a throttled disk"),
    ("function", "a Python function that waits for 5 ms"),
    ("video", "videos of two sizes"),
];

/// Minimum ratios of rates: tuned to the best of the grid, tuned to default settings.
const OF_BEST: f64 = 0.95;
const OF_DEFAULT: f64 = 0.98;
/// Maximum time until the rate is 95 % of the best of the grid, in seconds: from the start, and after a change.
const REACHED_S: f64 = 10.0;
/// Maximum share of the rate that the tuner and a reader of the monitor may cost.
const WATCHED: f64 = 0.99;

pub(super) fn run(workspace: &Workspace, arguments: &Tune) -> Result<()> {
    let images = dataset::for_benchmarks(workspace)?;
    store::build(workspace)?;
    let shards = workspace.target.join("plan-shards");
    store::pack(workspace, &images, &shards)?;
    let venv = wheel::install(workspace, &mut Output::Terminal, "venv-bench-python", false)?;

    let mut measured = Vec::new();
    for (name, title) in WORKLOADS {
        if !arguments.only.is_empty() && !arguments.only.iter().any(|it| it == name) {
            continue;
        }
        let data: PathBuf = match name {
            "tar" => shards.clone(),
            "video" => workspace.target.join("demo/recipes/video"),
            _ => images.clone(),
        };
        let mut program = command(venv.python());
        program.arg(workspace.root.join("xtask/python_bench/tune.py")).arg(name).arg(&data);
        program.arg("--server").arg(workspace.program("release/examples", "store_server"));
        program.args(["--rounds", &arguments.rounds.to_string()]);
        program.args(["--seconds", &arguments.seconds.to_string()]);
        eprintln!("{title}");
        if !data.is_dir() {
            println!("SKIPPED: {title}: there is no {}", data.display());
            continue;
        }
        match contest::report(&mut program) {
            Ok((report, _)) => measured.push(Workload::of(title, &report)?),
            Err(error) => println!("SKIPPED: {title}: {error:#}"),
        }
    }
    ensure!(!measured.is_empty(), "no workload could be measured");
    let table = summary(&measured);
    let verdicts: Vec<_> = measured.iter().flat_map(Workload::verdicts).collect();
    println!("\n{table}");
    measured.iter().for_each(|it| println!("{}\n", it.decisions()));
    verdicts.iter().for_each(|(_, line)| println!("{line}"));
    if !arguments.print_only {
        write(workspace, arguments, &measured, &verdicts)?;
    }
    let missed = verdicts.iter().filter(|(kept, _)| !kept).count();
    let whole = !arguments.only.is_empty() || measured.len() == WORKLOADS.len();
    ensure!(
        !arguments.check || (missed == 0 && whole),
        "{missed} of the promises were missed, and {} of {} workloads were measured",
        measured.len(),
        WORKLOADS.len()
    );
    Ok(())
}

/// What the script reports of a workload.
#[derive(Debug)]
struct Workload {
    title: &'static str,
    /// The rates of the runs without tuning, tuned, with the best settings, tuned with a reader of the monitor, which
    /// only one workload has, and with default settings.
    rates: [Vec<f64>; 5],
    /// The best number of threads and of samples in flight.
    best: [Option<u64>; 2],
    /// Seconds until the rate was reached; infinite if it was not reached.
    reached: Vec<f64>,
    /// The same after a change of the latency; empty for most workloads.
    recovered: Vec<f64>,
    decisions: Vec<String>,
}

impl Workload {
    fn of(title: &'static str, report: &Value) -> Result<Self> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let times = |key: &str| {
            let all = list(&report[key]);
            all.iter().map(|time| time.as_f64().unwrap_or(f64::INFINITY)).collect::<Vec<f64>>()
        };
        let rates = ["off", "tuned", "best", "watched", "default"].map(|name| {
            let all = list(&report["rates"][name]);
            all.iter().filter_map(Value::as_f64).collect::<Vec<f64>>()
        });
        let count = rates[0].len();
        ensure!(
            count > 0 && [1, 2, 4].iter().all(|&of| rates[of].len() == count),
            "{title}: incomplete report: {report}"
        );
        let words = list(&report["decisions"]);
        Ok(Workload {
            title,
            rates,
            best: [report["best"][0].as_u64(), report["best"][1].as_u64()],
            reached: times("reached_s"),
            recovered: times("recovered_s"),
            decisions: words.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        })
    }

    /// The median ratio of the rates of a kind of run to another kind in the same round.
    fn ratio(&self, of: usize, to: usize) -> f64 {
        let pairs = self.rates[of].iter().zip(&self.rates[to]);
        median(pairs.map(|(rate, other)| rate / other).collect())
    }

    fn verdicts(&self) -> Vec<(bool, String)> {
        let Workload { title, .. } = self;
        let least = |what: &str, ratio: f64, least: f64| {
            let line = format!("{title}: {ratio:.3} x {what}; promised: at least {least} x");
            table::verdict(ratio >= least, &line)
        };
        let mut all = vec![
            least("the best of the grid", self.ratio(1, 2), OF_BEST),
            least("the rate without tuning", self.ratio(1, 0), OF_DEFAULT),
            least("the rate without tuning, by default", self.ratio(4, 0), OF_DEFAULT),
        ];
        if !self.rates[3].is_empty() {
            let what = "the rate without tuning, with the tuner and a reader of the monitor";
            all.push(least(what, self.ratio(3, 0), WATCHED));
        }
        for (what, times) in
            [("from the start", &self.reached), ("after the change", &self.recovered)]
        {
            if !times.is_empty() {
                let time = median(times.clone());
                let line = format!(
                    "{title}: {time:.1} s {what} to 95 % of the best of the grid; promised: at most {REACHED_S} s"
                );
                all.push(table::verdict(time <= REACHED_S, &line));
            }
        }
        all
    }

    /// What the tuner did in the last run.
    fn decisions(&self) -> String {
        let lines: String = self.decisions.iter().map(|it| format!("- {it}\n")).collect();
        format!("{}:\n{}", self.title, if lines.is_empty() { "- no changes\n" } else { &lines })
    }

    fn bars(&self) -> [Bar; 3] {
        let best = median(self.rates[2].clone());
        [(1, "tuned", true), (4, "default", true), (0, "tune=False", false)].map(
            |(of, name, ours)| {
                let ratios = self.rates[of].iter().map(|rate| rate / best);
                let least = ratios.clone().fold(f64::INFINITY, f64::min);
                Bar {
                    label: format!("{}: {name}", self.title),
                    value: median(ratios.clone().collect()),
                    range: (least, ratios.fold(0.0, f64::max)),
                    ours,
                }
            },
        )
    }
}

fn summary(measured: &[Workload]) -> String {
    let mut text = "| workload | `tune=False` | default | tuned | best of the grid | threads, reads of the best | \
                    default / `tune=False` | tuned / best | tuned / `tune=False` | s to 95 % | s to 95 % after the \
                    change |\n|---|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|\n"
        .to_owned();
    for workload in measured {
        let Workload { title, rates, best, reached, recovered, .. } = workload;
        let rate = |of: usize| median(rates[of].clone());
        let time = |times: &[f64]| match times {
            [] => String::new(),
            _ => format!("{:.1}", median(times.to_vec())),
        };
        let number = |it: Option<u64>| it.map_or("default".to_owned(), |it| it.to_string());
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "| {title} | {:.0} | {:.0} | {:.0} | {:.0} | {}, {} | {:.3} | {:.3} | {:.3} | {} | {} |",
            rate(0),
            rate(4),
            rate(1),
            rate(2),
            number(best[0]),
            number(best[1]),
            workload.ratio(4, 0),
            workload.ratio(1, 2),
            workload.ratio(1, 0),
            time(reached),
            time(recovered),
        );
    }
    text
}

fn write(
    workspace: &Workspace,
    arguments: &Tune,
    measured: &[Workload],
    verdicts: &[(bool, String)],
) -> Result<()> {
    let folder = workspace.root.join("docs/benchmarks");
    let Tune { rounds, seconds, .. } = arguments;
    let bars: Vec<Bar> = measured.iter().flat_map(Workload::bars).collect();
    let unit = format!("rate / rate of the best settings of the grid, median of {rounds} runs");
    let chart = plot::bars_in_order("Tuning", &unit, &bars, 2);
    table::write(&folder.join("tune.svg"), &chart)?;
    let decisions: String = measured.iter().map(|it| format!("\n{}", it.decisions())).collect();
    let text = format!(
        "# Tuning\n\n\
         Loaders without tuning (`tune=False`), by default, tuned (`tune=True`), and with the best static settings of a grid \
         (`tune=\"settings.json\"`): numbers of threads, and of samples that are read at the same time. The consumer \
         takes batches without training steps. The machine has {count} CPUs ({cpu}). Runs are interleaved: {rounds} \
         runs of {seconds} s of each kind. Rates are samples per second after the first 10 s, and medians; ratios are \
         medians over the runs of one round. \"s to 95 %\" is the time from which on the rate of 2 s is at least \
         95 % of the best of the grid. The store delays each response by 80 ms; in the last column, by 5 ms at first. \
         The throttled disk is a server with 4 ms per response and 25 MB/s.\n\n\
         Command: `cargo xtask bench tune --rounds {rounds} --seconds {seconds}`.\n\n\
         ![Bar chart of the rates](tune.svg)\n\n{table}{promises}\n\
         ## Decisions\n\nThe changes of settings in the last tuned run of each workload.\n{decisions}",
        count = thread::available_parallelism().map_or(1, usize::from),
        cpu = table::cpu_model(),
        table = summary(measured),
        promises = table::promises(verdicts),
    );
    table::write(&folder.join("tune.md"), &text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kept(
        default: f64,
        tuned: f64,
        watched: Option<f64>,
        reached: Value,
        recovered: Value,
    ) -> Vec<bool> {
        let watched: Vec<f64> = watched.into_iter().collect();
        let report = json!({
            "rates": { "off": [100.0], "default": [default], "tuned": [tuned], "best": [104.0], "watched": watched },
            "best": [4, null],
            "reached_s": [reached],
            "recovered_s": recovered,
            "decisions": ["1.0 s: threads 2 -> 4, kept"],
        });
        let workload = Workload::of("a store", &report).unwrap();
        assert!(summary(&[workload]).contains("| 4, default |"));
        let workload = Workload::of("a store", &report).unwrap();
        workload.verdicts().into_iter().map(|(kept, _)| kept).collect()
    }

    #[test]
    fn each_promise_is_evaluated_separately() {
        assert_eq!(kept(98.0, 99.0, Some(99.1), json!(9.9), json!([9.9])), [true; 6]);
        assert_eq!(kept(97.9, 98.7, None, json!(9.9), json!([])), [false, true, false, true]);
        assert_eq!(kept(99.0, 97.0, None, json!(9.9), json!([])), [false, false, true, true]);
        assert_eq!(
            kept(99.0, 99.0, Some(98.9), json!(null), json!([11.0])),
            [true, true, true, false, false, false]
        );
    }

    #[test]
    fn reports_without_rates_are_errors() {
        assert!(Workload::of("a store", &json!({ "rates": { "off": [] } })).is_err());
    }
}
