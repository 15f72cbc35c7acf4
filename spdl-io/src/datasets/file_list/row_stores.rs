//! [`RowStores`]: the fetcher of a list whose rows lie in several stores.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use spdl_core::{Error, Result};

use crate::fetch::{Body, Capability, Fetcher, Key, ObjectMeta, ReadMemory, ReadRequest};
use crate::stores::{Address, StoreRegistry};

/// Reads keys from the list's store, and whole addresses from the stores that they name.
///
/// Credentials and signatures of the list's store are never sent to another store.
pub(crate) struct RowStores {
    own: Arc<dyn Fetcher>,
    /// The address of the list's store; `None` for a local list.
    own_store: Option<Arc<str>>,
    stores: StoreRegistry,
}

/// A fetcher, and the key of the object in its store.
struct Route {
    fetcher: Arc<dyn Fetcher>,
    key: Key,
}

impl RowStores {
    pub(crate) fn new(
        own: Arc<dyn Fetcher>,
        own_store: Option<Arc<str>>,
        stores: StoreRegistry,
    ) -> Self {
        RowStores { own, own_store, stores }
    }

    fn route(&self, key: &Key) -> Result<Route> {
        let with_key = |error: Error| error.renamed(key.display_name());
        let own = || Route { fetcher: Arc::clone(&self.own), key: key.clone() };
        let text = key.as_str().filter(|text| text.contains("://"));
        let Some(text) = text else { return Ok(own()) };
        let address = Address::parse(text).map_err(with_key)?;
        if address.scheme() == "file" || self.own_store.as_deref() == Some(&*address.store()) {
            return Ok(own());
        }
        // A signature in the address of a row stays in the key, so rows with different signatures
        // share one store.
        let location = self.stores.open_parsed(&address.without_secrets()).map_err(with_key)?;
        let key = match self.stores.reads_addresses(address.scheme()) {
            true => key.clone(),
            false => location.key,
        };
        Ok(Route { fetcher: location.fetcher, key })
    }
}

impl Route {
    /// Sets the key of an error to the requested key instead of the key in the store.
    fn with_requested_key<T>(&self, requested: &Key, result: Result<T>) -> Result<T> {
        result.map_err(|error| match self.key == *requested {
            true => error,
            false => error.renamed(requested.display_name()),
        })
    }
}

#[async_trait]
impl Fetcher for RowStores {
    /// None, because the stores may differ in their capabilities.
    fn capability(&self) -> Capability {
        Capability::default()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let route = self.route(key)?;
        route.with_requested_key(key, route.fetcher.read(&route.key, range).await)
    }

    async fn read_whole(&self, key: &Key, memory: &dyn ReadMemory) -> Result<Bytes> {
        let route = self.route(key)?;
        route.with_requested_key(key, route.fetcher.read_whole(&route.key, memory).await)
    }

    async fn read_whole_version(
        &self,
        key: &Key,
        memory: &dyn ReadMemory,
        version: Option<&Arc<str>>,
        size: Option<u64>,
    ) -> Result<Bytes> {
        let route = self.route(key)?;
        let read = route.fetcher.read_whole_version(&route.key, memory, version, size).await;
        route.with_requested_key(key, read)
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let route = self.route(key)?;
        let meta = route.with_requested_key(key, route.fetcher.stat(&route.key).await)?;
        Ok(ObjectMeta { key: key.clone(), ..meta })
    }

    fn discard(&self, key: &Key, range: &Range<u64>) {
        if let Ok(route) = self.route(key) {
            route.fetcher.discard(&route.key, range);
        }
    }

    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let route = self.route(key)?;
        route.with_requested_key(key, route.fetcher.read_ranges(&route.key, ranges).await)
    }

    async fn read_version(
        &self,
        key: &Key,
        ranges: &[Range<u64>],
        version: Option<&Arc<str>>,
        size: Option<u64>,
    ) -> Result<(Vec<Bytes>, Option<Arc<str>>)> {
        let route = self.route(key)?;
        let read = route.fetcher.read_version(&route.key, ranges, version, size).await;
        route.with_requested_key(key, read)
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let route = self.route(key)?;
        route.with_requested_key(key, route.fetcher.open(&route.key, request).await)
    }

    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        self.own.list(prefix).await
    }
}

impl fmt::Debug for RowStores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowStores").field("own", &self.own).finish_non_exhaustive()
    }
}
