//! [`PartCache`]: a cache of decoded columns, decompressed shards and parts of objects, which many samples share.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use spdl_core::Result;
use spdl_core::memory::usable_memory;

use crate::files::IoThreads;

/// Time after which an idle thread ends.
const LINGER: Duration = Duration::from_secs(5);

/// Largest default size of a cache, in bytes.
const MAX_DEFAULT: u64 = 1 << 30;

/// The default size of a cache in bytes. Parts do not count in the memory budget of a pipeline.
pub(crate) fn default_part_cache_bytes() -> u64 {
    (usable_memory() / 8).min(MAX_DEFAULT)
}

/// A cache of parts, limited by bytes, with LRU eviction.
///
/// Concurrent requests for a part share one read. If all these requests are dropped, the read is cancelled,
/// which releases its connection. Failed reads are not cached.
pub(crate) struct PartCache<K, T> {
    max_bytes: u64,
    /// Threads for decompression and decoding, which would block the thread that polls the futures.
    threads: Arc<IoThreads>,
    state: Mutex<CacheState<K, T>>,
}

type SharedRead<T> = Shared<BoxFuture<'static, Result<Arc<T>>>>;

struct CacheState<K, T> {
    parts: HashMap<K, CachedPart<T>>,
    bytes: u64,
    /// A counter that orders uses by time.
    uses: u64,
}

struct CachedPart<T> {
    read: SharedRead<T>,
    last_use: u64,
    /// The expected number until the read has finished.
    bytes: u64,
    is_measured: bool,
    /// The number of waiting futures.
    waiting: usize,
}

impl<K: Clone + Eq + Hash, T: Send + Sync + 'static> PartCache<K, T> {
    /// A cache of `max_bytes` in total. The part that was read last is cached even if it exceeds
    /// the limit.
    pub(crate) fn new(max_bytes: u64) -> Self {
        let state = Mutex::new(CacheState { parts: HashMap::new(), bytes: 0, uses: 0 });
        let threads = std::thread::available_parallelism().map_or(2, |threads| threads.get());
        let threads = Arc::new(IoThreads::new("spdl-parts", threads, LINGER));
        PartCache { max_bytes, threads, state }
    }

    /// The threads on which reads decompress and decode.
    pub(crate) fn threads(&self) -> Arc<IoThreads> {
        Arc::clone(&self.threads)
    }

    /// Returns the part with this key from the cache, or calls `read`. The part counts in the limit once it was read.
    ///
    /// # Errors
    /// The errors of `read`.
    pub(crate) async fn get<F>(&self, key: K, read: impl FnOnce() -> F) -> Result<Arc<T>>
    where
        F: Future<Output = Result<T>> + Send + 'static,
        T: Sized + CachedBytes,
    {
        self.get_sized(key, 0, read).await
    }

    /// As [`get`](PartCache::get), for a part of `expected` bytes, which count in the limit before they are read.
    ///
    /// # Errors
    /// The errors of `read`.
    pub(crate) async fn get_sized<F>(
        &self,
        key: K,
        expected: u64,
        read: impl FnOnce() -> F,
    ) -> Result<Arc<T>>
    where
        F: Future<Output = Result<T>> + Send + 'static,
        T: Sized + CachedBytes,
    {
        let read = {
            let mut state = self.state();
            state.uses += 1;
            let last_use = state.uses;
            let mut added = 0;
            let part = state.parts.entry(key.clone()).or_insert_with(|| {
                let read = read().map(|part| part.map(Arc::new)).boxed().shared();
                added = expected;
                CachedPart { read, last_use, bytes: expected, is_measured: false, waiting: 0 }
            });
            part.last_use = last_use;
            part.waiting += 1;
            let read = part.read.clone();
            if added > 0 {
                state.bytes += added;
                state.make_room(self.max_bytes, &key);
            }
            read
        };
        let waiting = Waiter { parts: self, key: &key, read: &read };
        let result = read.clone().await;
        drop(waiting);
        let mut state = self.state();
        // Another read may have replaced this one.
        let Some(part) = state.parts.get_mut(&key).filter(|part| part.read.ptr_eq(&read)) else {
            return result;
        };
        match &result {
            Ok(read) if !part.is_measured => {
                let (expected, bytes) = (part.bytes, read.cached_bytes());
                (part.bytes, part.is_measured) = (bytes, true);
                state.bytes = state.bytes - expected + bytes;
                state.make_room(self.max_bytes, &key);
            }
            Ok(_) => {}
            Err(_) => state.remove(&key),
        }
        result
    }

    /// Drops a part that was read, so that the next request reads it again.
    pub(crate) fn discard(&self, key: &K) {
        let mut state = self.state();
        if state.parts.get(key).is_some_and(|part| part.is_measured) {
            state.remove(key);
        }
    }

    fn state(&self) -> MutexGuard<'_, CacheState<K, T>> {
        // No code under the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a waiting future. The last one that is dropped before the read finishes cancels the read.
struct Waiter<'a, K: Eq + Hash, T> {
    parts: &'a PartCache<K, T>,
    key: &'a K,
    read: &'a SharedRead<T>,
}

impl<K: Eq + Hash, T> Drop for Waiter<'_, K, T> {
    fn drop(&mut self) {
        let cancelled = {
            let mut state = self.parts.state.lock().unwrap_or_else(PoisonError::into_inner);
            let part = state.parts.get_mut(self.key);
            let Some(part) = part.filter(|part| part.read.ptr_eq(self.read)) else { return };
            part.waiting -= 1;
            let is_cancelled = part.waiting == 0 && part.read.peek().is_none();
            let cancelled = if is_cancelled { state.parts.remove(self.key) } else { None };
            state.bytes -= cancelled.as_ref().map_or(0, |part| part.bytes);
            cancelled
        };
        // Dropping the read may block, so drop it after releasing the lock.
        drop(cancelled);
    }
}

impl<K: Clone + Eq + Hash, T> CacheState<K, T> {
    fn make_room(&mut self, max_bytes: u64, newest: &K) {
        while self.bytes > max_bytes {
            let read = self.parts.iter().filter(|(key, part)| part.is_measured && *key != newest);
            let Some((oldest, _)) = read.min_by_key(|(_, part)| part.last_use) else { break };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &K) {
        self.bytes -= self.parts.remove(key).map_or(0, |part| part.bytes);
    }
}

impl<K, T> fmt::Debug for PartCache<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (parts, bytes) = (state.parts.len(), state.bytes);
        write!(f, "PartCache({parts} parts, {bytes} of {} bytes)", self.max_bytes)
    }
}

/// The memory use of a part.
pub(crate) trait CachedBytes {
    /// The approximate memory use, in bytes.
    fn cached_bytes(&self) -> u64;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::{Context, Waker};

    use futures_util::future::{join_all, pending};
    use spdl_core::{Error, ErrorKind, block_on};

    use super::*;

    impl CachedBytes for u64 {
        fn cached_bytes(&self) -> u64 {
            *self
        }
    }

    #[test]
    fn concurrent_requests_share_one_read() {
        let parts = PartCache::new(100);
        let reads = Arc::new(AtomicU64::new(0));
        let get = || {
            parts.get("a", || {
                let reads = Arc::clone(&reads);
                async move { Ok(reads.fetch_add(1, Ordering::Relaxed) + 7) }
            })
        };
        let all = block_on(join_all([get(), get(), get()]));
        assert!(all.into_iter().all(|part| *part.unwrap() == 7));
        assert_eq!(reads.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_least_recently_used_part_is_evicted_and_the_newest_is_not() {
        let parts = PartCache::new(100);
        let reads = AtomicU64::new(0);
        let get = |key: &'static str, size: u64| {
            let read = || {
                reads.fetch_add(1, Ordering::Relaxed);
                async move { Ok(size) }
            };
            block_on(parts.get(key, read)).unwrap();
            reads.load(Ordering::Relaxed)
        };
        assert_eq!((get("a", 50), get("b", 50)), (1, 2));
        // "a" is used again, so "c" evicts "b".
        assert_eq!((get("a", 50), get("c", 50), get("a", 50)), (2, 3, 3));
        assert_eq!(get("b", 50), 4);
        // A part larger than the limit is cached until another part is requested.
        assert_eq!((get("d", 500), get("d", 500)), (5, 5));
        assert_eq!((get("b", 50), get("d", 500)), (6, 7));
    }

    #[test]
    fn parts_of_known_size_make_room_before_they_are_read() {
        let parts: PartCache<u8, u64> = PartCache::new(100);
        let bytes = |parts: &PartCache<u8, u64>| parts.state().bytes;
        block_on(parts.get_sized(1, 60, || async { Ok(60) })).unwrap();
        let mut reading = Box::pin(parts.get_sized(2, 70, pending));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(reading.as_mut().poll(&mut cx).is_pending());
        assert_eq!(bytes(&parts), 70, "part 1 was evicted");
        drop(reading);
        assert_eq!(bytes(&parts), 0);
        let failed = || async { Err(Error::new(ErrorKind::Timeout, "slow")) };
        assert!(block_on(parts.get_sized(3, 50, failed)).is_err());
        assert_eq!(bytes(&parts), 0);
        block_on(parts.get_sized(3, 50, || async { Ok(40) })).unwrap();
        assert_eq!(bytes(&parts), 40);
        parts.discard(&3);
        assert_eq!(bytes(&parts), 0);
        assert_eq!(*block_on(parts.get(3, || async { Ok(8) })).unwrap(), 8);
        assert_eq!(bytes(&parts), 8);
    }

    #[test]
    fn a_failed_read_is_not_cached() {
        let parts: PartCache<u8, u64> = PartCache::new(100);
        let failed =
            block_on(parts.get(1, || async { Err(Error::new(ErrorKind::Timeout, "slow")) }));
        assert_eq!(failed.unwrap_err().kind(), ErrorKind::Timeout);
        assert_eq!(*block_on(parts.get(1, || async { Ok(3) })).unwrap(), 3);
    }

    /// Polls a read once, and drops it.
    fn poll_and_drop(
        parts: &PartCache<u8, u64>,
        read: impl Future<Output = Result<u64>> + Send + 'static,
    ) {
        let mut waiting = Box::pin(parts.get(1, || read));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
    }

    #[test]
    fn a_read_without_waiting_futures_is_cancelled() {
        let parts: PartCache<u8, u64> = PartCache::new(100);
        let connection = Arc::new(());
        let held = Arc::clone(&connection);
        poll_and_drop(&parts, async move {
            let _held = held;
            pending().await
        });
        assert_eq!(Arc::strong_count(&connection), 1);
        assert_eq!(*block_on(parts.get(1, || async { Ok(3) })).unwrap(), 3);
    }

    #[test]
    fn a_read_continues_while_one_future_waits() {
        let parts: PartCache<u8, u64> = PartCache::new(100);
        let (sender, receiver) = futures_channel::oneshot::channel::<u64>();
        let read = || async {
            receiver.await.map_err(|_| Error::new(ErrorKind::Internal, "the sender was dropped"))
        };
        let mut other = Box::pin(parts.get(1, read));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(other.as_mut().poll(&mut cx).is_pending());
        poll_and_drop(&parts, pending());
        sender.send(9).unwrap();
        assert_eq!(*block_on(other).unwrap(), 9);
        assert_eq!(*block_on(parts.get(1, pending)).unwrap(), 9);
    }
}
