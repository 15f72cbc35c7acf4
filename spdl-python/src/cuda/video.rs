//! Packets of a video to frames on a device.

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
use super::lent::Lent;
use super::memory::DeviceMemory;
use super::pixels::{format_of, matrix_of, shape_of};
use crate::interop::error::to_exception;
use crate::interop::wait::without_python;
use crate::operators::bytes_with_message;

/// How an IVF file begins.
const IVF: &[u8] = b"DKIF";

/// The codecs by what SPDL, and FFmpeg, call them.
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

/// A video that is decoded on a device. One thread at a time is at it.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct VideoDecoder {
    video: Lent<Mutex<Video>>,
    codec: VideoCodec,
    decoders: Lent<Decoders>,
}

struct Video {
    stream: VideoStream,
    engine: NvDec,
    /// Frames that nobody has taken yet.
    frames: VecDeque<Result<VideoFrame>>,
}

/// What becomes of frames: `nv12`, or a format of pixels; columns and rows that are cut off at the left, the
/// top, the right and the bottom; and width and height.
type Wanted = (String, (u32, u32, u32, u32), Option<(u32, u32)>);

/// Where a packet begins and ends, and its timestamp.
type Place = (usize, usize, Option<i64>);

/// An array of frames: its memory, its shape, and whether its elements have two bytes.
type Taken = (DeviceMemory, Vec<usize>, bool);

#[pymethods]
impl VideoDecoder {
    /// Begins a video. A decoder that waits to be used again is used, if there is one and if it may be.
    #[new]
    fn new(
        py: Python<'_>,
        decoders: &DeviceDecoders,
        codec: &str,
        use_cache: bool,
    ) -> PyResult<Self> {
        let decoders = decoders.lent();
        let begun = py.detach(|| {
            let codec = codec_of(codec)?;
            let engine = if use_cache { decoders.videos()? } else { decoders.new_videos()? };
            let stream = engine.open(codec)?;
            Ok((codec, Mutex::new(Video { stream, engine, frames: VecDeque::new() })))
        });
        let (codec, video) = begun.map_err(|error: Error| to_exception(py, &error))?;
        Ok(VideoDecoder { video: Lent::new(video), codec, decoders })
    }

    /// The codec of an IVF file, as it is called here; nothing for other bytes.
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

    /// Takes a packet; how many frames are there then.
    fn push(
        &self,
        py: Python<'_>,
        packet: &Bound<'_, PyAny>,
        timestamp: Option<i64>,
    ) -> PyResult<usize> {
        let packet = video_bytes(packet)?;
        self.with_video(py, |video| video.push(&packet, timestamp))
    }

    /// Where the packets of a stream with start codes, or of an IVF file, begin and end, and the timestamps
    /// of those that have one.
    fn cut(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Vec<Place>> {
        let data = video_bytes(data)?;
        let cut = py.detach(|| cut(&data, self.codec));
        cut.map_err(|error| to_exception(py, &error))
    }

    /// The video has ended: its last frames come. Another one may follow.
    fn finish(&self, py: Python<'_>) -> PyResult<usize> {
        self.with_video(py, Video::finish)
    }

    /// The video has ended, and nobody takes the frames that are left, nor those that the parser still holds.
    /// What fails in that fails again with the next packet.
    fn forget(&self, py: Python<'_>) -> PyResult<()> {
        self.with_video(py, |video| {
            let _ = video.finish();
            video.frames.clear();
            Ok(())
        })
    }

    /// An array of the next frames, of so many at most; nothing where there are none.
    fn take(&self, py: Python<'_>, most: usize, wanted: Wanted) -> PyResult<Option<Taken>> {
        let decoders = self.decoders.clone();
        let taken = self.with_video(py, |video| {
            let Some(frames) = video.take(most)? else { return Ok(None) };
            let (pix_fmt, (left, top, right, bottom), size) = wanted;
            let crop = FrameCrop { left, top, right, bottom };
            match (&*pix_fmt, size) {
                ("nv12", None) => nv12(&video.engine, &frames, crop).map(Some),
                ("nv12", Some(_)) => {
                    let message = "frames of NV12 are not resized; those of pix_fmt=\"rgb\" are";
                    Err(Error::new(ErrorKind::Unsupported, message))
                }
                _ => rgb(&decoders, frames, &pix_fmt, crop, size).map(Some),
            }
        })?;
        Ok(taken.map(|(upload, shape, is_wide)| (DeviceMemory::from(upload), shape, is_wide)))
    }
}

impl VideoDecoder {
    /// With the GIL free.
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
    fn push(&mut self, packet: &Bytes, timestamp: Option<i64>) -> Result<usize> {
        let pushed = self.stream.push(packet, timestamp);
        // Frames that were decoded before a failure are there.
        let count = self.collect();
        pushed.map(|()| count)
    }

    /// Its last frames come; how many are there then.
    fn finish(&mut self) -> Result<usize> {
        let finished = self.stream.finish();
        let count = self.collect();
        finished.map(|()| count)
    }

    /// Takes what is decoded out of the stream, which holds few frames; how many there are.
    fn collect(&mut self) -> usize {
        while let Some(frame) = self.stream.next_frame() {
            self.frames.push_back(frame);
        }
        self.frames.len()
    }

    /// The next frames, as many as there are, up to `most`. A damaged one among them is an error; the others
    /// stay where they are.
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
        "a video is given as bytes, or as packets, which are bytes or pairs of those and a timestamp",
    )
}

fn cut(data: &[u8], codec: VideoCodec) -> Result<Vec<Place>> {
    let place = |packet: &[u8], timestamp: Option<i64>| {
        // It is a part of the data.
        let start = packet.as_ptr().addr() - data.as_ptr().addr();
        (start, start + packet.len(), timestamp)
    };
    if !data.starts_with(IVF) {
        return AccessUnits::new(data, codec)?.map(|packet| Ok(place(packet?, None))).collect();
    }
    let file = IvfFile::new(data)?;
    if file.codec() != codec {
        let message =
            format!("the file is of {}, and the decoder was made for {codec}", file.codec());
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    file.map(|packet| packet.map(|packet| place(packet.data, Some(packet.timestamp)))).collect()
}

fn codec_of(name: &str) -> Result<VideoCodec> {
    let known = CODECS.iter().find(|(known, _)| *known == name).map(|(_, codec)| *codec);
    known.ok_or_else(|| {
        let names = CODECS.map(|(name, _)| name).join(", ");
        let message = format!("there is no codec called {name:?}; there are {names}");
        Error::new(ErrorKind::InvalidArgument, message)
    })
}

/// Frames as they were decoded.
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

/// Frames in colours, cropped and resized.
fn rgb(
    decoders: &Decoders,
    frames: Vec<VideoFrame>,
    pix_fmt: &str,
    crop: FrameCrop,
    size: Option<(u32, u32)>,
) -> Result<(Upload, Vec<usize>, bool)> {
    let kernels = decoders.kernels()?;
    let is_as_it_is = size.is_none();
    let size = match (size, frames.first()) {
        (Some(size), _) => size,
        (None, Some(first)) => crop.size((first.width, first.height))?,
        (None, None) => (0, 0),
    };
    let format = format_of(pix_fmt, size)?;
    let mut batch = kernels.batch(&format, frames.len())?;
    for frame in frames {
        let (width, height) = crop.size((frame.width, frame.height))?;
        if is_as_it_is && (width, height) != size {
            let message = format!(
                "frame {} has {width} x {height} pixels, and those before it {} x {}: frames of several \
                 sizes become one array with scale_width and scale_height",
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
