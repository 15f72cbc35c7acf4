//! Worker pool: threads that run nodes. The pool can be resized.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::signal::{Interest, Signal};
use super::{GraphPosition, Node, RunContext};
use crate::error::{Error, ErrorKind, Result, panicked};
use crate::runtime::affinity::pin_current_thread;
use crate::runtime::executor::CpuExecutor;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::{Condvar, MODELLED, Mutex, has_ended, thread};

/// Number of times a worker yields and looks for work before it sleeps. Very small items arrive in
/// less time than a sleep and a wake-up take.
const POLLS_BEFORE_SLEEP: usize = if MODELLED { 0 } else { 3 };

/// Yields, in model checks only. If a worker sees work that another worker is taking, it looks for
/// work again. Without the yield, the model checker could starve the other worker.
fn yield_in_models() {
    if MODELLED {
        thread::yield_now();
    }
}

/// Workers that share a set of nodes.
pub(crate) struct WorkerPool {
    pub(crate) name: Arc<str>,
    pub(crate) shared: Arc<RunContext>,
    pub(crate) signal: Arc<Signal>,
    /// The nodes, those nearest to the consumer first.
    levels: OnceLock<Vec<NodeLevel>>,
    source: WorkerSource,
    /// Whether the pipeline has branches that join.
    branches: AtomicBool,
    /// Round-robin start among the nodes of a level, so that no node starves.
    next_node: AtomicUsize,
    members: Mutex<PoolMembers>,
    /// Whether there may be more workers than the target. Readable without the lock.
    surplus: AtomicBool,
    left: Condvar,
}

/// Nodes at the same distance from the consumer.
struct NodeLevel {
    depth: usize,
    nodes: Vec<(GraphPosition, Arc<dyn Node>)>,
}

/// Which threads run the workers.
#[derive(Clone)]
pub(crate) enum WorkerSource {
    /// Threads that this pool starts, pinned to these CPUs; not pinned if the list is empty.
    Threads { cpus: Vec<usize> },
    /// The caller's executor.
    Executor(Arc<dyn CpuExecutor>),
}

/// The workers of a pool, by state.
#[derive(Default)]
struct PoolMembers {
    threads: Vec<thread::JoinHandle<()>>,
    /// Number of threads started so far.
    spawned: usize,
    /// Target number of workers.
    target: usize,
    /// Workers that run, sleep, or are requested.
    present: usize,
    /// Workers that were requested from the caller's executor and have not started. The executor
    /// may be unable to start them, if all its threads wait inside a stage.
    awaited: usize,
    /// Workers that wait inside a stage.
    waiting: usize,
    closed: bool,
    /// Whether the pipeline has started.
    open: bool,
    /// The target that `resize` set before the start.
    requested: Option<usize>,
}

impl PoolMembers {
    /// How many workers have started.
    fn running(&self) -> usize {
        self.present - self.awaited
    }

    fn has_surplus(&self) -> bool {
        self.running() > self.target + self.waiting
    }
}

impl WorkerPool {
    pub(crate) fn new(name: &str, shared: &Arc<RunContext>, source: WorkerSource) -> Arc<Self> {
        Arc::new_cyclic(|pool: &Weak<WorkerPool>| {
            let signal = match &source {
                WorkerSource::Threads { .. } => Signal::new(),
                WorkerSource::Executor(_) => {
                    let pool = Weak::clone(pool);
                    Signal::calling(move || {
                        if let Some(pool) = pool.upgrade() {
                            pool.request_worker();
                        }
                    })
                }
            };
            WorkerPool {
                name: name.into(),
                shared: Arc::clone(shared),
                signal: Arc::new(signal),
                levels: OnceLock::new(),
                source,
                branches: AtomicBool::new(false),
                next_node: AtomicUsize::new(0),
                members: Mutex::new(PoolMembers::default()),
                surplus: AtomicBool::new(false),
                left: Condvar::new(),
            }
        })
    }

    /// Assigns the nodes, and whether the pipeline has branches that join.
    pub(crate) fn assign(&self, mut nodes: Vec<(GraphPosition, Arc<dyn Node>)>, branches: bool) {
        self.branches.store(branches, Ordering::Relaxed);
        nodes.sort_by_key(|(position, _)| std::cmp::Reverse(position.depth()));
        let mut levels: Vec<NodeLevel> = Vec::new();
        for (position, node) in nodes {
            let depth = position.depth();
            match levels.last_mut() {
                Some(level) if level.depth == depth => level.nodes.push((position, node)),
                _ => levels.push(NodeLevel { depth, nodes: vec![(position, node)] }),
            }
        }
        let _ = self.levels.set(levels);
    }

    fn levels(&self) -> &[NodeLevel] {
        self.levels.get().map_or(&[], |levels| levels)
    }

    /// Whether this executor runs the workers.
    pub(crate) fn works_on(&self, executor: &Arc<dyn CpuExecutor>) -> bool {
        let address = |executor: &Arc<dyn CpuExecutor>| Arc::as_ptr(executor).cast::<()>();
        match &self.source {
            WorkerSource::Executor(own) => address(own) == address(executor),
            WorkerSource::Threads { .. } => false,
        }
    }

    /// Target number of workers.
    pub(crate) fn target(&self) -> usize {
        let members = self.members.lock();
        members.requested.unwrap_or(members.target)
    }

    /// Starts the pool with the number of workers that `resize` has set, or with `workers` if
    /// `resize` was not called.
    pub(crate) fn open(self: &Arc<Self>, workers: usize) -> Result<()> {
        let mut members = self.members.lock();
        members.open = true;
        let target = members.requested.unwrap_or(workers);
        drop(members);
        self.resize(target)
    }

    /// Starts or retires workers until there are `workers`. Before the pipeline starts, only
    /// records the number.
    pub(crate) fn resize(self: &Arc<Self>, workers: usize) -> Result<()> {
        if self.levels().is_empty() {
            return Ok(());
        }
        let mut members = self.members.lock();
        members.requested = Some(workers);
        if members.closed || !members.open {
            return Ok(());
        }
        members.target = workers;
        if let WorkerSource::Executor(_) = self.source {
            drop(members);
            self.request_worker();
            return Ok(());
        }
        self.surplus.store(members.has_surplus(), Ordering::Relaxed);
        // Joins threads that have ended, which frees their stacks.
        let (gone, threads) = std::mem::take(&mut members.threads).into_iter().partition(has_ended);
        members.threads = threads;
        let gone: Vec<thread::JoinHandle<()>> = gone;
        while members.present < members.target {
            if let Err(error) = self.spawn_worker(&mut members) {
                members.target = members.present.max(1);
                return Err(error);
            }
        }
        drop(members);
        for thread in gone {
            let _ = thread.join();
        }
        // Surplus workers retire when they wake.
        self.signal.wake_all();
        Ok(())
    }

    /// Starts a worker thread.
    fn spawn_worker(self: &Arc<Self>, members: &mut PoolMembers) -> Result<()> {
        let pool = Arc::clone(self);
        let name = format!("spdl-{}-{}", self.name, members.spawned);
        let work = move || {
            let mut retired = false;
            pool.guarded(|| {
                if let WorkerSource::Threads { cpus } = &pool.source
                    && !cpus.is_empty()
                    && let Err(error) = pin_current_thread(cpus)
                {
                    pool.shared.raise(error);
                }
                retired = pool.shared.stop_signal.enter(|| pool.work());
            });
            if pool.shared.stopped() {
                // Instances are dropped on the threads that ran them, not on the caller's thread.
                let nodes = pool.levels().iter().flat_map(|level| &level.nodes);
                nodes.for_each(|(_, node)| pool.guarded(|| node.drop_instances()));
            }
            if !retired {
                pool.leave();
            }
        };
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(name).spawn(move || {
            // Model checks have no clock.
            if MODELLED { work() } else { shared.worker_times.count(work) }
        });
        let thread = thread.map_err(|error| {
            let message = format!(
                "cannot start worker thread {}; use fewer threads, or raise the limits on processes \
                 (ulimit -u) and address space (ulimit -v)",
                members.present + 1
            );
            Error::new(ErrorKind::Io, message).with_source(error)
        })?;
        members.present += 1;
        members.spawned += 1;
        members.threads.push(thread);
        Ok(())
    }

    /// Catches panics of destructors. Panics of stages are caught per item.
    fn guarded(&self, work: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
            self.shared.raise(panicked(payload));
        }
    }

    fn leave(&self) {
        let mut members = self.members.lock();
        members.present = members.present.saturating_sub(1);
        drop(members);
        self.left.notify_all();
    }

    fn has_surplus(&self) -> bool {
        let members = self.members.lock();
        members.has_surplus()
    }

    /// Whether this worker is surplus. If so, it is no longer counted and must end.
    fn retired(&self) -> bool {
        let mut members = self.members.lock();
        let retired = members.has_surplus();
        if retired {
            members.present -= 1;
            self.surplus.store(members.has_surplus(), Ordering::Relaxed);
            drop(members);
            self.left.notify_all();
        }
        retired
    }

    /// Waits until all workers have ended, or until `deadline`. Returns whether all have ended.
    /// Call after the pipeline was stopped.
    pub(crate) fn join(&self, deadline: Option<Instant>) -> bool {
        let mut members = self.members.lock();
        members.closed = true;
        while members.present > 0 {
            match deadline {
                None => members = self.left.wait(members),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    members = self.left.wait_timeout(members, left);
                }
            }
        }
        let threads = std::mem::take(&mut members.threads);
        drop(members);
        for thread in threads {
            // Errors of the worker are already recorded.
            let _ = thread.join();
        }
        true
    }

    /// Requests a worker from the caller's executor, if there are fewer than the target.
    fn request_worker(self: &Arc<Self>) {
        let WorkerSource::Executor(executor) = &self.source else { return };
        if !self.any_ready(None) {
            return;
        }
        let mut members = self.members.lock();
        if members.closed || members.present >= members.target + members.waiting {
            return;
        }
        members.present += 1;
        members.awaited += 1;
        drop(members);
        let mut worker = ExecutorWorker { pool: Arc::clone(self), started: false };
        // `drop` functions call this function, so a panic must not escape.
        self.guarded(|| {
            executor.execute(Box::new(move || {
                worker.start();
                let pool = &worker.pool;
                pool.guarded(|| pool.shared.stop_signal.enter(|| pool.run_until_idle()));
            }));
        });
    }

    /// Runs nodes on a thread of the caller's executor until no node is ready.
    fn run_until_idle(self: &Arc<Self>) {
        while !self.shared.stopped() && !self.has_surplus() && self.run_one(None, true) {}
    }

    /// The loop of a worker thread: runs nodes, and sleeps if none is ready, until the pipeline
    /// ends. Returns whether the worker was retired before the end.
    fn work(self: &Arc<Self>) -> bool {
        let mut woken = false;
        while !self.shared.stopped() {
            if self.surplus.load(Ordering::Relaxed) && self.retired() {
                // Passes the wake-up on to another worker.
                self.signal.wake_one();
                return true;
            }
            if self.run_one(None, woken) || self.poll_before_sleep(None) {
                woken = false;
                continue;
            }
            let ticket = self.signal.prepare(Interest::All);
            if self.shared.stopped() || self.any_ready(None) || self.has_surplus() {
                self.signal.cancel(ticket);
                yield_in_models();
            } else {
                self.signal.wait(ticket);
                woken = true;
            }
        }
        false
    }

    fn poll_before_sleep(&self, beyond: Option<&GraphPosition>) -> bool {
        (0..POLLS_BEFORE_SLEEP).any(|_| {
            thread::yield_now();
            self.any_ready(beyond)
        })
    }

    /// Runs downstream nodes while the stage at `position` waits. If none is ready, sleeps until
    /// something changes or `done` returns true.
    ///
    /// A node that runs here must never wait for a stage that is suspended on this thread's stack.
    /// Therefore nodes of other branches are excluded: their merge may wait for items of this
    /// branch.
    pub(crate) fn work_downstream(
        self: &Arc<Self>,
        position: &GraphPosition,
        done: impl Fn() -> bool,
    ) {
        self.work_downstream_until(position, done, None);
    }

    /// Waits for `duration`, and runs nodes downstream of `position` meanwhile.
    pub(crate) fn work_downstream_for(
        self: &Arc<Self>,
        position: &GraphPosition,
        duration: Duration,
        done: impl Fn() -> bool,
    ) {
        let deadline = Instant::now().checked_add(duration);
        let past = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        while !past() && !done() && !self.shared.stopped() {
            self.work_downstream_until(position, &done, deadline);
        }
    }

    fn work_downstream_until(
        self: &Arc<Self>,
        position: &GraphPosition,
        done: impl Fn() -> bool,
        deadline: Option<Instant>,
    ) {
        if self.run_one(Some(position), false) {
            return;
        }
        let ticket = self.signal.prepare(Interest::Some);
        if self.shared.stopped() || done() || self.any_ready(Some(position)) {
            self.signal.cancel(ticket);
            yield_in_models();
        } else {
            self.compensate();
            match deadline {
                Some(deadline) => self.signal.wait_until(ticket, deadline),
                None => self.signal.wait(ticket),
            }
            let mut members = self.members.lock();
            members.waiting -= 1;
            self.surplus.store(members.has_surplus(), Ordering::Relaxed);
        }
    }

    /// Counts this worker as waiting inside a stage, and starts a compensating worker if necessary.
    ///
    /// If branches join, the worker may wait for a stage on another branch, which this worker must
    /// not run. If all workers wait in this way, an additional worker runs that stage.
    fn compensate(self: &Arc<Self>) {
        let needed = self.branches.load(Ordering::Relaxed) && self.any_ready(None);
        let mut members = self.members.lock();
        members.waiting += 1;
        if !needed || members.closed || members.running() > members.waiting {
            return;
        }
        if let Err(error) = self.spawn_worker(&mut members) {
            drop(members);
            self.shared.raise(error);
        }
    }

    /// The levels that are nearer to the consumer than `beyond`; all levels for `None`.
    fn nearer(&self, beyond: Option<&GraphPosition>) -> impl Iterator<Item = &NodeLevel> {
        let beyond = beyond.map(GraphPosition::depth);
        self.levels().iter().take_while(move |level| beyond.is_none_or(|at| level.depth > at))
    }

    pub(crate) fn any_ready(&self, beyond: Option<&GraphPosition>) -> bool {
        let ready = |(position, node): &(GraphPosition, Arc<dyn Node>)| {
            beyond.is_none_or(|from| from.is_before(position)) && node.ready()
        };
        self.nearer(beyond).any(|level| level.nodes.iter().any(ready))
    }

    /// Runs the ready node nearest to the consumer.
    fn run_one(self: &Arc<Self>, beyond: Option<&GraphPosition>, woken: bool) -> bool {
        for level in self.nearer(beyond) {
            let count = level.nodes.len();
            let first =
                if count > 1 { self.next_node.fetch_add(1, Ordering::Relaxed) % count } else { 0 };
            for at in (first..count).chain(0..first) {
                let (position, node) = &level.nodes[at];
                if beyond.is_none_or(|from| from.is_before(position)) && node.ready() {
                    if woken {
                        // There may be work for more workers. The chain of wake-ups ends with the
                        // first worker that finds none.
                        self.signal.wake_one();
                    }
                    if node.run(self) {
                        return true;
                    }
                }
            }
        }
        false
    }
}

impl fmt::Debug for WorkerPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerPool").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A worker on the caller's executor, from the request until it ends.
struct ExecutorWorker {
    pool: Arc<WorkerPool>,
    started: bool,
}

impl ExecutorWorker {
    fn start(&mut self) {
        if !std::mem::replace(&mut self.started, true) {
            self.pool.members.lock().awaited -= 1;
        }
    }
}

impl Drop for ExecutorWorker {
    fn drop(&mut self) {
        let started = self.started;
        self.start();
        self.pool.leave();
        if !started && !self.pool.shared.stopped() {
            // No further requests: the executor might drop them too, in an endless loop.
            self.pool.members.lock().closed = true;
            let message = "the executor dropped a job of this pipeline without running it; keep \
                           the executor running until the pipeline has ended";
            self.pool.shared.raise(Error::new(ErrorKind::Stopped, message));
        } else if !self.pool.shared.stopped() {
            yield_in_models();
            // Work that was added after this worker's last check, or that is left for a sleeping
            // compensating worker, needs another wake-up.
            self.pool.signal.wake_one();
        }
    }
}
