//! `cargo xtask bench plan`: compares the plans of `spdl plan` with what `spdl bench` measures.

use std::fmt::Write as _;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde_json::Value;

use super::contest;
use super::store::{self, Server};
use super::table;
use crate::dataset::{self, Settings, Shape};
use crate::tools::{Workspace, command};

/// Compare the cores and requests that `spdl plan` expects with those that `spdl bench` measures.
///
/// `spdl plan` measures the CPU time and the size of a sample on one folder of JPEG files. Three
/// other data sets are then loaded with simulated training steps: a folder, tar shards, and an S3
/// server on loopback that delays each response. For each, the command compares the planned and the
/// measured numbers of busy cores, of requests per second, and, for the server, of requests in
/// flight. The server counts its requests; of the other data sets, reads of samples are counted.
///
/// The command writes a table to docs/benchmarks.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  cargo xtask bench plan
  cargo xtask bench plan --check
  cargo xtask bench plan --step-ms 60 --latency 100")]
pub(crate) struct Plan {
    /// Duration of a simulated training step in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..))]
    step_ms: u32,
    /// Delay of each response of the server, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 30)]
    latency: u32,
    /// Number of epochs in each run
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    epochs: u32,
    /// Fail if a planned figure differs from the measured one by more than 20 %
    #[arg(long)]
    check: bool,
    /// Print the results, but do not update docs/benchmarks
    #[arg(long)]
    print_only: bool,
}

/// The largest relative difference of a planned figure.
const TOLERANCE: f64 = 0.2;

pub(super) fn run(workspace: &Workspace, arguments: &Plan) -> Result<()> {
    let photos = workspace.root.join("assets/photos");
    let prepare = |images, seed| {
        let settings = Settings { shape: Shape::Imagenet, images, classes: 50, seed };
        dataset::prepare(&photos, &workspace.target.join("demo"), settings)
    };
    let (known, folder) = (prepare(400, 1)?, prepare(2000, 0)?);
    store::build(workspace)?;
    let shards = workspace.target.join("plan-shards");
    store::pack(workspace, &folder, &shards)?;

    let url = format!("s3://{}/", store::BUCKET);
    let sets = [
        ("a folder", folder.display().to_string(), false),
        ("tar shards", shards.display().to_string(), false),
        ("a store", url, true),
    ];
    let mut figures = Vec::new();
    for (name, data, is_remote) in sets {
        eprintln!("{name}");
        let plan = plan(workspace, arguments, &known, is_remote)?;
        let start = || Server::start(workspace, &folder, arguments.latency, 0.0, None, None);
        let server = is_remote.then(start).transpose()?;
        let report = bench(workspace, arguments, &data, server.as_ref())?;
        let served = server.map(Server::stop).transpose()?;
        figures.extend(compare(name, &plan, &report, served.map(|served| served.requests))?);
    }
    let verdicts: Vec<_> = figures.iter().map(PlannedFigure::verdict).collect();
    println!("{}", table_of(&figures));
    verdicts.iter().for_each(|(_, line)| println!("{line}"));
    if !arguments.print_only {
        write(workspace, arguments, &figures, &verdicts)?;
    }
    let missed = verdicts.iter().filter(|(kept, _)| !kept).count();
    ensure!(!arguments.check || missed == 0, "{missed} of the planned figures were missed");
    Ok(())
}

/// The JSON object of `spdl plan`, with the costs of a sample of the data set `known`.
fn plan(workspace: &Workspace, arguments: &Plan, known: &Path, is_remote: bool) -> Result<Value> {
    let mut plan = command(workspace.program("release", "spdl"));
    plan.args(["plan", "--json", "--step-ms", &arguments.step_ms.to_string()]);
    if is_remote {
        plan.args(["--latency-ms", &arguments.latency.to_string()]);
    }
    plan.arg("--").arg(known).args(["--epochs", "3"]);
    Ok(contest::report(&mut plan)?.0)
}

/// The JSON object of `spdl bench` with simulated training steps.
fn bench(
    workspace: &Workspace,
    arguments: &Plan,
    data: &str,
    server: Option<&Server>,
) -> Result<Value> {
    let mut bench = command("env");
    bench.args(server.map_or_else(Vec::new, Server::environment));
    bench.arg(workspace.program("release", "spdl")).args([
        "bench",
        data,
        "--json",
        "--no-checksum",
    ]);
    bench.args(["--step-ms", &arguments.step_ms.to_string()]);
    bench.args(["--epochs", &arguments.epochs.to_string()]);
    Ok(contest::report(&mut bench)?.0)
}

/// A planned and a measured value.
#[derive(Debug)]
struct PlannedFigure {
    set: &'static str,
    what: &'static str,
    planned: f64,
    measured: f64,
}

impl PlannedFigure {
    fn verdict(&self) -> (bool, String) {
        let (PlannedFigure { set, what, .. }, ratio) = (self, self.ratio());
        let (least, most) = (1.0 - TOLERANCE, 1.0 + TOLERANCE);
        let line = format!(
            "{set}: {what}: planned / measured is {ratio:.2}; promised: {least:.1} to {most:.1}"
        );
        table::verdict((ratio - 1.0).abs() <= TOLERANCE, &line)
    }

    fn ratio(&self) -> f64 {
        self.planned / self.measured
    }
}

fn compare(
    set: &'static str,
    plan: &Value,
    report: &Value,
    served: Option<u64>,
) -> Result<Vec<PlannedFigure>> {
    let of = |object: &Value, key: &str| {
        object[key].as_f64().with_context(|| format!("no number {key} in {object}"))
    };
    let fetch = store::fetch_stage(report).context("no stage `fetch`")?;
    let (seconds, needed) = (of(report, "seconds")?, &plan["total"]);
    let cores = of(report, "cpu_s_per_1000")? * of(report, "images_per_s")? / 1000.0;
    let figure = |what, planned, measured| PlannedFigure { set, what, planned, measured };
    let requests = match served {
        Some(requests) => requests as f64,
        None => of(fetch, "items")?,
    };
    let mut figures = vec![
        figure("cores", of(needed, "cores")?, cores),
        figure("requests/s", of(needed, "requests_per_s")?, requests / seconds),
    ];
    if served.is_some() {
        let in_flight = of(fetch, "busy_s")? / seconds;
        figures.push(figure("requests in flight", of(needed, "in_flight")?, in_flight));
    }
    Ok(figures)
}

fn table_of(figures: &[PlannedFigure]) -> String {
    let mut text = "| data set | figure | planned | measured | planned / measured |\n\
                    |---|---|---:|---:|---:|\n"
        .to_owned();
    for figure in figures {
        let PlannedFigure { set, what, planned, measured } = figure;
        let ratio = figure.ratio();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {set} | {what} | {planned:.2} | {measured:.2} | {ratio:.2} |");
    }
    text
}

fn write(
    workspace: &Workspace,
    arguments: &Plan,
    figures: &[PlannedFigure],
    verdicts: &[(bool, String)],
) -> Result<()> {
    let Plan { step_ms, latency, epochs, .. } = arguments;
    let text = format!(
        "# Plans\n\n\
         What `spdl plan` expects, and what `spdl bench` then measures. `spdl plan` measures the CPU time and the size of \
         a sample on 400 JPEG files. Then 2,000 other files of the same sizes are loaded in {epochs} epochs, with \
         simulated training steps of {step_ms} ms: from a folder, from tar shards, and from an S3 server on loopback that \
         delays each response by {latency} ms. The machine has {count} CPUs ({cpu}). The server counts all requests, also \
         those that list the bucket; of the other data sets, reads of samples are counted. Requests in flight are the mean \
         number.\n\n\
         Command: `cargo xtask bench plan --step-ms {step_ms} --latency {latency} --epochs {epochs}`.\n\n\
         {table}{promises}",
        count = thread::available_parallelism().map_or(1, usize::from),
        cpu = table::cpu_model(),
        table = table_of(figures),
        promises = table::promises(verdicts),
    );
    table::write(&workspace.root.join("docs/benchmarks/plan.md"), &text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_within_a_fifth_are_kept() {
        let plan = json!({"total": {"cores": 0.8, "requests_per_s": 800.0, "in_flight": 24.0}});
        let kept = |cpu: f64, requests: u64, busy: f64| {
            let fetch = json!({"name": "fetch", "items": 8_000, "busy_s": busy});
            let report = json!({
                "seconds": 10.0, "images_per_s": 800.0, "cpu_s_per_1000": cpu, "stages": [fetch],
            });
            let local = compare("a folder", &plan, &report, None).unwrap();
            assert!(local.len() == 2 && local[1].verdict().0, "{local:?}");
            let figures = compare("a store", &plan, &report, Some(requests)).unwrap();
            assert!(table_of(&figures).contains("| a store | cores | 0.80 |"));
            figures.iter().map(|it| it.verdict().0).collect::<Vec<_>>()
        };
        assert_eq!(kept(1.0, 8_000, 240.0), [true; 3]);
        assert_eq!(kept(0.8, 8_000, 240.0), [false, true, true]);
        assert_eq!(kept(1.0, 10_100, 240.0), [true, false, true]);
        assert_eq!(kept(1.0, 8_000, 190.0), [true, true, false]);
    }
}
