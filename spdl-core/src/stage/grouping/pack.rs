//! [`Packer`]: packs whole items into sequences of a fixed capacity.

use std::sync::Arc;
use std::vec::IntoIter;

use super::{LengthFn, empty_item, invalid};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::footprint::Footprint;
use crate::stage::aggregate::{Aggregator, ExactResume, FillRate};

/// Settings of [`PipelineBuilder::pack`](crate::PipelineBuilder::pack): how items are packed into
/// sequences.
///
/// The method is bin packing with several open sequences, by [best fit](Self::best_fit) or [first
/// fit](Self::first_fit). A sequence is emitted immediately if it is full or has the [maximum
/// number of items](Self::most_items). An item that fits no open sequence opens a new one. If there
/// are then more open sequences than permitted, the fullest is emitted, which may be the new one.
/// If several are equally full, the oldest of them is emitted.
///
/// The share of the capacity that contains tokens depends on the number of open sequences. For
/// 200,000 items of log-normal lengths (median 400 tokens, σ = 1) and a capacity of 4096, the
/// example `packing` prints 15.6 % without packing. For both methods, it prints 88.1 % with one
/// open sequence, 99.5 % with 8, 99.7 % with 64. Items longer than half the capacity leave more
/// padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    capacity: u64,
    open: usize,
    first_fit: bool,
    most_items: usize,
}

impl Packing {
    /// Sequences of up to `capacity` tokens, at least 1.
    ///
    /// Default: best fit, 64 open sequences, no limit of items per sequence.
    pub fn new(capacity: u64) -> Self {
        Packing { capacity, open: 64, first_fit: false, most_items: usize::MAX }
    }

    /// Adds each item to the fullest open sequence with enough free capacity; if several are
    /// equally full, to the oldest. The default.
    #[must_use]
    pub fn best_fit(self) -> Self {
        Packing { first_fit: false, ..self }
    }

    /// Adds each item to the oldest open sequence with enough free capacity. Items then stay closer
    /// to input order.
    #[must_use]
    pub fn first_fit(self) -> Self {
        Packing { first_fit: true, ..self }
    }

    /// Maximum number of open sequences, at least 1. Default: 64.
    ///
    /// More open sequences reduce padding, but more items are buffered, and the search for a
    /// sequence takes longer.
    #[must_use]
    pub fn open(self, sequences: usize) -> Self {
        Packing { open: sequences, ..self }
    }

    /// Maximum number of items in a sequence, at least 1. Default: no limit.
    ///
    /// Set a limit if the attention kernel requires a table of [`offsets`](Packed::offsets) of
    /// fixed size.
    #[must_use]
    pub fn most_items(self, items: usize) -> Self {
        Packing { most_items: items, ..self }
    }

    fn validate(&self) -> Result<()> {
        match self {
            Packing { capacity: 0, .. } => {
                Err(invalid("the capacity of a sequence is 0; it must be at least 1"))
            }
            Packing { open: 0, .. } => {
                Err(invalid("the maximum number of open sequences is 0; it must be at least 1"))
            }
            Packing { most_items: 0, .. } => {
                Err(invalid("the maximum number of items per sequence is 0; it must be at least 1"))
            }
            _ => Ok(()),
        }
    }

    /// The settings as key and value, for the pipeline's definition.
    pub(crate) fn words(&self) -> Vec<(&'static str, String)> {
        let mut words = vec![
            ("capacity", self.capacity.to_string()),
            ("fit", if self.first_fit { "first" } else { "best" }.into()),
            ("open", self.open.to_string()),
        ];
        if self.most_items < usize::MAX {
            words.push(("most items", self.most_items.to_string()));
        }
        words
    }
}

/// A sequence of concatenated items, from a [`Packer`] or a
/// [`ConcatAndSplit`](crate::stage::ConcatAndSplit).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed<T> {
    /// The items, in input order.
    pub items: Vec<T>,
    /// Cumulative sequence lengths, in tokens, as attention kernels use them.
    ///
    /// The list contains the start of each item in the sequence, then the end of the last item. It
    /// has one more element than `items`, and the first element is 0.
    pub offsets: Vec<u64>,
    /// Maximum number of tokens in the sequence.
    pub capacity: u64,
}

impl<T> Packed<T> {
    pub(super) fn new(capacity: u64) -> Self {
        Packed { items: Vec::new(), offsets: vec![0], capacity }
    }

    pub(super) fn push(&mut self, item: T, length: u64) {
        let end = self.used() + length;
        self.items.push(item);
        self.offsets.push(end);
    }

    /// Replaces each item by the result of `function`.
    pub fn map<U>(self, function: impl FnMut(T) -> U) -> Packed<U> {
        let Packed { items, offsets, capacity } = self;
        Packed { items: items.into_iter().map(function).collect(), offsets, capacity }
    }

    /// Number of tokens in the sequence.
    pub fn used(&self) -> u64 {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// The length of each item, in tokens.
    pub fn lengths(&self) -> impl Iterator<Item = u64> + '_ {
        self.offsets.windows(2).map(|ends| ends[1] - ends[0])
    }
}

impl<T> IntoIterator for Packed<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        self.items.into_iter()
    }
}

impl<T: Footprint> Footprint for Packed<T> {
    fn footprint(&self) -> usize {
        size_of::<u64>() + self.items.footprint() + self.offsets.footprint()
    }
}

/// The [`Aggregator`] that packs whole items into sequences.
///
/// Between two items, a packer holds less than open sequences × capacity tokens. At the end of an
/// epoch, the open sequences are emitted, the oldest first. The [fill rate](Aggregator::fill_rate)
/// is tokens / (capacity × sequences). The time per item is proportional to the number of open
/// sequences.
///
/// ```
/// use spdl_core::stage::{Aggregator, ExactResume, Packer, Packing};
/// let mut packer = Packer::new(Packing::new(10), |text: &&str| text.len() as u64)?;
/// assert_eq!(packer.accumulate("sevens!")?, None);
/// assert_eq!(packer.accumulate("quite")?, None);
/// let full = packer.accumulate("one")?.expect("7 + 3 = 10");
/// assert_eq!((full.items, full.offsets), (vec!["sevens!", "one"], vec![0, 7, 10]));
/// assert_eq!(packer.inputs(), [0, 2]);
/// assert_eq!(packer.flush()?.expect("an open sequence").items, ["quite"]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// An item fails with `LimitExceeded` if it exceeds the capacity; split such items with
/// [`pieces`](crate::stage::pieces). An empty item fails with `InvalidArgument`.
#[derive(Debug)]
pub struct Packer<T> {
    packing: Packing,
    length: LengthFn<T, u64>,
    /// The oldest first.
    open: Vec<OpenSequence<T>>,
    /// Number of tokens of each open sequence, contiguous for a fast search.
    used: Vec<u64>,
    /// Number of accepted items.
    accepted: u64,
    /// Numbers of the items in the last sequence.
    members: Vec<u64>,
    fill: FillRate,
}

/// A sequence that is not full.
#[derive(Debug)]
struct OpenSequence<T> {
    packed: Packed<T>,
    /// Indices of the items among all accepted items, counted from 0.
    numbers: Vec<u64>,
}

impl<T> Packer<T> {
    /// Creates a packer. `length` returns the number of tokens of an item.
    ///
    /// # Errors
    /// `InvalidArgument` if the capacity, the number of open sequences or the maximum number of
    /// items is 0.
    pub fn new(
        packing: Packing,
        length: impl Fn(&T) -> u64 + Send + Sync + 'static,
    ) -> Result<Self> {
        Packer::shared(packing, Arc::new(length))
    }

    pub(crate) fn shared(
        packing: Packing,
        length: Arc<dyn Fn(&T) -> u64 + Send + Sync>,
    ) -> Result<Self> {
        packing.validate()?;
        let (open, used, members, fill) = Default::default();
        Ok(Packer { packing, length: LengthFn(length), open, used, accepted: 0, members, fill })
    }

    /// Selects an open sequence with at most `max_used` tokens.
    fn select(&self, max_used: u64) -> Option<usize> {
        match self.packing.first_fit {
            true => self.used.iter().position(|&used| used <= max_used),
            false => self.fullest(max_used),
        }
    }

    /// The fullest open sequence with at most `max_used` tokens; the oldest of equally full ones.
    fn fullest(&self, max_used: u64) -> Option<usize> {
        // Open sequences are never empty.
        let (mut fullest, mut most) = (None, 0);
        for (index, &used) in self.used.iter().enumerate() {
            if used > most && used <= max_used {
                (fullest, most) = (Some(index), used);
            }
        }
        fullest
    }

    fn emit(&mut self, index: usize) -> Packed<T> {
        let OpenSequence { packed, numbers } = self.open.remove(index);
        self.fill.add(self.used.remove(index), packed.capacity);
        self.members = numbers;
        packed
    }
}

impl<T: Send + 'static> Aggregator<T> for Packer<T> {
    type Out = Packed<T>;

    fn accumulate(&mut self, item: T) -> Result<Option<Packed<T>>> {
        let (length, capacity) = (self.length.of(&item), self.packing.capacity);
        if length == 0 {
            return Err(empty_item());
        }
        if length > capacity {
            let message = format!(
                "item of {length} tokens exceeds the sequence capacity of {capacity}; split long \
                 items before packing"
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        let index = self.select(capacity - length).unwrap_or_else(|| {
            self.open.push(OpenSequence { packed: Packed::new(capacity), numbers: Vec::new() });
            self.used.push(0);
            self.open.len() - 1
        });
        let open = &mut self.open[index];
        open.packed.push(item, length);
        open.numbers.push(self.accepted);
        self.accepted += 1;
        self.used[index] += length;
        let items = open.packed.items.len();
        let complete = match self.used[index] == capacity || items >= self.packing.most_items {
            true => Some(index),
            false if self.open.len() > self.packing.open => self.fullest(capacity),
            false => None,
        };
        Ok(complete.map(|index| self.emit(index)))
    }

    fn flush(&mut self) -> Result<Option<Packed<T>>> {
        Ok((!self.open.is_empty()).then(|| self.emit(0)))
    }

    fn flush_more(&mut self) -> Result<Option<Packed<T>>> {
        self.flush()
    }

    fn exact_resume(&mut self) -> Option<&mut dyn ExactResume> {
        Some(self)
    }

    fn fill_rate(&self) -> Option<FillRate> {
        Some(self.fill)
    }
}

impl<T> ExactResume for Packer<T> {
    fn inputs(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.members)
    }
}

#[cfg(test)]
mod tests;
