//! Decoding of images to samples.

use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use spdl_core::memory::BufferPool;
use spdl_core::{DType, Field, Result, SampleRng};
use spdl_media::augment::Augmenter;
use spdl_media::{
    CodecRegistry, Crop, FillImage, Flip, ImageTransform, Limits, Mode, OnTruncated, ResizeFilter,
    Sample, SampleColor, SampleFormat, Size, image_fields,
};

use super::augmentations::augmenter;
use super::{Described, Draws, bytes_of};
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
    /// Validates the settings. `size` is (width, height). Without a value, those of `ImageTransform` apply.
    #[new]
    #[pyo3(signature = (
        *, size, train, layout, seed, min_partial, crop=None, filter="bilinear",
        horizontal_flip=None, vertical_flip=None, color="rgb", normalization=None, exact=false,
        augment=vec![]
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        size: (u32, u32),
        train: bool,
        layout: &str,
        seed: u64,
        min_partial: Option<f64>,
        crop: Option<Described<'_>>,
        filter: &str,
        horizontal_flip: Option<f64>,
        vertical_flip: Option<f64>,
        color: &str,
        normalization: Option<([f32; 3], [f32; 3])>,
        exact: bool,
        augment: Vec<Described<'_>>,
    ) -> PyResult<Self> {
        let fault = |error| to_exception(py, &error);
        let mode = if train { Mode::Train } else { Mode::Eval };
        let format: SampleFormat = layout.parse().map_err(fault)?;
        let filter: ResizeFilter = filter.parse().map_err(fault)?;
        // Reject dtypes without a NumPy equivalent now, not at the first image. Python has checked whether
        // `ml_dtypes` is installed.
        if format.dtype != DType::BF16 {
            type_string(format.dtype)?;
        }
        let on_truncated = min_partial.map_or(OnTruncated::Error, |_| OnTruncated::Partial);
        let mut transform = ImageTransform::with_size(Size::new(size.0, size.1))
            .mode(mode)
            .format(format)
            .filter(filter)
            .color(color_of(color)?)
            .exact(exact)
            .on_truncated(on_truncated);
        if let Some(share) = min_partial {
            transform = transform.min_partial(share);
        }
        if let Some((mean, std)) = normalization {
            transform = transform.normalization(mean, std);
        }
        if let Some((kind, settings)) = &crop
            && kind == "AspectBuckets"
        {
            let sizes: Vec<(u32, u32)> = settings.as_any().get_item("sizes")?.extract()?;
            transform = transform.sizes(sizes.into_iter().map(|(w, h)| Size::new(w, h)));
        }
        if let Some(crop) = crop {
            transform = transform.crop(crop_of(crop)?);
        }
        if let Some(probability) = horizontal_flip {
            transform = transform.horizontal_flip(probability);
        }
        if let Some(probability) = vertical_flip {
            transform = transform.vertical_flip(probability);
        }
        transform.validate().map_err(fault)?;
        let augmenter = augmenter(py, augment)?;
        let codecs = CodecRegistry::with_defaults();
        // The fields are images and labels.
        let pixels = image_fields(&transform).swap_remove(0);
        Ok(ImageDecoder { transform, seed, augmenter, pixels, codecs, idle: Arc::default() })
    }

    /// Decodes an image to a sample, with the random numbers of `draws`.
    fn decode(&self, py: Python<'_>, data: &Bound<'_, PyAny>, draws: &Draws) -> PyResult<Array> {
        let (bytes, rng) = (bytes_of(data)?, draws.take()?);
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
    pub(crate) fn augmenter(&self) -> &Augmenter {
        &self.augmenter
    }

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
            DType::F16 => Sample::F16(array.as_mut_slice()?),
            DType::BF16 => Sample::BF16(array.as_mut_slice()?),
            DType::F32 => Sample::F32(array.as_mut_slice()?),
            _ => Sample::U8(array.as_mut_slice()?),
        };
        image.write(encoded, sample, rng)?;
        Ok(array)
    }
}

fn color_of(name: &str) -> PyResult<SampleColor> {
    match name {
        "rgb" => Ok(SampleColor::Rgb),
        "bgr" => Ok(SampleColor::Bgr),
        "grey" => Ok(SampleColor::Grey),
        other => Err(unknown("color", other)),
    }
}

fn crop_of((kind, settings): Described<'_>) -> PyResult<Crop> {
    let setting = |name: &str| settings.as_any().get_item(name);
    Ok(match kind.as_str() {
        "ResizedCenterCrop" => {
            let (width, height): (u32, u32) = setting("covering")?.extract()?;
            Crop::ResizedCenter { covering: Size::new(width, height) }
        }
        "RandomResizedCrop" => Crop::RandomResized {
            area: setting("scale")?.extract()?,
            aspect: setting("ratio")?.extract()?,
        },
        "Stretch" => Crop::Stretch,
        "Letterbox" => Crop::Letterbox { fill: setting("fill")?.extract()? },
        "CenterCrop" => Crop::Center { fill: setting("fill")?.extract()? },
        "RandomCrop" => Crop::Random {
            padding: setting("padding")?.extract()?,
            fill: setting("fill")?.extract()?,
        },
        "Resize" => Crop::Resize {
            shorter: setting("shorter")?.extract()?,
            longest: setting("longest")?.extract()?,
            multiple_of: setting("multiple_of")?.extract()?,
        },
        "AspectBuckets" => Crop::Cover { random: setting("random")?.extract()? },
        "FiveCrop" | "TenCrop" => {
            let covering: Option<(u32, u32)> = setting("covering")?.extract()?;
            let flipped = match setting("vertical_flip") {
                Ok(is_vertical) if is_vertical.extract()? => Some(Flip::Vertical),
                Ok(_) => Some(Flip::Horizontal),
                Err(_) => None,
            };
            let covering = covering.map(|(width, height)| Size::new(width, height));
            Crop::Corners { covering, flipped }
        }
        "RandomScaledCrop" => Crop::RandomScaled {
            shorter: setting("shorter")?.extract()?,
            fill: setting("fill")?.extract()?,
        },
        other => return Err(unknown("crop", other)),
    })
}

/// The error for a name that Python defines and Rust lacks, which is a bug.
fn unknown(what: &str, name: &str) -> PyErr {
    PyValueError::new_err(format!("unknown {what} {name:?}"))
}
