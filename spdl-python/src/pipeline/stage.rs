//! Python's descriptions of stages, and their conversion to stages of the engine.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use spdl_core::pipeline::path;
use spdl_core::stage::{Bucketer, Bucketing};
use spdl_core::{AsyncStage, OnError, Order, PipelineBuilder, Retry, StageOptions};

use super::Item;
use super::aggregate::{BucketAggregator, CustomAggregator, ListAggregator};
use super::call::{
    Await, Call, Draw, DropNone, Iterate, IterateAsync, Op, Retrying, RetryingAwait,
};
use super::inbox::Inbox;
use super::native::{Decoder, Native, OperatorSettings};
use super::route::{Router, items_of, list_of};
use super::workers::{Pool, Workers};
use crate::interop::error::to_exception;
use crate::interop::failure_policy::failure_policy;
use crate::interop::wait::with_python;
use crate::operators::{ImageAugmenter, Stores};

/// Suffix of the names of auxiliary stages.
pub(super) const PART: &str = "/part";

/// The description of a stage. May be used in several pipelines.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Stage {
    spec: Arc<StageSpec>,
}

struct StageSpec {
    op: Arc<Op>,
    kind: Kind,
    concurrency: usize,
    ordered: bool,
    on_error: Option<OnError>,
    /// Present if the stage has a dedicated thread pool.
    pool: Option<Arc<Pool>>,
    retry: Option<Retry>,
    /// Returns the size of a result in bytes, for the memory budget.
    size: Option<Sizer>,
    /// Whether items that the stage aggregates do not count in the memory budget, which could be too small for an
    /// aggregate.
    releases: bool,
}

/// A Python function that returns the size of an item in bytes.
#[derive(Clone)]
pub(super) struct Sizer(Arc<Py<PyAny>>);

impl Sizer {
    pub(super) fn new(function: Py<PyAny>) -> Self {
        Sizer(Arc::new(function))
    }

    /// Counts the outputs of the last stage in the memory budget.
    pub(super) fn measure(&self, pipeline: PipelineBuilder<Item>) -> PipelineBuilder<Item> {
        let Sizer(function) = self.clone();
        pipeline.measured_by(move |item| {
            let measured = with_python(|py| {
                let size = function.bind(py).call1((item,)).and_then(|size| size.extract());
                size.unwrap_or_else(|error: PyErr| {
                    error.write_unraisable(py, Some(function.bind(py)));
                    0
                })
            });
            measured.unwrap_or(0)
        })
    }
}

/// Attempts, first delay, factor, longest delay, jitter, and a tuple of exception classes.
type PyRetry = (u32, f64, f64, f64, f64, Py<PyAny>);

fn retry_of(
    (attempts, first, factor, most, jitter, classes): PyRetry,
) -> PyResult<(Retry, Py<PyAny>)> {
    let seconds = |name: &str, seconds: f64| {
        Duration::try_from_secs_f64(seconds)
            .map_err(|error| PyValueError::new_err(format!("{name} of a Retry: {error}")))
    };
    let retry = Retry::default()
        .attempts(attempts)
        .first_delay(seconds("delay", first)?)
        .factor(factor)
        .most_delay(seconds("max_delay", most)?)
        .jitter(jitter);
    retry.validate().map_err(|error| PyValueError::new_err(error.message().to_owned()))?;
    Ok((retry, classes))
}

/// The options of a stage of Python code. Checkpoint states know the stage by its name without the number of the
/// pipeline, which differs between processes.
pub(super) fn stage_options(name: &str, ordered: bool) -> StageOptions {
    let local = name.split_once(':').map_or(name, |(_, local)| local);
    let options = StageOptions::new(name).identity(local).holds_gil(true);
    // The order of other stages is that of the pipeline, which a replay changes.
    if ordered { options.order(Order::Input) } else { options }
}

enum Kind {
    Call,
    Draw { seed: u64, stage: Arc<str> },
    Iterate,
    Await(Inbox),
    IterateAsync(Inbox),
    Lists { size: usize, drop_last: bool },
    Custom { drop_last: bool },
    Bucket(Bucketing),
    Route { paths: Vec<Vec<Arc<StageSpec>>>, batched: bool, inbox: Option<Inbox> },
    Native(Box<Native>),
}

#[pymethods]
impl Stage {
    /// A stage that calls `function` for each item.
    ///
    /// `kind` is `"call"`, `"draw"`, `"iterate"`, `"await"` or `"iterate-async"`. A `"draw"` stage
    /// also passes random numbers, derived from the seed and stage name in `draws`. `look_at` is
    /// called for results of `"call"` that are coroutines or generators. `retry` has the number of attempts,
    /// the first delay, the factor, the longest delay, the jitter, and the exception classes. `size` returns
    /// the size of a result in bytes.
    #[staticmethod]
    #[pyo3(signature = (
        kind, name, function, *, concurrency, ordered, max_failures=None, workers=None, inbox=None,
        draws=None, look_at=None, retry=None, size=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn function(
        kind: &str,
        name: String,
        function: Py<PyAny>,
        concurrency: usize,
        ordered: bool,
        max_failures: Option<Bound<'_, PyAny>>,
        workers: Option<PyRef<'_, Workers>>,
        inbox: Option<PyRef<'_, Inbox>>,
        draws: Option<(u64, String)>,
        look_at: Option<Py<PyAny>>,
        retry: Option<PyRetry>,
        size: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let inbox = inbox.map(|inbox| inbox.clone());
        let kind = match (kind, inbox, draws) {
            ("call", ..) => Kind::Call,
            ("draw", _, Some((seed, stage))) => Kind::Draw { seed, stage: stage.into() },
            ("iterate", ..) => Kind::Iterate,
            ("await", Some(inbox), _) => Kind::Await(inbox),
            ("iterate-async", Some(inbox), _) => Kind::IterateAsync(inbox),
            (kind, ..) => {
                let message = format!("unknown stage kind {kind:?}, or a missing argument");
                return Err(PyValueError::new_err(message));
            }
        };
        let on_error = max_failures.map(|budget| failure_policy(&budget)).transpose()?;
        let pool = workers.map(|workers| Arc::clone(&workers.pool));
        let (retry, retried) = retry.map(retry_of).transpose()?.unzip();
        let op = Op { stage: name.into(), function: Arc::new(function), look_at, retried };
        let size = size.map(Sizer::new);
        let spec = StageSpec { retry, size, ..StageSpec::of(op, kind) };
        let spec = StageSpec { concurrency, ordered, on_error, pool, ..spec };
        Ok(Stage { spec: Arc::new(spec) })
    }

    /// A stage that collects lists of `size` items. If `releases`, these items do not count in the memory budget.
    #[staticmethod]
    fn lists(py: Python<'_>, name: String, size: usize, drop_last: bool, releases: bool) -> Self {
        let kind = Kind::Lists { size, drop_last };
        Stage::aggregating(name, py.None(), kind, releases)
    }

    /// A stage that aggregates items: `make()` creates an aggregator for each epoch.
    #[staticmethod]
    fn aggregate(name: String, make: Py<PyAny>, drop_last: bool, releases: bool) -> Self {
        Stage::aggregating(name, make, Kind::Custom { drop_last }, releases)
    }

    /// A stage that collects lists of items of similar length. `length(item)` returns the length. `sizes` has
    /// one list size, or one for each bucket; `budget` is the maximum padded size of a list.
    ///
    /// # Errors
    /// `InvalidArgument` if the settings are invalid.
    #[staticmethod]
    #[expect(clippy::too_many_arguments, reason = "the settings of a bucket")]
    fn bucket(
        py: Python<'_>,
        name: String,
        length: Py<PyAny>,
        boundaries: Vec<f64>,
        sizes: Vec<usize>,
        budget: Option<u64>,
        drop_last: bool,
        releases: bool,
    ) -> PyResult<Self> {
        let bucketing = Bucketing::boundaries(boundaries).batch_sizes(sizes);
        let bucketing = match budget {
            Some(budget) => bucketing.budget(budget),
            None => bucketing,
        };
        let bucketing = if drop_last { bucketing.drop_last() } else { bucketing };
        Bucketer::new(bucketing.clone(), |_: &Item| 0.0)
            .map_err(|error| to_exception(py, &error))?;
        Ok(Stage::aggregating(name, length, Kind::Bucket(bucketing), releases))
    }

    /// A stage that sends each item through one of `paths`. `router(item)` returns the index of the
    /// path. If `batched`, items are lists, and the router returns one index for each element.
    #[staticmethod]
    #[pyo3(signature = (name, router, paths, *, batched, inbox=None))]
    fn route(
        name: String,
        router: Py<PyAny>,
        paths: Vec<Vec<PyRef<'_, Stage>>>,
        batched: bool,
        inbox: Option<PyRef<'_, Inbox>>,
    ) -> Self {
        let specs = |stages: &Vec<PyRef<'_, Stage>>| {
            stages.iter().map(|stage| Arc::clone(&stage.spec)).collect()
        };
        let paths = paths.iter().map(specs).collect();
        let inbox = inbox.map(|inbox| inbox.clone());
        Stage::new(name, router, Kind::Route { paths, batched, inbox })
    }

    /// A stage of chained `spdl_rs.io` operators.
    ///
    /// `fetch`, `decode` and `augment` include the name, concurrency, order and failure budget of
    /// the operator. `fetch` also includes the maximum file size in bytes. `batch` is the batch
    /// size, and whether an incomplete batch is left out.
    ///
    /// # Errors
    /// `LimitExceeded` if the batches exceed the memory of the process.
    #[staticmethod]
    #[pyo3(signature = (*, fetch=None, decode=None, augment=None, batch=None))]
    fn native(
        py: Python<'_>,
        fetch: Option<(PyOperatorSettings<'_>, u64)>,
        decode: Option<(PyOperatorSettings<'_>, Decoder<'_>)>,
        augment: Option<(PyOperatorSettings<'_>, PyRef<'_, ImageAugmenter>)>,
        batch: Option<(usize, bool)>,
    ) -> PyResult<Self> {
        let fetch = fetch.map(|(stage, most)| Ok::<_, PyErr>((settings(stage)?, most)));
        let decode = decode.map(|(stage, decoder)| Ok::<_, PyErr>((settings(stage)?, decoder)));
        let augment =
            augment.map(|(stage, changes)| Ok::<_, PyErr>((settings(stage)?, changes.clone())));
        let (fetch, decode) = (fetch.transpose()?, decode.transpose()?);
        let native = Native::new(py, fetch, decode, augment.transpose()?, batch)?;
        let name = native.name().to_owned();
        Ok(Stage::new(name, py.None(), Kind::Native(Box::new(native))))
    }
}

/// Name, optional concurrency, whether the order is kept, and failure budget.
type PyOperatorSettings<'py> = (String, Option<usize>, bool, Option<Bound<'py, PyAny>>);

fn settings(
    (name, concurrency, ordered, max_failures): PyOperatorSettings<'_>,
) -> PyResult<OperatorSettings> {
    let on_error = max_failures.map(|budget| failure_policy(&budget)).transpose()?;
    Ok(OperatorSettings { name: name.into(), concurrency, ordered, on_error })
}

impl Stage {
    /// A stage with concurrency 1, in completion order, on the shared workers.
    fn new(name: String, function: Py<PyAny>, kind: Kind) -> Self {
        Stage::aggregating(name, function, kind, false)
    }

    fn aggregating(name: String, function: Py<PyAny>, kind: Kind, releases: bool) -> Self {
        let function = Arc::new(function);
        let op = Op { stage: name.into(), function, look_at: None, retried: None };
        Stage { spec: Arc::new(StageSpec { releases, ..StageSpec::of(op, kind) }) }
    }

    pub(super) fn add_to(&self, pipeline: PipelineBuilder<Item>) -> PipelineBuilder<Item> {
        self.spec.add_to(pipeline)
    }

    /// The stores that the stage reads from, if any.
    pub(super) fn stores(&self) -> Option<&Stores> {
        self.spec.stores()
    }
}

impl StageSpec {
    /// A stage with concurrency 1, in completion order, on the shared workers.
    fn of(op: Op, kind: Kind) -> Self {
        StageSpec {
            op: Arc::new(op),
            kind,
            concurrency: 1,
            ordered: false,
            on_error: None,
            pool: None,
            retry: None,
            size: None,
            releases: false,
        }
    }

    fn options(&self) -> StageOptions {
        let options = stage_options(&self.op.stage, self.ordered)
            .concurrency(self.concurrency)
            .queue(queue_len(self.concurrency));
        let options = match self.on_error {
            Some(on_error) => options.on_error(on_error),
            None => options,
        };
        match &self.pool {
            Some(pool) => options.executor(Arc::<Pool>::clone(pool)),
            None => options,
        }
    }

    fn stores(&self) -> Option<&Stores> {
        match &self.kind {
            Kind::Native(native) => native.stores(),
            Kind::Route { paths, .. } => paths.iter().flatten().find_map(|spec| spec.stores()),
            _ => None,
        }
    }

    /// The options of an auxiliary stage.
    fn part(&self, at: usize) -> StageOptions {
        stage_options(&format!("{}{PART}{at}", self.op.stage), self.ordered)
            .concurrency(1)
            .queue(queue_len(1))
    }

    fn add_to(&self, pipeline: PipelineBuilder<Item>) -> PipelineBuilder<Item> {
        let pipeline = match self.releases {
            true => pipeline.map(self.part(0), Ok).measured_by(|_| 0),
            false => pipeline,
        };
        let pipeline = self.add_unmeasured(pipeline);
        match &self.size {
            Some(size) => size.measure(pipeline),
            None => pipeline,
        }
    }

    /// Adds a stage whose function may be retried.
    fn add_function<S: spdl_core::Stage<Item, Out = Item>>(
        &self,
        pipeline: PipelineBuilder<Item>,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> PipelineBuilder<Item> {
        match self.retry {
            None => pipeline.stage(self.options(), move || Ok(make())),
            Some(retry) => {
                let op = Arc::clone(&self.op);
                pipeline.stage(self.options(), move || Retrying::new(&op, make(), retry))
            }
        }
    }

    fn add_unmeasured(&self, pipeline: PipelineBuilder<Item>) -> PipelineBuilder<Item> {
        let (op, options) = (Arc::clone(&self.op), self.options());
        match &self.kind {
            Kind::Call => self.add_function(pipeline, move || Call(Arc::clone(&op))),
            Kind::Draw { seed, stage } => {
                let (seed, stage) = (*seed, Arc::clone(stage));
                let make =
                    move || Ok(Draw { op: Arc::clone(&op), seed, stage: Arc::clone(&stage) });
                pipeline.stage(options, make)
            }
            Kind::Iterate => self.add_function(pipeline, move || Iterate(Arc::clone(&op))),
            Kind::Await(inbox) => {
                let stage = Await { op, inbox: inbox.clone() };
                let stage: Arc<dyn AsyncStage<Item, Out = Option<Item>>> = match self.retry {
                    // `Stage::function` has checked the settings.
                    Some(retry) => match RetryingAwait::new(stage, retry) {
                        Ok(retrying) => Arc::new(retrying),
                        Err(_) => return pipeline,
                    },
                    None => Arc::new(stage),
                };
                pipeline.async_stage(options, stage).stage(self.part(0), || Ok(DropNone))
            }
            Kind::IterateAsync(inbox) => {
                let inbox = inbox.clone();
                let make = move || IterateAsync { op: Arc::clone(&op), inbox: inbox.clone() };
                self.add_function(pipeline, make)
            }
            &Kind::Lists { size, drop_last } => {
                let options = options.parameter("size", size).parameter("drop last", drop_last);
                pipeline.aggregate(options, move || ListAggregator::new(size, drop_last))
            }
            &Kind::Custom { drop_last } => {
                let options = options.parameter("drop last", drop_last);
                pipeline.aggregate(options, move || CustomAggregator::new(&op, drop_last))
            }
            Kind::Bucket(bucketing) => {
                let bucketing = bucketing.clone();
                let options = options.parameter("buckets", format!("{bucketing:?}"));
                let make = move || BucketAggregator::new(&op, bucketing.clone());
                pipeline.aggregate(options, make)
            }
            Kind::Native(native) => native.add_to(pipeline),
            Kind::Route { paths, batched, inbox } => {
                let router = Router { op, paths: paths.len(), inbox: inbox.clone() };
                if *batched {
                    self.route_lists(pipeline, options, router, paths)
                } else {
                    let paths: Vec<_> = paths
                        .iter()
                        .cloned()
                        .map(|stages| path(move |items| add_all(&stages, items)))
                        .collect();
                    pipeline.route(options, move |item| router.path(item), paths)
                }
            }
        }
    }

    /// Splits each list, routes its items to paths, and joins the results to a list again. Stages of a path
    /// process one list per input list.
    fn route_lists(
        &self,
        pipeline: PipelineBuilder<Item>,
        options: StageOptions,
        router: Router,
        paths: &[Vec<Arc<StageSpec>>],
    ) -> PipelineBuilder<Item> {
        let name = &self.op.stage;
        let name_of = || name.clone();
        let paths: Vec<_> = paths
            .iter()
            .cloned()
            .enumerate()
            .map(|(at, stages)| {
                let (before, after) = (name_of(), name_of());
                let (first, last) = (self.part(2 * at + 2), self.part(2 * at + 3));
                path(move |items: PipelineBuilder<Vec<Item>>| {
                    let lists = items.map(first, move |items| list_of(&before, items));
                    let lists = add_all(&stages, lists);
                    lists.map(last, move |list| items_of(&after, &list))
                })
            })
            .collect();
        let (before, after) = (name_of(), name_of());
        pipeline
            .map(self.part(0), move |list| items_of(&before, &list))
            .route_lists(options, move |items| router.paths(items), paths)
            .map(self.part(1), move |items| list_of(&after, items))
    }
}

fn add_all(stages: &[Arc<StageSpec>], pipeline: PipelineBuilder<Item>) -> PipelineBuilder<Item> {
    stages.iter().fold(pipeline, |pipeline, stage| stage.add_to(pipeline))
}

/// The queue length before a stage: at least 2, but small, because item sizes are unknown.
pub(super) fn queue_len(concurrency: usize) -> usize {
    concurrency.max(2)
}
