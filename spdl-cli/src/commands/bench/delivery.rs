//! The consumer: it takes every batch, counts it, and sums up its bytes.

use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use spdl_core::resume::SampleCounts;
use spdl_core::{Batch, Pipeline, Result, SampleId};

use super::checkpoints::CheckpointSaver;
use super::checksum::Checksum;

/// More epochs than this are too many for marks in a chart.
const EPOCHS_KEPT: usize = 64;
/// How often the consumer looks for a signal while it waits.
const LOOK_UP: Duration = Duration::from_millis(50);

/// What the consumer got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) images: u64,
    pub(crate) batches: u64,
    /// From the start to the first batch.
    pub(crate) first: Option<Duration>,
    /// From the start to the last batch, or to the end where there was none.
    pub(crate) took: Duration,
    /// From the start to the first batch of each epoch, of the first [`EPOCHS_KEPT`] epochs.
    pub(crate) epochs: Vec<Duration>,
    /// The images of each epoch, and when the last of them came.
    pub(crate) epoch_ends: Vec<(u64, Duration)>,
    /// Of this run and those that it goes on from; `None` where it is not wanted.
    pub(crate) checksum: Option<u128>,
    /// Images with a label that is not negative.
    pub(crate) labelled: u64,
    /// How often the pretended training waited; `None` where there is none.
    pub(crate) steps: Option<TrainingSteps>,
    /// What became of samples in the whole run: in this part of it and in those before.
    pub(crate) total: SampleCounts,
    /// The signal that ended the run early.
    pub(crate) stopped_by: Option<i32>,
}

/// How often a training waits for its data. Its first step is not counted: it waits in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrainingSteps {
    pub(crate) steps: u64,
    /// TrainingSteps whose batch was not ready when it was asked for,
    pub(crate) waited: u64,
    /// and how long all of them waited.
    pub(crate) waiting: Duration,
}

impl Delivery {
    /// Images per second of each epoch, from the last image of the one before, or the start, to its own
    /// last one.
    pub(crate) fn epoch_rates(&self) -> Vec<f64> {
        let mut before = Duration::ZERO;
        let rate = |&(images, end): &(u64, Duration)| {
            let took = end.saturating_sub(std::mem::replace(&mut before, end)).as_secs_f64();
            if took > 0.0 { images as f64 / took } else { 0.0 }
        };
        self.epoch_ends.iter().map(rate).collect()
    }
}

/// Takes all batches, and pretends to train with each as long as `step` says. `checksum` is that of what
/// was delivered before this run, where there is to be one; `after` hears of the last sample of each
/// batch.
///
/// # Errors
/// That of the pipeline, or what kept its state from being saved.
pub(crate) fn take_all(
    pipeline: &mut Pipeline<Batch>,
    start: Instant,
    mut checksum: Option<Checksum>,
    mut saving: Option<CheckpointSaver>,
    step: Option<Duration>,
    mut after: impl FnMut(SampleId),
) -> Result<Delivery> {
    let mut delivery =
        Delivery { steps: step.map(|_| TrainingSteps::default()), ..Delivery::default() };
    let mut epoch = None;
    loop {
        let stop = || match saving.as_ref().and_then(CheckpointSaver::asked_to_stop) {
            Some(signal) => Err(signal),
            None => Ok(()),
        };
        let asked = Instant::now();
        let ready = match stop() {
            // Only a training step asks whether it has to wait.
            Ok(()) if step.is_some() => pipeline.try_next().map(Ok),
            Ok(()) => Poll::Pending,
            Err(signal) => Poll::Ready(Err(signal)),
        };
        let waited = ready.is_pending();
        let next = match ready {
            Poll::Ready(next) => next,
            Poll::Pending => pipeline.next_checked(LOOK_UP, stop),
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
            steps.waiting += if waited { asked.elapsed() } else { Duration::ZERO };
        }
        delivery.first.get_or_insert(delivery.took);
        if epoch.replace(batch.epoch()) != Some(batch.epoch()) {
            if delivery.epochs.len() < EPOCHS_KEPT {
                delivery.epochs.push(delivery.took);
            }
            delivery.epoch_ends.push((0, delivery.took));
        }
        if let Some((images, end)) = delivery.epoch_ends.last_mut() {
            *images += batch.len() as u64;
            *end = delivery.took;
        }
        delivery.batches += 1;
        delivery.images += batch.len() as u64;
        let labels = batch.arrays().get(1).map_or(&[][..], |labels| labels.as_bytes());
        delivery.labelled += labelled(labels);
        if let Some(checksum) = &mut checksum {
            checksum.add(batch.len(), batch.arrays().iter().map(|array| array.as_bytes()));
        }
        if let Some(saving) = &mut saving {
            saving.after_batch(pipeline, checksum.as_ref(), false)?;
        }
        if let Some(&last) = batch.ids().last() {
            after(last);
        }
        drop(batch);
        if let Some(step) = step {
            pretend(step, || saving.as_ref().and_then(CheckpointSaver::asked_to_stop).is_some());
        }
    }
    if delivery.batches == 0 {
        delivery.took = start.elapsed();
    }
    if let Some(mut saving) = saving {
        saving.after_batch(pipeline, checksum.as_ref(), true)?;
        saving.finish()?;
    }
    delivery.total = pipeline.state()?.samples();
    delivery.checksum = checksum.map(Checksum::finish);
    Ok(delivery)
}

/// Does nothing for so long, or until it is to stop.
fn pretend(step: Duration, stop: impl Fn() -> bool) {
    let begun = Instant::now();
    while let Some(left) = step.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        if stop() {
            break;
        }
        thread::sleep(left.min(LOOK_UP));
    }
}

/// How many of these numbers of 64 bits are not negative.
fn labelled(labels: &[u8]) -> u64 {
    let is_label = |label: &&[u8; 8]| i64::from_ne_bytes(**label) >= 0;
    labels.as_chunks().0.iter().filter(is_label).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_an_epoch_is_that_since_the_one_before() {
        let seconds = Duration::from_secs;
        let epoch_ends = vec![(20, seconds(2)), (20, seconds(3)), (5, seconds(3))];
        let delivery = Delivery { epoch_ends, ..Delivery::default() };
        assert_eq!(delivery.epoch_rates(), [10.0, 20.0, 0.0]);
    }

    #[test]
    fn a_label_below_zero_is_none() {
        let labels: Vec<u8> = [-1_i64, 0, 7, -1].iter().flat_map(|it| it.to_ne_bytes()).collect();
        assert_eq!((labelled(&labels), labelled(&[])), (2, 0));
    }

    #[test]
    fn a_pretended_step_takes_its_time_unless_it_is_to_stop() {
        let begun = Instant::now();
        pretend(Duration::from_millis(60), || false);
        assert!(begun.elapsed() >= Duration::from_millis(60));
        let begun = Instant::now();
        pretend(Duration::from_secs(60), || true);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
