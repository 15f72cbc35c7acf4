//! Device memory, and its exchange with other libraries.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use spdl_core::memory::{Space, Upload};
use spdl_core::{DType, Error, ErrorKind, Result};
use spdl_cuda::CudaMemory;
use spdl_cuda::python::{
    DlpackTensor, DlpackType, cuda_memory, device_of, event_of_number, is_memory_of,
    stream_of_array_api,
};

use super::device::CudaDevice;
use super::driver_handle::DriverHandle;
use crate::interop::array::Array;
use crate::interop::error::to_exception;
use crate::interop::wait::{SIGNAL_CHECK_INTERVAL, without_python};

/// The first interval between polls of a copy in flight.
const MIN_INTERVAL: Duration = Duration::from_micros(20);
/// The maximum interval between polls of a copy in flight.
const MAX_INTERVAL: Duration = Duration::from_millis(1);

/// Bytes on a device. Their upload may be in flight.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct DeviceMemory {
    upload: DriverHandle<Upload>,
}

impl From<Upload> for DeviceMemory {
    fn from(upload: Upload) -> Self {
        DeviceMemory { upload: DriverHandle::new(upload) }
    }
}

#[pymethods]
impl DeviceMemory {
    /// The number of bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.upload.memory.len()
    }

    /// The address on the device.
    #[getter]
    fn address(&self) -> usize {
        self.upload.memory.address()
    }

    /// The number of the device.
    #[getter]
    fn ordinal(&self) -> u32 {
        match self.upload.memory.space() {
            Space::Cuda { ordinal } => ordinal,
            _ => 0,
        }
    }

    /// Whether the memory belongs to this opened device and its allocator.
    fn is_of(&self, py: Python<'_>, device: &CudaDevice) -> PyResult<bool> {
        let memory = self.cuda().map_err(|error| to_exception(py, &error))?;
        Ok(is_memory_of(memory, device.device()))
    }

    /// The device of the memory, even if its other owners are gone.
    fn device(&self, py: Python<'_>) -> PyResult<CudaDevice> {
        let memory = self.cuda().map_err(|error| to_exception(py, &error))?;
        Ok(CudaDevice::new(device_of(memory)))
    }

    /// Whether the upload is complete, without waiting.
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.upload.ready.is_done()).map_err(|error| to_exception(py, &error))
    }

    /// Waits until the upload is complete.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        wait_until(py, || self.upload.ready.is_done())
    }

    /// Makes a stream wait for the upload, and records that the stream uses the memory.
    ///
    /// Streams are numbered as in the array API standard. With -1, no stream waits.
    #[pyo3(signature = (stream))]
    fn wait_on(&self, py: Python<'_>, stream: Option<i64>) -> PyResult<()> {
        let result = py.detach(|| match stream_of_array_api(stream)? {
            Some(stream) => self.cuda()?.wait_on(&stream),
            // No stream waits. Reuse of the memory waits for the default stream, which blocking streams
            // synchronise with.
            None => self.record(None),
        });
        result.map_err(|error| to_exception(py, &error))
    }

    /// Records that a stream uses the memory.
    #[pyo3(signature = (stream))]
    fn record_stream(&self, py: Python<'_>, stream: Option<i64>) -> PyResult<()> {
        self.record(stream).map_err(|error| to_exception(py, &error))
    }

    /// Copies the `nbytes` bytes at `offset` to the host. The copy starts after the work queued on
    /// `stream` so far, and after `event`, if given.
    #[pyo3(signature = (offset, nbytes, stream, event=None))]
    fn download(
        &self,
        py: Python<'_>,
        offset: usize,
        nbytes: usize,
        stream: Option<i64>,
        event: Option<u64>,
    ) -> PyResult<Array> {
        let exception = |error: Error| to_exception(py, &error);
        let started = py.detach(|| {
            let after = stream_of_array_api(stream)?;
            let event = event.map(event_of_number).transpose()?;
            self.cuda()?.download_part(offset, nbytes, after.as_ref(), event.as_ref())
        });
        let download = started.map_err(exception)?;
        wait_until(py, || download.is_done())?;
        let array = py.detach(|| {
            let buffer = download.wait()?;
            let bytes = buffer.len();
            spdl_core::Array::new(DType::U8, vec![bytes], buffer)
        });
        array.map(Array::from).map_err(exception)
    }

    /// Returns a DLPack capsule with the array that begins at the byte `offset`.
    ///
    /// The consumer may call the deleter on any thread, with or without the GIL. An unused capsule calls the
    /// deleter itself.
    fn dlpack<'py>(
        &self,
        py: Python<'py>,
        offset: usize,
        shape: Vec<usize>,
        dtype: (u8, u8),
        versioned: bool,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let (code, bits) = dtype;
        let dtype = DlpackType { code, bits, lanes: 1 };
        DlpackTensor::new(Arc::clone(&self.upload), offset, &shape, dtype)
            .map_err(|error| to_exception(py, &error))?
            .into_capsule(py, versioned, without_python)
    }
}

impl DeviceMemory {
    pub(super) fn upload(&self) -> DriverHandle<Upload> {
        self.upload.clone()
    }

    fn cuda(&self) -> Result<&CudaMemory> {
        cuda_memory(&self.upload)
            .ok_or_else(|| Error::new(ErrorKind::Internal, "the buffer is not in CUDA memory"))
    }

    fn record(&self, stream: Option<i64>) -> Result<()> {
        if let Some(stream) = stream_of_array_api(stream)? {
            self.cuda()?.record_stream(&stream);
        }
        Ok(())
    }
}

/// Polls without the GIL until `is_done`, and handles signals such as Ctrl-C.
pub(super) fn wait_until(
    py: Python<'_>,
    is_done: impl Fn() -> Result<bool> + Sync,
) -> PyResult<()> {
    loop {
        let result = without_python(py, || {
            let (mut waited, mut interval) = (Duration::ZERO, MIN_INTERVAL);
            while waited < SIGNAL_CHECK_INTERVAL {
                match is_done() {
                    Ok(false) => std::thread::sleep(interval),
                    result => return result,
                }
                waited += interval;
                interval = MAX_INTERVAL.min(interval * 2);
            }
            Ok(false)
        });
        match result {
            Ok(true) => return Ok(()),
            Ok(false) => py.check_signals()?,
            Err(error) => return Err(to_exception(py, &error)),
        }
    }
}
