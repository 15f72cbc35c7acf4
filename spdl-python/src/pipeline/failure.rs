//! The failure of a pipeline, as exceptions for one or more threads.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::{OnceLockExt, PyOnceLock};
use spdl_core::{Error, ErrorKind};

use super::raised::to_failure;

/// The first error of a run, and whether it was reported.
///
/// The first thread that requests the failure gets the original exception, which is not stored. Its
/// traceback refers to frames that hold the pipeline, a reference cycle that Python's garbage
/// collector could not find. Other threads get new exceptions with the same content.
#[derive(Default)]
pub(super) struct Failure {
    error: Mutex<FirstError>,
    /// The failure as Python objects, created while no lock is held, because the creation runs Python code.
    python: OnceLock<PythonFailure>,
    reported: AtomicBool,
}

/// The first error of a run.
#[derive(Default)]
enum FirstError {
    #[default]
    Nothing,
    Error(Error),
    /// The error was converted to an exception.
    Converted,
}

struct PythonFailure {
    /// `None` after the failure was returned to a caller.
    exception: Mutex<Option<PyErr>>,
    /// A function that creates an equal exception, or the reason why this is impossible.
    again: PyResult<Py<PyAny>>,
}

impl Failure {
    /// Stores the first error; ignores later ones.
    pub(super) fn record(&self, error: Option<Error>) {
        if let Some(error) = error.filter(|error| error.kind() != ErrorKind::Stopped) {
            let mut first = lock(&self.error);
            if matches!(*first, FirstError::Nothing) {
                *first = FirstError::Error(error);
            }
        }
    }

    /// Whether the pipeline has failed.
    pub(super) fn has_occurred(&self) -> bool {
        !matches!(*lock(&self.error), FirstError::Nothing)
    }

    /// Returns the failure, if any, and marks it as reported.
    pub(super) fn report(&self, py: Python<'_>) -> Option<PyErr> {
        self.reported.store(true, Ordering::SeqCst);
        self.exception(py)
    }

    /// Returns the failure if it has not been reported, and marks it as reported.
    pub(super) fn take_unreported(&self, py: Python<'_>) -> Option<PyErr> {
        if self.reported.swap(true, Ordering::SeqCst) { None } else { self.exception(py) }
    }

    fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        let error = match &*lock(&self.error) {
            FirstError::Nothing => return None,
            FirstError::Error(error) => Some(error.clone()),
            FirstError::Converted => None,
        };
        let made = match error {
            Some(error) => {
                self.python.get_or_init_py_attached(py, || PythonFailure::of(py, &error))
            }
            // Conversion finishes before the error is replaced.
            None => self.python.get()?,
        };
        let error = mem::replace(&mut *lock(&self.error), FirstError::Converted);
        // Dropped without the lock, because the drop may run Python code.
        drop(error);
        let first = lock(&made.exception).take();
        Some(first.unwrap_or_else(|| made.another(py)))
    }
}

impl PythonFailure {
    fn of(py: Python<'_>, error: &Error) -> Self {
        static REPEATED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let exception = to_failure(py, error);
        let again = REPEATED
            .import(py, "spdl_rs.pipeline._failures.repeated", "RepeatedFailure")
            .and_then(|repeated| repeated.call1((exception.value(py),)))
            .map(Bound::unbind);
        PythonFailure { exception: Mutex::new(Some(exception)), again }
    }

    fn another(&self, py: Python<'_>) -> PyErr {
        match &self.again {
            Ok(again) => match again.call0(py) {
                Ok(exception) => PyErr::from_value(exception.into_bound(py)),
                Err(error) => error,
            },
            Err(error) => error.clone_ref(py),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
