//! Samples of images that lie in memory of which Python has the upload.

use std::sync::Arc;

use spdl_core::memory::Upload;
use spdl_core::{Error, ErrorKind, Result};
use spdl_media::transform::TensorSpec;

use super::cuda_memory;
use crate::kernels::{ImageKernels, ResizePlan};
use crate::pixels::SourceImage;
use crate::runtime::{ConsumerStream, CopyFence, CudaDevice, Event};

/// Starts to make a batch of samples of images in an upload, behind all that `after` was told so far, and
/// returns at once. The upload may be let go of then.
///
/// # Errors
/// `InvalidArgument` where the memory is not this device's, an image does not lie in it, or `after` is
/// captured into a graph; as of [`ImageKernels::launch`].
pub fn samples_of(
    device: &CudaDevice,
    kernels: &ImageKernels,
    upload: &Upload,
    images: &[(SourceImage, ResizePlan)],
    format: &TensorSpec,
    after: Option<&ConsumerStream>,
) -> Result<Upload> {
    let doing = "make samples of a batch";
    let context = &device.inner().context;
    let memory = cuda_memory(upload).filter(|memory| memory.is_of(device.inner()));
    let memory = memory.ok_or_else(|| {
        let message = format!("the images do not lie in memory of device {}", device.ordinal());
        Error::new(ErrorKind::InvalidArgument, message)
    })?;
    let mut batch = kernels.batch(format, images.len())?;
    let (start, len) = memory.extent();
    for (image, plan) in images {
        let is_inside = image.extents().all(|(address, bytes)| {
            address >= start && address.checked_add(bytes).is_some_and(|end| end - start <= len)
        });
        if !is_inside {
            let message =
                format!("an image does not lie in the {len} bytes that it is said to be in");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        // SAFETY: it lies in the memory, which is there when the copy to it is done, by the event below,
        // and is not used for anything else before the kernels are done: it is told so.
        unsafe { batch.push_foreign(image, plan)? };
    }
    let mut behind = vec![Arc::clone(memory.ready())];
    if let Some(stream) = after {
        let told = Event::new(context).map_err(|error| context.error(error, doing))?;
        context.run(doing, |driver| {
            stream.check_not_captured(driver)?;
            driver.record_event(told.handle(), stream.handle())
        })?;
        behind.push(Arc::new(told));
    }
    match kernels.launch_after(batch, &behind) {
        Ok(launched) => {
            memory.record_use(&launched.done);
            Ok(Upload {
                memory: Box::new(launched.memory),
                ready: Box::new(CopyFence(launched.done)),
            })
        }
        Err(error) => {
            // Whether a kernel was started, nobody knows.
            memory.record_unknown_use();
            Err(error)
        }
    }
}
