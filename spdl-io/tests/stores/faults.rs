//! Each fault at three rates with three seeds: reads return the stored bytes, or a suitable error
//! in time.

// promise of this file: R15

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use spdl_io::stores::Location;
use spdl_io::testing::{Fault, FaultPlan, FaultServer};
use spdl_io::{
    ErrorKind, Key, ReadRequest, ResilientOptions, Result, SourceOptions, StoreRegistry, block_on,
};

use crate::{BUDGET, contents};

const SIZES: [usize; 8] = [0, 1, 100, 1_000, 4_096, 20_000, 60_000, 5_000];

fn objects() -> Vec<(String, Bytes)> {
    SIZES.iter().enumerate().map(|(n, len)| (format!("data/{n}"), contents(n, *len))).collect()
}

/// Options with a short stall timeout.
fn many_retries() -> ResilientOptions {
    crate::many_retries().stall_timeout(Duration::from_millis(250)).min_bytes(64)
}

fn stores(server: &FaultServer, options: ResilientOptions) -> [Location; 2] {
    let http = SourceOptions::default().resilience(options.clone());
    let s3 = SourceOptions::default()
        .endpoint(server.url())
        .allow_plain_http(true)
        .anonymous(true)
        .resilience(options);
    let stores = StoreRegistry::new().with_options("http:", http).with_options("s3:", s3);
    [format!("{}/data", server.url()), "s3://data".to_owned()]
        .map(|address| stores.open(&address).unwrap())
}

fn key(place: &Location, n: usize) -> Key {
    match place.key.as_str() {
        Some("") => n.to_string().into(),
        _ => format!("data/{n}").into(),
    }
}

/// Reads all objects concurrently, wholly and in parts.
fn epoch(place: &Location) -> Vec<(Result<Bytes>, Bytes, Duration)> {
    let all = objects();
    let parts = |len: usize| -> Vec<Option<Range<u64>>> {
        let len = len as u64;
        vec![None, Some(len / 3..len), Some(0..len / 2)]
    };
    let reads = all.iter().enumerate().flat_map(|(n, (_, bytes))| {
        parts(bytes.len()).into_iter().map(move |range| async move {
            let start = Instant::now();
            let read = place.fetcher.read(&key(place, n), range.clone()).await;
            let wanted = range.map_or_else(
                || bytes.clone(),
                |range| bytes.slice(range.start as usize..range.end as usize),
            );
            (read, wanted, start.elapsed())
        })
    });
    block_on(join_all(reads))
}

/// Checks one combination of parameters. Returns the number of faults.
fn cell(server: &FaultServer, place: &Location, fault: Fault, share: f64, seed: u64) -> u64 {
    let before = server.served().faults;
    server.set_faults(FaultPlan::random(seed, share, &[fault]).retry_after(Duration::ZERO));
    for (read, wanted, time) in epoch(place) {
        match read {
            Ok(bytes) => assert!(bytes == wanted, "{fault:?} {share} {seed}: wrong bytes"),
            // The responses report a change, which is final.
            Err(error) if fault == Fault::OtherVersion => {
                assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.report());
            }
            Err(error) => panic!("{place} {fault:?} {share} {seed}: {}", error.report()),
        }
        assert!(time < BUDGET + Duration::from_secs(1), "{fault:?} {share} {seed}: {time:?}");
    }
    server.served().faults - before
}

/// Runs `work` for the indices below `count` on 8 threads.
pub(crate) fn in_parallel(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    if place >= count {
                        return;
                    }
                    work(place);
                }
            });
        }
    });
}

#[test]
fn reads_survive_each_fault() {
    let faults = [crate::survivable_faults(), vec![Fault::OtherVersion]].concat();
    in_parallel(faults.len(), |place| {
        let fault = faults[place];
        let server = FaultServer::start(objects());
        let [http, s3] = stores(&server, many_retries());
        let mut faults = 0;
        for share in [0.01, 0.1, 0.3] {
            for seed in 0..3 {
                faults += cell(&server, &http, fault, share, seed);
            }
        }
        faults += cell(&server, &s3, fault, 0.3, 0);
        assert!(faults > 20, "{fault:?} happened {faults} times");
    });
}

#[test]
fn reads_survive_mixed_faults() {
    let server = FaultServer::start(objects());
    let faults = crate::survivable_faults();
    for place in stores(&server, many_retries()) {
        server.set_faults(FaultPlan::random(1, 0.3, &faults).retry_after(Duration::ZERO));
        for (read, wanted, _) in epoch(&place) {
            assert!(read.unwrap_or_else(|error| panic!("{}", error.report())) == wanted);
        }
    }
}

#[test]
fn permanent_faults_fail_in_time_with_the_right_kind() {
    let budget = Duration::from_millis(700);
    let server = FaultServer::start(objects());
    for (fault, kinds) in [
        // The retry time may end during the last attempt, whatever the previous failures.
        (Fault::NoAnswer, &[ErrorKind::Timeout][..]),
        (Fault::StalledBody, &[ErrorKind::Timeout]),
        (Fault::Trickle, &[ErrorKind::Timeout]),
        (Fault::Closed, &[ErrorKind::Unavailable, ErrorKind::Timeout]),
        (Fault::Unavailable, &[ErrorKind::Unavailable, ErrorKind::Timeout]),
    ] {
        server.set_faults(FaultPlan::script(move |_| Some(fault)));
        for place in stores(&server, many_retries().budget(budget)) {
            let start = Instant::now();
            let error = block_on(place.fetcher.read(&key(&place, 6), None)).unwrap_err();
            assert!(kinds.contains(&error.kind()), "{place} {fault:?}: {}", error.report());
            let time = start.elapsed();
            assert!(time < budget + Duration::from_secs(1), "{place} {fault:?}: {time:?}");
        }
    }
}

#[test]
fn another_version_fails_immediately() {
    let server = FaultServer::start(objects());
    for place in stores(&server, ResilientOptions::default()) {
        let request = ReadRequest::whole().of_version("\"this one\"");
        let error = block_on(place.fetcher.open(&key(&place, 6), &request)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed, "{place}: {}", error.report());
    }
    assert_eq!(server.served().requests, 2);
}

// promise: DATA2
#[test]
fn changes_between_attempts_are_detected() {
    let server = Arc::new(FaultServer::start(objects()));
    for round in 0..10 {
        for place in stores(&server, many_retries()) {
            server.insert("data/6", contents(6, SIZES[6]));
            let other = contents(100 + round, SIZES[6]);
            let weak = Arc::downgrade(&server);
            server.set_faults(FaultPlan::script(move |request| {
                let is_first = request.attempt == 1 && request.range.is_empty();
                if is_first && let Some(server) = weak.upgrade() {
                    // Inserts on another thread: the server is locked here.
                    let other = other.clone();
                    std::thread::spawn(move || server.insert("data/6", other));
                }
                is_first.then_some(Fault::ClosedInBody)
            }));
            let read = block_on(place.fetcher.read(&key(&place, 6), None));
            // If the first attempt received nothing, the second may read either version.
            let whole = [contents(6, SIZES[6]), contents(100 + round, SIZES[6])];
            match read {
                Ok(bytes) => assert!(whole.contains(&bytes), "mixed versions"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.report()),
            }
        }
    }
}

#[test]
fn retry_after_is_respected() {
    let server = FaultServer::start(objects());
    for place in stores(&server, many_retries()) {
        server.set_faults(FaultPlan::script(|request| {
            (request.attempt == 1).then_some(Fault::Unavailable)
        }));
        let start = Instant::now();
        block_on(place.fetcher.read(&key(&place, 3), None)).unwrap();
        assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    }
}
