//! How well waiting scales: stages that only sleep, with many items in flight or many workers, and
//! where the scheduler's own cost starts to show.
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
How well waiting scales: stages that only sleep.

cargo run --release -p spdl-core --example scaling -- [OPTIONS]

Efficiency is the ideal time over the measured one; ideal is that all items in flight sleep at once
and nothing else takes time. An async stage sleeps on the pipeline's runtime, a CPU stage with
thread::sleep on as many workers. Sleeps are longer than asked for (Linux adds some 60 µs), so the
second table sets the same number of bare threads beside it, which sleep with no pipeline around.

  --sleep-ms N    how long an item sleeps in the first table, in ms [default: 10]
  --rounds N      how often each cell of the first table is run; medians count [default: 3]
  --json          one object: {sleep_ms, cells, short}";

/// How many items an async stage has in flight.
const IN_FLIGHT: [usize; 4] = [2, 16, 64, 256];
/// How many workers a CPU stage has.
const WORKERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Sleeps of the second table, in µs.
const SHORT_US: [u64; 3] = [1000, 200, 50];
/// How fast a pipeline is, relative to bare threads, where its own cost starts to show.
const SHOWS: f64 = 0.9;
/// What the first table should reach.
const TARGET: f64 = 0.95;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Async,
    Cpu,
    /// No pipeline: threads that take the same number of sleeps each.
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

/// So many items at once, each of which sleeps so long.
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
    /// What all threads computed for an item, sleeping and waking up included.
    cpu_us_per_item: f64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse(HELP, &["--json"], &["--sleep-ms", "--rounds"]);
    let sleep = Duration::from_millis(arguments.number("--sleep-ms", 10));
    let rounds = arguments.number("--rounds", 3) as usize;

    let asynchronous = IN_FLIGHT.map(|concurrency| (Kind::Async, concurrency));
    let cpu = WORKERS.map(|concurrency| (Kind::Cpu, concurrency));
    let kinds = || asynchronous.into_iter().chain(cpu);
    // Long enough that start and end, which are part of the measured time, do not decide.
    let enough = Duration::from_millis(300).max(sleep * 60);
    let cells: Vec<Cell> = kinds().map(|(kind, n)| Cell::new(kind, n, sleep, enough)).collect();
    let mut short = Vec::new();
    for us in SHORT_US {
        let (sleep, enough) = (Duration::from_micros(us), Duration::from_millis(100));
        for (kind, n) in kinds() {
            short.push(Cell::new(kind, n, sleep, enough));
            short.push(Cell::new(Kind::Threads, n, sleep, enough));
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
        cells.into_iter().zip(long_runs).map(|(cell, runs)| (cell, middle(&runs))).collect();
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
        println!("{:#}", everything(sleep, &long, &short));
    } else {
        print_long(sleep, &long);
        print_short(&short);
    }
    Ok(())
}

fn middle(runs: &[Run]) -> Run {
    let of = |value: fn(&Run) -> f64| median(&runs.iter().map(value).collect::<Vec<_>>());
    Run {
        efficiency: of(|run| run.efficiency),
        items_per_s: of(|run| run.items_per_s),
        cpu_us_per_item: of(|run| run.cpu_us_per_item),
    }
}

impl Cell {
    /// As many items as take about `enough`, were everything ideal; whole rounds of them.
    fn new(kind: Kind, concurrency: usize, sleep: Duration, enough: Duration) -> Self {
        const MOST: usize = 50_000;
        let times = (enough.as_secs_f64() / sleep.as_secs_f64()).ceil() as usize;
        let items = concurrency * times.min((MOST / concurrency).max(20));
        Cell { kind, concurrency, sleep, items }
    }

    fn label(&self) -> String {
        format!("{}, {} at once, {:?}", self.kind.word(), self.concurrency, self.sleep)
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
        let together = Arc::new(Together::default());
        let stage = Sleep { time: self.sleep, together: Arc::clone(&together) };
        let options = StageOptions::new("sleep").concurrency(self.concurrency);
        self.consume(self.source().async_stage(options, stage), &together)
    }

    fn run_cpu(&self) -> Result<()> {
        let together = Arc::new(Together::default());
        let time = self.sleep;
        let counter = Arc::clone(&together);
        let factory = move || {
            let together = Arc::clone(&counter);
            Ok(stage_fn(move |item| {
                together.enter();
                thread::sleep(time);
                together.leave();
                Ok(item)
            }))
        };
        let options = StageOptions::new("sleep").concurrency(self.concurrency);
        let builder = self.source().stage(options, factory).threads(self.concurrency);
        self.consume(builder, &together)
    }

    fn source(&self) -> PipelineBuilder<u64> {
        PipelineBuilder::new(DatasetSource::new((0..self.items as u64).collect::<Vec<_>>()))
    }

    fn consume(&self, builder: PipelineBuilder<u64>, together: &Together) -> Result<()> {
        let mut count = 0;
        for item in builder.build()? {
            item?;
            count += 1;
        }
        let most = together.most.load(Ordering::Relaxed) as usize;
        if count != self.items || most > self.concurrency {
            let message = format!("{}: {count} items, up to {most} at once", self.label());
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

/// How many items are in a stage, and how many were at most.
#[derive(Debug, Default)]
struct Together {
    now: AtomicU64,
    most: AtomicU64,
}

impl Together {
    fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
    }

    fn leave(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Sleep {
    time: Duration,
    together: Arc<Together>,
}

#[async_trait]
impl AsyncStage<u64> for Sleep {
    type Out = u64;

    async fn process(&self, item: u64, cx: &AsyncContext) -> Result<u64> {
        self.together.enter();
        cx.runtime().sleep(self.time).await;
        self.together.leave();
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

fn everything(sleep: Duration, long: &[(Cell, Run)], short: &[(Cell, Run)]) -> Value {
    json!({
        "sleep_ms": sleep.as_millis() as u64,
        "cells": long.iter().map(cell_json).collect::<Value>(),
        "short": short.iter().map(cell_json).collect::<Value>(),
    })
}

fn print_long(sleep: Duration, runs: &[(Cell, Run)]) {
    println!(
        "Items that sleep {sleep:?} each; efficiency = ideal / measured time, start and end included.\n"
    );
    println!("stage   at once    items  efficiency   items/s  CPU µs/item");
    for (cell, run) in runs {
        println!(
            "{:<7} {:>7} {:>8}  {:>8.1} %  {:>8.0}  {:>11.1}{}",
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
        "\nWhere the scheduler's own cost starts to show: shorter sleeps. \"/ threads\" is the speed \
         relative\nto as many bare threads, which sleep as often without a pipeline.\n"
    );
    print!("stage   at once");
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
        print!("{:<7} {:>7}", cell.kind.word(), cell.concurrency);
        for us in SHORT_US {
            let Some([(_, ours), (_, threads)]) = of_sleep(us).nth(row) else { continue };
            let relative = ours.items_per_s / threads.items_per_s;
            let mark = if relative < SHOWS { '*' } else { ' ' };
            let efficiency = 100.0 * ours.efficiency;
            print!("  | {efficiency:>6.1} %  {relative:>8.2}{mark}  {:>6.1}", ours.cpu_us_per_item);
        }
        println!();
    }
    let most = |kind| {
        let of_kind = runs.iter().filter(|(cell, _)| cell.kind == kind);
        of_kind.map(|(_, run)| run.items_per_s).fold(0.0, f64::max)
    };
    println!(
        "\n* = more than 10 % slower than bare threads. The most items a second in this table: async \
         stage {},\nCPU stage {}, bare threads {}.",
        grouped(most(Kind::Async) as u64),
        grouped(most(Kind::Cpu) as u64),
        grouped(most(Kind::Threads) as u64),
    );
}
