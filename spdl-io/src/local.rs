//! Files of this machine, by plain reads on threads of their own.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use spdl_core::{Error, ErrorKind, Result};

use crate::fetcher::{check_limit, check_version, past_the_end, range_len};
use crate::io_threads::IoThreads;
use crate::walk::{Walker, os_error};
use crate::{Body, Capability, Fetcher, Key, ObjectMeta, ReadRequest};

const LINGER: Duration = Duration::from_secs(10);

/// The length of the pieces of a body: long enough that the way through the threads costs little.
const PIECE: u64 = 1 << 20;

/// Reads files of this machine; keys are paths.
///
/// Reads block their thread: for microseconds in the page cache, for long on a cold disk or a
/// network file system. So they run on I/O threads that belong to this fetcher, named `spdl-io-N`.
/// Those start when they are needed, only as long as all others are busy and there are fewer than
/// [`DEFAULT_THREADS`](LocalFetcher::DEFAULT_THREADS) (or the number given); one that is idle for
/// 10 s ends. The futures wait for nothing but their answer, so any executor may poll them.
///
/// Dropping the fetcher cancels what was not started and joins the threads. A read that the
/// operating system does not give back within 200 ms, as from a network share that is gone, is left
/// to its thread, which ends with it.
///
/// A file is read as it is at that moment: one that grows or shrinks meanwhile gives what was
/// there. Symbolic links are followed. Devices and pipes are refused, since reading them may never
/// end.
///
/// A file's version is its length and the time of its last change, as exact as the file system keeps
/// it: what is written twice within one tick of that clock, at the same length, looks the same. A
/// body that is read piece by piece belongs to the file that was opened, though another may take its
/// name meanwhile; where the file itself changes, the body ends with `Changed`.
///
/// Listings are recursive, follow links to folders except into a loop, include hidden files, and
/// are gathered and sorted before the first line is out. More than 8 links to folders on one way,
/// or more than 100,000 folders to which links lead again, are `LimitExceeded`.
///
/// ```
/// use spdl_io::{Fetcher, Key, LocalFetcher};
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("greeting.txt");
/// # std::fs::write(&path, "hello world").unwrap();
/// let fetcher = LocalFetcher::new();
/// let key = Key::from_path(&path);
/// let bytes = spdl_core::block_on(fetcher.read(&key, Some(6..11)))?;
/// assert_eq!(bytes, "world");
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct LocalFetcher {
    threads: Arc<IoThreads>,
}

impl LocalFetcher {
    /// The most I/O threads of a fetcher, unless said otherwise.
    pub const DEFAULT_THREADS: usize = 8;

    /// A fetcher with up to [`DEFAULT_THREADS`](LocalFetcher::DEFAULT_THREADS) threads.
    pub fn new() -> Self {
        LocalFetcher::with_threads(LocalFetcher::DEFAULT_THREADS)
    }

    /// A fetcher with up to `max_threads` threads, at least one: so many reads are under way at
    /// once. More than the default pays off where each read waits long, as on network file systems.
    pub fn with_threads(max_threads: usize) -> Self {
        LocalFetcher { threads: Arc::new(IoThreads::new("spdl-io", max_threads, LINGER)) }
    }

    /// The most threads it uses.
    pub fn max_threads(&self) -> usize {
        self.threads.max_threads()
    }
}

impl Default for LocalFetcher {
    fn default() -> Self {
        LocalFetcher::new()
    }
}

#[async_trait]
impl Fetcher for LocalFetcher {
    fn capability(&self) -> Capability {
        Capability::default().with_ranges().with_list().with_versions().with_streams()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let key = key.clone();
        let work = move || match range {
            Some(range) => read_range(&key, range),
            None => read_whole(&key, u64::MAX),
        };
        self.threads.run(work).await
    }

    async fn read_at_most(&self, key: &Key, max_bytes: u64) -> Result<Bytes> {
        let key = key.clone();
        self.threads.run(move || read_whole(&key, max_bytes)).await
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let key = key.clone();
        self.threads
            .run(move || {
                let metadata = fs::metadata(key.to_path())
                    .map_err(|error| os_error("cannot look at this file", &key, error))?;
                check_file(&key, &metadata)?;
                Ok(ObjectMeta::new(key, metadata.len()).with_version(version(&metadata)))
            })
            .await
    }

    /// Opens the file once for all ranges.
    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (key, ranges) = (key.clone(), ranges.to_vec());
        self.threads
            .run(move || {
                let (mut file, metadata) = open(&key)?;
                let len = metadata.len();
                ranges.into_iter().map(|range| read_part(&key, &mut file, len, range)).collect()
            })
            .await
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let (key, request) = (key.clone(), request.clone());
        let opened = self.threads.run(move || OpenFile::open(key, request)).await?;
        let (size, version) = (opened.size, Arc::clone(&opened.version));
        // The body keeps the threads until it is read, though the fetcher may be gone.
        let threads = Arc::clone(&self.threads);
        let pieces = stream::try_unfold(opened, move |opened| {
            let threads = Arc::clone(&threads);
            async move {
                if opened.next == opened.end {
                    return Ok(None);
                }
                threads.run(move || opened.read_piece()).await.map(Some)
            }
        });
        Ok(Body::new(pieces.boxed()).with_size(size).with_version(version))
    }

    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        let prefix = prefix.clone();
        let objects = self.threads.run(move || list_folder(&prefix.to_path())).await?;
        Ok(stream::iter(objects.into_iter().map(Ok)).boxed())
    }
}

/// A file that is read piece by piece.
struct OpenFile {
    key: Key,
    file: File,
    size: u64,
    version: Arc<str>,
    next: u64,
    end: u64,
}

impl OpenFile {
    fn open(key: Key, request: ReadRequest) -> Result<Self> {
        let (file, metadata) = open(&key)?;
        let (size, version) = (metadata.len(), version(&metadata));
        check_version(&key, request.version.as_ref(), Some(&version))?;
        let (start, end) = (request.start, request.end.unwrap_or(size.max(request.start)));
        range_len(&key, &(start..end))?;
        if end > size {
            return Err(past_the_end(&key, start..end, size));
        }
        Ok(OpenFile { key, file, size, version, next: start, end })
    }

    fn read_piece(mut self) -> Result<(Bytes, Self)> {
        let range = self.next..self.end.min(self.next + PIECE);
        let piece = read_part(&self.key, &mut self.file, self.size, range.clone());
        let metadata = self.file.metadata();
        let metadata =
            metadata.map_err(|error| os_error("cannot look at this file", &self.key, error))?;
        check_version(&self.key, Some(&self.version), Some(&version(&metadata)))?;
        self.next = range.end;
        Ok((piece?, self))
    }
}

/// Length and time of the last change, in nanoseconds.
fn version(metadata: &fs::Metadata) -> Arc<str> {
    // What has no time of change is told apart by its length alone.
    let changed = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let (sign, distance) = match changed.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => ("", after),
        Err(before) => ("-", before.duration()),
    };
    format!("{}@{sign}{}", metadata.len(), distance.as_nanos()).into()
}

fn read_whole(key: &Key, max_bytes: u64) -> Result<Bytes> {
    let (file, metadata) = open(key)?;
    let len = metadata.len();
    check_limit(key, len, max_bytes)?;
    let mut bytes = reserve(key, len)?;
    // One byte past the limit is enough to see that a growing file has crossed it.
    let read = file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| os_error("cannot read this file", key, error))?;
    check_limit(key, bytes.len() as u64, max_bytes)?;
    Ok(bytes.into())
}

fn read_range(key: &Key, range: Range<u64>) -> Result<Bytes> {
    range_len(key, &range)?;
    let (mut file, metadata) = open(key)?;
    read_part(key, &mut file, metadata.len(), range)
}

/// A range of a file of `len` bytes.
fn read_part(key: &Key, file: &mut File, len: u64, range: Range<u64>) -> Result<Bytes> {
    let wanted = range_len(key, &range)?;
    if range.end > len {
        return Err(past_the_end(key, range, len));
    }
    let failed = |error| os_error("cannot read this file", key, error);
    let mut bytes = reserve(key, wanted)?;
    file.seek(SeekFrom::Start(range.start)).map_err(failed)?;
    let read = file.take(wanted).read_to_end(&mut bytes).map_err(failed)? as u64;
    if read < wanted {
        let end = range.start + read;
        return Err(past_the_end(key, range, end));
    }
    Ok(bytes.into())
}

/// Opens a regular file; tells its length and its time of change too.
fn open(key: &Key) -> Result<(File, fs::Metadata)> {
    let path = key.to_path();
    let failed = |error| os_error("cannot open this file", key, error);
    // Looked at before it is opened: opening a pipe would wait for somebody to write into it.
    check_file(key, &fs::metadata(&path).map_err(failed)?)?;
    let file = File::open(&path).map_err(failed)?;
    // Another file may have taken the name since.
    let metadata = file.metadata().map_err(failed)?;
    check_file(key, &metadata)?;
    Ok((file, metadata))
}

fn check_file(key: &Key, metadata: &fs::Metadata) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let message =
        if metadata.is_dir() { "this is a folder, not a file" } else { "not a regular file" };
    Err(Error::new(ErrorKind::InvalidArgument, message).with_key(key.display_name()))
}

/// Memory of just the length that the file claims. A claim that cannot be met (a sparse file of
/// petabytes) is an error, not an abort.
fn reserve(key: &Key, len: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let reserved = usize::try_from(len).ok().and_then(|len| bytes.try_reserve_exact(len).ok());
    reserved.map(|()| bytes).ok_or_else(|| {
        let message = format!("cannot get memory for {len} bytes");
        Error::new(ErrorKind::LimitExceeded, message).with_key(key.display_name())
    })
}

fn list_folder(root: &Path) -> Result<Vec<ObjectMeta>> {
    let mut objects = Vec::new();
    let walker = Walker::new(root, |_| true);
    for folder in walker.walk(vec![walker.root()?])?.into_iter().flatten() {
        for name in folder.files.iter() {
            let path = folder.path.join(Key::from_bytes(name).to_path());
            match fs::metadata(&path) {
                Ok(metadata) => {
                    let object = ObjectMeta::new(path.into(), metadata.len());
                    objects.push(object.with_version(version(&metadata)));
                }
                // Gone since, or a link to nowhere: there is no object of this name.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(os_error("cannot look at this file", &path.into(), error));
                }
            }
        }
    }
    objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(objects)
}
