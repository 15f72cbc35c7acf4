//! Conversion of NV12 frames in an array to RGB or grey.

use spdl_core::memory::Upload;
use spdl_core::{Error, ErrorKind, Result};
use spdl_cuda::kernels::ResizePlan;
use spdl_cuda::pixels::{DevicePlane, PixelFormat, SourceImage};
use spdl_cuda::python::{samples_of, stream_of_array_api};
use spdl_cuda::video::VideoColor;
use spdl_media::{Orientation, Size};

use super::decoders::Decoders;
use super::pixels::{format_of, matrix_of, shape_of};

/// Contiguous frames, each with a luma plane followed by interleaved Cb and Cr.
pub(super) struct Frames {
    /// The byte offset of the first frame.
    pub(super) offset: usize,
    pub(super) count: usize,
    pub(super) width: u32,
    pub(super) height: u32,
    /// Whether samples have 2 bytes, with the value in the most significant bits. Such samples are
    /// converted as samples of 16 bits. For samples of fewer bits, the result is the same in
    /// limited range, and slightly darker in full range.
    pub(super) is_wide: bool,
}

/// Converts frames, after the work queued on a stream so far.
pub(super) fn convert(
    decoders: &Decoders,
    upload: &Upload,
    frames: &Frames,
    color: VideoColor,
    pix_fmt: &str,
    stream: i64,
) -> Result<(Upload, Vec<usize>)> {
    let Frames { offset, count, width, height, is_wide } = *frames;
    let (format, bits) = if is_wide { (PixelFormat::P016, 16) } else { (PixelFormat::Nv12, 8) };
    let sample = format.sample_bytes();
    let pitch = u64::from(width) * sample;
    let luma = pitch * u64::from(height);
    let matrix = matrix_of(color, height, bits)?;
    let size = Size::new(width, height);
    let start = (upload.memory.address() as u64).checked_add(offset as u64);
    let images = (0..count as u64).map(|at| {
        let begin = at.checked_mul(luma / 2 * 3).and_then(|at| start?.checked_add(at));
        let address = begin.ok_or_else(|| {
            let message =
                format!("{count} frames of {width}x{height} pixels exceed the address space");
            Error::new(ErrorKind::InvalidArgument, message)
        })?;
        let planes =
            [DevicePlane { address, pitch }, DevicePlane { address: address + luma, pitch }];
        let image = SourceImage::yuv(format, width, height, &planes, matrix)?;
        Ok((image, ResizePlan::whole(size, Orientation::Upright, size)))
    });
    let images = images.collect::<Result<Vec<_>>>()?;
    let samples = format_of(pix_fmt, (width, height))?;
    let kernels = decoders.kernels()?;
    let after = stream_of_array_api(Some(stream))?;
    let array = samples_of(&decoders.device, &kernels, upload, &images, &samples, after.as_ref())?;
    Ok((array, shape_of(count, &samples)))
}
