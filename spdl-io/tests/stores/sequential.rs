//! Tar shards that are read sequentially: number of requests, order, resume, versions and memory.

use std::collections::HashMap;
use std::io::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{StreamExt, stream};
use spdl_core::source::Remainder;
use spdl_core::{DatasetSource, Labeled, PipelineBuilder, Shard, StageOptions, State, block_on};
use spdl_io::datasets::{DatasetKind, OpenOptions, OpenedDataset};
use spdl_io::layers::PartFetcher;
use spdl_io::records::Remedy;
use spdl_io::testing::{
    Fault, FaultPlan, FaultServer, SeenRequest, contract_objects, fetcher_contract,
};
use spdl_io::{
    Capability, ErrorKind, Fetcher, Key, LocalFetcher, MemoryFetcher, ObjectMeta, Result,
    SourceOptions, StoreRegistry,
};

const MIB: u64 = 1 << 20;
/// The smallest allowed limit, which holds 8 parts.
const LIMIT: u64 = 64 * MIB;
const PER_SHARD: u64 = 160;

/// The bytes of a sample: its number, and then 60,000 to 200,000 bytes that depend on it.
fn content(number: u64) -> Vec<u8> {
    let mut bytes = vec![(number % 251) as u8; 60_000 + (number * 7919 % 140_000) as usize];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// A shard of about 20 MiB.
fn shard(shard: u64) -> Vec<u8> {
    static SHARDS: [OnceLock<Vec<u8>>; 6] = [const { OnceLock::new() }; 6];
    SHARDS[shard as usize].get_or_init(|| new_shard(shard)).clone()
}

fn new_shard(shard: u64) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for number in shard * PER_SHARD..(shard + 1) * PER_SHARD {
        for (extension, bytes) in [("jpg", content(number)), ("cls", number.to_string().into())] {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            archive
                .append_data(&mut header, format!("{number:05}.{extension}"), &bytes[..])
                .unwrap();
        }
    }
    archive.into_inner().unwrap()
}

fn server(shards: u64) -> FaultServer {
    let server = FaultServer::start(Vec::<(String, Bytes)>::new());
    for number in 0..shards {
        // Without a hash of the content.
        server.insert_with_etag(format!("s-{number}.tar"), shard(number), format!("\"{number}\""));
    }
    server
}

fn try_open(address: &str, max_bytes: u64) -> Result<OpenedDataset> {
    // Without hedged requests, which depend on the time.
    let stores = StoreRegistry::new();
    let stores = stores.with_options("http:", SourceOptions::default().without_resilience());
    let options = OpenOptions::default().sequential(max_bytes);
    block_on(OpenedDataset::open_with(&[address], &stores, &options))
}

fn open(server: &FaultServer, shards: u64) -> OpenedDataset {
    let address = format!("{}/s-{{0..{}}}.tar", server.url(), shards - 1);
    try_open(&address, LIMIT).unwrap()
}

fn builder(
    data: &OpenedDataset,
    (threads, concurrency): (usize, usize),
) -> PipelineBuilder<Labeled<Bytes>> {
    let order = data.sampler(true, 5).unwrap();
    let source = DatasetSource::new(Arc::clone(&data.samples)).sampler(order);
    PipelineBuilder::new(source)
        .async_stage(StageOptions::new("fetch").concurrency(concurrency), data.fetch_labeled())
        .threads(threads)
        .deterministic()
}

/// The number of a sample, whose bytes are compared.
fn number(sample: Result<Labeled<Bytes>>) -> u64 {
    let Labeled { value, label } = sample.unwrap();
    let number = u64::from_le_bytes(*value.first_chunk().unwrap());
    assert!(value[..] == content(number)[..], "{number}");
    assert_eq!(label, number as i64);
    number
}

fn epoch(data: &OpenedDataset) -> Vec<u64> {
    builder(data, (2, 16)).build().unwrap().map(number).collect()
}

fn assert_once(mut numbers: Vec<u64>, shards: u64) {
    numbers.sort_unstable();
    assert_eq!(numbers, (0..shards * PER_SHARD).collect::<Vec<_>>());
}

/// How often each range of each shard was requested.
fn reads(requests: &[SeenRequest]) -> HashMap<(String, String), usize> {
    let mut counts = HashMap::new();
    for request in requests.iter().filter(|it| it.method == "GET" && it.target.ends_with(".tar")) {
        let range = request.headers.iter().find(|(name, _)| name == "range");
        let range = range.map(|(_, range)| range.clone()).unwrap_or_default();
        *counts.entry((request.target.clone(), range)).or_default() += 1;
    }
    counts
}

fn parts_of(shard: u64) -> usize {
    (self::shard(shard).len() as u64).div_ceil(PartFetcher::PART_BYTES) as usize
}

#[test]
fn each_part_of_a_shard_is_requested_once_in_a_shuffled_epoch() {
    const SHARDS: u64 = 6;
    let server = server(SHARDS);
    let data = open(&server, SHARDS);
    let parts: usize = (0..SHARDS).map(parts_of).sum();
    assert!(parts as u64 * PartFetcher::PART_BYTES > 2 * LIMIT, "not all parts fit");
    let mut orders = Vec::new();
    for _ in 0..2 {
        let before = server.seen().len();
        orders.push(epoch(&data));
        let requests = server.seen().split_off(before);
        let reads = reads(&requests);
        assert!(reads.values().all(|count| *count == 1), "{reads:?}");
        assert_eq!((reads.len(), requests.len()), (parts, parts));
    }
    assert_once(orders[0].clone(), SHARDS);
    assert_eq!(orders[0], orders[1]);
    // Samples of a window are shuffled.
    assert!(orders[0].windows(2).filter(|pair| pair[1] == pair[0] + 1).count() < 50);
}

#[test]
fn the_order_is_the_same_for_all_threads_and_for_local_copies() {
    let server = server(3);
    let data = open(&server, 3);
    let orders: Vec<Vec<u64>> = [(1, 1), (2, 3), (4, 64)]
        .into_iter()
        .map(|run| builder(&data, run).build().unwrap().map(number).collect())
        .collect();
    assert!(orders.iter().all(|order| *order == orders[0]));
    let folder = tempfile::tempdir().unwrap();
    for number in 0..3 {
        std::fs::write(folder.path().join(format!("s-{number}.tar")), shard(number)).unwrap();
    }
    let local = try_open(&format!("{}/s-{{0..2}}.tar", folder.path().display()), LIMIT).unwrap();
    assert!(!local.reads_parts());
    assert_eq!(epoch(&local), orders[0]);
    // Without the option, all samples are shuffled together.
    let address = format!("{}/s-{{0..2}}.tar", folder.path().display());
    let plain = block_on(OpenedDataset::open(&[address], &StoreRegistry::new())).unwrap();
    assert_ne!(epoch(&plain), orders[0]);
}

// promise: R11
#[test]
fn an_epoch_resumes_exactly_and_with_other_world_sizes() {
    const SHARDS: u64 = 3;
    let server = server(SHARDS);
    let expected = epoch(&open(&server, SHARDS));
    let stored = |state: State| {
        serde_json::from_slice::<State>(&serde_json::to_vec(&state).unwrap()).unwrap()
    };
    for cut in [1, 200, 479] {
        // Each run opens the data set again, as a new process does.
        let mut first = builder(&open(&server, SHARDS), (2, 16)).build().unwrap();
        let mut found: Vec<u64> = first.by_ref().take(cut).map(number).collect();
        let state = stored(first.state().unwrap());
        drop(first);
        let rest = builder(&open(&server, SHARDS), (1, 5)).resume(state).build().unwrap();
        found.extend(rest.map(number));
        assert_eq!(found, expected, "{cut}");
    }
    let mut state: Option<State> = None;
    let mut all = Vec::new();
    for (world, cut) in [(2, 40), (3, 70), (1, usize::MAX)] {
        let mut states = Vec::new();
        for rank in 0..world {
            let shard = Shard::new(rank, world).unwrap().remainder(Remainder::Uneven);
            let mut run = builder(&open(&server, SHARDS), (2, 16)).shard(shard);
            if let Some(state) = &state {
                run = run.resume(state.clone());
            }
            let mut run = run.build().unwrap();
            all.extend(run.by_ref().take(cut + rank as usize % 2).map(number));
            states.push(stored(run.state().unwrap()));
        }
        state = Some(State::combine(states).unwrap());
    }
    assert_once(all, SHARDS);
    // Another window is another order.
    let mut first = builder(&open(&server, SHARDS), (2, 16)).build().unwrap();
    first.by_ref().take(9).for_each(drop);
    let state = first.state().unwrap();
    let address = format!("{}/s-{{0..2}}.tar", server.url());
    let other = try_open(&address, 2 * LIMIT).unwrap();
    let error = builder(&other, (2, 16)).resume(state).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{}", error.report());
}

#[test]
fn a_server_without_ranges_sends_each_shard_once_per_epoch() {
    const SHARDS: u64 = 5;
    let server = server(SHARDS);
    server.ignore_ranges();
    let gets = |server: &FaultServer| reads(&server.seen()).values().sum::<usize>() as u64;
    let data = open(&server, SHARDS);
    // One more for the first range request.
    assert_eq!(gets(&server), SHARDS + 1);
    let order = epoch(&data);
    assert_once(order.clone(), SHARDS);
    // The last shards are in memory since they were opened.
    let first = gets(&server) - (SHARDS + 1);
    assert!((1..=SHARDS).contains(&first), "{first}");
    assert_eq!(epoch(&data), order);
    assert!(gets(&server) <= 3 * SHARDS + 1);
    // All shards fit.
    let address = format!("{}/s-{{0..4}}.tar", server.url());
    let data = try_open(&address, 4 * LIMIT).unwrap();
    let opened = gets(&server);
    assert_once(epoch(&data), SHARDS);
    assert_once(epoch(&data), SHARDS);
    assert_eq!(gets(&server), opened);
    // The order does not depend on the server.
    let with_ranges = self::server(SHARDS);
    assert_eq!(epoch(&open(&with_ranges, SHARDS)), order);
}

#[test]
fn a_shard_that_must_be_in_memory_and_exceeds_the_limit_is_an_error() {
    let large = [shard(0), shard(1), shard(2), shard(3)].concat();
    let server = FaultServer::start([("s-0.tar", large.clone()), ("s-1.tar", large)]);
    server.ignore_ranges();
    let error = try_open(&format!("{}/s-0.tar", server.url()), LIMIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    let report = error.report().to_string();
    for part in ["s-0.tar", "67108864 bytes", "does not support range requests"] {
        assert!(report.contains(part), "{report}");
    }
    // Each shard fits, but not two of them.
    let server = self::server(3);
    server.insert("s-1.tar", [shard(1), shard(1)].concat());
    server.insert("s-2.tar", [shard(2), shard(2)].concat());
    server.ignore_ranges();
    let error = try_open(&format!("{}/s-{{0..2}}.tar", server.url()), LIMIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{}", error.report());
    assert_eq!(Remedy::of(&error), Some(Remedy::SequentialMemory));
    let small = try_open(&format!("{}/s-0.tar", server.url()), LIMIT - 1).unwrap_err();
    assert_eq!(small.kind(), ErrorKind::InvalidArgument);
}

// promise: R15
#[test]
fn a_shard_that_changes_is_an_error() {
    for ignores_ranges in [false, true] {
        let server = server(4);
        if ignores_ranges {
            server.ignore_ranges();
        }
        let data = open(&server, 4);
        let mut run = builder(&data, (2, 4)).build().unwrap();
        run.by_ref().take(20).for_each(|sample| assert!(number(sample) < 4 * PER_SHARD));
        for number in 0..4 {
            server.insert_with_etag(format!("s-{number}.tar"), shard(number), "\"other\"");
        }
        let error = run.find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.report());
        assert!(error.key().unwrap().contains("s-"), "{}", error.report());
    }
}

#[test]
fn a_truncated_shard_is_an_error_that_names_the_member() {
    let server = server(1);
    let whole = shard(0);
    server.insert("s-0.tar", whole[..15_000_000].to_vec());
    let data = open(&server, 1);
    assert_eq!(data.truncated_shards, 1);
    let samples: Vec<_> =
        builder(&data, (1, 4)).on_error(spdl_core::OnError::SKIP).build().unwrap().collect();
    assert!(samples.len() > 50);
    let error = builder(&data, (1, 4)).build().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::Truncated);
    assert!(error.key().unwrap().contains("s-0.tar:00"), "{}", error.report());
    // A server that reports the old size, but sends fewer bytes.
    server.insert_with_etag("s-0.tar", whole.clone(), "\"same\"");
    let data = open(&server, 1);
    server.insert_with_etag("s-0.tar", whole[..9_000_000].to_vec(), "\"same\"");
    let error = builder(&data, (1, 4)).build().unwrap().find_map(Result::err).unwrap();
    assert!(
        matches!(error.kind(), ErrorKind::Truncated | ErrorKind::Changed),
        "{}",
        error.report()
    );
    assert!(error.key().unwrap().contains("s-0.tar:00"), "{}", error.report());
}

#[test]
fn bytes_that_differ_from_their_checksum_are_requested_again() {
    let plan = spdl_io::shards::ShardPlan::new("s").recipe("a", "b");
    let place = tempfile::tempdir().unwrap();
    let opened = spdl_io::shards::ShardWriter::open(place.path().join("set"), &plan).unwrap();
    let spdl_io::shards::Opened::Writing(mut writer) = opened else { panic!("exists") };
    for position in 0..10_u64 {
        let name = position.to_string();
        writer.add(position, name.as_bytes(), &[("jpg", &content(position))]).unwrap();
    }
    writer.finish(10).unwrap();
    let server = FaultServer::of_folder(place.path().join("set"));
    let address = format!("{}/s-000000.tar", server.url());
    let data = try_open(&address, LIMIT).unwrap();
    // Only the first request for the part.
    server.set_faults(FaultPlan::script(|request| {
        let is_part = request.method == "GET" && request.attempt == 1;
        is_part.then_some(Fault::FlippedBit)
    }));
    let values = builder(&data, (1, 1)).build().unwrap().map(|image| image.unwrap().value);
    let mut found: Vec<Bytes> = values.collect();
    found.sort();
    let mut expected: Vec<_> = (0..10).map(content).collect();
    expected.sort();
    assert!(found.iter().zip(&expected).all(|(found, expected)| found[..] == expected[..]));
}

#[test]
fn compressed_shards_are_decompressed_in_memory() {
    let gzip = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let server =
        FaultServer::start([("s-0.tar.gz", gzip(&shard(0))), ("s-1.tar.gz", gzip(&shard(1)))]);
    let remote = try_open(&format!("{}/s-{{0,1}}.tar.gz", server.url()), LIMIT).unwrap();
    assert_eq!((remote.kind, remote.reads_parts()), (DatasetKind::TarShards, true));
    let order = epoch(&remote);
    assert_once(order.clone(), 2);
    let gets = |name: &str| {
        let seen = server.seen();
        seen.iter().filter(|it| it.method == "GET" && it.target == name).count()
    };
    assert_eq!((gets("/s-0.tar.gz"), gets("/s-1.tar.gz")), (1, 1), "both fit");
    let folder = tempfile::tempdir().unwrap();
    for number in 0..2 {
        std::fs::write(folder.path().join(format!("s-{number}.tgz")), gzip(&shard(number)))
            .unwrap();
    }
    let pattern = format!("{}/s-{{0,1}}.tgz", folder.path().display());
    let local = try_open(&pattern, LIMIT).unwrap();
    assert_eq!(epoch(&local), order);
    let mut first = builder(&local, (2, 4)).build().unwrap();
    let mut found: Vec<u64> = first.by_ref().take(100).map(number).collect();
    let state = first.state().unwrap();
    let again = try_open(&pattern, LIMIT).unwrap();
    found.extend(builder(&again, (1, 9)).resume(state).build().unwrap().map(number));
    assert_eq!(found, order);
    // A file that was rewritten since.
    let path = folder.path().join("s-0.tgz");
    let fetcher = LocalFetcher::new();
    let moved = again.with_fetcher(Arc::new(fetcher));
    std::fs::write(&path, gzip(&shard(3))).unwrap();
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    let error = builder(&moved, (1, 4)).build().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.report());
    // Without the option, and for a truncated stream.
    let plain = block_on(OpenedDataset::open(&[&pattern], &StoreRegistry::new())).unwrap_err();
    assert_eq!(plain.kind(), ErrorKind::Unsupported);
    assert!(plain.report().to_string().contains("sequential=True"), "{}", plain.report());
    let half = gzip(&shard(0));
    std::fs::write(&path, &half[..half.len() / 2]).unwrap();
    let error = try_open(&pattern, LIMIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated, "{}", error.report());
    assert!(error.key().unwrap().ends_with("s-0.tgz"));
    // A shard that expands beyond the limit.
    std::fs::write(&path, gzip(&vec![0; 65 << 20])).unwrap();
    let error = try_open(&pattern, LIMIT).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{}", error.report());
}

#[test]
fn parts_in_memory_and_in_flight_stay_within_the_limit() {
    /// Zeros, which count as memory until they are dropped.
    #[derive(Debug)]
    struct Zeros {
        size: u64,
        live: Arc<AtomicU64>,
        most: AtomicU64,
    }
    struct Counted(Vec<u8>, Arc<AtomicU64>);
    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_sub(self.0.len() as u64, Ordering::SeqCst);
        }
    }
    #[spdl_io::async_trait]
    impl Fetcher for Zeros {
        fn capability(&self) -> Capability {
            Capability::default().with_ranges().with_stat()
        }
        async fn read(&self, _: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
            let Range { start, end } = range.unwrap();
            let live = self.live.fetch_add(end - start, Ordering::SeqCst) + end - start;
            self.most.fetch_max(live, Ordering::SeqCst);
            // Other reads begin before this one ends.
            tokio::task::yield_now().await;
            let bytes = vec![0; (end - start) as usize];
            Ok(Bytes::from_owner(Counted(bytes, Arc::clone(&self.live))))
        }
        async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
            Ok(ObjectMeta::new(key.clone(), self.size))
        }
    }
    let zeros = Arc::new(Zeros { size: 300 * MIB, live: Arc::default(), most: AtomicU64::new(0) });
    let fetcher = PartFetcher::new(Arc::clone(&zeros) as Arc<dyn Fetcher>, LIMIT);
    // In any order, 3 at a time, some over two parts.
    let key = Key::from("zeros");
    let read = |start| fetcher.read(&key, Some(start - 500..start + 500));
    let starts = (0..200_u64).map(|at| (at * 7919 % 299 + 1) * MIB);
    let reads: Vec<_> = starts.map(|start| async move { read(start).await.unwrap() }).collect();
    let kept: Vec<Bytes> = block_on(stream::iter(reads).buffered(3).collect());
    assert!(kept.iter().all(|bytes| bytes.len() == 1000));
    // Each waiting read holds up to two parts that were dropped already.
    let most = zeros.most.load(Ordering::SeqCst);
    assert!((LIMIT..=LIMIT + 6 * PartFetcher::PART_BYTES).contains(&most), "{most}");
    assert!(zeros.live.load(Ordering::SeqCst) <= LIMIT);
    drop(fetcher);
    assert_eq!(zeros.live.load(Ordering::SeqCst), 0, "results are copies");
}

// promise: R15
#[test]
fn faults_of_the_store_change_nothing() {
    let server = server(3);
    let expected = epoch(&open(&server, 3));
    let options = SourceOptions::default().resilience(crate::many_retries());
    let stores = StoreRegistry::new().with_options("http:", options);
    let faults = [Fault::ClosedInBody, Fault::ShortRange, Fault::Unavailable, Fault::Reset];
    server.set_faults(FaultPlan::random(3, 0.3, &faults).retry_after(Duration::ZERO));
    let address = format!("{}/s-{{0..2}}.tar", server.url());
    let options = OpenOptions::default().sequential(LIMIT);
    let data = block_on(OpenedDataset::open_with(&[address], &stores, &options)).unwrap();
    assert_eq!(epoch(&data), expected);
    assert!(server.served().faults > 3);
}

#[test]
fn parts_satisfy_the_contract_of_fetchers() {
    let store: MemoryFetcher = contract_objects().into_iter().collect();
    fetcher_contract(&PartFetcher::new(Arc::new(store), LIMIT), &"".into());
}

#[test]
fn a_fetcher_of_a_server_without_ranges_reads_whole_objects() {
    let server = server(1);
    server.ignore_ranges();
    let options = SourceOptions::default();
    let http = spdl_io::HttpFetcher::new(&server.url(), &options).unwrap();
    let fetcher = PartFetcher::new(Arc::new(http), LIMIT);
    let (key, expected) = (Key::from("s-0.tar"), shard(0));
    for start in [0, 9_000_000, 700] {
        let found = block_on(fetcher.read(&key, Some(start..start + 600))).unwrap();
        assert!(found[..] == expected[start as usize..][..600]);
    }
    // The first range request, and the whole object.
    assert_eq!(reads(&server.seen()).values().sum::<usize>(), 2);
}

#[test]
fn a_range_over_several_parts_is_joined() {
    let bytes: Vec<u8> = (0..20 * MIB).map(|at| (at % 251) as u8).collect();
    let store: MemoryFetcher = [("x", bytes.clone())].into_iter().collect();
    // A part is larger than the limit.
    let fetcher = PartFetcher::new(Arc::new(store), 1);
    for range in [0..1, 8 * MIB - 3..8 * MIB + 5, 5..20 * MIB, 20 * MIB - 1..20 * MIB, 7..7] {
        let found = block_on(fetcher.read(&"x".into(), Some(range.clone()))).unwrap();
        assert!(found[..] == bytes[range.start as usize..range.end as usize], "{range:?}");
    }
    let error = block_on(fetcher.read(&"x".into(), Some(5..20 * MIB + 1))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Truncated);
}
