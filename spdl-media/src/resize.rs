//! A box of an image becomes a square of another size: antialiased bilinear, as Pillow's.

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use spdl_core::{Error, ErrorKind, Result};

use crate::pixels::CHANNELS;
use crate::{CropBox, Rect, Size};

/// How far beyond a box the filter looks, in source pixels, for one direction: the triangle's half
/// width (a pixel, stretched by a reduction), counted from the middle of the outermost pixel.
fn reach(source: f64, target: u32) -> f64 {
    let source_per_pixel = source / f64::from(target);
    source_per_pixel.max(1.0) - source_per_pixel / 2.0
}

/// The whole pixels that resizing `crop` to `target` looks at.
pub(crate) fn needed_region(crop: CropBox, target: Size, image: Size) -> Rect {
    let axis = |start: f64, extent: f64, target: u32, limit: u32| {
        let reach = reach(extent, target);
        let limit = f64::from(limit);
        let first = (start - reach).floor().clamp(0.0, limit - 1.0);
        let end = (start + extent + reach).ceil().clamp(first + 1.0, limit);
        (first as u32, (end - first) as u32)
    };
    let (left, width) = axis(crop.left, crop.width, target.width, image.width);
    let (top, height) = axis(crop.top, crop.height, target.height, image.height);
    Rect { left, top, width, height }
}

/// Resizes, and keeps its scratch memory.
pub(crate) struct SquareResizer {
    resizer: Resizer,
}

impl SquareResizer {
    pub(crate) fn new() -> Self {
        SquareResizer { resizer: Resizer::new() }
    }

    /// Writes `crop` of the RGB `source` to `target`, `side` × `side` RGB pixels without gaps.
    ///
    /// The filter sees the source's pixels outside the box, too.
    pub(crate) fn resize(
        &mut self,
        source: &[u8],
        source_size: Size,
        crop: CropBox,
        target: &mut [u8],
        side: u32,
    ) -> Result<()> {
        let fault = |error: &dyn std::fmt::Display| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("cannot resize {crop:?} of {source_size} pixels to {side}: {error}"),
            )
        };
        debug_assert_eq!(source.len() as u64, source_size.pixels() * CHANNELS as u64);
        let source =
            TypedImageRef::<U8x3>::from_buffer(source_size.width, source_size.height, source)
                .map_err(|error| fault(&error))?;
        let mut target =
            TypedImage::<U8x3>::from_buffer(side, side, target).map_err(|error| fault(&error))?;
        // Rounding may push a box that ends at the image's edge a little over it.
        let width = crop.width.min(f64::from(source_size.width) - crop.left);
        let height = crop.height.min(f64::from(source_size.height) - crop.top);
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .use_alpha(false)
            .crop(crop.left, crop.top, width, height);
        self.resizer.resize_typed(&source, &mut target, &options).map_err(|error| fault(&error))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::eval_box;

    proptest! {
        #[test]
        fn a_part_of_an_image_is_resized_as_if_the_whole_were_there(
            width in 8u32..80, height in 8u32..80, side in 4u32..40, seed: u32,
        ) {
            let size = Size::new(width, height);
            // Noise: what is left out at an edge would be seen.
            let mut state = seed;
            let image: Vec<u8> = (0..size.pixels() * 3).map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            }).collect();
            let crop = eval_box(size, side);
            let region = needed_region(crop, Size::new(side, side), size);
            prop_assert!(region.is_within(size));
            let part: Vec<u8> = (region.top..region.top + region.height).flat_map(|y| {
                let start = (y * width + region.left) as usize * 3;
                image[start..start + region.width as usize * 3].to_vec()
            }).collect();
            let within = CropBox {
                left: crop.left - f64::from(region.left),
                top: crop.top - f64::from(region.top),
                ..crop
            };

            let mut resizer = SquareResizer::new();
            let mut resize = |source: &[u8], size: Size, crop: CropBox| {
                let mut target = vec![0; (side * side * 3) as usize];
                resizer.resize(source, size, crop, &mut target, side).unwrap();
                target
            };
            let whole = resize(&image, size, crop);
            let found = resize(&part, region.size(), within);
            let largest = whole.iter().zip(&found).map(|(a, b)| a.abs_diff(*b)).max();
            // The box's place is rounded in its last digit.
            prop_assert!(largest <= Some(1), "{:?}", largest);
        }
    }
}
