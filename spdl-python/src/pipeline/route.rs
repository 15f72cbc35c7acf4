//! Selection of a path for each item.

use std::sync::Arc;

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use spdl_core::{Result, block_on};

use super::Item;
use super::aggregate::list;
use super::call::Op;
use super::inbox::Inbox;
use super::raised::{fatal_failure, item_failure};
use crate::interop::wait::with_python;

/// A Python function that selects paths. Its exceptions end the pipeline.
pub(super) struct Router {
    pub(super) op: Arc<Op>,
    pub(super) paths: usize,
    /// Present if the function is async.
    pub(super) inbox: Option<Inbox>,
}

impl Router {
    /// The path of one item.
    pub(super) fn path(&self, item: &Item) -> Result<usize> {
        let item = with_python(|py| item.clone_ref(py))?;
        let chosen = self.ask(item)?;
        self.read(|py| self.number(chosen.bind(py)))
    }

    /// The path of each item of a list.
    pub(super) fn paths(&self, items: &[Item]) -> Result<Vec<usize>> {
        let all =
            self.read(|py| list(py, items.iter().map(|item| item.clone_ref(py)).collect()))?;
        let chosen = self.ask(all)?;
        self.read(|py| {
            let chosen: Vec<Bound<'_, PyAny>> =
                chosen.bind(py).try_iter()?.collect::<PyResult<_>>()?;
            if chosen.len() != items.len() {
                let message = format!(
                    "the router returned {} path numbers for a list of {} items; return one for \
                     each item",
                    chosen.len(),
                    items.len()
                );
                return Err(PyValueError::new_err(message));
            }
            chosen.iter().map(|chosen| self.number(chosen)).collect()
        })
    }

    fn ask(&self, argument: Item) -> Result<Item> {
        let Some(inbox) = &self.inbox else {
            return self.read(|py| self.op.function.call1(py, (argument,)));
        };
        let reply = block_on(inbox.submit(&self.op.function, Some(Arc::new(argument))));
        let reply = reply.map_err(|none| {
            none.into_error(|py, error| fatal_failure(py, error, &self.op.stage))
        })?;
        match reply {
            Some(chosen) => Ok(chosen),
            None => with_python(|py| py.None()),
        }
    }

    fn number(&self, chosen: &Bound<'_, PyAny>) -> PyResult<usize> {
        let number: i64 = chosen.extract()?;
        usize::try_from(number).ok().filter(|&number| number < self.paths).ok_or_else(|| {
            let message = format!(
                "the router returned path {number}, but there are {} paths, numbered from 0",
                self.paths
            );
            PyIndexError::new_err(message)
        })
    }

    fn read<R>(&self, read: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R> {
        with_python(|py| read(py).map_err(|error| fatal_failure(py, error, &self.op.stage)))?
    }
}

/// Collects the items of an iterable.
pub(super) fn items_of(stage: &str, all: &Item) -> Result<Vec<Item>> {
    with_python(|py| {
        let items = all.bind(py).try_iter();
        let items = items.and_then(|items| {
            items.map(|item| item.map(Bound::unbind)).collect::<PyResult<Vec<_>>>()
        });
        items.map_err(|error| item_failure(py, error, stage, Some(all)))
    })?
}

/// Collects items to a Python list.
pub(super) fn list_of(stage: &str, items: Vec<Item>) -> Result<Item> {
    with_python(|py| list(py, items).map_err(|error| item_failure(py, error, stage, None)))?
}
