//! Checkpoint states as data: their size, and combining states of many ranks.
#![cfg(feature = "serde")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::{numbers, within_seconds};
use futures_util::{StreamExt, stream};
use spdl_core::resume::{OrderRecord, SampleCounts};
use spdl_core::source::{Cursor, Positions, Remainder};
use spdl_core::stage::{Choice, MergePolicy};
use spdl_core::{
    BoxStream, Error, ErrorKind, OnError, Pipeline, PipelineBuilder, Result, SampleId, Shard,
    Source, State,
};

fn json(state: &State) -> String {
    serde_json::to_string(state).unwrap()
}

/// Serialises and deserialises a state, as a file does.
fn stored(state: State) -> State {
    serde_json::from_str(&json(&state)).unwrap()
}

fn rest<T: Send + 'static>(builder: PipelineBuilder<T>, state: State) -> Vec<T> {
    builder.resume(stored(state)).build().unwrap().map(|item| item.unwrap()).collect()
}

/// Each number split into `by` pieces.
fn cut(items: i64, by: i64) -> PipelineBuilder<i64> {
    PipelineBuilder::new(numbers(items))
        .flat_map("cut", move |n| (0..by).map(move |piece| Ok(by * n + piece)))
}

fn next<T: Send + 'static>(pipeline: &mut Pipeline<T>, items: usize) -> Vec<T> {
    let items: Vec<T> = pipeline.take(items).map(|item| item.unwrap()).collect();
    items
}

#[test]
fn a_state_in_the_middle_of_many_pieces_is_small() {
    const PIECES: i64 = 20_000;
    let plain = |by| cut(3, by).deterministic();
    let halves = move |by| plain(by).filter("half", |n| Ok(n % 2 == 0));
    let again = move |by| {
        plain(by / 10).flat_map("again", |n| (0..10).map(move |piece| Ok(10 * n + piece)))
    };
    // The number of done pieces, and the maximum additional size in bytes. One split needs one
    // range for the pieces after the first. Two splits need one more range per piece that was split
    // again.
    type Build = Box<dyn Fn(i64) -> PipelineBuilder<i64>>;
    // Pieces filtered out after pieces in flight need one range for each piece in flight.
    let all: [(Build, usize, usize); 3] = [
        (Box::new(plain), 9000, 0),
        (Box::new(halves), 9000, 30 * 400),
        (Box::new(again), 9000, 30 * 9000 / 10),
    ];
    for (build, taken, more) in all {
        let mut pipeline = build(PIECES).build().unwrap();
        let whole: Vec<i64> = pipeline.by_ref().map(|item| item.unwrap()).collect();
        let mut pipeline = build(PIECES).build().unwrap();
        let begun = json(&pipeline.state().unwrap()).len();
        assert_eq!(next(&mut pipeline, taken), whole[..taken]);
        let state = pipeline.state().unwrap();
        let size = json(&state).len();
        assert!(size < begun + 200 + more, "{size} bytes, {begun} in the beginning");
        drop(pipeline);
        assert_eq!(rest(build(PIECES), state), whole[taken..]);
    }
}

#[test]
fn the_size_of_unordered_pieces_depends_on_those_in_flight() {
    const PIECES: i64 = 3000;
    let build = || {
        cut(4, PIECES)
            .map("uneven", |n| {
                if n % 97 == 0 {
                    std::thread::yield_now();
                }
                Ok(n)
            })
            .threads(4)
    };
    let mut pipeline = build().build().unwrap();
    let begun = json(&pipeline.state().unwrap()).len();
    let mut seen = next(&mut pipeline, 4000);
    let state = pipeline.state().unwrap();
    // Queues of 64, batches of 64 per thread, and outputs that wait for the consumer.
    let size = json(&state).len();
    assert!(size < begun + 30 * 1000, "{size} bytes, {begun} in the beginning");
    drop(pipeline);
    seen.extend(rest(build(), state));
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..4 * PIECES));
}

#[test]
fn pieces_of_other_ranks_are_listed_exactly_once() {
    const ITEMS: i64 = 24;
    const BY: i64 = 10;
    // Some pieces are filtered out, and some fail.
    let build = |rank, world| {
        let shard = Shard::new(rank, world).unwrap().remainder(Remainder::Uneven);
        cut(ITEMS, BY)
            .filter("not all", |n| Ok(n % 7 != 3))
            .map("some", |n| match n % 11 {
                5 => Err(Error::new(ErrorKind::Corrupt, "bad")),
                _ => Ok(n),
            })
            .on_error(OnError::SKIP)
            .deterministic()
            .shard(shard)
    };
    let mut seen: Vec<i64> = Vec::new();
    let mut state: Option<State> = None;
    for (world, steps) in [(4, 13), (3, 3), (5, 9), (2, 21), (6, 2)] {
        let mut states = Vec::new();
        for rank in 0..world {
            let builder = build(rank, world);
            let builder = match &state {
                Some(state) => builder.resume(state.clone()),
                None => builder,
            };
            let mut pipeline = builder.build().unwrap();
            seen.extend(next(&mut pipeline, steps + rank as usize));
            states.push(stored(pipeline.state().unwrap()));
        }
        let combined = State::combine(states).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json(&combined)).unwrap();
        // Each piece once, and no pieces of samples that are done.
        let pieces = value["pieces"].as_array().unwrap();
        let samples: Vec<u64> = pieces.iter().map(|piece| piece[1].as_u64().unwrap()).collect();
        assert!(samples.windows(2).all(|pair| pair[0] < pair[1]), "{pieces:?}");
        let done = value["base"].as_array().unwrap();
        let is_done = |sample: &u64| {
            let bounds = |range: &serde_json::Value| (range[0].as_u64(), range[1].as_u64());
            done.iter()
                .map(bounds)
                .any(|(start, end)| start <= Some(*sample) && Some(*sample) < end)
        };
        assert!(!samples.iter().any(is_done), "{samples:?} are in pieces, {done:?} are done");
        state = Some(stored(combined));
    }
    let state = state.unwrap();
    for rank in 0..3 {
        seen.extend(rest(build(rank, 3), state.clone()));
    }
    seen.sort_unstable();
    let expected = (0..ITEMS * BY).filter(|n| n % 7 != 3 && n % 11 != 5);
    assert!(seen.iter().copied().eq(expected), "{seen:?}");
}

#[test]
fn counts_of_all_ranks_add_up_to_all_samples() {
    let build = |rank, world| {
        let shard = Shard::new(rank, world).unwrap().remainder(Remainder::Uneven);
        let some = PipelineBuilder::new(numbers(100)).filter("not all", |n| Ok(n % 7 != 0));
        some.deterministic().epochs(0..2).shard(shard)
    };
    let mut state: Option<State> = None;
    for (world, steps) in [(3, 4), (2, 5), (5, usize::MAX)] {
        let states = (0..world).map(|rank| {
            let builder = build(rank, world);
            let builder = match &state {
                Some(state) => builder.resume(state.clone()),
                None => builder,
            };
            let mut pipeline = builder.build().unwrap();
            next(&mut pipeline, steps);
            stored(pipeline.state().unwrap())
        });
        state = Some(State::combine(states.collect::<Vec<_>>()).unwrap());
    }
    let counts = SampleCounts { delivered: 170, filtered: 30, ..SampleCounts::default() };
    assert_eq!(state.unwrap().samples(), counts);
}

/// Very many numbers, with random access.
#[derive(Debug)]
struct Far;

const FAR: u64 = 1_000_000_000;

impl Source for Far {
    type Item = u64;
    fn open(&self, _: Cursor) -> Result<BoxStream<'static, Result<u64>>> {
        Err(Error::new(ErrorKind::Unsupported, "only by positions"))
    }
    fn open_at(&self, positions: Positions) -> Result<BoxStream<'static, (u64, Result<u64>)>> {
        let positions = positions.take_while(|place| place.at < FAR);
        Ok(stream::iter(positions.map(|place| (place.id, Ok(place.at)))).boxed())
    }
    fn len_hint(&self) -> Option<u64> {
        Some(FAR)
    }
}

/// A rank that has done `done` positions, resumed from `state` if given.
fn far(rank: u64, world: u64, state: Option<&State>, done: u64) -> State {
    let shard = Shard::new(rank, world).unwrap().remainder(Remainder::Uneven);
    let mut builder = PipelineBuilder::new(Far).deterministic().shard(shard);
    if let Some(state) = state {
        builder = builder.resume(stored(state.clone()));
    }
    let mut state = serde_json::to_value(builder.build().unwrap().state().unwrap()).unwrap();
    state["done"] = serde_json::json!([[0, done]]);
    serde_json::from_value(state).unwrap()
}

#[test]
fn distant_ranks_with_very_many_samples_are_combined_by_arithmetic() {
    // CPU-bound, so slow on a busy machine.
    within_seconds(300, || {
        // The first ranks have done most of their positions, the last ranks almost none.
        let mut state: Option<State> = None;
        let mut done = 0;
        for world in [64u64, 8, 64] {
            let part = (FAR - done) / world / 2;
            let own = |rank| part * (world - rank) / world;
            let states: Vec<_> =
                (0..world).map(|rank| far(rank, world, state.as_ref(), own(rank))).collect();
            done += (0..world).map(own).sum::<u64>();
            let audit = State::audit(states.clone()).unwrap();
            assert_eq!((audit.done(), audit.repeated_count()), (done, 0));
            assert_eq!(audit.missing_count(), FAR - done);
            // There are millions of ranges, but the first ones are computed immediately.
            assert!(
                audit.missing().take(1000).map(|range| range.end - range.start).sum::<u64>() > 0
            );
            let mut twice = states.clone();
            twice.push(states[1].clone());
            let audit = State::audit(twice).unwrap();
            assert_eq!(audit.repeated_count(), own(1));
            assert_eq!(audit.repeated().take(100).count(), 100);
            assert!(audit.to_string().len() < 2000, "{audit}");
            let combined = State::combine(states).unwrap();
            assert_eq!(combined.remaining(), Some(FAR - done));
            state = Some(combined);
        }
        let state = state.unwrap();
        let size = json(&state).len();
        assert!(size < 16 << 10, "{size} bytes");
        // A run resumes from the state, with all ranks at the same step.
        let first = |rank| {
            let shard = Shard::new(rank, 5).unwrap().remainder(Remainder::Uneven);
            let builder = PipelineBuilder::new(Far).deterministic().shard(shard);
            let mut pipeline = builder.resume(stored(state.clone())).build().unwrap();
            next(&mut pipeline, 50)
        };
        let parts: Vec<Vec<u64>> = (0..5).map(first).collect();
        let got = (0..250).map(|at| parts[at % 5][at / 5]);
        let audit = State::audit([state.clone()]).unwrap();
        assert!(got.eq(audit.missing().flatten().take(250)));
    });
}

#[test]
fn an_invalid_state_is_refused() {
    let state = far(1, 4, None, 9);
    for (part, wrong) in [
        ("shard", r#"{"rank":4,"world":4,"remainder":"drop"}"#),
        ("shard", r#"{"rank":0,"world":0,"remainder":"drop"}"#),
        ("base", r#"[{"ranks":[]}]"#),
        ("base", r#"[{"ranks":[[[0,9223372036854775808]],[[0,9223372036854775808]]]}]"#),
        ("base", r#"[[[0,2]],{"ranks":[[[4,2]]]}]"#),
        ("pieces", r#"[[0,1,"delivered",[[1,0]]]]"#),
    ] {
        let mut value = serde_json::to_value(&state).unwrap();
        value[part] = serde_json::from_str(wrong).unwrap();
        assert!(serde_json::from_value::<State>(value).is_err(), "{part}: {wrong}");
    }
    for format in [1, 3] {
        let mut value = serde_json::to_value(&state).unwrap();
        value["format"] = format.into();
        let other: State = serde_json::from_value(value).unwrap();
        let shard = Shard::new(1, 4).unwrap().remainder(Remainder::Uneven);
        let builder = PipelineBuilder::new(Far).deterministic().shard(shard).resume(other);
        let error = builder.build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "format {format}: {error}");
        assert!(error.message().contains("reads version 2"), "{error}");
    }
}

#[test]
fn very_large_numbers_in_a_state_do_not_overflow() {
    let padded = Shard::new(1, 2).unwrap().remainder(Remainder::Pad);
    [Shard::WHOLE, padded].into_iter().for_each(counts_on);
}

fn counts_on(shard: Shard) {
    let build = || PipelineBuilder::new(numbers(10)).deterministic().shard(shard);
    let mut pipeline = build().build().unwrap();
    assert_eq!(next(&mut pipeline, 1), [shard.rank() as i64]);
    let state = serde_json::to_value(pipeline.state().unwrap()).unwrap();
    const MOST: u64 = u64::MAX;
    let all = serde_json::json!({"delivered": MOST, "dropped": 0, "filtered": 0, "left_out": MOST});
    for (part, wrong) in [
        ("steps", MOST.into()),
        ("steps_in_epoch", MOST.into()),
        ("padded", MOST.into()),
        ("done", serde_json::json!([[0, MOST]])),
        ("pieces", serde_json::json!([[0, MOST, "delivered", [[0, 1]]]])),
        ("pieces", serde_json::json!([[1, 3, "delivered", [[MOST - 1, 1]]]])),
        (
            "carry",
            serde_json::json!({"cut": {"piece": [0, MOST, MOST], "out": 1, "fate": "joined"}}),
        ),
        ("parts_end", MOST.into()),
        ("in_epoch", all.clone()),
        ("in_all", all),
    ] {
        for len in [serde_json::json!(10), MOST.into(), serde_json::Value::Null] {
            let mut value = state.clone();
            value[part] = wrong.clone();
            value["len"] = len;
            let state: State = serde_json::from_value(value).unwrap();
            // No call panics.
            let whole = State::combine([state.clone()]);
            let equal = state.clone().of_equal_ranks();
            let reported = State::audit([state.clone()]).map(|audit| audit.to_string());
            let skipped = state.clone().skip([SampleId { epoch: 0, index: 3 }]);
            let resumed = build().resume(state.clone()).build().map(|mut pipeline| {
                let items: Vec<Result<i64>> = pipeline.by_ref().take(10).collect();
                for error in items.iter().filter_map(|item| item.as_ref().err()) {
                    assert!(!error.to_string().contains("panicked"), "{part}: {error}");
                }
                (items.len(), pipeline.state().map(|state| state.steps()).ok())
            });
            let refusals = [
                whole.err(),
                equal.err(),
                reported.err(),
                skipped.as_ref().err().cloned(),
                resumed.as_ref().err().cloned(),
            ];
            for error in refusals.into_iter().flatten() {
                use ErrorKind::{Corrupt, InvalidArgument, LimitExceeded};
                let kinds = [Corrupt, InvalidArgument, LimitExceeded];
                assert!(kinds.contains(&error.kind()), "{part}: {error}");
            }
            // At least one position is done; numbers beyond the total are ignored.
            let frontier = state.frontier();
            assert!(state.remaining() < Some(MOST) && (frontier > 0 || part == "done"), "{part}");
            if part == "steps" && shard == Shard::WHOLE {
                assert_eq!(skipped.unwrap().steps(), MOST);
                assert_eq!(resumed.unwrap(), (9, Some(MOST)));
            }
        }
    }
}

#[test]
fn steps_keep_their_numbers_over_runs_and_skipped_steps() {
    let build = |skip: std::ops::Range<u64>| {
        PipelineBuilder::new(numbers(20))
            .batch("batch", 3, false)
            .deterministic()
            .epochs(0..2)
            .skip_steps(skip)
            .record_order()
    };
    let mut whole = build(0..0).build().unwrap();
    assert_eq!(next(&mut whole, 100).len(), 14);
    let whole = whole.order_record().unwrap().clone();
    let mut all = OrderRecord::new();
    let mut state: Option<State> = None;
    // Each run ends some steps after the last saved state.
    for (saved, more) in [(3, 2), (4, 1), (2, 0), (100, 0)] {
        let builder = build(5..8);
        let builder = match state.take() {
            Some(state) => builder.resume(stored(state)),
            None => builder,
        };
        let mut pipeline = builder.build().unwrap();
        next(&mut pipeline, saved);
        let reached = pipeline.state().unwrap();
        next(&mut pipeline, more);
        let record = pipeline.order_record().unwrap();
        assert_eq!(
            record.first_step() + record.steps().unwrap(),
            pipeline.state().unwrap().steps()
        );
        for step in record.first_step()..reached.steps() {
            let expected =
                if (5..8).contains(&step) { vec![] } else { whole.samples_of(step).unwrap() };
            assert_eq!(record.samples_of(step).unwrap(), expected, "step {step}");
        }
        all.append(record).unwrap();
        state = Some(reached);
    }
    assert_eq!(all.steps(), Some(14));
    assert_eq!(all.difference(&whole).added.len(), 8, "the skipped samples");
}

/// Ends each epoch after `items` items.
#[derive(Debug)]
struct EndAfter {
    items: usize,
    left: usize,
}

impl MergePolicy for EndAfter {
    fn choose(&mut self, _: &[bool]) -> Choice {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Choice::Branch(0)
            }
            None => Choice::EndEpoch,
        }
    }

    fn start_epoch(&mut self, _: u64, _: usize, _: u64) -> Result<()> {
        self.left = self.items;
        Ok(())
    }
}

#[test]
fn items_that_a_merge_leaves_out_at_its_end_are_counted() {
    within_seconds(60, || {
        let lists = PipelineBuilder::new(numbers(40)).batch("lists", 3, false);
        let merged = PipelineBuilder::merge([lists], EndAfter { items: 5, left: 0 });
        // A failed audit would end the run at the end of the first epoch.
        let mut pipeline = merged.deterministic().epochs(0..2).build().unwrap();
        for epoch in 1..3 {
            let lists: Vec<Vec<i64>> =
                pipeline.next_epoch().unwrap().map(|it| it.unwrap()).collect();
            assert!(lists.into_iter().flatten().eq(0..15));
            let counts =
                SampleCounts { delivered: 15 * epoch, left_out: 25 * epoch, ..Default::default() };
            assert_eq!(pipeline.state().unwrap().samples(), counts);
        }
        assert!(pipeline.next().is_none());
    });
}
