//! WebP by the crate `image-webp`.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};
use spdl_core::{Error, ErrorKind, Result};

use super::adapter::{DecodeJob, FormatReader, reserve};
use super::convert::{PixelLayout, RgbaLayout, RgbaSamples};
use super::errors;
use crate::image::{Decoded, ImageInfo, Limits, Orientation, Size, exif};

/// The bytes per pixel that the crate uses during a decode: RGBA twice. The crate allocates them
/// without checking a limit.
const BYTES_PER_PIXEL: u64 = 4 + 4;

/// WebP, lossy and lossless.
#[derive(Default)]
pub(super) struct Webp {
    /// The pixels of the whole image, if the output is not contiguous RGB of the whole image.
    scratch: Vec<u8>,
}

impl FormatReader for Webp {
    const NAME: &'static str = "webp";
    type File<'a> = WebPDecoder<Cursor<&'a [u8]>>;

    fn sniff(head: &[u8]) -> bool {
        head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP")
    }

    fn open<'a>(encoded: &'a [u8], limits: &Limits) -> Result<(Self::File<'a>, ImageInfo)> {
        // The crate reads missing lossless data as zeros.
        if let Some(length) = encoded.get(4..8).and_then(|bytes| bytes.first_chunk()) {
            let expected = u64::from(u32::from_le_bytes(*length)) + 8;
            if (encoded.len() as u64) < expected {
                return Err(Error::new(
                    ErrorKind::Truncated,
                    format!(
                        "truncated webp: the RIFF header declares {expected} bytes, but the file \
                         has {} bytes",
                        encoded.len()
                    ),
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

    fn decode(&mut self, mut decoder: Self::File<'_>, mut job: DecodeJob<'_>) -> Result<Decoded> {
        let needed = job.info.size.pixels().saturating_mul(BYTES_PER_PIXEL);
        let limits = job.limits.after(needed, job.info.size)?;
        let decoded = job.done();
        let pixel = PixelLayout::Rgb(if decoder.has_alpha() { 4 } else { 3 });
        if let Some(target) = job.whole_output().filter(|_| pixel == PixelLayout::Rgb(3)) {
            decoder.read_image(target).map_err(error)?;
            return Ok(decoded);
        }
        let bytes =
            decoder.output_buffer_size().ok_or_else(|| errors::limit_exceeded(Self::NAME))?;
        reserve(&mut self.scratch, bytes as u64, &limits, job.info.size)?;
        decoder.read_image(&mut self.scratch).map_err(error)?;
        if let (Some(rgba), PixelLayout::Rgb(4)) = (&mut job.rgba, pixel) {
            let layout = RgbaLayout { colors: 3, has_alpha: true, samples: RgbaSamples::Bytes };
            let stride = job.info.size.width as usize * layout.bytes();
            for row in 0..job.region.height {
                let start = (job.region.top + row) as usize * stride
                    + job.region.left as usize * layout.bytes();
                layout.widen_row(&self.scratch[start..], rgba.row_mut(row));
            }
            return Ok(decoded);
        }
        pixel.copy_region(&self.scratch, job.info.size, job.region, job.out);
        Ok(decoded)
    }

    fn scratch_bytes(&self) -> usize {
        self.scratch.capacity()
    }
}

/// Counts the frames by their ANMF chunks, before the crate parses all of them.
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
        // Chunks are padded to even sizes.
        at = at.saturating_add(CHUNK_HEADER).saturating_add(length.saturating_add(length % 2));
    }
    Ok(())
}

fn error(error: DecodingError) -> Error {
    match error {
        DecodingError::IoError(error) => errors::read_error(Webp::NAME, error),
        DecodingError::MemoryLimitExceeded | DecodingError::ImageTooLarge => {
            errors::limit_exceeded(Webp::NAME)
        }
        error => errors::corrupt(Webp::NAME, error),
    }
}
