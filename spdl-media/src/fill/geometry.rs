//! Boxes and key points that follow the crop, resize, flips and warps of an image.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use spdl_core::{Error, ErrorKind, Result};
use spdl_io::Key;

use super::image::Written;
use super::numbers::Numbers;
#[cfg(feature = "augment")]
pub(super) use crate::augment::functional::Warp;
use crate::image::Size;
use crate::transform::CanvasAxis;

/// Without augmentations, there are none.
#[cfg(not(feature = "augment"))]
#[derive(Clone, Copy, Debug)]
pub(super) enum NoWarp {}

#[cfg(not(feature = "augment"))]
pub(super) use NoWarp as Warp;

#[cfg(not(feature = "augment"))]
impl NoWarp {
    fn is_affine(&self) -> bool {
        match *self {}
    }

    fn position(&self, _: [f64; 2]) -> [f64; 2] {
        match *self {}
    }

    #[cfg(feature = "png")]
    pub(super) fn nearest<T: Copy>(&self, _: &[T], _: &mut [T], _: T) {
        match *self {}
    }
}

/// How the image of a sample was written.
#[derive(Debug)]
pub(super) struct ImageGeometry {
    pub(super) written: Written,
    /// The geometric operations of its augmentations, in order.
    pub(super) warps: Vec<Warp>,
}

/// What the four numbers of a box mean.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BoxFormat {
    /// Left, top, right, bottom.
    #[default]
    Xyxy,
    /// Left, top, width, height, as in COCO.
    Xywh,
    /// Centre, width, height.
    Cxcywh,
}

/// Boxes that follow an image: see [`SampleField::boxes`](super::SampleField::boxes).
///
/// Coordinates are in pixels of the upright image, counted from its upper left corner, or fractions
/// of its sides. The boxes of the batch have the same format and unit, in the sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Boxes {
    pub(super) like: Arc<str>,
    format: BoxFormat,
    is_normalized: bool,
    min_area: f64,
    min_visibility: f64,
    /// The stored field with a number for each box, which is not 0 for boxes that are dropped.
    pub(super) drop_where: Option<Arc<str>>,
    /// Whether samples without stored boxes are dropped.
    pub(super) drops_empty: bool,
    unit: BoxUnit,
}

/// Whether stored boxes that should be in pixels are fractions. Clones share the result.
#[derive(Clone, Default)]
struct BoxUnit(Arc<SharedBoxUnit>);

#[derive(Default)]
struct SharedBoxUnit {
    is_known: AtomicBool,
    /// The key of the first sample if its boxes are fractions.
    fractional: Mutex<Option<Arc<str>>>,
}

/// States contain the settings of fields as text. The result of a run is not a setting.
impl fmt::Debug for BoxUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BoxUnit")
    }
}

impl PartialEq for BoxUnit {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Boxes {
    /// Boxes in the image of the field `like`.
    pub fn like(like: impl Into<Arc<str>>) -> Self {
        Boxes {
            like: like.into(),
            format: BoxFormat::default(),
            is_normalized: false,
            min_area: 0.0,
            min_visibility: 0.0,
            drop_where: None,
            drops_empty: false,
            unit: BoxUnit::default(),
        }
    }

    /// Drops the boxes for which the stored field `name`, with a number for each box, is not 0, such as `crowd` of COCO
    /// annotations. If a sample lacks this field, no box is dropped.
    #[must_use]
    pub fn drop_where(mut self, name: impl Into<Arc<str>>) -> Self {
        self.drop_where = Some(name.into());
        self
    }

    /// Drops samples without boxes, as samples with a
    /// [missing value](spdl_io::records::FieldChoice::drop_missing): those that have none stored, or none after
    /// [`drop_where`](Self::drop_where). Samples whose boxes are all outside the crop are kept.
    #[must_use]
    pub fn drop_empty(mut self) -> Self {
        self.drops_empty = true;
        self
    }

    /// Sets the format. Default: [`BoxFormat::Xyxy`].
    #[must_use]
    pub fn format(mut self, format: BoxFormat) -> Self {
        self.format = format;
        self
    }

    /// Sets whether coordinates are fractions of the sides of the image. Default: pixels.
    #[must_use]
    pub fn normalized(mut self, is_normalized: bool) -> Self {
        self.is_normalized = is_normalized;
        self
    }

    /// Drops boxes of which a smaller area is in the sample, in square pixels of the sample. Default:
    /// 0; boxes without any area in the sample are always dropped.
    #[must_use]
    pub fn min_area(mut self, area: f64) -> Self {
        self.min_area = area;
        self
    }

    /// Drops boxes of which a smaller share of the area is in the sample, 0 to 1. Default: 0.
    #[must_use]
    pub fn min_visibility(mut self, share: f64) -> Self {
        self.min_visibility = share;
        self
    }

    /// Decides whether stored boxes are fractions instead of pixels, from the first sample that has other values than
    /// 0 and 1.
    pub(super) fn check_unit(&self, boxes: &Numbers, key: &Key) {
        let unit = &self.unit.0;
        if self.is_normalized || unit.is_known.load(Ordering::Relaxed) {
            return;
        }
        let values = || (0..boxes.shape().iter().product()).map(|at| boxes.get(at));
        let is_fractional = values().all(|value| (0.0..=1.0).contains(&value));
        if is_fractional && values().all(|value| value.fract() == 0.0) {
            return;
        }
        if !unit.is_known.swap(true, Ordering::Relaxed) && is_fractional {
            let mut found = unit.fractional.lock().unwrap_or_else(PoisonError::into_inner);
            *found = Some(key.display_name());
        }
    }

    /// The key of the first sample if its boxes are fractions that should be pixels; only the first call returns
    /// the key.
    pub(super) fn take_fractional(&self) -> Option<Arc<str>> {
        let unit = &self.unit.0;
        if !unit.is_known.load(Ordering::Relaxed) {
            return None;
        }
        unit.fractional.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Checks the limits.
    pub(super) fn validate(&self) -> Result<()> {
        let Boxes { min_area, min_visibility, .. } = *self;
        if min_area >= 0.0 && min_area.is_finite() && (0.0..=1.0).contains(&min_visibility) {
            return Ok(());
        }
        Err(invalid(format!(
            "invalid limits of boxes: minimum area {min_area}, expected 0 or more; minimum \
             visibility {min_visibility}, expected 0 to 1"
        )))
    }

    /// Moves boxes into the sample, clips them, and drops those that are too small. Writes the
    /// indices of the remaining ones to `kept`.
    ///
    /// # Errors
    /// `InvalidArgument` if the numbers are not boxes, or a box is outside the image.
    pub(super) fn apply(
        &self,
        boxes: &mut Numbers,
        ImageGeometry { written, warps }: &ImageGeometry,
        kept: &mut Vec<usize>,
    ) -> Result<()> {
        kept.clear();
        let count = match *boxes.shape() {
            [count, 4] => count,
            // An empty list.
            [0] => 0,
            ref shape => {
                return Err(invalid(format!(
                    "expected boxes of the shape [*, 4], found {shape:?}"
                )));
            }
        };
        let mapping = Mapping::new(written);
        let image = [f64::from(written.image.width), f64::from(written.image.height)];
        for at in 0..count {
            let values: [f64; 4] = std::array::from_fn(|number| boxes.get(4 * at + number));
            let [left, top, right, bottom] = self.corners(values, written.image);
            if ![left, top, right, bottom].iter().all(|side| side.is_finite())
                || left > right
                || top > bottom
            {
                let expected = match self.format {
                    BoxFormat::Xyxy => "left, top, right, bottom",
                    BoxFormat::Xywh => "left, top, width, height",
                    BoxFormat::Cxcywh => "centre, width, height",
                };
                return Err(invalid(format!(
                    "box {at} is not valid: {values:?}; expected {expected}, or set another format"
                )));
            }
            if left >= image[0] || top >= image[1] || right < 0.0 || bottom < 0.0 {
                return Err(invalid(format!(
                    "box {at} is outside the image of {} pixels: {values:?}",
                    written.image
                )));
            }
            let inside = clipped([left, top, right, bottom], image);
            if written.canvas.is_some_and(|part| part.drops(inside)) {
                continue;
            }
            let moved = self.moved(values, &mapping, written.image, written.size, warps);
            let Some(moved) = moved else { continue };
            for (number, value) in moved.into_iter().enumerate() {
                boxes.set(4 * at + number, value);
            }
            kept.push(at);
        }
        boxes.keep_rows(kept);
        Ok(())
    }

    /// Left, top, right and bottom of the boxes in an image, clipped to it, for the choice of a part of the image. None of
    /// boxes that [`apply`](Self::apply) rejects.
    pub(super) fn all_corners(&self, boxes: &Numbers, image: Size) -> Vec<[f64; 4]> {
        let count = match *boxes.shape() {
            [count, 4] => count,
            _ => return Vec::new(),
        };
        let sides = [f64::from(image.width), f64::from(image.height)];
        let corners = (0..count).map(|at| {
            let values = std::array::from_fn(|number| boxes.get(4 * at + number));
            clipped(self.corners(values, image), sides)
        });
        corners.filter(|corners| corners.iter().all(|side| side.is_finite())).collect()
    }

    /// A box in the sample, clipped; `None` if it is too small.
    pub(super) fn moved(
        &self,
        values: [f64; 4],
        mapping: &Mapping,
        image: Size,
        sample: Size,
        warps: &[Warp],
    ) -> Option<[f64; 4]> {
        let [left, top, right, bottom] = self.corners(values, image);
        let x = mapping.x.interval(left, right);
        let y = mapping.y.interval(top, bottom);
        // The area that the whole box would have.
        let mut whole = (x.1 - x.0) * (y.1 - y.0);
        let (x, y) = (mapping.x.clip(x), mapping.y.clip(y));
        let mut corners = [x.0, y.0, x.1, y.1];
        for warp in warps {
            let before = area(corners);
            let around = enclosing(corners, warp)?;
            whole *= area(around) / before;
            corners = clipped(around, [f64::from(sample.width), f64::from(sample.height)]);
        }
        if !self.is_kept(area(corners), whole) {
            return None;
        }
        Some(self.with_corners(corners, sample))
    }

    /// Whether the visible area reaches both limits; `whole` is the area of the unclipped box.
    pub(super) fn is_kept(&self, visible: f64, whole: f64) -> bool {
        visible > 0.0 && visible >= self.min_area && visible >= self.min_visibility * whole
    }

    /// Left, top, right and bottom of a box in pixels.
    pub(super) fn corners(&self, values: [f64; 4], of: Size) -> [f64; 4] {
        self.to_corners(values, self.unit(of))
    }

    /// The box with these corners in pixels.
    pub(super) fn with_corners(&self, corners: [f64; 4], of: Size) -> [f64; 4] {
        self.of_corners(corners, self.unit(of))
    }

    /// Width and height of the unit of the coordinates in pixels.
    fn unit(&self, of: Size) -> [f64; 2] {
        match self.is_normalized {
            true => [f64::from(of.width), f64::from(of.height)],
            false => [1.0; 2],
        }
    }

    fn to_corners(&self, [a, b, c, d]: [f64; 4], [width, height]: [f64; 2]) -> [f64; 4] {
        let [a, b, c, d] = [a * width, b * height, c * width, d * height];
        match self.format {
            BoxFormat::Xyxy => [a, b, c, d],
            BoxFormat::Xywh => [a, b, a + c, b + d],
            BoxFormat::Cxcywh => [a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0],
        }
    }

    fn of_corners(&self, [a, b, c, d]: [f64; 4], [width, height]: [f64; 2]) -> [f64; 4] {
        let [a, b, c, d] = [a / width, b / height, c / width, d / height];
        match self.format {
            BoxFormat::Xyxy => [a, b, c, d],
            BoxFormat::Xywh => [a, b, c - a, d - b],
            BoxFormat::Cxcywh => [(a + c) / 2.0, (b + d) / 2.0, c - a, d - b],
        }
    }
}

/// A box clipped to an image.
fn clipped([left, top, right, bottom]: [f64; 4], [width, height]: [f64; 2]) -> [f64; 4] {
    [left.max(0.0), top.max(0.0), right.min(width), bottom.min(height)]
}

/// The area of a box with these corners; 0 if it is empty.
fn area([left, top, right, bottom]: [f64; 4]) -> f64 {
    (right - left).max(0.0) * (bottom - top).max(0.0)
}

/// The smallest box around a box that was warped; `None` if the box is empty, or a corner has no
/// position in the result.
fn enclosing(corners: [f64; 4], warp: &Warp) -> Option<[f64; 4]> {
    let [left, top, right, bottom] = corners;
    if area(corners) <= 0.0 {
        return None;
    }
    let moved =
        [[left, top], [right, top], [right, bottom], [left, bottom]].map(|it| warp.position(it));
    if !moved.as_flattened().iter().all(|number| number.is_finite()) {
        return None;
    }
    let least = |axis: usize| moved.iter().fold(f64::INFINITY, |least, it| least.min(it[axis]));
    let most = |axis: usize| moved.iter().fold(f64::NEG_INFINITY, |most, it| most.max(it[axis]));
    Some([least(0), least(1), most(0), most(1)])
}

/// Key points that follow an image: see [`SampleField::points`](super::SampleField::points).
///
/// The last dimension of their numbers holds x and y in pixels of the upright image, and optionally
/// a visibility, as in COCO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Points {
    pub(super) like: Arc<str>,
    mirrored_pairs: Vec<(usize, usize)>,
}

impl Points {
    /// Points in the image of the field `like`.
    pub fn like(like: impl Into<Arc<str>>) -> Self {
        Points { like: like.into(), mirrored_pairs: Vec::new() }
    }

    /// Sets pairs of points that change places if the image is mirrored horizontally, such as the
    /// left and the right eye: indices along the second last dimension. Default: none.
    #[must_use]
    pub fn mirrored_pairs(mut self, pairs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        self.mirrored_pairs = pairs.into_iter().collect();
        self
    }

    /// Moves points into the sample. The visibility of points outside the sample becomes 0.
    ///
    /// # Errors
    /// `InvalidArgument` if the numbers are not points.
    pub(super) fn apply(
        &self,
        points: &mut Numbers,
        ImageGeometry { written, warps }: &ImageGeometry,
    ) -> Result<()> {
        let (width, per_group) = match *points.shape() {
            [.., per_group, width] if width == 2 || width == 3 => (width, per_group),
            [0] => return Ok(()),
            ref shape => {
                return Err(invalid(format!(
                    "expected points of the shape [..., 2] or [..., 3], found {shape:?}"
                )));
            }
        };
        let count = points.shape().iter().product::<usize>() / width;
        let mapping = Mapping::new(written);
        for at in 0..count {
            let [x, y] = [0, 1].map(|number| points.get(width * at + number));
            if !x.is_finite() || !y.is_finite() {
                return Err(invalid(format!("point {at} is not valid: [{x}, {y}]")));
            }
            let mut place = [mapping.x.position(x), mapping.y.position(y)];
            let mut is_shown = mapping.x.contains(place[0]) && mapping.y.contains(place[1]);
            for warp in warps {
                place = warp.position(place);
                let sides = [written.size.width, written.size.height].map(f64::from);
                is_shown &= place.iter().zip(sides).all(|(at, side)| (0.0..=side).contains(at));
            }
            points.set(width * at, place[0]);
            points.set(width * at + 1, place[1]);
            if width == 3 && !is_shown {
                points.set(width * at + 2, 0.0);
            }
        }
        if !written.placement.mirrored || per_group == 0 {
            return Ok(());
        }
        for group in 0..count / per_group {
            for &(a, b) in &self.mirrored_pairs {
                if a.max(b) >= per_group {
                    return Err(invalid(format!(
                        "points {a} and {b} change places, but there are only {per_group}"
                    )));
                }
                for number in 0..width {
                    let [a, b] = [a, b].map(|at| (group * per_group + at) * width + number);
                    points.swap(a, b);
                }
            }
        }
        Ok(())
    }
}

/// Positions in the sample of positions in the image.
pub(super) struct Mapping {
    x: AxisMapping,
    y: AxisMapping,
}

struct AxisMapping {
    /// The start of the resized part of the image.
    source: f64,
    scale: f64,
    /// The position in the sample of this start, before a flip.
    target: f64,
    /// The part of the sample that shows the image, before a flip.
    shown: (f64, f64),
    /// The side of the sample, if the axis is flipped.
    flipped: Option<f64>,
}

impl Mapping {
    pub(super) fn new(written: &Written) -> Self {
        let placement = written.placement;
        let (source, target, size) = (placement.source, placement.target, written.size);
        let axis = |start: f64, length: f64, (first, side): (u32, u32)| {
            let (first, side) = (f64::from(first), f64::from(side));
            AxisMapping {
                source: start,
                scale: side / length,
                target: first,
                shown: (first, first + side),
                flipped: None,
            }
        };
        // Edges of the image on a canvas are between pixels of the sample.
        let of_canvas = |axis: CanvasAxis| {
            let CanvasAxis { source, scale, target, shown, .. } = axis;
            AxisMapping { source, scale, target, shown, flipped: None }
        };
        let (x, y) = match &written.canvas {
            Some(part) => (of_canvas(part.x), of_canvas(part.y)),
            None => (
                axis(source.left, source.width, (target.left, target.width)),
                axis(source.top, source.height, (target.top, target.height)),
            ),
        };
        let flipped = |is_flipped: bool, side: u32| is_flipped.then_some(f64::from(side));
        Mapping {
            x: AxisMapping { flipped: flipped(placement.mirrored, size.width), ..x },
            y: AxisMapping { flipped: flipped(placement.upended, size.height), ..y },
        }
    }
}

impl AxisMapping {
    fn position(&self, at: f64) -> f64 {
        let at = (at - self.source) * self.scale + self.target;
        self.flipped.map_or(at, |side| side - at)
    }

    fn interval(&self, start: f64, end: f64) -> (f64, f64) {
        let (start, end) = (self.position(start), self.position(end));
        (start.min(end), start.max(end))
    }

    /// The part of the sample that shows the image.
    fn shown(&self) -> (f64, f64) {
        let (start, end) = self.shown;
        self.flipped.map_or((start, end), |side| (side - end, side - start))
    }

    fn clip(&self, (start, end): (f64, f64)) -> (f64, f64) {
        let (first, last) = self.shown();
        (start.max(first), end.min(last))
    }

    fn contains(&self, at: f64) -> bool {
        let (first, last) = self.shown();
        (first..=last).contains(&at)
    }
}

/// The rows of the affine map from pixels of the upright image to pixels of the sample.
///
/// # Errors
/// `Unsupported` if a warp is not affine.
pub(super) fn matrix(ImageGeometry { written, warps }: &ImageGeometry) -> Result<[f32; 6]> {
    if !warps.iter().all(Warp::is_affine) {
        let message = "a perspective transform is not an affine map; omit it, or omit this field";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let mapping = Mapping::new(written);
    let moved = |x: f64, y: f64| {
        let place = [mapping.x.position(x), mapping.y.position(y)];
        warps.iter().fold(place, |place, warp| warp.position(place))
    };
    let (origin, across, down) = (moved(0.0, 0.0), moved(1.0, 0.0), moved(0.0, 1.0));
    let row = |axis: usize| {
        let offset = origin[axis];
        [across[axis] - offset, down[axis] - offset, offset].map(|number| number as f32)
    };
    let ([a, b, c], [d, e, f]) = (row(0), row(1));
    Ok([a, b, c, d, e, f])
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::Value;
    use spdl_io::FieldValue;

    use super::*;
    use crate::image::{CropBox, Rect};
    use crate::transform::{Crop, ImageTransform, Placement, canvas_tests as canvas};

    /// The cases of `tests/golden/make_targets_golden.py`: results of torchvision.
    pub(in crate::fill) fn golden() -> Vec<(Value, ImageGeometry)> {
        let text = include_str!("../../tests/golden/targets.json");
        let cases: Vec<Value> = serde_json::from_str(text).unwrap();
        assert!(cases.len() >= 16);
        cases.into_iter().map(|case| (case.clone(), geometry(&case))).collect()
    }

    fn geometry(case: &Value) -> ImageGeometry {
        let numbers = |name: &str| -> Vec<u32> {
            let values = case[name].as_array().unwrap().iter();
            values.map(|value| value.as_u64().unwrap() as u32).collect()
        };
        let (image, crop, size) = (numbers("image"), numbers("crop"), numbers("size"));
        let [left, top, width, height] = crop[..] else { panic!("{crop:?}") };
        let whole = Rect { left: 0, top: 0, width: size[0], height: size[1] };
        let [x, y, across, down] = [left, top, width, height].map(f64::from);
        let written = Written {
            image: Size { width: image[0], height: image[1] },
            placement: Placement {
                source: CropBox { left: x, top: y, width: across, height: down },
                bounds: Rect { left, top, width, height },
                target: whole,
                mirrored: case["mirrored"] == true,
                upended: case["upended"] == true,
            },
            size: Size { width: size[0], height: size[1] },
            valid: whole,
            canvas: None,
        };
        ImageGeometry { written, warps: Vec::new() }
    }

    /// The cases of `tests/golden/make_canvas_golden.py`: results of torchvision.
    pub(in crate::fill) fn canvas_golden() -> Vec<(Value, ImageGeometry)> {
        let with_geometry = |(case, part): (Value, _)| {
            let side = |name: &str, at: usize| case[name][at].as_u64().unwrap() as u32;
            let image = Size::new(side("image", 0), side("image", 1));
            let size = Size::new(side("size", 0), side("size", 1));
            let transform = ImageTransform::with_size(size).crop(Crop::Stretch);
            let (placement, canvas) = transform.place_with(image, Some(part), None);
            let placement = Placement {
                mirrored: case["mirrored"] == true,
                upended: case["upended"] == true,
                ..placement
            };
            let written = Written { image, placement, size, valid: Rect::full(size), canvas };
            (case, ImageGeometry { written, warps: Vec::new() })
        };
        canvas::golden().into_iter().map(with_geometry).collect()
    }

    fn read(value: &Value) -> Numbers {
        let mut numbers = Numbers::default();
        numbers.read(&FieldValue::Json(value.clone())).unwrap();
        numbers
    }

    fn assert_close(found: &Numbers, expected: &Value) {
        let expected = read(expected);
        assert_eq!(found.shape(), expected.shape());
        for at in 0..found.shape().iter().product() {
            let (found, expected) = (found.get(at), expected.get(at));
            assert!((found - expected).abs() < 1e-4, "{found}, expected {expected}");
        }
    }

    #[test]
    fn the_first_sample_with_boxes_shows_whether_they_are_fractions() {
        let fractions = serde_json::json!([[0.1, 0.2, 0.5, 1.0]]);
        let pixels = serde_json::json!([[0.5, 0.5, 1.0, 20.0]]);
        let unknown = [serde_json::json!([]), serde_json::json!([[0, 0, 1, 1]])];
        let found = |boxes: &Boxes, samples: &[&Value]| {
            for (number, sample) in samples.iter().enumerate() {
                boxes.clone().check_unit(&read(sample), &format!("{number}").as_str().into());
            }
            boxes.take_fractional()
        };
        let boxes = Boxes::like("image");
        let settings = format!("{boxes:?}");
        assert_eq!(found(&boxes, &[&unknown[0], &unknown[1], &fractions]).as_deref(), Some("2"));
        // Once.
        assert_eq!(found(&boxes, &[&fractions]), None);
        assert_eq!(format!("{boxes:?}"), settings);
        assert_eq!(found(&Boxes::like("image"), &[&pixels, &fractions]), None);
        assert_eq!(found(&Boxes::like("image").normalized(true), &[&fractions]), None);
    }

    #[test]
    fn boxes_and_points_equal_those_of_torchvision() {
        for (case, geometry) in golden() {
            let (mut boxes, mut kept) = (read(&case["boxes"]), Vec::new());
            Boxes::like("image").apply(&mut boxes, &geometry, &mut kept).unwrap();
            assert_eq!(serde_json::json!(kept), case["kept"]);
            if !kept.is_empty() {
                assert_close(&boxes, &case["moved_boxes"]);
            }
            let mut points = read(&case["points"]);
            Points::like("image").apply(&mut points, &geometry).unwrap();
            assert_close(&points, &case["moved_points"]);
            let stored = read(&case["points"]);
            let [a, b, c, d, e, f] = matrix(&geometry).unwrap().map(f64::from);
            for at in 0..stored.rows() {
                let (x, y) = (stored.get(2 * at), stored.get(2 * at + 1));
                let mapped = [a * x + b * y + c, d * x + e * y + f];
                for (number, mapped) in mapped.into_iter().enumerate() {
                    assert!((mapped - points.get(2 * at + number)).abs() < 1e-4);
                }
            }
        }
    }

    // promise: IMG8
    #[test]
    fn boxes_and_points_on_a_canvas_equal_those_of_torchvision() {
        let mut dropped = 0;
        for (case, mut geometry) in canvas_golden() {
            let (mut boxes, mut kept) = (read(&case["boxes"]), Vec::new());
            Boxes::like("image").apply(&mut boxes, &geometry, &mut kept).unwrap();
            assert_eq!(serde_json::json!(kept), case["kept"], "{case}");
            dropped += case["boxes"].as_array().unwrap().len() - kept.len();
            if !kept.is_empty() {
                assert_close(&boxes, &case["moved_boxes"]);
            }
            let placement = &mut geometry.written.placement;
            (placement.mirrored, placement.upended) = (false, false);
            let stored = read(&case["points"]);
            let mut points = read(&case["points"]);
            Points::like("image").apply(&mut points, &geometry).unwrap();
            let [a, b, c, d, e, f] = matrix(&geometry).unwrap().map(f64::from);
            for at in 0..points.rows() {
                let found = [points.get(2 * at), points.get(2 * at + 1)];
                let (x, y) = (stored.get(2 * at), stored.get(2 * at + 1));
                let mapped = [a * x + b * y + c, d * x + e * y + f];
                for (number, found) in found.into_iter().enumerate() {
                    assert!((mapped[number] - found).abs() < 1e-4);
                    if let Some(expected) = case["moved_points"][at][number].as_f64() {
                        assert!((found - expected).abs() < 1e-4, "{found}, expected {expected}");
                    }
                }
            }
        }
        assert!(dropped > 20, "{dropped}");
    }

    #[cfg(all(feature = "augment", feature = "png"))]
    mod warps {
        use spdl_core::source::Fingerprint;
        use spdl_core::{SampleId, SampleRng};

        use super::*;
        use crate::augment::functional::{self, Affine, Interpolation};
        use crate::augment::{Augment, Augmenter, ImageMut, Scratch};

        /// The operations of a case of `tests/golden/make_warps_golden.py`.
        #[derive(Debug)]
        struct Operations(Value);

        impl Augment for Operations {
            fn apply(
                &self,
                image: &mut ImageMut<'_>,
                _: &mut SampleRng,
                scratch: &mut Scratch,
            ) -> Result<()> {
                let nearest = Interpolation::Nearest;
                for operation in self.0.as_array().unwrap() {
                    let arguments = &operation[1];
                    let number = |name: &str| arguments[name].as_f64().unwrap();
                    let pair = |value: &Value| [0, 1].map(|at| value[at].as_f64().unwrap());
                    let center = &arguments["center"];
                    let center = (!center.is_null()).then(|| pair(center));
                    match operation[0].as_str().unwrap() {
                        "rotate" => {
                            let angle = number("angle");
                            functional::rotate(image, angle, nearest, center, None, scratch)?;
                        }
                        "affine" => {
                            let affine = Affine {
                                angle: number("angle"),
                                translate: pair(&arguments["translate"]),
                                scale: number("scale"),
                                shear: pair(&arguments["shear"]),
                                center,
                            };
                            functional::affine(image, &affine, nearest, None, scratch)?;
                        }
                        _ => {
                            let corners =
                                |name: &str| [0, 1, 2, 3].map(|at| pair(&arguments[name][at]));
                            let (start, end) = (corners("startpoints"), corners("endpoints"));
                            let found = functional::perspective_coefficients(&start, &end)?;
                            functional::perspective(image, &found, nearest, None, scratch)?;
                        }
                    }
                }
                Ok(())
            }

            fn fingerprint(&self) -> Fingerprint {
                Fingerprint::default()
            }
        }

        /// An image that is not cropped or resized, and then warped.
        fn warped(case: &Value) -> ImageGeometry {
            let [width, height] = [0, 1].map(|at| case["size"][at].as_u64().unwrap());
            let one = serde_json::json!({
                "image": [width, height], "crop": [0, 0, width, height], "size": [width, height],
                "mirrored": false, "upended": false,
            });
            let mut geometry = geometry(&one);
            let mut pixels = vec![0; (3 * width * height) as usize];
            let mut image = ImageMut::new(&mut pixels, geometry.written.size).unwrap();
            let mut augmenter = Augmenter::new().then(Operations(case["operations"].clone()));
            let mut rng = SampleRng::new(0, SampleId::default(), "");
            augmenter.apply(&mut image, &mut rng).unwrap();
            geometry.warps = augmenter.warps().to_vec();
            geometry
        }

        #[test]
        fn boxes_points_and_masks_follow_warps_as_in_torchvision() {
            let text = include_str!("../../tests/golden/warps.json");
            let cases: Vec<Value> = serde_json::from_str(text).unwrap();
            assert!(cases.len() >= 36);
            let mut differing = 0;
            for case in cases {
                let geometry = warped(&case);
                let (mut boxes, mut kept) = (read(&case["boxes"]), Vec::new());
                Boxes::like("image").apply(&mut boxes, &geometry, &mut kept).unwrap();
                assert_eq!(serde_json::json!(kept), case["kept"], "{case}");
                if !kept.is_empty() {
                    assert_close(&boxes, &case["moved_boxes"]);
                }
                let mut points = read(&case["points"]);
                Points::like("image").apply(&mut points, &geometry).unwrap();
                assert_close(&points, &case["moved_points"]);
                let mut mask = unhex(&case["mask"]);
                for warp in &geometry.warps {
                    let source = mask.clone();
                    warp.nearest(&source, &mut mask, 200);
                }
                let pairs = mask.into_iter().zip(unhex(&case["moved_mask"]));
                differing += pairs.filter(|(found, expected)| found != expected).count();
            }
            // Halfway between two pixels, after a perspective transform.
            assert_eq!(differing, 1);
        }

        fn unhex(digits: &Value) -> Vec<u8> {
            let digits = digits.as_str().unwrap();
            let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
            (0..digits.len()).step_by(2).map(byte).collect()
        }

        #[test]
        fn a_perspective_transform_has_no_affine_map() {
            let case = serde_json::json!({"size": [8, 8], "operations": [["perspective", {
                "startpoints": [[0, 0], [7, 0], [7, 7], [0, 7]],
                "endpoints": [[1, 0], [7, 0], [7, 6], [0, 7]],
            }]]});
            let error = matrix(&warped(&case)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            let turned =
                serde_json::json!({"size": [8, 6], "operations": [["rotate", {"angle": 180.0}]]});
            let found = matrix(&warped(&turned)).unwrap();
            for (found, expected) in found.into_iter().zip([-1.0, 0.0, 8.0, 0.0, -1.0, 6.0]) {
                assert!((found - expected).abs() < 1e-6, "{found} {expected}");
            }
        }

        #[test]
        fn visibility_counts_what_warps_move_out() {
            // A shift by half of the width: half of the box remains.
            let shift = |columns: i32| {
                let affine = serde_json::json!({"angle": 0.0, "translate": [columns, 0], "scale": 1.0,
                    "shear": [0.0, 0.0], "center": null});
                warped(&serde_json::json!({"size": [8, 8], "operations": [["affine", affine]]}))
            };
            for (share, is_kept) in [(0.49, true), (0.51, false)] {
                let mut boxes = read(&serde_json::json!([[2.0, 2.0, 6.0, 4.0]]));
                let mut kept = Vec::new();
                let field = Boxes::like("image").min_visibility(share);
                field.apply(&mut boxes, &shift(4), &mut kept).unwrap();
                assert_eq!(kept.len(), usize::from(is_kept), "{share}");
            }
            let mut points = read(&serde_json::json!([[2.0, 2.0, 2.0], [6.0, 2.0, 2.0]]));
            Points::like("image").apply(&mut points, &shift(4)).unwrap();
            let found: Vec<f64> = (0..6).map(|at| points.get(at)).collect();
            assert_eq!(found, [6.0, 2.0, 2.0, 10.0, 2.0, 0.0]);
        }
    }
}
