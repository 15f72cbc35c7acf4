//! Limits of additional requests: token buckets for retries and hedges, and which requests and
//! bodies are slow.

use std::time::{Duration, Instant};

use super::ResilientOptions;

/// Number of recent values that are kept.
const KEPT_VALUES: usize = 256;
/// Minimum number of values before the quantiles are used.
const MIN_VALUES: usize = 32;
/// Number of new values between two computations of the quantiles.
const REFRESH_INTERVAL: usize = 16;
/// A body is slow if its speed is below the median of recent bodies divided by this number.
const SLOW_BODY_FACTOR: u64 = 8;
/// A body is not slow if its rest takes less than this many seconds.
const MIN_REST_SECONDS: u64 = 1;
/// Weight of one request in the moving average of late requests.
const LATE_WEIGHT: f64 = 1.0 / 32.0;
/// Share of late requests above which the whole store is slow, so that hedges would add load.
const MAX_LATE_SHARE: f64 = 0.25;
/// Capacity of the token bucket for hedged requests.
const MAX_HEDGE_TOKENS: f64 = 10.0;

#[derive(Debug)]
pub(super) struct RequestLimits {
    max_retry_tokens: f64,
    per_success: f64,
    per_second: f64,
    retry_tokens: f64,
    refilled_at: Instant,

    hedge_share: f64,
    hedge_tokens: f64,
    /// Times to the first byte.
    times: RecentValues<Duration>,
    hedge_delay: Option<Duration>,
    late_share: f64,
    /// Speeds of bodies, in bytes per second.
    speeds: RecentValues<u64>,
    median_speed: Option<u64>,
}

/// The last [`KEPT_VALUES`] values, as a ring buffer.
#[derive(Debug)]
struct RecentValues<T> {
    values: Vec<T>,
    next: usize,
}

impl<T: Copy + Ord> RecentValues<T> {
    fn new() -> Self {
        RecentValues { values: Vec::with_capacity(KEPT_VALUES), next: 0 }
    }

    /// Adds a value. Returns the sorted values if the quantiles should be computed again.
    fn add(&mut self, value: T) -> Option<Vec<T>> {
        if self.values.len() < KEPT_VALUES {
            self.values.push(value);
        } else {
            self.values[self.next % KEPT_VALUES] = value;
        }
        self.next = (self.next + 1) % (KEPT_VALUES * REFRESH_INTERVAL);
        let is_due = self.values.len() >= MIN_VALUES && self.next.is_multiple_of(REFRESH_INTERVAL);
        is_due.then(|| {
            let mut sorted = self.values.clone();
            sorted.sort_unstable();
            sorted
        })
    }
}

fn quantile<T: Copy>(sorted: &[T], share: f64) -> T {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

impl RequestLimits {
    pub(super) fn new(options: &ResilientOptions, now: Instant) -> Self {
        RequestLimits {
            max_retry_tokens: options.retry_tokens,
            per_success: options.tokens_per_success,
            per_second: options.tokens_per_second,
            retry_tokens: options.retry_tokens,
            refilled_at: now,
            hedge_share: options.hedge_share,
            hedge_tokens: 0.0,
            times: RecentValues::new(),
            hedge_delay: None,
            late_share: 0.0,
            speeds: RecentValues::new(),
            median_speed: None,
        }
    }

    /// Takes a retry token. If the bucket is empty, returns the time until the next token.
    pub(super) fn take_retry(&mut self, now: Instant) -> Result<(), Duration> {
        let seconds = now.saturating_duration_since(self.refilled_at).as_secs_f64();
        self.refilled_at = self.refilled_at.max(now);
        self.retry_tokens =
            (self.retry_tokens + seconds * self.per_second).min(self.max_retry_tokens);
        if self.retry_tokens >= 1.0 {
            self.retry_tokens -= 1.0;
            return Ok(());
        }
        let seconds = (1.0 - self.retry_tokens) / self.per_second;
        // At least 1 ms, so that the caller does not spin.
        let min_wait = Duration::from_millis(1);
        Err(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).max(min_wait))
    }

    pub(super) fn succeeded(&mut self) {
        self.retry_tokens = (self.retry_tokens + self.per_success).min(self.max_retry_tokens);
    }

    /// Counts a new request. Returns the time after which it is late, or `None` if too few
    /// latencies are known or hedging is disabled.
    pub(super) fn begin(&mut self) -> Option<Duration> {
        self.hedge_tokens = (self.hedge_tokens + self.hedge_share).min(MAX_HEDGE_TOKENS);
        self.hedge_delay()
    }

    /// Returns the same time as [`begin`](RequestLimits::begin), without counting a request.
    pub(super) fn hedge_delay(&self) -> Option<Duration> {
        self.hedge_delay.filter(|_| self.hedge_share > 0.0)
    }

    /// Counts a late request.
    pub(super) fn late(&mut self) {
        self.late_share += (1.0 - self.late_share) * LATE_WEIGHT;
    }

    /// Records the time to the first byte of a request.
    pub(super) fn first_byte(&mut self, time: Duration, late: bool) {
        if !late {
            self.late_share -= self.late_share * LATE_WEIGHT;
        }
        if let Some(sorted) = self.times.add(time) {
            // If nearly all times are equal, the 95th percentile is too close to the median.
            let delay = quantile(&sorted, 0.95).max(quantile(&sorted, 0.5).mul_f64(1.5));
            self.hedge_delay = Some(delay);
        }
    }

    /// Records the speed of a complete body in bytes per second.
    pub(super) fn body_speed(&mut self, speed: u64) {
        if let Some(sorted) = self.speeds.add(speed) {
            self.median_speed = Some(quantile(&sorted, 0.5));
        }
    }

    /// Returns whether a body is much slower than others, so that another request for its rest would
    /// be faster. `speed` is in bytes per second; `rest` is the number of missing bytes, if known.
    pub(super) fn is_slow_body(&self, speed: u64, rest: Option<u64>) -> bool {
        let median = self.median_speed.filter(|_| self.hedge_share > 0.0);
        median.is_some_and(|median| speed < median / SLOW_BODY_FACTOR)
            && rest.is_none_or(|rest| rest > speed.saturating_mul(MIN_REST_SECONDS))
    }

    /// Takes a hedge token. Fails while many requests are late or fail.
    pub(super) fn take_hedge(&mut self) -> bool {
        let is_overloaded =
            self.late_share > MAX_LATE_SHARE || self.retry_tokens < self.max_retry_tokens / 2.0;
        let is_taken = !is_overloaded && self.hedge_tokens >= 1.0;
        if is_taken {
            self.hedge_tokens -= 1.0;
        }
        is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn limits(options: ResilientOptions) -> (RequestLimits, Instant) {
        let now = Instant::now();
        (RequestLimits::new(&options, now), now)
    }

    #[test]
    fn retry_tokens_refill_with_time_and_success() {
        let options = ResilientOptions::default().retry_tokens(3.0).tokens_per_second(2.0);
        let (mut limits, now) = limits(options.tokens_per_success(0.25));
        for _ in 0..3 {
            assert_eq!(limits.take_retry(now), Ok(()));
        }
        assert_eq!(limits.take_retry(now), Err(500 * MS));
        assert_eq!(limits.take_retry(now + 250 * MS), Err(250 * MS));
        assert_eq!(limits.take_retry(now + 500 * MS), Ok(()));
        for _ in 0..4 {
            assert!(limits.take_retry(now + 500 * MS).is_err());
            limits.succeeded();
        }
        assert_eq!(limits.take_retry(now + 500 * MS), Ok(()));
        // The bucket never exceeds its size.
        let later = now + Duration::from_secs(3600);
        assert_eq!((0..9).filter(|_| limits.take_retry(later).is_ok()).count(), 3);
        // If the clock does not advance, no tokens are added. If the clock goes back, no tokens are
        // removed.
        assert!(limits.take_retry(now).is_err());
    }

    #[test]
    fn requests_are_late_beyond_the_95th_percentile() {
        let (mut limits, _) = limits(ResilientOptions::default());
        for n in 1..=31 {
            limits.first_byte(n * MS, false);
            assert_eq!(limits.begin(), None, "after {n} times");
        }
        limits.first_byte(32 * MS, false);
        // The 95th percentile of 1..=32 ms: index 31 × 0.95, rounded down.
        assert_eq!(limits.begin(), Some(30 * MS));
        // For equal times, 1.5 times the median.
        for _ in 0..KEPT_VALUES {
            limits.first_byte(10 * MS, false);
        }
        assert_eq!(limits.begin(), Some(15 * MS));
    }

    #[test]
    fn hedges_are_limited_to_a_share_of_requests() {
        let (mut limits, _) = limits(ResilientOptions::default());
        let hedge_tokens = (0..10_000)
            .filter(|_| {
                limits.begin();
                limits.take_hedge()
            })
            .count();
        assert!((499..=500).contains(&hedge_tokens), "{hedge_tokens}");
        let (mut none, _) = super::tests::limits(ResilientOptions::default().hedge_share(0.0));
        for _ in 0..100 {
            none.first_byte(MS, false);
            assert_eq!(none.begin(), None);
            assert!(!none.take_hedge());
        }
    }

    #[test]
    fn no_hedges_while_many_requests_are_late_or_fail() {
        let (mut limits, now) = limits(ResilientOptions::default());
        for _ in 0..100 {
            limits.begin();
        }
        assert!(limits.take_hedge());
        for _ in 0..12 {
            limits.late();
        }
        assert!(!limits.take_hedge(), "while many requests are late");
        for _ in 0..12 {
            limits.first_byte(MS, false);
        }
        assert!(limits.take_hedge(), "after requests were in time");
        for _ in 0..51 {
            limits.take_retry(now).unwrap();
        }
        assert!(!limits.take_hedge(), "while the retry bucket is less than half full");
    }
}
