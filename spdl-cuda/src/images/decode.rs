//! Groups of prepared images to pixels on the device.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::memory::{DeviceMemory, HostBuffer};
use spdl_core::{Device, Error, ErrorKind, Result, SampleId, Stage, StageContext};

use super::device_images::{DeviceImages, HostImage};
use super::prepare::{Host, PreparedImage, Source};
use super::statistics::{Books, FallbackReason};
use crate::jpeg::{DecodedJpeg, JpegBackend, JpegHeader, NvJpeg};
use crate::kernels::ResizePlan;
use crate::pixels::{DevicePlane, SourceImage};
use crate::runtime::{CudaDevice, CudaMemory};

/// Which part of the device's memory the pixels of a group take at most, where nothing else was said: one
/// in this many. They stay until the batch is made, and others are decoded meanwhile.
const PARTS_OF_MEMORY: u64 = 16;

/// An image on the device, or why it is not.
pub(super) struct DecodedImage {
    pub(super) id: SampleId,
    pub(super) label: i64,
    pub(super) pixels: Result<Pixels>,
}

/// Pixels on the device, or on their way there, and what becomes of them.
pub(super) struct Pixels {
    pub(super) memory: Arc<CudaMemory>,
    pub(super) image: SourceImage,
    pub(super) plan: ResizePlan,
}

/// Decodes groups on the device, and what it refuses on the host.
pub(super) struct Decode {
    nvjpeg: Option<NvJpeg>,
    /// How many bytes of pixels are decoded at once, at most, unless they are of one image.
    most_bytes: u64,
    host: Host,
    device: CudaDevice,
    books: Arc<Books>,
}

/// What nvJPEG has made of an image, if it was asked.
enum Answer {
    /// It lies there.
    Here(Arc<CudaMemory>, usize),
    /// Why it does not.
    Refused(Option<Error>),
    /// There is no room for it.
    TooLarge(Error),
    NotAsked,
}

impl Decode {
    pub(super) fn new(images: &DeviceImages, nvjpeg: Option<NvJpeg>) -> Result<Decode> {
        let device = images.device.clone();
        let most_bytes = match images.group_bytes {
            Some(bytes) => bytes,
            None => device.description()?.memory_bytes as u64 / PARTS_OF_MEMORY,
        };
        let books = Arc::clone(&images.books);
        Ok(Decode { nvjpeg, most_bytes, host: Host::new(images)?, device, books })
    }

    /// A group in parts of which each may be decoded at once.
    fn parts_of(&self, group: Vec<PreparedImage>) -> VecDeque<Vec<PreparedImage>> {
        let mut parts = VecDeque::new();
        let (mut part, mut bytes) = (Vec::new(), 0_u64);
        for image in group {
            let more = match &image.source {
                Source::Jpeg { header, .. } => header.rgb_bytes(),
                Source::Pixels { .. } => 0,
            };
            if bytes > 0 && bytes.saturating_add(more) > self.most_bytes {
                parts.push_back(std::mem::take(&mut part));
                bytes = 0;
            }
            bytes = bytes.saturating_add(more);
            part.push(image);
        }
        parts.push_back(part);
        parts
    }

    /// Starts to decode the JPEGs of a part of a group; an answer for each of its images. `None` where
    /// there is no room on the device for all of them, but may be for half of them.
    fn ask_or_halve(&mut self, part: &[PreparedImage]) -> Result<Option<Vec<Answer>>> {
        match self.ask(part) {
            Ok(answers) => Ok(Some(answers)),
            Err(error) if error.kind() != ErrorKind::LimitExceeded || error.is_fatal() => {
                Err(error)
            }
            Err(_) if part.len() > 1 => Ok(None),
            Err(error) => Ok(Some(vec![Answer::TooLarge(error)])),
        }
    }

    /// Starts to decode the JPEGs among these images; an answer for each of them.
    fn ask(&mut self, group: &[PreparedImage]) -> Result<Vec<Answer>> {
        let jpegs = group.iter().enumerate().filter_map(|(at, image)| match &image.source {
            Source::Jpeg { encoded, header } => Some((at, encoded.clone(), *header)),
            Source::Pixels { .. } => None,
        });
        let jpegs: Vec<(usize, Bytes, JpegHeader)> = jpegs.collect();
        let mut answers: Vec<Answer> = group.iter().map(|_| Answer::NotAsked).collect();
        let Some(nvjpeg) = self.nvjpeg.as_mut().filter(|_| !jpegs.is_empty()) else {
            return Ok(answers);
        };
        let encoded: Vec<Bytes> = jpegs.iter().map(|(_, encoded, _)| encoded.clone()).collect();
        let headers = jpegs.iter().map(|(.., header)| Ok(*header)).collect();
        let decoded = nvjpeg.decode_parsed(&encoded, headers)?;
        let memory = Arc::new(decoded.memory);
        for ((at, ..), image) in jpegs.iter().zip(decoded.images) {
            answers[*at] = match image {
                DecodedJpeg::Decoded { offset, path, .. } => {
                    self.books.decoded(path);
                    Answer::Here(Arc::clone(&memory), offset)
                }
                DecodedJpeg::ForHost(_) => Answer::Refused(None),
                DecodedJpeg::Failed(error) => Answer::Refused(Some(error)),
            };
        }
        Ok(answers)
    }

    /// What becomes of an image. What fails here fails alone, where batches are made, unless the device is
    /// lost.
    fn decoded(&mut self, image: PreparedImage, answer: Answer) -> Result<DecodedImage> {
        let PreparedImage { id, key, label, source, plan } = image;
        let pixels = match self.place(source, plan, answer) {
            Err(error) if error.is_fatal() => return Err(error),
            Err(error) => Err(match key {
                Some(key) => error.with_key(key),
                None => error,
            }),
            Ok(pixels) => Ok(pixels),
        };
        Ok(DecodedImage { id, label, pixels })
    }

    fn place(&mut self, source: Source, plan: ResizePlan, answer: Answer) -> Result<Pixels> {
        match (source, answer) {
            (Source::Jpeg { header, .. }, Answer::Here(memory, offset)) => {
                pixels(memory, offset, header.width, header.height, plan)
            }
            (Source::Jpeg { encoded, header }, answer) => {
                let (reason, error) = match answer {
                    Answer::TooLarge(error) => (FallbackReason::TooLarge, Some(error)),
                    Answer::Refused(error) => (FallbackReason::Refused, error),
                    _ => (FallbackReason::Refused, None),
                };
                let (decoded, stored) = self.host.decode(&encoded, reason, error)?;
                let JpegHeader { width, height, orientation, .. } = header;
                if stored != (HostImage { width, height, orientation }) {
                    let message = format!(
                        "two readers of the header disagree: {width} x {height} pixels with the \
                         orientation {orientation}, and {stored:?}"
                    );
                    self.books.failed();
                    return Err(Error::new(ErrorKind::Corrupt, message));
                }
                self.upload(decoded, width, height, plan)
            }
            (Source::Pixels { pixels, width, height }, _) => {
                self.upload(pixels, width, height, plan)
            }
        }
    }

    /// Puts what the host has decoded on the device, and counts it.
    fn upload(
        &self,
        decoded: HostBuffer,
        width: u32,
        height: u32,
        plan: ResizePlan,
    ) -> Result<Pixels> {
        let uploaded = self.try_upload(decoded, width, height, plan);
        match &uploaded {
            Ok(_) => self.books.decoded(JpegBackend::Host),
            Err(_) => self.books.failed(),
        }
        uploaded
    }

    fn try_upload(
        &self,
        decoded: HostBuffer,
        width: u32,
        height: u32,
        plan: ResizePlan,
    ) -> Result<Pixels> {
        let memory: Box<dyn Any> = self.device.upload(decoded)?.memory;
        let memory = memory.downcast::<CudaMemory>().map_err(|_| {
            Error::new(ErrorKind::Internal, "a CUDA device has made memory that is not its own")
        })?;
        pixels(Arc::from(memory), 0, width, height, plan)
    }
}

/// Rows of RGB in memory of the device.
fn pixels(
    memory: Arc<CudaMemory>,
    offset: usize,
    width: u32,
    height: u32,
    plan: ResizePlan,
) -> Result<Pixels> {
    let address = (memory.address() + offset) as u64;
    let plane = DevicePlane { address, pitch: 3 * u64::from(width) };
    let image = SourceImage::rgb8(width, height, plane)?;
    Ok(Pixels { memory, image, plan })
}

impl Stage<Vec<PreparedImage>> for Decode {
    type Out = DecodedImage;

    fn process(
        &mut self,
        group: Vec<PreparedImage>,
        cx: &mut StageContext<'_, DecodedImage>,
    ) -> Result<()> {
        let mut parts = self.parts_of(group);
        while let Some(mut part) = parts.pop_front() {
            let Some(answers) = self.ask_or_halve(&part)? else {
                parts.push_front(part.split_off(part.len() / 2));
                parts.push_front(part);
                continue;
            };
            for (image, answer) in part.into_iter().zip(answers) {
                cx.emit(self.decoded(image, answer)?)?;
            }
        }
        Ok(())
    }
}
