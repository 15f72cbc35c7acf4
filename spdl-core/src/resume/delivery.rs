//! The consumer's side of the books: what it was handed, and so how far the run has come.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::item::Head;
use crate::item::lineage::Fate;
use crate::resume::ledger::{Account, Row};
use crate::resume::state::{SampleCounts, State};
use crate::source::sample::SampleId;

/// So many rows are noted before they are entered.
const NOTED_AT_ONCE: usize = 256;

/// Keeps account of what the consumer is handed.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) account: Arc<Account>,
    deliveries: Deliveries,
    /// The state at the beginning of this run, or of the current epoch.
    begun: State,
    steps: u64,
    steps_in_epoch: u64,
    audit: bool,
    /// Whether every stage hands its outputs on in the order of its inputs.
    keeps_order: bool,
    /// Numbers of items that are not to be delivered.
    skipped: Vec<Range<u64>>,
}

impl Delivery {
    /// For a run that begins with `begun`.
    pub(crate) fn new(
        account: Arc<Account>,
        begun: State,
        audit: bool,
        keeps_order: bool,
        skipped: Vec<Range<u64>>,
    ) -> Self {
        Delivery {
            account,
            deliveries: Deliveries::new(begun.shard.unwrap_or_default().world),
            steps: begun.steps,
            steps_in_epoch: begun.steps_in_epoch,
            begun,
            audit,
            keeps_order,
            skipped,
        }
    }

    /// How many items were handed out, in the runs before too.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether the item that comes next is one that the consumer does not want.
    fn skips(&self) -> bool {
        !self.skipped.is_empty() && self.skipped.iter().any(|steps| steps.contains(&self.steps))
    }

    /// Notes that the consumer is handed an item. Says whether it wants it: else it is left out.
    pub(crate) fn hand_out(&mut self, head: &Head) -> bool {
        let wanted = !self.skips();
        self.steps = self.steps.saturating_add(1);
        if head.id.epoch != self.begun.epoch {
            // Its first item.
            self.begin(head.id.epoch);
        }
        self.steps_in_epoch = self.steps_in_epoch.saturating_add(1);
        if wanted {
            self.deliveries.add(head, &self.account);
        } else {
            self.account.gone(&head.member(), Fate::LeftOut);
        }
        wanted
    }

    fn begin(&mut self, epoch: u64) {
        self.begun = self.begun.at_epoch(epoch);
        self.steps_in_epoch = 0;
    }

    /// Closes an epoch of which everything was handed out.
    pub(crate) fn end_epoch(&mut self, epoch: u64) -> Result<()> {
        self.deliveries.enter_all(epoch, &self.account);
        let counts = self.account.close(epoch, self.audit)?;
        self.begun.in_all = self.begun.in_all.plus(counts);
        self.begin(epoch + 1);
        Ok(())
    }

    /// How far the run has come.
    pub(crate) fn state(&self) -> Result<State> {
        let begun = &self.begun;
        let progress = self.account.progress(begun.epoch, || self.deliveries.take_noted());
        if let Some(error) = self.account.why_no_state() {
            return Err(error);
        }
        if let Some((stage, _)) = progress.cuts.first_key_value()
            && !self.keeps_order
        {
            let message = "this stage has cut an item, and delivered it in part; which one that is can \
                           only be known where every stage keeps order: make it `deterministic`";
            let error = Error::new(ErrorKind::Unsupported, message);
            return Err(error.with_stage(stage.as_str()));
        }
        let counts: SampleCounts = progress.counts;
        let state = State {
            done: progress.done,
            pieces: progress.pieces,
            steps: self.steps,
            steps_in_epoch: self.steps_in_epoch,
            in_epoch: begun.in_epoch.plus(counts),
            in_all: begun.in_all.plus(counts),
            carry: progress.cuts,
            // What an earlier run made may not have come again yet.
            parts_end: progress.parts_end.max(begun.parts_end),
            ..begun.clone()
        };
        let parts_end = if state.has_parts() { state.parts_end } else { 0 };
        Ok(State { parts_end, ..state })
    }
}

/// What the consumer was handed of the current epoch, and is not yet entered in the books.
#[derive(Debug, Default)]
struct Deliveries {
    noted: Vec<Row>,
    /// How far the stride is between the positions of this rank.
    stride: u64,
    /// How many rows have been entered.
    entered: AtomicUsize,
}

impl Deliveries {
    fn new(stride: u64) -> Self {
        Deliveries { stride, ..Deliveries::default() }
    }

    /// Notes that the consumer has an item.
    fn add(&mut self, head: &Head, account: &Account) {
        if head.members().is_some() {
            return account.gone(&head.member(), Fate::Delivered);
        }
        let &Head { id: SampleId { epoch, index }, lineage, .. } = head;
        // A row that was entered is closed.
        let open = *self.entered.get_mut() < self.noted.len();
        if let Some(last) = self.noted.last_mut()
            && open
            && lineage == 0
            && last.lineage == 0
            && index == last.first.wrapping_add(last.len.wrapping_mul(self.stride))
        {
            last.len += 1;
            return;
        }
        self.noted.push(Row { first: index, len: 1, stride: self.stride, lineage });
        if self.noted.len() >= NOTED_AT_ONCE {
            self.enter_all(epoch, account);
        }
    }

    /// Enters everything.
    fn enter_all(&mut self, epoch: u64, account: &Account) {
        if !self.noted.is_empty() {
            account.delivered(epoch, self.take_noted());
            self.noted.clear();
            self.entered.store(0, Ordering::Relaxed);
        }
    }

    /// The rows that are not yet entered, for whoever enters them: under the lock of the books, where
    /// this is shared.
    fn take_noted(&self) -> &[Row] {
        let entered = self.entered.swap(self.noted.len(), Ordering::Relaxed);
        &self.noted[entered..]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::item::lineage::Pieces;
    use crate::source::ranges::Ranges;
    use crate::source::shard::{Divisions, Remainder, Shard};

    #[test]
    fn deliveries_may_be_looked_at_before_they_are_entered() {
        for stride in [1, 3] {
            let shard = Shard::new(stride - 1, stride).unwrap();
            let shard = shard.remainder(Remainder::Uneven);
            let divisions = Divisions { shard, len: None, begun: None };
            let account = Account::new(Arc::new(divisions), Pieces::default(), BTreeMap::new());
            let mut deliveries = Deliveries::new(stride);
            let mut expected = Ranges::default();
            for step in 0..2000u64 {
                // Mostly in order.
                let own = if step % 7 == 3 {
                    step + 1
                } else if step % 7 == 4 {
                    step - 1
                } else {
                    step
                };
                let index = own * stride + stride - 1;
                let id = SampleId { epoch: 2, index };
                deliveries.add(&Head::new(id, None), &account);
                expected.insert(own);
                if step % 11 == 0 {
                    assert_eq!(
                        account.progress(2, || deliveries.take_noted()).done,
                        expected,
                        "step {step}"
                    );
                }
            }
            deliveries.enter_all(2, &account);
            account.yielded(2, 2000);
            assert_eq!(account.close(2, true).unwrap().delivered, 2000);
        }
    }
}
