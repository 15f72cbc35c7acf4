//! The Python functions of a `Loader`: the stages `getitem`, `filter`, `map`, `collate` and
//! `batch_map`.

use std::sync::Arc;

use pyo3::prelude::*;
use spdl_core::memory::BufferPool;
use spdl_core::observe::{Counter, ExternalTimes};
use spdl_core::{
    Batch, Error, ErrorKind, Field, FillContext, PipelineBuilder, Result, SampleId, SampleRng,
    Stage, StageContext, StageOptions,
};
use spdl_io::Record;
use spdl_io::records::StoredField;
use spdl_media::fill::FillRecord;
use spdl_media::{CodecRegistry, Limits};

use super::epoch::array_of;
use super::fields::SampleFields;
use super::items;
use super::settings::{Content, Settings};
use crate::interop::error::{Raised, to_exception};
use crate::interop::wait::{GilRequests, try_python};
use crate::statistics::has_gil;

/// The name of a stage, and its `function(values, seeds)`: see [`FunctionCall`]. A stage without a function forwards
/// batches, because an earlier or later function does its work.
type StageOf<P> = (String, Option<P>);

/// The functions as Python passes them: the fields of [`Functions`].
#[derive(FromPyObject)]
pub(super) struct PyFunctions(
    Option<(Py<SampleFields>, Py<PyAny>)>,
    Vec<StageOf<Py<PyAny>>>,
    Option<Py<PyAny>>,
    Option<usize>,
    Option<Py<PyAny>>,
    Option<(Py<SampleFields>, Py<PyAny>)>,
    Option<Py<PyAny>>,
);

/// The functions of an epoch.
///
/// Only a running epoch holds them: the loader's are Python attributes, which the garbage collector visits, so
/// that a function may refer to the loader.
#[derive(Default)]
pub(super) struct Functions {
    pub(super) filter: Option<SampleFunction>,
    /// Replaces values of samples before they are grouped.
    pub(super) map_samples: Option<SampleFunction>,
    pub(super) stages: Vec<StageOf<Arc<Py<PyAny>>>>,
    /// Does the work of all stages on the thread that takes a batch.
    inline: Option<Arc<Py<PyAny>>>,
    /// The number of calls at the same time, if functions wait for other processes.
    pub(super) processes: Option<usize>,
    /// Returns the sample at a position, for a map-style data set: see [`items`](super::items).
    pub(super) get_item: Option<Arc<Py<PyAny>>>,
    /// Starts an iteration of an iterable of samples: see [`iterables`](super::iterables).
    pub(super) iterate: Option<Arc<Py<PyAny>>>,
    /// Counts the requests for the GIL.
    pub(super) gil: Arc<GilRequests>,
    has_gil: bool,
}

impl Functions {
    /// # Errors
    /// Errors of Python's module `sys`.
    pub(super) fn of(py: Python<'_>, functions: Option<PyFunctions>) -> PyResult<Self> {
        let Some(functions) = functions else { return Ok(Self::default()) };
        let PyFunctions(filter, stages, inline, processes, get_item, map_samples, iterate) =
            functions;
        Ok(Functions {
            filter: filter.map(|function| SampleFunction::of("filter", function)),
            map_samples: map_samples.map(|function| SampleFunction::of("map", function)),
            stages: stages.into_iter().map(|(name, it)| (name, it.map(Arc::new))).collect(),
            inline: inline.map(Arc::new),
            processes,
            get_item: get_item.map(Arc::new),
            iterate: iterate.map(Arc::new),
            gil: Arc::default(),
            has_gil: has_gil(py)?,
        })
    }

    /// The requests for the GIL by threads that call functions; `None` without functions or without a GIL.
    pub(super) fn external_times(
        &self,
    ) -> Option<impl Fn() -> ExternalTimes + Send + Sync + use<>> {
        let Functions { filter, map_samples, stages, get_item, .. } = self;
        let of_samples = filter.is_some() || map_samples.is_some() || get_item.is_some();
        let gil = Arc::clone(&self.gil);
        (self.has_gil && (of_samples || !stages.is_empty())).then_some(move || {
            let mut times = ExternalTimes::default();
            times.gil = Some(gil.total());
            times
        })
    }

    /// The stages that `executor="processes"` moves to processes.
    pub(super) fn movable(&self) -> Vec<String> {
        self.stages.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Whether functions of the loader may run in processes.
    pub(super) fn has_map(&self, settings: &Settings) -> bool {
        matches!(settings.content, Content::Fields(_)) && self.map_samples.is_none()
    }

    /// The call on the thread that takes a batch.
    pub(super) fn inline(&self, seed: u64) -> Option<FunctionCall> {
        let function = Arc::clone(self.inline.as_ref()?);
        let names = self.stages.iter().map(|(name, _)| name.as_str().into()).collect();
        Some(FunctionCall { names, function, seed })
    }

    /// Adds a stage that makes Python objects of batches, and calls the first function, and a stage for each
    /// further function.
    pub(super) fn add(
        &self,
        pipeline: PipelineBuilder<Batch>,
        fields: &Arc<Py<SampleFields>>,
        first: &StageOf<Arc<Py<PyAny>>>,
        rest: &[StageOf<Arc<Py<PyAny>>>],
        seed: u64,
    ) -> PipelineBuilder<PythonBatch> {
        let call_of = |(name, function): &StageOf<_>, rest: &[StageOf<_>]| {
            let function = Arc::clone(function.as_ref()?);
            let rest = rest.iter().take_while(|(_, function)| function.is_none());
            let names = std::iter::once(name).chain(rest.map(|(name, _)| name));
            Some(FunctionCall {
                names: names.map(|name| name.as_str().into()).collect(),
                function,
                seed,
            })
        };
        let options = |name: &str, call: &Option<FunctionCall>| match self.processes {
            // Calls wait for other processes, and must not keep the threads of the loader waiting.
            Some(processes) if call.is_some() => {
                StageOptions::new(name).dedicated().concurrency(processes)
            }
            _ => StageOptions::new(name).holds_gil(true),
        };
        let (fields, call) = (Arc::clone(fields), call_of(first, rest));
        let of_first = options(&first.0, &call);
        let make = move || Ok(FirstStage { fields: Arc::clone(&fields), call: call.clone() });
        let mut pipeline = add_counted(pipeline, of_first, &self.gil, make);
        let mut left = rest;
        while let Some((one, rest)) = left.split_first() {
            let call = call_of(one, rest);
            let options = options(&one.0, &call);
            let make = move || Ok(FunctionStage(call.clone()));
            pipeline = add_counted(pipeline, options, &self.gil, make);
            left = rest;
        }
        pipeline
    }
}

/// Adds a stage whose threads count their requests for the GIL.
pub(super) fn add_counted<T: Send + 'static, S: Stage<T>>(
    pipeline: PipelineBuilder<T>,
    options: StageOptions,
    gil: &Arc<GilRequests>,
    make: impl Fn() -> Result<S> + Send + Sync + 'static,
) -> PipelineBuilder<S::Out> {
    let gil = Arc::clone(gil);
    pipeline.stage(options, move || Ok(Counted { stage: make()?, gil: Arc::clone(&gil) }))
}

/// A stage that only implements `process`, and calls Python.
struct Counted<S> {
    stage: S,
    gil: Arc<GilRequests>,
}

impl<T, S: Stage<T>> Stage<T> for Counted<S> {
    type Out = S::Out;

    fn process(&mut self, item: T, cx: &mut StageContext<'_, S::Out>) -> Result<()> {
        self.gil.count_on_this_thread();
        self.stage.process(item, cx)
    }
}

/// A function that selects samples, or replaces their values, before fields are decoded.
#[derive(Clone)]
pub(super) struct SampleFunction {
    /// The name of the stage.
    name: &'static str,
    /// The fields that the function gets.
    fields: Arc<Py<SampleFields>>,
    /// The function of a [`FunctionCall`], for batches of one sample.
    function: Arc<Py<PyAny>>,
    /// Counts the samples for which the function returned `False`.
    pub(super) filtered: Counter,
}

impl SampleFunction {
    fn of(name: &'static str, (fields, function): (Py<SampleFields>, Py<PyAny>)) -> Self {
        SampleFunction {
            name,
            fields: Arc::new(fields),
            function: Arc::new(function),
            filtered: Counter::default(),
        }
    }

    /// Adds the stage, before fields are decoded into batches.
    pub(super) fn add(
        &self,
        pipeline: PipelineBuilder<Record>,
        seed: u64,
        gil: &Arc<GilRequests>,
    ) -> PipelineBuilder<Record> {
        let (function, pool) = (self.clone(), BufferPool::new());
        let options = StageOptions::new(self.name).holds_gil(true);
        add_counted(pipeline, options, gil, move || {
            let spec = &function.fields.get().spec;
            Ok(SampleStage {
                call: FunctionCall {
                    names: Arc::new([function.name.into()]),
                    function: Arc::clone(&function.function),
                    seed,
                },
                function: function.clone(),
                layout: spec.layout(1).fields().to_vec(),
                // There are no images, so the codecs are not used.
                fill: FillRecord::new(spec, &CodecRegistry::with_defaults(), &Limits::default())?,
                pool: pool.clone(),
            })
        })
    }
}

struct SampleStage {
    function: SampleFunction,
    layout: Vec<Field>,
    fill: FillRecord,
    pool: BufferPool,
    call: FunctionCall,
}

impl Stage<Record> for SampleStage {
    type Out = Record;

    fn process(&mut self, mut record: Record, cx: &mut StageContext<'_, Record>) -> Result<()> {
        let id = cx.id();
        let mut of_sample = FillContext::new(self.call.seed, id, self.function.name, cx.key());
        let batch =
            Batch::of_one(&self.layout, &self.pool, &mut self.fill, &record, &mut of_sample)?;
        let SampleFunction { fields, filtered, .. } = &self.function;
        let keeps = try_python(|py| {
            let result = array_of(py, false)
                .and_then(|array| fields.get().to_dict(batch, array))
                .and_then(|values| self.call.call(values.into_any(), &[(id, 0)]))
                .map_err(|exception| fault_of_function(py, exception))?;
            if let Ok(keeps) = result.extract::<bool>() {
                return Ok(keeps);
            }
            for (name, value) in items::fields_of(&result).map_err(Error::fatal)? {
                let field = record.fields.iter_mut().find(|(field, _)| *field == name);
                match (field, value) {
                    (Some((_, field)), StoredField::Known(value)) => *field = value,
                    (Some(_), _) => {
                        let message =
                            format!("map returned a path for the field {name:?}; return its bytes");
                        return Err(Error::new(ErrorKind::InvalidArgument, message).fatal());
                    }
                    (None, _) => {}
                }
            }
            Ok(true)
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
    pub(super) ids: Arc<[PartId]>,
}

/// The identity of a sample, or of a part of a split sample, which starts at this token.
pub(super) type PartId = (SampleId, u64);

fn part_ids(batch: &Batch) -> Arc<[PartId]> {
    let starts = batch.starts().iter().copied().chain(std::iter::repeat(0));
    batch.ids().iter().copied().zip(starts).collect()
}

/// A function and the identities of its random numbers.
#[derive(Clone)]
pub(super) struct FunctionCall {
    /// The names of the stages whose work the function does. They determine the random numbers.
    names: Arc<[Box<str>]>,
    /// `function(values, seeds)`, where `seeds` has a list for each stage, with a random number for each sample of
    /// the batch.
    function: Arc<Py<PyAny>>,
    seed: u64,
}

impl FunctionCall {
    pub(super) fn call<'py>(
        &self,
        values: Bound<'py, PyAny>,
        ids: &[PartId],
    ) -> PyResult<Bound<'py, PyAny>> {
        let draw = |id: SampleId, name: &str| SampleRng::new(self.seed, id, name).next_u64();
        let of_stage = |name: &str| -> Vec<u64> {
            let of_part = |&(id, start): &PartId| match start {
                0 => draw(id, name),
                start => draw(id, &format!("{name} from {start}")),
            };
            ids.iter().map(of_part).collect()
        };
        let seeds: Vec<_> = self.names.iter().map(|name| of_stage(name)).collect();
        self.function.bind(values.py()).call1((values, seeds))
    }
}

/// Makes the exception of a function an error. The function is at fault, not a sample, so the policy for failures
/// does not apply.
fn fault_of_function(py: Python<'_>, exception: PyErr) -> Error {
    Raised::into_error(py, exception).fatal()
}

/// Calls a function for each batch, or forwards batches.
struct FunctionStage(Option<FunctionCall>);

impl Stage<PythonBatch> for FunctionStage {
    type Out = PythonBatch;

    fn process(
        &mut self,
        batch: PythonBatch,
        cx: &mut StageContext<'_, PythonBatch>,
    ) -> Result<()> {
        let FunctionStage(Some(call)) = self else { return cx.emit(batch) };
        let PythonBatch { values, ids } = batch;
        let values = try_python(|py| {
            let made = call.call(values.into_bound(py), &ids);
            made.map(Bound::unbind).map_err(|exception| fault_of_function(py, exception))
        })?;
        cx.emit(PythonBatch { values, ids })
    }
}

/// Makes a Python object of a batch, and calls the first function.
struct FirstStage {
    fields: Arc<Py<SampleFields>>,
    call: Option<FunctionCall>,
}

impl Stage<Batch> for FirstStage {
    type Out = PythonBatch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, PythonBatch>) -> Result<()> {
        let ids = part_ids(&batch);
        let values = try_python(|py| {
            let values =
                array_of(py, false).and_then(|array| self.fields.get().to_dict(batch, array));
            let made = values.map(Bound::into_any).and_then(|values| match &self.call {
                Some(call) => call.call(values, &ids),
                None => Ok(values),
            });
            made.map(Bound::unbind).map_err(|exception| fault_of_function(py, exception))
        })?;
        cx.emit(PythonBatch { values, ids })
    }
}

/// The exception for the caller of a loader: that of a function, or the exception of an error.
pub(super) fn exception_of(py: Python<'_>, error: &Error) -> PyErr {
    match Raised::of(error) {
        Some(raised) => raised.clone_ref(py),
        None => to_exception(py, error),
    }
}
