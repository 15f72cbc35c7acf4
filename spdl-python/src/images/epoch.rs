//! One pass over the images: a pipeline from file names to batches.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use spdl_core::memory::usable_memory;
use spdl_core::observe::Counter;
use spdl_core::{BatchLayout, Error, ErrorKind, PipelineBuilder, Result, StageOptions, State};
use spdl_cuda::{DeviceImages, Search};
use spdl_io::{Fetch, Fetcher};
use spdl_media::{CodecRegistry, FillImage, Limits, OnTruncated, image_fields};

use super::batches::{Batches, Delivered};
use super::dataset::{Images, Opened, Reading};
use super::settings::Settings;
use super::{device, state as checkpoint};
use crate::interop::error::to_exception;
use crate::interop::fork::Home;
use crate::interop::wait::{SLICE, WIND_DOWN, drop_within, without_python};
use crate::statistics::{Monitor, Progress, address_in, state_to_json};
use crate::trace;

/// One pass over the images. Any thread may ask for the next batch.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Epoch {
    work: Arc<Work>,
    monitor: Py<Monitor>,
    is_on_device: bool,
    home: Home,
}

/// The work of an epoch, for those who ask how far it has come, too.
pub(crate) struct Work {
    /// `None` once it has ended.
    run: Mutex<Option<Run>>,
}

/// What runs, in the order in which it is dropped.
pub(crate) struct Run {
    pub(crate) pipeline: Batches,
    /// Images that are black in part; `None` where that is an error.
    partial: Option<Counter>,
    /// What knows who has decoded the images, where the device does.
    decoded: Option<DeviceImages>,
    /// Kept beyond the pipeline, so that the threads of that need not join those of these.
    kept: (Arc<dyn Fetcher>, Arc<Opened>),
}

#[pymethods]
impl Epoch {
    /// Starts the pipeline: at the beginning of the epoch, or behind what `state` says is done.
    #[new]
    #[pyo3(signature = (images, settings, epoch, state=None))]
    fn new(
        py: Python<'_>,
        images: &Images,
        settings: &Settings,
        epoch: u64,
        state: Option<&str>,
    ) -> PyResult<Self> {
        let begun = py.detach(|| {
            let run = build(images, settings, epoch, state)?;
            let monitor = Monitor::of(run.pipeline.monitor(), run.partial.clone())
                .with_decoded(run.decoded.clone());
            let opened = Arc::clone(&run.kept.1);
            let work = Arc::new(Work { run: Mutex::new(Some(run)) });
            // What a cache has done before is known before anything is asked of it.
            let progress: Weak<dyn Progress> = Arc::downgrade(&work) as _;
            let monitor = monitor.with_work(progress, opened.cache(), opened.store());
            if let Some(run) = &mut *work.run() {
                run.pipeline.start()?;
            }
            Ok((work, monitor))
        });
        let (work, monitor) = begun.map_err(|error: Error| to_exception(py, &error))?;
        let is_on_device = settings.device.is_some();
        Ok(Epoch { work, monitor: Py::new(py, monitor)?, is_on_device, home: Home::here() })
    }

    /// The state before the first batch, as JSON: that of the beginning, or what a loader makes of
    /// `state`, which is refused where it is of another one.
    #[staticmethod]
    #[pyo3(signature = (images, settings, epoch, state=None))]
    fn position(
        py: Python<'_>,
        images: &Images,
        settings: &Settings,
        epoch: u64,
        state: Option<&str>,
    ) -> PyResult<String> {
        let position = py.detach(|| {
            let run = build(images, settings, epoch, state)?;
            run.pipeline.state().and_then(|state| state_to_json(&state))
        });
        position.map_err(|error| to_exception(py, &error))
    }

    /// One state, as JSON, of those of all ranks: from it, any number of ranks go on.
    #[staticmethod]
    fn combined(py: Python<'_>, states: Vec<String>) -> PyResult<String> {
        py.detach(|| checkpoint::combine(&states)).map_err(|error| to_exception(py, &error))
    }

    /// Ends the work; `next` gives nothing from then on.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.wind_down(WIND_DOWN));
    }

    /// Tells what was done so far, also when this has long been dropped.
    #[getter]
    fn monitor(&self, py: Python<'_>) -> Py<Monitor> {
        self.monitor.clone_ref(py)
    }
}

/// Gives the batches of an epoch. From when one is counted as given until a loop has it, nothing of
/// Python runs, and so no signal is heard there.
#[pyclass(frozen, subclass, module = "spdl_rs._spdl_rs")]
pub(crate) struct BatchIterator {
    epoch: Py<Epoch>,
}

#[pymethods]
impl BatchIterator {
    #[new]
    fn new(py: Python<'_>, epoch: Py<Epoch>) -> PyResult<Self> {
        // Here, as a daemon thread that imports when Python ends would be unwound in `__next__`.
        array_of(py, epoch.get().is_on_device)?;
        Ok(BatchIterator { epoch })
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    /// Waits for the next batch: its images and its labels, as arrays of NumPy or of a device. Each keeps
    /// its native array or memory.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let epoch = self.epoch.get();
        let array = array_of(py, epoch.is_on_device)?;
        epoch.next(py)?.map(|batch| batch.into_python(array)).transpose()
    }
}

/// What makes the arrays of a batch. Importing it runs Python; calling it does not.
fn array_of(py: Python<'_>, is_on_device: bool) -> PyResult<&Bound<'_, PyAny>> {
    static HOST: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    static DEVICE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    match is_on_device {
        false => HOST.import(py, "numpy", "asarray"),
        true => DEVICE.import(py, "spdl_rs.cuda", "DeviceArray"),
    }
}

impl Epoch {
    /// Waits for the next batch, or finds that there is none.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Delivered>> {
        if self.home.is_elsewhere() {
            return Err(Home::error());
        }
        let _waiting = trace::waiting(py);
        loop {
            let polled = without_python(py, || self.poll());
            match polled {
                Poll::Ready(Some(Ok(batch))) => {
                    self.monitor.get().gave();
                    return Ok(Some(batch));
                }
                Poll::Ready(end) => {
                    self.close(py);
                    return match end {
                        Some(Err(error)) => Err(to_exception(py, &self.placed(py, error))),
                        _ => Ok(None),
                    };
                }
                Poll::Pending => {
                    if let Err(raised) = py.check_signals() {
                        // Whoever pressed Ctrl-C shall not wait for a decoder to end its image.
                        py.detach(|| self.wind_down(Duration::ZERO));
                        return Err(raised);
                    }
                }
            }
        }
    }
}

/// keys ──► fetch (bytes) ──► decode (pixels, in their place in a batch) [──► upload (to a device)]
///                       └──► decode, group, nvjpeg, batch: where the device decodes
fn build(images: &Images, settings: &Settings, epoch: u64, state: Option<&str>) -> Result<Run> {
    let Settings { transform, drop_last, .. } = settings;
    let state = state.map(|text| checkpoint::from_json(text, settings)).transpose()?;
    let epoch = state.as_ref().map_or(epoch, State::epoch);
    // No batch needs room for more images than there are. With one place more, a batch that
    // cannot get full is short, and is left out where short ones are.
    let most = settings.images_of_rank(images.len()).max(1).saturating_add(u64::from(*drop_last));
    let batch_size = settings.batch_size.get().min(usize::try_from(most).unwrap_or(usize::MAX));
    let layout = BatchLayout::new(batch_size, image_fields(transform)).drop_last(*drop_last);
    let threads = settings
        .threads
        .or_else(|| thread::available_parallelism().ok())
        .map_or(1, NonZeroUsize::get);
    let batches = layout.live_bytes(threads);
    check_memory(&layout, batches, threads)?;
    let room = batches.max(Fetch::READ_AHEAD_BYTES);
    let (codecs, limits) = (CodecRegistry::with_defaults(), Limits::default());
    let partial = Counter::default();
    let counted = (transform.truncation() == OnTruncated::Partial).then(|| partial.clone());
    let decode = StageOptions::new("decode").parameters(transform.parameters());
    let device = settings.device.as_ref().map(|device| device.get().device());

    let Reading { pipeline, kept } = images.read(settings)?;
    let mut common = Common { settings, epoch, room, rooms: 2, threads };
    if let (Some(device), Some(folders)) = (device, &settings.decode_with) {
        // Groups and batches in the making hold images, too.
        common.rooms = 4;
        let search = folders.iter().fold(Search::default(), Search::wheels_in);
        let (pipeline, decoded) = device::attach(pipeline, settings, batch_size, device, search)?;
        let pipeline = Batches::build_on_device(common.apply(pipeline), state)?;
        return Ok(Run { pipeline, partial: None, decoded: Some(decoded), kept });
    }
    let transform = transform.clone();
    let pipeline = pipeline.fill(decode, layout, move || {
        Ok(FillImage::new(&codecs, &transform, &limits)?.count_partial(partial.clone()))
    });
    let pipeline = Batches::build(common.apply(pipeline), device, state)?;
    Ok(Run { pipeline, partial: counted, decoded: None, kept })
}

/// What pipelines to the host and to a device have in common.
struct Common<'a> {
    settings: &'a Settings,
    epoch: u64,
    /// For batches in the making, in bytes.
    room: usize,
    /// How many stages hold so much.
    rooms: usize,
    threads: usize,
}

impl Common<'_> {
    fn apply<T: Send + 'static>(&self, pipeline: PipelineBuilder<T>) -> PipelineBuilder<T> {
        let Common { settings, epoch, room, rooms, threads } = *self;
        // As much for files as for the batches that are made of them; neither takes the other's.
        pipeline
            .largest_item(room)
            .memory(room.saturating_mul(rooms))
            .seed(settings.seed)
            .epochs(epoch..epoch.saturating_add(1))
            .on_error(settings.on_error)
            .deterministic()
            .threads(threads)
            .shard(settings.shard)
            .hook(trace::StageHook)
    }
}

/// Refuses batches that this process has no memory for, before the system ends it for them.
pub(crate) fn check_memory(layout: &BatchLayout, bytes: usize, threads: usize) -> Result<()> {
    const MIB: u64 = 1 << 20;
    let usable = usable_memory();
    if bytes as u64 <= usable {
        return Ok(());
    }
    let message = format!(
        "{} batches of {} images are held at once, and take {} MiB; this process may use {} MiB",
        layout.live_batches(threads),
        layout.batch_size(),
        bytes as u64 / MIB,
        usable / MIB
    );
    Err(Error::new(ErrorKind::LimitExceeded, message))
}

impl Epoch {
    fn poll(&self) -> Poll<Option<Result<Delivered>>> {
        match &mut *self.work.run() {
            Some(run) => run.pipeline.next_timeout(SLICE),
            None => Poll::Ready(None),
        }
    }

    /// An error that names what it is about by its address.
    fn placed(&self, py: Python<'_>, error: Error) -> Error {
        let store = self.monitor.bind(py).get().store();
        match error.key() {
            Some(key) => {
                let address = address_in(store, key);
                error.renamed(address)
            }
            None => error,
        }
    }

    fn wind_down(&self, at_most: Duration) {
        if self.home.is_elsewhere() {
            return;
        }
        let mut held = self.work.run();
        // Who asks meanwhile how far it has come waits for this.
        if let Some(run) = &*held {
            self.monitor.get().end_at(run.pipeline.state());
        }
        let run = held.take();
        drop(held);
        if let Some(run) = run {
            drop_within(run, at_most);
        }
    }
}

impl Work {
    pub(crate) fn run(&self) -> MutexGuard<'_, Option<Run>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress for Work {
    fn state(&self) -> Option<Result<State>> {
        self.run().as_ref().map(|run| run.pipeline.state())
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        if self.home.is_elsewhere() {
            // There are no threads to join, and what they had locked stays locked.
            std::mem::forget(Arc::clone(&self.work));
            return;
        }
        if Python::try_attach(|py| without_python(py, || self.wind_down(WIND_DOWN))).is_none() {
            // Python is shutting down: nobody is held up.
            self.wind_down(WIND_DOWN);
        }
    }
}
