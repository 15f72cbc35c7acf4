//! PNG by the crate `png`, row by row.

use std::io::Cursor;

use png::{BitDepth, ColorType, DecodingError, Reader, Transformations};
use spdl_core::{Error, ErrorKind, Result};

use super::adapter::{DecodeJob, FormatReader, reserve};
use super::convert::{PixelLayout, RgbaLayout, RgbaSamples};
use super::errors;
use crate::image::{Decoded, ImageInfo, Limits, Orientation, SampleDepth, Size, exif};

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
/// The size in bytes of the length and type fields before the data of a chunk; the CRC follows the
/// data.
const CHUNK_HEADER: usize = 8;
const CRC: usize = 4;

/// PNG, all colour types and bit depths.
#[derive(Default)]
pub(super) struct Png {
    /// The whole image if it is interlaced; a row of the region if it is 16-bit grey.
    scratch: Vec<u8>,
}

impl FormatReader for Png {
    const NAME: &'static str = "png";
    type File<'a> = Reader<Cursor<&'a [u8]>>;

    fn sniff(head: &[u8]) -> bool {
        head.starts_with(SIGNATURE)
    }

    fn open<'a>(encoded: &'a [u8], limits: &Limits) -> Result<(Self::File<'a>, ImageInfo)> {
        let (mut decoder, size) = decoder(encoded, limits)?;
        let header = decoder.read_header_info().map_err(error)?;
        // 16-bit grey is clamped to 255 instead of being divided by 256.
        let wide_grey =
            (header.color_type, header.bit_depth) == (ColorType::Grayscale, BitDepth::Sixteen);
        decoder.set_transformations(if wide_grey {
            Transformations::IDENTITY
        } else {
            Transformations::EXPAND | Transformations::STRIP_16
        });
        let reader = decoder.read_info().map_err(error)?;
        check_palette(reader.info())?;
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
        match scan_chunks(encoded, limits)? {
            Some(info) => Ok(info),
            // The chunks are unusual: the full parser reads them, or reports an error.
            None => Png::open(encoded, limits).map(|(_, info)| info),
        }
    }

    fn decode(&mut self, reader: Self::File<'_>, mut job: DecodeJob<'_>) -> Result<Decoded> {
        let mut reader = match job.rgba {
            None => reader,
            Some(_) => expanded(job.encoded, job.limits)?,
        };
        let (color, depth) = reader.output_color_type();
        let wide = depth == BitDepth::Sixteen;
        let kept = job.rgba.as_ref().map(|rgba| {
            let is_wide_grey = reader.info().color_type == ColorType::Grayscale;
            let samples = match (wide, rgba.depth) {
                (false, _) => RgbaSamples::Bytes,
                (true, SampleDepth::Sixteen) => RgbaSamples::Words,
                (true, SampleDepth::Eight) if is_wide_grey => RgbaSamples::ClampedWords,
                (true, SampleDepth::Eight) => RgbaSamples::UpperBytes,
            };
            let is_grey = matches!(color, ColorType::Grayscale | ColorType::GrayscaleAlpha);
            let has_alpha = matches!(color, ColorType::GrayscaleAlpha | ColorType::Rgba);
            RgbaLayout { colors: if is_grey { 1 } else { 3 }, has_alpha, samples }
        });
        let pixel = match color {
            ColorType::Grayscale if wide => PixelLayout::Grey(2),
            ColorType::Grayscale => PixelLayout::Grey(1),
            ColorType::GrayscaleAlpha => PixelLayout::Grey(2),
            ColorType::Rgb => PixelLayout::Rgb(3),
            ColorType::Rgba => PixelLayout::Rgb(4),
            ColorType::Indexed => {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    "corrupt PNG: palette indices without a palette",
                ));
            }
        };
        let saturates = wide && color == ColorType::Grayscale;
        if reader.info().interlaced {
            let bytes =
                reader.output_buffer_size().ok_or_else(|| errors::limit_exceeded(Self::NAME))?;
            reserve(&mut self.scratch, bytes as u64, job.limits, job.info.size)?;
            reader.next_frame(&mut self.scratch).map_err(|reason| classify(error(reason), &job))?;
            let decoded = job.done();
            if let (Some(layout), Some(rgba)) = (kept, &mut job.rgba) {
                let stride = job.info.size.width as usize * layout.bytes();
                for row in 0..job.region.height {
                    let start = (job.region.top + row) as usize * stride
                        + job.region.left as usize * layout.bytes();
                    layout.widen_row(&self.scratch[start..], rgba.row_mut(row));
                }
                return Ok(decoded);
            }
            if saturates {
                saturate(&mut self.scratch);
            }
            pixel.copy_region(&self.scratch, job.info.size, job.region, job.out);
            return Ok(decoded);
        }
        let columns = job.columns();
        let pixel_bytes = kept.map_or(pixel.bytes(), RgbaLayout::bytes);
        let bytes = columns.start * pixel_bytes..columns.end * pixel_bytes;
        let rows = job.region.top..job.region.top + job.region.height;
        // Rows below the region are only read to detect truncation. If the file ends with an IEND
        // chunk, it is not truncated.
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
                    let message = format!(
                        "truncated PNG: the image data end after {y} of {} rows",
                        job.info.size.height
                    );
                    let reason = classify(Error::new(ErrorKind::Truncated, message), &job);
                    return job.truncated_after(y, reason);
                }
                Err(reason) => {
                    let reason = classify(error(reason), &job);
                    return job.truncated_after(y, reason);
                }
            };
            if !rows.contains(&y) {
                continue;
            }
            let source = &row.data()[bytes.clone()];
            if let (Some(layout), Some(rgba)) = (kept, &mut job.rgba) {
                layout.widen_row(source, rgba.row_mut(y - rows.start));
                continue;
            }
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

/// The stored numbers of a grey or palette PNG: grey values of any bit depth, or palette indices.
#[cfg(feature = "records")]
pub(crate) struct PngNumbers<'a> {
    pub(crate) size: Size,
    rows: &'a [u8],
    row_bytes: usize,
    depth: BitDepth,
}

#[cfg(feature = "records")]
impl PngNumbers<'_> {
    /// The number at a position inside the image.
    pub(crate) fn get(&self, row: usize, column: usize) -> u16 {
        let row = &self.rows[row * self.row_bytes..];
        match self.depth {
            BitDepth::Sixteen => u16::from_be_bytes([row[2 * column], row[2 * column + 1]]),
            BitDepth::Eight => row[column].into(),
            packed => {
                let bits = packed as usize;
                let shift = 8 - bits - column * bits % 8;
                (row[column * bits / 8] >> shift & (u8::MAX >> (8 - bits))).into()
            }
        }
    }
}

/// Decodes a grey or palette PNG to its stored numbers, which are kept in `scratch`.
///
/// # Errors
/// `Unsupported` if the PNG has colours or alpha, or an EXIF orientation that `applies_exif` would require to
/// apply; `Corrupt`, `Truncated` or
/// `LimitExceeded`, as for images.
#[cfg(feature = "records")]
pub(crate) fn decode_numbers<'a>(
    encoded: &[u8],
    limits: &Limits,
    applies_exif: bool,
    scratch: &'a mut Vec<u8>,
) -> Result<PngNumbers<'a>> {
    let unsupported = |found: &str| {
        let message = format!("expected a mask in a grey or palette PNG, found {found}");
        Error::new(ErrorKind::Unsupported, message)
    };
    if !Png::sniff(encoded) {
        return Err(unsupported("another format"));
    }
    let (mut decoder, size) = decoder(encoded, limits)?;
    decoder.set_transformations(Transformations::IDENTITY);
    let mut reader = decoder.read_info().map_err(error)?;
    check_palette(reader.info())?;
    let (color, depth) = (reader.info().color_type, reader.info().bit_depth);
    if !matches!(color, ColorType::Grayscale | ColorType::Indexed) {
        return Err(unsupported("colours or alpha"));
    }
    let orientation = reader.info().exif_metadata.as_deref().map(exif::orientation);
    let is_turned = orientation.is_some_and(|orientation| orientation != Orientation::Upright);
    if applies_exif && is_turned {
        return Err(unsupported("an orientation"));
    }
    let bytes = reader.output_buffer_size().ok_or_else(|| errors::limit_exceeded(Png::NAME))?;
    reserve(scratch, bytes as u64, limits, size)?;
    reader.next_frame(scratch).map_err(error)?;
    let row_bytes = reader.output_line_size(size.width).unwrap_or(bytes);
    Ok(PngNumbers { size, rows: scratch, row_bytes, depth })
}

/// A reader of all bits, with alpha if there is transparency.
fn expanded<'a>(encoded: &'a [u8], limits: &Limits) -> Result<Reader<Cursor<&'a [u8]>>> {
    let (mut decoder, _) = decoder(encoded, limits)?;
    decoder.set_transformations(Transformations::EXPAND);
    decoder.read_info().map_err(error)
}

/// The decoder of a PNG, whose header has been read and checked.
fn decoder<'a>(
    encoded: &'a [u8],
    limits: &Limits,
) -> Result<(png::Decoder<Cursor<&'a [u8]>>, Size)> {
    // When the crate enlarges its chunk buffer, it copies the data, which needs the memory twice.
    let bytes = usize::try_from(limits.bytes() / 2).unwrap_or(usize::MAX);
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(encoded), png::Limits { bytes });
    decoder.ignore_checksums(!limits.is_strict());
    // These chunks are not needed, and a few bytes of them may inflate to gigabytes.
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let header = decoder.read_header_info().map_err(error)?;
    let size = Size::new(header.width, header.height);
    limits.check_size(size)?;
    Ok((decoder, size))
}

/// Checks the length of the palette: the crate panics if it is no multiple of 3, or above 768 bytes.
fn check_palette(info: &png::Info<'_>) -> Result<()> {
    const MAX_BYTES: usize = 3 * 256;
    match &info.palette {
        Some(palette) if info.color_type == ColorType::Indexed => {
            if !palette.len().is_multiple_of(3) || palette.len() > MAX_BYTES {
                let message = format!("palette of {} bytes", palette.len());
                return Err(errors::corrupt(Png::NAME, message));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Parses the chunks before the image data; `None` if the chunks are unusual.
fn scan_chunks(encoded: &[u8], limits: &Limits) -> Result<Option<ImageInfo>> {
    let (mut size, mut orientation) = (None, Orientation::Upright);
    let Some(mut rest) = encoded.strip_prefix(SIGNATURE) else { return Ok(None) };
    while let Some((&[a, b, c, d, ref kind @ ..], behind)) =
        rest.split_first_chunk::<CHUNK_HEADER>()
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
        rest = behind.get(length + CRC..).unwrap_or_default();
    }
    Ok(None)
}

/// Whether the file ends with an IEND chunk, so that it is not truncated. Up to 32 bytes, and then
/// any number of zero bytes, may follow the chunk.
fn has_end(encoded: &[u8]) -> bool {
    const MAX_TRAILING: usize = 32;
    const END: &[u8] = b"\0\0\0\0IEND\xAE\x42\x60\x82";
    let end = encoded.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let tail = &encoded[end.saturating_sub(END.len() + MAX_TRAILING)..end];
    tail.windows(END.len()).any(|window| window == END)
}

/// Image data that end early in a file with an IEND chunk are corrupt, not truncated.
fn classify(error: Error, job: &DecodeJob<'_>) -> Error {
    match error.kind() {
        ErrorKind::Truncated if has_end(job.encoded) => {
            Error::new(ErrorKind::Corrupt, error.message().to_owned())
        }
        _ => error,
    }
}

/// Stores the clamped value in the upper byte, because the conversion copies the upper byte.
fn saturate(samples: &mut [u8]) {
    for sample in samples.chunks_exact_mut(2) {
        sample[0] = if sample[0] > 0 { 255 } else { sample[1] };
    }
}

fn error(error: DecodingError) -> Error {
    match error {
        DecodingError::IoError(error) => errors::read_error(Png::NAME, error),
        DecodingError::LimitsExceeded => errors::limit_exceeded(Png::NAME),
        error @ (DecodingError::Format(_) | DecodingError::Parameter(_)) => {
            errors::corrupt(Png::NAME, error)
        }
    }
}
