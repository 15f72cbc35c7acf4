//! Windows bitmaps through the `image` crate.

use std::borrow::Cow;
use std::io::Cursor;

use image::codecs::bmp::BmpDecoder;
use image::{ColorType, ImageDecoder as _, ImageError};
use spdl_core::{Error, ErrorKind, Result};

use super::convert::Pixel;
use super::failure;
use super::frame::{Format, Job, reserve};
use crate::{Decoded, ImageInfo, Limits, Orientation, Size};

/// Windows bitmaps.
#[derive(Default)]
pub(super) struct Bmp {
    /// The whole image, where it cannot be decoded straight into the caller's memory.
    scratch: Vec<u8>,
}

impl Format for Bmp {
    const NAME: &'static str = "bmp";
    type File<'a> = BmpDecoder<Cursor<Cow<'a, [u8]>>>;

    fn sniff(head: &[u8]) -> bool {
        head.starts_with(b"BM")
    }

    fn open<'a>(encoded: &'a [u8], _: &Limits) -> Result<(Self::File<'a>, ImageInfo)> {
        let decoder = BmpDecoder::new(Cursor::new(Cow::Borrowed(encoded))).map_err(error)?;
        let (width, height) = decoder.dimensions();
        Ok((decoder, ImageInfo::new(Size::new(width, height), Orientation::Upright)))
    }

    fn decode(&mut self, decoder: Self::File<'_>, mut job: Job<'_>) -> Result<Decoded> {
        let reason = match self.read(decoder, &mut job) {
            Ok(()) => return Ok(job.done()),
            Err(reason) => reason,
        };
        let rows = match PlainRows::of(job.encoded, job.info.size) {
            Some(rows) if job.may_be_partial(&reason) => rows,
            _ => return Err(reason),
        };
        // The missing rows are read as black, and not counted.
        let mut filled = job.encoded.to_vec();
        job.limits.check_bytes(rows.end, job.info.size)?;
        filled.resize(rows.end as usize, 0);
        let decoder = BmpDecoder::new(Cursor::new(Cow::Owned(filled))).map_err(error)?;
        self.read(decoder, &mut job)?;
        let available = rows.before(job.encoded.len());
        job.ended_after(available, reason)
    }
}

impl Bmp {
    fn read(&mut self, decoder: <Bmp as Format>::File<'_>, job: &mut Job<'_>) -> Result<()> {
        let pixel = match decoder.color_type() {
            ColorType::L8 => Pixel::Grey(1),
            ColorType::Rgb8 => Pixel::Rgb(3),
            ColorType::Rgba8 => Pixel::Rgb(4),
            other => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("bitmap pixels of the kind {other:?} are not supported"),
                ));
            }
        };
        if let Some(target) = job.whole_output().filter(|_| pixel == Pixel::Rgb(3)) {
            return decoder.read_image(target).map_err(error);
        }
        reserve(&mut self.scratch, decoder.total_bytes(), job.limits, job.info.size)?;
        decoder.read_image(&mut self.scratch).map_err(error)?;
        pixel.copy_region(&self.scratch, job.info.size, job.region, job.out.reborrow());
        Ok(())
    }
}

/// Where the rows of a bitmap lie that is neither compressed nor stored from the bottom up, as most
/// are: of those, what is cut off is the top.
struct PlainRows {
    start: u64,
    row_bytes: u64,
    end: u64,
}

impl PlainRows {
    fn of(encoded: &[u8], size: Size) -> Option<PlainRows> {
        const UNCOMPRESSED: u32 = 0;
        const BIT_FIELDS: u32 = 3;
        let number = |at: usize| {
            encoded.get(at..).and_then(|rest| rest.first_chunk()).copied().map(u32::from_le_bytes)
        };
        let header_bytes = number(14)?;
        let (top_down, compression) = ((number(22)? as i32) < 0, number(30)?);
        if header_bytes < 40 || !top_down || ![UNCOMPRESSED, BIT_FIELDS].contains(&compression) {
            return None;
        }
        let bits = u64::from(number(26)? >> 16);
        let row_bytes = (u64::from(size.width) * bits).div_ceil(32) * 4;
        let start = u64::from(number(10)?);
        let end = start.checked_add(row_bytes.checked_mul(size.height.into())?)?;
        Some(PlainRows { start, row_bytes, end })
    }

    /// How many whole rows lie before this address.
    fn before(&self, address: usize) -> u32 {
        let bytes = (address as u64).saturating_sub(self.start);
        u32::try_from(bytes / self.row_bytes.max(1)).unwrap_or(u32::MAX)
    }
}

fn error(error: ImageError) -> Error {
    match error {
        ImageError::IoError(error) => failure::read_error(Bmp::NAME, error),
        ImageError::Limits(_) => failure::limit_exceeded(Bmp::NAME),
        error @ ImageError::Unsupported(_) => failure::unsupported(Bmp::NAME, error),
        // The crate has a limit of its own, of 65,535 pixels a side.
        error if error.to_string().contains("too large") => failure::limit_exceeded(Bmp::NAME),
        error => failure::corrupt(Bmp::NAME, error),
    }
}
