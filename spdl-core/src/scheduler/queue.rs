//! Bounded queues between stages: never blocking for workers, with wakers for those who wait.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::signal::Signal;
use crate::SampleId;
use crate::sample::Envelope;
use crate::statistics::QueueStatistics;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A bounded queue of items on their way from one stage to the next.
///
/// Room is *reserved before* an item is taken from the queue in front, so what has been started
/// can always be put down. Items are numbered as they are taken out, under the lock that takes
/// them: an order that is to be restored later must begin there (numbers given earlier, by the
/// producer, deadlock as soon as later items fill the queue first).
pub(crate) struct Queue<T> {
    state: Mutex<State<T>>,
    capacity: usize,
    signal: Arc<Signal>,
    /// What `state` says, readable without its lock: a hint for workers looking for work.
    available: AtomicUsize,
    has_room: AtomicBool,
    finished: AtomicBool,
}

struct State<T> {
    items: VecDeque<Envelope<T>>,
    /// Places promised to items that are being made.
    reserved: usize,
    /// How many items were ever taken out: the number of the next one.
    taken: u64,
    /// No item will come any more.
    closed: bool,
    /// What still comes is dropped.
    shut: bool,
    receiver: Option<Waker>,
    sender: Option<Waker>,
    meter: Meter,
}

/// Who must be woken after a change of a queue. They are woken when this is dropped: not under a
/// lock, since the woken thread may run at once, in place of this one.
#[must_use = "wakes when dropped"]
#[derive(Default)]
pub(crate) struct Wakes {
    tasks: [Option<Waker>; 2],
    workers: Option<(Arc<Signal>, usize)>,
}

/// Wake every worker.
const ALL: usize = usize::MAX;

impl Drop for Wakes {
    fn drop(&mut self) {
        self.tasks.iter_mut().filter_map(Option::take).for_each(Waker::wake);
        match self.workers.take() {
            Some((signal, ALL)) => signal.wake_all(),
            Some((signal, count)) => (0..count).for_each(|_| signal.wake_one()),
            None => {}
        }
    }
}

impl<T> State<T> {
    fn room(&self, capacity: usize) -> usize {
        capacity.saturating_sub(self.items.len() + self.reserved)
    }

    /// Counts the time since the last change. Comes before every change.
    fn measure(&mut self, capacity: usize) {
        let (len, full) = (self.items.len(), self.room(capacity) == 0);
        self.meter.touch(len, full, self.closed);
    }
}

impl<T> Queue<T> {
    /// A queue for `capacity` items (at least one) whose workers sleep on `signal`.
    pub(crate) fn new(capacity: usize, signal: Arc<Signal>) -> Self {
        let capacity = capacity.max(1);
        Queue {
            state: Mutex::new(State {
                items: VecDeque::with_capacity(capacity.min(1024)),
                reserved: 0,
                taken: 0,
                closed: false,
                shut: false,
                receiver: None,
                sender: None,
                meter: Meter::default(),
            }),
            capacity,
            signal,
            available: AtomicUsize::new(0),
            has_room: AtomicBool::new(true),
            finished: AtomicBool::new(false),
        }
    }

    /// How many items wait, as of a moment ago.
    pub(crate) fn available(&self) -> usize {
        self.available.load(Ordering::Acquire)
    }

    /// Whether a place could be reserved, as of a moment ago.
    pub(crate) fn has_room(&self) -> bool {
        self.has_room.load(Ordering::Acquire)
    }

    /// Whether the last item has been taken out. Once true, it stays so.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished.load(Ordering::SeqCst)
    }

    /// Promises up to `wanted` places; returns how many.
    pub(crate) fn reserve(&self, wanted: usize) -> usize {
        let mut state = self.state.lock();
        let granted = wanted.min(state.room(self.capacity));
        self.take_room(&mut state, granted);
        granted
    }

    /// Like [`reserve`](Self::reserve), but counts only places that hold items. For a stage that
    /// makes many items from one: the places may all be promised to items that wait for this one.
    pub(crate) fn reserve_beyond(&self, wanted: usize) -> usize {
        let mut state = self.state.lock();
        let granted = wanted.min(self.capacity.saturating_sub(state.items.len()));
        self.take_room(&mut state, granted);
        granted
    }

    /// Whether [`reserve_beyond`](Self::reserve_beyond) would grant a place, as of a moment ago.
    pub(crate) fn has_place_beyond(&self) -> bool {
        self.available() < self.capacity
    }

    /// Promises up to `wanted` places, at least one; wakes the task when there is one.
    pub(crate) fn poll_reserve(&self, wanted: usize, cx: &mut Context<'_>) -> Poll<usize> {
        let mut state = self.state.lock();
        let granted = wanted.min(state.room(self.capacity));
        if granted == 0 && !state.shut {
            keep_waker(&mut state.sender, cx);
            return Poll::Pending;
        }
        self.take_room(&mut state, granted);
        Poll::Ready(granted)
    }

    fn take_room(&self, state: &mut State<T>, places: usize) {
        state.measure(self.capacity);
        state.reserved += places;
        self.publish(state);
    }

    /// Gives promised places back unused.
    pub(crate) fn release(&self, places: usize) {
        if places > 0 {
            drop(self.push(places, std::iter::empty()));
        }
    }

    /// Puts items down and gives back `reserved` promised places, as many as there are items or
    /// more. Items for a queue that was shut are dropped.
    pub(crate) fn push(&self, reserved: usize, items: impl Iterator<Item = Envelope<T>>) -> Wakes {
        let mut dropped = Vec::new();
        let mut state = self.state.lock();
        let was_full = state.room(self.capacity) == 0;
        state.measure(self.capacity);
        state.reserved -= reserved;
        let before = state.items.len();
        if state.shut {
            dropped.extend(items);
        } else {
            state.items.extend(items);
        }
        let new = state.items.len() - before;
        let has_room = state.room(self.capacity) > 0;
        self.publish(&state);
        let receiver = if new > 0 { state.receiver.take() } else { None };
        let sender = if has_room { state.sender.take() } else { None };
        drop(state);
        drop(dropped);
        let workers = new + usize::from(was_full && has_room);
        self.wakes([receiver, sender], workers)
    }

    fn wakes(&self, tasks: [Option<Waker>; 2], workers: usize) -> Wakes {
        Wakes { tasks, workers: (workers > 0).then(|| (Arc::clone(&self.signal), workers)) }
    }

    /// Takes out up to `most` items, oldest first, and returns the number of the first.
    pub(crate) fn pop(&self, most: usize, into: &mut Vec<Envelope<T>>) -> Option<(u64, Wakes)> {
        let state = self.state.lock();
        let count = most.min(state.items.len());
        (count > 0).then(|| self.pop_locked(state, count, into))
    }

    fn pop_locked(
        &self,
        mut state: crate::sync::MutexGuard<'_, State<T>>,
        count: usize,
        into: &mut Vec<Envelope<T>>,
    ) -> (u64, Wakes) {
        let was_full = state.room(self.capacity) == 0;
        state.measure(self.capacity);
        into.extend(state.items.drain(..count));
        let first = state.taken;
        state.taken += count as u64;
        self.publish(&state);
        let sender = state.sender.take();
        // Whoever sleeps until the end must learn of it from whoever brought it about.
        let finished = state.closed && state.items.is_empty();
        drop(state);
        (first, self.wakes([sender, None], if finished { ALL } else { usize::from(was_full) }))
    }

    /// Who the next item is.
    pub(crate) fn front_id(&self) -> Option<SampleId> {
        self.state.lock().items.front().map(|item| item.id)
    }

    /// Takes out an item; `None` at the end. Wakes the task when there is one.
    pub(crate) fn poll_pop(&self, cx: &mut Context<'_>) -> Poll<Option<(u64, Envelope<T>)>> {
        let mut state = self.state.lock();
        if state.items.is_empty() {
            if state.closed {
                return Poll::Ready(None);
            }
            keep_waker(&mut state.receiver, cx);
            return Poll::Pending;
        }
        let mut item = Vec::with_capacity(1);
        let (number, wakes) = self.pop_locked(state, 1, &mut item);
        drop(wakes);
        Poll::Ready(item.pop().map(|item| (number, item)))
    }

    /// Says that no more items will come. Those that wait can still be taken out.
    pub(crate) fn close(&self) {
        self.end(false, true);
    }

    fn end(&self, shut: bool, keep_items: bool) {
        let mut state = self.state.lock();
        state.measure(self.capacity);
        state.closed = true;
        state.shut |= shut;
        let dropped = if keep_items { VecDeque::new() } else { std::mem::take(&mut state.items) };
        self.publish(&state);
        let tasks = [state.receiver.take(), state.sender.take()];
        drop(state);
        // Outside the lock: an item's destructor may be anything.
        drop(dropped);
        drop(self.wakes(tasks, ALL));
    }

    /// Updates the hints after a change of `state`.
    fn publish(&self, state: &State<T>) {
        self.available.store(state.items.len(), Ordering::Release);
        self.has_room.store(state.room(self.capacity) > 0, Ordering::Release);
        self.finished.store(state.closed && state.items.is_empty(), Ordering::SeqCst);
    }
}

impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({}/{})", self.available(), self.capacity)
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
    /// Ends all work through this queue: waiters wake, what still comes is dropped, and so is what
    /// waits, unless `keep_items`.
    fn shut(&self, keep_items: bool);
    /// Starts the clock.
    fn start_meter(&self);
    fn statistics(&self) -> QueueStatistics;
}

impl<T: Send> AnyQueue for Queue<T> {
    fn shut(&self, keep_items: bool) {
        self.end(true, keep_items);
    }

    fn start_meter(&self) {
        self.state.lock().meter.last = Some(Instant::now());
    }

    fn statistics(&self) -> QueueStatistics {
        let mut state = self.state.lock();
        state.measure(self.capacity);
        let meter = &state.meter;
        let time = meter.time.as_secs_f64();
        QueueStatistics {
            capacity: self.capacity,
            len: state.items.len(),
            items: state.taken,
            mean_len: if time > 0.0 { meter.item_seconds / time } else { 0.0 },
            put_wait: meter.full,
            get_wait: meter.empty,
        }
    }
}

/// Adds up how long a queue was how full.
#[derive(Debug, Default)]
struct Meter {
    /// `None` until the pipeline starts.
    last: Option<Instant>,
    time: Duration,
    item_seconds: f64,
    full: Duration,
    empty: Duration,
}

impl Meter {
    /// Counts the time since the last change, during which the queue was like this.
    fn touch(&mut self, len: usize, full: bool, closed: bool) {
        let Some(last) = self.last else { return };
        let now = Instant::now();
        let time = now.duration_since(last);
        self.last = Some(now);
        if closed && len == 0 {
            return;
        }
        self.time += time;
        self.item_seconds += len as f64 * time.as_secs_f64();
        if full {
            self.full += time;
        }
        if len == 0 {
            self.empty += time;
        }
    }
}
