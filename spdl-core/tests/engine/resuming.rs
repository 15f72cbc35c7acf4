//! Interrupted runs, resumed at any point, for many graphs: every sample exactly once, and
//! bit-identical items if the order is deterministic.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{WriteNumber, bad_number, layout, numbers, sleep_by_number, within_seconds};
use futures_util::{StreamExt, stream};
use proptest::prelude::*;
use spdl_core::pipeline::path;
use spdl_core::resume::SampleCounts;
use spdl_core::source::{Cursor, Positions, Remainder};
use spdl_core::stage::{Aggregator, ExactResume, Retried};
use spdl_core::{
    BoxStream, Error, ErrorKind, OnError, Order, Pipeline, PipelineBuilder, Result, Retry,
    SampleId, Shard, Source, Stage, StageContext, StageOptions, State,
};

/// The items of a consumer: numbers, with random numbers of the last stage that draws.
type Seen = Vec<(i64, u64)>;

/// A graph over the numbers `0..items`. Each output is a list of the numbers in it.
#[derive(Clone, Debug)]
struct Graph {
    kind: usize,
    items: i64,
    epochs: u64,
    order: Order,
    fallible: bool,
    batch: usize,
    drop_last: bool,
}

/// Execution settings, which must not affect the results.
#[derive(Clone, Debug)]
struct Run {
    threads: usize,
    queue: usize,
    prefetch: usize,
}

const KINDS: usize = 9;

/// Adds a random number to each number.
struct Draw {
    fails: bool,
}

impl Stage<i64> for Draw {
    type Out = (i64, u64);
    fn process(&mut self, n: i64, cx: &mut StageContext<'_, (i64, u64)>) -> Result<()> {
        sleep_by_number(n);
        if self.fails && n % 11 == 6 {
            return Err(bad_number(n));
        }
        cx.emit((n, cx.rng().unit().to_bits()))
    }
}

impl Graph {
    /// How many pieces a number is split into.
    fn pieces(n: i64) -> i64 {
        n % 4
    }

    fn builder(&self, run: &Run) -> PipelineBuilder<Seen> {
        let Graph { kind, batch, drop_last, fallible, .. } = *self;
        let source = numbers(self.items).shuffled(3);
        let queue = run.queue;
        let named = move |name: &str| StageOptions::new(name).queue(queue).concurrency(3);
        let plain = PipelineBuilder::from_source(StageOptions::new("source").queue(queue), source);
        let draw = move |builder: PipelineBuilder<i64>| {
            builder.stage(named("draw"), move || Ok(Draw { fails: fallible }))
        };
        let cut = move |builder: PipelineBuilder<i64>| {
            builder.flat_map(named("cut"), |n| (0..Graph::pieces(n)).map(move |i| Ok(10 * n + i)))
        };
        let wait = move |builder: PipelineBuilder<(i64, u64)>| {
            builder.map_async(named("wait"), move |(n, r)| async move {
                if fallible && n % 13 == 5 { Err(bad_number(n)) } else { Ok((n, r)) }
            })
        };
        let odd =
            |builder: PipelineBuilder<(i64, u64)>| builder.filter("odd", |(n, _)| Ok(n % 3 != 1));
        let single = |builder: PipelineBuilder<(i64, u64)>| builder.map("list", |x| Ok(vec![x]));
        let built: PipelineBuilder<Seen> = match kind {
            // One piece each.
            0 => single(wait(odd(draw(plain)))),
            // Pieces go directly to the consumer.
            1 => single(wait(draw(cut(plain)))),
            // Pieces are batched.
            2 => odd(draw(cut(plain))).batch("batch", batch, drop_last),
            3 => wait(draw(plain)).batch("batch", batch, drop_last),
            // Batched, unbatched, filtered, and batched again.
            4 => {
                let apart = cut(plain).batch("first", batch, false).unbatch("apart");
                odd(draw(apart)).batch("second", batch + 1, drop_last)
            }
            // Unbatched pieces go directly to the consumer.
            5 => {
                let lists = draw(cut(plain)).batch("first", batch, drop_last);
                single(odd(lists.unbatch("apart")))
            }
            // Written into array batches.
            6 => cut(plain)
                .fill(named("fill"), layout(batch).drop_last(drop_last), move || {
                    let fails = if fallible { |n| n % 7 == 3 } else { |_| false };
                    Ok(WriteNumber { fails, panics: |_| false })
                })
                .map("look", |filled: spdl_core::Batch| {
                    let numbers = filled.array("number").unwrap().as_slice::<i64>().unwrap();
                    let noise = filled.array("noise").unwrap().as_slice::<f32>().unwrap();
                    let noise = noise.iter().map(|x| u64::from(x.to_bits()));
                    Ok(numbers.iter().copied().zip(noise).collect())
                }),
            // Paths: one makes pieces, another batches.
            7 => plain
                .route(
                    StageOptions::new("way").order(self.order),
                    |n| Ok((n % 3) as usize),
                    [
                        path(move |items| single(draw(items))),
                        path(move |items| {
                            let items = items.flat_map("twice", |n: i64| [Ok(n), Ok(-n)]);
                            items.map("as it is", |n| Ok(vec![(n, 0)]))
                        }),
                        path(move |items| {
                            items.batch("some", 2, false).map("pairs", |pair: Vec<i64>| {
                                Ok(pair.into_iter().map(|n| (n, 1)).collect())
                            })
                        }),
                    ],
                )
                .filter("small", |list| Ok(list.len() < 3)),
            // Lists whose parts take different paths, and which are unbatched afterwards.
            _ => {
                let lists = draw(plain).batch("lists", batch, drop_last).route_lists(
                    "ways",
                    |list| Ok(list.iter().map(|(n, _)| (n % 2) as usize).collect()),
                    [
                        path(|part: PipelineBuilder<Seen>| part),
                        path(|part: PipelineBuilder<Seen>| {
                            part.map("shift", |part: Seen| {
                                Ok(part.into_iter().map(|(n, r)| (n + 1000, r)).collect())
                            })
                        }),
                    ],
                );
                single(lists.unbatch("apart"))
            }
        };
        let built = match self.order {
            Order::Input => built.deterministic(),
            _ => built,
        };
        built
            .seed(5)
            .epochs(0..self.epochs)
            .threads(run.threads)
            .prefetch(run.prefetch)
            .on_error(if fallible { OnError::SKIP } else { OnError::Raise })
            .allow_total_loss()
    }
}

/// Reads up to `most` items, each with its epoch.
fn take<T: Send + 'static>(pipeline: &mut Pipeline<T>, most: usize) -> Vec<(u64, T)> {
    let mut items = Vec::new();
    while items.len() < most {
        let Some(mut epoch) = pipeline.next_epoch() else { break };
        while items.len() < most
            && let Some(item) = epoch.next()
        {
            let item = item.expect("nothing ends it");
            items.push((epoch.number(), item));
        }
    }
    items
}

fn sorted(items: &[(u64, Seen)]) -> Vec<(u64, i64, u64)> {
    let each = items
        .iter()
        .flat_map(|(epoch, list)| list.iter().map(move |&(n, random)| (*epoch, n, random)));
    let mut all: Vec<_> = each.collect();
    all.sort_unstable();
    all
}

fn graphs() -> impl Strategy<Value = Graph> {
    (0..KINDS, 0..70i64, 1..4u64, any::<bool>(), any::<bool>(), 1..6usize, any::<bool>()).prop_map(
        |(kind, items, epochs, ordered, fallible, batch, drop_last)| Graph {
            kind,
            items,
            epochs,
            order: if ordered { Order::Input } else { Order::Completion },
            fallible,
            batch,
            drop_last,
        },
    )
}

fn runs() -> impl Strategy<Value = Run> {
    (1..9usize, 1..20usize, 1..9usize).prop_map(|(threads, queue, prefetch)| Run {
        threads,
        queue,
        prefetch,
    })
}

/// Serialises and deserialises a state, as a file does.
fn stored(state: State) -> State {
    #[cfg(feature = "serde")]
    let state = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
    state
}

/// Runs a graph in generations that end after these numbers of items. Returns all items.
fn generations(
    graph: &Graph,
    runs: &[Run],
    cuts: &[usize],
    shard: Option<Shard>,
) -> Vec<(u64, Seen)> {
    let mut items = Vec::new();
    let mut state: Option<State> = None;
    for (at, run) in runs.iter().enumerate() {
        let mut builder = graph.builder(run);
        if let Some(shard) = shard {
            builder = builder.shard(shard);
        }
        if let Some(state) = state.take() {
            builder = builder.resume(state);
        }
        let mut pipeline = builder.build().unwrap();
        items.extend(take(&mut pipeline, cuts.get(at).copied().unwrap_or(usize::MAX)));
        let reached = pipeline.state().unwrap();
        assert_eq!(reached.steps(), items.len() as u64, "steps count over all runs");
        let reached = stored(reached);
        state = Some(if graph.order == Order::Input { reached } else { reached.repeat_parts() });
    }
    items
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    // promise: R11
    #[test]
    fn a_resumed_run_continues_as_if_uninterrupted(
        graph in graphs(), runs in prop::collection::vec(runs(), 5),
        cuts in prop::collection::vec(0..40usize, 3), (rank, world) in (1..4u64).prop_flat_map(
            |world| (0..world, Just(world)),
        ), remainder in prop::sample::select(vec![Remainder::Drop, Remainder::Pad, Remainder::Uneven]),
    ) {
        within_seconds(60, move || {
            let shard = Shard::new(rank, world).unwrap().remainder(remainder);
            let whole = generations(&graph, &runs[..1], &[], Some(shard));
            let parts = generations(&graph, &runs[1..], &cuts, Some(shard));
            if graph.order == Order::Input {
                let same = parts.iter().zip(&whole).take_while(|(a, b)| a == b).count();
                let (parts, whole) = (&parts[same..], &whole[same..]);
                assert_eq!(parts.first(), whole.first(), "item {same} of {graph:?}");
            } else if !graph.drop_last {
                // Random numbers belong to samples in any order. The batch of a sample, and thus
                // later draws, depend on the run.
                let reported = |items: &[(u64, Seen)]| -> Vec<(u64, i64)> {
                    sorted(items).into_iter().map(|(epoch, n, _)| (epoch, n)).collect()
                };
                let (mut parts, whole) = (reported(&parts), reported(&whole));
                if [4, 5, 8].contains(&graph.kind) {
                    // Partly delivered lists are delivered again.
                    let mut kept = parts.clone();
                    kept.dedup();
                    let mut once = whole.clone();
                    once.dedup();
                    assert!(parts.len() >= whole.len() && kept == once, "{graph:?}");
                    parts = whole.clone();
                }
                assert_eq!(parts, whole, "{graph:?}");
            }
        });
    }
}

/// Numbers of one rank with random numbers, in batches of 2.
fn ranked(items: i64, shard: Shard, run: &Run, order: Order) -> PipelineBuilder<Seen> {
    let builder = PipelineBuilder::new(numbers(items).shuffled(9))
        .stage(StageOptions::new("draw").queue(run.queue), || Ok(Draw { fails: false }))
        .batch("batch", 2, false)
        .threads(run.threads)
        .prefetch(run.prefetch)
        .seed(8)
        .epochs(0..2)
        .shard(shard);
    if order == Order::Input { builder.deterministic() } else { builder }
}

/// How often each sample of the first epoch occurs, with its random number.
fn histogram<'a>(seen: impl IntoIterator<Item = &'a (u64, Seen)>) -> BTreeMap<(i64, u64), usize> {
    let mut counts = BTreeMap::new();
    for (_, list) in seen.into_iter().filter(|(epoch, _)| *epoch == 0) {
        for sample in list {
            *counts.entry(*sample).or_default() += 1;
        }
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    // promise: R13, R11
    #[test]
    fn a_run_resumes_with_other_world_sizes(
        items in 0..150i64,
        worlds in prop::sample::select(vec![vec![8, 6, 16], vec![1, 3, 2], vec![4, 1, 5], vec![2, 2]]),
        cuts in prop::collection::vec(0..5usize, 40),
        run in runs(), ordered: bool,
        remainder in prop::sample::select(vec![Remainder::Drop, Remainder::Pad, Remainder::Uneven]),
    ) {
        within_seconds(60, move || {
            let order = if ordered { Order::Input } else { Order::Completion };
            let mut cuts = cuts.into_iter().cycle();
            let mut all = Vec::new();
            let mut state: Option<State> = None;
            for (generation, &world) in worlds.iter().enumerate() {
                let last = generation + 1 == worlds.len();
                let mut states = Vec::new();
                for rank in 0..world {
                    let shard = Shard::new(rank, world).unwrap().remainder(remainder);
                    let mut builder = ranked(items, shard, &run, order);
                    if let Some(state) = &state {
                        builder = builder.resume(state.clone());
                    }
                    let mut pipeline = builder.build().unwrap();
                    if last {
                        let Some(epoch) = pipeline.next_epoch() else { continue };
                        let number = epoch.number();
                        all.extend(epoch.map(|item| (number, item.unwrap())));
                    } else {
                        // At most the remaining samples of the first epoch.
                        let cut = cuts.next().unwrap();
                        let taken = pipeline.next_epoch().into_iter().flat_map(|epoch| {
                            let number = epoch.number();
                            epoch.take(cut).map(move |item| (number, item.unwrap()))
                        });
                        all.extend(taken.filter(|(number, _)| *number == 0).collect::<Vec<_>>());
                        states.push(stored(pipeline.state().unwrap()));
                    }
                }
                if !last {
                    state = Some(State::combine(states).unwrap());
                }
            }
            let seen = histogram(&all);
            let one = Run { threads: 1, queue: 4, prefetch: 2 };
            let mut whole = ranked(items, Shard::default(), &one, Order::Input).build().unwrap();
            let expected = histogram(&take(&mut whole, usize::MAX));
            // Repeated samples have separate identities, and so other random numbers.
            let (own, repeated): (Vec<_>, Vec<_>) =
                seen.into_iter().partition(|(sample, _)| expected.contains_key(sample));
            assert!(own.iter().all(|(_, times)| *times == 1), "{own:?}");
            // The epoch may have ended before the last change.
            let world = *worlds.iter().max().unwrap() as usize;
            match remainder {
                Remainder::Drop => assert!(own.len() + world > items as usize, "{}", own.len()),
                _ => assert_eq!(own.len(), items as usize),
            }
            if remainder != Remainder::Pad {
                assert!(repeated.is_empty(), "{repeated:?}");
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// States computed for a number of steps, and for a run of steps, equal those of runs, also after a change of the
    /// world size.
    #[test]
    fn states_of_steps_are_computed_without_a_run(
        items in 1..60i64, batch in 1..7usize, worlds in (1..4u64, 1..4u64), first in 0..6usize,
        cuts in (0.0..1.0f64, 0.0..1.0f64), remainder in 0..3usize,
    ) {
        let remainder = [Remainder::Drop, Remainder::Pad, Remainder::Uneven][remainder];
        let batch_size = std::num::NonZeroU64::new(batch as u64).unwrap();
        let of_rank = |rank, world| {
            let shard = Shard::new(rank, world).unwrap().remainder(remainder);
            let numbers = numbers(items).shuffled(5);
            PipelineBuilder::new(numbers).batch("batch", batch, false).deterministic().shard(shard)
        };
        // The remaining samples of an epoch that another number of ranks has begun.
        let begun = (0..worlds.0).map(|rank| {
            let mut pipeline = of_rank(rank, worlds.0).build().unwrap();
            take(&mut pipeline, first);
            pipeline.state().unwrap()
        });
        let combined = State::combine(begun).unwrap();
        // Otherwise all ranks have seen the end of the epoch.
        prop_assume!(combined.epoch() == 0);
        for rank in 0..worlds.1 {
            let rank_of = || of_rank(rank, worlds.1).resume(combined.clone());
            let whole = rank_of().build().unwrap().collect::<Result<Vec<_>>>().unwrap();
            let steps = whole.len() as f64;
            let (one, other) = ((cuts.0 * (steps + 1.0)) as usize, (cuts.1 * (steps + 1.0)) as usize);
            let (start, end) = (one.min(other).min(whole.len()), one.max(other).min(whole.len()));
            let state = rank_of().build().unwrap().state().unwrap();
            let computed = state.clone().after_steps(start as u64, batch_size).unwrap();
            if start < whole.len() {
                prop_assert_eq!(&computed, &after(rank_of(), start));
            }
            let resumed = of_rank(rank, worlds.1).resume(computed);
            prop_assert_eq!(&resumed.build().unwrap().collect::<Result<Vec<_>>>().unwrap(), &whole[start..]);
            let only = state.clone().only_steps(start as u64..end as u64, batch_size).unwrap();
            let only = of_rank(rank, worlds.1).resume(only);
            prop_assert_eq!(&only.build().unwrap().collect::<Result<Vec<_>>>().unwrap(), &whole[start..end]);
            let beyond = state.after_steps(whole.len() as u64 + 1, batch_size).unwrap_err();
            prop_assert_eq!(beyond.kind(), ErrorKind::InvalidArgument);
        }
    }
}

#[test]
fn steps_that_only_a_run_can_determine_are_unsupported() {
    let size = std::num::NonZeroU64::new(2).unwrap();
    let endless = || PipelineBuilder::from_iter(0..4i64);
    let start = endless().batch("batch", 2, false).build().unwrap().state().unwrap();
    let error = start.only_steps(0..1, size).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("unknown length"), "{error}");
    let source = || PipelineBuilder::new(numbers(4));
    let several = source()
        .zip(source())
        .batch("batch", 2, false)
        .deterministic()
        .build()
        .unwrap()
        .state()
        .unwrap();
    for error in [several.clone().only_steps(0..1, size), several.after_steps(1, size)] {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("several sources"), "{error}");
    }
    let combined = State::combine([after(plain(6), 2)]).unwrap();
    assert!(combined.after_steps(1, size).unwrap_err().to_string().contains("combined"));
}

fn plain(items: i64) -> PipelineBuilder<i64> {
    PipelineBuilder::new(numbers(items)).deterministic()
}

/// The state after this many items.
fn after<T: Send + 'static>(builder: PipelineBuilder<T>, items: usize) -> State {
    let mut pipeline = builder.build().unwrap();
    assert_eq!(take(&mut pipeline, items).len(), items);
    pipeline.state().unwrap()
}

fn rest<T: Send + 'static>(builder: PipelineBuilder<T>, state: State) -> Vec<T> {
    builder.resume(state).build().unwrap().map(|item| item.unwrap()).collect()
}

fn refusal<T>(built: Result<T>) -> Error {
    built.map(|_| ()).unwrap_err()
}

// promise: R11
#[test]
fn resuming_keeps_the_ends_of_epochs() {
    let build = || plain(4).epochs(0..3);
    let mut pipeline = build().build().unwrap();
    let state = |pipeline: &Pipeline<i64>| pipeline.state().unwrap();
    assert_eq!((state(&pipeline).epoch(), state(&pipeline).steps()), (0, 0));
    assert_eq!(rest(build(), state(&pipeline)).len(), 12);
    assert_eq!(pipeline.next_epoch().unwrap().by_ref().take(4).count(), 4);
    // All items of epoch 0 were delivered, but not its end: an empty epoch 0 follows.
    let all_done = state(&pipeline);
    assert_eq!((all_done.epoch(), all_done.steps_in_epoch()), (0, 4));
    let mut resumed = build().resume(all_done).build().unwrap();
    let mut lens = Vec::new();
    while let Some(epoch) = resumed.next_epoch() {
        lens.push((epoch.number(), epoch.count()));
    }
    assert_eq!(lens, [(0, 0), (1, 4), (2, 4)]);
    assert_eq!(pipeline.next_epoch().unwrap().count(), 0);
    let ended = state(&pipeline);
    assert_eq!((ended.epoch(), ended.steps_in_epoch(), ended.steps()), (1, 0, 4));
    assert_eq!(ended.samples().delivered, 4);
    assert_eq!(rest(build(), ended), [0, 1, 2, 3, 0, 1, 2, 3]);
    assert_eq!(pipeline.by_ref().count(), 8);
    let over = state(&pipeline);
    assert_eq!((over.epoch(), over.steps()), (3, 12));
    assert!(rest(build(), over.clone()).is_empty());
    // More epochs than in the first run.
    assert_eq!(rest(plain(4).epochs(0..4), over.clone()).len(), 4);
    let kind = refusal(build().epochs(4..6).resume(over).build()).kind();
    assert_eq!(kind, ErrorKind::InvalidArgument);
}

#[test]
fn outcomes_are_counted_over_runs() {
    let build = || {
        plain(40)
            .filter("even", |n| Ok(n % 2 == 0))
            .map("bad", |n| if n % 10 == 4 { Err(bad_number(n)) } else { Ok(n) })
            .batch("batch", 3, true)
            .on_error(OnError::SKIP)
            .threads(1)
    };
    let whole = SampleCounts { delivered: 15, dropped: 4, filtered: 20, left_out: 1 };
    let counts = |mut pipeline: Pipeline<Vec<i64>>| {
        assert!(pipeline.by_ref().all(|batch| batch.is_ok()));
        pipeline.state().unwrap().samples()
    };
    assert_eq!(counts(build().build().unwrap()), whole);
    for cut in 0..6 {
        let state = after(build(), cut);
        assert_eq!(state.samples().delivered, 3 * cut as u64);
        assert_eq!(counts(build().resume(state).build().unwrap()), whole, "after {cut}");
    }
}

#[test]
fn a_state_of_a_different_pipeline_is_refused_part_by_part() {
    let build = |items, size, name: &str| {
        PipelineBuilder::new(numbers(items).shuffled(3)).map(name, Ok).batch("batch", size, false)
    };
    let state = after(build(20, 3, "pass").seed(4), 2);
    let resume = |builder: PipelineBuilder<_>| builder.resume(state.clone()).build();
    assert!(resume(build(20, 3, "pass").seed(4).threads(7).prefetch(9).memory(1 << 20)).is_ok());
    let refused = |builder: PipelineBuilder<_>, words: &[&str]| {
        let error = refusal(resume(builder));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        for word in words {
            assert!(error.message().contains(word), "{error}");
        }
    };
    refused(build(20, 3, "pass").seed(5), &["seed was 4, is 5"]);
    refused(build(21, 3, "pass").seed(4), &["source items was 20, is 21"]);
    refused(build(20, 4, "pass").seed(4), &["stage batch: size was 3, is 4"]);
    refused(
        build(20, 3, "other").seed(4),
        &["stage other was absent", "stage pass was cpu behind source"],
    );
    refused(build(20, 3, "pass").seed(4).deterministic(), &["order was completion, is input"]);
    refused(build(20, 3, "pass").seed(4).shard(Shard::new(0, 2).unwrap()), &["rank 0 of 2"]);
    let both = || build(20, 4, "pass").seed(5);
    refused(both(), &["seed was 4", "stage batch"]);
    // The changes as data: the seed first, then sorted by name, without allowed parts.
    let changes = |state: &State, builder: PipelineBuilder<_>| {
        let error = refusal(builder.resume(state.clone()).build());
        let reported = error.changes().iter().map(|change| change.to_string());
        let all: Vec<_> = reported.collect();
        assert!(error.message().contains(&all.join("; ")), "{error}");
        error.changes().to_vec()
    };
    let [seed, size] = &changes(&state, both())[..] else { panic!("expected two changes") };
    assert_eq!((seed.part.as_str(), size.part.as_str()), ("seed", "stage batch: size"));
    assert_eq!((size.was.as_deref(), size.is.as_deref()), (Some("3"), Some("4")));
    let left = changes(&state.clone().allow_change("stage batch"), both());
    assert_eq!(left, std::slice::from_ref(seed));
    let renamed = changes(&state, build(20, 3, "other").seed(4));
    let gone = renamed.iter().find(|change| change.part == "stage pass").unwrap();
    assert!(gone.was.is_some() && gone.is.is_none(), "{gone}");
    let new = renamed.iter().find(|change| change.part == "stage other").unwrap();
    assert!(new.was.is_none() && new.is.is_some(), "{new}");
    let elsewhere = build(20, 3, "pass").seed(4).shard(Shard::new(0, 2).unwrap());
    assert_eq!(refusal(resume(elsewhere)).changes(), []);
    let allowed = state.clone().allow_change("stage batch").allow_change("seed");
    let mut pipeline = build(20, 4, "pass").seed(5).resume(allowed).build().unwrap();
    assert_eq!(pipeline.next().unwrap().unwrap().len(), 4);
    // The new state belongs to the changed pipeline.
    assert!(build(20, 4, "pass").seed(5).resume(pipeline.state().unwrap()).build().is_ok());
}

/// Groups two numbers, and declares that it buffers.
#[derive(Default)]
struct Pairs(Vec<i64>);

impl Stage<i64> for Pairs {
    type Out = Vec<i64>;

    fn process(&mut self, item: i64, cx: &mut StageContext<'_, Vec<i64>>) -> Result<()> {
        self.0.push(item);
        if self.0.len() == 2 { self.finish(cx) } else { Ok(()) }
    }

    fn finish(&mut self, cx: &mut StageContext<'_, Vec<i64>>) -> Result<()> {
        let pair = std::mem::take(&mut self.0);
        if pair.is_empty() { Ok(()) } else { cx.emit(pair) }
    }

    fn holds_back(&self) -> bool {
        true
    }
}

/// Forwards all numbers except 6.
struct NotSix;

impl Stage<i64> for NotSix {
    type Out = i64;

    fn process(&mut self, item: i64, cx: &mut StageContext<'_, i64>) -> Result<()> {
        if item != 6 {
            return cx.emit(item);
        }
        cx.filter_out();
        Ok(())
    }
}

#[test]
fn a_stage_that_declares_buffering_has_no_state() {
    let options = StageOptions::new("pairs").concurrency(1);
    let pairs = plain(5).stage(options, || Ok(Pairs::default()));
    let mut pipeline = pairs.build().unwrap();
    assert_eq!(pipeline.by_ref().map(|pair| pair.unwrap().len()).collect::<Vec<_>>(), [2, 2, 1]);
    let error = pipeline.state().unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::Unsupported, Some("pairs")));
    let retried = plain(5).stage(StageOptions::new("tried").concurrency(1), || {
        Retried::new(Pairs::default(), Retry::default())
    });
    let mut pipeline = retried.build().unwrap();
    assert!(pipeline.next().unwrap().is_ok());
    let error = pipeline.state().unwrap_err();
    assert_eq!(error.stage(), Some("tried"));
    assert!(error.message().contains("buffers items internally"), "{error}");
}

/// Applies `does` to each number, without a declaration.
struct Silent {
    does: fn(&mut Option<i64>, i64, &mut StageContext<'_, i64>) -> Result<()>,
    held: Option<i64>,
}

impl Stage<i64> for Silent {
    type Out = i64;
    fn process(&mut self, n: i64, cx: &mut StageContext<'_, i64>) -> Result<()> {
        (self.does)(&mut self.held, n, cx)
    }
    fn finish(&mut self, cx: &mut StageContext<'_, i64>) -> Result<()> {
        self.held.take().map_or(Ok(()), |held| cx.emit(held))
    }
}

fn silent(
    does: fn(&mut Option<i64>, i64, &mut StageContext<'_, i64>) -> Result<()>,
) -> Pipeline<i64> {
    let options = StageOptions::new("silent").concurrency(1);
    plain(6).stage(options, move || Ok(Silent { does, held: None })).build().unwrap()
}

// promise: R12
#[test]
fn undeclared_buffering_of_a_stage_is_detected() {
    let refused = |pipeline: &Pipeline<i64>, words: &str| {
        let error = pipeline.state().unwrap_err();
        assert_eq!((error.kind(), error.stage()), (ErrorKind::Unsupported, Some("silent")));
        assert!(error.message().contains(words), "{error}");
    };
    // Emits each item after the next one arrives.
    let mut late = silent(|held, n, cx| held.replace(n).map_or(Ok(()), |last| cx.emit(last)));
    assert!(late.state().is_ok(), "nothing is buffered yet");
    assert_eq!(late.next().unwrap().unwrap(), 0);
    refused(&late, "filter_out");
    assert!(late.map(|n| n.unwrap()).eq(1..6));
    // Emits the sum at the end of an epoch.
    let mut sums = silent(|sum, n, cx| {
        *sum = Some(sum.unwrap_or(0) + n);
        cx.emit(n)
    });
    assert_eq!(sums.next().unwrap().unwrap(), 0);
    assert!(sums.by_ref().map(|n| n.unwrap()).eq([1, 2, 3, 4, 5, 15]));
    refused(&sums, "at the end of an epoch");
    // Failed items, and items reported as filtered out, do not count as buffered.
    let mut honest = silent(|_, n, cx| match n % 3 {
        0 => cx.emit(n),
        _ => {
            cx.filter_out();
            Ok(())
        }
    });
    assert!(honest.by_ref().map(|n| n.unwrap()).eq([0, 3]));
    let counts = SampleCounts { delivered: 2, filtered: 4, ..Default::default() };
    assert_eq!(honest.state().unwrap().samples(), counts);
    let failing = |builder: PipelineBuilder<i64>| {
        let mut failing = builder.on_error(OnError::SKIP).build().unwrap();
        assert_eq!(failing.by_ref().count(), 3);
        assert_eq!(failing.state().unwrap().samples().dropped, 3);
    };
    let odd_fails = |_: &mut Option<i64>, n: i64, cx: &mut StageContext<'_, i64>| match n % 2 {
        0 => cx.emit(n),
        _ => Err(bad_number(n)),
    };
    failing(plain(6).stage("silent", move || Ok(Silent { does: odd_fails, held: None })));
    failing(plain(6).stage("tried", move || {
        let silent = Silent { does: odd_fails, held: None };
        Retried::new(silent, Retry::default())
    }));
}

/// Buffers the two largest numbers, and implements `ExactResume` only if `honest`.
#[derive(Default)]
struct Largest {
    honest: bool,
    held: Vec<(i64, u64)>,
    taken: u64,
    last: u64,
}

impl Largest {
    fn least(&mut self) -> Option<i64> {
        let (number, intake) = self.held.iter().copied().min()?;
        self.held.retain(|&(other, _)| other != number);
        self.last = intake;
        Some(number)
    }
}

impl Aggregator<i64> for Largest {
    type Out = i64;
    fn accumulate(&mut self, n: i64) -> Result<Option<i64>> {
        self.held.push((n, self.taken));
        self.taken += 1;
        Ok(if self.held.len() > 2 { self.least() } else { None })
    }
    fn flush(&mut self) -> Result<Option<i64>> {
        Ok(self.least())
    }
    fn flush_more(&mut self) -> Result<Option<i64>> {
        Ok(self.least())
    }
    fn exact_resume(&mut self) -> Option<&mut dyn ExactResume> {
        if self.honest { Some(self) } else { None }
    }
}

impl ExactResume for Largest {
    fn inputs(&mut self) -> Vec<u64> {
        vec![self.last]
    }
}

// promise: R12
#[test]
fn undeclared_buffering_of_an_aggregator_is_detected() {
    let largest = |honest| {
        let numbers = PipelineBuilder::new(numbers(9).shuffled(3)).deterministic();
        numbers.aggregate("largest", move || Ok(Largest { honest, ..Largest::default() }))
    };
    let whole: Vec<i64> = largest(true).build().unwrap().map(|n| n.unwrap()).collect();
    assert_eq!(whole.len(), 9);
    for at in 0..=9 {
        assert_eq!(rest(largest(true), after(largest(true), at)), whole[at..], "after {at}");
    }
    let mut silent = largest(false).build().unwrap();
    assert!(silent.by_ref().map(|n| n.unwrap()).eq(whole));
    let error = silent.state().unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::Unsupported, Some("largest")));
    assert!(error.message().contains("ExactResume::inputs"), "{error}");
}

// promise: R12
#[test]
fn built_in_stages_report_what_they_filter_out() {
    let mut pipeline = plain(9)
        .filter("even", |n| Ok(n % 2 == 0))
        .flat_map("twice", |n| (0..if n == 2 { 0 } else { 2 }).map(move |_| Ok(n)))
        .map("lists", |n| Ok(if n == 4 { vec![] } else { vec![n] }))
        .unbatch("apart")
        .stage("tried", || Retried::new(NotSix, Retry::default()))
        .build()
        .unwrap();
    assert!(pipeline.by_ref().map(|n| n.unwrap()).eq([0, 0, 8, 8]));
    let counts = SampleCounts { delivered: 2, filtered: 7, ..Default::default() };
    assert_eq!(pipeline.state().unwrap().samples(), counts);
}

// promise: R12
#[test]
fn notes_are_kept_in_the_state() {
    let mut state = after(plain(9), 2);
    state.notes.insert("optimiser step".into(), "17".into());
    let state = stored(state);
    let later = after(plain(9).resume(state), 3);
    assert_eq!((later.notes["optimiser step"].as_str(), later.steps()), ("17", 5));
}

/// Counts up; supports sequential access only.
#[derive(Debug)]
struct Counting {
    len: u64,
    known: bool,
}

impl Source for Counting {
    type Item = u64;
    fn open(&self, at: Cursor) -> Result<BoxStream<'static, Result<u64>>> {
        let epoch = at.epoch;
        Ok(stream::iter((at.position..self.len).map(move |n| Ok(100 * epoch + n))).boxed())
    }
    fn len_hint(&self) -> Option<u64> {
        self.known.then_some(self.len)
    }
}

// feature: Q01
// promise: R11
#[test]
fn a_sequential_source_is_divided_and_resumed() {
    let ranks = |len, world, remainder| -> Vec<Vec<u64>> {
        (0..world)
            .map(|rank| {
                let shard = Shard::new(rank, world).unwrap().remainder(remainder);
                let source = Counting { len, known: true };
                let builder = || PipelineBuilder::new(Counting { ..source }).epochs(3..4);
                let all: Vec<u64> =
                    builder().shard(shard).build().unwrap().map(|n| n.unwrap()).collect();
                for cut in 0..=all.len() {
                    let state = after(builder().shard(shard), cut);
                    assert_eq!(rest(builder().shard(shard), state), all[cut..]);
                }
                all
            })
            .collect()
    };
    assert_eq!(ranks(5, 2, Remainder::Drop), [[300, 302], [301, 303]]);
    assert_eq!(ranks(5, 2, Remainder::Pad), [[300, 302, 304], [301, 303, 300]]);
    assert_eq!(ranks(5, 2, Remainder::Uneven), [vec![300, 302, 304], vec![301, 303]]);
    assert_eq!(ranks(2, 4, Remainder::Pad), [[300], [301], [300], [301]]);
    assert_eq!(ranks(1, 2, Remainder::Drop), [[]; 2] as [[u64; 0]; 2]);
    let unknown = |remainder| {
        let shard = Shard::new(1, 2).unwrap().remainder(remainder);
        PipelineBuilder::new(Counting { len: 5, known: false }).shard(shard).build()
    };
    assert_eq!(unknown(Remainder::Uneven).unwrap().map(|n| n.unwrap()).sum::<u64>(), 1 + 3);
    for remainder in [Remainder::Drop, Remainder::Pad] {
        let error = refusal(unknown(remainder));
        assert_eq!((error.kind(), error.stage()), (ErrorKind::InvalidArgument, Some("source")));
    }
}

// promise: R11
#[test]
fn an_iterator_is_resumed_by_skipping_done_items() {
    for blocks in [true, false] {
        let build = || match blocks {
            true => PipelineBuilder::from_iter(0..20),
            false => PipelineBuilder::from_stream(stream::iter((0..20).map(Ok))),
        };
        for cut in [0, 7, 20] {
            assert_eq!(rest(build(), after(build(), cut)), (cut as i32..20).collect::<Vec<_>>());
        }
        let shard = Shard::new(2, 3).unwrap().remainder(Remainder::Uneven);
        assert_eq!(rest(build().shard(shard), after(build().shard(shard), 2)), [8, 11, 14, 17]);
    }
}

// promise: CORE5
#[test]
fn a_replayed_run_is_resumed_in_its_recorded_order() {
    within_seconds(60, || {
        let build = || {
            PipelineBuilder::new(numbers(60))
                .stage("draw", || Ok(Draw { fails: true }))
                .on_error(OnError::SKIP)
                .epochs(0..2)
        };
        let mut first = build().threads(4).record_order().build().unwrap();
        let items: Vec<_> = first.by_ref().map(|item| item.unwrap()).collect();
        let record = first.order_record().unwrap().clone();
        let replay = || build().replay(record.clone());
        for cut in [0, 5, 50, 70] {
            assert_eq!(rest(replay(), after(replay(), cut)), items[cut..], "after {cut}");
        }
    });
}

// promise: CORE5
#[test]
fn requested_samples_and_steps_are_skipped() {
    let build = || plain(12).batch("batch", 2, false);
    let id = |index| SampleId { epoch: 0, index };
    let state = after(build(), 2).skip([id(0), id(5), id(6), id(7), id(11)]).unwrap();
    assert_eq!(state.samples(), SampleCounts { delivered: 4, left_out: 4, ..Default::default() });
    assert_eq!(rest(build(), state), [vec![4, 8], vec![9, 10]]);
    let refused = after(build(), 2).skip([SampleId { epoch: 1, index: 0 }]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let shard = Shard::new(1, 2).unwrap();
    assert!(after(build().shard(shard), 1).skip([id(4)]).is_err());

    let all: Vec<_> = build().skip_steps(1..3).skip_steps(5..9).build().unwrap().collect();
    let all: Vec<_> = all.into_iter().map(|batch| batch.unwrap()[0]).collect();
    assert_eq!(all, [0, 6, 8]);
    // Step numbers continue over runs.
    let state = after(build().skip_steps(0..1), 1);
    assert_eq!((state.steps(), state.samples().left_out), (2, 2));
    let resumed: Vec<_> = rest(build().skip_steps(3..4), state);
    assert_eq!(resumed, [vec![4, 5], vec![8, 9], vec![10, 11]]);
}

/// Adds a random number to any item.
struct Random;

impl<T: Send + 'static> Stage<T> for Random {
    type Out = (T, u64);
    fn process(&mut self, item: T, cx: &mut StageContext<'_, (T, u64)>) -> Result<()> {
        cx.emit((item, cx.rng().unit().to_bits()))
    }
}

/// Ends a list after every number from the second piece of both splits.
#[derive(Default)]
struct Uneven(Vec<i64>);

impl Aggregator<i64> for Uneven {
    type Out = Vec<i64>;
    fn accumulate(&mut self, n: i64) -> Result<Option<Vec<i64>>> {
        self.0.push(n);
        Ok([2, 12].contains(&n).then(|| std::mem::take(&mut self.0)))
    }
    fn flush(&mut self) -> Result<Option<Vec<i64>>> {
        Ok((!self.0.is_empty()).then(|| std::mem::take(&mut self.0)))
    }
}

fn all_differ<T>(drawn: impl IntoIterator<Item = (T, u64)>) -> bool {
    let mut random: Vec<u64> = drawn.into_iter().map(|(_, random)| random).collect();
    let count = random.len();
    random.sort_unstable();
    random.dedup();
    random.len() == count
}

// promise: R14
#[test]
fn every_piece_and_every_list_has_separate_random_numbers() {
    let cut = |name, by| {
        move |builder: PipelineBuilder<i64>| {
            builder.flat_map(name, move |n| (0..by).map(move |i| Ok(10 * n + i)))
        }
    };
    let (first, second) = (cut("first", 4), cut("second", 3));
    let pieces = || second(first(plain(5))).stage("draw", || Ok(Random));
    let whole: Vec<(i64, u64)> = pieces().build().unwrap().map(|item| item.unwrap()).collect();
    assert!(whole.len() == 60 && all_differ(whole.clone()));
    for at in 0..60 {
        assert_eq!(rest(pieces(), after(pieces(), at)), whole[at..], "after {at}");
    }
    // 0 1 2 | 3 10 11 12 | 13: the third pieces of two samples complete lists that start with
    // pieces of one sample.
    let lists = || {
        let lists = first(plain(2)).aggregate("uneven", || Ok(Uneven::default()));
        lists.stage("draw", || Ok(Random))
    };
    let whole: Vec<_> = lists().build().unwrap().map(|list| list.unwrap()).collect();
    let lens: Vec<usize> = whole.iter().map(|(list, _)| list.len()).collect();
    assert_eq!(lens, [3, 4, 1]);
    assert!(all_differ(whole.clone()));
    for at in 0..3 {
        assert_eq!(rest(lists(), after(lists(), at)), whole[at..], "after {at}");
    }
}

#[test]
fn a_partly_filtered_list_is_not_grouped_differently() {
    // Lists [0, 10], [11, 20], [30, 40]; the second is filtered out before the first is delivered.
    let build = || {
        plain(5)
            .flat_map("cut", |n| (0..if n == 1 { 2 } else { 1 }).map(move |i| Ok(10 * n + i)))
            .batch("lists", 2, false)
            .map("with their list", |list: Vec<i64>| {
                Ok(list.iter().map(|&n| (n, list.clone())).collect::<Vec<_>>())
            })
            .unbatch("apart")
            .filter("neither", |(n, _)| Ok(![11, 20].contains(n)))
            .prefetch(9)
    };
    let whole: Vec<_> = build().build().unwrap().map(|item| item.unwrap()).collect();
    assert_eq!(whole.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 10, 30, 40]);
    let mut pipeline = build().build().unwrap();
    assert_eq!(pipeline.next().unwrap().unwrap().0, 0);
    let monitor = pipeline.monitor();
    crate::common::until("all is made", || {
        monitor.statistics().stages.last().is_some_and(|stage| stage.items == 6)
    });
    let state = pipeline.state().unwrap();
    assert_eq!(state.samples(), SampleCounts { filtered: 1, ..Default::default() }, "20 is gone");
    assert_eq!(rest(build(), state), whole[1..]);
}

#[test]
fn lists_that_cannot_be_grouped_as_before_are_repeated_only_on_request() {
    let build = || {
        PipelineBuilder::new(numbers(12))
            .map("pass", Ok)
            .batch("batch", 4, false)
            .unbatch(StageOptions::new("apart").order(Order::Input))
    };
    // In the middle of a list.
    let state = after(build(), 6);
    let error = refusal(build().resume(state.clone()).build());
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("repeat_parts"), "{error}");
    assert_eq!(rest(build(), state.repeat_parts()).len(), 8);
    // Between lists, and with ordered stages, no request is needed.
    assert_eq!(rest(build(), after(build(), 8)).len(), 4);
    let in_order = || build().deterministic();
    assert_eq!(rest(in_order(), after(in_order(), 6)), [6, 7, 8, 9, 10, 11]);
    // Another world size groups lists differently.
    let whole = State::combine([after(in_order(), 6)]).unwrap_err();
    assert!(whole.message().contains("repeat_parts"), "{whole}");
    let whole = State::combine([after(in_order(), 6).repeat_parts()]).unwrap();
    let rank = |rank| rest(in_order().shard(Shard::new(rank, 2).unwrap()), whole.clone());
    assert_eq!((rank(0), rank(1)), (vec![4, 6, 8, 10], vec![5, 7, 9, 11]));
}

/// A list whose iterator takes long to report its end.
struct SlowToEnd(Vec<i64>);

impl IntoIterator for SlowToEnd {
    type Item = i64;
    type IntoIter = Box<dyn Iterator<Item = i64>>;

    fn into_iter(self) -> Self::IntoIter {
        let nothing = || {
            std::thread::sleep(Duration::from_millis(200));
            None
        };
        Box::new(self.0.into_iter().chain(std::iter::from_fn(nothing)))
    }
}

// promise: R12
#[test]
fn a_list_is_done_after_its_last_item_even_if_its_iterator_has_not_ended() {
    let build = || {
        PipelineBuilder::new(numbers(8))
            .map("pass", Ok)
            .batch("batch", 4, false)
            .map("slow", |list| Ok(SlowToEnd(list)))
            .unbatch(StageOptions::new("apart").concurrency(1))
            .prefetch(8)
    };
    assert_eq!(rest(build(), after(build(), 4)).len(), 4);
}

/// Yields one sample twice, and omits another.
#[derive(Debug)]
struct Muddled;

impl Source for Muddled {
    type Item = u64;
    fn open(&self, _: Cursor) -> Result<BoxStream<'static, Result<u64>>> {
        Err(Error::new(ErrorKind::Unsupported, "only by positions"))
    }
    fn open_at(&self, _: Positions) -> Result<BoxStream<'static, (u64, Result<u64>)>> {
        Ok(stream::iter([0, 1, 3, 1, 4].map(|id| (id, Ok(id)))).boxed())
    }
}

// promise: CORE6
#[test]
fn an_inconsistent_epoch_fails_its_audit() {
    let mut pipeline = PipelineBuilder::new(Muddled).deterministic().epochs(0..2).build().unwrap();
    let items: Vec<u64> = pipeline.by_ref().take(5).map(|item| item.unwrap()).collect();
    assert_eq!(items, [0, 1, 3, 1, 4]);
    let error = pipeline.next().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    for words in ["epoch 0", "yielded 5", "4 were delivered", "lost: 2", "ended more than once: 1"]
    {
        assert!(error.message().contains(words), "{error}");
    }
    assert!(pipeline.next().is_none());
    let unchecked = PipelineBuilder::new(Muddled).audit(false).epochs(0..2).build().unwrap();
    assert!(unchecked.map(|item| item.unwrap()).eq([0, 1, 3, 1, 4, 0, 1, 3, 1, 4]));
}

fn states(world: u64, steps: &[usize]) -> Vec<State> {
    let rank = |(rank, &steps): (usize, &usize)| {
        after(plain(20).epochs(0..3).shard(Shard::new(rank as u64, world).unwrap()), steps)
    };
    steps.iter().enumerate().map(rank).collect()
}

#[test]
fn states_of_different_runs_or_divisions_are_refused() {
    let refused = |states: Vec<State>, words: &str| {
        let error = State::combine(states).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.message().contains(words), "{error}");
    };
    refused(vec![], "no states");
    refused(states(4, &[1, 2, 3]), "rank 3 of 4 is missing");
    let mut twice = states(2, &[1, 2]);
    twice.push(twice[0].clone());
    refused(twice, "duplicate state of rank 0");
    let mut mixed = states(2, &[1, 2]);
    mixed[1] = states(3, &[1, 2]).remove(1);
    refused(mixed, "different divisions");
    let other = PipelineBuilder::new(numbers(20)).seed(1).shard(Shard::new(1, 2).unwrap());
    let mut mixed = states(2, &[1, 2]);
    mixed[1] = after(other.deterministic(), 1);
    refused(mixed, "different run");
    refused(
        states(2, &[3, 12]),
        "rank 0 is in epoch 0, and rank 1 in epoch 1 with some of its samples done; resume with \
         these 2 ranks until all are in one epoch",
    );
    refused(states(2, &[3, 25]), "rank 0 is in epoch 0, and rank 1 in epoch 2; resume with");
    let combined = State::combine(states(2, &[3, 4])).unwrap();
    let mut mixed = states(2, &[1, 2]);
    mixed.push(combined.clone());
    refused(mixed, "already combined");
    assert_eq!(State::combine([combined.clone()]).unwrap(), combined);
    assert_eq!((combined.shard(), combined.steps()), (None, 4));
    assert_eq!(combined.remaining(), Some(13));
    let remaining: Vec<_> = states(3, &[1, 6, 2]).iter().map(State::remaining).collect();
    assert_eq!(remaining, [Some(5), Some(0), Some(4)]);
    assert_eq!(combined.samples().delivered, 7);
}

// promise: R12
#[test]
fn a_rank_that_has_just_ended_the_epoch_counts_as_done() {
    let mut states = states(2, &[3, 9]);
    let mut pipeline = plain(20).epochs(0..3).shard(Shard::new(1, 2).unwrap()).build().unwrap();
    assert_eq!(pipeline.next_epoch().unwrap().count(), 10);
    states[1] = pipeline.state().unwrap();
    assert_eq!(states[1].epoch(), 1);
    let state = State::combine(states).unwrap();
    let mut whole = plain(20).epochs(0..3).resume(state).build().unwrap();
    let left: Vec<i64> = whole.next_epoch().unwrap().map(|n| n.unwrap()).collect();
    assert_eq!(left, [6, 8, 10, 12, 14, 16, 18]);
    assert_eq!(whole.next_epoch().unwrap().count(), 20);
}

// promise: R12
#[cfg(feature = "serde")]
#[test]
fn states_with_many_samples_are_combined_without_visiting_each() {
    let len = 1_u64 << 40;
    let rank = |rank| {
        let shard = Shard::new(rank, 8).unwrap().remainder(Remainder::Pad);
        PipelineBuilder::new(Far { len }).deterministic().shard(shard)
    };
    // Far into the epoch, as after hours of training.
    let far = 1_u64 << 36;
    let state = |r: u64, own: u64| {
        let state = after(rank(r), 2);
        let json = serde_json::to_string(&state).unwrap();
        serde_json::from_str::<State>(&json.replace("[[0,2]]", &format!("[[0,{own}]]"))).unwrap()
    };
    let states: Vec<_> = (0..8).map(|r| state(r, far + r)).collect();
    let audit = State::audit(states.clone()).unwrap();
    assert_eq!(audit.done(), 8 * far + 28);
    let combined = State::combine(states).unwrap();
    assert_eq!(combined.remaining(), Some(len - 8 * far - 28));
    let shard = Shard::new(1, 2).unwrap().remainder(Remainder::Pad);
    let mut rest = PipelineBuilder::new(Far { len }).deterministic().shard(shard);
    rest = rest.resume(combined);
    // The first remaining positions are 8 · far + 0 of rank 0, + 8 of rank 1, and so on.
    let next: Vec<u64> = rest.build().unwrap().take(4).map(|n| n.unwrap() - 8 * far).collect();
    assert_eq!(next, [8, 16, 18, 25]);
}

/// Very many numbers, with random access.
#[cfg(feature = "serde")]
#[derive(Debug)]
struct Far {
    len: u64,
}

#[cfg(feature = "serde")]
impl Source for Far {
    type Item = u64;
    fn open(&self, _: Cursor) -> Result<BoxStream<'static, Result<u64>>> {
        Err(Error::new(ErrorKind::Unsupported, "only by positions"))
    }
    fn open_at(&self, positions: Positions) -> Result<BoxStream<'static, (u64, Result<u64>)>> {
        let len = self.len;
        let positions = positions.take_while(move |place| place.at < len);
        Ok(stream::iter(positions.map(|place| (place.id, Ok(place.at)))).boxed())
    }
    fn len_hint(&self) -> Option<u64> {
        Some(self.len)
    }
}

// promise: R12
#[test]
fn one_of_equal_ranks_stands_for_all() {
    let one = states(4, &[0, 3]).remove(1);
    let state = one.of_equal_ranks().unwrap();
    let rank = |rank| rest(plain(20).shard(Shard::new(rank, 2).unwrap()), state.clone());
    assert_eq!((rank(0), rank(1)), (vec![12, 14, 16, 18], vec![13, 15, 17, 19]));
}

// promise: CORE6
#[test]
fn an_audit_of_states_reports_missing_and_repeated_positions() {
    let mut all = states(2, &[3, 5]);
    let audit = State::audit(all.clone()).unwrap();
    let text = "epoch 0: 8 of 20 positions done, 12 missing: 6, 8, 10..20, none repeated";
    assert_eq!((audit.to_string().as_str(), audit.is_complete()), (text, false));
    all.push(all[0].clone());
    let audit = State::audit(all).unwrap();
    assert_eq!(audit.repeated().collect::<Vec<_>>(), [0..1, 2..3, 4..5]);
    assert!(audit.to_string().ends_with("3 repeated: every 2nd from 0 to 4"), "{audit}");
    let audit = State::audit(states(2, &[10, 10])).unwrap();
    assert!(audit.is_complete(), "{audit}");
    assert_eq!(State::audit(states(2, &[10, 0])).unwrap().done(), 10);
    let audit = State::audit(states(3, &[3, 3, 3])).unwrap();
    assert!(audit.missing().flatten().eq(9..18), "{audit}");
    assert!(audit.to_string().ends_with("none repeated, assigned to no rank: 18..20"), "{audit}");
    assert_eq!(State::audit([]).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

// promise: R12
#[cfg(feature = "serde")]
#[test]
fn a_state_is_small_and_corruption_is_an_error() {
    let build = || plain(100_000).map("pass", Ok).batch("batch", 100, false);
    let json = serde_json::to_string(&after(build(), 900)).unwrap();
    assert!(json.len() < 1000, "{} bytes: {json}", json.len());
    let read = |json: &str| serde_json::from_str::<State>(json);
    assert!(read(&json).is_ok());
    assert!(json.contains("\"done\":[[0,90000]]"), "{json}");
    for wrong in ["[[0,0]]", "[[5,4]]", "[[0,9],[9,12]]", "[[4,8],[0,2]]", "[[0]]"] {
        let json = json.replace("[[0,90000]]", wrong);
        assert!(read(&json).is_err(), "{wrong}");
    }
    let newer = read(&json.replace("\"format\":2", "\"format\":3")).unwrap();
    assert_eq!(refusal(build().resume(newer).build()).kind(), ErrorKind::Unsupported);
}

// promise: R11
#[test]
fn a_splitting_stage_resumes_in_the_middle_of_an_item() {
    let texts: Vec<Vec<i64>> =
        (0..9).map(|n| (0..1 + n % 5 * 3).map(|i| 100 * n + i).collect()).collect();
    let build = || {
        PipelineBuilder::new(spdl_core::DatasetSource::new(texts.clone()))
            .deterministic()
            .concat_and_split("cut", 4, false)
            .map("text", |packed| Ok(format!("{packed:?}")))
    };
    let whole: Vec<String> = build().build().unwrap().map(|item| item.unwrap()).collect();
    assert!(whole.len() > 5);
    for at in 0..=whole.len() {
        assert_eq!(rest(build(), stored(after(build(), at))), whole[at..], "after {at}");
    }
}

/// All items of a resumed run, concatenated.
fn all_of(builder: PipelineBuilder<Vec<i64>>, state: State) -> Vec<i64> {
    rest(builder, state).concat()
}

// promise: R11
#[test]
fn items_interrupted_by_a_failure_or_a_stop_are_delivered_again() {
    let lists = |drop_last: bool, fails: bool| {
        let fail = move |n: i64| match n {
            10 if fails => Err(bad_number(n)),
            n => Ok(n),
        };
        plain(20).map("fail", fail).batch("batch", 4, drop_last).deterministic()
    };
    let complete = |seen: &[i64], drop_last: bool, state: State| {
        let mut all = [seen, &all_of(lists(drop_last, false), state)].concat();
        all.sort_unstable();
        assert_eq!(all, (0..20).collect::<Vec<_>>(), "after {seen:?}, drop_last {drop_last}");
    };
    for drop_last in [false, true] {
        let mut pipeline = lists(drop_last, true).build().unwrap();
        let mut seen = Vec::new();
        let mut failed = false;
        while let Some(list) = pipeline.next() {
            match list {
                Ok(list) => seen.extend(list),
                Err(_) => failed = true,
            }
            complete(&seen, drop_last, pipeline.state().unwrap());
        }
        assert!(failed);
        complete(&seen, drop_last, pipeline.state().unwrap());
        for _ in 0..50 {
            let mut pipeline = lists(drop_last, false).build().unwrap();
            let seen = pipeline.next().unwrap().unwrap();
            pipeline.stop();
            complete(&seen, drop_last, pipeline.state().unwrap());
        }
    }
}

// promise: R11
#[test]
fn array_batches_interrupted_by_a_stop_are_delivered_again() {
    let batches = || {
        plain(40)
            .fill("fill", layout(4).drop_last(true), || {
                Ok(WriteNumber { fails: |_| false, panics: |_| false })
            })
            .deterministic()
    };
    for _ in 0..100 {
        let mut pipeline = batches().build().unwrap();
        let first = pipeline.next().unwrap().unwrap();
        assert_eq!(first.len(), 4);
        pipeline.stop();
        let left: usize =
            rest(batches(), pipeline.state().unwrap()).iter().map(|batch| batch.len()).sum();
        assert_eq!(left, 36);
    }
}

#[test]
fn a_split_item_is_refused_if_it_cannot_be_split_as_before() {
    let texts = |ordered: bool| {
        let items = spdl_core::DatasetSource::new(vec![vec![0u32; 7]; 10]);
        let texts = PipelineBuilder::new(items).concat_and_split("cut", 5, false);
        // One thread keeps the order in fact, but the definition does not promise it.
        if ordered { texts.deterministic() } else { texts.map("pass", Ok).threads(1) }
    };
    let state = after(texts(true), 1);
    let refused = state.clone().of_equal_ranks().unwrap_err();
    assert!(refused.to_string().contains("repeat_parts"), "{refused}");
    let refused = State::combine([state.clone()]).unwrap_err();
    assert!(refused.to_string().contains("repeat_parts"), "{refused}");
    let id = SampleId { epoch: 0, index: 0 };
    assert!(state.clone().skip([id]).is_err());
    let whole = state.repeat_parts().of_equal_ranks().unwrap();
    assert_eq!(rest(texts(true), whole).len(), 14, "the first item is delivered again");
    // If a later stage is unordered, the split item is unknown.
    let mut pipeline = texts(false).build().unwrap();
    pipeline.next().unwrap().unwrap();
    assert_eq!(pipeline.state().unwrap_err().kind(), ErrorKind::Unsupported);
}

// promise: R12
#[test]
fn a_sample_skipped_in_a_combined_state_is_skipped_by_all_ranks() {
    let state = State::combine(states(2, &[1, 1])).unwrap();
    let state = state.skip([SampleId { epoch: 0, index: 3 }]).unwrap();
    let mut seen = Vec::new();
    for rank in 0..2 {
        let shard = Shard::new(rank, 2).unwrap();
        let samples = plain(20).epochs(0..3).shard(shard);
        let state = state.clone();
        let mut pipeline = samples.resume(state).build().unwrap();
        seen.extend(pipeline.next_epoch().unwrap().map(|item| item.unwrap()));
    }
    seen.sort_unstable();
    assert!(!seen.contains(&0) && !seen.contains(&1) && !seen.contains(&3), "{seen:?}");
    assert!(seen.starts_with(&[2, 4, 5, 6]), "{seen:?}");
}

#[test]
fn many_ended_pieces_are_skipped_on_a_small_stack() {
    let pieces = || plain(2).flat_map("cut", |n| (0..20_000).map(move |at| Ok(n * 20_000 + at)));
    let state = after(pieces().deterministic(), 19_000);
    let resume = move || {
        let mut pipeline = pieces().deterministic().resume(state).build().unwrap();
        pipeline.next().unwrap().unwrap()
    };
    let small = std::thread::Builder::new().stack_size(64 << 10).spawn(resume).unwrap();
    assert_eq!(small.join().unwrap(), 19_000);
}
