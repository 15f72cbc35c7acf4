//! MPEG audio: the samples of libmpg123, windows, and damaged files.
#![cfg(feature = "mp3")]

use std::path::{Path, PathBuf};

use spdl_core::ErrorKind;
use spdl_media::OnTruncated;
use spdl_media::audio::{AudioLimits, AudioReader, AudioRegistry, AudioRequest, Waveform};

/// Each of these samples of the interleaved channels is in the expected ones.
const STEP: usize = 37;
/// The files that `tests/golden/make_mp3_golden.py` makes: name, codec, sample rate, channels, and
/// number of frames.
const FILES: [(&str, &str, u32, u16, u64); 11] = [
    ("mono.mp3", "mp3", 44_100, 1, 11_025),
    ("joint.mp3", "mp3", 48_000, 2, 12_000),
    ("low-rate.mp3", "mp3", 22_050, 2, 11_025),
    ("lowest-rate.mp3", "mp3", 8_000, 1, 4_000),
    ("blocks.mp3", "mp3", 44_100, 2, 4_608),
    ("blocks-low-rate.mp3", "mp3", 22_050, 1, 3_456),
    ("middle.mp3", "mp3", 44_100, 2, 3_456),
    ("intensity.mp3", "mp3", 44_100, 2, 4_608),
    ("intensity-low-rate.mp3", "mp3", 22_050, 2, 3_456),
    ("layer2.mp2", "mp2", 44_100, 2, 4_608),
    ("layer1.mp1", "mp1", 44_100, 2, 1_920),
];

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mp3").join(name)
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).expect("a file of the tests")
}

/// A reader, and a waveform for its results.
fn reader() -> (AudioReader, Waveform) {
    let limits = AudioLimits::default();
    (AudioReader::new(&AudioRegistry::with_defaults(), &limits), Waveform::new(&limits))
}

fn interleaved(waveform: &Waveform) -> Vec<f32> {
    let channels = waveform.channels();
    (0..waveform.frames()).flat_map(|at| channels.iter().map(move |it| it[at])).collect()
}

/// Numbers below `bound` from a generator.
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |bound| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % bound.max(1)
    }
}

#[test]
fn samples_are_those_of_libmpg123() {
    let (mut reader, mut waveform) = reader();
    for (name, codec, rate, channels, frames) in FILES {
        let encoded = file(name);
        let info = reader.inspect(&encoded).expect(name);
        assert_eq!((info.sample_rate, info.channels, info.frames), (rate, channels, Some(frames)));
        assert_eq!(info.codec, codec);
        reader.decode(&encoded, &AudioRequest::all(), &mut waveform).expect(name);
        assert_eq!(waveform.frames() as u64, frames);
        let expected = file(&format!("{name}.f32"));
        let (expected, _) = expected.as_chunks();
        let samples = interleaved(&waveform);
        assert_eq!(expected.len(), samples.len().div_ceil(STEP));
        for (at, bytes) in expected.iter().enumerate() {
            let (sample, expected) = (samples[at * STEP], f32::from_le_bytes(*bytes));
            assert!((sample - expected).abs() < 2e-6, "{name} {at}: {sample} {expected}");
        }
    }
}

#[test]
fn each_window_is_a_part_of_the_whole() {
    let (mut reader, mut waveform) = reader();
    for (name, ..) in FILES {
        let encoded = file(name);
        reader.decode(&encoded, &AudioRequest::all(), &mut waveform).expect(name);
        let whole = waveform.clone();
        let mut next = numbers(3);
        for _ in 0..40 {
            let start = next(whole.frames());
            let end = (start + next(1500)).min(whole.frames());
            let request = AudioRequest::frames(start as u64..end as u64);
            reader.decode(&encoded, &request, &mut waveform).expect(name);
            for (channel, whole) in waveform.channels().iter().zip(whole.channels()) {
                assert_eq!(channel, &whole[start..end], "{name} {start}");
            }
        }
    }
}

#[test]
fn a_truncated_file_has_the_samples_of_its_whole_frames() {
    let (mut reader, mut waveform) = reader();
    for (name, ..) in FILES {
        let encoded = file(name);
        reader.decode(&encoded, &AudioRequest::all(), &mut waveform).expect(name);
        let whole = waveform.clone();
        let encoded = &encoded[..encoded.len() * 3 / 5 - 7];
        let error = reader.decode(encoded, &AudioRequest::all(), &mut waveform).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Truncated);
        let request = AudioRequest::all().on_truncated(OnTruncated::Partial);
        let decoded = reader.decode(encoded, &request, &mut waveform).expect(name);
        assert!(decoded.is_truncated && waveform.frames() > whole.frames() / 4);
        for (channel, whole) in waveform.channels().iter().zip(whole.channels()) {
            assert_eq!(channel, &whole[..channel.len()], "{name}");
        }
    }
}

#[test]
fn frames_whose_data_precede_the_file_are_silent() {
    let (mut reader, mut waveform) = reader();
    let encoded = file("joint.mp3");
    reader.decode(&encoded, &AudioRequest::all(), &mut waveform).expect("a valid file");
    let whole = waveform.clone();
    // The file starts with a tag, then frames of 288 bytes.
    let frame = 288;
    let cut = &encoded[frame * 4..];
    reader.decode(cut, &AudioRequest::all(), &mut waveform).expect("a valid file");
    let delay = 1105;
    let start = 3 * 1152 - delay;
    let (cut, whole) = (&waveform.channels()[0], &whole.channels()[0][start..]);
    let silent = cut.iter().take_while(|sample| **sample == 0.0).count();
    assert!((1..4 * 1152).contains(&silent), "{silent}");
    // After the frames without data, and those that overlap them, all samples are equal.
    let same = silent.next_multiple_of(1152) + 2 * 1152;
    let end = cut.len().min(whole.len());
    assert_eq!(cut[same..end], whole[same..end]);
}

#[test]
fn damaged_files_return_errors_or_finite_samples() {
    let (mut reader, mut waveform) = reader();
    let request = AudioRequest::all().on_truncated(OnTruncated::Partial);
    for (name, ..) in FILES {
        let original = file(name);
        for seed in 0..60 {
            let mut next = numbers(seed);
            let mut encoded = original.clone();
            for _ in 0..1 + next(60) {
                let at = next(encoded.len());
                // Frames remain, if no header is damaged.
                if seed % 2 == 0 || !original[at.saturating_sub(3)..][..4].contains(&0xFF) {
                    encoded[at] = next(255) as u8;
                }
            }
            if seed % 5 == 0 {
                encoded.truncate(next(encoded.len()));
            }
            match reader.decode(&encoded, &request, &mut waveform) {
                Ok(_) => {
                    assert!(
                        waveform.channels().iter().flatten().all(|it| it.is_finite()),
                        "{name}"
                    );
                }
                Err(error) => {
                    let kinds = [
                        ErrorKind::Corrupt,
                        // Of the tag before the audio.
                        ErrorKind::Truncated,
                        ErrorKind::Unsupported,
                        ErrorKind::LimitExceeded,
                    ];
                    assert!(kinds.contains(&error.kind()), "{name} {seed}: {error:?}");
                }
            }
        }
    }
}
