//! How far a run has come, as plain data: to keep, to go on from, to compare.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Change, Error, ErrorKind, Result};
use crate::item::lineage::EndedPieces;
use crate::resume::ledger::PartialItem;
use crate::source::layers::Layers;
use crate::source::ranges::Ranges;
use crate::source::sample::SampleId;
use crate::source::shard::{Begun, Division, Remainder, Shard};

/// The version of what [`State`] holds: the only one that is read.
const FORMAT: u32 = 2;
/// The most ranks that one of them may speak for.
pub(crate) const MOST_RANKS: u64 = 1 << 20;

/// How far a run has come: what [`Pipeline::state`](crate::Pipeline::state) gives and
/// [`PipelineBuilder::resume`](crate::PipelineBuilder::resume) takes.
///
/// It knows which samples of the current epoch are done: delivered, dropped by a policy, filtered
/// out or left out. It holds no data and no keys, and is small: ranges of numbers, as many as there
/// are gaps, where a sample, or a piece of one, is under way in front of others that are done. As
/// JSON a gap takes less than 50 bytes, and a sample in pieces 50 more. Where pieces are split once
/// more, each that was is a gap of its own until all of its sample is done, of less than 30 bytes. One
/// that was [combined](State::combine) from ranks that were not in step has such ranges of every rank.
///
/// A pipeline that is resumed from it yields exactly the others, with their old identities, and so
/// with their old random numbers. Where order is
/// [deterministic](crate::PipelineBuilder::deterministic), what it delivers is what the first run
/// would have delivered next, bit by bit.
///
/// Where lists are put together and taken apart again, a list may be delivered in part. It is put
/// together again as it was, for which the stages in front must keep their order; else
/// [`build`](crate::PipelineBuilder::build) asks for [`repeat_parts`](State::repeat_parts).
/// Where it becomes another one all the same, since a sample fails that did not fail before, say, it
/// comes as a whole: what was delivered of it is repeated, and nothing is lost.
///
/// With feature `serde` it can be written and read as JSON and the like.
///
/// ```
/// use spdl_core::{DatasetSource, PipelineBuilder, Result};
/// let training = || {
///     let numbers = DatasetSource::new((0..10).collect::<Vec<i32>>()).shuffled(7);
///     PipelineBuilder::new(numbers).batch("batch", 2, false).deterministic()
/// };
/// let whole = training().build()?.collect::<Result<Vec<_>>>()?;
///
/// let mut first = training().build()?;
/// let begun = first.by_ref().take(2).collect::<Result<Vec<_>>>()?;
/// let state = first.state()?;
/// drop(first);
/// let rest = training().resume(state).build()?.collect::<Result<Vec<_>>>()?;
/// assert_eq!([begun, rest].concat(), whole);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct State {
    pub(crate) format: u32,
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    /// Which rank's it is; `None` where those of all ranks have been put together.
    pub(crate) shard: Option<Shard>,
    /// How many positions an epoch has, where that is known.
    pub(crate) len: Option<u64>,
    /// The positions that were done when the rest was divided among the ranks.
    pub(crate) base: Layers,
    /// How many identities of repeated samples were given in earlier divisions.
    pub(crate) padded: u64,
    /// What this rank has done since, in its own count of positions.
    pub(crate) done: Ranges,
    /// What came to an end of samples that are not done, and how.
    pub(crate) pieces: EndedPieces,
    pub(crate) steps_in_epoch: u64,
    pub(crate) steps: u64,
    pub(crate) in_epoch: SampleCounts,
    pub(crate) in_all: SampleCounts,
    /// What of both was counted for all ranks when the states of an earlier division were combined:
    /// every rank has it.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "CombinedCounts::is_none"))]
    pub(crate) shared: CombinedCounts,
    /// What each stage that cuts items had given out of the oldest one that it held.
    #[cfg_attr(feature = "serde", serde(default))]
    pub(crate) carry: BTreeMap<String, PartialItem>,
    /// The position behind the last sample on which lists in part, and cut items, depend; 0 where
    /// there are none.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_zero"))]
    pub(crate) parts_end: u64,
    pub(crate) fingerprint: BTreeMap<String, String>,
    /// Parts of the fingerprint that may have changed.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "BTreeSet::is_empty"))]
    pub(crate) allowed: BTreeSet<String>,
    /// Whatever the caller wants to keep with it: the step of the optimiser, the name of the run.
    #[cfg_attr(feature = "serde", serde(default))]
    pub notes: BTreeMap<String, String>,
}

#[cfg(feature = "serde")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What became of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SampleCounts {
    /// Those of which something was delivered.
    pub delivered: u64,
    /// Those that failed and were dropped by a policy.
    pub dropped: u64,
    /// Those that no stage made anything of.
    pub filtered: u64,
    /// Those that were left out: in short batches that were not wanted, say.
    pub left_out: u64,
}

/// What all ranks have in common of what they counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub(crate) struct CombinedCounts {
    in_epoch: SampleCounts,
    in_all: SampleCounts,
}

#[cfg(feature = "serde")]
impl CombinedCounts {
    fn is_none(&self) -> bool {
        *self == CombinedCounts::default()
    }
}

impl SampleCounts {
    pub(crate) fn total(self) -> u64 {
        let SampleCounts { delivered, dropped, filtered, left_out } = self;
        [delivered, dropped, filtered, left_out].into_iter().fold(0, u64::saturating_add)
    }

    fn minus(self, other: SampleCounts) -> SampleCounts {
        SampleCounts {
            delivered: self.delivered.saturating_sub(other.delivered),
            dropped: self.dropped.saturating_sub(other.dropped),
            filtered: self.filtered.saturating_sub(other.filtered),
            left_out: self.left_out.saturating_sub(other.left_out),
        }
    }

    pub(crate) fn plus(self, other: SampleCounts) -> SampleCounts {
        SampleCounts {
            delivered: self.delivered.saturating_add(other.delivered),
            dropped: self.dropped.saturating_add(other.dropped),
            filtered: self.filtered.saturating_add(other.filtered),
            left_out: self.left_out.saturating_add(other.left_out),
        }
    }
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

impl State {
    /// The state of a run that begins with `epoch`.
    pub(crate) fn at_start(
        seed: u64,
        epoch: u64,
        shard: Shard,
        len: Option<u64>,
        fingerprint: BTreeMap<String, String>,
    ) -> Self {
        State {
            format: FORMAT,
            seed,
            epoch,
            shard: Some(shard),
            len,
            base: Layers::default(),
            padded: 0,
            done: Ranges::default(),
            pieces: EndedPieces::default(),
            steps_in_epoch: 0,
            steps: 0,
            in_epoch: SampleCounts::default(),
            in_all: SampleCounts::default(),
            shared: CombinedCounts::default(),
            carry: BTreeMap::new(),
            parts_end: 0,
            fingerprint,
            allowed: BTreeSet::new(),
            notes: BTreeMap::new(),
        }
    }

    /// The state of this rank of the pipeline that goes on from here.
    pub(crate) fn taken_up(
        self,
        seed: u64,
        shard: Shard,
        len: Option<u64>,
        fingerprint: BTreeMap<String, String>,
    ) -> Self {
        let shared = match self.shard {
            Some(_) => self.shared,
            None => CombinedCounts { in_epoch: self.in_epoch, in_all: self.in_all },
        };
        State {
            format: FORMAT,
            seed,
            shard: Some(shard),
            len,
            shared,
            fingerprint,
            allowed: BTreeSet::new(),
            ..self
        }
    }

    /// The state at the beginning of another epoch of the same run.
    pub(crate) fn at_epoch(&self, epoch: u64) -> Self {
        let shard = self.shard.unwrap_or_default();
        let fresh = State::at_start(self.seed, epoch, shard, self.len, self.fingerprint.clone());
        let shared = CombinedCounts { in_all: self.shared.in_all, ..CombinedCounts::default() };
        State { in_all: self.in_all, notes: self.notes.clone(), shared, ..fresh }
    }

    /// The seed of the run's random numbers.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The epoch that is under way, or that comes next.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Which rank's state it is; `None` where those of all ranks have been put together.
    pub fn shard(&self) -> Option<Shard> {
        self.shard
    }

    /// How many items (batches, mostly) were delivered in all epochs.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// How many items (batches, mostly) of the current epoch were delivered.
    pub fn steps_in_epoch(&self) -> u64 {
        self.steps_in_epoch
    }

    /// What became of samples in all epochs: of this rank's, and of all ranks' before their number
    /// was last changed. It may lag as [`samples_in_epoch`](State::samples_in_epoch) does.
    pub fn samples(&self) -> SampleCounts {
        self.in_all
    }

    /// What became of samples of the current epoch.
    ///
    /// A sample is counted when all of it has come to an end. Where a stage makes several items of a
    /// sample, or of a list, that is a moment after the last one was delivered: when the stage has said
    /// that no more come. So the count may lag behind what was delivered, until an epoch has ended. A
    /// run that goes on is not touched by that: what was delivered is known piece by piece.
    pub fn samples_in_epoch(&self) -> SampleCounts {
        self.in_epoch
    }

    /// What the pipeline was, by parts: its source, its stages.
    pub fn fingerprint(&self) -> &BTreeMap<String, String> {
        &self.fingerprint
    }

    /// Allows one part of the [fingerprint](State::fingerprint) to have changed when the run goes
    /// on: the caller knows that the rest of the epoch still makes sense. A part includes all whose
    /// names go on from its own: `stage batch` is also `stage batch: size`. The refusal of a state
    /// names the parts that have changed: [`Error::changes`].
    #[must_use]
    pub fn allow_change(mut self, part: impl Into<String>) -> Self {
        self.allowed.insert(part.into());
        self
    }

    /// Forgets what was delivered of lists that were taken apart, where other parts of the same list
    /// were not, and of items that were cut: they come again in whole, so they are repeated in part.
    /// Needed where they cannot be put together again, or cut, as they were: on another number of
    /// ranks, and where stages keep no order.
    #[must_use]
    pub fn repeat_parts(mut self) -> Self {
        self.pieces.retain(|depth, _| depth == 0);
        self.carry.clear();
        self.parts_end = 0;
        self
    }

    /// Whether items must be put together, or cut, as they were.
    pub(crate) fn has_parts(&self) -> bool {
        !self.carry.is_empty() || self.pieces.has_lists()
    }

    pub(crate) fn division(&self) -> Division {
        let shard = self.shard.unwrap_or_default();
        Division::new(shard, self.len, self.base.clone(), self.padded)
    }

    /// The positions that this rank has done since the epoch was divided, by its own numbers:
    /// repeated ones left out.
    pub(crate) fn own_done(&self) -> Ranges {
        match self.own_positions() {
            Some(end) => self.done.below(end),
            None => self.done.clone(),
        }
    }

    /// How many of the positions that were divided would come to this rank, if all did.
    fn own_positions(&self) -> Option<u64> {
        let Shard { rank, world, .. } = self.shard.unwrap_or_default();
        let divided = self.len?.saturating_sub(self.base.count());
        Some(divided.saturating_sub(rank).div_ceil(world))
    }

    /// The same rank's state at the end of the epoch in which `other` is, if it had done all of its
    /// part.
    pub(crate) fn having_ended(&self, other: &State) -> Result<State> {
        let shard = self.shard.unwrap_or_default();
        let ended = State {
            epoch: other.epoch,
            base: other.base.clone(),
            padded: other.padded,
            done: Ranges::default(),
            ..self.clone()
        };
        let Some(positions) = ended.own_positions() else {
            let message = format!(
                "rank {} has ended epoch {}, others have not, and how long it is is not known",
                shard.rank, other.epoch
            );
            return Err(invalid(message));
        };
        // At least of the positions; what is repeated makes no difference.
        let all = ended.division().count().map_or(positions, |count| count.min(positions));
        Ok(State { done: std::iter::once(0..all).collect(), ..ended })
    }

    /// Marks samples of the current epoch as done, so that they are not delivered. Those that are
    /// done already stay so.
    ///
    /// # Errors
    /// `InvalidArgument` for a sample of another epoch, or of another rank, for one behind the end of
    /// the epoch, and where a list was delivered in part, or an item that was cut: with other samples
    /// it would be another one (see [`repeat_parts`](State::repeat_parts)).
    pub fn skip(mut self, ids: impl IntoIterator<Item = SampleId>) -> Result<Self> {
        if self.has_parts() {
            let message = "a list, or an item that was cut, was delivered in part, and without the \
                           samples to be skipped it would be another one; `State::repeat_parts` lets \
                           it come again";
            return Err(invalid(message));
        }
        let division = self.division();
        // Of a state of all ranks, by their numbers among what is left.
        let mut places = Ranges::default();
        for id in ids {
            if id.epoch != self.epoch {
                let message = format!("{id} is not of epoch {}, which is under way", self.epoch);
                return Err(invalid(message));
            }
            // Repeated samples lie behind the end, and the division knows them.
            if let Some(len) = self.len.filter(|&len| id.index >= len)
                && division.divided.is_none()
            {
                return Err(invalid(format!("{id} is none of the {len} that an epoch has")));
            }
            let Some(place) = self.base.rank(id.index) else { continue };
            let Some(own) = division.own(id.index) else {
                let whose = self.shard.unwrap_or_default();
                return Err(invalid(format!("{id} is not a sample of {whose}")));
            };
            // A state of all ranks has no division of its own: what is done is done for all.
            let new = match self.shard {
                Some(_) => self.done.insert(own),
                None => places.insert(place),
            };
            if new {
                let one = SampleCounts { left_out: 1, ..SampleCounts::default() };
                self.in_epoch = self.in_epoch.plus(one);
                self.in_all = self.in_all.plus(one);
            }
        }
        self.base.add_places(places);
        self.pieces.retain(|_, index| {
            let is_done = |own| self.done.contains(own);
            !self.base.contains(index) && !division.own(index).is_some_and(is_done)
        });
        Ok(self)
    }

    /// Whether this version of the library reads states of that format.
    pub(crate) fn check_format(format: u32) -> Result<()> {
        if format == FORMAT {
            return Ok(());
        }
        let message =
            format!("a state of format {format}; this version reads format {FORMAT} alone");
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Whether a part of the fingerprint, or what it belongs to, may have changed.
    fn allows(&self, part: &str) -> bool {
        // Parts of a stage are set off by a colon, those of a source by a space.
        let next = if part.starts_with("stage ") { ": " } else { " " };
        let belongs = |rest: &str| rest.is_empty() || rest.starts_with(next);
        self.allowed.iter().any(|allowed| part.strip_prefix(&**allowed).is_some_and(belongs))
    }

    /// Checks that a pipeline may go on from here.
    pub(crate) fn check(
        &self,
        seed: u64,
        shard: Shard,
        len: Option<u64>,
        fingerprint: &BTreeMap<String, String>,
    ) -> Result<()> {
        State::check_format(self.format)?;
        let seeds = |seed: u64| BTreeMap::from([("seed".to_owned(), seed.to_string())]);
        let (was, is) = (seeds(self.seed), seeds(seed));
        let changes = Change::between(&was, &is)
            .chain(Change::between(&self.fingerprint, fingerprint))
            .filter(|change| !self.allows(&change.part))
            .collect::<Vec<_>>();
        if !changes.is_empty() {
            let told: Vec<String> = changes.iter().map(Change::to_string).collect();
            let message = format!(
                "the state is of another pipeline: {}; where a change is meant, allow it with \
                 `State::allow_change`",
                told.join("; ")
            );
            return Err(invalid(message).with_changes(changes));
        }
        match self.shard {
            Some(own) if own != shard => {
                let told = |shard: Shard| format!("{shard} ({})", shard.remainder);
                let message = format!(
                    "the state is of {}, and this is {}; put the states of all ranks together with \
                     `State::combine` and the rest is divided anew",
                    told(own),
                    told(shard)
                );
                Err(invalid(message))
            }
            // The division of the rest depends on it.
            _ if self.len != len && shard.world > 1 => {
                let told = |len: Option<u64>| len.map_or("unknown".into(), |len| len.to_string());
                let message = format!(
                    "an epoch had {} positions, and has {} now: its rest cannot be divided alike",
                    told(self.len),
                    told(len)
                );
                Err(invalid(message))
            }
            _ => Ok(()),
        }
    }

    /// Where a run that goes on from here begins.
    pub(crate) fn begun(&self) -> Begun {
        Begun {
            epoch: self.epoch,
            base: self.base.clone(),
            padded: self.padded,
            done: self.done.clone(),
        }
    }

    /// One state of the states of all ranks, in any order: from it the run goes on with any number
    /// of ranks, which take the rest of the epoch between them.
    ///
    /// A rank that has just ended an epoch in which others still are counts as having done all its
    /// part of it. The counts are sums over the ranks; steps are those of the rank that has
    /// made most. The notes are those of rank 0.
    ///
    /// ```
    /// use spdl_core::{DatasetSource, PipelineBuilder, Result, Shard, State};
    /// let rank = |rank, world| -> Result<PipelineBuilder<u32>> {
    ///     let numbers = DatasetSource::new((0..12).collect::<Vec<u32>>());
    ///     Ok(PipelineBuilder::new(numbers).shard(Shard::new(rank, world)?))
    /// };
    /// let mut states = Vec::new();
    /// for r in 0..2 {
    ///     let mut pipeline = rank(r, 2)?.build()?;
    ///     assert_eq!(pipeline.by_ref().take(3).count(), 3);
    ///     states.push(pipeline.state()?);
    /// }
    /// // 0..6 are done; three ranks share the others.
    /// let state = State::combine(states)?;
    /// let rest = rank(1, 3)?.resume(state).build()?.collect::<Result<Vec<_>>>()?;
    /// assert_eq!(rest, [7, 10]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` where a rank is missing or there twice, where states are of different
    /// runs, where ranks are in epochs that do not follow each other, where a rank has ended an epoch
    /// in which others still are and nobody knows how long it is, or where a list that was taken
    /// apart was delivered in part (see [`repeat_parts`](State::repeat_parts)); `LimitExceeded` where
    /// very many ranks have each done very many separate parts (a table of both has more than 2^28
    /// entries).
    pub fn combine(states: impl IntoIterator<Item = State>) -> Result<State> {
        let mut states: Vec<State> = states.into_iter().collect();
        states.sort_by_key(|state| state.shard.map_or(0, |shard| shard.rank));
        let Some(first) = states.first() else {
            return Err(invalid("no states to put together"));
        };
        let Some(Shard { world, remainder, .. }) = first.shard else {
            if states.len() == 1 {
                return Ok(states.remove(0));
            }
            return Err(invalid("one of the states is of all ranks already"));
        };
        let mut ranks = BTreeSet::new();
        for state in &states {
            let Some(shard) = state.shard else {
                return Err(invalid("one of the states is of all ranks already"));
            };
            if (shard.world, shard.remainder) != (world, remainder) {
                let message = format!(
                    "states of different divisions: {world} ranks ({remainder}), and {} ({})",
                    shard.world, shard.remainder
                );
                return Err(invalid(message));
            }
            if !ranks.insert(shard.rank) {
                return Err(invalid(format!("rank {} is there twice", shard.rank)));
            }
            let fits = (state.seed, state.len) == (first.seed, first.len)
                && state.format == first.format
                && state.fingerprint == first.fingerprint;
            if !fits {
                let message = format!(
                    "rank {} is of another run than rank {}: its seed or fingerprint differs",
                    shard.rank,
                    ranks.first().unwrap_or(&0)
                );
                return Err(invalid(message));
            }
        }
        if let Some(missing) = (0..world).find(|rank| !ranks.contains(rank)) {
            return Err(invalid(format!("the state of rank {missing} of {world} is missing")));
        }
        let epoch = states.iter().map(|state| state.epoch).min().unwrap_or(0);
        // What was filtered out of the next epoch in advance is nothing that anybody has seen.
        let ahead = |state: &State| state.epoch == epoch + 1 && state.steps_in_epoch == 0;
        if let Some(state) = states.iter().find(|state| state.epoch != epoch && !ahead(state)) {
            let rank_of = |state: &State| state.shard.unwrap_or_default().rank;
            let behind = states.iter().find(|state| state.epoch == epoch).map_or(0, rank_of);
            let done =
                if state.epoch == epoch + 1 { ", of which it has done something" } else { "" };
            let message = format!(
                "rank {behind} is in epoch {epoch}, and rank {} in epoch {}{done}: go on with these \
                 {world} ranks until all are in one epoch, and change their number then",
                rank_of(state),
                state.epoch,
            );
            return Err(invalid(message));
        }
        // Those in the first epoch know how that was divided.
        let Some(known) = states.iter().find(|state| state.epoch == epoch) else {
            return Err(invalid("no states to put together"));
        };
        if let Some(other) = states.iter().find(|state| {
            state.epoch == epoch && (&state.base, state.padded) != (&known.base, known.padded)
        }) {
            let message = format!(
                "rank {} went on from another division of the epoch than rank {}",
                other.shard.unwrap_or_default().rank,
                known.shard.unwrap_or_default().rank
            );
            return Err(invalid(message));
        }
        if let Some(state) = states.iter().find(|state| state.epoch == epoch && state.has_parts()) {
            let message = format!(
                "rank {} has delivered a list in part; with other ranks there will be other lists. \
                 `State::repeat_parts` lets it come again",
                state.shard.unwrap_or_default().rank
            );
            return Err(invalid(message));
        }
        let padded = known.division().padded();
        let ranks = states.iter().map(|state| match state.epoch == epoch {
            true => Ok(state.own_done()),
            false => state.having_ended(known).map(|ended| ended.done),
        });
        let mut base = known.base.clone();
        base.add_ranks(ranks.collect::<Result<_>>()?)?;
        // What they have in common counts once.
        let sum = |states: &mut dyn Iterator<Item = (SampleCounts, SampleCounts)>| {
            let (mut own, mut common) = (SampleCounts::default(), SampleCounts::default());
            for (counts, shared) in states {
                own = own.plus(counts.minus(shared));
                common = shared;
            }
            own.plus(common)
        };
        let begun = || states.iter().filter(|state| state.epoch == epoch);
        let in_epoch = sum(&mut begun().map(|state| (state.in_epoch, state.shared.in_epoch)));
        let in_all = sum(&mut states.iter().map(|state| {
            // Samples of the next epoch that were filtered out ahead come again.
            let ahead = if state.epoch == epoch { SampleCounts::default() } else { state.in_epoch };
            (state.in_all.minus(ahead), state.shared.in_all)
        }));
        let most = |steps: fn(&State) -> u64| states.iter().map(steps).max().unwrap_or(0);
        let (steps_in_epoch, steps) = (most(|state| state.steps_in_epoch), most(|s| s.steps));
        // Pieces of single samples are known wherever these go. Each rank still knows of those that
        // were another's when the epoch was divided: they are the same pieces, and the other may
        // have done with them.
        let mut pieces = EndedPieces::default();
        begun().for_each(|state| pieces.extend(&state.pieces));
        pieces.retain(|_, index| !base.contains(index));
        let allowed = states.iter().flat_map(|state| state.allowed.clone()).collect();
        let first = states.swap_remove(0);
        Ok(State {
            epoch,
            shard: None,
            base,
            padded,
            done: Ranges::default(),
            pieces,
            steps_in_epoch,
            steps,
            in_epoch,
            in_all,
            shared: CombinedCounts::default(),
            carry: BTreeMap::new(),
            parts_end: 0,
            allowed,
            ..first
        })
    }

    /// One state for all ranks, from that of one: where all have made equally many steps of one
    /// sample or batch each in order, and nothing was dropped or filtered out. What others did in
    /// another way is not known here: [`combine`](State::combine) their states where that may be.
    ///
    /// # Errors
    /// As for [`combine`](State::combine).
    pub fn of_equal_ranks(self) -> Result<State> {
        let Some(shard) = self.shard else { return Ok(self) };
        if !self.pieces.is_empty() {
            let message = "a sample was delivered in part, and which one that is on other ranks is not \
                           known; combine the states of all ranks";
            return Err(invalid(message));
        }
        if shard.world > MOST_RANKS {
            let message =
                format!("{} ranks; at most {MOST_RANKS} can be put together", shard.world);
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        let states = (0..shard.world).map(|rank| {
            let shard = Some(Shard { rank, ..shard });
            State { shard, ..self.clone() }
        });
        State::combine(states)
    }

    /// The position of the current epoch behind the last one of which anything is done, or on which a
    /// list that was delivered in part depends, or an item that was cut, counted from 0 in the order
    /// of all ranks. From there on another order may follow: see
    /// [`Mixture::taking_over`](crate::source::sampler::Mixture::taking_over). What is not yet done in front
    /// of it comes as it would have come.
    ///
    /// Of several ranks take the largest, or that of their [combined](State::combine) state.
    pub fn frontier(&self) -> u64 {
        let division = self.division();
        // The very last one may be a sample that is repeated.
        let own = self.done.iter().flat_map(|range| [range.end - 1, range.end.max(2) - 2]);
        let done = own.filter_map(|own| division.at(own)).map(|place| place.at.saturating_add(1));
        let parts = self.pieces.indices().chain(self.carry.values().map(|cut| cut.piece.index));
        let parts = parts.filter(|&index| self.len.is_none_or(|len| index < len));
        let parts = parts.map(|index| index.saturating_add(1));
        done.chain(parts).chain([self.parts_end]).fold(self.base.end(), u64::max)
    }

    /// How many positions of the current epoch this rank has yet to do, or all ranks where their
    /// states were combined; `None` where nobody knows how many there are.
    pub fn remaining(&self) -> Option<u64> {
        let Shard { world, remainder, .. } = self.shard.unwrap_or_default();
        let divided = self.len?.saturating_sub(self.base.count());
        let own = match remainder {
            Remainder::Drop => divided / world,
            Remainder::Pad => divided.div_ceil(world),
            Remainder::Uneven => self.own_positions()?,
        };
        Some(own.saturating_sub(self.done.count()))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [Remainder; 3] = [Remainder::Drop, Remainder::Pad, Remainder::Uneven];

    /// A rank that has done this much of its part of what is left.
    pub(crate) fn rank(
        rank: u64,
        world: u64,
        kind: Remainder,
        from: &State,
        done: &[(u64, u64)],
    ) -> State {
        let shard = Shard::new(rank, world).unwrap().remainder(kind);
        let state = from.clone().taken_up(0, shard, from.len, BTreeMap::new());
        let count = state.division().count().or(state.own_positions()).unwrap();
        let done = done.iter().map(|&(start, len)| start..start + len);
        State { done: done.collect::<Ranges>().below(count), ..state }
    }

    /// The positions that a rank has done, one by one.
    fn one_by_one(state: &State) -> BTreeSet<u64> {
        let division = state.division();
        let ids = state.done.iter().flatten().map_while(|own| division.at(own));
        ids.map(|place| place.id).filter(|id| *id < state.len.unwrap()).collect()
    }

    fn set(ranges: impl Iterator<Item = std::ops::Range<u64>>) -> BTreeSet<u64> {
        ranges.flatten().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

        #[test]
        fn states_are_put_together_as_if_position_by_position(
            len in 0..400u64, worlds in prop::collection::vec(1..9u64, 1..4),
            kind in prop::sample::select(&KINDS[..]),
            done in prop::collection::vec(prop::collection::vec((0..40u64, 0..20u64), 0..3), 24),
            again in (0..9u64, prop::collection::vec((0..40u64, 0..20u64), 0..3)), ended in 0..9u64,
        ) {
            let mut parts = done.iter().cycle();
            let start = State::at_start(0, 0, Shard::default(), Some(len), BTreeMap::new());
            let mut state = State { shard: None, ..start };
            let (mut all, mut old) = (BTreeSet::new(), None::<State>);
            for world in worlds {
                let part = |r| rank(r, world, kind, &state, parts.next().unwrap());
                let mut states: Vec<State> = (0..world).map(part).collect();
                let before = all.clone();
                for own in states.iter().map(one_by_one) {
                    prop_assert!(own.is_disjoint(&all));
                    all.extend(own);
                }
                // The audit, with a rank that is there twice.
                let twice = rank(again.0 % world, world, kind, &state, &again.1);
                let audit = State::audit(states.iter().cloned().chain([twice.clone()])).unwrap();
                let both: BTreeSet<u64> = &all | &one_by_one(&twice);
                let own = one_by_one(&states[again.0 as usize % states.len()]);
                prop_assert_eq!(set(audit.repeated()), &own & &one_by_one(&twice));
                prop_assert_eq!(audit.repeated_count(), set(audit.repeated()).len() as u64);
                prop_assert_eq!(audit.done(), both.len() as u64);
                let left: BTreeSet<u64> = (0..len).filter(|at| !both.contains(at)).collect();
                prop_assert_eq!(&set(audit.missing()) | &set(audit.remainder()), left.clone());
                prop_assert_eq!(audit.missing_count(), set(audit.missing()).len() as u64);
                let rest = len - before.len() as u64;
                let dropped = if kind == Remainder::Drop { rest % world } else { 0 };
                let last: BTreeSet<u64> =
                    (0..len).filter(|at| !before.contains(at)).skip((rest - dropped) as usize).collect();
                prop_assert_eq!(set(audit.remainder()), last);
                // With a state of another division, one by one.
                let other = rank(0, world + 1, kind, &state, &again.1);
                let mixed = State::audit([states[0].clone(), other.clone()]).unwrap();
                prop_assert_eq!(
                    set(mixed.repeated()), &one_by_one(&states[0]) & &one_by_one(&other),
                );
                // With one that was left over from the division before: what that has done is known
                // to the others, and counts once.
                if let Some(old) = old.replace(states[0].clone()) {
                    let mixed = State::audit([old, states[0].clone()]).unwrap();
                    prop_assert_eq!(mixed.done() as usize, (&before | &one_by_one(&states[0])).len());
                    prop_assert_eq!(mixed.repeated_count(), 0);
                }
                // A rank that is in the next epoch already, where another one is not.
                let ended = (ended % world) as usize;
                if world > 1 {
                    let part = State { done: Ranges::default(), ..states[ended].clone() };
                    let part = part.having_ended(&states[0]).unwrap();
                    all.extend(one_by_one(&part));
                    states[ended] = states[ended].at_epoch(1);
                    let audit = State::audit(states.clone()).unwrap();
                    prop_assert_eq!((audit.epoch(), audit.done()), (0, all.len() as u64));
                    prop_assert_eq!(audit.ahead(), [(ended as u64, 1)]);
                }
                state = State::combine(states).unwrap();
                prop_assert_eq!(set(state.base.iter()), all.clone());
                prop_assert_eq!(state.remaining(), Some(len - all.len() as u64));
            }
        }
    }

    #[test]
    fn what_was_counted_before_a_change_of_ranks_counts_once() {
        let counted = |delivered| SampleCounts { delivered, ..SampleCounts::default() };
        let mut state = State::at_start(0, 0, Shard::default(), Some(100), BTreeMap::new());
        state = State { shard: None, ..state };
        for (world, each) in [(2, 5), (3, 7), (4, 1)] {
            let part = |r| {
                let state = rank(r, world, Remainder::Uneven, &state, &[]);
                let (in_epoch, in_all) = (state.in_epoch.plus(counted(each)), counted(each));
                State { in_epoch, in_all: state.in_all.plus(in_all), ..state }
            };
            state = State::combine((0..world).map(part)).unwrap();
        }
        assert_eq!((state.samples(), state.samples_in_epoch()), (counted(35), counted(35)));
        // In the next epoch those of all epochs are still common to all.
        let next = |r| rank(r, 2, Remainder::Uneven, &state, &[]).at_epoch(1);
        let next = State::combine((0..2).map(next)).unwrap();
        assert_eq!((next.samples(), next.samples_in_epoch()), (counted(35), counted(0)));
    }
}
