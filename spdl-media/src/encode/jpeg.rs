//! JPEG through the `jpeg-encoder` crate.

use jpeg_encoder::{ChromaSubsamplingMethod, ColorType, Encoder, SamplingFactor};
use spdl_core::Result;

use super::{ImageEncoder, check, failed, invalid};
use crate::image::Size;

const NAME: &str = "jpeg";

/// How the colour differences of a JPEG are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Subsampling {
    /// 4:4:4: for every pixel.
    S444,
    /// 4:2:2: for every two pixels of a row.
    S422,
    /// 4:2:0: for every square of two by two pixels.
    #[default]
    S420,
}

/// Writes JPEG: YCbCr, 8 bits, Huffman-coded.
///
/// The quantisation tables are those of ITU-T T.81, annex K, scaled by the quality as libjpeg does.
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
    /// Quality 90, 4:2:0, one scan, the Huffman tables of the standard.
    pub fn new() -> Self {
        JpegEncoder::default()
    }

    /// The quality, from 1 to 100. Default: 90.
    #[must_use]
    pub fn quality(mut self, quality: u8) -> Self {
        self.quality = quality;
        self
    }

    /// How the colour differences are stored. Default: 4:2:0.
    #[must_use]
    pub fn subsampling(mut self, subsampling: Subsampling) -> Self {
        self.subsampling = subsampling;
        self
    }

    /// Whether the image comes in several scans, from coarse to fine: smaller, and slower to decode.
    /// Default: no.
    #[must_use]
    pub fn progressive(mut self, progressive: bool) -> Self {
        self.progressive = progressive;
        self
    }

    /// Whether Huffman tables are made for the image: smaller, and slower to encode. Default: no.
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
            return Err(invalid(format!("a JPEG quality is 1 to 100, not {}", self.quality)));
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
