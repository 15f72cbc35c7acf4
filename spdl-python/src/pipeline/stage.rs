//! Python's descriptions of stages, and their conversion to stages of the engine.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use spdl_core::pipeline::path;
use spdl_core::{OnError, Order, PipelineBuilder, StageOptions};

use super::Item;
use super::aggregate::{CustomAggregator, ListAggregator};
use super::call::{Await, Call, Draw, DropNone, Iterate, IterateAsync, Op};
use super::inbox::Inbox;
use super::native::{Native, OperatorSettings};
use super::route::{Router, items_of, list_of};
use super::workers::{Pool, Workers};
use crate::interop::failure_policy::failure_policy;
use crate::operators::{ImageAugmenter, ImageDecoder, Stores};

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
}

enum Kind {
    Call,
    Draw { seed: u64, stage: Arc<str> },
    Iterate,
    Await(Inbox),
    IterateAsync(Inbox),
    Lists { size: usize, drop_last: bool },
    Custom { drop_last: bool },
    Route { paths: Vec<Vec<Arc<StageSpec>>>, batched: bool, inbox: Option<Inbox> },
    Native(Box<Native>),
}

#[pymethods]
impl Stage {
    /// A stage that calls `function` for each item.
    ///
    /// `kind` is `"call"`, `"draw"`, `"iterate"`, `"await"` or `"iterate-async"`. A `"draw"` stage
    /// also passes random numbers, derived from the seed and stage name in `draws`. `look_at` is
    /// called for results of `"call"` that are coroutines or generators.
    #[staticmethod]
    #[pyo3(signature = (
        kind, name, function, *, concurrency, ordered, max_failures=None, workers=None, inbox=None,
        draws=None, look_at=None
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
        let op = Op { stage: name.into(), function: Arc::new(function), look_at };
        Ok(Stage::of(op, kind, concurrency, ordered, on_error, pool))
    }

    /// A stage that collects lists of `size` items.
    #[staticmethod]
    fn lists(py: Python<'_>, name: String, size: usize, drop_last: bool) -> Self {
        let kind = Kind::Lists { size, drop_last };
        Stage::new(name, py.None(), kind)
    }

    /// A stage that aggregates items: `make()` creates an aggregator for each epoch.
    #[staticmethod]
    fn aggregate(name: String, make: Py<PyAny>, drop_last: bool) -> Self {
        Stage::new(name, make, Kind::Custom { drop_last })
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
        decode: Option<(PyOperatorSettings<'_>, PyRef<'_, ImageDecoder>)>,
        augment: Option<(PyOperatorSettings<'_>, PyRef<'_, ImageAugmenter>)>,
        batch: Option<(usize, bool)>,
    ) -> PyResult<Self> {
        let fetch = fetch.map(|(stage, most)| Ok::<_, PyErr>((settings(stage)?, most)));
        let decode =
            decode.map(|(stage, decoder)| Ok::<_, PyErr>((settings(stage)?, decoder.clone())));
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
        let op = Op { stage: name.into(), function: Arc::new(function), look_at: None };
        Stage::of(op, kind, 1, false, None, None)
    }

    fn of(
        op: Op,
        kind: Kind,
        concurrency: usize,
        ordered: bool,
        on_error: Option<OnError>,
        pool: Option<Arc<Pool>>,
    ) -> Self {
        let op = Arc::new(op);
        Stage { spec: Arc::new(StageSpec { op, kind, concurrency, ordered, on_error, pool }) }
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
    fn options(&self) -> StageOptions {
        let order = if self.ordered { Order::Input } else { Order::Completion };
        let options = StageOptions::new(&self.op.stage)
            .concurrency(self.concurrency)
            .queue(queue_len(self.concurrency))
            .order(order);
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
        let ordered = if self.ordered { Order::Input } else { Order::Completion };
        StageOptions::new(&format!("{}{PART}{at}", self.op.stage))
            .concurrency(1)
            .queue(queue_len(1))
            .order(ordered)
    }

    fn add_to(&self, pipeline: PipelineBuilder<Item>) -> PipelineBuilder<Item> {
        let (op, options) = (Arc::clone(&self.op), self.options());
        match &self.kind {
            Kind::Call => pipeline.stage(options, move || Ok(Call(Arc::clone(&op)))),
            Kind::Draw { seed, stage } => {
                let (seed, stage) = (*seed, Arc::clone(stage));
                let make =
                    move || Ok(Draw { op: Arc::clone(&op), seed, stage: Arc::clone(&stage) });
                pipeline.stage(options, make)
            }
            Kind::Iterate => pipeline.stage(options, move || Ok(Iterate(Arc::clone(&op)))),
            Kind::Await(inbox) => pipeline
                .async_stage(options, Await { op, inbox: inbox.clone() })
                .stage(self.part(0), || Ok(DropNone)),
            Kind::IterateAsync(inbox) => {
                let inbox = inbox.clone();
                let make = move || {
                    let (op, inbox) = (Arc::clone(&op), inbox.clone());
                    Ok(IterateAsync { op, inbox })
                };
                pipeline.stage(options, make)
            }
            &Kind::Lists { size, drop_last } => {
                pipeline.aggregate(options, move || ListAggregator::new(size, drop_last))
            }
            &Kind::Custom { drop_last } => {
                pipeline.aggregate(options, move || CustomAggregator::new(&op, drop_last))
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
