//! Audio: from encoded bytes to samples.
//!
//! ```text
//! bytes ──► codec ──► frames of a window ──► channels ──► sample rate ──► features ──► batch slot
//! ```
//!
//! | file | content |
//! |---|---|
//! | `limits`, `waveform`, `collector` | limits of files; decoded samples; those of a request |
//! | `codec`, `registry` | the traits of a codec; codec selection by content, and decoding |
//! | `wav`, `pcm` | the header of WAV files; their samples |
//! | `flac`, `mpeg` | FLAC; MPEG audio layers I to III |
//! | `adts`, `ogg` | frames of AAC; pages of Vorbis, Opus and FLAC |
//! | `ffmpeg` | other containers and codecs, by FFmpeg (feature `ffmpeg`) |
//! | `packets` | decoders of packets |
//! | `crc` | checksums of FLAC and Ogg |
//! | `resample` | sample rate conversion |
//! | `speech` | voice activity detection (feature `vad`) |
//! | `features` | log-mel spectrograms, filter banks, cepstral coefficients |
//! | `transform` | which part of a file becomes a sample, and how |
//!
//! Imports: `source`, `ffmpeg`, [`image`](crate::image).

#[cfg(feature = "aac")]
mod adts;
mod codec;
#[cfg_attr(
    not(all(feature = "flac", feature = "mp3", feature = "vorbis")),
    allow(dead_code, reason = "other formats do not use all of it")
)]
mod collector;
#[cfg(any(feature = "flac", feature = "vorbis", feature = "opus"))]
mod crc;
mod features;
#[cfg(feature = "ffmpeg")]
mod ffmpeg;
#[cfg(feature = "flac")]
mod flac;
mod limits;
#[cfg(feature = "mp3")]
mod mpeg;
#[cfg(any(feature = "vorbis", feature = "opus"))]
#[cfg_attr(
    not(all(feature = "flac", feature = "vorbis", feature = "opus")),
    allow(dead_code, unreachable_patterns, reason = "streams of one kind do not use all of it")
)]
mod ogg;
#[cfg(any(feature = "mp3", feature = "aac", feature = "vorbis", feature = "opus"))]
mod packets;
#[cfg(feature = "wav")]
mod pcm;
mod registry;
mod resample;
#[cfg(feature = "vad")]
mod speech;
mod transform;
#[cfg(feature = "wav")]
mod wav;
mod waveform;

use std::sync::Arc;

pub use codec::{
    AUDIO_SNIFF_BYTES, AudioCodec, AudioDecoded, AudioDecoder, AudioInfo, AudioRequest,
};
pub use features::AudioFeatures;
pub(crate) use features::FeatureExtractor;
pub use limits::AudioLimits;
pub use registry::{AudioReader, AudioRegistry};
pub use resample::Resampler;
#[cfg(feature = "vad")]
pub(crate) use speech::SpeechFinder;
pub use transform::{AudioChannels, AudioLayout, AudioTransform};
#[cfg(feature = "wav")]
pub use wav::{WavHeader, WavSample};
pub use waveform::Waveform;

/// The codecs of this build: the most common format first.
fn defaults() -> Vec<Arc<dyn AudioCodec>> {
    vec![
        #[cfg(feature = "wav")]
        Arc::new(pcm::WavCodec),
        #[cfg(feature = "flac")]
        Arc::new(flac::FlacCodec),
        #[cfg(any(feature = "vorbis", feature = "opus"))]
        Arc::new(ogg::OggCodec),
        #[cfg(feature = "aac")]
        Arc::new(adts::AdtsCodec),
        #[cfg(feature = "mp3")]
        Arc::new(mpeg::MpegCodec),
        #[cfg(feature = "ffmpeg")]
        Arc::new(ffmpeg::FfmpegAudioCodec),
    ]
}
