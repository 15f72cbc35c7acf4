//! The arithmetic of resizing: weighted sums of rows, and rows that become columns.
//!
//! Everything works on *woven* rows: two neighbouring positions of the axis that is resized lie side
//! by side, as 16 bits each, so that one instruction multiplies both by their weights and adds them.
//! Where rows become columns, whole pairs move, so that they come out woven for the other axis.

use std::ops::Range;

use fearless_simd::prelude::*;
use fearless_simd::{i16x8, i16x16, i16x32, i32x16, u8x16, u8x32, u16x16};

use super::axis::Axis;
use crate::image::CHANNELS;
use crate::image::simd::transpose_8x8;

/// Columns that are computed at once, and lines that become columns together.
pub(super) const LANES: usize = 32;
/// Values of so many pairs.
pub(super) const WOVEN: usize = 2 * LANES;
/// Positions of a square block of pairs.
const BLOCK: usize = 8;
/// Bytes of a row of a block.
const BLOCK_BYTES: usize = 2 * BLOCK;

/// The 16 bytes from `at`, or as many as there are.
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

/// Writes pairs of bytes as 16 values.
#[inline(always)]
fn store_pairs<S: Simd>(pairs: i16x8<S>, place: &mut [i16]) {
    let bytes: u8x16<S> = pairs.bitcast();
    let (low, high) = bytes.widen();
    let values: u16x16<S> = low.combine(high);
    let values: i16x16<S> = values.bitcast();
    values.store_slice(&mut place[..BLOCK_BYTES]);
}

/// Lines become columns: row `p` of `woven` holds positions 2p and 2p + 1 of each line.
///
/// `woven` has a whole number of blocks of 8 rows; what is beyond the lines is zero.
#[inline(always)]
pub(super) fn lines_to_columns<S: Simd>(simd: S, lines: [&[u8]; LANES], woven: &mut [i16]) {
    let (blocks, _) = woven.as_chunks_mut::<{ BLOCK * WOVEN }>();
    let (groups, _) = lines.as_chunks::<BLOCK>();
    for (at, block) in blocks.iter_mut().enumerate() {
        for (group, lines) in groups.iter().enumerate() {
            let pairs: [i16x8<S>; BLOCK] =
                std::array::from_fn(|line| load_pairs(simd, lines[line], at * BLOCK_BYTES));
            for (row, pairs) in transpose_8x8(pairs).into_iter().enumerate() {
                store_pairs(pairs, &mut block[row * WOVEN + group * BLOCK_BYTES..]);
            }
        }
    }
}

/// The way back: rows of columns become lines, of which two at a time are woven.
///
/// `columns` has a whole number of blocks of 8 rows of bytes; `woven` are rows that start `stride`
/// values after one another, one for two lines.
#[inline(always)]
pub(super) fn columns_to_lines<S: Simd>(simd: S, columns: &[u8], woven: &mut [i16], stride: usize) {
    let (blocks, _) = columns.as_chunks::<{ BLOCK * LANES }>();
    for (at, block) in blocks.iter().enumerate() {
        for group in 0..LANES / BLOCK_BYTES {
            let pairs: [i16x8<S>; BLOCK] = std::array::from_fn(|row| {
                let start = row * LANES + group * BLOCK_BYTES;
                u8x16::from_slice(simd, &block[start..start + BLOCK_BYTES]).bitcast()
            });
            for (row, pairs) in transpose_8x8(pairs).into_iter().enumerate() {
                store_pairs(pairs, &mut woven[(group * BLOCK + row) * stride + at * BLOCK_BYTES..]);
            }
        }
    }
}

/// Two rows, value beside value.
#[inline(always)]
pub(super) fn weave(upper: &[u8], lower: &[u8], woven: &mut [i16]) {
    let (pairs, _) = woven.as_chunks_mut::<2>();
    for ((pair, &upper), &lower) in pairs.iter_mut().zip(upper).zip(lower) {
        *pair = [i16::from(upper), i16::from(lower)];
    }
}

/// The same for a channel of interleaved pixels.
#[inline(always)]
pub(super) fn weave_channel(upper: &[u8], lower: &[u8], channel: usize, woven: &mut [i16]) {
    let (pairs, _) = woven.as_chunks_mut::<2>();
    let (upper, lower) = (upper.as_chunks::<CHANNELS>().0, lower.as_chunks::<CHANNELS>().0);
    for ((pair, upper), lower) in pairs.iter_mut().zip(upper).zip(lower) {
        *pair = [i16::from(upper[channel]), i16::from(lower[channel])];
    }
}

/// A ring of woven rows: row `r` of the source is row `r` modulo their number.
#[derive(Clone, Copy)]
pub(super) struct Woven<'a> {
    /// A whole number of rows.
    pub(super) values: &'a [i16],
    /// Values from one row to the next; the rows hold a whole number of 64.
    pub(super) stride: usize,
}

impl Woven<'_> {
    fn rows(&self) -> usize {
        self.values.len() / self.stride
    }
}

/// For some positions of the axis' target, by their [numbers](Axis::positions), a row of weighted
/// sums each: `columns` bytes (a whole number of 32), `stride` bytes apart from position 0 on.
#[inline(always)]
pub(super) fn weigh<S: Simd>(
    simd: S,
    axis: &Axis,
    numbers: Range<usize>,
    woven: Woven<'_>,
    columns: usize,
    out: &mut [u8],
    stride: usize,
) {
    let positions = axis.positions(numbers);
    let out = &mut out[positions.start * stride..];
    match axis.pairs {
        1 => weigh_pairs::<S, 1>(simd, axis, positions, woven, columns, out, stride),
        2 => weigh_pairs::<S, 2>(simd, axis, positions, woven, columns, out, stride),
        3 => weigh_pairs::<S, 3>(simd, axis, positions, woven, columns, out, stride),
        4 => weigh_pairs::<S, 4>(simd, axis, positions, woven, columns, out, stride),
        _ => weigh_many(simd, axis, positions, woven, columns, out, stride),
    }
}

#[inline(always)]
fn weigh_pairs<S: Simd, const PAIRS: usize>(
    simd: S,
    axis: &Axis,
    positions: Range<usize>,
    woven: Woven<'_>,
    columns: usize,
    out: &mut [u8],
    stride: usize,
) {
    let rounding = rounding(simd, axis.bits);
    let (weights, _) = axis.weights.as_chunks::<PAIRS>();
    let first_pairs = &axis.first_pairs[positions.clone()];
    let rows = out.chunks_mut(stride);
    let ring = woven.rows();
    for ((&first, weights), row) in first_pairs.iter().zip(&weights[positions]).zip(rows) {
        let weights: [i16x32<S>; PAIRS] =
            std::array::from_fn(|pair| i32x16::splat(simd, weights[pair]).bitcast());
        let (places, _) = row[..columns].as_chunks_mut::<LANES>();
        // A division takes longer than the rest where there are few columns.
        let first = if (first as usize) < ring { first as usize } else { first as usize % ring };
        let sources: [&[[i16; WOVEN]]; PAIRS] = std::array::from_fn(|pair| {
            let at = first + pair;
            let start = if at < ring { at } else { at - ring } * woven.stride;
            &woven.values[start..start + 2 * columns].as_chunks::<WOVEN>().0[..places.len()]
        });
        for (at, place) in places.iter_mut().enumerate() {
            let mut sums = [rounding; 2];
            for pair in 0..PAIRS {
                let source = &sources[pair][at];
                for half in 0..2 {
                    let values = i16x32::from_slice(simd, &source[half * LANES..][..LANES]);
                    sums[half] += values.pairwise_dot_product(weights[pair]);
                }
            }
            finish(simd, sums, axis.bits).store_slice(place);
        }
    }
}

#[inline(always)]
fn weigh_many<S: Simd>(
    simd: S,
    axis: &Axis,
    positions: Range<usize>,
    woven: Woven<'_>,
    columns: usize,
    out: &mut [u8],
    stride: usize,
) {
    let rounding = rounding(simd, axis.bits);
    let all = axis.weights[positions.start * axis.pairs..].chunks_exact(axis.pairs);
    let rows = out.chunks_mut(stride);
    for ((&first, weights), row) in axis.first_pairs[positions].iter().zip(all).zip(rows) {
        let (places, _) = row[..columns].as_chunks_mut::<LANES>();
        let first = first as usize % woven.rows();
        // What lies up to the ring's end, and what lies at its start.
        let (before, after) = weights.split_at(weights.len().min(woven.rows() - first));
        for (at, place) in places.iter_mut().enumerate() {
            let mut sums = [rounding; 2];
            for (row, weights) in [(first, before), (0, after)] {
                let sources = woven.values[row * woven.stride + at * WOVEN..].chunks(woven.stride);
                for (source, &weights) in sources.zip(weights) {
                    let weights: i16x32<S> = i32x16::splat(simd, weights).bitcast();
                    let (halves, _) = source[..WOVEN].as_chunks::<LANES>();
                    for (sum, values) in sums.iter_mut().zip(halves) {
                        *sum += i16x32::from_slice(simd, values).pairwise_dot_product(weights);
                    }
                }
            }
            finish(simd, sums, axis.bits).store_slice(place);
        }
    }
}

/// Half a unit, less what makes a byte's range one around zero.
#[inline(always)]
fn rounding<S: Simd>(simd: S, bits: u32) -> i32x16<S> {
    i32x16::splat(simd, (1 << bits >> 1) - (128 << bits))
}

/// Sums without their fraction, cut to the range of a byte.
#[inline(always)]
fn finish<S: Simd>(simd: S, sums: [i32x16<S>; 2], bits: u32) -> u8x32<S> {
    let (low, high) = (sums[0] >> bits).saturating_narrow(sums[1] >> bits).split();
    let bytes: u8x32<S> = low.saturating_narrow(high).bitcast();
    bytes + u8x32::splat(simd, 128)
}
