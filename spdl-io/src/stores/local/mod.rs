//! Files of this machine, by plain reads: at once where they are in memory, else on threads of their own.

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
use futures_util::{StreamExt, stream};
use spdl_core::{Error, ErrorKind, Result};

use self::page_cache::{FileStamp, ReadAtOnce};
use self::read_buffers::ReadBuffers;
use crate::fetch::coalesce::{Joined, join};
use crate::fetch::{
    Body, Capability, Fetcher, Key, ObjectMeta, ReadRequest, check_limit, check_version,
    past_the_end, range_len,
};
use crate::files::{IoThreads, Walker, open_files, os_error};

const LINGER: Duration = Duration::from_secs(10);

/// The length of the pieces of a body: long enough that the way through the threads costs little.
const PIECE: u64 = 1 << 20;

/// Ranges with no more than so many bytes between them are read as one, as the members of a sample in
/// a tar archive: that is less than another call costs.
const RANGE_GAP: u64 = 4 << 10;
/// Ranges are joined up to so many bytes.
const RANGE_LIMIT: u64 = 1 << 20;

/// Reads files of this machine; keys are paths.
///
/// What Linux has of a disk in memory, less than 256 KiB, is read at once, on the thread that asks: that
/// takes less than handing it on. For parts, up to 16 files stay open, until others take their places or
/// the fetcher is dropped. Where this process has as many files open as it may, those are closed, and
/// a read waits up to 2 s for another one; then it is `Unavailable`.
///
/// Everything else may wait for long, for a cold disk or a network file system, and so runs on I/O
/// threads that belong to this fetcher, named `spdl-io-N`. Those start when they are needed, only as long as all others are busy and there are fewer than
/// [`DEFAULT_THREADS`](LocalFetcher::DEFAULT_THREADS) (or the number given); one that is idle for
/// 10 s ends. The futures wait for nothing but their answer, so any executor may poll them.
///
/// Dropping the fetcher cancels what was not started and joins the threads. A read that the
/// operating system does not give back within 200 ms, as from a network share that is gone, is left
/// to its thread, which ends with it.
///
/// Memory is used again: reads of 4 KiB to 1 MiB keep theirs for later ones, up to 8 MiB while nobody
/// uses it. Ranges with at most 4 KiB between them are read as one, of up to 1 MiB, whose memory stays
/// as long as any of its parts.
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
    buffers: Arc<ReadBuffers>,
    /// `None` where all is left to the threads.
    at_once: Option<Arc<ReadAtOnce>>,
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
        LocalFetcher {
            threads: Arc::new(IoThreads::new("spdl-io", max_threads, LINGER)),
            buffers: Arc::default(),
            at_once: Some(Arc::default()),
        }
    }

    /// Reads nothing on the thread that asks: where that must not even copy what is in memory.
    #[must_use]
    pub fn on_threads_alone(mut self) -> Self {
        self.at_once = None;
        self
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
        Capability::default().with_ranges().with_list().with_local_versions().with_streams()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let Some(range) = range else { return self.read_at_most(key, u64::MAX).await };
        let mut parts = self.read_ranges(key, &[range]).await?;
        parts.pop().ok_or_else(|| Error::new(ErrorKind::Internal, "a part of a file is lost"))
    }

    async fn read_at_most(&self, key: &Key, max_bytes: u64) -> Result<Bytes> {
        let at_once = self.at_once.as_ref();
        if let Some(bytes) = at_once.and_then(|it| it.whole(key, max_bytes, &self.buffers)) {
            return Ok(bytes);
        }
        let (key, buffers) = (key.clone(), Arc::clone(&self.buffers));
        let kept = self.at_once.clone();
        self.threads.run(move || read_whole(&key, max_bytes, &buffers, kept.as_deref())).await
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let known = self.at_once.as_ref().and_then(|it| it.stat(key));
        if let Some(FileStamp { size, changed }) = known {
            return Ok(ObjectMeta::new(key.clone(), size).with_version(version_of(size, changed)));
        }
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

    /// Opens the file once for all ranges, and reads those that lie near each other as one.
    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        for range in ranges {
            range_len(key, range)?;
        }
        let joined = join(ranges, RANGE_GAP, RANGE_LIMIT);
        let at_once = self.at_once.as_ref();
        if let Some(bytes) = at_once.and_then(|it| it.parts(key, &joined, &self.buffers)) {
            return Ok(divided(ranges, &joined, &bytes));
        }
        let (key, ranges, buffers) = (key.clone(), ranges.to_vec(), Arc::clone(&self.buffers));
        let kept = self.at_once.clone();
        let read = move || read_parts(&key, &ranges, &joined, &buffers, kept.as_deref());
        self.threads.run(read).await
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let (key, request) = (key.clone(), request.clone());
        let (buffers, kept) = (Arc::clone(&self.buffers), self.at_once.clone());
        let open = move || OpenFile::open(key, request, buffers, kept.as_deref());
        let opened = self.threads.run(open).await?;
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
    buffers: Arc<ReadBuffers>,
    size: u64,
    version: Arc<str>,
    next: u64,
    end: u64,
}

impl OpenFile {
    fn open(
        key: Key,
        request: ReadRequest,
        buffers: Arc<ReadBuffers>,
        kept: Option<&ReadAtOnce>,
    ) -> Result<Self> {
        let (file, metadata) = open(&key, kept)?;
        let (size, version) = (metadata.len(), version(&metadata));
        check_version(&key, request.version.as_ref(), Some(&version))?;
        let (start, end) = (request.start, request.end.unwrap_or(size.max(request.start)));
        range_len(&key, &(start..end))?;
        if end > size {
            return Err(past_the_end(&key, start..end, size));
        }
        Ok(OpenFile { key, file, buffers, size, version, next: start, end })
    }

    fn read_piece(mut self) -> Result<(Bytes, Self)> {
        let range = self.next..self.end.min(self.next + PIECE);
        let (key, size) = (&self.key, self.size);
        let piece = read_part(key, &mut self.file, size, range.clone(), &self.buffers);
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
    let nanoseconds = match changed.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    };
    version_of(metadata.len(), nanoseconds)
}

fn version_of(size: u64, changed: i128) -> Arc<str> {
    format!("{size}@{changed}").into()
}

fn read_whole(
    key: &Key,
    max_bytes: u64,
    buffers: &ReadBuffers,
    kept: Option<&ReadAtOnce>,
) -> Result<Bytes> {
    let (mut file, metadata) = open(key, kept)?;
    let len = metadata.len();
    check_limit(key, len, max_bytes)?;
    let bytes = read_up_to(key, &mut file, len, buffers)?;
    if (bytes.len() as u64) < len {
        return Ok(bytes);
    }
    // One byte past the limit is enough to see that a growing file has crossed it.
    let (mut more, most) = (Vec::new(), (max_bytes - len).saturating_add(1));
    let read = file.take(most).read_to_end(&mut more);
    read.map_err(|error| os_error("cannot read this file", key, error))?;
    if more.is_empty() {
        return Ok(bytes);
    }
    check_limit(key, len + more.len() as u64, max_bytes)?;
    Ok([&bytes[..], &more].concat().into())
}

fn read_parts(
    key: &Key,
    ranges: &[Range<u64>],
    joined: &[Joined],
    buffers: &ReadBuffers,
    kept: Option<&ReadAtOnce>,
) -> Result<Vec<Bytes>> {
    let (mut file, metadata) = open(key, kept)?;
    let len = metadata.len();
    for range in ranges {
        check_range(key, len, range)?;
    }
    let read = joined
        .iter()
        .map(|joined| read_part(key, &mut file, len, joined.range.clone(), buffers))
        .collect::<Result<Vec<_>>>()?;
    Ok(divided(ranges, joined, &read))
}

/// The ranges out of those that they were joined into, of which the bytes are `read`.
fn divided(ranges: &[Range<u64>], joined: &[Joined], read: &[Bytes]) -> Vec<Bytes> {
    let mut parts = vec![Bytes::new(); ranges.len()];
    for (joined, bytes) in joined.iter().zip(read) {
        let start = joined.range.start;
        for &place in &joined.members {
            let Range { start: from, end } = ranges[place];
            // They lie within what was read, which fits into memory.
            parts[place] = bytes.slice((from - start) as usize..(end - start) as usize);
        }
    }
    parts
}

/// The length of a range of a file of `len` bytes.
fn check_range(key: &Key, len: u64, range: &Range<u64>) -> Result<u64> {
    let wanted = range_len(key, range)?;
    if range.end > len { Err(past_the_end(key, range.clone(), len)) } else { Ok(wanted) }
}

/// A range of a file of `len` bytes.
fn read_part(
    key: &Key,
    file: &mut File,
    len: u64,
    range: Range<u64>,
    buffers: &ReadBuffers,
) -> Result<Bytes> {
    let wanted = check_range(key, len, &range)?;
    let failed = |error| os_error("cannot read this file", key, error);
    file.seek(SeekFrom::Start(range.start)).map_err(failed)?;
    let bytes = read_up_to(key, file, wanted, buffers)?;
    let read = bytes.len() as u64;
    if read < wanted {
        let end = range.start + read;
        return Err(past_the_end(key, range, end));
    }
    Ok(bytes)
}

/// The next `wanted` bytes of a file, or as many as there are.
fn read_up_to(key: &Key, file: &mut File, wanted: u64, buffers: &ReadBuffers) -> Result<Bytes> {
    let failed = |error| os_error("cannot read this file", key, error);
    let buffer = usize::try_from(wanted).ok().and_then(|wanted| buffers.take(wanted));
    if let Some(mut buffer) = buffer {
        let read = fill(file, buffer.bytes_mut()).map_err(failed)?;
        return Ok(buffer.into_bytes(read));
    }
    let mut bytes = reserve(key, wanted)?;
    file.take(wanted).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes.into())
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

/// Reads until the buffer is full, or the file has ended; tells how many bytes came.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
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

/// Opens a regular file; tells its length and its time of change too. Where too many are open, those
/// that are `kept` make room.
fn open(key: &Key, kept: Option<&ReadAtOnce>) -> Result<(File, fs::Metadata)> {
    let path = key.to_path();
    let failed = |error| os_error("cannot open this file", key, error);
    // Looked at before it is opened: opening a pipe would wait for somebody to write into it.
    check_file(key, &fs::metadata(&path).map_err(failed)?)?;
    let let_go = || kept.into_iter().for_each(ReadAtOnce::close_all);
    let file = open_files::patiently(|| File::open(&path), let_go).map_err(failed)?;
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
