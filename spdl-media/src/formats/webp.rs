//! WebP through the `image-webp` crate.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};
use spdl_core::{Error, ErrorKind, Result};

use super::convert::Pixel;
use super::failure;
use super::frame::{Format, Job, reserve};
use crate::image::{Decoded, ImageInfo, Limits, Orientation, Size, exif};

/// What a pixel takes in the crate while it is decoded: twice RGBA. It allocates that without asking
/// whether there is memory.
const BYTES_PER_PIXEL: u64 = 4 + 4;

/// WebP, lossy and lossless.
#[derive(Default)]
pub(super) struct Webp {
    /// The whole image, where it cannot be decoded straight into the caller's memory.
    scratch: Vec<u8>,
}

impl Format for Webp {
    const NAME: &'static str = "webp";
    type File<'a> = WebPDecoder<Cursor<&'a [u8]>>;

    fn sniff(head: &[u8]) -> bool {
        head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP")
    }

    fn open<'a>(encoded: &'a [u8], limits: &Limits) -> Result<(Self::File<'a>, ImageInfo)> {
        // The crate takes missing lossless data for zeros.
        if let Some(length) = encoded.get(4..8).and_then(|bytes| bytes.first_chunk()) {
            let expected = u64::from(u32::from_le_bytes(*length)) + 8;
            if (encoded.len() as u64) < expected {
                return Err(Error::new(
                    ErrorKind::Truncated,
                    format!("expected {expected} bytes of webp data"),
                )
                .with_offset(encoded.len() as u64));
            }
        }
        check_frames(encoded, limits)?;
        let mut decoder = WebPDecoder::new(Cursor::new(encoded)).map_err(error)?;
        decoder.set_memory_limit(usize::try_from(limits.bytes()).unwrap_or(usize::MAX));
        let (width, height) = decoder.dimensions();
        let size = Size::new(width, height);
        limits.check_size(size)?;
        let orientation = match decoder.exif_metadata() {
            Ok(Some(block)) => exif::orientation(&block),
            Ok(None) | Err(_) => Orientation::Upright,
        };
        Ok((decoder, ImageInfo::new(size, orientation)))
    }

    fn decode(&mut self, mut decoder: Self::File<'_>, mut job: Job<'_>) -> Result<Decoded> {
        let needed = job.info.size.pixels().saturating_mul(BYTES_PER_PIXEL);
        let limits = job.limits.after(needed, job.info.size)?;
        let decoded = job.done();
        let pixel = Pixel::Rgb(if decoder.has_alpha() { 4 } else { 3 });
        if let Some(target) = job.whole_output().filter(|_| pixel == Pixel::Rgb(3)) {
            decoder.read_image(target).map_err(error)?;
            return Ok(decoded);
        }
        let bytes =
            decoder.output_buffer_size().ok_or_else(|| failure::limit_exceeded(Self::NAME))?;
        reserve(&mut self.scratch, bytes as u64, &limits, job.info.size)?;
        decoder.read_image(&mut self.scratch).map_err(error)?;
        pixel.copy_region(&self.scratch, job.info.size, job.region, job.out);
        Ok(decoded)
    }

    fn scratch_bytes(&self) -> usize {
        self.scratch.capacity()
    }
}

/// Counts the frames, by the chunks that hold them, before the crate walks over all of them.
fn check_frames(encoded: &[u8], limits: &Limits) -> Result<()> {
    const CHUNK_HEADER: usize = 8;
    let (mut at, mut frames) = (12, 0);
    while let Some(header) = encoded.get(at..).and_then(|rest| rest.first_chunk::<CHUNK_HEADER>()) {
        if header.starts_with(b"ANMF") {
            frames += 1;
            limits.check_frames(frames)?;
        }
        let [.., a, b, c, d] = *header;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        // Chunks start at even addresses.
        at = at.saturating_add(CHUNK_HEADER).saturating_add(length.saturating_add(length % 2));
    }
    Ok(())
}

fn error(error: DecodingError) -> Error {
    match error {
        DecodingError::IoError(error) => failure::read_error(Webp::NAME, error),
        DecodingError::MemoryLimitExceeded | DecodingError::ImageTooLarge => {
            failure::limit_exceeded(Webp::NAME)
        }
        error => failure::corrupt(Webp::NAME, error),
    }
}
