//! Video by FFmpeg's libraries: containers and codecs that have no reader of this crate.
//!
//! | file | content |
//! |---|---|
//! | `container` | the index of any container, from its packets |
//! | `decoder` | decoders of video streams |
//! | `planes` | from the planes of a frame to a [`Picture`](crate::image::Picture) |
#![allow(unsafe_code, reason = "the functions of FFmpeg are functions of C")]

mod container;
mod decoder;
mod planes;

pub use container::FfmpegContainer;
pub use decoder::FfmpegCodec;
