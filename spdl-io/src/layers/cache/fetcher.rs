//! [`CachedFetcher`]: reads through a cache.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use spdl_core::Result;

use super::Cache;
use crate::fetch::{
    Body, Capability, Fetcher, Key, ObjectMeta, ReadMemory, ReadRequest, check_limit,
};

/// Reads through a [`Cache`]: on a miss, reads from another fetcher and stores the bytes.
///
/// Each object, and each range of an object, is a separate entry. If the other fetcher reports
/// versions without a network request ([`Capability::local_versions`]), as for local files, each
/// read compares the version, and changed objects are read again. Otherwise, entries are found by
/// key only. If such objects may change, use a separate
/// [`namespace`](super::CacheBuilder::namespace) for each version of the data. Listings, metadata
/// and streamed bodies ([`open`](Fetcher::open)) are not cached.
#[derive(Clone, Debug)]
pub struct CachedFetcher {
    inner: Arc<dyn Fetcher>,
    cache: Cache,
    /// The version of all objects that are read; `None` if the other fetcher reports versions.
    version: Option<Vec<u8>>,
}

impl CachedFetcher {
    /// Creates a fetcher that caches the reads of `inner`.
    pub fn new(inner: Arc<dyn Fetcher>, cache: Cache) -> Self {
        CachedFetcher { inner, cache, version: None }
    }

    /// Sets the version of all objects that are read.
    pub(crate) fn of_version(mut self, version: Option<Vec<u8>>) -> Self {
        self.version = version;
        self
    }

    async fn version_of(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        match &self.version {
            Some(version) => Ok(Some(version.clone())),
            None => Ok(local_version(&*self.inner, key).await?.map(|it| it.as_bytes().to_vec())),
        }
    }

    /// Returns the cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }
}

/// Returns the version of an object if the fetcher reports it without a network request.
///
/// # Errors
/// As [`Fetcher::stat`].
pub(crate) async fn local_version(fetcher: &dyn Fetcher, key: &Key) -> Result<Option<Arc<str>>> {
    match fetcher.capability().local_versions {
        true => Ok(fetcher.stat(key).await?.version),
        false => Ok(None),
    }
}

/// Returns the name of a cache entry: the range, if any, and the key.
fn entry_name(key: &Key, range: Option<&Range<u64>>) -> Vec<u8> {
    let mut name = Vec::with_capacity(17 + key.as_bytes().len());
    match range {
        None => name.push(0),
        Some(range) => {
            name.push(1);
            name.extend_from_slice(&range.start.to_le_bytes());
            name.extend_from_slice(&range.end.to_le_bytes());
        }
    }
    name.extend_from_slice(key.as_bytes());
    name
}

#[async_trait]
impl Fetcher for CachedFetcher {
    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let name = entry_name(key, range.as_ref());
        let version = self.version_of(key).await?;
        let version = version.as_deref();
        if let Some(bytes) = self.cache.get_version(&name, version).await {
            return Ok(bytes);
        }
        let bytes = self.inner.read(key, range).await?;
        self.cache.put_version(&name, version, &bytes).await;
        Ok(bytes)
    }

    async fn read_whole_version(
        &self,
        key: &Key,
        memory: &dyn ReadMemory,
        version: Option<&Arc<str>>,
        size: Option<u64>,
    ) -> Result<Bytes> {
        let name = entry_name(key, None);
        let required = || version.map(|version| version.as_bytes().to_vec());
        let entry_version = self.version_of(key).await?.or_else(required);
        let entry_version = entry_version.as_deref();
        let found = self.cache.get_within(&name, entry_version, memory).await;
        if let Some(bytes) = found.filter(|it| size.is_none_or(|size| size == it.len() as u64)) {
            check_limit(key, bytes.len() as u64, memory.max_bytes())?;
            return Ok(bytes);
        }
        let bytes = match (version, size) {
            (None, None) => self.inner.read_whole(key, memory).await?,
            _ => self.inner.read_whole_version(key, memory, version, size).await?,
        };
        self.cache.put_version(&name, entry_version, &bytes).await;
        Ok(bytes)
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        self.inner.stat(key).await
    }

    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let version = self.version_of(key).await?;
        let version = version.as_deref();
        let mut parts = Vec::with_capacity(ranges.len());
        for range in ranges {
            parts.push(self.cache.get_version(&entry_name(key, Some(range)), version).await);
        }
        let missing = ranges.iter().zip(&parts).filter(|(_, part)| part.is_none());
        let missing: Vec<_> = missing.map(|(range, _)| range.clone()).collect();
        if missing.is_empty() && !ranges.is_empty() {
            return Ok(parts.into_iter().flatten().collect());
        }
        let mut read = self.inner.read_ranges(key, &missing).await?.into_iter();
        for (range, part) in ranges.iter().zip(&mut parts).filter(|(_, part)| part.is_none()) {
            if let Some(bytes) = read.next() {
                self.cache.put_version(&entry_name(key, Some(range)), version, &bytes).await;
                *part = Some(bytes);
            }
        }
        Ok(parts.into_iter().flatten().collect())
    }

    fn discard(&self, key: &Key, range: &Range<u64>) {
        self.inner.discard(key, range);
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        self.inner.open(key, request).await
    }

    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        self.inner.list(prefix).await
    }
}
