//! Which part of an epoch one rank of a data-parallel run takes, and what is left of it.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::source::layers::Layers;
use crate::source::ranges::Ranges;

/// One rank's part of every epoch, for [`PipelineBuilder::shard`](crate::PipelineBuilder::shard).
///
/// The order of an epoch is the same for any number of ranks. Rank `r` of `w` takes the positions
/// `r`, `r + w`, `r + 2w` … of it, so that what all ranks take in one step is a contiguous piece of
/// that order, whatever `w` is. No rank needs to know of the others.
///
/// ```
/// use spdl_core::{DatasetSource, PipelineBuilder, Shard};
/// use spdl_core::source::Remainder;
/// let part = |rank| -> spdl_core::Result<Vec<i32>> {
///     let numbers = DatasetSource::new((0..8).collect::<Vec<i32>>());
///     let shard = Shard::new(rank, 3)?.remainder(Remainder::Uneven);
///     PipelineBuilder::new(numbers).shard(shard).build()?.collect()
/// };
/// assert_eq!([part(0)?, part(1)?, part(2)?], [vec![0, 3, 6], vec![1, 4, 7], vec![2, 5]]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "ShardData"))]
pub struct Shard {
    pub(crate) rank: u64,
    pub(crate) world: u64,
    pub(crate) remainder: Remainder,
}

/// A shard as it is read, before it is known to make sense.
#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct ShardData {
    rank: u64,
    world: u64,
    remainder: Remainder,
}

#[cfg(feature = "serde")]
impl TryFrom<ShardData> for Shard {
    type Error = Error;

    fn try_from(data: ShardData) -> Result<Self> {
        Ok(Shard::new(data.rank, data.world)?.remainder(data.remainder))
    }
}

/// What becomes of the last positions of an epoch, where there are not as many as ranks.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Remainder {
    /// No rank takes them: all ranks have equally many samples. The default, since training in
    /// lockstep waits for ever for a rank that has run out. Up to `world - 1` samples of each epoch
    /// are not seen; with a shuffled order they are others each time.
    #[default]
    Drop,
    /// Samples from the epoch's beginning come again, until all ranks have equally many. They have
    /// identities of their own, from the data set's length on, and so other random numbers.
    Pad,
    /// Ranks take what there is: some have one sample more than others.
    Uneven,
}

impl fmt::Display for Remainder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Remainder::Drop => "drop",
            Remainder::Pad => "pad",
            Remainder::Uneven => "uneven",
        })
    }
}

impl Shard {
    /// All of it: rank 0 of 1.
    pub const WHOLE: Shard = Shard { rank: 0, world: 1, remainder: Remainder::Drop };

    /// The part of rank `rank`, counted from 0, of `world` ranks.
    ///
    /// # Errors
    /// `InvalidArgument` where there is no such rank.
    pub fn new(rank: u64, world: u64) -> Result<Self> {
        if rank >= world {
            let message = format!("there is no rank {rank} among {world}; ranks count from 0");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(Shard { rank, world, remainder: Remainder::default() })
    }

    /// What becomes of the positions that cannot be divided evenly. Default: [`Remainder::Drop`].
    #[must_use]
    pub fn remainder(mut self, remainder: Remainder) -> Self {
        self.remainder = remainder;
        self
    }

    /// Which rank, counted from 0.
    pub fn rank(&self) -> u64 {
        self.rank
    }

    /// How many ranks there are.
    pub fn world(&self) -> u64 {
        self.world
    }
}

impl Default for Shard {
    fn default() -> Self {
        Shard::WHOLE
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.world)
    }
}

/// A place of an epoch, and who comes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The sample's [`index`](crate::SampleId::index).
    pub id: u64,
    /// The position in the epoch's order whose item it is. Other than `id` only for the samples
    /// that [`Remainder::Pad`] repeats.
    pub at: u64,
}

/// How what is left of an epoch is divided among ranks. Own numbers count the positions of one rank
/// from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    pub(crate) shard: Shard,
    /// How many positions the epoch has, where the division depends on it.
    pub(crate) len: Option<u64>,
    /// What was done already when the rest was divided.
    pub(crate) base: Layers,
    /// How many identities from `len` on were given before.
    pub(crate) padded: u64,
    /// How many positions are divided, where that is known.
    pub(crate) divided: Option<u64>,
}

impl Division {
    pub(crate) fn new(shard: Shard, len: Option<u64>, base: Layers, padded: u64) -> Self {
        let needs_len = shard.world > 1 && shard.remainder != Remainder::Uneven;
        let len = len.filter(|_| needs_len);
        // Counted once: an epoch that changed its ranks often has many ranges behind it.
        let divided = len.map(|len| len.saturating_sub(base.count()));
        Division { shard, len, base, padded, divided }
    }

    /// How many of them are this rank's, where that is known.
    pub(crate) fn count(&self) -> Option<u64> {
        let divided = self.divided?;
        Some(match self.shard.remainder {
            Remainder::Drop => divided / self.shard.world,
            Remainder::Pad | Remainder::Uneven => divided.div_ceil(self.shard.world),
        })
    }

    /// How many identities from `len` on this division gives, or earlier ones gave.
    pub(crate) fn padded(&self) -> u64 {
        let extra = match (self.divided, self.shard.remainder) {
            (Some(divided), Remainder::Pad) => {
                let positions = divided.div_ceil(self.shard.world).saturating_mul(self.shard.world);
                positions - divided
            }
            _ => 0,
        };
        self.padded.saturating_add(extra)
    }

    /// The position with this own number.
    pub(crate) fn at(&self, own: u64) -> Option<Position> {
        if self.count().is_some_and(|count| own >= count) {
            return None;
        }
        let k = own.checked_mul(self.shard.world)?.checked_add(self.shard.rank)?;
        match (self.divided, self.len) {
            (Some(divided), Some(len)) if k >= divided => {
                let extra = k - divided;
                let at = self.base.nth(extra % divided)?;
                Some(Position { id: len.checked_add(self.padded)?.checked_add(extra)?, at })
            }
            _ => self.base.nth(k).map(|at| Position { id: at, at }),
        }
    }

    /// The own number of a sample; `None` where it is not this rank's, or was done before.
    pub(crate) fn own(&self, id: u64) -> Option<u64> {
        let k = match (self.divided, self.len) {
            (Some(divided), Some(len)) if id >= len => {
                divided.checked_add(id.checked_sub(len)?.checked_sub(self.padded)?)?
            }
            _ => self.base.rank(id)?,
        };
        let own = match self.shard.world {
            1 => k,
            world => {
                let beyond = k.checked_sub(self.shard.rank)?;
                (beyond % world == 0).then_some(beyond / world)?
            }
        };
        self.count().is_none_or(|count| own < count).then_some(own)
    }
}

/// The positions of one epoch that a pipeline has yet to go through, in ascending order of their
/// identities.
///
/// It is given to [`Source::open_at`](crate::Source::open_at). It may go on beyond the end of the
/// source: where that ends is for the source to say.
#[derive(Clone, Debug)]
pub struct Positions {
    epoch: u64,
    division: Arc<Division>,
    /// Own numbers that are done.
    done: Arc<Ranges>,
    /// The next own number.
    next: u64,
    /// Whether own numbers are positions, and none is done.
    whole: bool,
}

impl Positions {
    pub(crate) fn new(epoch: u64, division: Arc<Division>, done: Arc<Ranges>) -> Self {
        let shard = &division.shard;
        let whole = shard.world == 1 && division.base.is_empty() && done.is_empty();
        Positions { epoch, division, done, next: 0, whole }
    }

    /// All positions of an epoch.
    ///
    /// ```
    /// use spdl_core::source::Positions;
    /// assert!(Positions::all(3).take(4).map(|position| position.at).eq(0..4));
    /// ```
    pub fn all(epoch: u64) -> Self {
        let division = Division::new(Shard::WHOLE, None, Layers::default(), 0);
        Positions::new(epoch, Arc::new(division), Arc::default())
    }

    /// The epoch, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The sample among them that is repeated: the last one, if any.
    pub(crate) fn repeated(&self) -> Option<Position> {
        let last = self.division.at(self.division.count()?.checked_sub(1)?)?;
        (last.id != last.at && self.contains(last.id)).then_some(last)
    }

    /// Whether the sample with this [`index`](crate::SampleId::index) is among those to come.
    pub fn contains(&self, id: u64) -> bool {
        self.division.own(id).is_some_and(|own| own >= self.next && !self.done.contains(own))
    }
}

impl Iterator for Positions {
    type Item = Position;

    #[inline]
    fn next(&mut self) -> Option<Position> {
        if self.whole {
            let at = self.next;
            self.next += 1;
            return Some(Position { id: at, at });
        }
        self.next_of_part()
    }
}

impl Positions {
    fn next_of_part(&mut self) -> Option<Position> {
        let own = if self.done.is_empty() { self.next } else { self.done.next_absent(self.next) };
        let position = self.division.at(own)?;
        self.next = own.checked_add(1)?;
        Some(position)
    }
}

/// How every epoch of a run is divided.
#[derive(Debug)]
pub(crate) struct Divisions {
    pub(crate) shard: Shard,
    pub(crate) len: Option<u64>,
    /// Where an earlier run left off.
    pub(crate) begun: Option<Begun>,
}

/// An epoch that another run has begun.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) epoch: u64,
    /// What was done of it when it was divided among the ranks.
    pub(crate) base: Layers,
    pub(crate) padded: u64,
    /// The own numbers that are done.
    pub(crate) done: Ranges,
}

impl Divisions {
    pub(crate) fn begun(&self, epoch: u64) -> Option<&Begun> {
        self.begun.as_ref().filter(|begun| begun.epoch == epoch)
    }

    pub(crate) fn division(&self, epoch: u64) -> Division {
        match self.begun(epoch) {
            Some(begun) => Division::new(self.shard, self.len, begun.base.clone(), begun.padded),
            None => Division::new(self.shard, self.len, Layers::default(), 0),
        }
    }

    pub(crate) fn positions(&self, epoch: u64) -> Positions {
        let done = self.begun(epoch).map(|begun| begun.done.clone()).unwrap_or_default();
        Positions::new(epoch, Arc::new(self.division(epoch)), Arc::new(done))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const KINDS: [Remainder; 3] = [Remainder::Drop, Remainder::Pad, Remainder::Uneven];

    fn division(rank: u64, world: u64, kind: Remainder, len: u64, base: &Ranges) -> Division {
        let shard = Shard::new(rank, world).unwrap().remainder(kind);
        Division::new(shard, Some(len), base.clone().into(), 0)
    }

    fn positions(division: Division, len: u64) -> Vec<Position> {
        let positions = Positions::new(0, Arc::new(division), Arc::default());
        positions.take_while(|position| position.at < len).collect()
    }

    proptest! {
        // feature: Q01
        #[test]
        fn ranks_share_the_rest_of_an_epoch(
            len in 0..60u64, world in 1..9u64, kind in prop::sample::select(&KINDS[..]),
            taken in prop::collection::vec(0..60u64, 0..30),
        ) {
            let taken: Ranges = taken.iter().filter(|&&p| p < len).map(|&p| p..p + 1).collect();
            let rest: Vec<u64> = (0..len).filter(|&p| !taken.contains(p)).collect();
            let parts: Vec<_> = (0..world)
                .map(|rank| positions(division(rank, world, kind, len, &taken), len))
                .collect();
            // Step by step, all ranks together go through the rest in its order.
            let mut all: Vec<Position> = Vec::new();
            for step in 0..parts.iter().map(Vec::len).max().unwrap_or(0) {
                all.extend(parts.iter().filter_map(|part| part.get(step)));
            }
            let kept = match kind {
                Remainder::Drop => rest.len() - rest.len() % world as usize,
                _ => rest.len(),
            };
            let (own, extra) = all.split_at(kept.min(all.len()));
            prop_assert!(own.iter().map(|p| p.id).eq(rest[..kept].iter().copied()));
            prop_assert!(own.iter().all(|p| p.id == p.at));
            for (i, position) in extra.iter().enumerate() {
                prop_assert_eq!(position.id, len + i as u64);
                prop_assert_eq!(position.at, rest[i % rest.len()]);
            }
            if kind != Remainder::Uneven {
                prop_assert!(parts.iter().all(|part| part.len() == parts[0].len()));
            }
            if kind == Remainder::Pad {
                prop_assert_eq!(all.len(), rest.len().next_multiple_of(world as usize));
            }
        }

        #[test]
        fn own_numbers_go_both_ways(
            len in 0..40u64, world in 2..9u64, kind in prop::sample::select(&KINDS[..2]),
            taken in prop::collection::vec(0..40u64, 0..20), padded in 0..5u64,
        ) {
            let taken: Ranges = taken.iter().filter(|&&p| p < len).map(|&p| p..p + 1).collect();
            let mut owners = BTreeMap::new();
            for rank in 0..world {
                let division = Division { padded, ..division(rank, world, kind, len, &taken) };
                for own in 0..50 {
                    let Some(position) = division.at(own) else { break };
                    prop_assert_eq!(division.own(position.id), Some(own));
                    prop_assert!(owners.insert(position.id, rank).is_none());
                }
            }
            for rank in 0..world {
                let division = Division { padded, ..division(rank, world, kind, len, &taken) };
                for id in 0..70 {
                    let own = division.own(id).is_some();
                    prop_assert_eq!(own, owners.get(&id) == Some(&rank), "{} of rank {}", id, rank);
                }
            }
        }

        #[test]
        fn what_is_done_is_left_out(
            done in prop::collection::vec(0..30u64, 0..20), world in 1..5u64,
        ) {
            let done: Ranges = done.iter().map(|&own| own..own + 1).collect();
            let shard = Shard::new(world - 1, world).unwrap().remainder(Remainder::Uneven);
            let division = Division::new(shard, None, Layers::default(), 0);
            let positions = Positions::new(0, Arc::new(division), Arc::new(done.clone()));
            let left: Vec<u64> = positions.clone().take(20).map(|p| p.id).collect();
            let all = (0..).filter(|&own| !done.contains(own)).map(|own| world - 1 + own * world);
            prop_assert!(all.take(20).eq(left.iter().copied()));
            for id in 0..left[19] {
                prop_assert_eq!(positions.contains(id), left.contains(&id));
            }
        }
    }

    #[test]
    fn a_rank_that_is_not_there_is_refused() {
        for (rank, world) in [(0, 0), (1, 1), (8, 8)] {
            let error = Shard::new(rank, world).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }
}
