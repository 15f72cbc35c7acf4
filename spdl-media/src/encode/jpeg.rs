//! JPEG by the crate `jpeg-encoder`.

use jpeg_encoder::{ChromaSubsamplingMethod, ColorType, Encoder, SamplingFactor};
use spdl_core::Result;

use super::encoder::{ImageEncoder, check, failed, invalid};
use crate::image::Size;

const NAME: &str = "jpeg";

/// The chroma subsampling of a JPEG.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Subsampling {
    /// 4:4:4: full resolution.
    S444,
    /// 4:2:2: half the horizontal resolution.
    S422,
    /// 4:2:0: half the horizontal and vertical resolution.
    #[default]
    S420,
}

/// Encodes JPEG: YCbCr, 8 bits, Huffman coding.
///
/// The quantisation tables are those of ITU-T T.81, annex K, scaled by the quality as in libjpeg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JpegEncoder {
    quality: u8,
    subsampling: Subsampling,
    progressive: bool,
    optimized: bool,
}

impl Default for JpegEncoder {
    fn default() -> Self {
        let subsampling = Subsampling::default();
        JpegEncoder { quality: 90, subsampling, progressive: false, optimized: false }
    }
}

impl JpegEncoder {
    /// Quality 90, 4:2:0, sequential, standard Huffman tables.
    pub fn new() -> Self {
        JpegEncoder::default()
    }

    /// The quality, 1 to 100. Default: 90.
    #[must_use]
    pub fn quality(mut self, quality: u8) -> Self {
        self.quality = quality;
        self
    }

    /// The chroma subsampling. Default: 4:2:0.
    #[must_use]
    pub fn subsampling(mut self, subsampling: Subsampling) -> Self {
        self.subsampling = subsampling;
        self
    }

    /// Whether the JPEG is progressive: smaller, but slower to decode. Default: no.
    #[must_use]
    pub fn progressive(mut self, progressive: bool) -> Self {
        self.progressive = progressive;
        self
    }

    /// Whether Huffman tables are optimised for the image: smaller, but slower to encode. Default:
    /// no.
    #[must_use]
    pub fn optimized(mut self, optimized: bool) -> Self {
        self.optimized = optimized;
        self
    }
}

impl ImageEncoder for JpegEncoder {
    fn name(&self) -> &'static str {
        NAME
    }

    fn encode(&self, pixels: &[u8], size: Size) -> Result<Vec<u8>> {
        check(NAME, pixels, size, u16::MAX.into())?;
        if !(1..=100).contains(&self.quality) {
            return Err(invalid(format!(
                "invalid JPEG quality {}: expected 1 to 100",
                self.quality
            )));
        }
        let mut encoded = Vec::new();
        let mut encoder = Encoder::new(&mut encoded, self.quality);
        encoder.set_sampling_factor(match self.subsampling {
            Subsampling::S444 => SamplingFactor::R_4_4_4,
            Subsampling::S422 => SamplingFactor::R_4_2_2,
            Subsampling::S420 => SamplingFactor::R_4_2_0,
        });
        encoder.set_chroma_subsampling_method(ChromaSubsamplingMethod::Average);
        encoder.set_progressive(self.progressive);
        encoder.set_optimized_huffman_tables(self.optimized);
        encoder
            .encode(pixels, size.width as u16, size.height as u16, ColorType::Rgb)
            .map_err(|error| failed(NAME, error))?;
        Ok(encoded)
    }
}
