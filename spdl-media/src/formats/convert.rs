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
