//! A video: packets in, frames out.

use std::fmt;
use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};

use super::engine::NvDecInner;
use super::format::{VideoCodec, VideoFormat};
use super::frame::VideoFrame;
use super::parser::Parser;
use super::session::Session;

/// What a video may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoLimits {
    /// The most pixels of a frame.
    pub(crate) most_pixels: u64,
    /// The most frames that wait to be taken.
    pub(crate) most_waiting_frames: usize,
}

impl Default for VideoLimits {
    /// Frames of 2²⁶ pixels, twice those of 8K, and 64 that wait.
    fn default() -> Self {
        VideoLimits { most_pixels: 1 << 26, most_waiting_frames: 64 }
    }
}

impl VideoLimits {
    /// The most pixels of a frame, as it is coded.
    #[must_use]
    pub fn pixels(mut self, most: u64) -> Self {
        self.most_pixels = most;
        self
    }

    /// The most frames that wait to be taken, each in the device's memory. A packet of one frame seldom
    /// brings out more than a few.
    #[must_use]
    pub fn waiting_frames(mut self, most: usize) -> Self {
        self.most_waiting_frames = most;
        self
    }

    pub(crate) fn check(&self, video: &VideoFormat) -> Result<()> {
        let (width, height) = video.coded_size;
        let pixels = u64::from(width) * u64::from(height);
        if pixels <= self.most_pixels {
            return Ok(());
        }
        let message = format!(
            "this video has frames of {width} x {height} pixels; the limit is {} pixels",
            self.most_pixels
        );
        Err(Error::new(ErrorKind::LimitExceeded, message))
    }
}

/// A video that is decoded on a device; made by [`NvDec::open`](super::NvDec::open).
///
/// [`push`](VideoStream::push) takes its packets, as they come out of a container or of
/// [`AccessUnits`](super::AccessUnits) or [`IvfFile`](super::IvfFile), in their order: one picture
/// each. H.264 and HEVC have start codes, and their parameter sets come before the first picture.
/// [`next_frame`](VideoStream::next_frame) gives the frames that are decoded, in the order in which they
/// are shown, a few packets later; behind [`finish`](VideoStream::finish) come the last ones.
///
/// Frames come as they are coded: not turned, not scaled, and fields are not taken apart. Those that
/// the device calls damaged are errors, one by one; nothing is made up. An error of `push` or `finish`
/// ends this video, and no other: frames that were decoded before can still be taken.
///
/// Until a picture is decoded, `push` of a later one may wait for it, inside the library. Nothing else
/// waits: copies are put behind each other on the device.
pub struct VideoStream {
    parser: Parser,
    codec: VideoCodec,
    /// Whether the next packet goes on where the last one ended.
    follows_on: bool,
    /// With what it has ended.
    failure: Option<Error>,
}

impl VideoStream {
    pub(crate) fn new(
        engine: &Arc<NvDecInner>,
        codec: VideoCodec,
        limits: VideoLimits,
    ) -> Result<Self> {
        let session = Session::new(engine, codec, limits);
        let context = &engine.device.context;
        let parser = Parser::new(&engine.library, context, codec.code(), session)?;
        Ok(VideoStream { parser, codec, follows_on: false, failure: None })
    }

    /// Takes a packet. `timestamp` is given back with its frame; it is in units of the caller's.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty packet, which changes nothing. All others end the video, and come
    /// again with each packet: `Unsupported` where the device does not decode it, `Corrupt` where its
    /// headers contradict themselves, `LimitExceeded`, and what the driver says.
    pub fn push(&mut self, packet: &[u8], timestamp: Option<i64>) -> Result<()> {
        self.check()?;
        if packet.is_empty() {
            let message = "a packet of a video is empty";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let pushed = self.parser.push(packet, timestamp, self.follows_on);
        self.follows_on = true;
        self.note(pushed)
    }

    /// Says that this was the last packet, so that the last frames come. Another video of this codec may
    /// follow.
    ///
    /// # Errors
    /// As of [`push`](VideoStream::push).
    pub fn finish(&mut self) -> Result<()> {
        self.check()?;
        let finished = self.parser.finish();
        self.follows_on = false;
        self.note(finished)
    }

    /// The next frame in the order in which they are shown, where one is decoded.
    ///
    /// An error is that of one frame: `Corrupt` where it is damaged. Its key says which it is.
    pub fn next_frame(&mut self) -> Option<Result<VideoFrame>> {
        self.parser.session().next_frame()
    }

    /// How it is coded.
    pub fn codec(&self) -> VideoCodec {
        self.codec
    }

    /// What its latest headers say, where some have come.
    pub fn format(&mut self) -> Option<VideoFormat> {
        self.parser.session().video().copied()
    }

    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn note(&mut self, outcome: Result<()>) -> Result<()> {
        outcome.inspect_err(|error| {
            self.parser.session().is_broken = true;
            self.failure = Some(error.clone());
        })
    }
}

impl fmt::Debug for VideoStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VideoStream")
            .field("codec", &self.codec)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}
