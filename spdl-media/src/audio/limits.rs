//! Limits on the audio files that a decoder accepts.

use spdl_core::{Error, ErrorKind, Result};

/// Limits on the audio files that a decoder accepts, checked before memory is taken.
///
/// Limits decide which files fail. They never change samples.
///
/// ```
/// use spdl_media::audio::AudioLimits;
/// let limits = AudioLimits::default().max_seconds(30.0);
/// assert!(limits.check_frames(16_000 * 31, 16_000, 1).is_err());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AudioLimits {
    max_bytes: u64,
    max_streams: u32,
    max_channels: u16,
    max_seconds: f64,
}

impl Default for AudioLimits {
    /// 1 GiB of decoded samples, 1,000 streams, 64 channels, any duration.
    fn default() -> Self {
        AudioLimits {
            max_bytes: 1 << 30,
            max_streams: 1000,
            max_channels: 64,
            max_seconds: f64::INFINITY,
        }
    }
}

impl AudioLimits {
    /// The maximum size in bytes of the decoded samples of one file, 4 bytes each. Default: 1 GiB.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// The maximum number of streams of a file that FFmpeg reads, of which one is decoded. Default: 1,000.
    #[must_use]
    pub fn max_streams(mut self, streams: u32) -> Self {
        self.max_streams = streams;
        self
    }

    /// The maximum number of streams of a file.
    #[cfg(feature = "ffmpeg")]
    pub(super) fn streams(&self) -> u32 {
        self.max_streams
    }

    /// The maximum number of channels. Default: 64.
    #[must_use]
    pub fn max_channels(mut self, channels: u16) -> Self {
        self.max_channels = channels;
        self
    }

    /// The maximum duration in seconds of the decoded frames of one file. Default: no maximum.
    #[must_use]
    pub fn max_seconds(mut self, seconds: f64) -> Self {
        self.max_seconds = seconds;
        self
    }

    /// Checks the format in the header of a file.
    ///
    /// # Errors
    /// `LimitExceeded` for too many channels; `Corrupt` for 0 channels or a sample rate of 0.
    pub fn check_format(&self, sample_rate: u32, channels: u16) -> Result<()> {
        if channels > self.max_channels {
            let message = format!("{channels} channels exceed the limit of {}", self.max_channels);
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        if channels == 0 || sample_rate == 0 {
            let message = format!("corrupt header: {channels} channels, {sample_rate} Hz");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(())
    }

    /// Checks the size in bytes of samples or features that are computed from decoded ones.
    pub(crate) fn check_bytes(&self, bytes: u64) -> Result<()> {
        if bytes > self.max_bytes {
            let message = format!(
                "the sample takes {bytes} bytes, more than the limit of {}",
                self.max_bytes
            );
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        Ok(())
    }

    /// Checks the number of decoded frames.
    ///
    /// # Errors
    /// `LimitExceeded` if the samples take too much memory or the frames last too long.
    pub fn check_frames(&self, frames: u64, sample_rate: u32, channels: u16) -> Result<()> {
        let bytes = frames.saturating_mul(u64::from(channels)).saturating_mul(4);
        let seconds = frames as f64 / f64::from(sample_rate.max(1));
        let message = if bytes > self.max_bytes {
            format!(
                "{frames} frames of {channels} channels take {bytes} bytes, more than the limit of {}",
                self.max_bytes
            )
        } else if seconds > self.max_seconds {
            format!("{seconds:.3} s of audio exceed the limit of {} s", self.max_seconds)
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::LimitExceeded, message))
    }
}
