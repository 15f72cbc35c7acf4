//! Circuit breakers: limits of the retries where some objects can never be read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::fetch::Key;

/// Maximum number of attempts while a breaker is open.
pub(super) const FEW_ATTEMPTS: u32 = 3;
/// Time after the last failed read for which a breaker stays open.
const OPEN_TIME: Duration = Duration::from_secs(60);
/// Maximum number of folders with a breaker. Other folders have only that of the store.
const MAX_FOLDERS: usize = 1024;
/// Maximum difference of failed and recovered reads that a breaker counts.
const MAX_EVIDENCE: i8 = 4;
/// Number of folders with failed reads that opens the breaker of the store.
const BAD_FOLDERS: i8 = 2;

/// One circuit breaker for each folder of a store, and one for the store.
///
/// After a read has failed after all its retries, the breaker of its folder is open for 60 s. After
/// this has happened in two folders, the breaker of the store is open. A failing read then gets few
/// attempts if other objects of the folder or store were read since it began: the object itself is
/// the cause rather than an outage. So the time for retries is spent once instead of once per
/// object.
///
/// Reads that recover in the last of these few attempts or later show that failures are temporary:
/// a breaker closes when as many reads have recovered as have failed.
#[derive(Debug, Default)]
pub(super) struct Breakers {
    state: Mutex<BreakersState>,
    /// Whether any breaker counts. Makes successful reads cheap.
    is_any: AtomicBool,
}

#[derive(Debug, Default)]
struct BreakersState {
    folders: HashMap<Box<[u8]>, Breaker>,
    /// Counts only failed reads of folders whose breaker was closed.
    store: Breaker,
}

#[derive(Debug, Default)]
struct Breaker {
    last_failure: Option<Instant>,
    /// The last time at which an object was read.
    last_success: Option<Instant>,
    /// Number of reads that have failed after all retries.
    failed: u64,
    /// Failed minus recovered reads, within `-MAX_EVIDENCE..=MAX_EVIDENCE`.
    evidence: i8,
}

impl Breakers {
    fn state(&self) -> MutexGuard<'_, BreakersState> {
        // The guarded values are consistent even after a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a read that failed after all its retries.
    pub(super) fn failed(&self, key: &Key, now: Instant) {
        let mut state = self.state();
        let BreakersState { folders, store } = &mut *state;
        let folder = folder_of(key);
        if folders.len() >= MAX_FOLDERS && !folders.contains_key(folder) {
            folders.retain(|_, breaker| breaker.is_recent(now));
        }
        let mut is_first = true;
        if let Some(breaker) = folders.get_mut(folder) {
            is_first = !breaker.is_open(1, now);
            breaker.count_failure(now);
        } else if folders.len() < MAX_FOLDERS {
            folders.entry(folder.into()).or_default().count_failure(now);
        }
        if is_first {
            store.count_failure(now);
        } else {
            store.last_failure = Some(now);
        }
        self.is_any.store(true, Ordering::Relaxed);
    }

    /// Records a successful read after this number of failed attempts.
    pub(super) fn succeeded(&self, key: &Key, failures: u64, now: Instant) {
        if !self.is_any.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.state();
        if !state.store.is_recent(now) {
            *state = BreakersState::default();
            self.is_any.store(false, Ordering::Relaxed);
            return;
        }
        let has_recovered = failures + 1 >= u64::from(FEW_ATTEMPTS);
        state.store.count_success(has_recovered, now);
        if let Some(breaker) = state.folders.get_mut(folder_of(key)) {
            breaker.count_success(has_recovered, now);
        }
    }

    /// Returns why a failing read that began at `began` gets no further attempts, if a breaker is
    /// open and other objects were read since.
    pub(super) fn reason(&self, key: &Key, began: Instant, now: Instant) -> Option<String> {
        let state = self.state();
        let limits =
            |breaker: &Breaker, least| breaker.is_open(least, now) && breaker.succeeds_since(began);
        if let Some(breaker) = state.folders.get(folder_of(key)).filter(|it| limits(it, 1)) {
            return Some(format!(
                "other objects of this folder can be read, but reads of {} have failed after all \
                 retries",
                breaker.failed
            ));
        }
        limits(&state.store, BAD_FOLDERS).then(|| {
            format!(
                "other objects of this store can be read, but reads in {} folders have failed after \
                 all retries",
                state.store.failed
            )
        })
    }
}

impl Breaker {
    fn count_failure(&mut self, now: Instant) {
        self.last_failure = Some(now);
        self.failed += 1;
        self.evidence = (self.evidence + 1).min(MAX_EVIDENCE);
    }

    fn count_success(&mut self, has_recovered: bool, now: Instant) {
        self.last_success = Some(now);
        if has_recovered {
            self.evidence = (self.evidence - 1).max(-MAX_EVIDENCE);
        }
    }

    fn is_recent(&self, now: Instant) -> bool {
        self.last_failure.is_some_and(|at| now.saturating_duration_since(at) < OPEN_TIME)
    }

    fn is_open(&self, least: i8, now: Instant) -> bool {
        self.evidence >= least && self.is_recent(now)
    }

    fn succeeds_since(&self, began: Instant) -> bool {
        self.last_success.is_some_and(|at| at > began)
    }
}

fn folder_of(key: &Key) -> &[u8] {
    let key = key.as_bytes();
    let end = key.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    &key[..end]
}
