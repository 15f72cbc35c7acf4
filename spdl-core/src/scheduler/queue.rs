//! Bounded queues between stages: non-blocking for workers, with wakers for tasks.

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

/// A bounded queue of items and of markers for ends of epochs, from one stage to the next.
///
/// A stage *reserves* room in its output queue before it takes an item from its input queue, so a
/// finished item always finds room. Items are numbered when they are taken out, under the same
/// lock. A reorder buffer uses these numbers. (If the producer numbered the items, later items
/// could fill the queue before an earlier one, and the pipeline would deadlock.)
///
/// **The end of an epoch** occupies one place in the queue, like an item. It is taken out before
/// all items that follow it.
///
/// **Hysteresis.** A queue that was full wakes its producers, and lets tasks reserve places, only
/// after half of its capacity, or [`MAX_DRAINED`] items if that is fewer, has been taken out. If
/// the capacity is below 16, one item is enough. A worker that is awake can
/// [`reserve`](Queue::reserve) places before. Hysteresis saves sleeps and wake-ups, which take
/// longer than many small items.
pub(crate) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    /// The workers that put items in; `None` if a task does.
    putters: Option<Arc<Signal>>,
    /// The workers that take items out; unset if a task or the consumer does.
    takers: OnceLock<Arc<Signal>>,
    /// Copies of `state` that are readable without its lock: hints for workers that look for work.
    available: AtomicUsize,
    at_end: AtomicBool,
    has_room: AtomicBool,
    finished: AtomicBool,
    shut: AtomicBool,
}

struct QueueState<T> {
    capacity: usize,
    /// The minimum capacity: [`Queue::resize`] sets no smaller one.
    least: usize,
    items: VecDeque<Item<T>>,
    /// Ends of epochs: the number of items put in before each, and the epoch.
    ends: VecDeque<(u64, u64)>,
    /// Places reserved for items in flight.
    reserved: usize,
    /// Number of items put in since the start.
    put: u64,
    /// Number of items taken out since the start; also the number of the next item.
    taken: u64,
    /// Whether the queue was full and has not yet drained to the low-water mark.
    draining: bool,
    /// Whether a worker waits in [`Queue::has_place_beyond`] for a free place.
    waiter_beyond: bool,
    /// The producer has finished.
    closed: bool,
    /// The consumer has left; items are dropped.
    shut: bool,
    receiver: Option<Waker>,
    sender: Option<Waker>,
    meter: QueueMeter,
}

/// A full queue wakes its producers after at most this many items were taken out. A larger number
/// would cause bursts of requests to a store, and data that is no longer in the CPU caches when it
/// is processed.
const MAX_DRAINED: usize = 32;

/// Threads and tasks to wake after a change of a queue. `drop` wakes them, after the lock is
/// released, because the woken thread may preempt this thread.
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
                // A woken worker wakes another one if there is more work.
                signal.wake_one();
            }
        }
    }
}

/// An item or event taken from a queue.
#[derive(Debug)]
pub(crate) enum Next<T> {
    Item(Item<T>),
    /// The end of this epoch.
    EpochEnd(u64),
    /// The queue is closed and empty.
    Closed,
}

impl<T> QueueState<T> {
    fn room(&self) -> usize {
        self.capacity.saturating_sub(self.items.len() + self.ends.len() + self.reserved)
    }

    /// How many items precede the next end of an epoch.
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

    /// Low-water mark: a full queue that has drained to this length wakes its producers.
    fn low_water(&self) -> usize {
        let drained = if self.capacity < 16 { 1 } else { self.capacity / 2 };
        self.capacity - drained.min(MAX_DRAINED)
    }

    /// Counts the time since the last change. Called before every change.
    fn measure(&mut self) {
        let (len, full) = (self.items.len(), self.room() == 0);
        self.meter.touch(len, full, self.closed);
    }
}

impl<T> Queue<T> {
    /// A queue for `capacity` items, at least one, which workers that sleep on `putters` fill.
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
                waiter_beyond: false,
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

    /// Sets which workers take items out.
    pub(crate) fn set_takers(&self, takers: &Arc<Signal>) {
        let _ = self.takers.set(Arc::clone(takers));
    }

    /// How many items precede the next end of an epoch; may be outdated.
    pub(crate) fn available(&self) -> usize {
        self.available.load(Ordering::Acquire)
    }

    /// Whether the end of an epoch is next; may be outdated.
    pub(crate) fn at_end(&self) -> bool {
        self.at_end.load(Ordering::Acquire)
    }

    /// Whether the queue accepts items; may be outdated.
    pub(crate) fn has_room(&self) -> bool {
        self.has_room.load(Ordering::Acquire)
    }

    /// Whether the queue is closed and empty. Stays true.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::SeqCst)
    }

    /// Whether the queue is shut. Stays true.
    pub(crate) fn is_shut(&self) -> bool {
        self.shut.load(Ordering::SeqCst)
    }

    /// Whether items fill all places.
    pub(crate) fn is_full(&self) -> bool {
        let state = self.state.lock();
        state.items.len() + state.ends.len() >= state.capacity
    }

    /// Reserves up to `count` places; returns how many.
    pub(crate) fn reserve(&self, count: usize) -> usize {
        let mut state = self.state.lock();
        let granted = count.min(state.room());
        self.take_room(&mut state, granted);
        granted
    }

    /// Like [`reserve`](Self::reserve), but ignores the places that are already reserved. A stage
    /// that emits many items for one input needs this, because all places may be reserved for later
    /// inputs.
    pub(crate) fn reserve_beyond(&self, count: usize) -> usize {
        let mut state = self.state.lock();
        let held = state.items.len() + state.ends.len();
        let granted = count.min(state.capacity.saturating_sub(held));
        self.take_room(&mut state, granted);
        granted
    }

    /// Whether [`reserve_beyond`](Self::reserve_beyond) would grant a place. If not, the queue
    /// wakes the workers that put items in when a place is free.
    pub(crate) fn has_place_beyond(&self) -> bool {
        let mut state = self.state.lock();
        let has_place = state.items.len() + state.ends.len() < state.capacity;
        state.waiter_beyond |= !has_place;
        has_place
    }

    /// Reserves up to `count` places, at least one. If no place is free, the task is woken when
    /// places are free. Returns 0 if the queue is shut.
    pub(crate) fn poll_reserve(&self, count: usize, cx: &Context<'_>) -> Poll<usize> {
        let mut state = self.state.lock();
        let free = if state.draining { 0 } else { state.room() };
        let granted = if state.shut { 0 } else { count.min(free) };
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

    /// Whether the queue is shut. If not, the task that puts items in is woken when the queue is
    /// shut.
    pub(crate) fn poll_shut(&self, cx: &Context<'_>) -> bool {
        let mut state = self.state.lock();
        if !state.shut {
            keep_waker(&mut state.sender, cx);
        }
        state.shut
    }

    /// Releases reserved places.
    pub(crate) fn release(&self, places: usize) {
        if places > 0 {
            drop(self.push(places, std::iter::empty()));
        }
    }

    /// Puts items in and releases `reserved` places, at least as many as there are items. A queue
    /// that is shut drops the items.
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

    /// Puts in the end of an epoch, in a reserved place.
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

    /// Publishes a change, and returns the threads and tasks to wake.
    fn changed(
        &self,
        mut state: crate::sync::MutexGuard<'_, QueueState<T>>,
        something_new: bool,
    ) -> Wakes<'_> {
        let mut room_again = self.publish(&mut state);
        if state.waiter_beyond && state.items.len() + state.ends.len() < state.capacity {
            state.waiter_beyond = false;
            room_again = true;
        }
        // The worker that takes the last item also wakes the workers that wait for the end.
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

    /// Takes out up to `max` items of one epoch, oldest first, and returns the number of the first.
    pub(crate) fn pop(&self, max: usize, into: &mut Vec<Item<T>>) -> Option<(u64, Wakes<'_>)> {
        let mut state = self.state.lock();
        let count = max.min(state.available());
        if count == 0 {
            return None;
        }
        state.measure();
        into.extend(state.items.drain(..count));
        let first = state.taken;
        state.taken += count as u64;
        state.meter.got(count as u64);
        // The end of the epoch may follow the last item.
        let news = state.at_end();
        Some((first, self.changed(state, news)))
    }

    /// Takes out the end of an epoch, if it is next.
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

    /// The epoch that ends next, if the end of an epoch is next.
    pub(crate) fn front_end(&self) -> Option<u64> {
        let state = self.state.lock();
        if state.at_end() { state.ends.front().map(|&(_, epoch)| epoch) } else { None }
    }

    /// Identity of the next item.
    pub(crate) fn front_id(&self) -> Option<SampleId> {
        let state = self.state.lock();
        if state.at_end() { None } else { state.items.front().map(|item| item.header.id) }
    }

    /// Takes out an item or the end of an epoch. If there is neither, the task is woken when there
    /// is.
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

    /// Takes out up to `max` items of one epoch, or returns the end of an epoch or of the queue if
    /// it is next. If there is nothing to take, the task is woken when there is.
    pub(crate) fn poll_run(
        &self,
        max: usize,
        into: &mut VecDeque<Item<T>>,
        cx: &Context<'_>,
    ) -> Poll<Option<Next<T>>> {
        let mut state = self.state.lock();
        let count = max.min(state.available());
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

    /// Closes the queue: the producer has finished. Remaining items can still be taken out.
    pub(crate) fn close(&self) {
        self.end(false);
    }

    /// Shuts the queue: the items in the queue and all later items are dropped, and the producer
    /// should end.
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

    /// Updates the hints after a change of `state`. Returns whether a full queue accepts items
    /// again.
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

    /// Changes the capacity, but not below the minimum. Items beyond the new capacity stay.
    pub(crate) fn resize(&self, capacity: usize) {
        let mut state = self.state.lock();
        state.measure();
        state.capacity = capacity.max(state.least);
        drop(self.changed(state, false));
    }

    /// The time in which the queue was empty before it was closed.
    pub(crate) fn empty_time(&self) -> Duration {
        let mut state = self.state.lock();
        state.measure();
        state.meter.empty_time()
    }

    /// Whether the queue has no item.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().is_empty()
    }

    /// Sets the minimum capacity, at least one.
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

/// Drops items one by one, without a lock. A destructor that panics must not prevent other drops or
/// a wake-up. The panic hook has already reported the panic.
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

/// A queue of any item type.
pub(crate) trait AnyQueue: Send + Sync {
    /// Like [`Queue::shut`].
    fn shut(&self);
    /// Starts the meter.
    fn start_meter(&self);
    fn raw(&self) -> QueueSnapshot;
    /// Whether a task or the consumer waits for an item.
    fn is_awaited(&self) -> bool;
    /// Sets the capacity, which is also the new minimum.
    fn set_capacity(&self, capacity: usize);
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

    fn is_awaited(&self) -> bool {
        self.state.lock().receiver.is_some()
    }

    fn set_capacity(&self, capacity: usize) {
        self.set_least(capacity);
        self.resize(capacity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_accepts_items_again_after_half_or_32_were_taken() {
        let taken = |capacity| capacity - Queue::<u8>::new(capacity, None).state.lock().low_water();
        assert_eq!([1, 15, 16, 40, 64, 240].map(taken), [1, 1, 8, 20, 32, 32]);
    }
}
