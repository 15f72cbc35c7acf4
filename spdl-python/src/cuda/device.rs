//! CUDA devices, and the status of CUDA.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use spdl_core::{DType, Error};
use spdl_cuda::python::{allocator_of, event_of_number};
use spdl_cuda::{ChosenDevice, Search};

use super::allocator::PythonAllocator;
use super::decoders::DeviceDecoders;
use super::driver_handle::DriverHandle;
use super::memory::wait_until;
use crate::interop::array::Array;
use crate::interop::error::to_exception;

/// An opened CUDA device. The device stays open while batches use it.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct CudaDevice {
    device: DriverHandle<spdl_cuda::CudaDevice>,
    decoders: PyOnceLock<Py<DeviceDecoders>>,
}

impl CudaDevice {
    pub(crate) fn device(&self) -> &spdl_cuda::CudaDevice {
        &self.device
    }

    pub(super) fn new(device: spdl_cuda::CudaDevice) -> Self {
        CudaDevice { device: DriverHandle::new(device), decoders: PyOnceLock::new() }
    }

    pub(super) fn handle(&self) -> DriverHandle<spdl_cuda::CudaDevice> {
        self.device.clone()
    }
}

/// The name of a part of CUDA, whether it is available, details, and a remedy.
type Part = (String, bool, String, String);

#[pymethods]
impl CudaDevice {
    /// Opens the requested device: `cpu`, `cuda`, `cuda:N` or `auto`. Returns `None` for the host.
    ///
    /// Also returns the reason if `auto` fell back to the host, and whether this is the first
    /// fallback of the process. `allocator` is a pair of functions, `(allocate, free)`, for device
    /// memory; without it, the driver allocates memory.
    #[staticmethod]
    #[pyo3(signature = (request, packages, allocator=None))]
    fn choose(
        py: Python<'_>,
        request: &str,
        packages: Vec<PathBuf>,
        allocator: Option<(Py<PyAny>, Py<PyAny>)>,
    ) -> PyResult<(Option<CudaDevice>, Option<String>, bool)> {
        let chosen = py.detach(|| spdl_cuda::choose_device(request, &search(packages)));
        let chosen = chosen.map_err(|error| to_exception(py, &error))?;
        let ChosenDevice { cuda, fallback, .. } = chosen;
        let is_first = fallback.as_ref().is_some_and(|fallback| fallback.is_first);
        let reason = fallback.map(|fallback| fallback.reason.report());
        if let (Some(device), Some(functions)) = (&cuda, allocator) {
            device.set_allocator(allocator_of(PythonAllocator::new(functions, device)));
        }
        Ok((cuda.map(CudaDevice::new), reason, is_first))
    }

    /// Whether each part of CUDA is available. `packages` are folders to search for NVIDIA's
    /// wheels.
    #[staticmethod]
    fn status(py: Python<'_>, packages: Vec<PathBuf>) -> Vec<Part> {
        let status = py.detach(|| spdl_cuda::status(&search(packages)));
        let parts = status.parts.into_iter();
        parts
            .map(|one| (one.part.to_string(), one.available, one.detail, one.remedy.clone()))
            .collect()
    }

    /// The number of devices.
    #[staticmethod]
    fn count(py: Python<'_>) -> u32 {
        py.detach(|| spdl_cuda::device_count(&Search::default()))
    }

    /// How often `auto` fell back to the host in this process.
    #[staticmethod]
    fn fallbacks() -> usize {
        spdl_cuda::fallbacks()
    }

    /// The number of the device.
    #[getter]
    fn ordinal(&self) -> u32 {
        self.device.ordinal()
    }

    /// The product name of the device.
    fn name(&self, py: Python<'_>) -> PyResult<String> {
        let description = py.detach(|| self.device.description());
        description.map(|it| it.name).map_err(|error| to_exception(py, &error))
    }

    /// The decoders of the device. The first call searches `packages` for NVIDIA's wheels.
    fn decoders(&self, py: Python<'_>, packages: Vec<PathBuf>) -> PyResult<Py<DeviceDecoders>> {
        let create = || Py::new(py, DeviceDecoders::new(self, packages));
        self.decoders.get_or_try_init(py, create).map(|decoders| decoders.clone_ref(py))
    }

    /// Allocates pinned host memory, as an array of bytes.
    fn pinned(&self, py: Python<'_>, nbytes: usize) -> PyResult<Array> {
        let array = py.detach(|| {
            let buffer = self.device.buffers().take(nbytes)?;
            spdl_core::Array::new(DType::U8, vec![nbytes], buffer)
        });
        array.map(Array::from).map_err(|error: Error| to_exception(py, &error))
    }

    /// Waits for an event of another library.
    fn wait_for_event(&self, py: Python<'_>, event: u64) -> PyResult<()> {
        let event = event_of_number(event).map_err(|error| to_exception(py, &error))?;
        wait_until(py, || self.device.is_complete(&event))
    }

    /// Statistics of the memory of the device.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let statistics = py.detach(|| self.device.statistics());
        let dict = PyDict::new(py);
        dict.set_item("live_bytes", statistics.slabs.live_bytes)?;
        dict.set_item("peak_bytes", statistics.slabs.peak_bytes)?;
        dict.set_item("free_bytes", statistics.slabs.free_bytes)?;
        dict.set_item("unsure_bytes", statistics.slabs.withheld_bytes)?;
        dict.set_item("allocations", statistics.slabs.allocations)?;
        dict.set_item("copying_bytes", statistics.copying_bytes)?;
        dict.set_item("release_failures", statistics.release_failures)?;
        Ok(dict)
    }
}

fn search(packages: Vec<PathBuf>) -> Search {
    packages.into_iter().fold(Search::default(), Search::wheels_in)
}
