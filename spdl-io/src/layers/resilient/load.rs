//! How much more than the plain reads a fetcher may ask for, and when: it is all reads' own.

use std::time::{Duration, Instant};

use super::ResilientOptions;

/// So many times to the first byte are remembered.
const REMEMBERED: usize = 256;
/// With fewer it is not known what is slow.
const LEAST_KNOWN: usize = 32;
/// The quantiles are taken anew after so many further times.
const REFRESH: usize = 16;
/// How much each request counts in the share of late ones.
const LATE_WEIGHT: f64 = 1.0 / 32.0;
/// Where so large a share is late, all is slow, and a second request would only add to it.
const BROWN_OUT: f64 = 0.25;
/// So many hedges may be saved up.
const MOST_HEDGES: f64 = 10.0;

#[derive(Debug)]
pub(super) struct Load {
    most_retries: f64,
    per_success: f64,
    per_second: f64,
    retries: f64,
    counted_at: Instant,

    hedge_share: f64,
    hedges: f64,
    /// Times to the first byte: a ring.
    times: Vec<Duration>,
    next: usize,
    hedge_delay: Option<Duration>,
    late_share: f64,
}

impl Load {
    pub(super) fn new(options: &ResilientOptions, now: Instant) -> Self {
        Load {
            most_retries: options.retry_tokens,
            per_success: options.tokens_per_success,
            per_second: options.tokens_per_second,
            retries: options.retry_tokens,
            counted_at: now,
            hedge_share: options.hedge_share,
            hedges: 0.0,
            times: Vec::with_capacity(REMEMBERED),
            next: 0,
            hedge_delay: None,
            late_share: 0.0,
        }
    }

    /// Takes a token for a retry; where there is none, says how long it takes until there is.
    pub(super) fn take_retry(&mut self, now: Instant) -> Result<(), Duration> {
        let seconds = now.saturating_duration_since(self.counted_at).as_secs_f64();
        self.counted_at = self.counted_at.max(now);
        self.retries = (self.retries + seconds * self.per_second).min(self.most_retries);
        if self.retries >= 1.0 {
            self.retries -= 1.0;
            return Ok(());
        }
        let seconds = (1.0 - self.retries) / self.per_second;
        // Never nothing, or whoever waits would not wait at all.
        let least = Duration::from_millis(1);
        Err(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX).max(least))
    }

    pub(super) fn succeeded(&mut self) {
        self.retries = (self.retries + self.per_success).min(self.most_retries);
    }

    /// A request begins. After how long without a byte it is late, and a second one makes sense;
    /// `None` as long as too little is known.
    pub(super) fn begin(&mut self) -> Option<Duration> {
        self.hedges = (self.hedges + self.hedge_share).min(MOST_HEDGES);
        self.hedge_delay()
    }

    /// As [`begin`](Load::begin), for a request that has begun before.
    pub(super) fn hedge_delay(&self) -> Option<Duration> {
        self.hedge_delay.filter(|_| self.hedge_share > 0.0)
    }

    /// A request is late.
    pub(super) fn late(&mut self) {
        self.late_share += (1.0 - self.late_share) * LATE_WEIGHT;
    }

    /// A request has brought its first byte, so long after it began; whether it was late, is known.
    pub(super) fn first_byte(&mut self, time: Duration, late: bool) {
        if !late {
            self.late_share -= self.late_share * LATE_WEIGHT;
        }
        if self.times.len() < REMEMBERED {
            self.times.push(time);
        } else {
            self.times[self.next % REMEMBERED] = time;
        }
        self.next = (self.next + 1) % (REMEMBERED * REFRESH);
        if self.times.len() >= LEAST_KNOWN && self.next.is_multiple_of(REFRESH) {
            let mut sorted = self.times.clone();
            sorted.sort_unstable();
            let quantile = |share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize];
            // Where nearly all take the same time, 95 of 100 are no measure of a late one.
            self.hedge_delay = Some(quantile(0.95).max(quantile(0.5).mul_f64(1.5)));
        }
    }

    /// Takes a token for a second request; not while the store is in trouble.
    pub(super) fn take_hedge(&mut self) -> bool {
        let trouble = self.late_share > BROWN_OUT || self.retries < self.most_retries / 2.0;
        let may = !trouble && self.hedges >= 1.0;
        if may {
            self.hedges -= 1.0;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn load(options: ResilientOptions) -> (Load, Instant) {
        let now = Instant::now();
        (Load::new(&options, now), now)
    }

    #[test]
    fn retries_end_with_their_tokens_and_come_back_with_time_and_success() {
        let options = ResilientOptions::default().retry_tokens(3.0).tokens_per_second(2.0);
        let (mut load, now) = load(options.tokens_per_success(0.25));
        for _ in 0..3 {
            assert_eq!(load.take_retry(now), Ok(()));
        }
        assert_eq!(load.take_retry(now), Err(500 * MS));
        assert_eq!(load.take_retry(now + 250 * MS), Err(250 * MS));
        assert_eq!(load.take_retry(now + 500 * MS), Ok(()));
        for _ in 0..4 {
            assert!(load.take_retry(now + 500 * MS).is_err());
            load.succeeded();
        }
        assert_eq!(load.take_retry(now + 500 * MS), Ok(()));
        // No more than the reserve is saved up.
        let later = now + Duration::from_secs(3600);
        assert_eq!((0..9).filter(|_| load.take_retry(later).is_ok()).count(), 3);
        // A clock that stands still gives nothing, and one behind takes nothing away.
        assert!(load.take_retry(now).is_err());
    }

    #[test]
    fn a_request_is_late_beyond_the_95th_of_100_times() {
        let (mut load, _) = load(ResilientOptions::default());
        for n in 1..=31 {
            load.first_byte(n * MS, false);
            assert_eq!(load.begin(), None, "after {n} times");
        }
        load.first_byte(32 * MS, false);
        // Of 1..=32 ms: place 31 × 0.95, rounded down.
        assert_eq!(load.begin(), Some(30 * MS));
        // Of equal times, half as long again.
        for _ in 0..REMEMBERED {
            load.first_byte(10 * MS, false);
        }
        assert_eq!(load.begin(), Some(15 * MS));
    }

    #[test]
    fn hedges_are_a_share_of_all_requests() {
        let (mut load, _) = load(ResilientOptions::default());
        let hedges = (0..10_000)
            .filter(|_| {
                load.begin();
                load.take_hedge()
            })
            .count();
        assert!((499..=500).contains(&hedges), "{hedges}");
        let (mut none, _) = super::tests::load(ResilientOptions::default().hedge_share(0.0));
        for _ in 0..100 {
            none.first_byte(MS, false);
            assert_eq!(none.begin(), None);
            assert!(!none.take_hedge());
        }
    }

    #[test]
    fn nothing_is_hedged_while_all_is_slow_or_much_fails() {
        let (mut load, now) = load(ResilientOptions::default());
        for _ in 0..100 {
            load.begin();
        }
        assert!(load.take_hedge());
        for _ in 0..12 {
            load.late();
        }
        assert!(!load.take_hedge(), "in a brown-out");
        for _ in 0..12 {
            load.first_byte(MS, false);
        }
        assert!(load.take_hedge(), "after it");
        for _ in 0..51 {
            load.take_retry(now).unwrap();
        }
        assert!(!load.take_hedge(), "while half of the retries are gone");
    }
}
