//! Operators of `spdl_rs.io` inside a pipeline of Python code: files to bytes to pixels to batches
//! without the GIL, which is held where items come from Python and where they go back to it.
//!
//! ```text
//! Python's item ──► enter ──► fetch ──► decode ──► augment (into an array, or a batch) ──► leave
//!                    GIL      the engine's threads; no Python                          GIL, NumPy
//! ```
//!
//! What `enter` cannot read it hands on as a failure, so that the first operator fails with it: in
//! its name, and on its budget.

mod augment;
mod decode;
mod fetch;

use std::sync::{Arc, OnceLock};
use std::thread;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use spdl_core::{
    Batch, BatchLayout, Error, ErrorKind, OnError, Order, PipelineBuilder, Result, StageOptions,
};
use spdl_media::image_fields;

use super::Item;
use super::raised::{fatal_failure, item_failure, native_failure};
use super::stage::{PART, between};
use crate::images::{arrays, check_memory};
use crate::interop::array::Array;
use crate::interop::error::to_exception;
use crate::interop::wait::with_python;
use crate::operators::{ImageAugmenter, ImageDecoder, Stores, array_of};

use augment::AugmentPart;
use decode::DecodePart;
use fetch::FetchPart;

/// The fields of a batch, as [`image_fields`] has them.
const IMAGES: usize = 0;
const LABELS: usize = 1;
/// How many items of Python's wait for the first operator: keys, or bytes that are in memory anyway.
const ENTERED: usize = 16;
/// The label of what has none.
const NO_LABEL: i64 = -1;

/// How a stage works, as Python describes it.
pub(super) struct Settings {
    pub(super) name: Arc<str>,
    /// `None`: as suits the stage and the machine.
    pub(super) concurrency: Option<usize>,
    pub(super) ordered: bool,
    pub(super) on_error: Option<OnError>,
}

/// Operators one behind the other: at least one, and batches only of what is decoded here.
pub(super) struct Native {
    fetch: Option<FetchPart>,
    decode: Option<DecodePart>,
    augment: Option<AugmentPart>,
    layout: Option<BatchLayout>,
}

impl Native {
    /// # Errors
    /// `LimitExceeded` for batches that there is no memory for; `ValueError` where there is nothing to
    /// do, or nothing to put into batches.
    pub(super) fn new(
        py: Python<'_>,
        fetch: Option<(Settings, u64)>,
        decode: Option<(Settings, ImageDecoder)>,
        augment: Option<(Settings, ImageAugmenter)>,
        batch: Option<(usize, bool)>,
    ) -> PyResult<Self> {
        if decode.is_none() && (batch.is_some() || fetch.is_some() == augment.is_some()) {
            return Err(PyValueError::new_err("there are no images that are decoded"));
        }
        let fault = |error: Error| to_exception(py, &error);
        let fetch = fetch.map(|(settings, max_bytes)| FetchPart::new(settings, max_bytes));
        let decode = decode.map(|(settings, decoder)| DecodePart::new(settings, decoder));
        let augment = augment.map(|(settings, augmenter)| AugmentPart::new(settings, augmenter));
        let mut native = Native { fetch, decode, augment, layout: None };
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
            self.decode.as_ref().map(|part| &part.settings),
            self.augment.as_ref().map(|part| &part.settings),
        ];
        settings.into_iter().flatten().next().map_or("", |settings| &settings.name)
    }

    /// What it reads from, if anything.
    pub(super) fn stores(&self) -> Option<&Stores> {
        self.fetch.as_ref().map(|fetch| &fetch.stores)
    }

    pub(super) fn add_to(&self, pipeline: PipelineBuilder<Item>) -> PipelineBuilder<Item> {
        let labels = self.layout.as_ref().map(|_| Labels::default());
        let Some(decode) = &self.decode else {
            return match (&self.fetch, &self.augment) {
                (Some(fetch), _) => {
                    let (leave, stage) = fetch.settings.leave();
                    fetch.add_to(pipeline, None).map(leave, move |item| {
                        let array = array_of(&item.value?)?;
                        leaving(&stage, |py| labelled(py, numpy(py, array)?, item.label))
                    })
                }
                (None, Some(augment)) => {
                    let pixels = augment.enter(pipeline);
                    let (leave, stage) = augment.settings.leave();
                    augment.add_to(pixels).map(leave, move |item| left(item, &stage))
                }
                // That was refused.
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
            (None, None) => decode.add_to(encoded).map(leave, move |item| left(item, &stage)),
            (Some(augment), None) => {
                let pixels = decode.add_to(encoded);
                augment.add_to(pixels).map(leave, move |item| left(item, &stage))
            }
            (None, Some(layout)) => {
                let batches = decode.fill(encoded, layout.clone());
                batches.map(leave, move |batch| left_batch(batch, &stage, labels.as_ref()))
            }
            (Some(augment), Some(layout)) => {
                let batches = augment.fill(decode.add_to(encoded), layout.clone());
                batches.map(leave, move |batch| left_batch(batch, &stage, labels.as_ref()))
            }
        }
    }
}

impl Settings {
    fn options(&self) -> StageOptions {
        let order = if self.ordered { Order::Input } else { Order::Completion };
        let options = StageOptions::new(&self.name).order(order);
        match self.on_error {
            Some(on_error) => options.on_error(on_error),
            None => options,
        }
    }

    /// One item after the other, so that they keep their order.
    fn part(&self, number: usize) -> StageOptions {
        StageOptions::new(&format!("{}{PART}{number}", self.name)).concurrency(1).queue(between(1))
    }

    /// What reads items of Python's: a name for messages, and what the first operator works on.
    fn enter<T: Send + 'static>(
        &self,
        pipeline: PipelineBuilder<Item>,
        labels: Option<Labels>,
        read: impl Fn(&Bound<'_, PyAny>) -> PyResult<(Arc<str>, T)> + Send + Sync + 'static,
    ) -> PipelineBuilder<Carried<Result<T>>> {
        let stage = Arc::clone(&self.name);
        let options = self.part(0).queue(ENTERED);
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
                    Ok((name, value)) => Carried { name, value: Ok(value), label },
                    Err(error) => {
                        let error = item_failure(py, error, &stage, Some(&item));
                        Carried { name: "".into(), value: Err(error), label }
                    }
                }
            })
        })
    }

    /// The stage that makes items of Python's, and the name of this one.
    fn leave(&self) -> (StageOptions, Arc<str>) {
        (self.part(1), Arc::clone(&self.name))
    }

    /// How many threads the stage has, where it computes.
    fn threads(&self) -> usize {
        let cpus = || thread::available_parallelism().map_or(1, usize::from);
        self.concurrency.unwrap_or_else(cpus)
    }
}

/// A value on its way, what it is called in messages, and its label where Python gave one.
struct Carried<T> {
    name: Arc<str>,
    value: T,
    label: Option<i64>,
}

/// Pixels, or why there are none.
type Pixels = Carried<Result<spdl_core::Array>>;

/// Whether the items of a pipeline have labels, once the first one has told.
type Labels = Arc<OnceLock<bool>>;

fn value_and_label<'py>(item: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Option<i64>)> {
    let Ok(pair) = item.cast::<PyTuple>() else { return Ok((item.clone(), None)) };
    if pair.len() != 2 {
        let message =
            format!("a pair of a value and its label is needed, not {} values", pair.len());
        return Err(PyTypeError::new_err(message));
    }
    let label = pair.get_item(1)?;
    let number = label.extract().map_err(|_| {
        let hide = || item.py().import("spdl_rs._secrets")?.getattr("without_secrets");
        let shown = label.repr().and_then(|text| hide()?.call1((text,)));
        let shown = shown.map(|text| text.to_string()).unwrap_or_default();
        let message = format!("a label must be a whole number of 64 bits, not {shown}");
        PyTypeError::new_err(message)
    })?;
    Ok((pair.get_item(0)?, Some(number)))
}

/// A batch has one array of labels, or none.
fn check_label(labels: &OnceLock<bool>, label: Option<i64>) -> PyResult<()> {
    let message = match (*labels.get_or_init(|| label.is_some()), label) {
        (true, Some(_)) | (false, None) => return Ok(()),
        (true, None) => "this item has no label, but the first one has",
        (false, Some(_)) => "this item has a label, but the first one has none",
    };
    Err(PyValueError::new_err(format!(
        "{message}; images of a batch have all a label, or none has"
    )))
}

/// Logs a failure, and says what it is about.
fn failed(error: Error, stage: &str, name: &Arc<str>) -> Error {
    let error = error.renamed(Arc::clone(name)).with_stage(stage);
    if error.kind() != ErrorKind::Stopped {
        // Where Python ends, nobody reads the log any more.
        drop(with_python(|py| native_failure(py, &error, stage, name)));
    }
    error
}

/// Makes an item of Python's. What fails here is no item's fault.
fn leaving(
    stage: &str,
    make: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>>,
) -> Result<Item> {
    with_python(|py| make(py).map(Bound::unbind).map_err(|error| fatal_failure(py, error, stage)))?
}

/// Pixels as an item of Python's.
fn left(item: Pixels, stage: &str) -> Result<Item> {
    let Carried { value, label, .. } = item;
    let value = value?;
    leaving(stage, |py| labelled(py, numpy(py, value.into())?, label))
}

/// A batch as an item of Python's.
fn left_batch(batch: Batch, stage: &str, labels: Option<&Labels>) -> Result<Item> {
    leaving(stage, |py| {
        let [images, classes] = arrays(batch)?;
        let images = numpy(py, images)?;
        if labels.and_then(|labels| labels.get()).is_some_and(|&labelled| labelled) {
            return Ok((images, numpy(py, classes)?).into_pyobject(py)?.into_any());
        }
        Ok(images)
    })
}

/// A view of the array, which keeps it.
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
