//! Adding and removing workers while a pipeline runs.

use std::fmt;
use std::sync::Arc;

use futures_util::task::AtomicWaker;

use crate::error::{Error, ErrorKind, Result};
use crate::scheduler::RunContext;
use crate::scheduler::worker_pool::WorkerPool;
use crate::sync::atomic::Ordering;

/// Changes a pipeline's concurrency while it runs, from any thread: made by
/// [`Pipeline::control`](crate::Pipeline::control).
///
/// ```
/// # use spdl_core::PipelineBuilder;
/// let mut pipeline = PipelineBuilder::from_iter(0..1000).map("work", |n| Ok(n)).threads(1).build()?;
/// let control = pipeline.control();
/// pipeline.next();
/// control.set_threads(4)?;
/// control.set_concurrency("work", 3)?;
/// assert_eq!(pipeline.statistics().stages[1].concurrency, 3);
/// assert!(control.set_concurrency("other", 3).is_err());
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Control {
    pub(crate) shared: Arc<RunContext>,
    knobs: Arc<ConcurrencyControls>,
}

/// More threads than this are a mistake.
const MOST_THREADS: usize = 4096;

/// What can be changed.
pub(crate) struct ConcurrencyControls {
    pub(crate) pool: Arc<WorkerPool>,
    pub(crate) stages: Vec<StageControl>,
}

/// What can be changed of one stage.
pub(crate) struct StageControl {
    pub(crate) name: Arc<str>,
    pub(crate) knob: ConcurrencyControl,
    /// Whether it may work on several items at once.
    pub(crate) adjustable: bool,
}

/// How to tell a stage that its concurrency has changed.
pub(crate) enum ConcurrencyControl {
    /// It is run by workers of the pool.
    Pool,
    /// It has workers of its own.
    Own(Arc<WorkerPool>),
    /// It is run by workers of a pool of the caller's, perhaps among other stages.
    Lent(Arc<WorkerPool>),
    /// A task drives it.
    Task(Arc<AtomicWaker>),
}

impl Control {
    pub(crate) fn new(shared: Arc<RunContext>, knobs: Arc<ConcurrencyControls>) -> Self {
        Control { shared, knobs }
    }

    /// Makes it so many worker threads in the shared pool, at least 1. Those who are too many go
    /// when they have finished what they do.
    ///
    /// # Errors
    /// `InvalidArgument` for more than 4096; `Io` where the operating system refuses a thread: then
    /// there are as many as it gave.
    pub fn set_threads(&self, threads: usize) -> Result<()> {
        let threads = bounded(threads)?;
        self.knobs.pool.resize(threads)?;
        self.shared.threads.store(threads, Ordering::SeqCst);
        Ok(())
    }

    /// Lets a stage work on so many items at once, at least 1. Where it has threads of its own, it
    /// gets as many. Items that are being worked on are finished; instances that are too many stay,
    /// unused, until the pipeline ends.
    ///
    /// # Errors
    /// `InvalidArgument` for a stage that does not exist, or that always works on one item at a time
    /// (the source, a batch, an aggregate, a merge); `Io` where the operating system refuses a
    /// thread.
    pub fn set_concurrency(&self, stage: &str, concurrency: usize) -> Result<()> {
        let (true, Some(meter)) = (self.is_adjustable(stage), self.shared.meter(stage)) else {
            let adjustable = self.knobs.stages.iter().filter(|knob| knob.adjustable);
            let names: Vec<&str> = adjustable.map(|knob| &*knob.name).collect();
            let names = names.join(", ");
            let message = format!(
                "no stage called {stage:?} has a concurrency that can be changed; these have: \
                 {names}"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let own =
            matches!(self.knob(stage).map(|knob| &knob.knob), Some(ConcurrencyControl::Own(_)));
        let concurrency = if own { bounded(concurrency)? } else { concurrency.max(1) };
        meter.concurrency.store(concurrency, Ordering::SeqCst);
        match self.knob(stage).map(|knob| &knob.knob) {
            Some(ConcurrencyControl::Own(pool)) => pool.resize(concurrency)?,
            Some(ConcurrencyControl::Lent(pool)) => pool.resize(concurrency.max(pool.wanted()))?,
            _ => {}
        }
        self.tell(stage);
        Ok(())
    }

    fn knob(&self, stage: &str) -> Option<&StageControl> {
        self.knobs.stages.iter().find(|knob| &*knob.name == stage)
    }

    /// Whether it is a stage of the caller's, and no source, merge or path.
    pub(crate) fn is_a_stage(&self, stage: &str) -> bool {
        self.knob(stage).is_some()
    }

    pub(crate) fn is_adjustable(&self, stage: &str) -> bool {
        self.knob(stage).is_some_and(|knob| knob.adjustable)
    }

    /// Wakes whoever runs a stage, so that it sees its concurrency.
    pub(crate) fn tell(&self, stage: &str) {
        match self.knob(stage).map(|knob| &knob.knob) {
            Some(ConcurrencyControl::Pool) => self.knobs.pool.signal.wake_all(),
            Some(ConcurrencyControl::Own(pool) | ConcurrencyControl::Lent(pool)) => {
                pool.signal.wake_all()
            }
            Some(ConcurrencyControl::Task(waker)) => waker.wake(),
            None => {}
        }
    }
}

/// A number of threads that makes sense; 0 is taken as 1.
fn bounded(threads: usize) -> Result<usize> {
    if threads > MOST_THREADS {
        let message = format!("{threads} threads were asked for; at most {MOST_THREADS} may be");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(threads.max(1))
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Control")
    }
}
