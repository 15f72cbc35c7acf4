//! Functions of Python as stages: `f(item)`, in whatever way they give their results.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyIterator;
use spdl_core::{AsyncContext, AsyncStage, Result, StageContext, async_trait};

use super::Item;
use super::inbox::{Inbox, Pull};
use super::raised::item_failure;
use crate::interop::wait::{try_python, with_python};
use crate::operators::Draws;

/// What a stage calls for each item.
pub(super) struct Op {
    pub(super) stage: String,
    pub(super) function: Arc<Py<PyAny>>,
    /// What is called for a coroutine or generator that the function gives; it raises what to do.
    pub(super) look_at: Option<Py<PyAny>>,
}

impl Op {
    fn call<'py>(&self, py: Python<'py>, item: &Item) -> Result<Bound<'py, PyAny>> {
        let result = self.function.bind(py).call1((item,));
        result.map_err(|error| item_failure(py, error, &self.stage, Some(item)))
    }

    /// Has a result looked at that is still to be awaited or iterated.
    fn look_at(&self, result: &Bound<'_, PyAny>, item: &Item) -> Result<()> {
        let Some(look_at) = &self.look_at else { return Ok(()) };
        let py = result.py();
        let looked = is_undecided(result)
            .and_then(|is| if is { look_at.call1(py, (result,)).map(drop) } else { Ok(()) });
        looked.map_err(|error| item_failure(py, error, &self.stage, Some(item)))
    }
}

/// Whether this is a coroutine, or a generator of either kind.
fn is_undecided(result: &Bound<'_, PyAny>) -> PyResult<bool> {
    static TYPES: PyOnceLock<[Py<PyAny>; 3]> = PyOnceLock::new();
    let py = result.py();
    let types = TYPES.get_or_try_init(py, || {
        let types = py.import(intern!(py, "types"))?;
        let one = |name| Ok::<_, PyErr>(types.getattr(name)?.unbind());
        Ok::<_, PyErr>([one("CoroutineType")?, one("AsyncGeneratorType")?, one("GeneratorType")?])
    })?;
    let kind = result.get_type();
    Ok(types.iter().any(|one| kind.is(one)))
}

/// One result per item; `None` drops the item.
pub(super) struct Call(pub(super) Arc<Op>);

impl spdl_core::Stage<Item> for Call {
    type Out = Item;

    fn process(&mut self, item: Item, cx: &mut StageContext<'_, Item>) -> Result<()> {
        let result = try_python(|py| {
            let result = self.0.call(py, &item)?;
            self.0.look_at(&result, &item)?;
            drop(item);
            Ok((!result.is_none()).then(|| result.unbind()))
        })?;
        emit_or_drop(result, cx)
    }
}

fn emit_or_drop(result: Option<Item>, cx: &mut StageContext<'_, Item>) -> Result<()> {
    match result {
        Some(result) => cx.emit(result),
        None => {
            cx.filter_out();
            Ok(())
        }
    }
}

/// The same of a function that is given the item's random numbers, too: those of a run with `seed`, in
/// the stage called `stage`.
pub(super) struct Draw {
    pub(super) op: Arc<Op>,
    pub(super) seed: u64,
    pub(super) stage: Arc<str>,
}

impl spdl_core::Stage<Item> for Draw {
    type Out = Item;

    fn process(&mut self, item: Item, cx: &mut StageContext<'_, Item>) -> Result<()> {
        let draws = Draws::of(cx.rng_of(self.seed, &self.stage));
        let result = try_python(|py| {
            let result = self.op.function.bind(py).call1((&item, draws));
            let result =
                result.map_err(|error| item_failure(py, error, &self.op.stage, Some(&item)))?;
            drop(item);
            Ok((!result.is_none()).then(|| result.unbind()))
        })?;
        emit_or_drop(result, cx)
    }
}

/// An iterable per item, of which each element goes on at once.
pub(super) struct Iterate(pub(super) Arc<Op>);

impl spdl_core::Stage<Item> for Iterate {
    type Out = Item;

    fn process(&mut self, item: Item, cx: &mut StageContext<'_, Item>) -> Result<()> {
        let op = &*self.0;
        let results = try_python(|py| {
            let results = op.call(py, &item)?.try_iter();
            let results =
                results.map_err(|error| item_failure(py, error, &op.stage, Some(&item)))?;
            Ok(results.unbind())
        })?;
        let mut any = false;
        while let Some(result) = try_python(|py| next(py, &results, op, &item))? {
            any = true;
            if let Err(stopped) = cx.emit(result).and_then(|()| cx.flush()) {
                // Where Python ends, nothing can be closed any more.
                drop(with_python(|py| close(results.bind(py))));
                return Err(stopped);
            }
        }
        if !any {
            cx.filter_out();
        }
        Ok(())
    }
}

/// The next result that is not `None`.
fn next(py: Python<'_>, results: &Py<PyIterator>, op: &Op, item: &Item) -> Result<Option<Item>> {
    let mut results = results.bind(py).clone();
    loop {
        match results.next() {
            None => return Ok(None),
            Some(Ok(result)) if result.is_none() => {}
            Some(Ok(result)) => return Ok(Some(result.unbind())),
            Some(Err(error)) => return Err(item_failure(py, error, &op.stage, Some(item))),
        }
    }
}

/// Lets a generator that is not at its end clean up.
pub(super) fn close(iterator: &Bound<'_, PyIterator>) {
    let py = iterator.py();
    if let Ok(close) = iterator.getattr(intern!(py, "close"))
        && let Err(error) = close.call0()
    {
        error.write_unraisable(py, Some(iterator));
    }
}

/// A coroutine per item, awaited on the event loop; `None` where it returns Python's.
pub(super) struct Await {
    pub(super) op: Arc<Op>,
    pub(super) inbox: Inbox,
}

#[async_trait]
impl AsyncStage<Item> for Await {
    type Out = Option<Item>;

    async fn process(&self, item: Item, _: &AsyncContext) -> Result<Option<Item>> {
        // Kept for the message, as a second reference to it.
        let kept = Arc::new(item);
        let reply = self.inbox.submit(&self.op.function, Some(Arc::clone(&kept))).await;
        reply.map_err(|none| {
            none.into_error(|py, error| item_failure(py, error, &self.op.stage, Some(&*kept)))
        })
    }
}

/// Lets pass what a coroutine returned, but for `None`.
pub(super) struct Present;

impl spdl_core::Stage<Option<Item>> for Present {
    type Out = Item;

    fn process(&mut self, item: Option<Item>, cx: &mut StageContext<'_, Item>) -> Result<()> {
        emit_or_drop(item, cx)
    }
}

/// An async iterable per item, of which each element goes on at once. Blocks its thread.
pub(super) struct IterateAsync {
    pub(super) op: Arc<Op>,
    pub(super) inbox: Inbox,
}

impl spdl_core::Stage<Item> for IterateAsync {
    type Out = Item;

    fn process(&mut self, item: Item, cx: &mut StageContext<'_, Item>) -> Result<()> {
        let op = &*self.op;
        let failure = |py: Python<'_>, error| item_failure(py, error, &op.stage, Some(&item));
        let mut results = try_python(|py| {
            let iterable = op.call(py, &item)?;
            Pull::new(py, &self.inbox, &iterable).map_err(|error| failure(py, error))
        })?;
        let mut any = false;
        while let Some(result) = results.next().map_err(|none| none.into_error(failure))? {
            if with_python(|py| result.is_none(py))? {
                continue;
            }
            any = true;
            if let Err(stopped) = cx.emit(result).and_then(|()| cx.flush()) {
                results.close();
                return Err(stopped);
            }
        }
        if !any {
            cx.filter_out();
        }
        Ok(())
    }
}
