//! Audio files: facts from the header, and decoding of all samples.

use spdl_core::{Error, ErrorKind, Result};
use spdl_media::audio::{
    AudioInfo, AudioLimits, AudioReader, AudioRegistry, AudioRequest, Waveform,
};

use super::container::name_of;
use super::with_feature;

/// The size in bytes of the samples that are decoded at a time.
const BLOCK_BYTES: u64 = 256 << 20;
/// The precision of the time of damage, in seconds.
const TIME_PRECISION: f64 = 0.01;

/// The format and length of an audio file, or of the audio stream of a video.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AudioFacts {
    /// The container or file format, such as `wav`, `ogg`, `mp4`.
    pub(crate) format: String,
    pub(crate) codec: String,
    pub(crate) sample_rate: u32,
    pub(crate) channels: u16,
    /// The number of frames (samples per channel); `None` if it is not known without decoding.
    pub(crate) frames: Option<u64>,
    /// The size of the file.
    pub(crate) bytes: u64,
}

impl AudioFacts {
    /// The duration in seconds; `None` if it is not known without decoding.
    pub(crate) fn seconds(&self) -> Option<f64> {
        self.frames.map(|frames| frames as f64 / f64::from(self.sample_rate.max(1)))
    }
}

/// Reads audio files.
#[derive(Debug)]
pub(crate) struct AudioInspector {
    registry: AudioRegistry,
    reader: AudioReader,
    waveform: Waveform,
}

impl AudioInspector {
    pub(crate) fn new() -> Self {
        let (registry, limits) = (AudioRegistry::with_defaults(), AudioLimits::default());
        AudioInspector {
            reader: AudioReader::new(&registry, &limits),
            waveform: Waveform::new(&limits),
            registry,
        }
    }

    fn info(&mut self, file: &[u8]) -> Result<AudioInfo> {
        self.reader.inspect(file).map_err(with_feature)
    }

    /// Reads the header.
    ///
    /// # Errors
    /// `Unsupported`, `Corrupt`, `Truncated` or `LimitExceeded`.
    pub(crate) fn facts(&mut self, file: &[u8]) -> Result<AudioFacts> {
        let info = self.info(file)?;
        // Tags may precede the signature of the format.
        let reader = self.registry.find(file).map_or("mp3", |codec| codec.name());
        Ok(AudioFacts {
            format: name_of(reader, file),
            codec: info.codec,
            sample_rate: info.sample_rate,
            channels: info.channels,
            frames: info.frames,
            bytes: file.len() as u64,
        })
    }

    /// Decodes the frames from `start` to `end` in seconds, and passes them to `each` in blocks.
    /// Returns the sample rate and the number of frames.
    ///
    /// # Errors
    /// The errors of [`facts`](Self::facts), and those of `each`.
    pub(crate) fn decode(
        &mut self,
        file: &[u8],
        start: f64,
        end: f64,
        mut each: impl FnMut(&Waveform) -> Result<()>,
    ) -> Result<(u32, u64)> {
        let info = self.info(file)?;
        let rate = f64::from(info.sample_rate);
        // A cast of a float saturates.
        let [first, last] = [start, end].map(|seconds| (seconds * rate).round() as u64);
        let block = (BLOCK_BYTES / 4 / u64::from(info.channels.max(1))).max(1);
        let mut next = first;
        while next < last {
            let wanted = last.min(next.saturating_add(block));
            let request = AudioRequest::frames(next..wanted);
            self.reader.decode(file, &request, &mut self.waveform).map_err(with_feature)?;
            each(&self.waveform)?;
            let frames = self.waveform.frames() as u64;
            next += frames;
            if frames < block {
                break;
            }
        }
        Ok((info.sample_rate, next - first))
    }

    /// Decodes all frames.
    ///
    /// # Errors
    /// The errors of [`decode`](Self::decode). If the file is damaged, the message states from when on.
    pub(crate) fn check(&mut self, file: &[u8]) -> Result<()> {
        let Err(error) = self.decode(file, 0.0, f64::INFINITY, |_| Ok(())) else { return Ok(()) };
        if !matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Truncated) {
            return Err(error);
        }
        Err(match self.damage(file) {
            Some(seconds) => {
                let message =
                    format!("{}; the audio is damaged from {seconds:.2} s on", error.message());
                let shown = Error::new(error.kind(), message);
                match error.offset() {
                    Some(offset) => shown.with_offset(offset),
                    None => shown,
                }
            }
            None => error,
        })
    }

    /// The time up to which the audio can be decoded, by bisection; `None` if it is unknown.
    fn damage(&mut self, file: &[u8]) -> Option<f64> {
        let info = self.info(file).ok()?;
        let (mut intact, mut damaged) = (0.0, info.seconds()?);
        let bytes = info.frames?.saturating_mul(4 * u64::from(info.channels));
        if bytes > BLOCK_BYTES {
            return None;
        }
        // If the whole header length can be decoded, only a checksum is wrong.
        if self.decode(file, 0.0, damaged, |_| Ok(())).is_ok() {
            return None;
        }
        while damaged - intact > TIME_PRECISION {
            let middle = f64::midpoint(intact, damaged);
            match self.decode(file, 0.0, middle, |_| Ok(())) {
                Ok(_) => intact = middle,
                Err(_) => damaged = middle,
            }
        }
        Some(intact)
    }
}
