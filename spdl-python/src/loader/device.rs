//! Decoding of images on a CUDA device.

use bytes::Bytes;
use spdl_core::stage::DeviceBatch;
use spdl_core::{Labeled, PipelineBuilder, Result, StageOptions};
use spdl_cuda::{CudaDevice, DeviceImages, Search};
use spdl_media::ImageTransform;

use super::settings::Settings;
use crate::operators::DECODE;

/// The parameter of a state's fingerprint that names the decoder.
const DECODER: (&str, &str) = ("decoder", "device");

/// Adds the stages from encoded images to batches on a device.
pub(crate) fn attach(
    pipeline: PipelineBuilder<Labeled<Bytes>>,
    settings: &Settings,
    transform: &ImageTransform,
    batch_size: usize,
    device: &CudaDevice,
    search: Search,
) -> Result<(PipelineBuilder<DeviceBatch>, DeviceImages)> {
    let drop_last = settings.drop_last;
    let images = DeviceImages::new(device, transform.clone(), batch_size)
        .drop_last(drop_last)
        .search(search);
    let parameters = transform.parameters().chain([
        (DECODER.0, DECODER.1.to_owned()),
        ("batch size", settings.batch_size.to_string()),
        ("drop last", drop_last.to_string()),
    ]);
    let pipeline = images.attach(pipeline, StageOptions::new(DECODE).parameters(parameters))?;
    Ok((pipeline, images))
}
