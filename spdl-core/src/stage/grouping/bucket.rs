//! Batches of items that are alike: in length, or in shape.

use std::sync::Arc;
use std::vec::IntoIter;

use super::{LengthFn, invalid, not_all_asked_for};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::footprint::Footprint;
use crate::stage::aggregate::{Aggregator, ExactResume, FillRate};

/// Into which bucket an item goes, and how many of a bucket make a batch. For
/// [`PipelineBuilder::bucket`](crate::PipelineBuilder::bucket).
///
/// A batch is as long as its longest item; the others are padded. Buckets keep items of about the
/// same length together, so that little is. Images of many shapes are batched the same way, by
/// their aspect ratio: [`nearest`](Bucketing::nearest).
///
/// The number of items of a batch is bounded by [`batch_size`](Bucketing::batch_size),
/// [`batch_sizes`](Bucketing::batch_sizes), [`budget`](Bucketing::budget), or several of them.
///
/// How much of padded batches is used, for log-normal lengths with a median of 400 (σ = 1, at most
/// 4096) in batches of 32, as the example `packing` prints it: 21 % in one bucket, and with
/// `log_spaced(100.0, 4096.0, n)` 75 % in 8 buckets, 89 % in 16, 94 % in 32.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucketing {
    places: BucketBounds,
    /// One for all buckets, or one for each.
    sizes: Vec<usize>,
    budget: Option<u64>,
    long_alone: bool,
    drop_last: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum BucketBounds {
    /// The greatest keys of all buckets but the last.
    UpTo(Vec<f64>),
    /// The keys to which items are nearest.
    Nearest(Vec<f64>),
}

impl Bucketing {
    fn new(places: BucketBounds) -> Self {
        let sizes = Vec::new();
        Bucketing { places, sizes, budget: None, long_alone: false, drop_last: false }
    }

    /// Buckets by length: the first one takes lengths up to `boundaries[0]`, each next one those
    /// above that and up to the next boundary (inclusive), and one more all that are longer.
    /// Boundaries ascend.
    pub fn boundaries(boundaries: impl IntoIterator<Item = f64>) -> Self {
        Bucketing::new(BucketBounds::UpTo(boundaries.into_iter().collect()))
    }

    /// `buckets` buckets by length with boundaries in constant ratio: the first takes lengths up to
    /// `first`, the last but one up to `last`, the last one all that are longer. So each but the
    /// first and the last wastes at most the same share.
    ///
    /// ```
    /// # use spdl_core::stage::Bucketing;
    /// assert_eq!(
    ///     Bucketing::log_spaced(64.0, 1024.0, 6),
    ///     Bucketing::boundaries([64.0, 128.0, 256.0, 512.0, 1024.0]),
    /// );
    /// ```
    pub fn log_spaced(first: f64, last: f64, buckets: usize) -> Self {
        let steps = buckets.saturating_sub(2);
        let boundary = |step: usize| match step {
            0 => first,
            step if step == steps => last,
            step => first * (last / first).powf(step as f64 / steps as f64),
        };
        // Of a single bucket there is nothing to bound.
        let count = buckets.saturating_sub(1);
        Bucketing::boundaries((0..count).map(boundary))
    }

    /// A bucket for each of these keys, which takes the items whose key is nearest to it by ratio:
    /// the aspect ratios (width / height) of the shapes to which images are resized, say. The lower
    /// bucket takes what lies in the middle. Keys are positive and ascend.
    pub fn nearest(keys: impl IntoIterator<Item = f64>) -> Self {
        Bucketing::new(BucketBounds::Nearest(keys.into_iter().collect()))
    }

    /// A batch has at most `size` items.
    #[must_use]
    pub fn batch_size(self, size: usize) -> Self {
        Bucketing { sizes: vec![size], ..self }
    }

    /// A batch of each bucket has at most so many items: one number for each bucket.
    #[must_use]
    pub fn batch_sizes(self, sizes: impl IntoIterator<Item = usize>) -> Self {
        Bucketing { sizes: sizes.into_iter().collect(), ..self }
    }

    /// A padded batch has at most `budget` elements: the length of its longest item times the
    /// number of its items. A batch goes out when no further item would fit, or the next one does
    /// not. For buckets by length; lengths are rounded up to whole numbers, at least 1.
    #[must_use]
    pub fn budget(self, budget: u64) -> Self {
        Bucketing { budget: Some(budget), ..self }
    }

    /// An item that is longer than the budget makes a batch of its own, instead of an error.
    #[must_use]
    pub fn long_items_alone(self) -> Self {
        Bucketing { long_alone: true, ..self }
    }

    /// What is in a bucket at the end of an epoch is left out and counted, instead of making a
    /// short batch.
    #[must_use]
    pub fn drop_last(self) -> Self {
        Bucketing { drop_last: true, ..self }
    }

    /// How many buckets there are.
    pub fn buckets(&self) -> usize {
        match &self.places {
            BucketBounds::UpTo(boundaries) => boundaries.len() + 1,
            BucketBounds::Nearest(keys) => keys.len(),
        }
    }

    /// The bucket of a key.
    fn place(&self, key: f64) -> usize {
        match &self.places {
            BucketBounds::UpTo(boundaries) => {
                boundaries.partition_point(|&boundary| boundary < key)
            }
            BucketBounds::Nearest(keys) => {
                let above = keys.partition_point(|&other| other < key);
                match (above.checked_sub(1), keys.get(above)) {
                    // The middle by ratio is the geometric mean.
                    (Some(below), Some(&next)) if key / keys[below] > next / key => above,
                    (Some(below), _) => below,
                    (None, _) => above,
                }
            }
        }
    }

    /// How many items make a full batch, by number alone.
    fn size(&self, bucket: usize) -> usize {
        let size = self.sizes.get(bucket).or(self.sizes.first());
        size.copied().unwrap_or(usize::MAX)
    }

    fn validate(&self) -> Result<()> {
        let (keys, what) = match &self.places {
            BucketBounds::UpTo(boundaries) => (boundaries, "boundaries"),
            BucketBounds::Nearest(keys) if keys.is_empty() => {
                return Err(invalid("there is no key, and so no bucket"));
            }
            BucketBounds::Nearest(keys) => (keys, "keys"),
        };
        let positive = keys.iter().all(|key| *key > 0.0 && key.is_finite());
        if !positive || !keys.is_sorted_by(|a, b| a < b) {
            return Err(invalid(format!("the {what} {keys:?} are not positive and ascending")));
        }
        let buckets = self.buckets();
        if self.sizes.contains(&0) {
            return Err(invalid("a batch of 0 items was asked for; the least is 1"));
        }
        if self.sizes.len() > 1 && self.sizes.len() != buckets {
            let sizes = self.sizes.len();
            return Err(invalid(format!("{sizes} batch sizes for {buckets} buckets")));
        }
        match (&self.places, self.budget) {
            (_, None) if self.sizes.is_empty() => {
                Err(invalid("neither a batch size nor a budget says when a batch is full"))
            }
            (_, Some(0)) => Err(invalid("nothing fits into a budget of 0")),
            (BucketBounds::Nearest(_), Some(_)) => Err(invalid(
                "a budget needs lengths, but the keys of nearest buckets are ratios; give batch \
                 sizes instead",
            )),
            _ => Ok(()),
        }
    }

    /// The settings as words, for a pipeline's definition.
    pub(crate) fn words(&self) -> Vec<(&'static str, String)> {
        let mut words = match &self.places {
            BucketBounds::UpTo(boundaries) => vec![("boundaries", format!("{boundaries:?}"))],
            BucketBounds::Nearest(keys) => vec![("nearest", format!("{keys:?}"))],
        };
        match &self.sizes[..] {
            [] => {}
            [size] => words.push(("size", size.to_string())),
            sizes => words.push(("sizes", format!("{sizes:?}"))),
        }
        words.extend(self.budget.map(|budget| ("budget", budget.to_string())));
        if self.long_alone {
            words.push(("long items", "alone".into()));
        }
        if self.drop_last {
            words.push(("drop last", "yes".into()));
        }
        words
    }
}

/// A batch of like items, as a [`Bucketer`] makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucketed<T> {
    /// The number of the bucket, counted from 0: for images, which shape.
    pub bucket: usize,
    /// The items, in the order in which they came.
    pub items: Vec<T>,
}

impl<T> IntoIterator for Bucketed<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        self.items.into_iter()
    }
}

impl<T: Footprint> Footprint for Bucketed<T> {
    fn footprint(&self) -> usize {
        size_of::<usize>() + self.items.footprint()
    }
}

/// The [`Aggregator`] that makes batches of like items.
///
/// It holds at most (buckets × batch size) items; with a [`budget`](Bucketing::budget) alone, at
/// most so many of a bucket as fit into it with length 1. At the end of an epoch what is left comes
/// out in the order of the buckets. The [fill rate](Aggregator::fill_rate) of buckets by length is
/// Σ length / (longest × number of items); those by ratio have none.
///
/// ```
/// use spdl_core::stage::{Aggregator, Bucketer, Bucketing};
/// let bucketing = Bucketing::boundaries([4.0]).batch_size(2);
/// let mut bucketer = Bucketer::new(bucketing, |word: &&str| word.len() as f64)?;
/// assert_eq!(bucketer.accumulate("a")?, None);
/// assert_eq!(bucketer.accumulate("longer")?, None);
/// let short = bucketer.accumulate("be")?.expect("two short words");
/// assert_eq!((short.bucket, short.items), (0, vec!["a", "be"]));
/// assert_eq!(bucketer.fill_rate().and_then(|rate| rate.share()), Some(0.75));
/// assert_eq!(bucketer.flush()?.expect("the rest").items, ["longer"]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// An item fails with `InvalidArgument` where its key is not a number, is negative or infinite (or
/// 0, for [`nearest`](Bucketing::nearest)), and with `LimitExceeded` where it is longer than the
/// budget, unless [`long_items_alone`](Bucketing::long_items_alone).
#[derive(Debug)]
pub struct Bucketer<T> {
    bucketing: Bucketing,
    key: LengthFn<T, f64>,
    open: Vec<OpenBucket<T>>,
    /// How many items were taken in.
    taken: u64,
    /// A second batch that the last item completed.
    ready: Option<(usize, OpenBucket<T>)>,
    /// Who the last batch is made of.
    members: Vec<u64>,
    fill: FillRate,
    left_out: u64,
}

/// A batch that is not full.
#[derive(Debug)]
struct OpenBucket<T> {
    items: Vec<T>,
    /// Which they are, by the order of intake.
    numbers: Vec<u64>,
    longest: u64,
    /// The sum of their lengths.
    used: u64,
}

impl<T> Default for OpenBucket<T> {
    fn default() -> Self {
        OpenBucket { items: Vec::new(), numbers: Vec::new(), longest: 0, used: 0 }
    }
}

impl<T> OpenBucket<T> {
    /// Its padded size with `more` items of up to `length`.
    fn padded(&self, more: usize, length: u64) -> u64 {
        self.longest.max(length).saturating_mul((self.items.len() + more) as u64)
    }

    fn push(&mut self, item: T, number: u64, length: u64) {
        self.items.push(item);
        self.numbers.push(number);
        self.longest = self.longest.max(length);
        self.used = self.used.saturating_add(length);
    }
}

impl<T> Bucketer<T> {
    /// Sorts items into buckets by what `key` says of them: a length, or a ratio.
    ///
    /// # Errors
    /// `InvalidArgument` for a [`Bucketing`] that makes no sense: keys that are not positive and
    /// ascending, no bucket, a batch size of 0, not as many batch sizes as buckets, neither batch
    /// size nor budget, a budget of 0 or for ratios.
    pub fn new(
        bucketing: Bucketing,
        key: impl Fn(&T) -> f64 + Send + Sync + 'static,
    ) -> Result<Self> {
        Bucketer::shared(bucketing, Arc::new(key))
    }

    pub(crate) fn shared(
        bucketing: Bucketing,
        key: Arc<dyn Fn(&T) -> f64 + Send + Sync>,
    ) -> Result<Self> {
        bucketing.validate()?;
        let mut open = Vec::new();
        open.resize_with(bucketing.buckets(), OpenBucket::default);
        let (ready, members, fill) = Default::default();
        let key = LengthFn(key);
        Ok(Bucketer { bucketing, key, open, taken: 0, ready, members, fill, left_out: 0 })
    }

    /// The item's bucket and length.
    fn judge(&self, item: &T) -> Result<(usize, u64)> {
        let key = self.key.of(item);
        let ratio = matches!(self.bucketing.places, BucketBounds::Nearest(_));
        if !key.is_finite() || key < 0.0 || (ratio && key == 0.0) {
            let what = if ratio { "ratio" } else { "length" };
            return Err(invalid(format!("{key} is no {what} by which to find an item's bucket")));
        }
        // The cast saturates.
        let length = (key.ceil() as u64).max(1);
        match self.bucketing.budget {
            Some(budget) if length > budget && !self.bucketing.long_alone => {
                let message = format!(
                    "an item of length {length} is longer than a batch may be, {budget} in all"
                );
                Err(Error::new(ErrorKind::LimitExceeded, message))
            }
            _ => Ok((self.bucketing.place(key), length)),
        }
    }

    fn is_full(&self, bucket: usize) -> bool {
        let open = &self.open[bucket];
        open.items.len() >= self.bucketing.size(bucket)
            || self.bucketing.budget.is_some_and(|budget| open.padded(1, 0) > budget)
    }

    fn give(&mut self, bucket: usize, open: OpenBucket<T>) -> Bucketed<T> {
        if matches!(self.bucketing.places, BucketBounds::UpTo(_)) {
            self.fill.add(open.used, open.padded(0, 0));
        }
        self.members = open.numbers;
        Bucketed { bucket, items: open.items }
    }
}

impl<T: Send + 'static> Aggregator<T> for Bucketer<T> {
    type Out = Bucketed<T>;

    fn accumulate(&mut self, item: T) -> Result<Option<Bucketed<T>>> {
        if self.ready.is_some() {
            return Err(not_all_asked_for());
        }
        let (bucket, length) = self.judge(&item)?;
        let number = self.taken;
        self.taken += 1;
        if self.bucketing.budget.is_some_and(|budget| length > budget) {
            let mut alone = OpenBucket::default();
            alone.push(item, number, length);
            return Ok(Some(self.give(bucket, alone)));
        }
        let open = &mut self.open[bucket];
        let fits = |budget| open.padded(1, length) <= budget;
        let before = match self.bucketing.budget.is_none_or(fits) {
            true => None,
            false => Some(std::mem::take(open)),
        };
        open.push(item, number, length);
        if self.is_full(bucket) {
            self.ready = Some((bucket, std::mem::take(&mut self.open[bucket])));
        }
        match before {
            Some(before) => Ok(Some(self.give(bucket, before))),
            None => self.more(),
        }
    }

    fn more(&mut self) -> Result<Option<Bucketed<T>>> {
        let ready = self.ready.take();
        Ok(ready.map(|(bucket, open)| self.give(bucket, open)))
    }

    fn flush(&mut self) -> Result<Option<Bucketed<T>>> {
        if let Some(ready) = self.more()? {
            return Ok(Some(ready));
        }
        if self.bucketing.drop_last {
            let rest = self.open.iter_mut().map(|open| std::mem::take(open).items.len() as u64);
            self.left_out += rest.sum::<u64>();
        }
        let bucket = self.open.iter().position(|open| !open.items.is_empty());
        Ok(bucket.map(|bucket| {
            let open = std::mem::take(&mut self.open[bucket]);
            self.give(bucket, open)
        }))
    }

    fn flush_more(&mut self) -> Result<Option<Bucketed<T>>> {
        self.flush()
    }

    fn left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }

    fn exact_resume(&mut self) -> Option<&mut dyn ExactResume> {
        Some(self)
    }

    fn fill_rate(&self) -> Option<FillRate> {
        matches!(self.bucketing.places, BucketBounds::UpTo(_)).then_some(self.fill)
    }
}

impl<T> ExactResume for Bucketer<T> {
    fn inputs(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.members)
    }
}

#[cfg(test)]
mod tests;
