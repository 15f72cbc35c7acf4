//! Tests of [`Resilient`] over a fetcher with scripted faults. The clock advances only when all
//! tasks wait, so all times are exact.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use futures_util::future::{join, join_all};

use super::*;
use crate::fetch::check_version;
use crate::stores::MemoryFetcher;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A clock that advances only when all futures wait.
#[derive(Debug)]
struct TestClock {
    start: Instant,
    state: Mutex<TestTime>,
}

#[derive(Debug, Default)]
struct TestTime {
    now: Duration,
    next: u64,
    sleepers: BTreeMap<(Duration, u64), Waker>,
}

struct Nap {
    clock: Arc<TestClock>,
    deadline: (Duration, u64),
}

impl Future for Nap {
    type Output = ();

    fn poll(self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.clock.state.lock().unwrap();
        if state.now >= self.deadline.0 {
            return Poll::Ready(());
        }
        state.sleepers.insert(self.deadline, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Nap {
    fn drop(&mut self) {
        self.clock.state.lock().unwrap().sleepers.remove(&self.deadline);
    }
}

impl TestClock {
    fn new() -> Arc<Self> {
        Arc::new(TestClock { start: Instant::now(), state: Mutex::default() })
    }

    fn elapsed(&self) -> Duration {
        self.state.lock().unwrap().now
    }

    fn nap(self: &Arc<Self>, duration: Duration) -> Nap {
        let mut state = self.state.lock().unwrap();
        state.next += 1;
        let deadline = (state.now.saturating_add(duration), state.next);
        drop(state);
        Nap { clock: Arc::clone(self), deadline }
    }

    /// Runs a future to completion, and advances the clock to the next timer whenever it waits.
    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut cx) {
                return result;
            }
            let mut state = self.state.lock().unwrap();
            let ((at, _), waker) =
                state.sleepers.pop_first().expect("the future waits without a timer");
            state.now = state.now.max(at);
            drop(state);
            waker.wake();
        }
    }
}

#[derive(Debug)]
struct Handle(Arc<TestClock>);

impl Clock for Handle {
    fn now(&self) -> Instant {
        self.0.start + self.0.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(self.0.nap(duration))
    }
}

/// A scripted response to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Response {
    Fine,
    Error(ErrorKind),
    /// The connection is refused.
    ConnectionRefused,
    /// The host name does not exist.
    NoAddress,
    RetryAfter(Duration),
    /// A number of bytes, then an error of this kind.
    Breaks(usize, ErrorKind),
    /// Ends after a number of bytes.
    Ends(usize),
    /// A number of bytes, then no more data and no end.
    Stalls(usize),
    /// More bytes than announced.
    TooLong,
    /// Responds after a delay.
    Late(Duration),
    /// The first byte arrives after 10 ms. The fetcher buffers the body for the given duration.
    Buffers(Duration),
    /// Single bytes with a delay before each.
    Trickles(Duration),
    /// Chunks of this size with a delay before each.
    Slow(usize, Duration),
    OtherVersion,
    /// Another version, from a fetcher that ignores the requested version.
    AnyVersion,
    /// The correct bytes with a wrong size, off by this number.
    OtherSize(i64),
}

fn connection_refused() -> Error {
    Error::new(ErrorKind::Unavailable, "cannot connect").with_source(Unreached::Refused)
}

fn no_address() -> Error {
    Error::new(ErrorKind::Unavailable, "no address").with_source(Unreached::NoAddress)
}

type Script = Box<dyn Fn(&Key, u32, &ReadRequest) -> Response + Send + Sync>;

struct ScriptedFetcher {
    objects: MemoryFetcher,
    clock: Arc<TestClock>,
    capability: Capability,
    script: Script,
    request_counts: Mutex<HashMap<Key, u32>>,
    log: Mutex<Vec<(Duration, ReadRequest)>>,
}

impl fmt::Debug for ScriptedFetcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptedFetcher")
    }
}

impl ScriptedFetcher {
    fn response(&self, key: &Key, request: &ReadRequest) -> Response {
        let attempt = {
            let mut request_counts = self.request_counts.lock().unwrap();
            let count = request_counts.entry(key.clone()).or_default();
            *count += 1;
            *count
        };
        self.log.lock().unwrap().push((self.clock.elapsed(), request.clone()));
        (self.script)(key, attempt, request)
    }
}

#[async_trait]
impl Fetcher for ScriptedFetcher {
    fn capability(&self) -> Capability {
        self.capability
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let request = range.map_or_else(ReadRequest::whole, ReadRequest::range);
        self.open(key, &request).await?.bytes().await
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        match self.response(key, &ReadRequest::whole()) {
            Response::Error(kind) => Err(Error::new(kind, "on purpose")),
            Response::ConnectionRefused => Err(connection_refused()),
            Response::NoAddress => Err(no_address()),
            Response::Stalls(_) => std::future::pending().await,
            _ => self.objects.stat(key).await,
        }
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let response = self.response(key, request);
        match response {
            Response::Error(kind) => return Err(Error::new(kind, "on purpose")),
            Response::ConnectionRefused => return Err(connection_refused()),
            Response::NoAddress => return Err(no_address()),
            Response::RetryAfter(delay) => {
                let error = Error::new(ErrorKind::Unavailable, "slow down");
                return Err(error.with_retry_after(delay));
            }
            Response::Late(delay) => self.clock.nap(delay).await,
            Response::Buffers(delay) => {
                self.clock.nap(10 * MS).await;
                let times = request.times.as_ref().unwrap();
                times.mark_first_byte(self.clock.start + self.clock.elapsed());
                self.clock.nap(delay).await;
            }
            _ => {}
        }
        let mut reported = self.objects.stat(key).await?;
        if matches!(response, Response::OtherVersion | Response::AnyVersion) {
            reported.version = Some("other".into());
        }
        if response != Response::AnyVersion {
            check_version(key, request.version.as_ref(), reported.version.as_ref())?;
        }
        let mut request = request.clone();
        request.version = None;
        let bytes = self.objects.open(key, &request).await?.bytes().await?;
        let clock = Arc::clone(&self.clock);
        let in_steps = |step: usize, delay: Duration| {
            let pieces: Vec<Bytes> =
                bytes.chunks(step).map(|piece| bytes.slice_ref(piece)).collect();
            let clock = Arc::clone(&clock);
            stream::iter(pieces)
                .then(move |piece| {
                    let nap = clock.nap(delay);
                    async move {
                        nap.await;
                        Ok(piece)
                    }
                })
                .boxed()
        };
        let prefix = |len: usize| Ok(bytes.slice(..len.min(bytes.len())));
        let pieces = match response {
            Response::Breaks(len, kind) => {
                stream::iter([prefix(len), Err(Error::new(kind, "on purpose"))]).boxed()
            }
            Response::Ends(len) => stream::iter([prefix(len)]).boxed(),
            Response::Stalls(len) => stream::iter([prefix(len)]).chain(stream::pending()).boxed(),
            Response::TooLong => stream::iter([Ok(bytes), Ok("excess".into())]).boxed(),
            Response::Trickles(delay) => in_steps(1, delay),
            Response::Slow(step, delay) => in_steps(step, delay),
            _ => stream::iter([Ok(bytes)]).boxed(),
        };
        let size = match response {
            Response::OtherSize(by) => reported.size.saturating_add_signed(by),
            _ => reported.size,
        };
        let mut body = Body::new(pieces).with_size(size);
        body.version = reported.version.filter(|_| self.capability.versions);
        Ok(body)
    }

    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        let response = self.response(prefix, &ReadRequest::whole());
        if let Response::Error(kind) = response {
            return Err(Error::new(kind, "on purpose"));
        }
        let entries = self.objects.list(prefix).await?;
        Ok(match response {
            Response::Breaks(len, kind) => {
                let end = stream::iter([Err(Error::new(kind, "on purpose"))]);
                entries.take(len).chain(end).boxed()
            }
            Response::Stalls(len) => entries.take(len).chain(stream::pending()).boxed(),
            // The request is sent when the first entry is polled.
            Response::ConnectionRefused => stream::iter([Err(connection_refused())]).boxed(),
            Response::NoAddress => stream::iter([Err(no_address())]).boxed(),
            _ => entries,
        })
    }
}

struct Setup {
    clock: Arc<TestClock>,
    inner: Arc<ScriptedFetcher>,
    fetcher: Resilient,
}

fn contents(len: usize) -> Bytes {
    (0..len).map(|index| (index * 31 + index / 256) as u8).collect()
}

fn setup_with(
    capability: Capability,
    options: ResilientOptions,
    script: impl Fn(&Key, u32, &ReadRequest) -> Response + Send + Sync + 'static,
) -> Setup {
    let clock = TestClock::new();
    let objects = MemoryFetcher::from_iter([("a", contents(10_000)), ("empty", Bytes::new())]);
    let inner = Arc::new(ScriptedFetcher {
        objects,
        clock: Arc::clone(&clock),
        capability,
        script: Box::new(script),
        request_counts: Mutex::default(),
        log: Mutex::default(),
    });
    let store = Arc::clone(&inner) as Arc<dyn Fetcher>;
    let fetcher = Resilient::with_clock(Arc::new(Handle(Arc::clone(&clock))), store, options);
    Setup { clock, inner, fetcher: fetcher.unwrap() }
}

fn full_capability() -> Capability {
    Capability::default().with_ranges().with_list().with_versions().with_streams()
}

fn options() -> ResilientOptions {
    ResilientOptions::default().seed(7)
}

fn setup(script: impl Fn(u32, &ReadRequest) -> Response + Send + Sync + 'static) -> Setup {
    setup_with(full_capability(), options(), move |_, attempt, request| script(attempt, request))
}

impl Setup {
    fn read(&self) -> Result<Bytes> {
        self.clock.run(self.fetcher.read(&"a".into(), None))
    }

    fn statistics(&self) -> ResilientStatistics {
        self.fetcher.statistics()
    }

    fn log(&self) -> Vec<(Duration, ReadRequest)> {
        self.inner.log.lock().unwrap().clone()
    }
}

#[test]
fn retries_use_exponential_backoff_with_full_jitter() {
    let (mut longest, mut shortest) = ([Duration::ZERO; 4], [Duration::MAX; 4]);
    for seed in 0..200 {
        let setup =
            setup_with(full_capability(), options().seed(seed), |_, attempt, _| match attempt {
                1..=4 => Response::Error(ErrorKind::Unavailable),
                _ => Response::Fine,
            });
        assert_eq!(setup.read().unwrap(), contents(10_000));
        let statistics = setup.statistics();
        assert_eq!((statistics.reads, statistics.requests, statistics.retries), (1, 5, 4));
        let times: Vec<_> = setup.log().into_iter().map(|(at, _)| at).collect();
        for (index, pair) in times.windows(2).enumerate() {
            longest[index] = longest[index].max(pair[1] - pair[0]);
            shortest[index] = shortest[index].min(pair[1] - pair[0]);
        }
    }
    // Uniform from 0 to 100 ms, 200 ms, 400 ms and 800 ms.
    for (index, (longest, shortest)) in longest.into_iter().zip(shortest).enumerate() {
        let bound = 100 * MS * (1 << index);
        assert!(longest <= bound && longest > bound.mul_f64(0.95), "{index}: {longest:?}");
        assert!(shortest < bound.mul_f64(0.05), "{index}: {shortest:?}");
    }
}

#[test]
fn permanent_errors_are_not_retried() {
    for kind in [
        ErrorKind::NotFound,
        ErrorKind::PermissionDenied,
        ErrorKind::Io,
        ErrorKind::Unsupported,
        ErrorKind::InvalidArgument,
        ErrorKind::Truncated,
        ErrorKind::Changed,
    ] {
        let setup = setup(move |_, _| Response::Error(kind));
        let error = setup.read().unwrap_err();
        assert_eq!((error.kind(), error.message()), (kind, "on purpose"));
        assert_eq!(error.key(), Some("a"));
        assert!(Attempts::of(&error).is_none());
        let statistics = setup.statistics();
        assert_eq!((statistics.requests, statistics.failed, statistics.retries), (1, 1, 0));
        assert_eq!(setup.clock.elapsed(), Duration::ZERO);
    }
}

#[test]
fn the_final_error_lists_all_attempts() {
    let setup =
        setup_with(full_capability(), options().attempts(3), |_, attempt, _| match attempt {
            2 => Response::Error(ErrorKind::Timeout),
            _ => Response::Error(ErrorKind::Unavailable),
        });
    let error = setup.read().unwrap_err();
    assert_eq!((error.kind(), error.key()), (ErrorKind::Unavailable, Some("a")));
    let attempts = Attempts::of(&error).unwrap();
    let kinds: Vec<_> = attempts.list().iter().map(|attempt| attempt.error.kind()).collect();
    assert_eq!(kinds, [ErrorKind::Unavailable, ErrorKind::Timeout, ErrorKind::Unavailable]);
    let times: Vec<_> = attempts.list().iter().map(|attempt| attempt.after).collect();
    assert_eq!(times, setup.log().into_iter().map(|(at, _)| at).collect::<Vec<_>>());
    let report = error.report();
    assert!(report.contains("on purpose (tried 3 times in 0."), "{report}");
    assert_eq!(report.matches("on purpose").count(), 1, "equal reasons are listed once: {report}");

    // An error that is not retryable ends the attempts, and the earlier ones are listed.
    let setup = super::tests::setup(|attempt, _| match attempt {
        1 => Response::Error(ErrorKind::Unavailable),
        _ => Response::Error(ErrorKind::PermissionDenied),
    });
    let error = setup.read().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(Attempts::of(&error).unwrap().count(), 2);
}

#[test]
fn the_final_error_lists_each_reason_once() {
    let setup =
        setup_with(full_capability(), options().attempts(4), |_, attempt, _| match attempt {
            2 => Response::Stalls(0),
            _ => Response::Error(ErrorKind::Unavailable),
        });
    let report = setup.read().unwrap_err().report();
    assert!(report.contains(": after 0.000 s: on purpose (3 times); after "), "{report}");
    assert!(
        report.ends_with(" s: response body stalled: received 0 bytes within 2.0 s (at byte 0)"),
        "{report}"
    );
    // Once in the final message and once in the list.
    assert_eq!(report.matches("on purpose").count(), 2, "{report}");
}

#[test]
fn reads_fail_at_the_end_of_the_retry_time() {
    for response in [Response::Error(ErrorKind::Unavailable), Response::Stalls(0)] {
        for seed in 0..20 {
            let options = options().seed(seed).attempts(1000).budget(10 * SECOND);
            let setup = setup_with(full_capability(), options, move |_, _, _| response);
            let error = setup.read().unwrap_err();
            assert!(error.kind().is_transient());
            let spent = setup.clock.elapsed();
            // A delay beyond the retry time is not started. A delay is at most 5 s.
            assert!(spent <= 10 * SECOND && spent >= 5 * SECOND, "{response:?}: {spent:?}");
            assert!(setup.statistics().requests > 4, "{:?}", setup.statistics());
        }
    }
}

#[test]
fn retry_after_is_respected() {
    let setup = setup(|attempt, _| match attempt {
        1 => Response::RetryAfter(7 * SECOND),
        _ => Response::Fine,
    });
    setup.read().unwrap();
    let wait = setup.log()[1].0;
    assert!(wait >= 7 * SECOND && wait <= 7 * SECOND + 100 * MS, "{wait:?}");

    // A delay beyond the retry time fails immediately.
    let setup = super::tests::setup(|_, _| Response::RetryAfter(3600 * SECOND));
    let error = setup.read().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.retry_after(), Some(3600 * SECOND));
    assert!(error.message().contains("longer delay"), "{error}");
    assert_eq!((setup.clock.elapsed(), setup.statistics().requests), (Duration::ZERO, 1));
}

#[test]
fn interrupted_bodies_are_resumed() {
    for response in [
        Response::Breaks(4000, ErrorKind::Unavailable),
        Response::Breaks(4000, ErrorKind::Io),
        Response::Breaks(4000, ErrorKind::Truncated),
        Response::Ends(4000),
        Response::Stalls(4000),
    ] {
        let setup = setup(move |attempt, _| if attempt < 3 { response } else { Response::Fine });
        assert_eq!(setup.read().unwrap(), contents(10_000), "{response:?}");
        let starts: Vec<_> = setup.log().into_iter().map(|(_, request)| request.start).collect();
        assert_eq!(starts, [0, 4000, 8000], "{response:?}");
        // Resumed requests require the same version.
        assert!(setup.log()[1..].iter().all(|(_, request)| request.version.is_some()));
        let statistics = setup.statistics();
        assert_eq!((statistics.resumed, statistics.bytes, statistics.wasted_bytes), (2, 10_000, 0));
    }
}

#[test]
fn interrupted_bodies_restart_without_versions_or_ranges() {
    let without_versions = Capability::default().with_ranges().with_stat().with_streams();
    let without_ranges = Capability::default().with_versions().with_streams();
    for capability in [without_versions, without_ranges] {
        let setup = setup_with(capability, options(), |_, attempt, _| match attempt {
            1 => Response::Breaks(4000, ErrorKind::Unavailable),
            _ => Response::Fine,
        });
        assert_eq!(setup.read().unwrap(), contents(10_000));
        let starts: Vec<_> = setup.log().into_iter().map(|(_, request)| request.start).collect();
        assert_eq!(starts, [0, 0]);
        let statistics = setup.statistics();
        assert_eq!((statistics.resumed, statistics.wasted_bytes), (0, 4000));
    }
}

#[test]
fn bodies_of_another_length_are_retried() {
    for response in [Response::TooLong, Response::OtherSize(-1), Response::OtherSize(1)] {
        let setup = setup(move |attempt, _| if attempt < 3 { response } else { Response::Fine });
        assert_eq!(setup.read().unwrap(), contents(10_000), "{response:?}");
        assert!(setup.statistics().retries >= 2);
        // The length of a range is known without the response.
        let setup =
            super::tests::setup(
                |attempt, _| {
                    if attempt < 3 { Response::TooLong } else { Response::Fine }
                },
            );
        let part = setup.clock.run(setup.fetcher.read(&"a".into(), Some(5..9000))).unwrap();
        assert_eq!(part, contents(10_000).slice(5..9000));
    }
}

#[test]
fn stalled_bodies_are_cancelled_and_slow_ones_are_not() {
    // No byte for 2 s.
    let setup = setup(|attempt, _| if attempt == 1 { Response::Stalls(0) } else { Response::Fine });
    setup.read().unwrap();
    let wait = setup.log()[1].0;
    assert!(wait >= 2 * SECOND && wait <= 2 * SECOND + 100 * MS, "{wait:?}");
    assert_eq!(setup.statistics().stalls, 1);
    // One byte per second.
    let setup = super::tests::setup(|attempt, _| match attempt {
        1 => Response::Trickles(SECOND),
        _ => Response::Fine,
    });
    assert_eq!(setup.read().unwrap(), contents(10_000));
    assert!(setup.clock.elapsed() < 4 * SECOND, "{:?}", setup.clock.elapsed());
    assert_eq!(setup.statistics().stalls, 1);
    // 16 s in all, with 600 bytes every 0.95 s.
    let setup = super::tests::setup(|_, _| Response::Slow(600, 950 * MS));
    assert_eq!(setup.read().unwrap(), contents(10_000));
    assert_eq!((setup.statistics().stalls, setup.statistics().requests), (0, 1));
    assert!(setup.clock.elapsed() > 15 * SECOND);
}

#[test]
fn versions_are_never_mixed() {
    for other in [Response::OtherVersion, Response::AnyVersion] {
        let setup = setup(move |attempt, _| match attempt {
            1 => Response::Breaks(4000, ErrorKind::Unavailable),
            _ => other,
        });
        let error = setup.read().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed, "{other:?}");
        assert_eq!((setup.statistics().changed, setup.statistics().requests), (1, 2));
        // A version other than the requested version is rejected.
        let request = ReadRequest::whole().of_version("the right one");
        let setup = super::tests::setup(move |_, _| other);
        let error = setup.clock.run(setup.fetcher.open(&"a".into(), &request)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed, "{other:?}");
    }
}

#[test]
fn the_size_limit_holds_before_and_during_the_body() {
    let setup = setup(|_, _| Response::Fine);
    let read = |limit| setup.clock.run(setup.fetcher.read_whole(&"a".into(), &limit));
    assert_eq!(read(10_000).unwrap().len(), 10_000);
    let error = read(9_999).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(setup.statistics().bytes, 10_000, "an object that is too large is not read");
    let setup = super::tests::setup(|_, _| Response::OtherSize(-9000));
    let read = setup.clock.run(setup.fetcher.read_whole(&"a".into(), &5000));
    assert!(read.is_err(), "announced 1000 bytes, sent 10000");
}

#[test]
fn retries_are_bounded_during_an_outage() {
    const READS: u64 = 500;
    let options = options().retry_tokens(50.0).tokens_per_second(2.0);
    let setup =
        setup_with(full_capability(), options, |_, _, _| Response::Error(ErrorKind::Unavailable));
    let key = Key::from("a");
    let reads = join_all((0..READS).map(|_| setup.fetcher.read(&key, None)));
    let results = setup.clock.run(reads);
    assert!(results.iter().all(|result| result.is_err()));
    let spent = setup.clock.elapsed();
    assert!(spent <= 31 * SECOND, "{spent:?}");
    let most = 50 + (spent.as_secs_f64() * 2.0) as u64 + 1;
    let retries = setup.statistics().retries;
    assert!(retries <= most && retries >= 50, "{retries} of {most}");
    assert_eq!(setup.statistics().requests, READS + retries);
}

#[test]
fn reads_survive_a_short_outage() {
    // 64 reads use all retry tokens during an outage of 20 s.
    let clock_of = Arc::new(Mutex::new(None::<Arc<TestClock>>));
    let clock = Arc::clone(&clock_of);
    let options = options().retry_tokens(50.0).attempts(1000).budget(60 * SECOND);
    let setup = setup_with(full_capability(), options, move |_, _, _| {
        let now = clock.lock().unwrap().as_ref().unwrap().elapsed();
        if now < 20 * SECOND { Response::Error(ErrorKind::Unavailable) } else { Response::Fine }
    });
    *clock_of.lock().unwrap() = Some(Arc::clone(&setup.clock));
    let key = Key::from("a");
    let reads = join_all((0..64).map(|_| setup.fetcher.read(&key, None)));
    assert!(setup.clock.run(reads).into_iter().all(|read| read.unwrap() == contents(10_000)));
}

#[test]
fn unreachable_stores_without_a_response_fail_fast_and_are_reported() {
    let responses =
        [(Response::ConnectionRefused, "cannot connect"), (Response::NoAddress, "no address")];
    for (seed, (response, reason)) in (0..50).zip(responses.into_iter().cycle()) {
        let options = options().attempts(1000).seed(seed);
        let setup = setup_with(full_capability(), options, move |_, _, _| response);
        let reported = Arc::new(Mutex::new(Vec::new()));
        let report_error = {
            let (reported, clock) = (Arc::clone(&reported), Arc::clone(&setup.clock));
            move |error: &Error| reported.lock().unwrap().push((clock.elapsed(), error.to_string()))
        };
        let fetcher = setup.fetcher.clone().on_unreachable(report_error);
        let key = Key::from("a");
        let read = async { fetcher.read(&key, None).await.map(drop) };
        let look = async { fetcher.stat(&key).await.map(drop) };
        let root = Key::from("");
        let list = async { fetcher.list(&root).await?.try_collect::<Vec<_>>().await.map(drop) };
        let all = futures_util::future::join3(read, look, list);
        let (read, look, list) = setup.clock.run(all);
        for error in [read, look, list].map(Result::unwrap_err) {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            let words = "; no response from this server so far; check the address, and that the \
                         server is running)";
            assert!(error.message().ends_with(words), "{error}");
            assert_eq!(error.report().matches(reason).count(), 1, "{}", error.report());
            // A server that is starting gets several attempts.
            assert!(Attempts::of(&error).unwrap().count() >= 3, "{error}");
        }
        assert!(setup.clock.elapsed() <= 2 * SECOND, "{:?}", setup.clock.elapsed());
        let reported = reported.lock().unwrap();
        assert_eq!(reported[..], [(Duration::ZERO, reason.to_owned())]);
    }
}

#[test]
fn a_listing_counts_as_a_response() {
    let requests = AtomicU64::new(0);
    let setup = timed(move |_, now| match requests.fetch_add(1, Ordering::Relaxed) {
        0 => Response::Fine,
        _ if now < 20 * SECOND => Response::ConnectionRefused,
        _ => Response::Fine,
    });
    let root = Key::from("");
    let list = async { setup.fetcher.list(&root).await?.try_collect::<Vec<_>>().await };
    assert_eq!(setup.clock.run(list).unwrap().len(), 2);
    assert_eq!(setup.read().unwrap(), contents(10_000));
    assert!(setup.clock.elapsed() >= 20 * SECOND);
}

#[test]
fn timeouts_of_new_stores_are_reported_and_use_the_full_retry_time() {
    let setup = timed(|_, _| Response::Late(1000 * SECOND));
    let reported = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&reported);
    let fetcher = setup.fetcher.clone().on_unreachable(move |error| {
        all.lock().unwrap().push(error.message().to_owned());
    });
    setup.clock.run(fetcher.read(&Key::from("a"), None)).unwrap_err();
    assert!(setup.clock.elapsed() > 10 * SECOND, "{:?}", setup.clock.elapsed());
    let reported = reported.lock().unwrap();
    assert!(reported.len() == 1, "{reported:?}");
}

#[test]
fn servers_that_have_responded_may_restart() {
    for response in [Response::Fine, Response::Error(ErrorKind::NotFound)] {
        let clock_of = Arc::new(Mutex::new(None::<Arc<TestClock>>));
        let clock = Arc::clone(&clock_of);
        let setup =
            setup_with(full_capability(), options().attempts(1000), move |_, attempt, _| {
                let now = clock.lock().unwrap().as_ref().unwrap().elapsed();
                match attempt {
                    1 => response,
                    _ if now < 20 * SECOND => Response::ConnectionRefused,
                    _ => Response::Fine,
                }
            });
        *clock_of.lock().unwrap() = Some(Arc::clone(&setup.clock));
        assert_eq!(setup.read().is_ok(), response == Response::Fine);
        assert_eq!(setup.read().unwrap(), contents(10_000));
        assert!(setup.clock.elapsed() >= 20 * SECOND);
    }
}

/// A fetcher whose responses depend on the attempt number and the time.
fn timed(response: impl Fn(u32, Duration) -> Response + Send + Sync + 'static) -> Setup {
    let clock_of = Arc::new(Mutex::new(None::<Arc<TestClock>>));
    let clock = Arc::clone(&clock_of);
    let setup = setup_with(full_capability(), options().attempts(1000), move |_, attempt, _| {
        response(attempt, clock.lock().unwrap().as_ref().unwrap().elapsed())
    });
    *clock_of.lock().unwrap() = Some(Arc::clone(&setup.clock));
    setup
}

#[test]
fn error_responses_count_as_responses() {
    let setup = timed(|attempt, now| match attempt {
        1 => Response::Error(ErrorKind::Unavailable),
        _ if now < 20 * SECOND => Response::ConnectionRefused,
        _ => Response::Fine,
    });
    assert_eq!(setup.read().unwrap(), contents(10_000));
    assert!(setup.clock.elapsed() >= 20 * SECOND);
}

#[test]
fn connection_errors_do_not_count_as_responses() {
    // A failed name lookup and a stall are not responses of the server.
    for response in [Response::NoAddress, Response::Late(1000 * SECOND)] {
        let setup = timed(move |attempt, _| match attempt {
            1 => response,
            _ => Response::ConnectionRefused,
        });
        let error = setup.read().unwrap_err();
        assert!(error.message().contains("no response from this server so far"), "{error}");
    }
    let final_one = || {
        let error = Error::new(ErrorKind::Io, "TLS handshake with the server failed");
        error.with_source(Unreached::Otherwise)
    };
    let setup = timed(|_, _| Response::ConnectionRefused);
    let retry = retry::RetryState::new(Arc::clone(&setup.fetcher.state));
    retry.final_error(&Key::from("a"), final_one());
    assert!(setup.fetcher.state.reachability.is_unreachable(&connection_refused()));
}

#[test]
fn fail_fast_time_starts_at_the_first_refusal() {
    let refusals = AtomicU64::new(0);
    let setup = timed(move |_, now| {
        if now < 5 * SECOND {
            Response::Late(1000 * SECOND)
        } else if refusals.fetch_add(1, Ordering::Relaxed) == 0 {
            Response::ConnectionRefused
        } else {
            Response::Fine
        }
    });
    assert_eq!(setup.read().unwrap(), contents(10_000));
    let refused_in_the_end = timed(|_, now| match now {
        now if now < 5 * SECOND => Response::Late(1000 * SECOND),
        _ => Response::ConnectionRefused,
    });
    let reported = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&reported);
    let report_error = move |_: &Error| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    let fetcher = refused_in_the_end.fetcher.clone().on_unreachable(report_error);
    let error = refused_in_the_end.clock.run(fetcher.read(&Key::from("a"), None)).unwrap_err();
    assert!(error.message().contains("no response from this server so far"), "{error}");
    assert_eq!(reported.load(Ordering::Relaxed), 1);
    let spent = refused_in_the_end.clock.elapsed();
    assert!(spent > 5 * SECOND + 500 * MS && spent < 12 * SECOND, "{spent:?}");
}

/// Latencies of `count` consecutive reads. A read takes 10 ms, or `slow` if `is_slow` returns true
/// for its number.
fn latencies(
    options: ResilientOptions,
    count: u32,
    slow: Duration,
    is_slow: impl Fn(u32) -> bool + Send + Sync + 'static,
) -> (Vec<Duration>, ResilientStatistics) {
    let requests = AtomicU64::new(0);
    let setup = setup_with(full_capability(), options, move |_, _, _| {
        let request = requests.fetch_add(1, Ordering::Relaxed) as u32;
        Response::Late(if is_slow(request) { slow } else { 10 * MS })
    });
    let mut times = Vec::new();
    for _ in 0..count {
        let start = setup.clock.elapsed();
        setup.read().unwrap();
        times.push(setup.clock.elapsed() - start);
    }
    times.sort_unstable();
    (times, setup.statistics())
}

// promise: R16
#[test]
fn hedged_requests_replace_lost_ones() {
    // One request in a hundred gets no response.
    let lost = 3600 * SECOND;
    let (times, statistics) = latencies(options(), 5000, lost, |request| request % 100 == 99);
    let quantile = |share: f64| times[(times.len() as f64 * share) as usize];
    assert!(quantile(0.99) < 3 * quantile(0.5), "{:?}", quantile(0.99));
    assert!(statistics.hedges * 20 <= statistics.requests, "{statistics:?}");
    assert!(statistics.hedges_won * 10 >= statistics.hedges * 9, "{statistics:?}");
    // Without hedging, each lost request costs the stall timeout.
    let (times, statistics) =
        latencies(options().hedge_share(0.0), 5000, lost, |request| request % 100 == 99);
    assert!(times[4990] >= 2 * SECOND);
    assert_eq!(statistics.hedges, 0);
}

#[test]
fn a_lost_hedge_is_followed_by_another() {
    // Two consecutive requests are lost, after the latencies are known.
    let lost = |request: u32| request >= 200 && (request - 200) % 100 < 2;
    let (times, statistics) = latencies(options(), 2000, 3600 * SECOND, lost);
    assert!(times[1999] < 100 * MS, "{:?}", times[1999]);
    assert!(
        statistics.hedges >= 30 && statistics.hedges * 20 <= statistics.requests,
        "{statistics:?}"
    );
    assert_eq!(statistics.stalls, 0);
}

#[test]
fn early_lost_requests_are_hedged_when_latencies_are_known() {
    let requests = AtomicU64::new(0);
    let setup = setup_with(full_capability(), options(), move |_, _, _| {
        let is_lost = requests.fetch_add(1, Ordering::Relaxed) == 0;
        Response::Late(if is_lost { 3600 * SECOND } else { 10 * MS })
    });
    let key = Key::from("a");
    let reads = join_all((0..64).map(|_| setup.fetcher.read(&key, None)));
    assert!(setup.clock.run(reads).into_iter().all(|read| read.is_ok()));
    let took = setup.clock.elapsed();
    assert!(took < 200 * MS, "{took:?}, and the stall timeout is 2 s");
    assert_eq!(setup.statistics().hedges, 1);
}

// promise: R16
#[test]
fn responses_that_have_begun_are_not_hedged() {
    let requests = AtomicU64::new(0);
    let setup = setup_with(full_capability(), options(), move |_, _, _| {
        let request = requests.fetch_add(1, Ordering::Relaxed);
        Response::Buffers(if request.is_multiple_of(10) { 10 * MS } else { Duration::ZERO })
    });
    for _ in 0..1000 {
        setup.read().unwrap();
    }
    let statistics = setup.statistics();
    assert_eq!((statistics.hedges, statistics.requests), (0, 1000), "{statistics:?}");
}

// promise: R16
#[test]
fn no_hedges_if_all_requests_are_slow() {
    let (_, before) = latencies(options(), 1000, SECOND, |_| false);
    assert_eq!(before.hedges, 0);
    // After 1000 fast requests, all are 30 times as slow.
    let (_, statistics) = latencies(options(), 3000, 300 * MS, |request| request >= 1000);
    let extra = statistics.requests - statistics.reads;
    assert!(extra <= 20, "{statistics:?}");
    // If the share of hedges is hardly limited, the share of late requests limits them: 33 without.
    let (_, statistics) =
        latencies(options().hedge_share(1.0), 3000, 300 * MS, |request| request >= 1000);
    let extra = statistics.requests - statistics.reads;
    assert!(extra <= 20, "{statistics:?}");
}

/// Reads the object "a" of 10,000 bytes 100 times, then "slow" of 100,000 bytes, whose first body has
/// this response, and further requests another. Returns the duration of the last read.
fn read_slow_body(setup: &Setup) -> Duration {
    for _ in 0..100 {
        setup.read().unwrap();
    }
    setup.inner.objects.insert("slow", contents(100_000));
    let start = setup.clock.elapsed();
    let read = setup.clock.run(setup.fetcher.read(&"slow".into(), None)).unwrap();
    assert!(read == contents(100_000));
    setup.clock.elapsed() - start
}

// promise: R16
#[test]
fn slow_bodies_are_requested_again() {
    // 10 kB/s, where other bodies arrive at 1 MB/s.
    let slow = Response::Slow(500, 50 * MS);
    let script = move |key: &Key, attempt: u32, _: &ReadRequest| match attempt {
        1 if key.as_str() == Some("slow") => slow,
        _ => Response::Late(50 * MS),
    };
    let setup = setup_with(full_capability(), options(), script);
    let took = read_slow_body(&setup);
    assert!(took < SECOND, "{took:?}");
    let statistics = setup.statistics();
    assert_eq!((statistics.hedges, statistics.hedges_won), (1, 1), "{statistics:?}");
    // The received bytes are not requested again.
    let (_, request) = setup.log().pop().unwrap();
    assert!((4_000..6_000).contains(&request.start), "{request:?}");
    assert!(request.version.is_some());
    // Without ranges, the read cannot be resumed.
    let setup = setup_with(Capability::default().with_versions(), options(), script);
    assert!(read_slow_body(&setup) >= 10 * SECOND);
    let setup = setup_with(full_capability(), options().hedge_share(0.0), script);
    assert!(read_slow_body(&setup) >= 10 * SECOND);
}

#[test]
fn slow_bodies_are_kept_if_the_second_request_is_of_no_use() {
    for second in [
        Response::Error(ErrorKind::Unavailable),
        Response::OtherVersion,
        Response::AnyVersion,
        Response::OtherSize(1),
        Response::Ends(0),
        Response::Late(3600 * SECOND),
        // The first body is complete before this response.
        Response::Late(9 * SECOND + 600 * MS),
    ] {
        let script = move |key: &Key, attempt: u32, _: &ReadRequest| match attempt {
            1 if key.as_str() == Some("slow") => Response::Slow(500, 50 * MS),
            _ if key.as_str() == Some("slow") => second,
            _ => Response::Late(50 * MS),
        };
        let setup = setup_with(full_capability(), options(), script);
        let took = read_slow_body(&setup);
        assert!((10 * SECOND..11 * SECOND).contains(&took), "{second:?}: {took:?}");
        let statistics = setup.statistics();
        assert!((1..=2).contains(&statistics.hedges), "{second:?}: {statistics:?}");
        assert_eq!((statistics.hedges_won, statistics.failed), (0, 0), "{second:?}");
    }
}

#[test]
fn bodies_are_not_hedged_if_all_are_slow_or_the_consumer_is() {
    let all = setup_with(full_capability(), options(), |_, _, _| Response::Slow(500, 50 * MS));
    read_slow_body(&all);
    assert_eq!(all.statistics().hedges, 0);
    let setup = setup_with(full_capability(), options(), |_, _, _| Response::Slow(500, MS));
    for _ in 0..100 {
        setup.read().unwrap();
    }
    let mut body = setup.clock.run(setup.fetcher.open(&"a".into(), &ReadRequest::whole())).unwrap();
    while let Some(piece) = setup.clock.run(body.pieces.next()) {
        piece.unwrap();
        setup.clock.run(setup.clock.nap(SECOND));
    }
    assert_eq!(setup.statistics().hedges, 0);
}

#[test]
fn nearby_ranges_are_coalesced() {
    let setup = setup_with(full_capability(), options().range_gap(100), |_, _, _| Response::Fine);
    let ranges = [0..10, 9000..9010, 50..60, 20..30, 5000..5000, 9100..9101];
    let parts = setup.clock.run(setup.fetcher.read_ranges(&"a".into(), &ranges)).unwrap();
    let whole = contents(10_000);
    let exact = ranges.clone().map(|range| whole.slice(range.start as usize..range.end as usize));
    assert_eq!(parts, exact);
    let statistics = setup.statistics();
    assert_eq!((statistics.requests, statistics.bytes), (3, 60 + 101));
    assert_eq!(statistics.wasted_bytes, 10 + 20 + 90);
    #[expect(clippy::reversed_empty_ranges, reason = "tests that it is rejected")]
    let error = setup.clock.run(setup.fetcher.read_ranges(&"a".into(), &[1..2, 2..1])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn returned_chunks_are_resumed_or_the_stream_fails() {
    let break_first = |_: &Key, attempt: u32, _: &ReadRequest| match attempt {
        1 => Response::Breaks(4000, ErrorKind::Unavailable),
        _ => Response::Fine,
    };
    let setup = setup_with(full_capability(), options(), break_first);
    let key = Key::from("a");
    let request = ReadRequest::starting_at(1000);
    let body = setup.clock.run(setup.fetcher.open(&key, &request)).unwrap();
    assert_eq!(body.size, Some(10_000));
    assert_eq!(setup.clock.run(body.bytes()).unwrap(), contents(10_000).slice(1000..));
    assert_eq!(setup.log()[1].1.start, 5000);

    let capability = Capability::default().with_ranges().with_streams();
    let setup = setup_with(capability, options(), break_first);
    let mut body = setup.clock.run(setup.fetcher.open(&key, &ReadRequest::whole())).unwrap();
    assert_eq!(setup.clock.run(body.pieces.next()).unwrap().unwrap().len(), 4000);
    let error = setup.clock.run(body.pieces.next()).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(setup.clock.run(body.pieces.next()).is_none());
}

/// Memory that is free only after a long wait.
struct LateMemory(Arc<TestClock>);

#[async_trait]
impl ReadMemory for LateMemory {
    fn max_bytes(&self) -> u64 {
        u64::MAX
    }

    fn reserved_bytes(&self) -> u64 {
        0
    }

    async fn reserve(&self, _: u64) {
        self.0.nap(3600 * SECOND).await;
    }
}

#[test]
fn waits_for_memory_are_not_retry_time() {
    // Each attempt restarts the body, and so reserves its memory again.
    let setup = setup_with(Capability::default().with_streams(), options(), |_, attempt, _| {
        if attempt <= 3 { Response::Breaks(700, ErrorKind::Io) } else { Response::Fine }
    });
    let memory = LateMemory(Arc::clone(&setup.clock));
    let read = setup.clock.run(setup.fetcher.read_whole(&"a".into(), &memory));
    assert_eq!(read.unwrap(), contents(10_000));
    assert_eq!(setup.statistics().retries, 3);
}

#[test]
fn slow_consumers_are_not_stalls() {
    let setup = setup(|_, _| Response::Slow(1000, 100 * MS));
    let mut body = setup.clock.run(setup.fetcher.open(&"a".into(), &ReadRequest::whole())).unwrap();
    let mut read = 0;
    while let Some(piece) = setup.clock.run(body.pieces.next()) {
        read += piece.unwrap().len();
        setup.clock.run(setup.clock.nap(100 * SECOND));
    }
    assert_eq!(read, 10_000);
    assert_eq!((setup.statistics().requests, setup.statistics().stalls), (1, 0));
}

#[test]
fn progress_resets_the_attempt_limit() {
    let setup = setup_with(full_capability(), options().attempts(3), |_, _, _| {
        Response::Breaks(1 << 20, ErrorKind::Unavailable)
    });
    let long = contents(20 << 20);
    setup.inner.objects.insert("long", long.clone());
    let read = setup.clock.run(setup.fetcher.read(&"long".into(), None)).unwrap();
    assert!(read == long);
    assert_eq!(setup.statistics().resumed, 19);
}

#[test]
fn stat_and_list_are_retried() {
    let setup = setup(|attempt, _| match attempt {
        1 => Response::Error(ErrorKind::Unavailable),
        2 => Response::Stalls(1),
        3 => Response::Breaks(1, ErrorKind::Unavailable),
        _ => Response::Fine,
    });
    assert_eq!(setup.clock.run(setup.fetcher.stat(&"a".into())).unwrap().size, 10_000);
    assert_eq!(setup.statistics().stalls, 1);
    let entries = async { setup.fetcher.list(&"".into()).await?.try_collect::<Vec<_>>().await };
    let keys: Vec<_> =
        setup.clock.run(entries).unwrap().into_iter().map(|entry| entry.key.to_string()).collect();
    assert_eq!(keys, ["a", "empty"]);
    let error = setup.clock.run(setup.fetcher.stat(&"none".into()));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn dropping_a_read_cancels_its_requests() {
    let setup = setup(|_, _| Response::Stalls(0));
    let key = Key::from("a");
    let mut read = setup.fetcher.read(&key, None);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(read.as_mut().poll(&mut cx).is_pending());
    assert!(!setup.clock.state.lock().unwrap().sleepers.is_empty());
    drop(read);
    assert!(setup.clock.state.lock().unwrap().sleepers.is_empty());
}

/// An epoch of 200 objects, 16 concurrently. Each request fails at random.
#[test]
fn an_epoch_under_faults_has_identical_bytes() {
    let faults = [
        Response::Error(ErrorKind::Unavailable),
        Response::Error(ErrorKind::Timeout),
        Response::Error(ErrorKind::Corrupt),
        Response::RetryAfter(50 * MS),
        Response::Breaks(0, ErrorKind::Unavailable),
        Response::Breaks(700, ErrorKind::Io),
        Response::Ends(0),
        Response::Ends(999),
        Response::Stalls(0),
        Response::Stalls(500),
        Response::TooLong,
        Response::Trickles(SECOND),
        Response::OtherSize(3),
    ];
    for fault in faults {
        for rate in [0.01, 0.1, 0.3] {
            for seed in 0..3 {
                // High limits: this test checks the bytes, not the limits.
                let options = options().seed(seed).retry_tokens(1e6).attempts(50);
                let options = options.budget(600 * SECOND);
                let setup = setup_with(full_capability(), options, move |key, attempt, request| {
                    let index: u64 = key.as_str().unwrap().parse().unwrap();
                    let id = SampleId { epoch: u64::from(attempt), index };
                    let mut rng = SampleRng::new(seed ^ request.start, id, "fault");
                    if rng.chance(rate) { fault } else { Response::Fine }
                });
                let objects: Vec<_> =
                    (0..200).map(|n| (Key::from(n.to_string()), contents(1000 + n))).collect();
                for (key, bytes) in &objects {
                    setup.inner.objects.insert(key.clone(), bytes.clone());
                }
                let reads = objects.iter().map(|(key, bytes)| {
                    let read = setup.fetcher.read(key, None);
                    async move { (read.await, bytes) }
                });
                let reads = stream::iter(reads).buffered(16).collect::<Vec<_>>();
                for (read, bytes) in setup.clock.run(reads) {
                    match read {
                        Ok(read) => assert_eq!(read, bytes, "{fault:?} {rate} {seed}"),
                        Err(error) => panic!("{fault:?} {rate} {seed}: {}", error.report()),
                    }
                }
                let statistics = setup.statistics();
                assert_eq!(statistics.failed, 0);
                assert!(statistics.requests >= 200);
            }
        }
    }
}

/// Reads 400 objects, 16 at a time. Returns how many reads failed, and the time.
///
/// `name` is the key of an object, `failures` how many of its attempts fail.
fn read_many(name: fn(u64) -> String, failures: fn(u64) -> u32) -> (u64, Duration) {
    let script = move |key: &Key, attempt: u32, _: &ReadRequest| {
        let last = key.as_str().and_then(|name| name.rsplit('/').next()?.parse::<u64>().ok());
        match attempt <= failures(last.unwrap()) {
            true => Response::Error(ErrorKind::Unavailable),
            false => Response::Late(10 * MS),
        }
    };
    let setup = setup_with(full_capability(), options(), script);
    let names: Vec<Key> = (0..400).map(|number| name(number).into()).collect();
    for name in &names {
        setup.inner.objects.insert(name.clone(), contents(1000));
    }
    let reads = names.iter().map(|key| setup.fetcher.read(key, None));
    let failed = setup.clock.run(async {
        let mut reads = stream::iter(reads).buffered(16);
        let mut failed = 0;
        while let Some(read) = reads.next().await {
            failed += u64::from(read.is_err());
        }
        failed
    });
    (failed, setup.clock.elapsed())
}

fn in_one_folder(number: u64) -> String {
    format!("photos/{number}")
}

/// Never readable: every eighth object.
fn bad(number: u64) -> u32 {
    if number % 8 == 5 { u32::MAX } else { 0 }
}

// promise: R16
#[test]
fn objects_that_are_never_readable_cost_their_retries_once() {
    let (failed, took) = read_many(in_one_folder, bad);
    assert_eq!(failed, 50);
    assert!(took < 40 * SECOND, "{took:?}");
    assert_eq!(read_many(in_one_folder, |_| 0).0, 0);
}

// promise: R16
#[test]
fn objects_that_are_never_readable_in_many_folders_cost_their_retries_twice_at_most() {
    let (failed, took) = read_many(|number| format!("photos/{number}/{number}"), bad);
    assert_eq!(failed, 50);
    assert!(took < 80 * SECOND, "{took:?}");
}

// promise: R16
#[test]
fn other_objects_that_need_retries_do_not_repeat_the_retries_of_bad_objects() {
    let (failed, took) = read_many(in_one_folder, |number| match number % 8 {
        1 => 1,
        _ if number % 100 == 2 => 2,
        _ => bad(number),
    });
    assert_eq!(failed, 50);
    assert!(took < 40 * SECOND, "{took:?}");
}

// promise: R16
#[test]
fn bad_objects_of_one_folder_do_not_limit_the_attempts_in_others() {
    let name = |number| format!("{}/{number}", if number % 8 == 5 { "bad" } else { "good" });
    let (failed, _) =
        read_many(name, |number| if number > 200 && number % 8 == 2 { 5 } else { bad(number) });
    assert_eq!(failed, 50);
}

#[test]
fn reads_survive_an_outage_after_objects_that_are_never_readable() {
    let (clock, outage) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
    let (own, until) = (Arc::clone(&clock), Arc::clone(&outage));
    let setup = setup_with(full_capability(), options(), move |key, _, _| {
        let name = key.as_str().unwrap_or_default();
        let clock: Arc<TestClock> = own.lock().unwrap().clone().unwrap();
        let is_down = until.lock().unwrap().is_some_and(|until| clock.elapsed() < until);
        match () {
            () if name == "photos/bad" || is_down => Response::Error(ErrorKind::Unavailable),
            () => Response::Fine,
        }
    });
    *clock.lock().unwrap() = Some(Arc::clone(&setup.clock));
    for name in ["photos/1", "photos/2"] {
        setup.inner.objects.insert(name, contents(1000));
    }
    let read =
        |name: &str| setup.clock.run(setup.fetcher.read(&format!("photos/{name}").into(), None));
    assert!(read("bad").is_err());
    // Another object is read meanwhile, so the breaker limits the attempts.
    let before = setup.statistics().requests;
    let (keys, clock) = (["photos/bad".into(), "photos/1".into()], &setup.clock);
    let other = async {
        clock.nap(MS).await;
        setup.fetcher.read(&keys[1], None).await
    };
    let (bad, other) = clock.run(join(setup.fetcher.read(&keys[0], None), other));
    let (error, _) = (bad.unwrap_err(), other.unwrap());
    assert_eq!(setup.statistics().requests - before, 3 + 1);
    assert!(error.message().contains("other objects of this folder can be read"), "{error}");
    // No object can be read during an outage, so a read gets all its attempts.
    let until = clock.elapsed() + 10 * SECOND;
    *outage.lock().unwrap() = Some(until);
    assert_eq!(read("2").unwrap(), contents(1000));
    assert!(clock.elapsed() >= until);
}
