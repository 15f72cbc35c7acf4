//! PNG by the crate `png`.

use png::{BitDepth, ColorType, Compression, Encoder};
use spdl_core::Result;

use super::encoder::{ImageEncoder, check, failed};
use crate::image::Size;

const NAME: &str = "png";

/// The compression level of a PNG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PngCompression {
    /// Fast.
    Fast,
    /// Similar to zlib level 6.
    #[default]
    Balanced,
    /// Much slower, for slightly smaller files.
    High,
}

/// Encodes PNG: RGB, 8 bits, lossless.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PngEncoder {
    compression: PngCompression,
}

impl PngEncoder {
    /// Compression [`PngCompression::Balanced`].
    pub fn new() -> Self {
        PngEncoder::default()
    }

    /// The compression level. Default: balanced.
    #[must_use]
    pub fn compression(mut self, compression: PngCompression) -> Self {
        self.compression = compression;
        self
    }
}

impl ImageEncoder for PngEncoder {
    fn name(&self) -> &'static str {
        NAME
    }

    fn encode(&self, pixels: &[u8], size: Size) -> Result<Vec<u8>> {
        check(NAME, pixels, size, i32::MAX as u32)?;
        let mut encoded = Vec::new();
        let mut encoder = Encoder::new(&mut encoded, size.width, size.height);
        encoder.set_color(ColorType::Rgb);
        encoder.set_depth(BitDepth::Eight);
        encoder.set_compression(match self.compression {
            PngCompression::Fast => Compression::Fast,
            PngCompression::Balanced => Compression::Balanced,
            PngCompression::High => Compression::High,
        });
        let mut writer = encoder.write_header().map_err(|error| failed(NAME, error))?;
        writer.write_image_data(pixels).map_err(|error| failed(NAME, error))?;
        writer.finish().map_err(|error| failed(NAME, error))?;
        Ok(encoded)
    }
}
