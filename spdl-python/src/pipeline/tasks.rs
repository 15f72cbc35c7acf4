//! A source that other threads put items into.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::Item;
use super::feed::FeedQueue;

/// A source without a thread: callers put items into the source. The source ends with its pipeline.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
#[derive(Default)]
pub(crate) struct TaskQueue {
    /// The source queue of the pipeline built last.
    queue: Mutex<Option<Arc<FeedQueue>>>,
}

#[pymethods]
impl TaskQueue {
    #[new]
    fn new() -> Self {
        TaskQueue::default()
    }

    /// Adds an item without waiting. Drops the item if there is no running pipeline.
    fn put(&self, item: Item) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(queue) = queue {
            queue.push_unbounded(item);
        }
    }

    /// Makes the object a valid source; the pipeline does not call this method.
    ///
    /// # Errors
    /// Always `TypeError`, because only the pipeline takes items.
    fn __iter__(&self) -> PyResult<Py<PyAny>> {
        Err(PyTypeError::new_err("cannot iterate a TaskQueue: pass it to a pipeline as its source"))
    }
}

impl TaskQueue {
    /// Sets the queue that receives the items from now on.
    pub(super) fn connect(&self, queue: Arc<FeedQueue>) {
        *self.queue.lock().unwrap_or_else(PoisonError::into_inner) = Some(queue);
    }
}
