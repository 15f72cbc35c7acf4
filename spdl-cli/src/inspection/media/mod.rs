//! Audio and video files: facts from their headers and tables, checks, frames and waveforms.
//!
//! | file | content |
//! |---|---|
//! | `audio` | [`AudioInspector`]: facts, all samples, the time of the first damage |
//! | `video` | [`VideoInspector`]: facts, a check of all frames, frames as images |
//! | `envelope` | [`Envelope`]: minimum and maximum of the samples in each column of a drawing |
//! | `checker` | [`MediaChecker`]: decodes an image, audio or video file to find damage |
//! | `container` | names of containers |
//!
//! Each worker has its own inspectors, because they own decoders and buffers.

mod audio;
mod checker;
mod container;
mod envelope;
mod video;

use spdl_core::{Error, ErrorKind};

pub(crate) use audio::{AudioFacts, AudioInspector};
pub(crate) use checker::{CheckDepth, MediaChecker};
pub(crate) use envelope::Envelope;
pub(crate) use video::{VideoFacts, VideoInspector};

/// Whether this build decodes the frames of videos, and audio of all formats.
pub(crate) const HAS_FFMPEG: bool = cfg!(feature = "ffmpeg");

/// Names the cargo feature that this build lacks in the error for an unsupported format.
fn with_feature(error: Error) -> Error {
    if error.kind() != ErrorKind::Unsupported || HAS_FFMPEG || error.message().contains("ffmpeg") {
        return error;
    }
    let message = format!("{}; build with the cargo feature \"ffmpeg\"", error.message());
    Error::new(ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_formats_name_the_feature_once() {
        let text = |error: Error| with_feature(error).message().to_owned();
        let unsupported = |message: &str| Error::new(ErrorKind::Unsupported, message.to_owned());
        let named = text(unsupported("unknown audio format"));
        assert_eq!(named.contains("cargo feature \"ffmpeg\""), !HAS_FFMPEG, "{named}");
        assert_eq!(text(unsupported("no ffmpeg")), "no ffmpeg");
        assert_eq!(text(Error::new(ErrorKind::Corrupt, "corrupt")), "corrupt");
    }
}
