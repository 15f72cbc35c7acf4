//! Settings of an `ImageLoader` that all epochs share.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use pyo3::prelude::*;
use spdl_core::source::Remainder;
use spdl_core::{OnError, Shard};
use spdl_media::{ImageTransform, Mode, OnTruncated, SampleFormat};

use crate::cuda::CudaDevice;
use crate::interop::array::type_string;
use crate::interop::error::to_exception;
use crate::interop::failure_policy::failure_policy;

/// Validated settings.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Settings {
    pub(crate) batch_size: NonZeroUsize,
    pub(crate) transform: ImageTransform,
    pub(crate) seed: u64,
    pub(crate) shuffle: bool,
    pub(crate) threads: Option<NonZeroUsize>,
    pub(crate) on_error: OnError,
    pub(crate) drop_last: bool,
    pub(crate) shard: Shard,
    /// The device of the batches; `None` for the host.
    pub(crate) device: Option<Py<CudaDevice>>,
    /// Folders with NVIDIA libraries, if the device decodes; `None` if the host decodes.
    pub(crate) decode_with: Option<Vec<PathBuf>>,
}

#[pymethods]
impl Settings {
    /// Validates layout, size and rank. `max_failures` is `None` if the first failure ends an epoch.
    #[new]
    #[pyo3(signature = (
        *, batch_size, size, train, layout, seed, shuffle, threads, max_failures, min_partial,
        drop_last, rank, world_size, remainder, device=None, decode_with=None
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
        max_failures: Option<Bound<'_, PyAny>>,
        min_partial: Option<f64>,
        drop_last: bool,
        rank: u64,
        world_size: u64,
        remainder: &str,
        device: Option<Py<CudaDevice>>,
        decode_with: Option<Vec<PathBuf>>,
    ) -> PyResult<Self> {
        let fault = |error| to_exception(py, &error);
        let mode = if train { Mode::Train } else { Mode::Eval };
        let format: SampleFormat = layout.parse().map_err(fault)?;
        // Reject dtypes without a NumPy equivalent now, not at the first batch.
        type_string(format.dtype)?;
        let on_truncated = min_partial.map_or(OnTruncated::Error, |_| OnTruncated::Partial);
        let mut transform =
            ImageTransform::new(size).mode(mode).format(format).on_truncated(on_truncated);
        if let Some(share) = min_partial {
            transform = transform.min_partial(share);
        }
        transform.validate().map_err(fault)?;
        let on_error = max_failures.map_or(Ok(OnError::Raise), |most| failure_policy(&most))?;
        let remainder = match remainder {
            "pad" => Remainder::Pad,
            "uneven" => Remainder::Uneven,
            _ => Remainder::Drop,
        };
        let shard = Shard::new(rank, world_size).map_err(fault)?.remainder(remainder);
        Ok(Settings {
            batch_size,
            transform,
            seed,
            shuffle,
            threads,
            on_error,
            drop_last,
            shard,
            device,
            decode_with,
        })
    }

    /// How many of `images` images this rank reads in an epoch.
    pub(crate) fn images_of_rank(&self, images: u64) -> u64 {
        let (rank, world) = (self.shard.rank(), self.shard.world());
        match self.shard {
            shard if shard == shard.remainder(Remainder::Drop) => images / world,
            shard if shard == shard.remainder(Remainder::Pad) => images.div_ceil(world),
            _ => images.saturating_sub(rank).div_ceil(world),
        }
    }
}
