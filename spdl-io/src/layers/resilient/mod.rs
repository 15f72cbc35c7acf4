//! [`Resilient`]: retries, timeouts and hedged requests for any fetcher.
//!
//! | file | what it holds |
//! |---|---|
//! | this file | the fetcher, and its statistics |
//! | `options` | [`ResilientOptions`] |
//! | `reading` | one read: attempts, resuming, stall detection |
//! | `hedged_request` | one request, which is hedged if its response is late |
//! | `retry` | retries of one call: delays, limits, [`Attempts`] |
//! | `breaker` | limits of the retries where some objects can never be read |
//! | `limits` | token buckets for retries and hedges; which requests and bodies are slow |
//! | `body_speed` | how fast the bytes of a body arrive |
//! | `reachability` | whether a store has ever responded |
//! | `clock` | time and timers |

mod body_speed;
mod breaker;
mod clock;
mod hedged_request;
mod limits;
mod options;
mod reachability;
mod reading;
mod retry;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::stream::BoxStream;
use futures_util::future::{Either, select};
use futures_util::{StreamExt, TryStreamExt, stream};
use spdl_core::observe::Counter;
use spdl_core::runtime::ThreadRuntime;
use spdl_core::{BoxFuture, Error, ErrorKind, Result, Runtime, SampleId, SampleRng};

use self::breaker::Breakers;
use self::clock::{Clock, RuntimeClock};
use self::limits::RequestLimits;
pub use self::options::ResilientOptions;
use self::reachability::Reachability;
use self::reading::Reading;
pub use self::retry::{Attempt, Attempts};
use self::retry::{RetryState, is_retryable};
use crate::fetch::{
    Body, Capability, Fetcher, Key, ObjectMeta, ReadMemory, ReadRequest, Unreached, check_version,
    coalesce, range_len,
};

/// A layer that adds retries, timeouts and hedged requests to another fetcher.
///
/// - **Retries** transient failures ([`ErrorKind::is_transient`]) and `Corrupt` responses, with
///   exponential backoff and full jitter, and at least the delay of `Retry-After`. The number of
///   attempts and the time are limited. All reads of a fetcher and its clones share a token bucket
///   of retries, which bounds the additional load on a failing store.
/// - **Fails fast if the store has never responded**: if the connection is refused or the host name
///   does not exist, the retries of a read end 2 s after its first such failure. A
///   [callback](Resilient::on_unreachable) reports the first failure to reach such a store. A store
///   that has responded before gets the full retry time, because it may be restarting.
/// - **Resumes** an interrupted body after the last byte received, if the inner fetcher supports
///   ranges and reports the version of the object. Otherwise the received bytes are dropped, and
///   the read restarts.
/// - **Cancels and retries stalled requests**, which by default receive fewer than 1024 bytes in
///   2 s. The duration of a read that makes progress is not limited.
/// - **Hedges** late requests, whose first byte takes longer than the 95th percentile of recent
///   requests and than 1.5 times their median: one or two hedged requests are sent, and the first
///   response is used. By default, at most 5 % of all requests are hedged requests. No hedged
///   requests are sent while many requests are late or fail.
/// - **Hedges** slow bodies, which for 0.5 s arrive at less than an eighth of the median speed of
///   recent bodies and would take longer than another second: the rest is requested again, and the
///   first response is used. These requests are within the same 5 %. The inner fetcher must support
///   ranges and report the version of the object.
/// - **Limits** the attempts at objects that cannot be read while others can: after a read has failed
///   after all its retries, other failing reads of the folder get three attempts for a minute, and
///   after such reads in two folders, all failing reads.
/// - **Coalesces** nearby ranges ([`read_ranges`](Fetcher::read_ranges)).
/// - **Checks** that a body has the announced length, and that its version, if known, does not
///   change between attempts. A change fails with `Changed`, which is not retried.
/// - **Verifies** whole objects whose store sends a checksum, such as
///   [`HttpFetcher`](crate::HttpFetcher). If the bytes differ, the object is read again.
///
/// The final error has the kind of the last failure. If the call was retried, the source of the
/// error is an [`Attempts`]. A stream from [`open`](Fetcher::open) that has returned chunks and
/// cannot be resumed ends with an error.
///
/// If a store announces a wrong length and sends a body of that length, the error is not detected.
///
/// ```
/// use std::sync::Arc;
/// use spdl_io::{Bytes, Fetcher, MemoryFetcher, Resilient, ResilientOptions};
/// let store: MemoryFetcher = [("a", "some bytes")].into_iter().collect();
/// let fetcher = Resilient::new(Arc::new(store), ResilientOptions::default())?;
/// assert_eq!(spdl_core::block_on(fetcher.read(&"a".into(), None))?, "some bytes");
/// assert_eq!(fetcher.statistics().retries, 0);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Resilient {
    inner: Arc<dyn Fetcher>,
    state: Arc<ResilientState>,
}

/// State shared by all reads of a fetcher.
#[derive(Debug)]
struct ResilientState {
    options: ResilientOptions,
    clock: Arc<dyn Clock>,
    limits: Mutex<RequestLimits>,
    breakers: Breakers,
    reachability: Reachability,
    counts: Counts,
    seed: u64,
    draws: AtomicU64,
}

#[derive(Debug, Default)]
struct Counts {
    reads: Counter,
    requests: Counter,
    retries: Counter,
    resumed: Counter,
    stalls: Counter,
    hedges: Counter,
    hedges_won: Counter,
    changed: Counter,
    failed: Counter,
    bytes: Counter,
    wasted_bytes: Counter,
}

/// Counters of a [`Resilient`] fetcher.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResilientStatistics {
    /// Reads of objects and ranges. Coalesced ranges count as one read.
    pub reads: u64,
    /// Requests to the inner fetcher for these reads, including retries and hedges.
    pub requests: u64,
    /// Retries: attempts after the first attempt of each call.
    pub retries: u64,
    /// Attempts that resumed a body.
    pub resumed: u64,
    /// Attempts that timed out: no connection in time, or no response or too few bytes within the
    /// stall timeout.
    pub stalls: u64,
    /// Hedged requests, for late responses and for the rest of slow bodies.
    pub hedges: u64,
    /// Hedged requests whose response was used.
    pub hedges_won: u64,
    /// Objects that changed between attempts, or had another version than requested.
    pub changed: u64,
    /// Calls that returned an error to the caller.
    pub failed: u64,
    /// Bytes received, including dropped ones, except those of hedged and other requests whose
    /// response was not used.
    pub bytes: u64,
    /// Bytes received and dropped: of attempts that could not be resumed, and of gaps between
    /// coalesced ranges.
    pub wasted_bytes: u64,
}

impl ResilientState {
    fn limits(&self) -> MutexGuard<'_, RequestLimits> {
        // The guarded values are consistent even after a panic.
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Draws the delay after failure number `failures`, which counts from 1.
    fn jittered(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let limit = self.options.first_delay.saturating_mul(1 << doublings);
        let index = self.draws.fetch_add(1, Ordering::Relaxed);
        let mut rng = SampleRng::new(self.seed, SampleId { epoch: 0, index }, "fetch/retry");
        limit.min(self.options.most_delay).mul_f64(rng.unit())
    }
}

impl Resilient {
    /// Wraps `inner`, with a dedicated timer thread.
    ///
    /// # Errors
    /// `InvalidArgument` if the options are invalid. `Io` if the system cannot start a thread.
    pub fn new(inner: Arc<dyn Fetcher>, options: ResilientOptions) -> Result<Self> {
        options.validate()?;
        Resilient::on(Arc::new(ThreadRuntime::new()?), inner, options)
    }

    /// Wraps `inner`, with the timers of `runtime`.
    ///
    /// # Errors
    /// `InvalidArgument` if the options are invalid.
    pub fn on(
        runtime: Arc<dyn Runtime>,
        inner: Arc<dyn Fetcher>,
        options: ResilientOptions,
    ) -> Result<Self> {
        Resilient::with_clock(Arc::new(RuntimeClock(runtime)), inner, options)
    }

    fn with_clock(
        clock: Arc<dyn Clock>,
        inner: Arc<dyn Fetcher>,
        options: ResilientOptions,
    ) -> Result<Self> {
        options.validate()?;
        let state = ResilientState {
            limits: Mutex::new(RequestLimits::new(&options, clock.now())),
            seed: options.seed.unwrap_or_else(|| RandomState::new().hash_one("fetch")),
            options,
            clock,
            breakers: Breakers::default(),
            reachability: Reachability::default(),
            counts: Counts::default(),
            draws: AtomicU64::new(0),
        };
        Ok(Resilient { inner, state: Arc::new(state) })
    }

    /// Sets a callback for a store that is unreachable and has never responded.
    ///
    /// `listener` is called once, with the first error that is retried, before the retry. Only the
    /// first listener of a fetcher and its clones is used.
    #[must_use]
    pub fn on_unreachable(self, listener: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.state.reachability.set_listener(Box::new(listener));
        self
    }

    /// Returns the statistics since the fetcher was created. Clones share the counters.
    pub fn statistics(&self) -> ResilientStatistics {
        let counts = &self.state.counts;
        ResilientStatistics {
            reads: counts.reads.get(),
            requests: counts.requests.get(),
            retries: counts.retries.get(),
            resumed: counts.resumed.get(),
            stalls: counts.stalls.get(),
            hedges: counts.hedges.get(),
            hedges_won: counts.hedges_won.get(),
            changed: counts.changed.get(),
            failed: counts.failed.get(),
            bytes: counts.bytes.get(),
            wasted_bytes: counts.wasted_bytes.get(),
        }
    }

    fn reading(&self, key: &Key, request: ReadRequest, largest: u64) -> Result<Reading> {
        let (state, inner) = (Arc::clone(&self.state), Arc::clone(&self.inner));
        Reading::new(state, inner, key.clone(), request, largest)
    }

    /// Retries `call` until it succeeds or a limit is reached. The stall timeout limits each
    /// attempt.
    ///
    /// `contacts_store`: whether success proves that the store is reachable.
    async fn with_retries<T>(
        &self,
        key: &Key,
        contacts_store: bool,
        call: impl Fn() -> BoxFuture<'static, Result<T>> + Send + Sync,
    ) -> Result<T> {
        let mut retry = RetryState::new(Arc::clone(&self.state));
        loop {
            let timeout = self.state.options.stall_timeout.min(retry.time_left());
            let answer = match select(call(), self.state.clock.sleep(timeout)).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => {
                    self.state.counts.stalls.add(1);
                    let message = format!("no response within {:.1} s", timeout.as_secs_f64());
                    Err(Error::new(ErrorKind::Timeout, message).with_source(Unreached::Otherwise))
                }
            };
            match answer {
                Ok(answer) => {
                    if contacts_store {
                        self.state.reachability.mark_responded();
                    }
                    self.state.limits().succeeded();
                    return Ok(answer);
                }
                Err(error) if is_retryable(&error) => retry.wait_before_retry(key, error).await?,
                Err(error) => return Err(retry.final_error(key, error)),
            }
        }
    }
}

#[async_trait]
impl Fetcher for Resilient {
    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    async fn read(&self, key: &Key, range: Option<Range<u64>>) -> Result<Bytes> {
        let request = range.map_or_else(ReadRequest::whole, ReadRequest::range);
        Ok(self.reading(key, request, u64::MAX)?.all(&u64::MAX).await?.0)
    }

    async fn read_whole_version(
        &self,
        key: &Key,
        memory: &dyn ReadMemory,
        version: Option<&Arc<str>>,
        size: Option<u64>,
    ) -> Result<Bytes> {
        if version.is_some() && !self.inner.capability().versions {
            // The inner fetcher returns its own error.
            return self.inner.read_whole_version(key, memory, version, size).await;
        }
        let request = ReadRequest { version: version.cloned(), size, ..ReadRequest::whole() };
        let reading = self.reading(key, request, memory.max_bytes())?;
        Ok(reading.all(memory).await?.0)
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let call = || {
            let (inner, key) = (Arc::clone(&self.inner), key.clone());
            let answer = async move { inner.stat(&key).await };
            Box::pin(answer) as BoxFuture<'static, _>
        };
        self.with_retries(key, true, call).await
    }

    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        Ok(self.read_version(key, ranges, None, None).await?.0)
    }

    async fn read_version(
        &self,
        key: &Key,
        ranges: &[Range<u64>],
        version: Option<&Arc<str>>,
        size: Option<u64>,
    ) -> Result<(Vec<Bytes>, Option<Arc<str>>)> {
        if version.is_some() && !self.inner.capability().versions {
            // The inner fetcher returns its own error.
            return self.inner.read_version(key, ranges, version, size).await;
        }
        for range in ranges {
            range_len(key, range)?;
        }
        let options = &self.state.options;
        let joined = coalesce::coalesce(ranges, options.range_gap, options.range_limit);
        let mut version = version.cloned();
        let reads: Vec<_> = joined
            .into_iter()
            .map(|joined| {
                let request = ReadRequest::range(joined.range.clone());
                let request = ReadRequest { version: version.clone(), size, ..request };
                let reading = self.reading(key, request, u64::MAX);
                async move {
                    let (bytes, version) = reading?.all(&u64::MAX).await?;
                    self.state.counts.wasted_bytes.add(joined.gap_bytes);
                    Ok::<_, Error>((joined, bytes, version))
                }
            })
            .collect();
        let mut reads = stream::iter(reads).buffer_unordered(options.concurrent_ranges);
        let mut parts = vec![Bytes::new(); ranges.len()];
        while let Some((joined, bytes, found)) = reads.try_next().await? {
            check_version(key, version.as_ref(), found.as_ref())?;
            version = version.or(found);
            for index in joined.members {
                let Range { start, end } = &ranges[index];
                let from = |at: u64| (at - joined.range.start) as usize;
                parts[index] = bytes.slice(from(*start)..from(*end));
            }
        }
        Ok((parts, version))
    }

    fn discard(&self, key: &Key, range: &Range<u64>) {
        self.inner.discard(key, range);
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        if request.version.is_some() && !self.inner.capability().versions {
            // The inner fetcher returns its own error.
            return self.inner.open(key, request).await;
        }
        let mut reading = self.reading(key, request.clone(), u64::MAX)?;
        reading.begin().await?;
        let (size, version) = reading.metadata();
        let pieces = stream::try_unfold(reading, Reading::piece);
        let mut body = Body::new(pieces.boxed());
        body.size = size;
        body.version = version;
        Ok(body)
    }

    /// Lists objects. An interrupted listing restarts and skips the keys that were already
    /// returned.
    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        let listing = RetriedListing {
            resilient: self.clone(),
            prefix: prefix.clone(),
            entries: None,
            last: None,
            retry: RetryState::new(Arc::clone(&self.state)),
        };
        let mut listing = listing;
        listing.open().await?;
        Ok(stream::try_unfold(listing, RetriedListing::next).boxed())
    }
}

impl fmt::Debug for Resilient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resilient").field(&self.inner).finish()
    }
}

struct RetriedListing {
    resilient: Resilient,
    prefix: Key,
    entries: Option<BoxStream<'static, Result<ObjectMeta>>>,
    last: Option<Key>,
    retry: RetryState,
}

impl RetriedListing {
    async fn open(&mut self) -> Result<()> {
        let call = || {
            let (inner, prefix) = (Arc::clone(&self.resilient.inner), self.prefix.clone());
            let answer = async move { inner.list(&prefix).await };
            Box::pin(answer) as BoxFuture<'static, _>
        };
        // Some fetchers send no request until the first entry is polled.
        self.entries = Some(self.resilient.with_retries(&self.prefix, false, call).await?);
        Ok(())
    }

    async fn next(mut self) -> Result<Option<(ObjectMeta, Self)>> {
        loop {
            if self.entries.is_none() {
                self.open().await?;
            }
            let Some(entries) = &mut self.entries else { return Ok(None) };
            let state = &self.resilient.state;
            let timeout = state.options.stall_timeout.min(self.retry.time_left());
            let entry = match select(entries.next(), state.clock.sleep(timeout)).await {
                Either::Left((entry, _)) => entry,
                Either::Right(_) => {
                    state.counts.stalls.add(1);
                    let stalled = Error::new(
                        ErrorKind::Timeout,
                        "the listing stalled: no entry within the stall timeout",
                    );
                    Some(Err(stalled.with_source(Unreached::Otherwise)))
                }
            };
            if matches!(entry, None | Some(Ok(_))) {
                state.reachability.mark_responded();
            }
            match entry {
                None => return Ok(None),
                // Skips entries that were returned before the retry. Listings are sorted by key.
                Some(Ok(entry)) if self.last.as_ref().is_some_and(|last| entry.key <= *last) => {}
                Some(Ok(entry)) => {
                    self.last = Some(entry.key.clone());
                    self.retry.made_progress();
                    return Ok(Some((entry, self)));
                }
                Some(Err(error)) if is_retryable(&error) => {
                    self.entries = None;
                    self.retry.wait_before_retry(&self.prefix, error).await?;
                }
                Some(Err(error)) => return Err(self.retry.final_error(&self.prefix, error)),
            }
        }
    }
}
