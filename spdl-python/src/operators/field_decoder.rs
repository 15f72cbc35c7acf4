//! Decoding of one field of `spdl_rs.fields`, such as video or audio.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pyo3::prelude::*;
use spdl_core::stage::SampleBuffer;
use spdl_core::{Error, ErrorKind, Fill, FillContext, Result};
use spdl_io::{FieldValue, Record};
use spdl_media::fill::{FillRecord, SampleField, SampleSpec};
use spdl_media::{CodecRegistry, Limits};

use super::{BYTES, Described, Draws, bytes_with_message, description};
use crate::interop::array::Array;
use crate::interop::error::to_exception;

/// Decodes the bytes of a file to the value of a field. Cheap to clone.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
#[derive(Clone)]
pub(crate) struct FieldDecoder {
    pub(crate) seed: u64,
    /// The only field.
    name: Arc<str>,
    spec: Arc<SampleSpec>,
    /// Instances for reuse, which own scratch memory.
    idle: Arc<Mutex<Vec<FieldWorker>>>,
}

/// The decoder of one thread, and the memory of its value.
pub(crate) struct FieldWorker {
    name: Arc<str>,
    fill: FillRecord,
    sample: SampleBuffer,
}

#[pymethods]
impl FieldDecoder {
    /// Validates the field: the name of its class, and its parameters.
    #[new]
    fn new(py: Python<'_>, field: Described<'_>, seed: u64) -> PyResult<Self> {
        let name: Arc<str> = field.0.to_lowercase().into();
        let fault = |error| to_exception(py, &error);
        let field = SampleField::from_description(&name, &description(field)?).map_err(fault)?;
        let spec = SampleSpec::new().with(Arc::clone(&name), field);
        spec.validate().map_err(fault)?;
        Ok(FieldDecoder { seed, name, spec: Arc::new(spec), idle: Arc::default() })
    }

    /// Decodes a file, with the random numbers of `draws`.
    fn decode(&self, py: Python<'_>, data: &Bound<'_, PyAny>, draws: &Draws) -> PyResult<Array> {
        let (bytes, mut cx) = (file_bytes(data)?, draws.take()?);
        let decode = || {
            let mut worker = match self.idle.try_lock().ok().and_then(|mut idle| idle.pop()) {
                Some(worker) => worker,
                None => self.worker()?,
            };
            let made = worker.decode(bytes, &mut cx);
            // The lock is held by another thread, or was held at a fork: do not reuse the instance.
            if let Ok(mut idle) = self.idle.try_lock() {
                idle.push(worker);
            }
            made
        };
        let made = py.detach(decode);
        made.map(Array::from).map_err(|error| to_exception(py, &error.renamed(BYTES)))
    }
}

impl FieldDecoder {
    /// A new instance for use by one thread.
    pub(crate) fn worker(&self) -> Result<FieldWorker> {
        let fill =
            FillRecord::new(&self.spec, &CodecRegistry::with_defaults(), &Limits::default())?;
        let sample = SampleBuffer::new(&self.spec.layout(1))?;
        Ok(FieldWorker { name: Arc::clone(&self.name), fill, sample })
    }
}

impl FieldWorker {
    /// Decodes one file to a new array.
    pub(crate) fn decode(
        &mut self,
        file: Bytes,
        cx: &mut FillContext<'_>,
    ) -> Result<spdl_core::Array> {
        let record = Record::new(BYTES).with_field(Arc::clone(&self.name), FieldValue::Bytes(file));
        self.fill.fill(record, self.sample.slot(), cx)?;
        let mut arrays = self.sample.to_arrays()?.into_iter();
        arrays.next().ok_or_else(|| Error::new(ErrorKind::Internal, "the field has no array"))
    }
}

/// The bytes of a file, as [`bytes_of`](super::bytes_of) returns them.
pub(crate) fn file_bytes(data: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    bytes_with_message(
        data,
        "Decode takes the bytes of a file, or a pair of bytes and label; to read files, add Fetch before it",
    )
}
