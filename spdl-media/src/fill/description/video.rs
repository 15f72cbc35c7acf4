//! Video from descriptions.

use serde_json::Value;
use spdl_core::Result;

use super::image;
use super::settings::Settings;
use crate::augment::Augmenter;
use crate::video::{ShortVideo, VideoClip, VideoTransform};

/// The parameters of video: those of `spdl_rs.fields.Video`.
pub(super) fn video(settings: &mut Settings) -> Result<(VideoTransform, Augmenter)> {
    let frames: Option<usize> = settings.get("frames")?;
    let indices: Option<Vec<usize>> = settings.get("indices")?;
    let times: Option<Vec<f64>> = settings.get("times")?;
    let (mut clip, list) = match (indices, times) {
        (None, None) => (VideoClip::new(frames.unwrap_or(16)), None),
        (Some(indices), None) => (VideoClip::at_frames(indices), Some("indices")),
        (None, Some(times)) => (VideoClip::at_seconds(times), Some("times")),
        (Some(_), Some(_)) => {
            return Err(settings.fault("times", "indices and times exclude each other"));
        }
    };
    if let (Some(frames), Some(list)) = (frames, list)
        && frames != clip.frames()
    {
        let message = format!("{frames} frames, but {list} has {}; omit frames", clip.frames());
        return Err(settings.fault("frames", message));
    }
    let fps: Option<f64> = settings.get("fps")?;
    if let Some(fps) = fps {
        clip = clip.every_seconds(1.0 / fps);
    }
    let every = settings.value("every")?.filter(|every| !every.is_null());
    if let Some(list) = list
        && (fps.is_some() || every.is_some())
    {
        return Err(settings.fault(list, "excludes every and fps"));
    }
    match every {
        None => {}
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
