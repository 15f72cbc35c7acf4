//! The stage `batch`: batches of samples, with one kernel launch per batch.

use std::sync::Arc;

use spdl_core::memory::Upload;
use spdl_core::stage::{Aggregator, DeviceArray, DeviceBatch};
use spdl_core::{DType, Device, Result, SampleId};
use spdl_media::transform::TensorSpec;

use super::decode::{DecodedImage, DeviceImage};
use super::options::ImageOptions;
use crate::kernels::ImageKernels;
use crate::runtime::CudaDevice;

/// Collects images until a batch is full.
pub(super) struct BatchAggregator {
    kernels: Arc<ImageKernels>,
    device: CudaDevice,
    format: TensorSpec,
    size: usize,
    drop_last: bool,
    images: Vec<(SampleId, i64, DeviceImage)>,
    left_out: u64,
}

impl BatchAggregator {
    pub(super) fn new(options: &ImageOptions, kernels: &Arc<ImageKernels>) -> BatchAggregator {
        BatchAggregator {
            kernels: Arc::clone(kernels),
            device: options.device.clone(),
            format: *options.transform.tensor(),
            size: options.batch_size,
            drop_last: options.drop_last,
            images: Vec::new(),
            left_out: 0,
        }
    }

    /// Launches the kernels for the collected images.
    fn launch(&self) -> Result<DeviceBatch> {
        let mut samples = self.kernels.batch(&self.format, self.size)?;
        for (_, _, DeviceImage { memory, image, plan }) in &self.images {
            samples.push(memory, image, plan)?;
        }
        let len = self.images.len();
        let images = self.kernels.launch(samples)?;
        let shape = [&[len][..], &self.format.shape()].concat();
        let images = DeviceArray::new(self.format.format.dtype, shape, images)?;
        let labels = DeviceArray::new(DType::I64, vec![len], self.upload_labels()?)?;
        let ids = self.images.iter().map(|(id, ..)| *id).collect();
        DeviceBatch::new(ids, [("images", images), ("labels", labels)])
    }

    fn upload_labels(&self) -> Result<Upload> {
        let mut labels = self.device.host_buffer(size_of::<i64>() * self.images.len())?;
        let (slots, _) = labels.as_chunks_mut::<{ size_of::<i64>() }>();
        for (slot, (_, label, _)) in slots.iter_mut().zip(&self.images) {
            *slot = label.to_ne_bytes();
        }
        self.device.upload(labels)
    }
}

impl Aggregator<DecodedImage> for BatchAggregator {
    type Out = DeviceBatch;

    fn accumulate(&mut self, image: DecodedImage) -> Result<Option<DeviceBatch>> {
        let DecodedImage { id, label, image } = image;
        self.images.push((id, label, image?));
        if self.images.len() < self.size {
            return Ok(None);
        }
        let launched = self.launch();
        if launched.is_ok() {
            self.images.clear();
        } else {
            // Only the last image fails. The other images remain for the next batch.
            self.images.pop();
        }
        launched.map(Some)
    }

    fn flush(&mut self) -> Result<Option<DeviceBatch>> {
        if self.images.is_empty() {
            return Ok(None);
        }
        if self.drop_last {
            self.left_out += std::mem::take(&mut self.images).len() as u64;
            return Ok(None);
        }
        let launched = self.launch()?;
        self.images.clear();
        Ok(Some(launched))
    }

    fn left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}
