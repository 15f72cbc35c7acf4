//! Support for Python bindings: DLPack capsules, streams and events as numbers, allocator
//! functions.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | conversions of streams, events, uploads and memory |
//! | `dlpack.rs` | [`DlpackTensor`]: DLPack tensors in capsules |
//! | `allocator.rs` | [`allocator_of`]: an allocator from functions |
//! | `samples.rs` | `samples_of`: samples of images in an upload (feature `images`) |
//!
//! Imports `kernels`, `pixels` and `runtime`.

mod allocator;
mod dlpack;
#[cfg(feature = "images")]
mod samples;

use std::any::Any;

use spdl_core::memory::Upload;
use spdl_core::{Error, ErrorKind, Result};

pub use self::allocator::{AllocatorFunctions, allocator_of};
pub use self::dlpack::{DetachFn, DlpackTensor, DlpackType, dlpack_device};
#[cfg(feature = "images")]
pub use self::samples::samples_of;
use crate::runtime::{ConsumerEvent, ConsumerStream, CudaDevice, CudaMemory};

/// The CUDA memory of an upload; `None` if the upload is to another kind of device.
pub fn cuda_memory(upload: &Upload) -> Option<&CudaMemory> {
    (&*upload.memory as &dyn Any).downcast_ref()
}

/// The device that holds the memory.
pub fn device_of(memory: &CudaMemory) -> CudaDevice {
    CudaDevice::of_inner(memory.device())
}

/// Whether memory belongs to this [`CudaDevice`]. A second `open` of the same ordinal has separate
/// memory.
pub fn is_memory_of(memory: &CudaMemory, device: &CudaDevice) -> bool {
    memory.is_of(device.inner())
}

/// The stream of a `__dlpack__(stream=…)` argument; see [`ConsumerStream::from_array_api`].
///
/// Python's protocols pass streams as plain numbers. This function trusts that the number is a
/// stream of the device, and that the stream exists as long as the memory that it is used with.
/// Therefore it exists only for bindings.
///
/// # Errors
/// `InvalidArgument` for 0 and for numbers below −1.
pub fn stream_of_array_api(stream: Option<i64>) -> Result<Option<ConsumerStream>> {
    // SAFETY: the Python caller guarantees that the number is such a stream.
    unsafe { ConsumerStream::from_array_api(stream) }
}

/// The event with this number, such as `cuda_event` of PyTorch and `ptr` of CuPy. The number is
/// trusted, as in [`stream_of_array_api`].
///
/// # Errors
/// `InvalidArgument` for 0.
pub fn event_of_number(event: u64) -> Result<ConsumerEvent> {
    match usize::try_from(event) {
        // SAFETY: the Python caller guarantees that the number is an event.
        Ok(event @ 1..) => Ok(unsafe { ConsumerEvent::from_raw(event) }),
        _ => Err(Error::new(ErrorKind::InvalidArgument, format!("invalid CUDA event {event}"))),
    }
}

/// The `CUstream` of uploads, for allocators that need the stream of the first use of their memory.
pub fn copy_stream(device: &CudaDevice) -> usize {
    device.inner().uploads.handle().0
}
