//! Windows and OS/2 bitmaps, by a reader of our own.
//!
//! The layout is that of Microsoft's `BITMAPINFOHEADER` and its successors (sizes 40, 52, 56, 108,
//! 124), of the older `BITMAPCOREHEADER` (12), and of OS/2 2 (16 or 64). Rows are stored from the
//! bottom up unless the height is negative; each starts at a multiple of 4 bytes.

use std::ops::Range;

use spdl_core::{Error, ErrorKind, Result};

use super::frame::{Format, Job, reserve};
use crate::image::{CHANNELS, Decoded, ImageInfo, Limits, Orientation, Size};

/// The signature, the file's size, and where the pixels start.
const FILE_HEADER: usize = 14;
/// The old header, whose sizes have 16 bits and whose palette has 3 bytes a colour.
const CORE_HEADER: usize = 12;
/// OS/2's own header, which gives compressions other numbers.
const OS2_HEADER: usize = 64;

/// Windows bitmaps.
#[derive(Default)]
pub(super) struct Bmp {
    /// The palette indices of a run-length-coded image, in stored order.
    indices: Vec<u8>,
}

/// What the headers tell.
pub(super) struct Opened {
    top_down: bool,
    storage: Storage,
    /// Where the pixels start.
    data: usize,
    /// An index beyond the stored ones is black.
    palette: [[u8; CHANNELS]; 256],
}

/// How pixels are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Storage {
    /// Palette indices of 1, 2, 4 or 8 bits.
    Indices(usize),
    /// Palette indices of 4 or 8 bits, run-length-coded.
    Runs(usize),
    /// Blue, green and red, in so many bytes a pixel.
    Bytes(usize),
    /// Words of so many bytes, with a mask each for red, green and blue.
    Fields(usize, [Field; CHANNELS]),
}

/// Some adjacent bits of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Field {
    shift: u32,
    /// The largest value; 0 where there are no bits.
    largest: u32,
}

impl Field {
    /// `None` where the bits of the mask are not adjacent.
    fn of(mask: u32) -> Option<Field> {
        let shift = mask.trailing_zeros() % 32;
        let largest = mask >> shift;
        (largest & largest.wrapping_add(1) == 0).then_some(Field { shift, largest })
    }

    /// The field of a word, stretched to 0 to 255.
    #[inline]
    fn of_word(self, word: u32) -> u8 {
        let value = u64::from(word >> self.shift & self.largest);
        (value * 255 / u64::from(self.largest.max(1))) as u8
    }
}

impl Format for Bmp {
    const NAME: &'static str = "bmp";
    type File<'a> = Opened;

    fn sniff(head: &[u8]) -> bool {
        head.starts_with(b"BM")
    }

    fn open(encoded: &[u8], _: &Limits) -> Result<(Opened, ImageInfo)> {
        let header_bytes = long(encoded, FILE_HEADER)? as usize;
        let core = header_bytes == CORE_HEADER;
        if !core && !matches!(header_bytes, 16 | 40 | 52 | 56 | OS2_HEADER | 108 | 124) {
            return Err(unsupported(format!("a BMP header of {header_bytes} bytes"), FILE_HEADER));
        }
        let end = FILE_HEADER + header_bytes;
        bytes(encoded, FILE_HEADER..end)?;
        // What a shorter header lacks is 0.
        let field = |at: usize| if at + 4 <= end { long(encoded, at) } else { Ok(0) };
        let (width, height, bits) = if core {
            (short(encoded, 18)?, short(encoded, 20)? as i32, short(encoded, 24)?)
        } else {
            (long(encoded, 18)?, long(encoded, 22)? as i32, short(encoded, 28)?)
        };
        let size = Size::new(width, height.unsigned_abs());
        if width > i32::MAX as u32 || height == i32::MIN {
            let message = format!("a BMP of {width} by {height} pixels");
            return Err(Error::new(ErrorKind::Corrupt, message).with_offset(18));
        }
        let (compression, colors) = if core { (0, 0) } else { (field(30)?, field(46)?) };
        let masks = || -> Result<[u32; CHANNELS]> {
            Ok([long(encoded, 54)?, long(encoded, 58)?, long(encoded, 62)?])
        };
        let storage = match (compression, bits) {
            (0, 1 | 2 | 4 | 8) => Storage::Indices(bits as usize),
            (0, 16) => fields(2, [0x7C00, 0x03E0, 0x001F])?,
            (0, 24 | 32) => Storage::Bytes(bits as usize / 8),
            (1, 8) | (2, 4) => Storage::Runs(bits as usize),
            (3 | 6, 16 | 24 | 32) if header_bytes != OS2_HEADER => match masks()? {
                // As good as not given.
                [0, 0, 0] if bits > 16 => Storage::Bytes(bits as usize / 8),
                masks => fields(bits as usize / 8, masks)?,
            },
            _ => {
                let message = format!("a BMP of {bits} bits a pixel and compression {compression}");
                return Err(unsupported(message, 28));
            }
        };

        let mut palette = [[0; CHANNELS]; 256];
        let mut after = end;
        // Masks that lie behind the header, where that has no room for them.
        if header_bytes <= 40 && matches!(compression, 3 | 6) {
            after += if compression == 6 { 16 } else { 12 };
        }
        if bits <= 8 {
            let entry = if core { CHANNELS } else { 4 };
            let most = 1 << bits;
            let count = if colors == 0 { most } else { most.min(colors as usize) };
            let start = long(encoded, 10)? as usize;
            // Some have fewer than they say; pixels follow.
            let room = if start > after { (start - after) / entry } else { count };
            let entries = encoded.get(after..).unwrap_or_default().chunks_exact(entry);
            for (color, stored) in palette.iter_mut().zip(entries.take(count.min(room))) {
                *color = [stored[2], stored[1], stored[0]];
            }
            let all = if colors == 0 { most } else { colors as usize };
            after = after.saturating_add(all.saturating_mul(entry));
        }
        let data = match long(encoded, 10)? as usize {
            0 => after,
            // The palette was left out of the sum.
            start if start == end && bits <= 8 => after,
            start => start,
        };
        let opened = Opened { top_down: height < 0, storage, data, palette };
        Ok((opened, ImageInfo::new(size, Orientation::Upright)))
    }

    fn decode(&mut self, file: Opened, mut job: Job<'_>) -> Result<Decoded> {
        let (width, height) = (job.info.size.width as usize, job.info.size.height as usize);
        let mut cut = None;
        let stored: Stored<'_> = if let Storage::Runs(bits) = file.storage {
            reserve(&mut self.indices, job.info.size.pixels(), job.limits, job.info.size)?;
            self.indices.fill(0);
            let data = job.encoded.get(file.data..).unwrap_or_default();
            if let Err((row, error)) = read_runs(data, bits, width, &mut self.indices) {
                cut = Some((row, error.with_offset(job.encoded.len() as u64)));
            }
            Stored { rows: &self.indices, row_bytes: width, stride: width }
        } else {
            let row_bytes = (width * file.storage.bits()).div_ceil(8);
            let stride = row_bytes.next_multiple_of(4);
            let rows = job.encoded.get(file.data..).unwrap_or_default();
            // What fills up the last row may be missing.
            let needed = stride * (height - 1) + row_bytes;
            if rows.len() < needed {
                let whole = (rows.len() + stride - row_bytes) / stride;
                let message = format!("the BMP data end after {whole} of {height} rows");
                let error = Error::new(ErrorKind::Truncated, message);
                cut = Some((whole, error.with_offset(job.encoded.len() as u64)));
            }
            Stored { rows, row_bytes, stride }
        };
        let rows = match cut {
            None => height,
            // Of rows that are stored from the bottom up, those at the top are missing.
            Some((rows, ref error)) if file.top_down && job.may_be_partial(error) => rows,
            Some((_, error)) => return Err(error),
        };
        let columns = job.columns();
        for row in 0..job.region.height {
            let y = (job.region.top + row) as usize;
            if y < rows {
                let line = stored.row(if file.top_down { y } else { height - 1 - y });
                file.write_row(line, columns.clone(), job.out.row_mut(row));
            }
        }
        match cut {
            Some((rows, error)) => job.ended_after(rows as u32, error),
            None => Ok(job.done()),
        }
    }

    fn scratch_bytes(&self) -> usize {
        self.indices.capacity()
    }
}

/// Rows as they are stored.
struct Stored<'a> {
    rows: &'a [u8],
    row_bytes: usize,
    stride: usize,
}

impl<'a> Stored<'a> {
    fn row(&self, index: usize) -> &'a [u8] {
        &self.rows[index * self.stride..][..self.row_bytes]
    }
}

impl Storage {
    fn bits(self) -> usize {
        match self {
            Storage::Indices(bits) | Storage::Runs(bits) => bits,
            Storage::Bytes(bytes) | Storage::Fields(bytes, _) => 8 * bytes,
        }
    }
}

impl Opened {
    /// Writes some columns of a stored row as RGB.
    fn write_row(&self, row: &[u8], columns: Range<usize>, target: &mut [u8]) {
        let (pixels, _) = target.as_chunks_mut::<CHANNELS>();
        match self.storage {
            Storage::Indices(8) | Storage::Runs(_) => {
                for (pixel, &index) in pixels.iter_mut().zip(&row[columns]) {
                    *pixel = self.palette[usize::from(index)];
                }
            }
            Storage::Indices(bits) => {
                for (pixel, x) in pixels.iter_mut().zip(columns) {
                    let bit = x * bits;
                    let index = row[bit / 8] >> (8 - bits - bit % 8) & ((1 << bits) - 1);
                    *pixel = self.palette[usize::from(index)];
                }
            }
            Storage::Bytes(bytes) => {
                let row = &row[columns.start * bytes..columns.end * bytes];
                for (pixel, stored) in pixels.iter_mut().zip(row.chunks_exact(bytes)) {
                    *pixel = [stored[2], stored[1], stored[0]];
                }
            }
            Storage::Fields(bytes, fields) => {
                let row = &row[columns.start * bytes..columns.end * bytes];
                for (pixel, stored) in pixels.iter_mut().zip(row.chunks_exact(bytes)) {
                    let word =
                        stored.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
                    *pixel = fields.map(|field| field.of_word(word));
                }
            }
        }
    }
}

/// Masks lie within the word, and not one over another.
fn fields(bytes: usize, masks: [u32; CHANNELS]) -> Result<Storage> {
    let sound = masks.into_iter().all(|mask| u64::from(mask) >> (8 * bytes) == 0 && mask != 0)
        && masks[0] & masks[1] | masks[1] & masks[2] | masks[0] & masks[2] == 0;
    match masks.map(Field::of) {
        [Some(red), Some(green), Some(blue)] if sound => {
            Ok(Storage::Fields(bytes, [red, green, blue]))
        }
        _ => Err(unsupported(format!("a BMP with the masks {masks:x?}"), 54)),
    }
}

/// Reads run-length-coded indices of 4 or 8 bits into rows of `width`, which hold zeros. Where the
/// data end early, says how many rows are whole.
///
/// What reaches beyond the end of a row is left out, as in other readers.
fn read_runs(
    data: &[u8],
    bits: usize,
    width: usize,
    indices: &mut [u8],
) -> Result<(), (usize, Error)> {
    const END_OF_ROW: u8 = 0;
    const END: u8 = 1;
    const MOVE: u8 = 2;
    let height = indices.len() / width;
    let index = |byte: u8, at: usize| match (bits, at % 2) {
        (8, _) => byte,
        (_, 0) => byte >> 4,
        _ => byte & 15,
    };
    let (mut x, mut y, mut at) = (0, 0, 0);
    while y < height && !(y == height - 1 && x >= width) {
        let ended = |what| {
            let message = format!("the BMP data end {what} {y} of {height} rows");
            (y, Error::new(ErrorKind::Truncated, message))
        };
        let Some(&[count, value]) = data.get(at..).and_then(|rest| rest.first_chunk()) else {
            return Err(ended("after"));
        };
        at += 2;
        match (count, value) {
            (0, END_OF_ROW) => (x, y) = (0, y + 1),
            (0, END) => return Err(ended("by their own mark after")),
            (0, MOVE) => {
                let Some(&[right, up]) = data.get(at..).and_then(|rest| rest.first_chunk()) else {
                    return Err(ended("after"));
                };
                at += 2;
                (x, y) = (x + usize::from(right), y + usize::from(up));
            }
            (0, count) => {
                let count = usize::from(count);
                let length = (count * bits).div_ceil(8);
                let Some(values) = data.get(at..at + length) else { return Err(ended("after")) };
                // The next pair starts at an even address.
                at += length.next_multiple_of(2);
                let row = &mut indices[y * width..][..width];
                for (offset, place) in row.iter_mut().skip(x).take(count).enumerate() {
                    *place = index(values[offset * bits / 8], offset);
                }
                x += count;
            }
            (count, value) => {
                let row = &mut indices[y * width..][..width];
                for (offset, place) in row.iter_mut().skip(x).take(count.into()).enumerate() {
                    *place = index(value, offset);
                }
                x += usize::from(count);
            }
        }
    }
    Ok(())
}

fn bytes(encoded: &[u8], range: Range<usize>) -> Result<&[u8]> {
    encoded.get(range).ok_or_else(|| {
        Error::new(ErrorKind::Truncated, "the BMP header ends early")
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
