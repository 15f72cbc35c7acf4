//! Samples of images in an upload that Python owns.

use std::sync::Arc;

use spdl_core::memory::Upload;
use spdl_core::{Error, ErrorKind, Result};
use spdl_media::transform::TensorSpec;

use super::cuda_memory;
use crate::kernels::{ImageKernels, ResizePlan};
use crate::pixels::SourceImage;
use crate::runtime::{ConsumerStream, CopyFence, CudaDevice, Event};

/// Queues the kernels for a batch of images in an upload, after all work queued on `after`.
///
/// This function returns immediately; then the upload may be dropped.
///
/// # Errors
/// `InvalidArgument` if the memory belongs to another device, an image exceeds the memory, or
/// `after` is being captured into a graph; otherwise the errors of [`ImageKernels::launch`].
pub fn samples_of(
    device: &CudaDevice,
    kernels: &ImageKernels,
    upload: &Upload,
    images: &[(SourceImage, ResizePlan)],
    format: &TensorSpec,
    after: Option<&ConsumerStream>,
) -> Result<Upload> {
    let doing = "write samples of a batch";
    let context = &device.inner().context;
    let memory = cuda_memory(upload).filter(|memory| memory.is_of(device.inner()));
    let memory = memory.ok_or_else(|| {
        let message = format!("the images are not on CUDA device {}", device.ordinal());
        Error::new(ErrorKind::InvalidArgument, message)
    })?;
    let mut batch = kernels.batch(format, images.len())?;
    let (start, len) = memory.extent();
    for (image, plan) in images {
        let is_inside = image.extents().all(|(address, bytes)| {
            address >= start && address.checked_add(bytes).is_some_and(|end| end - start <= len)
        });
        if !is_inside {
            let message = format!("invalid image: it exceeds the {len} bytes of the upload");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        // SAFETY: the image is inside the memory, which is written when `ready` completes, the
        // first event below. `record_use` keeps the memory from reuse until the kernels complete.
        unsafe { batch.push_foreign(image, plan)? };
    }
    let mut after_events = vec![Arc::clone(memory.ready())];
    if let Some(stream) = after {
        let queued = Event::new(context).map_err(|error| context.error(error, doing))?;
        context.run(doing, |driver| {
            stream.check_not_captured(driver)?;
            driver.record_event(queued.handle(), stream.handle())
        })?;
        after_events.push(Arc::new(queued));
    }
    match kernels.launch_after(batch, &after_events) {
        Ok(launched) => {
            memory.record_use(&launched.done);
            Ok(Upload {
                memory: Box::new(launched.memory),
                ready: Box::new(CopyFence(launched.done)),
            })
        }
        Err(error) => {
            // Even if this call failed, a kernel may have been launched.
            memory.record_unknown_use();
            Err(error)
        }
    }
}
