//! Which frames of a video become a sample.

use spdl_core::{Error, ErrorKind, Result, SampleRng};

use super::index::VideoIndex;

/// The frames of a video that become a sample: how many, how far apart, from which on.
///
/// Frames are counted in order of presentation. Times are in seconds from the first frame. Default:
/// the frames are spread evenly over the video.
///
/// ```
/// use spdl_media::video::VideoClip;
/// // Two seconds from a random position, at 8 frames per second.
/// let clip = VideoClip::new(16).every_seconds(1.0 / 8.0).random(true);
/// clip.validate()?;
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct VideoClip {
    frames: usize,
    spacing: FrameSpacing,
    start: f64,
    is_random: bool,
    short: ShortVideo,
}

/// The most frames of a clip.
const MAX_FRAMES: usize = 1 << 20;

/// The distance between the frames of a clip, or the frames themselves.
#[derive(Clone, Debug, PartialEq)]
enum FrameSpacing {
    Even,
    Frames(u32),
    Seconds(f64),
    AtFrames(Vec<usize>),
    AtSeconds(Vec<f64>),
}

/// What to do with a video that has fewer frames than a clip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ShortVideo {
    /// Fail.
    #[default]
    Error,
    /// Repeat the last frame.
    RepeatLast,
    /// Start again with the first frame of the clip.
    Cycle,
}

/// The frames of one clip.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChosenFrames {
    /// Their numbers in order of presentation, in the order of the clip.
    pub frames: Vec<usize>,
    /// How many of them, from the first on, are frames that the video has; the others are repeated.
    pub valid: usize,
}

impl VideoClip {
    /// This number of frames, spread evenly over the video: the middles of as many equal parts.
    pub fn new(frames: usize) -> Self {
        VideoClip {
            frames,
            spacing: FrameSpacing::Even,
            start: 0.0,
            is_random: false,
            short: ShortVideo::Error,
        }
    }

    /// The frames with these numbers, in order of presentation, from 0 on.
    ///
    /// ```
    /// use spdl_media::video::VideoClip;
    /// assert_eq!(VideoClip::at_frames([0, 7, 30]).frames(), 3);
    /// ```
    pub fn at_frames(frames: impl IntoIterator<Item = usize>) -> Self {
        let frames: Vec<_> = frames.into_iter().collect();
        let count = frames.len();
        VideoClip { spacing: FrameSpacing::AtFrames(frames), ..VideoClip::new(count) }
    }

    /// The frames that are shown at these times, in seconds from the first frame of the video.
    pub fn at_seconds(seconds: impl IntoIterator<Item = f64>) -> Self {
        let seconds: Vec<_> = seconds.into_iter().collect();
        let count = seconds.len();
        VideoClip { spacing: FrameSpacing::AtSeconds(seconds), ..VideoClip::new(count) }
    }

    /// Every `step`-th frame; 1 for consecutive frames.
    #[must_use]
    pub fn every_frames(mut self, step: u32) -> Self {
        self.spacing = FrameSpacing::Frames(step);
        self
    }

    /// The frames that are shown every `seconds`.
    #[must_use]
    pub fn every_seconds(mut self, seconds: f64) -> Self {
        self.spacing = FrameSpacing::Seconds(seconds);
        self
    }

    /// The time of the first frame in seconds. Default: 0. Evenly spread frames are spread over the
    /// rest of the video.
    #[must_use]
    pub fn start(mut self, seconds: f64) -> Self {
        self.start = seconds;
        self
    }

    /// Sets whether the clip has a random position after [`start`](Self::start). Evenly spread
    /// frames are drawn from as many equal parts. Default: no.
    #[must_use]
    pub fn random(mut self, is_random: bool) -> Self {
        self.is_random = is_random;
        self
    }

    /// What to do with a video that has fewer frames. Default: [`ShortVideo::Error`].
    #[must_use]
    pub fn short(mut self, short: ShortVideo) -> Self {
        self.short = short;
        self
    }

    /// The number of frames.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Whether the clip has a random position.
    pub fn is_random(&self) -> bool {
        self.is_random
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// `InvalidArgument` if the number of frames is 0 or above 2²⁰, the distance is 0, a number is negative or
    /// not finite, listed frames or times are not in ascending order, or have a start or a random position.
    pub fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorKind::InvalidArgument, message));
        if !(1..=MAX_FRAMES).contains(&self.frames) {
            let frames = self.frames;
            return invalid(format!(
                "invalid number of frames {frames}: expected 1 to {MAX_FRAMES}"
            ));
        }
        match &self.spacing {
            FrameSpacing::Frames(0) => {
                return invalid("invalid distance of 0 frames: expected at least 1".to_owned());
            }
            FrameSpacing::Seconds(seconds) if !(seconds.is_finite() && *seconds > 0.0) => {
                return invalid(format!("invalid distance of {seconds} s: expected more than 0"));
            }
            FrameSpacing::AtFrames(frames) if !frames.is_sorted() => {
                return invalid("the numbers of the frames are not in ascending order".to_owned());
            }
            FrameSpacing::AtSeconds(times) => {
                if let Some(time) = times.iter().find(|time| !(time.is_finite() && **time >= 0.0)) {
                    return invalid(format!("invalid time of {time} s: expected 0 or more"));
                }
                if !times.is_sorted() {
                    return invalid(
                        "the times of the frames are not in ascending order".to_owned(),
                    );
                }
            }
            _ => {}
        }
        if self.is_listed() && (self.is_random || self.start != 0.0) {
            return invalid(
                "a list of frames or times excludes a start and a random position".to_owned(),
            );
        }
        if !(self.start.is_finite() && self.start >= 0.0) {
            return invalid(format!("invalid start {} s: expected 0 or more", self.start));
        }
        Ok(())
    }

    /// The settings as text, such as `16 frames every 0.125 s, random`.
    pub fn description(&self) -> String {
        let mut text = format!("{} frames", self.frames);
        match &self.spacing {
            FrameSpacing::Even => text += " evenly",
            FrameSpacing::Frames(step) => text += &format!(" every {step} frames"),
            FrameSpacing::Seconds(seconds) => text += &format!(" every {seconds} s"),
            FrameSpacing::AtFrames(frames) => text += &format!(" with the numbers {frames:?}"),
            FrameSpacing::AtSeconds(times) => text += &format!(" at {times:?} s"),
        }
        if self.start > 0.0 {
            text += &format!(" from {} s", self.start);
        }
        if self.is_random {
            text += ", random";
        }
        match self.short {
            ShortVideo::Error => {}
            ShortVideo::RepeatLast => text += ", last frame repeated",
            ShortVideo::Cycle => text += ", cycled",
        }
        text
    }

    /// Whether the frames are those that are shown at certain times.
    pub(crate) fn is_by_seconds(&self) -> bool {
        matches!(self.spacing, FrameSpacing::Seconds(_) | FrameSpacing::AtSeconds(_))
    }

    /// Whether the frames or their times are listed.
    fn is_listed(&self) -> bool {
        matches!(self.spacing, FrameSpacing::AtFrames(_) | FrameSpacing::AtSeconds(_))
    }

    /// The time of the first frame if the clip has no random position.
    fn first_second(&self) -> f64 {
        match &self.spacing {
            FrameSpacing::AtSeconds(times) => times.first().copied().unwrap_or(0.0),
            _ => self.start,
        }
    }

    /// The seconds from the first to the last frame; 0 if frames have no times.
    fn length(&self) -> f64 {
        match &self.spacing {
            FrameSpacing::Seconds(step) => step * self.frames.saturating_sub(1) as f64,
            FrameSpacing::AtSeconds(times) => {
                times.last().copied().unwrap_or(0.0) - self.first_second()
            }
            _ => 0.0,
        }
    }

    /// The time of the last frame if the clip has no random position.
    pub(super) fn last_second(&self) -> f64 {
        self.first_second() + self.length()
    }

    /// The times of the first and of the last frame in a video of `seconds`; `None` if frames have no times.
    pub(super) fn seconds_between(
        &self,
        seconds: f64,
        rng: Option<&mut SampleRng>,
    ) -> Option<(f64, f64)> {
        let shift = self.is_by_seconds().then(|| self.shift(seconds, rng))?;
        Some((self.first_second() + shift, self.last_second() + shift))
    }

    /// How far the random position of a clip with times is after `start`.
    fn shift(&self, seconds: f64, rng: Option<&mut SampleRng>) -> f64 {
        let rest = seconds - self.start - self.length();
        match rng.filter(|_| self.is_random) {
            Some(rng) if rest > 0.0 => rng.range(0.0, rest),
            _ => 0.0,
        }
    }

    /// The frames of a clip of this video, with random numbers from `rng`. Without `rng`, the clip
    /// has no random position.
    ///
    /// # Errors
    /// The errors of [`validate`](Self::validate); `InvalidArgument` if the video ends before the start of
    /// the clip, or before its end and short videos are errors; the last frame of a
    /// [truncated](VideoIndex::is_truncated) video is repeated instead.
    pub fn choose(&self, index: &VideoIndex, rng: Option<&mut SampleRng>) -> Result<ChosenFrames> {
        self.validate()?;
        let rng = rng.filter(|_| self.is_random);
        let total = index.frames().len();
        let zero = index.start_seconds();
        let seconds = index.end_seconds() - zero;
        let first = match self.start > 0.0 {
            true if self.start + 5e-10 >= seconds => {
                let message = format!(
                    "the video of {seconds:.3} s ends before the start of the clip at {} s",
                    self.start
                );
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            true => index.frame_at(zero + self.start),
            false => 0,
        };
        let available = total - first;
        let count = self.frames;
        let mut chosen = ChosenFrames { frames: Vec::with_capacity(count), valid: count };
        match &self.spacing {
            FrameSpacing::Even => {
                chosen.valid = count.min(available);
                let parts = chosen.valid;
                // Part i of n frames in k parts begins at frame i·n/k.
                let begin =
                    |part: usize| (part as u128 * available as u128 / parts as u128) as usize;
                let mut rng = rng;
                for part in 0..parts {
                    let (start, end) = (begin(part), begin(part + 1));
                    let inside = match &mut rng {
                        Some(rng) => rng.below((end - start) as u64) as usize,
                        None => {
                            ((2 * part + 1) as u128 * available as u128 / (2 * parts) as u128)
                                as usize
                                - start
                        }
                    };
                    chosen.frames.push(first + start + inside);
                }
            }
            FrameSpacing::Frames(step) => {
                let step = *step as usize;
                let length = (count - 1).saturating_mul(step).saturating_add(1);
                let shift = match rng {
                    Some(rng) if length < available => {
                        rng.below((available - length + 1) as u64) as usize
                    }
                    _ => 0,
                };
                let frames = (first + shift..total).step_by(step).take(count);
                chosen.frames.extend(frames);
                chosen.valid = chosen.frames.len();
            }
            FrameSpacing::Seconds(step) => {
                let shift = self.shift(seconds, rng);
                let times = (0..count).map(|at| self.start + shift + at as f64 * step);
                // A clip begins with the first frame even if the video has no duration.
                let inside =
                    times.enumerate().take_while(|&(at, time)| at == 0 || time + 5e-10 < seconds);
                chosen.frames.extend(inside.map(|(_, time)| index.frame_at(zero + time)));
                chosen.valid = chosen.frames.len();
            }
            FrameSpacing::AtFrames(frames) => {
                chosen.frames.extend(frames.iter().copied().take_while(|frame| *frame < total));
                chosen.valid = chosen.frames.len();
            }
            FrameSpacing::AtSeconds(times) => {
                let is_inside = |time: &f64| *time == 0.0 || *time + 5e-10 < seconds;
                let inside = times.iter().copied().take_while(is_inside);
                chosen.frames.extend(inside.map(|time| index.frame_at(zero + time)));
                chosen.valid = chosen.frames.len();
            }
        }
        if chosen.valid == count {
            return Ok(chosen);
        }
        if chosen.valid == 0 {
            let message = format!(
                "the video of {total} frames and {seconds:.3} s ends before the first frame of the clip"
            );
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        match self.short {
            ShortVideo::Error if !index.is_truncated() => {
                let message = format!(
                    "the video has {} of the {count} frames of the clip ({total} frames, {seconds:.3} s); \
                     choose fewer frames, or repeat the frames of short videos (in Python `short=\"repeat\"`)",
                    chosen.valid
                );
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
            ShortVideo::Error | ShortVideo::RepeatLast => {
                let last = chosen.frames[chosen.valid - 1];
                chosen.frames.resize(count, last);
            }
            ShortVideo::Cycle => {
                let cycle: Vec<_> = chosen.frames.iter().copied().cycle().take(count).collect();
                chosen.frames = cycle;
            }
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use spdl_core::SampleId;

    use super::super::index::{VideoPacket, VideoStream};
    use super::*;
    use crate::image::Size;

    /// Frames that last 100 ms each, the first at 1 s.
    fn video(frames: i64) -> VideoIndex {
        let packet = |number: i64| VideoPacket {
            offset: 0,
            bytes: 1,
            timestamp: 1000 + 100 * number,
            is_key: number == 0,
            is_disposable: false,
        };
        let stream = VideoStream::new("h264", Size::new(4, 4));
        VideoIndex::new(stream, (0..frames).map(packet).collect(), 1000 + 100 * frames).unwrap()
    }

    fn rng(seed: u64) -> SampleRng {
        SampleRng::new(seed, SampleId::default(), "clip")
    }

    #[test]
    fn even_frames_are_the_middles_of_parts() {
        let chosen = VideoClip::new(4).choose(&video(300), None).unwrap();
        assert_eq!(chosen, ChosenFrames { frames: vec![37, 112, 187, 262], valid: 4 });
        let chosen = VideoClip::new(1).start(29.0).choose(&video(300), None).unwrap();
        assert_eq!(chosen.frames, [295]);
        let all = VideoClip::new(10).choose(&video(10), None).unwrap();
        assert_eq!(all.frames, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn random_even_frames_are_drawn_from_their_parts() {
        let clip = VideoClip::new(4).random(true);
        let mut found = [[false; 3]; 4];
        for seed in 0..64 {
            let frames = clip.choose(&video(12), Some(&mut rng(seed))).unwrap().frames;
            for (part, frame) in frames.into_iter().enumerate() {
                found[part][frame - 3 * part] = true;
            }
        }
        assert_eq!(found, [[true; 3]; 4]);
        assert_eq!(clip.choose(&video(12), None).unwrap().frames, [1, 4, 7, 10]);
    }

    #[test]
    fn frames_at_a_distance_lie_inside_the_video() {
        let clip = VideoClip::new(3).every_frames(4);
        assert_eq!(clip.choose(&video(12), None).unwrap().frames, [0, 4, 8]);
        let clip = clip.random(true);
        let mut starts = [false; 4];
        for seed in 0..64 {
            let frames = clip.choose(&video(12), Some(&mut rng(seed))).unwrap().frames;
            assert_eq!([frames[1], frames[2]], [frames[0] + 4, frames[0] + 8]);
            starts[frames[0]] = true;
        }
        assert_eq!(starts, [true; 4]);
    }

    #[test]
    fn frames_at_times_are_those_that_are_shown_then() {
        let clip = VideoClip::new(4).every_seconds(0.25).start(0.1);
        assert_eq!(clip.choose(&video(12), None).unwrap().frames, [1, 3, 6, 8]);
        let clip = VideoClip::new(12).every_seconds(0.1);
        let frames: Vec<_> = (0..12).collect();
        assert_eq!(clip.choose(&video(12), None).unwrap().frames, frames);
        let clip = VideoClip::new(2).every_seconds(1.0).random(true);
        for seed in 0..64 {
            let frames = clip.choose(&video(12), Some(&mut rng(seed))).unwrap().frames;
            assert!(frames[0] <= 2 && frames[1] <= 11 && frames[1] - frames[0] >= 10, "{frames:?}");
        }
    }

    #[test]
    fn listed_frames_and_times_are_those_of_the_list() {
        let clip = VideoClip::at_frames([0, 3, 3, 11]);
        let expected = ChosenFrames { frames: vec![0, 3, 3, 11], valid: 4 };
        assert_eq!(clip.choose(&video(12), None).unwrap(), expected);
        let clip = VideoClip::at_seconds([0.0, 0.19, 0.2, 1.19]);
        let expected = ChosenFrames { frames: vec![0, 1, 2, 11], valid: 4 };
        assert_eq!(clip.choose(&video(12), None).unwrap(), expected);
        assert_eq!(clip.seconds_between(1.2, None), Some((0.0, 1.19)));
        // No frame of the clip is in the video.
        for clip in [VideoClip::at_frames([12, 13]), VideoClip::at_seconds([1.2])] {
            let error = clip.short(ShortVideo::Cycle).choose(&video(12), None).unwrap_err();
            assert!(error.message().contains("12 frames and 1.200 s ends before"), "{error}");
        }
        let invalid = [
            (VideoClip::at_frames([]), "number of frames 0"),
            (VideoClip::at_frames([1, 0]), "ascending order"),
            (VideoClip::at_seconds([0.2, 0.1]), "ascending order"),
            (VideoClip::at_seconds([f64::NAN]), "invalid time of NaN s"),
            (VideoClip::at_seconds([-0.1]), "invalid time of -0.1 s"),
            (VideoClip::at_frames([1]).random(true), "random position"),
            (VideoClip::at_seconds([1.0]).start(1.0), "excludes a start"),
        ];
        for (clip, words) in invalid {
            let error = clip.validate().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains(words), "{error}");
        }
    }

    #[test]
    fn short_videos_are_errors_or_repeat_frames() {
        let clips = [
            VideoClip::new(5),
            VideoClip::new(5).every_frames(1),
            VideoClip::new(5).every_seconds(0.1),
            VideoClip::at_frames([0, 1, 2, 3, 4]),
            VideoClip::at_seconds([0.0, 0.1, 0.2, 0.3, 0.4]),
        ];
        for clip in clips {
            let error = clip.choose(&video(3), None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains("3 of the 5 frames"), "{error}");
            let chosen = clip.clone().short(ShortVideo::RepeatLast).choose(&video(3), None);
            assert_eq!(chosen.unwrap(), ChosenFrames { frames: vec![0, 1, 2, 2, 2], valid: 3 });
            let truncated = clip.choose(&video(3).truncated(), None).unwrap();
            assert_eq!(truncated, ChosenFrames { frames: vec![0, 1, 2, 2, 2], valid: 3 });
            let chosen = clip.short(ShortVideo::Cycle).choose(&video(3), None).unwrap();
            assert_eq!(chosen, ChosenFrames { frames: vec![0, 1, 2, 0, 1], valid: 3 });
        }
        let late = VideoClip::new(1).start(0.3).choose(&video(3), None).unwrap_err();
        assert_eq!(late.kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn invalid_settings_are_refused() {
        let invalid = [
            VideoClip::new(0),
            VideoClip::new(usize::MAX),
            VideoClip::new(1).every_frames(0),
            VideoClip::new(1).every_seconds(0.0),
            VideoClip::new(1).every_seconds(f64::NAN),
            VideoClip::new(1).start(-1.0),
        ];
        for clip in invalid {
            assert_eq!(clip.validate().unwrap_err().kind(), ErrorKind::InvalidArgument, "{clip:?}");
            assert!(clip.choose(&video(3), None).is_err());
        }
        let clip = VideoClip::new(16).every_seconds(0.5).start(1.0).random(true);
        assert_eq!(clip.description(), "16 frames every 0.5 s from 1 s, random");
    }
}
