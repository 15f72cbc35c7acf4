//! What saving the state of a run costs: the call, the size, and the throughput.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use common::{Arguments, median, progress, quantile, round};
use serde_json::{Value, json};
use spdl_core::{
    DatasetSource, Error, ErrorKind, Order, Pipeline, PipelineBuilder, Result, StageOptions,
    StateFile, StateSaver,
};

const HELP: &str = "\
What saving the state of a run costs.

cargo run --release -p spdl-core --features serde --example saving -- [OPTIONS]

A stage computes for 100 µs per sample, in 2 worker threads; 32 samples are a batch. The consumer
does nothing else. After each batch it

  nothing      takes the next one
  state        asks for the state
  saved        asks for the state and hands it to a StateSaver, which writes it to a file beside
  synced       writes it to the file itself and waits for the disk

Each run has a run beside it that does nothing, in turn before and behind it, and is compared with
that one. So the ratio of the first case, nothing beside nothing, shows what chance does alone. In
completion order 1 % of the samples take 50 times as long, so that the state has gaps.

  --batches N   batches of a run [default: 600]
  --rounds N    pairs of runs of each case, behind one that does not count [default: 12]
  --json        a list of {order, saves, batches_per_s, ratio: {median, low, high}, share_of_time,
                state_us: {least, p50, p99, most}, bytes}

`ratio` is the median of the batches per second of a run by those of the run beside it, with bounds
that hold in 95 of 100 such measurements; `share_of_time` is the time in the calls by the time of the
runs.";

const BATCH: usize = 32;
const WORK: Duration = Duration::from_micros(100);

#[derive(Clone, Copy, Debug, PartialEq)]
enum Saves {
    Nothing,
    State,
    Saved,
    Synced,
}

struct Case {
    order: Order,
    saves: Saves,
    rates: Vec<f64>,
    /// Each rate by that of the run beside it.
    ratios: Vec<f64>,
    /// How long each call took, in µs.
    calls: Vec<f64>,
    /// How long all runs took.
    took: Duration,
    /// The largest state as JSON.
    bytes: usize,
}

/// What one run was like.
#[derive(Default)]
struct Measured {
    batches_per_s: f64,
    took: Duration,
    calls: Vec<f64>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse(HELP, &["--json"], &["--batches", "--rounds"]);
    let batches = arguments.number("--batches", 600) as usize;
    let rounds = arguments.number("--rounds", 12) as usize;
    let folder = tempfile::tempdir()?;
    let file = StateFile::new(folder.path().join("run.state"));

    let mut cases = Vec::new();
    for order in [Order::Input, Order::Completion] {
        for saves in [Saves::Nothing, Saves::State, Saves::Saved, Saves::Synced] {
            let (rates, ratios, calls) = Default::default();
            let (took, bytes) = Default::default();
            cases.push(Case { order, saves, rates, ratios, calls, took, bytes });
        }
    }
    let bar = progress((rounds + 1) * cases.len());
    for round in 0..=rounds {
        for case in &mut cases {
            let warming_up = round == 0;
            let run = |saves| run(case.order, saves, batches, &file);
            let (own, beside) = if round % 2 == 0 {
                (run(case.saves)?, run(Saves::Nothing)?)
            } else {
                let beside = run(Saves::Nothing)?;
                (run(case.saves)?, beside)
            };
            bar.inc(1);
            if warming_up {
                case.bytes = largest_state(case.order, case.saves, batches)?;
                continue;
            }
            case.rates.push(own.batches_per_s);
            case.ratios.push(own.batches_per_s / beside.batches_per_s);
            case.calls.extend(own.calls);
            case.took += own.took;
        }
    }
    bar.finish_and_clear();

    let told: Vec<Value> = cases
        .iter()
        .map(|case| {
            let (low, high) = bounds_of_median(&case.ratios);
            let called: f64 = case.calls.iter().fold(0.0, |sum, call| sum + call / 1e6);
            let share = called / case.took.as_secs_f64();
            json!({
                "order": format!("{:?}", case.order).to_lowercase(),
                "saves": format!("{:?}", case.saves).to_lowercase(),
                "batches_per_s": round(median(&case.rates), 1),
                "ratio": {
                    "median": round(median(&case.ratios), 4),
                    "low": round(low, 4),
                    "high": round(high, 4),
                },
                "share_of_time": round(share, 5),
                "state_us": {
                    "least": round(quantile(&case.calls, 0.0), 1),
                    "p50": round(median(&case.calls), 1),
                    "p99": round(quantile(&case.calls, 0.99), 1),
                    "most": round(quantile(&case.calls, 1.0), 1),
                },
                "bytes": case.bytes,
            })
        })
        .collect();
    if arguments.has("--json") {
        println!("{}", Value::from(told));
        return Ok(());
    }
    println!(
        "order       after a batch  batches/s  beside nothing     95 in 100  share of time  µs p50  \
            p99    most  bytes of JSON"
    );
    for case in told {
        let ratio = &case["ratio"];
        println!(
            "{:<11} {:<13} {:>10} {:>15} {:>13} {:>12} % {:>7} {:>6} {:>7} {:>14}",
            case["order"].as_str().unwrap_or_default(),
            case["saves"].as_str().unwrap_or_default(),
            case["batches_per_s"].to_string(),
            ratio["median"].to_string(),
            format!("{}–{}", ratio["low"], ratio["high"]),
            round(case["share_of_time"].as_f64().unwrap_or_default() * 100.0, 3),
            case["state_us"]["p50"].to_string(),
            case["state_us"]["p99"].to_string(),
            case["state_us"]["most"].to_string(),
            case["bytes"].to_string(),
        );
    }
    Ok(())
}

/// Between which values the median lies in 95 of 100 such samples, whatever the distribution: those
/// whose ranks are 0.98 √n from the middle.
fn bounds_of_median(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let reach = 0.98 / count.sqrt();
    (quantile(values, (0.5 - reach).max(0.0)), quantile(values, (0.5 + reach).min(1.0)))
}

/// Batches of shuffled samples.
fn pipeline(order: Order, batches: usize) -> Result<Pipeline<Vec<u64>>> {
    let samples = DatasetSource::new((0..(batches * BATCH) as u64).collect::<Vec<_>>()).shuffled(7);
    let slow = order == Order::Completion;
    let work = move |n: u64| {
        let factor = if slow && n.is_multiple_of(100) { 50 } else { 1 };
        let until = Instant::now() + WORK * factor;
        while Instant::now() < until {
            black_box(n);
        }
        Ok(n)
    };
    PipelineBuilder::new(samples)
        .map(StageOptions::new("work").order(order), work)
        .batch("batch", BATCH, false)
        .threads(2)
        .build()
}

/// The length of the longest state of a run as JSON, apart from what is timed.
fn largest_state(order: Order, saves: Saves, batches: usize) -> Result<usize> {
    let mut longest = 0;
    if saves == Saves::Nothing {
        return Ok(longest);
    }
    let mut pipeline = pipeline(order, batches)?;
    while let Some(batch) = pipeline.next() {
        black_box(batch?);
        let text = serde_json::to_string(&pipeline.state()?)
            .map_err(|error| Error::new(ErrorKind::Internal, "no JSON").with_source(error))?;
        longest = longest.max(text.len());
    }
    Ok(longest)
}

fn run(order: Order, saves: Saves, batches: usize, file: &StateFile) -> Result<Measured> {
    let mut pipeline = pipeline(order, batches)?;
    let mut saver = StateSaver::new(file.clone());
    let start = Instant::now();
    let mut measured = Measured::default();
    let mut count = 0;
    while let Some(batch) = pipeline.next() {
        black_box(batch?);
        count += 1;
        let called = Instant::now();
        match saves {
            Saves::Nothing => continue,
            Saves::State => {
                black_box(pipeline.state()?);
            }
            Saves::Saved => saver.after_step(|| pipeline.state())?,
            Saves::Synced => file.save(&pipeline.state()?)?,
        }
        measured.calls.push(called.elapsed().as_secs_f64() * 1e6);
    }
    measured.took = start.elapsed();
    measured.batches_per_s = f64::from(count) / measured.took.as_secs_f64();
    saver.finish()?;
    Ok(measured)
}
