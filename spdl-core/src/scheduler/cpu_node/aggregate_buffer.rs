//! Items that an aggregating stage has buffered, with their memory reservations.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::item::ItemHeader;
use crate::item::lineage::{LineageNode, PieceId};
use crate::memory::budget::{Budget, Reservation};
use crate::scheduler::OutputEstimate;
use crate::stage::AggregateInputs;

/// Items that an instance has received and not yet emitted in an aggregate.
#[derive(Default)]
pub(super) struct AggregateBuffer {
    /// Ascending by number.
    items: Vec<BufferedItem>,
    /// Number of the next item.
    next: u64,
    /// Reservation for all buffered items.
    reservation: Option<Reservation>,
    /// Number of aggregates of this epoch for which the aggregator listed the members.
    emitted: u64,
    /// Whether an item of this epoch was split between aggregates.
    has_split: bool,
    /// The item that is split at the end of the last aggregate with listed members, or was split in
    /// an earlier run of the program, and the size of its emitted part.
    split_at_end: Option<(PieceId, u64)>,
    /// Position after the last sample received in this epoch.
    end: u64,
}

/// A buffered item has no tag, because a buffered ticket would block the order of other items.
struct BufferedItem {
    number: u64,
    member: LineageNode,
    bytes: usize,
}

impl BufferedItem {
    fn header(&self) -> ItemHeader {
        ItemHeader { id: self.member.id, lineage: self.member.lineage, tag: None }
    }
}

/// Metadata of an aggregate.
pub(super) struct AggregateHeader {
    /// Identity of the aggregate, if the aggregator chose its items.
    pub(super) header: Option<ItemHeader>,
    pub(super) members: Vec<LineageNode>,
    /// Position among the aggregates of the epoch, if the aggregator listed its members.
    pub(super) place: Option<EmissionPlace>,
    /// Position after the last sample received so far.
    pub(super) end: u64,
    pub(super) reservation: Option<Reservation>,
}

/// Position of an aggregate; see [`EmissionOrder`](crate::item::lineage::EmissionOrder).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EmissionPlace {
    pub(super) number: u64,
    pub(super) in_order: bool,
    pub(super) split_at_start: Option<(PieceId, u64)>,
    pub(super) split_at_end: Option<(PieceId, u64)>,
}

impl AggregateBuffer {
    /// Whether no item is buffered.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Buffers an item.
    pub(super) fn push(&mut self, header: &ItemHeader) {
        let (number, member) = (self.next, header.member());
        self.end = self.end.max(member.end());
        self.items.push(BufferedItem { number, member, bytes: 0 });
        self.next += 1;
    }

    /// Takes over the reservation of the last buffered item.
    pub(super) fn keep_reservation(
        &mut self,
        mut reservation: Reservation,
        measure: &OutputEstimate,
        budget: &Arc<Budget>,
    ) -> Result<()> {
        if self.reservation.is_none() {
            self.reservation = budget.try_reserve(measure.level, 0)?;
        }
        let Some(total) = &mut self.reservation else { return Ok(()) };
        let bytes = reservation.bytes();
        total.join(&mut reservation)?;
        if let Some(item) = self.items.last_mut() {
            item.bytes = bytes;
        }
        Ok(())
    }

    /// Undoes the last [`push`](AggregateBuffer::push), for an item that the stage rejected.
    pub(super) fn pop_last(&mut self) {
        let Some(item) = self.items.pop() else { return };
        self.next = item.number;
        if let Some(reservation) = &mut self.reservation {
            reservation.resize(reservation.bytes().saturating_sub(item.bytes));
        }
    }

    /// Removes and returns all buffered items, at the end of an epoch or after a failure.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = LineageNode> + '_ {
        self.next = 0;
        self.reservation = None;
        self.items.drain(..).map(|item| item.member)
    }

    /// Records that an earlier run of the program split an item and emitted a part of size `out`.
    pub(super) fn resume_split(&mut self, piece: PieceId, out: u64) {
        (self.has_split, self.split_at_end) = (true, Some((piece, out)));
    }

    /// Resets the counters for a new epoch.
    pub(super) fn end_epoch(&mut self) {
        (self.emitted, self.has_split, self.split_at_end, self.end) = (0, false, None, 0);
    }

    /// Position of the discarded items, as if they were an aggregate. `None` if no item of the
    /// epoch was split.
    pub(super) fn place_of_discarded(&mut self) -> Option<EmissionPlace> {
        self.has_split.then(|| self.next_place(None))
    }

    /// Undoes the last position: the output belongs to the previous aggregate.
    pub(super) fn undo_place(&mut self) {
        self.emitted -= 1;
    }

    fn next_place(&mut self, split_at_end: Option<(PieceId, u64)>) -> EmissionPlace {
        self.emitted += 1;
        let split_at_start = std::mem::replace(&mut self.split_at_end, split_at_end);
        EmissionPlace {
            number: self.emitted - 1,
            in_order: self.has_split,
            split_at_start,
            split_at_end,
        }
    }

    /// Removes the members of an aggregate from the buffer.
    ///
    /// # Errors
    /// `InvalidArgument` if the aggregator lists an item that is not buffered.
    pub(super) fn take(&mut self, parts: &AggregateInputs) -> Result<AggregateHeader> {
        let Some(listed) = &parts.members else {
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
        let mut places = Vec::with_capacity(listed.len());
        for number in listed {
            let place = self.items.binary_search_by_key(number, |item| item.number);
            places.push(place.map_err(|_| not_buffered(*number))?);
        }
        let members = places.iter().map(|&place| self.items[place].member.clone()).collect();
        // Each item ends in exactly one aggregate, so this identity is unique.
        let header = match places.first() {
            Some(&place) => Some(self.items[place].header()),
            None => self.items.first().map(|oldest| oldest.header().piece(parts.carry)),
        };
        places.sort_unstable();
        if let Some(pair) = places.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(not_buffered(self.items[pair[0]].number));
        }
        let bytes = places.iter().map(|&place| self.items[place].bytes).sum();
        let mut taken = places.iter().copied().peekable();
        let mut place = 0;
        self.items.retain(|_| {
            place += 1;
            taken.next_if_eq(&(place - 1)).is_none()
        });
        let reservation = self.reservation.as_mut().map(|reservation| reservation.split(bytes));
        let split_at_end = self.items.first().filter(|_| parts.carry > 0);
        let split_at_end = split_at_end.map(|oldest| (oldest.member.piece(), parts.carry));
        self.has_split |= split_at_end.is_some();
        let place = Some(self.next_place(split_at_end));
        Ok(AggregateHeader { header, members, place, end: self.end, reservation })
    }
}

fn not_buffered(number: u64) -> Error {
    let message = format!(
        "the aggregator lists item {number} of this epoch as a member, but the item is not \
         buffered; each item may be listed once, after it was added"
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

    fn ids(aggregate: &AggregateHeader) -> Vec<SampleId> {
        aggregate.members.iter().map(|member| member.id).collect()
    }

    fn budget() -> Arc<Budget> {
        Budget::new(2000, Some(1000), 2).unwrap()
    }

    /// Buffers items 0 to 4, item `n` with `10 n` bytes, as the third output of sample `10 + n`.
    fn five(budget: &Arc<Budget>) -> AggregateBuffer {
        let mut buffer = AggregateBuffer::default();
        for n in 0..5 {
            buffer.push(&ItemHeader::new(id(10 + n), Some("key".into())).output(0, 2));
            let reservation = budget.try_reserve(0, 10 * n as usize).unwrap().unwrap();
            buffer.keep_reservation(reservation, &OutputEstimate::new(1), budget).unwrap();
        }
        buffer
    }

    fn parts(members: &[u64]) -> AggregateInputs {
        AggregateInputs { members: Some(members.to_vec()), carry: 0 }
    }

    fn bytes(aggregate: &AggregateHeader) -> usize {
        aggregate.reservation.as_ref().map_or(0, Reservation::bytes)
    }

    #[test]
    fn chosen_items_leave_with_their_memory_and_the_others_stay() {
        let budget = budget();
        let live = || budget.statistics().live_bytes;
        let mut buffer = five(&budget);
        let first = buffer.take(&parts(&[3, 1])).unwrap();
        assert_eq!((ids(&first), bytes(&first)), (vec![id(13), id(11)], 40));
        let header = first.header.as_ref().unwrap();
        let expected = ItemHeader::new(id(13), None).output(0, 2);
        assert_eq!((header.id, header.lineage), (expected.id, expected.lineage));
        assert_eq!(live(), 100);
        drop(first);
        assert_eq!(live(), 60);
        let second = buffer.take(&parts(&[4])).unwrap();
        assert_eq!((ids(&second), bytes(&second)), (vec![id(14)], 40));
        let rest = buffer.take(&AggregateInputs::default()).unwrap();
        assert_eq!((ids(&rest), bytes(&rest)), (vec![id(10), id(12)], 20));
        assert!(rest.header.is_none());
        drop((second, rest));
        assert_eq!(live(), 0);
    }

    #[test]
    fn an_item_that_is_not_buffered_is_rejected() {
        let budget = budget();
        let mut buffer = five(&budget);
        buffer.take(&parts(&[2])).unwrap();
        for wrong in [&[2][..], &[5], &[0, 7], &[1, 3, 1]] {
            let error = buffer.take(&parts(wrong)).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{wrong:?}");
        }
        assert_eq!(buffer.items.len(), 4, "the buffer is unchanged");
        assert_eq!(budget.statistics().live_bytes, 80);
    }

    #[test]
    fn popping_an_item_releases_its_memory_and_number() {
        let budget = budget();
        let mut buffer = five(&budget);
        buffer.pop_last();
        assert_eq!(budget.statistics().live_bytes, 60);
        buffer.push(&ItemHeader::new(id(20), None));
        let next = buffer.take(&parts(&[4])).unwrap();
        assert_eq!((ids(&next), bytes(&next)), (vec![id(20)], 0));
        assert_eq!(buffer.clear().count(), 4);
        assert_eq!(budget.statistics().live_bytes, 0);
        buffer.push(&ItemHeader::new(id(21), None));
        assert_eq!(ids(&buffer.take(&parts(&[0])).unwrap()), [id(21)]);
    }

    #[test]
    fn pieces_of_one_item_have_different_lineages() {
        let mut buffer = AggregateBuffer::default();
        buffer.push(&ItemHeader::new(id(7), None));
        let mut piece = |carry| {
            let aggregate =
                buffer.take(&AggregateInputs { members: Some(Vec::new()), carry }).unwrap();
            let place = aggregate.place.unwrap();
            assert!(aggregate.members.is_empty() && place.in_order);
            assert_eq!(place.split_at_end, Some((PieceId::of_sample(7, 0), carry)));
            aggregate.header.map(|header| (header.id, header.lineage)).unwrap()
        };
        let (first, second) = (piece(4), piece(8));
        assert_eq!((first.0, second.0), (id(7), id(7)));
        let whole = ItemHeader::new(id(7), None);
        let mut lineages = vec![first.1, second.1];
        lineages.extend((0..20).map(|output| whole.output(0, output).lineage));
        lineages.sort_unstable();
        lineages.dedup();
        assert_eq!(lineages.len(), 22);
        assert_eq!(piece(8), second, "the lineage does not depend on earlier pieces");
    }
}
