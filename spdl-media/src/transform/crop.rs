//! Which part of an image becomes the sample, and its place in the sample.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use spdl_core::{Error, ErrorKind, Result, SampleRng};

use crate::image::{CropBox, Rect, Size};

/// The fraction of width and height that the centre crop of [`Mode::Eval`] keeps.
pub const EVAL_CROP_FRACTION: f64 = 0.875;
/// The range of the area of a [`Mode::Train`] crop, as a fraction of the image.
pub const TRAIN_AREA: (f64, f64) = (0.08, 1.0);
/// The range of width ÷ height of a [`Mode::Train`] crop, log-uniform.
pub const TRAIN_ASPECT: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);
/// The maximum number of draws for a random crop that fits the image.
const ATTEMPTS: u32 = 10;
const BLACK: [u8; 3] = [0; 3];
/// Lengths to which a side of an image can be resized.
const SIDES: RangeInclusive<u32> = 1..=1 << 20;

/// The usual crop and flip for training or evaluation on ImageNet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Deterministic: resize so that the image covers round(size ÷ 0.875), then crop the centre.
    #[default]
    Eval,
    /// Random: crop 8 % to 100 % of the area with an aspect ratio of 3:4 to 4:3, and flip
    /// horizontally with probability ½. The draw depends only on seed, epoch, sample and stage.
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
                format!("unknown mode {name:?}: expected \"train\" or \"eval\""),
            )),
        }
    }
}

/// Which part of an image becomes the sample. The torchvision equivalents are in parentheses. Fill
/// colours are red, green, blue.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Crop {
    /// Resize, keeping the aspect ratio, so that the image just covers a given size; then crop the
    /// centre (`Resize`, `CenterCrop`). If the result is smaller than the sample, the rest is
    /// black.
    ResizedCenter {
        /// The size to cover: the width or the height of the resized image equals that of this
        /// size, and the other side is equal or longer. If this size is a square, the shorter side
        /// of the image is resized to the side of the square.
        covering: Size,
    },
    /// Crop a random rectangle and resize it (`RandomResizedCrop`). Area and aspect ratio are drawn
    /// until the rectangle fits, at most 10 times. After that, the largest centred rectangle with
    /// an aspect ratio in range is used. Pixels outside the rectangle have no influence, except
    /// those that share a subsampled chroma sample or a pixel of a reduced JPEG with its edge.
    RandomResized {
        /// Minimum and maximum area as a fraction of the image (`scale`).
        area: (f64, f64),
        /// Minimum and maximum width ÷ height (`ratio`), log-uniform.
        aspect: (f64, f64),
    },
    /// Resize the whole image, ignoring the aspect ratio (`Resize` with two sides).
    Stretch,
    /// Resize the whole image, keeping the aspect ratio, to the largest size that fits the sample,
    /// and centre it on a fill colour. Smaller images are enlarged.
    Letterbox {
        /// The fill colour.
        fill: [u8; 3],
    },
    /// Crop the centre without a resize (`CenterCrop`). If the image is smaller than the sample, it
    /// is centred on a fill colour.
    Center {
        /// The fill colour.
        fill: [u8; 3],
    },
    /// Crop a random rectangle without a resize (`RandomCrop` with `pad_if_needed`).
    Random {
        /// Padding on each side in pixels, less than the shorter side of the sample. If the image
        /// is still smaller than the sample, more padding is added.
        padding: u32,
        /// The fill colour.
        fill: [u8; 3],
    },
    /// Resize, keeping the aspect ratio, so that the shorter side has a random length; then crop a
    /// random rectangle (`RandomResize`, `RandomCrop` with `pad_if_needed`).
    RandomScaled {
        /// The minimum and maximum length of the shorter side, uniform in whole pixels, 1 to 2^20.
        shorter: (u32, u32),
        /// The fill colour around images that are smaller than the sample.
        fill: [u8; 3],
    },
    /// Resize the whole image, keeping the aspect ratio: each sample has the size of its resized
    /// image (`Resize` with one side and `max_size`). Fields of images support this, see
    /// `SampleField::image`; stages whose samples have one size stretch the image to that size.
    Resize {
        /// The length of the shorter side, 1 to 2^20; `None` if `longest` alone limits the size.
        shorter: Option<u32>,
        /// The maximum length of the longer side, 1 to 2^20. Without `shorter`, its length. Without
        /// both, images keep their size.
        longest: Option<u32>,
        /// Both sides are rounded to the nearest multiple of this number, at least 1.
        multiple_of: u32,
    },
    /// Resize, keeping the aspect ratio, so that the image just covers the sample; then crop the centre, or
    /// a random part.
    Cover {
        /// Whether the part is random.
        random: bool,
    },
    /// Several crops of one resized image, without padding: the upper left, upper right, lower left
    /// and lower right corner, and the centre (`FiveCrop`, `TenCrop`). A sample is an array of the
    /// crops; see [`ImageTransform::crops`](crate::ImageTransform::crops).
    Corners {
        /// The size that the resized image covers, as for `ResizedCenter`; `None` for no resize.
        covering: Option<Size>,
        /// The flip of the image from which five more crops are taken; `None` for five crops.
        flipped: Option<Flip>,
    },
}

/// The axis of a flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flip {
    /// Left becomes right.
    Horizontal,
    /// Top becomes bottom.
    Vertical,
}

/// The part of an upright image that a transform used, and its place in the sample. Use it to
/// transform boxes or key points.
///
/// ```
/// use spdl_media::{Crop, ImageTransform, Rect, Size};
/// let transform = ImageTransform::new(100).crop(Crop::Letterbox { fill: [114; 3] });
/// let placement = transform.place(Size::new(400, 200), || unreachable!("nothing is random"));
/// assert_eq!(placement.target, Rect { left: 0, top: 25, width: 100, height: 50 });
/// assert_eq!(placement.source.width, 400.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placement {
    /// The part of the upright image, in pixels. With [`ImageTransform::zoom_out`](crate::ImageTransform::zoom_out), it can
    /// exceed the image by half a pixel of the sample, because `target` consists of whole pixels.
    pub source: CropBox,
    /// The pixels of the upright image that may influence the result.
    pub bounds: Rect,
    /// The rectangle in the sample, before flips.
    pub target: Rect,
    /// Whether the whole sample is then flipped horizontally.
    pub mirrored: bool,
    /// Whether the whole sample is then flipped vertically.
    pub upended: bool,
}

/// The source and target interval of one axis.
struct AxisPlacement {
    source: (f64, f64),
    target: (u32, u32),
}

impl AxisPlacement {
    /// The same part of the image, in pixels of the axis before its resize.
    fn before_resize(self, side: u32, resized: u32) -> Self {
        let (start, length) = self.source;
        let source_per_pixel = f64::from(side) / f64::from(resized);
        AxisPlacement { source: (start * source_per_pixel, length * source_per_pixel), ..self }
    }
}

impl Crop {
    pub(crate) const TRAIN: Crop = Crop::RandomResized { area: TRAIN_AREA, aspect: TRAIN_ASPECT };

    pub(crate) fn eval(sample: Size) -> Crop {
        let covering = |side: u32| (f64::from(side) / EVAL_CROP_FRACTION).round() as u32;
        let covering = Size::new(covering(sample.width), covering(sample.height));
        Crop::ResizedCenter { covering }
    }

    pub(crate) fn is_random(&self) -> bool {
        use Crop::{Cover, Random, RandomResized, RandomScaled};
        matches!(
            self,
            RandomResized { .. } | Random { .. } | RandomScaled { .. } | Cover { random: true }
        )
    }

    /// The size of the sample of an upright image, if it depends on the image.
    pub(crate) fn size_of(&self, image: Size) -> Option<Size> {
        let Crop::Resize { shorter, longest, multiple_of } = *self else { return None };
        let [width, height] = [image.width, image.height].map(|side| u64::from(side.max(1)));
        let (short, long) = (width.min(height), width.max(height));
        let [shorter, longest] = [shorter, longest].map(|side| side.map(u64::from));
        // Truncated twice if both lengths apply, as in torchvision.
        let resized = match shorter {
            Some(shorter) => (shorter, shorter * long / short),
            None => (short, long),
        };
        let (short, long) = match longest {
            Some(longest) if shorter.is_none() || resized.1 > longest => {
                (longest * resized.0 / resized.1, longest)
            }
            _ => resized,
        };
        let multiple = u64::from(multiple_of);
        let [short, long] = [short, long].map(|side| {
            let rounded = ((side + multiple / 2) / multiple).max(1) * multiple;
            rounded.min(u32::MAX.into()) as u32
        });
        let is_wide = width >= height;
        Some(if is_wide { Size::new(long, short) } else { Size::new(short, long) })
    }

    /// The number of crops of an image, if a sample is an array of several.
    pub(crate) fn count(&self) -> Option<usize> {
        match self {
            Crop::Corners { flipped: None, .. } => Some(5),
            Crop::Corners { flipped: Some(_), .. } => Some(10),
            _ => None,
        }
    }

    /// The size of the resized image of which [`parts`](Self::parts) are crops.
    pub(crate) fn resized(&self, image: Size) -> Size {
        match *self {
            Crop::Corners { covering: Some(covering), .. } => cover(image, covering),
            _ => image,
        }
    }

    /// The crops of a resized image that are samples, in their order, and their flips.
    ///
    /// # Errors
    /// `InvalidArgument` if the sample is larger than the resized image.
    pub(crate) fn parts(
        &self,
        resized: Size,
        sample: Size,
    ) -> Result<impl Iterator<Item = (Rect, Option<Flip>)> + use<>> {
        if sample.width > resized.width || sample.height > resized.height {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "crops of {sample} pixels do not fit into the resized image of {resized} pixels; resize \
                     to cover a larger size"
                ),
            ));
        }
        let (right, bottom) = (resized.width - sample.width, resized.height - sample.height);
        let middle = |rest: u32| (f64::from(rest) / 2.0).round_ties_even() as u32;
        let places =
            [(0, 0), (right, 0), (0, bottom), (right, bottom), (middle(right), middle(bottom))];
        let flips = match *self {
            Crop::Corners { flipped: Some(flip), .. } => [Some(None), Some(Some(flip))],
            _ => [Some(None), None],
        };
        Ok(flips.into_iter().flatten().flat_map(move |flip| {
            places.into_iter().map(move |(left, top)| {
                // The place is one in the flipped image.
                let (left, top) = match flip {
                    None => (left, top),
                    Some(Flip::Horizontal) => (right - left, top),
                    Some(Flip::Vertical) => (left, bottom - top),
                };
                (Rect { left, top, width: sample.width, height: sample.height }, flip)
            })
        }))
    }

    /// The colour outside the image.
    pub(crate) fn fill(&self) -> [u8; 3] {
        match *self {
            Crop::Letterbox { fill } | Crop::Center { fill } => fill,
            Crop::Random { fill, .. } | Crop::RandomScaled { fill, .. } => fill,
            Crop::ResizedCenter { .. } | Crop::RandomResized { .. } => BLACK,
            Crop::Stretch | Crop::Resize { .. } => BLACK,
            Crop::Cover { .. } | Crop::Corners { .. } => BLACK,
        }
    }

    pub(crate) fn validate(&self, sample: Size) -> Result<()> {
        let fault = match *self {
            Crop::ResizedCenter { covering } | Crop::Corners { covering: Some(covering), .. } => {
                let is_valid = SIDES.contains(&covering.width) && SIDES.contains(&covering.height);
                (!is_valid).then(|| "expected width and height from 1 to 2^20".to_owned())
            }
            Crop::Resize { shorter, longest, multiple_of } => {
                let sides = shorter.into_iter().chain(longest).chain([multiple_of]);
                let is_valid = sides.into_iter().all(|side| SIDES.contains(&side));
                (!is_valid).then(|| "expected lengths from 1 to 2^20".to_owned())
            }
            Crop::RandomScaled { shorter: (least, most), .. } => {
                let is_valid = SIDES.contains(&least) && SIDES.contains(&most) && least <= most;
                (!is_valid).then(|| "expected an interval of lengths from 1 to 2^20".to_owned())
            }
            Crop::RandomResized { area, aspect } => {
                invalid_range("area", area).or_else(|| invalid_range("aspect", aspect))
            }
            Crop::Random { padding, .. } => {
                let is_valid = padding < sample.width.min(sample.height);
                (!is_valid).then(|| {
                    format!(
                        "width and height of the sample {sample} must be greater than the padding"
                    )
                })
            }
            Crop::Stretch | Crop::Letterbox { .. } | Crop::Center { .. } => None,
            Crop::Cover { .. } | Crop::Corners { covering: None, .. } => None,
        };
        match fault {
            None => Ok(()),
            Some(why) => {
                Err(Error::new(ErrorKind::InvalidArgument, format!("invalid crop {self:?}: {why}")))
            }
        }
    }

    /// The placement of an upright image, without flips.
    pub(crate) fn place(
        &self,
        image: Size,
        sample: Size,
        rng: Option<&mut SampleRng>,
    ) -> Placement {
        match (*self, rng) {
            (Crop::ResizedCenter { covering }, _) => {
                let resized = cover(image, covering);
                let x = centre_of_resized(image.width, resized.width, sample.width);
                let y = centre_of_resized(image.height, resized.height, sample.height);
                Placement::new(image, x, y)
            }
            (Crop::RandomResized { area, aspect }, Some(rng)) => {
                Placement::part(random_part(image, area, aspect, rng), sample)
            }
            (Crop::Random { padding, .. }, Some(rng)) => {
                // The vertical position is drawn first, as in torchvision.
                let y = random_span(image.height, sample.height, padding, rng);
                let x = random_span(image.width, sample.width, padding, rng);
                Placement::new(image, x, y)
            }
            (Crop::RandomScaled { shorter: (least, most), .. }, Some(rng)) => {
                let shorter = least + rng.below(u64::from(most - least) + 1) as u32;
                let resized = cover(image, Size::new(shorter, shorter));
                let y = random_span(resized.height, sample.height, 0, rng);
                let x = random_span(resized.width, sample.width, 0, rng);
                let x = x.before_resize(image.width, resized.width);
                Placement::new(image, x, y.before_resize(image.height, resized.height))
            }
            (Crop::Cover { random: true }, Some(rng)) => {
                let resized = cover(image, sample);
                let y = random_span(resized.height, sample.height, 0, rng);
                let x = random_span(resized.width, sample.width, 0, rng);
                let x = x.before_resize(image.width, resized.width);
                Placement::new(image, x, y.before_resize(image.height, resized.height))
            }
            (Crop::Cover { .. }, _) => {
                Crop::ResizedCenter { covering: sample }.place(image, sample, None)
            }
            (Crop::Letterbox { .. }, _) => {
                let fitted = fit(image, sample);
                let span = |side: u32, fitted: u32, sample: u32| AxisPlacement {
                    source: (0.0, f64::from(side)),
                    target: ((sample - fitted) / 2, fitted),
                };
                let x = span(image.width, fitted.width, sample.width);
                Placement::new(image, x, span(image.height, fitted.height, sample.height))
            }
            (Crop::Center { .. }, _) => {
                let x = centre_of_resized(image.width, image.width, sample.width);
                let y = centre_of_resized(image.height, image.height, sample.height);
                Placement::new(image, x, y)
            }
            (Crop::Stretch | Crop::Resize { .. } | Crop::RandomResized { .. }, _)
            | (Crop::Random { .. } | Crop::RandomScaled { .. } | Crop::Corners { .. }, _) => {
                Placement::part(Rect::full(image), sample)
            }
        }
    }
}

impl Placement {
    /// A rectangle that becomes the whole sample; pixels outside it have no influence.
    pub(crate) fn part(part: Rect, sample: Size) -> Self {
        Placement {
            source: part.into(),
            bounds: part,
            target: Rect::full(sample),
            mirrored: false,
            upended: false,
        }
    }

    /// The filter may use pixels outside the source interval, as if the whole image had been
    /// resized.
    fn new(image: Size, x: AxisPlacement, y: AxisPlacement) -> Self {
        Placement {
            source: CropBox {
                left: x.source.0,
                top: y.source.0,
                width: x.source.1,
                height: y.source.1,
            },
            bounds: Rect::full(image),
            target: Rect {
                left: x.target.0,
                top: y.target.0,
                width: x.target.1,
                height: y.target.1,
            },
            mirrored: false,
            upended: false,
        }
    }
}

/// An error message for an invalid range.
fn invalid_range(name: &str, (low, high): (f64, f64)) -> Option<String> {
    if low > high {
        return Some(format!("{name} range {low} to {high} is empty"));
    }
    let is_valid = low > 0.0 && high < 1e6;
    (!is_valid)
        .then(|| format!("{name} range {low} to {high}: expected values above 0 and below 10^6"))
}

/// The size of an image resized to cover another size. The longer side is rounded down, as
/// torchvision does.
fn cover(image: Size, covering: Size) -> Size {
    let [w, h] = [image.width, image.height].map(u64::from);
    let [cw, ch] = [covering.width, covering.height].map(u64::from);
    let cut = |side: u64| side.min(u64::from(u32::MAX)) as u32;
    if cw * h >= ch * w {
        Size::new(covering.width, cut(cw * h / w.max(1)))
    } else {
        Size::new(cut(ch * w / h.max(1)), covering.height)
    }
}

/// The size of an image resized to fit into another size, rounded to whole pixels.
fn fit(image: Size, within: Size) -> Size {
    let [w, h] = [image.width, image.height].map(f64::from);
    let [ww, wh] = [within.width, within.height].map(f64::from);
    let rounded = |side: f64, limit: u32| (side.round() as u32).clamp(1, limit);
    if ww * h <= wh * w {
        Size::new(within.width, rounded(h * ww / w, within.height))
    } else {
        Size::new(rounded(w * wh / h, within.width), within.height)
    }
}

/// The centre `sample` pixels of an axis of `side` pixels that is resized to `resized` pixels; the
/// resized image itself is not computed. The offset is rounded to even, as torchvision's
/// `CenterCrop` does.
fn centre_of_resized(side: u32, resized: u32, sample: u32) -> AxisPlacement {
    let source_per_pixel = f64::from(side) / f64::from(resized);
    if resized < sample {
        return AxisPlacement {
            source: (0.0, f64::from(side)),
            target: ((sample - resized) / 2, resized),
        };
    }
    let offset = (f64::from(resized - sample) / 2.0).round_ties_even();
    AxisPlacement {
        source: (offset * source_per_pixel, f64::from(sample) * source_per_pixel),
        target: (0, sample),
    }
}

/// A random interval of `sample` pixels on an axis of `side` pixels, with `padding` at both ends.
fn random_span(side: u32, sample: u32, padding: u32, rng: &mut SampleRng) -> AxisPlacement {
    let [side, sample, padding] = [side, sample, padding].map(i64::from);
    let missing = (sample - side - 2 * padding).max(0);
    let before = padding + missing;
    let padded = side + 2 * before;
    let start = rng.below((padded - sample) as u64 + 1) as i64 - before;
    let (first, end) = (start.max(0), (start + sample).min(side));
    AxisPlacement {
        source: (first as f64, (end - first) as f64),
        target: ((first - start) as u32, (end - first) as u32),
    }
}

fn random_part(image: Size, area: (f64, f64), aspects: (f64, f64), rng: &mut SampleRng) -> Rect {
    let pixels = image.pixels() as f64;
    let (low, high) = aspects;
    for _ in 0..ATTEMPTS {
        let target = pixels * rng.range(area.0, area.1);
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

    fn place(crop: Crop, image: Size, sample: Size, seed: u64) -> Placement {
        let mut rng = SampleRng::new(seed, SampleId::default(), "t");
        crop.place(image, sample, Some(&mut rng))
    }

    fn square(side: u32) -> Size {
        Size::new(side, side)
    }

    #[test]
    fn eval_resizes_the_shorter_side_and_takes_the_centre() {
        // 500 x 375 becomes 341 x 256 (341.33 rounded down), of which 224 x 224 start at (58, 16).
        let placement = place(Crop::eval(square(224)), Size::new(500, 375), square(224), 0);
        let (x, y) = (500.0 / 341.0, 375.0 / 256.0);
        let source = CropBox { left: 58.0 * x, top: 16.0 * y, width: 224.0 * x, height: 224.0 * y };
        assert_eq!(placement.source, source);
        assert_eq!(placement.bounds, Rect::full(Size::new(500, 375)));
        assert_eq!(placement.target, Rect::full(square(224)));
    }

    #[test]
    fn eval_resizes_to_the_next_whole_size() {
        // 96 / 0.875 = 109.7, 64 / 0.875 = 73.1. The longer side of a tall image is cropped:
        // 73 * 500 / 375 = 97.3.
        let covering = Size::new(110, 73);
        assert_eq!(Crop::eval(Size::new(96, 64)), Crop::ResizedCenter { covering });
        assert_eq!(cover(Size::new(375, 500), square(73)), Size::new(73, 97));
        assert_eq!(cover(Size::new(500, 375), square(73)), Size::new(97, 73));
    }

    #[test]
    fn an_image_smaller_than_the_sample_is_centred() {
        // 100 x 50 becomes 40 x 20, which covers rows 5 to 25 of 30 x 31.
        let crop = Crop::ResizedCenter { covering: square(20) };
        let placement = place(crop, Size::new(100, 50), Size::new(30, 31), 0);
        let source = CropBox { left: 12.5, top: 0.0, width: 75.0, height: 50.0 };
        assert_eq!(placement.source, source);
        assert_eq!(placement.target, Rect { left: 0, top: 5, width: 30, height: 20 });
    }

    #[test]
    fn a_letterbox_keeps_the_proportions() {
        let crop = Crop::Letterbox { fill: [1, 2, 3] };
        let tall = place(crop, Size::new(30, 90), Size::new(61, 31), 0);
        assert_eq!(tall.target, Rect { left: 25, top: 0, width: 10, height: 31 });
        assert_eq!(tall.source, Rect::full(Size::new(30, 90)).into());
        // 61 * 25 / 60 = 25.4, 31 * 60 / 45 = 41.3; 61 * 19 / 45 = 25.8.
        let rounded = |w: u32, h: u32| place(crop, Size::new(w, h), Size::new(61, 31), 0).target;
        assert_eq!(rounded(60, 25), Rect { left: 0, top: 3, width: 61, height: 25 });
        assert_eq!(rounded(60, 45), Rect { left: 10, top: 0, width: 41, height: 31 });
        assert_eq!(rounded(45, 19), Rect { left: 0, top: 2, width: 61, height: 26 });
        let line = place(crop, Size::new(5000, 1), Size::new(61, 31), 0);
        assert_eq!(line.target, Rect { left: 0, top: 15, width: 61, height: 1 });
    }

    #[test]
    fn a_centre_crop_takes_whole_pixels() {
        let crop = Crop::Center { fill: BLACK };
        let placement = place(crop, Size::new(101, 20), Size::new(50, 31), 0);
        // (101 - 50) / 2 = 25.5 is rounded to even. 11 rows are filled, 5 of them above.
        let source = CropBox { left: 26.0, top: 0.0, width: 50.0, height: 20.0 };
        assert_eq!(placement.source, source);
        assert_eq!(placement.target, Rect { left: 0, top: 5, width: 50, height: 20 });
    }

    #[test]
    fn random_crops_reach_both_ends_of_the_padding() {
        let crop = Crop::Random { padding: 2, fill: BLACK };
        let starts = |image: u32| {
            let mut starts: Vec<i64> = (0..200)
                .map(|seed| {
                    let placement = place(crop, square(image), square(8), seed);
                    placement.source.left as i64 - i64::from(placement.target.left)
                })
                .collect();
            starts.sort_unstable();
            starts.dedup();
            starts
        };
        assert_eq!(starts(10), (-2..=4).collect::<Vec<_>>());
        // 3 pixels with a padding of 2 on each side are 7 pixels, one fewer than 8: the padding
        // becomes 3.
        assert_eq!(starts(3), (-3..=-2).collect::<Vec<_>>());
    }

    #[test]
    fn scaled_crops_have_every_scale_and_position() {
        let crop = Crop::RandomScaled { shorter: (4, 6), fill: BLACK };
        // 20 x 10 becomes 8 x 4, 10 x 5 or 12 x 6; the sample of 6 x 5 shows all positions of it.
        let mut seen = std::collections::BTreeMap::new();
        for seed in 0..3000 {
            let Placement { source, target, .. } =
                place(crop, Size::new(20, 10), Size::new(6, 5), seed);
            let scale = f64::from(target.width) / source.width;
            assert!((f64::from(target.height) / source.height - scale).abs() < 1e-9);
            let pixels = |at: f64| (at * scale).round() as u32;
            let at = (pixels(source.left), pixels(source.top), target.left, target.top);
            assert!((source.left * scale - f64::from(at.0)).abs() < 1e-9);
            assert_eq!(target.width, 6);
            *seen.entry((pixels(10.0), at)).or_insert(0) += 1;
        }
        let count = |shorter: u32| {
            let of_scale = seen.iter().filter(|((found, _), _)| *found == shorter);
            (of_scale.clone().count(), of_scale.map(|(_, count)| count).sum::<i32>())
        };
        // Three positions across and two down (the row of padding is above or below); 5 across; 7
        // across and 2 down. 1,000 of 3,000 ± 5 standard deviations of 26.
        assert_eq!([4, 5, 6].map(|shorter| count(shorter).0), [6, 5, 14]);
        assert!([4, 5, 6].iter().all(|&shorter| (870..=1130).contains(&count(shorter).1)));
        // Smaller images are shown whole.
        let small = Crop::RandomScaled { shorter: (3, 3), fill: BLACK };
        let placement = place(small, Size::new(10, 20), Size::new(9, 9), 1);
        assert_eq!(placement.source, Rect::full(Size::new(10, 20)).into());
        assert_eq!((placement.target.width, placement.target.height), (3, 6));
    }

    #[test]
    fn the_size_of_a_resized_image_depends_on_the_image() {
        let size = |shorter: u32, longest: u32, multiple_of, (width, height)| {
            let [shorter, longest] = [shorter, longest].map(|side| (side > 0).then_some(side));
            let crop = Crop::Resize { shorter, longest, multiple_of };
            let size = crop.size_of(Size::new(width, height)).unwrap();
            (size.width, size.height)
        };
        assert_eq!(size(0, 0, 1, (641, 480)), (641, 480));
        assert_eq!(size(800, 1333, 1, (640, 480)), (1066, 800));
        // 800 x 1422 is too long: 1333 * 800 / 1422 = 749.9.
        assert_eq!(size(800, 1333, 1, (360, 640)), (749, 1333));
        assert_eq!(size(800, 0, 1, (360, 640)), (800, 1422));
        // Also smaller images.
        assert_eq!(size(0, 100, 1, (30, 20)), (100, 66));
        assert_eq!(size(0, 100, 1, (3000, 1)), (100, 1));
        assert_eq!(size(0, 0, 14, (20, 50)), (14, 56));
        assert_eq!(size(0, 0, 14, (3, 21)), (14, 28));
        assert_eq!(size(224, 0, 14, (480, 640)), (224, 294));
        assert_eq!(Crop::Stretch.size_of(square(3)), None);
    }

    #[test]
    fn a_covering_crop_shows_one_side_of_the_image_whole() {
        // 90 x 40 becomes 67 x 30, of which 20 columns are shown.
        let (image, sample) = (Size::new(90, 40), Size::new(20, 30));
        let scale = 67.0 / 90.0;
        let starts = |random| -> std::collections::BTreeSet<u32> {
            let starts = (0..2000).map(|seed| {
                let placement = place(Crop::Cover { random }, image, sample, seed);
                assert_eq!(placement.target, Rect::full(sample));
                assert_eq!((placement.source.top, placement.source.height), (0.0, 40.0));
                assert!((placement.source.width * scale - 20.0).abs() < 1e-9);
                (placement.source.left * scale).round() as u32
            });
            starts.collect()
        };
        // The centre, 23.5, is rounded to even.
        assert_eq!(starts(false), [24].into());
        assert_eq!(starts(true), (0..=47).collect());
    }

    #[test]
    fn corners_equal_those_of_torchvision() {
        // From `ten_crop` of torchvision 0.29.2, of an image whose pixels are their positions: image,
        // sample, and the upper left corner of each crop in the image.
        let (across, down) = (Flip::Horizontal, Flip::Vertical);
        type Corners = [(u32, u32); 10];
        let cases: [([u32; 4], Flip, Corners); 3] = [
            (
                [341, 256, 224, 224],
                across,
                [
                    (0, 0),
                    (117, 0),
                    (0, 32),
                    (117, 32),
                    (58, 16),
                    (117, 0),
                    (0, 0),
                    (117, 32),
                    (0, 32),
                    (59, 16),
                ],
            ),
            (
                [7, 10, 4, 5],
                down,
                [(0, 0), (3, 0), (0, 5), (3, 5), (2, 2), (0, 5), (3, 5), (0, 0), (3, 0), (2, 3)],
            ),
            (
                [9, 6, 4, 3],
                across,
                [(0, 0), (5, 0), (0, 3), (5, 3), (2, 2), (5, 0), (0, 0), (5, 3), (0, 3), (3, 2)],
            ),
        ];
        for ([w, h, cw, ch], flip, corners) in cases {
            let (image, sample) = (Size::new(w, h), Size::new(cw, ch));
            for (flipped, count) in [(None, 5), (Some(flip), 10)] {
                let crop = Crop::Corners { covering: None, flipped };
                let found: Vec<_> = crop.parts(image, sample).unwrap().collect();
                let expected = corners[..count].iter().enumerate().map(|(at, &(left, top))| {
                    let rect = Rect { left, top, width: cw, height: ch };
                    (rect, if at < 5 { None } else { flipped })
                });
                assert_eq!(found, expected.collect::<Vec<_>>());
                assert_eq!(crop.count(), Some(count));
            }
        }
        let crop = Crop::Corners { covering: Some(square(256)), flipped: None };
        assert_eq!(crop.resized(Size::new(500, 375)), Size::new(341, 256));
        let error = crop.parts(square(20), Size::new(20, 21)).err().unwrap();
        assert!(error.to_string().contains("do not fit into the resized image of 20"), "{error}");
    }

    #[test]
    fn invalid_crops_are_rejected() {
        let valid = |crop: Crop| crop.validate(Size::new(8, 9)).is_ok();
        assert!(valid(Crop::Random { padding: 7, fill: BLACK }));
        assert!(!valid(Crop::Random { padding: 8, fill: BLACK }));
        assert!(!valid(Crop::ResizedCenter { covering: Size::new(0, 4) }));
        assert!(!valid(Crop::Corners { covering: Some(Size::new(0, 4)), flipped: None }));
        let resize =
            |shorter, longest, multiple_of| valid(Crop::Resize { shorter, longest, multiple_of });
        assert!(resize(None, None, 1) && resize(Some(1 << 20), Some(1), 32));
        assert!(!resize(Some(0), None, 1) && !resize(None, Some(0), 1) && !resize(None, None, 0));
        let scaled = |shorter| valid(Crop::RandomScaled { shorter, fill: BLACK });
        assert!(scaled((1, 1 << 20)));
        assert!(!scaled((0, 4)) && !scaled((4, 3)) && !scaled((4, (1 << 20) + 1)));
        let part = |area, aspect| valid(Crop::RandomResized { area, aspect });
        assert!(part((0.1, 1.0), (1.0, 1.0)));
        assert!(!part((0.0, 1.0), (1.0, 1.0)));
        assert!(!part((0.5, 0.4), (1.0, 1.0)));
        assert!(!part((0.5, f64::NAN), (1.0, 1.0)));
        assert!(!part((0.5, 0.5), (-1.0, 1.0)));
        let reversed = Crop::RandomResized { area: (0.5, 0.4), aspect: (1.0, 1.0) };
        let error = reversed.validate(Size::new(8, 9)).unwrap_err().to_string();
        assert!(error.contains("area range 0.5 to 0.4 is empty"), "{error}");
    }

    #[test]
    fn mode_names_round_trip() {
        for mode in [Mode::Eval, Mode::Train] {
            assert_eq!(mode.to_string().parse::<Mode>().unwrap(), mode);
        }
        assert!("Train".parse::<Mode>().is_err());
    }

    #[test]
    fn an_image_without_a_fitting_crop_uses_its_centre() {
        let bounds =
            |width, height| place(Crop::TRAIN, Size::new(width, height), square(8), 0).bounds;
        assert_eq!(bounds(1000, 10), Rect { left: 493, top: 0, width: 13, height: 10 });
        assert_eq!(bounds(10, 1000), Rect { left: 0, top: 493, width: 10, height: 13 });
        // If the aspect ratio of the image is in the range, the crop is the whole image.
        let whole = Crop::RandomResized { area: (2.0, 2.0), aspect: (0.5, 2.0) };
        let image = Size::new(40, 30);
        assert_eq!(place(whole, image, square(8), 0).bounds, Rect::full(image));
    }

    /// The crops of 4000 samples of a 400 x 300 image.
    fn parts(area: (f64, f64), aspect: (f64, f64)) -> Vec<Rect> {
        let crop = Crop::RandomResized { area, aspect };
        (0..4000).map(|seed| place(crop, Size::new(400, 300), square(8), seed).bounds).collect()
    }

    fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
        let count = values.len() as f64;
        values.sum::<f64>() / count
    }

    #[test]
    fn random_crops_are_uniform_in_area_aspect_and_position() {
        // Every drawn crop fits, so no crop is drawn again.
        let (area, aspect) = ((0.1, 0.3), (0.5, 2.0));
        let parts = parts(area, aspect);
        let areas = || parts.iter().map(|it| it.size().pixels() as f64 / 120_000.0);
        // Tolerances are at least five standard deviations of a mean of 4000.
        assert!((mean(areas()) - 0.2).abs() < 0.005);
        assert!(areas().any(|it| it < 0.101) && areas().any(|it| it > 0.299));
        assert!(areas().all(|it| (0.098..0.302).contains(&it)));
        let aspects = parts.iter().map(|it| f64::from(it.width) / f64::from(it.height));
        assert!(mean(aspects.map(f64::ln)).abs() < 0.04);
        let places = |place: fn(&Rect) -> (u32, u32)| {
            let shares = parts.iter().map(place).map(|(at, most)| f64::from(at) / f64::from(most));
            let shares: Vec<f64> = shares.collect();
            assert!((mean(shares.iter().copied()) - 0.5).abs() < 0.025);
            assert!(shares.contains(&0.0) && shares.contains(&1.0));
        };
        places(|part| (part.left, 400 - part.width));
        places(|part| (part.top, 300 - part.height));
    }

    #[test]
    fn crops_that_do_not_fit_are_redrawn() {
        // More than half of the drawn crops do not fit. The probability that ten draws in sequence
        // do not fit is 1/200.
        let parts = parts((0.5, 1.0), (0.5, 2.0));
        let whole = parts.iter().filter(|it| it.size().pixels() == 120_000).count();
        assert!(whole < 100, "{whole}");
    }

    #[test]
    fn draws_of_a_seed_never_change() {
        // Runs that were saved by older builds must resume with the same crops: area, aspect ratio,
        // top and left are drawn in this order, and sides are rounded to the nearest integer.
        let parts = parts((0.1, 0.3), (0.5, 2.0));
        for (seed, &part) in (0..100).zip(&parts) {
            let mut rng = SampleRng::new(seed, SampleId::default(), "t");
            let target = 120_000.0 * rng.range(0.1, 0.3);
            let aspect = rng.range(0.5_f64.ln(), 2.0_f64.ln()).exp();
            let [width, height] = [target * aspect, target / aspect];
            let [width, height] = [width, height].map(|square| square.sqrt().round() as u32);
            let top = rng.below(u64::from(300 - height) + 1) as u32;
            let left = rng.below(u64::from(400 - width) + 1) as u32;
            assert_eq!(part, Rect { left, top, width, height }, "{seed}");
        }
    }

    proptest! {
        #[test]
        fn placements_lie_inside_image_and_sample(
            w in 1u32..3000, h in 1u32..3000, sample in (1u32..600, 1u32..600), seed: u64,
            crop in 0usize..9, padding: u32,
        ) {
            let image = Size::new(w, h);
            let sample = Size::new(sample.0, sample.1);
            let padding = padding % sample.width.min(sample.height);
            let fill = BLACK;
            let crop = [
                Crop::eval(sample), Crop::TRAIN, Crop::Stretch, Crop::Letterbox { fill },
                Crop::Center { fill }, Crop::Random { padding, fill },
                Crop::RandomScaled { shorter: (1, padding + 1), fill },
                Crop::Cover { random: false }, Crop::Cover { random: true },
            ][crop];
            crop.validate(sample).unwrap();
            let Placement { source, bounds, target, .. } = place(crop, image, sample, seed);
            prop_assert!(bounds.is_within(image));
            prop_assert!(target.is_within(sample));
            prop_assert!(source.width > 0.0 && source.height > 0.0);
            prop_assert!(source.left >= 0.0 && source.top >= 0.0);
            prop_assert!(source.left + source.width <= f64::from(w) * (1.0 + 1e-12));
            prop_assert!(source.top + source.height <= f64::from(h) * (1.0 + 1e-12));
        }

        #[test]
        fn random_crops_keep_their_bounds(w in 1u32..3000, h in 1u32..3000, seed: u64) {
            let image = Size::new(w, h);
            let crop = place(Crop::TRAIN, image, square(7), seed).bounds;
            prop_assert!(crop.is_within(image));
            // Rounding changes each side by up to half a pixel, which matters for small images.
            let (cw, ch) = (f64::from(crop.width), f64::from(crop.height));
            prop_assert!((cw + 0.5) * (ch + 0.5) >= 0.08 * image.pixels() as f64
                || (cw + 0.5) / (ch - 0.5) >= 4.0 / 3.0 || (cw - 0.5) / (ch + 0.5) <= 3.0 / 4.0);
            prop_assert!((cw - 0.5) / (ch + 0.5) <= 4.0 / 3.0);
            prop_assert!(ch < 1.0 || (cw + 0.5) / (ch - 0.5) >= 3.0 / 4.0);
        }
    }
}
