//! Memory of items whose size becomes known while an async stage processes them.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::memory::budget::Reservation;
use crate::sync::Mutex;

/// The items in flight of one async stage, by the order in which they were started.
///
/// Only the oldest item may exceed the memory budget; see [`Reservation::poll_grow`].
#[derive(Debug, Default)]
pub(crate) struct InFlightOrder(Mutex<OrderState>);

#[derive(Debug, Default)]
struct OrderState {
    /// The number of the oldest item in flight.
    oldest: u64,
    /// For each item from the oldest one on, whether it has ended.
    ended: VecDeque<bool>,
    /// Items that are not the oldest one, and wait for memory.
    waiting: HashMap<u64, Waker>,
}

/// The reservation of one item in flight.
pub(crate) struct InFlightMemory {
    number: u64,
    order: Arc<InFlightOrder>,
    /// `None` once the item has ended.
    reservation: Mutex<Option<Reservation>>,
}

impl InFlightOrder {
    /// Adds the youngest item.
    pub(crate) fn start(self: &Arc<Self>, reservation: Reservation) -> Arc<InFlightMemory> {
        let mut state = self.0.lock();
        let number = state.oldest + state.ended.len() as u64;
        state.ended.push_back(false);
        drop(state);
        let reservation = Mutex::new(Some(reservation));
        Arc::new(InFlightMemory { number, order: Arc::clone(self), reservation })
    }

    /// Returns whether the item is the oldest one. Otherwise its task is woken when it is.
    fn poll_oldest(&self, number: u64, cx: &Context<'_>) -> bool {
        let mut state = self.0.lock();
        let is_oldest = state.oldest == number;
        if !is_oldest {
            state.waiting.insert(number, cx.waker().clone());
        }
        is_oldest
    }

    fn end(&self, number: u64) {
        let mut state = self.0.lock();
        let at = number.checked_sub(state.oldest).and_then(|at| usize::try_from(at).ok());
        if let Some(ended) = at.and_then(|at| state.ended.get_mut(at)) {
            *ended = true;
        }
        state.waiting.remove(&number);
        while state.ended.front() == Some(&true) {
            state.ended.pop_front();
            state.oldest += 1;
        }
        let oldest = state.oldest;
        let waker = state.waiting.remove(&oldest);
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl InFlightMemory {
    /// Returns the reserved bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.reservation.lock().as_ref().map_or(0, Reservation::bytes)
    }

    /// Waits until `bytes` are reserved.
    pub(crate) fn poll_grow(&self, bytes: usize, cx: &mut Context<'_>) -> Poll<()> {
        let is_oldest = self.order.poll_oldest(self.number, cx);
        match &mut *self.reservation.lock() {
            Some(reservation) => reservation.poll_grow(bytes, is_oldest, cx),
            None => Poll::Ready(()),
        }
    }

    /// Ends the item, and returns its reservation.
    pub(crate) fn end(&self) -> Option<Reservation> {
        let reservation = self.reservation.lock().take();
        self.order.end(self.number);
        reservation
    }
}

impl Drop for InFlightMemory {
    fn drop(&mut self) {
        self.order.end(self.number);
    }
}

impl fmt::Debug for InFlightMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InFlightMemory({} bytes)", self.bytes())
    }
}
