//! WebP through the `image-webp` crate.

use image_webp::{ColorType, WebPEncoder};
use spdl_core::{Error, ErrorKind, Result};

use super::{ImageEncoder, check, failed};
use crate::Size;

const NAME: &str = "webp";
/// The most pixels of a side. The format allows one more (RFC 9649, 3.4), which the crate writes, but
/// reads as none.
const LARGEST: u32 = (1 << 14) - 1;

/// Writes WebP, lossless, RGB.
///
/// Lossy compression is `Unsupported`: no crate in Rust does it that is kept well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebpEncoder {
    lossy_quality: Option<u8>,
}

impl WebpEncoder {
    /// Lossless.
    pub fn new() -> Self {
        WebpEncoder::default()
    }

    /// Asks for lossy compression of this quality, which is refused when something is encoded.
    /// Default: lossless.
    #[must_use]
    pub fn lossy(mut self, quality: u8) -> Self {
        self.lossy_quality = Some(quality);
        self
    }
}

impl ImageEncoder for WebpEncoder {
    fn name(&self) -> &'static str {
        NAME
    }

    fn encode(&self, pixels: &[u8], size: Size) -> Result<Vec<u8>> {
        check(NAME, pixels, size, LARGEST)?;
        if let Some(quality) = self.lossy_quality {
            let message = format!(
                "lossy WebP (quality {quality}) cannot be written; write it lossless, or as JPEG"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut encoded = Vec::new();
        WebPEncoder::new(&mut encoded)
            .encode(pixels, size.width, size.height, ColorType::Rgb8)
            .map_err(|error| failed(NAME, error))?;
        Ok(encoded)
    }
}
