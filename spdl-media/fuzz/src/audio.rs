//! Audio files, and windows of them.

use bytes::Bytes;
use spdl_media::OnTruncated;
use spdl_media::audio::{
    AudioLimits, AudioReader, AudioRegistry, AudioRequest, WavHeader, WavSample, Waveform,
};

use super::choices::Choices;
use super::{check_kind, hash};

/// The header of a WAV file, the range of its samples, and frames between times.
pub fn read_wav(file: &[u8]) {
    let file = Bytes::copy_from_slice(file);
    let len = file.len() as u64;
    let mut read = 0;
    let by_ranges = WavHeader::read(len, |range| {
        assert!(range.start <= range.end && range.end <= len, "{range:?} of {len} bytes");
        read += range.end - range.start;
        Ok(file.slice(range.start as usize..range.end as usize))
    });
    assert!(read <= len, "{read} of {len} bytes were read");
    check_kind(by_ranges.as_ref().err());
    let Ok(header) = by_ranges else { return };
    let data = header.data_range();
    assert!(data.start <= data.end && data.end <= len, "{data:?} of {len} bytes");
    let sample = header.sample();
    check_kind(sample.as_ref().err());
    if let Ok(sample) = sample {
        let frame = u64::from(header.channels()) * sample.size() as u64;
        assert_eq!(header.frames() * frame, data.end - data.start);
        if sample == WavSample::I24 {
            let packed = &file[data.start as usize..data.end as usize];
            let mut wide = vec![0; packed.len() / 3 * 4];
            WavSample::widen(packed, &mut wide)
                .expect("the length is a multiple of the sample size");
        }
    }
    for (offset, duration) in [(None, None), (Some(0.5), Some(0.25)), (None, Some(1e300))] {
        if let Ok(frames) = header.frames_between(offset, duration) {
            assert!(frames.start <= frames.end && frames.end <= header.frames());
        }
    }
}

/// How many windows of a file are decoded.
const WINDOWS: usize = 4;

/// A whole file, and windows of it: at both ends, across its end, beyond it, empty ones.
pub fn decode_audio(file: &[u8]) {
    let limits = AudioLimits::default().max_bytes(1 << 22);
    let mut reader = AudioReader::new(&AudioRegistry::with_defaults(), &limits);
    let info = reader.inspect(file);
    check_kind(info.as_ref().err());
    let mut whole = Waveform::new(&limits);
    let partial = AudioRequest::all().on_truncated(OnTruncated::Partial);
    let outcome = reader.decode(file, &partial, &mut whole);
    check_kind(outcome.as_ref().err());
    if let (Ok(info), Ok(_)) = (&info, &outcome) {
        assert_eq!(whole.sample_rate(), info.sample_rate);
        assert_eq!(whole.channels().len(), usize::from(info.channels));
    }
    let is_whole = outcome.is_ok();
    let frames = if is_whole { whole.frames() as u64 } else { 5000 };
    let draws = [hash(file), hash(&file[file.len() / 2..])].map(u64::to_le_bytes).concat();
    let mut choices = Choices::new(&draws);
    let mut window = Waveform::new(&limits);
    for number in 0..WINDOWS {
        let start = choices.below(frames + 100);
        let length = match choices.below(8) {
            0 => 0,
            1 => u64::MAX - start,
            _ => choices.below(1000),
        };
        let wanted = start..start + length;
        let request = AudioRequest::frames(wanted.clone());
        // Errors for truncated files, in every second window.
        let accepts = number % 2 == 0;
        let request = if accepts { request.on_truncated(OnTruncated::Partial) } else { request };
        let outcome = reader.decode(file, &request, &mut window);
        check_kind(outcome.as_ref().err());
        let Ok(decoded) = outcome else { continue };
        assert!(accepts || !decoded.is_truncated, "{wanted:?}: a truncated window is no error");
        assert!(window.frames() as u64 <= length, "{} frames of {wanted:?}", window.frames());
        if is_whole && is_exact(file) && !decoded.is_truncated {
            compare(&window, &whole, wanted);
        }
    }
}

/// Whether a window of a damaged file has the samples of the whole: decoders of Opus and AAC carry state from frame to
/// frame, and a damaged frame of MP3 may affect further ones; frames of FLAC and pages of Vorbis have checksums.
fn is_exact(file: &[u8]) -> bool {
    [&b"RIFF"[..], b"fLaC", b"OggS"].iter().any(|start| file.starts_with(start))
        && !file.windows(8).any(|part| part == b"OpusHead")
}

fn compare(window: &Waveform, whole: &Waveform, wanted: std::ops::Range<u64>) {
    let end = (whole.frames() as u64).min(wanted.end) as usize;
    let part = end.min(wanted.start as usize)..end;
    for (window, whole) in window.channels().iter().zip(whole.channels()) {
        let bits = |samples: &[f32]| samples.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
        assert!(bits(window) == bits(&whole[part.clone()]), "the window {wanted:?} differs");
    }
}
