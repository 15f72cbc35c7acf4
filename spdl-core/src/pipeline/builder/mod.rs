//! The pipeline builder. Stages are typed, so stages in a wrong order do not compile.

mod plan;
mod route;
mod settings;
mod stages;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use futures_core::Stream;

use crate::error::{Error, ErrorKind, Result};
use crate::observe::statistics::StageKind;
use crate::pipeline::definition::{Construct, Setting, StageDefinition};
use crate::pipeline::handle::Pipeline;
use crate::pipeline::options::StageOptions;
use crate::scheduler::merge_node::MergeNode;
use crate::scheduler::source_node::SourceNode;
use crate::scheduler::zip_node::{ZipInput, ZipNode};
use crate::source::sample::SampleId;
use crate::source::{IteratorSource, Source, StreamSource};
use crate::stage::merge::{MergePolicy, ZipLength};
pub(crate) use plan::Driver;
use plan::{
    BuiltPart, CPU_QUEUE, DriverTask, Junction, OutputSettings, Plan, PlanStep, SOURCE,
    SOURCE_QUEUE, SourceFacts,
};
pub use route::{Path, path};
pub(crate) use settings::IntervalListener;
use settings::Settings;

/// Describes a pipeline whose last added stage emits items of type `T`.
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
/// Stages in a wrong order do not compile:
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
#[must_use = "a builder does nothing until `build` is called"]
pub struct PipelineBuilder<T> {
    settings: Settings,
    /// Whether this builder has settings of the whole pipeline.
    settings_made: bool,
    source: Option<StageDefinition>,
    stages: Vec<StageDefinition>,
    /// Builds all stages up to here.
    plan: PlanStep<T>,
}

/// Kind of a pipeline's input.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Can be read once per epoch.
    Source,
    /// Can be read once, and may block.
    Iterator,
    /// Can be read once.
    Stream,
}

impl<T: Send + 'static> PipelineBuilder<T> {
    /// Creates a pipeline that reads from `source`.
    #[track_caller]
    pub fn new<S: Source<Item = T>>(source: S) -> Self {
        PipelineBuilder::from_source(SOURCE, source)
    }

    /// Like [`new`](Self::new), with a name and settings for the source.
    #[track_caller]
    pub fn from_source<S: Source<Item = T>>(options: impl Into<StageOptions>, source: S) -> Self {
        Self::begin(options.into(), source, Origin::Source)
    }

    /// Creates a pipeline from an iterator, for one epoch.
    ///
    /// The iterator may block. It runs on a separate thread, which is joined when the pipeline ends
    /// or is dropped. [`build`](Self::build) fails if more than one
    /// [epoch](PipelineBuilder::epochs) is set; for several epochs, use a [`Source`]. A
    /// [resumed](PipelineBuilder::resume) run reads the iterator from its start and skips finished
    /// items, so the iterator must yield the same items.
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// let squares = PipelineBuilder::from_iter(1..=3).map("square", |n| Ok(n * n)).deterministic();
    /// assert_eq!(squares.build()?.collect::<spdl_core::Result<Vec<i32>>>()?, [1, 4, 9]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[expect(clippy::should_implement_trait, reason = "the bounds differ from the trait's")]
    #[track_caller]
    pub fn from_iter<I>(items: I) -> Self
    where
        I: IntoIterator<Item = T>,
        I::IntoIter: Send + 'static,
    {
        let items = items.into_iter().map(Ok);
        Self::begin(SOURCE.into(), IteratorSource::new(items), Origin::Iterator)
    }

    /// Creates a pipeline from a stream, for one epoch. The stream is polled on the runtime and
    /// must not block.
    #[track_caller]
    pub fn from_stream(items: impl Stream<Item = Result<T>> + Send + 'static) -> Self {
        Self::begin(SOURCE.into(), StreamSource::new(items), Origin::Stream)
    }

    /// Creates a pipeline from the outputs of another pipeline, for one epoch. An error that ends
    /// the other pipeline ends this one, regardless of the failure policy.
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
            Origin::Stream,
        )
    }

    /// Creates a builder whose first part of the graph is built by `plan`. A path has no source.
    fn starting(
        source: Option<StageDefinition>,
        plan: impl FnOnce(&mut Plan, OutputSettings<T>) -> BuiltPart<T> + Send + 'static,
    ) -> Self {
        PipelineBuilder {
            settings: Settings::new(),
            settings_made: false,
            source,
            stages: Vec::new(),
            plan: Box::new(plan),
        }
    }

    #[track_caller]
    fn begin<S: Source<Item = T>>(options: StageOptions, source: S, origin: Origin) -> Self {
        let at = Location::caller();
        let definition = StageDefinition::source::<T>(&options.name, Construct::Source).at(at);
        let queue = Setting::new(options.queue, SOURCE_QUEUE);
        let definition =
            StageDefinition { queue: Some(queue), ..definition }.with_parameters(&options);
        let plan = move |plan: &mut Plan, out: OutputSettings<T>| {
            let options = plan.name_source(options);
            let measured = out.sizer.is_some();
            let measure = plan.measure(measured);
            let core = plan.stage(&options, StageKind::Source, 1, measure);
            let hooks = plan.hooks(&core);
            let epochs = plan.settings.epochs.clone().unwrap_or(0..1);
            if origin != Origin::Source && epochs.end.saturating_sub(epochs.start) > 1 {
                let message = "cannot run several epochs: an iterator or stream can be read only once; \
                               use a `Source`, such as `DatasetSource`";
                let error = Error::new(ErrorKind::InvalidArgument, message);
                plan.add_error(error.with_stage(Arc::clone(core.name())));
            }
            let (divisions, epochs) = plan.divide(core.name(), epochs, source.len_hint());
            let first_index = SampleId::indices_of(plan.sources - 1).start;
            plan.source_facts.push(SourceFacts {
                divisions: Arc::clone(&divisions),
                fingerprint: source.fingerprint(),
                first: epochs.start,
            });
            let capacity = options.queue.unwrap_or(SOURCE_QUEUE);
            let queue = plan.queue(&core, out.last, capacity, None);
            let node = SourceNode {
                core,
                source,
                first_index,
                divisions,
                epochs,
                output: Arc::clone(&queue),
                hooks,
                sizer: out.sizer,
                blocks: origin == Origin::Iterator,
                limit: plan.settings.profile_items.map(|items| items as u64),
                replay: plan.settings.replay.clone(),
            };
            let task: DriverTask = Box::new(move |_| Box::pin(node.drive()));
            plan.drivers.push(Driver { blocks: origin == Origin::Iterator, task });
            BuiltPart { queue, depth: 0, measured }
        };
        PipelineBuilder::starting(Some(definition), plan)
    }

    /// Creates a pipeline that merges the items of several pipelines.
    ///
    /// `policy` chooses the branch that provides the next item. Epochs never mix: an epoch of the
    /// merge ends when the epoch of every branch has ended, or when the policy ends it. Set
    /// settings of the whole pipeline on the merge, not on its branches.
    ///
    /// # Errors
    /// [`build`](Self::build) returns `InvalidArgument` if there is no branch, or if a branch has
    /// settings of the whole pipeline. `build` also returns any error of [`MergePolicy::check`].
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// use spdl_core::stage::RoundRobin;
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
        let plan = move |plan: &mut Plan, out: OutputSettings<T>| {
            if branches.is_empty() {
                plan.add_error(Error::new(
                    ErrorKind::InvalidArgument,
                    "a merge requires at least one branch",
                ));
            }
            let levels = plan.levels;
            let (outer, chooses) = (plan.is_unmerged, policy.chooses());
            plan.is_unmerged |= chooses;
            let (made, sources) = plan.branches(branches);
            plan.is_unmerged = outer;
            plan.mark_parallel(levels);
            // The merge is named after its branches are built, which may contain merges.
            let options = plan.free_name("merge");
            let Junction { core, inputs, made } = plan.join(&options, StageKind::Merge, made, &out);
            // Validates the policy when the pipeline is built.
            if let Err(error) = policy.check(inputs.len()) {
                plan.add_error(error.with_stage(Arc::clone(core.name())));
            }
            let node = MergeNode {
                core,
                progress: plan.merge_progress(&sources, chooses),
                inputs,
                output: Arc::clone(&made.queue),
                policy: Box::new(policy),
            };
            plan.task(node.drive());
            made
        };
        PipelineBuilder::starting(Some(definition), plan)
    }

    /// Creates a pipeline of pairs, with one item of each pipeline.
    ///
    /// An epoch has as many pairs as the shorter pipeline has items. Further items of the longer
    /// pipeline are left out and counted. Set settings of the whole pipeline on the zip, not on the
    /// two pipelines.
    #[track_caller]
    pub fn zip<U: Send + 'static>(self, other: PipelineBuilder<U>) -> PipelineBuilder<(T, U)> {
        let mut definition = StageDefinition::source::<(T, U)>("zip", Construct::Merge)
            .at(Location::caller())
            .with("policy", Setting::new(Some("Zip"), ""));
        definition.branches = vec![self.part(), other.part()];
        let plan = move |plan: &mut Plan, out: OutputSettings<(T, U)>| {
            let levels = plan.levels;
            let before = plan.nodes.len();
            let joint = plan.joint();
            let left = plan.branch(joint, 0, self);
            let between = plan.nodes.len();
            let right = plan.branch(joint, 1, other);
            plan.mark_parallel(levels);
            let depth = left.depth.max(right.depth);
            plan.move_downstream(before..between, depth - left.depth);
            plan.move_downstream(between..plan.nodes.len(), depth - right.depth);
            let measured = left.measured || right.measured;
            let measure = plan.measure(measured);
            let options = plan.free_name("zip");
            let core = plan.stage(&options, StageKind::Merge, 1, measure);
            let queue = plan.queue(&core, out.last, CPU_QUEUE, None);
            plan.reject_sizer(&core, out.sizer.is_some());
            let inputs = (ZipInput::new(left.queue), ZipInput::new(right.queue));
            plan.task(ZipNode::new(core, inputs, Arc::clone(&queue), false).drive());
            BuiltPart { queue, depth: depth + 1, measured }
        };
        PipelineBuilder::starting(Some(definition), plan)
    }

    /// Creates a pipeline of lists, with one item of each of several pipelines of one type.
    ///
    /// An epoch has as many lists as the shortest pipeline has items, or as all have, if `length` is
    /// [`ZipLength::Equal`]. Longer pipelines are read to the end of the epoch. Items that a failure policy
    /// drops, or a stage filters out, belong to no list. Set settings of the whole pipeline on the zip, not on
    /// the pipelines.
    ///
    /// # Errors
    /// [`build`](Self::build) returns `InvalidArgument` if there is no branch, or if a branch has settings of
    /// the whole pipeline.
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// use spdl_core::stage::ZipLength;
    /// let parts = [1, 10, 100].map(|by| PipelineBuilder::from_iter((1..4).map(move |n| n * by)));
    /// let lists = PipelineBuilder::zip_all("lists", parts, ZipLength::Shortest).build()?;
    /// let lists = lists.collect::<spdl_core::Result<Vec<_>>>()?;
    /// assert_eq!(lists, [[1, 10, 100], [2, 20, 200], [3, 30, 300]]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[track_caller]
    pub fn zip_all(
        options: impl Into<StageOptions>,
        branches: impl IntoIterator<Item = PipelineBuilder<T>>,
        length: ZipLength,
    ) -> PipelineBuilder<Vec<T>> {
        let (options, branches) = (options.into(), branches.into_iter().collect::<Vec<_>>());
        let mut definition = StageDefinition::source::<Vec<T>>(&options.name, Construct::Merge)
            .at(Location::caller())
            .with_parameters(&options)
            .with("policy", Setting::new(Some(format!("Zip({length:?})")), String::new()));
        definition.branches = branches.iter().map(PipelineBuilder::part).collect();
        let plan = move |plan: &mut Plan, out: OutputSettings<Vec<T>>| {
            if branches.is_empty() {
                let message = "a zip requires at least one branch";
                plan.add_error(Error::new(ErrorKind::InvalidArgument, message));
            }
            let levels = plan.levels;
            let (made, _) = plan.branches(branches);
            plan.mark_parallel(levels);
            let depth = made.first().map_or(0, |branch| branch.depth) + 1;
            let measured = made.iter().any(|branch| branch.measured);
            let measure = plan.measure(measured);
            let core = plan.stage(&options, StageKind::Merge, 1, measure);
            let queue = plan.queue(&core, out.last, CPU_QUEUE, None);
            plan.reject_sizer(&core, out.sizer.is_some());
            let inputs: Vec<_> = made.into_iter().map(|made| ZipInput::new(made.queue)).collect();
            let is_strict = length == ZipLength::Equal;
            plan.task(ZipNode::new(core, inputs, Arc::clone(&queue), is_strict).drive());
            BuiltPart { queue, depth, measured }
        };
        PipelineBuilder::starting(Some(definition), plan)
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
