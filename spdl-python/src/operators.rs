//! What the operators of `spdl_rs.io` do with one item: a file to bytes, an image to pixels.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use spdl_core::{BufferPool, DType, Field, Result, SampleId, SampleRng, block_on};
use spdl_io::{Fetcher, Key, LocalFetcher};
use spdl_media::{
    CodecRegistry, FillImage, ImageTransform, Limits, Mode, Sample, SampleFormat, image_fields,
};

use crate::array::{Array, type_string};
use crate::error::to_exception;
use crate::io::buffer::Buffer;
use crate::wait::interruptible;

/// The stage of an image loader that draws random numbers. Who draws in its name draws the same.
pub(crate) const DECODE: &str = "decode";
/// What the bytes of an image are called that Python gave.
pub(crate) const BYTES: &str = "bytes";

/// Reads whole files of this machine.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct FileReader {
    max_bytes: u64,
}

#[pymethods]
impl FileReader {
    /// Refuses files of more than `max_bytes`.
    #[new]
    fn new(max_bytes: u64) -> Self {
        FileReader { max_bytes }
    }

    /// The bytes of a file.
    fn read(&self, py: Python<'_>, path: &Bound<'_, PyAny>) -> PyResult<Array> {
        let (key, max_bytes) = (key_of(path)?, self.max_bytes);
        let read = interruptible(py, move || {
            array_of(&block_on(LocalFetcher::with_threads(1).read_at_most(&key, max_bytes))?)
        });
        read?.map_err(|error| to_exception(py, &error))
    }
}

/// Makes samples of encoded images. Cheap to clone.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
#[derive(Clone)]
pub(crate) struct ImageDecoder {
    pub(crate) transform: ImageTransform,
    pub(crate) seed: u64,
    /// What a sample is.
    pixels: Field,
    codecs: CodecRegistry,
    /// Kept for the next image: they hold scratch memory.
    idle: Arc<Mutex<Vec<FillImage>>>,
}

#[pymethods]
impl ImageDecoder {
    /// Checks what Python cannot know: which layouts and sizes there are.
    #[new]
    fn new(py: Python<'_>, size: u32, train: bool, layout: &str, seed: u64) -> PyResult<Self> {
        let fault = |error| to_exception(py, &error);
        let mode = if train { Mode::Train } else { Mode::Eval };
        let format: SampleFormat = layout.parse().map_err(fault)?;
        // Before a pipeline finds out with its first image.
        type_string(format.dtype)?;
        let transform = ImageTransform::new(size).mode(mode).format(format);
        transform.validate().map_err(fault)?;
        let codecs = CodecRegistry::with_defaults();
        // The first of two: images and labels.
        let pixels = image_fields(&transform).swap_remove(0);
        Ok(ImageDecoder { transform, seed, pixels, codecs, idle: Arc::default() })
    }

    /// The sample that an image loader would make of the image at this place of this epoch.
    fn decode(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        epoch: u64,
        index: u64,
    ) -> PyResult<Array> {
        let bytes = bytes_of(data)?;
        let decode = || {
            let mut image = match self.idle.try_lock().ok().and_then(|mut idle| idle.pop()) {
                Some(image) => image,
                None => self.instance()?,
            };
            let id = SampleId { epoch, index };
            let rng = || SampleRng::new(self.seed, id, DECODE);
            let made = self.write(&mut image, &bytes, &BufferPool::new(), rng);
            // Where another thread is at it, or was in a process that this one is a fork of.
            if let Ok(mut idle) = self.idle.try_lock() {
                idle.push(image);
            }
            made
        };
        let made = py.detach(decode);
        made.map(Array::from).map_err(|error| to_exception(py, &error.with_key(BYTES)))
    }
}

impl ImageDecoder {
    /// What one thread decodes with.
    pub(crate) fn instance(&self) -> Result<FillImage> {
        FillImage::new(&self.codecs, &self.transform, &Limits::default())
    }

    /// One sample in an array of its own.
    pub(crate) fn write(
        &self,
        image: &mut FillImage,
        encoded: &[u8],
        buffers: &BufferPool,
        rng: impl FnOnce() -> SampleRng,
    ) -> Result<spdl_core::Array> {
        let dtype = self.pixels.dtype;
        let buffer = buffers.take(self.pixels.row_bytes().unwrap_or(usize::MAX))?;
        let mut array = spdl_core::Array::new(dtype, self.pixels.shape.clone(), buffer)?;
        let sample = match dtype {
            DType::F16 => Sample::F16(array.as_mut_slice()?),
            DType::BF16 => Sample::BF16(array.as_mut_slice()?),
            DType::F32 => Sample::F32(array.as_mut_slice()?),
            _ => Sample::U8(array.as_mut_slice()?),
        };
        image.write(encoded, sample, rng)?;
        Ok(array)
    }
}

/// Bytes in memory that NumPy can have.
pub(crate) fn array_of(bytes: &[u8]) -> Result<Array> {
    Array::of_bytes(bytes.len(), |array| {
        array.copy_from_slice(bytes);
        Ok(())
    })
}

/// The file that a path names.
///
/// # Errors
/// `TypeError` for what is no path.
pub(crate) fn key_of(path: &Bound<'_, PyAny>) -> PyResult<Key> {
    if let Ok(bytes) = path.cast::<PyBytes>() {
        return Ok(Key::from_bytes(bytes.as_bytes()));
    }
    let path: PathBuf = path.extract().map_err(|_| {
        let message = format!(
            "Fetch takes a path (str, bytes or os.PathLike), or a pair of a path and a label, not {}",
            kind_of(path)
        );
        PyTypeError::new_err(message)
    })?;
    Ok(Key::from_path(OsString::from(path)))
}

/// The bytes of an image: shared where nobody can change them, else a copy.
///
/// # Errors
/// `TypeError` for what has no bytes to show.
pub(crate) fn bytes_of(data: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    let py = data.py();
    let shown = match data.cast::<Array>() {
        Ok(array) => py.import("numpy")?.call_method1("asarray", (array,))?,
        Err(_) => data.clone(),
    };
    let buffer = Buffer::of(&shown).map_err(|error| {
        if !error.is_instance_of::<PyTypeError>(py) {
            return error;
        }
        let message = format!(
            "DecodeImage takes the bytes of an image file, or a pair of those and a label, not {}; \
             Fetch in front of it reads files",
            kind_of(data)
        );
        PyTypeError::new_err(message)
    })?;
    buffer.read(py, 0..buffer.len()).map_err(|error| to_exception(py, &error))
}

fn kind_of(value: &Bound<'_, PyAny>) -> String {
    value.get_type().name().map(|name| name.to_string()).unwrap_or_default()
}
