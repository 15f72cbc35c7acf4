//! Control of threads and concurrency while a pipeline runs.

use std::fmt;
use std::sync::Arc;

use futures_util::task::AtomicWaker;

use crate::error::{Error, ErrorKind, Result};
use crate::observe::model::SettingChange;
use crate::pipeline::tuning::{StaticSettings, StaticStage};
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
    /// The name in static settings, see [`StageOptions::identity`](crate::StageOptions::identity).
    pub(crate) identity: Arc<str>,
    pub(crate) handle: ConcurrencyControl,
    /// Whether the stage can process several items concurrently.
    pub(crate) adjustable: bool,
    /// Whether the concurrency is the number of threads of the shared pool by default.
    pub(crate) follows_threads: bool,
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
    /// the items that they are processing. Stages whose concurrency is the number of threads by
    /// default follow, unless [`set_concurrency`](Self::set_concurrency) has set another number.
    ///
    /// # Errors
    /// `InvalidArgument` for more than 4096 threads. `Io` if the operating system cannot create a
    /// thread; the pool then has as many threads as were created.
    pub fn set_threads(&self, threads: usize) -> Result<()> {
        let threads = bounded(threads)?;
        self.controls.pool.resize(threads)?;
        let before = self.shared.threads.swap(threads, Ordering::SeqCst);
        for control in self.controls.stages.iter().filter(|control| control.follows_threads) {
            let meter = self.shared.meter(&control.name);
            let follows = meter.is_some_and(|it| it.concurrency.load(Ordering::SeqCst) == before);
            if follows && before != threads {
                self.set_concurrency(&control.name, threads)?;
            }
        }
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
        if let Some(control) = self.stage_control(stage)
            && let Some(widen) = &control.widen
        {
            // Items in flight of an async stage have reserved places.
            let is_async = matches!(control.handle, ConcurrencyControl::Task(_));
            widen(concurrency.saturating_mul(if is_async { 2 } else { 1 }));
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

    /// Sets the capacity of the queue after a stage, in items; 0 means 1. A larger capacity of the
    /// last queue is a deeper prefetch. Excess items stay in the queue until they are taken.
    ///
    /// Each item in progress of the stage has a place in the queue, so a capacity below the
    /// concurrency limits the stage.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown stage.
    ///
    /// ```
    /// # use spdl_core::PipelineBuilder;
    /// let pipeline = PipelineBuilder::from_iter(0..9).map("work", |n| Ok(n)).build()?;
    /// pipeline.control().set_queue("work", 100)?;
    /// assert_eq!(pipeline.statistics().queues[1].capacity, 100);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn set_queue(&self, stage: &str, capacity: usize) -> Result<()> {
        let Some(queue) = self.shared.queue_after(stage) else {
            let message = format!("cannot set the queue after {stage:?}: no stage has this name");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        queue.set_capacity(capacity.max(1));
        Ok(())
    }

    /// Makes a change of threads, of concurrency or of a queue.
    ///
    /// # Errors
    /// Those of [`set_threads`](Self::set_threads), [`set_concurrency`](Self::set_concurrency) and
    /// [`set_queue`](Self::set_queue). `Unsupported` for any other change, which is not one of the
    /// settings of a running pipeline.
    pub fn apply(&self, change: &SettingChange) -> Result<()> {
        match change {
            SettingChange::Threads { threads } => self.set_threads(*threads),
            SettingChange::Concurrency { stage, items } => self.set_concurrency(stage, *items),
            SettingChange::Queue { stage, items } => self.set_queue(stage, *items),
            other => {
                let message = format!("cannot change {other:?} while a pipeline runs");
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }

    /// Returns the present settings, which [`Tune::fixed`](crate::pipeline::Tune::fixed) restores in
    /// another run.
    ///
    /// ```
    /// # use spdl_core::PipelineBuilder;
    /// use spdl_core::pipeline::Tune;
    /// let build = || PipelineBuilder::from_iter(0..9).map("work", |n| Ok(n)).threads(2);
    /// let pipeline = build().build()?;
    /// pipeline.control().set_threads(3)?;
    /// let settings = pipeline.control().freeze();
    /// let again = build().tune(Tune::fixed(settings)).build()?;
    /// assert_eq!(again.statistics().threads, 3);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn freeze(&self) -> StaticSettings {
        let stage = |control: &StageControl| {
            let meter = self.shared.meter(&control.name)?;
            let concurrency = meter.concurrency.load(Ordering::SeqCst);
            let concurrency = control.adjustable.then_some(concurrency);
            let queue = self.shared.queue_after(&control.name)?.raw().statistics().capacity;
            Some((control.identity.to_string(), StaticStage { concurrency, queue }))
        };
        StaticSettings {
            threads: self.shared.threads.load(Ordering::SeqCst),
            stages: self.controls.stages.iter().filter_map(stage).collect(),
        }
    }

    /// Checks that the pipeline has the stages of these settings.
    pub(crate) fn check(&self, settings: &StaticSettings) -> Result<()> {
        let stages = || self.controls.stages.iter().map(|control| &*control.identity);
        let unknown = settings.stages.keys().find(|identity| !stages().any(|it| it == **identity));
        let Some(identity) = unknown else { return Ok(()) };
        let message = format!(
            "cannot use the settings of another pipeline: this one has no stage {identity:?}; stages: {}",
            stages().collect::<Vec<_>>().join(", ")
        );
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Restores settings. Ignores those of stages that the pipeline does not have.
    pub(crate) fn restore(&self, settings: &StaticSettings) -> Result<()> {
        self.set_threads(settings.threads)?;
        for control in &self.controls.stages {
            let Some(stage) = settings.stages.get(&*control.identity) else { continue };
            if let Some(concurrency) = stage.concurrency.filter(|_| control.adjustable) {
                self.set_concurrency(&control.name, concurrency)?;
            }
            // A smaller queue would limit the concurrency.
            let least = stage.concurrency.unwrap_or(1);
            self.set_queue(&control.name, stage.queue.max(least))?;
        }
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

    /// The stages that process one item at a time.
    pub(crate) fn fixed_stages(&self) -> impl Iterator<Item = Arc<str>> {
        let fixed = self.controls.stages.iter().filter(|control| !control.adjustable);
        fixed.map(|control| Arc::clone(&control.name))
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
