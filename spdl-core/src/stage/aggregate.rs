//! Stages that change how many items there are: batches, aggregates, filters, and their inverses.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::stage::{AggregateInputs, Stage, StageContext};

/// Larger batches than this grow as they fill: nobody knows yet whether so many items will come.
const MOST_RESERVED: usize = 65_536;

/// Makes one item of several: a list, a sum, a packed sequence.
///
/// Each instance serves one epoch, on one worker at a time: it is made
/// when its first item comes, and dropped after its [`flush`](Aggregator::flush), so nothing of one
/// epoch, or of one pipeline, gets into the next.
///
/// ```
/// use spdl_core::Result;
/// use spdl_core::stage::Aggregator;
///
/// /// Packs texts until they have 10 bytes together.
/// #[derive(Default)]
/// struct Pack(String);
/// impl Aggregator<String> for Pack {
///     type Out = String;
///     fn accumulate(&mut self, text: String) -> Result<Option<String>> {
///         self.0.push_str(&text);
///         Ok((self.0.len() >= 10).then(|| std::mem::take(&mut self.0)))
///     }
///     fn flush(&mut self) -> Result<Option<String>> {
///         Ok((!self.0.is_empty()).then(|| std::mem::take(&mut self.0)))
///     }
/// }
///
/// let mut pack = Pack::default();
/// assert_eq!(pack.accumulate("seven b".into())?, None);
/// assert_eq!(pack.accumulate("ytes".into())?.as_deref(), Some("seven bytes"));
/// assert_eq!(pack.flush()?, None);
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub trait Aggregator<In>: Send + 'static {
    /// What it makes.
    type Out: Send + 'static;

    /// Takes an item in; gives an aggregate where one is complete.
    ///
    /// # Errors
    /// Whatever keeps the item from being taken in; it then counts as failed. What was taken in
    /// before stays, unless [`left_out`](Aggregator::left_out) says otherwise.
    fn accumulate(&mut self, item: In) -> Result<Option<Self::Out>>;

    /// Gives one more aggregate that the same item completed. Asked after
    /// [`accumulate`](Aggregator::accumulate) gave one, until it gives `None`. Where it has no
    /// [`inputs`](ExactResume::inputs) of its own, it is taken to be made of those of the aggregate
    /// before: they are done when both are.
    ///
    /// # Errors
    /// As for [`accumulate`](Aggregator::accumulate).
    fn more(&mut self) -> Result<Option<Self::Out>> {
        Ok(None)
    }

    /// Gives what is held when the epoch ends, if it is to come out. Nothing is taken in after it.
    ///
    /// # Errors
    /// Whatever keeps the rest from being made into an aggregate.
    fn flush(&mut self) -> Result<Option<Self::Out>>;

    /// Gives one more aggregate of the rest. Asked after [`flush`](Aggregator::flush) gave one,
    /// until it gives `None`.
    ///
    /// # Errors
    /// As for [`flush`](Aggregator::flush).
    fn flush_more(&mut self) -> Result<Option<Self::Out>> {
        Ok(None)
    }

    /// How well the aggregates given so far are filled. `None`, the default: there is nothing that
    /// they could be filled up to.
    fn fill_rate(&self) -> Option<FillRate> {
        None
    }

    /// How many of the items that it took in will never come out, counted since the last call:
    /// those of an unwanted short batch, say. Asked after `flush`, and after an error.
    fn left_out(&mut self) -> u64 {
        0
    }

    /// The part of the aggregator that makes a resumed run exact. `None`, the default, if every
    /// aggregate consists of all items accumulated since the aggregate before.
    fn exact_resume(&mut self) -> Option<&mut dyn ExactResume> {
        None
    }
}

/// What an [`Aggregator`] reports so that a resumed run continues exactly.
///
/// An aggregator needs this trait if it holds items over an aggregate, such as a packer with several
/// open sequences, or if one item ends up in several aggregates.
///
/// A checkpoint state contains the items that an aggregator still holds. A resumed pipeline passes these
/// items to a new aggregator, in their original order, and continues with the items that follow. The
/// aggregator must keep this law: *a new aggregator that accumulates only the held items holds the same,
/// and from then on returns the same aggregates.* An error must not lose items.
///
/// An aggregator that holds items over an aggregate without this trait would lose samples when a run
/// is resumed. The pipeline detects such an aggregator when it returns an aggregate although all items
/// are in earlier aggregates, mostly at the end of the first epoch. From then on
/// [`Pipeline::state`](crate::Pipeline::state) returns `Unsupported`.
pub trait ExactResume {
    /// Numbers of the items that the last aggregate consists of, in their order in the aggregate.
    ///
    /// Accumulated items are numbered from 0 for each instance; rejected items have no number. If an
    /// aggregate contains only a part of an item, the item counts as its input if that part is the
    /// item's end. Called once after each aggregate.
    fn inputs(&mut self) -> Vec<u64>;

    /// How much of the oldest held item earlier aggregates contain, in units of the aggregator (tokens).
    ///
    /// The value is greater than 0 only if items are cut, or are in several aggregates, as in windows that
    /// overlap. Called after each aggregate.
    ///
    /// After the first aggregate of an epoch with such a value, outcomes of aggregates count in
    /// emission order: if an aggregate fails, its items are done when all earlier aggregates are
    /// delivered or dropped. So no part of an item is lost or repeated.
    fn carry(&self) -> u64 {
        0
    }

    /// Sets how much of the first item earlier aggregates contain, as [`carry`](Self::carry) returned it
    /// before the pipeline was resumed. Called before any other method, and not at all if that item
    /// fails upstream this time.
    fn resume(&mut self, carry: u64) {
        let _ = carry;
    }
}

/// How much of the room in aggregates is used.
///
/// ```
/// # use spdl_core::stage::FillRate;
/// let rate = FillRate { used: 970, capacity: 1000 };
/// assert_eq!(rate.share(), Some(0.97));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillRate {
    /// What the aggregates hold: tokens, say.
    pub used: u64,
    /// What they had room for. The rest is padding.
    pub capacity: u64,
}

impl FillRate {
    /// The part that is used, in 0..=1; `None` before there was any room.
    pub fn share(self) -> Option<f64> {
        (self.capacity > 0).then(|| self.used as f64 / self.capacity as f64)
    }

    /// Counts one more aggregate.
    pub(crate) fn add(&mut self, used: u64, capacity: u64) {
        self.used = self.used.saturating_add(used);
        self.capacity = self.capacity.saturating_add(capacity);
    }

    /// What was counted after `earlier`.
    pub(crate) fn since(self, earlier: FillRate) -> FillRate {
        FillRate {
            used: self.used.saturating_sub(earlier.used),
            capacity: self.capacity.saturating_sub(earlier.capacity),
        }
    }
}

/// The [`Aggregator`] that makes lists of `n` items.
///
/// ```
/// use spdl_core::stage::{Aggregator, Batcher};
/// let mut batcher = Batcher::new(2, false)?;
/// assert_eq!(batcher.accumulate('a')?, None);
/// assert_eq!(batcher.accumulate('b')?, Some(vec!['a', 'b']));
/// assert_eq!(batcher.accumulate('c')?, None);
/// assert_eq!(batcher.flush()?, Some(vec!['c']));
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Batcher<T> {
    size: usize,
    drop_last: bool,
    items: Vec<T>,
    left_out: u64,
}

impl<T> Batcher<T> {
    /// Makes lists of `size` items, at least 1. Where the epoch ends with fewer, they come out as a
    /// shorter list, or with `drop_last` are left out and counted.
    ///
    /// # Errors
    /// `InvalidArgument` for a `size` of 0.
    pub fn new(size: usize, drop_last: bool) -> Result<Self> {
        if size == 0 {
            let message = "a batch of 0 items was asked for; the least is 1";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(Batcher { size, drop_last, items: Vec::new(), left_out: 0 })
    }
}

impl<T: Send + 'static> Aggregator<T> for Batcher<T> {
    type Out = Vec<T>;

    fn accumulate(&mut self, item: T) -> Result<Option<Vec<T>>> {
        if self.items.capacity() == 0 {
            let room = self.size.min(MOST_RESERVED);
            self.items.try_reserve_exact(room).map_err(|error| {
                let message = format!("no memory for a batch of {room} items");
                Error::new(ErrorKind::LimitExceeded, message).with_source(error)
            })?;
        }
        self.items.push(item);
        Ok((self.items.len() >= self.size).then(|| std::mem::take(&mut self.items)))
    }

    fn flush(&mut self) -> Result<Option<Vec<T>>> {
        let rest = std::mem::take(&mut self.items);
        if self.drop_last {
            self.left_out += rest.len() as u64;
            return Ok(None);
        }
        Ok((!rest.is_empty()).then_some(rest))
    }

    fn left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}

type AggregatorFactory<A> = Box<dyn Fn() -> Result<A> + Send>;

/// An [`Aggregator`] as a [`Stage`], with a new one for each epoch.
///
/// Each instance of the stage aggregates what it gets, so run it with a concurrency of 1, unless
/// several short aggregates at the end of an epoch do no harm. An aggregate has the identity of the
/// item that completed it; through [`batch`](crate::PipelineBuilder::batch) and
/// [`aggregate`](crate::PipelineBuilder::aggregate), that of its first item. An epoch without items makes no aggregate.
pub(crate) struct Aggregation<A> {
    factory: AggregatorFactory<A>,
    /// The aggregator of this epoch, from its first item on. The very first is there earlier.
    aggregator: Option<A>,
    /// Whether it has been given an item.
    used: bool,
    state: AggregationState,
}

/// What an [`Aggregation`] counts.
#[derive(Debug, Default)]
struct AggregationState {
    /// Items taken in that have not come out: those that a panic would lose.
    held: u64,
    left_out: u64,
    /// How well the aggregates of this epoch's aggregator are filled, as told last.
    filled: FillRate,
}

impl<A> Aggregation<A> {
    /// Runs what `factory` makes.
    ///
    /// # Errors
    /// The factory's: it is tried here, so that a failure ends the pipeline, not an item.
    pub(crate) fn new(factory: impl Fn() -> Result<A> + Send + 'static) -> Result<Self> {
        let aggregator = Some(factory()?);
        let factory = Box::new(factory);
        Ok(Aggregation { factory, aggregator, used: false, state: AggregationState::default() })
    }
}

impl<A> fmt::Debug for Aggregation<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aggregation")
            .field("used", &self.used)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl AggregationState {
    /// Asks for an aggregate. After a panic the instance is thrown away, and with it what it holds.
    fn ask<R>(&mut self, ask: impl FnOnce() -> R) -> R {
        let at_risk = LossGuard { items: self.held, left_out: &mut self.left_out };
        let answer = ask();
        at_risk.saved();
        answer
    }

    /// Hands an aggregate on.
    fn hand_on<In, A: Aggregator<In>>(
        &mut self,
        aggregator: &mut A,
        aggregate: A::Out,
        cx: &mut StageContext<'_, A::Out>,
    ) -> Result<()> {
        let (members, carry, rate) = self.ask(|| {
            let exact = aggregator.exact_resume().map(|exact| (exact.inputs(), exact.carry()));
            let (members, carry) = exact.map_or((None, 0), |(inputs, carry)| (Some(inputs), carry));
            (members, carry, aggregator.fill_rate())
        });
        self.held = match &members {
            Some(members) => self.held.saturating_sub(members.len() as u64),
            None => 0,
        };
        let rate = rate.unwrap_or(self.filled);
        let more = rate.since(std::mem::replace(&mut self.filled, rate));
        if more.capacity > 0 {
            cx.filled(more);
        }
        cx.emit_aggregate(aggregate, AggregateInputs { members, carry })
    }

    /// Hands the rest of an epoch on, and counts what will not come out.
    fn flush<In, A: Aggregator<In>>(
        &mut self,
        aggregator: &mut A,
        cx: &mut StageContext<'_, A::Out>,
    ) -> Result<()> {
        let mut answer = self.ask(|| aggregator.flush());
        loop {
            if answer.is_err() {
                // All that it still held is lost.
                self.left_out += std::mem::take(&mut self.held);
            }
            let Some(aggregate) = answer? else { break };
            self.hand_on(aggregator, aggregate, cx)?;
            answer = self.ask(|| aggregator.flush_more());
        }
        self.held = 0;
        self.left_out += aggregator.left_out();
        Ok(())
    }

    /// Counts what an error lost.
    fn lost<In, A: Aggregator<In>>(&mut self, aggregator: &mut A) {
        let lost = aggregator.left_out();
        self.left_out += lost;
        self.held = self.held.saturating_sub(lost);
    }
}

impl<In: Send + 'static, A: Aggregator<In>> Stage<In> for Aggregation<A> {
    type Out = A::Out;

    fn process(&mut self, item: In, cx: &mut StageContext<'_, A::Out>) -> Result<()> {
        let aggregator = match &mut self.aggregator {
            Some(aggregator) => aggregator,
            empty => empty.insert((self.factory)()?),
        };
        let state = &mut self.state;
        if !std::mem::replace(&mut self.used, true) {
            state.filled = FillRate::default();
            match cx.carry() {
                0 => {}
                carry => state.ask(|| {
                    if let Some(exact) = aggregator.exact_resume() {
                        exact.resume(carry);
                    }
                }),
            }
        }
        let mut answer = state.ask(|| aggregator.accumulate(item));
        if answer.is_ok() {
            state.held += 1;
        }
        loop {
            if answer.is_err() {
                state.lost(aggregator);
            }
            let Some(aggregate) = answer? else { return Ok(()) };
            state.hand_on(aggregator, aggregate, cx)?;
            answer = state.ask(|| aggregator.more());
        }
    }

    fn finish(&mut self, cx: &mut StageContext<'_, A::Out>) -> Result<()> {
        if !std::mem::take(&mut self.used) {
            return Ok(());
        }
        let Some(mut aggregator) = self.aggregator.take() else { return Ok(()) };
        self.state.flush(&mut aggregator, cx)
    }

    /// Also counts what a panic of the aggregator lost.
    fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.state.left_out)
    }

    fn holds_back(&self) -> bool {
        true
    }
}

/// Counts items as left out unless it is told that they are safe.
struct LossGuard<'a> {
    items: u64,
    left_out: &'a mut u64,
}

impl LossGuard<'_> {
    fn saved(mut self) {
        self.items = 0;
    }
}

impl Drop for LossGuard<'_> {
    fn drop(&mut self) {
        *self.left_out += self.items;
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::source::sample::SampleId;
    use crate::stage::{TestOutlet, epoch};
    use crate::sync::Counter;

    fn batches(size: usize, drop_last: bool) -> Aggregation<Batcher<u32>> {
        Aggregation::new(move || Batcher::new(size, drop_last)).unwrap()
    }

    fn left_out(stage: &mut Aggregation<impl Aggregator<u32>>) -> u64 {
        stage.take_left_out()
    }

    #[test]
    fn the_rest_of_an_epoch_is_a_short_batch() {
        let mut stage = batches(3, false);
        assert_eq!(epoch(&mut stage, 1..8).0, [vec![1, 2, 3], vec![4, 5, 6], vec![7]]);
        assert_eq!(epoch(&mut stage, 1..4).0, [[1, 2, 3]]);
        assert_eq!(left_out(&mut stage), 0);
    }

    #[test]
    fn a_dropped_rest_is_counted_and_stays_out_of_the_next_epoch() {
        let mut stage = batches(3, true);
        assert_eq!(epoch(&mut stage, 1..8).0, [[1, 2, 3], [4, 5, 6]]);
        assert_eq!(left_out(&mut stage), 1);
        assert_eq!(epoch(&mut stage, 1..6).0, [[1, 2, 3]]);
        assert_eq!(left_out(&mut stage), 2);
        assert_eq!(left_out(&mut stage), 0);
    }

    // feature: B14
    #[test]
    fn stages_of_one_factory_share_no_items() {
        let factory = || Batcher::new(3, false);
        let mut first = Aggregation::new(factory).unwrap();
        let mut second = Aggregation::new(factory).unwrap();
        TestOutlet::default().run(SampleId::default(), |cx| {
            first.process(1, cx).unwrap();
            first.process(2, cx).unwrap();
        });
        assert_eq!(epoch(&mut second, [3, 4]).0, [[3, 4]]);
    }

    #[test]
    fn a_batch_takes_one_allocation() {
        let mut batcher = Batcher::new(5, false).unwrap();
        for round in 0..3 {
            for item in 0..4 {
                assert_eq!(batcher.accumulate(item).unwrap(), None);
                assert_eq!(batcher.items.capacity(), 5, "round {round}");
            }
            assert_eq!(batcher.accumulate(4).unwrap().unwrap().capacity(), 5);
        }
    }

    #[test]
    fn a_huge_batch_takes_no_huge_memory_at_once() {
        let mut stage = batches(usize::MAX, false);
        assert_eq!(epoch(&mut stage, [1]).0, [[1]]);
    }

    #[test]
    fn a_batch_of_no_items_is_an_error() {
        let kind = Batcher::<()>::new(0, false).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::InvalidArgument);
        let kind = Aggregation::new(|| Batcher::<()>::new(0, false)).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::InvalidArgument);
    }

    /// Sums until 10; refuses 7, loses all at 8, panics at 9.
    struct Sum {
        sum: u32,
        items: u64,
        lost: u64,
    }

    impl Aggregator<u32> for Sum {
        type Out = u32;

        fn accumulate(&mut self, item: u32) -> Result<Option<u32>> {
            match item {
                7 => return Err(Error::new(ErrorKind::User, "seven")),
                8 => {
                    self.lost += std::mem::take(&mut self.items);
                    self.sum = 0;
                    return Err(Error::new(ErrorKind::User, "eight"));
                }
                9 => panic!("nine"),
                _ => {}
            }
            self.sum += item;
            self.items += 1;
            if self.sum < 10 {
                return Ok(None);
            }
            self.items = 0;
            Ok(Some(std::mem::take(&mut self.sum)))
        }

        fn flush(&mut self) -> Result<Option<u32>> {
            Ok(Some(self.sum))
        }

        fn left_out(&mut self) -> u64 {
            std::mem::take(&mut self.lost)
        }
    }

    fn sums() -> (Aggregation<Sum>, Counter) {
        let made = Counter::default();
        let counter = made.clone();
        let factory = move || {
            counter.add(1);
            Ok(Sum { sum: 0, items: 0, lost: 0 })
        };
        (Aggregation::new(factory).unwrap(), made)
    }

    #[test]
    fn every_epoch_has_a_new_aggregator_and_an_empty_one_none() {
        let (mut stage, made) = sums();
        assert!(epoch(&mut stage, []).0.is_empty());
        assert_eq!(epoch(&mut stage, [4, 6, 1]).0, [10, 1]);
        assert_eq!(made.get(), 1);
        assert!(epoch(&mut stage, []).0.is_empty());
        assert_eq!(epoch(&mut stage, [2]).0, [2]);
        assert_eq!(made.get(), 2);
    }

    #[test]
    fn a_refused_item_fails_alone() {
        let (mut stage, _) = sums();
        let (outputs, results) = epoch(&mut stage, [4, 7, 6]);
        assert_eq!(outputs, [10, 0]);
        let failed: Vec<bool> = results.iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, true, false, false]);
        assert_eq!(left_out(&mut stage), 0);
    }

    #[test]
    fn what_an_error_or_a_panic_loses_is_counted() {
        let (mut stage, _) = sums();
        epoch(&mut stage, [1, 2, 8, 3]);
        assert_eq!(left_out(&mut stage), 2);
        let panicked = catch_unwind(AssertUnwindSafe(|| epoch(&mut stage, [5, 5, 1, 2, 3, 9])));
        assert!(panicked.is_err());
        assert_eq!(left_out(&mut stage), 3);
    }

    /// Gives what it holds in parts of 3 units, and tells everything about them. Panics at 99.
    #[derive(Default)]
    struct Thirds {
        units: u32,
        taken: u64,
        ends: Vec<u64>,
        given: u64,
    }

    impl Aggregator<u32> for Thirds {
        type Out = u32;

        fn accumulate(&mut self, units: u32) -> Result<Option<u32>> {
            assert!(units != 99, "99");
            self.units += units;
            self.ends.push(self.taken);
            self.taken += 1;
            self.more()
        }

        fn more(&mut self) -> Result<Option<u32>> {
            if self.units < 3 {
                return Ok(None);
            }
            self.units -= 3;
            self.given += 1;
            Ok(Some(3))
        }

        fn flush(&mut self) -> Result<Option<u32>> {
            self.flush_more()
        }

        fn flush_more(&mut self) -> Result<Option<u32>> {
            self.given += u64::from(self.units > 0);
            Ok((self.units > 0).then(|| {
                self.units -= 1;
                1
            }))
        }

        fn exact_resume(&mut self) -> Option<&mut dyn ExactResume> {
            Some(self)
        }

        fn fill_rate(&self) -> Option<FillRate> {
            Some(FillRate { used: 2 * self.given, capacity: 3 * self.given })
        }
    }

    impl ExactResume for Thirds {
        fn inputs(&mut self) -> Vec<u64> {
            let stays = usize::from(self.units > 0 && !self.ends.is_empty());
            self.ends.drain(..self.ends.len() - stays).collect()
        }

        fn carry(&self) -> u64 {
            u64::from(self.units)
        }

        fn resume(&mut self, carry: u64) {
            assert_eq!((self.units, self.taken), (0, 0), "before anything else");
            self.units = carry as u32;
        }
    }

    #[test]
    fn all_aggregates_are_asked_for_with_what_they_are_made_of() {
        let mut stage = Aggregation::new(|| Ok(Thirds::default())).unwrap();
        let mut outlet = TestOutlet::default();
        outlet.run(SampleId::default(), |cx| {
            stage.process(1, cx).unwrap();
            stage.process(7, cx).unwrap();
            stage.finish(cx).unwrap();
        });
        assert_eq!(outlet.outputs, [3, 3, 1, 1]);
        let told: Vec<_> = outlet.parts.iter().map(|p| (p.members.clone(), p.carry)).collect();
        let some = |members: &[u64]| Some(members.to_vec());
        assert_eq!(told, [(some(&[0]), 5), (some(&[]), 2), (some(&[]), 1), (some(&[1]), 0)]);
        let rate = |used, capacity| FillRate { used, capacity };
        assert_eq!(outlet.filled, [rate(2, 3); 4]);
        // Another epoch is counted anew.
        outlet.run(SampleId::default(), |cx| {
            stage.process(3, cx).unwrap();
            stage.finish(cx).unwrap();
        });
        assert_eq!(outlet.filled, [rate(2, 3); 5]);
        assert_eq!(left_out(&mut stage), 0);
    }

    #[test]
    fn what_was_carried_over_is_told_once_before_the_first_item() {
        let mut stage = Aggregation::new(|| Ok(Thirds::default())).unwrap();
        let mut outlet = TestOutlet { carry: 2, ..TestOutlet::default() };
        outlet.run(SampleId::default(), |cx| stage.process(1, cx).unwrap());
        assert_eq!(outlet.outputs, [3]);
        outlet.run(SampleId::default(), |cx| stage.finish(cx).unwrap());
        outlet.run(SampleId::default(), |cx| stage.process(1, cx).unwrap());
        assert_eq!(outlet.outputs, [3]);
    }

    #[test]
    fn a_panic_loses_what_has_not_come_out() {
        let mut stage = Aggregation::new(|| Ok(Thirds::default())).unwrap();
        // 0 and 1 come out; 2 begins to.
        let items = [1, 2, 4, 1, 99];
        assert!(catch_unwind(AssertUnwindSafe(|| epoch(&mut stage, items))).is_err());
        assert_eq!(left_out(&mut stage), 2, "2 and 3; 4 itself has failed");
        let mut stage = Aggregation::new(|| Ok(Thirds::default())).unwrap();
        let items = [1, 1, 1, 1, 1, 99];
        assert!(catch_unwind(AssertUnwindSafe(|| epoch(&mut stage, items))).is_err());
        assert_eq!(left_out(&mut stage), 2);
    }
}
