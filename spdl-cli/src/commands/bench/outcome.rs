//! A run and its results.

use std::time::Duration;

use spdl_core::Statistics;
use spdl_io::datasets::DatasetKind;
use spdl_io::layers::CacheStatistics;

use super::arguments::BenchArguments;
use super::delivery::Delivery;
use super::resume::ResumePoint;
use super::snapshots::Snapshot;

/// A run and what it gave.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) arguments: BenchArguments,
    /// Images in the data set.
    pub(crate) images_found: u64,
    pub(crate) classes: usize,
    /// Whether they are a guess: the folders in tar shards.
    pub(crate) classes_are_folders: bool,
    pub(crate) kind: DatasetKind,
    /// What the cache did; `None` without one.
    pub(crate) cache: Option<CacheStatistics>,
    /// How long it took to list them.
    pub(crate) listing: Duration,
    /// Where the run went on; `None` where it began.
    pub(crate) begun: Option<ResumePoint>,
    pub(crate) delivery: Delivery,
    pub(crate) cpu_time: Duration,
    pub(crate) peak_rss: Option<u64>,
    /// Delivered images that are not whole; `None` where that is an error.
    pub(crate) partial: Option<u64>,
    pub(crate) statistics: Statistics,
    /// Empty where nobody wants a report.
    pub(crate) snapshots: Vec<Snapshot>,
}

impl Outcome {
    pub(crate) fn images_per_second(&self) -> f64 {
        let seconds = self.delivery.took.as_secs_f64();
        if seconds > 0.0 { self.delivery.images as f64 / seconds } else { 0.0 }
    }

    /// Whether there was nothing left to do of a run that was to go on.
    pub(crate) fn was_complete(&self) -> bool {
        let Delivery { images, stopped_by, .. } = self.delivery;
        self.begun.is_some()
            && (images, stopped_by) == (0, None)
            && self.statistics.dropped_total == 0
    }

    /// CPU seconds of the whole process for 1,000 images; `None` where there are none.
    pub(crate) fn cpu_seconds_per_1000(&self) -> Option<f64> {
        let thousands = self.delivery.images as f64 / 1000.0;
        (thousands > 0.0).then(|| self.cpu_time.as_secs_f64() / thousands)
    }
}
