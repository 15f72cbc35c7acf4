//! Servers whose names lead nowhere, and places where none listens.

// promise of this file: R15

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use spdl_io::datasets::OpenedDataset;
use spdl_io::{ErrorKind, ResilientOptions, SourceOptions, StoreRegistry, block_on};

#[test]
fn a_name_that_does_not_resolve_is_told_within_its_time() {
    // Nobody may ever have a name that ends so (RFC 6761, 6.4).
    let host = "no-such-host.invalid";
    let budget = Duration::from_millis(700);
    let patience = || ResilientOptions::default().budget(budget).attempts(20);
    let options = || SourceOptions::default().resilience(patience());
    let s3 = options().endpoint(format!("https://{host}")).anonymous(true);
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let stores = StoreRegistry::new()
        .with_options("http:", options())
        .with_options("https:", options())
        .with_options("s3:", s3)
        .when_not_reached(move |store, _| listener.lock().unwrap().push(store.to_owned()));
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
            // A name server that is lost itself answers nothing.
            kind => assert_eq!(kind, ErrorKind::Timeout, "{}", error.report()),
        }
        let told = std::mem::take(&mut *told.lock().unwrap());
        assert!(told.len() == 1 && address.starts_with(&told[0]), "{address}: {told:?}");
    }
}

#[test]
fn a_listing_where_no_server_listens_is_told_at_once_and_given_up_soon() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let s3 = SourceOptions::default().endpoint("http://127.0.0.1:1".to_owned()).anonymous(true);
    let stores =
        StoreRegistry::new().with_options("s3:", s3).when_not_reached(move |store, error| {
            listener.lock().unwrap().push(format!("{store}: {}", error.message()));
        });
    let start = Instant::now();
    let error = block_on(OpenedDataset::open(&["s3://b/folder/"], &stores)).unwrap_err();
    let time = start.elapsed();
    assert!(time < Duration::from_secs(4), "{time:?}, and all its time is 30 s");
    assert!(error.message().contains("no response from this server so far"), "{error}");
    let told = told.lock().unwrap();
    assert!(told.len() == 1 && told[0].starts_with("s3://b: cannot connect to the "), "{told:?}");
}

#[test]
fn where_no_server_listens_it_is_told_at_once_and_given_up_soon() {
    // Nobody is given a port below 1024 who does not ask for it.
    let unused = "127.0.0.1:1";
    let told = Arc::new(Mutex::new(Vec::new()));
    let listener = Arc::clone(&told);
    let s3 = SourceOptions::default().endpoint(format!("http://{unused}")).anonymous(true);
    let stores =
        StoreRegistry::new().with_options("s3:", s3).when_not_reached(move |store, error| {
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
        assert!(time < Duration::from_secs(4), "{address}: {time:?}, and all its time is 30 s");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("cannot connect to the "), "{error}");
        assert!(error.message().contains("no response from this server so far"), "{error}");
        let told = std::mem::take(&mut *told.lock().unwrap());
        assert!(told.len() == 1 && told[0].starts_with(&format!("{store}: cannot ")), "{told:?}");
    }
}
