//! Stages: steps that compute or wait, batches, aggregates, merges and retries.
//!
//! | file | what |
//! |---|---|
//! | this file | [`Stage`], [`AsyncStage`] and their contexts |
//! | `aggregate` | [`Aggregator`]: several items into one |
//! | `adapters` | stages that the builder makes of functions: map, filter, flat map |
//! | `batch` | [`Fill`], [`Batch`], [`BatchLayout`]: samples written into slots of a batch |
//! | `device_batch` | [`DeviceBatch`]: a batch in device memory |
//! | `grouping/` | buckets, packed sequences, fixed-length pieces |
//! | `merge` | [`MergePolicy`]: which of several inputs is next |
//! | `retry` | [`Retry`]: attempts and waits between them |
//!
//! Imports: `error`, `sync`, `seconds`, `runtime`, `memory`, `source`, `item`.

pub(crate) mod adapters;
pub(crate) mod aggregate;
pub(crate) mod batch;
pub(crate) mod device_batch;
pub(crate) mod grouping;
pub(crate) mod merge;
pub(crate) mod retry;

pub use aggregate::{Aggregator, Batcher, ExactResume, FillRate};
pub use batch::{Batch, BatchLayout, Field, Fill, FillContext, SlotMut};
pub use device_batch::{DeviceArray, DeviceBatch};
pub use grouping::{
    Bucketed, Bucketer, Bucketing, ConcatAndSplit, Packed, Packer, Packing, Piece, Sequence, pieces,
};
pub use merge::{Arrival, Choice, MergePolicy, RoundRobin, WeightedMerge};
pub use retry::{Retried, Retry};

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::error::Result;
use crate::item::ItemHeader;
use crate::runtime::Runtime;
use crate::source::random::{SampleRng, purpose_number};
use crate::source::sample::SampleId;

/// A step that computes. One instance per worker, so `&mut self` needs no lock.
///
/// Instances are made by the factory given to the builder, when first needed, and passed between
/// worker threads; scratch memory may live in them.
///
/// ```
/// use spdl_core::{Result, Stage, StageContext};
///
/// /// Cuts a text into its words: one input, zero or more outputs.
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
    /// What it yields.
    type Out: Send + 'static;

    /// Turns one input into zero or more outputs through `cx.emit`. Where nothing comes of it, says
    /// so through [`cx.filter_out`](StageContext::filter_out).
    ///
    /// An item that is neither emitted nor filtered out, nor has failed, is taken to be held back:
    /// see [`holds_back`](Stage::holds_back).
    ///
    /// # Errors
    /// Whatever keeps the item from being processed. The stage's policy decides what follows;
    /// outputs that were emitted before the error are kept.
    fn process(&mut self, item: In, cx: &mut StageContext<'_, Self::Out>) -> Result<()>;

    /// Emits what is held when an epoch ends. Called at the end of every epoch, on every instance
    /// that was made; none of them has seen an item of the next epoch.
    ///
    /// # Errors
    /// As for [`process`](Stage::process).
    fn finish(&mut self, cx: &mut StageContext<'_, Self::Out>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// The most bytes that the outputs for `item` will hold together, where that is known. Asked
    /// before the item is processed, and only where outputs are
    /// [`measured`](crate::PipelineBuilder::measured): the item waits until the memory budget has
    /// that much. `None` is taken for the most that any output held so far.
    fn output_bytes(&self, item: &In) -> Option<usize> {
        let _ = item;
        None
    }

    /// How many items have been left out since it was asked last, neither emitted nor failed: a
    /// short last batch that is not wanted. Asked after each run of items and at the end of each
    /// epoch; counted in [`Statistics::left_out`](crate::Statistics::left_out).
    fn take_left_out(&mut self) -> u64 {
        0
    }

    /// Whether outputs may be made of several inputs: whether it keeps something back when
    /// [`process`](Stage::process) returns. The [state](crate::Pipeline::state) of a pipeline with
    /// such a stage is `Unsupported`; put items together with
    /// [`aggregate`](crate::PipelineBuilder::aggregate).
    ///
    /// A stage that does so and does not say it would lose samples when a run is resumed. So where
    /// it is seen, there is no state either, from then on: where nothing came of an item and it was
    /// not [filtered out](StageContext::filter_out), and where [`finish`](Stage::finish) emits
    /// something. What cannot be seen is a stage that emits something for each item and still keeps a
    /// part of it: that one has to say so here.
    fn holds_back(&self) -> bool {
        false
    }
}

/// Where a stage's outputs go. The scheduler's side of [`StageContext`].
pub(crate) trait Outlet<Out> {
    /// Takes an output of the item `header`; waits for room where there is none.
    fn emit(&mut self, header: &ItemHeader, value: Out) -> Result<()>;
    /// Takes an output that is made of several items.
    fn emit_aggregate(
        &mut self,
        header: &ItemHeader,
        value: Out,
        parts: AggregateInputs,
    ) -> Result<()> {
        let _ = parts;
        self.emit(header, value)
    }
    /// Counts how well aggregates are filled.
    fn filled(&mut self, more: FillRate) {
        let _ = more;
    }
    /// How much of this item, the first one of an epoch, had gone out in an earlier run.
    fn carry(&mut self, header: &ItemHeader) -> u64 {
        let _ = header;
        0
    }
    /// Takes it that nothing comes of the item.
    fn filter_out(&mut self) {}
    /// Lets time pass without holding others up.
    fn wait(&mut self, duration: Duration) -> Result<()>;
    /// `Stopped` once nobody wants outputs any more.
    fn go_on(&self) -> Result<()>;
    /// Hands on what was taken so far, where its turn has come.
    fn flush(&mut self) -> Result<()>;
}

/// What an aggregate is made of, as an [`Aggregator`](crate::stage::Aggregator) tells it.
#[derive(Debug, Default)]
pub(crate) struct AggregateInputs {
    /// Which of the items taken in; `None`: all since the one before.
    pub(crate) members: Option<Vec<u64>>,
    /// How much of the oldest item still held has gone out.
    pub(crate) carry: u64,
}

/// Keeps a stage's outputs back; all else goes to the outlet behind it.
struct BufferingOutlet<'a, Out> {
    held: &'a mut Vec<Out>,
    outlet: &'a mut dyn Outlet<Out>,
}

impl<Out> Outlet<Out> for BufferingOutlet<'_, Out> {
    fn emit(&mut self, _: &ItemHeader, value: Out) -> Result<()> {
        // Else a stage that emits without end would not hear of it.
        self.go_on()?;
        self.held.push(value);
        Ok(())
    }

    fn filter_out(&mut self) {
        self.outlet.filter_out();
    }

    fn wait(&mut self, duration: Duration) -> Result<()> {
        self.outlet.wait(duration)
    }

    fn go_on(&self) -> Result<()> {
        self.outlet.go_on()
    }

    fn flush(&mut self) -> Result<()> {
        // What is held back must not go on yet.
        self.go_on()
    }
}

/// What a [`Stage`] may know about the item at hand, and where its outputs go.
pub struct StageContext<'a, Out> {
    pub(crate) header: &'a ItemHeader,
    pub(crate) seed: u64,
    pub(crate) stage: u64,
    pub(crate) outlet: &'a mut dyn Outlet<Out>,
}

impl<Out> StageContext<'_, Out> {
    /// Hands an output on. Where the next queue is full this waits, and the worker meanwhile does
    /// the work of stages nearer to the consumer. All outputs of one input carry its
    /// [`id`](StageContext::id), but each has random numbers of its own in later stages.
    ///
    /// # Errors
    /// `Stopped` once nobody wants outputs any more; leave the stage with `?`.
    pub fn emit(&mut self, value: Out) -> Result<()> {
        self.outlet.emit(self.header, value)
    }

    /// Says that nothing comes of this item, now or later: it is filtered out, and counted so in the
    /// [state](crate::resume::SampleCounts) of the run. Of an item for which something is emitted it says
    /// nothing.
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

    /// Hands on what has been emitted so far. Outputs are else handed on in runs: one may stay with
    /// its stage until the next one is emitted, or the item is done. For a stage that takes long from
    /// one output to the next.
    ///
    /// # Errors
    /// `Stopped` once nobody wants outputs any more; leave the stage with `?`.
    pub fn flush(&mut self) -> Result<()> {
        self.outlet.flush()
    }

    /// Waits, before another attempt say. The worker meanwhile does the work of stages nearer to
    /// the consumer.
    ///
    /// # Errors
    /// `Stopped` once nobody wants outputs any more; leave the stage with `?`.
    pub fn wait(&mut self, duration: Duration) -> Result<()> {
        self.outlet.wait(duration)
    }

    /// Who the item is. In [`Stage::finish`], the last item that the instance saw.
    pub fn id(&self) -> SampleId {
        self.header.id
    }

    /// What people call it: a path, an object key.
    pub fn key(&self) -> Option<&str> {
        self.header.key().map(|key| &**key)
    }

    /// The item's random numbers in this stage, from their start.
    pub fn rng(&self) -> SampleRng {
        SampleRng::for_stage(self.seed, self.header.id, self.header.lineage, self.stage)
    }

    /// The random numbers that the item would have in the stage of this name of a run with this
    /// seed: for a stage that has a seed of its own, and draws what another pipeline draws.
    pub fn rng_of(&self, seed: u64, stage: &str) -> SampleRng {
        let stage = crate::source::random::stage_number(stage);
        SampleRng::for_stage(seed, self.header.id, self.header.lineage, stage)
    }
}

impl<Out> StageContext<'_, Out> {
    pub(crate) fn emit_aggregate(&mut self, value: Out, parts: AggregateInputs) -> Result<()> {
        self.outlet.emit_aggregate(self.header, value, parts)
    }

    pub(crate) fn filled(&mut self, more: FillRate) {
        self.outlet.filled(more);
    }

    pub(crate) fn carry(&mut self) -> u64 {
        self.outlet.carry(self.header)
    }

    /// Random numbers of the item in this stage for something else than the stage's own work.
    pub(crate) fn rng_for(&self, purpose: &str) -> SampleRng {
        let stage = purpose_number(self.stage, purpose);
        SampleRng::for_stage(self.seed, self.header.id, self.header.lineage, stage)
    }

    /// Runs `work` with this context, except that what it emits goes into `held`.
    pub(crate) fn holding_back<R>(
        &mut self,
        held: &mut Vec<Out>,
        work: impl FnOnce(&mut StageContext<'_, Out>) -> R,
    ) -> R {
        work(&mut StageContext {
            header: self.header,
            seed: self.seed,
            stage: self.stage,
            outlet: &mut BufferingOutlet { held, outlet: &mut *self.outlet },
        })
    }
}

impl<Out> fmt::Debug for StageContext<'_, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageContext").field("id", &self.id()).field("key", &self.key()).finish()
    }
}

/// A function from one input to one output as a [`Stage`].
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

/// The [`Stage`] that [`stage_fn`] makes.
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

/// A step that waits: network, disk, device. One shared instance, many items in flight.
///
/// Futures are polled on the pipeline's [`Runtime`] and must not block it. A future is dropped in
/// the middle where the pipeline stops.
#[async_trait]
pub trait AsyncStage<In: Send + 'static>: Send + Sync + 'static {
    /// What it yields.
    type Out: Send + 'static;

    /// Turns one input into one output.
    ///
    /// # Errors
    /// Whatever keeps the item from being processed. The stage's policy decides what follows.
    async fn process(&self, item: In, cx: &AsyncContext) -> Result<Self::Out>;

    /// The most bytes that the output for `item` will hold, where that is known. As for
    /// [`Stage::output_bytes`].
    fn output_bytes(&self, item: &In) -> Option<usize> {
        let _ = item;
        None
    }

    /// How it tries again, for the pipeline's [`Definition`](crate::pipeline::Definition). `None`: it does not.
    fn retry(&self) -> Option<Retry> {
        None
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
}

/// What an [`AsyncStage`] may know about the item at hand.
#[derive(Clone, Debug)]
pub struct AsyncContext {
    pub(crate) header: ItemHeader,
    pub(crate) seed: u64,
    pub(crate) stage: u64,
    pub(crate) runtime: Arc<dyn Runtime>,
}

impl AsyncContext {
    /// A context outside a pipeline, for tests and for calling a stage by hand.
    pub fn new(seed: u64, id: SampleId, stage: &str, runtime: Arc<dyn Runtime>) -> Self {
        let stage = crate::source::random::stage_number(stage);
        AsyncContext { header: ItemHeader::new(id, None), seed, stage, runtime }
    }

    /// Who the item is.
    pub fn id(&self) -> SampleId {
        self.header.id
    }

    /// What people call it: a path, an object key.
    pub fn key(&self) -> Option<&str> {
        self.header.key().map(|key| &**key)
    }

    /// The item's random numbers in this stage, from their start.
    pub fn rng(&self) -> SampleRng {
        SampleRng::for_stage(self.seed, self.header.id, self.header.lineage, self.stage)
    }

    /// Random numbers of the item in this stage for something else than the stage's own work.
    pub(crate) fn rng_for(&self, purpose: &str) -> SampleRng {
        let stage = purpose_number(self.stage, purpose);
        SampleRng::for_stage(self.seed, self.header.id, self.header.lineage, stage)
    }

    /// The runtime that polls this stage: to sleep on, to spawn on.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }
}

/// An async function as an [`AsyncStage`].
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

/// What a stage under test emitted, and how long it waited.
#[cfg(test)]
pub(crate) struct TestOutlet<Out> {
    pub(crate) outputs: Vec<Out>,
    pub(crate) waits: Vec<Duration>,
    /// Whether the pipeline is stopping.
    pub(crate) stopped: bool,
    /// Whether it will stop during the next wait.
    pub(crate) stopped_on_wait: bool,
    /// What was told of aggregates.
    pub(crate) parts: Vec<AggregateInputs>,
    pub(crate) filled: Vec<FillRate>,
    /// How much of the first item has gone out before.
    pub(crate) carry: u64,
}

#[cfg(test)]
impl<Out> Default for TestOutlet<Out> {
    fn default() -> Self {
        let (outputs, waits, parts, filled) = Default::default();
        let (stopped, stopped_on_wait) = (false, false);
        TestOutlet { outputs, waits, stopped, stopped_on_wait, parts, filled, carry: 0 }
    }
}

#[cfg(test)]
impl<Out> TestOutlet<Out> {
    /// Runs `work` with a context of sample `id` outside a pipeline: seed 0, a stage called `test`.
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
        self.go_on()?;
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

    fn filled(&mut self, more: FillRate) {
        self.filled.push(more);
    }

    fn carry(&mut self, _: &ItemHeader) -> u64 {
        std::mem::take(&mut self.carry)
    }

    fn wait(&mut self, duration: Duration) -> Result<()> {
        self.stopped |= self.stopped_on_wait;
        self.go_on()?;
        self.waits.push(duration);
        Ok(())
    }

    fn go_on(&self) -> Result<()> {
        if self.stopped { Err(crate::error::stopped()) } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.go_on()
    }
}

#[cfg(test)]
/// Feeds a stage one epoch; returns what it emitted and how each item went.
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
