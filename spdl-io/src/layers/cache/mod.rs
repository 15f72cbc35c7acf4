//! [`Cache`]: keeps bytes in memory, on disk, or both.
//!
//! | file | what it holds |
//! |---|---|
//! | this file | [`Cache`], its builder and statistics |
//! | `memory`, `disk` | the two tiers |
//! | `entry` | identity and file format of an entry |
//! | `fetcher` | [`CachedFetcher`]: reads through a cache |

mod disk;
mod entry;
mod fetcher;
mod memory;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use self::disk::{Disk, DiskLookup};
use self::entry::EntryId;
use self::memory::Memory;
use crate::fetch::ReadMemory;
use crate::files::IoThreads;

pub use self::fetcher::CachedFetcher;
pub(crate) use self::fetcher::local_version;

/// Maximum number of threads that read and write cache files.
const THREADS: usize = 8;
/// Time after which an idle thread ends.
const LINGER: Duration = Duration::from_secs(10);

/// Which entries a full cache keeps.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachePolicy {
    /// Keeps a fixed pseudo-random subset: the entries with the smallest hashes.
    ///
    /// Each epoch visits every sample once. If the data exceed an LRU cache, entries are evicted
    /// before their next use, and the hit rate is about 0. A fixed subset has a hit rate equal to
    /// its share of the data, from the second epoch on. The hashes depend only on the namespace and
    /// the names, so all ranks and later runs prefer the same entries.
    #[default]
    StableSubset,
    /// Keeps the most recently used entries (LRU), for data with a skewed access pattern. On disk,
    /// the order is approximate: the least recently used entry of a part of the folder is evicted.
    Recent,
}

/// A cache of bytes by name, in memory, in a folder, or both. Clones share one cache.
///
/// Entries that do not fit into memory are written to the folder. Entries that do not fit into the
/// folder are dropped. All ranks of a host, and later runs, may share a folder. Each entry is a
/// file with a checksum, written under a temporary name and then renamed. If a process is killed,
/// the system releases its locks, no wrong bytes are returned later, and no files remain outside
/// the folder. A lookup that finds a corrupt file deletes it and is a miss.
///
/// ```
/// use std::sync::Arc;
/// use spdl_io::{Cache, CachedFetcher, Fetcher, Key, LocalFetcher};
/// # let folder = tempfile::tempdir().unwrap();
/// # let (path, kept) = (folder.path().join("cat.jpg"), folder.path().join("cache"));
/// # std::fs::write(&path, b"meow").unwrap();
/// let cache = Cache::builder().memory(64 << 20).folder(kept, 10 << 30).open()?;
/// let fetcher = CachedFetcher::new(Arc::new(LocalFetcher::new()), cache.clone());
/// for _epoch in 0..2 {
///     assert_eq!(spdl_core::block_on(fetcher.read(&Key::from_path(&path), None))?, "meow");
/// }
/// let statistics = cache.statistics();
/// assert_eq!((statistics.misses, statistics.memory_hits), (1, 1));
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Cache {
    namespace: Arc<str>,
    state: Arc<CacheInner>,
}

struct CacheInner {
    memory: Option<Memory>,
    disk: Option<Arc<Disk>>,
    /// Threads that read and write files, started on demand.
    threads: IoThreads,
    counters: Counters,
}

#[derive(Default)]
struct Counters {
    memory_hits: AtomicU64,
    disk_hits: AtomicU64,
    misses: AtomicU64,
    written: AtomicU64,
    unwritten: AtomicU64,
    damaged: AtomicU64,
}

/// Settings of a [`Cache`]; see [`Cache::builder`].
#[must_use = "call `open` to create the cache"]
#[derive(Clone, Debug, Default)]
pub struct CacheBuilder {
    namespace: String,
    memory: u64,
    folder: Option<(PathBuf, u64)>,
    policy: CachePolicy,
}

impl CacheBuilder {
    /// Sets the memory limit in bytes. About 100 bytes of overhead per entry are not counted.
    /// Default: 0, no memory tier.
    pub fn memory(mut self, max_bytes: u64) -> Self {
        self.memory = max_bytes;
        self
    }

    /// Stores entries as files in `folder`, up to `max_bytes` bytes. The folder is created if it
    /// does not exist. Use a local disk. Default: no disk tier.
    pub fn folder(mut self, folder: impl Into<PathBuf>, max_bytes: u64) -> Self {
        self.folder = Some((folder.into(), max_bytes));
        self
    }

    /// Sets the policy of a full cache. All users of a folder should use the same policy. Default:
    /// [`CachePolicy::StableSubset`].
    pub fn policy(mut self, policy: CachePolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets a namespace, which separates entries with equal names. Use a separate namespace for
    /// each kind of preprocessing. If the store reports no versions, also use a separate namespace
    /// for each version of the data. Default: empty.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Opens the cache. If no other process uses the folder, scans it.
    ///
    /// # Errors
    /// `InvalidArgument` if neither memory nor folder is set, or if the folder contains files that
    /// do not belong to a cache. `Io` or `PermissionDenied` if the folder cannot be used.
    /// `Unsupported` if the folder has another format version.
    pub fn open(self) -> Result<Cache> {
        let CacheBuilder { namespace, memory, folder, policy } = self;
        if memory == 0 && folder.is_none() {
            let message = "the cache has no storage; set `memory`, `folder` or both";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let memory = (memory > 0).then(|| Memory::new(policy, memory));
        let disk = folder.map(|(folder, max_bytes)| Disk::open(folder, max_bytes, policy));
        let disk = disk.transpose()?.map(Arc::new);
        let threads = IoThreads::new("spdl-cache", THREADS, LINGER);
        let counters = Counters::default();
        let state = Arc::new(CacheInner { memory, disk, threads, counters });
        Ok(Cache { namespace: namespace.into(), state })
    }
}

impl Cache {
    /// Returns a builder with default settings.
    pub fn builder() -> CacheBuilder {
        CacheBuilder::default()
    }

    /// The same cache with another [namespace](CacheBuilder::namespace): it shares the storage and the statistics.
    ///
    /// ```
    /// use spdl_io::{Bytes, Cache};
    /// let cache = Cache::builder().memory(1 << 20).namespace("train").open()?;
    /// let other = cache.with_namespace("validation");
    /// spdl_core::block_on(cache.put(b"1.jpg", &Bytes::from_static(b"pixels")));
    /// assert_eq!(spdl_core::block_on(other.get(b"1.jpg")), None);
    /// assert_eq!(cache.statistics().misses, 1);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_namespace(&self, namespace: impl Into<Arc<str>>) -> Cache {
        Cache { namespace: namespace.into(), state: Arc::clone(&self.state) }
    }

    /// The same cache for the objects of one of several stores, which may have equal keys.
    pub(crate) fn within(&self, store: &str) -> Cache {
        self.with_namespace(format!("{}\n{store}", self.namespace))
    }

    /// Returns the bytes stored under a name, or `None` if they are not cached.
    ///
    /// Unreadable and corrupt files count as misses.
    pub async fn get(&self, name: &[u8]) -> Option<Bytes> {
        self.get_version(name, None).await
    }

    /// Returns the bytes stored under a name with a version, or `None` if they are not cached.
    ///
    /// Version `None` matches only entries stored without a version. An entry with another version
    /// may be dropped.
    ///
    /// ```
    /// use spdl_io::{Bytes, Cache};
    /// let cache = Cache::builder().memory(1 << 20).open()?;
    /// spdl_core::block_on(async {
    ///     cache.put_version(b"cat.jpg", Some(b"1"), &Bytes::from_static(b"meow")).await;
    ///     assert!(cache.get_version(b"cat.jpg", Some(b"1")).await.is_some());
    ///     assert!(cache.get_version(b"cat.jpg", Some(b"2")).await.is_none());
    /// });
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub async fn get_version(&self, name: &[u8], version: Option<&[u8]>) -> Option<Bytes> {
        self.get_within(name, version, &u64::MAX).await
    }

    /// Returns the bytes stored under a name with a version. Memory for them is reserved before
    /// they are read from the folder.
    pub(crate) async fn get_within(
        &self,
        name: &[u8],
        version: Option<&[u8]>,
        reserve_in: &dyn ReadMemory,
    ) -> Option<Bytes> {
        let state = &self.state;
        let id = EntryId::new(&self.namespace, name, version);
        if let Some(bytes) = state.memory.as_ref().and_then(|memory| memory.get(&id)) {
            state.counters.memory_hits.fetch_add(1, Ordering::Relaxed);
            reserve_in.reserve(bytes.len() as u64).await;
            return Some(bytes);
        }
        let Some(found) = self.get_from_disk(&id, reserve_in).await else {
            state.counters.misses.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        state.counters.disk_hits.fetch_add(1, Ordering::Relaxed);
        if let Some(memory) = &state.memory {
            self.put_to_disk(memory.promote(&id, &found)).await;
        }
        Some(found)
    }

    async fn get_from_disk(&self, id: &EntryId, memory: &dyn ReadMemory) -> Option<Bytes> {
        let disk = self.state.disk.as_ref()?;
        if !disk.may_admit(id) {
            return None;
        }
        let get = |allowed| {
            let (disk, id) = (Arc::clone(disk), id.clone());
            self.state.threads.run(move || Ok(disk.get(&id, allowed)))
        };
        let mut found = get(memory.reserved_bytes()).await;
        if let Ok(DiskLookup::Large(len)) = found {
            memory.reserve(len).await;
            found = get(u64::MAX).await;
        }
        match found {
            Ok(DiskLookup::Hit(bytes)) => Some(bytes),
            Ok(DiskLookup::Corrupt) => {
                self.state.counters.damaged.fetch_add(1, Ordering::Relaxed);
                None
            }
            Ok(DiskLookup::Large(_) | DiskLookup::Miss) | Err(_) => None,
        }
    }

    /// Stores bytes under a name if the policy admits them. Completes after the write.
    ///
    /// Never fails. Failed writes, for example on a full disk, are counted in
    /// [`unwritten`](CacheStatistics::unwritten), unless no thread can be started.
    pub async fn put(&self, name: &[u8], bytes: &Bytes) {
        self.put_version(name, None, bytes).await;
    }

    /// Stores bytes with a version, for [`get_version`](Cache::get_version).
    pub async fn put_version(&self, name: &[u8], version: Option<&[u8]>, bytes: &Bytes) {
        let id = EntryId::new(&self.namespace, name, version);
        let Some(memory) = &self.state.memory else {
            return self.put_to_disk(vec![(id, bytes.clone())]).await;
        };
        self.put_to_disk(memory.put(&id, bytes)).await;
    }

    async fn put_to_disk(&self, mut entries: Vec<(EntryId, Bytes)>) {
        let Some(disk) = &self.state.disk else { return };
        entries.retain(|(id, _)| disk.may_admit(id));
        if entries.is_empty() {
            return;
        }
        let disk = Arc::clone(disk);
        let state = Arc::clone(&self.state);
        let written = self.state.threads.run(move || {
            for (id, bytes) in &entries {
                let counter = match disk.put(id, bytes) {
                    Ok(true) => &state.counters.written,
                    Ok(false) => continue,
                    Err(_) => &state.counters.unwritten,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        // Fails only if no thread can be started. The entries are then not stored.
        let _ = written.await;
    }

    /// Returns the statistics of this process since the cache was opened.
    pub fn statistics(&self) -> CacheStatistics {
        let CacheInner { memory, disk, counters, .. } = &*self.state;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStatistics {
            memory_hits: read(&counters.memory_hits),
            disk_hits: read(&counters.disk_hits),
            misses: read(&counters.misses),
            written: read(&counters.written),
            unwritten: read(&counters.unwritten),
            damaged: read(&counters.damaged),
            memory_bytes: memory.as_ref().map_or(0, Memory::bytes),
            disk_bytes: disk.as_ref().map_or(0, |disk| disk.bytes()),
        }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("namespace", &self.namespace)
            .field("memory", &self.state.memory.as_ref().map(Memory::max_bytes))
            .field("folder", &self.state.disk.as_ref().map(|disk| disk.folder()))
            .finish_non_exhaustive()
    }
}

/// Counters of a cache in this process.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Lookups served from memory.
    pub memory_hits: u64,
    /// Lookups served from the folder.
    pub disk_hits: u64,
    /// Lookups without a result.
    pub misses: u64,
    /// Entries written to the folder.
    pub written: u64,
    /// Entries that could not be written, for example because the disk is full.
    pub unwritten: u64,
    /// Corrupt files, which were deleted. They also count as misses.
    pub damaged: u64,
    /// Current size of the memory tier in bytes.
    pub memory_bytes: u64,
    /// Size of the folder in bytes for all its users, as last seen by this process.
    pub disk_bytes: u64,
}

impl CacheStatistics {
    /// Returns the share of lookups that were hits, from 0 to 1. Returns 0 without lookups.
    pub fn hit_rate(&self) -> f64 {
        let hits = self.memory_hits + self.disk_hits;
        hits as f64 / (hits + self.misses).max(1) as f64
    }

    /// Returns the counts since `earlier`, for example of one epoch. Sizes are current values.
    #[must_use]
    pub fn since(&self, earlier: &CacheStatistics) -> CacheStatistics {
        CacheStatistics {
            memory_hits: self.memory_hits.saturating_sub(earlier.memory_hits),
            disk_hits: self.disk_hits.saturating_sub(earlier.disk_hits),
            misses: self.misses.saturating_sub(earlier.misses),
            written: self.written.saturating_sub(earlier.written),
            unwritten: self.unwritten.saturating_sub(earlier.unwritten),
            damaged: self.damaged.saturating_sub(earlier.damaged),
            ..*self
        }
    }
}
