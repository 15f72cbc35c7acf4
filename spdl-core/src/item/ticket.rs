//! Tickets: places in an order that is restored where the ways of items join again.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A number in an order that is restored where the ways of items join again. When the last item
/// that carries it is gone, whether it arrived, was dropped, or failed, the number is retired: so
/// nothing ever waits for an item that cannot come any more.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    pub(crate) desk: Arc<TicketIssuer>,
    /// The ticket that the item had before: of a route on a path of which this one is.
    pub(crate) outer: Option<Arc<Ticket>>,
    /// Whether a failure of what carries it has ended the pipeline.
    failed: AtomicBool,
}

impl Ticket {
    /// Says that nothing behind this place in the order goes on any more.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
        if let Some(outer) = &self.outer {
            outer.fail();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.desk.retire(RetiredTicket {
            number: self.number,
            failed: self.failed.load(Ordering::Relaxed),
        });
    }
}

/// A ticket that nothing carries any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetiredTicket {
    pub(crate) number: u64,
    /// Whether this is where the order ends.
    pub(crate) failed: bool,
}

/// Where tickets are drawn and retired.
#[derive(Debug, Default)]
pub(crate) struct TicketIssuer {
    state: Mutex<IssuerState>,
}

#[derive(Debug, Default)]
struct IssuerState {
    drawn: u64,
    open: usize,
    retired: Vec<RetiredTicket>,
    drawer: Option<Waker>,
    joiner: Option<Waker>,
}

impl TicketIssuer {
    /// Draws the next ticket, where fewer than `most` are open; else wakes the task when that is so.
    pub(crate) fn poll_draw(self: &Arc<Self>, most: usize, cx: &Context<'_>) -> Poll<Ticket> {
        let mut state = self.state.lock();
        if state.open >= most {
            state.drawer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.open += 1;
        state.drawn += 1;
        let (number, desk) = (state.drawn - 1, Arc::clone(self));
        Poll::Ready(Ticket { number, desk, outer: None, failed: AtomicBool::new(false) })
    }

    fn retire(&self, ticket: RetiredTicket) {
        let mut state = self.state.lock();
        state.retired.push(ticket);
        let joiner = state.joiner.take();
        drop(state);
        if let Some(joiner) = joiner {
            joiner.wake();
        }
    }

    /// Moves the retired tickets out; the task is woken when there are more.
    pub(crate) fn take_retired(&self, into: &mut Vec<RetiredTicket>, cx: &Context<'_>) {
        let mut state = self.state.lock();
        into.append(&mut state.retired);
        state.joiner = Some(cx.waker().clone());
    }

    /// Says that a retired number has been dealt with.
    pub(crate) fn settle(&self) {
        let mut state = self.state.lock();
        state.open -= 1;
        let drawer = state.drawer.take();
        drop(state);
        if let Some(drawer) = drawer {
            drawer.wake();
        }
    }
}
