//! Settings of the whole pipeline, and `build`.

use std::collections::HashSet;
use std::future::Future;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;

use super::PipelineBuilder;
use super::plan::{OutputSettings, Plan};
use crate::error::Result;
use crate::memory::buffer::BufferPool;
use crate::observe::hooks::Hook;
use crate::observe::interval::Interval;
use crate::observe::setting_names::SettingNames;
use crate::observe::stalls::{STALL_TIME, Stall, StallListener};
use crate::observe::starvation::{STARVATION_INTERVAL, Starvation, StarvationListener};
use crate::observe::statistics::Dropped;
use crate::observe::thread_times::ExternalTimes;
use crate::pipeline::definition::{Definition, PipelineSettings, Setting};
use crate::pipeline::handle::Pipeline;
use crate::pipeline::options::Order;
use crate::pipeline::tuning::{LearnedSettings, Tune};
use crate::resume::replay::OrderRecord;
use crate::resume::state::State;
use crate::runtime::Runtime;
use crate::runtime::executor::CpuExecutor;
use crate::scheduler::failure::{DropListener, FailureBudget, OnError};
use crate::scheduler::worker_pool::{WorkerPool, WorkerSource};
use crate::scheduler::{ExternalTimesReader, RunContext};
use crate::source::shard::Shard;
use crate::stage::batch::PREFETCH;

/// Receives the statistics of each interval.
pub(crate) type IntervalListener = Box<dyn FnMut(&Interval) + Send>;
pub(super) type Background =
    Box<dyn FnOnce(Arc<dyn Runtime>) -> BoxFuture<'static, Result<()>> + Send>;

pub(super) struct Settings {
    pub(super) seed: Option<u64>,
    pub(super) threads: Option<usize>,
    pub(super) executor: Option<Arc<dyn CpuExecutor>>,
    pub(super) epochs: Option<Range<u64>>,
    pub(super) order: Option<Order>,
    pub(super) on_error: Option<OnError>,
    pub(super) allows_total_loss: bool,
    pub(super) prefetch: Option<usize>,
    pub(super) memory: Option<usize>,
    pub(super) largest_item: Option<usize>,
    pub(super) buffers: Option<BufferPool>,
    pub(super) runtime: Option<Arc<dyn Runtime>>,
    pub(super) hooks: Vec<Arc<dyn Hook>>,
    pub(super) on_drop: Vec<DropListener>,
    pub(super) interval: Option<(Duration, IntervalListener)>,
    pub(super) tune: Option<Tune>,
    pub(super) learned: LearnedSettings,
    pub(super) setting_names: SettingNames,
    pub(super) external_times: Option<ExternalTimesReader>,
    #[cfg(feature = "serde")]
    pub(super) monitor: Option<std::path::PathBuf>,
    pub(super) stall_time: Duration,
    pub(super) on_stall: Option<StallListener>,
    pub(super) starvation_interval: Duration,
    pub(super) on_starvation: Option<StarvationListener>,
    pub(super) background: Vec<(Arc<str>, Background)>,
    pub(super) record: bool,
    pub(super) replay: Option<Arc<OrderRecord>>,
    pub(super) shard: Shard,
    pub(super) resume: Option<State>,
    pub(super) audit: bool,
    pub(super) skip_steps: Vec<Range<u64>>,
    /// For a profile: the number of source items. Every queue must have room for all of them.
    pub(super) profile_items: Option<usize>,
}

impl Settings {
    pub(super) fn new() -> Self {
        Settings {
            seed: None,
            threads: None,
            executor: None,
            epochs: None,
            order: None,
            on_error: None,
            allows_total_loss: false,
            prefetch: None,
            memory: None,
            largest_item: None,
            buffers: None,
            runtime: None,
            hooks: Vec::new(),
            on_drop: Vec::new(),
            interval: None,
            tune: None,
            learned: LearnedSettings::default(),
            setting_names: SettingNames::default(),
            external_times: None,
            #[cfg(feature = "serde")]
            monitor: None,
            stall_time: STALL_TIME,
            on_stall: None,
            starvation_interval: STARVATION_INTERVAL,
            on_starvation: None,
            background: Vec::new(),
            record: false,
            replay: None,
            shard: Shard::WHOLE,
            resume: None,
            audit: true,
            skip_steps: Vec::new(),
            profile_items: None,
        }
    }

    pub(super) fn threads(&self) -> usize {
        let executor = || self.executor.as_ref().map(|executor| executor.parallelism().max(1));
        self.threads.or_else(executor).unwrap_or_else(crate::memory::machine::usable_cpus)
    }

    pub(super) fn order(&self) -> Order {
        // The record gives the order of a replay.
        let default = if self.replay.is_some() { Order::Input } else { Order::Completion };
        self.order.unwrap_or(default)
    }
}

/// Settings of the whole pipeline.
impl<T: Send + 'static> PipelineBuilder<T> {
    fn set(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(&mut self.settings);
        self.settings_made = true;
        self
    }

    /// Sets the seed of the random numbers of stages and merges. Samplers have separate seeds.
    /// Default: 0.
    pub fn seed(self, seed: u64) -> Self {
        self.set(|settings| settings.seed = Some(seed))
    }

    /// Sets the number of threads of the shared worker pool; 0 means 1.
    ///
    /// Default: the number of CPUs that the process may use, by affinity and cgroup quota. With an
    /// [`executor`](Self::executor), the default is its parallelism.
    /// [`Control`](crate::pipeline::Control) changes the number while the pipeline runs.
    pub fn threads(self, threads: usize) -> Self {
        self.set(|settings| settings.threads = Some(threads.max(1)))
    }

    /// Runs CPU stages on an executor of the caller, except stages with dedicated threads or a
    /// separate executor. Default: threads of the pipeline.
    pub fn executor(self, executor: Arc<dyn CpuExecutor>) -> Self {
        self.set(|settings| settings.executor = Some(executor))
    }

    /// Adds the times of threads of the program that run stages, such as those of an
    /// [`executor`](Self::executor), to the statistics and the diagnosis. `times` returns the times so far, quickly.
    ///
    /// ```
    /// # use spdl_core::{PipelineBuilder, StageOptions};
    /// # use spdl_core::observe::{ExternalTimes, GilRequests, ThreadTimes};
    /// # use std::sync::Arc;
    /// let threads = Arc::new(ThreadTimes::default());
    /// let of_threads = Arc::clone(&threads);
    /// let mut pipeline = PipelineBuilder::from_iter(0..9)
    ///     .external_times(move || {
    ///         let mut times = ExternalTimes::default();
    ///         (times.workers, times.gil) = (of_threads.read(), Some(GilRequests::default()));
    ///         times
    ///     })
    ///     .map(StageOptions::new("double").holds_gil(true), |n| Ok(2 * n))
    ///     .build()?;
    /// assert_eq!(pipeline.by_ref().count(), 9);
    /// let statistics = pipeline.statistics();
    /// assert!(statistics.gil.is_some() && statistics.stages[1].holds_gil);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn external_times(self, times: impl Fn() -> ExternalTimes + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.external_times = Some(Box::new(times)))
    }

    /// Sets which epochs to run, one after the other.
    ///
    /// Epochs never mix. `0..` runs without end; [`next_epoch`](Pipeline::next_epoch) iterates
    /// epoch by epoch. An epoch in which the source yields no items is the last one, unless a
    /// resumed run starts in this epoch. Default: `0..1`.
    pub fn epochs(self, epochs: impl RangeBounds<u64>) -> Self {
        let start = match epochs.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match epochs.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => u64::MAX,
        };
        self.set(|settings| settings.epochs = Some(start..end))
    }

    /// Makes the order of results, and thus the content of every batch, depend only on the source
    /// and the seed. Timing and the number of threads then have no effect on the order.
    ///
    /// Each stage emits its outputs in input order, unless its options set another order. Such a
    /// stage, or a merge by [`Arrival`](crate::stage::Arrival), makes the order depend on timing.
    pub fn deterministic(self) -> Self {
        self.set(|settings| settings.order = Some(Order::Input))
    }

    /// Sets the failure policy of all stages without a separate policy. The limit of the policy
    /// applies to these stages together. Default: the first failure ends the pipeline.
    pub fn on_error(self, on_error: OnError) -> Self {
        self.set(|settings| settings.on_error = Some(on_error))
    }

    /// Lets an epoch end normally even if samples failed and none was delivered.
    ///
    /// Without this setting, the pipeline ends with an error at the end of such an epoch. The error
    /// has the kind, stage and key of the first failure.
    ///
    /// ```
    /// # use spdl_core::{Error, ErrorKind, OnError, PipelineBuilder, Result};
    /// let refuse = |_: i32| -> Result<i32> { Err(Error::new(ErrorKind::Corrupt, "no image")) };
    /// let build = || PipelineBuilder::from_iter(0..3).map("decode", refuse).on_error(OnError::SKIP);
    /// let error = build().build()?.next().and_then(Result::err);
    /// assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::Corrupt));
    /// assert_eq!(build().allow_total_loss().build()?.count(), 0);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn allow_total_loss(self) -> Self {
        self.set(|settings| settings.allows_total_loss = true)
    }

    /// Calls `listener` for each sample that the failure policy drops. An error of `listener` ends
    /// the pipeline.
    pub fn on_drop(
        self,
        listener: impl Fn(&Dropped) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.on_drop.push(Box::new(listener)))
    }

    /// Writes each dropped sample to a quarantine list.
    #[cfg(feature = "serde")]
    pub fn quarantine(self, list: crate::observe::quarantine::Quarantine) -> Self {
        self.on_drop(move |dropped| list.record(dropped))
    }

    /// Sets how many finished items may wait for the consumer; 0 means 1.
    ///
    /// Default: as many as the consumer uses in 1 ms, at least 2 and at most 256. For batches of
    /// [`fill`](Self::fill), the default is the stage's [`queue`](crate::StageOptions::queue), or 2
    /// if that is not set. For all other items, a number below the concurrency of the last stage,
    /// set or default, is raised to this concurrency.
    pub fn prefetch(self, items: usize) -> Self {
        self.set(|settings| settings.prefetch = Some(items.max(1)))
    }

    /// Sets the memory budget in bytes, for [`measured`](Self::measured) items and for batches.
    ///
    /// Before a measured stage processes an item, it waits until the budget has room for the
    /// output. The stage may [declare](crate::Stage::output_bytes) an upper bound of the output's
    /// size. Otherwise the size is estimated from the largest recent output, and any excess is
    /// counted as overdrawn. A stage that aggregates does not wait: an aggregate takes over the
    /// reservations of its items. Other memory is not limited. Default: a quarter of the memory
    /// that the process may use, including cgroup limits.
    pub fn memory(self, bytes: usize) -> Self {
        self.set(|settings| settings.memory = Some(bytes))
    }

    /// Sets the largest size of one item in bytes.
    ///
    /// Each measured stage leaves this much of the budget free for each measured stage downstream.
    /// If a CPU stage declares a larger size for an item, the item fails with `LimitExceeded`. An
    /// async stage processes such an item alone: the item waits until it is the oldest one of the
    /// stage, and may then exceed the budget. Default: the budget
    /// divided by twice the number *n* of measured stages. If the largest batch is larger, but at
    /// most the budget divided by *n*, the default is the size of this batch.
    pub fn largest_item(self, bytes: usize) -> Self {
        self.set(|settings| settings.largest_item = Some(bytes))
    }

    /// Sets the buffer pool of batches, for example a [pinned](BufferPool::pinned) one. Default: a
    /// new pool.
    pub fn buffers(self, pool: BufferPool) -> Self {
        self.set(|settings| settings.buffers = Some(pool))
    }

    /// Sets the runtime that polls async stages, merges, background tasks and sources. An iterator
    /// source runs on a separate thread instead.
    ///
    /// Default: a dedicated [`ThreadRuntime`](crate::runtime::ThreadRuntime). If the runtime drops
    /// a task, for example at its shutdown, the pipeline ends with an error of kind `Stopped`.
    pub fn runtime(self, runtime: Arc<dyn Runtime>) -> Self {
        self.set(|settings| settings.runtime = Some(runtime))
    }

    /// Adds a hook, whose methods are called around stages and items. Hooks nest: the hook that is
    /// added first is the outermost.
    pub fn hook(self, hook: impl Hook) -> Self {
        self.set(|settings| settings.hooks.push(Arc::new(hook)))
    }

    /// Calls `listener` every `interval` with the statistics of the interval.
    ///
    /// The last call, at the end of the pipeline, covers the time since the previous call. This
    /// call is omitted if the pipeline was not started, or if a thread has not ended in time. The
    /// listener must return quickly, because it runs on the runtime that polls async stages. If the
    /// listener panics while the pipeline runs, the pipeline ends with an error.
    pub fn every(
        self,
        interval: Duration,
        listener: impl FnMut(&Interval) + Send + 'static,
    ) -> Self {
        self.set(|settings| settings.interval = Some((interval, Box::new(listener))))
    }

    /// Tunes the settings while the pipeline runs, or fixes them to those of an earlier run.
    ///
    /// [`Tune::automatic`] changes one setting at a time and keeps the change only if the measured
    /// throughput rises: the number of threads, the concurrency of stages, and the capacity of
    /// queues, of which the last is the prefetch depth. Fewer threads and smaller in-flight windows
    /// are kept if the throughput does not fall. Numbers that are set in the builder are
    /// starting values. Exception: a stage whose concurrency is set to 1 keeps it. Order and content
    /// of the items never depend on these settings, if the pipeline is
    /// [deterministic](Self::deterministic). [`Statistics::decisions`](crate::Statistics::decisions)
    /// lists all changes. See [`Tuner`](crate::observe::Tuner) for the rules.
    ///
    /// The tuner measures only while items are delivered, at most every 0.5 s. While the consumer
    /// uses an item, it needs no CPU. Default: no tuning, except the in-flight window of
    /// [async stages](crate::StageOptions::concurrency) and the [prefetch depth](Self::prefetch).
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// use spdl_core::pipeline::Tune;
    /// let pipeline = PipelineBuilder::from_iter(0..1000)
    ///     .map("work", |n| Ok(n + 1))
    ///     .tune(Tune::automatic())
    ///     .build()?;
    /// let (monitor, control) = (pipeline.monitor(), pipeline.control());
    /// assert_eq!(pipeline.count(), 1000);
    /// for decision in monitor.statistics().decisions {
    ///     println!("{decision}");
    /// }
    /// let settings = control.freeze();
    /// assert!(settings.stages.contains_key("work"));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`build`](Self::build) returns `InvalidArgument` if fixed settings name a stage that this
    /// pipeline does not have.
    pub fn tune(self, tune: Tune) -> Self {
        self.set(|settings| settings.tune = Some(tune))
    }

    /// Begins with the settings that earlier runs have learned, and stores those of this run.
    ///
    /// Pass the same value to the pipeline of each epoch: the in-flight window of
    /// [async stages](crate::StageOptions::concurrency), and the settings that
    /// [`tune`](Self::tune) has chosen, then need not be found again in each epoch. Order and content
    /// of the items do not depend on them. Default: each run begins with the default settings.
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// use spdl_core::pipeline::LearnedSettings;
    /// let learned = LearnedSettings::default();
    /// for epoch in 0..3 {
    ///     let fetch = |n| async move { Ok(n) };
    ///     let pipeline = PipelineBuilder::from_iter(0..100)
    ///         .map_async("fetch", fetch)
    ///         .epochs(epoch..epoch + 1)
    ///         .learned(&learned)
    ///         .build()?;
    ///     assert_eq!(pipeline.count(), 100);
    /// }
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn learned(self, learned: &LearnedSettings) -> Self {
        let learned = learned.clone();
        self.set(|settings| settings.learned = learned)
    }

    /// Sets how users of the program change settings, for the advice of
    /// [`diagnose`](crate::Statistics::diagnose).
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// use spdl_core::observe::{SettingChange, SettingNames};
    /// let names = SettingNames::new(|change, _stages| match change {
    ///     SettingChange::Threads { threads } => Some(format!("--threads {threads}")),
    ///     _ => None,
    /// });
    /// let pipeline = PipelineBuilder::from_iter(0..9).map("work", |n| Ok(n)).setting_names(names);
    /// assert_eq!(pipeline.build()?.count(), 9);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn setting_names(self, names: SettingNames) -> Self {
        self.set(|settings| settings.setting_names = names)
    }

    /// Serves statistics on a Unix socket at `path` while the pipeline runs, for `spdl top` and other programs.
    ///
    /// Each reader that connects gets a JSON object in one line immediately, for the time since the start, then one a
    /// second, and one at the end, with `"ended": true`. The object has the fields of an
    /// [`Interval`](crate::observe::Interval), and `pid`, `items_per_s`, `data_readiness`, the `diagnosis` in words
    /// and the `bottleneck` as data ([`Diagnosis`](crate::observe::Diagnosis)). A slow reader misses lines and never
    /// delays the pipeline. At most 8 readers are served. Without readers, the socket uses no CPU time.
    ///
    /// Only the owner of the process may connect. A socket file of a killed process, or of another pipeline of this
    /// process, is replaced. At the end of the pipeline, the file is removed.
    ///
    /// Starting the pipeline fails with `InvalidArgument` if another process or file uses the path, with `Unsupported`
    /// on Windows, and with the kind of the I/O error if the socket cannot be created.
    ///
    /// ```
    /// # use spdl_core::PipelineBuilder;
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("monitor.sock");
    /// let mut pipeline = PipelineBuilder::from_iter(0..1000).monitor(&path).build()?;
    /// pipeline.next();
    /// # #[cfg(unix)] {
    /// use std::{io::BufRead, io::BufReader, os::unix::net::UnixStream};
    /// let mut lines = BufReader::new(UnixStream::connect(&path)?).lines();
    /// let line = lines.next().expect("a line")?;
    /// assert!(line.contains(r#""items_per_s":"#));
    /// # }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "serde")]
    pub fn monitor(self, path: impl Into<std::path::PathBuf>) -> Self {
        let path = path.into();
        self.set(|settings| settings.monitor = Some(path))
    }

    /// Calls `listener` if a stage has work but finishes no item for the time `after`, while the
    /// consumer waits for an item. Zero means 1 ms.
    ///
    /// A stage does not stall if it has no input, or if it waits because its output queue is full.
    /// If the consumer is slow, no stage stalls. Each stall is reported once. The next stall of
    /// the same stage is reported after twice the time. The listener runs on the thread that waits
    /// in [`next`](Iterator::next), or on the runtime of the pipeline.
    ///
    /// Default: stalls of 60 s have no listener. With the feature `tracing`, all reported stalls
    /// are logged as warnings.
    ///
    /// ```
    /// # use spdl_core::{PipelineBuilder, observe::StallCause};
    /// # use std::{sync::mpsc, time::Duration};
    /// let (sender, stalls) = mpsc::channel();
    /// let slow = |n: u32| Ok(std::thread::sleep(Duration::from_millis(200 * u64::from(n))));
    /// let mut pipeline = PipelineBuilder::from_iter([0, 1])
    ///     .map("slow", slow)
    ///     .on_stall(Duration::from_millis(50), move |stall| drop(sender.send(stall.clone())))
    ///     .build()?;
    /// assert_eq!(pipeline.by_ref().count(), 2);
    /// let stall = stalls.recv().expect("one stall");
    /// assert_eq!((&*stall.stage, stall.cause), ("slow", StallCause::Function));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn on_stall(
        self,
        after: Duration,
        listener: impl Fn(&Stall) + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| {
            settings.stall_time = after;
            settings.on_stall = Some(Box::new(listener));
        })
    }

    /// Calls `listener` every `interval` if the consumer starves: if it waited for data for more than a quarter of
    /// this time. The start-up does not count.
    ///
    /// The listener gets the share of the time and the diagnosis. It runs on the thread or task of the consumer, at
    /// the first delivery after the interval. A consumer that pauses is not reported.
    ///
    /// Default: every 60 s, without a listener. With the feature `tracing`, starvation is logged as a warning.
    ///
    /// ```
    /// # use spdl_core::PipelineBuilder;
    /// # use std::{sync::mpsc, time::Duration};
    /// let (sender, warnings) = mpsc::channel();
    /// let slow = |n: u32| Ok(std::thread::sleep(Duration::from_millis(5 * u64::from(n.min(1)))));
    /// let pipeline = PipelineBuilder::from_iter(0..40)
    ///     .map("slow", slow)
    ///     .threads(1)
    ///     .on_starvation(Duration::from_millis(50), move |it| drop(sender.send(it.clone())))
    ///     .build()?;
    /// assert_eq!(pipeline.count(), 40);
    /// let starvation = warnings.recv().expect("a warning");
    /// assert!(starvation.waited > 0.25);
    /// assert!(starvation.to_string().contains("slow"));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn on_starvation(
        self,
        interval: Duration,
        listener: impl Fn(&Starvation) + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| {
            settings.starvation_interval = interval;
            settings.on_starvation = Some(Box::new(listener));
        })
    }

    /// Runs a background task on the pipeline's runtime, from the start of the pipeline.
    ///
    /// If the pipeline ends before the task, the task is dropped. An error of the task does not end
    /// the pipeline; [`Monitor::background_errors`] returns it.
    ///
    /// [`Monitor::background_errors`]: crate::pipeline::Monitor::background_errors
    pub fn background<F, R>(self, name: &str, task: F) -> Self
    where
        F: FnOnce(Arc<dyn Runtime>) -> R + Send + 'static,
        R: Future<Output = Result<()>> + Send + 'static,
    {
        let name = name.into();
        let task: Background = Box::new(move |runtime| Box::pin(task(runtime)));
        self.set(|settings| settings.background.push((name, task)))
    }

    /// Records the order in which samples are delivered, so that the run can be
    /// [replayed](Self::replay). [`Pipeline::order_record`] returns the record.
    pub fn record_order(self) -> Self {
        self.set(|settings| settings.record = true)
    }

    /// Delivers the samples in a recorded order.
    ///
    /// Stages then emit their outputs in input order, unless their options set another order.
    /// Samples that are not in the record are left out.
    pub fn replay(self, record: OrderRecord) -> Self {
        self.set(|settings| settings.replay = Some(Arc::new(record)))
    }

    /// Reads only the samples of one rank from each source, in every epoch. Default: all samples.
    pub fn shard(self, shard: Shard) -> Self {
        self.set(|settings| settings.shard = shard)
    }

    /// Resumes a run from a checkpoint state of [`Pipeline::state`], or from several
    /// [combined](State::combine) states.
    ///
    /// Earlier epochs and finished samples are skipped. Threads, concurrency, queues and memory may
    /// differ from the earlier run. Failures of the earlier run do not count toward the limits of
    /// [`on_error`](Self::on_error).
    ///
    /// [`build`](Self::build) fails if the state belongs to another seed, source or graph, unless
    /// the state [allows](State::allow_change) each change. `build` also fails if the state belongs
    /// to another [`shard`](Self::shard), unless it is a combined state. The epoch of the state
    /// must not precede the first of [`epochs`](Self::epochs).
    pub fn resume(self, state: State) -> Self {
        self.set(|settings| settings.resume = Some(state))
    }

    /// Sets whether each epoch is audited at its end.
    ///
    /// The audit checks that every sample of the source was delivered, dropped, filtered out or
    /// left out exactly once. If the check fails, the pipeline ends with an error of kind
    /// `Internal`. The audit takes negligible time. A pipeline of several sources is not audited.
    /// Default: true.
    pub fn audit(self, audit: bool) -> Self {
        self.set(|settings| settings.audit = audit)
    }

    /// Skips the items with these step numbers, counted from 0 over all epochs, including those of
    /// earlier runs.
    ///
    /// Skipped items are computed but not delivered, and their samples count as left out. The
    /// numbers of later items do not change in [`State::steps`] and in [`OrderRecord::samples_of`].
    /// The latter returns no samples for a skipped step. A pipeline of several sources skips no
    /// items.
    pub fn skip_steps(self, steps: Range<u64>) -> Self {
        self.set(|settings| settings.skip_steps.push(steps))
    }

    /// Returns the definition of the pipeline, to inspect, print as a tree, or store.
    ///
    /// ```
    /// use spdl_core::PipelineBuilder;
    /// let builder = PipelineBuilder::from_iter(0..10).map("double", |n| Ok(n * 2)).seed(7);
    /// let tree = builder.definition().to_string();
    /// assert!(tree.contains("double") && tree.contains("i32 → i32") && tree.contains("seed 7"));
    /// ```
    pub fn definition(&self) -> Definition {
        let settings = &self.settings;
        let mut summary = PipelineSettings {
            seed: Setting::new(settings.seed, 0),
            epochs: Setting::new(settings.epochs.clone(), 0..1),
            order: Setting::new(settings.order, settings.order()),
            on_error: Setting::new(settings.on_error, OnError::Raise),
            prefetch: Setting::new(settings.prefetch, PREFETCH),
            threads: Setting::new(settings.threads, settings.threads()),
            more: Default::default(),
        };
        if let Some(bytes) = settings.memory {
            let bytes = Setting::new(Some(format!("{bytes} bytes")), String::new());
            summary.more.insert("memory".into(), bytes);
        }
        let mut add = |what: &str, value: String| {
            summary.more.insert(what.into(), Setting::new(Some(value), String::new()));
        };
        if let Some(executor) = &settings.executor {
            add("executor", format!("{executor:?}"));
        }
        if let Some((interval, _)) = &settings.interval {
            add("report every", format!("{interval:?}"));
        }
        if let Some(tune) = &settings.tune {
            add("tune", tune.to_string());
        }
        #[cfg(feature = "serde")]
        if let Some(path) = &settings.monitor {
            add("monitor", path.display().to_string());
        }
        if settings.on_stall.is_some() {
            add("report stalls after", format!("{:?}", settings.stall_time));
        }
        if settings.on_starvation.is_some() {
            add("report starvation every", format!("{:?}", settings.starvation_interval));
        }
        if let Some(record) = &settings.replay {
            add("replays", format!("{} samples", record.len()));
        }
        if settings.shard != Shard::WHOLE {
            let Shard { remainder, .. } = settings.shard;
            add("shard", format!("{} ({remainder})", settings.shard));
        }
        if let Some(state) = &settings.resume {
            add("resumes", format!("epoch {} after step {}", state.epoch(), state.steps()));
        }
        if !settings.audit {
            add("audit", "off".into());
        }
        if settings.record {
            add("records", "its order".into());
        }
        let background: Vec<&str> = settings.background.iter().map(|(name, _)| &**name).collect();
        if !background.is_empty() {
            add("background", background.join(", "));
        }
        let hooks: Vec<_> = settings.hooks.iter().map(|hook| format!("{hook:?}")).collect();
        if !hooks.is_empty() {
            add("hooks", hooks.join(", "));
        }
        if !settings.on_drop.is_empty() {
            add("drop listeners", settings.on_drop.len().to_string());
        }
        self.part().with_settings(summary)
    }

    /// Returns the definition of a branch or a path.
    pub(super) fn part(&self) -> Definition {
        Definition::new(self.source.clone(), self.stages.clone())
    }

    /// Builds a pipeline for a profile with `items` items of the source.
    pub(crate) fn build_to_profile(self, items: usize) -> Result<Pipeline<T>> {
        self.set(|settings| {
            settings.profile_items = Some(items);
            settings.on_error = Some(OnError::SKIP);
        })
        .build()
    }

    /// Builds the pipeline. No work starts until the first item is requested, or until
    /// [`Pipeline::start`] is called.
    ///
    /// # Errors
    /// `InvalidArgument` for a duplicate name, an invalid setting, or a state of another pipeline.
    /// `LimitExceeded` if a batch does not fit in the memory budget. `Unsupported` if a pipeline of
    /// several sources that are divided among ranks is resumed, or a setting is not supported. Any
    /// error of the first instance of a [`fill`](Self::fill) stage that is created here, and any error
    /// of [`MergePolicy::check`](crate::stage::MergePolicy::check).
    pub fn build(mut self) -> Result<Pipeline<T>> {
        let definition = self.definition();
        let threads = self.settings.threads();
        let mut shared = RunContext::new(
            self.settings.seed.unwrap_or(0),
            threads,
            std::mem::take(&mut self.settings.on_drop),
            self.settings.buffers.take().unwrap_or_default(),
        );
        shared.setting_names = std::mem::take(&mut self.settings.setting_names);
        if let Some(times) = self.settings.external_times.take() {
            // The context is new.
            let _ = shared.external_times.set(times);
        }
        let shared = Arc::new(shared);
        let place = match &self.settings.executor {
            Some(executor) => WorkerSource::Executor(Arc::clone(executor)),
            None => WorkerSource::Threads { cpus: Vec::new() },
        };
        let on_error = self.settings.on_error.unwrap_or_default();
        let pool = WorkerPool::new("worker", &shared, place);
        let mut plan = Plan {
            failure_budget: Arc::new(FailureBudget::new(on_error)),
            hooks: std::mem::take(&mut self.settings.hooks).into(),
            min_prefetch: None,
            settings: self.settings,
            shared,
            stages: 0,
            sources: 0,
            source_facts: Vec::new(),
            is_unmerged: false,
            levels: 0,
            branched: Vec::new(),
            joints: 0,
            enclosing: Vec::new(),
            largest_batch: 0,
            inlet: (0, false),
            pools: vec![(Arc::clone(&pool), threads)],
            pool,
            nodes: Vec::new(),
            drivers: Vec::new(),
            names: HashSet::new(),
            controls: Vec::new(),
            error: on_error.validate().err(),
        };
        let output = (self.plan)(&mut plan, OutputSettings { last: true, sizer: None }).queue;
        plan.finish(output, definition)
    }
}
