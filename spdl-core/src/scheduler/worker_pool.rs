//! Workers: who runs the nodes, on which threads, and how they find what to do.

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

/// How often a worker looks again, letting others run in between, before it goes to sleep: for
/// tiny items the next ones are there before it would be asleep.
const LOOKS_BEFORE_SLEEP: usize = if MODELLED { 0 } else { 3 };

/// A worker that is told of work that another one is just taking looks again, and again. The
/// scheduler of a model might else never let the other one go on.
fn let_others_run() {
    if MODELLED {
        thread::yield_now();
    }
}

/// Workers that share some nodes.
pub(crate) struct WorkerPool {
    pub(crate) name: Arc<str>,
    pub(crate) shared: Arc<RunContext>,
    pub(crate) signal: Arc<Signal>,
    /// Nearest to the consumer first.
    levels: OnceLock<Vec<NodeLevel>>,
    place: WorkerSource,
    /// Whether the pipeline has branches that join.
    branches: AtomicBool,
    /// Where to look first among the nodes of a level, so that none of them is starved.
    turn: AtomicUsize,
    roll: Mutex<PoolMembers>,
    /// Whether there may be more workers than wanted; readable without the lock.
    surplus: AtomicBool,
    left: Condvar,
}

/// Nodes at the same distance from the consumer.
struct NodeLevel {
    depth: usize,
    nodes: Vec<(GraphPosition, Arc<dyn Node>)>,
}

/// Where workers come from.
#[derive(Clone)]
pub(crate) enum WorkerSource {
    /// Threads of our own, of which each may run on these CPUs (on any, where there are none).
    Threads { cpus: Vec<usize> },
    /// A pool of the caller's.
    Executor(Arc<dyn CpuExecutor>),
}

/// Who is there.
#[derive(Default)]
struct PoolMembers {
    threads: Vec<thread::JoinHandle<()>>,
    /// How many threads were ever started.
    hired: usize,
    /// How many workers there should be.
    wanted: usize,
    /// Workers at work, asleep, or asked for.
    present: usize,
    /// Those of them that the caller's pool has yet to send. It may be that it cannot: the threads
    /// that it has may all be waiting inside a stage.
    awaited: usize,
    /// Those of them that wait inside a stage.
    waiting: usize,
    closed: bool,
    /// Whether the pipeline has started.
    open: bool,
    /// How many there should be once it has.
    wish: Option<usize>,
}

impl PoolMembers {
    /// How many have come.
    fn here(&self) -> usize {
        self.present - self.awaited
    }

    fn has_too_many(&self) -> bool {
        self.here() > self.wanted + self.waiting
    }
}

impl WorkerPool {
    pub(crate) fn new(name: &str, shared: &Arc<RunContext>, place: WorkerSource) -> Arc<Self> {
        Arc::new_cyclic(|pool: &Weak<WorkerPool>| {
            let signal = match &place {
                WorkerSource::Threads { .. } => Signal::new(),
                WorkerSource::Executor(_) => {
                    let pool = Weak::clone(pool);
                    Signal::calling(move || {
                        if let Some(pool) = pool.upgrade() {
                            pool.call_one();
                        }
                    })
                }
            };
            WorkerPool {
                name: name.into(),
                shared: Arc::clone(shared),
                signal: Arc::new(signal),
                levels: OnceLock::new(),
                place,
                branches: AtomicBool::new(false),
                turn: AtomicUsize::new(0),
                roll: Mutex::new(PoolMembers::default()),
                surplus: AtomicBool::new(false),
                left: Condvar::new(),
            }
        })
    }

    /// Gives the worker pool its nodes; says whether the pipeline has branches that join.
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

    /// Whether its workers come from this pool.
    pub(crate) fn works_on(&self, executor: &Arc<dyn CpuExecutor>) -> bool {
        let address = |executor: &Arc<dyn CpuExecutor>| Arc::as_ptr(executor).cast::<()>();
        match &self.place {
            WorkerSource::Executor(own) => address(own) == address(executor),
            WorkerSource::Threads { .. } => false,
        }
    }

    /// How many workers there should be.
    pub(crate) fn wanted(&self) -> usize {
        let roll = self.roll.lock();
        roll.wish.unwrap_or(roll.wanted)
    }

    /// Lets the workers come, `workers` of them unless there has been another wish.
    pub(crate) fn open(self: &Arc<Self>, workers: usize) -> Result<()> {
        let mut roll = self.roll.lock();
        roll.open = true;
        let wanted = roll.wish.unwrap_or(workers);
        drop(roll);
        self.resize(wanted)
    }

    /// Makes it `workers` workers, by starting or by sending home. Before the pipeline has started,
    /// it is a wish.
    pub(crate) fn resize(self: &Arc<Self>, workers: usize) -> Result<()> {
        if self.levels().is_empty() {
            return Ok(());
        }
        let mut roll = self.roll.lock();
        roll.wish = Some(workers);
        if roll.closed || !roll.open {
            return Ok(());
        }
        roll.wanted = workers;
        if let WorkerSource::Executor(_) = self.place {
            drop(roll);
            self.call_one();
            return Ok(());
        }
        self.surplus.store(roll.has_too_many(), Ordering::Relaxed);
        // Threads that went before; else each would keep its stack.
        let (gone, threads) = std::mem::take(&mut roll.threads).into_iter().partition(has_ended);
        roll.threads = threads;
        let gone: Vec<thread::JoinHandle<()>> = gone;
        while roll.present < roll.wanted {
            if let Err(error) = self.hire(&mut roll) {
                roll.wanted = roll.present.max(1);
                return Err(error);
            }
        }
        drop(roll);
        for thread in gone {
            let _ = thread.join();
        }
        // Those who are too many look whether they are still wanted.
        self.signal.wake_all();
        Ok(())
    }

    /// Starts another worker.
    fn hire(self: &Arc<Self>, roll: &mut PoolMembers) -> Result<()> {
        let pool = Arc::clone(self);
        let name = format!("spdl-{}-{}", self.name, roll.hired);
        let thread = thread::Builder::new().name(name).spawn(move || {
            let mut dismissed = false;
            pool.guarded(|| {
                if let WorkerSource::Threads { cpus } = &pool.place
                    && !cpus.is_empty()
                    && let Err(error) = pin_current_thread(cpus)
                {
                    pool.shared.raise(error);
                }
                dismissed = pool.work();
            });
            if pool.shared.stopped() {
                // Each on its own threads, not on that which drops the pipeline.
                let nodes = pool.levels().iter().flat_map(|level| &level.nodes);
                nodes.for_each(|(_, node)| pool.guarded(|| node.drop_instances()));
            }
            if !dismissed {
                pool.leave();
            }
        });
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::Io, "cannot start a worker thread").with_source(error)
        })?;
        roll.present += 1;
        roll.hired += 1;
        roll.threads.push(thread);
        Ok(())
    }

    /// Stages are guarded one by one; this catches the panics of their destructors.
    fn guarded(&self, work: impl FnOnce()) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
            self.shared.raise(panicked(payload));
        }
    }

    fn leave(&self) {
        let mut roll = self.roll.lock();
        roll.present = roll.present.saturating_sub(1);
        drop(roll);
        self.left.notify_all();
    }

    fn too_many(&self) -> bool {
        let roll = self.roll.lock();
        roll.has_too_many()
    }

    /// Whether this worker is one too many; if so it must go, and is no longer counted.
    fn dismissed(&self) -> bool {
        let mut roll = self.roll.lock();
        let dismissed = roll.has_too_many();
        if dismissed {
            roll.present -= 1;
            self.surplus.store(roll.has_too_many(), Ordering::Relaxed);
            drop(roll);
            self.left.notify_all();
        }
        dismissed
    }

    /// Waits until every worker has gone, but not longer than until `deadline`. Says whether all
    /// have. The pipeline must have been stopped.
    pub(crate) fn wind_down(&self, deadline: Option<Instant>) -> bool {
        let mut roll = self.roll.lock();
        roll.closed = true;
        while roll.present > 0 {
            match deadline {
                None => roll = self.left.wait(roll),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    roll = self.left.wait_timeout(roll, left);
                }
            }
        }
        let threads = std::mem::take(&mut roll.threads);
        drop(roll);
        for thread in threads {
            // What it had to say it has said; the rest is the thread's own end.
            let _ = thread.join();
        }
        true
    }

    /// Asks the caller's pool for a worker, where there are fewer than wanted.
    fn call_one(self: &Arc<Self>) {
        let WorkerSource::Executor(executor) = &self.place else { return };
        if !self.any_ready(None) {
            return;
        }
        let mut roll = self.roll.lock();
        if roll.closed || roll.present >= roll.wanted + roll.waiting {
            return;
        }
        roll.present += 1;
        roll.awaited += 1;
        drop(roll);
        let mut visit = ExecutorWorker { pool: Arc::clone(self), came: false };
        // This is often called from a destructor, which must not panic.
        self.guarded(|| {
            executor.execute(Box::new(move || {
                visit.come();
                visit.pool.guarded(|| visit.pool.visit());
            }));
        });
    }

    /// The turn of a worker that is lent: works until there is nothing to do.
    fn visit(self: &Arc<Self>) {
        while !self.shared.stopped() && !self.too_many() && self.run_one(None, true) {}
    }

    /// A worker's life: work, or sleep until there is some, until the pipeline ends. Says whether it
    /// was dismissed before that.
    fn work(self: &Arc<Self>) -> bool {
        let mut woken = false;
        while !self.shared.stopped() {
            if self.surplus.load(Ordering::Relaxed) && self.dismissed() {
                // What this one was woken for is for another one to do.
                self.signal.wake_one();
                return true;
            }
            if self.run_one(None, woken) || self.look_again(None) {
                woken = false;
                continue;
            }
            let ticket = self.signal.prepare(Interest::All);
            if self.shared.stopped() || self.any_ready(None) || self.too_many() {
                self.signal.cancel(ticket);
                let_others_run();
            } else {
                self.signal.wait(ticket);
                woken = true;
            }
        }
        false
    }

    fn look_again(&self, beyond: Option<&GraphPosition>) -> bool {
        (0..LOOKS_BEFORE_SLEEP).any(|_| {
            thread::yield_now();
            self.any_ready(beyond)
        })
    }

    /// Does something useful while the stage at `position` waits for something: the work of the
    /// nodes behind it, or, if there is none, sleeps until something changes or `done`.
    ///
    /// What is run so must never wait for the stage that waits below it on this thread's stack. So
    /// it is nothing from other branches: these may wait, where they join, for what this one makes.
    pub(crate) fn help(self: &Arc<Self>, position: &GraphPosition, done: impl Fn() -> bool) {
        self.help_until(position, done, None);
    }

    /// Lets `duration` pass, doing the work of the nodes behind `position` meanwhile.
    pub(crate) fn help_for(
        self: &Arc<Self>,
        position: &GraphPosition,
        duration: Duration,
        done: impl Fn() -> bool,
    ) {
        let deadline = Instant::now().checked_add(duration);
        let past = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        while !past() && !done() && !self.shared.stopped() {
            self.help_until(position, &done, deadline);
        }
    }

    fn help_until(
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
            let_others_run();
        } else {
            self.stand_in();
            match deadline {
                Some(deadline) => self.signal.wait_until(ticket, deadline),
                None => self.signal.wait(ticket),
            }
            let mut roll = self.roll.lock();
            roll.waiting -= 1;
            self.surplus.store(roll.has_too_many(), Ordering::Relaxed);
        }
    }

    /// Counts this worker as waiting inside a stage. Where branches join, what it waits for may need
    /// a stage that it cannot help, on another branch; so where every worker waits so, another one
    /// comes, until there are enough again.
    fn stand_in(self: &Arc<Self>) {
        let needed = self.branches.load(Ordering::Relaxed) && self.any_ready(None);
        let mut roll = self.roll.lock();
        roll.waiting += 1;
        if !needed || roll.closed || roll.here() > roll.waiting {
            return;
        }
        if let Err(error) = self.hire(&mut roll) {
            drop(roll);
            self.shared.raise(error);
        }
    }

    /// The levels that are nearer to the consumer than `beyond`; all, where that is `None`.
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
                if count > 1 { self.turn.fetch_add(1, Ordering::Relaxed) % count } else { 0 };
            for at in (first..count).chain(0..first) {
                let (position, node) = &level.nodes[at];
                if beyond.is_none_or(|from| from.is_before(position)) && node.ready() {
                    if woken {
                        // Where there is work for one there may be work for more; the chain of
                        // wake-ups ends with the first worker that finds none.
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

/// A worker of the caller's pool, from when it is asked for until it has left.
struct ExecutorWorker {
    pool: Arc<WorkerPool>,
    came: bool,
}

impl ExecutorWorker {
    fn come(&mut self) {
        if !std::mem::replace(&mut self.came, true) {
            self.pool.roll.lock().awaited -= 1;
        }
    }
}

impl Drop for ExecutorWorker {
    fn drop(&mut self) {
        let came = self.came;
        self.come();
        self.pool.leave();
        if !came && !self.pool.shared.stopped() {
            // Nothing more is asked of it: it might drop that as well, and so on without end.
            self.pool.roll.lock().closed = true;
            let message = "the executor dropped work of this pipeline before it had run";
            self.pool.shared.raise(Error::new(ErrorKind::Stopped, message));
        } else if !self.pool.shared.stopped() {
            let_others_run();
            // Work that was made after the last look would else wait for ever, and so would what
            // this one left for a stand-in that has fallen asleep.
            self.pool.signal.wake_one();
        }
    }
}
