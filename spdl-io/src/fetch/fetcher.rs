//! The plug point for storage.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::{Body, Key, ReadRequest};

/// Reads objects from one kind of storage. Called by [`Fetch`](crate::Fetch), many reads at once.
///
/// # Contract
/// - The futures may be polled by any executor: a fetcher that needs a reactor or threads brings
///   them along. They never block the thread that polls them.
/// - A dropped future ends its read: at once, or when the operating system gives it back.
/// - Errors name the key, and have the kind that says what the caller may do.
/// - What a fetcher cannot do it refuses with `Unsupported`, and its [`Capability`] says so.
/// - It tries once. Trying again, and all that belongs to it, is the work of
///   [`Resilient`](crate::Resilient), a layer above any fetcher.
///
/// Two methods are enough; all others are provided. `spdl_io::testing::fetcher_contract` checks all
/// this. A fetcher in a few lines:
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
///             Error::new(ErrorKind::NotFound, "no such object").with_key(key.display_name())
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
    /// What this fetcher can do beyond reading whole objects.
    fn capability(&self) -> Capability;

    /// The bytes of an object, or those of a range of it.
    ///
    /// A range is in bytes from the start of the object, and is read as a whole: `start..end`
    /// gives `end - start` bytes or an error.
    ///
    /// # Errors
    /// `NotFound`, `PermissionDenied`, `Io`, `Unavailable` or `Timeout` where the object cannot be
    /// read; `InvalidArgument` for a key that names something else than an object (a folder), and
    /// for a range that ends before it starts; `Truncated` where a range reaches past the end;
    /// `Unsupported` for a range where [`Capability::ranges`] is false.
    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes>;

    /// The whole object, if it holds no more than `max_bytes`.
    ///
    /// The provided method reads first and looks then. A fetcher that learns the size beforehand
    /// should refuse before it allocates.
    ///
    /// # Errors
    /// As [`read`](Fetcher::read), and `LimitExceeded`.
    async fn read_at_most(&self, key: &Key, max_bytes: u64) -> Result<Bytes> {
        let bytes = self.read(key, None).await?;
        check_limit(key, bytes.len() as u64, max_bytes)?;
        Ok(bytes)
    }

    /// What is known of an object without reading it: its size, and its version where
    /// [`Capability::versions`] is true.
    ///
    /// # Errors
    /// As [`read`](Fetcher::read); `Unsupported` where [`Capability::stat`] is false, which is what
    /// the provided method answers.
    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        Err(unsupported(self, "tell the size of an object", key))
    }

    /// Several ranges of one object, in the order in which they are given; they may overlap.
    ///
    /// The provided method reads one after the other. A fetcher for which each read costs a wait or
    /// an open should do better. [`Resilient`](crate::Resilient) joins ranges that lie near each
    /// other, for any fetcher.
    ///
    /// # Errors
    /// As [`read`](Fetcher::read), for the first range that fails.
    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let mut parts = Vec::with_capacity(ranges.len());
        for range in ranges {
            parts.push(self.read(key, Some(range.clone())).await?);
        }
        Ok(parts)
    }

    /// An object, or a part of it, piece by piece: for bodies too large to hold, and to go on where
    /// a read broke off.
    ///
    /// Without an error, the pieces are together just what was asked for. Where
    /// [`Capability::streams`] is false, it is all one piece, read before this returns. The pieces
    /// are all of one version: where a fetcher that knows versions sees the object change
    /// meanwhile, it ends with `Changed`.
    ///
    /// The provided method reads once, by [`read`](Fetcher::read).
    ///
    /// # Errors
    /// As [`read`](Fetcher::read); `Changed` where the object has another version than the one that
    /// is asked for; `Unsupported` where a version is asked for and [`Capability::versions`] is
    /// false.
    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        if request.version.is_some() {
            return Err(unsupported(self, "tell versions apart", key));
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

    /// The objects whose keys lie in the folder `prefix`, at any depth, sorted by the bytes of their
    /// keys. A `prefix` with nothing in it is an empty listing, or `NotFound` where the storage
    /// knows folders.
    ///
    /// # Errors
    /// As [`read`](Fetcher::read); `Unsupported` where [`Capability::list`] is false, which is what
    /// the provided method answers.
    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        Err(unsupported(self, "list", prefix))
    }
}

/// The answer to what a fetcher cannot do.
fn unsupported(fetcher: &(impl Fetcher + ?Sized), what: &str, key: &Key) -> Error {
    Error::new(ErrorKind::Unsupported, format!("{fetcher:?} cannot {what}"))
        .with_key(key.display_name())
}

/// What a [`Fetcher`] can do beyond reading whole objects.
///
/// ```
/// # use spdl_io::Capability;
/// let capability = Capability::default().with_ranges();
/// assert!(capability.ranges && !capability.list);
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capability {
    /// It reads ranges, one or several.
    pub ranges: bool,
    /// It lists.
    pub list: bool,
    /// It tells the size of an object without reading it.
    pub stat: bool,
    /// Its objects have versions: [`stat`](Fetcher::stat) and [`open`](Fetcher::open) tell them, and
    /// a read can be bound to one. Implies [`stat`](Capability::stat).
    pub versions: bool,
    /// [`stat`](Fetcher::stat) tells them without asking a server: a cache does so before each read.
    /// Implies [`versions`](Capability::versions).
    pub local_versions: bool,
    /// It hands on large objects piece by piece, as they come.
    pub streams: bool,
}

impl Capability {
    /// Says that the fetcher reads ranges.
    #[must_use]
    pub fn with_ranges(mut self) -> Self {
        self.ranges = true;
        self
    }

    /// Says that the fetcher lists.
    #[must_use]
    pub fn with_list(mut self) -> Self {
        self.list = true;
        self
    }

    /// Says that the fetcher tells sizes.
    #[must_use]
    pub fn with_stat(mut self) -> Self {
        self.stat = true;
        self
    }

    /// Says that the fetcher tells versions, and so sizes too.
    #[must_use]
    pub fn with_versions(mut self) -> Self {
        self.versions = true;
        self.with_stat()
    }

    /// Says that the fetcher tells versions, and so sizes too, without asking a server.
    #[must_use]
    pub fn with_local_versions(mut self) -> Self {
        self.local_versions = true;
        self.with_versions()
    }

    /// Says that the fetcher hands on objects piece by piece.
    #[must_use]
    pub fn with_streams(mut self) -> Self {
        self.streams = true;
        self
    }
}

/// What is known of an object without reading it.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    /// The key to read it by.
    pub key: Key,
    /// Its length in bytes.
    pub size: u64,
    /// What tells it from what was, or will be, stored under the same key: an ETag; for files,
    /// their length and time of change. To be compared, not to be read. `None` where the storage
    /// tells none, or not in a listing.
    pub version: Option<Arc<str>>,
}

impl ObjectMeta {
    /// An object of `size` bytes, of no known version.
    pub fn new(key: Key, size: u64) -> Self {
        ObjectMeta { key, size, version: None }
    }

    /// Says which version it is.
    #[must_use]
    pub fn with_version(mut self, version: impl Into<Arc<str>>) -> Self {
        self.version = Some(version.into());
        self
    }

    /// Size and version in few bytes.
    pub(crate) fn version_hash(&self) -> u64 {
        let version = self.version.as_deref().unwrap_or_default();
        let told = [&self.size.to_le_bytes()[..], version.as_bytes()].concat();
        // Half of the bits are a hash as well.
        twox_hash::XxHash3_128::oneshot(&told) as u64
    }
}

pub(crate) fn check_limit(key: &Key, len: u64, max_bytes: u64) -> Result<()> {
    if len <= max_bytes {
        return Ok(());
    }
    let message = format!("holds {len} bytes, but at most {max_bytes} are allowed");
    Err(Error::new(ErrorKind::LimitExceeded, message).with_key(key.display_name()))
}

/// The length of `range`.
///
/// # Errors
/// `InvalidArgument` where it ends before it starts.
pub(crate) fn range_len(key: &Key, range: &Range<u64>) -> Result<u64> {
    let Range { start, end } = range;
    end.checked_sub(*start).ok_or_else(|| {
        let message = format!("range {start}..{end} ends before it starts");
        Error::new(ErrorKind::InvalidArgument, message).with_key(key.display_name())
    })
}

pub(crate) fn past_the_end(key: &Key, range: Range<u64>, len: u64) -> Error {
    let Range { start, end } = range;
    let message = format!("range {start}..{end} reaches past the end at byte {len}");
    Error::new(ErrorKind::Truncated, message).with_key(key.display_name()).with_offset(len)
}

/// An error where an object has another version than `wanted`. One without a version is no match.
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
