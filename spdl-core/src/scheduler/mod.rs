//! The scheduler: queues, nodes, and the worker pool, which runs the stages nearest to the consumer
//! first.
//!
//! ```text
//!            runtime (source, async stages)              CPU pool (stages, fills)
//! source ──► [queue] ──► async stage ──► [queue] ──► stage ──► [queue] ──► fill ──► [queue] ──► consumer
//! ```
//!
//! **CPU stages are nodes.** A free worker visits the nodes from the consumer towards the source
//! and runs the first ready one. A node is ready if it has input, room for output (and memory, if
//! the first input waits for memory), and fewer than `concurrency` running instances. Because items
//! near the consumer are processed first, memory use stays low, and the concurrency of CPU stages
//! needs no tuning. A worker that finds no ready node looks again a few times, then sleeps on the
//! [`Signal`](signal::Signal) until a queue or the memory budget changes. All CPU stages share one
//! [`WorkerPool`], except stages with dedicated threads or on the caller's executor.
//!
//! **Deadlock freedom.** A node reserves room for its result before it takes its input. A stage
//! that emits more items than it has reserved room for waits inside `emit`. Meanwhile its worker
//! runs downstream nodes, which do not wait for upstream nodes.
//!
//! **Async stages are tasks** on a [`Runtime`](crate::Runtime). One driver per stage owns all its
//! futures in flight, so an item needs neither a thread nor a spawned task. Merges and routes
//! ([`merge_node`], [`zip_node`], [`route_node`]) are tasks as well.
//!
//! **The end of an epoch** is a marker that follows the last item through the queues. A node
//! forwards the marker after all items before it, so epochs never mix.
//!
//! **Shutdown.** A queue is *closed* when its producer has finished. Closing propagates downstream,
//! and items in flight are finished. A queue is *shut* when its items are discarded. Shutting
//! propagates upstream, and items in flight are dropped. A failure that the policy does not allow
//! shuts the input queue of the failed stage. Shutting cancels upstream work, while the consumer
//! still receives the results that are already downstream. `stop` shuts all queues, which wakes all
//! waiting threads and tasks. Failures are recorded before queues change, so a consumer that sees
//! the end also sees the failure.
//!
//! | file | what |
//! |---|---|
//! | this file | `RunContext`: shared state of a run; `StageCore`: state of a stage |
//! | `worker_pool` | workers: which node to run next, sleep, start, resize, join |
//! | `signal` | event count: workers sleep on it without lost wake-ups |
//! | `queue` | bounded queue of items and ends of epochs |
//! | `reorder` | reorder buffer |
//! | `source_node` | task that reads a source |
//! | `async_node`, `window` | task of an async stage, and its in-flight window |
//! | `cpu_node/` | node of a [`Stage`](crate::Stage) |
//! | `fill_node`, `assembly` | node of a [`Fill`](crate::Fill), and the batches it writes into |
//! | `merge_node`, `zip_node`, `route_node` | tasks that join and split streams of items |
//! | `failure` | failure policies |
//! | `models/` | model checks by loom |
//!
//! Imports: every module except `pipeline`.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_core::future::BoxFuture;
use futures_util::FutureExt;

pub(crate) mod assembly;
pub(crate) mod async_node;
pub(crate) mod cpu_node;
pub(crate) mod failure;
pub(crate) mod fill_node;
pub(crate) mod merge_node;
#[cfg(all(test, spdl_loom))]
mod models;
pub(crate) mod queue;
pub(crate) mod reorder;
pub(crate) mod route_node;
pub(crate) mod signal;
pub(crate) mod source_node;
pub(crate) mod window;
pub(crate) mod worker_pool;
pub(crate) mod zip_node;

use crate::error::{Error, ErrorKind, Result, guarded, panicked};
use crate::item::ItemHeader;
use crate::item::lineage::{LineageNode, Outcome};
use crate::memory::budget::{Budget, MemoryStatistics, Reservation};
use crate::memory::buffer::BufferPool;
use crate::observe::hooks::Hooks;
use crate::observe::interval::RawSnapshot;
use crate::observe::setting_names::SettingNames;
use crate::observe::slowest;
use crate::observe::stalls::{Activity, StageProgress};
use crate::observe::statistics::{ConsumerMeter, StageKind, StageMeter, WorkerTimes};
use crate::observe::thread_times::{ExternalTimes, ThreadTimes};
use crate::observe::tuner::TuningDecision;
use crate::resume::ledger::Ledger;
use crate::runtime::stop::StopSignal;
use crate::scheduler::failure::{DropListener, FailureAction, FailureBudget, Failures};
use crate::source::random::stage_number;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use queue::{AnyQueue, Queue};
use worker_pool::WorkerPool;

/// At most this many errors of background tasks are recorded.
const MAX_BACKGROUND_ERRORS: usize = 100;

/// A stage that workers run.
pub(crate) trait Node: Send + Sync {
    /// Whether [`run`](Node::run) would probably find work. Cheap; the answer may be outdated.
    fn ready(&self) -> bool;
    /// Processes one group of items or one end of an epoch. Returns false if there was nothing to
    /// do.
    fn run(&self, pool: &Arc<WorkerPool>) -> bool;
    /// What the stage does; may be outdated.
    fn activity(&self) -> Activity;
    /// Drops idle instances. Called on the worker threads that end after the pipeline was stopped.
    fn drop_instances(&self);
}

/// Returns the times of threads of the program so far.
pub(crate) type ExternalTimesReader = Box<dyn Fn() -> ExternalTimes + Send + Sync>;

/// State of a run that all parts of a pipeline share.
pub(crate) struct RunContext {
    /// Number of the pipeline in this process.
    pub(crate) number: u64,
    pub(crate) seed: u64,
    pub(crate) failures: Failures,
    pub(crate) consumer: ConsumerMeter,
    pub(crate) buffers: BufferPool,
    pub(crate) budget: OnceLock<Arc<Budget>>,
    /// Outcomes of all samples. Only for a pipeline with one source.
    pub(crate) ledger: OnceLock<Arc<Ledger>>,
    /// Samples that were left out, for example of an incomplete last batch.
    pub(crate) left_out: AtomicU64,
    /// Worker threads of the shared pool.
    pub(crate) threads: AtomicUsize,
    /// CPUs that this process may use.
    cpus: usize,
    /// Whether the pipeline was stopped.
    pub(crate) stop_signal: Arc<StopSignal>,
    /// CPU time of the threads that the pools have started.
    pub(crate) worker_times: ThreadTimes,
    /// Returns the times of threads of the program that run stages.
    pub(crate) external_times: OnceLock<ExternalTimesReader>,
    started_at: OnceLock<Instant>,
    ended_at: OnceLock<Instant>,
    /// From source to consumer.
    queues: Mutex<Vec<Arc<dyn AnyQueue>>>,
    meters: Mutex<Vec<Arc<StageMeter>>>,
    background_errors: Mutex<Vec<Error>>,
    /// The changes of settings that the tuner has tried.
    pub(crate) decisions: Mutex<Vec<TuningDecision>>,
    pub(crate) setting_names: SettingNames,
}

impl RunContext {
    pub(crate) fn new(
        seed: u64,
        threads: usize,
        listeners: Vec<DropListener>,
        buffers: BufferPool,
    ) -> Self {
        RunContext {
            number: crate::observe::hooks::next_pipeline(),
            seed,
            failures: Failures::new(listeners),
            consumer: ConsumerMeter::default(),
            buffers,
            budget: OnceLock::new(),
            ledger: OnceLock::new(),
            left_out: AtomicU64::new(0),
            threads: AtomicUsize::new(threads),
            cpus: crate::memory::machine::usable_cpus(),
            stop_signal: Arc::new(StopSignal::new()),
            worker_times: ThreadTimes::default(),
            external_times: OnceLock::new(),
            started_at: OnceLock::new(),
            ended_at: OnceLock::new(),
            queues: Mutex::new(Vec::new()),
            meters: Mutex::new(Vec::new()),
            background_errors: Mutex::new(Vec::new()),
            decisions: Mutex::new(Vec::new()),
            setting_names: SettingNames::default(),
        }
    }

    pub(crate) fn add(&self, meter: Arc<StageMeter>, queue: Arc<dyn AnyQueue>) {
        self.meters.lock().push(meter);
        self.queues.lock().push(queue);
    }

    /// Whether the pipeline was stopped.
    pub(crate) fn stopped(&self) -> bool {
        self.stop_signal.is_stopped()
    }

    /// Records an error that belongs to no stage, and shuts all queues, which cancels all work.
    pub(crate) fn raise(&self, error: Error) {
        self.failures.raise(error);
        self.shut_queues();
    }

    /// Stops the pipeline: cancels all work and wakes all waiting threads and tasks.
    pub(crate) fn stop(&self) {
        self.stop_signal.stop();
        self.shut_queues();
        self.mark_end();
    }

    /// Runs a background task, and records its error.
    pub(crate) async fn beside(&self, name: Arc<str>, task: BoxFuture<'static, Result<()>>) {
        let task = AssertUnwindSafe(task).catch_unwind();
        let ended = self.stop_signal.while_running(task).await;
        let result = ended.map(|ended| ended.unwrap_or_else(|payload| Err(panicked(payload))));
        if let Some(Err(error)) = result {
            let mut errors = self.background_errors.lock();
            if errors.len() < MAX_BACKGROUND_ERRORS {
                errors.push(error.with_stage(name));
            }
        }
    }

    pub(crate) fn background_errors(&self) -> Vec<Error> {
        self.background_errors.lock().clone()
    }

    fn shut_queues(&self) {
        let queues = self.queues.lock().clone();
        queues.iter().for_each(|queue| queue.shut());
        if let Some(budget) = self.budget.get() {
            budget.wake_all();
        }
    }

    pub(crate) fn mark_start(&self) {
        self.started_at.get_or_init(Instant::now);
        for queue in self.queues.lock().iter() {
            queue.start_meter();
        }
    }

    pub(crate) fn mark_end(&self) {
        self.ended_at.get_or_init(Instant::now);
    }

    /// Time since the start, until now or the end.
    pub(crate) fn elapsed(&self) -> Duration {
        let end = || self.ended_at.get().copied().unwrap_or_else(Instant::now);
        self.started_at.get().map_or(Duration::ZERO, |start| end().duration_since(*start))
    }

    pub(crate) fn meters(&self) -> Vec<Arc<StageMeter>> {
        self.meters.lock().clone()
    }

    pub(crate) fn meter(&self, stage: &str) -> Option<Arc<StageMeter>> {
        self.meters.lock().iter().find(|meter| &*meter.name == stage).cloned()
    }

    /// The queue after a stage.
    pub(crate) fn queue_after(&self, stage: &str) -> Option<Arc<dyn AnyQueue>> {
        let at = self.meters.lock().iter().position(|meter| &*meter.name == stage)?;
        self.queues.lock().get(at).cloned()
    }

    /// The progress of each stage, or `None` if the consumer does not wait for an item.
    pub(crate) fn progress_while_waiting(&self) -> Option<Vec<StageProgress>> {
        if self.stopped() || !self.queues.lock().last().is_some_and(|last| last.is_awaited()) {
            return None;
        }
        Some(self.meters.lock().iter().map(|meter| meter.progress()).collect())
    }

    /// A snapshot of all counters; two snapshots can be subtracted.
    pub(crate) fn raw(&self) -> RawSnapshot {
        let external = self.external_times();
        RawSnapshot {
            pipeline: self.number,
            elapsed: self.elapsed(),
            threads: self.threads.load(Ordering::Relaxed),
            cpus: self.cpus,
            workers: self.all_worker_times(&external),
            event_loop: external.event_loop,
            gil: external.gil,
            stages: self.meters.lock().iter().map(|meter| meter.raw()).collect(),
            queues: self.queues.lock().iter().map(|queue| queue.raw()).collect(),
            consumer: self.consumer.raw(),
            memory: self.memory(),
            dropped: self.failures.dropped_total(),
            left_out: self.left_out.load(Ordering::Relaxed),
            setting_names: self.setting_names.clone(),
        }
    }

    fn external_times(&self) -> ExternalTimes {
        self.external_times.get().map(|read| read()).unwrap_or_default()
    }

    fn all_worker_times(&self, external: &ExternalTimes) -> Option<WorkerTimes> {
        self.worker_times.read().into_iter().chain(external.workers).reduce(WorkerTimes::plus)
    }

    fn memory(&self) -> MemoryStatistics {
        self.budget.get().map(|budget| budget.statistics()).unwrap_or_default()
    }

    pub(crate) fn statistics(&self) -> crate::observe::statistics::Statistics {
        let (dropped, dropped_counts) = self.failures.dropped();
        let external = self.external_times();
        let meters = self.meters();
        let stages: Vec<_> = meters.iter().map(|meter| meter.snapshot()).collect();
        let slow: Vec<_> = meters.iter().map(|meter| meter.slowest.items()).collect();
        let workers = self.all_worker_times(&external);
        crate::observe::statistics::Statistics {
            pipeline: self.number,
            elapsed: self.elapsed(),
            threads: self.threads.load(Ordering::Relaxed),
            cpus: self.cpus,
            workers,
            gil: external.gil.map(|gil| gil.statistics()),
            event_loop: external.event_loop,
            slowest: slowest::slowest(&stages, &slow, workers),
            stages,
            queues: self.queues.lock().iter().map(|queue| queue.raw().statistics()).collect(),
            consumer: self.consumer.snapshot(),
            buffers: self.buffers.statistics(),
            dropped,
            dropped_total: self.failures.dropped_total(),
            dropped_counts,
            left_out: self.left_out.load(Ordering::Relaxed),
            memory: self.memory(),
            decisions: self.decisions.lock().clone(),
            setting_names: self.setting_names.clone(),
        }
    }
}

/// State that stages of all kinds have.
pub(crate) struct StageCore {
    pub(crate) shared: Arc<RunContext>,
    pub(crate) meter: Arc<StageMeter>,
    /// Name in random numbers and checkpoint states.
    pub(crate) identity: Arc<str>,
    /// Hash of the identity, for random numbers.
    pub(crate) number: u64,
    pub(crate) failure_budget: Arc<FailureBudget>,
    tried_here: AtomicU64,
    /// Present if outputs are counted in the memory budget.
    pub(crate) measure: Option<OutputEstimate>,
    /// Whether the stage precedes a merge that chooses its branches.
    pub(crate) is_unmerged: bool,
}

/// Position of a node in the graph.
#[derive(Clone, Debug)]
pub(crate) struct GraphPosition {
    /// Distance from the source. Final once the whole pipeline is built.
    depth: Arc<AtomicUsize>,
    /// The branches that contain the node, from the outermost to the innermost.
    branches: Arc<[Branch]>,
}

/// One branch of a merge or a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    /// Number of the merge or route in the pipeline.
    pub(crate) joint: usize,
    /// Number of the branch.
    pub(crate) index: usize,
}

impl GraphPosition {
    pub(crate) fn new(depth: usize, branches: &[Branch]) -> Self {
        GraphPosition { depth: Arc::new(AtomicUsize::new(depth)), branches: branches.into() }
    }

    pub(crate) fn lower(&self, by: usize) {
        self.depth.fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn depth(&self) -> usize {
        self.depth.load(Ordering::Relaxed)
    }

    /// Whether `other` is downstream: nearer to the consumer, and not on another branch of a merge.
    pub(crate) fn is_before(&self, other: &GraphPosition) -> bool {
        let mut both = self.branches.iter().zip(&*other.branches);
        let apart = both.find(|(own, others)| own != others);
        self.depth() < other.depth() && apart.is_none_or(|(own, other)| own.joint != other.joint)
    }
}

/// Estimate of the size of a stage's outputs, for reservations in the memory budget.
pub(crate) struct OutputEstimate {
    pub(crate) level: usize,
    /// The largest recent output in bytes, with exponential decay. Because of the decay, one large
    /// output does not increase the reservations of all later outputs.
    largest: AtomicUsize,
}

/// The first estimate of an output's size in bytes, if the stage does not declare it.
const FIRST_ESTIMATE: usize = 1 << 16;

/// Each output decays the estimate by 1/16.
const DECAY: usize = 16;

/// Calls the caller's function for the bytes of an item.
pub(crate) fn size_of_item<T>(sizer: &cpu_node::Sizer<T>, item: &T) -> Result<usize> {
    guarded(|| Ok(sizer(item))).0
}

impl OutputEstimate {
    pub(crate) fn new(level: usize) -> Self {
        OutputEstimate { level, largest: AtomicUsize::new(FIRST_ESTIMATE) }
    }

    /// The number of bytes to reserve for an output: declared by the stage, or the estimate.
    pub(crate) fn need(&self, declared: Option<usize>, budget: &Budget) -> usize {
        declared.unwrap_or_else(|| self.largest.load(Ordering::Relaxed).min(budget.headroom()))
    }

    /// Splits a reservation for an output of `bytes` off from `reserved`. If `reserved` is smaller
    /// than `bytes`, it grows even beyond the budget, because the memory is already allocated.
    pub(crate) fn reservation(&self, reserved: &mut Reservation, bytes: usize) -> Reservation {
        // Concurrent updates may overwrite each other, which an estimate tolerates.
        let largest = self.largest.load(Ordering::Relaxed);
        let decayed = largest - largest / DECAY;
        self.largest.store(decayed.max(bytes), Ordering::Relaxed);
        if reserved.bytes() < bytes {
            reserved.resize(bytes);
        }
        reserved.split(bytes)
    }
}

impl StageCore {
    pub(crate) fn new(
        shared: &Arc<RunContext>,
        name: &Arc<str>,
        kind: StageKind,
        concurrency: usize,
        failure_budget: Arc<FailureBudget>,
        measure: Option<OutputEstimate>,
    ) -> Self {
        StageCore {
            shared: Arc::clone(shared),
            meter: Arc::new(StageMeter::new(Arc::clone(name), kind, concurrency)),
            identity: Arc::clone(name),
            number: stage_number(name),
            failure_budget,
            tried_here: AtomicU64::new(0),
            measure,
            is_unmerged: false,
        }
    }

    /// Sets whether the stage precedes a merge that chooses its branches.
    pub(crate) fn unmerged(self, is_unmerged: bool) -> Self {
        StageCore { is_unmerged, ..self }
    }

    /// Sets the name in random numbers and checkpoint states.
    pub(crate) fn identified(self, identity: &Arc<str>) -> Self {
        StageCore { number: stage_number(identity), identity: Arc::clone(identity), ..self }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.meter.name
    }

    /// How many items the stage may process concurrently; 0 pauses the stage.
    pub(crate) fn concurrency(&self) -> usize {
        self.meter.concurrency.load(Ordering::Relaxed)
    }

    /// The size estimate and the memory budget, if the stage is measured.
    pub(crate) fn measured(&self) -> Option<(&OutputEstimate, &Arc<Budget>)> {
        Some((self.measure.as_ref()?, self.shared.budget.get()?))
    }

    /// A new instance of the stage. If its factory or a hook fails, the stage ends.
    pub(crate) fn make<In, S>(
        &self,
        hooks: &Hooks,
        factory: &cpu_node::Factory<S>,
        input: &Queue<In>,
    ) -> Option<S> {
        let made = guarded(|| {
            hooks.started_once()?;
            factory()
        });
        made.0
            .map_err(|error| {
                self.raise(error);
                input.shut();
            })
            .ok()
    }

    /// Counts tried items, for a failure policy that limits the share of failed items.
    pub(crate) fn tried(&self, items: u64) {
        if self.failure_budget.is_share() {
            let before = self.tried_here.fetch_add(items, Ordering::Relaxed);
            self.failure_budget.tried(before + items);
        }
    }

    /// Counts `items` that were tried in `time`, of which `failures` failed.
    pub(crate) fn record(&self, items: u64, failures: u64, time: Duration) {
        self.tried(items);
        self.meter.record(items, failures, time);
    }

    /// Applies the stage's failure policy to a failed item. After `Halt`, shut the input queue.
    pub(crate) fn item_failed(&self, header: &ItemHeader, error: Error) -> FailureAction {
        if error.kind() == ErrorKind::Stopped && self.shared.stopped() {
            // Work that the shutdown interrupted did not fail.
            return FailureAction::Halt;
        }
        self.shared.failures.item_failed(&self.failure_budget, self.name(), header, error)
    }

    /// Records the outcome of pieces of samples in the ledger.
    pub(crate) fn gone(&self, pieces: impl IntoIterator<Item = LineageNode>, outcome: Outcome) {
        if let Some(ledger) = self.shared.ledger.get() {
            pieces.into_iter().for_each(|piece| match self.is_unmerged {
                true => ledger.record_unmerged(&piece, outcome),
                false => ledger.record_end(&piece, outcome),
            });
        }
    }

    /// Whether this item ended in an earlier run of the program, alone or as part of an aggregate. If
    /// so, the caller drops the item.
    pub(crate) fn passes_over(&self, header: &ItemHeader) -> bool {
        self.shared.ledger.get().is_some_and(|ledger| ledger.ended_before(header))
    }

    /// Records a failure that belongs to no item. The caller then shuts the input queue.
    pub(crate) fn raise(&self, error: Error) {
        if !self.shared.stopped() {
            self.shared.failures.raise(error.with_stage(Arc::clone(self.name())));
        }
    }

    /// Ends the stage before its output queue is closed. Calls hooks, and checks the share of
    /// failed items for the last time.
    pub(crate) fn end(&self, hooks: &Hooks) {
        if let Err(error) = hooks.ended() {
            self.raise(error);
        }
        if !self.shared.failures.is_fatal()
            && let Some(error) = self.failure_budget.end()
        {
            self.raise(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Branch, GraphPosition, OutputEstimate};
    use crate::memory::budget::Budget;

    #[test]
    fn the_estimate_forgets_one_large_output_among_small_ones() {
        const MIB: usize = 1 << 20;
        let budget = Budget::new(1 << 30, None, 1).unwrap();
        let measure = OutputEstimate::new(0);
        let made = |bytes| {
            let mut reserved = budget.try_reserve(0, bytes).unwrap().unwrap();
            drop(measure.reservation(&mut reserved, bytes));
            measure.need(None, &budget)
        };
        assert_eq!(made(100 * MIB), 100 * MIB);
        // The estimate does not fall immediately, because more large outputs may follow.
        assert!(made(MIB) > 90 * MIB);
        let after = (1..).find(|_| made(MIB) == MIB).unwrap();
        assert!((50..100).contains(&after), "{after}");
    }

    #[test]
    fn nodes_on_different_branches_are_not_downstream_of_each_other() {
        let at = |depth, branches: &[(usize, usize)]| {
            let branches: Vec<_> =
                branches.iter().map(|&(joint, index)| Branch { joint, index }).collect();
            GraphPosition::new(depth, &branches)
        };
        let (source, sink) = (at(0, &[]), at(9, &[]));
        let (left, right) = (at(3, &[(1, 0)]), at(4, &[(1, 1)]));
        let (inner, other) = (at(5, &[(1, 0), (2, 0)]), at(6, &[(1, 0), (2, 1)]));
        let next_route = at(7, &[(1, 0), (3, 1)]);
        let before = [
            (&source, &sink),
            (&source, &inner),
            (&left, &sink),
            (&left, &inner),
            (&inner, &next_route),
            (&inner, &sink),
        ];
        for (from, to) in before {
            assert!(from.is_before(to) && !to.is_before(from), "{from:?} to {to:?}");
        }
        for (from, to) in [(&left, &right), (&right, &inner), (&inner, &other), (&left, &left)] {
            assert!(!from.is_before(to) && !to.is_before(from), "{from:?} and {to:?}");
        }
    }
}
