//! Operators of `spdl_rs.io` in a pipeline of Python code: files to bytes to pixels to batches.
//!
//! The GIL is held only when items arrive from Python and return to it, and to log failures.
//!
//! ```text
//! Python's item ──► enter ──► fetch ──► decode ──► augment (into an array, or a batch) ──► leave
//!                                   ──► field (video or audio, into an array) ───────────► leave
//!                    GIL      the engine's threads; no Python                          GIL, NumPy
//! ```
//!
//! If `enter` cannot convert an item, it forwards the error to the first operator, which fails with this
//! error. So the failure has the operator's name and counts against the operator's budget.

mod augment;
mod decode;
mod fetch;
mod field;

use std::sync::{Arc, OnceLock};
use std::thread;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use spdl_core::{
    Batch, BatchLayout, Error, ErrorKind, OnError, PipelineBuilder, Result, StageOptions,
};
use spdl_media::image_fields;

use super::Item;
use super::raised::{fatal_failure, item_failure, native_failure};
use super::stage::{PART, queue_len, stage_options};
use crate::interop::array::Array;
use crate::interop::error::to_exception;
use crate::interop::wait::with_python;
use crate::loader::{arrays, check_memory};
use crate::operators::{FieldDecoder, ImageAugmenter, ImageDecoder, Stores, array_of};

use augment::AugmentPart;
use decode::DecodePart;
use fetch::FetchPart;
use field::FieldPart;

/// The indices of the batch fields that [`image_fields`] defines.
const IMAGES: usize = 0;
const LABELS: usize = 1;
/// Queue length before the first operator: keys, or bytes that are in memory already.
const ENTRY_QUEUE: usize = 16;
/// The label of unlabeled images.
const NO_LABEL: i64 = -1;

/// The settings of an operator.
pub(super) struct OperatorSettings {
    pub(super) name: Arc<str>,
    /// `None` for the default of the operator.
    pub(super) concurrency: Option<usize>,
    pub(super) ordered: bool,
    pub(super) on_error: Option<OnError>,
}

/// What an operator decodes.
#[derive(FromPyObject)]
pub(super) enum Decoder<'py> {
    Image(PyRef<'py, ImageDecoder>),
    Field(PyRef<'py, FieldDecoder>),
}

/// Chained operators, at least one. Batches require `DecodeImage` in the same chain.
pub(super) struct Native {
    fetch: Option<FetchPart>,
    /// Follows `fetch`; excludes the others.
    field: Option<FieldPart>,
    decode: Option<DecodePart>,
    augment: Option<AugmentPart>,
    layout: Option<BatchLayout>,
}

impl Native {
    /// # Errors
    /// `LimitExceeded` if the batches exceed the memory of the process. `ValueError` for an
    /// unsupported combination of operators.
    pub(super) fn new(
        py: Python<'_>,
        fetch: Option<(OperatorSettings, u64)>,
        decode: Option<(OperatorSettings, Decoder<'_>)>,
        augment: Option<(OperatorSettings, ImageAugmenter)>,
        batch: Option<(usize, bool)>,
    ) -> PyResult<Self> {
        let fetch = fetch.map(|(settings, max_bytes)| FetchPart::new(settings, max_bytes));
        let decode = match decode {
            Some((settings, Decoder::Field(decoder))) => {
                let field = Some(FieldPart::new(settings, decoder.clone()));
                return Ok(Native { fetch, field, decode: None, augment: None, layout: None });
            }
            Some((settings, Decoder::Image(decoder))) => {
                Some(DecodePart::new(settings, decoder.clone()))
            }
            None => None,
        };
        if decode.is_none() && (batch.is_some() || fetch.is_some() == augment.is_some()) {
            let message = "unsupported combination of operators: batches, and AugmentImage after \
                           Fetch, need DecodeImage";
            return Err(PyValueError::new_err(message));
        }
        let fault = |error: Error| to_exception(py, &error);
        let augment = augment.map(|(settings, augmenter)| AugmentPart::new(settings, augmenter));
        let mut native = Native { fetch, field: None, decode, augment, layout: None };
        if let (Some((size, drop_last)), Some(decode)) = (batch, &native.decode) {
            let layout = BatchLayout::new(size, image_fields(decode.transform()));
            let layout = layout.drop_last(drop_last);
            let threads = native.augment.as_ref().map_or(decode.threads(), AugmentPart::threads);
            check_memory(&layout, layout.live_bytes(threads), threads).map_err(fault)?;
            native.layout = Some(layout);
        }
        Ok(native)
    }

    /// The name of the first operator.
    pub(super) fn name(&self) -> &str {
        let settings = [
            self.fetch.as_ref().map(|part| &part.settings),
            self.field.as_ref().map(|part| &part.settings),
            self.decode.as_ref().map(|part| &part.settings),
            self.augment.as_ref().map(|part| &part.settings),
        ];
        settings.into_iter().flatten().next().map_or("", |settings| &settings.name)
    }

    /// The stores that the operators read from, if any.
    pub(super) fn stores(&self) -> Option<&Stores> {
        self.fetch.as_ref().map(|fetch| &fetch.stores)
    }

    pub(super) fn add_to(&self, pipeline: PipelineBuilder<Item>) -> PipelineBuilder<Item> {
        if let Some(field) = &self.field {
            let encoded = match &self.fetch {
                Some(fetch) => fetch.add_to(pipeline, None),
                None => field.enter(pipeline),
            };
            let (leave, stage) = field.settings.leave();
            return field.add_to(encoded).map(leave, move |item| pixels_to_python(item, &stage));
        }
        let labels = self.layout.as_ref().map(|_| Labels::default());
        let Some(decode) = &self.decode else {
            return match (&self.fetch, &self.augment) {
                (Some(fetch), _) => {
                    let (leave, stage) = fetch.settings.leave();
                    fetch.add_to(pipeline, None).map(leave, move |item| {
                        let array = array_of(&item.value?)?;
                        to_python(&stage, |py| labelled(py, numpy(py, array)?, item.label))
                    })
                }
                (None, Some(augment)) => {
                    let pixels = augment.enter(pipeline);
                    let (leave, stage) = augment.settings.leave();
                    augment.add_to(pixels).map(leave, move |item| pixels_to_python(item, &stage))
                }
                // `new` rejects this combination.
                (None, None) => pipeline,
            };
        };
        let encoded = match &self.fetch {
            Some(fetch) => fetch.add_to(pipeline, labels.clone()),
            None => decode.enter(pipeline, labels.clone()),
        };
        let last = self.augment.as_ref().map_or(&decode.settings, |augment| &augment.settings);
        let (leave, stage) = last.leave();
        match (&self.augment, &self.layout) {
            (None, None) => {
                decode.add_to(encoded).map(leave, move |item| pixels_to_python(item, &stage))
            }
            (Some(augment), None) => {
                let pixels = decode.add_to(encoded);
                augment.add_to(pixels).map(leave, move |item| pixels_to_python(item, &stage))
            }
            (None, Some(layout)) => {
                let batches = decode.fill(encoded, layout.clone());
                batches.map(leave, move |batch| batch_to_python(batch, &stage, labels.as_ref()))
            }
            (Some(augment), Some(layout)) => {
                let batches = augment.fill(decode.add_to(encoded), layout.clone());
                batches.map(leave, move |batch| batch_to_python(batch, &stage, labels.as_ref()))
            }
        }
    }
}

impl OperatorSettings {
    fn options(&self) -> StageOptions {
        let options = stage_options(&self.name, self.ordered).holds_gil(false);
        match self.on_error {
            Some(on_error) => options.on_error(on_error),
            None => options,
        }
    }

    /// The options of an auxiliary stage, with concurrency 1, which keeps the order.
    fn part(&self, number: usize) -> StageOptions {
        stage_options(&format!("{}{PART}{number}", self.name), false)
            .concurrency(1)
            .queue(queue_len(1))
    }

    /// Adds the stage that converts Python items to names and inputs of the first operator.
    fn enter<T: Send + 'static>(
        &self,
        pipeline: PipelineBuilder<Item>,
        labels: Option<Labels>,
        read: impl Fn(&Bound<'_, PyAny>) -> PyResult<(Arc<str>, T)> + Send + Sync + 'static,
    ) -> PipelineBuilder<NativeItem<Result<T>>> {
        let stage = Arc::clone(&self.name);
        let options = self.part(0).queue(ENTRY_QUEUE);
        pipeline.map(options, move |item: Item| {
            with_python(|py| {
                let (value, label) = match value_and_label(item.bind(py)) {
                    Ok((value, label)) => (Ok(value), label),
                    Err(error) => (Err(error), None),
                };
                let read = value.and_then(|value| {
                    let read = read(&value)?;
                    labels.as_ref().map_or(Ok(()), |labels| check_label(labels, label))?;
                    Ok(read)
                });
                match read {
                    Ok((name, value)) => NativeItem { name, value: Ok(value), label },
                    Err(error) => {
                        let error = item_failure(py, error, &stage, Some(&item));
                        NativeItem { name: "".into(), value: Err(error), label }
                    }
                }
            })
        })
    }

    /// The options of the stage that creates Python items, and the name of this operator.
    fn leave(&self) -> (StageOptions, Arc<str>) {
        (self.part(1), Arc::clone(&self.name))
    }

    /// The number of threads of an operator that computes.
    fn threads(&self) -> usize {
        let cpus = || thread::available_parallelism().map_or(1, usize::from);
        self.concurrency.unwrap_or_else(cpus)
    }
}

/// A value with its name for messages and its optional label.
struct NativeItem<T> {
    name: Arc<str>,
    value: T,
    label: Option<i64>,
}

/// Pixels or another decoded value, or the error of an upstream step.
type Pixels = NativeItem<Result<spdl_core::Array>>;

/// Whether the items of a pipeline have labels; set by the first item.
type Labels = Arc<OnceLock<bool>>;

fn value_and_label<'py>(item: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Option<i64>)> {
    let Ok(pair) = item.cast::<PyTuple>() else { return Ok((item.clone(), None)) };
    if pair.len() != 2 {
        let message = format!(
            "expected a pair of a value and its label, not a tuple of {} values",
            pair.len()
        );
        return Err(PyTypeError::new_err(message));
    }
    let label = pair.get_item(1)?;
    let number = label.extract().map_err(|_| {
        let hide = || item.py().import("spdl_rs._secrets")?.getattr("without_secrets");
        let shown = label.repr().and_then(|text| hide()?.call1((text,)));
        let shown = shown.map(|text| text.to_string()).unwrap_or_default();
        let message = format!("a label must be a 64-bit integer, not {shown}");
        PyTypeError::new_err(message)
    })?;
    Ok((pair.get_item(0)?, Some(number)))
}

/// Checks that either all items of a pipeline have labels, or no item has a label.
fn check_label(labels: &OnceLock<bool>, label: Option<i64>) -> PyResult<()> {
    let message = match (*labels.get_or_init(|| label.is_some()), label) {
        (true, Some(_)) | (false, None) => return Ok(()),
        (true, None) => "this item has no label, but the first item has one",
        (false, Some(_)) => "this item has a label, but the first item has none",
    };
    Err(PyValueError::new_err(format!("{message}; label all images of a pipeline, or none")))
}

/// Logs a failure, and adds the stage and item name to the error.
fn failed(error: Error, stage: &str, name: &Arc<str>) -> Error {
    let error = error.renamed(Arc::clone(name)).with_stage(stage);
    if error.kind() != ErrorKind::Stopped {
        // Fails only during finalization.
        drop(with_python(|py| native_failure(py, &error, stage, name)));
    }
    error
}

/// Creates a Python item. Errors are fatal, because they are not caused by the item.
fn to_python(
    stage: &str,
    make: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>>,
) -> Result<Item> {
    with_python(|py| make(py).map(Bound::unbind).map_err(|error| fatal_failure(py, error, stage)))?
}

/// Converts pixels to a Python item.
fn pixels_to_python(item: Pixels, stage: &str) -> Result<Item> {
    let NativeItem { value, label, .. } = item;
    let value = value?;
    to_python(stage, |py| labelled(py, numpy(py, value.into())?, label))
}

/// Converts a batch to a Python item.
fn batch_to_python(batch: Batch, stage: &str, labels: Option<&Labels>) -> Result<Item> {
    to_python(stage, |py| {
        let [images, classes] = arrays(batch)?;
        let images = numpy(py, images)?;
        if labels.and_then(|labels| labels.get()).is_some_and(|&labelled| labelled) {
            return Ok((images, numpy(py, classes)?).into_pyobject(py)?.into_any());
        }
        Ok(images)
    })
}

/// A NumPy view that keeps the array alive.
fn numpy<'py>(py: Python<'py>, array: Array) -> PyResult<Bound<'py, PyAny>> {
    static AS_ARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    AS_ARRAY.import(py, "numpy", "asarray")?.call1((array,))
}

fn labelled<'py>(
    py: Python<'py>,
    value: Bound<'py, PyAny>,
    label: Option<i64>,
) -> PyResult<Bound<'py, PyAny>> {
    match label {
        Some(label) => Ok((value, label).into_pyobject(py)?.into_any()),
        None => Ok(value),
    }
}
