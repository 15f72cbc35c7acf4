//! Assembly of the engine's pipeline from Python's description.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use spdl_core::observe::Counter;
use spdl_core::stage::{Arrival, Choice, MergePolicy, WeightedMerge, ZipLength};
use spdl_core::{PipelineBuilder, StageContext};

use super::Item;
use super::feed::{Feed, FeedQueue, KeyedItem};
use super::stage::{PART, Sizer, Stage, queue_len, stage_options};
use crate::interop::error::{Raised, to_exception};
use crate::interop::wait::try_python;
use crate::operators::Stores;

/// A pipeline description, for a single use.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Graph(Mutex<Option<GraphParts>>);

pub(super) struct GraphParts {
    pub(super) pipeline: PipelineBuilder<Item>,
    /// The queues of all sources.
    pub(super) queues: Vec<Arc<FeedQueue>>,
    pub(super) continuous: bool,
    /// The number of quarantined items of each source with keys.
    pub(super) left_out: Vec<Counter>,
    /// The stores that stages read from, whose runtime the pipeline shares.
    pub(super) stores: Option<Stores>,
}

/// Leaves out items by their keys.
struct LeaveOut(Arc<HashSet<String>>, Counter);

impl spdl_core::Stage<KeyedItem> for LeaveOut {
    type Out = Item;

    fn process(
        &mut self,
        (item, key): KeyedItem,
        cx: &mut StageContext<'_, Item>,
    ) -> spdl_core::Result<()> {
        if key.is_some_and(|key| self.0.contains(&*key)) {
            self.1.add(1);
            cx.filter_out();
            return Ok(());
        }
        cx.emit(item)
    }
}

/// Makes a tuple of the items that a zip has joined.
struct MakeTuple;

impl spdl_core::Stage<Vec<Item>> for MakeTuple {
    type Out = Item;

    fn process(
        &mut self,
        items: Vec<Item>,
        cx: &mut StageContext<'_, Item>,
    ) -> spdl_core::Result<()> {
        let tuple = try_python(|py| {
            let tuple = PyTuple::new(py, items);
            let tuple = tuple.map_err(|exception| Raised::into_error(py, exception))?;
            Ok(tuple.into_any().unbind())
        })?;
        cx.emit(tuple)
    }
}

/// Random draws that depend on a separate seed.
#[derive(Debug)]
struct Seeded {
    policy: WeightedMerge,
    seed: u64,
}

impl MergePolicy for Seeded {
    fn choose(&mut self, open: &[bool]) -> Choice {
        self.policy.choose(open)
    }

    fn check(&self, branches: usize) -> spdl_core::Result<()> {
        self.policy.check(branches)
    }

    fn start_epoch(&mut self, epoch: u64, branches: usize, _: u64) -> spdl_core::Result<()> {
        self.policy.start_epoch(epoch, branches, self.seed)
    }
}

#[pymethods]
impl Graph {
    /// A pipeline of one source. Items whose keys are in `quarantined` are left out. `size` returns the size
    /// of an item in bytes.
    #[staticmethod]
    #[pyo3(signature = (feed, quarantined=None, size=None))]
    fn source(feed: &Feed, quarantined: Option<HashSet<String>>, size: Option<Py<PyAny>>) -> Self {
        let queue = Arc::clone(&feed.queue);
        let options = stage_options(feed.name(), false).queue(queue_len(1));
        let mut left_out = Vec::new();
        let pipeline = if feed.has_keys() {
            let (quarantined, counter) =
                (Arc::new(quarantined.unwrap_or_default()), Counter::default());
            left_out.push(counter.clone());
            let make = move || Ok(LeaveOut(Arc::clone(&quarantined), counter.clone()));
            let part = format!("{}{PART}0", feed.name());
            let part = stage_options(&part, false).concurrency(1).queue(queue_len(1));
            PipelineBuilder::from_source(options, feed.source::<KeyedItem>()).stage(part, make)
        } else {
            PipelineBuilder::from_source(options, feed.source::<Item>())
        };
        let pipeline = match size.map(Sizer::new) {
            Some(size) => size.measure(pipeline),
            None => pipeline,
        };
        let continuous = feed.continuous();
        Graph::new(GraphParts { pipeline, queues: vec![queue], continuous, left_out, stores: None })
    }

    /// A pipeline that merges others: in arrival order, or by random draws with `weights`.
    ///
    /// # Errors
    /// `InvalidArgument` if the weights are invalid.
    #[staticmethod]
    #[pyo3(signature = (graphs, weights=None, seed=0))]
    fn merge(
        py: Python<'_>,
        graphs: Vec<PyRef<'_, Graph>>,
        weights: Option<Vec<f64>>,
        seed: u64,
    ) -> PyResult<Self> {
        let weighted = weights.map(WeightedMerge::new).transpose();
        let weighted = weighted.map_err(|error| to_exception(py, &error))?;
        GraphParts::joined(&graphs, |branches| match weighted {
            Some(policy) => PipelineBuilder::merge(branches, Seeded { policy, seed }),
            None => PipelineBuilder::merge(branches, Arrival),
        })
    }

    /// A pipeline of tuples, with one item of each of several pipelines. `name` is the name of the stage. If
    /// `releases`, the items do not count in the memory budget, which could be too small for a tuple.
    #[staticmethod]
    fn zip(
        name: &str,
        graphs: Vec<PyRef<'_, Graph>>,
        strict: bool,
        releases: bool,
    ) -> PyResult<Self> {
        let length = if strict { ZipLength::Equal } else { ZipLength::Shortest };
        let part = |number: usize| {
            let options = stage_options(&format!("{name}{PART}{number}"), true);
            options.concurrency(1).queue(queue_len(1))
        };
        GraphParts::joined(&graphs, |branches| {
            let released = branches.into_iter().enumerate().map(|(at, branch)| match releases {
                true => branch.map(part(at + 1), Ok).measured_by(|_| 0),
                false => branch,
            });
            PipelineBuilder::zip_all(stage_options(name, false), released, length)
                .stage(part(0), || Ok(MakeTuple))
        })
    }

    /// Adds stages.
    fn then(&self, stages: Vec<PyRef<'_, Stage>>) -> PyResult<Self> {
        let mut described = self.take()?;
        for stage in &stages {
            described.pipeline = stage.add_to(described.pipeline);
            described.stores = described.stores.or_else(|| stage.stores().cloned());
        }
        Ok(Graph::new(described))
    }
}

impl GraphParts {
    /// Joins several pipelines.
    fn joined(
        graphs: &[PyRef<'_, Graph>],
        join: impl FnOnce(Vec<PipelineBuilder<Item>>) -> PipelineBuilder<Item>,
    ) -> PyResult<Graph> {
        let parts: Vec<_> = graphs.iter().map(|graph| graph.take()).collect::<PyResult<_>>()?;
        let continuous = parts.iter().any(|part| part.continuous);
        let (mut queues, mut branches, mut stores) = (Vec::new(), Vec::new(), None);
        let mut left_out = Vec::new();
        for part in parts {
            stores = stores.or(part.stores);
            queues.extend(part.queues);
            left_out.extend(part.left_out);
            branches.push(part.pipeline);
        }
        let pipeline = join(branches);
        Ok(Graph::new(GraphParts { pipeline, queues, continuous, left_out, stores }))
    }
}

impl Graph {
    fn new(described: GraphParts) -> Self {
        Graph(Mutex::new(Some(described)))
    }

    pub(super) fn take(&self) -> PyResult<GraphParts> {
        let described = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        described
            .ok_or_else(|| PyRuntimeError::new_err("this pipeline graph has already been used"))
    }
}
