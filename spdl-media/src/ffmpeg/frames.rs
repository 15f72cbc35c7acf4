//! Decoded frames as values.

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::codec::{MediaKind, Rational, layout_name, positive};
use super::memory::{Frame, entries};
use super::metadata;
use super::names;
use super::packets::seconds;

/// Decoded frames of one stream, in the order of presentation: pictures, or pieces of audio.
#[derive(Debug)]
pub struct Frames {
    kind: MediaKind,
    time_base: Rational,
    frames: Vec<Frame>,
}

impl Frames {
    pub(super) fn new(kind: MediaKind, time_base: Rational) -> Self {
        Frames { kind, time_base, frames: Vec::new() }
    }

    pub(super) fn push(&mut self, frame: Frame) {
        self.frames.push(frame);
    }

    pub(super) fn as_slice(&self) -> &[Frame] {
        &self.frames
    }

    /// Adds the frames of `other` after the own ones.
    ///
    /// # Errors
    /// `InvalidArgument` if both have frames, of different kinds or units of time.
    pub fn append(&mut self, mut other: Frames) -> Result<()> {
        if other.is_empty() {
            return Ok(());
        }
        // Filters may change kind and unit.
        if self.is_empty() {
            (self.kind, self.time_base) = (other.kind, other.time_base);
        }
        if (self.kind, self.time_base) != (other.kind, other.time_base) {
            let message = "cannot join frames of different kinds or units of time";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.frames.append(&mut other.frames);
        Ok(())
    }

    /// Removes the first `count` frames, or all, and returns them.
    pub fn take_first(&mut self, count: usize) -> Frames {
        let rest = self.frames.split_off(count.min(self.frames.len()));
        let frames = std::mem::replace(&mut self.frames, rest);
        Frames { kind: self.kind, time_base: self.time_base, frames }
    }

    pub(super) fn set_kind(&mut self, kind: MediaKind) {
        self.kind = kind;
    }

    pub(super) fn truncate(&mut self, count: usize) {
        self.frames.truncate(count);
    }

    pub(super) fn first(&self) -> Option<&ffi::AVFrame> {
        self.frames.first().map(Frame::fields)
    }

    /// Whether the frames are audio, video or an image.
    pub fn kind(&self) -> MediaKind {
        self.kind
    }

    /// The unit of time stamps, in seconds.
    pub fn time_base(&self) -> Rational {
        self.time_base
    }

    /// The number of pictures, or pieces of audio.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The samples per channel of audio; 0 for pictures.
    pub fn samples(&self) -> usize {
        self.frames.iter().map(|frame| positive(frame.fields().nb_samples) as usize).sum()
    }

    /// Pixels per row; 0 for audio.
    pub fn width(&self) -> u32 {
        self.first().map_or(0, |frame| positive(frame.width))
    }

    /// Rows; 0 for audio.
    pub fn height(&self) -> u32 {
        self.first().map_or(0, |frame| positive(frame.height))
    }

    /// Samples per second and channel; 0 for pictures.
    pub fn sample_rate(&self) -> u32 {
        self.first().map_or(0, |frame| positive(frame.sample_rate))
    }

    /// The number of audio channels; 0 for pictures.
    pub fn channels(&self) -> u32 {
        self.first().map_or(0, |frame| positive(frame.ch_layout.nb_channels))
    }

    /// FFmpeg's description of the audio channels, such as `stereo`.
    pub fn channel_layout(&self) -> String {
        self.first().map(|frame| layout_name(&frame.ch_layout)).unwrap_or_default()
    }

    /// The name of the format of pixels or samples, such as `rgb24` or `fltp`; empty if there are no
    /// frames.
    pub fn format(&self) -> String {
        let name = match self.kind {
            MediaKind::Audio => names::of_sample_format,
            MediaKind::Video | MediaKind::Image => names::of_pixel_format,
        };
        self.first().map(|frame| name(frame.format)).unwrap_or_default()
    }

    /// The colour primaries, transfer characteristics and matrix coefficients of the first picture: numbers of ITU-T
    /// H.273; 2 if they are unspecified.
    pub fn color_numbers(&self) -> [u64; 3] {
        self.first().map_or([2; 3], names::of_frame_colors)
    }

    /// Whether the samples of the first picture use all values; `None` if that is unspecified.
    pub fn is_full_range(&self) -> Option<bool> {
        names::of_frame_range(self.first()?)
    }

    /// The number of planes of a picture, such as 3 for `yuv420p` and 1 for `rgb24`.
    pub fn planes(&self) -> usize {
        let used =
            |frame: &ffi::AVFrame| frame.data.iter().take_while(|plane| !plane.is_null()).count();
        self.first().map_or(0, used)
    }

    /// The time stamps, in units of [`time_base`](Frames::time_base).
    pub fn timestamps(&self) -> Vec<i64> {
        self.frames.iter().map(|frame| frame.fields().pts).collect()
    }

    /// The times in seconds.
    pub fn times(&self) -> Vec<f64> {
        self.timestamps().into_iter().map(|stamp| seconds(stamp, self.time_base)).collect()
    }

    /// The metadata of the first frame, such as those of EXIF: names and values.
    ///
    /// Entries of EXIF have the name of their tag, such as `Orientation`. Numbers are separated by `", "`, and those
    /// of a fraction by `":"`. FFmpeg reads EXIF of JPEG and WebP; from version 8 on, also that of PNG and TIFF.
    pub fn metadata(&self) -> Vec<(String, String)> {
        match self.first() {
            None => Vec::new(),
            Some(frame) if self.kind == MediaKind::Image => metadata::of_image(frame),
            // SAFETY: the dictionary belongs to the frame, which `&self` keeps unchanged.
            Some(frame) => unsafe { entries(frame.metadata) },
        }
    }

    /// The frames at some positions, without a copy of their content.
    ///
    /// # Errors
    /// `InvalidArgument` if a position is not smaller than the number of frames; `LimitExceeded` if no memory is left.
    pub fn pick(&self, positions: impl IntoIterator<Item = usize>) -> Result<Self> {
        let mut picked = Frames::new(self.kind, self.time_base);
        for position in positions {
            let frame = self.frames.get(position).ok_or_else(|| {
                let message = format!("there is no frame {position} in {} frames", self.len());
                Error::new(ErrorKind::InvalidArgument, message)
            })?;
            picked.push(frame.share()?);
        }
        Ok(picked)
    }

    /// One picture as an image.
    ///
    /// # Errors
    /// As [`pick`](Frames::pick).
    pub fn image(&self, position: usize) -> Result<Self> {
        let mut picked = self.pick([position])?;
        picked.kind = MediaKind::Image;
        Ok(picked)
    }

    /// Another value that shares the content of the frames.
    ///
    /// # Errors
    /// `LimitExceeded` if no memory is left.
    pub fn share(&self) -> Result<Self> {
        self.pick(0..self.len())
    }
}
