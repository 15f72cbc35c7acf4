//! Forks: they have the memory of the process that they come from, but not its threads.

use std::process;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The process whose threads do the work.
#[derive(Clone, Copy)]
pub(crate) struct Home(u32);

impl Home {
    pub(crate) fn here() -> Self {
        Home(process::id())
    }

    /// Whether this process is a fork of it. A lock of the pipeline may then stay locked for ever.
    pub(crate) fn is_elsewhere(self) -> bool {
        process::id() != self.0
    }

    /// What is raised in a fork for numbers that change in another process.
    pub(crate) fn numbers_error() -> PyErr {
        let message = "what a loader or a pipeline has done is known in the process that runs it, \
                       and this one is a fork of that; ask there, or start another here";
        PyRuntimeError::new_err(message)
    }

    /// What is raised in a fork.
    pub(crate) fn error() -> PyErr {
        let message = "this iterator belongs to the process that started it, of which this one is \
                       a fork; start another here with iter(loader)";
        PyRuntimeError::new_err(message)
    }
}
