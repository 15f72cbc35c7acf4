//! Running pipelines: items, end, failure, statistics.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use spdl_core::observe::{Dropped, Quarantine};
use spdl_core::pipeline::{Control, Event};
use spdl_core::resume::{Change, OrderRecord};
use spdl_core::{Error, ErrorKind, Pipeline, PipelineBuilder, Result, State};

use super::Item;
use super::failure::Failure;
use super::feed::FeedQueue;
use super::graph::Graph;
use super::inbox::Inbox;
use super::workers::{Pool, Workers};
use crate::interop::error::to_exception;
use crate::interop::failure_policy::failure_policy;
use crate::interop::fork::OwnerProcess;
use crate::interop::tuning::{RunControl, TuneArgument, TuneSetting};
use crate::interop::wait::{SIGNAL_CHECK_INTERVAL, drop_within, without_python};
use crate::interop::warnings::PipelineWarnings;
use crate::statistics::{
    Intervals, Monitor, dropped, external_times, has_gil, of_pipeline, state_to_json,
};
use crate::trace;

/// How long dropping a pipeline waits for its threads.
const DROP_TIMEOUT: Duration = Duration::from_millis(500);
/// How long the pipeline waits, when it ends, for threads that still process items.
const END_TIMEOUT: Duration = Duration::from_millis(20);
/// Disables the memory budget. The lifetime of Python objects is unknown, so a reservation might
/// never be released. Queue lengths bound the batches.
const UNLIMITED_MEMORY: usize = usize::MAX >> 3;
/// The longest supported wait. Longer timeouts are shortened to this duration.
const MAX_WAIT: Duration = Duration::from_secs(1 << 30);

/// A running pipeline. Any thread may request the next item.
#[pyclass(frozen, weakref, module = "spdl_rs._spdl_rs")]
pub(crate) struct PipelineRun {
    /// `None` after the run has ended.
    run: Mutex<Option<ActiveRun>>,
    python_side: Arc<PythonSide>,
    ending: AtomicBool,
    /// Whether `run` is `None`; readable without the lock.
    ended: AtomicBool,
    /// The shutdown that `stop` started, if no thread is waiting for its end.
    shutdown: Mutex<Option<Shutdown>>,
    failure: Failure,
    warnings: PipelineWarnings,
    /// A Python function to call once, after the run has ended.
    on_end: Mutex<Option<Py<PyAny>>>,
    monitor: Py<Monitor>,
    control: Mutex<RunControl>,
    /// The checkpoint state and the recorded order when the run was halted or ended.
    last: Mutex<Option<Progress>>,
    /// After the end: dropped items that `take_dropped` has not returned.
    dropped: Mutex<Vec<Dropped>>,
    continuous: bool,
    owner: OwnerProcess,
}

/// What the consumer has received.
#[derive(Clone)]
struct Progress {
    state: Result<State>,
    order: Option<String>,
}

impl Progress {
    fn of(engine: &Pipeline<Item>) -> Self {
        Progress { state: engine.state(), order: engine.order_record().map(OrderRecord::to_text) }
    }
}

/// Settings that few pipelines use, from a Python `dict`.
#[derive(Default, FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct RunSettings {
    /// A checkpoint state as JSON.
    resume: Option<String>,
    /// The memory budget in bytes.
    memory: Option<usize>,
    /// The path of the file that lists failed items.
    quarantine: Option<PathBuf>,
    record_order: bool,
    /// A recorded order.
    replay: Option<String>,
    tune: Option<TuneArgument>,
    /// The path of the monitor socket.
    monitor: Option<PathBuf>,
}

impl RunSettings {
    fn apply(self, pipeline: PipelineBuilder<Item>) -> Result<PipelineBuilder<Item>> {
        let mut pipeline = pipeline.memory(self.memory.unwrap_or(UNLIMITED_MEMORY));
        if let Some(text) = &self.resume {
            let state = serde_json::from_str(text).map_err(|error| {
                let message = format!("not a state of a Pipeline: {error}");
                Error::new(ErrorKind::InvalidArgument, message)
            })?;
            pipeline = pipeline.resume(state);
        }
        if let Some(path) = &self.quarantine {
            pipeline = pipeline.quarantine(Quarantine::append(path)?);
        }
        if self.record_order {
            pipeline = pipeline.record_order();
        }
        if let Some(text) = &self.replay {
            pipeline = pipeline.replay(OrderRecord::parse(text)?);
        }
        let setting = TuneSetting::of(self.tune)?;
        pipeline = pipeline.setting_names(of_pipeline(&setting));
        if let Some(tune) = setting.tune() {
            pipeline = pipeline.tune(tune);
        }
        if let Some(path) = self.monitor {
            pipeline = pipeline.monitor(path);
        }
        Ok(pipeline)
    }
}

/// The fields are dropped in declaration order.
struct ActiveRun {
    engine: Pipeline<Item>,
    _pools: ClosePools,
}

/// A thread that drops the engine.
struct Shutdown {
    /// Disconnected after the drop.
    ended: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// Queues, pools and event loop that Python threads wait for.
struct PythonSide {
    queues: Vec<Arc<FeedQueue>>,
    pools: Vec<Arc<Pool>>,
    inbox: Option<Inbox>,
}

impl PythonSide {
    /// Wakes threads that wait for the engine or the event loop.
    fn halt(&self) {
        self.queues.iter().for_each(|queue| queue.close());
        self.inbox.iter().for_each(Inbox::close_queue);
    }
}

/// Closes the worker pools after the engine is dropped.
struct ClosePools(Arc<PythonSide>);

impl Drop for ClosePools {
    fn drop(&mut self) {
        self.0.pools.iter().for_each(|pool| pool.close());
    }
}

#[pymethods]
impl PipelineRun {
    /// Builds the pipeline that `graph` describes.
    ///
    /// `workers` runs the stages that have no dedicated pool; `pools` are the dedicated pools.
    /// `intervals`, if given, receives statistics. `epoch` is the number of the first epoch, which random
    /// numbers depend on. `settings` has the values of [`RunSettings`].
    #[new]
    #[pyo3(signature = (
        graph, workers, pools, inbox, prefetch, max_failures, intervals=None, epoch=0,
        settings=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments in Python")]
    fn new(
        py: Python<'_>,
        graph: &Graph,
        workers: &Workers,
        pools: Vec<PyRef<'_, Workers>>,
        inbox: Option<PyRef<'_, Inbox>>,
        prefetch: usize,
        max_failures: Bound<'_, PyAny>,
        intervals: Option<PyRef<'_, Intervals>>,
        epoch: u64,
        settings: Option<RunSettings>,
    ) -> PyResult<Self> {
        let described = graph.take()?;
        let on_error = failure_policy(&max_failures)?;
        let mut all = vec![Arc::clone(&workers.pool)];
        all.extend(pools.iter().map(|workers| Arc::clone(&workers.pool)));
        let times: Vec<_> = all.iter().map(|pool| Arc::clone(&pool.times)).collect();
        let has_executors = all.len() > 1;
        let inbox = inbox.map(|inbox| inbox.clone());
        let has_gil = has_gil(py)?;
        let loop_times = inbox.as_ref().map(Inbox::times);
        let python_side = Arc::new(PythonSide { queues: described.queues, pools: all, inbox });
        let mut pipeline = described
            .pipeline
            .executor(Arc::<Pool>::clone(&workers.pool))
            .prefetch(prefetch)
            .on_error(on_error)
            // As in SPDL; one warning reports the failures.
            .allow_total_loss()
            .hook(trace::StageHook)
            .external_times(move || external_times(&times, loop_times.as_deref(), has_gil));
        pipeline = settings
            .unwrap_or_default()
            .apply(pipeline)
            .map_err(|error| to_exception(py, &error))?;
        let warnings = PipelineWarnings::default();
        pipeline = warnings.watch(pipeline);
        if let Some((length, listener)) = intervals.and_then(|intervals| intervals.listener()) {
            pipeline = pipeline.every(length, listener);
        }
        if let Some(stores) = &described.stores {
            let runtime = stores.runtime().map_err(|error| to_exception(py, &error))?;
            pipeline = pipeline.runtime(runtime);
        }
        pipeline = match described.continuous {
            true => pipeline.epochs(epoch..),
            false => pipeline.epochs(epoch..epoch.saturating_add(1)),
        };
        let built = py.detach(|| pipeline.build()).map_err(with_argument_names);
        let mut engine = built.map_err(|error| to_exception(py, &error))?;
        engine.set_end_timeout(END_TIMEOUT);
        let monitor = Monitor::of(engine.monitor(), None).with_executors(has_executors);
        let monitor = Py::new(py, monitor.with_filtered(described.left_out))?;
        let control = engine.control();
        let run = ActiveRun { engine, _pools: ClosePools(Arc::clone(&python_side)) };
        Ok(PipelineRun {
            run: Mutex::new(Some(run)),
            python_side,
            ending: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            shutdown: Mutex::default(),
            failure: Failure::default(),
            warnings,
            on_end: Mutex::default(),
            monitor,
            control: Mutex::new(RunControl::Running(control)),
            last: Mutex::default(),
            dropped: Mutex::default(),
            continuous: described.continuous,
            owner: OwnerProcess::current(),
        })
    }

    /// The keys of the failed items in a quarantine file; empty if the file does not exist.
    #[staticmethod]
    fn quarantined(py: Python<'_>, path: PathBuf) -> PyResult<Vec<String>> {
        let read = py.detach(|| match Quarantine::read(path) {
            Ok(list) => Ok(list.entries.into_iter().filter_map(|entry| entry.key).collect()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        });
        read.map_err(|error| to_exception(py, &error))
    }

    /// Sets a function that is called once after the run has ended, with whether the run failed.
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

    /// Waits for the next item. Returns `None` at the end of an epoch and of the data.
    #[pyo3(name = "next", signature = (timeout=None))]
    fn next_or_none(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<(Item,)>> {
        Ok(self.next(py, timeout)?.map(|item| (item,)))
    }

    /// Starts the shutdown. Later failures are consequences of the shutdown, and are not reported.
    fn halt(&self, py: Python<'_>) {
        if self.owner.is_forked_child() || self.ending.swap(true, Ordering::SeqCst) {
            return;
        }
        py.detach(|| {
            if let Some(run) = &mut *self.run() {
                self.failure.record(run.engine.take_failure());
                // Before the event loop refuses the items in flight.
                self.keep_progress(Some(run));
            }
            self.monitor.get().end();
            self.python_side.halt();
        });
    }

    /// Stops the run. Returns whether it ended within `timeout` seconds.
    ///
    /// Otherwise the run ends after the items in flight; call `stop` again to wait for the end.
    #[pyo3(signature = (timeout=None))]
    fn stop(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        if self.owner.is_forked_child() {
            return Ok(true);
        }
        self.halt(py);
        let deadline = deadline(timeout);
        let Some(mut shutdown) = py.detach(|| self.start_shutdown()) else {
            self.report_end(py)?;
            return Ok(true);
        };
        loop {
            let left = left(deadline);
            let slice = SIGNAL_CHECK_INTERVAL.min(left);
            let lent = &mut shutdown.ended;
            let received = without_python(py, move || lent.recv_timeout(slice));
            match received {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            let raised = py.check_signals();
            if left.is_zero() || raised.is_err() {
                *self.shutdown() = Some(shutdown);
                raised?;
                return Ok(false);
            }
        }
        // The panic message has already been printed.
        py.detach(|| shutdown.thread.map(JoinHandle::join).is_some());
        self.report_end(py)?;
        Ok(true)
    }

    /// The checkpoint state after the last delivered item, as JSON.
    fn state(&self, py: Python<'_>) -> PyResult<String> {
        let state = self.progress(py)?.state;
        let text = state.and_then(|state| state_to_json(&state));
        text.map_err(|error| to_exception(py, &error))
    }

    /// The positions of the items delivered so far, as text; `None` if they are not recorded.
    fn order_record(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.progress(py)?.order)
    }

    /// The items that were dropped before the end of the item that was delivered last, and that no
    /// earlier call returned. After the end, all remaining dropped items.
    fn take_dropped<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        if self.owner.is_forked_child() {
            return Err(OwnerProcess::pipeline_error());
        }
        let taken = py.detach(|| match &mut *self.run() {
            Some(run) => run.engine.take_dropped(),
            None => std::mem::take(&mut *self.dropped()),
        });
        taken.iter().map(|one| dropped(py, one, None)).collect()
    }

    /// Sets how many items a stage processes at the same time.
    fn set_concurrency(&self, py: Python<'_>, stage: &str, concurrency: usize) -> PyResult<()> {
        let set = py.detach(|| self.control()?.set_concurrency(stage, concurrency));
        set.map_err(|error| to_exception(py, &error))
    }

    /// Sets how many of the shared worker threads run stages.
    fn set_threads(&self, py: Python<'_>, threads: usize) -> PyResult<()> {
        let set = py.detach(|| self.control()?.set_threads(threads));
        set.map_err(|error| to_exception(py, &error))
    }

    /// Writes the present settings, or the last ones, as a file.
    fn freeze(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let written = py.detach(|| self.run_control().freeze(path));
        written.map_err(|error| to_exception(py, &error))
    }

    /// Whether the run has ended.
    #[getter]
    fn ended(&self) -> bool {
        self.owner.is_forked_child() || self.ended.load(Ordering::SeqCst)
    }

    /// The failure, if it has not been reported yet.
    fn take_failure(&self, py: Python<'_>) -> Option<PyErr> {
        self.failure.take_unreported(py)
    }

    /// The length of a time slot in seconds, and the number of items delivered in each slot.
    #[getter]
    fn pace(&self) -> (f64, Vec<u64>) {
        self.monitor.get().pace()
    }

    /// The statistics, available after this object is dropped.
    #[getter]
    fn monitor(&self, py: Python<'_>) -> Py<Monitor> {
        self.monitor.clone_ref(py)
    }
}

/// The result of polling the engine.
enum Polled {
    Item(Item),
    EpochEnd,
    /// The end of the run. `failure` has the error, if any.
    End,
    Pending,
}

impl PipelineRun {
    /// Waits for the next item. Returns `None` at the end of an epoch and of the data.
    pub(super) fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Item>> {
        if self.owner.is_forked_child() {
            return Err(OwnerProcess::pipeline_error());
        }
        let _waiting = trace::waiting(py);
        let deadline = deadline(timeout);
        loop {
            let left = left(deadline);
            let polled = without_python(py, || self.poll(SIGNAL_CHECK_INTERVAL.min(left)));
            match polled {
                Polled::Item(item) => {
                    self.warnings.log(py);
                    self.monitor.get().count_item();
                    return Ok(Some(item));
                }
                Polled::EpochEnd if self.continuous => return Ok(None),
                Polled::EpochEnd => {}
                Polled::End => {
                    self.report_end(py)?;
                    return self.failure.report(py).map_or(Ok(None), Err);
                }
                Polled::Pending => {
                    self.warnings.log(py);
                    if let Err(raised) = py.check_signals() {
                        // Ctrl-C does not wait for items in flight.
                        self.end_within(py, Duration::ZERO);
                        return Err(raised);
                    }
                    if left.is_zero() {
                        let seconds = timeout.unwrap_or_default();
                        let message = format!("no item available within {seconds} s");
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
                // Record the failure before other threads observe the end.
                self.failure.record(end.and_then(Result::err));
                let mut ended = run.take();
                self.keep_progress(ended.as_ref());
                self.keep_dropped(ended.as_mut());
                self.drop_control();
                drop(run);
                self.ended.store(true, Ordering::SeqCst);
                self.monitor.get().end();
                self.python_side.halt();
                drop(ended);
                Polled::End
            }
        }
    }

    fn on_end(&self) -> MutexGuard<'_, Option<Py<PyAny>>> {
        self.on_end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the `on_end` function, once.
    ///
    /// # Errors
    /// The exception that the function raises.
    fn report_end(&self, py: Python<'_>) -> PyResult<()> {
        let call = self.on_end().take();
        call.map_or(Ok(()), |call| call.call1(py, (self.failure.has_occurred(),)).map(drop))
    }

    fn run(&self) -> MutexGuard<'_, Option<ActiveRun>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn progress(&self, py: Python<'_>) -> PyResult<Progress> {
        if self.owner.is_forked_child() {
            return Err(OwnerProcess::pipeline_error());
        }
        let progress = py.detach(|| {
            let run = self.run();
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
            last.or_else(|| run.as_ref().map(|run| Progress::of(&run.engine)))
        });
        let stopped = || Error::new(ErrorKind::Stopped, "the pipeline ended without a state");
        progress.ok_or_else(stopped).map_err(|error| to_exception(py, &error))
    }

    /// Keeps the progress of a run that ends. The caller holds the lock of the run.
    fn keep_progress(&self, run: Option<&ActiveRun>) {
        if let Some(run) = run {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            last.get_or_insert_with(|| Progress::of(&run.engine));
        }
    }

    fn dropped(&self) -> MutexGuard<'_, Vec<Dropped>> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the dropped items of a run that ends. The caller holds the lock of the run.
    fn keep_dropped(&self, run: Option<&mut ActiveRun>) {
        if let Some(run) = run {
            *self.dropped() = run.engine.take_dropped();
        }
    }

    fn control(&self) -> Result<Control> {
        match &*self.run_control() {
            RunControl::Running(control) => Ok(control.clone()),
            _ => Err(Error::new(ErrorKind::Stopped, "the pipeline has ended")),
        }
    }

    fn run_control(&self) -> MutexGuard<'_, RunControl> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drop_control(&self) {
        self.run_control().end();
    }

    fn take_run(&self) -> Option<ActiveRun> {
        self.drop_control();
        let run = {
            let mut run = self.run();
            self.keep_progress(run.as_ref());
            self.keep_dropped(run.as_mut());
            run.take()
        };
        self.ended.store(true, Ordering::SeqCst);
        run
    }

    /// Drops the engine on a new thread, which waits for items in flight.
    ///
    /// Returns `None` if the engine was dropped already, or if another caller waits for the drop.
    fn start_shutdown(&self) -> Option<Shutdown> {
        let Some(run) = self.take_run() else { return self.shutdown().take() };
        let (done, ended) = mpsc::channel();
        let work = move || {
            drop(run);
            drop(done);
        };
        // If no thread can be started, `spawn` drops `work`, and the run with it, on this thread.
        let thread = thread::Builder::new().name("spdl-wind-down".into()).spawn(work).ok();
        Some(Shutdown { ended, thread })
    }

    fn shutdown(&self) -> MutexGuard<'_, Option<Shutdown>> {
        self.shutdown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_within(&self, py: Python<'_>, at_most: Duration) {
        self.ending.store(true, Ordering::SeqCst);
        py.detach(|| {
            let run = self.take_run();
            self.monitor.get().end();
            self.python_side.halt();
            if let Some(run) = run {
                drop_within(run, at_most);
            }
        });
    }
}

impl Drop for PipelineRun {
    fn drop(&mut self) {
        let mut run = self.run.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.owner.is_forked_child() {
            // A forked child has no threads to join, and locks of the parent may stay held.
            std::mem::forget(run);
            return;
        }
        let python_side = Arc::clone(&self.python_side);
        let monitor = self.monitor.get();
        let mut end = move || {
            monitor.end();
            python_side.halt();
            if let Some(run) = run.take() {
                drop_within(run, DROP_TIMEOUT);
            }
        };
        if Python::try_attach(|py| without_python(py, &mut end)).is_none() {
            // Python is shutting down: stop without the GIL.
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

/// Adds advice to the error of a state that does not match the pipeline.
fn with_argument_names(error: Error) -> Error {
    if error.changes().is_empty() {
        return error;
    }
    let changes = error.changes().iter().map(|Change { part, was, is }| {
        let [was, is] = [was, is].map(|value| value.as_deref().unwrap_or("absent"));
        format!("{part}: was {was}, is {is}")
    });
    let changes = changes.collect::<Vec<_>>().join("; ");
    let message = format!(
        "cannot resume: the state is of another pipeline ({changes}); build the same stages over the \
         same source, or start without the state"
    );
    Error::new(ErrorKind::InvalidArgument, message)
}

fn deadline(timeout: Option<f64>) -> Option<Instant> {
    let time = Duration::try_from_secs_f64(timeout?.max(0.0)).unwrap_or(MAX_WAIT);
    Instant::now().checked_add(time.min(MAX_WAIT))
}

fn left(deadline: Option<Instant>) -> Duration {
    deadline.map_or(MAX_WAIT, |deadline| deadline.saturating_duration_since(Instant::now()))
}
