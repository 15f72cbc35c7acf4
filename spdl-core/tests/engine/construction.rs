//! Building pipelines: sources, stages, batches, merges, routes, epochs and definitions.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{
    bad_number, before_error, delivered, delivered_sorted, numbers, sleep_by_number, until,
};
use crate::common::{layout, within_seconds};
use futures_util::{StreamExt, stream};
use spdl_core::pipeline::path;
use spdl_core::source::Cursor;
use spdl_core::stage::{
    Aggregator, Arrival, Choice, MergePolicy, RoundRobin, WeightedMerge, ZipLength,
};
use spdl_core::{
    AsyncStage, BoxStream, ErrorKind, OnError, Order, PipelineBuilder, Result, SampleId, Source,
    Stage, StageContext, StageOptions,
};

/// Numbers that encode their epoch as `epoch × 1000 + index`. The epochs have `counts` items each,
/// in a cycle.
#[derive(Debug, Clone)]
struct Epochs(&'static [u64]);

impl Source for Epochs {
    type Item = u64;
    fn open(&self, at: Cursor) -> Result<BoxStream<'static, Result<u64>>> {
        let count = self.0[at.epoch as usize % self.0.len()];
        Ok(stream::iter((0..count).map(move |index| Ok(at.epoch * 1000 + index))).boxed())
    }
}

fn epochs(counts: &'static [u64]) -> PipelineBuilder<u64> {
    PipelineBuilder::new(Epochs(counts))
}

/// The items of each epoch, from `next_epoch`.
fn by_epoch<T: Send + 'static>(builder: PipelineBuilder<T>) -> Vec<Vec<T>> {
    let mut pipeline = builder.build().unwrap();
    let mut all = Vec::new();
    while let Some(epoch) = pipeline.next_epoch() {
        all.push(epoch.collect::<Result<Vec<T>>>().unwrap());
    }
    all
}

fn sorted<T: Ord>(mut items: Vec<T>) -> Vec<T> {
    items.sort_unstable();
    items
}

// Sources.

// feature: B02
#[test]
fn an_iterator_is_a_source_and_may_block_on_its_thread() {
    within_seconds(30, || {
        let threads = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&threads);
        let slow = (0..20).inspect(move |_| {
            std::thread::sleep(Duration::from_millis(1));
            seen.lock().unwrap().push(std::thread::current().name().map(str::to_owned));
        });
        // The async stage uses the runtime, which the sleeps of the iterator must not block.
        let builder = PipelineBuilder::from_iter(slow).map_async("wait", |n| async move { Ok(n) });
        assert_eq!(delivered_sorted(builder), (0..20).collect::<Vec<_>>());
        let threads = threads.lock().unwrap();
        assert!(threads.iter().all(|name| name.as_deref() == Some("spdl-source")), "{threads:?}");
    });
}

// feature: B02
#[test]
fn a_stream_is_a_source_whose_errors_are_item_failures() {
    within_seconds(30, || {
        let build = |on_error| {
            let items = (0..10).map(|n| if n == 4 { Err(bad_number(n)) } else { Ok(n) });
            PipelineBuilder::from_stream(stream::iter(items)).on_error(on_error)
        };
        let good: Vec<i64> = (0..10).filter(|&n| n != 4).collect();
        assert_eq!(delivered(build(OnError::SKIP)), good);
        let (items, error) = before_error(build(OnError::Raise).build().unwrap());
        assert_eq!(items, [0, 1, 2, 3]);
        assert_eq!(error.to_string(), "source: 4 is bad");
    });
}

// feature: B02, M07
#[test]
fn a_pipeline_is_a_source_whose_error_is_fatal() {
    within_seconds(30, || {
        let inner =
            || PipelineBuilder::from_iter(0..10).map("double", |n| Ok(n * 2)).deterministic();
        let outer = PipelineBuilder::from_pipeline(inner().build().unwrap())
            .map("add", |n| Ok(n + 1))
            .deterministic();
        assert_eq!(delivered(outer), (0..10).map(|n| n * 2 + 1).collect::<Vec<_>>());

        let fails = inner().map("fails", |n| if n == 8 { Err(bad_number(8)) } else { Ok(n) });
        let outer = PipelineBuilder::from_pipeline(fails.build().unwrap())
            .on_error(OnError::SKIP)
            .deterministic();
        let (items, error) = before_error(outer.build().unwrap());
        assert_eq!(items, [0, 2, 4, 6]);
        assert_eq!(error.to_string(), "fails: 8 is bad", "the innermost stage is named");
    });
}

#[test]
fn a_source_of_one_epoch_is_refused_for_several_epochs() {
    within_seconds(30, || {
        let sources = || {
            let inner = PipelineBuilder::from_iter(0..3).build().unwrap();
            [
                PipelineBuilder::from_iter(0..3),
                PipelineBuilder::from_stream(stream::iter((0..3).map(Ok))),
                PipelineBuilder::from_pipeline(inner),
            ]
        };
        for once in sources() {
            let error = once.epochs(0..2).build().unwrap_err();
            assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidArgument, Some("source")));
        }
        for once in sources() {
            assert!(once.epochs(0..).build().is_err());
        }
        for once in sources() {
            // A single epoch of any number.
            assert_eq!(delivered_sorted(once.epochs(5..6)), [0, 1, 2]);
        }
    });
}

// Stages that change the number of items.

// feature: B03, B05
#[test]
fn stages_map_filter_multiply_flatten_and_wait() {
    within_seconds(30, || {
        let builder = PipelineBuilder::from_iter(0..10)
            .map("square", |n| Ok(n * n))
            .filter("even", |n| Ok(n % 2 == 0))
            .flat_map("twice", |n| [Ok(n), Ok(n + 1)])
            .map_async("wait", |n| async move { Ok(n * 10) })
            .batch("batch", 4, false)
            .unbatch("unbatch")
            .deterministic();
        assert_eq!(delivered(builder), [0, 10, 40, 50, 160, 170, 360, 370, 640, 650]);
    });
}

// feature: B03, C09
#[test]
fn outputs_of_a_generator_are_forwarded_immediately() {
    within_seconds(30, || {
        let ended = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&ended);
        struct Tells(Arc<AtomicBool>);
        impl Drop for Tells {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let mut pipeline = PipelineBuilder::from_iter([0])
            .flat_map("endless", move |start| {
                let tells = Tells(Arc::clone(&flag));
                (start..).map(move |n| {
                    let _ = &tells;
                    Ok(n)
                })
            })
            .threads(1)
            .build()
            .unwrap();
        for n in 0..1000 {
            assert_eq!(pipeline.next().unwrap().unwrap(), n);
        }
        assert!(!ended.load(Ordering::SeqCst));
        drop(pipeline);
        assert!(ended.load(Ordering::SeqCst), "the generator is dropped with the pipeline");
    });
}

// feature: B03
#[test]
fn items_that_a_generator_yields_before_its_error_are_kept() {
    within_seconds(30, || {
        let builder = PipelineBuilder::from_iter(0..4)
            .flat_map("up to three", |n| {
                (0..4).map(
                    move |step| if step < 3 || n % 2 == 0 { Ok(n) } else { Err(bad_number(n)) },
                )
            })
            .on_error(OnError::SKIP)
            .deterministic();
        assert_eq!(delivered(builder), [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3]);
    });
}

// feature: B03
#[test]
fn a_filtered_item_is_not_a_failure() {
    within_seconds(30, || {
        let pipeline =
            PipelineBuilder::new(numbers(100)).filter("none", |_| Ok(false)).build().unwrap();
        let monitor = pipeline.monitor();
        assert_eq!(pipeline.count(), 0);
        let statistics = monitor.statistics();
        assert_eq!((statistics.dropped_total, statistics.stages[1].failures), (0, 0));
        assert_eq!((statistics.stages[1].items, statistics.stages[1].items_out), (100, 0));
    });
}

// Batches and aggregates.

// feature: B04
#[test]
fn the_last_items_of_an_epoch_are_an_incomplete_batch_or_left_out() {
    within_seconds(30, || {
        let batches = |drop_last| epochs(&[5, 3, 6]).batch("batch", 3, drop_last).epochs(0..3);
        let kept = by_epoch(batches(false).deterministic());
        assert_eq!(
            kept,
            [
                vec![vec![0, 1, 2], vec![3, 4]],
                vec![vec![1000, 1001, 1002]],
                vec![vec![2000, 2001, 2002], vec![2003, 2004, 2005]],
            ]
        );
        let mut pipeline = batches(true).deterministic().build().unwrap();
        let sizes: Vec<usize> = pipeline.by_ref().map(|batch| batch.unwrap().len()).collect();
        assert_eq!(sizes, [3, 3, 3, 3]);
        let statistics = pipeline.statistics();
        assert_eq!((statistics.left_out, statistics.dropped_total), (2, 0));
    });
}

/// Sums items up to a limit.
struct Sum {
    sum: u64,
}
impl Aggregator<u64> for Sum {
    type Out = u64;
    fn accumulate(&mut self, n: u64) -> Result<Option<u64>> {
        self.sum += n % 1000;
        Ok((self.sum >= 10).then(|| std::mem::take(&mut self.sum)))
    }
    fn flush(&mut self) -> Result<Option<u64>> {
        Ok((self.sum > 0).then(|| std::mem::take(&mut self.sum)))
    }
}

// feature: B14
#[test]
fn an_aggregator_is_new_in_every_epoch_and_every_build() {
    within_seconds(30, || {
        let made = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&made);
        let factory = Arc::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
            Ok(Sum { sum: 0 })
        });
        for _ in 0..2 {
            let factory = Arc::clone(&factory);
            // 0 + 1 + 2 + 3 + 4 = 10, then 5 + 6 = 11, and 7 remains.
            let sums = epochs(&[8]).aggregate("sum", move || factory()).epochs(0..3);
            assert_eq!(
                by_epoch(sums.deterministic()),
                [vec![10, 11, 7], vec![10, 11, 7], vec![10, 11, 7]]
            );
        }
        assert_eq!(made.load(Ordering::SeqCst), 2 * 3);
        // Some loaders carry items over into the next epoch or the next build.
        for _ in 0..2 {
            let builder =
                PipelineBuilder::new(spdl_core::DatasetSource::new((1..8).collect::<Vec<_>>()));
            let batches = builder.batch("batch", 3, true).epochs(0..2).deterministic();
            assert_eq!(
                by_epoch(batches),
                [[vec![1, 2, 3], vec![4, 5, 6]], [vec![1, 2, 3], vec![4, 5, 6]]]
            );
        }
    });
}

/// All items of an epoch in one list, slowly.
#[derive(Default)]
struct Everything(Vec<u64>);
impl Aggregator<u64> for Everything {
    type Out = Vec<u64>;
    fn accumulate(&mut self, n: u64) -> Result<Option<Vec<u64>>> {
        sleep_by_number(n as i64);
        self.0.push(n);
        Ok(None)
    }
    fn flush(&mut self) -> Result<Option<Vec<u64>>> {
        Ok(Some(std::mem::take(&mut self.0)))
    }
}

// feature: B04
#[test]
fn an_aggregate_has_one_instance_for_any_number_of_threads() {
    within_seconds(30, || {
        // With two instances there would be two lists per epoch.
        for threads in [1, 2, 8] {
            let builder = epochs(&[300, 7]).map("pass", Ok);
            let options = StageOptions::new("all").concurrency(4);
            let lists = builder.aggregate(options, || Ok(Everything::default()));
            let lists = by_epoch(lists.threads(threads).epochs(0..4));
            for (epoch, lists) in lists.into_iter().enumerate() {
                assert_eq!(lists.len(), 1, "{threads} threads");
                let count = [300, 7][epoch % 2];
                let start = epoch as u64 * 1000;
                assert_eq!(sorted(lists.concat()), (start..start + count).collect::<Vec<_>>());
            }
        }
    });
}

// feature: B04
#[test]
fn a_batch_size_of_zero_is_refused() {
    let error = PipelineBuilder::new(numbers(5)).batch("batch", 0, false).build().unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidArgument, Some("batch")));
}

// Merges.

// feature: M01
#[test]
fn a_merge_by_arrival_loses_nothing_and_waits_for_no_branch() {
    within_seconds(30, || {
        let gate = Arc::new(AtomicBool::new(false));
        let opened = Arc::clone(&gate);
        let held = StageOptions::new("held").concurrency(1);
        let held = PipelineBuilder::from_iter(1000..1010).map(held, move |n| {
            until("the gate is opened", || opened.load(Ordering::SeqCst));
            Ok(n)
        });
        let quick = PipelineBuilder::from_iter(0..500).map("quick", Ok);
        let mut pipeline =
            PipelineBuilder::merge([held, quick], Arrival).threads(2).build().unwrap();
        let mut items: Vec<i32> = pipeline.by_ref().take(500).map(Result::unwrap).collect();
        assert!(items.iter().all(|&n| n < 1000), "the fast branch does not wait");
        gate.store(true, Ordering::SeqCst);
        items.extend(pipeline.map(Result::unwrap));
        assert_eq!(sorted(items), (0..500).chain(1000..1010).collect::<Vec<_>>());
    });
}

// feature: M01
#[test]
fn a_merge_by_arrival_starves_no_branch() {
    within_seconds(30, || {
        // Every branch always has an item: each must be chosen again soon.
        let branch = |at: usize| PipelineBuilder::from_iter(std::iter::repeat(at));
        let mut pipeline = PipelineBuilder::merge((0..3).map(branch), Arrival).build().unwrap();
        let mut counts = [0; 3];
        for item in pipeline.by_ref().take(30_000) {
            counts[item.unwrap()] += 1;
        }
        assert!(counts.iter().all(|&count| count > 1000), "{counts:?}");
    });
}

// feature: M02, Q04
#[test]
fn round_robin_alternates_and_skips_ended_branches() {
    within_seconds(30, || {
        let branch = |tens: u64, count: u64| {
            PipelineBuilder::from_iter((0..count).map(move |n| tens * 10 + n))
        };
        let merged = PipelineBuilder::merge(
            [branch(1, 4), branch(2, 1), branch(3, 3)],
            RoundRobin::default(),
        );
        assert_eq!(delivered(merged), [10, 20, 30, 11, 31, 12, 32, 13]);
    });
}

// feature: M02
#[test]
fn a_weighted_merge_is_a_function_of_the_seed() {
    within_seconds(60, || {
        let order = |seed: u64, threads: usize| {
            let branch = |at: usize| {
                epochs(&[300]).map(&*format!("branch-{at}"), move |n| {
                    sleep_by_number(n as i64);
                    Ok((at, n))
                })
            };
            let policy = WeightedMerge::new([1.0, 2.0, 4.0]).unwrap();
            let merged = PipelineBuilder::merge((0..3).map(branch), policy);
            delivered(merged.seed(seed).epochs(0..2).threads(threads).deterministic())
        };
        let first = order(7, 1);
        assert_eq!(first.len(), 1800);
        assert_eq!(order(7, 4), first, "for any number of threads");
        assert_ne!(order(8, 4), first, "another seed has another order");
        let early = first[..200].iter().filter(|(at, _)| *at == 2).count();
        assert!((70..160).contains(&early), "{early} of the first 200 from the heaviest branch");
    });
}

/// Five items of each epoch, alternating between the branches.
#[derive(Debug, Default)]
struct FiveAnEpoch {
    taken: usize,
    epochs: Arc<Mutex<Vec<(u64, usize, u64)>>>,
}
impl MergePolicy for FiveAnEpoch {
    fn choose(&mut self, open: &[bool]) -> Choice {
        self.taken += 1;
        if self.taken > 5 {
            Choice::EndEpoch
        } else {
            Choice::Branch((self.taken - 1) % open.len())
        }
    }
    fn start_epoch(&mut self, epoch: u64, branches: usize, seed: u64) -> Result<()> {
        self.taken = 0;
        self.epochs.lock().unwrap().push((epoch, branches, seed));
        Ok(())
    }
}

// feature: M02
#[test]
fn a_custom_merge_policy_may_end_an_epoch_early() {
    within_seconds(30, || {
        let reported = Arc::default();
        let policy = FiveAnEpoch { taken: 0, epochs: Arc::clone(&reported) };
        let merged = PipelineBuilder::merge([epochs(&[100]), epochs(&[7])], policy);
        let mut pipeline = merged.epochs(0..3).seed(9).build().unwrap();
        let mut all = Vec::new();
        while let Some(epoch) = pipeline.next_epoch() {
            all.push(epoch.collect::<Result<Vec<u64>>>().unwrap());
        }
        let expected = [0, 1000, 2000].map(|epoch| [0, 0, 1, 1, 2].map(|n| epoch + n).to_vec());
        assert_eq!(all, expected);
        assert_eq!(pipeline.statistics().left_out, 3 * (107 - 5));
        // The policy starts the next epoch before it is known whether there is one.
        assert_eq!(reported.lock().unwrap()[..3], [(0, 2, 9), (1, 2, 9), (2, 2, 9)]);
    });
}

/// Always returns the same choice.
#[derive(Debug)]
struct Always(Choice);
impl MergePolicy for Always {
    fn choose(&mut self, _: &[bool]) -> Choice {
        self.0
    }
}

/// Panics when it chooses.
#[derive(Debug)]
struct Undecided;
impl MergePolicy for Undecided {
    fn choose(&mut self, _: &[bool]) -> Choice {
        panic!("panic of the test")
    }
}

// feature: M02
#[test]
fn an_invalid_choice_or_panic_of_a_merge_policy_ends_the_pipeline() {
    within_seconds(30, || {
        let branches = || [epochs(&[3]), epochs(&[5])];
        let beyond = PipelineBuilder::merge(branches(), Always(Choice::Branch(2)));
        let (items, error) = before_error(beyond.build().unwrap());
        assert_eq!((items, error.kind()), (vec![], ErrorKind::InvalidArgument));
        assert_eq!(error.stage(), Some("merge"));
        let ended = PipelineBuilder::merge(branches(), Always(Choice::Branch(0)));
        let (items, error) = before_error(ended.build().unwrap());
        assert_eq!((items, error.kind()), (vec![0, 1, 2], ErrorKind::InvalidArgument));
        let panics = PipelineBuilder::merge(branches(), Undecided);
        let (items, error) = before_error(panics.build().unwrap());
        assert_eq!((items, error.kind()), (vec![], ErrorKind::Panicked));
        let weights = PipelineBuilder::merge(branches(), WeightedMerge::new([1.0]).unwrap());
        assert_eq!(weights.build().unwrap_err().kind(), ErrorKind::InvalidArgument);
    });
}

// feature: M03
#[test]
fn a_merge_never_mixes_epochs_of_branches_of_different_depth_and_length() {
    within_seconds(60, || {
        for policy in 0..2 {
            let shallow = || epochs(&[3, 100, 1]);
            let deep = epochs(&[200, 1, 50])
                .map("a", |n| {
                    sleep_by_number(n as i64);
                    Ok(n + 300)
                })
                .map_async("b", |n| async move { Ok(n) })
                .filter("c", |_| Ok(true));
            let inner =
                PipelineBuilder::merge([shallow(), shallow().map("d", |n| Ok(n + 600))], Arrival);
            let merged = if policy == 0 {
                PipelineBuilder::merge([shallow(), deep, inner], Arrival)
            } else {
                PipelineBuilder::merge([shallow(), deep, inner], RoundRobin::default())
            };
            let all = by_epoch(merged.map("last", Ok).epochs(0..9).threads(3));
            assert_eq!(all.len(), 9);
            for (epoch, items) in all.into_iter().enumerate() {
                let shallow = [3, 100, 1][epoch % 3];
                let deep = [200, 1, 50][epoch % 3];
                let mut expected: Vec<u64> = (0..shallow).flat_map(|n| [n, n, n + 600]).collect();
                expected.extend(300..300 + deep);
                let expected: Vec<u64> =
                    sorted(expected).into_iter().map(|n| n + epoch as u64 * 1000).collect();
                assert_eq!(sorted(items), expected, "epoch {epoch}, policy {policy}");
            }
        }
    });
}

#[test]
fn branches_of_a_merge_have_separate_random_numbers() {
    within_seconds(30, || {
        struct Draw;
        impl Stage<u64> for Draw {
            type Out = u64;
            fn process(&mut self, _: u64, cx: &mut StageContext<'_, u64>) -> Result<()> {
                cx.emit(cx.rng().unit().to_bits())
            }
        }
        let branches = [epochs(&[100]), epochs(&[100])];
        let merged = PipelineBuilder::merge(branches, RoundRobin::default());
        let mut drawn = delivered_sorted(merged.stage("draw", || Ok(Draw)));
        drawn.dedup();
        assert_eq!(drawn.len(), 200);
    });
}

/// Numbers without end, and numbers that fail at 10.
fn endless_and_failing() -> [PipelineBuilder<i64>; 2] {
    let fails = |n| if n == 10 { Err(bad_number(n)) } else { Ok(n) };
    [
        PipelineBuilder::from_iter(1000..).map("endless", Ok),
        PipelineBuilder::from_iter(0..).map("fails", fails),
    ]
}

// feature: F09
#[test]
fn a_failed_branch_cancels_the_others_and_its_error_is_returned_once() {
    within_seconds(60, || {
        for threads in [1, 3] {
            let build = |builder: PipelineBuilder<i64>| {
                let (items, error) =
                    before_error(builder.threads(threads).deterministic().build().unwrap());
                assert_eq!(error.to_string(), "fails: 10 is bad");
                assert!(error.others().is_empty(), "{error:?}");
                items
            };
            let by_arrival = build(PipelineBuilder::merge(endless_and_failing(), Arrival));
            let of_failing: Vec<i64> = by_arrival.into_iter().filter(|&n| n < 1000).collect();
            assert_eq!(of_failing, (0..10).collect::<Vec<_>>(), "earlier items are delivered");
            // With a deterministic order, the items before the error are deterministic.
            let in_turn = PipelineBuilder::merge(endless_and_failing(), RoundRobin::default());
            let expected: Vec<i64> = (0..10).flat_map(|n| [1000 + n, n]).chain([1010]).collect();
            assert_eq!(build(in_turn), expected);
            let [endless, fails] = endless_and_failing();
            let pairs = endless.zip(fails).map("sum", |(a, b)| Ok(a + b));
            assert_eq!(build(pairs), (0..10).map(|n| 1000 + 2 * n).collect::<Vec<_>>());
        }
    });
}

#[test]
fn a_merge_that_skips_an_epoch_does_not_wait_if_a_branch_has_failed() {
    within_seconds(30, || {
        let silent = PipelineBuilder::from_stream(stream::pending::<Result<i64>>());
        let [_, fails] = endless_and_failing();
        let merged = PipelineBuilder::merge([silent, fails], Always(Choice::EndEpoch));
        let (items, error) = before_error(merged.build().unwrap());
        assert_eq!((items, error.to_string().as_str()), (vec![], "fails: 10 is bad"));
    });
}

#[test]
fn a_merge_without_branches_is_refused() {
    let none: [PipelineBuilder<u8>; 0] = [];
    let error = PipelineBuilder::merge(none, Arrival).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

// feature: M02
#[test]
fn a_zip_pairs_items_per_epoch_and_counts_left_out_items() {
    within_seconds(30, || {
        let letters = epochs(&[3, 5]).map("letters", |n| Ok(format!("n{n}")));
        let builder = epochs(&[5, 2]).zip(letters).epochs(0..2).deterministic();
        let mut pipeline = builder.build().unwrap();
        let mut all = Vec::new();
        while let Some(epoch) = pipeline.next_epoch() {
            all.push(epoch.collect::<Result<Vec<_>>>().unwrap());
        }
        let pair = |n: u64| (n, format!("n{n}"));
        assert_eq!(all, [vec![pair(0), pair(1), pair(2)], vec![pair(1000), pair(1001)]]);
        assert_eq!(pipeline.statistics().left_out, 2 + 3);
    });
}

#[test]
fn a_zip_of_several_pipelines_joins_an_item_of_each() {
    within_seconds(30, || {
        let branches = [epochs(&[5, 2]), epochs(&[3, 4]), epochs(&[4, 9])];
        let builder = PipelineBuilder::zip_all("lists", branches, ZipLength::Shortest);
        let mut pipeline = builder.epochs(0..2).deterministic().build().unwrap();
        let mut all = Vec::new();
        while let Some(epoch) = pipeline.next_epoch() {
            all.push(epoch.collect::<Result<Vec<_>>>().unwrap());
        }
        assert_eq!(
            all,
            [vec![vec![0; 3], vec![1; 3], vec![2; 3]], vec![vec![1000; 3], vec![1001; 3]]]
        );
        let statistics = pipeline.statistics();
        assert_eq!(statistics.left_out, 2 + 1 + 2 + 7);
        assert!(statistics.stages.iter().any(|stage| &*stage.name == "lists"));
    });
    let none: [PipelineBuilder<u8>; 0] = [];
    let error = PipelineBuilder::zip_all("zip", none, ZipLength::Shortest).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_zip_of_equal_lengths_fails_if_a_branch_has_more_items() {
    within_seconds(30, || {
        for lens in [[3, 3, 3], [3, 3, 4], [4, 3, 3], [0, 1, 0], [0, 0, 0], [1, 0, 0]] {
            let branches = lens.map(|len| PipelineBuilder::new(numbers(len)));
            let zip = PipelineBuilder::zip_all("zip", branches, ZipLength::Equal).deterministic();
            let items: Vec<_> = zip.build().unwrap().collect();
            let (first, last) = (lens.iter().min().unwrap(), lens.iter().max().unwrap());
            assert_eq!(items.iter().filter(|item| item.is_ok()).count() as i64, *first);
            let error = items.iter().find_map(|item| item.as_ref().err());
            assert_eq!(error.is_some(), first < last, "{lens:?}");
            if let Some(error) = error {
                assert_eq!(
                    (error.kind(), error.stage()),
                    (ErrorKind::InvalidArgument, Some("zip"))
                );
                assert!(error.message().contains("different numbers of items"), "{error}");
            }
        }
    });
}

// Routes.

/// Numbers by their remainder: dropped, doubled, forwarded, failed, or negated slowly.
fn routed(order: Order) -> PipelineBuilder<i64> {
    PipelineBuilder::new(numbers(500))
        .route(
            StageOptions::new("route").order(order),
            |n| Ok((n % 5) as usize),
            [
                path(|items: PipelineBuilder<i64>| items.filter("drop", |_| Ok(false))),
                path(|items: PipelineBuilder<i64>| items.flat_map("double", |n| [Ok(n), Ok(n)])),
                path(|items| items),
                path(|items: PipelineBuilder<i64>| {
                    items.map_async("fail", |n| async move { Err(bad_number(n)) })
                }),
                path(|items: PipelineBuilder<i64>| {
                    items
                        .map("sleep_by_number", |n| {
                            sleep_by_number(n);
                            Ok(n)
                        })
                        .map_async("negate", |n| async move { Ok(-n) })
                }),
            ],
        )
        .on_error(OnError::SKIP)
}

fn expected_of_routes(numbers: std::ops::Range<i64>) -> Vec<i64> {
    let of = |n: i64| match n % 5 {
        1 => vec![n, n],
        2 => vec![n],
        4 => vec![-n],
        _ => vec![],
    };
    numbers.flat_map(of).collect()
}

// feature: M04
#[test]
fn each_item_takes_the_path_that_the_router_chooses() {
    within_seconds(60, || {
        for threads in [1, 3] {
            let mut pipeline = routed(Order::Completion).threads(threads).build().unwrap();
            let items: Vec<i64> = pipeline.by_ref().map(Result::unwrap).collect();
            assert_eq!(sorted(items), sorted(expected_of_routes(0..500)));
            let statistics = pipeline.statistics();
            assert_eq!(statistics.dropped_total, 100);
            assert!(statistics.dropped.iter().all(|dropped| *dropped.stage == *"fail"));
        }
    });
}

// feature: M04
#[test]
fn a_route_can_restore_order_for_any_paths() {
    within_seconds(60, || {
        for threads in [1, 2, 8] {
            let builder = routed(Order::Input).threads(threads).epochs(0..3).deterministic();
            let all = by_epoch(builder);
            assert_eq!(all, vec![expected_of_routes(0..500); 3], "{threads} threads");
        }
    });
}

// feature: M06
#[test]
fn a_blocked_path_does_not_block_other_paths() {
    within_seconds(30, || {
        let gate = Arc::new(AtomicBool::new(false));
        let opened = Arc::clone(&gate);
        let mut pipeline = PipelineBuilder::from_iter(0..40)
            .route(
                "route",
                |n| Ok(usize::from(*n < 2)),
                [
                    path(|items| items),
                    path(move |items: PipelineBuilder<i32>| {
                        let options = StageOptions::new("held").dedicated();
                        items.map(options, move |n| {
                            until("the gate is opened", || opened.load(Ordering::SeqCst));
                            Ok(n)
                        })
                    }),
                ],
            )
            .build()
            .unwrap();
        let first: Vec<i32> = pipeline.by_ref().take(38).map(Result::unwrap).collect();
        assert_eq!(sorted(first), (2..40).collect::<Vec<_>>());
        gate.store(true, Ordering::SeqCst);
        assert_eq!(sorted(pipeline.map(Result::unwrap).collect::<Vec<_>>()), [0, 1]);
    });
}

#[test]
fn a_path_may_batch_its_items_per_epoch() {
    within_seconds(30, || {
        for order in [Order::Completion, Order::Input] {
            let builder = epochs(&[7, 4])
                .route(
                    // One at a time, so that both orders are that of the source.
                    StageOptions::new("route").order(order).concurrency(1),
                    |n| Ok((n % 2) as usize),
                    [
                        path(|items: PipelineBuilder<u64>| items.batch("pairs", 2, false)),
                        path(|items: PipelineBuilder<u64>| items.map("alone", |n| Ok(vec![n]))),
                    ],
                )
                .epochs(0..2);
            let lists: Vec<_> = by_epoch(builder).into_iter().map(sorted).collect();
            let expected = [
                sorted(vec![vec![0, 2], vec![4, 6], vec![1], vec![3], vec![5]]),
                sorted(vec![vec![1000, 1002], vec![1001], vec![1003]]),
            ];
            assert_eq!(lists, expected, "{order:?}");
        }
    });
}

// feature: M04
#[test]
fn an_invalid_choice_of_a_router_ends_the_pipeline_even_with_skip() {
    within_seconds(30, || {
        for order in [Order::Completion, Order::Input] {
            let router = |n: &i64| Ok(if *n == 20 { 2 } else { (*n % 2) as usize });
            let pipeline = PipelineBuilder::new(numbers(1_000_000))
                .route(
                    StageOptions::new("route").order(order),
                    router,
                    [path(|items| items), path(|items: PipelineBuilder<i64>| items.map("b", Ok))],
                )
                .on_error(OnError::SKIP)
                .threads(1)
                .build()
                .unwrap();
            let (items, error) = before_error(pipeline);
            assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidArgument, Some("route")));
            assert!(error.to_string().contains("path 2"), "{error}");
            assert_eq!(sorted(items), (0..20).collect::<Vec<_>>(), "{order:?}");
        }
    });
}

// feature: F05
#[test]
fn a_failure_on_a_path_ends_an_ordered_route_in_order_for_any_number_of_threads() {
    within_seconds(60, || {
        for threads in [1, 2, 3, 8] {
            for at_once in [true, false] {
                let pipeline = PipelineBuilder::from_iter(0..10_000)
                    .route(
                        "route",
                        |n| Ok((n % 3) as usize),
                        [
                            path(|items: PipelineBuilder<i64>| items),
                            path(|items: PipelineBuilder<i64>| {
                                items.map("sleep_by_number", |n| {
                                    sleep_by_number(n);
                                    Ok(n)
                                })
                            }),
                            path(move |items: PipelineBuilder<i64>| {
                                let fails = move |n| {
                                    if !at_once {
                                        sleep_by_number(n);
                                    }
                                    if n == 200 { Err(bad_number(n)) } else { Ok(n) }
                                };
                                items.map("fails", fails).map_async("b", |n| async move { Ok(n) })
                            }),
                        ],
                    )
                    .threads(threads)
                    .deterministic()
                    .build()
                    .unwrap();
                let (items, error) = before_error(pipeline);
                assert_eq!(error.to_string(), "fails: 200 is bad");
                assert_eq!(items, (0..200).collect::<Vec<_>>(), "{threads} threads");
            }
        }
    });
}

// feature: F05
#[test]
fn items_before_a_failure_upstream_of_a_route_are_delivered() {
    within_seconds(60, || {
        for order in [Order::Completion, Order::Input] {
            let items = (0..100).map(|n| if n == 50 { Err(bad_number(n)) } else { Ok(n) });
            let slow = |n| {
                sleep_by_number(n);
                Ok(n)
            };
            let pipeline = PipelineBuilder::from_stream(stream::iter(items))
                .route(
                    StageOptions::new("route").order(order),
                    |n| Ok((n % 2) as usize),
                    [
                        path(|items| items),
                        path(move |items: PipelineBuilder<i64>| items.map("slow", slow)),
                    ],
                )
                .build()
                .unwrap();
            let (items, error) = before_error(pipeline);
            assert_eq!(error.to_string(), "source: 50 is bad");
            assert_eq!(sorted(items), (0..50).collect::<Vec<_>>(), "{order:?}");
        }
    });
}

// feature: F09
#[test]
fn a_failure_on_a_path_cancels_a_source_that_yields_nothing() {
    within_seconds(30, || {
        for order in [Order::Completion, Order::Input] {
            let silent = stream::iter((0..5).map(Ok)).chain(stream::pending());
            let fails = |n| if n == 3 { Err(bad_number(n)) } else { Ok(n) };
            let paths = [
                path(|items| items),
                path(move |items: PipelineBuilder<i64>| items.map("fails", fails)),
            ];
            let options = StageOptions::new("route").order(order);
            let pipeline = PipelineBuilder::from_stream(silent)
                .route(options, |n| Ok((n % 2) as usize), paths)
                .build()
                .unwrap();
            assert_eq!(before_error(pipeline).1.to_string(), "fails: 3 is bad");
        }
        let silent = stream::iter([Ok(vec![0, 1]), Ok(vec![2, 3])]).chain(stream::pending());
        let fails = |list: Vec<i64>| if list == [3] { Err(bad_number(3)) } else { Ok(list) };
        let router = |list: &[i64]| Ok(list.iter().map(|n| (n % 2) as usize).collect());
        let pipeline = PipelineBuilder::from_stream(silent)
            .route_lists(
                "route",
                router,
                [
                    path(|lists| lists),
                    path(move |lists: PipelineBuilder<Vec<i64>>| lists.map("fails", fails)),
                ],
            )
            .deterministic()
            .build()
            .unwrap();
        let (lists, error) = before_error(pipeline);
        assert_eq!(error.to_string(), "fails: 3 is bad");
        assert_eq!(lists, [[0, 1]], "no part of the failed list is forwarded");
    });
}

#[test]
fn an_error_of_a_router_fails_the_item() {
    within_seconds(30, || {
        let router = |n: &i64| if *n == 3 { Err(bad_number(*n)) } else { Ok(0) };
        let builder =
            PipelineBuilder::new(numbers(6)).route("route", router, [path(|items| items)]);
        let skips = builder.on_error(OnError::SKIP).deterministic();
        assert_eq!(delivered(skips), [0, 1, 2, 4, 5]);
    });
}

// feature: B13
#[test]
fn a_route_inside_a_path_after_a_merge_works() {
    within_seconds(60, || {
        for threads in [1, 4] {
            let halves = [PipelineBuilder::from_iter(0..100), PipelineBuilder::from_iter(100..200)];
            let builder = PipelineBuilder::merge(halves, RoundRobin::default())
                .route(
                    "outer",
                    |n| Ok((n % 2) as usize),
                    [
                        path(|items| items),
                        path(|items: PipelineBuilder<i64>| {
                            items.route(
                                "inner",
                                |n| Ok((n % 3) as usize),
                                [
                                    path(|items: PipelineBuilder<i64>| {
                                        items.map("minus", |n| Ok(-n))
                                    }),
                                    path(|items: PipelineBuilder<i64>| {
                                        items.filter("gone", |_| Ok(false))
                                    }),
                                    path(|items: PipelineBuilder<i64>| {
                                        items.flat_map("twice", |n| [Ok(n), Ok(n)])
                                    }),
                                ],
                            )
                        }),
                    ],
                )
                .threads(threads)
                .deterministic();
            let of = |n: i64| match (n % 2, n % 3) {
                (0, _) => vec![n],
                (_, 0) => vec![-n],
                (_, 1) => vec![],
                _ => vec![n, n],
            };
            let turns = (0..100).flat_map(|n| [n, n + 100]);
            assert_eq!(delivered(builder), turns.flat_map(of).collect::<Vec<_>>());
        }
    });
}

// feature: M04
#[test]
fn a_route_without_paths_is_refused() {
    let none: [spdl_core::pipeline::Path<i64, i64>; 0] = [];
    let error =
        PipelineBuilder::new(numbers(1)).route("route", |_| Ok(0), none).build().unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidArgument, Some("route")));
}

// feature: M05
#[test]
fn lists_are_routed_in_parts_and_reassembled_in_order() {
    within_seconds(60, || {
        let empty_parts = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&empty_parts);
        let builder = epochs(&[50])
            .batch("batch", 4, false)
            .route_lists(
                "route",
                // Lists of a single kind leave the other path an empty part.
                |list| Ok(list.iter().map(|n| usize::from(n % 10 < 5)).collect()),
                [
                    path(|lists: PipelineBuilder<Vec<u64>>| {
                        lists.map("slow", |list| {
                            sleep_by_number(list.len() as i64);
                            Ok(list.into_iter().map(|n| n * 10).collect())
                        })
                    }),
                    path(move |lists: PipelineBuilder<Vec<u64>>| {
                        lists.map_async("quick", move |list: Vec<u64>| {
                            counter.fetch_add(usize::from(list.is_empty()), Ordering::Relaxed);
                            async move { Ok(list) }
                        })
                    }),
                ],
            )
            .epochs(0..2)
            .threads(3)
            .deterministic();
        let of = |n: u64| if n % 10 < 5 { n } else { n * 10 };
        for (epoch, lists) in by_epoch(builder).into_iter().enumerate() {
            let start = epoch as u64 * 1000;
            let numbers: Vec<u64> = (start..start + 50).map(of).collect();
            let expected: Vec<Vec<u64>> = numbers.chunks(4).map(<[u64]>::to_vec).collect();
            assert_eq!(lists, expected, "epoch {epoch}");
        }
        assert!(empty_parts.load(Ordering::Relaxed) > 0, "an empty part also takes its path");
    });
}

/// Even numbers take path 0 and odd numbers path 1, where `odd` changes the list.
fn even_and_odd(
    lists: Vec<Vec<i64>>,
    odd: fn(Vec<i64>) -> Result<Vec<i64>>,
) -> PipelineBuilder<Vec<i64>> {
    PipelineBuilder::from_iter(lists)
        .route_lists(
            "route",
            |list| Ok(list.iter().map(|n| (n % 2) as usize).collect()),
            [
                path(|lists| lists),
                path(move |lists: PipelineBuilder<Vec<i64>>| lists.map("odd", odd)),
            ],
        )
        .on_error(OnError::SKIP)
        .deterministic()
}

// feature: M05
#[test]
fn if_a_path_drops_its_part_the_other_parts_continue() {
    within_seconds(30, || {
        let refuse = |list: Vec<i64>| if list.contains(&7) { Err(bad_number(7)) } else { Ok(list) };
        let lists = vec![vec![1, 2, 3], vec![6, 7, 8, 9], vec![7], vec![], vec![10, 11]];
        assert_eq!(
            delivered(even_and_odd(lists, refuse)),
            [vec![1, 2, 3], vec![6, 8], vec![10, 11]],
            "an empty list is not forwarded"
        );
    });
}

// feature: M05
#[test]
fn a_path_that_changes_the_number_of_items_ends_the_pipeline() {
    within_seconds(30, || {
        for odd in [|_| Ok(vec![1]), |list: Vec<i64>| Ok([list, vec![1]].concat())] {
            let lists = vec![vec![2, 4], vec![1, 3, 5], vec![6]];
            let more_or_less = even_and_odd(lists, odd);
            let (_, error) = before_error(more_or_less.build().unwrap());
            assert_eq!(
                (error.kind(), error.stage()),
                (ErrorKind::InvalidArgument, Some("route/join"))
            );
            assert!(error.to_string().contains("path 1 returned"), "{error}");
        }
    });
}

// feature: M05
#[test]
fn a_list_router_with_a_wrong_result_ends_the_pipeline() {
    within_seconds(30, || {
        // One path too many, and a path that does not exist.
        for (more, at) in [(1, 0), (0, 1)] {
            let router = move |list: &[i64]| Ok(vec![at; list.len() + more]);
            let pipeline = PipelineBuilder::new(numbers(100))
                .batch("batch", 2, false)
                .route_lists("route", router, [path(|lists| lists)])
                .on_error(OnError::SKIP)
                .build()
                .unwrap();
            let (items, error) = before_error(pipeline);
            assert_eq!(items, Vec::<Vec<i64>>::new());
            assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidArgument, Some("route")));
        }
    });
}

#[test]
fn a_path_of_lists_that_batches_lists_is_an_error() {
    within_seconds(30, || {
        let pipeline = PipelineBuilder::from_iter(vec![vec![0, 1], vec![2, 3], vec![4, 5]])
            .route_lists(
                "route",
                |list: &[i64]| Ok(vec![0; list.len()]),
                [path(|lists: PipelineBuilder<Vec<i64>>| {
                    lists.batch("two", 2, false).map("flat", |lists| Ok(lists.concat()))
                })],
            )
            .deterministic()
            .build()
            .unwrap();
        let (items, error) = before_error(pipeline);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(items.is_empty(), "{items:?}");
    });
}

// Refused settings.

// feature: B09
#[test]
fn settings_of_the_whole_pipeline_are_refused_on_a_branch() {
    let whole = || PipelineBuilder::new(numbers(3));
    let refused: Vec<PipelineBuilder<i64>> = vec![
        PipelineBuilder::merge([whole(), whole().seed(1)], Arrival),
        PipelineBuilder::merge([whole().deterministic(), whole()], Arrival),
        whole().zip(whole().epochs(0..2)).map("left", |(left, _)| Ok(left)),
        whole().route("route", |_| Ok(0), [path(|items: PipelineBuilder<i64>| items.threads(3))]),
    ];
    for (at, builder) in refused.into_iter().enumerate() {
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{at}");
        assert!(error.to_string().contains("settings of the whole pipeline"), "{at}: {error}");
    }
}

// feature: B09, M01
#[test]
fn names_are_unique_in_all_branches_and_generated_names_avoid_conflicts() {
    within_seconds(30, || {
        let branch = || epochs(&[2]);
        let twice =
            PipelineBuilder::merge([branch().map("same", Ok), branch().map("same", Ok)], Arrival);
        let error = twice.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("\"same\""), "{error}");
        let inner = || PipelineBuilder::merge([branch(), branch()], Arrival);
        let both = PipelineBuilder::merge([inner(), inner()], RoundRobin::default());
        let mut pipeline = both.build().unwrap();
        assert_eq!(pipeline.by_ref().count(), 8);
        let statistics = pipeline.statistics();
        let names: Vec<&str> = statistics.stages.iter().map(|stage| &*stage.name).collect();
        let mut unique = names.clone();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(unique.len(), names.len(), "{names:?}");
        assert_eq!(names.iter().filter(|name| name.starts_with("source")).count(), 4);
        assert_eq!(names.iter().filter(|name| name.starts_with("merge")).count(), 3);
    });
}

// Epochs.

// feature: L06
#[test]
fn an_epoch_iterator_ends_with_its_epoch_and_the_next_one_continues() {
    within_seconds(30, || {
        let builder = epochs(&[6]).map("pass", Ok).epochs(0..3).deterministic();
        let mut pipeline = builder.build().unwrap();
        let mut epoch = pipeline.next_epoch().unwrap();
        assert_eq!(epoch.next().unwrap().unwrap(), 0);
        assert_eq!(epoch.number(), 0);
        // Leaving the loop stops nothing; the next iterator continues the epoch.
        assert_eq!(epoch.next().unwrap().unwrap(), 1);
        let mut rest = pipeline.next_epoch().unwrap();
        assert_eq!(rest.number(), 0);
        assert_eq!(rest.by_ref().map(Result::unwrap).collect::<Vec<_>>(), [2, 3, 4, 5]);
        assert!(rest.next().is_none() && rest.next().is_none(), "the iterator stays ended");
        // `next` and `next_epoch` can be mixed.
        assert_eq!(pipeline.next().unwrap().unwrap(), 1000);
        let second = pipeline.next_epoch().unwrap();
        assert_eq!(second.number(), 1);
        assert_eq!(
            second.map(Result::unwrap).collect::<Vec<_>>(),
            (1001..1006).collect::<Vec<_>>()
        );
        let third = pipeline.next_epoch().unwrap();
        assert_eq!(third.number(), 2);
        assert_eq!(third.map(Result::unwrap).collect::<Vec<_>>(), (2000..2006).collect::<Vec<_>>());
        assert!(pipeline.next_epoch().is_none() && pipeline.next().is_none());
    });
}

// feature: E01
#[test]
fn an_epoch_without_remaining_items_is_empty() {
    within_seconds(30, || {
        let builder = epochs(&[4]).filter("odd epochs", |n| Ok(n / 1000 % 2 == 1)).epochs(0..4);
        let mut pipeline = builder.deterministic().build().unwrap();
        let mut all = Vec::new();
        while let Some(epoch) = pipeline.next_epoch() {
            let number = epoch.number();
            all.push((number, epoch.map(Result::unwrap).collect::<Vec<_>>()));
        }
        let whole = |n: u64| (n * 1000..n * 1000 + 4).collect();
        assert_eq!(all, [(0, vec![]), (1, whole(1)), (2, vec![]), (3, whole(3))]);
    });
}

// feature: E01, Q06
#[test]
fn endless_epochs_continue_until_the_consumer_stops() {
    within_seconds(60, || {
        let builder = epochs(&[3]).map("pass", Ok).batch("batch", 2, false).epochs(5..);
        let mut pipeline = builder.deterministic().build().unwrap();
        for number in 5..500 {
            let epoch = pipeline.next_epoch().unwrap();
            let n = number * 1000;
            let batches: Vec<_> = epoch.map(Result::unwrap).collect();
            assert_eq!(batches, [vec![n, n + 1], vec![n + 2]]);
        }
    });
}

// feature: E01
#[test]
fn an_exhausted_source_ends_an_endless_run() {
    within_seconds(30, || {
        let mut pipeline = epochs(&[2, 2, 0]).epochs(0..).deterministic().build().unwrap();
        let mut count = 0;
        while let Some(epoch) = pipeline.next_epoch() {
            count += epoch.count();
        }
        assert_eq!(count, 4);
    });
}

/// Collects its items until the end of an epoch.
struct CountEpoch {
    seen: Vec<u64>,
}
impl Stage<u64> for CountEpoch {
    type Out = Vec<u64>;
    fn process(&mut self, n: u64, cx: &mut StageContext<'_, Vec<u64>>) -> Result<()> {
        assert_eq!(cx.id().epoch, n / 1000);
        self.seen.push(n);
        Ok(())
    }
    fn finish(&mut self, cx: &mut StageContext<'_, Vec<u64>>) -> Result<()> {
        cx.emit(std::mem::take(&mut self.seen))
    }
}

// feature: E02, F08
#[test]
fn every_instance_of_a_stage_finishes_an_epoch_before_the_next_one() {
    within_seconds(60, || {
        for threads in [1, 4] {
            let builder = epochs(&[100, 1, 33])
                .map("sleep_by_number", |n| {
                    sleep_by_number(n as i64);
                    Ok(n)
                })
                .map_async("wait", |n| async move { Ok(n) })
                .stage("count", || Ok(CountEpoch { seen: Vec::new() }))
                .epochs(0..30)
                .threads(threads);
            let all = by_epoch(builder);
            assert_eq!(all.len(), 30);
            for (epoch, parts) in all.into_iter().enumerate() {
                let start = epoch as u64 * 1000;
                let count = [100, 1, 33][epoch % 3];
                assert!(parts.len() <= threads && !parts.iter().any(Vec::is_empty));
                assert_eq!(sorted(parts.concat()), (start..start + count).collect::<Vec<_>>());
            }
        }
    });
}

// feature: E04
#[test]
fn a_shuffled_source_has_different_epochs_and_equal_runs() {
    within_seconds(30, || {
        let run =
            || by_epoch(PipelineBuilder::new(numbers(50).shuffled(3)).epochs(0..3).deterministic());
        let all = run();
        assert_eq!(run(), all);
        assert!(all[0] != all[1] && all[1] != all[2]);
        for epoch in all {
            assert_eq!(sorted(epoch), (0..50).collect::<Vec<_>>());
        }
    });
}

// Definitions.

fn everything() -> PipelineBuilder<Vec<u64>> {
    let left = epochs(&[3]).map(StageOptions::new("left").concurrency(2), Ok);
    PipelineBuilder::merge([left, epochs(&[3])], RoundRobin::default())
        .route(
            "route",
            |n| Ok((n % 2) as usize),
            [
                path(|items| items),
                path(|items: PipelineBuilder<u64>| {
                    items.map_async("wait", |n| async move { Ok(n) })
                }),
            ],
        )
        .batch(StageOptions::new("batch").on_error(OnError::SKIP), 4, true)
        .seed(7)
        .epochs(0..)
}

// feature: B01, B09, B12
#[test]
fn a_definition_contains_stages_types_settings_and_places() {
    let definition = everything().definition();
    let tree = definition.to_string();
    let file = file!().rsplit('/').next().unwrap();
    for part in [
        "pipeline of Vec<u64>",
        "seed 7",
        "epochs 0..",
        "merge",
        "policy RoundRobin",
        "left",
        "concurrency 2",
        "route",
        "wait",
        "u64 → u64",
        "u64 → Vec<u64>",
        "size 4",
        "drop last yes",
        "on error skip",
        file,
    ] {
        assert!(tree.contains(part), "{part:?} is missing in\n{tree}");
    }
    let names: Vec<&str> = definition.all_stages().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["source", "left", "source", "merge", "route", "wait", "batch"]);
    // The pipeline has the same definition.
    assert_eq!(*everything().build().unwrap().definition(), everything().definition());
}

#[test]
fn a_definition_shows_that_a_stage_retries() {
    struct Fetch;
    #[spdl_core::async_trait]
    impl AsyncStage<i64> for Fetch {
        type Out = i64;
        async fn process(&self, n: i64, _: &spdl_core::AsyncContext) -> Result<i64> {
            Ok(n)
        }
        fn output_bytes(&self, n: &i64) -> Option<usize> {
            Some(*n as usize)
        }
    }
    let patient = || spdl_core::stage::Retried::new(Fetch, spdl_core::Retry::default().attempts(5));
    let fetch = std::sync::Arc::new(patient().unwrap());
    let tree = PipelineBuilder::new(numbers(3)).async_stage("fetch", fetch).definition();
    assert!(tree.to_string().contains("retry 5 attempts"), "{tree}");
    // The declared output size of the stage is unchanged.
    assert_eq!(AsyncStage::output_bytes(&patient().unwrap(), &7), Some(7));
}

#[test]
fn a_definition_shows_hooks_listeners_and_recorded_orders() {
    #[derive(Debug)]
    struct Silent;
    impl spdl_core::Hook for Silent {}
    let quiet = PipelineBuilder::new(numbers(3)).definition().to_string();
    for word in ["hooks", "drop listeners", "report every", "background", "records", "replays"] {
        assert!(!quiet.contains(word), "{word:?} must not be in\n{quiet}");
    }
    let record = [0, 1].map(|index| spdl_core::SampleId { epoch: 0, index }).into_iter().collect();
    let weighted = spdl_core::stage::WeightedMerge::new([1.0, 2.5]).unwrap();
    let branches = [PipelineBuilder::new(numbers(3)), PipelineBuilder::new(numbers(3))];
    let reported = PipelineBuilder::merge(branches, weighted)
        .hook(Silent)
        .on_drop(|_| Ok(()))
        .every(Duration::from_secs(2), |_| ())
        .on_starvation(Duration::from_secs(3), |_| ())
        .background("refresh", |_| async { Ok(()) })
        .record_order()
        .replay(record)
        .definition()
        .to_string();
    for part in [
        "policy WeightedMerge([1.0, 2.5])",
        "hooks Silent",
        "drop listeners 1",
        "report every 2s",
        "report starvation every 3s",
        "background refresh",
        "records its order",
        "replays 2 samples",
    ] {
        assert!(reported.contains(part), "{part:?} is missing in\n{reported}");
    }
}

// promise: CORE2
#[cfg(feature = "serde")]
// feature: B12
#[test]
fn a_complete_definition_is_restored_from_json() {
    let definition = everything().definition();
    let text = serde_json::to_string(&definition).unwrap();
    let back: spdl_core::pipeline::Definition = serde_json::from_str(&text).unwrap();
    assert_eq!(back, definition);
    assert_eq!(back.to_string(), definition.to_string());
}

// feature: E02
#[test]
fn a_fill_after_a_merge_keeps_epochs_separate_and_batches_full() {
    within_seconds(30, || {
        let branch = || PipelineBuilder::new(numbers(10));
        let merged = PipelineBuilder::merge([branch(), branch()], Arrival);
        let batches = by_epoch(
            merged
                .fill("write", layout(8), || {
                    Ok(crate::common::WriteNumber { fails: |n| n == 3, panics: |_| false })
                })
                .on_error(OnError::SKIP)
                .epochs(0..3),
        );
        for batches in batches {
            let sizes: Vec<usize> = batches.iter().map(spdl_core::Batch::len).collect();
            assert_eq!(sizes, [8, 8, 2]);
        }
    });
}

#[test]
fn an_item_keeps_its_identity_through_merge_route_and_batch() {
    within_seconds(30, || {
        struct Identify;
        impl Stage<u64> for Identify {
            type Out = (SampleId, u64);
            fn process(
                &mut self,
                n: u64,
                cx: &mut StageContext<'_, (SampleId, u64)>,
            ) -> Result<()> {
                cx.emit((cx.id(), n))
            }
        }
        let branches = [epochs(&[20]), epochs(&[20])];
        let builder = PipelineBuilder::merge(branches, Arrival)
            .route(
                "route",
                |n| Ok((n % 2) as usize),
                [path(|items| items), path(|items: PipelineBuilder<u64>| items.map("odd", Ok))],
            )
            .stage("identify", || Ok(Identify))
            .epochs(0..2);
        for (id, n) in delivered(builder) {
            // The indices of the second source begin at 2⁴⁸.
            assert_eq!(id.epoch * 1000 + id.index % (1 << 48), n);
        }
    });
}
