//! Decoding of videos to arrays of frames on a device.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use pyo3::prelude::*;
use spdl_core::memory::Upload;
use spdl_core::{Error, ErrorKind, Result};
use spdl_cuda::NvDec;
use spdl_cuda::kernels::ResizePlan;
use spdl_cuda::pixels::PixelFormat;
use spdl_cuda::video::{AccessUnits, FrameCrop, IvfFile, VideoCodec, VideoFrame, VideoStream};
use spdl_media::{Rect, Size};

use super::decoders::{Decoders, DeviceDecoders};
use super::driver_handle::DriverHandle;
use super::memory::DeviceMemory;
use super::pixels::{format_of, matrix_of, shape_of};
use crate::interop::error::to_exception;
use crate::interop::wait::without_python;
use crate::operators::bytes_with_message;

/// The signature of IVF files.
const IVF: &[u8] = b"DKIF";

/// Codecs by their names in SPDL and FFmpeg.
const CODECS: [(&str, VideoCodec); 9] = [
    ("h264", VideoCodec::H264),
    ("hevc", VideoCodec::Hevc),
    ("h265", VideoCodec::Hevc),
    ("vp8", VideoCodec::Vp8),
    ("vp9", VideoCodec::Vp9),
    ("av1", VideoCodec::Av1),
    ("mpeg1video", VideoCodec::Mpeg1),
    ("mpeg2video", VideoCodec::Mpeg2),
    ("mpeg4", VideoCodec::Mpeg4),
];

/// A video decoder. Calls from several threads are serialised.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct VideoDecoder {
    video: DriverHandle<Mutex<Video>>,
    codec: VideoCodec,
    decoders: DriverHandle<Decoders>,
}

struct Video {
    stream: VideoStream,
    engine: NvDec,
    /// Decoded frames that the caller has not received.
    frames: VecDeque<Result<VideoFrame>>,
    /// The window of the current video, kept after a failed packet.
    window: FrameWindow,
}

/// The format of frames: `nv12` or a pixel format; the crop at the left, top, right and bottom; width and
/// height, if frames are resized.
type FrameFormat = (String, (u32, u32, u32, u32), Option<(u32, u32)>);

/// The start and end of a packet in its file, and its timestamp.
type PacketRange = (usize, usize, Option<i64>);

/// Time stamps from the first number up to, but not including, the second one. `None`: all.
type FrameWindow = Option<(i64, i64)>;

/// An array of frames: memory, shape, and whether elements have 2 bytes.
type FrameArray = (DeviceMemory, Vec<usize>, bool);

#[pymethods]
impl VideoDecoder {
    /// Starts a video. If `use_cache`, an idle decoder may be reused.
    #[new]
    fn new(
        py: Python<'_>,
        decoders: &DeviceDecoders,
        codec: &str,
        use_cache: bool,
    ) -> PyResult<Self> {
        let decoders = decoders.handle();
        let opened = py.detach(|| {
            let codec = codec_of(codec)?;
            let engine = if use_cache { decoders.videos()? } else { decoders.new_videos()? };
            let stream = engine.open(codec)?;
            let video = Video { stream, engine, frames: VecDeque::new(), window: None };
            Ok((codec, Mutex::new(video)))
        });
        let (codec, video) = opened.map_err(|error: Error| to_exception(py, &error))?;
        Ok(VideoDecoder { video: DriverHandle::new(video), codec, decoders })
    }

    /// The name of the codec of an IVF file; `None` for other bytes.
    #[staticmethod]
    fn codec_of_ivf(py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Option<&'static str>> {
        let data = video_bytes(data)?;
        if !data.starts_with(IVF) {
            return Ok(None);
        }
        let codec = IvfFile::new(&data).map(|file| file.codec());
        let codec = codec.map_err(|error| to_exception(py, &error))?;
        Ok(CODECS.iter().find(|(_, known)| *known == codec).map(|(name, _)| *name))
    }

    /// Decodes a packet. Drops completed frames outside `window`. Returns the number of available frames.
    #[pyo3(signature = (packet, timestamp, window = None))]
    fn push(
        &self,
        py: Python<'_>,
        packet: &Bound<'_, PyAny>,
        timestamp: Option<i64>,
        window: FrameWindow,
    ) -> PyResult<usize> {
        let packet = video_bytes(packet)?;
        self.with_video(py, |video| video.push(&packet, timestamp, window))
    }

    /// The packets of a stream with start codes, or of an IVF file. Only packets of IVF files have
    /// timestamps.
    fn cut(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Vec<PacketRange>> {
        let data = video_bytes(data)?;
        let packets = py.detach(|| packet_ranges(&data, self.codec));
        packets.map_err(|error| to_exception(py, &error))
    }

    /// Ends the video and flushes its last frames, without those outside the window of its packets. Returns the number
    /// of available frames. Another video may follow.
    fn finish(&self, py: Python<'_>) -> PyResult<usize> {
        self.with_video(py, Video::finish)
    }

    /// Ends the video and drops its remaining frames. Errors are ignored; the next packet reports them again.
    fn forget(&self, py: Python<'_>) -> PyResult<()> {
        self.with_video(py, |video| {
            let _ = video.finish();
            video.frames.clear();
            Ok(())
        })
    }

    /// An array of at most `most` available frames; `None` if there are none.
    fn take(
        &self,
        py: Python<'_>,
        most: usize,
        wanted: FrameFormat,
    ) -> PyResult<Option<FrameArray>> {
        let decoders = self.decoders.clone();
        let taken = self.with_video(py, |video| {
            let Some(frames) = video.take(most)? else { return Ok(None) };
            let (pix_fmt, (left, top, right, bottom), size) = wanted;
            let crop = FrameCrop { left, top, right, bottom };
            match (&*pix_fmt, size) {
                ("nv12", None) => nv12(&video.engine, &frames, crop).map(Some),
                ("nv12", Some(_)) => {
                    let message = "cannot resize NV12 frames; use pix_fmt=\"rgb\"";
                    Err(Error::new(ErrorKind::Unsupported, message))
                }
                _ => rgb(&decoders, frames, &pix_fmt, crop, size).map(Some),
            }
        })?;
        Ok(taken.map(|(upload, shape, is_wide)| (DeviceMemory::from(upload), shape, is_wide)))
    }
}

impl VideoDecoder {
    /// Calls `work` without the GIL.
    fn with_video<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Video) -> Result<T> + Send,
    ) -> PyResult<T> {
        let video = &self.video;
        let done =
            without_python(py, || work(&mut video.lock().unwrap_or_else(PoisonError::into_inner)));
        done.map_err(|error| to_exception(py, &error))
    }
}

impl Video {
    fn push(
        &mut self,
        packet: &Bytes,
        timestamp: Option<i64>,
        window: FrameWindow,
    ) -> Result<usize> {
        if self.window.is_some() && self.window != window {
            // The last video was not finished, because a packet failed. Its frames have another window.
            self.finish()?;
        }
        self.window = window;
        let pushed = self.stream.push(packet, timestamp);
        // Frames decoded before a failure are available.
        let count = self.collect();
        pushed.map(|()| count)
    }

    /// Flushes the last frames. Returns the number of available frames.
    fn finish(&mut self) -> Result<usize> {
        let finished = self.stream.finish();
        let count = self.collect();
        self.window = None;
        finished.map(|()| count)
    }

    /// Moves decoded frames in the window out of the stream, whose buffer is small, and drops the others. Returns the
    /// number of available frames.
    fn collect(&mut self) -> usize {
        let window = self.window;
        while let Some(frame) = self.stream.next_frame() {
            let is_outside = |frame: &VideoFrame| {
                window.is_some_and(|(start, end)| !(start..end).contains(&frame.timestamp))
            };
            // Frames in the window may depend on a corrupt frame before it, so its error is kept.
            if !frame.as_ref().is_ok_and(is_outside) {
                self.frames.push_back(frame);
            }
        }
        self.frames.len()
    }

    /// Removes up to `most` available frames. If one of them is corrupt, returns its error and keeps the
    /// others.
    fn take(&mut self, most: usize) -> Result<Option<Vec<VideoFrame>>> {
        let count = most.min(self.frames.len());
        if let Some(at) = self.frames.iter().take(count).position(Result::is_err)
            && let Some(Err(error)) = self.frames.remove(at)
        {
            return Err(error);
        }
        let frames: Vec<VideoFrame> = self.frames.drain(..count).collect::<Result<_>>()?;
        Ok((!frames.is_empty()).then_some(frames))
    }
}

fn video_bytes(data: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    bytes_with_message(
        data,
        "a video must be bytes or an iterable of packets; a packet must be bytes or a pair of \
         bytes and timestamp",
    )
}

/// The packets of a stream with start codes, or of an IVF file.
fn packet_ranges(data: &[u8], codec: VideoCodec) -> Result<Vec<PacketRange>> {
    let range = |packet: &[u8], timestamp: Option<i64>| {
        // The packet is a slice of the data.
        let start = packet.as_ptr().addr() - data.as_ptr().addr();
        (start, start + packet.len(), timestamp)
    };
    if !data.starts_with(IVF) {
        return AccessUnits::new(data, codec)?.map(|packet| Ok(range(packet?, None))).collect();
    }
    let file = IvfFile::new(data)?;
    if file.codec() != codec {
        let message =
            format!("unexpected codec {} of an IVF file: the decoder is for {codec}", file.codec());
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    file.map(|packet| packet.map(|packet| range(packet.data, Some(packet.timestamp)))).collect()
}

fn codec_of(name: &str) -> Result<VideoCodec> {
    let known = CODECS.iter().find(|(known, _)| *known == name).map(|(_, codec)| *codec);
    known.ok_or_else(|| {
        let names = CODECS.map(|(name, _)| name).join(", ");
        let message = format!("unknown codec {name:?}: expected {names}");
        Error::new(ErrorKind::InvalidArgument, message)
    })
}

/// An array of frames in NV12 or P016, cropped.
fn nv12(
    engine: &NvDec,
    frames: &[VideoFrame],
    crop: FrameCrop,
) -> Result<(Upload, Vec<usize>, bool)> {
    let upload = engine.gather(frames, crop)?;
    let (width, height) = crop.size((frames[0].width, frames[0].height))?;
    let shape = vec![frames.len(), height as usize / 2 * 3, width as usize];
    Ok((upload, shape, frames[0].format == PixelFormat::P016))
}

/// An array of frames in RGB, BGR or grey, cropped and resized.
fn rgb(
    decoders: &Decoders,
    frames: Vec<VideoFrame>,
    pix_fmt: &str,
    crop: FrameCrop,
    size: Option<(u32, u32)>,
) -> Result<(Upload, Vec<usize>, bool)> {
    let kernels = decoders.kernels()?;
    let keeps_size = size.is_none();
    let size = match (size, frames.first()) {
        (Some(size), _) => size,
        (None, Some(first)) => crop.size((first.width, first.height))?,
        (None, None) => (0, 0),
    };
    let format = format_of(pix_fmt, size)?;
    let mut batch = kernels.batch(&format, frames.len())?;
    for frame in frames {
        let (width, height) = crop.size((frame.width, frame.height))?;
        if keeps_size && (width, height) != size {
            let message = format!(
                "size {width}x{height} of frame {} differs from {}x{} of the frames before it; set \
                 scale_width and scale_height",
                frame.number, size.0, size.1
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let matrix = matrix_of(frame.color, frame.height, frame.bits)?;
        let image = frame.image(matrix)?;
        let part = Rect { left: crop.left, top: crop.top, width, height };
        let plan = ResizePlan::new(part.into(), Size::new(size.0, size.1)).bounds(part);
        batch.push(&Arc::new(frame.memory), &image, &plan)?;
    }
    let shape = shape_of(batch.len(), &format);
    Ok((kernels.launch(batch)?, shape, false))
}
