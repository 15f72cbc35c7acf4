//! Tests of tar shards in a store: few requests, and indexes that are validated.

// promise of this file: DATA7

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use spdl_core::{Dataset, ErrorKind, PipelineBuilder, block_on};
use spdl_io::archive::{ArchiveStamp, TarIndex, TarOptions, TarSlice};
use spdl_io::datasets::{WebDataset, WebDatasetOptions};
use spdl_io::shards::{Opened, ShardPlan, ShardWriter};
use spdl_io::{Capability, FetchRecord, Fetcher, Key, LocalFetcher};

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
    let last = format!("read s.tar Some({last:?})");
    let expected = ["stat s.tar", "read s.tar.idx", &last, "read s.tar.sums"];
    assert_eq!(with.requests(), expected);
    let without = Recording::new([("s.tar", shard)]);
    assert_eq!(keys(&samples), keys(&fetch(&without, "s.tar", &WebDatasetOptions::default())));
    let requests = without.requests();
    assert_eq!(requests[..3], ["stat s.tar", "read s.tar.idx", "read s.tar.sums"]);
    assert!(requests[3].starts_with("read s.tar Some(0.."), "{requests:?}");
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

/// The names and contents of a shard that `ShardWriter` writes: samples "0" to "9" with a text.
fn packed() -> Vec<(String, Vec<u8>)> {
    let place = tempfile::tempdir().unwrap();
    let plan = ShardPlan::new("s").recipe("a", "b");
    let Opened::Writing(mut writer) = ShardWriter::open(place.path().join("set"), &plan).unwrap()
    else {
        panic!("the set exists already");
    };
    for position in 0..10_u64 {
        let name = position.to_string();
        writer.add(position, name.as_bytes(), &[("txt", b"some text")]).unwrap();
    }
    writer.finish(10).unwrap();
    let files = std::fs::read_dir(place.path().join("set")).unwrap().map(|file| {
        let file = file.unwrap();
        (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())
    });
    files.collect()
}

/// Inverts a bit of the text of sample "3".
fn damage(shard: &mut [u8]) {
    shard[3 * 1024 + 512 + 2] ^= 1;
}

/// Returns the text of each sample, or its error.
fn texts(
    samples: &WebDataset,
    fetcher: &Arc<dyn Fetcher>,
) -> Vec<Result<String, spdl_core::Error>> {
    let read = |sample| {
        let samples = PipelineBuilder::from_iter([samples.item(sample)?]);
        let fetch = FetchRecord::new(Arc::clone(fetcher));
        let record = samples.async_stage("fetch", fetch).build()?.next().unwrap()?;
        Ok(record.get("txt")?.as_str().unwrap().to_owned())
    };
    (0..samples.len()).map(read).collect()
}

// promise: R15
#[test]
fn damaged_members_of_packed_shards_are_errors() {
    let place = tempfile::tempdir().unwrap();
    let store = Recording::new(packed());
    for (name, mut bytes) in packed() {
        if name == "s-000000.tar" {
            damage(&mut bytes);
            store.store.insert(&*name, bytes.clone());
        }
        std::fs::write(place.path().join(name), bytes).unwrap();
    }
    // The index is newer than the shard.
    let local = place.path().join("s-000000.tar");
    TarIndex::open(&local).unwrap();
    let local = local.to_str().unwrap();
    for is_local in [true, false] {
        let open = |options: &WebDatasetOptions| match is_local {
            true => WebDataset::open_with(local, options).unwrap(),
            false => fetch(&store, "s-000000.tar", options),
        };
        let fetcher: Arc<dyn Fetcher> = match is_local {
            true => Arc::new(LocalFetcher::new()),
            false => store.arc(),
        };
        let read = texts(&open(&WebDatasetOptions::default()), &fetcher);
        for (number, text) in read.iter().enumerate() {
            if number != 3 {
                assert_eq!(text.as_ref().unwrap(), "some text");
                continue;
            }
            let error = text.as_ref().unwrap_err();
            assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(3 * 1024 + 512)));
            assert!(error.key().unwrap().ends_with("s-000000.tar:3.txt"), "{error}");
            assert!(error.message().contains("checksum mismatch"), "{error}");
        }
        assert_eq!(read.len(), 10);
        let read = texts(&open(&WebDatasetOptions::default().verify(false)), &fetcher);
        assert_eq!(read[3].as_ref().unwrap(), "sole text");
    }
}

#[test]
fn checksums_without_an_index_are_compared() {
    let place = tempfile::tempdir().unwrap();
    let options = WebDatasetOptions::default().index_folder(place.path());
    let store = Recording::new(packed());
    store.store.remove(&"s-000000.tar.idx".into());
    let (_, mut shard) = packed().into_iter().find(|(name, _)| name == "s-000000.tar").unwrap();
    damage(&mut shard);
    store.store.insert("s-000000.tar", shard);
    for _ in 0..2 {
        let read = texts(&fetch(&store, "s-000000.tar", &options), &store.arc());
        let error = read[3].as_ref().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains("checksum mismatch"), "{error}");
        assert_eq!(read.iter().filter(|text| text.is_ok()).count(), 9);
    }
    // The page that a server sends for a missing file.
    store.store.insert("s-000000.tar.sums", "<!DOCTYPE html><title>Not found</title>");
    let read = texts(&fetch(&store, "s-000000.tar", &options), &store.arc());
    assert_eq!(read[3].as_ref().unwrap(), "sole text");
}

/// Inverts a bit of every second range of the shard.
#[derive(Debug)]
struct Flipping(Recording, AtomicU64);

#[spdl_core::async_trait]
impl Fetcher for Flipping {
    fn capability(&self) -> Capability {
        self.0.capability()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes, spdl_core::Error> {
        let bytes = self.0.read(key, range).await?;
        let mut bytes = bytes.to_vec();
        if self.1.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            bytes[3] ^= 1;
        }
        Ok(bytes.into())
    }
}

#[test]
fn members_with_flipped_bits_are_read_again() {
    let store = Recording::new(packed());
    let samples = fetch(&store, "s-000000.tar", &WebDatasetOptions::default());
    let flipping: Arc<dyn Fetcher> = Arc::new(Flipping(store, AtomicU64::new(0)));
    for text in texts(&samples, &flipping) {
        assert_eq!(text.unwrap(), "some text");
    }
}

#[test]
fn checksum_files_of_other_archives_are_rejected() {
    let other = |line: &str| format!("{:032x}  {line}\n", 7);
    let all: String = (0..10).map(|number| other(&format!("{number}.txt"))).collect();
    for (sums, words) in [
        (other("0.txt"), "has the member \"1.txt\" here"),
        (all.replace("3.txt", "4.txt"), "has the member \"3.txt\" here"),
        (all.replace("  5", " 5"), "invalid line"),
        (String::new(), "has the member \"0.txt\" here"),
    ] {
        let store = Recording::new(packed());
        store.store.insert("s-000000.tar.sums", sums);
        let options = WebDatasetOptions::default();
        let error = block_on(WebDataset::fetch(&store.arc(), "s-000000.tar", &options));
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.report().contains(words), "{}", error.report());
        assert!(error.report().contains("s-000000.tar.sums"), "{}", error.report());
        fetch(&store, "s-000000.tar", &options.verify(false));
    }
}
