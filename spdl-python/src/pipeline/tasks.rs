//! A source whose items are handed in.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::Item;
use super::feed::Line;

/// A source of which no thread waits for the next item: whoever has one puts it in. It has no end but
/// that of its pipeline, and so nobody has to be told of one.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
#[derive(Default)]
pub(crate) struct TaskQueue {
    /// To the pipeline that was made last.
    line: Mutex<Option<Arc<Line>>>,
}

#[pymethods]
impl TaskQueue {
    #[new]
    fn new() -> Self {
        TaskQueue::default()
    }

    /// Puts an item in, for the pipeline that this is the source of. Where that has ended, or there is
    /// none, the item is dropped. Does not wait.
    fn put(&self, item: Item) {
        let line = self.line.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(line) = line {
            line.push_unasked(item);
        }
    }

    /// What makes it a source.
    ///
    /// # Errors
    /// `TypeError`: its pipeline alone takes items from it.
    fn __iter__(&self) -> PyResult<Py<PyAny>> {
        Err(PyTypeError::new_err("a TaskQueue is the source of a pipeline, and cannot be iterated"))
    }
}

impl TaskQueue {
    /// Takes in where items go from now on.
    pub(super) fn lead_to(&self, line: Arc<Line>) {
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = Some(line);
    }
}
