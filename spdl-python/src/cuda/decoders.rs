//! What decodes on a device: made once, and used again.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use spdl_core::Result;
use spdl_cuda::kernels::ImageKernels;
use spdl_cuda::video::VideoColor;
use spdl_cuda::{NvDec, NvJpeg, Search};

use super::device::CudaDevice;
use super::jpegs::{Placement, decode_all};
use super::lent::Lent;
use super::memory::DeviceMemory;
use super::nv12::{Frames, convert};
use crate::interop::error::to_exception;
use crate::interop::wait::without_python;

/// The decoders of a device, which are made when they are first needed.
pub(crate) struct Decoders {
    pub(super) device: spdl_cuda::CudaDevice,
    search: Search,
    kernels: Mutex<Option<Arc<ImageKernels>>>,
    /// Those that nobody uses now. Each is for one thread at a time.
    idle_jpegs: Mutex<Vec<NvJpeg>>,
    videos: Mutex<Option<NvDec>>,
}

/// The decoders of a device. Whoever has opened that keeps them.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct DeviceDecoders {
    decoders: Lent<Decoders>,
}

#[pymethods]
impl DeviceDecoders {
    /// NVIDIA's wheels are searched for in these folders.
    #[new]
    pub(super) fn new(device: &CudaDevice, packages: Vec<PathBuf>) -> Self {
        let decoders = Decoders {
            device: device.device().clone(),
            search: packages.into_iter().fold(Search::default(), Search::wheels_in),
            kernels: Mutex::default(),
            idle_jpegs: Mutex::default(),
            videos: Mutex::default(),
        };
        DeviceDecoders { decoders: Lent::new(decoders) }
    }

    /// Decodes JPEGs, each turned upright and resized to `size`, width and height; without one, all have the
    /// same size. They are called by these names.
    fn jpegs(
        &self,
        py: Python<'_>,
        encoded: Vec<Bound<'_, PyAny>>,
        names: Vec<String>,
        size: Option<(u32, u32)>,
        pix_fmt: &str,
    ) -> PyResult<Placement> {
        decode_all(py, &self.decoders, &encoded, &names, size, pix_fmt)
    }

    /// Makes colours of frames of NV12 behind what a stream was told so far. They begin `offset` bytes in the
    /// memory; there are so many, of so many rows and columns. `color` are the code of the matrix, and whether
    /// every code is used.
    #[expect(clippy::too_many_arguments, reason = "one function of Python calls it")]
    fn nv12(
        &self,
        py: Python<'_>,
        memory: &DeviceMemory,
        offset: usize,
        frames: (usize, u32, u32),
        is_wide: bool,
        color: (u8, bool),
        pix_fmt: &str,
        stream: i64,
    ) -> PyResult<Placement> {
        let (count, height, width) = frames;
        let frames = Frames { offset, count, width, height, is_wide };
        let (matrix, full_range) = color;
        let color = VideoColor { primaries: 2, transfer: 2, matrix, full_range };
        let upload = memory.upload();
        let made = without_python(py, || {
            convert(&self.decoders, &upload, &frames, color, pix_fmt, stream)
        });
        let (upload, shape) = made.map_err(|error| to_exception(py, &error))?;
        Ok((DeviceMemory::from(upload), shape))
    }

    /// What became of videos so far: frames, damaged ones, videos that the device does not decode, and
    /// decoders that were made, used again and set to another size.
    fn video_statistics(&self, py: Python<'_>) -> PyResult<[u64; 6]> {
        let statistics = py.detach(|| self.decoders.videos().map(|videos| videos.statistics()));
        let statistics = statistics.map_err(|error| to_exception(py, &error))?;
        Ok([
            statistics.frames,
            statistics.damaged_frames,
            statistics.unsupported_videos,
            statistics.decoders_created,
            statistics.decoders_reused,
            statistics.decoders_reconfigured,
        ])
    }
}

impl DeviceDecoders {
    pub(super) fn lent(&self) -> Lent<Decoders> {
        self.decoders.clone()
    }
}

impl Decoders {
    pub(super) fn kernels(&self) -> Result<Arc<ImageKernels>> {
        let mut kernels = locked(&self.kernels);
        if let Some(kernels) = &*kernels {
            return Ok(Arc::clone(kernels));
        }
        let made = Arc::new(ImageKernels::new(&self.device)?);
        *kernels = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Works with a decoder that nobody else uses. Where the work fails, the decoder is not used again.
    pub(super) fn with_jpegs<T>(&self, work: impl FnOnce(&mut NvJpeg) -> Result<T>) -> Result<T> {
        let idle = locked(&self.idle_jpegs).pop();
        let mut jpegs = match idle {
            Some(idle) => idle,
            None => NvJpeg::new_with(&self.device, &self.search)?,
        };
        let done = work(&mut jpegs)?;
        locked(&self.idle_jpegs).push(jpegs);
        Ok(done)
    }

    /// The video decoders that all share.
    pub(super) fn videos(&self) -> Result<NvDec> {
        let mut videos = locked(&self.videos);
        if let Some(videos) = &*videos {
            return Ok(videos.clone());
        }
        let made = self.new_videos()?;
        *videos = Some(made.clone());
        Ok(made)
    }

    /// Video decoders of one's own.
    pub(super) fn new_videos(&self) -> Result<NvDec> {
        NvDec::new_with(&self.device, &self.search)
    }
}

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
