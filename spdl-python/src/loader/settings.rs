//! Settings of a loader that all epochs share.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use spdl_core::pipeline::LearnedSettings;
use spdl_core::source::Remainder;
use spdl_core::{Error, ErrorKind, OnError, Result, Shard};
use spdl_io::StoredRecord;
use spdl_io::datasets::OpenedDataset;
use spdl_media::ImageTransform;
use spdl_media::fill::BatchMix;

use super::fields::SampleFields;
use crate::cuda::CudaDevice;
use crate::interop::error::to_exception;
use crate::interop::failure_policy::failure_policy;
use crate::interop::fork::OwnerProcess;
use crate::interop::tuning::{RunControl, TuneArgument, TuneSetting};
use crate::operators::{Described, ImageDecoder, description};

/// What a batch holds.
pub(crate) enum Content {
    /// Images and labels.
    Images(Box<ImageTransform>),
    /// The fields of samples.
    Fields(Arc<Py<SampleFields>>),
}

/// The argument from which [`Content`] is made.
#[derive(FromPyObject)]
enum ContentArgument<'py> {
    Images(PyRef<'py, ImageDecoder>),
    Fields(Py<SampleFields>),
}

/// Validated settings.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct Settings {
    pub(crate) batch_size: NonZeroUsize,
    pub(crate) content: Content,
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
    /// Mixes the samples of each batch.
    pub(crate) mix: Option<BatchMix>,
    /// Memory for encoded samples and batches, in bytes; `None` for the default.
    pub(crate) memory_budget: Option<usize>,
    pub(crate) tune: TuneSetting,
    /// The settings that earlier epochs have learned.
    learned: LearnedSettings,
    owner: OwnerProcess,
    /// The settings of the epoch that was started last.
    pub(crate) last_run: Arc<Mutex<RunControl>>,
    /// The path of the monitor socket.
    pub(crate) monitor: Option<PathBuf>,
}

#[pymethods]
impl Settings {
    /// Validates the rank. `max_failures` is `None` if the first failure ends an epoch.
    #[new]
    #[pyo3(signature = (
        content, *, batch_size, seed, shuffle, threads, max_failures, drop_last, rank, world_size,
        remainder, mix, device=None, decode_with=None, memory_budget=None,
        tune=None, monitor=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        content: ContentArgument<'_>,
        batch_size: NonZeroUsize,
        seed: u64,
        shuffle: bool,
        threads: Option<NonZeroUsize>,
        max_failures: Option<Bound<'_, PyAny>>,
        drop_last: bool,
        rank: u64,
        world_size: u64,
        remainder: &str,
        mix: Option<Described<'_>>,
        device: Option<Py<CudaDevice>>,
        decode_with: Option<Vec<PathBuf>>,
        memory_budget: Option<usize>,
        tune: Option<TuneArgument>,
        monitor: Option<PathBuf>,
    ) -> PyResult<Self> {
        let fault = |error| to_exception(py, &error);
        let content = match content {
            ContentArgument::Images(decoder) => {
                Content::Images(Box::new(decoder.transform.clone()))
            }
            ContentArgument::Fields(fields) => Content::Fields(Arc::new(fields)),
        };
        let mix = match (mix, &content) {
            (Some(mix), Content::Fields(fields)) => {
                let mix = fields.get().spec.mix_from_description(&description(mix)?);
                Some(mix.map_err(fault)?)
            }
            _ => None,
        };
        let on_error = max_failures.map_or(Ok(OnError::Raise), |most| failure_policy(&most))?;
        let remainder = match remainder {
            "pad" => Remainder::Pad,
            "uneven" => Remainder::Uneven,
            _ => Remainder::Drop,
        };
        let shard = Shard::new(rank, world_size).map_err(fault)?.remainder(remainder);
        Ok(Settings {
            batch_size,
            content,
            seed,
            shuffle,
            threads,
            on_error,
            drop_last,
            shard,
            device,
            decode_with,
            mix,
            memory_budget,
            tune: TuneSetting::of_loader(tune).map_err(fault)?,
            learned: LearnedSettings::default(),
            owner: OwnerProcess::current(),
            last_run: Arc::default(),
            monitor,
        })
    }

    /// Whether failed samples are dropped.
    #[getter]
    fn drops_failed(&self) -> bool {
        !matches!(self.on_error, OnError::Raise)
    }

    /// Writes the settings of the epoch that was started last as a file.
    fn freeze(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let written = py.detach(|| self.last_run().freeze(path));
        written.map_err(|error| to_exception(py, &error))
    }

    /// How many of `samples` samples this rank reads in an epoch.
    pub(crate) fn samples_of_rank(&self, samples: u64) -> u64 {
        let (rank, world) = (self.shard.rank(), self.shard.world());
        match self.shard {
            shard if shard == shard.remainder(Remainder::Drop) => samples / world,
            shard if shard == shard.remainder(Remainder::Pad) => samples.div_ceil(world),
            _ => samples.saturating_sub(rank).div_ceil(world),
        }
    }
}

impl Settings {
    /// The settings that earlier epochs of this process have learned.
    pub(super) fn learned(&self) -> LearnedSettings {
        // A thread of the parent may have held the lock at the fork.
        match self.owner.is_forked_child() {
            true => LearnedSettings::default(),
            false => self.learned.clone(),
        }
    }

    /// The number of samples in a step.
    pub(super) fn step_samples(&self) -> NonZeroU64 {
        // A `usize` has at most 64 bits.
        NonZeroU64::try_from(self.batch_size).unwrap_or(NonZeroU64::MAX)
    }

    pub(crate) fn last_run(&self) -> MutexGuard<'_, RunControl> {
        self.last_run.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that a sample has the fields of a batch.
    ///
    /// # Errors
    /// `NotFound` if it lacks one.
    pub(super) fn check(&self, data: &OpenedDataset, sample: &StoredRecord) -> Result<()> {
        let fetch = data.fetch_labeled();
        match &self.content {
            Content::Fields(fields) => fields.get().spec.fetch_like(&fetch).check(sample),
            Content::Images(_) if fetch.fields_of(sample).0.is_some() => Ok(()),
            Content::Images(_) => {
                let names: Vec<&str> = sample.names().collect();
                let message = format!("no image: the fields are {}", names.join(", "));
                Err(Error::new(ErrorKind::NotFound, message))
            }
        }
    }

    /// The name of the Python class that uses these settings, for messages.
    pub(crate) fn loader(&self) -> &'static str {
        match self.content {
            Content::Images(_) => "ImageLoader",
            Content::Fields(_) => "Loader",
        }
    }
}
