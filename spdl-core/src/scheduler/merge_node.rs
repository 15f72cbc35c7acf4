//! Merge and zip: tasks that join branches.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::StageCore;
use super::queue::{Next, Queue};
use crate::error::{Error, ErrorKind, Result, guarded};
use crate::item::Item;
use crate::item::lineage::Outcome;
use crate::memory::budget::Reservation;
use crate::stage::merge::{Choice, MergePolicy};
use crate::sync::atomic::Ordering;

/// At most this many items are put into the queue together.
const MAX_RUN: usize = 64;
/// The task yields to other tasks of the runtime after this many items.
const ITEMS_AT_A_TIME: usize = 1024;

pub(crate) struct MergeNode<T> {
    pub(crate) core: StageCore,
    pub(crate) inputs: Vec<Arc<Queue<T>>>,
    pub(crate) output: Arc<Queue<T>>,
    pub(crate) policy: Box<dyn MergePolicy>,
    pub(crate) progress: MergeProgress<T>,
}

/// State of a branch in the current epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BranchState {
    Open,
    /// The remaining items of the epoch are dropped.
    Skipping,
    EpochEnded,
    Closed,
}

pub(crate) struct MergeProgress<T> {
    branches: Vec<BranchState>,
    open: Vec<bool>,
    epoch: Option<u64>,
    choice: Option<Choice>,
    places: usize,
    run: Vec<Item<T>>,
    /// Round-robin start for [`Choice::Any`].
    turn: usize,
    /// Whether the branches are paths of one route, so that items already have distinct identities.
    same_items: bool,
    /// Whether `MergePolicy::start_epoch` must be called before the next choice.
    starts_epoch: bool,
    next_epoch: u64,
}

impl<T> MergeProgress<T> {
    pub(crate) fn new(branches: usize) -> Self {
        MergeProgress {
            branches: vec![BranchState::Open; branches],
            open: vec![true; branches],
            epoch: None,
            choice: None,
            places: 0,
            run: Vec::new(),
            turn: 0,
            same_items: false,
            starts_epoch: true,
            next_epoch: 0,
        }
    }

    /// For the paths of a route.
    pub(crate) fn same_items(paths: usize) -> Self {
        MergeProgress { same_items: true, ..MergeProgress::new(paths) }
    }
}

impl<T: Send + 'static> MergeNode<T> {
    pub(crate) async fn drive(mut self) {
        poll_fn(|cx| {
            let polled = self.step(cx);
            if !self.progress.run.is_empty() {
                let count = self.progress.run.len();
                self.forward(count);
            }
            polled
        })
        .await;
        self.output.release(self.progress.places);
        for input in &self.inputs {
            input.shut();
        }
        self.output.close();
    }

    fn forward(&mut self, count: usize) {
        self.core.meter.emitted(count as u64);
        self.core.meter.record(count as u64, 0, std::time::Duration::ZERO);
        drop(self.output.push(count, self.progress.run.drain(..)));
        self.progress.places -= count;
    }

    /// Makes all possible progress; ready when the merge has ended.
    fn step(&mut self, cx: &Context<'_>) -> Poll<()> {
        for _ in 0..ITEMS_AT_A_TIME {
            if self.output.is_shut() {
                return Poll::Ready(());
            }
            if self.progress.run.len() == MAX_RUN {
                self.forward(MAX_RUN);
            }
            if self.progress.places == self.progress.run.len() {
                match self.output.poll_reserve(MAX_RUN, cx) {
                    Poll::Ready(places) => self.progress.places += places,
                    Poll::Pending => return Poll::Pending,
                }
                continue;
            }
            match self.advance(cx) {
                Ok(Poll::Ready(true)) => {}
                Ok(Poll::Ready(false)) => return Poll::Ready(()),
                Ok(Poll::Pending) => return Poll::Pending,
                Err(error) => {
                    self.core.raise(error);
                    return Poll::Ready(());
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Makes one step of progress. Returns false if the merge has ended.
    fn advance(&mut self, cx: &Context<'_>) -> Result<Poll<bool>> {
        let progress = &mut self.progress;
        let mut skipping = false;
        for at in 0..self.inputs.len() {
            while progress.branches[at] == BranchState::Skipping {
                match self.inputs[at].poll_next(cx) {
                    Poll::Ready(Next::Item(item)) => {
                        self.core.shared.left_out.fetch_add(1, Ordering::Relaxed);
                        self.core.gone([item.header.member()], Outcome::LeftOut);
                    }
                    Poll::Ready(Next::EpochEnd(epoch)) => {
                        progress.epoch = Some(epoch);
                        progress.branches[at] = BranchState::EpochEnded;
                    }
                    Poll::Ready(Next::Closed) => progress.branches[at] = BranchState::Closed,
                    Poll::Pending => {
                        skipping = true;
                        break;
                    }
                }
            }
        }
        for (open, branch) in progress.open.iter_mut().zip(&progress.branches) {
            *open = *branch == BranchState::Open;
        }
        if progress.branches.contains(&BranchState::Closed)
            && !progress.same_items
            && self.core.shared.failures.is_fatal()
        {
            // A branch has failed, so the others are cancelled. (Paths of one route end together.)
            return Ok(Poll::Ready(false));
        }
        if skipping {
            return Ok(Poll::Pending);
        }
        if progress.starts_epoch {
            progress.starts_epoch = false;
            let (epoch, branches) = (progress.next_epoch, progress.branches.len());
            guarded(|| self.policy.start_epoch(epoch, branches, self.core.shared.seed)).0?;
        }
        if !progress.open.contains(&true) {
            if progress.branches.contains(&BranchState::Closed)
                && self.core.shared.failures.is_fatal()
            {
                // An epoch that a failure has interrupted has no end.
                return Ok(Poll::Ready(false));
            }
            let Some(epoch) = progress.epoch.take() else { return Ok(Poll::Ready(false)) };
            if !progress.run.is_empty() {
                let count = progress.run.len();
                self.forward(count);
            }
            drop(self.output.push_end(epoch));
            let progress = &mut self.progress;
            progress.places -= 1;
            progress.choice = None;
            progress.turn = 0;
            progress.starts_epoch = true;
            progress.next_epoch = epoch + 1;
            for branch in &mut progress.branches {
                if *branch == BranchState::EpochEnded {
                    *branch = BranchState::Open;
                }
            }
            return Ok(Poll::Ready(progress.branches.contains(&BranchState::Open)));
        }
        let choice = match progress.choice {
            Some(choice) => choice,
            None => {
                let chosen = guarded(|| Ok(self.policy.choose(&progress.open))).0?;
                *progress.choice.insert(chosen)
            }
        };
        match choice {
            Choice::EndEpoch => {
                for branch in progress.branches.iter_mut().filter(|at| **at == BranchState::Open) {
                    *branch = BranchState::Skipping;
                }
                progress.choice = None;
                Ok(Poll::Ready(true))
            }
            Choice::Branch(at) => {
                if !progress.open.get(at).copied().unwrap_or(false) {
                    let message = format!(
                        "the merge policy returned branch {at}, which has ended or does not exist; \
                         return an open branch"
                    );
                    return Err(Error::new(ErrorKind::InvalidArgument, message));
                }
                Ok(self.take(at, cx).map(|()| true))
            }
            Choice::Any => {
                let branches = self.inputs.len();
                let first = progress.turn;
                for step in 0..branches {
                    let at = (first + step) % branches;
                    if self.progress.open[at] && self.take(at, cx).is_ready() {
                        self.progress.turn = (at + 1) % branches;
                        return Ok(Poll::Ready(true));
                    }
                }
                Ok(Poll::Pending)
            }
        }
    }

    /// Takes the next item, or end of an epoch, of a branch.
    fn take(&mut self, at: usize, cx: &Context<'_>) -> Poll<()> {
        let progress = &mut self.progress;
        match self.inputs[at].poll_next(cx) {
            Poll::Ready(Next::Item(mut item)) => {
                if !progress.same_items {
                    item.header = item.header.branch(at);
                }
                progress.run.push(item);
            }
            Poll::Ready(Next::EpochEnd(epoch)) => {
                progress.epoch = Some(epoch);
                progress.branches[at] = BranchState::EpochEnded;
            }
            Poll::Ready(Next::Closed) => progress.branches[at] = BranchState::Closed,
            Poll::Pending => return Poll::Pending,
        }
        progress.choice = None;
        Poll::Ready(())
    }
}

/// Joins the items of two branches into pairs. An epoch has as many pairs as the shorter branch has
/// items.
pub(crate) struct ZipNode<A, B> {
    pub(crate) core: StageCore,
    pub(crate) left: ZipInput<A>,
    pub(crate) right: ZipInput<B>,
    pub(crate) output: Arc<Queue<(A, B)>>,
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

    /// Takes the next item, unless there is one already or the epoch has ended.
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

    /// Drops the remaining items of the epoch. Returns how many items were dropped.
    fn skip(&mut self, cx: &Context<'_>) -> (u64, Poll<()>) {
        let mut skipped = u64::from(self.item.take().is_some());
        while !self.is_over() {
            if self.fill(cx).is_pending() {
                return (skipped, Poll::Pending);
            }
            skipped += u64::from(self.item.take().is_some());
        }
        (skipped, Poll::Ready(()))
    }
}

impl<A: Send + 'static, B: Send + 'static> ZipNode<A, B> {
    pub(crate) async fn drive(mut self) {
        while poll_fn(|cx| self.output.poll_reserve(1, cx)).await == 1 {
            if poll_fn(|cx| self.put(cx)).await {
                continue;
            }
            break;
        }
        self.left.input.shut();
        self.right.input.shut();
        self.output.close();
    }

    /// Joins the reservations of both items of a pair.
    fn join(&self, reservations: [Option<Reservation>; 2]) -> Result<Option<Reservation>> {
        let Some((measure, budget)) = self.core.measured() else { return Ok(None) };
        let Some(mut both) = budget.try_reserve(measure.level, 0)? else { return Ok(None) };
        for mut reservation in reservations.into_iter().flatten() {
            both.join(&mut reservation)?;
        }
        Ok(Some(both))
    }

    /// Puts a pair or the end of an epoch into the reserved place. Returns false at the end.
    fn put(&mut self, cx: &Context<'_>) -> Poll<bool> {
        if self.output.is_shut() {
            return Poll::Ready(false);
        }
        // Both are polled, so that a missing item of either branch wakes this task.
        let _ = (self.left.fill(cx), self.right.fill(cx));
        if self.left.item.is_some()
            && self.right.item.is_some()
            && let (Some(a), Some(b)) = (self.left.item.take(), self.right.item.take())
        {
            let reservation = match self.join([a.reservation, b.reservation]) {
                Ok(reservation) => reservation,
                Err(error) => {
                    self.core.raise(error);
                    self.output.release(1);
                    return Poll::Ready(false);
                }
            };
            let pair = Item { header: a.header, value: (a.value, b.value), reservation };
            self.core.meter.emitted(1);
            self.core.meter.record(1, 0, std::time::Duration::ZERO);
            drop(self.output.push(1, std::iter::once(pair)));
            return Poll::Ready(true);
        }
        if self.left.is_over() || self.right.is_over() {
            let failed = self.core.shared.failures.is_fatal();
            if (self.left.closed || self.right.closed) && failed {
                self.output.release(1);
                return Poll::Ready(false);
            }
            let ((a, left), (b, right)) = (self.left.skip(cx), self.right.skip(cx));
            self.core.shared.left_out.fetch_add(a + b, Ordering::Relaxed);
            if left.is_pending() || right.is_pending() {
                return Poll::Pending;
            }
            return Poll::Ready(match (self.left.ended.take(), self.right.ended.take()) {
                (Some(epoch), _) | (_, Some(epoch)) => {
                    drop(self.output.push_end(epoch));
                    !self.left.closed && !self.right.closed
                }
                (None, None) => {
                    self.output.release(1);
                    false
                }
            });
        }
        Poll::Pending
    }
}
