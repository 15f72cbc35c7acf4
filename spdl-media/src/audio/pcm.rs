//! WAV files as an audio format: uncompressed samples of 8 to 64 bits, A-law and µ-law.

use std::ops::Range;
use std::sync::LazyLock;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::codec::{AudioCodec, AudioDecoded, AudioDecoder, AudioInfo, AudioRequest};
use super::limits::AudioLimits;
use super::wav::{WavHeader, WavSample, is_wave64};
use super::waveform::Waveform;
use crate::image::OnTruncated;
use crate::source::MediaSource;

/// WAV: RIFF, RF64, BW64 and Wave64 with uncompressed samples, A-law or µ-law.
#[derive(Clone, Copy, Debug)]
pub(super) struct WavCodec;

#[derive(Debug)]
struct WavDecoder;

impl AudioCodec for WavCodec {
    fn name(&self) -> &'static str {
        "wav"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        let is_riff = [b"RIFF", b"RF64", b"BW64", b"RIFX"].iter().any(|it| head.starts_with(*it));
        is_riff && head.get(8..12) == Some(b"WAVE") || is_wave64(head)
    }

    fn has_parts(&self) -> bool {
        true
    }

    fn decoder(&self, _limits: &AudioLimits) -> Result<Box<dyn AudioDecoder>> {
        Ok(Box::new(WavDecoder))
    }
}

impl AudioDecoder for WavDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<AudioInfo> {
        self.inspect_source(&encoded)
    }

    fn decode(
        &mut self,
        encoded: &[u8],
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<AudioDecoded> {
        self.decode_source(&encoded, request, out)
    }

    fn inspect_source(&mut self, file: &dyn MediaSource) -> Result<AudioInfo> {
        let header = header(file)?;
        let codec = format!("pcm-{}", header.sample()?);
        let info = AudioInfo::new(header.sample_rate(), header.channels(), codec);
        Ok(info.with_frames(header.declared_frames()))
    }

    fn decode_source(
        &mut self,
        file: &dyn MediaSource,
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<AudioDecoded> {
        let header = header(file)?;
        let is_truncated = lacks_frames(&header, request);
        if is_truncated && !request.accepts_truncated() {
            let message = format!(
                "truncated WAV: the file has {} of {} frames",
                header.frames(),
                header.declared_frames()
            );
            return Err(Error::new(ErrorKind::Truncated, message).with_offset(file.size()));
        }
        let sample = header.sample()?;
        let (frames, range) = samples_of(&header, request);
        out.start(header.sample_rate(), header.channels(), frames)?;
        if frames > 0 {
            let mut memory = Vec::new();
            let samples = file.read(range, &mut memory)?;
            let mut left = frames as usize;
            for samples in samples.chunks(BLOCK_FRAMES * usize::from(header.block_align())) {
                let channels: Vec<_> = out.append(left.min(BLOCK_FRAMES))?.collect();
                convert(samples, sample, channels);
                left = left.saturating_sub(BLOCK_FRAMES);
            }
        }
        Ok(AudioDecoded { is_truncated })
    }

    fn parts(
        &mut self,
        file: &dyn MediaSource,
        request: &AudioRequest,
    ) -> Result<Option<Vec<Range<u64>>>> {
        let header = header(file)?;
        header.sample()?;
        let is_error = lacks_frames(&header, request) && !request.accepts_truncated();
        let (frames, range) = samples_of(&header, request);
        Ok(Some(if is_error || frames == 0 { Vec::new() } else { vec![range] }))
    }
}

/// The header, also of a truncated file.
fn header(file: &dyn MediaSource) -> Result<WavHeader> {
    let mut memory = Vec::new();
    let part = |range| Ok(Bytes::copy_from_slice(file.read(range, &mut memory)?));
    WavHeader::read_with(file.size(), OnTruncated::Partial, part)
}

/// Whether a truncated file lacks requested frames.
fn lacks_frames(header: &WavHeader, request: &AudioRequest) -> bool {
    header.is_truncated() && request.end().min(header.declared_frames()) > header.frames()
}

/// The number of requested frames that the file has, and their range in the file.
fn samples_of(header: &WavHeader, request: &AudioRequest) -> (u64, Range<u64>) {
    let (start, end) = (request.start(), request.end().min(header.frames()));
    let frames = end.saturating_sub(start);
    let frame_bytes = u64::from(header.block_align());
    let first = header.data_range().start + start.min(end) * frame_bytes;
    (frames, first..first + frames * frame_bytes)
}

/// Converts interleaved samples to one slice per channel; integers so that full scale is ±1.
fn convert(samples: &[u8], format: WavSample, channels: Vec<&mut [f32]>) {
    match format {
        WavSample::U8 => split(samples, channels, |[byte]| (f32::from(byte) - 128.0) / 128.0),
        WavSample::I16 => {
            split(samples, channels, |it| f32::from(i16::from_le_bytes(it)) / 32_768.0);
        }
        WavSample::I24 => split(samples, channels, |[low, middle, high]: [u8; 3]| {
            (i32::from_le_bytes([0, low, middle, high]) >> 8) as f32 / 8_388_608.0
        }),
        WavSample::I32 => {
            split(samples, channels, |it| i32::from_le_bytes(it) as f32 / 2_147_483_648.0);
        }
        WavSample::F32 => split(samples, channels, f32::from_le_bytes),
        WavSample::F64 => split(samples, channels, |it| f64::from_le_bytes(it) as f32),
        WavSample::ALaw => split(samples, channels, |[byte]| A_LAW[usize::from(byte)]),
        WavSample::MuLaw => split(samples, channels, |[byte]| MU_LAW[usize::from(byte)]),
    }
}

/// Frames that are converted together: their samples stay in the L1 cache.
const BLOCK_FRAMES: usize = 1024;

fn split<const SIZE: usize>(
    samples: &[u8],
    mut channels: Vec<&mut [f32]>,
    value: impl Fn([u8; SIZE]) -> f32,
) {
    let (samples, _) = samples.as_chunks::<SIZE>();
    if let [only] = &mut channels[..] {
        only.iter_mut().zip(samples).for_each(|(out, sample)| *out = value(*sample));
        return;
    }
    let count = channels.len();
    for (at, channel) in channels.iter_mut().enumerate() {
        let of_channel = samples.iter().skip(at).step_by(count);
        channel.iter_mut().zip(of_channel).for_each(|(out, sample)| *out = value(*sample));
    }
}

/// The values of A-law bytes: ITU-T G.711, 13 bits, scaled to ±1.
static A_LAW: LazyLock<[f32; 256]> = LazyLock::new(|| {
    std::array::from_fn(|byte| {
        let bits = byte as i32 ^ 0x55;
        let (segment, step) = ((bits & 0x70) >> 4, bits & 0x0F);
        let magnitude = match segment {
            0 => (step << 4) + 8,
            _ => ((step << 4) + 0x108) << (segment - 1),
        };
        let value = if bits & 0x80 != 0 { magnitude } else { -magnitude };
        value as f32 / 32_768.0
    })
});

/// The values of µ-law bytes: ITU-T G.711, 14 bits, scaled to ±1.
static MU_LAW: LazyLock<[f32; 256]> = LazyLock::new(|| {
    std::array::from_fn(|byte| {
        let bits = !(byte as i32);
        let magnitude = ((((bits & 0x0F) << 3) + 0x84) << ((bits & 0x70) >> 4)) - 0x84;
        let value = if bits & 0x80 != 0 { -magnitude } else { magnitude };
        value as f32 / 32_768.0
    })
});
