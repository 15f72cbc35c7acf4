//! Recorded orders: the samples that a run delivered, to compare and to replay.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_core::stream::BoxStream;
use futures_util::StreamExt;

use crate::error::{Error, ErrorKind, Result};
use crate::runtime::{STALL_TIMEOUT, read_file};
use crate::source::random::stage_number;
use crate::source::sample::SampleId;
use crate::source::shard::Positions;

/// The first line of the text format. Records of version 3 start at a step other than 0. Records of
/// version 2 start at step 0. Records of version 1 do not contain the sizes of steps.
const HEADER_RESUMED: &str = "spdl order 3";
const HEADER: &str = "spdl order 2";
const HEADER_WITHOUT_STEPS: &str = "spdl order 1";
/// The maximum number of runs of indices in a line of text.
const RUNS_PER_LINE: usize = 16;

/// Samples of one epoch with consecutive indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IndexRun {
    epoch: u64,
    start: u64,
    /// At least 1; `start + len` is in range.
    len: u64,
}

/// The samples that a run delivered, in order and by step. A step is one item that the consumer
/// receives, usually a batch.
///
/// Steps are numbered over all epochs, from 0, including the steps of earlier runs.
/// [`State::steps`](crate::State::steps) and [`skip_steps`](crate::PipelineBuilder::skip_steps)
/// count in the same way. A skipped step has no samples. [`append`](OrderRecord::append) joins the
/// record of a run with the record of the run that resumed from it.
///
/// A sequence of samples with consecutive indices takes 24 bytes. A sequence of steps with equal
/// numbers of samples takes 16 bytes. Two records are equal if their samples, order and steps are
/// equal, and the numbers of their first steps too.
///
/// ```
/// use spdl_core::SampleId;
/// use spdl_core::resume::OrderRecord;
/// let ids = [4, 5, 6, 0].map(|index| SampleId { epoch: 0, index });
/// let record: OrderRecord = ids.into_iter().collect();
/// assert_eq!(record.len(), 4);
/// assert!(record.iter().eq(ids));
/// assert_eq!(OrderRecord::parse(&record.to_text())?, record);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(into = "OrderRecordData", try_from = "OrderRecordData"))]
pub struct OrderRecord {
    /// Runs are maximal: no run continues the previous run.
    runs: Vec<IndexRun>,
    len: u64,
    steps: Steps,
    /// The number of the first step.
    first_step: u64,
}

/// The number of samples of each step.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Steps {
    /// Pairs of samples per step and number of consecutive steps; adjacent pairs differ in the
    /// first.
    Known(Vec<(u64, u64)>),
    /// Steps were not recorded.
    Unknown,
}

impl Default for Steps {
    fn default() -> Self {
        Steps::Known(Vec::new())
    }
}

impl Steps {
    /// Adds `times` steps of `samples` each.
    fn push(&mut self, samples: u64, times: u64) -> Option<()> {
        let Steps::Known(steps) = self else { return Some(()) };
        match steps.last_mut() {
            Some(last) if last.0 == samples => last.1 = last.1.checked_add(times)?,
            _ => steps.push((samples, times)),
        }
        Some(())
    }
}

/// The serialised form of a record.
#[cfg(feature = "serde")]
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(untagged)]
enum OrderRecordData {
    Runs(Vec<[u64; 3]>),
    WithSteps {
        /// `[epoch, start, length]`.
        runs: Vec<[u64; 3]>,
        /// `[samples, times]`.
        steps: Vec<[u64; 2]>,
        #[serde(default, skip_serializing_if = "is_zero")]
        first_step: u64,
    },
}

#[cfg(feature = "serde")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[cfg(feature = "serde")]
impl From<OrderRecord> for OrderRecordData {
    fn from(record: OrderRecord) -> Self {
        match record.steps.clone() {
            Steps::Unknown => OrderRecordData::Runs(record.into()),
            Steps::Known(steps) => OrderRecordData::WithSteps {
                first_step: record.first_step,
                runs: record.into(),
                steps: steps.into_iter().map(|(samples, times)| [samples, times]).collect(),
            },
        }
    }
}

#[cfg(feature = "serde")]
impl TryFrom<OrderRecordData> for OrderRecord {
    type Error = Error;

    fn try_from(data: OrderRecordData) -> Result<Self> {
        match data {
            OrderRecordData::Runs(runs) => runs.try_into(),
            OrderRecordData::WithSteps { runs, steps, first_step } => {
                let steps = steps.into_iter().map(|[samples, times]| (samples, times));
                let runs = OrderRecord::try_from(runs)?;
                OrderRecord { first_step, ..runs }.with_steps(steps)
            }
        }
    }
}

impl OrderRecord {
    /// Creates an empty record.
    pub fn new() -> Self {
        OrderRecord::default()
    }

    /// Creates an empty record of a resumed run; earlier runs made `steps` steps.
    pub fn beginning_at(steps: u64) -> Self {
        OrderRecord { first_step: steps, ..OrderRecord::default() }
    }

    /// Adds one sample as a step.
    pub fn push(&mut self, id: SampleId) {
        self.push_step([id]);
    }

    /// Adds the samples of one step, possibly none.
    pub fn push_step(&mut self, ids: impl IntoIterator<Item = SampleId>) {
        let before = self.len;
        ids.into_iter().for_each(|id| self.push_sample(id));
        self.end_step(before);
    }

    /// Adds a sample of the current step.
    pub(crate) fn push_sample(&mut self, id: SampleId) {
        let run = IndexRun { epoch: id.epoch, start: id.index, len: 1 };
        // Fails only beyond 2^64 samples.
        let _ = self.push_run(run);
    }

    /// Ends the step that started after `before` samples.
    pub(crate) fn end_step(&mut self, before: u64) {
        let _ = self.steps.push(self.len - before, 1);
    }

    /// Sets the steps: pairs of samples per step and number of consecutive steps.
    fn with_steps(mut self, steps: impl IntoIterator<Item = (u64, u64)>) -> Result<Self> {
        let mut samples = Some(0u64);
        self.steps = Steps::default();
        for (each, times) in steps {
            let all = each.checked_mul(times).filter(|_| times > 0);
            samples = samples.zip(all).and_then(|(before, all)| before.checked_add(all));
            samples = samples.zip(self.steps.push(each, times)).map(|(samples, ())| samples);
        }
        let all = self.steps().and_then(|steps| steps.checked_add(self.first_step));
        if samples != Some(self.len) || all.is_none() {
            let message = format!("the steps of the record do not add up to {} samples", self.len);
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(self)
    }

    /// The number of steps in this record, or `None` if steps were not recorded.
    pub fn steps(&self) -> Option<u64> {
        match &self.steps {
            Steps::Known(steps) => {
                steps.iter().try_fold(0u64, |sum, (_, times)| sum.checked_add(*times))
            }
            Steps::Unknown => None,
        }
    }

    /// The number of the first step, which is the number of steps of the earlier runs.
    pub fn first_step(&self) -> u64 {
        self.first_step
    }

    /// The samples of step `step`, counted from 0 over all epochs and earlier runs.
    ///
    /// Empty for a skipped step. `None` if the record does not have the step, or steps were not
    /// recorded. Takes time proportional to the size of the record in memory.
    ///
    /// The index of a sample is a position in the order of its epoch.
    /// [`DatasetSource::item_at`](crate::DatasetSource::item_at) maps the position to an item of
    /// the data set.
    ///
    /// ```
    /// use spdl_core::{DatasetSource, PipelineBuilder};
    /// let numbers = DatasetSource::new((0..10).collect::<Vec<i32>>());
    /// let mut pipeline =
    ///     PipelineBuilder::new(numbers).batch("batch", 4, false).record_order().build()?;
    /// assert_eq!(pipeline.by_ref().count(), 3);
    /// let record = pipeline.order_record().expect("`record_order` is set");
    /// let last = record.samples_of(2).expect("there are 3 steps");
    /// assert!(last.iter().map(|id| id.index).eq(8..10));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn samples_of(&self, step: u64) -> Option<Vec<SampleId>> {
        let Steps::Known(steps) = &self.steps else { return None };
        let (mut first, mut left) = (0, step.checked_sub(self.first_step)?);
        let each = steps.iter().find_map(|&(samples, times)| {
            if left < times {
                first += left * samples;
                return Some(samples);
            }
            left -= times;
            first += samples * times;
            None
        })?;
        let mut ids = Vec::new();
        let (mut skip, mut wanted) = (first, each);
        for &IndexRun { epoch, start, len } in &self.runs {
            if wanted == 0 {
                break;
            }
            if skip >= len {
                skip -= len;
                continue;
            }
            let count = (len - skip).min(wanted);
            let from = start + skip;
            ids.extend((from..from + count).map(|index| SampleId { epoch, index }));
            (skip, wanted) = (0, wanted - count);
        }
        Some(ids)
    }

    /// Appends the record of a run that resumed from the run of this record.
    ///
    /// Steps of this record from the first step of `later` on are discarded. A killed run has often
    /// delivered more steps than its last saved state contains, and the resumed run delivers them
    /// again.
    ///
    /// ```
    /// use spdl_core::{DatasetSource, PipelineBuilder};
    /// let build = || {
    ///     let numbers = DatasetSource::new((0..10).collect::<Vec<i32>>());
    ///     PipelineBuilder::new(numbers).batch("batch", 2, false).deterministic().record_order()
    /// };
    /// let mut first = build().build()?;
    /// assert_eq!(first.by_ref().take(2).count(), 2);
    /// let saved = first.state()?;
    /// // One more batch, after the saved state.
    /// assert!(first.next().is_some());
    /// let mut record = first.order_record().expect("`record_order` is set").clone();
    /// let mut later = build().resume(saved).build()?;
    /// assert_eq!(later.by_ref().count(), 3);
    /// record.append(later.order_record().expect("`record_order` is set"))?;
    /// let indices = |step| -> Vec<u64> {
    ///     record.samples_of(step).into_iter().flatten().map(|id| id.index).collect()
    /// };
    /// assert_eq!((record.len(), indices(1), indices(4)), (10, vec![2, 3], vec![8, 9]));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` if `later` starts before this record or leaves a gap after it, or if the
    /// steps of either run were not recorded. The record is unchanged after an error.
    pub fn append(&mut self, later: &OrderRecord) -> Result<()> {
        let invalid = |message: String| Error::new(ErrorKind::InvalidArgument, message);
        let (Some(steps), Steps::Known(more)) = (self.steps(), &later.steps) else {
            return Err(invalid(
                "cannot append: at least one of the two order records has no recorded steps".into(),
            ));
        };
        let kept = later.first_step.checked_sub(self.first_step).filter(|kept| *kept <= steps);
        let Some(kept) = kept else {
            let message = format!(
                "cannot append steps {}..{} to a record of steps {}..{}: the appended steps must \
                 start in the record or directly after it",
                later.first_step,
                later.first_step.saturating_add(later.steps().unwrap_or(0)),
                self.first_step,
                self.first_step.saturating_add(steps),
            );
            return Err(invalid(message));
        };
        let mut all = self.beginning(kept);
        for run in &later.runs {
            all.push_run(*run)?;
        }
        for &(samples, times) in more {
            all.steps.push(samples, times).ok_or_else(|| invalid("more than 2^64 steps".into()))?;
        }
        *self = all;
        Ok(())
    }

    /// The first `steps` steps of this record.
    fn beginning(&self, steps: u64) -> OrderRecord {
        let mut prefix = OrderRecord::beginning_at(self.first_step);
        let (mut left, mut samples) = (steps, 0);
        if let Steps::Known(all) = &self.steps {
            for &(each, times) in all {
                let times = times.min(left);
                left -= times;
                samples += each * times;
                if times > 0 {
                    // Not more than this record has.
                    let _ = prefix.steps.push(each, times);
                }
            }
        }
        for &run in &self.runs {
            let len = run.len.min(samples);
            samples -= len;
            if len > 0 {
                let _ = prefix.push_run(IndexRun { len, ..run });
            }
        }
        prefix
    }

    /// Compares the order of another run with this one.
    ///
    /// Reports the first difference, and samples that are missing in `other`, added, repeated,
    /// delivered less often, or moved. Needs memory for every sample of both records after the
    /// first difference.
    ///
    /// ```
    /// use spdl_core::SampleId;
    /// use spdl_core::resume::OrderRecord;
    /// let record = |indices: &[u64]| -> OrderRecord {
    ///     indices.iter().map(|&index| SampleId { epoch: 0, index }).collect()
    /// };
    /// let difference = record(&[0, 1, 2, 3]).difference(&record(&[0, 2, 1, 1]));
    /// assert_eq!(difference.common, 1);
    /// assert_eq!(difference.missing, [SampleId { epoch: 0, index: 3 }]);
    /// assert_eq!(difference.repeated, [SampleId { epoch: 0, index: 1 }]);
    /// assert!(difference.added.is_empty());
    /// assert_eq!(difference.moved.len(), 2);
    /// ```
    pub fn difference(&self, other: &OrderRecord) -> OrderDifference {
        let (mut own, mut others) = (self.iter().peekable(), other.iter().peekable());
        let mut common = 0;
        while own.peek().is_some() && own.peek() == others.peek() {
            own.next();
            others.next();
            common += 1;
        }
        // For samples after the first difference: count and first place in both records.
        let mut seen: HashMap<SampleId, [(u64, u64); 2]> = HashMap::new();
        let mut count = |side: usize, ids: &mut dyn Iterator<Item = SampleId>| {
            for (place, id) in (common..).zip(ids) {
                let (times, first) = &mut seen.entry(id).or_default()[side];
                if *times == 0 {
                    *first = place;
                }
                *times += 1;
            }
        };
        count(0, &mut own);
        count(1, &mut others);
        // Samples may also occur before the first difference.
        for (place, id) in (0..common).zip(self.iter()) {
            if let Some(sides) = seen.get_mut(&id) {
                for (times, first) in sides {
                    *first = if *times == 0 { place } else { place.min(*first) };
                    *times += 1;
                }
            }
        }
        let mut samples: Vec<_> = seen.into_iter().collect();
        samples.sort_unstable();
        let those = |is_so: fn(&[(u64, u64); 2]) -> bool| -> Vec<SampleId> {
            let those = samples.iter().filter(|(_, sides)| is_so(sides));
            those.map(|(id, _)| *id).collect()
        };
        OrderDifference {
            common,
            step: self.first_different_step(other, common),
            missing: those(|[own, others]| others.0 == 0 && own.0 > 0),
            added: those(|[own, others]| own.0 == 0 && others.0 > 0),
            repeated: those(|[own, others]| others.0 > own.0.max(1)),
            fewer: those(|[own, others]| own.0 > others.0 && others.0 > 0),
            moved: those(|[own, others]| own.0 > 0 && others.0 > 0 && own.1 != others.1),
            same: self == other,
        }
    }

    /// The first step, numbered as in this record, that differs from `other`. The first `common`
    /// samples of both are equal.
    fn first_different_step(&self, other: &OrderRecord, common: u64) -> Option<u64> {
        let Steps::Known(own) = &self.steps else { return None };
        if let Steps::Known(others) = &other.steps
            && common == self.len
            && common == other.len
        {
            // The samples are equal and only the steps differ.
            return Some(self.first_step + steps_in_common(own, others));
        }
        let (step, empty) = place_of(own, common);
        let others = match &other.steps {
            // If the next sample of `other` is inside a step, no empty step precedes it.
            Steps::Known(others) => place_of(others, common).1,
            Steps::Unknown => empty,
        };
        // Empty steps that both records have are equal.
        Some(self.first_step + step + empty.min(others))
    }

    fn push_run(&mut self, run: IndexRun) -> Result<()> {
        let IndexRun { epoch, start, len } = run;
        if len == 0 || start.checked_add(len).is_none() {
            let message =
                format!("invalid range in the order record: {len} samples from index {start}");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let Some(total) = self.len.checked_add(len) else {
            let message = "the order record has more than 2^64 - 1 samples";
            return Err(Error::new(ErrorKind::Corrupt, message));
        };
        match self.runs.last_mut() {
            Some(last) if last.epoch == epoch && last.start + last.len == start => last.len += len,
            _ => self.runs.push(run),
        }
        self.len = total;
        Ok(())
    }

    /// The number of samples in the record.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the record has no samples.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The samples in the order of delivery.
    pub fn iter(&self) -> impl Iterator<Item = SampleId> + '_ {
        self.runs.iter().flat_map(|&IndexRun { epoch, start, len }| {
            (start..start + len).map(move |index| SampleId { epoch, index })
        })
    }

    /// Formats the record as text, with a checksum in the last line.
    ///
    /// 1. The header `spdl order 2`. The header is `spdl order 1` if steps were not recorded, and
    ///    `spdl order 3` if the first step is not 0.
    /// 2. With `spdl order 3`: `first` and the number of the first step.
    /// 3. Lines with the number of an epoch and up to 16 runs of consecutive indices, as `start` or
    ///    `start+length`.
    /// 4. With recorded steps: lines with `steps` and up to 16 step sizes, as `samples` or
    ///    `samples*times`.
    /// 5. `samples` and the number of samples.
    /// 6. `checksum` and the 64-bit FNV-1a hash of all previous lines.
    pub fn to_text(&self) -> String {
        use fmt::Write as _;
        let header = match self.steps {
            Steps::Known(_) if self.first_step > 0 => HEADER_RESUMED,
            Steps::Known(_) => HEADER,
            Steps::Unknown => HEADER_WITHOUT_STEPS,
        };
        let mut text = format!("{header}\n");
        if header == HEADER_RESUMED {
            let _ = writeln!(text, "first {}", self.first_step);
        }
        for runs in self.runs.chunk_by(|a, b| a.epoch == b.epoch) {
            for line in runs.chunks(RUNS_PER_LINE) {
                let _ = write!(text, "{}", line[0].epoch);
                for run in line {
                    let _ = match run.len {
                        1 => write!(text, " {}", run.start),
                        len => write!(text, " {}+{len}", run.start),
                    };
                }
                text.push('\n');
            }
        }
        if let Steps::Known(steps) = &self.steps {
            for line in steps.chunks(RUNS_PER_LINE) {
                text.push_str("steps");
                for (samples, times) in line {
                    let _ = match times {
                        1 => write!(text, " {samples}"),
                        times => write!(text, " {samples}*{times}"),
                    };
                }
                text.push('\n');
            }
        }
        let _ = writeln!(text, "samples {}", self.len);
        let checksum = stage_number(&text);
        let _ = writeln!(text, "checksum {checksum:016x}");
        text
    }

    /// Parses the output of [`to_text`](OrderRecord::to_text).
    ///
    /// # Errors
    /// `Unsupported` if the first line is none of the three headers. `Truncated` if the last line
    /// is missing. `Corrupt` if the checksum does not match or a line is invalid.
    pub fn parse(text: &str) -> Result<Self> {
        let corrupt = |message: String| Error::new(ErrorKind::Corrupt, message);
        let (has_steps, is_resumed) = match text.lines().next() {
            Some(HEADER_RESUMED) => (true, true),
            Some(HEADER) => (true, false),
            Some(HEADER_WITHOUT_STEPS) => (false, false),
            _ => {
                let message = format!(
                    "not an order record: the first line must be {HEADER_WITHOUT_STEPS:?}, \
                     {HEADER:?} or {HEADER_RESUMED:?}"
                );
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        };
        let missing =
            || Error::new(ErrorKind::Truncated, "order record is truncated: no checksum line");
        let whole = text.strip_suffix('\n').ok_or_else(missing)?;
        let (body, last) = whole.rsplit_once('\n').ok_or_else(missing)?;
        let checksum = last.strip_prefix("checksum ").ok_or_else(missing)?;
        let body = &text[..body.len() + 1];
        if checksum != format!("{:016x}", stage_number(body)) {
            return Err(corrupt("checksum mismatch in the order record".into()));
        }
        let mut record = OrderRecord::new();
        let mut samples = None;
        let mut steps = Vec::new();
        for (number, line) in (1..).zip(body.lines()).skip(1) {
            let fault = || corrupt(format!("invalid line {number} in the order record"));
            if samples.is_some() {
                return Err(fault());
            }
            if let Some(count) = line.strip_prefix("samples ") {
                samples = Some(count.parse::<u64>().map_err(|_| fault())?);
                continue;
            }
            if is_resumed && number == 2 {
                let first = line.strip_prefix("first ").and_then(|first| first.parse().ok());
                record.first_step = first.filter(|first| *first > 0).ok_or_else(fault)?;
                continue;
            }
            let mut words = line.split(' ');
            let number = |word: &str| word.parse::<u64>().map_err(|_| fault());
            if let Some(sizes) = line.strip_prefix("steps ").filter(|_| has_steps) {
                for word in sizes.split(' ') {
                    let (samples, times) = word.split_once('*').unwrap_or((word, "1"));
                    steps.push((number(samples)?, number(times)?));
                }
                continue;
            }
            let epoch = number(words.next().unwrap_or_default())?;
            for word in words {
                let (start, len) = word.split_once('+').unwrap_or((word, "1"));
                record.push_run(IndexRun { epoch, start: number(start)?, len: number(len)? })?;
            }
        }
        if samples != Some(record.len) {
            let message = match samples {
                Some(count) => format!(
                    "the order record has {} samples, but its line `samples` gives {count}",
                    record.len
                ),
                None => "the order record has no line `samples`".into(),
            };
            return Err(corrupt(message));
        }
        if !has_steps {
            return Ok(OrderRecord { steps: Steps::Unknown, ..record });
        }
        record.with_steps(steps)
    }

    /// Writes the text format to a file, atomically.
    ///
    /// The text is written to `PATH.partial` and then renamed.
    ///
    /// # Errors
    /// The kind of the system's error if the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let write = || {
            let mut file = File::create(&partial)?;
            file.write_all(self.to_text().as_bytes())?;
            file.sync_all()?;
            drop(file);
            std::fs::rename(&partial, path)
        };
        write().map_err(|error| at_path(path, "write", error))
    }

    /// Reads a record from a file.
    ///
    /// # Errors
    /// The kind of the system's error if the file cannot be read; otherwise the errors of
    /// [`parse`](OrderRecord::parse).
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = read_file(path, u64::MAX, STALL_TIMEOUT).and_then(|bytes| {
            String::from_utf8(bytes)
                .map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))
        });
        let text = text.map_err(|error| at_path(path, "read", error))?;
        OrderRecord::parse(&text).map_err(|error| error.with_key(path.display().to_string()))
    }

    /// The runs of one epoch.
    fn epoch(&self, epoch: u64) -> Vec<Range<u64>> {
        let runs = self.runs.iter().filter(|run| run.epoch == epoch);
        runs.map(|run| run.start..run.start + run.len).collect()
    }
}

/// The differences between two recorded orders, from [`OrderRecord::difference`].
///
/// `Display` writes a summary of a few lines.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderDifference {
    /// The number of equal samples at the start.
    pub common: u64,
    /// The first step that differs, numbered as in the first run; `None` if the steps of the first
    /// run were not recorded. If no step differs, one past the last step of the first run. Steps
    /// also differ if one run skipped a step, or grouped the same samples into other steps.
    pub step: Option<u64>,
    /// Samples of the first run that the other run lacks.
    pub missing: Vec<SampleId>,
    /// Samples of the other run that the first run lacks.
    pub added: Vec<SampleId>,
    /// Samples that the other run delivers more often than the first, and more than once.
    pub repeated: Vec<SampleId>,
    /// Samples that the other run delivers less often than the first, and at least once.
    pub fewer: Vec<SampleId>,
    /// Samples of both runs whose first positions differ.
    pub moved: Vec<SampleId>,
    same: bool,
}

impl OrderDifference {
    /// Whether both runs delivered the same samples in the same order and steps, with the same
    /// number of the first step.
    pub fn is_none(&self) -> bool {
        self.same
    }
}

/// How many samples `Display` writes per category.
const MOST_NAMED: usize = 10;

impl fmt::Display for OrderDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let samples = if self.common == 1 { "sample" } else { "samples" };
        if self.same {
            return write!(f, "no difference in {} {samples}", self.common);
        }
        write!(f, "the orders differ after {} {samples}", self.common)?;
        if let Some(step) = self.step {
            write!(f, ", in step {step}")?;
        }
        let kinds = [
            ("missing", &self.missing),
            ("added", &self.added),
            ("repeated", &self.repeated),
            ("repeated less often", &self.fewer),
            ("moved", &self.moved),
        ];
        for (what, samples) in kinds.into_iter().filter(|(_, samples)| !samples.is_empty()) {
            write!(f, "\n{} {what}:", samples.len())?;
            for (at, SampleId { epoch, index }) in samples.iter().take(MOST_NAMED).enumerate() {
                let comma = if at == 0 { "" } else { "," };
                write!(f, "{comma} {epoch}/{index}")?;
            }
            if samples.len() > MOST_NAMED {
                f.write_str(" …")?;
            }
        }
        Ok(())
    }
}

/// The step with sample number `place`, counted from 0, and the number of empty steps before it.
///
/// If empty steps directly precede that step, returns the first of the empty steps instead.
fn place_of(steps: &[(u64, u64)], place: u64) -> (u64, u64) {
    let (mut first, mut step, mut empty) = (0, 0, 0);
    for &(samples, times) in steps {
        let all = samples * times;
        if samples == 0 && first == place {
            empty = times;
        } else if place < first + all {
            return (step - empty + (place - first) / samples, empty);
        }
        first += all;
        step += times;
    }
    (step - empty, empty)
}

/// The number of steps at the start of both records that have equal sizes.
fn steps_in_common(own: &[(u64, u64)], others: &[(u64, u64)]) -> u64 {
    let mut common = 0;
    for (&(samples, times), &(others_samples, others_times)) in own.iter().zip(others) {
        if samples != others_samples {
            break;
        }
        common += times.min(others_times);
        if times != others_times {
            break;
        }
    }
    common
}

fn at_path(path: &Path, verb: &str, error: std::io::Error) -> Error {
    let kind = Error::from(std::io::Error::from(error.kind())).kind();
    Error::new(kind, format!("cannot {verb} the order record"))
        .with_key(path.display().to_string())
        .with_source(error)
}

impl fmt::Debug for OrderRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OrderRecord({} samples in {} runs)", self.len, self.runs.len())
    }
}

impl Extend<SampleId> for OrderRecord {
    fn extend<I: IntoIterator<Item = SampleId>>(&mut self, ids: I) {
        ids.into_iter().for_each(|id| self.push(id));
    }
}

impl FromIterator<SampleId> for OrderRecord {
    fn from_iter<I: IntoIterator<Item = SampleId>>(ids: I) -> Self {
        let mut record = OrderRecord::new();
        record.extend(ids);
        record
    }
}

impl From<OrderRecord> for Vec<[u64; 3]> {
    /// One `[epoch, start, length]` per run of consecutive indices. Steps are discarded.
    fn from(record: OrderRecord) -> Self {
        record.runs.iter().map(|run| [run.epoch, run.start, run.len]).collect()
    }
}

impl TryFrom<Vec<[u64; 3]>> for OrderRecord {
    type Error = Error;

    /// Makes a record without steps from `[epoch, start, length]`; `Corrupt` for an empty run or a
    /// run beyond 2^64.
    fn try_from(runs: Vec<[u64; 3]>) -> Result<Self> {
        let mut record = OrderRecord { steps: Steps::Unknown, ..OrderRecord::new() };
        for [epoch, start, len] in runs {
            record.push_run(IndexRun { epoch, start, len })?;
        }
        Ok(record)
    }
}

/// Reorders the items of `inner`, which has the items at `positions`, as in `record`.
///
/// Samples that are not in the record, or that are not at `positions`, are left out. Items that
/// arrive early are buffered. If the record contains a sample more than once, because a stage made
/// several outputs of the sample, the first position counts. If `inner` lacks a sample, a fatal
/// error is returned at its position, because the source differs from the source of the recorded
/// run.
pub(crate) fn replay_stream<T: Send + 'static>(
    inner: BoxStream<'static, (u64, Result<T>)>,
    positions: Positions,
    record: &OrderRecord,
) -> BoxStream<'static, (u64, Result<T>)> {
    let turns = record.epoch(positions.epoch());
    let mut wanted = turns.clone();
    wanted.sort_unstable_by_key(|run| run.start);
    wanted.dedup_by(|next, run| {
        let touches = next.start <= run.end;
        if touches {
            run.end = run.end.max(next.end);
        }
        touches
    });
    let replay = ReplayStream {
        inner: Some(inner),
        positions,
        turns: turns.into_iter(),
        turn: 0..0,
        wanted,
        next: 0,
        early: HashMap::new(),
        failure: None,
    };
    replay.boxed()
}

/// See [`replay_stream`].
struct ReplayStream<T> {
    /// `None` after the end of the inner source.
    inner: Option<BoxStream<'static, (u64, Result<T>)>>,
    /// The positions at which the inner source was opened.
    positions: Positions,
    /// The runs of the record after `turn`.
    turns: std::vec::IntoIter<Range<u64>>,
    /// The current run of the record.
    turn: Range<u64>,
    /// All indices in the record, sorted and merged.
    wanted: Vec<Range<u64>>,
    /// The lowest index that the inner source may yield next.
    next: u64,
    /// Buffered items, which arrived early.
    early: HashMap<u64, Result<T>>,
    /// The last error of an item that was left out: a possible reason for a missing sample.
    failure: Option<Error>,
}

impl<T> ReplayStream<T> {
    /// The next index of the record, or `None` at the end.
    fn turn(&mut self) -> Option<u64> {
        while self.turn.is_empty() {
            self.turn = self.turns.next()?;
        }
        Some(self.turn.start)
    }

    fn is_wanted(&self, index: u64) -> bool {
        let after = self.wanted.partition_point(|run| run.start <= index);
        after.checked_sub(1).is_some_and(|at| self.wanted[at].contains(&index))
    }

    /// Buffers an item of the inner source if the record contains its index.
    fn receive(&mut self, index: u64, item: Result<T>) {
        self.next = index.saturating_add(1);
        if self.is_wanted(index) {
            self.early.insert(index, item);
        } else if let Err(error) = item {
            self.failure = Some(error);
        }
    }

    fn missing(&self, index: u64) -> Error {
        let message = format!(
            "the record contains {}, but the source ended after {} samples; replay with the source \
             of the recorded run",
            SampleId { epoch: self.positions.epoch(), index },
            self.next
        );
        let error = Error::new(ErrorKind::InvalidArgument, message).fatal();
        match &self.failure {
            Some(failure) => error.with_source(failure.clone()),
            None => error,
        }
    }
}

impl<T> Unpin for ReplayStream<T> {}

impl<T> Stream for ReplayStream<T> {
    type Item = (u64, Result<T>);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while let Some(index) = this.turn() {
            let item = match this.early.remove(&index) {
                Some(item) => item,
                // A received index that is not buffered was already yielded.
                None if index < this.next => {
                    this.turn.start += 1;
                    continue;
                }
                None if !this.positions.contains(index) => {
                    this.turn.start += 1;
                    continue;
                }
                None => match &mut this.inner {
                    Some(inner) => {
                        match ready!(inner.poll_next_unpin(cx)) {
                            Some((index, item)) => this.receive(index, item),
                            None => this.inner = None,
                        }
                        continue;
                    }
                    None => Err(this.missing(index)),
                },
            };
            this.turn.start += 1;
            return Poll::Ready(Some((index, item)));
        }
        this.inner = None;
        Poll::Ready(None)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use proptest::prelude::*;

    use super::*;
    use crate::runtime::block_on;
    use crate::source::Source;
    use crate::source::dataset::DatasetSource;

    fn ids(epoch: u64, indices: impl IntoIterator<Item = u64>) -> Vec<SampleId> {
        indices.into_iter().map(|index| SampleId { epoch, index }).collect()
    }

    fn record(ids: impl IntoIterator<Item = SampleId>) -> OrderRecord {
        ids.into_iter().collect()
    }

    /// A source of `len` items, each 100 times its index.
    fn hundreds(len: u64) -> DatasetSource<Vec<u64>> {
        DatasetSource::new((0..len).map(|index| 100 * index).collect())
    }

    fn replay(len: u64, record: &OrderRecord, epoch: u64) -> Vec<(SampleId, Result<u64>)> {
        let inner = hundreds(len).open_at(Positions::all(epoch)).unwrap();
        let items = replay_stream(inner, Positions::all(epoch), record);
        block_on(items.map(|(index, item)| (SampleId { epoch, index }, item)).collect())
    }

    #[test]
    fn consecutive_samples_are_one_run() {
        let mut order = ids(0, (5..10).chain(0..5));
        order.extend(ids(1, [5]));
        let record = record(order.clone());
        assert_eq!((record.runs.len(), record.len()), (3, 11));
        assert!(record.iter().eq(order));
        assert_eq!(format!("{record:?}"), "OrderRecord(11 samples in 3 runs)");
    }

    #[test]
    fn the_largest_index_does_not_overflow() {
        let order = ids(u64::MAX, [u64::MAX - 1, 0]);
        let record = record(order.clone());
        assert!(record.iter().eq(order));
        assert_eq!(OrderRecord::parse(&record.to_text()).unwrap(), record);
    }

    #[test]
    fn the_text_format_is_stable() {
        let mut order = ids(0, [3, 4, 5, 0]);
        order.extend(ids(1, 0..1000));
        let text = record(order).to_text();
        let (body, checksum) = text.split_at(text.find("checksum").unwrap());
        assert_eq!(body, "spdl order 2\n0 3+3 0\n1 0+1000\nsteps 1*1004\nsamples 1004\n");
        assert_eq!(checksum.len(), "checksum 0123456789abcdef\n".len());
    }

    fn sealed(body: &str) -> String {
        format!("{body}checksum {:016x}\n", stage_number(body))
    }

    #[test]
    fn parsing_joins_adjacent_runs() {
        let text = sealed("spdl order 2\n0 0 1 2\n0 3+2\nsteps 1 1*3\nsteps 1\nsamples 5\n");
        assert_eq!(OrderRecord::parse(&text).unwrap(), record(ids(0, 0..5)));
    }

    #[test]
    fn a_sample_delivered_again_is_repeated_and_not_added() {
        let difference = |own: &[u64], others: &[u64]| {
            let [own, others] = [own, others].map(|all| record(ids(0, all.iter().copied())));
            own.difference(&others)
        };
        let found = difference(&[0, 1, 2], &[0, 1, 1]);
        assert_eq!((found.common, found.missing, found.repeated), (2, ids(0, [2]), ids(0, [1])));
        assert!(found.added.is_empty() && found.moved.is_empty() && found.fewer.is_empty());
        let found = difference(&[0, 1, 1], &[0, 1]);
        assert!(found.missing.is_empty() && found.fewer == ids(0, [1]), "{found}");
        assert!(found.to_string().contains("1 repeated less often: 0/1"), "{found}");
    }

    /// A record of steps with these numbers of samples, which are 0, 1, 2 and so on.
    fn steps_of(sizes: &[u64]) -> OrderRecord {
        let mut record = OrderRecord::new();
        for &samples in sizes {
            let first = record.len();
            record.push_step(ids(0, first..first + samples));
        }
        record
    }

    #[test]
    fn a_difference_names_the_first_different_step() {
        // Skips `steps` steps after step 1; later steps are as in a run without skips.
        let skipped = |steps: u64| {
            let mut record = steps_of(&[16, 16]);
            (0..steps).for_each(|_| record.push_step([]));
            record.push_step(ids(0, (2 + steps) * 16..(3 + steps) * 16));
            record
        };
        let part = |own: &OrderRecord, others: &OrderRecord| {
            let found = own.difference(others);
            assert_eq!(found.common, 32);
            let (step, text) = (found.step.unwrap(), found.to_string());
            assert!(
                text.starts_with(&format!("the orders differ after 32 samples, in step {step}"))
            );
            step
        };
        let (own, all) = (skipped(3), steps_of(&[16; 6]));
        assert_eq!((part(&own, &all), part(&all, &own)), (2, 2));
        // Steps that both records skip do not differ.
        let fewer = skipped(2);
        assert_eq!((part(&own, &fewer), part(&fewer, &own)), (4, 4));
        // The next sample is inside a step of the other record.
        assert_eq!(part(&own, &steps_of(&[16, 17, 16])), 2);
        // If the other record has no steps, its skipped steps are unknown.
        let unknown = OrderRecord { steps: Steps::Unknown, ..all.clone() };
        assert_eq!(part(&own, &unknown), 5);
        // A run that stopped before the skip has no step 2.
        assert_eq!((part(&own, &steps_of(&[16; 2])), part(&steps_of(&[16; 2]), &own)), (2, 2));
    }

    #[test]
    fn equal_samples_in_different_steps_differ() {
        let step = |own: &[u64], others: &[u64]| {
            let found = steps_of(own).difference(&steps_of(others));
            assert!(!found.is_none() && found.moved.is_empty(), "{found}");
            found.step
        };
        assert_eq!(step(&[4, 4, 4], &[4, 4, 2, 2]), Some(2));
        assert_eq!(step(&[6, 6], &[4, 4, 4]), Some(0));
        assert_eq!(step(&[4, 4, 4], &[4, 0, 4, 4]), Some(1));
        assert_eq!(step(&[4, 4], &[4, 4, 0]), Some(2));
        let mut later = OrderRecord::beginning_at(7);
        later.push_step(ids(0, 0..4));
        assert_eq!(later.difference(&steps_of(&[2, 2])).step, Some(7));
    }

    /// A record of steps from `first` to `end` with one sample each: the number of the step.
    fn single_steps(first: u64, end: u64) -> OrderRecord {
        let mut record = OrderRecord::beginning_at(first);
        (first..end).for_each(|index| record.push(SampleId { epoch: 0, index }));
        record
    }

    #[test]
    fn steps_of_a_resumed_run_keep_their_numbers() {
        let later = single_steps(5, 8);
        assert_eq!((later.first_step(), later.steps()), (5, Some(3)));
        assert_eq!((later.samples_of(4), later.samples_of(8)), (None, None));
        assert_eq!(later.samples_of(6).unwrap(), ids(0, [6]));
        assert_eq!(later.difference(&single_steps(5, 7)).step, Some(7));
        let text = later.to_text();
        assert!(text.starts_with("spdl order 3\nfirst 5\n0 5+3\nsteps 1*3\n"), "{text}");
        assert_eq!(OrderRecord::parse(&text).unwrap(), later);
        #[cfg(feature = "serde")]
        {
            let json = serde_json::to_string(&later).unwrap();
            assert_eq!(serde_json::from_str::<OrderRecord>(&json).unwrap(), later);
        }
    }

    #[test]
    fn append_replaces_the_steps_that_were_repeated() {
        let whole = single_steps(2, 9);
        for (end, first) in [(5, 5), (8, 5), (9, 2), (5, 3)] {
            let mut joined = single_steps(2, end);
            joined.append(&single_steps(first, 9)).unwrap();
            assert_eq!(joined, whole, "2..{end} and {first}..9");
        }
        let mut batches = OrderRecord::new();
        batches.push_step(ids(0, [4, 2, 3]));
        batches.push_step(ids(0, []));
        batches.push_step(ids(0, [9, 8]));
        let mut later = OrderRecord::beginning_at(1);
        later.push_step(ids(0, [4, 5]));
        batches.append(&later).unwrap();
        assert!(batches.iter().eq(ids(0, [4, 2, 3, 4, 5])));
        assert_eq!((batches.samples_of(1).unwrap(), batches.steps()), (ids(0, [4, 5]), Some(2)));
        for (record, later) in [
            (single_steps(0, 5), single_steps(6, 7)),
            (single_steps(3, 5), single_steps(2, 7)),
            (OrderRecord { steps: Steps::Unknown, ..single_steps(0, 5) }, single_steps(5, 6)),
        ] {
            let error = record.clone().append(&later).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }

    #[test]
    fn a_record_of_the_first_version_is_read_without_steps() {
        let text = sealed("spdl order 1\n0 3+2 7\nsamples 3\n");
        let read = OrderRecord::parse(&text).unwrap();
        assert!(read.iter().eq(ids(0, [3, 4, 7])));
        assert_eq!((read.steps(), read.samples_of(0)), (None, None));
        assert_eq!(read.to_text(), text);
        assert_eq!(read.difference(&record(ids(0, [3, 5]))).step, None);
    }

    #[test]
    fn a_truncated_record_is_an_error() {
        let text = record(ids(3, [7, 8, 1, 12])).to_text();
        for len in 0..text.len() {
            let kind = OrderRecord::parse(&text[..len]).unwrap_err().kind();
            let expected = match len < HEADER.len() {
                true => ErrorKind::Unsupported,
                false => ErrorKind::Truncated,
            };
            assert_eq!(kind, expected, "truncated at {len}");
        }
    }

    #[test]
    fn a_changed_record_is_an_error() {
        let text = record(ids(3, [7, 8, 1, 12])).to_text();
        for at in 0..text.len() {
            for bit in 0..7 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let changed = String::from_utf8(bytes).unwrap();
                assert!(OrderRecord::parse(&changed).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn an_inconsistent_record_is_an_error() {
        for body in [
            "spdl order 1\n",
            "spdl order 1\n0 1\nsamples 2\n",
            "spdl order 1\n0 1+0\nsamples 0\n",
            "spdl order 1\n0 18446744073709551615+2\nsamples 2\n",
            "spdl order 1\n0 1+18446744073709551610\n0 1+10\nsamples 4\n",
            "spdl order 1\n0 -1\nsamples 1\n",
            "spdl order 1\n0 1  2\nsamples 2\n",
            "spdl order 1\nsamples 0\n0 1\n",
            "spdl order 1\n\nsamples 0\n",
            "spdl order 1\n0 1\nsteps 1\nsamples 1\n",
            "spdl order 2\n0 1\nsamples 1\n",
            "spdl order 2\n0 1\nsteps 2\nsamples 1\n",
            "spdl order 2\n0 1\nsteps 1 1*0\nsamples 1\n",
            "spdl order 2\n0 1\nsteps\nsamples 1\n",
            "spdl order 2\n0 1\nsteps 9223372036854775808*2 1\nsamples 1\n",
            "spdl order 2\n0 1\nsteps 0*18446744073709551615 0 1\nsamples 1\n",
            "spdl order 2\n0 1\nsteps 0*18446744073709551615 1\nsamples 1\n",
            "spdl order 2\nfirst 4\n0 1\nsteps 1\nsamples 1\n",
            "spdl order 3\n0 1\nsteps 1\nsamples 1\n",
            "spdl order 3\nfirst 0\n0 1\nsteps 1\nsamples 1\n",
            "spdl order 3\nfirst 18446744073709551615\n0 1\nsteps 1\nsamples 1\n",
        ] {
            let kind = OrderRecord::parse(&sealed(body)).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::Corrupt, "{body}");
        }
        let kind = OrderRecord::parse("spdl order 4\n").unwrap_err().kind();
        assert_eq!(kind, ErrorKind::Unsupported);
    }

    #[test]
    fn a_saved_record_is_loaded_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("order");
        let first = record(ids(0, [1, 0]));
        first.save(&path).unwrap();
        let second = record(ids(0, [0, 1, 2]));
        second.save(&path).unwrap();
        assert_eq!(OrderRecord::load(&path).unwrap(), second);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = OrderRecord::load(folder.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        std::fs::write(&path, "rubbish").unwrap();
        let error = OrderRecord::load(&path).unwrap_err();
        assert!(error.key().unwrap().ends_with("order"), "{error}");
    }

    #[cfg(feature = "serde")]
    #[test]
    fn json_contains_runs_and_is_validated() {
        let record = record(ids(2, [3, 4, 0]));
        let json = serde_json::to_string(&record).unwrap();
        assert_eq!(json, r#"{"runs":[[2,3,2],[2,0,1]],"steps":[[1,3]]}"#);
        let older = serde_json::from_str::<OrderRecord>("[[2,3,2],[2,0,1]]").unwrap();
        assert!(older.iter().eq(record.iter()) && older.steps().is_none());
        assert_eq!(serde_json::to_string(&older).unwrap(), "[[2,3,2],[2,0,1]]");
        let wrong = r#"{"runs":[[2,3,2]],"steps":[[3,1]]}"#;
        assert!(serde_json::from_str::<OrderRecord>(wrong).is_err());
        assert_eq!(serde_json::from_str::<OrderRecord>(&json).unwrap(), record);
        assert!(serde_json::from_str::<OrderRecord>("[[0,0,0]]").is_err());
        assert!(serde_json::from_str::<OrderRecord>("[[0,18446744073709551615,1]]").is_err());
    }

    #[test]
    fn a_sample_that_the_source_lacks_is_an_error_in_its_place() {
        let record = record(ids(0, [2, 9, 0]));
        let items = replay(3, &record, 0);
        assert_eq!(items.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids(0, [2, 9, 0]));
        assert!(items[0].1.is_ok() && items[2].1.is_ok());
        let error = items[1].1.as_ref().unwrap_err();
        assert_eq!((error.kind(), error.is_fatal()), (ErrorKind::InvalidArgument, true));
        let message = error.message();
        assert!(message.contains("epoch 0, sample 9") && message.contains("3 samples"), "{error}");
    }

    #[test]
    fn errors_of_the_source_are_replayed_or_explain_a_missing_sample() {
        let inner = || {
            let fail = |word: &str| Err(Error::new(ErrorKind::Io, word));
            stream::iter([(0, fail("first")), (1, Ok(1)), (2, fail("second"))]).boxed()
        };
        let both = replay_stream(inner(), Positions::all(0), &record(ids(0, [1, 0])));
        let items: Vec<_> = block_on(both.collect());
        assert_eq!(*items[0].1.as_ref().unwrap(), 1);
        assert_eq!(items[1].1.as_ref().unwrap_err().message(), "first");
        let beyond = replay_stream(inner(), Positions::all(0), &record(ids(0, [3])));
        let items: Vec<_> = block_on(beyond.collect());
        assert!(items[0].1.as_ref().unwrap_err().report().ends_with(": second"));
    }

    #[test]
    fn the_source_is_read_no_further_than_needed() {
        let inner = (0..3).map(|index| (index, Ok(index)));
        let inner = stream::iter(inner).chain(stream::pending()).boxed();
        let replay = replay_stream(inner, Positions::all(0), &record(ids(0, [2, 0])));
        let items: Vec<_> = block_on(replay.map(|(_, item)| item.unwrap()).collect());
        assert_eq!(items, [2, 0]);
    }

    /// A length `n`, and for each of two epochs a permutation of `0..n` with some items left out.
    fn orders() -> impl Strategy<Value = (u64, Vec<u64>, Vec<u64>)> {
        let part = |n: u64| {
            let all = Just((0..n).collect::<Vec<_>>()).prop_shuffle();
            (all, 0..=n as usize).prop_map(|(mut all, len)| {
                all.truncate(len);
                all
            })
        };
        (1..60u64).prop_flat_map(move |n| (Just(n), part(n), part(n)))
    }

    proptest! {
        #[test]
        fn any_order_with_any_omissions_is_replayed(
            (n, first, second) in orders(),
        ) {
            let mut order = ids(4, first.clone());
            order.extend(ids(5, second.clone()));
            let record = record(order);
            for (epoch, indices) in [(4, first), (5, second), (6, vec![])] {
                let items = replay(n, &record, epoch);
                let items: Vec<_> =
                    items.into_iter().map(|(id, item)| (id, item.unwrap())).collect();
                let expected: Vec<_> =
                    ids(epoch, indices).into_iter().map(|id| (id, 100 * id.index)).collect();
                prop_assert_eq!(items, expected);
            }
        }

        #[test]
        fn the_first_of_several_places_counts(order in prop::collection::vec(0..20u64, 0..60)) {
            let mut firsts = Vec::new();
            for index in &order {
                if !firsts.contains(index) {
                    firsts.push(*index);
                }
            }
            let items = replay(20, &record(ids(0, order)), 0);
            let items: Vec<_> = items.into_iter().map(|(id, _)| id).collect();
            prop_assert_eq!(items, ids(0, firsts));
        }

        #[test]
        fn every_step_has_its_samples(
            steps in prop::collection::vec(prop::collection::vec((0..2u64, 0..9u64), 0..5), 0..30),
        ) {
            let step = |ids: &Vec<(u64, u64)>| -> Vec<SampleId> {
                ids.iter().map(|&(epoch, index)| SampleId { epoch, index }).collect()
            };
            let steps: Vec<Vec<SampleId>> = steps.iter().map(step).collect();
            let mut record = OrderRecord::new();
            steps.iter().for_each(|ids| record.push_step(ids.iter().copied()));
            let record = OrderRecord::parse(&record.to_text()).unwrap();
            prop_assert_eq!(record.steps(), Some(steps.len() as u64));
            for (number, ids) in (0..).zip(&steps) {
                prop_assert_eq!(&record.samples_of(number).unwrap(), ids);
            }
            prop_assert_eq!(record.samples_of(steps.len() as u64), None);
            // A changed sample in any step is a difference in that step.
            for (number, ids) in (0..).zip(&steps) {
                for at in 0..ids.len() {
                    let mut others = steps.clone();
                    others[number as usize][at].index += 100;
                    let mut other = OrderRecord::new();
                    others.into_iter().for_each(|ids| other.push_step(ids));
                    prop_assert_eq!(record.difference(&other).step, Some(number));
                }
            }
        }

        #[test]
        fn a_skipped_step_is_a_difference_in_that_step(
            sizes in prop::collection::vec(0..4u64, 1..20),
            at: prop::sample::Index,
        ) {
            let skipped = at.index(sizes.len());
            let (own, mut other) = (steps_of(&sizes), OrderRecord::new());
            for number in 0..sizes.len() {
                let ids = own.samples_of(number as u64).unwrap();
                other.push_step(ids.into_iter().filter(|_| number != skipped));
            }
            let step = (sizes[skipped] > 0).then_some(skipped as u64);
            prop_assert_eq!(own.difference(&other).is_none(), step.is_none());
            if step.is_some() {
                prop_assert_eq!(own.difference(&other).step, step);
                prop_assert_eq!(other.difference(&own).step, step);
            }
        }

        #[test]
        fn a_difference_lists_every_category(
            first in prop::collection::vec(0..12u64, 0..20),
            second in prop::collection::vec(0..12u64, 0..20),
        ) {
            let (a, b) = (ids(3, first), ids(3, second));
            let difference = record(a.clone()).difference(&record(b.clone()));
            let common = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
            prop_assert_eq!(difference.common, common as u64);
            prop_assert_eq!(difference.is_none(), a == b);
            let times = |all: &[SampleId], id| all.iter().filter(|&&other| other == id).count();
            let place = |all: &[SampleId], id| all.iter().position(|&other| other == id);
            for id in ids(3, 0..12) {
                let (own, others) = (times(&a, id), times(&b, id));
                let there = own > 0 && others > 0;
                prop_assert_eq!(difference.missing.contains(&id), own > 0 && others == 0);
                prop_assert_eq!(difference.added.contains(&id), own == 0 && others > 0);
                prop_assert_eq!(difference.repeated.contains(&id), others > 1 && others > own);
                prop_assert_eq!(difference.fewer.contains(&id), others > 0 && others < own);
                let moved = there && place(&a, id) != place(&b, id);
                prop_assert_eq!(difference.moved.contains(&id), moved);
            }
            prop_assert!(!difference.to_string().is_empty());
        }

        #[test]
        fn the_text_of_any_record_parses_to_an_equal_record(
            order in prop::collection::vec((0..3u64, 0..30u64), 0..100),
        ) {
            let order: Vec<_> =
                order.into_iter().map(|(epoch, index)| SampleId { epoch, index }).collect();
            let record = record(order.iter().copied());
            let read = OrderRecord::parse(&record.to_text()).unwrap();
            prop_assert!(read.iter().eq(order));
            prop_assert_eq!(read, record);
        }
    }
}
