//! WebP through the `image-webp` crate.

use image_webp::{ColorType, WebPEncoder};
use spdl_core::Result;

use super::{ImageEncoder, check, check_channels, failed};
use crate::image::Size;

pub(super) const NAME: &str = "webp";
/// The most pixels of a side. The format allows one more (RFC 9649, 3.4), which the crate writes, but
/// reads as none.
pub(super) const LARGEST: u32 = (1 << 14) - 1;

/// Writes WebP, lossless. `LossyWebpEncoder` (feature `webp-lossy`) writes lossy WebP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebpEncoder(());

impl WebpEncoder {
    /// Lossless.
    pub fn new() -> Self {
        WebpEncoder::default()
    }

    /// Encodes RGB pixels with alpha: `height` × `width` × 4 bytes, interleaved, rows without gaps.
    ///
    /// # Errors
    /// As [`encode`](ImageEncoder::encode).
    pub fn encode_rgba(&self, pixels: &[u8], size: Size) -> Result<Vec<u8>> {
        check_channels(NAME, pixels, size, LARGEST, 4)?;
        write(pixels, size, ColorType::Rgba8)
    }
}

/// Encodes pixels that were checked.
fn write(pixels: &[u8], size: Size, color: ColorType) -> Result<Vec<u8>> {
    let mut encoded = Vec::new();
    WebPEncoder::new(&mut encoded)
        .encode(pixels, size.width, size.height, color)
        .map_err(|error| failed(NAME, error))?;
    Ok(encoded)
}

impl ImageEncoder for WebpEncoder {
    fn name(&self) -> &'static str {
        NAME
    }

    fn encode(&self, pixels: &[u8], size: Size) -> Result<Vec<u8>> {
        check(NAME, pixels, size, LARGEST)?;
        write(pixels, size, ColorType::Rgb8)
    }
}
