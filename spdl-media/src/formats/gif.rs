//! The first frame of a GIF on its logical screen, decoded by this crate.
//!
//! The layout is that of the GIF89a specification. As in other decoders, stray bytes between blocks
//! are skipped, and data after the last pixel are ignored: the end-of-information code, the block
//! terminator and the trailer may be missing.

use spdl_core::{Error, ErrorKind, Result};

use super::adapter::{DecodeJob, FormatReader, reserve};
use crate::image::{CHANNELS, Decoded, ImageInfo, Limits, Orientation, Size};

const EXTENSION_INTRODUCER: u8 = 0x21;
const IMAGE_SEPARATOR: u8 = 0x2C;
const TRAILER: u8 = 0x3B;
/// The label of the graphic control extension, which has the transparent colour index.
const GRAPHIC_CONTROL_LABEL: u8 = 0xF9;
/// Header and logical screen descriptor.
const SCREEN_BYTES: usize = 13;
/// An image descriptor with its separator.
const IMAGE_DESCRIPTOR_BYTES: usize = 10;
/// The maximum length of an LZW code, in bits.
const MAX_CODE_BITS: u32 = 12;
const MAX_CODES: usize = 1 << MAX_CODE_BITS;

/// GIF, the first frame.
#[derive(Default)]
pub(super) struct Gif {
    /// The palette indices of the frame.
    scratch: Vec<u8>,
    table: LzwTable,
}

/// The header values up to the image data of the first frame.
pub(super) struct GifFile<'a> {
    frame: FrameRect,
    /// The local or global colour table; empty if the file has none.
    palette: &'a [[u8; CHANNELS]],
    transparent: Option<u8>,
    /// The LZW minimum code size.
    min_code_size: u32,
    /// The offset of the first data sub-block.
    data: usize,
}

/// The rectangle of the frame on the logical screen.
#[derive(Clone, Copy)]
struct FrameRect {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    interlaced: bool,
}

impl FormatReader for Gif {
    const NAME: &'static str = "gif";
    type File<'a> = GifFile<'a>;

    fn sniff(head: &[u8]) -> bool {
        head.starts_with(b"GIF87a") || head.starts_with(b"GIF89a")
    }

    fn open<'a>(encoded: &'a [u8], limits: &Limits) -> Result<(GifFile<'a>, ImageInfo)> {
        check_frames(encoded, limits)?;
        GifFile::read(encoded)
    }

    fn inspect(encoded: &[u8], _: &Limits) -> Result<ImageInfo> {
        // The number of frames is checked only when the image is decoded.
        GifFile::read(encoded).map(|(_, info)| info)
    }

    fn decode(&mut self, file: GifFile<'_>, mut job: DecodeJob<'_>) -> Result<Decoded> {
        let GifFile { frame, palette, transparent, min_code_size, data } = file;
        let Gif { scratch, table } = self;
        reserve(scratch, (frame.width * frame.height) as u64, job.limits, job.info.size)?;
        let mut truncation = None;
        let codes = CodeReader::new(job.encoded, data);
        if let Err((pixels, reason)) = table.decode(codes, min_code_size, scratch) {
            let rows = pixels / frame.width;
            if frame.interlaced || !job.may_be_partial(&reason) || rows == 0 {
                return Err(reason);
            }
            truncation = Some(((frame.top + rows) as u32, reason));
        }

        // Without a colour table, an index is a grey level. An index beyond the table is black.
        let mut colors: [[u8; CHANNELS]; 256] = match palette {
            [] => std::array::from_fn(|index| [index as u8; CHANNELS]),
            _ => [[0; CHANNELS]; 256],
        };
        colors[..palette.len()].copy_from_slice(palette);
        // Outside the frame, the screen has the transparent colour, or colour 0 if there is none.
        let background = colors[usize::from(transparent.unwrap_or(0))];

        let columns = job.columns();
        for row in 0..job.region.height {
            let y = (job.region.top + row) as usize;
            let source = y
                .checked_sub(frame.top)
                .filter(|&line| line < frame.height)
                .map(|line| &scratch[frame.stored_row(line) * frame.width..][..frame.width]);
            if let (Some(rgba), Some(transparent)) = (&mut job.rgba, transparent) {
                for (x, pixel) in columns.clone().zip(rgba.row_mut(row)) {
                    let index = x.checked_sub(frame.left).and_then(|column| source?.get(column));
                    let index = index.copied().unwrap_or(transparent);
                    let [red, green, blue] =
                        colors[usize::from(index)].map(|level| u16::from(level) * 257);
                    let alpha = if index == transparent { 0 } else { u16::MAX };
                    *pixel = [red, green, blue, alpha];
                }
                continue;
            }
            let (pixels, _) = job.out.row_mut(row).as_chunks_mut::<CHANNELS>();
            for (x, pixel) in columns.clone().zip(pixels) {
                let index = x.checked_sub(frame.left).and_then(|column| source?.get(column));
                *pixel = index.map_or(background, |&index| colors[usize::from(index)]);
            }
        }
        match truncation {
            Some((rows, reason)) => job.truncated_after(rows, reason),
            None => Ok(job.done()),
        }
    }

    fn scratch_bytes(&self) -> usize {
        self.scratch.capacity()
    }
}

impl<'a> GifFile<'a> {
    /// Parses up to the image data of the first frame.
    fn read(encoded: &'a [u8]) -> Result<(Self, ImageInfo)> {
        let screen_flags = byte(encoded, SCREEN_BYTES - 3)?;
        let (shared, mut at) = palette(encoded, SCREEN_BYTES, screen_flags)?;
        let mut transparent = None;
        loop {
            match byte(encoded, at)? {
                EXTENSION_INTRODUCER => {
                    if byte(encoded, at + 1)? == GRAPHIC_CONTROL_LABEL
                        && byte(encoded, at + 2)? >= 4
                    {
                        let (flags, index) = (byte(encoded, at + 3)?, byte(encoded, at + 6)?);
                        transparent = (flags & 1 == 1).then_some(index);
                    }
                    at = after_blocks(encoded, at + 2).ok_or_else(|| truncated(encoded))?;
                }
                IMAGE_SEPARATOR => break,
                TRAILER => {
                    let message = "the GIF has no frame before its trailer";
                    return Err(Error::new(ErrorKind::Corrupt, message).with_offset(at as u64));
                }
                _ => at += 1,
            }
        }
        let flags = byte(encoded, at + 9)?;
        let frame = FrameRect {
            left: read_u16(encoded, at + 1)?,
            top: read_u16(encoded, at + 3)?,
            width: read_u16(encoded, at + 5)?,
            height: read_u16(encoded, at + 7)?,
            interlaced: flags & 0x40 != 0,
        };
        if frame.width == 0 || frame.height == 0 {
            let message = format!("invalid GIF frame size {}x{}", frame.width, frame.height);
            return Err(Error::new(ErrorKind::Corrupt, message).with_offset(at as u64));
        }
        let (own, at) = palette(encoded, at + IMAGE_DESCRIPTOR_BYTES, flags)?;
        let min_code_size = byte(encoded, at)?;
        // The specification requires at least 2 bits. Some files have smaller values, which are
        // accepted as they are.
        if min_code_size > 8 {
            let message =
                format!("invalid GIF LZW minimum code size {min_code_size}: expected at most 8");
            return Err(Error::new(ErrorKind::Corrupt, message).with_offset(at as u64));
        }
        let screen = Size::new(read_u16(encoded, 6)? as u32, read_u16(encoded, 8)? as u32);
        // If the frame is larger than the screen, the screen is enlarged, as in browsers.
        let size = Size::new(
            screen.width.max((frame.left + frame.width) as u32),
            screen.height.max((frame.top + frame.height) as u32),
        );
        let file = GifFile {
            frame,
            palette: if own.is_empty() { shared } else { own },
            transparent,
            min_code_size: min_code_size.into(),
            data: at + 1,
        };
        Ok((file, ImageInfo::new(size, Orientation::Upright)))
    }
}

impl FrameRect {
    /// The stored position of a row of the frame. An interlaced frame stores every eighth row
    /// first, then the rows halfway between them, and so on.
    fn stored_row(&self, line: usize) -> usize {
        if !self.interlaced {
            return line;
        }
        let rows = |first: usize, step: usize| self.height.saturating_sub(first).div_ceil(step);
        let eighths = rows(0, 8);
        let fourths = eighths + rows(4, 8);
        match line % 8 {
            0 => line / 8,
            4 => eighths + line / 8,
            2 | 6 => fourths + line / 4,
            _ => fourths + rows(2, 4) + line / 2,
        }
    }
}

/// A global or local colour table, and the offset after it.
fn palette(encoded: &[u8], at: usize, flags: u8) -> Result<(&[[u8; CHANNELS]], usize)> {
    let end = at + palette_bytes(flags);
    let bytes = encoded.get(at..end).ok_or_else(|| truncated(encoded))?;
    Ok((bytes.as_chunks().0, end))
}

fn palette_bytes(flags: u8) -> usize {
    if flags & 0x80 == 0 { 0 } else { CHANNELS << ((flags & 7) + 1) }
}

/// The offset after the sub-blocks that start at `at`, the last of which is empty. `None` if the
/// file ends before.
fn after_blocks(encoded: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let length = usize::from(*encoded.get(at)?);
        at += 1 + length;
        if length == 0 {
            return Some(at);
        }
    }
}

fn byte(encoded: &[u8], at: usize) -> Result<u8> {
    encoded.get(at).copied().ok_or_else(|| truncated(encoded))
}

fn read_u16(encoded: &[u8], at: usize) -> Result<usize> {
    Ok(usize::from(u16::from_le_bytes([byte(encoded, at)?, byte(encoded, at + 1)?])))
}

fn truncated(encoded: &[u8]) -> Error {
    Error::new(
        ErrorKind::Truncated,
        "truncated GIF: the file ends before the image data of the first frame",
    )
    .with_offset(encoded.len() as u64)
}

/// Reads LZW codes of variable length, least significant bits first, from sub-blocks.
struct CodeReader<'a> {
    encoded: &'a [u8],
    at: usize,
    /// The remaining bytes of the sub-block.
    block: usize,
    bits: u32,
    count: u32,
}

impl<'a> CodeReader<'a> {
    fn new(encoded: &'a [u8], at: usize) -> Self {
        CodeReader { encoded, at, block: 0, bits: 0, count: 0 }
    }

    /// The next code; `None` at the end of the data.
    #[inline]
    fn next(&mut self, length: u32) -> Option<usize> {
        while self.count < length {
            if self.block == 0 {
                self.block = usize::from(*self.encoded.get(self.at)?);
                if self.block == 0 {
                    return None;
                }
                self.at += 1;
            }
            self.bits |= u32::from(*self.encoded.get(self.at)?) << self.count;
            self.at += 1;
            self.block -= 1;
            self.count += 8;
        }
        let code = self.bits & ((1 << length) - 1);
        self.bits >>= length;
        self.count -= length;
        Some(code as usize)
    }
}

/// The LZW table: the output position and length of the string of each code. Each new string is the
/// previous string and one more index: the first index of the string that follows.
struct LzwTable(Box<[(usize, usize); MAX_CODES]>);

impl Default for LzwTable {
    fn default() -> Self {
        LzwTable(Box::new([(0, 0); MAX_CODES]))
    }
}

impl LzwTable {
    /// Decodes into `pixels`. An error includes the number of decoded pixels.
    fn decode(
        &mut self,
        mut codes: CodeReader<'_>,
        min_code_size: u32,
        pixels: &mut [u8],
    ) -> Result<(), (usize, Error)> {
        let LzwTable(strings) = self;
        let clear = 1 << min_code_size;
        let end = clear + 1;
        // The next unused code, the code length in bits, and the previous string.
        let (mut next, mut length) = (end + 1, min_code_size + 1);
        let mut last: Option<(usize, usize)> = None;
        let mut at = 0;
        while at < pixels.len() {
            let code = match codes.next(length) {
                Some(code) if code == clear => {
                    (next, length, last) = (end + 1, min_code_size + 1, None);
                    continue;
                }
                Some(code) if code != end => code,
                _ => {
                    let message = format!(
                        "truncated GIF: the image data end after {at} of {} pixels",
                        pixels.len()
                    );
                    let error = Error::new(ErrorKind::Truncated, message);
                    return Err((at, error.with_offset(codes.at as u64)));
                }
            };
            // A code may denote the string that it is about to define.
            let known = code < clear || code < next || (code == next && last.is_some());
            let grows = last.filter(|_| next < MAX_CODES);
            if !known || (code == next && grows.is_none()) {
                let message = format!("corrupt GIF: undefined LZW code {code}");
                let error = Error::new(ErrorKind::Corrupt, message);
                return Err((at, error.with_offset(codes.at as u64)));
            }
            if let Some((start, count)) = grows {
                strings[next] = (start, count + 1);
                next += 1;
                if next == 1 << length && length < MAX_CODE_BITS {
                    length += 1;
                }
            }
            let start = at;
            if code < clear {
                pixels[at] = code as u8;
                at += 1;
            } else {
                let (from, count) = strings[code];
                for offset in 0..count.min(pixels.len() - at) {
                    // Byte by byte: a string may overlap its destination.
                    pixels[at] = pixels[from + offset];
                    at += 1;
                }
            }
            last = Some((start, at - start));
        }
        Ok(())
    }
}

/// Counts the frames. Counting stops at a corrupt block: only the first frame is decoded, and its
/// decoder reports corruption.
fn check_frames(encoded: &[u8], limits: &Limits) -> Result<()> {
    let Some(&flags) = encoded.get(SCREEN_BYTES - 3) else { return Ok(()) };
    let (mut at, mut frames) = (SCREEN_BYTES + palette_bytes(flags), 0);
    loop {
        at += match encoded.get(at) {
            // The label precedes the sub-blocks.
            Some(&EXTENSION_INTRODUCER) => 2,
            Some(&IMAGE_SEPARATOR) => {
                frames += 1;
                limits.check_frames(frames)?;
                let Some(&flags) = encoded.get(at + 9) else { return Ok(()) };
                // The descriptor, the local colour table, and the LZW minimum code size.
                IMAGE_DESCRIPTOR_BYTES + palette_bytes(flags) + 1
            }
            _ => return Ok(()),
        };
        match after_blocks(encoded, at) {
            Some(after) => at = after,
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interlaced_rows_have_the_order_of_the_specification() {
        for height in 0..40 {
            let frame = FrameRect { left: 0, top: 0, width: 1, height, interlaced: true };
            // The order of interlaced rows: GIF89a, appendix E.
            let passes = [(0, 8), (4, 8), (2, 4), (1, 2)];
            let order = passes.into_iter().flat_map(|(from, by)| (from..height).step_by(by));
            for (stored, line) in order.enumerate() {
                assert_eq!(frame.stored_row(line), stored, "row {line} of {height}");
            }
        }
    }
}
