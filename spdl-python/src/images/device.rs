//! Batches of images that are decoded on a device, and what of that is done here.

use bytes::Bytes;
use spdl_core::stage::DeviceBatch;
use spdl_core::{Error, ErrorKind, Labeled, PipelineBuilder, Result, SampleRng, StageOptions};
use spdl_cuda::images::{HostDecoder, HostImage, Placed};
use spdl_cuda::kernels::{Layout, PixelBox, PixelRect, SampleFormat};
use spdl_cuda::{CudaDevice, DeviceImages, Search};
use spdl_media::image::{DecodeRequest, PixelsMut};
use spdl_media::{CodecRegistry, Decoder, ImageTransform, Limits, Orientation, Rect, Size};

use super::settings::Settings;
use crate::operators::DECODE;

/// The part of a state's fingerprint that says who decodes.
const DECODER: (&str, &str) = ("decoder", "device");

/// encoded images ──► decode (headers and crops) ──► group ──► nvjpeg ──► batch (samples on the device)
pub(crate) fn attach(
    pipeline: PipelineBuilder<Labeled<Bytes>>,
    settings: &Settings,
    batch_size: usize,
    device: &CudaDevice,
    search: Search,
) -> Result<(PipelineBuilder<DeviceBatch>, DeviceImages)> {
    let Settings { transform, drop_last, .. } = settings;
    let Size { width, height } = transform.size();
    let values = transform.sample_format();
    let layout = match values.layout {
        spdl_media::Layout::Nhwc => Layout::Nhwc,
        spdl_media::Layout::Nchw => Layout::Nchw,
    };
    let format = SampleFormat::new(width, height).layout(layout).dtype(values.dtype);
    let placed = transform.clone();
    let images = DeviceImages::new(device, format, batch_size)
        .drop_last(*drop_last)
        .search(search)
        .host_decoder(|| Ok(Box::new(MediaDecoder::new())))
        .place(move |width, height, rng| place(&placed, Size::new(width, height), rng));
    let parameters = transform.parameters().chain([
        (DECODER.0, DECODER.1.to_owned()),
        ("batch size", settings.batch_size.to_string()),
        ("drop last", drop_last.to_string()),
    ]);
    let pipeline = images.attach(pipeline, StageOptions::new(DECODE).parameters(parameters))?;
    Ok((pipeline, images))
}

/// This project's decoders, for images that the device does not decode.
struct MediaDecoder(Decoder);

impl MediaDecoder {
    fn new() -> MediaDecoder {
        MediaDecoder(Decoder::new(&CodecRegistry::with_defaults(), &Limits::default()))
    }
}

impl HostDecoder for MediaDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<HostImage> {
        let info = self.0.inspect(encoded)?;
        let Size { width, height } = info.size;
        let mut numbers = Orientation::ALL.iter().zip(1..);
        let orientation = numbers.find(|(known, _)| **known == info.orientation);
        Ok(HostImage { width, height, orientation: orientation.map_or(1, |(_, number)| number) })
    }

    fn decode(&mut self, encoded: &[u8], pixels: &mut [u8]) -> Result<()> {
        let size = self.0.inspect(encoded)?.size;
        let request = DecodeRequest::full().exact(true);
        self.0.decode_into(encoded, &request, PixelsMut::new(pixels, size)?)?;
        Ok(())
    }
}

/// What the host's transform sees of an image, for the device.
fn place(transform: &ImageTransform, size: Size, rng: SampleRng) -> Result<Placed> {
    let placement = transform.place(size, || rng);
    if placement.target != Rect::full(transform.size()) {
        let message = "the image does not cover its sample";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let (source, bounds) = (placement.source, placement.bounds);
    Ok(Placed {
        source: PixelBox {
            left: source.left,
            top: source.top,
            width: source.width,
            height: source.height,
        },
        bounds: PixelRect {
            left: bounds.left,
            top: bounds.top,
            width: bounds.width,
            height: bounds.height,
        },
        mirrored: placement.mirrored,
        upended: placement.upended,
    })
}
