//! PNG through the `png` crate, row by row.

use std::io::Cursor;

use png::{BitDepth, ColorType, DecodingError, Reader, Transformations};
use spdl_core::{Error, ErrorKind, Result};

use super::convert::Pixel;
use super::failure;
use super::frame::{Format, Job, reserve};
use crate::image::{Decoded, ImageInfo, Limits, Orientation, Size, exif};

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// A chunk's length and kind come before its content, a checksum comes behind it.
const CHUNK_HEAD: usize = 8;
const CHECKSUM: usize = 4;

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

    fn inspect(encoded: &[u8], limits: &Limits) -> Result<ImageInfo> {
        match inspect(encoded, limits)? {
            Some(info) => Ok(info),
            // Its reader says what is wrong.
            None => Png::open(encoded, limits).map(|(_, info)| info),
        }
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
            reader.next_frame(&mut self.scratch).map_err(|reason| judged(error(reason), &job))?;
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
        // What lies below is read only to find whether the file is cut, which it is not if it ends
        // as it should.
        let end = match job.exact || !has_end(job.encoded) {
            true => job.info.size.height,
            false => rows.end,
        };
        if saturates {
            reserve(&mut self.scratch, bytes.len() as u64, job.limits, job.info.size)?;
        }
        for y in 0..end {
            let row = match reader.next_row() {
                Ok(Some(row)) => row,
                Ok(None) => {
                    let message =
                        format!("the PNG data end after {y} of {} rows", job.info.size.height);
                    let reason = judged(Error::new(ErrorKind::Truncated, message), &job);
                    return job.ended_after(y, reason);
                }
                Err(reason) => {
                    let reason = judged(error(reason), &job);
                    return job.ended_after(y, reason);
                }
            };
            if !rows.contains(&y) {
                continue;
            }
            let source = &row.data()[bytes.clone()];
            let target = job.out.row_mut(y - rows.start);
            if saturates {
                self.scratch.copy_from_slice(source);
                saturate(&mut self.scratch);
                pixel.copy_row(&self.scratch, target);
            } else {
                pixel.copy_row(source, target);
            }
        }
        Ok(job.done())
    }

    fn scratch_bytes(&self) -> usize {
        self.scratch.capacity()
    }
}

/// Reads the chunks before the pixels; `None` where something is odd about them.
fn inspect(encoded: &[u8], limits: &Limits) -> Result<Option<ImageInfo>> {
    let (mut size, mut orientation) = (None, Orientation::Upright);
    let Some(mut rest) = encoded.strip_prefix(SIGNATURE) else { return Ok(None) };
    while let Some((&[a, b, c, d, ref kind @ ..], behind)) = rest.split_first_chunk::<CHUNK_HEAD>()
    {
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let Some(content) = behind.get(..length) else { return Ok(None) };
        let number = |at: usize| {
            let bytes = content.get(at..).and_then(|rest| rest.first_chunk());
            bytes.map(|&bytes| u32::from_be_bytes(bytes))
        };
        match (kind, size) {
            (b"IHDR", None) if length == 13 => {
                let (Some(width), Some(height)) = (number(0), number(4)) else { return Ok(None) };
                size = Some(Size::new(width, height));
            }
            (b"IHDR", _) | (_, None) => return Ok(None),
            (b"acTL", _) => match number(0) {
                Some(frames) => limits.check_frames(frames.into())?,
                None => return Ok(None),
            },
            (b"eXIf", _) => orientation = exif::orientation(content),
            (b"IDAT", Some(size)) => return Ok(Some(ImageInfo::new(size, orientation))),
            _ => {}
        }
        rest = behind.get(length + CHECKSUM..).unwrap_or_default();
    }
    Ok(None)
}

/// Whether the file ends with the chunk that ends a PNG, so that nothing of it is missing. A few
/// bytes may follow, and any number of zeros.
fn has_end(encoded: &[u8]) -> bool {
    const FEW: usize = 32;
    const END: &[u8] = b"\0\0\0\0IEND\xAE\x42\x60\x82";
    let end = encoded.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let tail = &encoded[end.saturating_sub(END.len() + FEW)..end];
    tail.windows(END.len()).any(|window| window == END)
}

/// Data that end early in a file that does not are damaged, not cut.
fn judged(error: Error, job: &Job<'_>) -> Error {
    match error.kind() {
        ErrorKind::Truncated if has_end(job.encoded) => {
            Error::new(ErrorKind::Corrupt, error.message().to_owned())
        }
        _ => error,
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
