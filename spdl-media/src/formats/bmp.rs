//! Windows and OS/2 bitmaps (BMP), decoded by this crate.
//!
//! Header layouts: Microsoft's `BITMAPINFOHEADER` and its successors (40, 52, 56, 108, 124 bytes),
//! the older `BITMAPCOREHEADER` (12 bytes), and OS/2 2 (16 or 64 bytes). Rows are stored bottom-up
//! unless the height is negative. Each row is padded to a multiple of 4 bytes.

use std::ops::Range;

use spdl_core::{Error, ErrorKind, Result};

use super::adapter::{DecodeJob, FormatReader, reserve};
use crate::image::{CHANNELS, Decoded, ImageInfo, Limits, Orientation, Size};

/// `BITMAPFILEHEADER`: signature, file size, offset of the pixel array.
const FILE_HEADER: usize = 14;
/// `BITMAPCOREHEADER`: 16-bit sizes and 3 bytes per palette entry.
const CORE_HEADER: usize = 12;
/// `OS22XBITMAPHEADER`, whose compression numbers have other meanings than in the header of
/// Windows.
const OS2_HEADER: usize = 64;

/// Windows bitmaps.
#[derive(Default)]
pub(super) struct Bmp {
    /// The palette indices of a run-length encoded image, in stored order.
    indices: Vec<u8>,
}

/// Properties of the image from its headers.
pub(super) struct BmpFile {
    top_down: bool,
    encoding: PixelEncoding,
    /// The bits of alpha in a word of [`PixelEncoding::Fields`].
    alpha: Option<ChannelMask>,
    /// The offset of the pixel array.
    data: usize,
    /// The palette; missing entries are black.
    palette: [[u8; CHANNELS]; 256],
}

/// The encoding of the pixel array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PixelEncoding {
    /// Palette indices of 1, 2, 4 or 8 bits.
    Indices(usize),
    /// Palette indices of 4 or 8 bits, run-length encoded (BI_RLE4, BI_RLE8).
    Runs(usize),
    /// Blue, green, red, with this number of bytes per pixel.
    Bytes(usize),
    /// Words of this number of bytes, with a bit mask per channel (BI_BITFIELDS).
    Fields(usize, [ChannelMask; CHANNELS]),
}

/// The bits of a channel in a word; they are adjacent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChannelMask {
    shift: u32,
    /// The largest value; 0 for an empty mask.
    largest: u32,
}

impl ChannelMask {
    /// `None` if the bits of the mask are not adjacent.
    fn new(mask: u32) -> Option<ChannelMask> {
        let shift = mask.trailing_zeros() % 32;
        let largest = mask >> shift;
        (largest & largest.wrapping_add(1) == 0).then_some(ChannelMask { shift, largest })
    }

    /// The value of the channel in a word, scaled to 0 to 255.
    #[inline]
    fn extract(self, word: u32) -> u8 {
        let value = u64::from(word >> self.shift & self.largest);
        (value * 255 / u64::from(self.largest.max(1))) as u8
    }
}

impl FormatReader for Bmp {
    const NAME: &'static str = "bmp";
    type File<'a> = BmpFile;

    fn sniff(head: &[u8]) -> bool {
        head.starts_with(b"BM")
    }

    fn open(encoded: &[u8], _: &Limits) -> Result<(BmpFile, ImageInfo)> {
        let header_bytes = long(encoded, FILE_HEADER)? as usize;
        let core = header_bytes == CORE_HEADER;
        if !core && !matches!(header_bytes, 16 | 40 | 52 | 56 | OS2_HEADER | 108 | 124) {
            return Err(unsupported(
                format!("unsupported BMP header of {header_bytes} bytes"),
                FILE_HEADER,
            ));
        }
        let end = FILE_HEADER + header_bytes;
        bytes(encoded, FILE_HEADER..end)?;
        // If the header is too short to contain a field, the field is 0.
        let field = |at: usize| if at + 4 <= end { long(encoded, at) } else { Ok(0) };
        let (width, height, bits) = if core {
            (short(encoded, 18)?, short(encoded, 20)? as i32, short(encoded, 24)?)
        } else {
            (long(encoded, 18)?, long(encoded, 22)? as i32, short(encoded, 28)?)
        };
        let size = Size::new(width, height.unsigned_abs());
        if width > i32::MAX as u32 || height == i32::MIN {
            let message = format!("invalid BMP size {width}x{height}");
            return Err(Error::new(ErrorKind::Corrupt, message).with_offset(18));
        }
        let (compression, colors) = if core { (0, 0) } else { (field(30)?, field(46)?) };
        let masks = || -> Result<[u32; CHANNELS]> {
            Ok([long(encoded, 54)?, long(encoded, 58)?, long(encoded, 62)?])
        };
        let encoding = match (compression, bits) {
            (0, 1 | 2 | 4 | 8) => PixelEncoding::Indices(bits as usize),
            (0, 16) => fields(2, [0x7C00, 0x03E0, 0x001F])?,
            (0, 24 | 32) => PixelEncoding::Bytes(bits as usize / 8),
            (1, 8) | (2, 4) => PixelEncoding::Runs(bits as usize),
            (3 | 6, 16 | 24 | 32) if header_bytes != OS2_HEADER => match masks()? {
                // Masks that are all zero count as no masks.
                [0, 0, 0] if bits > 16 => PixelEncoding::Bytes(bits as usize / 8),
                masks => fields(bits as usize / 8, masks)?,
            },
            _ => {
                let message = format!(
                    "unsupported BMP with {bits} bits per pixel and compression {compression}"
                );
                return Err(unsupported(message, 28));
            }
        };

        // Headers of at least 56 bytes have a mask of alpha, and so has compression 6.
        let has_alpha = (header_bytes >= 56 && header_bytes != OS2_HEADER) || compression == 6;
        let alpha = match encoding {
            PixelEncoding::Fields(..) if has_alpha => match long(encoded, 66)? {
                0 => None,
                mask => ChannelMask::new(mask),
            },
            _ => None,
        };
        let mut palette = [[0; CHANNELS]; 256];
        let mut after = end;
        // If the header has no room for the masks, the masks follow the header.
        if header_bytes <= 40 && matches!(compression, 3 | 6) {
            after += if compression == 6 { 16 } else { 12 };
        }
        if bits <= 8 {
            let entry = if core { CHANNELS } else { 4 };
            let most = 1 << bits;
            let count = if colors == 0 { most } else { most.min(colors as usize) };
            // As in Pillow, the pixels are read as colours if they start inside the palette.
            let entries = encoded.get(after..).unwrap_or_default().chunks_exact(entry);
            for (color, stored) in palette.iter_mut().zip(entries.take(count)) {
                *color = [stored[2], stored[1], stored[0]];
            }
            extend_grey_palette(&mut palette, count);
            let all = if colors == 0 { most } else { colors as usize };
            after = after.saturating_add(all.saturating_mul(entry));
        }
        let data = match long(encoded, 10)? as usize {
            0 => after,
            // Some files declare the offset of the palette here; their pixels follow the palette.
            start if start == end && bits <= 8 => after,
            start => start,
        };
        let opened = BmpFile { top_down: height < 0, encoding, alpha, data, palette };
        Ok((opened, ImageInfo::new(size, Orientation::Upright)))
    }

    fn decode(&mut self, file: BmpFile, mut job: DecodeJob<'_>) -> Result<Decoded> {
        let (width, height) = (job.info.size.width as usize, job.info.size.height as usize);
        let mut truncation = None;
        let stored: StoredRows<'_> = if let PixelEncoding::Runs(bits) = file.encoding {
            reserve(&mut self.indices, job.info.size.pixels(), job.limits, job.info.size)?;
            // Pillow ignores end-of-line markers in column 0. If data are missing then, each such marker
            // skips a row.
            for skips_rows in [false, true] {
                self.indices.fill(0);
                let start = file.data;
                truncation =
                    read_runs(job.encoded, start, bits, width, skips_rows, &mut self.indices).err();
                if truncation.is_none() {
                    break;
                }
            }
            StoredRows { rows: &self.indices, row_bytes: width, stride: width }
        } else {
            let row_bytes = (width * file.encoding.bits()).div_ceil(8);
            let stride = row_bytes.next_multiple_of(4);
            let rows = job.encoded.get(file.data..).unwrap_or_default();
            // The padding of the last row may be missing.
            let needed = stride * (height - 1) + row_bytes;
            if rows.len() < needed {
                let whole = (rows.len() + stride - row_bytes) / stride;
                let message =
                    format!("truncated BMP: the pixel array ends after {whole} of {height} rows");
                let error = Error::new(ErrorKind::Truncated, message);
                truncation = Some((whole, error.with_offset(job.encoded.len() as u64)));
            }
            StoredRows { rows, row_bytes, stride }
        };
        let rows = match truncation {
            None => height,
            // A truncated bottom-up image lacks its top rows, so a partial result is not possible.
            Some((rows, ref error)) if file.top_down && job.may_be_partial(error) => rows,
            Some((_, error)) => return Err(error),
        };
        let columns = job.columns();
        for row in 0..job.region.height {
            let y = (job.region.top + row) as usize;
            if y < rows {
                let line = stored.row(if file.top_down { y } else { height - 1 - y });
                file.write_row(line, columns.clone(), job.out.row_mut(row));
                if let (Some(rgba), Some(alpha)) = (&mut job.rgba, file.alpha) {
                    let bytes = file.encoding.bits() / 8;
                    let stored = line[columns.start * bytes..].chunks_exact(bytes);
                    let (colors, _) = job.out.row_mut(row).as_chunks::<CHANNELS>();
                    for ((pixel, color), stored) in
                        rgba.row_mut(row).iter_mut().zip(colors).zip(stored)
                    {
                        let word =
                            stored.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
                        let [red, green, blue] = *color;
                        *pixel = [red, green, blue, alpha.extract(word)]
                            .map(|level| u16::from(level) * 257);
                    }
                }
            }
        }
        match truncation {
            Some((rows, error)) => job.truncated_after(rows as u32, error),
            None => Ok(job.done()),
        }
    }

    fn scratch_bytes(&self) -> usize {
        self.indices.capacity()
    }
}

/// Reads the stored rows.
struct StoredRows<'a> {
    rows: &'a [u8],
    row_bytes: usize,
    stride: usize,
}

impl<'a> StoredRows<'a> {
    fn row(&self, index: usize) -> &'a [u8] {
        &self.rows[index * self.stride..][..self.row_bytes]
    }
}

impl PixelEncoding {
    fn bits(self) -> usize {
        match self {
            PixelEncoding::Indices(bits) | PixelEncoding::Runs(bits) => bits,
            PixelEncoding::Bytes(bytes) | PixelEncoding::Fields(bytes, _) => 8 * bytes,
        }
    }
}

impl BmpFile {
    /// Converts some columns of a stored row to RGB.
    fn write_row(&self, row: &[u8], columns: Range<usize>, target: &mut [u8]) {
        let (pixels, _) = target.as_chunks_mut::<CHANNELS>();
        match self.encoding {
            PixelEncoding::Indices(8) | PixelEncoding::Runs(_) => {
                for (pixel, &index) in pixels.iter_mut().zip(&row[columns]) {
                    *pixel = self.palette[usize::from(index)];
                }
            }
            PixelEncoding::Indices(bits) => {
                for (pixel, x) in pixels.iter_mut().zip(columns) {
                    let bit = x * bits;
                    let index = row[bit / 8] >> (8 - bits - bit % 8) & ((1 << bits) - 1);
                    *pixel = self.palette[usize::from(index)];
                }
            }
            PixelEncoding::Bytes(bytes) => {
                let row = &row[columns.start * bytes..columns.end * bytes];
                for (pixel, stored) in pixels.iter_mut().zip(row.chunks_exact(bytes)) {
                    *pixel = [stored[2], stored[1], stored[0]];
                }
            }
            PixelEncoding::Fields(bytes, fields) => {
                let row = &row[columns.start * bytes..columns.end * bytes];
                for (pixel, stored) in pixels.iter_mut().zip(row.chunks_exact(bytes)) {
                    let word =
                        stored.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
                    *pixel = fields.map(|field| field.extract(word));
                }
            }
        }
    }
}

/// Sets the missing entries of a palette of `count` colours as Pillow does. If the palette is a grey
/// ramp from 0 in steps of 1, missing colours continue the ramp. If it is black, or black and white,
/// missing colours are white. After other palettes, missing colours are black.
fn extend_grey_palette(palette: &mut [[u8; CHANNELS]; 256], count: usize) {
    let (given, missing) = palette.split_at_mut(count);
    let is_ramp = |step: usize| {
        given.iter().enumerate().all(|(at, &color)| color == [(at * step) as u8; CHANNELS])
    };
    if count <= 2 && is_ramp(255) {
        missing.fill([255; CHANNELS]);
    } else if count > 2 && is_ramp(1) {
        let grey = |at| [(count + at) as u8; CHANNELS];
        missing.iter_mut().enumerate().for_each(|(at, color)| *color = grey(at));
    }
}

/// Checks the masks: they must be inside the word, non-empty, and disjoint.
fn fields(bytes: usize, masks: [u32; CHANNELS]) -> Result<PixelEncoding> {
    let is_valid = masks.into_iter().all(|mask| u64::from(mask) >> (8 * bytes) == 0 && mask != 0)
        && masks[0] & masks[1] | masks[1] & masks[2] | masks[0] & masks[2] == 0;
    match masks.map(ChannelMask::new) {
        [Some(red), Some(green), Some(blue)] if is_valid => {
            Ok(PixelEncoding::Fields(bytes, [red, green, blue]))
        }
        _ => Err(unsupported(format!("unsupported BMP channel masks {masks:x?}"), 54)),
    }
}

/// Decodes run-length encoded palette indices of 4 or 8 bits, which start at `data`, into `indices`:
/// rows of `width` indices, which the caller has set to zero. An error includes the number of
/// complete rows.
///
/// As in Pillow, an encoded run stops at the end of the row, and an absolute run or a delta continues
/// in the next row. If `skips_rows` is set, an end-of-line marker in column 0 skips a row.
fn read_runs(
    encoded: &[u8],
    data: usize,
    bits: usize,
    width: usize,
    skips_rows: bool,
    indices: &mut [u8],
) -> Result<(), (usize, Error)> {
    const END_OF_LINE: u8 = 0;
    const END_OF_BITMAP: u8 = 1;
    const DELTA: u8 = 2;
    let height = indices.len() / width;
    let index = |byte: u8, at: usize| match (bits, at % 2) {
        (8, _) => byte,
        (_, 0) => byte >> 4,
        _ => byte & 15,
    };
    let pair = |at: usize| encoded.get(at..).and_then(|rest| rest.first_chunk().copied());
    // `next` is the position of the next pixel in row order. `x` is its column, or at least `width` if
    // only an end-of-line marker or a delta ends the row.
    let (mut next, mut x, mut at) = (0, 0, data);
    let mut is_row_end = false;
    while next < indices.len() {
        let y = next / width;
        let ended = |what| {
            let message = format!("truncated BMP: {what} after {y} of {height} rows");
            let error = Error::new(ErrorKind::Truncated, message);
            (y, error.with_offset(encoded.len() as u64))
        };
        let Some([count, value]) = pair(at) else { return Err(ended("the data end")) };
        at += 2;
        let was_row_end = std::mem::take(&mut is_row_end);
        match (count, value) {
            (0, END_OF_LINE) => {
                let skips = skips_rows && x == 0 && !was_row_end;
                next = if skips { next + width } else { next.next_multiple_of(width) };
                x = 0;
            }
            (0, END_OF_BITMAP) => return Err(ended("end-of-bitmap marker")),
            (0, DELTA) => {
                let Some([right, up]) = pair(at) else { return Err(ended("the data end")) };
                at += 2;
                next += usize::from(right) + usize::from(up) * width;
                is_row_end = x + usize::from(right) > 0 && next.is_multiple_of(width);
                x = next % width;
            }
            (0, count) => {
                let count = usize::from(count).min(indices.len() - next);
                let length = (count * bits).div_ceil(8);
                let Some(values) = encoded.get(at..at + length) else {
                    return Err(ended("the data end"));
                };
                // The next pair starts at an even address.
                at = (at + length).next_multiple_of(2);
                for (offset, place) in indices[next..].iter_mut().take(count).enumerate() {
                    *place = index(values[offset * bits / 8], offset);
                }
                (next, x) = (next + count, x + count);
            }
            (count, value) => {
                let count = usize::from(count).min(width.saturating_sub(x));
                for (offset, place) in indices[next..].iter_mut().take(count).enumerate() {
                    *place = index(value, offset);
                }
                (next, x) = (next + count, x + count);
            }
        }
    }
    Ok(())
}

fn bytes(encoded: &[u8], range: Range<usize>) -> Result<&[u8]> {
    encoded.get(range).ok_or_else(|| {
        Error::new(ErrorKind::Truncated, "truncated BMP: the file ends inside the header")
            .with_offset(encoded.len() as u64)
    })
}

fn short(encoded: &[u8], at: usize) -> Result<u32> {
    Ok(bytes(encoded, at..at + 2)?
        .iter()
        .rev()
        .fold(0, |value, &byte| value << 8 | u32::from(byte)))
}

fn long(encoded: &[u8], at: usize) -> Result<u32> {
    Ok(short(encoded, at)? | short(encoded, at + 2)? << 16)
}

fn unsupported(message: String, offset: usize) -> Error {
    Error::new(ErrorKind::Unsupported, message).with_offset(offset as u64)
}
