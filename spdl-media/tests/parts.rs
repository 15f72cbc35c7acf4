//! Video and audio of which only parts are read: the same batches as from whole files.
#![cfg(all(feature = "records", feature = "wav", feature = "flac", feature = "mp3"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "parts/flac.rs"]
mod flac;
#[cfg(feature = "ffmpeg")]
#[path = "parts/matroska.rs"]
mod matroska;
#[cfg(feature = "ffmpeg")]
#[path = "parts/mp4.rs"]
mod mp4;
#[cfg(feature = "ffmpeg")]
#[path = "parts/packed.rs"]
mod packed;
#[path = "parts/store.rs"]
mod store;

use std::sync::Arc;

use proptest::prelude::*;
use spdl_core::{Batch, Error, ErrorKind, PipelineBuilder, StageOptions};
use spdl_io::StoredRecord;
use spdl_io::records::{Encoding, Extent, FetchFields, IndexCache};
use spdl_media::audio::{AudioChannels, AudioTransform};
use spdl_media::fill::{SampleField, SampleSpec};
use spdl_media::{CodecRegistry, Limits};
use store::Recorded;

const MIB: u64 = 1 << 20;

/// How files are read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reading {
    Whole,
    InParts,
}

/// Batches of samples of the object `a`, one for each epoch of `seed`.
fn batches(
    spec: &SampleSpec,
    store: &Arc<Recorded>,
    reading: Reading,
    seeds: impl IntoIterator<Item = u64>,
) -> Vec<Result<Batch, Error>> {
    let cache = IndexCache::default();
    let run = |seed| {
        let fetch = spec.fetch(Arc::clone(store) as _);
        let fetch = match reading {
            Reading::Whole => fetch.with_max_bytes(1 << 30),
            Reading::InParts => spec.in_parts(fetch, "decode").with_index_cache(&cache),
        };
        batch(spec, fetch, "file", seed)
    };
    seeds.into_iter().map(run).collect()
}

fn batch(spec: &SampleSpec, fetch: FetchFields, stored: &str, seed: u64) -> Result<Batch, Error> {
    let sample = || StoredRecord::new("s").with_stored(stored, Extent::whole("a"), Encoding::Bytes);
    let mut pipeline = PipelineBuilder::from_iter([sample(), sample()])
        .async_stage("fetch", fetch)
        .fill(
            StageOptions::new("decode"),
            spec.layout(2),
            spec.filler(&CodecRegistry::with_defaults(), &Limits::default()),
        )
        .deterministic()
        .seed(seed)
        .build()?;
    pipeline.next().expect("one batch")
}

/// Compares the arrays of batches, or their errors.
fn assert_same(left: &[Result<Batch, Error>], right: &[Result<Batch, Error>]) {
    assert_eq!(left.len(), right.len());
    for (left, right) in left.iter().zip(right) {
        match (left, right) {
            (Ok(left), Ok(right)) => {
                let bytes = |batch: &Batch| {
                    let arrays = batch.arrays().iter();
                    arrays
                        .map(|it| (it.shape().to_vec(), it.as_bytes().to_vec()))
                        .collect::<Vec<_>>()
                };
                assert!(bytes(left) == bytes(right), "batches differ");
            }
            (Err(left), Err(right)) => {
                assert_eq!(left.to_string(), right.to_string());
                assert_eq!((left.kind(), left.offset()), (right.kind(), right.offset()));
            }
            (left, right) => panic!("{left:?} and {right:?}"),
        }
    }
}

/// The batches from parts, after a comparison with those from whole files.
fn same_in_parts(spec: &SampleSpec, file: &[u8], seeds: u64) -> Vec<Result<Batch, Error>> {
    let store = Arc::new(Recorded::of(file));
    let whole = batches(spec, &store, Reading::Whole, 0..seeds);
    let parts = batches(spec, &store, Reading::InParts, 0..seeds);
    assert_same(&whole, &parts);
    parts
}

fn window(frames: usize) -> AudioTransform {
    AudioTransform::new().frames(frames).random(true)
}

fn audio(transform: AudioTransform) -> SampleSpec {
    SampleSpec::new()
        .with("audio", SampleField::audio(transform))
        .with("frames", SampleField::audio_frames("audio"))
}

/// A WAV file of one channel, 16 bits, 8 kHz.
fn wav(frames: u32) -> Vec<u8> {
    let mut file =
        b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x40\x1F\0\0\x80\x3E\0\0\x02\0\x10\0data"
            .to_vec();
    file.extend((2 * frames).to_le_bytes());
    file.extend((0..frames).flat_map(|at| (at.wrapping_mul(40_503) as i16).to_le_bytes()));
    let size = (file.len() as u32 - 8).to_le_bytes();
    file[4..8].copy_from_slice(&size);
    file
}

/// The frames of an hour at 8 kHz.
const HOUR: u32 = 3600 * 8000;

#[test]
fn a_window_of_an_hour_of_wav_reads_the_window() {
    let file = wav(HOUR);
    let store = Arc::new(Recorded::of(&file));
    let spec = audio(window(8000));
    let whole = batches(&spec, &store, Reading::Whole, 0..4);
    store.take();
    let parts = batches(&spec, &store, Reading::InParts, 0..1);
    let (requests, bytes) = store.take();
    // Two samples: the start of the file, and the window.
    assert!((3..=4).contains(&requests), "{requests}");
    // The first request of an object of unknown size is the larger part.
    assert!(bytes < 2 * (256 << 10) + 2 * 16_000 + 100, "{bytes}");
    assert_same(&whole[..1], &parts);
    let parts = batches(&spec, &store, Reading::InParts, 0..4);
    let (_, bytes) = store.take();
    // The header is cached.
    assert!(bytes < 2 * (256 << 10) + 8 * 16_000 + 100, "{bytes}");
    assert_same(&whole, &parts);
}

#[test]
fn windows_of_wav_with_another_sample_rate_and_at_the_end_are_the_same() {
    let file = wav(4_000_000);
    let mono = || window(5000).channels(AudioChannels::Mono);
    same_in_parts(&audio(mono().sample_rate(11_025)), &file, 8);
    same_in_parts(&audio(AudioTransform::new().start(495.0).frames(80_000)), &file, 1);
    same_in_parts(&audio(AudioTransform::new().start(2.5).duration(0.25)), &file, 1);
    let mut tagged = b"ID3\x04\0\0\0\0\x02\0".to_vec();
    tagged.resize(tagged.len() + 256, 0);
    tagged.extend(&file);
    same_in_parts(&audio(mono()), &tagged, 3);
}

#[test]
fn truncated_and_invalid_wav_files_have_the_same_errors() {
    let file = wav(4_000_000);
    let end = audio(AudioTransform::new().start(499.0));
    for damaged in [&file[..file.len() - 3000], &file[..3_000_000]] {
        let found = same_in_parts(&end, damaged, 1);
        assert_eq!(found[0].as_ref().unwrap_err().kind(), ErrorKind::Truncated);
        same_in_parts(&audio(window(8000)), damaged, 4);
        let partial =
            AudioTransform::new().start(150.0).on_truncated(spdl_media::OnTruncated::Partial);
        same_in_parts(&audio(partial.frames(4_000_000)), damaged, 1);
    }
    let mut invalid = file.clone();
    invalid[20] = 99;
    let found = same_in_parts(&audio(window(8000)), &invalid, 1);
    assert_eq!(found[0].as_ref().unwrap_err().kind(), ErrorKind::Unsupported);
    let text = vec![b'x'; 2 << 20];
    let found = same_in_parts(&audio(window(8000)), &text, 1);
    assert_eq!(found[0].as_ref().unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_window_of_an_hour_of_flac_reads_little() {
    for (seek_points, has_total) in [(0, true), (360, true), (0, false)] {
        let file = flac::encode(HOUR, seek_points, has_total);
        assert!(file.len() as u64 > 16 * MIB);
        let store = Arc::new(Recorded::of(&file));
        let spec = audio(window(8000));
        let whole = batches(&spec, &store, Reading::Whole, 0..6);
        store.take();
        let parts = batches(&spec, &store, Reading::InParts, 0..6);
        let (requests, bytes) = store.take();
        assert_same(&whole, &parts);
        assert!(parts.iter().all(Result::is_ok));
        // Twelve samples.
        let most = if seek_points > 0 { 40 } else { 90 };
        assert!(requests < most, "{seek_points} {has_total}: {requests} requests");
        assert!(bytes < 12 * MIB, "{seek_points} {has_total}: {bytes} bytes");
    }
}

#[test]
fn windows_of_damaged_flac_files_are_the_same() {
    let file = flac::encode(2_000_000, 20, true);
    let spec = audio(window(8000));
    same_in_parts(&spec, &file[..file.len() / 2], 6);
    same_in_parts(&spec, &file[..30], 1);
    let mut corrupt = file.clone();
    let middle = file.len() / 3;
    corrupt[middle..middle + 200_000].fill(0xFF);
    same_in_parts(&spec, &corrupt, 8);
    // A seek table that names wrong places.
    let mut wrong = file;
    for point in 0..20 {
        wrong[8 + 34 + 4 + 18 * point + 12] ^= 0x55;
    }
    assert!(same_in_parts(&spec, &wrong, 6).iter().all(Result::is_ok));
}

#[test]
fn formats_without_parts_are_read_whole() {
    let mut mp3 =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/audio/stereo.mp3")).unwrap();
    // Bytes after the last frame.
    mp3.resize(2 << 20, 0);
    let spec = audio(window(800));
    let store = Arc::new(Recorded::of(&mp3));
    same_in_parts(&spec, &mp3, 2);
    // The extension saves the request for the start.
    let fetch = spec.in_parts(spec.fetch(Arc::clone(&store) as _), "decode");
    let extent = Extent::part("a", 0..2 * MIB);
    let sample = StoredRecord::new("s").with_stored("mp3", extent, Encoding::Bytes);
    let mut records =
        PipelineBuilder::from_iter([sample]).async_stage("fetch", fetch).build().unwrap();
    records.next().expect("one sample").unwrap();
    assert_eq!(store.take(), (1, 2 * MIB));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_window_of_flac_is_the_same(
        start in 0..110_u32,
        frames in 1..60_000_usize,
        seek_points in 0..4_u32,
        has_total: bool,
    ) {
        let file = flac::encode(900_000, seek_points * 3, has_total);
        let transform = AudioTransform::new().start(f64::from(start)).frames(frames);
        same_in_parts(&audio(transform), &file, 1);
    }
}
