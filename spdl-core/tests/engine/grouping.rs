//! Buckets and packed sequences in whole pipelines: identities, memory, failures and statistics.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::common::{numbers, sleep_by_number, until, within_seconds};
use proptest::prelude::*;
use spdl_core::pipeline::Construct;
use spdl_core::stage::{Bucketing, Packing};
use spdl_core::{ErrorKind, OnError, PipelineBuilder, Result, SampleId, Stage, StageContext};

/// Lengths from 1 to 12 without a visible order.
fn length(n: i64) -> u64 {
    1 + (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) % 12
}

fn dawdling(count: i64) -> PipelineBuilder<i64> {
    PipelineBuilder::new(numbers(count)).map("sleep_by_number", |n| {
        sleep_by_number(n);
        Ok(n)
    })
}

/// Adds the identity of an item and a random number.
struct Identify;

impl<T: Send + 'static> Stage<T> for Identify {
    type Out = (SampleId, u64, T);
    fn process(&mut self, item: T, cx: &mut StageContext<'_, Self::Out>) -> Result<()> {
        cx.emit((cx.id(), cx.rng().next_u64(), item))
    }
}

type Identified = (SampleId, u64, Vec<i64>);

/// The aggregates of a grouping method, the record of samples, and the number of left-out samples.
fn grouped(
    way: usize,
    count: i64,
    threads: usize,
    epochs: u64,
) -> (Vec<Identified>, Vec<SampleId>, u64) {
    let source = dawdling(count);
    let builder = match way {
        0 => {
            let bucketing = Bucketing::boundaries([3.0, 6.0, 9.0]).batch_size(4);
            source
                .bucket("group", bucketing, |&n| length(n) as f64)
                .stage("who", || Ok(Identify))
                .map("items", |(id, random, batch)| Ok((id, random, batch.items)))
        }
        1 => source
            .pack("group", Packing::new(20).open(3), |&n| length(n))
            .stage("who", || Ok(Identify))
            .map("items", |(id, random, pack)| Ok((id, random, pack.items))),
        _ => source
            .map("tokens", |n| Ok(vec![n; length(n) as usize * 3]))
            .concat_and_split("group", 10, true)
            .stage("who", || Ok(Identify))
            .map("items", |(id, random, pack)| {
                let ends = pack.items.iter().filter(|piece| piece.is_last());
                Ok((id, random, ends.map(|piece| piece.part[0]).collect()))
            }),
    };
    let builder = builder.deterministic().threads(threads).epochs(..epochs).record_order();
    let mut pipeline = builder.build().unwrap();
    let all = pipeline.by_ref().collect::<Result<Vec<_>>>().unwrap();
    let record = pipeline.order_record().unwrap().iter().collect();
    (all, record, pipeline.statistics().left_out)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn aggregates_have_their_samples_and_do_not_depend_on_threads(
        way in 0usize..3,
        count in 0i64..80,
        threads in 1usize..6,
    ) {
        let (all, record, left_out) = within_seconds(60, move || grouped(way, count, 1, 2));
        let named: Vec<i64> = record.iter().map(|id| id.index as i64).collect();
        let items: Vec<i64> = all.iter().flat_map(|(.., items)| items.iter().copied()).collect();
        prop_assert_eq!(&named, &items, "the record lists the samples in order");
        let mut sorted = record.clone();
        sorted.sort_unstable();
        sorted.dedup();
        prop_assert_eq!(sorted.len(), record.len(), "no sample occurs twice");
        prop_assert_eq!(record.len() as u64 + left_out, 2 * count as u64);
        let mut random: Vec<u64> = all.iter().map(|&(_, random, _)| random).collect();
        for (id, _, items) in &all {
            prop_assert!(items.is_empty() || id.index as i64 == items[0], "{id}: {items:?}");
        }
        random.sort_unstable();
        random.dedup();
        prop_assert_eq!(random.len(), all.len(), "random numbers differ");
        let again = within_seconds(60, move || grouped(way, count, threads, 2));
        prop_assert_eq!(again, (all, record, left_out));
    }
}

#[test]
fn buffered_items_are_counted_until_they_are_delivered() {
    within_seconds(60, || {
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let closed = Arc::clone(&gate);
        let sizes = |measured: bool| {
            let closed = Arc::clone(&closed);
            let wait = move |&n: &i64| {
                let (open, changed) = &*closed;
                let guard = open.lock().unwrap();
                drop(changed.wait_while(guard, |open| n == 5 && !*open).unwrap());
            };
            let batches = PipelineBuilder::from_iter((0..7).inspect(wait))
                .map("pass", Ok)
                .measured_by(|_| 100)
                // First 1 and 3 arrive; 0, 2 and 4 form a batch; then 5; at last 6.
                .bucket("like", Bucketing::nearest([1.0, 2.0]).batch_sizes([9, 3]), |n| {
                    if n % 2 == 0 { 2.0 } else { 1.0 }
                });
            if measured { batches.measured_by(|b| 30 * b.items.len()) } else { batches }
        };
        for (measured, out) in [(false, 300), (true, 90)] {
            *gate.0.lock().unwrap() = false;
            let builder = sizes(measured).deterministic().threads(1).prefetch(100);
            let mut pipeline = builder.memory(1 << 20).build().unwrap();
            let monitor = pipeline.monitor();
            let live = || monitor.statistics().memory.live_bytes;
            pipeline.start().unwrap();
            // 1 and 3 are buffered.
            until("the first batch and all others are counted", || live() == out + 200);
            assert_eq!(pipeline.next().unwrap().unwrap().items, [0, 2, 4]);
            assert_eq!(live(), 200);
            *gate.0.lock().unwrap() = true;
            gate.1.notify_all();
            assert_eq!(pipeline.next().unwrap().unwrap().items, [1, 3, 5]);
            assert_eq!(pipeline.next().unwrap().unwrap().items, [6]);
            assert!(pipeline.next().is_none());
            assert_eq!(live(), 0);
        }
    });
}

#[test]
fn items_that_cannot_be_packed_are_dropped_without_affecting_others() {
    within_seconds(60, || {
        let packed = || {
            let source = PipelineBuilder::new(numbers(10)).deterministic();
            source.pack("pack", Packing::new(6).first_fit(), |&n| n as u64)
        };
        let error = packed().build().unwrap().find_map(Result::err).unwrap();
        assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidArgument, Some("pack")));
        let mut pipeline = packed().on_error(OnError::SKIP).record_order().build().unwrap();
        let packs: Vec<_> = pipeline.by_ref().map(|pack| pack.unwrap().items).collect();
        assert_eq!(packs, [vec![1, 2, 3], vec![6], vec![4], vec![5]]);
        let record = pipeline.order_record().unwrap();
        assert_eq!(record.iter().map(|id| id.index).collect::<Vec<_>>(), [1, 2, 3, 6, 4, 5]);
        let statistics = pipeline.statistics();
        let dropped: Vec<_> = statistics.dropped.iter().map(|d| (d.id.index, d.kind)).collect();
        let long = ErrorKind::LimitExceeded;
        let expected = [(0, ErrorKind::InvalidArgument), (7, long), (8, long), (9, long)];
        assert_eq!(dropped, expected);
        assert_eq!(statistics.left_out, 0);
        assert_eq!(statistics.stages[1].fill_rate, Some(21.0 / 24.0));
        assert!(statistics.to_string().contains(", filled 87.5 %, queue"), "{statistics}");
    });
}

// promise: R24
#[test]
fn a_panic_loses_only_the_buffered_items() {
    within_seconds(60, || {
        let once = AtomicBool::new(true);
        let mut pipeline = PipelineBuilder::new(numbers(8))
            .pack("pack", Packing::new(4), move |&n| {
                assert!(n != 4 || !once.swap(false, Ordering::Relaxed), "panic of the test at 4");
                if n < 2 { 2 } else { 3 }
            })
            .measured_by(|pack| pack.items.len())
            .on_error(OnError::SKIP)
            .deterministic()
            .record_order()
            .build()
            .unwrap();
        let packs: Vec<_> = pipeline.by_ref().map(|pack| pack.unwrap().items).collect();
        assert_eq!(packs, [vec![0, 1], vec![5], vec![6], vec![7]]);
        let record = pipeline.order_record().unwrap();
        assert_eq!(record.iter().map(|id| id.index).collect::<Vec<_>>(), [0, 1, 5, 6, 7]);
        let statistics = pipeline.statistics();
        assert_eq!((statistics.left_out, statistics.dropped_total), (2, 1), "2 and 3; 4");
        assert_eq!(statistics.memory.live_bytes, 0);
    });
}

#[test]
fn invalid_settings_end_the_build_with_an_error() {
    let numbers = || PipelineBuilder::new(numbers(1));
    let bucket = numbers().bucket("bad", Bucketing::boundaries([2.0, 1.0]), |&n| n as f64);
    let pack = numbers().pack("bad", Packing::new(0), |&n| n as u64);
    let concat = numbers().map("list", |n| Ok(vec![n])).concat_and_split("bad", 0, false);
    let errors = [bucket.build().map(drop), pack.build().map(drop), concat.build().map(drop)];
    for error in errors {
        let error = error.unwrap_err();
        assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidArgument, Some("bad")));
    }
}

#[test]
fn a_definition_describes_how_items_are_grouped() {
    let bucketing = Bucketing::boundaries([1.0, 2.5]).batch_sizes([3, 2, 1]).drop_last();
    let builder = PipelineBuilder::new(numbers(1))
        .bucket("like", bucketing.budget(64).long_items_alone(), |&n| n as f64)
        .unbatch("apart")
        .bucket("shape", Bucketing::nearest([0.5, 2.0]).batch_size(4), |_| 1.0)
        .unbatch("apart again")
        .pack("pack", Packing::new(100).first_fit().open(7).most_items(5), |_| 1)
        .map("tokens", |pack| Ok(pack.items))
        .concat_and_split("concat", 9, true);
    let definition = builder.definition();
    let describe = |name: &str| {
        let stage = definition.all_stages().find(|stage| stage.name == name).unwrap();
        let more = stage.more.iter().map(|(what, value)| format!("{what} {}", value.value));
        (stage.kind, more.collect::<Vec<_>>().join("; "))
    };
    let like = "boundaries [1.0, 2.5]; budget 64; drop last yes; long items alone; sizes [3, 2, 1]";
    assert_eq!(describe("like"), (Construct::Bucket, like.into()));
    assert_eq!(describe("shape"), (Construct::Bucket, "nearest [0.5, 2.0]; size 4".into()));
    let pack = "capacity 100; fit first; most items 5; open 7";
    assert_eq!(describe("pack"), (Construct::Pack, pack.into()));
    let concat = "capacity 9; drop last yes; fit concat and split";
    assert_eq!(describe("concat"), (Construct::Pack, concat.into()));
    let gathers = definition.all_stages().filter(|stage| stage.concurrency.is_none());
    assert!(gathers.count() >= 4, "aggregating stages have no concurrency");
}
