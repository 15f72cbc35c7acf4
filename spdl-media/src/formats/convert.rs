//! Conversion of decoded samples to RGB.

use crate::image::{CHANNELS, PixelsMut, Rect, Size};

/// The sample layout of a decoded pixel, with its size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PixelLayout {
    /// Grey. Further samples (alpha) are dropped.
    Grey(usize),
    /// Red, green, blue. Further samples (alpha) are dropped.
    Rgb(usize),
}

impl PixelLayout {
    pub(super) fn bytes(self) -> usize {
        match self {
            PixelLayout::Grey(bytes) | PixelLayout::Rgb(bytes) => bytes,
        }
    }

    /// Converts one row; `source` and `target` hold the same number of pixels.
    pub(super) fn copy_row(self, source: &[u8], target: &mut [u8]) {
        let (target, _) = target.as_chunks_mut::<CHANNELS>();
        match self {
            PixelLayout::Rgb(CHANNELS) => target.as_flattened_mut().copy_from_slice(source),
            PixelLayout::Rgb(bytes) => {
                for (pixel, place) in source.chunks_exact(bytes).zip(target) {
                    place.copy_from_slice(&pixel[..CHANNELS]);
                }
            }
            PixelLayout::Grey(bytes) => {
                for (pixel, place) in source.chunks_exact(bytes).zip(target) {
                    *place = [pixel[0]; CHANNELS];
                }
            }
        }
    }

    /// Converts a region of an image without padding between rows.
    pub(super) fn copy_region(
        self,
        source: &[u8],
        size: Size,
        region: Rect,
        mut out: PixelsMut<'_>,
    ) {
        let (stride, bytes) = (size.width as usize * self.bytes(), self.bytes());
        for row in 0..region.height {
            let start = (region.top + row) as usize * stride + region.left as usize * bytes;
            self.copy_row(&source[start..][..region.width as usize * bytes], out.row_mut(row));
        }
    }
}

/// The layout of the samples of a decoded pixel, of which alpha and 16 bits are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct RgbaLayout {
    /// 1 (grey) or 3 (red, green, blue).
    pub(super) colors: usize,
    /// Whether alpha follows the colours.
    pub(super) has_alpha: bool,
    pub(super) samples: RgbaSamples,
}

/// How a sample becomes 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RgbaSamples {
    /// Bytes, multiplied by 257.
    Bytes,
    /// Big-endian words.
    Words,
    /// The upper bytes of big-endian words, multiplied by 257.
    UpperBytes,
    /// Big-endian words, clamped to 255 and multiplied by 257; alpha as [`UpperBytes`](Self::UpperBytes).
    ClampedWords,
}

impl RgbaLayout {
    pub(super) fn bytes(self) -> usize {
        let size = if self.samples == RgbaSamples::Bytes { 1 } else { 2 };
        size * (self.colors + usize::from(self.has_alpha))
    }

    /// Converts one row; `source` and `target` hold the same number of pixels.
    pub(super) fn widen_row(self, source: &[u8], target: &mut [[u16; 4]]) {
        for (pixel, place) in source.chunks_exact(self.bytes()).zip(target) {
            let word = |at: usize| u16::from_be_bytes([pixel[2 * at], pixel[2 * at + 1]]);
            let upper = |at: usize| u16::from(pixel[2 * at]) * 257;
            let color = |at: usize| match self.samples {
                RgbaSamples::Bytes => u16::from(pixel[at]) * 257,
                RgbaSamples::Words => word(at),
                RgbaSamples::UpperBytes => upper(at),
                RgbaSamples::ClampedWords => word(at).min(255) * 257,
            };
            let alpha = match (self.has_alpha, self.samples) {
                (false, _) => u16::MAX,
                (true, RgbaSamples::ClampedWords) => upper(self.colors),
                (true, _) => color(self.colors),
            };
            *place = match self.colors {
                1 => [color(0), color(0), color(0), alpha],
                _ => [color(0), color(1), color(2), alpha],
            };
        }
    }
}

/// `(255 − ink)·(255 − black) ÷ 255`, in Pillow's integer arithmetic.
#[cfg(any(feature = "tiff", feature = "turbojpeg"))]
pub(super) fn cmyk_to_rgb([c, m, y, k]: [u8; 4]) -> [u8; CHANNELS] {
    let white = 255 - u32::from(k);
    [c, m, y].map(|ink| {
        let product = u32::from(ink) * white + 128;
        let absorbed = ((product >> 8) + product) >> 8;
        white.saturating_sub(absorbed) as u8
    })
}
