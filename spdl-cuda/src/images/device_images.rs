//! Encoded images to batches on the device: JPEGs are decoded there, all else on the host, and the
//! kernels make samples of both.
//!
//! ```text
//!            header, crop                                         one launch for all
//!  Labeled<Bytes> ──► PreparedImage ──► group ──► DecodedImage ──► batch ──► DeviceBatch
//!            CPU threads  │                        ▲
//!                         └─ no JPEG of the device's kind: decoded here, copied there
//! ```
//!
//! An image that cannot be decoded fails alone, as in batches of the host: the pipeline's policy says
//! what follows, and the next image takes its place.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use spdl_core::stage::DeviceBatch;
use spdl_core::{Error, ErrorKind, Labeled, PipelineBuilder, Result, SampleRng, StageOptions};

use super::batch::Batches;
use super::decode::Decode;
use super::orientation::Placed;
use super::prepare::Prepare;
use super::statistics::{Books, ImageStatistics};
use crate::jpeg::{JpegBackend, NvJpeg, NvJpegLibrary};
use crate::kernels::{BatchTable, Filter, ImageKernels, SampleFormat};
use crate::libraries::Search;
use crate::runtime::CudaDevice;

/// What the header of an image file says that the host decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostImage {
    /// Columns as stored.
    pub width: u32,
    /// Rows as stored.
    pub height: u32,
    /// How EXIF says it is to be turned, 1 to 8; 1 is upright.
    pub orientation: u8,
}

/// Decodes the images that the device does not decode. One instance per worker.
pub trait HostDecoder: Send + 'static {
    /// Reads the header.
    ///
    /// # Errors
    /// Whatever keeps it from being decoded.
    fn inspect(&mut self, encoded: &[u8]) -> Result<HostImage>;

    /// Decodes it as it is stored, to rows of red, green and blue bytes without gaps, as many as
    /// [`inspect`](HostDecoder::inspect) said. They hold arbitrary bytes at first.
    ///
    /// # Errors
    /// Whatever keeps it from being decoded. Then what was written is not used.
    fn decode(&mut self, encoded: &[u8], pixels: &mut [u8]) -> Result<()>;
}

type MakeHostDecoder = dyn Fn() -> Result<Box<dyn HostDecoder>> + Send + Sync;
pub(super) type Place = dyn Fn(u32, u32, SampleRng) -> Result<Placed> + Send + Sync;

/// Stages from encoded images to batches on a device; see [`attach`](DeviceImages::attach).
///
/// ```no_run
/// use bytes::Bytes;
/// use spdl_core::{DatasetSource, Labeled, PipelineBuilder, Result};
/// use spdl_core::stage::DeviceBatch;
/// use spdl_cuda::kernels::SampleFormat;
/// use spdl_cuda::images::Placed;
/// use spdl_cuda::{CudaDevice, DeviceImages};
///
/// # fn files() -> PipelineBuilder<Labeled<Bytes>> { unimplemented!() }
/// let device = CudaDevice::open(0)?;
/// let images = DeviceImages::new(&device, SampleFormat::new(224, 224), 32)
///     // All of each image, whatever becomes of its proportions: the default.
///     .place(|width, height, _rng| Ok(Placed::whole(width, height)));
/// let pipeline = images.attach(files(), "decode")?.build()?;
/// for batch in pipeline {
///     let batch: DeviceBatch = batch?;
///     // `images`, `[len, 224, 224, 3]`, and `labels`, `[len]`.
/// }
/// println!("{:?}", images.statistics());
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct DeviceImages {
    pub(super) device: CudaDevice,
    pub(super) format: SampleFormat,
    pub(super) batch_size: usize,
    pub(super) drop_last: bool,
    group: usize,
    pub(super) group_bytes: Option<u64>,
    pub(super) filter: Filter,
    only: Option<JpegBackend>,
    search: Search,
    pub(super) place: Arc<Place>,
    host_decoder: Option<Arc<MakeHostDecoder>>,
    pub(super) books: Arc<Books>,
}

impl DeviceImages {
    /// Batches of `batch_size` samples of this format. All of each image becomes its sample, unless
    /// [`place`](DeviceImages::place) says otherwise; images that the device does not decode fail,
    /// unless there is a [decoder on the host](DeviceImages::host_decoder).
    pub fn new(device: &CudaDevice, format: SampleFormat, batch_size: usize) -> DeviceImages {
        DeviceImages {
            device: device.clone(),
            format,
            batch_size,
            drop_last: false,
            group: batch_size,
            group_bytes: None,
            filter: Filter::default(),
            only: None,
            search: Search::default(),
            place: Arc::new(|width, height, _| Ok(Placed::whole(width, height))),
            host_decoder: None,
            books: Arc::default(),
        }
    }

    /// Which part of an upright image, of so many columns and rows, becomes the sample. The random
    /// numbers are the sample's own in the stage that [`attach`](DeviceImages::attach) names: where the
    /// host's stage has that name, both draw the same.
    #[must_use]
    pub fn place(
        mut self,
        place: impl Fn(u32, u32, SampleRng) -> Result<Placed> + Send + Sync + 'static,
    ) -> Self {
        self.place = Arc::new(place);
        self
    }

    /// Decodes with these what the device does not: other formats, colours and codings, and JPEGs that
    /// nvJPEG refuses. One is made for each worker.
    #[must_use]
    pub fn host_decoder(
        mut self,
        make: impl Fn() -> Result<Box<dyn HostDecoder>> + Send + Sync + 'static,
    ) -> Self {
        self.host_decoder = Some(Arc::new(make));
        self
    }

    /// How pixels are weighed. Default: [`Filter::Bilinear`].
    #[must_use]
    pub fn filter(mut self, filter: Filter) -> Self {
        self.filter = filter;
        self
    }

    /// Whether a short last batch is left out. Default: no. What is left out is counted.
    #[must_use]
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    /// How many images are given to nvJPEG at once, at least 1. Default: as many as a batch has.
    #[must_use]
    pub fn group(mut self, images: usize) -> Self {
        self.group = images;
        self
    }

    /// How many bytes the pixels of a group have at most, three for each pixel. Default: a sixteenth of the
    /// device's memory. A group with more is decoded in parts, and so is one for which the device has no
    /// memory left. An image for which it has none alone is decoded by the host, and
    /// [counted](super::FallbackReason::TooLarge); as its pixels need as much of the device's memory, it fails then,
    /// unless some has become free meanwhile.
    ///
    /// The pixels of a batch's images lie on the device until all of them are there.
    #[must_use]
    pub fn group_bytes(mut self, bytes: u64) -> Self {
        self.group_bytes = Some(bytes);
        self
    }

    /// Decodes JPEGs this way alone, so that pixels are the same on every run: see [`NvJpeg`].
    #[must_use]
    pub fn only(mut self, path: JpegBackend) -> Self {
        self.only = Some(path);
        self
    }

    /// Where nvJPEG is searched for. Where there is none, the host decodes everything.
    #[must_use]
    pub fn search(mut self, search: Search) -> Self {
        self.search = search;
        self
    }

    /// Who has decoded how many images so far, and why not the device. Clones count together.
    pub fn statistics(&self) -> ImageStatistics {
        self.books.read()
    }

    /// Adds the stages to a pipeline. `options` are those of the first one, which reads headers and
    /// draws crops on CPU threads, and decodes there what the device does not. The others are called
    /// `group`, `nvjpeg` and `batch`; what fails in them follows the policy of the
    /// [pipeline](PipelineBuilder::on_error).
    ///
    /// # Errors
    /// `InvalidArgument` where such samples or batches cannot be; as of [`ImageKernels::new`].
    #[track_caller]
    pub fn attach(
        &self,
        pipeline: PipelineBuilder<Labeled<Bytes>>,
        options: impl Into<StageOptions>,
    ) -> Result<PipelineBuilder<DeviceBatch>> {
        BatchTable::new(&self.format)?;
        let (group, batch_size) = (self.group, self.batch_size);
        if group == 0 || batch_size == 0 {
            let message = "a batch, or a group, of 0 images was asked for; the least is 1";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let kernels = Arc::new(ImageKernels::new(&self.device)?);
        let has_nvjpeg = self.only != Some(JpegBackend::Host)
            && match NvJpegLibrary::open(&self.search) {
                Ok(_) => true,
                Err(missing) => {
                    self.books.set_missing(missing.to_string());
                    false
                }
            };
        let (first, second, third) = (self.clone(), self.clone(), self.clone());
        Ok(pipeline
            .stage(options, move || Prepare::new(&first, has_nvjpeg))
            .batch("group", group, false)
            .stage(StageOptions::new("nvjpeg").concurrency(1), move || {
                Decode::new(&second, second.nvjpeg(has_nvjpeg)?)
            })
            .aggregate("batch", move || Ok(Batches::new(&third, &kernels))))
    }

    fn nvjpeg(&self, is_there: bool) -> Result<Option<NvJpeg>> {
        if !is_there {
            return Ok(None);
        }
        let decoder = NvJpeg::new_with(&self.device, &self.search)?;
        Ok(Some(match self.only {
            Some(only) => decoder.only(only),
            None => decoder,
        }))
    }

    pub(super) fn make_host_decoder(&self) -> Result<Option<Box<dyn HostDecoder>>> {
        self.host_decoder.as_ref().map(|make| make()).transpose()
    }
}

impl fmt::Debug for DeviceImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceImages")
            .field("device", &self.device)
            .field("format", &self.format)
            .field("batch_size", &self.batch_size)
            .finish_non_exhaustive()
    }
}
