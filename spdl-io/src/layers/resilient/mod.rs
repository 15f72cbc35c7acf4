//! A layer over any fetcher: what fails for a moment is asked for again, and nothing is waited for
//! that does not come.

mod clock;
mod contact;
mod load;
mod options;
mod persistence;
mod reading;
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

use self::clock::{Clock, RuntimeClock};
use self::contact::Contact;
use self::load::Load;
pub use self::options::ResilientOptions;
pub use self::persistence::{Attempt, Attempts};
use self::persistence::{Persistence, may_pass};
use self::reading::Reading;
use crate::fetch::{
    Body, Capability, Fetcher, Key, ObjectMeta, ReadRequest, Unreached, coalesce, range_len,
};

/// A fetcher over another one that lives with a store which fails now and then.
///
/// - **Tries again** what failed for a passing reason ([`ErrorKind::is_transient`], and `Corrupt`: a
///   damaged answer), after random waits that double (full jitter) and never shorter than the
///   store asks for; within a number of attempts, a time, and a reserve of retries that all reads
///   share. So a store in trouble is not asked much more often than one that is well.
/// - **Gives up sooner on a stranger**: where connections are refused, or nobody has the name of the
///   server, and the store has never answered, it is tried for 2 s from the first such failure on and
///   no longer, and that is [told](Resilient::when_not_reached) at once. One that has answered is restarted, and
///   gets all its time.
/// - **Goes on where a body broke off**, where the fetcher below reads ranges and tells versions;
///   else from the start. What comes twice is given once.
/// - **Breaks off what stalls**: a read that brings next to nothing for 2 s. There is no limit on
///   how long a read takes that gets on.
/// - **Asks twice** (hedges) where the first byte is later than for 95 of 100 requests, takes the
///   faster answer and drops the other: for at most 5 of 100 requests, and not at all where many
///   are late or fail.
/// - **Joins ranges** near each other ([`read_ranges`](Fetcher::read_ranges)).
/// - **Notices** a body that is too short or too long for what the store says, and an object that
///   changes between attempts: `Changed`, which is final.
///
/// Where it gives up, the error has the kind of the last failure, and all [`Attempts`] as its cause.
/// Bodies that break after a piece was handed on by [`open`](Fetcher::open) end with an error
/// where they cannot be gone on with.
///
/// What a store says consistently but wrongly (another length, with a body to match) nobody can
/// notice by that answer alone.
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
    shared: Arc<Shared>,
}

/// What all reads of a fetcher have in common.
#[derive(Debug)]
struct Shared {
    options: ResilientOptions,
    clock: Arc<dyn Clock>,
    load: Mutex<Load>,
    contact: Contact,
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

/// What a [`Resilient`] fetcher has done so far.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResilientStatistics {
    /// Reads of objects and ranges that were asked for; ranges that were joined count as one.
    pub reads: u64,
    /// Requests to the fetcher below for them: first ones, retries and hedges.
    pub requests: u64,
    /// Attempts beyond the first, of all calls.
    pub retries: u64,
    /// Attempts that went on in the middle of a body.
    pub resumed: u64,
    /// Attempts that were broken off because nothing, or too little, came.
    pub stalls: u64,
    /// Second requests beside one that was late.
    pub hedges: u64,
    /// Those that were faster.
    pub hedges_won: u64,
    /// Objects that changed between attempts, or were not of the version that was asked for.
    pub changed: u64,
    /// Calls that were given up.
    pub failed: u64,
    /// Bytes received, those that were dropped included.
    pub bytes: u64,
    /// Bytes that were received and dropped: of attempts that could not be gone on with, and
    /// between ranges that were joined.
    pub wasted_bytes: u64,
}

impl Shared {
    fn load(&self) -> MutexGuard<'_, Load> {
        // Plain numbers, whole at any time.
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A wait after failure number `failures`, counted from 1.
    fn jittered(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let longest = self.options.first_delay.saturating_mul(1 << doublings);
        let index = self.draws.fetch_add(1, Ordering::Relaxed);
        let mut rng = SampleRng::new(self.seed, SampleId { epoch: 0, index }, "fetch/retry");
        longest.min(self.options.most_delay).mul_f64(rng.unit())
    }
}

impl Resilient {
    /// A layer over `inner`, with a timer thread of its own.
    ///
    /// # Errors
    /// `InvalidArgument` where the options make no sense; `Io` where the system refuses a thread.
    pub fn new(inner: Arc<dyn Fetcher>, options: ResilientOptions) -> Result<Self> {
        options.validate()?;
        Resilient::on(Arc::new(ThreadRuntime::new()?), inner, options)
    }

    /// A layer over `inner` that waits by the timer of `runtime`, which others may use too.
    ///
    /// # Errors
    /// `InvalidArgument` where the options make no sense.
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
        let shared = Shared {
            load: Mutex::new(Load::new(&options, clock.now())),
            seed: options.seed.unwrap_or_else(|| RandomState::new().hash_one("fetch")),
            options,
            clock,
            contact: Contact::default(),
            counts: Counts::default(),
            draws: AtomicU64::new(0),
        };
        Ok(Resilient { inner, shared: Arc::new(shared) })
    }

    /// Calls `listener` once, when a store that has never answered cannot be reached, as it refuses the
    /// connection, say, and the read is about to be tried again. Of several calls the first counts, also for clones.
    #[must_use]
    pub fn when_not_reached(self, listener: impl Fn(&Error) + Send + Sync + 'static) -> Self {
        self.shared.contact.listen(Box::new(listener));
        self
    }

    /// What it has done so far. Clones of a fetcher count together.
    pub fn statistics(&self) -> ResilientStatistics {
        let counts = &self.shared.counts;
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
        let (shared, inner) = (Arc::clone(&self.shared), Arc::clone(&self.inner));
        Reading::new(shared, inner, key.clone(), request, largest)
    }

    /// Calls `ask` until it succeeds, an answer being due within the stall timeout. Whether success says that
    /// the store was met, `asks_store` says.
    async fn persist<T>(
        &self,
        key: &Key,
        asks_store: bool,
        ask: impl Fn() -> BoxFuture<'static, Result<T>> + Send + Sync,
    ) -> Result<T> {
        let mut persistence = Persistence::new(Arc::clone(&self.shared));
        loop {
            let patience = self.shared.options.stall_timeout.min(persistence.time_left());
            let answer = match select(ask(), self.shared.clock.sleep(patience)).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => {
                    self.shared.counts.stalls.add(1);
                    let message = format!("no answer in {:.1} s", patience.as_secs_f64());
                    Err(Error::new(ErrorKind::Timeout, message).with_source(Unreached::Otherwise))
                }
            };
            match answer {
                Ok(answer) => {
                    if asks_store {
                        self.shared.contact.answered();
                    }
                    self.shared.load().succeeded();
                    return Ok(answer);
                }
                Err(error) if may_pass(&error) => persistence.try_again(key, error).await?,
                Err(error) => return Err(persistence.end(key, error)),
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
        self.reading(key, request, u64::MAX)?.all().await
    }

    async fn read_at_most(&self, key: &Key, max_bytes: u64) -> Result<Bytes> {
        self.reading(key, ReadRequest::whole(), max_bytes)?.all().await
    }

    async fn stat(&self, key: &Key) -> Result<ObjectMeta> {
        let ask = || {
            let (inner, key) = (Arc::clone(&self.inner), key.clone());
            let answer = async move { inner.stat(&key).await };
            Box::pin(answer) as BoxFuture<'static, _>
        };
        self.persist(key, true, ask).await
    }

    async fn read_ranges(&self, key: &Key, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        for range in ranges {
            range_len(key, range)?;
        }
        let options = &self.shared.options;
        let joined = coalesce::join(ranges, options.range_gap, options.range_limit);
        let reads: Vec<_> = joined
            .into_iter()
            .map(|joined| {
                let reading = self.reading(key, ReadRequest::range(joined.range.clone()), u64::MAX);
                async move {
                    let bytes = reading?.all().await?;
                    self.shared.counts.wasted_bytes.add(joined.unasked);
                    Ok::<_, Error>((joined, bytes))
                }
            })
            .collect();
        let mut reads = stream::iter(reads).buffer_unordered(options.ranges_at_once);
        let mut parts = vec![Bytes::new(); ranges.len()];
        while let Some((joined, bytes)) = reads.try_next().await? {
            for place in joined.members {
                let Range { start, end } = &ranges[place];
                let from = |at: u64| (at - joined.range.start) as usize;
                parts[place] = bytes.slice(from(*start)..from(*end));
            }
        }
        Ok(parts)
    }

    async fn open(&self, key: &Key, request: &ReadRequest) -> Result<Body> {
        if request.version.is_some() && !self.inner.capability().versions {
            // Its own words on what it cannot do.
            return self.inner.open(key, request).await;
        }
        let mut reading = self.reading(key, request.clone(), u64::MAX)?;
        reading.begin().await?;
        let (size, version) = reading.told();
        let pieces = stream::try_unfold(reading, Reading::piece);
        let mut body = Body::new(pieces.boxed());
        body.size = size;
        body.version = version;
        Ok(body)
    }

    /// A listing that breaks off is begun anew, and goes on behind the last line that was told.
    async fn list(&self, prefix: &Key) -> Result<BoxStream<'static, Result<ObjectMeta>>> {
        let listing = Listing {
            resilient: self.clone(),
            prefix: prefix.clone(),
            lines: None,
            last: None,
            persistence: Persistence::new(Arc::clone(&self.shared)),
        };
        let mut listing = listing;
        listing.open().await?;
        Ok(stream::try_unfold(listing, Listing::next).boxed())
    }
}

impl fmt::Debug for Resilient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Resilient").field(&self.inner).finish()
    }
}

struct Listing {
    resilient: Resilient,
    prefix: Key,
    lines: Option<BoxStream<'static, Result<ObjectMeta>>>,
    last: Option<Key>,
    persistence: Persistence,
}

impl Listing {
    async fn open(&mut self) -> Result<()> {
        let ask = || {
            let (inner, prefix) = (Arc::clone(&self.resilient.inner), self.prefix.clone());
            let answer = async move { inner.list(&prefix).await };
            Box::pin(answer) as BoxFuture<'static, _>
        };
        // It may ask the store for its first line alone, and not before somebody wants that.
        self.lines = Some(self.resilient.persist(&self.prefix, false, ask).await?);
        Ok(())
    }

    async fn next(mut self) -> Result<Option<(ObjectMeta, Self)>> {
        loop {
            if self.lines.is_none() {
                self.open().await?;
            }
            let Some(lines) = &mut self.lines else { return Ok(None) };
            let shared = &self.resilient.shared;
            let patience = shared.options.stall_timeout.min(self.persistence.time_left());
            let line = match select(lines.next(), shared.clock.sleep(patience)).await {
                Either::Left((line, _)) => line,
                Either::Right(_) => {
                    shared.counts.stalls.add(1);
                    let stalled = Error::new(ErrorKind::Timeout, "the listing stalled");
                    Some(Err(stalled.with_source(Unreached::Otherwise)))
                }
            };
            if matches!(line, None | Some(Ok(_))) {
                shared.contact.answered();
            }
            match line {
                None => return Ok(None),
                // Told before; listings are sorted.
                Some(Ok(line)) if self.last.as_ref().is_some_and(|last| line.key <= *last) => {}
                Some(Ok(line)) => {
                    self.last = Some(line.key.clone());
                    self.persistence.got_on();
                    return Ok(Some((line, self)));
                }
                Some(Err(error)) if may_pass(&error) => {
                    self.lines = None;
                    self.persistence.try_again(&self.prefix, error).await?;
                }
                Some(Err(error)) => return Err(self.persistence.end(&self.prefix, error)),
            }
        }
    }
}
