//! The ledger records which samples of an epoch are done, and checks that each has one outcome.
//!
//! A sample is done when every piece of it was delivered, dropped by the failure policy, filtered
//! out or left out. Most samples have one piece, and the consumer records its delivery. Stages
//! record two exceptions: a piece that ends in the stage, and a piece that is split. A stage
//! records exceptions before it forwards the pieces, so a sample with a piece in flight is never
//! counted as done.
//!
//! An aggregate contains one piece of each of its members. If a later stage splits the aggregate,
//! the ledger counts the pieces of the aggregate. The aggregate ends when its last piece ends.
//!
//! A stage may split one item across two aggregates. The ledger then records the outcomes of that
//! stage's aggregates strictly in emission order. While a part of the split item is in flight,
//! neither the item nor anything after it is done. A resumed run splits the item at the same place.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::error::{Error, ErrorKind, Result};
use crate::item::ItemHeader;
use crate::item::lineage::{AggregateLineage, EndedPieces, LineageNode, Outcome, PieceId};
use crate::resume::state::SampleCounts;
use crate::source::ranges::Ranges;
use crate::source::sample::SampleId;
use crate::source::shard::{Division, Divisions};
use crate::sync::Mutex;

/// The maximum number of samples that the error of an audit lists per category.
const MOST_NAMED: usize = 8;
/// The maximum number of ranges of [`Unmerged::scattered`], unless many samples are in flight.
const MOST_SCATTERED: usize = 256;

/// An item of which a part has an outcome while the splitting stage still holds the remainder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct PartialItem {
    pub(crate) piece: PieceId,
    /// The length of that part, in units that the stage defines.
    pub(crate) out: u64,
    /// The outcome of that part.
    #[cfg_attr(feature = "serde", serde(rename = "fate"))]
    outcome: Outcome,
}

/// The outcomes of the aggregates of a splitting stage, in emission order.
#[derive(Debug, Default)]
struct EmissionSequence {
    /// The number of the first aggregate in flight.
    next: u64,
    /// Ended aggregates after `next` that need not wait. They are stored as ranges, because very
    /// many aggregates may end before a slow one.
    ended: Ranges,
    /// Ended aggregates after `next` that wait for `next`. With ordered stages, their number is at
    /// most the number in flight. Otherwise it is the number of aggregates that overtook a slow
    /// one.
    waiting: BTreeMap<u64, (Arc<AggregateLineage>, Outcome)>,
    /// The item that was split at the end of the previous aggregate.
    split: Option<PartialItem>,
    /// One past the position of the last sample that the stage had received when it emitted the
    /// previous aggregate.
    end: u64,
}

impl EmissionSequence {
    /// Removes the next waiting aggregate if all aggregates before it have ended.
    fn take_next(&mut self) -> Option<(Arc<AggregateLineage>, Outcome)> {
        let next = self.ended.next_absent(self.next);
        if next > self.next {
            // An aggregate that need not wait ends with no split item.
            (self.next, self.split) = (next, None);
        }
        let waiting = self.waiting.remove(&self.next)?;
        self.next += 1;
        Some(waiting)
    }
}

/// The samples that ended before a merge that chooses its branches, so that the merge has made no choice for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Unmerged {
    /// By source: how many of the samples before its first sample that is not done.
    counts: BTreeMap<usize, u64>,
    /// The other samples.
    scattered: Ranges,
}

impl Unmerged {
    #[cfg(feature = "serde")]
    pub(crate) fn is_none(&self) -> bool {
        *self == Unmerged::default()
    }

    /// Counts the samples of each source before its first sample that is not done.
    fn compact(&mut self, done: &Ranges) {
        let mut rest = Ranges::default();
        for range in self.scattered.iter() {
            let source = SampleId { epoch: 0, index: range.start }.source();
            let first = done.next_absent(SampleId::indices_of(source).start);
            let counted = range.start..range.end.min(first).max(range.start);
            if !counted.is_empty() {
                *self.counts.entry(source).or_default() += counted.end - counted.start;
            }
            rest.insert_range(counted.end..range.end);
        }
        self.scattered = rest;
    }

    /// The samples of a source for which the merge has made a choice, if `done` are done.
    pub(crate) fn merged(&self, source: usize, done: &Ranges) -> MergedSamples {
        let Range { start, end } = SampleId::indices_of(source);
        let first = done.next_absent(start);
        let count =
            (first - start).saturating_sub(self.counts.get(&source).copied().unwrap_or_default());
        let later = done.part(first..end);
        let unmerged = self.scattered.part(first..end);
        let later = later.iter().flat_map(|range| {
            let inside = unmerged.part(range.clone()).absent_below(range.end - range.start);
            let shift = first + range.start;
            inside.iter().map(move |it| it.start + shift..it.end + shift).collect::<Vec<_>>()
        });
        MergedSamples { count, later: later.collect() }
    }
}

/// The samples of a branch that a merge has merged in an earlier run, and that are done.
#[derive(Clone, Debug, Default)]
pub(crate) struct MergedSamples {
    /// How many of them precede the first sample that is not done.
    count: u64,
    /// The indices of the others, ascending.
    later: VecDeque<Range<u64>>,
}

impl MergedSamples {
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0 && self.later.is_empty()
    }

    /// Removes the first one, if it precedes all samples that are not done.
    pub(crate) fn take_first(&mut self) -> bool {
        let any = self.count > 0;
        self.count -= u64::from(any);
        any
    }

    /// Removes the first one, if it precedes the sample `index`.
    pub(crate) fn take_before(&mut self, index: u64) -> bool {
        let Some(range) = self.later.front_mut().filter(|range| range.start < index) else {
            return false;
        };
        range.start += 1;
        if range.is_empty() {
            self.later.pop_front();
        }
        true
    }
}

/// A range of `len` consecutive deliveries. Positions are `stride` apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeliveredRange {
    pub(crate) first: u64,
    pub(crate) len: u64,
    pub(crate) stride: u64,
    pub(crate) lineage: u64,
}

/// An exception that a stage records.
#[derive(Debug)]
pub(crate) enum LedgerEntry {
    /// A piece has ended.
    Ended(LineageNode, Outcome),
    /// A piece is split. The number is the number of added pieces.
    Split(LineageNode, u64),
}

/// The record of outcomes of a pipeline with one source.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) divisions: Arc<Divisions>,
    /// Pieces that ended in an earlier run and whose samples are not done.
    ended_before: EndedPieces,
    /// Items that were split in the earlier run, by stage.
    splits: BTreeMap<String, PartialItem>,
    /// The samples that ended before a merge in an earlier run.
    unmerged: Unmerged,
    /// The epoch of `ended_before`, `splits` and `unmerged`.
    resumed_epoch: Option<u64>,
    epochs: Mutex<BTreeMap<u64, EpochLedger>>,
    /// A stage that buffers items without exact resume, and how that was detected.
    buffering: OnceLock<(Arc<str>, BufferingEvidence)>,
}

/// How the engine detected that a stage buffers items.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BufferingEvidence {
    /// The stage declares it.
    Declared,
    /// The stage emitted nothing for an input and did not report it as filtered out.
    NoOutput,
    /// The stage emitted an output at the end of an epoch.
    OutputAtEpochEnd,
    /// The aggregator emitted an output after all inputs that it had reported were already emitted.
    OutputWithoutInput,
    /// A branch of a merge whose policy chooses the branches yielded an item that is not one sample.
    GroupedBeforeMerge,
}

impl BufferingEvidence {
    /// The reason why this pipeline has no checkpoint state.
    pub(crate) fn error(self, stage: &Arc<str>) -> Error {
        let message = match self {
            BufferingEvidence::Declared => {
                "this stage buffers items internally, so the samples in its outputs are unknown and \
                 no checkpoint state exists; use `aggregate` to group items"
            }
            BufferingEvidence::NoOutput => {
                "this stage emitted nothing for an input and did not report it as filtered out; if \
                 it buffers the input, a resumed run would lose it; call \
                 `StageContext::filter_out` in a stage that filters, and use `aggregate` to group \
                 items"
            }
            BufferingEvidence::OutputAtEpochEnd => {
                "this stage emitted an output at the end of an epoch, so it had buffered an input, \
                 which a resumed run would lose; use `aggregate` to group items"
            }
            BufferingEvidence::OutputWithoutInput => {
                "this aggregator emitted an output after all inputs that it had reported were \
                 emitted, so it buffers inputs that a resumed run would lose; \
                 `ExactResume::inputs` must return the inputs of each aggregate"
            }
            BufferingEvidence::GroupedBeforeMerge => {
                "a branch of this merge groups, splits, zips or merges items, so a resumed run would not \
                 know for which items the merge has chosen this branch; do so after the merge, or merge in \
                 the order of arrival (`Arrival`)"
            }
        };
        Error::new(ErrorKind::Unsupported, message).with_stage(Arc::clone(stage))
    }
}

/// The record of outcomes of one epoch.
#[derive(Debug)]
struct EpochLedger {
    division: Division,
    /// The samples that are done, numbered within this rank.
    done: Ranges,
    /// How many samples were done when this run began.
    before: u64,
    /// Samples that have more than one piece.
    items: HashMap<u64, SplitSample>,
    /// Aggregates of which some pieces have ended while others are in flight or the aggregate waits
    /// for an earlier one. The key is the address.
    partial: HashMap<usize, Arc<AggregateLineage>>,
    /// The emission sequences, by stage.
    sequences: BTreeMap<Arc<str>, EmissionSequence>,
    /// The samples that ended before a merge that chooses its branches.
    unmerged: Unmerged,
    counts: SampleCounts,
    /// How many samples the source has yielded; `None` until the source reports its end.
    yielded: Option<u64>,
    /// Samples that ended more than once.
    repeated: Vec<u64>,
    /// Samples that the source of this rank cannot yield.
    unknown: Vec<u64>,
}

#[derive(Debug)]
struct SplitSample {
    pieces: u64,
    outcome: Outcome,
    /// The pieces that have ended.
    ended: EndedPieces,
    /// The sample was done before it was split.
    already_done: bool,
}

/// The recorded progress of the current epoch.
#[derive(Clone, Debug, Default)]
pub(crate) struct EpochProgress {
    pub(crate) done: Ranges,
    pub(crate) pieces: EndedPieces,
    pub(crate) splits: BTreeMap<String, PartialItem>,
    /// One past the position of the last sample that partly delivered lists and split items depend
    /// on.
    pub(crate) parts_end: u64,
    pub(crate) unmerged: Unmerged,
    pub(crate) counts: SampleCounts,
}

/// The key of an aggregate while the ledger holds it.
fn address(members: &Arc<AggregateLineage>) -> usize {
    Arc::as_ptr(members).addr()
}

impl EpochLedger {
    fn new(division: Division, done: Ranges) -> Self {
        EpochLedger {
            division,
            before: done.count(),
            done,
            items: HashMap::new(),
            partial: HashMap::new(),
            sequences: BTreeMap::new(),
            unmerged: Unmerged::default(),
            counts: SampleCounts::default(),
            yielded: None,
            repeated: Vec::new(),
            unknown: Vec::new(),
        }
    }

    fn done(&mut self, index: u64, outcome: Outcome) {
        let Some(own) = self.division.local(index) else {
            return self.unknown.push(index);
        };
        if !self.done.insert(own) {
            return self.repeated.push(index);
        }
        match outcome {
            Outcome::Delivered => self.counts.delivered += 1,
            Outcome::Dropped => self.counts.dropped += 1,
            Outcome::Filtered => self.counts.filtered += 1,
            Outcome::LeftOut | Outcome::Joined => self.counts.left_out += 1,
        }
    }

    /// Records the end of a piece of a sample.
    fn end_piece(&mut self, index: u64, lineage: u64, outcome: Outcome) {
        let item = if self.items.is_empty() { None } else { self.items.get_mut(&index) };
        let Some(item) = item else { return self.done(index, outcome) };
        item.pieces = item.pieces.saturating_sub(1);
        item.outcome = item.outcome.max(outcome);
        if item.pieces > 0 {
            // The aggregate that contains the piece may have the same identity.
            if outcome != Outcome::Joined {
                item.ended.insert(PieceId::of_sample(index, lineage), outcome);
            }
        } else if let Some(item) = self.items.remove(&index)
            && !item.already_done
        {
            self.done(index, item.outcome);
        }
    }

    /// Records delivered samples.
    fn delivered(&mut self, range: DeliveredRange) {
        let DeliveredRange { first, len, stride, lineage } = range;
        let last = first + (len - 1) * stride;
        if len > 1
            && self.items.is_empty()
            && let (Some(start), Some(end)) =
                (self.division.local(first), self.division.local(last))
            && end - start == len - 1
            && self.done.is_absent(start..end + 1)
        {
            self.done.insert_range(start..end + 1);
            self.counts.delivered += len;
            return;
        }
        for index in (0..len).map(|step| first + step * stride) {
            self.end_piece(index, lineage, Outcome::Delivered);
        }
    }

    fn end_member(&mut self, member: &LineageNode, outcome: Outcome) {
        let Some(members) = &member.of else {
            return self.end_piece(member.id.index, member.lineage, outcome);
        };
        let mut live = members.live.lock();
        live.pieces = live.pieces.saturating_sub(1);
        live.outcome = live.outcome.max(outcome);
        let (under_way, whole) = (live.pieces > 0, live.outcome);
        let in_order = members.order.as_ref().is_some_and(|order| order.in_order);
        if (under_way || in_order) && outcome != Outcome::Joined {
            if live.ended.is_empty() {
                self.partial.insert(address(members), Arc::clone(members));
            }
            live.ended.insert(member.piece(), outcome);
        }
        drop(live);
        if under_way {
            return;
        }
        let Some(order) = &members.order else { return self.end_aggregate(members, whole) };
        if !order.in_order {
            self.end_aggregate(members, whole);
        }
        let sequence = self.sequences.entry(Arc::clone(&order.stage)).or_default();
        if order.in_order {
            sequence.waiting.insert(order.number, (Arc::clone(members), whole));
        } else {
            sequence.ended.insert(order.number);
        }
        while let Some(sequence) = self.sequences.get_mut(&order.stage)
            && let Some((members, outcome)) = sequence.take_next()
        {
            self.end_in_turn(&members, outcome);
        }
    }

    /// Records the end of an aggregate as the end of its members.
    fn end_aggregate(&mut self, members: &Arc<AggregateLineage>, outcome: Outcome) {
        self.partial.remove(&address(members));
        let split =
            members.order.as_ref().and_then(|order| self.sequences.get(&order.stage)?.split);
        for member in &members.list {
            // The first part of the member may have another outcome.
            let first =
                split.filter(|split| split.piece == member.piece()).map(|split| split.outcome);
            self.end_member(member, first.map_or(outcome, |first| first.max(outcome)));
        }
    }

    /// Records the end of an aggregate in emission order, and the item split after it.
    fn end_in_turn(&mut self, members: &Arc<AggregateLineage>, outcome: Outcome) {
        let Some(order) = &members.order else { return };
        self.end_aggregate(members, outcome);
        let Some(sequence) = self.sequences.get_mut(&order.stage) else { return };
        let before = sequence.split;
        sequence.end = members.end;
        sequence.split = order.split_at_end.map(|(piece, out)| {
            let first = before.filter(|split| split.piece == piece).map(|split| split.outcome);
            PartialItem { piece, out, outcome: first.map_or(outcome, |first| first.max(outcome)) }
        });
    }

    /// Restores items that an earlier run had split.
    fn resume(&mut self, splits: &BTreeMap<String, PartialItem>) {
        for (stage, &split) in splits {
            let sequence = self.sequences.entry(stage.as_str().into()).or_default();
            sequence.split = Some(split);
            if split.piece.depth == 0 {
                // The remainder of the item may never arrive.
                let ended = EndedPieces::default();
                let item =
                    SplitSample { pieces: 1, outcome: split.outcome, ended, already_done: false };
                self.items.entry(split.piece.index).or_insert(item);
            }
        }
    }

    /// Records that a sample ended before a merge that chooses its branches.
    fn end_unmerged(&mut self, member: &LineageNode) {
        self.unmerged.scattered.insert(member.id.index);
        if self.unmerged.scattered.iter().len() > MOST_SCATTERED {
            self.unmerged.compact(&self.done);
        }
    }

    /// Whether a sample is done.
    fn is_done(&self, index: u64) -> bool {
        self.division.local(index).is_some_and(|own| self.done.contains(own))
    }

    fn split(&mut self, member: &LineageNode, pieces: u64) {
        if let Some(members) = &member.of {
            members.live.lock().pieces += pieces;
            return;
        }
        let index = member.id.index;
        let item = self.items.entry(index).or_insert_with(|| {
            // A stage that emits at the end of an epoch may reuse the identity of a sample that is
            // done.
            let division = &self.division;
            let already_done = division.local(index).is_some_and(|own| self.done.contains(own));
            let ended = EndedPieces::default();
            SplitSample {
                pieces: u64::from(!already_done),
                outcome: Outcome::Joined,
                ended,
                already_done,
            }
        });
        item.pieces += pieces;
    }

    fn enter(&mut self, entry: &LedgerEntry) {
        match entry {
            LedgerEntry::Ended(member, outcome) => self.end_member(member, *outcome),
            LedgerEntry::Split(member, pieces) => self.split(member, *pieces),
        }
    }

    /// Checks that every sample that the source has yielded has exactly one outcome.
    fn audit(&self, epoch: u64) -> Result<()> {
        let fault = |message: String| Err(Error::new(ErrorKind::Internal, message));
        let Some(yielded) = self.yielded else {
            return fault(format!(
                "epoch {epoch} has ended, but the source has not reported the end of the epoch"
            ));
        };
        let ended = self.done.count() - self.before;
        let clean = self.items.is_empty() && self.repeated.is_empty() && self.unknown.is_empty();
        if ended == yielded && clean {
            return Ok(());
        }
        let SampleCounts { delivered, dropped, filtered, left_out } = self.counts;
        let mut message = format!(
            "epoch {epoch} failed its audit: the source yielded {yielded} samples; {delivered} were \
             delivered, {dropped} dropped, {filtered} filtered out, {left_out} left out: {ended} in \
             total"
        );
        let mut list = |what: &str, mut indices: Vec<u64>| {
            indices.sort_unstable();
            if !indices.is_empty() {
                let more = if indices.len() > MOST_NAMED { " …" } else { "" };
                indices.truncate(MOST_NAMED);
                let names: Vec<String> = indices.iter().map(u64::to_string).collect();
                message.push_str(&format!("; {what}: {}{more}", names.join(", ")));
            }
        };
        let absent = self.done.absent_below(self.before + yielded);
        let lost = absent.iter().flatten().filter_map(|own| self.division.at(own));
        let lost = lost.map(|position| position.id).filter(|id| !self.items.contains_key(id));
        list("lost", lost.take(MOST_NAMED + 1).collect());
        list("incomplete", self.items.keys().copied().collect());
        list("ended more than once", self.repeated.clone());
        list("never yielded by the source", self.unknown.clone());
        fault(message)
    }
}

impl Ledger {
    /// Creates a ledger that continues from the partly delivered samples of an earlier run.
    pub(crate) fn new(
        divisions: Arc<Divisions>,
        ended_before: EndedPieces,
        splits: BTreeMap<String, PartialItem>,
        unmerged: Unmerged,
    ) -> Self {
        Ledger {
            resumed_epoch: divisions.resumed.as_ref().map(|point| point.epoch),
            divisions,
            ended_before,
            splits,
            unmerged,
            epochs: Mutex::default(),
            buffering: OnceLock::new(),
        }
    }

    fn epoch_ledger<'a>(
        &self,
        epochs: &'a mut BTreeMap<u64, EpochLedger>,
        epoch: u64,
    ) -> &'a mut EpochLedger {
        epochs.entry(epoch).or_insert_with(|| {
            let done = self.divisions.resume_point(epoch).map(|point| point.done.clone());
            let mut epoch_ledger =
                EpochLedger::new(self.divisions.division(epoch), done.unwrap_or_default());
            if Some(epoch) == self.resumed_epoch {
                epoch_ledger.resume(&self.splits);
                epoch_ledger.unmerged.clone_from(&self.unmerged);
            }
            epoch_ledger
        })
    }

    /// Records exceptions of a stage. The stage calls this before it forwards the pieces. `chooses` is whether the
    /// stage precedes a merge that chooses its branches.
    pub(crate) fn record(&self, entries: &mut Vec<LedgerEntry>, chooses: bool) {
        if entries.is_empty() {
            return;
        }
        let mut epochs = self.epochs.lock();
        for entry in entries.iter() {
            let (LedgerEntry::Ended(member, _) | LedgerEntry::Split(member, _)) = entry;
            let epoch_ledger = self.epoch_ledger(&mut epochs, member.id.epoch);
            epoch_ledger.enter(entry);
            if chooses && let LedgerEntry::Ended(member, _) = entry {
                epoch_ledger.end_unmerged(member);
            }
        }
        drop(epochs);
        entries.clear();
    }

    /// Records the end of a piece before a merge that chooses its branches.
    pub(crate) fn record_unmerged(&self, member: &LineageNode, outcome: Outcome) {
        let mut epochs = self.epochs.lock();
        let epoch_ledger = self.epoch_ledger(&mut epochs, member.id.epoch);
        epoch_ledger.end_member(member, outcome);
        epoch_ledger.end_unmerged(member);
    }

    /// Records the end of a piece.
    pub(crate) fn record_end(&self, member: &LineageNode, outcome: Outcome) {
        self.epoch_ledger(&mut self.epochs.lock(), member.id.epoch).end_member(member, outcome);
    }

    /// Records that a piece is split. The split adds `pieces` pieces.
    pub(crate) fn record_split(&self, member: &LineageNode, pieces: u64) {
        self.epoch_ledger(&mut self.epochs.lock(), member.id.epoch).split(member, pieces);
    }

    /// Whether this piece ended in an earlier run, alone or as part of an aggregate. If so, this
    /// method records the end of the piece, and the caller drops the piece.
    pub(crate) fn ended_before(&self, header: &ItemHeader) -> bool {
        if self.ended_before.is_empty() || Some(header.id.epoch) != self.resumed_epoch {
            return false;
        }
        let member = header.member();
        let outcome = self.ended_before.get(member.piece());
        outcome.inspect(|&outcome| self.record_end(&member, outcome)).is_some()
    }

    /// Whether [`ended_before`](Self::ended_before) may ever be true.
    pub(crate) fn has_ended_before(&self) -> bool {
        !self.ended_before.is_empty()
    }

    /// Records how many samples of an epoch the source has yielded in total.
    pub(crate) fn yielded(&self, epoch: u64, samples: u64) {
        self.epoch_ledger(&mut self.epochs.lock(), epoch).yielded = Some(samples);
    }

    /// Records that a stage buffers items. Must precede the entries for the stage's outputs.
    pub(crate) fn record_buffering(&self, stage: &Arc<str>, how: BufferingEvidence) {
        let _ = self.buffering.set((Arc::clone(stage), how));
    }

    /// The reason why no checkpoint state exists, if any. Call this after reading the progress: a
    /// stage is known to buffer an item before the item can count as done.
    pub(crate) fn unsupported(&self) -> Option<Error> {
        self.buffering.get().map(|(stage, how)| how.error(stage))
    }

    /// Removes the record of an epoch whose end the consumer has reached, after the audit if
    /// `audit` is set.
    pub(crate) fn close(&self, epoch: u64, audit: bool) -> Result<SampleCounts> {
        let mut epochs = self.epochs.lock();
        let epoch_ledger = self.epoch_ledger(&mut epochs, epoch);
        if audit {
            // If the audit fails, the record stays: lost samples remain to be done.
            epoch_ledger.audit(epoch)?;
        }
        let counts = epoch_ledger.counts;
        epochs.remove(&epoch);
        Ok(counts)
    }

    /// Records samples that the consumer received.
    pub(crate) fn delivered(&self, epoch: u64, ranges: &[DeliveredRange]) {
        let mut epochs = self.epochs.lock();
        let epoch_ledger = self.epoch_ledger(&mut epochs, epoch);
        ranges.iter().for_each(|&range| epoch_ledger.delivered(range));
    }

    /// The progress of an epoch. Calls `delivered` under the lock of the ledger, to record pending
    /// deliveries first.
    pub(crate) fn progress<'a>(
        &self,
        epoch: u64,
        delivered: impl FnOnce() -> &'a [DeliveredRange],
    ) -> EpochProgress {
        let mut epochs = self.epochs.lock();
        let epoch_ledger = self.epoch_ledger(&mut epochs, epoch);
        delivered().iter().for_each(|&range| epoch_ledger.delivered(range));
        let mut pieces = EndedPieces::default();
        if Some(epoch) == self.resumed_epoch {
            // The samples of these pieces may not have been read again yet.
            pieces.extend(&self.ended_before);
            pieces.retain(|_, index| !epoch_ledger.is_done(index));
        }
        for item in epoch_ledger.items.values() {
            pieces.extend(&item.ended);
        }
        let mut parts_end = 0;
        for members in epoch_ledger.partial.values() {
            pieces.extend(&members.live.lock().ended);
            parts_end = members.end.max(parts_end);
        }
        let splits = epoch_ledger.sequences.iter().filter_map(|(stage, sequence)| {
            let split = sequence.split.filter(|split| !epoch_ledger.is_done(split.piece.index))?;
            parts_end = sequence.end.max(parts_end);
            Some((stage.to_string(), split))
        });
        let splits = splits.collect();
        // Identities of repeated (padding) samples are beyond all positions.
        let parts_end = self.divisions.len.map_or(parts_end, |len| parts_end.min(len));
        EpochProgress {
            done: epoch_ledger.done.clone(),
            pieces,
            splits,
            parts_end,
            unmerged: {
                epoch_ledger.unmerged.compact(&epoch_ledger.done);
                epoch_ledger.unmerged.clone()
            },
            counts: epoch_ledger.counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::lineage::EmissionOrder;
    use crate::source::shard::Shard;

    fn ledger() -> Ledger {
        let divisions = Divisions { shard: Shard::WHOLE, len: None, resumed: None };
        Ledger::new(
            Arc::new(divisions),
            EndedPieces::default(),
            BTreeMap::new(),
            Unmerged::default(),
        )
    }

    fn id(index: u64) -> SampleId {
        SampleId { epoch: 2, index }
    }

    fn plain(index: u64) -> LineageNode {
        id(index).into()
    }

    fn ends(ledger: &Ledger, indices: impl IntoIterator<Item = u64>, outcome: Outcome) {
        indices.into_iter().for_each(|index| ledger.record_end(&plain(index), outcome));
    }

    #[test]
    fn an_audit_lists_lost_repeated_and_incomplete_samples() {
        let fault = |ledger: Ledger, yielded| {
            ledger.yielded(2, yielded);
            ledger.close(2, true).unwrap_err().message().to_owned()
        };
        let clean = ledger();
        ends(&clean, 0..5, Outcome::Delivered);
        ends(&clean, 5..7, Outcome::Dropped);
        ends(&clean, [7], Outcome::LeftOut);
        ends(&clean, [8], Outcome::Filtered);
        clean.yielded(2, 9);
        let counts = SampleCounts { delivered: 5, dropped: 2, filtered: 1, left_out: 1 };
        assert_eq!(clean.close(2, true).unwrap(), counts);

        let lost = ledger();
        ends(&lost, (0..30).filter(|n| n % 10 != 3), Outcome::Delivered);
        let message = fault(lost, 30);
        assert!(message.contains("30 samples; 27 were") && message.ends_with("lost: 3, 13, 23"));
        let twice = ledger();
        ends(&twice, (0..4).chain([2]), Outcome::Delivered);
        assert!(fault(twice, 4).ends_with("ended more than once: 2"));
        let in_pieces = ledger();
        in_pieces.record_split(&plain(1), 2);
        ends(&in_pieces, [0, 1, 1], Outcome::Delivered);
        assert!(fault(in_pieces, 2).ends_with("incomplete: 1"));
        let silent = ledger();
        assert!(silent.close(2, true).is_err());
        assert!(ledger().close(2, false).is_ok());
    }

    #[test]
    fn a_sample_is_done_with_its_last_piece() {
        let ledger = ledger();
        let done = || ledger.progress(2, || &[]);
        ledger.record_split(&plain(0), 2);
        ends(&ledger, [0], Outcome::Filtered);
        let piece = |lineage| LineageNode { lineage, ..plain(0) };
        ledger.record_end(&piece(7), Outcome::Delivered);
        let known = PieceId::of_sample(0, 7);
        assert_eq!(done().pieces.get(known), Some(Outcome::Delivered));
        assert!(done().done.is_empty());
        // The last piece goes into an aggregate, which is split into three pieces.
        let list = Arc::new(AggregateLineage::new([piece(8), plain(1)]));
        let aggregate = |lineage| LineageNode { lineage, of: Some(Arc::clone(&list)), ..plain(0) };
        ledger.record_split(&aggregate(8), 2);
        ledger.record_end(&aggregate(8), Outcome::Delivered);
        ledger.record_end(&aggregate(9), Outcome::Filtered);
        let known = aggregate(9).piece();
        assert_eq!((done().pieces.count(), done().pieces.get(known)), (4, Some(Outcome::Filtered)));
        ledger.record_end(&aggregate(10), Outcome::Dropped);
        let progress = done();
        assert!(progress.done.iter().flatten().eq(0..2) && progress.pieces.is_empty());
        assert_eq!(progress.counts, SampleCounts { delivered: 2, ..Default::default() });
    }

    /// An aggregate of one sample; both have this number.
    fn aggregate(number: u64, in_order: bool) -> LineageNode {
        let order = EmissionOrder {
            stage: "pack".into(),
            number,
            in_order,
            split_at_start: None,
            split_at_end: None,
        };
        let members = AggregateLineage::new([plain(number)]).with_order(order);
        LineageNode { of: Some(Arc::new(members)), ..plain(number) }
    }

    #[test]
    fn ended_aggregates_are_stored_only_if_they_wait_for_an_earlier_one() {
        for in_order in [false, true] {
            let ledger = ledger();
            let all: Vec<LineageNode> =
                (0..100).map(|number| aggregate(number, in_order)).collect();
            all[1..].iter().for_each(|member| ledger.record_end(member, Outcome::Delivered));
            let kept = |member: &LineageNode| {
                member.of.as_ref().is_some_and(|of| Arc::strong_count(of) > 1)
            };
            assert_eq!(
                all.iter().filter(|member| kept(member)).count(),
                if in_order { 99 } else { 0 }
            );
            let done = || ledger.progress(2, || &[]).done.count();
            assert_eq!(done(), if in_order { 0 } else { 99 });
            ledger.record_end(&all[0], Outcome::Delivered);
            assert_eq!((done(), all.iter().any(kept)), (100, false));
        }
    }

    #[test]
    fn a_hundred_thousand_lists_in_part_take_linear_time() {
        const LISTS: u64 = 100_000;
        let ledger = ledger();
        let started = std::time::Instant::now();
        let list = |number| LineageNode {
            of: Some(Arc::new(AggregateLineage::new([plain(number)]))),
            ..plain(number)
        };
        let all: Vec<LineageNode> = (0..LISTS).map(list).collect();
        for member in &all {
            ledger.record_split(member, 1);
            ledger.record_end(member, Outcome::Delivered);
        }
        assert_eq!(ledger.progress(2, || &[]).pieces.count(), LISTS);
        // Reverse order; the time limit below excludes a linear search per list.
        all.iter().rev().for_each(|member| ledger.record_end(member, Outcome::Delivered));
        assert_eq!(ledger.progress(2, || &[]).done.count(), LISTS);
        let took = started.elapsed();
        assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    }

    #[test]
    fn lists_differ_by_their_members_and_their_split_points() {
        let list = |members: Vec<LineageNode>| LineageNode {
            of: Some(Arc::new(AggregateLineage::new(members))),
            ..plain(0)
        };
        let split = |start: Option<u64>, split: Option<u64>| {
            let at = |out| (PieceId::of_sample(1, 0), out);
            let order = EmissionOrder {
                stage: "split".into(),
                number: 0,
                in_order: true,
                split_at_start: start.map(at),
                split_at_end: split.map(at),
            };
            let members = AggregateLineage::new([plain(0), plain(1)]).with_order(order);
            LineageNode { of: Some(Arc::new(members)), ..plain(0) }
        };
        let all = || {
            vec![
                list(vec![plain(0), plain(1)]),
                list(vec![plain(1), plain(0)]),
                list(vec![plain(0)]),
                list(vec![plain(0), plain(2)]),
                list(vec![plain(0), plain(1), plain(2)]),
                list(vec![plain(0), LineageNode { lineage: 5, ..plain(1) }]),
                list(vec![list(vec![plain(0), plain(1)])]),
                list(vec![list(vec![plain(0), plain(2)])]),
                list(vec![list(vec![plain(0)]), plain(1)]),
                split(Some(1), None),
                split(Some(2), None),
                split(None, Some(1)),
                split(Some(1), Some(1)),
            ]
        };
        let pieces = || all().iter().map(LineageNode::piece).collect::<Vec<_>>();
        assert_eq!(pieces(), pieces());
        for (at, piece) in pieces().iter().enumerate() {
            assert_eq!(pieces().iter().position(|other| other == piece), Some(at));
        }
        // The pieces of one list have consecutive numbers.
        let piece = |output| {
            let lineage = ItemHeader::default().output(9, output).lineage;
            LineageNode { lineage, ..list(vec![plain(0), plain(1)]) }.piece().number
        };
        assert!((1..100).all(|output| piece(output + 1) == piece(output).wrapping_add(1)));
    }
}
