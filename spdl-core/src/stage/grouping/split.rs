//! Items as one stream of tokens, cut into sequences of one length.

use std::ops::Range;
use std::sync::Arc;

use super::{Packed, invalid, not_all_asked_for};
use crate::error::Result;
use crate::memory::footprint::Footprint;
use crate::stage::aggregate::{Aggregator, ExactResume, FillRate};

/// An item that can be cut: tokens, samples of sound, frames.
pub trait Sequence: Send + Sized + 'static {
    /// How many tokens it has.
    fn tokens(&self) -> u64;

    /// The part of it that lies in `range`, which is within `0..tokens()`.
    fn slice(&self, range: Range<u64>) -> Self;
}

/// The part of a slice that lies in `range`, as far as it goes.
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

    /// Shares the memory of the whole.
    fn slice(&self, range: Range<u64>) -> Self {
        self.slice_ref(part(self, range))
    }
}

/// A part of an item, or all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece<T> {
    /// The part.
    pub part: T,
    /// Where it begins in its item, in tokens.
    pub offset: u64,
    /// How many tokens the whole item has.
    pub whole: u64,
}

impl<T: Sequence> Piece<T> {
    /// A part of `item`, which is cut only where it must be.
    fn new(item: &T, range: Range<u64>) -> Self {
        Piece { offset: range.start, whole: item.tokens(), part: item.slice(range) }
    }

    /// How many tokens this part has.
    pub fn tokens(&self) -> u64 {
        self.part.tokens()
    }

    /// Whether the item ends with it.
    pub fn is_last(&self) -> bool {
        self.offset + self.tokens() >= self.whole
    }
}

impl<T: Footprint> Footprint for Piece<T> {
    fn footprint(&self) -> usize {
        2 * size_of::<u64>() + self.part.footprint()
    }
}

/// Cuts an item into pieces of at most `longest` tokens, the last of which may be shorter. For
/// [`flat_map`](crate::PipelineBuilder::flat_map) in front of
/// [`pack`](crate::PipelineBuilder::pack), where items are longer than the sequences.
///
/// An empty item has no pieces. A `longest` of 0 is an error of the item, `InvalidArgument`.
///
/// ```
/// use spdl_core::PipelineBuilder;
/// use spdl_core::stage::{Packing, pieces};
/// let texts = [vec!['a'; 7], vec!['b'; 2]];
/// let packed = PipelineBuilder::from_iter(texts)
///     .flat_map("cut", |text| pieces(text, 4))
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
            return Some(Err(invalid("pieces of 0 tokens were asked for; the least is 1")));
        }
        let uncut = item.as_ref()?;
        let start = offset;
        offset = start.saturating_add(longest).min(whole);
        match (start, offset) {
            (start, end) if start == end => None,
            (0, end) if end == whole => Some(Ok(Piece { part: item.take()?, offset: 0, whole })),
            (start, end) => Some(Ok(Piece::new(uncut, start..end))),
        }
    })
}

/// The [`Aggregator`] that puts items end to end and cuts the whole into sequences of exactly so
/// many tokens. An item may begin in one sequence and go on in the next; the
/// [pieces](Piece) tell which part of their item they are.
///
/// It holds less than a sequence, and the item at hand. At the end of an epoch the rest is a shorter
/// sequence, or is left out and counted, with an item whose beginning went out. (In the
/// [counts](crate::resume::SampleCounts) of a state, that is delivered if its beginning was.)
/// The [fill rate](Aggregator::fill_rate) is tokens / (capacity × sequences).
///
/// ```
/// use spdl_core::stage::{Aggregator, ConcatAndSplit};
/// let mut concat = ConcatAndSplit::new(4, false)?;
/// assert_eq!(concat.accumulate(vec![1, 2, 3])?, None);
/// let full = concat.accumulate(vec![4, 5, 6])?.expect("a full sequence");
/// assert_eq!(full.items.into_iter().map(|piece| piece.part).collect::<Vec<_>>().concat(), [1, 2, 3, 4]);
/// assert_eq!((concat.inputs(), concat.carry()), (vec![0], 1));
/// let rest = concat.flush()?.expect("the rest");
/// assert_eq!((rest.items[0].offset, &rest.items[0].part), (1, &vec![5, 6]));
/// # Ok::<(), spdl_core::Error>(())
/// ```
///
/// # Errors
/// An item fails with `InvalidArgument` where it is empty, or where it has no more tokens than are
/// said to have gone out before a pipeline was resumed: the data have changed.
#[derive(Debug)]
pub struct ConcatAndSplit<T> {
    capacity: u64,
    drop_last: bool,
    /// The sequence that is not full.
    open: Packed<Piece<T>>,
    /// Which items end in it.
    ends: Vec<u64>,
    /// The item that goes on in the next sequence, its number, and how much of it is out.
    current: Option<(T, u64, u64)>,
    /// How much of the oldest item that is held was out with the last sequence.
    carry: u64,
    /// How much of the first item had gone out before.
    resumed: u64,
    taken: u64,
    members: Vec<u64>,
    fill: FillRate,
    left_out: u64,
}

impl<T: Sequence> ConcatAndSplit<T> {
    /// Makes sequences of `capacity` tokens, at least 1. With `drop_last`, an epoch's last one is
    /// left out where it is shorter.
    ///
    /// # Errors
    /// `InvalidArgument` for a capacity of 0.
    pub fn new(capacity: u64, drop_last: bool) -> Result<Self> {
        if capacity == 0 {
            return Err(invalid("a sequence of 0 tokens was asked for; the least is 1"));
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
            taken: 0,
            members,
            fill,
            left_out: 0,
        })
    }

    fn give(&mut self) -> Packed<Piece<T>> {
        let full = std::mem::replace(&mut self.open, Packed::new(self.capacity));
        self.fill.add(full.used(), full.capacity);
        self.members = std::mem::take(&mut self.ends);
        self.carry = self.current.as_ref().map_or(0, |&(.., out)| out);
        full
    }
}

impl<T: Sequence> Aggregator<T> for ConcatAndSplit<T> {
    type Out = Packed<Piece<T>>;

    fn accumulate(&mut self, item: T) -> Result<Option<Packed<Piece<T>>>> {
        if self.current.is_some() {
            return Err(not_all_asked_for());
        }
        let (length, out) = (item.tokens(), std::mem::take(&mut self.resumed));
        if length == 0 {
            return Err(invalid("an item of 0 tokens cannot be packed; filter such items out"));
        }
        if length <= out {
            return Err(invalid(format!(
                "{out} tokens of an item are said to have gone out before the pipeline was \
                 resumed, but it has only {length}; the data have changed"
            )));
        }
        self.carry = self.carry.max(out);
        self.current = Some((item, self.taken, out));
        self.taken += 1;
        self.more()
    }

    fn more(&mut self) -> Result<Option<Packed<Piece<T>>>> {
        let Some((item, number, out)) = self.current.take() else { return Ok(None) };
        let (whole, room) = (item.tokens(), self.capacity - self.open.used());
        let end = whole.min(out.saturating_add(room));
        if end == whole {
            let piece = match out {
                0 => Piece { part: item, offset: 0, whole },
                out => Piece::new(&item, out..whole),
            };
            self.open.push(piece, whole - out);
            self.ends.push(number);
        } else {
            self.open.push(Piece::new(&item, out..end), end - out);
            self.current = Some((item, number, end));
        }
        Ok((self.open.used() == self.capacity).then(|| self.give()))
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
        Ok((!self.ends.is_empty()).then(|| self.give()))
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
