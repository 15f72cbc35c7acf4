//! Errors of the workspace as exceptions of the package.

use std::error::Error as StdError;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use spdl_core::Error;

/// The exception for `error`. Which class stands for which kind is written in `_errors.py`.
pub(crate) fn to_exception(py: Python<'_>, error: &Error) -> PyErr {
    static FROM_NATIVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let made = FROM_NATIVE.import(py, "spdl_rs._errors", "from_native").and_then(|from_native| {
        let report = error.report();
        let kind = error.kind().as_str();
        from_native.call1((report, kind, error.key(), error.stage(), error.offset(), errno(error)))
    });
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// The operating system's number, where it is behind the error.
fn errno(error: &Error) -> Option<i32> {
    let mut cause: Option<&dyn StdError> = error.source();
    while let Some(error) = cause {
        let number = error.downcast_ref::<std::io::Error>().and_then(|error| error.raw_os_error());
        if number.is_some() {
            return number;
        }
        cause = error.source();
    }
    None
}
