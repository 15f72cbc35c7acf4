//! The decoders of a device: capabilities, creation and reuse.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use spdl_core::{Error, ErrorKind, Result};

use super::bindings::DecodeCaps;
use super::cache::{DecoderCache, DecoderConfig};
use super::decoder::{Decoder, supports_output};
use super::format::{ChromaFormat, VideoCodec, VideoFormat};
use super::library::{ContextLock, NvcuvidLibrary};
use crate::runtime::DeviceInner;

/// Maximum number of idle decoders that are kept. Each of them holds its surfaces in device memory.
const IDLE_DECODERS: usize = 8;

/// State that all videos of a device share. Fields are dropped in declaration order.
pub(crate) struct SharedDecoders {
    pub(crate) cache: DecoderCache<Decoder>,
    pub(crate) counters: NvDecCounters,
    /// Results of capability queries, by codec, chroma format and bit depth.
    capabilities: Mutex<BTreeMap<(VideoCodec, ChromaFormat, u32), VideoCapability>>,
    lock: Arc<ContextLock>,
    pub(crate) library: NvcuvidLibrary,
    pub(crate) device: Arc<DeviceInner>,
}

#[derive(Default)]
pub(crate) struct NvDecCounters {
    pub(crate) frames: AtomicU64,
    pub(crate) damaged: AtomicU64,
    pub(super) created: AtomicU64,
    pub(super) reused: AtomicU64,
    pub(super) reconfigured: AtomicU64,
    pub(super) unsupported: AtomicU64,
}

/// The capability of a device for a codec, chroma format and bit depth.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoCapability {
    /// Whether the device decodes such videos. If not, the other fields have no meaning.
    pub supported: bool,
    /// Number of NVDEC engines that decode such videos.
    pub engines: u32,
    /// Minimum width and height.
    pub min_size: (u32, u32),
    /// Maximum width and height.
    pub max_size: (u32, u32),
    /// Maximum number of macroblocks of 16x16 pixels.
    pub max_macroblocks: u32,
    /// The supported output formats: one bit for each `cudaVideoSurfaceFormat`.
    output_formats: u16,
}

impl SharedDecoders {
    pub(super) fn new(library: NvcuvidLibrary, device: Arc<DeviceInner>) -> Result<SharedDecoders> {
        let context = &device.context;
        let lock = ContextLock::new(&library, context)
            .map_err(|error| context.error(error, "initialise the video decoder"))?;
        Ok(SharedDecoders {
            cache: DecoderCache::new(IDLE_DECODERS),
            counters: NvDecCounters::default(),
            capabilities: Mutex::default(),
            lock: Arc::new(lock),
            library,
            device,
        })
    }

    /// Queries a capability. The results of successful queries are stored.
    pub(super) fn capability(
        &self,
        codec: VideoCodec,
        chroma: ChromaFormat,
        bits: u32,
    ) -> Result<VideoCapability> {
        let known = || self.capabilities.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (codec, chroma, bits);
        if let Some(capability) = known().get(&key) {
            return Ok(*capability);
        }
        let mut caps = DecodeCaps {
            codec: codec.code(),
            chroma_format: chroma.code(),
            bit_depth_minus_8: bits - 8,
            ..DecodeCaps::default()
        };
        let doing = "query the video decoding capabilities of the device";
        self.device.context.run(doing, |_| self.library.decoder_caps(&mut caps))?;
        let capability = VideoCapability {
            supported: caps.is_supported != 0,
            engines: u32::from(caps.engines),
            min_size: (u32::from(caps.min_width), u32::from(caps.min_height)),
            max_size: (caps.max_width, caps.max_height),
            max_macroblocks: caps.max_macroblocks,
            output_formats: caps.output_format_mask,
        };
        known().insert(key, capability);
        Ok(capability)
    }

    /// The configuration of a decoder for a video.
    ///
    /// # Errors
    /// `Unsupported` if the device does not decode the video; errors of the driver.
    pub(crate) fn config_for(&self, video: &VideoFormat) -> Result<DecoderConfig> {
        let capability = self.capability(video.codec, video.chroma, video.bits)?;
        if let Some(reason) = capability.refusal(video) {
            self.counters.unsupported.fetch_add(1, Ordering::Relaxed);
            let message = format!(
                "the device does not decode this video ({} {}, {} bits, {}x{}): {reason}; decode it on the \
                 CPU with another program, because spdl-cuda has no CPU video decoder",
                video.codec, video.chroma, video.bits, video.coded_size.0, video.coded_size.1
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(DecoderConfig::of(video, capability.max_size, capability.max_macroblocks))
    }

    /// Returns an idle or a new decoder of this configuration, set to the picture size of the
    /// video.
    pub(crate) fn decoder(&self, config: DecoderConfig, video: &VideoFormat) -> Result<Decoder> {
        let counters = &self.counters;
        if let Some(mut decoder) = self.cache.take(&config) {
            counters.reused.fetch_add(1, Ordering::Relaxed);
            self.reconfigure(&mut decoder, video)?;
            return Ok(decoder);
        }
        let Some(format) = video.pixel_format() else {
            let message = format!("video decoders cannot output {} pixels", video.chroma);
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let SharedDecoders { library, lock, device, .. } = self;
        let decoder =
            Decoder::new(library, lock, &device.context, config, format, video.coded_size)?;
        counters.created.fetch_add(1, Ordering::Relaxed);
        Ok(decoder)
    }

    /// Reconfigures a decoder for the picture size of the video.
    pub(crate) fn reconfigure(&self, decoder: &mut Decoder, video: &VideoFormat) -> Result<()> {
        let reconfigured = decoder
            .reconfigure(video.coded_size)
            .map_err(|error| self.device.context.error(error, "reconfigure a video decoder"))?;
        self.counters.reconfigured.fetch_add(u64::from(reconfigured), Ordering::Relaxed);
        Ok(())
    }
}

impl VideoCapability {
    /// The reason why the device does not decode the video; `None` if it does.
    fn refusal(&self, video: &VideoFormat) -> Option<String> {
        let (width, height) = video.coded_size;
        if !self.supported {
            return Some("no NVDEC engine supports this codec, chroma and bit depth".to_owned());
        }
        let format = video.pixel_format();
        if !format.is_some_and(|format| supports_output(format, self.output_formats)) {
            return Some(format!("{} output is not supported", video.chroma));
        }
        let (min, max) = (self.min_size, self.max_size);
        if width < min.0 || height < min.1 || width > max.0 || height > max.1 {
            return Some(format!(
                "supported sizes are {}x{} to {}x{} pixels",
                min.0, min.1, max.0, max.1
            ));
        }
        let blocks = u64::from(width).div_ceil(16) * u64::from(height).div_ceil(16);
        (blocks > u64::from(self.max_macroblocks))
            .then(|| format!("the maximum is {} macroblocks of 16x16 pixels", self.max_macroblocks))
    }
}
