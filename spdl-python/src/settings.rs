//! What is made of the images: the same for every epoch.

use std::num::NonZeroUsize;

use pyo3::prelude::*;
use spdl_core::OnError;
use spdl_media::{ImageTransform, Mode, OnTruncated, SampleFormat};

use crate::array::type_string;
use crate::error::to_exception;

/// Settings that were checked.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Settings {
    pub(crate) batch_size: NonZeroUsize,
    pub(crate) transform: ImageTransform,
    pub(crate) seed: u64,
    pub(crate) shuffle: bool,
    pub(crate) threads: Option<NonZeroUsize>,
    pub(crate) on_error: OnError,
    pub(crate) drop_last: bool,
}

#[pymethods]
impl Settings {
    /// Checks what Python cannot know: which layouts and sizes there are.
    #[new]
    #[pyo3(signature = (
        *, batch_size, size, train, layout, seed, shuffle, threads, skip_errors, keep_partial,
        drop_last
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        batch_size: NonZeroUsize,
        size: u32,
        train: bool,
        layout: &str,
        seed: u64,
        shuffle: bool,
        threads: Option<NonZeroUsize>,
        skip_errors: bool,
        keep_partial: bool,
        drop_last: bool,
    ) -> PyResult<Self> {
        let fault = |error| to_exception(py, &error);
        let mode = if train { Mode::Train } else { Mode::Eval };
        let format: SampleFormat = layout.parse().map_err(fault)?;
        // Before an epoch finds out with its first batch.
        type_string(format.dtype)?;
        let on_truncated = if keep_partial { OnTruncated::Partial } else { OnTruncated::Error };
        let transform =
            ImageTransform::new(size).mode(mode).format(format).on_truncated(on_truncated);
        transform.validate().map_err(fault)?;
        let on_error = if skip_errors { OnError::SKIP } else { OnError::Raise };
        Ok(Settings { batch_size, transform, seed, shuffle, threads, on_error, drop_last })
    }
}
