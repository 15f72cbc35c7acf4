//! The plan: turns a builder into nodes, queues, worker pools and tasks.

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
use crate::observe::stalls::{Activity, StallWatch};
use crate::observe::starvation::StarvationWatch;
use crate::observe::statistics::{StageKind, StageMeter};
use crate::pipeline::control::{ConcurrencyControl, ConcurrencyControls, Control, StageControl};
use crate::pipeline::definition::Definition;
use crate::pipeline::handle::{Pipeline, PipelineParts};
use crate::pipeline::options::{StageOptions, Workers};
use crate::pipeline::tuning::Tune;
use crate::resume::delivery::Delivery;
use crate::resume::ledger::{Ledger, PartialItem};
use crate::resume::state::{SOURCES, State};
use crate::runtime::Runtime;
use crate::runtime::executor::CpuExecutor;
use crate::scheduler::async_node::WindowTuning;
use crate::scheduler::cpu_node::Sizer;
use crate::scheduler::failure::FailureBudget;
use crate::scheduler::merge_node::MergeProgress;
use crate::scheduler::queue::Queue;
use crate::scheduler::route_node::MAX_OPEN_TICKETS;
use crate::scheduler::worker_pool::{WorkerPool, WorkerSource};
use crate::scheduler::{Branch, GraphPosition, Node, OutputEstimate, RunContext, StageCore};
use crate::source::Fingerprint;
use crate::source::shard::{Divisions, Remainder};
use crate::stage::batch::PREFETCH;
use crate::sync::MODELLED;

/// Default name of the source in statistics and errors.
pub(super) const SOURCE: &str = "source";
/// Default capacity of the queue after the source, in items.
pub(super) const SOURCE_QUEUE: usize = 256;
/// Minimum of the default capacity of the queue after a CPU stage, in items. Default capacity after
/// a join.
pub(super) const CPU_QUEUE: usize = 64;
/// Default of the initial number of items in flight of an async stage.
pub(super) const ASYNC_CONCURRENCY: usize = 16;

pub(super) type PlanStep<T> = Box<dyn FnOnce(&mut Plan, OutputSettings<T>) -> BuiltPart<T> + Send>;

/// Requirements on the last stage of a part of the graph.
pub(super) struct OutputSettings<T> {
    /// Whether the consumer receives the outputs of the stage.
    pub(super) last: bool,
    /// Function that returns the size of an output, if outputs are measured.
    pub(super) sizer: Option<Sizer<T>>,
}

impl<T> OutputSettings<T> {
    pub(super) const INNER: Self = OutputSettings { last: false, sizer: None };
}

/// The join of branches or paths.
pub(super) struct Junction<T, U> {
    pub(super) core: StageCore,
    pub(super) inputs: Vec<Arc<Queue<T>>>,
    pub(super) made: BuiltPart<U>,
}

/// A built part of the graph: its output queue, and its distance from the source.
pub(super) struct BuiltPart<T> {
    pub(super) queue: Arc<Queue<T>>,
    pub(super) depth: usize,
    /// Whether its items count in the memory budget.
    pub(super) measured: bool,
}

/// A task that is not spawned yet.
pub(crate) struct Driver {
    /// Whether the task blocks and needs a dedicated thread.
    pub(crate) blocks: bool,
    pub(crate) task: DriverTask,
}

pub(super) type DriverTask = Box<dyn FnOnce(Arc<dyn Runtime>) -> BoxFuture<'static, ()> + Send>;

/// State of the conversion from a builder to a pipeline.
pub(super) struct Plan {
    pub(super) settings: Settings,
    pub(super) shared: Arc<RunContext>,
    pub(super) hooks: Arc<[Arc<dyn Hook>]>,
    /// Minimum depth of the last queue, if no prefetch is set.
    pub(super) min_prefetch: Option<usize>,
    /// Failure budget of all stages without a separate policy.
    pub(super) failure_budget: Arc<FailureBudget>,
    pub(super) stages: usize,
    pub(super) sources: usize,
    /// Facts about the source that was built last.
    pub(super) source_facts: Vec<SourceFacts>,
    /// Whether the part being built precedes a merge that chooses its branches.
    pub(super) is_unmerged: bool,
    /// Number of joins so far.
    pub(super) joints: usize,
    /// Branches that contain the part being built, from the outermost to the innermost.
    pub(super) enclosing: Vec<Branch>,
    /// Number of measured stages so far, which are the levels of the memory budget.
    pub(super) levels: usize,
    /// Ranges of budget levels that belong to parallel branches.
    pub(super) branched: Vec<Range<usize>>,
    pub(super) largest_batch: usize,
    /// Depth at which the paths of a route begin, and whether their input is measured.
    pub(super) inlet: (usize, bool),
    pub(super) pool: Arc<WorkerPool>,
    pub(super) pools: Vec<(Arc<WorkerPool>, usize)>,
    pub(super) nodes: Vec<PlacedNode>,
    pub(super) drivers: Vec<Driver>,
    pub(super) names: HashSet<Arc<str>>,
    pub(super) controls: Vec<StageControl>,
    pub(super) error: Option<Error>,
}

/// Facts about a source that the ledger needs.
pub(super) struct SourceFacts {
    pub(super) divisions: Arc<Divisions>,
    pub(super) fingerprint: Fingerprint,
    /// The first epoch.
    pub(super) first: u64,
}

/// A node with its worker pool and position.
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
        let controls = Arc::new(ConcurrencyControls { pool: self.pool, stages: self.controls });
        let control = Control::new(Arc::clone(&self.shared), Arc::clone(&controls));
        let tune = self.settings.tune.filter(|_| self.settings.profile_items.is_none());
        let tuning = match tune {
            Some(tune) => tune.begin(control, Arc::clone(&self.hooks), self.settings.learned)?,
            None => None,
        };
        Ok(Pipeline::new(PipelineParts {
            output,
            shared: self.shared,
            pools: self.pools,
            drivers: self.drivers,
            runtime: self.settings.runtime,
            interval: self.settings.interval,
            #[cfg(feature = "serde")]
            monitor: self.settings.monitor,
            watch: StallWatch::new(self.settings.stall_time, self.settings.on_stall),
            starvation: StarvationWatch::new(
                self.settings.starvation_interval,
                self.settings.on_starvation,
            ),
            record: self.settings.record,
            delivery,
            // A profile has no outputs.
            allows_total_loss: self.settings.allows_total_loss
                || self.settings.profile_items.is_some(),
            min_prefetch: self.min_prefetch,
            definition,
            controls,
            tuning,
        }))
    }

    /// Lets the control of a stage change the capacity of the queue after the stage.
    pub(super) fn control_queue<T: Send + 'static>(&mut self, name: &str, queue: &Arc<Queue<T>>) {
        // A control may outlive the pipeline.
        let queue = Arc::downgrade(queue);
        if let Some(control) = self.controls.iter_mut().rfind(|control| &*control.name == name) {
            control.widen = Some(Box::new(move |capacity| {
                if let Some(queue) = queue.upgrade() {
                    queue.set_least(capacity);
                }
            }));
        }
    }

    /// Adds a node that workers of `pool` run.
    pub(super) fn place(
        &mut self,
        pool: Arc<WorkerPool>,
        position: GraphPosition,
        meter: &StageMeter,
        node: Arc<dyn Node>,
    ) {
        // The node owns the meter.
        let weak = Arc::downgrade(&node);
        meter.set_probe(move || weak.upgrade().map_or(Activity::Idle, |node| node.activity()));
        self.nodes.push(PlacedNode { pool, position, node });
    }

    /// Creates the ledger, unless several sources are divided among ranks.
    fn delivery(&mut self, definition: &Definition) -> Result<Option<Delivery>> {
        let resumed = self.settings.resume.take();
        let sources = std::mem::take(&mut self.source_facts);
        let is_several = sources.len() > 1;
        if is_several && self.settings.shard.world > 1 {
            if resumed.is_some() {
                let message = "cannot resume a pipeline with several sources that are divided among ranks; \
                               mix data sets in one source instead";
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            return Ok(None);
        }
        let Some(first) = sources.first().filter(|_| self.settings.profile_items.is_none()) else {
            return Ok(None);
        };
        let mut fingerprint = definition.fingerprint()?;
        for (number, source) in sources.iter().enumerate() {
            let name = if is_several { format!("source {number}") } else { "source".to_owned() };
            for (part, text) in source.fingerprint.parts() {
                fingerprint.insert(format!("{name} {part}"), text.clone());
            }
            if let Some(len) = source.divisions.len.filter(|_| is_several) {
                fingerprint.insert(format!("{name} length"), len.to_string());
            }
        }
        if is_several {
            fingerprint.insert(SOURCES.to_owned(), sources.len().to_string());
        }
        let seed = self.shared.seed;
        let Divisions { shard, len, .. } = *first.divisions;
        let len = len.filter(|_| !is_several);
        let point = resumed.as_ref().map(State::resume_point);
        let start = match resumed {
            Some(state) => {
                state.check(seed, shard, len, &fingerprint)?;
                if state.has_parts() && !definition.keeps_order() {
                    let message = "cannot resume: a list or item was delivered in part, and only \
                                   stages that emit outputs in input order can deliver the \
                                   remaining part; set `repeat_parts` to deliver the whole \
                                   list or item again";
                    return Err(Error::new(ErrorKind::InvalidArgument, message));
                }
                // The state now belongs to this pipeline and this rank.
                state.for_rank(seed, shard, len, fingerprint)
            }
            None => State::at_start(seed, first.first, shard, len, fingerprint),
        };
        let divisions = match is_several {
            // The indices of all sources together.
            true => Arc::new(Divisions { shard, len, resumed: point }),
            false => Arc::clone(&first.divisions),
        };
        let (pieces, carry) = (start.pieces.clone(), start.carry.clone());
        let ledger = Arc::new(Ledger::new(divisions, pieces, carry, start.unmerged.clone()));
        let _ = self.shared.ledger.set(Arc::clone(&ledger));
        let mut skipped = std::mem::take(&mut self.settings.skip_steps);
        if is_several {
            skipped.clear();
        }
        let audit = self.settings.audit && !is_several;
        let keeps_order = definition.keeps_order();
        Ok(Some(Delivery::new(ledger, start, audit, keeps_order, skipped)))
    }

    /// Returns the item that `stage` had split when the resumed state was saved, and its epoch.
    pub(super) fn carry_of(&self, stage: &str) -> Option<(u64, PartialItem)> {
        let state = self.settings.resume.as_ref()?;
        state.carry.get(stage).map(|&cut| (state.epoch, cut))
    }

    /// Returns the positions of each epoch that a source reads, and the epochs to run.
    pub(super) fn divide(
        &mut self,
        name: &Arc<str>,
        epochs: Range<u64>,
        len: Option<u64>,
    ) -> (Arc<Divisions>, Range<u64>) {
        let shard = self.settings.shard;
        if shard.world > 1 && shard.remainder != Remainder::Uneven && len.is_none() {
            let message = "cannot divide an epoch evenly among ranks: its length is unknown; \
                           implement `Source::len_hint`, or use `Remainder::Uneven`";
            let error = Error::new(ErrorKind::InvalidArgument, message);
            self.add_error(error.with_stage(Arc::clone(name)));
        }
        let source = self.sources - 1;
        let resumed = self.settings.resume.as_ref().map(|it| it.resume_point_of(source));
        let mut epochs = epochs;
        if let Some(point) = &resumed {
            if point.epoch < epochs.start {
                let message = format!(
                    "cannot resume: the state is in epoch {}, but the first epoch to run is {}",
                    point.epoch, epochs.start
                );
                self.add_error(Error::new(ErrorKind::InvalidArgument, message));
            }
            epochs.start = point.epoch;
        }
        (Arc::new(Divisions { shard, len, resumed }), epochs)
    }

    pub(super) fn set_budget(&mut self) -> Result<()> {
        if self.levels == 0 {
            return Ok(());
        }
        let limit = self.settings.memory.unwrap_or_else(crate::memory::machine::default_budget);
        let default_headroom = limit / (2 * self.levels);
        let fits = limit / self.levels;
        let headroom = self.settings.largest_item.unwrap_or_else(|| {
            if self.largest_batch <= fits {
                default_headroom.max(self.largest_batch)
            } else {
                default_headroom
            }
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
            self.add_error(Error::new(
                ErrorKind::InvalidArgument,
                "the name of a stage is empty; give every stage a unique name",
            ));
        }
        if !self.names.insert(Arc::clone(&options.name)) {
            let message = format!("two stages are named {:?}; names must be unique", options.name);
            self.add_error(Error::new(ErrorKind::InvalidArgument, message));
        }
        let own = options.on_error.filter(|_| self.settings.profile_items.is_none());
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
        let core =
            StageCore::new(&self.shared, &options.name, kind, concurrency, failure_budget, measure);
        if options.holds_gil && kind.uses_cpu_pool() {
            core.meter.set_holds_gil();
        }
        core.identified(options.identified()).unmerged(self.is_unmerged)
    }

    /// Creates the core of a node that does not appear in statistics.
    pub(super) fn hidden_core(&mut self, name: &Arc<str>) -> StageCore {
        let failure_budget = Arc::clone(&self.failure_budget);
        StageCore::new(&self.shared, name, StageKind::Route, 1, failure_budget, None)
    }

    /// Creates the first queue of each path, with a meter.
    pub(super) fn build_inlets<T: Send + 'static>(
        &mut self,
        name: &Arc<str>,
        inlets: Vec<Inlet<T>>,
    ) -> (Vec<Arc<StageMeter>>, Vec<Arc<Queue<T>>>) {
        if inlets.is_empty() {
            let error =
                Error::new(ErrorKind::InvalidArgument, "a route requires at least one path");
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

    /// Builds the paths of a route that follows `from`.
    pub(super) fn branches_from<T: Send + 'static, U>(
        &mut self,
        paths: Vec<PipelineBuilder<T>>,
        from: &BuiltPart<U>,
        ordered: bool,
    ) -> Vec<BuiltPart<T>> {
        let outer = std::mem::replace(&mut self.inlet, (from.depth + 1, from.measured));
        let levels = self.levels;
        let (made, _) = self.branches(paths);
        self.inlet = outer;
        if ordered && self.levels > levels {
            // Later items in the reorder buffer would hold the memory for which an earlier item
            // waits.
            let message = "cannot measure a stage on a path of a route that restores the order; \
                           measure a stage before or after the route";
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

    /// Marks the budget levels from `first` on as parallel, after their branches are joined.
    pub(super) fn mark_parallel(&mut self, first: usize) {
        let range = first..self.levels;
        self.branched.retain(|inner| inner.start < first);
        if range.len() > 1 {
            self.branched.push(range);
        }
    }

    /// Creates the join of branches or paths with equal depth.
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

    /// Rejects `measured` on a join, because the branches measure its items.
    pub(super) fn reject_sizer(&mut self, core: &StageCore, measured: bool) {
        if measured {
            let message = "`measured` cannot follow a merge, zip or route, because they create no \
                           items; call `measured` after another stage";
            self.add_error(
                Error::new(ErrorKind::InvalidArgument, message).with_stage(Arc::clone(core.name())),
            );
        }
    }

    /// Returns how many items may be on the paths of a route that restores the input order.
    pub(super) fn max_open(&self) -> usize {
        MAX_OPEN_TICKETS.max(self.settings.profile_items.unwrap_or(0).saturating_mul(self.sources))
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

    /// Returns the worker pool of a stage.
    pub(super) fn pool(
        &mut self,
        options: &StageOptions,
        core: &StageCore,
        fixed: bool,
    ) -> Arc<WorkerPool> {
        let pinned = matches!(&options.workers, Workers::Dedicated { cpus } if !cpus.is_empty());
        if pinned && !cfg!(feature = "affinity") {
            let message = "pinned threads require the feature `affinity` of spdl-core; enable it \
                           in Cargo.toml";
            let error = Error::new(ErrorKind::Unsupported, message);
            self.add_error(error.with_stage(Arc::clone(&options.name)));
        }
        // If the settings are tuned, a set concurrency above 1 is a starting value.
        let is_tuned = self.settings.tune.as_ref().is_some_and(Tune::changes_concurrency);
        let is_free = options.concurrency.is_none_or(|set| is_tuned && set > 1);
        let control = |handle| StageControl {
            name: Arc::clone(core.name()),
            identity: Arc::clone(options.identified()),
            handle,
            adjustable: !fixed,
            follows_threads: !fixed && is_free && matches!(options.workers, Workers::Shared),
            widen: None,
        };
        let place = match &options.workers {
            Workers::Shared => {
                self.controls.push(control(ConcurrencyControl::Pool));
                return Arc::clone(&self.pool);
            }
            Workers::Dedicated { cpus } => WorkerSource::Threads { cpus: cpus.clone() },
            Workers::Executor(executor) => {
                // Stages on the same executor share one worker pool, so that its workers can run
                // any of them.
                let pool = self.executor_pool(executor, core.concurrency());
                self.controls.push(control(ConcurrencyControl::Executor(Arc::clone(&pool))));
                return pool;
            }
        };
        core.meter.set_dedicated();
        let pool = WorkerPool::new(&options.name, &self.shared, place);
        self.controls.push(control(ConcurrencyControl::Dedicated(Arc::clone(&pool))));
        self.pools.push((Arc::clone(&pool), core.concurrency()));
        pool
    }

    /// Returns the worker pool of an executor, with at most as many workers as its stages can use.
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

    /// Returns how the in-flight window of an async stage is adjusted; `None` if it is fixed by
    /// settings.
    pub(super) fn tuning(&self, options: &StageOptions, last: bool) -> Option<WindowTuning> {
        let Settings { prefetch, profile_items, .. } = &self.settings;
        let is_set = options.concurrency.is_some()
            || options.queue.is_some()
            || profile_items.is_some()
            || self.is_static(options)
            || (last && prefetch.is_some());
        (!is_set && !MODELLED)
            .then(|| WindowTuning { is_last: last, learned: self.settings.learned.windows.clone() })
    }

    /// Whether static settings give the concurrency of a stage.
    fn is_static(&self, options: &StageOptions) -> bool {
        let fixed = self.settings.tune.as_ref().and_then(Tune::fixed_settings);
        fixed.is_some_and(|fixed| fixed.stages.contains_key(&**options.identified()))
    }

    /// Creates the queue after a stage. The capacity of the last queue is the prefetch depth, but
    /// at least the stage's concurrency. For a profile, each queue has room for all source items.
    pub(super) fn queue<T: Send + 'static>(
        &mut self,
        core: &StageCore,
        last: bool,
        capacity: usize,
        producers: Option<&Arc<WorkerPool>>,
    ) -> Arc<Queue<T>> {
        let prefetch = self.settings.prefetch.unwrap_or(PREFETCH);
        let capacity = if last { prefetch.max(core.concurrency()) } else { capacity };
        // A profile fills the input queue of a stage with all items before the stage starts.
        let profile_items = self.settings.profile_items.unwrap_or(0).saturating_mul(self.sources);
        let capacity = capacity.max(profile_items);
        let is_fixed = self.settings.tune.as_ref().is_some_and(|it| it.fixed_settings().is_some());
        let is_set = self.settings.prefetch.is_some() || is_fixed;
        if last && !is_set && self.settings.profile_items.is_none() {
            self.min_prefetch = Some(capacity);
        }
        let producers = producers.map(|pool| Arc::clone(&pool.signal));
        let queue = Arc::new(Queue::new(capacity, producers));
        self.shared.add(Arc::clone(&core.meter), Arc::<Queue<T>>::clone(&queue));
        queue
    }

    /// Counts a source. Appends the number to the default name of the second and later sources.
    pub(super) fn name_source(&mut self, options: StageOptions) -> StageOptions {
        self.sources += 1;
        if &*options.name == SOURCE && self.sources > 1 {
            let name = format!("{SOURCE}-{}", self.sources).into();
            return StageOptions { name, ..options };
        }
        options
    }

    /// Returns options with the first unused name of `name`, `name-2`, `name-3`, …
    pub(super) fn free_name(&self, name: &str) -> StageOptions {
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.to_owned()).chain(numbered);
        let mut free = free.skip_while(|name| self.names.contains(name.as_str()));
        StageOptions::new(&free.next().unwrap_or_default())
    }

    pub(super) fn position(&self, depth: usize) -> GraphPosition {
        GraphPosition::new(depth, &self.enclosing)
    }

    /// Returns a number for a join.
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
                "branch {at} has settings of the whole pipeline; set them on the merge, zip or \
                 route instead"
            );
            self.add_error(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.enclosing.push(Branch { joint, index: at });
        let made = (branch.plan)(self, OutputSettings::INNER);
        self.enclosing.pop();
        made
    }

    /// Builds branches and moves their nodes, so that all end at the same depth. Also returns the sources of each.
    pub(super) fn branches<T: Send + 'static>(
        &mut self,
        branches: Vec<PipelineBuilder<T>>,
    ) -> (Vec<BuiltPart<T>>, Vec<Range<usize>>) {
        let joint = self.joint();
        let mut ranges = Vec::new();
        let (mut made, mut sources) = (Vec::new(), Vec::new());
        for (at, branch) in branches.into_iter().enumerate() {
            let (before, first) = (self.nodes.len(), self.sources);
            made.push(self.branch(joint, at, branch));
            ranges.push(before..self.nodes.len());
            sources.push(first..self.sources);
        }
        let max_depth = made.iter().map(|made: &BuiltPart<T>| made.depth).max().unwrap_or(0);
        for (range, made) in ranges.into_iter().zip(&mut made) {
            self.move_downstream(range, max_depth - made.depth);
            made.depth = max_depth;
        }
        (made, sources)
    }

    /// The start of a merge of branches with these sources. `chooses` is whether its policy chooses the branches.
    pub(super) fn merge_progress<T>(
        &self,
        sources: &[Range<usize>],
        chooses: bool,
    ) -> MergeProgress<T> {
        let resumed = self.settings.resume.as_ref();
        let first = self.settings.epochs.as_ref().map_or(0, |epochs| epochs.start);
        let resumes = |state: &&State| chooses && state.has_several_sources();
        let merged = resumed.filter(resumes).map(|state| state.merged(sources));
        let first = resumed.map_or(first, |state| state.epoch);
        MergeProgress::new(sources.len(), first, merged.unwrap_or_default())
    }

    /// Increases the depth of nodes.
    pub(super) fn move_downstream(&self, nodes: Range<usize>, by: usize) {
        self.nodes[nodes].iter().for_each(|placed| placed.position.lower(by));
    }
}
