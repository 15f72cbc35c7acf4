//! What the scheduler costs: identity stages over small integers, nanoseconds per item and stage,
//! beside plain channels in the same run; and how soon pipelines start, stop and fall silent.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

mod common;

use std::alloc::System;
use std::thread;
use std::time::{Duration, Instant};

use common::{Arguments, cpu_time, grouped, least, median, progress, quantile, round};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use spdl_core::source::Cursor;
use spdl_core::stage::stage_fn;
use spdl_core::{
    AsyncContext, AsyncStage, BoxStream, DatasetSource, Error, ErrorKind, Order, Pipeline,
    PipelineBuilder, Result, Source, StageOptions, async_trait,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Stats, StatsAlloc};

/// Counts what every thread asks of the heap.
#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const HELP: &str = "\
What the scheduler costs: identity stages on u64, concurrency 2, 2 worker threads.

cargo run --release -p spdl-core --example overhead -- [OPTIONS]

  --items N     items of a run with default queues [default: 1000000]; short queues get a tenth
  --rounds N    how often every case is run; the cases take turns [default: 5]
  --json        only the cases with default queues, as [{stages, concurrency, order,
                ns_per_item_stage}], medians over the rounds
  --json-all    everything, as one object";

const CONCURRENCY: usize = 2;
const THREADS: usize = 2;
const NAMES: [&str; 3] = ["first", "second", "third"];

fn main() -> Result<()> {
    let arguments = Arguments::parse(HELP, &["--json", "--json-all"], &["--items", "--rounds"]);
    let items = arguments.number("--items", 1_000_000);
    let rounds = arguments.number("--rounds", 5) as usize;
    let cases = cases(items);

    if arguments.has("--json") {
        let ours = cases.into_iter().filter(|case| case.is_default()).collect::<Vec<_>>();
        let measured = take_turns(ours, rounds)?;
        println!("{:#}", measured.iter().filter_map(Measured::json).collect::<Value>());
        return Ok(());
    }

    let measured = take_turns(cases, rounds)?;
    let first_item = first_item_ms(200)?;
    let stop = stop_ms(300)?;
    let idle = idle_cpu_share(Duration::from_secs(5))?;
    if arguments.has("--json-all") {
        println!("{:#}", everything(items, rounds, &measured, &first_item, &stop, idle));
    } else {
        print_all(items, rounds, &measured, &first_item, &stop, idle);
    }
    Ok(())
}

/// What takes part.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// A pipeline; `queue` is the size of every queue, the default one where it is `None`.
    Pipeline { stages: usize, order: Order, queue: Option<usize> },
    /// A source thread, a channel, two worker threads, a channel, the consumer.
    Crossbeam { capacity: usize },
    /// The same through another crate's channels.
    AsyncChannel { capacity: usize },
}

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    items: u64,
}

/// What the ratios are made with: the channel most Rust programs would use, not short of room.
const YARDSTICK: Kind = Kind::Crossbeam { capacity: 128 };

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
    /// Short queues need a sleep and a wake-up for nearly every item, so they get fewer.
    fn items(self, items: u64) -> u64 {
        match self {
            Kind::Pipeline { queue: Some(0..64), .. } => items.div_ceil(10),
            Kind::Crossbeam { capacity: 0..64 } | Kind::AsyncChannel { capacity: 0..64 } => {
                items.div_ceil(10)
            }
            _ => items,
        }
    }

    /// How many times each item is worked on.
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

/// What one run of a case took.
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

/// Runs every case once per round, so that a slow minute of the machine hits all of them.
fn take_turns(cases: Vec<Case>, rounds: usize) -> Result<Vec<Measured>> {
    let bar = progress(cases.len() * (rounds + 1));
    let mut measured: Vec<Measured> =
        cases.into_iter().map(|case| Measured { case, runs: Vec::new() }).collect();
    for round in 0..=rounds {
        for one in &mut measured {
            bar.set_message(one.case.kind.label());
            if round == 0 {
                // A short warm-up, which is not counted.
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

/// Counts items, and the allocations between the 20 % and the 90 % mark of them.
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

/// From `build` to the first item of three stages, in milliseconds.
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

/// Why nothing happens in a pipeline that runs.
#[derive(Clone, Copy, Debug)]
enum Idle {
    /// Every queue is full, since the consumer takes nothing.
    Full,
    /// Every queue is empty, since the source has nothing yet.
    Empty,
}

/// Some items, and then nothing for ever.
#[derive(Debug)]
struct DriesUp;

const BEFORE_IT_DRIES_UP: u64 = 100;

impl Source for DriesUp {
    type Item = u64;

    fn open(&self, _: Cursor) -> Result<BoxStream<'static, Result<u64>>> {
        Ok(stream::iter(0..BEFORE_IT_DRIES_UP).map(Ok).chain(stream::pending()).boxed())
    }
}

struct Pass;

#[async_trait]
impl AsyncStage<u64> for Pass {
    type Out = u64;

    async fn process(&self, item: u64, _: &AsyncContext) -> Result<u64> {
        Ok(item)
    }
}

/// A pipeline with stages of both kinds that has worked and now has nothing to do.
fn idle_pipeline(why: Idle) -> Result<Pipeline<u64>> {
    let builder = match why {
        Idle::Full => PipelineBuilder::new(DatasetSource::new((0..100_000).collect::<Vec<_>>())),
        Idle::Empty => PipelineBuilder::new(DriesUp),
    };
    let mut builder = builder.async_stage("wait", Pass);
    for name in NAMES {
        builder = builder.stage(name, || Ok(stage_fn(Ok::<u64, Error>)));
    }
    let mut pipeline = builder.threads(THREADS).build()?;
    for item in pipeline.by_ref().take(BEFORE_IT_DRIES_UP as usize) {
        item?;
    }
    Ok(pipeline)
}

/// How long dropping an idle pipeline takes, in milliseconds.
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

/// The share of one CPU that two idle pipelines, a full one and an empty one, use together.
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

    /// Neighbours in time are compared, so that a slow minute of the machine hits both.
    fn ratio(&self, yardstick: &Measured) -> f64 {
        let pairs = self.runs.iter().zip(&yardstick.runs);
        let ratios = pairs.map(|(one, other)| one.ns_per_item_stage / other.ns_per_item_stage);
        median(&ratios.collect::<Vec<_>>())
    }

    fn allocations_per_item(&self) -> f64 {
        median(&self.runs.iter().map(|run| run.allocations_per_item).collect::<Vec<_>>())
    }

    /// A pipeline with default queues, in the documented form.
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

fn yardstick(measured: &[Measured]) -> Option<&Measured> {
    measured.iter().find(|one| one.case.kind == YARDSTICK)
}

fn everything(
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
            "ratio_to_crossbeam_128": yardstick(measured).map(|other| round(one.ratio(other), 3)),
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

/// What the original in Python takes for an item through three stages: versions 0.6 and 0.8.
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
        "Identity stages on u64, concurrency {CONCURRENCY}, {THREADS} worker threads, {} items (a tenth with \
         queues below 64);\n{rounds} rounds in which the cases take turns. A channel's case is a source \
         thread, {THREADS} worker\nthreads and the consumer: one stage, two channels.\n",
        grouped(items)
    );
    println!(
        "{:<42} {:>8} {:>8}   {:>12}   {:>11}",
        "ns per item and stage", "median", "min", "/ crossbeam", "allocations"
    );
    println!("{:<42} {:>8} {:>8}   {:>12}   {:>11}", "", "", "", "bounded 128", "per item");
    for one in measured {
        let ratio = yardstick(measured).map_or(f64::NAN, |yardstick| one.ratio(yardstick));
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
            "\nThree stages, completion order: {ours_us:.2} µs per item. Upstream's measured figure, in Python \
             with\ntrivial functions on a machine of two cores, is {new:.0} to {old:.0} µs per item (versions 0.8 and \
             0.6);\nit was not measured again in this run."
        );
    }
    println!(
        "\nAllocations are those of all threads between the 20 % and the 90 % mark of the items.\n\n\
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
