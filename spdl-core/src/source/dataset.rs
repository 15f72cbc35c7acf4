//! Data sets with random access, and the order of their items.

use std::fmt::Debug;
use std::sync::Arc;

use futures_core::stream::BoxStream;
use futures_util::{StreamExt, stream};

use crate::error::{Error, ErrorKind, Result};
use crate::source::sample::SampleId;
use crate::source::sampler::{Sampler, Sequential, Shuffled};
use crate::source::shard::Positions;
use crate::source::{Cursor, Fingerprint, Source};

/// A collection with random access, such as a list of files or an index of records.
///
/// [`item`](Dataset::item) should return the name of the data, not the data, because the call must
/// be cheap and must not block. [`DatasetSource`] makes a data set a [`Source`] in any order.
pub trait Dataset: Debug + Send + Sync + 'static {
    /// The type of the items.
    type Item: Send + 'static;

    /// The number of items.
    fn len(&self) -> u64;

    /// Whether the data set has no items.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns item `index`, in `0..len()`.
    ///
    /// # Errors
    /// `InvalidArgument` if `index` is out of range, or any error of the data set. The pipeline's
    /// failure policy handles the error.
    fn item(&self, index: u64) -> Result<Self::Item>;

    /// A hash of the names of all items. The fingerprint of the source contains the hash, and a run
    /// resumes only with an equal hash, unless
    /// [`State::allow_change`](crate::State::allow_change) permits the change.
    ///
    /// The hash should not depend on the location of the data, and must not depend on the compiler
    /// version. The default is `None`; the fingerprint then describes the items only by their
    /// number.
    fn content_hash(&self) -> Option<u64> {
        None
    }

    /// The name of an item in messages. Default: `None`.
    fn key(&self, item: &Self::Item) -> Option<Arc<str>> {
        let _ = item;
        None
    }
}

impl<T: Clone + Debug + Send + Sync + 'static> Dataset for Vec<T> {
    type Item = T;

    fn len(&self) -> u64 {
        self.as_slice().len() as u64
    }

    fn item(&self, index: u64) -> Result<T> {
        let item = usize::try_from(index).ok().and_then(|index| self.as_slice().get(index));
        item.cloned().ok_or_else(|| {
            let len = self.as_slice().len();
            let message = format!("item index {index} is out of range for {len} items");
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Item = D::Item;

    fn len(&self) -> u64 {
        (**self).len()
    }

    fn is_empty(&self) -> bool {
        (**self).is_empty()
    }

    fn item(&self, index: u64) -> Result<D::Item> {
        (**self).item(index)
    }

    fn content_hash(&self) -> Option<u64> {
        (**self).content_hash()
    }

    fn key(&self, item: &D::Item) -> Option<Arc<str>> {
        (**self).key(item)
    }
}

/// A [`Dataset`] as a [`Source`], in the order of a [`Sampler`]. Default: sequential order.
///
/// ```
/// use spdl_core::{DatasetSource, Source};
/// use spdl_core::source::Cursor;
/// # use futures_util::StreamExt;
/// let source = DatasetSource::new(vec!['a', 'b', 'c', 'd']).shuffled(7);
/// let epoch = |n| -> spdl_core::Result<String> {
///     let items = source.open(Cursor::new(n, 0))?;
///     Ok(spdl_core::block_on(items.map(|item| item.unwrap_or('?')).collect()))
/// };
/// assert_eq!(epoch(0)?, epoch(0)?);
/// assert_eq!(epoch(1)?.len(), 4);
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// A clone shares the data set.
#[derive(Debug)]
pub struct DatasetSource<D> {
    dataset: Arc<D>,
    sampler: Arc<dyn Sampler>,
}

impl<D> Clone for DatasetSource<D> {
    fn clone(&self) -> Self {
        DatasetSource { dataset: Arc::clone(&self.dataset), sampler: Arc::clone(&self.sampler) }
    }
}

impl<D: Dataset> DatasetSource<D> {
    /// Yields the items in sequential order.
    pub fn new(dataset: D) -> Self {
        DatasetSource::shared(Arc::new(dataset))
    }

    /// Like [`new`](DatasetSource::new), for a shared data set.
    pub fn shared(dataset: Arc<D>) -> Self {
        DatasetSource { dataset, sampler: Arc::new(Sequential) }
    }

    /// Shuffles every epoch with a [`Permutation`](crate::source::Permutation) of seed and epoch.
    /// Replaces an earlier sampler.
    #[must_use]
    pub fn shuffled(self, seed: u64) -> Self {
        self.sampler(Shuffled::new(seed))
    }

    /// Sets the sampler, which determines the items of an epoch and their order. Replaces an
    /// earlier sampler.
    ///
    /// ```
    /// use spdl_core::source::sampler::{Repeated, Shuffled};
    /// use spdl_core::{DatasetSource, PipelineBuilder};
    /// let thrice = Repeated::passes(Shuffled::new(7), 3)?;
    /// let source = DatasetSource::new(vec![10, 20]).sampler(thrice);
    /// let numbers = PipelineBuilder::new(source).build()?.collect::<spdl_core::Result<Vec<i32>>>()?;
    /// assert_eq!(numbers.len(), 6);
    /// assert_eq!(numbers.iter().sum::<i32>(), 90);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn sampler(mut self, sampler: impl Sampler) -> Self {
        self.sampler = Arc::new(sampler);
        self
    }

    /// Returns the item of a sample: the item at position [`index`](SampleId::index) in the order
    /// of its epoch.
    ///
    /// Use `item_at` to find the item of a sample that an order record or an error message
    /// contains. Each call computes the order of the epoch. If the sampler computes a list for each
    /// epoch and you need many items, call [`Sampler::epoch`] once and [`Dataset::item`] for each
    /// sample.
    ///
    /// ```
    /// use spdl_core::{DatasetSource, PipelineBuilder};
    /// let source = DatasetSource::new(vec!["a.jpg", "b.jpg", "c.jpg", "d.jpg"]).shuffled(7);
    /// let builder = PipelineBuilder::new(source.clone()).epochs(0..2).record_order();
    /// let mut pipeline = builder.deterministic().batch("batch", 2, false).build()?;
    /// let batches = pipeline.by_ref().collect::<spdl_core::Result<Vec<_>>>()?;
    /// // The items of step 3, which is the second step of epoch 1.
    /// let record = pipeline.order_record().expect("`record_order` is set");
    /// let samples = record.samples_of(3).expect("there are 4 steps");
    /// let names: Vec<_> =
    ///     samples.into_iter().map(|id| source.item_at(id)).collect::<spdl_core::Result<_>>()?;
    /// assert_eq!(names, batches[3]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if the index of `id` is beyond the end of the epoch, as are the indices of
    /// samples that [`Remainder::Pad`](crate::source::Remainder::Pad) repeats. Otherwise the errors
    /// of [`Sampler::epoch`] and [`Dataset::item`].
    pub fn item_at(&self, id: SampleId) -> Result<D::Item> {
        let order = self.sampler.epoch(self.dataset.len(), id.epoch)?;
        if id.index >= order.len() {
            let message = format!("{id} is out of range: the epoch has {} samples", order.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.dataset.item(order.at(id.index))
    }

    /// Describes the number of items and the order in one line, to compare sources.
    ///
    /// ```
    /// let source = spdl_core::DatasetSource::new(vec!['a', 'b']).shuffled(7);
    /// assert_eq!(source.order_fingerprint(), "2 items, Shuffled { seed: 7 }");
    /// ```
    pub fn order_fingerprint(&self) -> String {
        format!("{} items, {}", self.dataset.len(), self.sampler.fingerprint())
    }
}

impl<D: Dataset> Source for DatasetSource<D> {
    type Item = D::Item;

    fn open(&self, at: Cursor) -> Result<BoxStream<'static, Result<D::Item>>> {
        let dataset = Arc::clone(&self.dataset);
        let order = self.sampler.epoch(dataset.len(), at.epoch)?;
        let items =
            (at.position..order.len()).map(move |position| dataset.item(order.at(position)));
        Ok(stream::iter(items).boxed())
    }

    fn open_at(&self, positions: Positions) -> Result<BoxStream<'static, (u64, Result<D::Item>)>> {
        let dataset = Arc::clone(&self.dataset);
        let order = self.sampler.epoch(dataset.len(), positions.epoch())?;
        let len = order.len();
        let items = positions.take_while(move |place| place.at < len);
        let items = items.map(move |place| (place.id, dataset.item(order.at(place.at))));
        Ok(stream::iter(items).boxed())
    }

    fn len_hint(&self) -> Option<u64> {
        self.sampler.epoch_len(self.dataset.len())
    }

    fn fingerprint(&self) -> Fingerprint {
        let mut fingerprint = Fingerprint::default().with("items", self.dataset.len().to_string());
        for (part, text) in self.sampler.fingerprint_parts() {
            let name = if part.is_empty() { "order".into() } else { format!("order {part}") };
            fingerprint = fingerprint.with(name, text);
        }
        match self.dataset.content_hash() {
            Some(hash) => fingerprint.with("contents", format!("{hash:016x}")),
            None => fingerprint,
        }
    }

    fn key(&self, item: &D::Item) -> Option<Arc<str>> {
        self.dataset.key(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::block_on;
    use crate::source::sampler::{Limited, Repeated, Weighted};

    fn items(source: &DatasetSource<Vec<u32>>, at: Cursor) -> Vec<u32> {
        block_on(source.open(at).unwrap().map(|item| item.unwrap()).collect())
    }

    #[test]
    fn a_cursor_in_the_middle_yields_the_remaining_items() {
        for source in [
            DatasetSource::new((0..100).collect::<Vec<_>>()),
            DatasetSource::new((0..100).collect::<Vec<_>>()).shuffled(3),
        ] {
            let whole = items(&source, Cursor::new(2, 0));
            assert_eq!(items(&source, Cursor::new(2, 40)), whole[40..]);
            assert!(items(&source, Cursor::new(2, 100)).is_empty());
        }
    }

    #[test]
    fn item_at_returns_the_item_at_the_position_in_the_order() {
        let numbers = || DatasetSource::new((100..110).collect::<Vec<u32>>());
        for source in [numbers(), numbers().shuffled(3)] {
            for epoch in 0..3 {
                let found: Vec<u32> = (0..10)
                    .map(|index| source.clone().item_at(SampleId { epoch, index }).unwrap())
                    .collect();
                assert_eq!(found, items(&source, Cursor::new(epoch, 0)));
            }
            let error = source.item_at(SampleId { epoch: 1, index: 10 }).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains("epoch 1, sample 10"), "{error}");
        }
    }

    // feature: Q03
    #[test]
    fn the_sampler_decides_the_number_of_items() {
        let numbers = || DatasetSource::new((0..10).collect::<Vec<u32>>());
        let first = numbers().sampler(Limited::positions(Sequential, 0..3).unwrap());
        assert_eq!(first.len_hint(), Some(3));
        assert_eq!(items(&first, Cursor::new(0, 0)), [0, 1, 2]);
        assert_eq!(items(&first, Cursor::new(0, 2)), [2]);
        assert!(items(&first, Cursor::new(0, 7)).is_empty());
        let twice = numbers().sampler(Repeated::passes(Sequential, 2).unwrap());
        assert_eq!(items(&twice, Cursor::new(0, 9)), [9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let wrong = numbers().sampler(Weighted::with_replacement([1.0], 5, 0).unwrap());
        assert_eq!(wrong.open(Cursor::default()).err().unwrap().kind(), ErrorKind::InvalidArgument);
    }

    // feature: E04
    #[test]
    fn epochs_differ_and_contain_every_item_once() {
        let source = DatasetSource::new((0..100).collect::<Vec<_>>()).shuffled(3);
        let first = items(&source, Cursor::new(0, 0));
        let mut second = items(&source, Cursor::new(1, 0));
        assert_ne!(first, second);
        second.sort_unstable();
        assert_eq!(second, (0..100).collect::<Vec<_>>());
    }
}
