//! Reads the checkpoints that a run resumes from.

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

const CANNOT_SAVE: &str = "cannot save checkpoints";

/// The checkpoint that a run resumes from.
pub(crate) struct Resumed {
    pub(crate) state: State,
    pub(crate) checksum: EarlierChecksum,
    /// The path of the first checkpoint file.
    pub(crate) path: PathBuf,
}

/// The checksum of the batches that earlier runs delivered.
pub(crate) enum EarlierChecksum {
    Known(Checksum),
    /// The checksum is unknown, because the earlier run had `--no-checksum`.
    Unknown,
    /// There is no common checksum, because several ranks delivered the batches, and each rank has
    /// a separate checksum.
    OfRanks,
}

/// The position at which a run resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResumePoint {
    pub(crate) epoch: u64,
    /// Number of batches of this epoch that are already delivered.
    pub(crate) step: u64,
    /// Number of batches of all epochs that are already delivered.
    pub(crate) steps: u64,
    pub(crate) samples: SampleCounts,
    /// Number of images of the whole run; `None` with more than one rank.
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

    /// Whether the checkpoint is at the end of the last epoch.
    pub(crate) fn is_at_end(&self, arguments: &BenchArguments) -> bool {
        self.epoch >= u64::from(arguments.epochs)
    }
}

impl fmt::Display for ResumePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SampleCounts { delivered, dropped, filtered, left_out, .. } = self.samples;
        let done = count(delivered + dropped + filtered + left_out);
        write!(f, "resuming in epoch {} at step {}: {done} ", self.epoch, count(self.step))?;
        match self.images {
            Some(images) => write!(f, "of {} already done", counted(images, "image", "images")),
            None => f.write_str("images already done"),
        }
    }
}

/// Locks the checkpoint file, and checks that the run may write and replace it. Returns `None`
/// without `--save-state`.
pub(crate) fn prepare(arguments: &BenchArguments) -> Result<Option<StateLock>, Failure> {
    let Some(path) = &arguments.save_state else { return Ok(None) };
    let file = StateFile::new(path);
    let failed = |error: Error| Failure::of(CANNOT_SAVE, &error, path);
    file.check_writable().map_err(failed)?;
    let lock = file.lock().map_err(failed)?;
    if arguments.overwrite_state || arguments.auto_resume || !file.exists() {
        return Ok(Some(lock));
    }
    if arguments.resume.iter().any(|resumed| is_same(resumed, path)) {
        if arguments.resume.len() > 1 && arguments.world() > 1 {
            return Err(Failure::usage(format!(
                "--save-state \"{}\" would replace a checkpoint that the other ranks resume from; use \
                 another file",
                path.display()
            )));
        }
        return Ok(Some(lock));
    }
    let held = match file.load() {
        Ok(state) if is_complete(&state) => return Ok(Some(lock)),
        Ok(state) => format!(
            "the file holds the checkpoint of an incomplete run, epoch {}, step {}",
            state.epoch(),
            count(state.steps_in_epoch())
        ),
        Err(error) => format!("the file holds an unreadable checkpoint: {}", error.reason()),
    };
    let advice = "add --auto-resume to resume, or --overwrite-state to start a new run";
    Err(Failure::new(CANNOT_SAVE, path.display(), format!("{held}; {advice}")))
}

fn is_same(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().is_ok_and(|one| Some(one) == other.canonicalize().ok())
}

/// Reads and combines the checkpoints that the options name; returns `None` for a new run.
pub(crate) fn resume(arguments: &BenchArguments, shard: Shard) -> Result<Option<Resumed>, Failure> {
    let auto = arguments.save_state.as_ref().filter(|_| arguments.auto_resume);
    let paths = match auto {
        Some(path) if StateFile::new(path).exists() => std::slice::from_ref(path),
        Some(_) if arguments.resume.is_empty() => return Ok(None),
        None if arguments.resume.is_empty() && !arguments.allow_change.is_empty() => {
            let reason = "--allow-change requires --resume or --auto-resume";
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
            "\"{}\" is in epoch {} (counted from 0), step {}, which is beyond --epochs {epochs}; \
             --epochs counts all epochs of the run",
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

/// Resumes from one checkpoint: the checkpoint of this rank, or the combined checkpoint of all
/// ranks.
fn of_one(state: State, path: &Path, shard: Shard) -> Result<Resumed, Failure> {
    if let Some(own) = state.shard().filter(|own| *own != shard) {
        let describe = |shard: Shard, other: Shard| {
            let same = (shard.rank(), shard.world()) == (other.rank(), other.world());
            if same { format!("{shard} with {}", remainder_of(shard)) } else { shard.to_string() }
        };
        return Err(Failure::usage(format!(
            "\"{}\" is the checkpoint of {}, but this is {}; give --resume the checkpoint of this rank, \
             or of all ranks if --world-size or --remainder has changed",
            path.display(),
            describe(own, shard),
            describe(shard, own)
        )));
    }
    let checksum = match state.notes.get(CHECKSUM) {
        Some(text) => EarlierChecksum::Known(Checksum::parse(text).ok_or_else(|| {
            let message = format!("the entry {CHECKSUM:?} has the invalid value {text:?}");
            Failure::of("cannot resume", &Error::new(ErrorKind::Corrupt, message), path)
        })?),
        None if state.shard().is_none() => EarlierChecksum::OfRanks,
        None => EarlierChecksum::Unknown,
    };
    Ok(Resumed { state, checksum, path: path.to_owned() })
}

/// Combines the checkpoints of all ranks of a run with a different world size.
fn combine(states: Vec<State>, paths: &[PathBuf]) -> Result<Resumed, Failure> {
    let files: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    let mut state = State::combine(states).map_err(|error| {
        Failure::of("cannot combine the checkpoints", &error, Path::new(&files.join(", ")))
    })?;
    state.notes.remove(CHECKSUM);
    Ok(Resumed { state, checksum: EarlierChecksum::OfRanks, path: paths[0].clone() })
}
