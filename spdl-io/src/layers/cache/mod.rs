//! What was read once is kept: in memory, on a disk, or both.

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

use self::disk::{Disk, Kept};
use self::entry::EntryId;
use self::memory::Memory;
use crate::files::IoThreads;

pub use self::fetcher::CachedFetcher;
pub(crate) use self::fetcher::local_version;

/// Threads that read and write the files of a cache, at most.
const THREADS: usize = 8;
const LINGER: Duration = Duration::from_secs(10);

/// What a cache keeps where not everything fits.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CachePolicy {
    /// A fixed random part of the data: the entries whose hashes are the smallest.
    ///
    /// An epoch visits every sample once, so what was used last is what is needed last; a cache of
    /// the most recent entries gives about no hits where the data exceed it. A part that never
    /// changes gives as many hits, from the second epoch on, as it is of the data. Which part it is
    /// follows from the names alone: every rank, and every run, agrees on it.
    #[default]
    StableSubset,
    /// What was used most recently: for data of which some are asked for more often than others.
    Recent,
}

/// A cache of bytes by name, in memory, in a folder, or both. Clones are the same cache.
///
/// What memory has no room for goes to the folder, and what that has no room for is forgotten. A
/// folder may be shared by all ranks of a host at the same time, and by runs one after the other: it
/// holds plain files, each with a checksum, written under another name first. So whoever is killed
/// leaves no wrong byte and no lock behind, and nothing outside of the folder. A file that is damaged
/// all the same is removed, and read again from where it came.
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
    shared: Arc<Shared>,
}

struct Shared {
    namespace: String,
    memory: Option<Memory>,
    disk: Option<Arc<Disk>>,
    /// Where files are read and written; started when they are needed.
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

/// How a cache is to be; see [`Cache::builder`].
#[must_use = "nothing is kept before `open`"]
#[derive(Clone, Debug, Default)]
pub struct CacheBuilder {
    namespace: String,
    memory: u64,
    folder: Option<(PathBuf, u64)>,
    policy: CachePolicy,
}

impl CacheBuilder {
    /// Keeps up to so many bytes in memory. Default: 0. The bytes of the entries count, without some
    /// 100 of bookkeeping for each.
    pub fn memory(mut self, max_bytes: u64) -> Self {
        self.memory = max_bytes;
        self
    }

    /// Keeps up to so many bytes in files of `folder`, which is made where it is missing. It should be
    /// on a disk of this machine.
    pub fn folder(mut self, folder: impl Into<PathBuf>, max_bytes: u64) -> Self {
        self.folder = Some((folder.into(), max_bytes));
        self
    }

    /// What is kept where not everything fits. All that share a folder should agree on it.
    pub fn policy(mut self, policy: CachePolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Tells entries apart that have the same key and differ all the same: another way to prepare
    /// them, another version of data whose versions nobody tells. Default: the empty name.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Opens the cache; looks through the files that are in its folder.
    ///
    /// # Errors
    /// `InvalidArgument` where neither memory nor a folder was given, and for a folder with other
    /// files than those of a cache; `Io` and `PermissionDenied` where the folder cannot be used;
    /// `Unsupported` for one that a newer version has written.
    pub fn open(self) -> Result<Cache> {
        let CacheBuilder { namespace, memory, folder, policy } = self;
        if memory == 0 && folder.is_none() {
            let message = "a cache needs room: `memory`, `folder` or both";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let memory = (memory > 0).then(|| Memory::new(policy, memory));
        let disk = folder.map(|(folder, max_bytes)| Disk::open(folder, max_bytes, policy));
        let disk = disk.transpose()?.map(Arc::new);
        let threads = IoThreads::new("spdl-cache", THREADS, LINGER);
        let counters = Counters::default();
        Ok(Cache { shared: Arc::new(Shared { namespace, memory, disk, threads, counters }) })
    }
}

impl Cache {
    /// Begins to describe a cache.
    pub fn builder() -> CacheBuilder {
        CacheBuilder::default()
    }

    /// The bytes of this name, where they are kept.
    ///
    /// Never fails: what cannot be read, or is damaged, is not kept.
    pub async fn get(&self, name: &[u8]) -> Option<Bytes> {
        self.get_version(name, None).await
    }

    /// The bytes of this name, where they are kept and of this version. `None` is a version like any
    /// other: that of what was kept without one.
    ///
    /// Bytes of another version are forgotten, as those that come will take their place.
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
        let shared = &self.shared;
        let id = EntryId::new(&shared.namespace, name, version);
        if let Some(bytes) = shared.memory.as_ref().and_then(|memory| memory.get(&id)) {
            shared.counters.memory_hits.fetch_add(1, Ordering::Relaxed);
            return Some(bytes);
        }
        let Some(found) = self.get_from_disk(&id).await else {
            shared.counters.misses.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        shared.counters.disk_hits.fetch_add(1, Ordering::Relaxed);
        if let Some(memory) = &shared.memory {
            self.put_to_disk(memory.promote(&id, &found)).await;
        }
        Some(found)
    }

    async fn get_from_disk(&self, id: &EntryId) -> Option<Bytes> {
        let disk = self.shared.disk.as_ref()?;
        if !disk.has_place(id) {
            return None;
        }
        let (disk, id) = (Arc::clone(disk), id.clone());
        match self.shared.threads.run(move || Ok(disk.get(&id))).await {
            Ok(Kept::Whole(bytes)) => Some(bytes),
            Ok(Kept::Damaged) => {
                self.shared.counters.damaged.fetch_add(1, Ordering::Relaxed);
                None
            }
            Ok(Kept::Nothing) | Err(_) => None,
        }
    }

    /// Keeps bytes under a name, where there is room for them by the policy. Ready when they are
    /// written.
    ///
    /// Never fails: a full disk is a cache that keeps less, counted in
    /// [`unwritten`](CacheStatistics::unwritten).
    pub async fn put(&self, name: &[u8], bytes: &Bytes) {
        self.put_version(name, None, bytes).await;
    }

    /// The same for bytes of a version, which [`get_version`](Cache::get_version) asks for.
    pub async fn put_version(&self, name: &[u8], version: Option<&[u8]>, bytes: &Bytes) {
        let id = EntryId::new(&self.shared.namespace, name, version);
        let Some(memory) = &self.shared.memory else {
            return self.put_to_disk(vec![(id, bytes.clone())]).await;
        };
        self.put_to_disk(memory.put(&id, bytes)).await;
    }

    async fn put_to_disk(&self, mut entries: Vec<(EntryId, Bytes)>) {
        let Some(disk) = &self.shared.disk else { return };
        entries.retain(|(id, _)| disk.has_place(id));
        if entries.is_empty() {
            return;
        }
        let disk = Arc::clone(disk);
        let shared = Arc::clone(&self.shared);
        let written = self.shared.threads.run(move || {
            for (id, bytes) in &entries {
                let counter = match disk.put(id, bytes) {
                    Ok(true) => &shared.counters.written,
                    Ok(false) => continue,
                    Err(_) => &shared.counters.unwritten,
                };
                counter.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
        // A thread that cannot be had is the only failure, and its entries are not kept.
        let _ = written.await;
    }

    /// What it has done so far, in this process.
    pub fn statistics(&self) -> CacheStatistics {
        let Shared { memory, disk, counters, .. } = &*self.shared;
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
            .field("namespace", &self.shared.namespace)
            .field("memory", &self.shared.memory.as_ref().map(Memory::max_bytes))
            .field("folder", &self.shared.disk.as_ref().map(|disk| disk.folder()))
            .finish_non_exhaustive()
    }
}

/// What a cache has done.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Lookups that were answered from memory.
    pub memory_hits: u64,
    /// Lookups that were answered from the folder.
    pub disk_hits: u64,
    /// Lookups that found nothing.
    pub misses: u64,
    /// Entries that were written to the folder.
    pub written: u64,
    /// Entries that could not be written: the disk is full, say.
    pub unwritten: u64,
    /// Files that were damaged, and removed. They count as misses too.
    pub damaged: u64,
    /// Bytes kept in memory now.
    pub memory_bytes: u64,
    /// Bytes kept in the folder by all its users, as far as this one knows.
    pub disk_bytes: u64,
}

impl CacheStatistics {
    /// The share of lookups that were answered, from 0 to 1; 0 where there were none.
    pub fn hit_rate(&self) -> f64 {
        let hits = self.memory_hits + self.disk_hits;
        hits as f64 / (hits + self.misses).max(1) as f64
    }

    /// What was done since `earlier`, an epoch ago say. Bytes are those of now.
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
