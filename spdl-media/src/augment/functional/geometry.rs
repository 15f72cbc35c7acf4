//! Geometric operations: each result pixel is sampled from the image.

use fearless_simd::prelude::*;
use fearless_simd::{Level, dispatch, f32x4};
use spdl_core::Result;

use super::super::checks::check;
use super::super::image::{ImageMut, Scratch};
use super::arithmetic::{clamped, index, multiply_add, rounded};
use crate::image::CHANNELS;
use crate::image::Size;

/// The interpolation between pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// The nearest pixel.
    #[default]
    Nearest,
    /// Bilinear interpolation of four pixels.
    Bilinear,
}

/// Rotation, scaling and shear around a centre, and translation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// Rotation in degrees, clockwise.
    pub angle: f64,
    /// Translation in pixels, to the right and downwards.
    pub translate: [f64; 2],
    /// The scale: 1 keeps the size, 2 doubles it.
    pub scale: f64,
    /// Shear in degrees, along x and along y.
    pub shear: [f64; 2],
    /// The point that does not move, apart from the translation, in pixels from the top left
    /// corner; `None` is the image centre.
    pub center: Option<[f64; 2]>,
}

impl Default for Affine {
    /// The identity.
    fn default() -> Self {
        Affine { angle: 0.0, translate: [0.0; 2], scale: 1.0, shear: [0.0; 2], center: None }
    }
}

impl Affine {
    /// The matrix from result coordinates to image coordinates, both relative to the image centre:
    /// x = m₀x' + m₁y' + m₂, y = m₃x' + m₄y' + m₅.
    fn inverse_matrix(&self, size: Size) -> [f64; 6] {
        let [cx, cy] = match self.center {
            Some([x, y]) => [x - f64::from(size.width) * 0.5, y - f64::from(size.height) * 0.5],
            None => [0.0; 2],
        };
        let [sx, sy] = self.shear.map(f64::to_radians);
        let angle = self.angle.to_radians();
        // Rotation · shear along y · shear along x; its determinant is 1.
        let a = (angle - sy).cos() / sy.cos();
        let b = -(a * sx.tan() + angle.sin());
        let c = (angle - sy).sin() / sy.cos();
        let d = angle.cos() - c * sx.tan();
        let mut matrix =
            [d / self.scale, -b / self.scale, 0.0, -c / self.scale, a / self.scale, 0.0];
        let (x, y) = (cx + self.translate[0], cy + self.translate[1]);
        matrix[2] = cx - matrix[0] * x - matrix[1] * y;
        matrix[5] = cy - matrix[3] * x - matrix[4] * y;
        matrix
    }
}

/// Rotates, scales, shears and translates; the size does not change.
///
/// Pixels outside the image are black, and bilinear interpolation blends edge pixels with black.
/// With `fill`, the outside has that colour; edge pixels are first blended with black and then with
/// `fill`. torchvision does the same: `fill=None` and `fill=0` differ.
///
/// # Errors
/// `InvalidArgument` if the scale is not positive, or a number is not finite.
pub fn affine(
    image: &mut ImageMut<'_>,
    affine: &Affine,
    interpolation: Interpolation,
    fill: Option<[u8; 3]>,
    scratch: &mut Scratch,
) -> Result<()> {
    let matrix = affine.inverse_matrix(image.size());
    let is_valid = affine.scale > 0.0 && matrix.iter().all(|number| number.is_finite());
    check(is_valid, || {
        format!("invalid affine transform {affine:?}: expected finite numbers and a positive scale")
    })?;
    let grid = SamplingGrid::affine(matrix, image.size());
    scratch.record(|| Warp::affine(matrix, image.size()));
    resample(image, &grid, interpolation, fill, scratch);
    Ok(())
}

/// Rotates counter-clockwise by `angle` degrees around `center` (`None`: the image centre); the
/// size does not change. For `fill`, see [`affine`]. If `center` is `None`, rotations by 180
/// degrees are exact, and so are rotations of square images by multiples of 90 degrees.
///
/// # Errors
/// `InvalidArgument` if a number is not finite.
pub fn rotate(
    image: &mut ImageMut<'_>,
    angle: f64,
    interpolation: Interpolation,
    center: Option<[f64; 2]>,
    fill: Option<[u8; 3]>,
    scratch: &mut Scratch,
) -> Result<()> {
    let angle = angle.rem_euclid(360.0);
    let rotation = Affine { angle: -angle, center, ..Affine::default() };
    if center.is_none() && angle == 0.0 {
        return Ok(());
    }
    if center.is_none() && quarter_turns(image, angle, scratch) {
        scratch.record(|| Warp::affine(rotation.inverse_matrix(image.size()), image.size()));
        return Ok(());
    }
    affine(image, &rotation, interpolation, fill, scratch)
}

/// Rotates by 180 degrees, or a square image by multiples of 90 degrees. Returns false for other
/// angles, without a change.
fn quarter_turns(image: &mut ImageMut<'_>, angle: f64, scratch: &mut Scratch) -> bool {
    let Size { width, height } = image.size();
    if angle == 180.0 {
        image.pixels_mut().as_chunks_mut::<CHANNELS>().0.reverse();
        return true;
    }
    if width != height || (angle != 90.0 && angle != 270.0) {
        return false;
    }
    let side = width as usize;
    let mut source = scratch.take_bytes(image.pixels().len());
    source.copy_from_slice(image.pixels());
    let pixels = source.as_chunks::<CHANNELS>().0;
    let places = image.pixels_mut().as_chunks_mut::<CHANNELS>().0.chunks_exact_mut(side);
    for (y, row) in places.enumerate() {
        for (x, place) in row.iter_mut().enumerate() {
            *place = match angle {
                90.0 => pixels[x * side + side - 1 - y],
                _ => pixels[(side - 1 - x) * side + y],
            };
        }
    }
    scratch.give_bytes(source);
    true
}

/// Perspective transform: the result pixel at (x, y) is sampled at ((c₀x + c₁y + c₂) ÷ (c₆x + c₇y +
/// 1), (c₃x + c₄y + c₅) ÷ (c₆x + c₇y + 1)). Coordinates start at the top left corner. For `fill`,
/// see [`affine`].
///
/// # Errors
/// `InvalidArgument` if a coefficient is not finite.
pub fn perspective(
    image: &mut ImageMut<'_>,
    coefficients: &[f64; 8],
    interpolation: Interpolation,
    fill: Option<[u8; 3]>,
    scratch: &mut Scratch,
) -> Result<()> {
    check(coefficients.iter().all(|number| (*number as f32).is_finite()), || {
        format!("invalid perspective coefficients {coefficients:?}: expected finite numbers")
    })?;
    let grid = SamplingGrid::perspective(coefficients, image.size());
    scratch.record(|| Warp::perspective(coefficients, image.size()));
    resample(image, &grid, interpolation, fill, scratch);
    Ok(())
}

/// The coefficients of [`perspective`] that map the corners `start` to `end`, in pixels.
///
/// # Errors
/// `InvalidArgument` if no such transform exists, for example if three corners of `end` are on a
/// line.
pub fn perspective_coefficients(start: &[[f64; 2]; 4], end: &[[f64; 2]; 4]) -> Result<[f64; 8]> {
    // Two equations per corner: x(c₆x' + c₇y' + 1) = c₀x' + c₁y' + c₂, and the same for y.
    let mut rows = [[0.0; 9]; 8];
    for (pair, (&[x, y], &[u, v])) in
        rows.as_chunks_mut::<2>().0.iter_mut().zip(start.iter().zip(end))
    {
        pair[0] = [u, v, 1.0, 0.0, 0.0, 0.0, -x * u, -x * v, x];
        pair[1] = [0.0, 0.0, 0.0, u, v, 1.0, -y * u, -y * v, y];
    }
    solve(&mut rows).map_or_else(
        || {
            let message = format!("no perspective transform maps points {start:?} to {end:?}");
            check(false, || message).map(|()| [0.0; 8])
        },
        // The coefficients are rounded to `f32`, as in torchvision.
        |solution| Ok(solution.map(|value| f64::from(value as f32))),
    )
}

/// Solves eight linear equations by Gaussian elimination with row pivoting.
fn solve(rows: &mut [[f64; 9]; 8]) -> Option<[f64; 8]> {
    /// A pivot below this fraction of the maximum coefficient is considered a rounding error.
    const NEGLIGIBLE: f64 = 1e-12;
    let largest = rows.as_flattened().iter().fold(0.0_f64, |most, value| most.max(value.abs()));
    for column in 0..8 {
        let magnitude = |row: &usize| rows[*row][column].abs();
        let pivot = (column..8).max_by(|a, b| magnitude(a).total_cmp(&magnitude(b)))?;
        // This comparison also rejects NaN.
        if magnitude(&pivot) <= NEGLIGIBLE * largest || !magnitude(&pivot).is_finite() {
            return None;
        }
        rows.swap(column, pivot);
        let own = rows[column];
        for (at, row) in rows.iter_mut().enumerate() {
            if at != column {
                let factor = row[column] / own[column];
                row.iter_mut().zip(own).for_each(|(value, own)| *value -= factor * own);
            }
        }
    }
    let mut solution = [0.0; 8];
    for (at, value) in solution.iter_mut().enumerate() {
        *value = rows[at][8] / rows[at][at];
    }
    solution.iter().all(|value| value.is_finite()).then_some(solution)
}

/// A geometric operation that was applied to an image, for boxes, points and masks that follow it.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(all(feature = "png", feature = "records")),
    allow(dead_code, reason = "only fields of records follow an image; masks are PNG")
)]
pub(crate) struct Warp {
    grid: SamplingGrid,
    /// The projection from positions in the image to positions in the result, in pixels from the
    /// upper left corner, row by row.
    forward: [f64; 9],
}

impl Warp {
    /// `matrix` is that of [`Affine::inverse_matrix`].
    fn affine(matrix: [f64; 6], size: Size) -> Self {
        let [a, b, c, d, e, f] = matrix;
        let (x, y) = (f64::from(size.width) * 0.5, f64::from(size.height) * 0.5);
        // The matrix is relative to the image centre.
        let from_corner = [a, b, c + x - a * x - b * y, d, e, f + y - d * x - e * y, 0.0, 0.0, 1.0];
        Warp { grid: SamplingGrid::affine(matrix, size), forward: inverse(&from_corner) }
    }

    fn perspective(coefficients: &[f64; 8], size: Size) -> Self {
        let [a, b, c, d, e, f, g, h] = *coefficients;
        let backward = [a, b, c, d, e, f, g, h, 1.0];
        Warp { grid: SamplingGrid::perspective(coefficients, size), forward: inverse(&backward) }
    }

    /// Whether straight lines stay parallel.
    #[cfg(feature = "records")]
    pub(crate) fn is_affine(&self) -> bool {
        self.forward[6..8] == [0.0; 2]
    }

    /// The position in the result of a position in the image. It is NaN or infinite if the result
    /// does not show the position at all.
    #[cfg(feature = "records")]
    pub(crate) fn position(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        let [across, down, divisor] = [0, 3, 6]
            .map(|at| self.forward[at] * x + self.forward[at + 1] * y + self.forward[at + 2]);
        [across / divisor, down / divisor]
    }

    /// Samples the nearest element of `source` for each element of `result`; both have the size of
    /// the image.
    #[cfg(all(feature = "png", feature = "records"))]
    pub(crate) fn nearest<T: Copy>(&self, source: &[T], result: &mut [T], outside: T) {
        let (width, height) = (self.grid.size.width as usize, self.grid.size.height as usize);
        let mut places = vec![0.0; 2 * width];
        let (across, down) = places.split_at_mut(width);
        dispatch!(Level::new(), simd => {
            for (y, row) in result.chunks_exact_mut(width).enumerate() {
                self.grid.compute_row(simd, y, across, down);
                for (place, (&x, &y)) in row.iter_mut().zip(across.iter().zip(down.iter())) {
                    let (x, y) = (x.round_ties_even(), y.round_ties_even());
                    let is_inside =
                        (0.0..width as f32).contains(&x) && (0.0..height as f32).contains(&y);
                    *place = if is_inside { source[index(y) * width + index(x)] } else { outside };
                }
            }
        });
    }
}

/// The inverse of a 3 x 3 matrix, up to a factor; its last element is 1 for an affine matrix.
fn inverse(matrix: &[f64; 9]) -> [f64; 9] {
    let [a, b, c, d, e, f, g, h, i] = *matrix;
    let adjugate = [
        e * i - f * h,
        c * h - b * i,
        b * f - c * e,
        f * g - d * i,
        a * i - c * g,
        c * d - a * f,
        d * h - e * g,
        b * g - a * h,
        a * e - b * d,
    ];
    adjugate.map(|element| element / adjugate[8])
}

/// Sampling coordinates in single precision with torchvision's rounding; torchvision scales the
/// image to −1 to 1.
#[derive(Clone, Copy, Debug)]
struct SamplingGrid {
    size: Size,
    /// The coordinate of the first pixel, in pixels.
    first: [f32; 2],
    /// The coefficients of x, y and 1 for the coordinates.
    weights: [[f32; 3]; 2],
    /// The coefficients of the denominator, for perspective.
    divisor: Option<[f32; 3]>,
}

impl SamplingGrid {
    fn affine(matrix: [f64; 6], size: Size) -> Self {
        let matrix = matrix.map(|number| number as f32);
        let (width, height) = (size.width as f32, size.height as f32);
        SamplingGrid {
            size,
            first: [(1.0 - width) * 0.5, (1.0 - height) * 0.5],
            weights: [
                [matrix[0], matrix[1], matrix[2]].map(|number| number / (0.5 * width)),
                [matrix[3], matrix[4], matrix[5]].map(|number| number / (0.5 * height)),
            ],
            divisor: None,
        }
    }

    fn perspective(coefficients: &[f64; 8], size: Size) -> Self {
        let [a, b, c, d, e, f, g, h] = coefficients.map(|number| number as f32);
        let (width, height) = (size.width as f32, size.height as f32);
        SamplingGrid {
            size,
            first: [0.5; 2],
            weights: [
                [a, b, c].map(|number| number / (0.5 * width)),
                [d, e, f].map(|number| number / (0.5 * height)),
            ],
            divisor: Some([g, h, 1.0]),
        }
    }

    /// Computes the sampling coordinates of row `y`, in pixels.
    #[inline(always)]
    fn compute_row<S: Simd>(&self, simd: S, y: usize, across: &mut [f32], down: &mut [f32]) {
        let y = self.first[1] + y as f32;
        let combined = |[along_x, along_y, constant]: [f32; 3], x: f32| {
            multiply_add(simd, y, along_y, x * along_x) + constant
        };
        let places = [across, down].into_iter().zip(self.weights);
        for ((places, weights), side) in places.zip([self.size.width, self.size.height]) {
            let half = side as f32 / 2.0;
            for (at, place) in places.iter_mut().enumerate() {
                let x = self.first[0] + at as f32;
                let mut value = combined(weights, x);
                if let Some(divisor) = self.divisor {
                    value = value / combined(divisor, x) - 1.0;
                }
                *place = multiply_add(simd, value + 1.0, half, -0.5);
            }
        }
    }
}

fn resample(
    image: &mut ImageMut<'_>,
    grid: &SamplingGrid,
    interpolation: Interpolation,
    fill: Option<[u8; 3]>,
    scratch: &mut Scratch,
) {
    let size = image.size();
    let width = size.width as usize;
    let mut pixels = scratch.take_bytes(PaddedImage::bytes(size));
    let mut places = scratch.take_floats(2 * width);
    let (across, down) = places.split_at_mut(width);
    dispatch!(Level::new(), simd => {
        let source = PaddedImage::fill(&mut pixels, image);
        for (y, out) in image.pixels_mut().chunks_exact_mut(width * CHANNELS).enumerate() {
            grid.compute_row(simd, y, across, down);
            let out = out.as_chunks_mut::<CHANNELS>().0.iter_mut();
            let places = out.zip(across.iter().zip(down.iter()));
            match interpolation {
                Interpolation::Nearest => {
                    for (out, (&x, &y)) in places {
                        *out = source.nearest(x, y, fill);
                    }
                }
                Interpolation::Bilinear => {
                    for (out, (&x, &y)) in places {
                        *out = source.bilinear(simd, x, y, fill);
                    }
                }
            }
        }
    });
    scratch.give_floats(places);
    scratch.give_bytes(pixels);
}

/// An image with a transparent border, for interpolation.
struct PaddedImage<'a> {
    /// Red, green, blue, and a coverage of 1 inside the image and 0 in the border.
    pixels: &'a [[u8; PIXEL_BYTES]],
    /// The distance between rows.
    stride: usize,
    size: Size,
}

/// Bytes of a pixel with its coverage.
const PIXEL_BYTES: usize = CHANNELS + 1;
/// Columns and rows of the border: one before the image and two after it. The second column or
/// row after the image is read only with weight 0.
const BORDER: usize = 3;

impl<'a> PaddedImage<'a> {
    fn bytes(size: Size) -> usize {
        (size.width as usize + BORDER) * (size.height as usize + BORDER) * PIXEL_BYTES
    }

    #[inline(always)]
    fn fill(bytes: &'a mut [u8], image: &ImageMut<'_>) -> Self {
        let size = image.size();
        let width = size.width as usize;
        let stride = width + BORDER;
        let pixels = bytes.as_chunks_mut::<PIXEL_BYTES>().0;
        let (before, rest) = pixels.split_at_mut(stride);
        let (inside, after) = rest.split_at_mut(stride * size.height as usize);
        before.fill([0; PIXEL_BYTES]);
        after.fill([0; PIXEL_BYTES]);
        let rows = image.pixels().as_chunks::<CHANNELS>().0.chunks_exact(width);
        for (row, source) in inside.chunks_exact_mut(stride).zip(rows) {
            row[0] = [0; PIXEL_BYTES];
            row[width + 1..].fill([0; PIXEL_BYTES]);
            for (place, &[red, green, blue]) in row[1..].iter_mut().zip(source) {
                *place = [red, green, blue, 1];
            }
        }
        PaddedImage { pixels, stride, size }
    }

    /// The index of the pixel at integer coordinates, which may be outside the image by at most 1.
    #[inline(always)]
    fn at(&self, x: f32, y: f32) -> usize {
        index(y + 1.0) * self.stride + index(x + 1.0)
    }

    /// Returns the coordinates; if the coordinates are outside the image or NaN, returns the
    /// coordinates of a border pixel.
    #[inline(always)]
    fn near(&self, x: f32, y: f32) -> (f32, f32) {
        (x.max(-1.0).min(self.size.width as f32), y.max(-1.0).min(self.size.height as f32))
    }

    #[inline(always)]
    fn nearest(&self, x: f32, y: f32, fill: Option<[u8; CHANNELS]>) -> [u8; CHANNELS] {
        let (x, y) = self.near(x.round_ties_even(), y.round_ties_even());
        match (self.pixels.get(self.at(x, y)), fill) {
            (Some(&[_, _, _, 0]), Some(fill)) => fill,
            (Some(&[red, green, blue, _]), _) => [red, green, blue],
            (None, _) => [0; CHANNELS],
        }
    }

    #[inline(always)]
    fn bilinear<S: Simd>(
        &self,
        simd: S,
        x: f32,
        y: f32,
        fill: Option<[u8; CHANNELS]>,
    ) -> [u8; CHANNELS] {
        let (x, y) = self.near(x, y);
        let (left, top) = (x.floor(), y.floor());
        let (west, north) = (x - left, y - top);
        let (east, south) = (1.0 - west, 1.0 - north);
        let at = self.at(left, top);
        let rows = (self.pixels.get(at..at + 2), self.pixels.get(at + self.stride..));
        let (Some([a, b]), Some([c, d, ..])) = rows else { return [0; CHANNELS] };
        let mut sums = levels(simd, a) * (south * east);
        sums = levels(simd, b).mul_add_precise(south * west, sums);
        sums = levels(simd, c).mul_add_precise(north * east, sums);
        sums = levels(simd, d).mul_add_precise(north * west, sums);
        let mut values = [0.0; PIXEL_BYTES];
        sums.store_slice(&mut values);
        let mut pixel = [0; CHANNELS];
        // The weights sum to 1, so the result needs no clamping if there is no fill.
        for channel in 0..CHANNELS {
            pixel[channel] = match fill {
                None => rounded(values[channel]),
                Some(fill) => {
                    let fill = f32::from(fill[channel]);
                    rounded(clamped((values[channel] - fill) * values[CHANNELS] + fill))
                }
            };
        }
        pixel
    }
}

#[inline(always)]
fn levels<S: Simd>(simd: S, pixel: &[u8; PIXEL_BYTES]) -> f32x4<S> {
    let [red, green, blue, share] = *pixel;
    let levels = [f32::from(red), f32::from(green), f32::from(blue), f32::from(share)];
    f32x4::from_slice(simd, &levels)
}
