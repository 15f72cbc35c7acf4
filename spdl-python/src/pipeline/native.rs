//! Operators of `spdl_rs.io` inside a pipeline of Python code: files to bytes to pixels to batches
//! without the GIL, which is held where items come from Python and where they go back to it.
//!
//! ```text
//! Python's item ──► enter ──► fetch ──► decode (into an array, or a batch) ──► leave ──► NumPy
//!                    GIL      the engine's threads; no Python                   GIL
//! ```
//!
//! What `enter` cannot read it hands on as a failure, so that the first operator fails with it: in
//! its name, and on its budget.

use std::sync::{Arc, OnceLock};
use std::thread;

use bytes::Bytes;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use spdl_core::{
    AsyncContext, AsyncStage, Batch, BatchLayout, BufferPool, DType, Error, ErrorKind, Field, Fill,
    FillContext, OnError, Order, PipelineBuilder, Result, SlotMut, StageContext, StageOptions,
    async_trait,
};
use spdl_io::{Fetch, Fetcher, Key, LocalFetcher};
use spdl_media::{FillImage, Sample, image_fields};

use super::Item;
use super::raised::{fatal_failure, item_failure, native_failure};
use super::stage::{PART, between};
use super::workers::with_python;
use crate::array::Array;
use crate::epoch::{arrays, check_memory};
use crate::error::to_exception;
use crate::operators::{BYTES, DECODE, ImageDecoder, array_of, bytes_of, key_of};

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

/// Operators one behind the other.
pub(super) enum Native {
    Fetch(FetchPart),
    Decode(Option<FetchPart>, Box<DecodePart>),
}

/// What reads files.
pub(super) struct FetchPart {
    settings: Settings,
    max_bytes: u64,
}

/// What decodes images.
pub(super) struct DecodePart {
    settings: Settings,
    decoder: ImageDecoder,
    threads: usize,
    /// Present where images are put into batches.
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
        batch: Option<(usize, bool)>,
    ) -> PyResult<Self> {
        let fetch = fetch.map(|(settings, max_bytes)| FetchPart { settings, max_bytes });
        let Some((settings, decoder)) = decode else {
            let nothing = || PyValueError::new_err("batches need images that are decoded");
            return fetch.filter(|_| batch.is_none()).map(Native::Fetch).ok_or_else(nothing);
        };
        let cpus = || thread::available_parallelism().map_or(1, usize::from);
        let threads = settings.concurrency.unwrap_or_else(cpus);
        let layout = batch.map(|(size, drop_last)| {
            let layout = BatchLayout::new(size, image_fields(&decoder.transform));
            layout.drop_last(drop_last)
        });
        if let Some(layout) = &layout {
            let checked = check_memory(layout, layout.live_bytes(threads), threads);
            checked.map_err(|error| to_exception(py, &error))?;
        }
        Ok(Native::Decode(fetch, Box::new(DecodePart { settings, decoder, threads, layout })))
    }

    /// The name of the first operator.
    pub(super) fn name(&self) -> &str {
        match self {
            Native::Fetch(fetch) | Native::Decode(Some(fetch), _) => &fetch.settings.name,
            Native::Decode(None, decode) => &decode.settings.name,
        }
    }

    pub(super) fn add_to(&self, pipeline: PipelineBuilder<Item>) -> PipelineBuilder<Item> {
        match self {
            Native::Fetch(fetch) => {
                let (leave, stage) = fetch.settings.leave();
                fetch.add_to(pipeline, None).map(leave, move |item| {
                    let array = array_of(&item.value?)?;
                    leaving(&stage, |py| labelled(py, numpy(py, array)?, item.label))
                })
            }
            Native::Decode(fetch, decode) => {
                let labels = decode.layout.as_ref().map(|_| Labels::default());
                let encoded = match fetch {
                    Some(fetch) => fetch.add_to(pipeline, labels.clone()),
                    None => decode.settings.enter(pipeline, labels.clone(), |data| {
                        Ok((BYTES.into(), bytes_of(data)?))
                    }),
                };
                decode.add_to(encoded, labels)
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
}

/// A value on its way, what it is called in messages, and its label where Python gave one.
struct Carried<T> {
    name: Arc<str>,
    value: T,
    label: Option<i64>,
}

/// The bytes of a file, or why there are none.
type Encoded = Carried<Result<Bytes>>;

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
        let shown = label.repr().map(|text| text.to_string()).unwrap_or_default();
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
    let error = error.with_key(Arc::clone(name)).with_stage(stage);
    if error.kind() != ErrorKind::Stopped {
        // Where Python ends, nobody reads the log any more.
        drop(with_python(|py| native_failure(py, &error, stage, name)));
    }
    error
}

impl FetchPart {
    fn add_to(
        &self,
        pipeline: PipelineBuilder<Item>,
        labels: Option<Labels>,
    ) -> PipelineBuilder<Encoded> {
        let keys = self.settings.enter(pipeline, labels, |path| {
            let key = key_of(path)?;
            Ok((key.display_name(), key))
        });
        let threads = self.settings.concurrency.unwrap_or(LocalFetcher::DEFAULT_THREADS);
        let options = self.settings.options().concurrency(threads).queue(Fetch::READ_AHEAD);
        let fetcher = LocalFetcher::with_threads(threads);
        let stage = Arc::clone(&self.settings.name);
        keys.async_stage(options, FetchFile { fetcher, max_bytes: self.max_bytes, stage })
    }
}

struct FetchFile {
    fetcher: LocalFetcher,
    max_bytes: u64,
    stage: Arc<str>,
}

#[async_trait]
impl AsyncStage<Carried<Result<Key>>> for FetchFile {
    type Out = Encoded;

    async fn process(&self, item: Carried<Result<Key>>, _: &AsyncContext) -> Result<Encoded> {
        let Carried { name, value, label } = item;
        let read = self.fetcher.read_at_most(&value?, self.max_bytes).await;
        let bytes = read.map_err(|error| failed(error, &self.stage, &name))?;
        Ok(Carried { name, value: Ok(bytes), label })
    }
}

impl DecodePart {
    /// The stage has threads of its own: those of the pipeline may all be waiting for the GIL.
    fn add_to(
        &self,
        encoded: PipelineBuilder<Encoded>,
        labels: Option<Labels>,
    ) -> PipelineBuilder<Item> {
        let (leave, stage) = self.settings.leave();
        let options = self.settings.options().concurrency(self.threads).dedicated();
        let worker = {
            let (decoder, stage) = (self.decoder.clone(), Arc::clone(&stage));
            let buffers = BufferPool::new();
            move || {
                let (decoder, buffers) = (decoder.clone(), buffers.clone());
                let stage = Arc::clone(&stage);
                Ok(Decode { image: decoder.instance()?, decoder, buffers, stage })
            }
        };
        match &self.layout {
            Some(layout) => {
                let labels = labels.unwrap_or_default();
                encoded.fill(options, layout.clone(), worker).map(leave, move |batch: Batch| {
                    leaving(&stage, |py| {
                        let (images, classes) = arrays(batch)?;
                        let images = numpy(py, images)?;
                        if labels.get().is_some_and(|&labelled| labelled) {
                            return Ok((images, numpy(py, classes)?).into_pyobject(py)?.into_any());
                        }
                        Ok(images)
                    })
                })
            }
            None => {
                let decoded = encoded.stage(options.queue(between(self.threads)), worker);
                decoded.map(leave, move |item: Carried<spdl_core::Array>| {
                    let Carried { value, label, .. } = item;
                    leaving(&stage, |py| labelled(py, numpy(py, value.into())?, label))
                })
            }
        }
    }
}

/// What a thread decodes with.
struct Decode {
    image: FillImage,
    decoder: ImageDecoder,
    buffers: BufferPool,
    stage: Arc<str>,
}

impl spdl_core::Stage<Encoded> for Decode {
    type Out = Carried<spdl_core::Array>;

    fn process(&mut self, item: Encoded, cx: &mut StageContext<'_, Self::Out>) -> Result<()> {
        let Carried { name, value, label } = item;
        let rng = || cx.rng_of(self.decoder.seed, DECODE);
        let made = self.decoder.write(&mut self.image, &value?, &self.buffers, rng);
        let value = made.map_err(|error| failed(error, &self.stage, &name))?;
        cx.emit(Carried { name, value, label })
    }
}

impl Fill<Encoded> for Decode {
    fn fill(
        &mut self,
        item: Encoded,
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> Result<()> {
        let encoded = item.value?;
        let sample = match slot.fields()[IMAGES].dtype {
            DType::F16 => Sample::F16(slot.typed_mut(IMAGES)?),
            DType::BF16 => Sample::BF16(slot.typed_mut(IMAGES)?),
            DType::F32 => Sample::F32(slot.typed_mut(IMAGES)?),
            _ => Sample::U8(slot.typed_mut(IMAGES)?),
        };
        let written = self.image.write(&encoded, sample, || cx.rng_of(self.decoder.seed, DECODE));
        written.map_err(|error| failed(error, &self.stage, &item.name))?;
        slot.set(LABELS, item.label.unwrap_or(NO_LABEL))
    }

    fn check_fields(&self, fields: &[Field]) -> Result<()> {
        self.image.check_field(&fields[IMAGES])
    }
}

/// Makes an item of Python's. What fails here is no item's fault.
fn leaving(
    stage: &str,
    make: impl for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>>,
) -> Result<Item> {
    with_python(|py| make(py).map(Bound::unbind).map_err(|error| fatal_failure(py, error, stage)))?
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
