//! PNG through the `png` crate, row by row.

use std::io::Cursor;

use png::{BitDepth, ColorType, DecodingError, Reader, Transformations};
use spdl_core::{Error, ErrorKind, Result};

use super::convert::Pixel;
use super::failure;
use super::frame::{Format, Job, reserve};
use crate::{Decoded, ImageInfo, Limits, Orientation, Size, exif};

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";

/// PNG, all colour types and depths.
#[derive(Default)]
pub(super) struct Png {
    /// The whole image where it is interlaced, or a row.
    scratch: Vec<u8>,
}

impl Format for Png {
    const NAME: &'static str = "png";
    type File<'a> = Reader<Cursor<&'a [u8]>>;

    fn sniff(head: &[u8]) -> bool {
        head.starts_with(SIGNATURE)
    }

    fn open<'a>(encoded: &'a [u8], limits: &Limits) -> Result<(Self::File<'a>, ImageInfo)> {
        // Its buffer for a chunk grows by copies, and what is copied is there twice.
        let bytes = usize::try_from(limits.bytes() / 2).unwrap_or(usize::MAX);
        let mut decoder =
            png::Decoder::new_with_limits(Cursor::new(encoded), png::Limits { bytes });
        decoder.ignore_checksums(!limits.is_strict());
        // Nobody reads them, and a few bytes of them may inflate to gigabytes.
        decoder.set_ignore_text_chunk(true);
        decoder.set_ignore_iccp_chunk(true);
        let header = decoder.read_header_info().map_err(error)?;
        let size = Size::new(header.width, header.height);
        limits.check_size(size)?;
        // Grey of 16 bits is kept: its values are cut at 255, not divided.
        let wide_grey =
            (header.color_type, header.bit_depth) == (ColorType::Grayscale, BitDepth::Sixteen);
        decoder.set_transformations(if wide_grey {
            Transformations::IDENTITY
        } else {
            Transformations::EXPAND | Transformations::STRIP_16
        });
        let reader = decoder.read_info().map_err(error)?;
        if let Some(animation) = reader.info().animation_control {
            limits.check_frames(animation.num_frames.into())?;
        }
        let orientation = match &reader.info().exif_metadata {
            Some(block) => exif::orientation(block),
            None => Orientation::Upright,
        };
        Ok((reader, ImageInfo::new(size, orientation)))
    }

    fn decode(&mut self, mut reader: Self::File<'_>, mut job: Job<'_>) -> Result<Decoded> {
        let (color, depth) = reader.output_color_type();
        let wide = depth == BitDepth::Sixteen;
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
        let saturates = wide && color == ColorType::Grayscale;
        if reader.info().interlaced {
            let bytes =
                reader.output_buffer_size().ok_or_else(|| failure::limit_exceeded(Self::NAME))?;
            reserve(&mut self.scratch, bytes as u64, job.limits, job.info.size)?;
            reader.next_frame(&mut self.scratch).map_err(error)?;
            if saturates {
                saturate(&mut self.scratch);
            }
            let decoded = job.done();
            pixel.copy_region(&self.scratch, job.info.size, job.region, job.out);
            return Ok(decoded);
        }
        let columns = job.columns();
        let bytes = columns.start * pixel.bytes()..columns.end * pixel.bytes();
        let rows = job.region.top..job.region.top + job.region.height;
        for y in 0..job.info.size.height {
            let row = match reader.next_row() {
                Ok(Some(row)) => row,
                Ok(None) => {
                    let message =
                        format!("the PNG data end after {y} of {} rows", job.info.size.height);
                    return job.ended_after(y, Error::new(ErrorKind::Truncated, message));
                }
                Err(reason) => return job.ended_after(y, error(reason)),
            };
            if !rows.contains(&y) {
                continue;
            }
            let source = &row.data()[bytes.clone()];
            let target = job.out.row_mut(y - rows.start);
            if saturates {
                self.scratch.clear();
                self.scratch.extend_from_slice(source);
                saturate(&mut self.scratch);
                pixel.copy_row(&self.scratch, target);
            } else {
                pixel.copy_row(source, target);
            }
        }
        Ok(job.done())
    }
}

/// A saturated value takes the place of the upper byte, which the conversion copies.
fn saturate(samples: &mut [u8]) {
    for sample in samples.chunks_exact_mut(2) {
        sample[0] = if sample[0] > 0 { 255 } else { sample[1] };
    }
}

fn error(error: DecodingError) -> Error {
    match error {
        DecodingError::IoError(error) => failure::read_error(Png::NAME, error),
        DecodingError::LimitsExceeded => failure::limit_exceeded(Png::NAME),
        error @ (DecodingError::Format(_) | DecodingError::Parameter(_)) => {
            failure::corrupt(Png::NAME, error)
        }
    }
}
