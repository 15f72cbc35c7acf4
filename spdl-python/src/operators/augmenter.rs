//! Random augmentation of decoded images.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use spdl_core::memory::BufferPool;
use spdl_core::{Error, ErrorKind, Result, SampleRng};
use spdl_media::Size;
use spdl_media::augment::{Augmenter, ImageMut};

use super::{CHANNELS, Described, Draws, description, pixels_of};
use crate::interop::array::Array;
use crate::interop::error::to_exception;

/// The stage name from which random numbers are derived.
pub(crate) const AUGMENT: &str = "augment";

/// A sequence of augmentations. Cheap to clone.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
#[derive(Clone)]
pub(crate) struct ImageAugmenter {
    augmenter: Augmenter,
    pub(crate) seed: u64,
    /// Instances for reuse, which own scratch memory.
    idle: Arc<Mutex<Vec<Augmenter>>>,
}

#[pymethods]
impl ImageAugmenter {
    /// Validates the parameters.
    #[new]
    fn new(py: Python<'_>, augmentations: Vec<Described<'_>>, seed: u64) -> PyResult<Self> {
        let steps = augmentations.into_iter().map(description).collect::<PyResult<Vec<_>>>()?;
        let augmenter = Augmenter::from_description(&steps.into());
        let augmenter = augmenter.map_err(|error| to_exception(py, &error))?;
        Ok(ImageAugmenter { augmenter, seed, idle: Arc::default() })
    }

    /// Returns an augmented copy of an image.
    fn apply(&self, py: Python<'_>, data: &Bound<'_, PyAny>, draws: &Draws) -> PyResult<Array> {
        let (mut pixels, mut rng) = (pixels_of(data, &BufferPool::new())?, draws.take()?.rng());
        let work = move || {
            let kept = self.idle.try_lock().ok().and_then(|mut idle| idle.pop());
            let mut augmenter = kept.unwrap_or_else(|| self.instance());
            let changed = augment_pixels(&mut augmenter, &mut pixels, &mut rng);
            // The lock is held by another thread, or was held at a fork: do not reuse the instance.
            if let Ok(mut idle) = self.idle.try_lock() {
                idle.push(augmenter);
            }
            changed.map(|()| pixels)
        };
        let changed = py.detach(work);
        changed.map(Array::from).map_err(|error| to_exception(py, &error))
    }
}

impl ImageAugmenter {
    /// A new instance for use by one thread.
    pub(crate) fn instance(&self) -> Augmenter {
        self.augmenter.clone()
    }
}

/// Augments pixels in place.
pub(crate) fn augment_pixels(
    augmenter: &mut Augmenter,
    pixels: &mut spdl_core::Array,
    rng: &mut SampleRng,
) -> Result<()> {
    let size = size_of(pixels.shape())?;
    augmenter.apply(&mut ImageMut::new(pixels.as_mut_slice()?, size)?, rng)
}

/// The image size for an array shape `[height, width, 3]`.
pub(crate) fn size_of(shape: &[usize]) -> Result<Size> {
    let size = match *shape {
        [height, width, CHANNELS] => u32::try_from(width).ok().zip(u32::try_from(height).ok()),
        _ => None,
    };
    let (width, height) = size.ok_or_else(|| {
        let message = format!("pixels must have shape [height, width, 3], not {shape:?}");
        Error::new(ErrorKind::InvalidArgument, message)
    })?;
    Ok(Size::new(width, height))
}
