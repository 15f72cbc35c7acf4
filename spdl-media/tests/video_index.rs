//! Indexes of video files against `ffprobe`, and of damaged files.
//!
//! `tests/video/make.sh` makes the files and the lists.

#[path = "video/files.rs"]
mod files;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use files::read;
use proptest::prelude::*;
use spdl_core::ErrorKind;
use spdl_media::Orientation;
use spdl_media::video::{MatroskaContainer, Mp4Container, VideoContainer, VideoIndex, VideoLimits};

const FILES: [&str; 19] = [
    "av1.mp4",
    "h264.mkv",
    "h264.mp4",
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
    "mpeg4.mp4",
    "vp8.webm",
    "vp9.webm",
];

/// The container that recognises a file, if exactly one does.
fn container(file: &[u8]) -> Option<&'static dyn VideoContainer> {
    let head = &file[..file.len().min(4096)];
    match (Mp4Container.sniff(head), MatroskaContainer.sniff(head)) {
        (true, false) => Some(&Mp4Container),
        (false, true) => Some(&MatroskaContainer),
        _ => None,
    }
}

fn index(name: &str) -> VideoIndex {
    let file = read(name);
    let container = container(&file).expect(name);
    let index = container.index(&&file[..], &VideoLimits::default());
    index.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The lines of a golden list with this first field, as numbers.
fn golden<const N: usize>(name: &str, kind: &str) -> Vec<[i64; N]> {
    let number = |field: &str| field.parse().expect("a number");
    files::golden(name, kind)
        .iter()
        .map(|line| Vec::from_iter(line.split('\t').map(number)).try_into().expect("all fields"))
        .collect()
}

/// The position that `ffprobe` lists: in Matroska, of the block with its header of 4 bytes.
fn position(name: &str, offset: u64) -> i64 {
    let header = if name.ends_with("mkv") || name.ends_with("webm") { 4 } else { 0 };
    offset as i64 - header
}

#[test]
fn packets_are_those_of_ffprobe() {
    for name in FILES {
        let index = index(name);
        let packets = index.packets().iter().map(|packet| {
            let position = position(name, packet.offset);
            [packet.timestamp, packet.bytes.into(), position, packet.is_key.into()]
        });
        assert_eq!(Vec::from_iter(packets), golden::<4>(name, "packet"), "{name}");
    }
}

#[test]
fn frames_are_those_of_ffprobe() {
    for name in FILES {
        let index = index(name);
        let frames = index.frames().iter().map(|frame| {
            let packet = &index.packets()[frame.packet as usize];
            [frame.timestamp, position(name, packet.offset)]
        });
        assert_eq!(Vec::from_iter(frames), golden::<2>(name, "frame"), "{name}");
    }
}

#[test]
fn disposable_packets_are_those_that_ffmpeg_skips() {
    let mut count = 0;
    for name in FILES {
        let index = index(name);
        let kept = golden::<1>(name, "kept");
        for packet in index.packets().iter().filter(|packet| packet.is_disposable) {
            assert!(!kept.contains(&[position(name, packet.offset)]), "{name}");
            count += 1;
        }
    }
    assert!(count > 0, "at least one file has `sdtp`");
}

#[test]
fn streams_have_codec_and_set_up_data() {
    let codec = |name: &str| index(name).stream().codec.clone();
    for name in FILES {
        let expected = match name.split(['.', '_']).next() {
            Some("mpeg2") => "mpeg2video",
            other => other.unwrap(),
        };
        assert_eq!(codec(name), expected, "{name}");
    }
    // The configuration version of `avcC` and `hvcC`, the marker and version of `av1C`.
    for (name, first) in
        [("h264.mp4", 1), ("h264.mkv", 1), ("hevc_open_gop.mp4", 1), ("av1.mp4", 0x81)]
    {
        assert_eq!(index(name).stream().setup.first(), Some(&first), "{name}");
    }
    assert_eq!(index("mpeg4.mp4").stream().setup[..4], [0, 0, 1, 0xB0]);
}

/// FFmpeg 5.1 writes the inverse of the angle that its option names. Its player turns the file
/// `h264_rotated_270.mp4` clockwise by 90 degrees.
#[test]
fn rotated_files_have_an_orientation() {
    for (name, expected) in [
        ("h264.mp4", Orientation::Upright),
        ("h264_rotated_270.mp4", Orientation::Rotated90),
        ("h264_rotated_180.mp4", Orientation::Rotated180),
        ("h264_rotated_90.mp4", Orientation::Rotated270),
    ] {
        assert_eq!(index(name).stream().orientation, expected, "{name}");
    }
}

#[cfg(unix)]
#[test]
fn files_and_memory_have_the_same_index() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/video");
    for name in FILES {
        let file = std::fs::File::open(path.join(name)).unwrap();
        let container = container(&read(name)).unwrap();
        assert_eq!(container.index(&file, &VideoLimits::default()).unwrap(), index(name), "{name}");
    }
}

#[test]
fn files_with_too_many_streams_exceed_the_limit() {
    for name in ["h264.mp4", "h264.mkv"] {
        let file = read(name);
        let container = container(&file).unwrap();
        assert!(container.index(&&file[..], &VideoLimits::default().max_streams(1)).is_ok());
        let error =
            container.index(&&file[..], &VideoLimits::default().max_streams(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{name}: {error}");
        assert!(error.message().contains("1 streams of the file exceed the limit of 0"), "{error}");
    }
}

/// Checks that a damaged file has an index or an error, soon.
fn check_damaged(file: &[u8]) {
    let Some(container) = container(file) else { return };
    let start = Instant::now();
    let limits = VideoLimits::default().max_packets(100_000);
    match container.index(&file, &limits) {
        Ok(index) => {
            let count = index.packets().len();
            assert!(count <= 100_000);
            assert!(index.frames().iter().all(|frame| (frame.packet as usize) < count));
        }
        Err(error) => assert!(
            matches!(
                error.kind(),
                ErrorKind::Corrupt
                    | ErrorKind::Truncated
                    | ErrorKind::Unsupported
                    | ErrorKind::LimitExceeded
            ),
            "{error}"
        ),
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn every_truncated_file_has_an_index_or_an_error() {
    for name in ["h264.mp4", "h264_fragmented.mp4", "h264_live.mkv", "vp9.webm"] {
        let file = read(name);
        (0..file.len()).for_each(|size| check_damaged(&file[..size]));
    }
}

/// The position of the first table, near which most mutants are made.
fn tables_start(file: &[u8]) -> usize {
    file.windows(4).position(|window| window == b"moov").unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_files_have_an_index_or_an_error(
        name in prop::sample::select(&FILES[..]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..6_u8, any::<u8>()), 1..6),
    ) {
        let mut file = read(name);
        let start = tables_start(&file);
        for (at, kind, value) in changes {
            let at = start + at.index(file.len() - start);
            let word = at..(at + 4).min(file.len());
            match kind {
                0 => file[at] = value,
                1 => file[at] ^= 1 << (value & 7),
                2 => file[word].fill(0xFF),
                3 => file[word].fill(0),
                4 => file[at] = 0x7F,
                _ => drop(file.remove(at)),
            }
        }
        check_damaged(&file);
    }
}
