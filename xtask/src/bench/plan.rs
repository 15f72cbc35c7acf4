//! `cargo xtask bench plan`: compares the plans of `spdl plan` with what `spdl bench` measures.

use std::path::Path;

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
/// server on loopback that delays each response. For each, the command prints the planned and the
/// measured numbers of busy cores, of requests per second, and, for the server, of requests in
/// flight.
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
    let server = Server::start(workspace, &folder, arguments.latency, 0.0, None, None)?;

    let url = format!("s3://{}/", store::BUCKET);
    let sets = [
        ("a folder", folder.display().to_string(), None),
        ("tar shards", shards.display().to_string(), None),
        ("a store", url, Some(&server)),
    ];
    let mut figures = Vec::new();
    for (name, data, server) in &sets {
        eprintln!("{name}");
        let plan = plan(workspace, arguments, &known, server.is_some())?;
        let report = bench(workspace, arguments, data, *server)?;
        figures.extend(compare(name, &plan, &report, server.is_some())?);
    }
    let verdicts: Vec<_> = figures.iter().map(PlannedFigure::verdict).collect();
    verdicts.iter().for_each(|(_, line)| println!("{line}"));
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
    name: String,
    planned: f64,
    measured: f64,
}

impl PlannedFigure {
    fn verdict(&self) -> (bool, String) {
        let PlannedFigure { name, planned, measured } = self;
        let ratio = planned / measured;
        let line =
            format!("{name}: planned {planned:.2}, measured {measured:.2}: ratio {ratio:.2}");
        table::verdict((ratio - 1.0).abs() <= TOLERANCE, &line)
    }
}

fn compare(
    name: &str,
    plan: &Value,
    report: &Value,
    is_remote: bool,
) -> Result<Vec<PlannedFigure>> {
    let of = |object: &Value, key: &str| {
        object[key].as_f64().with_context(|| format!("no number {key} in {object}"))
    };
    let fetch = store::fetch_stage(report).context("no stage `fetch`")?;
    let (seconds, needed) = (of(report, "seconds")?, &plan["total"]);
    let cores = of(report, "cpu_s_per_1000")? * of(report, "images_per_s")? / 1000.0;
    let figure = |what: &str, planned, measured| PlannedFigure {
        name: format!("{name}: {what}"),
        planned,
        measured,
    };
    let requests = of(fetch, "items")? / seconds;
    let mut figures = vec![
        figure("cores", of(needed, "cores")?, cores),
        figure("requests/s", of(needed, "requests_per_s")?, requests),
    ];
    if is_remote {
        let in_flight = of(fetch, "busy_s")? / seconds;
        figures.push(figure("requests in flight", of(needed, "in_flight")?, in_flight));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_within_a_fifth_are_kept() {
        let plan = json!({"total": {"cores": 0.8, "requests_per_s": 800.0, "in_flight": 24.0}});
        let kept = |cpu: f64, items: f64, busy: f64| {
            let fetch = json!({"name": "fetch", "items": items, "busy_s": busy});
            let report = json!({
                "seconds": 10.0, "images_per_s": 800.0, "cpu_s_per_1000": cpu, "stages": [fetch],
            });
            let figures = compare("a store", &plan, &report, true).unwrap();
            figures.iter().map(|it| it.verdict().0).collect::<Vec<_>>()
        };
        assert_eq!(kept(1.0, 8_000.0, 240.0), [true; 3]);
        assert_eq!(kept(0.8, 8_000.0, 240.0), [false, true, true]);
        assert_eq!(kept(1.0, 10_100.0, 240.0), [true, false, true]);
        assert_eq!(kept(1.0, 8_000.0, 190.0), [true, true, false]);
    }
}
