//! Windows bitmaps through the `image` crate.

use std::io::Cursor;

use image::codecs::bmp::BmpDecoder as Bmp;
use image::{ColorType, ImageDecoder as _, ImageError};
use spdl_core::{Error, ErrorKind, Result};

use super::convert::Pixel;
use super::failure;
use crate::{
    DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, Limits, Orientation, PixelsMut,
    Rect, Size,
};

const NAME: &str = "bmp";

/// Windows bitmaps.
#[derive(Debug)]
pub(crate) struct BmpCodec;

impl ImageCodec for BmpCodec {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sniff(&self, head: &[u8]) -> bool {
        head.starts_with(b"BM")
    }

    fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>> {
        Ok(Box::new(BmpDecoder { limits: limits.clone(), scratch: Vec::new() }))
    }
}

struct BmpDecoder {
    limits: Limits,
    /// The whole image, where it cannot be decoded straight into the caller's memory.
    scratch: Vec<u8>,
}

impl BmpDecoder {
    fn open<'a>(&self, encoded: &'a [u8]) -> Result<(Bmp<Cursor<&'a [u8]>>, ImageInfo)> {
        let decoder = Bmp::new(Cursor::new(encoded)).map_err(error)?;
        let (width, height) = decoder.dimensions();
        let size = Size::new(width, height);
        self.limits.check_size(size)?;
        Ok((decoder, ImageInfo::new(size, Orientation::Upright)))
    }
}

impl ImageDecoder for BmpDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
        self.open(encoded).map(|(_, info)| info)
    }

    fn decode_into(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        mut out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        let (decoder, info) = self.open(encoded)?;
        let region = request.checked_region(info.size, &out)?;
        let pixel = match decoder.color_type() {
            ColorType::L8 => Pixel::Grey(1),
            ColorType::Rgb8 => Pixel::Rgb(3),
            ColorType::Rgba8 => Pixel::Rgb(4),
            other => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("bitmap pixels of the kind {other:?} are not supported"),
                ));
            }
        };
        let whole = region == Rect::full(info.size);
        match out.as_contiguous_mut() {
            Some(target) if whole && pixel == Pixel::Rgb(3) => {
                decoder.read_image(target).map_err(error)?;
            }
            _ => {
                let bytes = decoder.total_bytes();
                self.limits.check_bytes(bytes, info.size)?;
                self.scratch.resize(bytes as usize, 0);
                decoder.read_image(&mut self.scratch).map_err(error)?;
                pixel.copy_region(&self.scratch, info.size, region, out);
            }
        }
        Ok(Decoded::new(region.size()))
    }
}

fn error(error: ImageError) -> Error {
    match error {
        ImageError::IoError(error) => failure::read_error(NAME, error),
        ImageError::Limits(_) => failure::limit_exceeded(NAME),
        error @ ImageError::Unsupported(_) => failure::unsupported(NAME, error),
        error => failure::corrupt(NAME, error),
    }
}
