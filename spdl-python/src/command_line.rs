//! The program `spdl` as a function.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use pyo3::prelude::*;

/// Runs the program with the arguments of a command line, the first of which is its name. Returns its exit code.
#[pyfunction]
pub(crate) fn run_command_line(py: Python<'_>, arguments: Vec<Vec<u8>>) -> u8 {
    py.detach(|| spdl_cli::run(arguments.into_iter().map(OsString::from_vec)))
}

/// The environment variables that [`spdl_cli::allocator_settings`] returns.
#[pyfunction]
pub(crate) fn allocator_settings() -> Vec<(&'static str, &'static str)> {
    spdl_cli::allocator_settings()
}
