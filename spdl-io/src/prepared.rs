//! A fetcher whose objects are prepared on the way.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use spdl_core::{Error, ErrorKind, Result};

use crate::fetcher::check_limit;
use crate::io_threads::IoThreads;
use crate::{Capability, Fetcher, Key, ObjectMeta};

const LINGER: Duration = Duration::from_secs(10);

/// Reads objects by another fetcher, and gives what a function makes of them.
///
/// Below a [`CachedFetcher`](crate::CachedFetcher), the cache keeps prepared samples, decoded and
/// shrunk say, and the function runs once for each. The function runs on threads of its own, as many
/// as the process may use CPUs, and never on those that wait.
///
/// ```
/// use std::sync::Arc;
/// use spdl_io::{Cache, CachedFetcher, Fetcher, LocalFetcher, MemoryFetcher, Prepared};
/// # let store = MemoryFetcher::from_iter([("cat.txt", "meow")]);
/// let prepared = Prepared::new(Arc::new(store), |_key, bytes| Ok(bytes.to_ascii_uppercase().into()));
/// // Another way to prepare the same data needs another name.
/// let cache = Cache::builder().memory(64 << 20).namespace("upper case").open()?;
/// let fetcher = CachedFetcher::new(Arc::new(prepared), cache);
/// assert_eq!(spdl_core::block_on(fetcher.read(&"cat.txt".into(), None))?, "MEOW");
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// Ranges and sizes of what is not prepared yet are not known: it has no other
/// [`capability`](Fetcher::capability) than to list, if the other fetcher can.
pub struct Prepared {
    inner: Arc<dyn Fetcher>,
    prepare: Arc<Prepare>,
    threads: IoThreads,
}

type Prepare = dyn Fn(&Key, Bytes) -> Result<Bytes> + Send + Sync;

impl Prepared {
    /// What `prepare` makes of the objects of `inner`.
    pub fn new(
        inner: Arc<dyn Fetcher>,
        prepare: impl Fn(&Key, Bytes) -> Result<Bytes> + Send + Sync + 'static,
    ) -> Self {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let threads = IoThreads::new("spdl-prepare", cpus, LINGER);
        Prepared { inner, prepare: Arc::new(prepare), threads }
    }

    async fn prepare(&self, key: &Key, bytes: Bytes) -> Result<Bytes> {
        let (prepare, of) = (Arc::clone(&self.prepare), key.clone());
        let prepared = self.threads.run(move || prepare(&of, bytes)).await;
        prepared.map_err(|error| match error.key() {
            Some(_) => error,
            None => error.with_key(key.display_name()),
        })
    }
}

#[async_trait]
impl Fetcher for Prepared {
    fn capability(&self) -> Capability {
        match self.inner.capability().list {
            true => Capability::default().with_list(),
            false => Capability::default(),
        }
    }

    /// What was made of the whole object. A function that panics is an error of the kind `Panicked`.
    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        if range.is_some() {
            let message = "ranges of what is prepared on the way are not known";
            return Err(Error::new(ErrorKind::Unsupported, message).with_key(key.display_name()));
        }
        let bytes = self.inner.read(key, None).await?;
        self.prepare(key, bytes).await
    }

    /// The limit holds for what is read, and for what is made of it.
    async fn read_at_most(&self, key: &Key, max_bytes: u64) -> Result<Bytes> {
        let bytes = self.inner.read_at_most(key, max_bytes).await?;
        let bytes = self.prepare(key, bytes).await?;
        check_limit(key, bytes.len() as u64, max_bytes)?;
        Ok(bytes)
    }

    /// The objects as they are stored, with those sizes.
    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        self.inner.list(prefix).await
    }
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use spdl_core::block_on;

    use super::*;
    use crate::{Cache, CachedFetcher, MemoryFetcher};

    fn store() -> Arc<dyn Fetcher> {
        Arc::new(MemoryFetcher::from_iter([("a", "one"), ("b", "two")]))
    }

    fn twice(bytes: &Bytes) -> Bytes {
        [&bytes[..], &bytes[..]].concat().into()
    }

    #[test]
    fn a_cache_above_it_keeps_what_was_prepared() {
        let calls = Arc::new(AtomicU32::new(0));
        let counter = Arc::clone(&calls);
        let prepared = Prepared::new(store(), move |_, bytes| {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok(twice(&bytes))
        });
        let cache = Cache::builder().memory(1 << 20).open().unwrap();
        let fetcher = CachedFetcher::new(Arc::new(prepared), cache);
        for _ in 0..3 {
            assert_eq!(block_on(fetcher.read(&"a".into(), None)).unwrap(), "oneone");
            assert_eq!(block_on(fetcher.read_at_most(&"b".into(), 6)).unwrap(), "twotwo");
        }
        assert_eq!(calls.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn limits_hold_before_and_after() {
        let prepared = Prepared::new(store(), |_, bytes| Ok(twice(&bytes)));
        for most in [2, 5] {
            let error = block_on(prepared.read_at_most(&"a".into(), most)).unwrap_err();
            assert_eq!((error.kind(), error.key()), (ErrorKind::LimitExceeded, Some("a")));
        }
        assert!(block_on(prepared.read_at_most(&"a".into(), 6)).is_ok());
    }

    #[test]
    fn failures_and_panics_name_the_object() {
        let prepared = Prepared::new(store(), |key, _| match key.as_str() {
            Some("a") => Err(Error::new(ErrorKind::Corrupt, "no image")),
            _ => panic!("a bug"),
        });
        for (key, kind) in [("a", ErrorKind::Corrupt), ("b", ErrorKind::Panicked)] {
            let error = block_on(prepared.read(&key.into(), None)).unwrap_err();
            assert_eq!((error.kind(), error.key()), (kind, Some(key)));
        }
        let error = block_on(prepared.read(&"c".into(), None)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn it_does_not_promise_what_it_cannot_keep() {
        let prepared = Prepared::new(store(), |_, bytes| Ok(bytes));
        assert_eq!(prepared.capability(), Capability::default().with_list());
        let error = block_on(prepared.read(&"a".into(), Some(0..1))).unwrap_err();
        assert_eq!((error.kind(), error.key()), (ErrorKind::Unsupported, Some("a")));
    }
}
