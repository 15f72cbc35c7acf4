//! Decoded pixels with alpha and up to 16 bits per channel.

use spdl_core::{Error, ErrorKind, Result};

use super::codec::Decoded;
use super::geometry::{Rect, Size};
use super::pixels::{CHANNELS, PixelsMut};

/// How many bits of the stored samples of an image are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SampleDepth {
    /// 8 bits, with the values of [`PixelsMut`].
    #[default]
    Eight,
    /// All bits, up to 16.
    Sixteen,
}

/// Red, green, blue and alpha of a region of an image, 16 bits each, not premultiplied.
///
/// Samples of 8 bits are multiplied by 257, so that 255 becomes 65,535. Alpha is 65,535 (opaque) if the
/// image has none. If a picture is reused, its memory is kept.
///
/// ```
/// # #[cfg(feature = "png")] {
/// use spdl_media::image::{DecodeRequest, RgbaPicture, SampleDepth};
/// use spdl_media::{CodecRegistry, Decoder, Limits};
/// # let file = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/rgb-alpha.png"));
/// let mut decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
/// let mut picture = RgbaPicture::new();
/// decoder.decode_rgba(file, &DecodeRequest::full(), SampleDepth::Sixteen, &mut picture)?;
/// let [_red, _green, _blue, alpha] = picture.row(0)[1];
/// assert_eq!(alpha, 7 * 257);
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RgbaPicture {
    image: Size,
    region: Rect,
    pixels: Vec<[u16; 4]>,
    /// RGB pixels of codecs that decode neither alpha nor 16 bits.
    rgb: Vec<u8>,
}

impl RgbaPicture {
    /// The memory in bytes that a pixel takes.
    pub(crate) const PIXEL_BYTES: u64 = (size_of::<[u16; 4]>() + CHANNELS) as u64;

    /// An empty picture; allocates nothing.
    pub fn new() -> Self {
        RgbaPicture::default()
    }

    /// Prepares `region` of an image of size `image`. The caller must write all pixels; their values are
    /// unspecified.
    ///
    /// # Errors
    /// `InvalidArgument` if `region` has no pixels; `LimitExceeded` if the allocation fails.
    pub fn start(&mut self, image: Size, region: Rect) -> Result<()> {
        let count = usize::try_from(region.size().pixels()).unwrap_or(usize::MAX);
        if count == 0 {
            let message = format!("the region {region:?} has no pixels");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        (self.image, self.region) = (image, region);
        resized(&mut self.pixels, count)
    }

    /// The size of the whole image as stored.
    pub fn image(&self) -> Size {
        self.image
    }

    /// The region that the picture holds.
    pub fn region(&self) -> Rect {
        self.region
    }

    /// Red, green, blue and alpha of the pixels of a row of the region.
    ///
    /// # Panics
    /// If `row` is not less than the height of the region.
    pub fn row(&self, row: u32) -> &[[u16; 4]] {
        let width = self.region.width as usize;
        &self.pixels[row as usize * width..][..width]
    }

    /// A row, mutable.
    ///
    /// # Panics
    /// If `row` is not less than the height of the region.
    pub fn row_mut(&mut self, row: u32) -> &mut [[u16; 4]] {
        let width = self.region.width as usize;
        &mut self.pixels[row as usize * width..][..width]
    }

    /// Writes the pixels that `decode` writes as RGB of 8 bits, without alpha.
    ///
    /// # Errors
    /// The errors of `decode`; `LimitExceeded` if an allocation fails.
    pub fn write_rgb(
        &mut self,
        decode: impl FnOnce(PixelsMut<'_>) -> Result<Decoded>,
    ) -> Result<Decoded> {
        let (rgb, _) = self.targets()?;
        let decoded = decode(rgb)?;
        self.widen_rgb();
        Ok(decoded)
    }

    /// Memory for RGB pixels of the region, and the pixels of this picture.
    pub(crate) fn targets(&mut self) -> Result<(PixelsMut<'_>, &mut [[u16; 4]])> {
        resized(&mut self.rgb, self.pixels.len() * CHANNELS)?;
        let rgb = PixelsMut::new(&mut self.rgb, self.region.size())?;
        Ok((rgb, &mut self.pixels))
    }

    /// Copies the RGB pixels of [`targets`](Self::targets).
    pub(crate) fn widen_rgb(&mut self) {
        let (rgb, _) = self.rgb.as_chunks::<CHANNELS>();
        for (pixel, rgb) in self.pixels.iter_mut().zip(rgb) {
            let [red, green, blue] = rgb.map(|level| u16::from(level) * 257);
            *pixel = [red, green, blue, u16::MAX];
        }
    }

    /// The number of bytes allocated.
    pub(crate) fn held_bytes(&self) -> usize {
        self.pixels.capacity() * size_of::<[u16; 4]>() + self.rgb.capacity()
    }
}

/// Resizes a buffer whose content does not matter.
fn resized<T: Clone + Default>(buffer: &mut Vec<T>, len: usize) -> Result<()> {
    if buffer.capacity() < len {
        // Dropping the old buffer before the new one is allocated avoids copying its content.
        *buffer = Vec::new();
        buffer.try_reserve_exact(len).map_err(|_| {
            let bytes = len.saturating_mul(size_of::<T>());
            let message = format!("cannot allocate {bytes} bytes for a decoded picture");
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
    }
    buffer.resize(len, T::default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rgb_pixels_become_opaque_pixels_of_16_bits() {
        let mut picture = RgbaPicture::new();
        let region = Rect { left: 3, top: 1, width: 1, height: 2 };
        picture.start(Size::new(9, 9), region).unwrap();
        let decoded = picture.write_rgb(|mut out| {
            out.row_mut(1).copy_from_slice(&[0, 1, 255]);
            Ok(Decoded::new(out.size()))
        });
        assert_eq!(decoded.unwrap().size, region.size());
        assert_eq!(picture.row(1), [[0, 257, 65_535, 65_535]]);
        assert_eq!((picture.image(), picture.region()), (Size::new(9, 9), region));
        let empty = Rect { width: 0, ..region };
        assert!(picture.start(Size::new(9, 9), empty).is_err());
    }
}
