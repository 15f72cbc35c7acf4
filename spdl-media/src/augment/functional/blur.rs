//! Gaussian blur: along rows, then along columns.

use fearless_simd::{Level, dispatch};
use spdl_core::Result;

use super::super::checks::check;
use super::super::image::{ImageMut, Scratch};
use super::arithmetic::{clamped, rounded};
use crate::image::CHANNELS;

/// The number of sums that are computed in parallel.
const LANES: usize = 32;

/// Gaussian blur with a kernel of `kernel` pixels (width, height) and standard deviations `sigma`
/// in pixels. The image is mirrored at its edges, without repeating the edge pixel.
///
/// Levels may differ from torchvision's by 1 if a sum lies halfway between two levels, because the
/// order of additions differs.
///
/// # Errors
/// `InvalidArgument` if a kernel size is even, or half of it (rounded down) is not less than the
/// image side, or if a standard deviation is not positive and finite.
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
        format!(
            "blur kernel of {}x{} pixels is too large for an image of {size} pixels",
            kernel[0], kernel[1]
        )
    })?;
    check(sigma.iter().all(|sigma| sigma.is_finite() && *sigma > 0.0), || {
        format!("invalid standard deviations {sigma:?}: expected positive finite numbers")
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

/// Checks the kernel size without the image.
pub(in crate::augment) fn check_kernel(kernel: [usize; 2]) -> Result<()> {
    check(kernel.iter().all(|size| size % 2 == 1), || {
        format!("invalid kernel size {kernel:?}: expected odd numbers")
    })
}

/// The weights of a Gaussian at whole pixels, with sum 1.
fn gaussian(weights: &mut [f32], sigma: f64) {
    let middle = (weights.len() / 2) as f64;
    let weight = |at: usize| (-((at as f64 - middle) / sigma).powi(2) / 2.0).exp();
    let sum: f64 = (0..weights.len()).map(weight).sum();
    for (at, place) in weights.iter_mut().enumerate() {
        *place = (weight(at) / sum) as f32;
    }
}

/// The index of the pixel at position `at`, mirrored at the edges; `at` is less than `len` beyond
/// an edge.
#[inline(always)]
fn mirrored(at: isize, len: usize) -> usize {
    let last = len as isize - 1;
    let at = at.abs();
    (if at > last { 2 * last - at } else { at }).max(0) as usize
}

/// Converts a row to numbers, with `margin` mirrored pixels at both ends.
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

/// Convolves pixels. `padded` is longer than `out` by the number of weights − 1.
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
