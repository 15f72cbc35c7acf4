//! What is on its way from arrays of Python to a device.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use spdl_core::Device;
use spdl_core::memory::HostBuffer;

use super::device::CudaDevice;
use super::lent::Lent;
use super::memory::DeviceMemory;
use crate::interop::array::type_string;
use crate::interop::error::to_exception;

/// Pinned bytes that NumPy writes, before they are sent. Nobody may hold a view of them by then.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Staging {
    device: Lent<spdl_cuda::CudaDevice>,
    /// `None` once it is sent.
    buffer: Mutex<Option<HostBuffer>>,
    address: usize,
    nbytes: usize,
}

#[pymethods]
impl Staging {
    #[new]
    fn new(py: Python<'_>, device: &CudaDevice, nbytes: usize) -> PyResult<Self> {
        let device = device.lent();
        let taken = py.detach(|| device.host_buffer(nbytes));
        let mut buffer = taken.map_err(|error| to_exception(py, &error))?;
        let address = buffer.as_mut_ptr().expose_provenance();
        Ok(Staging { device, buffer: Mutex::new(Some(buffer)), address, nbytes })
    }

    /// The array interface, version 3, of its bytes. They are not its own any more once they are sent.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        const READ_ONLY: bool = false;
        if self.buffer().is_none() {
            return Err(sent_before());
        }
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", (self.nbytes,))?;
        interface.set_item("typestr", type_string(spdl_core::DType::U8)?)?;
        interface.set_item("data", (self.address, READ_ONLY))?;
        Ok(interface)
    }

    /// Starts the copy, and returns at once. This is empty then.
    fn upload(&self, py: Python<'_>) -> PyResult<DeviceMemory> {
        let buffer = self.buffer().take().ok_or_else(sent_before)?;
        let upload = py.detach(|| self.device.upload(buffer));
        upload.map(DeviceMemory::from).map_err(|error| to_exception(py, &error))
    }
}

impl Staging {
    fn buffer(&self) -> MutexGuard<'_, Option<HostBuffer>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn sent_before() -> PyErr {
    PyRuntimeError::new_err("its bytes were sent to the device before, and are no longer its own")
}
