//! Iterator over the items of a pipeline or epoch.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use super::Item;
use super::run::PipelineRun;

/// Yields items until the end of the pipeline or epoch. Then calls `at_end`, if it is given.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct ItemIterator {
    run: Py<PipelineRun>,
    timeout: Option<f64>,
    at_end: Option<Py<PyAny>>,
    ended: AtomicBool,
}

#[pymethods]
impl ItemIterator {
    #[new]
    #[pyo3(signature = (run, timeout=None, at_end=None))]
    fn new(run: Py<PipelineRun>, timeout: Option<f64>, at_end: Option<Py<PyAny>>) -> Self {
        ItemIterator { run, timeout, at_end, ended: AtomicBool::new(false) }
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
            if let Some(at_end) = &self.at_end {
                at_end.call0(py)?;
            }
        }
        Ok(item)
    }
}
