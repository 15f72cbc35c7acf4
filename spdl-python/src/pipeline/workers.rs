//! Python threads as a worker pool of the engine.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use spdl_core::runtime::CpuExecutor;

use crate::interop::wait::{end_python, has_forked, without_python};
use crate::statistics::ThreadTimes;
use crate::trace;

/// The target of worker threads: `threading.Thread(target=workers)`.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Workers {
    pub(super) pool: Arc<Pool>,
}

#[pymethods]
impl Workers {
    #[new]
    fn new(threads: usize) -> Self {
        let pool = Pool {
            threads: threads.max(1),
            state: Mutex::default(),
            work: Condvar::new(),
            times: Arc::default(),
        };
        Workers { pool: Arc::new(pool) }
    }

    /// The number of threads of the pool.
    #[getter]
    fn threads(&self) -> usize {
        self.pool.threads
    }

    /// Runs jobs until `close`.
    fn __call__(&self, py: Python<'_>) {
        trace::name_python_thread(py);
        // The Python thread state persists, so thread-local values persist between jobs.
        without_python(py, || self.pool.times.count(|| self.pool.work()));
    }

    /// Stops all other threads from requesting the GIL. Returns whether any of these threads still
    /// holds or requests the GIL after `timeout` seconds.
    #[staticmethod]
    #[pyo3(signature = (timeout=0.5))]
    fn forbid_python(py: Python<'_>, timeout: f64) -> bool {
        end_python(py, Duration::try_from_secs_f64(timeout).unwrap_or_default())
    }

    /// Resets thread counts in a forked child process.
    #[staticmethod]
    fn has_forked() {
        has_forked();
    }

    /// Ends the threads after the queued jobs.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.pool.close());
    }
}

type Task = Box<dyn FnOnce() + Send>;

pub(super) struct Pool {
    threads: usize,
    state: Mutex<PoolState>,
    work: Condvar,
    pub(super) times: Arc<ThreadTimes>,
}

#[derive(Default)]
struct PoolState {
    queue: VecDeque<Task>,
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

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CpuExecutor for Pool {
    fn execute(&self, work: Task) {
        let mut state = self.state();
        if state.closed {
            // Unlocked: the job's drop may call this pool.
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
        write!(f, "{} Python threads", self.threads)
    }
}
