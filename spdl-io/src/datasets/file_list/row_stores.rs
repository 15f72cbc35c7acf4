//! What reads the files of a list whose rows lead to several stores.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use spdl_core::{Error, Result};

use crate::fetch::{Body, Capability, Fetcher, Key, ObjectMeta, ReadRequest};
use crate::stores::{Address, StoreRegistry};

/// Reads keys of the list's own store, and whole addresses of any other: each by what its own store needs,
/// and by nothing that belongs to the list's, such as a password or a signature.
pub(crate) struct RowStores {
    own: Arc<dyn Fetcher>,
    /// The address of the list's own store; `None` for files of this machine.
    own_store: Option<Arc<str>>,
    stores: StoreRegistry,
}

/// Where a key leads.
struct Route {
    fetcher: Arc<dyn Fetcher>,
    /// What it is called there.
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
        let named = |error: Error| error.renamed(key.display_name());
        let own = || Route { fetcher: Arc::clone(&self.own), key: key.clone() };
        let text = key.as_str().filter(|text| text.contains("://"));
        let Some(text) = text else { return Ok(own()) };
        let address = Address::parse(text).map_err(named)?;
        if address.scheme() == "file" || self.own_store.as_deref() == Some(&*address.store()) {
            return Ok(own());
        }
        // What the row signs is sent with its own key alone.
        let place = self.stores.open_parsed(&address.without_secrets()).map_err(named)?;
        let key = match self.stores.reads_addresses(address.scheme()) {
            true => key.clone(),
            false => place.key,
        };
        Ok(Route { fetcher: place.fetcher, key })
    }
}

impl Route {
    /// An answer whose error names what was asked for, and not what that is called in its store.
    fn answer<T>(&self, asked: &Key, answer: Result<T>) -> Result<T> {
        answer.map_err(|error| match self.key == *asked {
            true => error,
            false => error.renamed(asked.display_name()),
        })
    }
}

#[async_trait]
impl Fetcher for RowStores {
    /// What every store can do, as rows may lead anywhere.
    fn capability(&self) -> Capability {
        Capability::default()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let route = self.route(key)?;
        route.answer(key, route.fetcher.read(&route.key, range).await)
    }

    async fn read_at_most(&self, key: &Key, max_bytes: u64) -> Result<Bytes> {
        let route = self.route(key)?;
        route.answer(key, route.fetcher.read_at_most(&route.key, max_bytes).await)
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let route = self.route(key)?;
        let told = route.answer(key, route.fetcher.stat(&route.key).await)?;
        Ok(ObjectMeta { key: key.clone(), ..told })
    }

    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let route = self.route(key)?;
        route.answer(key, route.fetcher.read_ranges(&route.key, ranges).await)
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let route = self.route(key)?;
        route.answer(key, route.fetcher.open(&route.key, request).await)
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
