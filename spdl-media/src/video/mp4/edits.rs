//! Edit lists: which samples are presented, and when.
//!
//! The rules are those of FFmpeg's demuxer of MP4, so that time stamps equal those of `ffprobe`:
//!
//! - The first sample in decoding order that an edit presents is decoded at the start of the edit.
//! - If then no frame is presented at the start (or after the empty edits at the start), all frames
//!   move back by the same time.
//! - After the end of an edit, samples up to the next key frame count; up to the second one if there
//!   are composition offsets.
//!
//! Two rules differ. Empty edits between others present nothing, while FFmpeg presents the start of
//! the track there. Frames of overlapping edits are in order of their time stamps.

use spdl_core::{Error, ErrorKind, Result};

use super::boxes::Mp4Box;
use super::tables::Mp4Sample;
use crate::video::index::VideoFrame;
use crate::video::limits::VideoLimits;

/// An entry of `elst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Edit {
    /// In units of the track; 0 in the file stands for "to the end".
    pub(super) duration: Option<i64>,
    /// In units of the track; `None` for an empty edit.
    pub(super) media_time: Option<i64>,
}

/// Reads `elst`. Durations in it are in units of the movie, `movie_scale` of which are a second.
pub(super) fn read_edits(
    elst: Mp4Box<'_>,
    movie_scale: u32,
    track_scale: u32,
) -> Result<Vec<Edit>> {
    let is_long = elst.u8(0)? == 1;
    let entry = if is_long { 20 } else { 12 };
    let half = if is_long { 8 } else { 4 };
    let entries = elst.table(4, entry)?.chunks_exact(entry);
    let mut edits = Vec::new();
    edits.try_reserve_exact(entries.len()).map_err(|_| {
        Error::new(ErrorKind::LimitExceeded, "cannot allocate the edit list of an MP4 file")
    })?;
    for entry in entries {
        let number = |bytes: &[u8]| bytes.iter().fold(0, |all, &byte| all << 8 | u64::from(byte));
        let duration = number(&entry[..half]);
        let media_time = number(&entry[half..2 * half]);
        let media_time = if is_long {
            media_time.cast_signed()
        } else {
            (media_time as u32).cast_signed().into()
        };
        let duration = rescale(duration, track_scale, movie_scale);
        let media_time = Some(media_time).filter(|&time| time >= 0);
        // An empty edit of no duration changes nothing.
        let duration = Some(duration).filter(|&duration| duration > 0 || media_time.is_none());
        edits.push(Edit { duration, media_time });
    }
    Ok(edits)
}

/// `value * numerator / denominator`, rounded to the nearest, halves up.
fn rescale(value: u64, numerator: u32, denominator: u32) -> i64 {
    let denominator = u128::from(denominator.max(1));
    let scaled = (u128::from(value) * u128::from(numerator) + denominator / 2) / denominator;
    // Far below the maximum: sums of a few of them do not overflow.
    scaled.min(1 << 60) as i64
}

/// How far time stamps move if the edit list only sets the start: in fragmented files.
pub(super) fn start_shift(edits: &[Edit]) -> i64 {
    match edits {
        [Edit { media_time: None, duration }, Edit { media_time: Some(time), .. }, ..] => {
            duration.unwrap_or(0).saturating_sub(*time)
        }
        [Edit { media_time: None, duration }, ..] => duration.unwrap_or(0),
        [Edit { media_time: Some(time), .. }, ..] => -time,
        [] => 0,
    }
}

/// The frames that the edits present, in order of presentation, and the time stamp of their end.
pub(super) fn apply_edits(
    edits: &[Edit],
    samples: &[Mp4Sample],
    has_composition_offsets: bool,
    limits: &VideoLimits,
) -> Result<(Vec<VideoFrame>, i64)> {
    // Frames, and the end of each.
    let mut frames: Vec<(VideoFrame, i64)> = Vec::new();
    let keys: Vec<usize> = (0..samples.len()).filter(|&at| samples[at].is_key).collect();
    let (mut edit_start, mut empty) = (0_i64, 0_i64);
    let mut has_media = false;
    let mut steps = 0;
    for edit in edits {
        let start = edit_start;
        edit_start = edit_start.saturating_add(edit.duration.unwrap_or(0));
        let Some(media_time) = edit.media_time else {
            if !has_media {
                empty = empty.saturating_add(edit.duration.unwrap_or(0));
            }
            continue;
        };
        has_media = true;
        let media_end = edit.duration.map_or(i64::MAX, |length| media_time.saturating_add(length));
        let first = first_sample(samples, &keys, media_time, &mut steps);
        // Decoding time of the first frame that is presented.
        let mut origin = None;
        let mut is_key_found = false;
        for (at, sample) in samples.iter().enumerate().skip(first) {
            steps += 1;
            limits.check_packets(steps)?;
            let time = sample.composition_time;
            if (media_time..media_end).contains(&time) {
                let origin = *origin.get_or_insert(sample.decode_time);
                let timestamp = start.saturating_add(time.saturating_sub(origin));
                let frame = VideoFrame { packet: at as u32, timestamp };
                let end = timestamp.saturating_add(sample.duration.into());
                frames.try_reserve(1).map_err(|_| {
                    let message = format!("cannot allocate the index of {} frames", frames.len());
                    Error::new(ErrorKind::LimitExceeded, message)
                })?;
                frames.push((frame, end));
            }
            let next = match samples.get(at + 1) {
                Some(next) => time.saturating_add(next.decode_time - sample.decode_time),
                None => i64::MAX,
            };
            if next >= media_end && sample.is_key {
                if is_key_found || !has_composition_offsets {
                    break;
                }
                is_key_found = true;
            }
        }
    }
    let first = frames.iter().map(|(frame, _)| frame.timestamp).min().unwrap_or(0);
    let excess = first.saturating_sub(empty).max(0);
    for (frame, end) in &mut frames {
        frame.timestamp = frame.timestamp.saturating_sub(excess);
        *end = end.saturating_sub(excess);
    }
    frames.sort_by_key(|(frame, _)| frame.timestamp);
    let end = frames.iter().map(|&(_, end)| end).max().unwrap_or(0);
    Ok((frames.into_iter().map(|(frame, _)| frame).collect(), end))
}

/// The sample from which FFmpeg looks for the samples of an edit: the last key frame that is decoded
/// and presented at `media_time` or before.
fn first_sample(samples: &[Mp4Sample], keys: &[usize], media_time: i64, steps: &mut u64) -> usize {
    let decoded = keys.partition_point(|&key| samples[key].decode_time <= media_time);
    for &key in keys[..decoded].iter().rev() {
        *steps += 1;
        if samples[key].composition_time <= media_time {
            return key;
        }
    }
    0
}
