//! A [`VideoIndex`] in few bytes, with checksums of its packets, which is stored beside a shard.

use spdl_core::{Error, ErrorKind, Result};
use twox_hash::XxHash3_64;

use super::index::{VideoColor, VideoFrame, VideoIndex, VideoPacket, VideoStream};
use crate::image::{ChromaPosition, ChromaSiting, Orientation, Size};

/// The first bytes, of which the last is the version.
const MAGIC: [u8; 4] = *b"SVI\x02";
const POSITIONS: [ChromaPosition; 3] =
    [ChromaPosition::First, ChromaPosition::Middle, ChromaPosition::Last];

/// The index of a video, and the checksum of each of its packets.
#[derive(Debug, PartialEq)]
pub(crate) struct StoredVideoIndex {
    pub(crate) index: VideoIndex,
    sums: Vec<u32>,
}

/// The checksum of a packet.
fn sum_of(packet: &[u8]) -> u32 {
    XxHash3_64::oneshot(packet) as u32
}

impl StoredVideoIndex {
    /// The index of a file in memory; `None` if a packet is not a range of the file, or the file ends early.
    pub(crate) fn new(index: VideoIndex, file: &[u8]) -> Option<Self> {
        if index.packet_bytes().is_some() || index.is_truncated() {
            return None;
        }
        let sum = |packet: &VideoPacket| {
            let start = usize::try_from(packet.offset).ok()?;
            file.get(start..start.checked_add(packet.bytes as usize)?).map(sum_of)
        };
        let sums = index.packets().iter().map(sum).collect::<Option<_>>()?;
        Some(StoredVideoIndex { index, sums })
    }

    /// Compares all packets that `bytes_of` finds with their checksums.
    ///
    /// # Errors
    /// `Corrupt` if one differs.
    pub(crate) fn check<'a>(
        &self,
        bytes_of: impl Fn(&VideoPacket) -> Option<&'a [u8]>,
    ) -> Result<()> {
        for (packet, &sum) in self.index.packets().iter().zip(&self.sums) {
            if bytes_of(packet).is_some_and(|bytes| sum_of(bytes) != sum) {
                let message = "a packet of the video differs from its checksum";
                return Err(Error::new(ErrorKind::Corrupt, message).with_offset(packet.offset));
            }
        }
        Ok(())
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let StoredVideoIndex { index, sums } = self;
        let mut out = ByteWriter(MAGIC.to_vec());
        let VideoStream { codec, setup, size, orientation, time_base, color } = index.stream();
        for text in [codec.as_bytes(), &setup[..]] {
            out.number(text.len() as u64);
            out.0.extend_from_slice(text);
        }
        let numbers =
            [size.width, size.height, orientation.exif().into(), time_base.0, time_base.1];
        numbers.iter().for_each(|&number| out.number(number.into()));
        // 0: not named.
        for number in [color.primaries, color.transfer, color.matrix] {
            out.number(number.map_or(0, |number| u64::from(number) + 1));
        }
        out.number(color.is_full_range.map_or(0, |is_full| u64::from(is_full) + 1));
        let place = |position| POSITIONS.iter().position(|other| *other == position).unwrap_or(1);
        let siting =
            color.siting.map_or(0, |siting| 1 + 3 * place(siting.across) + place(siting.down));
        out.number(siting as u64);
        out.signed(index.end());
        out.number(index.packets().len() as u64);
        let (mut end, mut timestamp) = (0_u64, 0_i64);
        for (packet, sum) in index.packets().iter().zip(sums) {
            let flags = u64::from(packet.is_key) << 1 | u64::from(packet.is_disposable);
            out.number(u64::from(packet.bytes) << 2 | flags);
            out.signed(packet.offset.wrapping_sub(end).cast_signed());
            out.signed(packet.timestamp.wrapping_sub(timestamp));
            out.0.extend_from_slice(&sum.to_le_bytes());
            (end, timestamp) = (packet.offset + u64::from(packet.bytes), packet.timestamp);
        }
        let frames = index.frames();
        let is_default = frames == default_frames(index.packets());
        out.number(if is_default { 0 } else { frames.len() as u64 });
        if !is_default {
            let (mut next, mut timestamp) = (0_i64, 0_i64);
            for frame in frames {
                out.signed(i64::from(frame.packet) - next);
                out.signed(frame.timestamp.wrapping_sub(timestamp));
                (next, timestamp) = (i64::from(frame.packet) + 1, frame.timestamp);
            }
        }
        out.0
    }

    /// # Errors
    /// `Corrupt` if the bytes are no index of this version.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let parsed = Self::parse_fields(bytes).transpose();
        parsed.unwrap_or_else(|| {
            Err(Error::new(ErrorKind::Corrupt, "corrupt or unknown stored index of a video"))
        })
    }

    /// `None` if the bytes end early, or a number is invalid.
    fn parse_fields(bytes: &[u8]) -> Result<Option<Self>> {
        let mut fields = ByteReader { rest: bytes };
        let Some((mut stream, end)) = fields.stream() else { return Ok(None) };
        let Some((packets, sums)) = fields.packets() else { return Ok(None) };
        let Some(frames) = fields.frames(&packets) else { return Ok(None) };
        stream.setup.shrink_to_fit();
        let index = VideoIndex::with_frames(stream, packets, frames, end)?;
        Ok(fields.rest.is_empty().then_some(StoredVideoIndex { index, sums }))
    }
}

/// The frames of packets that are all presented, in order of time stamps.
fn default_frames(packets: &[VideoPacket]) -> Vec<VideoFrame> {
    let frame =
        |(packet, entry): (u32, &VideoPacket)| VideoFrame { packet, timestamp: entry.timestamp };
    let mut frames: Vec<_> = (0_u32..).zip(packets).map(frame).collect();
    frames.sort_by_key(|frame| frame.timestamp);
    frames
}

/// Writes numbers of variable length: 7 bits per byte, from the lowest on.
struct ByteWriter(Vec<u8>);

impl ByteWriter {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// Small numbers of both signs need few bytes.
    fn signed(&mut self, number: i64) {
        self.number((number << 1 ^ number >> 63).cast_unsigned());
    }
}

/// Reads what [`ByteWriter`] has written.
struct ByteReader<'a> {
    rest: &'a [u8],
}

impl<'a> ByteReader<'a> {
    fn take(&mut self, bytes: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(usize::try_from(bytes).ok()?)?;
        self.rest = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            number |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn small(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn signed(&mut self) -> Option<i64> {
        let number = self.number()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    fn stream(&mut self) -> Option<(VideoStream, i64)> {
        if self.take(4)? != MAGIC {
            return None;
        }
        let bytes = self.number()?;
        let codec = std::str::from_utf8(self.take(bytes)?).ok()?;
        let bytes = self.number()?;
        let setup = self.take(bytes)?.to_vec();
        let size = Size::new(self.small()?, self.small()?);
        let mut stream = VideoStream::new(codec, size);
        stream.setup = setup;
        stream.orientation = Orientation::from_exif(self.small()?.try_into().ok()?)?;
        stream.time_base = (self.small()?, self.small()?);
        if stream.time_base.0 == 0 || stream.time_base.1 == 0 {
            return None;
        }
        let mut color_number = || self.number()?.checked_sub(1).map(u8::try_from).transpose().ok();
        let (primaries, transfer, matrix) = (color_number()?, color_number()?, color_number()?);
        let is_full_range = self.number()?.checked_sub(1).map(|is_full| is_full != 0);
        let siting = match self.number()?.checked_sub(1) {
            Some(siting) => {
                let siting = usize::try_from(siting).ok()?;
                let (across, down) = (*POSITIONS.get(siting / 3)?, POSITIONS[siting % 3]);
                Some(ChromaSiting { across, down })
            }
            None => None,
        };
        stream.color = VideoColor { primaries, transfer, matrix, is_full_range, siting };
        Some((stream, self.signed()?))
    }

    fn packets(&mut self) -> Option<(Vec<VideoPacket>, Vec<u32>)> {
        // A packet has at least 7 bytes.
        let count = self.number().filter(|&count| count <= self.rest.len() as u64 / 7)?;
        let (mut packets, mut sums) = (Vec::new(), Vec::new());
        packets.reserve_exact(count as usize);
        sums.reserve_exact(count as usize);
        let (mut end, mut timestamp) = (0_u64, 0_i64);
        for _ in 0..count {
            let bytes_and_flags = self.number()?;
            let offset = end.wrapping_add(self.signed()?.cast_unsigned());
            let bytes = u32::try_from(bytes_and_flags >> 2).ok()?;
            timestamp = timestamp.wrapping_add(self.signed()?);
            end = offset.checked_add(bytes.into()).filter(|end| i64::try_from(*end).is_ok())?;
            sums.push(u32::from_le_bytes(*self.take(4)?.first_chunk()?));
            packets.push(VideoPacket {
                offset,
                bytes,
                timestamp,
                is_key: bytes_and_flags & 2 != 0,
                is_disposable: bytes_and_flags & 1 != 0,
            });
        }
        Some((packets, sums))
    }

    fn frames(&mut self, packets: &[VideoPacket]) -> Option<Vec<VideoFrame>> {
        // A frame has at least 2 bytes.
        let count = self.number().filter(|&count| count <= self.rest.len() as u64 / 2)?;
        if count == 0 {
            return Some(default_frames(packets));
        }
        let (mut next, mut timestamp) = (0_i64, 0_i64);
        let mut frames = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let packet = u32::try_from(next.checked_add(self.signed()?)?).ok()?;
            timestamp = timestamp.wrapping_add(self.signed()?);
            frames.push(VideoFrame { packet, timestamp });
            next = i64::from(packet) + 1;
        }
        Some(frames)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packet() -> impl Strategy<Value = VideoPacket> {
        let offset = prop_oneof![0..2000_u64, 0..i64::MAX.cast_unsigned() - u64::from(u32::MAX)];
        let timestamp = prop_oneof![-100..100_i64, any::<i64>()];
        (offset, prop_oneof![0..50_u32, any::<u32>()], timestamp, any::<(bool, bool)>()).prop_map(
            |(offset, bytes, timestamp, (is_key, is_disposable))| VideoPacket {
                offset,
                bytes,
                timestamp,
                is_key,
                is_disposable,
            },
        )
    }

    proptest! {
        #[test]
        fn an_index_is_read_as_it_was_written(
            packets in prop::collection::vec(packet(), 1..20),
            chosen in prop::collection::vec(any::<(prop::sample::Index, i64)>(), 0..9),
            end: i64,
            setup: Vec<u8>,
            numbers: [Option<u8>; 3],
            named: (Option<bool>, Option<(prop::sample::Index, prop::sample::Index)>),
            cut: prop::sample::Index,
            flipped: (prop::sample::Index, u8),
        ) {
            let mut packets = packets;
            packets[0].is_key = true;
            let mut stream = VideoStream::new("h264", Size::new(64, 48));
            stream.setup = setup;
            stream.orientation = Orientation::Rotated90;
            let position = |at: prop::sample::Index| *at.get(&POSITIONS);
            stream.color = VideoColor {
                primaries: numbers[0],
                transfer: numbers[1],
                matrix: numbers[2],
                is_full_range: named.0,
                siting: named
                    .1
                    .map(|(x, y)| ChromaSiting { across: position(x), down: position(y) }),
            };
            let sums = packets.iter().map(|packet| packet.bytes ^ 0x55).collect();
            let mut frames: Vec<_> = chosen
                .iter()
                .map(|(packet, timestamp)| VideoFrame {
                    packet: packet.index(packets.len()) as u32,
                    timestamp: *timestamp,
                })
                .collect();
            frames.sort_by_key(|frame| frame.timestamp);
            let index = match frames.is_empty() {
                true => VideoIndex::new(stream, packets, end),
                false => VideoIndex::with_frames(stream, packets, frames, end),
            };
            let stored = StoredVideoIndex { index: index.unwrap(), sums };
            let mut bytes = stored.to_bytes();
            prop_assert_eq!(&StoredVideoIndex::parse(&bytes).unwrap(), &stored);
            let cut = cut.index(bytes.len());
            prop_assert!(StoredVideoIndex::parse(&bytes[..cut]).is_err());
            // Damaged indexes are errors or other indexes, but no panics.
            bytes[flipped.0.index(cut + 1)] ^= flipped.1;
            let _ = StoredVideoIndex::parse(&bytes);
        }
    }

    #[test]
    fn packets_are_compared_with_their_checksums() {
        let file = b"....abcdefgh";
        let packet = |offset, is_key| VideoPacket {
            offset,
            bytes: 4,
            timestamp: offset as i64,
            is_key,
            is_disposable: false,
        };
        let stream = VideoStream::new("h264", Size::new(4, 4));
        let index = VideoIndex::new(stream, vec![packet(4, true), packet(8, false)], 9).unwrap();
        let stored = StoredVideoIndex::new(index.clone(), file).unwrap();
        let check = |file: &'static [u8]| {
            stored.check(|packet| file.get(packet.offset as usize..packet.offset as usize + 4))
        };
        check(b"....abcdefgh").unwrap();
        // Packets that are not in memory are not compared.
        check(b"____abcd").unwrap();
        let error = check(b"____abcdefgx").unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Corrupt, Some(8)));
        assert_eq!(StoredVideoIndex::new(index, &file[..11]), None);
    }
}
