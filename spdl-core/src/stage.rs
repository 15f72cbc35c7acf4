//! Steps that compute, and steps that wait.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::runtime::Runtime;
use crate::{Result, SampleId, SampleRng};

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
///         for word in text.split_whitespace() {
///             cx.emit(word.to_owned())?;
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Stage<In>: Send + 'static {
    /// What it yields.
    type Out: Send + 'static;

    /// Turns one input into zero or more outputs through `cx.emit`.
    ///
    /// # Errors
    /// Whatever keeps the item from being processed. The stage's policy decides what follows;
    /// outputs that were emitted before the error are kept.
    fn process(&mut self, item: In, cx: &mut StageContext<'_, Self::Out>) -> Result<()>;

    /// Emits what is held when the data end: once, after the last epoch, on every instance that was
    /// made. A stage that must not carry anything from one epoch into the next compares
    /// [`StageContext::id`].
    ///
    /// # Errors
    /// As for [`process`](Stage::process).
    fn finish(&mut self, cx: &mut StageContext<'_, Self::Out>) -> Result<()> {
        let _ = cx;
        Ok(())
    }
}

/// Where a stage's outputs go. The scheduler's side of [`StageContext::emit`].
pub(crate) trait Outlet<Out> {
    /// Takes an output; waits for room where there is none.
    fn emit(&mut self, value: Out) -> Result<()>;
}

/// What a [`Stage`] may know about the item at hand, and where its outputs go.
pub struct StageContext<'a, Out> {
    pub(crate) id: SampleId,
    pub(crate) key: Option<&'a str>,
    pub(crate) seed: u64,
    pub(crate) stage: u64,
    pub(crate) outlet: &'a mut dyn Outlet<Out>,
}

impl<'a, Out> StageContext<'a, Out> {
    /// Hands an output on. Where the next queue is full this waits, and the worker meanwhile does
    /// the work of stages nearer to the consumer. All outputs of one input carry its identity, and
    /// so have the same random numbers in later stages.
    ///
    /// # Errors
    /// `Stopped` once the pipeline is stopping; leave the stage with `?`.
    pub fn emit(&mut self, value: Out) -> Result<()> {
        self.outlet.emit(value)
    }

    /// Who the item is. In [`Stage::finish`], the last item that the instance saw.
    pub fn id(&self) -> SampleId {
        self.id
    }

    /// What people call it: a path, an object key.
    pub fn key(&self) -> Option<&'a str> {
        self.key
    }

    /// The item's random numbers in this stage, from their start.
    pub fn rng(&self) -> SampleRng {
        SampleRng::for_stage(self.seed, self.id, self.stage)
    }
}

impl<Out> fmt::Debug for StageContext<'_, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StageContext").field("id", &self.id).field("key", &self.key).finish()
    }
}

/// A function from one input to one output as a [`Stage`].
///
/// ```
/// # use spdl_core::{DatasetSource, PipelineBuilder, stage_fn};
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
}

#[async_trait]
impl<In: Send + 'static, S: AsyncStage<In> + ?Sized> AsyncStage<In> for Arc<S> {
    type Out = S::Out;

    async fn process(&self, item: In, cx: &AsyncContext) -> Result<S::Out> {
        (**self).process(item, cx).await
    }
}

/// What an [`AsyncStage`] may know about the item at hand.
#[derive(Clone, Debug)]
pub struct AsyncContext {
    pub(crate) id: SampleId,
    pub(crate) key: Option<Arc<str>>,
    pub(crate) seed: u64,
    pub(crate) stage: u64,
    pub(crate) runtime: Arc<dyn Runtime>,
}

impl AsyncContext {
    /// A context outside a pipeline, for tests and for calling a stage by hand.
    pub fn new(seed: u64, id: SampleId, stage: &str, runtime: Arc<dyn Runtime>) -> Self {
        let stage = crate::random::stage_number(stage);
        AsyncContext { id, key: None, seed, stage, runtime }
    }

    /// Who the item is.
    pub fn id(&self) -> SampleId {
        self.id
    }

    /// What people call it: a path, an object key.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The item's random numbers in this stage, from their start.
    pub fn rng(&self) -> SampleRng {
        SampleRng::for_stage(self.seed, self.id, self.stage)
    }

    /// The runtime that polls this stage: to sleep on, to spawn on.
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }
}
