//! [`MonitorSocket`]: serves statistics as JSON lines on a Unix socket.
//!
//! One thread serves all readers. It sleeps in `poll` until a reader connects, reads, or is due for a line. Writes
//! never block: a reader that does not read misses lines.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, Metadata, Permissions};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::observe::diagnosis::Diagnosis;
use crate::observe::interval::{Interval, RawSnapshot, Snapshotter};

/// Time between two lines for a reader.
const INTERVAL: Duration = Duration::from_secs(1);
/// Further readers get an error line.
const MAX_READERS: usize = 8;
/// Only the owner of the process may connect.
const OWNER_ONLY: u32 = 0o600;

/// Sockets of this process: process, device and inode. A forked child process has none of them.
static OWN_SOCKETS: Mutex<BTreeSet<(u32, SocketId)>> = Mutex::new(BTreeSet::new());
static NEXT_FOLDER: AtomicU64 = AtomicU64::new(0);

/// Device and inode of a socket file.
type SocketId = (u64, u64);

/// Takes a snapshot of the counters.
pub(crate) type Snapshot = Box<dyn Fn() -> RawSnapshot + Send>;

/// A Unix socket that serves statistics until it is dropped.
#[derive(Debug)]
pub(crate) struct MonitorSocket {
    path: PathBuf,
    id: SocketId,
    /// The process that opened the socket.
    process: u32,
    /// Shut down to stop the thread.
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl MonitorSocket {
    /// Opens a socket at `path`, and serves the intervals between snapshots.
    ///
    /// # Errors
    /// `InvalidArgument` if the path is too long for a socket, if another file is there, or if another process serves
    /// there. Any I/O error.
    pub(crate) fn open(path: &Path, snapshot: Snapshot) -> Result<Self> {
        check_free(path)?;
        let opened = || -> io::Result<MonitorSocket> {
            let (listener, id) = bind(path)?;
            let (stop, stopped) = UnixStream::pair()?;
            let mut socket = MonitorSocket {
                path: path.to_owned(),
                id,
                process: std::process::id(),
                stop,
                thread: None,
            };
            own_sockets(|own| own.insert((socket.process, id)));
            let server = Server { listener, stopped, snapshot, readers: Vec::new(), refused: None };
            let thread = std::thread::Builder::new().name("spdl-monitor".into());
            socket.thread = Some(thread.spawn(move || server.run())?);
            Ok(socket)
        };
        opened().map_err(|error| at_path(path, &error))
    }
}

impl Drop for MonitorSocket {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // The thread and the file belong to the parent process.
            return;
        }
        // Unlike closing, a shutdown also has an effect if a forked child process has a copy of the socket.
        let _ = self.stop.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // The panic message has already been printed.
            let _ = thread.join();
        }
        // A later pipeline of this process may have replaced the file.
        if std::fs::symlink_metadata(&self.path).is_ok_and(|file| socket_id(&file) == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
        own_sockets(|own| own.remove(&(self.process, self.id)));
    }
}

fn own_sockets<R>(use_them: impl FnOnce(&mut BTreeSet<(u32, SocketId)>) -> R) -> R {
    use_them(&mut OWN_SOCKETS.lock().unwrap_or_else(PoisonError::into_inner))
}

fn socket_id(file: &Metadata) -> SocketId {
    (file.dev(), file.ino())
}

fn at_path(path: &Path, error: &io::Error) -> Error {
    let message = match error.kind() {
        io::ErrorKind::InvalidInput => {
            "cannot open the monitor socket: the path is too long for a Unix socket; use a shorter one".to_owned()
        }
        _ => format!("cannot open the monitor socket: {error}"),
    };
    let kind = Error::from(io::Error::from(error.kind())).kind();
    Error::new(kind, message).with_key(path.display().to_string())
}

/// Checks that a socket file at `path` is of this process, or that no process serves it any more.
fn check_free(path: &Path) -> Result<()> {
    let file = match std::fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at_path(path, &error)),
    };
    let taken = |by: &str| {
        let message = format!("cannot open the monitor socket: {by}; use another path");
        Err(Error::new(ErrorKind::InvalidArgument, message).with_key(path.display().to_string()))
    };
    if !file.file_type().is_socket() {
        return taken("another file is there");
    }
    if own_sockets(|own| own.contains(&(std::process::id(), socket_id(&file)))) {
        return Ok(());
    }
    match UnixStream::connect(path) {
        Ok(_) => taken("another process serves its statistics there"),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(at_path(path, &error)),
    }
}

/// Binds a socket and moves it to `path`, where it replaces another socket.
///
/// The permissions of a new socket depend on the umask. Until they are set, the socket is in a folder that only the
/// owner can enter.
fn bind(path: &Path) -> io::Result<(UnixListener, SocketId)> {
    // A socket can be moved to a path that is too long for readers.
    SocketAddr::from_pathname(path)?;
    let number = NEXT_FOLDER.fetch_add(1, Ordering::Relaxed);
    let folder = path.with_file_name(format!(".{:x}-{number:x}", std::process::id()));
    DirBuilder::new().mode(0o700).create(&folder)?;
    let new = folder.join("s");
    let bound = || {
        let listener = UnixListener::bind(&new)?;
        listener.set_nonblocking(true)?;
        std::fs::set_permissions(&new, Permissions::from_mode(OWNER_ONLY))?;
        let id = socket_id(&std::fs::symlink_metadata(&new)?);
        std::fs::rename(&new, path)?;
        Ok((listener, id))
    };
    let bound = bound();
    if bound.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    let _ = std::fs::remove_dir(&folder);
    bound
}

/// One line of the protocol.
#[derive(Serialize)]
struct Line<'a> {
    pid: u32,
    /// Whether the pipeline has ended. No line follows.
    ended: bool,
    #[serde(flatten)]
    interval: &'a Interval,
    items_per_s: f64,
    data_readiness: f64,
    /// The diagnosis in words.
    diagnosis: String,
    /// The diagnosis as data.
    bottleneck: Diagnosis,
}

struct Server {
    listener: UnixListener,
    /// Readable after the pipeline has ended.
    stopped: UnixStream,
    snapshot: Snapshot,
    readers: Vec<Reader>,
    /// When the system last refused a connection, for example because the process has too many open files.
    refused: Option<Instant>,
}

/// A connected reader.
struct Reader {
    stream: UnixStream,
    intervals: Snapshotter,
    /// When the next line is due.
    due: Instant,
    /// The part of the last line that the reader has not received.
    unsent: Vec<u8>,
}

impl Server {
    fn run(mut self) {
        while self.wait() {
            self.accept();
            let now = Instant::now();
            let snapshot = &self.snapshot;
            self.readers.retain_mut(|reader| {
                if reader.due <= now {
                    reader.due = now + INTERVAL;
                    reader.add_line(snapshot, false);
                }
                reader.is_connected() && reader.send().is_ok()
            });
        }
        for reader in &mut self.readers {
            reader.add_line(&self.snapshot, true);
            let _ = reader.send();
            let _ = reader.stream.shutdown(Shutdown::Both);
        }
    }

    /// Sleeps until there is something to do. Returns false after the pipeline has ended.
    fn wait(&self) -> bool {
        let retry = self.refused.map(|refused| refused + INTERVAL);
        let mut sockets = vec![PollFd::new(&self.stopped, PollFlags::IN)];
        sockets.extend(self.readers.iter().map(|reader| {
            let unsent = !reader.unsent.is_empty();
            let write = if unsent { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::new(&reader.stream, PollFlags::IN | write)
        }));
        if retry.is_none() {
            sockets.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let due = self.readers.iter().map(|reader| reader.due).chain(retry).min();
        let timeout = due.and_then(|due| {
            let left = due.saturating_duration_since(Instant::now());
            // Rounded up, so that a line is due after the timeout.
            Timespec::try_from(left + Duration::from_millis(1)).ok()
        });
        // If a signal interrupts the call, no event is set.
        let _ = poll(&mut sockets, timeout.as_ref());
        sockets.first().is_some_and(|stopped| stopped.revents().is_empty())
    }

    fn accept(&mut self) {
        self.refused = self.refused.filter(|refused| refused.elapsed() < INTERVAL);
        if self.refused.is_some() {
            return;
        }
        loop {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    // Without a pause, `poll` would return immediately.
                    self.refused = Some(Instant::now());
                    return;
                }
            };
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.readers.len() >= MAX_READERS {
                let line =
                    format!("{{\"error\":\"{MAX_READERS} readers are connected already\"}}\n");
                let _ = stream.write_all(line.as_bytes());
                continue;
            }
            let (intervals, due) = (Snapshotter::default(), Instant::now());
            self.readers.push(Reader { stream, intervals, due, unsent: Vec::new() });
        }
    }
}

impl Reader {
    /// Adds a line, unless the reader has not received the last one. The first line covers the time since the start of
    /// the pipeline, and each other line the time since the line before.
    fn add_line(&mut self, snapshot: &Snapshot, ended: bool) {
        if !self.unsent.is_empty() {
            return;
        }
        let interval = self.intervals.interval(snapshot());
        let bottleneck = interval.diagnose();
        let line = Line {
            pid: std::process::id(),
            ended,
            items_per_s: interval.items_per_second(),
            data_readiness: interval.data_readiness(),
            diagnosis: bottleneck.to_string(),
            bottleneck,
            interval: &interval,
        };
        if serde_json::to_writer(&mut self.unsent, &line).is_ok() {
            self.unsent.push(b'\n');
        } else {
            // Serialisation to memory fails only because of a bug. A part of a line would be invalid.
            self.unsent.clear();
        }
    }

    /// Sends as much as the reader can receive without a wait.
    fn send(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the reader is connected. Bytes that it has sent are ignored.
    fn is_connected(&mut self) -> bool {
        let mut ignored = [0; 256];
        match self.stream.read(&mut ignored) {
            Ok(received) => received > 0,
            Err(error) => {
                matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::budget::MemoryStatistics;
    use crate::observe::statistics::ConsumerMeter;
    use serde_json::Value;
    use std::io::{BufRead, BufReader};
    use std::sync::Arc;

    /// A socket in a temporary folder, and the number of snapshots so far.
    struct Served {
        socket: MonitorSocket,
        snapshots: Arc<AtomicU64>,
        folder: tempfile::TempDir,
    }

    fn snapshots(count: &Arc<AtomicU64>) -> Snapshot {
        let (count, start) = (Arc::clone(count), Instant::now());
        let consumer = ConsumerMeter::default();
        Box::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
            consumer.delivered(Duration::from_millis(1), start.elapsed());
            RawSnapshot {
                setting_names: Default::default(),
                pipeline: 3,
                elapsed: start.elapsed(),
                threads: 1,
                cpus: 1,
                workers: None,
                event_loop: None,
                gil: None,
                stages: Vec::new(),
                queues: Vec::new(),
                consumer: consumer.raw(),
                memory: MemoryStatistics::default(),
                dropped: 0,
                left_out: 0,
            }
        })
    }

    fn serve() -> Served {
        let folder = tempfile::tempdir().unwrap();
        let count = Arc::default();
        let socket = MonitorSocket::open(&folder.path().join("m"), snapshots(&count)).unwrap();
        Served { socket, snapshots: count, folder }
    }

    fn lines(path: &Path) -> impl Iterator<Item = Value> + use<> {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        BufReader::new(stream).lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap())
    }

    #[test]
    fn readers_get_a_line_at_the_connection_in_each_interval_and_at_the_end() {
        let Served { socket, folder, .. } = serve();
        let mut first = lines(&socket.path);
        let line = first.next().unwrap();
        assert_eq!(line["pid"], std::process::id());
        assert_eq!(
            (&line["pipeline"], &line["number"], &line["ended"]),
            (&3.into(), &0.into(), &false.into())
        );
        assert_eq!(line["consumer"]["items"], 1);
        assert_eq!((&line["started_after_s"], &line["dropped"]), (&0.0.into(), &0.into()));
        assert!(line["diagnosis"].is_string() && line["bottleneck"]["limit"].is_object(), "{line}");
        let line = first.next().unwrap();
        assert_eq!((&line["number"], &line["consumer"]["items"]), (&1.into(), &1.into()));
        let length = line["length_s"].as_f64().unwrap();
        assert!((0.9..30.0).contains(&length), "{length}");

        let mut second = lines(&socket.path);
        assert_eq!(second.next().unwrap()["started_after_s"], 0.0);
        drop(socket);
        for reader in [first, second] {
            assert_eq!(reader.last().unwrap()["ended"], true);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file is removed");
    }

    #[test]
    fn only_the_owner_may_connect() {
        let served = serve();
        let file = std::fs::symlink_metadata(&served.socket.path).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(served.folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn without_readers_no_snapshot_is_taken() {
        let served = serve();
        std::thread::sleep(INTERVAL + INTERVAL / 4);
        assert_eq!(served.snapshots.load(Ordering::Relaxed), 0);
        drop(lines(&served.socket.path).next());
        // The disconnected reader causes no further snapshots.
        std::thread::sleep(INTERVAL * 2 + INTERVAL / 4);
        assert_eq!(served.snapshots.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_reader_that_does_not_read_misses_lines_and_is_no_burden() {
        let Served { socket, folder: _folder, .. } = serve();
        let (to_reader, _reader) = UnixStream::pair().unwrap();
        to_reader.set_nonblocking(true).unwrap();
        let (count, now) = (Arc::default(), Instant::now());
        let intervals = Snapshotter::default();
        let mut slow = Reader { stream: to_reader, intervals, due: now, unsent: Vec::new() };
        let snapshot = snapshots(&count);
        for _ in 0..10_000 {
            slow.add_line(&snapshot, false);
            slow.send().unwrap();
        }
        let made = count.load(Ordering::Relaxed);
        assert!(made < 10_000, "lines are skipped");
        assert!(!slow.unsent.is_empty() && slow.unsent.len() < 10_000, "at most one line waits");
        // A connected reader that does not read delays neither others nor the end.
        let _idle = UnixStream::connect(&socket.path).unwrap();
        assert!(lines(&socket.path).next().is_some());
    }

    #[test]
    fn the_number_of_readers_is_bounded() {
        let Served { socket, folder: _folder, .. } = serve();
        let mut readers: Vec<_> = (0..MAX_READERS).map(|_| lines(&socket.path)).collect();
        assert!(
            readers.iter_mut().all(|reader| reader.next().is_some_and(|line| line["pid"].is_u64()))
        );
        let mut refused = lines(&socket.path);
        assert_eq!(refused.next().unwrap()["error"], "8 readers are connected already");
        assert!(refused.next().is_none());
        drop(readers.pop());
        // The server notices the end of the connection before it accepts the next one, or shortly after.
        let deadline = Instant::now() + Duration::from_secs(30);
        while lines(&socket.path).next().unwrap()["error"].is_string() {
            assert!(Instant::now() < deadline);
        }
    }

    #[test]
    fn a_stale_socket_is_replaced_and_any_other_file_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let count = Arc::default();
        let open = || MonitorSocket::open(&path, snapshots(&count));
        std::fs::write(&path, "data").unwrap();
        let error = open().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("another file is there"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"data");

        std::fs::remove_file(&path).unwrap();
        // As in a process that was killed.
        drop(UnixListener::bind(&path).unwrap());
        drop(open().unwrap());
        assert!(!path.exists());

        let other = UnixListener::bind(&path).unwrap();
        let error = open().unwrap_err();
        assert!(error.to_string().contains("another process serves"), "{error}");
        drop(other);

        let error =
            MonitorSocket::open(&folder.path().join("no/m"), snapshots(&count)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let long = folder.path().join("m".repeat(120));
        let error = MonitorSocket::open(&long, snapshots(&count)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("too long"), "{error}");
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "only the socket of the other process: {left:?}");
    }

    #[test]
    fn the_last_pipeline_of_a_process_has_the_path() {
        let Served { socket: first, folder, .. } = serve();
        let mut of_first = lines(&first.path);
        assert!(of_first.next().is_some());
        let count = Arc::default();
        let second = MonitorSocket::open(&first.path, snapshots(&count)).unwrap();
        assert!(of_first.next().is_some(), "the first one is served until its end");
        drop(first);
        assert!(of_first.last().is_some_and(|line| line["ended"] == true));
        assert!(lines(&second.path).next().is_some());
        drop(second);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
