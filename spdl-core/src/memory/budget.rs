//! The memory budget of a pipeline: who may take how many bytes now, and who has to wait.
//!
//! A pipeline has `limit` bytes for its items, and `levels` stages whose items are measured, in
//! flow order: level 0 is nearest to the source, the last one nearest to the consumer. A stage
//! reserves the bytes of what it is about to make, and the [`Reservation`] travels with the item.
//!
//! ```text
//!  source ──► level 0 ──► level 1 ──► level 2 ──► consumer
//!
//!             may take    may take    may take
//!             limit − 2h  limit − h   limit         h: the headroom
//! ```
//!
//! **Whoever is nearer to the consumer can always go on.** `headroom` is the most one item may
//! need, and every level has that much to itself, which no level in front of it can take. A
//! reservation of `bytes` at level `k` is granted if
//!
//! ```text
//!   held at levels ..= k  +  Σ max(held at m, headroom) for the levels m > k  +  bytes  ≤  limit
//! ```
//!
//! so the sum of all reservations never exceeds the limit, and when the levels from `k` on have
//! handed on what they had, `headroom` bytes are left for level `k`. Memory is freed from the
//! consumer upwards, so each level gets its turn. ("The oldest sample may always proceed" would not
//! do: the oldest may lie in a queue behind younger ones that wait for memory.)
//!
//! **Branches.** Where several join, whoever joins them may wait for an item of one branch while
//! the others are far ahead. So levels on such branches leave the headroom of *all* levels of the
//! branches alone, also of those that are in front of them in the order of the levels; then each
//! has its own, whatever the others hold.
//!
//! Two rules are left to the caller. A stage that keeps items back until it has enough of them
//! (a batch in assembly) [joins](Reservation::join) their reservations into one of its own level, which may
//! hold up to `headroom`. And a stage that gives its items out in order reserves in that order.
//!
//! **Growth.** A reservation whose item turns out larger than was reserved grows at once: the memory
//! exists already. What does not fit is *overdrawn*: levels in front of it, and its own, count it
//! and wait; those behind it do not, since only they can make it go away.
//!
//! **Waiting.** Whoever is refused is remembered under the same lock under which memory is given
//! back, so no wake-up is lost. Wakers of tasks are called when their request would be granted; for
//! worker threads a callback is called when the smallest of the requests refused at some level
//! would be. Both happen outside the lock.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::memory::footprint::ByteSize;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// No request was refused at this level.
const NOBODY: usize = usize::MAX;

/// No sum over reservations gets larger, so that adding a few of them cannot overflow.
const MOST: usize = usize::MAX / 4;

/// What a pipeline's memory budget has lent.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct MemoryStatistics {
    /// The most bytes that items may hold together.
    pub limit_bytes: usize,
    /// The most bytes that one item may hold.
    pub headroom_bytes: usize,
    /// Bytes held by items now.
    pub live_bytes: usize,
    /// The most that were held at once.
    pub peak_bytes: usize,
    /// The most by which items that turned out larger than expected went beyond what was free for
    /// them. `peak_bytes` exceeds `limit_bytes` by no more than this.
    pub overdrawn_bytes: usize,
    /// How long at least one stage waited for memory.
    #[cfg_attr(feature = "serde", serde(rename = "waited_s", with = "crate::seconds"))]
    pub waited: Duration,
}

impl MemoryStatistics {
    /// The same, but waiting counted from `earlier` on.
    pub(crate) fn since(self, earlier: MemoryStatistics) -> MemoryStatistics {
        MemoryStatistics { waited: self.waited.saturating_sub(earlier.waited), ..self }
    }
}

/// The memory of one pipeline; see the [module](self).
pub(crate) struct Budget {
    limit: usize,
    headroom: usize,
    /// Levels side by side, on branches that join behind them.
    branched: Vec<Range<usize>>,
    /// What each level could still take. Changed under the lock; read without it, it is a hint.
    available: Box<[AtomicUsize]>,
    /// The smallest request refused at each level since the last call of `on_release` for it.
    /// Changed under the lock, read without it.
    wanted: Box<[AtomicUsize]>,
    state: Mutex<BudgetState>,
    on_release: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

#[derive(Default)]
struct BudgetState {
    levels: Vec<BudgetLevel>,
    waiters: Vec<Waiter>,
    live: usize,
    overdrawn: usize,
    peak: usize,
    overdrawn_peak: usize,
    /// Since when somebody has been waiting.
    waiting_since: Option<Instant>,
    waited: Duration,
}

#[derive(Clone, Copy, Default)]
struct BudgetLevel {
    live: usize,
    /// The part of `live` for which there was no room.
    overdrawn: usize,
}

/// A task that was refused.
struct Waiter {
    level: usize,
    bytes: usize,
    waker: Waker,
}

/// Whom to wake, once the lock is given back.
#[must_use]
struct Wake {
    wakers: Vec<Waker>,
    workers: bool,
}

impl Budget {
    /// A budget of `limit` bytes for `levels` stages. One item may take `headroom` bytes; `None`
    /// is half of its level's even share, `limit / (2 * levels)`.
    ///
    /// # Errors
    /// `InvalidArgument` where `levels` or `headroom` is 0, or where the limit is less than one
    /// headroom for each level: then it could not be kept without a deadlock.
    #[cfg(test)]
    pub(crate) fn new(limit: usize, headroom: Option<usize>, levels: usize) -> Result<Arc<Self>> {
        Budget::branched(limit, headroom, levels, Vec::new())
    }

    /// The same, where the levels of each of the ranges are on branches that join behind them.
    ///
    /// # Errors
    /// As for [`new`](Budget::new).
    pub(crate) fn branched(
        limit: usize,
        headroom: Option<usize>,
        levels: usize,
        branched: Vec<Range<usize>>,
    ) -> Result<Arc<Self>> {
        let fault = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        if levels == 0 {
            return fault("a memory budget needs at least one stage that it measures".into());
        }
        let limit = limit.min(MOST);
        let headroom = headroom.unwrap_or(limit / levels / 2);
        if headroom == 0 {
            return fault(format!(
                "a memory budget of {} is too small for {levels} stages",
                ByteSize(limit)
            ));
        }
        if headroom.checked_mul(levels).is_none_or(|least| least > limit) {
            return fault(format!(
                "a memory budget of {} is too small for {levels} stages with items of up to {} \
                 each; raise the budget, or lower what one item may take",
                ByteSize(limit),
                ByteSize(headroom),
            ));
        }
        let atomics = |value| (0..levels).map(|_| AtomicUsize::new(value)).collect();
        let budget = Budget {
            limit,
            headroom,
            branched,
            available: atomics(0),
            wanted: atomics(NOBODY),
            state: Mutex::new(BudgetState {
                levels: vec![BudgetLevel::default(); levels],
                ..BudgetState::default()
            }),
            on_release: OnceLock::new(),
        };
        budget.publish(&budget.state.lock());
        Ok(Arc::new(budget))
    }

    /// What to call when memory was given back that a worker has been refused, to make the workers
    /// look again. It is called outside all locks, by whoever gives back. Only the first call of
    /// this counts.
    pub(crate) fn set_on_release(&self, wake_workers: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_release.set(Box::new(wake_workers));
    }

    /// The most one item may take.
    pub(crate) fn headroom(&self) -> usize {
        self.headroom
    }

    /// Whether an item of this size can be had at all.
    ///
    /// # Errors
    /// `LimitExceeded` where it is larger than the headroom.
    pub(crate) fn check(&self, bytes: usize) -> Result<()> {
        if bytes <= self.headroom {
            return Ok(());
        }
        let message = format!(
            "needs {}, but one item may take at most {} of the memory budget of {}; raise the budget",
            ByteSize(bytes),
            ByteSize(self.headroom),
            ByteSize(self.limit)
        );
        Err(Error::new(ErrorKind::LimitExceeded, message))
    }

    /// Takes `bytes` where they are free. `None` where they are not: then `on_release` is called as
    /// soon as they might be.
    ///
    /// # Errors
    /// `LimitExceeded` where an item of this size can never be had.
    pub(crate) fn try_reserve(
        self: &Arc<Self>,
        level: usize,
        bytes: usize,
    ) -> Result<Option<Reservation>> {
        self.check(bytes)?;
        let mut state = self.state.lock();
        let reservation = self.grant(&mut state, level, bytes);
        if reservation.is_none() {
            self.want(&mut state, level, bytes);
        }
        Ok(reservation)
    }

    /// Whether [`try_reserve`](Budget::try_reserve) would probably not say `None`. Where it says
    /// no, `on_release` is called as soon as that might have changed, so a worker that announces
    /// itself first, asks this, and then sleeps does not oversleep. Takes no lock, except to
    /// remember the first refusal.
    pub(crate) fn would_grant(&self, level: usize, bytes: usize) -> bool {
        let level = self.clamp(level);
        // An impossible request gets its answer, an error, at once.
        if bytes > self.headroom || bytes <= self.room(level) {
            return true;
        }
        // Already remembered: whoever forgets it calls `on_release` afterwards, and will see that
        // the worker has announced itself.
        if self.wanted[level].load(Ordering::Relaxed) <= bytes {
            return false;
        }
        let mut state = self.state.lock();
        let fits = bytes <= self.room(level);
        if !fits {
            self.want(&mut state, level, bytes);
        }
        fits
    }

    /// Takes `bytes`, or has the task woken as soon as they might be free. Dropping whatever polls
    /// this needs no farewell: its waker is called once in vain.
    ///
    /// # Errors
    /// `LimitExceeded` where an item of this size can never be had.
    pub(crate) fn poll_reserve(
        self: &Arc<Self>,
        level: usize,
        bytes: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Reservation>> {
        self.check(bytes)?;
        let level = self.clamp(level);
        let mut state = self.state.lock();
        if let Some(reservation) = self.grant(&mut state, level, bytes) {
            return Poll::Ready(Ok(reservation));
        }
        state.waiting_since.get_or_insert_with(Instant::now);
        let known = state
            .waiters
            .iter_mut()
            .find(|waiter| waiter.level == level && waiter.waker.will_wake(cx.waker()));
        match known {
            Some(waiter) => waiter.bytes = waiter.bytes.min(bytes),
            None => state.waiters.push(Waiter { level, bytes, waker: cx.waker().clone() }),
        }
        Poll::Pending
    }

    /// Makes all who wait look again, because something else has changed: the pipeline ends.
    pub(crate) fn wake_all(&self) {
        let mut state = self.state.lock();
        let wakers = state.waiters.drain(..).map(|waiter| waiter.waker).collect();
        for wanted in &self.wanted {
            wanted.store(NOBODY, Ordering::Relaxed);
        }
        state.stop_clock();
        drop(state);
        self.wake(Wake { wakers, workers: true });
    }

    /// What is lent now, and was at most.
    pub(crate) fn statistics(&self) -> MemoryStatistics {
        let state = self.state.lock();
        let waiting = state.waiting_since.map_or(Duration::ZERO, |since| since.elapsed());
        MemoryStatistics {
            limit_bytes: self.limit,
            headroom_bytes: self.headroom,
            live_bytes: state.live,
            peak_bytes: state.peak,
            overdrawn_bytes: state.overdrawn_peak,
            waited: state.waited + waiting,
        }
    }

    /// There is no level behind the last one.
    fn clamp(&self, level: usize) -> usize {
        debug_assert!(level < self.available.len(), "there is no level {level}");
        level.min(self.available.len() - 1)
    }

    /// How much each level could take, from the first to the last.
    fn rooms<'a>(&'a self, state: &'a BudgetState) -> impl Iterator<Item = usize> + 'a {
        let granted = |level: &BudgetLevel| level.live - level.overdrawn;
        let own = |level: &BudgetLevel| level.live.max(self.headroom);
        // What cannot drain before the branches have joined must not hold up another branch, so
        // what is overdrawn beside a level does not count.
        let beside = move |level: &BudgetLevel| granted(level).max(self.headroom);
        let mut behind: usize = state.levels.iter().map(own).sum();
        let mut before = 0;
        // Of the levels that are side by side with the one at hand: where they end, and what is
        // kept for them and those in front of them.
        let (mut end, mut kept) = (0, 0);
        state.levels.iter().enumerate().map(move |(at, level)| {
            if at >= end {
                let branch = self.branched.iter().find(|range| range.contains(&at));
                let range = branch.cloned().unwrap_or(at..at + 1);
                end = range.end;
                let inside = &state.levels[range];
                behind -= inside.iter().map(own).sum::<usize>();
                kept = before + inside.iter().map(beside).sum::<usize>();
                before += inside.iter().map(granted).sum::<usize>();
            }
            self.limit.saturating_sub(kept - beside(level) + level.live + behind)
        })
    }

    /// Works out the rooms anew, after every change of the books.
    fn publish(&self, state: &BudgetState) {
        for (available, room) in self.available.iter().zip(self.rooms(state)) {
            available.store(room, Ordering::Relaxed);
        }
    }

    /// What a level could take: exactly, where the caller holds the lock.
    fn room(&self, level: usize) -> usize {
        self.available[level].load(Ordering::Relaxed)
    }

    fn grant(
        self: &Arc<Self>,
        state: &mut BudgetState,
        level: usize,
        bytes: usize,
    ) -> Option<Reservation> {
        let level = self.clamp(level);
        if bytes > 0 {
            if bytes > self.room(level) {
                return None;
            }
            state.add(level, bytes, 0);
            self.publish(state);
        }
        Some(Reservation { budget: Arc::clone(self), level, bytes, overdrawn: 0 })
    }

    /// Remembers that a worker was refused.
    fn want(&self, state: &mut BudgetState, level: usize, bytes: usize) {
        let wanted = &self.wanted[self.clamp(level)];
        wanted.store(wanted.load(Ordering::Relaxed).min(bytes), Ordering::Relaxed);
        state.waiting_since.get_or_insert_with(Instant::now);
    }

    /// After memory was given back, or moved towards the consumer: finds those who could have it.
    fn find_waiters(&self, state: &mut BudgetState) -> Wake {
        self.publish(state);
        let mut wake = Wake { wakers: Vec::new(), workers: false };
        let mut waiting = false;
        if state.waiting_since.is_none() {
            return wake;
        }
        for (wanted, available) in self.wanted.iter().zip(&self.available) {
            let bytes = wanted.load(Ordering::Relaxed);
            if bytes == NOBODY {
                continue;
            }
            if bytes <= available.load(Ordering::Relaxed) {
                wanted.store(NOBODY, Ordering::Relaxed);
                wake.workers = true;
            } else {
                waiting = true;
            }
        }
        // All are woken that could go on, though perhaps not all at once: so nothing is lost where
        // one of them is no longer interested.
        let could_go_on = |waiter: &mut Waiter| waiter.bytes <= self.room(waiter.level);
        wake.wakers.extend(state.waiters.extract_if(.., could_go_on).map(|waiter| waiter.waker));
        if !waiting && state.waiters.is_empty() {
            state.stop_clock();
        }
        wake
    }

    fn wake(&self, wake: Wake) {
        for waker in wake.wakers {
            waker.wake();
        }
        if wake.workers
            && let Some(on_release) = self.on_release.get()
        {
            on_release();
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.statistics().fmt(f)
    }
}

impl BudgetState {
    fn add(&mut self, level: usize, bytes: usize, overdrawn: usize) {
        self.levels[level].live += bytes;
        self.levels[level].overdrawn += overdrawn;
        self.live += bytes;
        self.overdrawn += overdrawn;
        self.peak = self.peak.max(self.live);
        self.overdrawn_peak = self.overdrawn_peak.max(self.overdrawn);
    }

    fn remove(&mut self, level: usize, bytes: usize, overdrawn: usize) {
        self.levels[level].live -= bytes;
        self.levels[level].overdrawn -= overdrawn;
        self.live -= bytes;
        self.overdrawn -= overdrawn;
    }

    fn stop_clock(&mut self) {
        if let Some(since) = self.waiting_since.take() {
            self.waited += since.elapsed();
        }
    }
}

/// The right to hold some bytes. It travels with the item that holds them; dropping it gives them
/// back.
#[must_use = "dropping a lease gives its bytes back"]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    level: usize,
    bytes: usize,
    /// The part of `bytes` for which there was no room.
    overdrawn: usize,
}

impl Reservation {
    /// The bytes it stands for.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Makes it stand for `bytes` from now on: what the item really holds. Gives back what is not
    /// needed; counts what is needed in addition, whether there is room for it or not.
    pub(crate) fn resize(&mut self, bytes: usize) {
        if bytes == self.bytes {
            return;
        }
        let budget = &self.budget;
        let mut state = budget.state.lock();
        let wake = if bytes > self.bytes {
            let growth = (bytes - self.bytes).min(MOST.saturating_sub(state.live));
            let overdrawn = growth.saturating_sub(budget.room(self.level));
            state.add(self.level, growth, overdrawn);
            self.bytes += growth;
            self.overdrawn += overdrawn;
            budget.publish(&state);
            None
        } else {
            let less = self.bytes - bytes;
            let overdrawn = self.overdrawn.min(less);
            state.remove(self.level, less, overdrawn);
            self.bytes = bytes;
            self.overdrawn -= overdrawn;
            Some(budget.find_waiters(&mut state))
        };
        drop(state);
        if let Some(wake) = wake {
            budget.wake(wake);
        }
    }

    /// Takes over all bytes of `other`, which comes from the same budget, and from this level or
    /// one in front of it. For a stage that keeps items back: it begins with a reservation of 0 bytes.
    ///
    /// # Errors
    /// `LimitExceeded` where together they are larger than the headroom; nothing has changed then.
    pub(crate) fn join(&mut self, other: &mut Reservation) -> Result<()> {
        debug_assert!(Arc::ptr_eq(&self.budget, &other.budget), "leases of two budgets");
        debug_assert!(other.level <= self.level, "a lease goes only towards the consumer");
        self.budget.check(self.bytes.saturating_add(other.bytes))?;
        let bytes = std::mem::take(&mut other.bytes);
        let overdrawn = std::mem::take(&mut other.overdrawn);
        self.bytes += bytes;
        self.overdrawn += overdrawn;
        if other.level != self.level && bytes > 0 {
            let mut state = self.budget.state.lock();
            state.remove(other.level, bytes, overdrawn);
            state.add(self.level, bytes, overdrawn);
            let wake = self.budget.find_waiters(&mut state);
            drop(state);
            self.budget.wake(wake);
        }
        Ok(())
    }

    /// Cuts off a reservation of up to `bytes` of its bytes: for a run of items that was reserved at
    /// once. Touches nothing that is shared but a counter.
    pub(crate) fn split(&mut self, bytes: usize) -> Reservation {
        let bytes = bytes.min(self.bytes);
        let overdrawn = self.overdrawn.min(bytes);
        self.bytes -= bytes;
        self.overdrawn -= overdrawn;
        Reservation { budget: Arc::clone(&self.budget), level: self.level, bytes, overdrawn }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.resize(0);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} at level {})", ByteSize(self.bytes), self.level)
    }
}

#[cfg(test)]
#[cfg(not(spdl_loom))]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicUsize as Counter, Ordering::SeqCst};
    use std::task::Wake as StdWake;

    use proptest::prelude::*;

    use super::*;

    fn budget(limit: usize, headroom: usize, levels: usize) -> Arc<Budget> {
        Budget::new(limit, Some(headroom), levels).unwrap()
    }

    fn live(budget: &Budget) -> usize {
        budget.statistics().live_bytes
    }

    #[derive(Default)]
    struct Calls(Counter);
    impl Calls {
        fn count(&self) -> usize {
            self.0.load(SeqCst)
        }
    }
    impl StdWake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn counted_releases(budget: &Budget) -> Arc<Calls> {
        let calls = Arc::new(Calls::default());
        let counter = Arc::clone(&calls);
        budget.set_on_release(move || StdWake::wake(Arc::clone(&counter)));
        calls
    }

    #[test]
    fn a_level_cannot_take_what_the_levels_behind_it_need() {
        let budget = budget(100, 20, 3);
        let first = [20, 20, 20].map(|bytes| budget.try_reserve(0, bytes).unwrap().unwrap());
        assert!(budget.try_reserve(0, 1).unwrap().is_none(), "100 − 2 · 20 bytes for level 0");
        let second = budget.try_reserve(1, 20).unwrap().unwrap();
        assert!(budget.try_reserve(1, 1).unwrap().is_none(), "100 − 20 bytes up to level 1");
        let third = budget.try_reserve(2, 20).unwrap().unwrap();
        assert!(budget.try_reserve(2, 1).unwrap().is_none(), "100 bytes in all");
        assert_eq!(live(&budget), 100);
        drop((first, second, third));
        assert_eq!(live(&budget), 0);
        assert_eq!(budget.statistics().peak_bytes, 100);
    }

    #[test]
    fn what_a_level_holds_of_its_own_share_is_not_counted_twice() {
        let budget = budget(100, 20, 3);
        let _last = budget.try_reserve(2, 20).unwrap().unwrap();
        let first = [20, 20, 20].map(|bytes| budget.try_reserve(0, bytes).unwrap());
        assert!(first.iter().all(Option::is_some));
        assert!(budget.try_reserve(0, 1).unwrap().is_none());
    }

    #[test]
    fn an_item_that_could_never_be_had_is_an_error() {
        let budget = Budget::new(8 << 20, None, 2).unwrap();
        assert_eq!(budget.headroom(), 2 << 20);
        assert!(budget.would_grant(0, 3 << 20), "so that the error is not waited for");
        let error = budget.try_reserve(0, 3 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert_eq!(
            error.message(),
            "needs 3 MiB, but one item may take at most 2 MiB of the memory budget of 8 MiB; \
             raise the budget"
        );
        let waker = Waker::noop();
        let polled = budget.poll_reserve(1, usize::MAX, &mut Context::from_waker(waker));
        assert!(matches!(polled, Poll::Ready(Err(e)) if e.kind() == ErrorKind::LimitExceeded));
        assert!(budget.try_reserve(1, 2 << 20).unwrap().is_some());
    }

    #[test]
    fn a_budget_that_cannot_be_kept_is_an_error() {
        for (limit, headroom, levels) in
            [(100, None, 0), (100, Some(0), 1), (3, None, 2), (0, None, 1), (100, Some(51), 2)]
        {
            let error = Budget::new(limit, headroom, levels).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
        assert!(Budget::new(usize::MAX, Some(usize::MAX), 2).is_err());
        assert!(Budget::new(usize::MAX, None, 64).is_ok());
        assert!(Budget::new(100, Some(50), 2).is_ok());
    }

    #[test]
    fn workers_are_woken_only_when_what_they_wanted_is_free() {
        let budget = budget(100, 50, 2);
        let calls = counted_releases(&budget);
        let mut held = budget.try_reserve(0, 50).unwrap().unwrap();
        held.resize(45);
        assert_eq!(calls.count(), 0, "nobody was refused");
        assert!(budget.try_reserve(0, 20).unwrap().is_none());
        assert!(!budget.would_grant(0, 10));
        held.resize(41);
        assert_eq!(calls.count(), 0, "9 bytes are of no use");
        held.resize(40);
        assert_eq!(calls.count(), 1, "10 bytes are wanted");
        held.resize(20);
        assert_eq!(calls.count(), 1, "once they know, they have to be refused again");
        assert!(!budget.would_grant(0, 40));
        assert!(!budget.would_grant(0, 40));
        drop(held);
        assert_eq!(calls.count(), 2);
        assert!(budget.would_grant(0, 40));
    }

    #[test]
    fn a_task_is_woken_when_its_request_fits() {
        let budget = budget(100, 100, 1);
        let held = [60, 30].map(|bytes| budget.try_reserve(0, bytes).unwrap().unwrap());
        let [large, small] = [Arc::new(Calls::default()), Arc::new(Calls::default())];
        let poll = |calls: &Arc<Calls>, bytes| {
            let waker = Waker::from(Arc::clone(calls));
            budget.poll_reserve(0, bytes, &mut Context::from_waker(&waker))
        };
        assert!(poll(&large, 90).is_pending());
        assert!(poll(&small, 20).is_pending());
        assert!(poll(&small, 20).is_pending());
        assert_eq!(budget.state.lock().waiters.len(), 2, "a task waits once");
        let [first, second] = held;
        drop(second);
        assert_eq!((large.count(), small.count()), (0, 1));
        let Poll::Ready(Ok(reservation)) = poll(&small, 20) else { panic!("20 bytes are free") };
        drop(first);
        assert_eq!((large.count(), small.count()), (0, 1));
        drop(reservation);
        assert_eq!((large.count(), small.count()), (1, 1));
        assert!(
            matches!(poll(&large, 90), Poll::Ready(Ok(reservation)) if reservation.bytes() == 90)
        );
    }

    #[test]
    fn the_end_wakes_all_who_wait() {
        let budget = budget(100, 100, 1);
        let calls = counted_releases(&budget);
        let _held = budget.try_reserve(0, 100).unwrap();
        let task = Arc::new(Calls::default());
        let waker = Waker::from(Arc::clone(&task));
        assert!(budget.poll_reserve(0, 1, &mut Context::from_waker(&waker)).is_pending());
        assert!(!budget.would_grant(0, 1));
        budget.wake_all();
        assert_eq!((task.count(), calls.count()), (1, 1));
    }

    #[test]
    fn a_callback_may_use_the_budget() {
        let budget = budget(100, 100, 1);
        let again = Arc::downgrade(&budget);
        let taken = Arc::new(Mutex::new(None));
        let place = Arc::clone(&taken);
        budget.set_on_release(move || {
            let budget = again.upgrade().unwrap();
            *place.lock() = budget.try_reserve(0, 100).unwrap();
        });
        let held = budget.try_reserve(0, 1).unwrap();
        assert!(budget.try_reserve(0, 100).unwrap().is_none());
        drop(held);
        assert!(taken.lock().take().is_some(), "called outside the lock");
    }

    #[test]
    fn growth_counts_at_once_and_stops_only_those_in_front() {
        let budget = budget(100, 30, 3);
        let mut grown = budget.try_reserve(1, 10).unwrap().unwrap();
        grown.resize(150);
        let statistics = budget.statistics();
        assert_eq!((statistics.live_bytes, statistics.overdrawn_bytes), (150, 80));
        assert!(budget.try_reserve(0, 1).unwrap().is_none());
        assert!(budget.try_reserve(1, 1).unwrap().is_none());
        let last = budget.try_reserve(2, 30).unwrap();
        assert!(last.is_some(), "only what is behind it can make it go away");
        assert!(budget.try_reserve(2, 1).unwrap().is_none());
        // Shrinking pays back what was overdrawn first.
        grown.resize(70);
        assert!(budget.try_reserve(2, 1).unwrap().is_none());
        grown.resize(69);
        assert!(budget.try_reserve(2, 1).unwrap().is_some());
        drop((grown, last));
        assert_eq!(live(&budget), 0);
        assert_eq!(budget.statistics().peak_bytes, 180);
        assert!(budget.try_reserve(0, 30).unwrap().is_some());
    }

    #[test]
    fn an_absurd_size_does_not_overflow() {
        let budget = Budget::new(usize::MAX, None, 3).unwrap();
        let mut reservations =
            [0, 1, 2].map(|level| budget.try_reserve(level, 1).unwrap().unwrap());
        for reservation in &mut reservations {
            reservation.resize(usize::MAX);
        }
        assert!(!budget.would_grant(0, 1000));
        assert!(live(&budget) <= MOST);
        drop(reservations);
        assert_eq!(live(&budget), 0);
    }

    #[test]
    fn joined_leases_count_at_the_level_that_keeps_them() {
        let budget = budget(100, 30, 2);
        let calls = counted_releases(&budget);
        let mut batch = budget.try_reserve(1, 0).unwrap().unwrap();
        let mut items = [30, 30, 10].map(|bytes| budget.try_reserve(0, bytes).unwrap().unwrap());
        assert!(budget.try_reserve(0, 1).unwrap().is_none());
        batch.join(&mut items[2]).unwrap();
        assert_eq!((batch.bytes(), items[2].bytes(), live(&budget)), (10, 0, 70));
        assert_eq!(calls.count(), 1, "10 bytes of level 1's own share no longer burden level 0");
        assert!(budget.try_reserve(0, 10).unwrap().is_some());
        let error = batch.join(&mut items[0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert_eq!((batch.bytes(), items[0].bytes(), live(&budget)), (10, 30, 70));
        drop(items);
        assert_eq!(live(&budget), 10);
        drop(batch);
        assert_eq!(live(&budget), 0);
    }

    #[test]
    fn a_lease_is_split_into_parts_of_the_same_sum() {
        let budget = budget(100, 50, 1);
        let mut run = budget.try_reserve(0, 50).unwrap().unwrap();
        run.resize(120);
        let part = run.split(30);
        let rest = run.split(usize::MAX);
        assert_eq!((part.bytes(), rest.bytes(), run.bytes()), (30, 90, 0));
        drop(run);
        assert_eq!(live(&budget), 120);
        drop(part);
        assert_eq!(live(&budget), 90);
        drop(rest);
        assert_eq!((live(&budget), budget.state.lock().overdrawn), (0, 0));
    }

    #[test]
    fn waiting_is_timed_until_nobody_waits() {
        let budget = budget(100, 100, 1);
        let held = budget.try_reserve(0, 100).unwrap();
        assert_eq!(budget.statistics().waited, Duration::ZERO);
        assert!(budget.try_reserve(0, 1).unwrap().is_none());
        let since = Instant::now();
        while budget.statistics().waited < Duration::from_millis(2) {
            std::thread::yield_now();
        }
        assert!(since.elapsed() >= Duration::from_millis(1));
        drop(held);
        let waited = budget.statistics().waited;
        assert!(waited >= Duration::from_millis(2));
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(budget.statistics().waited, waited);
    }

    /// A step of a simulated pipeline.
    #[derive(Clone, Copy, Debug)]
    struct Step {
        at: usize,
        bytes: usize,
        grown: usize,
    }

    fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
        let step = (0usize..64, 0..=most, prop_oneof![3 => Just(0), 1 => 0..=most])
            .prop_map(|(at, bytes, grown)| Step { at, bytes, grown });
        proptest::collection::vec(step, 1..200)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_books_agree_after_any_sequence(
            levels in 1usize..5,
            spare in 0usize..300,
            steps in steps(40),
        ) {
            const HEADROOM: usize = 40;
            let limit = HEADROOM * levels + spare;
            let budget = budget(limit, HEADROOM, levels);
            let mut reservations: Vec<Reservation> = Vec::new();
            let mut peak = 0;
            for Step { at, bytes, grown } in steps {
                match at % 4 {
                    0 | 1 => {
                        let level = at / 4 % levels;
                        let live_before: usize = reservations.iter().map(Reservation::bytes).sum();
                        let simple = live_before + bytes <= limit - HEADROOM * (levels - 1 - level);
                        let hint = budget.would_grant(level, bytes);
                        let reservation = budget.try_reserve(level, bytes).unwrap();
                        prop_assert_eq!(hint, reservation.is_some() || bytes == 0);
                        prop_assert!(reservation.is_some() || !simple);
                        reservations.extend(reservation);
                    }
                    2 if !reservations.is_empty() => {
                        let at = at % reservations.len();
                        reservations[at].resize(bytes + grown);
                        prop_assert_eq!(reservations[at].bytes(), bytes + grown);
                    }
                    _ if !reservations.is_empty() => drop(reservations.swap_remove(at % reservations.len())),
                    _ => {}
                }
                let live: usize = reservations.iter().map(Reservation::bytes).sum();
                let overdrawn: usize = reservations.iter().map(|reservation| reservation.overdrawn).sum();
                peak = peak.max(live);
                prop_assert_eq!(budget.statistics().live_bytes, live);
                prop_assert_eq!(budget.statistics().peak_bytes, peak);
                prop_assert!(live <= limit + overdrawn, "{} of {}, {}", live, limit, overdrawn);
            }
            drop(reservations);
            prop_assert_eq!(live(&budget), 0);
        }

        /// Stages with queues of any length between them, each a step that makes one item of one,
        /// or (every third level, if `batches`) a batch of `batches` items kept back until then.
        #[test]
        fn a_pipeline_never_gets_stuck(
            levels in 1usize..6,
            spare in 0usize..100,
            batches in 0usize..4,
            steps in steps(36),
        ) {
            const HEADROOM: usize = 36;
            let limit = HEADROOM * levels + spare;
            let budget = budget(limit, HEADROOM, levels);
            let keeps = |level: usize| batches > 0 && level % 3 == 1;
            let mut queues: Vec<VecDeque<Reservation>> = (0..levels).map(|_| VecDeque::new()).collect();
            let mut kept: Vec<Option<(Reservation, usize)>> = (0..levels).map(|_| None).collect();
            // One step at `level`; `levels` is the consumer. Says whether it was possible.
            let mut advance = |level: usize, step: Step| -> Result<bool> {
                if level > 0 && queues[level - 1].is_empty() {
                    return Ok(false);
                }
                if level == levels {
                    queues[level - 1].pop_front();
                    return Ok(true);
                }
                if keeps(level) && level > 0 {
                    let Some(mut item) = queues[level - 1].pop_front() else { return Ok(false) };
                    let (mut batch, count) = match kept[level].take() {
                        Some(batch) => batch,
                        None => (budget.try_reserve(level, 0)?.unwrap(), 0),
                    };
                    if batch.join(&mut item).is_err() {
                        // Too large together: what was kept goes on without it, as would an error.
                        queues[level].push_back(batch);
                        batch = budget.try_reserve(level, 0)?.unwrap();
                        batch.join(&mut item)?;
                        kept[level] = Some((batch, 1));
                    } else if count + 1 == batches {
                        queues[level].push_back(batch);
                    } else {
                        kept[level] = Some((batch, count + 1));
                    }
                    return Ok(true);
                }
                let Some(mut reservation) = budget.try_reserve(level, step.bytes)? else {
                    return Ok(false);
                };
                if step.grown > 0 {
                    reservation.resize((step.bytes + step.grown).min(HEADROOM));
                }
                if level > 0 {
                    queues[level - 1].pop_front();
                }
                queues[level].push_back(reservation);
                Ok(true)
            };
            for step in steps {
                let wished = step.at % (levels + 1);
                // Where the step that was drawn is not possible, another one has to be.
                let mut went_on = advance(wished, step).unwrap();
                for level in (0..=levels).rev() {
                    went_on = went_on || advance(level, step).unwrap();
                }
                prop_assert!(went_on, "stuck: {:?}", budget);
            }
        }
    }
}
