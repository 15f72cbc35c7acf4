//! Streams of H.264 and HEVC with start codes (annex B), cut into packets of one picture each.

use std::iter::FusedIterator;

use spdl_core::{Error, ErrorKind, Result};

use super::format::VideoCodec;

/// The most bytes of a packet.
const LARGEST_PACKET: usize = 1 << 28;

/// The packets of an H.264 or HEVC stream with start codes: each one picture (a frame or a field) with
/// what belongs to it. Nothing is copied.
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
    /// Where the packet that comes next begins.
    start: usize,
    /// Where the unit that is looked at next has its start code.
    unit: Option<StartCode>,
    most_bytes: usize,
}

/// The two standards, whose units have different headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    H264,
    Hevc,
}

/// Three bytes, with the zeros before them that belong to the unit behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StartCode {
    begin: usize,
    end: usize,
}

/// What a unit is for the cut between pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A slice of a picture, the first one or another.
    Slice { is_first: bool },
    /// What comes before the first slice of a picture, such as parameter sets.
    Before,
    /// Whatever may follow a slice.
    Other,
}

impl<'a> AccessUnits<'a> {
    /// Cuts a stream.
    ///
    /// # Errors
    /// `InvalidArgument` for a codec whose streams have no such start codes, or are cut by their
    /// container; `Corrupt` where the stream does not begin with one.
    pub fn new(stream: &'a [u8], codec: VideoCodec) -> Result<Self> {
        let syntax = match codec {
            VideoCodec::H264 => Syntax::H264,
            VideoCodec::Hevc => Syntax::Hevc,
            other => {
                let message = format!("expected a stream of H.264 or HEVC, found one of {other}");
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            }
        };
        let unit = start_code(stream, 0);
        let begins = unit.is_some_and(|unit| stream[..unit.begin].iter().all(|byte| *byte == 0));
        if !begins && !stream.is_empty() {
            let message = "the stream does not begin with a start code; if it comes from an MP4 or \
                           Matroska file, its lengths have to be made start codes first";
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok(AccessUnits { stream, syntax, start: 0, unit, most_bytes: LARGEST_PACKET })
    }

    /// The most bytes of a packet; 2²⁸ unless it is said.
    #[must_use]
    pub fn packet_bytes(mut self, most: usize) -> Self {
        self.most_bytes = most;
        self
    }

    fn role(&self, unit: StartCode) -> Role {
        let byte = |at: usize| self.stream.get(unit.end + at).copied();
        match (self.syntax, byte(0)) {
            (_, None) => Role::Other,
            (Syntax::H264, Some(header)) => match header & 31 {
                // The slice's first macroblock is number 0, in one bit.
                1 | 2 | 5 => {
                    Role::Slice { is_first: byte(1).is_some_and(|first| first & 0x80 != 0) }
                }
                6..=9 | 14..=18 => Role::Before,
                _ => Role::Other,
            },
            (Syntax::Hevc, Some(header)) => {
                // Units of other layers belong to the picture of the lowest one.
                let layer = (header & 1) << 5 | byte(1).unwrap_or(0) >> 3;
                match header >> 1 & 63 {
                    _ if layer > 0 => Role::Other,
                    0..=31 => {
                        Role::Slice { is_first: byte(2).is_some_and(|first| first & 0x80 != 0) }
                    }
                    32..=35 | 39 | 41..=44 | 48..=55 => Role::Before,
                    _ => Role::Other,
                }
            }
        }
    }

    /// Where the packet ends that begins at `start`.
    ///
    /// Units that can only stand before a picture belong to the next one, once its first slice shows that
    /// there is one: some stand between the slices of a picture as well.
    fn end(&mut self) -> usize {
        let mut has_slice = false;
        let mut next_picture = None;
        while let Some(unit) = self.unit {
            match self.role(unit) {
                Role::Slice { is_first: true } if has_slice => {
                    return next_picture.unwrap_or(unit.begin);
                }
                Role::Slice { .. } => {
                    has_slice = true;
                    next_picture = None;
                }
                Role::Before if has_slice => {
                    next_picture.get_or_insert(unit.begin);
                }
                Role::Before | Role::Other => {}
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
        if packet.len() > self.most_bytes {
            let message =
                format!("a picture takes {} bytes; the limit is {}", packet.len(), self.most_bytes);
            self.start = self.stream.len();
            let error = Error::new(ErrorKind::LimitExceeded, message);
            return Some(Err(error.with_offset(start as u64)));
        }
        Some(Ok(packet))
    }
}

impl FusedIterator for AccessUnits<'_> {}

/// The next start code from `from` on.
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
            // No start code begins before a byte that is none of its own.
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

    /// Units as they follow each other, each with a start code of four bytes.
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
    fn a_picture_begins_with_its_first_slice_or_what_stands_before_it() {
        let slices = stream(&[SPS, FIRST, OTHER, OTHER, FIRST, FIRST]);
        assert_eq!(lengths(&slices, VideoCodec::H264), [7 + 6 + 12, 6, 6]);
        let with_headers = stream(&[SPS, FIRST, SEI, SPS, FIRST, OTHER]);
        assert_eq!(lengths(&with_headers, VideoCodec::H264), [7 + 6, 6 + 7 + 12]);
    }

    #[test]
    fn what_stands_between_the_slices_of_a_picture_does_not_cut_it() {
        // A prefix unit (14) before each slice, and parameter sets behind the last picture.
        let prefix: &[u8] = &[0x6e, 0];
        let units = stream(&[prefix, FIRST, prefix, OTHER, prefix, FIRST, SPS]);
        assert_eq!(lengths(&units, VideoCodec::H264), [24, 6 + 6 + 7]);
        // An end of sequence (10) and filler (12) go with the picture before them.
        let units = stream(&[FIRST, &[0x0a], &[0x0c, 0xff], FIRST]);
        assert_eq!(lengths(&units, VideoCodec::H264), [6 + 5 + 6, 6]);
    }

    #[test]
    fn hevc_has_other_units_and_layers_above_the_first_cut_nothing() {
        let slice = |kind: u8, layer: u8, first: u8| vec![kind << 1, layer << 3 | 1, first];
        let (vps, idr, trail) = (vec![64, 1, 9], slice(19, 0, 0x80), slice(1, 0, 0x80));
        let (other, layer, suffix) = (slice(1, 0, 0), slice(1, 1, 0x80), slice(40, 0, 0));
        let units: Vec<&[u8]> = vec![&vps, &idr, &suffix, &layer, &trail, &other, &vps, &trail];
        assert_eq!(lengths(&stream(&units), VideoCodec::Hevc), [28, 14, 14]);
    }

    #[test]
    fn start_codes_of_three_bytes_do_and_zeros_before_one_go_with_it() {
        let bytes = [0, 0, 1, 0x41, 0x80, 0, 0, 0, 1, 0x41, 0x80, 0, 0, 1, 0x41, 0x80];
        assert_eq!(lengths(&bytes, VideoCodec::H264), [5, 6, 5]);
        // No byte is lost, also where there are more zeros.
        let bytes = [0, 0, 0, 0, 0, 1, 0x41, 0x80, 0, 0, 0, 0, 0, 1, 0x41, 0x80, 0];
        assert_eq!(lengths(&bytes, VideoCodec::H264).iter().sum::<usize>(), bytes.len());
    }

    #[test]
    fn what_is_no_such_stream_is_an_error_that_says_what_to_do() {
        let kind = |stream: &[u8], codec| AccessUnits::new(stream, codec).unwrap_err().kind();
        let lengths = [0, 0, 0, 5, 0x65, 0x88, 1, 2, 3];
        assert_eq!(kind(&lengths, VideoCodec::H264), ErrorKind::Corrupt);
        assert_eq!(kind(&[7, 0, 0, 1, 0x65], VideoCodec::H264), ErrorKind::Corrupt);
        assert_eq!(kind(&[0, 0, 1, 0x65], VideoCodec::Vp9), ErrorKind::InvalidArgument);
        assert_eq!(AccessUnits::new(&[], VideoCodec::H264).unwrap().count(), 0);
    }

    #[test]
    fn a_picture_beyond_the_limit_is_an_error_and_the_end() {
        let units = stream(&[FIRST, FIRST, OTHER, FIRST]);
        let mut packets = AccessUnits::new(&units, VideoCodec::H264).unwrap().packet_bytes(6);
        assert_eq!(packets.next().unwrap().unwrap().len(), 6);
        let error = packets.next().unwrap().unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::LimitExceeded, Some(6)));
        assert!(packets.next().is_none());
    }
}
