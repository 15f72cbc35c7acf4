//! Clips of long MP4 files.

#[path = "../video/files.rs"]
#[allow(dead_code, reason = "the lists are for other tests")]
pub(crate) mod files;

use std::sync::Arc;

use files::read;
use spdl_core::{ErrorKind, block_on};
use spdl_io::Key;
use spdl_io::fetch::BlockReader;
use spdl_media::ImageTransform;
use spdl_media::OnTruncated;
use spdl_media::ffmpeg::{DemuxOptions, Demuxer, MediaKind, Time, TimeWindow};
use spdl_media::fill::{SampleField, SampleSpec};
use spdl_media::image::Picture;
use spdl_media::video::{
    Mp4Container, ShortVideo, VideoClip, VideoContainer, VideoLimits, VideoReader, VideoRegistry,
    VideoTransform,
};

use super::store::Recorded;
use super::{MIB, Reading, assert_same, batch, batches, same_in_parts};

/// Where `moov` is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Tables {
    First,
    Last,
}

/// The first group of pictures starts here, and each other group the same distance later.
const GROUP: u64 = 7 * MIB;

/// The video `h264.mp4`, whose groups of pictures are far from each other.
pub(crate) fn spread(tables: Tables) -> Vec<u8> {
    let file = read("h264.mp4");
    let index = Mp4Container.index(&&file[..], &VideoLimits::default()).unwrap();
    let (mut at, mut groups) = (0, 0);
    let mut offsets = Vec::new();
    for packet in index.packets() {
        if packet.is_key {
            groups += 1;
            at = groups * GROUP;
        }
        offsets.push(at as u32);
        at += u64::from(packet.bytes);
    }
    assert!(groups >= 2);
    let moov = with_offsets(find(&file, b"moov"), &offsets);
    let mut long = find(&file, b"ftyp").to_vec();
    if tables == Tables::First {
        long.extend(&moov);
    }
    let header = long.len();
    let end = at as usize + 3 * MIB as usize;
    long.extend(((end - header) as u32).to_be_bytes());
    long.extend(b"mdat");
    long.resize(end, 0);
    for (packet, offset) in index.packets().iter().zip(&offsets) {
        let bytes = &file[packet.offset as usize..][..packet.bytes as usize];
        long[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    if tables == Tables::Last {
        long.extend(&moov);
    }
    long
}

/// A box at the top level.
fn find<'a>(file: &'a [u8], kind: &[u8; 4]) -> &'a [u8] {
    boxes(file).into_iter().find(|it| it[4..8] == *kind).unwrap()
}

fn boxes(mut content: &[u8]) -> Vec<&[u8]> {
    let mut found = Vec::new();
    while let Some(size) = content.first_chunk() {
        let (first, rest) = content.split_at(u32::from_be_bytes(*size) as usize);
        found.push(first);
        content = rest;
    }
    found
}

/// A box with one sample in each chunk, at these positions.
fn with_offsets(old: &[u8], offsets: &[u32]) -> Vec<u8> {
    let kind: [u8; 4] = old[4..8].try_into().unwrap();
    let mut new = vec![0; 4];
    new.extend(kind);
    match &kind {
        b"moov" | b"trak" | b"mdia" | b"minf" | b"stbl" => {
            for child in boxes(&old[8..]) {
                new.extend(with_offsets(child, offsets));
            }
        }
        b"stco" => {
            new.extend([0; 4]);
            new.extend((offsets.len() as u32).to_be_bytes());
            new.extend(offsets.iter().flat_map(|offset| offset.to_be_bytes()));
        }
        b"stsc" => new.extend([0_u32, 1, 1, 1, 1].iter().flat_map(|it| it.to_be_bytes())),
        _ => return old.to_vec(),
    }
    let size = (new.len() as u32).to_be_bytes();
    new[..4].copy_from_slice(&size);
    new
}

pub(crate) fn clip(clip: VideoClip) -> SampleSpec {
    clip_of(clip, ImageTransform::new(16))
}

fn clip_of(clip: VideoClip, image: ImageTransform) -> SampleSpec {
    SampleSpec::new()
        .with("video", SampleField::video(VideoTransform::new(clip, image)))
        .with("count", SampleField::video_frames("video"))
        .with("times", SampleField::video_times("video"))
}

fn random() -> SampleSpec {
    clip(VideoClip::new(3).every_frames(1).random(true))
}

#[test]
fn demuxers_and_readers_read_parts_of_an_object() {
    for tables in [Tables::First, Tables::Last] {
        let file = spread(tables);
        assert!(file.len() as u64 > 20 * MIB);
        let store = Arc::new(Recorded::of(&file));
        let open = || block_on(BlockReader::open(Arc::clone(&store) as _, Key::from("a"))).unwrap();
        // The last frame, by FFmpeg.
        let mut demuxer = Demuxer::open(Box::new(open()), "a", &DemuxOptions::default()).unwrap();
        let window = TimeWindow::new(Time::new(19, 10).unwrap(), Time::new(2, 1).unwrap());
        let packets = demuxer.demux(MediaKind::Video, Some(window.unwrap())).unwrap();
        let (_, bytes) = store.take();
        assert!(bytes < 6 * MIB, "{tables:?}: {bytes} bytes");
        let mut whole = Demuxer::open(Box::new(&file[..]), "a", &DemuxOptions::default()).unwrap();
        let expected = whole.demux(MediaKind::Video, packets.window()).unwrap();
        assert_eq!(packets.to_bytes(), expected.to_bytes());
        // The same by `VideoReader`.
        let object = open();
        let mut reader = VideoReader::new(&VideoRegistry::with_defaults(), &VideoLimits::default());
        let index = reader.index(&object).unwrap();
        let mut frames = 0;
        let mut each = |_: usize, _: &Picture| {
            frames += 1;
            Ok(())
        };
        reader.decode(&object, &index, &[19], &mut each).unwrap();
        assert_eq!(frames, 1);
        let (_, bytes) = store.take();
        assert!(bytes < 5 * MIB, "{tables:?}: {bytes} bytes");
    }
}

#[test]
fn clips_of_a_long_video_are_the_same_and_read_little() {
    for (tables, first_requests) in [(Tables::First, 2), (Tables::Last, 3)] {
        let file = spread(tables);
        assert!(file.len() as u64 > 15 * MIB);
        let store = Arc::new(Recorded::of(&file));
        let whole = batches(&random(), &store, Reading::Whole, 0..8);
        assert!(whole.iter().all(Result::is_ok));
        store.take();
        let first = batches(&random(), &store, Reading::InParts, 0..1);
        let (requests, bytes) = store.take();
        // Two samples that may be read at the same time; a clip may need two groups.
        assert!(requests <= 2 * (first_requests + 1), "{tables:?}: {requests} requests");
        assert!(bytes < 2 * MIB, "{tables:?}: {bytes} bytes");
        assert_same(&whole[..1], &first);
        let parts = batches(&random(), &store, Reading::InParts, 0..8);
        assert_same(&whole, &parts);
        // Later samples need one request for each group.
        let (requests, bytes) = store.take();
        assert!(requests <= 2 * first_requests + 2 * 16, "{requests} requests");
        assert!(bytes < 3 * MIB, "{bytes} bytes");
    }
}

#[test]
fn all_kinds_of_clips_are_the_same() {
    for file in [spread(Tables::First), spread(Tables::Last)] {
        for clip in [
            VideoClip::new(4),
            VideoClip::new(4).random(true),
            VideoClip::new(3).every_seconds(0.1).random(true),
            VideoClip::new(2).every_frames(1).start(1.2),
            VideoClip::new(30).every_frames(1).short(ShortVideo::Cycle),
            VideoClip::new(30).every_frames(1),
        ] {
            same_in_parts(&super::mp4::clip(clip), &file, 3);
        }
    }
}

/// The boxes that list fragments.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FragmentTable {
    None,
    Segments,
    RandomAccess,
}

/// Copies of the fragments of `h264_fragmented.mp4`, 1 MiB apart.
fn fragmented(copies: usize, table: FragmentTable) -> Vec<u8> {
    let file = read("h264_fragmented.mp4");
    let mut fragments = Vec::new();
    for part in boxes(&file) {
        match &part[4..8] {
            b"moof" => fragments.push(part.to_vec()),
            b"mdat" => {
                let fragment = fragments.last_mut().unwrap();
                fragment.extend(part);
                fragment.extend((MIB as u32).to_be_bytes());
                fragment.extend(b"free");
                fragment.resize(fragment.len() + MIB as usize - 8, 0);
            }
            _ => {}
        }
    }
    let fragments: Vec<_> = std::iter::repeat_n(fragments, copies).flatten().collect();
    let mut long = [find(&file, b"ftyp"), find(&file, b"moov")].concat();
    if table == FragmentTable::Segments {
        let mut sidx = vec![0; 20];
        sidx.extend((fragments.len() as u32).to_be_bytes());
        for fragment in &fragments {
            sidx.extend((fragment.len() as u32).to_be_bytes());
            sidx.extend([0; 8]);
        }
        long.extend(boxed(b"sidx", &sidx));
    }
    let mut starts = Vec::new();
    for fragment in &fragments {
        starts.push(long.len() as u64);
        long.extend(fragment);
    }
    if table == FragmentTable::RandomAccess {
        let mut tfra = vec![1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0b01_00_10];
        tfra.extend((starts.len() as u32).to_be_bytes());
        for start in &starts {
            tfra.extend([0; 8]);
            tfra.extend(start.to_be_bytes());
            tfra.extend([0, 1, 0, 0, 1, 1]);
        }
        let tfra = boxed(b"tfra", &tfra);
        let size = (8 + tfra.len() + 16) as u32;
        let mfro = boxed(b"mfro", &[[0; 4], size.to_be_bytes()].concat());
        long.extend(boxed(b"mfra", &[tfra, mfro].concat()));
    }
    long
}

fn boxed(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let size = (content.len() as u32 + 8).to_be_bytes();
    [&size[..], kind, content].concat()
}

#[test]
fn headers_of_fragments_that_a_table_lists_are_read_together() {
    for table in [FragmentTable::Segments, FragmentTable::RandomAccess] {
        let file = fragmented(10, table);
        let store = Arc::new(Recorded::of(&file));
        let whole = batches(&random(), &store, Reading::Whole, 0..4);
        assert!(whole.iter().all(Result::is_ok));
        store.take();
        let parts = batches(&random(), &store, Reading::InParts, 0..4);
        assert_same(&whole, &parts);
        let (_, bytes) = store.take();
        // Eight samples.
        assert!(bytes < 5 * MIB, "{table:?}: {bytes} bytes");
        // Wrong positions change nothing.
        let mut wrong = file;
        let at = wrong.windows(4).position(|it| it == b"sidx" || it == b"tfra").unwrap();
        wrong[at + 40..at + 100].fill(0x21);
        same_in_parts(&random(), &wrong, 2);
    }
}

#[test]
fn fragments_without_a_table_are_read_in_steps_or_whole() {
    // Few fragments, and more than the number of requests.
    for (copies, most) in [(1, 3 * MIB), (10, 4 * 70 * MIB)] {
        let store = Arc::new(Recorded::of(&fragmented(copies, FragmentTable::None)));
        let whole = batches(&random(), &store, Reading::Whole, 0..2);
        assert!(whole.iter().all(Result::is_ok));
        store.take();
        assert_same(&whole, &batches(&random(), &store, Reading::InParts, 0..2));
        let (_, bytes) = store.take();
        assert!(bytes < most, "{copies}: {bytes} bytes");
    }
}

#[test]
fn other_containers_are_read_whole() {
    for name in ["h264.mkv", "h264.ts"] {
        let mut file = read(name);
        // A void element of Matroska, and null packets of MPEG-TS.
        if name == "h264.mkv" {
            file.extend([0xEC, 0x10, 0x20, 0, 0]);
            file.resize(file.len() + (2 << 20), 0);
        } else {
            let mut null = [0xFF; 188];
            null[..4].copy_from_slice(&[0x47, 0x1F, 0xFF, 0x10]);
            file.extend(null.repeat(12_000));
        }
        let store = Arc::new(Recorded::of(&file));
        let whole = batches(&random(), &store, Reading::Whole, 0..2);
        assert!(whole.iter().all(Result::is_ok), "{name}: {:?}", whole[0]);
        assert_same(&whole, &batches(&random(), &store, Reading::InParts, 0..2));
    }
}

#[test]
fn damaged_and_truncated_files_have_the_same_errors() {
    let partial = || {
        let image = ImageTransform::new(16).on_truncated(OnTruncated::Partial).min_partial(0.01);
        clip_of(VideoClip::new(20).every_frames(1), image)
    };
    let all = clip(VideoClip::new(20).every_frames(1));
    let first = spread(Tables::First);
    // Inside the last group, before it, and inside the tables.
    let end = first.len() - 3 * MIB as usize;
    for size in [end - 100, end - 2 * MIB as usize, 500] {
        let found = same_in_parts(&all, &first[..size], 1);
        assert_eq!(found[0].as_ref().unwrap_err().kind(), ErrorKind::Truncated);
        same_in_parts(&partial(), &first[..size], 1);
        same_in_parts(&random(), &first[..size], 6);
    }
    let last = spread(Tables::Last);
    let found = same_in_parts(&all, &last[..last.len() - 500], 1);
    assert_eq!(found[0].as_ref().unwrap_err().kind(), ErrorKind::Truncated);
    let without = same_in_parts(&all, &last[..10 << 20], 1);
    assert_eq!(without[0].as_ref().unwrap_err().kind(), ErrorKind::Truncated);
    // Damaged tables, byte by byte.
    let tables = first.windows(4).position(|it| it == b"stbl").unwrap();
    for at in (tables..tables + 500).step_by(7) {
        let mut damaged = first.clone();
        damaged[at] ^= 0x41;
        same_in_parts(&random(), &damaged, 1);
    }
}

#[test]
fn packets_of_earlier_key_frames_are_read_when_they_are_needed() {
    let mut file = spread(Tables::First);
    // Without this table, all frames count as key frames: decoding does not start at most of them.
    let table = file.windows(4).position(|it| it == b"stss").unwrap();
    file[table..table + 4].copy_from_slice(b"free");
    let clip = clip(VideoClip::new(1).every_frames(1).random(true));
    let found = same_in_parts(&clip, &file, 24);
    assert!(found.iter().any(Result::is_ok));
}

#[test]
fn a_wrong_name_of_the_stage_changes_no_batch() {
    let store = Arc::new(Recorded::of(&spread(Tables::First)));
    let spec = random();
    let right = batches(&spec, &store, Reading::InParts, 0..6);
    let wrong = |seed| {
        let fetch = spec.in_parts(spec.fetch(Arc::clone(&store) as _), "another");
        batch(&spec, fetch, "mp4", seed)
    };
    assert_same(&right, &(0..6).map(wrong).collect::<Vec<_>>());
}

#[test]
fn two_clips_of_one_file_are_read_together() {
    let store = Arc::new(Recorded::of(&spread(Tables::First)));
    let clips = random().with("again", {
        let clip = VideoClip::new(2).every_frames(1).random(true);
        SampleField::video(VideoTransform::new(clip, ImageTransform::new(16)))
    });
    let whole = batches(&clips, &store, Reading::Whole, 0..4);
    store.take();
    let parts = batches(&clips, &store, Reading::InParts, 0..4);
    assert_same(&whole, &parts);
    let (_, bytes) = store.take();
    assert!(bytes < 3 * MIB, "{bytes} bytes");
}
