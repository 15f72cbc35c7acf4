//! GIF: the first frame on its screen, by a reader of our own.
//!
//! The layout is that of the GIF89a specification. As all readers do, bytes between blocks that
//! start none are passed over, and what follows the last pixel of the frame is not looked at: an end
//! code, the empty block behind the data and the trailer may be missing.

use spdl_core::{Error, ErrorKind, Result};

use super::frame::{Format, Job, reserve};
use crate::image::{CHANNELS, Decoded, ImageInfo, Limits, Orientation, Size};

const EXTENSION: u8 = 0x21;
const IMAGE: u8 = 0x2C;
const TRAILER: u8 = 0x3B;
/// The label of the extension that tells the transparent colour.
const GRAPHIC_CONTROL: u8 = 0xF9;
/// The signature and the logical screen.
const SCREEN_BYTES: usize = 13;
/// An image descriptor, with its first byte.
const DESCRIPTOR_BYTES: usize = 10;
/// The longest code, and how many there are of that length.
const MAX_CODE_BITS: u32 = 12;
const MAX_CODES: usize = 1 << MAX_CODE_BITS;

/// GIF, the first frame.
#[derive(Default)]
pub(super) struct Gif {
    /// The palette indices of the frame.
    scratch: Vec<u8>,
    strings: Strings,
}

/// A file up to its first frame's pixels.
pub(super) struct Opened<'a> {
    place: Place,
    /// Empty where the file has none.
    palette: &'a [[u8; CHANNELS]],
    transparent: Option<u8>,
    /// The bits of a pixel, as the data tell them.
    pixel_bits: u32,
    /// Where the blocks of the data start.
    data: usize,
}

/// The frame's place on the screen.
#[derive(Clone, Copy)]
struct Place {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    interlaced: bool,
}

impl Format for Gif {
    const NAME: &'static str = "gif";
    type File<'a> = Opened<'a>;

    fn sniff(head: &[u8]) -> bool {
        head.starts_with(b"GIF87a") || head.starts_with(b"GIF89a")
    }

    fn open<'a>(encoded: &'a [u8], limits: &Limits) -> Result<(Opened<'a>, ImageInfo)> {
        check_frames(encoded, limits)?;
        Opened::read(encoded)
    }

    fn inspect(encoded: &[u8], _: &Limits) -> Result<ImageInfo> {
        // Frames are counted where one is decoded.
        Opened::read(encoded).map(|(_, info)| info)
    }

    fn decode(&mut self, file: Opened<'_>, mut job: Job<'_>) -> Result<Decoded> {
        let Opened { place, palette, transparent, pixel_bits, data } = file;
        let Gif { scratch, strings } = self;
        reserve(scratch, (place.width * place.height) as u64, job.limits, job.info.size)?;
        let mut cut = None;
        let codes = Codes::new(job.encoded, data);
        if let Err((pixels, reason)) = strings.decode(codes, pixel_bits, scratch) {
            let rows = pixels / place.width;
            if place.interlaced || !job.may_be_partial(&reason) || rows == 0 {
                return Err(reason);
            }
            cut = Some(((place.top + rows) as u32, reason));
        }

        // Without a palette an index is a grey; one beyond the palette is black.
        let mut colors: [[u8; CHANNELS]; 256] = match palette {
            [] => std::array::from_fn(|index| [index as u8; CHANNELS]),
            _ => [[0; CHANNELS]; 256],
        };
        colors[..palette.len()].copy_from_slice(palette);
        // What the frame does not cover has the transparent colour; without one, the first.
        let background = colors[usize::from(transparent.unwrap_or(0))];

        let columns = job.columns();
        for row in 0..job.region.height {
            let y = (job.region.top + row) as usize;
            let source = y
                .checked_sub(place.top)
                .filter(|&line| line < place.height)
                .map(|line| &scratch[place.stored_line(line) * place.width..][..place.width]);
            let (pixels, _) = job.out.row_mut(row).as_chunks_mut::<CHANNELS>();
            for (x, pixel) in columns.clone().zip(pixels) {
                let index = x.checked_sub(place.left).and_then(|column| source?.get(column));
                *pixel = index.map_or(background, |&index| colors[usize::from(index)]);
            }
        }
        match cut {
            Some((rows, reason)) => job.ended_after(rows, reason),
            None => Ok(job.done()),
        }
    }

    fn scratch_bytes(&self) -> usize {
        self.scratch.capacity()
    }
}

impl<'a> Opened<'a> {
    /// Reads up to the first frame's data.
    fn read(encoded: &'a [u8]) -> Result<(Self, ImageInfo)> {
        let screen_flags = byte(encoded, SCREEN_BYTES - 3)?;
        let (shared, mut at) = palette(encoded, SCREEN_BYTES, screen_flags)?;
        let mut transparent = None;
        loop {
            match byte(encoded, at)? {
                EXTENSION => {
                    if byte(encoded, at + 1)? == GRAPHIC_CONTROL && byte(encoded, at + 2)? >= 4 {
                        let (flags, index) = (byte(encoded, at + 3)?, byte(encoded, at + 6)?);
                        transparent = (flags & 1 == 1).then_some(index);
                    }
                    at = after_blocks(encoded, at + 2).ok_or_else(|| ends_early(encoded))?;
                }
                IMAGE => break,
                TRAILER => {
                    let message = "the GIF holds no frame; expected one at least";
                    return Err(Error::new(ErrorKind::Corrupt, message).with_offset(at as u64));
                }
                _ => at += 1,
            }
        }
        let flags = byte(encoded, at + 9)?;
        let place = Place {
            left: number(encoded, at + 1)?,
            top: number(encoded, at + 3)?,
            width: number(encoded, at + 5)?,
            height: number(encoded, at + 7)?,
            interlaced: flags & 0x40 != 0,
        };
        if place.width == 0 || place.height == 0 {
            let message = format!("a GIF frame of {} by {} pixels", place.width, place.height);
            return Err(Error::new(ErrorKind::Corrupt, message).with_offset(at as u64));
        }
        let (own, at) = palette(encoded, at + DESCRIPTOR_BYTES, flags)?;
        let pixel_bits = byte(encoded, at)?;
        // Two colours take two bits by the specification; fewer are met, and mean what they say.
        if pixel_bits > 8 {
            let message = format!("GIF pixels of {pixel_bits} bits; expected 8 at most");
            return Err(Error::new(ErrorKind::Corrupt, message).with_offset(at as u64));
        }
        let screen = Size::new(number(encoded, 6)? as u32, number(encoded, 8)? as u32);
        // A frame may be larger than the screen; the screen then grows, as in browsers.
        let size = Size::new(
            screen.width.max((place.left + place.width) as u32),
            screen.height.max((place.top + place.height) as u32),
        );
        let file = Opened {
            place,
            palette: if own.is_empty() { shared } else { own },
            transparent,
            pixel_bits: pixel_bits.into(),
            data: at + 1,
        };
        Ok((file, ImageInfo::new(size, Orientation::Upright)))
    }
}

impl Place {
    /// Where a row of the frame lies among those that are stored: every eighth comes first, then
    /// those in the middle between them, and so on.
    fn stored_line(&self, line: usize) -> usize {
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

/// The palette of the screen or of a frame, and what follows it.
fn palette(encoded: &[u8], at: usize, flags: u8) -> Result<(&[[u8; CHANNELS]], usize)> {
    let end = at + palette_bytes(flags);
    let bytes = encoded.get(at..end).ok_or_else(|| ends_early(encoded))?;
    Ok((bytes.as_chunks().0, end))
}

fn palette_bytes(flags: u8) -> usize {
    if flags & 0x80 == 0 { 0 } else { CHANNELS << ((flags & 7) + 1) }
}

/// What follows the blocks that start at `at`: each up to 255 bytes long, the last one empty.
/// `None` where the file ends before.
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
    encoded.get(at).copied().ok_or_else(|| ends_early(encoded))
}

fn number(encoded: &[u8], at: usize) -> Result<usize> {
    Ok(usize::from(u16::from_le_bytes([byte(encoded, at)?, byte(encoded, at + 1)?])))
}

fn ends_early(encoded: &[u8]) -> Error {
    Error::new(ErrorKind::Truncated, "the GIF ends before its first frame's pixels")
        .with_offset(encoded.len() as u64)
}

/// Reads codes of varying length, lowest bits first, from blocks.
struct Codes<'a> {
    encoded: &'a [u8],
    at: usize,
    /// How many bytes are left of the block.
    block: usize,
    bits: u32,
    count: u32,
}

impl<'a> Codes<'a> {
    fn new(encoded: &'a [u8], at: usize) -> Self {
        Codes { encoded, at, block: 0, bits: 0, count: 0 }
    }

    /// The next code; `None` where the data end.
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

/// Where the string that each code stands for was written first: its start and its length. Each is
/// the one before it with a byte more, and that byte is the first of what was written next.
struct Strings(Box<[(usize, usize); MAX_CODES]>);

impl Default for Strings {
    fn default() -> Self {
        Strings(Box::new([(0, 0); MAX_CODES]))
    }
}

impl Strings {
    /// Fills `pixels`. Where that fails, says how many were found.
    fn decode(
        &mut self,
        mut codes: Codes<'_>,
        pixel_bits: u32,
        pixels: &mut [u8],
    ) -> Result<(), (usize, Error)> {
        let Strings(strings) = self;
        let clear = 1 << pixel_bits;
        let end = clear + 1;
        // The code that the next string gets, the length of codes, and the last string.
        let (mut next, mut length) = (end + 1, pixel_bits + 1);
        let mut last: Option<(usize, usize)> = None;
        let mut at = 0;
        while at < pixels.len() {
            let code = match codes.next(length) {
                Some(code) if code == clear => {
                    (next, length, last) = (end + 1, pixel_bits + 1, None);
                    continue;
                }
                Some(code) if code != end => code,
                _ => {
                    let message = format!("the GIF data end after {at} of {} pixels", pixels.len());
                    let error = Error::new(ErrorKind::Truncated, message);
                    return Err((at, error.with_offset(codes.at as u64)));
                }
            };
            // A code may mean the string that it makes known itself.
            let known = code < clear || code < next || (code == next && last.is_some());
            let grows = last.filter(|_| next < MAX_CODES);
            if !known || (code == next && grows.is_none()) {
                let message = format!("the GIF data hold the code {code}, which nothing defines");
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
                    // Byte by byte, for a string may go on into what it writes.
                    pixels[at] = pixels[from + offset];
                    at += 1;
                }
            }
            last = Some((start, at - start));
        }
        Ok(())
    }
}

/// Counts the frames, by walking over their blocks. Where those are damaged it stops: only the
/// first frame is of interest, and its decoder judges that.
fn check_frames(encoded: &[u8], limits: &Limits) -> Result<()> {
    let Some(&flags) = encoded.get(SCREEN_BYTES - 3) else { return Ok(()) };
    let (mut at, mut frames) = (SCREEN_BYTES + palette_bytes(flags), 0);
    loop {
        at += match encoded.get(at) {
            // The label comes first.
            Some(&EXTENSION) => 2,
            Some(&IMAGE) => {
                frames += 1;
                limits.check_frames(frames)?;
                let Some(&flags) = encoded.get(at + 9) else { return Ok(()) };
                // The descriptor, its palette, and the size of the first codes.
                DESCRIPTOR_BYTES + palette_bytes(flags) + 1
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
    fn interlaced_rows_lie_in_the_order_of_the_specification() {
        for height in 0..40 {
            let place = Place { left: 0, top: 0, width: 1, height, interlaced: true };
            // GIF89a, appendix E.
            let passes = [(0, 8), (4, 8), (2, 4), (1, 2)];
            let order = passes.into_iter().flat_map(|(from, by)| (from..height).step_by(by));
            for (stored, line) in order.enumerate() {
                assert_eq!(place.stored_line(line), stored, "row {line} of {height}");
            }
        }
    }
}
