//! WAV headers: sample formats and the position of the samples.
#![cfg(feature = "wav")]

use std::path::PathBuf;

use bytes::Bytes;
use proptest::prelude::*;
use spdl_core::{ErrorKind, Result};
use spdl_media::audio::{
    AudioLimits, AudioReader, AudioRegistry, AudioRequest, WavHeader, WavSample, Waveform,
};

const EXTENSIBLE: u16 = 0xFFFE;

fn chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let mut chunk = [&name[..], &(content.len() as u32).to_le_bytes(), content].concat();
    chunk.resize(chunk.len().next_multiple_of(2), 0);
    chunk
}

fn riff(chunks: &[Vec<u8>]) -> Bytes {
    let content = chunks.concat();
    let size = (content.len() as u32 + 4).to_le_bytes();
    [b"RIFF", &size[..], b"WAVE", &content].concat().into()
}

fn format(tag: u16, bits: u16, channels: u16, rate: u32) -> Vec<u8> {
    let block = channels * (bits / 8);
    let mut format = Vec::new();
    format.extend_from_slice(&tag.to_le_bytes());
    format.extend_from_slice(&channels.to_le_bytes());
    format.extend_from_slice(&rate.to_le_bytes());
    format.extend_from_slice(&(rate * u32::from(block)).to_le_bytes());
    format.extend_from_slice(&block.to_le_bytes());
    format.extend_from_slice(&bits.to_le_bytes());
    format
}

fn extensible(subformat: u16, bits: u16, channels: u16) -> Vec<u8> {
    let guid_tail = b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xAA\x00\x38\x9B\x71";
    let mut format = format(EXTENSIBLE, bits, channels, 8000);
    format.extend_from_slice(&22_u16.to_le_bytes());
    format.extend_from_slice(&bits.to_le_bytes());
    format.extend_from_slice(&0_u32.to_le_bytes());
    format.extend_from_slice(&subformat.to_le_bytes());
    format.extend_from_slice(guid_tail);
    format
}

fn file(format: &[u8], samples: &[u8]) -> Bytes {
    riff(&[chunk(b"fmt ", format), chunk(b"data", samples)])
}

fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("an error").kind()
}

#[test]
fn each_sample_format_is_reported() {
    let formats = [
        (1, 8, WavSample::U8),
        (6, 8, WavSample::ALaw),
        (7, 8, WavSample::MuLaw),
        (1, 16, WavSample::I16),
        (1, 24, WavSample::I24),
        (1, 32, WavSample::I32),
        (3, 32, WavSample::F32),
        (3, 64, WavSample::F64),
    ];
    for (tag, bits, expected) in formats {
        for format in [format(tag, bits, 3, 8000), extensible(tag, bits, 3)] {
            let samples = vec![7; expected.size() * 3 * 5];
            let file = file(&format, &samples);
            let header = WavHeader::from_bytes(&file).unwrap();
            assert_eq!(header.sample().unwrap(), expected);
            assert_eq!((header.channels(), header.sample_rate(), header.frames()), (3, 8000, 5));
            assert_eq!(usize::from(header.block_align()), expected.size() * 3);
            let range = header.data_range();
            assert_eq!(file[range.start as usize..range.end as usize], samples);
        }
    }
}

#[test]
fn the_format_of_an_extensible_file_is_its_subformat() {
    let header = WavHeader::from_bytes(&file(&extensible(3, 32, 1), &[0; 8])).unwrap();
    assert_eq!((header.format(), header.sample().unwrap()), (EXTENSIBLE, WavSample::F32));
    let mut other = extensible(1, 16, 1);
    other[30] ^= 1;
    let header = WavHeader::from_bytes(&file(&other, &[0; 8])).unwrap();
    assert_eq!(kind(header.sample()), ErrorKind::Unsupported);
    let short = &extensible(1, 16, 1)[..26];
    assert_eq!(kind(WavHeader::from_bytes(&file(short, &[0; 8]))), ErrorKind::Corrupt);
}

#[test]
fn compressed_samples_are_unsupported() {
    let names = [(6, 16, "A-law"), (7, 4, "µ-law"), (2, 4, "ADPCM"), (0x55, 0, "MPEG")];
    for (tag, bits, name) in names.into_iter().chain([(1, 12, "PCM"), (3, 16, "floating")]) {
        let header = WavHeader::from_bytes(&file(&format(tag, bits, 1, 8000), &[0; 8])).unwrap();
        assert_eq!(header.format(), tag);
        let error = header.sample().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains(name), "{error}");
    }
}

#[test]
fn chunks_of_odd_size_are_padded() {
    let chunks = [
        chunk(b"LIST", b"odd"),
        chunk(b"fmt ", &format(1, 16, 1, 8000)),
        chunk(b"note", b"x"),
        chunk(b"data", b"abcd"),
        chunk(b"LIST", b"behind"),
    ];
    let file = riff(&chunks);
    let range = WavHeader::from_bytes(&file).unwrap().data_range();
    assert_eq!(file[range.start as usize..range.end as usize], *b"abcd");
}

#[test]
fn inconsistent_sizes_are_corrupt() {
    let mut block = format(1, 16, 2, 8000);
    block[12] = 6;
    let header = WavHeader::from_bytes(&file(&block, &[0; 12])).unwrap();
    assert_eq!(kind(header.sample()), ErrorKind::Corrupt);
    let header = WavHeader::from_bytes(&file(&format(1, 16, 2, 8000), &[0; 7])).unwrap();
    assert_eq!((header.frames(), kind(header.sample())), (1, ErrorKind::Corrupt));
    let header = WavHeader::from_bytes(&file(&format(1, 16, 0, 8000), &[0; 8])).unwrap();
    assert_eq!((header.frames(), kind(header.sample())), (0, ErrorKind::Corrupt));

    let (format, data) = (chunk(b"fmt ", &format(1, 16, 1, 8000)), chunk(b"data", b"ab"));
    for chunks in [&[data.clone(), format.clone()][..], &[format.clone(), format.clone(), data]] {
        assert_eq!(kind(WavHeader::from_bytes(&riff(chunks))), ErrorKind::Corrupt);
    }
    let short = [chunk(b"fmt ", &[1; 15]), chunk(b"data", b"ab")];
    assert_eq!(kind(WavHeader::from_bytes(&riff(&short))), ErrorKind::Corrupt);
    assert_eq!(
        kind(WavHeader::from_bytes(&Bytes::from_static(b"OggS\0\0\0\0"))),
        ErrorKind::Corrupt
    );
    let wrong_end = Bytes::from_static(b"RIFX\0\0\0\0WAVE");
    assert_eq!(kind(WavHeader::from_bytes(&wrong_end)), ErrorKind::Unsupported);
}

#[test]
fn every_truncated_file_is_reported_as_truncated() {
    let whole = file(&extensible(1, 24, 2), &[5; 24]);
    for len in 0..whole.len() {
        let error = WavHeader::from_bytes(&whole.slice(..len)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated, "{len}: {error}");
        assert_eq!(error.offset(), Some(len as u64));
    }
}

#[test]
fn samples_of_unknown_size_extend_to_the_end_of_the_file() {
    let mut piped = file(&format(1, 16, 2, 8000), &[1; 10]).to_vec();
    piped[40..44].fill(0xFF);
    let header = WavHeader::from_bytes(&piped.into()).unwrap();
    assert_eq!((header.frames(), header.data_range()), (2, 44..52));
    header.sample().unwrap();
}

#[test]
fn files_over_4_gib_have_64_bit_sizes() {
    let long = |sizes: &[u8], name: &[u8; 4]| {
        let chunks = [chunk(b"ds64", sizes), chunk(b"fmt ", &format(1, 8, 1, 8000))];
        let mut file = riff(&chunks).to_vec();
        file[..4].copy_from_slice(name);
        file.extend_from_slice(b"data\xFF\xFF\xFF\xFF");
        file
    };
    let size = 5_u64 << 30;
    let sizes = [&[0; 8], &size.to_le_bytes()[..], &[0; 12]].concat();
    for name in [b"RF64", b"BW64"] {
        let start = long(&sizes, name);
        // Only the requested ranges exist.
        let read = |range: std::ops::Range<u64>| {
            Ok(Bytes::copy_from_slice(&start[range.start as usize..range.end as usize]))
        };
        let header = WavHeader::read(start.len() as u64 + size, read).unwrap();
        assert_eq!(header.frames(), size);
        assert_eq!(kind(WavHeader::read(size, read)), ErrorKind::Truncated);
    }
    assert_eq!(
        kind(WavHeader::from_bytes(&long(&sizes[..12], b"RF64").into())),
        ErrorKind::Corrupt
    );
    // The ds64 chunk is missing, or in a RIFF file.
    let mut without = long(&sizes, b"RF64");
    without[12..16].copy_from_slice(b"junk");
    assert_eq!(kind(WavHeader::from_bytes(&without.into())), ErrorKind::Corrupt);
    let header = WavHeader::from_bytes(&long(&sizes, b"RIFF").into()).unwrap();
    assert_eq!(header.frames(), 0);
}

/// A chunk of Sony Wave64: a GUID, the size with this header of 24 bytes, and padding to multiples of 8 bytes.
fn wave64_chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let guid_tail = b"\xF3\xAC\xD3\x11\x8C\xD1\x00\xC0\x4F\x8E\xDB\x8A";
    let size = (content.len() as u64 + 24).to_le_bytes();
    let mut chunk = [&name[..], guid_tail, &size, content].concat();
    chunk.resize(chunk.len().next_multiple_of(8), 0);
    chunk
}

fn wave64(chunks: &[Vec<u8>]) -> Vec<u8> {
    let content = chunks.concat();
    let riff = b"riff\x2E\x91\xCF\x11\xA5\xD6\x28\xDB\x04\xC1\x00\x00";
    let wave = b"wave\xF3\xAC\xD3\x11\x8C\xD1\x00\xC0\x4F\x8E\xDB\x8A";
    let size = (content.len() as u64 + 40).to_le_bytes();
    [&riff[..], &size, wave, &content].concat()
}

#[test]
fn wave64_files_have_the_samples_of_wav_files() {
    let samples: Vec<u8> = (0..3001_u32).flat_map(|it| (it * it % 65_521).to_le_bytes()).collect();
    for format in [format(1, 16, 2, 8000), extensible(3, 32, 1)] {
        let chunks = [
            wave64_chunk(b"fmt ", &format),
            wave64_chunk(b"junk", &[1; 3]),
            wave64_chunk(b"data", &samples),
            wave64_chunk(b"levl", &[2; 5]),
        ];
        let found = wave64(&chunks);
        let header = WavHeader::from_bytes(&found.clone().into()).unwrap();
        let expected = WavHeader::from_bytes(&file(&format, &samples)).unwrap();
        assert_eq!(header.sample().unwrap(), expected.sample().unwrap());
        assert_eq!(
            (header.frames(), header.channels(), header.sample_rate()),
            (expected.frames(), expected.channels(), expected.sample_rate())
        );
        let range = header.data_range();
        assert_eq!(found[range.start as usize..range.end as usize], samples);

        let mut reader = AudioReader::new(&AudioRegistry::with_defaults(), &AudioLimits::default());
        let mut decode = |file: &[u8], request: &AudioRequest| {
            let mut out = Waveform::new(&AudioLimits::default());
            reader.decode(file, request, &mut out).map(|_| out.channels().to_vec())
        };
        for request in [AudioRequest::all(), AudioRequest::frames(700..1003)] {
            let expected = decode(&file(&format, &samples), &request).unwrap();
            assert_eq!(decode(&found, &request).unwrap(), expected);
        }
        // The end of the samples.
        let cut = &found[..range.end as usize - 7];
        let error = decode(cut, &AudioRequest::all()).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Truncated, Some(cut.len() as u64)));
        decode(cut, &AudioRequest::frames(0..100)).unwrap();
    }
}

#[test]
fn wave64_sizes_must_be_those_of_the_file() {
    let file =
        wave64(&[wave64_chunk(b"fmt ", &format(1, 16, 1, 8000)), wave64_chunk(b"data", &[7; 16])]);
    let header = |file: &[u8]| WavHeader::from_bytes(&file.to_vec().into());
    let whole = header(&file).unwrap();
    assert_eq!((whole.frames(), whole.data_range()), (8, 104..120));
    for size in 4..file.len() {
        assert_eq!(kind(header(&file[..size])), ErrorKind::Truncated, "{size} bytes");
    }
    let with_size = |chunk: usize, size: u64| {
        let mut file = file.clone();
        file[chunk + 16..chunk + 24].copy_from_slice(&size.to_le_bytes());
        header(&file)
    };
    let (fmt, data) = (40, 80);
    for size in [0, 23] {
        assert_eq!(kind(with_size(fmt, size)), ErrorKind::Corrupt);
        assert_eq!(kind(with_size(data, size)), ErrorKind::Corrupt);
    }
    for size in [41, u64::MAX / 2 - 1, u64::MAX] {
        assert_eq!(kind(with_size(fmt, size)), ErrorKind::Truncated, "{size}");
    }
    for size in [41, 1 << 40] {
        assert_eq!(kind(with_size(data, size)), ErrorKind::Truncated, "{size}");
    }
    // A program that writes to a pipe does not know the size.
    for size in [u64::MAX / 2, u64::MAX] {
        assert_eq!(with_size(data, size).unwrap().frames(), 8);
    }
    let mut other = file.clone();
    other[30] ^= 1;
    assert_eq!(kind(header(&other)), ErrorKind::Corrupt);
}

#[test]
fn the_number_of_chunks_is_limited() {
    let chunks = vec![chunk(b"junk", b""); 10_001];
    assert_eq!(kind(WavHeader::from_bytes(&riff(&chunks))), ErrorKind::LimitExceeded);
}

#[test]
fn times_are_converted_to_frames() {
    let header = WavHeader::from_bytes(&file(&format(1, 8, 1, 100), &[0; 200])).unwrap();
    let frames = |offset, duration| header.frames_between(offset, duration).unwrap();
    assert_eq!(frames(None, None), 0..200);
    assert_eq!(frames(Some(0.5), None), 50..200);
    assert_eq!(frames(Some(0.5), Some(0.25)), 50..75);
    assert_eq!(frames(None, Some(9.0)), 0..200);
    assert_eq!(frames(Some(1.0), Some(f64::MAX)), 100..200);
    assert_eq!(frames(Some(0.5), Some(0.0)), 50..50);
    // Times inside a frame, and a time that floating point cannot represent.
    assert_eq!(frames(Some(0.019), Some(0.019)), 1..2);
    assert_eq!(frames(Some(0.29), Some(0.29)), 29..58);
    for (offset, duration) in [(-0.1, 1.0), (f64::NAN, 1.0), (0.0, f64::INFINITY), (0.0, -1.0)] {
        let kind = kind(header.frames_between(Some(offset), Some(duration)));
        assert_eq!(kind, ErrorKind::InvalidArgument, "{offset} {duration}");
    }
    assert_eq!(kind(header.frames_between(Some(2.0), None)), ErrorKind::InvalidArgument);
    let empty = WavHeader::from_bytes(&file(&format(1, 8, 1, 100), &[])).unwrap();
    assert_eq!(empty.frames_between(Some(0.0), None).unwrap(), 0..0);
    assert_eq!(kind(empty.frames_between(Some(0.01), None)), ErrorKind::InvalidArgument);
}

#[test]
fn samples_of_24_bits_become_the_upper_bits_of_32() {
    let values = [0, 1, -1, 0x7F_FFFF, -0x80_0000, 0x12_3456];
    let packed: Vec<u8> =
        values.iter().flat_map(|value: &i32| value.to_le_bytes()[..3].to_vec()).collect();
    let mut wide = vec![9; values.len() * 4];
    WavSample::widen(&packed, &mut wide).unwrap();
    let found: Vec<i32> =
        wide.as_chunks::<4>().0.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect();
    assert_eq!(found, values.map(|value| value << 8));
    for (from, to) in [(3, 3), (4, 4), (6, 4), (3, 8)] {
        let kind = kind(WavSample::widen(&vec![0; from], &mut vec![0; to]));
        assert_eq!(kind, ErrorKind::InvalidArgument);
    }
}

#[test]
fn headers_of_third_party_files_are_parsed() {
    let folder = std::env::var_os("SPDL_CORPORA").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpora"),
        PathBuf::from,
    );
    let assets = "androidx-media/files/libraries/test_data/src/test/assets/media/wav";
    let resources = "torchcodec/files/test/resources";
    let files = [
        ("cpython/files/audiodata/pluck-pcm32.wav".to_owned(), Some(WavSample::I32)),
        (format!("{resources}/sine_mono_u8.wav"), Some(WavSample::U8)),
        (format!("{resources}/sine_mono_s24.wav"), Some(WavSample::I24)),
        (format!("{resources}/sine_mono_s32.wav"), Some(WavSample::I32)),
        (format!("{assets}/sine_24le.wav"), Some(WavSample::I24)),
        (format!("{assets}/sample_ima_adpcm.wav"), None),
    ];
    for (name, expected) in files {
        let Ok(bytes) = std::fs::read(folder.join(&name)) else {
            println!("SKIPPED: corpora not present");
            return;
        };
        let header = WavHeader::from_bytes(&bytes.into()).unwrap();
        assert_eq!(header.sample().ok(), expected, "{name}: {header:?}");
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic_and_samples_are_within_the_file(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        has_start: bool,
        offset in proptest::option::of(any::<f64>()),
        duration in proptest::option::of(any::<f64>()),
    ) {
        if has_start {
            bytes.splice(0..0, *b"RIFF\0\0\0\0WAVE");
        }
        check(&bytes.into(), offset, duration);
    }

    #[test]
    fn corrupt_files_never_panic_and_samples_are_within_the_file(
        changes in proptest::collection::vec((0..100_usize, any::<u8>()), 0..4),
        is_long: bool,
        offset in proptest::option::of(0.0..2.0),
        duration in proptest::option::of(0.0..2.0),
    ) {
        let chunks = [
            chunk(if is_long { b"ds64" } else { b"LIST" }, &[3; 24]),
            chunk(b"fmt ", &extensible(3, 32, 2)),
            chunk(b"data", &[1; 40]),
        ];
        let mut file = riff(&chunks).to_vec();
        if is_long {
            file[..4].copy_from_slice(b"RF64");
        }
        for (at, byte) in changes {
            file[at] = byte;
        }
        check(&file.into(), offset, duration);
    }
}

fn check(file: &Bytes, offset: Option<f64>, duration: Option<f64>) {
    let Ok(header) = WavHeader::from_bytes(file) else { return };
    let data = header.data_range();
    assert!(data.start <= data.end && data.end <= file.len() as u64);
    assert!(header.frames() * u64::from(header.block_align()) <= data.end - data.start);
    if let Ok(frames) = header.frames_between(offset, duration) {
        assert!(frames.start <= frames.end && frames.end <= header.frames());
    }
    if let Ok(sample) = header.sample() {
        let bytes = header.frames() * u64::from(header.channels()) * sample.size() as u64;
        assert_eq!(bytes, data.end - data.start);
    }
}
