//! The memory budget of a pipeline: reservations in bytes, and waiting for free memory.
//!
//! A pipeline has `limit` bytes for its items and `levels` measured stages in flow order: level 0
//! is nearest to the source, and the last level is nearest to the consumer. A stage reserves the
//! bytes of an output before it creates the output. The [`Reservation`] stays with the item.
//!
//! ```text
//!  source ──► level 0 ──► level 1 ──► level 2 ──► consumer
//!
//!             limit − 2h  limit − h   limit         h: the headroom
//! ```
//!
//! **Freedom from deadlock.** `headroom` is the largest size of one item. For each level,
//! `headroom` bytes are set aside that upstream levels cannot reserve. A reservation of `bytes` at
//! level `k` is granted if
//!
//! ```text
//!   live at levels ..= k  +  Σ max(live at m, headroom) for the levels m > k  +  bytes  ≤  limit
//! ```
//!
//! Therefore the granted bytes never exceed the limit in total; only growth (below) can exceed it.
//! When no item is left at the levels from `k` on, `headroom` bytes are free for level `k`. Memory
//! is freed at the consumer first and then level by level upstream, so each level can proceed in
//! turn. Giving priority to the oldest sample would not prevent deadlock: the oldest sample may be
//! queued after younger ones that wait for memory.
//!
//! **Branches.** The stage that joins branches may wait for an item of one branch while other
//! branches are ahead. Therefore a level on such a branch leaves the headroom of *all* other levels
//! of the branches free, including levels with lower numbers.
//!
//! The caller follows two rules. A stage that buffers items, for example to assemble a batch,
//! [joins](Reservation::join) their reservations into one reservation at the stage's level. The
//! joined reservation has at most `headroom` bytes. A stage that emits items in order reserves in
//! that order.
//!
//! **Growth.** If an item is larger than its reservation, the reservation grows immediately,
//! because the memory is already allocated. Growth beyond the bytes that the item's level could
//! still reserve is *overdrawn*. The item's level and upstream levels count overdrawn bytes and
//! wait. Downstream levels ignore overdrawn bytes, because only downstream levels can free them.
//! Other levels of the item's branches ignore them too.
//!
//! An item of an async stage whose size becomes known during its processing can wait for the growth
//! instead. The stage's oldest item in flight overdraws as soon as no other item of its level is
//! overdrawn. Otherwise younger items, which wait for the oldest one, could hold the memory that it
//! needs. Therefore such growth exceeds the limit by at most one item per level.
//!
//! **Waiting.** A refused request is recorded under the same lock under which memory is released,
//! so no wake-up is lost. A task is woken when its request fits. A callback wakes worker threads
//! when the smallest request that was refused to a worker at any level fits. Wakers and callback
//! are called outside the lock.

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
const NO_REQUEST: usize = usize::MAX;

/// Upper bound of a sum of reservations, so that adding up to four such sums cannot overflow.
const MAX_TOTAL: usize = usize::MAX / 4;

/// Usage of a pipeline's memory budget.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct MemoryStatistics {
    /// Limit for all items together.
    pub limit_bytes: usize,
    /// Limit for the reservation of one item. An item can later grow beyond this limit.
    pub headroom_bytes: usize,
    /// Bytes that are reserved now.
    pub live_bytes: usize,
    /// Maximum of `live_bytes` so far.
    pub peak_bytes: usize,
    /// Maximum of the bytes by which, at any one time, reservations together had grown beyond the
    /// memory that their stages could still reserve. A reservation grows if its item is larger than
    /// reserved. `peak_bytes` exceeds `limit_bytes` by at most this number.
    pub overdrawn_bytes: usize,
    /// Time during which at least one stage waited for memory.
    #[cfg_attr(feature = "serde", serde(rename = "waited_s", with = "crate::seconds"))]
    pub waited: Duration,
}

impl MemoryStatistics {
    /// Returns the statistics with the waiting time since `earlier`.
    pub(crate) fn since(self, earlier: MemoryStatistics) -> MemoryStatistics {
        MemoryStatistics { waited: self.waited.saturating_sub(earlier.waited), ..self }
    }
}

/// The memory budget of one pipeline; see the [module](self).
pub(crate) struct Budget {
    limit: usize,
    headroom: usize,
    /// Ranges of parallel levels, on branches that are joined downstream.
    branched: Vec<Range<usize>>,
    /// Bytes that each level can still reserve. Written under the lock; a read without the lock is
    /// a hint.
    available: Box<[AtomicUsize]>,
    /// The smallest request refused to a worker at each level since workers were last woken for
    /// that level. Written under the lock, read without the lock.
    refused: Box<[AtomicUsize]>,
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
    /// Start of the current waiting time.
    waiting_since: Option<Instant>,
    waited: Duration,
}

#[derive(Clone, Copy, Default)]
struct BudgetLevel {
    live: usize,
    /// The part of `live` by which reservations grew beyond the bytes that were available.
    overdrawn: usize,
}

/// A task whose request was refused.
struct Waiter {
    level: usize,
    bytes: usize,
    /// If set, the request also fits as soon as the level has only these overdrawn bytes, which
    /// belong to the waiting item.
    own_overdrawn: Option<usize>,
    waker: Waker,
}

/// Tasks and workers to wake after the lock is released.
#[must_use]
struct Wake {
    wakers: Vec<Waker>,
    workers: bool,
}

impl Budget {
    /// Creates a budget of `limit` bytes for `levels` stages. `headroom` is the largest size of an
    /// item in bytes. `None` means half of a level's even share, `limit / (2 * levels)`.
    ///
    /// # Errors
    /// `InvalidArgument` if `levels` or `headroom` is 0, or if the limit is less than one headroom
    /// per level, which could deadlock.
    #[cfg(test)]
    pub(crate) fn new(limit: usize, headroom: Option<usize>, levels: usize) -> Result<Arc<Self>> {
        Budget::branched(limit, headroom, levels, Vec::new())
    }

    /// Creates a budget in which the levels of each range are on parallel branches.
    ///
    /// # Errors
    /// The errors of [`new`](Budget::new).
    pub(crate) fn branched(
        limit: usize,
        headroom: Option<usize>,
        levels: usize,
        branched: Vec<Range<usize>>,
    ) -> Result<Arc<Self>> {
        let fault = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        if levels == 0 {
            return fault(
                "a memory budget needs at least one measured stage; add `measured` after a stage"
                    .into(),
            );
        }
        let limit = limit.min(MAX_TOTAL);
        let headroom = headroom.unwrap_or(limit / levels / 2);
        if headroom == 0 {
            return fault(format!(
                "a memory budget of {} is too small for {levels} measured stages; raise the budget",
                ByteSize(limit)
            ));
        }
        if headroom.checked_mul(levels).is_none_or(|least| least > limit) {
            return fault(format!(
                "a memory budget of {} is too small for {levels} measured stages with items of up to \
                 {} each; raise the budget, or lower the limit for one item",
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
            refused: atomics(NO_REQUEST),
            state: Mutex::new(BudgetState {
                levels: vec![BudgetLevel::default(); levels],
                ..BudgetState::default()
            }),
            on_release: OnceLock::new(),
        };
        budget.publish(&budget.state.lock());
        Ok(Arc::new(budget))
    }

    /// Sets the callback that wakes workers. A thread that releases memory calls `wake_workers`
    /// when a request that was refused to a worker may now fit. `wake_all` also calls
    /// `wake_workers`. The budget's lock is not held during the call. Only the first call of
    /// `set_on_release` has an effect.
    pub(crate) fn set_on_release(&self, wake_workers: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_release.set(Box::new(wake_workers));
    }

    /// Returns the largest size of an item in bytes.
    pub(crate) fn headroom(&self) -> usize {
        self.headroom
    }

    /// Checks whether an item of this size can ever be granted.
    ///
    /// # Errors
    /// `LimitExceeded` if `bytes` exceeds the headroom.
    pub(crate) fn check(&self, bytes: usize) -> Result<()> {
        if bytes <= self.headroom {
            return Ok(());
        }
        let message = format!(
            "the output needs {}, but one item may use at most {} of the memory budget of {}; raise \
             the budget",
            ByteSize(bytes),
            ByteSize(self.headroom),
            ByteSize(self.limit)
        );
        Err(Error::new(ErrorKind::LimitExceeded, message))
    }

    /// Reserves `bytes` if they are free. Otherwise returns `None`, and `on_release` is called when
    /// the request might fit.
    ///
    /// # Errors
    /// `LimitExceeded` if `bytes` exceeds the headroom.
    pub(crate) fn try_reserve(
        self: &Arc<Self>,
        level: usize,
        bytes: usize,
    ) -> Result<Option<Reservation>> {
        self.check(bytes)?;
        let mut state = self.state.lock();
        let reservation = self.grant(&mut state, level, bytes);
        if reservation.is_none() {
            self.record_refusal(&mut state, level, bytes);
        }
        Ok(reservation)
    }

    /// Returns whether [`try_reserve`](Budget::try_reserve) would probably return a reservation, or
    /// an error because `bytes` exceeds the headroom.
    ///
    /// If it returns false, `on_release` is called when the result may have changed. Therefore a
    /// worker that announces itself, calls this method, and then sleeps misses no wake-up. The
    /// method takes the lock only if `bytes` seem unavailable, and no refusal of at most `bytes` is
    /// recorded for the level.
    pub(crate) fn would_grant(&self, level: usize, bytes: usize) -> bool {
        let level = self.clamp(level);
        // A request that is too large fails immediately in `try_reserve`.
        if bytes > self.headroom || bytes <= self.room(level) {
            return true;
        }
        // Already recorded: the thread that clears the record then calls `on_release`, and sees
        // that the worker has announced itself.
        if self.refused[level].load(Ordering::Relaxed) <= bytes {
            return false;
        }
        let mut state = self.state.lock();
        let fits = bytes <= self.room(level);
        if !fits {
            self.record_refusal(&mut state, level, bytes);
        }
        fits
    }

    /// Reserves `bytes` if they are free. Otherwise the task is woken when the request might fit.
    /// If the task is dropped, its waker is called once without effect.
    ///
    /// # Errors
    /// `LimitExceeded` if `bytes` exceeds the headroom.
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
        state.wait(level, bytes, None, cx);
        Poll::Pending
    }

    /// Wakes all waiting tasks and workers, for example when the pipeline ends.
    pub(crate) fn wake_all(&self) {
        let mut state = self.state.lock();
        let wakers = state.waiters.drain(..).map(|waiter| waiter.waker).collect();
        for refused in &self.refused {
            refused.store(NO_REQUEST, Ordering::Relaxed);
        }
        state.stop_clock();
        drop(state);
        self.wake(Wake { wakers, workers: true });
    }

    /// Returns the usage of the budget.
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

    /// Clamps a level to the last one.
    fn clamp(&self, level: usize) -> usize {
        debug_assert!(level < self.available.len(), "invalid level {level}");
        level.min(self.available.len() - 1)
    }

    /// Returns how much each level can reserve, from the first to the last.
    fn rooms<'a>(&'a self, state: &'a BudgetState) -> impl Iterator<Item = usize> + 'a {
        let granted = |level: &BudgetLevel| level.live - level.overdrawn;
        let own = |level: &BudgetLevel| level.live.max(self.headroom);
        // Overdrawn memory of a parallel level does not count: that memory cannot drain before the
        // branches are joined, so counting it could block another branch.
        let parallel = move |level: &BudgetLevel| granted(level).max(self.headroom);
        let mut behind: usize = state.levels.iter().map(own).sum();
        let mut before = 0;
        // For the range of parallel levels that contains the current level: the end of the range,
        // and the bytes reserved for the range and the levels before it.
        let (mut end, mut kept) = (0, 0);
        state.levels.iter().enumerate().map(move |(at, level)| {
            if at >= end {
                let branch = self.branched.iter().find(|range| range.contains(&at));
                let range = branch.cloned().unwrap_or(at..at + 1);
                end = range.end;
                let inside = &state.levels[range];
                behind -= inside.iter().map(own).sum::<usize>();
                kept = before + inside.iter().map(parallel).sum::<usize>();
                before += inside.iter().map(granted).sum::<usize>();
            }
            self.limit.saturating_sub(kept - parallel(level) + level.live + behind)
        })
    }

    /// Recomputes the available bytes after a change of `state`.
    fn publish(&self, state: &BudgetState) {
        for (available, room) in self.available.iter().zip(self.rooms(state)) {
            available.store(room, Ordering::Relaxed);
        }
    }

    /// Returns the bytes that a level can reserve; exact if the caller holds the lock.
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

    /// Records that a worker was refused.
    fn record_refusal(&self, state: &mut BudgetState, level: usize, bytes: usize) {
        let refused = &self.refused[self.clamp(level)];
        refused.store(refused.load(Ordering::Relaxed).min(bytes), Ordering::Relaxed);
        state.waiting_since.get_or_insert_with(Instant::now);
    }

    /// After memory was released or moved downstream: finds the tasks and workers whose requests
    /// fit.
    fn find_waiters(&self, state: &mut BudgetState) -> Wake {
        self.publish(state);
        let mut wake = Wake { wakers: Vec::new(), workers: false };
        let mut waiting = false;
        if state.waiting_since.is_none() {
            return wake;
        }
        for (refused, available) in self.refused.iter().zip(&self.available) {
            let bytes = refused.load(Ordering::Relaxed);
            if bytes == NO_REQUEST {
                continue;
            }
            if bytes <= available.load(Ordering::Relaxed) {
                refused.store(NO_REQUEST, Ordering::Relaxed);
                wake.workers = true;
            } else {
                waiting = true;
            }
        }
        // Wakes every task whose request fits alone, even if not all fit together: a woken task may
        // have been dropped.
        let BudgetState { levels, waiters, .. } = state;
        let could_go_on = |waiter: &mut Waiter| {
            waiter.bytes <= self.room(waiter.level)
                || waiter.own_overdrawn == Some(levels[waiter.level].overdrawn)
        };
        wake.wakers.extend(waiters.extract_if(.., could_go_on).map(|waiter| waiter.waker));
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

    /// Records a task whose request was refused.
    fn wait(&mut self, level: usize, bytes: usize, own_overdrawn: Option<usize>, cx: &Context<'_>) {
        self.waiting_since.get_or_insert_with(Instant::now);
        let mut waiters = self.waiters.iter_mut();
        match waiters.find(|it| it.level == level && it.waker.will_wake(cx.waker())) {
            Some(known) => {
                known.bytes = known.bytes.min(bytes);
                known.own_overdrawn = known.own_overdrawn.or(own_overdrawn);
            }
            None => {
                let waker = cx.waker().clone();
                self.waiters.push(Waiter { level, bytes, own_overdrawn, waker });
            }
        }
    }

    fn stop_clock(&mut self) {
        if let Some(since) = self.waiting_since.take() {
            self.waited += since.elapsed();
        }
    }
}

/// A reserved number of bytes, stored with its item. Dropping the reservation releases the bytes.
#[must_use = "dropping a reservation releases its bytes"]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    level: usize,
    bytes: usize,
    /// The part of `bytes` by which the reservation grew beyond the bytes that were available.
    overdrawn: usize,
}

impl Reservation {
    /// Returns the reserved bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the reservation to `bytes`, the actual size of the item. Excess is released. Growth
    /// is counted even if the limit is exceeded.
    pub(crate) fn resize(&mut self, bytes: usize) {
        if bytes == self.bytes {
            return;
        }
        let budget = &self.budget;
        let mut state = budget.state.lock();
        let wake = if bytes > self.bytes {
            let growth = (bytes - self.bytes).min(MAX_TOTAL.saturating_sub(state.live));
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

    /// Grows the reservation to `bytes` if they are free, or if the item may overdraw and no other
    /// item of its level is overdrawn. Otherwise the task is woken when the growth might fit.
    pub(crate) fn poll_grow(
        &mut self,
        bytes: usize,
        may_overdraw: bool,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let Some(growth) = bytes.checked_sub(self.bytes).filter(|growth| *growth > 0) else {
            return Poll::Ready(());
        };
        let budget = &self.budget;
        let mut state = budget.state.lock();
        let growth = growth.min(MAX_TOTAL.saturating_sub(state.live));
        let overdrawn = growth.saturating_sub(budget.room(self.level));
        let is_alone = state.levels[self.level].overdrawn == self.overdrawn;
        if overdrawn > 0 && !(may_overdraw && is_alone) {
            state.wait(self.level, growth, may_overdraw.then_some(self.overdrawn), cx);
            return Poll::Pending;
        }
        state.add(self.level, growth, overdrawn);
        budget.publish(&state);
        self.bytes += growth;
        self.overdrawn += overdrawn;
        Poll::Ready(())
    }

    /// Takes over all bytes of `other`, which has the same budget and is at this level or upstream.
    /// A stage that buffers items starts with a reservation of 0 bytes.
    ///
    /// # Errors
    /// `LimitExceeded` if the sum exceeds the headroom; both reservations are then unchanged.
    pub(crate) fn join(&mut self, other: &mut Reservation) -> Result<()> {
        debug_assert!(
            Arc::ptr_eq(&self.budget, &other.budget),
            "the reservations belong to different budgets"
        );
        debug_assert!(
            other.level <= self.level,
            "the other reservation belongs to a downstream level"
        );
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

    /// Splits off a reservation of up to `bytes`, for items whose memory was reserved together.
    /// Takes no lock.
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
    fn a_level_cannot_take_the_headroom_of_downstream_levels() {
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
    fn memory_within_a_levels_headroom_is_not_counted_twice() {
        let budget = budget(100, 20, 3);
        let _last = budget.try_reserve(2, 20).unwrap().unwrap();
        let first = [20, 20, 20].map(|bytes| budget.try_reserve(0, bytes).unwrap());
        assert!(first.iter().all(Option::is_some));
        assert!(budget.try_reserve(0, 1).unwrap().is_none());
    }

    #[test]
    fn an_item_larger_than_the_headroom_is_an_error() {
        let budget = Budget::new(8 << 20, None, 2).unwrap();
        assert_eq!(budget.headroom(), 2 << 20);
        assert!(budget.would_grant(0, 3 << 20), "an oversized request fails without waiting");
        let error = budget.try_reserve(0, 3 << 20).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
        assert_eq!(
            error.message(),
            "the output needs 3 MiB, but one item may use at most 2 MiB of the memory budget of 8 MiB; \
             raise the budget"
        );
        let waker = Waker::noop();
        let polled = budget.poll_reserve(1, usize::MAX, &mut Context::from_waker(waker));
        assert!(matches!(polled, Poll::Ready(Err(e)) if e.kind() == ErrorKind::LimitExceeded));
        assert!(budget.try_reserve(1, 2 << 20).unwrap().is_some());
    }

    #[test]
    fn a_budget_smaller_than_one_headroom_per_level_is_an_error() {
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
    fn workers_are_woken_only_when_a_refused_request_fits() {
        let budget = budget(100, 50, 2);
        let calls = counted_releases(&budget);
        let mut held = budget.try_reserve(0, 50).unwrap().unwrap();
        held.resize(45);
        assert_eq!(calls.count(), 0, "no worker is woken if no request was refused");
        assert!(budget.try_reserve(0, 20).unwrap().is_none());
        assert!(!budget.would_grant(0, 10));
        held.resize(41);
        assert_eq!(calls.count(), 0, "9 bytes are too few");
        held.resize(40);
        assert_eq!(calls.count(), 1, "10 bytes are enough for the smallest refused request");
        held.resize(20);
        assert_eq!(calls.count(), 1, "a worker is woken again only after another refusal");
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
        let waiting = budget.state.lock().waiters.len();
        assert_eq!(waiting, 2, "a task that polls twice is listed once");
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
    fn wake_all_wakes_tasks_and_workers() {
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
        assert!(taken.lock().take().is_some(), "the callback runs outside the lock");
    }

    #[test]
    fn growth_counts_immediately_and_blocks_only_upstream_levels() {
        let budget = budget(100, 30, 3);
        let mut grown = budget.try_reserve(1, 10).unwrap().unwrap();
        grown.resize(150);
        let statistics = budget.statistics();
        assert_eq!((statistics.live_bytes, statistics.overdrawn_bytes), (150, 80));
        assert!(budget.try_reserve(0, 1).unwrap().is_none());
        assert!(budget.try_reserve(1, 1).unwrap().is_none());
        let last = budget.try_reserve(2, 30).unwrap();
        assert!(last.is_some(), "growth at level 1 does not block level 2");
        assert!(budget.try_reserve(2, 1).unwrap().is_none());
        // Shrinking reduces the overdrawn part first.
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
    fn a_huge_size_does_not_overflow() {
        let budget = Budget::new(usize::MAX, None, 3).unwrap();
        let mut reservations =
            [0, 1, 2].map(|level| budget.try_reserve(level, 1).unwrap().unwrap());
        for reservation in &mut reservations {
            reservation.resize(usize::MAX);
        }
        assert!(!budget.would_grant(0, 1000));
        assert!(live(&budget) <= MAX_TOTAL);
        drop(reservations);
        assert_eq!(live(&budget), 0);
    }

    #[test]
    fn joined_reservations_count_at_the_level_of_the_target() {
        let budget = budget(100, 30, 2);
        let calls = counted_releases(&budget);
        let mut batch = budget.try_reserve(1, 0).unwrap().unwrap();
        let mut items = [30, 30, 10].map(|bytes| budget.try_reserve(0, bytes).unwrap().unwrap());
        assert!(budget.try_reserve(0, 1).unwrap().is_none());
        batch.join(&mut items[2]).unwrap();
        assert_eq!((batch.bytes(), items[2].bytes(), live(&budget)), (10, 0, 70));
        assert_eq!(calls.count(), 1, "10 bytes now use the headroom of level 1");
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
    fn a_reservation_is_split_into_parts_of_the_same_sum() {
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
    fn waiting_time_ends_when_no_request_waits() {
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
        fn the_counters_agree_after_any_sequence(
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

        /// Stages with unbounded queues between them. Each step makes one item of one, or (every
        /// third level, if `batches` > 0) a batch of `batches` buffered items.
        #[test]
        fn a_pipeline_never_deadlocks(
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
            // Advances `level`; `levels` is the consumer. Returns whether that was possible.
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
                        // Too large together: the buffered items are sent without the new one, as
                        // after an error.
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
                let chosen = step.at % (levels + 1);
                // If the drawn step is impossible, some other step must be possible.
                let mut progressed = advance(chosen, step).unwrap();
                for level in (0..=levels).rev() {
                    progressed = progressed || advance(level, step).unwrap();
                }
                prop_assert!(progressed, "stuck: {:?}", budget);
            }
        }
    }
}
