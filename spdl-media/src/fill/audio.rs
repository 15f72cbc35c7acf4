//! [`FillAudio`]: writes one audio file into its batch slot.

use std::ops::Range;

use half::f16;
use spdl_core::memory::Element;
use spdl_core::observe::Counter;
use spdl_core::stage::Collation;
use spdl_core::{DType, Error, ErrorKind, Field, Result, SampleRng, SlotMut};

use super::check_field;
#[cfg(feature = "vad")]
use crate::audio::SpeechFinder;
use crate::audio::{
    AudioChannels, AudioInfo, AudioLayout, AudioLimits, AudioReader, AudioRegistry, AudioRequest,
    AudioTransform, FeatureExtractor, Resampler, Waveform,
};
use crate::source::MediaSource;

/// Decodes a part of an audio file, selects channels, converts the sample rate, and writes the
/// samples into the slot of a batch.
///
/// Create one per worker: it keeps decoders, filters and scratch memory.
///
/// ```
/// # #[cfg(feature = "flac")] {
/// use spdl_core::{
///     BatchLayout, DType, Field, Fill, FillContext, PipelineBuilder, Result, SlotMut,
/// };
/// use spdl_media::audio::{AudioChannels, AudioLimits, AudioRegistry, AudioTransform};
/// use spdl_media::fill::FillAudio;
///
/// struct FillSpeech(FillAudio);
///
/// impl Fill<Vec<u8>> for FillSpeech {
///     fn fill(
///         &mut self,
///         file: Vec<u8>,
///         mut slot: SlotMut<'_>,
///         cx: &mut FillContext<'_>,
///     ) -> Result<()> {
///         self.0.write(&file, &mut slot, 0, || cx.rng()).map(drop)
///     }
///
///     fn check_fields(&self, fields: &[Field]) -> Result<()> {
///         self.0.check_field(&fields[0])
///     }
/// }
///
/// # let speech = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/audio/mono-16.flac")).to_vec();
/// // A tenth of a second at 8 kHz, from a random position.
/// let transform = AudioTransform::new()
///     .sample_rate(8000)
///     .channels(AudioChannels::Mono)
///     .frames(800)
///     .random(true);
/// let layout = BatchLayout::new(2, [Field::new("audio", DType::F32, &transform.shape())]);
/// let mut pipeline = PipelineBuilder::from_iter([speech.clone(), speech])
///     .fill("decode", layout, move || {
///         FillAudio::new(&AudioRegistry::with_defaults(), &transform, &AudioLimits::default())
///             .map(FillSpeech)
///     })
///     .build()?;
/// let batch = pipeline.next().expect("one batch")?;
/// assert_eq!(batch.array("audio").map(|audio| audio.shape()), Some(&[2, 1, 800][..]));
/// # }
/// # Ok::<(), spdl_core::Error>(())
/// ```
pub struct FillAudio {
    transform: AudioTransform,
    limits: AudioLimits,
    reader: AudioReader,
    waveform: Waveform,
    /// The filters of the latest sample rates, by the rate of the file.
    resamplers: Vec<(u32, Resampler)>,
    /// The mean of the channels.
    mixed: Vec<f32>,
    /// The converted samples of all channels; those of one channel before conversion, padded.
    converted: Vec<f32>,
    padded: Vec<f32>,
    /// Computes features, and their values.
    extractor: Option<FeatureExtractor>,
    values: Vec<f32>,
    #[cfg(feature = "vad")]
    speech: SpeechTrimmer,
    partial: Counter,
    microseconds: Counter,
}

/// The most sample rates whose filters are kept.
const KEPT_FILTERS: usize = 8;

impl FillAudio {
    /// Writes samples as described by `transform`.
    ///
    /// # Errors
    /// The errors of [`AudioTransform::validate`].
    pub fn new(
        registry: &AudioRegistry,
        transform: &AudioTransform,
        limits: &AudioLimits,
    ) -> Result<Self> {
        transform.validate()?;
        Ok(FillAudio {
            transform: transform.clone(),
            limits: limits.clone(),
            reader: AudioReader::new(registry, limits),
            waveform: Waveform::new(limits),
            resamplers: Vec::new(),
            mixed: Vec::new(),
            converted: Vec::new(),
            padded: Vec::new(),
            extractor: transform
                .chosen_features()
                .map(|features| FeatureExtractor::new(features, transform.rate_of(0))),
            values: Vec::new(),
            #[cfg(feature = "vad")]
            speech: SpeechTrimmer::default(),
            partial: Counter::default(),
            microseconds: Counter::default(),
        })
    }

    /// Counts the samples of truncated files, see [`AudioTransform::on_truncated`].
    #[must_use]
    pub fn count_partial(mut self, counter: Counter) -> Self {
        self.partial = counter;
        self
    }

    /// Counts the duration of the audio in the samples in microseconds, without padding.
    #[must_use]
    pub fn count_microseconds(mut self, counter: Counter) -> Self {
        self.microseconds = counter;
        self
    }

    /// Checks that a field has the data type and shape of samples.
    ///
    /// # Errors
    /// `InvalidArgument` if it has not.
    pub fn check_field(&self, field: &Field) -> Result<()> {
        check_field(field, self.transform.element_type(), &self.transform.shape())
    }

    /// Decodes `encoded` into field number `field`, with random numbers from `rng`. Returns the number
    /// of frames before padding, or that of their windows of features.
    ///
    /// # Errors
    /// The errors of [`AudioReader::decode`] and of the slot; `InvalidArgument` if the file lacks a
    /// channel, or speech to which the sample is trimmed, or ends before the start of the sample.
    pub fn write(
        &mut self,
        encoded: &[u8],
        slot: &mut SlotMut<'_>,
        field: usize,
        rng: impl FnOnce() -> SampleRng,
    ) -> Result<u64> {
        self.write_source(&encoded, slot, field, rng)
    }

    /// [`write`](Self::write) of a file that need not be in memory: see [`AudioReader::decode_source`].
    ///
    /// # Errors
    /// Those of `write`, and of the source.
    pub fn write_source(
        &mut self,
        file: &dyn MediaSource,
        slot: &mut SlotMut<'_>,
        field: usize,
        rng: impl FnOnce() -> SampleRng,
    ) -> Result<u64> {
        let info = self.reader.inspect_source(file)?;
        let mut rng = self.transform.draws().then(rng);
        let window = AudioWindow::new(&self.transform, &info, &mut self.resamplers, rng.as_mut())?;
        let AudioWindow { rate, resampler, part, request } = window;
        let decoded = self.reader.decode_source(file, &request, &mut self.waveform)?;
        let channels = self.waveform.channels();
        let decoded_frames = request.start() + self.waveform.frames() as u64;
        let available = resampler.map_or(decoded_frames, |it| it.output_frames(decoded_frames));
        let available = available.min(part.end);
        let frames = available.saturating_sub(part.start) as usize;
        if frames == 0 && decoded.is_truncated {
            let message = "truncated audio: the file ends before the sample begins";
            return Err(Error::new(ErrorKind::Truncated, message));
        }
        if frames == 0 && part.start > 0 {
            let message =
                format!("the audio ends before the start of the sample at frame {}", part.start);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        if decoded.is_truncated {
            self.partial.add(1);
        }
        let selected: &[Vec<f32>] = match self.transform.selected_channels() {
            AudioChannels::All => channels,
            AudioChannels::One(index) => match channels.get(usize::from(index)) {
                Some(channel) => std::slice::from_ref(channel),
                None => return Err(wrong_channels(channels.len(), &format!("channel {index}"))),
            },
            AudioChannels::Exactly(count) if usize::from(count) == channels.len() => channels,
            AudioChannels::Exactly(count) => {
                return Err(wrong_channels(channels.len(), &format!("{count} channels")));
            }
            AudioChannels::Mono if channels.len() == 1 => channels,
            AudioChannels::Mono => {
                mean(channels.iter().map(Vec::as_slice), &mut self.mixed);
                std::slice::from_ref(&self.mixed)
            }
        };
        if let Some(resampler) = resampler {
            self.limits.check_bytes((frames as u64).saturating_mul(4 * selected.len() as u64))?;
            self.converted.clear();
            self.converted.resize(frames * selected.len(), 0.0);
            let outs = self.converted.chunks_exact_mut(frames.max(1));
            for (out, channel) in outs.zip(selected) {
                resampler.convert(channel, request.start(), part.start, out, &mut self.padded);
            }
        }
        let (converted, is_converted) = (&self.converted, resampler.is_some());
        let samples = |channel: usize| match is_converted {
            true => &converted[channel * frames..][..frames],
            false => &selected[channel][..frames],
        };
        #[cfg(feature = "vad")]
        let kept = match self.transform.speech_threshold() {
            None => 0..frames,
            Some(threshold) => {
                let found = self.speech.trim(selected.len(), samples, rate, threshold)?;
                let part =
                    self.transform.crop(found.start as u64..found.end as u64, rng.as_mut())?;
                part.start as usize..part.end as usize
            }
        };
        #[cfg(not(feature = "vad"))]
        let kept = 0..frames;
        let frames = kept.len();
        let samples = |channel: usize| &samples(channel)[kept.clone()];
        self.microseconds.add((frames as u64).saturating_mul(1_000_000) / u64::from(rate.max(1)));
        let length = self.transform.fixed_frames().unwrap_or(frames);
        if let (Some(extractor), Some(features)) =
            (&mut self.extractor, self.transform.chosen_features())
        {
            let one = samples(0);
            let one = match length == frames {
                true => one,
                false => {
                    self.padded.clear();
                    self.padded.extend_from_slice(one);
                    self.padded.resize(length, 0.0);
                    &self.padded
                }
            };
            let windows = features.windows(length, rate);
            self.limits.check_bytes((windows as u64).saturating_mul(4 * features.bins() as u64))?;
            self.values.clear();
            self.values.resize(windows * features.bins(), 0.0);
            extractor.compute(one, &mut self.values)?;
            let shape = self.transform.feature_shape(features, windows);
            match self.transform.element_type() {
                DType::F16 => {
                    let out = slot.resize::<f16>(field, &shape)?;
                    let values = out.iter_mut().zip(&self.values);
                    values.for_each(|(out, value)| *out = f16::from_f32(*value));
                }
                _ => slot.resize::<f32>(field, &shape)?.copy_from_slice(&self.values),
            }
            return Ok(features.windows(frames, rate).min(windows) as u64);
        }
        let place = SamplePlace {
            field,
            channels: selected.len(),
            length,
            shape: self.transform.ordered(selected.len(), length),
            order: self.transform.order(),
        };
        match self.transform.element_type() {
            DType::F16 => place.write(slot, samples, f16::from_f32)?,
            // A cast to an integer saturates.
            DType::I16 => {
                place.write(slot, samples, |it| (it * 32_768.0).round_ties_even() as i16)?;
            }
            _ => place.write(slot, samples, |it| it)?,
        }
        Ok(frames as u64)
    }
}

impl std::fmt::Debug for FillAudio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FillAudio")
            .field("transform", &self.transform)
            .field("reader", &self.reader)
            .finish_non_exhaustive()
    }
}

/// Where the samples of a file go.
struct SamplePlace {
    field: usize,
    channels: usize,
    /// The number of frames with padding.
    length: usize,
    shape: [usize; 2],
    order: AudioLayout,
}

impl SamplePlace {
    /// Writes the samples of each channel, and zeros after them.
    fn write<'a, T: Element>(
        &self,
        slot: &mut SlotMut<'_>,
        samples: impl Fn(usize) -> &'a [f32],
        value: impl Fn(f32) -> T,
    ) -> Result<()> {
        let out = match slot.fields()[self.field].collation {
            // All elements are written below.
            Collation::Stacked => slot.typed_mut::<T>(self.field)?,
            _ => slot.resize::<T>(self.field, &self.shape)?,
        };
        let zero = value(0.0);
        match self.order {
            AudioLayout::Planar => {
                for (at, out) in out.chunks_exact_mut(self.length.max(1)).enumerate() {
                    let samples = samples(at);
                    let (out, rest) = out.split_at_mut(samples.len());
                    out.iter_mut().zip(samples).for_each(|(out, sample)| *out = value(*sample));
                    rest.fill(zero);
                }
            }
            AudioLayout::Interleaved => {
                for at in 0..self.channels {
                    let samples = samples(at).iter().map(|sample| value(*sample));
                    let padded = samples.chain(std::iter::repeat(zero));
                    let of_channel = out.iter_mut().skip(at).step_by(self.channels);
                    of_channel.zip(padded).for_each(|(out, sample)| *out = sample);
                }
            }
        }
        Ok(())
    }
}

/// The part of a file that becomes a sample.
pub(super) struct AudioWindow<'a> {
    /// The sample rate of the sample.
    rate: u32,
    /// If the file has another sample rate.
    resampler: Option<&'a Resampler>,
    /// The frames of the sample, at its sample rate.
    part: Range<u64>,
    /// The frames to decode.
    pub(super) request: AudioRequest,
}

impl<'a> AudioWindow<'a> {
    /// Chooses a part of a file, with the random numbers that the transform [draws](AudioTransform::draws).
    pub(super) fn new(
        transform: &AudioTransform,
        info: &AudioInfo,
        resamplers: &'a mut Vec<(u32, Resampler)>,
        rng: Option<&mut SampleRng>,
    ) -> Result<Self> {
        let rate = transform.rate_of(info.sample_rate);
        let resampler = match rate == info.sample_rate {
            true => None,
            false => Some(resampler(resamplers, info.sample_rate, rate)?),
        };
        let total =
            info.frames.map(|frames| resampler.map_or(frames, |it| it.output_frames(frames)));
        let part = transform.part(total, rate, rng)?;
        let mut wanted = match resampler {
            Some(resampler) => resampler.input_frames(part.clone()),
            None => part.clone(),
        };
        if part.end == u64::MAX || total == Some(part.end) {
            // Up to the end of the file, so that a truncated one is noticed.
            wanted.end = u64::MAX;
        }
        let request = AudioRequest::frames(wanted).on_truncated(transform.truncation());
        Ok(AudioWindow { rate, resampler, part, request })
    }
}

/// The filter of a sample rate; the first file with this rate makes it.
fn resampler(known: &mut Vec<(u32, Resampler)>, from: u32, to: u32) -> Result<&Resampler> {
    let at = match known.iter().position(|(rate, _)| *rate == from) {
        Some(at) => at,
        None => {
            known.truncate(KEPT_FILTERS - 1);
            known.insert(0, (from, Resampler::new(from, to)?));
            0
        }
    };
    Ok(&known[at].1)
}

/// The mean of channels of equal length.
fn mean<'a>(channels: impl ExactSizeIterator<Item = &'a [f32]>, out: &mut Vec<f32>) {
    out.clear();
    let count = channels.len() as f32;
    for channel in channels {
        if out.is_empty() {
            out.extend_from_slice(channel);
        } else {
            out.iter_mut().zip(channel).for_each(|(sum, sample)| *sum += sample);
        }
    }
    out.iter_mut().for_each(|sum| *sum /= count);
}

/// Trims samples to speech.
#[cfg(feature = "vad")]
#[derive(Default)]
struct SpeechTrimmer {
    /// Created on first use.
    finder: Option<SpeechFinder>,
    mixed: Vec<f32>,
}

#[cfg(feature = "vad")]
impl SpeechTrimmer {
    /// The frames with speech in the mean of some channels.
    fn trim<'a>(
        &mut self,
        channels: usize,
        samples: impl Fn(usize) -> &'a [f32],
        rate: u32,
        threshold: f32,
    ) -> Result<Range<usize>> {
        let finder = self.finder.get_or_insert_with(SpeechFinder::new);
        let found = if channels == 1 {
            finder.find(samples(0), rate, threshold)?
        } else {
            mean((0..channels).map(samples), &mut self.mixed);
            finder.find(&self.mixed, rate, threshold)?
        };
        found.ok_or_else(|| {
            let message = format!("the audio has no speech with a score of at least {threshold}");
            Error::new(ErrorKind::InvalidArgument, message)
        })
    }
}

fn wrong_channels(found: usize, expected: &str) -> Error {
    let message = format!("expected {expected}, found {found} channels");
    Error::new(ErrorKind::InvalidArgument, message)
}
