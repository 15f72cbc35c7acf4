//! Benchmark of samplers: nanoseconds per position, in sequence and at random positions.
//!
//! `cargo run --release -p spdl-core --example order_speed`
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spdl_core::Result;
use spdl_core::source::sampler::{
    Distributed, Limited, Mixture, NumpyRandom, Part, Repeated, SampleOrder, Sampler, Sequential,
    ShardWindow, Shuffled, Until, Weighted,
};

const POSITIONS: u64 = 1_000_000;

fn main() -> Result<()> {
    let billion = 1_000_000_000;
    let million = 1_000_000;
    let weights: Vec<f64> = (0..million).map(|item| (item % 10) as f64).collect();
    let draws = weights.iter().filter(|weight| **weight > 0.0).count() as u64;
    let shards = vec![10_000; 100_000];
    let text =
        Mixture::new([Part::new(million, 2.0), Part::new(million, 1.0)], Until::AllExhausted, 7)?;
    let mixture = |third: Part| {
        let parts = [Part::new(billion, 7.0), Part::new(million, 2.0), third];
        Mixture::new(parts, Until::Samples(billion), 7)
    };

    println!("{:28} {:>20} {:>10} {:>10} {:>10}", "order", "items", "epoch", "next", "seek");
    show("sequential", &Sequential, billion)?;
    show("shuffled, 10^9", &Shuffled::new(7), billion)?;
    show("shuffled, 2^30", &Shuffled::new(7), 1 << 30)?;
    show("shuffled, 2^62 + 1", &Shuffled::new(7), (1 << 62) + 1)?;
    show("shuffled, 2^63", &Shuffled::new(7), 1 << 63)?;
    show("two passes", &Repeated::passes(Shuffled::new(7), 2)?, billion)?;
    show("each twice", &Repeated::in_a_row(Shuffled::new(7), 2)?, billion)?;
    show("limited", &Limited::positions(Shuffled::new(7), 0..million * 10)?, billion)?;
    show("weighted", &Weighted::with_replacement(weights.clone(), billion, 7)?, million)?;
    show("weighted, each once", &Weighted::without_replacement(weights, draws, 7)?, million)?;
    show("mixture of 3", &mixture(Part::new(million, 1.0))?, billion + 2 * million)?;
    show("nested mixture", &mixture(Part::mixture(text, 1.0))?, billion + 3 * million)?;
    show("10^5 shards, window 10^5", &ShardWindow::new(shards, 100_000, 7)?, billion)?;
    show("NumPy's permutation", &NumpyRandom::new(7), million)?;
    show("one of 8 ranks", &Distributed::new(Shuffled::new(7), 3, 8)?, billion)
}

fn show(name: &str, sampler: &dyn Sampler, items: u64) -> Result<()> {
    let began = Instant::now();
    let order: Arc<dyn SampleOrder> = sampler.epoch(items, 1)?;
    let epoch = began.elapsed();
    let len = order.len();
    let next = measured(&*order, |n| n % len);
    // Multiples of the length times the golden ratio are spread evenly over all positions.
    let step = ((len as f64 * 0.618) as u64 | 1).max(1);
    let seek = measured(&*order, |n| (u128::from(n) * u128::from(step) % u128::from(len)) as u64);
    println!("{name:28} {items:>20} {epoch:>10.1?} {next:>7.1} ns {seek:>7.1} ns");
    Ok(())
}

/// Nanoseconds per item, the median of five runs.
fn measured(order: &dyn SampleOrder, position: impl Fn(u64) -> u64) -> f64 {
    // A random access in a mixture computes a block of 1,024 positions, so fewer positions are
    // measured.
    let positions = POSITIONS.min(order.len()) / 10;
    let mut times: [Duration; 5] = std::array::from_fn(|_| {
        let began = Instant::now();
        for n in 0..positions {
            black_box(order.at(black_box(position(n))));
        }
        began.elapsed()
    });
    times.sort_unstable();
    times[2].as_nanos() as f64 / positions as f64
}
