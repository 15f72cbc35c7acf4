//! Device memory from Python functions, such as those of PyTorch's caching allocator.

use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use spdl_core::{Error, ErrorKind, Result};
use spdl_cuda::CudaDevice;
use spdl_cuda::python::{AllocatorFunctions, copy_stream};

use crate::interop::error::{Raised, exception_in_words};
use crate::interop::wait::with_python;

/// Alignment in bytes of memory that the CUDA driver allocates. Kernels rely on this alignment.
const ALIGNMENT: u64 = 256;

/// The name of PyTorch's exception for exhausted memory. `MemoryError` has the same effect.
const OUT_OF_MEMORY: &str = "OutOfMemoryError";

/// An allocator of two functions: `allocate(size, device, stream)` returns an address, and `free(address)`
/// releases the memory. Both are called from any thread with the GIL, but not during interpreter exit.
#[derive(Debug)]
pub(super) struct PythonAllocator {
    allocate: Py<PyAny>,
    free: Py<PyAny>,
    device: u32,
    /// The copy stream, which uses the memory first.
    stream: usize,
}

impl PythonAllocator {
    pub(super) fn new((allocate, free): (Py<PyAny>, Py<PyAny>), device: &CudaDevice) -> Self {
        let (stream, device) = (copy_stream(device), device.ordinal());
        PythonAllocator { allocate, free, device, stream }
    }

    fn address(&self, py: Python<'_>, bytes: usize) -> PyResult<u64> {
        let allocated = self.allocate.call1(py, (bytes, self.device, self.stream))?;
        let address = allocated.extract::<u64>(py)?;
        if address == 0 {
            return Err(PyMemoryError::new_err("the allocator returned address 0"));
        }
        if !address.is_multiple_of(ALIGNMENT) {
            self.release(py, address);
            let message = format!(
                "the allocator returned the address {address:#x}: expected a multiple of {ALIGNMENT}"
            );
            return Err(PyValueError::new_err(message));
        }
        Ok(address)
    }

    fn release(&self, py: Python<'_>, address: u64) {
        let Err(error) = self.free.call1(py, (address,)) else { return };
        let is_interrupt = error.is_instance_of::<PyKeyboardInterrupt>(py);
        // No caller can handle the error.
        error.write_unraisable(py, Some(self.free.bind(py)));
        if is_interrupt {
            // Raises `KeyboardInterrupt` again, in the main thread.
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
            "the allocator failed to allocate {bytes} bytes on CUDA device {}",
            self.device
        );
        let error = Error::new(kind, message).with_source(Raised::by_allocator(exception, words));
        // A function that raises an exception for one batch will raise it for all batches.
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
            // A pending exception is preserved.
            let pending = PyErr::take(py);
            self.release(py, address);
            if let Some(exception) = pending {
                exception.restore(py);
            }
        });
        // During interpreter exit, the memory is leaked until the process ends.
        drop(freed);
    }
}
