//! Durations in constant memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Sixteen buckets per power of two: a quantile is off by at most 1/16 of its value.
const STEPS_BITS: u32 = 4;
const STEPS: usize = 1 << STEPS_BITS;
/// Up to 2^40 ns, 18 minutes; longer counts as that.
const BUCKETS: usize = STEPS * (40 - STEPS_BITS as usize + 1);

/// How long something took: the median and the tail.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quantiles {
    /// Half of the values are at or below this.
    pub p50: Duration,
    /// 90 % of the values are at or below this.
    pub p90: Duration,
    /// 99 % of the values are at or below this.
    pub p99: Duration,
    /// The largest value.
    pub max: Duration,
}

/// Counts durations in logarithmic buckets; any number of threads may record at once.
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
    /// Counts `times` values of `each`.
    pub(crate) fn record(&self, each: Duration, times: u64) {
        let nanos = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)].fetch_add(times, Ordering::Relaxed);
        if nanos > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    pub(crate) fn quantiles(&self) -> Quantiles {
        let counts: Vec<u64> = self.counts.iter().map(|n| n.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let max = self.max.load(Ordering::Relaxed);
        let quantile = |q: f64| {
            let rank = (total as f64 * q).ceil().max(1.0) as u64;
            let mut seen = 0;
            let at = counts.iter().position(|&n| {
                seen += n;
                seen >= rank
            });
            Duration::from_nanos(at.map_or(0, |at| middle(at).min(max)))
        };
        Quantiles {
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            max: Duration::from_nanos(max),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_is_off_by_a_sixteenth_at_most(nanos in 0u64..(1 << 40)) {
            let near = middle(bucket(nanos));
            prop_assert!(near.abs_diff(nanos) as f64 <= nanos as f64 / 16.0, "{} {}", nanos, near);
        }
    }

    #[test]
    fn quantiles_of_a_known_spread() {
        let histogram = Histogram::default();
        for micros in 1..=100 {
            histogram.record(Duration::from_micros(micros), 1);
        }
        let quantiles = histogram.quantiles();
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
    fn nothing_and_the_extremes_are_fine() {
        let histogram = Histogram::default();
        assert_eq!(histogram.quantiles(), Quantiles::default());
        histogram.record(Duration::ZERO, 1);
        histogram.record(Duration::MAX, 1);
        assert_eq!(histogram.quantiles().p50, Duration::ZERO);
    }
}
