//! The Python functions of a `Loader`: the stages `filter`, `map`, `collate` and `batch_map`.

use std::sync::Arc;

use pyo3::prelude::*;
use spdl_core::memory::BufferPool;
use spdl_core::observe::Counter;
use spdl_core::{
    Batch, Error, Field, FillContext, PipelineBuilder, Result, SampleId, SampleRng, Stage,
    StageContext, StageOptions,
};
use spdl_io::Record;
use spdl_media::fill::FillRecord;
use spdl_media::{CodecRegistry, Limits};

use super::epoch::array_of;
use super::fields::SampleFields;
use crate::interop::error::{Raised, to_exception};
use crate::interop::wait::try_python;

/// The name of a stage, and its `function(values, seeds)`. `seeds` has a random number for each sample of
/// the batch.
pub(super) type Function = (String, Arc<Py<PyAny>>);

/// The functions as Python passes them: see [`Functions`].
#[derive(FromPyObject)]
pub(super) struct PyFunctions(Option<(Py<SampleFields>, Py<PyAny>)>, Vec<(String, Py<PyAny>)>);

/// The functions of an epoch.
///
/// Only a running epoch holds them: the loader's are Python attributes, which the garbage collector visits, so
/// that a function may refer to the loader.
#[derive(Default)]
pub(super) struct Functions {
    pub(super) filter: Option<Filter>,
    pub(super) stages: Vec<Function>,
}

impl Functions {
    pub(super) fn of(functions: Option<PyFunctions>) -> Self {
        let Some(PyFunctions(filter, stages)) = functions else { return Self::default() };
        Functions {
            filter: filter.map(|(fields, function)| Filter {
                fields: Arc::new(fields),
                function: Arc::new(function),
                filtered: Counter::default(),
            }),
            stages: stages.into_iter().map(|(name, function)| (name, Arc::new(function))).collect(),
        }
    }
}

/// A function that selects samples.
#[derive(Clone)]
pub(super) struct Filter {
    /// The fields that the function gets.
    fields: Arc<Py<SampleFields>>,
    /// `function(values, seed)`, where `values` are those of a batch of one sample.
    function: Arc<Py<PyAny>>,
    /// Counts the samples for which the function returned `False`.
    pub(super) filtered: Counter,
}

impl Filter {
    /// Adds the stage, before fields are decoded into batches.
    pub(super) fn add(
        &self,
        pipeline: PipelineBuilder<Record>,
        seed: u64,
    ) -> PipelineBuilder<Record> {
        let (filter, pool) = (self.clone(), BufferPool::new());
        pipeline.stage(StageOptions::new("filter"), move || {
            let spec = &filter.fields.get().spec;
            Ok(FilterStage {
                filter: filter.clone(),
                layout: spec.layout(1).fields().to_vec(),
                // There are no images, so the codecs are not used.
                fill: FillRecord::new(spec, &CodecRegistry::with_defaults(), &Limits::default())?,
                pool: pool.clone(),
                seed,
            })
        })
    }
}

struct FilterStage {
    filter: Filter,
    layout: Vec<Field>,
    fill: FillRecord,
    pool: BufferPool,
    seed: u64,
}

impl Stage<Record> for FilterStage {
    type Out = Record;

    fn process(&mut self, record: Record, cx: &mut StageContext<'_, Record>) -> Result<()> {
        let id = cx.id();
        let mut of_sample = FillContext::new(self.seed, id, "filter", cx.key());
        let batch =
            Batch::of_one(&self.layout, &self.pool, &mut self.fill, &record, &mut of_sample)?;
        let Filter { fields, function, filtered } = &self.filter;
        let keeps = try_python(|py| {
            let seed = SampleRng::new(self.seed, id, "filter").next_u64();
            let keeps = array_of(py, false)
                .and_then(|array| fields.get().to_dict(batch, array))
                .and_then(|values| function.bind(py).call1((values, seed))?.extract::<bool>());
            // The function is at fault, not the sample, so the policy for failures does not apply.
            keeps.map_err(|exception| Raised::into_error(py, exception).fatal())
        })?;
        if keeps {
            return cx.emit(record);
        }
        filtered.add(1);
        cx.filter_out();
        Ok(())
    }
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
