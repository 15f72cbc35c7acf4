//! Statistics of a data set.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::timed::TimedFile;
use crate::inspection::media::{AudioFacts, VideoFacts};
use crate::ui::format::{bytes, count};

/// Counters of a data set.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    pub(crate) samples: u64,
    pub(crate) members: u64,
    pub(crate) bytes: u64,
    /// Members and bytes by field.
    pub(crate) fields: BTreeMap<String, (u64, u64)>,
    /// Number of images by format.
    pub(crate) formats: BTreeMap<String, u64>,
    pub(crate) unreadable: u64,
    /// Number of members that are known to exist but were not read.
    pub(crate) unseen: u64,
    /// Number of damaged or truncated archives whose number of members is unknown.
    pub(crate) ends_missing: u64,
    pub(crate) images: Vec<ImageFacts>,
    pub(crate) audio: Vec<TimedFile<AudioFacts>>,
    pub(crate) videos: Vec<TimedFile<VideoFacts>>,
    /// Number of samples by class.
    pub(crate) classes: BTreeMap<i64, u64>,
}

/// Dimensions and file size of an image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImageFacts {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) bytes: u64,
}

/// Minimum, quantiles, maximum and mean of a set of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    pub(crate) min: f64,
    pub(crate) p10: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) max: f64,
    pub(crate) mean: f64,
}

impl Spread {
    /// Computes the statistics of `values`; `None` if there are no values.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        // The nearest-rank quantile.
        let at = |share: f64| sorted[((last as f64 * share).round() as usize).min(last)];
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        let [min, p10, p50, p90, max] = [0.0, 0.1, 0.5, 0.9, 1.0].map(at);
        Some(Spread { min, p10, p50, p90, max, mean })
    }

    /// The values in the order of the tables.
    pub(crate) fn values(self) -> [f64; 6] {
        let Spread { min, p10, p50, p90, max, mean } = self;
        [min, p10, p50, p90, max, mean]
    }

    pub(crate) fn as_json(self) -> Value {
        let Spread { min, p10, p50, p90, max, mean } = self;
        json!({"min": min, "p10": p10, "p50": p50, "p90": p90, "max": max, "mean": mean})
    }
}

impl Summary {
    /// Computes a value of each image.
    pub(crate) fn of_images(&self, value: impl Fn(&ImageFacts) -> f64) -> Vec<f64> {
        self.images.iter().map(value).collect()
    }

    /// All classes, sorted by number, with their names; includes named classes without samples.
    pub(crate) fn classes(&self, names: &[String]) -> Vec<(i64, Option<String>, u64)> {
        let mut classes: BTreeMap<i64, (Option<String>, u64)> =
            (0..).zip(names).map(|(number, name)| (number, (Some(name.clone()), 0))).collect();
        for (&number, &samples) in &self.classes {
            classes.entry(number).or_default().1 = samples;
        }
        classes.into_iter().map(|(number, (name, samples))| (number, name, samples)).collect()
    }
}

/// Counts of values in equal bins from 0 to `end`.
#[derive(Debug, PartialEq)]
pub(crate) struct Histogram {
    pub(crate) end: f64,
    pub(crate) counts: Vec<u64>,
}

impl Histogram {
    /// Counts `values`; `end` must not be below the largest value.
    pub(crate) fn new(values: &[f64], end: f64, bins: usize) -> Self {
        let mut counts = vec![0; bins.max(1)];
        let last = counts.len() - 1;
        for value in values {
            let bin = (value / end.max(f64::MIN_POSITIVE) * counts.len() as f64) as usize;
            counts[bin.min(last)] += 1;
        }
        Histogram { end, counts }
    }
}

/// A measure of images: its name, the value of each image, and a function that formats a value.
pub(crate) type Measure = (&'static str, Vec<f64>, fn(f64) -> String);

/// The measures of images, in the order of the output.
pub(crate) fn measures(summary: &Summary) -> [Measure; 3] {
    let pixels = |value: f64| count(value.round() as u64);
    [
        ("width", summary.of_images(|image| image.width.into()), pixels),
        ("height", summary.of_images(|image| image.height.into()), pixels),
        ("image_bytes", summary.of_images(|image| image.bytes as f64), |value| {
            bytes(value.round() as u64)
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occur() {
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let spread = Spread::of(&values).unwrap();
        assert_eq!((spread.min, spread.p10, spread.p50), (0.0, 10.0, 50.0));
        assert_eq!((spread.p90, spread.max, spread.mean), (90.0, 100.0, 50.0));
        assert_eq!(Spread::of(&[3.0]).unwrap().p90, 3.0);
        assert_eq!(Spread::of(&[]), None);
    }

    #[test]
    fn each_value_is_in_one_bin() {
        let histogram = Histogram::new(&[0.0, 1.0, 4.9, 5.0, 10.0], 10.0, 2);
        assert_eq!(histogram.counts, [3, 2]);
        assert_eq!(Histogram::new(&[0.0], 0.0, 3).counts, [1, 0, 0]);
    }

    #[test]
    fn named_classes_without_samples_are_included() {
        let summary = Summary { classes: [(1, 5), (7, 2)].into(), ..Summary::default() };
        let names = ["a", "b"].map(str::to_owned);
        let classes: Vec<_> = summary
            .classes(&names)
            .into_iter()
            .map(|(number, name, n)| (number, name.is_some(), n))
            .collect();
        assert_eq!(classes, [(0, true, 0), (1, true, 5), (7, false, 2)]);
    }
}
