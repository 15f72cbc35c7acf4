//! [`AudioFeatures`]: log-mel spectrograms, filter banks, cepstral coefficients and spectrograms.
//!
//! Sources: OpenAI's Whisper for `whisper`, `torchaudio.compliance.kaldi` for `fbank` and `mfcc`
//! (without dither), `torch.stft` for `spectrogram`.

use std::f64::consts::PI;
use std::sync::Arc;

use fearless_simd::{Level, dispatch};
use realfft::num_complex::Complex;
use realfft::{RealFftPlanner, RealToComplex};
use rustfft::{Fft, FftPlanner};
use spdl_core::{Error, ErrorKind, Result};

/// Features of one channel, computed from its samples. The processor decides the last bits.
///
/// ```
/// use spdl_media::audio::{AudioChannels, AudioFeatures, AudioTransform};
/// // Whisper's input: 30 seconds at 16 kHz become 80 mel bands of 3000 frames.
/// let transform = AudioTransform::new()
///     .sample_rate(16_000)
///     .channels(AudioChannels::Mono)
///     .frames(480_000)
///     .features(AudioFeatures::whisper(80));
/// assert_eq!(transform.shape(), [80, 3000]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AudioFeatures {
    kind: FeatureKind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum FeatureKind {
    Whisper { mels: usize },
    Kaldi { bins: usize, coefficients: Option<usize>, scale: f32 },
    Spectrogram { size: usize, hop: usize },
}

/// The shape of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FeatureOrder {
    /// `[bins, frames]`.
    BinsFirst,
    /// `[frames, bins]`.
    FramesFirst,
}

impl AudioFeatures {
    /// The log-mel spectrogram of Whisper, `[mels, frames / 160]`: windows of 400 samples, 80 or 128
    /// bands. The sample rate is 16 kHz.
    pub fn whisper(mels: usize) -> Self {
        AudioFeatures { kind: FeatureKind::Whisper { mels } }
    }

    /// The logarithms of Kaldi's mel filter bank, `[windows, bins]`: windows of 25 ms every 10 ms.
    /// Default of Kaldi: 23 bins.
    pub fn fbank(bins: usize) -> Self {
        AudioFeatures { kind: FeatureKind::Kaldi { bins, coefficients: None, scale: 1.0 } }
    }

    /// Kaldi's mel-frequency cepstral coefficients, `[windows, coefficients]`, of 23 bins.
    /// Default of Kaldi: 13 coefficients.
    pub fn mfcc(coefficients: usize) -> Self {
        let coefficients = Some(coefficients);
        AudioFeatures { kind: FeatureKind::Kaldi { bins: 23, coefficients, scale: 1.0 } }
    }

    /// The power spectrogram, `[size / 2 + 1, frames / hop + 1]`, with a periodic Hann window of
    /// `size` samples, centred on reflected samples as in `torch.stft`.
    pub fn spectrogram(size: usize, hop: usize) -> Self {
        AudioFeatures { kind: FeatureKind::Spectrogram { size, hop } }
    }

    /// Multiplies samples before [`fbank`](Self::fbank) and [`mfcc`](Self::mfcc). Kaldi itself uses
    /// 32,768. Default: 1, as in torchaudio.
    #[must_use]
    pub fn scale(mut self, factor: f32) -> Self {
        if let FeatureKind::Kaldi { scale, .. } = &mut self.kind {
            *scale = factor;
        }
        self
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// `InvalidArgument` for sizes of 0, sizes above 65,536, more coefficients than bins, a scale
    /// that is 0 or not finite, a sample rate that the features do not have, or fewer frames than a
    /// window needs.
    pub(super) fn validate(&self, sample_rate: Option<u32>, frames: Option<usize>) -> Result<()> {
        let is_size = |size: usize| (1..=65_536).contains(&size);
        let message = match self.kind {
            _ if sample_rate.is_none() => "features need a sample rate".to_owned(),
            FeatureKind::Whisper { .. } if sample_rate != Some(16_000) => {
                "the log-mel spectrogram of Whisper needs a sample rate of 16000".to_owned()
            }
            FeatureKind::Whisper { mels } if !is_size(mels) => {
                format!("invalid number of mel bands {mels}")
            }
            FeatureKind::Kaldi { bins, .. } if !is_size(bins) => {
                format!("invalid number of bins {bins}")
            }
            FeatureKind::Kaldi { bins, coefficients: Some(count), .. }
                if count == 0 || count > bins =>
            {
                format!("invalid number of coefficients {count}: expected 1 to {bins}")
            }
            FeatureKind::Kaldi { .. } if sample_rate < Some(100) => {
                "filter banks need a sample rate of at least 100".to_owned()
            }
            FeatureKind::Spectrogram { size, hop }
                if !is_size(size) || size < 2 || !is_size(hop) =>
            {
                format!("invalid spectrogram: window of {size} samples every {hop}")
            }
            FeatureKind::Kaldi { scale, .. } if scale == 0.0 || !scale.is_finite() => {
                format!("invalid scale {scale}: expected a finite number other than 0")
            }
            _ => match (frames, self.least_samples(sample_rate.unwrap_or(0))) {
                (Some(frames), least) if frames < least => {
                    format!("{frames} frames are too few for these features: at least {least}")
                }
                _ => return Ok(()),
            },
        };
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// The number of samples that one window needs.
    fn least_samples(&self, sample_rate: u32) -> usize {
        match self.kind {
            FeatureKind::Whisper { .. } => 201,
            FeatureKind::Kaldi { .. } => kaldi_window(sample_rate).0,
            FeatureKind::Spectrogram { size, .. } => size / 2 + 1,
        }
    }

    /// Whether frames are the first dimension.
    pub(crate) fn order(&self) -> FeatureOrder {
        match self.kind {
            FeatureKind::Kaldi { .. } => FeatureOrder::FramesFirst,
            _ => FeatureOrder::BinsFirst,
        }
    }

    /// The number of values of a window.
    pub(crate) fn bins(&self) -> usize {
        match self.kind {
            FeatureKind::Whisper { mels } => mels,
            FeatureKind::Kaldi { bins, coefficients, .. } => coefficients.unwrap_or(bins),
            FeatureKind::Spectrogram { size, .. } => size / 2 + 1,
        }
    }

    /// The number of windows of this number of samples.
    pub(crate) fn windows(&self, samples: usize, sample_rate: u32) -> usize {
        match self.kind {
            FeatureKind::Whisper { .. } => samples / 160,
            FeatureKind::Kaldi { .. } => {
                let (length, shift) = kaldi_window(sample_rate);
                if samples < length { 0 } else { (samples - length) / shift + 1 }
            }
            FeatureKind::Spectrogram { hop, .. } => samples / hop + 1,
        }
    }
}

/// The length and the shift of Kaldi's windows in samples: 25 ms and 10 ms.
fn kaldi_window(sample_rate: u32) -> (usize, usize) {
    let rate = f64::from(sample_rate);
    ((rate * 0.025) as usize, (rate * 0.01) as usize)
}

/// Computes features, and keeps tables and memory.
pub(crate) struct FeatureExtractor {
    features: AudioFeatures,
    sample_rate: u32,
    window: Vec<f32>,
    shift: usize,
    fft: Arc<dyn RealToComplex<f32>>,
    /// The weights of each mel band from its first bin on.
    bands: Vec<(usize, Vec<f32>)>,
    /// The cosine transform with its lifter, by coefficient and band.
    cosines: Vec<Vec<f32>>,
    /// One window; its spectrum; its power; the bands.
    samples: Vec<f32>,
    spectrum: Vec<Complex<f32>>,
    scratch: Vec<Complex<f32>>,
    power: Vec<f32>,
    energies: Vec<f32>,
    /// The power of each bin in several windows.
    tile: Vec<[f32; TILE]>,
    pairs: Option<PairTransform>,
}

impl FeatureExtractor {
    pub(crate) fn new(features: AudioFeatures, sample_rate: u32) -> Self {
        let (window, shift, size) = match features.kind {
            FeatureKind::Whisper { .. } => (hann(400, 400), 160, 400),
            FeatureKind::Spectrogram { size, hop } => (hann(size, size), hop, size),
            FeatureKind::Kaldi { .. } => {
                let (length, shift) = kaldi_window(sample_rate);
                // The window of Dan Povey: a symmetric Hann window to the power of 0.85.
                let window = hann(length, length - 1).iter().map(|it| it.powf(0.85)).collect();
                (window, shift, length.next_power_of_two())
            }
        };
        let bands = match features.kind {
            FeatureKind::Whisper { mels } => slaney_bands(mels, size, sample_rate),
            FeatureKind::Kaldi { bins, .. } => kaldi_bands(bins, size, sample_rate),
            FeatureKind::Spectrogram { .. } => Vec::new(),
        };
        let cosines = match features.kind {
            FeatureKind::Kaldi { bins, coefficients: Some(count), .. } => {
                (0..count).map(|row| cosine(row, bins)).collect()
            }
            _ => Vec::new(),
        };
        let fft = RealFftPlanner::new().plan_fft_forward(size);
        FeatureExtractor {
            features,
            sample_rate,
            window,
            shift,
            samples: fft.make_input_vec(),
            spectrum: fft.make_output_vec(),
            scratch: fft.make_scratch_vec(),
            power: vec![0.0; size / 2 + 1],
            energies: vec![0.0; bands.len()],
            tile: vec![[0.0; TILE]; size / 2 + 1],
            pairs: match features.kind {
                FeatureKind::Whisper { .. } => Some(PairTransform::new(size)),
                _ => None,
            },
            bands,
            cosines,
            fft,
        }
    }

    /// Computes the features of `samples` into `out`, whose length is the number of windows times
    /// that of bins.
    ///
    /// # Errors
    /// `InvalidArgument` if there are too few samples to reflect them.
    pub(crate) fn compute(&mut self, samples: &[f32], out: &mut [f32]) -> Result<()> {
        let windows = self.features.windows(samples.len(), self.sample_rate);
        let bins = self.features.bins();
        match self.features.kind {
            FeatureKind::Kaldi { scale, .. } => {
                for (at, out) in out.chunks_exact_mut(bins).enumerate().take(windows) {
                    self.kaldi(&samples[at * self.shift..][..self.window.len()], scale, out);
                }
            }
            kind => {
                let half = self.window.len() / 2;
                if samples.len() <= half {
                    let message = format!(
                        "{} samples are too few for windows of {}: at least {} are needed",
                        samples.len(),
                        self.window.len(),
                        half + 1
                    );
                    return Err(Error::new(ErrorKind::InvalidArgument, message));
                }
                // Several windows at a time, which are the lanes of vector instructions.
                for first in (0..windows).step_by(TILE) {
                    let count = TILE.min(windows - first);
                    let shift = self.shift;
                    let start = |lane: usize| ((first + lane) * shift) as isize - half as isize;
                    match &mut self.pairs {
                        Some(pairs) => {
                            for lane in (0..count).step_by(2) {
                                for (part, lane) in pairs.parts.iter_mut().zip([lane, lane + 1]) {
                                    // The last window may have no neighbour.
                                    let lane = lane.min(count - 1);
                                    centred(samples, start(lane), &self.window, part);
                                }
                                pairs.powers(lane, &mut self.tile);
                            }
                        }
                        None => {
                            for lane in 0..count {
                                centred(samples, start(lane), &self.window, &mut self.samples);
                                self.transform();
                                let places = self.tile.iter_mut().zip(&self.power);
                                places.for_each(|(place, power)| place[lane] = *power);
                            }
                        }
                    }
                    let (bands, tile) = (&self.bands, &self.tile);
                    let rows = out.chunks_exact_mut(windows).take(bins);
                    let rows = rows.map(|row| &mut row[first..first + count]);
                    match kind {
                        FeatureKind::Whisper { .. } => {
                            dispatch!(Level::new(), _simd => logarithms_of_bands(rows, bands, tile));
                        }
                        _ => rows.zip(tile).for_each(|(row, it)| row.copy_from_slice(&it[..count])),
                    }
                }
                if let FeatureKind::Whisper { .. } = kind {
                    dispatch!(Level::new(), _simd => limit_range(out));
                }
            }
        }
        Ok(())
    }

    /// One window of Kaldi's features.
    fn kaldi(&mut self, samples: &[f32], scale: f32, out: &mut [f32]) {
        let (windowed, padding) = self.samples.split_at_mut(samples.len());
        let mean = samples.iter().sum::<f32>() / samples.len() as f32;
        let centred = |sample: f32| (sample - mean) * scale;
        let mut before = samples.first().map_or(0.0, |first| centred(*first));
        for ((out, sample), weight) in windowed.iter_mut().zip(samples).zip(&self.window) {
            let sample = centred(*sample);
            *out = (sample - 0.97 * before) * weight;
            before = sample;
        }
        padding.fill(0.0);
        self.transform();
        for (energy, (first, weights)) in self.energies.iter_mut().zip(&self.bands) {
            *energy = dot(weights, &self.power[*first..]).max(f32::EPSILON).ln();
        }
        match self.cosines.is_empty() {
            true => out.copy_from_slice(&self.energies),
            false => {
                for (out, row) in out.iter_mut().zip(&self.cosines) {
                    *out = row.iter().zip(&self.energies).map(|(a, b)| a * b).sum();
                }
            }
        }
    }

    /// The power of the spectrum of `self.samples`.
    fn transform(&mut self) {
        // The lengths of these buffers are those that the transform has made.
        let done =
            self.fft.process_with_scratch(&mut self.samples, &mut self.spectrum, &mut self.scratch);
        debug_assert!(done.is_ok(), "buffers of the wrong length");
        let powers = self.power.iter_mut().zip(&self.spectrum);
        dispatch!(Level::new(), _simd => {
            powers.for_each(|(power, value)| *power = value.norm_sqr());
        });
    }
}

/// The number of windows whose features are computed together. It is even.
const TILE: usize = 16;

/// Transforms two windows at a time: one is the real part of a complex signal, the other is its
/// imaginary part.
///
/// A window gets rounding errors of its neighbour, some 1e-7 of its amplitude. They are far below the
/// level, 8 decades of power under the maximum, to which Whisper raises all values.
struct PairTransform {
    fft: Arc<dyn Fft<f32>>,
    /// The two windows; the complex signal, then its spectrum.
    parts: [Vec<f32>; 2],
    signal: Vec<Complex<f32>>,
    scratch: Vec<Complex<f32>>,
}

impl PairTransform {
    fn new(size: usize) -> Self {
        let fft = FftPlanner::new().plan_fft_forward(size);
        let scratch = vec![Complex::default(); fft.get_inplace_scratch_len()];
        let parts = [vec![0.0; size], vec![0.0; size]];
        PairTransform { fft, parts, signal: vec![Complex::default(); size], scratch }
    }

    /// Writes the power spectra of `self.parts` to the lanes `lane` and `lane + 1`.
    fn powers(&mut self, lane: usize, tile: &mut [[f32; TILE]]) {
        let [first, second] = &self.parts;
        let signal = &mut self.signal;
        dispatch!(Level::new(), _simd => {
            for ((out, re), im) in signal.iter_mut().zip(first).zip(second) {
                *out = Complex::new(*re, *im);
            }
        });
        self.fft.process_with_scratch(signal, &mut self.scratch);
        // The spectrum of a real signal is that of its mirror image, conjugated.
        let mirrored = signal[..1].iter().chain(signal[1..].iter().rev());
        for ((place, value), mirrored) in tile.iter_mut().zip(&*signal).zip(mirrored) {
            let (sum, difference) = (value + mirrored.conj(), value - mirrored.conj());
            place[lane] = sum.norm_sqr() * 0.25;
            place[lane + 1] = difference.norm_sqr() * 0.25;
        }
    }
}

/// The window of `samples` that begins at `start`; samples outside are reflected.
fn centred(samples: &[f32], start: isize, window: &[f32], out: &mut [f32]) {
    match usize::try_from(start).ok().and_then(|start| samples.get(start..start + window.len())) {
        Some(part) => {
            let windowed = out.iter_mut().zip(part).zip(window);
            windowed.for_each(|((out, sample), weight)| *out = sample * weight);
        }
        None => {
            let last = samples.len() as isize - 1;
            for (at, (out, weight)) in out.iter_mut().zip(window).enumerate() {
                let mut place = (start + at as isize).abs();
                if place > last {
                    place = 2 * last - place;
                }
                *out = samples[place.max(0) as usize] * weight;
            }
        }
    }
}

/// The logarithm of the energy of each band in each window of a tile.
#[inline(always)]
fn logarithms_of_bands<'a>(
    rows: impl Iterator<Item = &'a mut [f32]>,
    bands: &[(usize, Vec<f32>)],
    tile: &[[f32; TILE]],
) {
    for (row, (first, weights)) in rows.zip(bands) {
        let mut sums = [0.0; TILE];
        for (weight, power) in weights.iter().zip(&tile[*first..]) {
            for lane in 0..TILE {
                sums[lane] += weight * power[lane];
            }
        }
        let logarithms = sums.map(|sum| log10(sum.max(1e-10)));
        row.copy_from_slice(&logarithms[..row.len()]);
    }
}

/// Raises logarithms to 8 below their maximum, and scales them as Whisper does.
#[inline(always)]
fn limit_range(out: &mut [f32]) {
    let (chunks, rest) = out.as_chunks::<TILE>();
    let mut most = [f32::MIN; TILE];
    for chunk in chunks {
        for lane in 0..TILE {
            most[lane] = if chunk[lane] > most[lane] { chunk[lane] } else { most[lane] };
        }
    }
    let least = most.iter().chain(rest).copied().fold(f32::MIN, f32::max) - 8.0;
    out.iter_mut().for_each(|it| *it = (it.max(least) + 4.0) / 4.0);
}

/// The sum of products, in eight parts that the compiler adds with vector instructions.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let b = &b[..a.len()];
    let (chunks_a, rest_a) = a.as_chunks::<8>();
    let (chunks_b, rest_b) = b.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (a, b) in chunks_a.iter().zip(chunks_b) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f32 = rest_a.iter().zip(rest_b).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// The common logarithm of a positive normal number within 3e-7, without branches: the polynomial of
/// `logf` in Cephes (Stephen L. Moshier), for mantissas from √½ to √2.
#[inline(always)]
fn log10(value: f32) -> f32 {
    const POLYNOMIAL: [f32; 9] = [
        7.037_683_6e-2,
        -1.151_461e-1,
        1.167_699_9e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_8e-1,
        2.000_071_5e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ];
    const ROOT_OF_HALF: i32 = 0x3F35_04F3;
    let exponent = (value.to_bits() as i32 - ROOT_OF_HALF) >> 23;
    let mantissa = f32::from_bits((value.to_bits() as i32 - (exponent << 23)) as u32) - 1.0;
    let polynomial = POLYNOMIAL.iter().fold(0.0, |sum, factor| sum * mantissa + factor);
    let square = mantissa * mantissa;
    let logarithm = mantissa + (polynomial * mantissa * square - 0.5 * square);
    logarithm * std::f32::consts::LOG10_E + exponent as f32 * std::f32::consts::LOG10_2
}

/// A Hann window of `length` samples with this period.
fn hann(length: usize, period: usize) -> Vec<f32> {
    let value = |at: usize| 0.5 - 0.5 * (2.0 * PI * at as f64 / period as f64).cos();
    (0..length).map(|at| value(at) as f32).collect()
}

/// Bands without the bins whose weight is 0.
fn sparse(weights: impl Iterator<Item = f64>) -> (usize, Vec<f32>) {
    let weights: Vec<f32> = weights.map(|weight| weight as f32).collect();
    let first = weights.iter().position(|weight| *weight > 0.0).unwrap_or(0);
    let end = weights.iter().rposition(|weight| *weight > 0.0).map_or(first, |last| last + 1);
    (first, weights[first..end].to_vec())
}

/// The mel bands of `librosa.filters.mel` with its defaults: Slaney's scale, equal area.
fn slaney_bands(mels: usize, size: usize, sample_rate: u32) -> Vec<(usize, Vec<f32>)> {
    let to_hertz = |mel: f64| match mel < 15.0 {
        true => mel * 200.0 / 3.0,
        false => 1000.0 * ((mel - 15.0) * 6.4_f64.ln() / 27.0).exp(),
    };
    let top = f64::from(sample_rate) / 2.0;
    let top_mel = match top < 1000.0 {
        true => top * 3.0 / 200.0,
        false => 15.0 + (top / 1000.0).ln() * 27.0 / 6.4_f64.ln(),
    };
    let edge = |at: usize| to_hertz(top_mel * at as f64 / (mels + 1) as f64);
    let band = |mel: usize| {
        let (low, centre, high) = (edge(mel), edge(mel + 1), edge(mel + 2));
        let weight = move |bin: usize| {
            let hertz = bin as f64 * f64::from(sample_rate) / size as f64;
            let (rising, falling) =
                ((hertz - low) / (centre - low), (high - hertz) / (high - centre));
            rising.min(falling).max(0.0) * 2.0 / (high - low)
        };
        sparse((0..=size / 2).map(weight))
    };
    (0..mels).map(band).collect()
}

/// Kaldi's mel bands from 20 Hz to half of the sample rate.
fn kaldi_bands(bins: usize, size: usize, sample_rate: u32) -> Vec<(usize, Vec<f32>)> {
    let mel = |hertz: f64| 1127.0 * (1.0 + hertz / 700.0).ln();
    let (low, high) = (mel(20.0), mel(f64::from(sample_rate) / 2.0));
    let step = (high - low) / (bins + 1) as f64;
    let band = |bin: usize| {
        let left = low + bin as f64 * step;
        // The bin of half of the sample rate has no weight.
        let weight = move |at: usize| {
            let mel = mel(at as f64 * f64::from(sample_rate) / size as f64);
            ((mel - left) / step).min((left + 2.0 * step - mel) / step).max(0.0)
        };
        sparse((0..size / 2).map(weight))
    };
    (0..bins).map(band).collect()
}

/// A row of the orthonormal cosine transform, with Kaldi's lifter of 22.
fn cosine(row: usize, bins: usize) -> Vec<f32> {
    let bins = bins as f64;
    let norm = if row == 0 { (1.0 / bins).sqrt() } else { (2.0 / bins).sqrt() };
    let lifter = 1.0 + 11.0 * (PI * row as f64 / 22.0).sin();
    let value = |at: usize| norm * (PI / bins * (at as f64 + 0.5) * row as f64).cos() * lifter;
    (0..bins as usize).map(|at| value(at) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_are_those_of_the_standard_library() {
        let mut value = f32::MIN_POSITIVE;
        while value < 1e30 {
            let (found, expected) = (log10(value), value.log10());
            assert!((found - expected).abs() <= 1e-6 * expected.abs().max(0.3), "{value}: {found}");
            value *= 1.000_37;
        }
        assert_eq!(log10(1.0), 0.0);
    }
}
