//! The kernels of a resize: weighted sums of rows, and transposition.
//!
//! The kernels process *interleaved* rows: two neighbouring positions of the resized axis, with 16
//! bits each, form a pair. One instruction multiplies both values by their weights and adds the
//! products. Transposition moves whole pairs, so that the result is interleaved for the other axis.

use std::ops::Range;

use fearless_simd::prelude::*;
use fearless_simd::{i16x8, i16x16, i16x32, i32x16, u8x16, u8x32, u16x16};

use super::axis::Axis;
use crate::image::CHANNELS;
use crate::image::simd::transpose_8x8;

/// The number of columns that are processed per step, and of rows that are transposed together.
pub(super) const LANES: usize = 32;
/// The number of values in this number of pairs.
pub(super) const PAIR_VALUES: usize = 2 * LANES;
/// Width and height of a transposed block, in pairs.
const BLOCK: usize = 8;
/// The number of bytes in a row of a block.
const BLOCK_BYTES: usize = 2 * BLOCK;

/// The distance between rows of this number of columns, in values.
pub(super) fn padded(columns: usize) -> usize {
    columns.next_multiple_of(LANES)
}

/// The 16 bytes from `at`, padded with zeros.
#[inline(always)]
fn load_pairs<S: Simd>(simd: S, line: &[u8], at: usize) -> i16x8<S> {
    let bytes = match line.get(at..at + BLOCK_BYTES) {
        Some(bytes) => u8x16::from_slice(simd, bytes),
        None => {
            let mut padded = [0; BLOCK_BYTES];
            let rest = line.get(at..).unwrap_or_default();
            padded[..rest.len()].copy_from_slice(rest);
            u8x16::from_slice(simd, &padded)
        }
    };
    bytes.bitcast()
}

/// Stores pairs of bytes as 16-bit values.
#[inline(always)]
fn store_pairs<S: Simd>(pairs: i16x8<S>, place: &mut [i16]) {
    let bytes: u8x16<S> = pairs.bitcast();
    let (low, high) = bytes.widen();
    let values: u16x16<S> = low.combine(high);
    let values: i16x16<S> = values.bitcast();
    values.store_slice(&mut place[..BLOCK_BYTES]);
}

/// Transposes rows to columns: row `p` of `interleaved` holds positions 2p and 2p + 1 of each row.
///
/// `interleaved` has a multiple of 8 rows; positions beyond the end are zero.
#[inline(always)]
pub(super) fn lines_to_columns<S: Simd>(simd: S, lines: [&[u8]; LANES], interleaved: &mut [i16]) {
    let (blocks, _) = interleaved.as_chunks_mut::<{ BLOCK * PAIR_VALUES }>();
    let (groups, _) = lines.as_chunks::<BLOCK>();
    for (at, block) in blocks.iter_mut().enumerate() {
        for (group, lines) in groups.iter().enumerate() {
            let load = |line: usize| load_pairs(simd, lines[line], at * BLOCK_BYTES);
            // In code for SIMD, the compiler does not always inline `map` and `from_fn` of arrays; a loop keeps
            // the array in memory.
            let pairs = [load(0), load(1), load(2), load(3), load(4), load(5), load(6), load(7)];
            for (row, pairs) in transpose_8x8(pairs).into_iter().enumerate() {
                store_pairs(pairs, &mut block[row * PAIR_VALUES + group * BLOCK_BYTES..]);
            }
        }
    }
}

/// Transposes columns back to rows, interleaved in pairs.
///
/// `columns` has a multiple of 8 rows of bytes. The rows of `interleaved` start `stride` values
/// apart, one per two rows.
#[inline(always)]
pub(super) fn columns_to_lines<S: Simd>(
    simd: S,
    columns: &[u8],
    interleaved: &mut [i16],
    stride: usize,
) {
    let (blocks, _) = columns.as_chunks::<{ BLOCK * LANES }>();
    for (at, block) in blocks.iter().enumerate() {
        for group in 0..LANES / BLOCK_BYTES {
            let load = |row: usize| -> i16x8<S> {
                let start = row * LANES + group * BLOCK_BYTES;
                u8x16::from_slice(simd, &block[start..start + BLOCK_BYTES]).bitcast()
            };
            let pairs = [load(0), load(1), load(2), load(3), load(4), load(5), load(6), load(7)];
            for (row, pairs) in transpose_8x8(pairs).into_iter().enumerate() {
                store_pairs(
                    pairs,
                    &mut interleaved[(group * BLOCK + row) * stride + at * BLOCK_BYTES..],
                );
            }
        }
    }
}

/// Interleaves two rows.
#[inline(always)]
pub(super) fn interleave_rows(upper: &[u8], lower: &[u8], interleaved: &mut [i16]) {
    let (pairs, _) = interleaved.as_chunks_mut::<2>();
    for ((pair, &upper), &lower) in pairs.iter_mut().zip(upper).zip(lower) {
        *pair = [i16::from(upper), i16::from(lower)];
    }
}

/// Interleaves one channel of two rows of interleaved pixels.
#[inline(always)]
pub(super) fn interleave_channel(
    upper: &[u8],
    lower: &[u8],
    channel: usize,
    interleaved: &mut [i16],
) {
    let (pairs, _) = interleaved.as_chunks_mut::<2>();
    let (upper, lower) = (upper.as_chunks::<CHANNELS>().0, lower.as_chunks::<CHANNELS>().0);
    for ((pair, upper), lower) in pairs.iter_mut().zip(upper).zip(lower) {
        *pair = [i16::from(upper[channel]), i16::from(lower[channel])];
    }
}

/// A ring buffer of interleaved rows: source row `r` is at index `r` modulo the number of rows.
#[derive(Clone, Copy)]
pub(super) struct InterleavedRows<'a> {
    /// The values of all rows.
    pub(super) values: &'a [i16],
    /// The distance between rows in values; rows hold a multiple of 64 values.
    pub(super) stride: usize,
}

impl InterleavedRows<'_> {
    fn rows(&self) -> usize {
        self.values.len() / self.stride
    }
}

/// Computes a row of weighted sums for each target position with these [indices](Axis::positions):
/// `columns` bytes (a multiple of 32), `stride` bytes apart from position 0.
#[inline(always)]
pub(super) fn convolve<S: Simd>(
    simd: S,
    axis: &Axis,
    numbers: Range<usize>,
    interleaved: InterleavedRows<'_>,
    columns: usize,
    out: &mut [u8],
    stride: usize,
) {
    let positions = axis.positions(numbers);
    let out = &mut out[positions.start * stride..];
    match axis.pairs {
        1 => convolve_pairs::<S, 1>(simd, axis, positions, interleaved, columns, out, stride),
        2 => convolve_pairs::<S, 2>(simd, axis, positions, interleaved, columns, out, stride),
        3 => convolve_pairs::<S, 3>(simd, axis, positions, interleaved, columns, out, stride),
        4 => convolve_pairs::<S, 4>(simd, axis, positions, interleaved, columns, out, stride),
        _ => convolve_many(simd, axis, positions, interleaved, columns, out, stride),
    }
}

#[inline(always)]
fn convolve_pairs<S: Simd, const PAIRS: usize>(
    simd: S,
    axis: &Axis,
    positions: Range<usize>,
    interleaved: InterleavedRows<'_>,
    columns: usize,
    out: &mut [u8],
    stride: usize,
) {
    let rounding = rounding(simd, axis.bits);
    let (weights, _) = axis.weights.as_chunks::<PAIRS>();
    let first_pairs = &axis.first_pairs[positions.clone()];
    let rows = out.chunks_mut(stride);
    let ring = interleaved.rows();
    for ((&first, weights), row) in first_pairs.iter().zip(&weights[positions]).zip(rows) {
        let mut factors: [i16x32<S>; PAIRS] = [i16x32::splat(simd, 0); PAIRS];
        for (factor, &weights) in factors.iter_mut().zip(weights) {
            *factor = i32x16::splat(simd, weights).bitcast();
        }
        let (places, _) = row[..columns].as_chunks_mut::<LANES>();
        // For few columns, a division would take most of the time.
        let first = if (first as usize) < ring { first as usize } else { first as usize % ring };
        let mut sources: [&[[i16; PAIR_VALUES]]; PAIRS] = [&[]; PAIRS];
        for (pair, source) in sources.iter_mut().enumerate() {
            let at = first + pair;
            let start = if at < ring { at } else { at - ring } * interleaved.stride;
            *source = &interleaved.values[start..start + 2 * columns].as_chunks::<PAIR_VALUES>().0
                [..places.len()];
        }
        for (at, place) in places.iter_mut().enumerate() {
            let mut sums = [rounding; 2];
            for pair in 0..PAIRS {
                let source = &sources[pair][at];
                for half in 0..2 {
                    let values = i16x32::from_slice(simd, &source[half * LANES..][..LANES]);
                    sums[half] += values.pairwise_dot_product(factors[pair]);
                }
            }
            finish(simd, sums, axis.bits).store_slice(place);
        }
    }
}

#[inline(always)]
fn convolve_many<S: Simd>(
    simd: S,
    axis: &Axis,
    positions: Range<usize>,
    interleaved: InterleavedRows<'_>,
    columns: usize,
    out: &mut [u8],
    stride: usize,
) {
    let rounding = rounding(simd, axis.bits);
    let all = axis.weights[positions.start * axis.pairs..].chunks_exact(axis.pairs);
    let rows = out.chunks_mut(stride);
    for ((&first, weights), row) in axis.first_pairs[positions].iter().zip(all).zip(rows) {
        let (places, _) = row[..columns].as_chunks_mut::<LANES>();
        let first = first as usize % interleaved.rows();
        // The rows up to the end of the ring buffer, and those at its start.
        let (before, after) = weights.split_at(weights.len().min(interleaved.rows() - first));
        for (at, place) in places.iter_mut().enumerate() {
            let mut sums = [rounding; 2];
            for (row, weights) in [(first, before), (0, after)] {
                let sources = interleaved.values[row * interleaved.stride + at * PAIR_VALUES..]
                    .chunks(interleaved.stride);
                for (source, &weights) in sources.zip(weights) {
                    let weights: i16x32<S> = i32x16::splat(simd, weights).bitcast();
                    let (halves, _) = source[..PAIR_VALUES].as_chunks::<LANES>();
                    for (sum, values) in sums.iter_mut().zip(halves) {
                        *sum += i16x32::from_slice(simd, values).pairwise_dot_product(weights);
                    }
                }
            }
            finish(simd, sums, axis.bits).store_slice(place);
        }
    }
}

/// One half, for rounding, minus the offset that centres bytes at zero.
#[inline(always)]
fn rounding<S: Simd>(simd: S, bits: u32) -> i32x16<S> {
    i32x16::splat(simd, (1 << bits >> 1) - (128 << bits))
}

/// Drops the fraction bits and saturates to bytes.
#[inline(always)]
fn finish<S: Simd>(simd: S, sums: [i32x16<S>; 2], bits: u32) -> u8x32<S> {
    let (low, high) = (sums[0] >> bits).saturating_narrow(sums[1] >> bits).split();
    let bytes: u8x32<S> = low.saturating_narrow(high).bitcast();
    bytes + u8x32::splat(simd, 128)
}
