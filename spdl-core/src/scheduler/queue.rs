//! Bounded queues between stages: never blocking for workers, with wakers for those who wait.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::signal::Signal;
use crate::item::Item;
use crate::observe::statistics::{QueueMeter, QueueSnapshot};
use crate::source::sample::SampleId;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A bounded queue of items on their way from one stage to the next, and of the ends of epochs
/// between them.
///
/// Room is *reserved before* an item is taken from the queue in front, so what has been started
/// can always be put down. Items are numbered as they are taken out, under the lock that takes
/// them: an order that is to be restored later must begin there (numbers given earlier, by the
/// producer, deadlock as soon as later items fill the queue first).
///
/// **The end of an epoch** takes a place like an item does. Nothing behind it can be taken out
/// before it has been taken out itself.
///
/// **A queue that was full** asks for more only when it has drained by half (by one, where it is
/// short; by [`MOST_DRAINED`], where it is long). A sleep and a wake-up cost more than many small items.
pub(crate) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    /// The workers that put items in; `None` where a task does.
    putters: Option<Arc<Signal>>,
    /// The workers that take items out; unset where a task or the consumer does.
    takers: OnceLock<Arc<Signal>>,
    /// What `state` says, readable without its lock: a hint for workers looking for work.
    available: AtomicUsize,
    at_end: AtomicBool,
    has_room: AtomicBool,
    finished: AtomicBool,
    shut: AtomicBool,
}

struct QueueState<T> {
    capacity: usize,
    /// The capacity is never made less.
    least: usize,
    items: VecDeque<Item<T>>,
    /// The ends of epochs: after how many items ever put in, and which epoch.
    ends: VecDeque<(u64, u64)>,
    /// Places promised to items that are being made.
    reserved: usize,
    /// How many items were ever put in.
    put: u64,
    /// How many items were ever taken out: the number of the next one.
    taken: u64,
    /// It was full, and has not drained far enough since.
    draining: bool,
    /// A worker waits for a place beyond the promised ones.
    wanted_beyond: bool,
    /// No item will come any more.
    closed: bool,
    /// Nobody takes items any more; what still comes is dropped.
    shut: bool,
    receiver: Option<Waker>,
    sender: Option<Waker>,
    meter: QueueMeter,
}

/// A longer queue that was full asks for more when so many have been taken: more at once would come in
/// bursts, as requests to a store, and what is read be cold in the caches when its turn comes.
const MOST_DRAINED: usize = 32;

/// Who must be woken after a change of a queue. They are woken when this is dropped: not under a
/// lock, since the woken thread may run at once, in place of this one.
#[must_use = "wakes when dropped"]
#[derive(Default)]
pub(crate) struct Wakes<'a> {
    receiver: Option<Waker>,
    sender: Option<Waker>,
    takers: Option<&'a Signal>,
    putters: Option<&'a Signal>,
    all: bool,
}

impl Drop for Wakes<'_> {
    fn drop(&mut self) {
        for task in [self.receiver.take(), self.sender.take()].into_iter().flatten() {
            task.wake();
        }
        for signal in [self.takers, self.putters].into_iter().flatten() {
            if self.all {
                signal.wake_all();
            } else {
                // One is enough: a worker that was woken wakes another where there is more to do.
                signal.wake_one();
            }
        }
    }
}

/// What came out of a queue.
#[derive(Debug)]
pub(crate) enum Next<T> {
    Item(Item<T>),
    /// The end of this epoch.
    EpochEnd(u64),
    /// Nothing will come any more.
    Closed,
}

impl<T> QueueState<T> {
    fn room(&self) -> usize {
        self.capacity.saturating_sub(self.items.len() + self.ends.len() + self.reserved)
    }

    /// How many items can be taken out before the next end of an epoch.
    fn available(&self) -> usize {
        match self.ends.front() {
            Some(&(after, _)) => (after - self.taken) as usize,
            None => self.items.len(),
        }
    }

    fn at_end(&self) -> bool {
        self.ends.front().is_some_and(|&(after, _)| after == self.taken)
    }

    fn is_empty(&self) -> bool {
        self.items.is_empty() && self.ends.is_empty()
    }

    /// At how many items a queue that was full has drained far enough.
    fn low_water(&self) -> usize {
        let drained = if self.capacity < 16 { 1 } else { self.capacity / 2 };
        self.capacity - drained.min(MOST_DRAINED)
    }

    /// Counts the time since the last change. Comes before every change.
    fn measure(&mut self) {
        let (len, full) = (self.items.len(), self.room() == 0);
        self.meter.touch(len, full, self.closed);
    }
}

impl<T> Queue<T> {
    /// A queue for `capacity` items (at least one) that workers who sleep on `putters` fill.
    pub(crate) fn new(capacity: usize, putters: Option<Arc<Signal>>) -> Self {
        let capacity = capacity.max(1);
        Queue {
            state: Mutex::new(QueueState {
                capacity,
                least: 1,
                items: VecDeque::with_capacity(capacity.min(1024)),
                ends: VecDeque::new(),
                reserved: 0,
                put: 0,
                taken: 0,
                draining: false,
                wanted_beyond: false,
                closed: false,
                shut: false,
                receiver: None,
                sender: None,
                meter: QueueMeter::default(),
            }),
            putters,
            takers: OnceLock::new(),
            available: AtomicUsize::new(0),
            at_end: AtomicBool::new(false),
            has_room: AtomicBool::new(true),
            finished: AtomicBool::new(false),
            shut: AtomicBool::new(false),
        }
    }

    /// Says which workers take items out.
    pub(crate) fn set_takers(&self, takers: &Arc<Signal>) {
        let _ = self.takers.set(Arc::clone(takers));
    }

    /// How many items wait in front of the next end of an epoch, as of a moment ago.
    pub(crate) fn available(&self) -> usize {
        self.available.load(Ordering::Acquire)
    }

    /// Whether the end of an epoch comes next, as of a moment ago.
    pub(crate) fn at_end(&self) -> bool {
        self.at_end.load(Ordering::Acquire)
    }

    /// Whether it is worth while to make more, as of a moment ago.
    pub(crate) fn has_room(&self) -> bool {
        self.has_room.load(Ordering::Acquire)
    }

    /// Whether the last item has been taken out. Once true, it stays so.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::SeqCst)
    }

    /// Whether nobody takes items any more. Once true, it stays so.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::SeqCst)
    }

    /// Promises up to `wanted` places; returns how many.
    pub(crate) fn reserve(&self, wanted: usize) -> usize {
        let mut state = self.state.lock();
        let granted = wanted.min(state.room());
        self.take_room(&mut state, granted);
        granted
    }

    /// Like [`reserve`](Self::reserve), but counts only places that hold items. For a stage that
    /// makes many items from one: the places may all be promised to items that wait for this one.
    pub(crate) fn reserve_beyond(&self, wanted: usize) -> usize {
        let mut state = self.state.lock();
        let held = state.items.len() + state.ends.len();
        let granted = wanted.min(state.capacity.saturating_sub(held));
        self.take_room(&mut state, granted);
        granted
    }

    /// Whether [`reserve_beyond`](Self::reserve_beyond) would give a place. Where it would not, the
    /// workers that put items in are woken when it would.
    pub(crate) fn has_place_beyond(&self) -> bool {
        let mut state = self.state.lock();
        let has_place = state.items.len() + state.ends.len() < state.capacity;
        state.wanted_beyond |= !has_place;
        has_place
    }

    /// Promises up to `wanted` places, at least one; wakes the task when it is worth while to ask
    /// again. Where the queue is shut it promises nothing.
    pub(crate) fn poll_reserve(&self, wanted: usize, cx: &Context<'_>) -> Poll<usize> {
        let mut state = self.state.lock();
        let free = if state.draining { 0 } else { state.room() };
        let granted = if state.shut { 0 } else { wanted.min(free) };
        if granted == 0 && !state.shut {
            keep_waker(&mut state.sender, cx);
            self.take_room(&mut state, 0);
            return Poll::Pending;
        }
        self.take_room(&mut state, granted);
        Poll::Ready(granted)
    }

    fn take_room(&self, state: &mut QueueState<T>, places: usize) {
        state.measure();
        state.reserved += places;
        self.publish(state);
    }

    /// Whether nobody takes items any more; where that is not so, wakes the task that puts items in
    /// when it is.
    pub(crate) fn poll_shut(&self, cx: &Context<'_>) -> bool {
        let mut state = self.state.lock();
        if !state.shut {
            keep_waker(&mut state.sender, cx);
        }
        state.shut
    }

    /// Gives promised places back unused.
    pub(crate) fn release(&self, places: usize) {
        if places > 0 {
            drop(self.push(places, std::iter::empty()));
        }
    }

    /// Puts items down and gives back `reserved` promised places, as many as there are items or
    /// more. Items for a queue that was shut are dropped.
    pub(crate) fn push(&self, reserved: usize, items: impl Iterator<Item = Item<T>>) -> Wakes<'_> {
        let mut state = self.state.lock();
        state.measure();
        state.reserved -= reserved;
        if state.shut {
            self.publish(&mut state);
            drop(state);
            drop_all(items);
            return Wakes::default();
        }
        let before = state.items.len();
        state.items.extend(items);
        let new = state.items.len() - before;
        state.put += new as u64;
        state.meter.put(new as u64);
        self.changed(state, new > 0)
    }

    /// Puts the end of an epoch down, in a place that was promised.
    pub(crate) fn push_end(&self, epoch: u64) -> Wakes<'_> {
        let mut state = self.state.lock();
        state.measure();
        state.reserved -= 1;
        if !state.shut {
            let after = state.put;
            state.ends.push_back((after, epoch));
        }
        self.changed(state, true)
    }

    /// Publishes a change, and says who must know of it.
    fn changed(
        &self,
        mut state: crate::sync::MutexGuard<'_, QueueState<T>>,
        something_new: bool,
    ) -> Wakes<'_> {
        let mut room_again = self.publish(&mut state);
        if state.wanted_beyond && state.items.len() + state.ends.len() < state.capacity {
            state.wanted_beyond = false;
            room_again = true;
        }
        // Whoever sleeps until the end must learn of it from whoever brought it about.
        let finished = state.closed && state.is_empty();
        let receiver = if something_new || finished { state.receiver.take() } else { None };
        let sender = if room_again { state.sender.take() } else { None };
        drop(state);
        Wakes {
            receiver,
            sender,
            takers: self.takers.get().filter(|_| something_new || finished).map(|signal| &**signal),
            putters: self.putters.as_deref().filter(|_| room_again),
            all: finished,
        }
    }

    /// Takes out up to `most` items of one epoch, oldest first, and returns the number of the first.
    pub(crate) fn pop(&self, most: usize, into: &mut Vec<Item<T>>) -> Option<(u64, Wakes<'_>)> {
        let mut state = self.state.lock();
        let count = most.min(state.available());
        if count == 0 {
            return None;
        }
        state.measure();
        into.extend(state.items.drain(..count));
        let first = state.taken;
        state.taken += count as u64;
        state.meter.got(count as u64);
        // Behind the last item there may be the end of the epoch.
        let news = state.at_end();
        Some((first, self.changed(state, news)))
    }

    /// Takes out the end of an epoch, where it comes next.
    pub(crate) fn pop_end(&self) -> Option<(u64, Wakes<'_>)> {
        let mut state = self.state.lock();
        if !state.at_end() {
            return None;
        }
        state.measure();
        let (_, epoch) = state.ends.pop_front()?;
        let news = !state.items.is_empty() || state.at_end();
        Some((epoch, self.changed(state, news)))
    }

    /// Which epoch ends next, where the end of one comes next.
    pub(crate) fn front_end(&self) -> Option<u64> {
        let state = self.state.lock();
        if state.at_end() { state.ends.front().map(|&(_, epoch)| epoch) } else { None }
    }

    /// Who the next item is.
    pub(crate) fn front_id(&self) -> Option<SampleId> {
        let state = self.state.lock();
        if state.at_end() { None } else { state.items.front().map(|item| item.header.id) }
    }

    /// Takes out an item or the end of an epoch. Wakes the task when there is one.
    pub(crate) fn poll_next(&self, cx: &Context<'_>) -> Poll<Next<T>> {
        let mut state = self.state.lock();
        let next = if state.at_end() {
            state.measure();
            match state.ends.pop_front() {
                Some((_, epoch)) => Next::EpochEnd(epoch),
                None => return Poll::Pending,
            }
        } else if !state.items.is_empty() {
            state.measure();
            state.taken += 1;
            state.meter.got(1);
            match state.items.pop_front() {
                Some(item) => Next::Item(item),
                None => return Poll::Pending,
            }
        } else if state.closed {
            return Poll::Ready(Next::Closed);
        } else {
            keep_waker(&mut state.receiver, cx);
            return Poll::Pending;
        };
        drop(self.changed(state, false));
        Poll::Ready(next)
    }

    /// Takes out up to `most` items of one epoch, or the end of one. Returns what came beside the
    /// items, if anything; wakes the task when there is something.
    pub(crate) fn poll_run(
        &self,
        most: usize,
        into: &mut VecDeque<Item<T>>,
        cx: &Context<'_>,
    ) -> Poll<Option<Next<T>>> {
        let mut state = self.state.lock();
        let count = most.min(state.available());
        if count <= 1 {
            drop(state);
            return self.poll_next(cx).map(|next| match next {
                Next::Item(item) => {
                    into.push_back(item);
                    None
                }
                other => Some(other),
            });
        }
        state.measure();
        into.extend(state.items.drain(..count));
        state.taken += count as u64;
        state.meter.got(count as u64);
        drop(self.changed(state, false));
        Poll::Ready(None)
    }

    /// Says that no more items will come. Those that wait can still be taken out.
    pub(crate) fn close(&self) {
        self.end(false);
    }

    /// Says that nobody takes items any more: what waits and what still comes is dropped, and
    /// whoever fills the queue should end as well.
    pub(crate) fn shut(&self) {
        self.end(true);
    }

    fn end(&self, shut: bool) {
        let mut state = self.state.lock();
        state.measure();
        state.closed = true;
        let dropped = if shut {
            state.shut = true;
            state.ends.clear();
            state.taken += state.items.len() as u64;
            std::mem::take(&mut state.items)
        } else {
            VecDeque::new()
        };
        self.publish(&mut state);
        let (receiver, sender) = (state.receiver.take(), state.sender.take());
        drop(state);
        drop(Wakes {
            receiver,
            sender,
            takers: self.takers.get().map(|signal| &**signal),
            putters: self.putters.as_deref(),
            all: true,
        });
        drop_all(dropped);
    }

    /// Updates the hints after a change of `state`. Returns whether there is room again after the
    /// queue was full.
    fn publish(&self, state: &mut QueueState<T>) -> bool {
        let room = state.room() > 0;
        let enough = state.items.len() <= state.low_water();
        let room_again = state.draining && room && enough;
        state.draining = if state.draining { !room_again } else { !room };
        self.available.store(state.available(), Ordering::Release);
        self.at_end.store(state.at_end(), Ordering::Release);
        self.has_room.store(!state.draining, Ordering::Release);
        self.shut.store(state.shut, Ordering::SeqCst);
        self.finished.store(state.closed && state.is_empty(), Ordering::SeqCst);
        room_again
    }

    /// Makes it a queue for `capacity` items, or the least that it must have room for. What is in it
    /// beyond that stays.
    pub(crate) fn resize(&self, capacity: usize) {
        let mut state = self.state.lock();
        state.measure();
        state.capacity = capacity.max(state.least);
        drop(self.changed(state, false));
    }

    /// For how long it was empty, as long as items could still come.
    pub(crate) fn empty_time(&self) -> Duration {
        let mut state = self.state.lock();
        state.measure();
        state.meter.empty_time()
    }

    /// Says for how many items it must have room, whoever resizes it: at least one.
    pub(crate) fn set_least(&self, least: usize) {
        let mut state = self.state.lock();
        state.measure();
        state.least = least.max(1);
        state.capacity = state.capacity.max(state.least);
        drop(self.changed(state, false));
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({})", self.available())
    }
}

/// Drops items that nobody wants, without any lock, and one by one: a destructor may be anything,
/// and one that panics must not keep the others, or a wake-up, from their turn. The panic has been
/// printed; the items are gone either way.
pub(crate) fn drop_all<T>(items: impl IntoIterator<Item = T>) {
    for item in items {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(item)));
    }
}

fn keep_waker(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) if waker.will_wake(cx.waker()) => {}
        _ => *place = Some(cx.waker().clone()),
    }
}

/// What the pipeline does with any of its queues, whatever they hold.
pub(crate) trait AnyQueue: Send + Sync {
    /// Ends all work through this queue: waiters wake, what waits and what still comes is dropped.
    fn shut(&self);
    /// Starts the clock.
    fn start_meter(&self);
    fn raw(&self) -> QueueSnapshot;
}

impl<T: Send> AnyQueue for Queue<T> {
    fn shut(&self) {
        self.end(true);
    }

    fn start_meter(&self) {
        self.state.lock().meter.start(Instant::now());
    }

    fn raw(&self) -> QueueSnapshot {
        let mut state = self.state.lock();
        state.measure();
        state.meter.raw(state.capacity, state.items.len(), state.taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_was_full_asks_for_more_once_half_of_it_or_32_were_taken() {
        let taken = |capacity| capacity - Queue::<u8>::new(capacity, None).state.lock().low_water();
        assert_eq!([1, 15, 16, 40, 64, 240].map(taken), [1, 1, 8, 20, 32, 32]);
    }
}
