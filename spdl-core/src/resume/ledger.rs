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
use crate::item::Head;
use crate::item::lineage::{Fate, Member, Members, Piece, Pieces};
use crate::resume::state::SampleCounts;
use crate::source::ranges::Ranges;
use crate::source::shard::{Division, Divisions};
use crate::sync::Mutex;

/// How many samples an error of the audit names.
const MOST_NAMED: usize = 8;

/// An item of which a part has come to an end, while the stage that cuts it still holds the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct Cut {
    pub(crate) piece: Piece,
    /// How much of it that is, in units of its own.
    pub(crate) out: u64,
    /// What became of that.
    fate: Fate,
}

/// How far the aggregates of a stage that cuts items have come to their end, in their order.
#[derive(Debug, Default)]
struct Chain {
    /// The number of the first one that is under way.
    next: u64,
    /// Those that are not, and need not wait: numbers alone, as there may be very many behind a slow
    /// one.
    ended: Ranges,
    /// Those behind it that wait for their turn: no more than are under way where order is kept, and
    /// else as many as overtake a slow one.
    waiting: BTreeMap<u64, (Arc<Members>, Fate)>,
    /// What was cut at the end of the one before.
    cut: Option<Cut>,
    /// The position behind the last sample that the stage had seen by then.
    end: u64,
}

impl Chain {
    /// The next one that waits, where its turn has come.
    fn take_next(&mut self) -> Option<(Arc<Members>, Fate)> {
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
pub(crate) struct Row {
    pub(crate) first: u64,
    pub(crate) len: u64,
    pub(crate) stride: u64,
    pub(crate) lineage: u64,
}

/// An exception that a stage tells of.
#[derive(Debug)]
pub(crate) enum Note {
    /// A piece is no more.
    Gone(Member, Fate),
    /// Out of a piece come so many more.
    More(Member, u64),
}

/// The books of a pipeline with one source.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) divisions: Arc<Divisions>,
    /// The pieces that came to an end in an earlier run, of samples that are not done.
    passed: Pieces,
    /// What had been cut in it, by the stage that did.
    cuts: BTreeMap<String, Cut>,
    /// The epoch of those.
    begun: Option<u64>,
    books: Mutex<BTreeMap<u64, Book>>,
    /// A stage that keeps items back on its own account, and how that is known.
    holds_back: OnceLock<(Arc<str>, HoldsBack)>,
}

/// How it is known that a stage keeps items back.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HoldsBack {
    /// It says so.
    Declared,
    /// It took an item in of which nothing came, and did not say that it filtered it out.
    NothingCame,
    /// Something came of it at an epoch's end.
    CameAtTheEnd,
    /// Its aggregator gave something when all items had gone out, by what it told of its members.
    MadeOfNothing,
}

impl HoldsBack {
    /// Why there is no state.
    pub(crate) fn error(self, stage: &Arc<str>) -> Error {
        let message = match self {
            HoldsBack::Declared => {
                "this stage keeps items back on its own account, so that nobody knows of what its \
                 outputs are made; put items together with `aggregate`"
            }
            HoldsBack::NothingCame => {
                "nothing came of an item in this stage, and it did not say that it filtered it out, \
                 so it may be holding it back, and the item would be lost with a resumed run; a \
                 stage that filters says `StageContext::filter_out`, and items are put together \
                 with `aggregate`"
            }
            HoldsBack::CameAtTheEnd => {
                "this stage emitted something at the end of an epoch, so it had held something back, \
                 which would be lost with a resumed run; put items together with `aggregate`"
            }
            HoldsBack::MadeOfNothing => {
                "this aggregator gave something when nothing was held, by what it had told: so it \
                 had held items back, which would be lost with a resumed run; \
                 `Aggregator::members` must tell which items each aggregate is made of"
            }
        };
        Error::new(ErrorKind::Unsupported, message).with_stage(Arc::clone(stage))
    }
}

/// The books of one epoch.
#[derive(Debug)]
struct Book {
    division: Division,
    /// Own numbers of the samples that are done.
    done: Ranges,
    /// How many of them were done when this run began.
    before: u64,
    /// The samples of which there is more than one piece.
    items: HashMap<u64, Item>,
    /// The aggregates of which some pieces are no more, and others are under way or the turn has not
    /// come; by their addresses.
    in_part: HashMap<usize, Arc<Members>>,
    /// The sequences of aggregates, by stage.
    chains: BTreeMap<Arc<str>, Chain>,
    counts: SampleCounts,
    /// How many samples the source has yielded, once it has yielded all.
    yielded: Option<u64>,
    /// Samples that came to an end twice, and such that are not this pipeline's.
    repeated: Vec<u64>,
    strange: Vec<u64>,
}

#[derive(Debug)]
struct Item {
    pieces: u64,
    fate: Fate,
    /// Those that are no more.
    gone: Pieces,
    /// It had been done already.
    again: bool,
}

/// What is known of an epoch that is under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) done: Ranges,
    pub(crate) pieces: Pieces,
    pub(crate) cuts: BTreeMap<String, Cut>,
    /// The position behind the last sample on which lists in part, and cut items, depend.
    pub(crate) parts_end: u64,
    pub(crate) counts: SampleCounts,
}

/// What a list is known by while it is held.
fn address(members: &Arc<Members>) -> usize {
    Arc::as_ptr(members).addr()
}

impl Book {
    fn new(division: Division, done: Ranges) -> Self {
        Book {
            division,
            before: done.count(),
            done,
            items: HashMap::new(),
            in_part: HashMap::new(),
            chains: BTreeMap::new(),
            counts: SampleCounts::default(),
            yielded: None,
            repeated: Vec::new(),
            strange: Vec::new(),
        }
    }

    fn done(&mut self, index: u64, fate: Fate) {
        let Some(own) = self.division.own(index) else {
            return self.strange.push(index);
        };
        if !self.done.insert(own) {
            return self.repeated.push(index);
        }
        match fate {
            Fate::Delivered => self.counts.delivered += 1,
            Fate::Dropped => self.counts.dropped += 1,
            Fate::Filtered => self.counts.filtered += 1,
            Fate::LeftOut | Fate::Joined => self.counts.left_out += 1,
        }
    }

    /// Enters the end of a piece of a sample.
    fn gone(&mut self, index: u64, lineage: u64, fate: Fate) {
        let item = if self.items.is_empty() { None } else { self.items.get_mut(&index) };
        let Some(item) = item else { return self.done(index, fate) };
        item.pieces = item.pieces.saturating_sub(1);
        item.fate = item.fate.max(fate);
        if item.pieces > 0 {
            // What it went into may bear its name.
            if fate != Fate::Joined {
                item.gone.insert(Piece::of_sample(index, lineage), fate);
            }
        } else if let Some(item) = self.items.remove(&index)
            && !item.again
        {
            self.done(index, item.fate);
        }
    }

    /// Enters samples that were delivered.
    fn delivered(&mut self, row: Row) {
        let Row { first, len, stride, lineage } = row;
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
            self.gone(index, lineage, Fate::Delivered);
        }
    }

    fn member_gone(&mut self, member: &Member, fate: Fate) {
        let Some(members) = &member.of else {
            return self.gone(member.id.index, member.lineage, fate);
        };
        let mut live = members.live.lock();
        live.pieces = live.pieces.saturating_sub(1);
        live.fate = live.fate.max(fate);
        let (under_way, whole) = (live.pieces > 0, live.fate);
        let waits = members.link.as_ref().is_some_and(|link| link.waits);
        if (under_way || waits) && fate != Fate::Joined {
            if live.gone.is_empty() {
                self.in_part.insert(address(members), Arc::clone(members));
            }
            live.gone.insert(member.piece(), fate);
        }
        drop(live);
        if under_way {
            return;
        }
        let Some(link) = &members.link else { return self.ended(members, whole) };
        if !link.waits {
            self.ended(members, whole);
        }
        let chain = self.chains.entry(Arc::clone(&link.stage)).or_default();
        if link.waits {
            chain.waiting.insert(link.number, (Arc::clone(members), whole));
        } else {
            chain.ended.insert(link.number);
        }
        while let Some(chain) = self.chains.get_mut(&link.stage)
            && let Some((members, fate)) = chain.take_next()
        {
            self.end_in_turn(&members, fate);
        }
    }

    /// Enters the end of an aggregate as that of its members.
    fn ended(&mut self, members: &Arc<Members>, fate: Fate) {
        self.in_part.remove(&address(members));
        let cut = members.link.as_ref().and_then(|link| self.chains.get(&link.stage)?.cut);
        for member in &members.list {
            // The beginning of it may have come to another end.
            let begun = cut.filter(|cut| cut.piece == member.piece()).map(|cut| cut.fate);
            self.member_gone(member, begun.map_or(fate, |begun| begun.max(fate)));
        }
    }

    /// The same for one whose turn has come, with what is cut behind it.
    fn end_in_turn(&mut self, members: &Arc<Members>, fate: Fate) {
        let Some(link) = &members.link else { return };
        self.ended(members, fate);
        let Some(chain) = self.chains.get_mut(&link.stage) else { return };
        let before = chain.cut;
        chain.end = members.end;
        chain.cut = link.cut.map(|(piece, out)| {
            let begun = before.filter(|cut| cut.piece == piece).map(|cut| cut.fate);
            Cut { piece, out, fate: begun.map_or(fate, |begun| begun.max(fate)) }
        });
    }

    /// Goes on from items that an earlier run had cut.
    fn resume(&mut self, cuts: &BTreeMap<String, Cut>) {
        for (stage, &cut) in cuts {
            let chain = self.chains.entry(stage.as_str().into()).or_default();
            chain.cut = Some(cut);
            if cut.piece.depth == 0 {
                // Should the rest of it never come so far.
                let gone = Pieces::default();
                let item = Item { pieces: 1, fate: cut.fate, gone, again: false };
                self.items.entry(cut.piece.index).or_insert(item);
            }
        }
    }

    /// Whether a sample is done.
    fn is_done(&self, index: u64) -> bool {
        self.division.own(index).is_some_and(|own| self.done.contains(own))
    }

    fn more(&mut self, member: &Member, pieces: u64) {
        if let Some(members) = &member.of {
            members.live.lock().pieces += pieces;
            return;
        }
        let index = member.id.index;
        let item = self.items.entry(index).or_insert_with(|| {
            // What a stage makes at an epoch's end may be of a sample that is done.
            let division = &self.division;
            let again = division.own(index).is_some_and(|own| self.done.contains(own));
            let gone = Pieces::default();
            Item { pieces: u64::from(!again), fate: Fate::Joined, gone, again }
        });
        item.pieces += pieces;
    }

    fn enter(&mut self, note: &Note) {
        match note {
            Note::Gone(member, fate) => self.member_gone(member, *fate),
            Note::More(member, pieces) => self.more(member, *pieces),
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

impl Account {
    /// Books that go on from what another run has delivered in part.
    pub(crate) fn new(
        divisions: Arc<Divisions>,
        passed: Pieces,
        cuts: BTreeMap<String, Cut>,
    ) -> Self {
        Account {
            begun: divisions.begun.as_ref().map(|begun| begun.epoch),
            divisions,
            passed,
            cuts,
            books: Mutex::default(),
            holds_back: OnceLock::new(),
        }
    }

    fn book<'a>(&self, books: &'a mut BTreeMap<u64, Book>, epoch: u64) -> &'a mut Book {
        books.entry(epoch).or_insert_with(|| {
            let done = self.divisions.begun(epoch).map(|begun| begun.done.clone());
            let mut book = Book::new(self.divisions.division(epoch), done.unwrap_or_default());
            if Some(epoch) == self.begun {
                book.resume(&self.cuts);
            }
            book
        })
    }

    /// Enters what a stage tells of. Comes before the pieces are handed on.
    pub(crate) fn enter(&self, notes: &mut Vec<Note>) {
        if notes.is_empty() {
            return;
        }
        let mut books = self.books.lock();
        for note in notes.iter() {
            let (Note::Gone(member, _) | Note::More(member, _)) = note;
            self.book(&mut books, member.id.epoch).enter(note);
        }
        drop(books);
        notes.clear();
    }

    /// Enters the end of a piece.
    pub(crate) fn gone(&self, member: &Member, fate: Fate) {
        self.book(&mut self.books.lock(), member.id.epoch).member_gone(member, fate);
    }

    /// Enters that out of a piece come so many more.
    pub(crate) fn more(&self, member: &Member, pieces: u64) {
        self.book(&mut self.books.lock(), member.id.epoch).more(member, pieces);
    }

    /// Whether this very piece came to an end in an earlier run: delivered, or with what it had
    /// gone into. It is no more then, and the caller drops it.
    pub(crate) fn passes(&self, head: &Head) -> bool {
        if self.passed.is_empty() || Some(head.id.epoch) != self.begun {
            return false;
        }
        let member = head.member();
        let fate = self.passed.get(member.piece());
        fate.inspect(|&fate| self.gone(&member, fate)).is_some()
    }

    /// Whether [`passes`](Self::passes) may ever be true.
    pub(crate) fn has_any_passed(&self) -> bool {
        !self.passed.is_empty()
    }

    /// Enters how many samples the source has yielded of an epoch, all told.
    pub(crate) fn yielded(&self, epoch: u64, samples: u64) {
        self.book(&mut self.books.lock(), epoch).yielded = Some(samples);
    }

    /// Notes that a stage keeps items back: before anything is entered of what came of it.
    pub(crate) fn holds_back(&self, stage: &Arc<str>, how: HoldsBack) {
        let _ = self.holds_back.set((Arc::clone(stage), how));
    }

    /// Why there can be no state. Asked when all else has been looked up, since a stage that keeps
    /// an item back is known before the item is taken to be done.
    pub(crate) fn why_no_state(&self) -> Option<Error> {
        self.holds_back.get().map(|(stage, how)| how.error(stage))
    }

    /// Closes the books of an epoch, which has come to its end at the consumer, where it adds up.
    pub(crate) fn close(&self, epoch: u64, audit: bool) -> Result<SampleCounts> {
        let mut books = self.books.lock();
        let book = self.book(&mut books, epoch);
        if audit {
            // Where it fails the books stay open: what is lost is still to be done, and no more.
            book.audit(epoch)?;
        }
        let counts = book.counts;
        books.remove(&epoch);
        Ok(counts)
    }

    /// Enters samples that the consumer was handed.
    pub(crate) fn delivered(&self, epoch: u64, rows: &[Row]) {
        let mut books = self.books.lock();
        let book = self.book(&mut books, epoch);
        rows.iter().for_each(|&row| book.delivered(row));
    }

    /// What is done of an epoch. Asks first, under the lock of the books, which deliveries are yet to
    /// be entered.
    pub(crate) fn progress<'a>(
        &self,
        epoch: u64,
        delivered: impl FnOnce() -> &'a [Row],
    ) -> Progress {
        let mut books = self.books.lock();
        let book = self.book(&mut books, epoch);
        delivered().iter().for_each(|&row| book.delivered(row));
        let mut pieces = Pieces::default();
        if Some(epoch) == self.begun {
            // Their samples may not have come again yet.
            pieces.extend(&self.passed);
            pieces.retain(|_, index| !book.is_done(index));
        }
        for item in book.items.values() {
            pieces.extend(&item.gone);
        }
        let mut parts_end = 0;
        for members in book.in_part.values() {
            pieces.extend(&members.live.lock().gone);
            parts_end = members.end.max(parts_end);
        }
        let cuts = book.chains.iter().filter_map(|(stage, chain)| {
            let cut = chain.cut.filter(|cut| !book.is_done(cut.piece.index))?;
            parts_end = chain.end.max(parts_end);
            Some((stage.to_string(), cut))
        });
        let cuts = cuts.collect();
        // The identities of repeated samples lie behind all positions.
        let parts_end = self.divisions.len.map_or(parts_end, |len| parts_end.min(len));
        Progress { done: book.done.clone(), pieces, cuts, parts_end, counts: book.counts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::lineage::Link;
    use crate::source::sample::SampleId;
    use crate::source::shard::Shard;

    fn account() -> Account {
        let divisions = Divisions { shard: Shard::WHOLE, len: None, begun: None };
        Account::new(Arc::new(divisions), Pieces::default(), BTreeMap::new())
    }

    fn id(index: u64) -> SampleId {
        SampleId { epoch: 2, index }
    }

    fn plain(index: u64) -> Member {
        id(index).into()
    }

    fn ends(account: &Account, indices: impl IntoIterator<Item = u64>, fate: Fate) {
        indices.into_iter().for_each(|index| account.gone(&plain(index), fate));
    }

    #[test]
    fn an_epoch_adds_up_or_says_why_not() {
        let fault = |account: Account, yielded| {
            account.yielded(2, yielded);
            account.close(2, true).unwrap_err().message().to_owned()
        };
        let clean = account();
        ends(&clean, 0..5, Fate::Delivered);
        ends(&clean, 5..7, Fate::Dropped);
        ends(&clean, [7], Fate::LeftOut);
        ends(&clean, [8], Fate::Filtered);
        clean.yielded(2, 9);
        let counts = SampleCounts { delivered: 5, dropped: 2, filtered: 1, left_out: 1 };
        assert_eq!(clean.close(2, true).unwrap(), counts);

        let lost = account();
        ends(&lost, (0..30).filter(|n| n % 10 != 3), Fate::Delivered);
        let message = fault(lost, 30);
        assert!(message.contains("30 samples; 27 were") && message.ends_with("lost: 3, 13, 23"));
        let twice = account();
        ends(&twice, (0..4).chain([2]), Fate::Delivered);
        assert!(fault(twice, 4).ends_with("ended twice: 2"));
        let in_pieces = account();
        in_pieces.more(&plain(1), 2);
        ends(&in_pieces, [0, 1, 1], Fate::Delivered);
        assert!(fault(in_pieces, 2).ends_with("still in pieces: 1"));
        let silent = account();
        assert!(silent.close(2, true).is_err());
        assert!(account().close(2, false).is_ok());
    }

    #[test]
    fn a_sample_is_done_with_its_last_piece() {
        let account = account();
        let done = || account.progress(2, || &[]);
        account.more(&plain(0), 2);
        ends(&account, [0], Fate::Filtered);
        let piece = |lineage| Member { lineage, ..plain(0) };
        account.gone(&piece(7), Fate::Delivered);
        let known = Piece::of_sample(0, 7);
        assert_eq!(done().pieces.get(known), Some(Fate::Delivered));
        assert!(done().done.is_empty());
        // The last one goes into an aggregate, of which three pieces come.
        let list = Arc::new(Members::new([piece(8), plain(1)]));
        let aggregate = |lineage| Member { lineage, of: Some(Arc::clone(&list)), ..plain(0) };
        account.more(&aggregate(8), 2);
        account.gone(&aggregate(8), Fate::Delivered);
        account.gone(&aggregate(9), Fate::Filtered);
        let known = aggregate(9).piece();
        assert_eq!((done().pieces.count(), done().pieces.get(known)), (4, Some(Fate::Filtered)));
        account.gone(&aggregate(10), Fate::Dropped);
        let progress = done();
        assert!(progress.done.iter().flatten().eq(0..2) && progress.pieces.is_empty());
        assert_eq!(progress.counts, SampleCounts { delivered: 2, ..Default::default() });
    }

    /// The aggregate of a stage, made of the sample with its number.
    fn aggregate(number: u64, waits: bool) -> Member {
        let link = Link { stage: "pack".into(), number, waits, begun: None, cut: None };
        let members = Members::new([plain(number)]).linked(link);
        Member { of: Some(Arc::new(members)), ..plain(number) }
    }

    #[test]
    fn aggregates_behind_a_slow_one_are_not_kept_unless_they_wait_for_it() {
        for waits in [false, true] {
            let account = account();
            let all: Vec<Member> = (0..100).map(|number| aggregate(number, waits)).collect();
            all[1..].iter().for_each(|member| account.gone(member, Fate::Delivered));
            let kept =
                |member: &Member| member.of.as_ref().is_some_and(|of| Arc::strong_count(of) > 1);
            assert_eq!(
                all.iter().filter(|member| kept(member)).count(),
                if waits { 99 } else { 0 }
            );
            let done = || account.progress(2, || &[]).done.count();
            assert_eq!(done(), if waits { 0 } else { 99 });
            account.gone(&all[0], Fate::Delivered);
            assert_eq!((done(), all.iter().any(kept)), (100, false));
        }
    }

    #[test]
    fn very_many_lists_may_be_in_part_at_once() {
        const LISTS: u64 = 100_000;
        let account = account();
        let started = std::time::Instant::now();
        let list =
            |number| Member { of: Some(Arc::new(Members::new([plain(number)]))), ..plain(number) };
        let all: Vec<Member> = (0..LISTS).map(list).collect();
        for member in &all {
            account.more(member, 1);
            account.gone(member, Fate::Delivered);
        }
        assert_eq!(account.progress(2, || &[]).pieces.count(), LISTS);
        // The last one first, and each took a moment only.
        all.iter().rev().for_each(|member| account.gone(member, Fate::Delivered));
        assert_eq!(account.progress(2, || &[]).done.count(), LISTS);
        let took = started.elapsed();
        assert!(took < std::time::Duration::from_secs(20), "{took:?}");
    }

    #[test]
    fn lists_are_told_apart_by_their_members_and_where_those_are_cut() {
        let list =
            |members: Vec<Member>| Member { of: Some(Arc::new(Members::new(members))), ..plain(0) };
        let cut = |begun: Option<u64>, cut: Option<u64>| {
            let at = |out| (Piece::of_sample(1, 0), out);
            let link = Link {
                stage: "cut".into(),
                number: 0,
                waits: true,
                begun: begun.map(at),
                cut: cut.map(at),
            };
            let members = Members::new([plain(0), plain(1)]).linked(link);
            Member { of: Some(Arc::new(members)), ..plain(0) }
        };
        let all = || {
            vec![
                list(vec![plain(0), plain(1)]),
                list(vec![plain(1), plain(0)]),
                list(vec![plain(0)]),
                list(vec![plain(0), plain(2)]),
                list(vec![plain(0), plain(1), plain(2)]),
                list(vec![plain(0), Member { lineage: 5, ..plain(1) }]),
                list(vec![list(vec![plain(0), plain(1)])]),
                list(vec![list(vec![plain(0), plain(2)])]),
                list(vec![list(vec![plain(0)]), plain(1)]),
                cut(Some(1), None),
                cut(Some(2), None),
                cut(None, Some(1)),
                cut(Some(1), Some(1)),
            ]
        };
        let pieces = || all().iter().map(Member::piece).collect::<Vec<_>>();
        assert_eq!(pieces(), pieces());
        for (at, piece) in pieces().iter().enumerate() {
            assert_eq!(pieces().iter().position(|other| other == piece), Some(at));
        }
        // The pieces of one are a range.
        let piece = |output| {
            let lineage = Head::default().output(9, output).lineage;
            Member { lineage, ..list(vec![plain(0), plain(1)]) }.piece().number
        };
        assert!((1..100).all(|output| piece(output + 1) == piece(output).wrapping_add(1)));
    }
}
