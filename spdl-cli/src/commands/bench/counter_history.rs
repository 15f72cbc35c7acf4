//! Rates over time, computed from snapshots of counters.

use std::time::Duration;

use super::snapshots::Snapshot;
use crate::ui::html::svg::Series;

/// Maximum number of values in a chart of about 400 pixels.
const MAX_BINS: usize = 100;
/// Minimum number of images per value; with fewer images, the chart would show mostly noise.
const IMAGES_PER_BIN: u64 = 40;

/// The snapshots of a run of `length` seconds.
#[derive(Debug)]
pub(crate) struct CounterHistory<'a> {
    snapshots: &'a [Snapshot],
    pub(crate) length: f64,
}

impl<'a> CounterHistory<'a> {
    pub(crate) fn new(snapshots: &'a [Snapshot]) -> Self {
        let length = snapshots.last().map_or(0.0, |last| last.at.as_secs_f64());
        CounterHistory { snapshots, length }
    }

    /// Images per second.
    pub(crate) fn throughput(&self) -> Series {
        let images = self.snapshots.last().map_or(0, |last| last.images);
        let most = usize::try_from(images / IMAGES_PER_BIN).unwrap_or(MAX_BINS);
        self.rate(self.bins().min(most).max(1), |snapshot| snapshot.images as f64)
    }

    /// The share of a stage's concurrency that is in use, from 0 to 1.
    pub(crate) fn busy(&self, stage: usize) -> Series {
        let mut series = self.rate(self.bins(), |snapshot| {
            let busy = snapshot.busy.get(stage).map_or(0.0, Duration::as_secs_f64);
            let concurrency = snapshot.concurrency.get(stage).copied().unwrap_or(1);
            busy / concurrency.max(1) as f64
        });
        // The busy time of an item is counted when the item ends, so part of it may belong to the
        // previous interval.
        series.values.iter_mut().for_each(|share| *share = share.clamp(0.0, 1.0));
        series
    }

    /// The mean number of items in a queue.
    pub(crate) fn queued(&self, queue: usize) -> Series {
        let bins = self.bins();
        let mut sums = vec![(0.0, 0u32); bins];
        for snapshot in self.snapshots {
            let part = snapshot.at.as_secs_f64() / self.length.max(f64::MIN_POSITIVE);
            let bin = ((part * bins as f64) as usize).min(bins - 1);
            sums[bin].0 += snapshot.queued.get(queue).copied().unwrap_or(0) as f64;
            sums[bin].1 += 1;
        }
        // An interval without a snapshot repeats the previous value.
        let mut latest = 0.0;
        let mean = |(sum, times): (f64, u32)| {
            if times > 0 {
                latest = sum / f64::from(times);
            }
            latest
        };
        Series { values: sums.into_iter().map(mean).collect() }
    }

    fn bins(&self) -> usize {
        (self.snapshots.len() / 2).clamp(1, MAX_BINS)
    }

    /// The growth rate of a counter in each of `bins` intervals.
    fn rate(&self, bins: usize, counter: impl Fn(&Snapshot) -> f64) -> Series {
        let width = self.length / bins as f64;
        if width <= 0.0 {
            return Series { values: vec![0.0; bins] };
        }
        let at_edge = |edge: usize| self.at(edge as f64 * width, &counter);
        let values = (0..bins).map(|bin| (at_edge(bin + 1) - at_edge(bin)) / width);
        Series { values: values.collect() }
    }

    /// The value of a counter at a given time, by linear interpolation between snapshots.
    fn at(&self, seconds: f64, counter: impl Fn(&Snapshot) -> f64) -> f64 {
        let after = self.snapshots.partition_point(|s| s.at.as_secs_f64() < seconds);
        let Some(right) = self.snapshots.get(after).or(self.snapshots.last()) else { return 0.0 };
        let left = &self.snapshots[after.saturating_sub(1).min(self.snapshots.len() - 1)];
        let span = (right.at.saturating_sub(left.at)).as_secs_f64();
        if span <= 0.0 {
            return counter(right);
        }
        let part = ((seconds - left.at.as_secs_f64()) / span).clamp(0.0, 1.0);
        counter(left) + part * (counter(right) - counter(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run of 10 s: first 100 images/s, then 300 images/s. The stage has concurrency 2; its
    /// workers are busy for half of the time at first, and idle later.
    fn snapshots() -> Vec<Snapshot> {
        let snapshot = |tenth: u64| Snapshot {
            at: Duration::from_millis(100 * tenth),
            images: 10 * tenth + 20 * tenth.saturating_sub(50),
            busy: vec![Duration::from_millis(100 * tenth.min(50))],
            concurrency: vec![2],
            queued: vec![if tenth < 50 { 8 } else { 0 }],
        };
        (0..=100).map(snapshot).collect()
    }

    #[test]
    fn values_over_time_match_the_counters() {
        let snapshots = snapshots();
        let history = CounterHistory::new(&snapshots);
        assert_eq!(history.length, 10.0);
        let near = |value: f64, expected: f64| (value - expected).abs() < 1e-6;
        let throughput = history.throughput().values;
        assert!(near(throughput[0], 100.0) && near(*throughput.last().unwrap(), 300.0));
        let mean = throughput.iter().sum::<f64>() / throughput.len() as f64;
        assert!(near(mean, 200.0), "{mean}");
        let busy = history.busy(0).values;
        assert!(near(busy[0], 0.5) && near(*busy.last().unwrap(), 0.0));
        let queued = history.queued(0).values;
        assert!(near(queued[0], 8.0) && near(*queued.last().unwrap(), 0.0));
    }

    #[test]
    fn a_run_without_time_or_snapshots_gives_zeros() {
        for snapshots in [vec![], vec![Snapshot::default(); 2]] {
            let history = CounterHistory::new(&snapshots);
            assert_eq!(history.throughput().values, [0.0]);
            assert_eq!(history.busy(0).values, [0.0]);
            assert_eq!(history.queued(3).values, [0.0]);
        }
    }
}
