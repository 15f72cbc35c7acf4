//! The base class of `spdl_rs.cuda.DeviceArray`.

use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};

use super::DeviceMemory;

/// Device memory with the shape and data type of an array in it. Creation runs no Python code, so
/// that no signal handler runs after a batch is counted as delivered and before it is returned.
#[pyclass(frozen, subclass, module = "spdl_rs._spdl_rs")]
pub(crate) struct PlacedArray {
    #[pyo3(get, name = "_memory")]
    memory: Py<DeviceMemory>,
    #[pyo3(get, name = "_shape")]
    shape: Py<PyTuple>,
    #[pyo3(get, name = "_dtype")]
    dtype: Py<PyString>,
    /// The byte offset of the array in the memory.
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
