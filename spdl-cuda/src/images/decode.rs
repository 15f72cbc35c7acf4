//! Groups of prepared images to pixels on the device.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::{
    Device, DeviceMemory, Error, ErrorKind, HostBuffer, Result, SampleId, Stage, StageContext,
};

use super::prepare::{Host, PreparedImage, Source};
use super::statistics::{Books, FallbackReason};
use super::{DeviceImages, HostImage};
use crate::device::CudaDevice;
use crate::kernels::{DevicePlane, ResizePlan, SourceImage};
use crate::memory::CudaMemory;
use crate::nvjpeg::{DecodedJpeg, JpegHeader, NvJpeg};

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
    NotAsked,
}

impl Decode {
    pub(super) fn new(images: &DeviceImages, nvjpeg: Option<NvJpeg>) -> Result<Decode> {
        let books = Arc::clone(&images.books);
        Ok(Decode { nvjpeg, host: Host::new(images)?, device: images.device.clone(), books })
    }

    /// Starts to decode the JPEGs of a group; an answer for each of its images.
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

    fn place(&mut self, source: Source, plan: ResizePlan, answer: Answer) -> Result<Pixels> {
        match (source, answer) {
            (Source::Jpeg { header, .. }, Answer::Here(memory, offset)) => {
                pixels(memory, offset, header.width, header.height, plan)
            }
            (Source::Jpeg { encoded, header }, answer) => {
                let error = if let Answer::Refused(error) = answer { error } else { None };
                let reason = FallbackReason::Refused;
                let (decoded, stored) = self.host.decode(&encoded, reason, error)?;
                let JpegHeader { width, height, orientation, .. } = header;
                if stored != (HostImage { width, height, orientation }) {
                    let message = format!(
                        "two readers of the header disagree: {width} x {height} pixels with the \
                         orientation {orientation}, and {stored:?}"
                    );
                    return Err(Error::new(ErrorKind::Corrupt, message));
                }
                self.upload(decoded, width, height, plan)
            }
            (Source::Pixels { pixels, width, height }, _) => {
                self.upload(pixels, width, height, plan)
            }
        }
    }

    fn upload(
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
        let answers = self.ask(&group)?;
        for (image, answer) in group.into_iter().zip(answers) {
            let PreparedImage { id, key, label, source, plan } = image;
            // What fails here fails alone, where batches are made.
            let pixels = match self.place(source, plan, answer) {
                Err(error) if error.is_fatal() => return Err(error),
                Err(error) => Err(match key {
                    Some(key) => error.with_key(key),
                    None => error,
                }),
                Ok(pixels) => Ok(pixels),
            };
            cx.emit(DecodedImage { id, label, pixels })?;
        }
        Ok(())
    }
}
