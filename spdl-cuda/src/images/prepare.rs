//! What is done for an image before the device sees it: its header is read, its crop drawn; where the
//! device does not decode it, that is done here.

use std::sync::Arc;

use bytes::Bytes;
use spdl_core::memory::{BufferPool, HostBuffer};
use spdl_core::{Error, ErrorKind, Labeled, Result, SampleId, Stage, StageContext};

use super::device_images::{DeviceImages, HostDecoder, HostImage, Place};
use super::orientation::Turn;
use super::statistics::{Books, FallbackReason};
use crate::jpeg::JpegHeader;
use crate::kernels::{BatchTable, Filter, ResizePlan, SampleFormat};
use crate::pixels::{DevicePlane, SourceImage};
use crate::runtime::slab_size;

/// An image that can be decoded, and what becomes of it then.
pub(super) struct PreparedImage {
    pub(super) id: SampleId,
    pub(super) key: Option<Arc<str>>,
    pub(super) label: i64,
    pub(super) source: Source,
    pub(super) plan: ResizePlan,
}

pub(super) enum Source {
    /// For the device.
    Jpeg { encoded: Bytes, header: JpegHeader },
    /// The host has decoded it, to rows of RGB; behind them the buffer holds arbitrary bytes.
    Pixels { pixels: HostBuffer, width: u32, height: u32 },
}

/// Reads headers and draws crops. One per worker.
pub(super) struct Prepare {
    place: Arc<Place>,
    format: SampleFormat,
    filter: Filter,
    has_nvjpeg: bool,
    host: Host,
}

impl Prepare {
    pub(super) fn new(images: &DeviceImages, has_nvjpeg: bool) -> Result<Prepare> {
        Ok(Prepare {
            place: Arc::clone(&images.place),
            format: images.format.clone(),
            filter: images.filter,
            has_nvjpeg,
            host: Host::new(images)?,
        })
    }

    /// What the device decodes, or the pixels; and how they are stored.
    fn source(&mut self, encoded: Bytes) -> Result<(Source, HostImage)> {
        let header = JpegHeader::parse(&encoded);
        let reason = FallbackReason::of(&encoded, &header, self.has_nvjpeg);
        match (header, reason) {
            (Ok(header), None) => {
                let JpegHeader { width, height, orientation, .. } = header;
                let stored = HostImage { width, height, orientation };
                Ok((Source::Jpeg { encoded, header }, stored))
            }
            (header, reason) => {
                let reason = reason.unwrap_or(FallbackReason::Refused);
                let (pixels, stored) = self.host.decode(&encoded, reason, header.err())?;
                let HostImage { width, height, .. } = stored;
                Ok((Source::Pixels { pixels, width, height }, stored))
            }
        }
    }

    /// Checks that the kernels can make this sample.
    fn check(&self, plan: &ResizePlan, stored: &HostImage) -> Result<()> {
        // Where it will lie does not matter yet.
        let plane = DevicePlane { address: 256, pitch: 3 * u64::from(stored.width) };
        let image = SourceImage::rgb8(stored.width, stored.height, plane)?;
        BatchTable::new(&self.format)?.push(&image, plan, 256)
    }
}

impl Stage<Labeled<Bytes>> for Prepare {
    type Out = PreparedImage;

    fn process(
        &mut self,
        item: Labeled<Bytes>,
        cx: &mut StageContext<'_, PreparedImage>,
    ) -> Result<()> {
        let (source, stored) = self.source(item.value)?;
        let turn = Turn::of(stored.orientation);
        let size = (stored.width, stored.height);
        let (width, height) = turn.upright(size);
        let placed = (self.place)(width, height, cx.rng())?;
        let plan = turn.plan(&placed, size, self.format.size(), self.filter);
        self.check(&plan, &stored)?;
        let key = cx.key().map(Arc::from);
        cx.emit(PreparedImage { id: cx.id(), key, label: item.label, source, plan })
    }
}

/// The decoder on the host, where there is one, and where its pixels go.
pub(super) struct Host {
    decoder: Option<Box<dyn HostDecoder>>,
    buffers: BufferPool,
    books: Arc<Books>,
}

impl Host {
    pub(super) fn new(images: &DeviceImages) -> Result<Host> {
        Ok(Host {
            decoder: images.make_host_decoder()?,
            buffers: images.device.buffers(),
            books: Arc::clone(&images.books),
        })
    }

    /// Decodes what the device does not, for this reason, and counts it where that fails: else it is counted
    /// when it is on the device. Without a decoder the answer is `error`.
    pub(super) fn decode(
        &mut self,
        encoded: &[u8],
        reason: FallbackReason,
        error: Option<Error>,
    ) -> Result<(HostBuffer, HostImage)> {
        self.books.fell_back(reason);
        self.try_decode(encoded, reason, error).inspect_err(|_| self.books.failed())
    }

    fn try_decode(
        &mut self,
        encoded: &[u8],
        reason: FallbackReason,
        error: Option<Error>,
    ) -> Result<(HostBuffer, HostImage)> {
        let Some(decoder) = &mut self.decoder else {
            return Err(error.unwrap_or_else(|| {
                let message = format!(
                    "the device does not decode this image ({reason:?}), and there is no decoder on \
                     the host"
                );
                Error::new(ErrorKind::Unsupported, message)
            }));
        };
        let stored = decoder.inspect(encoded)?;
        let bytes = (stored.width as usize)
            .checked_mul(stored.height as usize)
            .and_then(|pixels| pixels.checked_mul(3));
        let bytes = bytes.ok_or_else(|| {
            let HostImage { width, height, .. } = stored;
            let message = format!("an image of {width} x {height} pixels is too large");
            Error::new(ErrorKind::LimitExceeded, message)
        })?;
        // Of few sizes, so that locked memory is used again.
        let mut pixels = self.buffers.take(slab_size(bytes))?;
        decoder.decode(encoded, &mut pixels[..bytes])?;
        Ok((pixels, stored))
    }
}
