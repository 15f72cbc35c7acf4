//! The header of a `.npy` file.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use spdl_io::archive;

use super::buffer::Buffer;
use crate::interop::error::to_exception;

/// The header of a `.npy` file in memory.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct NpyHeader(archive::NpyHeader);

#[pymethods]
impl NpyHeader {
    #[new]
    fn new(data: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = data.py();
        let buffer = Buffer::of(data)?;
        let header = archive::NpyHeader::read(buffer.len(), |range| buffer.read(py, range));
        header.map(NpyHeader).map_err(|error| to_exception(py, &error))
    }

    /// NumPy's type string of the elements.
    #[getter]
    fn dtype(&self) -> &str {
        self.0.descr()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }

    /// `"F"` for Fortran order, `"C"` for C order.
    #[getter]
    fn order(&self) -> &'static str {
        if self.0.is_fortran_order() { "F" } else { "C" }
    }

    /// The offset of the first element, in bytes.
    #[getter]
    fn offset(&self) -> u64 {
        self.0.data_range().start
    }
}
