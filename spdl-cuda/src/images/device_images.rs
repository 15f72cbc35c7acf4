//! Attaches the image stages to a pipeline.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::stage::DeviceBatch;
use spdl_core::{Error, ErrorKind, Labeled, PipelineBuilder, Result, StageOptions};
use spdl_media::{CodecRegistry, ImageTransform, Limits};

use super::batch::BatchAggregator;
use super::decode::DecodeStage;
use super::options::ImageOptions;
use super::prepare::PrepareStage;
use super::statistics::ImageStatistics;
use crate::jpeg::{JpegBackend, NvJpeg, NvJpegLibrary};
use crate::kernels::{ImageKernels, filter_code};
use crate::libraries::Search;
use crate::runtime::CudaDevice;

/// The default number of threads that call nvJPEG.
const DECODERS: usize = 2;

/// Stages from encoded images to batches on a device; see [`attach`](DeviceImages::attach).
///
/// ```no_run
/// use bytes::Bytes;
/// use spdl_core::stage::DeviceBatch;
/// use spdl_core::{DType, Labeled, PipelineBuilder};
/// use spdl_cuda::{CudaDevice, DeviceImages};
/// use spdl_media::{ImageTransform, Layout, Mode};
///
/// # fn files() -> PipelineBuilder<Labeled<Bytes>> { unimplemented!() }
/// let device = CudaDevice::open(0)?;
/// let transform = ImageTransform::new(224).mode(Mode::Train).layout(Layout::Nchw).dtype(DType::F16);
/// let images = DeviceImages::new(&device, transform, 32);
/// let pipeline = images.attach(files(), "decode")?.build()?;
/// for batch in pipeline {
///     let batch: DeviceBatch = batch?;
///     // `images`, `[len, 3, 224, 224]`, and `labels`, `[len]`.
/// }
/// println!("{:?}", images.statistics());
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct DeviceImages(ImageOptions);

impl DeviceImages {
    /// Makes batches of `batch_size` samples, as `transform` defines them.
    ///
    /// The device decodes the JPEGs that nvJPEG supports. The host decodes all other images, with
    /// the codecs of the enabled features of `spdl-media` and its default limits; see
    /// [`host_decoder`](DeviceImages::host_decoder).
    pub fn new(device: &CudaDevice, transform: ImageTransform, batch_size: usize) -> DeviceImages {
        DeviceImages(ImageOptions {
            device: device.clone(),
            transform,
            batch_size,
            drop_last: false,
            group: batch_size,
            group_bytes: None,
            decoders: DECODERS,
            only: None,
            search: Search::default(),
            host: Some((CodecRegistry::with_defaults(), Limits::default())),
            counters: Arc::default(),
        })
    }

    /// Sets the codecs and limits for images that the device does not decode;
    /// [`FallbackReason`](super::FallbackReason) lists the reasons.
    #[must_use]
    pub fn host_decoder(mut self, codecs: CodecRegistry, limits: Limits) -> Self {
        self.0.host = Some((codecs, limits));
        self
    }

    /// Disables decoding on the host: images that the device does not decode become errors.
    #[must_use]
    pub fn without_host_decoder(mut self) -> Self {
        self.0.host = None;
        self
    }

    /// Whether an incomplete last batch is dropped; its images are counted as left out. Default:
    /// no.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.0.drop_last = drop_last;
        self
    }

    /// The maximum number of images per call of nvJPEG, at least 1. Default: the batch size.
    #[must_use]
    pub fn group(mut self, images: usize) -> Self {
        self.0.group = images;
        self
    }

    /// Maximum size in bytes of the pixels per call of nvJPEG, unless the call has a single image;
    /// a pixel has 3 bytes. Default: 1/16 of the device memory.
    ///
    /// A group is decoded in parts if its pixels exceed this size, or if device memory is
    /// exhausted. If the memory is too small for a single image, the host decoder is used for this
    /// image, and the fallback is [counted](super::FallbackReason::TooLarge). The upload of these
    /// pixels needs as much device memory, and fails unless memory has been freed since.
    ///
    /// The pixels of a batch are in device memory until all its images are decoded.
    #[must_use]
    pub fn group_bytes(mut self, bytes: u64) -> Self {
        self.0.group_bytes = Some(bytes);
        self
    }

    /// The number of threads that call nvJPEG, each with a decoder, at least 1. Default: 2, so that
    /// one thread prepares images while the device decodes those of the other.
    #[must_use]
    pub fn decoders(mut self, decoders: usize) -> Self {
        self.0.decoders = decoders;
        self
    }

    /// Restricts nvJPEG to one backend. The host decoder,
    /// unless disabled, decodes the images that this backend does not decode. With
    /// [`JpegBackend::Host`], the host decoder is used for all images.
    #[must_use]
    pub fn only(mut self, backend: JpegBackend) -> Self {
        self.0.only = Some(backend);
        self
    }

    /// Places to search for nvJPEG. Without nvJPEG, the host decoder is used for all images.
    #[must_use]
    pub fn search(mut self, search: Search) -> Self {
        self.0.search = search;
        self
    }

    /// Counts of images by decoder, and reasons for fallbacks. Clones share the counts.
    pub fn statistics(&self) -> ImageStatistics {
        self.0.counters.read()
    }

    /// Adds the stages to a pipeline.
    ///
    /// `options` apply to the first stage, which runs on CPU threads. This stage parses headers,
    /// draws crops, and decodes images if nvJPEG is missing or disabled, or if their header shows
    /// that the device does not decode them. The crops equal the crops of a host stage with the
    /// same name and seed. The other stages are `group`, `nvjpeg` and `batch`; their failures are
    /// handled by the [policy of the pipeline](PipelineBuilder::on_error).
    ///
    /// # Errors
    /// `InvalidArgument` for a batch size, group or number of decoders of 0, and for an invalid transform;
    /// `Unsupported` for filters other than bilinear and bicubic, several crops of an image, alpha and 16 bits; the errors of
    /// [`ImageKernels::new`].
    #[track_caller]
    pub fn attach(
        &self,
        pipeline: PipelineBuilder<Labeled<Bytes>>,
        options: impl Into<StageOptions>,
    ) -> Result<PipelineBuilder<DeviceBatch>> {
        let settings = &self.0;
        settings.transform.validate()?;
        if settings.transform.crops().is_some() || !settings.transform.list_of_sizes().is_empty() {
            let message = "several crops of an image, and lists of sizes, are not supported on devices; decode \
                           on the host";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if settings.transform.keeps_alpha_or_16_bits() {
            let message = "alpha and 16 bits are not supported on devices; decode on the host";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if settings.transform.has_canvas() {
            let message =
                "a zoom out and an IoU crop are not supported on devices; decode on the host";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        filter_code(settings.transform.resize_filter())?;
        let (group, batch_size, decoders) =
            (settings.group, settings.batch_size, settings.decoders);
        if group == 0 || batch_size == 0 || decoders == 0 {
            let message = format!(
                "invalid batch size {batch_size}, group {group} or number of decoders {decoders}: \
                 each must be above 0"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let kernels = Arc::new(ImageKernels::new(&settings.device)?);
        let has_nvjpeg = settings.only != Some(JpegBackend::Host)
            && match NvJpegLibrary::open(&settings.search) {
                Ok(_) => true,
                Err(missing) => {
                    settings.counters.set_missing(missing.to_string());
                    false
                }
            };
        let (first, second, third) = (settings.clone(), settings.clone(), settings.clone());
        Ok(pipeline
            .stage(options, move || Ok(PrepareStage::new(&first, has_nvjpeg)))
            .batch("group", group, false)
            .stage(StageOptions::new("nvjpeg").concurrency(decoders), move || {
                let nvjpeg = if has_nvjpeg { Some(nvjpeg(&second)?) } else { None };
                DecodeStage::new(&second, nvjpeg)
            })
            .aggregate("batch", move || Ok(BatchAggregator::new(&third, &kernels))))
    }
}

fn nvjpeg(options: &ImageOptions) -> Result<NvJpeg> {
    let decoder = NvJpeg::new_with(&options.device, &options.search)?;
    Ok(match options.only {
        Some(only) => decoder.only(only),
        None => decoder,
    })
}

impl fmt::Debug for DeviceImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceImages")
            .field("device", &self.0.device)
            .field("transform", &self.0.transform)
            .field("batch_size", &self.0.batch_size)
            .finish_non_exhaustive()
    }
}
