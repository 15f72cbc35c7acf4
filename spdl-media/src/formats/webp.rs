//! WebP through the `image-webp` crate.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};
use spdl_core::{Error, ErrorKind, Result};

use super::convert::Pixel;
use super::failure;
use crate::{
    DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, Limits, Orientation, PixelsMut,
    Rect, Size, exif,
};

const NAME: &str = "webp";

/// WebP, lossy and lossless.
#[derive(Debug)]
pub(crate) struct WebpCodec;

impl ImageCodec for WebpCodec {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sniff(&self, head: &[u8]) -> bool {
        head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP")
    }

    fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>> {
        Ok(Box::new(WebpDecoder { limits: limits.clone(), scratch: Vec::new() }))
    }
}

struct WebpDecoder {
    limits: Limits,
    /// The whole image, where it cannot be decoded straight into the caller's memory.
    scratch: Vec<u8>,
}

impl WebpDecoder {
    fn open<'a>(&self, encoded: &'a [u8]) -> Result<(WebPDecoder<Cursor<&'a [u8]>>, ImageInfo)> {
        // The crate takes missing lossless data for zeros.
        if let Some(length) = encoded.get(4..8).and_then(|bytes| bytes.first_chunk()) {
            let expected = u64::from(u32::from_le_bytes(*length)) + 8;
            if (encoded.len() as u64) < expected {
                return Err(Error::new(
                    ErrorKind::Truncated,
                    format!("expected {expected} bytes of webp data"),
                )
                .with_offset(encoded.len() as u64));
            }
        }
        let mut decoder = WebPDecoder::new(Cursor::new(encoded)).map_err(error)?;
        decoder.set_memory_limit(usize::try_from(self.limits.bytes()).unwrap_or(usize::MAX));
        let (width, height) = decoder.dimensions();
        let size = Size::new(width, height);
        self.limits.check_size(size)?;
        let orientation = match decoder.exif_metadata() {
            Ok(Some(block)) => exif::orientation(&block),
            Ok(None) | Err(_) => Orientation::Upright,
        };
        Ok((decoder, ImageInfo::new(size, orientation)))
    }
}

impl ImageDecoder for WebpDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
        self.open(encoded).map(|(_, info)| info)
    }

    fn decode_into(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        mut out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        let (mut decoder, info) = self.open(encoded)?;
        let region = request.checked_region(info.size, &out)?;
        let pixel = Pixel::Rgb(if decoder.has_alpha() { 4 } else { 3 });
        let whole = region == Rect::full(info.size);
        match out.as_contiguous_mut() {
            Some(target) if whole && pixel.bytes() == 3 => {
                decoder.read_image(target).map_err(error)?;
            }
            _ => {
                let bytes =
                    decoder.output_buffer_size().ok_or_else(|| failure::limit_exceeded(NAME))?;
                self.limits.check_bytes(bytes as u64, info.size)?;
                self.scratch.resize(bytes, 0);
                decoder.read_image(&mut self.scratch).map_err(error)?;
                pixel.copy_region(&self.scratch, info.size, region, out);
            }
        }
        Ok(Decoded::new(region.size()))
    }
}

fn error(error: DecodingError) -> Error {
    match error {
        DecodingError::IoError(error) => failure::read_error(NAME, error),
        DecodingError::MemoryLimitExceeded | DecodingError::ImageTooLarge => {
            failure::limit_exceeded(NAME)
        }
        error => failure::corrupt(NAME, error),
    }
}
