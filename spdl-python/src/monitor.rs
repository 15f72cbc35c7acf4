//! What an epoch did, for those who do not hold it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use spdl_core::Statistics;

use crate::statistics;

/// Tells an epoch's statistics, while it runs and afterwards. Does not keep it running.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Monitor(Mutex<View>);

enum View {
    Running(spdl_core::Monitor),
    /// The last word. The pipeline's own monitor would keep its buffers.
    Ended(Box<Statistics>),
}

#[pymethods]
impl Monitor {
    /// A monitor of nothing.
    #[new]
    fn new() -> Self {
        Monitor(Mutex::new(View::Ended(Box::default())))
    }

    /// What was done so far.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        statistics::to_dict(py, &py.detach(|| self.view().statistics()))
    }
}

impl Monitor {
    pub(crate) fn of(pipeline: spdl_core::Monitor) -> Self {
        Monitor(Mutex::new(View::Running(pipeline)))
    }

    /// Keeps the numbers as they are now.
    pub(crate) fn end(&self) {
        let mut view = self.view();
        let ended = View::Ended(Box::new(view.statistics()));
        *view = ended;
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl View {
    fn statistics(&self) -> Statistics {
        match self {
            View::Running(pipeline) => pipeline.statistics(),
            View::Ended(statistics) => (**statistics).clone(),
        }
    }
}
