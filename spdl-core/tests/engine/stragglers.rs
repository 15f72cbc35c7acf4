//! Slow items: in completion order they delay no other item; in input order the number of items
//! ahead is bounded.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::common::{WriteNumber, layout, numbers, within_seconds};
use async_trait::async_trait;
use spdl_core::observe::MAX_SLOWEST_LISTED;
use spdl_core::stage::{StageFn, stage_fn};
use spdl_core::{AsyncContext, AsyncStage, Order, PipelineBuilder, Result, StageOptions};

/// A gate that stays closed until the consumer opens it; threads and tasks can wait for it.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    /// The number of items that have arrived at the stage.
    started: AtomicU64,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn is_open(&self) -> bool {
        *self.open.lock().unwrap()
    }

    fn wait(&self) {
        let open = self.open.lock().unwrap();
        drop(self.opened.wait_while(open, |open| !*open).unwrap());
    }
}

type SlowFn = Box<dyn FnMut(i64) -> Result<i64> + Send>;

/// A CPU stage whose slow items wait for the gate. The other items take long enough for a worker to
/// take them singly: a worker takes tiny items in groups, and forwards each group as a whole.
fn cpu_stage(
    gate: &Arc<Gate>,
    slow: fn(i64) -> bool,
) -> impl Fn() -> Result<StageFn<SlowFn>> + use<> {
    let gate = Arc::clone(gate);
    move || {
        let gate = Arc::clone(&gate);
        Ok(stage_fn(Box::new(move |item| {
            gate.started.fetch_add(1, Ordering::SeqCst);
            match slow(item) {
                true => gate.wait(),
                false => std::thread::sleep(Duration::from_micros(100)),
            }
            Ok(item)
        }) as SlowFn))
    }
}

/// The same as an async stage.
struct Waiting {
    gate: Arc<Gate>,
    slow: fn(i64) -> bool,
}

#[async_trait]
impl AsyncStage<i64> for Waiting {
    type Out = i64;

    async fn process(&self, item: i64, cx: &AsyncContext) -> Result<i64> {
        self.gate.started.fetch_add(1, Ordering::SeqCst);
        while (self.slow)(item) && !self.gate.is_open() {
            cx.runtime().sleep(Duration::from_millis(1)).await;
        }
        Ok(item)
    }
}

const ITEMS: i64 = 2000;
/// One less than the stage's concurrency, spread over the epoch.
const SLOW: i64 = 3;

fn is_slow(item: i64) -> bool {
    item % 600 == 0 && item / 600 < SLOW
}

fn options(order: Order) -> StageOptions {
    StageOptions::new("slow").concurrency(4).order(order)
}

/// Reads all fast items while the slow ones wait at the gate, and then the slow ones.
fn fast_items_first(builder: PipelineBuilder<i64>, gate: &Gate) {
    let mut pipeline = builder.threads(5).build().unwrap();
    let mut fast: Vec<i64> = (0..ITEMS - SLOW).map(|_| pipeline.next().unwrap().unwrap()).collect();
    assert!(!gate.is_open());
    fast.sort_unstable();
    assert_eq!(fast, (0..ITEMS).filter(|&item| !is_slow(item)).collect::<Vec<_>>());
    gate.open();
    let mut slow = pipeline.collect::<Result<Vec<_>>>().unwrap();
    slow.sort_unstable();
    assert_eq!(slow, (0..ITEMS).filter(|&item| is_slow(item)).collect::<Vec<_>>());
}

// feature: C02
#[test]
fn in_completion_order_slow_cpu_items_delay_no_other_item() {
    within_seconds(60, || {
        let gate = Arc::new(Gate::default());
        let stage = cpu_stage(&gate, is_slow);
        let builder = PipelineBuilder::new(numbers(ITEMS)).stage(options(Order::Completion), stage);
        fast_items_first(builder, &gate);
    });
}

// feature: C02
#[test]
fn in_completion_order_slow_async_items_delay_no_other_item() {
    within_seconds(60, || {
        let gate = Arc::new(Gate::default());
        let stage = Waiting { gate: Arc::clone(&gate), slow: is_slow };
        let builder =
            PipelineBuilder::new(numbers(ITEMS)).async_stage(options(Order::Completion), stage);
        fast_items_first(builder, &gate);
    });
}

// feature: C02
#[test]
fn a_slow_item_does_not_delay_a_batch() {
    within_seconds(60, || {
        let gate = Arc::new(Gate::default());
        let mut batches = PipelineBuilder::new(numbers(64))
            .stage(options(Order::Completion), cpu_stage(&gate, |item| item == 0))
            .fill("write", layout(8), || Ok(WriteNumber { fails: |_| false, panics: |_| false }))
            .threads(4)
            .build()
            .unwrap();
        let mut seen = Vec::new();
        for _ in 0..7 {
            let batch = batches.next().unwrap().unwrap();
            assert_eq!(batch.len(), 8);
            seen.extend_from_slice(batch.array("number").unwrap().as_slice::<i64>().unwrap());
        }
        assert!(!seen.contains(&0));
        gate.open();
        let last = batches.next().unwrap().unwrap();
        assert!(last.array("number").unwrap().as_slice::<i64>().unwrap().contains(&0));
        assert!(batches.next().is_none());
    });
}

/// The maximum number of items that a stage may have started while its first item blocks the
/// consumer: items in processing, in the queue, and in the reorder buffer.
const MOST_STARTED: u64 = 300;

fn blocked_by_the_first(builder: PipelineBuilder<i64>, gate: &Arc<Gate>) {
    let mut pipeline = builder.threads(5).build().unwrap();
    let nothing = pipeline.next_timeout(Duration::from_millis(100));
    assert!(nothing.is_pending(), "no item may overtake the first: {nothing:?}");
    let started = gate.started.load(Ordering::SeqCst);
    assert!((1..=MOST_STARTED).contains(&started), "{started} items started");
    gate.open();
    let items = pipeline.collect::<Result<Vec<_>>>().unwrap();
    assert_eq!(items, (0..ITEMS).collect::<Vec<_>>());
}

// feature: C03
#[test]
fn in_input_order_a_slow_cpu_item_bounds_the_items_ahead() {
    within_seconds(60, || {
        let gate = Arc::new(Gate::default());
        let stage = cpu_stage(&gate, |item| item == 0);
        blocked_by_the_first(
            PipelineBuilder::new(numbers(ITEMS)).stage(options(Order::Input), stage),
            &gate,
        );
    });
}

// feature: C03
#[test]
fn in_input_order_a_slow_async_item_bounds_the_items_ahead() {
    within_seconds(60, || {
        let gate = Arc::new(Gate::default());
        let stage = Waiting { gate: Arc::clone(&gate), slow: |item| item == 0 };
        let builder =
            PipelineBuilder::new(numbers(ITEMS)).async_stage(options(Order::Input), stage);
        blocked_by_the_first(builder, &gate);
    });
}

#[test]
fn the_slowest_items_are_listed_with_their_stage() {
    let slow = Duration::from_millis(40);
    let pipeline = PipelineBuilder::from_iter(0..50)
        .map("wait", move |n| {
            std::thread::sleep(if n == 17 { slow } else { Duration::from_micros(200) });
            Ok(n)
        })
        .threads(2)
        .build()
        .unwrap();
    let monitor = pipeline.monitor();
    assert_eq!(pipeline.count(), 50);
    let slowest = monitor.statistics().slowest;
    assert_eq!(slowest.len(), MAX_SLOWEST_LISTED);
    assert_eq!((slowest[0].id.index, &*slowest[0].stage), (17, "wait"));
    assert!(slowest[0].time >= slow && slowest[0].median < slow, "{}", slowest[0]);
    assert!(slowest.is_sorted_by(|a, b| a.time >= b.time));
}
