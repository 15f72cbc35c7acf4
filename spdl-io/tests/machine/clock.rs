//! A wall clock that jumps by a day, forward and back, at each call.

// promise of this file: R25

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use futures_util::{StreamExt, stream};
use spdl_io::layers::CachePolicy;
use spdl_io::testing::{Fault, FaultPlan, FaultServer};
use spdl_io::{Cache, Key, LocalFetcher, ResilientOptions, SourceOptions, StoreRegistry, block_on};
use spdl_io::{CachedFetcher, Fetcher};
use std::sync::Arc;

use crate::contents;
use crate::own_process::OwnProcess;
use crate::shards::{check_cache, files, whole_shards, write_shards};

fn with_jumps(name: &str, work: impl FnOnce()) {
    let Some(process) = OwnProcess::with_faulty_libc() else { return };
    process.variable("SPDL_FAULTY_CLOCK", "1").run(name, || {
        let times: Vec<_> = (0..4).map(|_| SystemTime::now()).collect();
        assert!(!times.is_sorted(), "the wall clock does not jump: {times:?}");
        work();
    });
}

#[test]
fn network_timeouts_ignore_wall_clock_jumps() {
    let name = "clock::network_timeouts_ignore_wall_clock_jumps";
    with_jumps(name, || {
        let faults = [
            Fault::Unavailable,
            Fault::NoAnswer,
            Fault::ClosedInBody,
            Fault::StalledBody,
            Fault::InternalError,
        ];
        let budget = Duration::from_secs(5);
        for seed in 0..20 {
            let server = FaultServer::start((0..30).map(|n| (n.to_string(), contents(n, 3_000))));
            let plan = FaultPlan::random(seed, 0.2, &faults).retry_after(Duration::ZERO);
            server.set_faults(plan);
            let patience = ResilientOptions::default()
                .attempts(20)
                .budget(budget)
                .stall_timeout(Duration::from_millis(200))
                .first_delay(Duration::from_millis(2))
                .most_delay(Duration::from_millis(20))
                .retry_tokens(10_000.0)
                .seed(seed);
            let options = SourceOptions::default().resilience(patience);
            let stores = StoreRegistry::new().with_options("http:", options);
            let place = stores.open(&server.url()).unwrap();
            let reads = stream::iter(0..30).map(|n| {
                let fetcher = &place.fetcher;
                async move {
                    let start = Instant::now();
                    let read = fetcher.read(&Key::from(n.to_string()), None).await;
                    let read = read.unwrap_or_else(|error| panic!("{seed}: {}", error.report()));
                    assert!(read == contents(n, 3_000), "{seed}: {n}");
                    assert!(start.elapsed() < budget + Duration::from_secs(1), "{seed}: {n}");
                }
            });
            block_on(reads.buffer_unordered(10).for_each(|()| async {}));
        }
    });
}

#[test]
fn cache_limits_hold_despite_wall_clock_jumps() {
    let name = "clock::cache_limits_hold_despite_wall_clock_jumps";
    with_jumps(name, || {
        let folder = tempfile::tempdir().unwrap();
        let objects = folder.path().join("objects");
        fs::create_dir(&objects).unwrap();
        for number in 0..40 {
            fs::write(objects.join(number.to_string()), contents(number, 2_000)).unwrap();
        }
        for case in 0..20 {
            let policy = [CachePolicy::Recent, CachePolicy::StableSubset][case % 2];
            let (place, room) = (folder.path().join(format!("cache-{case}")), 30_000);
            let cache = Cache::builder().folder(&place, room).policy(policy).open().unwrap();
            let fetcher = CachedFetcher::new(Arc::new(LocalFetcher::new()), cache.clone());
            for epoch in 0..3 {
                for number in (0..40).map(|n| (n * 7 + epoch + case) % 40) {
                    let key = Key::from_path(objects.join(number.to_string()));
                    assert!(block_on(fetcher.read(&key, None)).unwrap() == contents(number, 2_000));
                }
            }
            let statistics = cache.statistics();
            assert!((20_000..=room).contains(&statistics.disk_bytes), "{case}: {statistics:?}");
            assert_eq!((statistics.damaged, statistics.unwritten), (0, 0), "{statistics:?}");
        }
        check_cache(&folder.path().join("cache"));
    });
}

#[test]
fn shards_are_equal_despite_wall_clock_jumps() {
    with_jumps("clock::shards_are_equal_despite_wall_clock_jumps", || {
        let whole = whole_shards();
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            write_shards(folder.path()).unwrap();
            assert!(files(folder.path()) == whole);
        }
    });
}
