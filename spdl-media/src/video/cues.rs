//! The index of the packets that a clip needs, by the key frames that a container lists.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use spdl_core::{Result, SampleRng};

use super::clip::{ChosenFrames, VideoClip};
use super::codec::VideoContainer;
use super::index::{VideoIndex, VideoStream};
use super::limits::VideoLimits;
use super::reader::check_index;
use crate::image::panicked;
use crate::source::MediaSource;

/// The bytes that are read after the position of the key frame that follows a clip. They have the headers that end
/// the scan, unless that key frame is larger.
const MARGIN: u64 = 256 << 10;

/// The key frames of a video that its container lists, without the other packets.
///
/// Frames after a key frame, in the order of the file, are presented after the key frame, except for its leading
/// frames: those that directly follow in the file and are presented before. Videos in another order are
/// read with their whole index if a frame of the clip is missing.
pub trait VideoCues {
    /// The format of the stream.
    fn stream(&self) -> &VideoStream;

    /// The key frames, in ascending order of time stamps and of positions. At least one; the first is the first
    /// key frame of the stream.
    fn keys(&self) -> &[VideoKeyFrame];

    /// The index of the packets from the last key frame at or before `first` to the last packet that may be
    /// presented at or before `last`.
    ///
    /// # Errors
    /// The errors of [`VideoContainer::index`](super::VideoContainer::index); `Corrupt` if there is no key frame.
    fn index_between(&self, first: i64, last: i64) -> Result<VideoIndex>;
}

/// A key frame that a container lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoKeyFrame {
    /// When the frame is presented, in units of the [time base](VideoStream::time_base).
    pub timestamp: i64,
    /// Where its packet is, or the group of packets that has it.
    pub position: u64,
}

/// The part of a video that a clip needs.
pub(crate) struct ClipPart {
    /// Time stamps.
    first: i64,
    last: i64,
    start: i64,
    end: i64,
}

/// The part of a video that a clip needs; `None` if the choice of frames needs all packets.
fn part_of(
    cues: &dyn VideoCues,
    clip: &VideoClip,
    rng: Option<&mut SampleRng>,
) -> Result<Option<ClipPart>> {
    let ([first, ..], Some(last)) = (cues.keys(), cues.keys().last()) else { return Ok(None) };
    let (first, last, stream) = (first.timestamp, last.timestamp, cues.stream());
    // The first key frame and its leading frames.
    let start = cues.index_between(first, first.saturating_sub(1))?.frames()[0].timestamp;
    let zero = stream.seconds(start);
    // The last key frame is not the end of the video, but later than all frames of most clips.
    let mut end = last;
    if clip.is_random() || clip.last_second() + 1e-3 >= stream.seconds(last) - zero {
        end = cues.index_between(last, i64::MAX)?.end();
    }
    let Some((from, to)) = clip.seconds_between(stream.seconds(end) - zero, rng) else {
        return Ok(None);
    };
    let [first, last] = [from, to].map(|seconds| stream.timestamp_at(zero + seconds));
    Ok(Some(ClipPart { first, last, start, end }))
}

/// The frames of a clip, and the index of the part of the video that has them; `None` if the whole index is needed.
pub(crate) fn index_of_clip(
    container: &dyn VideoContainer,
    file: &dyn MediaSource,
    limits: &VideoLimits,
    clip: &VideoClip,
    rng: &dyn Fn() -> Option<SampleRng>,
) -> Result<Option<(VideoIndex, ChosenFrames)>> {
    with_cues(container, file, limits, clip, |cues| {
        let Some(part) = part_of(cues, clip, rng().as_mut())? else { return Ok(None) };
        let index = cues.index_between(part.first, part.last)?;
        check_index(&index, limits)?;
        let index = index.part_of(part.start, part.end);
        let chosen = clip.choose(&index, rng().as_mut())?;
        Ok(Some((index, chosen)))
    })
}

/// The bytes of a file that [`index_of_clip`] and the decoder read for a clip; `None` if the whole index is
/// needed.
#[cfg(feature = "records")]
pub(crate) fn bytes_of_clip(
    container: &dyn VideoContainer,
    file: &dyn MediaSource,
    limits: &VideoLimits,
    clip: &VideoClip,
    rng: Option<&mut SampleRng>,
) -> Result<Option<Range<u64>>> {
    with_cues(container, file, limits, clip, |cues| {
        let part = part_of(cues, clip, rng)?;
        Ok(part.map(|part| bytes_between(cues.keys(), part.first, part.last, file.size())))
    })
}

fn with_cues<T>(
    container: &dyn VideoContainer,
    file: &dyn MediaSource,
    limits: &VideoLimits,
    clip: &VideoClip,
    function: impl FnOnce(&dyn VideoCues) -> Result<Option<T>>,
) -> Result<Option<T>> {
    if !clip.is_by_seconds() {
        return Ok(None);
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| match container.cues(file, limits)? {
        Some(cues) => function(&*cues),
        None => Ok(None),
    }));
    outcome.unwrap_or_else(|panic| {
        Err(panicked(&format!("{} reader", container.name()), panic.as_ref()))
    })
}

/// The key frame at which the packets of frames from `first` on start.
pub(super) fn key_at(keys: &[VideoKeyFrame], first: i64) -> usize {
    keys.partition_point(|key| key.timestamp <= first).saturating_sub(1)
}

/// The bytes of the packets for frames from `first` to `last`, in a file of `size` bytes.
pub(super) fn bytes_between(
    keys: &[VideoKeyFrame],
    first: i64,
    last: i64,
    size: u64,
) -> Range<u64> {
    let start = keys[key_at(keys, first)].position;
    let last_position = keys[key_at(keys, last)].position;
    let after = keys.iter().find(|key| key.timestamp > last && key.position > last_position);
    let end = after.map_or(size, |key| key.position.saturating_add(MARGIN).min(size));
    start..end.max(start)
}
