//! Settings of a stage: name, concurrency, order, failure policy, queue and threads.

use std::fmt;
use std::sync::Arc;

use crate::runtime::executor::CpuExecutor;
use crate::scheduler::failure::OnError;

/// Order in which a stage emits its outputs.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Order {
    /// In order of completion within each epoch. The default. A slow item delays items of later
    /// epochs, and the items that its worker took from the queue together with it: at most 63
    /// items. The worker takes only as many items together as it expects to process in 50 µs, by
    /// the mean time per item.
    Completion,
    /// In input order. Results of later items wait in a reorder buffer. If an item has many
    /// outputs, about 64 of them (at most 128) are buffered before the item's turn; then the worker
    /// waits, and runs downstream stages meanwhile.
    Input,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Order::Completion => "completion",
            Order::Input => "input",
        })
    }
}

/// Name and settings of a stage. A string converts to a name with default settings:
///
/// ```
/// use spdl_core::{OnError, Order, StageOptions};
/// let plain = StageOptions::from("decode");
/// let tuned = StageOptions::new("decode").concurrency(4).order(Order::Input).on_error(OnError::SKIP);
/// # let _ = (plain, tuned);
/// ```
#[derive(Clone, Debug)]
pub struct StageOptions {
    pub(crate) name: Arc<str>,
    /// See [`StageOptions::identity`].
    pub(crate) identity: Option<Arc<str>>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) order: Option<Order>,
    pub(crate) on_error: Option<OnError>,
    pub(crate) queue: Option<usize>,
    pub(crate) workers: Workers,
    /// See [`StageOptions::holds_gil`].
    pub(crate) holds_gil: bool,
    /// See [`StageOptions::unmeasured`].
    pub(crate) unmeasured: bool,
    /// Parameters that affect the results, declared by the caller, by name.
    pub(crate) parameters: Vec<(String, String)>,
}

/// Threads on which a stage runs.
#[derive(Clone, Debug, Default)]
pub(crate) enum Workers {
    /// Shared worker pool of the pipeline.
    #[default]
    Shared,
    /// Dedicated threads, as many as the concurrency. Each is pinned to one of these CPUs; an empty
    /// list means no pinning.
    Dedicated { cpus: Vec<usize> },
    /// Executor of the caller.
    Executor(Arc<dyn CpuExecutor>),
}

impl StageOptions {
    /// Creates default settings with a name, which must be unique in the pipeline.
    pub fn new(name: &str) -> Self {
        StageOptions {
            name: name.into(),
            identity: None,
            concurrency: None,
            order: None,
            on_error: None,
            queue: None,
            workers: Workers::Shared,
            holds_gil: false,
            unmeasured: false,
            parameters: Vec::new(),
        }
    }

    /// Sets the name from which random numbers are derived, and which checkpoint states contain.
    /// Default: the name of the stage.
    ///
    /// Set it if the name differs between runs, for example because it contains the number of the
    /// pipeline in the process. It must be unique in the pipeline.
    #[must_use]
    pub fn identity(mut self, identity: &str) -> Self {
        self.identity = Some(identity.into());
        self
    }

    /// The name in random numbers and checkpoint states.
    pub(crate) fn identified(&self) -> &Arc<str> {
        self.identity.as_ref().unwrap_or(&self.name)
    }

    /// Sets how many items the stage processes concurrently; 0 means 1.
    ///
    /// Default for a CPU stage: the number of worker threads, the number of
    /// [dedicated](Self::dedicated) threads, or the parallelism of its [executor](Self::executor).
    /// A stage that aggregates (batch, bucket, pack, concat and split, aggregate) always processes
    /// one item at a time. An upload stage starts with 1. [`Control`](crate::pipeline::Control)
    /// changes the concurrency while the pipeline runs.
    ///
    /// A worker may take several fast items together, so a CPU stage must not wait for the
    /// processing of a later item.
    ///
    /// An async stage starts with 16 items in flight and adapts the number to the measured
    /// throughput, up to 512. If the queue after the stage is empty for more than 5 % of the time,
    /// and all permitted items are in flight most of the time, the stage tries a 50 % higher
    /// number. It keeps this number if the throughput then rises by about an eighth, or if the
    /// queue is then empty for at most 5 % of the time. The number shrinks if more than 10 % of the
    /// items fail, or if the queue is hardly ever empty, but not below 16. The
    /// [statistics](crate::Statistics) show the current number. A number set here is fixed until
    /// [`Control`](crate::pipeline::Control) or [`tune`](crate::PipelineBuilder::tune) changes it. If
    /// [`queue`](StageOptions::queue) is set,
    /// or [`prefetch`](crate::PipelineBuilder::prefetch) for the last stage, the number stays 16.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = Some(concurrency.max(1));
        self
    }

    /// Sets the order of the outputs. Default: the order of the pipeline. The order has no effect
    /// on stages that aggregate, which process one item at a time, and on
    /// [`fill`](crate::PipelineBuilder::fill), which always keeps its input order.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// Sets the failure policy. Its limit applies to this stage only. Default: the policy of the
    /// pipeline, whose limit applies to all stages without a separate policy together.
    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = Some(on_error);
        self
    }

    /// Sets the capacity of the queue after the stage, in items; 0 means 1.
    ///
    /// Defaults: 256 after a source. After a CPU stage twice the concurrency, at least 64. After an
    /// async stage twice the concurrency. After [`fill`](crate::PipelineBuilder::fill) 2 batches,
    /// in addition to the batches in assembly. The last stage, unless it is a fill, ignores the
    /// capacity: set [`prefetch`](crate::PipelineBuilder::prefetch) instead.
    #[must_use]
    pub fn queue(mut self, capacity: usize) -> Self {
        self.queue = Some(capacity.max(1));
        self
    }

    /// Releases the memory reservation of each input after the stage has processed it, so that outputs do not count
    /// in the memory budget. For CPU stages that do not [aggregate](crate::PipelineBuilder::aggregate); others ignore it.
    ///
    /// Default: an output of a stage that is not [measured](crate::PipelineBuilder::measured) takes over the reservation
    /// of its input.
    #[must_use]
    pub fn unmeasured(mut self) -> Self {
        self.unmeasured = true;
        self
    }

    /// Runs the stage on dedicated threads, as many as its concurrency (default: 1).
    ///
    /// Use dedicated threads for a stage that must stay on one thread or that blocks its thread.
    /// The threads create the instances of the stage.
    #[must_use]
    pub fn dedicated(mut self) -> Self {
        self.workers = Workers::Dedicated { cpus: Vec::new() };
        self
    }

    /// Runs the stage on dedicated threads that are pinned to these CPUs, numbered as by the
    /// operating system. Default concurrency: the number of CPUs in the list. Requires the feature
    /// `affinity` and Linux.
    #[must_use]
    pub fn pinned(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.workers = Workers::Dedicated { cpus: cpus.into_iter().collect() };
        self
    }

    /// Runs the CPU stage on an executor of the caller.
    #[must_use]
    pub fn executor(mut self, executor: Arc<dyn CpuExecutor>) -> Self {
        self.workers = Workers::Executor(executor);
        self
    }

    /// Sets whether the function of a CPU stage holds Python's GIL while it computes. Default: `false`.
    ///
    /// The statistics and the diagnosis use it if the pipeline reports
    /// [requests for the GIL](crate::observe::ExternalTimes::gil).
    #[must_use]
    pub fn holds_gil(mut self, holds_gil: bool) -> Self {
        self.holds_gil = holds_gil;
        self
    }
}

impl StageOptions {
    /// Declares a parameter that affects the results of the stage, such as a crop size or a
    /// tokenizer version.
    ///
    /// The parameter is part of the [definition](crate::pipeline::Definition), and of the
    /// [fingerprint](crate::State::fingerprint) under the name `stage NAME: PARAMETER`. If the
    /// value changes, `build` rejects the resumed state, unless the state
    /// [allows](crate::State::allow_change) the change. If a value is longer than 100 characters,
    /// the fingerprint contains its first 82 characters and a hash.
    /// [`build`](crate::PipelineBuilder::build) rejects a name that the fingerprint of the stage
    /// already contains, such as `size` for a batch stage.
    ///
    /// ```
    /// # use spdl_core::{DatasetSource, PipelineBuilder, StageOptions};
    /// let scaled = |factor: i32| {
    ///     let options = StageOptions::new("scale").parameter("factor", factor);
    ///     let numbers = DatasetSource::new(vec![1, 2, 3]);
    ///     PipelineBuilder::new(numbers).map(options, move |n| Ok(n * factor))
    /// };
    /// let mut first = scaled(10).build()?;
    /// assert!(first.next().transpose()?.is_some());
    /// let error = scaled(20).resume(first.state()?).build().unwrap_err();
    /// assert!(error.to_string().contains("stage scale: factor was 10, is 20"));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn parameter(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.parameters.push((name.to_owned(), value.to_string()));
        self
    }

    /// Declares several [parameters](StageOptions::parameter).
    #[must_use]
    pub fn parameters(
        self,
        parameters: impl IntoIterator<Item = (impl AsRef<str>, impl fmt::Display)>,
    ) -> Self {
        parameters
            .into_iter()
            .fold(self, |options, (name, value)| options.parameter(name.as_ref(), value))
    }
}

impl From<&str> for StageOptions {
    fn from(name: &str) -> Self {
        StageOptions::new(name)
    }
}

impl From<&String> for StageOptions {
    fn from(name: &String) -> Self {
        StageOptions::new(name)
    }
}
