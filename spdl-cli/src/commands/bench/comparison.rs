//! Whether two programs differ in speed: confidence intervals for the ratio of their rates.

use std::fmt;

/// The confidence of the interval; [`T_QUANTILES`] are for this value.
pub(crate) const CONFIDENCE: f64 = 0.95;

/// The rates of a baseline and of the present program.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rates {
    /// Samples per second in each round of the baseline.
    pub(crate) baseline: Vec<f64>,
    /// Samples per second in each round of the present program.
    pub(crate) current: Vec<f64>,
    /// Whether the rounds at one index ran one after the other.
    pub(crate) are_pairs: bool,
}

/// The change of the rate, with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Comparison {
    /// The change of the rate: 0.05 means 5 % more samples per second.
    pub(crate) change: f64,
    /// The confidence interval of the change.
    pub(crate) interval: [f64; 2],
    /// The smallest change that matters.
    pub(crate) threshold: f64,
    /// The number of rounds with which the interval would be as narrow as the threshold.
    rounds_to_decide: u64,
}

/// What a comparison found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Conclusion {
    Faster,
    Slower,
    NoChange,
    CannotTell,
}

impl Rates {
    /// Compares the rates. `None` if either has less than two rounds.
    ///
    /// The interval is computed for the mean of the logarithms, because ratios of rates are
    /// symmetric there: a change of −50 % cancels one of +100 %.
    ///
    /// Pairs: d = ln(current / baseline) of each round; mean(d) ± t(n − 1) · s(d) / √n. Student,
    /// "The Probable Error of a Mean", Biometrika 6 (1908).
    ///
    /// Otherwise: the difference of the means of ln(rate), ± t(ν) · √(s₁² / n₁ + s₂² / n₂), where
    /// ν are Satterthwaite's degrees of freedom. B. L. Welch, "The Generalization of 'Student's'
    /// Problem When Several Different Population Variances Are Involved", Biometrika 34 (1947).
    pub(crate) fn compare(&self, threshold: f64) -> Option<Comparison> {
        let logarithms = |rates: &[f64]| rates.iter().map(|rate| rate.ln()).collect::<Vec<_>>();
        let (old, new) = (logarithms(&self.baseline), logarithms(&self.current));
        let (difference, error, freedom) = if self.are_pairs {
            let pairs = old.iter().zip(&new).map(|(old, new)| new - old);
            let (mean, variance, n) = moments(&pairs.collect::<Vec<_>>())?;
            (mean, (variance / n).sqrt(), n - 1.0)
        } else {
            let (old_mean, old_variance, old_n) = moments(&old)?;
            let (new_mean, new_variance, new_n) = moments(&new)?;
            let (a, b) = (old_variance / old_n, new_variance / new_n);
            let freedom = (a + b).powi(2) / (a * a / (old_n - 1.0) + b * b / (new_n - 1.0));
            // Without any variance, the quotient is NaN.
            let freedom = if freedom.is_finite() { freedom } else { old_n + new_n - 2.0 };
            (new_mean - old_mean, (a + b).sqrt(), freedom)
        };
        let half = t_quantile(freedom) * error;
        let rounds = self.baseline.len().min(self.current.len()) as f64;
        Some(Comparison {
            change: difference.exp_m1(),
            interval: [(difference - half).exp_m1(), (difference + half).exp_m1()],
            threshold,
            rounds_to_decide: (rounds * (half / threshold.ln_1p()).powi(2)).ceil() as u64,
        })
    }
}

impl Comparison {
    /// No change: the whole interval is within the threshold (equivalence: D. J. Schuirmann, "A
    /// Comparison of the Two One-Sided Tests Procedure and the Power Approach for Assessing the
    /// Equivalence of Average Bioavailability", Journal of Pharmacokinetics and Biopharmaceutics 15
    /// (1987)). Faster or slower: the interval does not contain 0.
    pub(crate) fn conclusion(&self) -> Conclusion {
        let [low, high] = self.interval;
        let smallest = (-self.threshold.ln_1p()).exp_m1();
        if low >= smallest && high <= self.threshold {
            Conclusion::NoChange
        } else if low > 0.0 {
            Conclusion::Faster
        } else if high < 0.0 {
            Conclusion::Slower
        } else {
            Conclusion::CannotTell
        }
    }
}

impl Conclusion {
    /// The value in the JSON object.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Conclusion::Faster => "faster",
            Conclusion::Slower => "slower",
            Conclusion::NoChange => "no-change",
            Conclusion::CannotTell => "cannot-tell",
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| format!("{:+.1} %", share * 100.0);
        let threshold = self.threshold * 100.0;
        match self.conclusion() {
            Conclusion::Faster => write!(f, "Faster: {}", percent(self.change))?,
            Conclusion::Slower => write!(f, "Slower: {}", percent(self.change))?,
            Conclusion::NoChange => {
                write!(f, "No change above {threshold} %: {}", percent(self.change))?;
            }
            Conclusion::CannotTell => write!(f, "Cannot tell: {}", percent(self.change))?,
        }
        let [low, high] = self.interval.map(percent);
        let confidence = CONFIDENCE * 100.0;
        write!(f, " samples/s, with a {confidence:.0} % confidence interval of {low} to {high}.")?;
        match self.conclusion() {
            Conclusion::CannotTell => write!(
                f,
                " About {} rounds, or a quieter machine, would decide about {threshold} %.",
                self.rounds_to_decide
            ),
            _ => Ok(()),
        }
    }
}

/// Mean, variance (with n − 1) and number of values; `None` if there are less than two, or if any is
/// not finite.
fn moments(values: &[f64]) -> Option<(f64, f64, f64)> {
    let n = values.len() as f64;
    if values.len() < 2 || values.iter().any(|value| !value.is_finite()) {
        return None;
    }
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((mean, squares / (n - 1.0), n))
}

/// The 97.5 % quantiles of Student's t distribution with these degrees of freedom.
const T_QUANTILES: [(f64, f64); 17] = [
    (1.0, 12.706),
    (2.0, 4.303),
    (3.0, 3.182),
    (4.0, 2.776),
    (5.0, 2.571),
    (6.0, 2.447),
    (7.0, 2.365),
    (8.0, 2.306),
    (9.0, 2.262),
    (10.0, 2.228),
    (12.0, 2.179),
    (15.0, 2.131),
    (20.0, 2.086),
    (30.0, 2.042),
    (60.0, 2.000),
    (120.0, 1.980),
    (f64::INFINITY, 1.960),
];

/// The 97.5 % quantile of Student's t distribution, interpolated in 1 / degrees of freedom.
fn t_quantile(freedom: f64) -> f64 {
    let freedom = freedom.max(1.0);
    for pair in T_QUANTILES.windows(2) {
        let [(below, more), (above, less)] = [pair[0], pair[1]];
        if freedom <= above {
            let part = (1.0 / freedom - 1.0 / above) / (1.0 / below - 1.0 / above);
            return less + (more - less) * part;
        }
    }
    1.960
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers in −1..=1 without a trend.
    fn noise(round: u32) -> f64 {
        f64::from(round.wrapping_mul(2_654_435_761) >> 16) / 32_767.5 - 1.0
    }

    /// Rates around 1,000 with a relative noise, multiplied by `factor`.
    fn rates(factor: f64, spread: f64, seed: u32, rounds: u32) -> Vec<f64> {
        (0..rounds).map(|it| 1_000.0 * factor * (1.0 + spread * noise(seed + it))).collect()
    }

    fn compared(factor: f64, spread: f64, are_pairs: bool) -> Comparison {
        let baseline = rates(1.0, spread, 1, 10);
        let current = rates(factor, spread, 500, 10);
        Rates { baseline, current, are_pairs }.compare(0.02).unwrap()
    }

    #[test]
    fn equal_rates_are_no_change() {
        for are_pairs in [true, false] {
            let same = compared(1.0, 0.01, are_pairs);
            assert_eq!(same.conclusion(), Conclusion::NoChange, "{same}");
            assert!(same.to_string().starts_with("No change above 2 %: "), "{same}");
            // Rates without any noise.
            let exact = compared(1.0, 0.0, are_pairs);
            assert_eq!((exact.interval, exact.conclusion()), ([0.0; 2], Conclusion::NoChange));
        }
    }

    #[test]
    fn a_change_of_5_percent_with_small_noise_is_found() {
        for are_pairs in [true, false] {
            let faster = compared(1.05, 0.01, are_pairs);
            assert_eq!(faster.conclusion(), Conclusion::Faster, "{faster}");
            assert!((faster.change - 0.05).abs() < 0.01, "{faster}");
            let slower = compared(0.95, 0.01, are_pairs);
            assert_eq!(slower.conclusion(), Conclusion::Slower, "{slower}");
            assert!(slower.to_string().starts_with("Slower: -"), "{slower}");
        }
    }

    #[test]
    fn a_change_within_the_noise_is_not_concluded() {
        for are_pairs in [true, false] {
            let noisy = compared(1.05, 0.3, are_pairs);
            assert_eq!(noisy.conclusion(), Conclusion::CannotTell, "{noisy}");
            assert!(noisy.rounds_to_decide > 100, "{noisy}");
            assert!(noisy.to_string().contains(" rounds, or a quieter machine"), "{noisy}");
        }
    }

    #[test]
    fn pairs_remove_the_drift_of_the_machine() {
        // The machine becomes twice as fast from the first to the last round.
        let drift = |rates: Vec<f64>| -> Vec<f64> {
            rates.into_iter().enumerate().map(|(at, it)| it * (1.0 + at as f64 / 9.0)).collect()
        };
        let baseline = drift(rates(1.0, 0.005, 1, 10));
        let current = drift(rates(1.05, 0.005, 500, 10));
        let conclusion = |are_pairs| {
            let rates = Rates { baseline: baseline.clone(), current: current.clone(), are_pairs };
            rates.compare(0.02).unwrap().conclusion()
        };
        assert_eq!(conclusion(true), Conclusion::Faster);
        assert_eq!(conclusion(false), Conclusion::CannotTell);
    }

    #[test]
    fn intervals_are_those_of_the_formulas() {
        // d = ln 1.1 and ln 1.3: mean 0.178837, s = 0.118126, half = 12.706 · s / √2 = 1.061310.
        let pairs =
            Rates { baseline: vec![100.0, 100.0], current: vec![110.0, 130.0], are_pairs: true };
        let [low, high] = pairs.compare(0.02).unwrap().interval;
        assert!((low - (0.178_837_f64 - 1.061_31).exp_m1()).abs() < 1e-4, "{low}");
        assert!((high - (0.178_837_f64 + 1.061_31).exp_m1()).abs() < 1e-4, "{high}");
        // Equal variances and numbers: Welch's degrees of freedom are n₁ + n₂ − 2.
        let other =
            Rates { baseline: vec![90.0, 110.0], current: vec![180.0, 220.0], are_pairs: false };
        let [low, high] = other.compare(0.02).unwrap().interval;
        let half = 4.303 * (110.0_f64 / 90.0).ln() / 2.0_f64.sqrt();
        assert!((low - (2.0_f64.ln() - half).exp_m1()).abs() < 1e-4, "{low}");
        assert!((high - (2.0_f64.ln() + half).exp_m1()).abs() < 1e-3, "{high}");
    }

    #[test]
    fn one_round_and_impossible_rates_have_no_interval() {
        let one = |rates: &[f64], are_pairs| {
            let (baseline, current) = (rates.to_vec(), vec![5.0; rates.len()]);
            Rates { baseline, current, are_pairs }.compare(0.02)
        };
        for are_pairs in [true, false] {
            assert_eq!(one(&[5.0], are_pairs), None);
            assert_eq!(one(&[], are_pairs), None);
            assert_eq!(one(&[5.0, 0.0], are_pairs), None);
        }
    }

    #[test]
    fn quantiles_between_the_entries_are_interpolated() {
        let close = |freedom, expected: f64| {
            let found = t_quantile(freedom);
            assert!((found - expected).abs() < 2e-3, "{found} for {expected}");
        };
        close(9.0, 2.262);
        close(11.0, 2.201);
        close(25.0, 2.060);
        close(1e9, 1.960);
        close(f64::INFINITY, 1.960);
    }
}
