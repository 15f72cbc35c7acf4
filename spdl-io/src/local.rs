//! Files of this machine, by plain reads on threads of their own.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use spdl_core::{Error, ErrorKind, Result};

use crate::fetcher::check_limit;
use crate::io_threads::IoThreads;
use crate::walk::{Walker, os_error};
use crate::{Capability, Fetcher, Key, ObjectMeta};

const LINGER: Duration = Duration::from_secs(10);

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
    threads: IoThreads,
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
        LocalFetcher { threads: IoThreads::new("spdl-io", max_threads, LINGER) }
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
        Capability::default().with_ranges().with_list()
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

    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        let prefix = prefix.clone();
        let objects = self.threads.run(move || list_folder(&prefix.to_path())).await?;
        Ok(stream::iter(objects.into_iter().map(Ok)).boxed())
    }
}

fn read_whole(key: &Key, max_bytes: u64) -> Result<Bytes> {
    let (file, len) = open(key)?;
    check_limit(key, len, max_bytes)?;
    let mut bytes = reserve(key, len)?;
    // One byte past the limit is enough to see that a growing file has crossed it.
    let read = file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| os_error("cannot read this file", key, error))?;
    check_limit(key, bytes.len() as u64, max_bytes)?;
    Ok(bytes.into())
}

fn read_range(key: &Key, range: Range<u64>) -> Result<Bytes> {
    let Range { start, end } = range;
    let wanted = end.checked_sub(start).ok_or_else(|| {
        let message = format!("range {start}..{end} ends before it starts");
        Error::new(ErrorKind::InvalidArgument, message).with_key(key.display_name())
    })?;
    let truncated = |len| {
        let message = format!("range {start}..{end} reaches past the end at byte {len}");
        Error::new(ErrorKind::Truncated, message).with_key(key.display_name()).with_offset(len)
    };
    let (mut file, len) = open(key)?;
    if end > len {
        return Err(truncated(len));
    }
    let failed = |error| os_error("cannot read this file", key, error);
    let mut bytes = reserve(key, wanted)?;
    file.seek(SeekFrom::Start(start)).map_err(failed)?;
    let read = file.take(wanted).read_to_end(&mut bytes).map_err(failed)? as u64;
    if read < wanted {
        return Err(truncated(start + read));
    }
    Ok(bytes.into())
}

/// Opens a regular file; gives its length too.
fn open(key: &Key) -> Result<(File, u64)> {
    let path = key.to_path();
    let failed = |error| os_error("cannot open this file", key, error);
    // Looked at before it is opened: opening a pipe would wait for somebody to write into it.
    let metadata = fs::metadata(&path).map_err(failed)?;
    if !metadata.is_file() {
        let message =
            if metadata.is_dir() { "this is a folder, not a file" } else { "not a regular file" };
        return Err(Error::new(ErrorKind::InvalidArgument, message).with_key(key.display_name()));
    }
    let file = File::open(&path).map_err(failed)?;
    Ok((file, metadata.len()))
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
    let mut walker = Walker::new(root, |_| true);
    for folder in walker.walk(walker.root()?)? {
        for name in folder.files {
            let path = folder.path.join(name);
            match fs::metadata(&path) {
                Ok(metadata) => objects.push(ObjectMeta::new(path.into(), metadata.len())),
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
