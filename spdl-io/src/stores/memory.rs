//! [`MemoryFetcher`]: objects in memory.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, Range};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};
use spdl_core::{Error, ErrorKind, Result};

use crate::fetch::{
    Body, Capability, Fetcher, Key, ObjectMeta, ReadMemory, ReadRequest, check_limit,
    check_version, past_the_end, range_len,
};

/// Objects held in memory, for tests and for small or generated data.
///
/// Reads return views of the stored bytes without copying. Every
/// [`insert`](MemoryFetcher::insert) creates a new version, even if the bytes are the same.
/// [`list`](Fetcher::list) treats `/` as the folder separator. The empty prefix lists all keys.
///
/// ```
/// use spdl_io::{Bytes, Fetcher, MemoryFetcher};
/// let fetcher: MemoryFetcher = [("a/1", "one"), ("a/2", "two")].into_iter().collect();
/// assert_eq!(spdl_core::block_on(fetcher.read(&"a/2".into(), Some(1..3)))?, "wo");
/// fetcher.insert("a/3", Bytes::from_static(b"three"));
/// assert_eq!(fetcher.len(), 3);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Default)]
pub struct MemoryFetcher(RwLock<Objects>);

#[derive(Default)]
struct Objects {
    by_key: BTreeMap<Key, Object>,
    /// Number of insertions so far, which is also the latest version number.
    inserted: u64,
}

#[derive(Clone)]
struct Object {
    bytes: Bytes,
    version: Arc<str>,
}

impl MemoryFetcher {
    /// Creates a fetcher without objects.
    pub fn new() -> Self {
        MemoryFetcher::default()
    }

    /// Stores an object, and replaces an existing object with the same key.
    pub fn insert(&self, key: impl Into<Key>, bytes: impl Into<Bytes>) {
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        objects.inserted += 1;
        let version = objects.inserted.to_string().into();
        objects.by_key.insert(key.into(), Object { bytes: bytes.into(), version });
    }

    /// Removes an object and returns its bytes, or `None` if the key does not exist.
    pub fn remove(&self, key: &Key) -> Option<Bytes> {
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        objects.by_key.remove(key).map(|object| object.bytes)
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).by_key.len()
    }

    /// Returns whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn get(&self, key: &Key) -> Result<Object> {
        let objects = self.0.read().unwrap_or_else(PoisonError::into_inner);
        objects.by_key.get(key).cloned().ok_or_else(|| {
            Error::new(ErrorKind::NotFound, "object not found in memory")
                .with_key(key.display_name())
        })
    }
}

fn slice_of(key: &Key, object: &Object, range: Range<u64>) -> Result<Bytes> {
    range_len(key, &range)?;
    let len = object.bytes.len() as u64;
    if range.end > len {
        return Err(past_the_end(key, range, len));
    }
    Ok(object.bytes.slice(range.start as usize..range.end as usize))
}

#[async_trait]
impl Fetcher for MemoryFetcher {
    fn capability(&self) -> Capability {
        Capability::default().with_ranges().with_list().with_local_versions()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let object = self.get(key)?;
        match range {
            Some(range) => slice_of(key, &object, range),
            None => Ok(object.bytes),
        }
    }

    async fn read_whole(&self, key: &Key, memory: &dyn ReadMemory) -> Result<Bytes> {
        let bytes = self.get(key)?.bytes;
        check_limit(key, bytes.len() as u64, memory.max_bytes())?;
        Ok(bytes)
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let object = self.get(key)?;
        let size = object.bytes.len() as u64;
        Ok(ObjectMeta::new(key.clone(), size).with_version(object.version))
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let object = self.get(key)?;
        check_version(key, request.version.as_ref(), Some(&object.version))?;
        let size = object.bytes.len() as u64;
        let mut end = request.end.unwrap_or(size.max(request.start));
        if request.clamps_end {
            end = end.min(size.max(request.start));
        }
        let bytes = slice_of(key, &object, request.start..end)?;
        Ok(Body::from_bytes(bytes).with_size(size).with_version(object.version))
    }

    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        let mut folder = prefix.as_bytes().to_vec();
        if !folder.is_empty() && !folder.ends_with(b"/") {
            folder.push(b'/');
        }
        let objects = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let start = Bound::Included(Key::from_bytes(&folder));
        let found: Vec<_> = objects
            .by_key
            .range((start, Bound::Unbounded))
            .take_while(|(key, _)| key.as_bytes().starts_with(&folder))
            .map(|(key, object)| {
                let meta = ObjectMeta::new(key.clone(), object.bytes.len() as u64);
                Ok(meta.with_version(Arc::clone(&object.version)))
            })
            .collect();
        Ok(stream::iter(found).boxed())
    }
}

impl<K: Into<Key>, B: Into<Bytes>> FromIterator<(K, B)> for MemoryFetcher {
    fn from_iter<I: IntoIterator<Item = (K, B)>>(objects: I) -> Self {
        let fetcher = MemoryFetcher::new();
        for (key, bytes) in objects {
            fetcher.insert(key, bytes);
        }
        fetcher
    }
}

impl fmt::Debug for MemoryFetcher {
    /// Shows the number of objects, not their bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryFetcher({} objects)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spdl_core::block_on;

    #[test]
    fn reads_share_the_bytes() {
        let bytes = Bytes::from(vec![1; 10]);
        let fetcher = MemoryFetcher::from_iter([("a", bytes.clone())]);
        let read = block_on(fetcher.read(&"a".into(), Some(2..5))).unwrap();
        assert_eq!(read.as_ptr(), bytes[2..].as_ptr());
    }

    #[test]
    fn insert_creates_a_new_version() {
        let fetcher = MemoryFetcher::from_iter([("a", "one")]);
        let version = block_on(fetcher.stat(&"a".into())).unwrap().version.unwrap();
        let request = ReadRequest::whole().of_version(version);
        assert!(block_on(fetcher.open(&"a".into(), &request)).is_ok());
        fetcher.insert("a", "one");
        let error = block_on(fetcher.open(&"a".into(), &request)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
        assert_eq!(fetcher.remove(&"a".into()).unwrap(), "one");
        assert!(fetcher.is_empty());
    }
}
