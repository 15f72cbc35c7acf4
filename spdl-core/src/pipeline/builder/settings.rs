//! What holds for a whole pipeline.

use std::collections::HashSet;
use std::future::Future;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;

use super::PipelineBuilder;
use super::plan::{OutputSettings, Plan};
use crate::error::Result;
use crate::memory::buffer::BufferPool;
use crate::observe::hooks::Hook;
use crate::observe::interval::Interval;
use crate::observe::statistics::Dropped;
use crate::pipeline::definition::{Definition, PipelineSettings, Setting};
use crate::pipeline::handle::Pipeline;
use crate::pipeline::options::Order;
use crate::resume::replay::OrderRecord;
use crate::resume::state::State;
use crate::runtime::Runtime;
use crate::runtime::executor::CpuExecutor;
use crate::scheduler::RunContext;
use crate::scheduler::failure::{DropListener, FailureBudget, OnError};
use crate::scheduler::worker_pool::{WorkerPool, WorkerSource};
use crate::source::shard::Shard;
use crate::stage::batch::PREFETCH;

/// Told of what happened, every so often.
pub(crate) type IntervalListener = Box<dyn FnMut(&Interval) + Send>;
pub(super) type Background =
    Box<dyn FnOnce(Arc<dyn Runtime>) -> BoxFuture<'static, Result<()>> + Send>;

pub(super) struct Settings {
    pub(super) seed: Option<u64>,
    pub(super) threads: Option<usize>,
    pub(super) executor: Option<Arc<dyn CpuExecutor>>,
    pub(super) epochs: Option<Range<u64>>,
    pub(super) order: Option<Order>,
    pub(super) on_error: Option<OnError>,
    pub(super) prefetch: Option<usize>,
    pub(super) memory: Option<usize>,
    pub(super) largest_item: Option<usize>,
    pub(super) buffers: Option<BufferPool>,
    pub(super) runtime: Option<Arc<dyn Runtime>>,
    pub(super) hooks: Vec<Arc<dyn Hook>>,
    pub(super) on_drop: Vec<DropListener>,
    pub(super) interval: Option<(Duration, IntervalListener)>,
    pub(super) background: Vec<(Arc<str>, Background)>,
    pub(super) record: bool,
    pub(super) replay: Option<Arc<OrderRecord>>,
    pub(super) shard: Shard,
    pub(super) resume: Option<State>,
    pub(super) audit: bool,
    pub(super) skip_steps: Vec<Range<u64>>,
    /// How many items every queue must be able to hold, where stages run one after the other.
    pub(super) hold: Option<usize>,
}

impl Settings {
    pub(super) fn new() -> Self {
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
            buffers: None,
            runtime: None,
            hooks: Vec::new(),
            on_drop: Vec::new(),
            interval: None,
            background: Vec::new(),
            record: false,
            replay: None,
            shard: Shard::WHOLE,
            resume: None,
            audit: true,
            skip_steps: Vec::new(),
            hold: None,
        }
    }

    pub(super) fn threads(&self) -> usize {
        let executor = || self.executor.as_ref().map(|executor| executor.parallelism().max(1));
        self.threads.or_else(executor).unwrap_or_else(crate::memory::machine::usable_cpus)
    }

    pub(super) fn order(&self) -> Order {
        // What is replayed has its order from the record.
        let default = if self.replay.is_some() { Order::Input } else { Order::Completion };
        self.order.unwrap_or(default)
    }
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

    /// Worker threads of the CPU pool; 0 is taken as 1. Default: the CPUs this process may use, by
    /// affinity and cgroup quota. While the pipeline runs, [`Control`](crate::pipeline::Control) changes it.
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
    pub fn quarantine(self, list: crate::observe::quarantine::Quarantine) -> Self {
        self.on_drop(move |dropped| list.record(dropped))
    }

    /// How many finished items (batches, mostly) may wait for the consumer; 0 is taken as 1. Default: 2,
    /// or, where items are delivered so fast, as many as come in a millisecond, up to 256.
    pub fn prefetch(self, items: usize) -> Self {
        self.set(|settings| settings.prefetch = Some(items.max(1)))
    }

    /// The memory budget in bytes, for what is [`measured`](Self::measured) and for batches; it
    /// bounds nothing else. What would not fit waits: exactly so where stages say beforehand what they
    /// need ([`Stage::output_bytes`](crate::Stage::output_bytes)), else by the largest of its last outputs,
    /// and what turns out larger is counted as overdrawn. Default: a quarter of the memory that this process may use, cgroup limits
    /// included.
    pub fn memory(self, bytes: usize) -> Self {
        self.set(|settings| settings.memory = Some(bytes))
    }

    /// The most bytes of the memory budget that one item may need. An item of which a stage says
    /// beforehand that it needs more fails, with the kind `LimitExceeded`. Every stage keeps so much free for those behind it.
    /// Default: the budget divided by twice the number of measured stages, or what the largest
    /// batch needs.
    pub fn largest_item(self, bytes: usize) -> Self {
        self.set(|settings| settings.largest_item = Some(bytes))
    }

    /// Where batches lie: buffers of this pool, such as a [pinned](BufferPool::pinned) one of a
    /// device. Default: a pool of the pipeline's own.
    pub fn buffers(self, pool: BufferPool) -> Self {
        self.set(|settings| settings.buffers = Some(pool))
    }

    /// Who polls the source and the async stages. Default: a [`ThreadRuntime`](crate::runtime::ThreadRuntime)
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
    /// [`Monitor::background_errors`]: crate::pipeline::Monitor::background_errors
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

    /// Takes one rank's part of every epoch. Default: all of it.
    pub fn shard(self, shard: Shard) -> Self {
        self.set(|settings| settings.shard = shard)
    }

    /// Goes on where an earlier run left off: that which [`Pipeline::state`] describes, or several
    /// [combined](State::combine). The epochs before the state's are passed over; of its own, what
    /// is done. Threads, concurrency, queues and memory may be others than then. The budgets of
    /// [`on_error`](Self::on_error) begin anew.
    ///
    /// [`build`](Self::build) fails where the state is of another seed, source or graph.
    pub fn resume(self, state: State) -> Self {
        self.set(|settings| settings.resume = Some(state))
    }

    /// Whether every epoch's end is checked: that every sample which the source yielded was
    /// delivered, dropped, filtered out or left out, and none twice. Where that is not so, the
    /// pipeline ends with an error of kind `Internal`. Default: yes. It costs next to nothing. A
    /// pipeline of several sources is not checked.
    pub fn audit(self, audit: bool) -> Self {
        self.set(|settings| settings.audit = audit)
    }

    /// Does not deliver items (batches, mostly) number `steps`, counted from 0 over all epochs and
    /// over the runs before this one. They are made, and their samples are done, as left out. Those
    /// behind keep their numbers, in [`State::steps`] as in [`OrderRecord::samples_of`], which
    /// gives no samples for a step that was skipped.
    pub fn skip_steps(self, steps: Range<u64>) -> Self {
        self.set(|settings| settings.skip_steps.push(steps))
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
        let mut tell = |what: &str, value: String| {
            told.more.insert(what.into(), Setting::new(Some(value), String::new()));
        };
        if let Some(executor) = &settings.executor {
            tell("executor", format!("{executor:?}"));
        }
        if let Some((interval, _)) = &settings.interval {
            tell("report every", format!("{interval:?}"));
        }
        if let Some(record) = &settings.replay {
            tell("replays", format!("{} samples", record.len()));
        }
        if settings.shard != Shard::WHOLE {
            let Shard { remainder, .. } = settings.shard;
            tell("shard", format!("{} ({remainder})", settings.shard));
        }
        if let Some(state) = &settings.resume {
            tell("resumes", format!("epoch {} after step {}", state.epoch(), state.steps()));
        }
        if !settings.audit {
            tell("audit", "off".into());
        }
        if settings.record {
            tell("records", "its order".into());
        }
        let background: Vec<&str> = settings.background.iter().map(|(name, _)| &**name).collect();
        if !background.is_empty() {
            tell("background", background.join(", "));
        }
        let hooks: Vec<_> = settings.hooks.iter().map(|hook| format!("{hook:?}")).collect();
        if !hooks.is_empty() {
            tell("hooks", hooks.join(", "));
        }
        if !settings.on_drop.is_empty() {
            tell("drop listeners", settings.on_drop.len().to_string());
        }
        self.part().with_settings(told)
    }

    /// The definition of a branch or a path.
    pub(super) fn part(&self) -> Definition {
        Definition::new(self.source.clone(), self.stages.clone())
    }

    /// Makes a pipeline of which every stage can be held back, for a source of `items` items.
    pub(crate) fn build_to_profile(self, items: usize) -> Result<Pipeline<T>> {
        self.set(|settings| {
            settings.hold = Some(items);
            settings.on_error = Some(OnError::SKIP);
        })
        .build()
    }

    /// Makes the pipeline. Nothing runs until the first item is asked for.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is used twice, a setting that makes no sense, or a state of
    /// another pipeline; `LimitExceeded` where a batch does not fit into the memory budget;
    /// `Unsupported` where a pipeline of several sources is to be resumed.
    pub fn build(mut self) -> Result<Pipeline<T>> {
        let definition = self.definition();
        let threads = self.settings.threads();
        let shared = RunContext::new(
            self.settings.seed.unwrap_or(0),
            threads,
            std::mem::take(&mut self.settings.on_drop),
            self.settings.buffers.take().unwrap_or_default(),
        );
        let shared = Arc::new(shared);
        let place = match &self.settings.executor {
            Some(executor) => WorkerSource::Executor(Arc::clone(executor)),
            None => WorkerSource::Threads { cpus: Vec::new() },
        };
        let on_error = self.settings.on_error.unwrap_or_default();
        let pool = WorkerPool::new("worker", &shared, place);
        let mut plan = Plan {
            failure_budget: Arc::new(FailureBudget::new(on_error)),
            hooks: std::mem::take(&mut self.settings.hooks).into(),
            min_prefetch: None,
            settings: self.settings,
            shared,
            stages: 0,
            sources: 0,
            source: None,
            levels: 0,
            branched: Vec::new(),
            joints: 0,
            enclosing: Vec::new(),
            largest_batch: 0,
            inlet: (0, false),
            pools: vec![(Arc::clone(&pool), threads)],
            pool,
            nodes: Vec::new(),
            drivers: Vec::new(),
            names: HashSet::new(),
            controls: Vec::new(),
            error: on_error.validate().err(),
        };
        let output = (self.plan)(&mut plan, OutputSettings { last: true, sizer: None }).queue;
        plan.finish(output, definition)
    }
}
