//! Batches of an epoch, on the host or on a device.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use spdl_core::observe::Dropped;
use spdl_core::pipeline::{Control, Monitor};
use spdl_core::stage::DeviceBatch;
use spdl_core::{Batch, Pipeline, PipelineBuilder, Result, State};
use spdl_cuda::CudaDevice;

use super::fields::SampleFields;
use super::functions::PythonBatch;
use super::state;
use crate::cuda::DeviceMemory;
use crate::interop::array::Array;

/// Prefetched batches, uploaded or being uploaded to the device.
const PREFETCH: usize = 2;

/// The pipeline of an epoch.
pub(crate) enum Batches {
    Host(Pipeline<Batch>),
    OfFunctions(Pipeline<PythonBatch>),
    Device(Pipeline<DeviceBatch>),
}

/// A batch of an epoch.
pub(crate) enum Delivered {
    Host(Batch),
    OfFunctions(PythonBatch),
    Device(DeviceBatch),
}

impl Batches {
    /// Builds the pipeline, with an upload stage if `device` is given.
    pub(crate) fn build(
        pipeline: PipelineBuilder<Batch>,
        device: Option<&CudaDevice>,
        state: Option<State>,
    ) -> Result<Self> {
        let built = match device {
            None => resumed(pipeline, state).build().map(Batches::Host),
            Some(device) => {
                let pipeline = pipeline.buffers(device.buffers()).prefetch(PREFETCH);
                let pipeline = pipeline.upload("upload", Arc::new(device.clone()));
                resumed(pipeline, state).build().map(Batches::Device)
            }
        };
        built.map_err(state::with_argument_names)
    }

    /// Builds a pipeline whose batches are made on a device.
    pub(crate) fn build_on_device(
        pipeline: PipelineBuilder<DeviceBatch>,
        state: Option<State>,
    ) -> Result<Self> {
        let pipeline = pipeline.prefetch(PREFETCH);
        let built = resumed(pipeline, state).build().map(Batches::Device);
        built.map_err(state::with_argument_names)
    }

    /// Builds a pipeline whose batches are results of Python functions.
    pub(super) fn build_of_functions(
        pipeline: PipelineBuilder<PythonBatch>,
        state: Option<State>,
    ) -> Result<Self> {
        let built = resumed(pipeline, state).build().map(Batches::OfFunctions);
        built.map_err(state::with_argument_names)
    }

    pub(crate) fn start(&mut self) -> Result<()> {
        match self {
            Batches::Host(pipeline) => pipeline.start(),
            Batches::OfFunctions(pipeline) => pipeline.start(),
            Batches::Device(pipeline) => pipeline.start(),
        }
    }

    pub(crate) fn next_timeout(&mut self, timeout: Duration) -> Poll<Option<Result<Delivered>>> {
        match self {
            Batches::Host(pipeline) => {
                pipeline.next_timeout(timeout).map(|end| end.map(|it| it.map(Delivered::Host)))
            }
            Batches::OfFunctions(pipeline) => pipeline
                .next_timeout(timeout)
                .map(|end| end.map(|it| it.map(Delivered::OfFunctions))),
            Batches::Device(pipeline) => {
                pipeline.next_timeout(timeout).map(|end| end.map(|it| it.map(Delivered::Device)))
            }
        }
    }

    pub(crate) fn monitor(&self) -> Monitor {
        match self {
            Batches::Host(pipeline) => pipeline.monitor(),
            Batches::OfFunctions(pipeline) => pipeline.monitor(),
            Batches::Device(pipeline) => pipeline.monitor(),
        }
    }

    pub(crate) fn control(&self) -> Control {
        match self {
            Batches::Host(pipeline) => pipeline.control(),
            Batches::OfFunctions(pipeline) => pipeline.control(),
            Batches::Device(pipeline) => pipeline.control(),
        }
    }

    pub(crate) fn take_dropped(&mut self) -> Vec<Dropped> {
        match self {
            Batches::Host(pipeline) => pipeline.take_dropped(),
            Batches::OfFunctions(pipeline) => pipeline.take_dropped(),
            Batches::Device(pipeline) => pipeline.take_dropped(),
        }
    }

    pub(crate) fn state(&self) -> Result<State> {
        match self {
            Batches::Host(pipeline) => pipeline.state(),
            Batches::OfFunctions(pipeline) => pipeline.state(),
            Batches::Device(pipeline) => pipeline.state(),
        }
    }
}

impl Delivered {
    /// The images and labels as Python arrays, the values of `fields`, or the result of a function. Arrays are
    /// made by `array`, which is called with a native array, or with device memory, a shape and a dtype.
    pub(crate) fn into_python<'py>(
        self,
        array: &Bound<'py, PyAny>,
        fields: Option<&SampleFields>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = array.py();
        match self {
            Delivered::Host(batch) => {
                if let Some(fields) = fields {
                    return Ok(fields.to_dict(batch, array)?.into_any());
                }
                let [images, labels] = arrays(batch)?;
                let arrays = [array.call1((images,))?, array.call1((labels,))?];
                Ok(PyTuple::new(py, arrays)?.into_any())
            }
            Delivered::OfFunctions(batch) => Ok(batch.values.into_bound(py)),
            Delivered::Device(batch) => {
                let arrays = batch.into_arrays().map(|(_, placed)| {
                    let (shape, dtype) = (placed.shape().to_vec(), placed.dtype().name());
                    let memory = Bound::new(py, DeviceMemory::from(placed.into_upload()))?;
                    array.call1((memory, PyTuple::new(py, shape)?, dtype))
                });
                Ok(PyTuple::new(py, two(arrays.collect::<PyResult<_>>()?)?)?.into_any())
            }
        }
    }
}

fn resumed<T: Send + 'static>(
    builder: PipelineBuilder<T>,
    state: Option<State>,
) -> PipelineBuilder<T> {
    match state {
        Some(state) => builder.resume(state),
        None => builder,
    }
}

/// The images and the labels of a batch.
pub(crate) fn arrays(batch: Batch) -> PyResult<[Array; 2]> {
    let [images, labels] = two(batch.into_arrays())?;
    Ok([images.into(), labels.into()])
}

fn two<T>(arrays: Vec<T>) -> PyResult<[T; 2]> {
    arrays.try_into().map_err(|arrays: Vec<T>| {
        let message = format!("a batch has {} arrays, expected 2", arrays.len());
        PyRuntimeError::new_err(message)
    })
}
