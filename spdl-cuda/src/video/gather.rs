//! Copies whole or cropped frames into one array.

use std::sync::Arc;

use spdl_core::memory::{DeviceMemory, Upload};
use spdl_core::{Error, ErrorKind, Result};

use super::frame::VideoFrame;
use super::nvdec::NvDec;
use crate::driver::{DeviceAddress, Memcpy2D};
use crate::pixels::PixelFormat;
use crate::runtime::{CopyFence, CudaMemory, DeviceInner, Event};

/// The number of columns and rows to crop on each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCrop {
    /// Columns on the left.
    pub left: u32,
    /// Rows at the top.
    pub top: u32,
    /// Columns on the right.
    pub right: u32,
    /// Rows at the bottom.
    pub bottom: u32,
}

impl FrameCrop {
    /// Width and height of a cropped frame.
    ///
    /// # Errors
    /// `InvalidArgument` if no pixels remain.
    pub fn size(&self, (width, height): (u32, u32)) -> Result<(u32, u32)> {
        let rest = |all: u32, first: u32, last: u32| {
            all.checked_sub(first).and_then(|rest| rest.checked_sub(last)).filter(|rest| *rest > 0)
        };
        let (columns, rows) =
            (rest(width, self.left, self.right), rest(height, self.top, self.bottom));
        columns.zip(rows).ok_or_else(|| {
            let FrameCrop { left, top, right, bottom } = *self;
            let message = format!(
                "invalid crop of a frame of {width}x{height} pixels: no pixels remain without {left} columns \
                 on the left, {right} on the right, {top} rows at the top and {bottom} at the bottom"
            );
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }
}

impl NvDec {
    /// Queues copies of NV12 or P016 frames into one array, and returns immediately.
    ///
    /// In the array, each frame has its luma rows, followed by half as many rows of interleaved Cb
    /// and Cr. All rows have the cropped width. The memory of the frames is kept until the copies
    /// complete.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty list, for frames of different formats or sizes or of another
    /// device, and for a crop that leaves no pixels or starts at an odd column or row;
    /// `Unsupported` for other pixel formats, and for an odd cropped width or height;
    /// `LimitExceeded` if device memory is exhausted; errors of the driver.
    pub fn gather(&self, frames: &[VideoFrame], crop: FrameCrop) -> Result<Upload> {
        let device = self.device();
        let Some(first) = frames.first() else {
            return Err(invalid("empty list of frames: expected at least one".to_owned()));
        };
        let (width, height) = checked_size(first, crop)?;
        let is_alike = |frame: &VideoFrame| {
            (frame.format, frame.width, frame.height) == (first.format, first.width, first.height)
        };
        if let Some(other) = frames.iter().find(|frame| !is_alike(frame)) {
            return Err(invalid(format!(
                "frames differ in size or pixel format: frame {} has {}x{} pixels of {:?}, and \
             frame {} has {}x{} of {:?}",
                first.number,
                first.width,
                first.height,
                first.format,
                other.number,
                other.width,
                other.height,
                other.format
            )));
        }
        if frames.iter().any(|frame| !frame.memory.is_of(device)) {
            return Err(invalid("a frame is not on the device of this `NvDec`".to_owned()));
        }
        let sample = first.format.sample_bytes() as usize;
        let (row, rows) = (width as usize * sample, height as usize / 2 * 3);
        let frame_bytes = row.checked_mul(rows);
        let bytes = frame_bytes.and_then(|bytes| bytes.checked_mul(frames.len()));
        let (Some(frame_bytes), Some(bytes)) = (frame_bytes, bytes) else {
            let message = "the array of frames exceeds the address space";
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        };
        let copies = |to: DeviceAddress| {
            let frames = frames.iter().enumerate();
            let copies = frames.flat_map(|(at, frame)| {
                let start = DeviceAddress(to.0 + (at * frame_bytes) as u64);
                plane_copies(frame, crop, (row, height as usize), start)
            });
            copies.collect::<Vec<_>>()
        };
        let (memory, copied) = copy(device, frames, bytes, copies)?;
        Ok(Upload { memory: Box::new(memory), ready: Box::new(CopyFence(copied)) })
    }
}

/// Width and height after the crop; both must be even.
fn checked_size(frame: &VideoFrame, crop: FrameCrop) -> Result<(u32, u32)> {
    let (width, height) = crop.size((frame.width, frame.height))?;
    if !matches!(frame.format, PixelFormat::Nv12 | PixelFormat::P016) {
        let message = format!("unsupported pixel format {:?}: expected NV12 or P016", frame.format);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if crop.left % 2 == 1 || crop.top % 2 == 1 {
        return Err(invalid(format!(
            "invalid crop at column {} and row {}: expected even numbers, because \
                 chroma has half the resolution",
            crop.left, crop.top
        )));
    }
    if width % 2 == 1 || height % 2 == 1 {
        let message = format!(
            "unsupported size {width}x{height}: expected even width and height, because chroma \
             has half the resolution"
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok((width, height))
}

/// The copies of both planes of a frame, with rows of `row` bytes and `height` luma rows.
fn plane_copies(
    frame: &VideoFrame,
    crop: FrameCrop,
    (row, height): (usize, usize),
    to: DeviceAddress,
) -> [Memcpy2D; 2] {
    let sample = frame.format.sample_bytes() as usize;
    let from = frame.memory.address();
    // A pair of Cb and Cr has as many bytes as two luma samples.
    [(0, crop.top as usize, height, 0), (1, crop.top as usize / 2, height / 2, height)].map(
        |(plane, above, rows, first_row)| {
            let plane = frame.planes[plane];
            let start = from + plane.offset + above * plane.pitch + crop.left as usize * sample;
            Memcpy2D {
                from: DeviceAddress(start as u64),
                from_pitch: plane.pitch,
                to: DeviceAddress(to.0 + (first_row * row) as u64),
                to_pitch: row,
                row_bytes: row,
                rows,
            }
        },
    )
}

/// Queues copies from frames into new memory, after the work that writes the frames.
fn copy(
    device: &Arc<DeviceInner>,
    frames: &[VideoFrame],
    bytes: usize,
    copies: impl Fn(DeviceAddress) -> Vec<Memcpy2D>,
) -> Result<(CudaMemory, Arc<Event>)> {
    let doing = "copy frames into one array";
    let DeviceInner { context, slabs, uploads, .. } = &**device;
    context.check(doing)?;
    let done = Arc::new(Event::new(context).map_err(|error| context.error(error, doing))?);
    let mut output = slabs.take(bytes)?;
    let stream = uploads.handle();
    let mut has_waited = false;
    let started = context.attempt(|driver| {
        for event in output.pending_for(stream) {
            driver.wait_event(stream, event.handle())?;
        }
        has_waited = true;
        for event in frames.iter().map(|frame| frame.memory.ready()) {
            driver.wait_event(stream, event.handle())?;
        }
        for copy in copies(output.memory.address) {
            // SAFETY: the rows are inside the frame and inside the slab. Both exist until `done`
            // completes, and are not written before.
            unsafe { driver.copy_rows(&copy, stream)? };
        }
        driver.record_event(done.handle(), stream)
    });
    if let Err(error) = started {
        let is_done = uploads.synchronize();
        slabs.recycle_after_failure(output, is_done && has_waited);
        if !is_done {
            frames.iter().for_each(|frame| frame.memory.record_unknown_use());
        }
        return Err(context.error(error, doing));
    }
    frames.iter().for_each(|frame| frame.memory.record_use(&done));
    output.record_write(stream, &done);
    Ok((CudaMemory::new(Arc::clone(device), output, bytes, Arc::clone(&done)), done))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
