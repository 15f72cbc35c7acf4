//! What a stage that puts items together holds back: who they are, and their memory.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::item::ItemHeader;
use crate::item::lineage::{LineageNode, PieceId};
use crate::memory::budget::{Budget, Reservation};
use crate::scheduler::OutputEstimate;
use crate::stage::AggregateInputs;

/// The items that an instance has taken in and not given out.
#[derive(Default)]
pub(super) struct Gathering {
    /// In the order of intake, and so by ascending number.
    items: Vec<HeldItem>,
    /// The number of the next item.
    next: u64,
    /// The memory of all of them.
    reservation: Option<Reservation>,
    /// How many aggregates have told their members in this epoch.
    given: u64,
    /// Whether an item of this epoch has been cut.
    cuts: bool,
    /// What was cut at the end of the last aggregate that told its members, or in an earlier run.
    cut: Option<(PieceId, u64)>,
    /// The position behind the last sample of this epoch that was taken in.
    end: u64,
}

/// Without the tag: a ticket that is held back would hold back others.
struct HeldItem {
    number: u64,
    member: LineageNode,
    bytes: usize,
}

impl HeldItem {
    fn header(&self) -> ItemHeader {
        ItemHeader { id: self.member.id, lineage: self.member.lineage, tag: None }
    }
}

/// What goes out with an aggregate.
pub(super) struct AggregateHeader {
    /// Who the aggregate is, where it is made of chosen items.
    pub(super) header: Option<ItemHeader>,
    pub(super) members: Vec<LineageNode>,
    /// Where it is among the others, where members were told.
    pub(super) place: Option<EmissionPlace>,
    /// The position behind the last sample that was taken in so far.
    pub(super) end: u64,
    pub(super) reservation: Option<Reservation>,
}

/// The place of an aggregate; see [`EmissionOrder`](crate::account::EmissionOrder).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EmissionPlace {
    pub(super) number: u64,
    pub(super) waits: bool,
    pub(super) begun: Option<(PieceId, u64)>,
    pub(super) cut: Option<(PieceId, u64)>,
}

impl Gathering {
    /// Whether nothing is held.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Takes an item in.
    pub(super) fn take_in(&mut self, header: &ItemHeader) {
        let (number, member) = (self.next, header.member());
        self.end = self.end.max(member.end());
        self.items.push(HeldItem { number, member, bytes: 0 });
        self.next += 1;
    }

    /// Takes over the memory of the item that was taken in last.
    pub(super) fn keep(
        &mut self,
        mut reservation: Reservation,
        measure: &OutputEstimate,
        budget: &Arc<Budget>,
    ) -> Result<()> {
        if self.reservation.is_none() {
            self.reservation = budget.try_reserve(measure.level, 0)?;
        }
        let Some(held) = &mut self.reservation else { return Ok(()) };
        let bytes = reservation.bytes();
        held.join(&mut reservation)?;
        if let Some(item) = self.items.last_mut() {
            item.bytes = bytes;
        }
        Ok(())
    }

    /// Undoes the last [`take_in`](Gathering::take_in): the item was refused.
    pub(super) fn put_back(&mut self) {
        let Some(item) = self.items.pop() else { return };
        self.next = item.number;
        if let Some(reservation) = &mut self.reservation {
            reservation.resize(reservation.bytes().saturating_sub(item.bytes));
        }
    }

    /// Forgets all that was held: it is lost, or an epoch has ended. Returns what it was.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = LineageNode> + '_ {
        self.next = 0;
        self.reservation = None;
        self.items.drain(..).map(|item| item.member)
    }

    /// Says that an item was cut in an earlier run, of which so much has gone out.
    pub(super) fn resume_cut(&mut self, piece: PieceId, out: u64) {
        (self.cuts, self.cut) = (true, Some((piece, out)));
    }

    /// Begins to count anew.
    pub(super) fn end_epoch(&mut self) {
        (self.given, self.cuts, self.cut, self.end) = (0, false, None, 0);
    }

    /// The place of what is lost, as if it were an aggregate; `None` where nothing was ever cut.
    pub(super) fn place_of_lost(&mut self) -> Option<EmissionPlace> {
        self.cuts.then(|| self.next_place(None))
    }

    /// Undoes the last place: what was given has that of the aggregate before.
    pub(super) fn give_place_back(&mut self) {
        self.given -= 1;
    }

    fn next_place(&mut self, cut: Option<(PieceId, u64)>) -> EmissionPlace {
        self.given += 1;
        let begun = std::mem::replace(&mut self.cut, cut);
        EmissionPlace { number: self.given - 1, waits: self.cuts, begun, cut }
    }

    /// Takes out what an aggregate is made of.
    ///
    /// # Errors
    /// `InvalidArgument` where the aggregator tells of an item that it does not hold.
    pub(super) fn give(&mut self, parts: &AggregateInputs) -> Result<AggregateHeader> {
        let Some(told) = &parts.members else {
            let members = self.items.drain(..).map(|item| item.member).collect();
            let reservation = self.reservation.take();
            return Ok(AggregateHeader {
                header: None,
                members,
                place: None,
                end: self.end,
                reservation,
            });
        };
        let mut places = Vec::with_capacity(told.len());
        for number in told {
            let place = self.items.binary_search_by_key(number, |item| item.number);
            places.push(place.map_err(|_| not_held(*number))?);
        }
        let members = places.iter().map(|&place| self.items[place].member.clone()).collect();
        // An item ends in one aggregate only, so this is nobody else's.
        let header = match places.first() {
            Some(&place) => Some(self.items[place].header()),
            None => self.items.first().map(|oldest| oldest.header().piece(parts.carry)),
        };
        places.sort_unstable();
        if let Some(pair) = places.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(not_held(self.items[pair[0]].number));
        }
        let bytes = places.iter().map(|&place| self.items[place].bytes).sum();
        let mut gone = places.iter().copied().peekable();
        let mut place = 0;
        self.items.retain(|_| {
            place += 1;
            gone.next_if_eq(&(place - 1)).is_none()
        });
        let reservation = self.reservation.as_mut().map(|reservation| reservation.split(bytes));
        let cut = self.items.first().filter(|_| parts.carry > 0);
        let cut = cut.map(|oldest| (oldest.member.piece(), parts.carry));
        self.cuts |= cut.is_some();
        let place = Some(self.next_place(cut));
        Ok(AggregateHeader { header, members, place, end: self.end, reservation })
    }
}

fn not_held(number: u64) -> Error {
    let message = format!(
        "the aggregator says that item {number} of this epoch is in the aggregate, but it holds \
         no such item, or told of it before"
    );
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
#[cfg(not(any(spdl_loom, spdl_shuttle)))]
mod tests {
    use super::*;
    use crate::source::sample::SampleId;

    fn id(index: u64) -> SampleId {
        SampleId { epoch: 3, index }
    }

    fn names(outgoing: &AggregateHeader) -> Vec<SampleId> {
        outgoing.members.iter().map(|member| member.id).collect()
    }

    fn budget() -> Arc<Budget> {
        Budget::new(2000, Some(1000), 2).unwrap()
    }

    /// Holds items 0 to 4, item `n` with `10 n` bytes, as the third output of sample `10 + n`.
    fn five(budget: &Arc<Budget>) -> Gathering {
        let mut gathering = Gathering::default();
        for n in 0..5 {
            gathering.take_in(&ItemHeader::new(id(10 + n), Some("key".into())).output(0, 2));
            let reservation = budget.try_reserve(0, 10 * n as usize).unwrap().unwrap();
            gathering.keep(reservation, &OutputEstimate::new(1), budget).unwrap();
        }
        gathering
    }

    fn parts(members: &[u64]) -> AggregateInputs {
        AggregateInputs { members: Some(members.to_vec()), carry: 0 }
    }

    fn bytes(outgoing: &AggregateHeader) -> usize {
        outgoing.reservation.as_ref().map_or(0, Reservation::bytes)
    }

    #[test]
    fn chosen_items_go_out_with_their_memory_and_the_others_stay() {
        let budget = budget();
        let live = || budget.statistics().live_bytes;
        let mut gathering = five(&budget);
        let first = gathering.give(&parts(&[3, 1])).unwrap();
        assert_eq!((names(&first), bytes(&first)), (vec![id(13), id(11)], 40));
        let header = first.header.as_ref().unwrap();
        let expected = ItemHeader::new(id(13), None).output(0, 2);
        assert_eq!((header.id, header.lineage), (expected.id, expected.lineage));
        assert_eq!(live(), 100);
        drop(first);
        assert_eq!(live(), 60);
        let second = gathering.give(&parts(&[4])).unwrap();
        assert_eq!((names(&second), bytes(&second)), (vec![id(14)], 40));
        let rest = gathering.give(&AggregateInputs::default()).unwrap();
        assert_eq!((names(&rest), bytes(&rest)), (vec![id(10), id(12)], 20));
        assert!(rest.header.is_none());
        drop((second, rest));
        assert_eq!(live(), 0);
    }

    #[test]
    fn what_is_not_held_cannot_go_out() {
        let budget = budget();
        let mut gathering = five(&budget);
        gathering.give(&parts(&[2])).unwrap();
        for wrong in [&[2][..], &[5], &[0, 7], &[1, 3, 1]] {
            let error = gathering.give(&parts(wrong)).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{wrong:?}");
        }
        assert_eq!(gathering.items.len(), 4, "nothing has changed");
        assert_eq!(budget.statistics().live_bytes, 80);
    }

    #[test]
    fn a_refused_item_leaves_no_trace() {
        let budget = budget();
        let mut gathering = five(&budget);
        gathering.put_back();
        assert_eq!(budget.statistics().live_bytes, 60);
        gathering.take_in(&ItemHeader::new(id(20), None));
        let next = gathering.give(&parts(&[4])).unwrap();
        assert_eq!((names(&next), bytes(&next)), (vec![id(20)], 0));
        assert_eq!(gathering.clear().count(), 4);
        assert_eq!(budget.statistics().live_bytes, 0);
        gathering.take_in(&ItemHeader::new(id(21), None));
        assert_eq!(names(&gathering.give(&parts(&[0])).unwrap()), [id(21)]);
    }

    #[test]
    fn pieces_of_one_item_are_told_apart_by_where_they_end() {
        let mut gathering = Gathering::default();
        gathering.take_in(&ItemHeader::new(id(7), None));
        let mut piece = |carry| {
            let outgoing =
                gathering.give(&AggregateInputs { members: Some(Vec::new()), carry }).unwrap();
            let place = outgoing.place.unwrap();
            assert!(outgoing.members.is_empty() && place.waits);
            assert_eq!(place.cut, Some((PieceId::of_sample(7, 0), carry)));
            outgoing.header.map(|header| (header.id, header.lineage)).unwrap()
        };
        let (first, second) = (piece(4), piece(8));
        assert_eq!((first.0, second.0), (id(7), id(7)));
        let whole = ItemHeader::new(id(7), None);
        let mut lineages = vec![first.1, second.1];
        lineages.extend((0..20).map(|output| whole.output(0, output).lineage));
        lineages.sort_unstable();
        lineages.dedup();
        assert_eq!(lineages.len(), 22);
        assert_eq!(piece(8), second, "whatever came before it");
    }
}
