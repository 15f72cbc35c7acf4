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

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::ranges::Ranges;
use crate::sample::Head;
use crate::shard::{Division, Divisions};
use crate::state::{Piece, SampleCounts};
use crate::sync::Mutex;
use crate::{Error, ErrorKind, Result, SampleId};

/// So many rows of deliveries are noted before they are entered.
const NOTED_AT_ONCE: usize = 256;
/// How many samples an error of the audit names.
const MOST_NAMED: usize = 8;

/// What became of a piece, or of a sample: the last of these that any piece of it came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub(crate) enum Fate {
    /// It went into another piece of the same sample.
    Joined,
    Filtered,
    LeftOut,
    Dropped,
    Delivered,
}

/// A piece of a sample, or of what several were put together into.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) id: SampleId,
    pub(crate) lineage: u64,
    /// What it was put together of, where it was.
    pub(crate) of: Option<Arc<Members>>,
}

impl From<SampleId> for Member {
    fn from(id: SampleId) -> Self {
        Member { id, lineage: 0, of: None }
    }
}

impl Member {
    fn piece(&self) -> Piece {
        let depth = self.of.as_ref().map_or(0, |of| of.depth);
        Piece { depth, index: self.id.index, lineage: self.lineage }
    }

    /// Tells `told` of the samples in it.
    pub(crate) fn samples(&self, told: &mut dyn FnMut(SampleId)) {
        match &self.of {
            Some(members) => members.samples(told),
            None => told(self.id),
        }
    }
}

/// What an aggregate is made of.
#[derive(Debug)]
pub(crate) struct Members {
    list: Box<[Member]>,
    /// How many times something was put together, at most.
    depth: u32,
    /// How much of the oldest item that its stage still holds has gone out with it or before.
    pub(crate) carry: Option<(Arc<str>, u64)>,
    live: Mutex<Live>,
}

/// What has become of an aggregate.
#[derive(Debug)]
struct Live {
    pieces: u64,
    fate: Fate,
    /// Its pieces that are no more, while others are under way.
    gone: Vec<(Piece, Fate)>,
}

impl Members {
    pub(crate) fn new(list: impl IntoIterator<Item = Member>) -> Self {
        let list: Box<[Member]> = list.into_iter().collect();
        let depth = list.iter().map(|member| member.piece().depth).max().unwrap_or(0) + 1;
        let live = Mutex::new(Live { pieces: 1, fate: Fate::Joined, gone: Vec::new() });
        Members { list, depth, carry: None, live }
    }

    /// Says how much of the oldest item that `stage` still holds has gone out.
    pub(crate) fn with_carry(self, stage: Arc<str>, carry: u64) -> Self {
        Members { carry: Some((stage, carry)), ..self }
    }

    /// The aggregates among them.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Members> {
        self.list.iter().filter_map(|member| member.of.as_deref())
    }

    /// Tells `told` of the samples in it.
    pub(crate) fn samples(&self, told: &mut dyn FnMut(SampleId)) {
        self.list.iter().for_each(|member| member.samples(told));
    }
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
    passed: HashMap<Piece, Fate>,
    /// The epoch of those.
    begun: Option<u64>,
    books: Mutex<BTreeMap<u64, Book>>,
    /// A stage that keeps items back on its own account.
    holds_back: OnceLock<Arc<str>>,
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
    /// The aggregates of which some pieces are no more and others are under way.
    in_part: Vec<Arc<Members>>,
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
    /// The lineages of those that are no more.
    gone: Vec<(u64, Fate)>,
    /// It had been done already.
    again: bool,
}

/// What is known of an epoch that is under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) done: Ranges,
    pub(crate) pieces: BTreeMap<Piece, Fate>,
    pub(crate) counts: SampleCounts,
}

impl Book {
    fn new(division: Division, done: Ranges) -> Self {
        Book {
            division,
            before: done.count(),
            done,
            items: HashMap::new(),
            in_part: Vec::new(),
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
                item.gone.push((lineage, fate));
            }
        } else if let Some(item) = self.items.remove(&index)
            && !item.again
        {
            self.done(index, item.fate);
        }
    }

    /// Enters samples that were delivered.
    fn delivered(&mut self, noted: Noted, stride: u64) {
        let Noted { first, len, lineage } = noted;
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
        if live.pieces > 0 {
            if fate != Fate::Joined {
                if live.gone.is_empty() {
                    self.in_part.push(Arc::clone(members));
                }
                live.gone.push((member.piece(), fate));
            }
            return;
        }
        let fate = live.fate;
        if !live.gone.is_empty() {
            self.in_part.retain(|other| !Arc::ptr_eq(other, members));
        }
        drop(live);
        for member in &members.list {
            self.member_gone(member, fate);
        }
    }

    fn more(&mut self, member: &Member, pieces: u64) {
        if let Some(members) = &member.of {
            members.live.lock().pieces += pieces;
            return;
        }
        let index = member.id.index;
        let item = self.items.entry(index).or_insert_with(|| {
            // What a stage makes at an epoch's end may be of a sample that is done.
            let again = self.division.own(index).is_some_and(|own| self.done.contains(own));
            Item { pieces: u64::from(!again), fate: Fate::Joined, gone: Vec::new(), again }
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
        passed: impl IntoIterator<Item = (Piece, Fate)>,
    ) -> Self {
        Account {
            begun: divisions.begun.as_ref().map(|begun| begun.epoch),
            divisions,
            passed: passed.into_iter().collect(),
            books: Mutex::default(),
            holds_back: OnceLock::new(),
        }
    }

    fn book<'a>(&self, books: &'a mut BTreeMap<u64, Book>, epoch: u64) -> &'a mut Book {
        books.entry(epoch).or_insert_with(|| {
            let done = self.divisions.begun(epoch).map(|begun| begun.done.clone());
            Book::new(self.divisions.division(epoch), done.unwrap_or_default())
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
        let fate = self.passed.get(&member.piece());
        fate.inspect(|&&fate| self.gone(&member, fate)).is_some()
    }

    /// Whether [`passes`](Self::passes) may ever be true.
    pub(crate) fn has_any_passed(&self) -> bool {
        !self.passed.is_empty()
    }

    /// Enters how many samples the source has yielded of an epoch, all told.
    pub(crate) fn yielded(&self, epoch: u64, samples: u64) {
        self.book(&mut self.books.lock(), epoch).yielded = Some(samples);
    }

    pub(crate) fn holds_back(&self, stage: &Arc<str>) {
        let _ = self.holds_back.set(Arc::clone(stage));
    }

    pub(crate) fn who_holds_back(&self) -> Option<&Arc<str>> {
        self.holds_back.get()
    }

    /// Closes the books of an epoch, which has come to its end at the consumer.
    pub(crate) fn close(&self, epoch: u64, audit: bool) -> Result<SampleCounts> {
        let mut books = self.books.lock();
        self.book(&mut books, epoch);
        let Some(book) = books.remove(&epoch) else { return Ok(SampleCounts::default()) };
        drop(books);
        if audit {
            book.audit(epoch)?;
        }
        Ok(book.counts)
    }

    /// What is done of an epoch, with these deliveries.
    pub(crate) fn progress(&self, epoch: u64, deliveries: &Deliveries) -> Progress {
        let mut books = self.books.lock();
        let book = self.book(&mut books, epoch);
        deliveries.enter(book);
        let mut pieces = BTreeMap::new();
        if Some(epoch) == self.begun {
            // Their samples may not have come again yet.
            let undone =
                |index| book.division.own(index).is_none_or(|own| !book.done.contains(own));
            let passed = self.passed.iter().map(|(piece, fate)| (*piece, *fate));
            pieces.extend(passed.filter(|(piece, _)| undone(piece.index)));
        }
        for (&index, item) in &book.items {
            let piece = |&(lineage, fate)| (Piece { depth: 0, index, lineage }, fate);
            pieces.extend(item.gone.iter().map(piece));
        }
        for members in &book.in_part {
            pieces.extend(members.live.lock().gone.iter().copied());
        }
        Progress { done: book.done.clone(), pieces, counts: book.counts }
    }
}

/// What the consumer was handed of the current epoch, and is not yet entered.
#[derive(Debug, Default)]
pub(crate) struct Deliveries {
    noted: Vec<Noted>,
    /// How far the stride is between the positions of this rank.
    stride: u64,
    /// How many of those have been entered.
    entered: AtomicUsize,
}

/// Samples that came one after the other: `len` of them, each a stride behind the one before.
#[derive(Clone, Copy, Debug)]
struct Noted {
    first: u64,
    len: u64,
    lineage: u64,
}

impl Deliveries {
    pub(crate) fn new(stride: u64) -> Self {
        Deliveries { stride, ..Deliveries::default() }
    }

    /// Notes that the consumer has an item.
    pub(crate) fn add(&mut self, head: &Head, account: &Account) {
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
        self.noted.push(Noted { first: index, len: 1, lineage });
        if self.noted.len() >= NOTED_AT_ONCE {
            self.enter_all(epoch, account);
        }
    }

    /// Enters everything.
    pub(crate) fn enter_all(&mut self, epoch: u64, account: &Account) {
        if !self.noted.is_empty() {
            self.enter(account.book(&mut account.books.lock(), epoch));
            self.noted.clear();
            self.entered.store(0, Ordering::Relaxed);
        }
    }

    /// The same for whoever may not change this. Under the lock of the books.
    fn enter(&self, book: &mut Book) {
        let entered = self.entered.swap(self.noted.len(), Ordering::Relaxed);
        for &noted in &self.noted[entered..] {
            book.delivered(noted, self.stride);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::Shard;

    fn account() -> Account {
        let divisions = Divisions { shard: Shard::WHOLE, len: None, begun: None };
        Account::new(Arc::new(divisions), [])
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
        let done = || account.progress(2, &Deliveries::new(1));
        account.more(&plain(0), 2);
        ends(&account, [0], Fate::Filtered);
        let piece = |lineage| Member { lineage, ..plain(0) };
        account.gone(&piece(7), Fate::Delivered);
        let known = Piece { depth: 0, index: 0, lineage: 7 };
        assert_eq!(done().pieces.get(&known), Some(&Fate::Delivered));
        assert!(done().done.is_empty());
        // The last one goes into an aggregate, of which three pieces come.
        let list = Arc::new(Members::new([piece(8), plain(1)]));
        let aggregate = |lineage| Member { lineage, of: Some(Arc::clone(&list)), ..plain(0) };
        account.more(&aggregate(8), 2);
        account.gone(&aggregate(8), Fate::Delivered);
        account.gone(&aggregate(9), Fate::Filtered);
        let known = Piece { depth: 1, index: 0, lineage: 9 };
        assert_eq!((done().pieces.len(), done().pieces.get(&known)), (4, Some(&Fate::Filtered)));
        account.gone(&aggregate(10), Fate::Dropped);
        let progress = done();
        assert!(progress.done.iter().flatten().eq(0..2) && progress.pieces.is_empty());
        assert_eq!(progress.counts, SampleCounts { delivered: 2, ..Default::default() });
    }

    #[test]
    fn deliveries_may_be_looked_at_before_they_are_entered() {
        for stride in [1, 3] {
            let shard = Shard::new(stride - 1, stride).unwrap();
            let shard = shard.remainder(crate::Remainder::Uneven);
            let divisions = Divisions { shard, len: None, begun: None };
            let account = Account::new(Arc::new(divisions), []);
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
                deliveries.add(&Head::new(id(index), None), &account);
                expected.insert(own);
                if step % 11 == 0 {
                    assert_eq!(account.progress(2, &deliveries).done, expected, "step {step}");
                }
            }
            deliveries.enter_all(2, &account);
            account.yielded(2, 2000);
            assert_eq!(account.close(2, true).unwrap().delivered, 2000);
        }
    }
}
