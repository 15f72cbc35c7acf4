//! Settings of a loader that all epochs share.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use spdl_core::source::Remainder;
use spdl_core::{Batch, Error, ErrorKind, OnError, Result, Shard, Stage, StageContext};
use spdl_io::StoredRecord;
use spdl_io::datasets::OpenedDataset;
use spdl_media::ImageTransform;
use spdl_media::augment::Mix;
use spdl_media::fill::{Mosaic, SampleSpec};

use super::fields::SampleFields;
use crate::cuda::CudaDevice;
use crate::interop::error::to_exception;
use crate::interop::failure_policy::failure_policy;
use crate::operators::ImageDecoder;

/// What a batch holds.
pub(crate) enum Content {
    /// Images and labels.
    Images(ImageTransform),
    /// The fields of samples.
    Fields(Arc<Py<SampleFields>>),
}

/// What mixes the samples of each batch.
#[derive(Clone)]
pub(crate) enum BatchMix {
    Mix(Box<Mix>),
    Mosaic(Mosaic),
}

impl BatchMix {
    pub(crate) fn parameters(&self) -> Vec<(String, String)> {
        match self {
            BatchMix::Mix(mix) => mix.parameters().collect(),
            BatchMix::Mosaic(mosaic) => mosaic.parameters().collect(),
        }
    }
}

impl Stage<Batch> for BatchMix {
    type Out = Batch;

    fn process(&mut self, batch: Batch, cx: &mut StageContext<'_, Batch>) -> Result<()> {
        match self {
            BatchMix::Mix(mix) => mix.process(batch, cx),
            BatchMix::Mosaic(mosaic) => mosaic.process(batch, cx),
        }
    }
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
}

#[pymethods]
impl Settings {
    /// Validates the rank. `max_failures` is `None` if the first failure ends an epoch.
    #[new]
    #[pyo3(signature = (
        content, *, batch_size, seed, shuffle, threads, max_failures, drop_last, rank, world_size,
        remainder, mix, device=None, decode_with=None, memory_budget=None
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
        mix: Option<Bound<'_, PyAny>>,
        device: Option<Py<CudaDevice>>,
        decode_with: Option<Vec<PathBuf>>,
        memory_budget: Option<usize>,
    ) -> PyResult<Self> {
        let fault = |error| to_exception(py, &error);
        let content = match content {
            ContentArgument::Images(decoder) => Content::Images(decoder.transform.clone()),
            ContentArgument::Fields(fields) => Content::Fields(Arc::new(fields)),
        };
        let mix = match (mix, &content) {
            (Some(mix), Content::Fields(fields)) => Some(mix_of(&mix, &fields.get().spec)?),
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
        })
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

/// The stage of a `spdl_rs.recipes.Mix` or `Mosaic`.
fn mix_of(recipe: &Bound<'_, PyAny>, spec: &SampleSpec) -> PyResult<BatchMix> {
    let fault = |error: Error| to_exception(recipe.py(), &error);
    if recipe.get_type().name()? == "Mosaic" {
        let image: String = recipe.getattr("image")?.extract()?;
        let (least, most) = recipe.getattr("center")?.extract()?;
        let probability = recipe.getattr("p")?.extract()?;
        let mosaic = spec.mosaic(&image).and_then(|it| it.probability(probability));
        return mosaic.and_then(|it| it.center(least, most)).map(BatchMix::Mosaic).map_err(fault);
    }
    let number = |name: &str| recipe.getattr(name)?.extract::<f64>();
    let alpha = |name: &str| recipe.getattr(name)?.extract::<Option<f64>>();
    let classes = recipe.getattr("classes")?.extract()?;
    let (mixup, cutmix) = (alpha("mixup")?, alpha("cutmix")?);
    let (probability, cut) = (number("probability")?, number("cutmix_probability")?);
    let smoothing = number("smoothing")?;
    let (image, label): (String, String) =
        (recipe.getattr("image")?.extract()?, recipe.getattr("label")?.extract()?);
    let made = || {
        let mut mix = Mix::new(classes)?.probability(probability)?.cutmix_probability(cut)?;
        mix = mix.smoothing(smoothing)?;
        if let Some(alpha) = mixup {
            mix = mix.mixup(alpha)?;
        }
        if let Some(alpha) = cutmix {
            mix = mix.cutmix(alpha)?;
        }
        Ok(mix.fields(&image, &label))
    };
    made().map(|mix| BatchMix::Mix(Box::new(mix))).map_err(fault)
}

impl Settings {
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
