//! Where the packets of a video stream are in their file, and the order of presentation.

use spdl_core::{Error, ErrorKind, Result};

use crate::image::{ChromaSiting, Orientation, Size};

/// The format of a video stream, as its container describes it.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VideoStream {
    /// The name of the codec, such as `h264`, `hevc`, `vp8`, `vp9`, `av1`, `mpeg4`, `mpeg2video`,
    /// `mjpeg`: the names that FFmpeg gives them.
    pub codec: String,
    /// The set-up data of the decoder: the content of `avcC`, `hvcC` and `av1C` in MP4, of
    /// `CodecPrivate` in Matroska, the decoder configuration of `esds`. Often empty.
    pub setup: Vec<u8>,
    /// Width and height of the coded frames, as the container has them. The decoder reports the actual size.
    pub size: Size,
    /// How frames are turned to be upright.
    pub orientation: Orientation,
    /// The length of a unit of the time stamps in seconds: numerator and denominator, not 0.
    pub time_base: (u32, u32),
    /// The colours that the container names. A codec that names its own takes precedence.
    pub color: VideoColor,
}

/// How the samples of a video encode colours. Properties that are not named are `None`. Numbers are those of
/// ITU-T H.273.
///
/// Frames are converted to RGB without a change of primaries or of transfer characteristics: tone mapping of HDR video
/// is left to the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VideoColor {
    /// The colour primaries: 1 for BT.709, 9 for BT.2020.
    pub primaries: Option<u8>,
    /// The transfer characteristics: 1 for BT.709, 16 for PQ (SMPTE ST 2084), 18 for HLG (ARIB STD-B67).
    pub transfer: Option<u8>,
    /// The matrix coefficients: 1 for BT.709, 9 for BT.2020.
    pub matrix: Option<u8>,
    /// Whether samples use all values (full range).
    pub is_full_range: Option<bool>,
    /// Where the samples of chroma are.
    pub siting: Option<ChromaSiting>,
}

impl VideoColor {
    /// Colours with these primaries, transfer characteristics and matrix coefficients, of which 2 stands for
    /// unspecified ones.
    pub(super) fn of_numbers(numbers: [u64; 3]) -> Self {
        const UNSPECIFIED: u8 = 2;
        let known = |number| u8::try_from(number).ok().filter(|&number| number != UNSPECIFIED);
        let [primaries, transfer, matrix] = numbers.map(known);
        VideoColor { primaries, transfer, matrix, ..VideoColor::default() }
    }

    /// Whether the transfer characteristics are those of high dynamic range: PQ or HLG.
    pub fn is_hdr(&self) -> bool {
        matches!(self.transfer, Some(16 | 18))
    }
}

impl VideoStream {
    /// A stream of this codec, upright, with time stamps in milliseconds.
    pub fn new(codec: impl Into<String>, size: Size) -> Self {
        VideoStream {
            codec: codec.into(),
            setup: Vec::new(),
            size,
            orientation: Orientation::default(),
            time_base: (1, 1000),
            color: VideoColor::default(),
        }
    }

    /// A time stamp in seconds.
    pub fn seconds(&self, timestamp: i64) -> f64 {
        let (numerator, denominator) = self.time_base;
        timestamp as f64 * f64::from(numerator) / f64::from(denominator)
    }

    /// The seconds between two successive time stamps.
    fn unit(&self) -> f64 {
        let (numerator, denominator) = self.time_base;
        f64::from(numerator) / f64::from(denominator)
    }

    /// A frame has begun at `seconds` if its time stamp in seconds is at most this one.
    fn latest_begin(&self, seconds: f64) -> f64 {
        // Time stamps are rounded: in Matroska, to milliseconds.
        seconds + (0.5 * self.unit()).min(5e-4) + 5e-10
    }

    /// The latest time stamp of a frame that has begun at `seconds`.
    pub(super) fn timestamp_at(&self, seconds: f64) -> i64 {
        let latest = self.latest_begin(seconds);
        // Rounding of the division may shift the result by one unit.
        let near = (latest / self.unit()) as i64;
        let begun = (near.saturating_sub(2)..=near.saturating_add(2)).rev();
        let mut begun = begun.filter(|timestamp| self.seconds(*timestamp) <= latest);
        begun.next().unwrap_or(near)
    }
}

/// A packet of a stream: the encoded form of one frame, in most cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoPacket {
    /// The position of the first byte in the file, or in the [copy](VideoIndex::packet_bytes) of the packets.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u32,
    /// When the frame is presented, in units of the [time base](VideoStream::time_base).
    pub timestamp: i64,
    /// Whether decoding can start here.
    pub is_key: bool,
    /// Whether the container states that no other frame refers to this one (`sdtp` in MP4, the flag
    /// "discardable" in Matroska).
    pub is_disposable: bool,
}

/// The packets of one video stream in decoding order, and its frames in order of presentation.
///
/// A container makes the index from its tables, without decoding. The number of threads and the decoder
/// have no influence on the index.
#[derive(Clone, Debug, PartialEq)]
pub struct VideoIndex {
    stream: VideoStream,
    packets: Vec<VideoPacket>,
    frames: Vec<VideoFrame>,
    start: i64,
    end: i64,
    reorder_depth: usize,
    /// The numbers of the packets that are key frames.
    keys: Vec<u32>,
    /// The packets, if they are no ranges of the file.
    copied: Option<Vec<u8>>,
    is_truncated: bool,
}

/// A frame in order of presentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoFrame {
    /// The number of the packet that holds the frame.
    pub packet: u32,
    /// When the frame is presented, in units of the [time base](VideoStream::time_base), after edit
    /// lists.
    pub timestamp: i64,
}

impl VideoIndex {
    /// The packets of a stream in decoding order; every packet is presented once, in order of time
    /// stamps. `end` is the time stamp at which the last frame ends.
    ///
    /// # Errors
    /// `Corrupt` if there are no packets, or none is a key frame; `LimitExceeded` for more than
    /// 2³² packets.
    pub fn new(stream: VideoStream, packets: Vec<VideoPacket>, end: i64) -> Result<Self> {
        let count = u32::try_from(packets.len()).unwrap_or(u32::MAX);
        let mut frames: Vec<_> = (0..count)
            .zip(&packets)
            .map(|(packet, entry)| VideoFrame { packet, timestamp: entry.timestamp })
            .collect();
        // A stable sort: frames with equal time stamps keep the order of decoding.
        frames.sort_by_key(|frame| frame.timestamp);
        VideoIndex::with_frames(stream, packets, frames, end)
    }

    /// Like [`new`](Self::new), with the frames that an edit list selects, in order of presentation.
    ///
    /// # Errors
    /// `Corrupt` if there are no frames or no key frame, a frame has no packet, or frames are not in
    /// order of time stamps.
    pub fn with_frames(
        stream: VideoStream,
        packets: Vec<VideoPacket>,
        frames: Vec<VideoFrame>,
        end: i64,
    ) -> Result<Self> {
        let corrupt = |message: &str| Err(Error::new(ErrorKind::Corrupt, message));
        if frames.is_empty() {
            return corrupt("corrupt video: the stream has no frames");
        }
        if !packets.iter().any(|packet| packet.is_key) {
            return corrupt("corrupt video: no frame of the stream is a key frame");
        }
        if frames.iter().any(|frame| frame.packet as usize >= packets.len()) {
            return corrupt("corrupt video: a frame without a packet");
        }
        if !frames.is_sorted_by_key(|frame| frame.timestamp) {
            return corrupt("corrupt video: frames are not in order of time stamps");
        }
        let start = frames[0].timestamp;
        let end = end.max(frames[frames.len() - 1].timestamp);
        let reorder_depth = reorder_depth(&packets);
        let keys = (0_u32..).zip(&packets).filter(|(_, packet)| packet.is_key);
        let keys = keys.map(|(number, _)| number).collect();
        Ok(VideoIndex {
            stream,
            packets,
            frames,
            start,
            end,
            reorder_depth,
            keys,
            copied: None,
            is_truncated: false,
        })
    }

    /// Sets the bytes of all packets. Positions of packets are positions in `bytes`, no longer in the
    /// file. For containers that divide packets, such as MPEG transport streams.
    #[must_use]
    pub fn with_packet_bytes(mut self, bytes: Vec<u8>) -> Self {
        self.copied = Some(bytes);
        self
    }

    /// Marks the file as one that ends early: an unknown number of packets is missing from this index.
    #[must_use]
    pub fn truncated(mut self) -> Self {
        self.is_truncated = true;
        self
    }

    /// Whether the file ends early, so that an unknown number of packets is missing from this index. Packets
    /// that are listed, but are beyond the end of the file, do not count.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    /// Sets the time stamps of the start and the end of the video, of which this index is a part.
    #[must_use]
    pub(super) fn part_of(mut self, start: i64, end: i64) -> Self {
        (self.start, self.end) = (start, end);
        self
    }

    /// The time stamp at which the last frame ends.
    pub(super) fn end(&self) -> i64 {
        self.end
    }

    /// The format of the stream.
    pub fn stream(&self) -> &VideoStream {
        &self.stream
    }

    /// The packets in decoding order.
    pub fn packets(&self) -> &[VideoPacket] {
        &self.packets
    }

    /// The frames in order of presentation.
    pub fn frames(&self) -> &[VideoFrame] {
        &self.frames
    }

    /// The bytes of all packets, if they are no ranges of the file.
    pub fn packet_bytes(&self) -> Option<&[u8]> {
        self.copied.as_deref()
    }

    /// The last key frame before the packet of this number.
    pub(super) fn key_before(&self, packet: usize) -> Option<usize> {
        let before = self.keys.partition_point(|&key| (key as usize) < packet);
        before.checked_sub(1).map(|at| self.keys[at] as usize)
    }

    /// Where decoding of the frame of a packet starts: the last key frame at or before the packet that
    /// is not presented after it. A frame that is presented before a key frame which precedes it in
    /// the stream may refer to frames before that key frame (an open group of pictures).
    pub(super) fn start_of(&self, packet: usize) -> usize {
        let timestamp = self.packets[packet].timestamp;
        let mut end = packet + 1;
        while let Some(key) = self.key_before(end) {
            if self.packets[key].timestamp <= timestamp {
                return key;
            }
            end = key;
        }
        // Without such a key frame, the first one that precedes the packet.
        self.keys.first().map_or(0, |key| *key as usize).min(packet)
    }

    /// When a frame is presented, in seconds; `None` if there is no such frame.
    pub fn seconds(&self, frame: usize) -> Option<f64> {
        self.frames.get(frame).map(|frame| self.stream.seconds(frame.timestamp))
    }

    /// When the first frame is presented, in seconds.
    pub fn start_seconds(&self) -> f64 {
        self.stream.seconds(self.start)
    }

    /// When the last frame ends, in seconds.
    pub fn end_seconds(&self) -> f64 {
        self.stream.seconds(self.end)
    }

    /// The mean number of frames per second; 0 if the stream has no duration.
    pub fn frames_per_second(&self) -> f64 {
        let seconds = self.end_seconds() - self.start_seconds();
        if seconds > 0.0 { self.frames.len() as f64 / seconds } else { 0.0 }
    }

    /// The frame that is shown at `seconds`: the last one that is presented at this time or before.
    /// The first frame before that, the last frame after the end.
    pub fn frame_at(&self, seconds: f64) -> usize {
        let latest = self.stream.latest_begin(seconds);
        let is_shown = |frame: &VideoFrame| self.stream.seconds(frame.timestamp) <= latest;
        self.frames.partition_point(is_shown).saturating_sub(1)
    }

    /// The largest number of frames that precede a frame in decoding order and are presented after
    /// it: what a decoder must buffer to return frames in order of presentation. At most 16.
    pub fn reorder_depth(&self) -> usize {
        self.reorder_depth
    }
}

/// The most frames that a codec buffers.
const MAX_REORDER_DEPTH: usize = 16;

/// See [`VideoIndex::reorder_depth`].
fn reorder_depth(packets: &[VideoPacket]) -> usize {
    let held = |at: usize| {
        let before = &packets[at.saturating_sub(2 * MAX_REORDER_DEPTH)..at];
        before.iter().filter(|packet| packet.timestamp > packets[at].timestamp).count()
    };
    (0..packets.len()).map(held).max().unwrap_or(0).min(MAX_REORDER_DEPTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets with these time stamps.
    fn index(timestamps: &[i64]) -> VideoIndex {
        let packet = |(number, &timestamp): (usize, &i64)| VideoPacket {
            offset: 10 * number as u64,
            bytes: 10,
            timestamp,
            is_key: number == 0,
            is_disposable: false,
        };
        let packets = timestamps.iter().enumerate().map(packet).collect();
        let stream = VideoStream::new("h264", Size::new(4, 4));
        VideoIndex::new(stream, packets, timestamps.len() as i64 * 100).unwrap()
    }

    #[test]
    fn frames_are_in_order_of_presentation() {
        let index = index(&[0, 300, 100, 200, 400]);
        let packets: Vec<_> = index.frames().iter().map(|frame| frame.packet).collect();
        assert_eq!(packets, [0, 2, 3, 1, 4]);
        assert_eq!(index.reorder_depth(), 1);
        assert_eq!((index.start_seconds(), index.end_seconds()), (0.0, 0.5));
        assert_eq!(index.frames_per_second(), 10.0);
    }

    #[test]
    fn a_frame_is_shown_until_the_next_one() {
        let index = index(&[0, 300, 100, 200, 400]);
        let times = [-1.0, 0.0, 0.099, 0.1, 0.399, 0.4, 9.0];
        assert_eq!(times.map(|time| index.frame_at(time)), [0, 0, 0, 1, 3, 4, 4]);
        assert_eq!(index.seconds(3), Some(0.3));
        assert_eq!(index.seconds(5), None);
    }

    #[test]
    fn rounded_time_stamps_belong_to_their_frames() {
        // 30 frames per second in milliseconds.
        let index = index(&[0, 33, 67, 100, 133, 167, 200]);
        for frame in 0..7 {
            assert_eq!(index.frame_at(frame as f64 / 30.0), frame);
        }
    }

    #[test]
    fn a_stream_without_frames_or_key_frames_is_corrupt() {
        let stream = VideoStream::new("h264", Size::new(4, 4));
        let error = VideoIndex::new(stream.clone(), Vec::new(), 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let packet =
            VideoPacket { offset: 0, bytes: 1, timestamp: 0, is_key: false, is_disposable: false };
        let error = VideoIndex::new(stream, vec![packet], 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}
