//! Errors of the workspace as exceptions of the package.

use std::error::Error as StdError;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use spdl_core::Error;
use spdl_cuda::{DriverError, NoDriver};

/// The exception for `error`. Which class stands for which kind is written in `_errors.py`.
pub(crate) fn to_exception(py: Python<'_>, error: &Error) -> PyErr {
    static FROM_NATIVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = FROM_NATIVE.import(py, "spdl_rs._errors", "from_native").and_then(|from_native| {
        let report = error.report();
        let kind = error.kind().as_str();
        let (key, stage, offset) = (error.key(), error.stage(), error.offset());
        from_native.call1((report, kind, key, stage, offset, errno(error), is_of_cuda(error)))
    });
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// Whether a call of the CUDA driver failed, or there is no driver to call.
fn is_of_cuda(error: &Error) -> bool {
    causes(error).any(|cause| cause.is::<DriverError>() || cause.is::<NoDriver>())
}

/// The operating system's number, where it is behind the error.
fn errno(error: &Error) -> Option<i32> {
    causes(error).find_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error())
}

/// What is behind the error, the nearest first.
fn causes(error: &Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}
