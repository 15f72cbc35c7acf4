//! Random changes of decoded images.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use spdl_core::memory::BufferPool;
use spdl_core::{Error, ErrorKind, Result, SampleRng};
use spdl_media::Size;
use spdl_media::augment::{Augmenter, ImageMut};

use super::augmentations::augmenter;
use super::{CHANNELS, Described, Draws, pixels_of};
use crate::interop::array::Array;
use crate::interop::error::to_exception;

/// The stage in the name of which random numbers are drawn.
pub(crate) const AUGMENT: &str = "augment";

/// Augmentations in a row. Cheap to clone.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
#[derive(Clone)]
pub(crate) struct ImageAugmenter {
    augmenter: Augmenter,
    pub(crate) seed: u64,
    /// Kept for the next image: they hold scratch memory.
    idle: Arc<Mutex<Vec<Augmenter>>>,
}

#[pymethods]
impl ImageAugmenter {
    /// Checks their parameters.
    #[new]
    fn new(py: Python<'_>, augmentations: Vec<Described<'_>>, seed: u64) -> PyResult<Self> {
        Ok(ImageAugmenter { augmenter: augmenter(py, augmentations)?, seed, idle: Arc::default() })
    }

    /// A changed copy of an image.
    fn apply(&self, py: Python<'_>, data: &Bound<'_, PyAny>, draws: &Draws) -> PyResult<Array> {
        let (mut pixels, mut rng) = (pixels_of(data, &BufferPool::new())?, draws.take()?);
        let change = move || {
            let kept = self.idle.try_lock().ok().and_then(|mut idle| idle.pop());
            let mut augmenter = kept.unwrap_or_else(|| self.instance());
            let changed = change(&mut augmenter, &mut pixels, &mut rng);
            // Where another thread is at it, or was in a process that this one is a fork of.
            if let Ok(mut idle) = self.idle.try_lock() {
                idle.push(augmenter);
            }
            changed.map(|()| pixels)
        };
        let changed = py.detach(change);
        changed.map(Array::from).map_err(|error| to_exception(py, &error))
    }
}

impl ImageAugmenter {
    /// What one thread changes images with.
    pub(crate) fn instance(&self) -> Augmenter {
        self.augmenter.clone()
    }
}

/// Changes pixels in place.
pub(crate) fn change(
    augmenter: &mut Augmenter,
    pixels: &mut spdl_core::Array,
    rng: &mut SampleRng,
) -> Result<()> {
    let size = size_of(pixels.shape())?;
    augmenter.apply(&mut ImageMut::new(pixels.as_mut_slice()?, size)?, rng)
}

/// The size of pixels of this shape.
pub(crate) fn size_of(shape: &[usize]) -> Result<Size> {
    let size = match *shape {
        [height, width, CHANNELS] => u32::try_from(width).ok().zip(u32::try_from(height).ok()),
        _ => None,
    };
    let (width, height) = size.ok_or_else(|| {
        let message = format!("pixels must be [height, width, 3], not {shape:?}");
        Error::new(ErrorKind::InvalidArgument, message)
    })?;
    Ok(Size::new(width, height))
}
