//! Epochs of tar shards, of files in a bucket and of a file list, under each fault at three rates:
//! each ends with the samples of the run without faults, or with an error that names the object.

// promise of this file: R15

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use spdl_core::source::Remainder;
use spdl_core::{DatasetSource, Labeled, PipelineBuilder, Shard, StageOptions, State};
use spdl_io::archive::{ArchiveStamp, TarIndex, TarOptions, TarSlice};
use spdl_io::datasets::OpenedDataset;
use spdl_io::testing::{Fault, FaultPlan, FaultServer};
use spdl_io::{Cache, Error, ErrorKind, Result, SourceOptions, StoreRegistry, block_on};
use twox_hash::{XxHash3_64, XxHash3_128};

use crate::contents;
use crate::faults::in_parallel;

/// If set to `full`, all cells of the grid run; otherwise, one in nine.
const GRID: &str = "SPDL_FAULT_GRID";
const SHARES: [f64; 3] = [0.02, 0.1, 1.0];
const KINDS: [Kind; 3] = [Kind::Tar, Kind::Files, Kind::List];
/// Retry time of a read.
const BUDGET: Duration = Duration::from_secs(2);
/// Limit of a cell. Typical cells take less than 3 s.
const LIMIT: Duration = Duration::from_secs(60);
const SAMPLES: usize = 60;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Tar shards on a web server.
    Tar,
    /// Images in the class folders of a bucket.
    Files,
    /// A list of files on a web server.
    List,
}

/// A sample: bytes and their checksum, as files of most formats have one.
fn sample(number: usize) -> Bytes {
    let mut sample = contents(number, 1_000 + number * 7_919 % 20_000).to_vec();
    sample.extend(XxHash3_64::oneshot(&sample).to_le_bytes());
    sample.into()
}

/// Detects damage as a decoder does.
fn decode(sample: Labeled<Bytes>) -> Result<Labeled<Bytes>> {
    let is_valid = sample
        .value
        .split_last_chunk::<8>()
        .is_some_and(|(bytes, checksum)| XxHash3_64::oneshot(bytes).to_le_bytes() == *checksum);
    if is_valid { Ok(sample) } else { Err(Error::new(ErrorKind::Corrupt, DAMAGED)) }
}

/// The message of errors that [`decode`] or the parser of an archive detected.
const DAMAGED: &str = "the content is damaged";

fn objects() -> Vec<(String, Bytes)> {
    let shard = |shard: usize| {
        let mut archive = tar::Builder::new(Vec::new());
        let mut sums = String::new();
        for number in (0..SAMPLES).filter(|number| number % 4 == shard) {
            let mut append = |name: String, bytes: &[u8]| {
                let mut header = tar::Header::new_ustar();
                header.set_size(bytes.len() as u64);
                sums += &format!("{:032x}  {name}\n", XxHash3_128::oneshot(bytes));
                archive.append_data(&mut header, name, bytes).unwrap();
            };
            append(format!("{number:04}.jpg"), &sample(number));
            append(format!("{number:04}.cls"), (number % 5).to_string().as_bytes());
        }
        let archive = archive.into_inner().unwrap();
        let stamp = ArchiveStamp::new(archive.len() as u64).modified(SystemTime::now());
        let entries = TarSlice::new(archive.clone());
        let index = TarIndex::from_entries(entries, stamp, TarOptions::default()).unwrap();
        let name = format!("shards/train-{shard}.tar");
        [
            (format!("{name}.sums"), sums.into()),
            (format!("{name}.idx"), index.to_bytes().into()),
            (name, archive.into()),
        ]
    };
    let file = |number| {
        [format!("bucket/photos/{}/{number:04}.jpg", number % 5), format!("rows/{number:04}.jpg")]
            .map(|name| (name, sample(number)))
    };
    let rows: String =
        (0..SAMPLES).map(|number| format!("{number:04}.jpg,{}\n", number % 5)).collect();
    (0..4)
        .flat_map(shard)
        .chain((0..SAMPLES).flat_map(file))
        .chain([("rows/list.csv".to_owned(), rows.into())])
        .collect()
}

fn stores(server: &FaultServer) -> StoreRegistry {
    let resilience = crate::many_retries()
        .attempts(8)
        .budget(BUDGET)
        .stall_timeout(Duration::from_millis(250))
        .min_bytes(64);
    let http = SourceOptions::default().resilience(resilience);
    let s3 = http.clone().endpoint(server.url()).allow_plain_http(true).anonymous(true);
    StoreRegistry::new().with_options("http:", http).with_options("s3:", s3)
}

fn address(kind: Kind, server: &FaultServer) -> String {
    match kind {
        Kind::Tar => format!("{}/shards/train-{{0..3}}.tar", server.url()),
        Kind::Files => "s3://bucket/photos/".to_owned(),
        Kind::List => format!("{}/rows/list.csv", server.url()),
    }
}

/// What the samples of an epoch must not depend on.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The number of concurrent reads, and of threads.
    concurrency: usize,
    queue: usize,
    /// The number of ranks, one after another: the run resumes with each.
    worlds: &'static [u64],
}

impl Run {
    const WHOLE: Run = Run { concurrency: 3, queue: 4, worlds: &[1] };
}

/// Opens the data set, and reads a shuffled epoch of it in order.
fn epoch(kind: Kind, server: &FaultServer) -> Result<Vec<Labeled<Bytes>>> {
    Ok(epoch_by(kind, server, Run::WHOLE, None)?.remove(0))
}

/// Returns the samples of each rank of each of the run's worlds.
fn epoch_by(
    kind: Kind,
    server: &FaultServer,
    run: Run,
    cache: Option<&Cache>,
) -> Result<Vec<Vec<Labeled<Bytes>>>> {
    let address = address(kind, server);
    let data = block_on(OpenedDataset::open(&[&address], &stores(server)))?;
    if let Some(warning) = data.warnings.first() {
        let error = Error::new(ErrorKind::Corrupt, DAMAGED).with_source(warning.clone());
        return Err(error.with_key(warning.key().unwrap_or_default()));
    }
    let options = |name| StageOptions::new(name).concurrency(run.concurrency).queue(run.queue);
    let mut state: Option<State> = None;
    let mut samples = Vec::new();
    for (generation, &world) in run.worlds.iter().enumerate() {
        let is_last = generation + 1 == run.worlds.len();
        let mut states = Vec::new();
        for rank in 0..world {
            let mut fetch = data.fetch_labeled();
            if let Some(cache) = cache {
                fetch = fetch.with_cache(cache.clone());
            }
            let builder =
                PipelineBuilder::new(DatasetSource::new(data.samples.clone()).shuffled(3))
                    .async_stage(options("fetch"), fetch)
                    .map(options("decode"), decode)
                    .threads(run.concurrency)
                    .shard(Shard::new(rank, world)?.remainder(Remainder::Uneven))
                    .deterministic();
            let mut pipeline = match &state {
                Some(state) => builder.resume(state.clone()).build()?,
                None => builder.build()?,
            };
            let count = if is_last { usize::MAX } else { 3 + rank as usize };
            samples.push(pipeline.by_ref().take(count).collect::<Result<Vec<_>>>()?);
            states.push(pipeline.state()?);
        }
        state = Some(State::combine(states)?);
    }
    Ok(samples)
}

/// Whether only a decoder or the parser of the archive detects the fault: the response is complete
/// in itself, and a list has no sizes and versions of its files.
fn needs_decoder(kind: Kind, fault: Fault) -> bool {
    match fault {
        Fault::EmptyBody => kind != Kind::Files,
        Fault::ShortLength | Fault::OtherContent => kind == Kind::List,
        _ => false,
    }
}

/// Runs an epoch under a fault. Returns its error, if any, and the number of faults.
fn cell(kind: Kind, fault: Fault, share: f64, wanted: &[Labeled<Bytes>]) -> (Option<Error>, u64) {
    let place = format!("{kind:?}, {fault:?}, {share}");
    let server = Arc::new(FaultServer::start(objects()));
    server.set_faults(FaultPlan::random(5, share, &[fault]).retry_after(Duration::ZERO));
    let (send, ended) = sync_channel(1);
    let start = Instant::now();
    let run = {
        let server = Arc::clone(&server);
        std::thread::spawn(move || send.send(epoch(kind, &server)))
    };
    let end = match ended.recv_timeout(LIMIT) {
        Ok(end) => end,
        Err(RecvTimeoutError::Timeout) => panic!("{place}: no end after {:?}", start.elapsed()),
        Err(RecvTimeoutError::Disconnected) => panic!("{place}: the epoch panicked"),
    };
    let _ = run.join();
    let faults = server.served().faults;
    match end {
        Ok(samples) => {
            assert!(samples == wanted, "{place}: other samples");
            (None, faults)
        }
        Err(error) => {
            let report = error.report().to_string();
            assert_ne!(error.kind(), ErrorKind::Internal, "{place}: {report}");
            let names = error.key().unwrap_or_default();
            // Without a stage, opening failed: the folder could not be listed, or the list not be read.
            let is_opened = error.stage().is_some();
            let is_named = match kind {
                Kind::Tar => names.contains("shards/train-"),
                Kind::Files => names.contains("photos") && names.ends_with(".jpg") == is_opened,
                // A list with other content names other files.
                Kind::List if fault == Fault::OtherContent => names.contains("rows/"),
                Kind::List => names.contains("rows/") && names.ends_with(".jpg") == is_opened,
            };
            assert!(is_named, "{place}: no object is named: {report}");
            let is_decoded = error.message() == DAMAGED;
            assert!(!is_decoded || needs_decoder(kind, fault), "{place}: {report}");
            (Some(error), faults)
        }
    }
}

#[test]
fn epochs_end_with_the_right_samples_or_an_error_that_names_the_object() {
    let is_full = std::env::var(GRID).is_ok_and(|value| value == "full");
    let server = FaultServer::start(objects());
    let wanted = KINDS.map(|kind| epoch(kind, &server).unwrap());
    for samples in &wanted {
        assert_eq!(samples.len(), SAMPLES);
    }
    let mut cells = Vec::new();
    for (place, fault) in Fault::ALL.into_iter().enumerate() {
        for kind in 0..KINDS.len() {
            for (step, share) in SHARES.into_iter().enumerate() {
                if is_full || (kind == place % 3 && step == place / 3 % 3) {
                    cells.push((kind, fault, share));
                }
            }
        }
    }
    // Per fault: how often it happened, epochs with the right samples, epochs with an error.
    let ends: Mutex<BTreeMap<String, [u64; 3]>> = Mutex::default();
    in_parallel(cells.len(), |place| {
        let (kind, fault, share) = cells[place];
        let start = Instant::now();
        let (error, faults) = cell(KINDS[kind], fault, share, &wanted[kind]);
        let end =
            error.as_ref().map_or("the right samples".to_owned(), |it| it.report().to_string());
        println!("{:?}, {fault:?}, {share}: {end} ({:.1?})", KINDS[kind], start.elapsed());
        let mut ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
        let [of_fault, right, wrong] = ends.entry(format!("{fault:?}")).or_default();
        *of_fault += faults;
        *if error.is_none() { right } else { wrong } += 1;
    });
    let ends = ends.into_inner().unwrap();
    let sum = |place: usize| ends.values().map(|counts| counts[place]).sum::<u64>();
    println!(
        "{} kinds of faults, {} cells, {} faults: {} epochs with the right samples, {} errors",
        ends.len(),
        cells.len(),
        sum(0),
        sum(1),
        sum(2)
    );
    for (fault, [faults, ..]) in &ends {
        assert!(!is_full || *faults > 0, "{fault} never happened");
    }
    assert!(sum(0) > cells.len() as u64 && sum(1) > 0 && sum(2) > 0, "{ends:?}");
}

/// Where a cache keeps its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tier {
    None,
    Memory,
    Disk,
    /// A folder in which writing fails after the first epoch.
    FailingDisk,
}

// promise: R13
#[test]
fn order_and_bytes_depend_on_no_cache_fault_thread_queue_world_or_resume() {
    let tiers = [Tier::None, Tier::Memory, Tier::Disk, Tier::FailingDisk];
    let worlds: [&[u64]; 4] = [&[1], &[1, 1], &[2, 3, 1], &[8, 1, 4]];
    let mut cells = Vec::new();
    for kind in KINDS {
        for tier in tiers {
            for concurrency in [1, 3, 16] {
                let queue = [1, 4, 64][cells.len() / 3 % 3];
                let worlds = worlds[cells.len() % worlds.len()];
                cells.push((kind, tier, Run { concurrency, queue, worlds }));
            }
        }
    }
    in_parallel(cells.len(), |cell| {
        let (kind, tier, run) = cells[cell];
        let server = FaultServer::start(objects());
        let wanted = epoch(kind, &server).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        let cache = match tier {
            Tier::None => None,
            // Half of the samples fit.
            Tier::Memory => Some(Cache::builder().memory(300 << 10).open().unwrap()),
            _ => Some(Cache::builder().folder(&path, 300 << 10).open().unwrap()),
        };
        // The first epoch fills the cache, later ones read from it.
        for (round, share) in [0.0, 0.1, 0.1].into_iter().enumerate() {
            let faults = crate::survivable_faults();
            let seed = cell as u64 * 10 + round as u64;
            server.set_faults(FaultPlan::random(seed, share, &faults).retry_after(Duration::ZERO));
            let found = epoch_by(kind, &server, run, cache.as_ref());
            let place = format!("{kind:?}, {tier:?}, {run:?}, epoch {round}");
            let found = found.unwrap_or_else(|error| panic!("{place}: {}", error.report()));
            let mut all: Vec<usize> = Vec::new();
            for samples in &found {
                let places = samples.iter().map(|it| wanted.iter().position(|other| other == it));
                let places = places.collect::<Option<Vec<_>>>();
                let places = places.unwrap_or_else(|| panic!("{place}: other samples"));
                // Each rank has its samples in the order of the whole epoch.
                assert!(places.is_sorted(), "{place}: {places:?}");
                all.extend(places);
            }
            all.sort_unstable();
            assert!(all.into_iter().eq(0..SAMPLES), "{place}: repeated or missing samples");
            if tier == Tier::FailingDisk && round == 0 {
                let new = path.join("new");
                std::fs::remove_dir_all(&new).unwrap();
                std::fs::write(new, "").unwrap();
            }
        }
        let hits = cache.map_or(0, |cache| {
            let found = cache.statistics();
            found.memory_hits + found.disk_hits
        });
        assert_eq!(hits > 0, tier != Tier::None, "{kind:?}, {tier:?}: {hits} hits");
    });
}
