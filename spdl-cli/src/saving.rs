//! How far a run has come: kept in a file, and gone on from.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use spdl_core::{Batch, Error, ErrorKind, Pipeline, Result, Shard, State, StateFile, StateSaver};

use crate::delivery::Checksum;
use crate::failure::Failure;
use crate::format::printable;

/// The note of a state that holds the checksum of all before it.
const CHECKSUM: &str = "spdl bench checksum";

/// What saved states tell.
pub(crate) struct Resumed {
    pub(crate) state: State,
    pub(crate) checksum: Before,
}

/// The checksum of what was delivered before.
pub(crate) enum Before {
    Known(Checksum),
    /// It was not summed up.
    Unknown,
    /// It was delivered to several ranks, each with a checksum of its own.
    OfRanks,
}

/// Reads the states that the ranks of a run saved, for `shard` to go on from.
pub(crate) fn load(
    paths: &[PathBuf],
    shard: Shard,
    allowed: &[String],
) -> Result<Resumed, Failure> {
    let mut states = Vec::new();
    for path in paths {
        states.push(read("cannot resume", path)?);
    }
    let [state] = &mut states[..] else {
        return combine(states, &paths[0], allowed);
    };
    let (state, path) = (state.clone(), &paths[0]);
    let failed = |error: &Error| Failure::of("cannot resume", error, path);
    if let Some(own) = state.shard().filter(|own| *own != shard) {
        return Err(Failure::usage(format!(
            "{} is the state of {own}, and this is {shard}: give --resume the state of this rank, \
             or those of all ranks where their number has changed",
            path.display()
        )));
    }
    let checksum = match state.notes.get(CHECKSUM) {
        Some(text) => Before::Known(Checksum::parse(text).ok_or_else(|| {
            let message = format!("its note {CHECKSUM:?} is no checksum: {text:?}");
            failed(&Error::new(ErrorKind::Corrupt, message))
        })?),
        None if state.shard().is_none() => Before::OfRanks,
        None => Before::Unknown,
    };
    Ok(Resumed { state: allow(state, allowed), checksum })
}

fn allow(state: State, parts: &[String]) -> State {
    parts.iter().fold(state, |state, part| state.allow_change(part))
}

/// Of the states of all ranks of another division.
fn combine(states: Vec<State>, first: &Path, allowed: &[String]) -> Result<Resumed, Failure> {
    let mut state = State::combine(states)
        .map_err(|error| Failure::of("cannot put the states together", &error, first))?;
    state.notes.remove(CHECKSUM);
    Ok(Resumed { state: allow(state, allowed), checksum: Before::OfRanks })
}

/// Reads a state, and says so where it is the one before.
pub(crate) fn read(what: &str, path: &Path) -> Result<State, Failure> {
    let (state, damage) =
        StateFile::new(path).recover().map_err(|error| Failure::of(what, &error, path))?;
    if let Some(damage) = damage {
        let line = format!(
            "spdl: warning: {}: {}; the state before it, {}.previous, is used: it is of step {}",
            path.display(),
            damage.reason(),
            path.display(),
            state.steps()
        );
        crate::output::note(&printable(&line));
    }
    Ok(state)
}

/// Refuses a place where no state can be saved.
pub(crate) fn check(path: &Path) -> Result<(), Failure> {
    let writable = StateFile::new(path).check_writable();
    writable.map_err(|error| Failure::of("cannot save states", &error, path))
}

/// Saves states while a run goes on, and hears signals that ask it to stop.
pub(crate) struct Saving {
    saver: StateSaver,
    /// The signal that came; 0 where none has.
    signal: Arc<AtomicUsize>,
}

impl Saving {
    pub(crate) fn new(path: &Path, every: u32) -> Result<Self, Failure> {
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
        Ok(Saving { saver, signal })
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
