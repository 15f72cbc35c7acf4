//! Frames of clips against those of `ffmpeg`, with FFmpeg's decoders.
//!
//! `tests/video/make.sh` makes the files and the lists.

#[path = "video/files.rs"]
mod files;
#[path = "video/hash.rs"]
mod hash;

use std::sync::{Arc, Mutex};

use files::{golden, read};
use hash::hash;
use spdl_core::observe::Counter;
use spdl_core::{BatchLayout, ErrorKind, Field, Fill, FillContext, PipelineBuilder, SlotMut};
use spdl_media::ffmpeg::{DecodeOptions, DemuxOptions, Demuxer, MediaKind, decode_packets};
use spdl_media::fill::{FillVideo, WrittenClip};
use spdl_media::image::{ChromaPosition, ChromaSiting, Picture, YCbCrEncoding};
use spdl_media::video::ffmpeg::FfmpegCodec;
use spdl_media::video::{
    ClipDecoded, VideoClip, VideoCodec, VideoColor, VideoIndex, VideoLimits, VideoPacket,
    VideoReader, VideoRegistry, VideoTransform,
};
use spdl_media::{ImageTransform, Limits, MediaSource, OnTruncated};

/// The files whose hashes are those of 8-bit planes.
const FILES: [&str; 24] = [
    "av1.mp4",
    "h264.mkv",
    "h264.mp4",
    "h264.ts",
    "grey.mkv",
    "h264_422.mp4",
    "h264_delayed.mov",
    "h264_edited.mov",
    "h264_faststart.mp4",
    "h264_fragmented.mp4",
    "h264_fragmented_base.mp4",
    "h264_live.mkv",
    "h264_negative_offsets.mov",
    "h264_rotated_180.mp4",
    "h264_rotated_270.mp4",
    "h264_rotated_90.mp4",
    "h264_variable_rate.mp4",
    "hevc_open_gop.mp4",
    "mpeg2.mp4",
    "mpeg4.avi",
    "mpeg4.mp4",
    "vp8.webm",
    "vp8_hidden.webm",
    "vp9.webm",
];

fn reader() -> VideoReader {
    VideoReader::new(&VideoRegistry::with_defaults(), &VideoLimits::default())
}

/// The hashes of frames, and the outcome.
fn hashes(
    reader: &mut VideoReader,
    file: &[u8],
    index: &VideoIndex,
    frames: &[usize],
) -> spdl_core::Result<(Vec<String>, ClipDecoded)> {
    let mut found = vec![String::new(); frames.len()];
    let decoded = reader.decode(&file, index, frames, &mut |place, picture| {
        // Frames that refer to damaged ones may be decoded again, from an earlier key frame.
        found[place] = hash(picture);
        Ok(())
    })?;
    Ok((found, decoded))
}

#[test]
fn all_frames_are_those_of_ffmpeg() {
    let mut reader = reader();
    for name in FILES {
        let file = read(name);
        let index = reader.index(&&file[..]).unwrap_or_else(|error| panic!("{name}: {error}"));
        let all: Vec<_> = (0..index.frames().len()).collect();
        let (found, decoded) = hashes(&mut reader, &file, &index, &all).expect(name);
        assert_eq!(found, golden(name, "hash"), "{name}");
        assert_eq!(decoded.missing, [0; 0]);
    }
}

#[cfg(feature = "testing")]
#[test]
fn the_codec_of_ffmpeg_keeps_the_contract() {
    let names = [
        "av1.mp4",
        "grey.mkv",
        "h264.mkv",
        "h264.mp4",
        "h264.ts",
        "hevc_open_gop.mp4",
        "mpeg2.mp4",
        "mpeg4.avi",
        "vp8_hidden.webm",
        "vp9.webm",
    ];
    let files = names.map(read);
    let files: Vec<&[u8]> = files.iter().map(|file| &file[..]).collect();
    spdl_media::testing::video_contract(&spdl_media::video::ffmpeg::FfmpegCodec, &files);
}

#[test]
fn each_frame_alone_equals_that_of_a_full_decode() {
    let mut reader = reader();
    for name in FILES {
        let file = read(name);
        let index = reader.index(&&file[..]).expect(name);
        let expected = golden(name, "hash");
        for (frame, expected) in expected.iter().enumerate() {
            let (found, _) = hashes(&mut reader, &file, &index, &[frame]).expect(name);
            assert_eq!(found, [expected.as_str()], "{name}, frame {frame}");
        }
    }
}

#[test]
fn any_frames_in_any_order_equal_those_of_a_full_decode() {
    let mut reader = reader();
    for name in FILES {
        let file = read(name);
        let index = reader.index(&&file[..]).expect(name);
        let expected = golden(name, "hash");
        let total = expected.len();
        for step in [2, 3, 5, 7] {
            // With repeated frames, backwards for one of the steps.
            let mut frames: Vec<_> =
                (step % 3..total).step_by(step).flat_map(|at| [at, at]).collect();
            if step == 5 {
                frames.reverse();
            }
            let (found, _) = hashes(&mut reader, &file, &index, &frames).expect(name);
            let expected: Vec<_> = frames.iter().map(|&at| expected[at].clone()).collect();
            assert_eq!(found, expected, "{name}, every {step} frames");
        }
    }
}

#[test]
fn frames_that_are_not_chosen_are_skipped() {
    let mut reader = reader();
    let file = read("h264.mp4");
    let index = reader.index(&&file[..]).unwrap();
    assert_eq!(index.frames().len(), 20);
    let packets = |reader: &mut VideoReader, frames: &[usize]| {
        hashes(reader, &file, &index, frames).unwrap().1.packets
    };
    // A key frame every 8 frames.
    assert_eq!(packets(&mut reader, &[0]), 1);
    assert_eq!(packets(&mut reader, &[8]), 1);
    assert_eq!(packets(&mut reader, &[0, 8, 16]), 3);
    // Frame 4 is the first P frame: its B-frames are not decoded.
    assert_eq!(packets(&mut reader, &[4]), 2);
    let all: Vec<_> = (0..20).collect();
    assert_eq!(packets(&mut reader, &all), 20);
}

#[test]
fn bits_beyond_eight_are_rounded() {
    let mut reader = reader();
    let file = read("h264_10_bit.mp4");
    let raw = read("h264_10_bit.yuv");
    let samples: Vec<u8> = raw
        .as_chunks::<2>()
        .0
        .iter()
        .map(|sample| ((u16::from_le_bytes(*sample) + 2) >> 2).min(255) as u8)
        .collect();
    let index = reader.index(&&file[..]).unwrap();
    let bytes = samples.len() / 3;
    reader
        .decode(&&file[..], &index, &[0, 1, 2], &mut |place, picture| {
            let planes = picture.planes().iter();
            let found: Vec<u8> = planes
                .flat_map(|plane| {
                    (0..plane.shape().area.height).flat_map(|row| plane.row(row).to_vec())
                })
                .collect();
            assert_eq!(found, &samples[place * bytes..][..bytes]);
            Ok(())
        })
        .unwrap();
}

#[test]
fn damaged_and_missing_frames_are_errors_or_counted() {
    let file = read("h264.mp4");
    let index = reader().index(&&file[..]).unwrap();
    let expected = golden("h264.mp4", "hash");
    let all: Vec<_> = (0..20).collect();
    // The packet of frame 16, a key frame, is damaged: it and the frames after it are lost.
    let packet = index.packets()[index.frames()[16].packet as usize];
    let mut damaged = file.clone();
    let VideoPacket { offset, bytes, .. } = packet;
    damaged[offset as usize + 40..(offset + u64::from(bytes)) as usize].fill(0xA5);
    let error = hashes(&mut reader(), &damaged, &index, &all).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.message().contains("1.600 s"), "{error}");
    assert_eq!(error.offset(), Some(offset));
    let mut partial = reader().on_truncated(OnTruncated::Partial);
    let (found, decoded) = hashes(&mut partial, &damaged, &index, &all).unwrap();
    assert_eq!(decoded.missing, [16, 17, 18, 19]);
    assert_eq!(found[..16], expected[..16]);
    // Frames before the damage need no more than before.
    let (found, _) = hashes(&mut reader(), &damaged, &index, &all[..16]).unwrap();
    assert_eq!(found, expected[..16]);
    // The file ends inside the packets.
    let end = index.packets()[12].offset as usize + 1;
    let error = hashes(&mut reader(), &file[..end], &index, &all).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::Truncated, Some(end as u64)));
    let (found, decoded) = hashes(&mut partial, &file[..end], &index, &all).unwrap();
    assert!(!decoded.missing.is_empty() && decoded.missing.len() < 20, "{decoded:?}");
    for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!(decoded.missing.contains(&place) || found == expected, "frame {place}");
    }
}

#[test]
fn a_file_that_ends_early_is_an_error_or_partial() {
    for name in
        ["h264.mkv", "vp9.webm", "h264_live.mkv", "h264_fragmented.mp4", "mpeg4.avi", "h264.ts"]
    {
        let file = read(name);
        let expected = golden(name, "hash");
        let mut partial = reader().on_truncated(OnTruncated::Partial);
        for size in [file.len() * 5 / 6, file.len() - 5] {
            let cut = &file[..size];
            let error = reader().index(&cut).unwrap_err();
            let found = (error.kind(), error.offset());
            assert_eq!(found, (ErrorKind::Truncated, Some(size as u64)), "{name}: {error}");
            let index = partial.index(&cut).expect(name);
            assert!(index.is_truncated(), "{name}");
            let all: Vec<_> = (0..index.frames().len()).collect();
            let (found, decoded) = hashes(&mut partial, cut, &index, &all).expect(name);
            assert!(decoded.missing.len() < all.len() && all.len() <= expected.len(), "{name}");
            let intact = all.iter().filter(|frame| !decoded.missing.contains(frame));
            // Frames of an open end are presented in another order.
            assert!(intact.clone().all(|&frame| expected.contains(&found[frame])), "{name}");
        }
        assert!(!partial.index(&&file[..]).expect(name).is_truncated(), "{name}");
    }
}

/// Writes clips of videos into a field of a batch.
struct FillClip(FillVideo, Arc<Mutex<Vec<WrittenClip>>>);

impl Fill<Vec<u8>> for FillClip {
    fn fill(
        &mut self,
        file: Vec<u8>,
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> spdl_core::Result<()> {
        let written = self.0.write(&file[..], &mut slot, 0, &|part| cx.rng_of_part(part))?;
        self.1.lock().expect("no test panics").push(written);
        Ok(())
    }

    fn check_fields(&self, fields: &[Field]) -> spdl_core::Result<()> {
        self.0.check_field(&fields[0])
    }
}

#[test]
fn clips_of_a_file_that_ends_early_are_errors_or_partial() {
    let file = read("vp9.webm");
    let cut = &file[..file.len() * 2 / 3];
    let written = |on_truncated: OnTruncated| {
        let image = ImageTransform::new(8).on_truncated(on_truncated);
        // The first also fits into the rest of the file, which has cues.
        [VideoClip::new(2).every_seconds(0.1), VideoClip::new(20).every_frames(1)].map(|clip| {
            let transform = VideoTransform::new(clip, image.clone());
            let layout =
                BatchLayout::new(1, [Field::new("clip", transform.dtype(), &transform.shape())]);
            let clips = Arc::new(Mutex::new(Vec::new()));
            let partial = Counter::default();
            let fill = {
                let (clips, partial) = (clips.clone(), partial.clone());
                move || {
                    let registry = VideoRegistry::with_defaults();
                    let (video, image) = (VideoLimits::default(), Limits::default());
                    let fill = FillVideo::new(&registry, &transform, &video, &image)?;
                    Ok(FillClip(fill.count_partial(partial.clone()), clips.clone()))
                }
            };
            let pipeline = PipelineBuilder::from_iter([cut.to_vec()]).fill("decode", layout, fill);
            let batch = pipeline.build().unwrap().next().unwrap()?;
            let clip = clips.lock().unwrap().remove(0);
            Ok::<_, spdl_core::Error>((batch, clip, partial.get()))
        })
    };
    for outcome in written(OnTruncated::Error) {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Truncated);
    }
    let [start, all] = written(OnTruncated::Partial).map(Result::unwrap);
    assert_eq!((start.1.valid, start.2), (2, 1));
    let (batch, clip, partial) = all;
    assert!((2..20).contains(&clip.valid) && partial == 1, "{clip:?}");
    let frames = batch.array("clip").unwrap().as_bytes().chunks(8 * 8 * 3);
    let black: Vec<_> = frames.map(|frame| frame.iter().all(|&value| value == 0)).collect();
    assert_eq!(black, Vec::from_iter((0..20).map(|frame| frame >= clip.valid)));
    assert_eq!(black, Vec::from_iter(clip.seconds.iter().map(|seconds| seconds.is_nan())));
}

#[test]
fn frames_keep_their_times_if_others_of_an_avi_file_are_damaged() {
    let file = read("mpeg4.avi");
    let index = reader().index(&&file[..]).unwrap();
    let all: Vec<_> = (0..20).collect();
    let mut partial = reader().on_truncated(OnTruncated::Partial);
    for packet in 1..index.packets().len() {
        let range = index.packets()[packet];
        let bytes = &index.packet_bytes().unwrap()[range.offset as usize..][..range.bytes as usize];
        let at = file.windows(bytes.len()).position(|window| window == bytes).unwrap();
        let mut damaged = file.clone();
        damaged[at..at + bytes.len()].fill(0);
        let found = reader().index(&&damaged[..]).unwrap();
        let times = |index: &VideoIndex| Vec::from_iter((0..20).map(|frame| index.seconds(frame)));
        assert_eq!(times(&found), times(&index), "packet {packet}");
        let error = hashes(&mut reader(), &damaged, &found, &all).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let (_, decoded) = hashes(&mut partial, &damaged, &found, &all).unwrap();
        assert!(!decoded.missing.is_empty(), "packet {packet}");
    }
}

/// The file with the end of a packet overwritten, after the header of the slice.
fn damaged_at(file: &[u8], packet: VideoPacket) -> Vec<u8> {
    let mut damaged = file.to_vec();
    let VideoPacket { offset, bytes, .. } = packet;
    damaged[offset as usize + 14..(offset + u64::from(bytes)) as usize].fill(0);
    damaged
}

#[test]
fn damage_ends_at_the_next_key_frame() {
    let file = read("h264.mp4");
    let index = reader().index(&&file[..]).unwrap();
    let expected = golden("h264.mp4", "hash");
    let all: Vec<_> = (0..20).collect();
    let mut partial = reader().on_truncated(OnTruncated::Partial);
    // Frame 0 is the first of three key frames.
    let damaged = damaged_at(&file, index.packets()[0]);
    let (found, decoded) = hashes(&mut partial, &damaged, &index, &all).unwrap();
    assert_eq!(decoded.missing, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(found[8..], expected[8..]);
}

#[test]
fn frames_that_refer_to_a_damaged_frame_are_damaged() {
    let file = read("h264.mp4");
    let index = reader().index(&&file[..]).unwrap();
    let expected = golden("h264.mp4", "hash");
    // Packet 1 is frame 4, to which the B-frames 1 to 3 refer, which are presented before it.
    assert_eq!(index.frames()[4].packet, 1);
    let damaged = damaged_at(&file, index.packets()[1]);
    for frame in 1..8 {
        let error = hashes(&mut reader(), &damaged, &index, &[frame]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "frame {frame}");
    }
    let all: Vec<_> = (0..20).collect();
    let mut partial = reader().on_truncated(OnTruncated::Partial);
    let (found, decoded) = hashes(&mut partial, &damaged, &index, &all).unwrap();
    assert_eq!(decoded.missing, [1, 2, 3, 4, 5, 6, 7]);
    assert_eq!((&found[0], &found[8..]), (&expected[0], &expected[8..]));
}

/// The decoders of these codecs ignore packets without a header, and report no error.
#[test]
fn frames_after_a_packet_without_a_frame_are_damaged() {
    for name in ["av1.mp4", "mpeg2.mp4", "mpeg4.mp4"] {
        let file = read(name);
        let index = reader().index(&&file[..]).unwrap();
        let expected = golden(name, "hash");
        let all: Vec<_> = (0..expected.len()).collect();
        let mut partial = reader().on_truncated(OnTruncated::Partial);
        for packet in index.packets() {
            let mut damaged = file.clone();
            damaged[packet.offset as usize..][..packet.bytes as usize].fill(0);
            let (found, decoded) = hashes(&mut partial, &damaged, &index, &all).unwrap();
            assert!(!decoded.missing.is_empty(), "{name}, packet at {}", packet.offset);
            for frame in &all {
                let message = || format!("{name}, packet at {}, frame {frame}", packet.offset);
                let is_missing = decoded.missing.contains(frame);
                assert!(is_missing || found[*frame] == expected[*frame], "{}", message());
                match hashes(&mut reader(), &damaged, &index, &[*frame]) {
                    Ok((found, _)) => assert_eq!(found[0], expected[*frame], "{}", message()),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
                }
            }
        }
    }
}

/// The decoders of AV1 and MPEG-2 ignore packets without a header, and report no error.
#[test]
fn packets_without_a_frame_are_failures() {
    let decode = |file: &[u8], name: &str, options: &DecodeOptions, most| {
        let file = Box::new(bytes::Bytes::copy_from_slice(file));
        let mut demuxer = Demuxer::open(file, name, &DemuxOptions::default()).unwrap();
        let packets = demuxer.demux(MediaKind::Video, None).unwrap();
        decode_packets(&packets, None, options, most).unwrap()
    };
    for name in ["av1.mp4", "mpeg2.mp4", "mpeg4.mp4"] {
        let file = read(name);
        let index = reader().index(&&file[..]).unwrap();
        let mut options = DecodeOptions::default();
        let (intact, failures) = decode(&file, name, &options, None);
        assert_eq!((intact.len(), failures.count), (index.frames().len(), 0), "{name}");
        // If the first frames suffice, the following ones are not missing.
        let (_, failures) = decode(&file, name, &options, Some(5));
        assert_eq!(failures.count, 0, "{name}");
        for (number, packet) in index.packets().iter().enumerate().skip(1) {
            let mut damaged = file.clone();
            damaged[packet.offset as usize..][..packet.bytes as usize].fill(0);
            let (frames, failures) = decode(&damaged, name, &options, None);
            let message = format!("{name}, packet {number}");
            assert_eq!(failures.count, (intact.len() - frames.len()) as u64, "{message}");
            let first = failures.first.expect(&message);
            // Versions of FFmpeg may report damage with the packet after it.
            assert!(first.offset() >= Some(packet.offset), "{message}: {first}");
            assert_eq!(first.kind(), ErrorKind::Corrupt, "{message}");
        }
        // Packet 1 has one of the first 6 frames.
        let mut damaged = file.clone();
        let VideoPacket { offset, bytes, .. } = index.packets()[1];
        damaged[offset as usize..][..bytes as usize].fill(0);
        let (frames, failures) = decode(&damaged, name, &options, Some(6));
        // In MPEG-4, two B-frames refer to it.
        let missing = if name == "mpeg4.mp4" { 3 } else { 1 };
        assert_eq!((frames.len(), failures.count), (6, missing), "{name}");
        // The caller skips frames.
        options.options = vec![("skip_frame".into(), "nokey".into())];
        let (frames, failures) = decode(&file, name, &options, None);
        assert!(frames.len() < intact.len() || name == "av1.mp4", "{name}");
        assert_eq!(failures.count, 0, "{name}");
    }
}

#[test]
fn frames_do_not_depend_on_what_was_decoded_before() {
    for name in FILES {
        let file = read(name);
        let index = reader().index(&&file[..]).expect(name);
        let all: Vec<_> = (0..index.frames().len()).collect();
        let mut used = reader().on_truncated(OnTruncated::Partial);
        for packet in index.packets().iter().take(4) {
            let VideoPacket { offset, bytes, .. } = *packet;
            for part in [8, 4, 2] {
                let mut damaged = file.clone();
                damaged[(offset + u64::from(bytes / part)) as usize] ^= 0x5C;
                hashes(&mut used, &file, &index, &all).expect(name);
                let found = hashes(&mut used, &damaged, &index, &all).expect(name);
                let mut fresh = reader().on_truncated(OnTruncated::Partial);
                let expected = hashes(&mut fresh, &damaged, &index, &all).expect(name);
                assert_eq!(found, expected, "{name}, packet at {offset}, 1/{part}");
            }
        }
    }
}

#[test]
fn several_threads_decode_the_same_frames() {
    for name in ["h264.mp4", "hevc_open_gop.mp4", "vp9.webm"] {
        let file = read(name);
        let mut reader = reader().threads(4);
        let index = reader.index(&&file[..]).unwrap();
        let frames = [1, 5, 12, 19];
        let (found, _) = hashes(&mut reader, &file, &index, &frames).unwrap();
        let expected = golden(name, "hash");
        assert_eq!(found, frames.map(|frame| expected[frame].clone()), "{name}");
    }
}

#[test]
fn damage_does_not_depend_on_the_number_of_threads() {
    for name in ["hevc_open_gop.mp4", "vp8.webm", "vp9.webm", "av1.mp4", "h264.mp4"] {
        if !FfmpegCodec.notices_damage_in_threads(name.split(['_', '.']).next().unwrap()) {
            continue;
        }
        let file = read(name);
        let index = reader().index(&&file[..]).unwrap();
        let all: Vec<_> = (0..index.frames().len()).collect();
        let mut one = reader().threads(1).on_truncated(OnTruncated::Partial);
        let mut several = reader().threads(4).on_truncated(OnTruncated::Partial);
        for packet in index.packets() {
            let mut damaged = file.clone();
            let VideoPacket { offset, bytes, .. } = *packet;
            damaged[(offset + u64::from(bytes / 2)) as usize] ^= 0x5C;
            // Frames may be delivered that are found to be missing.
            let [expected, found] = [&mut one, &mut several].map(|reader| {
                let (mut hashes, decoded) = hashes(reader, &damaged, &index, &all).expect(name);
                decoded.missing.iter().for_each(|missing| hashes[*missing].clear());
                (hashes, decoded)
            });
            assert_eq!(found, expected, "{name}, packet at {offset}");
        }
    }
}

#[test]
fn invalid_requests_are_errors() {
    let file = read("h264.mp4");
    let mut reader = reader();
    let index = reader.index(&&file[..]).unwrap();
    let error = hashes(&mut reader, &file, &index, &[20]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("no frame 20: the video has 20 frames"), "{error}");
    let small = VideoLimits::default().max_pixels(64 * 48 - 1);
    let mut limited = VideoReader::new(&VideoRegistry::with_defaults(), &small);
    let index = limited.index(&&file[..]).and_then(|index| {
        hashes(&mut limited, &file, &index, &[0])?;
        Ok(index)
    });
    assert_eq!(index.unwrap_err().kind(), ErrorKind::LimitExceeded);
    for (bytes, kind) in
        [(&b""[..], ErrorKind::Truncated), (&b"no video at all"[..], ErrorKind::Unsupported)]
    {
        let error = reader.index(&bytes).unwrap_err();
        assert!(error.kind() == kind || error.kind() == ErrorKind::Corrupt, "{error}");
    }
}

/// A source that counts the bytes that are read.
struct Counted<'a>(&'a [u8], std::cell::Cell<u64>);

impl MediaSource for Counted<'_> {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read<'a>(
        &'a self,
        range: std::ops::Range<u64>,
        _memory: &'a mut Vec<u8>,
    ) -> spdl_core::Result<&'a [u8]> {
        self.1.set(self.1.get() + range.end - range.start);
        Ok(&self.0[range.start as usize..range.end as usize])
    }
}

#[test]
fn a_clip_reads_only_the_bytes_that_it_needs() {
    let file = read("h264_faststart.mp4");
    let source = Counted(&file, 0.into());
    let mut reader = reader();
    let index = reader.index(&source).unwrap();
    source.1.set(0);
    let frames = &mut |_: usize, _: &Picture| Ok(());
    reader.decode(&source, &index, &[16], frames).unwrap();
    let packet = index.packets()[index.frames()[16].packet as usize];
    assert_eq!(source.1.get(), u64::from(packet.bytes));
}

/// The encoding and the siting of the first frame of a file, whose container names these colours.
fn encoding(name: &str, color: Option<VideoColor>) -> (YCbCrEncoding, ChromaSiting) {
    let mut reader = reader();
    let file = read(name);
    let mut index = reader.index(&&file[..]).expect("an index");
    if let Some(color) = color {
        let mut stream = index.stream().clone();
        stream.color = color;
        index = VideoIndex::new(stream, index.packets().to_vec(), 0).expect("an index");
    }
    let mut found = None;
    reader
        .decode(&&file[..], &index, &[0], &mut |_, picture| {
            found = Some((picture.encoding(), picture.siting()));
            Ok(())
        })
        .expect("a frame");
    found.expect("a frame")
}

#[test]
fn the_matrix_and_range_are_those_of_the_stream() {
    let files = [
        ("h264.mp4", YCbCrEncoding::BT601.limited()),
        ("h264_bt709.mp4", YCbCrEncoding::BT709.limited()),
        ("h264_bt709_full.mp4", YCbCrEncoding::BT709),
    ];
    for (name, expected) in files {
        assert_eq!(encoding(name, None).0, expected, "{name}");
    }
}

#[test]
fn the_container_names_the_colours_that_the_stream_does_not() {
    let siting = ChromaSiting { across: ChromaPosition::First, down: ChromaPosition::First };
    let color = VideoColor {
        matrix: Some(9),
        is_full_range: Some(true),
        siting: Some(siting),
        ..VideoColor::default()
    };
    assert_eq!(encoding("h264.mp4", Some(color)).0, YCbCrEncoding::BT2020);
    // The stream names matrix and range.
    assert_eq!(encoding("h264_bt709.mp4", Some(color)).0, YCbCrEncoding::BT709.limited());
    // H.264 has chroma at the left unless the stream names another place; VP8 has no place.
    let left = ChromaSiting { across: ChromaPosition::First, down: ChromaPosition::Middle };
    assert_eq!(encoding("h264.mp4", Some(color)).1, left);
    assert_eq!(encoding("vp8.webm", Some(color)).1, siting);
    assert_eq!(encoding("vp8.webm", None).1, ChromaSiting::default());
}
