//! Video by FFmpeg's libraries: containers and codecs that have no reader of this crate.
//!
//! The libraries receive bytes only: no addresses, no file names, no playlists. Formats that open
//! other files are refused.
//!
//! | file | content |
//! |---|---|
//! | `errors` | errors of the libraries |
//! | `memory` | owners of contexts, packets and frames |
//! | `input` | the bytes of a file for the libraries |
//! | `container` | the index of any container, from its packets |
//! | `decoder` | decoders of video streams |
//! | `planes` | from the planes of a frame to a [`Picture`](crate::image::Picture) |
//!
//! All `unsafe` code of this crate is in this module. Imports: [`video`](crate::video),
//! [`image`](crate::image).
#![allow(unsafe_code, reason = "the functions of FFmpeg are functions of C")]

mod container;
mod decoder;
mod errors;
mod input;
mod memory;
mod planes;

use std::sync::Once;

use ffmpeg_next::ffi;

pub use container::FfmpegContainer;
pub use decoder::FfmpegCodec;

/// The versions of the linked libraries.
///
/// ```
/// let versions = spdl_media::video::ffmpeg::versions();
/// assert!(versions.iter().any(|(name, version)| *name == "libavcodec" && version[0] >= 59));
/// ```
pub fn versions() -> [(&'static str, [u32; 3]); 3] {
    let parts = |version: u32| [version >> 16, version >> 8 & 0xFF, version & 0xFF];
    // SAFETY: the function takes no arguments and returns a constant.
    let codec = unsafe { ffi::avcodec_version() };
    // SAFETY: as above.
    let format = unsafe { ffi::avformat_version() };
    // SAFETY: as above.
    let util = unsafe { ffi::avutil_version() };
    [("libavcodec", parts(codec)), ("libavformat", parts(format)), ("libavutil", parts(util))]
}

/// Stops the libraries from writing to standard error: their failures are returned as errors.
fn start() {
    static START: Once = Once::new();
    // SAFETY: the function stores an integer; FFmpeg allows calls from any thread.
    START.call_once(|| unsafe { ffi::av_log_set_level(ffi::AV_LOG_QUIET) });
}
