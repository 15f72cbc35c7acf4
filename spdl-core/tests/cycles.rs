//! Leak test: pipelines that end in every possible way, repeated.
//!
//! `SPDL_CYCLES` sets the number of repetitions (default 700); `cargo xtask soak` runs 10,000.

// promise of this file: R5
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::alloc::System;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use common::{layout, spdl_threads, within_seconds};
use futures_util::{StreamExt, stream};
use spdl_core::source::Cursor;
use spdl_core::{
    AsyncContext, AsyncStage, Batch, BoxStream, Error, ErrorKind, Fill, FillContext, Pipeline,
    PipelineBuilder, Result, SlotMut, Source, Stage, StageContext, StageOptions,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

/// Counts heap allocations and deallocations of all threads.
#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Items of a full run. Not a multiple of the batch size, so that the last batch is short.
const ITEMS: i64 = 45;
const BATCH: usize = 8;
/// The item that fails, panics or is cancelled.
const BAD: i64 = 21;
/// The message of expected panics, which are not printed.
const EXPECTED_PANIC: &str = "this panic is part of the test";

/// How a cycle ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    FullRun,
    BreakAfter(u64),
    CancelMidItem(Place),
    NeverStarted,
    ErrorIn(Place),
    ErrorInSource,
    PanicIn(Place),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    AsyncStage,
    Stage,
    Fill,
}

impl Ending {
    const KINDS: u64 = 7;

    /// Cycles through all kinds, and through all places.
    fn of_cycle(cycle: u64) -> Self {
        let turn = cycle / Ending::KINDS;
        let place = [Place::AsyncStage, Place::Stage, Place::Fill][(turn % 3) as usize];
        match cycle % Ending::KINDS {
            0 => Ending::FullRun,
            1 => Ending::BreakAfter(turn % 5),
            2 => Ending::CancelMidItem(place),
            3 => Ending::NeverStarted,
            4 => Ending::ErrorIn(place),
            5 => Ending::ErrorInSource,
            _ => Ending::PanicIn(place),
        }
    }
}

/// Counts the values and instances of one cycle that are alive.
#[derive(Clone, Debug, Default)]
struct Census(Arc<AtomicI64>);

/// A counted value that must be dropped.
#[derive(Debug)]
struct Living(Census);

impl Census {
    fn birth(&self) -> Living {
        self.0.fetch_add(1, Ordering::SeqCst);
        Living(self.clone())
    }

    fn alive(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An item with a number and heap memory.
struct Item {
    number: i64,
    _bytes: Vec<u8>,
    _living: Living,
}

/// The state that the stages of a cycle share.
#[derive(Clone, Debug)]
struct Shared {
    ending: Ending,
    census: Census,
    /// Signals that a stage is processing the item to cancel.
    inside: SyncSender<()>,
    /// Set when the consumer has received the signal; the item waits for it.
    seen: Arc<AtomicBool>,
}

impl Shared {
    /// Called by every stage for each item; causes the ending if it is in this place.
    fn visit(&self, place: Place, item: &Item) -> Result<()> {
        if item.number != BAD {
            return Ok(());
        }
        match self.ending {
            Ending::ErrorIn(here) if here == place => Err(bad()),
            Ending::PanicIn(here) if here == place => panic!("{EXPECTED_PANIC}"),
            Ending::CancelMidItem(here) if here == place => {
                let _ = self.inside.try_send(());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn is_cancelled_in(&self, place: Place, item: &Item) -> bool {
        item.number == BAD && self.ending == Ending::CancelMidItem(place)
    }

    /// Waits until the consumer begins to stop the pipeline, and 100 µs longer.
    fn linger(&self) {
        while !self.seen.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_micros(20));
        }
        thread::sleep(Duration::from_micros(100));
    }
}

fn bad() -> Error {
    Error::new(ErrorKind::Corrupt, "expected failure")
}

#[derive(Debug)]
struct Numbers(Shared);

impl Source for Numbers {
    type Item = Item;

    fn open(&self, _: Cursor) -> Result<BoxStream<'static, Result<Item>>> {
        let shared = self.0.clone();
        let items = stream::iter(0..ITEMS).map(move |number| {
            if number == BAD && shared.ending == Ending::ErrorInSource {
                return Err(bad());
            }
            Ok(Item { number, _bytes: vec![0; 1000], _living: shared.census.birth() })
        });
        Ok(items.boxed())
    }
}

struct Fetch(Shared, #[expect(dead_code, reason = "counted")] Living);

#[async_trait]
impl AsyncStage<Item> for Fetch {
    type Out = Item;

    async fn process(&self, item: Item, cx: &AsyncContext) -> Result<Item> {
        let _living = self.0.census.birth();
        if item.number % 4 == 0 {
            cx.runtime().sleep(Duration::from_micros(20)).await;
        }
        self.0.visit(Place::AsyncStage, &item)?;
        if self.0.is_cancelled_in(Place::AsyncStage, &item) {
            std::future::pending::<()>().await;
        }
        Ok(item)
    }
}

struct Decode(Shared, #[expect(dead_code, reason = "counted")] Living);

impl Stage<Item> for Decode {
    type Out = Item;

    fn process(&mut self, item: Item, cx: &mut StageContext<'_, Item>) -> Result<()> {
        self.0.visit(Place::Stage, &item)?;
        if self.0.is_cancelled_in(Place::Stage, &item) {
            self.0.linger();
        }
        cx.emit(item)
    }
}

struct Write(Shared, #[expect(dead_code, reason = "counted")] Living);

impl Fill<Item> for Write {
    fn fill(&mut self, item: Item, mut slot: SlotMut<'_>, cx: &mut FillContext<'_>) -> Result<()> {
        self.0.visit(Place::Fill, &item)?;
        if self.0.is_cancelled_in(Place::Fill, &item) {
            self.0.linger();
        }
        slot.set(0, item.number)?;
        slot.set(1, cx.rng().unit() as f32)
    }
}

fn build(shared: &Shared) -> Pipeline<Batch> {
    let (decode, write) = (shared.clone(), shared.clone());
    let fetch = Fetch(shared.clone(), shared.census.birth());
    PipelineBuilder::new(Numbers(shared.clone()))
        .async_stage(StageOptions::new("fetch").concurrency(4), fetch)
        .stage("decode", move || Ok(Decode(decode.clone(), decode.census.birth())))
        .fill("write", layout(BATCH), move || Ok(Write(write.clone(), write.census.birth())))
        .threads(2)
        .build()
        .unwrap()
}

fn samples(batches: &[Batch]) -> usize {
    batches.iter().map(Batch::len).sum()
}

/// Builds and ends one pipeline.
fn run(cycle: u64) {
    let ending = Ending::of_cycle(cycle);
    let (inside, is_inside) = sync_channel(1);
    let census = Census::default();
    let seen = Arc::new(AtomicBool::new(false));
    let shared = Shared { ending, census: census.clone(), inside, seen: Arc::clone(&seen) };
    let mut pipeline = build(&shared);
    drop(shared);
    match ending {
        Ending::FullRun => {
            let batches = pipeline.by_ref().collect::<Result<Vec<_>>>().unwrap();
            assert_eq!(samples(&batches), ITEMS as usize);
            // Statistics of an ended pipeline remain available.
            assert_eq!(pipeline.statistics().dropped_total, 0);
        }
        Ending::BreakAfter(batches) => {
            for batch in pipeline.by_ref().take(batches as usize) {
                assert_eq!(batch.unwrap().len(), BATCH);
            }
            if batches == 0 {
                pipeline.start().unwrap();
            }
        }
        Ending::CancelMidItem(_) => {
            // Other items may overtake the item and fill the queues, so batches are consumed.
            while is_inside.try_recv().is_err() {
                if let Poll::Ready(batch) = pipeline.next_timeout(Duration::from_micros(100)) {
                    assert_eq!(batch.expect("an item is missing").unwrap().len(), BATCH);
                }
            }
            seen.store(true, Ordering::SeqCst);
            if cycle.is_multiple_of(2) {
                pipeline.stop();
                assert!(pipeline.next().is_none());
            }
        }
        Ending::NeverStarted => assert!(settled_threads().is_empty()),
        Ending::ErrorIn(_) | Ending::ErrorInSource | Ending::PanicIn(_) => {
            let (kind, stage) = match ending {
                Ending::ErrorInSource => (ErrorKind::Corrupt, "source"),
                Ending::ErrorIn(place) => (ErrorKind::Corrupt, place.name()),
                Ending::PanicIn(place) => (ErrorKind::Panicked, place.name()),
                _ => unreachable!("other endings have no error"),
            };
            let mut batches = Vec::new();
            let error = loop {
                match pipeline.next() {
                    Some(Ok(batch)) => batches.push(batch),
                    Some(Err(error)) => break error,
                    None => panic!("{ending:?} ended without an error"),
                }
            };
            assert_eq!((error.kind(), error.stage()), (kind, Some(stage)), "{error:?}");
            assert!(samples(&batches) < ITEMS as usize);
            assert!(pipeline.next().is_none(), "the error is returned once");
        }
    }
    drop(pipeline);
    assert_eq!(census.alive(), 0, "leaked items or stages after cycle {cycle}: {ending:?}");
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::AsyncStage => "fetch",
            Place::Stage => "decode",
            Place::Fill => "write",
        }
    }
}

/// Threads of pipelines that remain for 2 s. `/proc` may list a thread shortly after its join.
fn settled_threads() -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let threads = spdl_threads();
        if threads.is_empty() || Instant::now() >= deadline {
            return threads;
        }
        thread::sleep(Duration::from_micros(100));
    }
}

/// The resources of the process.
#[derive(Clone, Copy, Debug)]
struct Resources {
    threads: usize,
    files: usize,
    heap_bytes: i64,
    rss_bytes: i64,
}

impl Resources {
    fn now() -> Self {
        settled_threads();
        let entries = |folder| std::fs::read_dir(folder).into_iter().flatten().count();
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let resident = pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<i64>().ok());
        let heap = HEAP.stats();
        Resources {
            threads: entries("/proc/self/task"),
            files: entries("/proc/self/fd"),
            heap_bytes: heap.bytes_allocated as i64 - heap.bytes_deallocated as i64,
            rss_bytes: 4096 * resident.unwrap_or(0),
        }
    }
}

/// Allowance for allocations of the standard library and the test harness.
const HEAP_SLACK_BYTES: i64 = 4096;
/// Allowed growth of the resident size per cycle, and its minimum for few cycles.
const RSS_BYTES_PER_CYCLE: i64 = 1024;
const RSS_SLACK_BYTES: i64 = 4 << 20;

static EXPECTED_PANICS: AtomicU64 = AtomicU64::new(0);

/// Counts expected panics without printing them.
fn hide_expected_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() == Some(EXPECTED_PANIC) {
            EXPECTED_PANICS.fetch_add(1, Ordering::SeqCst);
        } else {
            default(panic);
        }
    }));
}

// feature: L07
#[test]
fn no_ending_leaves_anything_behind() {
    let cycles = match std::env::var("SPDL_CYCLES") {
        Ok(number) => number.parse::<u64>().expect("SPDL_CYCLES is an integer").max(1),
        Err(_) => 700,
    };
    hide_expected_panics();
    within_seconds(120 + cycles / 20, move || {
        // The warm-up fills caches that are never freed: thread-local storage, allocator arenas.
        let warm_up = 20 * Ending::KINDS;
        (0..warm_up).for_each(run);
        let mut times_ms = Vec::with_capacity(cycles as usize);
        let before = Resources::now();
        for cycle in 0..cycles {
            let start = Instant::now();
            run(cycle);
            times_ms.push(start.elapsed().as_secs_f64() * 1e3);
            if cycle % 100 == 99 {
                let now = Resources::now();
                assert_eq!(settled_threads(), Vec::<String>::new(), "after {cycle} cycles");
                assert_eq!(now.threads, before.threads, "threads after {cycle} cycles");
                assert_eq!(now.files, before.files, "open files after {cycle} cycles");
            }
        }
        let after = Resources::now();
        let heap_growth = after.heap_bytes - before.heap_bytes;
        let rss_growth = after.rss_bytes - before.rss_bytes;

        times_ms.sort_by(f64::total_cmp);
        let quantile = |q: f64| times_ms[((times_ms.len() - 1) as f64 * q) as usize];
        println!(
            "{cycles} cycles, {} expected panics: median {:.2} ms, p99 {:.2} ms per cycle; threads \
             {} -> {}, open files {} -> {}, heap {heap_growth:+} B, RSS {:+.1} KiB ({:+.1} B per \
             cycle)",
            EXPECTED_PANICS.load(Ordering::SeqCst),
            quantile(0.5),
            quantile(0.99),
            before.threads,
            after.threads,
            before.files,
            after.files,
            rss_growth as f64 / 1024.0,
            rss_growth as f64 / cycles as f64,
        );
        // The promise R5 is a median of 2 ms. The bound leaves room for a loaded machine and a debug build.
        assert!(quantile(0.5) < 20.0, "median of {:.2} ms per cycle", quantile(0.5));
        assert_eq!(after.threads, before.threads, "leaked threads");
        assert_eq!(after.files, before.files, "leaked open files");
        assert!(heap_growth <= HEAP_SLACK_BYTES, "leaked {heap_growth} B of heap");
        let allowed = (RSS_BYTES_PER_CYCLE * cycles as i64).max(RSS_SLACK_BYTES);
        assert!(rss_growth <= allowed, "the resident size grew by {rss_growth} B");
        assert!(EXPECTED_PANICS.load(Ordering::SeqCst) >= cycles / Ending::KINDS);
    });
}
