//! Log messages, and warnings about pipelines that make no progress.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use spdl_core::PipelineBuilder;
use spdl_core::observe::Stall;

/// Time without progress after which a stall is logged, in milliseconds.
static STALL_MILLIS: AtomicU64 = AtomicU64::new(60_000);

/// Sets the time without progress after which pipelines that are built later log a warning.
#[pyfunction]
pub(crate) fn set_stall_time(seconds: f64) {
    let time = Duration::try_from_secs_f64(seconds.max(0.001)).unwrap_or(Duration::MAX);
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    STALL_MILLIS.store(millis, Ordering::Relaxed);
}

/// The stall of a pipeline that was not logged yet.
#[derive(Clone, Default)]
pub(crate) struct Stalls(Arc<Mutex<Option<Stall>>>);

impl Stalls {
    /// Makes a pipeline report its stalls here.
    pub(crate) fn watch<T: Send + 'static>(
        &self,
        pipeline: PipelineBuilder<T>,
    ) -> PipelineBuilder<T> {
        let last = Arc::clone(&self.0);
        let after = Duration::from_millis(STALL_MILLIS.load(Ordering::Relaxed));
        // The listener may run without the GIL.
        pipeline.on_stall(after, move |stall| {
            *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(stall.clone());
        })
    }

    /// Logs the stall, once.
    pub(crate) fn log(&self, py: Python<'_>) {
        let stall = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(stall) = stall
            && let Err(error) = log(py, "warning", stall.to_string())
        {
            error.write_unraisable(py, None);
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
