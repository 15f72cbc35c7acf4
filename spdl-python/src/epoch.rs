//! One pass over the images: a pipeline from file names to batches.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use spdl_core::{
    Batch, BatchLayout, Counter, Dataset, DatasetSource, Error, ErrorKind, Pipeline,
    PipelineBuilder, StageOptions, usable_memory,
};
use spdl_io::{Fetch, Fetcher, LocalFetcher};
use spdl_media::{CodecRegistry, FillImage, Limits, OnTruncated, image_fields};

use crate::array::Array;
use crate::error::to_exception;
use crate::home::Home;
use crate::images::ImageFolder;
use crate::monitor::Monitor;
use crate::settings::Settings;
use crate::wait::{SLICE, drop_within};

/// How long a pipeline may take to end before Python goes on without it.
const WIND_DOWN: Duration = Duration::from_millis(500);

/// One pass over the images. Any thread may ask for the next batch.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Epoch {
    /// `None` once it has ended.
    run: Mutex<Option<Run>>,
    monitor: Py<Monitor>,
    home: Home,
}

/// What runs, in the order in which it is dropped.
struct Run {
    pipeline: Pipeline<Batch>,
    /// Images that are black in part; `None` where that is an error.
    partial: Option<Counter>,
    /// Kept beyond the pipeline, so that the threads of that need not join those of the fetcher.
    _fetcher: Arc<dyn Fetcher>,
}

#[pymethods]
impl Epoch {
    /// Starts the pipeline.
    #[new]
    fn new(
        py: Python<'_>,
        images: &ImageFolder,
        settings: &Settings,
        epoch: u64,
    ) -> PyResult<Self> {
        let run = py.detach(|| start(&images.images, settings, epoch));
        let run = run.map_err(|error| to_exception(py, &error))?;
        let monitor = Py::new(py, Monitor::of(run.pipeline.monitor(), run.partial.clone()))?;
        Ok(Epoch { run: Mutex::new(Some(run)), monitor, home: Home::here() })
    }

    /// Waits for the next batch: its images and its labels, or nothing at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<(Array, Array)>> {
        if self.home.is_elsewhere() {
            return Err(Home::error());
        }
        loop {
            match py.detach(|| self.poll()) {
                Poll::Ready(Some(Ok(batch))) => return arrays(batch).map(Some),
                Poll::Ready(end) => {
                    self.close(py);
                    return match end {
                        Some(Err(error)) => Err(to_exception(py, &error)),
                        _ => Ok(None),
                    };
                }
                Poll::Pending => {
                    if let Err(raised) = py.check_signals() {
                        // Whoever pressed Ctrl-C shall not wait for a decoder to end its image.
                        self.wind_down(Duration::ZERO);
                        return Err(raised);
                    }
                }
            }
        }
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

/// keys ──► fetch (bytes) ──► decode (pixels, in their place in a batch)
fn start(
    images: &Arc<spdl_io::ImageFolder>,
    settings: &Settings,
    epoch: u64,
) -> spdl_core::Result<Run> {
    let Settings { transform, seed, drop_last, .. } = settings;
    let mut source = DatasetSource::shared(Arc::clone(images));
    if settings.shuffle {
        source = source.shuffled(*seed);
    }
    // No batch needs room for more images than there are. With one place more, a batch that
    // cannot get full is short, and is left out where short ones are.
    let fullest = images.len().saturating_add(u64::from(*drop_last));
    let batch_size = settings.batch_size.get().min(usize::try_from(fullest).unwrap_or(usize::MAX));
    let layout = BatchLayout::new(batch_size, image_fields(transform)).drop_last(*drop_last);
    let threads = settings
        .threads
        .or_else(|| thread::available_parallelism().ok())
        .map_or(1, NonZeroUsize::get);
    let batches = layout.live_bytes(threads);
    check_memory(&layout, batches, threads)?;
    let room = batches.max(Fetch::READ_AHEAD_BYTES);
    let fetcher = LocalFetcher::new();
    // No more at once than there are threads to read what is not in memory.
    let fetch =
        StageOptions::new("fetch").concurrency(fetcher.max_threads()).queue(Fetch::READ_AHEAD);
    let fetcher: Arc<dyn Fetcher> = Arc::new(fetcher);
    let (codecs, limits) = (CodecRegistry::with_defaults(), Limits::default());
    let transform = transform.clone();
    let partial = Counter::default();
    let counted = (transform.truncation() == OnTruncated::Partial).then(|| partial.clone());
    let decode = StageOptions::new("decode").parameters(transform.parameters());

    let mut pipeline = PipelineBuilder::new(source)
        .async_stage(fetch, Fetch::new(Arc::clone(&fetcher)))
        .measured()
        .fill(decode, layout, move || {
            Ok(FillImage::new(&codecs, &transform, &limits)?.count_partial(partial.clone()))
        })
        // As much for files as for the batches that are made of them; neither takes the other's.
        .largest_item(room)
        .memory(room.saturating_mul(2))
        .seed(*seed)
        .epochs(epoch..epoch.saturating_add(1))
        .on_error(settings.on_error)
        .deterministic()
        .threads(threads)
        .build()?;
    pipeline.start()?;
    Ok(Run { pipeline, partial: counted, _fetcher: fetcher })
}

/// Refuses batches that this process has no memory for, before the system ends it for them.
fn check_memory(layout: &BatchLayout, bytes: usize, threads: usize) -> spdl_core::Result<()> {
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

fn arrays(batch: Batch) -> PyResult<(Array, Array)> {
    let arrays: Result<[spdl_core::Array; 2], _> = batch.into_arrays().try_into();
    match arrays {
        Ok([images, labels]) => Ok((images.into(), labels.into())),
        Err(arrays) => {
            let message = format!("a batch holds {} arrays, 2 were expected", arrays.len());
            Err(PyRuntimeError::new_err(message))
        }
    }
}

impl Epoch {
    fn run(&self) -> MutexGuard<'_, Option<Run>> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&self) -> Poll<Option<spdl_core::Result<Batch>>> {
        match &mut *self.run() {
            Some(run) => run.pipeline.next_timeout(SLICE),
            None => Poll::Ready(None),
        }
    }

    fn wind_down(&self, at_most: Duration) {
        if !self.home.is_elsewhere() {
            let run = self.run().take();
            if let Some(run) = run {
                self.monitor.get().end();
                drop_within(run, at_most);
            }
        }
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        let mut run = self.run.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.home.is_elsewhere() {
            // There are no threads to join, and what they had locked stays locked.
            std::mem::forget(run);
            return;
        }
        self.monitor.get().end();
        let mut end = || run.take().into_iter().for_each(|run| drop_within(run, WIND_DOWN));
        if Python::try_attach(|py| py.detach(&mut end)).is_none() {
            // Python is shutting down: nobody is held up.
            end();
        }
    }
}
