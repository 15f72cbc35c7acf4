//! The audit of an epoch: lists the positions that a set of states covers and those that are
//! missing.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};
use crate::resume::state::{MOST_RANKS, State, invalid};
use crate::source::layers::Layers;
use crate::source::range_run::RangeRun;
use crate::source::ranges::Ranges;
use crate::source::shard::{Division, Remainder, Shard};

/// The maximum number of positions, and of ranges done before the divisions, that are compared if
/// the states have different divisions.
const MOST_COMPARED: u64 = 1 << 22;

impl State {
    /// Checks which positions of an epoch these states cover.
    ///
    /// The audit reports positions that are missing and positions that several states have done.
    /// The states may come from any ranks and from different divisions of the epoch among ranks.
    /// The audited epoch is the earliest epoch of the states. A rank in a later epoch counts as
    /// having done all its positions. Positions that were done before the epoch was last divided
    /// are counted once.
    ///
    /// If all states have the same division, the running time depends on the numbers of ranks and
    /// of ranges in the states, not on the number of positions.
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
    /// // With 2 ranks and 7 positions, no rank reads the last position.
    /// assert!(audit.remainder().eq([6..7]));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if there is no state, or the positions of a rank in a later epoch cannot
    /// be determined. `LimitExceeded` if states of different divisions have done more than 2^22
    /// positions, or if there are more than 2^20 ranks.
    pub fn audit(states: impl IntoIterator<Item = State>) -> Result<OrderAudit> {
        let mut states: Vec<State> = states.into_iter().collect();
        let Some(epoch) = states.iter().map(|state| state.epoch).min() else {
            return Err(invalid("no states to audit"));
        };
        let is_over = |state: &State| {
            // Samples that were filtered out early are not visible to the consumer.
            state.steps_in_epoch == 0
                && state.in_epoch.delivered == 0
                && state.base.is_empty()
                && (state.steps > 0 || state.in_all.total() > state.in_epoch.total())
        };
        let between_epochs = states.iter().all(|state| state.epoch == epoch && is_over(state));
        // Only states of the earliest epoch contain its division.
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
                    "{shard} is in epoch {}, and no state of epoch {epoch} contains the division \
                     among {} ranks",
                    state.epoch, shard.world
                );
                return Err(invalid(message));
            };
            ahead.push((shard.rank, state.epoch));
            *state = state.at_end_of_epoch(known)?;
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
        // If the length is unknown, only positions before the last done position can be missing.
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

/// The done, missing and repeated positions of an epoch, from [`State::audit`].
///
/// `Display` writes one line with ranges of positions and [runs](RangeRun) of ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderAudit {
    epoch: u64,
    len: Option<u64>,
    parts: DivisionCoverage,
    /// The end of the epoch, or of the done positions if the length is unknown.
    end: u64,
    /// The first position that no rank reads, if any.
    assigned: Option<u64>,
    ahead: Vec<(u64, u64)>,
    between_epochs: bool,
}

impl OrderAudit {
    /// The audited epoch, counted from 0.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The number of positions in the epoch, or `None` if unknown.
    pub fn positions(&self) -> Option<u64> {
        self.len
    }

    /// The number of positions that are done.
    pub fn done(&self) -> u64 {
        self.parts.done.count()
    }

    /// The ranks that are already in a later epoch, as pairs of rank and epoch.
    pub fn ahead(&self) -> &[(u64, u64)] {
        &self.ahead
    }

    /// Whether all ranks have ended the previous epoch and none has delivered an item of this one.
    pub fn is_between_epochs(&self) -> bool {
        self.between_epochs
    }

    fn left(&self, from: u64, end: u64) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
        let done = &self.parts.done;
        done.left(done.left_below(from)..done.left_below(end))
    }

    /// The positions that no state has done, as ranges in ascending order, without the
    /// [`remainder`](OrderAudit::remainder). If the length of the epoch is unknown, only positions
    /// before the last done position are included.
    ///
    /// The iterator computes each range when it is requested. There may be very many ranges if the
    /// ranks are at different steps.
    pub fn missing(&self) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
        self.left(0, self.assigned.unwrap_or(self.end))
    }

    /// The number of [`missing`](OrderAudit::missing) positions.
    pub fn missing_count(&self) -> u64 {
        self.parts.done.left_below(self.assigned.unwrap_or(self.end))
    }

    /// The positions that more than one state has done, as ranges in ascending order.
    pub fn repeated(&self) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
        self.parts.repeated.iter().flat_map(|numbers| self.parts.base.left(numbers))
    }

    /// The number of [`repeated`](OrderAudit::repeated) positions.
    pub fn repeated_count(&self) -> u64 {
        self.parts.repeated.count()
    }

    /// The last positions of the epoch, which no rank reads because there are fewer of them than
    /// ranks ([`Remainder::Drop`]). These positions do not count as missing. If the states have
    /// different divisions, there are none, and such positions count as missing.
    pub fn remainder(&self) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
        self.left(self.assigned.unwrap_or(self.end), self.end)
    }

    /// Whether no position is [missing](OrderAudit::missing) or [repeated](OrderAudit::repeated).
    pub fn is_complete(&self) -> bool {
        self.missing_count() == 0 && self.repeated_count() == 0
    }
}

/// The maximum number of [`RangeRun`]s that `Display` writes per category.
const MOST_RUNS: usize = 20;
/// The maximum number of ranges that `Display` reads per category. If ranks are at different steps,
/// there may be one range per position.
const MOST_RANGES: usize = 1 << 20;

/// Writes ranges of positions; `positions` is their total number.
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
                Some(before) => write!(f, "epoch {before} has ended; epoch {epoch}")?,
                None => write!(f, "epoch {epoch}")?,
            }
            self.len.map_or(Ok(()), |len| write!(f, " ({len} positions)"))?;
            return f.write_str(" has not started");
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
            f.write_str(", assigned to no rank: ")?;
            let count = self.parts.done.left_below(self.end) - self.missing_count();
            write_ranges(f, self.remainder(), count)?;
        }
        for (rank, epoch) in &self.ahead {
            write!(f, "; rank {rank} is already in epoch {epoch}")?;
        }
        Ok(())
    }
}

/// The positions of an epoch that several states cover.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DivisionCoverage {
    /// The positions that were done when the epoch was divided.
    base: Layers,
    done: Layers,
    /// Positions that were done more than once, numbered among the divided positions.
    repeated: Layers,
}

impl DivisionCoverage {
    /// Covers states of one division.
    fn of_one(states: &[State]) -> Result<DivisionCoverage> {
        let first = &states[0];
        let world = first.shard.unwrap_or_default().world;
        let has_done = states.iter().any(|state| !state.done.is_empty());
        if has_done && world > MOST_RANKS {
            let message =
                format!("cannot compare the states of {world} ranks: the maximum is {MOST_RANKS}");
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        // If no state has a done position, the number of ranks does not matter.
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

    /// Covers states of different divisions, position by position.
    fn of_several(states: &[State]) -> Result<DivisionCoverage> {
        let (mut done, mut repeated) = (Ranges::default(), Ranges::default());
        let mut left = MOST_COMPARED;
        let mut count = |more: u64| {
            left = left.checked_sub(more).ok_or_else(|| {
                let message = format!(
                    "states of different divisions have done more than {MOST_COMPARED} positions, \
                     the maximum that can be compared; combine the ranks of each division first"
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
    fn the_comparison_of_different_divisions_is_bounded() {
        let state = State::at_start(0, 0, Shard::default(), Some(1 << 40), BTreeMap::new());
        let part = |world| rank(0, world, Remainder::Drop, &state, &[(0, 1 << 30)]);
        let error = State::audit([part(2), part(3)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    }

    #[test]
    fn an_audit_without_done_positions_allocates_nothing_per_rank() {
        let state = State::at_start(0, 0, Shard::default(), Some(10), BTreeMap::new());
        let part = |done: &[_]| rank(1 << 40, 1 << 41, Remainder::Drop, &state, done);
        assert_eq!(State::audit([part(&[])]).unwrap().done(), 0);
        let many = State { done: std::iter::once(0..1).collect(), ..part(&[]) };
        assert_eq!(State::audit([many.clone()]).unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert_eq!(many.of_equal_ranks().unwrap_err().kind(), ErrorKind::LimitExceeded);
    }
}
