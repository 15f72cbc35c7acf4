//! FFmpeg for `spdl_rs.io`: demuxing, decoding, filtering, encoding, muxing.
//!
//! Thin handles of `spdl_media::ffmpeg`. The public classes are in Python.

#[cfg(feature = "ffmpeg")]
mod decode;
#[cfg(feature = "ffmpeg")]
mod demux;
#[cfg(feature = "ffmpeg")]
mod encode;
#[cfg(feature = "ffmpeg")]
mod values;

#[cfg(feature = "ffmpeg")]
pub(crate) use decode::{
    MediaDecoder, MediaFilterGraph, decode_media_frames, decode_media_packets,
};
#[cfg(feature = "ffmpeg")]
pub(crate) use demux::{MediaBitStreamFilter, MediaDemuxer};
#[cfg(feature = "ffmpeg")]
pub(crate) use encode::{MediaEncoder, MediaMuxer};
#[cfg(feature = "ffmpeg")]
pub(crate) use values::{MediaCodec, MediaFrames, MediaPackets};

use pyo3::prelude::*;

/// The names and versions of the libraries of FFmpeg; empty if the module was built without them.
#[pyfunction]
pub(crate) fn ffmpeg_versions() -> Vec<(&'static str, (u32, u32, u32))> {
    #[cfg(feature = "ffmpeg")]
    let versions = spdl_media::ffmpeg::versions();
    #[cfg(not(feature = "ffmpeg"))]
    let versions: [(&str, [u32; 3]); 0] = [];
    versions
        .into_iter()
        .map(|(name, [major, minor, micro])| (name, (major, minor, micro)))
        .collect()
}

/// The names of FFmpeg's filters; none if the module was built without them.
#[pyfunction]
pub(crate) fn ffmpeg_filters() -> Vec<String> {
    #[cfg(feature = "ffmpeg")]
    return spdl_media::ffmpeg::filters();
    #[cfg(not(feature = "ffmpeg"))]
    Vec::new()
}

/// How much FFmpeg writes to standard error, as FFmpeg's number; −8 if the module was built without it.
#[pyfunction]
pub(crate) fn ffmpeg_log_level() -> i32 {
    #[cfg(feature = "ffmpeg")]
    return spdl_media::ffmpeg::log_level();
    #[cfg(not(feature = "ffmpeg"))]
    -8
}

/// Changes how much FFmpeg writes to standard error.
#[pyfunction]
pub(crate) fn set_ffmpeg_log_level(level: i32) {
    #[cfg(feature = "ffmpeg")]
    spdl_media::ffmpeg::set_log_level(level);
    #[cfg(not(feature = "ffmpeg"))]
    let _ = level;
}
