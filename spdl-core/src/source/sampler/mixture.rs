//! Mixtures: one order over several data sets in given proportions.

use std::fmt::{self, Debug};
use std::sync::Arc;

use super::{Draws, SampleOrder, Sampler, Shuffled, hash, invalid, shortened};
use crate::error::Result;
use crate::source::dataset::Dataset;
use crate::source::random::stage_number;
use crate::sync::Mutex;

/// Several data sets with one item type, concatenated into one.
///
/// Each item contains the index of its data set. Items and labels are unchanged. If the data sets
/// number their classes independently, the same label means different classes. Give them a common
/// list of classes first, for example with `ImageFolder::with_classes` of `spdl-io`.
///
/// ```
/// use spdl_core::source::sampler::{Concatenated, Until};
/// use spdl_core::{Dataset, DatasetSource, PipelineBuilder};
/// use std::sync::Arc;
///
/// let web: Arc<dyn Dataset<Item = &str>> = Arc::new(vec!["w"; 300]);
/// let books: Arc<dyn Dataset<Item = &str>> = Arc::new(vec!["b"; 40]);
/// let data = Concatenated::new([web, books])?;
///
/// // Three items of the web for one book, until all books are used.
/// let order = data.mixture([3.0, 1.0], Until::FirstExhausted, 7)?;
/// assert_eq!(order.consumed(0, 64)?.iter().sum::<u64>(), 64);
/// let source = DatasetSource::new(data).sampler(order);
///
/// let mut counts = [0; 2];
/// for sample in PipelineBuilder::new(source).build()? {
///     counts[sample?.dataset] += 1;
/// }
/// assert_eq!(counts[1], 40);
/// assert!((119..=121).contains(&counts[0]));
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct Concatenated<T> {
    datasets: Vec<Arc<dyn Dataset<Item = T>>>,
    /// The end index of each data set.
    ends: Vec<u64>,
}

/// An item of a [`Concatenated`] data set.
///
/// ```
/// use spdl_core::source::sampler::{Concatenated, Mixed};
/// use spdl_core::Dataset;
/// use std::sync::Arc;
/// let letters: Arc<dyn Dataset<Item = char>> = Arc::new(vec!['a', 'b']);
/// let digits: Arc<dyn Dataset<Item = char>> = Arc::new(vec!['0']);
/// let both = Concatenated::new([letters, digits])?;
/// assert_eq!(both.item(2)?, Mixed { dataset: 1, item: '0' });
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mixed<T> {
    /// The index of the data set, counted from 0 in the order given to [`Concatenated::new`].
    pub dataset: usize,
    /// The item of that data set.
    pub item: T,
}

impl<T: Send + 'static> Concatenated<T> {
    /// Concatenates the data sets in this order.
    ///
    /// # Errors
    /// `InvalidArgument` if they have more than 2⁶⁴ − 1 items in total.
    pub fn new(datasets: impl IntoIterator<Item = Arc<dyn Dataset<Item = T>>>) -> Result<Self> {
        let datasets: Vec<_> = datasets.into_iter().collect();
        let mut end = 0u64;
        let mut ends = Vec::with_capacity(datasets.len());
        for dataset in &datasets {
            end = end
                .checked_add(dataset.len())
                .ok_or_else(|| invalid("the data sets have more than 2^64 - 1 items in total"))?;
            ends.push(end);
        }
        Ok(Concatenated { datasets, ends })
    }

    /// The number of items of each data set.
    pub fn lens(&self) -> Vec<u64> {
        self.datasets.iter().map(|dataset| dataset.len()).collect()
    }

    /// Creates a mixture of these data sets with one weight for each. Each data set is shuffled
    /// with a separate seed.
    ///
    /// # Errors
    /// The errors of [`Mixture::new`], and `InvalidArgument` if the number of weights differs from
    /// the number of data sets.
    pub fn mixture(
        &self,
        weights: impl IntoIterator<Item = f64>,
        until: Until,
        seed: u64,
    ) -> Result<Mixture> {
        let weights: Vec<f64> = weights.into_iter().collect();
        let (given, needed) = (weights.len(), self.datasets.len());
        if given != needed {
            return Err(invalid(format!(
                "{given} weights for {needed} data sets; give one per data set"
            )));
        }
        let parts = self.lens().into_iter().zip(weights);
        Mixture::new(parts.map(|(items, weight)| Part::new(items, weight)), until, seed)
    }
}

impl<T: Send + 'static> Dataset for Concatenated<T> {
    type Item = Mixed<T>;

    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn item(&self, index: u64) -> Result<Mixed<T>> {
        let dataset = self.ends.partition_point(|&end| end <= index);
        let Some(found) = self.datasets.get(dataset) else {
            return Err(invalid(format!(
                "item index {index} is out of range for {} items",
                self.len()
            )));
        };
        let start = if dataset == 0 { 0 } else { self.ends[dataset - 1] };
        Ok(Mixed { dataset, item: found.item(index - start)? })
    }

    /// A hash of the numbers of items, and of the hashes of the data sets that have one.
    fn content_hash(&self) -> Option<u64> {
        let hashes = self.datasets.iter().map(|dataset| dataset.content_hash());
        let text = match hashes.clone().collect::<Option<Vec<_>>>() {
            Some(hashes) => format!("{hashes:x?} {:?}", self.ends),
            None => format!("{:x?} {:?}", hashes.collect::<Vec<_>>(), self.ends),
        };
        Some(stage_number(&text))
    }

    fn key(&self, item: &Mixed<T>) -> Option<Arc<str>> {
        self.datasets.get(item.dataset)?.key(&item.item)
    }
}

impl<T> Debug for Concatenated<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (datasets, items) = (self.datasets.len(), self.ends.last().unwrap_or(&0));
        write!(f, "Concatenated({datasets} data sets, {items} items)")
    }
}

/// A part of a [`Mixture`]: a data set or a nested mixture.
#[derive(Clone, Debug)]
pub struct Part {
    items: u64,
    weight: f64,
    order: PartOrder,
}

#[derive(Clone, Debug)]
enum PartOrder {
    /// Shuffled with a seed derived from the mixture's seed and the index of the part.
    Shuffled,
    Sampler(Arc<dyn Sampler>),
    Mixture(Arc<Mixture>),
}

impl Part {
    /// A data set of `items` items, reshuffled for each pass. Its share of the mixture is `weight`
    /// / (sum of all weights).
    pub fn new(items: u64, weight: f64) -> Self {
        Part { items, weight, order: PartOrder::Shuffled }
    }

    /// Sets the order of the part. The epochs of `sampler` are the passes over the part, and must
    /// have equal lengths ([`Sampler::epoch_len`]).
    #[must_use]
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.order = PartOrder::Sampler(Arc::new(sampler));
        self
    }

    /// A mixture as a part of another mixture. The epochs of `mixture` are the passes over the
    /// part.
    ///
    /// ```
    /// use spdl_core::source::sampler::{Mixture, Part, Until};
    /// // Half code, half text; of the text, nine web pages for each book.
    /// let text = [Part::new(9000, 9.0), Part::new(1000, 1.0)];
    /// let text = Mixture::new(text, Until::AllExhausted, 7)?;
    /// let all = [Part::new(5000, 1.0), Part::mixture(text, 1.0)];
    /// let all = Mixture::new(all, Until::AllExhausted, 7)?;
    /// assert_eq!(all.consumed(0, 2048)?, [1024, 1024]);
    /// assert_eq!(all.consumed_by_dataset(0, 2048)?, [1024, 922, 102]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn mixture(mixture: Mixture, weight: f64) -> Self {
        Part { items: mixture.items, weight, order: PartOrder::Mixture(Arc::new(mixture)) }
    }
}

/// When an epoch of a [`Mixture`] ends.
///
/// ```
/// use spdl_core::source::sampler::{Mixture, Part, Sampler, Until};
/// let len = |until| -> spdl_core::Result<Option<u64>> {
///     let parts = [Part::new(1000, 1.0), Part::new(100, 1.0)];
///     Ok(Mixture::new(parts, until, 7)?.epoch_len(1100))
/// };
/// assert_eq!(len(Until::FirstExhausted)?, Some(200));
/// assert_eq!(len(Until::AllExhausted)?, Some(1999));
/// assert_eq!(len(Until::Samples(500))?, Some(500));
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// After a complete pass over any part with a positive weight. Items of the other parts can
    /// remain unused. Every epoch starts new passes.
    FirstExhausted,
    /// After at least one complete pass over every part with a positive weight. Parts that end
    /// earlier are repeated, with a new order in each pass. Every epoch starts new passes.
    AllExhausted,
    /// After this many positions. A pass that is incomplete at the end of an epoch continues in the
    /// next epoch. Parts are repeated as often as necessary.
    Samples(u64),
}

/// Mixes several data sets in given proportions: a sampler over [`Concatenated`] items.
///
/// Each part has a separate order, by default reshuffled for each pass. Positions form blocks of
/// 1,024, counted from the start of the passes. At the end of each whole block, each part has its
/// exact share of all positions since the start of the passes, rounded to an integer by
/// Sainte-Laguë's divisor method. Rounding errors therefore do not accumulate. Within a block, the
/// order of the parts is shuffled. A part of weight 0 is never used.
///
/// Each data set keeps its labels: see [`Concatenated`].
///
/// The number of used items of each part is a function of the position: see
/// [`consumed`](Mixture::consumed). Weights can therefore change during training: see
/// [`taking_over`](Mixture::taking_over).
///
/// [`at`](SampleOrder::at) computes the table of the block that contains the position, and caches
/// the last table. Consecutive positions take a few nanoseconds each, and a random access takes
/// about 1,024 steps.
/// ```
/// use spdl_core::source::sampler::{Mixture, Part, Sampler, Until};
/// let parts = [Part::new(1_000_000, 0.7), Part::new(20_000, 0.3)];
/// let mixture = Mixture::new(parts, Until::Samples(10_240), 7)?;
/// assert_eq!(mixture.consumed(0, 10_240)?, [7168, 3072]);
/// // Items of the second part follow those of the first part.
/// let order = mixture.epoch(1_020_000, 0)?;
/// let second = (0..order.len()).filter(|&position| order.at(position) >= 1_000_000).count();
/// assert_eq!(second, 3072);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Mixture {
    parts: Arc<[PlacedPart]>,
    weights: Arc<[u64]>,
    /// The number of items in all parts.
    items: u64,
    seed: u64,
    until: Until,
    start: Option<Start>,
}

#[derive(Clone, Debug)]
struct PlacedPart {
    /// The index of the first item.
    first: u64,
    items: u64,
    pass_len: u64,
    sampler: Arc<dyn Sampler>,
    nested: Option<Arc<Mixture>>,
}

/// The position at which a mixture continues an earlier mixture.
#[derive(Clone)]
struct Start {
    epoch: u64,
    consumed: Vec<u64>,
    /// How many positions of `epoch` belong to the earlier mixture.
    position: u64,
    before: Option<Arc<Mixture>>,
}

/// The maximum number of entries that a fingerprint lists for parts. A nested mixture can have
/// several entries.
const MOST_NAMED: usize = 32;

/// The number of positions in a block, within which parts are shuffled.
const BLOCK: u64 = 1024;

/// Weights are scaled by a power of two and rounded to integers of at most 2⁴¹, so ratios of small
/// integers stay exact.
const WEIGHT_BITS: i32 = 40;

impl Mixture {
    /// Creates a mixture of `parts`, whose epochs end as `until` specifies.
    ///
    /// # Errors
    /// `InvalidArgument` if
    /// * a weight is negative, infinite or NaN;
    /// * a weight is positive, but rounds to 0 if the largest weight is scaled to 2⁴⁰..2⁴¹;
    /// * no weight is positive;
    /// * a part with a positive weight has no items;
    /// * the length of a part's epochs differs or is unknown ([`Sampler::epoch_len`]);
    /// * the parts have more than 2⁶³ items in total;
    /// * an epoch would have no positions, or more than 2⁶³;
    /// * a nested mixture uses [`Until::Samples`] and this mixture does not.
    pub fn new(parts: impl IntoIterator<Item = Part>, until: Until, seed: u64) -> Result<Self> {
        let parts: Vec<Part> = parts.into_iter().collect();
        let weights = integer_weights(&parts)?;
        let mut first = 0u64;
        let mut placed = Vec::with_capacity(parts.len());
        for (at, part) in parts.into_iter().enumerate() {
            let mut nested = None;
            let sampler: Arc<dyn Sampler> = match part.order {
                PartOrder::Shuffled => Arc::new(Shuffled::new(hash([seed, at as u64]))),
                PartOrder::Sampler(sampler) => sampler,
                PartOrder::Mixture(mixture) => {
                    nested = Some(Arc::clone(&mixture));
                    mixture
                }
            };
            let pass_len = sampler.epoch_len(part.items).ok_or_else(|| {
                invalid(format!("the epochs of part {at} of the mixture differ in length"))
            })?;
            if pass_len == 0 && weights[at] > 0 {
                return Err(invalid(format!(
                    "part {at} of the mixture is empty but has a positive weight"
                )));
            }
            placed.push(PlacedPart { first, items: part.items, pass_len, sampler, nested });
            first = first
                .checked_add(part.items)
                .filter(|items| *items <= 1 << 63)
                .ok_or_else(|| invalid("the parts of the mixture have more than 2^63 items"))?;
        }
        let (parts, weights) = (placed.into(), weights.into());
        Mixture { parts, weights, items: first, seed, until, start: None }.checked()
    }

    /// Continues an earlier mixture from epoch `epoch` on, after `consumed` items of each part.
    ///
    /// Get the counts from [`consumed`](Mixture::consumed) of the earlier mixture. This mixture may
    /// have other weights, and additional parts at the end. With [`Until::Samples`], all later
    /// passes continue from the counts. Otherwise `epoch` is the remainder of the interrupted
    /// epoch, and later epochs are unaffected. Opening an epoch before `epoch` is an error.
    ///
    /// Each part continues in the order of the earlier mixture if the seed and the orders of the
    /// parts are equal.
    ///
    /// ```
    /// use spdl_core::source::sampler::{Mixture, Part, Until};
    /// let parts = |a, b| [Part::new(5000, a), Part::new(5000, b)];
    /// let half = Mixture::new(parts(1.0, 1.0), Until::Samples(2048), 7)?;
    /// let consumed = half.consumed(0, 1000)?;
    /// let quarter = Mixture::new(parts(1.0, 3.0), Until::Samples(2048), 7)?;
    /// let quarter = quarter.starting_at(1, &consumed)?;
    /// assert_eq!(quarter.consumed(1, 0)?, consumed);
    /// assert_eq!(quarter.consumed(1, 1024)?, [consumed[0] + 256, consumed[1] + 768]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if there are more counts than parts, a count exceeds 2⁶¹, or the
    /// interrupted epoch has no positions left.
    pub fn starting_at(mut self, epoch: u64, consumed: &[u64]) -> Result<Self> {
        let (given, parts) = (consumed.len(), self.parts.len());
        if given > parts {
            return Err(invalid(format!(
                "{given} counts for {parts} parts; give at most one per part"
            )));
        }
        if consumed.iter().any(|count| *count > 1 << 61) {
            return Err(invalid("the number of consumed items of a part exceeds 2^61"));
        }
        let mut consumed = consumed.to_vec();
        consumed.resize(parts, 0);
        self.start = Some(Start { epoch, consumed, position: 0, before: None });
        self.checked()
    }

    /// Continues an earlier mixture from a position in the middle of an epoch.
    ///
    /// The first `position` positions of `epoch`, and all earlier epochs, have the order of
    /// `before`. From this position on, each part continues with its next item. This mixture may
    /// have other weights, and additional parts at the end.
    ///
    /// For a resumed run, pass the epoch and the [frontier](crate::State::frontier) of its state.
    /// The samples before the frontier keep their order, including those that are not yet
    /// delivered. Each part continues in the same order if the seed and the orders of the parts are
    /// equal.
    ///
    /// With [`Until::Samples`], the length of epochs is known. Otherwise the interrupted epoch ends
    /// when the items that both mixtures together have used in that epoch fulfil the condition of
    /// [`Until`]. The length of epochs is then [unknown](Sampler::epoch_len), so several ranks can
    /// resume only with [`Remainder::Uneven`](crate::source::Remainder::Uneven).
    ///
    /// ```
    /// use spdl_core::source::sampler::{Concatenated, Mixture, Until};
    /// use spdl_core::{Dataset, DatasetSource, PipelineBuilder, Result};
    /// use std::sync::Arc;
    /// let web: Arc<dyn Dataset<Item = u32>> = Arc::new((0..5000).collect::<Vec<u32>>());
    /// let books: Arc<dyn Dataset<Item = u32>> = Arc::new((0..5000).collect::<Vec<u32>>());
    /// let data = Arc::new(Concatenated::new([web, books])?);
    /// let training = |mixture: Mixture| {
    ///     let source = DatasetSource::shared(Arc::clone(&data)).sampler(mixture);
    ///     PipelineBuilder::new(source).batch("batch", 8, false).deterministic()
    /// };
    /// let half = data.mixture([1.0, 1.0], Until::Samples(2048), 7)?;
    /// let mut first = training(half.clone()).build()?;
    /// assert_eq!(first.by_ref().take(100).count(), 100);
    /// let state = first.state()?;
    ///
    /// // From here on, three books for one item of the web.
    /// let more_books = data.mixture([1.0, 3.0], Until::Samples(2048), 7)?;
    /// let more_books = more_books.taking_over(&half, state.epoch(), state.frontier())?;
    /// let state = state.allow_change("source order weights");
    /// let rest = training(more_books).resume(state).build()?.collect::<Result<Vec<_>>>()?;
    /// let books = rest.iter().flatten().filter(|sample| sample.dataset == 1).count();
    /// assert_eq!(rest.len(), 156);
    /// assert!((930..=940).contains(&books), "three in four of {}", 156 * 8);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if a part of `before` is missing here or has a different number of items,
    /// if the epoch has fewer than `position` positions, or if no positions are left.
    pub fn taking_over(mut self, before: &Mixture, epoch: u64, position: u64) -> Result<Self> {
        let sizes = |mixture: &Mixture| -> Vec<u64> {
            mixture.parts.iter().map(|part| part.items).collect()
        };
        if !sizes(&self).starts_with(&sizes(before)) {
            return Err(invalid(
                "the mixture must start with the parts of the earlier mixture, with equal numbers of \
                 items; further parts may follow",
            ));
        }
        if let Until::Samples(samples) = self.until
            && position > samples
        {
            return Err(invalid(format!(
                "cannot take over at position {position}: an epoch has only {samples} positions"
            )));
        }
        let consumed = before.consumed(epoch, position)?;
        self = self.starting_at(epoch, &consumed)?;
        if let Some(start) = &mut self.start {
            start.position = position;
            start.before = Some(Arc::new(before.clone()));
        }
        self.checked()
    }

    /// The earlier mixture to which `epoch` belongs, and the position at which this mixture
    /// continues it.
    fn before(&self, epoch: u64) -> Option<(&Arc<Mixture>, u64)> {
        let start = self.start.as_ref().filter(|start| epoch <= start.epoch)?;
        let until = if epoch == start.epoch { start.position } else { u64::MAX };
        Some((start.before.as_ref()?, until))
    }

    fn checked(self) -> Result<Self> {
        let continues = |mixture: &Arc<Mixture>| mixture.continues();
        if !self.continues() {
            for (at, part) in self.parts.iter().enumerate() {
                if part.nested.as_ref().is_some_and(continues) {
                    return Err(invalid(format!(
                        "part {at} is a mixture with `Until::Samples`; the mixture that contains it \
                         must also use `Until::Samples`"
                    )));
                }
            }
        }
        if self.len_of(u64::MAX)? == 0 {
            return Err(invalid("the epochs of the mixture have no positions"));
        }
        if let Some(start) = &self.start
            && self.len_of(start.epoch)? == 0
        {
            return Err(invalid(format!("no positions are left in epoch {}", start.epoch)));
        }
        Ok(self)
    }

    /// Returns how many items of each part are used before `position` of `epoch`.
    ///
    /// Counts start at 0 in each epoch, or in the first epoch for [`Until::Samples`]. After
    /// [`starting_at`](Mixture::starting_at), they start at the given counts.
    ///
    /// # Errors
    /// `InvalidArgument` if the epoch has fewer than `position` positions, or is before the first
    /// epoch.
    pub fn consumed(&self, epoch: u64, position: u64) -> Result<Vec<u64>> {
        if let Some((before, until)) = self.before(epoch)
            && position <= until
        {
            let mut counts = before.consumed(epoch, position)?;
            counts.resize(self.parts.len(), 0);
            return Ok(counts);
        }
        let order = self.order(epoch)?;
        if position > order.len {
            let len = order.len;
            return Err(invalid(format!(
                "position {position} is out of range: epoch {epoch} has {len} positions"
            )));
        }
        let place = order.first + (position - order.skipped);
        let mut counts = order.counts_at_block(place);
        for slot in &order.block_of(place).slots[..(place % BLOCK) as usize] {
            counts[slot.part as usize] += 1;
        }
        Ok(counts)
    }

    /// Like [`consumed`](Mixture::consumed), but lists the parts of a nested mixture in place of
    /// the nested mixture.
    ///
    /// # Errors
    /// The errors of [`consumed`](Mixture::consumed).
    pub fn consumed_by_dataset(&self, epoch: u64, position: u64) -> Result<Vec<u64>> {
        let order = self.order(epoch)?;
        let mut counts = Vec::new();
        for (part, count) in self.parts.iter().zip(self.consumed(epoch, position)?) {
            let Some(nested) = &part.nested else {
                counts.push(count);
                continue;
            };
            let (passes, rest) = (count / part.pass_len, count % part.pass_len);
            let pass = order.pass_number(passes);
            if matches!(nested.until, Until::Samples(_)) {
                counts.extend(nested.consumed_by_dataset(pass, rest)?);
                continue;
            }
            let whole = nested.consumed_by_dataset(pass, part.pass_len)?;
            let begun = nested.consumed_by_dataset(pass, rest)?;
            counts.extend(whole.iter().zip(begun).map(|(whole, begun)| whole * passes + begun));
        }
        Ok(counts)
    }

    /// The weights as the smallest integers with equal ratios, and earlier mixtures.
    fn proportions(&self) -> String {
        let divisor =
            self.weights.iter().fold(0, |divisor, &weight| common_divisor(divisor, weight));
        let reduced = |&weight: &u64| (weight / divisor.max(1)).to_string();
        let mut words = self.weights.iter().map(reduced).collect::<Vec<_>>().join(" : ");
        if let Some(start) = &self.start {
            let counts = hash(start.consumed.iter().copied());
            words.push_str(&format!(" from epoch {} #{counts:016x}", start.epoch));
            if let Some(before) = &start.before {
                let before = before.proportions();
                words.push_str(&format!(", position {}; before that {before}", start.position));
            }
        }
        words
    }

    /// Whether passes continue across the ends of epochs.
    fn continues(&self) -> bool {
        matches!(self.until, Until::Samples(_))
    }

    /// The number of positions in `epoch`.
    fn len_of(&self, epoch: u64) -> Result<u64> {
        if let Some((before, u64::MAX)) = self.before(epoch) {
            return before.len_of(epoch);
        }
        let start = self.start.as_ref().filter(|start| start.epoch == epoch);
        // The last item of the part's pass, or `None` if the pass is already complete.
        let last = |at: usize| {
            let done = start.map_or(0, |start| start.consumed[at]);
            self.parts[at].pass_len.checked_sub(done)?.checked_sub(1)
        };
        let parts = (0..self.parts.len()).filter(|&at| self.weights[at] > 0);
        let ends = parts.map(|at| last(at).map_or(0, |item| self.position_after(at, item)));
        let len = match self.until {
            Until::Samples(samples) => u128::from(samples),
            Until::FirstExhausted => ends.min().unwrap_or(0),
            Until::AllExhausted => ends.max().unwrap_or(0),
        };
        let skipped = start.filter(|_| len > 0 && !self.continues()).map_or(0, |it| it.position);
        let len = len + u128::from(skipped);
        u64::try_from(len).ok().filter(|len| *len <= 1 << 63).ok_or_else(|| {
            invalid(format!("an epoch has {len} positions; the maximum for a mixture is 2^63"))
        })
    }

    fn order(&self, epoch: u64) -> Result<MixtureOrder> {
        let before = match self.before(epoch) {
            None => None,
            Some((before, u64::MAX)) => return before.order(epoch),
            Some((before, _)) => Some(Box::new(before.order(epoch)?)),
        };
        let start = self.start.as_ref();
        let begins = start.map_or(0, |start| start.epoch);
        let Some(number) = epoch.checked_sub(begins) else {
            return Err(invalid(format!(
                "epoch {epoch} is before epoch {begins}, the first epoch of the mixture"
            )));
        };
        let len = self.len_of(epoch)?;
        let continues = self.continues();
        // Positions of the earlier mixture are not counted.
        let position = start.map_or(0, |start| start.position);
        let skipped = if number == 0 { position } else { 0 };
        let ahead = if continues && number > 0 { position } else { 0 };
        let first = if continues { number.checked_mul(len) } else { Some(0) };
        let first = first.and_then(|first| first.checked_sub(ahead));
        let first = first.filter(|first| *first <= 1 << 62).ok_or_else(|| {
            invalid(format!("epoch {epoch} of the mixture starts after more than 2^62 positions"))
        })?;
        let consumed = start
            .filter(|_| continues || number == 0)
            .map_or_else(|| vec![0; self.parts.len()], |start| start.consumed.clone());
        let arrangement = if continues { hash(consumed.iter().copied()) } else { epoch };
        Ok(MixtureOrder {
            parts: Arc::clone(&self.parts),
            weights: Arc::clone(&self.weights),
            first,
            len,
            skipped,
            before,
            end: if continues { u64::MAX } else { len - skipped },
            epoch: (!continues).then_some(epoch),
            consumed,
            draws: Draws::new(b"arranged", self.seed, arrangement),
            block: Mutex::new(None),
            passes: Mutex::new(vec![None; self.parts.len()]),
        })
    }

    /// The number of positions up to and including item `item` of part `at`, before shuffling.
    /// Items are sorted by the time (2 · item + 1) / weight, and by part for equal times.
    fn position_after(&self, at: usize, item: u64) -> u128 {
        let (time, weight) = (2 * u128::from(item) + 1, u128::from(self.weights[at]));
        let before = |(other, &share): (usize, &u64)| {
            let here = time * u128::from(share);
            if other <= at {
                (here + weight) / (2 * weight)
            } else {
                here.saturating_sub(weight).div_ceil(2 * weight)
            }
        };
        self.weights.iter().enumerate().map(before).sum()
    }
}

impl Debug for Mixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = self.parts.iter().zip(&*self.weights);
        let hash = hash(parts.flat_map(|(part, weight)| {
            let sampler = part.sampler.fingerprint();
            [part.items, *weight, hash(sampler.bytes().map(u64::from))]
        }));
        let (parts, seed, until) = (self.parts.len(), self.seed, self.until);
        write!(f, "Mixture {{ seed: {seed}, parts: {parts} #{hash:016x}, until: {until:?}")?;
        if let Some(start) = &self.start {
            let counts = super::hash(start.consumed.iter().copied());
            write!(f, ", from: {} #{counts:016x}", start.epoch)?;
            if let Some(before) = &start.before {
                let before = super::hash(before.fingerprint().bytes().map(u64::from));
                // Part of the fingerprint in saved states: this text must not change.
                write!(f, ", behind {} of #{before:016x}", start.position)?;
            }
        }
        f.write_str(" }")
    }
}

impl Sampler for Mixture {
    fn epoch(&self, items: u64, epoch: u64) -> Result<Arc<dyn SampleOrder>> {
        if items != self.items {
            let mixed = self.items;
            return Err(invalid(format!(
                "the mixture has {mixed} items, but the data set has {items}"
            )));
        }
        let order = self.order(epoch)?;
        order.check()?;
        Ok(Arc::new(order))
    }

    fn fingerprint_parts(&self) -> Vec<(String, String)> {
        let (count, seed, until) = (self.parts.len(), self.seed, self.until);
        let own = format!("mixture of {count} parts, seed {seed}, until {until:?}");
        let mut parts =
            vec![(String::new(), own), ("weights".into(), shortened(self.proportions()))];
        for (at, part) in self.parts.iter().enumerate() {
            let inner = part.sampler.fingerprint_parts();
            parts.extend(inner.into_iter().enumerate().map(
                |(number, (name, text))| match number {
                    0 => (format!("part {at}"), shortened(format!("{} items, {text}", part.items))),
                    _ => (format!("part {at} {name}"), text),
                },
            ));
        }
        // Bounds the size of a checkpoint state.
        if parts.len() > MOST_NAMED + 2 {
            let others = parts.split_off(MOST_NAMED + 2);
            let text = others.iter().flat_map(|(name, text)| [name, text]);
            let hash = hash(text.flat_map(|text| text.bytes().map(u64::from)));
            parts.push(("further parts".into(), format!("{} #{hash:016x}", others.len())));
        }
        parts
    }

    /// `None` for a mixture that continues an earlier one, except with [`Until::Samples`].
    fn epoch_len(&self, _: u64) -> Option<u64> {
        match (&self.start, self.until) {
            (Some(_), Until::FirstExhausted | Until::AllExhausted) => None,
            _ => self.len_of(u64::MAX).ok(),
        }
    }
}

struct MixtureOrder {
    parts: Arc<[PlacedPart]>,
    weights: Arc<[u64]>,
    /// How many positions of the epoch belong to the earlier mixture.
    skipped: u64,
    before: Option<Box<MixtureOrder>>,
    /// The first position of the epoch, counted from the start of the passes.
    first: u64,
    len: u64,
    /// The end of the last block.
    end: u64,
    /// The epoch, if passes start with it.
    epoch: Option<u64>,
    /// How many items of each part were used before position 0.
    consumed: Vec<u64>,
    draws: Draws,
    /// The last queried block and passes.
    block: Mutex<Option<Arc<Block>>>,
    passes: Mutex<Vec<Option<PartPass>>>,
}

#[derive(Clone)]
struct PartPass {
    number: u64,
    order: Arc<dyn SampleOrder>,
}

struct Block {
    number: u64,
    /// For each part, the number of its items before the block.
    counts: Vec<u64>,
    slots: Vec<BlockSlot>,
}

/// A position of a block.
#[derive(Clone, Copy)]
struct BlockSlot {
    part: u32,
    /// The number of items of the part that precede this position in the block.
    ordinal: u32,
}

impl MixtureOrder {
    /// Computes the orders of the first and last passes, to report their errors early.
    fn check(&self) -> Result<()> {
        if let Some(before) = &self.before {
            before.check()?;
        }
        let starts = self.counts_at(self.first);
        let ends = self.counts_at(self.first + (self.len - self.skipped));
        for (at, part) in self.parts.iter().enumerate().filter(|(at, _)| self.weights[*at] > 0) {
            self.pass(at, ends[at].saturating_sub(1) / part.pass_len)?;
            self.pass(at, starts[at] / part.pass_len)?;
        }
        Ok(())
    }

    /// How many items of each part are before `position`, before shuffling. Items are sorted by the
    /// time (2i + 1) / weight, as in `position_after`.
    fn counts_at(&self, position: u64) -> Vec<u64> {
        let total: u128 = self.weights.iter().map(|&weight| u128::from(weight)).sum();
        let parts = self.weights.len() as u128;
        // Counts items up to slightly before the time of `position`, then adds the remaining items
        // singly.
        let near = u128::from(position).saturating_sub(parts.div_ceil(2));
        let up_to_near = |&weight: &u64| (2 * near * u128::from(weight) + total) / (2 * total);
        let mut counts: Vec<u64> =
            self.weights.iter().map(|weight| up_to_near(weight) as u64).collect();
        let mut placed: u64 = counts.iter().sum();
        while placed < position {
            let mut next = 0;
            for at in 0..counts.len() {
                // Compares (2a + 1) / weight(a) < (2n + 1) / weight(n) without division; excludes
                // weight 0.
                let time = |part: usize| 2 * u128::from(counts[part]) + 1;
                let weight = |part: usize| u128::from(self.weights[part]);
                if time(at) * weight(next) < time(next) * weight(at) {
                    next = at;
                }
            }
            counts[next] += 1;
            placed += 1;
        }
        for (count, consumed) in counts.iter_mut().zip(&self.consumed) {
            *count += consumed;
        }
        counts
    }

    /// Like `counts_at`, at the start of the block of `position`.
    fn counts_at_block(&self, position: u64) -> Vec<u64> {
        self.block_of(position).counts.clone()
    }

    fn block_of(&self, position: u64) -> Arc<Block> {
        let number = position / BLOCK;
        let mut last = self.block.lock();
        match &*last {
            Some(block) if block.number == number => Arc::clone(block),
            _ => {
                let block = Arc::new(self.arranged(number));
                *last = Some(Arc::clone(&block));
                block
            }
        }
    }

    /// A block with shuffled parts (Fisher–Yates shuffle, as in Durstenfeld, 1964).
    fn arranged(&self, number: u64) -> Block {
        let start = number * BLOCK;
        let end = start.saturating_add(BLOCK).min(self.end).max(start);
        let (counts, after) = (self.counts_at(start), self.counts_at(end));
        let mut slots = Vec::with_capacity((end - start) as usize);
        for (part, (before, after)) in (0u32..).zip(counts.iter().zip(after)) {
            slots.extend((*before..after).map(|_| BlockSlot { part, ordinal: 0 }));
        }
        for left in (1..slots.len()).rev() {
            let (other, _) = self.draws.below(start + left as u64, left as u64 + 1);
            slots.swap(left, other as usize);
        }
        let mut ordinals = vec![0; counts.len()];
        for slot in &mut slots {
            let next: &mut u32 = &mut ordinals[slot.part as usize];
            slot.ordinal = *next;
            *next += 1;
        }
        Block { number, counts, slots }
    }

    /// The number of the pass after `passes` earlier passes. Independent of the weights, so that a
    /// pass continues when they change.
    fn pass_number(&self, passes: u64) -> u64 {
        match self.epoch {
            None => passes,
            Some(epoch) if passes == 0 => epoch,
            Some(epoch) => hash([epoch, passes]),
        }
    }

    /// The order of the pass over part `at` after `passes` earlier passes.
    fn pass(&self, at: usize, passes: u64) -> Result<Arc<dyn SampleOrder>> {
        let number = self.pass_number(passes);
        let mut last = self.passes.lock();
        if let Some(pass) = &last[at]
            && pass.number == number
        {
            return Ok(Arc::clone(&pass.order));
        }
        let part = &self.parts[at];
        let order = part.sampler.epoch(part.items, number)?;
        if order.len() != part.pass_len {
            let (found, expected) = (order.len(), part.pass_len);
            return Err(invalid(format!(
                "the order of part {at} has {found} positions, but its sampler reported {expected}"
            )));
        }
        last[at] = Some(PartPass { number, order: Arc::clone(&order) });
        Ok(order)
    }
}

impl Debug for MixtureOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MixtureOrder({} positions of {} parts)", self.len, self.parts.len())
    }
}

impl SampleOrder for MixtureOrder {
    fn len(&self) -> u64 {
        self.len
    }

    /// # Panics
    /// If a part's sampler fails for a pass other than the first and last of the epoch.
    fn at(&self, position: u64) -> u64 {
        if let Some(before) = self.before.as_ref().filter(|_| position < self.skipped) {
            return before.at(position);
        }
        let position = self.first + (position - self.skipped);
        let block = self.block_of(position);
        let slot = block.slots[(position % BLOCK) as usize];
        let at = slot.part as usize;
        let (part, ordinal) = (&self.parts[at], block.counts[at] + u64::from(slot.ordinal));
        match self.pass(at, ordinal / part.pass_len) {
            Ok(order) => part.first + order.at(ordinal % part.pass_len),
            Err(error) => panic!("cannot compute the order of part {at} of the mixture: {error}"),
        }
    }
}

/// The greatest common divisor (Euclid's algorithm).
fn common_divisor(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

fn integer_weights(parts: &[Part]) -> Result<Vec<u64>> {
    let largest = parts.iter().map(|part| part.weight).fold(0.0, f64::max);
    // The exponent of the largest weight; scaled by 2^`power`, it is in 2⁴⁰..2⁴¹.
    let exponent = (largest.to_bits() >> 52) as i32 - 1023;
    let power = WEIGHT_BITS - exponent;
    let integer = |(at, part): (usize, &Part)| {
        let weight = part.weight;
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(invalid(format!(
                "invalid weight {weight} of part {at}: weights must be finite and not negative"
            )));
        }
        // In two steps, because 2^`power` may overflow.
        let scaled = weight * 2f64.powi(power / 2) * 2f64.powi(power - power / 2);
        match scaled.round() as u64 {
            0 if weight > 0.0 => Err(invalid(format!(
                "the weight {weight} of part {at} is below 2^-40 of the largest, {largest}; use 0 to \
                 exclude the part"
            ))),
            integer => Ok(integer),
        }
    };
    if largest == 0.0 {
        parts.iter().enumerate().try_for_each(|part| integer(part).map(|_| ()))?;
        let parts = parts.len();
        return Err(invalid(format!("none of the {parts} weights of the mixture is positive")));
    }
    parts.iter().enumerate().map(integer).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Sequential;
    use super::super::tests::{all, epoch};
    use super::*;
    use crate::error::ErrorKind;
    use proptest::prelude::*;

    fn mixture(parts: &[(u64, f64)], until: Until) -> Mixture {
        let parts = parts.iter().map(|&(items, weight)| Part::new(items, weight));
        Mixture::new(parts, until, 5).unwrap()
    }

    fn parts() -> impl Strategy<Value = Vec<(u64, f64)>> {
        let weight = prop_oneof![(1u32..6).prop_map(f64::from), 0.01..9.0, Just(0.0)];
        proptest::collection::vec((1u64..400, weight), 1..6)
            .prop_filter("all zero", |parts| parts.iter().any(|(_, weight)| *weight > 0.0))
    }

    fn until() -> impl Strategy<Value = Until> {
        prop_oneof![
            Just(Until::FirstExhausted),
            Just(Until::AllExhausted),
            (1u64..3000).prop_map(Until::Samples),
        ]
    }

    /// The items of each part in order, numbered within the part.
    fn by_part(mixture: &Mixture, items: &[u64]) -> Vec<Vec<u64>> {
        let mut found = vec![Vec::new(); mixture.parts.len()];
        for &item in items {
            let at = mixture.parts.partition_point(|part| part.first + part.items <= item);
            found[at].push(item - mixture.parts[at].first);
        }
        found
    }

    fn assert_passes(found: &[u64], items: u64) {
        for pass in found.chunks(items as usize) {
            let mut sorted = pass.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), pass.len(), "an item occurs twice in a pass");
            assert!(sorted.iter().all(|&item| item < items));
        }
    }

    proptest! {
        // feature: Q04
        #[test]
        fn counts_are_those_of_items_sorted_by_time(
            parts in parts(), position in 0u64..4000,
        ) {
            let mixture = mixture(&parts, Until::Samples(10));
            // Item i of a part has the time (2i + 1) / weight; compared without division.
            let mut items: Vec<(u64, usize)> = (0..parts.len())
                .filter(|&at| mixture.weights[at] > 0)
                .flat_map(|at| (0..position).map(move |item| (item, at)))
                .collect();
            let weight = |at: usize| u128::from(mixture.weights[at]);
            items.sort_by(|a, b| {
                let (left, right) = (2 * u128::from(a.0) + 1, 2 * u128::from(b.0) + 1);
                (left * weight(b.1), a.1).cmp(&(right * weight(a.1), b.1))
            });
            let mut expected = vec![0; parts.len()];
            items.iter().take(position as usize).for_each(|(_, at)| expected[*at] += 1);
            prop_assert_eq!(mixture.order(0).unwrap().counts_at(position), expected);
            if let Some((item, at)) = items.get((position as usize).saturating_sub(1)) {
                prop_assert_eq!(mixture.position_after(*at, *item), u128::from(position));
            }
        }

        #[test]
        fn every_pass_has_every_item_once_and_consumed_counts_them(
            parts in parts(), until in until(), cut in 0.0..1.0,
        ) {
            let mixture = mixture(&parts, until);
            let len = mixture.epoch_len(mixture.items).unwrap();
            prop_assume!(len < 50_000);
            let mut items = Vec::new();
            for number in 0..2 {
                if !mixture.continues() {
                    items.clear();
                }
                let before = items.clone();
                let now = epoch(&mixture, mixture.items, number);
                items.extend(&now);
                for (found, part) in by_part(&mixture, &items).iter().zip(&parts) {
                    assert_passes(found, part.0);
                }
                let position = (cut * len as f64) as u64;
                let so_far = [&before[..], &now[..position as usize]].concat();
                let counts: Vec<u64> =
                    by_part(&mixture, &so_far).iter().map(|items| items.len() as u64).collect();
                prop_assert_eq!(mixture.consumed(number, position).unwrap(), counts.clone());
                prop_assert_eq!(mixture.consumed_by_dataset(number, position).unwrap(), counts);
                // Random access in a new order, without a cached block.
                let order = mixture.epoch(mixture.items, number).unwrap();
                let rest: Vec<u64> = (position..len).map(|position| order.at(position)).collect();
                prop_assert_eq!(&rest, &now[position as usize..]);
            }
        }

        #[test]
        fn epochs_end_with_the_item_that_exhausts_the_parts(parts in parts()) {
            for until in [Until::FirstExhausted, Until::AllExhausted] {
                let mixture = mixture(&parts, until);
                let len = mixture.epoch_len(mixture.items).unwrap();
                let counts = mixture.consumed(0, len).unwrap();
                let order = mixture.order(0).unwrap();
                let before = order.counts_at(len - 1);
                let exhausted = |counts: &[u64]| {
                    let parts = counts.iter().zip(&parts);
                    let mut parts = parts.filter(|(_, (_, weight))| *weight > 0.0);
                    let done = |(count, (items, _)): (&u64, &(u64, f64))| count >= items;
                    if until == Until::FirstExhausted { parts.any(done) } else { parts.all(done) }
                };
                prop_assert!(exhausted(&counts) && !exhausted(&before), "{counts:?} {before:?}");
            }
        }

        #[test]
        fn changed_weights_continue_with_the_remaining_items(
            parts in parts(), until in until(), cut in 0.0..1.0, other in 0.1..5.0,
        ) {
            let old = mixture(&parts, until);
            let len = old.epoch_len(old.items).unwrap();
            prop_assume!(len < 50_000);
            let position = (cut * len as f64) as u64;
            let consumed = old.consumed(0, position).unwrap();
            let mut changed = parts.clone();
            changed[0].1 = other;
            let new = mixture(&changed, until);
            let Ok(new) = new.starting_at(0, &consumed) else { return Ok(()) };
            prop_assert_eq!(new.consumed(0, 0).unwrap(), consumed);
            let taken = all(&*old.epoch(old.items, 0).unwrap());
            let taken = by_part(&old, &taken[..position as usize]);
            let rest = by_part(&new, &epoch(&new, new.items, 0));
            for (at, (taken, rest)) in taken.iter().zip(&rest).enumerate() {
                assert_passes(&[&taken[..], &rest[..]].concat(), parts[at].0);
            }
        }
    }

    // feature: Q04
    // promise: CORE7
    #[test]
    fn proportions_stay_exact() {
        let mixture = mixture(&[(10, 3.0), (1000, 5.0), (77, 2.0)], Until::Samples(1 << 40));
        for blocks in [10, 1000, 1_000_000_010] {
            let position = blocks * BLOCK;
            let expected = [3, 5, 2].map(|weight| position / 10 * weight);
            assert_eq!(mixture.consumed(0, position).unwrap(), expected);
        }
        assert_eq!(mixture.consumed(1, 0).unwrap(), mixture.consumed(0, 1 << 40).unwrap());
        // Rare parts are also used: a part with one in 10⁹ positions.
        let rare = super::tests::mixture(&[(10, 1e-9), (10, 1.0)], Until::Samples(1 << 40));
        assert!(rare.consumed(0, 10_000_000_000).unwrap()[0].abs_diff(10) <= 1);
    }

    #[test]
    fn parts_are_shuffled_within_each_block() {
        let mixture = mixture(&[(100_000, 1.0), (100_000, 1.0)], Until::Samples(4096));
        let items = epoch(&mixture, 200_000, 0);
        let firsts: Vec<bool> = items.iter().map(|&item| item < 100_000).collect();
        let blocks: Vec<&[bool]> = firsts.chunks(1024).collect();
        assert_ne!(blocks[0], blocks[1]);
        for block in blocks {
            assert_eq!(block.iter().filter(|first| **first).count(), 512);
            // In about half of the 1,023 adjacent pairs, both items belong to the same part. Five
            // sigma are 80 pairs.
            let same = block.windows(2).filter(|pair| pair[0] == pair[1]).count();
            assert!((432..592).contains(&same), "{same}");
        }
    }

    #[test]
    fn parts_of_equal_size_have_different_orders() {
        let mixture = mixture(&[(100, 1.0), (100, 1.0)], Until::AllExhausted);
        let found = by_part(&mixture, &epoch(&mixture, 200, 0));
        assert_ne!(found[0], found[1]);
        let next = by_part(&mixture, &epoch(&mixture, 200, 1));
        assert_ne!(found, next);
    }

    // feature: Q04
    #[test]
    fn mixtures_nest() {
        let text = |until| mixture(&[(30, 2.0), (40, 1.0)], until);
        let nested = |inner, outer| {
            let parts = [Part::new(50, 1.0).sampler(Sequential), Part::mixture(text(inner), 1.0)];
            Mixture::new(parts, outer, 1).unwrap()
        };
        for (inner, outer) in [
            (Until::AllExhausted, Until::AllExhausted),
            (Until::FirstExhausted, Until::Samples(1000)),
            (Until::Samples(33), Until::Samples(1000)),
        ] {
            let nested = nested(inner, outer);
            let len = nested.epoch_len(120).unwrap();
            let mut counts = [0u64; 3];
            for number in 0..2 {
                if !nested.continues() {
                    counts = [0; 3];
                }
                for (position, item) in epoch(&nested, 120, number).into_iter().enumerate() {
                    if position % 97 == 0 {
                        let found = nested.consumed_by_dataset(number, position as u64).unwrap();
                        assert_eq!(found, counts);
                    }
                    match item {
                        0..50 => {
                            assert_eq!(item, counts[0] % 50);
                            counts[0] += 1;
                        }
                        50..80 => counts[1] += 1,
                        _ => counts[2] += 1,
                    }
                }
                assert_eq!(nested.consumed_by_dataset(number, len).unwrap(), counts);
            }
            assert!((counts[1] as f64 / counts[2] as f64 - 2.0).abs() < 0.1, "{counts:?}");
        }
        let parts = [Part::mixture(text(Until::Samples(33)), 1.0)];
        assert!(Mixture::new(parts, Until::FirstExhausted, 1).is_err());
    }

    #[test]
    fn continuing_epochs_count_from_the_start_of_the_mixture() {
        let old = mixture(&[(50, 1.0), (70, 1.0)], Until::Samples(1024));
        let consumed = old.consumed(3, 100).unwrap();
        let new = mixture(&[(50, 1.0), (70, 3.0)], Until::Samples(1024));
        let new = new.starting_at(4, &consumed).unwrap();
        assert_eq!(new.consumed(4, 0).unwrap(), consumed);
        assert_eq!(new.consumed(5, 0).unwrap(), new.consumed(4, 1024).unwrap());
        assert_eq!(new.consumed(5, 1024).unwrap(), [consumed[0] + 512, consumed[1] + 1536]);
    }

    #[test]
    fn an_error_of_a_part_is_reported_when_the_epoch_starts() {
        let weighted = super::super::Weighted::with_replacement([1.0], 5, 0).unwrap();
        let parts = [Part::new(10, 1.0), Part::new(10, 1.0).sampler(weighted)];
        let mixture = Mixture::new(parts, Until::AllExhausted, 0).unwrap();
        assert_eq!(mixture.epoch(20, 0).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn a_sampler_with_a_wrong_length_is_detected() {
        #[derive(Debug)]
        struct Wrong;
        impl Sampler for Wrong {
            fn epoch(&self, items: u64, epoch: u64) -> Result<Arc<dyn SampleOrder>> {
                Sequential.epoch(items, epoch)
            }
            fn epoch_len(&self, items: u64) -> Option<u64> {
                Some(items + 1)
            }
        }
        let parts = [Part::new(10, 1.0).sampler(Wrong)];
        let mixture = Mixture::new(parts, Until::AllExhausted, 0).unwrap();
        let error = mixture.epoch(10, 0).unwrap_err().to_string();
        assert!(error.contains("10 positions, but its sampler reported 11"), "{error}");
    }

    #[test]
    fn concatenated_items_name_their_data_set() {
        let part = |range: std::ops::Range<u32>| -> Arc<dyn Dataset<Item = u32>> {
            Arc::new(range.collect::<Vec<_>>())
        };
        let all = Concatenated::new([part(0..3), part(0..0), part(10..12)]).unwrap();
        let items: Vec<_> = (0..all.len()).map(|index| all.item(index).unwrap()).collect();
        let expected = [(0, 0), (0, 1), (0, 2), (2, 10), (2, 11)];
        assert_eq!(items, expected.map(|(dataset, item)| Mixed { dataset, item }));
        assert_eq!(all.lens(), [3, 0, 2]);
        assert_eq!(all.item(5).unwrap_err().kind(), ErrorKind::InvalidArgument);
        let mixture = |weights: &[f64]| all.mixture(weights.to_vec(), Until::AllExhausted, 0);
        assert!(mixture(&[1.0, 1.0]).is_err());
        assert!(mixture(&[1.0, 1.0, 1.0]).is_err(), "a part is empty");
        assert!(mixture(&[1.0, 0.0, 1.0]).is_ok());
    }

    // feature: Q04
    #[test]
    fn invalid_mixtures_are_refused() {
        let until = |parts: &[(u64, f64)], until| {
            Mixture::new(parts.iter().map(|&(items, weight)| Part::new(items, weight)), until, 0)
        };
        let of = |parts: &[(u64, f64)]| until(parts, Until::AllExhausted);
        for parts in [
            &[][..],
            &[(1, 0.0)],
            &[(1, -1.0)],
            &[(1, f64::NAN), (1, 1.0)],
            &[(1, f64::INFINITY)],
            &[(1, 1.0), (1, 1e-13)],
            &[(0, 1.0)],
            &[(1 << 63, 1.0), (1, 1.0)],
            &[(1 << 63, 1.0), (1, 4.0)],
            &[(1 << 62, 1.0), (1, 4.0)],
        ] {
            let error = of(parts).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{parts:?}");
        }
        let two = of(&[(5, 1.0), (5, 1.0)]).unwrap();
        assert!(two.epoch(11, 0).is_err());
        assert!(two.consumed(0, 11).is_err());
        assert!(until(&[(5, 1.0)], Until::Samples(0)).is_err());
        assert!(until(&[(5, 1.0)], Until::Samples(u64::MAX)).is_err());
        assert!(two.clone().starting_at(3, &[1, 2, 3]).is_err());
        assert!(two.clone().starting_at(3, &[5, 5]).is_err());
        let later = two.starting_at(3, &[1, 2]).unwrap();
        assert!(later.epoch(10, 2).is_err());
        assert_eq!(later.epoch(10, 3).unwrap().len(), 7);
        assert_eq!(later.epoch(10, 4).unwrap().len(), 10);
        let unchanged = of(&[(5, 1.0), (5, 1.0)]).unwrap();
        assert_eq!(all(&*later.epoch(10, 4).unwrap()), epoch(&unchanged, 10, 4));
        assert_eq!(later.epoch_len(10), None);
    }

    #[test]
    fn the_fingerprint_depends_on_the_parts_and_the_start() {
        let base = mixture(&[(5, 1.0), (5, 1.0)], Until::AllExhausted);
        let others = [
            mixture(&[(5, 1.0), (6, 1.0)], Until::AllExhausted),
            mixture(&[(5, 1.0), (5, 2.0)], Until::AllExhausted),
            mixture(&[(5, 1.0), (5, 1.0)], Until::FirstExhausted),
            base.clone().starting_at(0, &[1]).unwrap(),
            base.clone().starting_at(0, &[2]).unwrap(),
            Mixture::new(
                [Part::new(5, 1.0), Part::new(5, 1.0).sampler(Sequential)],
                Until::AllExhausted,
                5,
            )
            .unwrap(),
        ];
        let mut all: Vec<String> = others.iter().map(Sampler::fingerprint).collect();
        all.push(base.fingerprint());
        assert!(all.iter().all(|text| text.chars().count() <= 100), "{all:?}");
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 7);
    }
}
