//! Mixtures with weights that change in the middle of an epoch, and the fingerprints of mixtures.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use crate::common::{sleep_by_number, within_seconds};
use proptest::prelude::*;
use spdl_core::source::sampler::{
    Concatenated, Limited, Mixture, Part, Repeated, Sampler, Sequential, Shuffled, Until,
};
use spdl_core::{
    Dataset, DatasetSource, Error, ErrorKind, Pipeline, PipelineBuilder, Result, Shard, State,
};

fn mixture(items: &[u64], weights: &[f64], until: Until) -> Mixture {
    let parts = items.iter().zip(weights).map(|(&items, &weight)| Part::new(items, weight));
    Mixture::new(parts, until, 7).unwrap()
}

fn order(mixture: &Mixture, items: &[u64], epoch: u64) -> Vec<u64> {
    let order = mixture.epoch(items.iter().sum(), epoch).unwrap();
    (0..order.len()).map(|position| order.at(position)).collect()
}

/// The part that an item belongs to.
fn part_of(items: &[u64], item: u64) -> usize {
    let mut end = 0;
    items
        .iter()
        .position(|count| {
            end += count;
            item < end
        })
        .unwrap()
}

fn of_part(items: &[u64], order: &[u64], part: usize) -> Vec<u64> {
    order.iter().copied().filter(|&item| part_of(items, item) == part).collect()
}

/// Parts, with several consecutive sets of weights.
#[derive(Clone, Debug)]
struct Parts {
    items: Vec<u64>,
    weights: [Vec<f64>; 3],
}

fn parts() -> impl Strategy<Value = Parts> {
    let weight = || prop::sample::select(vec![0.5, 1.0, 2.0, 7.0]);
    let part = (1..300u64, weight(), weight(), weight());
    prop::collection::vec(part, 1..5).prop_map(|parts| Parts {
        items: parts.iter().map(|part| part.0).collect(),
        weights: [
            parts.iter().map(|part| part.1).collect(),
            parts.iter().map(|part| part.2).collect(),
            parts.iter().map(|part| part.3).collect(),
        ],
    })
}

proptest! {
    #[test]
    fn a_mixture_that_takes_over_continues_each_part(
        parts in parts(), samples in prop::option::of(1..3000u64), all: bool,
        places in prop::collection::vec(0.0..1.0f64, 2), epoch in 0..3u64,
    ) {
        let Parts { items, weights } = parts;
        let until = match samples {
            Some(samples) => Until::Samples(samples),
            None if all => Until::AllExhausted,
            None => Until::FirstExhausted,
        };
        let continues = samples.is_some();
        let mut current = mixture(&items, &weights[0], until);
        let mut changes = Vec::new();
        let mut least = 0;
        for (weights, share) in weights[1..].iter().zip(places) {
            let whole = order(&current, &items, epoch);
            let left = whole.len() as u64 - least;
            let at = least + (left as f64 * share) as u64;
            let next = mixture(&items, weights, until);
            let Ok(next) = next.taking_over(&current, epoch, at) else {
                // A part is already exhausted.
                prop_assert!(!continues);
                break;
            };
            let changed = order(&next, &items, epoch);
            prop_assert_eq!(&changed[..at as usize], &whole[..at as usize]);
            for earlier in 0..epoch {
                prop_assert_eq!(order(&next, &items, earlier), order(&current, &items, earlier));
            }
            changes.push((at, weights.clone()));
            (current, least) = (next, at);
        }
        // The items of each part are those of the part alone.
        let epochs = if continues { 0..epoch + 2 } else { epoch..epoch + 1 };
        let run: Vec<u64> =
            epochs.clone().flat_map(|epoch| order(&current, &items, epoch)).collect();
        for part in 0..items.len() {
            let seen = of_part(&items, &run, part);
            let alone: Vec<f64> = (0..items.len()).map(|at| f64::from(at == part)).collect();
            let expected: Vec<u64> = if continues {
                let alone = mixture(&items, &alone, Until::Samples(run.len() as u64));
                order(&alone, &items, 0)
            } else if seen.len() as u64 <= items[part] {
                order(&mixture(&items, &alone, Until::FirstExhausted), &items, epoch)
            } else {
                continue;
            };
            prop_assert_eq!(&seen[..], &expected[..seen.len()], "part {}", part);
        }
        // After the last change, the new proportions apply.
        let last = order(&current, &items, epoch);
        if let Some((at, weights)) = changes.last() {
            let behind = &last[*at as usize..];
            let sum: f64 = weights.iter().sum();
            for (part, weight) in weights.iter().enumerate() {
                let share = behind.len() as f64 * weight / sum;
                let count = of_part(&items, behind, part).len() as f64;
                // Within a block of 1,024 positions the parts are shuffled.
                if behind.len().is_multiple_of(1024) || !continues {
                    prop_assert!((count - share).abs() <= items.len() as f64, "{count}, {share}");
                }
            }
        }
        let counts: Vec<u64> = (0..items.len())
            .map(|part| of_part(&items, &run, part).len() as u64)
            .collect();
        let last_epoch = epochs.end - 1;
        let len = order(&current, &items, last_epoch).len() as u64;
        prop_assert_eq!(current.consumed(last_epoch, len).unwrap(), counts);
    }
}

#[test]
fn an_incompatible_mixture_is_refused() {
    let half = mixture(&[50, 50], &[1.0, 1.0], Until::Samples(100));
    let refused = |items: &[u64], samples, position, words: &str| {
        let weights = vec![1.0; items.len()];
        let other = mixture(items, &weights, Until::Samples(samples));
        let error = other.taking_over(&half, 0, position).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains(words), "{error}");
    };
    refused(&[50], 100, 10, "must start with the parts");
    refused(&[40, 60], 100, 10, "must start with the parts");
    refused(&[50, 50], 60, 70, "position 70: an epoch has only 60 positions");
    refused(&[50, 50], 200, 101, "has 100 positions");
    let more = mixture(&[50, 50, 9], &[1.0, 1.0, 1.0], Until::Samples(100));
    assert!(more.taking_over(&half, 0, 100).is_ok());
    let first = mixture(&[50, 50], &[1.0, 1.0], Until::FirstExhausted);
    assert!(first.clone().taking_over(&first, 0, 100).is_err(), "no positions are left");
}

type Data = Arc<Concatenated<u64>>;

fn data(items: &[u64]) -> Data {
    let mut start = 0;
    let parts = items.iter().map(|&count| -> Arc<dyn Dataset<Item = u64>> {
        start += count;
        Arc::new((start - count..start).collect::<Vec<u64>>())
    });
    Arc::new(Concatenated::new(parts).unwrap())
}

/// Items in batches, in completion order unless `ordered`.
fn training(
    data: &Data,
    sampler: impl Sampler,
    shard: Shard,
    ordered: bool,
) -> PipelineBuilder<Vec<u64>> {
    let source = DatasetSource::shared(Arc::clone(data)).sampler(sampler);
    let builder = PipelineBuilder::new(source)
        .map("look", |sample| {
            sleep_by_number(sample.item as i64);
            Ok(sample.item)
        })
        .batch("batch", 4, false)
        .threads(3)
        .shard(shard);
    if ordered { builder.deterministic() } else { builder }
}

fn batches(pipeline: &mut Pipeline<Vec<u64>>, most: usize) -> Vec<u64> {
    pipeline.by_ref().take(most).flat_map(|batch| batch.unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    #[test]
    fn weights_change_at_a_checkpoint_without_loss(
        parts in parts(), samples in 1..600u64, worlds in prop::sample::select(vec![[1, 1], [2, 3]]),
        steps in prop::collection::vec(0..30usize, 2), ordered: bool, combine: bool,
    ) {
        within_seconds(60, move || {
            let Parts { items, weights } = parts;
            let until = Until::Samples(samples);
            let all = data(&items);
            let shard = |rank, world| {
                Shard::new(rank, world).unwrap().remainder(spdl_core::source::Remainder::Uneven)
            };
            let first = mixture(&items, &weights[0], until);
            let (mut seen, mut states) = (Vec::new(), Vec::new());
            let [before, after] = worlds;
            for rank in 0..before {
                let mut pipeline =
                    training(&all, first.clone(), shard(rank, before), ordered).build().unwrap();
                seen.extend(batches(&mut pipeline, steps[rank as usize % 2]));
                states.push(pipeline.state().unwrap());
            }
            // The states of ranks, separate or combined.
            let ends = |states: &[State]| states.iter().map(State::frontier).max().unwrap();
            let frontier = ends(&states);
            if states.iter().any(|state| state.epoch() > 0) {
                return;
            }
            let states = if combine || before != after {
                vec![State::combine(states).unwrap()]
            } else {
                states
            };
            assert_eq!(ends(&states), frontier);
            let second = mixture(&items, &weights[1], until);
            let second = second.taking_over(&first, 0, frontier).unwrap();
            let mut expected = order(&second, &items, 0);
            for rank in 0..after {
                let state = states.get(rank as usize).unwrap_or(&states[0]).clone();
                let state = state.allow_change("source order weights");
                let rest = training(&all, second.clone(), shard(rank, after), ordered);
                let mut rest = rest.resume(state).build().unwrap();
                seen.extend(batches(&mut rest, usize::MAX));
                // The new state belongs to the changed run.
                let over = rest.state().unwrap();
                let again = training(&all, second.clone(), shard(rank, after), ordered);
                assert!(again.resume(over).build().is_ok());
            }
            if ordered && worlds == [1, 1] {
                assert_eq!(seen, expected);
            }
            seen.sort_unstable();
            expected.sort_unstable();
            assert_eq!(seen, expected);
        });
    }
}

fn refusal<T>(built: Result<T>) -> Error {
    let error = built.map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    error
}

#[test]
fn a_changed_setting_of_a_mixture_is_named() {
    let items = [40, 30, 20, 10];
    let all = data(&items);
    #[derive(Clone)]
    struct Chosen {
        weights: [f64; 2],
        inner: [f64; 2],
        seed: u64,
        repeated: u32,
        limit: u64,
        until: Until,
    }
    let chosen = Chosen {
        weights: [1.0, 2.0],
        inner: [1.0, 1.0],
        seed: 3,
        repeated: 2,
        limit: 40,
        until: Until::AllExhausted,
    };
    let build = |chosen: &Chosen| {
        let inner = [
            Part::new(30, chosen.inner[0]).sampler(Shuffled::new(chosen.seed)),
            Part::new(30, chosen.inner[1])
                .sampler(Repeated::passes(Sequential, chosen.repeated).unwrap()),
        ];
        let limited = Limited::items(Shuffled::new(5), 0..chosen.limit).unwrap();
        let outer = [
            Part::new(40, chosen.weights[0]).sampler(limited),
            Part::mixture(Mixture::new(inner, Until::AllExhausted, 9).unwrap(), chosen.weights[1]),
        ];
        let mixed = Mixture::new(outer, chosen.until, 1).unwrap();
        training(&all, Repeated::passes(mixed, 1).unwrap(), Shard::default(), true)
    };
    let mut pipeline = build(&chosen).build().unwrap();
    assert_eq!(batches(&mut pipeline, 3).len(), 12);
    let state = pipeline.state().unwrap();
    assert!(build(&chosen).resume(state.clone()).build().is_ok());
    let assert_changed = |changed: Chosen, part: &str, words: &[&str]| {
        let error = refusal(build(&changed).resume(state.clone()).build());
        assert_eq!(error.message().matches(" was ").count(), 1, "{error}");
        assert!(error.message().contains(&format!(": {part} was ")), "{error}");
        for word in words {
            assert!(error.message().contains(word), "{error}");
        }
        let allowed = state.clone().allow_change(part);
        assert!(build(&changed).resume(allowed).build().is_ok());
    };
    let same = || chosen.clone();
    assert_changed(
        Chosen { weights: [1.0, 3.0], ..same() },
        "source order weights",
        &["1 : 2", "1 : 3"],
    );
    assert_changed(
        Chosen { inner: [5.0, 2.0], ..same() },
        "source order part 1 weights",
        &["5 : 2"],
    );
    assert_changed(
        Chosen { seed: 4, ..same() },
        "source order part 1 part 0",
        &["seed: 3", "seed: 4"],
    );
    assert_changed(
        Chosen { repeated: 3, ..same() },
        "source order part 1 part 1",
        &["passes 3 times"],
    );
    assert_changed(Chosen { limit: 30, ..same() }, "source order part 0", &["0..40", "0..30"]);
    assert_changed(
        Chosen { until: Until::Samples(90), ..same() },
        "source order",
        &["Samples(90)"],
    );
}

#[test]
fn a_mixture_of_many_parts_has_a_small_fingerprint() {
    let many = |seed| {
        let parts = (0..1000u64).map(|at| Part::new(10, 1.0).sampler(Shuffled::new(seed + at)));
        Mixture::new(parts, Until::AllExhausted, 1).unwrap().fingerprint_parts()
    };
    let (one, other) = (many(0), many(1000));
    let bytes: usize = one.iter().map(|(name, text)| name.len() + text.len()).sum();
    assert!(bytes < 4096, "{bytes}");
    assert!(one.iter().zip(&other).skip(2).all(|(a, b)| a.0 == b.0 && a.1 != b.1));
    assert_eq!(one.last().unwrap().0, "further parts");
}

#[test]
fn a_fingerprint_contains_no_type_names() {
    #[derive(Clone, Debug)]
    struct OfThisTest(u64);
    let numbers = DatasetSource::new((0..9).collect::<Vec<u64>>());
    let pipeline = PipelineBuilder::new(numbers)
        .map("wrap", |n| Ok(OfThisTest(n)))
        .batch("batch", 2, false)
        .map("unwrap", |list: Vec<OfThisTest>| Ok(list.len() as u64 + list[0].0))
        .build()
        .unwrap();
    let state = pipeline.state().unwrap();
    let parts = state.fingerprint();
    let text_of = |part: &str| parts[part].as_str();
    assert_eq!(text_of("stage wrap"), "cpu behind source");
    assert_eq!(text_of("stage batch"), "batch behind wrap");
    assert_eq!(text_of("stage batch: size"), "2");
    for (part, text) in parts {
        for name in ["OfThisTest", "u64", "Vec"] {
            assert!(!text.contains(name), "{part}: {text}");
        }
    }
}
