//! A resilient fetcher over one that fails as it is told, by a clock that stands still while
//! anything is to be done: all times are exact.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use futures_util::future::join_all;

use super::*;
use crate::fetch::check_version;
use crate::stores::MemoryFetcher;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Time that passes only where nothing else can happen.
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
    place: (Duration, u64),
}

impl Future for Nap {
    type Output = ();

    fn poll(self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.clock.state.lock().unwrap();
        if state.now >= self.place.0 {
            return Poll::Ready(());
        }
        state.sleepers.insert(self.place, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Nap {
    fn drop(&mut self) {
        self.clock.state.lock().unwrap().sleepers.remove(&self.place);
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
        let place = (state.now.saturating_add(duration), state.next);
        drop(state);
        Nap { clock: Arc::clone(self), place }
    }

    /// Runs a future to its end, and lets time pass where it waits.
    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut cx) {
                return result;
            }
            let mut state = self.state.lock().unwrap();
            let ((at, _), waker) = state.sleepers.pop_first().expect("it waits for nothing");
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

/// What a request is answered with.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Fine,
    Refused(ErrorKind),
    /// Nothing listens where the connection was to go.
    NobodyListens,
    /// No address is known for its name.
    NoAddress,
    RetryAfter(Duration),
    /// So many bytes, then an error of this kind.
    Breaks(usize, ErrorKind),
    /// So many bytes, and no more.
    Ends(usize),
    /// So many bytes, and then nothing.
    Stalls(usize),
    /// Further bytes behind the end.
    TooLong,
    /// Nothing for so long, then all is well.
    Late(Duration),
    /// The first byte after 10 ms; then the fetcher gathers the rest for so long.
    Gathers(Duration),
    /// One byte, each after so long.
    Trickles(Duration),
    /// So many bytes, each time after so long.
    Slow(usize, Duration),
    OtherVersion,
    /// The same, by a fetcher that does not look at which one is asked for.
    AnyVersion,
    /// The size is told wrongly by so much; the bytes are right.
    OtherSize(i64),
}

fn nobody_listens() -> Error {
    Error::new(ErrorKind::Unavailable, "cannot connect").with_source(Unreached::Refused)
}

fn no_address() -> Error {
    Error::new(ErrorKind::Unavailable, "no address").with_source(Unreached::NoAddress)
}

type Script = Box<dyn Fn(&Key, u32, &ReadRequest) -> Answer + Send + Sync>;

struct Faulty {
    objects: MemoryFetcher,
    clock: Arc<TestClock>,
    capability: Capability,
    script: Script,
    asked: Mutex<HashMap<Key, u32>>,
    log: Mutex<Vec<(Duration, ReadRequest)>>,
}

impl fmt::Debug for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Faulty")
    }
}

impl Faulty {
    fn answer(&self, key: &Key, request: &ReadRequest) -> Answer {
        let attempt = {
            let mut asked = self.asked.lock().unwrap();
            let count = asked.entry(key.clone()).or_default();
            *count += 1;
            *count
        };
        self.log.lock().unwrap().push((self.clock.elapsed(), request.clone()));
        (self.script)(key, attempt, request)
    }
}

#[async_trait]
impl Fetcher for Faulty {
    fn capability(&self) -> Capability {
        self.capability
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let request = range.map_or_else(ReadRequest::whole, ReadRequest::range);
        self.open(key, &request).await?.bytes().await
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        match self.answer(key, &ReadRequest::whole()) {
            Answer::Refused(kind) => Err(Error::new(kind, "on purpose")),
            Answer::NobodyListens => Err(nobody_listens()),
            Answer::NoAddress => Err(no_address()),
            Answer::Stalls(_) => std::future::pending().await,
            _ => self.objects.stat(key).await,
        }
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        let answer = self.answer(key, request);
        match answer {
            Answer::Refused(kind) => return Err(Error::new(kind, "on purpose")),
            Answer::NobodyListens => return Err(nobody_listens()),
            Answer::NoAddress => return Err(no_address()),
            Answer::RetryAfter(delay) => {
                let error = Error::new(ErrorKind::Unavailable, "slow down");
                return Err(error.with_retry_after(delay));
            }
            Answer::Late(delay) => self.clock.nap(delay).await,
            Answer::Gathers(delay) => {
                self.clock.nap(10 * MS).await;
                let first_byte = request.first_byte.as_ref().unwrap();
                first_byte.has_come(self.clock.start + self.clock.elapsed());
                self.clock.nap(delay).await;
            }
            _ => {}
        }
        let mut told = self.objects.stat(key).await?;
        if matches!(answer, Answer::OtherVersion | Answer::AnyVersion) {
            told.version = Some("other".into());
        }
        if answer != Answer::AnyVersion {
            check_version(key, request.version.as_ref(), told.version.as_ref())?;
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
        let cut = |len: usize| Ok(bytes.slice(..len.min(bytes.len())));
        let pieces = match answer {
            Answer::Breaks(len, kind) => {
                stream::iter([cut(len), Err(Error::new(kind, "on purpose"))]).boxed()
            }
            Answer::Ends(len) => stream::iter([cut(len)]).boxed(),
            Answer::Stalls(len) => stream::iter([cut(len)]).chain(stream::pending()).boxed(),
            Answer::TooLong => stream::iter([Ok(bytes), Ok("excess".into())]).boxed(),
            Answer::Trickles(delay) => in_steps(1, delay),
            Answer::Slow(step, delay) => in_steps(step, delay),
            _ => stream::iter([Ok(bytes)]).boxed(),
        };
        let size = match answer {
            Answer::OtherSize(by) => told.size.saturating_add_signed(by),
            _ => told.size,
        };
        let mut body = Body::new(pieces).with_size(size);
        body.version = told.version.filter(|_| self.capability.versions);
        Ok(body)
    }

    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        let answer = self.answer(prefix, &ReadRequest::whole());
        if let Answer::Refused(kind) = answer {
            return Err(Error::new(kind, "on purpose"));
        }
        let lines = self.objects.list(prefix).await?;
        Ok(match answer {
            Answer::Breaks(len, kind) => {
                let end = stream::iter([Err(Error::new(kind, "on purpose"))]);
                lines.take(len).chain(end).boxed()
            }
            Answer::Stalls(len) => lines.take(len).chain(stream::pending()).boxed(),
            // A store is asked when the first line is wanted.
            Answer::NobodyListens => stream::iter([Err(nobody_listens())]).boxed(),
            Answer::NoAddress => stream::iter([Err(no_address())]).boxed(),
            _ => lines,
        })
    }
}

struct Setup {
    clock: Arc<TestClock>,
    faulty: Arc<Faulty>,
    fetcher: Resilient,
}

fn contents(len: usize) -> Bytes {
    (0..len).map(|place| (place * 31 + place / 256) as u8).collect()
}

fn setup_with(
    capability: Capability,
    options: ResilientOptions,
    script: impl Fn(&Key, u32, &ReadRequest) -> Answer + Send + Sync + 'static,
) -> Setup {
    let clock = TestClock::new();
    let objects = MemoryFetcher::from_iter([("a", contents(10_000)), ("empty", Bytes::new())]);
    let faulty = Arc::new(Faulty {
        objects,
        clock: Arc::clone(&clock),
        capability,
        script: Box::new(script),
        asked: Mutex::default(),
        log: Mutex::default(),
    });
    let inner = Arc::clone(&faulty) as Arc<dyn Fetcher>;
    let fetcher = Resilient::with_clock(Arc::new(Handle(Arc::clone(&clock))), inner, options);
    Setup { clock, faulty, fetcher: fetcher.unwrap() }
}

fn able() -> Capability {
    Capability::default().with_ranges().with_list().with_versions().with_streams()
}

fn options() -> ResilientOptions {
    ResilientOptions::default().seed(7)
}

fn setup(script: impl Fn(u32, &ReadRequest) -> Answer + Send + Sync + 'static) -> Setup {
    setup_with(able(), options(), move |_, attempt, request| script(attempt, request))
}

impl Setup {
    fn read(&self) -> Result<Bytes> {
        self.clock.run(self.fetcher.read(&"a".into(), None))
    }

    fn statistics(&self) -> ResilientStatistics {
        self.fetcher.statistics()
    }

    fn log(&self) -> Vec<(Duration, ReadRequest)> {
        self.faulty.log.lock().unwrap().clone()
    }
}

#[test]
fn what_fails_for_a_moment_is_tried_again_after_waits_that_double() {
    let (mut longest, mut shortest) = ([Duration::ZERO; 4], [Duration::MAX; 4]);
    for seed in 0..200 {
        let setup = setup_with(able(), options().seed(seed), |_, attempt, _| match attempt {
            1..=4 => Answer::Refused(ErrorKind::Unavailable),
            _ => Answer::Fine,
        });
        assert_eq!(setup.read().unwrap(), contents(10_000));
        let statistics = setup.statistics();
        assert_eq!((statistics.reads, statistics.requests, statistics.retries), (1, 5, 4));
        let times: Vec<_> = setup.log().into_iter().map(|(at, _)| at).collect();
        for (place, pair) in times.windows(2).enumerate() {
            longest[place] = longest[place].max(pair[1] - pair[0]);
            shortest[place] = shortest[place].min(pair[1] - pair[0]);
        }
    }
    // Drawn evenly from nothing up to 100 ms, 200 ms, 400 ms and 800 ms.
    for (place, (longest, shortest)) in longest.into_iter().zip(shortest).enumerate() {
        let bound = 100 * MS * (1 << place);
        assert!(longest <= bound && longest > bound.mul_f64(0.95), "{place}: {longest:?}");
        assert!(shortest < bound.mul_f64(0.05), "{place}: {shortest:?}");
    }
}

#[test]
fn what_will_not_pass_is_not_tried_again() {
    for kind in [
        ErrorKind::NotFound,
        ErrorKind::PermissionDenied,
        ErrorKind::Io,
        ErrorKind::Unsupported,
        ErrorKind::InvalidArgument,
        ErrorKind::Truncated,
        ErrorKind::Changed,
    ] {
        let setup = setup(move |_, _| Answer::Refused(kind));
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
fn the_last_word_tells_every_attempt() {
    let setup = setup_with(able(), options().attempts(3), |_, attempt, _| match attempt {
        2 => Answer::Refused(ErrorKind::Timeout),
        _ => Answer::Refused(ErrorKind::Unavailable),
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
    assert_eq!(report.matches("on purpose").count(), 1, "equal ones are told once: {report}");

    // A failure that will not pass ends the row, and what was before it is told too.
    let setup = super::tests::setup(|attempt, _| match attempt {
        1 => Answer::Refused(ErrorKind::Unavailable),
        _ => Answer::Refused(ErrorKind::PermissionDenied),
    });
    let error = setup.read().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(Attempts::of(&error).unwrap().count(), 2);
}

#[test]
fn attempts_that_failed_in_different_ways_are_told_by_their_reasons_each_once() {
    let setup = setup_with(able(), options().attempts(4), |_, attempt, _| match attempt {
        2 => Answer::Stalls(0),
        _ => Answer::Refused(ErrorKind::Unavailable),
    });
    let report = setup.read().unwrap_err().report();
    assert!(report.contains(": after 0.000 s: on purpose (3 times); after "), "{report}");
    assert!(report.ends_with(" s: the body stalled: 0 bytes in 2.0 s (at byte 0)"), "{report}");
    // Once in the last word, and once in the list.
    assert_eq!(report.matches("on purpose").count(), 2, "{report}");
}

#[test]
fn a_read_is_given_up_when_its_time_is_over() {
    for answer in [Answer::Refused(ErrorKind::Unavailable), Answer::Stalls(0)] {
        for seed in 0..20 {
            let options = options().seed(seed).attempts(1000).budget(10 * SECOND);
            let setup = setup_with(able(), options, move |_, _, _| answer);
            let error = setup.read().unwrap_err();
            assert!(error.kind().is_transient());
            let spent = setup.clock.elapsed();
            // A last wait that would not fit is not begun: it is at most 5 s.
            assert!(spent <= 10 * SECOND && spent >= 5 * SECOND, "{answer:?}: {spent:?}");
            assert!(setup.statistics().requests > 4, "{:?}", setup.statistics());
        }
    }
}

#[test]
fn the_store_gets_the_rest_it_asks_for() {
    let setup = setup(|attempt, _| match attempt {
        1 => Answer::RetryAfter(7 * SECOND),
        _ => Answer::Fine,
    });
    setup.read().unwrap();
    let wait = setup.log()[1].0;
    assert!(wait >= 7 * SECOND && wait <= 7 * SECOND + 100 * MS, "{wait:?}");

    // More than there is time for is the end at once.
    let setup = super::tests::setup(|_, _| Answer::RetryAfter(3600 * SECOND));
    let error = setup.read().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.retry_after(), Some(3600 * SECOND));
    assert!(error.message().contains("longer wait"), "{error}");
    assert_eq!((setup.clock.elapsed(), setup.statistics().requests), (Duration::ZERO, 1));
}

#[test]
fn a_body_that_breaks_off_is_gone_on_with() {
    for answer in [
        Answer::Breaks(4000, ErrorKind::Unavailable),
        Answer::Breaks(4000, ErrorKind::Io),
        Answer::Breaks(4000, ErrorKind::Truncated),
        Answer::Ends(4000),
        Answer::Stalls(4000),
    ] {
        let setup = setup(move |attempt, _| if attempt < 3 { answer } else { Answer::Fine });
        assert_eq!(setup.read().unwrap(), contents(10_000), "{answer:?}");
        let starts: Vec<_> = setup.log().into_iter().map(|(_, request)| request.start).collect();
        assert_eq!(starts, [0, 4000, 8000], "{answer:?}");
        // It is the same version that is gone on with.
        assert!(setup.log()[1..].iter().all(|(_, request)| request.version.is_some()));
        let statistics = setup.statistics();
        assert_eq!((statistics.resumed, statistics.bytes, statistics.wasted_bytes), (2, 10_000, 0));
    }
}

#[test]
fn without_versions_or_ranges_a_broken_body_is_begun_anew() {
    let without_versions = Capability::default().with_ranges().with_stat().with_streams();
    let without_ranges = Capability::default().with_versions().with_streams();
    for capability in [without_versions, without_ranges] {
        let setup = setup_with(capability, options(), |_, attempt, _| match attempt {
            1 => Answer::Breaks(4000, ErrorKind::Unavailable),
            _ => Answer::Fine,
        });
        assert_eq!(setup.read().unwrap(), contents(10_000));
        let starts: Vec<_> = setup.log().into_iter().map(|(_, request)| request.start).collect();
        assert_eq!(starts, [0, 0]);
        let statistics = setup.statistics();
        assert_eq!((statistics.resumed, statistics.wasted_bytes), (0, 4000));
    }
}

#[test]
fn a_body_that_is_not_as_long_as_was_said_is_not_taken() {
    for answer in [Answer::TooLong, Answer::OtherSize(-1), Answer::OtherSize(1)] {
        let setup = setup(move |attempt, _| if attempt < 3 { answer } else { Answer::Fine });
        assert_eq!(setup.read().unwrap(), contents(10_000), "{answer:?}");
        assert!(setup.statistics().retries >= 2);
        // Of a range the length is known beforehand.
        let setup = super::tests::setup(
            |attempt, _| {
                if attempt < 3 { Answer::TooLong } else { Answer::Fine }
            },
        );
        let part = setup.clock.run(setup.fetcher.read(&"a".into(), Some(5..9000))).unwrap();
        assert_eq!(part, contents(10_000).slice(5..9000));
    }
}

#[test]
fn what_stalls_is_broken_off_and_what_is_slow_is_not() {
    // 2 s without a byte.
    let setup = setup(|attempt, _| if attempt == 1 { Answer::Stalls(0) } else { Answer::Fine });
    setup.read().unwrap();
    let wait = setup.log()[1].0;
    assert!(wait >= 2 * SECOND && wait <= 2 * SECOND + 100 * MS, "{wait:?}");
    assert_eq!(setup.statistics().stalls, 1);
    // A byte a second.
    let setup = super::tests::setup(|attempt, _| match attempt {
        1 => Answer::Trickles(SECOND),
        _ => Answer::Fine,
    });
    assert_eq!(setup.read().unwrap(), contents(10_000));
    assert!(setup.clock.elapsed() < 4 * SECOND, "{:?}", setup.clock.elapsed());
    assert_eq!(setup.statistics().stalls, 1);
    // 100 s in all, with 1000 bytes every 1.9 s and a half.
    let setup = super::tests::setup(|_, _| Answer::Slow(600, 950 * MS));
    assert_eq!(setup.read().unwrap(), contents(10_000));
    assert_eq!((setup.statistics().stalls, setup.statistics().requests), (0, 1));
    assert!(setup.clock.elapsed() > 15 * SECOND);
}

#[test]
fn two_versions_are_never_mixed() {
    for other in [Answer::OtherVersion, Answer::AnyVersion] {
        let setup = setup(move |attempt, _| match attempt {
            1 => Answer::Breaks(4000, ErrorKind::Unavailable),
            _ => other,
        });
        let error = setup.read().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed, "{other:?}");
        assert_eq!((setup.statistics().changed, setup.statistics().requests), (1, 2));
        // Nor is another version taken than the one that is asked for.
        let request = ReadRequest::whole().of_version("the right one");
        let setup = super::tests::setup(move |_, _| other);
        let error = setup.clock.run(setup.fetcher.open(&"a".into(), &request)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed, "{other:?}");
    }
}

#[test]
fn a_limit_holds_before_and_while_the_body_comes() {
    let setup = setup(|_, _| Answer::Fine);
    let read = |limit| setup.clock.run(setup.fetcher.read_at_most(&"a".into(), limit));
    assert_eq!(read(10_000).unwrap().len(), 10_000);
    let error = read(9_999).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert_eq!(setup.statistics().bytes, 10_000, "nothing was read of what is too large");
    let setup = super::tests::setup(|_, _| Answer::OtherSize(-9000));
    let read = setup.clock.run(setup.fetcher.read_at_most(&"a".into(), 5000));
    assert!(read.is_err(), "it said 1000 bytes and had 10000");
}

#[test]
fn an_outage_does_not_multiply_the_load() {
    const READS: u64 = 500;
    let options = options().retry_tokens(50.0).tokens_per_second(2.0);
    let setup = setup_with(able(), options, |_, _, _| Answer::Refused(ErrorKind::Unavailable));
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
fn a_short_outage_is_waited_out() {
    // 20 s of an outage, in which 64 reads use up all the retries in reserve.
    let clock_of = Arc::new(Mutex::new(None::<Arc<TestClock>>));
    let clock = Arc::clone(&clock_of);
    let options = options().retry_tokens(50.0).attempts(1000).budget(60 * SECOND);
    let setup = setup_with(able(), options, move |_, _, _| {
        let now = clock.lock().unwrap().as_ref().unwrap().elapsed();
        if now < 20 * SECOND { Answer::Refused(ErrorKind::Unavailable) } else { Answer::Fine }
    });
    *clock_of.lock().unwrap() = Some(Arc::clone(&setup.clock));
    let key = Key::from("a");
    let reads = join_all((0..64).map(|_| setup.fetcher.read(&key, None)));
    assert!(setup.clock.run(reads).into_iter().all(|read| read.unwrap() == contents(10_000)));
}

#[test]
fn a_stranger_that_nobody_meets_is_given_up_soon_and_told_of_at_once() {
    let answers = [(Answer::NobodyListens, "cannot connect"), (Answer::NoAddress, "no address")];
    for (seed, (answer, reason)) in (0..50).zip(answers.into_iter().cycle()) {
        let options = options().attempts(1000).seed(seed);
        let setup = setup_with(able(), options, move |_, _, _| answer);
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = {
            let (told, clock) = (Arc::clone(&told), Arc::clone(&setup.clock));
            move |error: &Error| told.lock().unwrap().push((clock.elapsed(), error.to_string()))
        };
        let fetcher = setup.fetcher.clone().when_not_reached(tell);
        let key = Key::from("a");
        let read = async { fetcher.read(&key, None).await.map(drop) };
        let look = async { fetcher.stat(&key).await.map(drop) };
        let root = Key::from("");
        let list = async { fetcher.list(&root).await?.try_collect::<Vec<_>>().await.map(drop) };
        let all = futures_util::future::join3(read, look, list);
        let (read, look, list) = setup.clock.run(all);
        for error in [read, look, list].map(Result::unwrap_err) {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            let words = "; nothing has answered there so far: is the address right, and does the \
                         server run?)";
            assert!(error.message().ends_with(words), "{error}");
            assert_eq!(error.report().matches(reason).count(), 1, "{}", error.report());
            // One that is just starting has some time.
            assert!(Attempts::of(&error).unwrap().count() >= 3, "{error}");
        }
        assert!(setup.clock.elapsed() <= 2 * SECOND, "{:?}", setup.clock.elapsed());
        let told = told.lock().unwrap();
        assert_eq!(told[..], [(Duration::ZERO, reason.to_owned())]);
    }
}

#[test]
fn a_store_that_has_listed_is_waited_for_while_it_restarts() {
    let requests = AtomicU64::new(0);
    let setup = timed(move |_, now| match requests.fetch_add(1, Ordering::Relaxed) {
        0 => Answer::Fine,
        _ if now < 20 * SECOND => Answer::NobodyListens,
        _ => Answer::Fine,
    });
    let root = Key::from("");
    let list = async { setup.fetcher.list(&root).await?.try_collect::<Vec<_>>().await };
    assert_eq!(setup.clock.run(list).unwrap().len(), 2);
    assert_eq!(setup.read().unwrap(), contents(10_000));
    assert!(setup.clock.elapsed() >= 20 * SECOND);
}

#[test]
fn a_stranger_from_whom_nothing_comes_is_told_of_and_gets_all_its_time() {
    let setup = timed(|_, _| Answer::Late(1000 * SECOND));
    let told = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&told);
    let fetcher = setup.fetcher.clone().when_not_reached(move |error| {
        all.lock().unwrap().push(error.message().to_owned());
    });
    setup.clock.run(fetcher.read(&Key::from("a"), None)).unwrap_err();
    assert!(setup.clock.elapsed() > 10 * SECOND, "{:?}", setup.clock.elapsed());
    let told = told.lock().unwrap();
    assert!(told.len() == 1, "{told:?}");
}

#[test]
fn a_server_that_has_answered_is_waited_for_while_it_restarts() {
    for answer in [Answer::Fine, Answer::Refused(ErrorKind::NotFound)] {
        let clock_of = Arc::new(Mutex::new(None::<Arc<TestClock>>));
        let clock = Arc::clone(&clock_of);
        let setup = setup_with(able(), options().attempts(1000), move |_, attempt, _| {
            let now = clock.lock().unwrap().as_ref().unwrap().elapsed();
            match attempt {
                1 => answer,
                _ if now < 20 * SECOND => Answer::NobodyListens,
                _ => Answer::Fine,
            }
        });
        *clock_of.lock().unwrap() = Some(Arc::clone(&setup.clock));
        assert_eq!(setup.read().is_ok(), answer == Answer::Fine);
        assert_eq!(setup.read().unwrap(), contents(10_000));
        assert!(setup.clock.elapsed() >= 20 * SECOND);
    }
}

/// A reading whose answers depend on how many came before, and on the time.
fn timed(answer: impl Fn(u32, Duration) -> Answer + Send + Sync + 'static) -> Setup {
    let clock_of = Arc::new(Mutex::new(None::<Arc<TestClock>>));
    let clock = Arc::clone(&clock_of);
    let setup = setup_with(able(), options().attempts(1000), move |_, attempt, _| {
        answer(attempt, clock.lock().unwrap().as_ref().unwrap().elapsed())
    });
    *clock_of.lock().unwrap() = Some(Arc::clone(&setup.clock));
    setup
}

#[test]
fn whoever_answers_that_it_is_busy_has_answered() {
    let setup = timed(|attempt, now| match attempt {
        1 => Answer::Refused(ErrorKind::Unavailable),
        _ if now < 20 * SECOND => Answer::NobodyListens,
        _ => Answer::Fine,
    });
    assert_eq!(setup.read().unwrap(), contents(10_000));
    assert!(setup.clock.elapsed() >= 20 * SECOND);
}

#[test]
fn where_no_server_was_met_none_has_answered() {
    // What is final may be said by this machine alone, and a stall is no answer.
    for answer in [Answer::NoAddress, Answer::Late(1000 * SECOND)] {
        let setup = timed(move |attempt, _| match attempt {
            1 => answer,
            _ => Answer::NobodyListens,
        });
        let error = setup.read().unwrap_err();
        assert!(error.message().contains("nothing has answered there so far"), "{error}");
    }
    let final_one = || {
        let error = Error::new(ErrorKind::Io, "no secure connection");
        error.with_source(Unreached::Otherwise)
    };
    let setup = timed(|_, _| Answer::NobodyListens);
    let persistence = persistence::Persistence::new(Arc::clone(&setup.fetcher.shared));
    persistence.end(&Key::from("a"), final_one());
    assert!(setup.fetcher.shared.contact.is_stranger(&nobody_listens()));
}

#[test]
fn the_time_of_a_stranger_runs_from_the_first_refusal() {
    let refusals = AtomicU64::new(0);
    let setup = timed(move |_, now| {
        if now < 5 * SECOND {
            Answer::Late(1000 * SECOND)
        } else if refusals.fetch_add(1, Ordering::Relaxed) == 0 {
            Answer::NobodyListens
        } else {
            Answer::Fine
        }
    });
    assert_eq!(setup.read().unwrap(), contents(10_000));
    let refused_in_the_end = timed(|_, now| match now {
        now if now < 5 * SECOND => Answer::Late(1000 * SECOND),
        _ => Answer::NobodyListens,
    });
    let told = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&told);
    let tell = move |_: &Error| {
        count.fetch_add(1, Ordering::Relaxed);
    };
    let fetcher = refused_in_the_end.fetcher.clone().when_not_reached(tell);
    let error = refused_in_the_end.clock.run(fetcher.read(&Key::from("a"), None)).unwrap_err();
    assert!(error.message().contains("nothing has answered there so far"), "{error}");
    assert_eq!(told.load(Ordering::Relaxed), 1);
    let spent = refused_in_the_end.clock.elapsed();
    assert!(spent > 5 * SECOND + 500 * MS && spent < 12 * SECOND, "{spent:?}");
}

/// 10 ms each for `count` reads, one after the other; those that `is_slow` says take long.
fn latencies(
    options: ResilientOptions,
    count: u32,
    slow: Duration,
    is_slow: impl Fn(u32) -> bool + Send + Sync + 'static,
) -> (Vec<Duration>, ResilientStatistics) {
    let requests = AtomicU64::new(0);
    let setup = setup_with(able(), options, move |_, _, _| {
        let request = requests.fetch_add(1, Ordering::Relaxed) as u32;
        Answer::Late(if is_slow(request) { slow } else { 10 * MS })
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
fn a_request_that_is_lost_is_overtaken_by_a_second_one() {
    // One in a hundred falls into a black hole.
    let lost = 3600 * SECOND;
    let (times, statistics) = latencies(options(), 5000, lost, |request| request % 100 == 99);
    let quantile = |share: f64| times[(times.len() as f64 * share) as usize];
    assert!(quantile(0.99) < 3 * quantile(0.5), "{:?}", quantile(0.99));
    assert!(statistics.hedges * 20 <= statistics.requests, "{statistics:?}");
    assert!(statistics.hedges_won * 10 >= statistics.hedges * 9, "{statistics:?}");
    // Without them each costs the stall timeout.
    let (times, statistics) =
        latencies(options().hedge_share(0.0), 5000, lost, |request| request % 100 == 99);
    assert!(times[4990] >= 2 * SECOND);
    assert_eq!(statistics.hedges, 0);
}

#[test]
fn a_second_request_that_is_lost_too_is_followed_by_a_third() {
    // After enough to know what is late, two in a row are lost.
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
fn a_request_that_is_lost_before_it_is_known_what_is_late_waits_for_what_others_tell() {
    let requests = AtomicU64::new(0);
    let setup = setup_with(able(), options(), move |_, _, _| {
        let is_lost = requests.fetch_add(1, Ordering::Relaxed) == 0;
        Answer::Late(if is_lost { 3600 * SECOND } else { 10 * MS })
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
fn an_answer_that_has_begun_is_not_asked_for_twice_however_long_it_is_gathered() {
    let requests = AtomicU64::new(0);
    let setup = setup_with(able(), options(), move |_, _, _| {
        let request = requests.fetch_add(1, Ordering::Relaxed);
        Answer::Gathers(if request.is_multiple_of(10) { 10 * MS } else { Duration::ZERO })
    });
    for _ in 0..1000 {
        setup.read().unwrap();
    }
    let statistics = setup.statistics();
    assert_eq!((statistics.hedges, statistics.requests), (0, 1000), "{statistics:?}");
}

// promise: R16
#[test]
fn when_all_is_slow_there_are_no_second_requests() {
    let (_, before) = latencies(options(), 1000, SECOND, |_| false);
    assert_eq!(before.hedges, 0);
    // After 1000 fast ones, 30 times as slow, for good.
    let (_, statistics) = latencies(options(), 3000, 300 * MS, |request| request >= 1000);
    let extra = statistics.requests - statistics.reads;
    assert!(extra <= 20, "{statistics:?}");
}

#[test]
fn near_ranges_are_read_as_one() {
    let setup = setup_with(able(), options().range_gap(100), |_, _, _| Answer::Fine);
    let ranges = [0..10, 9000..9010, 50..60, 20..30, 5000..5000, 9100..9101];
    let parts = setup.clock.run(setup.fetcher.read_ranges(&"a".into(), &ranges)).unwrap();
    let whole = contents(10_000);
    let exact = ranges.clone().map(|range| whole.slice(range.start as usize..range.end as usize));
    assert_eq!(parts, exact);
    let statistics = setup.statistics();
    assert_eq!((statistics.requests, statistics.bytes), (3, 60 + 101));
    assert_eq!(statistics.wasted_bytes, 10 + 20 + 90);
    #[expect(clippy::reversed_empty_ranges, reason = "the very thing to be refused")]
    let error = setup.clock.run(setup.fetcher.read_ranges(&"a".into(), &[1..2, 2..1])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn what_was_handed_on_is_gone_on_with_or_ends_with_an_error() {
    let break_first = |_: &Key, attempt: u32, _: &ReadRequest| match attempt {
        1 => Answer::Breaks(4000, ErrorKind::Unavailable),
        _ => Answer::Fine,
    };
    let setup = setup_with(able(), options(), break_first);
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

#[test]
fn whoever_takes_his_time_over_a_body_is_no_stall() {
    let setup = setup(|_, _| Answer::Slow(1000, 100 * MS));
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
fn a_long_body_may_break_more_often_than_a_short_one() {
    let setup = setup_with(able(), options().attempts(3), |_, _, _| {
        Answer::Breaks(1 << 20, ErrorKind::Unavailable)
    });
    let long = contents(20 << 20);
    setup.faulty.objects.insert("long", long.clone());
    let read = setup.clock.run(setup.fetcher.read(&"long".into(), None)).unwrap();
    assert!(read == long);
    assert_eq!(setup.statistics().resumed, 19);
}

#[test]
fn sizes_and_listings_are_asked_for_again() {
    let setup = setup(|attempt, _| match attempt {
        1 => Answer::Refused(ErrorKind::Unavailable),
        2 => Answer::Stalls(1),
        3 => Answer::Breaks(1, ErrorKind::Unavailable),
        _ => Answer::Fine,
    });
    assert_eq!(setup.clock.run(setup.fetcher.stat(&"a".into())).unwrap().size, 10_000);
    assert_eq!(setup.statistics().stalls, 1);
    let lines = async { setup.fetcher.list(&"".into()).await?.try_collect::<Vec<_>>().await };
    let keys: Vec<_> =
        setup.clock.run(lines).unwrap().into_iter().map(|line| line.key.to_string()).collect();
    assert_eq!(keys, ["a", "empty"]);
    let error = setup.clock.run(setup.fetcher.stat(&"none".into()));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_dropped_read_drops_its_requests() {
    let setup = setup(|_, _| Answer::Stalls(0));
    let key = Key::from("a");
    let mut read = setup.fetcher.read(&key, None);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(read.as_mut().poll(&mut cx).is_pending());
    assert!(!setup.clock.state.lock().unwrap().sleepers.is_empty());
    drop(read);
    assert!(setup.clock.state.lock().unwrap().sleepers.is_empty());
}

/// An epoch of 200 objects, 16 at once; each request fails by chance.
#[test]
fn an_epoch_under_faults_is_the_same_to_the_last_byte() {
    let faults = [
        Answer::Refused(ErrorKind::Unavailable),
        Answer::Refused(ErrorKind::Timeout),
        Answer::Refused(ErrorKind::Corrupt),
        Answer::RetryAfter(50 * MS),
        Answer::Breaks(0, ErrorKind::Unavailable),
        Answer::Breaks(700, ErrorKind::Io),
        Answer::Ends(0),
        Answer::Ends(999),
        Answer::Stalls(0),
        Answer::Stalls(500),
        Answer::TooLong,
        Answer::Trickles(SECOND),
        Answer::OtherSize(3),
    ];
    for fault in faults {
        for rate in [0.01, 0.1, 0.3] {
            for seed in 0..3 {
                // Much patience: what is asked here is whether the bytes are right.
                let options = options().seed(seed).retry_tokens(1e6).attempts(50);
                let options = options.budget(600 * SECOND);
                let setup = setup_with(able(), options, move |key, attempt, request| {
                    let place: u64 = key.as_str().unwrap().parse().unwrap();
                    let id = SampleId { epoch: u64::from(attempt), index: place };
                    let mut rng = SampleRng::new(seed ^ request.start, id, "fault");
                    if rng.chance(rate) { fault } else { Answer::Fine }
                });
                let objects: Vec<_> =
                    (0..200).map(|n| (Key::from(n.to_string()), contents(1000 + n))).collect();
                for (key, bytes) in &objects {
                    setup.faulty.objects.insert(key.clone(), bytes.clone());
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
