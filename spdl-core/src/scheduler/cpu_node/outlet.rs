//! Where a stage that computes puts what it makes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::gathering::{AggregateHeader, EmissionPlace, Gathering};
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

/// How many outputs an item may have waiting for its turn; it makes more only when that has come.
const MOST_OUT_OF_TURN: usize = 64;

/// Collects a run's outputs; lets them overflow into the queue where they are many.
pub(super) struct QueueOutlet<'a, In, S: Stage<In>> {
    pub(super) node: &'a CpuNode<In, S>,
    pub(super) pool: &'a Arc<WorkerPool>,
    pub(super) run: ItemRun<S::Out>,
    /// The number of the run's first item; `None` at the end of an epoch.
    pub(super) first: Option<u64>,
    /// Memory that was reserved for the outputs.
    pub(super) reservation: Option<Reservation>,
    /// The memory of the item at hand.
    pub(super) carried: Option<Reservation>,
    /// Outputs of the item so far.
    pub(super) emitted: u64,
    /// Whether nothing is to come of it.
    pub(super) filtered: bool,
    /// As how many pieces the account knows the item. One, at first; none at the end of an epoch,
    /// where there is no item.
    pub(super) declared: u64,
    /// What the account has yet to be told.
    pub(super) entries: Vec<LedgerEntry>,
    /// What is held back, where the stage gathers.
    pub(super) gathering: Gathering,
    /// The aggregate that came last of the item at hand.
    pub(super) last: Option<LastAggregate>,
    /// How long outputs waited for room.
    pub(super) waited: Duration,
}

/// An aggregate, after which others may come that are made of the same items.
pub(super) struct LastAggregate {
    header: ItemHeader,
    /// How many have come of these items.
    outputs: u64,
    /// What was cut at its end.
    cut: Option<(PieceId, u64)>,
    /// Whether the account knows of one more, since it may have been handed on already.
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

    /// Whether a failure in front of what is to go on now has ended the stage.
    fn cut(&mut self) -> bool {
        let Some(turns) = &self.node.turns else { return false };
        let cut = turns.lock().cut;
        let cut = self.node.judge(&mut self.run, cut);
        turns.lock().cut |= cut;
        cut
    }

    /// The header of the next output.
    fn header(&mut self, header: &ItemHeader, given: Option<AggregateHeader>) -> ItemHeader {
        let mut header = header.output(self.node.core.number, self.emitted);
        self.emitted += 1;
        let Some(AggregateHeader { header: own, members, place, end, .. }) = given else {
            return header;
        };
        let cut = place.and_then(|place| place.cut);
        let no_more = |last: &&mut LastAggregate| members.is_empty() && last.cut == cut;
        if let Some(last) = self.last.as_mut().filter(no_more) {
            // One more of the same items: they are not done before it is.
            if place.is_some() {
                self.gathering.give_place_back();
            }
            self.entries.push(LedgerEntry::Split(last.header.member(), 1));
            last.outputs += 1;
            return last.header.output(self.node.core.number, last.outputs - 1);
        }
        self.close();
        if members.is_empty() && self.gathering.is_empty() {
            self.holds_back(BufferingEvidence::OutputWithoutInput);
        }
        let ticket = header.ticket().cloned();
        match (own, members.first()) {
            (Some(own), _) => header = own,
            // No other aggregate has this piece.
            (None, Some(first)) => (header.id, header.lineage) = (first.id, first.lineage),
            (None, None) => {}
        }
        let members = AggregateLineage::new(members).made_at(end);
        let members = match place {
            Some(place) => members.linked(self.link(place)),
            None => members,
        };
        let members = Some(Arc::new(members));
        header.tag = Some(Arc::new(ItemTag { key: None, members, ticket }));
        self.last = Some(LastAggregate { header: header.clone(), outputs: 1, cut, open: false });
        header
    }

    /// Says that no more aggregates come of the same items.
    pub(super) fn close(&mut self) {
        if let Some(LastAggregate { header, open: true, .. }) = self.last.take() {
            self.entries.push(LedgerEntry::Ended(header.member(), Outcome::Joined));
        }
    }

    fn link(&self, place: EmissionPlace) -> EmissionOrder {
        let EmissionPlace { number, waits, begun, cut } = place;
        EmissionOrder { stage: Arc::clone(self.node.core.name()), number, waits, begun, cut }
    }

    /// Keeps the memory of an item that is taken in.
    pub(super) fn keep(&mut self, reservation: Option<Reservation>) -> Result<()> {
        let Some(reservation) = reservation else { return Ok(()) };
        if !self.node.gathers {
            self.carried = Some(reservation);
            return Ok(());
        }
        match self.node.core.measured() {
            Some((measure, budget)) => self.gathering.keep(reservation, measure, budget),
            None => Ok(()),
        }
    }

    fn holds_back(&self, how: BufferingEvidence) {
        if let Some(ledger) = self.node.core.shared.ledger.get() {
            ledger.record_buffering(self.node.core.name(), how);
        }
    }

    /// Notes what has come of an item: how many pieces it is now.
    pub(super) fn settle(&mut self, header: &ItemHeader) {
        let pieces = self.emitted;
        let held_back = match self.first {
            Some(_) if pieces == 0 && !self.filtered => Some(BufferingEvidence::NoOutput),
            None if pieces > 0 => Some(BufferingEvidence::OutputAtEpochEnd),
            _ => None,
        };
        if let Some(how) = held_back {
            self.holds_back(how);
        }
        if pieces == self.declared {
            return;
        }
        let member = header.member();
        let outcome = if pieces == 0 { Outcome::Filtered } else { Outcome::Joined };
        let gone = self.declared.saturating_sub(pieces);
        self.entries.extend((0..gone).map(|_| LedgerEntry::Ended(member.clone(), outcome)));
        if pieces > self.declared {
            self.entries.push(LedgerEntry::Split(member, pieces - self.declared));
        }
        self.declared = pieces;
    }

    /// Hands on what was made so far, where that is as much as may wait, since one more output is at
    /// hand. So the last one goes on when its item is done, and never seems to be one of many.
    fn make_room(&mut self) -> Result<()> {
        if self.run.outputs.len() < self.run.places.max(1) {
            return Ok(());
        }
        let started = Instant::now();
        if !self.in_turn() {
            // Out of turn, an ordered stage keeps its outputs, but not without bound.
            if self.run.outputs.len() < self.run.places + MOST_OUT_OF_TURN {
                return Ok(());
            }
            while !self.in_turn() && !self.node.output.is_shut() {
                self.pool.work_downstream(&self.node.position, || {
                    self.in_turn() || self.node.output.is_shut()
                });
            }
        }
        // The output at hand is counted already, and keeps its item from being done.
        self.note_outputs(0);
        self.tell();
        let flushed =
            if self.cut() { Err(stopped()) } else { self.node.flush(self.pool, &mut self.run) };
        self.waited += started.elapsed();
        flushed
    }

    /// Notes that an item is as many pieces as it has outputs so far, and `open` more.
    fn note_outputs(&mut self, open: u64) {
        if self.emitted + open > self.declared
            && !self.node.gathers
            && let Some(last) = self.run.outputs.last()
        {
            let more = self.emitted + open - self.declared;
            self.entries.push(LedgerEntry::Split(last.header.member(), more));
            self.declared += more;
        }
    }

    /// Notes the outputs of an item that may have more of them, before they are handed on.
    fn settle_so_far(&mut self) {
        // Behind an item there is one more piece: itself.
        self.note_outputs(u64::from(self.first.is_some()));
        if let Some(last) = self.last.as_mut().filter(|last| !last.open) {
            self.entries.push(LedgerEntry::Split(last.header.member(), 1));
            last.open = true;
        }
        self.tell();
    }

    /// Notes that what is held back will never come out.
    pub(super) fn leave_out(&mut self) {
        let lost: Vec<LineageNode> = self.gathering.clear().collect();
        // Nothing would end in the place of nothing.
        let Some(&LineageNode { id, lineage, .. }) = lost.first() else { return };
        let Some(place) = self.gathering.place_of_lost() else {
            let lost = lost.into_iter().map(|member| LedgerEntry::Ended(member, Outcome::LeftOut));
            return self.entries.extend(lost);
        };
        // A part of the oldest one may be under way.
        let members = Some(Arc::new(AggregateLineage::new(lost).linked(self.link(place))));
        self.entries
            .push(LedgerEntry::Ended(LineageNode { id, lineage, of: members }, Outcome::LeftOut));
    }

    /// Tells the account.
    pub(super) fn tell(&mut self) {
        match self.node.core.shared.ledger.get() {
            Some(ledger) => ledger.record(&mut self.entries),
            None => self.entries.clear(),
        }
    }

    /// The memory of an output. `given` is that of the items it is made of, where it gathers.
    fn reservation(
        &mut self,
        value: &S::Out,
        mut given: Option<Reservation>,
    ) -> Option<Reservation> {
        let measured = self.node.sizer.as_ref().zip(self.node.core.measured());
        let Some((sizer, (measure, budget))) = measured else {
            // What is not measured is taken to hold as much as what it was made of.
            return if self.node.gathers { given } else { self.carried.take() };
        };
        let bytes = sizer(value);
        let reserved = if self.node.gathers { &mut given } else { &mut self.reservation };
        if reserved.is_none() {
            // Made of what is not measured, or held back since the item: it exists already.
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
        let mut given = if self.node.gathers { Some(self.gathering.give(&parts)?) } else { None };
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

    fn carry(&mut self, header: &ItemHeader) -> u64 {
        let cut = self.node.state.carry.lock().take();
        // It may have failed on its way this time; nothing of another one has gone out.
        let is_this = |epoch, cut: PartialItem| {
            epoch == header.id.epoch && cut.piece == header.member().piece()
        };
        let Some((_, cut)) = cut.filter(|&(epoch, cut)| is_this(epoch, cut) && cut.out > 0) else {
            return 0;
        };
        self.gathering.resume_cut(cut.piece, cut.out);
        cut.out
    }

    fn wait(&mut self, duration: Duration) -> Result<()> {
        let started = Instant::now();
        if !self.run.outputs.is_empty() && self.in_turn() && !self.cut() {
            // What the items before have made does not wait with this one.
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
        if self.cut() {
            return Err(stopped());
        }
        let started = Instant::now();
        self.settle_so_far();
        let flushed = self.node.flush(self.pool, &mut self.run);
        self.waited += started.elapsed();
        flushed
    }

    fn check_stopped(&self) -> Result<()> {
        // A pipeline is stopped a moment before its queues are shut, and waits end then.
        let over = self.node.output.is_shut() || self.node.core.shared.stopped();
        if over { Err(stopped()) } else { Ok(()) }
    }
}
