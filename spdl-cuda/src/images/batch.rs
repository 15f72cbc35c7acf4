//! Images on the device to batches of samples: one launch for each batch.

use std::sync::Arc;

use spdl_core::memory::Upload;
use spdl_core::stage::{Aggregator, DeviceArray, DeviceBatch};
use spdl_core::{DType, Device, Result, SampleId};

use super::decode::{DecodedImage, Pixels};
use super::device_images::DeviceImages;
use crate::kernels::{ImageKernels, SampleFormat};
use crate::runtime::CudaDevice;

/// Collects images until there are as many as a batch has.
pub(super) struct Batches {
    kernels: Arc<ImageKernels>,
    device: CudaDevice,
    format: SampleFormat,
    size: usize,
    drop_last: bool,
    images: Vec<(SampleId, i64, Pixels)>,
    left_out: u64,
}

impl Batches {
    pub(super) fn new(images: &DeviceImages, kernels: &Arc<ImageKernels>) -> Batches {
        Batches {
            kernels: Arc::clone(kernels),
            device: images.device.clone(),
            format: images.format.clone(),
            size: images.batch_size,
            drop_last: images.drop_last,
            images: Vec::new(),
            left_out: 0,
        }
    }

    /// Starts to make a batch of the images that are there.
    fn make(&self) -> Result<DeviceBatch> {
        let mut samples = self.kernels.batch(&self.format, self.size)?;
        for (_, _, Pixels { memory, image, plan }) in &self.images {
            samples.push(memory, image, plan)?;
        }
        let len = self.images.len();
        let images = self.kernels.launch(samples)?;
        let shape = [&[len][..], &self.format.shape()].concat();
        let images = DeviceArray::new(self.format.value_type(), shape, images)?;
        let labels = DeviceArray::new(DType::I64, vec![len], self.labels()?)?;
        let ids = self.images.iter().map(|(id, ..)| *id).collect();
        DeviceBatch::new(ids, [("images", images), ("labels", labels)])
    }

    fn labels(&self) -> Result<Upload> {
        let mut labels = self.device.host_buffer(size_of::<i64>() * self.images.len())?;
        let (places, _) = labels.as_chunks_mut::<{ size_of::<i64>() }>();
        for (place, (_, label, _)) in places.iter_mut().zip(&self.images) {
            *place = label.to_ne_bytes();
        }
        self.device.upload(labels)
    }
}

impl Aggregator<DecodedImage> for Batches {
    type Out = DeviceBatch;

    fn accumulate(&mut self, image: DecodedImage) -> Result<Option<DeviceBatch>> {
        let DecodedImage { id, label, pixels } = image;
        self.images.push((id, label, pixels?));
        if self.images.len() < self.size {
            return Ok(None);
        }
        let made = self.make();
        if made.is_ok() {
            self.images.clear();
        } else {
            // It counts as failed; the others stay.
            self.images.pop();
        }
        made.map(Some)
    }

    fn flush(&mut self) -> Result<Option<DeviceBatch>> {
        if self.images.is_empty() {
            return Ok(None);
        }
        if self.drop_last {
            self.left_out += std::mem::take(&mut self.images).len() as u64;
            return Ok(None);
        }
        let made = self.make()?;
        self.images.clear();
        Ok(Some(made))
    }

    fn left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}
