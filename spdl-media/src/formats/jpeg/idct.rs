//! The inverse cosine transform of 8 × 8 coefficients.
//!
//! Loeffler, Ligtenberg and Moschytz, "Practical fast 1-D DCT algorithms with 11 multiplications"
//! (ICASSP 1989), in 13-bit fixed point with the roundings of libjpeg's accurate integer transform,
//! so that every sample is equal to that library's.

use fearless_simd::prelude::*;
use fearless_simd::{i16x8, i16x16, i32x8, u8x16};

use super::header::BLOCK;
use super::scan::{Block, Quantization};

const FRACTION_BITS: u32 = 13;
/// Additional bits that are kept between the two passes.
const PASS_BITS: u32 = 2;
/// The middle of the range of samples.
const MIDDLE: u8 = 128;

/// A constant in fixed point.
const fn fixed(value: f64) -> i16 {
    let scaled = value * (1 << FRACTION_BITS) as f64;
    (if scaled < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i16
}

const F0_298: i16 = fixed(0.298_631_336);
const F0_390: i16 = fixed(0.390_180_644);
const F0_541: i16 = fixed(0.541_196_100);
const F0_765: i16 = fixed(0.765_366_865);
const F0_899: i16 = fixed(0.899_976_223);
const F1_175: i16 = fixed(1.175_875_602);
const F1_501: i16 = fixed(1.501_321_110);
const F1_847: i16 = fixed(1.847_759_065);
const F1_961: i16 = fixed(1.961_570_560);
const F2_053: i16 = fixed(2.053_119_869);
const F2_562: i16 = fixed(2.562_915_447);
const F3_072: i16 = fixed(3.072_711_026);
const ONE: i16 = 1 << FRACTION_BITS;

/// Turns coefficients into 8 rows of 8 samples.
#[inline(always)]
pub(super) fn inverse<S: Simd>(
    simd: S,
    block: &Block,
    quantization: &Quantization,
) -> [[u8; BLOCK]; BLOCK] {
    let (coefficients, _) = block.as_chunks::<BLOCK>();
    let (steps, _) = quantization.as_chunks::<BLOCK>();
    let load = |row: usize| i16x8::from_slice(simd, &coefficients[row]);
    let mut any = i16x8::from_slice(simd, &coefficients[0]) & i16x8::from_slice(simd, &WITHOUT_DC);
    for row in 1..BLOCK {
        any |= load(row);
    }
    // Flat blocks are many; for them both passes come down to this.
    if any.simd_eq(i16x8::splat(simd, 0)).all_true() {
        let dc = i32::from(block[0].wrapping_mul(quantization[0]));
        let value = ((dc << PASS_BITS) + 16) >> (PASS_BITS + 3);
        return [[(value + i32::from(MIDDLE)).clamp(0, 255) as u8; BLOCK]; BLOCK];
    }
    let scaled = |row: usize| load(row) * i16x8::from_slice(simd, &steps[row]);
    let rows =
        [scaled(0), scaled(1), scaled(2), scaled(3), scaled(4), scaled(5), scaled(6), scaled(7)];
    // Down the columns, then along the rows; `transform` works on columns, eight at once.
    let rows = transform::<S, { FRACTION_BITS - PASS_BITS }>(simd, rows);
    let rows = transform::<S, { FRACTION_BITS + PASS_BITS + 3 }>(simd, transpose(rows));
    let rows = transpose(rows);
    let mut samples = [[0; BLOCK]; BLOCK];
    let (pairs, _) = samples.as_chunks_mut::<2>();
    for (pair, rows) in pairs.iter_mut().zip(rows.as_chunks::<2>().0) {
        let bytes: u8x16<S> = rows[0].saturating_narrow(rows[1]).bitcast();
        (bytes + u8x16::splat(simd, MIDDLE)).store_slice(pair.as_flattened_mut());
    }
    samples
}

const WITHOUT_DC: [i16; BLOCK] = [0, -1, -1, -1, -1, -1, -1, -1];

/// Exchanges rows and columns: three times, upper and lower half are shuffled into each other.
#[inline(always)]
fn transpose<S: Simd>(mut rows: [i16x8<S>; BLOCK]) -> [i16x8<S>; BLOCK] {
    for _ in 0..3 {
        let (a, b) = rows[0].interleave(rows[4]);
        let (c, d) = rows[1].interleave(rows[5]);
        let (e, f) = rows[2].interleave(rows[6]);
        let (g, h) = rows[3].interleave(rows[7]);
        rows = [a, b, c, d, e, f, g, h];
    }
    rows
}

/// Two rows, value beside value, to be multiplied by two factors and summed.
#[inline(always)]
fn paired<S: Simd>(a: i16x8<S>, b: i16x8<S>) -> i16x16<S> {
    let (low, high) = a.interleave(b);
    low.combine(high)
}

/// `a × factors.0 + b × factors.1` for each of eight columns.
#[inline(always)]
fn weigh<S: Simd>(simd: S, pair: i16x16<S>, factors: (i16, i16)) -> i32x8<S> {
    let factors: [i16; 16] = [
        factors.0, factors.1, factors.0, factors.1, factors.0, factors.1, factors.0, factors.1,
        factors.0, factors.1, factors.0, factors.1, factors.0, factors.1, factors.0, factors.1,
    ];
    pair.pairwise_dot_product(i16x16::from_slice(simd, &factors))
}

/// One-dimensional transforms of eight columns, rounded and shifted by `SHIFT`.
#[inline(always)]
fn transform<S: Simd, const SHIFT: u32>(simd: S, rows: [i16x8<S>; BLOCK]) -> [i16x8<S>; BLOCK] {
    let [r0, r1, r2, r3, r4, r5, r6, r7] = rows;
    // The even part.
    let pair = paired(r2, r6);
    let t2 = weigh(simd, pair, (F0_541, F0_541 - F1_847));
    let t3 = weigh(simd, pair, (F0_541 + F0_765, F0_541));
    let pair = paired(r0, r4);
    let t0 = weigh(simd, pair, (ONE, ONE));
    let t1 = weigh(simd, pair, (ONE, -ONE));
    let rounding = i32x8::splat(simd, 1 << (SHIFT - 1));
    let even = [t0 + t3 + rounding, t1 + t2 + rounding, t1 - t2 + rounding, t0 - t3 + rounding];
    // The odd part.
    let pair = paired(r7 + r3, r5 + r1);
    let z3 = weigh(simd, pair, (F1_175 - F1_961, F1_175));
    let z4 = weigh(simd, pair, (F1_175, F1_175 - F0_390));
    let outer = paired(r1, r7);
    let inner = paired(r3, r5);
    let odd = [
        weigh(simd, outer, (F1_501 - F0_899, -F0_899)) + z4,
        weigh(simd, inner, (F3_072 - F2_562, -F2_562)) + z3,
        weigh(simd, inner, (-F2_562, F2_053 - F2_562)) + z4,
        weigh(simd, outer, (-F0_899, F0_298 - F0_899)) + z3,
    ];
    let shifted = |a: i32x8<S>, b: i32x8<S>| (a >> SHIFT).saturating_narrow(b >> SHIFT).split();
    let (o0, o1) = shifted(even[0] + odd[0], even[1] + odd[1]);
    let (o2, o3) = shifted(even[2] + odd[2], even[3] + odd[3]);
    let (o4, o5) = shifted(even[3] - odd[3], even[2] - odd[2]);
    let (o6, o7) = shifted(even[1] - odd[1], even[0] - odd[0]);
    [o0, o1, o2, o3, o4, o5, o6, o7]
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use fearless_simd::{Level, dispatch};

    use super::*;

    fn inverse_of(block: &Block, quantization: &Quantization) -> [[u8; BLOCK]; BLOCK] {
        dispatch!(Level::new(), simd => inverse(simd, block, quantization))
    }

    /// The definition (ITU-T T.81, A.3.3).
    fn reference(block: &Block) -> [[f64; BLOCK]; BLOCK] {
        let weight = |k: usize| if k == 0 { 0.5f64.sqrt() } else { 1.0 };
        let wave = |k: usize, x: usize| ((2 * x + 1) as f64 * k as f64 * PI / 16.0).cos();
        let mut samples = [[0.0; BLOCK]; BLOCK];
        for (y, row) in samples.iter_mut().enumerate() {
            for (x, sample) in row.iter_mut().enumerate() {
                for (at, &coefficient) in block.iter().enumerate() {
                    let (v, u) = (at / BLOCK, at % BLOCK);
                    *sample +=
                        weight(u) * weight(v) * f64::from(coefficient) * wave(u, x) * wave(v, y)
                            / 4.0;
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
            let samples = inverse_of(&block, &[1; BLOCK * BLOCK]);
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
            let short = inverse_of(&block, &[1; BLOCK * BLOCK]);
            // A coefficient that the quantization makes vanish takes the long way.
            block[63] = 1;
            let mut quantization = [1; BLOCK * BLOCK];
            quantization[63] = 0;
            assert_eq!(short, inverse_of(&block, &quantization), "{dc}");
        }
    }
}
