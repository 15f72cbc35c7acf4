//! The inverse cosine transform of 8 × 8 coefficients.
//!
//! Loeffler, Ligtenberg and Moschytz, "Practical fast 1-D DCT algorithms with 11 multiplications"
//! (ICASSP 1989), in 13-bit fixed point with the roundings of libjpeg's accurate integer transform,
//! so that every sample is equal to that library's.

use super::header::BLOCK;
use super::scan::{Block, Quantization};

/// Eight values side by side: a row of a block.
type Row = [i32; BLOCK];

const FRACTION_BITS: u32 = 13;
/// Additional bits that are kept between the two passes.
const PASS_BITS: u32 = 2;
/// The middle of the range of samples.
const MIDDLE: i32 = 128;

/// A constant in fixed point.
const fn fixed(value: f64) -> i32 {
    let scaled = value * (1 << FRACTION_BITS) as f64;
    (if scaled < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
}

/// Turns coefficients into 8 rows of 8 samples.
#[inline(always)]
pub(super) fn inverse(block: &Block, quantization: &Quantization) -> [[u8; BLOCK]; BLOCK] {
    let mut dequantized = [0i16; BLOCK * BLOCK];
    for ((value, &coefficient), &step) in dequantized.iter_mut().zip(block).zip(quantization) {
        *value = coefficient.wrapping_mul(step as i16);
    }
    // Flat blocks are many; for them both passes come down to this.
    let [dc, ac @ ..] = block;
    if ac.iter().fold(0, |any, &value| any | value) == 0 {
        let _ = dc;
        let value = ((i32::from(dequantized[0]) << PASS_BITS) + 16) >> (PASS_BITS + 3);
        return [[(value + MIDDLE).clamp(0, 255) as u8; BLOCK]; BLOCK];
    }
    let mut rows = [[0; BLOCK]; BLOCK];
    for (row, values) in rows.iter_mut().zip(dequantized.as_chunks::<BLOCK>().0) {
        *row = values.map(i32::from);
    }
    // Down the columns, then along the rows; `transform` works on columns, eight at once.
    let rows = transform::<{ FRACTION_BITS - PASS_BITS }>(rows);
    let rows = transform::<{ FRACTION_BITS + PASS_BITS + 3 }>(transpose(rows));
    transpose(rows).map(|row| row.map(|value| (value + MIDDLE).clamp(0, 255) as u8))
}

#[inline(always)]
fn transpose(rows: [Row; BLOCK]) -> [Row; BLOCK] {
    let mut columns = [[0; BLOCK]; BLOCK];
    for (y, row) in rows.iter().enumerate() {
        for (x, &value) in row.iter().enumerate() {
            columns[x][y] = value;
        }
    }
    columns
}

#[inline(always)]
fn zip(a: Row, b: Row, combine: impl Fn(i32, i32) -> i32) -> Row {
    let mut result = [0; BLOCK];
    for ((result, a), b) in result.iter_mut().zip(a).zip(b) {
        *result = combine(a, b);
    }
    result
}

#[inline(always)]
fn add(a: Row, b: Row) -> Row {
    zip(a, b, i32::wrapping_add)
}

#[inline(always)]
fn sub(a: Row, b: Row) -> Row {
    zip(a, b, i32::wrapping_sub)
}

#[inline(always)]
fn scale(a: Row, factor: i32) -> Row {
    a.map(|value| value.wrapping_mul(factor))
}

/// One-dimensional transforms of eight columns, rounded and shifted by `SHIFT`.
#[inline(always)]
fn transform<const SHIFT: u32>(rows: [Row; BLOCK]) -> [Row; BLOCK] {
    let [r0, r1, r2, r3, r4, r5, r6, r7] = rows;
    // The even part.
    let z = scale(add(r2, r6), const { fixed(0.541_196_100) });
    let t2 = add(z, scale(r6, const { fixed(-1.847_759_065) }));
    let t3 = add(z, scale(r2, const { fixed(0.765_366_865) }));
    let t0 = scale(add(r0, r4), 1 << FRACTION_BITS);
    let t1 = scale(sub(r0, r4), 1 << FRACTION_BITS);
    let even = [add(t0, t3), add(t1, t2), sub(t1, t2), sub(t0, t3)];
    // The odd part.
    let (z1, z2, z3, z4) = (add(r7, r1), add(r5, r3), add(r7, r3), add(r5, r1));
    let z5 = scale(add(z3, z4), const { fixed(1.175_875_602) });
    let z1 = scale(z1, const { fixed(-0.899_976_223) });
    let z2 = scale(z2, const { fixed(-2.562_915_447) });
    let z3 = add(scale(z3, const { fixed(-1.961_570_560) }), z5);
    let z4 = add(scale(z4, const { fixed(-0.390_180_644) }), z5);
    let odd = [
        add(scale(r1, const { fixed(1.501_321_110) }), add(z1, z4)),
        add(scale(r3, const { fixed(3.072_711_026) }), add(z2, z3)),
        add(scale(r5, const { fixed(2.053_119_869) }), add(z2, z4)),
        add(scale(r7, const { fixed(0.298_631_336) }), add(z1, z3)),
    ];
    let round = |row: Row| row.map(|value| value.wrapping_add(1 << (SHIFT - 1)) >> SHIFT);
    [
        round(add(even[0], odd[0])),
        round(add(even[1], odd[1])),
        round(add(even[2], odd[2])),
        round(add(even[3], odd[3])),
        round(sub(even[3], odd[3])),
        round(sub(even[2], odd[2])),
        round(sub(even[1], odd[1])),
        round(sub(even[0], odd[0])),
    ]
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use super::*;

    /// The definition (ITU-T T.81, A.3.3).
    fn reference(block: &Block) -> [[f64; BLOCK]; BLOCK] {
        let weight = |k: usize| if k == 0 { 0.5f64.sqrt() } else { 1.0 };
        let wave = |k: usize, x: usize| ((2 * x + 1) as f64 * k as f64 * PI / 16.0).cos();
        let mut samples = [[0.0; BLOCK]; BLOCK];
        for (y, row) in samples.iter_mut().enumerate() {
            for (x, sample) in row.iter_mut().enumerate() {
                for (at, &coefficient) in block.iter().enumerate() {
                    let (v, u) = (at / BLOCK, at % BLOCK);
                    *sample += weight(u) * weight(v) * f64::from(coefficient)
                        * wave(u, x) * wave(v, y) / 4.0;
                }
                *sample = (*sample + 128.0).clamp(0.0, 255.0);
            }
        }
        samples
    }

    #[test]
    fn samples_are_within_a_level_of_the_definition() {
        let mut state = 1u64;
        let mut next = |range: i64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) as i64 % (2 * range + 1) - range) as i16
        };
        for round in 0..200 {
            let mut block = [0i16; BLOCK * BLOCK];
            block[0] = next(900);
            for _ in 0..round % 20 {
                let at = next(31) as usize & 63;
                block[at] = next(150);
            }
            let samples = inverse(&block, &[1; BLOCK * BLOCK]);
            for (row, expected) in samples.iter().zip(reference(&block)) {
                for (&sample, expected) in row.iter().zip(expected) {
                    assert!((f64::from(sample) - expected).abs() <= 1.0, "{sample} {expected}");
                }
            }
        }
    }

    #[test]
    fn a_flat_block_is_the_same_by_the_short_way() {
        for dc in -1100..1100 {
            let mut block = [0i16; BLOCK * BLOCK];
            block[0] = dc;
            let short = inverse(&block, &[1; BLOCK * BLOCK]);
            // A coefficient that the quantization makes vanish takes the long way.
            block[63] = 1;
            let mut quantization = [1; BLOCK * BLOCK];
            quantization[63] = 0;
            assert_eq!(short, inverse(&block, &quantization), "{dc}");
        }
    }
}
