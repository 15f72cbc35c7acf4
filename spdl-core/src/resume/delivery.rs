//! The consumer's side of the books: what it was handed, and so how far the run has come.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::item::ItemHeader;
use crate::item::lineage::Outcome;
use crate::resume::ledger::{DeliveredRange, Ledger};
use crate::resume::state::{SampleCounts, State};
use crate::source::sample::SampleId;

/// So many rows are noted before they are entered.
const NOTED_AT_ONCE: usize = 256;

/// Keeps account of what the consumer is handed.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) ledger: Arc<Ledger>,
    deliveries: PendingDeliveries,
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
        ledger: Arc<Ledger>,
        begun: State,
        audit: bool,
        keeps_order: bool,
        skipped: Vec<Range<u64>>,
    ) -> Self {
        Delivery {
            ledger,
            deliveries: PendingDeliveries::new(begun.shard.unwrap_or_default().world),
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
    pub(crate) fn deliver(&mut self, header: &ItemHeader) -> bool {
        let wanted = !self.skips();
        self.steps = self.steps.saturating_add(1);
        if header.id.epoch != self.begun.epoch {
            // Its first item.
            self.begin(header.id.epoch);
        }
        self.steps_in_epoch = self.steps_in_epoch.saturating_add(1);
        if wanted {
            self.deliveries.add(header, &self.ledger);
        } else {
            self.ledger.record_end(&header.member(), Outcome::LeftOut);
        }
        wanted
    }

    fn begin(&mut self, epoch: u64) {
        self.begun = self.begun.at_epoch(epoch);
        self.steps_in_epoch = 0;
    }

    /// Closes an epoch of which everything was handed out.
    pub(crate) fn end_epoch(&mut self, epoch: u64) -> Result<()> {
        self.deliveries.enter_all(epoch, &self.ledger);
        let counts = self.ledger.close(epoch, self.audit)?;
        self.begun.in_all = self.begun.in_all.plus(counts);
        self.begin(epoch + 1);
        Ok(())
    }

    /// How far the run has come.
    pub(crate) fn state(&self) -> Result<State> {
        let begun = &self.begun;
        let progress = self.ledger.progress(begun.epoch, || self.deliveries.take_noted());
        if let Some(error) = self.ledger.unsupported() {
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
struct PendingDeliveries {
    noted: Vec<DeliveredRange>,
    /// How far the stride is between the positions of this rank.
    stride: u64,
    /// How many rows have been entered.
    entered: AtomicUsize,
}

impl PendingDeliveries {
    fn new(stride: u64) -> Self {
        PendingDeliveries { stride, ..PendingDeliveries::default() }
    }

    /// Notes that the consumer has an item.
    fn add(&mut self, header: &ItemHeader, ledger: &Ledger) {
        if header.members().is_some() {
            return ledger.record_end(&header.member(), Outcome::Delivered);
        }
        let &ItemHeader { id: SampleId { epoch, index }, lineage, .. } = header;
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
        self.noted.push(DeliveredRange { first: index, len: 1, stride: self.stride, lineage });
        if self.noted.len() >= NOTED_AT_ONCE {
            self.enter_all(epoch, ledger);
        }
    }

    /// Enters everything.
    fn enter_all(&mut self, epoch: u64, ledger: &Ledger) {
        if !self.noted.is_empty() {
            ledger.delivered(epoch, self.take_noted());
            self.noted.clear();
            self.entered.store(0, Ordering::Relaxed);
        }
    }

    /// The rows that are not yet entered, for whoever enters them: under the lock of the books, where
    /// this is shared.
    fn take_noted(&self) -> &[DeliveredRange] {
        let entered = self.entered.swap(self.noted.len(), Ordering::Relaxed);
        &self.noted[entered..]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::item::lineage::EndedPieces;
    use crate::source::ranges::Ranges;
    use crate::source::shard::{Divisions, Remainder, Shard};

    #[test]
    fn deliveries_may_be_looked_at_before_they_are_entered() {
        for stride in [1, 3] {
            let shard = Shard::new(stride - 1, stride).unwrap();
            let shard = shard.remainder(Remainder::Uneven);
            let divisions = Divisions { shard, len: None, begun: None };
            let ledger = Ledger::new(Arc::new(divisions), EndedPieces::default(), BTreeMap::new());
            let mut deliveries = PendingDeliveries::new(stride);
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
                deliveries.add(&ItemHeader::new(id, None), &ledger);
                expected.insert(own);
                if step % 11 == 0 {
                    assert_eq!(
                        ledger.progress(2, || deliveries.take_noted()).done,
                        expected,
                        "step {step}"
                    );
                }
            }
            deliveries.enter_all(2, &ledger);
            ledger.yielded(2, 2000);
            assert_eq!(ledger.close(2, true).unwrap().delivered, 2000);
        }
    }
}
