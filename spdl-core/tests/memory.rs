//! The memory budget of whole pipelines: the counted memory never exceeds the budget, nothing waits
//! forever, and all memory is released.
//!
//! Most items only declare a size and allocate nothing, so that tests can run concurrently.

// promise of this file: R4
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures of a run are worth reading")]

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use common::within_seconds;
use proptest::prelude::*;
use spdl_core::memory::MemoryStatistics;
use spdl_core::observe::{InFlightRate, Limit};
use spdl_core::pipeline::path;
use spdl_core::runtime::CpuExecutor;
use spdl_core::stage::{Aggregator, Collation, RoundRobin, ZipLength};
use spdl_core::{
    AsyncContext, AsyncStage, Batch, BatchLayout, DType, DatasetSource, Error, ErrorKind, Field,
    Fill, FillContext, Footprint, OnError, Order, Pipeline, PipelineBuilder, Result, SlotMut,
    Stage, StageContext, StageOptions,
};

/// The time limit of each test.
const TIMEOUT_SECONDS: u64 = 60;

/// An item that declares `bytes` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    number: u64,
    bytes: usize,
}

impl Footprint for Piece {
    fn footprint(&self) -> usize {
        self.bytes
    }
}

/// Makes pieces of `bytes(number)` bytes.
#[derive(Clone, Copy)]
struct Make {
    bytes: fn(u64) -> usize,
    /// The declared output size, if it differs from the actual size.
    declares: Option<fn(u64) -> Option<usize>>,
    /// The processing time in microseconds.
    takes: fn(u64) -> u64,
}

impl Make {
    fn exactly(bytes: fn(u64) -> usize) -> Make {
        Make { bytes, declares: None, takes: |_| 0 }
    }

    fn declared(&self, number: u64) -> Option<usize> {
        self.declares.map_or(Some((self.bytes)(number)), |declares| declares(number))
    }

    fn make(&self, number: u64) -> Piece {
        Piece { number, bytes: (self.bytes)(number) }
    }
}

#[async_trait]
impl AsyncStage<u64> for Make {
    type Out = Piece;

    async fn process(&self, number: u64, cx: &AsyncContext) -> Result<Piece> {
        cx.runtime().sleep(Duration::from_micros((self.takes)(number))).await;
        Ok(self.make(number))
    }

    fn output_bytes(&self, &number: &u64) -> Option<usize> {
        self.declared(number)
    }
}

#[async_trait]
impl AsyncStage<Piece> for Make {
    type Out = Piece;

    async fn process(&self, piece: Piece, cx: &AsyncContext) -> Result<Piece> {
        AsyncStage::<u64>::process(self, piece.number, cx).await
    }

    fn output_bytes(&self, piece: &Piece) -> Option<usize> {
        self.declared(piece.number)
    }
}

impl Stage<u64> for Make {
    type Out = Piece;

    fn process(&mut self, number: u64, cx: &mut StageContext<'_, Piece>) -> Result<()> {
        std::thread::sleep(Duration::from_micros((self.takes)(number)));
        cx.emit(self.make(number))
    }

    fn output_bytes(&self, &number: &u64) -> Option<usize> {
        self.declared(number)
    }
}

impl Stage<Piece> for Make {
    type Out = Piece;

    fn process(&mut self, piece: Piece, cx: &mut StageContext<'_, Piece>) -> Result<()> {
        Stage::<u64>::process(self, piece.number, cx)
    }

    fn output_bytes(&self, piece: &Piece) -> Option<usize> {
        self.declared(piece.number)
    }
}

fn numbers(count: u64) -> PipelineBuilder<u64> {
    PipelineBuilder::new(DatasetSource::new((0..count).collect::<Vec<u64>>()))
}

/// Measured pieces of 100 bytes each.
fn hundreds(count: u64) -> PipelineBuilder<Piece> {
    numbers(count).async_stage("make", Make::exactly(|_| 100)).measured()
}

fn jumble(number: u64) -> u64 {
    (number ^ 0x5bd1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

fn delay_us(number: u64) -> u64 {
    jumble(number) % 200
}

fn bad(number: u64) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{number} is bad"))
}

/// Runs a pipeline to its end and returns its items and memory statistics.
fn run<T: Send + 'static>(pipeline: PipelineBuilder<T>) -> (Vec<Result<T>>, MemoryStatistics) {
    let pipeline = pipeline.build().unwrap();
    let monitor = pipeline.monitor();
    let items = pipeline.collect();
    (items, monitor.statistics().memory)
}

/// The same for a pipeline without failures.
fn run_well<T: Send + 'static>(pipeline: PipelineBuilder<T>) -> (Vec<T>, MemoryStatistics) {
    let (items, memory) = run(pipeline);
    let items: Result<Vec<T>> = items.into_iter().collect();
    assert_eq!(memory.live_bytes, 0, "all memory is released at the end");
    (items.unwrap(), memory)
}

fn sorted(pieces: impl IntoIterator<Item = Piece>) -> Vec<u64> {
    let mut numbers: Vec<u64> = pieces.into_iter().map(|piece| piece.number).collect();
    numbers.sort_unstable();
    numbers
}

/// Waits until `so` returns true.
fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !so() {
        assert!(Instant::now() < deadline, "{what}: not reached after 20 s");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn both_orders() -> [Order; 2] {
    [Order::Completion, Order::Input]
}

fn in_order<T: Send + 'static>(pipeline: PipelineBuilder<T>, order: Order) -> PipelineBuilder<T> {
    match order {
        Order::Input => pipeline.deterministic(),
        _ => pipeline,
    }
}

// ---------------------------------------------------------------------------------------------
// Minimal budgets.

#[test]
fn a_budget_of_one_item_for_each_stage_is_enough() {
    within_seconds(TIMEOUT_SECONDS, || {
        for order in both_orders() {
            for threads in [1, 2, 8] {
                let make = Make { takes: delay_us, ..Make::exactly(|_| 100) };
                let pipeline = numbers(60)
                    .async_stage("fetch", make)
                    .measured()
                    .stage("decode", move || Ok(make))
                    .measured()
                    .stage("augment", move || Ok(make))
                    .measured()
                    .threads(threads)
                    .largest_item(100)
                    .memory(300);
                let (pieces, memory) = run_well(in_order(pipeline, order));
                if order == Order::Input {
                    assert!(pieces.iter().zip(0..).all(|(piece, n)| piece.number == n));
                }
                assert_eq!(sorted(pieces), (0..60).collect::<Vec<_>>());
                assert!(memory.peak_bytes <= 300, "{memory:?}");
                assert!(memory.peak_bytes >= 200, "two stages work concurrently: {memory:?}");
                assert_eq!(memory.overdrawn_bytes, 0);
            }
        }
    });
}

#[test]
fn build_fails_if_the_budget_is_below_one_item_per_stage() {
    let pipeline = hundreds(1).map("same", Ok).measured().largest_item(100);
    let error = pipeline.memory(199).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
}

#[test]
fn build_fails_if_a_batch_exceeds_the_budget() {
    // A row has 12 bytes.
    let pipeline = |limit, largest: Option<usize>| {
        let builder =
            PipelineBuilder::new(common::numbers(64)).fill("fill", common::layout(16), || {
                Ok(common::WriteNumber { fails: |_| false, panics: |_| false })
            });
        let builder = builder.memory(limit);
        match largest {
            Some(bytes) => builder.largest_item(bytes),
            None => builder,
        }
    };
    for (limit, largest) in [(16 * 12 - 1, None), (1 << 20, Some(16 * 12 - 1))] {
        let error = pipeline(limit, largest).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error:?}");
        assert!(error.message().contains("192 bytes"), "{error:?}");
    }
    within_seconds(TIMEOUT_SECONDS, move || {
        let (batches, memory) = run_well(pipeline(16 * 12, None).threads(2));
        assert_eq!(batches.iter().map(Batch::len).sum::<usize>(), 64);
        assert_eq!(memory.peak_bytes, 16 * 12, "one batch at a time");
    });
}

// ---------------------------------------------------------------------------------------------
// Items larger than allowed, or than declared.

/// The item that exceeds the largest allowed item.
const OVERSIZED: u64 = 7;

/// Writes lists of bytes, most of them short.
struct Varying;

impl Fill<u64> for Varying {
    fn fill(&mut self, number: u64, mut slot: SlotMut<'_>, _: &mut FillContext<'_>) -> Result<()> {
        slot.resize(0, &[varying_bytes(number)])?.fill(number as u8);
        Ok(())
    }
}

fn varying_bytes(number: u64) -> usize {
    if number % 64 == 40 { 3000 } else { 100 }
}

#[test]
fn batches_of_samples_that_differ_in_size_are_counted() {
    within_seconds(TIMEOUT_SECONDS, || {
        let text = Field::new("text", DType::U8, &[0]).collation(Collation::Ragged);
        let layout = BatchLayout::new(32, [text]);
        let pipeline = numbers(6400).fill("fill", layout, || Ok(Varying)).deterministic();
        let (batches, memory) = run_well(pipeline.memory(2000).largest_item(1000));
        assert_eq!(batches.len(), 200);
        for (first, batch) in (0..).step_by(32).zip(&batches) {
            let bytes = batch.array("text").unwrap().as_bytes();
            assert_eq!(bytes.len(), (first..first + 32).map(varying_bytes).sum::<usize>());
        }
        let largest = batches.iter().map(Footprint::footprint).max().unwrap();
        assert!(memory.overdrawn_bytes >= largest - 2000, "{largest} bytes: {memory:?}");
        assert!(memory.peak_bytes <= 2000 + memory.overdrawn_bytes, "{memory:?}");
    });
}

fn with_oversized(number: u64) -> usize {
    if number == OVERSIZED { 101 } else { 40 }
}

/// A pipeline in which that item is too large for a CPU stage.
fn oversized(order: Order) -> PipelineBuilder<Piece> {
    let pipeline = numbers(30).stage("make", || Ok(Make::exactly(with_oversized))).measured();
    in_order(pipeline.threads(2).memory(200).largest_item(100), order)
}

#[test]
fn only_the_item_above_the_limit_is_dropped() {
    within_seconds(TIMEOUT_SECONDS, || {
        for order in both_orders() {
            let pipeline = oversized(order).on_error(OnError::SKIP).build().unwrap();
            let monitor = pipeline.monitor();
            let pieces = pipeline.collect::<Result<Vec<Piece>>>().unwrap();
            let others: Vec<u64> = (0..30).filter(|&n| n != OVERSIZED).collect();
            assert_eq!(sorted(pieces), others);
            let statistics = monitor.statistics();
            assert_eq!(statistics.dropped_total, 1);
            let dropped = &statistics.dropped[0];
            assert_eq!((&*dropped.stage, dropped.id.index), ("make", OVERSIZED));
            assert_eq!(dropped.kind, ErrorKind::LimitExceeded, "{dropped:?}");
            assert_eq!(statistics.memory.live_bytes, 0);
        }
    });
}

#[test]
fn an_item_above_the_limit_ends_a_strict_pipeline_in_order() {
    within_seconds(TIMEOUT_SECONDS, || {
        let (items, memory) = run(oversized(Order::Input));
        assert_eq!(items.len(), 8, "earlier items are delivered");
        assert!(items[..7].iter().zip(0..).all(|(item, n)| item.as_ref().unwrap().number == n));
        let error = items[7].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert_eq!(error.stage(), Some("make"));
        assert_eq!(memory.live_bytes, 0);
    });
}

/// An async stage whose outputs have the given sizes in bytes, which it learns step by step.
#[derive(Clone)]
struct Download {
    sizes: Arc<Vec<usize>>,
    /// Number of equal parts that arrive one after the other.
    steps: usize,
    declares: bool,
    /// The bytes in use now, and their maximum.
    used: Arc<Mutex<(usize, usize)>>,
}

/// A downloaded output, which counts its bytes.
struct Downloaded {
    bytes: usize,
    used: Arc<Mutex<(usize, usize)>>,
}

impl Downloaded {
    fn grow(&mut self, bytes: usize) {
        let mut used = self.used.lock().unwrap();
        used.0 += bytes;
        used.1 = used.1.max(used.0);
        self.bytes += bytes;
    }
}

impl Drop for Downloaded {
    fn drop(&mut self) {
        self.used.lock().unwrap().0 -= self.bytes;
    }
}

impl Footprint for Downloaded {
    fn footprint(&self) -> usize {
        self.bytes
    }
}

#[async_trait]
impl AsyncStage<u64> for Download {
    type Out = Downloaded;

    async fn process(&self, number: u64, cx: &AsyncContext) -> Result<Downloaded> {
        let mut output = Downloaded { bytes: 0, used: Arc::clone(&self.used) };
        let size = self.sizes[number as usize];
        for step in 1..=self.steps {
            let until = size * step / self.steps;
            cx.reserve(until).await;
            assert!(cx.reserved_bytes() >= until);
            output.grow(until - output.bytes);
            cx.runtime().sleep(Duration::from_micros(delay_us(number))).await;
        }
        Ok(output)
    }

    fn output_bytes(&self, &number: &u64) -> Option<usize> {
        self.declares.then(|| self.sizes[number as usize])
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]
    // promise: R4
    #[test]
    fn downloads_of_any_sizes_exceed_the_budget_by_at_most_one_item(
        sizes in proptest::collection::vec(prop_oneof![3 => 1..50_usize, 1 => 50..1000_usize], 1..60),
        steps in 1..4_usize,
        declares: bool,
        limit in 100..400_usize,
        concurrency in 1..20_usize,
        deterministic: bool,
    ) {
        let used = Arc::new(Mutex::new((0, 0)));
        let largest = *sizes.iter().max().unwrap();
        let (count, all) = (sizes.len() as u64, Arc::new(sizes));
        let download =
            Download { sizes: Arc::clone(&all), steps, declares, used: Arc::clone(&used) };
        let (bytes, memory) = within_seconds(TIMEOUT_SECONDS, move || {
            let options = StageOptions::new("download").concurrency(concurrency);
            let pipeline = numbers(count)
                .async_stage(options, download)
                .measured()
                .map("use", |output: Downloaded| Ok(output.bytes))
                .threads(2)
                .largest_item(50)
                .memory(limit);
            let (bytes, memory) = run_well(if deterministic { pipeline.deterministic() } else { pipeline });
            let mut bytes = bytes;
            bytes.sort_unstable();
            (bytes, memory)
        });
        let mut expected = all.to_vec();
        expected.sort_unstable();
        prop_assert_eq!(bytes, expected);
        let (left, peak) = *used.lock().unwrap();
        prop_assert_eq!(left, 0);
        prop_assert!(peak <= limit + largest, "{} of {} and {}", peak, limit, largest);
        prop_assert!(memory.peak_bytes <= limit + largest, "{:?}", memory);
    }
}

#[test]
fn items_larger_than_declared_are_counted_and_block_nothing() {
    within_seconds(TIMEOUT_SECONDS, || {
        for order in both_orders() {
            let make = Make { declares: Some(|_| Some(10)), bytes: |_| 70, takes: delay_us };
            let pipeline = numbers(60)
                .stage("first", move || Ok(make))
                .measured()
                .map("number", |piece: Piece| Ok(piece.number))
                .async_stage("second", make)
                .measured()
                .threads(2)
                .largest_item(50)
                .memory(100);
            let (pieces, memory) = run_well(in_order(pipeline, order));
            assert_eq!(pieces.len(), 60);
            assert!(memory.overdrawn_bytes >= 20, "70 bytes reserved as 50: {memory:?}");
            assert!(memory.peak_bytes >= 70, "{memory:?}");
            assert!(memory.peak_bytes <= 100 + memory.overdrawn_bytes, "{memory:?}");
        }
    });
}

#[test]
fn a_stage_without_a_declared_size_reserves_its_largest_output() {
    const KIB: usize = 1024;
    within_seconds(TIMEOUT_SECONDS, || {
        // The first reservations are 64 KiB, later ones are the largest output.
        let make = Make { declares: Some(|_| None), bytes: |_| 100 * KIB, takes: |_| 100 };
        let options = StageOptions::new("make").concurrency(8);
        let pipeline = numbers(40).async_stage(options, make).measured();
        let pipeline = pipeline.memory(256 * KIB).largest_item(128 * KIB);
        let (pieces, memory) = run_well(pipeline);
        assert_eq!(pieces.len(), 40);
        // Four outputs of 64 KiB start together, and each exceeds its reservation by 36 KiB.
        assert!(memory.overdrawn_bytes <= 4 * 36 * KIB, "only the first outputs: {memory:?}");
        assert!(memory.overdrawn_bytes >= 36 * KIB, "{memory:?}");

        // After the first delivery, the size of the others is known.
        let delivered = Placed::default();
        let waits = Arc::clone(&delivered);
        let options = StageOptions::new("make").concurrency(8);
        let source = DatasetSource::new((0..40).collect::<Vec<u64>>());
        let pipeline = PipelineBuilder::from_source(StageOptions::new("numbers").queue(1), source)
            .map(StageOptions::new("gate").concurrency(1), move |number| {
                if number == 1 {
                    wait_for(&waits);
                }
                Ok(number)
            })
            .async_stage(options, make)
            .measured();
        let mut pipeline = pipeline.memory(256 * KIB).largest_item(128 * KIB).build().unwrap();
        assert_eq!(pipeline.next().unwrap().unwrap().number, 0);
        *delivered.0.lock().unwrap() = true;
        delivered.1.notify_all();
        assert_eq!(pipeline.by_ref().map(Result::unwrap).count(), 39);
        assert_eq!(pipeline.statistics().memory.overdrawn_bytes, 0);

        let make = Make { bytes: |_| 64 * KIB, ..make };
        for order in both_orders() {
            let pipeline = numbers(40).stage("make", move || Ok(make)).measured();
            let pipeline = pipeline.threads(4).memory(2 * 64 * KIB).largest_item(64 * KIB);
            let (pieces, memory) = run_well(in_order(pipeline, order));
            assert_eq!(pieces.len(), 40);
            assert_eq!(memory.overdrawn_bytes, 0);
            assert!(memory.peak_bytes <= 2 * 64 * KIB, "{memory:?}");
        }
    });
}

/// Splits a number into this many pieces.
#[derive(Clone, Copy)]
struct SplitInto(u64);

impl Stage<u64> for SplitInto {
    type Out = Piece;

    fn process(&mut self, number: u64, cx: &mut StageContext<'_, Piece>) -> Result<()> {
        (0..self.0).try_for_each(|at| cx.emit(Piece { number: number * self.0 + at, bytes: 10 }))
    }

    fn output_bytes(&self, _: &u64) -> Option<usize> {
        Some(self.0 as usize * 10)
    }
}

#[test]
fn all_outputs_of_an_item_are_reserved_together() {
    within_seconds(TIMEOUT_SECONDS, || {
        for order in both_orders() {
            for threads in [1, 4] {
                let pipeline = numbers(50)
                    .stage("cut", || Ok(SplitInto(10)))
                    .measured()
                    .stage("use", || Ok(Make { takes: delay_us, ..Make::exactly(|_| 100) }))
                    .measured()
                    .threads(threads)
                    .prefetch(1)
                    .memory(200)
                    .largest_item(100);
                let (pieces, memory) = run_well(in_order(pipeline, order));
                assert_eq!(sorted(pieces), (0..500).collect::<Vec<_>>());
                assert_eq!(memory.overdrawn_bytes, 0);
                assert!(memory.peak_bytes <= 200, "{memory:?}");
            }
        }
    });
}

// ---------------------------------------------------------------------------------------------
// What is counted, and for how long.

/// Lets a pipeline fill up without deliveries and asserts that `all` bytes are counted. Then
/// asserts that each of the `items` deliveries subtracts its bytes.
fn counted<T: Send + 'static>(
    what: &str,
    pipeline: PipelineBuilder<T>,
    bytes: fn(&T) -> usize,
    items: usize,
    all: usize,
) {
    let mut pipeline = pipeline.prefetch(1000).memory(1 << 20).build().unwrap();
    let monitor = pipeline.monitor();
    let live = || monitor.statistics().memory.live_bytes;
    pipeline.start().unwrap();
    eventually(what, || monitor.statistics().queues.last().unwrap().len == items);
    eventually(&format!("{what}: {all} bytes are counted"), || live() == all);
    let mut left = all;
    for at in 0..items {
        left -= bytes(&pipeline.next().unwrap().unwrap());
        // An item that left the queue is still counted until it is delivered.
        assert_eq!(live(), left, "{what}: after item {at}");
    }
    assert!(pipeline.next().is_none());
    assert_eq!(left, 0, "{what}");
}

/// The bytes of a list.
#[expect(clippy::ptr_arg, reason = "it is passed as a function of the item, which is a `Vec`")]
fn total(pieces: &Vec<Piece>) -> usize {
    pieces.iter().map(|piece| piece.bytes).sum()
}

#[test]
fn an_item_is_counted_until_it_is_delivered_through_all_stages() {
    let bytes = |piece: &Piece| piece.bytes;
    within_seconds(TIMEOUT_SECONDS, move || {
        for order in both_orders() {
            let go = |pipeline| in_order(pipeline, order);
            counted("nothing", go(hundreds(20)), bytes, 20, 2000);
            counted("map", go(hundreds(20).map("map", Ok)), bytes, 20, 2000);
            let waits = hundreds(20).map_async("wait", |piece| async move { Ok(piece) });
            counted("async map", go(waits), bytes, 20, 2000);
            let even = hundreds(20).filter("even", |piece| Ok(piece.number % 2 == 0));
            counted("filter", go(even), bytes, 10, 1000);
            let ways = [path(|way| way), path(|way| way.map("map", Ok))];
            let routed = hundreds(20).route("kind", |piece| Ok(piece.number as usize % 2), ways);
            counted("route", go(routed), bytes, 20, 2000);
            let branches = [hundreds(8), numbers(8).stage("cut", || Ok(SplitInto(1))).measured()];
            let merged = PipelineBuilder::merge(branches, RoundRobin::default());
            counted("merge", go(merged), bytes, 16, 8 * 100 + 8 * 10);
        }
        counted("batch", hundreds(20).batch("batch", 3, false), total, 7, 2000);
        counted("short batch", hundreds(20).batch("batch", 3, true), total, 6, 1800);
        let cut = numbers(8).stage("cut", || Ok(SplitInto(1))).measured();
        let pairs = hundreds(8).zip(cut).map("pair", |(a, b)| Ok(vec![a, b]));
        counted("zip", pairs, total, 8, 8 * 110);
        let half = hundreds(8).zip(numbers(8)).map("left", |(piece, _)| Ok(piece));
        counted("zip with what is not measured", half, bytes, 8, 800);
        let cut = numbers(8).stage("cut", || Ok(SplitInto(1))).measured();
        let several = PipelineBuilder::zip_all("zip", [hundreds(8), cut], ZipLength::Shortest);
        counted("zip of several", several, total, 8, 8 * 110);
        let ways = [path(|way| way), path(|way| way.map("map", Ok))];
        let lists = hundreds(20).batch("batch", 4, false).route_lists(
            "kind",
            |list: &[Piece]| Ok(list.iter().map(|piece| piece.number as usize % 2).collect()),
            ways,
        );
        counted("lists in parts", lists, total, 5, 2000);
    });
}

#[test]
fn a_measured_stage_releases_the_memory_of_its_input() {
    within_seconds(TIMEOUT_SECONDS, || {
        let smaller = hundreds(20).stage("shrink", || Ok(Make::exactly(|_| 7))).measured();
        counted("stage", smaller, |piece| piece.bytes, 20, 140);
        let smaller = hundreds(20).async_stage("shrink", Make::exactly(|_| 7)).measured();
        counted("async stage", smaller, |piece| piece.bytes, 20, 140);
        let smaller = hundreds(20).batch("batch", 4, false).measured_by(|_| 9);
        counted("batch", smaller, |_| 9, 5, 45);
        let source = DatasetSource::new(vec![5_u64; 20]);
        let source = PipelineBuilder::new(source).measured_by(|&n| n as usize);
        counted("source", source, |&n| n as usize, 20, 100);
    });
}

// ---------------------------------------------------------------------------------------------
// Stages that buffer items.

#[test]
fn a_batch_above_the_largest_item_is_an_error() {
    within_seconds(TIMEOUT_SECONDS, || {
        let pipeline = || {
            let batches = hundreds(8).batch("batch", 4, false).largest_item(399).memory(4000);
            in_order(batches, Order::Input).record_order()
        };
        let (items, memory) = run(pipeline());
        // Earlier items are still delivered.
        assert_eq!(items.len(), 2);
        assert_eq!(total(items[0].as_ref().unwrap()), 300);
        let error = items[1].as_ref().unwrap_err();
        assert_eq!((error.kind(), error.stage()), (ErrorKind::LimitExceeded, Some("batch")));
        assert_eq!(memory.live_bytes, 0);

        // With the skip policy, only the item that does not fit is left out, not the batch.
        let small = |number| if number == 3 { 101 } else { 90 };
        let pipeline = numbers(9)
            .async_stage("make", Make::exactly(small))
            .measured()
            .batch(StageOptions::new("batch").on_error(OnError::SKIP), 4, false)
            .largest_item(370)
            .memory(4000)
            .deterministic()
            .record_order();
        let mut pipeline = pipeline.build().unwrap();
        let batches: Vec<Vec<Piece>> = pipeline.by_ref().collect::<Result<_>>().unwrap();
        let batches: Vec<Vec<u64>> = batches.into_iter().map(sorted).collect();
        assert_eq!(batches, [vec![0, 1, 2, 4], vec![5, 6, 7, 8]]);
        let record = pipeline.order_record().unwrap();
        assert_eq!(record.len(), 8, "left-out items are not recorded");
        let dropped = pipeline.statistics().dropped;
        assert_eq!(dropped.len(), 1);
        assert_eq!((dropped[0].id.index, dropped[0].kind), (3, ErrorKind::LimitExceeded));
    });
}

/// Groups three pieces; fails or panics for some numbers.
#[derive(Default)]
struct FailsSometimes(Vec<Piece>);

impl Aggregator<Piece> for FailsSometimes {
    type Out = Vec<Piece>;

    fn accumulate(&mut self, piece: Piece) -> Result<Option<Vec<Piece>>> {
        match piece.number % 10 {
            1 => return Err(bad(piece.number)),
            5 => panic!("panic of the test at {}", piece.number),
            _ => self.0.push(piece),
        }
        Ok((self.0.len() == 3).then(|| std::mem::take(&mut self.0)))
    }

    fn flush(&mut self) -> Result<Option<Vec<Piece>>> {
        Ok((!self.0.is_empty()).then(|| std::mem::take(&mut self.0)))
    }
}

#[test]
fn items_that_an_aggregate_has_lost_are_not_counted() {
    within_seconds(TIMEOUT_SECONDS, || {
        // 0, 2, 3 are one aggregate; 4 is lost with 5; then 6, 7, 8; 9, 10, 12; 13, and so on.
        let pipeline = hundreds(20)
            .aggregate("group", || Ok(FailsSometimes::default()))
            .on_error(OnError::SKIP)
            .deterministic()
            .largest_item(300)
            .memory(1000)
            .record_order();
        let mut pipeline = pipeline.build().unwrap();
        let lists: Vec<Vec<Piece>> = pipeline.by_ref().collect::<Result<_>>().unwrap();
        let lists: Vec<Vec<u64>> = lists.into_iter().map(sorted).collect();
        let expected = [vec![0, 2, 3], vec![6, 7, 8], vec![9, 10, 12], vec![16, 17, 18], vec![19]];
        assert_eq!(lists, expected);
        let record: Vec<u64> = pipeline.order_record().unwrap().iter().map(|id| id.index).collect();
        assert_eq!(record, expected.concat(), "the record contains exactly the delivered items");
        let statistics = pipeline.statistics();
        assert_eq!(statistics.memory.live_bytes, 0);
        assert!(statistics.dropped.iter().all(|dropped| dropped.kind != ErrorKind::LimitExceeded));
        assert_eq!(statistics.left_out, 3, "4, 13 and 14");
    });
}

#[test]
fn a_slow_first_item_of_an_ordered_stage_does_not_wait_for_memory() {
    within_seconds(TIMEOUT_SECONDS, || {
        // The first item takes longer than all others, which reserve all available memory.
        let slow_first = |number| if number == 0 { 50_000 } else { 0 };
        let make = Make { takes: slow_first, ..Make::exactly(|_| 10) };
        for threads in [1, 2, 8] {
            let pipeline = numbers(100)
                .async_stage("fetch", make)
                .measured()
                .stage(StageOptions::new("decode").concurrency(8), move || Ok(make))
                .measured()
                .batch("batch", 2, false)
                .threads(threads)
                .deterministic()
                .largest_item(20)
                .memory(60);
            let (batches, memory) = run_well(pipeline);
            let numbers: Vec<u64> =
                batches.into_iter().flatten().map(|piece| piece.number).collect();
            assert_eq!(numbers, (0..100).collect::<Vec<_>>());
            assert!(memory.peak_bytes <= 60, "{memory:?}");
        }
    });
}

// ---------------------------------------------------------------------------------------------
// Branches at different speeds.

/// A slow branch and a fast branch.
fn unequal(slow_first: bool) -> [PipelineBuilder<Piece>; 2] {
    let slow = Make { takes: |_| 2000, ..Make::exactly(|_| 100) };
    let branch = |name: &str, make: Make| {
        let again = Make { takes: |_| 0, ..make };
        let source = DatasetSource::new((0..40).collect::<Vec<u64>>());
        PipelineBuilder::from_source(&*format!("{name} numbers"), source)
            .async_stage(&*format!("{name} fetch"), make)
            .measured()
            .stage(&*format!("{name} decode"), move || Ok(again))
            .measured()
    };
    let (slow, quick) = (branch("slow", slow), branch("quick", Make::exactly(|_| 100)));
    if slow_first { [slow, quick] } else { [quick, slow] }
}

#[test]
fn a_fast_branch_does_not_take_the_memory_of_a_slow_branch() {
    within_seconds(TIMEOUT_SECONDS, || {
        for slow_first in [true, false] {
            let merged = PipelineBuilder::merge(unequal(slow_first), RoundRobin::default());
            let (pieces, memory) =
                run_well(merged.deterministic().threads(2).largest_item(100).memory(600));
            let numbers: Vec<u64> = pieces.iter().map(|piece| piece.number).collect();
            assert_eq!(numbers, (0..80).map(|n| n / 2).collect::<Vec<_>>());
            assert!(memory.peak_bytes <= 600, "{memory:?}");

            let [left, right] = unequal(slow_first);
            let zipped = left.zip(right).deterministic().threads(2);
            let (pairs, memory) = run_well(zipped.largest_item(200).memory(1000));
            assert_eq!(pairs.len(), 40);
            assert!(pairs.iter().zip(0..).all(|((a, b), n)| (a.number, b.number) == (n, n)));
            assert!(memory.peak_bytes <= 1000, "{memory:?}");
        }
    });
}

#[test]
fn an_overdrawn_fast_branch_does_not_block_a_slow_branch() {
    within_seconds(TIMEOUT_SECONDS, || {
        let slow = Make { takes: |_| 1000, ..Make::exactly(|_| 100) };
        let understated = Make { declares: Some(|_| Some(1)), ..Make::exactly(|_| 100) };
        let slow = numbers(30).async_stage("slow", slow).measured();
        let quick = numbers(30).async_stage("quick", understated).measured();
        let merged = PipelineBuilder::merge([slow, quick], RoundRobin::default());
        let (pieces, memory) = run_well(merged.largest_item(100).memory(200));
        assert_eq!(pieces.len(), 60);
        assert!(memory.overdrawn_bytes > 0, "{memory:?}");
    });
}

/// Whether the awaited event has happened.
type Placed = Arc<(Mutex<bool>, Condvar)>;

fn wait_for(placed: &Placed) {
    let (placed, changed) = &**placed;
    drop(changed.wait_while(placed.lock().unwrap(), |placed| !*placed).unwrap());
}

/// Numbers 1 to 3 fail after number 4 has got a slot in the second batch.
struct FailTogether(Placed);

impl Fill<Piece> for FailTogether {
    fn fill(&mut self, piece: Piece, mut slot: SlotMut<'_>, _: &mut FillContext<'_>) -> Result<()> {
        slot.set(0, piece.number as i64)?;
        match piece.number {
            1..4 => {
                wait_for(&self.0);
                return Err(bad(piece.number));
            }
            4 => {
                *self.0.0.lock().unwrap() = true;
                self.0.1.notify_all();
            }
            _ => {}
        }
        Ok(())
    }
}

#[test]
fn failed_samples_leave_no_empty_batch_that_holds_memory() {
    within_seconds(TIMEOUT_SECONDS, || {
        // A batch has 4 · 100 bytes, and so has every sample from number 5 on. With two open
        // batches there is no memory for the samples.
        let bytes = |number| if number < 5 { 1 } else { 400 };
        let placed = Placed::default();
        let opens = Arc::clone(&placed);
        let fields = [Field::new("number", DType::I64, &[]), Field::new("rest", DType::U8, &[92])];
        // One at a time, so that no item waits behind the closed gate.
        let source = DatasetSource::new((0..16).collect::<Vec<u64>>());
        let pipeline = PipelineBuilder::from_source(StageOptions::new("numbers").queue(1), source)
            .map(StageOptions::new("gate").concurrency(1), move |number| {
                if number == 5 {
                    wait_for(&opens);
                }
                Ok(number)
            })
            .async_stage("make", Make::exactly(bytes))
            .measured()
            .fill(
                StageOptions::new("fill").concurrency(8),
                BatchLayout::new(4, fields),
                move || Ok(FailTogether(Arc::clone(&placed))),
            )
            .on_error(OnError::SKIP)
            .deterministic()
            .threads(8)
            .largest_item(400)
            .memory(810);
        let pipeline = pipeline.build().unwrap();
        let monitor = pipeline.monitor();
        let batches: Vec<Batch> = pipeline.collect::<Result<_>>().unwrap();
        let numbers: Vec<u64> = batches.iter().flat_map(Batch::ids).map(|id| id.index).collect();
        assert_eq!(numbers, [0, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(batches.iter().map(Batch::len).collect::<Vec<_>>(), [4, 4, 4, 1]);
        let statistics = monitor.statistics();
        assert_eq!(statistics.dropped_total, 3);
        assert!(statistics.memory.peak_bytes > 800, "two batches must be open together");
        assert!(statistics.memory.peak_bytes <= 810, "{:?}", statistics.memory);
        assert_eq!(statistics.memory.live_bytes, 0);
    });
}

/// Starts a thread for each job.
#[derive(Debug)]
struct NewThreads;

impl CpuExecutor for NewThreads {
    fn execute(&self, work: Box<dyn FnOnce() + Send>) {
        std::thread::spawn(work);
    }

    fn parallelism(&self) -> usize {
        4
    }
}

/// The last piece of an epoch takes long.
struct WritePiece;

impl Fill<Piece> for WritePiece {
    fn fill(&mut self, piece: Piece, mut slot: SlotMut<'_>, _: &mut FillContext<'_>) -> Result<()> {
        if piece.number == 9 {
            std::thread::sleep(Duration::from_millis(2));
        }
        slot.set(0, piece.number as i64)
    }
}

#[test]
fn a_left_out_batch_releases_its_memory_to_workers_of_the_caller() {
    within_seconds(TIMEOUT_SECONDS, || {
        // Each epoch ends with a batch of 2 of 4 samples. The first batch of the next epoch waits
        // for its memory, because samples hold the remaining memory.
        let layout = BatchLayout::new(4, [Field::new("number", DType::I64, &[])]).drop_last(true);
        let pipeline = numbers(10)
            .stage("make", || Ok(Make::exactly(|_| 16)))
            .measured()
            .fill(StageOptions::new("fill").concurrency(4), layout, || Ok(WritePiece))
            .epochs(0..50)
            .executor(Arc::new(NewThreads))
            .deterministic()
            .largest_item(32)
            .memory(80);
        let (batches, memory) = run_well(pipeline);
        assert_eq!(batches.len(), 100);
        assert!(memory.peak_bytes <= 80, "{memory:?}");
    });
}

// ---------------------------------------------------------------------------------------------
// The end of a pipeline.

/// A pipeline with all kinds of measured stages.
fn everything(fails: fn(u64) -> bool, panics: fn(u64) -> bool) -> PipelineBuilder<Vec<Piece>> {
    let make = Make { takes: delay_us, ..Make::exactly(|_| 100) };
    numbers(200)
        .measured_by(|_| 8)
        .async_stage("fetch", make)
        .measured()
        .stage("decode", move || Ok(make))
        .measured()
        .map("look", move |piece: Piece| {
            assert!(!panics(piece.number), "panic of the test at {}", piece.number);
            if fails(piece.number) { Err(bad(piece.number)) } else { Ok(piece) }
        })
        .batch("batch", 4, false)
        .threads(2)
        .largest_item(400)
        .memory(2000)
}

#[test]
fn nothing_is_counted_after_any_kind_of_end() {
    let never = |_| false;
    let late = |number| number == 120;
    within_seconds(TIMEOUT_SECONDS, move || {
        for order in both_orders() {
            let build = |fails, panics| in_order(everything(fails, panics), order).build().unwrap();
            let memory_after = |mut pipeline: Pipeline<Vec<Piece>>, batches: usize, what: &str| {
                let monitor = pipeline.monitor();
                let whole =
                    |batch: &Result<Vec<Piece>>| batch.as_ref().is_ok_and(|batch| batch.len() == 4);
                let taken = pipeline.by_ref().take(batches).filter(whole).count();
                drop(pipeline);
                let memory = monitor.statistics().memory;
                assert_eq!(memory.live_bytes, 0, "{what}: {memory:?}");
                assert_eq!(memory.peak_bytes > 0, batches > 0, "{what}: {memory:?}");
                taken
            };
            assert_eq!(memory_after(build(never, never), 0, "not started"), 0);
            assert_eq!(memory_after(build(never, never), 3, "dropped in the middle"), 3);
            assert_eq!(memory_after(build(never, never), 60, "the end"), 50);
            assert!(memory_after(build(late, never), 60, "an error") < 50);
            assert!(memory_after(build(never, late), 60, "a panic") < 50);
        }
    });
}

// ---------------------------------------------------------------------------------------------
// Statistics.

#[test]
fn statistics_report_that_memory_is_the_limit() {
    within_seconds(TIMEOUT_SECONDS, || {
        // Two items fit; each holds its memory for 4 ms in a stage with a concurrency of 16.
        let wait = |piece: Piece, cx: AsyncContext| async move {
            cx.runtime().sleep(Duration::from_millis(4)).await;
            Ok(piece)
        };
        struct Hold<F>(F);
        #[async_trait]
        impl<F, R> AsyncStage<Piece> for Hold<F>
        where
            F: Fn(Piece, AsyncContext) -> R + Send + Sync + 'static,
            R: Future<Output = Result<Piece>> + Send + 'static,
        {
            type Out = Piece;
            async fn process(&self, piece: Piece, cx: &AsyncContext) -> Result<Piece> {
                (self.0)(piece, cx.clone()).await
            }
        }
        let pipeline = numbers(100)
            .async_stage("fetch", Make::exactly(|_| 100))
            .measured()
            .async_stage("store", Hold(wait))
            .largest_item(100)
            .memory(200)
            .build()
            .unwrap();
        let monitor = pipeline.monitor();
        assert_eq!(pipeline.collect::<Result<Vec<_>>>().unwrap().len(), 100);
        let statistics = monitor.statistics();
        let memory = statistics.memory;
        assert_eq!((memory.limit_bytes, memory.headroom_bytes), (200, 100));
        assert_eq!((memory.live_bytes, memory.peak_bytes, memory.overdrawn_bytes), (0, 200, 0));
        assert!(memory.waited >= Duration::from_millis(100), "{memory:?}");
        assert!(memory.waited <= statistics.elapsed, "{memory:?}");
        match statistics.limit() {
            Limit::Memory { budget: 200, used, waited } => {
                assert!(used == 1.0 && waited > 0.5, "{used} {waited}");
            }
            other => panic!("{other}"),
        }
    });
}

#[test]
fn a_pipeline_without_measured_stages_has_no_budget() {
    within_seconds(TIMEOUT_SECONDS, || {
        let (_, memory) = run_well(numbers(10).map("same", Ok).memory(1));
        assert_eq!(memory, MemoryStatistics::default());
    });
}

#[test]
fn an_unmeasured_stage_releases_the_memory_of_its_inputs() {
    within_seconds(TIMEOUT_SECONDS, || {
        let run = |options: StageOptions| {
            let make = Make::exactly(|_| 100);
            let pipeline = numbers(20)
                .stage("make", move || Ok(make))
                .measured()
                .map(options, Ok)
                .batch("batch", 20, false)
                .largest_item(200)
                .memory(600)
                .build()
                .unwrap();
            pipeline.collect::<Result<Vec<_>>>()
        };
        assert_eq!(run(StageOptions::new("free").unmeasured()).unwrap()[0].len(), 20);
        // Otherwise, 20 buffered items of 100 bytes exceed the largest item.
        let error = run(StageOptions::new("keep")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    });
}

#[test]
fn an_item_that_waits_for_memory_keeps_its_slot_in_a_queue_of_one() {
    within_seconds(TIMEOUT_SECONDS, || {
        for order in both_orders() {
            let one = |name| StageOptions::new(name).concurrency(1).queue(1);
            let make = Make::exactly(|_| 100);
            let pipeline = numbers(50)
                .stage(one("first"), move || Ok(make))
                .measured()
                .async_stage(one("second"), make)
                .measured()
                .stage(one("third"), move || Ok(make))
                .measured()
                .prefetch(1)
                .threads(2)
                .largest_item(100)
                .memory(300);
            assert_eq!(run_well(in_order(pipeline, order)).0.len(), 50);
        }
    });
}

// ---------------------------------------------------------------------------------------------
// Random pipelines.

/// A stage of a random pipeline.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A measured async stage.
    Async { concurrency: usize, ordered: bool },
    /// A measured CPU stage.
    Cpu { concurrency: usize, ordered: bool },
    /// A stage that is not measured.
    Look { queue: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..6_usize, any::<bool>())
            .prop_map(|(concurrency, ordered)| Step::Async { concurrency, ordered }),
        (1..6_usize, any::<bool>())
            .prop_map(|(concurrency, ordered)| Step::Cpu { concurrency, ordered }),
        (1..4_usize).prop_map(|queue| Step::Look { queue }),
    ]
}

/// The maximum size of an item in bytes.
const LARGEST: usize = 1000;

fn any_bytes(number: u64) -> usize {
    jumble(number) as usize % (LARGEST + 1)
}

/// Makes items of declared sizes, by a method that depends on `at`.
fn any_size(at: usize) -> Make {
    let bytes: fn(u64) -> usize = match at % 3 {
        0 => any_bytes,
        1 => |number| any_bytes(number + 1),
        _ => |number| any_bytes(number * 3 + 2),
    };
    Make { takes: delay_us, ..Make::exactly(bytes) }
}

fn any_branch(name: &str, items: u64, steps: &[Step]) -> PipelineBuilder<Piece> {
    let source = DatasetSource::new((0..items).collect::<Vec<u64>>());
    let mut pipeline = PipelineBuilder::from_source(&*format!("{name} source"), source)
        .async_stage(&*format!("{name} make"), any_size(0))
        .measured();
    for (at, &step) in steps.iter().enumerate() {
        let options = StageOptions::new(&format!("{name} {at}"));
        let make = any_size(at);
        let order = |ordered| if ordered { Order::Input } else { Order::Completion };
        pipeline = match step {
            Step::Async { concurrency, ordered } => {
                let options = options.concurrency(concurrency).order(order(ordered));
                pipeline.async_stage(options, make).measured()
            }
            Step::Cpu { concurrency, ordered } => {
                let options = options.concurrency(concurrency).order(order(ordered));
                pipeline.stage(options, move || Ok(make)).measured()
            }
            Step::Look { queue } => pipeline.map(options.queue(queue), Ok),
        };
    }
    pipeline
}

fn measured_levels(steps: &[Step]) -> usize {
    1 + steps.iter().filter(|step| !matches!(step, Step::Look { .. })).count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]

    #[test]
    fn any_pipeline_delivers_all_items_within_its_budget(
        branches in proptest::collection::vec(proptest::collection::vec(step(), 0..4), 1..4),
        batch in 1..5_usize,
        items in 0..40_u64,
        more in 0..5000_usize,
        threads in 1..5_usize,
        prefetch in 1..4_usize,
        deterministic: bool,
    ) {
        let levels: usize = branches.iter().map(|steps| measured_levels(steps)).sum::<usize>() + 1;
        let largest = batch * LARGEST;
        let limit = levels * largest + more;
        let count = branches.len() as u64;
        let (lists, memory) = within_seconds(TIMEOUT_SECONDS, move || {
            let built = branches.iter().enumerate();
            let mut built: Vec<_> =
                built.map(|(at, steps)| any_branch(&at.to_string(), items, steps)).collect();
            let pipeline = match built.len() {
                1 => built.remove(0),
                _ => PipelineBuilder::merge(built, RoundRobin::default()),
            };
            let pipeline = pipeline
                .batch("batch", batch, false)
                .threads(threads)
                .prefetch(prefetch)
                .largest_item(largest)
                .memory(limit);
            run_well(if deterministic { pipeline.deterministic() } else { pipeline })
        });
        let expected: Vec<u64> = (0..items * count).map(|n| n / count).collect();
        prop_assert_eq!(sorted(lists.concat()), expected);
        prop_assert!(memory.peak_bytes <= limit, "{:?}", memory);
        prop_assert_eq!(memory.overdrawn_bytes, 0);
    }
}

// ---------------------------------------------------------------------------------------------
// Actual memory.

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// The time that the consumer takes for a batch.
const TRAINING_STEP: Duration = Duration::from_millis(100);
/// The maximum time that the consumer may wait for a batch.
const STALL: Duration = Duration::from_secs(20);

/// The actual bytes of all blobs of a run, independent of the budget.
#[derive(Debug, Default)]
struct Allocated {
    now: AtomicUsize,
    most: AtomicUsize,
}

/// Allocated memory.
#[derive(Debug)]
struct Blob {
    number: u64,
    bytes: Vec<u8>,
    allocated: Arc<Allocated>,
}

impl Blob {
    fn new(number: u64, bytes: usize, allocated: &Arc<Allocated>) -> Blob {
        let now = allocated.now.fetch_add(bytes, SeqCst) + bytes;
        allocated.most.fetch_max(now, SeqCst);
        let mut memory = vec![0; bytes];
        // Only pages that were written to are resident.
        memory.iter_mut().step_by(4 * KIB).for_each(|byte| *byte = number as u8);
        Blob { number, bytes: memory, allocated: Arc::clone(allocated) }
    }

    /// Stops counting a delivered blob.
    fn leave(&self) {
        self.allocated.now.fetch_sub(self.bytes.len(), SeqCst);
    }
}

impl Footprint for Blob {
    fn footprint(&self) -> usize {
        self.bytes.capacity()
    }
}

/// From 1 KiB to 64 MiB divided by `scale`, log-uniformly distributed.
fn blob_bytes(number: u64, scale: usize) -> usize {
    let random = jumble(number.wrapping_mul(0x2545_f491)) % (1 << 20);
    let octaves = 16.0 * random as f64 / f64::from(1 << 20);
    (KIB as f64 * octaves.exp2()) as usize / scale
}

/// Allocates a blob after a delay like that of a store.
struct Fetch {
    scale: usize,
    allocated: Arc<Allocated>,
}

#[async_trait]
impl AsyncStage<u64> for Fetch {
    type Out = Blob;

    async fn process(&self, number: u64, cx: &AsyncContext) -> Result<Blob> {
        cx.runtime().sleep(Duration::from_micros(jumble(number) % 3000)).await;
        Ok(Blob::new(number, blob_bytes(number, self.scale), &self.allocated))
    }

    fn output_bytes(&self, &number: &u64) -> Option<usize> {
        Some(blob_bytes(number, self.scale))
    }
}

/// Makes a blob of another size.
struct Decode {
    scale: usize,
    allocated: Arc<Allocated>,
}

impl Stage<Blob> for Decode {
    type Out = Blob;

    fn process(&mut self, blob: Blob, cx: &mut StageContext<'_, Blob>) -> Result<()> {
        let bytes = blob_bytes(!blob.number, self.scale);
        let decoded = Blob::new(blob.number, bytes, &self.allocated);
        blob.leave();
        cx.emit(decoded)
    }

    fn output_bytes(&self, blob: &Blob) -> Option<usize> {
        Some(blob_bytes(!blob.number, self.scale))
    }
}

/// A value of `/proc/self/status` or `/proc/meminfo`, in bytes.
fn proc_bytes(file: &str, name: &str) -> Option<usize> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim_end().parse::<usize>().ok()? * KIB)
}

/// Observed maxima.
#[derive(Clone, Copy, Debug, Default)]
struct Peaks {
    live: usize,
    resident: usize,
    samples: usize,
}

/// Samples every millisecond until `over` is set.
fn watch(
    monitor: spdl_core::pipeline::Monitor,
    over: Arc<AtomicBool>,
) -> std::thread::JoinHandle<Peaks> {
    std::thread::spawn(move || {
        let mut peaks = Peaks::default();
        while !over.load(SeqCst) {
            peaks.live = peaks.live.max(monitor.statistics().memory.live_bytes);
            let resident = proc_bytes("/proc/self/status", "VmRSS").unwrap_or(0);
            peaks.resident = peaks.resident.max(resident);
            peaks.samples += 1;
            std::thread::sleep(Duration::from_millis(1));
        }
        peaks
    })
}

/// The duration of each pipeline of the next test. `SPDL_MEMORY_SECONDS` sets it in seconds. By
/// default, all pipelines together take 5 s.
fn run_time(runs: u32) -> Duration {
    let given = std::env::var("SPDL_MEMORY_SECONDS").ok();
    let given = given.map(|text| Duration::from_secs_f64(text.parse().unwrap()));
    given.unwrap_or(Duration::from_secs(5) / runs)
}

/// Set in the child process that runs the test alone.
const ALONE: &str = "SPDL_MEMORY_ALONE";

/// Runs the test in a child process, so that all its memory belongs to the pipeline, with these
/// variables for the allocator.
fn alone(test: &str, allocator: &[(&str, &str)]) {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let defaults = ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_ARENA_MAX"];
    defaults.into_iter().chain(["GLIBC_TUNABLES"]).for_each(|name| _ = child.env_remove(name));
    let output = child
        .args([test, "--exact", "--nocapture"])
        .env(ALONE, "1")
        .envs(allocator.iter().copied())
        .output()
        .unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output_text}{errors}");
    output_text
        .lines()
        .filter(|line| line.contains("budget of"))
        .for_each(|line| println!("{line}"));
}

/// The number by which the sizes of blobs are divided, the largest blob and the budget. Three stages are
/// measured, and a batch of four may need four times the largest item. This is therefore the smallest
/// valid budget.
fn sizes() -> (usize, usize, usize) {
    let available = proc_bytes("/proc/meminfo", "MemAvailable").unwrap_or(usize::MAX);
    let scale = [1, 2, 4, 8, 16].into_iter().find(|scale| available / 4 > 768 * MIB / scale);
    let scale = scale.unwrap_or(32);
    (scale, 256 * MIB / scale, 768 * MIB / scale)
}

/// Runs a pipeline with a slow consumer, and checks the counted memory. Returns a report and the peak of
/// the resident memory.
fn run_with_a_slow_consumer(order: Order, threads: usize, time: Duration) -> (String, usize) {
    let (scale, largest, limit) = sizes();
    within_seconds(time.as_secs() + 60, move || {
        let allocated = Arc::<Allocated>::default();
        let fetch = Fetch { scale, allocated: Arc::clone(&allocated) };
        let for_decode = Arc::clone(&allocated);
        let pipeline = numbers(1 << 20)
            .async_stage("fetch", fetch)
            .measured()
            .stage("decode", move || Ok(Decode { scale, allocated: Arc::clone(&for_decode) }))
            .measured()
            .batch("batch", 4, true)
            .threads(threads)
            .largest_item(largest)
            .memory(limit);
        let mut pipeline = in_order(pipeline, order).build().unwrap();
        let baseline = proc_bytes("/proc/self/status", "VmRSS").unwrap_or(0);
        let over = Arc::new(AtomicBool::new(false));
        let watcher = watch(pipeline.monitor(), Arc::clone(&over));
        let started = Instant::now();
        let (mut batches, mut next, mut longest) = (0_u64, 0, Duration::ZERO);
        while started.elapsed() < time {
            let asked = Instant::now();
            let batch = pipeline.next().unwrap().unwrap();
            longest = longest.max(asked.elapsed());
            batch.iter().for_each(Blob::leave);
            batches += 1;
            for blob in &batch {
                assert!(blob.bytes.iter().step_by(4 * KIB).all(|&b| b == blob.number as u8));
                if order == Order::Input {
                    assert_eq!(blob.number, next);
                    next += 1;
                }
            }
            drop(batch);
            std::thread::sleep(TRAINING_STEP);
        }
        over.store(true, SeqCst);
        let peaks = watcher.join().unwrap();
        let monitor = pipeline.monitor();
        drop(pipeline);
        let memory = monitor.statistics().memory;
        let resident = peaks.resident.saturating_sub(baseline);
        let most = allocated.most.load(SeqCst);
        let report = format!(
            "{order:?}, {threads} threads: {batches} batches in {:.1} s, the longest wait \
             {:.0} ms; of a budget of {} MiB {} were counted at most and {} allocated, and {} \
             resident ({:.2} of the budget); stages waited for memory {:.1} s",
            started.elapsed().as_secs_f64(),
            longest.as_secs_f64() * 1000.0,
            limit / MIB,
            memory.peak_bytes / MIB,
            most / MIB,
            resident / MIB,
            resident as f64 / limit as f64,
            memory.waited.as_secs_f64()
        );
        assert!(batches > 1 && peaks.samples > 10, "{report}");
        assert!(longest < STALL, "{report}");
        assert!(peaks.live <= limit && memory.peak_bytes <= limit, "{report}");
        assert_eq!((memory.overdrawn_bytes, memory.live_bytes), (0, 0), "{report}");
        // A delivered batch is no longer counted slightly before this thread receives it.
        assert!(most <= limit + largest, "{report}");
        println!("{report}");
        (report, resident)
    })
}

#[test]
fn the_resident_memory_stays_within_the_budget_if_the_consumer_is_slow() {
    let time = run_time(6);
    if std::env::var_os(ALONE).is_none() {
        let test = "the_resident_memory_stays_within_the_budget_if_the_consumer_is_slow";
        // This allocator returns large blocks to the system.
        let allocator = [("MALLOC_MMAP_THRESHOLD_", "131072")];
        return within_seconds(6 * (time.as_secs() + 60), move || alone(test, &allocator));
    }
    let (.., limit) = sizes();
    for order in both_orders() {
        for threads in [1, 2, 8] {
            let (report, resident) = run_with_a_slow_consumer(order, threads, time);
            assert!(resident <= limit + limit / 10, "{report}");
        }
    }
}

#[test]
fn the_default_allocator_keeps_at_most_as_much_as_the_budget() {
    let time = run_time(3);
    if std::env::var_os(ALONE).is_none() {
        let test = "the_default_allocator_keeps_at_most_as_much_as_the_budget";
        return within_seconds(2 * (time.as_secs() + 60), || alone(test, &[]));
    }
    // glibc keeps freed blocks of up to 32 MiB, in several arenas.
    let (.., limit) = sizes();
    for threads in [2, 8] {
        let (report, resident) = run_with_a_slow_consumer(Order::Completion, threads, time);
        assert!(resident <= 2 * limit, "{report}");
    }
}

#[test]
fn rates_of_an_async_stage_are_measured_while_items_wait_for_memory() {
    within_seconds(TIMEOUT_SECONDS, || {
        let rates = |pipeline: PipelineBuilder<Piece>| {
            let mut pipeline = pipeline.build().unwrap();
            assert!(pipeline.by_ref().all(|piece| piece.is_ok()));
            let statistics = pipeline.statistics();
            let stage = statistics.stages.iter().find(|stage| &*stage.name == "make").unwrap();
            stage.rates.clone()
        };
        let options = || StageOptions::new("make").concurrency(64);
        let items = |rates: &[InFlightRate]| rates.iter().map(|rate| rate.items).sum::<u64>();
        // The budget is for eight outputs, fewer than the window.
        let make = Make { takes: |_| 2000, ..Make::exactly(|_| 100) };
        let limited = numbers(200).async_stage(options(), make).measured();
        let found = rates(limited.memory(800).largest_item(100));
        assert!(items(&found) > 50, "{found:?}");
        assert!(found.iter().all(|rate| rate.in_flight <= 8.0), "{found:?}");
        // The store is not the reason if inputs arrive slowly.
        let slow = numbers(60).map("gate", |number| {
            std::thread::sleep(Duration::from_millis(3));
            Ok(number)
        });
        let make = Make { takes: |_| 8000, ..make };
        let found = rates(slow.threads(1).async_stage(options(), make).measured());
        assert!(items(&found) < 30, "{found:?}");
        // Items that start together complete together. The rate is that of the four, not that of the last three.
        let make = Make { takes: |_| 20_000, ..make };
        let bursts = numbers(200).async_stage(StageOptions::new("make").concurrency(4), make);
        let found = rates(bursts.measured());
        assert!(items(&found) > 50, "{found:?}");
        let took: Duration = found.iter().map(|rate| rate.time).sum();
        assert!(items(&found) as f64 <= 5.0 / 0.02 * took.as_secs_f64(), "{found:?}");
    });
}
