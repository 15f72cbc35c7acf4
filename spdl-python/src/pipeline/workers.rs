//! Threads of Python's, lent to the engine.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use spdl_core::runtime::CpuExecutor;

use crate::interop::wait::{end_python, has_forked, without_python};
use crate::trace;

/// The body of threads that work for a pipeline: each is `threading.Thread(target=workers)`.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Workers {
    pub(super) pool: Arc<Pool>,
}

#[pymethods]
impl Workers {
    #[new]
    fn new(threads: usize) -> Self {
        let pool = Pool { threads: threads.max(1), state: Mutex::default(), work: Condvar::new() };
        Workers { pool: Arc::new(pool) }
    }

    /// How many threads are to run this.
    #[getter]
    fn threads(&self) -> usize {
        self.pool.threads
    }

    /// Works until `close`.
    fn __call__(&self, py: Python<'_>) {
        trace::name_python_thread(py);
        // The thread keeps its Python state meanwhile: whatever is local to it lasts.
        without_python(py, || self.pool.work());
    }

    /// Keeps all threads but this one from asking for the GIL from now on, after a wait or for an item.
    /// Whether some are in Python still.
    #[staticmethod]
    fn forbid_python(py: Python<'_>) -> bool {
        end_python(py)
    }

    /// To be called in the child of a fork, where none of these threads is.
    #[staticmethod]
    fn has_forked() {
        has_forked();
    }

    /// Lets the threads end as soon as they have nothing to do.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.pool.close());
    }
}

type Work = Box<dyn FnOnce() + Send>;

pub(super) struct Pool {
    threads: usize,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Work>,
    closed: bool,
}

impl Pool {
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.work.notify_all();
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(work) = state.queue.pop_front() {
                drop(state);
                work();
                state = self.state();
            } else if state.closed {
                return;
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CpuExecutor for Pool {
    fn execute(&self, work: Work) {
        let mut state = self.state();
        if state.closed {
            // What it says as it is dropped may lead back here.
            drop(state);
            drop(work);
            return;
        }
        state.queue.push_back(work);
        drop(state);
        self.work.notify_one();
    }

    fn parallelism(&self) -> usize {
        self.threads
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} threads of Python", self.threads)
    }
}
