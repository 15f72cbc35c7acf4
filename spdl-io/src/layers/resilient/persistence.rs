//! Failing, waiting and giving up: what one call has behind it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use spdl_core::{Error, ErrorKind, Result};

use super::Shared;
use super::contact::STRANGER_PATIENCE;
use crate::fetch::Key;

/// So many failures of one call are kept; of more, the first are.
const LISTED: usize = 32;

/// One failed attempt at a read.
#[non_exhaustive]
#[derive(Clone, Debug)]
pub struct Attempt {
    /// When it failed, counted from the start of the read.
    pub after: Duration,
    /// Why.
    pub error: Error,
}

/// All attempts at a read that was given up: the cause of its error.
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
    /// The attempts behind an error of a [`Resilient`](crate::Resilient) fetcher; `None` where it
    /// was not tried again.
    pub fn of(error: &Error) -> Option<&Attempts> {
        std::error::Error::source(error)?.downcast_ref()
    }

    /// The first 32 of them, in order.
    pub fn list(&self) -> &[Attempt] {
        &self.list
    }

    /// How many there were in all.
    pub fn count(&self) -> u64 {
        self.list.len() as u64 + self.unlisted
    }
}

impl Attempts {
    /// Each reason once, with the first attempt that failed for it and how many did, in the order in which
    /// they came.
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

/// Each reason once, with the time of the first attempt that failed for it; nothing where all have one
/// reason, as the error itself tells that.
impl fmt::Display for Attempts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = self.reasons();
        if reasons.len() <= 1 {
            return Ok(());
        }
        for (place, (reason, after, count)) in reasons.iter().enumerate() {
            let separator = if place == 0 { "" } else { "; " };
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

/// What one call has behind it.
pub(super) struct Persistence {
    shared: Arc<Shared>,
    attempts: Attempts,
    /// Failures since it last got on.
    failures: u32,
    began: Instant,
    /// Since when it has failed to get on.
    since: Instant,
    /// Since when nobody is met where a store should be that has never answered.
    nobody_since: Option<Instant>,
}

impl Persistence {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let now = shared.clock.now();
        Persistence {
            shared,
            attempts: Attempts::default(),
            failures: 0,
            began: now,
            since: now,
            nobody_since: None,
        }
    }

    /// It has got on: failures from here on are a row of their own.
    pub(super) fn got_on(&mut self) {
        self.failures = 0;
        self.since = self.shared.clock.now();
    }

    pub(super) fn is_failing(&self) -> bool {
        self.failures > 0
    }

    /// How long an attempt may take.
    pub(super) fn time_left(&self) -> Duration {
        let spent = self.shared.clock.now().saturating_duration_since(self.since);
        self.shared.options.budget.saturating_sub(spent)
    }

    /// Waits until another attempt may follow one that failed with `error`.
    ///
    /// # Errors
    /// The last word on the read, where there is to be none.
    pub(super) async fn try_again(&mut self, key: &Key, error: Error) -> Result<()> {
        let asked = error.retry_after();
        self.shared.contact.failed(&error);
        self.note(&error);
        self.failures += 1;
        if self.failures >= self.shared.options.attempts {
            return Err(self.give_up(key, error, None));
        }
        let mut delay = self.shared.jittered(self.failures);
        if let Some(asked) = asked {
            // Not all at the very moment that the store named.
            delay = asked.saturating_add(delay);
        }
        if delay >= self.time_left() {
            let why = match asked {
                Some(_) => "the store asks for a longer wait than its time allows",
                None => "its time is over",
            };
            return Err(self.give_up(key, error, Some(why)));
        }
        self.shared.contact.tell(&error);
        if self.shared.contact.is_stranger(&error) {
            let now = self.shared.clock.now();
            let since = *self.nobody_since.get_or_insert(now);
            let spent = now.saturating_duration_since(since);
            let left = STRANGER_PATIENCE.saturating_sub(spent);
            if left.is_zero() {
                let why = "nothing has answered there so far: is the address right, and does the \
                           server run?";
                return Err(self.give_up(key, error, Some(why)));
            }
            // Waits that grew while nothing came are no reason to give up.
            delay = delay.min(left);
        }
        self.shared.clock.sleep(delay).await;
        loop {
            let taken = self.shared.load().take_retry(self.shared.clock.now());
            let Err(wait) = taken else { break };
            let wait = wait.saturating_add(self.shared.jittered(1));
            if wait >= self.time_left() {
                return Err(self.give_up(
                    key,
                    error,
                    Some("all retries of this fetcher are used up"),
                ));
            }
            self.shared.clock.sleep(wait).await;
        }
        self.shared.counts.retries.add(1);
        Ok(())
    }

    /// The last word where trying again makes no sense: the error itself, with what was before it.
    pub(super) fn end(mut self, key: &Key, error: Error) -> Error {
        self.shared.contact.failed(&error);
        if self.attempts.count() == 0 {
            self.shared.counts.failed.add(1);
            return error.with_key(key.display_name());
        }
        self.note(&error);
        self.give_up(key, error, Some("trying again makes no sense"))
    }

    fn note(&mut self, error: &Error) {
        if self.attempts.list.len() < LISTED {
            let after = self.shared.clock.now().saturating_duration_since(self.began);
            self.attempts.list.push(Attempt { after, error: error.clone() });
        } else {
            self.attempts.unlisted += 1;
        }
    }

    fn give_up(&mut self, key: &Key, error: Error, why: Option<&str>) -> Error {
        self.shared.counts.failed.add(1);
        let attempts = std::mem::take(&mut self.attempts);
        if attempts.count() == 1 && self.shared.options.attempts == 1 {
            return error.with_key(key.display_name());
        }
        let spent = self.shared.clock.now().saturating_duration_since(self.began).as_secs_f64();
        let tried = match attempts.count() {
            1 => "tried once".to_owned(),
            // More digits than count for anything are none that help.
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

/// Whether the same request may succeed another time. To a fetcher bytes have no format: where one
/// says `Corrupt`, they were damaged on their way.
pub(super) fn may_pass(error: &Error) -> bool {
    !error.is_fatal() && (error.kind().is_transient() || error.kind() == ErrorKind::Corrupt)
}
