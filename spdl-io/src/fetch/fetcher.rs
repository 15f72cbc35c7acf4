//! [`Fetcher`]: the extension point for storage.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt, stream};
use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::{Body, Key, ReadMemory, ReadRequest};

/// Reads of one call of [`Fetcher::read_ranges`] that run concurrently, in the provided method.
const CONCURRENT_RANGES: usize = 8;

/// Reads objects from one kind of storage. [`Fetch`](crate::Fetch) calls it concurrently.
///
/// # Contract
/// - Any executor may poll the futures. A fetcher that needs a reactor or threads owns them. The
///   futures never block the polling thread.
/// - Dropping a future cancels its read, either immediately or when the system call in progress
///   returns.
/// - Errors name the key. Their kind is as documented at each method.
/// - [`Capability`] reports the supported operations. All others fail with `Unsupported`.
/// - Each call makes one attempt. The layer [`Resilient`](crate::Resilient) adds retries,
///   timeouts and hedged requests to any fetcher.
///
/// Only two methods are required. `spdl_io::testing::fetcher_contract` tests this contract.
/// A minimal fetcher:
///
/// ```
/// use std::{collections::BTreeMap, ops::Range};
/// use spdl_core::{Error, ErrorKind, Result};
/// use spdl_io::{Capability, Fetcher, Key, ObjectMeta};
/// # use futures_core::stream::BoxStream;
///
/// #[derive(Debug)]
/// struct InMemory(BTreeMap<Key, bytes::Bytes>);
///
/// #[async_trait::async_trait]
/// impl Fetcher for InMemory {
///     fn capability(&self) -> Capability {
///         Capability::default()
///     }
///
///     async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<bytes::Bytes> {
///         if range.is_some() {
///             return Err(Error::new(ErrorKind::Unsupported, "cannot read ranges")
///                 .with_key(key.display_name()));
///         }
///         self.0.get(key).cloned().ok_or_else(|| {
///             Error::new(ErrorKind::NotFound, "object not found").with_key(key.display_name())
///         })
///     }
/// }
/// # let bytes = bytes::Bytes::from_static(b"x");
/// # let fetcher = InMemory([(Key::from("a"), bytes.clone())].into());
/// # assert_eq!(spdl_core::block_on(fetcher.read(&"a".into(), None))?, bytes);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[async_trait]
pub trait Fetcher: Debug + Send + Sync + 'static {
    /// Returns which operations this fetcher supports beyond reading whole objects.
    fn capability(&self) -> Capability;

    /// Reads an object, or a range of it.
    ///
    /// A range is in bytes from the start of the object. The result has exactly `end - start`
    /// bytes.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `Io`, `Unavailable` or `Timeout` if the object cannot be
    /// read. `InvalidArgument` if the key names a folder, or a range ends before it starts.
    /// `Truncated` if a range exceeds the end of the object. `Unsupported` for a range if
    /// [`Capability::ranges`] is false.
    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes>;

    /// Reads a whole object within the limits of `memory`. For a limit only, pass the number of
    /// bytes: `read_whole(&key, &1_000_000)`.
    ///
    /// A fetcher that knows the size of the object first compares it with
    /// [`max_bytes`](ReadMemory::max_bytes) and [reserves](ReadMemory::reserve) it, and then
    /// allocates memory. The provided method learns the size from [`open`](Fetcher::open).
    ///
    /// # Errors
    /// As [`read`](Fetcher::read), and `LimitExceeded` if the object is larger.
    async fn read_whole(&self, key: &Key, memory: &dyn ReadMemory) -> Result<Bytes> {
        self.read_whole_version(key, memory, None, None).await
    }

    /// Reads a whole object of a required version and size, as [`read_whole`](Fetcher::read_whole)
    /// does. `None` accepts any version or size.
    ///
    /// The provided method does not compare the size. [`Resilient`](crate::Resilient) compares it with
    /// the size in each response.
    ///
    /// # Errors
    /// As [`read_whole`](Fetcher::read_whole). `Changed` if the version or the size differs.
    async fn read_whole_version(
        &self,
        key: &Key,
        memory: &dyn ReadMemory,
        version: Option<&Arc<str>>,
        size: Option<u64>,
    ) -> Result<Bytes> {
        let request = ReadRequest { version: version.cloned(), size, ..ReadRequest::whole() };
        let body = self.open(key, &request).await?;
        let size = body.size;
        body.bytes_within(key, size, memory).await
    }

    /// Returns the size of an object, and its version if [`Capability::versions`] is true.
    ///
    /// # Errors
    /// As [`read`](Fetcher::read), and `Unsupported` if [`Capability::stat`] is false. The provided
    /// method returns that error.
    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        Err(unsupported(self, "return the size of an object", key))
    }

    /// Reads several ranges of one object. The results are in the order of `ranges`, which may
    /// overlap.
    ///
    /// The provided method reads up to 8 ranges concurrently. [`Resilient`](crate::Resilient)
    /// coalesces nearby ranges for any fetcher.
    ///
    /// # Errors
    /// As [`read`](Fetcher::read), for any of the ranges.
    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let reads: Vec<_> =
            ranges.iter().map(|range| self.read(key, Some(range.clone()))).collect();
        stream::iter(reads).buffered(CONCURRENT_RANGES).try_collect().await
    }

    /// Reads ranges of one version of an object, as [`read_ranges`](Fetcher::read_ranges) does, and
    /// returns that version.
    ///
    /// `version` and `size` are the required version and the required size of the whole object;
    /// `None` accepts any. The returned version is `None` if the storage does not report versions.
    /// The provided method compares the versions before and after the read if they are
    /// [local](Capability::local_versions), and otherwise opens each range. It does not compare the
    /// size; [`Resilient`](crate::Resilient) compares it with the size in each response.
    ///
    /// # Errors
    /// As [`read_ranges`](Fetcher::read_ranges). `Changed` if the version or the size differs from
    /// the required one, or if the object changes between two ranges. `Unsupported` if a version is
    /// required and [`Capability::versions`] is false.
    async fn read_version(
        &self,
        key: &Key,
        ranges: &[Range<u64>],
        version: Option<&Arc<str>>,
        size: Option<u64>,
    ) -> Result<(Vec<Bytes>, Option<Arc<str>>)> {
        if !self.capability().versions {
            return match version {
                Some(_) => Err(unsupported(self, "compare versions", key)),
                None => Ok((self.read_ranges(key, ranges).await?, None)),
            };
        }
        if self.capability().local_versions {
            let before = self.stat(key).await?.version;
            check_version(key, version, before.as_ref())?;
            let parts = self.read_ranges(key, ranges).await?;
            check_version(key, before.as_ref(), self.stat(key).await?.version.as_ref())?;
            return Ok((parts, before));
        }
        let mut version = version.cloned();
        let mut parts = Vec::with_capacity(ranges.len());
        for range in ranges {
            let request = ReadRequest::range(range.clone());
            let request = ReadRequest { version: version.clone(), size, ..request };
            let body = self.open(key, &request).await?;
            check_version(key, version.as_ref(), body.version.as_ref())?;
            version = version.or_else(|| body.version.clone());
            parts.push(body.bytes().await?);
        }
        Ok((parts, version))
    }

    /// Drops the bytes of a range from memory, if there are any, because they differ from a checksum. The next
    /// read requests them from the storage.
    ///
    /// The provided method does nothing. A fetcher that wraps another one calls its method.
    fn discard(&self, key: &Key, range: &Range<u64>) {
        let _ = (key, range);
    }

    /// Opens an object, or a range of it, as a stream of chunks.
    ///
    /// The chunks together are exactly the requested bytes, unless the stream ends with an error.
    /// If the fetcher supports versions, all chunks have the same version: if the object changes
    /// during the read, the stream ends with `Changed`. If [`Capability::streams`] is false, the
    /// body is read before this method returns, and is a single chunk, or none if it is empty.
    ///
    /// The provided method makes one call of [`read`](Fetcher::read). For a request with a start
    /// but no end, it reads the whole object. It does not support versions.
    ///
    /// # Errors
    /// As [`read`](Fetcher::read). `Changed` if the version differs from the requested one.
    /// `Unsupported` if a version is requested and [`Capability::versions`] is false.
    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        if request.version.is_some() {
            return Err(unsupported(self, "compare versions", key));
        }
        match (request.start, request.end) {
            (0, None) => {
                let bytes = self.read(key, None).await?;
                let size = bytes.len() as u64;
                Ok(Body::from_bytes(bytes).with_size(size))
            }
            (start, Some(end)) => Ok(Body::from_bytes(self.read(key, Some(start..end)).await?)),
            (start, None) => {
                let mut bytes = self.read(key, None).await?;
                let size = bytes.len() as u64;
                if start > size {
                    return Err(past_the_end(key, start..start, size));
                }
                Ok(Body::from_bytes(bytes.split_off(start as usize)).with_size(size))
            }
        }
    }

    /// Lists the objects in the folder `prefix`, recursively, sorted by the bytes of their keys.
    ///
    /// If the folder holds no objects, the stream is empty. If the folder does not exist, a storage
    /// with real folders may return `NotFound` instead.
    ///
    /// # Errors
    /// As [`read`](Fetcher::read), and `Unsupported` if [`Capability::list`] is false. The provided
    /// method returns that error.
    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        Err(unsupported(self, "list", prefix))
    }
}

/// Checks that a fetcher has returned the requested ranges.
pub(crate) fn check_lengths(object: &Key, ranges: &[Range<u64>], parts: &[Bytes]) -> Result<()> {
    let is_right =
        |(range, part): (&Range<u64>, &Bytes)| range.end - range.start == part.len() as u64;
    if ranges.len() == parts.len() && ranges.iter().zip(parts).all(is_right) {
        return Ok(());
    }
    let message = "the fetcher returned ranges that differ from the requested ones";
    Err(Error::new(ErrorKind::Internal, message).with_key(object.display_name()))
}

/// Returns the error for an unsupported operation.
fn unsupported(fetcher: &(impl Fetcher + ?Sized), what: &str, key: &Key) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{fetcher:?} cannot {what}"))
        .with_key(key.display_name())
}

/// Which operations a [`Fetcher`] supports beyond reading whole objects. Default: none.
///
/// ```
/// # use spdl_io::Capability;
/// let capability = Capability::default().with_ranges();
/// assert!(capability.ranges && !capability.list);
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capability {
    /// Byte ranges.
    pub ranges: bool,
    /// [`list`](Fetcher::list).
    pub list: bool,
    /// [`stat`](Fetcher::stat): the size of an object without reading it.
    pub stat: bool,
    /// Versions: [`stat`](Fetcher::stat) and [`open`](Fetcher::open) report them, and
    /// [`open`](Fetcher::open) can require one. Implies [`stat`](Capability::stat).
    pub versions: bool,
    /// [`stat`](Fetcher::stat) reports versions without a network request. A cache therefore calls
    /// [`stat`](Fetcher::stat) before each read. Implies [`versions`](Capability::versions).
    pub local_versions: bool,
    /// [`open`](Fetcher::open) returns large objects in chunks as they arrive.
    pub streams: bool,
}

impl Capability {
    /// Adds [`ranges`](Capability::ranges).
    #[must_use]
    pub fn with_ranges(mut self) -> Self {
        self.ranges = true;
        self
    }

    /// Adds [`list`](Capability::list).
    #[must_use]
    pub fn with_list(mut self) -> Self {
        self.list = true;
        self
    }

    /// Adds [`stat`](Capability::stat).
    #[must_use]
    pub fn with_stat(mut self) -> Self {
        self.stat = true;
        self
    }

    /// Adds [`versions`](Capability::versions) and [`stat`](Capability::stat).
    #[must_use]
    pub fn with_versions(mut self) -> Self {
        self.versions = true;
        self.with_stat()
    }

    /// Adds [`local_versions`](Capability::local_versions), [`versions`](Capability::versions) and
    /// [`stat`](Capability::stat).
    #[must_use]
    pub fn with_local_versions(mut self) -> Self {
        self.local_versions = true;
        self.with_versions()
    }

    /// Adds [`streams`](Capability::streams).
    #[must_use]
    pub fn with_streams(mut self) -> Self {
        self.streams = true;
        self
    }
}

/// Size and version of an object.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    /// Key of the object.
    pub key: Key,
    /// Size in bytes.
    pub size: u64,
    /// Opaque identifier of the content: an `ETag`, or for files the size and modification time.
    /// Compare for equality only. `None` if the storage does not report a version. Listings may
    /// omit versions.
    pub version: Option<Arc<str>>,
}

impl ObjectMeta {
    /// Creates the description of an object of `size` bytes without a version.
    pub fn new(key: Key, size: u64) -> Self {
        ObjectMeta { key, size, version: None }
    }

    /// Sets the version.
    #[must_use]
    pub fn with_version(mut self, version: impl Into<Arc<str>>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Hashes size and version.
    pub(crate) fn version_hash(&self) -> u64 {
        let version = self.version.as_deref().unwrap_or_default();
        let identity = [&self.size.to_le_bytes()[..], version.as_bytes()].concat();
        // The lower 64 bits of a 128-bit hash are a valid 64-bit hash.
        twox_hash::XxHash3_128::oneshot(&identity) as u64
    }
}

pub(crate) fn check_limit(key: &Key, len: u64, max_bytes: u64) -> Result<()> {
    if len <= max_bytes {
        return Ok(());
    }
    let message = format!("the object holds {len} bytes, but at most {max_bytes} are allowed");
    Err(Error::new(ErrorKind::LimitExceeded, message).with_key(key.display_name()))
}

/// Returns the length of `range`.
///
/// # Errors
/// `InvalidArgument` if the range ends before it starts.
pub(crate) fn range_len(key: &Key, range: &Range<u64>) -> Result<u64> {
    let Range { start, end } = range;
    end.checked_sub(*start).ok_or_else(|| {
        let message = format!("range {start}..{end} ends before it starts");
        Error::new(ErrorKind::InvalidArgument, message).with_key(key.display_name())
    })
}

/// `Fetcher::read` of a fetcher that implements `read_whole` and `read_ranges`.
pub(crate) async fn read_whole_or_range(
    fetcher: &dyn Fetcher,
    key: &Key,
    range: Option<Range<u64>>,
) -> Result<Bytes> {
    let Some(range) = range else { return fetcher.read_whole(key, &u64::MAX).await };
    let mut parts = fetcher.read_ranges(key, &[range]).await?;
    parts
        .pop()
        .ok_or_else(|| Error::new(ErrorKind::Internal, "reading one range returned no result"))
}

pub(crate) fn past_the_end(key: &Key, range: Range<u64>, len: u64) -> Error {
    let Range { start, end } = range;
    let message = format!("range {start}..{end} exceeds the object size of {len} bytes");
    Error::new(ErrorKind::Truncated, message).with_key(key.display_name()).with_offset(len)
}

/// Returns the error `Changed` if two sizes of an object are known and differ.
pub(crate) fn check_size(key: &Key, known: Option<u64>, found: Option<u64>) -> Result<()> {
    let (Some(known), Some(found)) = (known, found) else { return Ok(()) };
    if known == found {
        return Ok(());
    }
    let message =
        format!("the object has changed: its size was {known} bytes and is now {found} bytes");
    Err(Error::new(ErrorKind::Changed, message).with_key(key.display_name()))
}

/// Returns the error `Changed` if a version is required, and `found` is another version or `None`.
pub(crate) fn check_version(
    key: &Key,
    wanted: Option<&Arc<str>>,
    found: Option<&Arc<str>>,
) -> Result<()> {
    if wanted.is_none() || wanted == found {
        return Ok(());
    }
    let shown = |version: Option<&Arc<str>>| {
        version.map_or("none".to_owned(), |version| format!("{version:?}"))
    };
    let message = format!(
        "the object has changed: its version was {} and is now {}",
        shown(wanted),
        shown(found)
    );
    Err(Error::new(ErrorKind::Changed, message).with_key(key.display_name()))
}
