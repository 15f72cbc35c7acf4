//! Detection of forked child processes, which have the parent's memory but not its threads.

use std::process;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

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
        PyRuntimeError::new_err(message)
    }

    /// The error of a forked child that uses an iterator of its parent.
    pub(crate) fn error() -> PyErr {
        let message = "cannot use an iterator in a forked child process: it belongs to the process \
                       that started it; create a new one in this process with iter(loader)";
        PyRuntimeError::new_err(message)
    }
}
