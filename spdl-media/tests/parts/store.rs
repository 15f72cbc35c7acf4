//! A store that counts requests and bytes.

use std::ops::Range;
use std::sync::Mutex;

use spdl_core::Result;
use spdl_io::{
    Body, Bytes, Capability, Fetcher, Key, MemoryFetcher, ObjectMeta, ReadRequest, async_trait,
};

/// A store like a web server: the size of an object is known from the first response.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) objects: MemoryFetcher,
    /// The requests and the bytes since the last call of `take`.
    counts: Mutex<(u64, u64)>,
}

impl Recorded {
    pub(crate) fn of(file: &[u8]) -> Self {
        let objects = MemoryFetcher::from_iter([("a", file.to_vec())]);
        Recorded { objects, ..Recorded::default() }
    }

    pub(crate) fn take(&self) -> (u64, u64) {
        std::mem::take(&mut *self.counts.lock().unwrap())
    }

    fn count(&self, bytes: u64) {
        let mut counts = self.counts.lock().unwrap();
        *counts = (counts.0 + 1, counts.1 + bytes);
    }
}

#[async_trait]
impl Fetcher for Recorded {
    fn capability(&self) -> Capability {
        Capability::default().with_ranges().with_versions()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let bytes = self.objects.read(key, range).await?;
        self.count(bytes.len() as u64);
        Ok(bytes)
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        self.objects.stat(key).await
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let body = self.objects.open(key, request).await?;
        let size = body.size.unwrap_or(0);
        self.count(request.end.unwrap_or(size).min(size) - request.start);
        Ok(body)
    }
}
