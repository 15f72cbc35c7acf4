//! Resizes a part of a picture to upright planes of the sample's size, with Pillow's filters.
//!
//! Each plane is resized from its own resolution: chroma is not upsampled first. As in Pillow, the
//! upright image is resized horizontally first, rounded to bytes, and then resized vertically.
//! Orientation and flips need no extra pass: the first pass transposes the plane, and flipped axes
//! are written in reverse.
//!
//! | file | content |
//! |---|---|
//! | `filter` | the filters and their weights |
//! | `axis` | the weights of each target position along one axis |
//! | `kernel` | weighted sums and transposition with vector instructions |
//! | `passes` | the two passes over a plane, with bounded memory |

mod axis;
mod filter;
mod kernel;
mod passes;

use fearless_simd::{Level, dispatch};
use spdl_core::{Error, ErrorKind, Result};

pub(crate) use self::axis::AxisTaps;
use self::axis::{Axis, AxisRequest};
pub use self::filter::ResizeFilter;
use self::kernel::padded;
use self::passes::{ResizePasses, ResizeScratch, grow};
use crate::image::{CHANNELS, Retention};
use crate::image::{
    ChromaPosition, ChromaSiting, ColorModel, CropBox, Limits, Orientation, Picture, PlaneShape,
    Rect, Size, YCbCrEncoding,
};

/// A resize of one picture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResizeRequest {
    /// The part of the stored image that becomes the target, in image pixels.
    pub(crate) source: CropBox,
    /// The image pixels that the filter may use.
    pub(crate) bounds: Rect,
    /// The orientation of the stored image.
    pub(crate) orientation: Orientation,
    /// Whether the upright result is flipped horizontally, and vertically.
    pub(crate) mirrored: (bool, bool),
    /// The size of the upright result.
    pub(crate) target: Size,
    pub(crate) filter: ResizeFilter,
}

/// The result: one plane per component, all of the same size.
#[derive(Debug, Default)]
pub(crate) struct ResizedPlanes {
    color: ColorModel,
    encoding: YCbCrEncoding,
    size: Size,
    planes: [Vec<u8>; 3],
}

impl ResizedPlanes {
    /// The colour model; RGB has three planes here.
    pub(crate) fn color(&self) -> ColorModel {
        self.color
    }

    /// The matrix and the range of YCbCr.
    pub(crate) fn encoding(&self) -> YCbCrEncoding {
        self.encoding
    }

    pub(crate) fn size(&self) -> Size {
        self.size
    }

    /// A row of a component, padded to a multiple of 16 bytes.
    pub(crate) fn padded_row(&self, component: usize, row: u32) -> &[u8] {
        let width = self.size.width as usize;
        &self.planes[component][row as usize * padded(width)..][..width.next_multiple_of(16)]
    }
}

/// The maximum number of image pixels per plane position on either axis: 4:1:1, or 4:2:2 decoded at
/// half size.
const MAX_PIXELS_PER_POSITION: f64 = 4.0;

/// The distance from the centre of a target pixel at which the filter may still use image pixels.
/// `scale` is the number of image pixels per target pixel. Subsampled planes extend the distance.
pub(crate) fn filter_reach(scale: f64, filter: ResizeFilter) -> f64 {
    let reduced = |by: &f64| by * filter.min_decode_ratio() <= scale;
    let reduction = [8.0, 4.0, 2.0].into_iter().find(reduced).unwrap_or(1.0);
    filter.support() * scale.max(MAX_PIXELS_PER_POSITION * reduction)
}

/// The image pixels that may influence a resize of `source` to `target` (as stored).
pub(crate) fn needed_region(
    source: CropBox,
    target: Size,
    filter: ResizeFilter,
    image: Size,
) -> Rect {
    let axis = |start: f64, extent: f64, target: u32, limit: u32| {
        let scale = extent / f64::from(target);
        // From the centre of the outermost target pixel, rounded outwards.
        let reach = (filter_reach(scale, filter) - scale / 2.0).max(0.0);
        let limit = f64::from(limit);
        let first = (start - reach).floor().clamp(0.0, limit - 1.0);
        let end = (start + extent + reach).ceil().clamp(first + 1.0, limit);
        (first as u32, (end - first) as u32)
    };
    let (left, width) = axis(source.left, source.width, target.width, image.width);
    let (top, height) = axis(source.top, source.height, target.height, image.height);
    Rect { left, top, width, height }
}

/// Resizes pictures. It keeps scratch memory, and the weights of the last image, which can be
/// reused for the next image if both have the same size.
#[derive(Debug)]
pub(crate) struct Resizer {
    level: Level,
    limits: Limits,
    /// The scratch memory for luma or for all components, and for chroma.
    axes: [Axes; 2],
    scratch: ResizeScratch,
    retention: Retention,
}

/// The axes of the stored picture: horizontal and vertical.
#[derive(Debug, Default)]
struct Axes {
    across: Axis,
    down: Axis,
}

impl Resizer {
    pub(crate) fn new(limits: &Limits) -> Self {
        Resizer {
            level: Level::new(),
            limits: limits.clone(),
            axes: Default::default(),
            scratch: ResizeScratch::default(),
            retention: Retention::default(),
        }
    }

    /// Resizes `picture` into `resized`.
    ///
    /// # Errors
    /// `InvalidArgument` if a plane of the picture has an invalid shape or holds nothing of the
    /// bounds; `LimitExceeded` if scratch memory exceeds the limits, or an allocation fails.
    pub(crate) fn resize(
        &mut self,
        picture: &Picture,
        request: &ResizeRequest,
        resized: &mut ResizedPlanes,
    ) -> Result<()> {
        let color = picture.color();
        let channels = if color == ColorModel::Rgb { CHANNELS } else { 1 };
        for plane in picture.planes() {
            let shape = plane.shape();
            if shape.channels != channels || shape.across == 0 || shape.down == 0 {
                return Err(Error::new(
                    ErrorKind::InvalidArgument,
                    format!("cannot resize a {color:?} picture with a plane of shape {shape:?}"),
                ));
            }
        }
        resized.color = color;
        resized.encoding = picture.encoding();
        resized.size = request.target;
        let target = request.target;
        let bytes = padded(target.width as usize) * target.height as usize;
        let components = if color == ColorModel::Grey { 1 } else { CHANNELS };
        for plane in &mut resized.planes[..components] {
            grow(plane, bytes)?;
        }
        let mut outputs = &mut resized.planes[..components];
        let mut shapes: [Option<PlaneShape>; 2] = [None; 2];
        let mut needed = [0, 0];
        for (at, plane) in picture.planes().iter().enumerate() {
            let shape = plane.shape();
            let kind = at.min(1);
            let is_new = shapes[kind] != Some(shape);
            if is_new {
                self.axes[kind].prepare(&shape, picture, request, &self.limits)?;
                shapes[kind] = Some(shape);
            }
            let Axes { across, down } = &self.axes[kind];
            let (own, rest) = outputs.split_at_mut(shape.channels);
            outputs = rest;
            let swapped = request.orientation.swaps_sides();
            let passes =
                ResizePasses { plane, across, down, swapped, width: target.width as usize };
            if is_new {
                needed[kind] = passes.bytes();
                needed[kind] += across.bytes() + down.bytes();
                self.limits.check_bytes(needed[kind] as u64, picture.image())?;
            }
            let scratch = &mut self.scratch;
            dispatch!(self.level, simd => passes.run(simd, scratch, own))?;
        }
        let held =
            self.axes.iter().map(|Axes { across, down }| across.held_bytes() + down.held_bytes());
        let held = held.sum::<usize>() + self.scratch.held_bytes();
        if self.retention.is_excess(needed[0] + needed[1], held) {
            self.axes = Default::default();
            self.scratch = ResizeScratch::default();
        }
        Ok(())
    }
}

impl Axes {
    fn prepare(
        &mut self,
        shape: &PlaneShape,
        picture: &Picture,
        request: &ResizeRequest,
        limits: &Limits,
    ) -> Result<()> {
        let (from_right, from_bottom) = request.orientation.mirrors();
        let Size { width, height } = request.target;
        let (across, down) = if request.orientation.swaps_sides() {
            let (across, down) = (request.mirrored.1, request.mirrored.0);
            ((height, from_right, across), (width, from_bottom, down))
        } else {
            let (across, down) = request.mirrored;
            ((width, from_right, across), (height, from_bottom, down))
        };
        let CropBox { left, top, width, height } = request.source;
        let (bounds, area) = (request.bounds, shape.area);
        let axis = |start: f64,
                    extent: f64,
                    bounds: (u32, u32),
                    area: (u32, u32),
                    (image, pixels, position): (u32, u32, ChromaPosition),
                    (target, turned, reversed): (u32, bool, bool)| {
            // Rounded outwards: a position counts if any of its pixels does.
            let first = (bounds.0 / pixels).max(area.0);
            let end = bounds
                .0
                .saturating_add(bounds.1)
                .div_ceil(pixels)
                .min(area.0.saturating_add(area.1));
            let is_valid = start.is_finite() && extent > 0.0 && extent.is_finite() && target > 0;
            (first < end && is_valid).then(|| AxisRequest {
                start: start / f64::from(pixels) + position.shift(pixels),
                extent: extent / f64::from(pixels),
                first,
                end,
                origin: area.0,
                target: target as usize,
                filter: request.filter,
                turned: turned.then_some(image.div_ceil(pixels)),
                reversed,
            })
        };
        let ChromaSiting { across: x_position, down: y_position } = picture.siting();
        let across_pixels = (picture.image().width, shape.across, x_position);
        let down_pixels = (picture.image().height, shape.down, y_position);
        let x = (bounds.left, bounds.width);
        let y = (bounds.top, bounds.height);
        let across = axis(left, width, x, (area.left, area.width), across_pixels, across);
        let down = axis(top, height, y, (area.top, area.height), down_pixels, down);
        let (Some(across), Some(down)) = (across, down) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "cannot resize {:?} of an image of {} pixels to {}: a plane of the picture only \
                     holds {area:?}",
                    request.source,
                    picture.image(),
                    request.target
                ),
            ));
        };
        limits.check_bytes(across.bytes().saturating_add(down.bytes()), picture.image())?;
        self.across.prepare(&across);
        self.down.prepare(&down);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The part of a plane that covers a region of the image.
    fn area_of(region: Rect, pixels: u32) -> Rect {
        let axis = |start: u32, extent: u32| {
            (start / pixels, (start + extent).div_ceil(pixels) - start / pixels)
        };
        let (left, width) = axis(region.left, region.width);
        let (top, height) = axis(region.top, region.height);
        Rect { left, top, width, height }
    }

    /// A region of a noise image; each pixel of the image depends only on the seed and its
    /// position.
    fn noise(image: Size, region: Rect, color: ColorModel, chroma: u32, seed: u64) -> Picture {
        let shape = |pixels: u32, channels: usize| {
            let area = area_of(region, pixels);
            let stride = area.width as usize * channels;
            PlaneShape { channels, area, across: pixels, down: pixels, stride }
        };
        let mut picture = Picture::new();
        match color {
            ColorModel::YCbCr => {
                picture.start(image, color, &[shape(1, 1), shape(chroma, 1), shape(chroma, 1)])
            }
            _ => picture.start(image, color, &[shape(1, 3)]),
        }
        .unwrap();
        for (component, plane) in picture.planes_mut().iter_mut().enumerate() {
            let PlaneShape { area, channels, stride, .. } = plane.shape();
            for y in 0..area.height {
                for x in 0..area.width as usize * channels {
                    let place = [
                        component as u64,
                        u64::from(area.top + y),
                        area.left as u64 * channels as u64 + x as u64,
                    ];
                    let hash = place.iter().fold(seed, |hash, part| {
                        (hash ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23)
                    });
                    plane.samples_mut()[y as usize * stride + x] = (hash >> 40) as u8;
                }
            }
        }
        picture
    }

    fn rows(resized: &ResizedPlanes) -> Vec<Vec<u8>> {
        let components = if resized.color == ColorModel::Grey { 1 } else { 3 };
        let width = resized.size.width as usize;
        (0..components)
            .flat_map(|component| {
                (0..resized.size.height)
                    .map(move |row| resized.padded_row(component, row)[..width].to_vec())
            })
            .collect()
    }

    proptest! {
        #[test]
        fn resizing_the_needed_region_equals_resizing_the_image(
            width in 8u32..80, height in 8u32..80, target in (1u32..40, 1u32..40), seed: u64,
            start in (0.0..1.0f64, 0.0..1.0f64), extent in (0.05..1.0f64, 0.05..1.0f64),
            filter in 0usize..5, planes: bool, chroma in 1u32..=4, turn in 0usize..8,
        ) {
            let image = Size::new(width, height);
            let (w, h) = (f64::from(width), f64::from(height));
            let source = CropBox {
                left: start.0 * w,
                top: start.1 * h,
                width: (1.0 - start.0) * extent.0 * w,
                height: (1.0 - start.1) * extent.1 * h,
            };
            let request = ResizeRequest {
                source,
                bounds: Rect::full(image),
                orientation: Orientation::ALL[turn],
                mirrored: (false, false),
                target: Size::new(target.0, target.1),
                filter: ResizeFilter::ALL[filter],
            };
            let stored = request.orientation.apply(request.target);
            let region = needed_region(source, stored, request.filter, image);
            prop_assert!(region.is_within(image));
            let color = if planes { ColorModel::YCbCr } else { ColorModel::Rgb };
            let mut resizer = Resizer::new(&Limits::default());
            let mut resize = |region: Rect| {
                let mut resized = ResizedPlanes::default();
                let picture = noise(image, region, color, chroma, seed);
                resizer.resize(&picture, &request, &mut resized).unwrap();
                rows(&resized)
            };
            let whole = resize(Rect::full(image));
            let found = resize(region);
            let differences = whole.iter().flatten().zip(found.iter().flatten());
            let largest = differences.map(|(a, b)| a.abs_diff(*b)).max();
            // The position of the crop box is rounded.
            prop_assert!(largest <= Some(1), "{:?}", largest);
        }

        #[test]
        fn pixels_outside_the_bounds_have_no_influence(
            width in 8u32..80, height in 8u32..80, target in (1u32..40, 1u32..40), seed: u64,
            corner: (u32, u32), extent: (u32, u32), filter in 0usize..5, planes: bool,
            chroma in 1u32..=4, turn in 0usize..8,
        ) {
            let image = Size::new(width, height);
            let (left, top) = (corner.0 % width, corner.1 % height);
            let bounds = Rect {
                left,
                top,
                width: 1 + extent.0 % (width - left),
                height: 1 + extent.1 % (height - top),
            };
            let request = ResizeRequest {
                source: bounds.into(),
                bounds,
                orientation: Orientation::ALL[turn],
                mirrored: (true, false),
                target: Size::new(target.0, target.1),
                filter: ResizeFilter::ALL[filter],
            };
            let color = if planes { ColorModel::YCbCr } else { ColorModel::Rgb };
            let mut whole = noise(image, Rect::full(image), color, chroma, seed);
            // The second picture has the same pixels inside the bounds, and other pixels outside.
            for plane in whole.planes_mut() {
                let PlaneShape { across, channels, stride, area, .. } = plane.shape();
                let inside = area_of(bounds, across);
                for y in 0..area.height {
                    for x in 0..area.width {
                        let within = x.wrapping_sub(inside.left) < inside.width
                            && y.wrapping_sub(inside.top) < inside.height;
                        let at = y as usize * stride + x as usize * channels;
                        if !within {
                            plane.samples_mut()[at..at + channels].fill(255);
                        }
                    }
                }
            }
            let mut resizer = Resizer::new(&Limits::default());
            let mut resize = |picture: &Picture| {
                let mut resized = ResizedPlanes::default();
                resizer.resize(picture, &request, &mut resized).unwrap();
                rows(&resized)
            };
            let found = resize(&whole);
            let expected = resize(&noise(image, bounds, color, chroma, seed));
            let differences = expected.iter().flatten().zip(found.iter().flatten());
            let largest = differences.map(|(a, b)| a.abs_diff(*b)).max();
            prop_assert!(largest <= Some(1), "{:?}", largest);
        }
    }

    /// Reference implementation of a pass: the weighted sum of lines for each target position.
    fn pass(axis: &Axis, line: impl Fn(usize) -> Vec<u8>) -> Vec<Vec<u8>> {
        let lines: Vec<Vec<u8>> = axis.source.clone().map(line).collect();
        let targets = axis.first_pairs.iter().zip(axis.weights.chunks(axis.pairs));
        targets
            .map(|(&first, weights)| {
                let weights: Vec<i64> = weights
                    .iter()
                    .flat_map(|&pair| [i64::from(pair as i16), i64::from((pair >> 16) as i16)])
                    .collect();
                (0..lines[0].len())
                    .map(|at| {
                        let sources = lines[2 * first as usize..].iter().zip(&weights);
                        let sum: i64 =
                            sources.map(|(line, weight)| i64::from(line[at]) * weight).sum();
                        ((sum + (1 << axis.bits >> 1)) >> axis.bits).clamp(0, 255) as u8
                    })
                    .collect()
            })
            .collect()
    }

    fn transposed(lines: &[Vec<u8>]) -> Vec<Vec<u8>> {
        (0..lines[0].len()).map(|at| lines.iter().map(|line| line[at]).collect()).collect()
    }

    #[test]
    fn rows_between_the_passes_are_kept_long_enough() {
        // These cases enlarge and reduce the picture.
        for (width, height) in [(1300, 90), (90, 1300), (700, 600), (33, 31)] {
            for (target, mirrored) in [((24, 20), false), ((61, 700), true), ((700, 61), false)] {
                for (at, orientation) in Orientation::ALL.into_iter().enumerate() {
                    let image = Size::new(width, height);
                    let color = [ColorModel::Rgb, ColorModel::YCbCr][at % 2];
                    let picture = noise(image, Rect::full(image), color, 2, 7);
                    let request = ResizeRequest {
                        source: Rect::full(image).into(),
                        bounds: Rect::full(image),
                        orientation,
                        mirrored: (mirrored, !mirrored),
                        target: Size::new(target.0, target.1),
                        filter: ResizeFilter::ALL[(at + width as usize) % 5],
                    };
                    let mut resizer = Resizer::new(&Limits::default());
                    let mut resized = ResizedPlanes::default();
                    resizer.resize(&picture, &request, &mut resized).unwrap();
                    let planes = picture.planes();
                    let expected: Vec<Vec<u8>> = (0..3)
                        .flat_map(|component| {
                            let is_rgb = color == ColorModel::Rgb;
                            let (plane, skip, step) = match is_rgb {
                                true => (&planes[0], component, 3),
                                false => (&planes[component], 0, 1),
                            };
                            let kind = if is_rgb { 0 } else { component.min(1) };
                            let Axes { across, down } = &resizer.axes[kind];
                            let rows: Vec<Vec<u8>> = (0..plane.shape().area.height)
                                .map(|y| {
                                    plane.row(y).iter().skip(skip).step_by(step).copied().collect()
                                })
                                .collect();
                            let columns = transposed(&rows);
                            if orientation.swaps_sides() {
                                let between = pass(down, |y| rows[y].clone());
                                let between = transposed(&between);
                                pass(across, |x| between[x].clone())
                            } else {
                                let between = transposed(&pass(across, |x| columns[x].clone()));
                                pass(down, |y| between[y].clone())
                            }
                        })
                        .collect();
                    assert!(rows(&resized) == expected, "{image} {target:?} {orientation:?}");
                }
            }
        }
    }

    #[test]
    fn chroma_is_interpolated_from_its_siting() {
        let image = Size::new(8, 8);
        let shape = |pixels: u32| {
            let area = Rect::full(Size::new(8 / pixels, 8 / pixels));
            let stride = area.width as usize;
            PlaneShape { channels: 1, area, across: pixels, down: pixels, stride }
        };
        let samples = [0, 100, 200, 60];
        let cases = [
            (ChromaPosition::First, [0_u8, 50, 100, 150, 200, 130, 60, 60]),
            (ChromaPosition::Middle, [0, 25, 75, 125, 175, 165, 95, 60]),
            (ChromaPosition::Last, [0, 0, 50, 100, 150, 200, 130, 60]),
        ];
        for (position, expected) in cases {
            for is_across in [true, false] {
                let mut picture = Picture::new();
                let shapes = [shape(1), shape(2), shape(2)];
                picture.start(image, ColorModel::YCbCr, &shapes).unwrap();
                for (at, sample) in picture.planes_mut()[1].samples_mut().iter_mut().enumerate() {
                    *sample = samples[if is_across { at % 4 } else { at / 4 }];
                }
                let mut siting = ChromaSiting::default();
                *(if is_across { &mut siting.across } else { &mut siting.down }) = position;
                picture.set_siting(siting);
                // Flips do not move chroma.
                for is_mirrored in [false, true] {
                    let request = ResizeRequest {
                        source: Rect::full(image).into(),
                        bounds: Rect::full(image),
                        orientation: Orientation::Upright,
                        mirrored: (is_mirrored, is_mirrored),
                        target: image,
                        filter: ResizeFilter::Bilinear,
                    };
                    let mut resized = ResizedPlanes::default();
                    let mut resizer = Resizer::new(&Limits::default());
                    resizer.resize(&picture, &request, &mut resized).unwrap();
                    let row = |at: u32| resized.padded_row(1, at)[..8].to_vec();
                    let mut found =
                        if is_across { row(3) } else { (0..8).map(|at| row(at)[3]).collect() };
                    if is_mirrored {
                        found.reverse();
                    }
                    assert_eq!(found, expected, "{position:?}, {is_across}, {is_mirrored}");
                }
            }
        }
    }

    #[test]
    fn memory_between_the_passes_depends_on_the_target_size() {
        // 12 million pixels, upright and rotated.
        let image = Size::new(4000, 3000);
        for orientation in [Orientation::Upright, Orientation::Rotated90] {
            let mut request = ResizeRequest {
                source: Rect::full(image).into(),
                bounds: Rect::full(image),
                orientation,
                mirrored: (false, false),
                target: Size::new(224, 224),
                filter: ResizeFilter::Bilinear,
            };
            for color in [ColorModel::Rgb, ColorModel::YCbCr] {
                let picture = noise(image, Rect::full(image), color, 2, 0);
                let mut resizer = Resizer::new(&Limits::default());
                resizer.resize(&picture, &request, &mut ResizedPlanes::default()).unwrap();
                let held = resizer.scratch.held_bytes();
                assert!(held < 1 << 20, "{orientation:?}, {color:?}: {held} bytes");
            }
            // If each sample pixel needs thousands of rows, those rows must be buffered.
            let tall = Size::new(1, 1_000_000);
            request.source = Rect::full(tall).into();
            request.bounds = Rect::full(tall);
            let mut picture = Picture::new();
            picture.start_rgb(tall, Rect::full(tall)).unwrap();
            let resize = |limits: &Limits| {
                let mut resizer = Resizer::new(limits);
                let outcome = resizer.resize(&picture, &request, &mut ResizedPlanes::default());
                let weights = |it: &Axes| it.across.held_bytes() + it.down.held_bytes();
                let held = resizer.scratch.held_bytes() + weights(&resizer.axes[0]);
                (outcome.map_err(|error| error.kind()), held)
            };
            let (outcome, held) = resize(&Limits::default());
            assert!(outcome.is_ok() && held < 64 << 20, "{orientation:?}: {held} bytes");
            let (outcome, held) = resize(&Limits::default().max_bytes(16 << 20));
            assert_eq!((outcome, held), (Err(ErrorKind::LimitExceeded), 0), "{orientation:?}");
        }
    }

    #[test]
    fn memory_limits_include_weights_and_rows_between_the_passes() {
        let tall = Size::new(1, 200_000);
        let mut picture = Picture::new();
        picture.start_rgb(tall, Rect::full(tall)).unwrap();
        let request = ResizeRequest {
            source: Rect::full(tall).into(),
            bounds: Rect::full(tall),
            orientation: Orientation::Upright,
            mirrored: (false, false),
            target: Size::new(224, 224),
            filter: ResizeFilter::Bilinear,
        };
        let resize = |limits: &Limits| {
            let mut resizer = Resizer::new(limits);
            let outcome = resizer.resize(&picture, &request, &mut ResizedPlanes::default());
            let weights = resizer.axes[0].across.bytes() + resizer.axes[0].down.bytes();
            (outcome.map_err(|error| error.kind()), weights, resizer.scratch.held_bytes())
        };
        let (outcome, weights, scratch) = resize(&Limits::default());
        assert_eq!(outcome, Ok(()));
        // The limit is enough for the weights, but not for the rows between the passes.
        let limits = Limits::default().max_bytes((weights + scratch / 2) as u64);
        assert_eq!(resize(&limits), (Err(ErrorKind::LimitExceeded), weights, 0));
    }

    #[test]
    fn weights_of_another_request_are_not_reused() {
        let image = Size::new(40, 40);
        let picture = noise(image, Rect::full(image), ColorModel::YCbCr, 2, 3);
        let bounds = Rect { left: 4, top: 4, width: 32, height: 32 };
        let first = ResizeRequest {
            source: CropBox { left: 8.0, top: 8.0, width: 20.0, height: 20.0 },
            bounds,
            orientation: Orientation::Upright,
            mirrored: (false, false),
            target: Size::new(10, 10),
            filter: ResizeFilter::Bicubic,
        };
        let with = |source: CropBox| ResizeRequest { source, ..first };
        let resize = |resizer: &mut Resizer, request: &ResizeRequest| {
            let mut resized = ResizedPlanes::default();
            resizer.resize(&picture, request, &mut resized).unwrap();
            rows(&resized)
        };
        for other in [
            with(CropBox { left: 9.0, ..first.source }),
            with(CropBox { top: 9.0, ..first.source }),
            with(CropBox { width: 21.0, ..first.source }),
            with(CropBox { height: 21.0, ..first.source }),
            ResizeRequest { bounds: Rect { left: 8, ..bounds }, ..first },
            ResizeRequest { bounds: Rect { height: 24, ..bounds }, ..first },
            ResizeRequest { orientation: Orientation::Rotated90, ..first },
            ResizeRequest { mirrored: (true, false), ..first },
            ResizeRequest { mirrored: (false, true), ..first },
            ResizeRequest { target: Size::new(11, 10), ..first },
            ResizeRequest { target: Size::new(10, 11), ..first },
            ResizeRequest { filter: ResizeFilter::Lanczos3, ..first },
        ] {
            let mut resizer = Resizer::new(&Limits::default());
            let before = resize(&mut resizer, &first);
            let found = resize(&mut resizer, &other);
            assert!(found != before, "{other:?}");
            assert!(found == resize(&mut Resizer::new(&Limits::default()), &other), "{other:?}");
        }
    }

    #[test]
    fn memory_of_an_unusual_image_is_released() {
        let resize = |resizer: &mut Resizer, image: Size| {
            let mut picture = Picture::new();
            picture.start_rgb(image, Rect::full(image)).unwrap();
            let request = ResizeRequest {
                source: Rect::full(image).into(),
                bounds: Rect::full(image),
                orientation: Orientation::Upright,
                mirrored: (false, false),
                target: Size::new(224, 224),
                filter: ResizeFilter::Bilinear,
            };
            resizer.resize(&picture, &request, &mut ResizedPlanes::default()).unwrap();
            resizer.scratch.held_bytes()
        };
        let mut resizer = Resizer::new(&Limits::default());
        assert!(resize(&mut resizer, Size::new(1, 4_000_000)) > 32 << 20);
        let mut small = || resize(&mut resizer, Size::new(300, 300));
        // The memory is released only after several small images.
        assert!(small() > 32 << 20);
        assert!((0..40).map(|_| small()).last() < Some(1 << 20));
    }

    #[test]
    fn a_picture_without_the_requested_part_is_an_error() {
        let image = Size::new(20, 20);
        let region = Rect { left: 0, top: 0, width: 8, height: 8 };
        let picture = noise(image, region, ColorModel::YCbCr, 2, 0);
        let bounds = Rect { left: 10, top: 0, width: 8, height: 8 };
        let request = ResizeRequest {
            source: bounds.into(),
            bounds,
            orientation: Orientation::Upright,
            mirrored: (false, false),
            target: Size::new(4, 4),
            filter: ResizeFilter::Bilinear,
        };
        let outcome = Resizer::new(&Limits::default()).resize(
            &picture,
            &request,
            &mut ResizedPlanes::default(),
        );
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
