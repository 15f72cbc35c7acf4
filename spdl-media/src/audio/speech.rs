//! Voice activity detection, by the neural network of the crate `earshot`.

use std::ops::Range;

use earshot::Detector;
use spdl_core::Result;

use super::resample::Resampler;

/// The sample rate of the detector.
const RATE: u32 = 16_000;
/// The frames of each score, 16 ms.
const BLOCK: u64 = 256;
/// What is kept before and after speech, 0.1 s: the detector is late, and consonants are faint.
const MARGIN: u64 = 1600;

/// Finds speech in audio.
pub(crate) struct SpeechFinder {
    detector: Box<Detector>,
    resampler: Option<(u32, Resampler)>,
    padded: Vec<f32>,
}

impl SpeechFinder {
    pub(crate) fn new() -> Self {
        SpeechFinder { detector: Box::default(), resampler: None, padded: Vec::new() }
    }

    /// The frames from the first to the last block of 16 ms whose score is at least `threshold`, with a margin of 0.1 s;
    /// `None` if there is no speech.
    ///
    /// # Errors
    /// `Unsupported` if the sample rate cannot be converted to 16 kHz.
    pub(crate) fn find(
        &mut self,
        samples: &[f32],
        rate: u32,
        threshold: f32,
    ) -> Result<Option<Range<usize>>> {
        if rate == RATE {
            self.resampler = None;
        } else if self.resampler.as_ref().is_none_or(|(of, _)| *of != rate) {
            self.resampler = Some((rate, Resampler::new(rate, RATE)?));
        }
        let resampler = self.resampler.as_ref().map(|(_, resampler)| resampler);
        let count = samples.len() as u64;
        let total = resampler.map_or(count, |resampler| resampler.output_frames(count));
        self.detector.reset();
        let mut found: Option<Range<u64>> = None;
        for start in (0..total).step_by(BLOCK as usize) {
            let end = total.min(start + BLOCK);
            let mut block = [0.0; BLOCK as usize];
            let part = &mut block[..(end - start) as usize];
            match resampler {
                Some(resampler) => resampler.convert(samples, 0, start, part, &mut self.padded),
                None => part.copy_from_slice(&samples[start as usize..end as usize]),
            }
            // A cast saturates; the detector allows no other numbers.
            let block = block.map(|sample| (sample * 32_768.0) as i16);
            if self.detector.predict_i16(&block) >= threshold {
                found = Some(found.map_or(start, |found| found.start)..end);
            }
        }
        Ok(found.map(|found| {
            let at = |frame: u64| {
                let frame = u128::from(frame) * u128::from(rate) / u128::from(RATE);
                usize::try_from(frame).unwrap_or(usize::MAX).min(samples.len())
            };
            let end = if found.end == total { samples.len() } else { at(found.end + MARGIN) };
            at(found.start.saturating_sub(MARGIN))..end
        }))
    }
}

#[cfg(test)]
#[path = "../../tests/audio/spoken.rs"]
mod spoken;

#[cfg(test)]
mod tests {
    use super::spoken::spoken;
    use super::*;

    #[test]
    fn speech_is_found_at_any_sample_rate() {
        for rate in [8000, 16_000, 44_100] {
            let mut finder = SpeechFinder::new();
            for _ in 0..2 {
                let found = finder.find(&spoken(rate), rate, 0.5).unwrap().expect("speech");
                // Speech is from 1 s to 2 s of 3 s.
                let seconds = |frame: usize| frame as f64 / f64::from(rate);
                assert!((0.8..=1.05).contains(&seconds(found.start)), "{rate} Hz: {found:?}");
                assert!((1.95..=2.4).contains(&seconds(found.end)), "{rate} Hz: {found:?}");
            }
        }
    }

    #[test]
    fn silence_faint_noise_and_invalid_numbers_are_not_speech() {
        let mut finder = SpeechFinder::new();
        let mut state = 1_u32;
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 * 2e-3 - 1e-3
        };
        let noise: Vec<f32> = (0..16_000).map(|_| noise()).collect();
        for samples in [vec![], vec![0.0; 16_000], vec![f32::NAN; 999], noise] {
            assert_eq!(finder.find(&samples, 16_000, 0.5).unwrap(), None);
        }
    }

    #[test]
    fn speech_up_to_the_last_frame_is_kept() {
        let samples = &spoken(22_050)[..44_000];
        let found = SpeechFinder::new().find(samples, 22_050, 0.5).unwrap();
        assert_eq!(found.map(|found| found.end), Some(samples.len()));
    }
}
