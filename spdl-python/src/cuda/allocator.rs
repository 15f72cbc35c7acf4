//! Memory of a device from functions of Python's, such as those of PyTorch's caching allocator.

use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use spdl_core::{Error, ErrorKind, Result};
use spdl_cuda::CudaDevice;
use spdl_cuda::python::{AllocatorFunctions, copy_stream};

use crate::interop::error::{AllocatorRaised, exception_in_words};
use crate::interop::wait::with_python;

/// As the driver aligns memory, and what kernels count on.
const ALIGNMENT: u64 = 256;

/// What exceptions are called that say that there is no memory left, beside `MemoryError`: PyTorch's.
const OUT_OF_MEMORY: &str = "OutOfMemoryError";

/// Two functions: `allocate(size, device, stream)` returns an address, `free(address)` takes it back. They
/// are called with the GIL, from any thread, but never while Python ends.
#[derive(Debug)]
pub(super) struct PythonAllocator {
    allocate: Py<PyAny>,
    free: Py<PyAny>,
    device: u32,
    /// On which the memory is used first.
    stream: usize,
}

impl PythonAllocator {
    pub(super) fn new((allocate, free): (Py<PyAny>, Py<PyAny>), device: &CudaDevice) -> Self {
        let (stream, device) = (copy_stream(device), device.ordinal());
        PythonAllocator { allocate, free, device, stream }
    }

    fn address(&self, py: Python<'_>, bytes: usize) -> PyResult<u64> {
        let made = self.allocate.call1(py, (bytes, self.device, self.stream))?;
        let address = made.extract::<u64>(py)?;
        if address == 0 {
            return Err(PyMemoryError::new_err("address 0 was returned"));
        }
        if !address.is_multiple_of(ALIGNMENT) {
            self.give_back(py, address);
            let message = format!("address {address:#x} was returned, no multiple of {ALIGNMENT}");
            return Err(PyValueError::new_err(message));
        }
        Ok(address)
    }

    fn give_back(&self, py: Python<'_>, address: u64) {
        let Err(error) = self.free.call1(py, (address,)) else { return };
        let is_interrupt = error.is_instance_of::<PyKeyboardInterrupt>(py);
        // Nobody is there to be told.
        error.write_unraisable(py, Some(self.free.bind(py)));
        if is_interrupt {
            // But Ctrl-C is, by whatever Python does next.
            let again = py.import(intern!(py, "_thread"));
            let again = again.and_then(|it| it.call_method0(intern!(py, "interrupt_main")));
            drop(again);
        }
    }

    fn error(&self, py: Python<'_>, bytes: usize, exception: PyErr) -> Error {
        let names = exception.get_type(py).mro();
        let is_full = exception.is_instance_of::<PyMemoryError>(py)
            || names.iter().any(|one| {
                let name = one.getattr(intern!(py, "__name__"));
                name.and_then(|name| name.eq(OUT_OF_MEMORY)).unwrap_or(false)
            });
        let kind = if is_full { ErrorKind::LimitExceeded } else { ErrorKind::User };
        let words = exception_in_words(py, &exception);
        let message = format!(
            "cannot take {bytes} bytes of the memory of CUDA device {} from its allocator",
            self.device
        );
        let error = Error::new(kind, message).with_source(AllocatorRaised { exception, words });
        // A function that does not work does so for no batch.
        if is_full { error } else { error.fatal() }
    }
}

impl AllocatorFunctions for PythonAllocator {
    fn allocate(&self, bytes: usize) -> Result<u64> {
        with_python(|py| {
            self.address(py, bytes).map_err(|exception| self.error(py, bytes, exception))
        })?
    }

    fn free(&self, address: u64) {
        let freed = with_python(|py| {
            // Memory may be let go of amid an exception, which is left as it is.
            let under_way = PyErr::take(py);
            self.give_back(py, address);
            if let Some(exception) = under_way {
                exception.restore(py);
            }
        });
        // While Python ends nobody can be asked, and the memory ends with the process.
        drop(freed);
    }
}
