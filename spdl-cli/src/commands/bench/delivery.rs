//! The consumer: takes every batch, counts it, and updates the checksum.

use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use spdl_core::resume::SampleCounts;
use spdl_core::{Batch, Field, Pipeline, Result, SampleId};

use super::checkpoints::CheckpointSaver;
use super::checksum::Checksum;

/// Maximum number of epochs with a recorded start.
const EPOCHS_KEPT: usize = 64;
/// The interval at which a consumer that waits for a batch checks for signals.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What the consumer received and measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) images: u64,
    pub(crate) batches: u64,
    /// The time from the start to the first batch.
    pub(crate) first: Option<Duration>,
    /// The time from the start to the last batch, or to the end of the run if no batch arrived.
    pub(crate) took: Duration,
    /// The time from the start to the first batch of each epoch, for the first [`EPOCHS_KEPT`]
    /// epochs.
    pub(crate) epochs: Vec<Duration>,
    /// For each epoch: the number of images, and the time at which the last image arrived.
    pub(crate) epoch_ends: Vec<(u64, Duration)>,
    /// The checksum over this run and the runs that it resumes; `None` with `--no-checksum`.
    pub(crate) checksum: Option<u128>,
    /// Images with a label of 0 or more; `None` if the batches have no labels.
    pub(crate) labelled: Option<u64>,
    /// The simulated training steps; `None` without `--step-ms`.
    pub(crate) steps: Option<TrainingSteps>,
    /// Outcomes of samples in this run and the runs that it resumes.
    pub(crate) total: SampleCounts,
    /// The signal that ended the run early.
    pub(crate) stopped_by: Option<i32>,
}

/// Counters of the simulated training steps. The first step always waits, so it is not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrainingSteps {
    pub(crate) steps: u64,
    /// Number of steps whose batch was not ready when the step requested it.
    pub(crate) waited: u64,
    /// The total waiting time of these steps.
    pub(crate) waiting: Duration,
}

impl Delivery {
    /// Images per second of each epoch. An epoch begins with the run, or with the last image of the
    /// previous epoch.
    pub(crate) fn epoch_rates(&self) -> Vec<f64> {
        let mut before = Duration::ZERO;
        let rate = |&(images, end): &(u64, Duration)| {
            let took = end.saturating_sub(std::mem::replace(&mut before, end)).as_secs_f64();
            if took > 0.0 { images as f64 / took } else { 0.0 }
        };
        self.epoch_ends.iter().map(rate).collect()
    }
}

/// The fields of the batches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchFields<'a> {
    pub(crate) fields: &'a [Field],
    /// The name of the labels.
    pub(crate) label: Option<&'a str>,
}

/// Takes all batches, and simulates a training step of length `step` after each.
///
/// `checksum` holds the checksum of earlier runs, if a checksum is computed. `after` is called
/// after each batch, with the last sample of the batch.
///
/// # Errors
/// Errors of the pipeline and of saving checkpoints.
pub(crate) fn take_all(
    pipeline: &mut Pipeline<Batch>,
    start: Instant,
    fields: BatchFields<'_>,
    mut checksum: Option<Checksum>,
    mut saver: Option<CheckpointSaver>,
    step: Option<Duration>,
    mut after: impl FnMut(SampleId),
) -> Result<Delivery> {
    let mut delivery = Delivery {
        steps: step.map(|_| TrainingSteps::default()),
        labelled: fields.label.map(|_| 0),
        ..Delivery::default()
    };
    let mut epoch = None;
    loop {
        let stop = || match saver.as_ref().and_then(CheckpointSaver::stop_signal) {
            Some(signal) => Err(signal),
            None => Ok(()),
        };
        let requested = Instant::now();
        let ready = match stop() {
            // Waiting time is measured only if training steps are simulated.
            Ok(()) if step.is_some() => pipeline.try_next().map(Ok),
            Ok(()) => Poll::Pending,
            Err(signal) => Poll::Ready(Err(signal)),
        };
        let waited = ready.is_pending();
        let next = match ready {
            Poll::Ready(next) => next,
            Poll::Pending => pipeline.next_checked(POLL_INTERVAL, stop),
        };
        let batch = match next {
            Ok(Some(batch)) => batch?,
            Ok(None) => break,
            Err(signal) => {
                delivery.stopped_by = Some(signal);
                break;
            }
        };
        delivery.took = start.elapsed();
        if let Some(steps) = delivery.steps.as_mut().filter(|_| delivery.first.is_some()) {
            steps.steps += 1;
            steps.waited += u64::from(waited);
            steps.waiting += if waited { requested.elapsed() } else { Duration::ZERO };
        }
        delivery.first.get_or_insert(delivery.took);
        if epoch.replace(batch.epoch()) != Some(batch.epoch()) {
            if delivery.epochs.len() < EPOCHS_KEPT {
                delivery.epochs.push(delivery.took);
            }
            delivery.epoch_ends.push((0, delivery.took));
        }
        let samples = batch.ids().iter().enumerate().filter(|(at, _)| is_start(&batch, *at));
        let samples = samples.count() as u64;
        if let Some((images, end)) = delivery.epoch_ends.last_mut() {
            *images += samples;
            *end = delivery.took;
        }
        delivery.batches += 1;
        delivery.images += samples;
        if let (Some(count), Some(label)) = (&mut delivery.labelled, fields.label) {
            let labels = batch.array(label).map_or(&[][..], |labels| labels.as_bytes());
            *count += labelled(labels, |at| is_start(&batch, at));
        }
        if let Some(checksum) = &mut checksum {
            checksum.add(&batch, fields.fields);
        }
        if let Some(saver) = &mut saver {
            saver.after_batch(pipeline, checksum.as_ref(), false)?;
        }
        if let Some(&last) = batch.ids().last() {
            after(last);
        }
        drop(batch);
        if let Some(step) = step {
            simulate_step(step, || saver.as_ref().and_then(CheckpointSaver::stop_signal).is_some());
        }
    }
    if delivery.batches == 0 {
        delivery.took = start.elapsed();
    }
    if let Some(mut saver) = saver {
        saver.after_batch(pipeline, checksum.as_ref(), true)?;
        saver.finish()?;
    }
    delivery.total = pipeline.state()?.samples();
    delivery.checksum = checksum.map(Checksum::finish);
    Ok(delivery)
}

/// Sleeps for `step`, or until `stop` returns true.
pub(super) fn simulate_step(step: Duration, stop: impl Fn() -> bool) {
    let begun = Instant::now();
    while let Some(left) = step.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        if stop() {
            break;
        }
        thread::sleep(left.min(POLL_INTERVAL));
    }
}

/// Whether a row of a batch is a sample or its first part, which is counted. Grouping may divide samples.
pub(super) fn is_start(batch: &Batch, row: usize) -> bool {
    batch.starts().get(row).is_none_or(|&start| start == 0)
}

/// Counts the 64-bit labels that are not negative, of the rows that `counts` selects.
fn labelled(labels: &[u8], counts: impl Fn(usize) -> bool) -> u64 {
    let labels = labels.as_chunks().0.iter().enumerate();
    labels.filter(|(at, label)| i64::from_ne_bytes(**label) >= 0 && counts(*at)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epoch_rates_use_the_time_since_the_previous_epoch() {
        let seconds = Duration::from_secs;
        let epoch_ends = vec![(20, seconds(2)), (20, seconds(3)), (5, seconds(3))];
        let delivery = Delivery { epoch_ends, ..Delivery::default() };
        assert_eq!(delivery.epoch_rates(), [10.0, 20.0, 0.0]);
    }

    #[test]
    fn negative_labels_are_not_counted() {
        let labels: Vec<u8> = [-1_i64, 0, 7, -1].iter().flat_map(|it| it.to_ne_bytes()).collect();
        assert_eq!((labelled(&labels, |_| true), labelled(&[], |_| true)), (2, 0));
        assert_eq!(labelled(&labels, |at| at != 2), 1);
    }

    #[test]
    fn a_simulated_step_lasts_its_time_unless_stopped() {
        let begun = Instant::now();
        simulate_step(Duration::from_millis(60), || false);
        assert!(begun.elapsed() >= Duration::from_millis(60));
        let begun = Instant::now();
        simulate_step(Duration::from_secs(60), || true);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
