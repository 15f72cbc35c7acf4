//! Pipelines that end in every way, over and over: nothing stays behind.
//!
//! `SPDL_CYCLES` says how often (default 700); `cargo xtask soak` runs 10,000.

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

/// Counts what every thread takes from the heap and gives back.
#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Of a full run. Not a multiple of the batch size, so that the last batch is short.
const ITEMS: i64 = 45;
const BATCH: usize = 8;
/// The item at which things go wrong, where they do.
const BAD: i64 = 21;
/// In every panic that is meant, so that only those are kept quiet.
const MEANT: &str = "this panic is part of the test";

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

    /// All kinds take turns; so do the places.
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

/// Something that must not stay behind.
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

/// An item: its number, and memory of its own.
struct Item {
    number: i64,
    _bytes: Vec<u8>,
    _living: Living,
}

/// What the stages of a cycle have in common.
#[derive(Clone, Debug)]
struct Shared {
    ending: Ending,
    census: Census,
    /// Told by the stage that an item is in the middle of it.
    inside: SyncSender<()>,
    /// Until the consumer has seen that, the item stays there.
    seen: Arc<AtomicBool>,
}

impl Shared {
    /// What every stage does with an item; the ending may lie here.
    fn visit(&self, place: Place, item: &Item) -> Result<()> {
        if item.number != BAD {
            return Ok(());
        }
        match self.ending {
            Ending::ErrorIn(here) if here == place => Err(bad()),
            Ending::PanicIn(here) if here == place => panic!("{MEANT}"),
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

    /// Computes until the consumer has begun to stop the pipeline, and a little longer.
    fn linger(&self) {
        while !self.seen.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_micros(20));
        }
        thread::sleep(Duration::from_micros(100));
    }
}

fn bad() -> Error {
    Error::new(ErrorKind::Corrupt, "bad on purpose")
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

/// One pipeline from its making to its end.
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
            // An ended pipeline may be kept for its statistics; its threads are gone.
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
            // Others may overtake the item, so room is made for it.
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
                _ => unreachable!("the others end without an error"),
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
            assert!(pipeline.next().is_none(), "an error is said once");
        }
    }
    drop(pipeline);
    assert_eq!(census.alive(), 0, "items or stages stayed alive after cycle {cycle}: {ending:?}");
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

/// The pipelines' threads that stay: a joined thread's entry may outlive the join by a moment.
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

/// What the process holds at a moment.
#[derive(Clone, Copy, Debug)]
struct Holdings {
    threads: usize,
    files: usize,
    heap_bytes: i64,
    rss_bytes: i64,
}

impl Holdings {
    fn now() -> Self {
        settled_threads();
        let entries = |folder| std::fs::read_dir(folder).into_iter().flatten().count();
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let resident = pages.split_whitespace().nth(1).and_then(|pages| pages.parse::<i64>().ok());
        let heap = HEAP.stats();
        Holdings {
            threads: entries("/proc/self/task"),
            files: entries("/proc/self/fd"),
            heap_bytes: heap.bytes_allocated as i64 - heap.bytes_deallocated as i64,
            rss_bytes: 4096 * resident.unwrap_or(0),
        }
    }
}

/// What the standard library and the test harness may come to hold once, whatever the number of
/// cycles is.
const HEAP_SLACK_BYTES: i64 = 4096;
/// How much the resident size may grow with each cycle, and in all, where there are few.
const RSS_BYTES_PER_CYCLE: i64 = 1024;
const RSS_SLACK_BYTES: i64 = 4 << 20;

static MEANT_PANICS: AtomicU64 = AtomicU64::new(0);

/// Keeps the panics that are meant out of the output.
fn quiet_meant_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() == Some(MEANT) {
            MEANT_PANICS.fetch_add(1, Ordering::SeqCst);
        } else {
            usual(panic);
        }
    }));
}

// feature: L07
#[test]
fn no_ending_leaves_anything_behind() {
    let cycles = match std::env::var("SPDL_CYCLES") {
        Ok(number) => number.parse::<u64>().expect("SPDL_CYCLES is a whole number").max(1),
        Err(_) => 700,
    };
    quiet_meant_panics();
    within_seconds(120 + cycles / 20, move || {
        // The first rounds fill what is kept for ever: thread-local storage, the allocator's arenas.
        let warm_up = 20 * Ending::KINDS;
        (0..warm_up).for_each(run);
        let mut times_ms = Vec::with_capacity(cycles as usize);
        let before = Holdings::now();
        for cycle in 0..cycles {
            let start = Instant::now();
            run(cycle);
            times_ms.push(start.elapsed().as_secs_f64() * 1e3);
            if cycle % 100 == 99 {
                let now = Holdings::now();
                assert_eq!(settled_threads(), Vec::<String>::new(), "after {cycle} cycles");
                assert_eq!(now.threads, before.threads, "threads after {cycle} cycles");
                assert_eq!(now.files, before.files, "open files after {cycle} cycles");
            }
        }
        let after = Holdings::now();
        let heap_growth = after.heap_bytes - before.heap_bytes;
        let rss_growth = after.rss_bytes - before.rss_bytes;

        times_ms.sort_by(f64::total_cmp);
        let quantile = |q: f64| times_ms[((times_ms.len() - 1) as f64 * q) as usize];
        println!(
            "{cycles} cycles, {} meant panics: median {:.2} ms, p99 {:.2} ms a cycle; threads {} -> {}, \
             open files {} -> {}, heap {heap_growth:+} B, RSS {:+.1} KiB ({:+.1} B a cycle)",
            MEANT_PANICS.load(Ordering::SeqCst),
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
        assert!(quantile(0.5) < 20.0, "median of {:.2} ms for each cycle", quantile(0.5));
        assert_eq!(after.threads, before.threads, "threads stayed behind");
        assert_eq!(after.files, before.files, "open files stayed behind");
        assert!(heap_growth <= HEAP_SLACK_BYTES, "{heap_growth} B of heap stayed behind");
        let allowed = (RSS_BYTES_PER_CYCLE * cycles as i64).max(RSS_SLACK_BYTES);
        assert!(rss_growth <= allowed, "the resident size grew by {rss_growth} B");
        assert!(MEANT_PANICS.load(Ordering::SeqCst) >= cycles / Ending::KINDS);
    });
}
