use std::panic::{AssertUnwindSafe, catch_unwind};

use spdl_core::ErrorKind;

use crate::audio::{
    AUDIO_SNIFF_BYTES, AudioCodec, AudioDecoder, AudioInfo, AudioLimits, AudioRequest, Waveform,
};
use crate::image::OnTruncated;

/// The number of truncated copies, and of copies with changed bytes, per file.
const COPIES: usize = 100;

/// Checks an audio codec with valid files of its format. Use small files: each is decoded hundreds
/// of times.
///
/// - Signature: the codec recognises the given files, but not empty input.
/// - Header: sample rate, channels and number of frames are those of the decoded audio.
/// - Limits: the decoder applies them.
/// - Windows: a window has the frames of the same part of the whole, within `tolerance`; 0 for
///   codecs whose frames do not depend on where decoding begins.
/// - Reuse: a decoder can be used again, also after an error.
/// - Truncation: a truncated file returns one of the documented errors, or as many frames as the
///   whole; with [`OnTruncated::Partial`], the first frames of the whole.
/// - Corruption: a file with changed bytes returns frames or one of the documented errors.
///
/// # Panics
/// If the codec violates the contract; the message names the violation.
pub fn audio_contract(codec: &dyn AudioCodec, files: &[&[u8]], tolerance: f32) {
    let name = codec.name();
    assert!(!name.is_empty(), "the codec has no name");
    assert!(!codec.sniff(b""), "{name}: recognises empty input");
    for (number, file) in files.iter().enumerate() {
        let name = format!("{name}, file {number}");
        let head = &file[..file.len().min(AUDIO_SNIFF_BYTES)];
        assert!(codec.sniff(head), "{name}: not recognised");
        let mut decoder = new(codec, &AudioLimits::default(), &name);
        let info = decoder.inspect(file).unwrap_or_else(|error| panic!("{name}: {error}"));
        let all = AudioRequest::all();
        let whole = decoded(decoder.as_mut(), file, &all)
            .unwrap_or_else(|error| panic!("{name}: cannot be decoded: {error}"));
        check_header(&info, &whole, &name);
        check_limits(codec, file, &whole, &name);
        check_windows(decoder.as_mut(), file, &whole, tolerance, &name);
        check_truncated(decoder.as_mut(), file, &whole, tolerance, &name);
        check_corrupt(decoder.as_mut(), file, &name);
        let again = decoded(decoder.as_mut(), file, &all);
        let is_same = again.is_ok_and(|again| again.channels() == whole.channels());
        assert!(is_same, "{name}: another decode differs");
    }
}

fn new(codec: &dyn AudioCodec, limits: &AudioLimits, name: &str) -> Box<dyn AudioDecoder> {
    codec.decoder(limits).unwrap_or_else(|error| panic!("{name}: no decoder: {error}"))
}

fn decoded(
    decoder: &mut dyn AudioDecoder,
    file: &[u8],
    request: &AudioRequest,
) -> spdl_core::Result<Waveform> {
    let mut out = Waveform::new(&AudioLimits::default());
    decoder.decode(file, request, &mut out)?;
    Ok(out)
}

fn check_header(info: &AudioInfo, whole: &Waveform, name: &str) {
    assert_eq!(info.sample_rate, whole.sample_rate(), "{name}: another sample rate");
    assert_eq!(usize::from(info.channels), whole.channels().len(), "{name}: other channels");
    if let Some(frames) = info.frames {
        assert_eq!(frames, whole.frames() as u64, "{name}: another number of frames");
    }
}

fn check_limits(codec: &dyn AudioCodec, file: &[u8], whole: &Waveform, name: &str) {
    let bytes = (whole.frames() * whole.channels().len() * 4) as u64;
    let limits = AudioLimits::default().max_bytes(bytes - 1);
    let mut out = Waveform::new(&limits);
    let outcome = new(codec, &limits, name).decode(file, &AudioRequest::all(), &mut out);
    let kind = outcome.err().map(|error| error.kind());
    assert_eq!(kind, Some(ErrorKind::LimitExceeded), "{name}: a limit is not applied");
}

fn check_windows(
    decoder: &mut dyn AudioDecoder,
    file: &[u8],
    whole: &Waveform,
    tolerance: f32,
    name: &str,
) {
    let frames = whole.frames() as u64;
    let windows = [
        0..1,
        frames / 3..frames / 3 + 700,
        frames - 1..frames,
        frames / 2..frames + 100,
        frames + 10..frames + 20,
    ];
    for window in windows {
        let request = AudioRequest::frames(window.clone());
        let part = decoded(decoder, file, &request)
            .unwrap_or_else(|error| panic!("{name}: window {window:?}: {error}"));
        let expected = window.start.min(frames) as usize..window.end.min(frames) as usize;
        let mut pairs = part.channels().iter().zip(whole.channels());
        let is_equal = |(part, whole): (&Vec<f32>, &Vec<f32>)| {
            let whole = &whole[expected.clone()];
            let is_near = |(a, b): (&f32, &f32)| (a - b).abs() <= tolerance;
            part.len() == whole.len() && part.iter().zip(whole).all(is_near)
        };
        assert!(pairs.all(is_equal), "{name}: window {window:?} differs");
    }
}

fn check_truncated(
    decoder: &mut dyn AudioDecoder,
    file: &[u8],
    whole: &Waveform,
    tolerance: f32,
    name: &str,
) {
    let step = (file.len() / COPIES).max(1);
    for length in (0..file.len()).step_by(step) {
        let name = format!("{name}, the first {length} bytes");
        if let Some(part) = attempt(decoder, &file[..length], &AudioRequest::all(), &name) {
            assert_eq!(part.frames(), whole.frames(), "{name}: frames are missing");
        }
        let partial = AudioRequest::all().on_truncated(OnTruncated::Partial);
        if let Some(part) = attempt(decoder, &file[..length], &partial, &name) {
            for (part, whole) in part.channels().iter().zip(whole.channels()) {
                let pairs = part.iter().zip(whole);
                let is_start = part.len() <= whole.len()
                    && pairs.into_iter().all(|(a, b)| (a - b).abs() <= tolerance);
                assert!(is_start, "{name}: other frames than those of the whole");
            }
        }
    }
}

fn check_corrupt(decoder: &mut dyn AudioDecoder, file: &[u8], name: &str) {
    let mut state = 1_u64;
    for copy in 0..COPIES {
        let mut changed = file.to_vec();
        for _ in 0..=copy % 4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize % changed.len();
            changed[at] = (state >> 16) as u8;
        }
        let name = format!("{name}, copy {copy} with changed bytes");
        attempt(decoder, &changed, &AudioRequest::all(), &name);
    }
}

/// The audio of a damaged file; `None` if decoding it returns a documented error.
fn attempt(
    decoder: &mut dyn AudioDecoder,
    file: &[u8],
    request: &AudioRequest,
    name: &str,
) -> Option<Waveform> {
    let outcome = catch_unwind(AssertUnwindSafe(|| decoded(decoder, file, request)));
    match outcome.unwrap_or_else(|_| panic!("{name}: panics")) {
        Ok(waveform) => Some(waveform),
        Err(error) => {
            let documented = [
                ErrorKind::Truncated,
                ErrorKind::Corrupt,
                ErrorKind::Unsupported,
                ErrorKind::LimitExceeded,
            ];
            assert!(documented.contains(&error.kind()), "{name}: {error}");
            None
        }
    }
}
