//! From frames to a file.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use spdl_media::ffmpeg::{
    AudioEncoding, EncodeOptions, Muxer, Rational, StreamEncoder, VideoEncoding,
};

use super::demux::Options;
use super::values::{Fraction, MediaCodec, MediaFrames, MediaPackets, detached};

fn encode_options(encoder: Option<String>, options: Options) -> EncodeOptions {
    let mut settings = EncodeOptions::default();
    (settings.encoder, settings.options) = (encoder, options);
    settings
}

/// A file that FFmpeg writes.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct MediaMuxer(Mutex<Muxer>);

/// Bits per second, effort of compression, quality.
type Rates = (Option<i64>, Option<i32>, Option<i32>);

/// Matrix, primary colours, transfer function.
type Colors = (Option<String>, Option<String>, Option<String>);

#[pymethods]
impl MediaMuxer {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, format: Option<&str>) -> PyResult<Self> {
        detached(py, || Muxer::new(&path, format)).map(|muxer| MediaMuxer(Mutex::new(muxer)))
    }

    fn add_audio(
        &self,
        py: Python<'_>,
        channels: (u32, u32),
        sample_fmt: Option<String>,
        rates: Rates,
        encoder: Option<String>,
        options: Options,
    ) -> PyResult<MediaEncoder> {
        let mut encoding = AudioEncoding::new(channels.0, channels.1);
        encoding.sample_format = sample_fmt;
        (encoding.bit_rate, encoding.compression_level, encoding.quality) = rates;
        let options = encode_options(encoder, options);
        self.with(py, |muxer| muxer.add_audio(&encoding, &options)).map(MediaEncoder::of)
    }

    #[expect(clippy::too_many_arguments, reason = "the settings of an encoder")]
    fn add_video(
        &self,
        py: Python<'_>,
        size: (u32, u32),
        frame_rate: Fraction,
        pix_fmt: Option<String>,
        rates: Rates,
        groups: (Option<i32>, Option<i32>),
        colors: Colors,
        encoder: Option<String>,
        options: Options,
    ) -> PyResult<MediaEncoder> {
        let rate = Rational::new(frame_rate.0, frame_rate.1);
        let mut encoding = VideoEncoding::new(size.0, size.1, rate);
        encoding.pixel_format = pix_fmt;
        (encoding.bit_rate, encoding.compression_level, encoding.quality) = rates;
        (encoding.gop_size, encoding.max_b_frames) = groups;
        (encoding.color_space, encoding.color_primaries, encoding.color_transfer) = colors;
        let options = encode_options(encoder, options);
        self.with(py, |muxer| muxer.add_video(&encoding, &options)).map(MediaEncoder::of)
    }

    fn add_encoded(&self, py: Python<'_>, codec: &MediaCodec) -> PyResult<()> {
        self.with(py, |muxer| muxer.add_encoded(&codec.0))
    }

    fn start(&self, py: Python<'_>, options: Options) -> PyResult<()> {
        self.with(py, |muxer| muxer.start(&options))
    }

    fn write(&self, py: Python<'_>, stream: usize, packets: &MediaPackets) -> PyResult<()> {
        self.with(py, |muxer| muxer.write(stream, &packets.0))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Muxer::flush)
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, Muxer::finish)
    }
}

impl MediaMuxer {
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Muxer) -> spdl_core::Result<R> + Send,
    ) -> PyResult<R> {
        detached(py, || work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// The encoder of a stream.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct MediaEncoder(Mutex<StreamEncoder>);

#[pymethods]
impl MediaEncoder {
    /// Encodes frames, or, without frames, returns the remaining packets.
    fn encode(&self, py: Python<'_>, frames: Option<&MediaFrames>) -> PyResult<MediaPackets> {
        detached(py, || {
            let mut encoder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match frames {
                Some(frames) => encoder.encode(&frames.0),
                None => encoder.finish(),
            }
        })
        .map(MediaPackets)
    }

    #[getter]
    fn frame_size(&self, py: Python<'_>) -> u32 {
        py.detach(|| self.0.lock().unwrap_or_else(PoisonError::into_inner).frame_size())
    }
}

impl MediaEncoder {
    fn of(encoder: StreamEncoder) -> Self {
        MediaEncoder(Mutex::new(encoder))
    }
}
