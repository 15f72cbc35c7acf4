//! Video from descriptions.

use serde_json::Value;
use spdl_core::Result;

use super::image;
use super::settings::Settings;
use crate::augment::Augmenter;
use crate::video::{ShortVideo, VideoClip, VideoTransform};

/// The parameters of video: those of `spdl_rs.fields.Video`.
pub(super) fn video(settings: &mut Settings) -> Result<(VideoTransform, Augmenter)> {
    let mut clip = VideoClip::new(settings.get("frames")?.unwrap_or(16));
    let fps: Option<f64> = settings.get("fps")?;
    if let Some(fps) = fps {
        clip = clip.every_seconds(1.0 / fps);
    }
    match settings.value("every")? {
        None | Some(Value::Null) => {}
        Some(_) if fps.is_some() => {
            return Err(settings.fault("fps", "every and fps exclude each other"));
        }
        Some(Value::Number(frames)) => {
            let step = frames.as_u64().and_then(|frames| u32::try_from(frames).ok());
            match step {
                Some(step) => clip = clip.every_frames(step),
                None => return Err(settings.fault("every", "expected a whole number of frames")),
            }
        }
        Some(Value::String(text)) => {
            let seconds = text.strip_suffix('s').and_then(|number| number.trim().parse().ok());
            match seconds {
                Some(seconds) => clip = clip.every_seconds(seconds),
                None => {
                    let message = format!("expected seconds such as \"0.5s\", found {text:?}");
                    return Err(settings.fault("every", message));
                }
            }
        }
        Some(other) => {
            let message =
                format!("expected a number of frames or seconds such as \"0.5s\", found {other}");
            return Err(settings.fault("every", message));
        }
    }
    if let Some(start) = settings.get("start")? {
        clip = clip.start(start);
    }
    if let Some(is_random) = settings.get("random")? {
        clip = clip.random(is_random);
    }
    let short = [
        ("error", ShortVideo::Error),
        ("repeat", ShortVideo::RepeatLast),
        ("cycle", ShortVideo::Cycle),
    ];
    if let Some(short) = settings.choice("short", &short)? {
        clip = clip.short(short);
    }
    let (image, augmenter) = image::image(settings)?;
    Ok((VideoTransform::new(clip, image), augmenter))
}
