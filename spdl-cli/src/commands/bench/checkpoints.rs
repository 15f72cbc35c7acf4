//! Saves checkpoints during a run, and handles SIGTERM and SIGINT.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use spdl_core::{Batch, Pipeline, Result, StateFile, StateSaver};

use super::checksum::Checksum;
use crate::commands::checkpoint_files::EPOCHS;
use crate::ui::failure::Failure;

/// The key of the note (extra entry of a checkpoint) that holds the checksum of all delivered
/// batches.
pub(super) const CHECKSUM: &str = "spdl bench checksum";

/// Saves checkpoints during a run, and records signals that stop it.
pub(crate) struct CheckpointSaver {
    saver: StateSaver,
    epochs: u32,
    /// The number of the received signal; 0 if none was received.
    signal: Arc<AtomicUsize>,
}

impl CheckpointSaver {
    /// Saves to `path`, in a run of `epochs` epochs. There are at least `every` batches between two
    /// checkpoints, unless [`after_batch`](Self::after_batch) is called with `now`.
    pub(crate) fn new(path: &Path, every: u32, epochs: u32) -> Result<Self, Failure> {
        let signal = Arc::new(AtomicUsize::new(0));
        let second = Arc::new(AtomicBool::new(false));
        for number in [SIGTERM, SIGINT] {
            // A second signal ends the program immediately.
            let register = || {
                flag::register_conditional_default(number, Arc::clone(&second))?;
                flag::register(number, Arc::clone(&second))?;
                flag::register_usize(number, Arc::clone(&signal), number as usize)
            };
            register().map_err(|error| {
                Failure::new("cannot register signal handlers", path.display(), error)
            })?;
        }
        let saver = StateSaver::new(StateFile::new(path)).every(every.into());
        Ok(CheckpointSaver { saver, epochs, signal })
    }

    /// The signal that stops the run, if one was received.
    pub(crate) fn stop_signal(&self) -> Option<i32> {
        let signal = self.signal.load(Ordering::Relaxed);
        i32::try_from(signal).ok().filter(|&signal| signal != 0)
    }

    /// Saves the state after a batch, if a checkpoint is due or `now` is set.
    pub(crate) fn after_batch(
        &mut self,
        pipeline: &Pipeline<Batch>,
        checksum: Option<&Checksum>,
        now: bool,
    ) -> Result<()> {
        let state = || {
            let mut state = pipeline.state()?;
            state.notes.insert(EPOCHS.into(), self.epochs.to_string());
            if let Some(checksum) = checksum {
                state.notes.insert(CHECKSUM.into(), checksum.to_text());
            }
            Ok(state)
        };
        if now { self.saver.save(state()?) } else { self.saver.after_step(state) }
    }

    /// Waits until the last checkpoint is written.
    pub(crate) fn finish(self) -> Result<()> {
        self.saver.finish().map(drop)
    }
}
