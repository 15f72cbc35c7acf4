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
//! changes; nothing polls.
//!
//! **Nothing that was started can be stuck.** A node reserves room for its result before it takes
//! its input. A stage that makes more items than that waits inside `emit`, but its worker does the
//! work of the nodes behind it meanwhile, and they depend on nothing in front of them.
//!
//! **Waiting stages are tasks** on a [`Runtime`](crate::Runtime): one driver per stage owns all its
//! futures in flight, so an item costs neither a thread nor a spawn.
//!
//! **The end.** A queue is closed when its producer has finished, and the end travels down.
//! A failure that the policy does not allow, and `stop`, shut every queue at once: that wakes all
//! who wait, and what still arrives is dropped. Failures are recorded before queues are shut, so a
//! consumer that sees the end knows whether it was one.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub(crate) mod assembly;
pub(crate) mod async_node;
pub(crate) mod cpu_node;
pub(crate) mod fill_node;
#[cfg(all(test, spdl_loom))]
mod loom_models;
pub(crate) mod queue;
pub(crate) mod reorder;
pub(crate) mod signal;
pub(crate) mod source_node;

use crate::Error;
use crate::buffer::BufferPool;
use crate::failure::{Failures, OnError, Verdict};
use crate::random::stage_number;
use crate::sample::Envelope;
use crate::statistics::{ConsumerMeter, StageKind, StageMeter};
use crate::sync::Mutex;
use queue::AnyQueue;
use signal::{Interest, Signal};

/// A stage on the CPU pool.
pub(crate) trait Node: Send + Sync {
    /// Whether [`run`](Node::run) would probably find work. Cheap, and may be wrong for a moment.
    fn ready(&self) -> bool;
    /// Does a piece of work, where there is one.
    fn run(&self, scheduler: &Scheduler) -> bool;
}

/// What all parts of a pipeline share.
pub(crate) struct Shared {
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    pub(crate) signal: Arc<Signal>,
    pub(crate) failures: Failures,
    pub(crate) consumer: ConsumerMeter,
    pub(crate) buffers: BufferPool,
    /// Samples in short batches that were not wanted.
    pub(crate) left_out: AtomicU64,
    stopped: AtomicBool,
    started_at: OnceLock<Instant>,
    ended_at: OnceLock<Instant>,
    /// From source to consumer.
    queues: Mutex<Vec<Arc<dyn AnyQueue>>>,
    meters: Mutex<Vec<Arc<StageMeter>>>,
}

impl Shared {
    pub(crate) fn new(seed: u64, threads: usize) -> Self {
        Shared {
            seed,
            threads,
            signal: Arc::new(Signal::new()),
            failures: Failures::default(),
            consumer: ConsumerMeter::default(),
            buffers: BufferPool::new(),
            left_out: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            started_at: OnceLock::new(),
            ended_at: OnceLock::new(),
            queues: Mutex::new(Vec::new()),
            meters: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn add(&self, meter: Arc<StageMeter>, queue: Arc<dyn AnyQueue>) {
        self.meters.lock().push(meter);
        self.queues.lock().push(queue);
    }

    /// Whether work should end at once.
    pub(crate) fn ended(&self) -> bool {
        self.stopped.load(Ordering::SeqCst) || self.failures.halted()
    }

    /// Ends all work because of a failure that has been recorded. What the consumer could already
    /// take stays.
    pub(crate) fn halt(&self) {
        self.shut_queues(true);
    }

    /// Records an error and ends all work.
    pub(crate) fn raise(&self, error: Error) {
        self.failures.raise(error);
        self.halt();
    }

    /// Ends all work because nobody wants the results.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.shut_queues(false);
        self.mark_end();
    }

    fn shut_queues(&self, keep_last: bool) {
        let queues = self.queues.lock().clone();
        for (at, queue) in queues.iter().enumerate() {
            queue.shut(keep_last && at + 1 == queues.len());
        }
        self.signal.wake_all();
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

    pub(crate) fn statistics(&self) -> crate::Statistics {
        let (dropped, dropped_total) = self.failures.dropped();
        crate::Statistics {
            elapsed: self.elapsed(),
            threads: self.threads,
            stages: self.meters.lock().iter().map(|meter| meter.snapshot()).collect(),
            queues: self.queues.lock().iter().map(|queue| queue.statistics()).collect(),
            consumer: self.consumer.snapshot(),
            buffers: self.buffers.statistics(),
            dropped,
            dropped_total,
            left_out: self.left_out.load(Ordering::Relaxed),
        }
    }
}

/// What every stage has, whatever kind it is.
pub(crate) struct StageCore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) meter: Arc<StageMeter>,
    /// The stage's name as a number, for its random numbers.
    pub(crate) number: u64,
    policy: OnError,
    dropped_here: AtomicU64,
}

impl StageCore {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        name: &Arc<str>,
        kind: StageKind,
        concurrency: usize,
        policy: OnError,
    ) -> Self {
        StageCore {
            shared: Arc::clone(shared),
            meter: Arc::new(StageMeter::new(Arc::clone(name), kind, concurrency)),
            number: stage_number(name),
            policy,
            dropped_here: AtomicU64::new(0),
        }
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.meter.name
    }

    /// How many items the stage may work on at once.
    pub(crate) fn concurrency(&self) -> usize {
        self.meter.concurrency.load(Ordering::Relaxed).max(1)
    }

    /// Applies the stage's policy to an item that failed.
    pub(crate) fn item_failed<T>(&self, item: &Envelope<T>, error: Error) -> Verdict {
        if self.shared.ended() {
            // Work that was cut short by the end is no failure of its own.
            return Verdict::Halt;
        }
        let verdict = self.shared.failures.item_failed(
            self.policy,
            &self.dropped_here,
            self.name(),
            item.id,
            item.key.as_ref(),
            error,
        );
        if verdict == Verdict::Halt {
            self.shared.halt();
        }
        verdict
    }

    /// Ends the pipeline for a failure that belongs to no item.
    pub(crate) fn raise(&self, error: Error) {
        if !self.shared.ended() {
            self.shared.raise(error.with_stage(Arc::clone(self.name())));
        }
    }
}

/// Runs user code; a panic becomes an error.
pub(crate) fn guarded<R>(work: impl FnOnce() -> crate::Result<R>) -> (crate::Result<R>, bool) {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => (result, false),
        Err(payload) => {
            let payload: Box<dyn Any + Send> = payload;
            (Err(crate::failure::panicked(payload)), true)
        }
    }
}

/// The nodes of a pipeline and the workers' way through them.
pub(crate) struct Scheduler {
    pub(crate) shared: Arc<Shared>,
    /// From source to consumer.
    pub(crate) nodes: Vec<Arc<dyn Node>>,
}

impl Scheduler {
    /// A worker's life: work, or sleep until there is some, until the pipeline ends.
    pub(crate) fn work(&self) {
        let mut woken = false;
        while !self.shared.ended() {
            if self.run_one(0, woken) {
                woken = false;
                continue;
            }
            let ticket = self.shared.signal.prepare(Interest::All);
            if self.shared.ended() || self.any_ready(0) {
                self.shared.signal.cancel(ticket);
            } else {
                self.shared.signal.wait(ticket);
                woken = true;
            }
        }
    }

    /// Does something useful while a stage waits for room: the work of the nodes behind it, or, if
    /// there is none, sleeps until something changes or `has_room`.
    pub(crate) fn help(&self, waiting_node: usize, has_room: impl Fn() -> bool) {
        if self.run_one(waiting_node + 1, false) {
            return;
        }
        let ticket = self.shared.signal.prepare(Interest::Some);
        if self.shared.ended() || has_room() || self.any_ready(waiting_node + 1) {
            self.shared.signal.cancel(ticket);
        } else {
            self.shared.signal.wait(ticket);
        }
    }

    fn any_ready(&self, from: usize) -> bool {
        self.nodes[from..].iter().any(|node| node.ready())
    }

    /// Runs the ready node nearest to the consumer, of those from `from` on.
    fn run_one(&self, from: usize, woken: bool) -> bool {
        for node in self.nodes[from..].iter().rev() {
            if node.ready() {
                if woken {
                    // Where there is work for one there may be work for more; the chain of
                    // wake-ups ends with the first worker that finds none.
                    self.shared.signal.wake_one();
                }
                if node.run(self) {
                    return true;
                }
            }
        }
        false
    }
}
