//! Runs in completion order, recorded and replayed: the same samples in the same order, with the
//! same random numbers.

// promise of this file: CORE5
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::{
    WriteNumber, bad_number, before_error, layout, numbers, sleep_by_number, within_seconds,
};
use spdl_core::resume::OrderRecord;
use spdl_core::{
    ErrorKind, OnError, Order, PipelineBuilder, Result, SampleId, Stage, StageContext, StageOptions,
};

/// Adds a random number to each number, after a delay that depends on the run.
struct Draw {
    run: i64,
    fails: fn(i64) -> bool,
}
impl Stage<i64> for Draw {
    type Out = (i64, u64);
    fn process(&mut self, n: i64, cx: &mut StageContext<'_, (i64, u64)>) -> Result<()> {
        sleep_by_number(n.wrapping_mul(self.run + 1));
        if (self.fails)(n) {
            return Err(bad_number(n));
        }
        cx.emit((n, cx.rng().unit().to_bits()))
    }
}

/// Two epochs of shuffled numbers with random numbers, in completion order.
fn drawing(run: i64, fails: fn(i64) -> bool) -> PipelineBuilder<(i64, u64)> {
    PipelineBuilder::new(numbers(300).shuffled(5))
        .stage("draw", move || Ok(Draw { run, fails }))
        .on_error(OnError::SKIP)
        .seed(11)
        .epochs(0..2)
}

fn run<T: Send + 'static>(builder: PipelineBuilder<T>) -> (Vec<T>, OrderRecord) {
    let mut pipeline = builder.record_order().build().unwrap();
    let items = pipeline.by_ref().map(|item| item.expect("nothing fails")).collect();
    (items, pipeline.order_record().unwrap().clone())
}

#[test]
fn a_recorded_run_is_replayed_item_by_item() {
    within_seconds(60, || {
        let (items, record) = run(drawing(0, |_| false).threads(4));
        assert_eq!(record.len(), 600);
        let in_order = run(drawing(0, |_| false).deterministic()).0;
        assert_ne!(items, in_order, "the run must not be in input order");
        for threads in [1, 2, 8] {
            // Other delays and threads: the same samples and random numbers.
            let again = run(drawing(7, |_| false).threads(threads).replay(record.clone()));
            assert_eq!(again, (items.clone(), record.clone()), "{threads} threads");
        }
    });
}

#[test]
fn dropped_samples_are_left_out_of_the_replay() {
    within_seconds(60, || {
        let (items, record) = run(drawing(0, |n| n % 7 == 3).threads(4));
        assert_eq!(record.len(), 2 * (300 - 43));
        // In the replay these samples would succeed, but the recorded run lacks them.
        let seen = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&seen);
        let again = drawing(3, |_| false).map("count", move |item| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(item)
        });
        let (again, _) = run(again.threads(3).replay(record));
        assert_eq!(again, items);
        assert_eq!(seen.load(Ordering::Relaxed), items.len());
    });
}

#[test]
fn replayed_batches_have_the_same_members() {
    within_seconds(60, || {
        for drop_last in [false, true] {
            let batches = |run| drawing(run, |n| n % 10 == 4).batch("batch", 16, drop_last);
            let (lists, record) = run(batches(0).threads(4));
            let samples: usize = lists.iter().map(Vec::len).sum();
            assert_eq!(record.len() as usize, samples, "left-out samples are not recorded");
            assert_eq!(samples, if drop_last { 2 * 256 } else { 540 });
            let (again, record_again) = run(batches(5).threads(2).replay(record.clone()));
            assert_eq!(again, lists);
            assert_eq!(record_again, record);
        }
    });
}

#[test]
fn replayed_array_batches_are_bit_identical() {
    within_seconds(60, || {
        let filled = |run: i64| {
            PipelineBuilder::new(numbers(200).shuffled(5))
                .map("sleep_by_number", move |n| {
                    sleep_by_number(n.wrapping_mul(run + 1));
                    Ok(n)
                })
                .fill("write", layout(8), || {
                    Ok(WriteNumber { fails: |n| n % 13 == 5, panics: |n| n % 17 == 3 })
                })
                .on_error(OnError::SKIP)
                .seed(3)
                .epochs(0..2)
        };
        let contents =
            |batches: Vec<spdl_core::Batch>| -> Vec<(Vec<SampleId>, Vec<i64>, Vec<u32>)> {
                let content = |batch: spdl_core::Batch| {
                    let noise = batch.array("noise").unwrap().as_slice::<f32>().unwrap();
                    let noise = noise.iter().map(|x| x.to_bits()).collect();
                    let numbers =
                        batch.array("number").unwrap().as_slice::<i64>().unwrap().to_vec();
                    (batch.ids().to_vec(), numbers, noise)
                };
                batches.into_iter().map(content).collect()
            };
        let (batches, record) = run(filled(0).threads(4));
        let first = contents(batches);
        let (again, record_again) = run(filled(5).threads(3).replay(record.clone()));
        assert_eq!(contents(again), first);
        assert_eq!(record_again, record);
    });
}

/// Makes an item wait until others are counted.
#[derive(Default)]
struct Others(AtomicUsize);

impl Others {
    fn count(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn wait_for(&self, many: usize, most: Duration) {
        let started = Instant::now();
        while self.0.load(Ordering::SeqCst) < many && started.elapsed() < most {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_replay_keeps_the_place_of_a_slow_item() {
    within_seconds(60, || {
        // In the recorded run, others overtake sample 0.
        let build = |slow: bool| {
            let others = Others::default();
            PipelineBuilder::new(numbers(60))
                .map("work", move |n| {
                    if slow && n == 0 {
                        others.wait_for(50, Duration::from_secs(20));
                    } else {
                        others.count();
                    }
                    Ok(n)
                })
                .threads(2)
        };
        let (items, record) = run(build(true));
        assert_ne!(items.first(), Some(&0), "sample 0 must be overtaken");
        let (again, _) = run(build(false).replay(record));
        assert_eq!(again, items);
    });
}

#[test]
fn an_interrupted_run_is_replayed_up_to_its_end() {
    within_seconds(60, || {
        let mut pipeline = drawing(0, |_| false).threads(3).record_order().build().unwrap();
        let items: Vec<_> = pipeline.by_ref().take(100).map(Result::unwrap).collect();
        let record = pipeline.order_record().unwrap().clone();
        assert_eq!(record.len(), 100, "only delivered items are recorded");
        drop(pipeline);
        let (again, _) =
            run(drawing(1, |_| false).replay(OrderRecord::parse(&record.to_text()).unwrap()));
        assert_eq!(again, items);
    });
}

#[test]
fn a_record_exists_only_on_request() {
    within_seconds(60, || {
        let mut pipeline = PipelineBuilder::new(numbers(5)).build().unwrap();
        assert!(pipeline.next().is_some());
        assert!(pipeline.order_record().is_none());
    });
}

#[test]
fn a_record_of_another_source_fails_at_the_missing_sample() {
    within_seconds(60, || {
        let ids = [1, 0, 99, 2].map(|index| SampleId { epoch: 0, index });
        let builder = PipelineBuilder::new(numbers(5)).map("pass", Ok);
        let replay = builder.on_error(OnError::SKIP).replay(ids.into_iter().collect());
        let (items, error) = before_error(replay.build().unwrap());
        assert_eq!(items, [1, 0]);
        assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidArgument, Some("source")));
    });
}

#[test]
fn a_replay_restores_order_unless_a_stage_uses_completion_order() {
    within_seconds(60, || {
        let ids = (0..50).rev().map(|index| SampleId { epoch: 0, index });
        let build = |options: StageOptions, most: Duration| {
            let others = Others::default();
            let slow_first = move |n| {
                if n == 49 {
                    others.wait_for(40, most);
                } else {
                    others.count();
                }
                Ok(n)
            };
            let builder = PipelineBuilder::new(numbers(50)).map(options, slow_first);
            builder.threads(2).replay(ids.clone().collect())
        };
        // So many items must wait for their turn, so the wait lasts the maximum time.
        let (items, _) = run(build(StageOptions::new("slow"), Duration::from_millis(50)));
        assert_eq!(items, (0..50).rev().collect::<Vec<_>>());
        let options = StageOptions::new("slow").order(Order::Completion);
        let (items, _) = run(build(options, Duration::from_secs(20)));
        assert_ne!(items.first(), Some(&49), "the slow item must be overtaken");
    });
}
