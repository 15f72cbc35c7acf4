//! Benchmark of packing and bucketing: fill rate and speed for log-normal lengths.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

mod common;

use std::time::Instant;

use common::Arguments;
use spdl_core::stage::{Aggregator, Bucketer, Bucketing, ConcatAndSplit, Packer, Packing};
use spdl_core::{Result, SampleId, SampleRng};

const HELP: &str = "\
Measures the fill rate of packed sequences and bucketed batches for log-normal lengths.

cargo run --release -p spdl-core --example packing -- [OPTIONS]

  --items N       number of items [default: 200000]
  --capacity N    tokens per sequence; the budget of a bucketed batch is 8 times as much
                  [default: 4096]
  --median N      median length in tokens; sigma is 1, and lengths are at most the capacity
                  [default: 400]
  --json          print [{method, fill_rate, items_per_second}]";

fn main() -> Result<()> {
    let options = ["--items", "--capacity", "--median"];
    let arguments = Arguments::parse(HELP, &["--json"], &options);
    let items = arguments.number("--items", 200_000);
    let capacity = arguments.number("--capacity", 4096);
    let median = arguments.number("--median", 400) as f64;

    let lengths: Vec<u64> = (0..items)
        .map(|index| {
            let mut rng = SampleRng::new(0, SampleId { epoch: 0, index }, "length");
            // Box-Muller transform (1958). `1.0 - unit` is never 0.
            let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
            let normal = radius * (std::f64::consts::TAU * rng.unit()).cos();
            ((median * normal.exp()).round() as u64).clamp(1, capacity)
        })
        .collect();

    let mut rows = Vec::new();
    let mut row = |method: String, (fill_rate, items_per_second)| {
        rows.push((method, fill_rate, items_per_second));
    };
    let length = |&length: &u64| length;
    let key = |&length: &u64| length as f64;
    row(
        "no packing".into(),
        measure(&lengths, || Packer::new(Packing::new(capacity).most_items(1), length))?,
    );
    for open in [1, 8, 64, 512] {
        for (fit, packing) in [
            ("first fit", Packing::new(capacity).first_fit()),
            ("best fit", Packing::new(capacity).best_fit()),
        ] {
            let packing = packing.open(open);
            let make = || Packer::new(packing.clone(), length);
            row(format!("{fit}, {open} open"), measure(&lengths, make)?);
        }
    }
    let texts: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![0; length as usize]).collect();
    row("concat and split".into(), measure(&texts, || ConcatAndSplit::new(capacity, false))?);
    for buckets in [1, 4, 8, 16, 32] {
        let first = median / 4.0;
        let bucketing = || Bucketing::log_spaced(first, capacity as f64, buckets);
        let batches = measure(&lengths, || Bucketer::new(bucketing().batch_size(32), key))?;
        row(format!("{buckets} buckets, batches of 32"), batches);
        let budget = || bucketing().budget(8 * capacity);
        let batches = measure(&lengths, || Bucketer::new(budget(), key))?;
        row(format!("{buckets} buckets, budget {}", 8 * capacity), batches);
    }

    if arguments.has("--json") {
        let objects = rows.iter().map(|(method, fill_rate, items_per_second)| {
            serde_json::json!({
                "method": method,
                "fill_rate": fill_rate,
                "items_per_second": items_per_second,
            })
        });
        println!("{:#}", objects.collect::<serde_json::Value>());
        return Ok(());
    }
    println!("{items} items of median length {median}, sequences of {capacity}\n");
    println!("{:28} {:>8} {:>12}", "method", "filled", "items/s");
    for (method, fill_rate, items_per_second) in rows {
        println!("{method:28} {:>6.1} % {items_per_second:>12.0}", 100.0 * fill_rate);
    }
    Ok(())
}

/// Returns the fill rate of an epoch, and items per second.
fn measure<T: Clone, A: Aggregator<T>>(
    items: &[T],
    make: impl Fn() -> Result<A>,
) -> Result<(f64, f64)> {
    let items = items.to_vec();
    let count = items.len() as f64;
    let mut aggregator = make()?;
    let started = Instant::now();
    for item in items {
        let mut aggregate = aggregator.accumulate(item)?;
        while aggregate.is_some() {
            aggregator.exact_resume().map(|exact| exact.inputs());
            aggregate = aggregator.more()?;
        }
    }
    let mut aggregate = aggregator.flush()?;
    while aggregate.is_some() {
        aggregate = aggregator.flush_more()?;
    }
    let rate = aggregator.fill_rate().and_then(|rate| rate.share()).unwrap_or(0.0);
    Ok((rate, count / started.elapsed().as_secs_f64()))
}
