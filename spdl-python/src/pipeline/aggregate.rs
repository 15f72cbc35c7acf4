//! Aggregation of items: lists of `n` items, and custom aggregators.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;
use spdl_core::Result;
use spdl_core::stage::{Aggregator, Batcher, Bucketed, Bucketer, Bucketing, ExactResume, FillRate};

use super::Item;
use super::call::Op;
use super::raised::{fatal_failure, item_failure};
use crate::interop::error::to_exception;
use crate::interop::wait::{try_python, with_python};

/// Aggregates items to Python lists.
pub(super) struct ListAggregator(Batcher<Item>);

impl ListAggregator {
    pub(super) fn new(size: usize, drop_last: bool) -> Result<Self> {
        Ok(ListAggregator(Batcher::new(size, drop_last)?))
    }
}

/// Creates a Python list.
pub(super) fn list(py: Python<'_>, items: Vec<Item>) -> PyResult<Item> {
    Ok(PyList::new(py, items)?.into_any().unbind())
}

fn list_of(items: Option<Vec<Item>>) -> Result<Option<Item>> {
    let Some(items) = items else { return Ok(None) };
    with_python(|py| list(py, items).map_err(|error| fatal_failure(py, error, "aggregate")))?
        .map(Some)
}

impl Aggregator<Item> for ListAggregator {
    type Out = Item;

    fn accumulate(&mut self, item: Item) -> Result<Option<Item>> {
        list_of(self.0.accumulate(item)?)
    }

    fn flush(&mut self) -> Result<Option<Item>> {
        list_of(self.0.flush()?)
    }

    fn left_out(&mut self) -> u64 {
        self.0.left_out()
    }
}

/// Aggregates items of similar length to Python lists.
pub(super) struct BucketAggregator {
    op: Arc<Op>,
    bucketer: Bucketer<(Item, f64)>,
}

impl BucketAggregator {
    /// `op.function` returns the length of an item.
    pub(super) fn new(op: &Arc<Op>, bucketing: Bucketing) -> Result<Self> {
        let bucketer = Bucketer::new(bucketing, |(_, length): &(Item, f64)| *length)?;
        Ok(BucketAggregator { op: Arc::clone(op), bucketer })
    }
}

fn list_of_bucket(bucket: Option<Bucketed<(Item, f64)>>) -> Result<Option<Item>> {
    list_of(bucket.map(|bucket| bucket.into_iter().map(|(item, _)| item).collect()))
}

impl Aggregator<Item> for BucketAggregator {
    type Out = Item;

    fn accumulate(&mut self, item: Item) -> Result<Option<Item>> {
        let op = &*self.op;
        let (item, length, kept) = try_python(|py| {
            let length = op.function.bind(py).call1((&item,)).and_then(|length| length.extract());
            let length = length.map_err(|error| item_failure(py, error, &op.stage, Some(&item)))?;
            let kept = item.clone_ref(py);
            Ok((item, length, kept))
        })?;
        let bucket = self.bucketer.accumulate((item, length)).or_else(|error| {
            try_python(|py| Err(item_failure(py, to_exception(py, &error), &op.stage, Some(&kept))))
        })?;
        list_of_bucket(bucket)
    }

    fn more(&mut self) -> Result<Option<Item>> {
        list_of_bucket(self.bucketer.more()?)
    }

    fn flush(&mut self) -> Result<Option<Item>> {
        list_of_bucket(self.bucketer.flush()?)
    }

    fn flush_more(&mut self) -> Result<Option<Item>> {
        list_of_bucket(self.bucketer.flush_more()?)
    }

    fn left_out(&mut self) -> u64 {
        self.bucketer.left_out()
    }

    fn fill_rate(&self) -> Option<FillRate> {
        self.bucketer.fill_rate()
    }

    fn exact_resume(&mut self) -> Option<&mut dyn ExactResume> {
        self.bucketer.exact_resume()
    }
}

/// A Python aggregator with `accumulate` and `flush`, used for one epoch.
pub(super) struct CustomAggregator {
    stage: Arc<str>,
    aggregator: Item,
    drop_last: bool,
    /// Items accumulated since the last aggregate.
    accumulated: u64,
    left_out: u64,
}

impl CustomAggregator {
    /// Calls `make.function` to create the Python aggregator.
    pub(super) fn new(make: &Arc<Op>, drop_last: bool) -> Result<Self> {
        let aggregator = try_python(|py| {
            let made = make.function.call0(py);
            made.map_err(|error| fatal_failure(py, error, &make.stage))
        })?;
        let stage = make.stage.clone();
        Ok(CustomAggregator { stage, aggregator, drop_last, accumulated: 0, left_out: 0 })
    }
}

impl Aggregator<Item> for CustomAggregator {
    type Out = Item;

    fn accumulate(&mut self, item: Item) -> Result<Option<Item>> {
        let result = try_python(|py| {
            let method = intern!(py, "accumulate");
            let result = self.aggregator.bind(py).call_method1(method, (&item,));
            let result =
                result.map_err(|error| item_failure(py, error, &self.stage, Some(&item)))?;
            Ok((!result.is_none()).then(|| result.unbind()))
        })?;
        self.accumulated = if result.is_some() { 0 } else { self.accumulated + 1 };
        Ok(result)
    }

    fn flush(&mut self) -> Result<Option<Item>> {
        let result = if self.drop_last {
            None
        } else {
            try_python(|py| {
                let result = self.aggregator.bind(py).call_method0(intern!(py, "flush"));
                let result = result.map_err(|error| fatal_failure(py, error, &self.stage))?;
                Ok((!result.is_none()).then(|| result.unbind()))
            })?
        };
        let accumulated = std::mem::take(&mut self.accumulated);
        if result.is_none() {
            self.left_out += accumulated;
        }
        Ok(result)
    }

    fn left_out(&mut self) -> u64 {
        std::mem::take(&mut self.left_out)
    }
}
