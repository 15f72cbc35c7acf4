//! WebP through the `image-webp` crate.

use image_webp::{ColorType, WebPEncoder};
use spdl_core::Result;

use super::{ImageEncoder, check, failed};
use crate::Size;

const NAME: &str = "webp";
/// The most pixels of a side. The format allows one more (RFC 9649, 3.4), which the crate writes, but
/// reads as none.
const LARGEST: u32 = (1 << 14) - 1;

/// Writes WebP, lossless, RGB. It does not write lossy WebP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebpEncoder(());

impl WebpEncoder {
    /// Lossless.
    pub fn new() -> Self {
        WebpEncoder::default()
    }
}

impl ImageEncoder for WebpEncoder {
    fn name(&self) -> &'static str {
        NAME
    }

    fn encode(&self, pixels: &[u8], size: Size) -> Result<Vec<u8>> {
        check(NAME, pixels, size, LARGEST)?;
        let mut encoded = Vec::new();
        WebPEncoder::new(&mut encoded)
            .encode(pixels, size.width, size.height, ColorType::Rgb8)
            .map_err(|error| failed(NAME, error))?;
        Ok(encoded)
    }
}
