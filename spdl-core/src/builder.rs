//! Describing a pipeline: the type follows the data, so a wrong order of stages does not compile.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use futures_core::future::BoxFuture;

use crate::batch::{Batch, BatchLayout, Fill};
use crate::failure::OnError;
use crate::pipeline::Pipeline;
use crate::runtime::Runtime;
use crate::scheduler::assembly::Assembly;
use crate::scheduler::async_node::AsyncNode;
use crate::scheduler::cpu_node::CpuNode;
use crate::scheduler::fill_node::FillNode;
use crate::scheduler::queue::Queue;
use crate::scheduler::reorder::Reorder;
use crate::scheduler::source_node::SourceNode;
use crate::scheduler::{Node, Scheduler, Shared, StageCore};
use crate::stage::{AsyncStage, Stage};
use crate::statistics::StageKind;
use crate::sync::Mutex;
use crate::{Error, ErrorKind, Result, Source};

/// The name of the source in statistics and errors.
const SOURCE: &str = "source";
/// How many small keys may wait behind the source.
const SOURCE_QUEUE: usize = 256;
/// How many items may wait behind a stage that computes.
const CPU_QUEUE: usize = 64;
/// How many items an async stage has in flight.
const ASYNC_CONCURRENCY: usize = 16;
/// How many items (batches, mostly) wait for the consumer.
const PREFETCH: usize = 2;

/// In which order a stage hands its outputs on.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As they get ready. A slow item holds nothing back. The default.
    Completion,
    /// As the inputs came. What is ready early waits for its turn; where one input makes many
    /// outputs, all those of an input whose turn has not come are held.
    Input,
}

/// A stage's name and settings. A plain name is enough where the defaults fit:
///
/// ```
/// use spdl_core::{OnError, Order, StageOptions};
/// let plain = StageOptions::from("decode");
/// let tuned = StageOptions::new("decode").concurrency(4).order(Order::Input).on_error(OnError::SKIP);
/// # let _ = (plain, tuned);
/// ```
#[derive(Clone, Debug)]
pub struct StageOptions {
    name: Arc<str>,
    concurrency: Option<usize>,
    order: Option<Order>,
    on_error: Option<OnError>,
    queue: Option<usize>,
}

impl StageOptions {
    /// The defaults under a name, which must be unique in its pipeline and not `source`.
    pub fn new(name: &str) -> Self {
        StageOptions {
            name: name.into(),
            concurrency: None,
            order: None,
            on_error: None,
            queue: None,
        }
    }

    /// How many items the stage may work on at once, at least 1. Default: the number of worker
    /// threads for a stage that computes, 16 for one that waits.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = Some(concurrency.max(1));
        self
    }

    /// In which order outputs are handed on. Default: the pipeline's. [`fill`](PipelineBuilder::fill)
    /// always keeps its input order.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// What happens to an item that fails. Default: the pipeline's.
    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = Some(on_error);
        self
    }

    /// How many outputs may wait for the next stage, at least 1. Default: 64 behind a stage that
    /// computes, twice the concurrency behind one that waits. The last stage's queue is set by
    /// [`prefetch`](PipelineBuilder::prefetch) instead.
    #[must_use]
    pub fn queue(mut self, capacity: usize) -> Self {
        self.queue = Some(capacity.max(1));
        self
    }
}

impl From<&str> for StageOptions {
    fn from(name: &str) -> Self {
        StageOptions::new(name)
    }
}

/// Describes a pipeline whose last stage so far yields `T`.
///
/// ```
/// use spdl_core::{DatasetSource, PipelineBuilder, stage_fn};
///
/// let pipeline = PipelineBuilder::new(DatasetSource::new(vec!["1", "2", "three"]))
///     .stage("parse", || Ok(stage_fn(|text: &str| {
///         text.parse::<u32>().map_err(|error| {
///             spdl_core::Error::new(spdl_core::ErrorKind::Corrupt, "not a number").with_source(error)
///         })
///     })))
///     .on_error(spdl_core::OnError::SKIP)
///     .deterministic()
///     .build()?;
/// let monitor = pipeline.monitor();
/// assert_eq!(pipeline.collect::<spdl_core::Result<Vec<_>>>()?, [1, 2]);
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
    stages: usize,
    /// Builds everything up to here and returns the queue that its items arrive in.
    plan: PlanStep<T>,
}

type PlanStep<T> = Box<dyn FnOnce(&mut Plan) -> Arc<Queue<T>> + Send>;

#[derive(Clone, Debug)]
struct Settings {
    seed: u64,
    threads: Option<usize>,
    epochs: Range<u64>,
    order: Order,
    on_error: OnError,
    prefetch: usize,
    runtime: Option<Arc<dyn Runtime>>,
}

/// A task of the runtime, before there is one.
pub(crate) type Driver = Box<dyn FnOnce(Arc<dyn Runtime>) -> BoxFuture<'static, ()> + Send>;

/// What is collected while a description is turned into a pipeline.
struct Plan {
    settings: Settings,
    shared: Arc<Shared>,
    stages: usize,
    built: usize,
    nodes: Vec<Arc<dyn Node>>,
    drivers: Vec<Driver>,
    names: HashSet<Arc<str>>,
    error: Option<Error>,
}

impl<T: Send + 'static> PipelineBuilder<T> {
    /// A pipeline that yields what `source` yields.
    pub fn new<S: Source<Item = T>>(source: S) -> Self {
        let plan = move |plan: &mut Plan| {
            let options = StageOptions::new(SOURCE).queue(SOURCE_QUEUE);
            let core = plan.stage(&options, StageKind::Source, 1);
            let output = plan.queue(&core, SOURCE_QUEUE);
            let epochs = plan.settings.epochs.clone();
            let node = SourceNode { core, source, epochs, output: Arc::clone(&output) };
            plan.drivers.push(Box::new(move |_| Box::pin(node.drive())));
            output
        };
        let settings = Settings {
            seed: 0,
            threads: None,
            epochs: 0..1,
            order: Order::Completion,
            on_error: OnError::Raise,
            prefetch: PREFETCH,
            runtime: None,
        };
        PipelineBuilder { settings, stages: 1, plan: Box::new(plan) }
    }

    fn then<U>(
        self,
        next: impl FnOnce(&mut Plan, Arc<Queue<T>>) -> Arc<Queue<U>> + Send + 'static,
    ) -> PipelineBuilder<U> {
        let before = self.plan;
        PipelineBuilder {
            settings: self.settings,
            stages: self.stages + 1,
            plan: Box::new(move |plan| {
                let input = before(plan);
                next(plan, input)
            }),
        }
    }

    /// Adds a stage that computes. `factory` makes an instance for each worker that needs one; its
    /// error ends the pipeline.
    pub fn stage<S: Stage<T>>(
        self,
        options: impl Into<StageOptions>,
        factory: impl Fn() -> Result<S> + Send + Sync + 'static,
    ) -> PipelineBuilder<S::Out> {
        let options = options.into();
        self.then(move |plan, input| {
            let core = plan.stage(&options, StageKind::Cpu, plan.shared.threads);
            let output = plan.queue(&core, options.queue.unwrap_or(CPU_QUEUE));
            let ordered = plan.order(&options) == Order::Input;
            let node = CpuNode {
                core,
                index: plan.nodes.len(),
                input,
                output: Arc::clone(&output),
                factory: Box::new(factory),
                reorder: ordered.then(|| Mutex::new(Reorder::default())),
                idle: Mutex::new(Vec::new()),
                running: AtomicUsize::new(0),
                finishing: AtomicBool::new(false),
            };
            plan.nodes.push(Arc::new(node));
            output
        })
    }

    /// Adds a stage that waits. One instance serves all items; `Arc<dyn AsyncStage<…>>` is fine.
    pub fn async_stage<S: AsyncStage<T>>(
        self,
        options: impl Into<StageOptions>,
        stage: S,
    ) -> PipelineBuilder<S::Out> {
        let options = options.into();
        self.then(move |plan, input| {
            let core = plan.stage(&options, StageKind::Async, ASYNC_CONCURRENCY);
            let capacity = options.queue.unwrap_or_else(|| core.concurrency().saturating_mul(2));
            let output = plan.queue(&core, capacity);
            let ordered = plan.order(&options) == Order::Input;
            let node = AsyncNode {
                core,
                stage: Arc::new(stage),
                input,
                output: Arc::clone(&output),
                reorder: ordered.then(Reorder::default),
            };
            plan.drivers.push(Box::new(move |runtime| Box::pin(node.drive(runtime))));
            output
        })
    }

    /// Adds the stage that writes samples into batches. It keeps the order of its input; a sample
    /// that fails leaves its slot to the next one, so that only the last batch of an epoch may be
    /// short. `factory` makes an instance for each worker that needs one.
    pub fn fill<F: Fill<T>>(
        self,
        options: impl Into<StageOptions>,
        layout: BatchLayout,
        factory: impl Fn() -> Result<F> + Send + Sync + 'static,
    ) -> PipelineBuilder<Batch> {
        let options = options.into();
        self.then(move |plan, input| {
            if let Err(error) = layout.validate() {
                plan.fault(error.with_stage(Arc::clone(&options.name)));
            }
            let core = plan.stage(&options, StageKind::Fill, plan.shared.threads);
            // Batches under assembly have a place in the queue promised: those that all workers
            // can be writing at once, and one more, so that a new epoch can begin.
            let open = core.concurrency().div_ceil(layout.batch_size().max(1)) + 1;
            let ready = if plan.is_last() { plan.settings.prefetch } else { PREFETCH };
            let output = plan.queue_of(&core, ready.saturating_add(open));
            let node = FillNode {
                core,
                input,
                output: Arc::clone(&output),
                factory: Box::new(factory),
                fields: layout.fields().to_vec(),
                assembly: Mutex::new(Assembly::new(layout, plan.shared.buffers.clone())),
                idle: Mutex::new(Vec::new()),
                running: AtomicUsize::new(0),
                finishing: AtomicBool::new(false),
            };
            plan.nodes.push(Arc::new(node));
            output
        })
    }

    /// The seed of all the stages' random numbers. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Worker threads of the CPU pool, at least 1. Default: the CPUs this process may use, by
    /// affinity and cgroup quota.
    pub fn threads(mut self, threads: usize) -> Self {
        self.settings.threads = Some(threads.max(1));
        self
    }

    /// Which epochs to run, one after the other; batches never mix them. Default: `0..1`. An epoch
    /// in which the source yields nothing ends the run.
    pub fn epochs(mut self, epochs: Range<u64>) -> Self {
        self.settings.epochs = epochs;
        self
    }

    /// Makes the delivered order, and with it every batch, a pure function of source and seed: each
    /// stage restores its input order, unless its own options say otherwise.
    pub fn deterministic(mut self) -> Self {
        self.settings.order = Order::Input;
        self
    }

    /// What happens to items that fail, in stages that do not say otherwise. Default: the first
    /// failure ends the pipeline.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.settings.on_error = on_error;
        self
    }

    /// How many finished items (batches, mostly) may wait for the consumer, at least 1. Default: 2.
    pub fn prefetch(mut self, items: usize) -> Self {
        self.settings.prefetch = items.max(1);
        self
    }

    /// Who polls the source and the async stages. Default: a [`ThreadRuntime`](crate::ThreadRuntime)
    /// of the pipeline's own. Where a runtime of the caller's drops a task, as when it is shut down,
    /// the pipeline ends with an error of kind `Stopped`.
    pub fn runtime(mut self, runtime: Arc<dyn Runtime>) -> Self {
        self.settings.runtime = Some(runtime);
        self
    }

    /// Makes the pipeline. Nothing runs until the first item is asked for.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is used twice, or a batch layout that cannot exist.
    pub fn build(self) -> Result<Pipeline<T>> {
        let available = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = self.settings.threads.unwrap_or_else(available);
        let runtime = self.settings.runtime.clone();
        let mut plan = Plan {
            shared: Arc::new(Shared::new(self.settings.seed, threads)),
            settings: self.settings,
            stages: self.stages,
            built: 0,
            nodes: Vec::new(),
            drivers: Vec::new(),
            names: HashSet::new(),
            error: None,
        };
        let output = (self.plan)(&mut plan);
        match plan.error {
            Some(error) => Err(error),
            None => {
                let scheduler = Scheduler { shared: plan.shared, nodes: plan.nodes };
                Ok(Pipeline::new(output, scheduler, plan.drivers, runtime))
            }
        }
    }
}

impl<T> fmt::Debug for PipelineBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineBuilder")
            .field("stages", &self.stages)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Plan {
    fn stage(&mut self, options: &StageOptions, kind: StageKind, concurrency: usize) -> StageCore {
        self.built += 1;
        if !self.names.insert(Arc::clone(&options.name)) {
            let message = format!("two stages are called {:?}; names must be unique", options.name);
            self.fault(Error::new(ErrorKind::InvalidArgument, message));
        }
        StageCore::new(
            &self.shared,
            &options.name,
            kind,
            options.concurrency.unwrap_or(concurrency),
            options.on_error.unwrap_or(self.settings.on_error),
        )
    }

    fn fault(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    fn is_last(&self) -> bool {
        self.built == self.stages
    }

    fn order(&self, options: &StageOptions) -> Order {
        options.order.unwrap_or(self.settings.order)
    }

    /// The queue behind a stage; behind the last one, its capacity is the prefetch depth, but
    /// never less than what the stage may finish at once.
    fn queue<T: Send + 'static>(&self, core: &StageCore, capacity: usize) -> Arc<Queue<T>> {
        let last = self.settings.prefetch.max(core.concurrency());
        self.queue_of(core, if self.is_last() { last } else { capacity })
    }

    fn queue_of<T: Send + 'static>(&self, core: &StageCore, capacity: usize) -> Arc<Queue<T>> {
        let queue = Arc::new(Queue::new(capacity, Arc::clone(&self.shared.signal)));
        self.shared.add(Arc::clone(&core.meter), Arc::<Queue<T>>::clone(&queue));
        queue
    }
}
