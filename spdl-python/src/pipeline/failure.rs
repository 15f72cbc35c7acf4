//! Why a pipeline has failed, for all who ask.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use pyo3::prelude::*;
use pyo3::sync::{OnceLockExt, PyOnceLock};
use spdl_core::{Error, ErrorKind};

use super::raised::to_failure;

/// What went wrong first, and whether anybody has been told.
///
/// The exceptions are given to whoever is told first, and not kept: their tracebacks hold the frames
/// in which the pipeline is, which would hold itself where Python's garbage collector cannot look.
/// Others are told the same by exceptions that are made for each of them.
#[derive(Default)]
pub(super) struct Failure {
    error: Mutex<First>,
    /// The same for Python. No lock is held while it is made: that is code of Python's.
    made: OnceLock<Made>,
    told: AtomicBool,
}

/// What went wrong first.
#[derive(Default)]
enum First {
    #[default]
    Nothing,
    Error(Error),
    /// It is an exception now.
    Made,
}

struct Made {
    /// `None` once it was given to somebody.
    exception: Mutex<Option<PyErr>>,
    /// A function that makes another one that says the same; or why there is none.
    again: PyResult<Py<PyAny>>,
}

impl Failure {
    /// What came first stays.
    pub(super) fn keep(&self, error: Option<Error>) {
        if let Some(error) = error.filter(|error| error.kind() != ErrorKind::Stopped) {
            let mut first = lock(&self.error);
            if matches!(*first, First::Nothing) {
                *first = First::Error(error);
            }
        }
    }

    /// Whether the pipeline has failed.
    pub(super) fn has_occurred(&self) -> bool {
        !matches!(*lock(&self.error), First::Nothing)
    }

    /// The failure, if there is one. Somebody has been told then.
    pub(super) fn tell(&self, py: Python<'_>) -> Option<PyErr> {
        self.told.store(true, Ordering::SeqCst);
        self.exception(py)
    }

    /// The failure that nobody has been told of yet.
    pub(super) fn untold(&self, py: Python<'_>) -> Option<PyErr> {
        if self.told.swap(true, Ordering::SeqCst) { None } else { self.exception(py) }
    }

    fn exception(&self, py: Python<'_>) -> Option<PyErr> {
        let error = match &*lock(&self.error) {
            First::Nothing => return None,
            First::Error(error) => Some(error.clone()),
            First::Made => None,
        };
        let made = match error {
            Some(error) => self.made.get_or_init_py_attached(py, || Made::of(py, &error)),
            // It was made before the error was let go.
            None => self.made.get()?,
        };
        let error = mem::replace(&mut *lock(&self.error), First::Made);
        // No longer under the lock: this may run code of Python's.
        drop(error);
        let first = lock(&made.exception).take();
        Some(first.unwrap_or_else(|| made.another(py)))
    }
}

impl Made {
    fn of(py: Python<'_>, error: &Error) -> Self {
        static TOLD_AGAIN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let exception = to_failure(py, error);
        let again = TOLD_AGAIN
            .import(py, "spdl_rs.pipeline._failures.repeated", "RepeatedFailure")
            .and_then(|tell_again| tell_again.call1((exception.value(py),)))
            .map(Bound::unbind);
        Made { exception: Mutex::new(Some(exception)), again }
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
