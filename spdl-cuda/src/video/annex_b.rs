//! Annex B byte streams of H.264 and HEVC, split into access units.

use std::iter::FusedIterator;

use spdl_core::{Error, ErrorKind, Result};

use super::format::VideoCodec;

/// Default maximum size of a packet in bytes.
const MAX_PACKET_BYTES: usize = 1 << 28;

/// Splits an H.264 or HEVC stream with start codes into access units, without copying.
///
/// Each packet is one picture (a frame or a field) with its parameter sets and other NAL units.
///
/// ```
/// use spdl_cuda::video::{AccessUnits, VideoCodec};
/// // Parameter sets and two pictures, the second of two slices.
/// let stream = [
///     &[0, 0, 0, 1, 0x67, 1][..], &[0, 0, 1, 0x68, 2], &[0, 0, 1, 0x65, 0x80],
///     &[0, 0, 0, 1, 0x41, 0x80], &[0, 0, 1, 0x41, 0x40],
/// ]
/// .concat();
/// let packets: Vec<&[u8]> =
///     AccessUnits::new(&stream, VideoCodec::H264)?.collect::<Result<_, _>>()?;
/// assert_eq!(packets.iter().map(|packet| packet.len()).collect::<Vec<_>>(), [16, 11]);
/// # Ok::<(), spdl_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct AccessUnits<'a> {
    stream: &'a [u8],
    syntax: Syntax,
    /// Start of the next packet.
    start: usize,
    /// Start code of the next NAL unit.
    unit: Option<StartCode>,
    max_bytes: usize,
}

/// The NAL unit syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    H264,
    Hevc,
}

/// A start code of 3 bytes, or 4 with a leading zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StartCode {
    begin: usize,
    end: usize,
}

/// The role of a NAL unit for the boundaries between pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnitRole {
    /// A slice of a picture.
    Slice { is_first: bool },
    /// A unit before the first slice of a picture, such as a parameter set.
    Before,
    /// A unit that may follow a slice.
    Other,
}

impl<'a> AccessUnits<'a> {
    /// Splits a stream.
    ///
    /// # Errors
    /// `InvalidArgument` for codecs other than H.264 and HEVC; `Corrupt` if the stream is not
    /// empty and does not start with a start code.
    pub fn new(stream: &'a [u8], codec: VideoCodec) -> Result<Self> {
        let syntax = match codec {
            VideoCodec::H264 => Syntax::H264,
            VideoCodec::Hevc => Syntax::Hevc,
            other => {
                let message =
                    format!("unsupported codec {other}: expected H.264 or HEVC for Annex B");
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
        };
        let unit = start_code(stream, 0);
        let begins = unit.is_some_and(|unit| stream[..unit.begin].iter().all(|byte| *byte == 0));
        if !begins && !stream.is_empty() {
            let message = "no start code at the start of the stream; convert the length-prefixed units of \
                           MP4 and Matroska files to Annex B first";
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(AccessUnits { stream, syntax, start: 0, unit, max_bytes: MAX_PACKET_BYTES })
    }

    /// Sets the maximum size of a packet. Default: 2²⁸ bytes.
    #[must_use]
    pub fn packet_bytes(mut self, max: usize) -> Self {
        self.max_bytes = max;
        self
    }

    fn role(&self, unit: StartCode) -> UnitRole {
        let byte = |at: usize| self.stream.get(unit.end + at).copied();
        match (self.syntax, byte(0)) {
            (_, None) => UnitRole::Other,
            (Syntax::H264, Some(header)) => match header & 31 {
                // A first slice has `first_mb_in_slice` 0, which is coded as a single bit.
                1 | 2 | 5 => {
                    UnitRole::Slice { is_first: byte(1).is_some_and(|first| first & 0x80 != 0) }
                }
                6..=9 | 14..=18 => UnitRole::Before,
                _ => UnitRole::Other,
            },
            (Syntax::Hevc, Some(header)) => {
                // Units of enhancement layers belong to the picture of the base layer.
                let layer = (header & 1) << 5 | byte(1).unwrap_or(0) >> 3;
                match header >> 1 & 63 {
                    _ if layer > 0 => UnitRole::Other,
                    0..=31 => {
                        UnitRole::Slice { is_first: byte(2).is_some_and(|first| first & 0x80 != 0) }
                    }
                    32..=35 | 39 | 41..=44 | 48..=55 => UnitRole::Before,
                    _ => UnitRole::Other,
                }
            }
        }
    }

    /// The end of the packet that starts at `start`.
    ///
    /// Units between two pictures belong to the next picture only if the first slice of that
    /// picture follows them, because some of these units also occur between the slices of a
    /// picture.
    fn end(&mut self) -> usize {
        let mut has_slice = false;
        let mut next_picture = None;
        while let Some(unit) = self.unit {
            match self.role(unit) {
                UnitRole::Slice { is_first: true } if has_slice => {
                    return next_picture.unwrap_or(unit.begin);
                }
                UnitRole::Slice { .. } => {
                    has_slice = true;
                    next_picture = None;
                }
                UnitRole::Before if has_slice => {
                    next_picture.get_or_insert(unit.begin);
                }
                UnitRole::Before | UnitRole::Other => {}
            }
            self.unit = start_code(self.stream, unit.end);
        }
        self.stream.len()
    }
}

impl<'a> Iterator for AccessUnits<'a> {
    type Item = Result<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.start >= self.stream.len() {
            return None;
        }
        let (start, end) = (self.start, self.end());
        self.start = end;
        let packet = &self.stream[start..end];
        if packet.len() > self.max_bytes {
            let message = format!(
                "access unit of {} bytes exceeds the limit of {} bytes",
                packet.len(),
                self.max_bytes
            );
            self.start = self.stream.len();
            let error = Error::new(ErrorKind::LimitExceeded, message);
            return Some(Err(error.with_offset(start as u64)));
        }
        Some(Ok(packet))
    }
}

impl FusedIterator for AccessUnits<'_> {}

/// Finds the next start code from `from` on.
fn start_code(stream: &[u8], from: usize) -> Option<StartCode> {
    let rest = stream.get(from..)?;
    let mut at = 0;
    while let Some(three) = rest.get(at..at + 3) {
        match three {
            [0, 0, 1] => {
                let (begin, end) = (from + at, from + at + 3);
                let has_zero = begin > from && stream[begin - 1] == 0;
                return Some(StartCode { begin: begin - usize::from(has_zero), end });
            }
            // No start code contains such a byte, so the search continues after it.
            [_, _, 2..=255] => at += 3,
            [_, 1..=255, _] => at += 2,
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream of NAL units, each after a start code of 4 bytes.
    fn stream(units: &[&[u8]]) -> Vec<u8> {
        units.iter().flat_map(|unit| [&[0, 0, 0, 1][..], unit].concat()).collect()
    }

    fn lengths(stream: &[u8], codec: VideoCodec) -> Vec<usize> {
        AccessUnits::new(stream, codec).unwrap().map(|packet| packet.unwrap().len()).collect()
    }

    const FIRST: &[u8] = &[0x41, 0x9a];
    const OTHER: &[u8] = &[0x41, 0x2a];
    const SPS: &[u8] = &[0x67, 1, 2];
    const SEI: &[u8] = &[0x06, 5];

    #[test]
    fn an_access_unit_starts_with_the_units_before_its_first_slice() {
        let slices = stream(&[SPS, FIRST, OTHER, OTHER, FIRST, FIRST]);
        assert_eq!(lengths(&slices, VideoCodec::H264), [7 + 6 + 12, 6, 6]);
        let with_headers = stream(&[SPS, FIRST, SEI, SPS, FIRST, OTHER]);
        assert_eq!(lengths(&with_headers, VideoCodec::H264), [7 + 6, 6 + 7 + 12]);
    }

    #[test]
    fn units_between_slices_do_not_split_a_picture() {
        // A prefix NAL unit (14) before each slice, and a parameter set after the last picture.
        let prefix: &[u8] = &[0x6e, 0];
        let units = stream(&[prefix, FIRST, prefix, OTHER, prefix, FIRST, SPS]);
        assert_eq!(lengths(&units, VideoCodec::H264), [24, 6 + 6 + 7]);
        // End of sequence (10) and filler data (12) belong to the picture before them.
        let units = stream(&[FIRST, &[0x0a], &[0x0c, 0xff], FIRST]);
        assert_eq!(lengths(&units, VideoCodec::H264), [6 + 5 + 6, 6]);
    }

    #[test]
    fn hevc_enhancement_layers_do_not_split_a_picture() {
        let slice = |kind: u8, layer: u8, first: u8| vec![kind << 1, layer << 3 | 1, first];
        let (vps, idr, trail) = (vec![64, 1, 9], slice(19, 0, 0x80), slice(1, 0, 0x80));
        let (other, layer, suffix) = (slice(1, 0, 0), slice(1, 1, 0x80), slice(40, 0, 0));
        let units: Vec<&[u8]> = vec![&vps, &idr, &suffix, &layer, &trail, &other, &vps, &trail];
        assert_eq!(lengths(&stream(&units), VideoCodec::Hevc), [28, 14, 14]);
    }

    #[test]
    fn start_codes_have_three_or_four_bytes() {
        let bytes = [0, 0, 1, 0x41, 0x80, 0, 0, 0, 1, 0x41, 0x80, 0, 0, 1, 0x41, 0x80];
        assert_eq!(lengths(&bytes, VideoCodec::H264), [5, 6, 5]);
        // With additional zero bytes, the packets still cover the stream.
        let bytes = [0, 0, 0, 0, 0, 1, 0x41, 0x80, 0, 0, 0, 0, 0, 1, 0x41, 0x80, 0];
        assert_eq!(lengths(&bytes, VideoCodec::H264).iter().sum::<usize>(), bytes.len());
    }

    #[test]
    fn other_streams_are_errors() {
        let kind = |stream: &[u8], codec| AccessUnits::new(stream, codec).unwrap_err().kind();
        let lengths = [0, 0, 0, 5, 0x65, 0x88, 1, 2, 3];
        assert_eq!(kind(&lengths, VideoCodec::H264), ErrorKind::Corrupt);
        assert_eq!(kind(&[7, 0, 0, 1, 0x65], VideoCodec::H264), ErrorKind::Corrupt);
        assert_eq!(kind(&[0, 0, 1, 0x65], VideoCodec::Vp9), ErrorKind::InvalidArgument);
        assert_eq!(AccessUnits::new(&[], VideoCodec::H264).unwrap().count(), 0);
    }

    #[test]
    fn an_access_unit_beyond_the_limit_is_the_last_error() {
        let units = stream(&[FIRST, FIRST, OTHER, FIRST]);
        let mut packets = AccessUnits::new(&units, VideoCodec::H264).unwrap().packet_bytes(6);
        assert_eq!(packets.next().unwrap().unwrap().len(), 6);
        let error = packets.next().unwrap().unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::LimitExceeded, Some(6)));
        assert!(packets.next().is_none());
    }
}
