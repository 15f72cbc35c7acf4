//! Log messages, and warnings about pipelines that make no progress or whose consumer starves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use spdl_core::PipelineBuilder;

/// Time without progress after which a stall is logged, in milliseconds.
static STALL_MILLIS: AtomicU64 = AtomicU64::new(60_000);
/// Time between two checks whether the consumer starves, in milliseconds.
static STARVATION_MILLIS: AtomicU64 = AtomicU64::new(60_000);

/// Sets the time without progress after which pipelines that are built later log a warning.
#[pyfunction]
pub(crate) fn set_stall_time(seconds: f64) {
    set_millis(&STALL_MILLIS, seconds);
}

/// Sets the time after which pipelines that are built later log a warning if the consumer starves.
#[pyfunction]
pub(crate) fn set_starvation_time(seconds: f64) {
    set_millis(&STARVATION_MILLIS, seconds);
}

fn set_millis(millis: &AtomicU64, seconds: f64) {
    let time = Duration::try_from_secs_f64(seconds.max(0.001)).unwrap_or(Duration::MAX);
    millis.store(u64::try_from(time.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Warnings of a pipeline that were not logged yet.
#[derive(Clone, Default)]
pub(crate) struct PipelineWarnings(Arc<Unlogged>);

#[derive(Default)]
struct Unlogged {
    /// Whether there are texts; readable without the lock.
    any: AtomicBool,
    texts: Mutex<Vec<String>>,
}

impl Unlogged {
    fn add(&self, text: String) {
        self.texts.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        self.any.store(true, Ordering::Release);
    }
}

impl PipelineWarnings {
    /// Makes a pipeline report its stalls and the starvation of its consumer here.
    pub(crate) fn watch<T: Send + 'static>(
        &self,
        pipeline: PipelineBuilder<T>,
    ) -> PipelineBuilder<T> {
        // The listeners may run without the GIL.
        let (of_stalls, of_starvation) = (Arc::clone(&self.0), Arc::clone(&self.0));
        let time = |millis: &AtomicU64| Duration::from_millis(millis.load(Ordering::Relaxed));
        pipeline
            .on_stall(time(&STALL_MILLIS), move |stall| of_stalls.add(stall.to_string()))
            .on_starvation(time(&STARVATION_MILLIS), move |it| of_starvation.add(it.to_string()))
    }

    /// Logs each warning once.
    pub(crate) fn log(&self, py: Python<'_>) {
        if !self.0.any.load(Ordering::Acquire) {
            return;
        }
        self.0.any.store(false, Ordering::Release);
        let texts =
            std::mem::take(&mut *self.0.texts.lock().unwrap_or_else(PoisonError::into_inner));
        for text in texts {
            if let Err(error) = log(py, "warning", text) {
                error.write_unraisable(py, None);
            }
        }
    }
}

/// Logs a message with Python's `logging`. Does nothing while the interpreter exits: modules are then deleted.
pub(crate) fn log(py: Python<'_>, level: &str, text: String) -> PyResult<()> {
    static IS_FINALIZING: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let is_finalizing = IS_FINALIZING.import(py, "sys", "is_finalizing");
    let is_finalizing = is_finalizing.and_then(|function| function.call0()?.is_truthy());
    // Late in finalization, imports fail.
    if is_finalizing.unwrap_or(true) {
        return Ok(());
    }
    let logger = py.import("logging")?.call_method1("getLogger", ("spdl_rs",))?;
    logger.call_method1(level, ("%s", text)).map(drop)
}
