//! TLS connections that are closed without `close_notify`, and private certificate authorities.

// promise of this file: R15

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use spdl_io::stores::Location;
use spdl_io::testing::FaultServer;
use spdl_io::{Error, ErrorKind, Result, SourceOptions, StoreRegistry, block_on};

use crate::tls_front::{AUTHORITY, CUTS, Cut, Plan, TlsFront};
use crate::{BUDGET, contents, many_retries};

const OBJECTS: usize = 30;
const LEN: usize = 20_000;

fn server() -> FaultServer {
    FaultServer::start((0..OBJECTS).map(|n| (format!("data/{n}"), contents(n, LEN))))
}

const WEB: usize = 0;
const BUCKET: usize = 1;

/// The data over HTTPS and S3, for a client that trusts the certificate authority.
fn stores(front: &TlsFront) -> [Location; 2] {
    let url = front.url();
    let options = || SourceOptions::default().ca_certificates(AUTHORITY).resilience(many_retries());
    let s3 = options().endpoint(&url).anonymous(true);
    let stores = StoreRegistry::new().with_options("https:", options()).with_options("s3:", s3);
    [format!("{url}/data"), "s3://data".to_owned()].map(|it| stores.open(&it).unwrap())
}

/// Reads an object, and measures the time.
async fn read(place: &Location, n: usize) -> (Result<Bytes>, Duration) {
    let is_bucket = place.key.as_str() == Some("");
    let key = if is_bucket { n.to_string() } else { format!("data/{n}") };
    let start = Instant::now();
    (place.fetcher.read(&key.into(), None).await, start.elapsed())
}

/// Reads all objects, 8 concurrently.
fn epoch(place: &Location) -> Vec<(Result<Bytes>, Duration)> {
    let reads = stream::iter(0..OBJECTS).map(|n| read(place, n));
    block_on(reads.buffered(8).collect())
}

/// Checks one combination of parameters with new connections.
fn cell(front: &TlsFront, store: usize, plan: Plan) {
    front.set_plan(plan);
    let place = &stores(front)[store];
    for (n, (read, time)) in epoch(place).into_iter().enumerate() {
        let bytes = read.unwrap_or_else(|error| panic!("{place} {plan:?}: {}", error.report()));
        assert!(bytes == contents(n, LEN), "{place} {plan:?}: other bytes");
        assert!(time < BUDGET + Duration::from_secs(1), "{place} {plan:?}: {time:?}");
    }
}

#[test]
fn reads_survive_closed_tls_connections() {
    let plain = server();
    let front = TlsFront::start(&plain);
    for cut in CUTS {
        let before = front.cuts();
        for share in [0.01, 0.1, 0.3] {
            for seed in 0..3 {
                cell(&front, WEB, Plan { cut, share, seed });
            }
        }
        cell(&front, BUCKET, Plan { cut, share: 0.3, seed: 0 });
        let cuts = front.cuts() - before;
        println!("{cut:?}: {cuts} connections were closed early");
        assert!(cuts >= 5, "{cut:?} happened {cuts} times");
    }
}

#[test]
fn truncated_responses_are_resumed() {
    let plain = server();
    let front = TlsFront::start(&plain);
    for store in [WEB, BUCKET] {
        cell(&front, store, Plan { cut: Cut::InBody, share: 1.1, seed: 0 });
    }
}

#[test]
fn failed_tls_connections_are_transient_errors() {
    let plain = server();
    let front = TlsFront::start(&plain);
    for cut in [Cut::Handshake, Cut::BeforeResponse] {
        front.set_plan(Plan { cut, share: 1.1, seed: 0 });
        for place in stores(&front) {
            let (read, time) = block_on(read(&place, 0));
            let error = read.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{place} {cut:?}: {}", error.report());
            assert!(time < BUDGET + Duration::from_secs(1), "{place} {cut:?}: {time:?}");
        }
    }
}

fn open_or_read_error(front: &TlsFront, options: SourceOptions) -> Error {
    let stores = StoreRegistry::new().with_options("https:", options);
    let url = format!("{}/data/0", front.url());
    let place = match stores.open(&url) {
        Ok(place) => place,
        Err(error) => return error,
    };
    block_on(place.fetcher.read(&place.key, None)).unwrap_err()
}

#[test]
fn untrusted_certificates_fail_without_retries() {
    let plain = server();
    let front = TlsFront::start(&plain);
    let start = Instant::now();
    let error = open_or_read_error(&front, SourceOptions::default().resilience(many_retries()));
    assert_eq!(error.kind(), ErrorKind::Io, "{}", error.report());
    assert!(error.message().contains("TLS handshake"), "{error}");
    assert!(start.elapsed() < BUDGET, "no retries: {:?}", start.elapsed());
    assert_eq!(plain.served().requests, 0);
}

#[test]
fn invalid_ca_certificates_are_rejected() {
    let plain = server();
    let front = TlsFront::start(&plain);
    let begin = "-----BEGIN CERTIFICATE-----\n";
    let end = "\n-----END CERTIFICATE-----\n";
    for pem in ["", "some text", &format!("{begin}AAAA{end}"), &format!("{begin}?{end}"), begin] {
        let error =
            open_or_read_error(&front, SourceOptions::default().ca_certificates(pem.to_owned()));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{pem:?}: {}", error.report());
        assert!(error.message().contains("invalid ca_certificates"), "{error}");
    }
}
