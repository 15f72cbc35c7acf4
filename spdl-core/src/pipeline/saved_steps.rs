//! Iterator over the steps of a training run, which passes the state after each step to a saver.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::Result;
use crate::pipeline::handle::Pipeline;
use crate::resume::state::State;
use crate::resume::state_file::StateSaver;

/// Interval at which a waiting consumer checks the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Iterator over the items of a pipeline. It passes the state after each item to a [`StateSaver`].
/// Created by [`StateSaver::steps`].
pub struct SavedSteps<'a, T> {
    saver: &'a mut StateSaver,
    pipeline: &'a mut Pipeline<T>,
    stop: &'a AtomicBool,
    notes: Option<NotesFn<'a>>,
    /// Whether the caller is using an item, whose state is not passed to the saver yet.
    in_step: bool,
    over: bool,
}

type NotesFn<'a> = Box<dyn FnMut(&mut State) + 'a>;

/// Signals that the stop flag is set.
struct StopRequested;

impl StateSaver {
    /// Iterates over the items of `pipeline`, and passes the state after each item to this saver.
    /// Each item is one step of the training run.
    ///
    /// The iterator ends when the pipeline ends, or after the current step if `stop` is true.
    /// Before it returns `None`, it passes the last state to the saver.
    /// [`finish`](StateSaver::finish) waits until this state is written.
    ///
    /// A step ends when the next item is requested. If the loop exits during a step, a resumed run
    /// delivers the item of this step again.
    ///
    /// This function installs no signal handler. Cluster schedulers send SIGTERM before they kill a
    /// job. To save the state in this case, set `stop` in a signal handler, for example with the
    /// crate `signal-hook`, as below and in `examples/terminate.rs`. While waiting for an item, the
    /// iterator checks `stop` 20 times a second.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("run.state");
    /// use spdl_core::{DatasetSource, PipelineBuilder, StateFile, StateSaver};
    /// use std::sync::{Arc, atomic::AtomicBool};
    /// let stop = Arc::new(AtomicBool::new(false));
    /// signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop))?;
    ///
    /// let numbers = DatasetSource::new((0..100).collect::<Vec<i32>>());
    /// let mut pipeline = PipelineBuilder::new(numbers).batch("batch", 4, false).build()?;
    /// let mut saver = StateSaver::new(StateFile::new(path)).every(10);
    /// for batch in saver.steps(&mut pipeline, &stop) {
    ///     let train_on = batch?;
    /// #   if train_on[0] == 12 { signal_hook::low_level::raise(signal_hook::consts::SIGTERM)?; }
    /// }
    /// let file = saver.finish()?;
    /// # assert_eq!(file.load()?.steps(), 4);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// The iterator returns an error if the pipeline returns an error, if [`Pipeline::state`]
    /// returns an error, or if an earlier state could not be saved: see
    /// [`after_step`](StateSaver::after_step).
    pub fn steps<'a, T: Send + 'static>(
        &'a mut self,
        pipeline: &'a mut Pipeline<T>,
        stop: &'a AtomicBool,
    ) -> SavedSteps<'a, T> {
        SavedSteps { saver: self, pipeline, stop, notes: None, in_step: false, over: false }
    }
}

impl<'a, T> SavedSteps<'a, T> {
    /// Calls `note` for each state before it is saved, for example to set its
    /// [`notes`](State::notes).
    #[must_use]
    pub fn noting(mut self, note: impl FnMut(&mut State) + 'a) -> Self {
        self.notes = Some(Box::new(note));
        self
    }
}

impl<T: Send + 'static> SavedSteps<'_, T> {
    fn state(&mut self) -> Result<State> {
        let mut state = self.pipeline.state()?;
        if let Some(note) = &mut self.notes {
            note(&mut state);
        }
        Ok(state)
    }

    fn next_step(&mut self) -> Result<Option<T>> {
        if std::mem::take(&mut self.in_step) {
            let state = self.state();
            self.saver.after_step(|| state)?;
        }
        let stop = self.stop;
        let check = || if stop.load(Ordering::Relaxed) { Err(StopRequested) } else { Ok(()) };
        // The flag is also checked if items are always ready.
        let next = check().and_then(|()| self.pipeline.next_checked(POLL_INTERVAL, check));
        let Ok(next) = next else {
            self.over = true;
            return Ok(None);
        };
        let Some(item) = next.transpose()? else {
            self.over = true;
            // The state after the last epoch.
            let state = self.state()?;
            self.saver.save(state)?;
            return Ok(None);
        };
        self.in_step = true;
        Ok(Some(item))
    }
}

impl<T: Send + 'static> Iterator for SavedSteps<'_, T> {
    type Item = Result<T>;

    fn next(&mut self) -> Option<Result<T>> {
        if self.over {
            return None;
        }
        self.next_step().transpose()
    }
}

impl<T> fmt::Debug for SavedSteps<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedSteps")
            .field("saver", &self.saver)
            .field("pipeline", &self.pipeline)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::error::ErrorKind;
    use crate::pipeline::builder::PipelineBuilder;
    use crate::resume::state_file::StateFile;
    use crate::source::dataset::DatasetSource;

    fn numbers() -> PipelineBuilder<u32> {
        let numbers = DatasetSource::new((0..20).collect::<Vec<u32>>()).shuffled(3);
        PipelineBuilder::new(numbers).deterministic().epochs(0..2)
    }

    fn all(builder: PipelineBuilder<u32>) -> Vec<u32> {
        builder.build().unwrap().map(|n| n.unwrap()).collect()
    }

    #[test]
    fn a_stopped_run_is_saved_after_the_current_step() {
        let folder = tempfile::tempdir().unwrap();
        let whole = all(numbers());
        for last in [1, 5, 20, 21, 39, 40] {
            let stop = AtomicBool::new(false);
            let mut pipeline = numbers().build().unwrap();
            // The saver saves every 7 steps, so most runs stop between two periodic saves.
            let file = StateFile::new(folder.path().join(format!("{last}.state")));
            let mut saver = StateSaver::new(file).every(7);
            let mut seen = Vec::new();
            for number in saver.steps(&mut pipeline, &stop).noting(|state| {
                let steps = state.steps().to_string();
                state.notes.insert("steps".into(), steps);
            }) {
                seen.push(number.unwrap());
                stop.store(seen.len() == last, Ordering::Relaxed);
            }
            assert_eq!(seen, whole[..last]);
            let state = saver.finish().unwrap().load().unwrap();
            assert_eq!(
                (state.steps(), state.notes["steps"].as_str()),
                (last as u64, &*last.to_string())
            );
            assert_eq!(all(numbers().resume(state)), whole[last..], "after {last}");
        }
    }

    #[test]
    fn an_unfinished_step_is_delivered_again() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let mut pipeline = numbers().build().unwrap();
        let mut saver = StateSaver::new(StateFile::new(folder.path().join("run.state")));
        let taken = saver.steps(&mut pipeline, &stop).take(3).count();
        let state = saver.finish().unwrap().load().unwrap();
        assert_eq!((taken, state.steps()), (3, 2));
    }

    #[test]
    fn the_state_after_the_last_epoch_is_saved() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let mut pipeline = numbers().build().unwrap();
        let mut saver = StateSaver::new(StateFile::new(folder.path().join("run.state"))).every(100);
        let mut steps = saver.steps(&mut pipeline, &stop);
        assert_eq!((steps.by_ref().count(), steps.next().is_none()), (40, true));
        drop(steps);
        let state = saver.finish().unwrap().load().unwrap();
        assert_eq!((state.epoch(), state.steps()), (2, 40));
    }

    #[test]
    fn a_consumer_that_waits_for_an_item_stops() {
        let folder = tempfile::tempdir().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        // No item follows the second one.
        let items = futures_util::stream::iter([Ok(1), Ok(2)]);
        let items = futures_util::StreamExt::chain(items, futures_util::stream::pending());
        let mut pipeline = PipelineBuilder::from_stream(items).deterministic().build().unwrap();
        let mut saver = StateSaver::new(StateFile::new(folder.path().join("run.state")));
        let request = Arc::clone(&stop);
        let requester = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(120));
            request.store(true, Ordering::Relaxed);
        });
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let steps = saver.steps(&mut pipeline, &stop);
            let seen: Vec<i32> = steps.map(|n| n.unwrap()).collect();
            sender.send((seen, saver.finish().unwrap().load().unwrap())).unwrap();
        });
        let (seen, state) = receiver.recv_timeout(Duration::from_secs(20)).unwrap();
        requester.join().unwrap();
        assert_eq!((seen, state.steps()), (vec![1, 2], 2));
    }

    #[test]
    fn a_failed_save_is_an_error_and_the_run_can_continue() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let mut pipeline = numbers().build().unwrap();
        let missing = folder.path().join("none").join("run.state");
        let mut saver = StateSaver::new(StateFile::new(missing));
        let mut errors = 0;
        let mut seen = Vec::new();
        for number in saver.steps(&mut pipeline, &stop) {
            match number {
                Ok(number) => seen.push(number),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound);
                    errors += 1;
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(errors > 0);
        assert_eq!(seen, all(numbers()), "an error of the saver drops no item");
    }
}
