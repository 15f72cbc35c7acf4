//! Audio from descriptions.

use serde_json::Value;
use spdl_core::{DType, Result};

use super::settings::Settings;
use crate::audio::{AudioChannels, AudioFeatures, AudioLayout, AudioTransform};
use crate::image::OnTruncated;

/// The parameters of audio: those of `spdl_rs.fields.Audio`.
pub(super) fn audio(settings: &mut Settings) -> Result<AudioTransform> {
    changed(settings, AudioTransform::new())
}

/// `audio` with the parameters that are given.
fn changed(settings: &mut Settings, mut audio: AudioTransform) -> Result<AudioTransform> {
    if let Some(rate) = settings.get("sample_rate")? {
        audio = audio.sample_rate(rate);
    }
    if let Some(channels) = channels(settings)? {
        audio = audio.channels(channels);
    }
    if let Some(start) = settings.get("start")? {
        audio = audio.start(start);
    }
    if let Some(duration) = settings.get("duration")? {
        audio = audio.duration(duration);
    }
    if let Some(frames) = settings.get("frames")? {
        audio = audio.frames(frames);
    }
    if let Some(is_random) = settings.get("random")? {
        audio = audio.random(is_random);
    }
    if let Some(threshold) = settings.get("trim_to_speech")? {
        audio = audio.trim_to_speech(threshold);
    }
    let dtypes = [DType::F32, DType::F16, DType::I16].map(|dtype| (dtype.name(), dtype));
    if let Some(dtype) = settings.choice("dtype", &dtypes)? {
        audio = audio.dtype(dtype);
    }
    let layouts = [("planar", AudioLayout::Planar), ("interleaved", AudioLayout::Interleaved)];
    if let Some(layout) = settings.choice("layout", &layouts)? {
        audio = audio.layout(layout);
    }
    let truncated = [("error", OnTruncated::Error), ("partial", OnTruncated::Partial)];
    if let Some(on_truncated) = settings.choice("on_truncated", &truncated)? {
        audio = audio.on_truncated(on_truncated);
    }
    Ok(audio)
}

/// The parameters of features: those of `spdl_rs.fields.Mel`.
pub(super) fn mel(settings: &mut Settings) -> Result<AudioTransform> {
    let styles = ["whisper", "fbank", "mfcc", "spectrogram"].map(|style| (style, style));
    let style = settings.choice("style", &styles)?.unwrap_or("whisper");
    let bins: Option<usize> = settings.get("bins")?;
    let scale = settings.get("scale")?.unwrap_or(1.0);
    let size = settings.get("size")?.unwrap_or(400);
    let hop = settings.get("hop")?.unwrap_or(160);
    let is_spectrogram = style == "spectrogram";
    let unused = [
        ("bins", is_spectrogram && bins.is_some()),
        ("scale", !matches!(style, "fbank" | "mfcc") && scale != 1.0),
        ("size", !is_spectrogram && size != 400),
        ("hop", !is_spectrogram && hop != 160),
    ];
    if let Some((key, _)) = unused.into_iter().find(|(_, is_unused)| *is_unused) {
        return Err(settings.fault(key, format_args!("has no effect on the style {style:?}")));
    }
    let features = match style {
        "fbank" => AudioFeatures::fbank(bins.unwrap_or(23)).scale(scale),
        "mfcc" => AudioFeatures::mfcc(bins.unwrap_or(13)).scale(scale),
        "spectrogram" => AudioFeatures::spectrogram(size, hop),
        _ => AudioFeatures::whisper(bins.unwrap_or(80)),
    };
    let defaults = AudioTransform::new().sample_rate(16_000).channels(AudioChannels::Mono);
    Ok(changed(settings, defaults)?.features(features))
}

/// A number of channels, or a word; `channel` is the index of one of them.
fn channels(settings: &mut Settings) -> Result<Option<AudioChannels>> {
    let index: Option<u16> = settings.get("channel")?;
    let named = match settings.value("channels")? {
        None | Some(Value::Null) => None,
        Some(Value::String(word)) if word == "all" => Some(AudioChannels::All),
        Some(Value::String(word)) if word == "mono" => Some(AudioChannels::Mono),
        Some(Value::Number(count)) => {
            let count = count.as_u64().and_then(|count| u16::try_from(count).ok());
            match count.filter(|count| *count > 0) {
                Some(count) => Some(AudioChannels::Exactly(count)),
                None => return Err(settings.fault("channels", "expected at least 1")),
            }
        }
        Some(other) => {
            let message = format!("expected \"all\", \"mono\" or a number, found {other}");
            return Err(settings.fault("channels", message));
        }
    };
    match (named, index) {
        (Some(_), Some(_)) => {
            Err(settings.fault("channel", "channels and channel exclude each other"))
        }
        (Some(channels), None) => Ok(Some(channels)),
        (None, Some(index)) => Ok(Some(AudioChannels::One(index))),
        (None, None) => Ok(None),
    }
}
