//! Retries of one call: delays, limits, and the final error.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spdl_core::{Error, ErrorKind, Result};

use super::ResilientState;
use super::breaker::FEW_ATTEMPTS;
use super::reachability::FIRST_CONTACT_TIMEOUT;
use crate::fetch::Key;

/// Maximum number of failures that are stored per call. Later failures are only counted.
const MAX_LISTED: usize = 32;

/// One failed attempt at a read.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Time from the start of the read to the failure.
    pub after: Duration,
    /// The error of this attempt.
    pub error: Error,
}

/// All failed attempts of a read: the source of its final error.
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// # use spdl_core::{Error, ErrorKind, Result};
/// # use spdl_io::{Bytes, Capability, Fetcher, Key, Resilient, ResilientOptions};
/// # use spdl_io::layers::Attempts;
/// # #[derive(Debug)]
/// # struct Down;
/// # #[async_trait::async_trait]
/// # impl Fetcher for Down {
/// #     fn capability(&self) -> Capability { Capability::default() }
/// #     async fn read(&self, _: &Key, _: Option<std::ops::Range<u64>>) -> Result<Bytes> {
/// #         Err(Error::new(ErrorKind::Unavailable, "the server is down"))
/// #     }
/// # }
/// # let options = ResilientOptions::default().attempts(2).first_delay(Duration::ZERO);
/// let fetcher = Resilient::new(Arc::new(Down), options)?;
/// let error = spdl_core::block_on(fetcher.read(&Key::from("a"), None)).unwrap_err();
/// let attempts = Attempts::of(&error).expect("it was tried twice");
/// assert_eq!(attempts.list().len(), 2);
/// assert_eq!(attempts.list()[0].error.kind(), ErrorKind::Unavailable);
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    list: Vec<Attempt>,
    unlisted: u64,
}

impl Attempts {
    /// Returns the attempts of an error of a [`Resilient`](crate::Resilient) fetcher. `None` if the
    /// first failure was not retryable, or if only one attempt is allowed.
    pub fn of(error: &Error) -> Option<&Attempts> {
        std::error::Error::source(error)?.downcast_ref()
    }

    /// Returns the first 32 attempts in order.
    pub fn list(&self) -> &[Attempt] {
        &self.list
    }

    /// Returns the total number of attempts.
    pub fn count(&self) -> u64 {
        self.list.len() as u64 + self.unlisted
    }
}

impl Attempts {
    /// Returns each distinct reason, the time of its first attempt and the number of its attempts,
    /// in order of first occurrence.
    fn reasons(&self) -> Vec<(String, Duration, u64)> {
        let mut reasons: Vec<(String, Duration, u64)> = Vec::new();
        for Attempt { after, error } in &self.list {
            let reason = error.reason();
            match reasons.iter_mut().find(|(known, ..)| *known == reason) {
                Some((.., count)) => *count += 1,
                None => reasons.push((reason, *after, 1)),
            }
        }
        reasons
    }
}

/// Lists each distinct reason with its first time. Empty if all listed attempts have the same
/// reason, which is usually that of the final error.
impl fmt::Display for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = self.reasons();
        if reasons.len() <= 1 {
            return Ok(());
        }
        for (index, (reason, after, count)) in reasons.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}after {:.3} s: {reason}", after.as_secs_f64())?;
            if *count > 1 {
                write!(f, " ({count} times)")?;
            }
        }
        if self.unlisted > 0 {
            write!(f, "; and {} more", self.unlisted)?;
        }
        Ok(())
    }
}

impl std::error::Error for Attempts {}

/// The failures and limits of one call.
pub(super) struct RetryState {
    state: Arc<ResilientState>,
    attempts: Attempts,
    /// Failures since the last progress.
    failures: u32,
    began: Instant,
    /// Start of the retry time: the start of the call, or the last recorded progress.
    since: Instant,
    /// First failure to reach a store that has never responded.
    unreachable_since: Option<Instant>,
}

impl RetryState {
    pub(super) fn new(state: Arc<ResilientState>) -> Self {
        let now = state.clock.now();
        RetryState {
            state,
            attempts: Attempts::default(),
            failures: 0,
            began: now,
            since: now,
            unreachable_since: None,
        }
    }

    /// Records progress: resets the retry limits.
    pub(super) fn made_progress(&mut self) {
        self.failures = 0;
        self.since = self.state.clock.now();
    }

    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// Returns the remaining retry time.
    pub(super) fn time_left(&self) -> Duration {
        let spent = self.state.clock.now().saturating_duration_since(self.since);
        self.state.options.budget.saturating_sub(spent)
    }

    /// Waits before the next attempt, after a failure with `error`.
    ///
    /// # Errors
    /// The final error, if a limit is reached.
    pub(super) async fn wait_before_retry(&mut self, key: &Key, error: Error) -> Result<()> {
        let requested = error.retry_after();
        self.state.reachability.failed(&error);
        self.record(&error);
        self.failures += 1;
        if self.failures >= self.state.options.attempts {
            return Err(self.exhausted(key, error, None));
        }
        if self.failures >= FEW_ATTEMPTS
            && let Some(why) = self.state.breakers.reason(key, self.since, self.state.clock.now())
        {
            return Err(self.exhausted(key, error, Some(&why)));
        }
        let mut delay = self.state.jittered(self.failures);
        if let Some(requested) = requested {
            // The jitter spreads the requests of many readers.
            delay = requested.saturating_add(delay);
        }
        if delay >= self.time_left() {
            let why = match requested {
                Some(_) => {
                    "the store requests a longer delay (Retry-After) than the remaining retry time"
                }
                None => "retry time limit reached",
            };
            return Err(self.exhausted(key, error, Some(why)));
        }
        self.state.reachability.report(&error);
        if self.state.reachability.is_unreachable(&error) {
            let now = self.state.clock.now();
            let since = *self.unreachable_since.get_or_insert(now);
            let spent = now.saturating_duration_since(since);
            let left = FIRST_CONTACT_TIMEOUT.saturating_sub(spent);
            if left.is_zero() {
                let why = "no response from this server so far; check the address, and that \
                           the server is running";
                return Err(self.give_up(key, error, Some(why)));
            }
            // A long backoff delay does not exceed the remaining time.
            delay = delay.min(left);
        }
        self.state.clock.sleep(delay).await;
        loop {
            let taken = self.state.limits().take_retry(self.state.clock.now());
            let Err(wait) = taken else { break };
            let wait = wait.saturating_add(self.state.jittered(1));
            if wait >= self.time_left() {
                let why = "no retry tokens left for this store";
                return Err(self.exhausted(key, error, Some(why)));
            }
            self.state.clock.sleep(wait).await;
        }
        self.state.counts.retries.add(1);
        Ok(())
    }

    /// Returns the final error after all retries.
    fn exhausted(&mut self, key: &Key, error: Error, why: Option<&str>) -> Error {
        self.state.breakers.failed(key, self.state.clock.now());
        self.give_up(key, error, why)
    }

    /// Returns the number of failed attempts.
    pub(super) fn failed_attempts(&self) -> u64 {
        self.attempts.count()
    }

    /// Excludes a time from the retry time.
    pub(super) fn exclude(&mut self, time: Duration) {
        self.since += time;
    }

    /// Returns the final error after a failure that is not retryable.
    pub(super) fn final_error(mut self, key: &Key, error: Error) -> Error {
        self.state.reachability.failed(&error);
        if self.attempts.count() == 0 {
            self.state.counts.failed.add(1);
            return error.with_key(key.display_name());
        }
        self.record(&error);
        self.give_up(key, error, Some("not retryable"))
    }

    fn record(&mut self, error: &Error) {
        if self.attempts.list.len() < MAX_LISTED {
            let after = self.state.clock.now().saturating_duration_since(self.began);
            self.attempts.list.push(Attempt { after, error: error.clone() });
        } else {
            self.attempts.unlisted += 1;
        }
    }

    fn give_up(&mut self, key: &Key, error: Error, why: Option<&str>) -> Error {
        self.state.counts.failed.add(1);
        let attempts = std::mem::take(&mut self.attempts);
        if attempts.count() == 1 && self.state.options.attempts == 1 {
            return error.with_key(key.display_name());
        }
        let spent = self.state.clock.now().saturating_duration_since(self.began).as_secs_f64();
        let tried = match attempts.count() {
            1 => "tried once".to_owned(),
            // From 10 s on, fractions of a second do not matter.
            count if spent >= 10.0 => format!("tried {count} times in {spent:.0} s"),
            count => format!("tried {count} times in {spent:.1} s"),
        };
        let why = why.map_or(String::new(), |why| format!("; {why}"));
        let message = format!("{} ({tried}{why})", error.message());
        let mut last = Error::new(error.kind(), message).with_key(key.display_name());
        if let Some(offset) = error.offset() {
            last = last.with_offset(offset);
        }
        if let Some(delay) = error.retry_after() {
            last = last.with_retry_after(delay);
        }
        last.with_source(attempts)
    }
}

/// Returns whether a retry may succeed. `Corrupt` is retryable, because a fetcher does not parse
/// formats: the bytes were damaged in transit.
pub(super) fn is_retryable(error: &Error) -> bool {
    !error.is_fatal() && (error.kind().is_transient() || error.kind() == ErrorKind::Corrupt)
}
