//! What the scheduler costs: identity stages over small integers, nanoseconds per item and stage.
//!
//! `cargo run --release -p spdl-core --example overhead [ITEMS]`
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::time::Instant;

use spdl_core::{DatasetSource, Error, Order, PipelineBuilder, Result, StageOptions, stage_fn};

fn main() -> Result<()> {
    let items: i64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    println!("3 identity stages, concurrency 2, 2 worker threads, {items} integers, best of 5");
    for order in [Order::Completion, Order::Input] {
        for queue in [2, 16, 64, 256] {
            let best = (0..5).map(|_| run(items, order, queue)).collect::<Result<Vec<_>>>()?;
            let best = best.into_iter().fold(f64::INFINITY, f64::min);
            println!("{order:?} order, queues of {queue:3}: {best:7.0} ns per item and stage");
        }
    }
    Ok(())
}

fn run(items: i64, order: Order, queue: usize) -> Result<f64> {
    let identity = || Ok(stage_fn(Ok::<i64, Error>));
    let options = |name| StageOptions::new(name).concurrency(2).order(order).queue(queue);
    let pipeline = PipelineBuilder::new(DatasetSource::new((0..items).collect::<Vec<_>>()))
        .stage(options("a"), identity)
        .stage(options("b"), identity)
        .stage(options("c"), identity)
        .threads(2)
        .prefetch(queue)
        .build()?;
    let start = Instant::now();
    let mut count = 0;
    for item in pipeline {
        item?;
        count += 1;
    }
    let time = start.elapsed();
    assert_eq!(count, items);
    Ok(time.as_secs_f64() * 1e9 / (items as f64 * 3.0))
}
