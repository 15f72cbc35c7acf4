//! Host names that do not exist, and ports without a server.

// promise of this file: R15

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use spdl_io::datasets::OpenedDataset;
use spdl_io::{ErrorKind, ResilientOptions, SourceOptions, StoreRegistry, block_on};

#[test]
fn unknown_host_names_are_reported_in_time() {
    // The domain `.invalid` never exists (RFC 6761, 6.4).
    let host = "no-such-host.invalid";
    let budget = Duration::from_millis(700);
    let retries = || ResilientOptions::default().budget(budget).attempts(20);
    let options = || SourceOptions::default().resilience(retries());
    let s3 = options().endpoint(format!("https://{host}")).anonymous(true);
    let reported = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&reported);
    let stores = StoreRegistry::new()
        .with_options("http:", options())
        .with_options("https:", options())
        .with_options("s3:", s3)
        .on_unreachable(move |store, _| listener.lock().unwrap().push(store.to_owned()));
    for address in [format!("http://{host}/a"), format!("https://{host}/a"), "s3://b/a".to_owned()]
    {
        let place = stores.open(&address).unwrap();
        let start = Instant::now();
        let error = block_on(place.fetcher.read(&place.key, None)).unwrap_err();
        let time = start.elapsed();
        assert!(time < budget + Duration::from_secs(1), "{address}: {time:?}");
        match error.kind() {
            ErrorKind::Unavailable => {
                assert!(error.message().contains("cannot resolve the host name"), "{error}");
            }
            // Without a reachable name server, the lookup times out.
            kind => assert_eq!(kind, ErrorKind::Timeout, "{}", error.report()),
        }
        let reported = std::mem::take(&mut *reported.lock().unwrap());
        assert!(
            reported.len() == 1 && address.starts_with(&reported[0]),
            "{address}: {reported:?}"
        );
    }
}

#[test]
fn listings_fail_fast_if_no_server_listens() {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&reported);
    let s3 = SourceOptions::default().endpoint("http://127.0.0.1:1".to_owned()).anonymous(true);
    let stores =
        StoreRegistry::new().with_options("s3:", s3).on_unreachable(move |store, error| {
            listener.lock().unwrap().push(format!("{store}: {}", error.message()));
        });
    let start = Instant::now();
    let error = block_on(OpenedDataset::open(&["s3://b/folder/"], &stores)).unwrap_err();
    let time = start.elapsed();
    assert!(time < Duration::from_secs(4), "{time:?}, although the retry time is 30 s");
    assert!(error.message().contains("no response from this server so far"), "{error}");
    let reported = reported.lock().unwrap();
    assert!(
        reported.len() == 1 && reported[0].starts_with("s3://b: cannot connect to the "),
        "{reported:?}"
    );
}

#[test]
fn reads_fail_fast_if_no_server_listens() {
    // No server uses port 1.
    let unused = "127.0.0.1:1";
    let reported = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&reported);
    let s3 = SourceOptions::default().endpoint(format!("http://{unused}")).anonymous(true);
    let stores =
        StoreRegistry::new().with_options("s3:", s3).on_unreachable(move |store, error| {
            listener.lock().unwrap().push(format!("{store}: {}", error.message()));
        });
    for (address, store) in [
        (format!("http://{unused}/a"), format!("http://{unused}")),
        ("s3://b/a".into(), "s3://b".into()),
    ] {
        let place = stores.open(&address).unwrap();
        let start = Instant::now();
        let error = block_on(place.fetcher.read(&place.key, None)).unwrap_err();
        let time = start.elapsed();
        assert!(
            time < Duration::from_secs(4),
            "{address}: {time:?}, although the retry time is 30 s"
        );
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("cannot connect to the "), "{error}");
        assert!(error.message().contains("no response from this server so far"), "{error}");
        let reported = std::mem::take(&mut *reported.lock().unwrap());
        assert!(
            reported.len() == 1 && reported[0].starts_with(&format!("{store}: cannot ")),
            "{reported:?}"
        );
    }
}
