//! Partly delivered lists and split items: a resumed run in which something has changed.
#![cfg(feature = "serde")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::common::{bad_number, numbers, until, within_seconds};
use futures_util::{StreamExt, stream};
use spdl_core::resume::SampleCounts;
use spdl_core::source::sampler::{Concatenated, Mixture, Sampler, Until};
use spdl_core::source::{Cursor, Positions, Remainder};
use spdl_core::stage::{Packing, Sequence};
use spdl_core::{
    BoxStream, Dataset, DatasetSource, ErrorKind, OnError, Pipeline, PipelineBuilder, Result,
    SampleId, Shard, Source, State, StateFile, StateSaver,
};

fn stored(state: State) -> State {
    serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap()
}

fn rest<T: Send + 'static>(builder: PipelineBuilder<T>, state: State) -> Vec<T> {
    builder.resume(stored(state)).build().unwrap().map(|item| item.unwrap()).collect()
}

/// The first items, and the state after them.
fn begun<T: Send + 'static>(builder: PipelineBuilder<T>, items: usize) -> (Vec<T>, State) {
    let mut pipeline = builder.build().unwrap();
    let begun = pipeline.by_ref().take(items).map(|item| item.unwrap()).collect();
    (begun, pipeline.state().unwrap())
}

fn apart(builder: PipelineBuilder<i64>) -> PipelineBuilder<i64> {
    builder.batch("list", 4, false).unbatch("apart").deterministic().on_error(OnError::SKIP)
}

/// Numbers below 12 in lists of four, unbatched. The number in `bad` fails.
fn failing(bad: &Arc<AtomicI64>) -> PipelineBuilder<i64> {
    let bad = Arc::clone(bad);
    let numbers = PipelineBuilder::new(numbers(12));
    apart(numbers.map("fail", move |n| match n == bad.load(Ordering::SeqCst) {
        true => Err(bad_number(n)),
        false => Ok(n),
    }))
}

#[test]
fn no_sample_is_lost_if_a_list_differs_after_a_resume() {
    for taken in 1..4 {
        for fails in 0..4 {
            let bad = Arc::new(AtomicI64::new(-1));
            let (_, state) = begun(failing(&bad), taken);
            bad.store(fails, Ordering::SeqCst);
            let rest = rest(failing(&bad), state);
            // The list differs, so it is delivered as a whole.
            let expected: Vec<i64> = (0..12).filter(|&n| n != fails).collect();
            assert_eq!(rest, expected, "after {taken}, {fails} fails");
        }
    }
    // If only another list differs, the remaining parts are delivered.
    let bad = Arc::new(AtomicI64::new(-1));
    let (_, state) = begun(failing(&bad), 2);
    bad.store(6, Ordering::SeqCst);
    assert_eq!(rest(failing(&bad), state), [2, 3, 4, 5, 7, 8, 9, 10, 11]);
}

#[test]
fn lists_of_lists_are_identified_by_all_their_members() {
    let build = |bad: &Arc<AtomicI64>| {
        let lists = failing(bad).batch("list again", 3, false);
        lists.unbatch("apart again")
    };
    let bad = Arc::new(AtomicI64::new(-1));
    let (_, state) = begun(build(&bad), 1);
    // The first list of three has members with the same identities, but from another list of four.
    bad.store(3, Ordering::SeqCst);
    let expected: Vec<i64> = (0..12).filter(|&n| n != 3).collect();
    assert_eq!(rest(build(&bad), state), expected);
}

#[test]
fn skipping_samples_that_would_change_a_list_is_refused() {
    let build = || apart(PipelineBuilder::new(numbers(12)));
    let (_, state) = begun(build(), 2);
    for index in [0, 1, 2, 9] {
        let error = state.clone().skip([SampleId { epoch: 0, index }]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains("repeat_parts"), "{error}");
    }
    let whole = state.repeat_parts().skip([SampleId { epoch: 0, index: 1 }]).unwrap();
    assert_eq!(rest(build(), whole), [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
}

#[test]
fn skipping_samples_beyond_the_epoch_is_refused() {
    let id = |index| SampleId { epoch: 0, index };
    let (_, state) = begun(PipelineBuilder::new(numbers(10)).deterministic(), 1);
    let all = State::combine([state.clone()]).unwrap();
    for (state, last) in [(state, 9), (all, 9)] {
        for index in [last + 1, 1000, u64::MAX] {
            let error = state.clone().skip([id(index)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{index}");
        }
        assert_eq!(state.skip([id(last)]).unwrap().samples().left_out, 1);
    }
    for remainder in [Remainder::Uneven, Remainder::Drop] {
        let shard = Shard::new(1, 3).unwrap().remainder(remainder);
        let builder = PipelineBuilder::new(numbers(10)).shard(shard).deterministic();
        let (_, state) = begun(builder, 1);
        assert!(state.clone().skip([id(10)]).is_err() && state.clone().skip([id(13)]).is_err());
        assert!(state.skip([id(7)]).is_ok());
    }
    // A repeated sample has an identity beyond the last position.
    let shard = Shard::new(1, 3).unwrap().remainder(Remainder::Pad);
    let builder = PipelineBuilder::new(numbers(10)).shard(shard).deterministic();
    let (_, state) = begun(builder, 1);
    assert!(state.clone().skip([id(10)]).is_ok() && state.skip([id(13)]).is_err());
}

/// A mixture of two data sets, followed by `stages`.
fn mixed(stages: fn(PipelineBuilder<i64>) -> PipelineBuilder<i64>) {
    let numbers =
        |range: Range<i64>| Arc::new(range.collect::<Vec<_>>()) as Arc<dyn Dataset<Item = i64>>;
    let data = Arc::new(Concatenated::new([numbers(0..60), numbers(1000..1060)]).unwrap());
    let training = |mixture: Mixture| {
        let source = DatasetSource::shared(Arc::clone(&data)).sampler(mixture);
        stages(PipelineBuilder::new(source).map("item", |from| Ok(from.item))).deterministic()
    };
    let mixture = |parts| data.mixture(parts, Until::Samples(60), 7).unwrap();
    let half = mixture([1.0, 1.0]);
    let outputs = training(half.clone()).build().unwrap().count();
    let mut tried = 0;
    for taken in 0..outputs {
        let (mut got, state) = begun(training(half.clone()), taken);
        let Ok(other) = mixture([1.0, 9.0]).taking_over(&half, 0, state.frontier()) else {
            continue;
        };
        let order = other.epoch(120, 0).unwrap();
        let state = state.allow_change("source order weights");
        tried += 1;
        let mut whole: Vec<i64> = (0..order.len()).map(|at| order.at(at) as i64).collect();
        whole.iter_mut().filter(|item| **item >= 60).for_each(|item| *item += 940);
        let plain = PipelineBuilder::new(DatasetSource::new(whole)).deterministic();
        let mut expected: Vec<i64> =
            stages(plain).build().unwrap().map(|item| item.unwrap()).collect();
        got.extend(rest(training(other), state.clone()));
        got.sort();
        expected.sort();
        assert_eq!(got, expected, "after {taken}, frontier {}", state.frontier());
    }
    assert!(tried > outputs / 2, "{tried} of {outputs}");
}

#[test]
fn another_mixture_starts_after_partly_delivered_lists() {
    mixed(|numbers| numbers.batch("list", 8, false).unbatch("apart"));
    mixed(|numbers| {
        let lists = numbers.batch("list", 3, false).unbatch("apart").batch("again", 5, false);
        lists.unbatch("apart again")
    });
}

#[test]
fn another_mixture_starts_after_the_inputs_of_packs_and_split_items() {
    // The item that closes a pack is not in the pack.
    mixed(|numbers| {
        let packs = numbers.pack("pack", Packing::new(9).open(3), |n| 1 + (n * 7 % 6) as u64);
        packs.flat_map("apart", |pack| pack.items.into_iter().map(Ok).collect::<Vec<_>>())
    });
    // Lists that are split and unbatched.
    mixed(|numbers| {
        let lists = numbers.batch("list", 3, false).concat_and_split("cut", 4, false);
        lists.flat_map("apart", |cut| {
            cut.items.into_iter().flat_map(|piece| piece.part).map(Ok).collect::<Vec<_>>()
        })
    });
}

#[test]
fn the_frontier_includes_a_partly_delivered_list_until_it_is_complete() {
    let build = || apart(PipelineBuilder::new(numbers(24)));
    let (_, state) = begun(build(), 6);
    assert_eq!(state.frontier(), 8);
    let again = build().resume(stored(state)).build().unwrap().state().unwrap();
    assert_eq!(again.frontier(), 8);
    let (_, later) = begun(build().resume(stored(again.clone())), 3);
    assert_eq!(later.frontier(), 12);
    // As if a stage had read further ahead, which counts while a list is partly delivered.
    let mut far = serde_json::to_value(&again).unwrap();
    far["parts_end"] = 20.into();
    let far: State = serde_json::from_value(far).unwrap();
    let mut pipeline = build().resume(far).build().unwrap();
    assert_eq!((pipeline.next().unwrap().unwrap(), pipeline.state().unwrap().frontier()), (6, 20));
    assert_eq!(pipeline.next().unwrap().unwrap(), 7);
    // The list ends when its stage reports the end of its items.
    until("the list is complete", || pipeline.state().unwrap().frontier() == 8);
    assert_eq!(again.repeat_parts().frontier(), 4);
}

/// A sequence of tokens; the length of a sequence of 1 panics.
#[derive(Clone, Debug)]
struct Tokens(u64);

impl Sequence for Tokens {
    fn tokens(&self) -> u64 {
        assert!(self.0 != 1, "panic of the test");
        self.0
    }

    fn slice(&self, range: Range<u64>) -> Self {
        Tokens(range.end - range.start)
    }
}

fn lengths(lengths: &'static [u64]) -> PipelineBuilder<usize> {
    let items = lengths.iter().map(|&length| Tokens(length)).collect::<Vec<_>>();
    PipelineBuilder::new(DatasetSource::new(items))
        .concat_and_split("cut", 4, false)
        .map("count", |cut| Ok(cut.items.len()))
        .deterministic()
        .on_error(OnError::SKIP)
}

// promise: R24
#[test]
fn a_panic_with_an_empty_buffer_loses_no_other_item() {
    within_seconds(60, || {
        let build = || lengths(&[6, 2, 1, 4, 4, 4]);
        let (whole, end) = begun(build(), 9);
        assert_eq!(whole, [1, 2, 1, 1, 1]);
        let samples = SampleCounts { delivered: 5, dropped: 1, ..SampleCounts::default() };
        assert_eq!((end.epoch(), end.samples()), (1, samples));
        for taken in 0..=whole.len() {
            let (_, state) = begun(build(), taken);
            assert_eq!(rest(build(), state), whole[taken..], "after {taken}");
        }
        // With a non-empty buffer, the buffered items are lost.
        let (whole, end) = begun(lengths(&[6, 1, 4]), 9);
        let samples = SampleCounts { delivered: 2, dropped: 1, ..SampleCounts::default() };
        assert_eq!((whole, end.samples()), (vec![1, 1], samples));
    });
}

fn filtered(rank: u64) -> Pipeline<i64> {
    let numbers = PipelineBuilder::new(numbers(12)).filter("half", |n| Ok(*n >= 6));
    let numbers = numbers.shard(Shard::new(rank, 2).unwrap()).deterministic();
    numbers.epochs(0..3).build().unwrap()
}

#[test]
fn samples_that_a_rank_filtered_out_early_count_once() {
    within_seconds(60, || {
        let (mut first, mut second) = (filtered(0), filtered(1));
        assert_eq!(first.by_ref().take(2).count(), 2);
        assert_eq!(second.next_epoch().unwrap().count(), 3);
        let state = || second.state().unwrap();
        until("three are filtered out", || state().samples_in_epoch().filtered == 3);
        let whole = State::combine([first.state().unwrap(), state()]).unwrap();
        let delivered = first.state().unwrap().samples().delivered + 3;
        assert_eq!(whole.epoch(), 0);
        assert_eq!(whole.samples().delivered, delivered);
        assert_eq!(whole.samples().filtered, 6);
    });
}

#[test]
fn a_rank_ahead_does_not_require_the_lists_of_the_next_epoch() {
    within_seconds(60, || {
        let build = |rank| {
            let lists = PipelineBuilder::new(numbers(16)).batch("list", 2, false).unbatch("apart");
            let lists = lists.filter("some", |n| Ok(*n >= 8 || *n % 4 >= 2)).deterministic();
            lists.shard(Shard::new(rank, 2).unwrap()).epochs(0..3).build().unwrap()
        };
        let (mut first, mut second) = (build(0), build(1));
        assert!(first.next().is_some());
        assert!(second.next_epoch().unwrap().count() > 3);
        let state = || second.state().unwrap();
        // One item of the first list of the next epoch is filtered out, and the other is not yet
        // delivered.
        until("a list is partly done", || {
            let state = serde_json::to_value(state()).unwrap();
            state["pieces"].as_array().is_some_and(|pieces| !pieces.is_empty())
        });
        let whole = State::combine([first.state().unwrap().repeat_parts(), state()]).unwrap();
        assert_eq!(whole.epoch(), 0);
    });
}

/// Six numbers, of which the fourth has the identity of the third.
#[derive(Debug)]
struct Misnamed;

impl Source for Misnamed {
    type Item = i64;

    fn open(&self, _: Cursor) -> Result<BoxStream<'static, Result<i64>>> {
        Ok(stream::empty().boxed())
    }

    fn open_at(&self, all: Positions) -> Result<BoxStream<'static, (u64, Result<i64>)>> {
        let named = |id| if id == 3 { 2 } else { id };
        let items = all.map(|position| position.id).take_while(|&id| id < 6);
        Ok(stream::iter(items.map(move |id| (named(id), Ok(id as i64)))).boxed())
    }

    fn len_hint(&self) -> Option<u64> {
        Some(6)
    }
}

#[test]
fn a_failed_audit_does_not_restart_the_epoch() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    let mut pipeline = PipelineBuilder::new(Misnamed).deterministic().build()?;
    let file = StateFile::new(folder.path().join("run.state"));
    let mut saver = StateSaver::new(file);
    let all: Vec<Result<i64>> = saver.steps(&mut pipeline, &stop).collect();
    let error = all.iter().find_map(|item| item.as_ref().err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    let state = saver.finish()?.load()?;
    assert_eq!((state.epoch(), state.steps()), (0, 6));
    let missing = State::audit([state])?.missing().flatten().collect::<Vec<_>>();
    assert_eq!(missing, [3], "the lost sample");
    Ok(())
}
