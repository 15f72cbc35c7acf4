//! The random numbers of one item, as an object that Python functions forward.

use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use spdl_core::source::ItemRng;
use spdl_core::{FillContext, SampleId};

use crate::interop::wait::forks;

thread_local! {
    /// The item for which this thread calls a Python function.
    static ITEM: RefCell<Option<ItemDraws>> = const { RefCell::new(None) };
}

/// The random numbers of one item in a stage, for a single use.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Draws(Mutex<Option<FillContext<'static>>>);

#[pymethods]
impl Draws {
    /// The random numbers of item `index` of an epoch, in the named stage.
    #[new]
    fn new(seed: u64, epoch: u64, index: u64, stage: &str) -> Self {
        Draws::of(FillContext::new(seed, SampleId { epoch, index }, stage, None))
    }

    /// The random numbers of the item for which a pipeline calls the current function on this thread, with
    /// the full name of the pipeline's stage, the epoch and the position. `None` outside of such a function.
    ///
    /// Each call returns other random numbers. The first ones are those of a native stage.
    #[staticmethod]
    fn of_item(seed: u64, stage: &str) -> Option<(Self, String, u64, u64)> {
        ITEM.with_borrow_mut(|item| {
            let item = item.as_mut().filter(|item| item.forks == forks())?;
            let SampleId { epoch, index } = item.rng.id();
            Some((Draws::of(item.next(seed, stage)), item.stage.to_string(), epoch, index))
        })
    }
}

impl Draws {
    pub(crate) fn of(sample: FillContext<'static>) -> Self {
        Draws(Mutex::new(Some(sample)))
    }

    /// # Errors
    /// `RuntimeError` if called twice.
    pub(super) fn take(&self) -> PyResult<FillContext<'static>> {
        let sample = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        sample.ok_or_else(|| PyRuntimeError::new_err("these random numbers have already been used"))
    }
}

/// The random numbers that a Python function draws for its item.
pub(crate) struct ItemDraws {
    rng: ItemRng,
    /// The full name of the stage that calls the function.
    stage: Arc<str>,
    /// The number of forks before. A forked child, which may be a worker for other items, must not draw
    /// these numbers.
    forks: u32,
    /// How often each kind of random numbers was drawn.
    drawn: Vec<(u64, String, u64)>,
}

impl ItemDraws {
    pub(crate) fn new(rng: ItemRng, stage: &Arc<str>) -> Self {
        ItemDraws { rng, stage: Arc::clone(stage), forks: forks(), drawn: Vec::new() }
    }

    /// Calls `function`, during which this thread draws the random numbers of the item.
    pub(crate) fn during<R>(&mut self, function: impl FnOnce() -> R) -> R {
        let own = ItemDraws::new(self.rng, &self.stage);
        let own = std::mem::replace(self, own);
        let restore = Restore { previous: ITEM.replace(Some(own)) };
        let result = function();
        // The next call for the same item continues the sequence.
        if let Some(item) = ITEM.take() {
            *self = item;
        }
        drop(restore);
        result
    }

    fn next(&mut self, seed: u64, stage: &str) -> FillContext<'static> {
        let known = self.drawn.iter_mut().find(|(of, name, _)| *of == seed && name == stage);
        match known {
            Some((.., count)) => {
                *count += 1;
                FillContext::of_item(self.rng, seed, &format!("{stage}#{count}"))
            }
            None => {
                self.drawn.push((seed, stage.to_owned(), 0));
                FillContext::of_item(self.rng, seed, stage)
            }
        }
    }
}

/// Restores the item of the calling function, also during a panic.
struct Restore {
    previous: Option<ItemDraws>,
}

impl Drop for Restore {
    fn drop(&mut self) {
        ITEM.set(self.previous.take());
    }
}
