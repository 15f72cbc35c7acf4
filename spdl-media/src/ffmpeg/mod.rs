//! FFmpeg's libraries as safe values: demuxing, decoding, filtering, encoding, muxing.
//!
//! ```text
//! bytes ──► Demuxer ──► Packets ──► StreamDecoder ──► Frames ──► array
//!                          │                      │
//!                  BitStreamFilter           FilterGraph
//!                          │                      │
//! file  ◄── Muxer   ◄── Packets ◄── StreamEncoder ◄── Frames ◄── array
//! ```
//!
//! ```standalone_crate
//! use spdl_media::ffmpeg::{
//!     DecodeOptions, DemuxOptions, Demuxer, MediaKind, Time, TimeWindow, decode_packets,
//! };
//! let file: &[u8] = include_bytes!("../../tests/video/h264.mp4");
//! let mut demuxer = Demuxer::open(Box::new(file), "h264.mp4", &DemuxOptions::default())?;
//! // 10 frames per second: those from 0.5 s up to 1 s.
//! let window = TimeWindow::new(Time::new(1, 2)?, Time::new(1, 1)?)?;
//! let packets = demuxer.demux(MediaKind::Video, Some(window))?;
//! let options = DecodeOptions::default();
//! let (frames, failures) = decode_packets(&packets, Some("format=rgb24"), &options, None)?;
//! let (shape, _) = frames.shape()?;
//! assert_eq!((&shape[..], failures.count), (&[5, 48, 64, 3][..], 0));
//! let mut pixels = vec![0; shape.iter().product()];
//! frames.copy_to(&mut pixels)?;
//! # Ok::<(), spdl_core::Error>(())
//! ```
//!
//! Demuxers receive bytes only: no addresses, no file names, no playlists. Formats that open
//! other files are refused. Filters are chosen by the program; some, such as `movie`, open files. Training pipelines use [`video`](crate::video) and
//! [`audio`](crate::audio), which decode only what a sample needs; this module has the steps for everything
//! else.
//!
//! | file | content |
//! |---|---|
//! | `errors`, `names` | errors of the libraries; names of formats |
//! | `memory` | owners of contexts, packets and frames |
//! | `input`, `output` | the bytes of a file for the libraries, and from them |
//! | `codec`, `packets`, `frames` | values: the encoding of a stream, its packets, its frames |
//! | `serialize` | packets to bytes and back |
//! | `demuxer`, `bit_stream`, `decoder`, `filter` | from a file to filtered frames |
//! | `awaited` | packets without a frame |
//! | `metadata` | metadata of images |
//! | `arrays` | from frames to arrays, and back |
//! | `encoder`, `muxer` | from frames to a file |
//!
//! The `unsafe` code of this crate is in this module and in `video::ffmpeg`. Imports: `source`, `packets`.
#![allow(unsafe_code, reason = "the functions of FFmpeg are functions of C")]

mod arrays;
mod awaited;
mod bit_stream;
mod codec;
mod decoder;
mod demuxer;
mod encoder;
pub(crate) mod errors;
mod filter;
mod frames;
pub(crate) mod input;
pub(crate) mod memory;
mod metadata;
mod muxer;
pub(crate) mod names;
mod output;
mod packets;
mod serialize;

use std::ffi::c_int;
use std::sync::Once;

use ffmpeg_next::ffi;

pub use bit_stream::BitStreamFilter;
pub use codec::{MediaKind, Rational, StreamCodec};
pub use decoder::{DecodeFailures, DecodeOptions, StreamDecoder, decode_frames, decode_packets};
pub use demuxer::{Demuxer, Portion};
pub use encoder::{AudioEncoding, EncodeOptions, StreamEncoder, VideoEncoding};
pub use filter::{FilterGraph, filters};
pub use frames::Frames;
pub use input::DemuxOptions;
pub use muxer::Muxer;
pub use packets::{Packets, Time, TimeWindow};

/// The versions of the linked libraries.
///
/// ```
/// let versions = spdl_media::ffmpeg::versions();
/// assert!(versions.iter().any(|(name, version)| *name == "libavcodec" && version[0] >= 59));
/// ```
pub fn versions() -> [(&'static str, [u32; 3]); 4] {
    let parts = |version: u32| [version >> 16, version >> 8 & 0xFF, version & 0xFF];
    // SAFETY: the function takes no arguments and returns a constant.
    let codec = unsafe { ffi::avcodec_version() };
    // SAFETY: as above.
    let filter = unsafe { ffi::avfilter_version() };
    // SAFETY: as above.
    let format = unsafe { ffi::avformat_version() };
    // SAFETY: as above.
    let util = unsafe { ffi::avutil_version() };
    [
        ("libavcodec", parts(codec)),
        ("libavfilter", parts(filter)),
        ("libavformat", parts(format)),
        ("libavutil", parts(util)),
    ]
}

/// How much the libraries write to standard error, as FFmpeg's number: −8 (nothing, the default) to 56.
pub fn log_level() -> i32 {
    start();
    // SAFETY: the function returns an integer.
    unsafe { ffi::av_log_get_level() }
}

/// Changes how much the libraries write to standard error. Failures are returned as errors in any case.
pub fn set_log_level(level: i32) {
    start();
    // SAFETY: the function stores an integer; FFmpeg allows calls from any thread.
    unsafe { ffi::av_log_set_level(level as c_int) };
}

/// Stops the libraries from writing to standard error: their failures are returned as errors.
pub(crate) fn start() {
    static START: Once = Once::new();
    // SAFETY: the function stores an integer; FFmpeg allows calls from any thread.
    START.call_once(|| unsafe { ffi::av_log_set_level(ffi::AV_LOG_QUIET) });
}
