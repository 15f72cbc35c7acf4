//! The options and the results of a run.

use std::time::Duration;

use spdl_core::Statistics;
use spdl_io::datasets::DatasetKind;
use spdl_io::layers::CacheStatistics;

use super::arguments::BenchArguments;
use super::delivery::Delivery;
use super::resume::ResumePoint;
use super::snapshots::Snapshot;

/// A run with everything that it measured.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) arguments: BenchArguments,
    /// Images in the data set.
    pub(crate) images_found: u64,
    pub(crate) classes: usize,
    /// Whether the class of each image is guessed from its folder in the tar shard.
    pub(crate) classes_are_folders: bool,
    pub(crate) kind: DatasetKind,
    /// Counters of the cache; `None` without a cache.
    pub(crate) cache: Option<CacheStatistics>,
    /// Time to list the data set.
    pub(crate) listing: Duration,
    /// Where the run resumed; `None` for a new run.
    pub(crate) resume_point: Option<ResumePoint>,
    pub(crate) delivery: Delivery,
    pub(crate) cpu_time: Duration,
    pub(crate) peak_rss: Option<u64>,
    /// Bytes of a sample in a batch.
    pub(crate) row_bytes: u64,
    /// Number of delivered images from truncated files; `None` if a truncated file is an error.
    pub(crate) partial: Option<u64>,
    /// Seconds of audio in the samples that were decoded, without padding.
    pub(crate) audio_seconds: f64,
    pub(crate) statistics: Statistics,
    /// Snapshots for the charts; empty without `--report`.
    pub(crate) snapshots: Vec<Snapshot>,
}

impl Outcome {
    pub(crate) fn images_per_second(&self) -> f64 {
        let seconds = self.delivery.took.as_secs_f64();
        if seconds > 0.0 { self.delivery.images as f64 / seconds } else { 0.0 }
    }

    /// Frames of clips per second; `None` without `--frames`.
    pub(crate) fn frames_per_second(&self) -> Option<f64> {
        self.arguments.media.frames.map(|frames| self.images_per_second() * f64::from(frames))
    }

    /// Seconds of audio per second; `None` if no audio was decoded.
    pub(crate) fn audio_seconds_per_second(&self) -> Option<f64> {
        let seconds = self.delivery.took.as_secs_f64();
        (self.audio_seconds > 0.0 && seconds > 0.0).then(|| self.audio_seconds / seconds)
    }

    /// Whether the resumed run was already complete.
    pub(crate) fn was_complete(&self) -> bool {
        let Delivery { images, stopped_by, .. } = self.delivery;
        self.resume_point.is_some()
            && (images, stopped_by) == (0, None)
            && self.statistics.dropped_total == 0
    }

    /// CPU seconds of the process per 1,000 images; `None` without images.
    pub(crate) fn cpu_seconds_per_1000(&self) -> Option<f64> {
        let thousands = self.delivery.images as f64 / 1000.0;
        (thousands > 0.0).then(|| self.cpu_time.as_secs_f64() / thousands)
    }
}
