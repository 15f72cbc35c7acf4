//! Random numbers of non-uniform distributions.

use std::f64::consts::TAU;

use spdl_core::SampleRng;

/// A uniform number from `range`.
pub(super) fn uniform(rng: &mut SampleRng, range: (f64, f64)) -> f64 {
    rng.range(range.0, range.1)
}

/// A uniform integer from `low` to `high`, inclusive; `low` if the range is empty.
pub(super) fn integer(rng: &mut SampleRng, low: i64, high: i64) -> i64 {
    low + rng.below((high - low + 1).max(0) as u64) as i64
}

/// A standard normal number (Box and Muller 1958).
pub(super) fn normal(rng: &mut SampleRng) -> f64 {
    // Excludes 0, whose logarithm is infinite.
    let radius = (-2.0 * (1.0 - rng.unit()).ln()).sqrt();
    radius * (TAU * rng.unit()).cos()
}

/// The logarithm of a gamma-distributed number with shape `alpha` and scale 1 (Marsaglia and Tsang,
/// "A simple method for generating gamma variables", 2000). The logarithm avoids underflow for a
/// small `alpha`.
fn log_gamma(rng: &mut SampleRng, alpha: f64) -> f64 {
    if alpha < 1.0 {
        let uniform = 1.0 - rng.unit();
        return log_gamma(rng, alpha + 1.0) + uniform.ln() / alpha;
    }
    let d = alpha - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && (1.0 - rng.unit()).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d.ln() + v.ln();
        }
    }
}

/// Weights with sum 1 from the symmetric Dirichlet distribution with `alpha`.
pub(super) fn dirichlet(rng: &mut SampleRng, alpha: f64, shares: &mut [f32]) {
    shares.iter_mut().for_each(|share| *share = log_gamma(rng, alpha) as f32);
    let largest = shares.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    shares.iter_mut().for_each(|share| *share = (*share - largest).exp());
    let sum: f32 = shares.iter().sum();
    shares.iter_mut().for_each(|share| *share /= sum);
}

/// A number from the distribution Beta(alpha, alpha).
pub(super) fn beta(rng: &mut SampleRng, alpha: f64) -> f64 {
    let (a, b) = (log_gamma(rng, alpha), log_gamma(rng, alpha));
    1.0 / (1.0 + (b - a).exp())
}

/// A uniform random permutation (Fisher and Yates).
pub(super) fn shuffle<T>(rng: &mut SampleRng, list: &mut [T]) {
    for last in (1..list.len()).rev() {
        list.swap(last, rng.below(last as u64 + 1) as usize);
    }
}

/// Checks that alpha is positive and finite.
pub(super) fn check_alpha(alpha: f64) -> spdl_core::Result<()> {
    super::checks::check(alpha.is_finite() && alpha > 0.0, || {
        format!("invalid alpha {alpha}: expected a positive finite number")
    })
}

#[cfg(test)]
mod tests {
    use spdl_core::SampleId;

    use super::*;

    fn moments(mut draw: impl FnMut(&mut SampleRng) -> f64) -> (f64, f64) {
        const COUNT: u64 = 40_000;
        let mut sums = (0.0, 0.0);
        for index in 0..COUNT {
            let value = draw(&mut SampleRng::new(3, SampleId { epoch: 0, index }, "draw"));
            sums = (sums.0 + value, sums.1 + value * value);
        }
        let mean = sums.0 / COUNT as f64;
        (mean, sums.1 / COUNT as f64 - mean * mean)
    }

    #[test]
    fn normal_numbers_have_mean_0_and_variance_1() {
        let (mean, variance) = moments(normal);
        // Tolerances: five standard deviations of the mean and of the variance of 40,000 numbers.
        assert!(mean.abs() < 0.025 && (variance - 1.0).abs() < 0.036, "{mean} {variance}");
    }

    #[test]
    fn shares_have_the_moments_of_beta() {
        for alpha in [0.1, 0.4, 1.0, 5.0] {
            let expected = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            let (mean, variance) = moments(|rng| beta(rng, alpha));
            assert!((mean - 0.5).abs() < 0.013, "{alpha}: {mean}");
            assert!((variance / expected - 1.0).abs() < 0.05, "{alpha}: {variance} {expected}");
        }
        // With a tiny alpha, almost all numbers are near 0 or 1; none is NaN.
        let (mean, variance) = moments(|rng| beta(rng, 1e-6));
        assert!((mean - 0.5).abs() < 0.013 && (variance - 0.25).abs() < 0.001);
    }

    #[test]
    fn shares_have_the_moments_of_dirichlet() {
        for alpha in [0.2_f64, 1.0, 3.0] {
            let mut shares = [0.0; 3];
            let (mean, variance) = moments(|rng| {
                dirichlet(rng, alpha, &mut shares);
                assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-5);
                f64::from(shares[1])
            });
            // Mean 1/3; variance (1/3)(2/3) ÷ (3·alpha + 1).
            let expected = 2.0 / 9.0 / (3.0 * alpha + 1.0);
            assert!((mean - 1.0 / 3.0).abs() < 0.013, "{alpha}: {mean}");
            assert!((variance / expected - 1.0).abs() < 0.05, "{alpha}: {variance} {expected}");
        }
    }

    #[test]
    fn every_order_is_equally_likely() {
        let mut counts = std::collections::HashMap::new();
        for index in 0..24_000 {
            let mut list = [0, 1, 2, 3];
            shuffle(&mut SampleRng::new(5, SampleId { epoch: 0, index }, "shuffle"), &mut list);
            *counts.entry(list).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 24);
        // 1,000 ± 5 standard deviations of 31.
        assert!(counts.values().all(|&count| (845..=1155).contains(&count)), "{counts:?}");
    }
}
