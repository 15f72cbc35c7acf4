//! [`ResilientOptions`]: limits of retries, stalls, hedges and coalescing.

use std::time::Duration;

use spdl_core::{Error, ErrorKind, Result};

/// Settings of a [`Resilient`](crate::Resilient) fetcher: retries, timeouts, hedges, coalescing.
///
/// ```
/// use std::time::Duration;
/// use spdl_io::ResilientOptions;
/// let patient = ResilientOptions::default().budget(Duration::from_secs(300)).attempts(50);
/// patient.validate()?;
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ResilientOptions {
    pub(super) attempts: u32,
    pub(super) budget: Duration,
    pub(super) first_delay: Duration,
    pub(super) most_delay: Duration,
    pub(super) retry_tokens: f64,
    pub(super) tokens_per_success: f64,
    pub(super) tokens_per_second: f64,
    pub(super) stall_timeout: Duration,
    pub(super) min_bytes: u64,
    pub(super) hedge_share: f64,
    pub(super) range_gap: u64,
    pub(super) range_limit: u64,
    pub(super) concurrent_ranges: usize,
    pub(super) seed: Option<u64>,
}

impl Default for ResilientOptions {
    fn default() -> Self {
        ResilientOptions {
            attempts: 10,
            budget: Duration::from_secs(30),
            first_delay: Duration::from_millis(100),
            most_delay: Duration::from_secs(5),
            retry_tokens: 100.0,
            tokens_per_success: 0.5,
            tokens_per_second: 1.0,
            stall_timeout: Duration::from_secs(2),
            min_bytes: 1024,
            hedge_share: 0.05,
            range_gap: 256 << 10,
            range_limit: 8 << 20,
            concurrent_ranges: 8,
            seed: None,
        }
    }
}

impl ResilientOptions {
    /// Sets the number of consecutive failures after which a read fails, at least 1. Receiving 1
    /// MiB after a failure, or an entry of a listing, resets the count. Default: 10.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Sets the retry time: how long a read may keep failing. The time counts from the start of the
    /// read, or from the last bytes received before the first failure. Receiving 1 MiB after a
    /// failure resets the time. Reads that make progress have no limit. Default: 30 s.
    #[must_use]
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// Sets the upper bound of the delay after the first failure. Each delay is drawn uniformly
    /// from 0 to its bound (full jitter). Default: 100 ms.
    #[must_use]
    pub fn first_delay(mut self, delay: Duration) -> Self {
        self.first_delay = delay;
        self
    }

    /// Sets the largest bound of a delay, at least the first delay. The bound doubles with each
    /// failure. A `Retry-After` of the store is added to the delay. If the sum exceeds the
    /// remaining [`budget`](ResilientOptions::budget), the read fails. Default: 5 s.
    #[must_use]
    pub fn most_delay(mut self, delay: Duration) -> Self {
        self.most_delay = delay;
        self
    }

    /// Sets the size of the token bucket for retries, at least 1. All reads of the fetcher share
    /// the bucket. Each retry takes a token, and waits if the bucket is empty. Default: 100.
    #[must_use]
    pub fn retry_tokens(mut self, tokens: f64) -> Self {
        self.retry_tokens = tokens;
        self
    }

    /// Sets the number of tokens that each successful read adds, at least 0. In the long run, this
    /// number bounds the ratio of retries to reads, apart from the
    /// [`tokens_per_second`](ResilientOptions::tokens_per_second). Default: 0.5.
    #[must_use]
    pub fn tokens_per_success(mut self, tokens: f64) -> Self {
        self.tokens_per_success = tokens;
        self
    }

    /// Sets the number of tokens added per second, above 0: the rate of retries if the bucket is
    /// empty and no read succeeds. Default: 1.
    #[must_use]
    pub fn tokens_per_second(mut self, tokens: f64) -> Self {
        self.tokens_per_second = tokens;
        self
    }

    /// Sets the time in which a request must receive at least
    /// [`min_bytes`](ResilientOptions::min_bytes) bytes, above 0. Otherwise it is cancelled and
    /// retried. The duration of a whole read is not limited, unless the inner fetcher does not
    /// [stream](crate::Capability::streams). Default: 2 s.
    #[must_use]
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = timeout;
        self
    }

    /// Sets the minimum number of bytes per [`stall_timeout`](ResilientOptions::stall_timeout), at
    /// least 1. Default: 1024, so that very slow bodies count as stalled.
    #[must_use]
    pub fn min_bytes(mut self, bytes: u64) -> Self {
        self.min_bytes = bytes;
        self
    }

    /// Sets the maximum share of hedged requests, in 0..=1. A request is late if its first byte
    /// takes longer than the 95th percentile of recent requests, and at least 1.5 times the median.
    /// For a late request, one or two hedged requests are sent, and the first response is used. Hedged
    /// requests for the rest of slow bodies count as well. 0 disables hedging. Default: 0.05.
    #[must_use]
    pub fn hedge_share(mut self, share: f64) -> Self {
        self.hedge_share = share;
        self
    }

    /// Sets the largest gap in bytes between ranges that
    /// [`read_ranges`](crate::Fetcher::read_ranges) coalesces. Default: 256 KiB, which a store
    /// transfers in about the latency of one request.
    #[must_use]
    pub fn range_gap(mut self, bytes: u64) -> Self {
        self.range_gap = bytes;
        self
    }

    /// Sets the maximum size of a coalesced range in bytes. A longer range is coalesced only with
    /// ranges that lie within it. Default: 8 MiB.
    #[must_use]
    pub fn range_limit(mut self, bytes: u64) -> Self {
        self.range_limit = bytes;
        self
    }

    /// Sets the number of coalesced ranges of one call that are read concurrently, at least 1.
    /// Default: 8.
    #[must_use]
    pub fn concurrent_ranges(mut self, ranges: usize) -> Self {
        self.concurrent_ranges = ranges;
        self
    }

    /// Sets the seed of the random delays, for tests. Default: random, so that processes that
    /// failed at the same time do not retry at the same time.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Checks the settings. [`Resilient::new`](crate::Resilient::new) and
    /// [`Resilient::on`](crate::Resilient::on) call this method.
    ///
    /// # Errors
    /// `InvalidArgument` if a value is out of range or not finite.
    pub fn validate(&self) -> Result<()> {
        let fault = if self.attempts == 0 {
            "attempts is 0; the minimum is 1".to_owned()
        } else if self.first_delay > self.most_delay {
            let (first, most) = (self.first_delay, self.most_delay);
            format!("first_delay {first:?} exceeds most_delay {most:?}")
        } else if !(self.retry_tokens.is_finite() && self.retry_tokens >= 1.0) {
            format!("retry_tokens is {}; it must be finite and at least 1", self.retry_tokens)
        } else if !(self.tokens_per_success.is_finite() && self.tokens_per_success >= 0.0) {
            format!(
                "tokens_per_success is {}; it must be finite and at least 0",
                self.tokens_per_success
            )
        } else if !(self.tokens_per_second.is_finite() && self.tokens_per_second > 0.0) {
            format!(
                "tokens_per_second is {}; it must be finite and above 0",
                self.tokens_per_second
            )
        } else if self.stall_timeout.is_zero() || self.min_bytes == 0 {
            let (timeout, bytes) = (self.stall_timeout, self.min_bytes);
            format!("stall_timeout is {timeout:?} and min_bytes is {bytes}; both must be above 0")
        } else if !(0.0..=1.0).contains(&self.hedge_share) {
            format!("hedge_share is {}; it must be from 0 to 1", self.hedge_share)
        } else if self.concurrent_ranges == 0 {
            "concurrent_ranges is 0; the minimum is 1".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidArgument, format!("invalid ResilientOptions: {fault}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_are_rejected() {
        let good = ResilientOptions::default;
        assert!(good().validate().is_ok());
        for bad in [
            good().attempts(0),
            good().first_delay(Duration::from_secs(6)),
            good().retry_tokens(0.5),
            good().retry_tokens(f64::NAN),
            good().tokens_per_success(-0.1),
            good().tokens_per_second(0.0),
            good().tokens_per_second(f64::INFINITY),
            good().stall_timeout(Duration::ZERO),
            good().min_bytes(0),
            good().hedge_share(1.1),
            good().hedge_share(f64::NAN),
            good().concurrent_ranges(0),
        ] {
            let error = bad.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad:?}");
        }
    }
}
