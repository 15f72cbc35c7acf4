//! The checkpoint state as plain data: store it, resume from it, combine and compare it.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::ops::Range;

use crate::error::{Change, Error, ErrorKind, Result};
use crate::item::lineage::EndedPieces;
use crate::resume::ledger::{MergedSamples, PartialItem, Unmerged};
use crate::source::layers::Layers;
use crate::source::ranges::{Complement, Ranges};
use crate::source::sample::SampleId;
use crate::source::shard::{Division, Remainder, ResumePoint, Shard};

/// The version of the serialised form, and the only version that is read.
const FORMAT: u32 = 2;
/// The maximum world size that `of_equal_ranks` accepts, and that `audit` accepts for states of one
/// division of which a position is done.
pub(crate) const MOST_RANKS: u64 = 1 << 20;

/// The part of the fingerprint with the number of sources, if there are several.
pub(crate) const SOURCES: &str = "sources";

/// The checkpoint state of a run, from [`Pipeline::state`](crate::Pipeline::state).
///
/// [`PipelineBuilder::resume`](crate::PipelineBuilder::resume) takes the state and continues the
/// run.
///
/// The state records which samples of the current epoch are done: delivered, dropped by the failure
/// policy, filtered out or left out. The state contains no data and no keys.
///
/// A resumed pipeline yields the remaining samples, and no others unless a list or an item was
/// delivered in part (see below). The samples have the same identities and, with the same seed, the
/// same random numbers. With a [deterministic](crate::PipelineBuilder::deterministic) order,
/// its items are bit-identical to those that the first run would have delivered next.
///
/// # Partly delivered lists
/// If stages group items into lists and later stages split the lists, a list may be delivered in
/// part. A resumed run groups the same list again and delivers only the other parts. For this, the
/// upstream stages must keep their order. Otherwise [`build`](crate::PipelineBuilder::build) fails,
/// and its error suggests [`repeat_parts`](State::repeat_parts). If the list still differs, for
/// example because a sample now fails, the resumed run delivers the whole list. Its earlier parts
/// are then delivered twice, and no sample is missing.
///
/// # Size
/// The state stores ranges of positions: one range per gap. A gap is a sample in flight that
/// precedes finished samples. As JSON, a gap takes less than 50 bytes, and a partly delivered
/// sample takes 50 bytes more. If stages split a part of a sample again, each split part adds less
/// than 30 bytes until the sample is done. A state that was [combined](State::combine) from ranks
/// at different steps has the ranges of every rank.
///
/// With the feature `serde`, the state implements `Serialize` and `Deserialize`, for example for
/// JSON.
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
/// let start = first.by_ref().take(2).collect::<Result<Vec<_>>>()?;
/// let state = first.state()?;
/// drop(first);
/// let rest = training().resume(state).build()?.collect::<Result<Vec<_>>>()?;
/// assert_eq!([start, rest].concat(), whole);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct State {
    pub(crate) format: u32,
    pub(crate) seed: u64,
    pub(crate) epoch: u64,
    /// The rank, or `None` for a combined state of all ranks.
    pub(crate) shard: Option<Shard>,
    /// The number of positions in an epoch, if known.
    pub(crate) len: Option<u64>,
    /// The positions that were done when the remaining ones were divided among the ranks.
    pub(crate) base: Layers,
    /// How many identities of repeated (padding) samples earlier divisions used.
    pub(crate) padded: u64,
    /// The positions that this rank has done since, numbered within the rank.
    pub(crate) done: Ranges,
    /// Ended pieces of samples that are not done, with their outcomes.
    pub(crate) pieces: EndedPieces,
    pub(crate) steps_in_epoch: u64,
    pub(crate) steps: u64,
    pub(crate) in_epoch: SampleCounts,
    pub(crate) in_all: SampleCounts,
    /// The part of both counts that all ranks share, because it was counted before the states of an
    /// earlier division were combined.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "CombinedCounts::is_none"))]
    pub(crate) shared: CombinedCounts,
    /// For each splitting stage, the emitted part of the oldest item that it held.
    #[cfg_attr(feature = "serde", serde(default))]
    pub(crate) carry: BTreeMap<String, PartialItem>,
    /// One past the position of the last sample that partly delivered lists and split items depend
    /// on; 0 if there are none.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "is_zero"))]
    pub(crate) parts_end: u64,
    /// The samples that ended before a merge that chooses its branches, if there are several sources.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Unmerged::is_none"))]
    pub(crate) unmerged: Unmerged,
    pub(crate) fingerprint: BTreeMap<String, String>,
    /// Parts of the fingerprint that are allowed to differ.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "BTreeSet::is_empty"))]
    pub(crate) allowed: BTreeSet<String>,
    /// Strings that the caller stores with the state, for example the optimiser step. Empty by
    /// default. The states of a resumed run start with the notes of the state it resumed from.
    #[cfg_attr(feature = "serde", serde(default))]
    pub notes: BTreeMap<String, String>,
}

#[cfg(feature = "serde")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The number of samples with each outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SampleCounts {
    /// Samples of which at least one item was delivered.
    pub delivered: u64,
    /// Samples that failed and were dropped by the failure policy.
    pub dropped: u64,
    /// Samples that a stage filtered out.
    pub filtered: u64,
    /// Samples that were left out, for example in an incomplete last batch.
    pub left_out: u64,
}

/// The counts that all ranks share.
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
    /// The state of a run that starts with `epoch`.
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
            unmerged: Unmerged::default(),
            fingerprint,
            allowed: BTreeSet::new(),
            notes: BTreeMap::new(),
        }
    }

    /// The state of rank `shard` in a pipeline that resumes from this state.
    pub(crate) fn for_rank(
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

    /// The state at the start of another epoch of the same run.
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

    /// The current epoch, counted from 0. Between two epochs, the next epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The rank of this state, or `None` for a [combined](State::combine) state of all ranks.
    pub fn shard(&self) -> Option<Shard> {
        self.shard
    }

    /// How many items (usually batches) were delivered in all epochs, including skipped steps and
    /// earlier runs. For a combined state, the maximum over the ranks.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// How many items (usually batches) of the current epoch were delivered, including skipped
    /// steps and earlier runs. For a combined state, the maximum over the ranks.
    pub fn steps_in_epoch(&self) -> u64 {
        self.steps_in_epoch
    }

    /// The sample counts of all epochs: of this rank, and of all ranks before their states were
    /// last [combined](State::combine). The counts may lag behind deliveries: see
    /// [`samples_in_epoch`](State::samples_in_epoch).
    pub fn samples(&self) -> SampleCounts {
        self.in_all
    }

    /// The sample counts of the current epoch.
    ///
    /// A sample is counted when all items that stages made from it have an outcome. If a stage
    /// emits several items for one sample or list, the sample is counted when that stage reports
    /// the end of the items. The count may therefore lag behind deliveries until the epoch ends.
    /// Resuming is not affected, because the delivery of each item is recorded.
    pub fn samples_in_epoch(&self) -> SampleCounts {
        self.in_epoch
    }

    /// The settings of the source and of each stage that affect content and order. Each key names a
    /// part of the pipeline, such as `source order` or `stage batch: size`.
    pub fn fingerprint(&self) -> &BTreeMap<String, String> {
        &self.fingerprint
    }

    /// Allows one part of the [fingerprint](State::fingerprint) to differ in the resumed run.
    ///
    /// A part includes all parts below it: `stage batch` includes `stage batch: size`. The part
    /// `seed` allows another seed. If a state is rejected because parts differ, [`Error::changes`]
    /// lists these parts. The caller must make sure that the remaining samples of the epoch are
    /// still valid.
    #[must_use]
    pub fn allow_change(mut self, part: impl Into<String>) -> Self {
        self.allowed.insert(part.into());
        self
    }

    /// Makes the resumed run deliver partly delivered lists and split items again as a whole.
    ///
    /// Discards the record of the delivered parts, so the resumed run delivers these parts again.
    /// Call `repeat_parts` if a resumed run cannot group the same lists again, because the world
    /// size has changed or stages are unordered.
    #[must_use]
    pub fn repeat_parts(mut self) -> Self {
        self.pieces.retain(|depth, _| depth == 0);
        self.carry.clear();
        self.parts_end = 0;
        self
    }

    /// Whether the resumed run must group or split some items as before.
    pub(crate) fn has_parts(&self) -> bool {
        !self.carry.is_empty() || self.pieces.has_lists()
    }

    pub(crate) fn division(&self) -> Division {
        let shard = self.shard.unwrap_or_default();
        Division::new(shard, self.len, self.base.clone(), self.padded)
    }

    /// The positions that this rank has done since the epoch was divided, numbered within the rank,
    /// without repeated samples.
    pub(crate) fn own_done(&self) -> Ranges {
        match self.own_positions() {
            Some(end) => self.done.below(end),
            None => self.done.clone(),
        }
    }

    /// The number of positions of the division that belong to this rank, if no position is left
    /// out.
    fn own_positions(&self) -> Option<u64> {
        let Shard { rank, world, .. } = self.shard.unwrap_or_default();
        let divided = self.len?.saturating_sub(self.base.count());
        Some(divided.saturating_sub(rank).div_ceil(world))
    }

    /// The state of the same rank at the end of the epoch of `other`, with all its positions done.
    pub(crate) fn at_end_of_epoch(&self, other: &State) -> Result<State> {
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
                "the positions of rank {} in epoch {} are unknown: the rank has ended the epoch, \
                 other ranks have not, and the length of the epoch is unknown",
                shard.rank, other.epoch
            );
            return Err(invalid(message));
        };
        // Repeated samples do not matter, so at most the number of positions.
        let all = ended.division().count().map_or(positions, |count| count.min(positions));
        Ok(State { done: std::iter::once(0..all).collect(), ..ended })
    }

    /// Marks samples of the current epoch as done, so that the resumed run leaves them out.
    ///
    /// Samples that are already done are ignored.
    ///
    /// # Errors
    /// `InvalidArgument` if a sample belongs to another epoch or another rank, or is beyond the end
    /// of an epoch of known length. `InvalidArgument` also if a list or a split item was delivered
    /// in part, because leaving out samples would change it: see
    /// [`repeat_parts`](State::repeat_parts).
    pub fn skip(mut self, ids: impl IntoIterator<Item = SampleId>) -> Result<Self> {
        if self.has_several_sources() {
            return Err(invalid("samples of a pipeline with several sources cannot be skipped"));
        }
        if self.has_parts() {
            let message = "a list or an item was delivered in part, and skipping samples would \
                           change it; set `repeat_parts` to deliver it again as a whole";
            return Err(invalid(message));
        }
        let division = self.division();
        // For a combined state: places among the positions that are not in `base`.
        let mut places = Ranges::default();
        for id in ids {
            if id.epoch != self.epoch {
                let message = format!("{id} is not in the current epoch {}", self.epoch);
                return Err(invalid(message));
            }
            // Identities of repeated samples are beyond `len`; the division resolves them.
            if let Some(len) = self.len.filter(|&len| id.index >= len)
                && division.divided.is_none()
            {
                return Err(invalid(format!("{id} is out of range: an epoch has {len} samples")));
            }
            let Some(place) = self.base.rank(id.index) else { continue };
            let Some(own) = division.local(id.index) else {
                let whose = self.shard.unwrap_or_default();
                return Err(invalid(format!("{id} does not belong to {whose}")));
            };
            // A combined state has no division: its positions are done for all ranks.
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
            !self.base.contains(index) && !division.local(index).is_some_and(is_done)
        });
        Ok(self)
    }

    /// The state after `steps` more steps in which no sample fails, computed without a run.
    ///
    /// The steps are batches of `batch_size` samples. The last batch of an epoch may be smaller. If the pipeline drops an
    /// incomplete batch, it has one step less than this method accepts. The state is that of a pipeline that keeps the
    /// order of its input, and whose stages neither filter, split nor regroup samples.
    ///
    /// ```
    /// # use std::num::NonZeroU64;
    /// use spdl_core::{DatasetSource, PipelineBuilder, Result};
    /// let numbers = || DatasetSource::new((0..10).collect::<Vec<i32>>()).shuffled(7);
    /// let batches = || PipelineBuilder::new(numbers()).batch("batch", 2, false).deterministic();
    /// let mut pipeline = batches().build()?;
    /// let start = pipeline.state()?;
    /// assert_eq!(pipeline.by_ref().take(3).count(), 3);
    /// assert_eq!(start.after_steps(3, NonZeroU64::new(2).unwrap())?, pipeline.state()?);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// * `InvalidArgument` if the epoch has fewer steps left, or if the state is a [combined](State::combine) state:
    ///   build a pipeline that resumes from it, and use that pipeline's state.
    /// * `Unsupported` if the pipeline has several sources, or delivered a list or a split item in part.
    pub fn after_steps(mut self, steps: u64, batch_size: NonZeroU64) -> Result<Self> {
        let positions = self.positions_of_steps(0..steps, batch_size)?;
        let mut delivered = 0;
        for range in positions.iter() {
            self.done.insert_range(range.clone());
            delivered += range.end - range.start;
        }
        let counts = SampleCounts { delivered, ..SampleCounts::default() };
        self.in_epoch = self.in_epoch.plus(counts);
        self.in_all = self.in_all.plus(counts);
        self.steps_in_epoch = self.steps_in_epoch.saturating_add(steps);
        self.steps = self.steps.saturating_add(steps);
        Ok(self)
    }

    /// A state from which a pipeline delivers only some of the remaining steps, and then the next epoch.
    ///
    /// The batches are those that the whole run delivers in these steps, which are counted from this state. All other
    /// samples of the epoch count as left out. See [`after_steps`](State::after_steps) for `batch_size` and the
    /// requirements.
    ///
    /// ```
    /// # use std::num::NonZeroU64;
    /// use spdl_core::{DatasetSource, PipelineBuilder, Result};
    /// let numbers = || DatasetSource::new((0..10).collect::<Vec<i32>>()).shuffled(7);
    /// let batches = || PipelineBuilder::new(numbers()).batch("batch", 2, false).deterministic();
    /// let all = batches().build()?.collect::<Result<Vec<_>>>()?;
    /// let state = batches().build()?.state()?.only_steps(1..3, NonZeroU64::new(2).unwrap())?;
    /// assert_eq!(batches().resume(state).build()?.collect::<Result<Vec<_>>>()?, all[1..3]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`after_steps`](State::after_steps), `InvalidArgument` if the range ends before its start, and
    /// `Unsupported` if the length of an epoch is unknown.
    pub fn only_steps(mut self, steps: Range<u64>, batch_size: NonZeroU64) -> Result<Self> {
        let kept = self.positions_of_steps(steps.clone(), batch_size)?;
        let Some(end) = self.positions_of_rank() else {
            let message = "the steps after others cannot be left out of an epoch of unknown length";
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let mut left_out = 0u64;
        for range in kept.union(&self.done).absent_below(end).iter() {
            self.done.insert_range(range.clone());
            left_out = left_out.saturating_add(range.end - range.start);
        }
        let counts = SampleCounts { left_out, ..SampleCounts::default() };
        self.in_epoch = self.in_epoch.plus(counts);
        self.in_all = self.in_all.plus(counts);
        self.steps_in_epoch = self.steps_in_epoch.saturating_add(steps.start);
        self.steps = self.steps.saturating_add(steps.start);
        Ok(self)
    }

    /// The number of samples of this rank that are not done in the current epoch, with repeated ones. In a
    /// [combined](State::combine) state, the number of those of all ranks. `None` if the length of an epoch is unknown, or
    /// the pipeline has several sources.
    pub fn samples_left(&self) -> Option<u64> {
        self.positions_of_rank().map(|end| end.saturating_sub(self.done.below(end).count()))
    }

    /// The number of positions of this rank in the division, with repeated samples; `None` if it is unknown.
    fn positions_of_rank(&self) -> Option<u64> {
        self.division().count().or_else(|| self.own_positions())
    }

    /// The positions of a run of remaining steps, numbered within the rank.
    fn positions_of_steps(&self, steps: Range<u64>, batch_size: NonZeroU64) -> Result<Ranges> {
        let unsupported = |what: &str| {
            let message =
                format!("the samples of a step are known only after a run, because {what}");
            Err(Error::new(ErrorKind::Unsupported, message))
        };
        if self.has_several_sources() {
            return unsupported("the pipeline has several sources");
        }
        if self.has_parts() || !self.pieces.is_empty() {
            return unsupported("a list or an item was delivered in part");
        }
        if self.shard.is_none() {
            return Err(invalid(
                "the state is combined from all ranks; build the pipeline of a rank that resumes from it, and use the \
                 state of that pipeline",
            ));
        }
        let size = batch_size.get();
        let left = self.samples_left().unwrap_or(u64::MAX);
        let has = left.div_ceil(size);
        if steps.start > steps.end || steps.end > has {
            let Range { start, end } = steps;
            let message =
                format!("no steps {start} to {end}: epoch {} has {has} steps left", self.epoch);
            return Err(invalid(message));
        }
        let sample = |step: u64| step.saturating_mul(size).min(left);
        let undone = Complement::of(self.done.clone());
        Ok(undone.at_places(sample(steps.start)..sample(steps.end)).collect())
    }

    /// Checks that this version of the library reads states of format version `format`.
    pub(crate) fn check_format(format: u32) -> Result<()> {
        if format == FORMAT {
            return Ok(());
        }
        let message = format!(
            "unsupported state format version {format}; this version of the library reads version \
             {FORMAT}"
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Whether a part of the fingerprint, or a part above it, is allowed to differ.
    fn allows(&self, part: &str) -> bool {
        // Parts of a stage are separated by a colon. Parts of a source are separated by a space.
        let next = if part.starts_with("stage ") { ": " } else { " " };
        let belongs = |rest: &str| rest.is_empty() || rest.starts_with(next);
        self.allowed.iter().any(|allowed| part.strip_prefix(&**allowed).is_some_and(belongs))
    }

    /// Checks that a pipeline with these settings can resume from this state.
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
            let changed: Vec<String> = changes.iter().map(Change::to_string).collect();
            let message = format!(
                "the state belongs to a different pipeline: {}; if a change is intended, allow it \
                 with `State::allow_change`",
                changed.join("; ")
            );
            return Err(invalid(message).with_changes(changes));
        }
        match self.shard {
            Some(own) if own != shard => {
                let describe = |shard: Shard| format!("{shard} ({})", shard.remainder);
                let message = format!(
                    "the state belongs to {}, but this pipeline is {}; combine the states of all \
                     ranks with `State::combine` to divide the remaining samples again",
                    describe(own),
                    describe(shard)
                );
                Err(invalid(message))
            }
            // The division of the remaining positions depends on the length.
            _ if self.len != len && shard.world > 1 => {
                let count = |len: Option<u64>| len.map_or("unknown".into(), |len| len.to_string());
                let message = format!(
                    "the number of positions per epoch has changed from {} to {}, so the remaining \
                     positions cannot be divided among the ranks as before",
                    count(self.len),
                    count(len)
                );
                Err(invalid(message))
            }
            _ => Ok(()),
        }
    }

    /// Whether the state is of a pipeline with several sources.
    pub(crate) fn has_several_sources(&self) -> bool {
        self.fingerprint.contains_key(SOURCES)
    }

    /// The position at which source number `source` starts in a resumed run.
    pub(crate) fn resume_point_of(&self, source: usize) -> ResumePoint {
        let point = self.resume_point();
        match self.has_several_sources() {
            true => ResumePoint { done: self.done.part(SampleId::indices_of(source)), ..point },
            false => point,
        }
    }

    /// The samples that a merge has merged, for each branch: branches of choosing merges have one source.
    pub(crate) fn merged(&self, branches: &[Range<usize>]) -> Vec<MergedSamples> {
        let of_branch = |branch: &Range<usize>| self.unmerged.merged(branch.start, &self.done);
        branches.iter().map(of_branch).collect()
    }

    /// The position at which a resumed run starts.
    pub(crate) fn resume_point(&self) -> ResumePoint {
        ResumePoint {
            epoch: self.epoch,
            base: self.base.clone(),
            padded: self.padded,
            done: self.done.clone(),
        }
    }

    /// Combines the states of all ranks, in any order, into one state.
    ///
    /// The run can resume from the combined state with any world size: the ranks share the
    /// remaining samples of the epoch. If a rank has just ended an epoch that other ranks have not
    /// ended, all positions of that rank in the epoch count as done. Sample counts are summed over
    /// the ranks. The number of steps is the maximum over the ranks. The notes are the notes of
    /// rank 0. A single state that is already combined is returned unchanged.
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
    /// // The samples 0..6 are done; three ranks share the others.
    /// let state = State::combine(states)?;
    /// let rest = rank(1, 3)?.resume(state).build()?.collect::<Result<Vec<_>>>()?;
    /// assert_eq!(rest, [7, 10]);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// * `InvalidArgument` if there is no state, a rank is missing or given twice, or the states
    ///   belong to different runs or divisions.
    /// * `InvalidArgument` if the ranks are in epochs that are not adjacent, or a rank has
    ///   delivered items of the later epoch.
    /// * `InvalidArgument` if a rank has ended an epoch of unknown length that other ranks have not
    ///   ended.
    /// * `InvalidArgument` if a list or a split item was delivered in part: see
    ///   [`repeat_parts`](State::repeat_parts).
    /// * `LimitExceeded` if the states have too many separate ranges on too many ranks: more than
    ///   2^28 entries in a table of ranges × ranks.
    pub fn combine(states: impl IntoIterator<Item = State>) -> Result<State> {
        let mut states: Vec<State> = states.into_iter().collect();
        states.sort_by_key(|state| state.shard.map_or(0, |shard| shard.rank));
        let Some(first) = states.first() else {
            return Err(invalid("no states to combine"));
        };
        let Some(Shard { world, remainder, .. }) = first.shard else {
            if states.len() == 1 {
                return Ok(states.remove(0));
            }
            return Err(invalid("one of the states is already combined; pass one state per rank"));
        };
        if first.has_several_sources() {
            return Err(invalid("states of pipelines with several sources cannot be combined"));
        }
        let mut ranks = BTreeSet::new();
        for state in &states {
            let Some(shard) = state.shard else {
                return Err(invalid(
                    "one of the states is already combined; pass one state per rank",
                ));
            };
            if (shard.world, shard.remainder) != (world, remainder) {
                let message = format!(
                    "the states have different divisions: among {world} ranks ({remainder}) and \
                     among {} ranks ({})",
                    shard.world, shard.remainder
                );
                return Err(invalid(message));
            }
            if !ranks.insert(shard.rank) {
                return Err(invalid(format!("duplicate state of rank {}", shard.rank)));
            }
            let fits = (state.seed, state.len) == (first.seed, first.len)
                && state.format == first.format
                && state.fingerprint == first.fingerprint;
            if !fits {
                let message = format!(
                    "rank {} belongs to a different run than rank {}: its seed, number of positions \
                     or fingerprint differs",
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
        // Samples of the next epoch that were filtered out early are not visible to the consumer.
        let ahead = |state: &State| state.epoch == epoch + 1 && state.steps_in_epoch == 0;
        if let Some(state) = states.iter().find(|state| state.epoch != epoch && !ahead(state)) {
            let rank_of = |state: &State| state.shard.unwrap_or_default().rank;
            let behind = states.iter().find(|state| state.epoch == epoch).map_or(0, rank_of);
            let done = if state.epoch == epoch + 1 { " with some of its samples done" } else { "" };
            let message = format!(
                "rank {behind} is in epoch {epoch}, and rank {} in epoch {}{done}; resume with these \
                 {world} ranks until all are in one epoch, then change the world size",
                rank_of(state),
                state.epoch,
            );
            return Err(invalid(message));
        }
        // Only states of the earlier epoch contain its division.
        let Some(known) = states.iter().find(|state| state.epoch == epoch) else {
            return Err(invalid("no states to combine"));
        };
        if let Some(other) = states.iter().find(|state| {
            state.epoch == epoch && (&state.base, state.padded) != (&known.base, known.padded)
        }) {
            let message = format!(
                "rank {} and rank {} did not resume from the same combined state",
                other.shard.unwrap_or_default().rank,
                known.shard.unwrap_or_default().rank
            );
            return Err(invalid(message));
        }
        if let Some(state) = states.iter().find(|state| state.epoch == epoch && state.has_parts()) {
            let message = format!(
                "rank {} has delivered a list or an item in part, which another world size would \
                 group differently; set `repeat_parts` to deliver it again as a whole",
                state.shard.unwrap_or_default().rank
            );
            return Err(invalid(message));
        }
        let padded = known.division().padded();
        let ranks = states.iter().map(|state| match state.epoch == epoch {
            true => Ok(state.own_done()),
            false => state.at_end_of_epoch(known).map(|ended| ended.done),
        });
        let mut base = known.base.clone();
        base.add_ranks(ranks.collect::<Result<_>>()?)?;
        // Counts that all ranks share are added once.
        let sum = |states: &mut dyn Iterator<Item = (SampleCounts, SampleCounts)>| {
            let (mut own, mut common) = (SampleCounts::default(), SampleCounts::default());
            for (counts, shared) in states {
                own = own.plus(counts.minus(shared));
                common = shared;
            }
            own.plus(common)
        };
        let in_this_epoch = || states.iter().filter(|state| state.epoch == epoch);
        let in_epoch =
            sum(&mut in_this_epoch().map(|state| (state.in_epoch, state.shared.in_epoch)));
        let in_all = sum(&mut states.iter().map(|state| {
            // Samples of the next epoch that were filtered out early are read again.
            let ahead = if state.epoch == epoch { SampleCounts::default() } else { state.in_epoch };
            (state.in_all.minus(ahead), state.shared.in_all)
        }));
        let most = |steps: fn(&State) -> u64| states.iter().map(steps).max().unwrap_or(0);
        let (steps_in_epoch, steps) = (most(|state| state.steps_in_epoch), most(|s| s.steps));
        // Pieces of single samples are valid on any rank. A rank also keeps pieces of samples that
        // another rank took over in a later division, and that rank may have finished them.
        let mut pieces = EndedPieces::default();
        in_this_epoch().for_each(|state| pieces.extend(&state.pieces));
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

    /// Creates a combined state of all ranks from the state of one rank.
    ///
    /// The result is correct only if all ranks have made the same number of steps of equal size,
    /// every rank delivered its samples in order, and no sample was dropped or filtered out.
    /// Otherwise [`combine`](State::combine) the states of all ranks.
    ///
    /// # Errors
    /// `InvalidArgument` if a sample was delivered in part. `LimitExceeded` for more than 2^20
    /// ranks. Otherwise the errors of [`combine`](State::combine).
    pub fn of_equal_ranks(self) -> Result<State> {
        let Some(shard) = self.shard else { return Ok(self) };
        if !self.pieces.is_empty() {
            let message = "a sample was delivered in part, and the state of one rank does not show \
                           where the other ranks are; combine the states of all ranks";
            return Err(invalid(message));
        }
        if shard.world > MOST_RANKS {
            let message = format!(
                "cannot combine the states of {} ranks: the maximum is {MOST_RANKS}",
                shard.world
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        let states = (0..shard.world).map(|rank| {
            let shard = Some(Shard { rank, ..shard });
            State { shard, ..self.clone() }
        });
        State::combine(states)
    }

    /// One past the last position of the current epoch that the run has used, in the order of all
    /// ranks; 0 if no position is used.
    ///
    /// A position is used if it is done, or if a partly delivered list or split item depends on it.
    /// The order may change from the frontier on: see
    /// [`Mixture::taking_over`](crate::source::sampler::Mixture::taking_over). Positions before the
    /// frontier that are not done keep their order.
    ///
    /// With several ranks, use the maximum over the ranks, or the frontier of the
    /// [combined](State::combine) state.
    pub fn frontier(&self) -> u64 {
        let division = self.division();
        // The last position of a range may be a repeated sample.
        let own = self.done.iter().flat_map(|range| [range.end - 1, range.end.max(2) - 2]);
        let done = own.filter_map(|own| division.at(own)).map(|place| place.at.saturating_add(1));
        let parts = self.pieces.indices().chain(self.carry.values().map(|split| split.piece.index));
        let parts = parts.filter(|&index| self.len.is_none_or(|len| index < len));
        let parts = parts.map(|index| index.saturating_add(1));
        done.chain(parts).chain([self.parts_end]).fold(self.base.end(), u64::max)
    }

    /// The number of remaining positions of the current epoch for this rank.
    ///
    /// For a combined state, the number for all ranks. With `Remainder::Pad`, repeated samples
    /// count. `None` if the length of the epoch is unknown.
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

    /// A rank that has done these `(start, length)` ranges of its remaining positions.
    pub(crate) fn rank(
        rank: u64,
        world: u64,
        kind: Remainder,
        from: &State,
        done: &[(u64, u64)],
    ) -> State {
        let shard = Shard::new(rank, world).unwrap().remainder(kind);
        let state = from.clone().for_rank(0, shard, from.len, BTreeMap::new());
        let count = state.division().count().or(state.own_positions()).unwrap();
        let done = done.iter().map(|&(start, len)| start..start + len);
        State { done: done.collect::<Ranges>().below(count), ..state }
    }

    /// The positions that a rank has done, as a set.
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
        fn combined_states_equal_the_union_of_their_positions(
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
                // The audit, with two states of one rank.
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
                // With a state of a different division.
                let other = rank(0, world + 1, kind, &state, &again.1);
                let mixed = State::audit([states[0].clone(), other.clone()]).unwrap();
                prop_assert_eq!(
                    set(mixed.repeated()), &one_by_one(&states[0]) & &one_by_one(&other),
                );
                // With a state of the previous division: other states contain its positions, which
                // count once.
                if let Some(old) = old.replace(states[0].clone()) {
                    let mixed = State::audit([old, states[0].clone()]).unwrap();
                    prop_assert_eq!(mixed.done() as usize, (&before | &one_by_one(&states[0])).len());
                    prop_assert_eq!(mixed.repeated_count(), 0);
                }
                // With a rank that is already in the next epoch.
                let ended = (ended % world) as usize;
                if world > 1 {
                    let part = State { done: Ranges::default(), ..states[ended].clone() };
                    let part = part.at_end_of_epoch(&states[0]).unwrap();
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
    fn samples_counted_before_a_change_of_world_size_count_once() {
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
        // In the next epoch, all ranks still share the counts of earlier epochs.
        let next = |r| rank(r, 2, Remainder::Uneven, &state, &[]).at_epoch(1);
        let next = State::combine((0..2).map(next)).unwrap();
        assert_eq!((next.samples(), next.samples_in_epoch()), (counted(35), counted(0)));
    }
}
