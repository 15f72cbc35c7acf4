//! Reduces large images.

use spdl_core::Result;

use super::image::FillImage;
use crate::image::{CodecRegistry, Image, Limits, Rect, Size};
use crate::transform::{Crop, ImageTransform, ResizeFilter, Sample};

/// Decodes images and reduces large ones, for a rewritten data set or a cache of decoded samples.
///
/// Create one per worker: it keeps decoders and scratch memory.
///
/// ```
/// # #[cfg(feature = "jpeg")] {
/// use spdl_media::{CodecRegistry, Limits, Shrink, Size};
/// # let photo = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/420.jpg"));
/// let mut shrink = Shrink::to_shorter_side(16, &CodecRegistry::with_defaults(), &Limits::default())?;
/// let small = shrink.image(photo)?;
/// assert_eq!(small.size.width.min(small.size.height), 16);
/// // Smaller images keep their size.
/// assert_eq!(shrink.size(Size::new(10, 300)), Size::new(10, 300));
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Shrink {
    fill: FillImage,
    side: u32,
    longer: bool,
}

impl Shrink {
    /// Reduces images, so that their shorter side has at most `side` pixels.
    ///
    /// # Errors
    /// `InvalidArgument` if `side` is 0 or exceeds the maximum of a
    /// [transform](ImageTransform::validate).
    pub fn to_shorter_side(side: u32, registry: &CodecRegistry, limits: &Limits) -> Result<Self> {
        Shrink::new(side, false, registry, limits)
    }

    /// Reduces images, so that their longer side has at most `side` pixels.
    ///
    /// # Errors
    /// The errors of [`to_shorter_side`](Shrink::to_shorter_side).
    pub fn to_longer_side(side: u32, registry: &CodecRegistry, limits: &Limits) -> Result<Self> {
        Shrink::new(side, true, registry, limits)
    }

    fn new(side: u32, longer: bool, registry: &CodecRegistry, limits: &Limits) -> Result<Self> {
        // Resize the whole image, decoded at full size.
        let transform =
            ImageTransform::new(side).crop(Crop::Stretch).filter(ResizeFilter::Bicubic).exact(true);
        Ok(Shrink { fill: FillImage::new(registry, &transform, limits)?, side, longer })
    }

    /// The reduced size of an image: same aspect ratio, rounded, at least 1 pixel.
    pub fn size(&self, image: Size) -> Size {
        let (shorter, longer) = (image.width.min(image.height), image.width.max(image.height));
        let given = if self.longer { longer } else { shorter };
        if given <= self.side {
            return image;
        }
        let scaled = |side: u32| {
            let (side, given) = (u64::from(side), u64::from(given));
            (((side * u64::from(self.side) * 2 + given) / (given * 2)) as u32).max(1)
        };
        Size::new(scaled(image.width), scaled(image.height))
    }

    /// The upright size of the image in a file, and its reduced size. Parses the header only.
    ///
    /// # Errors
    /// The errors of [`Decoder::inspect`](crate::Decoder::inspect).
    pub fn sizes(&mut self, encoded: &[u8]) -> Result<(Size, Size)> {
        let size = self.fill.decoder().inspect(encoded)?.upright_size();
        Ok((size, self.size(size)))
    }

    /// Decodes an image upright, and reduces it if it is too large.
    ///
    /// # Errors
    /// The errors of [`Decoder::decode_into`](crate::Decoder::decode_into); `InvalidArgument` if a
    /// side of the reduced image exceeds 16,384 pixels.
    pub fn image(&mut self, encoded: &[u8]) -> Result<Image> {
        let (from, size) = self.sizes(encoded)?;
        if size == from {
            return self.fill.decoder().decode_rgb(encoded);
        }
        self.fill.set_size(size)?;
        let mut image = Image { size, pixels: vec![0; size.pixels() as usize * 3] };
        let sample = Sample::U8(&mut image.pixels);
        self.fill.write_crop(encoded, sample, Rect::full(from), false)?;
        Ok(image)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_shrink_in_proportion_and_never_grow() {
        let registry = CodecRegistry::with_defaults();
        let size = |longer: bool, side, (width, height)| {
            let shrink = Shrink::new(side, longer, &registry, &Limits::default()).unwrap();
            let Size { width, height } = shrink.size(Size::new(width, height));
            (width, height)
        };
        assert_eq!(size(true, 512, (1000, 500)), (512, 256));
        assert_eq!(size(true, 500, (333, 1000)), (167, 500));
        assert_eq!(size(true, 512, (512, 512)), (512, 512));
        assert_eq!(size(true, 512, (100_000, 1)), (512, 1));
        assert_eq!(size(false, 256, (500, 375)), (341, 256));
        assert_eq!(size(false, 256, (255, 9000)), (255, 9000));
    }

    #[cfg(feature = "png")]
    #[test]
    fn small_images_keep_their_pixels_and_large_ones_are_resized() {
        let registry = CodecRegistry::with_defaults();
        let file = include_bytes!("../../tests/data/rgb.png");
        let whole = crate::decode_rgb(file).unwrap();
        let mut shrink = Shrink::to_longer_side(20_000, &registry, &Limits::default());
        assert!(shrink.is_err(), "exceeds the maximum sample size");
        shrink = Shrink::to_longer_side(1_000, &registry, &Limits::default());
        assert_eq!(shrink.unwrap().image(file).unwrap(), whole);

        let mut shrink = Shrink::to_shorter_side(9, &registry, &Limits::default()).unwrap();
        for _ in 0..2 {
            let small = shrink.image(file).unwrap();
            assert_eq!(small.size, shrink.size(whole.size));
            let transform = ImageTransform::with_size(small.size)
                .crop(Crop::Stretch)
                .filter(ResizeFilter::Bicubic)
                .exact(true);
            let mut fill = FillImage::new(&registry, &transform, &Limits::default()).unwrap();
            let mut expected = vec![0; small.pixels.len()];
            fill.write(file, Sample::U8(&mut expected), || unreachable!("nothing is drawn"))
                .unwrap();
            assert_eq!(small.pixels, expected);
        }
    }
}
