//! What an epoch did, for those who do not hold it.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use spdl_core::{Counter, Statistics};

use crate::home::Home;
use crate::statistics;

/// Tells an epoch's statistics, while it runs and afterwards. Does not keep it running.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Monitor {
    view: Mutex<View>,
    /// Images that are black in part; `None` where that is an error.
    partial: Option<Counter>,
    home: Home,
}

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
        Monitor::with(View::Ended(Box::default()), None)
    }

    /// What was done so far.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let statistics = if self.home.is_elsewhere() {
            self.last_word().ok_or_else(Home::error)?
        } else {
            py.detach(|| self.view().statistics())
        };
        statistics::to_dict(py, &statistics, self.partial.as_ref().map(Counter::get))
    }
}

impl Monitor {
    pub(crate) fn of(pipeline: spdl_core::Monitor, partial: Option<Counter>) -> Self {
        Monitor::with(View::Running(pipeline), partial)
    }

    fn with(view: View, partial: Option<Counter>) -> Self {
        Monitor { view: Mutex::new(view), partial, home: Home::here() }
    }

    /// The numbers of what had ended when this process was forked. Waits for nobody.
    fn last_word(&self) -> Option<Statistics> {
        let view = match self.view.try_lock() {
            Ok(view) => view,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        match &*view {
            View::Running(_) => None,
            ended @ View::Ended(_) => Some(ended.statistics()),
        }
    }

    /// Keeps the numbers as they are now.
    pub(crate) fn end(&self) {
        let mut view = self.view();
        let ended = View::Ended(Box::new(view.statistics()));
        *view = ended;
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
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
