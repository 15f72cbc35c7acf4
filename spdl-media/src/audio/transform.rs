//! [`AudioTransform`]: which part of a file becomes a sample, and how.

use std::ops::Range;

use spdl_core::{DType, Error, ErrorKind, Result, SampleRng};

use super::features::{AudioFeatures, FeatureOrder};
use crate::image::OnTruncated;

/// The channels of a sample.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AudioChannels {
    /// Those of the file, whose number may differ between samples.
    #[default]
    All,
    /// One: the mean of those of the file.
    Mono,
    /// One: that of this index. Files that lack it fail.
    One(u16),
    /// This number. Files with another number fail.
    Exactly(u16),
}

/// The order of the samples of an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AudioLayout {
    /// `[channels, frames]`.
    #[default]
    Planar,
    /// `[frames, channels]`.
    Interleaved,
}

/// Which part of an audio file becomes a sample, with which channels, rate, length and data type.
///
/// ```
/// use spdl_media::audio::{AudioChannels, AudioTransform};
/// // Five seconds at 16 kHz from a random position; shorter files are padded with zeros.
/// let transform = AudioTransform::new()
///     .sample_rate(16_000)
///     .channels(AudioChannels::Mono)
///     .frames(5 * 16_000)
///     .random(true);
/// assert_eq!(transform.shape(), [1, 80_000]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct AudioTransform {
    sample_rate: Option<u32>,
    channels: AudioChannels,
    start: f64,
    duration: Option<f64>,
    frames: Option<usize>,
    is_random: bool,
    dtype: DType,
    layout: AudioLayout,
    on_truncated: OnTruncated,
    features: Option<AudioFeatures>,
    speech: Option<f32>,
}

impl Default for AudioTransform {
    fn default() -> Self {
        AudioTransform::new()
    }
}

impl AudioTransform {
    /// The whole file: all channels, sample rate of the file, `float32`, `[channels, frames]`.
    pub fn new() -> Self {
        AudioTransform {
            sample_rate: None,
            channels: AudioChannels::All,
            start: 0.0,
            duration: None,
            frames: None,
            is_random: false,
            dtype: DType::F32,
            layout: AudioLayout::Planar,
            on_truncated: OnTruncated::Error,
            features: None,
            speech: None,
        }
    }

    /// The sample rate in frames per second, to which files with another rate are
    /// [converted](super::Resampler). Default: that of the file.
    #[must_use]
    pub fn sample_rate(mut self, rate: u32) -> Self {
        self.sample_rate = Some(rate);
        self
    }

    /// The channels. Default: all.
    #[must_use]
    pub fn channels(mut self, channels: AudioChannels) -> Self {
        self.channels = channels;
        self
    }

    /// The start of the part to use, in seconds. Default: 0.
    #[must_use]
    pub fn start(mut self, seconds: f64) -> Self {
        self.start = seconds;
        self
    }

    /// The duration of the part to use, in seconds. Files that end earlier give shorter samples.
    /// Default: up to the end of the file.
    #[must_use]
    pub fn duration(mut self, seconds: f64) -> Self {
        self.duration = Some(seconds);
        self
    }

    /// The number of frames of every sample, at the [sample rate](Self::sample_rate) of samples.
    /// Longer ones end earlier, shorter ones are padded with zeros at their end. Default: samples differ
    /// in length.
    #[must_use]
    pub fn frames(mut self, frames: usize) -> Self {
        self.frames = Some(frames);
        self
    }

    /// Whether samples that are longer than [`frames`](Self::frames) begin at a random frame,
    /// uniformly, by the random numbers of the sample, instead of the first. Default: no.
    #[must_use]
    pub fn random(mut self, is_random: bool) -> Self {
        self.is_random = is_random;
        self
    }

    /// The data type: `float32` or `float16`, where ±1 is full scale, or `int16`, where ±32,768 is,
    /// rounded and clamped. Default: `float32`.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The order of the samples. Default: `[channels, frames]`.
    #[must_use]
    pub fn layout(mut self, layout: AudioLayout) -> Self {
        self.layout = layout;
        self
    }

    /// Trims the part to use to speech: from 0.1 s before the first speech to 0.1 s after the last. `threshold` is the
    /// least score of speech, above 0 and below 1; 0.5 is usual. The neural network of the crate `earshot` computes a
    /// score for each 16 ms, from the mean of the selected channels. [`frames`](Self::frames) applies to the trimmed
    /// part; the whole [part](Self::duration) is decoded. A sample without speech is an error. Needs the feature `vad`.
    /// Default: no.
    #[must_use]
    pub fn trim_to_speech(mut self, threshold: f32) -> Self {
        self.speech = Some(threshold);
        self
    }

    /// What to do with truncated files: fail, or use the frames that are there. Default:
    /// [`OnTruncated::Error`].
    #[must_use]
    pub fn on_truncated(mut self, on_truncated: OnTruncated) -> Self {
        self.on_truncated = on_truncated;
        self
    }

    /// Features that take the place of the samples of one channel; they are computed after padding.
    /// Default: none.
    #[must_use]
    pub fn features(mut self, features: AudioFeatures) -> Self {
        self.features = Some(features);
        self
    }

    /// The shape of a sample, where 0 stands for any length.
    pub fn shape(&self) -> [usize; 2] {
        if let Some(features) = self.features {
            let rate = self.sample_rate.unwrap_or(0);
            return self.feature_shape(
                features,
                self.frames.map_or(0, |frames| features.windows(frames, rate)),
            );
        }
        let channels = match self.channels {
            AudioChannels::All => 0,
            AudioChannels::Mono | AudioChannels::One(_) => 1,
            AudioChannels::Exactly(count) => usize::from(count),
        };
        self.ordered(channels, self.frames.unwrap_or(0))
    }

    /// The shape of this number of windows.
    pub(crate) fn feature_shape(&self, features: AudioFeatures, windows: usize) -> [usize; 2] {
        match features.order() {
            FeatureOrder::BinsFirst => [features.bins(), windows],
            FeatureOrder::FramesFirst => [windows, features.bins()],
        }
    }

    /// The arguments as text, for the parameters of a run, such as `audio (16000 Hz, mono, float32)`.
    pub fn description(&self) -> String {
        let channels = match self.channels {
            AudioChannels::All => "all channels".to_owned(),
            AudioChannels::Mono => "mono".to_owned(),
            AudioChannels::One(index) => format!("channel {index}"),
            AudioChannels::Exactly(count) => format!("{count} channels"),
        };
        let given = [
            self.sample_rate.map(|rate| format!("{rate} Hz")),
            Some(channels),
            (self.start > 0.0).then(|| format!("from {} s", self.start)),
            self.duration.map(|seconds| format!("for {seconds} s")),
            self.frames.map(|frames| format!("{frames} frames")),
            self.is_random.then(|| "random".to_owned()),
            self.speech.map(|threshold| format!("trimmed to speech ({threshold})")),
            self.features.map(|features| format!("{features:?}")),
            Some(self.dtype.name().to_owned()),
            (self.layout == AudioLayout::Interleaved).then(|| "interleaved".to_owned()),
            (self.on_truncated == OnTruncated::Partial).then(|| "partial".to_owned()),
        ];
        format!("audio ({})", given.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }

    pub(crate) fn chosen_features(&self) -> Option<AudioFeatures> {
        self.features
    }

    /// The shape of this number of channels and frames.
    pub(crate) fn ordered(&self, channels: usize, frames: usize) -> [usize; 2] {
        match self.layout {
            AudioLayout::Planar => [channels, frames],
            AudioLayout::Interleaved => [frames, channels],
        }
    }

    /// Checks the parameters.
    ///
    /// # Errors
    /// `InvalidArgument` for times that are negative or not finite, a sample rate, a number of
    /// frames or channels of 0, another data type, a random start without a number of frames, a score of speech
    /// outside 0 to 1, or features of several channels or with invalid parameters; `Unsupported` for speech without
    /// the feature `vad`.
    pub fn validate(&self) -> Result<()> {
        let is_time = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
        let message = if !is_time(self.start) {
            format!("invalid start {} s: expected a finite time of at least 0", self.start)
        } else if let Some(seconds) = self.duration.filter(|&it| !is_time(it) || it == 0.0) {
            format!("invalid duration {seconds} s: expected a finite time above 0")
        } else if self.sample_rate == Some(0) {
            "invalid sample rate 0: expected at least 1 Hz".to_owned()
        } else if self.frames == Some(0) {
            "invalid number of frames 0: expected at least 1".to_owned()
        } else if self.channels == AudioChannels::Exactly(0) {
            "invalid number of channels 0: expected at least 1".to_owned()
        } else if !matches!(self.dtype, DType::F32 | DType::F16 | DType::I16) {
            let dtype = self.dtype.name();
            format!("audio as {dtype} is not supported; choose float32, float16 or int16")
        } else if self.is_random && self.frames.is_none() {
            "a random start needs a number of frames".to_owned()
        } else if let Some(threshold) = self.speech.filter(|it| !(*it > 0.0 && *it < 1.0)) {
            format!("invalid threshold of speech {threshold}: expected a score above 0 and below 1")
        } else if self.speech.is_some() && !cfg!(feature = "vad") {
            let message = "cannot find speech: this program was built without the feature `vad`";
            return Err(Error::new(ErrorKind::Unsupported, message));
        } else if let Some(features) = self.features {
            let is_one = matches!(
                self.channels,
                AudioChannels::Mono | AudioChannels::One(_) | AudioChannels::Exactly(1)
            );
            features.validate(self.sample_rate, self.frames)?;
            match (is_one, self.dtype) {
                (true, DType::F32 | DType::F16) if self.layout == AudioLayout::Interleaved => {
                    "features have a fixed order of dimensions; drop the layout".to_owned()
                }
                (true, DType::F32 | DType::F16) => return Ok(()),
                (true, _) => "features are float32 or float16".to_owned(),
                (false, _) => "features need one channel, such as the mean (mono)".to_owned(),
            }
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// The sample rate of samples of a file.
    pub(crate) fn rate_of(&self, file_rate: u32) -> u32 {
        self.sample_rate.unwrap_or(file_rate)
    }

    pub(crate) fn element_type(&self) -> DType {
        self.dtype
    }

    pub(crate) fn order(&self) -> AudioLayout {
        self.layout
    }

    pub(crate) fn selected_channels(&self) -> AudioChannels {
        self.channels
    }

    pub(crate) fn fixed_frames(&self) -> Option<usize> {
        self.frames
    }

    pub(crate) fn truncation(&self) -> OnTruncated {
        self.on_truncated
    }

    pub(crate) fn draws(&self) -> bool {
        self.is_random
    }

    /// The least score of speech.
    #[cfg(feature = "vad")]
    pub(crate) fn speech_threshold(&self) -> Option<f32> {
        self.speech
    }

    /// The frames of a sample, at the rate of samples, of a file with `total` of them (if known), before it is trimmed
    /// to speech.
    ///
    /// # Errors
    /// `InvalidArgument` if the file ends before the start, or its length is needed and not known.
    pub(crate) fn part(
        &self,
        total: Option<u64>,
        rate: u32,
        rng: Option<&mut SampleRng>,
    ) -> Result<Range<u64>> {
        let start = frame_at(self.start, rate);
        if let Some(total) = total.filter(|&total| start > 0 && start >= total) {
            let message = format!(
                "the audio ends at {:.3} s, before the start of the sample at {} s",
                total as f64 / f64::from(rate),
                self.start
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let duration = self.duration.map_or(u64::MAX, |seconds| frame_at(seconds, rate).max(1));
        let end = start.saturating_add(duration).min(total.unwrap_or(u64::MAX));
        if self.speech.is_some() { Ok(start..end) } else { self.crop(start..end, rng) }
    }

    /// The frames of a sample in a part of a file.
    ///
    /// # Errors
    /// `Unsupported` if the end of the part is needed and not known.
    pub(crate) fn crop(&self, part: Range<u64>, rng: Option<&mut SampleRng>) -> Result<Range<u64>> {
        let Range { start, end } = part;
        let Some(frames) = self.frames.map(|frames| frames as u64) else {
            return Ok(start..end);
        };
        let spare = (end - start).saturating_sub(frames);
        let skipped = match rng {
            Some(rng) if self.is_random && spare > 0 => {
                if end == u64::MAX {
                    let message = "a random start needs the length of the audio, which the file does not store";
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                rng.below(spare + 1)
            }
            _ => 0,
        };
        let start = start + skipped;
        Ok(start..start.saturating_add(frames).min(end))
    }
}

/// The frame that starts at or before this time.
pub(super) fn frame_at(seconds: f64, rate: u32) -> u64 {
    let frame = seconds * f64::from(rate);
    // Times of frames are rarely exact in floating point: 0.29 s × 100 Hz is 28.999999999999996.
    let nearest = frame.round();
    let is_near = (frame - nearest).abs() <= 4.0 * f64::EPSILON * frame;
    // A cast from `f64` saturates.
    if is_near { nearest as u64 } else { frame as u64 }
}
