//! GIF through the `gif` crate: the first frame on its screen.

use std::io::Cursor;
use std::num::NonZeroU64;

use gif::{ColorOutput, DecodeOptions, DecodingError, MemoryLimit};
use spdl_core::{Error, ErrorKind, Result};

use super::failure;
use super::frame::{Format, Job, reserve};
use crate::pixels::CHANNELS;
use crate::{Decoded, ImageInfo, Limits, Orientation, Size};

/// GIF, the first frame.
#[derive(Default)]
pub(super) struct Gif {
    /// The palette indices of the frame.
    scratch: Vec<u8>,
}

/// A file up to its first frame's pixels.
pub(super) struct Opened<'a> {
    decoder: gif::Decoder<Cursor<&'a [u8]>>,
    place: Place,
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
        let mut options = DecodeOptions::new();
        options.set_color_output(ColorOutput::Indexed);
        options.allow_unknown_blocks(true);
        options.check_lzw_end_code(limits.is_strict());
        let bytes = NonZeroU64::new(limits.bytes()).unwrap_or(NonZeroU64::MIN);
        options.set_memory_limit(MemoryLimit::Bytes(bytes));
        let mut decoder = options.read_info(Cursor::new(encoded)).map_err(error)?;
        let screen = Size::new(decoder.width().into(), decoder.height().into());
        let frame = decoder.next_frame_info().map_err(error)?.ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "the GIF holds no frame; expected one at least")
        })?;
        let place = Place {
            left: frame.left.into(),
            top: frame.top.into(),
            width: frame.width.into(),
            height: frame.height.into(),
            interlaced: frame.interlaced,
        };
        // A frame may be larger than the screen; the screen then grows, as in browsers.
        let size = Size::new(
            screen.width.max((place.left + place.width) as u32),
            screen.height.max((place.top + place.height) as u32),
        );
        Ok((Opened { decoder, place }, ImageInfo::new(size, Orientation::Upright)))
    }

    fn decode(&mut self, file: Opened<'_>, mut job: Job<'_>) -> Result<Decoded> {
        let Opened { mut decoder, place } = file;
        reserve(&mut self.scratch, decoder.buffer_size() as u64, job.limits, job.info.size)?;
        let mut cut = None;
        if let Err(reason) = decoder.read_into_buffer(&mut self.scratch).map_err(error) {
            if place.interlaced || !job.may_be_partial(&reason) {
                return Err(reason);
            }
            // Once more from the start, row by row, for to know how many there are.
            decoder = Self::open(job.encoded, job.limits)?.0.decoder;
            let lines = self.scratch.chunks_exact_mut(place.width.max(1)).take(place.height);
            let mut rows = 0;
            for indices in lines {
                if !decoder.fill_buffer(indices).is_ok_and(|filled| filled) {
                    break;
                }
                rows += 1;
            }
            if rows == 0 {
                return Err(reason);
            }
            cut = Some(((place.top + rows) as u32, reason));
        }

        // An index beyond the palette is a grey of that value, and so is each without a palette.
        let mut colors: [[u8; CHANNELS]; 256] =
            std::array::from_fn(|index| [index as u8; CHANNELS]);
        let palette = decoder.palette().unwrap_or(&[]);
        for (color, entry) in colors.iter_mut().zip(palette.as_chunks::<CHANNELS>().0) {
            *color = *entry;
        }
        // What the frame does not cover has the transparent colour; without one, the first.
        let transparent = decoder.current_frame_info().and_then(|frame| frame.transparent);
        let background = colors[usize::from(transparent.unwrap_or(0))];

        let columns = job.columns();
        for row in 0..job.region.height {
            let y = (job.region.top + row) as usize;
            let source = y
                .checked_sub(place.top)
                .filter(|&line| line < place.height)
                .map(|line| &self.scratch[line * place.width..][..place.width]);
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
}

/// Counts the frames, by walking over their blocks. Where those are damaged it stops: only the
/// first frame is of interest, and its decoder judges that.
fn check_frames(encoded: &[u8], limits: &Limits) -> Result<()> {
    const SCREEN: usize = 13;
    const EXTENSION: u8 = 0x21;
    const IMAGE: u8 = 0x2C;
    let palette_bytes = |flags: u8| match flags & 0x80 {
        0 => 0,
        _ => CHANNELS << ((flags & 7) + 1),
    };
    let Some(&flags) = encoded.get(10) else { return Ok(()) };
    let (mut at, mut frames) = (SCREEN + palette_bytes(flags), 0);
    while let Some(&kind) = encoded.get(at) {
        at += match kind {
            // The label comes first.
            EXTENSION => 2,
            IMAGE => {
                frames += 1;
                limits.check_frames(frames)?;
                let Some(&flags) = encoded.get(at + 9) else { return Ok(()) };
                // The descriptor, its palette, and the size of the first codes.
                10 + palette_bytes(flags) + 1
            }
            _ => return Ok(()),
        };
        // Blocks of up to 255 bytes; an empty one is the last.
        while let Some(&length) = encoded.get(at) {
            at += 1 + usize::from(length);
            if length == 0 {
                break;
            }
        }
    }
    Ok(())
}

fn error(error: DecodingError) -> Error {
    match error {
        DecodingError::Io(error) => failure::read_error(Gif::NAME, error),
        DecodingError::OutOfMemory | DecodingError::MemoryLimit => {
            failure::limit_exceeded(Gif::NAME)
        }
        DecodingError::UnexpectedEof => Error::new(ErrorKind::Truncated, "the gif data end early"),
        error => failure::corrupt(Gif::NAME, error),
    }
}
