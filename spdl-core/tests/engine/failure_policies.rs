//! Failure policies: budgets, items delivered before an error, listeners, and retries.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::within_seconds;
use crate::common::{
    WriteNumber, bad_number, before_error, delivered, layout, numbers, sleep_by_number, until,
};
use futures_util::{StreamExt, stream};
use spdl_core::observe::{Counter, MAX_DROPPED_LISTED};
use spdl_core::source::Cursor;
use spdl_core::stage::{Retried, stage_fn};
use spdl_core::{
    AsyncContext, AsyncStage, BoxStream, Error, ErrorKind, OnError, Order, Pipeline,
    PipelineBuilder, Result, Retry, Source, Stage, StageContext, StageOptions, async_trait,
};

const ANY: OnError = OnError::SKIP;

fn at_most(count: u64) -> OnError {
    OnError::Skip { at_most: Some(count) }
}

fn share(at_most: f64) -> OnError {
    OnError::SkipShare { at_most, after: 100, at_end: false }
}

/// A stage that fails for some numbers.
fn failing(
    builder: PipelineBuilder<i64>,
    options: impl Into<StageOptions>,
    fails: impl Fn(i64) -> bool + Send + Sync + 'static,
) -> PipelineBuilder<i64> {
    builder.map(options, move |n| if fails(n) { Err(bad_number(n)) } else { Ok(n) })
}

fn run(builder: PipelineBuilder<i64>) -> Result<Vec<i64>> {
    builder.build()?.collect()
}

// Budgets.

#[test]
fn the_error_of_an_exceeded_budget_contains_each_failure_and_its_cause_once() {
    within_seconds(20, || {
        let builder = PipelineBuilder::new(numbers(9)).map("read", |n| {
            let cause = std::io::Error::other("the disk is on fire");
            if n < 2 { Err(bad_number(n).with_source(cause)) } else { Ok(n) }
        });
        let error = run(builder.on_error(at_most(1)).threads(1)).unwrap_err();
        assert_eq!((error.kind(), error.stage()), (ErrorKind::TooManyFailures, Some("read")));
        let expected = "read: more than 1 item failed, the limit of the failure policy (on_error); \
                        first failures: 0 is bad: the disk is on fire; 1 is bad: the disk is on fire";
        assert_eq!(error.report(), expected);
        let last = error.failed_item().unwrap();
        assert_eq!((last.kind(), last.message()), (ErrorKind::Corrupt, "1 is bad"));
    });
}

// promise: R9
#[test]
fn an_exceeded_budget_is_one_error_and_the_statistics_list_the_dropped_items() {
    within_seconds(60, || {
        for threads in [1, 4] {
            let first = failing(PipelineBuilder::new(numbers(1000)), "first", |n| n % 2 == 0);
            let pipeline = failing(first, "second", |n| n % 3 == 0).on_error(at_most(6));
            let mut pipeline = pipeline.threads(threads).build().unwrap();
            let error = pipeline.by_ref().find_map(Result::err).unwrap();
            assert_eq!((error.kind(), error.others().len()), (ErrorKind::TooManyFailures, 0));
            assert_eq!(error.to_string().matches("; ").count(), 3, "three failures: {error}");
            let monitor = pipeline.monitor();
            drop(pipeline);
            let statistics = monitor.statistics();
            // The item that exceeded the budget is not dropped: a resumed run processes it again.
            assert_eq!((statistics.dropped.len(), statistics.dropped_total), (6, 6));
            assert!(error.failed_item().is_some(), "{error}");
        }
    });
}

// feature: F03
#[test]
fn a_failure_share_is_checked_at_the_end_of_few_items_if_requested() {
    within_seconds(60, || {
        let build = |at_end, failed| {
            let policy = OnError::SkipShare { at_most: 0.02, after: 1000, at_end };
            let builder = PipelineBuilder::new(numbers(200)).on_error(policy).threads(2);
            failing(builder.map("before", Ok), "picky", move |n| n < failed)
        };
        assert_eq!(run(build(false, 9)).unwrap().len(), 191);
        assert_eq!(run(build(true, 4)).unwrap().len(), 196);
        let error = run(build(true, 9)).unwrap_err();
        assert_eq!((error.kind(), error.stage()), (ErrorKind::TooManyFailures, Some("picky")));
        // The stage before shares the policy, and may end before all items have failed.
        let failed = error.message().split(' ').next().unwrap().parse::<u32>().unwrap();
        assert!((5..=9).contains(&failed), "{error}");
        assert!(error.message().contains(" of 200 items failed; "), "{error}");
        assert!(error.failed_item().is_none());
    });
}

// feature: F02
#[test]
fn stages_without_a_budget_share_that_of_the_pipeline() {
    within_seconds(60, || {
        for threads in [1, 4] {
            let build = |budget| {
                let first = failing(PipelineBuilder::new(numbers(1000)), "first", |n| n % 100 == 1);
                failing(first, "second", |n| n % 100 == 2)
                    .on_error(at_most(budget))
                    .threads(threads)
            };
            assert_eq!(run(build(20)).unwrap().len(), 980, "10 in each stage");
            let error = run(build(19)).unwrap_err();
            assert!(error.to_string().contains("more than 19 items failed"), "{error}");
            assert_eq!(error.kind(), ErrorKind::TooManyFailures);
        }
    });
}

// feature: F04
#[test]
fn the_budget_of_a_stage_is_independent_of_that_of_the_pipeline() {
    within_seconds(60, || {
        let build = |own: OnError, whole: OnError| {
            let options = StageOptions::new("first").on_error(own);
            let first = failing(PipelineBuilder::new(numbers(1000)), options, |n| n % 100 == 1);
            failing(first, "second", |n| n % 100 == 2).on_error(whole)
        };
        assert_eq!(run(build(at_most(10), at_most(10))).unwrap().len(), 980);
        let own = run(build(at_most(9), ANY)).unwrap_err();
        assert_eq!(own.stage(), Some("first"));
        let whole = run(build(ANY, at_most(9))).unwrap_err();
        assert_eq!(whole.stage(), Some("second"));
        let strict = run(build(OnError::Raise, ANY)).unwrap_err();
        assert_eq!(strict.to_string(), "first: 1 is bad");
        let lenient = run(build(ANY, OnError::Raise)).unwrap_err();
        assert_eq!(lenient.to_string(), "second: 2 is bad");
    });
}

// feature: F03
#[test]
fn a_failure_share_applies_from_the_hundredth_item_on() {
    within_seconds(60, || {
        for order in [Order::Completion, Order::Input] {
            let build = |count, fails: fn(i64) -> bool| {
                let options = StageOptions::new("picky").on_error(share(0.1)).order(order);
                let pipeline = failing(PipelineBuilder::new(numbers(count)), options, fails);
                pipeline.threads(1).allow_total_loss()
            };
            // 99 items are too few to judge, even if all fail.
            assert_eq!(run(build(99, |_| true)).unwrap(), Vec::<i64>::new(), "{order:?}");
            let error = run(build(100, |_| true)).unwrap_err();
            assert!(error.to_string().contains("100 of 100 items failed"), "{error}");
            // A tenth may fail, even at the start.
            assert_eq!(run(build(200, |n| n < 20)).unwrap().len(), 180);
            assert_eq!(run(build(1000, |n| n % 10 == 9)).unwrap().len(), 900);
            assert!(run(build(1000, |n| n % 10 == 9 || n == 998)).is_err(), "101 of 1000");
        }
    });
}

// feature: F03
#[test]
fn a_failure_share_at_the_limit_is_accepted_for_any_grouping_of_items() {
    within_seconds(100, || {
        // A worker takes tiny items in groups; the items that succeeded count when one fails.
        for order in [Order::Completion, Order::Input] {
            for threads in [1, 4] {
                // In completion order, other workers may fail before the valid items of their groups are done: up to 64
                // for each worker.
                let policy = match order == Order::Input || threads == 1 {
                    true => share(0.5),
                    false => OnError::SkipShare { at_most: 0.55, after: 5000, at_end: false },
                };
                let options = StageOptions::new("picky").on_error(policy).order(order);
                let builder =
                    failing(PipelineBuilder::new(numbers(50_000)), options, |n| n % 2 == 1);
                let left = run(builder.threads(threads));
                assert_eq!(left.unwrap().len(), 25_000, "{order:?}, {threads} threads");
            }
        }
        // The same in the other kinds of stages.
        let half = (0..5000).map(|n| if n % 2 == 1 { Err(bad_number(n)) } else { Ok(n) });
        assert_eq!(
            run(PipelineBuilder::from_stream(stream::iter(half)).on_error(share(0.5)))
                .unwrap()
                .len(),
            2500
        );
        let options = StageOptions::new("wait").on_error(share(0.5)).order(Order::Input);
        let waits = PipelineBuilder::new(numbers(5000)).map_async(options, |n| async move {
            if n % 2 == 1 { Err(bad_number(n)) } else { Ok(n) }
        });
        assert_eq!(run(waits).unwrap().len(), 2500);
        let options = StageOptions::new("write").on_error(share(0.5));
        let fills = PipelineBuilder::new(numbers(500)).fill(options, layout(10), || {
            Ok(WriteNumber { fails: |n| n % 2 == 1, panics: |_| false })
        });
        let samples: usize = delivered(fills).iter().map(spdl_core::Batch::len).sum();
        assert_eq!(samples, 250);
    });
}

// feature: F03
#[test]
fn a_failure_share_is_checked_again_at_the_end() {
    within_seconds(60, || {
        // At the last failure there are fewer than 100 items, but not at the end.
        let fails = |n| n < 50;
        let build = |count| {
            let options = StageOptions::new("picky").on_error(share(0.2));
            failing(PipelineBuilder::new(numbers(count)), options, fails)
                .threads(1)
                .build()
                .unwrap()
        };
        let (items, error) = before_error(build(150));
        assert_eq!(items, (50..150).collect::<Vec<_>>(), "all valid items are delivered first");
        assert_eq!((error.kind(), error.stage()), (ErrorKind::TooManyFailures, Some("picky")));
        assert!(error.to_string().contains("50 of 150 items failed"), "{error}");
        assert_eq!(build(250).collect::<Result<Vec<_>>>().unwrap().len(), 200);
    });
}

// feature: F03
#[test]
fn an_invalid_failure_share_is_refused_when_the_pipeline_is_built() {
    for wrong in [0.0, -0.1, 1.01, f64::NAN, f64::INFINITY] {
        let whole = PipelineBuilder::new(numbers(1)).on_error(share(wrong));
        assert_eq!(whole.build().unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong}");
        let options = StageOptions::new("picky").on_error(share(wrong));
        let own = failing(PipelineBuilder::new(numbers(1)), options, |_| false);
        let error = own.build().unwrap_err();
        assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidArgument, Some("picky")));
    }
    assert!(PipelineBuilder::new(numbers(1)).on_error(share(1.0)).build().is_ok());
}

// promise: R9
#[test]
fn an_epoch_of_which_every_sample_failed_is_an_error_with_the_first_failure() {
    within_seconds(60, || {
        for (threads, order) in [(1, Order::Input), (4, Order::Input), (4, Order::Completion)] {
            let build = |fails: fn(i64) -> bool| {
                let options = StageOptions::new("decode").on_error(ANY).order(order);
                failing(PipelineBuilder::new(numbers(50)), options, fails).threads(threads)
            };
            let mut pipeline = build(|_| true).epochs(0..3).build().unwrap();
            let error = pipeline.next().unwrap().unwrap_err();
            assert_eq!((error.kind(), error.stage()), (ErrorKind::Corrupt, Some("decode")));
            let expected =
                "epoch 0 delivered no sample, and 50 samples failed; first failure: 0 is bad";
            assert_eq!(error.message(), expected);
            assert!(pipeline.next().is_none(), "the error ends the pipeline");
            assert!(pipeline.statistics().dropped_total >= 50);
            // One sample of the epoch is enough.
            assert_eq!(run(build(|n| n != 7)).unwrap(), [7]);
            assert_eq!(build(|_| true).allow_total_loss().epochs(0..2).build().unwrap().count(), 0);
        }
        // An epoch without samples, and an epoch of which all samples were filtered out, end normally.
        assert_eq!(
            run(failing(PipelineBuilder::new(numbers(0)), "decode", |_| true)).unwrap().len(),
            0
        );
        let filtered = PipelineBuilder::new(numbers(9)).filter("none", |_| Ok(false));
        assert_eq!(run(filtered.on_error(ANY)).unwrap().len(), 0);
    });
}

// promise: R9
#[test]
fn total_loss_is_found_in_batches_in_later_epochs_and_with_several_sources() {
    within_seconds(60, || {
        let fills = |fails: fn(i64) -> bool| {
            let write = move || Ok(WriteNumber { fails, panics: |_| false });
            PipelineBuilder::new(numbers(20)).fill("write", layout(8), write).on_error(ANY)
        };
        let error = fills(|_| true).build().unwrap().next().unwrap().unwrap_err();
        assert!(error.message().contains("20 samples failed"), "{error}");
        // Three valid samples do not fill a batch, and `drop_last` leaves them out.
        let write = || Ok(WriteNumber { fails: |n| n > 2, panics: |_| false });
        let left_out = PipelineBuilder::new(numbers(20));
        let left_out = left_out.fill("write", layout(8).drop_last(true), write).on_error(ANY);
        let error = left_out.build().unwrap().next().unwrap().unwrap_err();
        assert!(error.message().contains("17 samples failed"), "{error}");

        // The first epoch is delivered, the second one fails.
        let tried = AtomicU64::new(0);
        let later = PipelineBuilder::new(numbers(10)).map("read", move |n| {
            if tried.fetch_add(1, Ordering::SeqCst) < 10 { Ok(n) } else { Err(bad_number(n)) }
        });
        let pipeline = later.epochs(0..3).on_error(ANY).deterministic().threads(1);
        let (items, error) = before_error(pipeline.build().unwrap());
        assert_eq!(items.len(), 10);
        assert!(error.message().starts_with("epoch 1 delivered no sample"), "{error}");

        let two = [PipelineBuilder::new(numbers(5)), PipelineBuilder::new(numbers(5))];
        let merged = PipelineBuilder::merge(two, spdl_core::stage::RoundRobin::default());
        let error = run(failing(merged, "read", |_| true).on_error(ANY)).unwrap_err();
        assert!(error.message().contains("10 samples failed"), "{error}");
    });
}

// promise: R9
#[test]
fn samples_that_are_taken_make_room_for_later_ones() {
    within_seconds(60, || {
        let all = 2 * MAX_DROPPED_LISTED as i64;
        let read = failing(PipelineBuilder::new(numbers(all)), "read", |n| n % 100 != 0);
        let mut pipeline = read.on_error(ANY).deterministic().build().unwrap();
        let (mut delivered, mut taken) = (0, 0);
        while let Some(number) = pipeline.next() {
            number.unwrap();
            delivered += 1;
            taken += pipeline.take_dropped().len() as i64;
        }
        taken += pipeline.take_dropped().len() as i64;
        assert_eq!((delivered, taken), (all / 100, all - all / 100));
        let statistics = pipeline.statistics();
        assert_eq!(statistics.dropped.len(), MAX_DROPPED_LISTED);
        assert_eq!(statistics.dropped_total as i64, taken);
    });
}

#[test]
fn each_dropped_sample_is_listed_with_the_batch_that_it_precedes() {
    within_seconds(60, || {
        let mut lists = Vec::new();
        for threads in [1, 4] {
            let read = failing(PipelineBuilder::new(numbers(100)), "read", |n| n % 10 == 3);
            let write = || Ok(WriteNumber { fails: |n| n % 10 == 7, panics: |_| false });
            let pipeline = read.fill("write", layout(6), write).on_error(ANY).epochs(0..2);
            let mut pipeline = pipeline.threads(threads).deterministic().build().unwrap();
            let mut listed = Vec::new();
            let mut position = 0;
            while let Some(batch) = pipeline.next() {
                let batch = batch.unwrap();
                let end = *batch.ids().last().unwrap();
                let dropped = pipeline.take_dropped();
                assert!(dropped.iter().all(|dropped| dropped.id < end), "{dropped:?}, {end:?}");
                position += batch.len() + dropped.len();
                listed.push(dropped);
            }
            listed.push(pipeline.take_dropped());
            position += listed.last().unwrap().len();
            assert_eq!(position, 200, "delivered and dropped samples");
            let all = listed.concat();
            assert_eq!(all, pipeline.statistics().dropped);
            let counts = pipeline.statistics().dropped_counts;
            let counts: Vec<_> = counts.iter().map(|it| (&*it.stage, it.kind, it.count)).collect();
            assert_eq!(
                counts,
                [("read", ErrorKind::Corrupt, 20), ("write", ErrorKind::Corrupt, 20)]
            );
            assert_eq!(pipeline.take_dropped(), []);
            lists.push(listed);
        }
        assert_eq!(lists[0], lists[1], "the lists do not depend on the threads");
    });
}

// Items delivered before the error.

/// A pipeline with several kinds of stages that ends with a failure at sample 300.
fn fails_at_300(threads: usize) -> Pipeline<i64> {
    let dawdling = |n| {
        sleep_by_number(n);
        Ok(n)
    };
    let builder = PipelineBuilder::new(numbers(100_000))
        .map("before", dawdling)
        .map("fails", |n| {
            sleep_by_number(n + 1);
            if n == 300 { Err(bad_number(n)) } else { Ok(n) }
        })
        .map_async("wait", |n| async move { Ok(n) })
        .map("after", dawdling);
    builder.threads(threads).deterministic().build().unwrap()
}

// feature: C03, F05
#[test]
fn in_order_exactly_the_items_before_a_failure_are_delivered() {
    within_seconds(100, || {
        for threads in 1..=8 {
            let (items, error) = before_error(fails_at_300(threads));
            assert_eq!(items, (0..300).collect::<Vec<_>>(), "{threads} threads");
            assert_eq!(error.to_string(), "fails: 300 is bad");
        }
    });
}

// feature: C03
#[test]
fn in_order_items_grouped_with_a_failure_are_delivered_only_before_it() {
    within_seconds(100, || {
        // A worker takes tiny items in groups, so some items follow the failure in its group.
        for threads in 1..=8 {
            let builder = failing(PipelineBuilder::new(numbers(100_000)), "fails", |n| n == 5000);
            let pipeline = builder.map("after", Ok).threads(threads).deterministic();
            let (items, error) = before_error(pipeline.build().unwrap());
            assert_eq!(items, (0..5000).collect::<Vec<_>>(), "{threads} threads");
            assert_eq!(error.to_string(), "fails: 5000 is bad");
        }
    });
}

// feature: C03, F05
#[test]
fn in_order_exactly_the_items_before_an_async_failure_are_delivered() {
    within_seconds(100, || {
        for threads in [1, 4] {
            let builder = PipelineBuilder::new(numbers(100_000))
                .map_async(StageOptions::new("fails").concurrency(16), |n| async move {
                    if n == 300 { Err(bad_number(n)) } else { Ok(n) }
                })
                .map("after", |n| {
                    sleep_by_number(n);
                    Ok(n)
                });
            let pipeline = builder.threads(threads).deterministic().build().unwrap();
            assert_eq!(before_error(pipeline).0, (0..300).collect::<Vec<_>>());
        }
    });
}

// feature: C03, F02
#[test]
fn in_order_the_budget_counts_failures_in_item_order() {
    within_seconds(100, || {
        for threads in 1..=8 {
            // The first failure is the slowest; later failures must not use the budget before it.
            let builder = PipelineBuilder::new(numbers(5000)).map("fails", |n| {
                if n == 50 {
                    std::thread::sleep(Duration::from_millis(3));
                }
                sleep_by_number(n);
                if n % 50 == 0 && n > 0 { Err(bad_number(n)) } else { Ok(n) }
            });
            let pipeline = builder.on_error(at_most(3)).threads(threads).deterministic();
            let (items, error) = before_error(pipeline.build().unwrap());
            let good: Vec<i64> = (0..200).filter(|&n| n % 50 != 0 || n == 0).collect();
            assert_eq!(items, good, "{threads} threads");
            let last = error.failed_item().unwrap();
            assert!(last.to_string().contains("200 is bad"), "{error}");
        }
    });
}

// feature: F05
#[test]
fn items_after_a_failing_stage_are_completed_and_delivered() {
    within_seconds(60, || {
        // The stage after the failing one waits until the failure has happened.
        let failed = Arc::new(AtomicUsize::new(0));
        let (sees, tells) = (Arc::clone(&failed), failed);
        let pipeline = PipelineBuilder::new(numbers(1_000_000))
            .map(StageOptions::new("fails").concurrency(1).queue(64), move |n| {
                if n == 20 {
                    tells.fetch_add(1, Ordering::SeqCst);
                    return Err(bad_number(n));
                }
                Ok(n)
            })
            .map(StageOptions::new("held").dedicated(), move |n| {
                until("the failure has happened", || sees.load(Ordering::SeqCst) > 0);
                Ok(n)
            })
            .batch("batch", 8, false)
            .build()
            .unwrap();
        let (batches, error) = before_error(pipeline);
        assert_eq!(batches.concat(), (0..20).collect::<Vec<_>>(), "with the incomplete batch");
        assert_eq!(error.to_string(), "fails: 20 is bad");
    });
}

// feature: F07
#[test]
fn failures_of_two_stages_are_one_error_with_both() {
    within_seconds(60, || {
        // Both fail at the same time: each waits until the other is about to fail. Items are slow
        // and therefore taken singly, so that the second stage has an item while the first one
        // waits.
        let about_to = Arc::new(AtomicUsize::new(0));
        let fails = |name: &'static str, at: i64| {
            let about_to = Arc::clone(&about_to);
            let work = move |n| {
                std::thread::sleep(Duration::from_millis(1));
                if n == at {
                    about_to.fetch_add(1, Ordering::SeqCst);
                    until("both are about to fail", || about_to.load(Ordering::SeqCst) == 2);
                    return Err(Error::new(ErrorKind::User, format!("{name} failed")));
                }
                Ok(n)
            };
            (StageOptions::new(name).dedicated(), work)
        };
        let ((first, first_work), (second, second_work)) = (fails("first", 9), fails("second", 2));
        let pipeline = PipelineBuilder::new(numbers(1_000_000))
            .map(first, first_work)
            .map(second, second_work)
            .build()
            .unwrap();
        let (_, error) = before_error(pipeline);
        assert_eq!(error.others().len(), 1, "{error:?}");
        let mut stages = [error.stage().unwrap(), error.others()[0].stage().unwrap()];
        stages.sort_unstable();
        assert_eq!(stages, ["first", "second"]);
        let report = error.report();
        assert!(report.contains("first failed") && report.contains("second failed"), "{report}");
    });
}

/// Numbers with a fatal failure among them.
#[derive(Debug)]
struct Broken;
impl Source for Broken {
    type Item = i64;
    fn open(&self, _: Cursor) -> Result<BoxStream<'static, Result<i64>>> {
        let items = (0..20).map(|n| match n {
            5 => Err(bad_number(5)),
            10 => Err(Error::new(ErrorKind::Truncated, "the index ends").fatal()),
            _ => Ok(n),
        });
        Ok(stream::iter(items).boxed())
    }
}

// feature: F06
#[test]
fn a_fatal_failure_ends_the_pipeline_for_any_policy() {
    within_seconds(60, || {
        let mut pipeline = PipelineBuilder::new(Broken)
            .map("pass", Ok)
            .on_error(ANY)
            .deterministic()
            .build()
            .unwrap();
        let mut items = Vec::new();
        let error = loop {
            match pipeline.next().unwrap() {
                Ok(n) => items.push(n),
                Err(error) => break error,
            }
        };
        assert_eq!(items, [0, 1, 2, 3, 4, 6, 7, 8, 9]);
        assert_eq!((error.kind(), error.stage()), (ErrorKind::Truncated, Some("source")));
        assert!(error.is_fatal() && pipeline.next().is_none());
        assert_eq!(pipeline.statistics().dropped_total, 1, "a fatal failure is not skipped");
        // A fatal failure of a stage.
        let fatal = |n| if n == 3 { Err(bad_number(n).fatal()) } else { Ok(n) };
        let builder = PipelineBuilder::new(numbers(10)).map("fatal", fatal).on_error(ANY);
        let (items, _) = before_error(builder.deterministic().build().unwrap());
        assert_eq!(items, [0, 1, 2]);
    });
}

// Listeners.

// promise: CORE4, R9
#[test]
fn each_dropped_sample_is_reported_once_when_it_is_dropped() {
    within_seconds(60, || {
        let reported = Arc::new(Mutex::new(Vec::new()));
        let (list, also) = (Arc::clone(&reported), Arc::new(AtomicU64::new(0)));
        let counter = Arc::clone(&also);
        let builder = failing(PipelineBuilder::new(numbers(1000)), "first", |n| n % 10 == 1);
        let builder = builder.map_async("second", |n| async move {
            assert!(n % 10 != 2, "cannot wait for {n}");
            Ok(n)
        });
        let pipeline = builder
            .on_error(ANY)
            .on_drop(move |dropped| {
                list.lock().unwrap().push((
                    dropped.id.index,
                    dropped.stage.to_string(),
                    dropped.kind,
                ));
                Ok(())
            })
            .on_drop(move |_| {
                counter.fetch_add(1, Ordering::SeqCst);
                Ok(())
            })
            .build()
            .unwrap();
        assert_eq!(pipeline.filter(Result::is_ok).count(), 800);
        let mut reported = reported.lock().unwrap().clone();
        reported.sort_by_key(|(index, ..)| *index);
        let expected: Vec<_> = (0..1000)
            .filter_map(|n| match n % 10 {
                1 => Some((n, "first".to_owned(), ErrorKind::Corrupt)),
                2 => Some((n, "second".to_owned(), ErrorKind::Panicked)),
                _ => None,
            })
            .collect();
        assert_eq!(reported, expected);
        assert_eq!(also.load(Ordering::SeqCst), 200, "every listener is called");
    });
}

// promise: CORE4
#[test]
fn an_error_or_panic_of_a_listener_ends_the_pipeline() {
    within_seconds(60, || {
        for panics in [false, true] {
            let builder = failing(PipelineBuilder::new(numbers(1_000_000)), "picky", |n| n == 30);
            let pipeline = builder
                .on_error(ANY)
                .on_drop(move |dropped| {
                    assert!(!panics, "no more room for {}", dropped.id);
                    Err(Error::new(ErrorKind::Io, "no more room"))
                })
                .deterministic()
                .build()
                .unwrap();
            let (items, error) = before_error(pipeline);
            assert_eq!(items, (0..30).collect::<Vec<_>>());
            let kind = if panics { ErrorKind::Panicked } else { ErrorKind::Io };
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains("no more room"), "{error}");
        }
    });
}

#[cfg(feature = "serde")]
// promise: CORE4, R9
#[test]
fn the_quarantine_list_has_a_line_for_each_dropped_sample() {
    use spdl_core::observe::Quarantine;
    within_seconds(60, || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.jsonl");
        for _ in 0..2 {
            let builder = failing(PipelineBuilder::new(numbers(50)), "picky", |n| n % 10 == 4);
            let builder = builder.on_error(ANY).quarantine(Quarantine::append(&path).unwrap());
            assert_eq!(run(builder).unwrap().len(), 45);
        }
        let list = Quarantine::read(&path).unwrap();
        assert!(list.damaged_lines.is_empty());
        assert_eq!(list.entries.len(), 10, "the second run appends to the list");
        let mut first: Vec<_> = list.entries[..5].iter().map(|entry| entry.index).collect();
        first.sort_unstable();
        assert_eq!(first, [4, 14, 24, 34, 44]);
        let entry = list.entries.iter().find(|entry| entry.index == 4).unwrap();
        assert_eq!((entry.stage.as_str(), entry.kind), ("picky", ErrorKind::Corrupt));
        assert_eq!((entry.message.as_str(), entry.epoch), ("4 is bad", 0));
        assert!(entry.time.ends_with('Z'), "{}", entry.time);
    });
}

// promise: R9
#[cfg(feature = "serde")]
#[test]
fn an_unwritable_quarantine_list_ends_the_pipeline_unless_it_is_lenient() {
    use spdl_core::observe::Quarantine;
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    within_seconds(60, || {
        let build = |list| {
            let builder = failing(PipelineBuilder::new(numbers(50)), "picky", |n| n == 4);
            builder.on_error(ANY).quarantine(list)
        };
        let error = run(build(Quarantine::to_writer(Full))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert_eq!(run(build(Quarantine::to_writer(Full).lenient())).unwrap().len(), 49);
    });
}

// Panics and exhausted iterators.

// feature: F01
#[test]
fn reading_an_exhausted_iterator_is_an_ordinary_failure() {
    within_seconds(60, || {
        // In some other loaders, such a failure hangs the pipeline.
        let builder = PipelineBuilder::new(numbers(10)).map("next", |n| {
            let first = (0..n % 2).next();
            first.ok_or_else(|| Error::new(ErrorKind::User, "the iterator has ended"))
        });
        assert_eq!(run(builder.on_error(ANY)).unwrap(), vec![0; 5]);
    });
}

// Retries.

/// Fails with a transient error the first two times for each number, and always for 13.
#[derive(Default)]
struct Flaky {
    seen: Mutex<std::collections::HashMap<i64, u32>>,
}
impl Flaky {
    fn ask(&self, n: i64) -> Result<i64> {
        let mut seen = self.seen.lock().unwrap();
        let times = seen.entry(n).or_default();
        *times += 1;
        match n {
            13 => Err(Error::new(ErrorKind::Timeout, "too slow")),
            17 => Err(bad_number(17)),
            _ if *times <= 2 => Err(Error::new(ErrorKind::Unavailable, "come back later")),
            _ => Ok(n),
        }
    }
    fn calls(&self) -> u32 {
        self.seen.lock().unwrap().values().sum()
    }
}

fn quick() -> Retry {
    Retry::default().attempts(4).first_delay(Duration::from_micros(200)).jitter(0.0)
}

// promise: CORE4
#[test]
fn a_cpu_stage_retries_transient_failures() {
    within_seconds(60, || {
        for order in [Order::Completion, Order::Input] {
            let (flaky, retries) = (Arc::new(Flaky::default()), Counter::default());
            let (asked, counter) = (Arc::clone(&flaky), retries.clone());
            let pipeline = PipelineBuilder::new(numbers(40))
                .stage(StageOptions::new("ask").order(order), move || {
                    let flaky = Arc::clone(&asked);
                    Ok(Retried::new(stage_fn(move |n| flaky.ask(n)), quick())?
                        .count_retries(&counter))
                })
                .threads(2)
                .on_error(ANY)
                .build()
                .unwrap();
            let monitor = pipeline.monitor();
            let mut items: Vec<i64> = pipeline.map(Result::unwrap).collect();
            if order == Order::Completion {
                items.sort_unstable();
            }
            assert_eq!(items, (0..40).filter(|&n| n != 13 && n != 17).collect::<Vec<_>>());
            // 38 numbers take three attempts, 13 takes four, 17 takes one.
            assert_eq!(flaky.calls(), 38 * 3 + 4 + 1);
            assert_eq!(retries.get(), 38 * 2 + 3);
            assert_eq!(monitor.statistics().stages[1].retries, retries.get());
            let dropped = monitor.statistics().dropped;
            assert_eq!(dropped[0].reason, "too slow (after 4 attempts)");
            assert_eq!(dropped[1].reason, "17 is bad");
        }
    });
}

struct Ask(Arc<Flaky>);
#[async_trait]
impl AsyncStage<i64> for Ask {
    type Out = i64;
    async fn process(&self, n: i64, _: &AsyncContext) -> Result<i64> {
        self.0.ask(n)
    }
}

// promise: CORE4
#[test]
fn an_async_stage_retries_transient_failures() {
    within_seconds(60, || {
        let flaky = Arc::new(Flaky::default());
        let stage = Retried::new(Ask(Arc::clone(&flaky)), quick()).unwrap();
        let retries = stage.retries();
        let builder = PipelineBuilder::new(numbers(40)).async_stage("ask", stage);
        let pipeline = builder.on_error(ANY).deterministic().build().unwrap();
        let monitor = pipeline.monitor();
        let items: Vec<i64> = pipeline.map(Result::unwrap).collect();
        assert_eq!(items, (0..40).filter(|&n| n != 13 && n != 17).collect::<Vec<_>>());
        assert_eq!((flaky.calls(), retries.get()), (38 * 3 + 4 + 1, 38 * 2 + 3));
        assert_eq!(monitor.statistics().stages[1].retries, retries.get());
    });
}

/// Later items are forwarded while an item waits for its retry.
#[test]
fn while_a_stage_waits_for_a_retry_its_worker_runs_later_stages() {
    within_seconds(60, || {
        // The only worker waits for a long time with one item; later stages continue.
        let patient =
            quick().first_delay(Duration::from_secs(3600)).most_delay(Duration::from_secs(3600));
        let waits = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&waits);
        let mut pipeline = PipelineBuilder::new(numbers(40))
            .stage(StageOptions::new("ask").queue(64), move || {
                let counter = Arc::clone(&counter);
                let ask = stage_fn(move |n: i64| {
                    if n == 20 {
                        counter.fetch_add(1, Ordering::SeqCst);
                        return Err(Error::new(ErrorKind::Unavailable, "come back later"));
                    }
                    Ok(n)
                });
                Retried::new(ask, patient)
            })
            .map("behind", Ok)
            .prefetch(1)
            .threads(1)
            .build()
            .unwrap();
        // Outputs that the worker made before the wait are delivered,
        let first = pipeline.next().unwrap().unwrap();
        until("the item waits for its retry", || waits.load(Ordering::SeqCst) == 1);
        let mut items = vec![first];
        // and also those from the same group as the waiting item.
        items.extend(pipeline.by_ref().take(19).map(Result::unwrap));
        assert_eq!(items, (0..20).collect::<Vec<_>>());
        assert!(pipeline.next_timeout(Duration::from_millis(20)).is_pending());
        let begun = Instant::now();
        drop(pipeline);
        assert!(begun.elapsed() < Duration::from_secs(5), "the wait ends with the pipeline");
    });
}

// promise: CORE4
#[test]
fn a_wait_for_a_retry_ends_with_the_pipeline() {
    within_seconds(60, || {
        let hour = Duration::from_secs(3600);
        let patient = Retry::default().first_delay(hour).most_delay(hour);
        for waits in [false, true] {
            let asked = Arc::new(AtomicUsize::new(0));
            let counter = Arc::clone(&asked);
            let ask = move |_: i64| -> Result<i64> {
                counter.fetch_add(1, Ordering::SeqCst);
                Err(Error::new(ErrorKind::Unavailable, "come back later"))
            };
            struct Unavailable<F>(F);
            #[async_trait]
            impl<F: Fn(i64) -> Result<i64> + Send + Sync + 'static> AsyncStage<i64> for Unavailable<F> {
                type Out = i64;
                async fn process(&self, n: i64, _: &AsyncContext) -> Result<i64> {
                    (self.0)(n)
                }
            }
            let builder = PipelineBuilder::new(numbers(4));
            let builder = if waits {
                builder.async_stage("ask", Retried::new(Unavailable(ask), patient).unwrap())
            } else {
                let ask = Arc::new(ask);
                builder.stage("ask", move || {
                    let ask = Arc::clone(&ask);
                    Retried::new(stage_fn(move |n| ask(n)), patient)
                })
            };
            let mut pipeline = builder.on_error(ANY).threads(2).build().unwrap();
            assert!(pipeline.next_timeout(Duration::from_millis(20)).is_pending());
            until("the item waits for its retry", || asked.load(Ordering::SeqCst) >= 2);
            let begun = Instant::now();
            pipeline.stop();
            assert!(begun.elapsed() < Duration::from_secs(5));
            assert!(pipeline.next().is_none(), "an interrupted item is not a failure");
            assert_eq!(pipeline.statistics().dropped_total, 0);
        }
    });
}

/// Emits a number twice, and fails in between at the first attempt.
#[derive(Default)]
struct HalfWay(std::collections::HashSet<i64>);
impl Stage<i64> for HalfWay {
    type Out = i64;
    fn process(&mut self, n: i64, cx: &mut StageContext<'_, i64>) -> Result<()> {
        cx.emit(n)?;
        if self.0.insert(n) {
            return Err(Error::new(ErrorKind::Timeout, "half way"));
        }
        cx.emit(n)
    }
}

// promise: CORE4
#[test]
fn outputs_of_a_failed_attempt_are_not_delivered_twice() {
    within_seconds(60, || {
        let builder = PipelineBuilder::new(numbers(30))
            .stage("half", || Retried::new(HalfWay::default(), quick()));
        let expected: Vec<i64> = (0..30).flat_map(|n| [n, n]).collect();
        assert_eq!(run(builder.threads(1).deterministic()).unwrap(), expected);
    });
}
