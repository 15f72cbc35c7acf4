//! The items of a pipeline, or of one of its epochs, one after the other.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use super::Item;
use super::run::PipelineRun;

/// Gives items until the pipeline, or its epoch, ends.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct ItemIterator {
    run: Py<PipelineRun>,
    timeout: Option<f64>,
    ended: AtomicBool,
}

#[pymethods]
impl ItemIterator {
    #[new]
    #[pyo3(signature = (run, timeout=None))]
    fn new(run: Py<PipelineRun>, timeout: Option<f64>) -> Self {
        ItemIterator { run, timeout, ended: AtomicBool::new(false) }
    }

    fn __iter__(this: Py<Self>) -> Py<Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Item>> {
        if self.ended.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let item = self.run.get().next(py, self.timeout)?;
        if item.is_none() {
            self.ended.store(true, Ordering::Relaxed);
        }
        Ok(item)
    }
}
