//! [`ConcatAndSplit`]: concatenates items and splits the result into sequences of equal length.

use std::ops::Range;
use std::sync::Arc;

use super::{Packed, empty_item, invalid, more_not_called};
use crate::error::Result;
use crate::memory::footprint::Footprint;
use crate::stage::aggregate::{Aggregator, ExactResume, FillRate};

/// An item that can be split: text tokens, audio samples, video frames.
pub trait Sequence: Send + Sized + 'static {
    /// Number of tokens.
    fn tokens(&self) -> u64;

    /// The tokens in `range`, which is within `0..tokens()`.
    fn slice(&self, range: Range<u64>) -> Self;
}

/// The elements of a slice in `range`. A range beyond the end of the slice is shortened.
fn part<E>(all: &[E], range: Range<u64>) -> &[E] {
    let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(all.len());
    all.get(place(range.start)..place(range.end)).unwrap_or(&[])
}

impl<E: Clone + Send + 'static> Sequence for Vec<E> {
    fn tokens(&self) -> u64 {
        self.len() as u64
    }

    fn slice(&self, range: Range<u64>) -> Self {
        part(self, range).to_vec()
    }
}

impl<E: Clone + Send + Sync + 'static> Sequence for Arc<[E]> {
    fn tokens(&self) -> u64 {
        self.len() as u64
    }

    fn slice(&self, range: Range<u64>) -> Self {
        part(self, range).into()
    }
}

impl Sequence for bytes::Bytes {
    fn tokens(&self) -> u64 {
        self.len() as u64
    }

    /// Shares the memory of `self`.
    fn slice(&self, range: Range<u64>) -> Self {
        self.slice_ref(part(self, range))
    }
}

/// A contiguous part of an item, or the whole item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<T> {
    /// The tokens of the piece.
    pub part: T,
    /// Start of the piece in its item, in tokens.
    pub offset: u64,
    /// Number of tokens of the whole item.
    pub whole: u64,
}

impl<T: Sequence> Piece<T> {
    fn new(item: &T, range: Range<u64>) -> Self {
        Piece { offset: range.start, whole: item.tokens(), part: item.slice(range) }
    }

    /// Number of tokens of the piece.
    pub fn tokens(&self) -> u64 {
        self.part.tokens()
    }

    /// Whether the piece includes the end of its item.
    pub fn is_last(&self) -> bool {
        self.offset + self.tokens() >= self.whole
    }
}

impl<T: Footprint> Footprint for Piece<T> {
    fn footprint(&self) -> usize {
        2 * size_of::<u64>() + self.part.footprint()
    }
}

/// Splits an item into pieces of `longest` tokens; the last piece may be shorter.
///
/// To [`pack`](crate::PipelineBuilder::pack) items that are longer than a sequence, first split
/// them with `pieces` in a [`flat_map`](crate::PipelineBuilder::flat_map). An empty item has no
/// pieces.
///
/// # Errors
/// The iterator yields `InvalidArgument` if `longest` is 0.
///
/// ```
/// use spdl_core::PipelineBuilder;
/// use spdl_core::stage::{Packing, pieces};
/// let texts = [vec!['a'; 7], vec!['b'; 2]];
/// let packed = PipelineBuilder::from_iter(texts)
///     .flat_map("split", |text| pieces(text, 4))
///     .pack("pack", Packing::new(4), |piece| piece.tokens())
///     .deterministic()
///     .build()?;
/// let lengths = |pack: spdl_core::stage::Packed<_>| pack.lengths().collect::<Vec<_>>();
/// let lengths: Vec<_> = packed.map(|pack| pack.map(lengths)).collect::<Result<_, _>>()?;
/// assert_eq!(lengths, [vec![4], vec![3], vec![2]]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub fn pieces<T: Sequence>(item: T, longest: u64) -> impl Iterator<Item = Result<Piece<T>>> {
    let whole = item.tokens();
    let mut offset = 0_u64;
    let mut item = Some(item);
    std::iter::from_fn(move || {
        if longest == 0 && item.take().is_some() {
            let message = "the maximum length of a piece is 0; it must be at least 1";
            return Some(Err(invalid(message)));
        }
        let unsplit = item.as_ref()?;
        let start = offset;
        offset = start.saturating_add(longest).min(whole);
        match (start, offset) {
            (start, end) if start == end => None,
            (0, end) if end == whole => Some(Ok(Piece { part: item.take()?, offset: 0, whole })),
            (start, end) => Some(Ok(Piece::new(unsplit, start..end))),
        }
    })
}

/// The [`Aggregator`] that concatenates items and splits the result into sequences of equal length.
///
/// An item may start in one sequence and continue in the next. Each [`Piece`] has its offset in its
/// item. The aggregator holds less than one sequence, plus the current item.
///
/// At the end of an epoch, the last sequence may be shorter. With `drop_last`, a shorter sequence
/// is left out, and the items that end in it are counted as left out. The
/// [counts](crate::resume::SampleCounts) of a checkpoint state count such an item as delivered if
/// its start was delivered. The [fill rate](Aggregator::fill_rate) is tokens / (capacity ×
/// sequences).
///
/// ```
/// use spdl_core::stage::{Aggregator, ConcatAndSplit, ExactResume};
/// let mut concat = ConcatAndSplit::new(4, false)?;
/// assert_eq!(concat.accumulate(vec![1, 2, 3])?, None);
/// let full = concat.accumulate(vec![4, 5, 6])?.expect("a full sequence");
/// assert_eq!(full.items.into_iter().map(|piece| piece.part).collect::<Vec<_>>().concat(), [1, 2, 3, 4]);
/// assert_eq!((concat.inputs(), concat.carry()), (vec![0], 1));
/// let last = concat.flush()?.expect("a shorter sequence");
/// assert_eq!((last.items[0].offset, &last.items[0].part), (1, &vec![5, 6]));
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// An item fails with `InvalidArgument` if it is empty. An item also fails if the resumed state
/// records at least as many emitted tokens as the item has, because the data have changed.
#[derive(Debug)]
pub struct ConcatAndSplit<T> {
    capacity: u64,
    drop_last: bool,
    /// The sequence that is not full.
    open: Packed<Piece<T>>,
    /// Numbers of the items that end in the open sequence.
    ends: Vec<u64>,
    /// The item that continues in the next sequence: item, number, emitted tokens.
    current: Option<(T, u64, u64)>,
    /// Number of tokens of the oldest held item that the emitted sequences contain.
    carry: u64,
    /// Number of tokens of the first item that an earlier run of the program emitted.
    resumed: u64,
    accepted: u64,
    members: Vec<u64>,
    fill: FillRate,
    left_out: u64,
}

impl<T: Sequence> ConcatAndSplit<T> {
    /// Creates an aggregator for sequences of `capacity` tokens, at least 1.
    ///
    /// With `drop_last`, the last sequence of an epoch is left out if it is shorter.
    ///
    /// # Errors
    /// `InvalidArgument` if `capacity` is 0.
    pub fn new(capacity: u64, drop_last: bool) -> Result<Self> {
        if capacity == 0 {
            return Err(invalid("the capacity of a sequence is 0; it must be at least 1"));
        }
        let (ends, members, fill) = Default::default();
        Ok(ConcatAndSplit {
            capacity,
            drop_last,
            open: Packed::new(capacity),
            ends,
            current: None,
            carry: 0,
            resumed: 0,
            accepted: 0,
            members,
            fill,
            left_out: 0,
        })
    }

    fn emit(&mut self) -> Packed<Piece<T>> {
        let full = std::mem::replace(&mut self.open, Packed::new(self.capacity));
        self.fill.add(full.used(), full.capacity);
        self.members = std::mem::take(&mut self.ends);
        self.carry = self.current.as_ref().map_or(0, |&(.., emitted)| emitted);
        full
    }
}

impl<T: Sequence> Aggregator<T> for ConcatAndSplit<T> {
    type Out = Packed<Piece<T>>;

    fn accumulate(&mut self, item: T) -> Result<Option<Packed<Piece<T>>>> {
        if self.current.is_some() {
            return Err(more_not_called());
        }
        let (length, emitted) = (item.tokens(), std::mem::take(&mut self.resumed));
        if length == 0 {
            return Err(empty_item());
        }
        if length <= emitted {
            return Err(invalid(format!(
                "the data have changed: the resumed state records {emitted} emitted tokens of an \
                 item that has only {length}"
            )));
        }
        self.carry = self.carry.max(emitted);
        self.current = Some((item, self.accepted, emitted));
        self.accepted += 1;
        self.more()
    }

    fn more(&mut self) -> Result<Option<Packed<Piece<T>>>> {
        let Some((item, number, start)) = self.current.take() else { return Ok(None) };
        let (whole, free) = (item.tokens(), self.capacity - self.open.used());
        let end = whole.min(start.saturating_add(free));
        if end == whole {
            let piece = match start {
                0 => Piece { part: item, offset: 0, whole },
                start => Piece::new(&item, start..whole),
            };
            self.open.push(piece, whole - start);
            self.ends.push(number);
        } else {
            self.open.push(Piece::new(&item, start..end), end - start);
            self.current = Some((item, number, end));
        }
        Ok((self.open.used() == self.capacity).then(|| self.emit()))
    }

    fn flush(&mut self) -> Result<Option<Packed<Piece<T>>>> {
        if let Some(full) = self.more()? {
            return Ok(Some(full));
        }
        if self.drop_last {
            self.left_out += self.ends.len() as u64;
            self.ends.clear();
            self.open = Packed::new(self.capacity);
        }
        Ok((!self.ends.is_empty()).then(|| self.emit()))
    }

    fn flush_more(&mut self) -> Result<Option<Packed<Piece<T>>>> {
        self.flush()
    }

    fn left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }

    fn exact_resume(&mut self) -> Option<&mut dyn ExactResume> {
        Some(self)
    }

    fn fill_rate(&self) -> Option<FillRate> {
        Some(self.fill)
    }
}

impl<T> ExactResume for ConcatAndSplit<T> {
    fn inputs(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.members)
    }

    fn carry(&self) -> u64 {
        self.carry
    }

    fn resume(&mut self, carry: u64) {
        self.resumed = carry;
    }
}

#[cfg(test)]
mod tests;
