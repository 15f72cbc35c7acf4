//! Assembly of the engine's pipeline from Python's description.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use spdl_core::stage::Arrival;
use spdl_core::{PipelineBuilder, StageOptions};

use super::Item;
use super::feed::{Feed, FeedQueue, FeedSource};
use super::stage::{Stage, queue_len};
use crate::operators::Stores;

/// A pipeline description, for a single use.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Graph(Mutex<Option<GraphParts>>);

pub(super) struct GraphParts {
    pub(super) pipeline: PipelineBuilder<Item>,
    /// The queues of all sources.
    pub(super) queues: Vec<Arc<FeedQueue>>,
    pub(super) continuous: bool,
    /// The stores that stages read from, whose runtime the pipeline shares.
    pub(super) stores: Option<Stores>,
}

#[pymethods]
impl Graph {
    /// A pipeline of one source.
    #[staticmethod]
    fn source(feed: &Feed) -> Self {
        let queue = Arc::clone(&feed.queue);
        let options = StageOptions::new(feed.name()).queue(queue_len(1));
        let pipeline = PipelineBuilder::from_source(options, FeedSource(Arc::clone(&queue)));
        let continuous = feed.continuous();
        Graph::new(GraphParts { pipeline, queues: vec![queue], continuous, stores: None })
    }

    /// A pipeline that merges others, in arrival order.
    #[staticmethod]
    fn merge(graphs: Vec<PyRef<'_, Graph>>) -> PyResult<Self> {
        let parts: Vec<_> = graphs.iter().map(|graph| graph.take()).collect::<PyResult<_>>()?;
        let continuous = parts.iter().any(|part| part.continuous);
        let (mut queues, mut branches, mut stores) = (Vec::new(), Vec::new(), None);
        for part in parts {
            stores = stores.or(part.stores);
            queues.extend(part.queues);
            branches.push(part.pipeline);
        }
        let pipeline = PipelineBuilder::merge(branches, Arrival);
        Ok(Graph::new(GraphParts { pipeline, queues, continuous, stores }))
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
