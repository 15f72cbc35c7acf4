//! One epoch: a pipeline that turns file names into batches.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::thread::{self, ThreadId};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use spdl_core::memory::usable_memory;
use spdl_core::observe::{Counter, Dropped};
use spdl_core::{
    Batch, BatchLayout, Error, ErrorKind, Fill, PipelineBuilder, Result, Shard, StageOptions, State,
};
use spdl_cuda::{DeviceImages, Search};
use spdl_io::Fetch;
use spdl_media::fill::{FillRecord, FillStored, Grouping};
use spdl_media::{CodecRegistry, FillImage, Limits, OnTruncated, image_fields};

use super::batches::{Batches, Delivered};
use super::dataset::{Kept, Parameters, Samples};
use super::fields::{SampleFields, import_types};
use super::functions::{FunctionCall, Functions, PyFunctions, PythonBatch, exception_of};
use super::settings::{Content, Settings};
use super::{device, state as checkpoint};
use crate::interop::error::{to_exception, without_exception};
use crate::interop::failure_policy::dropped_samples;
use crate::interop::fork::OwnerProcess;
use crate::interop::tuning::RunControl;
use crate::interop::wait::{SHUTDOWN_TIMEOUT, SIGNAL_CHECK_INTERVAL, drop_within, without_python};
use crate::interop::warnings::{PipelineWarnings, log};
use crate::operators::DECODE;
use crate::statistics::{HasState, Monitor, address_in, dropped, of_loader, state_to_json};
use crate::trace;

/// One epoch over the samples. Any thread may request the next batch.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Epoch {
    work: Arc<EpochWork>,
    warnings: PipelineWarnings,
    monitor: Py<Monitor>,
    is_on_device: bool,
    /// Whether functions run on the thread that takes a batch.
    is_inline: bool,
    /// The fields of a batch; `None` if it holds images and labels.
    fields: Option<Arc<Py<SampleFields>>>,
    /// The name of the loader's class, for messages.
    loader: &'static str,
    number: u64,
    /// Whether no batch was delivered so far, in this epoch as a whole.
    is_empty: AtomicBool,
    /// Counts the samples that a function filtered out.
    filtered: Option<Counter>,
    /// The settings of the run, which the loader keeps; `None` if it keeps those of another run.
    last_run: Option<Arc<Mutex<RunControl>>>,
    /// The address of the data set without credentials, for messages.
    place: String,
    /// Whether dropped images were logged, or the error of the epoch reported them.
    reported: AtomicBool,
    owner: OwnerProcess,
}

/// The running pipeline of an epoch, shared with its monitor.
pub(crate) struct EpochWork {
    /// `None` after the epoch has ended.
    run: Mutex<Option<EpochRun>>,
    /// Notified when the functions of `EpochRun::inline` have returned, or the epoch has ended.
    returned: Condvar,
    /// After the end: dropped images that `take_dropped` has not returned.
    dropped: Mutex<Vec<Dropped>>,
}

/// The fields are dropped in declaration order.
pub(crate) struct EpochRun {
    warnings: PipelineWarnings,
    pub(crate) pipeline: Batches,
    /// Counts truncated images with black rows; `None` if a truncated image is an error.
    partial: Option<Counter>,
    /// Counts images by decoder, if a device decodes.
    decoded: Option<DeviceImages>,
    /// Counts the samples that a function filtered out.
    filtered: Option<Counter>,
    /// The functions that run on the thread that takes a batch.
    inline: Option<FunctionCall>,
    /// The batch that these functions have; `None` if they do not run.
    in_function: Option<InFunction>,
    /// The fetcher, the data set and the thread of the source. Dropped after the pipeline, so that the pipeline's
    /// threads do not join these threads.
    kept: Kept,
}

/// A batch that functions have, on the thread that takes it.
struct InFunction {
    thread: ThreadId,
    /// The checkpoint state before the batch.
    before: Result<State>,
}

impl EpochRun {
    fn new(pipeline: Batches, kept: Kept, warnings: PipelineWarnings) -> Self {
        EpochRun {
            warnings,
            pipeline,
            partial: None,
            decoded: None,
            filtered: None,
            inline: None,
            in_function: None,
            kept,
        }
    }

    /// The checkpoint state. A batch counts as delivered after its functions.
    fn state(&self) -> Result<State> {
        match &self.in_function {
            Some(InFunction { before, .. }) => before.clone(),
            None => self.pipeline.state(),
        }
    }

    /// Waits for the next batch for a limited time. No batch is ready while functions run inline.
    fn poll(&mut self) -> Poll<Option<Result<Delivered>>> {
        if self.in_function.is_some() {
            return Poll::Pending;
        }
        let before = self.inline.is_some().then(|| self.pipeline.state());
        let polled = self.pipeline.next_timeout(SIGNAL_CHECK_INTERVAL);
        if let (Some(before), Poll::Ready(Some(Ok(_)))) = (before, &polled) {
            self.in_function = Some(InFunction { thread: thread::current().id(), before });
        }
        polled
    }
}

#[pymethods]
impl Epoch {
    /// Starts the pipeline at the beginning of the epoch, or after the batches that `state` covers. `freeze` of the
    /// loader writes the settings of the last run with `is_frozen`.
    #[new]
    #[pyo3(signature = (samples, settings, epoch, state=None, functions=None, *, is_frozen=true))]
    fn new(
        py: Python<'_>,
        samples: &Samples,
        settings: &Settings,
        epoch: u64,
        state: Option<&str>,
        functions: Option<PyFunctions>,
        is_frozen: bool,
    ) -> PyResult<Self> {
        let functions = Functions::of(py, functions)?;
        let begun = py.detach(|| {
            let (run, number) = build(samples, settings, epoch, state, &functions)?;
            let monitor = Monitor::of(run.pipeline.monitor(), run.partial.clone())
                .with_decoded(run.decoded.clone())
                .with_filtered(run.filtered.clone());
            let (opened, warnings) = (Arc::clone(&run.kept.1), run.warnings.clone());
            let work = EpochWork {
                run: Mutex::new(Some(run)),
                returned: Condvar::new(),
                dropped: Mutex::default(),
            };
            let work = Arc::new(work);
            // Save the counters of the cache before the first lookup.
            let progress: Weak<dyn HasState> = Arc::downgrade(&work) as _;
            let monitor = monitor.with_work(progress, opened.cache(), opened.store());
            if let Some(run) = &mut *work.run() {
                run.pipeline.start()?;
                if is_frozen {
                    *settings.last_run() = RunControl::Running(run.pipeline.control());
                }
            }
            Ok((work, warnings, monitor, number))
        });
        let (work, warnings, monitor, number) =
            begun.map_err(|error: Error| to_exception(py, &error))?;
        let is_on_device = settings.device.is_some();
        let is_inline = functions.inline(settings.seed).is_some();
        let filtered = functions.filter.map(|filter| filter.filtered);
        Ok(Epoch {
            is_empty: AtomicBool::new(state.is_none()),
            filtered,
            work,
            warnings,
            monitor: Py::new(py, monitor)?,
            is_on_device,
            is_inline,
            fields: match &settings.content {
                Content::Images(_) => None,
                Content::Fields(fields) => Some(Arc::clone(fields)),
            },
            loader: settings.loader(),
            number,
            last_run: is_frozen.then(|| Arc::clone(&settings.last_run)),
            place: samples.place(),
            reported: AtomicBool::new(false),
            owner: OwnerProcess::current(),
        })
    }

    /// The checkpoint state before the first batch, as JSON.
    ///
    /// A given `state` is validated and adapted to this loader.
    #[staticmethod]
    #[pyo3(signature = (samples, settings, epoch, state=None, functions=None))]
    fn position(
        py: Python<'_>,
        samples: &Samples,
        settings: &Settings,
        epoch: u64,
        state: Option<&str>,
        functions: Option<PyFunctions>,
    ) -> PyResult<String> {
        let functions = Functions::of(py, functions)?;
        let position = py.detach(|| {
            let (run, _) = build(samples, settings, epoch, state, &functions)?;
            run.pipeline.state().and_then(|state| state_to_json(&state))
        });
        position.map_err(|error| to_exception(py, &error))
    }

    /// The checkpoint state at the first of `steps` of the epoch, as JSON. With the second number, a state from which an
    /// epoch delivers only the steps from the first up to, but not including, the second.
    ///
    /// The steps are counted from the beginning of the epoch. They must not precede those that `state` covers.
    #[staticmethod]
    #[pyo3(signature = (samples, settings, epoch, steps, state=None, functions=None))]
    fn at_steps(
        py: Python<'_>,
        samples: &Samples,
        settings: &Settings,
        epoch: u64,
        steps: (u64, Option<u64>),
        state: Option<&str>,
        functions: Option<PyFunctions>,
    ) -> PyResult<String> {
        let (start, stop) = steps;
        let functions = Functions::of(py, functions)?;
        let position = py.detach(|| {
            let (run, _) = build(samples, settings, epoch, state, &functions)?;
            let state = run.pipeline.state()?;
            let invalid = |message| Error::new(ErrorKind::InvalidArgument, message);
            let (first, end) = remaining_steps(&state, settings);
            if let Some(end) = end.filter(|&end| stop.unwrap_or(start) > end) {
                return Err(invalid(format!(
                    "step {} is beyond the end of epoch {epoch}, which has {end} batches",
                    stop.unwrap_or(start)
                )));
            }
            let after = |step: u64| {
                step.checked_sub(first).ok_or_else(|| {
                    invalid(format!(
                        "step {step} of epoch {epoch} was delivered before the state that was loaded, which is at \
                         step {first}: create another loader without this state for earlier steps"
                    ))
                })
            };
            let state = match stop {
                None => state.after_steps(after(start)?, settings.step_samples())?,
                Some(stop) => state.only_steps(after(start)?..after(stop)?, settings.step_samples())?,
            };
            state_to_json(&state)
        });
        position.map_err(|error| to_exception(py, &error))
    }

    /// The number of threads by default: the CPUs that this process may use.
    #[staticmethod]
    fn default_threads() -> usize {
        thread::available_parallelism().map_or(1, NonZeroUsize::get)
    }

    /// Combines the states of all ranks, as JSON, into one state, from which any number of ranks can resume.
    #[staticmethod]
    fn combined(
        py: Python<'_>,
        states: Vec<String>,
        loader: &str,
        repeat_parts: bool,
    ) -> PyResult<String> {
        let combined = py.detach(|| checkpoint::combine(&states, loader, repeat_parts));
        combined.map_err(|error| to_exception(py, &error))
    }

    /// Stops the pipeline. Afterwards `next` returns no batch.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.stop(SHUTDOWN_TIMEOUT));
        self.warn_of_dropped(py)
    }

    /// The images that were dropped before the end of the batch that was delivered last, and that no
    /// earlier call returned. After the last batch, all remaining dropped images.
    fn take_dropped<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        if self.owner.is_forked_child() {
            return Err(OwnerProcess::error());
        }
        let taken = py.detach(|| match &mut *self.work.run() {
            Some(run) => run.pipeline.take_dropped(),
            None => std::mem::take(&mut *self.work.dropped()),
        });
        let store = self.monitor.bind(py).get().store();
        taken.iter().map(|one| dropped(py, one, store)).collect()
    }

    /// The statistics, available after this object is dropped.
    #[getter]
    fn monitor(&self, py: Python<'_>) -> Py<Monitor> {
        self.monitor.clone_ref(py)
    }
}

/// Iterator over the batches of an epoch.
///
/// After a batch is counted as delivered, no Python code runs until the caller has the batch. So no
/// signal handler can lose a counted batch.
#[pyclass(frozen, subclass, module = "spdl_rs._spdl_rs")]
pub(crate) struct BatchIterator {
    epoch: Py<Epoch>,
}

#[pymethods]
impl BatchIterator {
    #[new]
    fn new(py: Python<'_>, epoch: Py<Epoch>) -> PyResult<Self> {
        // Import now: an import in `__next__` during finalization would unwind a daemon thread.
        array_of(py, epoch.get().is_on_device)?;
        import_types(py)?;
        Ok(BatchIterator { epoch })
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    /// Waits for the next batch: images and labels as NumPy or device arrays, or the values of the fields in
    /// a `dict`.
    ///
    /// Each array keeps its native memory alive.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let epoch = self.epoch.get();
        let array = array_of(py, epoch.is_on_device)?;
        let fields = epoch.fields.as_ref().map(|fields| fields.get());
        if epoch.is_inline {
            return epoch.next_inline(py);
        }
        epoch.next(py)?.map(|batch| batch.into_python(array, fields)).transpose()
    }
}

/// The function that makes the arrays of a batch. The import runs Python code; calls do not.
pub(super) fn array_of(py: Python<'_>, is_on_device: bool) -> PyResult<&Bound<'_, PyAny>> {
    static HOST: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static DEVICE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    match is_on_device {
        false => HOST.import(py, "numpy", "asarray"),
        true => DEVICE.import(py, "spdl_rs.cuda", "DeviceArray"),
    }
}

impl Epoch {
    /// Logs the warnings of the pipeline, and those about values.
    fn log_warnings(&self, py: Python<'_>) {
        self.warnings.log(py);
        let fields =
            self.fields.iter().flat_map(|fields| fields.get().spec.take_fractional_boxes());
        for (field, key) in fields {
            let message = format!(
                "{field}: the boxes of the sample {key:?} are within 0 to 1, and are used as pixels; if they are \
                 fractions of the sides of the image, pass normalized=True to the field"
            );
            if let Err(error) = log(py, "warning", message) {
                error.write_unraisable(py, None);
            }
        }
    }

    /// Waits for the next batch; `None` at the end of the epoch.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Delivered>> {
        if self.owner.is_forked_child() {
            return Err(OwnerProcess::error());
        }
        let _waiting = trace::waiting(py);
        loop {
            let polled = without_python(py, || self.poll());
            match polled {
                Poll::Ready(Some(Ok(batch))) => {
                    self.log_warnings(py);
                    self.monitor.get().count_item();
                    self.is_empty.store(false, Ordering::Relaxed);
                    return Ok(Some(batch));
                }
                Poll::Ready(end) => {
                    if let Some(Err(error)) = end {
                        self.reported.store(true, Ordering::Relaxed);
                        self.close(py)?;
                        return Err(exception_of(py, &self.with_address(py, error)));
                    }
                    self.close(py)?;
                    self.warn_if_empty(py)?;
                    return Ok(None);
                }
                Poll::Pending => {
                    self.log_warnings(py);
                    if let Err(raised) = py.check_signals() {
                        // Ctrl-C does not wait for decoders to finish.
                        py.detach(|| self.stop(Duration::ZERO));
                        return Err(raised);
                    }
                }
            }
        }
    }
}

impl Epoch {
    /// Waits for the next batch, and calls the functions on this thread. Other threads wait meanwhile.
    ///
    /// If a function raises an exception, such as that of Ctrl-C, or the epoch is closed meanwhile, the epoch ends
    /// before the batch.
    fn next_inline<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        // Before the lock, which another thread may have held during the fork.
        if self.owner.is_forked_child() {
            return Err(OwnerProcess::error());
        }
        let (call, is_nested) = without_python(py, || match &*self.work.run() {
            Some(EpochRun { inline, in_function, .. }) => {
                let of_this_thread = |one: &InFunction| one.thread == thread::current().id();
                (inline.clone(), in_function.as_ref().is_some_and(of_this_thread))
            }
            None => (None, false),
        });
        if is_nested {
            let message = "cannot take a batch in a function of the same iterator with executor=\"inline\": the \
                           function has not returned; take batches outside of it";
            return Err(PyRuntimeError::new_err(message));
        }
        let (Some(call), Some(batch)) = (call, self.next(py)?) else { return Ok(None) };
        let Delivered::OfFunctions(PythonBatch { values, ids }) = batch else { return Ok(None) };
        match call.call(values.into_bound(py), &ids) {
            Ok(made) => Ok(without_python(py, || self.work.has_returned()).then_some(made)),
            Err(exception) => {
                without_python(py, || self.stop(SHUTDOWN_TIMEOUT));
                Err(exception)
            }
        }
    }
}

/// Builds: keys ──► fetch (bytes) ──► decode (values in batch slots) [──► upload (to a device)]
///
/// With a grouping: … fetch [──► map] ──► decode (one sample) ──► pack ──► batch ──► join.
///
/// If all samples are in memory, and no function gets them before they are decoded, `decode` also reads them.
///
/// With `mix` and functions: … fetch ──► filter ──► decode … ──► mix ──► map ──► batch_map.
///
/// If the device decodes: keys ──► fetch ──► decode, group, nvjpeg, batch.
///
/// Also returns the number of the epoch.
fn build(
    samples: &Samples,
    settings: &Settings,
    epoch: u64,
    state: Option<&str>,
    functions: &Functions,
) -> Result<(EpochRun, u64)> {
    let drop_last = settings.drop_last;
    let shard = samples.shard(settings);
    let state = state.map(|text| checkpoint::from_json(text, settings, shard)).transpose()?;
    let epoch = state.as_ref().map_or(epoch, State::epoch);
    // Limit the batch size to the size of the epoch, to save memory. With `drop_last`, add one slot, so that
    // the only batch stays incomplete and is left out.
    let most = samples.len().map_or(u64::MAX, |samples| settings.samples_of_rank(samples));
    let most = most.max(1).saturating_add(u64::from(drop_last));
    let batch_size = settings.batch_size.get().min(usize::try_from(most).unwrap_or(usize::MAX));
    let layout = match &settings.content {
        Content::Images(transform) => BatchLayout::new(batch_size, image_fields(transform)),
        Content::Fields(fields) => match &fields.get().grouping {
            None => fields.get().spec.layout(batch_size),
            Some(grouping) => grouping.layout_of_one(),
        },
    };
    let layout = layout.drop_last(drop_last);
    let threads = settings.threads.map_or_else(Epoch::default_threads, NonZeroUsize::get);
    let batches = layout.live_bytes(threads);
    if settings.memory_budget.is_none_or(|budget| budget as u64 > usable_memory()) {
        check_memory(&layout, batches, threads)?;
    }
    let batch_bytes = batches / layout.live_batches(threads);
    let stage_memory = Fetch::stage_memory(&layout, threads);
    let shares_of_processes =
        functions.processes.unwrap_or(0).div_ceil(layout.live_batches(threads));
    let (codecs, limits) = (CodecRegistry::with_defaults(), Limits::default());
    let partial = Counter::default();
    let device = settings.device.as_ref().map(|device| device.get().device());
    let mut common = SharedSettings {
        settings,
        shard,
        epoch,
        batch_bytes,
        stage_memory,
        memory_shares: 2,
        threads,
        functions,
    };
    let warnings = PipelineWarnings::default();

    let filtered = functions.filter.as_ref().map(|filter| filter.filtered.clone());
    let fetch = samples.read(settings, functions)?;
    let (pipeline, kept, partial) = match &settings.content {
        Content::Images(transform) => {
            let (pipeline, kept) = fetch.images();
            let pipeline = warnings.watch(pipeline);
            if let (Some(device), Some(folders)) = (device, &settings.decode_with) {
                // The group and batch stages also hold images.
                common.memory_shares = 4;
                let search = folders.iter().fold(Search::default(), Search::wheels_in);
                let (pipeline, decoded) =
                    device::attach(pipeline, settings, transform, batch_size, device, search)?;
                let pipeline = Batches::build_on_device(common.apply(pipeline)?, state)?;
                let decoded = Some(decoded);
                return Ok((
                    EpochRun { decoded, ..EpochRun::new(pipeline, kept, warnings) },
                    epoch,
                ));
            }
            let decode = StageOptions::new(DECODE).parameters(transform.parameters());
            let (transform, counter) = (transform.clone(), partial.clone());
            let counted = (transform.truncation() == OnTruncated::Partial).then_some(partial);
            let pipeline = pipeline.fill(decode, layout, move || {
                Ok(FillImage::new(&codecs, &transform, &limits)?.count_partial(counter.clone()))
            });
            (pipeline, kept, counted)
        }
        Content::Fields(fields) => {
            let SampleFields { spec, allows_partial, grouping, .. } = fields.get();
            let (filler, counter) = (spec.filler(&codecs, &limits), partial.clone());
            let filler = move || -> Result<FillRecord> { Ok(filler()?.count_partial(&counter)) };
            let decode = StageOptions::new(DECODE).parameters(spec.parameters());
            let decode = Decode { options: decode, layout, grouping: grouping.as_ref(), settings };
            let early = || [&functions.filter, &functions.map_samples].into_iter().flatten();
            let (pipeline, kept) = if fetch.is_in_memory && early().next().is_none() {
                let ((pipeline, kept), fetch, parameters) = fetch.in_memory(spec);
                let filler = move || Ok(FillStored::new(fetch.clone(), filler()?));
                (decode.with(parameters).add(warnings.watch(pipeline), filler), kept)
            } else {
                let (mut pipeline, kept) = fetch.fields(spec, DECODE);
                for function in early() {
                    pipeline = function.add(pipeline, settings.seed, &functions.gil);
                }
                (decode.add(warnings.watch(pipeline), filler), kept)
            };
            let pipeline = match settings.mix.clone() {
                None => pipeline,
                Some(mix) => {
                    common.memory_shares += 1;
                    let options = StageOptions::new("mix").parameters(mix.parameters());
                    pipeline.stage(options, move || Ok(mix.clone()))
                }
            };
            let partial = allows_partial.then_some(partial);
            if let Some((first, rest)) = functions.stages.split_first() {
                // The stages of functions, and the processes for which they wait, also hold batches.
                common.memory_shares += functions.stages.len() + shares_of_processes;
                let inline = functions.inline(settings.seed);
                let pipeline = functions.add(pipeline, fields, first, rest, settings.seed);
                let pipeline = Batches::build_of_functions(common.apply(pipeline)?, state)?;
                let run = EpochRun::new(pipeline, kept, warnings);
                return Ok((EpochRun { partial, filtered, inline, ..run }, epoch));
            }
            (pipeline, kept, partial)
        }
    };
    let pipeline = Batches::build(common.apply(pipeline)?, device, state)?;
    let run = EpochRun::new(pipeline, kept, warnings);
    Ok((EpochRun { partial, filtered, ..run }, epoch))
}

/// The steps after a state: the first one, and one past the last, if their number is known.
fn remaining_steps(state: &State, settings: &Settings) -> (u64, Option<u64>) {
    let (first, size) = (state.steps_in_epoch(), settings.step_samples().get());
    let steps = |left: u64| if settings.drop_last { left / size } else { left.div_ceil(size) };
    (first, state.samples_left().map(|left| first.saturating_add(steps(left))))
}

/// The stages that decode samples, and group them to batches.
struct Decode<'a> {
    options: StageOptions,
    layout: BatchLayout,
    grouping: Option<&'a Grouping>,
    settings: &'a Settings,
}

impl Decode<'_> {
    fn with(mut self, parameters: Parameters) -> Self {
        self.options = self.options.parameters(parameters);
        self
    }

    fn add<In: Send + 'static, F: Fill<In>>(
        self,
        pipeline: PipelineBuilder<In>,
        filler: impl Fn() -> Result<F> + Send + Sync + 'static,
    ) -> PipelineBuilder<Batch> {
        let Decode { options, layout, grouping, settings } = self;
        match grouping {
            None => pipeline.fill(options, layout, filler),
            Some(grouping) => {
                let (size, drop_last) = (settings.batch_size.get(), settings.drop_last);
                grouping.add(pipeline, options, filler, size, drop_last)
            }
        }
    }
}

/// Settings that host and device pipelines share.
struct SharedSettings<'a> {
    settings: &'a Settings,
    shard: Shard,
    epoch: u64,
    /// Size of a full batch in bytes.
    batch_bytes: usize,
    /// Default memory for the batches of one stage, in bytes.
    stage_memory: usize,
    /// The number of stages that hold this amount of memory.
    memory_shares: usize,
    threads: usize,
    functions: &'a Functions,
}

impl SharedSettings<'_> {
    fn apply<T: Send + 'static>(&self, pipeline: PipelineBuilder<T>) -> Result<PipelineBuilder<T>> {
        let SharedSettings { settings, shard, epoch, batch_bytes, threads, functions, .. } = *self;
        let shares = self.memory_shares;
        let budget =
            settings.memory_budget.unwrap_or_else(|| self.stage_memory.saturating_mul(shares));
        if budget / shares < batch_bytes.max(1) {
            let message = format!(
                "memory_budget={budget} is too small for {shares} stages with a batch of {batch_bytes} \
                 bytes each; set it to {} or more, or reduce the batch size",
                batch_bytes.max(1).saturating_mul(shares)
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        // Separate budgets for encoded files and for batches, so that neither starves the other.
        let pipeline = pipeline
            .largest_item(budget / shares)
            .memory(budget)
            .seed(settings.seed)
            .epochs(epoch..epoch.saturating_add(1))
            .on_error(settings.on_error)
            .deterministic()
            .threads(threads)
            .shard(shard)
            .learned(&settings.learned())
            .setting_names(of_loader(
                functions.movable(),
                functions.has_map(settings),
                &settings.tune,
            ))
            .hook(trace::StageHook);
        let pipeline = match &settings.monitor {
            Some(path) => pipeline.monitor(path),
            None => pipeline,
        };
        let pipeline = match functions.external_times() {
            Some(times) => pipeline.external_times(times),
            None => pipeline,
        };
        Ok(match settings.tune.tune() {
            Some(tune) => pipeline.tune(tune),
            None => pipeline,
        })
    }
}

/// Checks that the live batches, which exist at the same time, fit into the memory of this process.
pub(crate) fn check_memory(layout: &BatchLayout, bytes: usize, threads: usize) -> Result<()> {
    const MIB: u64 = 1 << 20;
    let usable = usable_memory();
    if bytes as u64 <= usable {
        return Ok(());
    }
    let message = format!(
        "{} batches of {} samples, in memory at the same time, need {} MiB, but this process can \
         use {} MiB; reduce the batch size, the image size or the number of threads",
        layout.live_batches(threads),
        layout.batch_size(),
        bytes as u64 / MIB,
        usable / MIB
    );
    Err(Error::new(ErrorKind::LimitExceeded, message))
}

impl Epoch {
    fn poll(&self) -> Poll<Option<Result<Delivered>>> {
        let is_running =
            |run: &mut Option<EpochRun>| run.as_ref().is_some_and(|run| run.in_function.is_some());
        let waited = self.work.returned.wait_timeout_while(
            self.work.run(),
            SIGNAL_CHECK_INTERVAL,
            is_running,
        );
        let (mut held, _) = waited.unwrap_or_else(PoisonError::into_inner);
        held.as_mut().map_or(Poll::Ready(None), EpochRun::poll)
    }

    /// Replaces the key of an error by its full address.
    fn with_address(&self, py: Python<'_>, error: Error) -> Error {
        let store = self.monitor.bind(py).get().store();
        match error.key() {
            Some(key) => {
                let address = address_in(store, key);
                error.renamed(address)
            }
            None => error,
        }
    }

    /// Logs one warning if the epoch has ended and images were dropped.
    fn warn_of_dropped(&self, py: Python<'_>) -> PyResult<()> {
        if self.owner.is_forked_child() || self.reported.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let monitor = self.monitor.bind(py).get();
        let statistics = py.detach(|| monitor.last_statistics());
        let sample = if self.fields.is_none() { "image" } else { "sample" };
        let Some(dropped) =
            dropped_samples(&statistics, sample, |key| address_in(monitor.store(), key))
        else {
            return Ok(());
        };
        let (number, loader, place) = (self.number, self.loader, &self.place);
        log(py, "warning", format!("epoch {number} of {loader}({place:?}): {dropped}"))
    }

    /// Logs one warning if the epoch had no batch because of `filter`.
    fn warn_if_empty(&self, py: Python<'_>) -> PyResult<()> {
        let filtered = self.filtered.as_ref().map_or(0, Counter::get);
        if filtered == 0 || !self.is_empty.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        let (number, loader, place) = (self.number, self.loader, &self.place);
        let message = format!(
            "epoch {number} of {loader}({place:?}) has no batch: filter left out {filtered} samples"
        );
        log(py, "warning", message)
    }

    fn stop(&self, at_most: Duration) {
        if self.owner.is_forked_child() {
            return;
        }
        let mut held = self.work.run();
        // Threads that request the state wait for this lock.
        if let Some(run) = &*held {
            self.monitor.get().end_with_state(run.state());
        }
        let mut run = held.take();
        if let Some(run) = &mut run {
            if let Some(last) = &self.last_run {
                last.lock().unwrap_or_else(PoisonError::into_inner).end();
            }
            *self.work.dropped() = run.pipeline.take_dropped();
        }
        drop(held);
        self.work.returned.notify_all();
        if let Some(run) = run {
            drop_within(run, at_most);
        }
    }
}

impl EpochWork {
    fn dropped(&self) -> MutexGuard<'_, Vec<Dropped>> {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn run(&self) -> MutexGuard<'_, Option<EpochRun>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the batch of functions that ran inline as delivered. Returns `false` if the epoch has ended meanwhile.
    fn has_returned(&self) -> bool {
        let is_open = self.run().as_mut().is_some_and(|run| run.in_function.take().is_some());
        self.returned.notify_all();
        is_open
    }
}

impl HasState for EpochWork {
    fn state(&self) -> Option<Result<State>> {
        self.run().as_ref().map(EpochRun::state)
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        if self.owner.is_forked_child() {
            // A forked child has no threads to join, and locks of the parent may stay held.
            std::mem::forget(Arc::clone(&self.work));
            return;
        }
        without_exception(|| {
            if Python::try_attach(|py| without_python(py, || self.stop(SHUTDOWN_TIMEOUT))).is_none()
            {
                // Python is shutting down: stop without the GIL.
                self.stop(SHUTDOWN_TIMEOUT);
            }
            Python::try_attach(|py| {
                if let Err(error) = self.warn_of_dropped(py) {
                    error.write_unraisable(py, None);
                }
            });
        });
    }
}
