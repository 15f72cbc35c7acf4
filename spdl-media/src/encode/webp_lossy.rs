//! Lossy WebP by libwebp, through the crate `webp`.

use spdl_core::Result;
use webp::{Encoder, PixelLayout, WebPConfig};

use super::encoder::{ImageEncoder, check, check_channels, failed, invalid};
use super::webp::{LARGEST, NAME};
use crate::image::Size;

/// Encodes lossy WebP: YUV 4:2:0, 8 bits (RFC 6386), with a separate alpha plane if needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossyWebpEncoder {
    quality: u8,
    alpha_quality: u8,
    effort: u8,
}

impl Default for LossyWebpEncoder {
    fn default() -> Self {
        LossyWebpEncoder { quality: 75, alpha_quality: 100, effort: 4 }
    }
}

impl LossyWebpEncoder {
    /// Quality 75, lossless alpha, effort 4: the defaults of libwebp.
    pub fn new() -> Self {
        LossyWebpEncoder::default()
    }

    /// The quality, 0 to 100. Default: 75.
    #[must_use]
    pub fn quality(mut self, quality: u8) -> Self {
        self.quality = quality;
        self
    }

    /// The quality of alpha, 0 to 100; 100 is lossless. Default: 100.
    #[must_use]
    pub fn alpha_quality(mut self, quality: u8) -> Self {
        self.alpha_quality = quality;
        self
    }

    /// The effort, from 0 (fast) to 6 (slow, slightly smaller files). Default: 4.
    #[must_use]
    pub fn effort(mut self, effort: u8) -> Self {
        self.effort = effort;
        self
    }

    /// Encodes RGB pixels with alpha: `height` × `width` × 4 bytes, interleaved, no padding between
    /// rows.
    ///
    /// The colour of fully transparent pixels is not preserved. If all pixels are opaque, the file
    /// has no alpha.
    ///
    /// # Errors
    /// The errors of [`encode`](ImageEncoder::encode).
    pub fn encode_rgba(&self, pixels: &[u8], size: Size) -> Result<Vec<u8>> {
        check_channels(NAME, pixels, size, LARGEST, 4)?;
        self.write(pixels, PixelLayout::Rgba, size)
    }

    /// Encodes validated pixels.
    fn write(&self, pixels: &[u8], layout: PixelLayout, size: Size) -> Result<Vec<u8>> {
        let options = [
            ("quality", self.quality, 100),
            ("alpha quality", self.alpha_quality, 100),
            ("effort", self.effort, 6),
        ];
        for (name, given, most) in options {
            if given > most {
                return Err(invalid(format!("invalid WebP {name} {given}: expected 0 to {most}")));
            }
        }
        let mut config = WebPConfig::new()
            .map_err(|()| failed(NAME, "the version of libwebp does not match its Rust binding"))?;
        config.quality = self.quality.into();
        config.alpha_quality = self.alpha_quality.into();
        config.method = self.effort.into();
        let encoder = Encoder::new(pixels, layout, size.width, size.height);
        let encoded = encoder
            .encode_advanced(&config)
            .map_err(|error| failed(NAME, format_args!("{error:?}")))?;
        Ok(encoded.to_vec())
    }
}

impl ImageEncoder for LossyWebpEncoder {
    fn name(&self) -> &'static str {
        NAME
    }

    fn encode(&self, pixels: &[u8], size: Size) -> Result<Vec<u8>> {
        check(NAME, pixels, size, LARGEST)?;
        self.write(pixels, PixelLayout::Rgb, size)
    }
}
