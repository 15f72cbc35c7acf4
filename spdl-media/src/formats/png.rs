//! PNG through the `png` crate, row by row.

use std::io::Cursor;

use png::{ColorType, DecodingError, Reader, Transformations};
use spdl_core::{Error, ErrorKind, Result};

use super::convert::Pixel;
use super::failure;
use crate::{
    DecodeRequest, Decoded, ImageCodec, ImageDecoder, ImageInfo, Limits, Orientation, PixelsMut,
    Size, exif,
};

const NAME: &str = "png";
const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// PNG, all colour types and depths.
#[derive(Debug)]
pub(crate) struct PngCodec;

impl ImageCodec for PngCodec {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sniff(&self, head: &[u8]) -> bool {
        head.starts_with(SIGNATURE)
    }

    fn decoder(&self, limits: &Limits) -> Result<Box<dyn ImageDecoder>> {
        Ok(Box::new(PngDecoder { limits: limits.clone(), scratch: Vec::new() }))
    }
}

struct PngDecoder {
    limits: Limits,
    /// The whole image, where rows do not come in their order.
    scratch: Vec<u8>,
}

impl PngDecoder {
    fn open<'a>(&self, encoded: &'a [u8]) -> Result<(Reader<Cursor<&'a [u8]>>, ImageInfo)> {
        let bytes = usize::try_from(self.limits.bytes()).unwrap_or(usize::MAX);
        let mut decoder =
            png::Decoder::new_with_limits(Cursor::new(encoded), png::Limits { bytes });
        decoder.ignore_checksums(!self.limits.is_strict());
        let header = decoder.read_header_info().map_err(error)?;
        let size = Size::new(header.width, header.height);
        self.limits.check_size(size)?;
        // Grey of 16 bits is kept: its values are cut at 255, not divided.
        let wide_grey =
            (header.color_type, header.bit_depth) == (ColorType::Grayscale, png::BitDepth::Sixteen);
        decoder.set_transformations(if wide_grey {
            Transformations::IDENTITY
        } else {
            Transformations::EXPAND | Transformations::STRIP_16
        });
        let reader = decoder.read_info().map_err(error)?;
        let orientation = match &reader.info().exif_metadata {
            Some(block) => exif::orientation(block),
            None => Orientation::Upright,
        };
        Ok((reader, ImageInfo::new(size, orientation)))
    }
}

impl ImageDecoder for PngDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<ImageInfo> {
        self.open(encoded).map(|(_, info)| info)
    }

    fn decode_into(
        &mut self,
        encoded: &[u8],
        request: &DecodeRequest,
        mut out: PixelsMut<'_>,
    ) -> Result<Decoded> {
        let (mut reader, info) = self.open(encoded)?;
        let region = request.checked_region(info.size, &out)?;
        let (color, depth) = reader.output_color_type();
        let wide = depth == png::BitDepth::Sixteen;
        let pixel = match color {
            ColorType::Grayscale if wide => Pixel::Grey(2),
            ColorType::Grayscale => Pixel::Grey(1),
            ColorType::GrayscaleAlpha => Pixel::Grey(2),
            ColorType::Rgb => Pixel::Rgb(3),
            ColorType::Rgba => Pixel::Rgb(4),
            ColorType::Indexed => {
                return Err(Error::new(ErrorKind::Corrupt, "a PNG palette was not applied"));
            }
        };
        // A saturated value takes the place of the upper byte, which the conversion copies.
        let saturate = |samples: &mut [u8]| {
            for sample in samples.chunks_exact_mut(2) {
                sample[0] = if sample[0] > 0 { 255 } else { sample[1] };
            }
        };
        if reader.info().interlaced {
            let bytes = reader.output_buffer_size().ok_or_else(|| failure::limit_exceeded(NAME))?;
            self.limits.check_bytes(bytes as u64, info.size)?;
            self.scratch.resize(bytes, 0);
            reader.next_frame(&mut self.scratch).map_err(error)?;
            if wide && color == ColorType::Grayscale {
                saturate(&mut self.scratch);
            }
            pixel.copy_region(&self.scratch, info.size, region, out);
        } else {
            let columns = region.left as usize * pixel.bytes()
                ..(region.left + region.width) as usize * pixel.bytes();
            for y in 0..info.size.height {
                let Some(row) = reader.next_row().map_err(error)? else {
                    return Err(Error::new(
                        ErrorKind::Truncated,
                        format!("the PNG data end after {y} of {} rows", info.size.height),
                    ));
                };
                if y < region.top || y - region.top >= region.height {
                    continue;
                }
                let source = &row.data()[columns.clone()];
                let target = out.row_mut(y - region.top);
                if wide && color == ColorType::Grayscale {
                    self.scratch.clear();
                    self.scratch.extend_from_slice(source);
                    saturate(&mut self.scratch);
                    pixel.copy_row(&self.scratch, target);
                } else {
                    pixel.copy_row(source, target);
                }
            }
        }
        Ok(Decoded::new(region.size()))
    }
}

fn error(error: DecodingError) -> Error {
    match error {
        DecodingError::IoError(error) => failure::read_error(NAME, error),
        DecodingError::LimitsExceeded => failure::limit_exceeded(NAME),
        error @ (DecodingError::Format(_) | DecodingError::Parameter(_)) => {
            failure::corrupt(NAME, error)
        }
    }
}
