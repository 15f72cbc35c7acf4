//! The first frame of a JPEG XL image, by the crate `jxl-oxide`.

use std::error::Error as StdError;

use jxl_oxide::{AllocTracker, InitializeResult, JxlImage, JxlThreadPool, PixelFormat};
use spdl_core::{Error, ErrorKind, Result};

use super::adapter::{DecodeJob, FormatReader, reserve};
use super::convert::PixelLayout;
use super::errors;
use crate::image::{Decoded, ImageInfo, Limits, Orientation, Size};

const CODESTREAM: &[u8] = &[0xFF, 0x0A];
const CONTAINER: &[u8] = b"\0\0\0\x0CJXL \r\n\x87\n";
/// Number of bytes passed to the crate between two checks whether the first frame is complete.
const STEP: usize = 1 << 12;

/// JPEG XL.
#[derive(Default)]
pub(super) struct Jxl {
    /// The pixels of the whole image.
    scratch: Vec<u8>,
}

/// A file whose header was parsed.
pub(super) struct JxlFile<'a> {
    image: JxlImage,
    rest: &'a [u8],
}

impl FormatReader for Jxl {
    const NAME: &'static str = "jxl";
    type File<'a> = JxlFile<'a>;

    fn sniff(head: &[u8]) -> bool {
        head.starts_with(CODESTREAM) || head.starts_with(CONTAINER)
    }

    fn open<'a>(encoded: &'a [u8], limits: &Limits) -> Result<(JxlFile<'a>, ImageInfo)> {
        let bytes = usize::try_from(limits.bytes()).unwrap_or(usize::MAX);
        let mut image = JxlImage::builder()
            .pool(JxlThreadPool::none())
            .alloc_tracker(AllocTracker::with_limit(bytes))
            .build_uninit();
        let mut at = 0;
        loop {
            let until = encoded.len().min(at + STEP);
            if until == at {
                return Err(truncated(encoded.len()));
            }
            let used = image.feed_bytes(&encoded[at..until]).map_err(error)?;
            if used == 0 {
                return Err(truncated(encoded.len()));
            }
            at += used;
            match image.try_init().map_err(error)? {
                InitializeResult::NeedMoreData(more) => image = more,
                InitializeResult::Initialized(image) => {
                    // The crate applies the orientation itself.
                    let size = Size::new(image.width(), image.height());
                    let info = ImageInfo::new(size, Orientation::Upright);
                    return Ok((JxlFile { image, rest: &encoded[at..] }, info));
                }
            }
        }
    }

    fn decode(&mut self, file: JxlFile<'_>, job: DecodeJob<'_>) -> Result<Decoded> {
        let JxlFile { mut image, mut rest } = file;
        let pixel = match image.pixel_format() {
            PixelFormat::Gray | PixelFormat::Graya => PixelLayout::Grey(1),
            PixelFormat::Rgb | PixelFormat::Rgba => PixelLayout::Rgb(3),
            other => {
                let message =
                    format!("unsupported JPEG XL pixel format {other:?}: expected grey or RGB");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        };
        while image.num_loaded_keyframes() == 0 {
            if image.is_loading_done() || rest.is_empty() {
                return Err(truncated(job.encoded.len()));
            }
            let used = image.feed_bytes(&rest[..rest.len().min(STEP)]).map_err(error)?;
            if used == 0 {
                return Err(truncated(job.encoded.len()));
            }
            rest = &rest[used..];
            job.limits.check_frames(image.num_loaded_frames() as u64)?;
        }
        // The crate computes with up to four channels of `f32`.
        let bytes = job.info.size.pixels() * pixel.bytes() as u64;
        let floats = job.info.size.pixels() * 4 * size_of::<f32>() as u64;
        job.limits.check_bytes(floats + bytes, job.info.size)?;
        let frame = image.render_frame(0).map_err(error)?;
        let mut stream = frame.stream_no_alpha();
        let found = (Size::new(stream.width(), stream.height()), stream.channels() as usize);
        if found != (job.info.size, pixel.bytes()) {
            return Err(errors::corrupt(
                Self::NAME,
                format!(
                    "the first frame has size and channels {found:?}, but the image size is {}",
                    job.info.size
                ),
            ));
        }
        let limits = job.limits.after(floats, job.info.size)?;
        reserve(&mut self.scratch, bytes, &limits, job.info.size)?;
        stream.write_to_buffer::<u8>(&mut self.scratch);
        let decoded = job.done();
        pixel.copy_region(&self.scratch, job.info.size, job.region, job.out);
        Ok(decoded)
    }

    fn scratch_bytes(&self) -> usize {
        self.scratch.capacity()
    }
}

fn truncated(length: usize) -> Error {
    Error::new(
        ErrorKind::Truncated,
        "truncated JPEG XL: the data end before the first frame is complete",
    )
    .with_offset(length as u64)
}

fn error(error: Box<dyn StdError + Send + Sync>) -> Error {
    // The underlying errors come from several crates and have no common type, so their texts are
    // searched.
    let words = error.to_string();
    if words.contains("out of memory") || words.contains("too large") {
        errors::limit_exceeded(Jxl::NAME)
    } else if words.contains("not supported") || words.contains("unsupported") {
        errors::unsupported(Jxl::NAME, words)
    } else {
        errors::corrupt(Jxl::NAME, words)
    }
}
