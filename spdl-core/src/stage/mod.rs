//! Traits of stages, and the built-in stages: batches, aggregates, merges and retries.
//!
//! | file | what |
//! |---|---|
//! | this file | [`Stage`], [`AsyncStage`] and their contexts |
//! | `aggregate` | [`Aggregator`]: several items into one |
//! | `adapters` | stages that call a function: map, filter, flat map; unbatch |
//! | `layout` | [`BatchLayout`], [`Field`], [`Collation`]: the arrays of a batch |
//! | `slot` | [`Fill`], [`SlotMut`]: writes one sample into its place in a batch |
//! | `batch` | [`Batch`]: arrays of samples |
//! | `collate` | joins the rows of samples to the arrays of a batch; a batch of one sample |
//! | `device_batch` | [`DeviceBatch`]: a batch in device memory |
//! | `grouping/` | buckets, packed sequences, fixed-length sequences, and their batches |
//! | `merge` | [`MergePolicy`]: which of several inputs provides the next item; [`ZipLength`] |
//! | `retry` | [`Retry`]: number of attempts, and the delays between them |
//!
//! Imports: `error`, `sync`, `seconds`, `runtime`, `memory`, `source`, `item`.

pub(crate) mod adapters;
pub(crate) mod aggregate;
pub(crate) mod batch;
pub(crate) mod collate;
pub(crate) mod device_batch;
pub(crate) mod grouping;
pub(crate) mod layout;
pub(crate) mod merge;
pub(crate) mod retry;
pub(crate) mod slot;

pub use aggregate::{Aggregator, Batcher, ExactResume, FillRate};
pub use batch::Batch;
pub use device_batch::{DeviceArray, DeviceBatch};
pub use grouping::{
    Bucketed, Bucketer, Bucketing, ConcatAndSplit, FillSequence, Packed, Packer, Packing, Piece,
    SampleTokens, Sequence, SequenceLayout, pieces,
};
pub use layout::{BatchLayout, Collation, Field};
pub use merge::{Arrival, Choice, MergePolicy, RoundRobin, WeightedMerge, ZipLength};
pub use retry::{Retried, Retry};
pub use slot::{Fill, FillContext, SampleBuffer, SlotMut};

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::item::ItemHeader;
use crate::memory::in_flight::InFlightMemory;
use crate::runtime::Runtime;
use crate::source::random::{ItemRng, SampleRng, StageRng, purpose_number, stage_number};
use crate::source::sample::SampleId;
use crate::sync::Counter;

/// A step that computes. Only one worker at a time uses an instance, so `&mut self` needs no lock.
///
/// The factory given to the builder creates an instance when a worker finds no unused one, and
/// after a panic. Instances move between worker threads and may own scratch memory.
///
/// ```
/// use spdl_core::{Result, Stage, StageContext};
///
/// /// Splits a text into its words: one input, zero or more outputs.
/// struct Words;
/// impl Stage<String> for Words {
///     type Out = String;
///     fn process(&mut self, text: String, cx: &mut StageContext<'_, String>) -> Result<()> {
///         let mut words = text.split_whitespace().peekable();
///         if words.peek().is_none() {
///             cx.filter_out();
///         }
///         words.try_for_each(|word| cx.emit(word.to_owned()))
///     }
/// }
/// ```
pub trait Stage<In>: Send + 'static {
    /// The type of the outputs.
    type Out: Send + 'static;

    /// Processes one input and passes zero or more outputs to [`cx.emit`](StageContext::emit).
    ///
    /// If the input has no output, now or later, call [`cx.filter_out`](StageContext::filter_out).
    /// If a call returns `Ok` without an output and without `filter_out`, the engine assumes that
    /// the stage buffers the input: see [`holds_back`](Stage::holds_back).
    ///
    /// # Errors
    /// Any error fails the item. The stage's failure policy decides whether the pipeline continues.
    /// Outputs emitted before the error are kept.
    fn process(&mut self, item: In, cx: &mut StageContext<'_, Self::Out>) -> Result<()>;

    /// Emits buffered outputs at the end of an epoch. The default emits nothing.
    ///
    /// At the end of each epoch, the engine calls `finish` on every instance that processed an item
    /// of the epoch. The first item of the next epoch is processed after all these calls. If a
    /// stage upstream fails, `finish` may be called before the end of the epoch. If the stage
    /// itself ends the pipeline, or the consumer stops it, `finish` may not be called.
    ///
    /// # Errors
    /// Any error ends the pipeline. The failure policy does not apply, because no single item failed.
    fn finish(&mut self, cx: &mut StageContext<'_, Self::Out>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// An upper bound on the total size of the outputs for `item`, in bytes, if known. Default:
    /// `None`.
    ///
    /// The engine calls `output_bytes` before it processes the item, and only if outputs are
    /// [`measured`](crate::PipelineBuilder::measured). The item waits until the memory budget can
    /// reserve that many bytes. If they exceed
    /// [`largest_item`](crate::PipelineBuilder::largest_item), the item fails. For `None`, the
    /// engine reserves the size of the largest recent output.
    fn output_bytes(&self, item: &In) -> Option<usize> {
        let _ = item;
        None
    }

    /// Number of items left out since the last call: neither emitted nor failed. Default: 0.
    ///
    /// For example, a stage leaves out the items of an incomplete last batch that it does not emit.
    /// The engine calls `take_left_out` after each group of items that a worker takes from the
    /// queue together, and at the end of each epoch. It adds the number to
    /// [`Statistics::left_out`](crate::Statistics::left_out).
    fn take_left_out(&mut self) -> u64 {
        0
    }

    /// Whether the stage buffers inputs after [`process`](Stage::process) returns. Default: `false`.
    ///
    /// [`Pipeline::state`](crate::Pipeline::state) returns `Unsupported` if the pipeline has such a
    /// stage, because a resumed run would lose the buffered samples. To combine items, use
    /// [`aggregate`](crate::PipelineBuilder::aggregate) instead.
    ///
    /// If the engine detects buffering while the pipeline runs, `state` returns `Unsupported` from
    /// then on. The engine detects an item without an output that is not [filtered
    /// out](StageContext::filter_out), and an output of [`finish`](Stage::finish). It cannot detect
    /// that a stage emits an output for each item and still buffers a part of the item. Such a
    /// stage must return `true`.
    fn holds_back(&self) -> bool {
        false
    }
}

/// Receives a stage's outputs: the scheduler's side of [`StageContext`].
pub(crate) trait Outlet<Out> {
    /// Accepts an output of the item `header`; waits while the next queue is full.
    fn emit(&mut self, header: &ItemHeader, value: Out) -> Result<()>;
    /// Accepts an output that consists of several items.
    fn emit_aggregate(
        &mut self,
        header: &ItemHeader,
        value: Out,
        parts: AggregateInputs,
    ) -> Result<()> {
        let _ = parts;
        self.emit(header, value)
    }
    /// Adds to the fill rate of the stage's aggregates.
    fn add_fill_rate(&mut self, more: FillRate) {
        let _ = more;
    }
    /// For the first item of an epoch: size of the part of the item that an earlier run of the
    /// program emitted.
    fn carry(&mut self, header: &ItemHeader) -> u64 {
        let _ = header;
        0
    }
    /// Records that the item has no output.
    fn filter_out(&mut self) {}
    /// Counts a repeated attempt.
    fn count_retry(&mut self) {}
    /// Waits; the worker may do other work meanwhile.
    fn wait(&mut self, duration: Duration) -> Result<()>;
    /// Returns `Stopped` if the pipeline is stopping.
    fn check_stopped(&self) -> Result<()>;
    /// Forwards buffered outputs, unless they must wait for outputs of earlier items.
    fn flush(&mut self) -> Result<()>;
}

/// The inputs of an aggregate, as its [`Aggregator`](crate::stage::Aggregator) reports them.
#[derive(Debug, Default)]
pub(crate) struct AggregateInputs {
    /// Numbers of the items in the aggregate; `None` means all items accumulated since the previous
    /// aggregate.
    pub(crate) members: Option<Vec<u64>>,
    /// The aggregator's [`ExactResume::carry`] after this aggregate.
    pub(crate) carry: u64,
}

/// Buffers a stage's outputs and forwards all other calls.
struct BufferingOutlet<'a, Out> {
    buffered: &'a mut Vec<Out>,
    outlet: &'a mut dyn Outlet<Out>,
}

impl<Out> Outlet<Out> for BufferingOutlet<'_, Out> {
    fn emit(&mut self, _: &ItemHeader, value: Out) -> Result<()> {
        // Ends a stage that emits outputs without end when the pipeline stops.
        self.check_stopped()?;
        self.buffered.push(value);
        Ok(())
    }

    fn filter_out(&mut self) {
        self.outlet.filter_out();
    }

    fn wait(&mut self, duration: Duration) -> Result<()> {
        self.outlet.wait(duration)
    }

    fn check_stopped(&self) -> Result<()> {
        self.outlet.check_stopped()
    }

    fn flush(&mut self) -> Result<()> {
        // Buffered outputs stay until the attempt succeeds.
        self.check_stopped()
    }
}

/// The current item of a [`Stage`], and the methods that emit its outputs.
pub struct StageContext<'a, Out> {
    pub(crate) header: &'a ItemHeader,
    pub(crate) seed: u64,
    pub(crate) stage: u64,
    pub(crate) outlet: &'a mut dyn Outlet<Out>,
}

impl<Out> StageContext<'_, Out> {
    /// Emits an output.
    ///
    /// If the next queue is full, `emit` waits, and the worker runs downstream stages meanwhile. All
    /// outputs of an input have its [`id`](StageContext::id). Each output has different random
    /// numbers in later stages.
    ///
    /// # Errors
    /// `Stopped` if the pipeline is stopping; return it from the stage with `?`.
    pub fn emit(&mut self, value: Out) -> Result<()> {
        self.outlet.emit(self.header, value)
    }

    /// Declares that this item has no output, now or later.
    ///
    /// The item counts as filtered in
    /// [`SampleCounts`](crate::resume::SampleCounts::filtered). The call has no effect if the item
    /// has an output.
    ///
    /// ```
    /// # use spdl_core::{DatasetSource, PipelineBuilder, Result, Stage, StageContext};
    /// struct Even;
    /// impl Stage<i32> for Even {
    ///     type Out = i32;
    ///     fn process(&mut self, n: i32, cx: &mut StageContext<'_, i32>) -> Result<()> {
    ///         if n % 2 == 0 {
    ///             return cx.emit(n);
    ///         }
    ///         cx.filter_out();
    ///         Ok(())
    ///     }
    /// }
    /// let numbers = DatasetSource::new(vec![1, 2, 3, 4, 5]);
    /// let mut even = PipelineBuilder::new(numbers).stage("even", || Ok(Even)).build()?;
    /// assert_eq!(even.by_ref().count(), 2);
    /// assert_eq!(even.state()?.samples().filtered, 3);
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    pub fn filter_out(&mut self) {
        self.outlet.filter_out();
    }

    /// Forwards all emitted outputs to the next stage.
    ///
    /// Outputs are forwarded in groups, so an output may stay buffered until the next output or the
    /// end of the item. Call `flush` if a long time passes between two outputs.
    ///
    /// # Errors
    /// `Stopped` if the pipeline is stopping; return it from the stage with `?`.
    pub fn flush(&mut self) -> Result<()> {
        self.outlet.flush()
    }

    /// Waits for `duration`, for example before a retry. Meanwhile the worker runs downstream
    /// stages.
    ///
    /// # Errors
    /// `Stopped` if the pipeline is stopping; return it from the stage with `?`.
    pub fn wait(&mut self, duration: Duration) -> Result<()> {
        self.outlet.wait(duration)
    }

    /// Epoch and position of the item. In [`Stage::finish`], those of the last item that the
    /// instance processed.
    pub fn id(&self) -> SampleId {
        self.header.id
    }

    /// The item's key, such as a path or an object key, if the source provides one.
    pub fn key(&self) -> Option<&str> {
        self.header.key().map(|key| &**key)
    }

    /// A random number generator that depends only on the seed, the item, the epoch and the stage's
    /// name. Every call returns a new generator with the same sequence.
    pub fn rng(&self) -> SampleRng {
        SampleRng::for_stage(self.seed, self.header.id, self.header.lineage, self.stage)
    }

    /// The generator that [`rng`](Self::rng) returns for this item in the stage `stage` of a
    /// pipeline with seed `seed`.
    ///
    /// A stage can use `rng_of` to draw the same random numbers as a stage of another pipeline.
    ///
    /// ```
    /// use spdl_core::{Error, PipelineBuilder, Result, Stage, StageContext};
    /// struct Draw;
    /// impl Stage<u64> for Draw {
    ///     type Out = bool;
    ///     fn process(&mut self, _: u64, cx: &mut StageContext<'_, bool>) -> Result<()> {
    ///         let same = cx.item_rng().rng_of(7, "decode").next_u64();
    ///         cx.emit(cx.rng_of(7, "decode").next_u64() == same)
    ///     }
    /// }
    /// let numbers = PipelineBuilder::from_iter(0..2).stage("draw", || Ok(Draw));
    /// assert_eq!(numbers.build()?.collect::<Result<Vec<_>>>()?, [true, true]);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn rng_of(&self, seed: u64, stage: &str) -> SampleRng {
        self.item_rng().rng_of(seed, stage)
    }

    /// The identity of the item, for generators that are created after the call of the stage.
    pub fn item_rng(&self) -> ItemRng {
        ItemRng { id: self.header.id, lineage: self.header.lineage }
    }
}

impl<Out> StageContext<'_, Out> {
    pub(crate) fn emit_aggregate(&mut self, value: Out, parts: AggregateInputs) -> Result<()> {
        self.outlet.emit_aggregate(self.header, value, parts)
    }

    pub(crate) fn add_fill_rate(&mut self, more: FillRate) {
        self.outlet.add_fill_rate(more);
    }

    pub(crate) fn carry(&mut self) -> u64 {
        self.outlet.carry(self.header)
    }

    /// A generator for an internal purpose, independent of the stage's [`rng`](Self::rng).
    pub(crate) fn rng_for(&self, purpose: &str) -> SampleRng {
        let stage = purpose_number(self.stage, purpose);
        SampleRng::for_stage(self.seed, self.header.id, self.header.lineage, stage)
    }

    /// Runs `work` with this context; its outputs are appended to `buffered`.
    pub(crate) fn with_buffered_outputs<R>(
        &mut self,
        buffered: &mut Vec<Out>,
        work: impl FnOnce(&mut StageContext<'_, Out>) -> R,
    ) -> R {
        work(&mut StageContext {
            header: self.header,
            seed: self.seed,
            stage: self.stage,
            outlet: &mut BufferingOutlet { buffered, outlet: &mut *self.outlet },
        })
    }
}

impl<Out> fmt::Debug for StageContext<'_, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageContext").field("id", &self.id()).field("key", &self.key()).finish()
    }
}

/// Creates a [`Stage`] from a function with one input and one output.
///
/// ```
/// # use spdl_core::{DatasetSource, PipelineBuilder};
/// # use spdl_core::stage::stage_fn;
/// let doubled = PipelineBuilder::new(DatasetSource::new(vec![1, 2, 3]))
///     .stage("double", || Ok(stage_fn(|n: i32| Ok(n * 2))))
///     .deterministic()
///     .build()?;
/// assert_eq!(doubled.collect::<spdl_core::Result<Vec<_>>>()?, [2, 4, 6]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub fn stage_fn<In, Out, F>(function: F) -> StageFn<F>
where
    F: FnMut(In) -> Result<Out> + Send + 'static,
    Out: Send + 'static,
{
    StageFn(function)
}

/// The [`Stage`] that [`stage_fn`] returns.
pub struct StageFn<F>(F);

impl<F> fmt::Debug for StageFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StageFn")
    }
}

impl<In, Out, F> Stage<In> for StageFn<F>
where
    F: FnMut(In) -> Result<Out> + Send + 'static,
    Out: Send + 'static,
{
    type Out = Out;

    fn process(&mut self, item: In, cx: &mut StageContext<'_, Out>) -> Result<()> {
        cx.emit((self.0)(item)?)
    }
}

/// What an async stage mostly waits for.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Medium {
    /// Unknown.
    #[default]
    Unknown,
    /// A store that is reached through a network.
    Network,
    /// A local file system.
    Disk,
}

/// A step that waits for the network, a disk or a device.
///
/// All items share one instance, and many are in flight. The pipeline's [`Runtime`] polls the
/// futures, which must not block. When the pipeline stops, unfinished futures are dropped.
#[async_trait]
pub trait AsyncStage<In: Send + 'static>: Send + Sync + 'static {
    /// The type of the outputs.
    type Out: Send + 'static;

    /// Turns one input into one output.
    ///
    /// # Errors
    /// Any error fails the item. The stage's failure policy decides whether the pipeline continues.
    async fn process(&self, item: In, cx: &AsyncContext) -> Result<Self::Out>;

    /// An upper bound on the size of the output for `item`, in bytes, if known. Default: `None`.
    /// See [`Stage::output_bytes`].
    fn output_bytes(&self, item: &In) -> Option<usize> {
        let _ = item;
        None
    }

    /// The stage's retry settings, listed in the pipeline's
    /// [`Definition`](crate::pipeline::Definition). Default: `None`, no retries.
    fn retry(&self) -> Option<Retry> {
        None
    }

    /// What the stage mostly waits for. Default: unknown.
    fn medium(&self) -> Medium {
        Medium::Unknown
    }
}

#[async_trait]
impl<In: Send + 'static, S: AsyncStage<In> + ?Sized> AsyncStage<In> for Arc<S> {
    type Out = S::Out;

    async fn process(&self, item: In, cx: &AsyncContext) -> Result<S::Out> {
        (**self).process(item, cx).await
    }

    fn output_bytes(&self, item: &In) -> Option<usize> {
        (**self).output_bytes(item)
    }

    fn retry(&self) -> Option<Retry> {
        (**self).retry()
    }

    fn medium(&self) -> Medium {
        (**self).medium()
    }
}

/// The current item of an [`AsyncStage`], and the runtime that polls the stage.
#[derive(Clone, Debug)]
pub struct AsyncContext {
    pub(crate) header: ItemHeader,
    pub(crate) seed: u64,
    pub(crate) stage: u64,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// Counts the stage's repeated attempts.
    pub(crate) retries: Counter,
    /// Present if the stage's outputs are measured.
    pub(crate) memory: Option<Arc<InFlightMemory>>,
}

impl AsyncContext {
    /// Creates a context outside a pipeline, for tests and direct calls of a stage.
    pub fn new(seed: u64, id: SampleId, stage: &str, runtime: Arc<dyn Runtime>) -> Self {
        let stage = stage_number(stage);
        let (header, retries) = (ItemHeader::new(id, None), Counter::default());
        AsyncContext { header, seed, stage, runtime, retries, memory: None }
    }

    /// Epoch and position of the item.
    pub fn id(&self) -> SampleId {
        self.header.id
    }

    /// The item's key, such as a path or an object key, if the source provides one.
    pub fn key(&self) -> Option<&str> {
        self.header.key().map(|key| &**key)
    }

    /// A random number generator that depends only on the seed, the item, the epoch and the stage's
    /// name. Every call returns a new generator with the same sequence.
    pub fn rng(&self) -> SampleRng {
        SampleRng::for_stage(self.seed, self.header.id, self.header.lineage, self.stage)
    }

    /// A generator for an internal purpose, independent of the stage's [`rng`](Self::rng).
    pub(crate) fn rng_for(&self, purpose: &str) -> SampleRng {
        let stage = purpose_number(self.stage, purpose);
        SampleRng::for_stage(self.seed, self.header.id, self.header.lineage, stage)
    }

    /// The random numbers that this item has in another stage of the pipeline, if only stages with one
    /// output for each input are between.
    ///
    /// A stage that reads files can use them to read only the part that a later stage will choose.
    pub fn rng_in(&self, stage: &str) -> StageRng {
        let stage = stage_number(stage);
        StageRng { seed: self.seed, id: self.header.id, lineage: self.header.lineage, stage }
    }

    /// The runtime that polls this stage. Use it to sleep and to spawn tasks.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    /// The bytes of the memory budget that are reserved for the output of this item. `usize::MAX`
    /// if the outputs of the stage are not [measured](crate::PipelineBuilder::measured).
    pub fn reserved_bytes(&self) -> usize {
        self.memory.as_ref().map_or(usize::MAX, |memory| memory.bytes())
    }

    /// Waits until at least `bytes` of the memory budget are reserved for the output of this item.
    ///
    /// Call it before the allocation, as soon as the size of the output is known, for example from
    /// the header `Content-Length`. If the size exceeds the free memory, younger items wait, and
    /// the oldest item of the stage continues as soon as no other item exceeds the budget. So the
    /// memory in use exceeds the budget by at most one item per stage.
    ///
    /// Returns immediately if the outputs of the stage are not measured.
    pub async fn reserve(&self, bytes: usize) {
        if let Some(memory) = &self.memory {
            poll_fn(|cx| memory.poll_grow(bytes, cx)).await;
        }
    }
}

/// The [`AsyncStage`] that calls an async function.
pub(crate) struct AsyncFunction<F>(F);

impl<F> AsyncFunction<F> {
    pub(crate) fn new(function: F) -> Self {
        AsyncFunction(function)
    }
}

#[async_trait]
impl<In, Out, R, F> AsyncStage<In> for AsyncFunction<F>
where
    In: Send + 'static,
    Out: Send + 'static,
    R: Future<Output = Result<Out>> + Send + 'static,
    F: Fn(In) -> R + Send + Sync + 'static,
{
    type Out = Out;

    async fn process(&self, item: In, _: &AsyncContext) -> Result<Out> {
        (self.0)(item).await
    }
}

/// Records the outputs and waits of a stage under test.
#[cfg(test)]
pub(crate) struct TestOutlet<Out> {
    pub(crate) outputs: Vec<Out>,
    pub(crate) waits: Vec<Duration>,
    /// Whether the pipeline is stopping.
    pub(crate) stopped: bool,
    /// Whether the pipeline stops during the next wait.
    pub(crate) stopped_on_wait: bool,
    /// Inputs of each aggregate.
    pub(crate) parts: Vec<AggregateInputs>,
    pub(crate) fill_rates: Vec<FillRate>,
    /// Size of the part of the first item that an earlier run emitted.
    pub(crate) carry: u64,
}

#[cfg(test)]
impl<Out> Default for TestOutlet<Out> {
    fn default() -> Self {
        let (outputs, waits, parts, fill_rates) = Default::default();
        let (stopped, stopped_on_wait) = (false, false);
        TestOutlet { outputs, waits, stopped, stopped_on_wait, parts, fill_rates, carry: 0 }
    }
}

#[cfg(test)]
impl<Out> TestOutlet<Out> {
    /// Runs `work` with a context of sample `id` outside a pipeline: seed 0, stage name `test`.
    pub(crate) fn run<R>(
        &mut self,
        id: SampleId,
        work: impl FnOnce(&mut StageContext<'_, Out>) -> R,
    ) -> R {
        let stage = crate::source::random::stage_number("test");
        work(&mut StageContext { header: &ItemHeader::new(id, None), seed: 0, stage, outlet: self })
    }
}

#[cfg(test)]
impl<Out> Outlet<Out> for TestOutlet<Out> {
    fn emit(&mut self, _: &ItemHeader, value: Out) -> Result<()> {
        self.check_stopped()?;
        self.outputs.push(value);
        Ok(())
    }

    fn emit_aggregate(
        &mut self,
        header: &ItemHeader,
        value: Out,
        parts: AggregateInputs,
    ) -> Result<()> {
        self.parts.push(parts);
        self.emit(header, value)
    }

    fn add_fill_rate(&mut self, more: FillRate) {
        self.fill_rates.push(more);
    }

    fn carry(&mut self, _: &ItemHeader) -> u64 {
        std::mem::take(&mut self.carry)
    }

    fn wait(&mut self, duration: Duration) -> Result<()> {
        self.stopped |= self.stopped_on_wait;
        self.check_stopped()?;
        self.waits.push(duration);
        Ok(())
    }

    fn check_stopped(&self) -> Result<()> {
        if self.stopped { Err(crate::error::stopped()) } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.check_stopped()
    }
}

#[cfg(test)]
/// Runs one epoch through a stage; returns its outputs, and the result of each item and of `finish`.
pub(crate) fn epoch<In, S: Stage<In>>(
    stage: &mut S,
    items: impl IntoIterator<Item = In>,
) -> (Vec<S::Out>, Vec<Result<()>>) {
    let mut outlet = TestOutlet::default();
    let results = outlet.run(SampleId::default(), |cx| {
        let mut results: Vec<_> = items.into_iter().map(|item| stage.process(item, cx)).collect();
        results.push(stage.finish(cx));
        results
    });
    (outlet.outputs, results)
}
