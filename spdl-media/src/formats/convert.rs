//! Pixels of any kind to RGB.

use crate::image::{CHANNELS, PixelsMut, Rect, Size};

/// How the samples of a pixel become red, green and blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pixel {
    /// Grey, and whatever follows it: repeated.
    Grey(usize),
    /// Red, green, blue, and whatever follows: the rest is dropped.
    Rgb(usize),
}

impl Pixel {
    pub(super) fn bytes(self) -> usize {
        match self {
            Pixel::Grey(bytes) | Pixel::Rgb(bytes) => bytes,
        }
    }

    /// Writes one row; `source` holds as many pixels as `target`.
    pub(super) fn copy_row(self, source: &[u8], target: &mut [u8]) {
        let (target, _) = target.as_chunks_mut::<CHANNELS>();
        match self {
            Pixel::Rgb(CHANNELS) => target.as_flattened_mut().copy_from_slice(source),
            Pixel::Rgb(bytes) => {
                for (pixel, place) in source.chunks_exact(bytes).zip(target) {
                    place.copy_from_slice(&pixel[..CHANNELS]);
                }
            }
            Pixel::Grey(bytes) => {
                for (pixel, place) in source.chunks_exact(bytes).zip(target) {
                    *place = [pixel[0]; CHANNELS];
                }
            }
        }
    }

    /// Writes a region of an image whose rows lie without gaps in `source`.
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
