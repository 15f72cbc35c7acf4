//! Log-linear histogram of durations, with lock-free recording and constant memory.

// Standard atomics instead of `crate::sync`: model checkers need not explore these counters,
// because the control flow does not depend on them.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// 16 buckets per power of two: the relative error of a quantile is at most 1/16.
const STEPS_BITS: u32 = 4;
const STEPS: usize = 1 << STEPS_BITS;
/// The buckets cover durations up to 2^40 ns (18 minutes). The last bucket also contains all longer
/// durations.
const BUCKETS: usize = STEPS * (40 - STEPS_BITS as usize + 1);

/// Quantiles of durations: the median and the tail.
///
/// All quantiles except `max` are approximate, with a relative error of at most 1/16 for durations
/// up to 18 minutes. In an [`Interval`](crate::observe::Interval), `max` can be approximate too.
/// All quantiles are 0 if no duration was recorded.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Quantiles {
    /// The median: half of the values are at most this.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds"))]
    pub p50: Duration,
    /// 90 % of the values are at most this.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds"))]
    pub p90: Duration,
    /// 99 % of the values are at most this.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds"))]
    pub p99: Duration,
    /// The largest value.
    #[cfg_attr(feature = "serde", serde(with = "crate::seconds"))]
    pub max: Duration,
}

/// Counts durations in log-linear buckets; threads record concurrently without a lock.
#[derive(Debug)]
pub(crate) struct Histogram {
    counts: Box<[AtomicU64]>,
    max: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        let counts = (0..BUCKETS).map(|_| AtomicU64::new(0)).collect();
        Histogram { counts, max: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Records `times` values of `each`.
    pub(crate) fn record(&self, each: Duration, times: u64) {
        let nanos = saturating_nanos(each);
        self.counts[bucket(nanos)].fetch_add(times, Ordering::Relaxed);
        if nanos > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// A copy of the current counts.
    pub(crate) fn counts(&self) -> Counts {
        let counts = self.counts.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        Counts { counts, max: self.max.load(Ordering::Relaxed) }
    }
}

/// A snapshot of a [`Histogram`], or a histogram for a single thread or inside a lock.
#[derive(Clone, Debug)]
pub(crate) struct Counts {
    counts: Box<[u64]>,
    max: u64,
}

impl Default for Counts {
    fn default() -> Self {
        Counts { counts: vec![0; BUCKETS].into_boxed_slice(), max: 0 }
    }
}

impl Counts {
    /// Records `times` values of `each`. Does not allocate.
    pub(crate) fn record(&mut self, each: Duration, times: u64) {
        if times == 0 {
            return;
        }
        let nanos = saturating_nanos(each);
        self.counts[bucket(nanos)] += times;
        self.max = self.max.max(nanos);
    }

    /// The counts since `earlier`, a snapshot of the same histogram.
    pub(crate) fn since(&self, earlier: &Counts) -> Counts {
        let pairs = self.counts.iter().zip(&earlier.counts);
        let counts: Box<[u64]> = pairs.map(|(now, then)| now.saturating_sub(*then)).collect();
        // The maximum is exact if it is new. Otherwise only its bucket is known.
        let last = counts.iter().rposition(|&n| n > 0);
        let max = last.map_or(0, |bucket| highest(bucket).min(self.max));
        Counts { counts, max }
    }

    pub(crate) fn quantiles(&self) -> Quantiles {
        let total: u64 = self.counts.iter().sum();
        let quantile = |q: f64| {
            let rank = (total as f64 * q).ceil().max(1.0) as u64;
            let mut seen = 0;
            let at = self.counts.iter().position(|&n| {
                seen += n;
                seen >= rank
            });
            Duration::from_nanos(at.map_or(0, |at| middle(at).min(self.max)))
        };
        Quantiles {
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            max: Duration::from_nanos(self.max),
        }
    }
}

fn saturating_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn bucket(nanos: u64) -> usize {
    if nanos < STEPS as u64 {
        return nanos as usize;
    }
    let exponent = nanos.ilog2();
    let step = (nanos >> (exponent - STEPS_BITS)) as usize - STEPS;
    ((exponent - STEPS_BITS + 1) as usize * STEPS + step).min(BUCKETS - 1)
}

/// The value in the middle of a bucket.
fn middle(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let shift = (bucket / STEPS - 1) as u32;
    let low = ((STEPS + bucket % STEPS) as u64) << shift;
    low + (1u64 << shift) / 2
}

/// The largest value in a bucket; unbounded for the last bucket.
fn highest(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    if bucket == BUCKETS - 1 {
        return u64::MAX;
    }
    let shift = (bucket / STEPS - 1) as u32;
    (((STEPS + bucket % STEPS + 1) as u64) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn relative_error_of_a_bucket_is_at_most_a_sixteenth(nanos in 0u64..(1 << 40)) {
            let near = middle(bucket(nanos));
            prop_assert!(near.abs_diff(nanos) as f64 <= nanos as f64 / 16.0, "{} {}", nanos, near);
        }

        #[test]
        fn a_value_is_within_the_bounds_of_its_bucket(nanos in 0u64..=u64::MAX) {
            let bucket = bucket(nanos);
            prop_assert!(nanos <= highest(bucket));
            prop_assert!(bucket == 0 || nanos > highest(bucket - 1));
        }
    }

    #[test]
    fn quantiles_of_an_interval_exclude_earlier_values() {
        let histogram = Histogram::default();
        histogram.record(Duration::from_millis(50), 1_000);
        let before = histogram.counts();
        for micros in 1..=100 {
            histogram.record(Duration::from_micros(micros), 1);
        }
        let interval = histogram.counts().since(&before).quantiles();
        let close = |value: Duration, micros: f64| {
            let ratio = value.as_secs_f64() * 1e6 / micros;
            assert!((0.93..1.07).contains(&ratio), "{value:?} for {micros}");
        };
        close(interval.p50, 50.0);
        close(interval.p90, 90.0);
        close(interval.p99, 99.0);
        close(interval.max, 100.0);
        assert_eq!(histogram.counts().quantiles().max, Duration::from_millis(50));
    }

    #[test]
    fn a_new_maximum_of_an_interval_is_exact() {
        let mut counts = Counts::default();
        counts.record(Duration::from_nanos(1_234_567), 3);
        let before = counts.clone();
        assert_eq!(before.since(&before).quantiles(), Quantiles::default());
        counts.record(Duration::from_nanos(7_654_321), 1);
        counts.record(Duration::from_nanos(1), 9);
        let interval = counts.since(&before).quantiles();
        assert_eq!(interval.max, Duration::from_nanos(7_654_321));
        assert_eq!(interval.p90, Duration::from_nanos(1));
    }

    #[test]
    fn quantiles_of_a_known_distribution() {
        let histogram = Histogram::default();
        for micros in 1..=100 {
            histogram.record(Duration::from_micros(micros), 1);
        }
        let quantiles = histogram.counts().quantiles();
        let close = |value: Duration, micros: f64| {
            let ratio = value.as_secs_f64() * 1e6 / micros;
            assert!((0.93..1.07).contains(&ratio), "{value:?} for {micros}");
        };
        close(quantiles.p50, 50.0);
        close(quantiles.p90, 90.0);
        close(quantiles.p99, 99.0);
        assert_eq!(quantiles.max, Duration::from_micros(100));
    }

    #[test]
    fn quantiles_of_no_values_and_of_extreme_values() {
        let histogram = Histogram::default();
        assert_eq!(histogram.counts().quantiles(), Quantiles::default());
        histogram.record(Duration::ZERO, 1);
        histogram.record(Duration::MAX, 1);
        assert_eq!(histogram.counts().quantiles().p50, Duration::ZERO);
    }
}
