//! Memory of a device, as it is handed to other libraries.

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
use super::lent::Lent;
use crate::interop::array::Array;
use crate::interop::error::to_exception;
use crate::interop::wait::{SIGNAL_CHECK_INTERVAL, without_python};

/// How long the first look at a copy that is not done waits for it.
const SHORTEST_WAIT: Duration = Duration::from_micros(20);
/// The longest.
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// Bytes on a device, or on their way there.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct DeviceMemory {
    upload: Lent<Upload>,
}

impl From<Upload> for DeviceMemory {
    fn from(upload: Upload) -> Self {
        DeviceMemory { upload: Lent::new(upload) }
    }
}

#[pymethods]
impl DeviceMemory {
    /// How many bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.upload.memory.len()
    }

    /// Where they are on the device.
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

    /// Whether they are of this device: each allocator, and each opening of a device, has memory of its own.
    fn is_of(&self, py: Python<'_>, device: &CudaDevice) -> PyResult<bool> {
        let memory = self.cuda().map_err(|error| to_exception(py, &error))?;
        Ok(is_memory_of(memory, device.device()))
    }

    /// The device that they are of, whoever has let go of it since.
    fn device(&self, py: Python<'_>) -> PyResult<CudaDevice> {
        let memory = self.cuda().map_err(|error| to_exception(py, &error))?;
        Ok(CudaDevice::new(device_of(memory)))
    }

    /// Whether they are there, without waiting.
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| self.upload.ready.is_done()).map_err(|error| to_exception(py, &error))
    }

    /// Waits until they are.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        wait_until(py, || self.upload.ready.is_done())
    }

    /// Lets a stream, a number of the array API, wait until they are, and remembers that it uses them.
    #[pyo3(signature = (stream))]
    fn wait_on(&self, py: Python<'_>, stream: Option<i64>) -> PyResult<()> {
        let told = py.detach(|| match stream_of_array_api(stream)? {
            Some(stream) => self.cuda()?.wait_on(&stream),
            // Nobody is to wait; but what the default stream and those behind it still do is waited
            // for before the bytes are overwritten.
            None => self.record(None),
        });
        told.map_err(|error| to_exception(py, &error))
    }

    /// Remembers that a stream uses them.
    #[pyo3(signature = (stream))]
    fn record_stream(&self, py: Python<'_>, stream: Option<i64>) -> PyResult<()> {
        self.record(stream).map_err(|error| to_exception(py, &error))
    }

    /// So many bytes from `offset` on, on the host, behind what a stream was told so far, and behind an
    /// event.
    #[pyo3(signature = (offset, nbytes, stream, event=None))]
    fn download(
        &self,
        py: Python<'_>,
        offset: usize,
        nbytes: usize,
        stream: Option<i64>,
        event: Option<u64>,
    ) -> PyResult<Array> {
        let fault = |error: Error| to_exception(py, &error);
        let begun = py.detach(|| {
            let after = stream_of_array_api(stream)?;
            let event = event.map(event_of_number).transpose()?;
            self.cuda()?.download_part(offset, nbytes, after.as_ref(), event.as_ref())
        });
        let download = begun.map_err(fault)?;
        wait_until(py, || download.is_done())?;
        let array = py.detach(|| {
            let buffer = download.wait()?;
            let bytes = buffer.len();
            spdl_core::Array::new(DType::U8, vec![bytes], buffer)
        });
        array.map(Array::from).map_err(fault)
    }

    /// A capsule of DLPack with the array that begins `offset` bytes in.
    ///
    /// Whoever takes the array out of it gives it back from any thread, with or without the GIL. Where
    /// nobody does, the capsule gives it back itself.
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
    pub(super) fn upload(&self) -> Lent<Upload> {
        self.upload.clone()
    }

    fn cuda(&self) -> Result<&CudaMemory> {
        cuda_memory(&self.upload).ok_or_else(|| {
            Error::new(ErrorKind::Internal, "memory that is said to be a device's is the host's")
        })
    }

    fn record(&self, stream: Option<i64>) -> Result<()> {
        // Of no stream in particular, it is the default one.
        if let Some(stream) = stream_of_array_api(stream)? {
            self.cuda()?.record_stream(&stream);
        }
        Ok(())
    }
}

/// Asks again and again, with the GIL free, and hears Ctrl-C.
pub(super) fn wait_until(
    py: Python<'_>,
    is_done: impl Fn() -> Result<bool> + Sync,
) -> PyResult<()> {
    loop {
        let asked = without_python(py, || {
            let (mut waited, mut pause) = (Duration::ZERO, SHORTEST_WAIT);
            while waited < SIGNAL_CHECK_INTERVAL {
                match is_done() {
                    Ok(false) => std::thread::sleep(pause),
                    ended => return ended,
                }
                waited += pause;
                pause = LONGEST_WAIT.min(pause * 2);
            }
            Ok(false)
        });
        match asked {
            Ok(true) => return Ok(()),
            Ok(false) => py.check_signals()?,
            Err(error) => return Err(to_exception(py, &error)),
        }
    }
}
