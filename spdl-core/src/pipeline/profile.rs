//! Profiles: throughput of each stage alone, at several concurrencies.

use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::observe::statistics::{StageKind, StageMeter};
use crate::pipeline::builder::PipelineBuilder;
use crate::pipeline::control::Control;
use crate::pipeline::handle::Pipeline;
use crate::scheduler::RunContext;
use crate::sync::atomic::Ordering;

/// Interval at which a profile checks the progress of a stage.
const POLL_INTERVAL: Duration = Duration::from_micros(200);
/// A stage without progress for this time counts as finished.
const IDLE_TIMEOUT: Duration = Duration::from_millis(300);

/// Options of [`PipelineBuilder::profile`].
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// Number of items to use from each source, at least 1. Default: 1000.
    pub items: usize,
    /// Concurrencies to measure, in this order, each with an equal part of the items. Default: 32,
    /// 16, 8, 4 and 1.
    pub concurrency: Vec<usize>,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        ProfileOptions { items: 1000, concurrency: vec![32, 16, 8, 4, 1] }
    }
}

/// Throughput of each stage alone. `Display` prints a table.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The measured stages, in the order of the data flow.
    pub stages: Vec<StageProfile>,
}

/// Throughput of one stage alone.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct StageProfile {
    /// Name of the stage.
    pub name: Arc<str>,
    /// Kind of the stage.
    pub kind: StageKind,
    /// One entry per concurrency. A stage that processes one item at a time has only one entry. A
    /// stage also has fewer entries if it has processed all its items before the later
    /// concurrencies are measured.
    pub rates: Vec<Rate>,
}

/// Throughput of a stage at one concurrency.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Number of items processed concurrently. A stage on the shared worker pool has as many
    /// threads; dedicated threads and executors keep their number of threads.
    pub concurrency: usize,
    /// Number of items processed. Items that finish while the concurrency changes are not counted.
    pub items: u64,
    /// Items per second.
    pub items_per_second: f64,
    /// Share of the concurrency that was in use on average, in 0..=1.
    pub busy: f64,
}

impl<T: Send + 'static> PipelineBuilder<T> {
    /// Measures the throughput of each stage alone at each concurrency. Sources, merges and zips
    /// are not measured.
    ///
    /// Each stage processes items that are already in its input queue. `on_stage` is called with
    /// the result of each stage. The outputs of the pipeline are dropped. If a stage finishes no
    /// item for 300 ms, the measurement at this concurrency ends.
    ///
    /// Each stage processes each item once, so the items are divided among the concurrencies: set
    /// [`ProfileOptions::items`] large enough. Failed items are dropped, regardless of the failure
    /// policy. All outputs of a stage are in memory until the next stage is measured.
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// use spdl_core::pipeline::ProfileOptions;
    /// let mut options = ProfileOptions::default();
    /// options.items = 40;
    /// options.concurrency = vec![2, 1];
    /// let profile = PipelineBuilder::from_iter(0..40)
    ///     .map("square", |n: i32| Ok(n * n))
    ///     .profile(&options, |stage| println!("{} is done", stage.name))?;
    /// assert_eq!(&*profile.stages[0].name, "square");
    /// println!("{profile}");
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`build`](PipelineBuilder::build); errors that end a pipeline even if failed
    /// items are dropped; `InvalidArgument` if `items` or a concurrency is 0, or if the list of
    /// concurrencies is empty.
    pub fn profile(
        self,
        options: &ProfileOptions,
        mut on_stage: impl FnMut(&StageProfile),
    ) -> Result<Profile> {
        if options.items == 0 || options.concurrency.is_empty() || options.concurrency.contains(&0)
        {
            let message = "invalid profile options: `items` must be at least 1, and `concurrency` \
                           must be a non-empty list of numbers of at least 1";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let mut pipeline = self.build_to_profile(options.items)?;
        let run = ProfileRun::new(&pipeline, options.items);
        run.pause_all();
        pipeline.start()?;
        run.wait_for_source(&mut pipeline)?;
        let mut profile = Profile::default();
        for meter in run.stages() {
            let stage = run.measure(&mut pipeline, &meter, &options.concurrency)?;
            on_stage(&stage);
            profile.stages.push(stage);
        }
        Ok(profile)
    }
}

/// A running profile.
struct ProfileRun {
    shared: Arc<RunContext>,
    control: Control,
    items: usize,
}

impl ProfileRun {
    fn new<T: Send + 'static>(pipeline: &Pipeline<T>, items: usize) -> Self {
        ProfileRun { shared: pipeline.shared(), control: pipeline.control(), items }
    }

    /// Returns the stages that can be paused.
    fn stages(&self) -> Vec<Arc<StageMeter>> {
        let pausable = |meter: &Arc<StageMeter>| self.control.is_stage(&meter.name);
        self.shared.meters().into_iter().filter(pausable).collect()
    }

    fn pause_all(&self) {
        for meter in self.stages() {
            self.control.set_exactly(&meter.name, 0);
        }
    }

    /// Waits until the sources have finished.
    fn wait_for_source<T: Send + 'static>(&self, pipeline: &mut Pipeline<T>) -> Result<()> {
        let sources = || {
            let meters = self.shared.meters();
            let sources = meters.iter().filter(|meter| meter.kind == StageKind::Source);
            sources.map(|meter| meter.raw().items).sum::<u64>()
        };
        self.wait(pipeline, sources, self.items as u64).map(drop)
    }

    /// Waits until `done` reaches `target` or progress stops. Returns the time of the last
    /// progress.
    fn wait<T: Send + 'static>(
        &self,
        pipeline: &mut Pipeline<T>,
        done: impl Fn() -> u64,
        target: u64,
    ) -> Result<Instant> {
        let mut last = (done(), Instant::now());
        loop {
            // Outputs are dropped, so that the last queue does not fill.
            while let std::task::Poll::Ready(item) = pipeline.try_next() {
                match item {
                    Some(item) => drop(item?),
                    None => return Ok(last.1),
                }
            }
            let now = done();
            if now != last.0 {
                last = (now, Instant::now());
            }
            if now >= target || last.1.elapsed() > IDLE_TIMEOUT {
                return Ok(last.1);
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    fn measure<T: Send + 'static>(
        &self,
        pipeline: &mut Pipeline<T>,
        meter: &Arc<StageMeter>,
        levels: &[usize],
    ) -> Result<StageProfile> {
        let fixed = !self.control.is_adjustable(&meter.name);
        let levels = if fixed { &[1][..] } else { levels };
        let part = (self.items / levels.len()).max(1) as u64;
        let mut rates = Vec::new();
        for (at, &concurrency) in levels.iter().enumerate() {
            let before = meter.raw();
            let last = at + 1 == levels.len();
            let target = if last { u64::MAX } else { before.items + part };
            let started = Instant::now();
            self.control.set_exactly(&meter.name, concurrency);
            if meter.kind.uses_cpu_pool() {
                self.control.set_threads(concurrency)?;
            }
            let ended = self.wait(pipeline, || meter.raw().items, target)?;
            let time = ended.saturating_duration_since(started);
            let now = meter.raw();
            let items = now.items - before.items;
            if items > 0 {
                let seconds = time.as_secs_f64().max(1e-9);
                let busy = Duration::from_nanos(now.busy_nanos - before.busy_nanos).as_secs_f64();
                rates.push(Rate {
                    concurrency,
                    items,
                    items_per_second: items as f64 / seconds,
                    busy: (busy / (seconds * concurrency as f64)).clamp(0.0, 1.0),
                });
            }
            if !last {
                self.control.set_exactly(&meter.name, 0);
            }
        }
        Ok(StageProfile { name: Arc::clone(&meter.name), kind: meter.kind, rates })
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.stages.iter().map(|stage| stage.name.chars().count()).max();
        let name = name.unwrap_or(0).max("stage".len());
        write!(f, "{:name$}  concurrency     items       items/s   busy", "stage")?;
        for stage in &self.stages {
            for rate in &stage.rates {
                write!(
                    f,
                    "\n{:name$}  {:>11}  {:>8}  {:>12.0}  {:>3.0} %",
                    stage.name,
                    rate.concurrency,
                    rate.items,
                    rate.items_per_second,
                    rate.busy * 100.0
                )?;
            }
        }
        Ok(())
    }
}

impl Control {
    /// Sets a concurrency without a lower bound; 0 pauses the stage.
    fn set_exactly(&self, stage: &str, concurrency: usize) {
        if let Some(meter) = self.shared.meter(stage) {
            meter.concurrency.store(concurrency, Ordering::SeqCst);
            self.notify(stage);
        }
    }
}
