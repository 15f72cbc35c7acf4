//! JPEG XL through the `jxl-oxide` crate: the first frame.

use std::error::Error as StdError;

use jxl_oxide::{AllocTracker, InitializeResult, JxlImage, JxlThreadPool, PixelFormat};
use spdl_core::{Error, ErrorKind, Result};

use super::convert::Pixel;
use super::failure;
use super::frame::{Format, Job, reserve};
use crate::image::{Decoded, ImageInfo, Limits, Orientation, Size};

const CODESTREAM: &[u8] = &[0xFF, 0x0A];
const CONTAINER: &[u8] = b"\0\0\0\x0CJXL \r\n\x87\n";
/// How much is read before it is asked whether the first frame is there.
const STEP: usize = 1 << 12;

/// JPEG XL.
#[derive(Default)]
pub(super) struct Jxl {
    /// The whole image.
    scratch: Vec<u8>,
}

/// A file up to where its header was complete.
pub(super) struct Opened<'a> {
    image: JxlImage,
    rest: &'a [u8],
}

impl Format for Jxl {
    const NAME: &'static str = "jxl";
    type File<'a> = Opened<'a>;

    fn sniff(head: &[u8]) -> bool {
        head.starts_with(CODESTREAM) || head.starts_with(CONTAINER)
    }

    fn open<'a>(encoded: &'a [u8], limits: &Limits) -> Result<(Opened<'a>, ImageInfo)> {
        let bytes = usize::try_from(limits.bytes()).unwrap_or(usize::MAX);
        let mut image = JxlImage::builder()
            .pool(JxlThreadPool::none())
            .alloc_tracker(AllocTracker::with_limit(bytes))
            .build_uninit();
        let mut at = 0;
        loop {
            let until = encoded.len().min(at + STEP);
            if until == at {
                return Err(cut(encoded.len()));
            }
            let used = image.feed_bytes(&encoded[at..until]).map_err(error)?;
            if used == 0 {
                return Err(cut(encoded.len()));
            }
            at += used;
            match image.try_init().map_err(error)? {
                InitializeResult::NeedMoreData(more) => image = more,
                InitializeResult::Initialized(image) => {
                    // The crate turns pictures upright by itself.
                    let size = Size::new(image.width(), image.height());
                    let info = ImageInfo::new(size, Orientation::Upright);
                    return Ok((Opened { image, rest: &encoded[at..] }, info));
                }
            }
        }
    }

    fn decode(&mut self, file: Opened<'_>, job: Job<'_>) -> Result<Decoded> {
        let Opened { mut image, mut rest } = file;
        let pixel = match image.pixel_format() {
            PixelFormat::Gray | PixelFormat::Graya => Pixel::Grey(1),
            PixelFormat::Rgb | PixelFormat::Rgba => Pixel::Rgb(3),
            other => {
                let message = format!("JPEG XL pixels of the kind {other:?} are not supported");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        };
        while image.num_loaded_keyframes() == 0 {
            if image.is_loading_done() || rest.is_empty() {
                return Err(cut(job.encoded.len()));
            }
            let used = image.feed_bytes(&rest[..rest.len().min(STEP)]).map_err(error)?;
            if used == 0 {
                return Err(cut(job.encoded.len()));
            }
            rest = &rest[used..];
            job.limits.check_frames(image.num_loaded_frames() as u64)?;
        }
        // The crate calculates with floats, of four channels at most.
        let bytes = job.info.size.pixels() * pixel.bytes() as u64;
        let floats = job.info.size.pixels() * 4 * size_of::<f32>() as u64;
        job.limits.check_bytes(floats + bytes, job.info.size)?;
        let frame = image.render_frame(0).map_err(error)?;
        let mut stream = frame.stream_no_alpha();
        let found = (Size::new(stream.width(), stream.height()), stream.channels() as usize);
        if found != (job.info.size, pixel.bytes()) {
            return Err(failure::corrupt(Self::NAME, format!("a frame of {found:?}")));
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

fn cut(length: usize) -> Error {
    Error::new(ErrorKind::Truncated, "the JPEG XL data end early").with_offset(length as u64)
}

fn error(error: Box<dyn StdError + Send + Sync>) -> Error {
    // The kinds of error are those of crates below; their words are what they have in common.
    let words = error.to_string();
    if words.contains("out of memory") || words.contains("too large") {
        failure::limit_exceeded(Jxl::NAME)
    } else if words.contains("not supported") || words.contains("unsupported") {
        failure::unsupported(Jxl::NAME, words)
    } else {
        failure::corrupt(Jxl::NAME, words)
    }
}
