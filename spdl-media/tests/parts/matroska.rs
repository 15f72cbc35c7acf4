//! Clips of long Matroska files.

use std::sync::Arc;

use proptest::prelude::*;
use spdl_core::ErrorKind;
use spdl_media::fill::SampleSpec;
use spdl_media::video::{
    MatroskaContainer, Mp4Container, ShortVideo, VideoClip, VideoContainer, VideoIndex, VideoLimits,
};

use super::mp4::{clip, files::read};
use super::store::Recorded;
use super::{MIB, Reading, assert_same, batches, same_in_parts};

const EBML: u32 = 0x1A45_DFA3;
const SEGMENT: u32 = 0x1853_8067;
const CLUSTER: u32 = 0x1F43_B675;
const CUES: u32 = 0x1C53_BB6B;

/// Where the cues are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CuesPlace {
    None,
    First,
    Last,
}

/// How a file is written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatroskaLayout {
    pub(crate) cues: CuesPlace,
    /// The number of packets of a cluster; 0: a cluster for each key frame.
    pub(crate) cluster: usize,
    pub(crate) has_open_clusters: bool,
    pub(crate) has_groups: bool,
    /// Bytes of an element without content after each cluster.
    pub(crate) gap: usize,
    pub(crate) copies: i64,
}

pub(crate) const LAYOUT: MatroskaLayout = MatroskaLayout {
    cues: CuesPlace::Last,
    cluster: 0,
    has_open_clusters: false,
    has_groups: false,
    gap: MIB as usize,
    copies: 3,
};

fn element(id: u32, content: &[u8]) -> Vec<u8> {
    let id = id.to_be_bytes();
    let skipped = id.iter().take_while(|&&byte| byte == 0).count();
    let size = (1 << 56 | content.len() as u64).to_be_bytes();
    [&id[skipped..], &size, content].concat()
}

/// An element of unknown size.
fn open(id: u32, content: &[u8]) -> Vec<u8> {
    let mut element = element(id, content);
    element[4..12].copy_from_slice(&(u64::MAX >> 7).to_be_bytes());
    element
}

fn number(id: u32, value: u64) -> Vec<u8> {
    element(id, &value.to_be_bytes())
}

fn block(track: u8, time: i16, flags: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = time.to_be_bytes();
    [&[0x80 | track, high, low, flags][..], content].concat()
}

/// A file with copies of the packets of another one, one after another.
pub(crate) fn matroska(name: &str, layout: MatroskaLayout) -> Vec<u8> {
    let file = read(name);
    let index = index(&file);
    let stream = index.stream();
    let codec = match &stream.codec[..] {
        "h264" => "V_MPEG4/ISO/AVC",
        "hevc" => "V_MPEGH/ISO/HEVC",
        "vp8" => "V_VP8",
        other => panic!("{other}"),
    };
    let size = [(0xB0, stream.size.width), (0xBA, stream.size.height)];
    let video = size.map(|(id, side)| number(id, side.into())).concat();
    let entry = [
        number(0xD7, 1),
        number(0x83, 1),
        element(0x86, codec.as_bytes()),
        element(0x63A2, &stream.setup),
        element(0xE0, &video),
    ];
    let sound = [number(0xD7, 2), number(0x83, 2), element(0x86, b"A_OPUS")].concat();
    let tracks = [element(0xAE, &sound), element(0xAE, &entry.concat())].concat();
    let tracks = element(0x1654_AE6B, &tracks);
    let milliseconds = |timestamp: i64| (stream.seconds(timestamp) * 1000.0).round() as i64;
    let zero = milliseconds(index.frames()[0].timestamp);
    let length = milliseconds((index.end_seconds() / stream.seconds(1)).round() as i64) - zero;

    let mut clusters = Vec::new();
    let mut cues = Vec::new();
    let mut cluster: Vec<u8> = Vec::new();
    let (mut start, mut blocks) = (0, 0);
    let close = |cluster: &mut Vec<u8>, clusters: &mut Vec<u8>| {
        if !cluster.is_empty() {
            let write = if layout.has_open_clusters { open } else { element };
            clusters.extend(write(CLUSTER, cluster));
            clusters.extend(element(0xEC, &vec![0; layout.gap]));
            cluster.clear();
        }
    };
    for copy in 0..layout.copies {
        for packet in index.packets() {
            let time = milliseconds(packet.timestamp) - zero + copy * length + 1000;
            let is_next = match layout.cluster {
                0 => packet.is_key,
                most => blocks % most == 0,
            };
            blocks += 1;
            if is_next {
                close(&mut cluster, &mut clusters);
                start = time;
                cluster.extend(number(0xE7, time as u64));
                // Another track with lacing.
                cluster.extend(element(0xA3, &block(2, 0, 0x86, &[1, 2, 3, 4])));
            }
            if packet.is_key {
                cues.push((time, clusters.len()));
            }
            let bytes = &file[packet.offset as usize..][..packet.bytes as usize];
            let time = (time - start) as i16;
            let key = if packet.is_key { 0x80 } else { 0 };
            if layout.has_groups {
                let mut group = element(0xA1, &block(1, time, 0, bytes));
                if !packet.is_key {
                    group.extend(number(0xFB, 0));
                }
                cluster.extend(element(0xA0, &group));
            } else {
                cluster.extend(element(0xA3, &block(1, time, key, bytes)));
            }
        }
    }
    close(&mut cluster, &mut clusters);

    let listed = |start: usize| {
        let of_track = |track: u64, position: usize| {
            element(0xB7, &[number(0xF7, track), number(0xF1, position as u64)].concat())
        };
        let point = |&(time, position): &(i64, usize)| {
            let tracks = [of_track(2, 0), of_track(1, start + position)].concat();
            element(0xBB, &[number(0xB3, time as u64), tracks].concat())
        };
        element(CUES, &cues.iter().map(point).collect::<Vec<_>>().concat())
    };
    let seek_head = |position: usize| {
        let seek = [number(0x53AB, CUES.into()), number(0x53AC, position as u64)].concat();
        element(0x114D_9B74, &element(0x4DBB, &seek))
    };
    let content = match layout.cues {
        CuesPlace::None => [tracks, clusters].concat(),
        CuesPlace::First => {
            let start = tracks.len() + listed(0).len();
            [tracks, listed(start), clusters].concat()
        }
        CuesPlace::Last => {
            let start = seek_head(0).len() + tracks.len();
            [seek_head(start + clusters.len()), tracks, clusters, listed(start)].concat()
        }
    };
    let head = element(EBML, &element(0x4282, b"matroska"));
    let write = if layout.has_open_clusters { open } else { element };
    [head, write(SEGMENT, &content)].concat()
}

fn index(file: &[u8]) -> VideoIndex {
    let container: &dyn VideoContainer =
        if Mp4Container.sniff(&file[..64]) { &Mp4Container } else { &MatroskaContainer };
    container.index(&file, &VideoLimits::default()).unwrap()
}

fn random() -> SampleSpec {
    clip(VideoClip::new(3).every_seconds(0.1).random(true))
}

#[test]
fn clips_with_times_read_only_their_clusters() {
    for (cues, first_requests) in [(CuesPlace::First, 4), (CuesPlace::Last, 5)] {
        let file = matroska("h264.mkv", MatroskaLayout { cues, ..LAYOUT });
        let store = Arc::new(Recorded::of(&file));
        let whole = batches(&random(), &store, Reading::Whole, 0..8);
        assert!(whole.iter().all(Result::is_ok), "{:?}", whole[0]);
        store.take();
        let first = batches(&random(), &store, Reading::InParts, 0..1);
        let (requests, bytes) = store.take();
        // Two samples that may be read at the same time.
        assert!(requests <= 2 * first_requests, "{cues:?}: {requests} requests");
        assert!(bytes < 2 * 5 * MIB, "{cues:?}: {bytes} bytes of {}", file.len());
        assert_same(&whole[..1], &first);
        assert_same(&whole, &batches(&random(), &store, Reading::InParts, 0..8));
        // Without cues, the packets are the same.
        let plain = matroska("h264.mkv", MatroskaLayout { cues: CuesPlace::None, ..LAYOUT });
        assert_same(
            &whole,
            &batches(&random(), &Arc::new(Recorded::of(&plain)), Reading::Whole, 0..8),
        );
    }
}

#[test]
fn a_clip_at_a_known_time_reads_neither_the_end_nor_the_whole_file() {
    let layout = MatroskaLayout { cues: CuesPlace::First, copies: 8, ..LAYOUT };
    let file = matroska("h264.mkv", layout);
    let spec = clip(VideoClip::new(4).every_seconds(0.1).start(6.0));
    let store = Arc::new(Recorded::of(&file));
    let parts = batches(&spec, &store, Reading::InParts, 0..1);
    let (requests, bytes) = store.take();
    assert!(requests <= 4, "{requests} requests");
    assert!(bytes < 2 * 3 * MIB, "{bytes} bytes of {}", file.len());
    assert_same(&batches(&spec, &store, Reading::Whole, 0..1), &parts);
}

#[test]
fn clips_by_number_are_read_whole() {
    let file = matroska("h264.mkv", LAYOUT);
    for clip_of in [VideoClip::new(4), VideoClip::new(3).every_frames(2).random(true)] {
        let parts = same_in_parts(&clip(clip_of), &file, 3);
        assert!(parts.iter().all(Result::is_ok));
    }
}

#[test]
fn the_end_of_the_video_is_found() {
    for short in [ShortVideo::Error, ShortVideo::RepeatLast, ShortVideo::Cycle] {
        for (frames, start) in [(10, 5.5), (200, 0.0), (1, 5.95), (1, 6.0), (2, 99.0)] {
            let clip = clip(VideoClip::new(frames).every_seconds(0.1).start(start).short(short));
            let with = same_in_parts(&clip, &matroska("h264.mkv", LAYOUT), 1);
            let plain = matroska("h264.mkv", MatroskaLayout { cues: CuesPlace::None, ..LAYOUT });
            assert_same(&with, &same_in_parts(&clip, &plain, 1));
        }
    }
}

#[test]
fn damaged_files_have_the_same_batches_and_errors() {
    let file =
        matroska("h264.mkv", MatroskaLayout { cues: CuesPlace::First, gap: 200_000, ..LAYOUT });
    let found: Vec<_> = [file.len() / 2, file.len() - 100, 3000, 700]
        .into_iter()
        .flat_map(|size| same_in_parts(&random(), &file[..size], 6))
        .collect();
    assert!(found.iter().any(Result::is_err));
    let cues = file.windows(4).position(|it| it == CUES.to_be_bytes()).unwrap();
    let cluster = file.windows(4).position(|it| it == CLUSTER.to_be_bytes()).unwrap();
    // Lists of wrong times and positions, and damaged headers of clusters and blocks.
    for at in (cues..cluster + 300).step_by(23) {
        let mut damaged = file.clone();
        damaged[at] ^= 0x41;
        same_in_parts(&random(), &damaged, 2);
    }
    // A video block with lacing, in the first cluster.
    let block = file[cluster..].windows(3).position(|it| it == [0x81, 0, 0]).unwrap();
    let block = cluster + block;
    let mut laced = file;
    laced[block + 3] |= 0x02;
    let kinds = |found: &[Result<_, spdl_core::Error>]| {
        found
            .iter()
            .filter_map(|it| it.as_ref().err().map(|error| error.kind()))
            .collect::<Vec<_>>()
    };
    let found = same_in_parts(&random(), &laced, 4);
    assert_eq!(kinds(&found), [ErrorKind::Unsupported; 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_clip_is_the_same_with_and_without_cues(
        name in prop::sample::select(vec!["h264.mkv", "hevc_open_gop.mp4", "vp8_hidden.webm"]),
        cues in prop::sample::select(vec![CuesPlace::First, CuesPlace::Last]),
        cluster in prop::sample::select(vec![0, 0, 3, 7, 50]),
        has_open_clusters: bool,
        has_groups: bool,
        gap in prop::sample::select(vec![30_000, 300_000]),
        copies in 2_i64..6,
        frames in 1_usize..8,
        step in 1_u32..40,
        start in 0_u32..30,
        is_random: bool,
    ) {
        let layout = MatroskaLayout { cues, cluster, has_open_clusters, has_groups, gap, copies };
        let clip = VideoClip::new(frames)
            .every_seconds(f64::from(step) / 30.0)
            .start(f64::from(start) / 20.0)
            .random(is_random)
            .short(ShortVideo::RepeatLast);
        let spec = super::mp4::clip(clip);
        let with = same_in_parts(&spec, &matroska(name, layout), 2);
        let plain = matroska(name, MatroskaLayout { cues: CuesPlace::None, ..layout });
        let plain = Arc::new(Recorded::of(&plain));
        assert_same(&with, &batches(&spec, &plain, Reading::Whole, 0..2));
    }
}
