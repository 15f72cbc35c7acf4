//! All that goes wrong over a network, mixed, for as long as is asked: no wrong byte, and nothing that
//! grows.

// promise of this file: R15, R17

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

/// How long it goes on; 3 where it is not set.
const SECONDS: &str = "SPDL_FAULT_SECONDS";
/// Where the random numbers begin; 0 where it is not set.
const SEED: &str = "SPDL_FAULT_SEED";
/// Set in the process of the test.
const WITHIN: &str = "SPDL_TEST_WITHIN";
const NAME: &str = "soak::mixed_faults_change_no_byte_and_leave_nothing_behind";

const OBJECTS: usize = 100;
const LARGEST: usize = 60_000;
const BUDGET: Duration = Duration::from_secs(10);
/// What memory may be larger at the end than after the first third, in KiB: what is free is not given
/// back at once.
const MOST_GROWTH: u64 = 16 << 10;

/// What memory may grow by in each round of the second half, in bytes, by the line that fits best: what
/// leaks a little in each round is a slope, however much is noise.
const MOST_SLOPE: f64 = 4096.0;
/// The same of few rounds, in which noise is most of it, all of them together.
const MOST_NOISE: f64 = (8 << 20) as f64;

/// The slope of the line that fits values one after another best, by least squares.
fn slope(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let middle = (values.len() as f64 - 1.0) / 2.0;
    let places = || (0..values.len()).map(|place| place as f64 - middle);
    let rise: f64 = places().zip(values).map(|(place, value)| place * (value - mean)).sum();
    let spread: f64 = places().map(|place| place * place).sum();
    if spread > 0.0 { rise / spread } else { 0.0 }
}

/// How steep the slope of so many rounds may be.
fn most_slope(rounds: usize) -> f64 {
    MOST_SLOPE.max(MOST_NOISE / rounds as f64)
}

#[test]
fn a_little_that_leaks_in_each_round_is_a_slope_and_noise_is_none() {
    assert_eq!((slope(&[]), slope(&[5.0]), slope(&[1.0, 3.0, 5.0])), (0.0, 0.0, 2.0));
    // Between 0 and 8 MB, of no order.
    let noise = |round: usize| (round * 7_919 % 101) as f64 * 80e3;
    for (leak, is_seen) in [(0.0, false), (1024.0, false), (16_384.0, true)] {
        let held: Vec<f64> = (0..2000).map(|round| noise(round) + leak * round as f64).collect();
        assert_eq!(slope(&held) > most_slope(held.len()), is_seen, "{leak} bytes a round");
    }
    let few: Vec<f64> = (0..4).map(noise).collect();
    assert!(slope(&few) <= most_slope(4));
}

fn object(number: usize) -> Bytes {
    contents(number, number * 7_919 % LARGEST)
}

/// What this process holds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    threads: u64,
    files: u64,
    resident_kib: u64,
}

impl Held {
    fn now() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let files = fs::read_dir("/proc/self/fd").unwrap().count() as u64;
        Held { threads: number("Threads:"), files, resident_kib: number("VmRSS:") }
    }

    /// What is held when threads and connections have ended that were about to; more than `before`
    /// where they do not.
    fn after_the_end(before: Option<Held>) -> Self {
        let start = Instant::now();
        loop {
            let now = Held::now();
            let is_back = before
                .is_some_and(|before| now.threads <= before.threads && now.files <= before.files);
            if is_back || start.elapsed() > Duration::from_secs(5) {
                return now;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What a round has done.
#[derive(Debug, Default)]
struct Done {
    reads: u64,
    bytes: u64,
    faults: u64,
    cuts: u64,
}

/// The data by HTTP, by HTTPS, and as a bucket.
fn stores(plain: &FaultServer, front: &TlsFront, seed: u64) -> [Location; 3] {
    let patience = crate::patience()
        .attempts(50)
        .budget(BUDGET)
        .stall_timeout(Duration::from_millis(250))
        .least_bytes(64)
        .seed(seed);
    let options =
        || SourceOptions::default().ca_certificates(AUTHORITY).resilience(patience.clone());
    let s3 = options().endpoint(plain.url()).allow_plain_http(true).anonymous(true);
    let stores = StoreRegistry::new()
        .with_options("http:", options())
        .with_options("https:", options())
        .with_options("s3:", s3);
    [format!("{}/data", plain.url()), format!("{}/data", front.url()), "s3://data".to_owned()]
        .map(|address| stores.open(&address).unwrap())
}

/// Reads an object whole, in part, or piece by piece.
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
        _ => Ok((0..len, piece_by_piece(fetcher, key).await?)),
    }
}

/// Reads a body, and another one where that ends with an error: of what was handed on already nothing
/// can be taken back when the store contradicts itself, as on the length ([`Fault::LongLength`]).
async fn piece_by_piece(fetcher: &dyn Fetcher, key: &Key) -> Result<Bytes> {
    let mut tries = 0;
    loop {
        let body = fetcher.open(key, &ReadRequest::whole()).await?;
        match body.pieces.try_collect::<Vec<Bytes>>().await {
            Err(error) if error.kind() == ErrorKind::Corrupt && tries < 20 => tries += 1,
            pieces => return Ok(pieces?.concat().into()),
        }
    }
}

/// An epoch over each store, with faults of this seed.
fn round(seed: u64) -> Done {
    let plain = FaultServer::start((0..OBJECTS).map(|n| (format!("data/{n}"), object(n))));
    let front = TlsFront::start(&plain);
    // What names another version is `Changed`, whatever is done.
    let faults: Vec<Fault> =
        Fault::ALL.into_iter().filter(|fault| *fault != Fault::OtherVersion).collect();
    let share = [0.01, 0.1, 0.3][seed as usize % 3];
    plain.set_faults(FaultPlan::random(seed, share, &faults).retry_after(Duration::ZERO));
    front.set_plan(Plan { cut: CUTS[seed as usize / 3 % 3], share, seed });
    let folder = tempfile::tempdir().unwrap();
    let mut done = Done::default();
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
                assert!(bytes == wanted[range], "seed {seed}, {place}, object {n}: other bytes");
                // A body that gets on may take longer than what fails.
                let most = 3 * BUDGET;
                assert!(start.elapsed() < most, "seed {seed}, {place}: {:?}", start.elapsed());
                bytes.len() as u64
            }
        });
        let bytes: Vec<u64> = block_on(reads.buffered(16).collect());
        done.reads += bytes.len() as u64;
        done.bytes += bytes.iter().sum::<u64>();
    }
    done.faults = plain.served().faults;
    done.cuts = front.cuts();
    done
}

fn variable(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().unwrap())
}

fn soak() {
    let (length, first) = (Duration::from_secs(variable(SECONDS, 3)), variable(SEED, 0));
    let start = Instant::now();
    let (mut sum, mut minutes) = (Done::default(), 0);
    // What is held after each round; the first ones load what stays.
    let mut held: Vec<Held> = Vec::new();
    for seed in first.. {
        let done = round(seed);
        sum.reads += done.reads;
        sum.bytes += done.bytes;
        sum.faults += done.faults;
        sum.cuts += done.cuts;
        let now = Held::after_the_end(held.get(1).copied());
        held.push(now);
        if let Some(before) = held.get(1) {
            let is_back = now.threads <= before.threads && now.files <= before.files;
            assert!(is_back, "seed {seed}: {before:?} became {now:?}");
        }
        let is_over = start.elapsed() >= length && held.len() >= 4;
        if is_over || start.elapsed().as_secs() / 60 > minutes {
            minutes = start.elapsed().as_secs() / 60;
            let seconds = start.elapsed().as_secs();
            println!("{seconds} s, up to seed {seed}: {sum:?}, {now:?}");
        }
        if is_over {
            break;
        }
    }
    let half: Vec<f64> =
        held[held.len() / 2..].iter().map(|held| held.resident_kib as f64 * 1024.0).collect();
    let (found, most) = (slope(&half), most_slope(half.len()));
    let told = format!(
        "memory grew by {found:.0} bytes a round in the last {} rounds; {most:.0} may be noise",
        half.len()
    );
    println!("{told}");
    assert!(found <= most, "{told}");
    let third = held.len() / 3;
    let smallest = |rounds: &[Held]| rounds.iter().map(|held| held.resident_kib).min().unwrap();
    let [early, late] = [smallest(&held[third..2 * third + 1]), smallest(&held[2 * third..])];
    println!(
        "{} rounds; memory was {early} KiB in the second third and {late} KiB in the last",
        held.len()
    );
    assert!(late <= early + MOST_GROWTH, "memory grew from {early} KiB to {late} KiB");
    assert!(sum.faults > 100 && sum.cuts > 0, "{sum:?}");
}

#[test]
fn mixed_faults_change_no_byte_and_leave_nothing_behind() {
    if std::env::var_os(WITHIN).is_some() {
        return soak();
    }
    if !cfg!(target_os = "linux") {
        return println!("SKIPPED: what a process holds is looked up as Linux has it");
    }
    // In a process of its own, as others hold threads and files too.
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture", "--test-threads", "1"])
        .env(WITHIN, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut passed = false;
    // Line by line, as they come; but for what the harness says, which is counted.
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
    // Under another name, no test would run, and all would seem well.
    assert!(passed, "no test was run");
}
