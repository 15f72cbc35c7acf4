//! Zip: a task that joins one item of each branch.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::StageCore;
use super::queue::{Next, Queue};
use crate::error::{Error, ErrorKind, Result};
use crate::item::lineage::Outcome;
use crate::item::{Item, ItemHeader};
use crate::memory::budget::Reservation;
use crate::sync::atomic::Ordering;

/// Joins one item of each branch. An epoch has as many joined items as the shortest branch has items.
pub(crate) struct ZipNode<I: ZipInputs> {
    core: StageCore,
    inputs: I,
    output: Arc<Queue<I::Out>>,
    /// Whether branches with different numbers of items are an error.
    is_strict: bool,
    /// The items that are being joined, without their values.
    taken: TakenItems,
}

/// Headers and reservations of items.
#[derive(Default)]
pub(crate) struct TakenItems {
    headers: Vec<ItemHeader>,
    reservations: Vec<Reservation>,
}

/// The branches: two of different types, or any number of one type.
pub(crate) trait ZipInputs: Send + 'static {
    type Out: Send + 'static;

    /// Calls a function for each branch, with the number of the branch.
    fn each(&mut self, visit: &mut dyn FnMut(usize, &mut dyn ZipBranch));

    /// Takes the item of each branch; `None` if a branch has no item.
    fn take(&mut self, taken: &mut TakenItems) -> Option<Self::Out>;
}

/// A branch, whatever its type.
pub(crate) trait ZipBranch {
    /// Takes the next item from the queue, unless there is one already or the epoch has ended.
    fn fill(&mut self, cx: &Context<'_>) -> Poll<()>;

    /// Drops the remaining items of the epoch.
    fn skip(&mut self, core: &StageCore, cx: &Context<'_>) -> Poll<()>;

    fn state(&self) -> ZipState;

    /// Begins the next epoch. Returns the epoch that has ended.
    fn next_epoch(&mut self) -> Option<u64>;

    fn shut(&self);
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZipState {
    Waits,
    HasItem,
    EpochEnded,
    Closed,
}

pub(crate) struct ZipInput<T> {
    input: Arc<Queue<T>>,
    item: Option<Item<T>>,
    /// The epoch that has ended.
    ended: Option<u64>,
    closed: bool,
}

impl<T> ZipInput<T> {
    pub(crate) fn new(input: Arc<Queue<T>>) -> Self {
        ZipInput { input, item: None, ended: None, closed: false }
    }

    fn is_over(&self) -> bool {
        self.closed || self.ended.is_some()
    }

    fn take(&mut self, taken: &mut TakenItems) -> Option<T> {
        let Item { header, value, reservation } = self.item.take()?;
        taken.headers.push(header);
        taken.reservations.extend(reservation);
        Some(value)
    }
}

impl<T> ZipBranch for ZipInput<T> {
    fn fill(&mut self, cx: &Context<'_>) -> Poll<()> {
        if self.item.is_none() && !self.is_over() {
            match self.input.poll_next(cx) {
                Poll::Ready(Next::Item(item)) => self.item = Some(item),
                Poll::Ready(Next::EpochEnd(epoch)) => self.ended = Some(epoch),
                Poll::Ready(Next::Closed) => self.closed = true,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }

    fn skip(&mut self, core: &StageCore, cx: &Context<'_>) -> Poll<()> {
        loop {
            if let Some(item) = self.item.take() {
                core.shared.left_out.fetch_add(1, Ordering::Relaxed);
                core.gone([item.header.member()], Outcome::LeftOut);
            }
            if self.is_over() {
                return Poll::Ready(());
            }
            if self.fill(cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    fn state(&self) -> ZipState {
        match self {
            ZipInput { item: Some(_), .. } => ZipState::HasItem,
            ZipInput { closed: true, .. } => ZipState::Closed,
            ZipInput { ended: Some(_), .. } => ZipState::EpochEnded,
            _ => ZipState::Waits,
        }
    }

    fn next_epoch(&mut self) -> Option<u64> {
        self.ended.take()
    }

    fn shut(&self) {
        self.input.shut();
    }
}

impl<A: Send + 'static, B: Send + 'static> ZipInputs for (ZipInput<A>, ZipInput<B>) {
    type Out = (A, B);

    fn each(&mut self, visit: &mut dyn FnMut(usize, &mut dyn ZipBranch)) {
        visit(0, &mut self.0);
        visit(1, &mut self.1);
    }

    fn take(&mut self, taken: &mut TakenItems) -> Option<(A, B)> {
        Some((self.0.take(taken)?, self.1.take(taken)?))
    }
}

impl<T: Send + 'static> ZipInputs for Vec<ZipInput<T>> {
    type Out = Vec<T>;

    fn each(&mut self, visit: &mut dyn FnMut(usize, &mut dyn ZipBranch)) {
        self.iter_mut().enumerate().for_each(|(at, branch)| visit(at, branch));
    }

    fn take(&mut self, taken: &mut TakenItems) -> Option<Vec<T>> {
        self.iter_mut().map(|branch| branch.take(taken)).collect()
    }
}

impl<I: ZipInputs> ZipNode<I> {
    pub(crate) fn new(
        core: StageCore,
        inputs: I,
        output: Arc<Queue<I::Out>>,
        is_strict: bool,
    ) -> Self {
        ZipNode { core, inputs, output, is_strict, taken: TakenItems::default() }
    }

    pub(crate) async fn drive(mut self) {
        while poll_fn(|cx| self.output.poll_reserve(1, cx)).await == 1 {
            if poll_fn(|cx| self.put(cx)).await {
                continue;
            }
            break;
        }
        self.inputs.each(&mut |_, branch| branch.shut());
        self.output.close();
    }

    /// Joins the reservations of the items that were taken.
    fn reservation(&mut self) -> Result<Option<Reservation>> {
        let reservations = self.taken.reservations.drain(..);
        let Some((measure, budget)) = self.core.measured() else { return Ok(None) };
        let Some(mut all) = budget.try_reserve(measure.level, 0)? else { return Ok(None) };
        for mut reservation in reservations {
            all.join(&mut reservation)?;
        }
        Ok(Some(all))
    }

    /// Puts joined items, or the end of an epoch, into the reserved place. Returns false at the end.
    fn put(&mut self, cx: &Context<'_>) -> Poll<bool> {
        if self.output.is_shut() {
            return Poll::Ready(false);
        }
        let mut states = ZipStates::default();
        self.inputs.each(&mut |at, branch| {
            // All are polled, so that a missing item of any branch wakes this task.
            let _ = branch.fill(cx);
            states.add(at, branch.state());
        });
        let Some(over) = states.over else {
            if !states.all_have_items {
                return Poll::Pending;
            }
            return Poll::Ready(self.put_item());
        };
        if states.any_closed && self.core.shared.failures.is_fatal() {
            self.output.release(1);
            return Poll::Ready(false);
        }
        if self.is_strict
            && let Some(longer) = states.with_item
        {
            let message = format!(
                "the branches of a strict zip have different numbers of items: branch {over} has no item \
                 for the next item of branch {longer}"
            );
            self.core.raise(Error::new(ErrorKind::InvalidArgument, message));
            self.output.release(1);
            return Poll::Ready(false);
        }
        let mut is_pending = states.any_waits;
        if !self.is_strict {
            is_pending = false;
            let core = &self.core;
            self.inputs.each(&mut |_, branch| is_pending |= branch.skip(core, cx).is_pending());
        }
        if is_pending {
            return Poll::Pending;
        }
        let mut epoch = None;
        self.inputs.each(&mut |_, branch| epoch = epoch.or(branch.next_epoch()));
        let Some(epoch) = epoch else {
            self.output.release(1);
            return Poll::Ready(false);
        };
        drop(self.output.push_end(epoch));
        let mut any_closed = false;
        self.inputs.each(&mut |_, branch| any_closed |= branch.state() == ZipState::Closed);
        Poll::Ready(!any_closed)
    }

    /// Puts joined items into the reserved place. Returns false at the end.
    fn put_item(&mut self) -> bool {
        let value = self.inputs.take(&mut self.taken);
        let reservation = self.reservation();
        let mut headers = self.taken.headers.drain(..);
        let (Some(value), Some(first)) = (value, headers.next()) else {
            drop(headers);
            self.output.release(1);
            return false;
        };
        let reservation = match reservation {
            Ok(reservation) => reservation,
            Err(error) => {
                drop(headers);
                self.core.raise(error);
                self.output.release(1);
                return false;
            }
        };
        let header = match self.core.shared.ledger.get() {
            Some(_) => first.joined(headers),
            None => first,
        };
        self.core.meter.emitted(1);
        self.core.meter.record(1, 0, Duration::ZERO);
        drop(self.output.push(1, std::iter::once(Item { header, value, reservation })));
        true
    }
}

/// The states of all branches.
struct ZipStates {
    all_have_items: bool,
    any_waits: bool,
    any_closed: bool,
    /// The first branch whose epoch has ended, or that is closed.
    over: Option<usize>,
    /// The first branch that has an item.
    with_item: Option<usize>,
}

impl Default for ZipStates {
    fn default() -> Self {
        ZipStates {
            all_have_items: true,
            any_waits: false,
            any_closed: false,
            over: None,
            with_item: None,
        }
    }
}

impl ZipStates {
    fn add(&mut self, at: usize, state: ZipState) {
        self.all_have_items &= state == ZipState::HasItem;
        self.any_waits |= state == ZipState::Waits;
        self.any_closed |= state == ZipState::Closed;
        let first = match state {
            ZipState::HasItem => &mut self.with_item,
            ZipState::EpochEnded | ZipState::Closed => &mut self.over,
            ZipState::Waits => return,
        };
        first.get_or_insert(at);
    }
}
