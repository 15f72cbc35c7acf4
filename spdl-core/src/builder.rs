//! Describing a pipeline: the type follows the data, so a wrong order of stages does not compile.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::ops::{Bound, Range, RangeBounds};
use std::panic::Location;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_core::Stream;
use futures_core::future::BoxFuture;
use futures_util::task::AtomicWaker;

use crate::aggregate::{Aggregation, Aggregator, Batcher, Filter, FlatMap, Map, Unbatch};
use crate::batch::{Batch, BatchLayout, Fill};
use crate::budget::Budget;
use crate::control::{Knob, Knobs};
use crate::definition::{Construct, Definition, PipelineSettings, Setting, StageDefinition};
use crate::executor::CpuExecutor;
use crate::failure::{Dropped, OnError, Tolerance};
use crate::footprint::Footprint;
use crate::hooks::{Hook, Hooks, StageInfo};
use crate::interval::Interval;
use crate::merge::MergePolicy;
use crate::options::{Order, StageOptions, Workers};
use crate::pipeline::{Parts, Pipeline};
use crate::replay::OrderRecord;
use crate::runtime::Runtime;
use crate::scheduler::assembly::Assembly;
use crate::scheduler::async_node::AsyncNode;
use crate::scheduler::cpu_node::{CpuNode, Sizer};
use crate::scheduler::crew::{Crew, Workplace};
use crate::scheduler::fill_node::FillNode;
use crate::scheduler::merge_node::{MergeNode, Progress, Side, ZipNode};
use crate::scheduler::queue::Queue;
use crate::scheduler::route_node::{
    Crossing, JoinNode, SplitListNode, SplitNode, Waiting, combine_items, combine_lists,
};
use crate::scheduler::source_node::SourceNode;
use crate::scheduler::{Depth, Measure, Node, Shared, StageCore};
use crate::source::{IteratorSource, StreamSource};
use crate::stage::{AsyncStage, Stage};
use crate::statistics::{StageKind, StageMeter};
use crate::sync::Mutex;
use crate::{Error, ErrorKind, Result, Source};

/// The name of the source in statistics and errors, where it has no other.
const SOURCE: &str = "source";
/// How many small keys may wait behind the source.
const SOURCE_QUEUE: usize = 256;
/// How many items may wait behind a stage that computes.
const CPU_QUEUE: usize = 64;
/// How many items an async stage has in flight.
const ASYNC_CONCURRENCY: usize = 16;
/// How many items (batches, mostly) wait for the consumer.
const PREFETCH: usize = 2;

/// Describes a pipeline whose last stage so far yields `T`.
///
/// ```
/// use spdl_core::{DatasetSource, OnError, PipelineBuilder};
///
/// let pipeline = PipelineBuilder::new(DatasetSource::new(vec!["1", "2", "three", "4", "5"]))
///     .map("parse", |text: &str| {
///         text.parse::<u32>().map_err(|error| {
///             spdl_core::Error::new(spdl_core::ErrorKind::Corrupt, "not a number").with_source(error)
///         })
///     })
///     .filter("small", |n| Ok(*n < 5))
///     .batch("batch", 2, false)
///     .on_error(OnError::SKIP)
///     .deterministic()
///     .build()?;
/// let monitor = pipeline.monitor();
/// assert_eq!(pipeline.collect::<spdl_core::Result<Vec<_>>>()?, [vec![1, 2], vec![4]]);
/// assert_eq!(monitor.statistics().dropped[0].stage.as_ref(), "parse");
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// The same in the wrong order does not compile:
///
/// ```compile_fail,E0277
/// # use spdl_core::{DatasetSource, PipelineBuilder, Stage, StageContext, Result};
/// struct Halve;
/// impl Stage<f64> for Halve {
///     type Out = f64;
///     fn process(&mut self, item: f64, cx: &mut StageContext<'_, f64>) -> Result<()> {
///         cx.emit(item / 2.0)
///     }
/// }
/// let words = PipelineBuilder::new(DatasetSource::new(vec!["a", "b"]));
/// let pipeline = words.stage("halve", || Ok(Halve));
/// ```
#[must_use = "a description does nothing until `build`"]
pub struct PipelineBuilder<T> {
    settings: Settings,
    /// Whether a setting of the whole pipeline has been made here.
    settings_made: bool,
    source: Option<StageDefinition>,
    stages: Vec<StageDefinition>,
    /// Builds everything up to here.
    plan: PlanStep<T>,
}

type PlanStep<T> = Box<dyn FnOnce(&mut Plan, Outgoing<T>) -> Made<T> + Send>;

/// What is asked of the last stage of a part.
struct Outgoing<T> {
    /// Whether the consumer takes what it yields.
    last: bool,
    /// How to count what it yields.
    sizer: Option<Sizer<T>>,
}

impl<T> Outgoing<T> {
    const INNER: Self = Outgoing { last: false, sizer: None };
}

/// What has been built of a part: where its items arrive, and how many stages are behind them.
struct Made<T> {
    queue: Arc<Queue<T>>,
    depth: usize,
    /// Whether its items are counted in the memory budget.
    measured: bool,
}

/// Told of what happened, every so often.
pub(crate) type IntervalListener = Box<dyn FnMut(&Interval) + Send>;
type DropCallback = Box<dyn Fn(&Dropped) -> Result<()> + Send + Sync>;
type Background = Box<dyn FnOnce(Arc<dyn Runtime>) -> BoxFuture<'static, Result<()>> + Send>;

struct Settings {
    seed: Option<u64>,
    threads: Option<usize>,
    executor: Option<Arc<dyn CpuExecutor>>,
    epochs: Option<Range<u64>>,
    order: Option<Order>,
    on_error: Option<OnError>,
    prefetch: Option<usize>,
    memory: Option<usize>,
    largest_item: Option<usize>,
    runtime: Option<Arc<dyn Runtime>>,
    hooks: Vec<Arc<dyn Hook>>,
    on_drop: Vec<DropCallback>,
    interval: Option<(Duration, IntervalListener)>,
    background: Vec<(Arc<str>, Background)>,
    record: bool,
    replay: Option<Arc<OrderRecord>>,
}

impl Settings {
    fn new() -> Self {
        Settings {
            seed: None,
            threads: None,
            executor: None,
            epochs: None,
            order: None,
            on_error: None,
            prefetch: None,
            memory: None,
            largest_item: None,
            runtime: None,
            hooks: Vec::new(),
            on_drop: Vec::new(),
            interval: None,
            background: Vec::new(),
            record: false,
            replay: None,
        }
    }

    fn threads(&self) -> usize {
        let executor = || self.executor.as_ref().map(|executor| executor.parallelism().max(1));
        self.threads.or_else(executor).unwrap_or_else(crate::machine::usable_cpus)
    }

    fn order(&self) -> Order {
        // What is replayed has its order from the record.
        let default = if self.replay.is_some() { Order::Input } else { Order::Completion };
        self.order.unwrap_or(default)
    }
}

/// A task, before there is a runtime to spawn it on.
pub(crate) struct Driver {
    /// Whether it blocks, and so has a thread of its own.
    pub(crate) blocks: bool,
    pub(crate) task: DriverTask,
}

type DriverTask = Box<dyn FnOnce(Arc<dyn Runtime>) -> BoxFuture<'static, ()> + Send>;

/// What is collected while a description is turned into a pipeline.
struct Plan {
    settings: Settings,
    shared: Arc<Shared>,
    hooks: Arc<[Arc<dyn Hook>]>,
    /// How deep the last queue is at least, where it may be deeper when items are tiny.
    least_prefetch: Option<usize>,
    /// What stages without a policy of their own share.
    tolerance: Arc<Tolerance>,
    stages: usize,
    sources: usize,
    levels: usize,
    largest_batch: usize,
    /// How far from the source the paths of a route begin, and whether what they get is measured.
    inlet: (usize, bool),
    pool: Arc<Crew>,
    crews: Vec<(Arc<Crew>, usize)>,
    nodes: Vec<Placed>,
    drivers: Vec<Driver>,
    names: HashSet<Arc<str>>,
    knobs: Vec<(Arc<str>, Knob)>,
    error: Option<Error>,
}

/// A node, who runs it, and how far from the source it is.
struct Placed {
    crew: Arc<Crew>,
    depth: Depth,
    node: Arc<dyn Node>,
}

/// One of the ways that [`route`](PipelineBuilder::route) chooses among: made by [`path`].
pub struct Path<T, U>(Box<dyn FnOnce(PipelineBuilder<T>) -> PipelineBuilder<U> + Send>);

impl<T, U> fmt::Debug for Path<T, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Path")
    }
}

/// A way for items to go: any chain of stages, or none. See [`PipelineBuilder::route`].
pub fn path<T, U, F>(stages: F) -> Path<T, U>
where
    F: FnOnce(PipelineBuilder<T>) -> PipelineBuilder<U> + Send + 'static,
{
    Path(Box::new(stages))
}

/// Where pipelines begin.
impl<T: Send + 'static> PipelineBuilder<T> {
    /// A pipeline that yields what `source` yields.
    #[track_caller]
    pub fn new<S: Source<Item = T>>(source: S) -> Self {
        PipelineBuilder::from_source(SOURCE, source)
    }

    /// The same, with a name and settings for the source: its queue, its policy.
    #[track_caller]
    pub fn from_source<S: Source<Item = T>>(options: impl Into<StageOptions>, source: S) -> Self {
        Self::begin(options.into(), source, false)
    }

    /// A pipeline of an iterator's items: one epoch. The iterator may block; it runs on a thread of
    /// its own, which the pipeline joins when it is dropped. With more than one
    /// [epoch](PipelineBuilder::epochs), the second one is an error; give a [`Source`] then.
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// let squares = PipelineBuilder::from_iter(1..=3).map("square", |n| Ok(n * n)).deterministic();
    /// assert_eq!(squares.build()?.collect::<spdl_core::Result<Vec<i32>>>()?, [1, 4, 9]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[expect(clippy::should_implement_trait, reason = "it is generic over what the trait is not")]
    #[track_caller]
    pub fn from_iter<I>(items: I) -> Self
    where
        I: IntoIterator<Item = T>,
        I::IntoIter: Send + 'static,
    {
        let items = items.into_iter().map(Ok);
        Self::begin(SOURCE.into(), IteratorSource::new(items), true)
    }

    /// A pipeline of a stream's items: one epoch. The stream is polled on the runtime and must not
    /// block it.
    #[track_caller]
    pub fn from_stream(items: impl Stream<Item = Result<T>> + Send + 'static) -> Self {
        Self::begin(SOURCE.into(), StreamSource::new(items), false)
    }

    /// A pipeline of what another one delivers: one epoch. An error that ends the other one ends
    /// this one, whatever the policy.
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// let first = PipelineBuilder::from_iter(0..4).map("double", |n| Ok(n * 2)).deterministic();
    /// let second = PipelineBuilder::from_pipeline(first.build()?).batch("batch", 3, false);
    /// assert_eq!(second.build()?.next().transpose()?, Some(vec![0, 2, 4]));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[track_caller]
    pub fn from_pipeline(pipeline: Pipeline<T>) -> Self {
        use futures_util::TryStreamExt;
        Self::begin(
            SOURCE.into(),
            StreamSource::new(pipeline.into_stream().map_err(Error::fatal)),
            false,
        )
    }

    #[track_caller]
    fn begin<S: Source<Item = T>>(options: StageOptions, source: S, blocks: bool) -> Self {
        let at = Location::caller();
        let definition = StageDefinition::source::<T>(&options.name, Construct::Source).at(at);
        let queue = Setting::new(options.queue, SOURCE_QUEUE);
        let definition = StageDefinition { queue: Some(queue), ..definition };
        let plan = move |plan: &mut Plan, out: Outgoing<T>| {
            let options = plan.name_source(options);
            let measured = out.sizer.is_some();
            let measure = plan.measure(measured);
            let core = plan.stage(&options, StageKind::Source, 1, measure);
            let hooks = plan.hooks(&core);
            let capacity = options.queue.unwrap_or(SOURCE_QUEUE);
            let queue = plan.queue(&core, out.last, capacity, None);
            let node = SourceNode {
                core,
                source,
                epochs: plan.settings.epochs.clone().unwrap_or(0..1),
                output: Arc::clone(&queue),
                hooks,
                sizer: out.sizer,
                replay: plan.settings.replay.clone(),
            };
            let task: DriverTask = Box::new(move |_| Box::pin(node.drive()));
            plan.drivers.push(Driver { blocks, task });
            Made { queue, depth: 0, measured }
        };
        PipelineBuilder {
            settings: Settings::new(),
            settings_made: false,
            source: Some(definition),
            stages: Vec::new(),
            plan: Box::new(plan),
        }
    }

    /// A pipeline of the items of several: `policy` says from which the next one comes. Epochs do
    /// not mix: the merge's epoch ends when that of every branch has. Settings of the whole
    /// pipeline are made on the merge, not on its branches.
    ///
    /// ```
    /// use spdl_core::{PipelineBuilder, RoundRobin};
    /// let odd = PipelineBuilder::from_iter([1, 3, 5, 7]);
    /// let even = PipelineBuilder::from_iter([2, 4]);
    /// let all = PipelineBuilder::merge([odd, even], RoundRobin::default()).build()?;
    /// assert_eq!(all.collect::<spdl_core::Result<Vec<_>>>()?, [1, 2, 3, 4, 5, 7]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[track_caller]
    pub fn merge(
        branches: impl IntoIterator<Item = PipelineBuilder<T>>,
        policy: impl MergePolicy,
    ) -> Self {
        let branches: Vec<_> = branches.into_iter().collect();
        let mut definition = StageDefinition::source::<T>("merge", Construct::Merge)
            .at(Location::caller())
            .with("policy", Setting::new(Some(format!("{policy:?}")), String::new()));
        definition.branches = branches.iter().map(PipelineBuilder::part).collect();
        let plan = move |plan: &mut Plan, out: Outgoing<T>| {
            if branches.is_empty() {
                plan.fault(Error::new(ErrorKind::InvalidArgument, "a merge of no branches"));
            }
            let options = plan.free_name("merge");
            let made = plan.branches(branches);
            let core = plan.stage(&options, StageKind::Merge, 1, None);
            let queue = plan.queue(&core, out.last, CPU_QUEUE, None);
            plan.no_sizer(&core, out.sizer.is_some());
            let inputs: Vec<_> = made.iter().map(|made| Arc::clone(&made.queue)).collect();
            let node = MergeNode {
                core,
                progress: Progress::new(inputs.len()),
                inputs,
                output: Arc::clone(&queue),
                policy: Box::new(policy),
            };
            plan.task(node.drive());
            let depth = made.first().map_or(0, |made| made.depth) + 1;
            Made { queue, depth, measured: made.iter().any(|made| made.measured) }
        };
        PipelineBuilder {
            settings: Settings::new(),
            settings_made: false,
            source: Some(definition),
            stages: Vec::new(),
            plan: Box::new(plan),
        }
    }

    /// Pairs of the items of two pipelines, one of each. An epoch has as many as the shorter one;
    /// the rest of the longer one is left out, and counted. Settings of the whole pipeline are made
    /// on the result.
    #[track_caller]
    pub fn zip<U: Send + 'static>(self, other: PipelineBuilder<U>) -> PipelineBuilder<(T, U)> {
        let mut definition = StageDefinition::source::<(T, U)>("zip", Construct::Merge)
            .at(Location::caller())
            .with("policy", Setting::new(Some("Zip"), ""));
        definition.branches = vec![self.part(), other.part()];
        let plan = move |plan: &mut Plan, out: Outgoing<(T, U)>| {
            let options = plan.free_name("zip");
            let before = plan.nodes.len();
            let left = plan.branch(0, self);
            let between = plan.nodes.len();
            let right = plan.branch(1, other);
            let depth = left.depth.max(right.depth);
            plan.lower(before..between, depth - left.depth);
            plan.lower(between..plan.nodes.len(), depth - right.depth);
            let measured = left.measured || right.measured;
            let measure = plan.measure(measured);
            let core = plan.stage(&options, StageKind::Merge, 1, measure);
            let queue = plan.queue(&core, out.last, CPU_QUEUE, None);
            plan.no_sizer(&core, out.sizer.is_some());
            let node = ZipNode {
                core,
                left: Side::new(left.queue),
                right: Side::new(right.queue),
                output: Arc::clone(&queue),
            };
            plan.task(node.drive());
            Made { queue, depth: depth + 1, measured }
        };
        PipelineBuilder {
            settings: Settings::new(),
            settings_made: false,
            source: Some(definition),
            stages: Vec::new(),
            plan: Box::new(plan),
        }
    }
}

/// Stages.
impl<T: Send + 'static> PipelineBuilder<T> {
    fn then<U>(
        mut self,
        definition: StageDefinition,
        next: impl FnOnce(&mut Plan, Made<T>, Outgoing<U>) -> Made<U> + Send + 'static,
    ) -> PipelineBuilder<U> {
        let before = self.plan;
        self.stages.push(definition);
        PipelineBuilder {
            settings: self.settings,
            settings_made: self.settings_made,
            source: self.source,
            stages: self.stages,
            plan: Box::new(move |plan, out| {
                let made = before(plan, Outgoing::INNER);
                next(plan, made, out)
            }),
        }
    }

    /// Adds a stage that computes. `factory` makes an instance for each worker that needs one; its
    /// error ends the pipeline.
    #[track_caller]
    pub fn stage<S: Stage<T>>(
        self,
        options: impl Into<StageOptions>,
        factory: impl Fn() -> Result<S> + Send + Sync + 'static,
    ) -> PipelineBuilder<S::Out> {
        self.cpu(options.into(), Construct::Cpu, &[], factory)
    }

    #[track_caller]
    fn cpu<S: Stage<T>>(
        self,
        options: StageOptions,
        construct: Construct,
        more: &[(&str, String)],
        factory: impl Fn() -> Result<S> + Send + Sync + 'static,
    ) -> PipelineBuilder<S::Out> {
        let gathers = matches!(construct, Construct::Batch | Construct::Aggregate);
        let mut definition = StageDefinition::new::<T, S::Out>(&options.name, construct)
            .at(Location::caller())
            .with_options(&options);
        if !gathers {
            definition.concurrency = options.concurrency.map(|given| Setting::new(Some(given), 1));
            definition.order = options.order.map(|order| Setting::new(Some(order), order));
        }
        for (what, value) in more {
            definition = definition.with(what, Setting::new(Some(value), value));
        }
        self.then(definition, move |plan, made, out: Outgoing<S::Out>| {
            let order = options.order.unwrap_or_else(|| plan.settings.order());
            // What is put together of several items is put together in one place.
            let options = if gathers { options.concurrency(1) } else { options };
            // What is put together keeps the memory of what it is made of, as its own.
            let own = out.sizer.is_some() || (gathers && made.measured);
            let measure = plan.measure(own);
            let concurrency = plan.default_concurrency(&options);
            let core = plan.stage(&options, StageKind::Cpu, concurrency, measure);
            let hooks = plan.hooks(&core);
            let crew = plan.crew(&options, &core, gathers);
            let capacity = options
                .queue
                .unwrap_or_else(|| CPU_QUEUE.max(core.concurrency().saturating_mul(2)));
            let queue = plan.queue(&core, out.last, capacity, Some(&crew));
            made.queue.set_takers(&crew.signal);
            let depth = Depth::new(made.depth + 1);
            let node = CpuNode {
                core,
                depth: depth.clone(),
                input: made.queue,
                output: Arc::clone(&queue),
                factory: Box::new(factory),
                hooks,
                sizer: out.sizer,
                gathers,
                turns: (order == Order::Input && !gathers).then(Default::default),
                state: Default::default(),
            };
            plan.nodes.push(Placed { crew, depth, node: Arc::new(node) });
            Made { queue, depth: made.depth + 1, measured: own || made.measured }
        })
    }

    /// Adds a function from one item to one item, on the CPU pool.
    #[track_caller]
    pub fn map<U, F>(self, options: impl Into<StageOptions>, function: F) -> PipelineBuilder<U>
    where
        U: Send + 'static,
        F: Fn(T) -> Result<U> + Send + Sync + 'static,
    {
        let map = Map::new(function);
        self.cpu(options.into(), Construct::Cpu, &[], move || Ok(map.clone()))
    }

    /// Adds a function from one item to any number of items, on the CPU pool. Each goes on as soon
    /// as the iterator yields it; an error that it yields is the failure of the item.
    #[track_caller]
    pub fn flat_map<U, I, F>(
        self,
        options: impl Into<StageOptions>,
        function: F,
    ) -> PipelineBuilder<U>
    where
        U: Send + 'static,
        I: IntoIterator<Item = Result<U>> + 'static,
        F: Fn(T) -> I + Send + Sync + 'static,
    {
        let flat_map = FlatMap::new(function);
        self.cpu(options.into(), Construct::Cpu, &[], move || Ok(flat_map.clone()))
    }

    /// Lets only those items pass for which `predicate` is true, on the CPU pool.
    #[track_caller]
    pub fn filter<F>(self, options: impl Into<StageOptions>, predicate: F) -> PipelineBuilder<T>
    where
        F: Fn(&T) -> Result<bool> + Send + Sync + 'static,
    {
        let filter = Filter::new(predicate);
        self.cpu(options.into(), Construct::Filter, &[], move || Ok(filter.clone()))
    }

    /// Puts `size` items together at a time. What is left at the end of an epoch makes a shorter
    /// list, or, with `drop_last`, is left out and counted.
    #[track_caller]
    pub fn batch(
        self,
        options: impl Into<StageOptions>,
        size: usize,
        drop_last: bool,
    ) -> PipelineBuilder<Vec<T>> {
        let mut more = vec![("size", size.to_string())];
        if drop_last {
            more.push(("drop last", "yes".into()));
        }
        let factory = Arc::new(move || Batcher::new(size, drop_last));
        self.gather(options.into(), Construct::Batch, &more, factory)
    }

    #[track_caller]
    fn gather<A: Aggregator<T>>(
        self,
        options: StageOptions,
        construct: Construct,
        more: &[(&str, String)],
        factory: Arc<dyn Fn() -> Result<A> + Send + Sync>,
    ) -> PipelineBuilder<A::Out> {
        self.cpu(options, construct, more, move || {
            let factory = Arc::clone(&factory);
            Aggregation::new(move || factory())
        })
    }

    /// Puts items together in a way of the caller's. `factory` makes a fresh aggregator for each
    /// epoch, so nothing is ever carried over.
    #[track_caller]
    pub fn aggregate<A, F>(
        self,
        options: impl Into<StageOptions>,
        factory: F,
    ) -> PipelineBuilder<A::Out>
    where
        A: Aggregator<T>,
        F: Fn() -> Result<A> + Send + Sync + 'static,
    {
        self.gather(options.into(), Construct::Aggregate, &[], Arc::new(factory))
    }

    /// Takes lists apart: each element goes on as an item of its own.
    #[track_caller]
    pub fn unbatch(self, options: impl Into<StageOptions>) -> PipelineBuilder<T::Item>
    where
        T: IntoIterator<Item: Send + 'static>,
    {
        self.cpu(options.into(), Construct::Unbatch, &[], || Ok(Unbatch))
    }

    /// Adds a stage that waits. One instance serves all items; `Arc<dyn AsyncStage<…>>` is fine.
    #[track_caller]
    pub fn async_stage<S: AsyncStage<T>>(
        self,
        options: impl Into<StageOptions>,
        stage: S,
    ) -> PipelineBuilder<S::Out> {
        let options = options.into();
        let mut definition = StageDefinition::new::<T, S::Out>(&options.name, Construct::Async)
            .at(Location::caller())
            .with_options(&options);
        definition.concurrency = Some(Setting::new(options.concurrency, ASYNC_CONCURRENCY));
        self.then(definition, move |plan, made, out: Outgoing<S::Out>| {
            let own = out.sizer.is_some();
            let measure = plan.measure(own);
            let core = plan.stage(&options, StageKind::Async, ASYNC_CONCURRENCY, measure);
            if !matches!(options.workers, Workers::Shared) {
                let message = "an async stage runs on the runtime; it has no threads to choose";
                plan.fault(
                    Error::new(ErrorKind::InvalidArgument, message)
                        .with_stage(options.name.clone()),
                );
            }
            let hooks = plan.hooks(&core);
            let capacity = options.queue.unwrap_or_else(|| core.concurrency().saturating_mul(2));
            let queue = plan.queue(&core, out.last, capacity, None);
            let poke = Arc::new(AtomicWaker::new());
            plan.knobs.push((Arc::clone(core.name()), Knob::Task(Arc::clone(&poke))));
            let node = AsyncNode {
                core,
                stage: Arc::new(stage),
                input: made.queue,
                output: Arc::clone(&queue),
                hooks,
                sizer: out.sizer,
                poke,
                ordered: options.order.unwrap_or_else(|| plan.settings.order()) == Order::Input,
            };
            let task: DriverTask = Box::new(move |runtime| Box::pin(node.drive(runtime)));
            plan.drivers.push(Driver { blocks: false, task });
            Made { queue, depth: made.depth + 1, measured: own || made.measured }
        })
    }

    /// Adds an async function from one item to one item, on the runtime.
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// let slow = PipelineBuilder::from_iter(0..3)
    ///     .map_async("wait", |n| async move { Ok(n + 1) })
    ///     .deterministic();
    /// assert_eq!(slow.build()?.collect::<spdl_core::Result<Vec<_>>>()?, [1, 2, 3]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[track_caller]
    pub fn map_async<U, F, R>(
        self,
        options: impl Into<StageOptions>,
        function: F,
    ) -> PipelineBuilder<U>
    where
        U: Send + 'static,
        F: Fn(T) -> R + Send + Sync + 'static,
        R: Future<Output = Result<U>> + Send + 'static,
    {
        self.async_stage(options, crate::stage::AsyncFunction::new(function))
    }

    /// Adds the stage that writes samples into batches. It keeps the order of its input; a sample
    /// that fails leaves its slot to the next one, so that only the last batch of an epoch may be
    /// short. `factory` makes an instance for each worker that needs one. Batches are counted in the
    /// memory budget until they are delivered.
    #[track_caller]
    pub fn fill<F: Fill<T>>(
        self,
        options: impl Into<StageOptions>,
        layout: BatchLayout,
        factory: impl Fn() -> Result<F> + Send + Sync + 'static,
    ) -> PipelineBuilder<Batch> {
        let options = options.into();
        let mut definition = StageDefinition::new::<T, Batch>(&options.name, Construct::Fill)
            .at(Location::caller())
            .with_options(&options)
            .with("batch size", Setting::new(Some(layout.batch_size()), 0));
        definition.concurrency = options.concurrency.map(|given| Setting::new(Some(given), 1));
        definition.measured = true;
        if layout.drops_last() {
            definition = definition.with("drop last", Setting::new(Some("yes"), ""));
        }
        self.then(definition, move |plan, made, out: Outgoing<Batch>| {
            if let Err(error) = layout.validate() {
                plan.fault(error.with_stage(Arc::clone(&options.name)));
            }
            let measure = plan.measure(true);
            let concurrency = plan.default_concurrency(&options);
            let core = plan.stage(&options, StageKind::Fill, concurrency, measure);
            let hooks = plan.hooks(&core);
            let crew = plan.crew(&options, &core, false);
            // Batches under assembly have a place in the queue promised: those that all workers
            // can be writing at once, and one more, so that a new epoch can begin.
            let open = core.concurrency().div_ceil(layout.batch_size().max(1)) + 1;
            let ready = plan.settings.prefetch.filter(|_| out.last);
            let capacity = ready.or(options.queue).unwrap_or(PREFETCH).saturating_add(open);
            let queue = plan.queue(&core, false, capacity, Some(&crew));
            made.queue.set_takers(&crew.signal);
            let fields = layout.fields().to_vec();
            let assembly = Assembly::new(layout, plan.shared.buffers.clone());
            let batch_bytes = assembly.batch_bytes();
            plan.largest_batch = plan.largest_batch.max(batch_bytes);
            let depth = Depth::new(made.depth + 1);
            let node = FillNode {
                core,
                input: made.queue,
                output: Arc::clone(&queue),
                factory: Box::new(factory),
                hooks,
                fields,
                batch_bytes,
                keeps_members: plan.settings.record,
                assembly: Mutex::new(assembly),
                state: Default::default(),
            };
            plan.nodes.push(Placed { crew, depth, node: Arc::new(node) });
            Made { queue, depth: made.depth + 1, measured: true }
        })
    }

    /// Counts what the last stage yields in the memory budget, by its [`Footprint`], from when it is
    /// made until the next stage has used it, or it is delivered. Batches of
    /// [`fill`](PipelineBuilder::fill) are always counted.
    pub fn measured(self) -> Self
    where
        T: Footprint,
    {
        self.measured_by(T::footprint)
    }

    /// The same, with a function that tells the bytes of an item.
    pub fn measured_by(mut self, bytes: impl Fn(&T) -> usize + Send + Sync + 'static) -> Self {
        let before = self.plan;
        self.plan = Box::new(move |plan, out| {
            let sizer: Sizer<T> = Box::new(bytes);
            before(plan, Outgoing { sizer: Some(sizer), ..out })
        });
        if let Some(last) = self.stages.last_mut().or(self.source.as_mut()) {
            last.measured = true;
        }
        self
    }

    /// Sends each item down one of several paths, that which `router` chooses by its number. The
    /// paths' outputs go on as they get ready, or, with [`Order::Input`], in the order in which
    /// their items came, whatever the paths make of them. A number that no path has ends the
    /// pipeline.
    ///
    /// ```
    /// use spdl_core::{PipelineBuilder, path};
    /// let words = PipelineBuilder::from_iter(["a", "1", "b", "2"])
    ///     .route("kind", |word: &&str| Ok(usize::from(word.parse::<u8>().is_ok())), [
    ///         path(|words| words.map("letter", |word: &str| Ok(word.to_uppercase()))),
    ///         path(|words| words.map("digit", |word: &str| Ok(format!("<{word}>")))),
    ///     ])
    ///     .deterministic();
    /// let words: Vec<String> = words.build()?.collect::<spdl_core::Result<_>>()?;
    /// assert_eq!(words, ["A", "<1>", "B", "<2>"]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[track_caller]
    pub fn route<U: Send + 'static>(
        self,
        options: impl Into<StageOptions>,
        router: impl Fn(&T) -> Result<usize> + Send + Sync + 'static,
        paths: impl IntoIterator<Item = Path<T, U>>,
    ) -> PipelineBuilder<U> {
        let options = options.into();
        let at = Location::caller();
        let (inlets, paths): (Vec<_>, Vec<_>) = paths.into_iter().map(lay).unzip();
        let mut definition = StageDefinition::new::<T, U>(&options.name, Construct::Route)
            .at(at)
            .with_options(&options);
        definition.branches = paths.iter().map(PipelineBuilder::part).collect();
        let choose = Map::new(move |item: T| Ok((router(&item)?, item)));
        let name = Arc::clone(&options.name);
        let order = options.order;
        let mut routed = self.cpu(options, Construct::Route, &[], move || Ok(choose.clone()));
        routed.stages.pop();
        routed.then(definition, move |plan, made, out: Outgoing<U>| {
            let ordered = order.unwrap_or_else(|| plan.settings.order()) == Order::Input;
            let crossing = ordered.then(Arc::<Crossing>::default);
            let (meters, queues) = plan.lay_paths(&name, inlets);
            let core = plan.unseen_core(&name);
            let desk = crossing.clone();
            let input = Arc::clone(&made.queue);
            let split = SplitNode { core, input, paths: queues, meters, desk };
            plan.task(split.drive());
            let made = plan.branches_from(paths, &made, ordered);
            let measured = made.iter().any(|made| made.measured);
            let depth = made.first().map_or(0, |made| made.depth) + 1;
            let options = StageOptions::new(&format!("{name}/join"));
            let core = plan.stage(&options, StageKind::Route, 1, None);
            plan.no_sizer(&core, out.sizer.is_some());
            let queue = plan.queue(&core, out.last, CPU_QUEUE, None);
            let inputs: Vec<_> = made.iter().map(|made| Arc::clone(&made.queue)).collect();
            let output = Arc::clone(&queue);
            match crossing {
                None => plan.task(
                    MergeNode {
                        core,
                        progress: Progress::same_items(inputs.len()),
                        inputs,
                        output,
                        policy: Box::new(crate::merge::Arrival),
                    }
                    .drive(),
                ),
                Some(crossing) => plan.task(
                    JoinNode {
                        core,
                        waiting: Waiting::new(inputs.len()),
                        paths: inputs,
                        output,
                        crossing,
                        combine: combine_items(),
                    }
                    .drive(),
                ),
            }
            Made { queue, depth, measured }
        })
    }
}

/// Stages on lists.
impl<T: Send + 'static> PipelineBuilder<Vec<T>> {
    /// Sends the elements of each list down several paths, and puts the list together again in its
    /// order. `router` gives the number of each element's path; each path gets the list of its
    /// elements, also an empty one, and must make as many of them. Where a path drops its part, the
    /// rest of the list goes on without it; a list of which nothing is left does not.
    #[track_caller]
    pub fn route_lists<U: Send + 'static>(
        self,
        options: impl Into<StageOptions>,
        router: impl Fn(&[T]) -> Result<Vec<usize>> + Send + Sync + 'static,
        paths: impl IntoIterator<Item = Path<Vec<T>, Vec<U>>>,
    ) -> PipelineBuilder<Vec<U>> {
        let options = options.into();
        let at = Location::caller();
        let (inlets, paths): (Vec<_>, Vec<_>) = paths.into_iter().map(lay).unzip();
        let mut definition =
            StageDefinition::new::<Vec<T>, Vec<U>>(&options.name, Construct::Route)
                .at(at)
                .with_options(&options)
                .with("lists", Setting::new(Some("in parts"), ""));
        definition.branches = paths.iter().map(PipelineBuilder::part).collect();
        let choose = Map::new(move |items: Vec<T>| Ok((router(&items)?, items)));
        let name = Arc::clone(&options.name);
        let mut routed = self.cpu(options, Construct::Route, &[], move || Ok(choose.clone()));
        routed.stages.pop();
        routed.then(definition, move |plan, made, out: Outgoing<Vec<U>>| {
            let crossing = Arc::<Crossing>::default();
            let (meters, queues) = plan.lay_paths(&name, inlets);
            let core = plan.unseen_core(&name);
            let desk = Arc::clone(&crossing);
            let input = Arc::clone(&made.queue);
            let split = SplitListNode { core, input, paths: queues, meters, desk };
            plan.task(split.drive());
            let made = plan.branches_from(paths, &made, true);
            let measured = made.iter().any(|made| made.measured);
            let depth = made.first().map_or(0, |made| made.depth) + 1;
            let options = StageOptions::new(&format!("{name}/join"));
            let core = plan.stage(&options, StageKind::Route, 1, None);
            plan.no_sizer(&core, out.sizer.is_some());
            let queue = plan.queue(&core, out.last, CPU_QUEUE, None);
            let inputs: Vec<_> = made.iter().map(|made| Arc::clone(&made.queue)).collect();
            plan.task(
                JoinNode {
                    core,
                    waiting: Waiting::new(inputs.len()),
                    paths: inputs,
                    output: Arc::clone(&queue),
                    combine: combine_lists(Arc::clone(&crossing)),
                    crossing,
                }
                .drive(),
            );
            Made { queue, depth, measured }
        })
    }
}

/// The beginning of a path, which is known only when the pipeline is built.
type Inlet<T> = Arc<OnceLock<Arc<Queue<T>>>>;

/// Lays a path: where it begins, and its stages.
fn lay<T: Send + 'static, U>(path: Path<T, U>) -> (Inlet<T>, PipelineBuilder<U>) {
    let inlet = Inlet::<T>::default();
    let start = Arc::clone(&inlet);
    let plan = move |plan: &mut Plan, out: Outgoing<T>| {
        if out.sizer.is_some() {
            let message = "a path without stages has nothing to measure";
            plan.fault(Error::new(ErrorKind::InvalidArgument, message));
        }
        let missing = || Arc::new(Queue::new(1, None));
        let (depth, measured) = plan.inlet;
        Made { queue: start.get().cloned().unwrap_or_else(missing), depth, measured }
    };
    let builder = PipelineBuilder {
        settings: Settings::new(),
        settings_made: false,
        source: None,
        stages: Vec::new(),
        plan: Box::new(plan),
    };
    (inlet, (path.0)(builder))
}

/// Settings of the whole pipeline.
impl<T: Send + 'static> PipelineBuilder<T> {
    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(&mut self.settings);
        self.settings_made = true;
        self
    }

    /// The seed of all the stages' random numbers. Default: 0.
    pub fn seed(self, seed: u64) -> Self {
        self.set(|settings| settings.seed = Some(seed))
    }

    /// Worker threads of the CPU pool, at least 1. Default: the CPUs this process may use, by
    /// affinity and cgroup quota. While the pipeline runs, [`Control`](crate::Control) changes it.
    pub fn threads(self, threads: usize) -> Self {
        self.set(|settings| settings.threads = Some(threads.max(1)))
    }

    /// Runs the stages that compute on a pool of the caller's. Default: threads of the pipeline's
    /// own.
    pub fn executor(self, executor: Arc<dyn CpuExecutor>) -> Self {
        self.set(|settings| settings.executor = Some(executor))
    }

    /// Which epochs to run, one after the other; they never mix. `0..` runs without end, and
    /// [`next_epoch`](Pipeline::next_epoch) tells them apart. Default: `0..1`. An epoch in which the
    /// source yields nothing ends the run.
    pub fn epochs(self, epochs: impl RangeBounds<u64>) -> Self {
        let start = match epochs.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match epochs.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => u64::MAX,
        };
        self.set(|settings| settings.epochs = Some(start..end))
    }

    /// Makes the delivered order, and with it every batch, a pure function of source and seed: each
    /// stage restores its input order, unless its own options say otherwise.
    pub fn deterministic(self) -> Self {
        self.set(|settings| settings.order = Some(Order::Input))
    }

    /// What happens to items that fail, in stages that do not say otherwise. They share its budget.
    /// Default: the first failure ends the pipeline.
    pub fn on_error(self, on_error: OnError) -> Self {
        self.set(|settings| settings.on_error = Some(on_error))
    }

    /// Calls `listener` with each sample that a policy drops, as it is dropped. Its error ends the
    /// pipeline.
    pub fn on_drop(
        self,
        listener: impl Fn(&Dropped) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.on_drop.push(Box::new(listener)))
    }

    /// Writes each sample that a policy drops to a list.
    #[cfg(feature = "serde")]
    pub fn quarantine(self, list: crate::Quarantine) -> Self {
        self.on_drop(move |dropped| list.record(dropped))
    }

    /// How many finished items (batches, mostly) may wait for the consumer, at least 1. Default: 2,
    /// or, where items are delivered so fast, as many as come in a millisecond, up to 256.
    pub fn prefetch(self, items: usize) -> Self {
        self.set(|settings| settings.prefetch = Some(items.max(1)))
    }

    /// The memory budget in bytes, for what is [`measured`](Self::measured) and for batches: what
    /// would not fit waits. Default: a quarter of the memory that this process may use, cgroup limits
    /// included.
    pub fn memory(self, bytes: usize) -> Self {
        self.set(|settings| settings.memory = Some(bytes))
    }

    /// The most bytes of the memory budget that one item may need; the failure of an item that
    /// needs more is of kind `LimitExceeded`. Every stage keeps so much free for those behind it.
    /// Default: the budget divided by twice the number of measured stages, or what the largest
    /// batch needs.
    pub fn largest_item(self, bytes: usize) -> Self {
        self.set(|settings| settings.largest_item = Some(bytes))
    }

    /// Who polls the source and the async stages. Default: a [`ThreadRuntime`](crate::ThreadRuntime)
    /// of the pipeline's own. Where a runtime of the caller's drops a task, as when it is shut down,
    /// the pipeline ends with an error of kind `Stopped`.
    pub fn runtime(self, runtime: Arc<dyn Runtime>) -> Self {
        self.set(|settings| settings.runtime = Some(runtime))
    }

    /// Adds a hook around stages and items. Hooks nest in the order in which they are added.
    pub fn hook(self, hook: impl Hook) -> Self {
        self.set(|settings| settings.hooks.push(Arc::new(hook)))
    }

    /// Calls `listener` every `interval` with what happened in it, and once more at the end with
    /// the rest. It is called on the runtime and should be quick.
    pub fn every(
        self,
        interval: Duration,
        listener: impl FnMut(&Interval) + Send + 'static,
    ) -> Self {
        self.set(|settings| settings.interval = Some((interval, Box::new(listener))))
    }

    /// Runs a task beside the pipeline, on its runtime, from its start; it is dropped where the
    /// pipeline ends first. Its error ends nothing: [`Monitor::background_errors`] lists it.
    ///
    /// [`Monitor::background_errors`]: crate::Monitor::background_errors
    pub fn background<F, R>(self, name: &str, task: F) -> Self
    where
        F: FnOnce(Arc<dyn Runtime>) -> R + Send + 'static,
        R: Future<Output = Result<()>> + Send + 'static,
    {
        let name = name.into();
        let task: Background = Box::new(move |runtime| Box::pin(task(runtime)));
        self.set(|settings| settings.background.push((name, task)))
    }

    /// Records the order in which samples are delivered, so that an unordered run can be
    /// [replayed](Self::replay): [`Pipeline::order_record`] gives it.
    pub fn record_order(self) -> Self {
        self.set(|settings| settings.record = true)
    }

    /// Delivers the samples in the order that an earlier run recorded. Stages restore their input
    /// order then, unless their options say otherwise. What the record does not name is left out.
    pub fn replay(self, record: OrderRecord) -> Self {
        self.set(|settings| settings.replay = Some(Arc::new(record)))
    }

    /// What the pipeline is made of, to look at, to print as a tree, or to write down.
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// let builder = PipelineBuilder::from_iter(0..10).map("double", |n| Ok(n * 2)).seed(7);
    /// let tree = builder.definition().to_string();
    /// assert!(tree.contains("double") && tree.contains("i32 → i32") && tree.contains("seed 7"));
    /// ```
    pub fn definition(&self) -> Definition {
        let settings = &self.settings;
        let mut told = PipelineSettings {
            seed: Setting::new(settings.seed, 0),
            epochs: Setting::new(settings.epochs.clone(), 0..1),
            order: Setting::new(settings.order, settings.order()),
            on_error: Setting::new(settings.on_error, OnError::Raise),
            prefetch: Setting::new(settings.prefetch, PREFETCH),
            threads: Setting::new(settings.threads, settings.threads()),
            more: Default::default(),
        };
        if let Some(bytes) = settings.memory {
            let bytes = Setting::new(Some(format!("{bytes} bytes")), String::new());
            told.more.insert("memory".into(), bytes);
        }
        if let Some(executor) = &settings.executor {
            let executor = Setting::new(Some(format!("{executor:?}")), String::new());
            told.more.insert("executor".into(), executor);
        }
        self.part().with_settings(told)
    }

    /// The definition of a branch or a path.
    fn part(&self) -> Definition {
        Definition::new(self.source.clone(), self.stages.clone())
    }

    /// Makes the pipeline. Nothing runs until the first item is asked for.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is used twice, or a setting that makes no sense;
    /// `LimitExceeded` where a batch does not fit into the memory budget.
    pub fn build(mut self) -> Result<Pipeline<T>> {
        let definition = self.definition();
        let threads = self.settings.threads();
        let shared = Shared::new(
            self.settings.seed.unwrap_or(0),
            threads,
            std::mem::take(&mut self.settings.on_drop),
        );
        let shared = Arc::new(shared);
        let place = match &self.settings.executor {
            Some(executor) => Workplace::Executor(Arc::clone(executor)),
            None => Workplace::Threads { cpus: Vec::new() },
        };
        let on_error = self.settings.on_error.unwrap_or_default();
        let pool = Crew::new("worker", &shared, place);
        let mut plan = Plan {
            tolerance: Arc::new(Tolerance::new(on_error)),
            hooks: std::mem::take(&mut self.settings.hooks).into(),
            least_prefetch: None,
            settings: self.settings,
            shared,
            stages: 0,
            sources: 0,
            levels: 0,
            largest_batch: 0,
            inlet: (0, false),
            crews: vec![(Arc::clone(&pool), threads)],
            pool,
            nodes: Vec::new(),
            drivers: Vec::new(),
            names: HashSet::new(),
            knobs: Vec::new(),
            error: on_error.validate().err(),
        };
        let output = (self.plan)(&mut plan, Outgoing { last: true, sizer: None }).queue;
        plan.finish(output, definition)
    }
}

impl<T> fmt::Debug for PipelineBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineBuilder")
            .field("source", &self.source)
            .field("stages", &self.stages)
            .finish_non_exhaustive()
    }
}

impl Plan {
    fn finish<T: Send + 'static>(
        mut self,
        output: Arc<Queue<T>>,
        definition: Definition,
    ) -> Result<Pipeline<T>> {
        if let Err(error) = self.set_budget() {
            self.fault(error);
        }
        if let Some(error) = self.error {
            return Err(error);
        }
        for (crew, _) in &self.crews {
            let own = self.nodes.iter().filter(|placed| Arc::ptr_eq(&placed.crew, crew));
            let own = own.map(|placed| (placed.depth.get(), Arc::clone(&placed.node)));
            crew.assign(own.collect());
        }
        for (name, task) in self.settings.background.drain(..) {
            let shared = Arc::clone(&self.shared);
            let task: DriverTask = Box::new(move |runtime| {
                let task = task(runtime);
                Box::pin(async move { shared.beside(name, task).await })
            });
            self.drivers.push(Driver { blocks: false, task });
        }
        Ok(Pipeline::new(Parts {
            output,
            shared: self.shared,
            crews: self.crews,
            drivers: self.drivers,
            runtime: self.settings.runtime,
            interval: self.settings.interval,
            record: self.settings.record,
            least_prefetch: self.least_prefetch,
            definition,
            knobs: Knobs { pool: self.pool, stages: self.knobs },
        }))
    }

    fn set_budget(&mut self) -> Result<()> {
        if self.levels == 0 {
            return Ok(());
        }
        let limit = self.settings.memory.unwrap_or_else(crate::machine::default_budget);
        let by_default = limit / (2 * self.levels);
        let fits = limit / self.levels;
        let headroom = self.settings.largest_item.unwrap_or_else(|| {
            if self.largest_batch <= fits { by_default.max(self.largest_batch) } else { by_default }
        });
        let budget = Budget::new(limit, Some(headroom), self.levels)?;
        budget.check(self.largest_batch)?;
        let signals: Vec<_> = self.crews.iter().map(|(crew, _)| Arc::clone(&crew.signal)).collect();
        budget.set_on_release(move || signals.iter().for_each(|signal| signal.wake_one()));
        let _ = self.shared.budget.set(budget);
        Ok(())
    }

    fn stage(
        &mut self,
        options: &StageOptions,
        kind: StageKind,
        concurrency: usize,
        measure: Option<Measure>,
    ) -> StageCore {
        self.stages += 1;
        if !self.names.insert(Arc::clone(&options.name)) {
            let message = format!("two stages are called {:?}; names must be unique", options.name);
            self.fault(Error::new(ErrorKind::InvalidArgument, message));
        }
        let tolerance = match options.on_error {
            None => Arc::clone(&self.tolerance),
            Some(policy) => {
                if let Err(error) = policy.validate() {
                    self.fault(error.with_stage(Arc::clone(&options.name)));
                }
                Arc::new(Tolerance::new(policy))
            }
        };
        let concurrency = options.concurrency.unwrap_or(concurrency);
        StageCore::new(&self.shared, &options.name, kind, concurrency, tolerance, measure)
    }

    /// The core of something that is no stage of its own to its user, and shows nowhere.
    fn unseen_core(&mut self, name: &Arc<str>) -> StageCore {
        let tolerance = Arc::clone(&self.tolerance);
        StageCore::new(&self.shared, name, StageKind::Route, 1, tolerance, None)
    }

    /// The queues at the beginning of paths, with a meter each.
    fn lay_paths<T: Send + 'static>(
        &mut self,
        name: &Arc<str>,
        inlets: Vec<Inlet<T>>,
    ) -> (Vec<Arc<StageMeter>>, Vec<Arc<Queue<T>>>) {
        if inlets.is_empty() {
            let error = Error::new(ErrorKind::InvalidArgument, "a route has no paths");
            self.fault(error.with_stage(Arc::clone(name)));
        }
        let mut laid = (Vec::new(), Vec::new());
        for (at, inlet) in inlets.into_iter().enumerate() {
            let options = StageOptions::new(&format!("{name}/{at}"));
            let core = self.stage(&options, StageKind::Route, 1, None);
            let queue = self.queue(&core, false, CPU_QUEUE, None);
            let _ = inlet.set(Arc::clone(&queue));
            laid.0.push(core.meter);
            laid.1.push(queue);
        }
        laid
    }

    /// Builds paths that begin at `depth`.
    fn branches_from<T: Send + 'static, U>(
        &mut self,
        paths: Vec<PipelineBuilder<T>>,
        from: &Made<U>,
        ordered: bool,
    ) -> Vec<Made<T>> {
        let outer = std::mem::replace(&mut self.inlet, (from.depth + 1, from.measured));
        let levels = self.levels;
        let made = self.branches(paths);
        self.inlet = outer;
        if ordered && self.levels > levels {
            // What waits for its turn would hold the memory that the item before it waits for.
            let message = "a stage on a path is measured, and the order is restored behind the \
                           paths; measure what is in front of the route or behind it";
            self.fault(Error::new(ErrorKind::Unsupported, message));
        }
        made
    }

    fn hooks(&self, core: &StageCore) -> Hooks {
        let index = self.stages - 1;
        let name = Arc::clone(core.name());
        let info =
            StageInfo::new(self.shared.number, index, name, core.meter.kind, core.concurrency());
        Hooks::new(&self.hooks, info)
    }

    fn measure(&mut self, measured: bool) -> Option<Measure> {
        measured.then(|| {
            self.levels += 1;
            Measure::new(self.levels - 1)
        })
    }

    /// A merge hands on what its branches have measured.
    fn no_sizer(&mut self, core: &StageCore, measured: bool) {
        if measured {
            let message = "measure the branches, not what joins them: it makes nothing new";
            self.fault(
                Error::new(ErrorKind::InvalidArgument, message).with_stage(Arc::clone(core.name())),
            );
        }
    }

    fn fault(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    fn task(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let task: DriverTask = Box::new(move |_| Box::pin(task));
        self.drivers.push(Driver { blocks: false, task });
    }

    fn default_concurrency(&self, options: &StageOptions) -> usize {
        match &options.workers {
            Workers::Shared => self.settings.threads(),
            Workers::Own { cpus } => cpus.len().max(1),
            Workers::Executor(executor) => executor.parallelism().max(1),
        }
    }

    /// Who runs a stage.
    fn crew(&mut self, options: &StageOptions, core: &StageCore, fixed: bool) -> Arc<Crew> {
        let mut knob = |knob| {
            if !fixed {
                self.knobs.push((Arc::clone(core.name()), knob));
            }
        };
        let place = match &options.workers {
            Workers::Shared => {
                knob(Knob::Pool);
                return Arc::clone(&self.pool);
            }
            Workers::Own { cpus } => Workplace::Threads { cpus: cpus.clone() },
            Workers::Executor(executor) => Workplace::Executor(Arc::clone(executor)),
        };
        let crew = Crew::new(&options.name, &self.shared, place);
        knob(Knob::Own(Arc::clone(&crew)));
        self.crews.push((Arc::clone(&crew), core.concurrency()));
        crew
    }

    /// The queue behind a stage; behind the last one, its capacity is the prefetch depth, but
    /// never less than what the stage may finish at once.
    fn queue<T: Send + 'static>(
        &mut self,
        core: &StageCore,
        last: bool,
        capacity: usize,
        putters: Option<&Arc<Crew>>,
    ) -> Arc<Queue<T>> {
        let prefetch = self.settings.prefetch.unwrap_or(PREFETCH);
        let capacity = if last { prefetch.max(core.concurrency()) } else { capacity };
        if last && self.settings.prefetch.is_none() {
            self.least_prefetch = Some(capacity);
        }
        let putters = putters.map(|crew| Arc::clone(&crew.signal));
        let queue = Arc::new(Queue::new(capacity, putters));
        self.shared.add(Arc::clone(&core.meter), Arc::<Queue<T>>::clone(&queue));
        queue
    }

    /// Sources of merged pipelines that have no name of their own are numbered.
    fn name_source(&mut self, options: StageOptions) -> StageOptions {
        self.sources += 1;
        if &*options.name == SOURCE && self.sources > 1 {
            let name = format!("{SOURCE}-{}", self.sources).into();
            return StageOptions { name, ..options };
        }
        options
    }

    /// Options with the first of `name`, `name-2`, `name-3`… that is free.
    fn free_name(&self, name: &str) -> StageOptions {
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.to_owned()).chain(numbered);
        let mut free = free.skip_while(|name| self.names.contains(name.as_str()));
        StageOptions::new(&free.next().unwrap_or_default())
    }

    fn branch<T: Send + 'static>(&mut self, at: usize, branch: PipelineBuilder<T>) -> Made<T> {
        if branch.settings_made {
            let message = format!(
                "branch {at} makes settings of the whole pipeline; make them on what joins the \
                 branches"
            );
            self.fault(Error::new(ErrorKind::InvalidArgument, message));
        }
        (branch.plan)(self, Outgoing::INNER)
    }

    /// Builds branches, so that they all end at the same distance from the source.
    fn branches<T: Send + 'static>(&mut self, branches: Vec<PipelineBuilder<T>>) -> Vec<Made<T>> {
        let mut ranges = Vec::new();
        let mut made = Vec::new();
        for (at, branch) in branches.into_iter().enumerate() {
            let before = self.nodes.len();
            made.push(self.branch(at, branch));
            ranges.push(before..self.nodes.len());
        }
        let deepest = made.iter().map(|made: &Made<T>| made.depth).max().unwrap_or(0);
        for (range, made) in ranges.into_iter().zip(&mut made) {
            self.lower(range, deepest - made.depth);
            made.depth = deepest;
        }
        made
    }

    /// Puts nodes further from the source.
    fn lower(&self, nodes: Range<usize>, by: usize) {
        self.nodes[nodes].iter().for_each(|placed| placed.depth.add(by));
    }
}
