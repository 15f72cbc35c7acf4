//! Benchmark of concurrency: stages that only sleep, with many items in flight or many workers.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{Arguments, cpu_time, grouped, median, progress, round};
use serde_json::{Value, json};
use spdl_core::stage::stage_fn;
use spdl_core::{
    AsyncContext, AsyncStage, DatasetSource, Error, ErrorKind, PipelineBuilder, Result,
    StageOptions, async_trait,
};

const HELP: &str = "\
Measures how concurrency scales: stages that only sleep.

cargo run --release -p spdl-core --example scaling -- [OPTIONS]

Efficiency is the ideal time divided by the measured time. In the ideal time, all items in flight
sleep concurrently and nothing else takes time. An async stage sleeps on the pipeline's runtime, a
CPU stage calls thread::sleep in its workers. Sleeps are longer than requested (Linux adds about
60 µs), so the second table compares with the same number of threads without a pipeline.

  --sleep-ms N    sleep per item in the first table, in ms [default: 10]
  --rounds N      runs of each cell of the first table, which shows the median [default: 3]
  --json          print one object: {sleep_ms, cells, short}";

/// Concurrency of an async stage.
const IN_FLIGHT: [usize; 4] = [2, 16, 64, 256];
/// Number of workers of a CPU stage.
const WORKERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Sleeps of the second table, in µs.
const SHORT_US: [u64; 3] = [1000, 200, 50];
/// Cells below this speed, relative to plain threads, are marked.
const MARKED_BELOW: f64 = 0.9;
/// The target efficiency of the first table.
const TARGET: f64 = 0.95;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Async,
    Cpu,
    /// Plain threads without a pipeline, each with the same number of sleeps.
    Threads,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Async => "async",
            Kind::Cpu => "cpu",
            Kind::Threads => "threads",
        }
    }
}

/// A case of the benchmark.
#[derive(Clone, Copy, Debug)]
struct Cell {
    kind: Kind,
    concurrency: usize,
    sleep: Duration,
    items: usize,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    efficiency: f64,
    items_per_s: f64,
    /// CPU time of all threads per item, including system calls.
    cpu_us_per_item: f64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse(HELP, &["--json"], &["--sleep-ms", "--rounds"]);
    let sleep = Duration::from_millis(arguments.number("--sleep-ms", 10));
    let rounds = arguments.number("--rounds", 3) as usize;

    let asynchronous = IN_FLIGHT.map(|concurrency| (Kind::Async, concurrency));
    let cpu = WORKERS.map(|concurrency| (Kind::Cpu, concurrency));
    let kinds = || asynchronous.into_iter().chain(cpu);
    // A run is long compared with start-up and shutdown, which are part of the measured time.
    let time = Duration::from_millis(300).max(sleep * 60);
    let cells: Vec<Cell> = kinds().map(|(kind, n)| Cell::new(kind, n, sleep, time)).collect();
    let mut short = Vec::new();
    for us in SHORT_US {
        let (sleep, time) = (Duration::from_micros(us), Duration::from_millis(100));
        for (kind, n) in kinds() {
            short.push(Cell::new(kind, n, sleep, time));
            short.push(Cell::new(Kind::Threads, n, sleep, time));
        }
    }

    let bar = progress(cells.len() * rounds + short.len());
    let mut long_runs = vec![Vec::new(); cells.len()];
    for _ in 0..rounds {
        for (cell, runs) in cells.iter().zip(&mut long_runs) {
            bar.set_message(cell.label());
            runs.push(cell.run()?);
            bar.inc(1);
        }
    }
    let long: Vec<(Cell, Run)> =
        cells.into_iter().zip(long_runs).map(|(cell, runs)| (cell, median_run(&runs))).collect();
    let short = short
        .into_iter()
        .map(|cell| {
            bar.set_message(cell.label());
            let run = cell.run()?;
            bar.inc(1);
            Ok((cell, run))
        })
        .collect::<Result<Vec<_>>>()?;
    bar.finish_and_clear();

    if arguments.has("--json") {
        println!("{:#}", all_json(sleep, &long, &short));
    } else {
        print_long(sleep, &long);
        print_short(&short);
    }
    Ok(())
}

fn median_run(runs: &[Run]) -> Run {
    let of = |value: fn(&Run) -> f64| median(&runs.iter().map(value).collect::<Vec<_>>());
    Run {
        efficiency: of(|run| run.efficiency),
        items_per_s: of(|run| run.items_per_s),
        cpu_us_per_item: of(|run| run.cpu_us_per_item),
    }
}

impl Cell {
    /// The number of items is a multiple of the concurrency whose ideal time is about `time`.
    fn new(kind: Kind, concurrency: usize, sleep: Duration, time: Duration) -> Self {
        const MAX_ITEMS: usize = 50_000;
        let times = (time.as_secs_f64() / sleep.as_secs_f64()).ceil() as usize;
        let items = concurrency * times.min((MAX_ITEMS / concurrency).max(20));
        Cell { kind, concurrency, sleep, items }
    }

    fn label(&self) -> String {
        format!("{}, concurrency {}, {:?}", self.kind.word(), self.concurrency, self.sleep)
    }

    fn run(&self) -> Result<Run> {
        let (start, before) = (Instant::now(), cpu_time());
        match self.kind {
            Kind::Async => self.run_async()?,
            Kind::Cpu => self.run_cpu()?,
            Kind::Threads => self.run_threads(),
        }
        let time = start.elapsed().as_secs_f64();
        let ideal = self.sleep.as_secs_f64() * self.items as f64 / self.concurrency as f64;
        Ok(Run {
            efficiency: ideal / time,
            items_per_s: self.items as f64 / time,
            cpu_us_per_item: (cpu_time() - before).as_secs_f64() * 1e6 / self.items as f64,
        })
    }

    fn run_async(&self) -> Result<()> {
        let in_stage = Arc::new(InStage::default());
        let stage = Sleep { time: self.sleep, in_stage: Arc::clone(&in_stage) };
        let options = StageOptions::new("sleep").concurrency(self.concurrency);
        self.consume(self.source().async_stage(options, stage), &in_stage)
    }

    fn run_cpu(&self) -> Result<()> {
        let in_stage = Arc::new(InStage::default());
        let time = self.sleep;
        let counter = Arc::clone(&in_stage);
        let factory = move || {
            let in_stage = Arc::clone(&counter);
            Ok(stage_fn(move |item| {
                in_stage.enter();
                thread::sleep(time);
                in_stage.leave();
                Ok(item)
            }))
        };
        let options = StageOptions::new("sleep").concurrency(self.concurrency);
        let builder = self.source().stage(options, factory).threads(self.concurrency);
        self.consume(builder, &in_stage)
    }

    fn source(&self) -> PipelineBuilder<u64> {
        PipelineBuilder::new(DatasetSource::new((0..self.items as u64).collect::<Vec<_>>()))
    }

    fn consume(&self, builder: PipelineBuilder<u64>, in_stage: &InStage) -> Result<()> {
        let mut count = 0;
        for item in builder.build()? {
            item?;
            count += 1;
        }
        let max = in_stage.max.load(Ordering::Relaxed) as usize;
        if count != self.items || max > self.concurrency {
            let message = format!("{}: {count} items, up to {max} concurrently", self.label());
            return Err(Error::new(ErrorKind::User, message));
        }
        Ok(())
    }

    fn run_threads(&self) {
        let each = self.items / self.concurrency;
        thread::scope(|scope| {
            for _ in 0..self.concurrency {
                scope.spawn(|| (0..each).for_each(|_| thread::sleep(self.sleep)));
            }
        });
    }
}

/// The current and the maximum number of items in a stage.
#[derive(Debug, Default)]
struct InStage {
    now: AtomicU64,
    max: AtomicU64,
}

impl InStage {
    fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.max.fetch_max(now, Ordering::Relaxed);
    }

    fn leave(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Sleep {
    time: Duration,
    in_stage: Arc<InStage>,
}

#[async_trait]
impl AsyncStage<u64> for Sleep {
    type Out = u64;

    async fn process(&self, item: u64, cx: &AsyncContext) -> Result<u64> {
        self.in_stage.enter();
        cx.runtime().sleep(self.time).await;
        self.in_stage.leave();
        Ok(item)
    }
}

fn cell_json((cell, run): &(Cell, Run)) -> Value {
    json!({
        "kind": cell.kind.word(),
        "concurrency": cell.concurrency,
        "sleep_us": cell.sleep.as_micros() as u64,
        "items": cell.items,
        "efficiency": round(run.efficiency, 4),
        "items_per_s": round(run.items_per_s, 0),
        "cpu_us_per_item": round(run.cpu_us_per_item, 2),
    })
}

fn all_json(sleep: Duration, long: &[(Cell, Run)], short: &[(Cell, Run)]) -> Value {
    json!({
        "sleep_ms": sleep.as_millis() as u64,
        "cells": long.iter().map(cell_json).collect::<Value>(),
        "short": short.iter().map(cell_json).collect::<Value>(),
    })
}

fn print_long(sleep: Duration, runs: &[(Cell, Run)]) {
    println!(
        "Each item sleeps {sleep:?}; efficiency = ideal / measured time, including start-up and shutdown.\n"
    );
    println!("stage   concurrency    items  efficiency   items/s  CPU µs/item");
    for (cell, run) in runs {
        println!(
            "{:<7} {:>11} {:>8}  {:>8.1} %  {:>8.0}  {:>11.1}{}",
            cell.kind.word(),
            cell.concurrency,
            cell.items,
            100.0 * run.efficiency,
            run.items_per_s,
            run.cpu_us_per_item,
            if run.efficiency < TARGET { "   below 95 %" } else { "" },
        );
    }
}

fn print_short(runs: &[(Cell, Run)]) {
    println!(
        "\nShorter sleeps show the overhead of the scheduler. \"/ threads\" is the throughput \
         relative\nto the same number of threads without a pipeline.\n"
    );
    print!("stage   concurrency");
    for us in SHORT_US {
        print!("  | {:>5} µs  / threads  CPU µs", us);
    }
    println!();
    let of_sleep = |us: u64| {
        let sleep = Duration::from_micros(us);
        runs.chunks_exact(2).filter(move |pair| pair[0].0.sleep == sleep)
    };
    for (row, first) in of_sleep(SHORT_US[0]).enumerate() {
        let cell = first[0].0;
        print!("{:<7} {:>11}", cell.kind.word(), cell.concurrency);
        for us in SHORT_US {
            let Some([(_, run), (_, threads)]) = of_sleep(us).nth(row) else { continue };
            let relative = run.items_per_s / threads.items_per_s;
            let mark = if relative < MARKED_BELOW { '*' } else { ' ' };
            let efficiency = 100.0 * run.efficiency;
            print!("  | {efficiency:>6.1} %  {relative:>8.2}{mark}  {:>6.1}", run.cpu_us_per_item);
        }
        println!();
    }
    let max_rate = |kind| {
        let of_kind = runs.iter().filter(|(cell, _)| cell.kind == kind);
        of_kind.map(|(_, run)| run.items_per_s).fold(0.0, f64::max)
    };
    println!(
        "\n* = more than 10 % slower than plain threads. Maximum items per second in this table: \
         async stage {},\nCPU stage {}, plain threads {}.",
        grouped(max_rate(Kind::Async) as u64),
        grouped(max_rate(Kind::Cpu) as u64),
        grouped(max_rate(Kind::Threads) as u64),
    );
}
