//! How far a run has come, as plain data: to keep, to go on from, to compare.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::account::{Cut, Fate};
use crate::ranges::Ranges;
use crate::shard::{Begun, Division, Remainder, Shard};
use crate::{Error, ErrorKind, Result, SampleId};

/// The version of what [`State`] holds.
const FORMAT: u32 = 1;

/// How far a run has come: what [`Pipeline::state`](crate::Pipeline::state) gives and
/// [`PipelineBuilder::resume`](crate::PipelineBuilder::resume) takes.
///
/// It knows which samples of the current epoch are done: delivered, dropped by a policy, filtered
/// out or left out. It holds no data and no keys, and is small: some ranges of numbers. A pipeline
/// that is resumed from it yields exactly the others, with their old identities, and so with their
/// old random numbers. Where order is [deterministic](crate::PipelineBuilder::deterministic), what
/// it delivers is what the first run would have delivered next, bit by bit.
///
/// Where lists are put together and taken apart again, a list may be delivered in part. It is put
/// together again as it was, for which the stages in front must keep their order; else
/// [`build`](crate::PipelineBuilder::build) asks for [`repeat_parts`](State::repeat_parts).
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
    pub(crate) base: Ranges,
    /// How many identities of repeated samples were given in earlier divisions.
    pub(crate) padded: u64,
    /// What this rank has done since, in its own count of positions.
    pub(crate) done: Ranges,
    /// What came to an end of samples that are not done, and how.
    pub(crate) pieces: Vec<(Piece, Fate)>,
    pub(crate) steps_in_epoch: u64,
    pub(crate) steps: u64,
    pub(crate) in_epoch: SampleCounts,
    pub(crate) in_all: SampleCounts,
    /// What each stage that cuts items had given out of the oldest one that it held.
    #[cfg_attr(feature = "serde", serde(default))]
    pub(crate) carry: BTreeMap<String, Cut>,
    pub(crate) fingerprint: BTreeMap<String, String>,
    /// Parts of the fingerprint that may have changed.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "BTreeSet::is_empty"))]
    pub(crate) allowed: BTreeSet<String>,
    /// Whatever the caller wants to keep with it: the step of the optimiser, the name of the run.
    #[cfg_attr(feature = "serde", serde(default))]
    pub notes: BTreeMap<String, String>,
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

impl SampleCounts {
    pub(crate) fn plus(self, other: SampleCounts) -> SampleCounts {
        SampleCounts {
            delivered: self.delivered + other.delivered,
            dropped: self.dropped + other.dropped,
            filtered: self.filtered + other.filtered,
            left_out: self.left_out + other.left_out,
        }
    }
}

/// A piece of a sample, or of what several were put together into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "(u32, u64, u64)", from = "(u32, u64, u64)"))]
pub(crate) struct Piece {
    /// In how many layers it was put together.
    pub(crate) depth: u32,
    pub(crate) index: u64,
    pub(crate) lineage: u64,
}

impl From<Piece> for (u32, u64, u64) {
    fn from(piece: Piece) -> Self {
        (piece.depth, piece.index, piece.lineage)
    }
}

impl From<(u32, u64, u64)> for Piece {
    fn from((depth, index, lineage): (u32, u64, u64)) -> Self {
        Piece { depth, index, lineage }
    }
}

fn invalid(message: impl Into<String>) -> Error {
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
            base: Ranges::default(),
            padded: 0,
            done: Ranges::default(),
            pieces: Vec::new(),
            steps_in_epoch: 0,
            steps: 0,
            in_epoch: SampleCounts::default(),
            in_all: SampleCounts::default(),
            carry: BTreeMap::new(),
            fingerprint,
            allowed: BTreeSet::new(),
            notes: BTreeMap::new(),
        }
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

    /// What became of samples in all epochs.
    pub fn samples(&self) -> SampleCounts {
        self.in_all
    }

    /// What became of samples of the current epoch.
    pub fn samples_in_epoch(&self) -> SampleCounts {
        self.in_epoch
    }

    /// What the pipeline was, by parts: its source, its stages.
    pub fn fingerprint(&self) -> &BTreeMap<String, String> {
        &self.fingerprint
    }

    /// Allows one part of the [fingerprint](State::fingerprint) to have changed when the run goes
    /// on: the caller knows that the rest of the epoch still makes sense. A part includes all whose
    /// names go on from its own: `stage batch` is also `stage batch size`.
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
        self.pieces.retain(|(piece, _)| piece.depth == 0);
        self.carry.clear();
        self
    }

    /// Whether items must be put together, or cut, as they were.
    pub(crate) fn has_parts(&self) -> bool {
        !self.carry.is_empty() || self.pieces.iter().any(|(piece, _)| piece.depth > 0)
    }

    fn division(&self) -> Division {
        let shard = self.shard.unwrap_or_default();
        Division::new(shard, self.len, self.base.clone(), self.padded)
    }

    /// The samples that this rank has done since the epoch was divided, from its own number `from`
    /// on, repeated ones included.
    fn ids_done(&self, from: u64) -> impl Iterator<Item = u64> + '_ {
        let division = self.division();
        let own = self.done.iter().flat_map(move |range| range.start.max(from)..range.end);
        own.map_while(move |own| division.at(own)).map(|place| place.id)
    }

    /// Marks samples of the current epoch as done, so that they are not delivered. Those that are
    /// done already stay so.
    ///
    /// # Errors
    /// `InvalidArgument` for a sample of another epoch, or of another rank, and where an item was cut
    /// and delivered in part.
    pub fn skip(mut self, ids: impl IntoIterator<Item = SampleId>) -> Result<Self> {
        if !self.carry.is_empty() {
            let message = "an item was cut and delivered in part, and it may be one of those to be \
                           skipped; `State::repeat_parts` lets it come again";
            return Err(invalid(message));
        }
        let division = self.division();
        for id in ids {
            if id.epoch != self.epoch {
                let message = format!("{id} is not of epoch {}, which is under way", self.epoch);
                return Err(invalid(message));
            }
            if self.base.contains(id.index) {
                continue;
            }
            let Some(own) = division.own(id.index) else {
                let whose = self.shard.unwrap_or_default();
                return Err(invalid(format!("{id} is not a sample of {whose}")));
            };
            // A state of all ranks has no division of its own: what is done is done for all.
            let new = match self.shard {
                Some(_) => self.done.insert(own),
                None => self.base.insert(id.index),
            };
            if new {
                self.in_epoch.left_out += 1;
                self.in_all.left_out += 1;
            }
        }
        self.pieces.retain(|(piece, _)| {
            let is_done = |own| self.done.contains(own);
            !self.base.contains(piece.index) && !division.own(piece.index).is_some_and(is_done)
        });
        Ok(self)
    }

    /// Whether this version of the library reads states of that format.
    pub(crate) fn check_format(format: u32) -> Result<()> {
        if format == FORMAT {
            return Ok(());
        }
        let message = format!("a state of format {format}; this is format {FORMAT}");
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Whether a part of the fingerprint, or what it belongs to, may have changed.
    fn allows(&self, part: &str) -> bool {
        let belongs = |rest: &str| rest.is_empty() || rest.starts_with(' ');
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
        let mut changes = Vec::new();
        let mut compare = |part: &str, was: Option<&str>, is: Option<&str>| {
            if was != is && !self.allows(part) {
                let told = |what: Option<&str>| what.unwrap_or("absent").to_owned();
                changes.push(format!("{part} was {}, is {}", told(was), told(is)));
            }
        };
        compare("seed", Some(&self.seed.to_string()), Some(&seed.to_string()));
        let parts: BTreeSet<_> = self.fingerprint.keys().chain(fingerprint.keys()).collect();
        for part in parts {
            let text = |parts: &'_ BTreeMap<String, String>| parts.get(part).cloned();
            let (was, is) = (text(&self.fingerprint), text(fingerprint));
            compare(part, was.as_deref(), is.as_deref());
        }
        if !changes.is_empty() {
            let message = format!(
                "the state is of another pipeline: {}; where a change is meant, allow it with \
                 `State::allow_change`",
                changes.join("; ")
            );
            return Err(invalid(message));
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
    /// runs, where ranks are in epochs that do not follow each other, or where a list that was taken
    /// apart was delivered in part (see [`repeat_parts`](State::repeat_parts)).
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
        if let Some(state) = states.iter().find(|state| state.has_parts()) {
            let message = format!(
                "rank {} has delivered a list in part; with other ranks there will be other lists. \
                 `State::repeat_parts` lets it come again",
                state.shard.unwrap_or_default().rank
            );
            return Err(invalid(message));
        }
        if let Some(missing) = (0..world).find(|rank| !ranks.contains(rank)) {
            return Err(invalid(format!("the state of rank {missing} of {world} is missing")));
        }
        let epochs = || states.iter().map(|state| state.epoch);
        let (epoch, latest) = (epochs().min().unwrap_or(0), epochs().max().unwrap_or(0));
        // What was filtered out of the next epoch in advance is nothing that anybody has seen.
        let ahead = |state: &State| state.epoch == epoch + 1 && state.steps_in_epoch == 0;
        if let Some(state) = states.iter().find(|state| state.epoch != epoch && !ahead(state)) {
            let message = format!(
                "ranks are in different epochs: the first in {epoch}, rank {} in {}{}",
                state.shard.unwrap_or_default().rank,
                state.epoch,
                if state.epoch == latest && latest == epoch + 1 {
                    ", of which it has done something"
                } else {
                    ""
                }
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
        let mut base = known.base.clone();
        let division = known.division();
        let padded = division.padded();
        let common = states.iter().filter(|state| state.epoch == epoch).map(State::watermark);
        let common = common.min().unwrap_or(0);
        division.add_rounds(common, &mut base);
        let len = known.len;
        for state in &states {
            if state.epoch == epoch {
                state.add_done(common, &mut base);
                continue;
            }
            let Some(len) = len else {
                let message = format!(
                    "rank {} has ended epoch {epoch}, others have not, and how long it is is not \
                     known",
                    state.shard.unwrap_or_default().rank
                );
                return Err(invalid(message));
            };
            let ended = State { base: known.base.clone(), padded: known.padded, ..state.clone() };
            let division = ended.division();
            let all =
                (common..).map_while(|own| division.at(own)).take_while(|place| place.at < len);
            for place in all.filter(|place| place.id < len) {
                base.insert(place.id);
            }
        }
        let sum = |counts: fn(&State) -> SampleCounts| {
            states.iter().map(counts).fold(SampleCounts::default(), SampleCounts::plus)
        };
        let most = |steps: fn(&State) -> u64| states.iter().map(steps).max().unwrap_or(0);
        let begun = states.iter().filter(|state| state.epoch == epoch);
        let in_epoch =
            begun.map(|state| state.in_epoch).fold(SampleCounts::default(), SampleCounts::plus);
        let in_all = sum(|state| state.in_all);
        let (steps_in_epoch, steps) = (most(|state| state.steps_in_epoch), most(|s| s.steps));
        // Pieces of single samples are known wherever these go.
        let known = states.iter().filter(|state| state.epoch == epoch);
        let pieces = known.flat_map(|state| state.pieces.iter().copied()).collect();
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
            carry: BTreeMap::new(),
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
        let states = (0..shard.world).map(|rank| {
            let shard = Some(Shard { rank, ..shard });
            State { shard, ..self.clone() }
        });
        State::combine(states)
    }

    /// How many positions this rank has done without a gap, from its first one on.
    fn watermark(&self) -> u64 {
        self.done.iter().next().filter(|range| range.start == 0).map_or(0, |range| range.end)
    }

    /// Adds the positions that this rank has done from its own number `from` on, repeated ones left
    /// out.
    fn add_done(&self, from: u64, all: &mut Ranges) {
        if self.shard.unwrap_or_default().world == 1 && self.base.is_empty() {
            for range in self.done.iter() {
                all.insert_range(range.start.max(from)..range.end.max(from));
            }
            return;
        }
        let len = self.len.unwrap_or(u64::MAX);
        for id in self.ids_done(from).filter(|&id| id < len) {
            all.insert(id);
        }
    }

    /// The position of the current epoch behind the last one of which anything is done, counted from
    /// 0 in the order of all ranks. From there on another order may follow: see
    /// [`Mixture::taking_over`](crate::sampler::Mixture::taking_over). What is not yet done in front
    /// of it comes as it would have come.
    ///
    /// Of several ranks take the largest, or that of their [combined](State::combine) state.
    pub fn frontier(&self) -> u64 {
        let division = self.division();
        // The very last one may be a sample that is repeated.
        let own = self.done.iter().flat_map(|range| [range.end - 1, range.end.max(2) - 2]);
        let done = own.filter_map(|own| division.at(own)).map(|place| place.at + 1);
        let base = self.base.iter().next_back().map_or(0, |range| range.end);
        let parts = self.pieces.iter().map(|(piece, _)| piece.index);
        let parts = parts.chain(self.carry.values().map(|cut| cut.piece.index));
        let parts = parts.filter(|&index| self.len.is_none_or(|len| index < len));
        done.chain(parts.map(|index| index + 1)).fold(base, u64::max)
    }

    /// How many positions of the current epoch this rank has yet to do, or all ranks where their
    /// states were combined; `None` where nobody knows how many there are.
    pub fn remaining(&self) -> Option<u64> {
        let Shard { rank, world, remainder } = self.shard.unwrap_or_default();
        let divided = self.len?.saturating_sub(self.base.count());
        let own = match remainder {
            Remainder::Drop => divided / world,
            Remainder::Pad => divided.div_ceil(world),
            Remainder::Uneven => divided.saturating_sub(rank).div_ceil(world),
        };
        Some(own.saturating_sub(self.done.count()))
    }

    /// Compares what ranks have done of an epoch with what there is to do: what is missing, and
    /// what several of them have done. The states may be of any ranks, and of any divisions.
    ///
    /// What was done before the epoch was last divided counts once, whichever state knows of it.
    ///
    /// # Errors
    /// `InvalidArgument` where there is no state, or they are of different epochs. A rank that has
    /// just ended the epoch should be [combined](State::combine) with the others first.
    pub fn audit(states: impl IntoIterator<Item = State>) -> Result<OrderAudit> {
        let states: Vec<State> = states.into_iter().collect();
        let Some(first) = states.first() else { return Err(invalid("no states to compare")) };
        if let Some(other) = states.iter().find(|state| state.epoch != first.epoch) {
            let message = format!("states of epoch {} and of {}", first.epoch, other.epoch);
            return Err(invalid(message));
        }
        let (mut done, mut repeated) = (Ranges::default(), Ranges::default());
        let ranks: BTreeSet<_> = states.iter().map(|state| state.shard.map(|it| it.rank)).collect();
        let division = first.division();
        let all_ranks = ranks.len() == states.len()
            && ranks.len() as u64 == division.shard.world
            && states.iter().all(|state| {
                let shard = Shard { rank: division.shard.rank, ..state.shard.unwrap_or_default() };
                Division { shard, ..state.division() } == division
            });
        // What all ranks have done need not be looked at one by one.
        let common = states.iter().map(State::watermark).min().filter(|_| all_ranks).unwrap_or(0);
        division.add_rounds(common, &mut done);
        for state in &states {
            let mut own = Ranges::default();
            state.add_done(common, &mut own);
            for range in own.iter() {
                for twice in done.insert_range(range) {
                    repeated.insert_range(twice);
                }
            }
        }
        for range in states.iter().flat_map(|state| state.base.iter()) {
            done.insert_range(range);
        }
        let len = states.iter().filter_map(|state| state.len).max();
        // Where nobody knows how many there are, what is missing lies in front of something done.
        let end = len.unwrap_or_else(|| done.iter().next_back().map_or(0, |last| last.end));
        let missing = done.absent_below(end);
        Ok(OrderAudit { epoch: first.epoch, len, done, missing, repeated })
    }
}

/// What of an epoch is done, what is missing, and what was done more than once: made by
/// [`State::audit`].
///
/// Displayed, it says so in ranges of positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderAudit {
    epoch: u64,
    len: Option<u64>,
    done: Ranges,
    missing: Ranges,
    repeated: Ranges,
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
        self.done.count()
    }

    /// The positions that nobody has done, in ascending order.
    pub fn missing(&self) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
        self.missing.iter()
    }

    /// The positions that more than one rank has done, in ascending order.
    pub fn repeated(&self) -> impl Iterator<Item = std::ops::Range<u64>> + '_ {
        self.repeated.iter()
    }

    /// Whether every position was done once.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.repeated.is_empty()
    }
}

/// So many ranges are written out.
const MOST_RANGES: usize = 20;

impl fmt::Display for OrderAudit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}: {}", self.epoch, self.done())?;
        if let Some(len) = self.len {
            write!(f, " of {len}")?;
        }
        f.write_str(" positions done")?;
        for (what, ranges) in [("missing", &self.missing), ("repeated", &self.repeated)] {
            if ranges.is_empty() {
                write!(f, ", none {what}")?;
                continue;
            }
            write!(f, ", {} {what}: ", ranges.count())?;
            for (at, range) in ranges.iter().enumerate() {
                match at {
                    0 => {}
                    MOST_RANGES => {
                        f.write_str(" …")?;
                        break;
                    }
                    _ => f.write_str(", ")?,
                }
                match range.end - range.start {
                    1 => write!(f, "{}", range.start)?,
                    _ => write!(f, "{}..{}", range.start, range.end)?,
                }
            }
        }
        Ok(())
    }
}
