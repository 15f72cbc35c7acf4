//! Packets whose frames no other frame refers to, by their first bytes.

use spdl_core::Result;

use super::index::{VideoIndex, VideoStream};
use crate::source::MediaSource;

impl VideoIndex {
    /// The number of packets whose frames no other frame refers to: a decoder may skip them. `None`
    /// if it is unknown, as for VP8, VP9 and AV1 unless the container marks such packets.
    ///
    /// Reads all packets of `file`, but decodes none. Packets beyond the end of a truncated file are
    /// not counted.
    ///
    /// # Errors
    /// The errors of the source.
    pub fn disposable_packets<S: MediaSource + ?Sized>(&self, file: &S) -> Result<Option<u64>> {
        let disposable = Disposable::new(self.stream());
        let (mut memory, mut found) = (Vec::new(), 0);
        for packet in self.packets() {
            let range = packet.offset..packet.offset.saturating_add(u64::from(packet.bytes));
            let is_disposable = packet.is_disposable
                || match self.packet_bytes() {
                    Some(copied) if range.end <= copied.len() as u64 => {
                        disposable.is_disposable(copied.read(range, &mut memory)?)
                    }
                    None if range.end <= file.size() => {
                        disposable.is_disposable(file.read(range, &mut memory)?)
                    }
                    _ => false,
                };
            found += u64::from(is_disposable);
        }
        Ok((found > 0 || disposable.is_known()).then_some(found))
    }
}

/// Recognises packets that a decoder may skip if their frames are not wanted.
///
/// If a packet is unclear, or damaged, other frames may refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Disposable {
    syntax: Syntax,
}

/// How packets of a codec are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    H264 {
        length_bytes: Option<usize>,
    },
    Hevc {
        length_bytes: Option<usize>,
        highest_layer: Option<u8>,
    },
    Mpeg4,
    Mpeg2,
    /// VP8, VP9 and AV1 are here: the next frame may start from the motion vectors, probabilities
    /// and segments of a frame that updates no reference.
    Unknown,
}

/// NAL unit types of H.264.
const H264_SLICE: u8 = 1;
const H264_IDR_SLICE: u8 = 5;
const H264_SEI: u8 = 6;
const H264_DELIMITER: u8 = 9;
const H264_FILLER: u8 = 12;

/// NAL unit types of HEVC that carry no parameters.
const HEVC_DELIMITER: u8 = 35;
const HEVC_FILLER: u8 = 38;
const HEVC_PREFIX_SEI: u8 = 39;
const HEVC_SUFFIX_SEI: u8 = 40;
/// The last type of pictures that other pictures of the same temporal layer may not refer to, if
/// it is even.
const HEVC_LAST_SUB_LAYER: u8 = 14;

impl Disposable {
    pub(super) fn new(stream: &VideoStream) -> Self {
        let setup = &stream.setup[..];
        // Packets have length fields if the set-up data are an `avcC` or `hvcC`, else start codes.
        let length_bytes = |at: usize| {
            let is_record = setup.first() == Some(&1);
            setup.get(at).filter(|_| is_record).map(|byte| usize::from(byte & 3) + 1)
        };
        let syntax = match &stream.codec[..] {
            "h264" => Syntax::H264 { length_bytes: length_bytes(4) },
            "hevc" => Syntax::Hevc {
                length_bytes: length_bytes(21),
                highest_layer: length_bytes(21).and_then(|_| (setup[21] >> 3 & 7).checked_sub(1)),
            },
            "mpeg4" => Syntax::Mpeg4,
            "mpeg1video" | "mpeg2video" => Syntax::Mpeg2,
            _ => Syntax::Unknown,
        };
        Disposable { syntax }
    }

    /// Whether packets of the stream can be recognised.
    fn is_known(&self) -> bool {
        !matches!(self.syntax, Syntax::Unknown | Syntax::Hevc { highest_layer: None, .. })
    }

    /// Whether no other frame refers to the frame of this packet.
    pub(super) fn is_disposable(&self, packet: &[u8]) -> bool {
        match self.syntax {
            Syntax::H264 { length_bytes } => is_disposable_units(packet, length_bytes, h264_unit),
            Syntax::Hevc { length_bytes, highest_layer } => {
                let Some(highest) = highest_layer else { return false };
                is_disposable_units(packet, length_bytes, |unit| hevc_unit(unit, highest))
            }
            Syntax::Mpeg4 => is_disposable_mpeg4(packet),
            Syntax::Mpeg2 => is_disposable_mpeg2(packet),
            Syntax::Unknown => false,
        }
    }
}

/// What a NAL unit contributes to the decision about its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// A slice that no other picture refers to.
    Disposable,
    /// Nothing that other pictures need.
    Neutral,
    /// Others may need it.
    Needed,
}

fn h264_unit(unit: &[u8]) -> Unit {
    let Some(&header) = unit.first() else { return Unit::Neutral };
    match header & 0x1F {
        H264_SLICE | H264_IDR_SLICE if header >> 5 & 3 == 0 => Unit::Disposable,
        H264_SEI | H264_DELIMITER | H264_FILLER => Unit::Neutral,
        _ => Unit::Needed,
    }
}

fn hevc_unit(unit: &[u8], highest_layer: u8) -> Unit {
    let Some(&[first, second]) = unit.first_chunk() else { return Unit::Neutral };
    let kind = first >> 1 & 0x3F;
    let is_base_layer = first & 1 == 0 && second >> 3 == 0;
    let temporal_layer = (second & 7).wrapping_sub(1);
    match kind {
        0..=HEVC_LAST_SUB_LAYER
            if kind.is_multiple_of(2) && is_base_layer && temporal_layer == highest_layer =>
        {
            Unit::Disposable
        }
        HEVC_DELIMITER | HEVC_FILLER | HEVC_PREFIX_SEI | HEVC_SUFFIX_SEI => Unit::Neutral,
        // References, slices of other layers, and parameter sets.
        _ => Unit::Needed,
    }
}

/// Whether there is a disposable unit, and none that others need.
fn is_disposable_units(
    packet: &[u8],
    length_bytes: Option<usize>,
    judge: impl Fn(&[u8]) -> Unit,
) -> bool {
    let mut found = false;
    let mut note = |unit: &[u8]| match judge(unit) {
        Unit::Needed => false,
        judgement => {
            found |= judgement == Unit::Disposable;
            true
        }
    };
    let mut rest = packet;
    match length_bytes {
        Some(length_bytes) => {
            while !rest.is_empty() {
                let Some((length, after)) = rest.split_at_checked(length_bytes) else {
                    return false;
                };
                let length = length.iter().fold(0, |length, &byte| length << 8 | usize::from(byte));
                // A truncated unit is judged by its first bytes.
                let (unit, after) = after.split_at(length.min(after.len()));
                if !note(unit) {
                    return false;
                }
                rest = after;
            }
        }
        None => {
            while let Some(at) = start_code(rest) {
                rest = &rest[at + 3..];
                if !note(rest) {
                    return false;
                }
            }
        }
    }
    found
}

/// The position of the next start code `00 00 01`.
fn start_code(bytes: &[u8]) -> Option<usize> {
    bytes.windows(3).position(|window| window == [0, 0, 1])
}

/// Whether the packet has one VOP, and that is a B-VOP.
fn is_disposable_mpeg4(packet: &[u8]) -> bool {
    const VOP: u8 = 0xB6;
    const B: u8 = 2;
    let mut rest = packet;
    let mut found = false;
    while let Some(at) = start_code(rest) {
        rest = &rest[at + 3..];
        let &[code, header, ..] = rest else { return false };
        match code {
            VOP if found || header >> 6 != B => return false,
            VOP => found = true,
            // User data.
            0xB2 => {}
            _ => return false,
        }
    }
    found
}

/// Whether all pictures of the packet are B-pictures.
fn is_disposable_mpeg2(packet: &[u8]) -> bool {
    const PICTURE: u8 = 0;
    const B: u8 = 3;
    let mut rest = packet;
    let mut found = false;
    while let Some(at) = start_code(rest) {
        rest = &rest[at + 3..];
        match rest {
            [PICTURE, _, header, ..] if header >> 3 & 7 == B => found = true,
            [PICTURE, ..] => return false,
            // Matrices of a quantiser extension apply to later pictures.
            [0xB5, extension, ..] if extension >> 4 == 3 => return false,
            // Slices, user data and other extensions.
            [0x01..=0xAF | 0xB2 | 0xB5, ..] => {}
            _ => return false,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::Size;
    use crate::video::{Mp4Container, VideoContainer, VideoLimits};

    fn of_codec(codec: &str, setup: &[u8]) -> Disposable {
        let mut stream = VideoStream::new(codec, Size::new(4, 4));
        stream.setup = setup.to_vec();
        Disposable::new(&stream)
    }

    /// The numbers of the presented packets that FFmpeg does not skip, and of those that are not
    /// disposable.
    fn kept(file: &[u8], golden: &str) -> (Vec<u32>, Vec<u32>) {
        let index = Mp4Container.index(&file, &VideoLimits::default()).unwrap();
        let disposable = Disposable::new(index.stream());
        let offsets: Vec<u64> = golden
            .lines()
            .filter_map(|line| line.strip_prefix("kept\t"))
            .map(|offset| offset.parse().unwrap())
            .collect();
        let packet = |number: &u32| &index.packets()[*number as usize];
        let numbers: Vec<u32> = index.frames().iter().map(|frame| frame.packet).collect();
        let by_ffmpeg = |number: &u32| offsets.contains(&packet(number).offset);
        let by_us = |number: &u32| {
            let packet = packet(number);
            let start = packet.offset as usize;
            !disposable.is_disposable(&file[start..start + packet.bytes as usize])
        };
        let select =
            |is_kept: &dyn Fn(&u32) -> bool| numbers.iter().copied().filter(is_kept).collect();
        (select(&by_ffmpeg), select(&by_us))
    }

    macro_rules! kept {
        ($name:literal) => {
            kept(
                include_bytes!(concat!("../../tests/video/", $name)),
                include_str!(concat!("../../tests/video/", $name, ".tsv")),
            )
        };
    }

    #[test]
    fn packets_are_those_that_ffmpeg_skips() {
        for (ffmpeg, ours) in [
            kept!("h264.mp4"),
            kept!("h264_edited.mov"),
            kept!("hevc_open_gop.mp4"),
            kept!("mpeg4.mp4"),
            kept!("mpeg2.mp4"),
        ] {
            assert_eq!(ffmpeg, ours);
            assert!(!ours.is_empty());
        }
    }

    #[test]
    fn disposable_packets_are_counted_unless_they_are_unknown() {
        let index = |file: &[u8]| Mp4Container.index(&file, &VideoLimits::default()).unwrap();
        let file = include_bytes!("../../tests/video/h264.mp4");
        let (_, kept) = kept!("h264.mp4");
        let h264 = index(file);
        let expected = h264.packets().len() - kept.len();
        assert_eq!(h264.disposable_packets(&file[..]).unwrap(), Some(expected as u64));
        assert!(expected > 0);
        // Packets beyond the end of a truncated file are not counted.
        let truncated = h264.disposable_packets(&file[..100]).unwrap();
        assert_eq!(truncated, Some(0));
        let av1 = include_bytes!("../../tests/video/av1.mp4");
        assert_eq!(index(av1).disposable_packets(&av1[..]).unwrap(), None);
    }

    #[test]
    fn av1_frames_are_kept() {
        let (ffmpeg, ours) = kept!("av1.mp4");
        assert_eq!(ffmpeg, ours);
    }

    #[test]
    fn h264_parameter_sets_and_partitions_are_kept() {
        let avcc = of_codec("h264", &[1, 66, 0, 10, 0xFF]);
        let unit = |header: u8| [0, 0, 0, 2, header, 0x80];
        let packet =
            |headers: &[u8]| headers.iter().flat_map(|&header| unit(header)).collect::<Vec<_>>();
        assert!(avcc.is_disposable(&packet(&[0x09, 0x06, 0x01, 0x01])));
        for headers in [&[0x01, 0x21][..], &[0x67, 0x01], &[0x68, 0x01], &[0x02], &[0x06], &[]] {
            assert!(!avcc.is_disposable(&packet(headers)), "{headers:x?}");
        }
        // The first bytes of a packet.
        assert!(avcc.is_disposable(&[0, 0, 9, 9, 0x01, 0x80]));
        assert!(!avcc.is_disposable(&[0, 0, 0, 1, 0x01, 0]));
        let annex_b = of_codec("h264", &[]);
        assert!(annex_b.is_disposable(&[0, 0, 0, 1, 9, 0x10, 0, 0, 1, 1, 0x80]));
        assert!(!annex_b.is_disposable(&[0, 0, 0, 1, 0x41, 0x80]));
    }

    #[test]
    fn hevc_pictures_are_disposable_in_the_highest_layer() {
        let packet = |kind: u8, layer: u8| [0, 0, 0, 3, kind << 1, layer + 1, 0x80];
        let hvcc = |layers: u8| {
            let mut setup = [1; 23];
            setup[21] = layers << 3 | 3;
            of_codec("hevc", &setup)
        };
        assert!(hvcc(1).is_disposable(&packet(0, 0)));
        assert!(hvcc(2).is_disposable(&packet(8, 1)));
        assert!(!hvcc(2).is_disposable(&packet(0, 0)), "a lower layer");
        assert!(!hvcc(1).is_disposable(&packet(1, 0)), "a reference");
        assert!(!hvcc(1).is_disposable(&packet(34, 0)), "a parameter set");
        assert!(!hvcc(0).is_disposable(&packet(0, 0)), "an unknown number of layers");
        assert!(!of_codec("hevc", &[]).is_disposable(&[0, 0, 1, 0, 1, 0x80]));
    }

    #[test]
    fn mpeg_packets_with_other_pictures_are_kept() {
        let mpeg4 = of_codec("mpeg4", &[]);
        assert!(mpeg4.is_disposable(&[0, 0, 1, 0xB6, 0x80, 0]));
        assert!(!mpeg4.is_disposable(&[0, 0, 1, 0xB6, 0x40, 0]));
        let packed = [0, 0, 1, 0xB6, 0x80, 0, 0, 0, 1, 0xB6, 0x80, 0];
        assert!(!mpeg4.is_disposable(&packed));
        let mpeg2 = of_codec("mpeg2video", &[]);
        assert!(mpeg2.is_disposable(&[0, 0, 1, 0, 0, 0x18, 0, 0, 1, 0xB5, 0x80, 0, 0, 1, 1, 9]));
        assert!(!mpeg2.is_disposable(&[0, 0, 1, 0, 0, 0x10, 0]));
        assert!(!mpeg2.is_disposable(&[0, 0, 1, 0, 0, 0x18, 0, 0, 1, 0xB5, 0x30, 0]), "matrices");
        assert!(!of_codec("vp9", &[]).is_disposable(&[0x86, 0]));
        assert!(!mpeg4.is_disposable(&[]));
    }
}
