//! Benchmark of stragglers: 1 % of the items take 50 times as long as the others.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{Arguments, median, progress, quantile, round};
use serde_json::{Value, json};
use spdl_core::stage::stage_fn;
use spdl_core::{
    AsyncContext, AsyncStage, DatasetSource, Error, ErrorKind, Order, PipelineBuilder, Result,
    StageOptions, async_trait,
};

const HELP: &str = "\
Measures how stragglers affect the consumer: 1 % of the items take 50 times as long as the others.

cargo run --release -p spdl-core --example stragglers -- [OPTIONS]

A stage sleeps 50 ms for 1 % of the items and 1 ms for the others, with a concurrency of 16. The
consumer takes batches of 32 items. The wait is the time from the request for a batch to its
delivery.

  eager    The consumer requests the next batch immediately. The p50 of the wait is the period of
           the pipeline, and p99 / p50 shows the effect of stragglers. Stragglers use about a third
           of the concurrency, with random fluctuations, so the ratio is above 1. In completion
           order, it must not exceed 2.
  steady   The consumer works after each batch for 1.25 times the mean period of the pipeline, like
           a training step. Most waits are 0, so the ratio is p99 / p50 of the step: the time from one
           batch to the next. The ratio is 1 if stragglers have no effect.

In input order, all items after a straggler wait for it.

  --batches N   batches per run [default: 250]
  --json        print [{stage, consumer, order, wait_ms: {p50, p99}, step_ms: {p50, p99}, ratio}],
                where ratio is p99 / p50 of the wait (eager) or of the step (steady)";

const CONCURRENCY: usize = 16;
const FAST: Duration = Duration::from_millis(1);
const SLOW: Duration = Duration::from_millis(50);
const BATCH: usize = 32;
/// Maximum of p99 / p50 in completion order.
const LIMIT: f64 = 2.0;
/// Time of work per batch of the steady consumer, relative to the period of the pipeline.
const SLOWER: f64 = 1.25;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Async,
    Cpu,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Consumer {
    Eager,
    Steady,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    kind: Kind,
    consumer: Consumer,
    order: Order,
}

struct Measured {
    case: Case,
    waits_ms: Vec<f64>,
    steps_ms: Vec<f64>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse(HELP, &["--json"], &["--batches"]);
    let batches = arguments.number("--batches", 250) as usize;

    let mut cases = Vec::new();
    for kind in [Kind::Cpu, Kind::Async] {
        for consumer in [Consumer::Eager, Consumer::Steady] {
            for order in [Order::Completion, Order::Input] {
                cases.push(Case { kind, consumer, order });
            }
        }
    }
    let bar = progress(cases.len());
    let mut measured = Vec::new();
    for case in cases {
        bar.set_message(case.label());
        measured.push(case.run(batches)?);
        bar.inc(1);
    }
    bar.finish_and_clear();

    if arguments.has("--json") {
        println!("{:#}", measured.iter().map(Measured::json).collect::<Value>());
    } else {
        print_all(batches, &measured);
    }
    Ok(())
}

/// Service time of an item. A pseudorandom 1 % is slow, the same items in every run.
fn service(item: u64) -> Duration {
    // The finalizer of SplitMix64.
    let mut mixed = item.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    if (mixed ^ (mixed >> 31)).is_multiple_of(100) { SLOW } else { FAST }
}

/// The mean time per batch of the pipeline at full concurrency.
fn period(items: usize) -> Duration {
    let total: Duration = (0..items as u64).map(service).sum();
    total.mul_f64(BATCH as f64 / items as f64 / CONCURRENCY as f64)
}

struct Sleep;

#[async_trait]
impl AsyncStage<u64> for Sleep {
    type Out = u64;

    async fn process(&self, item: u64, cx: &AsyncContext) -> Result<u64> {
        cx.runtime().sleep(service(item)).await;
        Ok(item)
    }
}

impl Case {
    fn label(&self) -> String {
        format!("{:<5}  {:<6}  {:<10}", self.stage(), self.consumer(), self.order())
    }

    fn stage(&self) -> &'static str {
        match self.kind {
            Kind::Async => "async",
            Kind::Cpu => "cpu",
        }
    }

    fn consumer(&self) -> &'static str {
        match self.consumer {
            Consumer::Eager => "eager",
            Consumer::Steady => "steady",
        }
    }

    fn order(&self) -> &'static str {
        match self.order {
            Order::Input => "input",
            _ => "completion",
        }
    }

    fn run(self, batches: usize) -> Result<Measured> {
        let items = batches * BATCH;
        let builder =
            PipelineBuilder::new(DatasetSource::new((0..items as u64).collect::<Vec<_>>()));
        let options = StageOptions::new("sleep").concurrency(CONCURRENCY).order(self.order);
        let builder = match self.kind {
            Kind::Async => builder.async_stage(options, Sleep),
            Kind::Cpu => {
                let sleep = |item| {
                    thread::sleep(service(item));
                    Ok(item)
                };
                builder.stage(options, move || Ok(stage_fn(sleep))).threads(CONCURRENCY)
            }
        };
        let mut pipeline = builder.prefetch(2 * BATCH).build()?;
        let work = period(items).mul_f64(SLOWER);

        let mut seen = vec![false; items];
        let mut waits_ms = Vec::with_capacity(batches);
        let mut steps_ms = Vec::with_capacity(batches);
        for _ in 0..batches {
            let requested = Instant::now();
            for item in pipeline.by_ref().take(BATCH) {
                seen[item? as usize] = true;
            }
            let waited = requested.elapsed();
            if self.consumer == Consumer::Steady {
                thread::sleep(work);
            }
            waits_ms.push(waited.as_secs_f64() * 1e3);
            steps_ms.push(requested.elapsed().as_secs_f64() * 1e3);
        }
        let missing = seen.iter().filter(|seen| !**seen).count();
        if missing > 0 || pipeline.next().is_some() {
            let message = format!("{}: {missing} of {items} items missing", self.label());
            return Err(Error::new(ErrorKind::User, message));
        }
        // Excludes start-up and the end, when fewer items are in flight.
        let edge = batches / 20;
        Ok(Measured {
            case: self,
            waits_ms: waits_ms[edge..batches - edge].to_vec(),
            steps_ms: steps_ms[edge..batches - edge].to_vec(),
        })
    }
}

impl Measured {
    fn ratio(&self) -> f64 {
        let times = match self.case.consumer {
            Consumer::Eager => &self.waits_ms,
            Consumer::Steady => &self.steps_ms,
        };
        quantile(times, 0.99) / median(times)
    }

    fn json(&self) -> Value {
        let quantiles = |values: &[f64]| json!({"p50": round(median(values), 4), "p99": round(quantile(values, 0.99), 4)});
        json!({
            "stage": self.case.stage(),
            "consumer": self.case.consumer(),
            "order": self.case.order(),
            "wait_ms": quantiles(&self.waits_ms),
            "step_ms": quantiles(&self.steps_ms),
            "ratio": round(self.ratio(), 3),
        })
    }
}

fn print_all(batches: usize, measured: &[Measured]) {
    println!(
        "A stage that sleeps {FAST:?}, and {SLOW:?} for 1 % of the items; concurrency \
         {CONCURRENCY}; {batches} batches of {BATCH};\nideal period {:.1} ms per batch. The eager \
         consumer requests batches without a pause;\nthe steady consumer works {:.1} ms per batch. \
         The ratio is that of the wait (eager) or of the step (steady): see --help.\n",
        period(batches * BATCH).as_secs_f64() * 1e3,
        period(batches * BATCH).as_secs_f64() * 1e3 * SLOWER,
    );
    println!("                             wait in ms           step in ms");
    println!("stage  consumer  order          p50      p99       p50      p99   p99 / p50");
    for one in measured {
        let ratio = one.ratio();
        println!(
            "{:<5}  {:<8}  {:<10} {:>7.2}  {:>7.2}   {:>7.2}  {:>7.2}   {ratio:>9.2}{}",
            one.case.stage(),
            one.case.consumer(),
            one.case.order(),
            median(&one.waits_ms),
            quantile(&one.waits_ms, 0.99),
            median(&one.steps_ms),
            quantile(&one.steps_ms, 0.99),
            if one.case.order == Order::Completion && ratio > LIMIT { "   above 2" } else { "" },
        );
    }
}
