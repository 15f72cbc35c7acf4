//! The polyphase filter bank: from samples of 32 subbands to audio.
//!
//! Source: ISO/IEC 11172-3, 2.4.3.2.2 and table B.3. The matrix of the standard is a DCT-II of 32
//! values; each of its outputs occurs twice in a window.

use std::f64::consts::PI;
use std::sync::LazyLock;

use fearless_simd::prelude::*;
use fearless_simd::{f32x8, f32x16};

pub(super) const SUBBANDS: usize = 32;
/// The number of earlier time slots that a window includes.
const HISTORY: usize = 15;
/// The maximum number of time slots that are transformed together.
const MAX_SLOTS: usize = 18;
/// The number of time slots in an inner loop; a divisor of all numbers of slots.
const STEP: usize = 3;
/// The place of the output 16 of the DCT.
const MIDDLE: usize = 3;

/// The first half of the window, in units of 1/65536. The second half mirrors it: with the opposite
/// sign, except for multiples of 64.
#[rustfmt::skip]
const WINDOW: [i32; 257] = [
    0, -1, -1, -1, -1, -1, -1, -2, -2, -2, -2, -3,
    -3, -4, -4, -5, -5, -6, -7, -7, -8, -9, -10, -11,
    -13, -14, -16, -17, -19, -21, -24, -26, -29, -31, -35, -38,
    -41, -45, -49, -53, -58, -63, -68, -73, -79, -85, -91, -97,
    -104, -111, -117, -125, -132, -139, -147, -154, -161, -169, -176, -183,
    -190, -196, -202, -208, 213, 218, 222, 225, 227, 228, 228, 227,
    224, 221, 215, 208, 200, 189, 177, 163, 146, 127, 106, 83,
    57, 29, -2, -36, -72, -111, -153, -197, -244, -294, -347, -401,
    -459, -519, -581, -645, -711, -779, -848, -919, -991, -1064, -1137, -1210,
    -1283, -1356, -1428, -1498, -1567, -1634, -1698, -1759, -1817, -1870, -1919, -1962,
    -2001, -2032, -2057, -2075, -2085, -2087, -2080, -2063, 2037, 2000, 1952, 1893,
    1822, 1739, 1644, 1535, 1414, 1280, 1131, 970, 794, 605, 402, 185,
    -45, -288, -545, -814, -1095, -1388, -1692, -2006, -2330, -2663, -3004, -3351,
    -3705, -4063, -4425, -4788, -5153, -5517, -5879, -6237, -6589, -6935, -7271, -7597,
    -7910, -8209, -8491, -8755, -8998, -9219, -9416, -9585, -9727, -9838, -9916, -9959,
    -9966, -9935, -9863, -9750, -9592, -9389, -9139, -8840, -8492, -8092, -7640, -7134,
    6574, 5959, 5288, 4561, 3776, 2935, 2037, 1082, 70, -998, -2122, -3300,
    -4533, -5818, -7154, -8540, -9975, -11455, -12980, -14548, -16155, -17799, -19478, -21189,
    -22929, -24694, -26482, -28289, -30112, -31947, -33791, -35640, -37489, -39336, -41176, -43006,
    -44821, -46617, -48390, -50137, -51853, -53534, -55178, -56778, -58333, -59838, -61289, -62684,
    -64019, -65290, -66494, -67629, -68692, -69679, -70590, -71420, -72169, -72835, -73415, -73908,
    -74313, -74630, -74856, -74992, 75038,
];

/// The samples of a window.
fn window(at: usize) -> f64 {
    let value = f64::from(WINDOW[at.min(512 - at)]) / 65536.0;
    if at > 256 && !at.is_multiple_of(64) { -value } else { value }
}

/// The matrices of the DCT, and the windows.
///
/// An output j from 1 to 15 of the filter bank, and the output 32 - j, are weighted sums of the DCT
/// outputs 16 + j and 16 - j of 16 time slots. The order of these outputs is that of `OUTPUTS`, so
/// that the DCT computes them in whole vectors.
#[derive(Debug)]
struct FilterFactors {
    /// Of the sums of four values: the outputs that are multiples of 4.
    fourth: [[f32; 8]; 8],
    /// Of the other outputs that are even.
    even: [[f32; 8]; 8],
    /// Of the odd outputs: those above 16, and those below.
    odd: [[f32; 16]; 16],
    /// For each time slot before: the factors of the outputs j and of the outputs 32 - j. In even
    /// slots, of the DCT outputs above 16, in odd ones, of those below.
    taps: [[[f32; 16]; 2]; HISTORY + 1],
    /// For each time slot before: the factor of the DCT output 16 in the output 0.
    middle: [f32; HISTORY + 1],
}

/// The outputs j in the order of the vectors; 16 is the last of the even ones that are multiples of
/// 4. The DCT has the outputs 16 + j and 16 - j; in place of 32, which is zero, it has 16.
const OUTPUTS: [usize; 16] = [4, 8, 12, 16, 2, 6, 10, 14, 1, 3, 5, 7, 9, 11, 13, 15];

static FACTORS: LazyLock<FilterFactors> = LazyLock::new(FilterFactors::new);

impl FilterFactors {
    fn new() -> Self {
        let cosine =
            |output: usize, k: usize| (PI / 64.0 * (output * (2 * k + 1)) as f64).cos() as f32;
        // The even outputs below 16 are in the lower half of the vector.
        let even = |j: usize, is_above: bool| match (j, is_above) {
            (16, true) => 16,
            (j, true) => 16 + j,
            (j, false) => 16 - j,
        };
        let half = |first: usize, lane: usize| even(OUTPUTS[first + lane % 4], lane >= 4);
        let odd = |lane: usize| {
            let j = OUTPUTS[8 + lane % 8];
            if lane < 8 { 16 + j } else { 16 - j }
        };
        let tap = |slot: usize, lane: usize, is_mirrored: bool| {
            let (start, j) = (32 * slot, OUTPUTS[lane]);
            match (slot % 2, is_mirrored) {
                (0, _) if j == 16 => 0.0,
                (_, true) if j == 16 => 0.0,
                (0, false) => window(start + j),
                (0, true) => -window(start + 32 - j),
                // The standard negates the outputs below 16.
                (_, false) => -window(start + j),
                (_, true) => -window(start + 32 - j),
            }
        };
        FilterFactors {
            fourth: std::array::from_fn(|k| std::array::from_fn(|lane| cosine(half(0, lane), k))),
            even: std::array::from_fn(|k| std::array::from_fn(|lane| cosine(half(4, lane), k))),
            odd: std::array::from_fn(|k| std::array::from_fn(|lane| cosine(odd(lane), k))),
            taps: std::array::from_fn(|slot| {
                [false, true].map(|it| std::array::from_fn(|lane| tap(slot, lane, it) as f32))
            }),
            middle: std::array::from_fn(|slot| {
                let sign = if slot % 2 == 0 { 1.0 } else { -1.0 };
                (sign * window(32 * slot)) as f32
            }),
        }
    }
}

/// The outputs of the DCT in a time slot: above 16, then below, each in the order of `OUTPUTS`.
type Row = [f32; SUBBANDS];

/// The state of a channel.
#[derive(Clone, Debug)]
pub(super) struct Synthesis {
    /// The time slots before, then those of the current call.
    rows: [Row; HISTORY + MAX_SLOTS],
}

impl Default for Synthesis {
    fn default() -> Self {
        Synthesis { rows: [[0.0; SUBBANDS]; HISTORY + MAX_SLOTS] }
    }
}

impl Synthesis {
    /// Computes 32 samples for each of `SLOTS` time slots.
    #[inline(always)]
    pub(super) fn run<S: Simd, const SLOTS: usize>(
        &mut self,
        simd: S,
        subbands: &[[f32; SUBBANDS]; SLOTS],
        out: &mut [[f32; SUBBANDS]; SLOTS],
    ) {
        const { assert!(SLOTS.is_multiple_of(STEP) && SLOTS <= MAX_SLOTS) };
        let factors = &*FACTORS;
        let (subbands, _) = subbands.as_chunks::<STEP>();
        let (rows, _) = self.rows[HISTORY..].as_chunks_mut::<STEP>();
        for (subbands, rows) in subbands.iter().zip(rows) {
            transform(simd, factors, subbands, rows);
        }
        for (step, out) in out.as_chunks_mut::<STEP>().0.iter_mut().enumerate() {
            let rows = self.rows[step * STEP..].first_chunk::<{ HISTORY + STEP }>();
            filter(simd, factors, rows.expect("STEP divides SLOTS"), out);
        }
        self.filter_middle::<S, SLOTS>(simd, factors, out);
        self.rows.copy_within(SLOTS..SLOTS + HISTORY, 0);
    }

    /// Computes the first of each 32 samples.
    #[inline(always)]
    fn filter_middle<S: Simd, const SLOTS: usize>(
        &self,
        simd: S,
        factors: &FilterFactors,
        out: &mut [[f32; SUBBANDS]; SLOTS],
    ) {
        // Vectors of eight time slots; the last ones are not used.
        let mut middle = [0.0; HISTORY + 24];
        for (middle, row) in middle.iter_mut().zip(&self.rows) {
            *middle = row[MIDDLE];
        }
        for (at, out) in out.chunks_mut(8).enumerate() {
            let mut sum = f32x8::splat(simd, 0.0);
            for (slot, factor) in factors.middle.iter().enumerate() {
                let before = f32x8::from_slice(simd, &middle[8 * at + HISTORY - slot..][..8]);
                sum = before.mul_add(f32x8::splat(simd, *factor), sum);
            }
            for (out, sum) in out.iter_mut().zip(sum.as_slice()) {
                out[0] = *sum;
            }
        }
    }
}

/// The DCT-II of each time slot.
#[inline(always)]
fn transform<S: Simd>(
    simd: S,
    factors: &FilterFactors,
    subbands: &[[f32; SUBBANDS]; STEP],
    rows: &mut [Row; STEP],
) {
    // Sums and differences of the values at both ends, twice.
    let mut sums = [[[0.0; 8]; 4]; STEP];
    for (subbands, sums) in subbands.iter().zip(&mut sums) {
        let part = |at: usize| f32x8::from_slice(simd, &subbands[8 * at..][..8]);
        let (s0, s1, s2, s3) = (part(0), part(1), part(2).reverse(), part(3).reverse());
        let (outer, inner) = (s0 + s3, (s1 + s2).reverse());
        (outer + inner).store_slice(&mut sums[0]);
        (outer - inner).store_slice(&mut sums[1]);
        (s0 - s3).store_slice(&mut sums[2]);
        (s1 - s2).store_slice(&mut sums[3]);
    }
    let mut fourth = [f32x8::splat(simd, 0.0); STEP];
    let mut even = [f32x8::splat(simd, 0.0); STEP];
    for k in 0..8 {
        let by_fourth = f32x8::from_slice(simd, &factors.fourth[k]);
        let by_even = f32x8::from_slice(simd, &factors.even[k]);
        for slot in 0..STEP {
            let sums = &sums[slot];
            fourth[slot] = by_fourth.mul_add(f32x8::splat(simd, sums[0][k]), fourth[slot]);
            even[slot] = by_even.mul_add(f32x8::splat(simd, sums[1][k]), even[slot]);
        }
    }
    let mut odd = [f32x16::splat(simd, 0.0); STEP];
    for k in 0..16 {
        let by_odd = f32x16::from_slice(simd, &factors.odd[k]);
        for slot in 0..STEP {
            let value = f32x16::splat(simd, sums[slot][2 + k / 8][k % 8]);
            odd[slot] = by_odd.mul_add(value, odd[slot]);
        }
    }
    for (slot, row) in rows.iter_mut().enumerate() {
        let (fourth_below, fourth_above) = fourth[slot].split();
        let (even_below, even_above) = even[slot].split();
        let (odd_above, odd_below) = odd[slot].split();
        fourth_above.combine(even_above).store_slice(&mut row[..8]);
        odd_above.store_slice(&mut row[8..16]);
        fourth_below.combine(even_below).store_slice(&mut row[16..24]);
        odd_below.store_slice(&mut row[24..]);
    }
}

/// The samples of each time slot, except for the first.
#[inline(always)]
fn filter<S: Simd>(
    simd: S,
    factors: &FilterFactors,
    rows: &[Row; HISTORY + STEP],
    out: &mut [[f32; SUBBANDS]; STEP],
) {
    let mut outputs = [[f32x16::splat(simd, 0.0); 2]; STEP];
    for (before, taps) in factors.taps.iter().enumerate() {
        let direct = f32x16::from_slice(simd, &taps[0]);
        let mirrored = f32x16::from_slice(simd, &taps[1]);
        for (slot, outputs) in outputs.iter_mut().enumerate() {
            let row = &rows[HISTORY + slot - before];
            let values = f32x16::from_slice(simd, &row[16 * (before % 2)..][..16]);
            outputs[0] = values.mul_add(direct, outputs[0]);
            outputs[1] = values.mul_add(mirrored, outputs[1]);
        }
    }
    for (out, [direct, mirrored]) in out.iter_mut().zip(outputs) {
        let (low, high) = in_order(mirrored);
        // The last of these is computed below.
        high.reverse().store_slice(&mut out[16..24]);
        low.reverse().store_slice(&mut out[24..]);
        let (low, high) = in_order(direct);
        low.store_slice(&mut out[1..9]);
        high.store_slice(&mut out[9..17]);
    }
}

/// The outputs 1 to 8, and 9 to 16, from the order of `OUTPUTS`.
#[inline(always)]
fn in_order<S: Simd>(outputs: f32x16<S>) -> (f32x8<S>, f32x8<S>) {
    let (even, odd) = outputs.split();
    let (fourth, other) = even.split();
    let (low, high) = other.interleave(fourth);
    odd.interleave(low.combine(high))
}

#[cfg(test)]
mod tests {
    use fearless_simd::{Level, dispatch};

    use super::*;

    /// The flow chart of the standard.
    #[derive(Default)]
    struct Definition {
        values: Vec<f64>,
    }

    impl Definition {
        fn run(&mut self, subbands: &[f32; SUBBANDS]) -> [f64; SUBBANDS] {
            self.values.resize(1024, 0.0);
            self.values.rotate_right(64);
            for i in 0..64 {
                let wave = |(k, value): (usize, &f32)| {
                    f64::from(*value) * (PI / 64.0 * ((16 + i) * (2 * k + 1)) as f64).cos()
                };
                self.values[i] = subbands.iter().enumerate().map(wave).sum();
            }
            std::array::from_fn(|j| {
                let term = |i: usize| {
                    self.values[128 * i + j] * window(64 * i + j)
                        + self.values[128 * i + 96 + j] * window(64 * i + 32 + j)
                };
                (0..8).map(term).sum()
            })
        }
    }

    #[test]
    fn samples_are_those_of_the_definition() {
        [Level::new(), Level::baseline()].into_iter().for_each(check_samples);
    }

    fn check_samples(level: Level) {
        let mut state = 1u64;
        let mut noise = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        let (mut synthesis, mut definition) = (Synthesis::default(), Definition::default());
        for _ in 0..4 {
            let long: [[f32; SUBBANDS]; 18] = [[0.0; SUBBANDS]; 18].map(|row| row.map(|_| noise()));
            let short: [[f32; SUBBANDS]; 12] =
                [[0.0; SUBBANDS]; 12].map(|row| row.map(|_| noise()));
            let mut out = ([[0.0; SUBBANDS]; 18], [[0.0; SUBBANDS]; 12]);
            dispatch!(level, simd => {
                synthesis.run(simd, &long, &mut out.0);
                synthesis.run(simd, &short, &mut out.1);
            });
            for (subbands, out) in long.iter().chain(&short).zip(out.0.iter().chain(&out.1)) {
                for (sample, expected) in out.iter().zip(definition.run(subbands)) {
                    assert!((f64::from(*sample) - expected).abs() < 2e-5, "{sample} {expected}");
                }
            }
        }
    }
}
