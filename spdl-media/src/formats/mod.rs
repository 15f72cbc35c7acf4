//! The codecs of this crate, one file or folder per format.
//!
//! | file | content |
//! |---|---|
//! | `jpeg` | the JPEG decoder of this crate, and the header parser of all JPEG decoders |
//! | `turbojpeg`, `zune_jpeg` | JPEG by libjpeg-turbo and by the crate `zune-jpeg` |
//! | `png`, `webp`, `jxl` | formats that other crates decode |
//! | `gif`, `bmp`, `tiff` | formats that this crate decodes |
//! | `image_crate` | rare formats, by the crate `image` |
//! | `adapter` | limits, regions, truncation of all codecs except `jpeg` and `turbojpeg` |
//! | `convert` | conversion of decoded samples to RGB |
//! | `errors` | errors of decoder crates as errors of `spdl-core` |
//!
//! Imports: [`image`](crate::image).

use std::sync::Arc;

use spdl_core::Result;

use crate::image::{CodecRegistry, Decoder, Image, ImageCodec, Limits};

#[cfg_attr(
    not(all(feature = "png", feature = "webp", feature = "gif")),
    allow(dead_code, reason = "other formats do not use all of it")
)]
mod adapter;
#[cfg(feature = "bmp")]
mod bmp;
#[cfg_attr(
    not(all(feature = "png", feature = "bmp", feature = "tiff")),
    allow(dead_code, reason = "other formats do not use all of it")
)]
mod convert;
#[cfg_attr(
    not(all(feature = "png", feature = "bmp", feature = "tiff")),
    allow(dead_code, reason = "other formats do not use all of it")
)]
mod errors;
#[cfg(feature = "gif")]
mod gif;
#[cfg(any(feature = "more-formats", feature = "exr"))]
mod image_crate;
#[cfg(any(feature = "jpeg", feature = "turbojpeg", feature = "zune-jpeg"))]
pub mod jpeg;
#[cfg(feature = "jxl")]
mod jxl;
#[cfg(feature = "png")]
pub(crate) mod png;
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
    /// The default codec of each format that this build supports.
    ///
    /// The cargo features decide which codecs are included: `jpeg`, `png`, `webp`, `gif`, `bmp`,
    /// `tiff`, `jxl`, `exr`, and `more-formats` for `pnm`, `qoi`, `dds`, `hdr`, `ico`, `farbfeld`
    /// and `tga`. The other JPEG codecs are not included: add them with
    /// [`register`](CodecRegistry::register).
    pub fn with_defaults() -> Self {
        CodecRegistry::with_codecs(all())
    }
}

/// Decodes one image with the default codecs and limits, and applies its orientation.
///
/// For many images, one [`Decoder`] is faster.
///
/// # Errors
/// The errors of [`Decoder::decode_into`].
pub fn decode_rgb(encoded: &[u8]) -> Result<Image> {
    Decoder::new(&CodecRegistry::with_defaults(), &Limits::default()).decode_rgb(encoded)
}

/// The default codecs of this build: the most common format first, the format without a file
/// signature last.
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
        codec::<image_crate::ImageCrateFormat<image_crate::Exr>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_crate::ImageCrateFormat<image_crate::Pnm>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_crate::ImageCrateFormat<image_crate::Qoi>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_crate::ImageCrateFormat<image_crate::Dds>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_crate::ImageCrateFormat<image_crate::Hdr>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_crate::ImageCrateFormat<image_crate::Ico>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_crate::ImageCrateFormat<image_crate::Farbfeld>>(),
        #[cfg(feature = "more-formats")]
        codec::<image_crate::ImageCrateFormat<image_crate::Tga>>(),
    ]
}

#[cfg_attr(
    not(all(feature = "png", feature = "webp", feature = "gif")),
    allow(dead_code, reason = "other formats do not use all of it")
)]
fn codec<F: adapter::FormatReader>() -> Arc<dyn ImageCodec> {
    Arc::new(adapter::FormatCodec::<F>::new())
}
