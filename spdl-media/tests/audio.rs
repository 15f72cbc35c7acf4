//! Audio: decoded samples, windows, sample rates, features, and damaged files.
//!
//! `tests/audio` has a tone with noise, 3,200 frames, in several formats. Expected samples
//! come from independent programs: libsndfile (WAV, FLAC, MP3, Vorbis), FFmpeg (AAC), libopus,
//! torchaudio 0.13 (sample rates, filter banks), librosa with PyTorch (log-mel spectrograms). Those of
//! formats with losses are stored as 16-bit integers.
#![cfg(all(feature = "wav", feature = "flac", feature = "mp3", feature = "aac"))]
#![cfg(all(feature = "vorbis", feature = "opus", feature = "testing"))]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(feature = "vad")]
#[path = "audio/spoken.rs"]
mod spoken;

use std::path::PathBuf;

use proptest::prelude::*;
use sha2::{Digest, Sha256};
use spdl_core::{
    BatchLayout, DType, ErrorKind, Field, Fill, FillContext, PipelineBuilder, Result, SlotMut,
};
use spdl_media::OnTruncated;
use spdl_media::audio::{
    AudioChannels, AudioFeatures, AudioInfo, AudioLayout, AudioLimits, AudioReader, AudioRegistry,
    AudioRequest, AudioTransform, Resampler, Waveform,
};
use spdl_media::fill::FillAudio;

/// The files with their format: sample rate, channels, frames.
const FILES: [(&str, u32, u16, u64); 11] = [
    ("mono-16.flac", 16_000, 1, 3200),
    ("stereo-24.flac", 44_100, 2, 3200),
    ("mono-mulaw.wav", 16_000, 1, 3200),
    ("mono-alaw.wav", 16_000, 1, 3200),
    ("stereo-24.wav", 44_100, 2, 3200),
    ("mono.mp3", 16_000, 1, 3200),
    ("stereo.mp3", 44_100, 2, 3200),
    ("stereo.ogg", 44_100, 2, 3200),
    ("mono.opus", 48_000, 1, 9600),
    ("stereo.aac", 44_100, 2, 5120),
    ("input.wav", 16_000, 1, 3200),
];

fn data(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/audio");
    if name == "input.wav" {
        return wav(1, &data("input.i16"));
    }
    std::fs::read(folder.join(name)).unwrap()
}

/// A WAV file of 16-bit samples at 16 kHz.
fn wav(channels: u16, samples: &[u8]) -> Vec<u8> {
    let mut file = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0".to_vec();
    file.extend(channels.to_le_bytes());
    file.extend(16_000_u32.to_le_bytes());
    file.extend((16_000 * 2 * u32::from(channels)).to_le_bytes());
    file.extend((2 * channels).to_le_bytes());
    file.extend(b"\x10\0data");
    file.extend((samples.len() as u32).to_le_bytes());
    file.extend(samples);
    let size = (file.len() as u32 - 8).to_le_bytes();
    file[4..8].copy_from_slice(&size);
    file
}

fn reader() -> AudioReader {
    AudioReader::new(&AudioRegistry::with_defaults(), &AudioLimits::default())
}

fn decode(file: &[u8], request: &AudioRequest) -> Result<Vec<Vec<f32>>> {
    let mut waveform = Waveform::new(&AudioLimits::default());
    reader().decode(file, request, &mut waveform)?;
    Ok(waveform.channels().to_vec())
}

fn whole(file: &[u8]) -> Vec<Vec<f32>> {
    decode(file, &AudioRequest::all()).unwrap()
}

fn floats(name: &str) -> Vec<f32> {
    let bytes = data(name);
    bytes.as_chunks::<4>().0.iter().map(|it| f32::from_le_bytes(*it)).collect()
}

fn largest_difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn our_codecs_keep_the_contract() {
    let registry = AudioRegistry::with_defaults();
    for (name, ..) in FILES {
        // Decoders of AAC and Opus carry noise and filters from frame to frame.
        let tolerance = if name.ends_with("aac") { 0.02 } else { 0.0 };
        let tolerance = if name.ends_with("opus") { 0.001 } else { tolerance };
        let file = data(name);
        let codec = registry.find(&file).unwrap();
        spdl_media::testing::audio_contract(codec.as_ref(), &[&file], tolerance);
    }
}

#[test]
fn headers_tell_rate_channels_and_length() {
    for (name, rate, channels, frames) in FILES {
        let info = reader().inspect(&data(name)).unwrap();
        let expected = AudioInfo::new(rate, channels, info.codec.clone()).with_frames(frames);
        assert_eq!(info, expected, "{name}");
        assert_eq!(whole(&data(name))[0].len() as u64, frames, "{name}");
    }
}

#[test]
fn lossless_formats_have_the_samples_of_libsndfile() {
    let digests = [
        ("mono-16.flac", "6775ee927c3cb4072601f84ff73263d4704b574c647a0c180569ba29d9b391d1"),
        ("stereo-24.flac", "148b6cd25006bc780707177a02684372258a7cfb167e4cadd21c20797202dc53"),
        ("mono-mulaw.wav", "36186ce72e73f6267b28194f0071b82330246ebc1828f89bd419f271e21626e0"),
        ("mono-alaw.wav", "df2c1a55cba417d2e004797ea61a8f39d05ff74047fc0ec776b052435ca4b2c5"),
        ("stereo-24.wav", "980f06d740369ab34860c2708dbdac7957fff460128121745c8f7a99b3cade21"),
    ];
    for (name, expected) in digests {
        let samples: Vec<u8> =
            whole(&data(name)).concat().iter().flat_map(|it| it.to_le_bytes()).collect();
        let digest = Sha256::digest(&samples);
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, expected, "{name}");
    }
}

#[test]
fn formats_with_losses_have_the_samples_of_their_reference_decoders() {
    // The difference between decoders of floats, and half of the last bit of 16.
    let names = ["mono.mp3", "stereo.mp3", "stereo.ogg", "stereo.aac", "mono.opus"];
    for name in names {
        let stored = data(&format!("{name}.i16"));
        let expected: Vec<f32> = stored
            .as_chunks::<2>()
            .0
            .iter()
            .map(|it| f32::from(i16::from_le_bytes(*it)) / 32_768.0)
            .collect();
        // The encoders overshoot full scale.
        let found = whole(&data(name)).concat();
        let found: Vec<f32> = found.iter().map(|it| it.clamp(-1.0, 32_767.0 / 32_768.0)).collect();
        let difference = largest_difference(&found, &expected);
        assert!(difference < 4e-5, "{name}: {difference}");
    }
}

#[test]
fn a_window_has_the_samples_of_the_whole() {
    for (name, _, _, frames) in FILES {
        let file = data(name);
        let all = whole(&file);
        for (start, end) in [(0, 1), (1, 2), (700, 701), (1500, 2600), (3000, 9000), (9000, 9010)] {
            let window = decode(&file, &AudioRequest::frames(start..end)).unwrap();
            let range = start.min(frames) as usize..end.min(frames) as usize;
            for (window, all) in window.iter().zip(&all) {
                assert_eq!(window, &all[range.clone()], "{name} {start}..{end}");
            }
        }
    }
}

#[test]
fn a_window_of_a_long_flac_file_is_found_without_decoding_it() {
    // Many copies of the frames of one file, with new numbers, are not needed: a file whose other
    // frames are damaged shows that only those of the window are decoded.
    let mut file = data("mono-16.flac");
    let damaged = file.len() / 8;
    let end = decode(&file, &AudioRequest::frames(3150..3200)).unwrap();
    assert_eq!(end[0], whole(&file)[0][3150..]);
    file[damaged] ^= 0xFF;
    assert!(decode(&file, &AudioRequest::all()).is_err());
}

#[test]
fn truncated_files_are_errors_or_have_their_first_frames() {
    for (name, _, _, frames) in FILES {
        let file = data(name);
        let all = whole(&file);
        // The audio of the small Ogg files is on one page.
        let is_ogg = file.starts_with(b"OggS");
        let cut = &file[..if is_ogg { file.len() - 10 } else { file.len() * 7 / 10 }];
        let error = decode(cut, &AudioRequest::all()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated, "{name}: {error}");
        let partial = AudioRequest::all().on_truncated(OnTruncated::Partial);
        let mut waveform = Waveform::new(&AudioLimits::default());
        let decoded = reader().decode(cut, &partial, &mut waveform).unwrap();
        assert!(decoded.is_truncated && (waveform.frames() as u64) < frames, "{name}");
        // The one page or block of a small file may be lost as a whole.
        let found = waveform.frames();
        assert_eq!(waveform.channels()[0], all[0][..found], "{name}");
        if file.starts_with(b"RIFF") || name.ends_with("mp3") || name.ends_with("aac") {
            assert!(found > 0, "{name}");
        }
    }
}

#[test]
fn samples_of_truncated_files_are_errors_or_partial() {
    for (name, ..) in FILES {
        let file = data(name);
        let is_ogg = file.starts_with(b"OggS");
        let cut = &file[..if is_ogg { file.len() - 10 } else { file.len() * 7 / 10 }];
        let whole = AudioTransform::new();
        for transform in [whole.clone(), whole.clone().sample_rate(22_050)] {
            let error = sample(&transform, cut, 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Truncated, "{name}: {error}");
            let partial = transform.on_truncated(OnTruncated::Partial);
            match sample(&partial, cut, 0) {
                Ok((shape, _)) => assert!(shape[1] > 0, "{name}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Truncated, "{name}: {error}"),
            }
        }
    }
}

#[test]
fn chained_ogg_files_are_unsupported_without_ffmpeg_and_missing_pages_are_errors() {
    for name in ["stereo.ogg", "mono.opus"] {
        let file = data(name);
        let chained = [&file[..], &file].concat();
        let outcome = decode(&chained, &AudioRequest::all());
        if cfg!(not(feature = "ffmpeg")) {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
            assert!(error.message().contains("chained"), "{name}: {error}");
        }
        // Without its page of comments and tables, a stream has no packets to decode.
        let pages: Vec<usize> =
            (0..file.len()).filter(|at| file[*at..].starts_with(b"OggS")).collect();
        let missing = [&file[..pages[1]], &file[pages[2]..]].concat();
        let error = decode(&missing, &AudioRequest::all()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
    }
}

#[test]
fn conversions_have_limits() {
    // A file of one frame per second becomes 16,000 times as large.
    let mut slow = wav(1, &[0; 40_000]);
    slow[24..28].copy_from_slice(&1_u32.to_le_bytes());
    let error = sample(&AudioTransform::new().sample_rate(16_000), &slow, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    assert_eq!(Resampler::new(1_299_709, 16_000).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn limits_apply_before_memory_is_taken() {
    let file = data("stereo-24.flac");
    let outcome = |limits: AudioLimits| {
        let mut waveform = Waveform::new(&limits);
        let mut reader = AudioReader::new(&AudioRegistry::with_defaults(), &limits);
        reader.decode(&file, &AudioRequest::all(), &mut waveform).map(|_| waveform.frames())
    };
    assert_eq!(outcome(AudioLimits::default().max_bytes(3200 * 8)).unwrap(), 3200);
    let limits = [
        AudioLimits::default().max_bytes(3200 * 8 - 1),
        AudioLimits::default().max_channels(1),
        AudioLimits::default().max_seconds(0.07),
    ];
    for limits in limits {
        let error = outcome(limits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
    }
}

#[test]
fn tags_before_the_audio_are_skipped() {
    for name in ["mono-16.flac", "mono.mp3", "stereo.aac"] {
        let tag = b"ID3\x04\0\0\0\0\x01\x00".iter().copied().chain([7; 128]);
        let tagged: Vec<u8> = tag.chain(data(name)).collect();
        assert_eq!(whole(&tagged), whole(&data(name)), "{name}");
    }
    let cut = reader().inspect(b"ID3\x04\0\0\0\0\x01\x00fLaC").unwrap_err();
    assert_eq!(cut.kind(), ErrorKind::Truncated);
    let mut unknown = b"ID3\x04\0\0\0\0\0\x00".to_vec();
    unknown.extend(b"\x7FELF");
    let error = reader().inspect(&unknown).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("unknown audio format"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Damage never causes a panic, and decoded windows never exceed the request.
    #[test]
    fn damaged_files_are_errors_or_audio(
        file in 0..FILES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        start in 0_u64..4000,
    ) {
        let mut bytes = data(FILES[file].0);
        for (at, value) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        let length = bytes.len() - cut.index(bytes.len()) / 4;
        let request = AudioRequest::frames(start..start + 500).on_truncated(OnTruncated::Partial);
        let mut waveform = Waveform::new(&AudioLimits::default().max_bytes(1 << 20));
        match reader().decode(&bytes[..length], &request, &mut waveform) {
            Ok(_) => prop_assert!(waveform.frames() <= 500),
            Err(error) => prop_assert!(
                matches!(
                    error.kind(),
                    ErrorKind::Corrupt
                        | ErrorKind::Truncated
                        | ErrorKind::Unsupported
                        | ErrorKind::LimitExceeded
                ),
                "{}", error
            ),
        }
    }
}

/// Writes one audio field.
struct FillOne(FillAudio);

impl Fill<Vec<u8>> for FillOne {
    fn fill(
        &mut self,
        file: Vec<u8>,
        mut slot: SlotMut<'_>,
        cx: &mut FillContext<'_>,
    ) -> Result<()> {
        self.0.write(&file, &mut slot, 0, || cx.rng()).map(drop)
    }

    fn check_fields(&self, fields: &[Field]) -> Result<()> {
        self.0.check_field(&fields[0])
    }
}

/// The samples of one file in a batch: their shape and values.
fn sample(transform: &AudioTransform, file: &[u8], seed: u64) -> Result<(Vec<usize>, Vec<f32>)> {
    transform.validate()?;
    let shape = transform.shape();
    let field = Field::new("audio", DType::F32, &shape);
    let field = match shape.contains(&0) {
        true => field.collation(spdl_core::stage::Collation::List),
        false => field,
    };
    let transform = transform.clone();
    let make = move || {
        let registry = AudioRegistry::with_defaults();
        FillAudio::new(&registry, &transform, &AudioLimits::default()).map(FillOne)
    };
    let mut pipeline = PipelineBuilder::from_iter([file.to_vec()])
        .fill("decode", BatchLayout::new(1, [field]), make)
        .seed(seed)
        .deterministic()
        .build()?;
    let batch = pipeline.next().unwrap()?;
    let values = |array: &spdl_core::Array| array.as_slice::<f32>().unwrap().to_vec();
    Ok(match batch.list("audio") {
        Some(list) => (list[0].shape().to_vec(), values(&list[0])),
        None => {
            let array = batch.array("audio").unwrap();
            (array.shape()[1..].to_vec(), values(array))
        }
    })
}

#[test]
fn sample_rates_are_converted_as_by_torchaudio() {
    let samples: Vec<f32> = whole(&data("input.wav"))[0][..1600].to_vec();
    for (from, to) in [(44_100, 16_000), (48_000, 44_100), (8000, 16_000), (16_000, 22_050)] {
        let expected = floats(&format!("resample-{from}-{to}.f32"));
        let resampler = Resampler::new(from, to).unwrap();
        assert_eq!(resampler.output_frames(1600), expected.len() as u64);
        let mut found = vec![0.0; expected.len()];
        resampler.convert(&samples, 0, 0, &mut found, &mut Vec::new());
        let difference = largest_difference(&found, &expected);
        assert!(difference < 1e-5, "{from} to {to}: {difference}");
        // A part is that of the whole.
        let part = resampler.input_frames(300..420);
        let mut window = vec![0.0; 120];
        let input = &samples[part.start as usize..(part.end as usize).min(1600)];
        resampler.convert(input, part.start, 300, &mut window, &mut Vec::new());
        assert_eq!(window, found[300..420]);
    }
}

#[test]
fn a_window_at_another_rate_has_the_samples_of_the_whole() {
    let file = data("stereo.mp3");
    let transform = AudioTransform::new().sample_rate(16_000).channels(AudioChannels::Mono);
    let (shape, all) = sample(&transform, &file, 0).unwrap();
    assert_eq!(shape, [1, 1161]);
    let window = transform.clone().start(0.02).duration(0.03);
    let (shape, part) = sample(&window, &file, 0).unwrap();
    assert_eq!((shape, &part[..]), (vec![1, 480], &all[320..800]));
}

#[cfg(feature = "vad")]
#[test]
fn samples_are_trimmed_to_speech() {
    // Speech from 1 s to 2 s of 3 s, in the second of two channels.
    let samples = spoken::spoken(16_000);
    let frames = samples.iter().flat_map(|sample| [0, (sample * 32_768.0) as i16]);
    let file = wav(2, &Vec::from_iter(frames.flat_map(i16::to_le_bytes)));
    let whole = whole(&file);
    let transform = AudioTransform::new().trim_to_speech(0.5);
    let (shape, trimmed) = sample(&transform, &file, 0).unwrap();
    let [channels, frames] = shape[..] else { panic!("{shape:?}") };
    assert!(channels == 2 && (15_000..22_000).contains(&frames), "{shape:?}");
    let first = trimmed[frames..].to_vec();
    let start = whole[1].windows(frames).position(|part| part == first).expect("a part");
    assert!((12_800..16_800).contains(&start), "{start}");
    // At another rate, of a part of the file, with a fixed length and a random start within the speech.
    let fixed = transform.clone().frames(4000).random(true).channels(AudioChannels::One(1));
    let starts = (0..8).map(|seed| {
        let (shape, part) = sample(&fixed, &file, seed).unwrap();
        assert_eq!(shape, [1, 4000]);
        whole[1].windows(4000).position(|window| window == part).expect("a part")
    });
    let starts = Vec::from_iter(starts);
    assert!(starts.iter().all(|at| (start..=start + frames - 4000).contains(at)), "{starts:?}");
    assert!(starts.iter().any(|at| *at != starts[0]), "{starts:?}");
    let (shape, _) = sample(&transform.clone().sample_rate(8000), &file, 0).unwrap();
    assert!(shape[1].abs_diff(frames / 2) < 300, "{shape:?}");
    let late = transform.clone().start(1.2).duration(0.6);
    let (shape, part) = sample(&late, &file, 0).unwrap();
    assert!((6000..=9600).contains(&shape[1]), "{shape:?}");
    assert_eq!(part[shape[1]..], whole[1][28_800 - shape[1]..28_800]);
    // No speech.
    let error = sample(&transform.clone().duration(0.5), &file, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("no speech"), "{error}");
    let wrong = AudioTransform::new().trim_to_speech(1.0).validate().unwrap_err();
    assert!(wrong.message().contains("threshold"), "{wrong}");
}

#[cfg(not(feature = "vad"))]
#[test]
fn speech_needs_the_feature() {
    let error = AudioTransform::new().trim_to_speech(0.5).validate().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("feature `vad`"), "{error}");
}

#[test]
fn samples_are_cut_padded_and_ordered() {
    let stereo = whole(&data("stereo-24.wav"));
    let file = data("stereo-24.wav");
    let fixed = AudioTransform::new().channels(AudioChannels::Exactly(2)).frames(3300);
    let (shape, planar) = sample(&fixed, &file, 0).unwrap();
    assert_eq!(shape, [2, 3300]);
    assert_eq!(planar[..3200], stereo[0]);
    assert_eq!(planar[3200..3300], [0.0; 100]);
    assert_eq!(planar[3300..6500], stereo[1]);
    let interleaved = fixed.clone().layout(AudioLayout::Interleaved);
    let (shape, values) = sample(&interleaved, &file, 0).unwrap();
    assert_eq!(shape, [3300, 2]);
    assert_eq!((values[20], values[21]), (stereo[0][10], stereo[1][10]));
    assert_eq!(values[6400..], [0.0; 200]);
    let one = AudioTransform::new().channels(AudioChannels::One(1)).frames(5);
    assert_eq!(sample(&one, &file, 0).unwrap().1, stereo[1][..5]);
    let mono = AudioTransform::new().channels(AudioChannels::Mono);
    let mean = (stereo[0][9] + stereo[1][9]) / 2.0;
    assert_eq!(sample(&mono, &file, 0).unwrap().1[9], mean);
    let missing = AudioTransform::new().channels(AudioChannels::One(2));
    let error = sample(&missing, &file, 0).unwrap_err();
    assert!(error.message().contains("expected channel 2, found 2 channels"), "{error}");
    let late = sample(&AudioTransform::new().start(1.0), &file, 0).unwrap_err();
    assert!(late.message().contains("the audio ends at 0.073 s"), "{late}");
}

#[test]
fn random_starts_depend_on_the_seed_only() {
    let file = data("mono-16.flac");
    let all = whole(&file).remove(0);
    let random = AudioTransform::new().channels(AudioChannels::Mono).frames(100).random(true);
    let starts: Vec<usize> = (0..20)
        .map(|seed| {
            let part = sample(&random, &file, seed).unwrap().1;
            assert_eq!(part, sample(&random, &file, seed).unwrap().1);
            all.windows(100).position(|window| window == part).unwrap()
        })
        .collect();
    assert!(starts.iter().any(|start| *start < 1550) && starts.iter().any(|start| *start > 1550));
    let error = sample(&AudioTransform::new().random(true), &file, 0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn features_are_those_of_the_reference_programs() {
    let features = [
        ("whisper-80.f32", AudioFeatures::whisper(80), vec![80, 20]),
        ("whisper-128.f32", AudioFeatures::whisper(128), vec![128, 20]),
        ("fbank-23.f32", AudioFeatures::fbank(23), vec![18, 23]),
        ("fbank-80-scaled.f32", AudioFeatures::fbank(80).scale(32_768.0), vec![18, 80]),
        ("mfcc-13.f32", AudioFeatures::mfcc(13), vec![18, 13]),
        ("spectrogram-256-400.f32", AudioFeatures::spectrogram(256, 400), vec![129, 9]),
    ];
    for (name, features, expected) in features {
        let transform = AudioTransform::new().sample_rate(16_000).channels(AudioChannels::Mono);
        let transform = transform.features(features);
        let (shape, found) = sample(&transform, &data("input.wav"), 0).unwrap();
        assert_eq!(shape, expected, "{name}");
        let reference = floats(name);
        // Relative to the largest value: of 300, an `f32` has a step of 3e-5.
        let scale = reference.iter().fold(1.0_f32, |scale, it| scale.max(it.abs()));
        let difference = largest_difference(&found, &reference) / scale;
        assert!(difference < 1e-4, "{name}: {difference}");
    }
    let short = AudioTransform::new().sample_rate(16_000).channels(AudioChannels::Mono).frames(200);
    let error = short.features(AudioFeatures::whisper(80)).validate().unwrap_err();
    assert!(error.message().contains("at least 201"), "{error}");
    let stereo = AudioTransform::new().sample_rate(16_000).features(AudioFeatures::whisper(80));
    assert!(stereo.validate().unwrap_err().message().contains("one channel"));
}

const RARE: [(&str, u32); 3] = [("gsm.wav", 8000), ("speex.ogg", 16_000), ("main.aac", 44_100)];

#[cfg(not(feature = "ffmpeg"))]
#[test]
fn gsm_speex_and_the_main_profile_of_aac_need_ffmpeg() {
    for (name, _) in RARE {
        let error = decode(&data(name), &AudioRequest::all()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
    }
}

/// The files were made with ffmpeg 5.1 from the samples in `container.i16`: ALAC in MP4, FLAC in Matroska, MPEG layer II
/// in a transport stream.
#[cfg(feature = "ffmpeg")]
mod containers {
    use super::*;

    const RATE: u64 = 8000;

    #[test]
    fn lossless_audio_in_containers_has_the_samples_that_were_encoded() {
        let samples = data("container.i16");
        let (samples, _) = samples.as_chunks::<2>();
        let expected: Vec<f32> =
            samples.iter().map(|&bytes| f32::from(i16::from_le_bytes(bytes)) / 32_768.0).collect();
        for name in ["container.m4a", "container.mka"] {
            let file = data(name);
            assert_eq!(whole(&file), [&*expected], "{name}");
            let info = reader().inspect(&file).unwrap();
            assert_eq!(
                (info.sample_rate, info.channels, info.frames),
                (8000, 1, Some(24_000)),
                "{name}"
            );
        }
    }

    #[test]
    fn what_our_codecs_refuse_is_decoded_by_ffmpeg() {
        let adpcm = adpcm();
        let found = whole(&adpcm);
        // 4 blocks of 505 samples: the predictor of each is its number, and all differences are 0.
        let blocks: Vec<f32> =
            (0..4).flat_map(|block| [block as f32 * 1000.0 / 32_768.0; 505]).collect();
        assert_eq!(found, [blocks]);
        let info = reader().inspect(&adpcm).unwrap();
        assert_eq!((info.sample_rate, info.channels, info.frames), (8000, 1, Some(2020)));
        // From a file that is not in memory.
        let path = std::env::temp_dir().join(format!("spdl-adpcm-{}.wav", std::process::id()));
        std::fs::write(&path, &adpcm).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let mut waveform = Waveform::new(&AudioLimits::default());
        reader().decode_source(&file, &AudioRequest::all(), &mut waveform).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(waveform.channels(), found);
        // By the header, blocks are missing.
        let error = decode(&adpcm[..adpcm.len() - 1], &AudioRequest::all()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated, "{error}");
    }

    /// The files and their samples are by the program `ffmpeg` 5.1; it predicts 8 of 14 frames of `main.aac`.
    #[test]
    fn gsm_speex_and_the_main_profile_of_aac_are_decoded_by_ffmpeg() {
        for (name, rate) in RARE {
            let samples = data(&format!("{name}.i16"));
            let (samples, _) = samples.as_chunks::<2>();
            let expected: Vec<f32> = samples
                .iter()
                .map(|&bytes| f32::from(i16::from_le_bytes(bytes)) / 32_768.0)
                .collect();
            let file = data(name);
            let found = whole(&file);
            assert_eq!((found.len(), found[0].len()), (1, expected.len()), "{name}");
            let difference = largest_difference(&found[0], &expected);
            assert!(difference < 2.0 / 32_768.0, "{name}: {difference}");
            assert_eq!(reader().inspect(&file).unwrap().sample_rate, rate, "{name}");
        }
    }

    /// A WAV file of 4 blocks of IMA ADPCM.
    fn adpcm() -> Vec<u8> {
        const BLOCK: u16 = 256;
        let mut format = wav(1, &[])[20..36].to_vec();
        format[..2].copy_from_slice(&0x11_u16.to_le_bytes());
        format[4..8].copy_from_slice(&8000_u32.to_le_bytes());
        format[8..12].copy_from_slice(&4055_u32.to_le_bytes());
        format[12..14].copy_from_slice(&BLOCK.to_le_bytes());
        format[14..16].copy_from_slice(&4_u16.to_le_bytes());
        format.extend([2, 0, 0xF9, 0x01]);
        let block = |number: i16| [&(1000 * number).to_le_bytes()[..], &[0; 254]].concat();
        let data: Vec<u8> = (0..4).flat_map(block).collect();
        let size = |bytes: usize| (bytes as u32).to_le_bytes();
        let fact = size(2020);
        let chunks = [
            [b"fmt ", &size(format.len())[..], &format].concat(),
            [b"fact", &size(4)[..], &fact].concat(),
            [b"data", &size(data.len())[..], &data].concat(),
        ]
        .concat();
        [b"RIFF", &size(chunks.len() + 4)[..], b"WAVE", &chunks].concat()
    }

    #[test]
    fn chained_vorbis_files_have_frames_of_all_their_parts() {
        let file = data("stereo.ogg");
        let one = whole(&file)[0].len();
        // FFmpeg may drop the first block of a part.
        let both = whole(&[&file[..], &file].concat())[0].len();
        assert!((2 * one - 1024..=2 * one).contains(&both), "{both} of {}", 2 * one);
        // The header of the second part has time stamps that begin anew.
        let info = reader().inspect(&[&file[..], &file].concat()).unwrap();
        assert!(info.frames.is_some_and(|frames| frames <= 2 * one as u64), "{info:?}");
    }

    #[test]
    fn errors_name_all_decoders_that_refuse_a_file() {
        let mut unknown = adpcm();
        unknown[20..22].copy_from_slice(&0x7654_u16.to_le_bytes());
        let error = decode(&unknown, &AudioRequest::all()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let message = error.message();
        assert!(message.contains("unsupported WAV format: 4-bit format 0x7654 (wav); "), "{error}");
        assert!(message.ends_with("(ffmpeg)"), "{error}");
        assert_eq!(error.offset(), Some(20));
    }

    #[test]
    fn a_window_of_a_container_has_the_samples_of_the_whole() {
        for (name, rate) in
            [("container.m4a", RATE), ("container.mka", RATE), ("container.ts", 2 * RATE)]
        {
            let file = data(name);
            let all = whole(&file).remove(0);
            assert!(all.len() as u64 >= 3 * rate, "{name}: {}", all.len());
            // Windows after two seconds are found by seeking.
            for start in [0, 7, rate, 2 * rate + 11, 2 * rate + rate / 2, 3 * rate - 40] {
                let request = AudioRequest::frames(start..start + 500);
                let found = decode(&file, &request).unwrap().remove(0);
                let end = all.len().min(start as usize + 500);
                assert_eq!(found, all[start as usize..end], "{name} from {start}");
            }
        }
    }

    /// The files have MPEG layer II with one channel, then with two: `changing-later.ts` after 64 packets, which are
    /// decoded together. In `changing-rate.ts`, 48,000 Hz follow.
    #[test]
    fn audio_that_changes_its_format_is_unsupported() {
        for name in ["changing.ts", "changing-later.ts", "changing-rate.ts"] {
            let error = decode(&data(name), &AudioRequest::all()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
            let message =
                "unsupported mp2: the format changes from 1 channels at 44100 Hz to another one";
            assert_eq!(error.message(), message, "{name}");
        }
    }

    #[test]
    fn damaged_containers_are_errors_or_have_their_first_frames() {
        for name in ["container.m4a", "container.mka", "container.ts"] {
            let file = data(name);
            for at in (0..file.len()).step_by(file.len() / 40) {
                let request = AudioRequest::all();
                if let Err(error) = decode(&file[..at], &request) {
                    let kinds = [ErrorKind::Truncated, ErrorKind::Corrupt, ErrorKind::Unsupported];
                    assert!(kinds.contains(&error.kind()), "{name} at {at}: {error}");
                }
                let mut damaged = file.clone();
                damaged[at] ^= 0x55;
                let _ = decode(&damaged, &request);
            }
        }
    }
}
