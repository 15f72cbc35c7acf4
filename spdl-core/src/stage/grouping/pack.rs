//! Sequences of a fixed capacity, filled with whole items.

use std::sync::Arc;
use std::vec::IntoIter;

use super::{LengthFn, invalid};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::footprint::Footprint;
use crate::stage::aggregate::{Aggregator, ExactResume, FillRate};

/// How items are packed into sequences. For
/// [`PipelineBuilder::pack`](crate::PipelineBuilder::pack).
///
/// Several sequences are open at once. An item goes into one that has room for it; a sequence goes
/// out when it is full, or when another one must be opened and there are as many as may be: then
/// the fullest goes, the oldest among equals.
///
/// How much of the sequences is then used, for 200,000 items of log-normal lengths with a median of
/// 400 tokens (σ = 1) in sequences of 4096, as the example `packing` prints it: 15.6 % where each
/// item has a sequence of its own, 88.1 % with one open sequence, 99.5 % with 8, 99.7 % with 64, for
/// either fit. Items that are mostly longer than half a sequence leave more room, however they are
/// packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    capacity: u64,
    open: usize,
    first_fit: bool,
    most_items: usize,
}

impl Packing {
    /// Sequences of up to `capacity` tokens. Default: best fit, 64 open sequences, any number of
    /// items in each.
    pub fn new(capacity: u64) -> Self {
        Packing { capacity, open: 64, first_fit: false, most_items: usize::MAX }
    }

    /// An item goes into the fullest sequence that has room for it, the oldest among equals.
    #[must_use]
    pub fn best_fit(self) -> Self {
        Packing { first_fit: false, ..self }
    }

    /// An item goes into the oldest sequence that has room for it. Items stay nearer to the order
    /// in which they came.
    #[must_use]
    pub fn first_fit(self) -> Self {
        Packing { first_fit: true, ..self }
    }

    /// How many sequences are open at most. More fill better, hold more items back, and take longer
    /// to be looked through.
    #[must_use]
    pub fn open(self, sequences: usize) -> Self {
        Packing { open: sequences, ..self }
    }

    /// How many items a sequence has at most: where attention takes a table of offsets of fixed
    /// size, say.
    #[must_use]
    pub fn most_items(self, items: usize) -> Self {
        Packing { most_items: items, ..self }
    }

    fn validate(&self) -> Result<()> {
        match self {
            Packing { capacity: 0, .. } => Err(invalid("nothing fits into a sequence of 0 tokens")),
            Packing { open: 0, .. } => Err(invalid("at least 1 sequence must be open")),
            Packing { most_items: 0, .. } => Err(invalid("a sequence has at least 1 item")),
            _ => Ok(()),
        }
    }

    /// The settings as words, for a pipeline's definition.
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

/// A sequence made of items end to end, as a [`Packer`] or
/// [`ConcatAndSplit`](crate::stage::ConcatAndSplit) makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed<T> {
    /// The items, in the order in which they came.
    pub items: Vec<T>,
    /// Where each item begins, in tokens from the start of the sequence, and at last where the
    /// last one ends: one number more than there are items, the first of them 0. What attention
    /// kernels call cumulative sequence lengths.
    pub offsets: Vec<u64>,
    /// How many tokens there is room for.
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

    /// How many tokens there are.
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
/// It holds less than (open sequences × capacity) tokens, each item having at least one. At the end
/// of an epoch the open sequences come out, the oldest first. The
/// [fill rate](Aggregator::fill_rate) is tokens / (capacity × sequences).
///
/// Taking an item in costs a look at each open sequence.
///
/// ```
/// use spdl_core::stage::{Aggregator, ExactResume, Packer, Packing};
/// let mut packer = Packer::new(Packing::new(10), |text: &&str| text.len() as u64)?;
/// assert_eq!(packer.accumulate("sevens!")?, None);
/// assert_eq!(packer.accumulate("quite")?, None);
/// let full = packer.accumulate("one")?.expect("7 + 3 = 10");
/// assert_eq!((full.items, full.offsets), (vec!["sevens!", "one"], vec![0, 7, 10]));
/// assert_eq!(packer.inputs(), [0, 2]);
/// assert_eq!(packer.flush()?.expect("the rest").items, ["quite"]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// An item fails with `LimitExceeded` where it is longer than the capacity; [cut](crate::stage::pieces)
/// such items before they are packed. It fails with `InvalidArgument` where it is empty.
#[derive(Debug)]
pub struct Packer<T> {
    packing: Packing,
    length: LengthFn<T, u64>,
    /// By age, the oldest first.
    open: Vec<OpenSequence<T>>,
    /// How many tokens are in each of them: side by side, to be looked through.
    used: Vec<u64>,
    /// How many items were taken in.
    taken: u64,
    /// Who the last sequence is made of.
    members: Vec<u64>,
    fill: FillRate,
}

/// A sequence that is not full.
#[derive(Debug)]
struct OpenSequence<T> {
    packed: Packed<T>,
    /// Which items are in it, by the order of intake.
    numbers: Vec<u64>,
}

impl<T> Packer<T> {
    /// Packs items of which `length` tells how many tokens they have.
    ///
    /// # Errors
    /// `InvalidArgument` for a capacity, a number of open sequences or of items of 0.
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
        Ok(Packer { packing, length: LengthFn(length), open, used, taken: 0, members, fill })
    }

    /// The sequence into which an item goes that fits where no more than `room` is used.
    fn place(&self, room: u64) -> Option<usize> {
        match self.packing.first_fit {
            true => self.used.iter().position(|&used| used <= room),
            false => self.fullest(room),
        }
    }

    /// The fullest of the sequences of which no more than `room` is used, the oldest among equals.
    fn fullest(&self, room: u64) -> Option<usize> {
        // What is open is not empty.
        let (mut fullest, mut most) = (None, 0);
        for (place, &used) in self.used.iter().enumerate() {
            if used > most && used <= room {
                (fullest, most) = (Some(place), used);
            }
        }
        fullest
    }

    fn give(&mut self, place: usize) -> Packed<T> {
        let OpenSequence { packed, numbers } = self.open.remove(place);
        self.fill.add(self.used.remove(place), packed.capacity);
        self.members = numbers;
        packed
    }
}

impl<T: Send + 'static> Aggregator<T> for Packer<T> {
    type Out = Packed<T>;

    fn accumulate(&mut self, item: T) -> Result<Option<Packed<T>>> {
        let (length, capacity) = (self.length.of(&item), self.packing.capacity);
        if length == 0 {
            return Err(invalid("an item of 0 tokens cannot be packed; filter such items out"));
        }
        if length > capacity {
            let message = format!(
                "an item of {length} tokens is longer than a sequence, {capacity}; cut such items \
                 before they are packed"
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        let place = self.place(capacity - length).unwrap_or_else(|| {
            self.open.push(OpenSequence { packed: Packed::new(capacity), numbers: Vec::new() });
            self.used.push(0);
            self.open.len() - 1
        });
        let open = &mut self.open[place];
        open.packed.push(item, length);
        open.numbers.push(self.taken);
        self.taken += 1;
        self.used[place] += length;
        let items = open.packed.items.len();
        let leaves = match self.used[place] == capacity || items >= self.packing.most_items {
            true => Some(place),
            false if self.open.len() > self.packing.open => self.fullest(capacity),
            false => None,
        };
        Ok(leaves.map(|place| self.give(place)))
    }

    fn flush(&mut self) -> Result<Option<Packed<T>>> {
        Ok((!self.open.is_empty()).then(|| self.give(0)))
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
