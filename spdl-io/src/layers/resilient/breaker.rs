//! Circuit breakers: limits of the retries in a folder of which some objects can never be read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::fetch::Key;

/// Maximum number of attempts while a breaker is open.
pub(super) const FEW_ATTEMPTS: u32 = 3;
/// Time after the last failed read for which a breaker stays open.
const OPEN_TIME: Duration = Duration::from_secs(60);
/// Maximum number of folders with a breaker. In other folders, retries are not limited.
const MAX_FOLDERS: usize = 1024;

/// One circuit breaker for each folder of a store.
///
/// After a read has failed after all its retries, the breaker of its folder is open for 60 s. A
/// failing read then gets few attempts if other objects of the folder were read since it began: the
/// object itself is the cause rather than an outage. So the time for retries is spent once instead
/// of once per object. If a retry succeeds, the breaker closes: the failures are temporary.
#[derive(Debug, Default)]
pub(super) struct Breakers {
    folders: Mutex<HashMap<Box<[u8]>, Breaker>>,
    /// Whether any folder has a breaker. Makes successful reads cheap.
    is_any: AtomicBool,
}

#[derive(Debug)]
struct Breaker {
    last_failure: Instant,
    /// Number of reads that have failed after all retries.
    failed: u64,
    /// The last time at which a read of the folder succeeded without retries.
    last_success: Option<Instant>,
}

impl Breakers {
    fn folders(&self) -> MutexGuard<'_, HashMap<Box<[u8]>, Breaker>> {
        // The guarded values are consistent even after a panic.
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a read that failed after all its retries.
    pub(super) fn failed(&self, key: &Key, now: Instant) {
        let mut folders = self.folders();
        if let Some(breaker) = folders.get_mut(folder_of(key)) {
            breaker.last_failure = now;
            breaker.failed += 1;
            return;
        }
        if folders.len() >= MAX_FOLDERS {
            folders.retain(|_, breaker| breaker.is_recent(now));
        }
        if folders.len() < MAX_FOLDERS {
            let breaker = Breaker { last_failure: now, failed: 1, last_success: None };
            folders.insert(folder_of(key).into(), breaker);
            self.is_any.store(true, Ordering::Relaxed);
        }
    }

    /// Records a successful read, with or without retries.
    pub(super) fn succeeded(&self, key: &Key, with_retries: bool, now: Instant) {
        if !self.is_any.load(Ordering::Relaxed) {
            return;
        }
        let mut folders = self.folders();
        if with_retries {
            folders.remove(folder_of(key));
            self.is_any.store(!folders.is_empty(), Ordering::Relaxed);
        } else if let Some(breaker) = folders.get_mut(folder_of(key)) {
            breaker.last_success = Some(now);
        }
    }

    /// Returns the number of reads that have failed in the folder, if its breaker is open and other
    /// reads have succeeded after `began`.
    pub(super) fn open(&self, key: &Key, began: Instant, now: Instant) -> Option<u64> {
        let folders = self.folders();
        let breaker = folders.get(folder_of(key))?;
        let others_succeed = breaker.last_success.is_some_and(|at| at > began);
        (others_succeed && breaker.is_recent(now)).then_some(breaker.failed)
    }
}

impl Breaker {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_failure) < OPEN_TIME
    }
}

fn folder_of(key: &Key) -> &[u8] {
    let key = key.as_bytes();
    let end = key.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    &key[..end]
}
