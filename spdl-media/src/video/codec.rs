//! The traits of containers and codecs, and what passes between them.

use std::fmt::Debug;

use spdl_core::Result;

use super::cues::VideoCues;
use super::index::{VideoIndex, VideoStream};
use super::limits::VideoLimits;
use crate::image::Picture;
use crate::source::MediaSource;

/// The number of leading bytes of a file that [`VideoContainer::sniff`] receives. A shorter file is
/// passed whole.
pub const VIDEO_SNIFF_BYTES: usize = 4096;

/// A container format: recognises its files and reads where the packets are.
pub trait VideoContainer: Debug + Send + Sync + 'static {
    /// The short name of the format, as in error messages: `mp4`.
    fn name(&self) -> &'static str;

    /// Whether a file with these first bytes (at most [`VIDEO_SNIFF_BYTES`]) has this format.
    fn sniff(&self, head: &[u8]) -> bool;

    /// Reads the index of one video stream: the first, or the one that the container prefers.
    ///
    /// If the container has tables, only these are read. For any input, the result is an
    /// index or one of these errors. A file that ends after its first packets has an index that is
    /// [truncated](VideoIndex::truncated).
    ///
    /// # Errors
    /// `Truncated` if the file ends inside the tables, `Corrupt` if they violate the format or there
    /// is no video stream, `Unsupported` (encryption, several sample descriptions), `LimitExceeded`,
    /// and the errors of the source.
    fn index(&self, file: &dyn MediaSource, limits: &VideoLimits) -> Result<VideoIndex>;

    /// Whether [`index`](Self::index) reads only a small part of a file. If so, a file in a store is read
    /// in parts. The provided method returns no.
    fn has_tables(&self) -> bool {
        false
    }

    /// The key frames that the file lists, if [`index`](Self::index) reads more than tables. With them, only a part of
    /// the file is read for frames at known times. The provided method returns `None`.
    ///
    /// # Errors
    /// The errors of [`index`](Self::index).
    fn cues<'a>(
        &self,
        file: &'a dyn MediaSource,
        limits: &'a VideoLimits,
    ) -> Result<Option<Box<dyn VideoCues + 'a>>> {
        let _ = (file, limits);
        Ok(None)
    }
}

/// A codec: creates decoders of streams.
///
/// All workers share one instance.
pub trait VideoCodec: Debug + Send + Sync + 'static {
    /// The short name, as in error messages: `ffmpeg`.
    fn name(&self) -> &'static str;

    /// Whether this codec decodes streams of this [codec](VideoStream::codec).
    fn decodes(&self, codec: &str) -> bool;

    /// Whether decoders of this [codec](VideoStream::codec) with several threads notice the same damage as those with
    /// one. If so, a lone clip is decoded by several threads; if it is damaged, it is decoded again by one. The provided
    /// method returns no.
    fn notices_damage_in_threads(&self, codec: &str) -> bool {
        let _ = codec;
        false
    }

    /// Creates a decoder for a stream.
    ///
    /// # Errors
    /// `Unsupported`, `Corrupt` for invalid set-up data, `LimitExceeded`.
    fn decoder(
        &self,
        stream: &VideoStream,
        options: &VideoDecoderOptions,
    ) -> Result<Box<dyn VideoDecoder>>;
}

/// The options of a decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VideoDecoderOptions {
    /// The number of threads; 1 if many videos are decoded at the same time. Default: 1.
    pub threads: u32,
    /// The number of frames that the decoder must buffer: see [`VideoIndex::reorder_depth`].
    /// Default: 0.
    pub reorder_depth: usize,
    /// The limits of frames.
    pub limits: VideoLimits,
}

impl Default for VideoDecoderOptions {
    fn default() -> Self {
        VideoDecoderOptions { threads: 1, reorder_depth: 0, limits: VideoLimits::default() }
    }
}

/// Decodes the packets of one stream.
///
/// [`send`](Self::send) takes packets in decoding order, from a key frame on; after each of them
/// [`receive`](Self::receive) returns the frames that are complete, in order of presentation. After
/// [`finish`](Self::finish) it returns the frames that were buffered. [`reset`](Self::reset) makes
/// the decoder ready for another key frame. For any input, a decoder returns frames or an error.
pub trait VideoDecoder: Send {
    /// Takes a packet. `number` names its frame: [`receive`](Self::receive) returns it. `is_key`: whether
    /// the container marks it as a key frame.
    ///
    /// # Errors
    /// `Corrupt` if the packet violates the format. Decoding can continue with the next packet.
    fn send(&mut self, packet: &[u8], number: u32, is_key: bool) -> Result<()>;

    /// Ends the packets: the frames that the decoder has buffered are then complete.
    ///
    /// # Errors
    /// Any failure of the decoder.
    fn finish(&mut self) -> Result<()>;

    /// The number of the next frame that is complete; `None` if more packets are needed, or after
    /// [`finish`](Self::finish), if there are no more frames.
    ///
    /// # Errors
    /// `Corrupt` for a damaged frame, `LimitExceeded` for a frame above the limits.
    fn receive(&mut self) -> Result<Option<DecodedFrame>>;

    /// Copies the planes of the frame that [`receive`](Self::receive) returned, in 8 bits per
    /// sample. Samples of more bits are rounded.
    ///
    /// # Errors
    /// `Unsupported` for a pixel format without planes of this kind; `LimitExceeded` if an allocation fails.
    fn copy_to(&mut self, picture: &mut Picture) -> Result<()>;

    /// Forgets all packets and frames.
    fn reset(&mut self);

    /// Whether a [`reset`](Self::reset) leaves no trace, even in frames of damaged packets. Only such a
    /// decoder is used for another video: frames never depend on what was decoded before.
    fn is_reusable(&self) -> bool;
}

/// A decoded frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodedFrame {
    /// The number of its packet.
    pub number: u32,
    /// Whether the decoder found damage in it, and concealed it.
    pub is_damaged: bool,
}
