//! Which part of an upright image becomes the sample.

use std::fmt;
use std::str::FromStr;

use spdl_core::{Error, ErrorKind, Result, SampleRng};

use crate::{CropBox, Rect, Size};

/// How much of the resized image's shorter side the centre crop of [`Mode::Eval`] keeps.
pub const EVAL_CROP_FRACTION: f64 = 0.875;
/// The share of the image's area that a crop of [`Mode::Train`] covers.
pub const TRAIN_AREA: (f64, f64) = (0.08, 1.0);
/// The range of width ÷ height of a crop of [`Mode::Train`], drawn uniformly in its logarithm.
pub const TRAIN_ASPECT: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);
/// How often a crop of [`Mode::Train`] is drawn anew where it does not fit the image.
const TRAIN_ATTEMPTS: u32 = 10;
const FLIP_PROBABILITY: f64 = 0.5;

/// What the pictures are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The same every time: the shorter side resized to round(size ÷ 0.875), then the centre.
    #[default]
    Eval,
    /// Different every time: a random part (area 8 % to 100 %, aspect 3:4 to 4:3), mirrored with
    /// probability ½. A function of the sample's identity and the seed only.
    Train,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mode::Eval => "eval",
            Mode::Train => "train",
        })
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "eval" => Ok(Mode::Eval),
            "train" => Ok(Mode::Train),
            _ => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("expected a mode, \"train\" or \"eval\", found {name:?}"),
            )),
        }
    }
}

/// The box that resizing the shorter side and cropping the centre to `size` × `size` would show:
/// sampling it directly gives the same pixels without the resized image between.
///
/// The longer side is cut to whole pixels and the offset rounded to even, as torchvision's `Resize`
/// and `CenterCrop` do.
pub fn eval_box(image: Size, size: u32) -> CropBox {
    let shorter = (f64::from(size) / EVAL_CROP_FRACTION).round();
    let scale_to = |side: u32, other: u32| {
        if side <= other { shorter } else { (shorter * f64::from(side) / f64::from(other)).floor() }
    };
    let axis = |side: u32, other: u32| {
        let resized = scale_to(side, other);
        let offset = ((resized - f64::from(size)) / 2.0).round_ties_even();
        let source_per_pixel = f64::from(side) / resized;
        (offset * source_per_pixel, f64::from(size) * source_per_pixel)
    };
    let (left, width) = axis(image.width, image.height);
    let (top, height) = axis(image.height, image.width);
    CropBox { left, top, width, height }
}

/// A random box of an image, and whether to mirror it: RandomResizedCrop as in torchvision.
///
/// Area and aspect ratio are drawn until the box fits, 10 times at most; then it is the largest
/// box at the centre whose aspect ratio is within the range.
pub fn train_box(image: Size, rng: &mut SampleRng) -> (Rect, bool) {
    let crop = random_box(image, rng);
    (crop, rng.chance(FLIP_PROBABILITY))
}

fn random_box(image: Size, rng: &mut SampleRng) -> Rect {
    let area = image.pixels() as f64;
    let (low, high) = TRAIN_ASPECT;
    for _ in 0..TRAIN_ATTEMPTS {
        let target = area * rng.range(TRAIN_AREA.0, TRAIN_AREA.1);
        let aspect = rng.range(low.ln(), high.ln()).exp();
        let width = (target * aspect).sqrt().round_ties_even();
        let height = (target / aspect).sqrt().round_ties_even();
        let fits = |side: f64, limit: u32| side >= 1.0 && side <= f64::from(limit);
        if fits(width, image.width) && fits(height, image.height) {
            let (width, height) = (width as u32, height as u32);
            let top = rng.below(u64::from(image.height - height) + 1) as u32;
            let left = rng.below(u64::from(image.width - width) + 1) as u32;
            return Rect { left, top, width, height };
        }
    }
    let aspect = f64::from(image.width) / f64::from(image.height);
    let rounded = |side: f64, limit: u32| (side.round_ties_even() as u32).clamp(1, limit);
    let (width, height) = if aspect < low {
        (image.width, rounded(f64::from(image.width) / low, image.height))
    } else if aspect > high {
        (rounded(f64::from(image.height) * high, image.width), image.height)
    } else {
        (image.width, image.height)
    };
    Rect { left: (image.width - width) / 2, top: (image.height - height) / 2, width, height }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use spdl_core::SampleId;

    use super::*;

    #[test]
    fn eval_resizes_the_shorter_side_and_takes_the_centre() {
        // 500 x 375 becomes 341 x 256 (341.33 cut), of which 224 x 224 start at (58, 16).
        let crop = eval_box(Size::new(500, 375), 224);
        let (x, y) = (500.0 / 341.0, 375.0 / 256.0);
        assert_eq!(
            crop,
            CropBox { left: 58.0 * x, top: 16.0 * y, width: 224.0 * x, height: 224.0 * y }
        );
    }

    #[test]
    fn mode_names_are_read_as_they_are_written() {
        for mode in [Mode::Eval, Mode::Train] {
            assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
        }
        assert!("Train".parse::<Mode>().is_err());
    }

    #[test]
    fn half_of_the_crops_are_mirrored() {
        let mirrored = (0..10_000)
            .filter(|&index| {
                let mut rng = SampleRng::new(0, SampleId { epoch: 0, index }, "t");
                train_box(Size::new(300, 200), &mut rng).1
            })
            .count();
        // 5,000 ± 5 standard deviations of 50.
        assert!((4_750..=5_250).contains(&mirrored), "{mirrored}");
    }

    #[test]
    fn a_narrow_image_falls_back_to_its_centre() {
        let mut rng = SampleRng::new(0, SampleId::default(), "t");
        let (crop, _) = train_box(Size::new(1000, 10), &mut rng);
        assert_eq!(crop, Rect { left: 493, top: 0, width: 13, height: 10 });
    }

    proptest! {
        #[test]
        fn eval_boxes_lie_inside_the_image(w in 1u32..5000, h in 1u32..5000, size in 1u32..600) {
            let crop = eval_box(Size::new(w, h), size);
            prop_assert!(crop.width > 0.0 && crop.height > 0.0);
            prop_assert!(crop.left >= 0.0 && crop.top >= 0.0);
            prop_assert!(crop.left + crop.width <= f64::from(w) * (1.0 + 1e-12));
            prop_assert!(crop.top + crop.height <= f64::from(h) * (1.0 + 1e-12));
        }

        #[test]
        fn train_boxes_keep_their_bounds(w in 1u32..3000, h in 1u32..3000, seed: u64) {
            let image = Size::new(w, h);
            let mut rng = SampleRng::new(seed, SampleId::default(), "t");
            let (crop, _) = train_box(image, &mut rng);
            prop_assert!(crop.is_within(image));
            // Rounding moves each side by up to half a pixel, which weighs on small images.
            let (cw, ch) = (f64::from(crop.width), f64::from(crop.height));
            prop_assert!((cw + 0.5) * (ch + 0.5) >= 0.08 * image.pixels() as f64
                || (cw + 0.5) / (ch - 0.5) >= 4.0 / 3.0 || (cw - 0.5) / (ch + 0.5) <= 3.0 / 4.0);
            prop_assert!((cw - 0.5) / (ch + 0.5) <= 4.0 / 3.0);
            prop_assert!(ch < 1.0 || (cw + 0.5) / (ch - 0.5) >= 3.0 / 4.0);
        }
    }
}
