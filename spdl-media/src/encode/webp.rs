//! Lossless WebP by the crate `image-webp`.

use image_webp::{ColorType, WebPEncoder};
use spdl_core::Result;

use super::encoder::{ImageEncoder, check, check_channels, failed};
use crate::image::Size;

pub(super) const NAME: &str = "webp";
/// The maximum width and height. The format allows one pixel more (RFC 9649, 3.4); the crate writes
/// such files but cannot read them.
pub(super) const LARGEST: u32 = (1 << 14) - 1;

/// Encodes lossless WebP. `LossyWebpEncoder` (feature `webp-lossy`) encodes lossy WebP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebpEncoder(());

impl WebpEncoder {
    /// Creates an encoder.
    pub fn new() -> Self {
        WebpEncoder::default()
    }

    /// Encodes RGB pixels with alpha: `height` × `width` × 4 bytes, interleaved, no padding between
    /// rows.
    ///
    /// # Errors
    /// The errors of [`encode`](ImageEncoder::encode).
    pub fn encode_rgba(&self, pixels: &[u8], size: Size) -> Result<Vec<u8>> {
        check_channels(NAME, pixels, size, LARGEST, 4)?;
        write(pixels, size, ColorType::Rgba8)
    }
}

/// Encodes validated pixels.
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
