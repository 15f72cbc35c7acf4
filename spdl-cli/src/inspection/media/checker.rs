//! Finds damage in media files.

use spdl_core::Result;
use spdl_media::{CodecRegistry, Decoder, Limits};

use super::audio::AudioInspector;
use super::video::VideoInspector;
use crate::datasets::extensions::MediaType;

/// How much of a file is read to find damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CheckDepth {
    /// All pixels, frames and samples are decoded.
    #[default]
    Decoded,
    /// Only headers of images and audio and the tables of videos are read.
    Headers,
}

/// Reads media files to find damage.
pub(crate) struct MediaChecker {
    images: Decoder,
    audio: AudioInspector,
    video: VideoInspector,
}

impl MediaChecker {
    pub(crate) fn new() -> Self {
        MediaChecker {
            images: Decoder::new(&CodecRegistry::with_defaults(), &Limits::default()),
            audio: AudioInspector::new(),
            video: VideoInspector::new(),
        }
    }

    /// Checks a file.
    ///
    /// # Errors
    /// `Corrupt` or `Truncated` if the file is damaged; `Unsupported` if this build cannot read it;
    /// `LimitExceeded`.
    pub(crate) fn check(&mut self, media: MediaType, file: &[u8], depth: CheckDepth) -> Result<()> {
        match (media, depth) {
            (MediaType::Image, CheckDepth::Decoded) => self.images.decode_rgb(file).map(drop),
            (MediaType::Image, CheckDepth::Headers) => self.images.inspect(file).map(drop),
            (MediaType::Audio, CheckDepth::Decoded) => self.audio.check(file),
            (MediaType::Audio, CheckDepth::Headers) => self.audio.facts(file).map(drop),
            (MediaType::Video, CheckDepth::Decoded) => self.video.check(file),
            (MediaType::Video, CheckDepth::Headers) => self.video.check_tables(file).map(drop),
        }
    }
}
