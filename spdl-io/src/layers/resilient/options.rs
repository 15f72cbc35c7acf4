//! How patient a resilient fetcher is, and with what.

use std::time::Duration;

use spdl_core::{Error, ErrorKind, Result};

/// How a [`Resilient`](crate::Resilient) fetcher tries again, when it gives up, and how much more
/// than the plain reads it may ask for.
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
    pub(super) least_bytes: u64,
    pub(super) hedge_share: f64,
    pub(super) range_gap: u64,
    pub(super) range_limit: u64,
    pub(super) ranges_at_once: usize,
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
            least_bytes: 1024,
            hedge_share: 0.05,
            range_gap: 256 << 10,
            range_limit: 8 << 20,
            ranges_at_once: 8,
            seed: None,
        }
    }
}

impl ResilientOptions {
    /// How often a read may fail in a row before it is given up, at least 1. What has brought a MiB
    /// since the last failure, or the rest of the object, starts a new row. Default: 10.
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// How long a read may go on failing before it is given up. No limit on a read that gets on: the
    /// time counts from its start, or from when it last got on without a failure. Default: 30 s.
    #[must_use]
    pub fn budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// The longest wait after the first failure; each wait is drawn evenly from 0 up to its longest
    /// (full jitter). Default: 100 ms.
    #[must_use]
    pub fn first_delay(mut self, delay: Duration) -> Self {
        self.first_delay = delay;
        self
    }

    /// Longest waits double with every failure up to this; at least the first delay. A store that
    /// asks for a longer wait (`Retry-After`) gets it, within the budget. Default: 5 s.
    #[must_use]
    pub fn most_delay(mut self, delay: Duration) -> Self {
        self.most_delay = delay;
        self
    }

    /// The retries that all reads of the fetcher together have in reserve, at least 1: each takes
    /// one, and waits where none is left. Default: 100.
    #[must_use]
    pub fn retry_tokens(mut self, tokens: f64) -> Self {
        self.retry_tokens = tokens;
        self
    }

    /// What a read that succeeds puts back into that reserve: in the long run, so many retries there
    /// are to a read. Default: 0.5.
    #[must_use]
    pub fn tokens_per_success(mut self, tokens: f64) -> Self {
        self.tokens_per_success = tokens;
        self
    }

    /// What every second puts back into that reserve, above 0: so many retries a second go out while
    /// nothing succeeds. Default: 1.
    #[must_use]
    pub fn tokens_per_second(mut self, tokens: f64) -> Self {
        self.tokens_per_second = tokens;
        self
    }

    /// A read that brings fewer than [`least_bytes`](ResilientOptions::least_bytes) in this time is
    /// broken off and begun anew; above 0. It is no limit on a whole read, except where the fetcher
    /// below has no [streams](crate::Capability::streams). Default: 2 s.
    #[must_use]
    pub fn stall_timeout(mut self, timeout: Duration) -> Self {
        self.stall_timeout = timeout;
        self
    }

    /// See [`stall_timeout`](ResilientOptions::stall_timeout); at least 1. Default: 1024, so a body
    /// that trickles in at a few bytes a second is a stalled one.
    #[must_use]
    pub fn least_bytes(mut self, bytes: u64) -> Self {
        self.least_bytes = bytes;
        self
    }

    /// Of all requests, so large a share may be second ones (hedges): sent while the first has not
    /// brought a byte in the time in which 95 of 100 do, and taken where they are faster. In 0..=1;
    /// 0 sends none. Default: 0.05.
    #[must_use]
    pub fn hedge_share(mut self, share: f64) -> Self {
        self.hedge_share = share;
        self
    }

    /// Ranges with no more than so many bytes between them are read as one, by
    /// [`read_ranges`](crate::Fetcher::read_ranges). Default: 256 KiB, which a store sends in about
    /// the time of another request.
    #[must_use]
    pub fn range_gap(mut self, bytes: u64) -> Self {
        self.range_gap = bytes;
        self
    }

    /// Ranges are joined up to so many bytes; one that is longer is read alone. Default: 8 MiB.
    #[must_use]
    pub fn range_limit(mut self, bytes: u64) -> Self {
        self.range_limit = bytes;
        self
    }

    /// How many joined ranges of one call are read at once, at least 1. Default: 8.
    #[must_use]
    pub fn ranges_at_once(mut self, ranges: usize) -> Self {
        self.ranges_at_once = ranges;
        self
    }

    /// What the random waits are drawn from, for tests. Default: another number for each fetcher,
    /// so that processes that failed together do not come back together.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Checks the settings; [`Resilient`](crate::Resilient) does so where it is made.
    ///
    /// # Errors
    /// `InvalidArgument` for what is below the least, or no number.
    pub fn validate(&self) -> Result<()> {
        let fault = if self.attempts == 0 {
            "0 attempts were asked for; the least is 1".to_owned()
        } else if self.first_delay > self.most_delay {
            let (first, most) = (self.first_delay, self.most_delay);
            format!("the first wait, {first:?}, is longer than the longest, {most:?}")
        } else if !(self.retry_tokens.is_finite() && self.retry_tokens >= 1.0) {
            format!("{} retry tokens were asked for; the least is 1", self.retry_tokens)
        } else if !(self.tokens_per_success.is_finite() && self.tokens_per_success >= 0.0) {
            format!("a success cannot give {} tokens", self.tokens_per_success)
        } else if !(self.tokens_per_second.is_finite() && self.tokens_per_second > 0.0) {
            format!("a second cannot give {} tokens", self.tokens_per_second)
        } else if self.stall_timeout.is_zero() || self.least_bytes == 0 {
            "a stall timeout of nothing would end every read".to_owned()
        } else if !(0.0..=1.0).contains(&self.hedge_share) {
            format!("a share of {} hedges is not in 0..=1", self.hedge_share)
        } else if self.ranges_at_once == 0 {
            "0 ranges at once were asked for; the least is 1".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidArgument, format!("resilient fetcher: {fault}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused() {
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
            good().least_bytes(0),
            good().hedge_share(1.1),
            good().hedge_share(f64::NAN),
            good().ranges_at_once(0),
        ] {
            let error = bad.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{bad:?}");
        }
    }
}
