//! The video decoders of a device.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use spdl_core::{Error, ErrorKind, Result};

use super::bindings::DecodeCaps;
use super::cache::{DecoderCache, DecoderConfig};
use super::decoder::{Decoder, comes_out};
use super::format::{ChromaFormat, VideoCodec, VideoFormat};
use super::library::{ContextLock, NvcuvidLibrary};
use super::stream::{VideoLimits, VideoStream};
use crate::libraries::Search;
use crate::runtime::{CudaDevice, DeviceInner};

/// How many decoders wait to be used again. Each holds its surfaces in the device's memory.
const IDLE_DECODERS: usize = 8;

/// Decodes videos on a device, with the engines that it has for that (NVDEC).
///
/// Clones share decoders: those of videos that have ended are used for the next ones of nearly the same
/// size. [`open`](NvDec::open) begins a video; several are decoded at the same time, by a thread each.
///
/// There is no decoder of videos for the CPU in this project yet. What the device does not decode is an
/// `Unsupported` error that says so, and is counted; where to decode it else is up to the caller.
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
pub struct NvDec(Arc<NvDecInner>);

/// What all videos of a device share. Fields are dropped in their order.
pub(crate) struct NvDecInner {
    pub(crate) cache: DecoderCache<Decoder>,
    pub(crate) counts: NvDecCounters,
    /// What the device has said of codec, chroma and bits.
    capabilities: Mutex<BTreeMap<(VideoCodec, ChromaFormat, u32), VideoCapability>>,
    lock: Arc<ContextLock>,
    pub(crate) library: NvcuvidLibrary,
    pub(crate) device: Arc<DeviceInner>,
}

#[derive(Default)]
pub(crate) struct NvDecCounters {
    pub(crate) frames: AtomicU64,
    pub(crate) damaged: AtomicU64,
    created: AtomicU64,
    reused: AtomicU64,
    configured: AtomicU64,
    unsupported: AtomicU64,
}

/// What became of videos.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvDecStatistics {
    /// Frames that came out sound, as far as the device says.
    pub frames: u64,
    /// Frames that were damaged.
    pub damaged_frames: u64,
    /// Decoders that were made.
    pub decoders_made: u64,
    /// How often one was used again for another video.
    pub decoders_reused: u64,
    /// How often one was set to another size of pictures.
    pub decoders_configured: u64,
    /// Decoders that wait to be used again.
    pub decoders_idle: usize,
    /// How often a video was refused since the device does not decode it: so many are for the CPU.
    pub unsupported_videos: u64,
}

/// What a device decodes of a codec, for one chroma format and depth.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoCapability {
    /// Whether it decodes it at all. All else is 0 where it does not.
    pub supported: bool,
    /// How many engines can.
    pub engines: u32,
    /// The smallest width and height.
    pub smallest: (u32, u32),
    /// The largest width and height.
    pub largest: (u32, u32),
    /// The most macroblocks, of 256 pixels.
    pub macroblocks: u32,
    /// A bit for each of the library's formats in which frames come out.
    output_formats: u16,
}

impl NvDec {
    /// The video decoders of this device. The library, which is part of the driver, is searched for in
    /// the usual places.
    ///
    /// # Errors
    /// `Unsupported` where there is no nvcuvid, with what to do; what the driver says.
    pub fn new(device: &CudaDevice) -> Result<NvDec> {
        NvDec::new_with(device, &Search::default())
    }

    /// The same, with places where to search.
    ///
    /// # Errors
    /// As of [`new`](NvDec::new).
    pub fn new_with(device: &CudaDevice, search: &Search) -> Result<NvDec> {
        let library = NvcuvidLibrary::open(search).map_err(|missing| {
            let message =
                format!("cannot decode videos on the device; {}", missing.library.remedy());
            Error::new(ErrorKind::Unsupported, message).with_source(missing)
        })?;
        let device = Arc::clone(device.inner());
        let context = &device.context;
        let lock = ContextLock::new(&library, context)
            .map_err(|error| context.error(error, "start to decode videos"))?;
        Ok(NvDec(Arc::new(NvDecInner {
            cache: DecoderCache::new(IDLE_DECODERS),
            counts: NvDecCounters::default(),
            capabilities: Mutex::default(),
            lock: Arc::new(lock),
            library,
            device,
        })))
    }

    /// Begins a video.
    ///
    /// # Errors
    /// What the driver says. Whether the device decodes the video shows when its headers are read.
    pub fn open(&self, codec: VideoCodec) -> Result<VideoStream> {
        self.open_with(codec, VideoLimits::default())
    }

    /// Begins a video with other limits.
    ///
    /// # Errors
    /// As of [`open`](NvDec::open).
    pub fn open_with(&self, codec: VideoCodec, limits: VideoLimits) -> Result<VideoStream> {
        VideoStream::new(&self.0, codec, limits)
    }

    /// What the device decodes. It is asked once.
    ///
    /// # Errors
    /// `InvalidArgument` where `bits` is not in 8 to 16; what the driver says.
    pub fn capability(
        &self,
        codec: VideoCodec,
        chroma: ChromaFormat,
        bits: u32,
    ) -> Result<VideoCapability> {
        if !(8..=16).contains(&bits) {
            let message = format!("expected samples of 8 to 16 bits, found {bits}");
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.0.capability(codec, chroma, bits)
    }

    /// What the videos are decoded on.
    pub(super) fn device(&self) -> &Arc<DeviceInner> {
        &self.0.device
    }

    /// What became of videos so far.
    pub fn statistics(&self) -> NvDecStatistics {
        let NvDecInner { counts, cache, .. } = &*self.0;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        NvDecStatistics {
            frames: count(&counts.frames),
            damaged_frames: count(&counts.damaged),
            decoders_made: count(&counts.created),
            decoders_reused: count(&counts.reused),
            decoders_configured: count(&counts.configured),
            decoders_idle: cache.len(),
            unsupported_videos: count(&counts.unsupported),
        }
    }
}

impl NvDecInner {
    fn capability(
        &self,
        codec: VideoCodec,
        chroma: ChromaFormat,
        bits: u32,
    ) -> Result<VideoCapability> {
        let known = || self.capabilities.lock().unwrap_or_else(PoisonError::into_inner);
        let question = (codec, chroma, bits);
        if let Some(answer) = known().get(&question) {
            return Ok(*answer);
        }
        let mut caps = DecodeCaps {
            codec: codec.code(),
            chroma_format: chroma.code(),
            bit_depth_minus_8: bits - 8,
            ..DecodeCaps::default()
        };
        let doing = "ask the device which videos it decodes";
        self.device.context.run(doing, |_| self.library.decoder_caps(&mut caps))?;
        let answer = VideoCapability {
            supported: caps.is_supported != 0,
            engines: u32::from(caps.engines),
            smallest: (u32::from(caps.min_width), u32::from(caps.min_height)),
            largest: (caps.max_width, caps.max_height),
            macroblocks: caps.max_macroblocks,
            output_formats: caps.output_format_mask,
        };
        known().insert(question, answer);
        Ok(answer)
    }

    /// The kind of decoder for a video.
    ///
    /// # Errors
    /// `Unsupported` where the device has none.
    pub(crate) fn kind_for(&self, video: &VideoFormat) -> Result<DecoderConfig> {
        let capability = self.capability(video.codec, video.chroma, video.bits)?;
        if let Some(reason) = capability.refuses(video) {
            self.counts.unsupported.fetch_add(1, Ordering::Relaxed);
            let message = format!(
                "the device does not decode this video ({} {}, {} bits, {} x {}): {reason}; decode it \
                 on the CPU with another program, as this one has no video decoder for the CPU",
                video.codec, video.chroma, video.bits, video.coded_size.0, video.coded_size.1
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(DecoderConfig::of(video, capability.largest, capability.macroblocks))
    }

    /// A decoder of this kind, for pictures of the video's size.
    pub(crate) fn decoder(&self, kind: DecoderConfig, video: &VideoFormat) -> Result<Decoder> {
        let counts = &self.counts;
        if let Some(mut decoder) = self.cache.take(&kind) {
            counts.reused.fetch_add(1, Ordering::Relaxed);
            self.configure(&mut decoder, video)?;
            return Ok(decoder);
        }
        let Some(format) = video.pixel_format() else {
            let message = format!("pixels of {} do not come out of decoders", video.chroma);
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let NvDecInner { library, lock, device, .. } = self;
        let decoder = Decoder::new(library, lock, &device.context, kind, format, video.coded_size)?;
        counts.created.fetch_add(1, Ordering::Relaxed);
        Ok(decoder)
    }

    /// Sets a decoder to the size of the video's pictures.
    pub(crate) fn configure(&self, decoder: &mut Decoder, video: &VideoFormat) -> Result<()> {
        let configured = decoder
            .configure(video.coded_size)
            .map_err(|error| self.device.context.error(error, "set a video decoder to a size"))?;
        self.counts.configured.fetch_add(u64::from(configured), Ordering::Relaxed);
        Ok(())
    }
}

impl VideoCapability {
    /// Why the device does not decode the video, if so.
    fn refuses(&self, video: &VideoFormat) -> Option<String> {
        let (width, height) = video.coded_size;
        if !self.supported {
            return Some("it has no engine for this kind".to_owned());
        }
        let format = video.pixel_format();
        if !format.is_some_and(|format| comes_out(format, self.output_formats)) {
            return Some(format!("its pixels of {} do not come out", video.chroma));
        }
        let (least, most) = (self.smallest, self.largest);
        if width < least.0 || height < least.1 || width > most.0 || height > most.1 {
            return Some(format!(
                "it decodes {} x {} to {} x {} pixels",
                least.0, least.1, most.0, most.1
            ));
        }
        let blocks = u64::from(width).div_ceil(16) * u64::from(height).div_ceil(16);
        (blocks > u64::from(self.macroblocks))
            .then(|| format!("it decodes {} blocks of 16 x 16 pixels", self.macroblocks))
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
