//! How full sequences and batches get, and how fast, for lengths as those of texts: log-normal.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

mod common;

use std::time::Instant;

use common::Arguments;
use spdl_core::stage::{Aggregator, Bucketer, Bucketing, ConcatAndSplit, Packer, Packing};
use spdl_core::{Result, SampleId, SampleRng};

const HELP: &str = "\
How much of packed sequences and of bucketed batches is used, for log-normal lengths.

cargo run --release -p spdl-core --example packing -- [OPTIONS]

  --items N       how many items [default: 200000]
  --capacity N    tokens of a sequence, and of a bucketed batch eight times that [default: 4096]
  --median N      the median length in tokens; the standard deviation of its logarithm is 1,
                  and items longer than a sequence are cut down to it [default: 400]
  --json          as [{method, fill_rate, items_per_second}]";

fn main() -> Result<()> {
    let options = ["--items", "--capacity", "--median"];
    let arguments = Arguments::parse(HELP, &["--json"], &options);
    let items = arguments.number("--items", 200_000);
    let capacity = arguments.number("--capacity", 4096);
    let median = arguments.number("--median", 400) as f64;

    let lengths: Vec<u64> = (0..items)
        .map(|index| {
            let mut rng = SampleRng::new(0, SampleId { epoch: 0, index }, "length");
            // Box and Muller 1958; the logarithm of 0 is kept away.
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
        "one item to a sequence".into(),
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
        row(format!("{buckets} buckets, 32 to a batch"), batches);
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

/// The fill rate of an epoch, and items per second.
fn measure<T: Clone, A: Aggregator<T>>(
    items: &[T],
    make: impl Fn() -> Result<A>,
) -> Result<(f64, f64)> {
    let items = items.to_vec();
    let count = items.len() as f64;
    let mut aggregator = make()?;
    let started = Instant::now();
    for item in items {
        let mut answer = aggregator.accumulate(item)?;
        while answer.is_some() {
            aggregator.exact_resume().map(|exact| exact.inputs());
            answer = aggregator.more()?;
        }
    }
    let mut answer = aggregator.flush()?;
    while answer.is_some() {
        answer = aggregator.flush_more()?;
    }
    let rate = aggregator.fill_rate().and_then(|rate| rate.share()).unwrap_or(0.0);
    Ok((rate, count / started.elapsed().as_secs_f64()))
}
