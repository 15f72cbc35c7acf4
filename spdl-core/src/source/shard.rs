//! Shards: the positions of an epoch that one rank of a data-parallel job reads.

use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::source::layers::Layers;
use crate::source::ranges::Ranges;

/// The part of every epoch that one rank reads; see
/// [`PipelineBuilder::shard`](crate::PipelineBuilder::shard).
///
/// The order of an epoch does not depend on the number of ranks. Rank `r` of `w` reads positions
/// `r`, `r + w`, `r + 2w` … of that order. In each step, all ranks together read a contiguous range
/// of the order, for any `w`. Ranks need no communication.
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

/// A shard before validation.
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

/// Handling of the last positions of an epoch, if there are fewer positions left than ranks.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Remainder {
    /// No rank reads the last positions, so all ranks have the same number of samples. The default,
    /// because synchronous data-parallel training waits forever for a rank without samples. Each
    /// epoch omits up to `world - 1` samples. Shuffled epochs omit different samples.
    #[default]
    Drop,
    /// Samples from the start of the epoch, or of its remaining part after a change of the world
    /// size, are repeated until all ranks have the same number of samples. The indices of repeated
    /// samples are at least the length of the epoch, so repeated samples have other random numbers.
    Pad,
    /// Ranks read the positions that exist: some ranks have one sample more than others.
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
    /// The whole epoch: rank 0 of 1.
    pub const WHOLE: Shard = Shard { rank: 0, world: 1, remainder: Remainder::Drop };

    /// The shard of rank `rank`, counted from 0, of `world` ranks.
    ///
    /// # Errors
    /// `InvalidArgument` unless `rank < world`.
    pub fn new(rank: u64, world: u64) -> Result<Self> {
        if rank >= world {
            let message = format!(
                "rank {rank} is out of range for a world size of {world}; ranks count from 0"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        Ok(Shard { rank, world, remainder: Remainder::default() })
    }

    /// Sets the handling of the last positions. Default: [`Remainder::Drop`].
    #[must_use]
    pub fn remainder(mut self, remainder: Remainder) -> Self {
        self.remainder = remainder;
        self
    }

    /// The rank, counted from 0.
    pub fn rank(&self) -> u64 {
        self.rank
    }

    /// The number of ranks (world size).
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

/// A position of an epoch and the identity of the sample at this position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The [`index`](crate::SampleId::index) of the sample's identity.
    pub id: u64,
    /// The position in the order of the epoch. Differs from `id` only for samples that
    /// [`Remainder::Pad`] repeats.
    pub at: u64,
}

/// How the remaining positions of an epoch are divided among ranks. Local numbers count the
/// positions of one rank from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Division {
    pub(crate) shard: Shard,
    /// The number of positions in the epoch, if the division depends on it.
    pub(crate) len: Option<u64>,
    /// Positions that were done before the division.
    pub(crate) base: Layers,
    /// How many identities of repeated samples earlier divisions used.
    pub(crate) padded: u64,
    /// The number of divided positions, if known.
    pub(crate) divided: Option<u64>,
}

impl Division {
    pub(crate) fn new(shard: Shard, len: Option<u64>, base: Layers, padded: u64) -> Self {
        let needs_len = shard.world > 1 && shard.remainder != Remainder::Uneven;
        let len = len.filter(|_| needs_len);
        // Computed once: after many changes of world size, `base` has many ranges.
        let divided = len.map(|len| len.saturating_sub(base.count()));
        Division { shard, len, base, padded, divided }
    }

    /// The number of positions of this rank, if known.
    pub(crate) fn count(&self) -> Option<u64> {
        let divided = self.divided?;
        Some(match self.shard.remainder {
            Remainder::Drop => divided / self.shard.world,
            Remainder::Pad | Remainder::Uneven => divided.div_ceil(self.shard.world),
        })
    }

    /// How many identities of repeated samples this and earlier divisions use.
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

    /// The position with this local number.
    pub(crate) fn at(&self, local: u64) -> Option<Position> {
        if self.count().is_some_and(|count| local >= count) {
            return None;
        }
        let k = local.checked_mul(self.shard.world)?.checked_add(self.shard.rank)?;
        match (self.divided, self.len) {
            (Some(divided), Some(len)) if k >= divided => {
                let extra = k - divided;
                let at = self.base.nth(extra % divided)?;
                Some(Position { id: len.checked_add(self.padded)?.checked_add(extra)?, at })
            }
            _ => self.base.nth(k).map(|at| Position { id: at, at }),
        }
    }

    /// The local number of a sample, or `None` if the sample belongs to another rank or was done
    /// before.
    pub(crate) fn local(&self, id: u64) -> Option<u64> {
        let k = match (self.divided, self.len) {
            (Some(divided), Some(len)) if id >= len => {
                divided.checked_add(id.checked_sub(len)?.checked_sub(self.padded)?)?
            }
            _ => self.base.rank(id)?,
        };
        let local = match self.shard.world {
            1 => k,
            world => {
                let beyond = k.checked_sub(self.shard.rank)?;
                (beyond % world == 0).then_some(beyond / world)?
            }
        };
        self.count().is_none_or(|count| local < count).then_some(local)
    }
}

/// The remaining positions of one rank in one epoch, in ascending order of identities.
///
/// The argument of [`Source::open_at`](crate::Source::open_at). The positions may continue beyond
/// the end of the source. The epoch ends where the source ends.
#[derive(Clone, Debug)]
pub struct Positions {
    epoch: u64,
    division: Arc<Division>,
    /// Local numbers that are done.
    done: Arc<Ranges>,
    /// The next local number.
    next: u64,
    /// Whether local numbers equal positions and none is done.
    whole: bool,
}

impl Positions {
    pub(crate) fn new(epoch: u64, division: Arc<Division>, done: Arc<Ranges>) -> Self {
        let shard = &division.shard;
        let whole = shard.world == 1 && division.base.is_empty() && done.is_empty();
        Positions { epoch, division, done, next: 0, whole }
    }

    /// All positions of an epoch, without an end.
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

    /// The repeated (padding) sample among the positions, if any. It is always the last position.
    pub(crate) fn repeated(&self) -> Option<Position> {
        let last = self.division.at(self.division.count()?.checked_sub(1)?)?;
        (last.id != last.at && self.contains(last.id)).then_some(last)
    }

    /// The last position of a step: the position that the last rank reads while this rank reads `at`.
    /// `None` if `at` is no position of this rank.
    ///
    /// If a source of unknown length ends before this position, not all ranks have a sample in the step.
    ///
    /// ```
    /// use spdl_core::source::Positions;
    /// // A single rank.
    /// assert_eq!(Positions::all(0).last_of_step(7), Some(7));
    /// ```
    pub fn last_of_step(&self, at: u64) -> Option<u64> {
        let (local, world) = (self.division.local(at)?, self.division.shard.world);
        self.division.base.nth(local.checked_mul(world)?.checked_add(world - 1)?)
    }

    /// Whether the sample with this [`index`](crate::SampleId::index) is among the remaining
    /// positions.
    pub fn contains(&self, id: u64) -> bool {
        self.division
            .local(id)
            .is_some_and(|local| local >= self.next && !self.done.contains(local))
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
        let local = if self.done.is_empty() { self.next } else { self.done.next_absent(self.next) };
        let position = self.division.at(local)?;
        self.next = local.checked_add(1)?;
        Some(position)
    }
}

/// How each epoch of a run is divided.
#[derive(Debug)]
pub(crate) struct Divisions {
    pub(crate) shard: Shard,
    pub(crate) len: Option<u64>,
    /// The progress of an earlier run.
    pub(crate) resumed: Option<ResumePoint>,
}

/// An epoch that an earlier run has started.
#[derive(Debug)]
pub(crate) struct ResumePoint {
    pub(crate) epoch: u64,
    /// The positions that were done before the epoch was divided.
    pub(crate) base: Layers,
    pub(crate) padded: u64,
    /// The local numbers that are done.
    pub(crate) done: Ranges,
}

impl Divisions {
    pub(crate) fn resume_point(&self, epoch: u64) -> Option<&ResumePoint> {
        self.resumed.as_ref().filter(|point| point.epoch == epoch)
    }

    pub(crate) fn division(&self, epoch: u64) -> Division {
        match self.resume_point(epoch) {
            Some(point) => Division::new(self.shard, self.len, point.base.clone(), point.padded),
            None => Division::new(self.shard, self.len, Layers::default(), 0),
        }
    }

    pub(crate) fn positions(&self, epoch: u64) -> Positions {
        let done = self.resume_point(epoch).map(|point| point.done.clone()).unwrap_or_default();
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
        fn ranks_share_the_remaining_positions_of_an_epoch(
            len in 0..60u64, world in 1..9u64, kind in prop::sample::select(&KINDS[..]),
            taken in prop::collection::vec(0..60u64, 0..30),
        ) {
            let taken: Ranges = taken.iter().filter(|&&p| p < len).map(|&p| p..p + 1).collect();
            let rest: Vec<u64> = (0..len).filter(|&p| !taken.contains(p)).collect();
            let parts: Vec<_> = (0..world)
                .map(|rank| positions(division(rank, world, kind, len, &taken), len))
                .collect();
            // In each step, all ranks together read the next positions.
            let mut all: Vec<Position> = Vec::new();
            for step in 0..parts.iter().map(Vec::len).max().unwrap_or(0) {
                all.extend(parts.iter().filter_map(|part| part.get(step)));
            }
            let kept = match kind {
                Remainder::Drop => rest.len() - rest.len() % world as usize,
                _ => rest.len(),
            };
            let (local, extra) = all.split_at(kept.min(all.len()));
            prop_assert!(local.iter().map(|p| p.id).eq(rest[..kept].iter().copied()));
            prop_assert!(local.iter().all(|p| p.id == p.at));
            for (i, position) in extra.iter().enumerate() {
                prop_assert_eq!(position.id, len + i as u64);
                prop_assert_eq!(position.at, rest[i % rest.len()]);
            }
            if kind != Remainder::Uneven {
                prop_assert!(parts.iter().all(|part| part.len() == parts[0].len()));
            }
            for (rank, part) in (0..world).zip(&parts) {
                let division = division(rank, world, kind, len, &taken);
                let own = Positions::new(0, Arc::new(division), Arc::default());
                for (step, position) in (0..).zip(part) {
                    let last = rest.get((step * world + world - 1) as usize);
                    // A padding sample is at a position of an earlier step.
                    if let (Some(&last), true) = (last, position.id == position.at) {
                        prop_assert_eq!(own.last_of_step(position.at), Some(last));
                    }
                }
                let others = (0..len).filter(|at| !part.iter().any(|position| position.at == *at));
                prop_assert!(others.into_iter().all(|at| own.last_of_step(at).is_none()));
            }
            if kind == Remainder::Pad {
                prop_assert_eq!(all.len(), rest.len().next_multiple_of(world as usize));
            }
        }

        #[test]
        fn local_numbers_and_identities_are_inverse(
            len in 0..40u64, world in 2..9u64, kind in prop::sample::select(&KINDS[..2]),
            taken in prop::collection::vec(0..40u64, 0..20), padded in 0..5u64,
        ) {
            let taken: Ranges = taken.iter().filter(|&&p| p < len).map(|&p| p..p + 1).collect();
            let mut owners = BTreeMap::new();
            for rank in 0..world {
                let division = Division { padded, ..division(rank, world, kind, len, &taken) };
                for local in 0..50 {
                    let Some(position) = division.at(local) else { break };
                    prop_assert_eq!(division.local(position.id), Some(local));
                    prop_assert!(owners.insert(position.id, rank).is_none());
                }
            }
            for rank in 0..world {
                let division = Division { padded, ..division(rank, world, kind, len, &taken) };
                for id in 0..70 {
                    let local = division.local(id).is_some();
                    prop_assert_eq!(local, owners.get(&id) == Some(&rank), "{} of rank {}", id, rank);
                }
            }
        }

        #[test]
        fn done_positions_are_left_out(
            done in prop::collection::vec(0..30u64, 0..20), world in 1..5u64,
        ) {
            let done: Ranges = done.iter().map(|&local| local..local + 1).collect();
            let shard = Shard::new(world - 1, world).unwrap().remainder(Remainder::Uneven);
            let division = Division::new(shard, None, Layers::default(), 0);
            let positions = Positions::new(0, Arc::new(division), Arc::new(done.clone()));
            let left: Vec<u64> = positions.clone().take(20).map(|p| p.id).collect();
            let all = (0..).filter(|&local| !done.contains(local)).map(|local| world - 1 + local * world);
            prop_assert!(all.take(20).eq(left.iter().copied()));
            for id in 0..left[19] {
                prop_assert_eq!(positions.contains(id), left.contains(&id));
            }
        }
    }

    #[test]
    fn a_rank_out_of_range_is_refused() {
        for (rank, world) in [(0, 0), (1, 1), (8, 8)] {
            let error = Shard::new(rank, world).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        }
    }
}
