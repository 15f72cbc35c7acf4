//! The result of decoding a batch of JPEGs.

use spdl_core::Error;
use spdl_media::formats::jpeg::JpegHeader;

use super::header::JpegBackend;
use crate::runtime::CudaMemory;

/// A batch of decoded images in device memory. The decoding may still be in flight.
#[derive(Debug)]
pub struct DecodedJpegs {
    /// The memory of all pixels. Streams wait for the pixels with [`CudaMemory::wait_on`].
    pub memory: CudaMemory,
    /// The outcome of each image, in the order of the input.
    pub images: Vec<DecodedJpeg>,
}

/// The outcome of one image.
#[non_exhaustive]
#[derive(Debug)]
pub enum DecodedJpeg {
    /// The pixels are interleaved RGB bytes in the memory of the batch, without padding between
    /// rows.
    Decoded {
        /// The byte offset of the first pixel.
        offset: usize,
        /// The header. The pixels are stored without applying its orientation.
        header: JpegHeader,
        /// The backend that decodes the image.
        backend: JpegBackend,
    },
    /// The header is valid, but nvJPEG, or the backend that
    /// [`NvJpeg::only`](super::NvJpeg::only) selects, does not decode this kind of JPEG.
    Unsupported(JpegHeader),
    /// The image is corrupt, truncated or too large, its header has an unsupported feature, or
    /// nvJPEG rejected the image.
    Failed(Error),
}
