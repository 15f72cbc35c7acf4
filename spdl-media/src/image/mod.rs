//! Images in memory, and the contract of a codec. This module contains no file format.
//!
//! | file | content |
//! |---|---|
//! | `geometry` | sizes, rectangles, crop boxes and EXIF orientations |
//! | `pixels` | the caller's memory that a decoder writes RGB pixels into |
//! | `picture` | decoded planes, whose resolutions may differ (chroma subsampling) |
//! | `rgba` | decoded pixels with alpha and up to 16 bits |
//! | `limits` | limits on pixels, memory and compression ratio |
//! | `codec` | the traits of a codec, requests and results |
//! | `registry` | codec selection by file content |
//! | `unsupported` | file signatures of formats that this build does not decode |
//! | `decoder` | decoding with the codecs of a registry, panics caught |
//! | `exif` | the orientation tag of an EXIF block |
//! | `retention` | release of scratch memory after a very large image |
//! | `simd` | vector operations that several kernels share |
//!
//! Imports: no other module.

mod codec;
mod decoder;
#[cfg(any(
    feature = "jpeg",
    feature = "png",
    feature = "webp",
    feature = "turbojpeg",
    feature = "zune-jpeg"
))]
pub(crate) mod exif;
mod geometry;
mod limits;
mod picture;
mod pixels;
mod registry;
mod retention;
mod rgba;
pub(crate) mod simd;
mod unsupported;

pub use codec::{
    DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, OnTruncated, SNIFF_BYTES,
};
pub use decoder::{Decoder, Image};
pub(crate) use decoder::{contradicts_header, panicked};
pub use geometry::{CropBox, Orientation, Rect, Size};
pub use limits::Limits;
pub use picture::{
    ChromaPosition, ChromaSiting, ColorModel, Picture, Plane, PlaneShape, YCbCrEncoding,
};
pub use pixels::PixelsMut;
pub use registry::CodecRegistry;
pub use rgba::{RgbaPicture, SampleDepth};

pub(crate) use pixels::CHANNELS;
pub(crate) use retention::Retention;
