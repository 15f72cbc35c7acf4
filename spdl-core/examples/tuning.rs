//! Measures automatic tuning against the default settings, interleaved.
//!
//! `cargo run --release -p spdl-core --example tuning [SECONDS]`
//!
//! Three pipelines need no tuning: their rate must not fall. One gains from more threads.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use spdl_core::pipeline::Tune;
use spdl_core::{PipelineBuilder, Result};

/// Computes for about 50 µs.
fn compute(n: u64) -> Result<u64> {
    Ok((0..50_000_u64).fold(n, |sum, next| black_box(sum ^ next)))
}

fn tiny(n: u64) -> Result<u64> {
    Ok(n + 1)
}

fn wait(n: u64) -> Result<u64> {
    std::thread::sleep(Duration::from_millis(2));
    Ok(n)
}

/// Items per second of a pipeline, whose consumer takes `step` for each item.
fn rate(builder: PipelineBuilder<u64>, tuned: bool, step: Duration, seconds: f64) -> Result<f64> {
    let builder = if tuned { builder.tune(Tune::automatic()) } else { builder };
    let mut pipeline = builder.build()?;
    let started = Instant::now();
    let mut items = 0;
    while started.elapsed().as_secs_f64() < seconds
        && let Some(item) = pipeline.next()
    {
        black_box(item?);
        items += 1;
        if !step.is_zero() {
            std::thread::sleep(step);
        }
    }
    let rate = f64::from(items) / started.elapsed().as_secs_f64();
    for decision in pipeline.statistics().decisions {
        println!("    {decision}");
    }
    Ok(rate)
}

fn main() -> Result<()> {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(20.0);
    type Function = fn(u64) -> Result<u64>;
    let pipelines: [(&str, Function, Duration); 4] = [
        ("computing", compute, Duration::ZERO),
        ("tiny items", tiny, Duration::ZERO),
        ("slow consumer", compute, Duration::from_millis(2)),
        ("waiting", wait, Duration::ZERO),
    ];
    for (name, function, step) in pipelines {
        println!("{name}");
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..3 {
            for tuned in if round % 2 == 0 { [false, true] } else { [true, false] } {
                let builder = PipelineBuilder::from_iter(0..).map("work", function);
                rates[usize::from(tuned)].push(rate(builder, tuned, step, seconds)?);
            }
        }
        let [default, tuned] = rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[rates.len() / 2]
        });
        let gain = (tuned / default - 1.0) * 100.0;
        println!("  default {default:.0}/s, tuned {tuned:.0}/s: {gain:+.1} %");
    }
    Ok(())
}
