//! Routes: tasks that send items to different paths and join the paths again.
//!
//! If the route restores the input order, each item draws a [`Ticket`] before it enters a path. The
//! ticket is retired when no item carries it any more, however many outputs the item had, and also
//! if the item failed. Outputs are sent in the order of the tickets.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::StageCore;
use super::queue::{Next, Queue};
use crate::error::{Error, ErrorKind, Result};
use crate::item::lineage::Outcome;
use crate::item::ticket::{RetiredTicket, Ticket, TicketIssuer};
use crate::item::{Item, ItemHeader, ItemTag};
use crate::memory::budget::Reservation;
use crate::observe::statistics::StageMeter;
use crate::sync::Mutex;

/// At most this many items are on the paths of a route that restores the input order.
pub(crate) const MAX_OPEN_TICKETS: usize = 256;

/// Sends each item to one path.
pub(crate) struct SplitNode<T> {
    pub(crate) core: StageCore,
    pub(crate) input: Arc<Queue<(usize, T)>>,
    pub(crate) paths: Vec<Arc<Queue<T>>>,
    pub(crate) meters: Vec<Arc<StageMeter>>,
    pub(crate) tickets: Option<Arc<RouteTickets>>,
}

/// Splits each list and sends one part to each path.
pub(crate) struct SplitListNode<T> {
    pub(crate) core: StageCore,
    pub(crate) input: Arc<Queue<(Vec<usize>, Vec<T>)>>,
    pub(crate) paths: Vec<Arc<Queue<Vec<T>>>>,
    pub(crate) meters: Vec<Arc<StageMeter>>,
    pub(crate) tickets: Arc<RouteTickets>,
}

/// State that the split and the join of a route share.
#[derive(Debug)]
pub(crate) struct RouteTickets {
    issuer: Arc<TicketIssuer>,
    max_open: usize,
    state: Mutex<RouteState>,
}

#[derive(Debug, Default)]
struct RouteState {
    /// Tickets drawn until the end of each epoch in flight.
    epoch_ends: VecDeque<u64>,
    drawn: u64,
    /// Lists whose parts are in flight, by ticket number.
    lists: BTreeMap<u64, RoutedList>,
}

/// A list whose parts are in flight.
#[derive(Debug)]
struct RoutedList {
    header: ItemHeader,
    /// The path of each item.
    routes: Vec<usize>,
    /// Reservation of all parts.
    reservation: Option<Reservation>,
}

/// Adds a ticket to a header. The new ticket keeps the ticket of an outer route.
fn with_ticket(header: ItemHeader, mut ticket: Ticket) -> ItemHeader {
    ticket.outer = header.ticket().cloned();
    let (key, members) = match header.tag.as_deref() {
        Some(tag) => (tag.key.clone(), tag.members.clone()),
        None => (None, None),
    };
    let tag = ItemTag { key, members, ticket: Some(Arc::new(ticket)) };
    ItemHeader { tag: Some(Arc::new(tag)), ..header }
}

/// Removes the innermost ticket from a header.
fn without_ticket(header: ItemHeader) -> ItemHeader {
    let Some(tag) = header.tag.as_deref() else { return header };
    let Some(ticket) = &tag.ticket else { return header };
    let ticket = ticket.outer.clone();
    let (key, members) = (tag.key.clone(), tag.members.clone());
    let tag = (key.is_some() || members.is_some() || ticket.is_some())
        .then(|| Arc::new(ItemTag { key, members, ticket }));
    ItemHeader { tag, ..header }
}

/// Sends the end of an epoch to every path.
async fn end_epoch<T>(paths: &[Arc<Queue<T>>], epoch: u64) -> bool {
    for path in paths {
        if poll_fn(|cx| path.poll_reserve(1, cx)).await == 0 {
            return false;
        }
        drop(path.push_end(epoch));
    }
    true
}

/// Whether any path is shut. If not, the task is woken when a path is shut.
fn any_shut<T>(paths: &[Arc<Queue<T>>], cx: &Context<'_>) -> bool {
    // Polls every path, so that each one can wake this task.
    paths.iter().filter(|path| path.poll_shut(cx)).count() > 0
}

/// Counts an item that is sent to a path.
fn count(meter: &StageMeter) {
    meter.record(1, 0, Duration::ZERO);
    meter.emitted(1);
}

impl<T: Send + 'static> SplitNode<T> {
    pub(crate) async fn drive(self) {
        loop {
            let over = poll_fn(|cx| self.poll_next(cx)).await;
            let sent = match over {
                Some(Next::Item(item)) => self.send(item).await,
                Some(Next::EpochEnd(epoch)) => {
                    if let Some(tickets) = &self.tickets {
                        tickets.end_epoch();
                    }
                    end_epoch(&self.paths, epoch).await
                }
                Some(Next::Closed) | None => false,
            };
            if !sent {
                break;
            }
        }
        self.input.shut();
        for path in &self.paths {
            path.close();
        }
    }

    /// Returns the next item; `None` if a path is shut.
    fn poll_next(&self, cx: &Context<'_>) -> Poll<Option<Next<(usize, T)>>> {
        let next = self.input.poll_next(cx);
        if next.is_pending() {
            return if any_shut(&self.paths, cx) { Poll::Ready(None) } else { Poll::Pending };
        }
        next.map(
            |next| if self.paths.iter().any(|path| path.is_shut()) { None } else { Some(next) },
        )
    }

    async fn send(&self, item: Item<(usize, T)>) -> bool {
        let Item { mut header, value: (path, value), reservation } = item;
        let Some(queue) = self.paths.get(path) else {
            let paths = self.paths.len();
            let message = format!(
                "the router returned path {path}, but the route has {paths} paths, numbered from 0"
            );
            let error = Error::new(ErrorKind::InvalidArgument, message);
            self.core.raise(match header.key() {
                Some(key) => error.with_key(Arc::clone(key)),
                None => error,
            });
            return false;
        };
        if let Some(tickets) = &self.tickets {
            let ticket = poll_fn(|cx| self.draw(tickets, queue, cx)).await;
            let Some(ticket) = ticket else { return false };
            header = with_ticket(header, ticket);
        }
        if poll_fn(|cx| queue.poll_reserve(1, cx)).await == 0 {
            return false;
        }
        count(&self.meters[path]);
        drop(queue.push(1, std::iter::once(Item { header, value, reservation })));
        true
    }

    fn draw(
        &self,
        tickets: &RouteTickets,
        queue: &Queue<T>,
        cx: &Context<'_>,
    ) -> Poll<Option<Ticket>> {
        if queue.is_shut() {
            return Poll::Ready(None);
        }
        tickets.poll_draw(cx).map(Some)
    }
}

impl RouteTickets {
    /// Allows `max_open` items in flight.
    pub(crate) fn new(max_open: usize) -> Arc<Self> {
        Arc::new(RouteTickets { issuer: Arc::default(), max_open, state: Mutex::default() })
    }

    fn poll_draw(&self, cx: &Context<'_>) -> Poll<Ticket> {
        let ticket = self.issuer.poll_draw(self.max_open, cx);
        if ticket.is_ready() {
            self.state.lock().drawn += 1;
        }
        ticket
    }

    fn end_epoch(&self) {
        let mut state = self.state.lock();
        let drawn = state.drawn;
        state.epoch_ends.push_back(drawn);
    }
}

impl<T: Send + 'static> SplitListNode<T> {
    pub(crate) async fn drive(self) {
        loop {
            let next = poll_fn(|cx| {
                let next = self.input.poll_next(cx);
                let shut = match next {
                    Poll::Pending => any_shut(&self.paths, cx),
                    Poll::Ready(_) => self.paths.iter().any(|path| path.is_shut()),
                };
                if shut { Poll::Ready(Next::Closed) } else { next }
            });
            let sent = match next.await {
                Next::Item(list) => self.send(list).await,
                Next::EpochEnd(epoch) => {
                    self.tickets.end_epoch();
                    end_epoch(&self.paths, epoch).await
                }
                Next::Closed => false,
            };
            if !sent {
                break;
            }
        }
        self.input.shut();
        for path in &self.paths {
            path.close();
        }
    }

    async fn send(&self, list: Item<(Vec<usize>, Vec<T>)>) -> bool {
        let Item { header, value: (routes, items), reservation } = list;
        let paths = self.paths.len();
        let fault = if routes.len() != items.len() {
            Some(format!(
                "the router returned {} path numbers for a list of {} items; return one for each \
                 item",
                routes.len(),
                items.len()
            ))
        } else {
            let wrong = routes.iter().find(|&&path| path >= paths);
            wrong.map(|path| {
                format!(
                    "the router returned path {path}, but the route has {paths} paths, numbered \
                     from 0"
                )
            })
        };
        if let Some(message) = fault {
            self.core.raise(Error::new(ErrorKind::InvalidArgument, message));
            return false;
        }
        let ticket = poll_fn(|cx| {
            if self.paths.iter().any(|path| path.is_shut()) {
                return Poll::Ready(None);
            }
            self.tickets.poll_draw(cx).map(Some)
        });
        let Some(ticket) = ticket.await else { return false };
        let number = ticket.number;
        let mut parts: Vec<Vec<T>> = (0..paths).map(|_| Vec::new()).collect();
        for (&path, item) in routes.iter().zip(items) {
            parts[path].push(item);
        }
        let list = RoutedList { header: header.clone(), routes, reservation };
        self.tickets.state.lock().lists.insert(number, list);
        if let Some(ledger) = self.core.shared.ledger.get() {
            ledger.record_split(&header.member(), (paths as u64).saturating_sub(1));
        }
        let header = with_ticket(header, ticket);
        for (at, part) in parts.into_iter().enumerate() {
            if poll_fn(|cx| self.paths[at].poll_reserve(1, cx)).await == 0 {
                return false;
            }
            let part = Item::new(header.clone().branch(at), part);
            count(&self.meters[at]);
            drop(self.paths[at].push(1, std::iter::once(part)));
        }
        true
    }
}

/// Function that combines the outputs of one ticket, each with the number of its path.
type Combine<U, V> = Box<dyn FnMut(u64, Vec<(usize, Item<U>)>) -> Result<Vec<Item<V>>> + Send>;

/// Joins the paths of a route and restores the input order.
pub(crate) struct JoinNode<U, V> {
    pub(crate) core: StageCore,
    pub(crate) paths: Vec<Arc<Queue<U>>>,
    pub(crate) output: Arc<Queue<V>>,
    pub(crate) tickets: Arc<RouteTickets>,
    pub(crate) combine: Combine<U, V>,
    /// Whether the outputs are parts of one list. The list is dropped if one part fails fatally.
    pub(crate) whole: bool,
    pub(crate) waiting: JoinBuffer<U, V>,
}

pub(crate) struct JoinBuffer<U, V> {
    /// Outputs of each ticket.
    arrived: BTreeMap<u64, Vec<(usize, Item<U>)>>,
    /// Items without a ticket, buffered until the end of the epoch.
    unticketed: Vec<(usize, Item<U>)>,
    /// Retired tickets, and for each whether its item ended the pipeline.
    retired: BTreeMap<u64, bool>,
    newly_retired: Vec<RetiredTicket>,
    next: u64,
    /// Whether a failure has halted the route: later items are dropped.
    halted: bool,
    outgoing: VecDeque<Item<V>>,
    ended: Vec<bool>,
    closed: Vec<bool>,
    epoch: Option<u64>,
}

impl<U, V> JoinBuffer<U, V> {
    pub(crate) fn new(paths: usize) -> Self {
        JoinBuffer {
            arrived: BTreeMap::new(),
            unticketed: Vec::new(),
            retired: BTreeMap::new(),
            newly_retired: Vec::new(),
            next: 0,
            halted: false,
            outgoing: VecDeque::new(),
            ended: vec![false; paths],
            closed: vec![false; paths],
            epoch: None,
        }
    }
}

/// Forwards items unchanged.
pub(crate) fn combine_items<U: 'static>() -> Combine<U, U> {
    Box::new(|_, items| Ok(items.into_iter().map(|(_, item)| item).collect()))
}

/// Joins the parts of a list in its original order.
pub(crate) fn combine_lists<U: Send + 'static>(
    tickets: Arc<RouteTickets>,
) -> Combine<Vec<U>, Vec<U>> {
    Box::new(move |number, parts| {
        let list = tickets.state.lock().lists.remove(&number);
        let Some(RoutedList { header, routes, reservation }) = list else {
            let message = "a path of `route_lists` merged several lists; a path must return one \
                           list for each list";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let mut lists: BTreeMap<usize, Vec<U>> = BTreeMap::new();
        for (path, part) in parts {
            lists.entry(path).or_default().extend(part.value);
        }
        for (path, list) in &lists {
            let sent = routes.iter().filter(|&route| route == path).count();
            if list.len() != sent {
                let message = format!(
                    "path {path} returned {} items for a list of {sent} items; return one for each",
                    list.len()
                );
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
        }
        let mut lists: BTreeMap<usize, _> =
            lists.into_iter().map(|(path, list)| (path, list.into_iter())).collect();
        // The items of a dropped part are missing; the others keep their order.
        let whole: Vec<U> = routes.iter().filter_map(|path| lists.get_mut(path)?.next()).collect();
        let whole = Item { header, value: whole, reservation };
        Ok(if whole.value.is_empty() { Vec::new() } else { vec![whole] })
    })
}

impl<U: Send + 'static, V: Send + 'static> JoinNode<U, V> {
    pub(crate) async fn drive(mut self) {
        if let Err(error) = poll_fn(|cx| self.step(cx)).await {
            self.core.raise(error);
        }
        for path in &self.paths {
            path.shut();
        }
        self.output.close();
    }

    fn step(&mut self, cx: &Context<'_>) -> Poll<Result<()>> {
        loop {
            if self.output.is_shut() {
                return Poll::Ready(Ok(()));
            }
            while !self.waiting.outgoing.is_empty() {
                match self.output.poll_reserve(self.waiting.outgoing.len(), cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(0) => return Poll::Ready(Ok(())),
                    Poll::Ready(places) => {
                        self.core.meter.emitted(places as u64);
                        self.core.meter.record(places as u64, 0, Duration::ZERO);
                        let outgoing = self.waiting.outgoing.drain(..places);
                        drop(self.output.push(places, outgoing));
                    }
                }
            }
            let mut moved = self.collect(cx);
            moved |= self.release(cx)?;
            if self.waiting.outgoing.is_empty() {
                match self.finish_epoch(cx)? {
                    Poll::Ready(Some(true)) => moved = true,
                    Poll::Ready(Some(false)) => return Poll::Ready(Ok(())),
                    Poll::Ready(None) => {}
                    Poll::Pending => return Poll::Pending,
                }
            }
            if !moved && self.waiting.outgoing.is_empty() {
                return Poll::Pending;
            }
        }
    }

    /// Receives all items that have arrived.
    fn collect(&mut self, cx: &Context<'_>) -> bool {
        let mut moved = false;
        for (at, path) in self.paths.iter().enumerate() {
            while !self.waiting.ended[at] && !self.waiting.closed[at] {
                match path.poll_next(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Next::EpochEnd(epoch)) => {
                        self.waiting.epoch = Some(epoch);
                        self.waiting.ended[at] = true;
                    }
                    Poll::Ready(Next::Closed) => self.waiting.closed[at] = true,
                    Poll::Ready(Next::Item(mut item)) => {
                        let ticket = item.header.ticket().cloned();
                        item.header = without_ticket(item.header);
                        match &ticket {
                            Some(ticket) => {
                                let arrived = &mut self.waiting.arrived;
                                arrived.entry(ticket.number).or_default().push((at, item));
                            }
                            None => self.waiting.unticketed.push((at, item)),
                        }
                        // The ticket may be retired only after its item was stored.
                        drop(ticket);
                    }
                }
                moved = true;
            }
        }
        moved
    }

    /// Sends the outputs of the next tickets in order, as far as these tickets are retired.
    fn release(&mut self, cx: &Context<'_>) -> Result<bool> {
        let waiting = &mut self.waiting;
        self.tickets.issuer.take_retired(&mut waiting.newly_retired, cx);
        let newly_retired =
            waiting.newly_retired.drain(..).map(|ticket| (ticket.number, ticket.failed));
        waiting.retired.extend(newly_retired);
        let mut moved = false;
        while waiting.outgoing.is_empty()
            && !waiting.halted
            && let Some(failed) = waiting.retired.remove(&waiting.next)
        {
            waiting.halted = failed;
            let items = waiting.arrived.remove(&waiting.next).unwrap_or_default();
            let arrived = items.len();
            let piece = items.first().map(|(_, item)| item.header.member());
            let items = (self.combine)(waiting.next, items)?;
            if let Some(piece) = piece.filter(|_| items.len() < arrived) {
                let outcome = if items.is_empty() { Outcome::Filtered } else { Outcome::Joined };
                self.core.gone((items.len()..arrived).map(|_| piece.clone()), outcome);
            }
            if !(failed && self.whole) {
                waiting.outgoing.extend(items);
            }
            waiting.next += 1;
            self.tickets.issuer.settle();
            moved = true;
        }
        Ok(moved)
    }

    /// Forwards the end of an epoch after its last item. `Some(more)` means that progress was made,
    /// and whether there may be more.
    fn finish_epoch(&mut self, cx: &Context<'_>) -> Result<Poll<Option<bool>>> {
        let waiting = &mut self.waiting;
        if waiting.halted {
            return Ok(Poll::Ready(Some(false)));
        }
        // Items before a failure are still delivered.
        let over = |at: usize| waiting.ended[at] || waiting.closed[at];
        if !(0..self.paths.len()).all(over) {
            return Ok(Poll::Ready(None));
        }
        let due = self.tickets.state.lock().epoch_ends.front().copied();
        if due.is_some_and(|due| waiting.next < due) {
            return Ok(Poll::Ready(None));
        }
        if !waiting.unticketed.is_empty() {
            let unticketed = std::mem::take(&mut waiting.unticketed);
            waiting.outgoing.extend((self.combine)(u64::MAX, unticketed)?);
            return Ok(Poll::Ready(Some(true)));
        }
        let Some(epoch) = waiting.epoch else {
            // The paths were closed within an epoch. All items that could be sent in order were
            // sent.
            return Ok(Poll::Ready(Some(false)));
        };
        match self.output.poll_reserve(1, cx) {
            Poll::Pending => return Ok(Poll::Pending),
            Poll::Ready(0) => return Ok(Poll::Ready(Some(false))),
            Poll::Ready(_) => {}
        }
        drop(self.output.push_end(epoch));
        waiting.epoch = None;
        waiting.ended.fill(false);
        self.tickets.state.lock().epoch_ends.pop_front();
        Ok(Poll::Ready(Some(!waiting.closed.contains(&true))))
    }
}
