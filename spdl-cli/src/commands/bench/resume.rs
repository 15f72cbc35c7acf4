//! The state that a run resumes from.

use std::fmt;
use std::path::{Path, PathBuf};

use spdl_core::resume::{SampleCounts, StateLock};
use spdl_core::{Error, ErrorKind, Shard, State, StateFile};

use super::arguments::BenchArguments;
use super::checkpoints::CHECKSUM;
use super::checksum::Checksum;
use crate::commands::checkpoint_files::{is_complete, read, remainder_of};
use crate::ui::changed_options;
use crate::ui::failure::Failure;
use crate::ui::format::{count, counted};

/// What saved states tell.
pub(crate) struct Resumed {
    pub(crate) state: State,
    pub(crate) checksum: EarlierChecksum,
    /// The first file.
    pub(crate) path: PathBuf,
}

/// The checksum of what was delivered before.
pub(crate) enum EarlierChecksum {
    Known(Checksum),
    /// It was not summed up.
    Unknown,
    /// It was delivered to several ranks, each with a checksum of its own.
    OfRanks,
}

/// Where a run went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResumePoint {
    pub(crate) epoch: u64,
    /// Batches that were delivered of this epoch,
    pub(crate) step: u64,
    /// and of all.
    pub(crate) steps: u64,
    pub(crate) samples: SampleCounts,
    /// The images of the whole run, where those before were of all ranks, as these are.
    images: Option<u64>,
}

impl ResumePoint {
    pub(crate) fn new(state: &State, arguments: &BenchArguments, images_found: u64) -> Self {
        let whole = arguments.world() == 1;
        ResumePoint {
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

impl fmt::Display for ResumePoint {
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
    for part in arguments.allow_change.iter().flat_map(|part| changed_options::parts_of(part)) {
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
        Some(text) => EarlierChecksum::Known(Checksum::parse(text).ok_or_else(|| {
            let message = format!("its note {CHECKSUM:?} is no checksum: {text:?}");
            Failure::of("cannot resume", &Error::new(ErrorKind::Corrupt, message), path)
        })?),
        None if state.shard().is_none() => EarlierChecksum::OfRanks,
        None => EarlierChecksum::Unknown,
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
    Ok(Resumed { state, checksum: EarlierChecksum::OfRanks, path: paths[0].clone() })
}
