//! Quantization steps, and joint stereo.
//!
//! Source of the formulas: ISO/IEC 11172-3, 2.4.3.4; ISO/IEC 13818-3, 2.4.3.2.

use std::f32::consts::FRAC_1_SQRT_2;

use super::bands::{BandLayout, MAX_BANDS};
use super::hybrid::LINES;
use super::side_info::{Granule, Scales};

/// What is added to the scale factors of long bands with preemphasis.
const PREEMPHASIS: [u8; 22] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3, 3, 3, 2, 0];
/// The global gain of a step of 1.
const UNIT_GAIN: i32 = 210;

/// `2^(exponent / 4)`.
#[inline(always)]
fn power_of_root(exponent: i32) -> f32 {
    const ROOTS: [f32; 4] = [1.0, 1.189_207_1, std::f32::consts::SQRT_2, 1.681_792_8];
    // All exponents are between -462 and 45.
    let whole = (127 + exponent.div_euclid(4)).clamp(1, 254) as u32;
    f32::from_bits(whole << 23) * ROOTS[exponent.rem_euclid(4) as usize]
}

/// The factor of the lines in each band. `reduction` is subtracted from the gain.
#[inline(always)]
pub(super) fn steps(
    granule: &Granule,
    scales: &Scales,
    layout: &BandLayout,
    has_preemphasis: bool,
    reduction: i32,
) -> [f32; MAX_BANDS + 1] {
    let mut steps = [0.0; MAX_BANDS + 1];
    let gain = granule.global_gain - UNIT_GAIN - reduction;
    let shift = granule.scale_shift;
    for (band, step) in steps[..layout.long].iter_mut().enumerate() {
        let added = if has_preemphasis { PREEMPHASIS[band % 22] } else { 0 };
        *step = power_of_root(gain - (i32::from(scales.values[band] + added) << shift));
    }
    for (at, step) in steps[layout.long..layout.count].iter_mut().enumerate() {
        let gain = gain - 8 * granule.subblock_gain[at % 3];
        *step = power_of_root(gain - (i32::from(scales.values[layout.long + at]) << shift));
    }
    steps
}

/// What joint stereo does with the lines of a granule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Intensity<'a> {
    pub(super) is_low_rate: bool,
    /// Whether bands without intensity stereo have middle and side.
    pub(super) has_middle: bool,
    /// The side information, scale factors and layout of the right channel.
    pub(super) right: &'a Granule,
    pub(super) scales: &'a Scales,
    pub(super) layout: &'a BandLayout,
}

impl Intensity<'_> {
    /// Replaces middle and side, or one signal and its position, by left and right.
    pub(super) fn apply(&self, left: &mut [f32; LINES], right: &mut [f32; LINES]) {
        let layout = self.layout;
        // For each window: whether all higher bands of the right channel are zero.
        let mut is_above = [true; 3];
        for band in (0..layout.count).rev() {
            let places = &layout.places[layout.band(band)];
            let is_short = band >= layout.long;
            let window = if is_short { (band - layout.long) % 3 } else { 0 };
            let is_intensity = if is_short { is_above[window] } else { is_above == [true; 3] }
                && is_zero(right, places);
            if is_short {
                is_above[window] = is_intensity;
            } else {
                is_above = [is_intensity; 3];
            }
            // The last band has no position.
            let step = if is_short { 3 } else { 1 };
            let position = if band + step >= layout.count && is_intensity {
                self.last_position(right, band - step)
            } else {
                self.scales.position(band)
            };
            let matrix = if let (true, Some(position)) = (is_intensity, position) {
                let [left, right] = self.factors(position);
                [[left, 0.0], [right, 0.0]]
            } else if self.has_middle {
                [[FRAC_1_SQRT_2, FRAC_1_SQRT_2], [FRAC_1_SQRT_2, -FRAC_1_SQRT_2]]
            } else {
                continue;
            };
            for place in places {
                let place = usize::from(*place);
                let (l, r) = (left[place], right[place]);
                left[place] = l * matrix[0][0] + r * matrix[0][1];
                right[place] = l * matrix[1][0] + r * matrix[1][1];
            }
        }
    }

    /// The position of the last band of a window: that of the band `before`, or the middle if that
    /// band is not zero.
    fn last_position(&self, right: &[f32; LINES], before: usize) -> Option<u8> {
        if is_zero(right, &self.layout.places[self.layout.band(before)]) {
            self.scales.position(before)
        } else {
            Some(if self.is_low_rate { 0 } else { 3 })
        }
    }

    /// The factors of left and right for a position.
    fn factors(&self, position: u8) -> [f32; 2] {
        if self.is_low_rate {
            let quarters = if self.right.has_coarse_positions() { 2 } else { 1 };
            let factor = power_of_root(-quarters * i32::from(position.div_ceil(2)));
            if position % 2 == 1 { [factor, 1.0] } else { [1.0, factor] }
        } else {
            let angle = f64::from(position) * std::f64::consts::PI / 12.0;
            let (sine, cosine) = angle.sin_cos();
            // tan / (1 + tan) and 1 / (1 + tan).
            [sine / (sine + cosine), cosine / (sine + cosine)].map(|it| it as f32)
        }
    }
}

fn is_zero(lines: &[f32; LINES], places: &[u16]) -> bool {
    places.iter().all(|place| lines[usize::from(*place)] == 0.0)
}

/// Replaces middle and side, already divided by √2, by left and right.
#[inline(always)]
pub(super) fn middle_to_left(left: &mut [f32; LINES], right: &mut [f32; LINES]) {
    for (left, right) in left.iter_mut().zip(right) {
        (*left, *right) = (*left + *right, *left - *right);
    }
}

#[cfg(test)]
mod tests {
    use super::super::bands::layouts;
    use super::*;

    /// Left and right of the lines of a long block whose right channel is zero.
    fn joined(is_low_rate: bool, scales: &Scales, has_middle: bool) -> [[f32; LINES]; 2] {
        let (mut left, mut right) = ([1.0; LINES], [0.0; LINES]);
        let layout = &layouts(if is_low_rate { 3 } else { 0 })[0];
        let info = &Granule::default();
        Intensity { is_low_rate, has_middle, right: info, scales, layout }
            .apply(&mut left, &mut right);
        [left, right]
    }

    #[test]
    fn positions_distribute_the_signal() {
        let mut scales = Scales { positions: [7; MAX_BANDS], ..Scales::default() };
        scales.values = std::array::from_fn(|band| (band % 9) as u8);
        let [left, right] = joined(false, &scales, false);
        let layout = &layouts(0)[0];
        // The last band has the position of the one before.
        for band in 0..layout.count - 1 {
            let place = usize::from(layout.places[layout.band(band).start]);
            let expected = match band % 9 {
                position @ 0..7 => {
                    let ratio = (position as f64 * std::f64::consts::PI / 12.0).tan();
                    [ratio / (1.0 + ratio), 1.0 / (1.0 + ratio)]
                }
                // No position.
                _ => [1.0, 0.0],
            };
            let found = [left[place], right[place]].map(f64::from);
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{band}");
        }
        let last = |at: usize| usize::from(layout.places[layout.band(at).start]);
        assert_eq!(left[last(21)], left[last(20)]);
    }

    #[test]
    fn at_low_rates_the_highest_number_of_a_length_is_no_position() {
        let mut scales = Scales { positions: [3; MAX_BANDS], ..Scales::default() };
        scales.values = std::array::from_fn(|band| (band % 4) as u8);
        let [left, right] = joined(true, &scales, true);
        let layout = &layouts(3)[0];
        let quarter = 2f32.powf(-0.25);
        for band in 0..layout.count - 1 {
            let place = usize::from(layout.places[layout.band(band).start]);
            let expected = match band % 4 {
                0 => [1.0, 1.0],
                1 => [quarter, 1.0],
                2 => [1.0, quarter],
                _ => [FRAC_1_SQRT_2; 2],
            };
            let found = [left[place], right[place]];
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{band}");
        }
    }

    #[test]
    fn powers_are_exact_to_rounding() {
        for exponent in -462..=45 {
            let expected = (f64::from(exponent) / 4.0).exp2();
            let found = f64::from(power_of_root(exponent));
            assert!((found / expected - 1.0).abs() < 1e-7, "{exponent}");
        }
    }
}
