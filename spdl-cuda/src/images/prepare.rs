//! The stage `decode`, on CPU threads: parses headers, draws crops, and decodes images if nvJPEG is
//! missing or disabled, or if their header shows that the device does not decode them.

use std::sync::Arc;

use bytes::Bytes;
use spdl_core::memory::HostBuffer;
use spdl_core::{Labeled, Result, SampleId, Stage, StageContext};
use spdl_media::formats::jpeg::JpegHeader;
use spdl_media::image::ImageInfo;
use spdl_media::{ImageTransform, Orientation, Size};

use super::host::HostDecoder;
use super::options::ImageOptions;
use super::statistics::FallbackReason;
use crate::jpeg::parse_header;
use crate::kernels::{BatchTable, ResizePlan};
use crate::pixels::{DevicePlane, SourceImage};

/// An image with a valid header, and the plan for its sample.
pub(super) struct PreparedImage {
    pub(super) id: SampleId,
    pub(super) key: Option<Arc<str>>,
    pub(super) label: i64,
    pub(super) source: ImageSource,
    pub(super) plan: ResizePlan,
}

pub(super) enum ImageSource {
    /// A JPEG that nvJPEG can try to decode.
    Jpeg { encoded: Bytes, header: JpegHeader },
    /// Pixels that the host decoded: interleaved RGB, followed by unspecified bytes.
    Pixels { pixels: HostBuffer, size: Size },
}

/// The stage `decode`. Create one instance per worker.
pub(super) struct PrepareStage {
    transform: ImageTransform,
    has_nvjpeg: bool,
    host: HostDecoder,
}

impl PrepareStage {
    pub(super) fn new(options: &ImageOptions, has_nvjpeg: bool) -> PrepareStage {
        let transform = options.transform.clone();
        PrepareStage { transform, has_nvjpeg, host: HostDecoder::new(options) }
    }

    /// The JPEG for the device, or the pixels from the host.
    fn source(&mut self, encoded: Bytes) -> Result<(ImageSource, ImageInfo)> {
        let header = parse_header(&encoded);
        let reason = FallbackReason::of(&encoded, &header, self.has_nvjpeg);
        match (header, reason) {
            (Ok(header), None) => {
                let info = ImageInfo::new(header.size, header.orientation);
                Ok((ImageSource::Jpeg { encoded, header }, info))
            }
            (header, reason) => {
                let reason = reason.unwrap_or(FallbackReason::Refused);
                let (pixels, info) = self.host.decode(&encoded, reason, header.err())?;
                Ok((ImageSource::Pixels { pixels, size: info.size }, info))
            }
        }
    }

    /// Checks that the kernels accept the plan.
    fn check(&self, plan: &ResizePlan, stored: Size) -> Result<()> {
        // The checks do not depend on the address, so any address can be used.
        let plane = DevicePlane { address: 256, pitch: 3 * u64::from(stored.width) };
        let image = SourceImage::rgb8(stored.width, stored.height, plane)?;
        BatchTable::new(self.transform.tensor())?.push(&image, plan, 256)
    }
}

impl Stage<Labeled<Bytes>> for PrepareStage {
    type Out = PreparedImage;

    fn process(
        &mut self,
        item: Labeled<Bytes>,
        cx: &mut StageContext<'_, PreparedImage>,
    ) -> Result<()> {
        let (source, mut info) = self.source(item.value)?;
        if !self.transform.applies_exif_orientation() {
            info.orientation = Orientation::Upright;
        }
        let placement = self.transform.place(info.upright_size(), || cx.rng());
        let sample = self.transform.size();
        let plan = ResizePlan::of_placement(&placement, info.size, info.orientation, sample)?
            .filter(self.transform.resize_filter());
        self.check(&plan, info.size)?;
        let key = cx.key().map(Arc::from);
        cx.emit(PreparedImage { id: cx.id(), key, label: item.label, source, plan })
    }
}
