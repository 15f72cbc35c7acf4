//! Host names that fail to resolve at random.

// promise of this file: R15

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use spdl_io::stores::Location;
use spdl_io::testing::FaultServer;
use spdl_io::{ErrorKind, Key, ResilientOptions, SourceOptions, StoreRegistry, block_on};

use crate::contents;
use crate::own_process::OwnProcess;

const BUDGET: Duration = Duration::from_secs(5);
const OBJECTS: usize = 30;

fn server() -> FaultServer {
    FaultServer::start((0..OBJECTS).map(|n| (n.to_string(), contents(n, 2_000))))
}

/// Opens the server by another host name.
fn place(server: &FaultServer, host: &str) -> Location {
    let patience = ResilientOptions::default()
        .attempts(30)
        .budget(BUDGET)
        .first_delay(Duration::from_millis(2))
        .most_delay(Duration::from_millis(20))
        .retry_tokens(10_000.0)
        .seed(7);
    let options = SourceOptions::default().resilience(patience);
    let stores = StoreRegistry::new().with_options("http:", options);
    stores.open(&server.url().replace("127.0.0.1", host)).unwrap()
}

fn read_all(place: &Location) {
    let reads = stream::iter(0..OBJECTS).map(|n| async move {
        let start = Instant::now();
        let read = place.fetcher.read(&Key::from(n.to_string()), None).await;
        let read = read.unwrap_or_else(|error| panic!("{place}: {}", error.report()));
        assert!(read == contents(n, 2_000), "{place}: {n}");
        assert!(start.elapsed() < BUDGET + Duration::from_secs(1), "{place}: {n}");
    });
    block_on(reads.buffer_unordered(10).for_each(|()| async {}));
}

#[test]
fn reads_survive_failed_name_lookups() {
    let name = "names::reads_survive_failed_name_lookups";
    let Some(process) = OwnProcess::with_faulty_libc() else { return };
    process.run(name, || {
        let server = server();
        for share in [1, 10, 30] {
            for seed in 0..3 {
                // Each fetcher resolves the name again.
                for _ in 0..3 {
                    read_all(&place(&server, &format!("fails-{share}-{seed}.test")));
                }
            }
        }
        for failures in 1..=20 {
            read_all(&place(&server, &format!("first-{failures}-fail.test")));
        }
    });
}

#[test]
fn unresolvable_names_are_retried_and_reported() {
    let name = "names::unresolvable_names_are_retried_and_reported";
    let Some(process) = OwnProcess::with_faulty_libc() else { return };
    process.run(name, || {
        let place = place(&server(), "fails-100-0.test");
        let start = Instant::now();
        let error = block_on(place.fetcher.read(&"0".into(), None)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{}", error.report());
        let expected = "cannot resolve the host name of the server";
        assert!(error.message().contains(expected), "{error}");
        assert!(error.message().contains("tried 30 times"), "{error}");
        assert!(start.elapsed() < BUDGET + Duration::from_secs(1), "{:?}", start.elapsed());
    });
}
