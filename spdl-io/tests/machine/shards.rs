//! Writes shards and caches under failing I/O, and checks the results.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use spdl_io::shards::{Opened, ShardPlan, ShardWriter};
use spdl_io::{Cache, CachedFetcher, Fetcher, Key, MemoryFetcher, Result, block_on};

use crate::contents;

const SAMPLES: u64 = 30;
const OBJECTS: usize = 60;

fn plan() -> ShardPlan {
    ShardPlan::new("train").shard_bytes(15_000)
}

/// Writes a data set, or resumes it.
pub(crate) fn write_shards(folder: &Path) -> Result<()> {
    let mut writer = match ShardWriter::open(folder, &plan())? {
        Opened::Writing(writer) => writer,
        Opened::Complete(_) => return Ok(()),
    };
    for position in writer.position()..SAMPLES {
        let bytes = contents(position as usize, position as usize * 97 % 3000);
        writer.add(position, format!("{position:03}").as_bytes(), &[("bin", &bytes)])?;
    }
    writer.finish(SAMPLES).map(drop)
}

/// All complete files of a folder except indexes, which contain times.
pub(crate) fn files(folder: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let Ok(entries) = fs::read_dir(folder) else { return BTreeMap::new() };
    let named = |name: &OsString, ending: &str| name.to_str().unwrap().ends_with(ending);
    let entries = entries.map(|entry| entry.unwrap());
    let entries = entries.map(|entry| (entry.file_name(), entry.path()));
    entries
        .filter(|(name, _)| !named(name, ".idx") && !named(name, ".partial"))
        .map(|(name, path)| (name, fs::read(path).unwrap()))
        .collect()
}

/// Checks that all files except the journal are equal to those in `whole`.
pub(crate) fn check_shards(folder: &Path, whole: &BTreeMap<OsString, Vec<u8>>) {
    for (name, bytes) in files(folder) {
        let is_journal = name.to_str().unwrap().ends_with(".journal");
        assert!(is_journal || whole.get(&name) == Some(&bytes), "{name:?} is corrupt");
    }
}

/// Writes a data set without failures.
pub(crate) fn whole_shards() -> BTreeMap<OsString, Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    write_shards(folder.path()).unwrap();
    files(folder.path())
}

fn object(number: usize) -> Bytes {
    contents(number, 300 + number * 997 % 9_000)
}

/// More than the size of all objects in a cache.
const ROOM: u64 = 1 << 20;

pub(crate) fn open_cache(folder: &Path) -> Result<Cache> {
    Cache::builder().folder(folder, ROOM).open()
}

/// Reads all objects twice through the cache, and checks their bytes.
pub(crate) fn read_through(cache: &Cache) {
    let store: MemoryFetcher = (0..OBJECTS).map(|n| (n.to_string(), object(n))).collect();
    let fetcher = CachedFetcher::new(Arc::new(store), cache.clone());
    for _epoch in 0..2 {
        for number in 0..OBJECTS {
            let read = block_on(fetcher.read(&Key::from(number.to_string()), None));
            let read = read.unwrap_or_else(|error| panic!("{}", error.report()));
            assert!(read == object(number), "object {number}");
        }
    }
}

/// Checks that the cache of a folder works and contains no corrupt entries.
pub(crate) fn check_cache(folder: &Path) {
    let cache = open_cache(folder).unwrap_or_else(|error| panic!("{}", error.report()));
    read_through(&cache);
    let before = cache.statistics();
    assert_eq!((before.damaged, before.unwritten), (0, 0), "{before:?}");
    read_through(&cache);
    let hits = cache.statistics().since(&before);
    assert_eq!((hits.disk_hits, hits.misses), (2 * OBJECTS as u64, 0), "{hits:?}");
}
