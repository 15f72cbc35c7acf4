//! [`run_watched`], [`WatchedFile`], [`read_file`]: file reads that fail if they make no progress.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::thread;

/// Default time after which a file read without progress fails: 60 s. Servers of network file
/// systems may need this time to restart.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum number of bytes that one system call reads.
const STEP_BYTES: usize = 4 << 20;

/// Counts the steps of a call of [`run_watched`].
#[derive(Clone, Debug, Default)]
pub struct ReadProgress(Arc<ProgressCounter>);

#[derive(Debug, Default)]
struct ProgressCounter {
    steps: AtomicU64,
    has_no_limit: AtomicBool,
}

impl ReadProgress {
    /// Reports progress.
    pub fn advance(&self) {
        self.0.steps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs `work` on a separate thread, and waits for its result.
///
/// A system call cannot be cancelled, so the thread remains until its call returns.
///
/// # Errors
/// `TimedOut` if `work` makes no progress for `timeout`. The error of the system if no thread can be
/// started.
pub fn run_watched<T: Send + 'static>(
    timeout: Duration,
    work: impl FnOnce(&ReadProgress) -> T + Send + 'static,
) -> io::Result<T> {
    let progress = ReadProgress::default();
    let (reply, answer) = mpsc::sync_channel(1);
    let advanced = progress.clone();
    // Fails if the caller has stopped waiting.
    let call = move || _ = reply.send(work(&advanced));
    thread::Builder::new().name("spdl-read".into()).spawn(call)?;
    let (mut seen, mut since) = (0, Instant::now());
    loop {
        match answer.recv_timeout(timeout / 8) {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the thread that reads the file panicked"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        let steps = progress.0.steps.load(Ordering::Relaxed);
        if steps != seen || progress.0.has_no_limit.load(Ordering::Relaxed) {
            (seen, since) = (steps, Instant::now());
        }
        if since.elapsed() >= timeout {
            let message =
                format!("the file system made no progress for {} s", timeout.as_secs_f32());
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
    }
}

/// A file that reports each read as progress.
#[derive(Debug)]
pub struct WatchedFile {
    file: File,
    progress: ReadProgress,
}

impl WatchedFile {
    /// Opens a file. Reads of pipes and devices, which wait for a writer, have no time limit.
    ///
    /// # Errors
    /// The errors of [`File::open`].
    pub fn open(path: impl AsRef<Path>, progress: &ReadProgress) -> io::Result<Self> {
        if !fs::metadata(&path)?.is_file() {
            progress.0.has_no_limit.store(true, Ordering::Relaxed);
        }
        let file = File::open(path)?;
        progress.advance();
        Ok(WatchedFile { file, progress: progress.clone() })
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// The errors of [`File::open`]; `InvalidInput` if the path is not a regular file.
    pub fn open_regular(path: impl AsRef<Path>, progress: &ReadProgress) -> io::Result<Self> {
        // Checked before opening: opening a pipe blocks until another process writes to it.
        if !fs::metadata(&path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        WatchedFile::open(path, progress)
    }

    /// Returns the metadata of the open file.
    ///
    /// # Errors
    /// The errors of [`File::metadata`].
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }
}

impl Read for WatchedFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(STEP_BYTES);
        let read = self.file.read(&mut buffer[..len]);
        self.progress.advance();
        read
    }
}

impl Seek for WatchedFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Reads up to `max_bytes` of a local file.
///
/// # Errors
/// The errors of [`run_watched`] and of the operating system.
pub fn read_file(path: impl AsRef<Path>, max_bytes: u64, timeout: Duration) -> io::Result<Vec<u8>> {
    let path = path.as_ref().to_owned();
    run_watched(timeout, move |progress| {
        let mut bytes = Vec::new();
        WatchedFile::open(&path, progress)?.take(max_bytes).read_to_end(&mut bytes)?;
        Ok(bytes)
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(400);

    #[test]
    fn a_call_without_progress_fails() {
        let (release, gate) = mpsc::channel::<()>();
        let error = run_watched(TIMEOUT, move |_| gate.recv().is_ok()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("no progress"), "{error}");
        drop(release);
        let error = run_watched::<()>(60 * TIMEOUT, |_| panic!("on purpose")).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
    }

    #[test]
    fn a_slow_call_with_progress_does_not_fail() {
        let slow = run_watched(TIMEOUT, |progress| {
            for _ in 0..40 {
                thread::sleep(TIMEOUT / 20);
                progress.advance();
            }
            7
        });
        assert_eq!(slow.unwrap(), 7);
    }

    #[test]
    fn a_file_is_read_up_to_the_limit() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "hello").unwrap();
        assert_eq!(read_file(file.path(), 9, TIMEOUT).unwrap(), b"hello");
        assert_eq!(read_file(file.path(), 2, TIMEOUT).unwrap(), b"he");
        let error = read_file(file.path().join("none"), 9, TIMEOUT).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }

    /// A pipe waits for its writer for longer than the time limit.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_pipe_has_no_time_limit() {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        let (reader, mut writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let late = thread::spawn(move || {
            thread::sleep(4 * TIMEOUT);
            writer.write_all(b"late")
        });
        assert_eq!(read_file(path, 9, TIMEOUT).unwrap(), b"late");
        late.join().unwrap().unwrap();
    }
}
