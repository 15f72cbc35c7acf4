//! Outlet of a CPU stage: collects its outputs and records their outcomes in the ledger.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::aggregate_buffer::{AggregateBuffer, AggregateHeader, EmissionPlace};
use super::{CpuNode, ItemRun};
use crate::error::{Result, stopped};
use crate::item::lineage::{AggregateLineage, EmissionOrder, LineageNode, Outcome, PieceId};
use crate::item::{Item, ItemHeader, ItemTag};
use crate::memory::budget::Reservation;
use crate::resume::ledger::{BufferingEvidence, LedgerEntry, PartialItem};
use crate::scheduler::worker_pool::WorkerPool;
use crate::stage::aggregate::FillRate;
use crate::stage::{AggregateInputs, Outlet, Stage};
use crate::sync::atomic::Ordering;

/// An ordered stage buffers at most this many outputs of an item before the turn of its run.
const MAX_OUT_OF_TURN: usize = 64;

/// Collects the outputs of a run. If there are too many, sends them to the queue early.
pub(super) struct QueueOutlet<'a, In, S: Stage<In>> {
    pub(super) node: &'a CpuNode<In, S>,
    pub(super) pool: &'a Arc<WorkerPool>,
    pub(super) run: ItemRun<S::Out>,
    /// Number of the run's first item; `None` at the end of an epoch.
    pub(super) first: Option<u64>,
    /// Reservation for the outputs.
    pub(super) reservation: Option<Reservation>,
    /// Reservation of the current item.
    pub(super) carried: Option<Reservation>,
    /// Outputs of the current item so far.
    pub(super) emitted: u64,
    /// Whether the stage filtered out the current item.
    pub(super) filtered: bool,
    /// Number of pieces of the current item that the ledger expects: initially 1, or 0 at the end
    /// of an epoch, when there is no current item.
    pub(super) declared: u64,
    /// Entries not yet recorded in the ledger.
    pub(super) entries: Vec<LedgerEntry>,
    /// Buffered items of an aggregating stage.
    pub(super) buffered: AggregateBuffer,
    /// Last aggregate emitted for the current item.
    pub(super) last: Option<LastAggregate>,
    /// Time spent waiting for room in the output queue.
    pub(super) waited: Duration,
}

/// The last aggregate; further outputs may be made of the same items.
pub(super) struct LastAggregate {
    header: ItemHeader,
    /// Outputs made of these items so far.
    outputs: u64,
    /// The item that is split at the end of the aggregate.
    split_at_end: Option<(PieceId, u64)>,
    /// Whether the ledger expects one more output, because the last one may already have left the
    /// stage.
    open: bool,
}

impl<In: Send + 'static, S: Stage<In>> QueueOutlet<'_, In, S> {
    fn in_turn(&self) -> bool {
        match (&self.node.turns, self.first) {
            (Some(turns), Some(first)) => {
                turns.lock().runs.is_next(first) || self.node.state.broken.load(Ordering::SeqCst)
            }
            _ => true,
        }
    }

    /// Whether an earlier failure has halted the stage.
    fn halted(&mut self) -> bool {
        let Some(turns) = &self.node.turns else { return false };
        let halted = turns.lock().halted;
        let halted = self.node.apply_failures(&mut self.run, halted);
        turns.lock().halted |= halted;
        halted
    }

    /// Returns the header of the next output.
    fn header(&mut self, header: &ItemHeader, given: Option<AggregateHeader>) -> ItemHeader {
        let mut header = header.output(self.node.core.number, self.emitted);
        self.emitted += 1;
        let Some(AggregateHeader { header: own, members, place, end, .. }) = given else {
            return header;
        };
        let split_at_end = place.and_then(|place| place.split_at_end);
        let no_more =
            |last: &&mut LastAggregate| members.is_empty() && last.split_at_end == split_at_end;
        if let Some(last) = self.last.as_mut().filter(no_more) {
            // One more output of the same items. The items are not done before this output is done.
            if place.is_some() {
                self.buffered.undo_place();
            }
            self.entries.push(LedgerEntry::Split(last.header.member(), 1));
            last.outputs += 1;
            return last.header.output(self.node.core.number, last.outputs - 1);
        }
        self.close();
        if members.is_empty() && self.buffered.is_empty() {
            self.record_buffering(BufferingEvidence::OutputWithoutInput);
        }
        let ticket = header.ticket().cloned();
        match (own, members.first()) {
            (Some(own), _) => header = own,
            // Each piece is in one aggregate only, so the identity is unique.
            (None, Some(first)) => (header.id, header.lineage) = (first.id, first.lineage),
            (None, None) => {}
        }
        let members = AggregateLineage::new(members).with_end(end);
        let members = match place {
            Some(place) => members.with_order(self.order(place)),
            None => members,
        };
        let members = Some(Arc::new(members));
        header.tag = Some(Arc::new(ItemTag { key: None, members, ticket }));
        self.last =
            Some(LastAggregate { header: header.clone(), outputs: 1, split_at_end, open: false });
        header
    }

    /// Records that no more outputs of the same items follow.
    pub(super) fn close(&mut self) {
        if let Some(LastAggregate { header, open: true, .. }) = self.last.take() {
            self.entries.push(LedgerEntry::Ended(header.member(), Outcome::Joined));
        }
    }

    fn order(&self, place: EmissionPlace) -> EmissionOrder {
        let EmissionPlace { number, in_order, split_at_start, split_at_end } = place;
        EmissionOrder {
            stage: Arc::clone(&self.node.core.identity),
            number,
            in_order,
            split_at_start,
            split_at_end,
        }
    }

    /// Keeps the reservation of an input item.
    pub(super) fn keep(&mut self, reservation: Option<Reservation>) -> Result<()> {
        let Some(reservation) = reservation else { return Ok(()) };
        if !self.node.aggregates {
            self.carried = Some(reservation);
            return Ok(());
        }
        match self.node.core.measured() {
            Some((measure, budget)) => self.buffered.keep_reservation(reservation, measure, budget),
            None => Ok(()),
        }
    }

    fn record_buffering(&self, evidence: BufferingEvidence) {
        if let Some(ledger) = self.node.core.shared.ledger.get() {
            ledger.record_buffering(self.node.core.name(), evidence);
        }
    }

    /// Records the final number of pieces of an item: the number of its outputs.
    pub(super) fn settle(&mut self, header: &ItemHeader) {
        let pieces = self.emitted;
        let evidence = match self.first {
            Some(_) if pieces == 0 && !self.filtered => Some(BufferingEvidence::NoOutput),
            None if pieces > 0 => Some(BufferingEvidence::OutputAtEpochEnd),
            _ => None,
        };
        if let Some(evidence) = evidence {
            self.record_buffering(evidence);
        }
        if pieces == self.declared {
            return;
        }
        let member = header.member();
        let outcome = if pieces == 0 { Outcome::Filtered } else { Outcome::Joined };
        let missing = self.declared.saturating_sub(pieces);
        self.entries.extend((0..missing).map(|_| LedgerEntry::Ended(member.clone(), outcome)));
        if pieces > self.declared {
            self.entries.push(LedgerEntry::Split(member, pieces - self.declared));
        }
        self.declared = pieces;
    }

    /// Sends the outputs so far if the limit is reached and one more output follows. Therefore the
    /// last output leaves after its item is settled. A single output is never counted as one of
    /// several.
    fn make_room(&mut self) -> Result<()> {
        if self.run.outputs.len() < self.run.places.max(1) {
            return Ok(());
        }
        let started = Instant::now();
        if !self.in_turn() {
            // Before its turn, an ordered stage buffers its outputs, up to a limit.
            if self.run.outputs.len() < self.run.places + MAX_OUT_OF_TURN {
                return Ok(());
            }
            while !self.in_turn() && !self.node.output.is_shut() {
                self.pool.work_downstream(&self.node.position, || {
                    self.in_turn() || self.node.output.is_shut()
                });
            }
        }
        // The current output is already counted, so its item is not done yet.
        self.declare_outputs(0);
        self.record();
        let flushed =
            if self.halted() { Err(stopped()) } else { self.node.flush(self.pool, &mut self.run) };
        self.waited += started.elapsed();
        flushed
    }

    /// Records that the number of pieces of an item is the number of outputs so far plus `open`.
    fn declare_outputs(&mut self, open: u64) {
        if self.emitted + open > self.declared
            && !self.node.aggregates
            && let Some(last) = self.run.outputs.last()
        {
            let more = self.emitted + open - self.declared;
            self.entries.push(LedgerEntry::Split(last.header.member(), more));
            self.declared += more;
        }
    }

    /// Records the outputs of an item before they leave the stage, if more outputs may follow.
    fn settle_so_far(&mut self) {
        // The item itself counts as one more piece, because its processing continues.
        self.declare_outputs(u64::from(self.first.is_some()));
        if let Some(last) = self.last.as_mut().filter(|last| !last.open) {
            self.entries.push(LedgerEntry::Split(last.header.member(), 1));
            last.open = true;
        }
        self.record();
    }

    /// Records that the buffered items are discarded.
    pub(super) fn leave_out(&mut self) {
        let discarded: Vec<LineageNode> = self.buffered.clear().collect();
        // Without an item there is no outcome to record.
        let Some(&LineageNode { id, lineage, .. }) = discarded.first() else { return };
        let Some(place) = self.buffered.place_of_discarded() else {
            let discarded =
                discarded.into_iter().map(|member| LedgerEntry::Ended(member, Outcome::LeftOut));
            return self.entries.extend(discarded);
        };
        // A part of the oldest item may be in flight.
        let members =
            Some(Arc::new(AggregateLineage::new(discarded).with_order(self.order(place))));
        self.entries
            .push(LedgerEntry::Ended(LineageNode { id, lineage, of: members }, Outcome::LeftOut));
    }

    /// Records the pending entries in the ledger.
    pub(super) fn record(&mut self) {
        match self.node.core.shared.ledger.get() {
            Some(ledger) => ledger.record(&mut self.entries, self.node.core.is_unmerged),
            None => self.entries.clear(),
        }
    }

    /// Returns the reservation of an output. `given` is the reservation of an aggregate's members.
    fn reservation(
        &mut self,
        value: &S::Out,
        mut given: Option<Reservation>,
    ) -> Option<Reservation> {
        let measured = self.node.sizer.as_ref().zip(self.node.core.measured());
        let Some((sizer, (measure, budget))) = measured else {
            // An unmeasured output is assumed to hold as much memory as its inputs.
            return match (self.node.aggregates, self.node.releases) {
                (true, _) => given,
                (false, true) => None,
                (false, false) => self.carried.take(),
            };
        };
        let bytes = sizer(value);
        let reserved = if self.node.aggregates { &mut given } else { &mut self.reservation };
        if reserved.is_none() {
            // The output was made of unmeasured inputs, or after its item was processed. Its memory
            // is already allocated.
            *reserved = budget.try_reserve(measure.level, 0).ok().flatten();
        }
        reserved.as_mut().map(|reservation| measure.reservation(reservation, bytes))
    }
}

impl<In: Send + 'static, S: Stage<In>> Outlet<S::Out> for QueueOutlet<'_, In, S> {
    fn emit(&mut self, header: &ItemHeader, value: S::Out) -> Result<()> {
        self.emit_aggregate(header, value, AggregateInputs::default())
    }

    fn emit_aggregate(
        &mut self,
        header: &ItemHeader,
        value: S::Out,
        parts: AggregateInputs,
    ) -> Result<()> {
        let mut given = if self.node.aggregates { Some(self.buffered.take(&parts)?) } else { None };
        let reservation = given.as_mut().and_then(|given| given.reservation.take());
        let reservation = self.reservation(&value, reservation);
        let header = self.header(header, given);
        let room = self.make_room();
        self.run.outputs.push(Item { header, value, reservation });
        room
    }

    fn filter_out(&mut self) {
        self.filtered = true;
    }

    fn add_fill_rate(&mut self, more: FillRate) {
        self.node.core.meter.filled(more);
    }

    fn count_retry(&mut self) {
        self.node.core.meter.retries.add(1);
    }

    fn carry(&mut self, header: &ItemHeader) -> u64 {
        let split = self.node.state.carry.lock().take();
        // If the split item has failed in this run of the program, the first item is another one,
        // of which no part was emitted.
        let is_this = |epoch, split: PartialItem| {
            epoch == header.id.epoch && split.piece == header.member().piece()
        };
        let Some((_, split)) =
            split.filter(|&(epoch, split)| is_this(epoch, split) && split.out > 0)
        else {
            return 0;
        };
        self.buffered.resume_split(split.piece, split.out);
        split.out
    }

    fn wait(&mut self, duration: Duration) -> Result<()> {
        let started = Instant::now();
        if !self.run.outputs.is_empty() && self.in_turn() && !self.halted() {
            // Outputs of earlier items do not wait with the current one.
            self.settle_so_far();
            self.node.flush(self.pool, &mut self.run)?;
        }
        self.pool.work_downstream_for(&self.node.position, duration, || self.node.output.is_shut());
        self.waited += started.elapsed();
        self.check_stopped()
    }

    fn flush(&mut self) -> Result<()> {
        if self.run.outputs.is_empty() || !self.in_turn() {
            return self.check_stopped();
        }
        if self.halted() {
            return Err(stopped());
        }
        let started = Instant::now();
        self.settle_so_far();
        let flushed = self.node.flush(self.pool, &mut self.run);
        self.waited += started.elapsed();
        flushed
    }

    fn check_stopped(&self) -> Result<()> {
        // `stop` sets its flag before it shuts the queues, and waits may end in between.
        let over = self.node.output.is_shut() || self.node.core.shared.stopped();
        if over { Err(stopped()) } else { Ok(()) }
    }
}
