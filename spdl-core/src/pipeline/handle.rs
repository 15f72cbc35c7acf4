//! The running pipeline: an iterator or a stream, which shuts down when dropped.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(feature = "serde")]
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_util::FutureExt;

use crate::error::{Error, ErrorKind, Result, guarded, panicked};
use crate::item::Item;
#[cfg(all(feature = "serde", unix))]
use crate::observe::exporters::monitor_socket::MonitorSocket;
use crate::observe::interval::Snapshotter;
use crate::observe::stalls::StallWatch;
use crate::observe::starvation::StarvationWatch;
use crate::observe::statistics::{Dropped, Statistics};
use crate::pipeline::builder::{Driver, IntervalListener};
use crate::pipeline::control::{ConcurrencyControls, Control};
use crate::pipeline::definition::Definition;
use crate::pipeline::tuning::{TuningClock, TuningTask};
use crate::resume::delivery::Delivery;
use crate::resume::replay::OrderRecord;
use crate::resume::state::State;
use crate::runtime::{Runtime, ThreadRuntime, ThreadWaker, block_on};
use crate::scheduler::RunContext;
use crate::scheduler::queue::{Next, Queue, drop_all};
use crate::scheduler::worker_pool::WorkerPool;
use crate::source::sample::SampleId;
use crate::sync::{MODELLED, Mutex, ThreadEnd, ThreadEndGuard, thread};

/// The consumer takes at most this many items from the last queue under one lock (a *run*).
const MAX_RUN: usize = 64;
/// Target time in which the consumer uses the items of one run.
const RUN_TIME: Duration = Duration::from_micros(20);
/// If no prefetch is set, the last queue holds as many items as are delivered in this time, within
/// its bounds.
const PREFETCH_TIME: Duration = Duration::from_millis(1);
/// Upper bound of the automatic prefetch.
const MAX_PREFETCH: usize = 256;
/// A call with a zero timeout skips at most this many empty epochs.
const MAX_EMPTY_EPOCHS: u32 = 256;
/// The consumer polls and yields this many times before it sleeps.
const POLLS_BEFORE_SLEEP: usize = if MODELLED { 0 } else { 2 };

/// A running pipeline, created by [`PipelineBuilder::build`](crate::PipelineBuilder::build).
///
/// A pipeline is an [`Iterator`] of results. [`into_stream`](Self::into_stream) converts it to a
/// [`Stream`]. The first request for an item, or [`start`](Self::start), starts the work.
///
/// The iterator returns `None` after every sample was delivered, dropped by the failure policy,
/// filtered out or left out (for example, of an incomplete batch), and after [`stop`](Self::stop).
/// The [`Statistics`] count each outcome. If an item fails and ends the pipeline, the iterator
/// returns the results that are already downstream of the failed stage, then one error, then
/// `None`. An error of the runtime or of a listener of [`every`](crate::PipelineBuilder::every)
/// discards the results in the queues.
///
/// # Dropping
/// A pipeline may be dropped at any time. Dropping wakes all waiting threads and tasks and joins
/// the pipeline's threads. A thread that is processing an item finishes that item first. Tasks on a
/// runtime of the caller end at their next poll.
///
/// # Fork
/// The threads belong to the process that started them. If a process forks after the start of the
/// pipeline, `next` in the child process returns the items that were already taken from the last
/// queue, and then an error. Except for `next`, the child process may only drop the pipeline. A
/// pipeline that was not started before the fork can be started in the child process.
pub struct Pipeline<T> {
    output: Arc<Queue<T>>,
    shared: Arc<RunContext>,
    /// Worker pools, each with its initial number of workers. The shared pool is first.
    pools: Vec<(Arc<WorkerPool>, usize)>,
    /// Tasks that are not started yet.
    drivers: Vec<Driver>,
    /// Threads of blocking sources.
    blocking: Vec<(thread::JoinHandle<()>, Arc<ThreadEnd>)>,
    runtime: Option<Arc<dyn Runtime>>,
    own_runtime: Option<Arc<ThreadRuntime>>,
    reporter: Option<Arc<Reporter>>,
    #[cfg(feature = "serde")]
    monitor: Option<PathBuf>,
    #[cfg(all(feature = "serde", unix))]
    socket: Option<MonitorSocket>,
    /// `None` in model checks, which have no clock.
    watch: Option<Arc<StallWatch>>,
    /// `None` if no caller listens, and in model checks.
    starvation: Option<StarvationWatch>,
    record: Option<OrderRecord>,
    /// Present if there is exactly one source.
    delivery: Option<Delivery>,
    /// Whether an epoch may end normally although all its samples failed.
    allows_total_loss: bool,
    /// One past the position of the last delivered item.
    delivered_to: SampleId,
    definition: Definition,
    controls: Arc<ConcurrencyControls>,
    /// The tuner, until it is started.
    tuning: Option<TuningTask>,
    /// Starts an evaluation of the tuner.
    tuning_clock: Option<TuningClock>,
    /// Items taken from the last queue that the consumer has not received yet.
    ready: VecDeque<Item<T>>,
    /// When `ready` was last filled, and with how many items.
    filled: Option<(Instant, usize)>,
    /// Adjusts the depth of the last queue, if no prefetch is set.
    prefetch: Option<Prefetch>,
    /// An error that the consumer has not received yet.
    failed: Option<Error>,
    /// Whether an item of the current epoch has been delivered.
    in_epoch: bool,
    /// Epoch of the last delivery.
    epoch: u64,
    started: bool,
    ended: bool,
    /// When the consumer started to wait for the next item.
    waiting_since: Option<Instant>,
    waker: Option<(thread::ThreadId, Waker)>,
    /// Id of the process that started the threads.
    process: u32,
    /// How long shutdown waits for threads that process an item; `None`: no limit.
    end_timeout: Option<Duration>,
}

/// Automatic depth of the last queue: the number of items delivered in [`PREFETCH_TIME`]. A deeper
/// queue saves sleeps and wake-ups, which take longer than the processing of many small items.
struct Prefetch {
    /// Lower bound of the depth.
    least: usize,
    depth: usize,
    /// Moving average of the time between items, in nanoseconds.
    nanos: f64,
}

impl Prefetch {
    /// Records that `items` were delivered in `time`. Returns the new depth if it changes.
    fn delivered(&mut self, items: usize, time: Duration) -> Option<usize> {
        let each = time.as_nanos() as f64 / items as f64;
        self.nanos += (each - self.nanos) / 8.0;
        let wanted = (PREFETCH_TIME.as_nanos() as f64 / self.nanos.max(1.0)) as usize;
        let wanted = wanted.clamp(self.least, MAX_PREFETCH.max(self.least));
        // Hysteresis: small changes are ignored.
        let changed = wanted > self.depth + self.depth / 2 || wanted < self.depth / 4;
        changed.then(|| {
            self.depth = wanted;
            wanted
        })
    }
}

/// Parts from which a pipeline is created.
pub(crate) struct PipelineParts<T> {
    pub(crate) output: Arc<Queue<T>>,
    pub(crate) shared: Arc<RunContext>,
    pub(crate) pools: Vec<(Arc<WorkerPool>, usize)>,
    pub(crate) drivers: Vec<Driver>,
    pub(crate) runtime: Option<Arc<dyn Runtime>>,
    pub(crate) interval: Option<(Duration, IntervalListener)>,
    /// The path of the monitor socket.
    #[cfg(feature = "serde")]
    pub(crate) monitor: Option<PathBuf>,
    pub(crate) watch: StallWatch,
    pub(crate) starvation: Option<StarvationWatch>,
    pub(crate) record: bool,
    pub(crate) delivery: Option<Delivery>,
    pub(crate) allows_total_loss: bool,
    /// Minimum depth of the last queue, if no prefetch is set.
    pub(crate) min_prefetch: Option<usize>,
    pub(crate) definition: Definition,
    pub(crate) controls: Arc<ConcurrencyControls>,
    pub(crate) tuning: Option<TuningTask>,
}

/// Ends the pipeline if a runtime drops one of its tasks early; otherwise the consumer would wait
/// forever.
struct DriverGuard(Option<Arc<RunContext>>);

impl Drop for DriverGuard {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take()
            && !shared.stopped()
        {
            let message = "the runtime dropped a task of this pipeline before the task had ended; keep the \
                           runtime alive until the pipeline has ended";
            shared.raise(Error::new(ErrorKind::Stopped, message));
        }
    }
}

/// Calls the interval listener periodically.
struct Reporter {
    interval: Duration,
    state: Mutex<(Snapshotter, IntervalListener)>,
}

impl Reporter {
    fn report(&self, shared: &RunContext) {
        let (snapshotter, listener) = &mut *self.state.lock();
        let interval = snapshotter.interval(shared.raw());
        let reported = guarded(|| {
            listener(&interval);
            Ok(())
        });
        if let Err(error) = reported.0
            && !shared.stopped()
        {
            shared.raise(error.with_stage("interval listener"));
        }
    }
}

/// Access to a pipeline's statistics from any thread, also after the pipeline has ended.
#[derive(Clone)]
pub struct Monitor(Arc<RunContext>);

impl Monitor {
    /// Returns the current statistics.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    /// Returns the errors of [background tasks](crate::PipelineBuilder::background), at most the
    /// first 100. The stage of each error is the name of the task.
    pub fn background_errors(&self) -> Vec<Error> {
        self.0.background_errors()
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Monitor")
    }
}

/// Result of [`Pipeline::next_event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// The next item.
    Item(T),
    /// All items of this epoch were delivered.
    EpochEnd(u64),
}

/// Next event for the consumer.
enum NextStep<T> {
    Item(T),
    EpochEnd,
    Failed(Error),
    End,
}

impl<T: Send + 'static> Pipeline<T> {
    pub(crate) fn new(parts: PipelineParts<T>) -> Self {
        let reporter = parts.interval.map(|(interval, listener)| {
            let state = Mutex::new((Snapshotter::default(), listener));
            Arc::new(Reporter { interval, state })
        });
        Pipeline {
            output: parts.output,
            shared: parts.shared,
            pools: parts.pools,
            drivers: parts.drivers,
            blocking: Vec::new(),
            runtime: parts.runtime,
            own_runtime: None,
            reporter,
            #[cfg(feature = "serde")]
            monitor: parts.monitor,
            #[cfg(all(feature = "serde", unix))]
            socket: None,
            watch: (!MODELLED).then(|| Arc::new(parts.watch)),
            starvation: parts.starvation.filter(|_| !MODELLED),
            record: parts.record.then(|| {
                OrderRecord::beginning_at(parts.delivery.as_ref().map_or(0, Delivery::steps))
            }),
            delivery: parts.delivery,
            allows_total_loss: parts.allows_total_loss,
            delivered_to: SampleId::default(),
            definition: parts.definition,
            controls: parts.controls,
            tuning_clock: parts.tuning.as_ref().map(TuningTask::clock),
            tuning: parts.tuning,
            ready: VecDeque::new(),
            filled: None,
            // Model checks have no clock.
            prefetch: parts.min_prefetch.filter(|_| !MODELLED).map(|least| Prefetch {
                least,
                depth: least,
                nanos: PREFETCH_TIME.as_nanos() as f64,
            }),
            failed: None,
            in_epoch: false,
            epoch: 0,
            started: false,
            ended: false,
            waiting_since: None,
            waker: None,
            process: 0,
            end_timeout: None,
        }
    }

    /// Starts the threads and tasks of the pipeline, so that the first items are ready sooner.
    /// Without this call, the first request for an item starts them.
    ///
    /// # Errors
    /// `Io` if the operating system cannot create a thread; `Stopped` if the pipeline has ended; the
    /// errors of a monitor socket, if one is set.
    pub fn start(&mut self) -> Result<()> {
        if self.ended {
            return Err(Error::new(ErrorKind::Stopped, "the pipeline has ended"));
        }
        if self.started {
            return Ok(());
        }
        self.started = true;
        self.process = std::process::id();
        self.shared.mark_start();
        let started = self.start_threads();
        if started.is_err() {
            self.stop();
        }
        started
    }

    fn start_threads(&mut self) -> Result<()> {
        #[cfg(feature = "serde")]
        self.open_monitor()?;
        for (pool, workers) in &self.pools {
            pool.open(*workers)?;
        }
        let runtime = match &self.runtime {
            Some(runtime) => Arc::clone(runtime),
            None => {
                let own = Arc::new(ThreadRuntime::new()?);
                self.own_runtime = Some(Arc::clone(&own));
                own
            }
        };
        for driver in self.drivers.drain(..) {
            let mut unfinished = DriverGuard(Some(Arc::clone(&self.shared)));
            let task = (driver.task)(Arc::clone(&runtime));
            let task = async move {
                let result = AssertUnwindSafe(task).catch_unwind().await;
                if let (Some(shared), Err(payload)) = (unfinished.0.take(), result) {
                    shared.raise(panicked(payload));
                }
            };
            if driver.blocks {
                let ended = Arc::<ThreadEnd>::default();
                let ends = ThreadEndGuard(Arc::clone(&ended));
                let thread = thread::Builder::new().name("spdl-source".into());
                let thread = thread.spawn(move || {
                    let _ends = ends;
                    block_on(task);
                });
                let thread = thread.map_err(|error| {
                    Error::new(ErrorKind::Io, "cannot create the thread of the source")
                        .with_source(error)
                })?;
                self.blocking.push((thread, ended));
            } else {
                runtime.spawn(Box::pin(task));
            }
        }
        if let Some(reporter) = &self.reporter {
            let (reporter, shared) = (Arc::clone(reporter), Arc::clone(&self.shared));
            let clock = Arc::clone(&runtime);
            runtime.spawn(Box::pin(async move {
                let interval = reporter.interval;
                while shared.stop_signal.while_running(clock.sleep(interval)).await.is_some() {
                    reporter.report(&shared);
                }
            }));
        }
        if let Some(tuning) = self.tuning.take() {
            let shared = Arc::clone(&self.shared);
            runtime.spawn(Box::pin(async move {
                let _ = shared.stop_signal.while_running(tuning.run()).await;
            }));
        }
        // A consumer of a stream has no waiting thread that checks for stalls. The caller's runtime
        // may have no timer.
        if let (Some(watch), true) = (&self.watch, self.own_runtime.is_some()) {
            let (watch, shared) = (Arc::clone(watch), Arc::clone(&self.shared));
            let clock = Arc::clone(&runtime);
            runtime.spawn(Box::pin(async move {
                let interval = watch.interval();
                while shared.stop_signal.while_running(clock.sleep(interval)).await.is_some() {
                    watch.check(Instant::now(), || shared.progress_while_waiting());
                }
            }));
        }
        Ok(())
    }

    /// Opens the monitor socket, if a path is set.
    #[cfg(feature = "serde")]
    fn open_monitor(&mut self) -> Result<()> {
        let Some(path) = &self.monitor else { return Ok(()) };
        #[cfg(unix)]
        {
            let shared = Arc::clone(&self.shared);
            self.socket = Some(MonitorSocket::open(path, Box::new(move || shared.raw()))?);
            Ok(())
        }
        #[cfg(not(unix))]
        {
            let message = "a monitor socket needs a Unix system; remove the setting `monitor`";
            let error = Error::new(ErrorKind::Unsupported, message);
            Err(error.with_key(path.display().to_string()))
        }
    }

    /// Waits at most `timeout` for the next item.
    ///
    /// Returns `Pending` after the timeout; no item is lost. Use `next_timeout` if the caller must
    /// check for signals or other events while it waits. The call that finds the end of the
    /// pipeline also joins the threads, for which only [`set_end_timeout`](Self::set_end_timeout)
    /// sets a limit.
    ///
    /// ```
    /// # use spdl_core::{DatasetSource, PipelineBuilder};
    /// # use std::{task::Poll, time::Duration};
    /// let mut numbers = PipelineBuilder::new(DatasetSource::new(vec![1])).build()?;
    /// loop {
    ///     match numbers.next_timeout(Duration::from_millis(50)) {
    ///         Poll::Ready(Some(item)) => println!("{}", item?),
    ///         Poll::Ready(None) => break,
    ///         Poll::Pending => println!("still waiting"),
    ///     }
    /// }
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn next_timeout(&mut self, timeout: Duration) -> Poll<Option<Result<T>>> {
        let deadline = Instant::now().checked_add(timeout);
        let mut left = timeout;
        let mut empty_epochs = 0;
        loop {
            match self.step(left) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(NextStep::EpochEnd) => {
                    // Empty epochs may follow each other without end.
                    empty_epochs += 1;
                    if let Some(deadline) = deadline {
                        left = deadline.saturating_duration_since(Instant::now());
                        if left.is_zero()
                            && (!timeout.is_zero() || empty_epochs == MAX_EMPTY_EPOCHS)
                        {
                            return Poll::Pending;
                        }
                    }
                }
                Poll::Ready(step) => return Poll::Ready(step.into_item()),
            }
        }
    }

    /// Like [`next_timeout`](Self::next_timeout), and also returns the end of each epoch.
    ///
    /// ```
    /// # use spdl_core::{DatasetSource, PipelineBuilder};
    /// # use spdl_core::pipeline::Event;
    /// # use std::{task::Poll, time::Duration};
    /// let mut numbers = PipelineBuilder::new(DatasetSource::new(vec![7])).epochs(0..2).build()?;
    /// let mut events = Vec::new();
    /// loop {
    ///     match numbers.next_event(Duration::from_millis(50)) {
    ///         Poll::Ready(Some(event)) => events.push(event?),
    ///         Poll::Ready(None) => break,
    ///         Poll::Pending => {}
    ///     }
    /// }
    /// let epoch = |number| [Event::Item(7), Event::EpochEnd(number)];
    /// assert_eq!(events, [epoch(0), epoch(1)].concat());
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn next_event(&mut self, timeout: Duration) -> Poll<Option<Result<Event<T>>>> {
        self.step(timeout).map(|step| match step {
            NextStep::Item(item) => Some(Ok(Event::Item(item))),
            NextStep::EpochEnd => Some(Ok(Event::EpochEnd(self.epoch))),
            NextStep::Failed(error) => Some(Err(error)),
            NextStep::End => None,
        })
    }

    /// Sets how long the pipeline waits at its end for threads that still process an item.
    ///
    /// After a failure or the last item, stages upstream may still process items that are no longer
    /// needed. The threads of these stages end after the current item, even if the pipeline no
    /// longer waits for them. Default: no limit.
    pub fn set_end_timeout(&mut self, at_most: Duration) {
        self.end_timeout = Some(at_most);
    }

    /// Returns the next item if it is ready, otherwise `Pending`. Equals
    /// [`next_timeout`](Self::next_timeout) with a zero timeout.
    pub fn try_next(&mut self) -> Poll<Option<Result<T>>> {
        self.next_timeout(Duration::ZERO)
    }

    /// Waits for the next item, and calls `check` every `interval` while waiting.
    ///
    /// If `check` returns an error, the call returns it, and the pipeline can be used again. For
    /// example, the bindings of another language can handle signals in `check`.
    ///
    /// # Errors
    /// Only errors of `check`. An error of the pipeline is returned as an item.
    pub fn next_checked<E>(
        &mut self,
        interval: Duration,
        mut check: impl FnMut() -> Result<(), E>,
    ) -> Result<Option<Result<T>>, E> {
        loop {
            match self.next_timeout(interval) {
                Poll::Ready(item) => return Ok(item),
                Poll::Pending => check()?,
            }
        }
    }

    /// Returns the items of the next epoch, or the remaining items of the current one.
    ///
    /// Waits until the first item or the end of the epoch arrives. Returns `None` after the last
    /// epoch. While the caller uses the items, the pipeline also processes items of later epochs.
    ///
    /// ```
    /// # use spdl_core::{DatasetSource, PipelineBuilder};
    /// let mut numbers = PipelineBuilder::new(DatasetSource::new(vec![1, 2, 3]))
    ///     .batch("batch", 2, false)
    ///     .epochs(0..2)
    ///     .build()?;
    /// while let Some(epoch) = numbers.next_epoch() {
    ///     let batches = epoch.collect::<spdl_core::Result<Vec<_>>>()?;
    ///     assert_eq!(batches, [vec![1, 2], vec![3]]);
    /// }
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn next_epoch(&mut self) -> Option<Epoch<'_, T>> {
        let mut ended = false;
        // After the end of the pipeline, the current epoch has no further items.
        if (!self.in_epoch || self.ended) && self.ready.is_empty() {
            match self.wait(Self::fill) {
                None => self.epoch = self.ready.front().map_or(0, |item| item.header.id.epoch),
                Some(NextStep::End) => return None,
                // The epoch has no items.
                Some(NextStep::EpochEnd) => ended = true,
                Some(NextStep::Failed(error)) => self.failed = Some(error),
                Some(NextStep::Item(_)) => {}
            }
        }
        Some(Epoch { pipeline: self, ended })
    }

    fn wait<R>(&mut self, poll: impl Fn(&mut Self, &mut Context<'_>) -> Poll<R>) -> R {
        loop {
            if let Poll::Ready(ready) = self.wait_for(Duration::MAX, &poll) {
                return ready;
            }
        }
    }

    fn step(&mut self, timeout: Duration) -> Poll<NextStep<T>> {
        if let Some(item) = self.take_ready() {
            return Poll::Ready(NextStep::Item(item));
        }
        self.wait_for(timeout, Self::poll)
    }

    /// Polls until ready, sleeping in between, for at most `timeout`.
    fn wait_for<R>(
        &mut self,
        timeout: Duration,
        poll: impl Fn(&mut Self, &mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        let waker = self.own_waker();
        let mut cx = Context::from_waker(&waker);
        let deadline = Instant::now().checked_add(timeout);
        let mut polls = if timeout.is_zero() { 0 } else { POLLS_BEFORE_SLEEP };
        loop {
            if let ready @ Poll::Ready(_) = poll(self, &mut cx) {
                return ready;
            }
            if polls > 0 {
                polls -= 1;
                thread::yield_now();
                continue;
            }
            let now = Instant::now();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(now));
            if left == Some(Duration::ZERO) {
                self.check_stalls(now);
                return Poll::Pending;
            }
            let interval = self.check_stalls(now);
            match left.into_iter().chain(interval).min() {
                Some(time) => thread::park_timeout(time),
                None => thread::park(),
            }
        }
    }

    /// Checks for stalls, if the consumer has waited long enough. Returns when to check again.
    fn check_stalls(&self, now: Instant) -> Option<Duration> {
        let watch = self.watch.as_ref()?;
        let interval = watch.interval();
        let waited = now.saturating_duration_since(self.waiting_since?);
        if waited >= interval {
            watch.check(now, || self.shared.progress_while_waiting());
        }
        Some(interval)
    }

    fn own_waker(&mut self) -> Waker {
        let thread = thread::current().id();
        match &self.waker {
            Some((known, waker)) if *known == thread => waker.clone(),
            _ => {
                let waker = ThreadWaker::current();
                self.waker = Some((thread, waker.clone()));
                waker
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<NextStep<T>> {
        loop {
            if let Some(item) = self.take_ready() {
                return Poll::Ready(NextStep::Item(item));
            }
            match self.fill(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {}
                Poll::Ready(Some(step)) => return Poll::Ready(step),
            }
        }
    }

    /// Fills `ready` from the last queue. Returns the next event if it is not an item.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<Option<NextStep<T>>> {
        loop {
            match self.poll_output(cx) {
                // Earlier runs of the program have already delivered all items taken.
                Poll::Ready(None) if self.ready.is_empty() => {}
                filled => return filled,
            }
        }
    }

    /// Like [`fill`](Self::fill), but `ready` may stay empty: if earlier runs of the program have
    /// already delivered all items taken.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Option<NextStep<T>>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Some(NextStep::Failed(error)));
        }
        if self.ended {
            return Poll::Ready(Some(NextStep::End));
        }
        if let Err(error) = self.start() {
            self.ended = true;
            return Poll::Ready(Some(NextStep::Failed(error)));
        }
        if self.process != std::process::id() {
            // The threads do not exist in this process, and one of them may have held a lock at the
            // fork.
            self.ended = true;
            let message = "cannot use a pipeline in a fork of the process that started it; build \
                           a new pipeline in this process";
            let error = Error::new(ErrorKind::Stopped, message);
            return Poll::Ready(Some(NextStep::Failed(error)));
        }
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        let most = self.run_length(since);
        match self.output.poll_run(most, &mut self.ready, cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => {
                let now = Instant::now();
                let before = self.filled.replace((now, self.ready.len()));
                if let (Some(prefetch), Some((before, items))) = (&mut self.prefetch, before)
                    && let Some(depth) = prefetch.delivered(items, now - before)
                {
                    self.output.resize(depth);
                }
                if let Some(clock) = &mut self.tuning_clock {
                    clock.delivered(now);
                }
                self.waiting_since = None;
                let count = self.ready.len() as u64;
                self.shared.consumer.delivered(now - since, self.shared.elapsed());
                if count > 1 {
                    self.shared.consumer.delivered_at_once(count - 1);
                }
                if let Some(watch) = &mut self.starvation {
                    watch.delivered(now, || self.shared.raw());
                }
                self.skip_delivered();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Next::EpochEnd(epoch))) => {
                let delivered = std::mem::take(&mut self.in_epoch)
                    || self.delivery.as_ref().is_some_and(|it| it.delivered_before(epoch))
                    || self.allows_total_loss;
                self.epoch = epoch;
                self.delivered_to = SampleId { epoch: epoch.saturating_add(1), index: 0 };
                let closed = self.delivery.as_mut().map_or(Ok(()), |it| it.end_epoch(epoch));
                let closed = closed.and_then(|()| self.shared.failures.end_epoch(epoch, delivered));
                // If the pipeline has failed, its error is the cause and is returned next.
                if let Err(error) = closed
                    && !self.shared.failures.is_fatal()
                {
                    self.ended = true;
                    self.stop();
                    return Poll::Ready(Some(NextStep::Failed(error)));
                }
                Poll::Ready(Some(NextStep::EpochEnd))
            }
            Poll::Ready(Some(_)) => {
                self.ended = true;
                self.shared.mark_end();
                // The queue also closes after a failure, which is then the result.
                let mut error = self.shared.failures.take_fatal();
                let until = self.end_timeout.and_then(|time| Instant::now().checked_add(time));
                self.join(until);
                // Further failures may have occurred during shutdown.
                if let Some(late) = self.shared.failures.take_fatal() {
                    error = Some(match error {
                        Some(error) => error.with_others([late]),
                        None => late,
                    });
                }
                Poll::Ready(Some(error.map_or(NextStep::End, NextStep::Failed)))
            }
        }
    }

    /// Maximum number of items of the next *run* (see [`MAX_RUN`]): as many as the consumer uses in
    /// [`RUN_TIME`].
    fn run_length(&self, now: Instant) -> usize {
        let Some((since, items)) = self.filled.filter(|_| !MODELLED) else {
            // Model checks have no clock, so that schedules can be replayed.
            return if MODELLED { 2 } else { 1 };
        };
        let each = now.duration_since(since).as_nanos() / items.max(1) as u128;
        let most = RUN_TIME.as_nanos() / each.max(1);
        usize::try_from(most).unwrap_or(MAX_RUN).clamp(1, MAX_RUN)
    }

    /// Drops items that an earlier run of the program delivered.
    fn skip_delivered(&mut self) {
        let Some(delivery) = &self.delivery else { return };
        let ledger = &delivery.ledger;
        if ledger.has_ended_before() {
            self.ready.retain(|item| !ledger.ended_before(&item.header));
        }
    }

    /// Returns the next item for the consumer, if one is ready.
    fn take_ready(&mut self) -> Option<T> {
        loop {
            let item = self.ready.pop_front()?;
            self.in_epoch = true;
            self.epoch = item.header.id.epoch;
            if self.shared.failures.dropped_total() > 0 {
                let index = item.header.member().end();
                self.delivered_to = self.delivered_to.max(SampleId { epoch: self.epoch, index });
            }
            if let Some(delivery) = &mut self.delivery
                && !delivery.deliver(&item.header)
            {
                if let Some(record) = &mut self.record {
                    // A skipped step keeps its number.
                    record.push_step([]);
                }
                drop_all([item]);
                continue;
            }
            if let Some(record) = &mut self.record {
                let before = record.len();
                item.header.member().samples(&mut |id| record.push_sample(id));
                record.end_step(before);
            }
            return Some(item.value);
        }
    }

    /// Removes and returns the dropped samples whose positions precede the end of the item that was
    /// delivered last. After the end of an epoch, returns all dropped samples of the epoch.
    ///
    /// Each dropped sample is returned once, so calls after each item return the dropped samples of
    /// this item. If stages emit in input order, the result depends only on the data. At most
    /// [`MAX_DROPPED_LISTED`](crate::observe::MAX_DROPPED_LISTED) dropped samples are kept for the
    /// next call; [`Statistics::dropped_total`](crate::Statistics::dropped_total) counts all.
    ///
    /// ```
    /// # use spdl_core::{DatasetSource, Error, ErrorKind, OnError, PipelineBuilder};
    /// let odd = |n: u64| if n % 3 == 1 { Err(Error::new(ErrorKind::Corrupt, "1")) } else { Ok(n) };
    /// let mut pipeline = PipelineBuilder::new(DatasetSource::new((0..8).collect::<Vec<_>>()))
    ///     .map("odd", odd)
    ///     .batch("batch", 2, false)
    ///     .on_error(OnError::SKIP)
    ///     .deterministic()
    ///     .build()?;
    /// let mut dropped = Vec::new();
    /// while let Some(batch) = pipeline.next() {
    ///     batch?;
    ///     let of_batch = pipeline.take_dropped().into_iter();
    ///     dropped.push(of_batch.map(|dropped| dropped.id.index).collect::<Vec<_>>());
    /// }
    /// // The batches are [0, 2], [3, 5] and [6].
    /// assert_eq!(dropped, [vec![1], vec![4], vec![]]);
    /// assert_eq!(pipeline.take_dropped().len(), 1);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn take_dropped(&mut self) -> Vec<Dropped> {
        let end = if self.ended { None } else { Some(self.delivered_to) };
        self.shared.failures.take_dropped(end)
    }

    /// Stops the pipeline and joins its threads. Undelivered items are dropped, and `next` returns
    /// `None` from then on. A second call has no effect.
    pub fn stop(&mut self) {
        self.join(None);
    }

    /// Like [`stop`](Self::stop), but waits at most `timeout` for threads that process an item.
    ///
    /// # Errors
    /// `Timeout` if any thread still processes an item after `timeout`. Such a thread ends after
    /// this item. The pipeline no longer waits for the thread, not even when it is dropped.
    pub fn stop_timeout(&mut self, timeout: Duration) -> Result<()> {
        if self.join(Instant::now().checked_add(timeout)) {
            return Ok(());
        }
        let message = format!(
            "the pipeline has not stopped within {timeout:?}: threads still process items, and \
             each ends after its item"
        );
        Err(Error::new(ErrorKind::Timeout, message))
    }

    /// Returns the failure that ends the pipeline, if the consumer has not received it yet.
    ///
    /// After an early [`stop`](Self::stop), the caller can check whether the pipeline had failed.
    ///
    /// ```
    /// # use spdl_core::{Error, ErrorKind, PipelineBuilder};
    /// let refuse = |_: i32| -> spdl_core::Result<i32> { Err(Error::new(ErrorKind::User, "no")) };
    /// let mut pipeline = PipelineBuilder::from_iter([1]).map("refuse", refuse).build()?;
    /// assert!(pipeline.take_failure().is_none());
    /// assert!(pipeline.next().is_some_and(|item| item.is_err()));
    /// // The iterator has already returned the error.
    /// assert!(pipeline.take_failure().is_none());
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn take_failure(&mut self) -> Option<Error> {
        self.failed.take().or_else(|| self.shared.failures.take_fatal())
    }

    /// Converts the pipeline to a stream, for any executor.
    ///
    /// ```
    /// # use spdl_core::{DatasetSource, PipelineBuilder, block_on};
    /// use futures_util::TryStreamExt;
    /// let numbers = PipelineBuilder::new(DatasetSource::new(vec![1, 2, 3])).build()?;
    /// let sum = async { numbers.into_stream().try_fold(0, async |sum, n| Ok(sum + n)).await };
    /// assert_eq!(block_on(sum)?, 6);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn into_stream(self) -> PipelineStream<T> {
        PipelineStream(self)
    }

    /// Returns the current statistics.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    /// Returns a handle that reads the statistics from any thread, also after the pipeline has
    /// ended.
    pub fn monitor(&self) -> Monitor {
        Monitor(Arc::clone(&self.shared))
    }

    /// Returns a handle that changes threads and concurrency while the pipeline runs.
    pub fn control(&self) -> Control {
        Control::new(Arc::clone(&self.shared), Arc::clone(&self.controls))
    }

    pub(crate) fn shared(&self) -> Arc<RunContext> {
        Arc::clone(&self.shared)
    }

    /// Returns the definition of the pipeline.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Returns the samples delivered so far, in delivery order. `None` unless
    /// [`record_order`](crate::PipelineBuilder::record_order) is set.
    pub fn order_record(&self) -> Option<&OrderRecord> {
        self.record.as_ref()
    }
}

impl<T> NextStep<T> {
    fn into_item(self) -> Option<Result<T>> {
        match self {
            NextStep::Item(item) => Some(Ok(item)),
            NextStep::Failed(error) => Some(Err(error)),
            NextStep::EpochEnd | NextStep::End => None,
        }
    }
}

impl<T: Send + 'static> Iterator for Pipeline<T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        loop {
            if let Poll::Ready(item) = self.next_timeout(Duration::MAX) {
                return item;
            }
        }
    }
}

/// The items of one epoch, created by [`Pipeline::next_epoch`].
///
/// An epoch may be dropped before its end; the pipeline continues.
pub struct Epoch<'a, T> {
    pipeline: &'a mut Pipeline<T>,
    ended: bool,
}

impl<T: Send + 'static> Iterator for Epoch<'_, T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if self.ended {
            return None;
        }
        let step = self.pipeline.wait(Pipeline::poll);
        self.ended = matches!(step, NextStep::EpochEnd | NextStep::End);
        step.into_item()
    }
}

impl<T> Epoch<'_, T> {
    /// Returns the number of the epoch, counted from 0.
    pub fn number(&self) -> u64 {
        self.pipeline.epoch
    }

    /// Returns the checkpoint state after the items delivered so far, like [`Pipeline::state`].
    ///
    /// `Pipeline::state` cannot be called while an `Epoch` borrows the pipeline. After the epoch's
    /// iterator has returned `None`, the state is at the start of the next epoch.
    ///
    /// ```
    /// # use spdl_core::{DatasetSource, PipelineBuilder};
    /// let numbers = || PipelineBuilder::new(DatasetSource::new(vec![1, 2, 3])).epochs(0..2);
    /// let mut pipeline = numbers().build()?;
    /// let mut epoch = pipeline.next_epoch().expect("the first one");
    /// epoch.next();
    /// let state = epoch.state()?;
    /// assert_eq!((state.epoch(), state.steps()), (0, 1));
    /// assert_eq!(numbers().resume(state).build()?.count(), 5);
    ///
    /// assert_eq!(epoch.by_ref().count(), 2);
    /// assert_eq!((epoch.state()?.epoch(), epoch.state()?.steps()), (1, 3));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Pipeline::state`].
    pub fn state(&self) -> Result<State> {
        self.pipeline.state()
    }
}

impl<T> fmt::Debug for Epoch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch").field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// A [`Pipeline`] as a stream, created by [`Pipeline::into_stream`].
///
/// The stream is a separate type, because methods such as `next` and `map` are ambiguous on a type
/// that is both an iterator and a stream. Dropping the stream joins the pipeline's threads, so it
/// may block: see [`Pipeline`].
#[derive(Debug)]
pub struct PipelineStream<T>(Pipeline<T>);

impl<T> PipelineStream<T> {
    /// Returns the checkpoint state after the items delivered so far, like [`Pipeline::state`].
    ///
    /// ```
    /// # use spdl_core::{DatasetSource, PipelineBuilder, block_on};
    /// use futures_util::StreamExt;
    /// let numbers = || PipelineBuilder::new(DatasetSource::new(vec![1, 2, 3])).deterministic();
    /// let mut stream = numbers().build()?.into_stream();
    /// let state = block_on(async {
    ///     stream.next().await;
    ///     stream.state()
    /// })?;
    /// let rest = numbers().resume(state).build()?.into_stream();
    /// let rest: Vec<_> = block_on(rest.map(|n| n.unwrap_or(0)).collect());
    /// assert_eq!(rest, [2, 3]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Pipeline::state`].
    pub fn state(&self) -> Result<State> {
        self.0.state()
    }
}

impl<T: Send + 'static> Stream for PipelineStream<T> {
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let pipeline = &mut self.get_mut().0;
        loop {
            match pipeline.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(NextStep::EpochEnd) => {}
                Poll::Ready(step) => return Poll::Ready(step.into_item()),
            }
        }
    }
}

// The pipeline never pins `T`.
impl<T> Unpin for PipelineStream<T> {}

impl<T> Pipeline<T> {
    /// Returns the checkpoint state of the run. A resumed run does not repeat the items delivered
    /// so far.
    ///
    /// The caller may call `state` at any time, also before the first item, after the last item and
    /// after an error. A call takes microseconds, but longer if many samples were delivered out of
    /// order.
    ///
    /// # Errors
    /// `Unsupported` in these cases:
    /// - The pipeline has several sources that are divided among ranks. Mix data sets in one source instead.
    /// - The pipeline has several sources, and a list or item that stages split was delivered in part.
    /// - A merge whose policy [chooses](crate::stage::MergePolicy::chooses) the branches got an item that is not one
    ///   sample, because its branch groups, splits, zips or merges items.
    /// - A stage declares that it [buffers items](crate::Stage::holds_back), or the engine has
    ///   detected that it does.
    /// - An aggregator has split an item, a part of the item was delivered, and a stage does not
    ///   emit its outputs in input order. Call
    ///   [`deterministic`](crate::PipelineBuilder::deterministic).
    pub fn state(&self) -> Result<State> {
        let message = "a pipeline with several sources that are divided among ranks has no checkpoint state; mix \
                       data sets in one source instead";
        let missing = || Error::new(ErrorKind::Unsupported, message);
        self.delivery.as_ref().ok_or_else(missing)?.state()
    }

    /// Stops the pipeline and joins its threads. Waits at most until `deadline`. Returns whether
    /// all threads have ended.
    fn join(&mut self, deadline: Option<Instant>) -> bool {
        self.ended = true;
        self.in_epoch = false;
        if self.started && self.process != std::process::id() {
            // The threads do not exist in a forked child process, and their locks must not be used.
            self.blocking.drain(..).for_each(std::mem::forget);
            self.pools.drain(..).for_each(std::mem::forget);
            std::mem::forget(std::mem::take(&mut self.ready));
            std::mem::forget(self.own_runtime.take());
            return true;
        }
        self.shared.stop();
        drop_all(self.ready.drain(..));
        self.drivers.clear();
        let mut all = true;
        for (pool, _) in self.pools.drain(..) {
            all &= pool.join(deadline);
        }
        for (thread, ended) in self.blocking.drain(..) {
            if deadline.is_none_or(|deadline| ended.wait_until(deadline)) {
                // A panic was caught and reported.
                let _ = thread.join();
            } else {
                all = false;
            }
        }
        if let Some(runtime) = self.own_runtime.take() {
            all &= runtime.shut_down_until(deadline);
        }
        if let Some(reporter) = self.reporter.take()
            && self.started
            && all
        {
            // The last interval is reported at the end.
            let last = catch_unwind(AssertUnwindSafe(|| reporter.report(&self.shared)));
            drop(last);
        }
        #[cfg(all(feature = "serde", unix))]
        drop(self.socket.take());
        all
    }
}

impl<T> Drop for Pipeline<T> {
    fn drop(&mut self) {
        self.join(None);
    }
}

impl<T> fmt::Debug for Pipeline<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("started", &self.started)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
