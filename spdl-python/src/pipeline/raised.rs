//! Exceptions of Python code on their way through the engine, and out of it.

use std::error::Error as StdError;
use std::fmt;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use spdl_core::{Error, ErrorKind};

use crate::interop::error::{exception_in_words, to_exception};

/// An exception as the cause of an error.
struct Raised {
    exception: PyErr,
    /// What can be said of it without the GIL.
    words: String,
}

impl fmt::Debug for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl StdError for Raised {}

/// The function of `_failure.py` that tells of an item that failed.
static ITEM_FAILED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The failure of a stage of Python code on an item. Notes are added to the exception, and it is
/// logged. What is no `Exception`, `SystemExit` say, ends the pipeline whatever the policy, and so
/// does what `_failure.py` says is no failure of an item: that of a hook around the stage.
pub(super) fn item_failure(
    py: Python<'_>,
    exception: PyErr,
    stage: &str,
    item: Option<&Py<PyAny>>,
) -> Error {
    // With its traceback, which the value alone has only from Python 3.12 on.
    let value = exception.clone_ref(py).into_value(py);
    let told = tell(py, &ITEM_FAILED, "item_failed", (value, stage, item));
    let of_stage = told.is_some_and(|told| told.is_truthy().unwrap_or(false));
    let fatal = of_stage || !exception.is_instance_of::<PyException>(py);
    let error = of_exception(py, exception);
    if fatal { error.fatal() } else { error }
}

/// The failure of a native stage on what is called `key`, which is logged as well.
pub(super) fn native_failure(py: Python<'_>, error: &Error, stage: &str, key: &str) {
    let value = to_exception(py, error).into_value(py);
    tell(py, &ITEM_FAILED, "item_failed", (value, stage, key));
}

/// A failure that ends the pipeline whatever the policy: of a source, a router.
pub(super) fn fatal_failure(py: Python<'_>, exception: PyErr, stage: &str) -> Error {
    static STAGE_FAILED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let value = exception.clone_ref(py).into_value(py);
    tell(py, &STAGE_FAILED, "stage_failed", (value, stage));
    of_exception(py, exception).fatal()
}

/// Calls a function of `_failure.py`. A failure in there must not hide the one that it is about.
fn tell<'py, A>(
    py: Python<'py>,
    function: &PyOnceLock<Py<PyAny>>,
    name: &str,
    arguments: A,
) -> Option<Bound<'py, PyAny>>
where
    A: pyo3::call::PyCallArgs<'py>,
{
    let told = function
        .import(py, "spdl_rs.pipeline._failures.failure", name)
        .and_then(|function| function.call1(arguments));
    told.map_err(|error| error.write_unraisable(py, None)).ok()
}

fn of_exception(py: Python<'_>, exception: PyErr) -> Error {
    let words = exception_in_words(py, &exception);
    Error::new(ErrorKind::User, "raised an exception").with_source(Raised { exception, words })
}

/// What the consumer is to be told: a `PipelineFailure` with all that failed, or what is no
/// `Exception` as it is.
pub(super) fn to_failure(py: Python<'_>, error: &Error) -> PyErr {
    static FROM_NATIVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let mut all = Vec::new();
    for error in std::iter::once(error).chain(error.others()) {
        match raised(error) {
            Some(raised) if !raised.is_instance_of::<PyException>(py) => {
                return raised.clone_ref(py);
            }
            Some(raised) => all.push((error.stage(), raised.clone_ref(py), error.message())),
            None => {
                let exception = to_exception(py, error);
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

/// The exception behind an error.
fn raised(error: &Error) -> Option<&PyErr> {
    let mut cause: Option<&(dyn StdError + 'static)> = error.source();
    while let Some(error) = cause {
        if let Some(raised) = error.downcast_ref::<Raised>() {
            return Some(&raised.exception);
        }
        cause = error.source();
    }
    None
}
