//! Deliveries: what the consumer received, and the checkpoint state derived from it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{Error, ErrorKind, Result};
use crate::item::ItemHeader;
use crate::item::lineage::Outcome;
use crate::resume::ledger::{DeliveredRange, Ledger, Unmerged};
use crate::resume::state::{SampleCounts, State};
use crate::source::sample::SampleId;

/// The maximum number of ranges that are buffered before they are recorded in the ledger.
const MAX_PENDING: usize = 256;

/// Tracks the items that the consumer receives.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) ledger: Arc<Ledger>,
    deliveries: PendingDeliveries,
    /// The state at the start of this run or of the current epoch.
    start: State,
    steps: u64,
    steps_in_epoch: u64,
    audit: bool,
    /// Whether every stage emits its outputs in the order of its inputs.
    keeps_order: bool,
    /// The numbers of steps whose items are left out.
    skipped: Vec<Range<u64>>,
}

impl Delivery {
    /// Starts from the state `start`.
    pub(crate) fn new(
        ledger: Arc<Ledger>,
        start: State,
        audit: bool,
        keeps_order: bool,
        skipped: Vec<Range<u64>>,
    ) -> Self {
        Delivery {
            ledger,
            deliveries: PendingDeliveries::new(start.shard.unwrap_or_default().world),
            steps: start.steps,
            steps_in_epoch: start.steps_in_epoch,
            start,
            audit,
            keeps_order,
            skipped,
        }
    }

    /// The number of items that reached the consumer, including items of skipped steps and of
    /// earlier runs.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// Whether the next item is left out.
    fn skips(&self) -> bool {
        !self.skipped.is_empty() && self.skipped.iter().any(|steps| steps.contains(&self.steps))
    }

    /// Records the delivery of an item. Returns false if the item is left out instead.
    pub(crate) fn deliver(&mut self, header: &ItemHeader) -> bool {
        let wanted = !self.skips();
        self.steps = self.steps.saturating_add(1);
        if header.id.epoch != self.start.epoch {
            // The first item of a new epoch.
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

    /// Whether an earlier run delivered samples of this epoch.
    pub(crate) fn delivered_before(&self, epoch: u64) -> bool {
        self.start.epoch == epoch && self.start.in_epoch.delivered > 0
    }

    fn begin(&mut self, epoch: u64) {
        self.start = self.start.at_epoch(epoch);
        self.steps_in_epoch = 0;
    }

    /// Ends an epoch of which every item was delivered or left out, and audits the epoch if `audit`
    /// is set.
    pub(crate) fn end_epoch(&mut self, epoch: u64) -> Result<()> {
        self.deliveries.record_all(epoch, &self.ledger);
        let counts = self.ledger.close(epoch, self.audit)?;
        self.start.in_all = self.start.in_all.plus(counts);
        self.begin(epoch + 1);
        Ok(())
    }

    /// The checkpoint state after the last delivered item.
    pub(crate) fn state(&self) -> Result<State> {
        let start = &self.start;
        let progress = self.ledger.progress(start.epoch, || self.deliveries.take_pending());
        if let Some(error) = self.ledger.unsupported() {
            return Err(error);
        }
        if let Some((stage, _)) = progress.splits.first_key_value()
            && !self.keeps_order
        {
            let message = "this stage has split an item that was delivered in part, and the split \
                           item is known only if every stage keeps its order; call \
                           `deterministic` on the pipeline";
            let error = Error::new(ErrorKind::Unsupported, message);
            return Err(error.with_stage(stage.as_str()));
        }
        let counts: SampleCounts = progress.counts;
        let has_several_sources = start.has_several_sources();
        let state = State {
            done: progress.done,
            pieces: progress.pieces,
            steps: self.steps,
            steps_in_epoch: self.steps_in_epoch,
            in_epoch: start.in_epoch.plus(counts),
            in_all: start.in_all.plus(counts),
            carry: progress.splits,
            unmerged: if has_several_sources { progress.unmerged } else { Unmerged::default() },
            // Aggregates of the earlier run may not have been emitted again yet.
            parts_end: progress.parts_end.max(start.parts_end),
            ..start.clone()
        };
        if has_several_sources && state.has_parts() {
            let message = "a list or an item was delivered in part, so a pipeline with several sources has \
                           no checkpoint state now; request the state after the whole list, or split \
                           before the sources are merged or zipped";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let parts_end = if state.has_parts() { state.parts_end } else { 0 };
        Ok(State { parts_end, ..state })
    }
}

/// Deliveries of the current epoch that are not yet in the ledger.
#[derive(Debug, Default)]
struct PendingDeliveries {
    ranges: Vec<DeliveredRange>,
    /// The distance between consecutive positions of this rank.
    stride: u64,
    /// How many ranges are already in the ledger.
    recorded: AtomicUsize,
}

impl PendingDeliveries {
    fn new(stride: u64) -> Self {
        PendingDeliveries { stride, ..PendingDeliveries::default() }
    }

    /// Adds a delivered item.
    fn add(&mut self, header: &ItemHeader, ledger: &Ledger) {
        if header.members().is_some() {
            return ledger.record_end(&header.member(), Outcome::Delivered);
        }
        let &ItemHeader { id: SampleId { epoch, index }, lineage, .. } = header;
        // A range that is already in the ledger must not grow.
        let open = *self.recorded.get_mut() < self.ranges.len();
        if let Some(last) = self.ranges.last_mut()
            && open
            && lineage == 0
            && last.lineage == 0
            && index == last.first.wrapping_add(last.len.wrapping_mul(self.stride))
        {
            last.len += 1;
            return;
        }
        self.ranges.push(DeliveredRange { first: index, len: 1, stride: self.stride, lineage });
        if self.ranges.len() >= MAX_PENDING {
            self.record_all(epoch, ledger);
        }
    }

    /// Records all ranges in the ledger.
    fn record_all(&mut self, epoch: u64, ledger: &Ledger) {
        if !self.ranges.is_empty() {
            ledger.delivered(epoch, self.take_pending());
            self.ranges.clear();
            self.recorded.store(0, Ordering::Relaxed);
        }
    }

    /// The ranges that are not yet in the ledger. The caller records them, and holds the lock of
    /// the ledger if other threads have access.
    fn take_pending(&self) -> &[DeliveredRange] {
        let recorded = self.recorded.swap(self.ranges.len(), Ordering::Relaxed);
        &self.ranges[recorded..]
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
    fn pending_deliveries_are_visible_in_the_progress() {
        for stride in [1, 3] {
            let shard = Shard::new(stride - 1, stride).unwrap();
            let shard = shard.remainder(Remainder::Uneven);
            let divisions = Divisions { shard, len: None, resumed: None };
            let none = (EndedPieces::default(), BTreeMap::new(), Unmerged::default());
            let ledger = Ledger::new(Arc::new(divisions), none.0, none.1, none.2);
            let mut deliveries = PendingDeliveries::new(stride);
            let mut expected = Ranges::default();
            for step in 0..2000u64 {
                // Positions are mostly ascending.
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
                        ledger.progress(2, || deliveries.take_pending()).done,
                        expected,
                        "step {step}"
                    );
                }
            }
            deliveries.record_all(2, &ledger);
            ledger.yielded(2, 2000);
            assert_eq!(ledger.close(2, true).unwrap().delivered, 2000);
        }
    }
}
