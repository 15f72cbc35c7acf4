//! Interrupted runs of pipelines with several sources: merged and zipped, with dropped and filtered items.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::common::{bad_number, numbers, sleep_by_number, within_seconds};
use proptest::prelude::*;
use spdl_core::stage::{Arrival, Choice, MergePolicy, RoundRobin, WeightedMerge, ZipLength};
use spdl_core::{
    DatasetSource, Error, ErrorKind, OnError, PipelineBuilder, Result, Shard, Stage, StageContext,
    StageOptions, State,
};

/// All items of the first branch, then all items of the second, and so on.
#[derive(Debug)]
struct Concatenate;

impl MergePolicy for Concatenate {
    fn choose(&mut self, open: &[bool]) -> Choice {
        Choice::Branch(open.iter().position(|&open| open).unwrap_or(0))
    }
}

/// Items of all branches in turn, until `items` were merged.
#[derive(Debug, Default)]
struct First {
    items: usize,
    turns: RoundRobin,
    left: usize,
}

impl MergePolicy for First {
    fn choose(&mut self, open: &[bool]) -> Choice {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                self.turns.choose(open)
            }
            None => Choice::EndEpoch,
        }
    }

    fn start_epoch(&mut self, epoch: u64, branches: usize, seed: u64) -> Result<()> {
        self.left = self.items;
        self.turns.start_epoch(epoch, branches, seed)
    }
}

/// Adds a random number; fails for some numbers.
struct Draw(i64);

impl Stage<(i64, u64)> for Draw {
    type Out = (i64, u64);

    fn process(
        &mut self,
        (n, random): (i64, u64),
        cx: &mut StageContext<'_, (i64, u64)>,
    ) -> Result<()> {
        sleep_by_number(n);
        if n % self.0 == 6 {
            return Err(bad_number(n));
        }
        cx.emit((n, random ^ cx.rng().unit().to_bits()))
    }
}

#[derive(Clone, Debug)]
struct Graph {
    kind: usize,
    /// The number of items of each branch.
    lens: Vec<i64>,
    epochs: u64,
    batch: usize,
    /// Numbers `n` with `n % modulus == 6` fail: before the join, and after it.
    fails: (i64, i64),
}

const KINDS: usize = 8;

/// The numbers `1000 · at` and so on.
fn branch(graph: &Graph, at: usize, threads: usize) -> PipelineBuilder<(i64, u64)> {
    let filtered = 5 + at as i64;
    let fails = graph.fails.0;
    PipelineBuilder::new(numbers(graph.lens[at]))
        .map(&*format!("number {at}"), move |n| Ok((n + 1000 * at as i64, 0)))
        .stage(StageOptions::new(&format!("draw {at}")).concurrency(threads), move || {
            Ok(Draw(fails))
        })
        .filter(&*format!("filter {at}"), move |(n, _)| Ok(n % filtered != 2))
}

fn build(graph: &Graph, threads: usize, queue: usize) -> PipelineBuilder<Vec<(i64, u64)>> {
    let branches = || (0..graph.lens.len()).map(|at| branch(graph, at, threads));
    let zipped = |left: usize, right: usize| {
        let pairs = branch(graph, left, threads).zip(branch(graph, right, threads));
        pairs.map("pair", |((a, x), (b, y))| Ok((a * 10_000 + b, x ^ y)))
    };
    let last = graph.lens.len() - 1;
    let joined = match graph.kind {
        0 => PipelineBuilder::merge(branches(), RoundRobin::default()),
        1 => {
            let weights: Vec<f64> = (1..=graph.lens.len()).map(|at| at as f64).collect();
            PipelineBuilder::merge(branches(), WeightedMerge::new(weights).unwrap())
        }
        2 => PipelineBuilder::merge(branches(), Concatenate),
        3 => PipelineBuilder::merge(branches(), First { items: 23, ..First::default() }),
        4 => zipped(0, last),
        // A zip of a merge and of a plain branch.
        5 => {
            let merged = PipelineBuilder::merge(branches(), RoundRobin::default());
            let pairs =
                merged.zip(branch(&Graph { lens: vec![40; 9], ..graph.clone() }, 8, threads));
            pairs.map("pair", |((a, x), (b, y))| Ok((a * 10_000 + b, x ^ y)))
        }
        6 => {
            // Branches that are not tiny.
            let more = Graph { lens: vec![40; 9], ..graph.clone() };
            let three = [(graph, 0), (graph, last), (&more, 8)];
            let three = three.map(|(graph, at)| branch(graph, at, threads));
            let lists = PipelineBuilder::zip_all("zip", three, ZipLength::Shortest);
            let sum = |(a, x): (i64, u64), (b, y): (i64, u64)| (a * 10_000 + b, x ^ y);
            lists.map("sum", move |items| Ok(items.into_iter().reduce(sum).unwrap_or_default()))
        }
        _ => PipelineBuilder::merge(branches(), Arrival),
    };
    let fails = graph.fails.1;
    joined
        .stage(StageOptions::new("draw").concurrency(threads).queue(queue), move || Ok(Draw(fails)))
        .filter("filter", |(n, _)| Ok(n % 9 != 4))
        .batch("batch", graph.batch, false)
        .deterministic()
        .on_error(OnError::SKIP)
        .epochs(0..graph.epochs)
        .threads(threads)
        .seed(7)
}

fn stored(state: State) -> State {
    #[cfg(feature = "serde")]
    let state = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
    state
}

fn graphs(kinds: impl Strategy<Value = usize>) -> impl Strategy<Value = Graph> {
    // An epoch of which all samples fail is an error, so the first and the last branch are not tiny.
    let between = prop::collection::vec(prop_oneof![Just(0), 0..40i64], 0..3);
    let lens = (20..40i64, between, 20..40i64)
        .prop_map(|(first, between, last)| [vec![first], between, vec![last]].concat());
    let fails = (
        prop::sample::select(vec![7i64, 11, 1 << 40]),
        prop::sample::select(vec![8i64, 13, 1 << 40]),
    );
    (kinds, lens, 1..4u64, 1..5usize, fails).prop_map(|(kind, lens, epochs, batch, fails)| Graph {
        kind,
        lens,
        epochs,
        batch,
        fails,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn resumed_merges_and_zips_continue_bit_identically(
        graph in graphs(0..KINDS - 1),
        kills in prop::collection::vec((0..60usize, 1..5usize, 1..9usize), 1..4),
    ) {
        within_seconds(120, move || {
            let whole: Vec<_> = build(&graph, 1, 1).build().unwrap().map(|it| it.unwrap()).collect();
            let (mut found, mut state) = (Vec::new(), None::<State>);
            for (items, threads, queue) in kills {
                let builder = build(&graph, threads, queue);
                let mut pipeline = match state.take() {
                    Some(state) => builder.resume(state).build().unwrap(),
                    None => builder.build().unwrap(),
                };
                found.extend(pipeline.by_ref().take(items).map(|it| it.unwrap()));
                state = Some(stored(pipeline.state().unwrap()));
            }
            let rest = build(&graph, 2, 2).resume(state.unwrap()).build().unwrap();
            found.extend(rest.map(|it| it.unwrap()));
            assert_eq!(found, whole, "{graph:?}");
        });
    }

    #[test]
    fn a_resumed_merge_in_order_of_arrival_delivers_each_item_once(
        graph in graphs(Just(KINDS - 1)), taken in 0..30usize,
    ) {
        within_seconds(120, move || {
            let sorted = |items: Vec<Vec<(i64, u64)>>| {
                let mut items: Vec<_> = items.into_iter().flatten().collect();
                items.sort_unstable();
                items
            };
            let whole = build(&graph, 1, 1).build().unwrap().map(|it| it.unwrap()).collect();
            let mut first = build(&graph, 3, 4).build().unwrap();
            let mut found: Vec<_> = first.by_ref().take(taken).map(|it| it.unwrap()).collect();
            let state = stored(first.state().unwrap());
            drop(first);
            found.extend(build(&graph, 2, 2).resume(state).build().unwrap().map(|it| it.unwrap()));
            assert_eq!(sorted(found), sorted(whole), "{graph:?}");
        });
    }
}

fn plain(kind: usize, lens: &[i64]) -> Graph {
    Graph { kind, lens: lens.to_vec(), epochs: 1, batch: 2, fails: (1 << 40, 1 << 40) }
}

fn state_of(graph: &Graph) -> State {
    let mut pipeline = build(graph, 1, 1).build().unwrap();
    assert_eq!(pipeline.by_ref().take(3).count(), 3);
    pipeline.state().unwrap()
}

fn refusal<T>(built: Result<T>) -> Error {
    built.err().unwrap()
}

#[test]
fn a_state_of_other_sources_or_of_another_merge_is_refused() {
    let state = state_of(&plain(1, &[20, 30]));
    let resume = |graph: &Graph| build(graph, 1, 1).resume(state.clone()).build();
    assert!(resume(&plain(1, &[20, 30])).is_ok());
    // A state of several data sets of other lengths, another number of sources, another policy, one source.
    for other in [
        plain(1, &[20, 31]),
        plain(1, &[20, 30, 1]),
        plain(0, &[20, 30]),
        plain(4, &[20, 30]),
        plain(6, &[20, 30]),
    ] {
        let error = refusal(resume(&other));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{other:?}");
        assert!(!error.changes().is_empty(), "{error}");
    }
    let single = PipelineBuilder::new(numbers(50)).batch("batch", 2, false).deterministic();
    assert!(!refusal(single.resume(state.clone()).build()).changes().is_empty());
    assert!(State::combine([state.clone()]).is_err() && state.skip([]).is_err());
}

#[test]
fn states_of_grouped_branches_and_of_ranks_are_unsupported() {
    let lists = || PipelineBuilder::new(numbers(9)).batch("lists", 2, false);
    let other = || PipelineBuilder::new(DatasetSource::new(vec![vec![1], vec![2]]));
    let merged = PipelineBuilder::merge([lists(), other()], RoundRobin::default());
    let mut pipeline = merged.deterministic().build().unwrap();
    assert_eq!(pipeline.by_ref().count(), 7);
    let error = pipeline.state().unwrap_err();
    assert_eq!((error.kind(), error.stage()), (ErrorKind::Unsupported, Some("merge")));
    // In the order of arrival, no choices are repeated.
    let merged = || PipelineBuilder::merge([lists(), other()], Arrival);
    let mut pipeline = merged().build().unwrap();
    let mut found: Vec<_> = pipeline.by_ref().take(3).map(|it| it.unwrap()).collect();
    let rest = merged().resume(pipeline.state().unwrap()).build().unwrap();
    found.extend(rest.map(|it| it.unwrap()));
    assert_eq!(found.into_iter().flatten().sum::<i64>(), 36 + 3);

    let ranks =
        PipelineBuilder::merge([lists(), other()], Arrival).shard(Shard::new(0, 2).unwrap());
    let mut pipeline = ranks.build().unwrap();
    assert!(pipeline.by_ref().count() > 0);
    assert_eq!(pipeline.state().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_pair_that_was_split_and_delivered_in_part_has_no_state_yet() {
    let pairs = PipelineBuilder::new(numbers(9)).zip(PipelineBuilder::new(numbers(9)));
    let both = pairs.flat_map("both", |(a, b)| [Ok(a), Ok(b)]).deterministic();
    let mut pipeline = both.build().unwrap();
    assert_eq!(pipeline.by_ref().take(3).count(), 3);
    assert_eq!(pipeline.state().unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(pipeline.by_ref().take(1).count(), 1);
    assert!(pipeline.state().is_ok());
}

#[cfg(feature = "serde")]
#[test]
fn the_size_of_a_state_does_not_depend_on_the_number_of_filtered_items() {
    let size = |len: i64| {
        let branches = [0, 1].map(|at| {
            PipelineBuilder::new(numbers(len)).filter(&*format!("odd {at}"), |n| Ok(n % 2 == 1))
        });
        let merged = PipelineBuilder::merge(branches, RoundRobin::default());
        let mut pipeline = merged.deterministic().build().unwrap();
        let taken = (len - 1000) as usize;
        assert_eq!(pipeline.by_ref().take(taken).count(), taken);
        serde_json::to_string(&pipeline.state().unwrap()).unwrap().len()
    };
    // Items in flight take a few kilobytes. A range per filtered item would take more than a megabyte.
    assert!(size(40_000) < 60_000);
}
