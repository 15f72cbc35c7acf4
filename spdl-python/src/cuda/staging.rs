//! Pinned buffers between NumPy arrays and a device.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use spdl_core::Device;
use spdl_core::memory::HostBuffer;

use super::device::CudaDevice;
use super::driver_handle::DriverHandle;
use super::memory::DeviceMemory;
use crate::interop::array::type_string;
use crate::interop::error::to_exception;

/// A pinned buffer that NumPy writes before its upload. No view of the buffer may exist during the upload.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Staging {
    device: DriverHandle<spdl_cuda::CudaDevice>,
    /// `None` after the upload has started.
    buffer: Mutex<Option<HostBuffer>>,
    address: usize,
    nbytes: usize,
}

#[pymethods]
impl Staging {
    #[new]
    fn new(py: Python<'_>, device: &CudaDevice, nbytes: usize) -> PyResult<Self> {
        let device = device.handle();
        let taken = py.detach(|| device.host_buffer(nbytes));
        let mut buffer = taken.map_err(|error| to_exception(py, &error))?;
        let address = buffer.as_mut_ptr().expose_provenance();
        Ok(Staging { device, buffer: Mutex::new(Some(buffer)), address, nbytes })
    }

    /// The array interface, version 3. Raises `RuntimeError` after the upload has started.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        const READ_ONLY: bool = false;
        if self.buffer().is_none() {
            return Err(already_uploaded());
        }
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", (self.nbytes,))?;
        interface.set_item("typestr", type_string(spdl_core::DType::U8)?)?;
        interface.set_item("data", (self.address, READ_ONLY))?;
        Ok(interface)
    }

    /// Starts the upload without waiting, and takes the buffer.
    fn upload(&self, py: Python<'_>) -> PyResult<DeviceMemory> {
        let buffer = self.buffer().take().ok_or_else(already_uploaded)?;
        let upload = py.detach(|| self.device.upload(buffer));
        upload.map(DeviceMemory::from).map_err(|error| to_exception(py, &error))
    }
}

impl Staging {
    fn buffer(&self) -> MutexGuard<'_, Option<HostBuffer>> {
        self.buffer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn already_uploaded() -> PyErr {
    PyRuntimeError::new_err("the staging buffer was already uploaded")
}
