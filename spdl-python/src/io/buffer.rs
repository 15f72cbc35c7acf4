//! The memory of a Python object, read in pieces.

use std::ops::Range;

use bytes::Bytes;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyMemoryView, PySlice};
use spdl_core::{Error, ErrorKind, Result};

/// The bytes of a Python object, as a flat `memoryview` that keeps the object alive.
pub(crate) struct Buffer {
    view: Py<PyAny>,
    /// The whole object, if it is `bytes` and therefore immutable.
    whole: Option<Bytes>,
    len: usize,
}

impl Buffer {
    /// # Errors
    /// `TypeError` if the object does not support the buffer protocol, `ValueError` if the buffer
    /// is not C-contiguous.
    pub(crate) fn of(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = data.py();
        let view = PyMemoryView::from(data)?;
        if !view.getattr("c_contiguous")?.extract::<bool>()? {
            return Err(PyValueError::new_err("the buffer is not C-contiguous; copy it first"));
        }
        let len = view.getattr("nbytes")?.extract()?;
        let is_flat = view.getattr("ndim")?.extract::<usize>()? == 1
            && view.getattr("format")?.extract::<String>()? == "B";
        let view = match (is_flat, len) {
            (true, _) => view.into_any(),
            // `memoryview.cast` rejects empty views with zeros in the shape.
            (false, 0) => PyMemoryView::from(&PyBytes::new(py, b""))?.into_any(),
            (false, _) => view.call_method1("cast", ("B",))?,
        };
        let whole = match view.getattr("obj")?.cast_into::<PyBytes>() {
            Ok(object) if object.as_bytes().len() == len => {
                Some(Bytes::from_owner(PyBackedBytes::from(object)))
            }
            _ => None,
        };
        Ok(Buffer { view: view.unbind(), whole, len })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// Returns a range of the bytes: shared if the object is immutable, otherwise copied.
    ///
    /// # Errors
    /// `InvalidArgument` if the range exceeds the buffer.
    pub(crate) fn read(&self, py: Python<'_>, range: Range<u64>) -> Result<Bytes> {
        let part = self.part(range)?;
        if let Some(whole) = &self.whole {
            return Ok(whole.slice(part));
        }
        let copy = self.slice(py, part).and_then(|part| part.call_method0("tobytes"));
        let copy = copy.and_then(|copy| Ok(copy.cast_into::<PyBytes>()?));
        let copy = copy.map_err(|error| Error::new(ErrorKind::User, error.to_string()))?;
        Ok(Bytes::from_owner(PyBackedBytes::from(copy)))
    }

    /// Returns a `memoryview` of a range of the bytes.
    ///
    /// # Errors
    /// `InvalidArgument` if the range exceeds the buffer.
    pub(crate) fn view<'py>(
        &self,
        py: Python<'py>,
        range: Range<u64>,
    ) -> Result<PyResult<Bound<'py, PyAny>>> {
        Ok(self.slice(py, self.part(range)?))
    }

    fn slice<'py>(&self, py: Python<'py>, part: Range<usize>) -> PyResult<Bound<'py, PyAny>> {
        // No object is larger than `isize::MAX` bytes.
        self.view.bind(py).get_item(PySlice::new(py, part.start as isize, part.end as isize, 1))
    }

    fn part(&self, range: Range<u64>) -> Result<Range<usize>> {
        match (usize::try_from(range.start), usize::try_from(range.end)) {
            (Ok(start), Ok(end)) if start <= end && end <= self.len => Ok(start..end),
            _ => {
                let message = format!("invalid range {range:?} for a buffer of {} bytes", self.len);
                Err(Error::new(ErrorKind::InvalidArgument, message))
            }
        }
    }
}
