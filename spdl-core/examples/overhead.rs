//! Benchmark of the scheduler's overhead: identity stages on integers, compared with channels.
//!
//! Also measures the cost of tuning and monitoring, the time to the first item, the time to stop, and
//! the CPU time of idle pipelines.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

mod common;

use std::alloc::System;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use common::{Arguments, cpu_time, grouped, least, median, progress, quantile, round};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use spdl_core::pipeline::Tune;
use spdl_core::source::Cursor;
use spdl_core::stage::stage_fn;
use spdl_core::{
    AsyncContext, AsyncStage, BoxStream, DatasetSource, Error, ErrorKind, Order, Pipeline,
    PipelineBuilder, Result, Source, StageOptions, async_trait,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Stats, StatsAlloc};

/// Counts the heap allocations of all threads.
#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const HELP: &str = "\
Measures the overhead of the scheduler: identity stages on u64, concurrency 2, 2 worker threads.

cargo run --release -p spdl-core --example overhead -- [OPTIONS]

  --items N     items per run; runs with queues for fewer than 64 items use a tenth
                [default: 1000000]
  --rounds N    number of rounds; each round runs every case once [default: 5]
  --json        print the medians of the cases with default queues: [{stages, concurrency,
                order, ns_per_item_stage}]
  --json-all    print all results as one JSON object";

const CONCURRENCY: usize = 2;
const THREADS: usize = 2;
const NAMES: [&str; 3] = ["first", "second", "third"];

fn main() -> Result<()> {
    let arguments = Arguments::parse(HELP, &["--json", "--json-all"], &["--items", "--rounds"]);
    let items = arguments.number("--items", 1_000_000);
    let rounds = arguments.number("--rounds", 5) as usize;
    let cases = cases(items);

    if arguments.has("--json") {
        let cases = cases.into_iter().filter(|case| case.is_default()).collect::<Vec<_>>();
        let measured = run_interleaved(cases, rounds)?;
        println!("{:#}", measured.iter().filter_map(Measured::json).collect::<Value>());
        return Ok(());
    }

    let measured = run_interleaved(cases, rounds)?;
    let watched = watched_ratios(10 * items, rounds)?;
    let first_item = first_item_ms(200)?;
    let stop = stop_ms(300)?;
    let idle = idle_cpu_share(Duration::from_secs(5))?;
    if arguments.has("--json-all") {
        let mut report = all_json(items, rounds, &measured, &first_item, &stop, idle);
        report["watched"] = json!({
            "tuned": watched[0],
            "monitored": watched[1],
            "tuned_and_monitored": watched[2],
        });
        println!("{report:#}");
    } else {
        print_all(items, rounds, &measured, &first_item, &stop, idle);
        print_watched(&watched);
    }
    Ok(())
}

/// The time of long runs of three stages with a tuner, with a monitor socket that is read, and with
/// both, divided by the time of a plain run of the same round.
fn watched_ratios(items: u64, rounds: usize) -> Result<[Vec<f64>; 3]> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("monitor");
    let bar = progress(4 * rounds);
    let mut ratios = [const { Vec::new() }; 3];
    for round in 0..rounds {
        let mut times = [0.0; 4];
        for at in 0..4 {
            // A slow period affects each case equally often.
            let case = (at + round) % 4;
            bar.set_message(["plain", "tuned", "monitored", "tuned and monitored"][case]);
            let (tuned, monitored) = (case & 1 != 0, case & 2 != 0);
            let mut builder = identity_pipeline(items, 3, Order::Completion, None);
            if tuned {
                builder = builder.tune(Tune::automatic());
            }
            if monitored {
                builder = builder.monitor(&path);
            }
            let mut pipeline = builder.build()?;
            times[case] = thread::scope(|scope| {
                if monitored {
                    scope.spawn(|| read_to_end(&path));
                }
                let start = Instant::now();
                let counted = pipeline.by_ref().try_for_each(|item| item.map(drop));
                drop(pipeline);
                counted.map(|()| start.elapsed().as_secs_f64())
            })?;
            bar.inc(1);
        }
        (0..3).for_each(|case| ratios[case].push(times[case + 1] / times[0]));
    }
    bar.finish_and_clear();
    Ok(ratios)
}

/// Reads a monitor socket until the pipeline ends.
fn read_to_end(path: &Path) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if let Ok(mut socket) = UnixStream::connect(path) {
            // The socket is closed when the pipeline ends.
            let _ = socket.read_to_end(&mut Vec::new());
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn print_watched(watched: &[Vec<f64>; 3]) {
    println!("\n{:<42} {:>8}   {:>15}", "more time than a plain run, 3 stages", "median", "range");
    let names = ["tuned", "monitored, with a reader", "tuned and monitored"];
    for (name, ratios) in names.iter().zip(watched) {
        let percent = |ratio: f64| 100.0 * (ratio - 1.0);
        println!(
            "{name:<42} {:>+6.1} %   {:>+5.1} to {:>+5.1} %",
            percent(median(ratios)),
            percent(least(ratios)),
            percent(quantile(ratios, 1.0)),
        );
    }
}

/// A configuration to measure.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A pipeline; `queue` is the capacity of every queue, `None` the default.
    Pipeline { stages: usize, order: Order, queue: Option<usize> },
    /// A source thread, a channel, two worker threads, a channel, the consumer.
    Crossbeam { capacity: usize },
    /// The same with the channels of the crate `async-channel`.
    AsyncChannel { capacity: usize },
}

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    items: u64,
}

/// The baseline of the ratios: a common channel with sufficient capacity.
const BASELINE: Kind = Kind::Crossbeam { capacity: 128 };

fn cases(items: u64) -> Vec<Case> {
    let mut kinds = Vec::new();
    for order in [Order::Completion, Order::Input] {
        for stages in [1, 3] {
            kinds.push(Kind::Pipeline { stages, order, queue: None });
        }
    }
    for order in [Order::Completion, Order::Input] {
        for queue in [2, 16, 64, 256, 1024] {
            kinds.push(Kind::Pipeline { stages: 3, order, queue: Some(queue) });
        }
    }
    for capacity in [128, 2] {
        kinds.push(Kind::Crossbeam { capacity });
        kinds.push(Kind::AsyncChannel { capacity });
    }
    kinds.into_iter().map(|kind| Case { kind, items: kind.items(items) }).collect()
}

impl Kind {
    /// Short queues get fewer items, because nearly every item blocks and wakes a thread.
    fn items(self, items: u64) -> u64 {
        match self {
            Kind::Pipeline { queue: Some(0..64), .. } => items.div_ceil(10),
            Kind::Crossbeam { capacity: 0..64 } | Kind::AsyncChannel { capacity: 0..64 } => {
                items.div_ceil(10)
            }
            _ => items,
        }
    }

    /// Number of stages that process each item.
    fn stages(self) -> usize {
        match self {
            Kind::Pipeline { stages, .. } => stages,
            Kind::Crossbeam { .. } | Kind::AsyncChannel { .. } => 1,
        }
    }

    fn label(self) -> String {
        match self {
            Kind::Pipeline { stages, order, queue } => {
                let stages =
                    if stages == 1 { "1 stage ".into() } else { format!("{stages} stages") };
                let queue = match queue {
                    Some(queue) => format!("queues of {queue}"),
                    None => "default queues".into(),
                };
                format!("{stages}  {:<10}  {queue}", word(order))
            }
            Kind::Crossbeam { capacity } => format!("crossbeam-channel, bounded {capacity}"),
            Kind::AsyncChannel { capacity } => format!("async-channel, bounded {capacity}"),
        }
    }
}

fn word(order: Order) -> &'static str {
    match order {
        Order::Input => "input",
        _ => "completion",
    }
}

/// The results of one run of a case.
struct Run {
    ns_per_item_stage: f64,
    allocations_per_item: f64,
}

struct Measured {
    case: Case,
    runs: Vec<Run>,
}

impl Case {
    fn is_default(&self) -> bool {
        matches!(self.kind, Kind::Pipeline { queue: None, .. })
    }

    fn run(&self) -> Result<Run> {
        let mut heap = SteadyHeap::new(self.items);
        let time = match self.kind {
            Kind::Pipeline { stages, order, queue } => {
                run_pipeline(self.items, stages, order, queue, &mut heap)?
            }
            Kind::Crossbeam { capacity } => run_crossbeam(self.items, capacity, &mut heap),
            Kind::AsyncChannel { capacity } => run_async_channel(self.items, capacity, &mut heap),
        };
        heap.check(self.items)?;
        let work = self.items as f64 * self.kind.stages() as f64;
        Ok(Run {
            ns_per_item_stage: time.as_secs_f64() * 1e9 / work,
            allocations_per_item: heap.per_item(),
        })
    }
}

/// Runs every case once per round, so that a slow period of the machine affects all of them.
fn run_interleaved(cases: Vec<Case>, rounds: usize) -> Result<Vec<Measured>> {
    let bar = progress(cases.len() * (rounds + 1));
    let mut measured: Vec<Measured> =
        cases.into_iter().map(|case| Measured { case, runs: Vec::new() }).collect();
    for round in 0..=rounds {
        for one in &mut measured {
            bar.set_message(one.case.kind.label());
            if round == 0 {
                // A short warm-up.
                Case { items: one.case.items.div_ceil(20), ..one.case }.run()?;
            } else {
                one.runs.push(one.case.run()?);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(measured)
}

/// Counts items, and the allocations from 20 % to 90 % of the items.
struct SteadyHeap {
    seen: u64,
    from: u64,
    to: u64,
    before: Option<Stats>,
    allocations: usize,
}

impl SteadyHeap {
    fn new(items: u64) -> Self {
        let (from, to) = (items / 5, items * 9 / 10);
        SteadyHeap { seen: 0, from, to, before: None, allocations: 0 }
    }

    fn item(&mut self) {
        if self.seen == self.from {
            self.before = Some(HEAP.stats());
        } else if self.seen == self.to
            && let Some(before) = self.before
        {
            let change = HEAP.stats() - before;
            self.allocations = change.allocations + change.reallocations;
        }
        self.seen += 1;
    }

    fn per_item(&self) -> f64 {
        self.allocations as f64 / (self.to - self.from).max(1) as f64
    }

    fn check(&self, items: u64) -> Result<()> {
        if self.seen == items {
            return Ok(());
        }
        let message = format!("{} of {items} items arrived", self.seen);
        Err(Error::new(ErrorKind::User, message))
    }
}

fn identity_pipeline(
    items: u64,
    stages: usize,
    order: Order,
    queue: Option<usize>,
) -> PipelineBuilder<u64> {
    let mut builder = PipelineBuilder::new(DatasetSource::new((0..items).collect::<Vec<_>>()));
    for name in &NAMES[..stages] {
        let mut options = StageOptions::new(name).concurrency(CONCURRENCY).order(order);
        if let Some(queue) = queue {
            options = options.queue(queue);
        }
        builder = builder.stage(options, || Ok(stage_fn(Ok::<u64, Error>)));
    }
    let builder = builder.threads(THREADS);
    match queue {
        Some(queue) => builder.prefetch(queue),
        None => builder,
    }
}

fn run_pipeline(
    items: u64,
    stages: usize,
    order: Order,
    queue: Option<usize>,
    heap: &mut SteadyHeap,
) -> Result<Duration> {
    let pipeline = identity_pipeline(items, stages, order, queue).build()?;
    let start = Instant::now();
    for item in pipeline {
        item?;
        heap.item();
    }
    Ok(start.elapsed())
}

fn run_crossbeam(items: u64, capacity: usize, heap: &mut SteadyHeap) -> Duration {
    let (source, input) = crossbeam_channel::bounded(capacity);
    let (output, consumer) = crossbeam_channel::bounded::<u64>(capacity);
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || (0..items).all(|item| source.send(item).is_ok()));
        for _ in 0..THREADS {
            let (input, output) = (input.clone(), output.clone());
            scope.spawn(move || input.iter().all(|item| output.send(item).is_ok()));
        }
        drop((input, output));
        consumer.iter().for_each(|_| heap.item());
    });
    start.elapsed()
}

fn run_async_channel(items: u64, capacity: usize, heap: &mut SteadyHeap) -> Duration {
    let (source, input) = async_channel::bounded(capacity);
    let (output, consumer) = async_channel::bounded::<u64>(capacity);
    let start = Instant::now();
    thread::scope(|scope| {
        scope.spawn(move || (0..items).all(|item| source.send_blocking(item).is_ok()));
        for _ in 0..THREADS {
            let (input, output) = (input.clone(), output.clone());
            scope.spawn(move || {
                while let Ok(item) = input.recv_blocking() {
                    if output.send_blocking(item).is_err() {
                        break;
                    }
                }
            });
        }
        drop((input, output));
        while consumer.recv_blocking().is_ok() {
            heap.item();
        }
    });
    start.elapsed()
}

/// Time from `build` to the first item of three stages, in milliseconds.
fn first_item_ms(times: usize) -> Result<Vec<f64>> {
    let bar = progress(times);
    bar.set_message("first item");
    let mut results = Vec::with_capacity(times);
    for _ in 0..times {
        let builder = identity_pipeline(1000, 3, Order::Completion, None);
        let start = Instant::now();
        let mut pipeline = builder.build()?;
        let first = pipeline.next();
        results.push(start.elapsed().as_secs_f64() * 1e3);
        first.unwrap_or_else(|| Err(Error::new(ErrorKind::User, "no first item")))?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(results)
}

/// Why a running pipeline is idle.
#[derive(Clone, Copy, Debug)]
enum Idle {
    /// Every queue is full, because the consumer requests nothing.
    Full,
    /// Every queue is empty, because the source has no items.
    Empty,
}

/// A source that never yields another item after the first ones.
#[derive(Debug)]
struct StallingSource;

const ITEMS_BEFORE_STALL: u64 = 100;

impl Source for StallingSource {
    type Item = u64;

    fn open(&self, _: Cursor) -> Result<BoxStream<'static, Result<u64>>> {
        Ok(stream::iter(0..ITEMS_BEFORE_STALL).map(Ok).chain(stream::pending()).boxed())
    }
}

struct Identity;

#[async_trait]
impl AsyncStage<u64> for Identity {
    type Out = u64;

    async fn process(&self, item: u64, _: &AsyncContext) -> Result<u64> {
        Ok(item)
    }
}

/// A pipeline with async and CPU stages that has processed items and is now idle.
fn idle_pipeline(why: Idle) -> Result<Pipeline<u64>> {
    let builder = match why {
        Idle::Full => PipelineBuilder::new(DatasetSource::new((0..100_000).collect::<Vec<_>>())),
        Idle::Empty => PipelineBuilder::new(StallingSource),
    };
    let mut builder = builder.async_stage("wait", Identity);
    for name in NAMES {
        builder = builder.stage(name, || Ok(stage_fn(Ok::<u64, Error>)));
    }
    let mut pipeline = builder.threads(THREADS).build()?;
    for item in pipeline.by_ref().take(ITEMS_BEFORE_STALL as usize) {
        item?;
    }
    Ok(pipeline)
}

/// Time to drop an idle pipeline, in milliseconds.
fn stop_ms(times: usize) -> Result<Vec<f64>> {
    let bar = progress(times);
    bar.set_message("stop");
    let mut results = Vec::with_capacity(times);
    for why in [Idle::Full, Idle::Empty].into_iter().cycle().take(times) {
        let pipeline = idle_pipeline(why)?;
        thread::sleep(Duration::from_millis(5));
        let start = Instant::now();
        drop(pipeline);
        results.push(start.elapsed().as_secs_f64() * 1e3);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(results)
}

/// The share of one CPU that two idle pipelines use, one full and one empty.
fn idle_cpu_share(time: Duration) -> Result<f64> {
    let pipelines = [idle_pipeline(Idle::Full)?, idle_pipeline(Idle::Empty)?];
    thread::sleep(Duration::from_millis(200));
    let (start, before) = (Instant::now(), cpu_time());
    thread::sleep(time);
    let share = (cpu_time() - before).as_secs_f64() / start.elapsed().as_secs_f64();
    drop(pipelines);
    Ok(share)
}

impl Measured {
    fn times(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.ns_per_item_stage).collect()
    }

    /// The median of the ratios per round, so that a slow period of the machine affects both.
    fn ratio(&self, baseline: &Measured) -> f64 {
        let pairs = self.runs.iter().zip(&baseline.runs);
        let ratios = pairs.map(|(one, other)| one.ns_per_item_stage / other.ns_per_item_stage);
        median(&ratios.collect::<Vec<_>>())
    }

    fn allocations_per_item(&self) -> f64 {
        median(&self.runs.iter().map(|run| run.allocations_per_item).collect::<Vec<_>>())
    }

    /// The output of `--json`; `None` if the case is not a pipeline with default queues.
    fn json(&self) -> Option<Value> {
        match self.case.kind {
            Kind::Pipeline { stages, order, queue: None } => Some(json!({
                "stages": stages,
                "concurrency": CONCURRENCY,
                "order": word(order),
                "ns_per_item_stage": round(median(&self.times()), 1),
            })),
            _ => None,
        }
    }
}

fn baseline(measured: &[Measured]) -> Option<&Measured> {
    measured.iter().find(|one| one.case.kind == BASELINE)
}

fn all_json(
    items: u64,
    rounds: usize,
    measured: &[Measured],
    first_item: &[f64],
    stop: &[f64],
    idle: f64,
) -> Value {
    let cases = measured.iter().map(|one| {
        let (kind, stages, order, queue) = match one.case.kind {
            Kind::Pipeline { stages, order, queue } => {
                ("pipeline", stages, Some(word(order)), queue)
            }
            Kind::Crossbeam { capacity } => ("crossbeam-channel", 1, None, Some(capacity)),
            Kind::AsyncChannel { capacity } => ("async-channel", 1, None, Some(capacity)),
        };
        json!({
            "kind": kind,
            "stages": stages,
            "concurrency": CONCURRENCY,
            "order": order,
            "queue": queue,
            "items": one.case.items,
            "ns_per_item_stage": round(median(&one.times()), 1),
            "ns_per_item_stage_min": round(least(&one.times()), 1),
            "ratio_to_crossbeam_128": baseline(measured).map(|other| round(one.ratio(other), 3)),
            "allocations_per_item": round(one.allocations_per_item(), 6),
        })
    });
    json!({
        "items": items,
        "rounds": rounds,
        "threads": THREADS,
        "cases": cases.collect::<Value>(),
        "first_item_ms": {"median": round(median(first_item), 3), "p99": round(quantile(first_item, 0.99), 3)},
        "stop_ms": {"median": round(median(stop), 3), "p99": round(quantile(stop, 0.99), 3)},
        "idle_cpu_share": round(idle, 6),
        "upstream_us_per_item_3_stages": UPSTREAM_US,
    })
}

/// Time per item of upstream SPDL for three stages, versions 0.6 and 0.8.
const UPSTREAM_US: [f64; 2] = [420.6, 351.9];

fn print_all(
    items: u64,
    rounds: usize,
    measured: &[Measured],
    first_item: &[f64],
    stop: &[f64],
    idle: f64,
) {
    println!(
        "Identity stages on u64, concurrency {CONCURRENCY}, {THREADS} worker threads, {} items (a tenth for \
         queues below 64);\n{rounds} interleaved rounds. A channel case has a source thread, \
         {THREADS} worker\nthreads and the consumer: one stage, two channels.\n",
        grouped(items)
    );
    println!(
        "{:<42} {:>8} {:>8}   {:>12}   {:>11}",
        "ns per item and per stage", "median", "min", "/ crossbeam", "allocations"
    );
    println!("{:<42} {:>8} {:>8}   {:>12}   {:>11}", "", "", "", "bounded 128", "per item");
    for one in measured {
        let ratio = baseline(measured).map_or(f64::NAN, |baseline| one.ratio(baseline));
        println!(
            "{:<42} {:>8.0} {:>8.0}   {ratio:>12.2}   {:>11.4}",
            one.case.kind.label(),
            median(&one.times()),
            least(&one.times()),
            one.allocations_per_item(),
        );
    }

    let three = Kind::Pipeline { stages: 3, order: Order::Completion, queue: None };
    if let Some(three) = measured.iter().find(|one| one.case.kind == three) {
        let ours_us = 3.0 * median(&three.times()) / 1e3;
        let [old, new] = UPSTREAM_US;
        println!(
            "\nThree stages, completion order: {ours_us:.2} µs per item. Upstream SPDL takes {new:.0} µs \
             (version 0.8)\nto {old:.0} µs (version 0.6) for trivial Python functions on two cores. \
             These figures were not\nmeasured in this run."
        );
    }
    println!(
        "\nAllocations are counted over all threads, from 20 % to 90 % of the items.\n\n\
         build to first item    {:.2} ms median, {:.2} ms p99 of {}  (3 stages)\n\
         drop when idle         {:.2} ms median, {:.2} ms p99 of {}  (async stage and 3 stages; queues \
         full, empty)\n\
         idle                   {:.4} % of one CPU over 5 s  (two such pipelines: one full, one empty)",
        median(first_item),
        quantile(first_item, 0.99),
        first_item.len(),
        median(stop),
        quantile(stop, 0.99),
        stop.len(),
        100.0 * idle,
    );
}
