//! `spdl-media` as the host's part of the work: it decodes what the device does not, and says which part
//! of an image is seen.

use spdl_core::{Error, ErrorKind, Result, SampleRng};
use spdl_cuda::images::{HostDecoder, HostImage, Placed};
use spdl_cuda::kernels::{PixelBox, PixelRect};
use spdl_media::image::{DecodeRequest, PixelsMut};
use spdl_media::{CodecRegistry, Decoder, ImageTransform, Limits, Orientation, Rect, Size};

/// This project's decoders for the host.
pub(crate) struct MediaDecoder(Decoder);

impl MediaDecoder {
    pub(crate) fn new() -> Result<MediaDecoder> {
        let decoder = Decoder::new(&CodecRegistry::with_defaults(), &Limits::default());
        Ok(MediaDecoder(decoder))
    }
}

impl HostDecoder for MediaDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<HostImage> {
        let info = self.0.inspect(encoded)?;
        let before = Orientation::ALL.iter().take_while(|it| **it != info.orientation).count();
        let Size { width, height } = info.size;
        Ok(HostImage { width, height, orientation: 1 + before as u8 })
    }

    fn decode(&mut self, encoded: &[u8], pixels: &mut [u8]) -> Result<()> {
        let size = self.0.inspect(encoded)?.size;
        let request = DecodeRequest::full().exact(true);
        self.0.decode_into(encoded, &request, PixelsMut::new(pixels, size)?)?;
        Ok(())
    }
}

/// What the host's transform sees, for the device.
pub(crate) fn place(transform: &ImageTransform, size: Size, rng: SampleRng) -> Result<Placed> {
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
