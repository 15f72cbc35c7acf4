//! The codecs of this crate, one file (or folder) a format.

use std::sync::Arc;

use spdl_core::Result;

use crate::image::{CodecRegistry, Decoder, Image, ImageCodec, Limits};

#[cfg(feature = "bmp")]
mod bmp;
#[cfg(feature = "tiff")]
mod ccitt;
#[cfg_attr(
    not(all(feature = "png", feature = "bmp", feature = "tiff")),
    allow(dead_code, reason = "no format but these needs all of it")
)]
mod convert;
#[cfg_attr(
    not(all(feature = "png", feature = "bmp", feature = "tiff")),
    allow(dead_code, reason = "no format but these needs all of it")
)]
mod failure;
#[cfg_attr(
    not(all(feature = "png", feature = "webp", feature = "gif")),
    allow(dead_code, reason = "no format but these needs all of it")
)]
mod frame;
#[cfg(feature = "gif")]
mod gif;
#[cfg(any(feature = "more-formats", feature = "exr"))]
mod image_formats;
#[cfg(any(feature = "jpeg", feature = "turbojpeg", feature = "zune-jpeg"))]
pub mod jpeg;
#[cfg(feature = "jxl")]
mod jxl;
#[cfg(feature = "png")]
mod png;
#[cfg(feature = "tiff")]
mod tiff;
#[cfg(feature = "turbojpeg")]
mod turbojpeg;
#[cfg(feature = "webp")]
mod webp;
#[cfg(feature = "zune-jpeg")]
mod zune_jpeg;

#[cfg(feature = "turbojpeg")]
pub use turbojpeg::TurboJpegCodec;
#[cfg(feature = "zune-jpeg")]
pub use zune_jpeg::ZuneJpegCodec;

impl CodecRegistry {
    /// All codecs that this build has, one a format, each where its feature is on: `jpeg`, `png`,
    /// `webp`, `gif`, `bmp`, `tiff`; `jxl`; `exr`; `pnm`, `qoi`, `dds`, `hdr`, `ico`, `farbfeld` and
    /// `tga` with the feature `more-formats`. Other decoders of JPEG are registered by the program:
    /// see [`register`](CodecRegistry::register).
    pub fn with_defaults() -> Self {
        CodecRegistry::with_codecs(all())
    }
}

/// Decodes one image, upright, with all codecs of this build and default limits.
///
/// Many images decode faster with one [`Decoder`].
///
/// # Errors
/// As [`Decoder::decode_into`].
pub fn decode_rgb(encoded: &[u8]) -> Result<Image> {
    Decoder::new(&CodecRegistry::with_defaults(), &Limits::default()).decode_rgb(encoded)
}

/// All codecs of this build: the most common format first, the one without a file signature last.
fn all() -> Vec<Arc<dyn ImageCodec>> {
    vec![
        #[cfg(feature = "jpeg")]
        Arc::new(jpeg::JpegCodec),
        #[cfg(feature = "png")]
        codec::<png::Png>(),
        #[cfg(feature = "webp")]
        codec::<webp::Webp>(),
        #[cfg(feature = "gif")]
        codec::<gif::Gif>(),
        #[cfg(feature = "bmp")]
        codec::<bmp::Bmp>(),
        #[cfg(feature = "tiff")]
        codec::<tiff::Tiff>(),
        #[cfg(feature = "jxl")]
        codec::<jxl::Jxl>(),
        #[cfg(feature = "exr")]
        codec::<image_formats::ThroughImage<image_formats::Exr>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Pnm>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Qoi>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Dds>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Hdr>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Ico>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Farbfeld>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_formats::ThroughImage<image_formats::Tga>>(),
    ]
}

#[cfg_attr(
    not(all(feature = "png", feature = "webp", feature = "gif")),
    allow(dead_code, reason = "no format but these needs all of it")
)]
fn codec<F: frame::Format>() -> Arc<dyn ImageCodec> {
    Arc::new(frame::FormatCodec::<F>::new())
}
