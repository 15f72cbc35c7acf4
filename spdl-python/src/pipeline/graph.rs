//! The engine's description of a pipeline, put together from what Python describes.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use spdl_core::stage::Arrival;
use spdl_core::{PipelineBuilder, StageOptions};

use super::Item;
use super::feed::{Feed, FeedSource, Line};
use super::stage::{Stage, between};
use crate::operators::Stores;

/// A pipeline that is being described. Each may be used once.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Graph(Mutex<Option<Described>>);

pub(super) struct Described {
    pub(super) pipeline: PipelineBuilder<Item>,
    /// Of all its sources.
    pub(super) lines: Vec<Arc<Line>>,
    pub(super) continuous: bool,
    /// What it reads from, if anything: on their thread nothing is woken for each sample.
    pub(super) stores: Option<Stores>,
}

#[pymethods]
impl Graph {
    /// A pipeline of one source.
    #[staticmethod]
    fn source(feed: &Feed) -> Self {
        let line = Arc::clone(&feed.line);
        let options = StageOptions::new(feed.name()).queue(between(1));
        let pipeline = PipelineBuilder::from_source(options, FeedSource(Arc::clone(&line)));
        let continuous = feed.continuous();
        Graph::new(Described { pipeline, lines: vec![line], continuous, stores: None })
    }

    /// A pipeline of what others give, as it comes.
    #[staticmethod]
    fn merge(graphs: Vec<PyRef<'_, Graph>>) -> PyResult<Self> {
        let parts: Vec<_> = graphs.iter().map(|graph| graph.take()).collect::<PyResult<_>>()?;
        let continuous = parts.iter().any(|part| part.continuous);
        let (mut lines, mut branches, mut stores) = (Vec::new(), Vec::new(), None);
        for part in parts {
            stores = stores.or(part.stores);
            lines.extend(part.lines);
            branches.push(part.pipeline);
        }
        let pipeline = PipelineBuilder::merge(branches, Arrival);
        Ok(Graph::new(Described { pipeline, lines, continuous, stores }))
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
    fn new(described: Described) -> Self {
        Graph(Mutex::new(Some(described)))
    }

    pub(super) fn take(&self) -> PyResult<Described> {
        let described = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        described.ok_or_else(|| PyRuntimeError::new_err("this description has been used already"))
    }
}
