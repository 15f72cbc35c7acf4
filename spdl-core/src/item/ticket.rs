//! Tickets: positions in an order that the join of a route restores.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A position in an order that the join of a route restores.
///
/// When the last item that carries the ticket has arrived at the join, was dropped or failed, the
/// ticket is retired. Therefore the join never waits for an item that cannot arrive.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    pub(crate) issuer: Arc<TicketIssuer>,
    /// Ticket of the outer route, if this route is on one of its paths.
    pub(crate) outer: Option<Arc<Ticket>>,
    /// Whether an item with this ticket failed and ended the pipeline.
    failed: AtomicBool,
}

impl Ticket {
    /// Records that an item with this ticket ended the pipeline: items with later tickets are
    /// dropped.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
        if let Some(outer) = &self.outer {
            outer.fail();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.issuer.retire(RetiredTicket {
            number: self.number,
            failed: self.failed.load(Ordering::Relaxed),
        });
    }
}

/// A ticket that no item carries any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetiredTicket {
    pub(crate) number: u64,
    /// Whether an item with this ticket ended the pipeline, so that later items are dropped.
    pub(crate) failed: bool,
}

/// Issues tickets and collects the retired ones.
#[derive(Debug, Default)]
pub(crate) struct TicketIssuer {
    state: Mutex<IssuerState>,
}

#[derive(Debug, Default)]
struct IssuerState {
    drawn: u64,
    open: usize,
    retired: Vec<RetiredTicket>,
    draw_waker: Option<Waker>,
    join_waker: Option<Waker>,
}

impl TicketIssuer {
    /// Draws the next ticket. If `max` tickets are open, returns `Pending`, and the task is woken
    /// when a ticket is [settled](Self::settle).
    pub(crate) fn poll_draw(self: &Arc<Self>, max: usize, cx: &Context<'_>) -> Poll<Ticket> {
        let mut state = self.state.lock();
        if state.open >= max {
            state.draw_waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.open += 1;
        state.drawn += 1;
        let (number, issuer) = (state.drawn - 1, Arc::clone(self));
        Poll::Ready(Ticket { number, issuer, outer: None, failed: AtomicBool::new(false) })
    }

    fn retire(&self, ticket: RetiredTicket) {
        let mut state = self.state.lock();
        state.retired.push(ticket);
        let join_waker = state.join_waker.take();
        drop(state);
        if let Some(join_waker) = join_waker {
            join_waker.wake();
        }
    }

    /// Moves the retired tickets to `into`; the task is woken when there are more.
    pub(crate) fn take_retired(&self, into: &mut Vec<RetiredTicket>, cx: &Context<'_>) {
        let mut state = self.state.lock();
        into.append(&mut state.retired);
        state.join_waker = Some(cx.waker().clone());
    }

    /// Closes a retired ticket after its outputs were sent.
    pub(crate) fn settle(&self) {
        let mut state = self.state.lock();
        state.open -= 1;
        let draw_waker = state.draw_waker.take();
        drop(state);
        if let Some(draw_waker) = draw_waker {
            draw_waker.wake();
        }
    }
}
