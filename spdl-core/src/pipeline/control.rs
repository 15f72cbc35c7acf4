//! Control of threads and concurrency while a pipeline runs.

use std::fmt;
use std::sync::Arc;

use futures_util::task::AtomicWaker;

use crate::error::{Error, ErrorKind, Result};
use crate::scheduler::RunContext;
use crate::scheduler::worker_pool::WorkerPool;
use crate::sync::atomic::Ordering;

/// Changes threads and concurrency of a running pipeline, from any thread. Created by
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
    controls: Arc<ConcurrencyControls>,
}

/// Maximum number of threads.
const MAX_THREADS: usize = 4096;

/// Handles to the worker pool and to the stages of a pipeline.
pub(crate) struct ConcurrencyControls {
    pub(crate) pool: Arc<WorkerPool>,
    pub(crate) stages: Vec<StageControl>,
}

/// Handle to one stage.
pub(crate) struct StageControl {
    pub(crate) name: Arc<str>,
    pub(crate) handle: ConcurrencyControl,
    /// Whether the stage can process several items concurrently.
    pub(crate) adjustable: bool,
    /// Gives the queue after the stage at least this capacity, which would otherwise limit the
    /// concurrency.
    pub(crate) widen: Option<Box<dyn Fn(usize) + Send + Sync>>,
}

/// How a stage is notified of a new concurrency.
pub(crate) enum ConcurrencyControl {
    /// Workers of the shared pool run the stage.
    Pool,
    /// The stage has dedicated workers.
    Dedicated(Arc<WorkerPool>),
    /// Workers of the caller's executor run the stage.
    Executor(Arc<WorkerPool>),
    /// A task runs the stage.
    Task(Arc<AtomicWaker>),
}

impl Control {
    pub(crate) fn new(shared: Arc<RunContext>, controls: Arc<ConcurrencyControls>) -> Self {
        Control { shared, controls }
    }

    /// Sets the number of worker threads of the shared pool; 0 means 1. Excess workers end after
    /// the items that they are processing.
    ///
    /// # Errors
    /// `InvalidArgument` for more than 4096 threads. `Io` if the operating system cannot create a
    /// thread; the pool then has as many threads as were created.
    pub fn set_threads(&self, threads: usize) -> Result<()> {
        let threads = bounded(threads)?;
        self.controls.pool.resize(threads)?;
        self.shared.threads.store(threads, Ordering::SeqCst);
        Ok(())
    }

    /// Sets how many items a stage processes concurrently; 0 means 1. For a stage with dedicated
    /// threads, the number is also the number of its threads. The queue after the stage gets at least
    /// this capacity. Items in progress are finished.
    /// Excess instances stay unused until the pipeline ends.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown stage, for more than 4096 dedicated threads, and for a
    /// stage that processes one item at a time: a source, batch, bucket, pack, aggregate, merge or
    /// zip. `Io` if the operating system cannot create a thread.
    pub fn set_concurrency(&self, stage: &str, concurrency: usize) -> Result<()> {
        let (true, Some(meter)) = (self.is_adjustable(stage), self.shared.meter(stage)) else {
            let adjustable = self.controls.stages.iter().filter(|control| control.adjustable);
            let names: Vec<&str> = adjustable.map(|control| &*control.name).collect();
            let names = names.join(", ");
            let message = format!(
                "cannot set the concurrency of {stage:?}: no stage with adjustable concurrency has \
                 this name; adjustable stages: {names}"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let own = matches!(
            self.stage_control(stage).map(|control| &control.handle),
            Some(ConcurrencyControl::Dedicated(_))
        );
        let concurrency = if own { bounded(concurrency)? } else { concurrency.max(1) };
        if let Some(widen) = self.stage_control(stage).and_then(|control| control.widen.as_ref()) {
            widen(concurrency);
        }
        meter.concurrency.store(concurrency, Ordering::SeqCst);
        match self.stage_control(stage).map(|control| &control.handle) {
            Some(ConcurrencyControl::Dedicated(pool)) => pool.resize(concurrency)?,
            Some(ConcurrencyControl::Executor(pool)) => {
                pool.resize(concurrency.max(pool.target()))?
            }
            _ => {}
        }
        self.notify(stage);
        Ok(())
    }

    fn stage_control(&self, stage: &str) -> Option<&StageControl> {
        self.controls.stages.iter().find(|control| &*control.name == stage)
    }

    /// Whether the name belongs to a stage, not to a source, a merge, a zip or a path.
    pub(crate) fn is_stage(&self, stage: &str) -> bool {
        self.stage_control(stage).is_some()
    }

    pub(crate) fn is_adjustable(&self, stage: &str) -> bool {
        self.stage_control(stage).is_some_and(|control| control.adjustable)
    }

    /// Wakes the workers or the task of a stage, so that they see the new concurrency.
    pub(crate) fn notify(&self, stage: &str) {
        match self.stage_control(stage).map(|control| &control.handle) {
            Some(ConcurrencyControl::Pool) => self.controls.pool.signal.wake_all(),
            Some(ConcurrencyControl::Dedicated(pool) | ConcurrencyControl::Executor(pool)) => {
                pool.signal.wake_all()
            }
            Some(ConcurrencyControl::Task(waker)) => waker.wake(),
            None => {}
        }
    }
}

/// Validates a number of threads; 0 means 1.
fn bounded(threads: usize) -> Result<usize> {
    if threads > MAX_THREADS {
        let message = format!("cannot start {threads} threads; at most {MAX_THREADS} are allowed");
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(threads.max(1))
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Control")
    }
}
