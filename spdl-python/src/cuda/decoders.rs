//! The decoders and kernels of a device, created once and reused.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use spdl_core::Result;
use spdl_cuda::kernels::ImageKernels;
use spdl_cuda::video::VideoColor;
use spdl_cuda::{NvDec, NvJpeg, Search};

use super::device::CudaDevice;
use super::driver_handle::DriverHandle;
use super::jpegs::{ArrayParts, decode_all};
use super::memory::DeviceMemory;
use super::nv12::{Frames, convert};
use crate::interop::error::to_exception;
use crate::interop::wait::without_python;

/// The decoders and kernels of a device, created on first use.
pub(crate) struct Decoders {
    pub(super) device: spdl_cuda::CudaDevice,
    search: Search,
    kernels: Mutex<Option<Arc<ImageKernels>>>,
    /// Idle decoders. Each serves one thread at a time.
    idle_jpegs: Mutex<Vec<NvJpeg>>,
    videos: Mutex<Option<NvDec>>,
}

/// The decoders of a device. The opened device owns them.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct DeviceDecoders {
    decoders: DriverHandle<Decoders>,
}

#[pymethods]
impl DeviceDecoders {
    /// `packages` are folders to search for NVIDIA's wheels.
    #[new]
    pub(super) fn new(device: &CudaDevice, packages: Vec<PathBuf>) -> Self {
        let decoders = Decoders {
            device: device.device().clone(),
            search: packages.into_iter().fold(Search::default(), Search::wheels_in),
            kernels: Mutex::default(),
            idle_jpegs: Mutex::default(),
            videos: Mutex::default(),
        };
        DeviceDecoders { decoders: DriverHandle::new(decoders) }
    }

    /// Decodes JPEGs, oriented by their metadata and resized to `size`, which is width and height.
    /// Without `size`, all images must have the same size. Errors name the image, as in `names`.
    fn jpegs(
        &self,
        py: Python<'_>,
        encoded: Vec<Bound<'_, PyAny>>,
        names: Vec<String>,
        size: Option<(u32, u32)>,
        pix_fmt: &str,
    ) -> PyResult<ArrayParts> {
        decode_all(py, &self.decoders, &encoded, &names, size, pix_fmt)
    }

    /// Converts NV12 frames to RGB, BGR or grey, after the work queued on `stream` so far.
    ///
    /// The frames begin at the byte `offset`. `frames` is their number, height and width. `color` is
    /// the code of the colour matrix (ITU-T H.273), and whether the range is full.
    #[expect(clippy::too_many_arguments, reason = "called by one Python function")]
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
    ) -> PyResult<ArrayParts> {
        let (count, height, width) = frames;
        let frames = Frames { offset, count, width, height, is_wide };
        let (matrix, full_range) = color;
        let color = VideoColor { primaries: 2, transfer: 2, matrix, full_range };
        let upload = memory.upload();
        let converted = without_python(py, || {
            convert(&self.decoders, &upload, &frames, color, pix_fmt, stream)
        });
        let (upload, shape) = converted.map_err(|error| to_exception(py, &error))?;
        Ok((DeviceMemory::from(upload), shape))
    }

    /// Counts of frames, corrupt frames and unsupported videos, and of decoders created, reused and
    /// reconfigured.
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
    pub(super) fn handle(&self) -> DriverHandle<Decoders> {
        self.decoders.clone()
    }
}

impl Decoders {
    pub(super) fn kernels(&self) -> Result<Arc<ImageKernels>> {
        let mut kernels = locked(&self.kernels);
        if let Some(kernels) = &*kernels {
            return Ok(Arc::clone(kernels));
        }
        let loaded = Arc::new(ImageKernels::new(&self.device)?);
        *kernels = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    /// Calls `work` with an idle decoder. If `work` fails, the decoder is dropped.
    pub(super) fn with_jpegs<T>(&self, work: impl FnOnce(&mut NvJpeg) -> Result<T>) -> Result<T> {
        let idle = locked(&self.idle_jpegs).pop();
        let mut jpegs = match idle {
            Some(idle) => idle,
            None => NvJpeg::new_with(&self.device, &self.search)?,
        };
        let result = work(&mut jpegs)?;
        locked(&self.idle_jpegs).push(jpegs);
        Ok(result)
    }

    /// The shared video decoders.
    pub(super) fn videos(&self) -> Result<NvDec> {
        let mut videos = locked(&self.videos);
        if let Some(videos) = &*videos {
            return Ok(videos.clone());
        }
        let created = self.new_videos()?;
        *videos = Some(created.clone());
        Ok(created)
    }

    /// Creates separate video decoders.
    pub(super) fn new_videos(&self) -> Result<NvDec> {
        NvDec::new_with(&self.device, &self.search)
    }
}

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}
