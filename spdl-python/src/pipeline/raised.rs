//! Python exceptions as engine errors, and engine errors as Python exceptions.

use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use spdl_core::{Error, ErrorKind};

use crate::interop::error::{Raised, to_exception};

/// The function of `_failures/failure.py` that logs a failed item.
static ITEM_FAILED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Converts an exception of a Python stage to an error, and logs it with notes.
///
/// The error is fatal, whatever the failure policy, if the exception is not an `Exception` (such as
/// `SystemExit`), or if `item_failed` reports a failure of a hook around the stage.
pub(super) fn item_failure(
    py: Python<'_>,
    exception: PyErr,
    stage: &str,
    item: Option<&Py<PyAny>>,
) -> Error {
    // Includes the traceback: before Python 3.12, the exception value alone has no traceback.
    let value = exception.clone_ref(py).into_value(py);
    let logged = call_logger(py, &ITEM_FAILED, "item_failed", (value, stage, item));
    let is_fatal = logged.is_some_and(|logged| logged.is_truthy().unwrap_or(false));
    let fatal = is_fatal || !exception.is_instance_of::<PyException>(py);
    let error = Raised::into_error(py, exception);
    if fatal { error.fatal() } else { error }
}

/// Converts an exception of an attempt to an error, without logging it. The error is transient if the
/// exception is an instance of `retried`, a tuple of classes.
pub(super) fn attempt_failure(
    py: Python<'_>,
    exception: PyErr,
    retried: &Bound<'_, PyAny>,
) -> Error {
    let ends = exception.value(py).getattr(intern!(py, "_ends_pipeline"));
    let ends = ends.and_then(|ends| ends.is_truthy()).unwrap_or(false);
    if !exception.is_instance_of::<PyException>(py) || ends {
        Raised::into_error(py, exception).fatal()
    } else if exception.matches(py, retried).unwrap_or(false) {
        Raised::of_kind(py, exception, ErrorKind::Unavailable)
    } else {
        Raised::into_error(py, exception)
    }
}

/// Logs the failure of a native stage on the item named `key`.
pub(super) fn native_failure(py: Python<'_>, error: &Error, stage: &str, key: &str) {
    let value = to_exception(py, error).into_value(py);
    call_logger(py, &ITEM_FAILED, "item_failed", (value, stage, key));
}

/// Converts an exception of a source or router to a fatal error, and logs it.
pub(super) fn fatal_failure(py: Python<'_>, exception: PyErr, stage: &str) -> Error {
    static STAGE_FAILED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let value = exception.clone_ref(py).into_value(py);
    call_logger(py, &STAGE_FAILED, "stage_failed", (value, stage));
    Raised::into_error(py, exception).fatal()
}

/// Calls a function of `_failures/failure.py`. Its own exceptions must not hide the failure.
fn call_logger<'py, A>(
    py: Python<'py>,
    function: &PyOnceLock<Py<PyAny>>,
    name: &str,
    arguments: A,
) -> Option<Bound<'py, PyAny>>
where
    A: pyo3::call::PyCallArgs<'py>,
{
    let logged = function
        .import(py, "spdl_rs.pipeline._failures.failure", name)
        .and_then(|function| function.call1(arguments));
    logged.map_err(|error| error.write_unraisable(py, None)).ok()
}

/// The exception for the consumer: a `PipelineFailure` of all errors.
///
/// An exception that is not an `Exception` is returned unchanged.
pub(super) fn to_failure(py: Python<'_>, error: &Error) -> PyErr {
    static FROM_NATIVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let mut all = Vec::new();
    for error in std::iter::once(error).chain(error.others()) {
        // The group contains the failure of the item, and its notes name the limit.
        let shown = error.failed_item().unwrap_or(error);
        match Raised::of(shown) {
            Some(raised) if !raised.is_instance_of::<PyException>(py) => {
                return raised.clone_ref(py);
            }
            Some(raised) => all.push((error.stage(), raised.clone_ref(py), error.message())),
            None => {
                let exception = to_exception(py, shown);
                all.push((error.stage(), exception, error.message()));
            }
        }
    }
    let all: Vec<_> = all
        .into_iter()
        .map(|(stage, exception, message)| (stage, exception.into_value(py), message))
        .collect();
    let made = FROM_NATIVE
        .import(py, "spdl_rs.pipeline._failures.failure", "from_native")
        .and_then(|from_native| from_native.call1((all,)));
    match made {
        Ok(failure) => PyErr::from_value(failure),
        Err(error) => error,
    }
}
