//! Stages that call a Python function, coroutine or generator for each item.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyIterator;
use spdl_core::stage::Retried;
use spdl_core::{
    AsyncContext, AsyncStage, Error, FillContext, Result, Retry, StageContext, async_trait,
};

use super::Item;
use super::inbox::{AsyncIteration, Inbox};
use super::raised::{attempt_failure, item_failure};
use crate::interop::error::{ATTEMPT_RAISED, Raised};
use crate::interop::wait::{try_python, with_python};
use crate::operators::{Draws, ItemDraws};

/// The function that a stage calls for each item.
pub(super) struct Op {
    pub(super) stage: Arc<str>,
    pub(super) function: Arc<Py<PyAny>>,
    /// Called for a coroutine or generator that `function` returns. Raises an exception with advice,
    /// or logs a warning for a generator.
    pub(super) look_at: Option<Py<PyAny>>,
    /// The exception classes that are retried, as a tuple; `None` without retries.
    pub(super) retried: Option<Py<PyAny>>,
}

impl Op {
    fn call<'py>(&self, py: Python<'py>, item: &Item) -> Result<Bound<'py, PyAny>> {
        let result = self.function.bind(py).call1((item,));
        result.map_err(|error| self.failure(py, error, item))
    }

    /// The error of an exception of the function. With retries, it is logged after the last attempt.
    fn failure(&self, py: Python<'_>, error: PyErr, item: &Item) -> Error {
        match &self.retried {
            None => item_failure(py, error, &self.stage, Some(item)),
            Some(classes) => attempt_failure(py, error, classes.bind(py)),
        }
    }

    /// Checks a result that is a coroutine or generator.
    fn check_result(&self, result: &Bound<'_, PyAny>, item: &Item) -> Result<()> {
        let Some(look_at) = &self.look_at else { return Ok(()) };
        let py = result.py();
        let looked = is_coroutine_or_generator(result)
            .and_then(|is| if is { look_at.call1(py, (result,)).map(drop) } else { Ok(()) });
        looked.map_err(|error| self.failure(py, error, item))
    }

    /// Logs the error of the last attempt.
    fn last_failure(&self, error: Error, item: &Item) -> Error {
        let Some(raised) = Raised::of(&error) else { return error };
        let reported = with_python(|py| {
            let raised = raised.clone_ref(py);
            let attempts = error.message().trim_start_matches(ATTEMPT_RAISED);
            if !attempts.is_empty() {
                // Exceptions have no notes before Python 3.11.
                let note = format!("The function failed{attempts}.");
                let _ = raised.value(py).call_method1(intern!(py, "add_note"), (note,));
            }
            item_failure(py, raised, &self.stage, Some(item))
        });
        reported.unwrap_or_else(|stopped| stopped)
    }
}

/// A stage whose function is called again after some exceptions.
pub(super) struct Retrying<S> {
    op: Arc<Op>,
    stage: Retried<Shared<S>, Item>,
}

impl<S: spdl_core::Stage<Item, Out = Item>> Retrying<S> {
    /// # Errors
    /// `InvalidArgument` if `retry` is invalid.
    pub(super) fn new(op: &Arc<Op>, stage: S, retry: Retry) -> Result<Self> {
        Ok(Retrying { op: Arc::clone(op), stage: Retried::new(Shared(stage), retry)? })
    }
}

impl<S: spdl_core::Stage<Item, Out = Item>> spdl_core::Stage<Item> for Retrying<S> {
    type Out = Item;

    fn process(&mut self, item: Item, cx: &mut StageContext<'_, Item>) -> Result<()> {
        let item = Arc::new(item);
        let result = self.stage.process(Arc::clone(&item), cx);
        result.map_err(|error| self.op.last_failure(error, &item))
    }
}

/// A stage of items that several attempts share.
struct Shared<S>(S);

impl<S: spdl_core::Stage<Item>> spdl_core::Stage<Arc<Item>> for Shared<S> {
    type Out = S::Out;

    fn process(&mut self, item: Arc<Item>, cx: &mut StageContext<'_, S::Out>) -> Result<()> {
        let item = with_python(|py| item.clone_ref(py))?;
        self.0.process(item, cx)
    }
}

/// A coroutine function that is called again after some exceptions.
pub(super) struct RetryingAwait {
    op: Arc<Op>,
    stage: Retried<Await>,
}

impl RetryingAwait {
    /// # Errors
    /// `InvalidArgument` if `retry` is invalid.
    pub(super) fn new(stage: Await, retry: Retry) -> Result<Self> {
        Ok(RetryingAwait { op: Arc::clone(&stage.op), stage: Retried::new(stage, retry)? })
    }
}

#[async_trait]
impl AsyncStage<Item> for RetryingAwait {
    type Out = Option<Item>;

    async fn process(&self, item: Item, cx: &AsyncContext) -> Result<Option<Item>> {
        let item = Arc::new(item);
        let result = self.stage.process(Arc::clone(&item), cx).await;
        result.map_err(|error| self.op.last_failure(error, &item))
    }

    fn retry(&self) -> Option<Retry> {
        AsyncStage::<Arc<Item>>::retry(&self.stage)
    }
}

/// Whether `result` is a coroutine, a generator or an async generator.
fn is_coroutine_or_generator(result: &Bound<'_, PyAny>) -> PyResult<bool> {
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

/// Calls a function that returns one result per item; `None` drops the item.
pub(super) struct Call(pub(super) Arc<Op>);

impl spdl_core::Stage<Item> for Call {
    type Out = Item;

    fn process(&mut self, item: Item, cx: &mut StageContext<'_, Item>) -> Result<()> {
        let result = ItemDraws::new(cx.item_rng(), &self.0.stage).during(|| {
            try_python(|py| {
                let result = self.0.call(py, &item)?;
                self.0.check_result(&result, &item)?;
                drop(item);
                Ok((!result.is_none()).then(|| result.unbind()))
            })
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

/// Calls a function with the item and the random numbers of that item.
///
/// `seed` and `stage` determine the random numbers.
pub(super) struct Draw {
    pub(super) op: Arc<Op>,
    pub(super) seed: u64,
    pub(super) stage: Arc<str>,
}

impl spdl_core::Stage<Item> for Draw {
    type Out = Item;

    fn process(&mut self, item: Item, cx: &mut StageContext<'_, Item>) -> Result<()> {
        let draws = Draws::of(FillContext::of_item(cx.item_rng(), self.seed, &self.stage));
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

/// Calls a function that returns an iterable, and emits each element other than `None` immediately.
pub(super) struct Iterate(pub(super) Arc<Op>);

impl spdl_core::Stage<Item> for Iterate {
    type Out = Item;

    fn process(&mut self, item: Item, cx: &mut StageContext<'_, Item>) -> Result<()> {
        let op = &*self.0;
        let mut draws = ItemDraws::new(cx.item_rng(), &op.stage);
        let results = draws.during(|| {
            try_python(|py| {
                let results = op.call(py, &item)?.try_iter();
                let results = results.map_err(|error| op.failure(py, error, &item))?;
                Ok(results.unbind())
            })
        })?;
        let mut any = false;
        while let Some(result) = draws.during(|| try_python(|py| next(py, &results, op, &item)))? {
            any = true;
            if let Err(stopped) = cx.emit(result).and_then(|()| cx.flush()) {
                // Fails only during finalization, when generators cannot be closed.
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

/// Returns the next result that is not `None`.
fn next(py: Python<'_>, results: &Py<PyIterator>, op: &Op, item: &Item) -> Result<Option<Item>> {
    let mut results = results.bind(py).clone();
    loop {
        match results.next() {
            None => return Ok(None),
            Some(Ok(result)) if result.is_none() => {}
            Some(Ok(result)) => return Ok(Some(result.unbind())),
            Some(Err(error)) => return Err(op.failure(py, error, item)),
        }
    }
}

/// Closes an unfinished generator, so that its cleanup code runs.
pub(super) fn close(iterator: &Bound<'_, PyIterator>) {
    let py = iterator.py();
    if let Ok(close) = iterator.getattr(intern!(py, "close"))
        && let Err(error) = close.call0()
    {
        error.write_unraisable(py, Some(iterator));
    }
}

/// Awaits a coroutine per item on the event loop. Yields `None` for Python's `None`.
pub(super) struct Await {
    pub(super) op: Arc<Op>,
    pub(super) inbox: Inbox,
}

impl Await {
    async fn call(&self, item: Arc<Item>) -> Result<Option<Item>> {
        let reply = self.inbox.submit(&self.op.function, Some(Arc::clone(&item))).await;
        reply.map_err(|none| none.into_error(|py, error| self.op.failure(py, error, &item)))
    }
}

#[async_trait]
impl AsyncStage<Item> for Await {
    type Out = Option<Item>;

    async fn process(&self, item: Item, _: &AsyncContext) -> Result<Option<Item>> {
        // A second reference, for the error message.
        self.call(Arc::new(item)).await
    }
}

#[async_trait]
impl AsyncStage<Arc<Item>> for Await {
    type Out = Option<Item>;

    async fn process(&self, item: Arc<Item>, _: &AsyncContext) -> Result<Option<Item>> {
        self.call(item).await
    }
}

/// Forwards results of coroutines, and drops `None`.
pub(super) struct DropNone;

impl spdl_core::Stage<Option<Item>> for DropNone {
    type Out = Item;

    fn process(&mut self, item: Option<Item>, cx: &mut StageContext<'_, Item>) -> Result<()> {
        emit_or_drop(item, cx)
    }
}

/// Iterates an async iterable per item, and emits each element other than `None` immediately.
///
/// Blocks its thread.
pub(super) struct IterateAsync {
    pub(super) op: Arc<Op>,
    pub(super) inbox: Inbox,
}

impl spdl_core::Stage<Item> for IterateAsync {
    type Out = Item;

    fn process(&mut self, item: Item, cx: &mut StageContext<'_, Item>) -> Result<()> {
        let op = &*self.op;
        let failure = |py: Python<'_>, error| op.failure(py, error, &item);
        let mut results = try_python(|py| {
            let iterable = op.call(py, &item)?;
            AsyncIteration::new(py, &self.inbox, &iterable).map_err(|error| failure(py, error))
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
