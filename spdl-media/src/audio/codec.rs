//! The traits of an audio codec, and the requests and results of a decode.

use std::fmt::Debug;
use std::ops::Range;

use spdl_core::{Error, ErrorKind, Result};

use super::limits::AudioLimits;
use super::waveform::Waveform;
use crate::image::OnTruncated;
use crate::source::MediaSource;

/// The number of leading bytes of a file that [`AudioCodec::sniff`] receives. A shorter file is
/// passed whole.
pub const AUDIO_SNIFF_BYTES: usize = 64;

/// An audio format: recognises its files and creates decoders.
///
/// All workers share one instance.
pub trait AudioCodec: Debug + Send + Sync + 'static {
    /// The short name of the format, as in error messages: `flac`.
    fn name(&self) -> &'static str;

    /// Whether a file with these first bytes (at most [`AUDIO_SNIFF_BYTES`]) has this format. If its decoder returns
    /// `Unsupported`, the next codec that recognises the file decodes it.
    fn sniff(&self, head: &[u8]) -> bool;

    /// Whether [`AudioDecoder::parts`] selects parts of files. If so, a file in a store is read in parts. The
    /// provided method returns no.
    fn has_parts(&self) -> bool {
        false
    }

    /// Creates a decoder. Each [`AudioReader`](super::AudioReader) calls this method for its first
    /// file of the format, and again after an error of this method or a panic.
    ///
    /// # Errors
    /// Any failure to create the decoder.
    fn decoder(&self, limits: &AudioLimits) -> Result<Box<dyn AudioDecoder>>;
}

/// Decodes audio files in one worker, and keeps scratch memory between files.
///
/// Calls are independent; each one receives the whole file, or a [`MediaSource`] of it. For any input, a decoder returns frames
/// or one of these errors: `Truncated` if the data end early, `Corrupt` if they violate the format,
/// `Unsupported`, `LimitExceeded`. A decoder invents no missing frames.
/// [`AudioReader`](super::AudioReader) catches panics and creates a new decoder.
///
/// A *frame* is one sample of each channel. Frames are those that a player plays: the delay and the
/// padding of the encoder are removed if the file stores them, as Ogg does, and MP3 with a tag of
/// LAME.
pub trait AudioDecoder: Send {
    /// Reads the format and the number of frames, without decoding. A file that is truncated after its
    /// header is no error; the number of frames is then that of the header, or that of the frames
    /// that are there.
    ///
    /// # Errors
    /// The errors that the trait lists.
    fn inspect(&mut self, encoded: &[u8]) -> Result<AudioInfo>;

    /// Decodes the frames that `request` selects into `out`, whose content is replaced.
    ///
    /// If the file ends before the end of the request, the result has fewer frames. Frames before the
    /// request are decoded only where the format needs them; frames after it are not. After an
    /// error, the content of `out` is unspecified.
    ///
    /// A window has the samples of the same part of the whole. Exceptions are AAC and Opus: their
    /// decoders carry noise and filters from frame to frame, so that samples may differ slightly.
    ///
    /// # Errors
    /// The errors that the trait lists.
    fn decode(
        &mut self,
        encoded: &[u8],
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<AudioDecoded>;

    /// [`inspect`](Self::inspect) of a file that need not be in memory. The provided method reads the
    /// whole file.
    ///
    /// # Errors
    /// Those of `inspect`, and of the source.
    fn inspect_source(&mut self, file: &dyn MediaSource) -> Result<AudioInfo> {
        self.inspect(file.read(0..file.size(), &mut Vec::new())?)
    }

    /// [`decode`](Self::decode) of a file that need not be in memory. The provided method reads the whole
    /// file.
    ///
    /// # Errors
    /// Those of `decode`, and of the source.
    fn decode_source(
        &mut self,
        file: &dyn MediaSource,
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<AudioDecoded> {
        self.decode(file.read(0..file.size(), &mut Vec::new())?, request, out)
    }

    /// The ranges of a file that [`decode_source`](Self::decode_source) reads; `None` for the whole file. The
    /// provided method returns `None`.
    ///
    /// # Errors
    /// Those of `decode`, and of the source.
    fn parts(
        &mut self,
        file: &dyn MediaSource,
        request: &AudioRequest,
    ) -> Result<Option<Vec<Range<u64>>>> {
        let _ = (file, request);
        Ok(None)
    }
}

/// Sample rate, channels and length from the header of an audio file.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AudioInfo {
    /// Frames per second.
    pub sample_rate: u32,
    /// The number of channels.
    pub channels: u16,
    /// The number of frames; `None` if it is not known without decoding.
    pub frames: Option<u64>,
    /// The name of the codec, such as `flac` or `pcm-int16`.
    pub codec: String,
}

impl AudioInfo {
    /// A file of this format.
    pub fn new(sample_rate: u32, channels: u16, codec: impl Into<String>) -> Self {
        AudioInfo { sample_rate, channels, frames: None, codec: codec.into() }
    }

    /// Sets the number of frames.
    #[must_use]
    pub fn with_frames(mut self, frames: u64) -> Self {
        self.frames = Some(frames);
        self
    }

    /// The duration in seconds; `None` if it is not known without decoding.
    pub fn seconds(&self) -> Option<f64> {
        self.frames.map(|frames| frames as f64 / f64::from(self.sample_rate.max(1)))
    }
}

/// Options of one decode. Default: all frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AudioRequest {
    frames: Range<u64>,
    on_truncated: OnTruncated,
}

impl Default for AudioRequest {
    fn default() -> Self {
        AudioRequest::all()
    }
}

impl AudioRequest {
    /// All frames.
    pub fn all() -> Self {
        AudioRequest::frames(0..u64::MAX)
    }

    /// These frames, counted from 0 at the sample rate of the file.
    pub fn frames(frames: Range<u64>) -> Self {
        AudioRequest { frames, on_truncated: OnTruncated::Error }
    }

    /// What to do with a file that ends early: fail, or return the frames that are there. Default:
    /// [`OnTruncated::Error`].
    #[must_use]
    pub fn on_truncated(mut self, on_truncated: OnTruncated) -> Self {
        self.on_truncated = on_truncated;
        self
    }

    /// The first frame.
    pub fn start(&self) -> u64 {
        self.frames.start
    }

    /// The frame after the last one; above the number of frames of the file for all of them.
    pub fn end(&self) -> u64 {
        self.frames.end
    }

    /// What to do with a file that ends early.
    pub fn truncation(&self) -> OnTruncated {
        self.on_truncated
    }

    /// Whether a truncated file is accepted.
    pub fn accepts_truncated(&self) -> bool {
        self.on_truncated == OnTruncated::Partial
    }
}

/// The error for a file of a format that ends early.
#[cfg_attr(
    not(any(
        feature = "aac",
        feature = "ffmpeg",
        feature = "flac",
        feature = "mp3",
        feature = "opus",
        feature = "vorbis"
    )),
    allow(dead_code, reason = "formats without a feature do not use it")
)]
pub(super) fn truncated(format: &str, file: &[u8]) -> Error {
    truncated_at(format, file.len() as u64)
}

/// The error for a file of a format and of `size` bytes that ends early.
pub(super) fn truncated_at(format: &str, size: u64) -> Error {
    let message = format!("truncated {format}: the file ends before its audio does");
    Error::new(ErrorKind::Truncated, message).with_offset(size)
}

/// The outcome of a decode.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AudioDecoded {
    /// Whether requested frames are missing because the file is truncated. Only with
    /// [`OnTruncated::Partial`].
    pub is_truncated: bool,
}

impl AudioDecoded {
    /// All requested frames that the file has.
    pub fn complete() -> Self {
        AudioDecoded::default()
    }

    /// The frames before the point where the file is truncated.
    pub fn truncated() -> Self {
        AudioDecoded { is_truncated: true }
    }
}
