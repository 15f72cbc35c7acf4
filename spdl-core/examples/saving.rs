//! What saving the state of a run costs: the call, the size, and the throughput.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

mod common;

use std::hint::black_box;
use std::time::{Duration, Instant};

use common::{Arguments, least, median, progress, quantile, round};
use serde_json::{Value, json};
use spdl_core::{
    DatasetSource, Error, ErrorKind, Order, PipelineBuilder, Result, StageOptions, StateFile,
    StateSaver,
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

The cases take turns; medians are shown. In completion order 1 % of the samples take 50 times as
long, so that the state has gaps.

  --batches N   batches of a run [default: 500]
  --rounds N    runs of each case [default: 5]
  --json        a list of {order, saves, batches_per_s, ratio, state_us: {p50, p99}, bytes}";

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
    /// How long each call took, in µs.
    calls: Vec<f64>,
    /// The largest state as JSON.
    bytes: usize,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse(HELP, &["--json"], &["--batches", "--rounds"]);
    let batches = arguments.number("--batches", 500) as usize;
    let rounds = arguments.number("--rounds", 5) as usize;
    let folder = tempfile::tempdir()?;

    let mut cases = Vec::new();
    for order in [Order::Input, Order::Completion] {
        for saves in [Saves::Nothing, Saves::State, Saves::Saved, Saves::Synced] {
            cases.push(Case { order, saves, rates: vec![], calls: vec![], bytes: 0 });
        }
    }
    let bar = progress(rounds * cases.len());
    for _ in 0..rounds {
        for case in &mut cases {
            run(case, batches, &StateFile::new(folder.path().join("run.state")))?;
            bar.inc(1);
        }
    }
    bar.finish_and_clear();

    let told: Vec<Value> = cases
        .iter()
        .map(|case| {
            let plain = cases.iter().find(|plain| plain.order == case.order).unwrap_or(case);
            let ratios = case.rates.iter().zip(&plain.rates).map(|(rate, plain)| rate / plain);
            json!({
                "order": format!("{:?}", case.order).to_lowercase(),
                "saves": format!("{:?}", case.saves).to_lowercase(),
                "batches_per_s": round(median(&case.rates), 1),
                "ratio": round(median(&ratios.collect::<Vec<_>>()), 3),
                "state_us": {
                    "least": round(least(&case.calls), 1),
                    "p50": round(median(&case.calls), 1),
                    "p99": round(quantile(&case.calls, 0.99), 1),
                },
                "bytes": case.bytes,
            })
        })
        .collect();
    if arguments.has("--json") {
        println!("{}", Value::from(told));
        return Ok(());
    }
    println!("order       after a batch  batches/s  beside nothing  µs p50    p99  bytes of JSON");
    for case in told {
        println!(
            "{:<11} {:<13} {:>10} {:>15} {:>7} {:>6} {:>14}",
            case["order"].as_str().unwrap_or_default(),
            case["saves"].as_str().unwrap_or_default(),
            case["batches_per_s"].to_string(),
            case["ratio"].to_string(),
            case["state_us"]["p50"].to_string(),
            case["state_us"]["p99"].to_string(),
            case["bytes"].to_string(),
        );
    }
    Ok(())
}

fn run(case: &mut Case, batches: usize, file: &StateFile) -> Result<()> {
    let samples = DatasetSource::new((0..(batches * BATCH) as u64).collect::<Vec<_>>()).shuffled(7);
    let slow = case.order == Order::Completion;
    let work = move |n: u64| {
        let factor = if slow && n.is_multiple_of(100) { 50 } else { 1 };
        let until = Instant::now() + WORK * factor;
        while Instant::now() < until {
            black_box(n);
        }
        Ok(n)
    };
    let mut pipeline = PipelineBuilder::new(samples)
        .map(StageOptions::new("work").order(case.order), work)
        .batch("batch", BATCH, false)
        .threads(2)
        .build()?;
    let mut saver = StateSaver::new(file.clone());
    let start = Instant::now();
    let mut count = 0;
    while let Some(batch) = pipeline.next() {
        black_box(batch?);
        count += 1;
        let called = Instant::now();
        match case.saves {
            Saves::Nothing => continue,
            Saves::State => {
                black_box(pipeline.state()?);
            }
            Saves::Saved => saver.after_step(|| pipeline.state())?,
            Saves::Synced => file.save(&pipeline.state()?)?,
        }
        case.calls.push(called.elapsed().as_secs_f64() * 1e6);
        if count % 50 == 1 {
            let text = serde_json::to_string(&pipeline.state()?)
                .map_err(|error| Error::new(ErrorKind::Internal, "no JSON").with_source(error))?;
            case.bytes = case.bytes.max(text.len());
        }
    }
    case.rates.push(f64::from(count) / start.elapsed().as_secs_f64());
    saver.finish()?;
    Ok(())
}
