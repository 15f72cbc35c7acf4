//! What Python's protocols need: tensors of DLPack in capsules, streams and events that are told as
//! numbers, and functions of Python's that allocate.

mod allocator;
mod dlpack;
#[cfg(feature = "images")]
mod samples;

use std::any::Any;

use spdl_core::memory::Upload;
use spdl_core::{Error, ErrorKind, Result};

use crate::runtime::{ConsumerEvent, ConsumerStream, CudaDevice, CudaMemory};
pub use allocator::{AllocatorFunctions, allocator_of};
pub use dlpack::{DlpackTensor, DlpackType, WithoutPython, dlpack_device};
#[cfg(feature = "images")]
pub use samples::samples_of;

/// The CUDA memory of an upload, where it is of that kind.
pub fn cuda_memory(upload: &Upload) -> Option<&CudaMemory> {
    (&*upload.memory as &dyn Any).downcast_ref()
}

/// The device that memory is of.
pub fn device_of(memory: &CudaMemory) -> CudaDevice {
    CudaDevice::of_inner(memory.device())
}

/// Whether memory is of this device: another opening of it has memory of its own.
pub fn is_memory_of(memory: &CudaMemory, device: &CudaDevice) -> bool {
    memory.is_of(device.inner())
}

/// A stream as the Python array API standard writes it for CUDA; see
/// [`ConsumerStream::from_array_api`].
///
/// A number is all that Python's protocols tell, so this trusts it to be a stream of the device that
/// stays until what it is used with is dropped, as a library would in C. That is why it is only there
/// for bindings, which cannot know better.
///
/// # Errors
/// `InvalidArgument` for 0 and for numbers below −1.
pub fn stream_of_array_api(stream: Option<i64>) -> Result<Option<ConsumerStream>> {
    // SAFETY: whoever calls this from Python says that it is such a stream.
    unsafe { ConsumerStream::from_array_api(stream) }
}

/// An event by its number, as PyTorch's `cuda_event` and CuPy's `ptr` tell it. This trusts the number as
/// [`stream_of_array_api`] does.
///
/// # Errors
/// `InvalidArgument` for 0.
pub fn event_of_number(event: u64) -> Result<ConsumerEvent> {
    match usize::try_from(event) {
        // SAFETY: whoever calls this from Python says that it is an event.
        Ok(event @ 1..) => Ok(unsafe { ConsumerEvent::from_raw(event) }),
        _ => Err(Error::new(ErrorKind::InvalidArgument, format!("{event} is no CUDA event"))),
    }
}

/// The number of the stream on which batches are copied to the device: for allocators that ask on which
/// stream memory is used first.
pub fn copy_stream(device: &CudaDevice) -> usize {
    device.inner().uploads.handle().0
}
