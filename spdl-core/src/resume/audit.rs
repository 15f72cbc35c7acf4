//! What ranks have done of an epoch, compared with what there is to do.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::resume::state::{MOST_RANKS, State, invalid};
use crate::source::layers::Layers;
use crate::source::range_run::RangeRun;
use crate::source::ranges::Ranges;
use crate::source::shard::{Division, Remainder, Shard};

/// States of different divisions are compared position by position, up to so many.
const MOST_COMPARED: u64 = 1 << 22;

impl State {
    /// Compares what ranks have done of an epoch with what there is to do: what is missing, and
    /// what several of them have done. The states may be of any ranks, and of any divisions; the
    /// epoch is the first in which one of them is. A rank that is in a later one has done all its
    /// part.
    ///
    /// What was done before the epoch was last divided counts once, whichever state knows of it.
    /// It takes as long as ranks have begun and ended, not as many positions as there are, where all
    /// states are of one division.
    ///
    /// ```
    /// use spdl_core::{DatasetSource, PipelineBuilder, Result, Shard, State};
    /// let after = |rank, steps| -> Result<State> {
    ///     let numbers = DatasetSource::new((0..7).collect::<Vec<u32>>());
    ///     let builder = PipelineBuilder::new(numbers).shard(Shard::new(rank, 2)?);
    ///     let mut pipeline = builder.deterministic().build()?;
    ///     assert_eq!(pipeline.by_ref().take(steps).count(), steps);
    ///     pipeline.state()
    /// };
    /// let audit = State::audit([after(0, 3)?, after(1, 2)?])?;
    /// assert!(audit.missing().eq([5..6]) && audit.repeated().next().is_none());
    /// // Two ranks leave the last of seven to nobody.
    /// assert!(audit.remainder().eq([6..7]));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` where there is no state, or nobody knows what the part is of a rank that
    /// has ended the epoch; `LimitExceeded` where states of different divisions have done more than
    /// four million positions.
    pub fn audit(states: impl IntoIterator<Item = State>) -> Result<OrderAudit> {
        let mut states: Vec<State> = states.into_iter().collect();
        let Some(epoch) = states.iter().map(|state| state.epoch).min() else {
            return Err(invalid("no states to compare"));
        };
        let is_over = |state: &State| {
            // What was filtered out in advance is nothing that anybody has seen.
            state.steps_in_epoch == 0
                && state.in_epoch.delivered == 0
                && state.base.is_empty()
                && (state.steps > 0 || state.in_all.total() > state.in_epoch.total())
        };
        let between_epochs = states.iter().all(|state| state.epoch == epoch && is_over(state));
        // Those in the first epoch know how that was divided.
        let known: Vec<State> = states.iter().filter(|it| it.epoch == epoch).cloned().collect();
        let mut ahead = Vec::new();
        for state in states.iter_mut().filter(|state| state.epoch != epoch) {
            let shard = state.shard.unwrap_or_default();
            let alike = |other: &&State| {
                let other = other.shard.unwrap_or_default();
                (other.world, other.remainder) == (shard.world, shard.remainder)
            };
            let Some(known) = known.iter().find(alike) else {
                let message = format!(
                    "{shard} is in epoch {}, and no state of epoch {epoch} tells how that was \
                     divided among {} ranks",
                    state.epoch, shard.world
                );
                return Err(invalid(message));
            };
            ahead.push((shard.rank, state.epoch));
            *state = state.having_ended(known)?;
        }
        let of_rank_0 = |state: &State| {
            let shard = Shard { rank: 0, ..state.shard.unwrap_or_default() };
            Division { shard, ..state.division() }
        };
        let first = &states[0];
        let is_same = states.iter().all(|state| of_rank_0(state) == of_rank_0(first));
        let parts = if is_same {
            DivisionCoverage::of_one(&states)?
        } else {
            DivisionCoverage::of_several(&states)?
        };
        let len = states.iter().filter_map(|state| state.len).max();
        // Where nobody knows how many there are, what is missing lies in front of something done.
        let end = len.unwrap_or_else(|| parts.done.end());
        let Shard { world, remainder, .. } = first.shard.unwrap_or_default();
        let divided = end.saturating_sub(parts.base.count());
        let assigned = match (remainder, len) {
            (Remainder::Drop, Some(_)) if is_same => divided - divided % world,
            _ => divided,
        };
        let assigned = if assigned < divided { parts.base.nth(assigned) } else { None };
        Ok(OrderAudit { epoch, len, parts, end, assigned, ahead, between_epochs })
    }
}

/// What of an epoch is done, what is missing, and what was done more than once: made by
/// [`State::audit`].
///
/// Displayed, it says so in ranges of positions, and in [runs](RangeRun) of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderAudit {
    epoch: u64,
    len: Option<u64>,
    parts: DivisionCoverage,
    /// Where the epoch ends, as far as is known.
    end: u64,
    /// From where on no rank takes what is left.
    assigned: Option<u64>,
    ahead: Vec<(u64, u64)>,
    between_epochs: bool,
}

impl OrderAudit {
    /// The epoch, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many positions the epoch has, where that is known.
    pub fn positions(&self) -> Option<u64> {
        self.len
    }

    /// How many positions are done.
    pub fn done(&self) -> u64 {
        self.parts.done.count()
    }

    /// The ranks that are beyond the epoch, each with the one it is in.
    pub fn ahead(&self) -> &[(u64, u64)] {
        &self.ahead
    }

    /// Whether all ranks have ended the epoch before, and not begun this one.
    pub fn is_between_epochs(&self) -> bool {
        self.between_epochs
    }

    fn left(&self, from: u64, end: u64) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
        let done = &self.parts.done;
        done.left(done.left_below(from)..done.left_below(end))
    }

    /// The positions that nobody has done, in ascending order. There may be very many ranges, where
    /// ranks are far apart: each is found when it is asked for.
    pub fn missing(&self) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
        self.left(0, self.assigned.unwrap_or(self.end))
    }

    /// How many positions those are.
    pub fn missing_count(&self) -> u64 {
        self.parts.done.left_below(self.assigned.unwrap_or(self.end))
    }

    /// The positions that more than one state has done, in ascending order.
    pub fn repeated(&self) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
        self.parts.repeated.iter().flat_map(|numbers| self.parts.base.left(numbers))
    }

    /// How many positions those are.
    pub fn repeated_count(&self) -> u64 {
        self.parts.repeated.count()
    }

    /// The last positions of the epoch that no rank takes, as there are not as many as ranks
    /// ([`Remainder::Drop`]). They are not missing.
    pub fn remainder(&self) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
        self.left(self.assigned.unwrap_or(self.end), self.end)
    }

    /// Whether every position that is some rank's was done once.
    pub fn is_complete(&self) -> bool {
        self.missing_count() == 0 && self.repeated_count() == 0
    }
}

/// So many runs of ranges are written out,
const MOST_RUNS: usize = 20;
/// and so many ranges are looked at for them: ranks that are far apart leave very many.
const MOST_RANGES: usize = 1 << 20;

/// Writes ranges of positions, of which there are `positions` in all.
fn write_ranges(
    f: &mut fmt::Formatter<'_>,
    ranges: impl Iterator<Item = std::ops::Range<u64>>,
    positions: u64,
) -> fmt::Result {
    let mut written = 0;
    for (at, run) in RangeRun::of(ranges.take(MOST_RANGES)).take(MOST_RUNS).enumerate() {
        f.write_str(if at == 0 { "" } else { ", " })?;
        write!(f, "{run}")?;
        written += run.positions();
    }
    if written < positions { f.write_str(" …") } else { Ok(()) }
}

impl fmt::Display for OrderAudit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let epoch = self.epoch;
        if self.between_epochs {
            match epoch.checked_sub(1) {
                Some(before) => write!(f, "epoch {before} has ended; nothing of epoch {epoch}")?,
                None => write!(f, "nothing of epoch {epoch}")?,
            }
            f.write_str(" was delivered yet")?;
            return self.len.map_or(Ok(()), |len| write!(f, ", which has {len} positions"));
        }
        write!(f, "epoch {epoch}: {}", self.done())?;
        if let Some(len) = self.len {
            write!(f, " of {len}")?;
        }
        f.write_str(" positions done")?;
        match self.missing_count() {
            0 => f.write_str(", none missing")?,
            count => {
                write!(f, ", {count} missing: ")?;
                write_ranges(f, self.missing(), count)?;
            }
        }
        match self.repeated_count() {
            0 => f.write_str(", none repeated")?,
            count => {
                write!(f, ", {count} repeated: ")?;
                write_ranges(f, self.repeated(), count)?;
            }
        }
        if self.remainder().next().is_some() {
            f.write_str(", left to no rank: ")?;
            let count = self.parts.done.left_below(self.end) - self.missing_count();
            write_ranges(f, self.remainder(), count)?;
        }
        for (rank, epoch) in &self.ahead {
            write!(f, "; rank {rank} is in epoch {epoch} already")?;
        }
        Ok(())
    }
}

/// What several states say of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DivisionCoverage {
    /// What was done when it was divided.
    base: Layers,
    done: Layers,
    /// What was done more than once, by the number among what was divided.
    repeated: Layers,
}

impl DivisionCoverage {
    /// Of states of one division.
    fn of_one(states: &[State]) -> Result<DivisionCoverage> {
        let first = &states[0];
        let world = first.shard.unwrap_or_default().world;
        let has_done = states.iter().any(|state| !state.done.is_empty());
        if has_done && world > MOST_RANKS {
            let message = format!("{world} ranks; at most {MOST_RANKS} can be compared");
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        // Ranks of which there is no state have done nothing that is known.
        let world = if has_done { world } else { 1 };
        let mut done = vec![Ranges::default(); world as usize];
        let mut repeated = done.clone();
        for state in states.iter().filter(|state| !state.done.is_empty()) {
            let rank = state.shard.unwrap_or_default().rank as usize;
            let own = state.own_done();
            repeated[rank] = repeated[rank].union(&done[rank].intersection(&own));
            done[rank] = done[rank].union(&own);
        }
        let base = first.base.clone();
        let (mut all, mut twice) = (base.clone(), Layers::default());
        all.add_ranks(done)?;
        twice.add_ranks(repeated)?;
        Ok(DivisionCoverage { base, done: all, repeated: twice })
    }

    /// Of states of different divisions: position by position.
    fn of_several(states: &[State]) -> Result<DivisionCoverage> {
        let (mut done, mut repeated) = (Ranges::default(), Ranges::default());
        let mut left = MOST_COMPARED;
        let mut count = |more: u64| {
            left = left.checked_sub(more).ok_or_else(|| {
                let message = format!(
                    "states of different divisions have done more than {MOST_COMPARED} positions, \
                     which are too many to compare; combine the ranks of each division first"
                );
                Error::new(ErrorKind::LimitExceeded, message)
            })?;
            Ok::<(), Error>(())
        };
        for state in states {
            let (division, own) = (state.division(), state.own_done());
            count(own.count())?;
            let ids = own.iter().flatten().map_while(|own| division.at(own));
            let ids: Ranges = ids.map(|place| place.at..place.at + 1).collect();
            repeated = repeated.union(&done.intersection(&ids));
            done = done.union(&ids);
        }
        let mut bases: Vec<&Layers> = Vec::new();
        for state in states {
            if !bases.contains(&&state.base) {
                bases.push(&state.base);
            }
        }
        for base in bases {
            let mut ranges = Vec::new();
            for range in base.iter() {
                count(1)?;
                ranges.push(range);
            }
            done = done.union(&ranges.into_iter().collect());
        }
        Ok(DivisionCoverage {
            base: Layers::default(),
            done: done.into(),
            repeated: repeated.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::resume::state::tests::rank;

    #[test]
    fn states_of_different_divisions_are_not_compared_for_ever() {
        let state = State::at_start(0, 0, Shard::default(), Some(1 << 40), BTreeMap::new());
        let part = |world| rank(0, world, Remainder::Drop, &state, &[(0, 1 << 30)]);
        let error = State::audit([part(2), part(3)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    }

    #[test]
    fn an_audit_of_no_rank_of_very_many_takes_no_memory_for_them() {
        let state = State::at_start(0, 0, Shard::default(), Some(10), BTreeMap::new());
        let part = |done: &[_]| rank(1 << 40, 1 << 41, Remainder::Drop, &state, done);
        assert_eq!(State::audit([part(&[])]).unwrap().done(), 0);
        let many = State { done: std::iter::once(0..1).collect(), ..part(&[]) };
        assert_eq!(State::audit([many.clone()]).unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert_eq!(many.of_equal_ranks().unwrap_err().kind(), ErrorKind::LimitExceeded);
    }
}
