//! The entry point of video decoding.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spdl_core::{Error, ErrorKind, Result};

use super::decoders::{SharedDecoders, VideoCapability};
use super::format::{ChromaFormat, VideoCodec};
use super::library::NvcuvidLibrary;
use super::limits::VideoLimits;
use super::stream::VideoStream;
use crate::libraries::Search;
use crate::runtime::{CudaDevice, DeviceInner};

/// Decodes videos on a device, with its NVDEC engines.
///
/// Clones share decoders: a finished video returns its decoder for the next video of the same
/// codec, chroma format and bit depth, and of similar size. [`open`](NvDec::open) starts a video. Several
/// threads can decode several videos concurrently.
///
/// This type never decodes on the CPU. If the device does not decode a video, the video is counted,
/// and [`VideoStream::push`] returns an `Unsupported` error.
///
/// ```no_run
/// use spdl_cuda::{CudaDevice, NvDec};
/// use spdl_cuda::video::{AccessUnits, VideoCodec};
///
/// let device = CudaDevice::open(0)?;
/// let decoders = NvDec::new(&device)?;
/// let file = std::fs::read("cats.h264").unwrap();
/// let mut video = decoders.open(VideoCodec::H264)?;
/// let mut frames = Vec::new();
/// for (number, packet) in AccessUnits::new(&file, VideoCodec::H264)?.enumerate() {
///     video.push(packet?, Some(number as i64))?;
///     frames.extend(std::iter::from_fn(|| video.next_frame()));
/// }
/// video.finish()?;
/// frames.extend(std::iter::from_fn(|| video.next_frame()));
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone)]
pub struct NvDec(Arc<SharedDecoders>);

/// Counts of frames, decoders and unsupported videos.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvDecStatistics {
    /// Frames without reported errors.
    pub frames: u64,
    /// Frames with errors.
    pub damaged_frames: u64,
    /// Decoders created.
    pub decoders_created: u64,
    /// Number of times that a decoder was reused for another video.
    pub decoders_reused: u64,
    /// Number of times that a decoder was reconfigured for another size.
    pub decoders_reconfigured: u64,
    /// Idle decoders.
    pub decoders_idle: usize,
    /// Videos that the device does not decode.
    pub unsupported_videos: u64,
}

impl NvDec {
    /// The video decoders of a device. nvcuvid is loaded from its default location: it is part of
    /// the driver.
    ///
    /// # Errors
    /// `Unsupported` if nvcuvid is missing, with a remedy; errors of the driver.
    pub fn new(device: &CudaDevice) -> Result<NvDec> {
        NvDec::new_with(device, &Search::default())
    }

    /// Like [`new`](NvDec::new), with additional places to search for nvcuvid.
    ///
    /// # Errors
    /// The errors of [`new`](NvDec::new).
    pub fn new_with(device: &CudaDevice, search: &Search) -> Result<NvDec> {
        let library = NvcuvidLibrary::open(search).map_err(|missing| {
            let message =
                format!("cannot decode videos on the device; {}", missing.library.remedy());
            Error::new(ErrorKind::Unsupported, message).with_source(missing)
        })?;
        let device = Arc::clone(device.inner());
        Ok(NvDec(Arc::new(SharedDecoders::new(library, device)?)))
    }

    /// Starts a video.
    ///
    /// # Errors
    /// Errors of the driver. If the device does not decode the video, [`VideoStream::push`] returns
    /// an error when the first sequence header is parsed.
    pub fn open(&self, codec: VideoCodec) -> Result<VideoStream> {
        self.open_with(codec, VideoLimits::default())
    }

    /// Starts a video with custom limits.
    ///
    /// # Errors
    /// The errors of [`open`](NvDec::open).
    pub fn open_with(&self, codec: VideoCodec, limits: VideoLimits) -> Result<VideoStream> {
        VideoStream::new(&self.0, codec, limits)
    }

    /// Queries the capability of the device, and caches the result for each combination.
    ///
    /// # Errors
    /// `InvalidArgument` if `bits` is not in 8 to 16; errors of the driver.
    pub fn capability(
        &self,
        codec: VideoCodec,
        chroma: ChromaFormat,
        bits: u32,
    ) -> Result<VideoCapability> {
        if !(8..=16).contains(&bits) {
            let message = format!("invalid bit depth {bits}: expected 8 to 16");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.0.capability(codec, chroma, bits)
    }

    /// The device of the decoders.
    pub(super) fn device(&self) -> &Arc<DeviceInner> {
        &self.0.device
    }

    /// Returns the counts so far.
    pub fn statistics(&self) -> NvDecStatistics {
        let SharedDecoders { counters, cache, .. } = &*self.0;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NvDecStatistics {
            frames: count(&counters.frames),
            damaged_frames: count(&counters.damaged),
            decoders_created: count(&counters.created),
            decoders_reused: count(&counters.reused),
            decoders_reconfigured: count(&counters.reconfigured),
            decoders_idle: cache.len(),
            unsupported_videos: count(&counters.unsupported),
        }
    }
}

impl fmt::Debug for NvDec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvDec")
            .field("library", &self.0.library)
            .field("cache", &self.0.cache)
            .finish_non_exhaustive()
    }
}
