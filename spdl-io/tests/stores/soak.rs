//! Soak test with mixed network faults: all bytes are correct, and memory, threads and files do not
//! grow.

// promise of this file: R17

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use spdl_io::stores::Location;
use spdl_io::testing::{Fault, FaultPlan, FaultServer};
use spdl_io::{
    Cache, CachedFetcher, ErrorKind, Fetcher, Key, ReadRequest, Result, SourceOptions,
    StoreRegistry, block_on,
};

use crate::contents;
use crate::tls_front::{AUTHORITY, CUTS, Plan, TlsFront};

/// Duration in seconds. Default: 3.
const SECONDS: &str = "SPDL_FAULT_SECONDS";
/// First seed. Default: 0.
const SEED: &str = "SPDL_FAULT_SEED";
/// Set in the separate process of the test.
const TEST_PROCESS: &str = "SPDL_TEST_WITHIN";
const NAME: &str = "soak::mixed_faults_change_no_bytes_and_leak_nothing";

const OBJECTS: usize = 100;
const MAX_OBJECT_BYTES: usize = 60_000;
const BUDGET: Duration = Duration::from_secs(10);
/// Maximum growth of memory from the second to the last third, in KiB. The allocator keeps some
/// free memory.
const MAX_GROWTH_KIB: u64 = 16 << 10;

/// Maximum slope of memory over the second half of the rounds, in bytes per round. A linear fit
/// detects small leaks despite noise.
const MAX_SLOPE: f64 = 4096.0;
/// Maximum growth in bytes over few rounds, which are dominated by noise.
const MAX_NOISE: f64 = (8 << 20) as f64;

/// Returns the slope of the least-squares line through the values.
fn slope(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let middle = (values.len() as f64 - 1.0) / 2.0;
    let places = || (0..values.len()).map(|place| place as f64 - middle);
    let rise: f64 = places().zip(values).map(|(place, value)| place * (value - mean)).sum();
    let spread: f64 = places().map(|place| place * place).sum();
    if spread > 0.0 { rise / spread } else { 0.0 }
}

/// Returns the maximum slope for a number of rounds.
fn max_slope(rounds: usize) -> f64 {
    MAX_SLOPE.max(MAX_NOISE / rounds as f64)
}

#[test]
fn small_leaks_are_detected_and_noise_is_not() {
    assert_eq!((slope(&[]), slope(&[5.0]), slope(&[1.0, 3.0, 5.0])), (0.0, 0.0, 2.0));
    // Pseudo-random values between 0 and 8 MB.
    let noise = |round: usize| (round * 7_919 % 101) as f64 * 80e3;
    for (leak, is_seen) in [(0.0, false), (1024.0, false), (16_384.0, true)] {
        let resources: Vec<f64> =
            (0..2000).map(|round| noise(round) + leak * round as f64).collect();
        assert_eq!(
            slope(&resources) > max_slope(resources.len()),
            is_seen,
            "{leak} bytes per round"
        );
    }
    let few: Vec<f64> = (0..4).map(noise).collect();
    assert!(slope(&few) <= max_slope(4));
}

fn object(number: usize) -> Bytes {
    contents(number, number * 7_919 % MAX_OBJECT_BYTES)
}

/// Resources of this process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Resources {
    threads: u64,
    files: u64,
    resident_kib: u64,
}

impl Resources {
    fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let files = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        Resources { threads: number("Threads:"), files, resident_kib: number("VmRSS:") }
    }

    /// Waits up to 5 s until threads and files are no more than `before`, and returns the
    /// resources.
    fn wait_for_release(before: Option<Resources>) -> Self {
        let start = Instant::now();
        loop {
            let now = Resources::now();
            let is_released = before
                .is_some_and(|before| now.threads <= before.threads && now.files <= before.files);
            if is_released || start.elapsed() > Duration::from_secs(5) {
                return now;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Counters of a round.
#[derive(Debug, Default)]
struct RoundCounts {
    reads: u64,
    bytes: u64,
    faults: u64,
    cuts: u64,
}

/// The data over HTTP, HTTPS and S3.
fn stores(plain: &FaultServer, front: &TlsFront, seed: u64) -> [Location; 3] {
    let many_retries = crate::many_retries()
        .attempts(50)
        .budget(BUDGET)
        .stall_timeout(Duration::from_millis(250))
        .min_bytes(64)
        .seed(seed);
    let options =
        || SourceOptions::default().ca_certificates(AUTHORITY).resilience(many_retries.clone());
    let s3 = options().endpoint(plain.url()).allow_plain_http(true).anonymous(true);
    let stores = StoreRegistry::new()
        .with_options("http:", options())
        .with_options("https:", options())
        .with_options("s3:", s3);
    [format!("{}/data", plain.url()), format!("{}/data", front.url()), "s3://data".to_owned()]
        .map(|address| stores.open(&address).unwrap())
}

/// Reads an object wholly, as a range, or as a stream.
async fn read(
    fetcher: &dyn Fetcher,
    key: &Key,
    how: u64,
    len: usize,
) -> Result<(Range<usize>, Bytes)> {
    let part = len / 3..len - len / 4;
    match how % 3 {
        0 => Ok((0..len, fetcher.read(key, None).await?)),
        1 => {
            let range = part.start as u64..part.end as u64;
            Ok((part, fetcher.read(key, Some(range)).await?))
        }
        _ => Ok((0..len, read_stream(fetcher, key).await?)),
    }
}

/// Reads a stream, and restarts it if it ends with an error. A stream cannot be resumed if the
/// store contradicts itself, for example about the length (`Fault::LongLength`).
async fn read_stream(fetcher: &dyn Fetcher, key: &Key) -> Result<Bytes> {
    let mut tries = 0;
    loop {
        let body = fetcher.open(key, &ReadRequest::whole()).await?;
        match body.pieces.try_collect::<Vec<Bytes>>().await {
            Err(error) if error.kind() == ErrorKind::Corrupt && tries < 20 => tries += 1,
            pieces => return Ok(pieces?.concat().into()),
        }
    }
}

/// Reads an epoch from each store, with the faults of this seed.
fn round(seed: u64) -> RoundCounts {
    let plain = FaultServer::start((0..OBJECTS).map(|n| (format!("data/{n}"), object(n))));
    let front = TlsFront::start(&plain);
    let mut faults = crate::survivable_faults();
    // One of the stores is read over HTTPS, and redirects to HTTP are refused.
    faults.retain(|it| !matches!(it, Fault::RedirectToOtherHost | Fault::RedirectToClosedPort));
    let share = [0.01, 0.1, 0.3][seed as usize % 3];
    plain.set_faults(FaultPlan::random(seed, share, &faults).retry_after(Duration::ZERO));
    front.set_plan(Plan { cut: CUTS[seed as usize / 3 % 3], share, seed });
    let folder = tempfile::tempdir().unwrap();
    let mut counts = RoundCounts::default();
    for (place, store) in stores(&plain, &front, seed).into_iter().zip(0..) {
        let is_bucket = place.key.as_str() == Some("");
        let fetcher: Arc<dyn Fetcher> = match seed % 4 {
            0 => {
                let cache =
                    Cache::builder().memory(1 << 20).folder(folder.path().join("cache"), 1 << 20);
                let cache = cache.namespace(store.to_string()).open().unwrap();
                Arc::new(CachedFetcher::new(Arc::clone(&place.fetcher), cache))
            }
            _ => Arc::clone(&place.fetcher),
        };
        let reads = stream::iter(0..OBJECTS).map(|n| {
            let (fetcher, place) = (&fetcher, &place);
            async move {
                let key: Key = if is_bucket { n.to_string() } else { format!("data/{n}") }.into();
                let (wanted, start) = (object(n), Instant::now());
                let (range, bytes) = read(&**fetcher, &key, seed + n as u64, wanted.len())
                    .await
                    .unwrap_or_else(|error| panic!("seed {seed}, {place}: {}", error.report()));
                assert!(bytes == wanted[range], "seed {seed}, {place}, object {n}: wrong bytes");
                // A read that makes progress may exceed the retry time.
                let limit = 3 * BUDGET;
                assert!(start.elapsed() < limit, "seed {seed}, {place}: {:?}", start.elapsed());
                bytes.len() as u64
            }
        });
        let bytes: Vec<u64> = block_on(reads.buffered(16).collect());
        counts.reads += bytes.len() as u64;
        counts.bytes += bytes.iter().sum::<u64>();
    }
    counts.faults = plain.served().faults;
    counts.cuts = front.cuts();
    counts
}

fn variable(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

fn soak() {
    let (length, first) = (Duration::from_secs(variable(SECONDS, 3)), variable(SEED, 0));
    let start = Instant::now();
    let (mut sum, mut minutes) = (RoundCounts::default(), 0);
    // Resources after each round. The first rounds load libraries and fill caches.
    let mut resources: Vec<Resources> = Vec::new();
    for seed in first.. {
        let counts = round(seed);
        sum.reads += counts.reads;
        sum.bytes += counts.bytes;
        sum.faults += counts.faults;
        sum.cuts += counts.cuts;
        let now = Resources::wait_for_release(resources.get(1).copied());
        resources.push(now);
        if let Some(before) = resources.get(1) {
            let is_released = now.threads <= before.threads && now.files <= before.files;
            assert!(is_released, "seed {seed}: {before:?} became {now:?}");
        }
        let is_over = start.elapsed() >= length && resources.len() >= 4;
        if is_over || start.elapsed().as_secs() / 60 > minutes {
            minutes = start.elapsed().as_secs() / 60;
            let seconds = start.elapsed().as_secs();
            println!("{seconds} s, up to seed {seed}: {sum:?}, {now:?}");
        }
        if is_over {
            break;
        }
    }
    let half: Vec<f64> = resources[resources.len() / 2..]
        .iter()
        .map(|resources| resources.resident_kib as f64 * 1024.0)
        .collect();
    let (found, limit) = (slope(&half), max_slope(half.len()));
    let growth = format!(
        "memory grew by {found:.0} bytes per round in the last {} rounds; the limit is {limit:.0}",
        half.len()
    );
    println!("{growth}");
    assert!(found <= limit, "{growth}");
    let third = resources.len() / 3;
    let smallest =
        |rounds: &[Resources]| rounds.iter().map(|resources| resources.resident_kib).min().unwrap();
    let [early, late] =
        [smallest(&resources[third..2 * third + 1]), smallest(&resources[2 * third..])];
    println!(
        "{} rounds; memory was {early} KiB in the second third and {late} KiB in the last",
        resources.len()
    );
    assert!(late <= early + MAX_GROWTH_KIB, "memory grew from {early} KiB to {late} KiB");
    assert!(sum.faults > 100 && sum.cuts > 0, "{sum:?}");
}

// promise: R15
#[test]
fn mixed_faults_change_no_bytes_and_leak_nothing() {
    if std::env::var_os(TEST_PROCESS).is_some() {
        return soak();
    }
    if !cfg!(target_os = "linux") {
        return println!("SKIPPED: requires /proc of Linux");
    }
    // In a separate process, because other tests use threads and files.
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture", "--test-threads", "1"])
        .env(TEST_PROCESS, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut passed = false;
    // Prints the output as it arrives, without the lines of the test harness.
    for line in BufReader::new(process.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        passed |= line.starts_with("test result: ok. 1 passed;");
        let is_count = ["running ", "test result:"].iter().any(|it| line.starts_with(it));
        if !is_count && !["", "ok"].contains(&line.as_str()) {
            let line = line.strip_prefix(&format!("test {NAME} ... ")).unwrap_or(&line);
            writeln!(std::io::stdout(), "{line}").unwrap();
        }
    }
    let status = process.wait().unwrap();
    assert!(status.success(), "{status}");
    // A wrong test name would run no test and succeed.
    assert!(passed, "no test has this name");
}
