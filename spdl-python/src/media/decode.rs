//! From packets to filtered frames.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use spdl_media::ffmpeg::{
    DecodeFailures, DecodeOptions, FilterGraph, StreamDecoder, decode_frames, decode_packets,
};

use super::demux::Options;
use super::values::{MediaCodec, MediaFrames, MediaPackets, detached};

fn decode_options(decoder: Option<String>, options: Options) -> DecodeOptions {
    let mut settings = DecodeOptions::default();
    (settings.decoder, settings.options) = (decoder, options);
    settings
}

/// The number of failures, and the first one.
fn shown(failures: &DecodeFailures) -> (u64, Option<String>) {
    (failures.count, failures.first.as_ref().map(spdl_core::Error::report))
}

/// Decodes packets: the frames, the number of packets that failed, and the first failure.
#[pyfunction]
#[pyo3(signature = (packets, *, filters, decoder, options, num_frames))]
pub(crate) fn decode_media_packets(
    py: Python<'_>,
    packets: &MediaPackets,
    filters: Option<&str>,
    decoder: Option<String>,
    options: Options,
    num_frames: Option<usize>,
) -> PyResult<(MediaFrames, u64, Option<String>)> {
    let options = decode_options(decoder, options);
    let (frames, failures) =
        detached(py, || decode_packets(&packets.0, filters, &options, num_frames))?;
    let (count, first) = shown(&failures);
    Ok((MediaFrames(frames), count, first))
}

/// Decodes some frames of a video.
#[pyfunction]
#[pyo3(signature = (packets, indices, *, filters, decoder, options))]
pub(crate) fn decode_media_frames(
    py: Python<'_>,
    packets: &MediaPackets,
    indices: Vec<usize>,
    filters: Option<&str>,
    decoder: Option<String>,
    options: Options,
) -> PyResult<MediaFrames> {
    let options = decode_options(decoder, options);
    detached(py, || decode_frames(&packets.0, &indices, filters, &options)).map(MediaFrames)
}

/// A decoder that keeps its state from call to call.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct MediaDecoder(Mutex<StreamDecoder>);

#[pymethods]
impl MediaDecoder {
    #[new]
    #[pyo3(signature = (codec, *, filters, decoder, options))]
    fn new(
        py: Python<'_>,
        codec: &MediaCodec,
        filters: Option<&str>,
        decoder: Option<String>,
        options: Options,
    ) -> PyResult<Self> {
        let options = decode_options(decoder, options);
        detached(py, || StreamDecoder::new(&codec.0, filters, &options))
            .map(|decoder| MediaDecoder(Mutex::new(decoder)))
    }

    /// Decodes packets, or, without packets, returns the remaining frames.
    fn decode(&self, py: Python<'_>, packets: Option<&MediaPackets>) -> PyResult<MediaFrames> {
        detached(py, || {
            let mut decoder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            match packets {
                Some(packets) => decoder.decode(&packets.0),
                None => decoder.finish(),
            }
        })
        .map(MediaFrames)
    }

    /// The number of packets that failed so far, and the first failure.
    fn failures(&self, py: Python<'_>) -> (u64, Option<String>) {
        py.detach(|| shown(self.0.lock().unwrap_or_else(PoisonError::into_inner).failures()))
    }
}

/// A graph of filters.
#[pyclass(frozen, module = "spdl_rs._spdl_rs")]
pub(crate) struct MediaFilterGraph(Mutex<FilterGraph>);

#[pymethods]
impl MediaFilterGraph {
    #[new]
    fn new(py: Python<'_>, description: &str) -> PyResult<Self> {
        detached(py, || FilterGraph::new(description))
            .map(|graph| MediaFilterGraph(Mutex::new(graph)))
    }

    fn add(&self, py: Python<'_>, frames: &MediaFrames, name: Option<&str>) -> PyResult<()> {
        self.with(py, |graph| graph.add(name, &frames.0))
    }

    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, FilterGraph::finish)
    }

    fn take(&self, py: Python<'_>, name: Option<&str>) -> PyResult<MediaFrames> {
        self.with(py, |graph| graph.take(name)).map(MediaFrames)
    }

    /// FFmpeg's drawing of the graph.
    fn drawing(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |graph| Ok(graph.drawing()))
    }
}

impl MediaFilterGraph {
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut FilterGraph) -> spdl_core::Result<R> + Send,
    ) -> PyResult<R> {
        detached(py, || work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
