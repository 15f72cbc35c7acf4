//! Packets whose frames a decoder has not returned.

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind};

use super::memory::Packet;
use crate::packets::has_one_frame;

/// Packets of one frame each that has not arrived. Decoders of some codecs ignore damaged packets, and report no
/// error.
#[derive(Debug)]
pub(super) struct AwaitedFrames {
    codec: String,
    /// Time stamp and position of each packet.
    packets: Vec<(i64, i64)>,
    /// The time stamp of the first packet.
    start: Option<i64>,
    /// The time stamp of the last frame.
    last: i64,
    /// The errors of the decoder, each of which explains a packet without a frame.
    errors: usize,
}

impl AwaitedFrames {
    /// `codec` is FFmpeg's name.
    pub(super) fn new(codec: String) -> Self {
        let (packets, last) = (Vec::new(), ffi::AV_NOPTS_VALUE);
        AwaitedFrames { codec, packets, start: None, last, errors: 0 }
    }

    pub(super) fn sent(&mut self, packet: &Packet) {
        let fields = packet.fields();
        let start = *self.start.get_or_insert(fields.pts);
        // Decoders leave out the frames before the first key frame of an open group, and edit lists exclude frames.
        let is_leading = fields.pts != ffi::AV_NOPTS_VALUE && fields.pts < start;
        let is_excluded = fields.flags & ffi::AV_PKT_FLAG_DISCARD != 0;
        if has_one_frame(&self.codec, packet.bytes().len()) && !is_leading && !is_excluded {
            self.packets.push((fields.pts, fields.pos));
        }
    }

    pub(super) fn failed(&mut self) {
        self.errors += 1;
    }

    /// A frame has arrived with the time stamp of its packet.
    pub(super) fn arrived(&mut self, timestamp: i64) {
        self.last = timestamp;
        let place = |wanted| self.packets.iter().position(|&(stamp, _)| stamp == wanted);
        if let Some(place) = place(timestamp).or_else(|| place(ffi::AV_NOPTS_VALUE)) {
            self.packets.remove(place);
        }
    }

    /// An error for each packet whose frame is missing, after the last packet.
    pub(super) fn take_all(&mut self) -> Vec<Error> {
        self.take(|_| true)
    }

    /// An error for each packet whose frame is missing, although a later one has arrived.
    pub(super) fn take_overdue(&mut self) -> Vec<Error> {
        let last = self.last;
        self.take(|stamp| stamp != ffi::AV_NOPTS_VALUE && stamp < last)
    }

    fn take(&mut self, is_missing: impl Fn(i64) -> bool) -> Vec<Error> {
        let new = AwaitedFrames::new(self.codec.clone());
        let AwaitedFrames { packets, errors, codec, .. } = std::mem::replace(self, new);
        let missing = packets.into_iter().filter(|&(stamp, _)| is_missing(stamp));
        let without_error = missing.skip(errors);
        let error = |(_, position)| {
            let message = format!("cannot decode a packet: the {codec} decoder returned no frame");
            let error = Error::new(ErrorKind::Corrupt, message);
            match u64::try_from(position) {
                Ok(offset) => error.with_offset(offset),
                Err(_) => error,
            }
        };
        without_error.map(error).collect()
    }
}
