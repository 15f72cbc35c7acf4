//! The stage `nvjpeg`: decodes groups of JPEGs with nvJPEG, and uploads pixels from the host.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::memory::{DeviceMemory, HostBuffer};
use spdl_core::{Device, Error, ErrorKind, Result, SampleId, Stage, StageContext};
use spdl_media::Size;
use spdl_media::formats::jpeg::JpegHeader;
use spdl_media::image::ImageInfo;

use super::host::HostDecoder;
use super::options::ImageOptions;
use super::prepare::{ImageSource, PreparedImage};
use super::statistics::{FallbackReason, ImageCounters};
use crate::jpeg::{DecodedJpeg, JpegBackend, NvJpeg, rgb_bytes};
use crate::kernels::ResizePlan;
use crate::pixels::{DevicePlane, SourceImage};
use crate::runtime::{CudaDevice, CudaMemory};

/// By default, the pixels per call of nvJPEG take at most 1 / this number of the device memory,
/// unless the call has a single image. The pixels remain in device memory until the batch is
/// launched, while the next groups are decoded.
const MEMORY_FRACTION: u64 = 16;

/// An image in device memory, or the error of the image.
pub(super) struct DecodedImage {
    pub(super) id: SampleId,
    pub(super) label: i64,
    pub(super) image: Result<DeviceImage>,
}

/// Pixels in device memory, and the plan for their sample. The decoding may still be in flight.
pub(super) struct DeviceImage {
    pub(super) memory: Arc<CudaMemory>,
    pub(super) image: SourceImage,
    pub(super) plan: ResizePlan,
}

/// The stage `nvjpeg`.
pub(super) struct DecodeStage {
    nvjpeg: Option<NvJpeg>,
    /// Maximum size in bytes of the pixels per call of nvJPEG; a single image may exceed it.
    max_bytes: u64,
    host: HostDecoder,
    device: CudaDevice,
    counters: Arc<ImageCounters>,
}

/// The result of nvJPEG for an image.
enum NvJpegOutcome {
    /// The pixels are in this memory, at this offset.
    Decoded(Arc<CudaMemory>, usize),
    Refused(Option<Error>),
    TooLarge(Error),
    NotAJpeg,
}

impl DecodeStage {
    pub(super) fn new(options: &ImageOptions, nvjpeg: Option<NvJpeg>) -> Result<DecodeStage> {
        let device = options.device.clone();
        let max_bytes = match options.group_bytes {
            Some(bytes) => bytes,
            None => device.description()?.memory_bytes as u64 / MEMORY_FRACTION,
        };
        let counters = Arc::clone(&options.counters);
        Ok(DecodeStage { nvjpeg, max_bytes, host: HostDecoder::new(options), device, counters })
    }

    /// Splits a group into parts of at most `max_bytes` bytes of decoded pixels. A single JPEG may
    /// exceed this limit.
    fn split(&self, group: Vec<PreparedImage>) -> VecDeque<Vec<PreparedImage>> {
        let mut parts = VecDeque::new();
        let (mut part, mut bytes) = (Vec::new(), 0_u64);
        for image in group {
            let more = match &image.source {
                ImageSource::Jpeg { header, .. } => rgb_bytes(header),
                ImageSource::Pixels { .. } => 0,
            };
            if bytes > 0 && bytes.saturating_add(more) > self.max_bytes {
                parts.push_back(std::mem::take(&mut part));
                bytes = 0;
            }
            bytes = bytes.saturating_add(more);
            part.push(image);
        }
        parts.push_back(part);
        parts
    }

    /// Starts to decode the JPEGs of a part of a group with nvJPEG. Returns `None` if device memory
    /// is exhausted and the part can be split further.
    fn decode_part(&mut self, part: &[PreparedImage]) -> Result<Option<Vec<NvJpegOutcome>>> {
        match self.decode_jpegs(part) {
            Ok(outcomes) => Ok(Some(outcomes)),
            Err(error) if error.kind() != ErrorKind::LimitExceeded || error.is_fatal() => {
                Err(error)
            }
            Err(_) if part.len() > 1 => Ok(None),
            Err(error) => Ok(Some(vec![NvJpegOutcome::TooLarge(error)])),
        }
    }

    /// Starts to decode the JPEGs among the images with nvJPEG, and returns the outcome of each
    /// image.
    fn decode_jpegs(&mut self, part: &[PreparedImage]) -> Result<Vec<NvJpegOutcome>> {
        let jpegs = part.iter().enumerate().filter_map(|(at, image)| match &image.source {
            ImageSource::Jpeg { encoded, header } => Some((at, encoded.clone(), *header)),
            ImageSource::Pixels { .. } => None,
        });
        let jpegs: Vec<(usize, Bytes, JpegHeader)> = jpegs.collect();
        let mut outcomes: Vec<NvJpegOutcome> =
            part.iter().map(|_| NvJpegOutcome::NotAJpeg).collect();
        let Some(nvjpeg) = self.nvjpeg.as_mut().filter(|_| !jpegs.is_empty()) else {
            return Ok(outcomes);
        };
        let encoded: Vec<Bytes> = jpegs.iter().map(|(_, encoded, _)| encoded.clone()).collect();
        let headers = jpegs.iter().map(|(.., header)| Ok(*header)).collect();
        let decoded = nvjpeg.decode_parsed(&encoded, headers)?;
        let memory = Arc::new(decoded.memory);
        for ((at, ..), image) in jpegs.iter().zip(decoded.images) {
            outcomes[*at] = match image {
                DecodedJpeg::Decoded { offset, backend, .. } => {
                    self.counters.count_decoded(backend);
                    NvJpegOutcome::Decoded(Arc::clone(&memory), offset)
                }
                DecodedJpeg::Unsupported(_) => NvJpegOutcome::Refused(None),
                DecodedJpeg::Failed(error) => NvJpegOutcome::Refused(Some(error)),
            };
        }
        Ok(outcomes)
    }

    /// Completes an image. If the image failed with an error that is not fatal, the error is passed
    /// to the next stage, and only this image fails.
    fn complete(&mut self, image: PreparedImage, outcome: NvJpegOutcome) -> Result<DecodedImage> {
        let PreparedImage { id, key, label, source, plan } = image;
        let image = match self.device_image(source, plan, outcome) {
            Err(error) if error.is_fatal() => return Err(error),
            Err(error) => Err(match key {
                Some(key) => error.with_key(key),
                None => error,
            }),
            Ok(image) => Ok(image),
        };
        Ok(DecodedImage { id, label, image })
    }

    fn device_image(
        &mut self,
        source: ImageSource,
        plan: ResizePlan,
        outcome: NvJpegOutcome,
    ) -> Result<DeviceImage> {
        match (source, outcome) {
            (ImageSource::Jpeg { header, .. }, NvJpegOutcome::Decoded(memory, offset)) => {
                rgb_image(memory, offset, header.size, plan)
            }
            (ImageSource::Jpeg { encoded, header }, outcome) => {
                let (reason, error) = match outcome {
                    NvJpegOutcome::TooLarge(error) => (FallbackReason::TooLarge, Some(error)),
                    NvJpegOutcome::Refused(error) => (FallbackReason::Refused, error),
                    _ => (FallbackReason::Refused, None),
                };
                let (pixels, info) = self.host.decode(&encoded, reason, error)?;
                // A registered codec may parse the header differently from this crate.
                if info != ImageInfo::new(header.size, header.orientation) {
                    let message = format!(
                        "inconsistent JPEG header: {} pixels with orientation {} for the device, {} \
                         pixels with orientation {} for the host",
                        header.size,
                        header.orientation.exif(),
                        info.size,
                        info.orientation.exif()
                    );
                    self.counters.count_failure();
                    return Err(Error::new(ErrorKind::Corrupt, message));
                }
                self.upload(pixels, header.size, plan)
            }
            (ImageSource::Pixels { pixels, size }, _) => self.upload(pixels, size, plan),
        }
    }

    /// Uploads pixels that the host decoded, and counts the image.
    fn upload(&self, pixels: HostBuffer, size: Size, plan: ResizePlan) -> Result<DeviceImage> {
        let uploaded = self.try_upload(pixels, size, plan);
        match &uploaded {
            Ok(_) => self.counters.count_decoded(JpegBackend::Host),
            Err(_) => self.counters.count_failure(),
        }
        uploaded
    }

    fn try_upload(&self, pixels: HostBuffer, size: Size, plan: ResizePlan) -> Result<DeviceImage> {
        let memory: Box<dyn Any> = self.device.upload(pixels)?.memory;
        let memory = memory.downcast::<CudaMemory>().map_err(|_| {
            Error::new(ErrorKind::Internal, "the upload returned memory that is not CUDA memory")
        })?;
        rgb_image(Arc::from(memory), 0, size, plan)
    }
}

/// The device image for interleaved RGB pixels in device memory.
fn rgb_image(
    memory: Arc<CudaMemory>,
    offset: usize,
    size: Size,
    plan: ResizePlan,
) -> Result<DeviceImage> {
    let address = (memory.address() + offset) as u64;
    let plane = DevicePlane { address, pitch: 3 * u64::from(size.width) };
    let image = SourceImage::rgb8(size.width, size.height, plane)?;
    Ok(DeviceImage { memory, image, plan })
}

impl Stage<Vec<PreparedImage>> for DecodeStage {
    type Out = DecodedImage;

    fn process(
        &mut self,
        group: Vec<PreparedImage>,
        cx: &mut StageContext<'_, DecodedImage>,
    ) -> Result<()> {
        let mut parts = self.split(group);
        while let Some(mut part) = parts.pop_front() {
            let Some(outcomes) = self.decode_part(&part)? else {
                parts.push_front(part.split_off(part.len() / 2));
                parts.push_front(part);
                continue;
            };
            for (image, outcome) in part.into_iter().zip(outcomes) {
                cx.emit(self.complete(image, outcome)?)?;
            }
        }
        Ok(())
    }
}
