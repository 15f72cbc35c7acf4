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

/// What else is known of some items: shared by all that come from one.
#[derive(Debug, Default)]
pub(crate) struct ItemTag {
    /// The path, object key or member name, for messages.
    pub(crate) key: Option<Arc<str>>,
    /// Where several samples were put together into this item: who they are.
    pub(crate) members: Option<Arc<AggregateLineage>>,
    /// The item's place in an order that is restored later; see [`Ticket`].
    pub(crate) ticket: Option<Arc<Ticket>>,
}

/// Who an item is, without its value.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemHeader {
    pub(crate) id: SampleId,
    /// 0 straight from the source; else a number for the branches and outputs it came by, so that
    /// items with one `id` have random numbers of their own.
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

    /// The item as a part of what it is put together into.
    pub(crate) fn member(&self) -> LineageNode {
        LineageNode { id: self.id, lineage: self.lineage, of: self.members().cloned() }
    }

    pub(crate) fn ticket(&self) -> Option<&Arc<Ticket>> {
        self.tag.as_ref()?.ticket.as_ref()
    }

    /// The header of an aggregate in which no item ends: of what goes out of this one up to `carry`.
    pub(crate) fn piece(&self, carry: u64) -> ItemHeader {
        ItemHeader { lineage: mix(self.lineage, !carry), ..self.bare() }
    }

    /// The header without what it shares with others.
    pub(crate) fn bare(&self) -> ItemHeader {
        ItemHeader { tag: None, ..*self }
    }

    /// The header of output number `output` that stage number `stage` makes of this item. The first
    /// one goes on as the item itself.
    pub(crate) fn output(&self, stage: u64, output: u64) -> ItemHeader {
        let lineage = if output == 0 { self.lineage } else { mix(self.lineage ^ stage, output) };
        ItemHeader { id: self.id, lineage, tag: self.tag.clone() }
    }

    /// The header on branch number `branch` of a merge.
    pub(crate) fn branch(mut self, branch: usize) -> ItemHeader {
        self.lineage = mix(!self.lineage, branch as u64 + 1);
        self
    }
}

/// An item on its way: the value, who it is, and the memory that it is counted with.
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
}

#[cfg(test)]
mod tests {
    use super::lineage::unmixed;
    use super::*;

    #[test]
    fn lineages_of_outputs_follow_each_other_when_unmixed() {
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
        // One for each: what was mixed comes out again.
        for x in (1..10_000u64).map(|n| n.wrapping_mul(0x1234_5678_9abc_def1)) {
            assert_eq!(unmixed(mix(0, x)), x);
        }
    }
}
