//! Detection of forked child processes, which have the parent's memory but not its threads.

use std::process;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// The process that created an object and runs its threads.
#[derive(Clone, Copy)]
pub(crate) struct OwnerProcess(u32);

impl OwnerProcess {
    pub(crate) fn current() -> Self {
        OwnerProcess(process::id())
    }

    /// Whether this process is a forked child of the owner process. In a forked child, locks may
    /// stay held forever.
    pub(crate) fn is_forked_child(self) -> bool {
        process::id() != self.0
    }

    /// The error of a forked child that requests statistics of its parent.
    pub(crate) fn numbers_error() -> PyErr {
        let message = "cannot read statistics in a forked child process: only the process that \
                       runs the loader or pipeline has them; create a new one in this process";
        forked_process_error(message)
    }

    /// The error of a forked child that uses an iterator of its parent.
    pub(crate) fn error() -> PyErr {
        let message = "cannot use an iterator in a forked child process: it belongs to the process \
                       that started it; create a new one in this process with iter(loader)";
        forked_process_error(message)
    }

    /// The error of a forked child that uses a pipeline of its parent.
    pub(crate) fn pipeline_error() -> PyErr {
        let message = "cannot use a pipeline in a forked child process: it belongs to the process \
                       that started it; build a new one in this process";
        forked_process_error(message)
    }

    /// Ends a forked child that returned from a function which runs in the owner process.
    pub(crate) fn end_forked_child(self, py: Python<'_>) {
        if self.is_forked_child() {
            end_forked_child(py);
        }
    }
}

fn forked_process_error(message: &str) -> PyErr {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    Python::attach(|py| {
        let made = CLASS.import(py, "spdl_rs._errors", "ForkedProcessError");
        made.and_then(|class| class.call1((message,))).map_or_else(|error| error, PyErr::from_value)
    })
}

/// Ends this process with an error message: a forked child that returned from a function of a
/// pipeline. The threads of the pipeline exist in the parent only.
pub(crate) fn end_forked_child(py: Python<'_>) -> ! {
    let end = py.import("spdl_rs.pipeline._processes.exit");
    if let Err(error) = end.and_then(|end| end.call_method0("end_forked_child")) {
        error.print(py);
    }
    process::abort()
}
