//! The plug point for storage.

use std::fmt::Debug;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use spdl_core::{Error, ErrorKind, Result};

use crate::Key;

/// Reads objects from one kind of storage. Called by [`Fetch`](crate::Fetch), many reads at once.
///
/// # Contract
/// - The futures may be polled by any executor: a fetcher that needs a reactor or threads brings
///   them along. They never block the thread that polls them.
/// - A dropped future ends its read: at once, or when the operating system gives it back.
/// - Errors name the key, and have the kind that says what the caller may do.
/// - What a fetcher cannot do it refuses with `Unsupported`, and its [`Capability`] says so.
///
/// `spdl_io::testing::fetcher_contract` checks all this. A fetcher in a few lines:
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

    /// The objects whose keys lie in the folder `prefix`, at any depth, sorted by the bytes of their
    /// keys. A `prefix` with nothing in it is an empty listing, or `NotFound` where the storage
    /// knows folders.
    ///
    /// # Errors
    /// As [`read`](Fetcher::read); `Unsupported` where [`Capability::list`] is false, which is what
    /// the provided method answers.
    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        Err(Error::new(ErrorKind::Unsupported, format!("{self:?} cannot list"))
            .with_key(prefix.display_name()))
    }
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
    /// It reads ranges.
    pub ranges: bool,
    /// It lists.
    pub list: bool,
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
}

/// One line of a listing.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    /// The key to read it by.
    pub key: Key,
    /// Its length in bytes.
    pub size: u64,
}

impl ObjectMeta {
    /// An object of `size` bytes.
    pub fn new(key: Key, size: u64) -> Self {
        ObjectMeta { key, size }
    }
}

pub(crate) fn check_limit(key: &Key, len: u64, max_bytes: u64) -> Result<()> {
    if len <= max_bytes {
        return Ok(());
    }
    let message = format!("holds {len} bytes, but at most {max_bytes} are allowed");
    Err(Error::new(ErrorKind::LimitExceeded, message).with_key(key.display_name()))
}
