//! States in files: written whole or not at all, checked when they are read.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::random::stage_number;
use crate::sync::{Condvar, Mutex, thread};
use crate::{Error, ErrorKind, Result, State};

/// Says what the file is.
const KIND: &str = "spdl state";

/// What the file holds, as JSON.
#[derive(Serialize, Deserialize)]
struct Content {
    file: String,
    /// The 64-bit FNV-1a hash of the state's text, in hexadecimal digits.
    checksum: String,
    state: Box<RawValue>,
}

/// A file with the state of a run.
///
/// Saving replaces it whole or not at all, also where the machine fails meanwhile: the new state is
/// written beside it (`NAME.PID.partial`), brought to the disk, and then renamed. The state before is
/// kept as `NAME.previous`, where it is sound. The file is a JSON object: `file`, `checksum`, `state`.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("run.state");
/// use spdl_core::{DatasetSource, PipelineBuilder, StateFile};
/// let training = || PipelineBuilder::new(DatasetSource::new(vec![1, 2, 3])).deterministic();
/// let file = StateFile::new(path);
///
/// let mut pipeline = training().build()?;
/// assert_eq!(pipeline.next().transpose()?, Some(1));
/// file.save(&pipeline.state()?)?;
/// drop(pipeline);
///
/// let rest = training().resume(file.load()?).build()?;
/// assert_eq!(rest.collect::<spdl_core::Result<Vec<_>>>()?, [2, 3]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFile {
    path: PathBuf,
}

impl StateFile {
    /// The file at `path`, which need not be there.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        StateFile { path: path.into() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is one, or one before it.
    pub fn exists(&self) -> bool {
        self.path.exists() || self.beside("previous").exists()
    }

    /// Replaces the file. What it held is kept beside it.
    ///
    /// # Errors
    /// Where it cannot be written; it is as it was then.
    pub fn save(&self, state: &State) -> Result<()> {
        // Another process may still be at the same file: one that was told to end, say.
        let partial = self.beside(&format!("{}.partial", std::process::id()));
        let write = || {
            let text = to_json(state)?;
            let mut file = File::create(&partial)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            drop(file);
            // One that is not sound shall not take the place of one that is.
            if self.load_at(&self.path).is_ok() {
                keep(&self.path, &self.beside("previous"))?;
            }
            fs::rename(&partial, &self.path)?;
            // The new name is on the disk once its folder is.
            sync_folder(&self.path)
        };
        write().map_err(|error| self.fault("write", error))
    }

    /// Checks that the file can be written, before a long run: that a file can be made beside it,
    /// which is removed again. What the file holds is left as it is.
    ///
    /// # Errors
    /// Why it cannot: `NotFound` where its folder is missing; `InvalidArgument` where it is a folder
    /// itself.
    pub fn check_writable(&self) -> Result<()> {
        if self.path.is_dir() {
            let message = "the state of the run cannot be written to a folder; name a file in it";
            let error = Error::new(ErrorKind::InvalidArgument, message);
            return Err(error.with_key(self.path.display().to_string()));
        }
        let partial = self.beside(&format!("{}.partial", std::process::id()));
        let made = File::create(&partial).and_then(|_| fs::remove_file(&partial));
        made.map_err(|error| self.fault("write", error))
    }

    /// Reads the file; where it is missing or damaged, the one before it. [`recover`](Self::recover)
    /// says which of both it was.
    ///
    /// # Errors
    /// Where there is none of both, or none that is sound: that of the newer one.
    pub fn load(&self) -> Result<State> {
        self.recover().map(|(state, _)| state)
    }

    /// The same as [`load`](Self::load), with the reason where it is the state before that was read:
    /// what has come since is done again then.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("run.state");
    /// # use spdl_core::{DatasetSource, PipelineBuilder, StateFile};
    /// # let mut pipeline = PipelineBuilder::new(DatasetSource::new(vec![1, 2, 3])).build()?;
    /// let file = StateFile::new(&path);
    /// for _ in 0..2 {
    ///     assert!(pipeline.next().is_some());
    ///     file.save(&pipeline.state()?)?;
    /// }
    /// assert!(file.recover()?.1.is_none());
    /// std::fs::write(&path, "{")?;
    /// let (state, damage) = file.recover()?;
    /// assert_eq!(state.steps(), 1);
    /// assert!(damage.is_some_and(|error| error.to_string().contains("ends early")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As for [`load`](Self::load).
    pub fn recover(&self) -> Result<(State, Option<Error>)> {
        match self.load_at(&self.path) {
            Ok(state) => Ok((state, None)),
            // One that was written by a newer version is sound, and its news must not be lost.
            Err(error) if error.kind() == ErrorKind::Unsupported => Err(error),
            Err(error) => match self.load_at(&self.beside("previous")) {
                Ok(state) => Ok((state, Some(error))),
                Err(_) => Err(error),
            },
        }
    }

    fn load_at(&self, path: &Path) -> Result<State> {
        let text = fs::read_to_string(path).map_err(|error| self.fault("read", error))?;
        from_json(&text).map_err(|error| error.with_key(path.display().to_string()))
    }

    fn beside(&self, what: &str) -> PathBuf {
        let mut path = OsString::from(&self.path);
        path.push(".");
        path.push(what);
        path.into()
    }

    fn fault(&self, verb: &str, error: std::io::Error) -> Error {
        let kind = Error::from(std::io::Error::from(error.kind())).kind();
        Error::new(kind, format!("cannot {verb} the state of the run"))
            .with_key(self.path.display().to_string())
            .with_source(error)
    }
}

/// Gives the file at `path` the name `previous` too, so that there is no moment without one.
fn keep(path: &Path, previous: &Path) -> std::io::Result<()> {
    let mut link = OsString::from(previous);
    link.push(".partial");
    // Left by a process that was ended here.
    let _ = fs::remove_file(&link);
    if fs::hard_link(path, &link).is_err() {
        // Not all file systems know a second name.
        fs::copy(path, &link)?;
        File::open(&link)?.sync_all()?;
    }
    fs::rename(&link, previous)
}

#[cfg(unix)]
fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> std::io::Result<()> {
    Ok(())
}

fn checksum(state: &RawValue) -> String {
    format!("{:016x}", stage_number(state.get()))
}

fn to_json(state: &State) -> std::io::Result<String> {
    let state = serde_json::value::to_raw_value(state)?;
    let content = Content { file: KIND.into(), checksum: checksum(&state), state };
    let mut text = serde_json::to_string(&content)?;
    text.push('\n');
    Ok(text)
}

fn from_json(text: &str) -> Result<State> {
    let damaged = |message: String| Error::new(ErrorKind::Corrupt, message);
    let content: Content = serde_json::from_str(text).map_err(|error| {
        let message = if error.is_eof() { "it ends early" } else { "it is no state of a run" };
        let kind = if error.is_eof() { ErrorKind::Truncated } else { ErrorKind::Corrupt };
        Error::new(kind, message).with_source(error)
    })?;
    if content.file != KIND {
        return Err(damaged(format!("it is a {:?}, no {KIND:?}", content.file)));
    }
    let found = checksum(&content.state);
    if found != content.checksum {
        let message = format!("its checksum is {found}, and {} is written", content.checksum);
        return Err(damaged(message));
    }
    let no_state = |error| damaged("it is no state of a run".into()).with_source(error);
    let Format { format } = serde_json::from_str(content.state.get()).map_err(no_state)?;
    State::check_format(format)?;
    serde_json::from_str(content.state.get()).map_err(no_state)
}

/// The part of a state that tells what the others are.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

/// Saves the state of a run every so many steps, beside the training: a step waits for no disk.
///
/// Where steps are faster than the disk, states in between are passed over, and the newest is
/// written next.
///
/// ```
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("run.state");
/// use spdl_core::{DatasetSource, PipelineBuilder, StateFile, StateSaver};
/// let numbers = DatasetSource::new((0..100).collect::<Vec<i32>>());
/// let mut pipeline = PipelineBuilder::new(numbers).batch("batch", 4, false).build()?;
/// let mut saver = StateSaver::new(StateFile::new(path)).every(10);
/// while let Some(batch) = pipeline.next() {
///     let _train_on = batch?;
///     saver.after_step(|| pipeline.state())?;
/// }
/// let file = saver.finish()?;
/// assert_eq!(file.load()?.steps(), 25);
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct StateSaver {
    file: StateFile,
    every: u64,
    steps: u64,
    /// Of the last step, where it was not yet time to save.
    unsaved: Option<State>,
    desk: Arc<Desk>,
    /// Started by the first state.
    writer: Option<thread::JoinHandle<()>>,
}

/// Where the writer finds states.
#[derive(Default)]
struct Desk {
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    newest: Option<State>,
    ends: bool,
    failed: Option<Error>,
}

impl StateSaver {
    /// Saves to `file`, after every step unless told otherwise.
    pub fn new(file: StateFile) -> Self {
        StateSaver { file, every: 1, steps: 0, unsaved: None, desk: Arc::default(), writer: None }
    }

    /// Saves after every `steps` steps; 0 is taken as 1.
    #[must_use]
    pub fn every(mut self, steps: u64) -> Self {
        self.every = steps.max(1);
        self
    }

    /// Says that a step was made, and takes its `state`. Where it is time to save, hands it to the
    /// thread that writes; else keeps it, to be saved in the end.
    ///
    /// # Errors
    /// That of `state`; what kept an earlier one from being written; `Io` where the operating system
    /// refuses the thread.
    pub fn after_step(&mut self, state: impl FnOnce() -> Result<State>) -> Result<()> {
        self.steps += 1;
        let state = state()?;
        if !self.steps.is_multiple_of(self.every) {
            self.unsaved = Some(state);
            return Ok(());
        }
        self.save(state)
    }

    /// Hands a state to the thread that writes, now.
    ///
    /// # Errors
    /// As for [`after_step`](StateSaver::after_step).
    pub fn save(&mut self, state: State) -> Result<()> {
        self.unsaved = None;
        if self.writer.is_none() {
            let (desk, file) = (Arc::clone(&self.desk), self.file.clone());
            let thread = thread::Builder::new().name("spdl-state".into());
            let thread = thread.spawn(move || desk.write_all(&file)).map_err(|error| {
                let message = "cannot start the thread that saves states";
                Error::new(ErrorKind::Io, message).with_source(error)
            })?;
            self.writer = Some(thread);
        }
        let mut waiting = self.desk.state.lock();
        waiting.newest = Some(state);
        let failed = waiting.failed.take();
        drop(waiting);
        self.desk.changed.notify_one();
        failed.map_or(Ok(()), Err)
    }

    /// Saves the state of the last step, and waits until it is written; dropping the saver does too,
    /// and keeps errors to itself.
    ///
    /// # Errors
    /// What kept it from being written.
    pub fn finish(mut self) -> Result<StateFile> {
        self.end()?;
        match self.desk.state.lock().failed.take() {
            Some(error) => Err(error),
            None => Ok(self.file.clone()),
        }
    }

    fn end(&mut self) -> Result<()> {
        let saved = match self.unsaved.take() {
            Some(state) => self.save(state),
            None => Ok(()),
        };
        self.desk.state.lock().ends = true;
        self.desk.changed.notify_one();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
        saved
    }
}

impl Desk {
    fn write_all(&self, file: &StateFile) {
        let mut waiting = self.state.lock();
        loop {
            if let Some(state) = waiting.newest.take() {
                drop(waiting);
                let written = file.save(&state);
                waiting = self.state.lock();
                waiting.failed = written.err();
            } else if waiting.ends {
                return;
            } else {
                waiting = self.changed.wait(waiting);
            }
        }
    }
}

impl Drop for StateSaver {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

impl fmt::Debug for StateSaver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateSaver")
            .field("file", &self.file)
            .field("every", &self.every)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DatasetSource, PipelineBuilder};

    /// States of a run over 0..100, after each of the first steps.
    fn states(steps: usize) -> Vec<State> {
        let numbers = DatasetSource::new((0..100).collect::<Vec<u32>>()).shuffled(3);
        let mut pipeline = PipelineBuilder::new(numbers).deterministic().build().unwrap();
        let mut states = Vec::new();
        for _ in 0..steps {
            pipeline.next().unwrap().unwrap();
            states.push(pipeline.state().unwrap());
        }
        states
    }

    #[test]
    fn a_state_is_found_again_and_the_one_before_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        assert!(!file.exists());
        assert_eq!(file.load().unwrap_err().kind(), ErrorKind::NotFound);
        let states = states(3);
        for (at, state) in states.iter().enumerate() {
            file.save(state).unwrap();
            assert_eq!(&file.load().unwrap(), state);
            let previous = StateFile::new(folder.path().join("run.state.previous"));
            assert_eq!(previous.load().ok().as_ref(), at.checked_sub(1).map(|at| &states[at]));
        }
        let names = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 2, "nothing else is left");
    }

    #[test]
    fn of_a_damaged_file_the_one_before_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let states = states(2);
        states.iter().for_each(|state| file.save(state).unwrap());
        let whole = fs::read_to_string(file.path()).unwrap();
        for cut in 0..whole.len() - 1 {
            fs::write(file.path(), &whole[..cut]).unwrap();
            assert_eq!(file.load().unwrap(), states[0], "cut at {cut}");
        }
        fs::remove_file(file.path()).unwrap();
        assert!(file.exists());
        assert_eq!(file.load().unwrap(), states[0], "killed between two renames");
    }

    #[test]
    fn what_was_read_instead_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let states = states(2);
        states.iter().for_each(|state| file.save(state).unwrap());
        let (state, damage) = file.recover().unwrap();
        assert!(state == states[1] && damage.is_none(), "{damage:?}");
        fs::write(file.path(), "rubbish").unwrap();
        let (state, damage) = file.recover().unwrap();
        let damage = damage.unwrap();
        assert_eq!((state, damage.kind()), (states[0].clone(), ErrorKind::Corrupt));
        assert!(damage.key().unwrap().ends_with("run.state"), "{damage}");
        fs::remove_file(file.path()).unwrap();
        assert_eq!(file.recover().unwrap().1.unwrap().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_place_that_cannot_be_written_is_told_before() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        file.save(&states(1)[0]).unwrap();
        file.check_writable().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left");
        assert!(file.load().is_ok());
        let kind = |path: &str| {
            StateFile::new(folder.path().join(path)).check_writable().unwrap_err().kind()
        };
        assert_eq!(kind("none/run.state"), ErrorKind::NotFound);
        assert_eq!(kind("."), ErrorKind::InvalidArgument);
        let error = StateFile::new(file.path().join("below")).check_writable().unwrap_err();
        assert!(error.to_string().contains("run.state"), "{error}");
    }

    #[test]
    fn every_change_of_a_digit_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        file.save(&states(1)[0]).unwrap();
        let whole = fs::read_to_string(file.path()).unwrap();
        let mut changed = 0;
        for (at, byte) in whole.bytes().enumerate().filter(|(_, byte)| byte.is_ascii_digit()) {
            let mut bytes = whole.clone().into_bytes();
            bytes[at] = if byte == b'9' { b'0' } else { byte + 1 };
            fs::write(file.path(), bytes).unwrap();
            let error = file.load().unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
                "{error} at {at}"
            );
            assert!(error.key().unwrap().ends_with("run.state"), "{error}");
            changed += 1;
        }
        assert!(changed > 10);
    }

    #[test]
    fn a_state_of_a_newer_version_is_refused_and_not_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let states = states(2);
        states.iter().for_each(|state| file.save(state).unwrap());
        let mut state = serde_json::to_value(&states[1]).unwrap();
        state["format"] = 9.into();
        state["more"] = "news".into();
        fs::write(file.path(), sealed(&state)).unwrap();
        assert_eq!(file.load().unwrap_err().kind(), ErrorKind::Unsupported);
    }

    /// What a file with this state says.
    fn sealed(state: &serde_json::Value) -> String {
        let state = serde_json::value::to_raw_value(state).unwrap();
        let content = Content { file: KIND.into(), checksum: checksum(&state), state };
        serde_json::to_string_pretty(&content).unwrap()
    }

    #[test]
    fn a_state_without_what_is_optional_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let state = states(1).remove(0);
        let mut value = serde_json::to_value(&state).unwrap();
        for part in ["carry", "notes"] {
            assert!(value.as_object_mut().unwrap().remove(part).is_some());
        }
        fs::write(file.path(), sealed(&value)).unwrap();
        assert_eq!(file.load().unwrap(), state);
    }

    #[test]
    fn a_damaged_file_never_takes_the_place_of_a_sound_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let states = states(3);
        states[..2].iter().for_each(|state| file.save(state).unwrap());
        fs::write(file.path(), "rubbish").unwrap();
        file.save(&states[2]).unwrap();
        fs::write(file.path(), "rubbish").unwrap();
        assert_eq!(file.load().unwrap(), states[0]);
    }

    #[test]
    fn what_cannot_be_written_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let states = states(2);
        file.save(&states[0]).unwrap();
        // Nothing can be written where a folder is.
        let partial = format!("run.state.{}.partial", std::process::id());
        fs::create_dir(folder.path().join(partial)).unwrap();
        let error = file.save(&states[1]).unwrap_err();
        assert!(error.to_string().contains("run.state"), "{error}");
        assert_eq!(file.load().unwrap(), states[0]);
    }

    #[test]
    fn the_saver_writes_every_so_often_and_last_what_came_last() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let mut saver = StateSaver::new(file.clone()).every(4);
        let states = states(11);
        for state in &states {
            saver.after_step(|| Ok(state.clone())).unwrap();
        }
        // Written beside, so it may take a moment.
        while file.load().ok().as_ref() != Some(&states[7]) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(saver.finish().unwrap().load().unwrap(), states[10]);
        let mut dropped = StateSaver::new(file.clone()).every(100);
        dropped.after_step(|| Ok(states[2].clone())).unwrap();
        drop(dropped);
        assert_eq!(file.load().unwrap(), states[2]);
    }

    #[test]
    fn the_saver_tells_what_could_not_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let missing = StateFile::new(folder.path().join("none").join("run.state"));
        let mut saver = StateSaver::new(missing);
        saver.save(states(1).remove(0)).unwrap();
        let error = saver.finish().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
