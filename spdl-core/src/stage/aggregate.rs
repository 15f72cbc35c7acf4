//! [`Aggregator`]: combines several items into one, for example a batch.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::stage::{AggregateInputs, Stage, StageContext};

/// A batch allocates memory for at most this many items in advance. Larger batches grow as items
/// arrive, because an epoch may have fewer items than the batch size.
const MAX_RESERVED: usize = 65_536;

/// Combines several items into one: a list, a sum, a packed sequence.
///
/// The engine creates an instance for each epoch, at the latest for the epoch's first item, and
/// drops it after [`flush`](Aggregator::flush). Therefore no aggregate contains items of two
/// epochs. After a panic, a new instance continues the epoch. One worker at a time uses an
/// instance.
///
/// ```
/// use spdl_core::Result;
/// use spdl_core::stage::Aggregator;
///
/// /// Concatenates texts until the result has at least 10 bytes.
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
    /// The type of an aggregate.
    type Out: Send + 'static;

    /// Accepts an item; returns an aggregate if one is complete.
    ///
    /// # Errors
    /// Any error rejects the item, which counts as failed. Items that were accepted earlier are
    /// kept, except those that [`left_out`](Aggregator::left_out) counts.
    fn accumulate(&mut self, item: In) -> Result<Option<Self::Out>>;

    /// Returns one more aggregate that the last item completed. Default: `None`.
    ///
    /// If [`accumulate`](Aggregator::accumulate) returns an aggregate, the engine calls `more`
    /// until it returns `None`. An aggregate without [`inputs`](ExactResume::inputs) has the inputs
    /// of the previous aggregate. These inputs are delivered or dropped only when both aggregates
    /// are.
    ///
    /// # Errors
    /// The errors of [`accumulate`](Aggregator::accumulate).
    fn more(&mut self) -> Result<Option<Self::Out>> {
        Ok(None)
    }

    /// Returns an aggregate of the held items at the end of the epoch, or `None`.
    ///
    /// After `flush`, the engine does not call `accumulate` again.
    ///
    /// # Errors
    /// Any error ends the pipeline. The held items are left out and counted.
    fn flush(&mut self) -> Result<Option<Self::Out>>;

    /// Returns one more aggregate of the held items. Default: `None`.
    ///
    /// If [`flush`](Aggregator::flush) returns an aggregate, the engine calls `flush_more` until it
    /// returns `None`.
    ///
    /// # Errors
    /// The errors of [`flush`](Aggregator::flush).
    fn flush_more(&mut self) -> Result<Option<Self::Out>> {
        Ok(None)
    }

    /// Fill rate of the aggregates returned so far. Default: `None`, for aggregates without a
    /// capacity.
    fn fill_rate(&self) -> Option<FillRate> {
        None
    }

    /// Number of accepted items that no aggregate will contain, counted since the last call.
    /// Default: 0.
    ///
    /// Examples are the items of an incomplete last batch that is not emitted. The engine calls
    /// `left_out` after the last aggregate of an epoch and after an error of `accumulate` or
    /// `more`.
    fn left_out(&mut self) -> u64 {
        0
    }

    /// The part of the aggregator that makes a resumed run exact. `None`, the default, if every
    /// aggregate consists of all items accumulated since the previous aggregate.
    fn exact_resume(&mut self) -> Option<&mut dyn ExactResume> {
        None
    }
}

/// What an [`Aggregator`] reports so that a resumed run continues exactly.
///
/// An aggregator must implement this trait if it can hold items after it returns an aggregate, or
/// if one item can be in several aggregates. An example is a packer with several open sequences.
///
/// A checkpoint state contains the items that an aggregator still holds. A resumed pipeline passes
/// these items to a new aggregator, in their original order, and continues with the items that
/// follow. The aggregator must satisfy this law: *a new aggregator that accumulates only the held
/// items holds the same items, and then returns the same aggregates.* If `accumulate` returns an
/// error, the items held before must stay held.
///
/// If such an aggregator does not implement this trait, a resumed run would lose samples. The
/// pipeline detects the missing implementation when the aggregator returns an aggregate although
/// earlier aggregates account for all items, usually at the end of the first epoch. From then on,
/// [`Pipeline::state`](crate::Pipeline::state) returns `Unsupported`.
pub trait ExactResume {
    /// Numbers of the items that the last aggregate consists of, in their order in the aggregate.
    ///
    /// Accumulated items are numbered from 0 for each instance; rejected items have no number. If
    /// an aggregate contains only a part of an item, the item is an input only if the part includes
    /// the end of the item. The engine calls `inputs` once after each aggregate.
    fn inputs(&mut self) -> Vec<u64>;

    /// Size of the part of the oldest held item that earlier aggregates contain, in the
    /// aggregator's unit, for example tokens.
    ///
    /// The value is greater than 0 only if items are split, or if they are in several aggregates,
    /// as in overlapping windows. The engine calls `carry` after each aggregate.
    ///
    /// After the first value greater than 0 in an epoch, outcomes of aggregates are recorded in
    /// emission order. An outcome is recorded only when all earlier aggregates have been delivered
    /// or dropped. Therefore no part of an item is lost or repeated.
    fn carry(&self) -> u64 {
        0
    }

    /// Sets the size of the part of the first item that earlier aggregates contain: the value of
    /// [`carry`](Self::carry) in the checkpoint state. If the value is greater than 0, the engine
    /// calls `resume` before the first item is accumulated. `resume` is not called if the first
    /// item fails upstream in the resumed run.
    fn resume(&mut self, carry: u64) {
        let _ = carry;
    }
}

/// How much of the capacity of aggregates is used.
///
/// ```
/// # use spdl_core::stage::FillRate;
/// let rate = FillRate { used: 970, capacity: 1000 };
/// assert_eq!(rate.share(), Some(0.97));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillRate {
    /// Total size of the contents of the aggregates, in the aggregator's unit, such as tokens.
    pub used: u64,
    /// Total capacity of the aggregates, in the same unit. The difference to `used` is padding.
    pub capacity: u64,
}

impl FillRate {
    /// `used / capacity`, in 0..=1; `None` if the capacity is 0.
    pub fn share(self) -> Option<f64> {
        (self.capacity > 0).then(|| self.used as f64 / self.capacity as f64)
    }

    /// Adds one aggregate.
    pub(crate) fn add(&mut self, used: u64, capacity: u64) {
        self.used = self.used.saturating_add(used);
        self.capacity = self.capacity.saturating_add(capacity);
    }

    /// This value minus an `earlier` value of the same aggregator.
    pub(crate) fn since(self, earlier: FillRate) -> FillRate {
        FillRate {
            used: self.used.saturating_sub(earlier.used),
            capacity: self.capacity.saturating_sub(earlier.capacity),
        }
    }
}

/// The [`Aggregator`] that makes lists of a fixed number of items.
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
    /// Makes lists of `size` items, at least 1.
    ///
    /// If fewer items remain at the end of an epoch, they form a shorter list. With `drop_last`,
    /// they are left out and counted.
    ///
    /// # Errors
    /// `InvalidArgument` if `size` is 0.
    pub fn new(size: usize, drop_last: bool) -> Result<Self> {
        if size == 0 {
            let message = "the batch size is 0; it must be at least 1";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(Batcher { size, drop_last, items: Vec::new(), left_out: 0 })
    }
}

impl<T: Send + 'static> Aggregator<T> for Batcher<T> {
    type Out = Vec<T>;

    fn accumulate(&mut self, item: T) -> Result<Option<Vec<T>>> {
        if self.items.capacity() == 0 {
            let reserved = self.size.min(MAX_RESERVED);
            self.items.try_reserve_exact(reserved).map_err(|error| {
                let message = format!("cannot allocate memory for {reserved} items of a batch");
                Error::new(ErrorKind::LimitExceeded, message).with_source(error)
            })?;
        }
        self.items.push(item);
        Ok((self.items.len() >= self.size).then(|| std::mem::take(&mut self.items)))
    }

    fn flush(&mut self) -> Result<Option<Vec<T>>> {
        let items = std::mem::take(&mut self.items);
        if self.drop_last {
            self.left_out += items.len() as u64;
            return Ok(None);
        }
        Ok((!items.is_empty()).then_some(items))
    }

    fn left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}

type AggregatorFactory<A> = Box<dyn Fn() -> Result<A> + Send>;

/// The [`Stage`] that runs a new [`Aggregator`] for each epoch.
///
/// Each instance of the stage aggregates only its own items. Use a concurrency of 1, unless several
/// incomplete aggregates at the end of an epoch are acceptable. An aggregate has the id of the
/// item that completed it, or, in [`batch`](crate::PipelineBuilder::batch) and
/// [`aggregate`](crate::PipelineBuilder::aggregate), of its first item. An epoch without items has
/// no aggregate.
pub(crate) struct Aggregation<A> {
    factory: AggregatorFactory<A>,
    /// The aggregator of this epoch, created for its first item. `new` creates the very first one.
    aggregator: Option<A>,
    /// Whether the aggregator has received an item.
    has_items: bool,
    state: AggregationState,
}

/// The counts of an [`Aggregation`].
#[derive(Debug, Default)]
struct AggregationState {
    /// Accepted items that no aggregate contains yet. A panic would lose them.
    held: u64,
    left_out: u64,
    /// The last fill rate that this epoch's aggregator reported.
    fill_rate: FillRate,
}

impl<A> Aggregation<A> {
    /// Runs the aggregators that `factory` returns.
    ///
    /// # Errors
    /// The error of the first call of `factory`. `new` makes this call, so that the error ends the
    /// pipeline instead of failing an item.
    pub(crate) fn new(factory: impl Fn() -> Result<A> + Send + 'static) -> Result<Self> {
        let aggregator = Some(factory()?);
        let factory = Box::new(factory);
        let state = AggregationState::default();
        Ok(Aggregation { factory, aggregator, has_items: false, state })
    }
}

impl<A> fmt::Debug for Aggregation<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aggregation")
            .field("has_items", &self.has_items)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl AggregationState {
    /// Calls the aggregator. If it panics, the instance is dropped, and its held items count as left
    /// out.
    fn guarded<R>(&mut self, call: impl FnOnce() -> R) -> R {
        let guard = LossGuard { items: self.held, left_out: &mut self.left_out };
        let result = call();
        guard.disarm();
        result
    }

    fn emit<In, A: Aggregator<In>>(
        &mut self,
        aggregator: &mut A,
        aggregate: A::Out,
        cx: &mut StageContext<'_, A::Out>,
    ) -> Result<()> {
        let (members, carry, rate) = self.guarded(|| {
            let exact = aggregator.exact_resume().map(|exact| (exact.inputs(), exact.carry()));
            let (members, carry) = exact.map_or((None, 0), |(inputs, carry)| (Some(inputs), carry));
            (members, carry, aggregator.fill_rate())
        });
        self.held = match &members {
            Some(members) => self.held.saturating_sub(members.len() as u64),
            None => 0,
        };
        let rate = rate.unwrap_or(self.fill_rate);
        let more = rate.since(std::mem::replace(&mut self.fill_rate, rate));
        if more.capacity > 0 {
            cx.add_fill_rate(more);
        }
        cx.emit_aggregate(aggregate, AggregateInputs { members, carry })
    }

    /// Emits the last aggregates of an epoch, and counts the items that are left out.
    fn flush<In, A: Aggregator<In>>(
        &mut self,
        aggregator: &mut A,
        cx: &mut StageContext<'_, A::Out>,
    ) -> Result<()> {
        let mut result = self.guarded(|| aggregator.flush());
        loop {
            if result.is_err() {
                self.left_out += std::mem::take(&mut self.held);
            }
            let Some(aggregate) = result? else { break };
            self.emit(aggregator, aggregate, cx)?;
            result = self.guarded(|| aggregator.flush_more());
        }
        self.held = 0;
        self.left_out += aggregator.left_out();
        Ok(())
    }

    /// Counts the items that the aggregator left out because of an error.
    fn count_left_out<In, A: Aggregator<In>>(&mut self, aggregator: &mut A) {
        let left_out = aggregator.left_out();
        self.left_out += left_out;
        self.held = self.held.saturating_sub(left_out);
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
        if !std::mem::replace(&mut self.has_items, true) {
            state.fill_rate = FillRate::default();
            match cx.carry() {
                0 => {}
                carry => state.guarded(|| {
                    if let Some(exact) = aggregator.exact_resume() {
                        exact.resume(carry);
                    }
                }),
            }
        }
        let mut result = state.guarded(|| aggregator.accumulate(item));
        if result.is_ok() {
            state.held += 1;
        }
        loop {
            if result.is_err() {
                state.count_left_out(aggregator);
            }
            let Some(aggregate) = result? else { return Ok(()) };
            state.emit(aggregator, aggregate, cx)?;
            result = state.guarded(|| aggregator.more());
        }
    }

    fn finish(&mut self, cx: &mut StageContext<'_, A::Out>) -> Result<()> {
        if !std::mem::take(&mut self.has_items) {
            return Ok(());
        }
        let Some(mut aggregator) = self.aggregator.take() else { return Ok(()) };
        self.state.flush(&mut aggregator, cx)
    }

    /// Includes items that a panic of the aggregator lost.
    fn take_left_out(&mut self) -> u64 {
        std::mem::take(&mut self.state.left_out)
    }

    fn holds_back(&self) -> bool {
        true
    }
}

/// Counts items as left out when dropped, unless disarmed before.
struct LossGuard<'a> {
    items: u64,
    left_out: &'a mut u64,
}

impl LossGuard<'_> {
    fn disarm(mut self) {
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
    fn last_batch_of_an_epoch_may_be_short() {
        let mut stage = batches(3, false);
        assert_eq!(epoch(&mut stage, 1..8).0, [vec![1, 2, 3], vec![4, 5, 6], vec![7]]);
        assert_eq!(epoch(&mut stage, 1..4).0, [[1, 2, 3]]);
        assert_eq!(left_out(&mut stage), 0);
    }

    #[test]
    fn dropped_last_batch_is_counted_and_not_in_the_next_epoch() {
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
    fn a_huge_batch_size_reserves_little_memory() {
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

    /// Sums up to 10; rejects 7, loses its items at 8, panics at 9.
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
    fn every_epoch_with_items_has_a_new_aggregator() {
        let (mut stage, made) = sums();
        assert!(epoch(&mut stage, []).0.is_empty());
        assert_eq!(epoch(&mut stage, [4, 6, 1]).0, [10, 1]);
        assert_eq!(made.get(), 1);
        assert!(epoch(&mut stage, []).0.is_empty());
        assert_eq!(epoch(&mut stage, [2]).0, [2]);
        assert_eq!(made.get(), 2);
    }

    #[test]
    fn a_rejected_item_fails_alone() {
        let (mut stage, _) = sums();
        let (outputs, results) = epoch(&mut stage, [4, 7, 6]);
        assert_eq!(outputs, [10, 0]);
        let failed: Vec<bool> = results.iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, true, false, false]);
        assert_eq!(left_out(&mut stage), 0);
    }

    #[test]
    fn items_lost_by_an_error_or_a_panic_count_as_left_out() {
        let (mut stage, _) = sums();
        epoch(&mut stage, [1, 2, 8, 3]);
        assert_eq!(left_out(&mut stage), 2);
        let panicked = catch_unwind(AssertUnwindSafe(|| epoch(&mut stage, [5, 5, 1, 2, 3, 9])));
        assert!(panicked.is_err());
        assert_eq!(left_out(&mut stage), 3);
    }

    /// Emits aggregates of 3 units, with exact resume. Panics at 99.
    #[derive(Default)]
    struct Thirds {
        units: u32,
        accepted: u64,
        ends: Vec<u64>,
        emitted: u64,
    }

    impl Aggregator<u32> for Thirds {
        type Out = u32;

        fn accumulate(&mut self, units: u32) -> Result<Option<u32>> {
            assert!(units != 99, "99");
            self.units += units;
            self.ends.push(self.accepted);
            self.accepted += 1;
            self.more()
        }

        fn more(&mut self) -> Result<Option<u32>> {
            if self.units < 3 {
                return Ok(None);
            }
            self.units -= 3;
            self.emitted += 1;
            Ok(Some(3))
        }

        fn flush(&mut self) -> Result<Option<u32>> {
            self.flush_more()
        }

        fn flush_more(&mut self) -> Result<Option<u32>> {
            self.emitted += u64::from(self.units > 0);
            Ok((self.units > 0).then(|| {
                self.units -= 1;
                1
            }))
        }

        fn exact_resume(&mut self) -> Option<&mut dyn ExactResume> {
            Some(self)
        }

        fn fill_rate(&self) -> Option<FillRate> {
            Some(FillRate { used: 2 * self.emitted, capacity: 3 * self.emitted })
        }
    }

    impl ExactResume for Thirds {
        fn inputs(&mut self) -> Vec<u64> {
            let open = usize::from(self.units > 0 && !self.ends.is_empty());
            self.ends.drain(..self.ends.len() - open).collect()
        }

        fn carry(&self) -> u64 {
            u64::from(self.units)
        }

        fn resume(&mut self, carry: u64) {
            assert_eq!((self.units, self.accepted), (0, 0), "resume is called first");
            self.units = carry as u32;
        }
    }

    #[test]
    fn every_aggregate_is_emitted_with_its_inputs() {
        let mut stage = Aggregation::new(|| Ok(Thirds::default())).unwrap();
        let mut outlet = TestOutlet::default();
        outlet.run(SampleId::default(), |cx| {
            stage.process(1, cx).unwrap();
            stage.process(7, cx).unwrap();
            stage.finish(cx).unwrap();
        });
        assert_eq!(outlet.outputs, [3, 3, 1, 1]);
        let inputs: Vec<_> = outlet.parts.iter().map(|p| (p.members.clone(), p.carry)).collect();
        let some = |members: &[u64]| Some(members.to_vec());
        assert_eq!(inputs, [(some(&[0]), 5), (some(&[]), 2), (some(&[]), 1), (some(&[1]), 0)]);
        let rate = |used, capacity| FillRate { used, capacity };
        assert_eq!(outlet.fill_rates, [rate(2, 3); 4]);
        // Counts restart in the next epoch.
        outlet.run(SampleId::default(), |cx| {
            stage.process(3, cx).unwrap();
            stage.finish(cx).unwrap();
        });
        assert_eq!(outlet.fill_rates, [rate(2, 3); 5]);
        assert_eq!(left_out(&mut stage), 0);
    }

    #[test]
    fn carry_is_passed_once_before_the_first_item() {
        let mut stage = Aggregation::new(|| Ok(Thirds::default())).unwrap();
        let mut outlet = TestOutlet { carry: 2, ..TestOutlet::default() };
        outlet.run(SampleId::default(), |cx| stage.process(1, cx).unwrap());
        assert_eq!(outlet.outputs, [3]);
        outlet.run(SampleId::default(), |cx| stage.finish(cx).unwrap());
        outlet.run(SampleId::default(), |cx| stage.process(1, cx).unwrap());
        assert_eq!(outlet.outputs, [3]);
    }

    #[test]
    fn a_panic_leaves_held_items_out() {
        let mut stage = Aggregation::new(|| Ok(Thirds::default())).unwrap();
        // Items 0 and 1 are emitted, item 2 in part.
        let items = [1, 2, 4, 1, 99];
        assert!(catch_unwind(AssertUnwindSafe(|| epoch(&mut stage, items))).is_err());
        assert_eq!(left_out(&mut stage), 2, "items 2 and 3; item 4 failed");
        let mut stage = Aggregation::new(|| Ok(Thirds::default())).unwrap();
        let items = [1, 1, 1, 1, 1, 99];
        assert!(catch_unwind(AssertUnwindSafe(|| epoch(&mut stage, items))).is_err());
        assert_eq!(left_out(&mut stage), 2);
    }
}
