//! Tail latency: hedging hides requests without a response, one in a hundred.

// promise of this file: R16

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use spdl_io::testing::{Fault, FaultPlan, FaultServer};
use spdl_io::{Fetcher, HttpFetcher, Key, Resilient, ResilientOptions, SourceOptions, block_on};
use std::sync::Arc;

use crate::contents;

const READS: usize = 1_500;

#[test]
fn hedged_requests_bound_the_tail_latency() {
    let objects = (0..READS).map(|n| (n.to_string(), contents(n, 1_000)));
    let server = FaultServer::start(objects);
    let plan = FaultPlan::script(|request| {
        let number: usize = request.key.parse().unwrap_or(1);
        let is_lost = number > 100 && number.is_multiple_of(100) && request.attempt == 1;
        is_lost.then_some(Fault::NoAnswer)
    });
    server.set_faults(plan.latency(Duration::from_millis(5)));
    let http = HttpFetcher::new(&server.url(), &SourceOptions::default()).unwrap();
    let stall = Duration::from_secs(30);
    let options = ResilientOptions::default().stall_timeout(stall).budget(2 * stall).seed(7);
    let fetcher = Resilient::new(Arc::new(http), options).unwrap();
    let reads = stream::iter(0..READS).map(|n| {
        let fetcher = &fetcher;
        async move {
            let start = Instant::now();
            let bytes = fetcher.read(&Key::from(n.to_string()), None).await.unwrap();
            assert!(bytes == contents(n, 1_000));
            start.elapsed()
        }
    });
    let mut times: Vec<Duration> = block_on(reads.buffer_unordered(8).collect());
    times.sort_unstable();
    let statistics = fetcher.statistics();
    let quantile = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    // 1 % of the first requests get no response. Hedged requests keep p99 far below the 30 s
    // timeout.
    let (p50, p99) = (quantile(0.5), quantile(0.99));
    assert!(p99 < Duration::from_secs(3), "p50 {p50:?}, p99 {p99:?}, {statistics:?}");
    // The slowest read does not wait for the lost response of 30 s.
    assert!(times[times.len() - 1] < stall, "{:?}", times[times.len() - 1]);
    assert_eq!((statistics.stalls, statistics.retries), (0, 0));
    assert!(statistics.hedges_won >= 13, "{statistics:?}");
    let limit = statistics.requests / 20 + 10;
    assert!(statistics.hedges <= limit, "{statistics:?}");
}
