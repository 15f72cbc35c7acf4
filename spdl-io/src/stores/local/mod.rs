//! [`LocalFetcher`]: reads local files, inline from the page cache or on I/O threads.
//!
//! | file | what |
//! |---|---|
//! | this file | the fetcher, and blocking reads |
//! | `page_cache` | reads that do not block, on the calling thread |
//! | `read_buffers` | pool of buffers |

mod page_cache;
mod read_buffers;

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::future::Either;
use futures_util::{StreamExt, stream};
use spdl_core::{Error, ErrorKind, Result};

use self::page_cache::{FileStamp, PageCacheReader};
use self::read_buffers::ReadBuffers;
use crate::fetch::coalesce::{CoalescedRange, coalesce};
use crate::fetch::{
    Body, Capability, Fetcher, Key, ObjectBuffer, ObjectMeta, ReadMemory, ReadRequest, check_limit,
    check_version, past_the_end, range_len, read_whole_or_range,
};
use crate::files::{IoThreads, ReadProgress, Walker, open_files, os_error};

/// Time after which an idle I/O thread ends.
const LINGER: Duration = Duration::from_secs(10);

/// Chunk size of a streamed body, in bytes. Large chunks amortize the cost of switching threads.
const CHUNK_BYTES: u64 = 1 << 20;

/// Largest gap in bytes between ranges that one read covers, such as the members of a tar sample.
const RANGE_GAP: u64 = 4 << 10;
/// Largest size in bytes of a read that covers several ranges.
const MAX_COALESCED_BYTES: u64 = 1 << 20;

/// Reads local files. Keys are paths.
///
/// On Linux, files below 256 KiB, and ranges of up to 256 KiB in total, are read on the calling
/// thread if they are in the page cache of a local file system. Such a read takes less time than a
/// switch between threads. After a miss, up to 1,024 reads do not try the page cache. Streams
/// ([`open`](Fetcher::open)) and all other reads run on I/O threads named `spdl-io-N`. These
/// threads start on demand, up to [`DEFAULT_THREADS`](LocalFetcher::DEFAULT_THREADS) or the given
/// number, and end after 10 s without work. Any executor can poll the futures.
///
/// On Linux, up to 16 files stay open after partial reads. If the process reaches its limit of open
/// files, the fetcher closes these files. A read then waits for a free descriptor, and fails with
/// `Unavailable` after 2 s.
///
/// Dropping the fetcher and all its streams cancels queued reads and joins the threads. If a read
/// does not return within 200 ms, for example from a disconnected network share, its thread is
/// detached.
///
/// Buffers of 4 KiB to 1 MiB are recycled. At most 8 MiB of them stay allocated while unused.
/// Ranges at most 4 KiB apart are read together, up to 1 MiB. Their memory is released when all
/// ranges of such a read are dropped.
///
/// Reads return the current content of the file. Symbolic links are followed. Devices and pipes
/// are rejected with `InvalidArgument`, because reading them may never end.
///
/// The version of a file is its size and modification time. Two writes of the same size within
/// the resolution of the file system's clock have the same version. A streamed body continues to
/// read the file that was opened, even if another file takes its name. If that file is modified,
/// the body ends with `Changed`.
///
/// Listings are recursive and sorted, and include hidden files. They follow symbolic links to
/// folders, except in loops. More than 8 nested links, and more than 100,000 repeated visits of
/// folders through links, fail with `LimitExceeded`. The whole listing is collected before the
/// stream yields its first entry.
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
    stall_timeout: Duration,
    buffers: Arc<ReadBuffers>,
    /// `None` if all reads run on I/O threads.
    page_cache: Option<Arc<PageCacheReader>>,
}

impl LocalFetcher {
    /// Default for the maximum number of I/O threads: 8.
    pub const DEFAULT_THREADS: usize = 8;

    /// Default time after which a read without progress fails: 60 s. Servers of network file
    /// systems may need this time to restart.
    pub const STALL_TIMEOUT: Duration = Duration::from_secs(60);

    /// Creates a fetcher with up to [`DEFAULT_THREADS`](LocalFetcher::DEFAULT_THREADS) threads.
    pub fn new() -> Self {
        LocalFetcher::with_threads(LocalFetcher::DEFAULT_THREADS)
    }

    /// Creates a fetcher with up to `max_threads` I/O threads, at least 1 (0 counts as 1).
    ///
    /// The number bounds the concurrent reads on I/O threads. Values above the default help on
    /// network file systems, where each read has a high latency.
    pub fn with_threads(max_threads: usize) -> Self {
        LocalFetcher {
            threads: Arc::new(IoThreads::new("spdl-io", max_threads, LINGER)),
            stall_timeout: LocalFetcher::STALL_TIMEOUT,
            buffers: Arc::default(),
            page_cache: Some(Arc::default()),
        }
    }

    /// Performs all reads on I/O threads, so that the calling thread copies no data.
    #[must_use]
    pub fn without_inline_reads(mut self) -> Self {
        self.page_cache = None;
        self
    }

    /// Sets the time after which a read without progress fails with `Timeout`: no 4 MiB, or rest of
    /// the file, arrived within this time. Default: [`STALL_TIMEOUT`](LocalFetcher::STALL_TIMEOUT).
    ///
    /// The system call cannot be cancelled, so its thread remains until the call returns.
    #[must_use]
    pub fn with_stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = timeout;
        self
    }

    /// Returns the maximum number of I/O threads.
    pub fn max_threads(&self) -> usize {
        self.threads.max_threads()
    }
}

impl LocalFetcher {
    /// Runs a call on an I/O thread.
    async fn run<T: Send + 'static>(
        &self,
        key: &Key,
        call: impl FnOnce(&ReadProgress) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        named(key, self.threads.run_within(self.stall_timeout, call).await)
    }
}

/// Adds the key to an error of the threads.
fn named<T>(key: &Key, result: Result<T>) -> Result<T> {
    result.map_err(|error| match error.key() {
        Some(_) => error,
        None => error.with_key(key.display_name()),
    })
}

impl Default for LocalFetcher {
    fn default() -> Self {
        LocalFetcher::new()
    }
}

#[async_trait]
impl Fetcher for LocalFetcher {
    fn capability(&self) -> Capability {
        Capability::default().with_ranges().with_list().with_local_versions().with_streams()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        read_whole_or_range(self, key, range).await
    }

    async fn read_whole(&self, key: &Key, memory: &dyn ReadMemory) -> Result<Bytes> {
        if let Some(page_cache) = &self.page_cache
            && let Some(bytes) = page_cache.whole(key, memory, &self.buffers).await
        {
            return Ok(bytes);
        }
        let (max_bytes, reserved) = (memory.max_bytes(), memory.reserved_bytes());
        let (file_key, cached_files) = (key.clone(), self.page_cache.clone());
        let buffers = Arc::clone(&self.buffers);
        let begin = move |progress: &ReadProgress| {
            let file = WholeFile::open(file_key, max_bytes, buffers, cached_files.as_deref())?;
            // Saves a second hand-over to an I/O thread.
            if file.size <= reserved {
                file.read(progress).map(Either::Left)
            } else {
                Ok(Either::Right(file))
            }
        };
        let file = match self.run(key, begin).await? {
            Either::Left(bytes) => return Ok(bytes),
            Either::Right(file) => file,
        };
        memory.reserve(file.size).await;
        self.run(key, move |progress| file.read(progress)).await
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let known = self.page_cache.as_ref().and_then(|it| it.stat(key));
        if let Some(FileStamp { size, changed }) = known {
            return Ok(ObjectMeta::new(key.clone(), size).with_version(version_of(size, changed)));
        }
        let owned_key = key.clone();
        let stat = move |_: &ReadProgress| {
            let metadata = fs::metadata(owned_key.to_path())
                .map_err(|error| os_error("cannot read file metadata", &owned_key, error))?;
            check_file(&owned_key, &metadata)?;
            Ok(ObjectMeta::new(owned_key, metadata.len()).with_version(version(&metadata)))
        };
        self.run(key, stat).await
    }

    /// Reads ranges of one version of the file.
    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        Ok(self.read_version(key, ranges, None, None).await?.0)
    }

    /// Opens the file once for all ranges, and reads nearby ranges together.
    async fn read_version(
        &self,
        key: &Key,
        ranges: &[Range<u64>],
        wanted: Option<&Arc<str>>,
        // A version contains the size.
        _: Option<u64>,
    ) -> Result<(Vec<Bytes>, Option<Arc<str>>)> {
        for range in ranges {
            range_len(key, range)?;
        }
        let joined = coalesce(ranges, RANGE_GAP, MAX_COALESCED_BYTES);
        let page_cache = self.page_cache.as_ref();
        if let Some((bytes, stamp)) =
            page_cache.and_then(|it| it.parts(key, &joined, &self.buffers))
        {
            let version = version_of(stamp.size, stamp.changed);
            check_version(key, wanted, Some(&version))?;
            return Ok((split_ranges(ranges, &joined, &bytes), Some(version)));
        }
        let (owned_key, ranges, wanted) = (key.clone(), ranges.to_vec(), wanted.cloned());
        let (buffers, cached_files) = (Arc::clone(&self.buffers), self.page_cache.clone());
        let read = move |progress: &ReadProgress| {
            let cached_files = cached_files.as_deref();
            let (file, found) = open_version(&owned_key, wanted.as_ref(), cached_files)?;
            read_parts(&owned_key, (file, found), &ranges, &joined, &buffers, progress)
        };
        self.run(key, read).await
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let (owned_key, request) = (key.clone(), request.clone());
        let (buffers, cached_files) = (Arc::clone(&self.buffers), self.page_cache.clone());
        let open = move |_: &ReadProgress| {
            StreamedFile::open(owned_key, request, buffers, cached_files.as_deref())
        };
        let opened = self.run(key, open).await?;
        let (size, version) = (opened.size, Arc::clone(&opened.version));
        // The stream keeps the threads alive, even if the fetcher is dropped.
        let (threads, timeout) = (Arc::clone(&self.threads), self.stall_timeout);
        let pieces = stream::try_unfold(opened, move |opened| {
            let threads = Arc::clone(&threads);
            async move {
                if opened.next == opened.end {
                    return Ok(None);
                }
                let key = opened.key.clone();
                let read = move |progress: &ReadProgress| opened.read_chunk(progress);
                named(&key, threads.run_within(timeout, read).await).map(Some)
            }
        });
        Ok(Body::new(pieces.boxed()).with_size(size).with_version(version))
    }

    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        let path = prefix.to_path().into_owned();
        let objects = self.run(prefix, move |progress| list_folder(&path, progress)).await?;
        Ok(stream::iter(objects.into_iter().map(Ok)).boxed())
    }
}

/// An open file that is streamed in chunks.
struct StreamedFile {
    key: Key,
    file: File,
    buffers: Arc<ReadBuffers>,
    size: u64,
    version: Arc<str>,
    next: u64,
    end: u64,
}

impl StreamedFile {
    fn open(
        key: Key,
        request: ReadRequest,
        buffers: Arc<ReadBuffers>,
        cached_files: Option<&PageCacheReader>,
    ) -> Result<Self> {
        let (file, metadata) = open(&key, cached_files)?;
        let (size, version) = (metadata.len(), version(&metadata));
        check_version(&key, request.version.as_ref(), Some(&version))?;
        let (start, mut end) = (request.start, request.end.unwrap_or(size.max(request.start)));
        if request.clamps_end {
            end = end.min(size.max(start));
        }
        range_len(&key, &(start..end))?;
        if end > size {
            return Err(past_the_end(&key, start..end, size));
        }
        Ok(StreamedFile { key, file, buffers, size, version, next: start, end })
    }

    fn read_chunk(mut self, progress: &ReadProgress) -> Result<(Bytes, Self)> {
        let range = self.next..self.end.min(self.next + CHUNK_BYTES);
        let (key, size) = (&self.key, self.size);
        let piece = read_part(key, &self.file, size, range.clone(), &self.buffers, progress);
        check_unchanged(&self.key, &self.file, &self.version)?;
        self.next = range.end;
        Ok((piece?, self))
    }
}

/// Returns the version of a file: size in bytes and modification time in nanoseconds.
fn version(metadata: &fs::Metadata) -> Arc<str> {
    // Without a modification time, the size alone distinguishes versions.
    let changed = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let nanoseconds = match changed.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    };
    version_of(metadata.len(), nanoseconds)
}

fn version_of(size: u64, changed: i128) -> Arc<str> {
    format!("{size}@{changed}").into()
}

/// An open file that is read whole.
struct WholeFile {
    key: Key,
    file: File,
    buffers: Arc<ReadBuffers>,
    size: u64,
    version: Arc<str>,
    max_bytes: u64,
}

impl WholeFile {
    fn open(
        key: Key,
        max_bytes: u64,
        buffers: Arc<ReadBuffers>,
        cached_files: Option<&PageCacheReader>,
    ) -> Result<Self> {
        let (file, metadata) = open(&key, cached_files)?;
        let (size, version) = (metadata.len(), version(&metadata));
        check_limit(&key, size, max_bytes)?;
        Ok(WholeFile { key, file, buffers, size, version, max_bytes })
    }

    fn read(self, progress: &ReadProgress) -> Result<Bytes> {
        let WholeFile { key, file, buffers, size, version, max_bytes } = self;
        let bytes = read_up_to(&key, &file, size, &buffers, progress)?;
        // Files of procfs have content, but a size of 0, and their modification time is the current
        // time.
        if size > 0 {
            check_unchanged(&key, &file, &version)?;
        }
        if (bytes.len() as u64) < size {
            return Ok(bytes);
        }
        // One byte past the limit detects a growing file that exceeds the limit.
        let (mut more, limit) = (Vec::new(), (max_bytes - size).saturating_add(1));
        let read = Steps { file: &file, progress }.take(limit).read_to_end(&mut more);
        read.map_err(|error| os_error("cannot read file", &key, error))?;
        if more.is_empty() {
            return Ok(bytes);
        }
        check_limit(&key, size + more.len() as u64, max_bytes)?;
        Ok([&bytes[..], &more].concat().into())
    }
}

/// Opens a file, and compares its version with the required one.
fn open_version(
    key: &Key,
    wanted: Option<&Arc<str>>,
    cached_files: Option<&PageCacheReader>,
) -> Result<(File, fs::Metadata)> {
    let (file, metadata) = open(key, cached_files)?;
    check_version(key, wanted, Some(&version(&metadata)))?;
    Ok((file, metadata))
}

fn read_parts(
    key: &Key,
    (file, metadata): (File, fs::Metadata),
    ranges: &[Range<u64>],
    joined: &[CoalescedRange],
    buffers: &ReadBuffers,
    progress: &ReadProgress,
) -> Result<(Vec<Bytes>, Option<Arc<str>>)> {
    let (len, found) = (metadata.len(), version(&metadata));
    for range in ranges {
        check_range(key, len, range)?;
    }
    let read = joined
        .iter()
        .map(|joined| read_part(key, &file, len, joined.range.clone(), buffers, progress))
        .collect::<Result<Vec<_>>>()?;
    check_unchanged(key, &file, &found)?;
    Ok((split_ranges(ranges, joined, &read), Some(found)))
}

/// Returns `Changed` if a file was modified during a read.
fn check_unchanged(key: &Key, file: &File, before: &Arc<str>) -> Result<()> {
    let metadata =
        file.metadata().map_err(|error| os_error("cannot read file metadata", key, error))?;
    check_version(key, Some(before), Some(&version(&metadata)))
}

/// Extracts the original ranges from the coalesced reads.
fn split_ranges(ranges: &[Range<u64>], joined: &[CoalescedRange], read: &[Bytes]) -> Vec<Bytes> {
    let mut parts = vec![Bytes::new(); ranges.len()];
    for (joined, bytes) in joined.iter().zip(read) {
        let start = joined.range.start;
        for &index in &joined.members {
            let Range { start: from, end } = ranges[index];
            // The range lies within the bytes read, which fit into memory.
            parts[index] = bytes.slice((from - start) as usize..(end - start) as usize);
        }
    }
    parts
}

/// Returns the length of a range after checking that it lies within a file of `len` bytes.
fn check_range(key: &Key, len: u64, range: &Range<u64>) -> Result<u64> {
    let wanted = range_len(key, range)?;
    if range.end > len { Err(past_the_end(key, range.clone(), len)) } else { Ok(wanted) }
}

/// Reads a range of a file of `len` bytes.
fn read_part(
    key: &Key,
    mut file: &File,
    len: u64,
    range: Range<u64>,
    buffers: &ReadBuffers,
    progress: &ReadProgress,
) -> Result<Bytes> {
    let wanted = check_range(key, len, &range)?;
    let failed = |error| os_error("cannot read file", key, error);
    file.seek(SeekFrom::Start(range.start)).map_err(failed)?;
    let bytes = read_up_to(key, file, wanted, buffers, progress)?;
    let read = bytes.len() as u64;
    if read < wanted {
        let end = range.start + read;
        return Err(past_the_end(key, range, end));
    }
    Ok(bytes)
}

/// Reads the next `wanted` bytes of a file, or fewer at its end.
fn read_up_to(
    key: &Key,
    file: &File,
    wanted: u64,
    buffers: &ReadBuffers,
    progress: &ReadProgress,
) -> Result<Bytes> {
    let mut file = Steps { file, progress };
    let failed = |error| os_error("cannot read file", key, error);
    let buffer = usize::try_from(wanted).ok().and_then(|wanted| buffers.take(wanted));
    if let Some(mut buffer) = buffer {
        let read = fill(&mut file, buffer.bytes_mut()).map_err(failed)?;
        return Ok(buffer.into_bytes(read));
    }
    let cannot_allocate = |source: io::Error| {
        let message = format!("cannot allocate {wanted} bytes");
        let error = Error::new(ErrorKind::LimitExceeded, message).with_source(source);
        error.with_key(key.display_name())
    };
    let len =
        usize::try_from(wanted).map_err(|_| cannot_allocate(io::ErrorKind::OutOfMemory.into()))?;
    // Fails for example for a sparse file of petabytes.
    let mut buffer = ObjectBuffer::zeroed(len).map_err(cannot_allocate)?;
    let read = fill(&mut file, buffer.bytes_mut()).map_err(failed)?;
    Ok(buffer.into_bytes(read))
}

/// Reads a file in steps, each of which counts as progress.
struct Steps<'a> {
    file: &'a File,
    progress: &'a ReadProgress,
}

/// Maximum number of bytes of a step.
const STEP_BYTES: usize = 4 << 20;

impl Read for Steps<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(STEP_BYTES);
        let read = self.file.read(&mut buffer[..len]);
        self.progress.advance();
        read
    }
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes read.
fn fill(file: &mut Steps<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let mut at = 0;
    while at < buffer.len() {
        match file.read(&mut buffer[at..]) {
            Ok(0) => break,
            Ok(read) => at += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(at)
}

/// Opens a regular file and returns its metadata.
///
/// If too many files are open, the cached files are closed.
fn open(key: &Key, cached_files: Option<&PageCacheReader>) -> Result<(File, fs::Metadata)> {
    let path = key.to_path();
    let failed = |error| os_error("cannot open file", key, error);
    // Checked before opening: opening a pipe blocks until another process writes to it.
    check_file(key, &fs::metadata(&path).map_err(failed)?)?;
    let close_cached = || cached_files.into_iter().for_each(PageCacheReader::close_all);
    let file = open_files::open_with_retries(|| File::open(&path), close_cached).map_err(failed)?;
    // Checked again, because another file may have replaced the first one.
    let metadata = file.metadata().map_err(failed)?;
    check_file(key, &metadata)?;
    Ok((file, metadata))
}

fn check_file(key: &Key, metadata: &fs::Metadata) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let message =
        if metadata.is_dir() { "expected a file, found a folder" } else { "not a regular file" };
    Err(Error::new(ErrorKind::InvalidArgument, message).with_key(key.display_name()))
}

fn list_folder(root: &Path, progress: &ReadProgress) -> Result<Vec<ObjectMeta>> {
    let mut objects = Vec::new();
    let walker = Walker::new(root, |_| {
        progress.advance();
        true
    });
    for folder in walker.walk(vec![walker.root()?])?.into_iter().flatten() {
        for name in folder.files.iter() {
            progress.advance();
            let path = folder.path.join(Key::from_bytes(name).to_path());
            match fs::metadata(&path) {
                Ok(metadata) => {
                    let object = ObjectMeta::new(path.into(), metadata.len());
                    objects.push(object.with_version(version(&metadata)));
                }
                // The file was removed meanwhile, or is a broken link.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(os_error("cannot read file metadata", &path.into(), error));
                }
            }
        }
    }
    objects.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    Ok(objects)
}
