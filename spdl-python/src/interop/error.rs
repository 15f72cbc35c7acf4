//! Errors of the workspace as Python exceptions.

use std::error::Error as StdError;
use std::fmt;

use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use spdl_core::{Error, ErrorKind};
use spdl_cuda::driver::{DriverError, DriverLoadError};
use spdl_cuda::jpeg::NvJpegError;
use spdl_cuda::libraries::LibraryNotFound;
use spdl_io::records::Remedy;

/// Calls `work` of a destructor without the exception that propagates meanwhile, because `work` may run Python
/// code.
pub(crate) fn without_exception<R>(work: impl FnOnce() -> R) -> R {
    let propagating = Python::try_attach(PyErr::take).flatten();
    let done = work();
    if let Some(exception) = propagating {
        Python::try_attach(|py| exception.restore(py));
    }
    done
}

/// Converts an error to a Python exception.
///
/// `_errors.py` maps each error kind to an exception class. If a Python allocator raised an
/// exception, that exception is the cause. The cause of too many failures is the failure of an item. An
/// exception that is not an `Exception`, such as `KeyboardInterrupt`, is returned unchanged.
pub(crate) fn to_exception(py: Python<'_>, error: &Error) -> PyErr {
    static FROM_NATIVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let raised = raised_by_allocator(error);
    if let Some(raised) = raised.filter(|raised| !raised.is_instance_of::<PyException>(py)) {
        return raised.clone_ref(py);
    }
    let made = FROM_NATIVE.import(py, "spdl_rs._errors", "from_native").and_then(|from_native| {
        let report = report_with_advice(error);
        let kind = error.kind().as_str();
        let (key, stage, offset) = (error.key(), error.stage(), error.offset());
        from_native.call1((report, kind, key, stage, offset, errno(error), is_of_cuda(error)))
    });
    match made {
        Ok(exception) => {
            let exception = PyErr::from_value(exception);
            let of_item = error.failed_item().map(|failure| match Raised::of(failure) {
                Some(raised) => raised.clone_ref(py),
                None => to_exception(py, failure),
            });
            if let Some(cause) = raised.map(|raised| raised.clone_ref(py)).or(of_item) {
                exception.set_cause(py, Some(cause));
            }
            exception
        }
        Err(error) => error,
    }
}

/// The report of an error, followed by the Python argument that avoids the error.
pub(crate) fn report_with_advice(error: &Error) -> String {
    let report = error.report();
    match Remedy::of(error) {
        Some(Remedy::ImageField) => {
            format!(
                "{report}; to use another field or column, pass `stored_as=` to the field of \
                 `Loader`, or `image_field=` to `ImageLoader`"
            )
        }
        Some(Remedy::LabelField) => {
            format!(
                "{report}; for numbers with fractions, use `fields.Number()` of `Loader`; to use \
                 another field as the label, pass `stored_as=` to its field, or `label_field=` to `ImageLoader`"
            )
        }
        Some(Remedy::StoredField) => {
            format!(
                "{report}; pass the name of a stored field as `stored_as=` to the field of `Loader`"
            )
        }
        Some(Remedy::Images) => {
            format!("{report}; pass the folder of the images as `Loader(image_folder=…)`")
        }
        Some(Remedy::Classes) => {
            format!(
                "{report}; pass the class names as `fields.Label(classes=[…])` of `Loader`, or as `classes=` to \
                 `ImageLoader`"
            )
        }
        Some(Remedy::SequentialMemory) => {
            format!("{report}; the limit is the argument `sequential_memory=`")
        }
        Some(Remedy::MaxFileBytes) => {
            format!("{report}; to read larger samples, raise `max_file_bytes=`")
        }
        _ => report,
    }
}

/// Whether CUDA caused the error: a driver or library call failed, a library is missing, or a
/// device memory allocator raised an exception.
fn is_of_cuda(error: &Error) -> bool {
    let is_of_nvjpeg = |cause: &(dyn StdError + 'static)| {
        let failure = cause.downcast_ref::<NvJpegError>();
        failure.is_some_and(|failure| !failure.is_fault_of_image())
    };
    causes(error).any(|cause| {
        cause.is::<DriverError>()
            || cause.is::<DriverLoadError>()
            || cause.is::<LibraryNotFound>()
            || is_of_nvjpeg(cause)
    }) || raised_by_allocator(error).is_some()
}

fn raised_by_allocator(error: &Error) -> Option<&PyErr> {
    raised(error, true)
}

fn raised(error: &Error, by_allocator: bool) -> Option<&PyErr> {
    let found = causes(error).filter_map(|cause| cause.downcast_ref::<Raised>());
    let mut found = found.filter(|raised| raised.is_of_allocator == by_allocator);
    found.next().map(|raised| &raised.exception)
}

/// The `errno` value, if an operating system error caused this error.
fn errno(error: &Error) -> Option<i32> {
    causes(error).find_map(|cause| cause.downcast_ref::<std::io::Error>()?.raw_os_error())
}

/// The chain of causes, nearest first.
fn causes(error: &Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// The class name and message of an exception, such as `ValueError: no such file`.
pub(crate) fn exception_in_words(py: Python<'_>, exception: &PyErr) -> String {
    let value = exception.value(py);
    let name = exception.get_type(py).getattr(intern!(py, "__name__"));
    let name = name.map_or_else(|_| "exception".into(), |name| name.to_string());
    match value.str() {
        Ok(text) if !text.to_string_lossy().is_empty() => {
            format!("{name}: {}", text.to_string_lossy())
        }
        _ => name,
    }
}

/// The message of the error of a function that raised an exception. Retries add their number.
pub(crate) const ATTEMPT_RAISED: &str = "raised an exception";

/// An exception of a function or of an allocator of the user, as the cause of an error.
pub(crate) struct Raised {
    exception: PyErr,
    is_of_allocator: bool,
    /// The class name and message, for use without the GIL.
    words: String,
}

impl Raised {
    /// The error of an exception of a function.
    pub(crate) fn into_error(py: Python<'_>, exception: PyErr) -> Error {
        Raised::of_kind(py, exception, ErrorKind::User)
    }

    /// The error of an exception of a function, of another kind.
    pub(crate) fn of_kind(py: Python<'_>, exception: PyErr, kind: ErrorKind) -> Error {
        let words = exception_in_words(py, &exception);
        let raised = Raised { exception, is_of_allocator: false, words };
        Error::new(kind, ATTEMPT_RAISED).with_source(raised)
    }

    /// The cause of an error of an allocator.
    pub(crate) fn by_allocator(exception: PyErr, words: String) -> Raised {
        Raised { exception, is_of_allocator: true, words }
    }

    /// The exception of a function that caused an error, if any.
    pub(crate) fn of(error: &Error) -> Option<&PyErr> {
        raised(error, false)
    }
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
