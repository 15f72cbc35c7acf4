//! Limits on the videos that a reader accepts.

use std::time::Duration;

use spdl_core::{Error, ErrorKind, Result};

use crate::image::Size;

/// Limits on the videos that a reader accepts: on memory, checked before it is allocated, and on time.
///
/// Limits decide which files fail. They never change frames.
///
/// ```
/// use spdl_media::Size;
/// use spdl_media::video::VideoLimits;
/// let limits = VideoLimits::default().max_pixels(1920 * 1080);
/// assert!(limits.check_size(Size::new(3840, 2160)).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VideoLimits {
    max_pixels: u64,
    max_streams: u32,
    max_packets: u64,
    max_packet_bytes: u64,
    max_index_bytes: u64,
    max_decode_time: Duration,
}

impl Default for VideoLimits {
    /// Frames of 8192 × 8192 pixels, 1,000 streams, 2 million packets, packets of 64 MiB, an index of 256 MiB, 60
    /// seconds to decode a frame of a clip.
    fn default() -> Self {
        VideoLimits {
            max_pixels: 8192 * 8192,
            max_streams: 1000,
            max_packets: 2_000_000,
            max_packet_bytes: 64 << 20,
            max_index_bytes: 256 << 20,
            max_decode_time: Duration::from_secs(60),
        }
    }
}

impl VideoLimits {
    /// The maximum number of pixels of a frame. Default: 8192 × 8192.
    #[must_use]
    pub fn max_pixels(mut self, pixels: u64) -> Self {
        self.max_pixels = pixels;
        self
    }

    /// The maximum number of pixels of a frame.
    pub(crate) fn pixels(&self) -> u64 {
        self.max_pixels
    }

    /// The maximum number of streams of a file, of which one is decoded. Default: 1,000.
    #[must_use]
    pub fn max_streams(mut self, streams: u32) -> Self {
        self.max_streams = streams;
        self
    }

    /// The maximum number of streams of a file.
    #[cfg(feature = "ffmpeg")]
    pub(super) fn streams(&self) -> u32 {
        self.max_streams
    }

    /// The maximum number of packets of a video stream. Default: 2 million (18 hours at 30 frames
    /// per second).
    #[must_use]
    pub fn max_packets(mut self, packets: u64) -> Self {
        self.max_packets = packets;
        self
    }

    /// The maximum size of a packet in bytes. Default: 64 MiB.
    #[must_use]
    pub fn max_packet_bytes(mut self, bytes: u64) -> Self {
        self.max_packet_bytes = bytes;
        self
    }

    /// The maximum number of bytes that are read at a time to index a file. Default: 256 MiB.
    #[must_use]
    pub fn max_index_bytes(mut self, bytes: u64) -> Self {
        self.max_index_bytes = bytes;
        self
    }

    /// The maximum time that a decoder works until it returns the next requested frame. Default: 60
    /// seconds. [`Duration::MAX`]: no maximum.
    ///
    /// The time starts again with each requested frame. Reads of the file, and the work of the caller
    /// on frames, do not count. One thread decodes some 10,000 frames of 1920 × 1080 H.264 in 60
    /// seconds, and a frame rarely needs more than the 250 or so before it, from its key frame on.
    /// Whether a video fails depends on the speed of the machine; therefore the limit is far above
    /// the time of valid videos. It ends the decode of damaged ones, and of decoders that stall.
    ///
    /// A reader checks the time between calls of the decoder. It cannot interrupt a call, whose cost
    /// is bounded by [`max_pixels`](Self::max_pixels) and [`max_packet_bytes`](Self::max_packet_bytes).
    #[must_use]
    pub fn max_decode_time(mut self, time: Duration) -> Self {
        self.max_decode_time = time;
        self
    }

    /// The maximum time that a decoder works until it returns the next requested frame.
    pub(crate) fn decode_time(&self) -> Duration {
        self.max_decode_time
    }

    /// Checks the size of frames.
    ///
    /// # Errors
    /// `LimitExceeded` for too many pixels; `Corrupt` if a side is 0.
    pub fn check_size(&self, size: Size) -> Result<()> {
        if size.pixels() > self.max_pixels {
            let message =
                format!("frames of {size} pixels exceed the limit of {} pixels", self.max_pixels);
            return Err(Error::new(ErrorKind::LimitExceeded, message));
        }
        if size.pixels() == 0 {
            let message = format!("corrupt video: frames of {size} pixels");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(())
    }

    /// Checks the number of streams of a file.
    ///
    /// # Errors
    /// `LimitExceeded`.
    pub fn check_streams(&self, streams: u64) -> Result<()> {
        check(streams, self.max_streams.into(), "streams of the file")
    }

    /// Checks the number of packets of a stream.
    ///
    /// # Errors
    /// `LimitExceeded`.
    pub fn check_packets(&self, packets: u64) -> Result<()> {
        check(packets, self.max_packets, "packets of the video")
    }

    /// Checks the size of a packet.
    ///
    /// # Errors
    /// `LimitExceeded`.
    pub fn check_packet_bytes(&self, bytes: u64) -> Result<()> {
        check(bytes, self.max_packet_bytes, "bytes of a packet")
    }

    /// Checks the number of bytes that are read at a time to index a file.
    ///
    /// # Errors
    /// `LimitExceeded`.
    pub fn check_index_bytes(&self, bytes: u64) -> Result<()> {
        check(bytes, self.max_index_bytes, "bytes of the index of the container")
    }
}

fn check(found: u64, limit: u64, what: &str) -> Result<()> {
    match found <= limit {
        true => Ok(()),
        false => {
            let message = format!("{found} {what} exceed the limit of {limit}");
            Err(Error::new(ErrorKind::LimitExceeded, message))
        }
    }
}
