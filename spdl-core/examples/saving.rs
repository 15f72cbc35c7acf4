//! Benchmark of checkpoint states: time of the call, size, and effect on throughput.
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
Measures how long checkpoint states take, how large they are, and how they affect throughput.

cargo run --release -p spdl-core --features serde --example saving -- [OPTIONS]

A stage computes for 100 µs per sample, in 2 worker threads. A batch has 32 samples. After each
batch, the consumer does one of these:

  nothing      requests the next batch
  state        creates a state
  saved        creates a state and passes it to a StateSaver, whose thread writes a file
  synced       creates a state, writes it to a file and waits for the disk

Each run is paired with a baseline run that saves nothing, alternately before and after it. The
ratio of the case `nothing` shows the noise. In completion order, 1 % of the samples take 50 times
as long, so that the state has gaps.

  --batches N   batches per run [default: 600]
  --rounds N    pairs of runs per case, after a warm-up [default: 12]
  --json        print [{order, saves, batches_per_s, ratio: {median, low, high}, share_of_time,
                state_us: {least, p50, p99, most}, bytes}]

`ratio` is the median ratio of batches per second to the baseline, with its 95 % confidence
interval. `share_of_time` is the share of the run time in the calls.";

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
    /// Ratio of each rate to the rate of the baseline run.
    ratios: Vec<f64>,
    /// Duration of each call, in µs.
    calls: Vec<f64>,
    /// Duration of all runs.
    time: Duration,
    /// Size of the largest state as JSON.
    bytes: usize,
}

/// The results of one run.
#[derive(Default)]
struct Measured {
    batches_per_s: f64,
    time: Duration,
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
            let (time, bytes) = Default::default();
            cases.push(Case { order, saves, rates, ratios, calls, time, bytes });
        }
    }
    let bar = progress((rounds + 1) * cases.len());
    for round in 0..=rounds {
        for case in &mut cases {
            let warming_up = round == 0;
            let run = |saves| run(case.order, saves, batches, &file);
            let (measured, baseline) = if round % 2 == 0 {
                (run(case.saves)?, run(Saves::Nothing)?)
            } else {
                let baseline = run(Saves::Nothing)?;
                (run(case.saves)?, baseline)
            };
            bar.inc(1);
            if warming_up {
                case.bytes = largest_state(case.order, case.saves, batches)?;
                continue;
            }
            case.rates.push(measured.batches_per_s);
            case.ratios.push(measured.batches_per_s / baseline.batches_per_s);
            case.calls.extend(measured.calls);
            case.time += measured.time;
        }
    }
    bar.finish_and_clear();

    let results: Vec<Value> = cases
        .iter()
        .map(|case| {
            let (low, high) = bounds_of_median(&case.ratios);
            let in_calls: f64 = case.calls.iter().fold(0.0, |sum, call| sum + call / 1e6);
            let share = in_calls / case.time.as_secs_f64();
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
        println!("{}", Value::from(results));
        return Ok(());
    }
    println!(
        "order       after a batch  batches/s        ratio  95 % interval  share of time  µs p50  \
            p99     max  bytes of JSON"
    );
    for case in results {
        let ratio = &case["ratio"];
        println!(
            "{:<11} {:<13} {:>10} {:>12} {:>14} {:>12} % {:>7} {:>6} {:>7} {:>14}",
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

/// The 95 % confidence interval of the median for any distribution: the values whose ranks differ
/// from n / 2 by 0.98 √n.
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

/// Size in bytes of the largest state of a run as JSON, in a separate run.
fn largest_state(order: Order, saves: Saves, batches: usize) -> Result<usize> {
    let mut longest = 0;
    if saves == Saves::Nothing {
        return Ok(longest);
    }
    let mut pipeline = pipeline(order, batches)?;
    while let Some(batch) = pipeline.next() {
        black_box(batch?);
        let text = serde_json::to_string(&pipeline.state()?).map_err(|error| {
            Error::new(ErrorKind::Internal, "cannot serialize the state").with_source(error)
        })?;
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
        let call = Instant::now();
        match saves {
            Saves::Nothing => continue,
            Saves::State => {
                black_box(pipeline.state()?);
            }
            Saves::Saved => saver.after_step(|| pipeline.state())?,
            Saves::Synced => file.save(&pipeline.state()?)?,
        }
        measured.calls.push(call.elapsed().as_secs_f64() * 1e6);
    }
    measured.time = start.elapsed();
    measured.batches_per_s = f64::from(count) / measured.time.as_secs_f64();
    saver.finish()?;
    Ok(measured)
}
