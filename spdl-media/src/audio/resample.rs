//! Sample rate conversion with a windowed sinc filter.
//!
//! The filter is that of torchaudio's `functional.resample` with its default arguments: a sinc of 6
//! zero crossings on each side, a Hann window, and a cut-off at 0.99 of the lower Nyquist frequency.

use std::f64::consts::PI;
use std::ops::Range;

use fearless_simd::{Level, dispatch};
use spdl_core::{Error, ErrorKind, Result};

/// Zero crossings of the filter on each side.
const ZERO_CROSSINGS: f64 = 6.0;
/// The cut-off, relative to the lower Nyquist frequency.
const ROLLOFF: f64 = 0.99;
/// Coefficients that are multiplied in one step.
const LANES: usize = 8;
/// The maximum number of coefficients: 8 MiB.
const MAX_COEFFICIENTS: u64 = 2 << 20;

/// Converts from one sample rate to another. The conversion is a function of the position in the
/// file, so that a part has the same samples as the same part of the whole.
#[derive(Clone, Debug)]
pub struct Resampler {
    /// The rates without their common factor.
    from: u64,
    to: u64,
    /// Coefficients of each phase, a multiple of [`LANES`].
    taps: usize,
    coefficients: Vec<f32>,
    /// For each phase, the first input frame, relative to that of its cycle.
    starts: Vec<i64>,
    level: Level,
}

impl Resampler {
    /// A conversion from `from` to `to` frames per second.
    ///
    /// # Errors
    /// `InvalidArgument` if a rate is 0; `Unsupported` if the ratio of the rates needs more than 2
    /// million coefficients.
    pub fn new(from: u32, to: u32) -> Result<Self> {
        if from == 0 || to == 0 {
            let message = format!("cannot convert from {from} Hz to {to} Hz");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let divisor = u64::from(gcd(from, to));
        let (from, to) = (u64::from(from) / divisor, u64::from(to) / divisor);
        let cutoff = from.min(to) as f64 * ROLLOFF;
        let half_width = ZERO_CROSSINGS * from as f64 / cutoff;
        let taps = (2.0 * half_width).floor() as u64 + 1;
        let padded = taps.next_multiple_of(LANES as u64);
        if padded.saturating_mul(to) > MAX_COEFFICIENTS {
            let message = format!(
                "cannot convert sample rates with the ratio {from}:{to}; choose a rate with a simpler ratio"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let (taps, padded) = (taps as usize, padded as usize);
        let mut coefficients = vec![0.0; padded * to as usize];
        let mut starts = Vec::with_capacity(to as usize);
        for (phase, row) in coefficients.chunks_exact_mut(padded).enumerate() {
            let centre = phase as f64 * from as f64 / to as f64;
            let start = (centre - half_width).ceil() as i64;
            for (at, coefficient) in row[..taps].iter_mut().enumerate() {
                // Time in units of zero crossings.
                let time =
                    ((start + at as i64) as f64 / from as f64 - phase as f64 / to as f64) * cutoff;
                if time.abs() < ZERO_CROSSINGS {
                    let window = (time * PI / ZERO_CROSSINGS / 2.0).cos().powi(2);
                    let sinc = if time == 0.0 { 1.0 } else { (time * PI).sin() / (time * PI) };
                    *coefficient = (sinc * window * cutoff / from as f64) as f32;
                }
            }
            starts.push(start);
        }
        Ok(Resampler { from, to, taps: padded, coefficients, starts, level: Level::new() })
    }

    /// The number of frames into which `frames` frames are converted.
    pub fn output_frames(&self, frames: u64) -> u64 {
        let converted = (u128::from(frames) * u128::from(self.to)).div_ceil(u128::from(self.from));
        u64::try_from(converted).unwrap_or(u64::MAX)
    }

    /// The frames of input that these frames of output need; those outside the file count as 0.
    pub fn input_frames(&self, output: Range<u64>) -> Range<u64> {
        if output.is_empty() {
            return 0..0;
        }
        let first = self.start_of(output.start);
        let last = self.start_of(output.end - 1) + self.taps as i64;
        first.max(0) as u64..last.max(0) as u64
    }

    /// The first frame of input of a frame of output.
    fn start_of(&self, output: u64) -> i64 {
        let cycle = (output / self.to).saturating_mul(self.from);
        let start = self.starts[(output % self.to) as usize];
        i64::try_from(cycle).unwrap_or(i64::MAX / 2).saturating_add(start)
    }

    /// Converts one channel. `input` starts at the frame `first`, and holds at least the part of
    /// [`input_frames`](Self::input_frames) that is inside the file. `out` receives the frames of
    /// output from `start` on. `scratch` keeps its memory.
    pub fn convert(
        &self,
        input: &[f32],
        first: u64,
        start: u64,
        out: &mut [f32],
        scratch: &mut Vec<f32>,
    ) {
        let Some(end) = start.checked_add(out.len() as u64).filter(|_| !out.is_empty()) else {
            return;
        };
        // The input between zeros.
        let origin = self.start_of(start);
        let length = (self.start_of(end - 1) - origin) as usize + self.taps;
        scratch.clear();
        scratch.resize(length, 0.0);
        let offset = first as i64 - origin;
        let (skipped, at) = ((-offset).max(0) as usize, offset.max(0) as usize);
        if let (Some(input), Some(place)) = (input.get(skipped..), scratch.get_mut(at..)) {
            let count = input.len().min(place.len());
            place[..count].copy_from_slice(&input[..count]);
        }
        let scratch = &scratch[..];
        dispatch!(self.level, simd => {
            let _ = simd;
            self.convert_padded(scratch, origin, start, out);
        });
    }

    #[inline(always)]
    fn convert_padded(&self, padded: &[f32], origin: i64, start: u64, out: &mut [f32]) {
        let mut phase = (start % self.to) as usize;
        let mut cycle = (start / self.to * self.from) as i64 - origin;
        for out in out {
            let at = (cycle + self.starts[phase]) as usize;
            let row = &self.coefficients[phase * self.taps..][..self.taps];
            *out = dot(&padded[at..at + self.taps], row);
            phase += 1;
            if phase == self.to as usize {
                (phase, cycle) = (0, cycle + self.from as i64);
            }
        }
    }
}

/// The sum of products. The order of additions is fixed, so that all processors agree.
#[inline(always)]
fn dot(samples: &[f32], coefficients: &[f32]) -> f32 {
    let (samples, _) = samples.as_chunks::<LANES>();
    let (coefficients, _) = coefficients.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (samples, coefficients) in samples.iter().zip(coefficients) {
        for lane in 0..LANES {
            sums[lane] += samples[lane] * coefficients[lane];
        }
    }
    let [a, b, c, d, e, f, g, h] = sums;
    ((a + e) + (c + g)) + ((b + f) + (d + h))
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}
