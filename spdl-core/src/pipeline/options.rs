//! How a stage works: its settings.

use std::fmt;
use std::sync::Arc;

use crate::runtime::executor::CpuExecutor;
use crate::scheduler::failure::OnError;

/// In which order a stage hands its outputs on.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
pub enum Order {
    /// As they get ready. The default. A slow item holds nothing back but those that its worker took
    /// together with it: at most 63, as many as take 50 µs by the mean of the items so far.
    Completion,
    /// As the inputs came. What is ready early waits for its turn; an input that makes many outputs
    /// out of turn waits with most of them.
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

/// A stage's name and settings. A plain name is enough where the defaults fit:
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
    pub(crate) concurrency: Option<usize>,
    pub(crate) order: Option<Order>,
    pub(crate) on_error: Option<OnError>,
    pub(crate) queue: Option<usize>,
    pub(crate) workers: Workers,
    /// What else decides what it does, by name.
    pub(crate) parameters: Vec<(String, String)>,
}

/// Whose threads a stage runs on.
#[derive(Clone, Debug, Default)]
pub(crate) enum Workers {
    /// The pipeline's.
    #[default]
    Shared,
    /// Its own, as many as its concurrency, each on one of these CPUs (on any, where there are none).
    Own { cpus: Vec<usize> },
    /// A pool of the caller's.
    Executor(Arc<dyn CpuExecutor>),
}

impl StageOptions {
    /// The defaults under a name, which must be unique in its pipeline.
    pub fn new(name: &str) -> Self {
        StageOptions {
            name: name.into(),
            concurrency: None,
            order: None,
            on_error: None,
            queue: None,
            workers: Workers::Shared,
            parameters: Vec::new(),
        }
    }

    /// How many items the stage may work on at once; 0 is taken as 1. Default: the number of worker
    /// threads for a stage that computes. A stage that puts items together (a batch, an aggregate)
    /// always works on one at a time. While the pipeline runs, [`Control`](crate::pipeline::Control) changes it.
    ///
    /// A stage that waits begins with 16 and finds out by itself what more brings, up to 512: as long
    /// as nothing is ready behind it for 5 % of the time, it tries half as many more, and keeps them if
    /// they bring more items a second. The [statistics](crate::Statistics) show how many there are. A
    /// number given here stays as it is; so do the 16 where [`queue`](StageOptions::queue) is given,
    /// or, for the last stage, the [prefetch](crate::PipelineBuilder::prefetch).
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = Some(concurrency.max(1));
        self
    }

    /// In which order outputs are handed on. Default: the pipeline's.
    /// [`fill`](crate::PipelineBuilder::fill) always keeps its input order.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = Some(order);
        self
    }

    /// What happens to an item that fails. A budget given here is this stage's own. Default: the
    /// pipeline's, whose budget all stages without one of their own share.
    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = Some(on_error);
        self
    }

    /// How many outputs may wait for the next stage; 0 is taken as 1. Default: 256 behind a source, 64 or
    /// twice the concurrency behind a stage that computes, twice the concurrency behind one that
    /// waits. The last stage's queue is set by [`prefetch`](crate::PipelineBuilder::prefetch)
    /// instead.
    #[must_use]
    pub fn queue(mut self, capacity: usize) -> Self {
        self.queue = Some(capacity.max(1));
        self
    }

    /// Gives the stage threads of its own, as many as its concurrency (1, where that is not set),
    /// for stages that are bound to their thread, or block it. Instances are made on these threads.
    #[must_use]
    pub fn dedicated(mut self) -> Self {
        self.workers = Workers::Own { cpus: Vec::new() };
        self
    }

    /// Gives the stage threads of its own that run on these CPUs only, numbered as by the operating
    /// system. Needs the feature `affinity`, and Linux.
    #[must_use]
    pub fn pinned(mut self, cpus: impl IntoIterator<Item = usize>) -> Self {
        self.workers = Workers::Own { cpus: cpus.into_iter().collect() };
        self
    }

    /// Runs the stage on a pool of the caller's.
    #[must_use]
    pub fn executor(mut self, executor: Arc<dyn CpuExecutor>) -> Self {
        self.workers = Workers::Executor(executor);
        self
    }
}

impl StageOptions {
    /// Tells what decides what the stage does, which the engine cannot see: the size of a crop, the
    /// version of a tokenizer. It is part of the [definition](crate::pipeline::Definition), and of the
    /// [fingerprint](crate::State::fingerprint) under the name `stage NAME: PARAMETER`: a run that is
    /// resumed with another value is told so. Of more than 100 characters it keeps the first 82 and a
    /// hash of all. A name that the engine uses for that stage (`size`, `order`) is refused when the
    /// pipeline is built.
    ///
    /// ```
    /// # use spdl_core::{DatasetSource, PipelineBuilder, StageOptions};
    /// let scaled = |factor: i32| {
    ///     let options = StageOptions::new("scale").parameter("factor", factor);
    ///     let numbers = DatasetSource::new(vec![1, 2, 3]);
    ///     PipelineBuilder::new(numbers).map(options, move |n| Ok(n * factor))
    /// };
    /// let mut first = scaled(10).build()?;
    /// assert_eq!(first.next().transpose()?, Some(10));
    /// let error = scaled(20).resume(first.state()?).build().unwrap_err();
    /// assert!(error.to_string().contains("stage scale: factor was 10, is 20"));
    /// # Ok::<(), spdl_core::Error>(())
    /// ```
    #[must_use]
    pub fn parameter(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.parameters.push((name.to_owned(), value.to_string()));
        self
    }

    /// Several [parameters](StageOptions::parameter) at once, by name.
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
