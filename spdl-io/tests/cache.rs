//! Tests of `Cache`: hits, limits, and correct bytes after crashes and corruption.

// promise of this file: DATA5
#![cfg(feature = "cache")]
#![expect(clippy::unwrap_used, reason = "test helpers report failures by panics")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use spdl_core::source::Permutation;
use spdl_core::{Error, ErrorKind, Result, block_on};
use spdl_io::layers::{CacheBuilder, CachePolicy, CacheStatistics};
use spdl_io::{Cache, CachedFetcher, Capability, Fetcher, Key, MemoryFetcher, ReadMemory};

/// Distinct contents of 200 to 1,400 bytes.
fn contents(number: u64) -> Bytes {
    let len = 200 + number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 1200;
    (0..len).map(|at| (number ^ at).wrapping_mul(167) as u8).collect()
}

fn name(number: u64) -> Vec<u8> {
    format!("object {number}").into_bytes()
}

/// Reads objects `0..count` in a shuffled order, and stores missing ones.
fn epoch(cache: &Cache, count: u64, order: u64) -> CacheStatistics {
    let before = cache.statistics();
    let shuffled = Permutation::new(count, 7, order);
    for number in (0..count).map(|position| shuffled.at(position)) {
        let expected = contents(number);
        match block_on(cache.get(&name(number))) {
            Some(found) => assert!(found == expected, "object {number}"),
            None => block_on(cache.put(&name(number), &expected)),
        }
    }
    cache.statistics().since(&before)
}

fn total(count: u64) -> u64 {
    (0..count).map(|number| contents(number).len() as u64).sum()
}

/// Returns the lengths of all entry files, and the number of unfinished files.
fn files(folder: &Path) -> (Vec<u64>, usize) {
    let list = |path: &Path| -> Vec<u64> {
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).collect()
    };
    let entries = (0..=255).flat_map(|prefix| list(&folder.join(format!("{prefix:02x}"))));
    (entries.collect(), list(&folder.join("new")).len())
}

#[test]
fn the_stable_subset_has_a_hit_rate_of_its_share() {
    let folder = tempfile::tempdir().unwrap();
    let (count, room) = (5_000, total(5_000) / 5);
    // An entry's file has 40 bytes of header in addition to name and contents.
    let heads = count / 5 * 60;
    let places: [CacheBuilder; 3] = [
        Cache::builder().memory(room),
        Cache::builder().folder(folder.path().join("a"), room + heads),
        Cache::builder().memory(room / 2).folder(folder.path().join("b"), room / 2 + heads / 2),
    ];
    for builder in places {
        let cache = builder.clone().open().unwrap();
        epoch(&cache, count, 0);
        for order in 1..4 {
            let statistics = epoch(&cache, count, order);
            assert_eq!(statistics.written, 0, "the stable subset does not change: {builder:?}");
            let hits = statistics.hit_rate();
            assert!((0.19..=0.21).contains(&hits), "{hits} of 0.2 in epoch {order}: {builder:?}");
        }
        let statistics = cache.statistics();
        assert_eq!((statistics.damaged, statistics.unwritten), (0, 0));
        assert!(statistics.memory_bytes + statistics.disk_bytes <= room + heads);
    }
}

#[test]
fn lru_has_no_hits_for_sequential_epochs() {
    let folder = tempfile::tempdir().unwrap();
    let (count, room) = (1_000, total(1_000) / 5);
    for builder in
        [Cache::builder().memory(room), Cache::builder().folder(folder.path().join("a"), room)]
    {
        let cache = builder.policy(CachePolicy::Recent).open().unwrap();
        epoch(&cache, count, 0);
        let hits = epoch(&cache, count, 0).hit_rate();
        assert!(hits < 0.01, "{hits}");
    }
}

#[test]
fn lru_keeps_frequently_used_entries() {
    let folder = tempfile::tempdir().unwrap();
    let room = total(1_000) / 5;
    for builder in [
        Cache::builder().memory(room),
        Cache::builder().folder(folder.path().join("a"), room),
        Cache::builder().memory(room / 2).folder(folder.path().join("b"), room),
    ] {
        let cache = builder.policy(CachePolicy::Recent).open().unwrap();
        let often = 5_000..5_020;
        for number in often.clone() {
            block_on(cache.put(&name(number), &contents(number)));
        }
        let mut lost = 0;
        for number in 0..1_000 {
            block_on(cache.put(&name(number), &contents(number)));
            let often = name(often.start + number % 20);
            lost += u64::from(block_on(cache.get(&often)).is_none());
        }
        assert_eq!(lost, 0, "misses of 1,000 uses: {cache:?}");
    }
}

#[test]
fn lru_promotes_disk_hits_to_memory() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Cache::builder().memory(3_000).folder(folder.path().join("kept"), 1 << 20);
    let cache = builder.policy(CachePolicy::Recent).open().unwrap();
    for number in 0..100 {
        block_on(cache.put(&name(number), &contents(number)));
    }
    for number in (0..100).rev() {
        for tier in ["folder or memory", "memory"] {
            let found = block_on(cache.get(&name(number)));
            assert!(found == Some(contents(number)), "{number} is lost: {tier}");
        }
    }
    let statistics = cache.statistics();
    assert_eq!(statistics.memory_hits + statistics.disk_hits, 200);
    assert!(statistics.disk_hits <= 100, "{statistics:?}");
    for number in 0..100 {
        let found = block_on(cache.get(&name(number)));
        assert!(found == Some(contents(number)), "evicted entry {number} is missing");
    }
}

#[test]
fn a_large_folder_caches_all_entries_across_runs() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Cache::builder().folder(folder.path().join("kept"), 1 << 30).open().unwrap();
    let count = 300;
    let cache = open();
    assert_eq!(epoch(&cache, count, 0).misses, count);
    assert_eq!(epoch(&cache, count, 1).misses, 0);
    drop(cache);
    let cache = open();
    assert_eq!(epoch(&cache, count, 2).disk_hits, count);
    let (lengths, new) = files(&folder.path().join("kept"));
    assert_eq!((lengths.len() as u64, new), (count, 0));
    assert_eq!(cache.statistics().disk_bytes, lengths.iter().sum::<u64>());
}

#[test]
fn changed_limits_take_effect_on_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    let count = 1_000;
    let whole = total(count) + 60 * count;
    for (part, expected) in [(1.0, 1.0), (0.5, 0.5), (0.1, 0.1), (1.0, 1.0)] {
        let room = (whole as f64 * part) as u64;
        let cache = Cache::builder().folder(&path, room).open().unwrap();
        let (lengths, _) = files(&path);
        assert!(lengths.iter().sum::<u64>() <= room, "excess entries are evicted");
        epoch(&cache, count, 1);
        let hits = epoch(&cache, count, 2).hit_rate();
        assert!((hits - expected).abs() < 0.05, "{hits} of {part}");
    }
}

#[test]
fn ranks_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    let (count, room) = (2_000, total(2_000) / 4);
    let ranks: Vec<Cache> =
        (0..4).map(|_| Cache::builder().folder(&path, room).open().unwrap()).collect();
    std::thread::scope(|scope| {
        for (rank, cache) in ranks.iter().enumerate() {
            scope.spawn(move || epoch(cache, count, rank as u64));
        }
    });
    let (lengths, new) = files(&path);
    assert!(lengths.iter().sum::<u64>() <= room && new == 0, "all ranks share one limit");
    let hits: Vec<u64> = ranks.iter().map(|cache| epoch(cache, count, 9).disk_hits).collect();
    assert!(hits.iter().all(|&other| other == hits[0] && other > count / 5), "{hits:?}");
}

#[test]
fn concurrent_processes_create_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..50 {
        let path = folder.path().join(round.to_string());
        let together = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    together.wait();
                    let cache = Cache::builder().folder(&path, 1 << 20).open().unwrap();
                    block_on(cache.put(b"name", &contents(1)));
                });
            }
        });
    }
    // An empty marker, as an interrupted creation leaves it.
    let path = folder.path().join("killed");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("spdl-cache"), "").unwrap();
    Cache::builder().folder(&path, 1 << 20).open().unwrap();
    fs::create_dir(folder.path().join("other")).unwrap();
    fs::write(folder.path().join("other/file"), "").unwrap();
    let refused = Cache::builder().folder(folder.path().join("other"), 1 << 20).open();
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn corrupt_entries_are_misses_and_are_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    let cache = Cache::builder().folder(&path, 1 << 20).open().unwrap();
    block_on(cache.put(b"name", &contents(1)));
    let entries = (0..=255u8)
        .filter_map(|prefix| fs::read_dir(path.join(format!("{prefix:02x}"))).unwrap().next());
    let entry = entries.map(|entry| entry.unwrap().path()).next().unwrap();
    let whole = fs::read(&entry).unwrap();
    for (at, damage) in (0..whole.len()).step_by(7).enumerate() {
        let mut bytes = whole.clone();
        bytes[damage] ^= 1;
        // Every second file is truncated.
        let damaged = if at % 2 == 0 { &bytes[..] } else { &whole[..damage] };
        fs::write(&entry, damaged).unwrap();
        assert_eq!(block_on(cache.get(b"name")), None, "byte {damage}");
        assert!(!entry.exists(), "byte {damage}");
        assert_eq!(cache.statistics().damaged, at as u64 + 1);
        block_on(cache.put(b"name", &contents(1)));
        assert_eq!(block_on(cache.get(b"name")).unwrap(), contents(1));
        if at == 0 {
            assert_eq!(
                cache.statistics().disk_bytes,
                whole.len() as u64,
                "only the new entry counts"
            );
        }
    }
    for usage in [&b"rubbish"[..], &[0; 40]] {
        fs::write(path.join("usage"), usage).unwrap();
        assert_eq!(block_on(cache.get(b"name")).unwrap(), contents(1), "reads do not need `usage`");
    }
    drop(cache);
    let cache = Cache::builder().folder(&path, 1 << 20).open().unwrap();
    assert_eq!(cache.statistics().disk_bytes, whole.len() as u64, "rebuilt");
}

/// Returns the hashes of all entries, and the hash limit.
fn hashes(folder: &Path) -> (Vec<u128>, u128) {
    let entries = (0..=255u8).flat_map(|prefix| {
        fs::read_dir(folder.join(format!("{prefix:02x}"))).unwrap().map(|entry| {
            u128::from_str_radix(entry.unwrap().file_name().to_str().unwrap(), 16).unwrap()
        })
    });
    let usage = fs::read(folder.join("usage")).unwrap();
    (entries.collect(), u128::from_le_bytes(usage[16..32].try_into().unwrap()))
}

#[test]
fn entries_beyond_the_hash_limit_are_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    let open = || Cache::builder().folder(&path, 100_000).open().unwrap();
    let first = open();
    let others: Vec<Cache> = (0..40).map(|_| open()).collect();
    epoch(&first, 1_000, 0);
    // The limit rejects these entries although they would fit. Instances with an old limit try a
    // write.
    for (number, other) in others.iter().enumerate() {
        block_on(other.put(&number.to_le_bytes(), &Bytes::from_static(b"x")));
    }
    let (hashes, hash_limit) = hashes(&path);
    assert!(hashes.len() > 100 && hashes.iter().all(|&hash| hash < hash_limit));
    // The first write updates the known limit.
    epoch(&first, 1_000, 1);
    fs::remove_dir(path.join("new")).unwrap();
    fs::write(path.join("new"), "").unwrap();
    let statistics = epoch(&first, 1_000, 2);
    assert!(statistics.misses > 500 && statistics.unwritten == 0, "{statistics:?}");
}

#[test]
fn failed_writes_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    let cache = Cache::builder().folder(&path, 1 << 20).open().unwrap();
    block_on(cache.put(b"name", &contents(1)));
    fs::remove_dir(path.join("new")).unwrap();
    fs::write(path.join("new"), "").unwrap();
    block_on(cache.put(b"other", &contents(2)));
    let statistics = cache.statistics();
    assert_eq!((statistics.written, statistics.unwritten), (1, 1));
    assert_eq!(block_on(cache.get(b"other")), None);
    assert_eq!(block_on(cache.get(b"name")).unwrap(), contents(1));
}

#[test]
fn folders_with_other_files_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Cache::builder().folder(folder.path(), 1 << 20).open().map(|_| ());
    fs::write(folder.path().join("thesis.tex"), "years of work").unwrap();
    let error = open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing was written");
    fs::remove_file(folder.path().join("thesis.tex")).unwrap();
    open().unwrap();
    open().unwrap();
    fs::write(folder.path().join("spdl-cache"), "2\n").unwrap();
    let error = open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = Cache::builder().open().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

#[test]
fn namespaces_are_separate() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| {
        Cache::builder().folder(folder.path().join("kept"), 1 << 20).namespace(name).open().unwrap()
    };
    let (old, new) = (open("v1"), open("v2"));
    block_on(old.put(b"name", &contents(1)));
    assert_eq!(block_on(new.get(b"name")), None);
    block_on(new.put(b"name", &contents(2)));
    assert_eq!(block_on(old.get(b"name")).unwrap(), contents(1));
    assert_eq!(block_on(new.get(b"name")).unwrap(), contents(2));
}

/// Objects that count their reads.
#[derive(Debug, Default)]
struct CountingFetcher {
    objects: BTreeMap<Key, Bytes>,
    reads: AtomicU64,
}

#[async_trait]
impl Fetcher for CountingFetcher {
    fn capability(&self) -> Capability {
        Capability::default().with_ranges()
    }

    async fn read(&self, key: &Key, range: Option<std::ops::Range<u64>>) -> Result<Bytes> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let object = self.objects.get(key).cloned();
        let object = object.ok_or_else(|| Error::new(ErrorKind::NotFound, "object not found"))?;
        Ok(range
            .map_or(object.clone(), |range| object.slice(range.start as usize..range.end as usize)))
    }
}

#[test]
fn warm_epochs_read_nothing_from_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let objects = (0..50).map(|number| (Key::from(number.to_string()), contents(number)));
    let store = Arc::new(CountingFetcher { objects: objects.collect(), ..Default::default() });
    let cache = Cache::builder().folder(folder.path().join("kept"), 1 << 20).open().unwrap();
    let cached = CachedFetcher::new(Arc::clone(&store) as Arc<dyn Fetcher>, cache);
    for _ in 0..3 {
        for (key, bytes) in &store.objects {
            assert_eq!(block_on(cached.read(key, None)).unwrap(), bytes);
            assert_eq!(block_on(cached.read(key, Some(3..90))).unwrap(), bytes.slice(3..90));
            assert_eq!(block_on(cached.read_whole(key, &2_000)).unwrap(), bytes);
            let error = block_on(cached.read_whole(key, &100)).unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::LimitExceeded,
                "the limit also holds for cached objects"
            );
        }
        for (key, bytes) in &store.objects {
            let ranges = [3..90, 0..2, 100..110];
            let parts = block_on(cached.read_ranges(key, &ranges)).unwrap();
            let expected = ranges.map(|range: std::ops::Range<u64>| {
                bytes.slice(range.start as usize..range.end as usize)
            });
            assert_eq!(parts, expected);
        }
        assert_eq!(store.reads.load(Ordering::Relaxed), 200, "each object, and each range, once");
    }
    // Errors are not cached.
    for reads in [201, 202] {
        let error = block_on(cached.read(&"missing".into(), None)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(store.reads.load(Ordering::Relaxed), reads);
    }
}

#[test]
fn changed_files_are_read_again_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (path, kept) = (folder.path().join("object"), folder.path().join("kept"));
    let key = Key::from_path(&path);
    for (number, builder) in [
        Cache::builder().memory(1 << 20),
        Cache::builder().folder(&kept, 1 << 20),
        Cache::builder().memory(1 << 20).policy(CachePolicy::Recent),
    ]
    .into_iter()
    .enumerate()
    {
        let cache = builder.open().unwrap();
        let fetcher = CachedFetcher::new(Arc::new(spdl_io::LocalFetcher::new()), cache.clone());
        let mut before = cache.statistics();
        for version in 0..3 {
            let bytes = contents(100 * number as u64 + version);
            fs::write(&path, &bytes).unwrap();
            for misses in [3, 0] {
                assert_eq!(block_on(fetcher.read(&key, None)).unwrap(), bytes);
                assert_eq!(block_on(fetcher.read(&key, Some(3..90))).unwrap(), bytes[3..90]);
                let parts =
                    block_on(fetcher.read_ranges(&key, std::slice::from_ref(&(5..7)))).unwrap();
                assert_eq!(parts, [bytes.slice(5..7)]);
                assert_eq!(block_on(fetcher.read_whole(&key, &2_000)).unwrap(), bytes);
                let now = cache.statistics();
                assert_eq!(now.since(&before).misses, misses, "version {version}");
                before = now;
            }
        }
        assert_eq!(before.damaged, 0);
        assert!(before.memory_bytes < 2 * 1400, "{before:?}");
    }
    assert_eq!(files(&kept).0.len(), 3, "one whole object and two ranges, of the last version");
    fs::remove_file(&path).unwrap();
    let cache = Cache::builder().folder(&kept, 1 << 20).open().unwrap();
    let fetcher = CachedFetcher::new(Arc::new(spdl_io::LocalFetcher::new()), cache);
    let error = block_on(fetcher.read(&key, None)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "deleted files are not read from the cache");
}

#[cfg(feature = "testing")]
// promise: DATA1
#[test]
fn cached_fetchers_satisfy_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let objects = folder.path().join("objects");
    for (name, bytes) in spdl_io::testing::contract_objects() {
        let path = objects.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let cache = Cache::builder().memory(1 << 20).folder(folder.path().join("kept"), 1 << 30);
    let local = Arc::new(spdl_io::LocalFetcher::new());
    let cached = CachedFetcher::new(local, cache.open().unwrap());
    for _cold_and_warm in 0..2 {
        spdl_io::testing::fetcher_contract(&cached, &objects.as_path().into());
    }
}

#[cfg(unix)]
mod killed {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;

    const FOLDER: &str = "SPDL_TEST_CACHE_FOLDER";
    const COUNT: u64 = 400;

    fn open(folder: impl Into<std::path::PathBuf>) -> Cache {
        Cache::builder().folder(folder, total(COUNT) / 2).open().unwrap()
    }

    /// Not a test: the work of the child processes of the next test.
    #[test]
    fn child_that_fills_a_cache() {
        let Some(folder) = std::env::var_os(FOLDER) else { return };
        for order in 0.. {
            let cache = open(&folder);
            epoch(&cache, COUNT, order);
            // Removes entries, so that writes continue.
            let entries =
                (0..=255u8).map(|prefix| Path::new(&folder).join(format!("{prefix:02x}")));
            for entry in entries.flat_map(|path| fs::read_dir(path).unwrap()).step_by(2) {
                let _ = fs::remove_file(entry.unwrap().path());
            }
        }
    }

    #[test]
    fn killed_processes_leave_no_corrupt_entries_or_locks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        drop(open(&path));
        for round in 0..40u64 {
            let mut children: Vec<_> = (0..2)
                .map(|_| {
                    Command::new(std::env::current_exe().unwrap())
                        .args(["--exact", "killed::child_that_fills_a_cache"])
                        .env(FOLDER, &path)
                        .stdout(Stdio::null())
                        .stderr(Stdio::null())
                        .spawn()
                        .unwrap()
                })
                .collect();
            std::thread::sleep(Duration::from_micros(20_000 + round * 1_771));
            for child in &mut children {
                child.kill().unwrap();
                child.wait().unwrap();
            }
            let cache = open(&path);
            let (lengths, new) = files(&path);
            assert_eq!(new, 0, "unfinished files are removed");
            let statistics = cache.statistics();
            assert_eq!(statistics.disk_bytes, lengths.iter().sum::<u64>(), "round {round}");
            assert!(statistics.disk_bytes <= total(COUNT) / 2);
            // `epoch` checks the contents of each hit.
            let found = epoch(&cache, COUNT, round);
            assert_eq!(found.damaged, 0, "files are renamed when complete");
            assert_eq!(found.unwritten, 0);
            let others = ["spdl-cache", "users", "lock", "usage", "new"].len();
            assert_eq!(fs::read_dir(&path).unwrap().count(), 256 + others);
        }
    }
}

/// Memory without reserved bytes, which damages all entries of a cache when bytes are reserved.
struct DamagingMemory<'a> {
    folder: &'a Path,
    reserved: AtomicU64,
}

#[async_trait]
impl ReadMemory for DamagingMemory<'_> {
    fn max_bytes(&self) -> u64 {
        1 << 20
    }

    fn reserved_bytes(&self) -> u64 {
        self.reserved.load(Ordering::SeqCst)
    }

    async fn reserve(&self, bytes: u64) {
        self.reserved.store(bytes, Ordering::SeqCst);
        for entry in
            fs::read_dir(self.folder).unwrap().filter(|it| it.as_ref().unwrap().path().is_dir())
        {
            for file in fs::read_dir(entry.unwrap().path()).unwrap() {
                fs::write(file.unwrap().path(), "damaged").unwrap();
            }
        }
    }
}

// promise: R4
#[test]
fn memory_is_reserved_before_an_entry_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::builder().folder(folder.path().join("cache"), 1 << 20).open().unwrap();
    let object = Bytes::from(vec![7; 5000]);
    let store = MemoryFetcher::from_iter([("a", object.clone())]);
    let cached = CachedFetcher::new(Arc::new(store), cache.clone());
    let path = folder.path().join("cache");
    let read = |reserved: u64| {
        let memory = DamagingMemory { folder: &path, reserved: AtomicU64::new(reserved) };
        assert_eq!(block_on(cached.read_whole(&"a".into(), &memory)).unwrap(), object);
        memory.reserved.into_inner()
    };
    // A miss, which is stored.
    read(0);
    assert_eq!(cache.statistics().misses, 1);
    // A hit within the reserved memory.
    assert_eq!(read(5000), 5000);
    assert_eq!(cache.statistics().disk_hits, 1);
    // The entry is read only after the reservation, which damages it.
    assert!(read(4000) >= 5000);
    let statistics = cache.statistics();
    assert_eq!((statistics.damaged, statistics.misses, statistics.disk_hits), (1, 2, 1));
}
