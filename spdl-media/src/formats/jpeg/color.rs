//! Chroma upsampling and colour conversion to RGB.
//!
//! The arithmetic is that of libjpeg: triangle filters for chroma of half resolution, and 16-bit
//! fixed point for the conversion from ITU-R BT.601 (full range).

use std::ops::Range;

use super::header::Color;
use crate::image::CHANNELS;

/// Memory for an upsampled row of each component, and intermediate sums.
#[derive(Debug, Default)]
pub(super) struct UpsamplingScratch {
    pub(super) lines: [Vec<u8>; 4],
    pub(super) sums: Vec<u16>,
}

/// How the samples of a component are upsampled to image resolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Upsampling {
    /// The component has full resolution.
    #[default]
    None,
    /// Horizontally by 2, with a triangle filter.
    Horizontal,
    /// Vertically by 2, with a triangle filter.
    Vertical,
    /// Horizontally and vertically by 2, with a triangle filter.
    Both,
    /// By repeating samples.
    Repeat { across: usize, down: usize },
}

impl Upsampling {
    /// The upsampling for these ratios of image to component, for a component of this width.
    pub(super) fn choose(across: usize, down: usize, width: usize) -> Self {
        match (across, down) {
            (1, 1) => Upsampling::None,
            (2, 1) if width > 2 => Upsampling::Horizontal,
            (1, 2) => Upsampling::Vertical,
            (2, 2) if width > 2 => Upsampling::Both,
            _ => Upsampling::Repeat { across, down },
        }
    }

    /// Whether an image row needs samples of neighbouring sample rows.
    pub(super) fn needs_context_rows(self) -> bool {
        matches!(self, Upsampling::Vertical | Upsampling::Both)
    }

    /// The number of image rows per sample row.
    #[inline(always)]
    pub(super) fn down(self) -> usize {
        match self {
            Upsampling::None | Upsampling::Horizontal => 1,
            Upsampling::Vertical | Upsampling::Both => 2,
            Upsampling::Repeat { down, .. } => down,
        }
    }
}

/// Repeats each sample `across` times.
#[inline(always)]
pub(super) fn repeat(row: &[u8], across: usize, columns: &Range<usize>, out: &mut Vec<u8>) {
    out.clear();
    out.extend(columns.clone().map(|x| row[x / across]));
}

/// Interpolates with weights ¾ for the nearer row and ¼ for the farther row; `lower` selects the
/// rounding.
#[inline(always)]
pub(super) fn upsample_vertical(
    near: &[u8],
    far: &[u8],
    lower: usize,
    columns: &Range<usize>,
    out: &mut Vec<u8>,
) {
    let bias = 1 + lower as u16;
    out.clear();
    let pairs = near[columns.clone()].iter().zip(&far[columns.clone()]);
    out.extend(
        pairs.map(|(&near, &far)| ((3 * u16::from(near) + u16::from(far) + bias) >> 2) as u8),
    );
}

/// Makes two pixels per sample: the left pixel has weights ¾ for the sample and ¼ for its left
/// neighbour, the right pixel ¾ and ¼ for its right neighbour. At the image edges, the sample
/// itself replaces the missing neighbour. With `TWO_ROWS`, rows are first interpolated vertically
/// in the same way.
///
/// The output starts at the pixel pair with the first of `columns`.
#[inline(always)]
pub(super) fn upsample_horizontal<const TWO_ROWS: bool>(
    near: &[u8],
    far: &[u8],
    columns: &Range<usize>,
    out: &mut Vec<u8>,
    sums: &mut Vec<u16>,
) {
    let (first, end) = (columns.start / 2, columns.end.div_ceil(2));
    let before = first.saturating_sub(1);
    let after = (end + 1).min(near.len());
    let sum = |(&near, &far): (&u8, &u8)| {
        if TWO_ROWS { 3 * u16::from(near) + u16::from(far) } else { u16::from(near) }
    };
    sums.clear();
    if first == 0 {
        sums.push(sum((&near[0], &far[0])));
    }
    sums.extend(near[before..after].iter().zip(&far[before..after]).map(sum));
    if after == end {
        sums.push(sum((&near[end - 1], &far[end - 1])));
    }
    let (shift, left_bias, right_bias) = if TWO_ROWS { (4, 8, 7) } else { (2, 1, 2) };
    // `resize` is needed only to grow the buffer: old values are overwritten.
    out.resize(2 * (end - first), 0);
    let (pairs, _) = out.as_chunks_mut::<2>();
    let neighbours = sums.iter().zip(&sums[1..]).zip(&sums[2..]);
    for (pair, ((&left, &own), &right)) in pairs.iter_mut().zip(neighbours) {
        let own = 3 * own;
        pair[0] = ((own + left + left_bias) >> shift) as u8;
        pair[1] = ((own + right + right_bias) >> shift) as u8;
    }
}

/// A factor in 16-bit fixed point.
const fn fixed(value: f64) -> i32 {
    (value * 65536.0 + 0.5) as i32
}

const HALF: i32 = 1 << 15;
const RED_FROM_CR: i32 = fixed(1.402);
const BLUE_FROM_CB: i32 = fixed(1.772);
const GREEN_FROM_CB: i32 = -fixed(0.344_14);
const GREEN_FROM_CR: i32 = -fixed(0.714_14);

#[inline(always)]
fn rgb(y: u8, cb: u8, cr: u8) -> [u8; CHANNELS] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let clamp = |value: i32| value.clamp(0, 255) as u8;
    [
        clamp(y + ((RED_FROM_CR * cr + HALF) >> 16)),
        clamp(y + ((GREEN_FROM_CB * cb + GREEN_FROM_CR * cr + HALF) >> 16)),
        clamp(y + ((BLUE_FROM_CB * cb + HALF) >> 16)),
    ]
}

/// The RGB channel from an ink and black, which are both stored inverted, in Pillow's integer
/// arithmetic.
#[inline(always)]
fn cmyk_channel(ink: u8, black: u8) -> u8 {
    let (ink, white) = (255 - u32::from(ink), u32::from(black));
    let product = ink * white + 128;
    white.saturating_sub(((product >> 8) + product) >> 8) as u8
}

/// Converts a row to RGB.
#[inline(always)]
pub(super) fn convert(color: Color, lines: [&[u8]; 4], out: &mut [u8]) {
    let (pixels, _) = out.as_chunks_mut::<CHANNELS>();
    let [first, second, third, fourth] = lines;
    match color {
        Color::Grey => {
            for (pixel, &grey) in pixels.iter_mut().zip(first) {
                *pixel = [grey; CHANNELS];
            }
        }
        Color::Rgb => {
            for (((pixel, &r), &g), &b) in pixels.iter_mut().zip(first).zip(second).zip(third) {
                *pixel = [r, g, b];
            }
        }
        Color::YCbCr => {
            for (((pixel, &y), &cb), &cr) in pixels.iter_mut().zip(first).zip(second).zip(third) {
                *pixel = rgb(y, cb, cr);
            }
        }
        Color::Cmyk | Color::Ycck => {
            let inks = first.iter().zip(second).zip(third).zip(fourth);
            for (pixel, (((&a, &b), &c), &black)) in pixels.iter_mut().zip(inks) {
                let inks = match color {
                    Color::Ycck => rgb(a, b, c).map(|value| 255 - value),
                    _ => [a, b, c],
                };
                *pixel = inks.map(|ink| cmyk_channel(ink, black));
            }
        }
        Color::PlainCmyk => {
            let inks = first.iter().zip(second).zip(third).zip(fourth);
            for (pixel, (((&a, &b), &c), &black)) in pixels.iter_mut().zip(inks) {
                *pixel = [a, b, c].map(|ink| cmyk_channel(255 - ink, 255 - black));
            }
        }
    }
}
