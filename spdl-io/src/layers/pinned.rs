//! [`Pinned`]: reads each object in one version.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::{
    Body, Capability, Fetcher, Key, ObjectMeta, ReadMemory, ReadRequest, check_version,
};

/// Reads each object in one version, so that parts of two versions are never mixed.
///
/// The first `stat` of an object, or the first read of a part of it, pins the version of the
/// object. Later reads fail with `Changed` if the object has another version, and later calls of
/// `stat` return the first result. If the versions of the inner fetcher are
/// [local](Capability::local_versions), `stat` neither pins nor remembers. Reads of whole objects,
/// which are consistent, do not pin either. Without [`Capability::versions`], and for objects
/// without a version, changes are not detected.
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
    /// The result of `stat`.
    meta: Option<ObjectMeta>,
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
        self.check(key, fetcher.stat(key).await?.version)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, PinnedObject>> {
        // The map is consistent even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn version(&self, key: &Key) -> Option<Arc<str>> {
        self.lock().get(key)?.version.clone()
    }

    fn meta(&self, key: &Key) -> Option<ObjectMeta> {
        self.lock().get(key)?.meta.clone()
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
                objects.insert(key.clone(), PinnedObject { version: found, meta: None });
            }
        }
        Ok(())
    }

    fn remember(&self, meta: &ObjectMeta) {
        self.lock().entry(meta.key.clone()).or_default().meta = Some(meta.clone());
    }
}

#[async_trait]
impl Fetcher for Pinned {
    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let Some(range) = range else { return self.read_whole(key, &u64::MAX).await };
        let mut parts = self.read_ranges(key, &[range]).await?;
        parts
            .pop()
            .ok_or_else(|| Error::new(ErrorKind::Internal, "reading one range returned no result"))
    }

    async fn read_whole(&self, key: &Key, memory: &dyn ReadMemory) -> Result<Bytes> {
        let Some(version) = self.versions.version(key) else {
            return self.inner.read_whole(key, memory).await;
        };
        let body = self.inner.open(key, &ReadRequest::whole().of_version(version)).await?;
        let size = body.size;
        body.bytes_within(key, size, memory).await
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        if self.inner.capability().local_versions {
            return self.inner.stat(key).await;
        }
        if let Some(known) = self.versions.meta(key) {
            return Ok(known);
        }
        let meta = self.inner.stat(key).await?;
        self.versions.check(key, meta.version.clone())?;
        self.versions.remember(&meta);
        Ok(meta)
    }

    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let version = self.versions.version(key);
        let (parts, found) = self.inner.read_version(key, ranges, version.as_ref()).await?;
        self.versions.check(key, found)?;
        Ok(parts)
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let is_part = request.start > 0 || request.end.is_some();
        let version = request.version.clone().or_else(|| self.versions.version(key));
        let body = self.inner.open(key, &ReadRequest { version, ..request.clone() }).await?;
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
