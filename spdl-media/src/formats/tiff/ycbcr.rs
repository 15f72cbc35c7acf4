//! YCbCr coefficients and reference values.

use spdl_core::Result;

use super::super::errors;
use super::directory::Directory;
use super::errors::NAME;
use super::tags::Tag;
use crate::image::CHANNELS;

/// The meaning of stored YCbCr values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct YCbCrCoefficients {
    /// YCbCrCoefficients: the luma coefficients of red, green and blue.
    pub(super) parts: [f32; CHANNELS],
    /// Reference black and white of Y, Cb and Cr: the stored values that stand for 0 and for 1 (for
    /// Cb and Cr, ½).
    pub(super) range: [[f32; 2]; CHANNELS],
}

impl YCbCrCoefficients {
    /// ITU-R BT.601, full range.
    pub(super) const JPEG: YCbCrCoefficients = YCbCrCoefficients {
        parts: [0.299, 0.587, 0.114],
        range: [[0.0, 255.0], [128.0, 255.0], [128.0, 255.0]],
    };

    pub(super) fn read(directory: &Directory<'_>) -> Result<YCbCrCoefficients> {
        let mut luma = YCbCrCoefficients::JPEG;
        if let Some(parts) = numbers(directory, Tag::YCbCrCoefficients)? {
            luma.parts = parts;
        }
        if let Some([a, b, c, d, e, f]) = numbers(directory, Tag::ReferenceBlackWhite)? {
            luma.range = [[a, b], [c, d], [e, f]];
        }
        // `rgb` divides by this difference, which is 0 for very small values of Cb or Cr.
        let differ = |([none, all], centre): (&[f32; 2], f32)| none - centre != all - centre;
        let is_valid = luma.parts[1] != 0.0 && luma.range.iter().zip(CENTRES).all(differ);
        match is_valid {
            true => Ok(luma),
            false => Err(errors::corrupt(
                NAME,
                "invalid value of tag YCbCrCoefficients or ReferenceBlackWhite",
            )),
        }
    }

    /// Whether the coefficients and reference values are the values that JPEG uses. Stored
    /// fractions have few digits, so the comparison has a tolerance.
    pub(super) fn is_jpeg(&self) -> bool {
        let near = |a: &f32, b: &f32, most: f32| (a - b).abs() < most;
        let YCbCrCoefficients { parts, range } = YCbCrCoefficients::JPEG;
        self.parts.iter().zip(&parts).all(|(a, b)| near(a, b, 1e-3))
            && self.range.iter().flatten().zip(range.iter().flatten()).all(|(a, b)| near(a, b, 0.5))
    }

    /// Converts with the formulas of TIFF 6.0, section 21, in the arithmetic of libtiff: normalised
    /// values are truncated to integers, and factors have 16 fractional bits.
    pub(super) fn rgb(&self, stored: [u8; CHANNELS]) -> [u8; CHANNELS] {
        let scales = [255.0, 127.0, 127.0];
        let [y, cb, cr] = std::array::from_fn(|at| {
            let centre = CENTRES[at];
            let [none, all] = self.range[at].map(|value| value - centre);
            // A cast from `f32` truncates and saturates.
            let above = (i32::from(stored[at]) - centre as i32).saturating_sub(none as i32);
            let normalised = above as f32 * scales[at] / (all - none);
            normalised.clamp(-MAX_NORMALISED, MAX_NORMALISED) as i32
        });
        let [red, green, blue] = self.parts;
        let (of_red, of_blue) = (2.0 - 2.0 * red, 2.0 - 2.0 * blue);
        let of_green = [blue * of_blue / green, red * of_red / green];
        let [cb_in_green, cr_in_green] = of_green.map(|factor| -fixed(factor));
        let half = 1 << (FRACTION_BITS - 1);
        [
            y + ((fixed(of_red) * cr + half) >> FRACTION_BITS),
            y + ((cb_in_green * cb + cr_in_green * cr + half) >> FRACTION_BITS),
            y + ((fixed(of_blue) * cb + half) >> FRACTION_BITS),
        ]
        .map(|value| value.clamp(0, 255) as u8)
    }
}

/// Converts with the coefficients of JPEG and factors with 6 fractional bits, as Pillow does without
/// libtiff.
pub(super) fn uncompressed_rgb([y, cb, cr]: [u8; CHANNELS]) -> [u8; CHANNELS] {
    let scaled =
        |factor: f64, stored: u8| (factor * 64.0 * f64::from(i32::from(stored) - 128) + 0.5) as i32;
    let green = scaled(-0.34414, cb) + scaled(-0.71414, cr);
    [scaled(1.402, cr), green, scaled(1.772, cb)]
        .map(|difference| (i32::from(y) + (difference >> 6)).clamp(0, 255) as u8)
}

/// The stored values of zero luma and of zero colour differences.
const CENTRES: [f32; CHANNELS] = [0.0, 128.0, 128.0];
const FRACTION_BITS: u32 = 16;
/// The limit of normalised values, which prevents overflows.
const MAX_NORMALISED: f32 = 4096.0;

/// A factor from 0 to 2 with `FRACTION_BITS` fractional bits. Other factors are clamped, and NaN is 0.
fn fixed(factor: f32) -> i32 {
    let scaled = factor.clamp(0.0, 2.0) * (1 << FRACTION_BITS) as f32;
    (f64::from(scaled) + 0.5) as i32
}

/// The numbers of a tag; `None` if the tag is missing.
fn numbers<const N: usize>(directory: &Directory<'_>, tag: Tag) -> Result<Option<[f32; N]>> {
    let Some(values) = directory.values(tag)? else { return Ok(None) };
    if values.len() != N {
        let message = format!("tag {tag:?} has {} values: expected {N}", values.len());
        return Err(errors::corrupt(NAME, message));
    }
    let mut numbers = [0.0; N];
    for (index, number) in numbers.iter_mut().enumerate() {
        *number = values.float(index)?;
    }
    Ok(Some(numbers))
}
