//! Tests of tar shards in a store: few requests, and indexes that are validated.

// promise of this file: DATA7

use std::sync::Arc;

use spdl_core::{Dataset, ErrorKind, block_on};
use spdl_io::archive::{ArchiveStamp, TarIndex, TarOptions, TarSlice};
use spdl_io::datasets::{WebDataset, WebDatasetOptions};
use spdl_io::{Fetcher, Key, LocalFetcher};

use crate::{Recording, archive, numbered, process, read_all};

fn fetch(store: &Recording, pattern: &str, options: &WebDatasetOptions) -> WebDataset {
    block_on(WebDataset::fetch(&store.arc(), pattern, options)).unwrap()
}

/// The index file of a shard.
fn index_of(shard: &[u8]) -> Vec<u8> {
    let stamp = ArchiveStamp::new(shard.len() as u64).modified(std::time::SystemTime::now());
    let entries = TarSlice::new(shard.to_vec());
    TarIndex::from_entries(entries, stamp, TarOptions::default()).unwrap().to_bytes()
}

fn keys(samples: &WebDataset) -> Vec<String> {
    (0..samples.len()).map(|index| samples.item(index).unwrap().key.to_string()).collect()
}

#[test]
fn stored_samples_equal_local_samples() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a-0.tar", "a-1.tar"] {
        let samples = if name == "a-0.tar" { 0..20 } else { 20..25 };
        std::fs::write(folder.path().join(name), numbered(samples)).unwrap();
    }
    let root = folder.path().to_str().unwrap();
    let store = Recording::new([
        ("data/a-0.tar", numbered(0..20)),
        ("data/a-1.tar", numbered(20..25)),
        ("data/more/a-2.tar", numbered(0..1)),
    ]);
    let local = WebDataset::open(root).unwrap();
    for pattern in ["data/a-{0..1}.tar", "data/*.tar"] {
        let stored = fetch(&store, pattern, &WebDatasetOptions::default());
        assert_eq!(stored.shard_lens(), local.shard_lens());
        assert_eq!(stored.content_hash(), local.content_hash());
        let stored = read_all(stored, store.arc());
        let local = read_all(WebDataset::open(root).unwrap(), Arc::new(LocalFetcher::new()));
        assert_eq!(stored.len(), 25);
        for (stored, local) in stored.iter().zip(&local) {
            assert_eq!(stored.fields, local.fields);
        }
    }
}

#[test]
fn an_index_next_to_a_shard_avoids_reading_headers() {
    let shard = numbered(0..50);
    let with = Recording::new([("s.tar", shard.clone()), ("s.tar.idx", index_of(&shard))]);
    let samples = fetch(&with, "s.tar", &WebDatasetOptions::default());
    let last = 198 * 512..199 * 512;
    let expected = ["stat s.tar", "read s.tar.idx", &format!("read s.tar Some({last:?})")];
    assert_eq!(with.requests(), expected);
    let without = Recording::new([("s.tar", shard)]);
    assert_eq!(keys(&samples), keys(&fetch(&without, "s.tar", &WebDatasetOptions::default())));
    let requests = without.requests();
    assert!(requests.len() > 2 && requests[2].starts_with("read s.tar Some(0.."), "{requests:?}");
}

#[test]
fn an_index_that_does_not_match_its_shard_is_ignored() {
    let shard = numbered(0..50);
    let other = archive((0..100).map(|_| ("9.jpg", &b"other 4"[..])).take(50));
    let same_size = |mut files: Vec<u8>| {
        files.resize(shard.len(), 0);
        files
    };
    let mut damaged = index_of(&shard);
    damaged[100] ^= 1;
    let stale = [
        index_of(&other),
        index_of(&same_size(other.clone())),
        index_of(&numbered(0..49)),
        damaged,
        b"no index".to_vec(),
        Vec::new(),
        index_of(&archive([])),
    ];
    for index in stale {
        let store = Recording::new([("s.tar", shard.clone()), ("s.tar.idx", index)]);
        let samples = fetch(&store, "s.tar", &WebDatasetOptions::default());
        assert_eq!(samples.len(), 50);
        assert_eq!(samples.item(7).unwrap().key, Key::from("s.tar:0007"));
    }
}

#[test]
fn a_cached_index_is_used_until_the_shard_changes() {
    let folder = tempfile::tempdir().unwrap();
    let options = WebDatasetOptions::default().index_folder(folder.path().join("new/folder"));
    let store = Recording::new([("s.tar", numbered(0..50))]);
    let first = fetch(&store, "s.tar", &options);
    assert!(store.requests().len() > 1);
    let again = fetch(&store, "s.tar", &options);
    assert_eq!(store.requests(), ["stat s.tar"]);
    assert_eq!(keys(&first), keys(&again));
    // The same size, but another version.
    store.store.insert("s.tar", archive((0..100).map(|_| ("9.jpg", &b"x"[..]))));
    let changed = fetch(&store, "s.tar", &options);
    assert!(store.requests().len() > 1);
    assert!(changed.len() == 1 && changed.item(0).is_err(), "the sample has 100 duplicate fields");
}

#[test]
fn samples_before_the_damage_of_a_stored_shard_are_read() {
    let shard = numbered(0..10)[..24 * 512 + 300].to_vec();
    let store = Recording::new([("s.tar", shard)]);
    let samples = fetch(&store, "s.tar", &WebDatasetOptions::default());
    let mut images = process(samples, spdl_io::FetchLabeled::new(store.arc()));
    let error = images.pop().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Truncated, Some("s.tar:0005")));
    assert_eq!(error.offset(), Some(24 * 512 + 300));
    assert!(error.message().contains("; 5 samples precede the damage"), "{error}");
    assert_eq!(images.into_iter().map(Result::unwrap).count(), 5);
}

#[test]
fn errors_of_the_store_are_not_damage() {
    let store = Recording::new([("s.tar", numbered(0..10))]);
    let error =
        block_on(WebDataset::fetch(&store.arc(), "{s,t}.tar", &WebDatasetOptions::default()));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);

    /// A store that fails for all ranges but the first.
    #[derive(Debug)]
    struct Broken(Recording);
    #[spdl_core::async_trait]
    impl Fetcher for Broken {
        fn capability(&self) -> spdl_io::Capability {
            self.0.capability()
        }
        async fn read(
            &self,
            key: &Key,
            range: Option<std::ops::Range<u64>>,
        ) -> spdl_core::Result<spdl_io::Bytes> {
            if range.as_ref().is_some_and(|range| range.start > 0) {
                return Err(spdl_core::Error::new(ErrorKind::Unavailable, "busy"));
            }
            self.0.read(key, range).await
        }
        async fn stat(&self, key: &Key) -> spdl_core::Result<spdl_io::ObjectMeta> {
            self.0.stat(key).await
        }
    }
    let large = vec![0; 4 << 20];
    let shard = archive([("1.jpg", &large[..]), ("2.jpg", b"x")]);
    let broken: Arc<dyn Fetcher> = Arc::new(Broken(Recording::new([("s.tar", shard)])));
    let opened = block_on(WebDataset::fetch(&broken, "s.tar", &WebDatasetOptions::default()));
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn a_shard_truncated_after_opening_is_an_error() {
    let shard = numbered(0..10);
    let store = Recording::new([("s.tar", shard.clone())]);
    let samples = fetch(&store, "s.tar", &WebDatasetOptions::default());
    store.store.insert("s.tar", shard[..24 * 512 + 300].to_vec());
    let stage = spdl_io::FetchRecord::new(store.arc()).with_fields(["jpg"]);
    let mut read = process(samples, stage);
    let error = read.pop().unwrap().unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Truncated, Some("s.tar:0006.jpg")));
    assert_eq!((error.offset(), read.len()), (Some(24 * 512 + 300), 6));
    assert_eq!(
        error.report().matches("s.tar").count(),
        1,
        "the name occurs once: {}",
        error.report()
    );
}
