//! Merge: a task that forwards the items of several branches.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::StageCore;
use super::queue::{Next, Queue};
use crate::error::{Error, ErrorKind, Result, guarded};
use crate::item::Item;
use crate::item::lineage::Outcome;
use crate::resume::ledger::{BufferingEvidence, MergedSamples};
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
    /// Closed in an earlier epoch, and not yet chosen in this one. The policy may choose the branch, as in a run that
    /// resumes in this epoch and does not know yet that the branch has no items.
    Empty,
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
    /// The items of each branch that an earlier run has merged in the first epoch. Empty if there are none.
    merged: Vec<MergedSamples>,
    /// What follows the items in `merged`, for each branch.
    ahead: Vec<Option<Next<T>>>,
}

impl<T> MergeProgress<T> {
    pub(crate) fn new(branches: usize, first_epoch: u64, merged: Vec<MergedSamples>) -> Self {
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
            next_epoch: first_epoch,
            merged,
            ahead: (0..branches).map(|_| None).collect(),
        }
    }

    fn has_closed(&self) -> bool {
        self.branches.iter().any(|it| matches!(it, BranchState::Closed | BranchState::Empty))
    }

    /// For the paths of a route.
    pub(crate) fn same_items(paths: usize) -> Self {
        MergeProgress { same_items: true, ..MergeProgress::new(paths, 0, Vec::new()) }
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
                let next = match progress.ahead[at].take() {
                    Some(ahead) => Poll::Ready(ahead),
                    None => self.inputs[at].poll_next(cx),
                };
                match next {
                    Poll::Ready(Next::Item(item)) => {
                        self.core.shared.left_out.fetch_add(1, Ordering::Relaxed);
                        // The policy has not chosen the item.
                        if let Some(ledger) = self.core.shared.ledger.get() {
                            ledger.record_unmerged(&item.header.member(), Outcome::LeftOut);
                        }
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
            *open = matches!(branch, BranchState::Open | BranchState::Empty);
        }
        if progress.has_closed() && !progress.same_items && self.core.shared.failures.is_fatal() {
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
            if progress.has_closed() && self.core.shared.failures.is_fatal() {
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
            progress.merged.clear();
            progress.next_epoch = epoch + 1;
            for branch in &mut progress.branches {
                *branch = match *branch {
                    BranchState::EpochEnded => BranchState::Open,
                    BranchState::Closed => BranchState::Empty,
                    other => other,
                };
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
                for branch in &mut progress.branches {
                    *branch = match *branch {
                        BranchState::Open => BranchState::Skipping,
                        BranchState::Empty => BranchState::Closed,
                        other => other,
                    };
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

    /// The next item, or end of an epoch, of a branch; `None` if an earlier run has merged the item.
    fn next_of(&mut self, at: usize, cx: &Context<'_>) -> Poll<Option<Next<T>>> {
        let progress = &mut self.progress;
        let merged = progress.merged.get_mut(at).filter(|merged| !merged.is_empty());
        if let Some(merged) = merged {
            if merged.take_first() {
                return Poll::Ready(None);
            }
            let ahead = match progress.ahead[at].take() {
                Some(ahead) => ahead,
                None => match self.inputs[at].poll_next(cx) {
                    Poll::Ready(next) => next,
                    Poll::Pending => return Poll::Pending,
                },
            };
            let index = match &ahead {
                Next::Item(item) => item.header.id.index,
                _ => u64::MAX,
            };
            if merged.take_before(index) {
                progress.ahead[at] = Some(ahead);
                return Poll::Ready(None);
            }
            return Poll::Ready(Some(ahead));
        }
        match progress.ahead[at].take() {
            Some(ahead) => Poll::Ready(Some(ahead)),
            None => self.inputs[at].poll_next(cx).map(Some),
        }
    }

    /// Takes the next item, or end of an epoch, of a branch.
    fn take(&mut self, at: usize, cx: &Context<'_>) -> Poll<()> {
        let polled = match self.progress.branches[at] {
            BranchState::Empty => Poll::Ready(Some(Next::Closed)),
            _ => self.next_of(at, cx),
        };
        let progress = &mut self.progress;
        match polled {
            Poll::Ready(None) => {}
            Poll::Ready(Some(Next::Item(mut item))) => {
                if !progress.same_items {
                    let is_sample = item.header.lineage == 0 && item.header.members().is_none();
                    if !is_sample
                        && self.inputs.len() > 1
                        && self.policy.chooses()
                        && let Some(ledger) = self.core.shared.ledger.get()
                    {
                        let evidence = BufferingEvidence::GroupedBeforeMerge;
                        ledger.record_buffering(self.core.name(), evidence);
                    }
                    item.header = item.header.branch(at);
                }
                progress.run.push(item);
            }
            Poll::Ready(Some(Next::EpochEnd(epoch))) => {
                progress.epoch = Some(epoch);
                progress.branches[at] = BranchState::EpochEnded;
            }
            Poll::Ready(Some(Next::Closed)) => progress.branches[at] = BranchState::Closed,
            Poll::Pending => return Poll::Pending,
        }
        progress.choice = None;
        Poll::Ready(())
    }
}
