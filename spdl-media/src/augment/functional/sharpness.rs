//! Sharpness: scales the difference between a pixel and its neighbourhood.

use fearless_simd::{Level, Simd, dispatch};
use spdl_core::Result;

use super::super::checks::check_factor;
use super::super::image::{ImageMut, Scratch};
use super::arithmetic::{clamped, multiply_add, truncated};
use crate::image::CHANNELS;

/// The sum of the smoothing weights: 5 for the pixel and 1 for each of eight neighbours.
const WEIGHTS: u16 = 13;

/// Blends the image with a smoothed copy: 0 gives the smoothed copy, 1 the original, 2 doubles the
/// sharpness. The edge pixels, and images with fewer than three rows or columns, do not change.
///
/// # Errors
/// `InvalidArgument` if the factor is negative or not finite.
pub fn adjust_sharpness(
    image: &mut ImageMut<'_>,
    factor: f64,
    scratch: &mut Scratch,
) -> Result<()> {
    check_factor("sharpness", factor)?;
    let (width, height) = (image.size().width as usize, image.size().height as usize);
    if width <= 2 || height <= 2 {
        return Ok(());
    }
    let row = width * CHANNELS;
    let mut source = scratch.take_bytes(row * height);
    source.copy_from_slice(image.pixels());
    let away = (1.0 - factor) as f32;
    dispatch!(Level::new(), simd => {
        let rows = image.pixels_mut()[row..].chunks_exact_mut(row);
        for (out, around) in rows.zip(source.windows(3 * row).step_by(row)) {
            sharpen_row(simd, around, &mut out[CHANNELS..row - CHANNELS], away);
        }
    });
    scratch.give_bytes(source);
    Ok(())
}

/// Writes a row without its first and last pixel, from three rows.
#[inline(always)]
fn sharpen_row<S: Simd>(simd: S, around: &[u8], out: &mut [u8], away: f32) {
    let (above, rest) = around.split_at(around.len() / 3);
    let (own, below) = rest.split_at(above.len());
    let len = out.len();
    let columns = [above, own, below]
        .map(|row| [&row[..len], &row[CHANNELS..][..len], &row[2 * CHANNELS..][..len]]);
    for at in 0..len {
        let mut sum = 0;
        for row in &columns {
            for shifted in row {
                sum += u16::from(shifted[at]);
            }
        }
        let level = columns[1][1][at];
        sum += u16::from(level) * (WEIGHTS - 9);
        // The sum of the weights is odd, so no mean lies exactly between two levels.
        let smooth = (sum + WEIGHTS / 2) / WEIGHTS;
        let difference = f32::from(smooth) - f32::from(level);
        out[at] = truncated(clamped(multiply_add(simd, difference, away, f32::from(level))));
    }
}
