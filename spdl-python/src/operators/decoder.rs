//! Decoding of images to samples.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;
use spdl_core::memory::BufferPool;
use spdl_core::{DType, Field, Result, SampleRng};
use spdl_media::augment::Augmenter;
use spdl_media::fill::described_image;
use spdl_media::{CodecRegistry, FillImage, ImageTransform, Limits, Sample, image_fields};

use super::description::members;
use super::{Draws, bytes_of};
use crate::interop::array::{Array, type_string};
use crate::interop::error::to_exception;

/// The stage name of `ImageLoader` from which random numbers are derived.
pub(crate) const DECODE: &str = "decode";
/// The key, in error messages, of image bytes passed from Python.
pub(crate) const BYTES: &str = "bytes";

/// Decodes images to samples. Cheap to clone.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
#[derive(Clone)]
pub(crate) struct ImageDecoder {
    pub(crate) transform: ImageTransform,
    pub(crate) seed: u64,
    augmenter: Augmenter,
    /// Shape and dtype of a sample.
    pixels: Field,
    codecs: CodecRegistry,
    /// Instances for reuse, which own scratch memory.
    idle: Arc<Mutex<Vec<FillImage>>>,
}

#[pymethods]
impl ImageDecoder {
    /// Validates the settings, which are parameters of `spdl_rs.fields.Image`.
    #[new]
    fn new(py: Python<'_>, settings: &Bound<'_, PyDict>, seed: u64) -> PyResult<Self> {
        let fault = |error| to_exception(py, &error);
        let settings = Value::Object(members(settings)?);
        let (transform, augmenter) = described_image("image", &settings).map_err(fault)?;
        // Reject dtypes without a NumPy equivalent now, not at the first image. Python has checked whether
        // `ml_dtypes` is installed.
        let dtype = transform.sample_format().dtype;
        if dtype != DType::BF16 {
            type_string(dtype)?;
        }
        transform.validate().map_err(fault)?;
        let codecs = CodecRegistry::with_defaults();
        // The fields are images and labels.
        let pixels = image_fields(&transform).swap_remove(0);
        Ok(ImageDecoder { transform, seed, augmenter, pixels, codecs, idle: Arc::default() })
    }

    /// Decodes an image to a sample, with the random numbers of `draws`.
    fn decode(&self, py: Python<'_>, data: &Bound<'_, PyAny>, draws: &Draws) -> PyResult<Array> {
        let (bytes, rng) = (bytes_of(data)?, draws.take()?.rng());
        let decode = || {
            let mut image = match self.idle.try_lock().ok().and_then(|mut idle| idle.pop()) {
                Some(image) => image,
                None => self.instance()?,
            };
            let made = self.write(&mut image, &bytes, &BufferPool::new(), || rng);
            // The lock is held by another thread, or was held at a fork: do not reuse the instance.
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
    /// A new instance for use by one thread.
    pub(crate) fn instance(&self) -> Result<FillImage> {
        FillImage::new(&self.codecs, &self.transform, &Limits::default())?
            .augment(self.augmenter.clone())
    }

    /// Decodes one sample into a new array.
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
            DType::U16 => Sample::U16(array.as_mut_slice()?),
            DType::F16 => Sample::F16(array.as_mut_slice()?),
            DType::BF16 => Sample::BF16(array.as_mut_slice()?),
            DType::F32 => Sample::F32(array.as_mut_slice()?),
            _ => Sample::U8(array.as_mut_slice()?),
        };
        image.write(encoded, sample, rng)?;
        Ok(array)
    }
}
