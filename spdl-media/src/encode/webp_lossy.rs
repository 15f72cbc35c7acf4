//! Lossy WebP through libwebp, by the `webp` crate.

use spdl_core::Result;
use webp::{Encoder, PixelLayout, WebPConfig};

use super::webp::{LARGEST, NAME};
use super::{ImageEncoder, check, check_channels, failed, invalid};
use crate::image::Size;

/// Writes WebP, lossy: YUV 4:2:0 of 8 bits (RFC 6386), with alpha beside it where there is some.
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
    /// Quality 75, alpha without loss, effort 4: the defaults of libwebp.
    pub fn new() -> Self {
        LossyWebpEncoder::default()
    }

    /// The quality, from 0 to 100. Default: 75.
    #[must_use]
    pub fn quality(mut self, quality: u8) -> Self {
        self.quality = quality;
        self
    }

    /// The quality of alpha, from 0 to 100; at 100, nothing of it is lost. Default: 100.
    #[must_use]
    pub fn alpha_quality(mut self, quality: u8) -> Self {
        self.alpha_quality = quality;
        self
    }

    /// From 0, quick, to 6, slow and a little smaller. Default: 4.
    #[must_use]
    pub fn effort(mut self, effort: u8) -> Self {
        self.effort = effort;
        self
    }

    /// Encodes RGB pixels with alpha: `height` × `width` × 4 bytes, interleaved, rows without gaps.
    /// The colour of pixels that nobody sees (alpha 0) is not kept. Where all alpha is 255, the file
    /// has none.
    ///
    /// # Errors
    /// As [`encode`](ImageEncoder::encode).
    pub fn encode_rgba(&self, pixels: &[u8], size: Size) -> Result<Vec<u8>> {
        check_channels(NAME, pixels, size, LARGEST, 4)?;
        self.write(pixels, PixelLayout::Rgba, size)
    }

    /// Encodes pixels that were checked.
    fn write(&self, pixels: &[u8], layout: PixelLayout, size: Size) -> Result<Vec<u8>> {
        let options = [
            ("quality", self.quality, 100),
            ("quality of alpha", self.alpha_quality, 100),
            ("effort", self.effort, 6),
        ];
        for (name, given, most) in options {
            if given > most {
                return Err(invalid(format!("a WebP {name} is 0 to {most}, not {given}")));
            }
        }
        let mut config = WebPConfig::new()
            .map_err(|()| failed(NAME, "libwebp has another version than its binding"))?;
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
