//! Split items of which a part fails, is filtered out or is left out: each is counted once, and a
//! resumed run delivers exactly the remaining parts, split as before.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{bad_number, until, within_seconds};
use proptest::prelude::*;
use spdl_core::resume::SampleCounts;
use spdl_core::stage::{Aggregator, Bucketing, ConcatAndSplit, ExactResume, Packed, Piece};
use spdl_core::{
    DatasetSource, OnError, Pipeline, PipelineBuilder, Result, Stage, StageContext, StageOptions,
    State,
};

type Text = Vec<i64>;
type Cut = Packed<Piece<Text>>;

/// Texts of these lengths; a token is 1000 · text + offset.
fn texts(lengths: &[usize]) -> Vec<Text> {
    let text = |(n, &length): (usize, &usize)| (0..length).map(|i| (1000 * n + i) as i64).collect();
    lengths.iter().enumerate().map(text).collect()
}

fn tokens(cut: Cut) -> Vec<i64> {
    cut.items.into_iter().flat_map(|piece| piece.part).collect()
}

/// The stages after the splitting stage.
#[derive(Clone, Debug)]
struct Plan {
    lengths: Vec<usize>,
    capacity: u64,
    drop_last: bool,
    /// Sequences whose first token modulo 11 is in `fails` fail; those in `filtered` are filtered
    /// out.
    fails: Vec<i64>,
    filtered: Vec<i64>,
    /// How many sequences form a list; 0: no lists; 4: lists of tokens.
    list: usize,
    epochs: u64,
    threads: usize,
    prefetch: usize,
}

impl Plan {
    fn builder(&self) -> PipelineBuilder<Vec<i64>> {
        let Plan { fails, filtered, list, .. } = self.clone();
        let has = |which: Vec<i64>, tokens: &[i64]| which.contains(&(tokens[0] % 11));
        let sequences = PipelineBuilder::new(DatasetSource::new(texts(&self.lengths)))
            .concat_and_split("cut", self.capacity, self.drop_last)
            .map("tokens", |cut| Ok(tokens(cut)))
            .map("fail", move |tokens: Vec<i64>| match has(fails.clone(), &tokens) {
                true => Err(bad_number(tokens[0])),
                false => Ok(tokens),
            })
            .filter("filter", move |tokens| Ok(!has(filtered.clone(), tokens)));
        let sequences = match list {
            0 => sequences,
            // Unbatched, and batched across sequences.
            4 => {
                let apart = sequences.unbatch("apart").filter("thin", |token| Ok(token % 7 != 1));
                let like = Bucketing::boundaries([2.0]).batch_size(3);
                let lists = apart.bucket("like", like, |token| (token % 4) as f64);
                lists.map("items", |list| Ok(list.items))
            }
            size => sequences
                .batch("lists", size, self.drop_last)
                .map("one", |lists| Ok(lists.concat())),
        };
        sequences
            .deterministic()
            .on_error(OnError::SKIP)
            .allow_total_loss()
            .epochs(0..self.epochs)
            .threads(self.threads)
            .prefetch(self.prefetch)
    }
}

fn plans() -> impl Strategy<Value = Plan> {
    let lengths = prop::collection::vec(1..15usize, 0..20);
    let kinds = || prop::collection::vec(0..11i64, 0..5);
    let rest = (1..4u64, 1..4usize, 1..12usize);
    (lengths, 1..8u64, any::<bool>(), kinds(), kinds(), 0..5usize, rest).prop_map(
        |(lengths, capacity, drop_last, fails, filtered, list, (epochs, threads, prefetch))| Plan {
            lengths,
            capacity,
            drop_last,
            fails,
            filtered,
            list,
            epochs,
            threads,
            prefetch,
        },
    )
}

fn take(pipeline: &mut Pipeline<Vec<i64>>, most: usize) -> Vec<Vec<i64>> {
    pipeline.by_ref().take(most).map(|item| item.unwrap()).collect()
}

/// Waits until the statistics no longer change, so that all early drops are counted.
fn settle(pipeline: &Pipeline<Vec<i64>>) {
    let monitor = pipeline.monitor();
    let moved = || {
        let stages = monitor.statistics().stages;
        stages.iter().map(|stage| (stage.items, stage.items_out)).collect::<Vec<_>>()
    };
    let mut before = moved();
    loop {
        std::thread::sleep(Duration::from_millis(2));
        let now = moved();
        if std::mem::replace(&mut before, now.clone()) == now {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn split_items_resume_for_any_outcome_of_their_parts(
        plan in plans(), cuts in prop::collection::vec((0..12usize, any::<bool>()), 1..4),
    ) {
        within_seconds(60, move || {
            let mut undisturbed = plan.builder().build().unwrap();
            let whole = take(&mut undisturbed, usize::MAX);
            let counts = undisturbed.state().unwrap().samples();
            let mut seen = Vec::new();
            let mut state: Option<State> = None;
            for (most, settles) in cuts.into_iter().chain([(usize::MAX, false)]) {
                let builder = match state.take() {
                    Some(state) => plan.builder().resume(state),
                    None => plan.builder(),
                };
                let mut pipeline = builder.build().unwrap();
                seen.extend(take(&mut pipeline, most));
                if settles {
                    settle(&pipeline);
                }
                state = Some(pipeline.state().unwrap());
            }
            assert_eq!(seen, whole, "{plan:?}");
            assert_eq!(state.unwrap().samples(), counts, "{plan:?}");
        });
    }
}

/// Sequences of 4 tokens; those that start with a token in `fails` fail.
fn fours(lengths: &[usize], fails: &'static [i64]) -> PipelineBuilder<Vec<i64>> {
    PipelineBuilder::new(DatasetSource::new(texts(lengths)))
        .concat_and_split("cut", 4, false)
        .map("tokens", |cut| Ok(tokens(cut)))
        .map("fail", move |tokens: Vec<i64>| match fails.contains(&tokens[0]) {
            true => Err(bad_number(tokens[0])),
            false => Ok(tokens),
        })
        .on_error(OnError::SKIP)
        .deterministic()
        .prefetch(9)
}

#[test]
fn a_part_that_is_dropped_early_affects_no_other_part() {
    // 0 1 2 3 | 4 5 6 7 | 8 9 1000 1001 | 1002, of which the third fails while the others wait.
    let build = || fours(&[10, 3], &[8]);
    let mut pipeline = build().build().unwrap();
    pipeline.start().unwrap();
    settle(&pipeline);
    let state = pipeline.state().unwrap();
    assert_eq!(state.samples(), SampleCounts::default(), "parts of both are in flight");
    let rest = |state| take(&mut build().resume(state).build().unwrap(), 99);
    let all = [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![1002]];
    assert_eq!(rest(state), all);
    for at in 1..=3 {
        assert_eq!(pipeline.next().unwrap().unwrap(), all[at - 1]);
        let state = pipeline.state().unwrap();
        // After the second sequence, the dropped third one is counted in order.
        assert_eq!(rest(state), all[at..], "after {at}");
        let done = SampleCounts { delivered: (at as u64).saturating_sub(1), ..Default::default() };
        // The drop may not have happened yet.
        until("parts are counted", || pipeline.state().unwrap().samples() == done);
    }
}

#[test]
fn a_split_item_that_fails_after_a_resume_does_not_affect_the_next_item() {
    let broken = Arc::new(AtomicBool::new(false));
    let build = || {
        let broken = Arc::clone(&broken);
        let read = move |text: Text| match text[0] == 0 && broken.load(Ordering::Relaxed) {
            true => Err(bad_number(0)),
            false => Ok(text),
        };
        PipelineBuilder::new(DatasetSource::new(texts(&[6, 6, 6])))
            .map("read", read)
            .concat_and_split("cut", 4, false)
            .map("tokens", |cut| Ok(tokens(cut)))
            .on_error(OnError::SKIP)
            .deterministic()
    };
    let mut pipeline = build().build().unwrap();
    assert_eq!(take(&mut pipeline, 1), [[0, 1, 2, 3]]);
    let state = pipeline.state().unwrap();
    broken.store(true, Ordering::Relaxed);
    let mut resumed = build().resume(state).build().unwrap();
    let rest = take(&mut resumed, 99);
    let expected = [[1000, 1001, 1002, 1003], [1004, 1005, 2000, 2001], [2002, 2003, 2004, 2005]];
    assert_eq!(rest, expected);
    let counts = resumed.state().unwrap().samples();
    assert_eq!((counts.delivered, counts.dropped), (3, 0), "a part of it was delivered");
}

#[test]
fn an_incomplete_split_item_at_the_end_does_not_affect_the_next_epoch() {
    let build = || {
        PipelineBuilder::new(DatasetSource::new(texts(&[6])))
            .concat_and_split("cut", 4, true)
            .map("tokens", |cut| Ok(tokens(cut)))
            .deterministic()
            .epochs(0..2)
    };
    let mut pipeline = build().build().unwrap();
    assert_eq!(take(&mut pipeline, 1), [[0, 1, 2, 3]]);
    let left_out = || pipeline.monitor().statistics().left_out;
    until("the remainder is left out", || left_out() > 0);
    // A part of the item was delivered. The ledger records the remainder a moment later.
    until("the sample is counted", || pipeline.state().unwrap().samples().delivered == 1);
    let state = pipeline.state().unwrap();
    let mut resumed = build().resume(state).build().unwrap();
    assert_eq!(take(&mut resumed, 99), [[0, 1, 2, 3]]);

    // Before the first part is delivered, no sample is done.
    let mut pipeline = build().build().unwrap();
    pipeline.start().unwrap();
    settle(&pipeline);
    let state = pipeline.state().unwrap();
    assert_eq!(state.samples(), SampleCounts::default());
    let mut resumed = build().resume(state).build().unwrap();
    assert_eq!(take(&mut resumed, 99), [[0, 1, 2, 3], [0, 1, 2, 3]]);
}

/// Emits the sum and the product of each two numbers, and of the remainder at the end of an epoch.
#[derive(Default)]
struct SumAndProduct {
    held: Vec<i64>,
    product: Option<i64>,
}

impl SumAndProduct {
    fn sum(&mut self) -> Option<i64> {
        let held = std::mem::take(&mut self.held);
        self.product = Some(held.iter().product());
        (!held.is_empty()).then(|| held.iter().sum())
    }
}

impl Aggregator<i64> for SumAndProduct {
    type Out = i64;
    fn accumulate(&mut self, n: i64) -> Result<Option<i64>> {
        self.held.push(n);
        Ok(if self.held.len() == 2 { self.sum() } else { None })
    }
    fn more(&mut self) -> Result<Option<i64>> {
        Ok(self.product.take())
    }
    fn flush(&mut self) -> Result<Option<i64>> {
        Ok(self.sum())
    }
    fn flush_more(&mut self) -> Result<Option<i64>> {
        Ok(self.product.take())
    }
}

/// Adds a random number that identifies the item.
struct Draw;

impl Stage<i64> for Draw {
    type Out = (i64, u64);
    fn process(&mut self, n: i64, cx: &mut StageContext<'_, (i64, u64)>) -> Result<()> {
        cx.emit((n, cx.rng().unit().to_bits()))
    }
}

#[test]
fn several_aggregates_of_the_same_items_are_all_delivered() {
    for (queue, prefetch) in [(1, 1), (1, 9), (9, 9)] {
        let build = || {
            PipelineBuilder::new(DatasetSource::new((1..8).collect::<Vec<i64>>()))
                .aggregate(StageOptions::new("both").queue(queue), || Ok(SumAndProduct::default()))
                .stage("draw", || Ok(Draw))
                .deterministic()
                .epochs(0..2)
                .prefetch(prefetch)
        };
        let all = |builder: PipelineBuilder<(i64, u64)>| -> Vec<(i64, u64)> {
            builder.build().unwrap().map(|item| item.unwrap()).collect()
        };
        let whole = all(build());
        let numbers: Vec<i64> = whole[..8].iter().map(|(n, _)| *n).collect();
        assert_eq!(numbers, [3, 2, 7, 12, 11, 30, 7, 7]);
        let random: std::collections::BTreeSet<u64> = whole.iter().map(|item| item.1).collect();
        assert_eq!(random.len(), 16, "random numbers differ");
        for at in 0..=whole.len() {
            let mut pipeline = build().build().unwrap();
            assert_eq!(pipeline.by_ref().take(at).count(), at);
            let state = pipeline.state().unwrap();
            // The last number of an epoch is alone.
            let delivered = at as u64 - 8 * state.epoch();
            let done = (delivered / 2 * 2).min(7);
            assert!(state.samples_in_epoch().delivered <= done, "after {at}");
            assert_eq!(all(build().resume(state)), whole[at..], "after {at}");
            // The delivery is recorded before the stage has reported the end of its outputs.
            let counted = || pipeline.state().unwrap().samples_in_epoch().delivered;
            until("the items are done", || counted() == done);
        }
    }
}

/// Emits each sequence twice, with the same inputs.
struct Doubled {
    concat: ConcatAndSplit<Text>,
    again: Option<Cut>,
}

impl Doubled {
    fn once_more(&mut self, cut: Option<Cut>) -> Option<Cut> {
        self.again = cut.clone();
        cut
    }
}

impl Aggregator<Text> for Doubled {
    type Out = Cut;
    fn accumulate(&mut self, text: Text) -> Result<Option<Cut>> {
        let cut = self.concat.accumulate(text)?;
        Ok(self.once_more(cut))
    }
    fn more(&mut self) -> Result<Option<Cut>> {
        if let Some(again) = self.again.take() {
            return Ok(Some(again));
        }
        let cut = self.concat.more()?;
        Ok(self.once_more(cut))
    }
    fn flush(&mut self) -> Result<Option<Cut>> {
        let cut = self.concat.flush()?;
        Ok(self.once_more(cut))
    }
    fn flush_more(&mut self) -> Result<Option<Cut>> {
        if let Some(again) = self.again.take() {
            return Ok(Some(again));
        }
        let cut = self.concat.flush_more()?;
        Ok(self.once_more(cut))
    }
    fn exact_resume(&mut self) -> Option<&mut dyn ExactResume> {
        Some(self)
    }
}

impl ExactResume for Doubled {
    fn inputs(&mut self) -> Vec<u64> {
        // The inputs end with the first of both.
        self.concat.inputs()
    }
    fn carry(&self) -> u64 {
        self.concat.carry()
    }
    fn resume(&mut self, carry: u64) {
        self.concat.resume(carry);
    }
}

#[test]
fn several_sequences_of_the_same_tokens_are_all_delivered() {
    let build = || {
        PipelineBuilder::new(DatasetSource::new(texts(&[10, 3, 3, 8, 2])))
            .aggregate("double", || {
                Ok(Doubled { concat: ConcatAndSplit::new(4, false)?, again: None })
            })
            .map("tokens", |cut| Ok(tokens(cut)[0]))
            .filter("thin", |token| Ok(*token != 8))
            .stage("draw", || Ok(Draw))
            .deterministic()
            .epochs(0..2)
    };
    let all = |builder: PipelineBuilder<(i64, u64)>| -> Vec<(i64, u64)> {
        builder.build().unwrap().map(|item| item.unwrap()).collect()
    };
    let whole = all(build());
    let first: Vec<i64> = whole.iter().map(|(token, _)| *token).collect();
    let epoch = [0, 0, 4, 4, 1002, 1002, 3000, 3000, 3004, 3004, 4000, 4000];
    assert_eq!(first, [epoch, epoch].concat());
    let random: std::collections::BTreeSet<u64> = whole.iter().map(|item| item.1).collect();
    assert_eq!(random.len(), whole.len(), "random numbers differ");
    for at in 0..=whole.len() {
        let mut pipeline = build().build().unwrap();
        assert_eq!(pipeline.by_ref().take(at).count(), at);
        let state = pipeline.state().unwrap();
        assert_eq!(all(build().resume(state)), whole[at..], "after {at}");
    }
}
