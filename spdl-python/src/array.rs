//! Arrays that NumPy reads and writes in place.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use spdl_core::DType;

/// Owns the memory of an array, and gives it back to its pool when Python drops the last
/// reference.
///
/// `numpy.asarray` keeps this object as the base of the array it makes. Once handed over, the
/// memory is Python's alone: nothing in Rust reads or writes it until it is back in the pool.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Array {
    array: spdl_core::Array,
    /// Of its first byte, taken from the only reference there was, so that it may be written to.
    address: usize,
}

impl From<spdl_core::Array> for Array {
    fn from(mut array: spdl_core::Array) -> Self {
        let address = array.as_bytes_mut().as_mut_ptr().expose_provenance();
        Array { array, address }
    }
}

#[pymethods]
impl Array {
    /// The array interface, version 3.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        const READ_ONLY: bool = false;
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, self.array.shape())?)?;
        interface.set_item("typestr", type_string(self.array.dtype())?)?;
        interface.set_item("data", (self.address, READ_ONLY))?;
        Ok(interface)
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.array)
    }
}

/// NumPy's code for an element: byte order, kind, bytes.
pub(crate) fn type_string(dtype: DType) -> PyResult<String> {
    let kind = match dtype {
        DType::U8 => "|u",
        DType::I64 if cfg!(target_endian = "big") => ">i",
        DType::I64 => "<i",
        DType::F32 | DType::F16 if cfg!(target_endian = "big") => ">f",
        DType::F32 | DType::F16 => "<f",
        other => {
            let message = format!("arrays of {other} cannot be handed to NumPy yet");
            return Err(pyo3::exceptions::PyNotImplementedError::new_err(message));
        }
    };
    Ok(format!("{kind}{}", dtype.size()))
}
