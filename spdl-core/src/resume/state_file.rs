//! State files: written atomically, verified when they are read.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, FileType, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::{Error, ErrorKind, Result};
use crate::resume::state::State;
use crate::runtime::{STALL_TIMEOUT, read_file};
use crate::source::random::stage_number;
use crate::sync::{Condvar, Mutex, thread};

#[cfg(test)]
#[cfg(target_os = "linux")]
mod crashes;

#[cfg(all(test, target_os = "linux"))]
use crashes::passes;

/// A point of a save at which a test may kill the process.
#[cfg(not(all(test, target_os = "linux")))]
fn passes(_point: &str) {}

/// The value of `file` in the content.
const KIND: &str = "spdl state";
/// The maximum size of a state file in bytes. States usually take a few KiB.
const MOST_BYTES: u64 = 64 << 20;
/// The maximum number of consecutive symbolic links, as on Linux.
const MOST_LINKS: usize = 40;
/// How many bytes are read to decide whether an existing file is a state file.
const HEAD: u64 = 64;

/// The content of the file, as JSON.
#[derive(Serialize, Deserialize)]
struct Content {
    file: String,
    /// The 64-bit FNV-1a hash of the JSON text of `state`, in hexadecimal digits.
    checksum: String,
    state: Box<RawValue>,
}

/// A file with the checkpoint state of a run.
///
/// Saving replaces the file atomically, even if the machine fails during the save. The new state is
/// written to `NAME.PID.partial` in the same folder, synchronised to the disk, and renamed. The
/// previous state is kept as `NAME.previous` if it is valid. The file is a JSON object with the
/// keys `file`, `checksum` (FNV-1a, 64 bits) and `state`.
///
/// Saving replaces only state files and empty files. For any other file, and for a path that is not
/// a regular file, such as a device, a pipe or a folder, saving fails. Symbolic links are followed:
/// the target of the link is replaced, and the partial and previous files are written to the folder
/// of the target.
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
    /// Refers to the file at `path`, which need not exist. Nothing is opened.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        StateFile { path: path.into() }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file or `NAME.previous` exists and is not empty.
    pub fn exists(&self) -> bool {
        let holds_something = |path: &Path| fs::metadata(path).is_ok_and(|found| found.len() > 0);
        self.target()
            .is_ok_and(|path| holds_something(&path) || holds_something(&beside(&path, "previous")))
    }

    /// Replaces the file with `state`, and keeps the previous content as `NAME.previous` if it is
    /// valid.
    ///
    /// # Errors
    /// * `InvalidArgument` if the path is not a regular file, or the existing file is neither empty
    ///   nor a state file.
    /// * `LimitExceeded` if the state takes more than 64 MiB.
    /// * The kind of the system's error if the file cannot be written.
    ///
    /// After an error the file is unchanged, unless only the replacement of `NAME.previous` or the
    /// synchronisation of the folder failed. Then the file contains `state`, but a crash of the
    /// machine may undo the replacement.
    pub fn save(&self, state: &State) -> Result<()> {
        let path = self.place()?;
        let previous = beside(&path, "previous");
        // The process ID in the name keeps two processes apart, for example one that is still
        // shutting down.
        let partial = partial_of(&path);
        let text = to_json(state).map_err(|error| self.fault("write", error))?;
        if text.len() as u64 > MOST_BYTES {
            let message = format!(
                "the checkpoint state has {} bytes; the maximum is {MOST_BYTES}; remove large notes",
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
            // A corrupt file must not replace a valid previous state.
            let kept = self.load_at(&path).is_ok().then(|| link(&path, &previous)).transpose()?;
            passes("linked");
            // In this order, the file and `NAME.previous` are never links to one file: damage to
            // one of them leaves the other.
            fs::rename(&partial, &path)?;
            passes("renamed");
            if let Some(kept) = kept {
                fs::rename(&kept, &previous)?;
                // If both were links to one file, the rename leaves both.
                let _ = fs::remove_file(&kept);
            }
            passes("kept");
            // The new name is durable only after the folder is synchronised.
            sync_folder(&path)
        };
        write().map_err(|error| {
            // On a full disk, the partial file would take the space of the next save.
            let _ = fs::remove_file(&partial);
            self.fault("write", error)
        })
    }

    /// Checks that the file can be written. Call it before a long run.
    ///
    /// An existing file must be empty or a state file; its content is unchanged. The check creates
    /// another file in the same folder and removes it again. On Linux, partial files of processes
    /// that no longer exist are removed.
    ///
    /// # Errors
    /// `NotFound` if the folder is missing. `InvalidArgument` if the path is not a regular file, or
    /// the existing file is neither empty nor a state file. Otherwise the kind of the system's
    /// error.
    pub fn check_writable(&self) -> Result<()> {
        let path = self.place()?;
        let partial = partial_of(&path);
        let made = create(&partial).and_then(|_| fs::remove_file(&partial));
        made.map_err(|error| self.fault("write", error))?;
        remove_stale(&path);
        Ok(())
    }

    /// Acquires an exclusive lock on the file, until the returned value is dropped.
    ///
    /// The lock excludes other callers of `lock`, in this process and in others. Two runs that save
    /// to one file would resume from each other's states. [`save`](StateFile::save) and
    /// [`load`](StateFile::load) do not take the lock.
    ///
    /// The lock is an advisory lock on the file `NAME.lock`, which is removed on release. The
    /// operating system releases the lock when the process ends. On file systems that do not
    /// support locks, every call succeeds.
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
    /// `Unavailable` if another caller holds the lock. Otherwise the kind of the system's error if
    /// `NAME.lock` cannot be created.
    pub fn lock(&self) -> Result<StateLock> {
        let path = beside(&self.target()?, "lock");
        loop {
            let mut options = OpenOptions::new();
            let file = options.write(true).create(true).truncate(false).open(&path);
            let file = file.map_err(|error| self.fault("lock", error))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let message = "another process or thread saves states to this file";
                    return Err(self.named(Error::new(ErrorKind::Unavailable, message)));
                }
                // The file system does not support locks, or has no room for more.
                Err(TryLockError::Error(_)) => {}
            }
            // The previous holder may have removed the file between opening and locking.
            if is_at(&file, &path) {
                return Ok(StateLock { _file: file, path });
            }
        }
    }

    /// Reads the state; falls back to `NAME.previous` if the file is missing, unreadable, too large
    /// or corrupt.
    ///
    /// [`recover`](Self::recover) also reports which of the two was read.
    ///
    /// # Errors
    /// Without a fallback: `InvalidArgument` if the path is not a regular file, and `Unsupported`
    /// for a format version that this version of the library cannot read. Otherwise, if neither
    /// file is valid, the error of the newer file, for example `LimitExceeded` for more than 64
    /// MiB.
    pub fn load(&self) -> Result<State> {
        self.recover().map(|(state, _)| state)
    }

    /// Reads the state as [`load`](Self::load) does, and reports a fallback.
    ///
    /// If `NAME.previous` was read, the second value is the error of the newer file. The resumed
    /// run then repeats the steps since the previous state.
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
    /// assert!(damage.is_some_and(|error| error.to_string().contains("truncated")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    pub fn recover(&self) -> Result<(State, Option<Error>)> {
        match self.load_at(&self.path) {
            Ok(state) => Ok((state, None)),
            // A file of a newer version is valid, so falling back would lose progress. A path that
            // is not a regular file was never a state file.
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
        // Check before opening: opening a pipe blocks until another process writes.
        let file_type = fs::metadata(path).map_err(fault)?.file_type();
        if !file_type.is_file() {
            return Err(named(irregular("read from", file_type)));
        }
        let bytes = read_file(path, MOST_BYTES + 1, STALL_TIMEOUT).map_err(fault)?;
        if bytes.len() as u64 > MOST_BYTES {
            let message =
                format!("the state file has more than {MOST_BYTES} bytes, which is the maximum");
            return Err(named(Error::new(ErrorKind::LimitExceeded, message)));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to() as u64;
            let message = "not a state file: invalid UTF-8";
            named(Error::new(ErrorKind::Corrupt, message).with_offset(at))
        })?;
        from_json(&text).map_err(named)
    }

    /// The path to write to, after symbolic links.
    ///
    /// # Errors
    /// If the file at that path or at `NAME.previous` must not be replaced.
    fn place(&self) -> Result<PathBuf> {
        // Links below `/proc` may refer to pipes that have no path.
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

    /// Checks that `path` is absent, empty, or a state file, valid or corrupt. Zeros count as
    /// nothing.
    fn check_replaceable(&self, path: &Path) -> Result<()> {
        let refused = |error: Error| Err(error.with_key(path.display().to_string()));
        let fault = |error| self.fault("write", error);
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_file() => {}
            Ok(found) => return refused(irregular("written to", found.file_type())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(fault(error)),
        }
        let mut head = read_file(path, HEAD, STALL_TIMEOUT).map_err(fault)?;
        // After a crash of the machine, some file systems fill the unwritten rest with zeros.
        let len = fs::metadata(path).map_err(fault)?.len();
        if head.last() == Some(&0) && len <= MOST_BYTES {
            let whole = read_file(path, MOST_BYTES, STALL_TIMEOUT).map_err(fault)?;
            if whole.iter().skip(head.len()).all(|byte| *byte == 0) {
                head.truncate(head.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
            }
        }
        // The keys of a valid state file may have another order.
        if begins_as_state(&head) || self.load_at(path).is_ok() {
            return Ok(());
        }
        let message = "the existing file is not a state file and is not replaced; choose another \
                       path";
        refused(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// The path after symbolic links; the file need not exist.
    fn target(&self) -> Result<PathBuf> {
        let mut path = self.path.clone();
        for _ in 0..MOST_LINKS {
            match fs::read_link(&path) {
                // Relative links start at the folder of the link.
                Ok(next) => path = path.parent().unwrap_or(Path::new("")).join(next),
                Err(_) => return Ok(path),
            }
        }
        let message = format!("the path has more than {MOST_LINKS} consecutive symbolic links");
        Err(self.named(Error::new(ErrorKind::InvalidArgument, message)))
    }

    fn named(&self, error: Error) -> Error {
        error.with_key(self.path.display().to_string())
    }

    fn fault(&self, verb: &str, error: std::io::Error) -> Error {
        let kind = Error::from(std::io::Error::from(error.kind())).kind();
        self.named(Error::new(kind, format!("cannot {verb} the checkpoint state")))
            .with_source(error)
    }
}

/// The lock of [`StateFile::lock`], released on drop.
#[derive(Debug)]
pub struct StateLock {
    /// Closing the file releases the lock.
    _file: File,
    path: PathBuf,
}

impl Drop for StateLock {
    fn drop(&mut self) {
        // Removed before the release, so that no other holder's file is removed. A failure is
        // harmless.
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether `path` still refers to the open file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |found: fs::Metadata| (found.dev(), found.ino());
    let (open, named) = (file.metadata().map(identity), fs::metadata(path).map(identity));
    open.is_ok_and(|open| named.is_ok_and(|named| open == named))
}

/// On systems other than Unix, an open file cannot be renamed or removed.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    true
}

/// Whether `head` starts as a state file: `{"file":"spdl state"` with any white space in between,
/// or a prefix of it.
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

/// The name of a file type that is not a regular file, for messages.
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
    if file_type.is_dir() { "a folder" } else { "not a regular file" }
}

/// The error for a path that is not a regular file.
fn irregular(verb: &str, file_type: FileType) -> Error {
    let message = format!(
        "the path is {}; checkpoint states are {verb} regular files only",
        name_of(file_type)
    );
    Error::new(ErrorKind::InvalidArgument, message)
}

fn beside(path: &Path, what: &str) -> PathBuf {
    let mut path = OsString::from(path);
    path.push(".");
    path.push(what);
    path.into()
}

/// The file that this process writes before it renames it.
fn partial_of(path: &Path) -> PathBuf {
    beside(path, &format!("{}.partial", std::process::id()))
}

/// Creates a new file; fails if another process has placed a file or link there.
fn create(path: &Path) -> std::io::Result<File> {
    // An earlier process with the same ID may have left a partial file.
    let _ = fs::remove_file(path);
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Removes the files `NAME.PID.partial` of processes that no longer exist. Errors are ignored.
fn remove_stale(path: &Path) {
    // Without `/proc` the existing processes are unknown.
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

/// Makes a hard link to the file at `path` beside `previous`, or a copy if hard links are not
/// supported. Returns the path of the link.
fn link(path: &Path, previous: &Path) -> std::io::Result<PathBuf> {
    let link = beside(previous, "partial");
    // A process that was killed during a save may have left the file.
    let _ = fs::remove_file(&link);
    if fs::hard_link(path, &link).is_err() {
        // Not all file systems support hard links.
        let copied = fs::copy(path, &link).and_then(|_| File::open(&link)?.sync_all());
        if let Err(error) = copied {
            let _ = fs::remove_file(&link);
            return Err(error);
        }
    }
    Ok(link)
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
        let message = if error.is_eof() { "state file is truncated" } else { "not a state file" };
        let kind = if error.is_eof() { ErrorKind::Truncated } else { ErrorKind::Corrupt };
        Error::new(kind, message).with_source(error)
    })?;
    if content.file != KIND {
        return Err(damaged(format!("the file is of type {:?}, not {KIND:?}", content.file)));
    }
    let found = checksum(&content.state);
    if found != content.checksum {
        let message = format!("checksum mismatch: stored {}, computed {found}", content.checksum);
        return Err(damaged(message));
    }
    let no_state = |error| damaged("invalid checkpoint state".into()).with_source(error);
    let FormatProbe { format } = serde_json::from_str(content.state.get()).map_err(no_state)?;
    State::check_format(format)?;
    serde_json::from_str(content.state.get()).map_err(no_state)
}

/// The format version of a state, read before the rest.
#[derive(Deserialize)]
struct FormatProbe {
    format: u32,
}

/// Saves checkpoint states in a background thread, every few steps.
///
/// [`after_step`](StateSaver::after_step) and [`save`](StateSaver::save) never wait for the disk.
/// The thread spends at most a twentieth of its time on writing. If states arrive faster, the
/// thread skips the states in between and writes the newest one. After a save of 1 ms, the next one
/// starts at least 19 ms later. [`finish`](StateSaver::finish) and dropping the saver write
/// immediately.
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
    /// The state of the last step, if no save was due.
    unsaved: Option<State>,
    queue: Arc<SaverQueue>,
    /// Started by the first save.
    writer: Option<thread::JoinHandle<()>>,
}

/// How long the writer pauses after a save, as a multiple of the save's duration. If the training
/// uses all CPUs, each save costs about 0.2 ms of one CPU.
const PAUSE_FACTOR: u32 = 19;

/// The newest state for the writer thread.
#[derive(Default)]
struct SaverQueue {
    state: Mutex<SaverState>,
    changed: Condvar,
}

#[derive(Default)]
struct SaverState {
    newest: Option<State>,
    /// Whether the writer waits for a new state and must be notified.
    idle: bool,
    ends: bool,
    failed: Option<Error>,
}

impl StateSaver {
    /// Saves to `file` after every step; see [`every`](StateSaver::every).
    pub fn new(file: StateFile) -> Self {
        StateSaver { file, every: 1, steps: 0, unsaved: None, queue: Arc::default(), writer: None }
    }

    /// Saves after every `steps` steps (default 1); 0 counts as 1.
    #[must_use]
    pub fn every(mut self, steps: u64) -> Self {
        self.every = steps.max(1);
        self
    }

    /// Counts a step, and saves its `state` if a save is due.
    ///
    /// The background thread writes the state. If no save is due, the saver keeps the state for
    /// [`finish`](StateSaver::finish). `state` is called at each step, because the last step is
    /// known only after the pipeline has ended.
    ///
    /// # Errors
    /// The error of `state`. If a save is due, also the error of the last save that the thread has
    /// ended, and `Io` if the thread cannot be started.
    pub fn after_step(&mut self, state: impl FnOnce() -> Result<State>) -> Result<()> {
        self.steps += 1;
        let state = state()?;
        if !self.steps.is_multiple_of(self.every) {
            self.unsaved = Some(state);
            return Ok(());
        }
        self.save(state)
    }

    /// Sends a state to the background thread, regardless of the number of steps.
    ///
    /// # Errors
    /// The errors of [`after_step`](StateSaver::after_step).
    pub fn save(&mut self, state: State) -> Result<()> {
        self.unsaved = None;
        if self.writer.is_none() {
            let (queue, file) = (Arc::clone(&self.queue), self.file.clone());
            let thread = thread::Builder::new().name("spdl-state".into());
            let thread = thread.spawn(move || queue.write_to(&file)).map_err(|error| {
                let message = "cannot start the thread that saves checkpoint states";
                Error::new(ErrorKind::Io, message).with_source(error)
            })?;
            self.writer = Some(thread);
        }
        let mut waiting = self.queue.state.lock();
        waiting.newest = Some(state);
        let failed = waiting.failed.take();
        let idle = std::mem::take(&mut waiting.idle);
        drop(waiting);
        if idle {
            self.queue.changed.notify_one();
        }
        failed.map_or(Ok(()), Err)
    }

    /// Saves the state of the last step and waits until it is written.
    ///
    /// Dropping the saver does the same and discards errors.
    ///
    /// # Errors
    /// The error of the last save, or of starting the thread.
    pub fn finish(mut self) -> Result<StateFile> {
        self.end()?;
        match self.queue.state.lock().failed.take() {
            Some(error) => Err(error),
            None => Ok(self.file.clone()),
        }
    }

    fn end(&mut self) -> Result<()> {
        let saved = match self.unsaved.take() {
            Some(state) => self.save(state),
            None => Ok(()),
        };
        self.queue.state.lock().ends = true;
        self.queue.changed.notify_one();
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
        let mut pause_until = Instant::now();
        loop {
            let pause = pause_until.saturating_duration_since(Instant::now());
            if !waiting.ends && !pause.is_zero() {
                waiting = self.changed.wait_timeout(waiting, pause);
            } else if let Some(state) = waiting.newest.take() {
                drop(waiting);
                let started = Instant::now();
                let written = save(&state);
                pause_until = Instant::now() + started.elapsed() * PAUSE_FACTOR;
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

    /// The states of a run over 0..100 after each of the first steps.
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
    fn a_saved_state_is_loaded_and_the_previous_one_is_kept() {
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
        assert_eq!(names, 2, "no other file remains");
    }

    // promise: R11
    #[test]
    fn a_corrupt_file_falls_back_to_the_previous_state() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let states = states(2);
        states.iter().for_each(|state| file.save(state).unwrap());
        let whole = fs::read_to_string(file.path()).unwrap();
        for cut in 0..whole.len() - 1 {
            fs::write(file.path(), &whole[..cut]).unwrap();
            assert_eq!(file.load().unwrap(), states[0], "truncated at {cut}");
        }
        fs::remove_file(file.path()).unwrap();
        assert!(file.exists());
        assert_eq!(file.load().unwrap(), states[0], "killed between two renames");
    }

    #[test]
    fn recover_reports_a_fallback() {
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
    fn check_writable_reports_errors_and_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        file.save(&states(1)[0]).unwrap();
        file.check_writable().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no other file remains");
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
    fn every_changed_digit_is_detected() {
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
    fn a_state_of_a_newer_version_is_refused_without_a_fallback() {
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

    /// The text of a file with this state.
    fn sealed(state: &serde_json::Value) -> String {
        let state = serde_json::value::to_raw_value(state).unwrap();
        let content = Content { file: KIND.into(), checksum: checksum(&state), state };
        serde_json::to_string_pretty(&content).unwrap()
    }

    #[test]
    fn a_state_without_optional_fields_is_read() {
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
    fn a_corrupt_file_never_replaces_the_previous_state() {
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
    fn a_failed_save_leaves_the_file_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let states = states(2);
        file.save(&states[0]).unwrap();
        // A folder at the path of the partial file makes the save fail.
        let partial = format!("run.state.{}.partial", std::process::id());
        fs::create_dir(folder.path().join(partial)).unwrap();
        let error = file.save(&states[1]).unwrap_err();
        assert!(error.to_string().contains("run.state"), "{error}");
        assert_eq!(file.load().unwrap(), states[0]);
    }

    #[test]
    fn only_state_files_are_replaced() {
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
            refused(&file, "not a state file and is not replaced");
            assert_eq!(fs::read_to_string(file.path()).unwrap(), foreign);
        }
        // A foreign file at `NAME.previous` is not replaced either.
        fs::remove_file(file.path()).unwrap();
        let previous = folder.path().join("run.state.previous");
        fs::write(&previous, "notes").unwrap();
        refused(&file, "run.state.previous");
        fs::remove_file(&previous).unwrap();
        // Empty and corrupt state files are replaced without a copy.
        for replaced in ["", "{", "{\"file\" : \"spdl st", "{\n \"file\": \"spdl state\", \"chec"] {
            fs::write(file.path(), replaced).unwrap();
            file.save(&states[0]).unwrap();
            assert!(!previous.exists());
        }
        // A state file with sorted keys is still valid.
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
    fn a_state_larger_than_the_limit_is_neither_written_nor_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let mut state = states(1).remove(0);
        state.notes.insert("long".into(), "x".repeat(MOST_BYTES as usize));
        assert_eq!(file.save(&state).unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert!(!file.exists());
        // A sparse file takes no disk space.
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
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no other file remains");
        fs::remove_file(at("runs/7.state")).unwrap();
        assert!(file.exists());
        assert_eq!(file.load().unwrap(), states[0], "the previous state");
        symlink("circle", at("circle")).unwrap();
        let error = StateFile::new(at("circle")).save(&states[0]).unwrap_err();
        assert!(error.to_string().contains("links"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn partial_files_of_ended_processes_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        // `u32::MAX` is never a process ID; the parent process is alive.
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
    fn only_one_caller_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        // A removed file no longer matches its path.
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
        // A lock file of a killed process does not block.
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
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no file remains");
    }

    #[test]
    fn the_saver_writes_every_few_steps_and_the_last_state() {
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::new(folder.path().join("run.state"));
        let mut saver = StateSaver::new(file.clone()).every(4);
        let states = states(11);
        for state in &states {
            saver.after_step(|| Ok(state.clone())).unwrap();
        }
        // The background thread writes, so wait for it.
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
    fn the_saver_reports_failed_saves() {
        let folder = tempfile::tempdir().unwrap();
        let missing = StateFile::new(folder.path().join("none").join("run.state"));
        let mut saver = StateSaver::new(missing);
        saver.save(states(1).remove(0)).unwrap();
        let error = saver.finish().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn the_writer_pauses_after_a_save_and_finishes_without_a_pause() {
        let states = states(8);
        let mut saver = StateSaver::new(StateFile::new("unused"));
        let (queue, slow) = (Arc::clone(&saver.queue), Duration::from_millis(300));
        let (saved, sent) = std::sync::mpsc::channel();
        let save = move |state: &State| {
            std::thread::sleep(slow);
            saved.send(state.steps()).unwrap();
            Ok(())
        };
        saver.writer = Some(thread::spawn(move || queue.write_all(save)));
        saver.save(states[0].clone()).unwrap();
        assert_eq!(sent.recv().unwrap(), 1);
        let pause = Instant::now();
        for state in &states[1..] {
            saver.save(state.clone()).unwrap();
        }
        assert!(sent.recv_timeout(slow * 2).is_err(), "the writer must pause");
        saver.finish().unwrap();
        assert_eq!(sent.try_iter().collect::<Vec<_>>(), [8], "only the newest state is written");
        assert!(pause.elapsed() < slow * PAUSE_FACTOR, "finish must not wait for the pause");
    }
}
