//! Saves states while a run goes on.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use spdl_core::{Batch, Pipeline, Result, StateFile, StateSaver};

use super::checksum::Checksum;
use crate::commands::checkpoint_files::EPOCHS;
use crate::ui::failure::Failure;

/// The note of a state that holds the checksum of all before it.
pub(super) const CHECKSUM: &str = "spdl bench checksum";

/// Saves states while a run goes on, and hears signals that ask it to stop.
pub(crate) struct CheckpointSaver {
    saver: StateSaver,
    epochs: u32,
    /// The signal that came; 0 where none has.
    signal: Arc<AtomicUsize>,
}

impl CheckpointSaver {
    /// Saves every so many steps the state of a run of so many epochs.
    pub(crate) fn new(path: &Path, every: u32, epochs: u32) -> Result<Self, Failure> {
        let signal = Arc::new(AtomicUsize::new(0));
        let second = Arc::new(AtomicBool::new(false));
        for asked in [SIGTERM, SIGINT] {
            // A second one ends the program at once.
            let listen = || {
                flag::register_conditional_default(asked, Arc::clone(&second))?;
                flag::register(asked, Arc::clone(&second))?;
                flag::register_usize(asked, Arc::clone(&signal), asked as usize)
            };
            listen()
                .map_err(|error| Failure::new("cannot wait for signals", path.display(), error))?;
        }
        let saver = StateSaver::new(StateFile::new(path)).every(every.into());
        Ok(CheckpointSaver { saver, epochs, signal })
    }

    /// The signal that asks to stop, if one came.
    pub(crate) fn asked_to_stop(&self) -> Option<i32> {
        let signal = self.signal.load(Ordering::Relaxed);
        i32::try_from(signal).ok().filter(|&signal| signal != 0)
    }

    /// Saves after a batch, where it is time to, or where `now` says so.
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

    /// Waits for the disk.
    pub(crate) fn finish(self) -> Result<()> {
        self.saver.finish().map(drop)
    }
}
