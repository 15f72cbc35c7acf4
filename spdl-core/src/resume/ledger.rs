//! What became of every sample: what is done of an epoch, and the proof that nothing was lost.
//!
//! A sample is done when every piece of it was delivered, dropped by a policy, filtered out or left
//! out. Nearly always there is one piece, which reaches the consumer, and only the consumer makes a
//! note of it. Stages tell of the exceptions alone: of a piece that ends with them, and of one that
//! becomes several. They do so before they hand the pieces on; so as long as a piece is under way,
//! its sample is never taken to be done.
//!
//! Where samples are put together, the aggregate is one piece of each of its members. Where it is
//! taken apart again, its own pieces are counted, and when the last of them is gone, it is.
//!
//! Where items are cut, an aggregate may begin or end in the middle of one. What becomes of it is
//! then entered in its turn only, behind all that its stage gave before: so as long as a part of an
//! item is under way, the item is not done, nor is anything behind it, and a run that goes on cuts
//! the rest where it was cut.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use crate::error::{Error, ErrorKind, Result};
use crate::item::ItemHeader;
use crate::item::lineage::{AggregateLineage, EndedPieces, LineageNode, Outcome, PieceId};
use crate::resume::state::SampleCounts;
use crate::source::ranges::Ranges;
use crate::source::shard::{Division, Divisions};
use crate::sync::Mutex;

/// How many samples an error of the audit names.
const MOST_NAMED: usize = 8;

/// An item of which a part has come to an end, while the stage that cuts it still holds the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct PartialItem {
    pub(crate) piece: PieceId,
    /// How much of it that is, in units of its own.
    pub(crate) out: u64,
    /// What became of that.
    #[cfg_attr(feature = "serde", serde(rename = "fate"))]
    outcome: Outcome,
}

/// How far the aggregates of a stage that cuts items have come to their end, in their order.
#[derive(Debug, Default)]
struct EmissionSequence {
    /// The number of the first one that is under way.
    next: u64,
    /// Those that are not, and need not wait: numbers alone, as there may be very many behind a slow
    /// one.
    ended: Ranges,
    /// Those behind it that wait for their turn: no more than are under way where order is kept, and
    /// else as many as overtake a slow one.
    waiting: BTreeMap<u64, (Arc<AggregateLineage>, Outcome)>,
    /// What was cut at the end of the one before.
    cut: Option<PartialItem>,
    /// The position behind the last sample that the stage had seen by then.
    end: u64,
}

impl EmissionSequence {
    /// The next one that waits, where its turn has come.
    fn take_next(&mut self) -> Option<(Arc<AggregateLineage>, Outcome)> {
        let next = self.ended.next_absent(self.next);
        if next > self.next {
            // Nothing is cut in one that need not wait.
            (self.next, self.cut) = (next, None);
        }
        let waiting = self.waiting.remove(&self.next)?;
        self.next += 1;
        Some(waiting)
    }
}

/// Samples that the consumer was handed one after the other: `len` of them, each a stride behind the
/// one before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeliveredRange {
    pub(crate) first: u64,
    pub(crate) len: u64,
    pub(crate) stride: u64,
    pub(crate) lineage: u64,
}

/// An exception that a stage tells of.
#[derive(Debug)]
pub(crate) enum LedgerEntry {
    /// A piece is no more.
    Gone(LineageNode, Outcome),
    /// Out of a piece come so many more.
    More(LineageNode, u64),
}

/// The books of a pipeline with one source.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) divisions: Arc<Divisions>,
    /// The pieces that came to an end in an earlier run, of samples that are not done.
    passed: EndedPieces,
    /// What had been cut in it, by the stage that did.
    cuts: BTreeMap<String, PartialItem>,
    /// The epoch of those.
    begun: Option<u64>,
    epochs: Mutex<BTreeMap<u64, EpochLedger>>,
    /// A stage that keeps items back on its own account, and how that is known.
    holds_back: OnceLock<(Arc<str>, BufferingEvidence)>,
}

/// How it is known that a stage keeps items back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BufferingEvidence {
    /// It says so.
    Declared,
    /// It took an item in of which nothing came, and did not say that it filtered it out.
    NothingCame,
    /// Something came of it at an epoch's end.
    CameAtTheEnd,
    /// Its aggregator gave something when all items had gone out, by what it told of its members.
    MadeOfNothing,
}

impl BufferingEvidence {
    /// Why there is no state.
    pub(crate) fn error(self, stage: &Arc<str>) -> Error {
        let message = match self {
            BufferingEvidence::Declared => {
                "this stage keeps items back on its own account, so that nobody knows of what its \
                 outputs are made; put items together with `aggregate`"
            }
            BufferingEvidence::NothingCame => {
                "nothing came of an item in this stage, and it did not say that it filtered it out, \
                 so it may be holding it back, and the item would be lost with a resumed run; a \
                 stage that filters says `StageContext::filter_out`, and items are put together \
                 with `aggregate`"
            }
            BufferingEvidence::CameAtTheEnd => {
                "this stage emitted something at the end of an epoch, so it had held something back, \
                 which would be lost with a resumed run; put items together with `aggregate`"
            }
            BufferingEvidence::MadeOfNothing => {
                "this aggregator gave something when nothing was held, by what it had told: so it \
                 had held items back, which would be lost with a resumed run; \
                 `ExactResume::inputs` must tell which items each aggregate is made of"
            }
        };
        Error::new(ErrorKind::Unsupported, message).with_stage(Arc::clone(stage))
    }
}

/// The books of one epoch.
#[derive(Debug)]
struct EpochLedger {
    division: Division,
    /// Own numbers of the samples that are done.
    done: Ranges,
    /// How many of them were done when this run began.
    before: u64,
    /// The samples of which there is more than one piece.
    items: HashMap<u64, SplitSample>,
    /// The aggregates of which some pieces are no more, and others are under way or the turn has not
    /// come; by their addresses.
    in_part: HashMap<usize, Arc<AggregateLineage>>,
    /// The sequences of aggregates, by stage.
    sequences: BTreeMap<Arc<str>, EmissionSequence>,
    counts: SampleCounts,
    /// How many samples the source has yielded, once it has yielded all.
    yielded: Option<u64>,
    /// Samples that came to an end twice, and such that are not this pipeline's.
    repeated: Vec<u64>,
    strange: Vec<u64>,
}

#[derive(Debug)]
struct SplitSample {
    pieces: u64,
    outcome: Outcome,
    /// Those that are no more.
    gone: EndedPieces,
    /// It had been done already.
    again: bool,
}

/// What is known of an epoch that is under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct EpochProgress {
    pub(crate) done: Ranges,
    pub(crate) pieces: EndedPieces,
    pub(crate) cuts: BTreeMap<String, PartialItem>,
    /// The position behind the last sample on which lists in part, and cut items, depend.
    pub(crate) parts_end: u64,
    pub(crate) counts: SampleCounts,
}

/// What a list is known by while it is held.
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
            in_part: HashMap::new(),
            sequences: BTreeMap::new(),
            counts: SampleCounts::default(),
            yielded: None,
            repeated: Vec::new(),
            strange: Vec::new(),
        }
    }

    fn done(&mut self, index: u64, outcome: Outcome) {
        let Some(own) = self.division.own(index) else {
            return self.strange.push(index);
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

    /// Enters the end of a piece of a sample.
    fn gone(&mut self, index: u64, lineage: u64, outcome: Outcome) {
        let item = if self.items.is_empty() { None } else { self.items.get_mut(&index) };
        let Some(item) = item else { return self.done(index, outcome) };
        item.pieces = item.pieces.saturating_sub(1);
        item.outcome = item.outcome.max(outcome);
        if item.pieces > 0 {
            // What it went into may bear its name.
            if outcome != Outcome::Joined {
                item.gone.insert(PieceId::of_sample(index, lineage), outcome);
            }
        } else if let Some(item) = self.items.remove(&index)
            && !item.again
        {
            self.done(index, item.outcome);
        }
    }

    /// Enters samples that were delivered.
    fn delivered(&mut self, range: DeliveredRange) {
        let DeliveredRange { first, len, stride, lineage } = range;
        let last = first + (len - 1) * stride;
        if len > 1
            && self.items.is_empty()
            && let (Some(start), Some(end)) = (self.division.own(first), self.division.own(last))
            && end - start == len - 1
            && self.done.is_absent(start..end + 1)
        {
            self.done.insert_range(start..end + 1);
            self.counts.delivered += len;
            return;
        }
        for index in (0..len).map(|step| first + step * stride) {
            self.gone(index, lineage, Outcome::Delivered);
        }
    }

    fn member_gone(&mut self, member: &LineageNode, outcome: Outcome) {
        let Some(members) = &member.of else {
            return self.gone(member.id.index, member.lineage, outcome);
        };
        let mut live = members.live.lock();
        live.pieces = live.pieces.saturating_sub(1);
        live.outcome = live.outcome.max(outcome);
        let (under_way, whole) = (live.pieces > 0, live.outcome);
        let waits = members.link.as_ref().is_some_and(|link| link.waits);
        if (under_way || waits) && outcome != Outcome::Joined {
            if live.gone.is_empty() {
                self.in_part.insert(address(members), Arc::clone(members));
            }
            live.gone.insert(member.piece(), outcome);
        }
        drop(live);
        if under_way {
            return;
        }
        let Some(link) = &members.link else { return self.ended(members, whole) };
        if !link.waits {
            self.ended(members, whole);
        }
        let sequence = self.sequences.entry(Arc::clone(&link.stage)).or_default();
        if link.waits {
            sequence.waiting.insert(link.number, (Arc::clone(members), whole));
        } else {
            sequence.ended.insert(link.number);
        }
        while let Some(sequence) = self.sequences.get_mut(&link.stage)
            && let Some((members, outcome)) = sequence.take_next()
        {
            self.end_in_turn(&members, outcome);
        }
    }

    /// Enters the end of an aggregate as that of its members.
    fn ended(&mut self, members: &Arc<AggregateLineage>, outcome: Outcome) {
        self.in_part.remove(&address(members));
        let cut = members.link.as_ref().and_then(|link| self.sequences.get(&link.stage)?.cut);
        for member in &members.list {
            // The beginning of it may have come to another end.
            let begun = cut.filter(|cut| cut.piece == member.piece()).map(|cut| cut.outcome);
            self.member_gone(member, begun.map_or(outcome, |begun| begun.max(outcome)));
        }
    }

    /// The same for one whose turn has come, with what is cut behind it.
    fn end_in_turn(&mut self, members: &Arc<AggregateLineage>, outcome: Outcome) {
        let Some(link) = &members.link else { return };
        self.ended(members, outcome);
        let Some(sequence) = self.sequences.get_mut(&link.stage) else { return };
        let before = sequence.cut;
        sequence.end = members.end;
        sequence.cut = link.cut.map(|(piece, out)| {
            let begun = before.filter(|cut| cut.piece == piece).map(|cut| cut.outcome);
            PartialItem { piece, out, outcome: begun.map_or(outcome, |begun| begun.max(outcome)) }
        });
    }

    /// Goes on from items that an earlier run had cut.
    fn resume(&mut self, cuts: &BTreeMap<String, PartialItem>) {
        for (stage, &cut) in cuts {
            let sequence = self.sequences.entry(stage.as_str().into()).or_default();
            sequence.cut = Some(cut);
            if cut.piece.depth == 0 {
                // Should the rest of it never come so far.
                let gone = EndedPieces::default();
                let item = SplitSample { pieces: 1, outcome: cut.outcome, gone, again: false };
                self.items.entry(cut.piece.index).or_insert(item);
            }
        }
    }

    /// Whether a sample is done.
    fn is_done(&self, index: u64) -> bool {
        self.division.own(index).is_some_and(|own| self.done.contains(own))
    }

    fn more(&mut self, member: &LineageNode, pieces: u64) {
        if let Some(members) = &member.of {
            members.live.lock().pieces += pieces;
            return;
        }
        let index = member.id.index;
        let item = self.items.entry(index).or_insert_with(|| {
            // What a stage makes at an epoch's end may be of a sample that is done.
            let division = &self.division;
            let again = division.own(index).is_some_and(|own| self.done.contains(own));
            let gone = EndedPieces::default();
            SplitSample { pieces: u64::from(!again), outcome: Outcome::Joined, gone, again }
        });
        item.pieces += pieces;
    }

    fn enter(&mut self, entry: &LedgerEntry) {
        match entry {
            LedgerEntry::Gone(member, outcome) => self.member_gone(member, *outcome),
            LedgerEntry::More(member, pieces) => self.more(member, *pieces),
        }
    }

    /// Checks that every sample that the source has yielded has come to an end.
    fn audit(&self, epoch: u64) -> Result<()> {
        let fault = |message: String| Err(Error::new(ErrorKind::Internal, message));
        let Some(yielded) = self.yielded else {
            return fault(format!("epoch {epoch} has ended, and its source has not said so"));
        };
        let ended = self.done.count() - self.before;
        let clean = self.items.is_empty() && self.repeated.is_empty() && self.strange.is_empty();
        if ended == yielded && clean {
            return Ok(());
        }
        let SampleCounts { delivered, dropped, filtered, left_out } = self.counts;
        let mut message = format!(
            "epoch {epoch} does not add up: the source yielded {yielded} samples; {delivered} were \
             delivered, {dropped} dropped, {filtered} filtered out, {left_out} left out: {ended} in \
             all"
        );
        let mut tell = |what: &str, mut indices: Vec<u64>| {
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
        tell("lost", lost.take(MOST_NAMED + 1).collect());
        tell("still in pieces", self.items.keys().copied().collect());
        tell("ended twice", self.repeated.clone());
        tell("never yielded", self.strange.clone());
        fault(message)
    }
}

impl Ledger {
    /// Books that go on from what another run has delivered in part.
    pub(crate) fn new(
        divisions: Arc<Divisions>,
        passed: EndedPieces,
        cuts: BTreeMap<String, PartialItem>,
    ) -> Self {
        Ledger {
            begun: divisions.begun.as_ref().map(|begun| begun.epoch),
            divisions,
            passed,
            cuts,
            epochs: Mutex::default(),
            holds_back: OnceLock::new(),
        }
    }

    fn epoch_ledger<'a>(
        &self,
        epochs: &'a mut BTreeMap<u64, EpochLedger>,
        epoch: u64,
    ) -> &'a mut EpochLedger {
        epochs.entry(epoch).or_insert_with(|| {
            let done = self.divisions.begun(epoch).map(|begun| begun.done.clone());
            let mut epoch_ledger =
                EpochLedger::new(self.divisions.division(epoch), done.unwrap_or_default());
            if Some(epoch) == self.begun {
                epoch_ledger.resume(&self.cuts);
            }
            epoch_ledger
        })
    }

    /// Enters what a stage tells of. Comes before the pieces are handed on.
    pub(crate) fn enter(&self, entries: &mut Vec<LedgerEntry>) {
        if entries.is_empty() {
            return;
        }
        let mut epochs = self.epochs.lock();
        for entry in entries.iter() {
            let (LedgerEntry::Gone(member, _) | LedgerEntry::More(member, _)) = entry;
            self.epoch_ledger(&mut epochs, member.id.epoch).enter(entry);
        }
        drop(epochs);
        entries.clear();
    }

    /// Enters the end of a piece.
    pub(crate) fn gone(&self, member: &LineageNode, outcome: Outcome) {
        self.epoch_ledger(&mut self.epochs.lock(), member.id.epoch).member_gone(member, outcome);
    }

    /// Enters that out of a piece come so many more.
    pub(crate) fn more(&self, member: &LineageNode, pieces: u64) {
        self.epoch_ledger(&mut self.epochs.lock(), member.id.epoch).more(member, pieces);
    }

    /// Whether this very piece came to an end in an earlier run: delivered, or with what it had
    /// gone into. It is no more then, and the caller drops it.
    pub(crate) fn passes(&self, header: &ItemHeader) -> bool {
        if self.passed.is_empty() || Some(header.id.epoch) != self.begun {
            return false;
        }
        let member = header.member();
        let outcome = self.passed.get(member.piece());
        outcome.inspect(|&outcome| self.gone(&member, outcome)).is_some()
    }

    /// Whether [`passes`](Self::passes) may ever be true.
    pub(crate) fn has_any_passed(&self) -> bool {
        !self.passed.is_empty()
    }

    /// Enters how many samples the source has yielded of an epoch, all told.
    pub(crate) fn yielded(&self, epoch: u64, samples: u64) {
        self.epoch_ledger(&mut self.epochs.lock(), epoch).yielded = Some(samples);
    }

    /// Notes that a stage keeps items back: before anything is entered of what came of it.
    pub(crate) fn holds_back(&self, stage: &Arc<str>, how: BufferingEvidence) {
        let _ = self.holds_back.set((Arc::clone(stage), how));
    }

    /// Why there can be no state. Asked when all else has been looked up, since a stage that keeps
    /// an item back is known before the item is taken to be done.
    pub(crate) fn why_no_state(&self) -> Option<Error> {
        self.holds_back.get().map(|(stage, how)| how.error(stage))
    }

    /// Closes the books of an epoch, which has come to its end at the consumer, where it adds up.
    pub(crate) fn close(&self, epoch: u64, audit: bool) -> Result<SampleCounts> {
        let mut epochs = self.epochs.lock();
        let epoch_ledger = self.epoch_ledger(&mut epochs, epoch);
        if audit {
            // Where it fails the books stay open: what is lost is still to be done, and no more.
            epoch_ledger.audit(epoch)?;
        }
        let counts = epoch_ledger.counts;
        epochs.remove(&epoch);
        Ok(counts)
    }

    /// Enters samples that the consumer was handed.
    pub(crate) fn delivered(&self, epoch: u64, ranges: &[DeliveredRange]) {
        let mut epochs = self.epochs.lock();
        let epoch_ledger = self.epoch_ledger(&mut epochs, epoch);
        ranges.iter().for_each(|&range| epoch_ledger.delivered(range));
    }

    /// What is done of an epoch. Asks first, under the lock of the books, which deliveries are yet to
    /// be entered.
    pub(crate) fn progress<'a>(
        &self,
        epoch: u64,
        delivered: impl FnOnce() -> &'a [DeliveredRange],
    ) -> EpochProgress {
        let mut epochs = self.epochs.lock();
        let epoch_ledger = self.epoch_ledger(&mut epochs, epoch);
        delivered().iter().for_each(|&range| epoch_ledger.delivered(range));
        let mut pieces = EndedPieces::default();
        if Some(epoch) == self.begun {
            // Their samples may not have come again yet.
            pieces.extend(&self.passed);
            pieces.retain(|_, index| !epoch_ledger.is_done(index));
        }
        for item in epoch_ledger.items.values() {
            pieces.extend(&item.gone);
        }
        let mut parts_end = 0;
        for members in epoch_ledger.in_part.values() {
            pieces.extend(&members.live.lock().gone);
            parts_end = members.end.max(parts_end);
        }
        let cuts = epoch_ledger.sequences.iter().filter_map(|(stage, sequence)| {
            let cut = sequence.cut.filter(|cut| !epoch_ledger.is_done(cut.piece.index))?;
            parts_end = sequence.end.max(parts_end);
            Some((stage.to_string(), cut))
        });
        let cuts = cuts.collect();
        // The identities of repeated samples lie behind all positions.
        let parts_end = self.divisions.len.map_or(parts_end, |len| parts_end.min(len));
        EpochProgress {
            done: epoch_ledger.done.clone(),
            pieces,
            cuts,
            parts_end,
            counts: epoch_ledger.counts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::lineage::EmissionOrder;
    use crate::source::sample::SampleId;
    use crate::source::shard::Shard;

    fn ledger() -> Ledger {
        let divisions = Divisions { shard: Shard::WHOLE, len: None, begun: None };
        Ledger::new(Arc::new(divisions), EndedPieces::default(), BTreeMap::new())
    }

    fn id(index: u64) -> SampleId {
        SampleId { epoch: 2, index }
    }

    fn plain(index: u64) -> LineageNode {
        id(index).into()
    }

    fn ends(ledger: &Ledger, indices: impl IntoIterator<Item = u64>, outcome: Outcome) {
        indices.into_iter().for_each(|index| ledger.gone(&plain(index), outcome));
    }

    #[test]
    fn an_epoch_adds_up_or_says_why_not() {
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
        assert!(fault(twice, 4).ends_with("ended twice: 2"));
        let in_pieces = ledger();
        in_pieces.more(&plain(1), 2);
        ends(&in_pieces, [0, 1, 1], Outcome::Delivered);
        assert!(fault(in_pieces, 2).ends_with("still in pieces: 1"));
        let silent = ledger();
        assert!(silent.close(2, true).is_err());
        assert!(ledger().close(2, false).is_ok());
    }

    #[test]
    fn a_sample_is_done_with_its_last_piece() {
        let ledger = ledger();
        let done = || ledger.progress(2, || &[]);
        ledger.more(&plain(0), 2);
        ends(&ledger, [0], Outcome::Filtered);
        let piece = |lineage| LineageNode { lineage, ..plain(0) };
        ledger.gone(&piece(7), Outcome::Delivered);
        let known = PieceId::of_sample(0, 7);
        assert_eq!(done().pieces.get(known), Some(Outcome::Delivered));
        assert!(done().done.is_empty());
        // The last one goes into an aggregate, of which three pieces come.
        let list = Arc::new(AggregateLineage::new([piece(8), plain(1)]));
        let aggregate = |lineage| LineageNode { lineage, of: Some(Arc::clone(&list)), ..plain(0) };
        ledger.more(&aggregate(8), 2);
        ledger.gone(&aggregate(8), Outcome::Delivered);
        ledger.gone(&aggregate(9), Outcome::Filtered);
        let known = aggregate(9).piece();
        assert_eq!((done().pieces.count(), done().pieces.get(known)), (4, Some(Outcome::Filtered)));
        ledger.gone(&aggregate(10), Outcome::Dropped);
        let progress = done();
        assert!(progress.done.iter().flatten().eq(0..2) && progress.pieces.is_empty());
        assert_eq!(progress.counts, SampleCounts { delivered: 2, ..Default::default() });
    }

    /// The aggregate of a stage, made of the sample with its number.
    fn aggregate(number: u64, waits: bool) -> LineageNode {
        let link = EmissionOrder { stage: "pack".into(), number, waits, begun: None, cut: None };
        let members = AggregateLineage::new([plain(number)]).linked(link);
        LineageNode { of: Some(Arc::new(members)), ..plain(number) }
    }

    #[test]
    fn aggregates_behind_a_slow_one_are_not_kept_unless_they_wait_for_it() {
        for waits in [false, true] {
            let ledger = ledger();
            let all: Vec<LineageNode> = (0..100).map(|number| aggregate(number, waits)).collect();
            all[1..].iter().for_each(|member| ledger.gone(member, Outcome::Delivered));
            let kept = |member: &LineageNode| {
                member.of.as_ref().is_some_and(|of| Arc::strong_count(of) > 1)
            };
            assert_eq!(
                all.iter().filter(|member| kept(member)).count(),
                if waits { 99 } else { 0 }
            );
            let done = || ledger.progress(2, || &[]).done.count();
            assert_eq!(done(), if waits { 0 } else { 99 });
            ledger.gone(&all[0], Outcome::Delivered);
            assert_eq!((done(), all.iter().any(kept)), (100, false));
        }
    }

    #[test]
    fn very_many_lists_may_be_in_part_at_once() {
        const LISTS: u64 = 100_000;
        let ledger = ledger();
        let started = std::time::Instant::now();
        let list = |number| LineageNode {
            of: Some(Arc::new(AggregateLineage::new([plain(number)]))),
            ..plain(number)
        };
        let all: Vec<LineageNode> = (0..LISTS).map(list).collect();
        for member in &all {
            ledger.more(member, 1);
            ledger.gone(member, Outcome::Delivered);
        }
        assert_eq!(ledger.progress(2, || &[]).pieces.count(), LISTS);
        // The last one first, and each took a moment only.
        all.iter().rev().for_each(|member| ledger.gone(member, Outcome::Delivered));
        assert_eq!(ledger.progress(2, || &[]).done.count(), LISTS);
        let took = started.elapsed();
        assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    }

    #[test]
    fn lists_are_told_apart_by_their_members_and_where_those_are_cut() {
        let list = |members: Vec<LineageNode>| LineageNode {
            of: Some(Arc::new(AggregateLineage::new(members))),
            ..plain(0)
        };
        let cut = |begun: Option<u64>, cut: Option<u64>| {
            let at = |out| (PieceId::of_sample(1, 0), out);
            let link = EmissionOrder {
                stage: "cut".into(),
                number: 0,
                waits: true,
                begun: begun.map(at),
                cut: cut.map(at),
            };
            let members = AggregateLineage::new([plain(0), plain(1)]).linked(link);
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
                cut(Some(1), None),
                cut(Some(2), None),
                cut(None, Some(1)),
                cut(Some(1), Some(1)),
            ]
        };
        let pieces = || all().iter().map(LineageNode::piece).collect::<Vec<_>>();
        assert_eq!(pieces(), pieces());
        for (at, piece) in pieces().iter().enumerate() {
            assert_eq!(pieces().iter().position(|other| other == piece), Some(at));
        }
        // The pieces of one are a range.
        let piece = |output| {
            let lineage = ItemHeader::default().output(9, output).lineage;
            LineageNode { lineage, ..list(vec![plain(0), plain(1)]) }.piece().number
        };
        assert!((1..100).all(|output| piece(output + 1) == piece(output).wrapping_add(1)));
    }
}
