//! Containers and codecs of a program, and their selection by content.

use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};

use super::codec::{VIDEO_SNIFF_BYTES, VideoCodec, VideoContainer};
use super::decoder_pool::DecoderPool;

/// The containers and video codecs of a program.
///
/// The first bytes of a file select the container, and the container names the codec; the file name
/// has no influence. The program builds the registry. Clones are cheap: they share their content.
///
/// The readers of a registry and of its clones share decoders. There are at most two per processor, and their frames
/// have at most [`decoder_bytes`](Self::decoder_bytes): if more threads decode videos at a time, the others wait,
/// because each decoder holds the memory of some ten frames.
///
/// ```
/// use spdl_media::video::VideoRegistry;
/// // Which codecs there are depends on the cargo features.
/// let registry = VideoRegistry::with_defaults();
/// assert_eq!(registry.codec("h264").is_ok(), cfg!(feature = "ffmpeg"));
/// ```
#[derive(Clone, Debug, Default)]
pub struct VideoRegistry {
    containers: Vec<Arc<dyn VideoContainer>>,
    codecs: Vec<Arc<dyn VideoCodec>>,
    decoders: Arc<DecoderPool>,
}

impl VideoRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        VideoRegistry::default()
    }

    /// The containers and codecs of this build. MP4 and Matroska are always there; with the cargo
    /// feature `ffmpeg`, the containers and codecs of FFmpeg.
    pub fn with_defaults() -> Self {
        VideoRegistry {
            containers: super::containers(),
            codecs: super::codecs(),
            decoders: Arc::default(),
        }
    }

    /// Adds a container, which takes precedence over those that were registered before.
    pub fn register_container(&mut self, container: impl VideoContainer) -> &mut Self {
        self.containers.insert(0, Arc::new(container));
        self
    }

    /// Adds a codec, which takes precedence over those that were registered before.
    pub fn register_codec(&mut self, codec: impl VideoCodec) -> &mut Self {
        self.codecs.insert(0, Arc::new(codec));
        // A clone of the registry may have decoders of the codec that now comes second.
        self.decoders = Arc::new(DecoderPool::with_bytes(self.decoders.most_bytes()));
        self
    }

    /// The most memory of the frames of all decoders. A decoder is estimated at 12 frames, and another one for each
    /// thread beyond the first; one decoder may exceed the limit. Default: 768 MiB, which are 21 decoders of one thread
    /// at 1920 × 1080. With more processors, a decoder has several threads.
    #[must_use]
    pub fn decoder_bytes(mut self, bytes: u64) -> Self {
        self.decoders = Arc::new(DecoderPool::with_bytes(bytes));
        self
    }

    /// The first container, in order of precedence, whose signature matches the first bytes of a
    /// file.
    ///
    /// # Errors
    /// `Truncated` for an empty file; `Unsupported` if no container matches.
    pub fn container(&self, head: &[u8]) -> Result<&Arc<dyn VideoContainer>> {
        if head.is_empty() {
            return Err(Error::new(ErrorKind::Truncated, "the file is empty"));
        }
        let head = &head[..head.len().min(VIDEO_SNIFF_BYTES)];
        self.containers.iter().find(|container| container.sniff(head)).ok_or_else(|| {
            let start = head[..head.len().min(12)].escape_ascii();
            let names = self.containers.iter().map(|container| container.name());
            unsupported(&format!("unknown video format: the file starts with \"{start}\""), names)
        })
    }

    /// The first codec, in order of precedence, that decodes streams of this
    /// [codec](super::VideoStream::codec).
    ///
    /// # Errors
    /// `Unsupported` if there is none.
    pub fn codec(&self, name: &str) -> Result<&Arc<dyn VideoCodec>> {
        self.codecs.iter().find(|codec| codec.decodes(name)).ok_or_else(|| {
            let names = self.codecs.iter().map(|codec| codec.name());
            let error = unsupported(&format!("no decoder for {name:?} video"), names);
            match cfg!(feature = "ffmpeg") {
                true => error,
                false => Error::new(
                    ErrorKind::Unsupported,
                    format!("{}; build with the cargo feature \"ffmpeg\"", error.message()),
                ),
            }
        })
    }
}

impl VideoRegistry {
    /// The decoders of all readers.
    pub(super) fn decoders(&self) -> &Arc<DecoderPool> {
        &self.decoders
    }

    #[cfg(test)]
    pub(crate) fn shares_decoders_with(&self, other: &VideoRegistry) -> bool {
        Arc::ptr_eq(&self.decoders, &other.decoders)
    }
}

fn unsupported(what: &str, names: impl Iterator<Item = &'static str>) -> Error {
    let names: Vec<_> = names.collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    Error::new(ErrorKind::Unsupported, format!("{what}; registered: {names}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_formats_and_codecs_are_unsupported() {
        let registry = VideoRegistry::new();
        let error = registry.container(b"RIFF....AVI ").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.message().contains("starts with \"RIFF....AVI \"; registered: none"),
            "{error}"
        );
        assert_eq!(registry.container(b"").unwrap_err().kind(), ErrorKind::Truncated);
        let error = registry.codec("h264").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let advice = error.message().contains("cargo feature \"ffmpeg\"");
        assert_eq!(advice, !cfg!(feature = "ffmpeg"), "{error}");
    }
}
