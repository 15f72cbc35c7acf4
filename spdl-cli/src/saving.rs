//! How far a run has come: kept in a file, and gone on from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use spdl_core::{
    Batch, Error, ErrorKind, Pipeline, Result, SampleCounts, Shard, State, StateFile, StateLock,
    StateSaver,
};

use crate::arguments::BenchArguments;
use crate::changes;
use crate::delivery::Checksum;
use crate::failure::Failure;
use crate::format::{count, counted, printable};

/// The note of a state that holds the checksum of all before it,
const CHECKSUM: &str = "spdl bench checksum";
/// and the one that says how many epochs the run has.
const EPOCHS: &str = "spdl bench epochs";

/// What saved states tell.
pub(crate) struct Resumed {
    pub(crate) state: State,
    pub(crate) checksum: Before,
    /// The first file.
    pub(crate) path: PathBuf,
}

/// The checksum of what was delivered before.
pub(crate) enum Before {
    Known(Checksum),
    /// It was not summed up.
    Unknown,
    /// It was delivered to several ranks, each with a checksum of its own.
    OfRanks,
}

/// Where a run went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) epoch: u64,
    /// Batches that were delivered of this epoch,
    pub(crate) step: u64,
    /// and of all.
    pub(crate) steps: u64,
    pub(crate) samples: SampleCounts,
    /// The images of the whole run, where those before were of all ranks, as these are.
    images: Option<u64>,
}

impl Begun {
    pub(crate) fn new(state: &State, arguments: &BenchArguments, images_found: u64) -> Self {
        let whole = arguments.world() == 1;
        Begun {
            epoch: state.epoch(),
            step: state.steps_in_epoch(),
            steps: state.steps(),
            samples: state.samples(),
            images: whole.then(|| images_found * u64::from(arguments.epochs)),
        }
    }

    /// Whether no epoch is left.
    pub(crate) fn is_at_end(&self, arguments: &BenchArguments) -> bool {
        self.epoch >= u64::from(arguments.epochs)
    }
}

impl fmt::Display for Begun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SampleCounts { delivered, dropped, filtered, left_out, .. } = self.samples;
        let done = count(delivered + dropped + filtered + left_out);
        write!(f, "goes on in epoch {} at step {}; {done} ", self.epoch, count(self.step))?;
        match self.images {
            Some(images) => write!(f, "of {} were done before", counted(images, "image", "images")),
            None => f.write_str("images were done before"),
        }
    }
}

/// Makes sure that states can be saved, and that nobody else saves to the same file meanwhile.
/// `None` where none are to be saved.
pub(crate) fn prepare(arguments: &BenchArguments) -> Result<Option<StateLock>, Failure> {
    let Some(path) = &arguments.save_state else { return Ok(None) };
    let file = StateFile::new(path);
    let failed = |error: Error| Failure::of("cannot save states", &error, path);
    file.check_writable().map_err(failed)?;
    let lock = file.lock().map_err(failed)?;
    if arguments.overwrite_state || arguments.auto_resume || !file.exists() {
        return Ok(Some(lock));
    }
    if arguments.resume.iter().any(|resumed| is_same(resumed, path)) {
        if arguments.resume.len() > 1 && arguments.world() > 1 {
            return Err(Failure::usage(format!(
                "--save-state {} would replace a state that the other ranks go on from too; save to \
                 another file",
                path.display()
            )));
        }
        return Ok(Some(lock));
    }
    let held = match file.load() {
        Ok(state) if is_complete(&state) => return Ok(Some(lock)),
        Ok(state) => format!(
            "it holds the state of a run that is not complete: epoch {}, step {}",
            state.epoch(),
            count(state.steps_in_epoch())
        ),
        Err(error) => format!("it holds a state that cannot be read: {}", error.reason()),
    };
    let ways = "--auto-resume goes on from it, --overwrite-state begins anew";
    Err(Failure::new("cannot save states", path.display(), format!("{held}; {ways}")))
}

fn is_same(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().is_ok_and(|one| Some(one) == other.canonicalize().ok())
}

/// Whether the run has ended all its epochs, where it was one of this program: others do not say how many
/// they have.
pub(crate) fn is_complete(state: &State) -> bool {
    let epochs = state.notes.get(EPOCHS).and_then(|epochs| epochs.parse::<u64>().ok());
    epochs.is_some_and(|epochs| state.epoch() >= epochs)
}

/// Reads the states that a run is to go on from; `None` where it begins.
pub(crate) fn resume(arguments: &BenchArguments, shard: Shard) -> Result<Option<Resumed>, Failure> {
    let auto = arguments.save_state.as_ref().filter(|_| arguments.auto_resume);
    let paths = match auto {
        Some(path) if StateFile::new(path).exists() => std::slice::from_ref(path),
        Some(_) if arguments.resume.is_empty() => return Ok(None),
        None if arguments.resume.is_empty() && !arguments.allow_change.is_empty() => {
            let reason = "--allow-change is for runs that go on: with --resume or --auto-resume";
            return Err(Failure::usage(reason));
        }
        _ => &arguments.resume[..],
    };
    let [first, ..] = paths else { return Ok(None) };
    let mut states = Vec::new();
    for path in paths {
        states.push(read("cannot resume", path)?);
    }
    let resumed = match &states[..] {
        [state] => of_one(state.clone(), first, shard)?,
        _ => combine(states, paths)?,
    };
    let Resumed { mut state, .. } = resumed;
    let epochs = u64::from(arguments.epochs);
    let begun = state.steps_in_epoch() > 0 || state.samples_in_epoch() != SampleCounts::default();
    if state.epoch() > epochs || state.epoch() == epochs && begun {
        return Err(Failure::usage(format!(
            "{} is in epoch {} (they count from 0), step {}: beyond --epochs {epochs}, which is of \
             the whole run",
            first.display(),
            state.epoch(),
            count(state.steps_in_epoch())
        )));
    }
    for part in arguments.allow_change.iter().flat_map(|part| changes::parts_of(part)) {
        state = state.allow_change(part);
    }
    Ok(Some(Resumed { state, ..resumed }))
}

/// Of the state of this rank, or of one that was put together.
fn of_one(state: State, path: &Path, shard: Shard) -> Result<Resumed, Failure> {
    if let Some(own) = state.shard().filter(|own| *own != shard) {
        let told = |shard: Shard, other: Shard| {
            let same = (shard.rank(), shard.world()) == (other.rank(), other.world());
            if same { format!("{shard} with {}", remainder_of(shard)) } else { shard.to_string() }
        };
        return Err(Failure::usage(format!(
            "{} is the state of {}, and this is {}: give --resume the state of this rank, or those \
             of all ranks where their division has changed",
            path.display(),
            told(own, shard),
            told(shard, own)
        )));
    }
    let checksum = match state.notes.get(CHECKSUM) {
        Some(text) => Before::Known(Checksum::parse(text).ok_or_else(|| {
            let message = format!("its note {CHECKSUM:?} is no checksum: {text:?}");
            Failure::of("cannot resume", &Error::new(ErrorKind::Corrupt, message), path)
        })?),
        None if state.shard().is_none() => Before::OfRanks,
        None => Before::Unknown,
    };
    Ok(Resumed { state, checksum, path: path.to_owned() })
}

/// Of the states of all ranks of another division.
fn combine(states: Vec<State>, paths: &[PathBuf]) -> Result<Resumed, Failure> {
    let files: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    let mut state = State::combine(states).map_err(|error| {
        Failure::of("cannot put the states together", &error, Path::new(&files.join(", ")))
    })?;
    state.notes.remove(CHECKSUM);
    Ok(Resumed { state, checksum: Before::OfRanks, path: paths[0].clone() })
}

/// The option that says what becomes of the last images.
pub(crate) fn remainder_of(shard: Shard) -> String {
    let kinds = [
        (spdl_core::Remainder::Drop, "drop"),
        (spdl_core::Remainder::Pad, "pad"),
        (spdl_core::Remainder::Uneven, "uneven"),
    ];
    let named = kinds.into_iter().find(|(kind, _)| shard == shard.remainder(*kind));
    format!("--remainder {}", named.map_or("of another kind", |(_, name)| name))
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

/// Saves states while a run goes on, and hears signals that ask it to stop.
pub(crate) struct Saving {
    saver: StateSaver,
    epochs: u32,
    /// The signal that came; 0 where none has.
    signal: Arc<AtomicUsize>,
}

impl Saving {
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
        Ok(Saving { saver, epochs, signal })
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
