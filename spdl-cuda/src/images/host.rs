//! Decoding on the host, for images that the device does not decode.

use std::sync::Arc;

use spdl_core::memory::{BufferPool, HostBuffer};
use spdl_core::{Error, ErrorKind, Result};
use spdl_media::Decoder;
use spdl_media::image::{DecodeRequest, ImageInfo, PixelsMut};

use super::options::ImageOptions;
use super::statistics::{FallbackReason, ImageCounters};
use crate::runtime::slab_size;

/// Decodes images into pinned buffers: interleaved RGB bytes, without applying the orientation.
/// Create one per worker.
pub(super) struct HostDecoder {
    /// `None` if decoding on the host is disabled.
    decoder: Option<Decoder>,
    buffers: BufferPool,
    counters: Arc<ImageCounters>,
}

impl HostDecoder {
    pub(super) fn new(options: &ImageOptions) -> HostDecoder {
        HostDecoder {
            decoder: options.host.as_ref().map(|(codecs, limits)| Decoder::new(codecs, limits)),
            buffers: options.device.buffers(),
            counters: Arc::clone(&options.counters),
        }
    }

    /// Decodes an image. A failure is counted here; a success is counted after the upload.
    ///
    /// # Errors
    /// Errors of the host decoder. If decoding on the host is disabled, `device_error`, or
    /// `Unsupported` without a `device_error`.
    pub(super) fn decode(
        &mut self,
        encoded: &[u8],
        reason: FallbackReason,
        device_error: Option<Error>,
    ) -> Result<(HostBuffer, ImageInfo)> {
        self.counters.count_fallback(reason);
        self.try_decode(encoded, reason, device_error)
            .inspect_err(|_| self.counters.count_failure())
    }

    fn try_decode(
        &mut self,
        encoded: &[u8],
        reason: FallbackReason,
        device_error: Option<Error>,
    ) -> Result<(HostBuffer, ImageInfo)> {
        let Some(decoder) = &mut self.decoder else {
            return Err(device_error.unwrap_or_else(|| {
                let reason = reason.as_str();
                let message = format!(
                    "the device does not decode this image ({reason}), and decoding on the host is \
                     disabled"
                );
                Error::new(ErrorKind::Unsupported, message)
            }));
        };
        let info = decoder.inspect(encoded)?;
        let bytes = usize::try_from(info.size.pixels()).ok();
        let bytes = bytes.and_then(|pixels| pixels.checked_mul(3)).ok_or_else(|| {
            let message = format!("image of {} pixels is too large", info.size);
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        // The size is rounded up, so that few different sizes occur and pinned memory is reused.
        let mut pixels = self.buffers.take(slab_size(bytes))?;
        let out = PixelsMut::new(&mut pixels[..bytes], info.size)?;
        decoder.decode_into(encoded, &DecodeRequest::full().exact(true), out)?;
        Ok((pixels, info))
    }
}
