//! The codecs of this crate, one file (or folder) a format.

use std::sync::Arc;

use crate::ImageCodec;

#[cfg(feature = "bmp")]
mod bmp;
#[cfg(any(feature = "png", feature = "webp", feature = "bmp"))]
mod convert;
#[cfg(any(feature = "png", feature = "webp", feature = "gif", feature = "bmp", feature = "tiff"))]
mod failure;
#[cfg(feature = "gif")]
mod gif;
#[cfg(feature = "jpeg")]
mod jpeg;
#[cfg(feature = "png")]
mod png;
#[cfg(feature = "tiff")]
mod tiff;
#[cfg(feature = "webp")]
mod webp;

/// Every codec of this build, the most common first.
pub(crate) fn all() -> Vec<Arc<dyn ImageCodec>> {
    vec![
        #[cfg(feature = "jpeg")]
        Arc::new(jpeg::JpegCodec),
        #[cfg(feature = "png")]
        Arc::new(png::PngCodec),
        #[cfg(feature = "webp")]
        Arc::new(webp::WebpCodec),
        #[cfg(feature = "gif")]
        Arc::new(gif::GifCodec),
        #[cfg(feature = "bmp")]
        Arc::new(bmp::BmpCodec),
        #[cfg(feature = "tiff")]
        Arc::new(tiff::TiffCodec),
    ]
}
