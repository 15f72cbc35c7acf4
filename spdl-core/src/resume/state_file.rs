//! States in files: written whole or not at all, checked when they are read.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, FileType, OpenOptions, TryLockError};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{Error, ErrorKind, Result};
use crate::resume::state::State;
use crate::source::random::stage_number;
use crate::sync::{Condvar, Mutex, thread};

#[cfg(test)]
#[cfg(target_os = "linux")]
mod crashes;

#[cfg(all(test, target_os = "linux"))]
use crashes::passes;

/// A point of a save, where a test may end the process.
#[cfg(not(all(test, target_os = "linux")))]
fn passes(_point: &str) {}

/// Says what the file is.
const KIND: &str = "spdl state";
/// Larger files are not read, and not written. States take some KiB, mostly.
const MOST_BYTES: u64 = 64 << 20;
/// So many symbolic links may follow one another, as on Linux.
const MOST_LINKS: usize = 40;
/// So many bytes are looked at to see whether a file is meant to be one of these.
const HEAD: u64 = 64;

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
/// Nothing else is ever replaced: neither another kind of file, nor what is no regular file (a device,
/// a pipe, a folder). Symbolic links are followed: what they lead to is replaced, and what is written
/// beside it lies there.
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

    /// Whether there is one, or one before it. An empty file is none.
    pub fn exists(&self) -> bool {
        let holds_something = |path: &Path| fs::metadata(path).is_ok_and(|found| found.len() > 0);
        self.target()
            .is_ok_and(|path| holds_something(&path) || holds_something(&beside(&path, "previous")))
    }

    /// Replaces the file. What it held is kept beside it.
    ///
    /// # Errors
    /// Where it cannot be written; it is as it was then. `InvalidArgument` where what is there is no
    /// state of a run; `LimitExceeded` where the state takes more than 64 MiB.
    pub fn save(&self, state: &State) -> Result<()> {
        let path = self.place()?;
        let previous = beside(&path, "previous");
        // Another process may still be at the same file: one that was told to end, say.
        let partial = partial_of(&path);
        let text = to_json(state).map_err(|error| self.fault("write", error))?;
        if text.len() as u64 > MOST_BYTES {
            let message = format!(
                "the state of the run takes {} bytes; at most {MOST_BYTES} are written",
                text.len()
            );
            return Err(self.named(Error::new(ErrorKind::LimitExceeded, message)));
        }
        let write = || {
            let mut file = create(&partial)?;
            passes("created");
            file.write_all(text.as_bytes())?;
            passes("written");
            file.sync_all()?;
            drop(file);
            passes("synced");
            // One that is not sound shall not take the place of one that is.
            if self.load_at(&path).is_ok() {
                keep(&path, &previous)?;
            }
            passes("kept");
            fs::rename(&partial, &path)?;
            passes("renamed");
            // The new name is on the disk once its folder is.
            sync_folder(&path)
        };
        write().map_err(|error| {
            // On a full disk it would be in the way of the next one.
            let _ = fs::remove_file(&partial);
            self.fault("write", error)
        })
    }

    /// Checks that the file can be written, before a long run: that what is there may be replaced,
    /// and that a file can be made beside it, which is removed again. What the file holds is left as
    /// it is. What processes that were killed have left beside it is removed: unfinished files of
    /// processes that are no longer there, where the system tells (Linux).
    ///
    /// # Errors
    /// Why it cannot: `NotFound` where its folder is missing; `InvalidArgument` where it is a folder
    /// itself, a device, or a file that is no state of a run.
    pub fn check_writable(&self) -> Result<()> {
        let path = self.place()?;
        let partial = partial_of(&path);
        let made = create(&partial).and_then(|_| fs::remove_file(&partial));
        made.map_err(|error| self.fault("write", error))?;
        remove_stale(&path);
        Ok(())
    }

    /// Keeps others from the file for as long as the lock is held: those that ask for the lock too,
    /// in this process and in others. Two runs that save to one file would go on from each other's
    /// states. Saving and loading ask for no lock themselves.
    ///
    /// It is an advisory lock of `NAME.lock`, a file that goes with the lock; the system releases it
    /// however the process ends. Where a file system knows no locks, everybody gets one.
    ///
    /// ```
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("run.state");
    /// use spdl_core::{ErrorKind, StateFile};
    /// let file = StateFile::new(path);
    /// let lock = file.lock()?;
    /// assert_eq!(file.lock().unwrap_err().kind(), ErrorKind::Unavailable);
    /// drop(lock);
    /// assert!(file.lock().is_ok());
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Unavailable` where another one holds it; that of the system where it cannot be made.
    pub fn lock(&self) -> Result<StateLock> {
        let path = beside(&self.target()?, "lock");
        loop {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(false).open(&path);
            let file = file.map_err(|error| self.fault("lock", error))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let message = "another process saves its states to this file";
                    return Err(self.named(Error::new(ErrorKind::Unavailable, message)));
                }
                // The file system knows none, or has no room for more.
                Err(TryLockError::Error(_)) => {}
            }
            // Whoever held it before may have removed it between both steps.
            if is_at(&file, &path) {
                return Ok(StateLock { _file: file, path });
            }
        }
    }

    /// Reads the file; where it is missing or damaged, the one before it. [`recover`](Self::recover)
    /// says which of both it was.
    ///
    /// # Errors
    /// Where there is none of both, or none that is sound: that of the newer one. `InvalidArgument`
    /// where it is no regular file; `LimitExceeded` where it has more than 64 MiB.
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
            // One that was written by a newer version is sound, and its news must not be lost; and
            // what is no file at all was never one of these.
            Err(error)
                if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidArgument) =>
            {
                Err(error)
            }
            Err(error) => match self.load_at(&beside(&self.target()?, "previous")) {
                Ok(state) => Ok((state, Some(error))),
                Err(_) => Err(error),
            },
        }
    }

    fn load_at(&self, path: &Path) -> Result<State> {
        let named = |error: Error| error.with_key(path.display().to_string());
        let fault = |error| self.fault("read", error);
        // Before it is opened: opening a pipe waits for somebody who writes.
        let file_type = fs::metadata(path).map_err(fault)?.file_type();
        if !file_type.is_file() {
            return Err(named(irregular("read from", file_type)));
        }
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(fault)?;
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(fault)?;
        if bytes.len() as u64 > MOST_BYTES {
            let message =
                format!("it has more than {MOST_BYTES} bytes, which no state of a run has");
            return Err(named(Error::new(ErrorKind::LimitExceeded, message)));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to() as u64;
            let message = "it is no state of a run: it is not text";
            named(Error::new(ErrorKind::Corrupt, message).with_offset(at))
        })?;
        from_json(&text).map_err(named)
    }

    /// Where a state is to be written.
    ///
    /// # Errors
    /// Where something must not be replaced: there, or where the state before goes.
    fn place(&self) -> Result<PathBuf> {
        // Links below `/proc` lead to pipes that have no path.
        if let Ok(found) = fs::metadata(&self.path)
            && !found.is_file()
        {
            return Err(self.named(irregular("written to", found.file_type())));
        }
        let path = self.target()?;
        self.check_replaceable(&path)?;
        self.check_replaceable(&beside(&path, "previous"))?;
        Ok(path)
    }

    /// Checks that nothing is at `path` but a state, sound or damaged, or an empty file.
    fn check_replaceable(&self, path: &Path) -> Result<()> {
        let refused = |error: Error| Err(error.with_key(path.display().to_string()));
        let fault = |error| self.fault("write", error);
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_file() => {}
            Ok(found) => return refused(irregular("written to", found.file_type())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(fault(error)),
        }
        let mut head = Vec::new();
        File::open(path).map_err(fault)?.take(HEAD).read_to_end(&mut head).map_err(fault)?;
        // Whoever has formatted it anew has a state all the same.
        if begins_as_state(&head) || self.load_at(path).is_ok() {
            return Ok(());
        }
        let message = "the file that is there is no state of a run, and is not replaced; name another \
                       one";
        refused(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// The file itself, behind symbolic links; it need not be there.
    fn target(&self) -> Result<PathBuf> {
        let mut path = self.path.clone();
        for _ in 0..MOST_LINKS {
            match fs::read_link(&path) {
                // From the folder of the link, unless it is absolute.
                Ok(next) => path = path.parent().unwrap_or(Path::new("")).join(next),
                Err(_) => return Ok(path),
            }
        }
        let message = format!("more than {MOST_LINKS} symbolic links follow one another");
        Err(self.named(Error::new(ErrorKind::InvalidArgument, message)))
    }

    fn named(&self, error: Error) -> Error {
        error.with_key(self.path.display().to_string())
    }

    fn fault(&self, verb: &str, error: std::io::Error) -> Error {
        let kind = Error::from(std::io::Error::from(error.kind())).kind();
        self.named(Error::new(kind, format!("cannot {verb} the state of the run")))
            .with_source(error)
    }
}

/// That nobody else saves to a file: made by [`StateFile::lock`], and released when it is dropped.
#[derive(Debug)]
pub struct StateLock {
    /// Closing it releases the lock.
    _file: File,
    path: PathBuf,
}

impl Drop for StateLock {
    fn drop(&mut self) {
        // While it is held, so that nobody else's is removed. What cannot be removed is no harm.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether the open file is the one that has this name now.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let (open, named) = (file.metadata().map(identity), fs::metadata(path).map(identity));
    open.is_ok_and(|open| named.is_ok_and(|named| open == named))
}

/// Elsewhere an open file keeps its name.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

/// Whether a file that begins so is a state, whatever became of the rest: `{"file":"spdl state"`,
/// with any white space between, or as much of it as there is.
fn begins_as_state(head: &[u8]) -> bool {
    let mut head = head.iter().copied().peekable();
    for token in ["{", "\"file\"", ":", "\"spdl state\""] {
        while head.next_if(u8::is_ascii_whitespace).is_some() {}
        for expected in token.bytes() {
            match head.next() {
                None => return true,
                Some(found) if found != expected => return false,
                Some(_) => {}
            }
        }
    }
    true
}

/// What a thing that is no regular file is called.
fn name_of(file_type: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        if file_type.is_fifo() {
            return "a pipe";
        } else if file_type.is_socket() {
            return "a socket";
        } else if file_type.is_char_device() || file_type.is_block_device() {
            return "a device";
        }
    }
    if file_type.is_dir() { "a folder" } else { "no file" }
}

/// That a state is not read from such a thing, or written to it.
fn irregular(verb: &str, file_type: FileType) -> Error {
    let message =
        format!("it is {}; the state of a run is {verb} a regular file only", name_of(file_type));
    Error::new(ErrorKind::InvalidArgument, message)
}

fn beside(path: &Path, what: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(".");
    path.push(what);
    path.into()
}

/// Where this process writes before it renames.
fn partial_of(path: &Path) -> PathBuf {
    beside(path, &format!("{}.partial", std::process::id()))
}

/// Makes a file that was not there: never through a link that somebody else has put there.
fn create(path: &Path) -> std::io::Result<File> {
    // Left by a process of the same number, long ago.
    let _ = fs::remove_file(path);
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Removes what processes that are no longer there have left of `path`: `NAME.PID.partial`. What
/// cannot be removed is no harm.
fn remove_stale(path: &Path) {
    // Without it nobody knows which processes there are.
    if !Path::new("/proc/self").exists() {
        return;
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let (Some(name), Ok(files)) =
        (path.file_name(), fs::read_dir(folder.unwrap_or(Path::new("."))))
    else {
        return;
    };
    for file in files.flatten() {
        let found = file.file_name();
        let rest = found.as_encoded_bytes().strip_prefix(name.as_encoded_bytes());
        let number = rest
            .and_then(|rest| rest.strip_prefix(b"."))
            .and_then(|rest| rest.strip_suffix(b".partial"))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| digits.parse::<u32>().ok());
        let is_gone = |process: u32| !Path::new(&format!("/proc/{process}")).exists();
        if number.is_some_and(is_gone) {
            let _ = fs::remove_file(file.path());
        }
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
        let copied = fs::copy(path, &link).and_then(|_| File::open(&link)?.sync_all());
        if let Err(error) = copied {
            let _ = fs::remove_file(&link);
            return Err(error);
        }
    }
    passes("linked");
    fs::rename(&link, previous)?;
    // Where both were names of one file, a renaming has left both: after a save that was cut short.
    let _ = fs::remove_file(&link);
    Ok(())
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
    let FormatProbe { format } = serde_json::from_str(content.state.get()).map_err(no_state)?;
    State::check_format(format)?;
    serde_json::from_str(content.state.get()).map_err(no_state)
}

/// The part of a state that tells what the others are.
#[derive(Deserialize)]
struct FormatProbe {
    format: u32,
}

/// Saves the state of a run every so many steps, beside the training: a step waits for no disk.
///
/// Writing takes at most a twentieth of the time of one thread: where steps are faster than that, the
/// states in between are passed over, and the newest is written next. A save of 1 ms is followed by
/// the next one 20 ms later at the earliest; only [`finish`](StateSaver::finish), or dropping the
/// saver, writes at once.
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
    desk: Arc<SaverQueue>,
    /// Started by the first state.
    writer: Option<thread::JoinHandle<()>>,
}

/// How much longer than a save took the writer rests behind it: with a training that computes on all
/// CPUs, each save costs it some 0.2 ms of one.
const RESTS: u32 = 19;

/// Where the writer finds states.
#[derive(Default)]
struct SaverQueue {
    state: Mutex<SaverState>,
    changed: Condvar,
}

#[derive(Default)]
struct SaverState {
    newest: Option<State>,
    /// Whether the writer is to be woken for a new one.
    idle: bool,
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
    /// `state` is asked for at each step, also where few are saved: which one is the last is known only
    /// when nobody can ask for its state any more.
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

    /// Hands a state to the thread that writes, whatever step it is.
    ///
    /// # Errors
    /// As for [`after_step`](StateSaver::after_step).
    pub fn save(&mut self, state: State) -> Result<()> {
        self.unsaved = None;
        if self.writer.is_none() {
            let (desk, file) = (Arc::clone(&self.desk), self.file.clone());
            let thread = thread::Builder::new().name("spdl-state".into());
            let thread = thread.spawn(move || desk.write_to(&file)).map_err(|error| {
                let message = "cannot start the thread that saves states";
                Error::new(ErrorKind::Io, message).with_source(error)
            })?;
            self.writer = Some(thread);
        }
        let mut waiting = self.desk.state.lock();
        waiting.newest = Some(state);
        let failed = waiting.failed.take();
        let idle = std::mem::take(&mut waiting.idle);
        drop(waiting);
        if idle {
            self.desk.changed.notify_one();
        }
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

impl SaverQueue {
    fn write_to(&self, file: &StateFile) {
        if let Ok(path) = file.target() {
            remove_stale(&path);
        }
        self.write_all(|state| file.save(state));
    }

    fn write_all(&self, save: impl Fn(&State) -> Result<()>) {
        let mut waiting = self.state.lock();
        let mut rested = Instant::now();
        loop {
            let rest = rested.saturating_duration_since(Instant::now());
            if !waiting.ends && !rest.is_zero() {
                waiting = self.changed.wait_timeout(waiting, rest);
            } else if let Some(state) = waiting.newest.take() {
                drop(waiting);
                let started = Instant::now();
                let written = save(&state);
                rested = Instant::now() + started.elapsed() * RESTS;
                waiting = self.state.lock();
                waiting.failed = written.err();
            } else if waiting.ends {
                return;
            } else {
                waiting.idle = true;
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
    use std::time::Duration;

    use super::*;
    use crate::pipeline::builder::PipelineBuilder;
    use crate::source::dataset::DatasetSource;

    /// States of a run over 0..100, after each of the first steps.
    pub(super) fn states(steps: usize) -> Vec<State> {
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

    // promise: R11
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

    // promise: R11
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

    // promise: R11
    #[test]
    fn a_damaged_file_never_takes_the_place_of_a_sound_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let states = states(3);
        states[..2].iter().for_each(|state| file.save(state).unwrap());
        let damaged = "{ \"file\":\n\"spdl state\", and";
        fs::write(file.path(), damaged).unwrap();
        file.save(&states[2]).unwrap();
        fs::write(file.path(), damaged).unwrap();
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
    fn nothing_but_states_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let states = states(2);
        let refused = |file: &StateFile, words: &str| {
            for error in [file.check_writable().unwrap_err(), file.save(&states[0]).unwrap_err()] {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                assert!(error.to_string().contains(words), "{error}");
            }
        };
        for foreign in ["rubbish", "{\"file\":\"spdl report\"}", "{\"state\":1}", "\u{1}\u{ff}"] {
            fs::write(file.path(), foreign).unwrap();
            refused(&file, "no state of a run, and is not replaced");
            assert_eq!(fs::read_to_string(file.path()).unwrap(), foreign);
        }
        // Nor where the state before goes.
        fs::remove_file(file.path()).unwrap();
        let previous = folder.path().join("run.state.previous");
        fs::write(&previous, "notes").unwrap();
        refused(&file, "run.state.previous");
        fs::remove_file(&previous).unwrap();
        // Empty files hold nothing, damaged ones nothing that could be had; others are sound.
        for replaced in ["", "{", "{\"file\" : \"spdl st", "{\n \"file\": \"spdl state\", \"chec"] {
            fs::write(file.path(), replaced).unwrap();
            file.save(&states[0]).unwrap();
            assert!(!previous.exists());
        }
        // Whoever has sorted the keys has a state all the same.
        let text = fs::read_to_string(file.path()).unwrap();
        let sorted = text
            .replace("{\"file\":\"spdl state\",", "{")
            .replace("}}\n", "},\"file\":\"spdl state\"}");
        assert_ne!(text, sorted);
        fs::write(file.path(), sorted).unwrap();
        assert_eq!(file.load().unwrap(), states[0]);
        file.save(&states[1]).unwrap();
        assert_eq!(StateFile::new(previous).load().unwrap(), states[0]);
        assert_eq!(file.load().unwrap(), states[1]);
    }

    #[cfg(unix)]
    #[test]
    fn only_regular_files_are_read_and_written() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let mut places =
            vec![(Path::new("/dev/full").to_owned(), "a device"), (socket, "a socket")];
        match made {
            Ok(made) if made.success() => places.push((pipe, "a pipe")),
            _ => println!("SKIPPED: no mkfifo here"),
        }
        for (path, words) in places {
            let file = StateFile::new(&path);
            let before = fs::metadata(&path).unwrap().file_type();
            let errors = [
                file.load().unwrap_err(),
                file.save(&states(1)[0]).unwrap_err(),
                file.check_writable().unwrap_err(),
            ];
            for error in errors {
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                assert!(error.to_string().contains(words), "{error}");
            }
            assert_eq!(fs::metadata(&path).unwrap().file_type(), before);
        }
    }

    #[test]
    fn no_more_is_read_than_a_state_may_have() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let mut state = states(1).remove(0);
        state.notes.insert("long".into(), "x".repeat(MOST_BYTES as usize));
        assert_eq!(file.save(&state).unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert!(!file.exists());
        // Sparse: it takes no room on the disk.
        File::create(file.path()).unwrap().set_len(MOST_BYTES + 1).unwrap();
        assert_eq!(file.load().unwrap_err().kind(), ErrorKind::LimitExceeded);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_stay() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("runs")).unwrap();
        symlink("runs/latest", at("run.state")).unwrap();
        symlink("7.state", at("runs/latest")).unwrap();
        let file = StateFile::new(at("run.state"));
        let states = states(2);
        states.iter().for_each(|state| file.save(state).unwrap());
        assert_eq!(file.load().unwrap(), states[1]);
        assert_eq!(StateFile::new(at("runs/7.state")).load().unwrap(), states[1]);
        assert_eq!(StateFile::new(at("runs/7.state.previous")).load().unwrap(), states[0]);
        assert!(fs::symlink_metadata(at("run.state")).unwrap().is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing beside the link");
        fs::remove_file(at("runs/7.state")).unwrap();
        assert!(file.exists());
        assert_eq!(file.load().unwrap(), states[0], "the one before lies beside the file");
        symlink("circle", at("circle")).unwrap();
        let error = StateFile::new(at("circle")).save(&states[0]).unwrap_err();
        assert!(error.to_string().contains("links"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn what_killed_processes_have_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // No process has so large a number; this one is alive.
        let (gone, alive) = (u32::MAX, std::os::unix::process::parent_id());
        let stays = [
            format!("run.state.{alive}.partial"),
            format!("other.state.{gone}.partial"),
            "run.state.x.partial".into(),
        ];
        let stale = at(&format!("run.state.{gone}.partial"));
        let file = StateFile::new(at("run.state"));
        let begin: [&dyn Fn(); 2] = [&|| file.check_writable().unwrap(), &|| {
            let mut saver = StateSaver::new(file.clone());
            saver.save(states(1).remove(0)).unwrap();
            saver.finish().unwrap();
        }];
        for begin in begin {
            stays.iter().for_each(|name| fs::write(at(name), "{").unwrap());
            fs::write(&stale, "{").unwrap();
            begin();
            assert!(!stale.exists());
            assert!(stays.iter().all(|name| at(name).exists()));
        }
    }

    #[test]
    fn a_lock_is_held_by_one() {
        let folder = tempfile::tempdir().unwrap();
        // One that another has removed meanwhile is nobody's.
        let path = folder.path().join("removed");
        let open = File::create(&path).unwrap();
        assert!(is_at(&open, &path));
        fs::remove_file(&path).unwrap();
        #[cfg(unix)]
        assert!(!is_at(&open, &path));
        let other = File::create(&path).unwrap();
        assert!(is_at(&other, &path));
        #[cfg(unix)]
        assert!(!is_at(&open, &path));
        fs::remove_file(&path).unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        // What was left by one that was killed is in nobody's way.
        fs::write(folder.path().join("run.state.lock"), "").unwrap();
        let held = std::sync::atomic::AtomicU32::new(0);
        let taken = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        match file.lock() {
                            Ok(_lock) => {
                                use std::sync::atomic::Ordering::SeqCst;
                                assert_eq!(held.fetch_add(1, SeqCst), 0);
                                taken.fetch_add(1, SeqCst);
                                std::thread::yield_now();
                                held.fetch_sub(1, SeqCst);
                            }
                            Err(error) => {
                                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}")
                            }
                        }
                    }
                });
            }
        });
        assert!(taken.into_inner() > 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
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

    #[test]
    fn the_writer_rests_behind_a_save_and_ends_at_once() {
        let states = states(8);
        let mut saver = StateSaver::new(StateFile::new("unused"));
        let (desk, slow) = (Arc::clone(&saver.desk), Duration::from_millis(300));
        let (saved, sent) = std::sync::mpsc::channel();
        let save = move |state: &State| {
            std::thread::sleep(slow);
            saved.send(state.steps()).unwrap();
            Ok(())
        };
        saver.writer = Some(thread::spawn(move || desk.write_all(save)));
        saver.save(states[0].clone()).unwrap();
        assert_eq!(sent.recv().unwrap(), 1);
        let rests = Instant::now();
        for state in &states[1..] {
            saver.save(state.clone()).unwrap();
        }
        assert!(sent.recv_timeout(slow * 2).is_err(), "it rests for 19 times as long");
        saver.finish().unwrap();
        assert_eq!(sent.try_iter().collect::<Vec<_>>(), [8], "only the newest");
        assert!(rests.elapsed() < slow * RESTS, "without waiting for the rest to end");
    }
}
