//! Encoded packets as values.

use ffmpeg_next::ffi;
use spdl_core::{Error, ErrorKind, Result};

use super::codec::{MediaKind, Rational, StreamCodec};
use super::memory::Packet;

/// A time in seconds, as an exact fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    numerator: i64,
    denominator: i64,
}

impl Time {
    /// `numerator` / `denominator` seconds.
    ///
    /// # Errors
    /// `InvalidArgument` unless the denominator is positive.
    pub fn new(numerator: i64, denominator: i64) -> Result<Self> {
        if denominator > 0 {
            return Ok(Time { numerator, denominator });
        }
        let message = format!("the time {numerator}/{denominator} has no positive denominator");
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Numerator and denominator.
    pub(super) fn parts(self) -> (i64, i64) {
        (self.numerator, self.denominator)
    }

    /// In seconds, rounded.
    pub fn to_f64(self) -> f64 {
        self.numerator as f64 / self.denominator as f64
    }

    /// In units, rounded down; at most [`i64::MAX`].
    pub(super) fn in_units(self, unit: Rational) -> i64 {
        let scaled = i128::from(self.numerator) * i128::from(unit.denominator);
        let divisor = i128::from(self.denominator) * i128::from(unit.numerator.max(1));
        i64::try_from(scaled.div_euclid(divisor)).unwrap_or(i64::MAX)
    }

    /// The first time stamp that is not before this time; at least [`i64::MIN`], and at most [`i64::MAX`].
    fn first_stamp(self, unit: Rational) -> i64 {
        let scaled = i128::from(self.numerator) * i128::from(unit.denominator);
        let divisor = i128::from(self.denominator) * i128::from(unit.numerator.max(1));
        let stamp = -(-scaled).div_euclid(divisor);
        stamp.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// Whether this time is after `other`.
    fn is_after(self, other: Time) -> bool {
        let (own, others) = (i128::from(self.numerator), i128::from(other.numerator));
        own * i128::from(other.denominator) > others * i128::from(self.denominator)
    }

    /// The later one of two times.
    fn latest(self, other: Time) -> Time {
        if self.is_after(other) { self } else { other }
    }

    /// Whether a time stamp is before this time.
    fn is_later_than(self, timestamp: i64, unit: Rational) -> bool {
        let stamp = i128::from(timestamp) * i128::from(unit.numerator);
        // Products of 64 and 32 bits; the other factor has 64 bits, so the product may exceed 128 bits.
        match stamp.checked_mul(self.denominator.into()) {
            Some(stamp) => stamp < i128::from(self.numerator) * i128::from(unit.denominator),
            None => stamp < 0,
        }
    }
}

/// The times from a start up to, but not including, an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWindow {
    start: Time,
    end: Time,
}

impl TimeWindow {
    /// The times `[start, end)`; none if they are equal.
    ///
    /// # Errors
    /// `InvalidArgument` if the end is before the start.
    pub fn new(start: Time, end: Time) -> Result<Self> {
        if !start.is_after(end) {
            return Ok(TimeWindow { start, end });
        }
        let message = format!(
            "the window must not end before its start; it is {} to {} s",
            start.to_f64(),
            end.to_f64()
        );
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// The first time.
    pub fn start(self) -> Time {
        self.start
    }

    /// The end.
    pub fn end(self) -> Time {
        self.end
    }

    /// The times that are in both windows; none, at the later start, if the windows do not overlap.
    fn intersection(self, other: TimeWindow) -> TimeWindow {
        let start = self.start.latest(other.start);
        let end = if self.end.is_after(other.end) { other.end } else { self.end };
        TimeWindow { start, end: start.latest(end) }
    }

    /// Whether a time stamp is in the window.
    pub(super) fn contains(self, timestamp: i64, unit: Rational) -> bool {
        !self.start.is_later_than(timestamp, unit) && self.end.is_later_than(timestamp, unit)
    }

    /// Whether a time stamp is after the window.
    pub(super) fn is_over(self, timestamp: i64, unit: Rational) -> bool {
        !self.end.is_later_than(timestamp, unit)
    }
}

/// Packets of one stream, in the order of decoding.
#[derive(Debug)]
pub struct Packets {
    kind: MediaKind,
    codec: Option<StreamCodec>,
    time_base: Rational,
    window: Option<TimeWindow>,
    /// Whether packets may have frames that are never shown, as in VP8.
    is_vp8: bool,
    packets: Vec<Packet>,
}

impl Packets {
    pub(super) fn new(kind: MediaKind, time_base: Rational) -> Self {
        Packets { kind, codec: None, time_base, window: None, is_vp8: false, packets: Vec::new() }
    }

    pub(super) fn with_codec(mut self, codec: StreamCodec) -> Self {
        self.is_vp8 = codec.name() == "vp8";
        self.codec = Some(codec);
        self
    }

    pub(super) fn set_window(&mut self, window: Option<TimeWindow>) {
        self.window = window;
    }

    pub(super) fn push(&mut self, packet: Packet) {
        self.packets.push(packet);
    }

    /// Adds the packets of `other` after the own ones.
    ///
    /// # Errors
    /// `InvalidArgument` if they differ in kind or unit of time.
    pub fn append(&mut self, mut other: Packets) -> Result<()> {
        if (self.kind, self.time_base) != (other.kind, other.time_base) {
            let message = "cannot join packets of different kinds or units of time";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        self.packets.append(&mut other.packets);
        Ok(())
    }

    pub(super) fn as_slice(&self) -> &[Packet] {
        &self.packets
    }

    /// Whether the packets are audio, video or an image.
    pub fn kind(&self) -> MediaKind {
        self.kind
    }

    /// How the packets are encoded. Packets of [`Demuxer::read_some`](super::Demuxer::read_some) lack it.
    pub fn codec(&self) -> Option<&StreamCodec> {
        self.codec.as_ref()
    }

    /// The unit of time stamps, in seconds.
    pub fn time_base(&self) -> Rational {
        self.time_base
    }

    /// The times whose frames are wanted.
    pub fn window(&self) -> Option<TimeWindow> {
        self.window
    }

    /// The window in units of [`time_base`](Packets::time_base): the time stamps from the first number up to, but not
    /// including, the second one.
    pub fn window_stamps(&self) -> Option<(i64, i64)> {
        let TimeWindow { start, end } = self.window?;
        Some((start.first_stamp(self.time_base), end.first_stamp(self.time_base)))
    }

    /// The number of packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// The bytes of all packets.
    pub fn bytes(&self) -> usize {
        self.packets.iter().map(|packet| packet.bytes().len()).sum()
    }

    /// The encoded bytes of each packet, and its time stamp of presentation, if it has one. In a window, packets without
    /// one have that of decoding, as in [`timestamps`](Packets::timestamps).
    pub fn payloads(&self) -> impl Iterator<Item = (&[u8], Option<i64>)> {
        self.packets.iter().map(|packet| {
            let has_stamp = self.window.is_some() || packet.fields().pts != ffi::AV_NOPTS_VALUE;
            (packet.bytes(), has_stamp.then(|| timestamp(packet)))
        })
    }

    /// Whether decoding can start at the packet.
    pub fn is_key(&self, index: usize) -> bool {
        let packet = self.packets.get(index).map(Packet::fields);
        packet.is_some_and(|packet| packet.flags & ffi::AV_PKT_FLAG_KEY != 0)
    }

    /// The time stamps of presentation in units of [`time_base`](Packets::time_base), in the order of the
    /// packets. Packets without one have that of decoding.
    pub fn timestamps(&self) -> Vec<i64> {
        self.packets.iter().map(timestamp).collect()
    }

    /// The times of the frames in the window in seconds, in the order of presentation.
    pub fn frame_times(&self) -> Vec<f64> {
        let shown = self.packets.iter().filter(|packet| self.is_shown(packet));
        let mut stamps: Vec<i64> = shown.map(timestamp).collect();
        stamps.retain(|&stamp| {
            self.window.is_none_or(|window| window.contains(stamp, self.time_base))
        });
        stamps.sort_unstable();
        self.in_seconds(&stamps)
    }

    /// Time stamps in seconds.
    pub fn in_seconds(&self, stamps: &[i64]) -> Vec<f64> {
        stamps.iter().map(|&stamp| seconds(stamp, self.time_base)).collect()
    }

    /// The seconds from the start of the first frame to the end of the last one.
    pub fn seconds(&self) -> f64 {
        let first = self.packets.iter().map(timestamp).min();
        let end =
            |packet: &Packet| timestamp(packet).saturating_add(packet.fields().duration.max(0));
        let end = self.packets.iter().map(end).max();
        first
            .zip(end)
            .map_or(0.0, |(first, end)| seconds(end.saturating_sub(first), self.time_base))
    }

    /// The sum of the durations of the packets in seconds, without those of more than a minute: FFmpeg 9 computes
    /// them from time stamps that jump.
    pub(crate) fn total_seconds(&self) -> f64 {
        let unit = self.time_base.to_f64();
        let durations = self.packets.iter().map(|it| it.fields().duration.max(0) as f64 * unit);
        durations.filter(|duration| *duration <= 60.0).sum()
    }

    /// Another value that shares the bytes of the packets.
    ///
    /// # Errors
    /// `LimitExceeded` if no memory is left.
    pub fn share(&self) -> Result<Self> {
        self.part(0..self.packets.len())
    }

    /// The packets that decoding the frames in `window` needs, with shared bytes. If these packets have a window, only
    /// the frames in both windows are wanted, and the result has the intersection as its window.
    ///
    /// Of video, these are the packets from a key frame on; of compressed audio, those from 0.3 s before the window on.
    ///
    /// # Errors
    /// `Unsupported` if the file stores no times of presentation; `LimitExceeded` if no memory is left.
    pub fn slice(&self, window: TimeWindow) -> Result<Self> {
        self.check_order()?;
        let window = self.window.map_or(window, |own| own.intersection(window));
        let stamps = self.timestamps();
        let unit = self.time_base;
        let mut wanted = (0..stamps.len()).filter(|&at| window.contains(stamps[at], unit));
        let part = match self.kind {
            MediaKind::Audio => {
                let second = (1.0 / unit.to_f64().max(f64::MIN_POSITIVE)).ceil() as i64;
                let preroll = second.saturating_mul(3) / 10;
                let early = window.start().in_units(unit).saturating_sub(preroll);
                let end = stamps.iter().position(|&stamp| window.is_over(stamp, unit));
                let end = end.unwrap_or(stamps.len());
                let before = stamps[..end].iter().rposition(|&stamp| stamp <= early);
                before.unwrap_or(0)..end
            }
            MediaKind::Video | MediaKind::Image => match wanted.next() {
                Some(first) => {
                    let rest = wanted.clone();
                    let earliest = rest.fold(stamps[first], |least, at| least.min(stamps[at]));
                    // In an open group of pictures, frames before the key frame need the group before it.
                    let is_start = |&at: &usize| self.is_key(at) && stamps[at] <= earliest;
                    let start = (0..=first).rev().find(is_start).unwrap_or(0);
                    start..wanted.next_back().unwrap_or(first) + 1
                }
                None => 0..0,
            },
        };
        let mut sliced = self.part(part)?;
        sliced.window = Some(window);
        Ok(sliced)
    }

    /// Some of the packets, with shared bytes.
    pub(super) fn part(&self, part: std::ops::Range<usize>) -> Result<Self> {
        let packets = self.packets[part].iter().map(Packet::share).collect::<Result<_>>()?;
        let Packets { kind, codec, time_base, window, is_vp8, .. } = self;
        Ok(Packets {
            kind: *kind,
            codec: codec.clone(),
            time_base: *time_base,
            window: *window,
            is_vp8: *is_vp8,
            packets,
        })
    }

    /// Whether a packet has a frame that is shown: an edit list can exclude frames that others need, and the first byte of a packet of VP8
    /// has a bit for it (RFC 6386, section 9.1).
    fn is_shown(&self, packet: &Packet) -> bool {
        let is_hidden = self.is_vp8 && packet.bytes().first().is_some_and(|tag| tag & 0x10 == 0);
        packet.fields().flags & ffi::AV_PKT_FLAG_DISCARD == 0 && !is_hidden
    }

    /// Fails if frames are reordered, and the file does not store their order.
    fn check_order(&self) -> Result<()> {
        let reorders = |codec: &StreamCodec| codec.parameters().fields().video_delay > 0;
        let lacks = |packet: &Packet| packet.fields().pts == ffi::AV_NOPTS_VALUE;
        if self.codec.as_ref().is_some_and(reorders) && self.packets.iter().any(lacks) {
            let message =
                "the file stores no times of presentation: decode the whole video instead";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }

    /// The packets that decoding some frames of a video needs: for each group of them the packets from a key
    /// frame on, and the numbers of the wanted frames among the frames of the group, in the order of presentation.
    ///
    /// `indices` are the numbers of the wanted frames among the frames in the window, ascending.
    ///
    /// # Errors
    /// `InvalidArgument` if there are fewer frames; `Unsupported` if the file stores no times of presentation;
    /// `LimitExceeded` if no memory is left.
    pub(super) fn groups_of(&self, indices: &[usize]) -> Result<Vec<FrameGroup>> {
        self.check_order()?;
        let stamps = self.timestamps();
        let in_window = |at: &usize| {
            self.window.is_none_or(|window| window.contains(stamps[*at], self.time_base))
        };
        let has_frame = |&at: &usize| self.is_shown(&self.packets[at]);
        let mut shown: Vec<usize> = (0..stamps.len()).filter(has_frame).filter(in_window).collect();
        shown.sort_by_key(|&at| stamps[at]);
        let mut starts: Vec<usize> =
            (0..self.len()).filter(|&at| at == 0 || self.is_key(at)).collect();
        let mut groups: Vec<FrameGroup> = Vec::new();
        starts.push(self.len());
        let mut previous = None;
        for &index in indices {
            let at = *shown.get(index).ok_or_else(|| {
                let message = format!("there is no frame {index} in {} frames", shown.len());
                Error::new(ErrorKind::InvalidArgument, message)
            })?;
            let mut group = starts.partition_point(|&start| start <= at) - 1;
            // In an open group of pictures, frames before the key frame need the group before it.
            let end = starts[group + 1];
            if group > 0 && stamps[at] < stamps[starts[group]] {
                group -= 1;
            }
            let part = starts[group]..end;
            if previous.as_ref() != Some(&part) {
                let mut packets = self.part(part.clone())?;
                packets.window = None;
                groups.push(FrameGroup { packets, wanted: Vec::new() });
                previous = Some(part.clone());
            }
            let is_earlier = |&other: &usize| has_frame(&other) && stamps[other] < stamps[at];
            let earlier = part.filter(is_earlier).count();
            if let Some(group) = groups.last_mut() {
                group.wanted.push(WantedFrame { position: earlier, timestamp: stamps[at] });
            }
        }
        Ok(groups)
    }
}

/// Packets from a key frame on, and the frames among them that are wanted.
#[derive(Debug)]
pub(super) struct FrameGroup {
    pub(super) packets: Packets,
    pub(super) wanted: Vec<WantedFrame>,
}

/// A frame of a [`FrameGroup`].
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedFrame {
    /// The number of the frame in the order of presentation.
    pub(super) position: usize,
    /// In units of the packets.
    pub(super) timestamp: i64,
}

/// The time stamp of presentation; without one, that of decoding.
pub(super) fn timestamp(packet: &Packet) -> i64 {
    let fields = packet.fields();
    match fields.pts {
        ffi::AV_NOPTS_VALUE if fields.dts == ffi::AV_NOPTS_VALUE => 0,
        ffi::AV_NOPTS_VALUE => fields.dts,
        timestamp => timestamp,
    }
}

/// A time stamp in seconds.
pub(super) fn seconds(timestamp: i64, unit: Rational) -> f64 {
    match unit.denominator {
        0 => 0.0,
        denominator => timestamp as f64 * f64::from(unit.numerator) / f64::from(denominator),
    }
}
