//! A random canvas around an image, and a random part of it that shows boxes, before the resize.

use spdl_core::{Error, ErrorKind, Result, SampleRng};

use super::crop::Placement;
use crate::image::{CropBox, Rect, Size};

/// The intersection over union of 1 or more that leaves the image as it is.
const WHOLE: f64 = 1.0;
/// The maximum number of minimum overlaps that are drawn for an image.
const ROUNDS: u32 = 50;
/// The largest side of a canvas, as a multiple of the side of the image.
const MAX_SIDE: f64 = 100.0;

/// Places the image at a random position on a larger canvas, as torchvision's `RandomZoomOut`, so that objects are
/// small after the resize. Used by [`ImageTransform::zoom_out`](crate::ImageTransform::zoom_out).
///
/// The sides of the canvas are those of the image times one uniform random factor; the position is uniform. Sides and
/// position are truncated to whole pixels.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomZoomOut {
    sides: (f64, f64),
    probability: f64,
    fill: [u8; 3],
}

/// Crops a random part whose overlap with a box is at least a random minimum, as torchvision's `RandomIoUCrop`. Used by
/// [`ImageTransform::iou_crop`](crate::ImageTransform::iou_crop).
///
/// The overlap of a box and a part is their intersection over union. First, the minimum is drawn from a list; 1 or more
/// leaves the image as it is. Then parts are drawn until one has an aspect ratio in range, the centre of a box, and enough
/// overlap with a box whose centre is inside. After a number of trials, another minimum is drawn. An image without
/// boxes, or without a part after 50 minimums, is left as it is.
///
/// Boxes whose centres are outside the part are dropped.
#[derive(Clone, Debug, PartialEq)]
pub struct RandomIouCrop {
    scale: (f64, f64),
    aspect: (f64, f64),
    overlaps: Vec<f64>,
    trials: u32,
}

/// A part of the canvas around an upright image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CanvasPart {
    /// The upper left corner in pixels of the image; negative outside of it.
    left: i64,
    top: i64,
    pub(crate) size: Size,
    /// Whether boxes whose centres are outside are dropped.
    is_cropped: bool,
}

/// A part of the canvas, and its place in a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PlacedPart {
    part: CanvasPart,
    pub(crate) x: CanvasAxis,
    pub(crate) y: CanvasAxis,
}

/// One axis of a part in a sample, before flips.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CanvasAxis {
    /// The position in the image at which the part begins.
    pub(crate) source: f64,
    /// Pixels of the sample for each pixel of the image.
    pub(crate) scale: f64,
    /// The position in the sample at which the part begins.
    pub(crate) target: f64,
    /// The interval of the sample that shows the image.
    pub(crate) shown: (f64, f64),
    /// The pixels of the image that are inside the part: the first, and their number.
    bounds: (u32, u32),
    /// The pixels of the sample whose centres show the image: the first, and their number.
    pixels: (u32, u32),
}

impl RandomZoomOut {
    /// Sides of 1 to 4 times those of the image, with probability ½, on black.
    #[allow(clippy::new_without_default, reason = "as the augmentations")]
    pub fn new() -> Self {
        RandomZoomOut { sides: (1.0, 4.0), probability: 0.5, fill: [0; 3] }
    }

    /// The range of the factor of the sides, 1 to 100. Default: 1 to 4.
    #[must_use]
    pub fn sides_between(mut self, low: f64, high: f64) -> Self {
        self.sides = (low, high);
        self
    }

    /// The probability, 0 to 1. Default: 0.5.
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    /// The colour of the canvas: red, green, blue. Default: black.
    #[must_use]
    pub fn fill(mut self, fill: [u8; 3]) -> Self {
        self.fill = fill;
        self
    }

    pub(crate) fn color(&self) -> [u8; 3] {
        self.fill
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let (low, high) = self.sides;
        let is_valid = 1.0 <= low && low <= high && high <= MAX_SIDE;
        if is_valid && (0.0..=1.0).contains(&self.probability) {
            return Ok(());
        }
        Err(invalid(format!(
            "invalid {self:?}: expected sides from 1 to {MAX_SIDE} in order, and a probability from 0 to 1"
        )))
    }

    pub(crate) fn draw(&self, image: Size, rng: &mut SampleRng) -> CanvasPart {
        if !rng.chance(self.probability) {
            return CanvasPart::whole(image);
        }
        self.canvas(image, [rng.unit(), rng.unit(), rng.unit()])
    }

    /// The canvas for three numbers in `[0, 1)`: its size, and the horizontal and vertical position of the image.
    fn canvas(&self, image: Size, [side, x, y]: [f64; 3]) -> CanvasPart {
        let factor = self.sides.0 + side * (self.sides.1 - self.sides.0);
        let axis = |side: u32, at: f64| {
            let longer = ((f64::from(side) * factor) as u32).max(side);
            (-((f64::from(longer - side) * at) as i64), longer)
        };
        let ((left, width), (top, height)) = (axis(image.width, x), axis(image.height, y));
        CanvasPart { left, top, size: Size::new(width, height), is_cropped: false }
    }
}

impl RandomIouCrop {
    /// Sides of 0.3 to 1 of those of the image, aspect ratios of ½ to 2 (width ÷ height), minimum overlaps of 0, 0.1, 0.3,
    /// 0.5, 0.7, 0.9 and 1, and 40 trials.
    #[allow(clippy::new_without_default, reason = "as the augmentations")]
    pub fn new() -> Self {
        RandomIouCrop {
            scale: (0.3, 1.0),
            aspect: (0.5, 2.0),
            overlaps: vec![0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0],
            trials: 40,
        }
    }

    /// The range of the sides, as fractions of those of the image, above 0 to 1. Default: 0.3 to 1.
    #[must_use]
    pub fn scale_between(mut self, low: f64, high: f64) -> Self {
        self.scale = (low, high);
        self
    }

    /// The range of width ÷ height of the part in pixels, above 0. Default: ½ to 2.
    #[must_use]
    pub fn aspect_between(mut self, low: f64, high: f64) -> Self {
        self.aspect = (low, high);
        self
    }

    /// The minimum overlaps, at least 0; at least one. Default: 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
    #[must_use]
    pub fn overlaps(mut self, overlaps: impl IntoIterator<Item = f64>) -> Self {
        self.overlaps = overlaps.into_iter().collect();
        self
    }

    /// The number of parts that are drawn for a minimum overlap, 1 to 10,000. Default: 40.
    #[must_use]
    pub fn trials(mut self, trials: u32) -> Self {
        self.trials = trials;
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let ((least, most), (narrow, wide)) = (self.scale, self.aspect);
        let expected = if !(0.0 < least && least <= most && most <= 1.0) {
            "a range of sides above 0 up to 1, in order"
        } else if !(0.0 < narrow && narrow <= wide && wide.is_finite()) {
            "a range of finite aspect ratios above 0, in order"
        } else if self.overlaps.is_empty()
            || !self.overlaps.iter().all(|&overlap| (0.0..f64::INFINITY).contains(&overlap))
        {
            "one or more finite minimum overlaps of at least 0"
        } else if !(1..=10_000).contains(&self.trials) {
            "1 to 10,000 trials"
        } else {
            return Ok(());
        };
        Err(invalid(format!("invalid {self:?}: expected {expected}")))
    }

    /// Draws a part. `boxes` are left, top, right and bottom in pixels of the image, and inside of it.
    pub(crate) fn draw(
        &self,
        canvas: CanvasPart,
        boxes: &[[f64; 4]],
        rng: &mut SampleRng,
    ) -> CanvasPart {
        if boxes.is_empty() {
            return canvas;
        }
        for _ in 0..ROUNDS {
            let overlap = self.overlaps[rng.below(self.overlaps.len() as u64) as usize];
            if overlap >= WHOLE {
                return canvas;
            }
            for _ in 0..self.trials {
                let Some(size) = self.size(canvas.size, [rng.unit(), rng.unit()]) else { continue };
                let part = canvas.part(size, [rng.unit(), rng.unit()]);
                if part.shows(boxes, overlap) {
                    return part;
                }
            }
        }
        canvas
    }

    /// The size of a part for two numbers in `[0, 1)`; `None` if its aspect ratio is out of range.
    fn size(&self, canvas: Size, [width, height]: [f64; 2]) -> Option<Size> {
        let (least, most) = self.scale;
        let side = |side: u32, at: f64| (f64::from(side) * (least + (most - least) * at)) as u32;
        let size = Size::new(side(canvas.width, width), side(canvas.height, height));
        let aspect = f64::from(size.width) / f64::from(size.height);
        let is_valid = size.pixels() > 0 && self.aspect.0 <= aspect && aspect <= self.aspect.1;
        is_valid.then_some(size)
    }
}

impl CanvasPart {
    /// The image itself.
    pub(crate) fn whole(image: Size) -> Self {
        CanvasPart { left: 0, top: 0, size: image, is_cropped: false }
    }

    /// A part of this size, at the position for two numbers in `[0, 1)`.
    fn part(&self, size: Size, [x, y]: [f64; 2]) -> Self {
        let start = |side: u32, part: u32, at: f64| (f64::from(side - part) * at) as i64;
        CanvasPart {
            left: self.left + start(self.size.width, size.width, x),
            top: self.top + start(self.size.height, size.height, y),
            size,
            is_cropped: true,
        }
    }

    /// Left, top, right and bottom.
    fn corners(&self) -> [f64; 4] {
        let (right, bottom) =
            (self.left + i64::from(self.size.width), self.top + i64::from(self.size.height));
        [self.left, self.top, right, bottom].map(|side| side as f64)
    }

    /// Whether the centre of a box is inside.
    fn has_center_of(&self, [left, top, right, bottom]: [f64; 4]) -> bool {
        let own = self.corners();
        let (x, y) = (f64::midpoint(left, right), f64::midpoint(top, bottom));
        own[0] < x && x < own[2] && own[1] < y && y < own[3]
    }

    /// Whether a box has its centre inside, and at least this intersection over union.
    fn shows(&self, boxes: &[[f64; 4]], overlap: f64) -> bool {
        let own = self.corners();
        let area = |[left, top, right, bottom]: [f64; 4]| {
            (right - left).max(0.0) * (bottom - top).max(0.0)
        };
        boxes.iter().filter(|one| self.has_center_of(**one)).any(|&[left, top, right, bottom]| {
            let common =
                area([left.max(own[0]), top.max(own[1]), right.min(own[2]), bottom.min(own[3])]);
            common >= overlap * (area(own) + area([left, top, right, bottom]) - common)
        })
    }

    /// The place of the part in a sample, given the placement of an image of its size; and the placement of the image
    /// itself.
    pub(crate) fn place(self, image: Size, placement: Placement) -> (Placement, PlacedPart) {
        let Rect { left, top, width, height } = placement.target;
        let x = CanvasAxis::new(self.left, self.size.width, image.width, (left, width));
        let y = CanvasAxis::new(self.top, self.size.height, image.height, (top, height));
        let (source_x, source_y) = (x.image_position_of_pixels(), y.image_position_of_pixels());
        let placement = Placement {
            source: CropBox {
                left: source_x.0,
                top: source_y.0,
                width: source_x.1,
                height: source_y.1,
            },
            bounds: Rect {
                left: x.bounds.0,
                top: y.bounds.0,
                width: x.bounds.1,
                height: y.bounds.1,
            },
            target: Rect {
                left: x.pixels.0,
                top: y.pixels.0,
                width: x.pixels.1,
                height: y.pixels.1,
            },
            ..placement
        };
        (placement, PlacedPart { part: self, x, y })
    }
}

#[cfg(feature = "records")]
impl PlacedPart {
    /// Whether a box, with corners in pixels of the image and inside of it, is dropped: its centre was cropped.
    pub(crate) fn drops(&self, corners: [f64; 4]) -> bool {
        self.part.is_cropped && !self.part.has_center_of(corners)
    }
}

impl CanvasAxis {
    /// A part of `side` pixels that begins at `start`, resized to `target`: the first pixel, and their number.
    fn new(start: i64, side: u32, image: u32, target: (u32, u32)) -> Self {
        let clamped = |at: i64, least: u32| at.clamp(least.into(), image.into()) as u32;
        let first = clamped(start, 0).min(image.saturating_sub(1));
        let end = clamped(start.saturating_add(side.into()), first + 1);
        let mut axis = CanvasAxis {
            source: start as f64,
            scale: f64::from(target.1) / f64::from(side),
            target: target.0.into(),
            shown: (0.0, 0.0),
            bounds: (first, end - first),
            pixels: target,
        };
        axis.shown = (axis.position(first.into()), axis.position(end.into()));
        // A pixel shows what is at its centre.
        let pixel = |at: f64| ((at - 0.5).ceil() as u32).clamp(target.0, target.0 + target.1);
        let first = pixel(axis.shown.0).min(target.0 + target.1 - 1);
        // At least one pixel, also of an image between the centres of two.
        axis.pixels = (first, pixel(axis.shown.1).max(first + 1) - first);
        axis
    }

    /// The position in the sample of a position in the image.
    fn position(&self, at: f64) -> f64 {
        (at - self.source) * self.scale + self.target
    }

    /// The start and the length of the interval of the image that the pixels show. It can exceed the image by half a
    /// pixel of the sample.
    fn image_position_of_pixels(&self) -> (f64, f64) {
        let (first, count) = self.pixels;
        ((f64::from(first) - self.target) / self.scale + self.source, f64::from(count) / self.scale)
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
pub(crate) mod tests {
    use spdl_core::SampleId;

    use super::*;

    fn rng(seed: u64) -> SampleRng {
        SampleRng::new(seed, SampleId::default(), "t")
    }

    /// The cases of `tests/golden/make_canvas_golden.py`: results of torchvision.
    #[cfg(feature = "records")]
    pub(crate) fn golden() -> Vec<(serde_json::Value, CanvasPart)> {
        let text = include_str!("../../tests/golden/canvas.json");
        let cases: Vec<serde_json::Value> = serde_json::from_str(text).unwrap();
        assert!(cases.len() >= 36);
        cases.into_iter().map(|case| (case.clone(), replayed(&case))).collect()
    }

    /// The part for the random numbers that torchvision drew.
    #[cfg(feature = "records")]
    fn replayed(case: &serde_json::Value) -> CanvasPart {
        let numbers = |name: &str| -> Vec<f64> {
            let values = case[name].as_array().unwrap().iter();
            values.map(|value| value.as_f64().unwrap()).collect()
        };
        let image = numbers("image");
        let image = Size::new(image[0] as u32, image[1] as u32);
        let canvas = match numbers("zoom")[..] {
            [side, x, y] => RandomZoomOut::new().canvas(image, [side, x, y]),
            _ => CanvasPart::whole(image),
        };
        let boxes: Vec<[f64; 4]> = serde_json::from_value(case["boxes"].clone()).unwrap();
        let (crop, overlap) = (RandomIouCrop::new(), case["overlap"].as_f64().unwrap());
        let trials = numbers("trials");
        let mut drawn = trials.iter().copied();
        let mut part = canvas;
        while drawn.len() > 0 {
            let mut pair = || [drawn.next().unwrap(), drawn.next().unwrap()];
            let Some(size) = crop.size(canvas.size, pair()) else { continue };
            part = canvas.part(size, pair());
            // torchvision stops at the first part that shows a box.
            assert_eq!(part.shows(&boxes, overlap), drawn.len() == 0);
        }
        part
    }

    // promise: IMG8
    #[cfg(feature = "records")]
    #[test]
    fn parameters_equal_those_of_torchvision() {
        for (case, part) in golden() {
            let found =
                [part.left, part.top, i64::from(part.size.width), i64::from(part.size.height)];
            assert_eq!(serde_json::json!(found), case["part"]);
            assert_eq!(part.is_cropped, case["trials"] != serde_json::json!([]));
        }
    }

    #[test]
    fn canvases_have_uniform_sides_and_positions() {
        let (image, zoom_out) = (Size::new(100, 50), RandomZoomOut::new().probability(0.75));
        let parts: Vec<_> = (0..4000).map(|seed| zoom_out.draw(image, &mut rng(seed))).collect();
        let zoomed: Vec<_> = parts.iter().filter(|part| part.size != image).collect();
        // 3,000 ± 5 standard deviations of 27.
        assert!((2863..=3137).contains(&zoomed.len()), "{}", zoomed.len());
        let mean = |of: &dyn Fn(&CanvasPart) -> f64| {
            zoomed.iter().map(|part| of(part)).sum::<f64>() / zoomed.len() as f64
        };
        // Tolerances are at least five standard deviations.
        assert!((mean(&|part| f64::from(part.size.width)) - 250.0).abs() < 8.0);
        let share =
            |at: i64, side: u32, image: u32| (0.5 - at as f64) / f64::from((side - image).max(1));
        assert!((mean(&|part| share(part.left, part.size.width, 100)) - 0.5).abs() < 0.03);
        assert!((mean(&|part| share(part.top, part.size.height, 50)) - 0.5).abs() < 0.03);
        for part in zoomed {
            assert!((100..=400).contains(&part.size.width) && !part.is_cropped);
            assert!((f64::from(part.size.width) / f64::from(part.size.height) - 2.0).abs() < 0.05);
            assert!(part.left <= 0 && part.left + i64::from(part.size.width) >= 100);
        }
    }

    #[test]
    fn parts_satisfy_the_drawn_conditions() {
        let canvas = RandomZoomOut::new().canvas(Size::new(120, 90), [0.2, 0.5, 0.25]);
        let boxes = [[10.0, 5.0, 40.0, 45.0], [70.0, 50.0, 110.0, 85.0]];
        let crop = RandomIouCrop::new().overlaps([0.3, 2.0]).scale_between(0.2, 0.9);
        let (mut whole, mut parts) = (0, 0);
        for seed in 0..1000 {
            let part = crop.draw(canvas, &boxes, &mut rng(seed));
            if part == canvas {
                whole += 1;
                continue;
            }
            parts += 1;
            assert!(part.is_cropped && part.shows(&boxes, 0.3));
            let [left, top, right, bottom] = part.corners();
            let [from_left, from_top, to_right, to_bottom] = canvas.corners();
            assert!(
                left >= from_left && top >= from_top && right <= to_right && bottom <= to_bottom
            );
            let (width, height) = (f64::from(part.size.width), f64::from(part.size.height));
            assert!((0.5..=2.0).contains(&(width / height)));
            assert!((0.19..=0.9).contains(&(width / f64::from(canvas.size.width))));
        }
        // Half of the minimum overlaps leave the image as it is.
        assert!(whole > 400 && parts > 50, "{whole} {parts}");
        // Without boxes, or if no part is possible.
        assert_eq!(crop.draw(canvas, &[], &mut rng(1)), canvas);
        let impossible = RandomIouCrop::new().overlaps([0.9]).scale_between(0.1, 0.2).trials(3);
        assert_eq!(impossible.draw(canvas, &boxes, &mut rng(1)), canvas);
    }

    #[test]
    fn an_image_of_a_fraction_of_a_pixel_has_one_pixel() {
        let sample = Size::new(4, 4);
        for left in 0..=396 {
            let part = CanvasPart {
                left: -left,
                top: -left,
                size: Size::new(400, 400),
                is_cropped: false,
            };
            let image = Size::new(4, 4);
            let (placement, _) = part.place(image, Placement::part(Rect::full(part.size), sample));
            assert_eq!(placement.target.size(), Size::new(1, 1));
            assert!(placement.target.is_within(sample) && placement.bounds == Rect::full(image));
        }
    }

    #[test]
    fn invalid_settings_are_rejected() {
        let zoom_out = RandomZoomOut::new;
        assert!(zoom_out().sides_between(1.0, 100.0).probability(0.0).validate().is_ok());
        for (low, high) in [(0.9, 2.0), (3.0, 2.0), (1.0, 101.0), (f64::NAN, 2.0)] {
            assert!(zoom_out().sides_between(low, high).validate().is_err());
        }
        assert!(zoom_out().probability(1.1).validate().is_err());
        let crop = RandomIouCrop::new;
        assert!(crop().validate().is_ok());
        for (low, high) in [(0.0, 1.0), (0.5, 0.4), (0.5, 1.1), (f64::NAN, 1.0)] {
            assert!(crop().scale_between(low, high).validate().is_err());
        }
        for (low, high) in [(0.0, 1.0), (2.0, 1.0), (1.0, f64::INFINITY)] {
            assert!(crop().aspect_between(low, high).validate().is_err());
        }
        assert!(crop().overlaps([]).validate().is_err());
        assert!(crop().overlaps([-0.1]).validate().is_err());
        assert!(crop().trials(0).validate().is_err() && crop().trials(10_001).validate().is_err());
    }
}
