//! An array in the memory of a device, of which `spdl_rs.cuda.DeviceArray` is made.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use super::DeviceMemory;

/// Where an array lies in the memory of a device, and what it is. Made without running Python, so that
/// no signal is heard between a batch's being counted and a loop's having it.
#[pyclass(frozen, subclass, module = "spdl_rs._spdl_rs")]
pub(crate) struct PlacedArray {
    #[pyo3(get, name = "_memory")]
    memory: Py<DeviceMemory>,
    #[pyo3(get, name = "_shape")]
    shape: Py<PyTuple>,
    #[pyo3(get, name = "_dtype")]
    dtype: Py<PyString>,
    /// Bytes of the memory before it.
    #[pyo3(get, name = "_offset")]
    offset: usize,
}

#[pymethods]
impl PlacedArray {
    #[new]
    #[pyo3(signature = (memory, shape, dtype, offset=0))]
    fn new(
        memory: Py<DeviceMemory>,
        shape: Py<PyTuple>,
        dtype: Py<PyString>,
        offset: usize,
    ) -> Self {
        PlacedArray { memory, shape, dtype, offset }
    }
}
