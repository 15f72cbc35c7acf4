//! The random numbers of one item, as an object that Python functions forward.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use spdl_core::{SampleId, SampleRng};

/// The random numbers of one item in a stage, for a single use.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Draws(Mutex<Option<SampleRng>>);

#[pymethods]
impl Draws {
    /// The random numbers of item `index` of an epoch, in the named stage.
    #[new]
    fn new(seed: u64, epoch: u64, index: u64, stage: &str) -> Self {
        Draws::of(SampleRng::new(seed, SampleId { epoch, index }, stage))
    }
}

impl Draws {
    pub(crate) fn of(rng: SampleRng) -> Self {
        Draws(Mutex::new(Some(rng)))
    }

    /// # Errors
    /// `RuntimeError` if called twice.
    pub(super) fn take(&self) -> PyResult<SampleRng> {
        let rng = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        rng.ok_or_else(|| PyRuntimeError::new_err("these random numbers have already been used"))
    }
}
