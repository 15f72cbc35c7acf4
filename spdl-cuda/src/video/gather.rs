//! Frames that lie one by one become one array, as they are or cropped.

use std::sync::Arc;

use spdl_core::memory::{DeviceMemory, Upload};
use spdl_core::{Error, ErrorKind, Result};

use super::engine::NvDec;
use super::frame::VideoFrame;
use crate::driver::{DeviceAddress, Memcpy2D};
use crate::pixels::PixelFormat;
use crate::runtime::{CopyFence, CudaMemory, DeviceInner, Event};

/// How many columns and rows are cut off on each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCrop {
    /// From the left.
    pub left: u32,
    /// From the top.
    pub top: u32,
    /// From the right.
    pub right: u32,
    /// From the bottom.
    pub bottom: u32,
}

impl FrameCrop {
    /// What is left of a frame of so many columns and rows.
    ///
    /// # Errors
    /// `InvalidArgument` where that is nothing.
    pub fn size(&self, (width, height): (u32, u32)) -> Result<(u32, u32)> {
        let rest = |all: u32, first: u32, last: u32| {
            all.checked_sub(first).and_then(|rest| rest.checked_sub(last)).filter(|rest| *rest > 0)
        };
        let (columns, rows) =
            (rest(width, self.left, self.right), rest(height, self.top, self.bottom));
        columns.zip(rows).ok_or_else(|| {
            let FrameCrop { left, top, right, bottom } = *self;
            let message = format!(
                "nothing is left of a frame of {width} x {height} pixels without {left} columns at the \
                 left, {right} at the right, {top} rows at the top and {bottom} at the bottom"
            );
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }
}

impl NvDec {
    /// Starts to copy frames of NV12 or P016 into one array, and returns at once: luma, and below it half as
    /// many rows of Cb and Cr side by side, all of the width that is left; frame behind frame. The frames'
    /// own memory is free when they are copied.
    ///
    /// # Errors
    /// `InvalidArgument` for no frame, for frames that differ, for a crop that leaves nothing or begins at an
    /// odd column or row; `Unsupported` for frames of another format, and where an odd number of columns or
    /// rows is left; `LimitExceeded` where the device has no memory for it; what the driver says.
    pub fn gather(&self, frames: &[VideoFrame], crop: FrameCrop) -> Result<Upload> {
        let device = self.device();
        let Some(first) = frames.first() else {
            return Err(invalid("there is no frame to be copied".to_owned()));
        };
        let (width, height) = checked_size(first, crop)?;
        let is_alike = |frame: &VideoFrame| {
            (frame.format, frame.width, frame.height) == (first.format, first.width, first.height)
        };
        if let Some(other) = frames.iter().find(|frame| !is_alike(frame)) {
            return Err(invalid(format!(
                "frame {} has {} x {} pixels of {:?}, and frame {} has {} x {} of {:?}",
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
            return Err(invalid("a frame lies on another device".to_owned()));
        }
        let sample = first.format.sample_bytes() as usize;
        let (row, rows) = (width as usize * sample, height as usize / 2 * 3);
        let frame_bytes = row.checked_mul(rows);
        let bytes = frame_bytes.and_then(|bytes| bytes.checked_mul(frames.len()));
        let (Some(frame_bytes), Some(bytes)) = (frame_bytes, bytes) else {
            let message = "so many frames are too large for this machine";
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

/// The columns and rows that are left, both even.
fn checked_size(frame: &VideoFrame, crop: FrameCrop) -> Result<(u32, u32)> {
    let (width, height) = crop.size((frame.width, frame.height))?;
    if !matches!(frame.format, PixelFormat::Nv12 | PixelFormat::P016) {
        let message = format!("frames of {:?} are no NV12, whatever is cut off", frame.format);
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    if crop.left % 2 == 1 || crop.top % 2 == 1 {
        return Err(invalid(format!(
            "chroma has half as many samples, so NV12 is cut at even columns and rows, not at {} and {}",
            crop.left, crop.top
        )));
    }
    if width % 2 == 1 || height % 2 == 1 {
        let message = format!("{width} x {height} pixels of NV12 are no array, as a side is odd");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok((width, height))
}

/// Both planes of a frame to where they belong: rows of `row` bytes, `height` of them for luma.
fn plane_copies(
    frame: &VideoFrame,
    crop: FrameCrop,
    (row, height): (usize, usize),
    to: DeviceAddress,
) -> [Memcpy2D; 2] {
    let sample = frame.format.sample_bytes() as usize;
    let from = frame.memory.address();
    // A pair of Cb and Cr takes as many bytes as its two samples of luma.
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

/// Copies out of frames into memory of so many bytes, behind what brings the frames.
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
            // SAFETY: the rows lie in the frame, whose memory is used for nothing else before the event
            // behind this, and in the slab, which is only written and freed behind it.
            unsafe { driver.copy_rows(&copy, stream)? };
        }
        driver.record_event(done.handle(), stream)
    });
    if let Err(error) = started {
        let is_over = uploads.synchronize();
        slabs.recycle_after_failure(output, is_over && has_waited);
        if !is_over {
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
