//! A pipeline that runs: an iterator, or a stream, which winds down whenever it is dropped.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_util::FutureExt;

use crate::error::{Error, ErrorKind, Result, guarded, panicked};
use crate::item::Item;
use crate::observe::interval::Snapshotter;
use crate::observe::statistics::Statistics;
use crate::pipeline::builder::{Driver, IntervalListener};
use crate::pipeline::control::{ConcurrencyControls, Control};
use crate::pipeline::definition::Definition;
use crate::resume::delivery::Delivery;
use crate::resume::replay::OrderRecord;
use crate::resume::state::State;
use crate::runtime::{Runtime, ThreadRuntime, ThreadWaker, block_on};
use crate::scheduler::RunContext;
use crate::scheduler::queue::{Next, Queue, drop_all};
use crate::scheduler::worker_pool::WorkerPool;
use crate::sync::{MODELLED, Mutex, ThreadEnd, ThreadEndGuard, thread};

/// The most items the consumer takes out of the last queue at once, where it is quick.
const LONGEST_RUN: usize = 64;
/// What the consumer takes at once should not last it longer than this.
const RUN_TIME: Duration = Duration::from_micros(20);
/// The last queue holds what is delivered in this time, where its depth is not given.
const PREFETCH_TIME: Duration = Duration::from_millis(1);
/// But no more than this.
const DEEPEST_PREFETCH: usize = 256;
/// How many ends of epochs are passed over at once by a consumer that does not wait.
const MOST_AT_ONCE: u32 = 256;
/// How often the consumer looks again, letting others run in between, before it goes to sleep.
const LOOKS_BEFORE_SLEEP: usize = if MODELLED { 0 } else { 2 };

/// A pipeline, made by a [`PipelineBuilder`](crate::PipelineBuilder).
///
/// It is an [`Iterator`] of results, and [`into_stream`](Self::into_stream) makes it a [`Stream`].
/// The first call to `next` starts it. It ends
/// with `None` when everything that the stages made of every item of the source was delivered, what
/// failed was dropped by a policy, and what was in unwanted short batches left out (all counted in
/// the [`Statistics`]); or with one error, after everything that was finished before it.
///
/// # Dropping
/// A pipeline may be dropped at any moment: that wakes everything that waits, and joins every
/// thread of its own. An item that is being computed is computed to its end first. Tasks on a
/// runtime of the caller's end when that polls them next.
///
/// # Fork
/// The threads stay in the process that started them: in a fork of it, `next` is an error (after the
/// tiny items, if any, that had been taken out together with the last one). Nothing else of the
/// pipeline may be used there but dropping it.
pub struct Pipeline<T> {
    output: Arc<Queue<T>>,
    shared: Arc<RunContext>,
    /// The shared pool first, each with how many workers it begins with.
    pools: Vec<(Arc<WorkerPool>, usize)>,
    /// Tasks not yet started.
    drivers: Vec<Driver>,
    /// Threads of sources that block.
    blocking: Vec<(thread::JoinHandle<()>, Arc<ThreadEnd>)>,
    runtime: Option<Arc<dyn Runtime>>,
    own_runtime: Option<Arc<ThreadRuntime>>,
    reporter: Option<Arc<Reporter>>,
    record: Option<OrderRecord>,
    /// Present where there is one source.
    delivery: Option<Delivery>,
    definition: Definition,
    knobs: Arc<ConcurrencyControls>,
    /// What has been taken out of the last queue.
    ready: VecDeque<Item<T>>,
    /// When that was last filled, and with how many items.
    filled: Option<(Instant, usize)>,
    /// How deep the last queue is, where that follows from how fast items are delivered.
    prefetch: Option<Prefetch>,
    /// What the consumer has yet to be told.
    failed: Option<Error>,
    /// Whether a part of the current epoch has been delivered.
    in_epoch: bool,
    /// The epoch of what was delivered last.
    epoch: u64,
    started: bool,
    ended: bool,
    /// Since when the consumer has been waiting for the next item.
    waiting_since: Option<Instant>,
    waker: Option<(thread::ThreadId, Waker)>,
    /// The process whose threads do the work.
    process: u32,
    /// How long the end waits for threads that are still at work; `None`: until they are done.
    patience: Option<Duration>,
}

/// How deep the last queue is: what comes in a moment, since a sleep and a wake-up take longer than
/// many small items.
struct Prefetch {
    /// Never less than this.
    least: usize,
    depth: usize,
    /// The mean time between items, of late.
    nanos: f64,
}

impl Prefetch {
    /// Takes in that `items` came in `time`. Returns the depth where it is to change.
    fn delivered(&mut self, items: usize, time: Duration) -> Option<usize> {
        let each = time.as_nanos() as f64 / items as f64;
        self.nanos += (each - self.nanos) / 8.0;
        let wanted = (PREFETCH_TIME.as_nanos() as f64 / self.nanos.max(1.0)) as usize;
        let wanted = wanted.clamp(self.least, DEEPEST_PREFETCH.max(self.least));
        // Not for every change of the wind.
        let changed = wanted > self.depth + self.depth / 2 || wanted < self.depth / 4;
        changed.then(|| {
            self.depth = wanted;
            wanted
        })
    }
}

/// What a pipeline is put together from.
pub(crate) struct PipelineParts<T> {
    pub(crate) output: Arc<Queue<T>>,
    pub(crate) shared: Arc<RunContext>,
    pub(crate) pools: Vec<(Arc<WorkerPool>, usize)>,
    pub(crate) drivers: Vec<Driver>,
    pub(crate) runtime: Option<Arc<dyn Runtime>>,
    pub(crate) interval: Option<(Duration, IntervalListener)>,
    pub(crate) record: bool,
    pub(crate) delivery: Option<Delivery>,
    /// The least depth of the last queue, where nobody has set it.
    pub(crate) least_prefetch: Option<usize>,
    pub(crate) definition: Definition,
    pub(crate) knobs: ConcurrencyControls,
}

/// Ends the pipeline where a runtime drops one of its tasks before that has ended: else the
/// consumer would wait for ever.
struct DriverGuard(Option<Arc<RunContext>>);

impl Drop for DriverGuard {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take()
            && !shared.stopped()
        {
            let message = "the runtime dropped a task of this pipeline before it had ended";
            shared.raise(Error::new(ErrorKind::Stopped, message));
        }
    }
}

/// Tells a listener what happened, every so often.
struct Reporter {
    interval: Duration,
    state: Mutex<(Snapshotter, IntervalListener)>,
}

impl Reporter {
    fn report(&self, shared: &RunContext) {
        let (snapshotter, listener) = &mut *self.state.lock();
        let interval = snapshotter.interval(shared.raw());
        let told = guarded(|| {
            listener(&interval);
            Ok(())
        });
        if let Err(error) = told.0
            && !shared.stopped()
        {
            shared.raise(error.with_stage("interval listener"));
        }
    }
}

/// A view of a pipeline's statistics that can be used from any thread, also after its end.
#[derive(Clone)]
pub struct Monitor(Arc<RunContext>);

impl Monitor {
    /// The counters as they are now.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }

    /// The errors of [background tasks](crate::PipelineBuilder::background), each with the task's
    /// name as its stage; the first 100.
    pub fn background_errors(&self) -> Vec<Error> {
        self.0.background_errors()
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Monitor")
    }
}

/// What [`Pipeline::next_event`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<T> {
    /// The next item.
    Item(T),
    /// All items of this epoch have been given.
    EpochEnd(u64),
}

/// What comes next for the consumer.
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
            record: parts.record.then(|| {
                OrderRecord::beginning_at(parts.delivery.as_ref().map_or(0, Delivery::steps))
            }),
            delivery: parts.delivery,
            definition: parts.definition,
            knobs: Arc::new(parts.knobs),
            ready: VecDeque::new(),
            filled: None,
            // A model has no clock.
            prefetch: parts.least_prefetch.filter(|_| !MODELLED).map(|least| Prefetch {
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
            patience: None,
        }
    }

    /// Starts the work, so that the first items are ready sooner. Done by the first `next` else.
    ///
    /// # Errors
    /// `Io` where the operating system refuses a thread; `Stopped` after the end.
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
                    Error::new(ErrorKind::Io, "cannot start the source's thread").with_source(error)
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
                while shared.while_running(clock.sleep(interval)).await.is_some() {
                    reporter.report(&shared);
                }
            }));
        }
        Ok(())
    }

    /// Waits for the next item, but not longer than `timeout`: `Pending` then, and asking again
    /// goes on waiting. For callers that must look up now and then, for a signal say.
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
                    // There may be no end of epochs of which nothing is left.
                    empty_epochs += 1;
                    if let Some(deadline) = deadline {
                        left = deadline.saturating_duration_since(Instant::now());
                        if left.is_zero() && (!timeout.is_zero() || empty_epochs == MOST_AT_ONCE) {
                            return Poll::Pending;
                        }
                    }
                }
                Poll::Ready(step) => return Poll::Ready(step.into_item()),
            }
        }
    }

    /// As [`next_timeout`](Self::next_timeout), and tells where an epoch ends.
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

    /// How long the pipeline waits, when it has ended by itself, for threads that are still at work
    /// on an item that nobody wants any more: those in front of a stage that has failed. They end by
    /// themselves when it is done. Default: it waits until all of them have ended.
    pub fn set_patience(&mut self, at_most: Duration) {
        self.patience = Some(at_most);
    }

    /// The next item, where one is ready: `Pending` where none is.
    pub fn try_next(&mut self) -> Poll<Option<Result<T>>> {
        self.next_timeout(Duration::ZERO)
    }

    /// Waits for the next item, and calls `check` every `interval` meanwhile; where that returns an
    /// error, gives it back, and the pipeline can be asked again. So an embedding language sees its
    /// signals while it waits.
    ///
    /// # Errors
    /// Only `check`'s. Failures of the pipeline are in the item.
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

    /// The items of the next epoch, or of the rest of the current one, where that has not been
    /// taken to its end; waits until there is one. `None` after the last epoch. The pipeline goes on
    /// making items of epochs to come meanwhile.
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
        // Once the pipeline has ended, no rest of an epoch is left of which another part could come.
        if (!self.in_epoch || self.ended) && self.ready.is_empty() {
            match self.wait(Self::fill) {
                None => self.epoch = self.ready.front().map_or(0, |item| item.header.id.epoch),
                Some(NextStep::End) => return None,
                // An epoch of which nothing is left.
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

    /// Polls until it is ready, sleeping in between, but not longer than `timeout`.
    fn wait_for<R>(
        &mut self,
        timeout: Duration,
        poll: impl Fn(&mut Self, &mut Context<'_>) -> Poll<R>,
    ) -> Poll<R> {
        let waker = self.own_waker();
        let mut cx = Context::from_waker(&waker);
        let deadline = Instant::now().checked_add(timeout);
        let mut looks = if timeout.is_zero() { 0 } else { LOOKS_BEFORE_SLEEP };
        loop {
            if let ready @ Poll::Ready(_) = poll(self, &mut cx) {
                return ready;
            }
            if looks > 0 {
                looks -= 1;
                thread::yield_now();
                continue;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match left {
                Some(Duration::ZERO) => return Poll::Pending,
                Some(left) => thread::park_timeout(left),
                None => thread::park(),
            }
        }
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

    /// Gets items ready. What else comes, if that comes first, is given back.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<Option<NextStep<T>>> {
        loop {
            match self.fill_once(cx) {
                // All of it was delivered by an earlier run.
                Poll::Ready(None) if self.ready.is_empty() => {}
                filled => return filled,
            }
        }
    }

    /// The same; there may be nothing among what came that is still wanted.
    fn fill_once(&mut self, cx: &mut Context<'_>) -> Poll<Option<NextStep<T>>> {
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
            // The threads are not here, and a lock may be held by one of them for ever.
            self.ended = true;
            let message = "this pipeline belongs to the process that started it, of which this \
                           one is a fork; build another one here";
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
                self.waiting_since = None;
                let count = self.ready.len() as u64;
                self.shared.consumer.delivered(now - since, self.shared.elapsed());
                if count > 1 {
                    self.shared.consumer.delivered_at_once(count - 1);
                }
                self.pass_over();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Next::EpochEnd(epoch))) => {
                self.in_epoch = false;
                self.epoch = epoch;
                let closed = self.delivery.as_mut().map_or(Ok(()), |it| it.end_epoch(epoch));
                // Where the pipeline has failed, that says why, and comes next.
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
                // The end of data is only believed once no failure explains it.
                let mut error = self.shared.failures.take_fatal();
                let until = self.patience.and_then(|time| Instant::now().checked_add(time));
                self.join(until);
                // Others may have failed while they were wound down.
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

    /// How many items to take at once: no more than are used up in a moment.
    fn run_length(&self, now: Instant) -> usize {
        let Some((since, items)) = self.filled.filter(|_| !MODELLED) else {
            // A model has no clock, or no schedule could be played again.
            return if MODELLED { 2 } else { 1 };
        };
        let each = now.duration_since(since).as_nanos() / items.max(1) as u128;
        let most = RUN_TIME.as_nanos() / each.max(1);
        usize::try_from(most).unwrap_or(LONGEST_RUN).clamp(1, LONGEST_RUN)
    }

    /// Drops what an earlier run has delivered already.
    fn pass_over(&mut self) {
        let Some(delivery) = &self.delivery else { return };
        let ledger = &delivery.ledger;
        if ledger.has_ended_before() {
            self.ready.retain(|item| !ledger.ended_before(&item.header));
        }
    }

    /// The next item for the consumer, where it is there.
    fn take_ready(&mut self) -> Option<T> {
        loop {
            let item = self.ready.pop_front()?;
            self.in_epoch = true;
            self.epoch = item.header.id.epoch;
            if let Some(delivery) = &mut self.delivery
                && !delivery.deliver(&item.header)
            {
                if let Some(record) = &mut self.record {
                    // Its number is not given to another one.
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

    /// Ends the work now. What waits is woken, what is not yet delivered is dropped, and every
    /// thread of the pipeline is joined. `next` gives `None` from then on. Stopping twice is fine.
    pub fn stop(&mut self) {
        self.join(None);
    }

    /// The same, but waits no longer than `timeout` for items that are being computed.
    ///
    /// # Errors
    /// `Timeout` where some still are. Their threads end by themselves when they are done; nothing
    /// waits for them any more, not even dropping the pipeline.
    pub fn stop_timeout(&mut self, timeout: Duration) -> Result<()> {
        if self.join(Instant::now().checked_add(timeout)) {
            return Ok(());
        }
        let message = format!(
            "after {timeout:?} some threads are still at work on an item; they end when it is done"
        );
        Err(Error::new(ErrorKind::Timeout, message))
    }

    /// The failure that ends the pipeline, or is about to, where the consumer has not been told of it
    /// yet. For those who stop a pipeline before its end, and want to know whether it was sound.
    ///
    /// ```
    /// # use spdl_core::{Error, ErrorKind, PipelineBuilder};
    /// let refuse = |_: i32| -> spdl_core::Result<i32> { Err(Error::new(ErrorKind::User, "no")) };
    /// let mut pipeline = PipelineBuilder::from_iter([1]).map("refuse", refuse).build()?;
    /// assert!(pipeline.take_failure().is_none());
    /// assert!(pipeline.next().is_some_and(|item| item.is_err()));
    /// // That was told already.
    /// assert!(pipeline.take_failure().is_none());
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn take_failure(&mut self) -> Option<Error> {
        self.failed.take().or_else(|| self.shared.failures.take_fatal())
    }

    /// The same items for an async consumer, on any executor.
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

    /// The counters as they are now.
    pub fn statistics(&self) -> Statistics {
        self.shared.statistics()
    }

    /// A view of the statistics for other threads, and for after the end.
    pub fn monitor(&self) -> Monitor {
        Monitor(Arc::clone(&self.shared))
    }

    /// Changes how many workers there are while the pipeline runs, from any thread.
    pub fn control(&self) -> Control {
        Control::new(Arc::clone(&self.shared), Arc::clone(&self.knobs))
    }

    pub(crate) fn shared(&self) -> Arc<RunContext> {
        Arc::clone(&self.shared)
    }

    /// What the pipeline is made of.
    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// The samples delivered so far, in their order, where
    /// [`record_order`](crate::PipelineBuilder::record_order) asked for it.
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

/// The items of one epoch, made by [`Pipeline::next_epoch`]. It may be dropped before its end; the
/// pipeline goes on.
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
    /// Which epoch it is, counted from 0.
    pub fn number(&self) -> u64 {
        self.pipeline.epoch
    }

    /// How far the run has come, all epochs before this one included: as
    /// [`Pipeline::state`], which cannot be asked while this borrows the pipeline. Once this has
    /// given `None`, the state is at the beginning of the next epoch.
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
    /// As for [`Pipeline::state`].
    pub fn state(&self) -> Result<State> {
        self.pipeline.state()
    }
}

impl<T> fmt::Debug for Epoch<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Epoch").field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// A [`Pipeline`] for async consumers, made by [`Pipeline::into_stream`].
///
/// A type of its own, since a value that is an iterator and a stream makes every `next`, `map` and
/// `collect` ambiguous. Dropping it may block for as long as dropping the pipeline.
#[derive(Debug)]
pub struct PipelineStream<T>(Pipeline<T>);

impl<T> PipelineStream<T> {
    /// How far the run has come, with what this has given so far: as [`Pipeline::state`].
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
    /// As for [`Pipeline::state`].
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

// Whatever `T` is, the pipeline only moves it.
impl<T> Unpin for PipelineStream<T> {}

impl<T> Pipeline<T> {
    /// How far the run has come: with what was handed out so far, and without what comes next. May
    /// be asked at any moment, also before the first item, after the last, and after an error.
    ///
    /// It takes some microseconds, and more where many samples were delivered out of their order.
    ///
    /// # Errors
    /// `Unsupported` for a pipeline of several sources (mix data sets in one source instead), where a
    /// stage [holds items back](crate::Stage::holds_back), says so or not, and where an item was cut
    /// and a stage keeps no order.
    pub fn state(&self) -> Result<State> {
        let message = "a pipeline of several sources has no state; mix data sets in one source \
                       instead";
        let missing = || Error::new(ErrorKind::Unsupported, message);
        self.delivery.as_ref().ok_or_else(missing)?.state()
    }

    /// Ends the work and joins the threads, but does not wait longer than until `deadline`. Says
    /// whether all have ended.
    fn join(&mut self, deadline: Option<Instant>) -> bool {
        self.ended = true;
        self.in_epoch = false;
        if self.started && self.process != std::process::id() {
            // A fork has none of the threads, and their locks are not to be touched.
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
                // A panic has been caught and told.
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
            // What happened since the last time.
            let last = catch_unwind(AssertUnwindSafe(|| reporter.report(&self.shared)));
            drop(last);
        }
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
