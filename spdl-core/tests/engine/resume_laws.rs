//! Laws of resuming, for any graph, order, division and failure policy: wherever a run stops, the
//! resumed run delivers the same remaining items, and all ranks together deliver each sample once.

// feature of this file: Q08
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use crate::common::{bad_number, numbers, sleep_by_number, within_seconds};
use proptest::prelude::*;
use spdl_core::pipeline::path;
use spdl_core::resume::SampleCounts;
use spdl_core::source::Remainder;
use spdl_core::source::sampler::{Mixture, Part, Repeated, ShardWindow, Shuffled, Until, Weighted};
use spdl_core::stage::{Aggregator, Bucketing, Packing};
use spdl_core::{
    BatchLayout, DType, DatasetSource, Error, Field, Fill, FillContext, OnError, Order, Pipeline,
    PipelineBuilder, Result, Shard, SlotMut, Source, Stage, StageContext, StageOptions, State,
};

/// A piece of a sample, as the consumer receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Piece {
    id: u64,
    number: i64,
    /// The number of the piece within its sample, if the sample was split.
    part: i64,
    /// A random number of the sample.
    random: u64,
}

/// The pieces of one step, and a random number of the step.
type Step = (Vec<Piece>, u64);

/// The sampler of a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Data {
    Shuffled,
    Twice,
    Window,
    PartitionedWindow,
    WithReplacement,
    WithoutReplacement,
    UntilFirstExhausted,
    UntilAllExhausted,
    UntilSamples,
}

const DATA: [Data; 9] = [
    Data::Shuffled,
    Data::Twice,
    Data::Window,
    Data::PartitionedWindow,
    Data::WithReplacement,
    Data::WithoutReplacement,
    Data::UntilFirstExhausted,
    Data::UntilAllExhausted,
    Data::UntilSamples,
];

/// The stages after those that all graphs share.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Single,
    Filtered,
    Cut,
    Batched,
    CutAndBatched,
    /// Batched, unbatched and filtered.
    TakenApart,
    Aggregated,
    Bucketed,
    Packed,
    ConcatenatedAndSplit,
    Filled,
    Routed,
}

const SHAPES: [Shape; 12] = [
    Shape::Single,
    Shape::Filtered,
    Shape::Cut,
    Shape::Batched,
    Shape::CutAndBatched,
    Shape::TakenApart,
    Shape::Aggregated,
    Shape::Bucketed,
    Shape::Packed,
    Shape::ConcatenatedAndSplit,
    Shape::Filled,
    Shape::Routed,
];

/// A pipeline over at least two numbers.
#[derive(Clone, Debug)]
struct Graph {
    data: Data,
    shape: Shape,
    items: i64,
    order: Order,
    batch: usize,
    drop_last: bool,
    policy: OnError,
    epochs: u64,
}

/// Execution settings, which must not affect the results.
#[derive(Clone, Debug)]
struct Run {
    threads: usize,
    queue: usize,
    prefetch: usize,
    /// How many steps are read before the state is saved, and how many are lost after that.
    steps: usize,
    lost: usize,
    /// Whether the pipeline is stopped before the state is saved.
    stopped: bool,
}

type Fails = Arc<dyn Fn(i64) -> bool + Send + Sync>;

fn nothing_fails() -> Fails {
    Arc::new(|_| false)
}

fn some_fail() -> Fails {
    Arc::new(|n| n % 11 == 6)
}

/// Converts a number to a piece with its identity and a random number.
struct Draw(Fails);

impl Stage<i64> for Draw {
    type Out = Piece;
    fn process(&mut self, number: i64, cx: &mut StageContext<'_, Piece>) -> Result<()> {
        if number % 4 == 1 {
            sleep_by_number(number);
        }
        if (self.0)(number) {
            return Err(bad_number(number));
        }
        let random = cx.rng().next_u64();
        cx.emit(Piece { id: cx.id().index, number, part: 0, random })
    }
}

/// Adds a random number to each step.
struct DrawStep;

impl Stage<Vec<Piece>> for DrawStep {
    type Out = Step;
    fn process(&mut self, list: Vec<Piece>, cx: &mut StageContext<'_, Step>) -> Result<()> {
        let random = cx.rng().next_u64();
        cx.emit((list, random))
    }
}

/// Ends a list after every fifth number.
#[derive(Default)]
struct ToFives(Vec<Piece>);

impl Aggregator<Piece> for ToFives {
    type Out = Vec<Piece>;
    fn accumulate(&mut self, piece: Piece) -> Result<Option<Vec<Piece>>> {
        self.0.push(piece);
        Ok((piece.number % 5 == 0).then(|| std::mem::take(&mut self.0)))
    }
    fn flush(&mut self) -> Result<Option<Vec<Piece>>> {
        Ok((!self.0.is_empty()).then(|| std::mem::take(&mut self.0)))
    }
}

/// Writes a piece and a random number into a slot.
struct Write;

impl Fill<Piece> for Write {
    fn fill(
        &mut self,
        piece: Piece,
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> Result<()> {
        slot.set(0, piece.id as i64)?;
        slot.set(1, piece.number)?;
        slot.set(2, piece.random as i64)?;
        slot.set(3, cx.rng().next_u64() as i64)
    }
}

fn length(piece: &Piece) -> u64 {
    1 + piece.number as u64 % 6
}

impl Graph {
    fn source(&self) -> DatasetSource<Vec<i64>> {
        let (items, seed) = (self.items as u64, 3);
        let source = numbers(self.items);
        let weights: Vec<f64> = (0..items).map(|n| 1.0 + (n % 3) as f64).collect();
        let shards: Vec<u64> =
            (0..5).map(|shard| items * (shard + 1) / 5 - items * shard / 5).collect();
        let parts = || [Part::new(1 + items / 4, 1.0), Part::new(items - 1 - items / 4, 2.0)];
        let mixture = |until| source_with(numbers(self.items), Mixture::new(parts(), until, seed));
        match self.data {
            Data::Shuffled => source.shuffled(seed),
            Data::Twice => source_with(source, Repeated::passes(Shuffled::new(seed), 2)),
            Data::Window => source_with(source, ShardWindow::new(shards, 7, seed)),
            Data::PartitionedWindow => {
                let window = ShardWindow::new(shards, 3, seed).unwrap();
                source_with(source, window.partitions(4))
            }
            Data::WithReplacement => {
                source_with(source, Weighted::with_replacement(weights, items + 3, seed))
            }
            Data::WithoutReplacement => {
                source_with(source, Weighted::without_replacement(weights, items - 1, seed))
            }
            Data::UntilFirstExhausted => mixture(Until::FirstExhausted),
            Data::UntilAllExhausted => mixture(Until::AllExhausted),
            Data::UntilSamples => mixture(Until::Samples(items + 5)),
        }
    }

    /// The number of positions in an epoch.
    fn len(&self) -> u64 {
        self.source().len_hint().unwrap()
    }

    fn builder(&self, run: &Run, fails: Fails) -> PipelineBuilder<Step> {
        let Graph { batch, drop_last, .. } = *self;
        let queue = run.queue;
        let named = |name: &str| StageOptions::new(name).queue(queue).concurrency(3);
        let drawn = PipelineBuilder::from_source(named("source"), self.source())
            .stage(named("draw"), move || Ok(Draw(Arc::clone(&fails))))
            .map_async(named("wait"), |piece: Piece| async move { Ok(piece) });
        let alone = |name: &'static str| {
            move |pieces: PipelineBuilder<Piece>| pieces.map(name, |piece| Ok(vec![piece]))
        };
        let single = alone("list");
        let cut = |pieces: PipelineBuilder<Piece>| {
            pieces.flat_map(named("cut"), |piece: Piece| {
                (0..piece.number % 4).map(move |part| Ok(Piece { part, ..piece }))
            })
        };
        let lists: PipelineBuilder<Vec<Piece>> = match self.shape {
            Shape::Single => single(drawn),
            Shape::Filtered => single(drawn.filter("thirds", |piece| Ok(piece.number % 3 != 1))),
            Shape::Cut => single(cut(drawn)),
            Shape::Batched => drawn.batch("batch", batch, drop_last),
            Shape::CutAndBatched => cut(drawn).batch("batch", batch, drop_last),
            Shape::TakenApart => {
                let apart = drawn.batch("batch", batch, drop_last).unbatch(named("apart"));
                single(apart.filter("thirds", |piece| Ok(piece.number % 3 != 1)))
            }
            Shape::Aggregated => drawn.aggregate("to fives", || Ok(ToFives::default())),
            Shape::Bucketed => {
                let buckets = Bucketing::boundaries([2.0, 4.0]).batch_size(batch);
                let buckets = if drop_last { buckets.drop_last() } else { buckets };
                let bucketed = drawn.bucket("bucket", buckets, |piece| length(piece) as f64);
                bucketed.map("items", |bucketed| Ok(bucketed.items))
            }
            Shape::Packed => {
                let packed = drawn.pack("pack", Packing::new(9).open(3), length);
                packed.map("items", |packed| Ok(packed.items))
            }
            Shape::ConcatenatedAndSplit => {
                let token = |piece: Piece| move |part| Piece { part, ..piece };
                let tokens = drawn.map("tokens", move |piece| {
                    Ok((0..length(&piece) as i64).map(token(piece)).collect::<Vec<_>>())
                });
                let split = tokens.concat_and_split("split", 1 + batch as u64, drop_last);
                split.map("items", |packed| {
                    Ok(packed.items.into_iter().flat_map(|piece| piece.part).collect())
                })
            }
            Shape::Filled => {
                let fields = ["id", "number", "random", "noise"];
                let fields = fields.map(|name| Field::new(name, DType::I64, &[]));
                let layout = BatchLayout::new(batch, fields).drop_last(drop_last);
                drawn.fill(named("fill"), layout, || Ok(Write)).map("look", |filled| {
                    let column = |name| filled.array(name).unwrap().as_slice::<i64>().unwrap();
                    let (ids, numbers) = (column("id"), column("number"));
                    let (random, noise) = (column("random"), column("noise"));
                    let piece = |row: usize| Piece {
                        id: ids[row] as u64,
                        number: numbers[row],
                        part: noise[row],
                        random: random[row] as u64,
                    };
                    Ok((0..ids.len()).map(piece).collect())
                })
            }
            Shape::Routed => drawn.route(
                StageOptions::new("route").order(self.order),
                |piece| Ok((piece.number % 3) as usize),
                [
                    path(single),
                    path(move |pieces: PipelineBuilder<Piece>| {
                        let both = move |piece| [0, 1].map(|part| Ok(Piece { part, ..piece }));
                        alone("list of two")(pieces.flat_map("twice", both))
                    }),
                    path(move |pieces: PipelineBuilder<Piece>| pieces.batch("pairs", 2, drop_last)),
                ],
            ),
        };
        let steps = lists.stage("draw for the step", || Ok(DrawStep));
        let steps = if self.order == Order::Input { steps.deterministic() } else { steps };
        steps
            .seed(5)
            .epochs(0..self.epochs)
            .threads(run.threads)
            .prefetch(run.prefetch)
            .on_error(self.policy)
            .allow_total_loss()
    }

    /// Whether a list or a split item may be delivered in part.
    fn makes_parts(&self) -> bool {
        matches!(self.shape, Shape::TakenApart | Shape::ConcatenatedAndSplit)
    }

    /// The maximum number of pieces that an epoch of a rank leaves out.
    fn most_left_out(&self) -> usize {
        let short = if self.drop_last { self.batch - 1 } else { 0 };
        match self.shape {
            Shape::Batched | Shape::CutAndBatched | Shape::TakenApart | Shape::Filled => short,
            Shape::Bucketed => 3 * short,
            // The tokens of an incomplete sequence.
            Shape::ConcatenatedAndSplit if self.drop_last => self.batch,
            Shape::Routed => usize::from(self.drop_last),
            _ => 0,
        }
    }

    /// Every piece of every position of epoch 0, as a single rank makes them.
    fn all_pieces(&self, fails: Fails) -> BTreeSet<Piece> {
        let graph = Graph { drop_last: false, order: Order::Input, epochs: 1, ..self.clone() };
        let run = Run { threads: 2, queue: 8, prefetch: 8, steps: 0, lost: 0, stopped: false };
        let pipeline = graph.builder(&run, fails).build().unwrap();
        pipeline.flat_map(|step| step.unwrap().0).collect()
    }
}

fn source_with(
    source: DatasetSource<Vec<i64>>,
    sampler: Result<impl spdl_core::source::sampler::Sampler>,
) -> DatasetSource<Vec<i64>> {
    source.sampler(sampler.unwrap())
}

fn graphs() -> impl Strategy<Value = Graph> {
    let skips = prop_oneof![
        Just(OnError::Raise),
        Just(OnError::SKIP),
        Just(OnError::Skip { at_most: Some(1000) }),
        Just(OnError::SkipShare { at_most: 1.0, after: 100, at_end: false }),
    ];
    let kinds = (prop::sample::select(DATA.to_vec()), prop::sample::select(SHAPES.to_vec()));
    (kinds, 2..80i64, any::<bool>(), 1..6usize, any::<bool>(), skips, 1..4u64).prop_map(
        |((data, shape), items, ordered, batch, drop_last, policy, epochs)| {
            // Split items resume only with ordered stages.
            let ordered = ordered || shape == Shape::ConcatenatedAndSplit;
            let order = if ordered { Order::Input } else { Order::Completion };
            Graph { data, shape, items, order, batch, drop_last, policy, epochs }
        },
    )
}

/// Failures that do not end a run with this policy.
fn failing(policy: OnError) -> Fails {
    if policy == OnError::Raise { nothing_fails() } else { some_fail() }
}

fn runs(steps: usize) -> impl Strategy<Value = Run> {
    let lost = prop_oneof![2 => Just(0), 1 => 1..6usize];
    (1..9usize, 1..20usize, 1..9usize, 0..steps, lost, any::<bool>()).prop_map(
        |(threads, queue, prefetch, steps, lost, stopped)| Run {
            threads,
            queue,
            prefetch,
            steps,
            lost,
            stopped,
        },
    )
}

fn remainders() -> impl Strategy<Value = Remainder> {
    prop::sample::select(vec![Remainder::Drop, Remainder::Pad, Remainder::Uneven])
}

fn config(cases: u32) -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: asked.unwrap_or(cases),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

/// Reads up to `most` steps of all epochs, or of epoch `only`.
fn take(pipeline: &mut Pipeline<Step>, most: usize, only: Option<u64>) -> Vec<(u64, Step)> {
    let mut steps = Vec::new();
    while steps.len() < most {
        let Some(mut epoch) = pipeline.next_epoch() else { break };
        let number = epoch.number();
        if only.is_some_and(|only| only != number) {
            break;
        }
        while steps.len() < most
            && let Some(step) = epoch.next()
        {
            steps.push((number, step.unwrap()));
        }
        if only.is_some() {
            break;
        }
    }
    steps
}

/// Serialises and deserialises a state, as a file does.
fn stored(state: State) -> State {
    #[cfg(feature = "serde")]
    let state = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
    state
}

/// Interrupts a run as `run` specifies: the state is that after the returned steps.
fn interrupted(
    mut pipeline: Pipeline<Step>,
    run: &Run,
    only: Option<u64>,
) -> (Vec<(u64, Step)>, State) {
    let steps = take(&mut pipeline, run.steps, only);
    if run.stopped {
        pipeline.stop();
    }
    let state = stored(pipeline.state().unwrap());
    // Steps after the saved state, which are lost.
    take(&mut pipeline, if run.stopped { 0 } else { run.lost }, only);
    (steps, state)
}

proptest! {
    #![proptest_config(config(80))]

    /// Three interrupted generations and a last one, each with other numbers of threads and queue
    /// sizes.
    // promise: R12, R11
    #[test]
    fn every_rank_resumes_with_the_same_remaining_steps(
        graph in graphs(),
        runs in prop::collection::vec(runs(25), 4),
        (rank, world) in (1..9u64).prop_flat_map(|world| (0..world, Just(world))),
        remainder in remainders(),
    ) {
        let graph = Graph { order: Order::Input, ..graph };
        within_seconds(60, move || {
            let shard = Shard::new(rank, world).unwrap().remainder(remainder);
            let build = |run: &Run| graph.builder(run, failing(graph.policy)).shard(shard);
            let mut whole = build(&runs[3]).build().unwrap();
            let whole = take(&mut whole, usize::MAX, None);
            let mut parts = Vec::new();
            let mut state: Option<State> = None;
            for run in &runs[..3] {
                let builder = build(run);
                let builder = match state {
                    Some(state) => builder.resume(state),
                    None => builder,
                };
                let (steps, reached) = interrupted(builder.build().unwrap(), run, None);
                parts.extend(steps);
                assert_eq!(reached.steps(), parts.len() as u64);
                state = Some(reached);
            }
            let mut last = build(&runs[3]).resume(state.unwrap()).build().unwrap();
            parts.extend(take(&mut last, usize::MAX, None));
            let same = parts.iter().zip(&whole).take_while(|(a, b)| a == b).count();
            assert_eq!(parts.get(same), whole.get(same), "step {same} of {}", whole.len());
        });
    }
}

fn total(counts: SampleCounts) -> i128 {
    let SampleCounts { delivered, dropped, filtered, left_out } = counts;
    i128::from(delivered + dropped + filtered + left_out)
}

/// What the ranks of all generations made of one epoch.
#[derive(Default)]
struct Union {
    seen: BTreeMap<Piece, usize>,
    /// Sums over all runs, each counted from its start.
    delivered: i128,
    left_out: i128,
    done: i128,
}

impl Union {
    fn add(&mut self, steps: Vec<(u64, Step)>, before: SampleCounts, after: SampleCounts) {
        for piece in steps.into_iter().flat_map(|(_, (pieces, _))| pieces) {
            *self.seen.entry(piece).or_default() += 1;
        }
        self.delivered += i128::from(after.delivered) - i128::from(before.delivered);
        self.left_out += i128::from(after.left_out) - i128::from(before.left_out);
        self.done += total(after) - total(before);
    }
}

/// The world size of each generation.
fn worlds() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![
        Just(vec![8, 6, 16]),
        prop::collection::vec(1..9u64, 3),
        (1..9u64, 1..9u64).prop_map(|(first, last)| vec![first, first, first, last]),
        Just(vec![1; 4]),
    ]
}

proptest! {
    #![proptest_config(config(60))]

    /// Resumes from the combined state or, while the world size is unchanged, each rank from its
    /// own state.
    // promise: R13, R11
    #[test]
    fn ranks_of_changing_worlds_deliver_every_sample_once(
        graph in graphs(),
        worlds in worlds(),
        own_states: bool,
        runs in prop::collection::vec(runs(12), 9),
        remainder in remainders(),
    ) {
        let graph = Graph { epochs: 1, ..graph };
        within_seconds(60, move || {
            let fails = || failing(graph.policy);
            let mut runs = runs.iter().cycle();
            let mut union = Union::default();
            let mut padding = 0;
            // One combined state, or one state of each rank.
            let mut begun: Vec<State> = Vec::new();
            for (generation, &world) in worlds.iter().enumerate() {
                let last = generation + 1 == worlds.len();
                let mut states = Vec::new();
                for rank in 0..world {
                    let mut run = runs.next().unwrap().clone();
                    if last {
                        (run.steps, run.stopped) = (usize::MAX, false);
                    }
                    let state = begun.get(if begun.len() > 1 { rank as usize } else { 0 });
                    let shard = Shard::new(rank, world).unwrap().remainder(remainder);
                    let builder = graph.builder(&run, fails()).shard(shard);
                    let builder = match state {
                        Some(state) => builder.resume(state.clone()),
                        None => builder,
                    };
                    let before = state.map(State::samples).unwrap_or_default();
                    let (steps, reached) = interrupted(builder.build().unwrap(), &run, Some(0));
                    union.add(steps, before, reached.samples());
                    states.push(if graph.makes_parts() { reached.repeat_parts() } else { reached });
                }
                if states.iter().all(|state| state.epoch() == 0) {
                    let audit = State::audit(states.clone()).unwrap();
                    assert_eq!(audit.repeated().count(), 0, "{audit}");
                }
                begun = if own_states && worlds.get(generation + 1) == Some(&world) {
                    states
                } else {
                    padding += world - 1;
                    vec![State::combine(states).unwrap()]
                };
            }
            assert_eq!(begun[0].epoch(), 1, "all ranks have ended epoch 0");

            let len = graph.len();
            let expected = graph.all_pieces(fails());
            let (own, repeated): (Vec<_>, Vec<_>) =
                union.seen.iter().partition(|(piece, _)| piece.id < len);
            for (piece, times) in &own {
                assert!(expected.contains(piece), "{piece:?} does not belong to the epoch");
                assert!(**times == 1 || graph.makes_parts(), "{piece:?} occurs {times} times");
            }
            let ids = |pieces: &mut dyn Iterator<Item = u64>| pieces.collect::<BTreeSet<u64>>();
            let own = ids(&mut own.iter().map(|(piece, _)| piece.id));
            let repeated = ids(&mut repeated.iter().map(|(piece, _)| piece.id));
            let all = ids(&mut expected.iter().map(|piece| piece.id));
            let lost = all.difference(&own).count() as i128;
            let len = i128::from(len);
            let unseen = len - union.done;
            match remainder {
                Remainder::Uneven => assert_eq!(unseen, 0, "every position has an outcome"),
                Remainder::Drop => {
                    let most = *worlds.iter().max().unwrap() as i128;
                    assert!((0..most).contains(&unseen), "{unseen} of {len} assigned to no rank");
                }
                _ => assert!((0..=i128::from(padding)).contains(&-unseen), "{unseen}"),
            }
            assert!(lost <= union.left_out + unseen.max(0), "{lost} lost");
            if !graph.drop_last {
                assert_eq!(union.left_out, 0);
                // Samples that no rank reads now may have been delivered in part before.
                let whole = expected.iter().filter(|piece| own.contains(&piece.id));
                let absent = whole.filter(|piece| !union.seen.contains_key(piece));
                let absent = ids(&mut absent.map(|piece| piece.id));
                assert!(absent.len() as i128 <= unseen.max(0), "without pieces: {absent:?}");
            }
            assert!(remainder == Remainder::Pad || repeated.is_empty(), "{repeated:?}");
            // A padding sample of one division that was delivered in part does not occur in the
            // next division. An unbatched list is counted as a whole.
            let least = own.len() as i128 - unseen.max(0);
            let delivered = least..=(own.len() + repeated.len()) as i128;
            let reported = !graph.drop_last && !graph.makes_parts();
            assert!(!reported || delivered.contains(&union.delivered), "{}", union.delivered);
        });
    }

    /// While all ranks are at the same step, they read one order of the epoch together, for any
    /// world size.
    // promise: R13, R11
    #[test]
    fn changing_worlds_keep_the_sequence(
        data in prop::sample::select(DATA.to_vec()),
        items in 2..120i64,
        worlds in worlds(),
        rounds in 0..5usize,
        run in runs(1),
        remainder in remainders(),
    ) {
        within_seconds(60, move || {
            let (shape, order, policy) = (Shape::Single, Order::Input, OnError::Raise);
            let (batch, drop_last, epochs) = (1, false, 1);
            let graph = Graph { data, shape, items, order, batch, drop_last, policy, epochs };
            let whole = take(&mut graph.builder(&run, nothing_fails()).build().unwrap(), usize::MAX, None);
            let mut together = Vec::new();
            let mut state: Option<State> = None;
            for &world in &worlds {
                let mut ranks: Vec<_> = (0..world)
                    .map(|rank| {
                        let shard = Shard::new(rank, world).unwrap().remainder(remainder);
                        let builder = graph.builder(&run, nothing_fails()).shard(shard);
                        let builder = match &state {
                            Some(state) => builder.resume(state.clone()),
                            None => builder,
                        };
                        builder.build().unwrap()
                    })
                    .collect();
                for _ in 0..rounds {
                    for rank in &mut ranks {
                        together.extend(take(rank, 1, Some(0)));
                    }
                }
                let states = ranks.iter().map(|rank| stored(rank.state().unwrap()));
                state = Some(State::combine(states.collect::<Vec<_>>()).unwrap());
            }
            let len = graph.len();
            let own: Vec<_> = together.iter().filter(|(_, step)| step.0[0].id < len).collect();
            assert!(own.iter().copied().eq(&whole[..own.len()]), "{own:?}");
            let most = worlds.iter().sum::<u64>() as usize * rounds;
            let least = if remainder == Remainder::Drop {
                whole.len().saturating_sub(*worlds.iter().max().unwrap() as usize)
            } else {
                whole.len()
            };
            assert!(own.len() >= most.min(least), "only {} of {}", own.len(), whole.len());
        });
    }
}

proptest! {
    #![proptest_config(config(60))]

    /// Runs that end with a failure, for any policy. Some failed samples succeed in the next run.
    // promise: R12, R11
    #[test]
    fn a_failed_run_resumes_without_loss(
        graph in graphs(),
        policy in prop_oneof![
            Just(OnError::Raise),
            (0..3u64).prop_map(|most| OnError::Skip { at_most: Some(most) }),
            Just(OnError::SKIP),
            Just(OnError::SkipShare { at_most: 0.01, after: 100, at_end: false }),
        ],
        runs in prop::collection::vec(runs(40), 12),
        world in 1..5u64,
    ) {
        let graph = Graph { epochs: 1, policy, ..graph };
        within_seconds(60, move || {
            let mut runs = runs.iter().cycle();
            let mut union = Union::default();
            let dropped = Arc::new(Mutex::new(BTreeSet::new()));
            for rank in 0..world {
                let shard = Shard::new(rank, world).unwrap().remainder(Remainder::Uneven);
                let mut state: Option<State> = None;
                for generation in 0..4 {
                    let fails: Fails = Arc::new(move |n| n % 9 > 5 + generation);
                    let listener = Arc::clone(&dropped);
                    let builder = graph.builder(runs.next().unwrap(), fails).shard(shard);
                    let builder = builder.on_drop(move |sample| {
                        assert!(listener.lock().unwrap().insert(sample.id.index), "{sample:?}");
                        Ok(())
                    });
                    let before = state.as_ref().map(State::samples).unwrap_or_default();
                    let builder = match state {
                        Some(state) => builder.resume(state),
                        None => builder,
                    };
                    let mut pipeline = builder.build().unwrap();
                    let (mut steps, mut error) = (Vec::new(), None::<Error>);
                    for step in pipeline.by_ref() {
                        match step {
                            Ok(step) => steps.push((0, step)),
                            Err(failure) => error = Some(failure),
                        }
                    }
                    assert!(generation < 3 || error.is_none(), "{error:?}");
                    let reached = stored(pipeline.state().unwrap());
                    union.add(steps, before, reached.samples());
                    let repeats = graph.makes_parts() && graph.order != Order::Input;
                    state = Some(if repeats { reached.repeat_parts() } else { reached });
                }
            }
            let dropped = dropped.lock().unwrap();
            let expected = graph.all_pieces(nothing_fails());
            let repeats = graph.makes_parts() && graph.order != Order::Input;
            for (piece, times) in &union.seen {
                assert!(expected.contains(piece), "{piece:?} does not belong to the epoch");
                assert!(*times == 1 || repeats, "{piece:?} occurs {times} times");
                assert!(!dropped.contains(&piece.id), "{piece:?} was dropped");
            }
            let lost: Vec<_> = expected
                .iter()
                .filter(|piece| !union.seen.contains_key(piece) && !dropped.contains(&piece.id))
                .collect();
            let most = world as usize * graph.most_left_out();
            assert!(lost.len() <= most, "{lost:?} neither delivered nor dropped");
            assert_eq!(union.done, i128::from(graph.len()));
        });
    }
}

// promise: R11
#[test]
fn a_split_item_before_an_incomplete_last_sequence_is_delivered_again() {
    within_seconds(60, || {
        // 7 tokens in sequences of 2: the last token is left out, the other six are delivered.
        let build = || {
            PipelineBuilder::new(DatasetSource::new(vec![(0..7).collect::<Vec<i64>>()]))
                .concat_and_split("split", 2, true)
                .map("tokens", |packed| Ok(packed.items.into_iter().flat_map(|p| p.part).collect()))
                .deterministic()
                .prefetch(9)
        };
        let mut pipeline = build().build().unwrap();
        let mut seen: Vec<Vec<i64>> = vec![pipeline.next().unwrap().unwrap()];
        let monitor = pipeline.monitor();
        crate::common::until("all is made", || {
            let statistics = monitor.statistics();
            statistics.left_out == 1 && statistics.stages.last().is_some_and(|it| it.items == 3)
        });
        let state = pipeline.state().unwrap();
        seen.extend(build().resume(state).build().unwrap().map(|tokens| tokens.unwrap()));
        assert_eq!(seen, [[0, 1], [2, 3], [4, 5]]);
    });
}

// promise: CORE6
#[test]
fn outcomes_are_counted_once_for_any_world_size() {
    within_seconds(60, || {
        let ranks = |world: u64, state: Option<State>| {
            let rank = |rank| {
                let builder = PipelineBuilder::new(numbers(100)).deterministic();
                let builder = builder.shard(Shard::new(rank, world).unwrap());
                let builder = match state.clone() {
                    Some(state) => builder.resume(state),
                    None => builder,
                };
                let mut pipeline = builder.build().unwrap();
                assert_eq!(pipeline.by_ref().take(2).count(), 2);
                pipeline.state().unwrap()
            };
            State::combine((0..world).map(rank).collect::<Vec<_>>()).unwrap()
        };
        let mut state = None;
        for (world, delivered) in [(8, 16), (6, 28), (16, 60)] {
            let reached = ranks(world, state);
            assert_eq!(reached.samples_in_epoch().delivered, delivered, "after {world} ranks");
            assert_eq!(reached.samples().delivered, delivered, "after {world} ranks");
            assert_eq!(reached.remaining(), Some(100 - delivered));
            state = Some(reached);
        }
    });
}
