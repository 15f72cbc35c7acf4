//! The stages `map` and `batch_map`: Python functions of a `Loader`.

use std::sync::Arc;

use pyo3::prelude::*;
use spdl_core::{
    Batch, Error, PipelineBuilder, Result, SampleId, SampleRng, Stage, StageContext, StageOptions,
};

use super::epoch::array_of;
use super::fields::SampleFields;
use crate::interop::error::{Raised, to_exception};
use crate::interop::wait::try_python;

/// The name of a stage, and its `function(values, seeds)`. `seeds` has a random number for each sample of
/// the batch.
pub(super) type Function = (String, Arc<Py<PyAny>>);

/// A function as Python passes it.
pub(super) type PyFunction = (String, Py<PyAny>);

/// The functions of an epoch. Only a running epoch holds them: the loader's are Python attributes, which the
/// garbage collector visits, so that a function may refer to the loader.
pub(super) fn functions_of(functions: Option<Vec<PyFunction>>) -> Vec<Function> {
    functions.into_iter().flatten().map(|(name, function)| (name, Arc::new(function))).collect()
}

/// A batch as a Python object.
pub(super) struct PythonBatch {
    pub(super) values: Py<PyAny>,
    ids: Arc<[SampleId]>,
}

/// Adds a stage that makes Python objects of batches, and calls the first function, and a stage for each
/// further function.
pub(super) fn add(
    pipeline: PipelineBuilder<Batch>,
    fields: &Arc<Py<SampleFields>>,
    first: &Function,
    rest: &[Function],
    seed: u64,
) -> PipelineBuilder<PythonBatch> {
    let call = |(name, function): &Function| FunctionStage {
        name: name.as_str().into(),
        function: Arc::clone(function),
        seed,
    };
    let (fields, first_call) = (Arc::clone(fields), call(first));
    let pipeline = pipeline.stage(StageOptions::new(&first.0), move || {
        Ok(FirstStage { fields: Arc::clone(&fields), call: first_call.clone() })
    });
    rest.iter().fold(pipeline, |pipeline, one| {
        let call = call(one);
        pipeline.stage(StageOptions::new(&one.0), move || Ok(call.clone()))
    })
}

/// Calls a function for each batch.
#[derive(Clone)]
struct FunctionStage {
    /// The name of the stage, which determines the random numbers.
    name: Arc<str>,
    function: Arc<Py<PyAny>>,
    seed: u64,
}

impl FunctionStage {
    fn call(
        &self,
        py: Python<'_>,
        values: Bound<'_, PyAny>,
        ids: Arc<[SampleId]>,
    ) -> Result<PythonBatch> {
        let seeds: Vec<u64> =
            ids.iter().map(|id| SampleRng::new(self.seed, *id, &self.name).next_u64()).collect();
        match self.function.bind(py).call1((values, seeds)) {
            Ok(values) => Ok(PythonBatch { values: values.unbind(), ids }),
            // The function is at fault, not a sample, so the policy for failures does not apply.
            Err(exception) => Err(Raised::into_error(py, exception).fatal()),
        }
    }
}

impl Stage<PythonBatch> for FunctionStage {
    type Out = PythonBatch;

    fn process(
        &mut self,
        batch: PythonBatch,
        cx: &mut StageContext<'_, PythonBatch>,
    ) -> Result<()> {
        let PythonBatch { values, ids } = batch;
        let batch = try_python(|py| self.call(py, values.into_bound(py), ids))?;
        cx.emit(batch)
    }
}

/// Makes a Python object of a batch, and calls the first function.
struct FirstStage {
    fields: Arc<Py<SampleFields>>,
    call: FunctionStage,
}

impl Stage<Batch> for FirstStage {
    type Out = PythonBatch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, PythonBatch>) -> Result<()> {
        let ids = batch.ids().into();
        let batch = try_python(|py| {
            let values =
                array_of(py, false).and_then(|array| self.fields.get().to_dict(batch, array));
            let values = values.map_err(|error| Raised::into_error(py, error).fatal())?;
            self.call.call(py, values.into_any(), ids)
        })?;
        cx.emit(batch)
    }
}

/// The exception for the caller of a loader: that of a function, or the exception of an error.
pub(super) fn exception_of(py: Python<'_>, error: &Error) -> PyErr {
    match Raised::of(error) {
        Some(raised) => raised.clone_ref(py),
        None => to_exception(py, error),
    }
}
