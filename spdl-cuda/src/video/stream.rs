//! A video stream: packets in, frames out.

use std::fmt;
use std::sync::Arc;

use spdl_core::{Error, ErrorKind, Result};

use super::decoders::SharedDecoders;
use super::format::{VideoCodec, VideoFormat};
use super::frame::VideoFrame;
use super::limits::VideoLimits;
use super::parser::Parser;
use super::session::Session;

/// A video that a device decodes, created by [`NvDec::open`](super::NvDec::open).
///
/// [`push`](VideoStream::push) takes packets in decoding order, one picture each, from a container,
/// from [`AccessUnits`](super::AccessUnits) or from [`IvfFile`](super::IvfFile). H.264 and HEVC
/// need start codes (Annex B), with parameter sets before the first picture.
/// [`next_frame`](VideoStream::next_frame) returns frames in display order, a few packets later.
/// [`finish`](VideoStream::finish) outputs the last frames.
///
/// Frames are neither rotated nor scaled, and interlaced fields are not separated. If the device
/// reports decoding errors in a frame, concealed or not, [`next_frame`](VideoStream::next_frame)
/// returns an error for this frame. An error of `push` or `finish` affects only this video. Frames
/// that were output before the error can still be taken.
///
/// `push` and `finish` may block inside nvcuvid until an earlier picture is decoded. No other
/// method blocks: copies are queued on the device.
pub struct VideoStream {
    parser: Parser,
    codec: VideoCodec,
    /// Whether the next packet continues the stream of the previous packet.
    is_continuous: bool,
    /// The error that ended the video.
    failure: Option<Error>,
}

impl VideoStream {
    pub(crate) fn new(
        decoders: &Arc<SharedDecoders>,
        codec: VideoCodec,
        limits: VideoLimits,
    ) -> Result<Self> {
        let session = Session::new(decoders, codec, limits);
        let context = &decoders.device.context;
        let parser = Parser::new(&decoders.library, context, codec.code(), session)?;
        Ok(VideoStream { parser, codec, is_continuous: false, failure: None })
    }

    /// Decodes a packet. The frames of the packet have this `timestamp`, if any, in units that the
    /// caller chooses.
    ///
    /// # Errors
    /// `InvalidArgument` for an empty packet, which changes nothing. Every other error ends the
    /// video, and all later calls of `push` and `finish` return the same error: `Unsupported` if
    /// the device does not decode the video, `Corrupt` if its headers are inconsistent,
    /// `LimitExceeded`, and errors of the driver.
    pub fn push(&mut self, packet: &[u8], timestamp: Option<i64>) -> Result<()> {
        self.check()?;
        if packet.is_empty() {
            let message = "empty video packet";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let pushed = self.parser.push(packet, timestamp, self.is_continuous);
        self.is_continuous = true;
        self.record(pushed)
    }

    /// Signals the end of the video, and outputs its last frames. Another video of the same codec
    /// may follow.
    ///
    /// # Errors
    /// The errors of [`push`](VideoStream::push).
    pub fn finish(&mut self) -> Result<()> {
        self.check()?;
        let finished = self.parser.finish();
        self.is_continuous = false;
        self.record(finished)
    }

    /// Returns the next decoded frame in display order, if any.
    ///
    /// If a frame could not be decoded, the error (for example `Corrupt`) affects only this frame.
    /// The key of the error contains the index and the timestamp of the frame.
    pub fn next_frame(&mut self) -> Option<Result<VideoFrame>> {
        self.parser.session().next_frame()
    }

    /// The codec.
    pub fn codec(&self) -> VideoCodec {
        self.codec
    }

    /// The format from the latest sequence header; `None` before the first header.
    pub fn format(&mut self) -> Option<VideoFormat> {
        self.parser.session().video().copied()
    }

    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    fn record(&mut self, outcome: Result<()>) -> Result<()> {
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
