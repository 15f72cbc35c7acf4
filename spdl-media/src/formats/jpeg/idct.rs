//! The inverse DCT of 8 × 8 coefficients.
//!
//! The algorithm is by Loeffler, Ligtenberg and Moschytz, "Practical fast 1-D DCT algorithms with
//! 11 multiplications" (ICASSP 1989). It uses 13-bit fixed point with the rounding of libjpeg's
//! accurate integer transform, so that every sample is identical.

use fearless_simd::prelude::*;
use fearless_simd::{i16x8, i16x16, i32x8, u8x16};

use super::header::BLOCK;
use super::header::Quantization;
use super::huffman::WorkBlock;
use crate::image::simd::transpose_8x8;

const FRACTION_BITS: u32 = 13;
/// The number of additional fraction bits between the two passes.
const PASS_BITS: u32 = 2;
/// The number of coefficients of the first four diagonals, in four rows and four columns.
pub(super) const LOW: usize = 10;
/// The middle of the sample range.
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

/// A row of dequantised coefficients.
#[inline(always)]
fn scaled<S: Simd>(
    simd: S,
    block: &WorkBlock,
    quantization: &Quantization,
    row: usize,
) -> i16x8<S> {
    let load = |values: &[i16]| i16x8::from_slice(simd, &values[row * BLOCK..][..BLOCK]);
    load(block) * load(quantization)
}

/// The sample value of a block that has only a DC coefficient; both passes together give the same
/// value.
#[inline(always)]
pub(super) fn flat(block: &WorkBlock, quantization: &Quantization) -> u8 {
    // Invalid coefficients overflow as in libjpeg-turbo: with 16 bits after the first pass.
    let dc = block[0].wrapping_mul(quantization[0]).wrapping_mul(1 << PASS_BITS);
    let value = (i32::from(dc) + 16) >> (PASS_BITS + 3);
    (value + i32::from(MIDDLE)).clamp(0, 255) as u8
}

/// The inverse DCT to 8 × 8 samples.
#[inline(always)]
pub(super) fn inverse<S: Simd>(
    simd: S,
    block: &WorkBlock,
    quantization: &Quantization,
) -> [[u8; BLOCK]; BLOCK] {
    let scaled = |row: usize| scaled(simd, block, quantization, row);
    let rows =
        [scaled(0), scaled(1), scaled(2), scaled(3), scaled(4), scaled(5), scaled(6), scaled(7)];
    if overflows(rows[0])
        && let Some(samples) = inverse_of_overflowing_row(simd, block, quantization)
    {
        return samples;
    }
    // Columns first, then rows; `transform` processes eight columns.
    let rows = transform::<S, { FRACTION_BITS - PASS_BITS }>(simd, rows);
    let rows = transform::<S, { FRACTION_BITS + PASS_BITS + 3 }>(simd, transpose_8x8(rows));
    samples(simd, transpose_8x8(rows))
}

/// Whether a coefficient of the first row is so large that the first pass overflows, if no other row has
/// coefficients. Only corrupt files have such blocks.
#[inline(always)]
fn overflows<S: Simd>(first: i16x8<S>) -> bool {
    !((first << PASS_BITS) >> PASS_BITS).simd_eq(first).all_true()
}

/// The samples of a block whose first row [overflows](overflows); `None` if other rows have coefficients. In
/// libjpeg-turbo, the result of the first pass then has the lower 16 bits; in `transform`, the nearest
/// 16-bit value.
///
/// Not inlined, so that the coefficients of other blocks stay in registers.
#[cold]
#[inline(never)]
fn inverse_of_overflowing_row<S: Simd>(
    simd: S,
    block: &WorkBlock,
    quantization: &Quantization,
) -> Option<[[u8; BLOCK]; BLOCK]> {
    if block[BLOCK..BLOCK * BLOCK].iter().any(|&coefficient| coefficient != 0) {
        return None;
    }
    let row = scaled(simd, block, quantization, 0) << PASS_BITS;
    let rows = transpose_8x8([row; BLOCK]);
    let rows = transform::<S, { FRACTION_BITS + PASS_BITS + 3 }>(simd, rows);
    Some(samples(simd, transpose_8x8(rows)))
}

#[inline(always)]
fn samples<S: Simd>(simd: S, rows: [i16x8<S>; BLOCK]) -> [[u8; BLOCK]; BLOCK] {
    let mut samples = [[0; BLOCK]; BLOCK];
    let (pairs, _) = samples.as_chunks_mut::<2>();
    for (pair, rows) in pairs.iter_mut().zip(rows.as_chunks::<2>().0) {
        pair.as_flattened_mut().copy_from_slice(&in_range(simd, rows[0], rows[1]));
    }
    samples
}

/// Computes [`inverse`] for a block in which only the first [`LOW`] coefficients in zigzag order
/// are non-zero: they are in four rows and four columns.
#[inline(always)]
pub(super) fn inverse_low<S: Simd>(
    simd: S,
    block: &WorkBlock,
    quantization: &Quantization,
) -> [[u8; BLOCK]; BLOCK] {
    let scaled = |row: usize| scaled(simd, block, quantization, row);
    let rows = [scaled(0), scaled(1), scaled(2), scaled(3)];
    if overflows(rows[0])
        && let Some(samples) = inverse_of_overflowing_row(simd, block, quantization)
    {
        return samples;
    }
    let rows = transform_low::<S, { FRACTION_BITS - PASS_BITS }>(simd, rows);
    let [a, b, c, d, ..] = transpose_8x8(rows);
    let rows = transform_low::<S, { FRACTION_BITS + PASS_BITS + 3 }>(simd, [a, b, c, d]);
    samples(simd, transpose_8x8(rows))
}

/// Shifts two rows of samples to the range 0 to 255 and clamps them.
#[inline(always)]
fn in_range<S: Simd>(simd: S, a: i16x8<S>, b: i16x8<S>) -> [u8; 2 * BLOCK] {
    let bytes: u8x16<S> = a.saturating_narrow(b).bitcast();
    let mut samples = [0; 2 * BLOCK];
    (bytes + u8x16::splat(simd, MIDDLE)).store_slice(&mut samples);
    samples
}

/// The inverse DCT to 4 × 4 samples: the means of 2 × 2 samples of [`inverse`], except for
/// rounding.
#[inline(always)]
pub(super) fn inverse_half<S: Simd>(
    simd: S,
    block: &WorkBlock,
    quantization: &Quantization,
) -> [[u8; 4]; 4] {
    let scaled = |row: usize| scaled(simd, block, quantization, row);
    let zero = i16x8::splat(simd, 0);
    // The fifth coefficient cancels out in the means.
    let rows = [scaled(0), scaled(1), scaled(2), scaled(3), zero, scaled(5), scaled(6), scaled(7)];
    let [a, b, c, d] = halve::<S, { FRACTION_BITS - PASS_BITS }>(simd, rows);
    let rows = transpose_8x8([a, b, c, d, zero, zero, zero, zero]);
    let [a, b, c, d] = halve::<S, { FRACTION_BITS + PASS_BITS + 3 }>(simd, rows);
    let (left, right) = (in_range(simd, a, b), in_range(simd, c, d));
    let row = |y: usize| [left[y], left[BLOCK + y], right[y], right[BLOCK + y]];
    [row(0), row(1), row(2), row(3)]
}

/// The inverse DCT to 2 × 2 samples: the means of 4 × 4 samples of [`inverse`], except for
/// rounding.
#[inline(always)]
pub(super) fn inverse_quarter<S: Simd>(
    simd: S,
    block: &WorkBlock,
    quantization: &Quantization,
) -> [[u8; 2]; 2] {
    let scaled = |row: usize| scaled(simd, block, quantization, row);
    let zero = i16x8::splat(simd, 0);
    let rows = [scaled(0), scaled(1), zero, scaled(3), zero, scaled(5), zero, scaled(7)];
    let [a, b] = quarter::<S, { FRACTION_BITS - PASS_BITS }>(simd, rows);
    let rows = transpose_8x8([a, b, zero, zero, zero, zero, zero, zero]);
    let [a, b] = quarter::<S, { FRACTION_BITS + PASS_BITS + 3 }>(simd, rows);
    let samples = in_range(simd, a, b);
    [[samples[0], samples[BLOCK]], [samples[1], samples[BLOCK + 1]]]
}

/// Interleaves two rows, so that one instruction can multiply both and add the products.
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
    // These sums have 16 bits, as in libjpeg-turbo. Only corrupt files exceed them.
    let pair = paired(r0 + r4, r0 - r4);
    let t0 = weigh(simd, pair, (ONE, 0));
    let t1 = weigh(simd, pair, (0, ONE));
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
    sums::<S, SHIFT>(even, odd)
}

/// Computes [`transform`] for a block in which the last four rows are zero.
#[inline(always)]
fn transform_low<S: Simd, const SHIFT: u32>(simd: S, rows: [i16x8<S>; 4]) -> [i16x8<S>; BLOCK] {
    let [r0, r1, r2, r3] = rows;
    let rounding = i32x8::splat(simd, 1 << (SHIFT - 1));
    let pair = paired(r0, r2);
    let even = [
        weigh(simd, pair, (ONE, F0_541 + F0_765)) + rounding,
        weigh(simd, pair, (ONE, F0_541)) + rounding,
        weigh(simd, pair, (ONE, -F0_541)) + rounding,
        weigh(simd, pair, (ONE, -F0_541 - F0_765)) + rounding,
    ];
    let pair = paired(r1, r3);
    let odd = [
        weigh(simd, pair, (F1_501 - F0_899 + F1_175 - F0_390, F1_175)),
        weigh(simd, pair, (F1_175, F3_072 - F2_562 + F1_175 - F1_961)),
        weigh(simd, pair, (F1_175 - F0_390, F1_175 - F2_562)),
        weigh(simd, pair, (F1_175 - F0_899, F1_175 - F1_961)),
    ];
    sums::<S, SHIFT>(even, odd)
}

/// Sums and differences of the even and the odd part, shifted.
#[inline(always)]
fn sums<S: Simd, const SHIFT: u32>(even: [i32x8<S>; 4], odd: [i32x8<S>; 4]) -> [i16x8<S>; BLOCK] {
    let shifted = |a: i32x8<S>, b: i32x8<S>| (a >> SHIFT).saturating_narrow(b >> SHIFT).split();
    let (o0, o1) = shifted(even[0] + odd[0], even[1] + odd[1]);
    let (o2, o3) = shifted(even[2] + odd[2], even[3] + odd[3]);
    let (o4, o5) = shifted(even[3] - odd[3], even[2] - odd[2]);
    let (o6, o7) = shifted(even[1] - odd[1], even[0] - odd[0]);
    [o0, o1, o2, o3, o4, o5, o6, o7]
}

/// The means of pairs of the results of [`transform`]. The mean of two neighbouring samples of a
/// cosine is the cosine between them, times the cosine of half their distance: √2 · cos(kπ/16) ·
/// cos((2j+1)kπ/8) for coefficient k and mean j.
#[inline(always)]
fn halve<S: Simd, const SHIFT: u32>(simd: S, rows: [i16x8<S>; BLOCK]) -> [i16x8<S>; 4] {
    let [r0, r1, r2, r3, _, r5, r6, r7] = rows;
    let zero = i16x8::splat(simd, 0);
    let mean = weigh(simd, paired(r0, zero), (ONE, 0)) + i32x8::splat(simd, 1 << (SHIFT - 1));
    let wave = weigh(simd, paired(r2, r6), (fixed(0.923_879_533), -fixed(0.382_683_432)));
    let even = [mean + wave, mean - wave];
    let (outer, inner) = (paired(r1, r7), paired(r3, r5));
    let odd = [
        weigh(simd, outer, (fixed(1.281_457_724), fixed(-0.254_897_790)))
            + weigh(simd, inner, (fixed(0.449_988_111), fixed(-0.300_672_444))),
        weigh(simd, outer, (fixed(0.530_797_169), fixed(-0.105_582_121)))
            + weigh(simd, inner, (fixed(-1.086_367_402), fixed(0.725_887_490))),
    ];
    let shifted = |a: i32x8<S>, b: i32x8<S>| (a >> SHIFT).saturating_narrow(b >> SHIFT).split();
    let (o0, o1) = shifted(even[0] + odd[0], even[1] + odd[1]);
    let (o2, o3) = shifted(even[1] - odd[1], even[0] - odd[0]);
    [o0, o1, o2, o3]
}

/// The means of four results of [`transform`]: √2 · cos(kπ/16) · cos(kπ/8) · cos((2j+1)kπ/4) for
/// coefficient k and mean j.
#[inline(always)]
fn quarter<S: Simd, const SHIFT: u32>(simd: S, rows: [i16x8<S>; BLOCK]) -> [i16x8<S>; 2] {
    let [r0, r1, _, r3, _, r5, _, r7] = rows;
    let zero = i16x8::splat(simd, 0);
    let mean = weigh(simd, paired(r0, zero), (ONE, 0)) + i32x8::splat(simd, 1 << (SHIFT - 1));
    let wave = weigh(simd, paired(r1, r3), (fixed(0.906_127_446), fixed(-0.318_189_645)))
        + weigh(simd, paired(r5, r7), (fixed(0.212_607_523), fixed(-0.180_239_955)));
    let (o0, o1) = ((mean + wave) >> SHIFT).saturating_narrow((mean - wave) >> SHIFT).split();
    [o0, o1]
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use fearless_simd::{Level, dispatch};

    use super::super::header::ZIGZAG;
    use super::*;

    fn spread(block: &[i16; BLOCK * BLOCK]) -> WorkBlock {
        let mut coefficients: WorkBlock = [0; _];
        coefficients[..BLOCK * BLOCK].copy_from_slice(block);
        coefficients
    }

    fn inverse_of(block: &[i16; BLOCK * BLOCK]) -> [[u8; BLOCK]; BLOCK] {
        dispatch!(Level::new(), simd => inverse(simd, &spread(block), &[1; BLOCK * BLOCK]))
    }

    #[test]
    // promise: R23
    fn an_invalid_dc_coefficient_overflows_as_in_libjpeg_turbo() {
        let value = |dc| {
            let mut block = [0; BLOCK * BLOCK];
            block[0] = dc;
            flat(&spread(&block), &[1; BLOCK * BLOCK])
        };
        assert_eq!([-8192, -1024, 0, 1000, 8191].map(value), [0, 0, 128, 253, 255]);
        // Four times the value does not fit in 16 bits.
        assert_eq!([8192, 16000, -8193].map(value), [0, 80, 255]);
    }

    /// The definition (ITU-T T.81, A.3.3).
    fn reference(block: &[i16; BLOCK * BLOCK]) -> [[f64; BLOCK]; BLOCK] {
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

    /// Typical blocks, with increasing numbers of non-zero coefficients.
    fn blocks() -> impl Iterator<Item = [i16; BLOCK * BLOCK]> {
        let mut state = 1u64;
        let mut next = move |range: i64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 33) as i64 % (2 * range + 1) - range) as i16
        };
        (0..200).map(move |round| {
            let mut block = [0i16; BLOCK * BLOCK];
            block[0] = next(900);
            for _ in 0..round % 20 {
                block[next(63).unsigned_abs() as usize] = next(150);
            }
            block
        })
    }

    #[test]
    fn samples_are_within_a_level_of_the_definition() {
        for block in blocks() {
            for (row, expected) in inverse_of(&block).iter().zip(reference(&block)) {
                for (&sample, expected) in row.iter().zip(expected) {
                    assert!((f64::from(sample) - expected).abs() <= 1.0, "{sample} {expected}");
                }
            }
        }
    }

    #[test]
    fn blocks_of_few_coefficients_are_equal_in_the_fast_path() {
        for mut block in blocks() {
            for &place in &ZIGZAG[LOW..BLOCK * BLOCK] {
                block[usize::from(place)] = 0;
            }
            // Some samples are out of range.
            for factor in [1, 7] {
                let large = block.map(|it| it * factor);
                let (coefficients, steps) = (spread(&large), [1; BLOCK * BLOCK]);
                let short =
                    dispatch!(Level::new(), simd => inverse_low(simd, &coefficients, &steps));
                assert_eq!(short, inverse_of(&large));
            }
        }
    }

    #[test]
    fn smaller_samples_are_the_means_of_the_definition() {
        let check = |sample: u8, block: &[i16; 64], (x, y): (usize, usize), side: usize| {
            let whole = reference(block);
            let squares = whole[y * side..][..side].iter().flat_map(|row| &row[x * side..][..side]);
            let clipped = squares.clone().any(|&value| value <= 0.0 || value >= 255.0);
            let mean = squares.sum::<f64>() / (side * side) as f64;
            // If samples are clipped, the mean may differ.
            assert!(clipped || (f64::from(sample) - mean).abs() <= 1.0, "{sample} {mean}");
            !clipped
        };
        let mut checked = 0;
        for block in blocks() {
            let (coefficients, steps) = (spread(&block), [1; BLOCK * BLOCK]);
            let half = dispatch!(Level::new(), simd => inverse_half(simd, &coefficients, &steps));
            let quarter =
                dispatch!(Level::new(), simd => inverse_quarter(simd, &coefficients, &steps));
            for (y, x) in (0..16).map(|at| (at / 4, at % 4)) {
                checked += u32::from(check(half[y][x], &block, (x, y), 2));
            }
            for (y, x) in (0..4).map(|at| (at / 2, at % 2)) {
                checked += u32::from(check(quarter[y][x], &block, (x, y), 4));
            }
            checked += u32::from(check(flat(&coefficients, &steps), &block, (0, 0), 8));
        }
        assert!(checked > 2000, "{checked}");
    }

    #[test]
    fn a_flat_block_is_equal_in_the_fast_path() {
        for dc in -1100..1100 {
            let mut block = [0i16; BLOCK * BLOCK];
            block[0] = dc;
            let short = flat(&spread(&block), &[1; BLOCK * BLOCK]);
            assert_eq!([[short; BLOCK]; BLOCK], inverse_of(&block), "{dc}");
        }
    }
}
