//! How fast each stage is alone, by how many items it works on at once.

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

/// How often a profile looks whether a stage has done its part.
const LOOK: Duration = Duration::from_micros(200);
/// A stage that does nothing for so long has nothing left to do.
const NOTHING_LEFT: Duration = Duration::from_millis(300);

/// What to measure; see [`PipelineBuilder::profile`].
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// How many items of the source to use, at least 1. Default: 1000.
    pub items: usize,
    /// The concurrencies to try, in this order; each gets an equal part of the items. Default: 32,
    /// 16, 8, 4 and 1.
    pub concurrency: Vec<usize>,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        ProfileOptions { items: 1000, concurrency: vec![32, 16, 8, 4, 1] }
    }
}

/// How fast each stage is alone. Displayed, it is a table.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The stages that do something, in the order of the flow.
    pub stages: Vec<StageProfile>,
}

/// How fast a stage is alone.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq)]
pub struct StageProfile {
    /// The stage.
    pub name: Arc<str>,
    /// What kind of work it does.
    pub kind: StageKind,
    /// One for each concurrency that was tried. A stage that works on one item at a time has one; so
    /// has one that has done all items with the first concurrency before anyone could look.
    pub rates: Vec<Rate>,
}

/// How fast a stage was with one concurrency.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// How many items it could work on at once, on as many threads where it computes.
    pub concurrency: usize,
    /// How many items it did. What ends between two concurrencies counts for neither.
    pub items: u64,
    /// Items per second.
    pub items_per_second: f64,
    /// The share of its concurrency that was in use, in 0..=1.
    pub busy: f64,
}

impl<T: Send + 'static> PipelineBuilder<T> {
    /// Runs each stage alone, on items that wait in front of it, and tells how fast it is with each
    /// concurrency; `told` hears of each stage as it is done. What comes out at the end is dropped.
    ///
    /// Every item goes through every stage once, so a stage gets new items for each concurrency:
    /// [`ProfileOptions::items`] should be many. Items that fail are dropped, whatever the policy.
    /// All of them are held in memory at once between two stages.
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
    /// Those of [`build`](PipelineBuilder::build), and what else ends a pipeline though failed items
    /// are dropped; `InvalidArgument` for options that make no sense.
    pub fn profile(
        self,
        options: &ProfileOptions,
        mut told: impl FnMut(&StageProfile),
    ) -> Result<Profile> {
        if options.items == 0 || options.concurrency.is_empty() || options.concurrency.contains(&0)
        {
            let message = "a profile needs at least one item, and concurrencies of at least 1";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let mut pipeline = self.build_to_profile(options.items)?;
        let run = ProfileRun::new(&pipeline, options.items);
        run.hold_all();
        pipeline.start()?;
        run.wait_for_source(&mut pipeline)?;
        let mut profile = Profile::default();
        for meter in run.stages() {
            let stage = run.measure(&mut pipeline, &meter, &options.concurrency)?;
            told(&stage);
            profile.stages.push(stage);
        }
        Ok(profile)
    }
}

/// A profile under way.
struct ProfileRun {
    shared: Arc<RunContext>,
    control: Control,
    items: usize,
}

impl ProfileRun {
    fn new<T: Send + 'static>(pipeline: &Pipeline<T>, items: usize) -> Self {
        ProfileRun { shared: pipeline.shared(), control: pipeline.control(), items }
    }

    /// The stages that can be held back.
    fn stages(&self) -> Vec<Arc<StageMeter>> {
        let held = |meter: &Arc<StageMeter>| self.control.is_a_stage(&meter.name);
        self.shared.meters().into_iter().filter(held).collect()
    }

    fn hold_all(&self) {
        for meter in self.stages() {
            self.control.set_exactly(&meter.name, 0);
        }
    }

    /// Waits until the sources have nothing to do any more.
    fn wait_for_source<T: Send + 'static>(&self, pipeline: &mut Pipeline<T>) -> Result<()> {
        let sources = || {
            let meters = self.shared.meters();
            let sources = meters.iter().filter(|meter| meter.kind == StageKind::Source);
            sources.map(|meter| meter.raw().items).sum::<u64>()
        };
        self.wait(pipeline, sources, self.items as u64).map(drop)
    }

    /// Waits until `done` is at least `wanted`, or nothing happens any more. Returns when that was.
    fn wait<T: Send + 'static>(
        &self,
        pipeline: &mut Pipeline<T>,
        done: impl Fn() -> u64,
        wanted: u64,
    ) -> Result<Instant> {
        let mut last = (done(), Instant::now());
        loop {
            // Whatever comes out must not be in the way.
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
            if now >= wanted || last.1.elapsed() > NOTHING_LEFT {
                return Ok(last.1);
            }
            thread::sleep(LOOK);
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
            let wanted = if last { u64::MAX } else { before.items + part };
            let started = Instant::now();
            self.control.set_exactly(&meter.name, concurrency);
            if meter.kind.uses_cpu_pool() {
                self.control.set_threads(concurrency)?;
            }
            let ended = self.wait(pipeline, || meter.raw().items, wanted)?;
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
    /// Sets a concurrency as it is, 0 to hold a stage back.
    fn set_exactly(&self, stage: &str, concurrency: usize) {
        if let Some(meter) = self.shared.meter(stage) {
            meter.concurrency.store(concurrency, Ordering::SeqCst);
            self.tell(stage);
        }
    }
}
