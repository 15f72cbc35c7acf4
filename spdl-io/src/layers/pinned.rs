//! [`Pinned`]: reads each object in one version.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use spdl_core::{ErrorKind, Result};

use crate::fetch::{
    Body, Capability, Fetcher, Key, ObjectMeta, ReadMemory, ReadRequest, check_size, check_version,
    read_whole_or_range,
};

/// Reads each object in one version, so that parts of two versions are never mixed.
///
/// The first `stat` of an object, or the first read of a part of it, pins the version of the
/// object. Later reads fail with `Changed` if the object has another version, and later calls of
/// `stat` return the first result. After `stat`, reads of parts, and of objects without a version,
/// also fail with `Changed` if a response reports another size. If the versions of the inner fetcher are
/// [local](Capability::local_versions), `stat` neither pins nor remembers. Reads of whole objects,
/// which are consistent, do not pin either. Without [`Capability::versions`], and for objects
/// without a version, changes that keep the size are not detected.
///
/// Memory use: the key and the version of each pinned object.
pub(crate) struct Pinned {
    inner: Arc<dyn Fetcher>,
    versions: PinnedVersions,
}

/// The pinned version of each object, which several [`Pinned`] fetchers share.
#[derive(Clone, Default)]
pub(crate) struct PinnedVersions(Arc<Mutex<HashMap<Key, PinnedObject>>>);

#[derive(Default)]
struct PinnedObject {
    version: Option<Arc<str>>,
    /// The result of `stat`, or its error `Unsupported`.
    stat: Option<Result<ObjectMeta>>,
}

impl Pinned {
    pub(crate) fn new(inner: Arc<dyn Fetcher>, versions: PinnedVersions) -> Self {
        Pinned { inner, versions }
    }
}

impl PinnedVersions {
    /// Pins the current version of an object.
    ///
    /// # Errors
    /// As [`Fetcher::stat`]. `Changed` if another version is pinned.
    pub(crate) async fn pin(&self, fetcher: &dyn Fetcher, key: &Key) -> Result<()> {
        let meta = fetcher.stat(key).await?;
        self.check(key, meta.version.clone())?;
        self.remember(key, Ok(meta));
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, PinnedObject>> {
        // The map is consistent even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn version(&self, key: &Key) -> Option<Arc<str>> {
        self.lock().get(key)?.version.clone()
    }

    fn size(&self, key: &Key) -> Option<u64> {
        Some(self.lock().get(key)?.stat.as_ref()?.as_ref().ok()?.size)
    }

    fn stat(&self, key: &Key) -> Option<Result<ObjectMeta>> {
        self.lock().get(key)?.stat.clone()
    }

    /// Compares a version with the pinned one, or pins it.
    fn check(&self, key: &Key, found: Option<Arc<str>>) -> Result<()> {
        if found.is_none() {
            return Ok(());
        }
        let mut objects = self.lock();
        match objects.get_mut(key) {
            Some(PinnedObject { version: pinned @ Some(_), .. }) => {
                check_version(key, pinned.as_ref(), found.as_ref())?;
            }
            Some(object) => object.version = found,
            None => {
                objects.insert(key.clone(), PinnedObject { version: found, stat: None });
            }
        }
        Ok(())
    }

    fn remember(&self, key: &Key, stat: Result<ObjectMeta>) {
        self.lock().entry(key.clone()).or_default().stat = Some(stat);
    }
}

#[async_trait]
impl Fetcher for Pinned {
    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        read_whole_or_range(self, key, range).await
    }

    async fn read_whole_version(
        &self,
        key: &Key,
        memory: &dyn ReadMemory,
        version: Option<&Arc<str>>,
        size: Option<u64>,
    ) -> Result<Bytes> {
        let version = version.cloned().or_else(|| self.versions.version(key));
        // An object of the required version is consistent, so its size does not count.
        let pinned_size = || self.versions.size(key).filter(|_| version.is_none());
        match (&version, size.or_else(pinned_size)) {
            (None, None) => self.inner.read_whole(key, memory).await,
            (_, size) => self.inner.read_whole_version(key, memory, version.as_ref(), size).await,
        }
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        if self.inner.capability().local_versions {
            return self.inner.stat(key).await;
        }
        if let Some(known) = self.versions.stat(key) {
            return known;
        }
        let stat = self.inner.stat(key).await;
        match &stat {
            Ok(meta) => self.versions.check(key, meta.version.clone())?,
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            Err(_) => return stat,
        }
        self.versions.remember(key, stat.clone());
        stat
    }

    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        Ok(self.read_version(key, ranges, None, None).await?.0)
    }

    async fn read_version(
        &self,
        key: &Key,
        ranges: &[Range<u64>],
        version: Option<&Arc<str>>,
        size: Option<u64>,
    ) -> Result<(Vec<Bytes>, Option<Arc<str>>)> {
        let version = version.cloned().or_else(|| self.versions.version(key));
        let size = size.or_else(|| self.versions.size(key));
        let read = self.inner.read_version(key, ranges, version.as_ref(), size).await?;
        self.versions.check(key, read.1.clone())?;
        Ok(read)
    }

    fn discard(&self, key: &Key, range: &Range<u64>) {
        self.inner.discard(key, range);
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let is_part = request.start > 0 || request.end.is_some();
        let version = request.version.clone().or_else(|| self.versions.version(key));
        // A whole object of the pinned version is consistent, so only its version counts.
        let needs_size = is_part || version.is_none();
        let size = request.size.or_else(|| self.versions.size(key).filter(|_| needs_size));
        let request = ReadRequest { version, size, ..request.clone() };
        let body = self.inner.open(key, &request).await?;
        check_size(key, size, body.size)?;
        if is_part {
            self.versions.check(key, body.version.clone())?;
        }
        Ok(body)
    }

    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        self.inner.list(prefix).await
    }
}

impl fmt::Debug for PinnedVersions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PinnedVersions")
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pinned").field(&self.inner).finish()
    }
}
