//! Who an item is: the identity that travels with every sample from the source to the batch.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::account::{Member, Members};
use crate::budget::Lease;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The identity of a sample within a run.
///
/// It decides the sample's randomness, its place in an ordered output and its line in a report. It
/// does not depend on threads, queues or timing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SampleId {
    /// The pass over the data, counted from 0.
    pub epoch: u64,
    /// The position in the epoch's global order, counted from 0.
    pub index: u64,
}

impl fmt::Display for SampleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, sample {}", self.epoch, self.index)
    }
}

/// A value with its class: what an image folder yields, a fetch carries on, and a batch takes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labeled<T> {
    /// The value: first a key, later bytes.
    pub value: T,
    /// The class, counted from 0; −1 where there is none.
    pub label: i64,
}

impl<T> Labeled<T> {
    /// The same label on another value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Labeled<U> {
        Labeled { value: f(self.value), label: self.label }
    }
}

/// What else is known of some items: shared by all that come from one.
#[derive(Debug, Default)]
pub(crate) struct Tag {
    /// The path, object key or member name, for messages.
    pub(crate) key: Option<Arc<str>>,
    /// Where several samples were put together into this item: who they are.
    pub(crate) members: Option<Arc<Members>>,
    /// The item's place in an order that is restored later; see [`Ticket`].
    pub(crate) ticket: Option<Arc<Ticket>>,
}

/// Who an item is, without its value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Head {
    pub(crate) id: SampleId,
    /// 0 straight from the source; else a number for the branches and outputs it came by, so that
    /// items with one `id` have random numbers of their own.
    pub(crate) lineage: u64,
    pub(crate) tag: Option<Arc<Tag>>,
}

impl Head {
    pub(crate) fn new(id: SampleId, key: Option<Arc<str>>) -> Self {
        let tag = key.map(|key| Arc::new(Tag { key: Some(key), ..Tag::default() }));
        Head { id, lineage: 0, tag }
    }

    pub(crate) fn key(&self) -> Option<&Arc<str>> {
        self.tag.as_ref()?.key.as_ref()
    }

    pub(crate) fn members(&self) -> Option<&Arc<Members>> {
        self.tag.as_ref()?.members.as_ref()
    }

    /// The item as a part of what it is put together into.
    pub(crate) fn member(&self) -> Member {
        Member { id: self.id, lineage: self.lineage, of: self.members().cloned() }
    }

    pub(crate) fn ticket(&self) -> Option<&Arc<Ticket>> {
        self.tag.as_ref()?.ticket.as_ref()
    }

    /// The head of an aggregate in which no item ends: of what goes out of this one up to `carry`.
    pub(crate) fn piece(&self, carry: u64) -> Head {
        Head { lineage: mix(self.lineage, !carry), ..self.bare() }
    }

    /// The head without what it shares with others.
    pub(crate) fn bare(&self) -> Head {
        Head { tag: None, ..*self }
    }

    /// The head of output number `output` that stage number `stage` makes of this item. The first
    /// one goes on as the item itself.
    pub(crate) fn output(&self, stage: u64, output: u64) -> Head {
        let lineage = if output == 0 { self.lineage } else { mix(self.lineage ^ stage, output) };
        Head { id: self.id, lineage, tag: self.tag.clone() }
    }

    /// The head on branch number `branch` of a merge.
    pub(crate) fn branch(mut self, branch: usize) -> Head {
        self.lineage = mix(!self.lineage, branch as u64 + 1);
        self
    }
}

impl<'a> From<&'a Head> for crate::ItemInfo<'a> {
    fn from(head: &'a Head) -> Self {
        crate::ItemInfo::new(head.id, head.key().map(|key| &**key))
    }
}

/// By how much the numbers of consecutive outputs differ before they are mixed: the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
const FIRST: u64 = 0xbf58_476d_1ce4_e5b9;
const SECOND: u64 = 0x94d0_49bb_1331_11eb;

/// A number that differs for every pair of numbers (as far as 64 bits can): the finalizer of
/// SplitMix64 (Steele, Lea, Flood 2014) over both.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_add(b.wrapping_mul(STEP));
    x = (x ^ (x >> 30)).wrapping_mul(FIRST);
    x = (x ^ (x >> 27)).wrapping_mul(SECOND);
    (x ^ (x >> 31)).max(1)
}

/// Another number for a lineage, one for each: those of the outputs that a stage makes of one item,
/// but for the first one, follow each other without a gap. So many outputs are one range.
pub(crate) fn unmixed(lineage: u64) -> u64 {
    let mut x = lineage ^ (lineage >> 31) ^ (lineage >> 62);
    x = x.wrapping_mul(const { inverse(SECOND) });
    x = (x ^ (x >> 27) ^ (x >> 54)).wrapping_mul(const { inverse(FIRST) });
    (x ^ (x >> 30) ^ (x >> 60)).wrapping_mul(const { inverse(STEP) })
}

/// The number that gives 1 when multiplied with this odd one, modulo 2^64.
const fn inverse(odd: u64) -> u64 {
    // Newton's iteration: twice as many low bits are right each time, 3 in the beginning.
    let mut inverse = odd;
    let mut bits = 3;
    while bits < 64 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        bits *= 2;
    }
    inverse
}

/// An item on its way: the value, who it is, and the memory that it is counted with.
#[derive(Debug)]
pub(crate) struct Envelope<T> {
    pub(crate) head: Head,
    pub(crate) value: T,
    pub(crate) lease: Option<Lease>,
}

impl<T> Envelope<T> {
    pub(crate) fn new(head: Head, value: T) -> Self {
        Envelope { head, value, lease: None }
    }
}

/// A number in an order that is restored where the ways of items join again. When the last item
/// that carries it is gone, whether it arrived, was dropped, or failed, the number is retired: so
/// nothing ever waits for an item that cannot come any more.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    pub(crate) desk: Arc<TicketDesk>,
    /// The ticket that the item had before: of a route on a path of which this one is.
    pub(crate) outer: Option<Arc<Ticket>>,
    /// Whether a failure of what carries it has ended the pipeline.
    failed: AtomicBool,
}

impl Ticket {
    /// Says that nothing behind this place in the order goes on any more.
    pub(crate) fn fail(&self) {
        self.failed.store(true, Ordering::Relaxed);
        if let Some(outer) = &self.outer {
            outer.fail();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.desk
            .retire(Retired { number: self.number, failed: self.failed.load(Ordering::Relaxed) });
    }
}

/// A ticket that nothing carries any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retired {
    pub(crate) number: u64,
    /// Whether this is where the order ends.
    pub(crate) failed: bool,
}

/// Where tickets are drawn and retired.
#[derive(Debug, Default)]
pub(crate) struct TicketDesk {
    state: Mutex<Desk>,
}

#[derive(Debug, Default)]
struct Desk {
    drawn: u64,
    open: usize,
    retired: Vec<Retired>,
    drawer: Option<Waker>,
    joiner: Option<Waker>,
}

impl TicketDesk {
    /// Draws the next ticket, where fewer than `most` are open; else wakes the task when that is so.
    pub(crate) fn poll_draw(self: &Arc<Self>, most: usize, cx: &Context<'_>) -> Poll<Ticket> {
        let mut state = self.state.lock();
        if state.open >= most {
            state.drawer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.open += 1;
        state.drawn += 1;
        let (number, desk) = (state.drawn - 1, Arc::clone(self));
        Poll::Ready(Ticket { number, desk, outer: None, failed: AtomicBool::new(false) })
    }

    fn retire(&self, ticket: Retired) {
        let mut state = self.state.lock();
        state.retired.push(ticket);
        let joiner = state.joiner.take();
        drop(state);
        if let Some(joiner) = joiner {
            joiner.wake();
        }
    }

    /// Moves the retired tickets out; the task is woken when there are more.
    pub(crate) fn take_retired(&self, into: &mut Vec<Retired>, cx: &Context<'_>) {
        let mut state = self.state.lock();
        into.append(&mut state.retired);
        state.joiner = Some(cx.waker().clone());
    }

    /// Says that a retired number has been dealt with.
    pub(crate) fn settle(&self) {
        let mut state = self.state.lock();
        state.open -= 1;
        let drawer = state.drawer.take();
        drop(state);
        if let Some(drawer) = drawer {
            drawer.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lineages_of_outputs_follow_each_other_when_unmixed() {
        for head in [Head::default(), Head::default().branch(3), Head::default().output(5, 9)] {
            let place = |output| unmixed(head.output(77, output).lineage);
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
