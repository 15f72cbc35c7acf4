//! From frequency lines to subband samples: alias reduction, inverse MDCT, and overlap.
//!
//! Source of the formulas: ISO/IEC 11172-3, 2.4.3.4. The lines of all subbands are transformed
//! together: a vector has the same line of several subbands.

use std::f32::consts::SQRT_2;
use std::f64::consts::PI;
use std::sync::LazyLock;

use fearless_simd::prelude::*;

use super::side_info::Window;

/// The number of lines of a granule.
pub(super) const LINES: usize = SUBBANDS * SLOTS;
/// The number of lines, and of samples, of a subband in a granule.
pub(super) const SLOTS: usize = 18;
pub(super) const SUBBANDS: usize = crate::audio::mpeg::synthesis::SUBBANDS;

/// Butterflies between neighbouring subbands.
const BUTTERFLIES: usize = 8;

/// The windows and factors.
#[derive(Debug)]
struct MdctFactors {
    /// The windows of long blocks, with the signs of the folded samples: normal, start, stop.
    long: [[f32; 2 * SLOTS]; 3],
    short: [f32; 12],
    /// The factors of each butterfly; the last subband has no neighbour.
    direct: [[f32; SUBBANDS]; BUTTERFLIES],
    crossed: [[f32; SUBBANDS]; BUTTERFLIES],
}

static FACTORS: LazyLock<MdctFactors> = LazyLock::new(MdctFactors::new);

impl MdctFactors {
    fn new() -> Self {
        let sine = |at: usize, size: usize| (PI / size as f64 * (at as f64 + 0.5)).sin();
        let start = |at: usize| match at {
            0..18 => sine(at, 36),
            18..24 => 1.0,
            24..30 => sine(at - 18, 12),
            _ => 0.0,
        };
        // All but the first quarter of the samples are negated.
        let signed = |at: usize, quarter: usize, window: f64| {
            (if at < quarter { window } else { -window }) as f32
        };
        const COEFFICIENTS: [f64; BUTTERFLIES] =
            [-0.6, -0.535, -0.33, -0.185, -0.095, -0.041, -0.0142, -0.0037];
        let factors = |factor: fn(f64) -> f64, last: f32| {
            COEFFICIENTS.map(|coefficient| {
                let mut row = [factor(coefficient) as f32; SUBBANDS];
                row[SUBBANDS - 1] = last;
                row
            })
        };
        MdctFactors {
            long: [
                std::array::from_fn(|at| signed(at, 9, sine(at, 36))),
                std::array::from_fn(|at| signed(at, 9, start(at))),
                std::array::from_fn(|at| signed(at, 9, start(35 - at))),
            ],
            short: std::array::from_fn(|at| signed(at, 3, sine(at, 12))),
            direct: factors(|c| 1.0 / (1.0 + c * c).sqrt(), 1.0),
            crossed: factors(|c| c / (1.0 + c * c).sqrt(), 0.0),
        }
    }
}

/// The blocks of a granule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    pub(super) window: Window,
    /// The number of the lowest subbands that have long blocks with a normal window.
    pub(super) long_subbands: usize,
    /// The number of the lowest subbands that may have lines that are not zero.
    pub(super) subbands: usize,
}

/// The lines of a granule: `SUBBANDS × (line within its subband) + subband`.
pub(super) type Lines = [f32; LINES];
/// The samples of all subbands in each time slot.
pub(super) type Samples = [[f32; SUBBANDS]; SLOTS];

/// The state of a channel.
#[derive(Clone, Debug)]
pub(super) struct Hybrid {
    /// What the next granule adds to its samples.
    overlap: Samples,
    /// The number of subbands whose overlap may not be zero.
    overlapping: usize,
}

impl Default for Hybrid {
    fn default() -> Self {
        Hybrid { overlap: [[0.0; SUBBANDS]; SLOTS], overlapping: 0 }
    }
}

impl Hybrid {
    /// Transforms the lines, which are changed, to samples.
    #[inline(always)]
    pub(super) fn run<S: Simd>(
        &mut self,
        simd: S,
        blocks: Blocks,
        lines: &mut Lines,
        samples: &mut Samples,
    ) {
        let factors = &*FACTORS;
        let mut subbands = blocks.subbands;
        if blocks.window != Window::Short {
            reduce_aliases(simd, factors, lines, subbands);
            subbands = (subbands + 1).min(SUBBANDS);
        } else if blocks.long_subbands > 0 {
            reduce_aliases_between(factors, lines, blocks.long_subbands);
            subbands = subbands.max(blocks.long_subbands);
        }
        // Mixed blocks are rare: their subbands are transformed twice.
        let long = (blocks.long_subbands > 0).then(|| {
            let (mut samples, mut overlap) = (*samples, self.overlap);
            long_blocks(simd, &factors.long[0], lines, 0, &mut overlap, &mut samples);
            (samples, overlap)
        });
        let lanes = S::f32s::LEN;
        for first in (0..SUBBANDS).step_by(lanes) {
            if first < subbands {
                let window = match blocks.window {
                    Window::Short => {
                        let window = &factors.short;
                        short_blocks(simd, window, lines, first, &mut self.overlap, samples);
                        continue;
                    }
                    Window::Normal => &factors.long[0],
                    Window::Start => &factors.long[1],
                    Window::Stop => &factors.long[2],
                };
                long_blocks(simd, window, lines, first, &mut self.overlap, samples);
            } else if first < self.overlapping {
                no_blocks(simd, first, &mut self.overlap, samples);
            } else {
                for slot in samples.iter_mut() {
                    slot[first..][..lanes].fill(0.0);
                }
            }
        }
        if let Some((long_samples, long_overlap)) = long {
            for slot in 0..SLOTS {
                for subband in 0..blocks.long_subbands {
                    samples[slot][subband] = long_samples[slot][subband];
                    self.overlap[slot][subband] = long_overlap[slot][subband];
                }
            }
        }
        self.overlapping = subbands;
    }
}

/// Butterflies between each of the first `subbands` subbands and the next.
#[inline(always)]
fn reduce_aliases<S: Simd>(simd: S, factors: &MdctFactors, lines: &mut Lines, subbands: usize) {
    let lanes = S::f32s::LEN;
    for first in (0..subbands).step_by(lanes) {
        for at in 0..BUTTERFLIES {
            let (lower, upper) = lines.split_at_mut(9 * SUBBANDS);
            let upper = &mut upper[(8 - at) * SUBBANDS + first..][..lanes];
            let lower = &mut lower[at * SUBBANDS + first + 1..][..lanes];
            let direct = S::f32s::from_slice(simd, &factors.direct[at][first..][..lanes]);
            let crossed = S::f32s::from_slice(simd, &factors.crossed[at][first..][..lanes]);
            let a = S::f32s::from_slice(simd, upper);
            let b = S::f32s::from_slice(simd, lower);
            (a * direct - b * crossed).store_slice(upper);
            (b * direct + a * crossed).store_slice(lower);
        }
    }
}

/// Butterflies between the first `subbands` subbands.
fn reduce_aliases_between(factors: &MdctFactors, lines: &mut Lines, subbands: usize) {
    for subband in 1..subbands {
        for at in 0..BUTTERFLIES {
            let (direct, crossed) = (factors.direct[at][0], factors.crossed[at][0]);
            let upper = (SLOTS - 1 - at) * SUBBANDS + subband - 1;
            let lower = at * SUBBANDS + subband;
            let (a, b) = (lines[upper], lines[lower]);
            lines[upper] = a * direct - b * crossed;
            lines[lower] = b * direct + a * crossed;
        }
    }
}

/// Negates every second subband; this inverts the frequencies of odd subbands in odd time slots.
#[inline(always)]
fn alternating<S: Simd>(simd: S) -> S::f32s {
    const SIGNS: [[f32; 2]; SUBBANDS / 2] = [[1.0, -1.0]; SUBBANDS / 2];
    S::f32s::from_slice(simd, &SIGNS.as_flattened()[..S::f32s::LEN])
}

/// Writes the samples of a vector of subbands.
#[inline(always)]
fn store<S: Simd>(simd: S, values: [S::f32s; SLOTS], first: usize, samples: &mut Samples) {
    let lanes = S::f32s::LEN;
    let signs = alternating(simd);
    for (slot, (value, samples)) in values.into_iter().zip(samples).enumerate() {
        let value = if slot % 2 == 1 { value * signs } else { value };
        value.store_slice(&mut samples[first..][..lanes]);
    }
}

#[inline(always)]
fn load<S: Simd>(simd: S, samples: &Samples, first: usize) -> [S::f32s; SLOTS] {
    let lanes = S::f32s::LEN;
    let mut values = [S::f32s::splat(simd, 0.0); SLOTS];
    for (value, samples) in values.iter_mut().zip(samples) {
        *value = S::f32s::from_slice(simd, &samples[first..][..lanes]);
    }
    values
}

/// The samples of subbands whose lines are zero.
#[inline(always)]
fn no_blocks<S: Simd>(simd: S, first: usize, overlap: &mut Samples, samples: &mut Samples) {
    store(simd, load(simd, overlap, first), first, samples);
    for slot in overlap {
        slot[first..][..S::f32s::LEN].fill(0.0);
    }
}

/// Transforms one block of each subband.
#[inline(always)]
fn long_blocks<S: Simd>(
    simd: S,
    window: &[f32; 2 * SLOTS],
    lines: &Lines,
    first: usize,
    overlap: &mut Samples,
    samples: &mut Samples,
) {
    let lanes = S::f32s::LEN;
    let mut waves = [S::f32s::splat(simd, 0.0); SLOTS];
    for (wave, lines) in waves.iter_mut().zip(lines.as_chunks::<SUBBANDS>().0) {
        *wave = S::f32s::from_slice(simd, &lines[first..][..lanes]);
    }
    let waves = dct4_18(simd, waves);
    let signs = alternating(simd);
    // The samples of both halves are symmetric, except for the window.
    let (window, next) = window.split_at(SLOTS);
    for (at, ((overlap, samples), window)) in overlap.iter().zip(samples).zip(window).enumerate() {
        let source = if at < 9 { 9 + at } else { 26 - at };
        let before = S::f32s::from_slice(simd, &overlap[first..][..lanes]);
        let value = waves[source].mul_add(S::f32s::splat(simd, *window), before);
        let value = if at % 2 == 1 { value * signs } else { value };
        value.store_slice(&mut samples[first..][..lanes]);
    }
    for (at, (overlap, window)) in overlap.iter_mut().zip(next).enumerate() {
        let source = if at < 9 { 8 - at } else { at - 9 };
        let value = waves[source] * S::f32s::splat(simd, *window);
        value.store_slice(&mut overlap[first..][..lanes]);
    }
}

/// Transforms three blocks of each subband.
#[inline(always)]
fn short_blocks<S: Simd>(
    simd: S,
    window: &[f32; 12],
    lines: &Lines,
    first: usize,
    overlap: &mut Samples,
    samples: &mut Samples,
) {
    let lanes = S::f32s::LEN;
    let mut values = load(simd, overlap, first);
    let mut next = [S::f32s::splat(simd, 0.0); SLOTS];
    for block in 0..3 {
        let mut waves = [S::f32s::splat(simd, 0.0); 6];
        for (at, wave) in waves.iter_mut().enumerate() {
            let start = (3 * at + block) * SUBBANDS + first;
            *wave = S::f32s::from_slice(simd, &lines[start..][..lanes]);
        }
        let waves = dct4_6(simd, waves);
        for (at, window) in window.iter().enumerate() {
            let source = match at {
                0..3 => 3 + at,
                3..9 => 8 - at,
                _ => at - 9,
            };
            let slot = 6 + 6 * block + at;
            let target = if slot < SLOTS { &mut values[slot] } else { &mut next[slot - SLOTS] };
            *target = waves[source].mul_add(S::f32s::splat(simd, *window), *target);
        }
    }
    store(simd, values, first, samples);
    for (value, overlap) in next.into_iter().zip(overlap) {
        value.store_slice(&mut overlap[first..][..lanes]);
    }
}

/// The DCT-IV of 6 values: `Σ x[k] cos(π/24 (2i + 1)(2k + 1))`.
#[inline(always)]
fn dct4_6<S: Simd>(simd: S, x: [S::f32s; 6]) -> [S::f32s; 6] {
    /// The cosines of odd multiples of π/24.
    const COSINES: [f32; 6] = [0.9914449, 0.9238795, 0.7933533, 0.6087614, 0.38268343, 0.13052619];
    let mut result = [S::f32s::splat(simd, 0.0); 6];
    for (i, result) in result.iter_mut().enumerate() {
        for (k, x) in x.into_iter().enumerate() {
            let multiple = (2 * i + 1) * (2 * k + 1) % 48;
            // cos(2π - a) = cos(a), and cos(π - a) = -cos(a).
            let folded = if multiple > 24 { 48 - multiple } else { multiple };
            let cosine =
                if folded > 12 { -COSINES[(24 - folded) / 2] } else { COSINES[folded / 2] };
            *result = x.mul_add(S::f32s::splat(simd, cosine), *result);
        }
    }
    result
}

/// The DCT-IV of 18 values: `Σ x[k] cos(π/72 (2i + 1)(2k + 1))`.
///
/// With a = π/72 (2k + 1): 2 cos(a) cos((2i + 1) a) = cos(2i a) + cos((2i + 2) a). So the DCT-II of
/// the values, each times 2 cos(a), has sums of neighbouring results.
#[inline(always)]
fn dct4_18<S: Simd>(simd: S, x: [S::f32s; 18]) -> [S::f32s; 18] {
    /// 2 cos(π/72 (2k + 1)).
    const DOUBLED: [f32; 18] = [
        1.9980965, 1.9828898, 1.952592, 1.9074339, 1.847759, 1.7740216, 1.6867828, 1.5867066,
        1.4745547, 1.3511804, 1.2175229, 1.0745993, 0.9234972, 0.76536685, 0.6014116, 0.43287924,
        0.26105237, 0.08723877,
    ];
    let (mut sums, mut differences) = ([x[0]; 9], [x[0]; 9]);
    for k in 0..9 {
        let low = x[k] * S::f32s::splat(simd, DOUBLED[k]);
        let high = x[17 - k] * S::f32s::splat(simd, DOUBLED[17 - k]);
        (sums[k], differences[k]) = (low + high, low - high);
    }
    let even = dct2_9(simd, sums);
    let odd = dct4_9(simd, differences);
    let mut result = [x[0]; 18];
    result[0] = even[0] * S::f32s::splat(simd, 0.5);
    for i in 1..18 {
        let sum = if i % 2 == 0 { even[i / 2] } else { odd[i / 2] };
        result[i] = sum - result[i - 1];
    }
    result
}

/// The DCT-IV of 9 values: `Σ x[k] cos(π/36 (2i + 1)(2k + 1))`, as in [`dct4_18`].
#[inline(always)]
fn dct4_9<S: Simd>(simd: S, mut x: [S::f32s; 9]) -> [S::f32s; 9] {
    /// 2 cos(π/36 (2k + 1)).
    const DOUBLED: [f32; 9] = [
        1.9923894, 1.9318516, 1.8126156, 1.6383041, SQRT_2, 1.1471529, 0.84523654, 0.5176381,
        0.17431149,
    ];
    for (x, doubled) in x.iter_mut().zip(DOUBLED) {
        *x *= S::f32s::splat(simd, doubled);
    }
    let sums = dct2_9(simd, x);
    let mut result = [sums[0] * S::f32s::splat(simd, 0.5); 9];
    for i in 1..9 {
        result[i] = sums[i] - result[i - 1];
    }
    result
}

/// The DCT-II of 9 values: `Σ x[k] cos(π/18 i (2k + 1))`.
#[inline(always)]
fn dct2_9<S: Simd>(simd: S, x: [S::f32s; 9]) -> [S::f32s; 9] {
    /// The cosines of multiples of π/18.
    const COSINES: [f32; 10] = [
        1.0, 0.9848077, 0.9396926, 0.8660254, 0.76604444, 0.64278764, 0.5, 0.34202015, 0.17364818,
        0.0,
    ];
    let cosine = |at: usize| S::f32s::splat(simd, COSINES[at]);
    let [s0, s1, s2, s3] = [x[0] + x[8], x[1] + x[7], x[2] + x[6], x[3] + x[5]];
    let [d0, d1, d2, d3] = [x[0] - x[8], x[1] - x[7], x[2] - x[6], x[3] - x[5]];
    let middle = x[4];
    // The even results: those of x[1] and x[7] have the cosines 1, 1/2, -1/2, -1, -1/2.
    let outer = s0 + s2 + s3;
    let plus = s1.mul_add(cosine(6), -middle);
    let weigh = |a: S::f32s, b: S::f32s, c: S::f32s, rest: S::f32s| {
        a.mul_add(cosine(2), b.mul_add(cosine(4), c.mul_add(cosine(8), rest)))
    };
    // The odd results.
    let d1 = d1 * cosine(3);
    let wave = |a: S::f32s, b: S::f32s, c: S::f32s, rest: S::f32s| {
        a.mul_add(cosine(1), b.mul_add(cosine(5), c.mul_add(cosine(7), rest)))
    };
    [
        outer + s1 + middle,
        wave(d0, d2, d3, d1),
        weigh(s0, -s3, -s2, plus),
        (d0 - d2 - d3) * cosine(3),
        weigh(-s2, s0, s3, -plus),
        wave(d3, d0, -d2, -d1),
        outer.mul_add(cosine(6), -(s1 + middle)),
        wave(d2, -d3, d0, -d1),
        weigh(-s3, s2, s0, -plus),
    ]
}

#[cfg(test)]
mod tests {
    use fearless_simd::{Level, dispatch};

    use super::*;

    /// Values between -1 and 1.
    fn noise(seed: u64) -> impl FnMut() -> f32 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        }
    }

    /// The definition of the inverse MDCT.
    fn imdct(lines: &[f64]) -> Vec<f64> {
        let n = 2 * lines.len();
        (0..n)
            .map(|i| {
                let wave = |(k, line): (usize, &f64)| {
                    let angle = PI / (2 * n) as f64 * ((2 * i + 1 + n / 2) * (2 * k + 1)) as f64;
                    line * angle.cos()
                };
                lines.iter().enumerate().map(wave).sum()
            })
            .collect()
    }

    /// The windowed samples of a subband's block, by the standard.
    fn windowed(window: Window, lines: &[f64; SLOTS]) -> [f64; 2 * SLOTS] {
        let sine = |at: usize, size: usize| (PI / size as f64 * (at as f64 + 0.5)).sin();
        let mut samples = [0.0; 2 * SLOTS];
        if window == Window::Short {
            for block in 0..3 {
                let part: Vec<f64> = (0..6).map(|k| lines[3 * k + block]).collect();
                for (at, sample) in imdct(&part).into_iter().enumerate() {
                    samples[6 + 6 * block + at] += sample * sine(at, 12);
                }
            }
            return samples;
        }
        for (at, sample) in imdct(lines).into_iter().enumerate() {
            let mirrored = if window == Window::Stop { 35 - at } else { at };
            let factor = match (window, mirrored) {
                (Window::Normal, _) | (_, 0..18) => sine(mirrored, 36),
                (_, 18..24) => 1.0,
                (_, 24..30) => sine(mirrored - 18, 12),
                _ => 0.0,
            };
            samples[at] = sample * factor;
        }
        samples
    }

    #[test]
    fn samples_are_those_of_the_definition() {
        [Level::new(), Level::baseline()].into_iter().for_each(check_samples);
    }

    fn check_samples(level: Level) {
        let mut noise = noise(5);
        let mut hybrid = Hybrid::default();
        let mut before = [[0.0; SLOTS]; SUBBANDS];
        let cases = [
            (Window::Normal, 0, 32),
            (Window::Start, 0, 32),
            (Window::Short, 0, 32),
            (Window::Short, 2, 20),
            (Window::Short, 4, 1),
            (Window::Stop, 2, 31),
            (Window::Normal, 0, 5),
            (Window::Normal, 0, 0),
            (Window::Normal, 0, 0),
            (Window::Start, 2, 16),
        ];
        for (window, long_subbands, subbands) in cases {
            let mut lines = [0.0; LINES];
            for (at, line) in lines.iter_mut().enumerate() {
                if at % SUBBANDS < subbands {
                    *line = noise();
                }
            }
            let mut expected: Vec<[f64; SLOTS]> = (0..SUBBANDS)
                .map(|subband| std::array::from_fn(|at| f64::from(lines[at * SUBBANDS + subband])))
                .collect();
            let reduced = match (window, long_subbands) {
                (Window::Short, 0) => 0,
                (Window::Short, long) => long - 1,
                _ => SUBBANDS - 1,
            };
            for subband in 0..reduced {
                let coefficients = [-0.6, -0.535, -0.33, -0.185, -0.095, -0.041, -0.0142, -0.0037];
                for (at, c) in coefficients.into_iter().enumerate() {
                    let size = f64::sqrt(1.0 + c * c);
                    let (a, b) = (expected[subband][17 - at], expected[subband + 1][at]);
                    expected[subband][17 - at] = (a - b * c) / size;
                    expected[subband + 1][at] = (b + a * c) / size;
                }
            }
            let mut samples = [[7.0; SUBBANDS]; SLOTS];
            let blocks = Blocks { window, long_subbands, subbands };
            dispatch!(level, simd => hybrid.run(simd, blocks, &mut lines, &mut samples));
            for subband in 0..SUBBANDS {
                let window = if subband < long_subbands { Window::Normal } else { window };
                let block = windowed(window, &expected[subband]);
                for slot in 0..SLOTS {
                    let sample = block[slot] + before[subband][slot];
                    let sample = if slot % 2 * subband % 2 == 1 { -sample } else { sample };
                    let found = f64::from(samples[slot][subband]);
                    assert!((found - sample).abs() < 1e-5, "{window:?} {subband} {slot}");
                }
                before[subband].copy_from_slice(&block[SLOTS..]);
            }
        }
    }
}
