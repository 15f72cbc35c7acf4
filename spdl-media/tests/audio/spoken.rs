//! Audio that sounds like speech.

use std::f64::consts::PI;

/// Three seconds of faint noise; from 1 s to 2 s, five times the vowel of "father", with a falling pitch.
pub(super) fn spoken(rate: u32) -> Vec<f32> {
    // Frequency, bandwidth and gain of each formant.
    let formants = [(730.0, 90.0, 1.0), (1090.0, 110.0, 0.5), (2440.0, 170.0, 0.25)];
    let mut state = 1_u32;
    let rate = f64::from(rate);
    let sample = |at: usize| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let noise = (f64::from(state >> 8) / f64::from(1 << 24) - 0.5) * 2e-4;
        let time = at as f64 / rate - 1.0;
        if !(0.0..1.0).contains(&time) {
            return noise as f32;
        }
        let loudness = 0.1 * (PI * (5.0 * time).fract()).sin();
        let pitch = 140.0 - 30.0 * time;
        let phase = 2.0 * PI * (140.0 * time - 15.0 * time * time);
        let highest = (3800.0_f64.min(rate / 2.0) / pitch) as u32;
        let harmonic = |number: u32| {
            let number = f64::from(number);
            let gain = |(frequency, bandwidth, gain): (f64, f64, f64)| {
                gain / (1.0 + ((number * pitch - frequency) / bandwidth).powi(2))
            };
            formants.map(gain).iter().sum::<f64>() * (number * phase).sin()
        };
        (noise + loudness * (1..=highest).map(harmonic).sum::<f64>()) as f32
    };
    (0..(3.0 * rate) as usize).map(sample).collect()
}
