//! A pipeline that runs: its next item, its end, its statistics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyTimeoutError};
use pyo3::prelude::*;
use spdl_core::Pipeline;
use spdl_core::pipeline::Event;

use super::Item;
use super::failure::Failure;
use super::feed::Line;
use super::graph::Graph;
use super::inbox::Inbox;
use super::stage::on_error;
use super::workers::{Pool, Workers};
use crate::interop::error::to_exception;
use crate::interop::fork::Home;
use crate::interop::wait::{SLICE, drop_within, without_python};
use crate::statistics::{Intervals, Monitor};
use crate::trace;

/// How long a pipeline that nobody holds any more may take to end before Python goes on without it.
const WIND_DOWN: Duration = Duration::from_millis(500);
/// How long the end of data waits for items in front of a stage that has failed.
const PATIENCE: Duration = Duration::from_millis(20);
/// The budget of what the engine measures, which is none: of what lies in Python's lists nobody knows
/// when it is let go, so waiting for it might never end. Batches are bounded by their queues.
const NO_BUDGET: usize = usize::MAX >> 3;
/// No wait is longer.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// A pipeline that runs. Any thread may ask for the next item.
#[pyclass(frozen, weakref, module = "spdl_rs._spdl_rs")]
pub(crate) struct PipelineRun {
    /// `None` once it has ended.
    run: Mutex<Option<Run>>,
    helpers: Arc<Helpers>,
    ending: AtomicBool,
    /// Whether `run` is `None`, for those who do not want to wait for it.
    ended: AtomicBool,
    /// Says when the work that `stop` ends is over, where nobody waits for that.
    winding_down: Mutex<Option<WindingDown>>,
    failure: Failure,
    /// A Python function that is called once, after the run has ended.
    on_end: Mutex<Option<Py<PyAny>>>,
    monitor: Py<Monitor>,
    continuous: bool,
    home: Home,
}

/// What runs, in the order in which it is dropped.
struct Run {
    engine: Pipeline<Item>,
    _pools: ClosePools,
}

/// A thread that drops what runs.
struct WindingDown {
    /// Is disconnected once that is done.
    ended: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// What Python's threads wait for.
struct Helpers {
    lines: Vec<Arc<Line>>,
    pools: Vec<Arc<Pool>>,
    inbox: Option<Inbox>,
}

impl Helpers {
    /// Ends what waits for the engine, or for an event loop.
    fn halt(&self) {
        self.lines.iter().for_each(|line| line.close());
        self.inbox.iter().for_each(Inbox::shut);
    }
}

/// Lets the workers go, once the engine needs them no more.
struct ClosePools(Arc<Helpers>);

impl Drop for ClosePools {
    fn drop(&mut self) {
        self.0.pools.iter().for_each(|pool| pool.close());
    }
}

#[pymethods]
impl PipelineRun {
    /// Makes what the graph describes. `workers` are the pool of stages without one of their own;
    /// `pools` are those. `intervals` are told what it does, if any.
    #[new]
    #[pyo3(signature = (graph, workers, pools, inbox, prefetch, max_failures, intervals=None))]
    #[expect(clippy::too_many_arguments, reason = "they are what a run is made of")]
    fn new(
        py: Python<'_>,
        graph: &Graph,
        workers: &Workers,
        pools: Vec<PyRef<'_, Workers>>,
        inbox: Option<PyRef<'_, Inbox>>,
        prefetch: usize,
        max_failures: Bound<'_, PyAny>,
        intervals: Option<PyRef<'_, Intervals>>,
    ) -> PyResult<Self> {
        let described = graph.take()?;
        let on_error = on_error(&max_failures)?;
        let mut all = vec![Arc::clone(&workers.pool)];
        all.extend(pools.iter().map(|workers| Arc::clone(&workers.pool)));
        let inbox = inbox.map(|inbox| inbox.clone());
        let helpers = Arc::new(Helpers { lines: described.lines, pools: all, inbox });
        let mut pipeline = described
            .pipeline
            .executor(Arc::<Pool>::clone(&workers.pool))
            .prefetch(prefetch)
            .memory(NO_BUDGET)
            .on_error(on_error)
            .hook(trace::StageHook);
        if let Some((length, listener)) = intervals.and_then(|intervals| intervals.listener()) {
            pipeline = pipeline.every(length, listener);
        }
        if let Some(stores) = &described.stores {
            let runtime = stores.runtime().map_err(|error| to_exception(py, &error))?;
            pipeline = pipeline.runtime(runtime);
        }
        if described.continuous {
            pipeline = pipeline.epochs(0..);
        }
        let built = py.detach(|| pipeline.build());
        let mut engine = built.map_err(|error| to_exception(py, &error))?;
        engine.set_patience(PATIENCE);
        let monitor = Py::new(py, Monitor::of(engine.monitor(), None))?;
        let run = Run { engine, _pools: ClosePools(Arc::clone(&helpers)) };
        Ok(PipelineRun {
            run: Mutex::new(Some(run)),
            helpers,
            ending: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            winding_down: Mutex::default(),
            failure: Failure::default(),
            on_end: Mutex::default(),
            monitor,
            continuous: described.continuous,
            home: Home::here(),
        })
    }

    /// Sets a function that is called once, after the run has ended, with whether the run has failed.
    #[pyo3(name = "on_end")]
    fn set_on_end(&self, call: Py<PyAny>) {
        let previous = self.on_end().replace(call);
        drop(previous);
    }

    /// Starts the engine.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        let started = py.detach(|| self.run().as_mut().map_or(Ok(()), |run| run.engine.start()));
        started.map_err(|error| to_exception(py, &error))
    }

    /// Waits for the next item; `None` at the end, and where an epoch ends.
    #[pyo3(name = "next", signature = (timeout=None))]
    fn next_or_none(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<(Item,)>> {
        Ok(self.next(py, timeout)?.map(|item| (item,)))
    }

    /// Begins to end the work. What fails from now on fails since it is stopped, and is not told.
    fn halt(&self, py: Python<'_>) {
        if self.home.is_elsewhere() || self.ending.swap(true, Ordering::SeqCst) {
            return;
        }
        py.detach(|| {
            if let Some(run) = &mut *self.run() {
                self.failure.keep(run.engine.take_failure());
            }
            self.monitor.get().end();
            self.helpers.halt();
        });
    }

    /// Ends the work. Says whether all of it has ended within `timeout` seconds; the rest ends when
    /// the items are done that are under way, for which one may wait by stopping once more.
    #[pyo3(signature = (timeout=None))]
    fn stop(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        if self.home.is_elsewhere() {
            return Ok(true);
        }
        self.halt(py);
        let deadline = deadline(timeout);
        let Some(mut winding) = py.detach(|| self.wind_down()) else {
            self.report_end(py)?;
            return Ok(true);
        };
        loop {
            let left = left(deadline);
            let slice = SLICE.min(left);
            let lent = &mut winding.ended;
            let received = without_python(py, move || lent.recv_timeout(slice));
            match received {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let raised = py.check_signals();
            if left.is_zero() || raised.is_err() {
                *self.winding_down() = Some(winding);
                raised?;
                self.report_end(py)?;
                return Ok(false);
            }
        }
        // A panic has been printed, and there is nothing left to save.
        py.detach(|| winding.thread.map(JoinHandle::join).is_some());
        self.report_end(py)?;
        Ok(true)
    }

    /// Whether it has ended.
    #[getter]
    fn ended(&self) -> bool {
        self.home.is_elsewhere() || self.ended.load(Ordering::SeqCst)
    }

    /// The failure that nobody has been told of yet.
    fn take_failure(&self, py: Python<'_>) -> Option<PyErr> {
        self.failure.untold(py)
    }

    /// How many seconds a stretch of time takes, and how many items were given in each, from the first
    /// item on.
    #[getter]
    fn pace(&self) -> (f64, Vec<u64>) {
        self.monitor.get().pace()
    }

    /// Tells what was done so far, also when this has long been dropped.
    #[getter]
    fn monitor(&self, py: Python<'_>) -> Py<Monitor> {
        self.monitor.clone_ref(py)
    }
}

/// What polling gives.
enum Polled {
    Item(Item),
    EpochEnd,
    /// For good; with the failure, if there is one, where that is kept.
    End,
    Pending,
}

impl PipelineRun {
    /// Waits for the next item; `None` at the end, and where an epoch ends.
    pub(super) fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Item>> {
        if self.home.is_elsewhere() {
            let message = "this pipeline belongs to the process that started it, of which this one \
                           is a fork; build another one here";
            return Err(PyRuntimeError::new_err(message));
        }
        let _waiting = trace::waiting(py);
        let deadline = deadline(timeout);
        loop {
            let left = left(deadline);
            let polled = without_python(py, || self.poll(SLICE.min(left)));
            match polled {
                Polled::Item(item) => {
                    self.monitor.get().gave();
                    return Ok(Some(item));
                }
                Polled::EpochEnd if self.continuous => return Ok(None),
                Polled::EpochEnd => {}
                Polled::End => {
                    self.report_end(py)?;
                    return self.failure.tell(py).map_or(Ok(None), Err);
                }
                Polled::Pending => {
                    if let Err(raised) = py.check_signals() {
                        // Whoever pressed Ctrl-C shall not wait for an item to be done.
                        self.end_within(py, Duration::ZERO);
                        return Err(raised);
                    }
                    if left.is_zero() {
                        let seconds = timeout.unwrap_or_default();
                        let message = format!("no item was ready within {seconds} s");
                        return Err(PyTimeoutError::new_err(message));
                    }
                }
            }
        }
    }

    fn poll(&self, slice: Duration) -> Polled {
        if self.ending.load(Ordering::SeqCst) {
            return Polled::End;
        }
        let mut run = self.run();
        let Some(running) = &mut *run else { return Polled::End };
        match running.engine.next_event(slice) {
            Poll::Pending => Polled::Pending,
            Poll::Ready(Some(Ok(Event::Item(item)))) => Polled::Item(item),
            Poll::Ready(Some(Ok(Event::EpochEnd(_)))) => Polled::EpochEnd,
            Poll::Ready(end) => {
                // Before other threads see that it has ended.
                self.failure.keep(end.and_then(Result::err));
                let ended = run.take();
                drop(run);
                self.ended.store(true, Ordering::SeqCst);
                self.monitor.get().end();
                self.helpers.halt();
                drop(ended);
                Polled::End
            }
        }
    }

    fn on_end(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        self.on_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `on_end`, the first time.
    ///
    /// # Errors
    /// What the function raises.
    fn report_end(&self, py: Python<'_>) -> PyResult<()> {
        let call = self.on_end().take();
        call.map_or(Ok(()), |call| call.call1(py, (self.failure.has_occurred(),)).map(drop))
    }

    fn run(&self) -> MutexGuard<'_, Option<Run>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_run(&self) -> Option<Run> {
        let run = self.run().take();
        self.ended.store(true, Ordering::SeqCst);
        run
    }

    /// Lets a thread drop what runs, which waits for items under way. Gives what says when that is
    /// done; `None` where it is, or where somebody waits for that.
    fn wind_down(&self) -> Option<WindingDown> {
        let Some(run) = self.take_run() else { return self.winding_down().take() };
        let (done, ended) = mpsc::channel();
        let work = move || {
            drop(run);
            drop(done);
        };
        // Where no thread is to be had, `work` is dropped here, and the run with it.
        let thread = thread::Builder::new().name("spdl-wind-down".into()).spawn(work).ok();
        Some(WindingDown { ended, thread })
    }

    fn winding_down(&self) -> MutexGuard<'_, Option<WindingDown>> {
        self.winding_down.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_within(&self, py: Python<'_>, at_most: Duration) {
        self.ending.store(true, Ordering::SeqCst);
        py.detach(|| {
            let run = self.take_run();
            self.monitor.get().end();
            self.helpers.halt();
            if let Some(run) = run {
                drop_within(run, at_most);
            }
        });
    }
}

impl Drop for PipelineRun {
    fn drop(&mut self) {
        let mut run = self.run.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.home.is_elsewhere() {
            // There are no threads to join, and what they had locked stays locked.
            std::mem::forget(run);
            return;
        }
        let helpers = Arc::clone(&self.helpers);
        let monitor = self.monitor.get();
        let mut end = move || {
            monitor.end();
            helpers.halt();
            if let Some(run) = run.take() {
                drop_within(run, WIND_DOWN);
            }
        };
        if Python::try_attach(|py| without_python(py, &mut end)).is_none() {
            // Python is shutting down: nobody is held up.
            end();
        }
        Python::try_attach(|py| {
            // The object may be dropped while an exception propagates.
            let propagating = PyErr::take(py);
            if let Err(error) = self.report_end(py) {
                error.write_unraisable(py, None);
            }
            if let Some(exception) = propagating {
                exception.restore(py);
            }
        });
    }
}

fn deadline(timeout: Option<f64>) -> Option<Instant> {
    let time = Duration::try_from_secs_f64(timeout?.max(0.0)).unwrap_or(FOREVER);
    Instant::now().checked_add(time.min(FOREVER))
}

fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(FOREVER, |deadline| deadline.saturating_duration_since(Instant::now()))
}
