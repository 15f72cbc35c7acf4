//! Files of which only parts are read.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use spdl_core::source::StageRng;
use spdl_core::{Error, ErrorKind, PipelineBuilder, Result};
use spdl_io::records::{
    Encoding, Extent, FetchFields, FieldChoice, FieldValue, IndexCache, PartSelection, PartialFile,
    Remedy, SelectParts,
};
use spdl_io::{
    Body, Bytes, Capability, Fetcher, Key, MemoryFetcher, ObjectMeta, ReadRequest, Record,
    StoredRecord,
};

const MIB: u64 = 1 << 20;

/// A store that records its requests, and reports no sizes before a read.
#[derive(Debug, Default)]
struct Recorded {
    objects: MemoryFetcher,
    requests: Mutex<Vec<Option<Range<u64>>>>,
    /// Whether `stat` is a request.
    is_local: bool,
    lacks_ranges: bool,
    /// Replaces the object after the next read of a range.
    changes: AtomicBool,
}

impl Recorded {
    fn of(bytes: Vec<u8>) -> Self {
        let objects = MemoryFetcher::from_iter([("a", bytes)]);
        Recorded { objects, ..Recorded::default() }
    }

    fn record(&self, range: Option<Range<u64>>) {
        self.requests.lock().unwrap().push(range);
    }

    /// The requests since the last call.
    fn take(&self) -> Vec<Option<Range<u64>>> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

#[async_trait]
impl Fetcher for Recorded {
    fn capability(&self) -> Capability {
        match self.is_local {
            true => self.objects.capability(),
            false => Capability::default().with_ranges().with_versions(),
        }
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        self.record(range.clone());
        self.objects.read(key, range).await
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        assert!(self.is_local, "an unnecessary request");
        self.objects.stat(key).await
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let is_whole = request.start == 0 && request.end.is_none();
        if self.lacks_ranges && !is_whole {
            return Err(Error::new(ErrorKind::Unsupported, "no ranges"));
        }
        let body = self.objects.open(key, request).await?;
        let end = request.end.or(body.size).unwrap_or(0).min(body.size.unwrap_or(0));
        self.record((!is_whole).then_some(request.start..end));
        if !is_whole && self.changes.swap(false, Ordering::Relaxed) {
            let bytes = self.objects.read(key, None).await?;
            self.objects.insert(key.clone(), bytes);
        }
        Ok(body)
    }
}

/// Needs the table at `table`, and then a random block of 1000 bytes.
#[derive(Debug)]
struct TableThenBlock {
    table: Range<u64>,
    blocks: Range<u64>,
}

impl SelectParts for TableThenBlock {
    fn may_select(&self, extension: &str) -> bool {
        extension != "whole"
    }

    fn select(&self, file: &PartialFile, rng: &StageRng) -> Result<PartSelection> {
        let missing = file.missing(self.table.clone());
        if !missing.is_empty() {
            return Ok(PartSelection::Index(missing));
        }
        let Range { start, end } = self.blocks.clone();
        let block = start + rng.rng().below(end - start);
        Ok(PartSelection::Sample(std::iter::once(block..block + 1000).collect()))
    }
}

fn content(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8 ^ (at >> 12) as u8).collect()
}

fn sample(extent: Extent) -> StoredRecord {
    StoredRecord::new("sample").with_stored("bin", extent, Encoding::Bytes)
}

fn fetch(store: &Arc<Recorded>, selector: impl SelectParts) -> FetchFields {
    FetchFields::new(Arc::clone(store) as _).with("block", FieldChoice::of(["bin"])).select_parts(
        "block",
        "decode",
        Arc::new(selector),
    )
}

fn run_all(samples: Vec<StoredRecord>, fetch: FetchFields) -> Vec<Result<Record>> {
    let pipeline = PipelineBuilder::from_iter(samples)
        .async_stage("fetch", fetch)
        .deterministic()
        .seed(3)
        .build()
        .unwrap();
    pipeline.collect()
}

fn run(fetch: FetchFields) -> Result<Record> {
    let mut pipeline = PipelineBuilder::from_iter([sample(Extent::whole("a"))])
        .async_stage("fetch", fetch)
        .build()
        .unwrap();
    pipeline.next().expect("one sample")
}

fn parts(record: &Record) -> &PartialFile {
    match record.get("block").unwrap() {
        FieldValue::Parts(file) => file,
        other => panic!("{}", other.kind()),
    }
}

fn block_at(size: u64) -> TableThenBlock {
    TableThenBlock { table: 0..100, blocks: size / 2..size - 1000 }
}

#[test]
fn a_sample_of_a_large_file_needs_two_requests_and_the_next_sample_one() {
    let store = Arc::new(Recorded::of(content(20 * MIB)));
    let samples = vec![sample(Extent::whole("a")); 3];
    let fetch = fetch(&store, block_at(20 * MIB));
    let records: Vec<_> = run_all(samples, fetch).into_iter().map(Result::unwrap).collect();
    let requests = store.take();
    // Samples that are read at the same time read the table of their file each.
    assert!(requests.len() <= 6, "{requests:?}");
    let mut blocks = Vec::new();
    for record in &records {
        let file = parts(record);
        assert!(file.bytes_in_memory() < 300_000);
        let block = file.parts().last().unwrap().0;
        assert!(block >= 10 * MIB);
        let mut memory = Vec::new();
        let expected = content(20 * MIB);
        let read = file.read(block..block + 1000, &mut memory).unwrap();
        assert_eq!(read, &expected[block as usize..block as usize + 1000]);
        blocks.push(block);
    }
    blocks.dedup();
    assert_eq!(blocks.len(), 3, "each sample has its own random numbers");
}

#[test]
fn a_cached_index_leaves_one_request() {
    let store = Arc::new(Recorded::of(content(20 * MIB)));
    let cache = IndexCache::default();
    let fetch = || fetch(&store, block_at(20 * MIB)).with_index_cache(&cache);
    run(fetch()).unwrap();
    assert_eq!(store.take().len(), 2);
    assert_eq!(cache.bytes(), 256 << 10);
    let record = run(fetch()).unwrap();
    assert_eq!(store.take().len(), 1);
    assert_eq!(parts(&record).size(), 20 * MIB);
    // A changed object is read again, from its start.
    store.objects.insert("a", content(30 * MIB));
    let record = run(fetch()).unwrap();
    assert_eq!(parts(&record).size(), 30 * MIB);
    assert_eq!(store.take().len(), 2);
}

#[test]
fn a_file_that_changes_between_two_requests_is_an_error() {
    let store = Arc::new(Recorded::of(content(20 * MIB)));
    store.changes.store(true, Ordering::Relaxed);
    let error = run(fetch(&store, block_at(20 * MIB))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
}

#[test]
fn small_files_are_read_whole_by_one_request() {
    let block = || TableThenBlock { table: 0..100, blocks: 1000..2000 };
    for (bytes, is_local, requests) in
        [(200 << 10, false, 1), (800 << 10, false, 2), (800 << 10, true, 1), (0, false, 2)]
    {
        let store = Arc::new(Recorded { is_local, ..Recorded::of(content(bytes)) });
        let record = run(fetch(&store, block())).unwrap();
        let found = record.get("block").unwrap().as_bytes().unwrap().clone();
        assert_eq!(found, content(bytes));
        assert_eq!(store.take().len(), requests, "{bytes}");
    }
}

#[test]
fn a_member_of_a_shard_is_read_in_parts() {
    let store = Arc::new(Recorded::of(content(50 * MIB)));
    let member = 10 * MIB..30 * MIB;
    let mut samples = vec![sample(Extent::part("a", member.clone()))];
    samples[0] = samples[0].clone().with_stored("txt", Extent::part("a", 5..10), Encoding::Bytes);
    let fetch = fetch(&store, block_at(20 * MIB)).with("text", FieldChoice::of(["txt"]));
    let record = run_all(samples, fetch).pop().unwrap().unwrap();
    let file = parts(&record);
    assert_eq!((file.size(), &record.fields[0].0[..]), (20 * MIB, "block"));
    let block = file.parts().last().unwrap().0;
    let expected = content(50 * MIB);
    let start = (10 * MIB + block) as usize;
    let mut memory = Vec::new();
    assert_eq!(
        file.read(block..block + 1000, &mut memory).unwrap(),
        &expected[start..start + 1000]
    );
    // Other bytes are read later, by a position in the member.
    let read = file.read(7 * MIB..7 * MIB + 50, &mut memory).unwrap();
    assert_eq!(read, &expected[17 * MIB as usize..][..50]);
    assert_eq!(record.get("text").unwrap().as_bytes().unwrap(), &content(10)[5..]);
}

#[test]
fn ranges_that_are_near_to_each_other_are_read_together() {
    #[derive(Debug)]
    struct Scattered;
    impl SelectParts for Scattered {
        fn select(&self, _: &PartialFile, _: &StageRng) -> Result<PartSelection> {
            let starts = [5 * MIB, MIB, MIB + (200 << 10), 100];
            Ok(PartSelection::Sample(starts.map(|start| start..start + 1000).to_vec()))
        }
    }
    let store = Arc::new(Recorded::of(content(20 * MIB)));
    let record = run(fetch(&store, Scattered)).unwrap();
    let near = MIB..MIB + (200 << 10) + 1000;
    let requests = [0..256 << 10, near.clone(), 5 * MIB..5 * MIB + 1000];
    assert_eq!(store.take(), requests.map(Some));
    let expected = &content(2 * MIB)[near.start as usize..near.end as usize];
    assert_eq!(parts(&record).get(near), Some(expected));
}

#[test]
fn files_are_read_whole_if_parts_cannot_be_selected() {
    let whole = |store: &Arc<Recorded>, fetch: FetchFields, extent: Extent| {
        let record = run_all(vec![sample(extent)], fetch).pop().unwrap().unwrap();
        let bytes = record.get("block").unwrap().as_bytes().map(|bytes| bytes.len() as u64);
        assert_eq!(bytes, Some(20 * MIB));
        store.take().len()
    };
    let store = Arc::new(Recorded::of(content(20 * MIB)));
    let fetch = || fetch(&store, block_at(20 * MIB));
    // A second choice without a selector.
    let both = fetch().with("all", FieldChoice::of(["bin"]));
    assert_eq!(whole(&store, both, Extent::whole("a")), 1);
    // A checksum.
    let hash = twox_hash::XxHash3_128::oneshot(&content(20 * MIB)) as u64;
    assert_eq!(whole(&store, fetch(), Extent::whole("a").with_xxh3(Some(hash))), 1);
    // The extension.
    store.objects.insert("b.WHOLE", content(20 * MIB));
    assert_eq!(whole(&store, fetch(), Extent::whole("b.WHOLE")), 1);
    // More tables than requests.
    #[derive(Debug)]
    struct ManyTables;
    impl SelectParts for ManyTables {
        fn select(&self, file: &PartialFile, _: &StageRng) -> Result<PartSelection> {
            let tables = (0..16).map(|at| at * MIB..at * MIB + 10);
            let missing = tables.flat_map(|table| file.missing(table)).next().unwrap();
            Ok(PartSelection::Index(vec![missing]))
        }
    }
    assert_eq!(whole(&store, self::fetch(&store, ManyTables), Extent::whole("a")), 10);
    // A store without ranges: the first range request is the only one.
    let store = Arc::new(Recorded { lacks_ranges: true, ..Recorded::of(content(20 * MIB)) });
    let fetch = self::fetch(&store, block_at(20 * MIB));
    assert_eq!(whole(&store, fetch.clone(), Extent::whole("a")), 1);
    assert_eq!(whole(&store, fetch, Extent::whole("a")), 1);
}

#[test]
fn the_limit_counts_the_bytes_that_are_read() {
    let store = Arc::new(Recorded::of(content(20 * MIB)));
    let fetch = |limit| fetch(&store, block_at(20 * MIB)).with_max_bytes(limit);
    assert!(run(fetch(MIB)).is_ok());
    let error = run(fetch(100 << 10)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(Remedy::of(&error), Some(Remedy::MaxFileBytes));
    // The bytes that a later stage reads count as well.
    let record = run(fetch(MIB)).unwrap();
    let error = parts(&record).read(0..2 * MIB, &mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
}

#[test]
fn the_fault_of_a_selection_is_left_to_the_next_stage() {
    #[derive(Debug)]
    struct Faulty;
    impl SelectParts for Faulty {
        fn select(&self, _: &PartialFile, _: &StageRng) -> Result<PartSelection> {
            Err(Error::new(ErrorKind::Corrupt, "no table"))
        }
    }
    let store = Arc::new(Recorded::of(content(20 * MIB)));
    let record = run(fetch(&store, Faulty)).unwrap();
    assert_eq!(parts(&record).bytes_in_memory(), 256 << 10);
}

#[test]
fn a_truncated_object_is_an_error_of_the_store() {
    let store = Arc::new(Recorded::of(content(20 * MIB)));
    let read = |blocks| {
        let fetch = fetch(&store, TableThenBlock { table: 0..10, blocks });
        // The member begins inside the object and ends after it.
        let member = sample(Extent::part("a", MIB..40 * MIB));
        run_all(vec![member], fetch).pop().unwrap()
    };
    assert!(read(5 * MIB..6 * MIB).is_ok());
    let error = read(35 * MIB..36 * MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated);
    assert_eq!(error.key(), Some("sample.bin"));
}

#[test]
fn the_memory_budget_counts_the_bytes_that_are_read() {
    let store = Arc::new(Recorded::of(content(50 * MIB)));
    let samples = vec![sample(Extent::part("a", 10 * MIB..30 * MIB)); 4];
    let pipeline = PipelineBuilder::from_iter(samples)
        .async_stage("fetch", fetch(&store, block_at(20 * MIB)))
        .measured()
        .largest_item(1 << 20)
        .memory(2 << 20)
        .build()
        .unwrap();
    assert_eq!(pipeline.filter_map(Result::ok).count(), 4);
}

#[cfg(all(feature = "http", feature = "testing"))]
#[test]
fn parts_from_a_web_server_are_retried_and_small_files_need_one_request() {
    use spdl_io::StoreRegistry;
    use spdl_io::testing::{Fault, FaultPlan, FaultServer};

    let size = 8 * MIB;
    let server = FaultServer::start([("a.bin", content(size)), ("b.bin", content(100_000))]);
    let stores = StoreRegistry::new();
    let read = |name: &str| {
        let location = stores.open(&format!("{}/{name}", server.url())).unwrap();
        let fetch = FetchFields::new(location.fetcher)
            .with("block", FieldChoice::of(["bin"]))
            .select_parts("block", "decode", Arc::new(block_at(size)));
        run_all(vec![sample(Extent::whole(location.key))], fetch).pop().unwrap().unwrap()
    };
    let small = read("b.bin");
    assert_eq!(small.get("block").unwrap().as_bytes().unwrap(), &content(100_000));
    assert_eq!(server.seen().len(), 1);
    server.set_faults(FaultPlan::random(5, 0.4, &[Fault::InternalError, Fault::ClosedInBody]));
    let expected = content(size);
    for _ in 0..10 {
        let record = read("a.bin");
        let file = parts(&record);
        assert_eq!(file.size(), size);
        for (start, bytes) in file.parts() {
            assert_eq!(bytes, &expected[start as usize..][..bytes.len()]);
        }
    }
    let served = server.served_of("a.bin");
    assert!(served.faults > 0);
    assert!(served.bytes < 10 * MIB, "{} bytes", served.bytes);
}

/// A later stage waits for bytes that the server never sends.
#[cfg(all(feature = "http", feature = "testing"))]
#[test]
fn a_stop_of_the_pipeline_ends_the_read_of_a_later_stage() {
    use std::time::{Duration, Instant};

    use spdl_io::StoreRegistry;
    use spdl_io::testing::{Fault, FaultPlan, FaultServer};

    let size = 8 * MIB;
    let server = FaultServer::start([("a.bin", content(size))]);
    server.set_faults(FaultPlan::script(|request| {
        let is_late = request.range.starts_with(&format!("bytes={}-", 2 * MIB));
        is_late.then_some(Fault::NoAnswer)
    }));
    let location = StoreRegistry::new().open(&format!("{}/a.bin", server.url())).unwrap();
    let fetch = FetchFields::new(location.fetcher)
        .with("block", FieldChoice::of(["bin"]))
        .select_parts("block", "decode", Arc::new(block_at(size)));
    let (sender, errors) = std::sync::mpsc::channel();
    let read_late = move |record: Record| {
        let read = parts(&record).read(2 * MIB..2 * MIB + 10, &mut Vec::new()).map(<[u8]>::to_vec);
        sender.send(read.as_ref().unwrap_err().kind()).unwrap();
        read
    };
    let mut pipeline = PipelineBuilder::from_iter([sample(Extent::whole(location.key))])
        .async_stage("fetch", fetch)
        .map("decode", read_late)
        .build()
        .unwrap();
    pipeline.start().unwrap();
    while server.served_of("a.bin").faults == 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    let start = Instant::now();
    pipeline.stop();
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    assert_eq!(errors.recv().unwrap(), ErrorKind::Stopped);
    assert!(pipeline.take_failure().is_none());
}
