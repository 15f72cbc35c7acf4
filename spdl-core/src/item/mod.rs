//! Items in a queue: a value with its identity, its lineage and its memory reservation.
//!
//! | file | what |
//! |---|---|
//! | this file | `ItemHeader`, `Item`: identity and value of an item |
//! | `lineage` | which samples an aggregate consists of, and the outcome of each piece |
//! | `ticket` | positions in an order that is restored after a route |
//!
//! Imports: `error`, `sync`, `memory`, `source`.

pub(crate) mod lineage;
pub(crate) mod ticket;

use std::sync::Arc;

use crate::memory::budget::Reservation;
use crate::source::sample::SampleId;
use lineage::{AggregateLineage, LineageNode, mix};
use ticket::Ticket;

/// Optional data of an item, shared by all items derived from it.
#[derive(Debug, Default)]
pub(crate) struct ItemTag {
    /// The path, object key or member name, for messages.
    pub(crate) key: Option<Arc<str>>,
    /// Members, if the item is an aggregate.
    pub(crate) members: Option<Arc<AggregateLineage>>,
    /// Position in an order that is restored later; see [`Ticket`].
    pub(crate) ticket: Option<Arc<Ticket>>,
}

/// Identity of an item.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemHeader {
    pub(crate) id: SampleId,
    /// 0 for an item of the source. Otherwise a hash of the branches and outputs that the item
    /// passed through, so that items with equal `id` have different random numbers.
    pub(crate) lineage: u64,
    pub(crate) tag: Option<Arc<ItemTag>>,
}

impl ItemHeader {
    pub(crate) fn new(id: SampleId, key: Option<Arc<str>>) -> Self {
        let tag = key.map(|key| Arc::new(ItemTag { key: Some(key), ..ItemTag::default() }));
        ItemHeader { id, lineage: 0, tag }
    }

    pub(crate) fn key(&self) -> Option<&Arc<str>> {
        self.tag.as_ref()?.key.as_ref()
    }

    pub(crate) fn members(&self) -> Option<&Arc<AggregateLineage>> {
        self.tag.as_ref()?.members.as_ref()
    }

    /// Returns the item as a member of an aggregate.
    pub(crate) fn member(&self) -> LineageNode {
        LineageNode { id: self.id, lineage: self.lineage, of: self.members().cloned() }
    }

    pub(crate) fn ticket(&self) -> Option<&Arc<Ticket>> {
        self.tag.as_ref()?.ticket.as_ref()
    }

    /// Returns the header of an aggregate that contains only a part of this item, up to `carry`.
    pub(crate) fn piece(&self, carry: u64) -> ItemHeader {
        ItemHeader { lineage: mix(self.lineage, !carry), ..self.bare() }
    }

    /// Returns the header of this item joined with others.
    pub(crate) fn joined(&self, others: impl Iterator<Item = ItemHeader>) -> ItemHeader {
        let others = others.map(|other| other.member());
        let members = AggregateLineage::new(std::iter::once(self.member()).chain(others));
        let tag = ItemTag {
            key: self.key().cloned(),
            members: Some(Arc::new(members)),
            ticket: self.ticket().cloned(),
        };
        ItemHeader { tag: Some(Arc::new(tag)), ..*self }
    }

    /// Returns the header without the tag.
    pub(crate) fn bare(&self) -> ItemHeader {
        ItemHeader { tag: None, ..*self }
    }

    /// Returns the header of output number `output` that stage number `stage` emits for this item.
    /// The first output keeps the identity of the item.
    pub(crate) fn output(&self, stage: u64, output: u64) -> ItemHeader {
        let lineage = if output == 0 { self.lineage } else { mix(self.lineage ^ stage, output) };
        ItemHeader { id: self.id, lineage, tag: self.tag.clone() }
    }

    /// Returns the header on branch number `branch` of a merge or route.
    pub(crate) fn branch(mut self, branch: usize) -> ItemHeader {
        self.lineage = mix(!self.lineage, branch as u64 + 1);
        self
    }
}

/// An item in a queue: value, identity and memory reservation.
#[derive(Debug)]
pub(crate) struct Item<T> {
    pub(crate) header: ItemHeader,
    pub(crate) value: T,
    pub(crate) reservation: Option<Reservation>,
}

impl<T> Item<T> {
    pub(crate) fn new(header: ItemHeader, value: T) -> Self {
        Item { header, value, reservation: None }
    }

    /// Bytes of the item in the memory budget, if it is measured.
    pub(crate) fn reserved_bytes(&self) -> Option<usize> {
        self.reservation.as_ref().map(Reservation::bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::lineage::unmixed;
    use super::*;

    #[test]
    fn unmixed_lineages_of_outputs_are_consecutive() {
        for header in [
            ItemHeader::default(),
            ItemHeader::default().branch(3),
            ItemHeader::default().output(5, 9),
        ] {
            let place = |output| unmixed(header.output(77, output).lineage);
            for output in 1..1000 {
                assert_eq!(place(output + 1), place(output).wrapping_add(1), "output {output}");
            }
        }
        assert_eq!(unmixed(0), 0);
        // `unmixed` inverts `mix`.
        for x in (1..10_000u64).map(|n| n.wrapping_mul(0x1234_5678_9abc_def1)) {
            assert_eq!(unmixed(mix(0, x)), x);
        }
    }
}
