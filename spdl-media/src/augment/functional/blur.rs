//! Gaussian blur: along the rows, then down the columns.

use fearless_simd::{Level, dispatch};
use spdl_core::Result;

use super::arithmetic::{clamped, rounded};
use super::check;
use crate::augment::{ImageMut, Scratch};
use crate::image::CHANNELS;

/// Numbers that are summed side by side.
const LANES: usize = 32;

/// Blurs with a Gaussian that is cut off to `kernel` pixels across and down, of the standard
/// deviations `sigma` in pixels. Beyond its edges the image is mirrored, the outermost pixel not
/// repeated.
///
/// Levels may differ from torchvision's by 1 where a sum lies half-way between two: it adds in
/// another order.
///
/// # Errors
/// `InvalidArgument` where a kernel size is even, or its half is not less than the image's side;
/// where a deviation is not a positive, finite number.
pub fn gaussian_blur(
    image: &mut ImageMut<'_>,
    kernel: [usize; 2],
    sigma: [f64; 2],
    scratch: &mut Scratch,
) -> Result<()> {
    let size = image.size();
    let sides = [size.width as usize, size.height as usize];
    check_kernel(kernel)?;
    check(kernel[0] / 2 < sides[0] && kernel[1] / 2 < sides[1], || {
        format!("a kernel of {}x{} pixels is too large for {size}", kernel[0], kernel[1])
    })?;
    check(sigma.iter().all(|sigma| sigma.is_finite() && *sigma > 0.0), || {
        format!("expected positive standard deviations, found {sigma:?}")
    })?;
    let row = sides[0] * CHANNELS;
    let padded = row + (kernel[0] - 1) * CHANNELS;
    let mut floats = scratch.take_floats(kernel[0] + kernel[1] + padded + row * sides[1] + row);
    let (across, rest) = floats.split_at_mut(kernel[0]);
    let (down, rest) = rest.split_at_mut(kernel[1]);
    let (padded, rest) = rest.split_at_mut(padded);
    let (blurred, sums) = rest.split_at_mut(row * sides[1]);
    gaussian(across, sigma[0]);
    gaussian(down, sigma[1]);
    dispatch!(Level::new(), _simd => {
        for (source, out) in image.pixels().chunks_exact(row).zip(blurred.chunks_exact_mut(row)) {
            mirror_edges(source, padded, kernel[0] / 2);
            convolve(padded, across, out);
        }
        for (y, out) in image.pixels_mut().chunks_exact_mut(row).enumerate() {
            sums.fill(0.0);
            for (at, &weight) in down.iter().enumerate() {
                let from = mirrored(y as isize + at as isize - (down.len() / 2) as isize, sides[1]);
                let rows = sums.iter_mut().zip(&blurred[from * row..][..row]);
                rows.for_each(|(sum, level)| *sum += level * weight);
            }
            for (level, sum) in out.iter_mut().zip(sums.iter()) {
                *level = rounded(clamped(*sum));
            }
        }
    });
    scratch.give_floats(floats);
    Ok(())
}

/// Checks what does not depend on the image.
pub(in crate::augment) fn check_kernel(kernel: [usize; 2]) -> Result<()> {
    check(kernel.iter().all(|size| size % 2 == 1), || {
        format!("expected odd kernel sizes, found {kernel:?}")
    })
}

/// The weights of a Gaussian at whole pixels; their sum is 1.
fn gaussian(weights: &mut [f32], sigma: f64) {
    let middle = (weights.len() / 2) as f64;
    let weight = |at: usize| (-((at as f64 - middle) / sigma).powi(2) / 2.0).exp();
    let sum: f64 = (0..weights.len()).map(weight).sum();
    for (at, place) in weights.iter_mut().enumerate() {
        *place = (weight(at) / sum) as f32;
    }
}

/// Where the mirrored image has its row or column `at`, which is less than `len` beyond an edge.
#[inline(always)]
fn mirrored(at: isize, len: usize) -> usize {
    let last = len as isize - 1;
    let at = at.abs();
    (if at > last { 2 * last - at } else { at }).max(0) as usize
}

/// Numbers of a row of pixels, with `margin` mirrored pixels before and after them.
#[inline(always)]
fn mirror_edges(source: &[u8], padded: &mut [f32], margin: usize) {
    let (before, rest) = padded.split_at_mut(margin * CHANNELS);
    let (inside, after) = rest.split_at_mut(source.len());
    for (place, level) in inside.iter_mut().zip(source) {
        *place = f32::from(*level);
    }
    let width = source.len() / CHANNELS;
    for (edge, first) in [(before, -(margin as isize)), (after, width as isize)] {
        for (at, pixel) in edge.as_chunks_mut::<CHANNELS>().0.iter_mut().enumerate() {
            let from = mirrored(first + at as isize, width) * CHANNELS;
            pixel.copy_from_slice(&inside[from..from + CHANNELS]);
        }
    }
}

/// Weighs pixels side by side; `padded` is longer than `out` by the weights less one.
#[inline(always)]
fn convolve(padded: &[f32], weights: &[f32], out: &mut [f32]) {
    let mut start = 0;
    let (chunks, rest) = out.as_chunks_mut::<LANES>();
    for chunk in chunks {
        let mut sums = [0.0; LANES];
        for (at, &weight) in weights.iter().enumerate() {
            let levels = &padded[start + at * CHANNELS..][..LANES];
            for (sum, level) in sums.iter_mut().zip(levels) {
                *sum += level * weight;
            }
        }
        *chunk = sums;
        start += LANES;
    }
    for (at, out) in rest.iter_mut().enumerate() {
        let levels = padded[start + at..].iter().step_by(CHANNELS);
        *out = levels.zip(weights).fold(0.0, |sum, (level, weight)| sum + level * weight);
    }
}
