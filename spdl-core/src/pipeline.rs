//! A pipeline that runs: an iterator, or a stream, which winds down whenever it is dropped.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_util::FutureExt;

use crate::builder::Driver;
use crate::failure::panicked;
use crate::runtime::{Runtime, ThreadRuntime, ThreadWaker};
use crate::scheduler::queue::Queue;
use crate::scheduler::{Scheduler, Shared};
use crate::{Error, ErrorKind, Result, Statistics};

/// A pipeline, made by a [`PipelineBuilder`](crate::PipelineBuilder).
///
/// It is an [`Iterator`] of results, and [`into_stream`](Self::into_stream) makes it a [`Stream`].
/// The first call to `next` starts it. It ends
/// with `None` when every item of the source was delivered, dropped by a policy or left out with a
/// short batch (all counted in the [`Statistics`]), or with one error, after what was finished
/// before it.
///
/// # Dropping
/// A pipeline may be dropped at any moment: that wakes everything that waits, and joins every
/// thread of its own. An item that is being computed is computed to its end first. Tasks on a
/// runtime of the caller's end when that polls them next.
///
/// # Fork
/// The threads stay in the process that started them: in a fork of it, `next` is an error.
pub struct Pipeline<T> {
    output: Arc<Queue<T>>,
    scheduler: Arc<Scheduler>,
    /// Tasks not yet started.
    drivers: Vec<Driver>,
    runtime: Option<Arc<dyn Runtime>>,
    own_runtime: Option<Arc<ThreadRuntime>>,
    workers: Vec<JoinHandle<()>>,
    started: bool,
    ended: bool,
    /// Since when the consumer has been waiting for the next item.
    waiting_since: Option<Instant>,
    /// The process whose threads do the work.
    process: u32,
}

/// Ends the pipeline where a runtime drops one of its tasks before that has ended: else the
/// consumer would wait for ever.
struct Unfinished(Option<Arc<Shared>>);

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take()
            && !shared.ended()
        {
            let message = "the runtime dropped a task of this pipeline before it had ended";
            shared.raise(Error::new(ErrorKind::Stopped, message));
        }
    }
}

/// A view of a pipeline's statistics that can be used from any thread, also after its end.
#[derive(Clone)]
pub struct Monitor(Arc<Shared>);

impl Monitor {
    /// The counters as they are now.
    pub fn statistics(&self) -> Statistics {
        self.0.statistics()
    }
}

impl fmt::Debug for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Monitor")
    }
}

impl<T: Send + 'static> Pipeline<T> {
    pub(crate) fn new(
        output: Arc<Queue<T>>,
        scheduler: Scheduler,
        drivers: Vec<Driver>,
        runtime: Option<Arc<dyn Runtime>>,
    ) -> Self {
        Pipeline {
            output,
            scheduler: Arc::new(scheduler),
            drivers,
            runtime,
            own_runtime: None,
            workers: Vec::new(),
            started: false,
            ended: false,
            waiting_since: None,
            process: 0,
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
        self.scheduler.shared.mark_start();
        let started = self.start_threads();
        if started.is_err() {
            self.stop();
        }
        started
    }

    fn start_threads(&mut self) -> Result<()> {
        // Without stages that compute, there is nothing for workers to do.
        let threads =
            if self.scheduler.nodes.is_empty() { 0 } else { self.scheduler.shared.threads };
        for number in 0..threads {
            let scheduler = Arc::clone(&self.scheduler);
            let worker = std::thread::Builder::new().name(format!("spdl-worker-{number}")).spawn(
                move || {
                    // Stages are guarded one by one; this catches the panics of their destructors.
                    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| scheduler.work())) {
                        scheduler.shared.raise(panicked(payload));
                    }
                },
            );
            let worker = worker.map_err(|error| {
                Error::new(ErrorKind::Io, "cannot start a worker thread").with_source(error)
            });
            self.workers.push(worker?);
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
            let mut unfinished = Unfinished(Some(Arc::clone(&self.scheduler.shared)));
            let task = driver(Arc::clone(&runtime));
            runtime.spawn(Box::pin(async move {
                let result = AssertUnwindSafe(task).catch_unwind().await;
                if let (Some(shared), Err(payload)) = (unfinished.0.take(), result) {
                    shared.raise(panicked(payload));
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
        let waker = ThreadWaker::current();
        let mut cx = Context::from_waker(&waker);
        loop {
            if let ready @ Poll::Ready(_) = self.poll(&mut cx) {
                return ready;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match left {
                Some(Duration::ZERO) => return Poll::Pending,
                Some(left) => std::thread::park_timeout(left),
                None => std::thread::park(),
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if let Err(error) = self.start() {
            self.ended = true;
            return Poll::Ready(Some(Err(error)));
        }
        if self.process != std::process::id() {
            // The threads are not here, and a lock may be held by one of them for ever.
            self.ended = true;
            let message = "this pipeline belongs to the process that started it, of which this \
                           one is a fork; build another one here";
            return Poll::Ready(Some(Err(Error::new(ErrorKind::Stopped, message))));
        }
        let shared = &self.scheduler.shared;
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        match self.output.poll_pop(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Some((_, item))) => {
                self.waiting_since = None;
                shared.consumer.delivered(since.elapsed(), shared.elapsed());
                Poll::Ready(Some(Ok(item.value)))
            }
            Poll::Ready(None) => {
                self.ended = true;
                shared.mark_end();
                // The end of data is only believed once no failure explains it.
                let error = shared.failures.take_fatal();
                self.stop();
                Poll::Ready(error.map(Err))
            }
        }
    }

    /// Ends the work now. What waits is woken, what is not yet delivered is dropped, and every
    /// thread of the pipeline is joined. `next` gives `None` from then on. Stopping twice is fine.
    pub fn stop(&mut self) {
        self.wind_down();
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
        self.scheduler.shared.statistics()
    }

    /// A view of the statistics for other threads, and for after the end.
    pub fn monitor(&self) -> Monitor {
        Monitor(Arc::clone(&self.scheduler.shared))
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

/// A [`Pipeline`] for async consumers, made by [`Pipeline::into_stream`].
///
/// A type of its own, since a value that is an iterator and a stream makes every `next`, `map` and
/// `collect` ambiguous. Dropping it may block for as long as dropping the pipeline.
#[derive(Debug)]
pub struct PipelineStream<T>(Pipeline<T>);

impl<T: Send + 'static> Stream for PipelineStream<T> {
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        self.get_mut().0.poll(cx)
    }
}

// Whatever `T` is, the pipeline only moves it.
impl<T> Unpin for PipelineStream<T> {}

impl<T> Pipeline<T> {
    fn wind_down(&mut self) {
        self.ended = true;
        if self.started && self.process != std::process::id() {
            // A fork has none of the threads, and their locks are not to be touched.
            self.workers.drain(..).for_each(std::mem::forget);
            std::mem::forget(self.own_runtime.take());
            return;
        }
        self.scheduler.shared.stop();
        self.drivers.clear();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of stages; its own would be a bug, and has been printed.
            let _ = worker.join();
        }
        if let Some(runtime) = self.own_runtime.take() {
            runtime.shut_down();
        }
    }
}

impl<T> Drop for Pipeline<T> {
    fn drop(&mut self) {
        self.wind_down();
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
