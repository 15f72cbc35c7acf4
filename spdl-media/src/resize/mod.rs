//! A part of a picture becomes planes of another size, upright: Pillow's filters, by a kernel of our
//! own.
//!
//! Each plane goes straight from its own resolution to the target's: chroma is never upsampled to
//! the image's size first. As Pillow does, the upright image is resized in width first, rounded to
//! bytes, and then in height. Turning and mirroring cost nothing: rows become columns on the way
//! anyhow, and mirrored axes are written in reverse.

mod axis;
mod filter;
mod kernel;

use std::ops::Range;

use fearless_simd::{Level, Simd, dispatch};
use spdl_core::{Error, ErrorKind, Result};

use self::axis::{Axis, AxisRequest};
pub use self::filter::Filter;
use self::kernel::{LANES, WOVEN, Woven, columns_to_lines, lines_to_columns, weave, weigh};
use crate::pixels::CHANNELS;
use crate::{ColorModel, CropBox, Orientation, Picture, Plane, PlaneShape, Rect, Size};

/// What is made of a picture.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResizeRequest {
    /// The part of the stored image that becomes the target, in image pixels.
    pub(crate) source: CropBox,
    /// The part of it that the filter may see, in image pixels.
    pub(crate) bounds: Rect,
    /// How it is turned.
    pub(crate) orientation: Orientation,
    /// Whether it is mirrored left to right once upright, and top to bottom.
    pub(crate) mirrored: (bool, bool),
    /// The size of the result, upright.
    pub(crate) target: Size,
    pub(crate) filter: Filter,
}

/// The result: a plane for each component, all of the same size.
#[derive(Debug, Default)]
pub(crate) struct ResizedPlanes {
    color: ColorModel,
    size: Size,
    planes: [Vec<u8>; 3],
}

impl ResizedPlanes {
    /// What the planes stand for; RGB is three planes here.
    pub(crate) fn color(&self) -> ColorModel {
        self.color
    }

    pub(crate) fn size(&self) -> Size {
        self.size
    }

    /// A row of a component, and what fills it up to a multiple of 16 bytes.
    pub(crate) fn padded_row(&self, component: usize, row: u32) -> &[u8] {
        let width = self.size.width as usize;
        &self.planes[component][row as usize * padded(width)..][..width.next_multiple_of(16)]
    }
}

/// The whole pixels that resizing `source` to `target` (as stored) looks at. Where planes have half
/// the resolution, a filter reaches twice as far.
pub(crate) fn needed_region(source: CropBox, target: Size, filter: Filter, image: Size) -> Rect {
    const COARSEST: f64 = 2.0;
    let axis = |start: f64, extent: f64, target: u32, limit: u32| {
        let stretch = (extent / f64::from(target)).max(COARSEST);
        // From the middle of the outermost pixel, rounded outwards.
        let reach = filter.support() * stretch - extent / f64::from(target) / 2.0;
        let reach = reach.max(0.0);
        let limit = f64::from(limit);
        let first = (start - reach).floor().clamp(0.0, limit - 1.0);
        let end = (start + extent + reach).ceil().clamp(first + 1.0, limit);
        (first as u32, (end - first) as u32)
    };
    let (left, width) = axis(source.left, source.width, target.width, image.width);
    let (top, height) = axis(source.top, source.height, target.height, image.height);
    Rect { left, top, width, height }
}

/// Resizes pictures, and keeps what it has computed for the last: the weights, which are the same
/// for images of the same size, and its scratch memory.
#[derive(Debug)]
pub(crate) struct Resizer {
    level: Level,
    /// Luma, or all components; chroma.
    axes: [Axes; 2],
    scratch: Scratch,
}

/// Of the stored picture: along its rows, and down its columns.
#[derive(Debug, Default)]
struct Axes {
    across: Axis,
    down: Axis,
}

#[derive(Debug, Default)]
struct Scratch {
    /// Lines of interleaved pixels, component by component.
    separated: Vec<u8>,
    /// Some lines as woven columns.
    woven_columns: Vec<i16>,
    /// The same, resized.
    columns: Vec<u8>,
    /// For each component, the woven rows for what goes down the columns.
    woven: [Vec<i16>; 3],
    /// Resized in one direction.
    between: Vec<u8>,
}

fn padded(columns: usize) -> usize {
    columns.next_multiple_of(LANES)
}

/// So many values of a buffer that grows where it must.
fn grow<T: Clone + Default>(buffer: &mut Vec<T>, length: usize) -> Result<&mut [T]> {
    if buffer.len() < length {
        buffer.try_reserve_exact(length - buffer.len()).map_err(|_| {
            let bytes = length.saturating_mul(size_of::<T>());
            let message = format!("the system has no {bytes} bytes of memory to resize a picture");
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        buffer.resize(length, T::default());
    }
    Ok(&mut buffer[..length])
}

impl Resizer {
    pub(crate) fn new() -> Self {
        Resizer { level: Level::new(), axes: Default::default(), scratch: Scratch::default() }
    }

    /// Writes what `request` asks for of `picture` to `resized`.
    ///
    /// # Errors
    /// `InvalidArgument` where the picture does not hold the bounds; `LimitExceeded` where the
    /// system has no memory for what is between.
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
                    format!("cannot resize a {color:?} picture with a plane of {shape:?}"),
                ));
            }
        }
        resized.color = color;
        resized.size = request.target;
        let target = request.target;
        let bytes = padded(target.width as usize) * target.height as usize;
        let components = if color == ColorModel::Grey { 1 } else { CHANNELS };
        for plane in &mut resized.planes[..components] {
            grow(plane, bytes)?;
        }
        let mut outputs = &mut resized.planes[..components];
        let mut shapes: [Option<PlaneShape>; 2] = [None; 2];
        for (at, plane) in picture.planes().iter().enumerate() {
            let shape = plane.shape();
            let kind = at.min(1);
            let axes = &mut self.axes[kind];
            if shapes[kind] != Some(shape) {
                axes.prepare(&shape, picture, request)?;
                shapes[kind] = Some(shape);
            }
            let (own, rest) = outputs.split_at_mut(shape.channels);
            outputs = rest;
            let job = Job {
                plane,
                axes,
                swapped: request.orientation.swaps_sides(),
                width: target.width as usize,
            };
            let scratch = &mut self.scratch;
            dispatch!(self.level, simd => job.run(simd, scratch, own))?;
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
                    (image, pixels): (u32, u32),
                    (target, turned, reversed): (u32, bool, bool)| {
            // Outwards: a position counts where any of its pixels does.
            let first = (bounds.0 / pixels).max(area.0);
            let end = bounds
                .0
                .saturating_add(bounds.1)
                .div_ceil(pixels)
                .min(area.0.saturating_add(area.1));
            let sound = start.is_finite() && extent > 0.0 && extent.is_finite() && target > 0;
            (first < end && sound).then(|| AxisRequest {
                start: start / f64::from(pixels),
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
        let across_pixels = (picture.image().width, shape.across);
        let down_pixels = (picture.image().height, shape.down);
        let x = (bounds.left, bounds.width);
        let y = (bounds.top, bounds.height);
        let across = axis(left, width, x, (area.left, area.width), across_pixels, across);
        let down = axis(top, height, y, (area.top, area.height), down_pixels, down);
        let (Some(across), Some(down)) = (across, down) else {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "cannot resize {:?} of an image of {} pixels to {}: a plane of the picture \
                     holds {area:?} alone",
                    request.source,
                    picture.image(),
                    request.target
                ),
            ));
        };
        self.across.prepare(&across);
        self.down.prepare(&down);
        Ok(())
    }
}

/// A plane and what it becomes.
struct Job<'a> {
    plane: &'a Plane,
    axes: &'a Axes,
    swapped: bool,
    /// Of the target.
    width: usize,
}

impl Job<'_> {
    #[inline(always)]
    fn run<S: Simd>(self, simd: S, scratch: &mut Scratch, outputs: &mut [Vec<u8>]) -> Result<()> {
        if self.swapped {
            self.down_then_across(simd, scratch, outputs)
        } else {
            self.across_then_down(simd, scratch, outputs)
        }
    }

    /// Some rows at a time become columns, are resized, and become rows again, which are woven
    /// for what then goes down the columns.
    #[inline(always)]
    fn across_then_down<S: Simd>(
        &self,
        simd: S,
        scratch: &mut Scratch,
        outputs: &mut [Vec<u8>],
    ) -> Result<()> {
        let Axes { across, down } = self.axes;
        let stride = padded(self.width);
        let woven_rows = down.source.len().div_ceil(LANES) * LANES / 2;
        for woven in &mut scratch.woven[..outputs.len()] {
            grow(woven, woven_rows * stride * 2)?;
        }
        let woven_columns =
            grow(&mut scratch.woven_columns, across.source_pairs().next_multiple_of(8) * WOVEN)?;
        let columns = grow(&mut scratch.columns, self.width.next_multiple_of(8) * LANES)?;
        for first in down.source.clone().step_by(LANES) {
            let rows = self.rows(first, down.source.end - 1);
            let row = (first - down.source.start) / 2 * stride * 2;
            let separated = self.separate(&rows, &across.source, &mut scratch.separated)?;
            for (component, woven) in scratch.woven[..outputs.len()].iter_mut().enumerate() {
                let lines = separated.lines(component);
                lines_to_columns(simd, lines, woven_columns);
                let source = Woven { values: woven_columns, stride: WOVEN };
                weigh(simd, across, source, LANES, columns, LANES);
                columns_to_lines(simd, columns, &mut woven[row..], stride * 2);
            }
        }
        for (woven, output) in scratch.woven.iter().zip(outputs) {
            let source = Woven { values: woven, stride: stride * 2 };
            weigh(simd, down, source, stride, output, stride);
        }
        Ok(())
    }

    /// Rows are woven as they are; some of the resized ones at a time become columns, and stay so.
    #[inline(always)]
    fn down_then_across<S: Simd>(
        &self,
        simd: S,
        scratch: &mut Scratch,
        outputs: &mut [Vec<u8>],
    ) -> Result<()> {
        let Axes { across, down } = self.axes;
        let columns = padded(across.source.len());
        for woven in &mut scratch.woven[..outputs.len()] {
            grow(woven, down.source_pairs() * columns * 2)?;
        }
        for pair in 0..down.source_pairs() {
            let rows = self.rows(down.source.start + 2 * pair, down.source.end - 1);
            let separated = self.separate(&rows[..2], &across.source, &mut scratch.separated)?;
            for (component, woven) in scratch.woven[..outputs.len()].iter_mut().enumerate() {
                let woven = &mut woven[pair * columns * 2..][..columns * 2];
                weave(separated.line(component, 0), separated.line(component, 1), woven);
            }
        }
        let woven_columns =
            grow(&mut scratch.woven_columns, across.source_pairs().next_multiple_of(8) * WOVEN)?;
        let between = grow(&mut scratch.between, self.width * columns)?;
        let stride = padded(self.width);
        for (woven, output) in scratch.woven.iter().zip(outputs) {
            weigh(
                simd,
                down,
                Woven { values: woven, stride: columns * 2 },
                columns,
                between,
                columns,
            );
            for first in (0..self.width).step_by(LANES) {
                let lines = std::array::from_fn(|line| {
                    let line = (first + line).min(self.width - 1);
                    &between[line * columns..][..across.source.len()]
                });
                lines_to_columns(simd, lines, woven_columns);
                let source = Woven { values: woven_columns, stride: WOVEN };
                weigh(simd, across, source, LANES, &mut output[first..], stride);
            }
        }
        Ok(())
    }

    /// So many rows of the plane, the last of them again and again where there are no more.
    fn rows(&self, first: usize, last: usize) -> [&[u8]; LANES] {
        std::array::from_fn(|row| self.plane.row((first + row).min(last) as u32))
    }

    /// Each component of `rows` by itself.
    #[inline(always)]
    fn separate<'a>(
        &self,
        rows: &[&'a [u8]],
        columns: &Range<usize>,
        scratch: &'a mut Vec<u8>,
    ) -> Result<Lines<'a>> {
        let channels = self.plane.shape().channels;
        if channels == 1 {
            let mut lines = [&[][..]; LANES];
            lines.iter_mut().zip(rows).for_each(|(line, row)| *line = &row[columns.clone()]);
            return Ok(Lines::Rows(lines));
        }
        let length = columns.len();
        let separated = grow(scratch, CHANNELS * LANES * length)?;
        for (at, row) in rows.iter().enumerate() {
            let (pixels, _) =
                row[columns.start * channels..columns.end * channels].as_chunks::<CHANNELS>();
            let (first, others) = separated.split_at_mut(LANES * length);
            let (second, third) = others.split_at_mut(LANES * length);
            let line = at * length..(at + 1) * length;
            let places = first[line.clone()].iter_mut();
            let places = places.zip(&mut second[line.clone()]).zip(&mut third[line]);
            for (((first, second), third), pixel) in places.zip(pixels) {
                [*first, *second, *third] = *pixel;
            }
        }
        Ok(Lines::Separated { bytes: separated, length })
    }
}

/// Rows of single components.
#[expect(clippy::large_enum_variant, reason = "it lives on the stack, for a moment")]
enum Lines<'a> {
    /// Of the only component, where they lie in the plane.
    Rows([&'a [u8]; LANES]),
    /// So many of each component.
    Separated { bytes: &'a [u8], length: usize },
}

impl<'a> Lines<'a> {
    #[inline(always)]
    fn line(&self, component: usize, at: usize) -> &'a [u8] {
        match self {
            Lines::Rows(lines) => lines[at],
            Lines::Separated { bytes, length } => {
                &bytes[(component * LANES + at) * length..][..*length]
            }
        }
    }

    #[inline(always)]
    fn lines(&self, component: usize) -> [&'a [u8]; LANES] {
        std::array::from_fn(|at| self.line(component, at))
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

    /// A picture that holds this region of an image that is the same noise for each seed.
    fn noise(image: Size, region: Rect, color: ColorModel, seed: u64) -> Picture {
        let shape = |pixels: u32, channels: usize| {
            let area = area_of(region, pixels);
            let stride = area.width as usize * channels;
            PlaneShape { channels, area, across: pixels, down: pixels, stride }
        };
        let mut picture = Picture::new();
        match color {
            ColorModel::YCbCr => {
                picture.start(image, color, &[shape(1, 1), shape(2, 1), shape(2, 1)])
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
        fn a_part_of_an_image_is_resized_as_if_the_whole_were_there(
            width in 8u32..80, height in 8u32..80, target in (1u32..40, 1u32..40), seed: u64,
            start in (0.0..1.0f64, 0.0..1.0f64), extent in (0.05..1.0f64, 0.05..1.0f64),
            filter in 0usize..5, planes: bool, turn in 0usize..8,
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
                filter: Filter::ALL[filter],
            };
            let stored = request.orientation.apply(request.target);
            let region = needed_region(source, stored, request.filter, image);
            prop_assert!(region.is_within(image));
            let color = if planes { ColorModel::YCbCr } else { ColorModel::Rgb };
            let mut resizer = Resizer::new();
            let mut resize = |region: Rect| {
                let mut resized = ResizedPlanes::default();
                let picture = noise(image, region, color, seed);
                resizer.resize(&picture, &request, &mut resized).unwrap();
                rows(&resized)
            };
            let whole = resize(Rect::full(image));
            let found = resize(region);
            let differences = whole.iter().flatten().zip(found.iter().flatten());
            let largest = differences.map(|(a, b)| a.abs_diff(*b)).max();
            // The box's place is rounded in its last digit.
            prop_assert!(largest <= Some(1), "{:?}", largest);
        }

        #[test]
        fn what_is_outside_the_bounds_has_no_influence(
            width in 8u32..80, height in 8u32..80, target in (1u32..40, 1u32..40), seed: u64,
            corner: (u32, u32), extent: (u32, u32), filter in 0usize..5, planes: bool,
            turn in 0usize..8,
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
                filter: Filter::ALL[filter],
            };
            let color = if planes { ColorModel::YCbCr } else { ColorModel::Rgb };
            let mut whole = noise(image, Rect::full(image), color, seed);
            // Inside as the part, outside something else.
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
            let mut resizer = Resizer::new();
            let mut resize = |picture: &Picture| {
                let mut resized = ResizedPlanes::default();
                resizer.resize(picture, &request, &mut resized).unwrap();
                rows(&resized)
            };
            let found = resize(&whole);
            let expected = resize(&noise(image, bounds, color, seed));
            let differences = expected.iter().flatten().zip(found.iter().flatten());
            let largest = differences.map(|(a, b)| a.abs_diff(*b)).max();
            prop_assert!(largest <= Some(1), "{:?}", largest);
        }
    }

    #[test]
    fn a_picture_without_what_is_asked_for_is_refused() {
        let image = Size::new(20, 20);
        let region = Rect { left: 0, top: 0, width: 8, height: 8 };
        let picture = noise(image, region, ColorModel::YCbCr, 0);
        let bounds = Rect { left: 10, top: 0, width: 8, height: 8 };
        let request = ResizeRequest {
            source: bounds.into(),
            bounds,
            orientation: Orientation::Upright,
            mirrored: (false, false),
            target: Size::new(4, 4),
            filter: Filter::Bilinear,
        };
        let outcome = Resizer::new().resize(&picture, &request, &mut ResizedPlanes::default());
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
