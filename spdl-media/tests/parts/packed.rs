//! Clips of videos in shards, with and without the indexes of their packets.

use std::fs;
use std::sync::Arc;

use spdl_core::{Batch, Dataset, Error, ErrorKind, PipelineBuilder, StageOptions, block_on};
use spdl_io::datasets::{WebDataset, WebDatasetOptions};
use spdl_io::shards::{Opened, ShardPlan, ShardWriter};
use spdl_io::{Fetcher, StoredRecord};
use spdl_media::fill::{IndexVideoParts, SampleSpec};
use spdl_media::video::VideoClip;
use spdl_media::{CodecRegistry, Limits};

use super::matroska::{CuesPlace, LAYOUT, MatroskaLayout, matroska};
use super::mp4::{Tables, clip, spread};
use super::store::Recorded;
use super::{MIB, assert_same};

const SHARD: &str = "s-000000.tar";

/// A shard of videos, its index, and its checksums.
struct PackedVideos {
    files: [(String, Vec<u8>); 3],
}

impl PackedVideos {
    fn new(videos: &[(&str, Vec<u8>)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("packed");
        let Opened::Writing(writer) = ShardWriter::open(&folder, &ShardPlan::new("s")).unwrap()
        else {
            panic!("the folder is empty")
        };
        let mut writer = writer.with_part_indexes(Arc::new(IndexVideoParts::new()));
        for (at, (extension, video)) in (0..).zip(videos) {
            let key = format!("video-{at}");
            writer.add(at, key.as_bytes(), &[(*extension, &video[..])]).unwrap();
        }
        writer.finish(videos.len() as u64).unwrap();
        let files = ["", ".idx", ".sums"].map(|suffix| {
            let name = format!("{SHARD}{suffix}");
            let bytes = fs::read(folder.join(&name)).unwrap();
            (name, bytes)
        });
        PackedVideos { files }
    }

    /// A store with the first `count` of the files, and the samples.
    fn open(&self, count: usize) -> (Arc<Recorded>, Vec<StoredRecord>) {
        let store = Recorded::default();
        for (name, bytes) in &self.files[..count] {
            store.objects.insert(name.as_str(), bytes.clone());
        }
        let store = Arc::new(store);
        let fetcher: Arc<dyn Fetcher> = Arc::clone(&store) as _;
        let options = WebDatasetOptions::default();
        let samples = block_on(WebDataset::fetch_files(&fetcher, [SHARD], &options)).unwrap();
        let records = (0..samples.len()).map(|at| samples.item(at).unwrap()).collect();
        store.take();
        (store, records)
    }
}

/// A batch of one sample, read in parts if possible.
fn batch(
    spec: &SampleSpec,
    store: &Arc<Recorded>,
    record: &StoredRecord,
    seed: u64,
) -> Result<Batch, Error> {
    let fetch = spec.fetch(Arc::clone(store) as _).with_max_bytes(1 << 30);
    let mut pipeline = PipelineBuilder::from_iter([record.clone()])
        .async_stage("fetch", spec.in_parts(fetch, "decode"))
        .fill(
            StageOptions::new("decode"),
            spec.layout(1),
            spec.filler(&CodecRegistry::with_defaults(), &Limits::default()),
        )
        .deterministic()
        .seed(seed)
        .build()?;
    pipeline.next().expect("one batch")
}

fn videos() -> [(&'static str, Vec<u8>); 4] {
    [
        ("mp4", spread(Tables::Last)),
        ("mp4", spread(Tables::First)),
        ("mkv", matroska("h264.mkv", MatroskaLayout { cues: CuesPlace::None, ..LAYOUT })),
        ("webm", matroska("vp8_hidden.webm", LAYOUT)),
    ]
}

fn clips() -> [SampleSpec; 3] {
    [
        VideoClip::new(1).random(true),
        VideoClip::new(2).every_frames(1),
        VideoClip::new(3).every_seconds(0.05).start(0.3),
    ]
    .map(clip)
}

#[test]
fn a_clip_of_an_indexed_video_is_one_request() {
    let packed = PackedVideos::new(&videos());
    let (whole, plain_records) = packed.open(1);
    // With and without checksums.
    for count in [2, 3] {
        let (store, records) = packed.open(count);
        assert_eq!(records.len(), 4);
        for (record, plain) in records.iter().zip(&plain_records) {
            for spec in clips() {
                for seed in 0..4 {
                    store.take();
                    let found = batch(&spec, &store, record, seed);
                    let (requests, bytes) = store.take();
                    assert!(found.is_ok(), "{found:?}");
                    assert_eq!(requests, 1, "{}", record.key);
                    assert!(bytes < MIB, "{bytes} bytes");
                    assert_same(&[batch(&spec, &whole, plain, seed)], &[found]);
                }
            }
        }
    }
}

#[test]
fn without_an_index_files_with_checksums_are_read_whole() {
    let mut packed = PackedVideos::new(&videos()[..1]);
    packed.files.swap(1, 2);
    let (store, records) = packed.open(2);
    let [spec, ..] = clips();
    batch(&spec, &store, &records[0], 0).unwrap();
    assert!(store.take().1 > 14 * MIB);
}

#[test]
fn damaged_packets_are_found_by_their_checksums() {
    let [video, ..] = videos();
    let mut packed = PackedVideos::new(&[video]);
    // The first packet follows zeros.
    let shard = &mut packed.files[0].1;
    let start = 3 * MIB as usize;
    let packet = start + shard[start..].iter().position(|&byte| byte != 0).unwrap();
    shard[packet + 40] ^= 1;
    let spec = clip(VideoClip::new(2).every_frames(1));
    let (store, records) = packed.open(3);
    let error = batch(&spec, &store, &records[0], 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("checksum"), "{error}");
}

#[test]
fn small_files_have_no_index() {
    let small = super::mp4::files::read("h264.mp4");
    let large = PackedVideos::new(&[("mp4", small.clone())]);
    let (store, records) = large.open(3);
    let [spec, ..] = clips();
    batch(&spec, &store, &records[0], 0).unwrap();
    assert_eq!(store.take(), (1, small.len() as u64));
    let (name, index) = &large.files[1];
    assert!(name.ends_with(".idx") && index.len() < 300, "{}", index.len());
}
