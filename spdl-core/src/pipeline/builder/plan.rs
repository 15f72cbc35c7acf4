//! From the description to the parts that run.

use std::collections::HashSet;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use futures_core::future::BoxFuture;

use super::PipelineBuilder;
use super::route::Inlet;
use super::settings::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::budget::Budget;
use crate::observe::hooks::{Hook, Hooks, StageInfo};
use crate::observe::statistics::{StageKind, StageMeter};
use crate::pipeline::control::{ConcurrencyControl, ConcurrencyControls, StageControl};
use crate::pipeline::definition::Definition;
use crate::pipeline::handle::{Pipeline, PipelineParts};
use crate::pipeline::options::{StageOptions, Workers};
use crate::resume::delivery::Delivery;
use crate::resume::ledger::{Ledger, PartialItem};
use crate::resume::state::State;
use crate::runtime::Runtime;
use crate::runtime::executor::CpuExecutor;
use crate::scheduler::async_node::Tuning;
use crate::scheduler::cpu_node::Sizer;
use crate::scheduler::failure::FailureBudget;
use crate::scheduler::queue::Queue;
use crate::scheduler::route_node::MAX_OPEN_TICKETS;
use crate::scheduler::worker_pool::{WorkerPool, WorkerSource};
use crate::scheduler::{Branch, GraphPosition, Node, OutputEstimate, RunContext, StageCore};
use crate::source::Fingerprint;
use crate::source::shard::{Divisions, Remainder};
use crate::stage::batch::PREFETCH;
use crate::sync::MODELLED;

/// The name of the source in statistics and errors, where it has no other.
pub(super) const SOURCE: &str = "source";
/// How many small keys may wait behind the source.
pub(super) const SOURCE_QUEUE: usize = 256;
/// How many items may wait behind a stage that computes.
pub(super) const CPU_QUEUE: usize = 64;
/// How many items an async stage has in flight.
pub(super) const ASYNC_CONCURRENCY: usize = 16;

pub(super) type PlanStep<T> = Box<dyn FnOnce(&mut Plan, OutputSettings<T>) -> BuiltPart<T> + Send>;

/// What is asked of the last stage of a part.
pub(super) struct OutputSettings<T> {
    /// Whether the consumer takes what it yields.
    pub(super) last: bool,
    /// How to count what it yields.
    pub(super) sizer: Option<Sizer<T>>,
}

impl<T> OutputSettings<T> {
    pub(super) const INNER: Self = OutputSettings { last: false, sizer: None };
}

/// Where branches or paths become one.
pub(super) struct Junction<T, U> {
    pub(super) core: StageCore,
    pub(super) inputs: Vec<Arc<Queue<T>>>,
    pub(super) made: BuiltPart<U>,
}

/// What has been built of a part: where its items arrive, and how many stages are behind them.
pub(super) struct BuiltPart<T> {
    pub(super) queue: Arc<Queue<T>>,
    pub(super) depth: usize,
    /// Whether its items are counted in the memory budget.
    pub(super) measured: bool,
}

/// A task, before there is a runtime to spawn it on.
pub(crate) struct Driver {
    /// Whether it blocks, and so has a thread of its own.
    pub(crate) blocks: bool,
    pub(crate) task: DriverTask,
}

pub(super) type DriverTask = Box<dyn FnOnce(Arc<dyn Runtime>) -> BoxFuture<'static, ()> + Send>;

/// What is collected while a description is turned into a pipeline.
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) shared: Arc<RunContext>,
    pub(super) hooks: Arc<[Arc<dyn Hook>]>,
    /// How deep the last queue is at least, where it may be deeper when items are tiny.
    pub(super) min_prefetch: Option<usize>,
    /// What stages without a policy of their own share.
    pub(super) failure_budget: Arc<FailureBudget>,
    pub(super) stages: usize,
    pub(super) sources: usize,
    /// What is known of the source that was built last.
    pub(super) source: Option<SourceFacts>,
    /// How many times branches join, and the branches of which a part is just being built.
    pub(super) joints: usize,
    pub(super) enclosing: Vec<Branch>,
    pub(super) levels: usize,
    /// Those of them that are on branches which are joined.
    pub(super) branched: Vec<Range<usize>>,
    pub(super) largest_batch: usize,
    /// How far from the source the paths of a route begin, and whether what they get is measured.
    pub(super) inlet: (usize, bool),
    pub(super) pool: Arc<WorkerPool>,
    pub(super) pools: Vec<(Arc<WorkerPool>, usize)>,
    pub(super) nodes: Vec<PlacedNode>,
    pub(super) drivers: Vec<Driver>,
    pub(super) names: HashSet<Arc<str>>,
    pub(super) controls: Vec<StageControl>,
    pub(super) error: Option<Error>,
}

/// What must be known of a source to keep account of its samples.
pub(super) struct SourceFacts {
    pub(super) divisions: Arc<Divisions>,
    pub(super) fingerprint: Fingerprint,
    /// The first epoch.
    pub(super) first: u64,
}

/// A node, who runs it, and where it is.
pub(super) struct PlacedNode {
    pub(super) pool: Arc<WorkerPool>,
    pub(super) position: GraphPosition,
    pub(super) node: Arc<dyn Node>,
}

impl Plan {
    pub(super) fn finish<T: Send + 'static>(
        mut self,
        output: Arc<Queue<T>>,
        definition: Definition,
    ) -> Result<Pipeline<T>> {
        if let Err(error) = self.set_budget() {
            self.add_error(error);
        }
        let delivery = match self.delivery(&definition) {
            Ok(delivery) => delivery,
            Err(error) => {
                self.add_error(error);
                None
            }
        };
        if let Some(error) = self.error {
            return Err(error);
        }
        for (pool, _) in &self.pools {
            let own = self.nodes.iter().filter(|placed| Arc::ptr_eq(&placed.pool, pool));
            let own = own.map(|placed| (placed.position.clone(), Arc::clone(&placed.node)));
            pool.assign(own.collect(), self.joints > 0);
        }
        for (name, task) in self.settings.background.drain(..) {
            let shared = Arc::clone(&self.shared);
            let task: DriverTask = Box::new(move |runtime| {
                let task = task(runtime);
                Box::pin(async move { shared.beside(name, task).await })
            });
            self.drivers.push(Driver { blocks: false, task });
        }
        Ok(Pipeline::new(PipelineParts {
            output,
            shared: self.shared,
            pools: self.pools,
            drivers: self.drivers,
            runtime: self.settings.runtime,
            interval: self.settings.interval,
            record: self.settings.record,
            delivery,
            min_prefetch: self.min_prefetch,
            definition,
            controls: ConcurrencyControls { pool: self.pool, stages: self.controls },
        }))
    }

    /// Opens the books, where there is one source.
    fn delivery(&mut self, definition: &Definition) -> Result<Option<Delivery>> {
        let resumed = self.settings.resume.take();
        if self.sources != 1 {
            if resumed.is_some() {
                let message = "a pipeline of several sources cannot be resumed; mix data sets in one \
                               source instead";
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            return Ok(None);
        }
        let Some(source) = self.source.take().filter(|_| self.settings.hold.is_none()) else {
            return Ok(None);
        };
        let mut fingerprint = definition.fingerprint()?;
        for (part, text) in source.fingerprint.parts() {
            fingerprint.insert(format!("source {part}"), text.clone());
        }
        let seed = self.shared.seed;
        let Divisions { shard, len, .. } = *source.divisions;
        let begun = match resumed {
            Some(state) => {
                state.check(seed, shard, len, &fingerprint)?;
                if state.has_parts() && !definition.keeps_order() {
                    let message = "a list or an item was delivered in part, and it cannot be put \
                                   together or cut as it was, since stages keep no order; \
                                   `State::repeat_parts` lets it come again";
                    return Err(Error::new(ErrorKind::InvalidArgument, message));
                }
                // From here on it is a state of this pipeline, and of this rank.
                state.for_rank(seed, shard, len, fingerprint)
            }
            None => State::at_start(seed, source.first, shard, len, fingerprint),
        };
        let ledger = Ledger::new(source.divisions, begun.pieces.clone(), begun.carry.clone());
        let ledger = Arc::new(ledger);
        let _ = self.shared.ledger.set(Arc::clone(&ledger));
        let skipped = std::mem::take(&mut self.settings.skip_steps);
        let (audit, keeps_order) = (self.settings.audit, definition.keeps_order());
        Ok(Some(Delivery::new(ledger, begun, audit, keeps_order, skipped)))
    }

    /// The item that a stage had cut when an earlier run ended, and in which epoch that was.
    pub(super) fn carry_of(&self, stage: &str) -> Option<(u64, PartialItem)> {
        let state = self.settings.resume.as_ref()?;
        state.carry.get(stage).map(|&cut| (state.epoch, cut))
    }

    /// Which positions of each epoch a source goes through, and which epochs.
    pub(super) fn divide(
        &mut self,
        name: &Arc<str>,
        epochs: Range<u64>,
        len: Option<u64>,
    ) -> (Arc<Divisions>, Range<u64>) {
        let shard = self.settings.shard;
        if shard.world > 1 && shard.remainder != Remainder::Uneven && len.is_none() {
            let message = "an epoch cannot be divided evenly among ranks, since nobody knows how \
                           long it is; give the source a `len_hint`, or take `Remainder::Uneven`";
            let error = Error::new(ErrorKind::InvalidArgument, message);
            self.add_error(error.with_stage(Arc::clone(name)));
        }
        let begun = self.settings.resume.as_ref().map(State::begun);
        let mut epochs = epochs;
        if let Some(begun) = &begun {
            if begun.epoch < epochs.start {
                let message = format!(
                    "the state is of epoch {}, and the first epoch to run is {}",
                    begun.epoch, epochs.start
                );
                self.add_error(Error::new(ErrorKind::InvalidArgument, message));
            }
            epochs.start = begun.epoch;
        }
        (Arc::new(Divisions { shard, len, begun }), epochs)
    }

    pub(super) fn set_budget(&mut self) -> Result<()> {
        if self.levels == 0 {
            return Ok(());
        }
        let limit = self.settings.memory.unwrap_or_else(crate::memory::machine::default_budget);
        let by_default = limit / (2 * self.levels);
        let fits = limit / self.levels;
        let headroom = self.settings.largest_item.unwrap_or_else(|| {
            if self.largest_batch <= fits { by_default.max(self.largest_batch) } else { by_default }
        });
        let branched = std::mem::take(&mut self.branched);
        let budget = Budget::branched(limit, Some(headroom), self.levels, branched)?;
        budget.check(self.largest_batch)?;
        let signals: Vec<_> = self.pools.iter().map(|(pool, _)| Arc::clone(&pool.signal)).collect();
        budget.set_on_release(move || signals.iter().for_each(|signal| signal.wake_one()));
        let _ = self.shared.budget.set(budget);
        Ok(())
    }

    pub(super) fn stage(
        &mut self,
        options: &StageOptions,
        kind: StageKind,
        concurrency: usize,
        measure: Option<OutputEstimate>,
    ) -> StageCore {
        self.stages += 1;
        if options.name.is_empty() {
            self.add_error(Error::new(ErrorKind::InvalidArgument, "a stage has an empty name"));
        }
        if !self.names.insert(Arc::clone(&options.name)) {
            let message = format!("two stages are called {:?}; names must be unique", options.name);
            self.add_error(Error::new(ErrorKind::InvalidArgument, message));
        }
        let own = options.on_error.filter(|_| self.settings.hold.is_none());
        let failure_budget = match own {
            None => Arc::clone(&self.failure_budget),
            Some(policy) => {
                if let Err(error) = policy.validate() {
                    self.add_error(error.with_stage(Arc::clone(&options.name)));
                }
                Arc::new(FailureBudget::new(policy))
            }
        };
        let concurrency = options.concurrency.unwrap_or(concurrency);
        StageCore::new(&self.shared, &options.name, kind, concurrency, failure_budget, measure)
    }

    /// The core of something that is no stage of its own to its user, and shows nowhere.
    pub(super) fn hidden_core(&mut self, name: &Arc<str>) -> StageCore {
        let failure_budget = Arc::clone(&self.failure_budget);
        StageCore::new(&self.shared, name, StageKind::Route, 1, failure_budget, None)
    }

    /// The queues at the beginning of paths, with a meter each.
    pub(super) fn build_inlets<T: Send + 'static>(
        &mut self,
        name: &Arc<str>,
        inlets: Vec<Inlet<T>>,
    ) -> (Vec<Arc<StageMeter>>, Vec<Arc<Queue<T>>>) {
        if inlets.is_empty() {
            let error = Error::new(ErrorKind::InvalidArgument, "a route has no paths");
            self.add_error(error.with_stage(Arc::clone(name)));
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
    pub(super) fn branches_from<T: Send + 'static, U>(
        &mut self,
        paths: Vec<PipelineBuilder<T>>,
        from: &BuiltPart<U>,
        ordered: bool,
    ) -> Vec<BuiltPart<T>> {
        let outer = std::mem::replace(&mut self.inlet, (from.depth + 1, from.measured));
        let levels = self.levels;
        let made = self.branches(paths);
        self.inlet = outer;
        if ordered && self.levels > levels {
            // What waits for its turn would hold the memory that the item before it waits for.
            let message = "a stage on a path is measured, and the order is restored behind the \
                           paths; measure what is in front of the route or behind it";
            self.add_error(Error::new(ErrorKind::Unsupported, message));
        }
        made
    }

    pub(super) fn hooks(&self, core: &StageCore) -> Hooks {
        let index = self.stages - 1;
        let name = Arc::clone(core.name());
        let info =
            StageInfo::new(self.shared.number, index, name, core.meter.kind, core.concurrency());
        Hooks::new(&self.hooks, info)
    }

    pub(super) fn measure(&mut self, measured: bool) -> Option<OutputEstimate> {
        measured.then(|| {
            self.levels += 1;
            OutputEstimate::new(self.levels - 1)
        })
    }

    /// Says that the levels from `first` on are on branches that are now joined.
    pub(super) fn mark_parallel(&mut self, first: usize) {
        let range = first..self.levels;
        self.branched.retain(|inner| inner.start < first);
        if range.len() > 1 {
            self.branched.push(range);
        }
    }

    /// What joins branches or paths that all end at the same distance from the source.
    pub(super) fn join<T, U: Send + 'static>(
        &mut self,
        options: &StageOptions,
        kind: StageKind,
        branches: Vec<BuiltPart<T>>,
        out: &OutputSettings<U>,
    ) -> Junction<T, U> {
        let core = self.stage(options, kind, 1, None);
        let queue = self.queue(&core, out.last, CPU_QUEUE, None);
        self.reject_sizer(&core, out.sizer.is_some());
        let depth = branches.first().map_or(0, |branch| branch.depth) + 1;
        let measured = branches.iter().any(|branch| branch.measured);
        let inputs = branches.into_iter().map(|branch| branch.queue).collect();
        Junction { core, inputs, made: BuiltPart { queue, depth, measured } }
    }

    /// A merge hands on what its branches have measured.
    pub(super) fn reject_sizer(&mut self, core: &StageCore, measured: bool) {
        if measured {
            let message = "measure the branches, not what joins them: it makes nothing new";
            self.add_error(
                Error::new(ErrorKind::InvalidArgument, message).with_stage(Arc::clone(core.name())),
            );
        }
    }

    /// How many items may be on the paths of an ordered route.
    pub(super) fn max_open(&self) -> usize {
        MAX_OPEN_TICKETS.max(self.settings.hold.unwrap_or(0).saturating_mul(self.sources))
    }

    pub(super) fn add_error(&mut self, error: Error) {
        self.error.get_or_insert(error);
    }

    pub(super) fn task(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let task: DriverTask = Box::new(move |_| Box::pin(task));
        self.drivers.push(Driver { blocks: false, task });
    }

    pub(super) fn default_concurrency(&self, options: &StageOptions) -> usize {
        match &options.workers {
            Workers::Shared => self.settings.threads(),
            Workers::Dedicated { cpus } => cpus.len().max(1),
            Workers::Executor(executor) => executor.parallelism().max(1),
        }
    }

    /// Who runs a stage.
    pub(super) fn pool(
        &mut self,
        options: &StageOptions,
        core: &StageCore,
        fixed: bool,
    ) -> Arc<WorkerPool> {
        let pinned = matches!(&options.workers, Workers::Dedicated { cpus } if !cpus.is_empty());
        if pinned && !cfg!(feature = "affinity") {
            let message = "threads are pinned only with the feature `affinity`";
            let error = Error::new(ErrorKind::Unsupported, message);
            self.add_error(error.with_stage(Arc::clone(&options.name)));
        }
        let mut add_control = |handle| {
            let name = Arc::clone(core.name());
            self.controls.push(StageControl { name, handle, adjustable: !fixed });
        };
        let place = match &options.workers {
            Workers::Shared => {
                add_control(ConcurrencyControl::Pool);
                return Arc::clone(&self.pool);
            }
            Workers::Dedicated { cpus } => WorkerSource::Threads { cpus: cpus.clone() },
            Workers::Executor(executor) => {
                // All stages on one pool have one worker pool, so that its workers can help each other.
                let pool = self.executor_pool(executor, core.concurrency());
                let name = Arc::clone(core.name());
                let handle = ConcurrencyControl::Executor(Arc::clone(&pool));
                self.controls.push(StageControl { name, handle, adjustable: !fixed });
                return pool;
            }
        };
        let pool = WorkerPool::new(&options.name, &self.shared, place);
        add_control(ConcurrencyControl::Dedicated(Arc::clone(&pool)));
        self.pools.push((Arc::clone(&pool), core.concurrency()));
        pool
    }

    /// The workers of a pool of the caller's: no more than the stages on it can use.
    fn executor_pool(
        &mut self,
        executor: &Arc<dyn CpuExecutor>,
        workers: usize,
    ) -> Arc<WorkerPool> {
        let known = self.pools.iter_mut().find(|(pool, _)| pool.works_on(executor));
        if let Some((pool, known)) = known {
            *known = known.saturating_add(workers).min(executor.parallelism().max(1));
            return Arc::clone(pool);
        }
        let place = WorkerSource::Executor(Arc::clone(executor));
        let pool = WorkerPool::new("executor", &self.shared, place);
        self.pools.push((Arc::clone(&pool), workers.min(executor.parallelism().max(1))));
        pool
    }

    /// How a stage that waits is tuned; `None` where the caller has said what would be tuned.
    pub(super) fn tuning(&self, options: &StageOptions, last: bool) -> Option<Tuning> {
        let Settings { prefetch, hold, .. } = &self.settings;
        let is_set = options.concurrency.is_some()
            || options.queue.is_some()
            || hold.is_some()
            || (last && prefetch.is_some());
        match (is_set || MODELLED, last) {
            (true, _) => None,
            (false, true) => Some(Tuning::LastQueue),
            (false, false) => Some(Tuning::Queue),
        }
    }

    /// The queue behind a stage; behind the last one, its capacity is the prefetch depth, but
    /// never less than what the stage may finish at once.
    pub(super) fn queue<T: Send + 'static>(
        &mut self,
        core: &StageCore,
        last: bool,
        capacity: usize,
        putters: Option<&Arc<WorkerPool>>,
    ) -> Arc<Queue<T>> {
        let prefetch = self.settings.prefetch.unwrap_or(PREFETCH);
        let capacity = if last { prefetch.max(core.concurrency()) } else { capacity };
        // A profile puts all items in front of a stage before that begins.
        let hold = self.settings.hold.unwrap_or(0).saturating_mul(self.sources);
        let capacity = capacity.max(hold);
        if last && self.settings.prefetch.is_none() && self.settings.hold.is_none() {
            self.min_prefetch = Some(capacity);
        }
        let putters = putters.map(|pool| Arc::clone(&pool.signal));
        let queue = Arc::new(Queue::new(capacity, putters));
        self.shared.add(Arc::clone(&core.meter), Arc::<Queue<T>>::clone(&queue));
        queue
    }

    /// Sources of merged pipelines that have no name of their own are numbered.
    pub(super) fn name_source(&mut self, options: StageOptions) -> StageOptions {
        self.sources += 1;
        if &*options.name == SOURCE && self.sources > 1 {
            let name = format!("{SOURCE}-{}", self.sources).into();
            return StageOptions { name, ..options };
        }
        options
    }

    /// Options with the first of `name`, `name-2`, `name-3`… that is free.
    pub(super) fn free_name(&self, name: &str) -> StageOptions {
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.to_owned()).chain(numbered);
        let mut free = free.skip_while(|name| self.names.contains(name.as_str()));
        StageOptions::new(&free.next().unwrap_or_default())
    }

    pub(super) fn position(&self, depth: usize) -> GraphPosition {
        GraphPosition::new(depth, &self.enclosing)
    }

    /// A number for what joins branches.
    pub(super) fn joint(&mut self) -> usize {
        self.joints += 1;
        self.joints
    }

    pub(super) fn branch<T: Send + 'static>(
        &mut self,
        joint: usize,
        at: usize,
        branch: PipelineBuilder<T>,
    ) -> BuiltPart<T> {
        if branch.settings_made {
            let message = format!(
                "branch {at} makes settings of the whole pipeline; make them on what joins the \
                 branches"
            );
            self.add_error(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.enclosing.push(Branch { joint, index: at });
        let made = (branch.plan)(self, OutputSettings::INNER);
        self.enclosing.pop();
        made
    }

    /// Builds branches, so that they all end at the same distance from the source.
    pub(super) fn branches<T: Send + 'static>(
        &mut self,
        branches: Vec<PipelineBuilder<T>>,
    ) -> Vec<BuiltPart<T>> {
        let joint = self.joint();
        let mut ranges = Vec::new();
        let mut made = Vec::new();
        for (at, branch) in branches.into_iter().enumerate() {
            let before = self.nodes.len();
            made.push(self.branch(joint, at, branch));
            ranges.push(before..self.nodes.len());
        }
        let deepest = made.iter().map(|made: &BuiltPart<T>| made.depth).max().unwrap_or(0);
        for (range, made) in ranges.into_iter().zip(&mut made) {
            self.lower(range, deepest - made.depth);
            made.depth = deepest;
        }
        made
    }

    /// Puts nodes further from the source.
    pub(super) fn lower(&self, nodes: Range<usize>, by: usize) {
        self.nodes[nodes].iter().for_each(|placed| placed.position.lower(by));
    }
}
