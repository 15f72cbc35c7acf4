//! Sharpening: what a pixel has over its neighbourhood, more or less of it.

use fearless_simd::{Level, Simd, dispatch};
use spdl_core::Result;

use super::arithmetic::{clamped, multiply_add, truncated};
use super::check_factor;
use crate::augment::{ImageMut, Scratch};
use crate::image::CHANNELS;

/// The weights of a pixel and its eight neighbours in the smoothed image are 5 and 1 each.
const WEIGHTS: u16 = 13;

/// Blends the image with a smoothed one: 0 gives that one alone, 1 the image as it is, 2 twice as
/// sharp. The outermost pixels, and images of less than three rows or columns, stay as they are.
///
/// # Errors
/// `InvalidArgument` where the factor is negative or not finite.
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
        // The weights are odd in number, so that no mean lies half-way between two levels.
        let smooth = (sum + WEIGHTS / 2) / WEIGHTS;
        let difference = f32::from(smooth) - f32::from(level);
        out[at] = truncated(clamped(multiply_add(simd, difference, away, f32::from(level))));
    }
}
