//! The scheduler: one pool of workers for all stages that compute, nearest to the consumer first.
//!
//! ```text
//!            runtime (source, async stages)              CPU pool (stages, fills)
//! source ──► [queue] ──► async stage ──► [queue] ──► stage ──► [queue] ──► fill ──► [queue] ──► consumer
//! ```
//!
//! **CPU stages are nodes.** A free worker walks the nodes from the consumer towards the source and
//! runs the first one that is ready: it has input, room for output, and fewer than `concurrency`
//! instances at work. So finished work drains first, memory stays low, and concurrency needs no
//! tuning. A worker that finds nothing sleeps on the [`Signal`](signal::Signal) until a queue
//! changes; nothing polls. A stage with threads of its own, or on a pool of the caller's, has a
//! [`WorkerPool`](worker pool::WorkerPool) of its own; else all are in one.
//!
//! **Nothing that was started can be stuck.** A node reserves room for its result before it takes
//! its input. A stage that makes more items than that waits inside `emit`, but its worker does the
//! work of the nodes behind it meanwhile, and they depend on nothing in front of them.
//!
//! **Waiting stages are tasks** on a [`Runtime`](crate::Runtime): one driver per stage owns all its
//! futures in flight, so an item costs neither a thread nor a spawn. Where ways part or join
//! ([`merge_node`], [`route_node`]) there is a task as well.
//!
//! **The end of an epoch** travels through the queues behind its last item. A node hands it on
//! when everything in front of it has gone on, so epochs never mix.
//!
//! **The end.** It travels both ways. A queue is *closed* when its producer has finished; that
//! travels down, and what is under way is still finished. A queue is *shut* when nobody wants what
//! would come; that travels up, and what is under way is dropped. A failure that the policy does
//! not allow shuts the queue in front of its stage and so cancels what is upstream, while the
//! consumer still gets what is behind. `stop` shuts all queues at once, which wakes all who wait.
//! Failures are recorded before queues change, so a consumer that sees the end knows whether it was
//! one.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};
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
mod window;
pub(crate) mod worker_pool;

use crate::error::{Error, ErrorKind, Result, guarded, panicked};
use crate::item::ItemHeader;
use crate::item::lineage::{LineageNode, Outcome};
use crate::memory::budget::{Budget, MemoryStatistics, Reservation};
use crate::memory::buffer::BufferPool;
use crate::observe::hooks::Hooks;
use crate::observe::interval::RawSnapshot;
use crate::observe::statistics::{ConsumerMeter, StageKind, StageMeter};
use crate::resume::ledger::Ledger;
use crate::scheduler::failure::{DropListener, Failures, Tolerance, Verdict};
use crate::source::random::stage_number;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use queue::{AnyQueue, Queue};
use worker_pool::WorkerPool;

/// How many errors of tasks beside the pipeline are kept.
const MOST_BACKGROUND_ERRORS: usize = 100;

/// A stage that workers run.
pub(crate) trait Node: Send + Sync {
    /// Whether [`run`](Node::run) would probably find work. Cheap, and may be wrong for a moment.
    fn ready(&self) -> bool;
    /// Does a piece of work, where there is one.
    fn run(&self, pool: &Arc<WorkerPool>) -> bool;
    /// Drops the instances that nobody works with: where they were made, by a worker that leaves.
    fn drop_instances(&self);
}

/// What all parts of a pipeline share.
pub(crate) struct RunContext {
    /// Counts the pipelines of this process.
    pub(crate) number: u64,
    pub(crate) seed: u64,
    pub(crate) failures: Failures,
    pub(crate) consumer: ConsumerMeter,
    pub(crate) buffers: BufferPool,
    pub(crate) budget: OnceLock<Arc<Budget>>,
    /// What became of every sample, where there is one source.
    pub(crate) ledger: OnceLock<Arc<Ledger>>,
    /// Samples that were neither delivered nor dropped: in short batches that were not wanted, say.
    pub(crate) left_out: AtomicU64,
    /// Worker threads of the shared pool.
    pub(crate) threads: AtomicUsize,
    /// CPUs that this process may use.
    cpus: usize,
    stopped: AtomicBool,
    started_at: OnceLock<Instant>,
    ended_at: OnceLock<Instant>,
    /// From source to consumer.
    queues: Mutex<Vec<Arc<dyn AnyQueue>>>,
    meters: Mutex<Vec<Arc<StageMeter>>>,
    background_errors: Mutex<Vec<Error>>,
    /// Tasks that run until the pipeline stops, by number.
    until_stopped: Mutex<BTreeMap<u64, Waker>>,
    tasks_beside: AtomicU64,
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
            stopped: AtomicBool::new(false),
            started_at: OnceLock::new(),
            ended_at: OnceLock::new(),
            queues: Mutex::new(Vec::new()),
            meters: Mutex::new(Vec::new()),
            background_errors: Mutex::new(Vec::new()),
            until_stopped: Mutex::new(BTreeMap::new()),
            tasks_beside: AtomicU64::new(0),
        }
    }

    pub(crate) fn add(&self, meter: Arc<StageMeter>, queue: Arc<dyn AnyQueue>) {
        self.meters.lock().push(meter);
        self.queues.lock().push(queue);
    }

    /// Whether nobody wants results any more.
    pub(crate) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Records an error and cancels all work: for failures that belong to no stage.
    pub(crate) fn raise(&self, error: Error) {
        self.failures.raise(error);
        self.shut_queues();
    }

    /// Ends all work because nobody wants the results.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.shut_queues();
        self.mark_end();
        let waiting = std::mem::take(&mut *self.until_stopped.lock());
        waiting.into_values().for_each(Waker::wake);
    }

    /// Polls `task` until it or the pipeline ends. `None` where the pipeline ended first.
    pub(crate) async fn while_running<R>(&self, task: impl Future<Output = R>) -> Option<R> {
        let number = self.tasks_beside.fetch_add(1, Ordering::Relaxed);
        let mut task = pin!(task);
        let ended = poll_fn(|cx| {
            self.until_stopped.lock().insert(number, cx.waker().clone());
            if self.stopped() {
                return Poll::Ready(None);
            }
            task.as_mut().poll(cx).map(Some)
        })
        .await;
        self.until_stopped.lock().remove(&number);
        ended
    }

    /// Runs a task beside the pipeline.
    pub(crate) async fn beside(&self, name: Arc<str>, task: BoxFuture<'static, Result<()>>) {
        let task = AssertUnwindSafe(task).catch_unwind();
        let ended = self.while_running(task).await;
        let result = ended.map(|ended| ended.unwrap_or_else(|payload| Err(panicked(payload))));
        if let Some(Err(error)) = result {
            let mut errors = self.background_errors.lock();
            if errors.len() < MOST_BACKGROUND_ERRORS {
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

    /// The counters, as they can be subtracted from each other.
    pub(crate) fn raw(&self) -> RawSnapshot {
        RawSnapshot {
            pipeline: self.number,
            elapsed: self.elapsed(),
            threads: self.threads.load(Ordering::Relaxed),
            cpus: self.cpus,
            stages: self.meters.lock().iter().map(|meter| meter.raw()).collect(),
            queues: self.queues.lock().iter().map(|queue| queue.raw()).collect(),
            consumer: self.consumer.raw(),
            memory: self.memory(),
            dropped: self.failures.dropped_total(),
            left_out: self.left_out.load(Ordering::Relaxed),
        }
    }

    fn memory(&self) -> MemoryStatistics {
        self.budget.get().map(|budget| budget.statistics()).unwrap_or_default()
    }

    pub(crate) fn statistics(&self) -> crate::observe::statistics::Statistics {
        let (dropped, dropped_total) = self.failures.dropped();
        crate::observe::statistics::Statistics {
            pipeline: self.number,
            elapsed: self.elapsed(),
            threads: self.threads.load(Ordering::Relaxed),
            cpus: self.cpus,
            stages: self.meters.lock().iter().map(|meter| meter.snapshot()).collect(),
            queues: self.queues.lock().iter().map(|queue| queue.raw().statistics()).collect(),
            consumer: self.consumer.snapshot(),
            buffers: self.buffers.statistics(),
            dropped,
            dropped_total,
            left_out: self.left_out.load(Ordering::Relaxed),
            memory: self.memory(),
        }
    }
}

/// What every stage has, whatever kind it is.
pub(crate) struct StageCore {
    pub(crate) shared: Arc<RunContext>,
    pub(crate) meter: Arc<StageMeter>,
    /// The stage's name as a number, for its random numbers.
    pub(crate) number: u64,
    pub(crate) tolerance: Arc<Tolerance>,
    tried_here: AtomicU64,
    /// Present where outputs are counted in the memory budget.
    pub(crate) measure: Option<OutputEstimate>,
}

/// Where a node is in the graph.
#[derive(Clone, Debug)]
pub(crate) struct GraphPosition {
    /// How far from the source. Known for good once the whole pipeline is built.
    depth: Arc<AtomicUsize>,
    /// The branches it is on, from the outermost to the innermost.
    branches: Arc<[Branch]>,
}

/// One of the branches that join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Branch {
    /// Which of the joints of the pipeline.
    pub(crate) joint: usize,
    /// Which of its branches.
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

    /// Whether what this node makes may get there: not if that is on another branch of a joint.
    pub(crate) fn is_before(&self, other: &GraphPosition) -> bool {
        let mut both = self.branches.iter().zip(&*other.branches);
        let apart = both.find(|(own, others)| own != others);
        self.depth() < other.depth() && apart.is_none_or(|(own, other)| own.joint != other.joint)
    }
}

/// How a stage counts its outputs in the memory budget.
pub(crate) struct OutputEstimate {
    pub(crate) level: usize,
    /// The most that the last outputs have held, and less for what was long ago: the estimate for
    /// those to come. One large output among small ones must not hold them back for ever.
    largest: AtomicUsize,
}

/// The first estimate of an output's size, where the stage does not say.
const FIRST_ESTIMATE: usize = 1 << 16;

/// Of the estimate, such a part is forgotten with every output.
const FORGOTTEN: usize = 16;

/// Asks the caller's function for the bytes of an item.
pub(crate) fn size_of_item<T>(sizer: &cpu_node::Sizer<T>, item: &T) -> Result<usize> {
    guarded(|| Ok(sizer(item))).0
}

impl OutputEstimate {
    pub(crate) fn new(level: usize) -> Self {
        OutputEstimate { level, largest: AtomicUsize::new(FIRST_ESTIMATE) }
    }

    /// What to reserve for an output of which the stage says this much.
    pub(crate) fn need(&self, declared: Option<usize>, budget: &Budget) -> usize {
        declared.unwrap_or_else(|| self.largest.load(Ordering::Relaxed).min(budget.headroom()))
    }

    /// The reservation of an output of `bytes`, cut from what was reserved. Where that is not enough, it
    /// grows: the memory is there already.
    pub(crate) fn reservation(&self, reserved: &mut Reservation, bytes: usize) -> Reservation {
        // Where two do this at once, one of them may be lost: it is an estimate.
        let largest = self.largest.load(Ordering::Relaxed);
        let remembered = largest - largest / FORGOTTEN;
        self.largest.store(remembered.max(bytes), Ordering::Relaxed);
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
        tolerance: Arc<Tolerance>,
        measure: Option<OutputEstimate>,
    ) -> Self {
        StageCore {
            shared: Arc::clone(shared),
            meter: Arc::new(StageMeter::new(Arc::clone(name), kind, concurrency)),
            number: stage_number(name),
            tolerance,
            tried_here: AtomicU64::new(0),
            measure,
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.meter.name
    }

    /// How many items the stage may work on at once; 0 holds it back.
    pub(crate) fn concurrency(&self) -> usize {
        self.meter.concurrency.load(Ordering::Relaxed)
    }

    /// The budget and how to count in it, where this stage does.
    pub(crate) fn measured(&self) -> Option<(&OutputEstimate, &Arc<Budget>)> {
        Some((self.measure.as_ref()?, self.shared.budget.get()?))
    }

    /// A new instance of the stage; where its factory, or a hook, fails, the stage ends.
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

    /// Counts items that were tried, for a budget that is a share of them.
    pub(crate) fn tried(&self, items: u64) {
        if self.tolerance.judges_share() {
            let before = self.tried_here.fetch_add(items, Ordering::Relaxed);
            self.tolerance.tried(before + items);
        }
    }

    /// Counts items that were tried in `time`, `failures` of them in vain.
    pub(crate) fn record(&self, items: u64, failures: u64, time: Duration) {
        self.tried(items);
        self.meter.record(items, failures, time);
    }

    /// Applies the stage's policy to an item that failed. After `Halt`, shut the queue in front.
    pub(crate) fn item_failed(&self, header: &ItemHeader, error: Error) -> Verdict {
        if error.kind() == ErrorKind::Stopped && self.shared.stopped() {
            // Work that was cut short by the end is no failure of its own.
            return Verdict::Halt;
        }
        self.shared.failures.item_failed(&self.tolerance, self.name(), header, error)
    }

    /// Says that pieces of samples have come to an end.
    pub(crate) fn gone(&self, pieces: impl IntoIterator<Item = LineageNode>, outcome: Outcome) {
        if let Some(ledger) = self.shared.ledger.get() {
            pieces.into_iter().for_each(|piece| ledger.gone(&piece, outcome));
        }
    }

    /// Whether an item that would now go into something else has done so in an earlier run: it
    /// goes no further then.
    pub(crate) fn passes_over(&self, header: &ItemHeader) -> bool {
        self.shared.ledger.get().is_some_and(|ledger| ledger.passes(header))
    }

    /// Records a failure that belongs to no item. Shut the queue in front after it.
    pub(crate) fn raise(&self, error: Error) {
        if !self.shared.stopped() {
            self.shared.failures.raise(error.with_stage(Arc::clone(self.name())));
        }
    }

    /// The end of the stage, before its queue is closed: hooks, and the last judgement on the share
    /// of items that failed.
    pub(crate) fn end(&self, hooks: &Hooks) {
        if let Err(error) = hooks.ended() {
            self.raise(error);
        }
        if let Some(why) = self.tolerance.share_exceeded()
            && !self.shared.failures.is_fatal()
        {
            self.raise(Error::new(ErrorKind::LimitExceeded, why));
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
        // Not at once: there may be more of them.
        assert!(made(MIB) > 90 * MIB);
        let after = (1..).find(|_| made(MIB) == MIB).unwrap();
        assert!((50..100).contains(&after), "{after}");
    }

    #[test]
    fn what_is_on_another_branch_is_not_behind_a_node() {
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
