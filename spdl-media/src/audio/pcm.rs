//! WAV files as an audio format: uncompressed samples of 8 to 64 bits, A-law and µ-law.

use std::sync::LazyLock;

use bytes::Bytes;
use spdl_core::{Error, ErrorKind, Result};

use super::codec::{AudioCodec, AudioDecoded, AudioDecoder, AudioInfo, AudioRequest};
use super::limits::AudioLimits;
use super::wav::{WavHeader, WavSample};
use super::waveform::Waveform;
use crate::image::OnTruncated;

/// WAV: RIFF, RF64 and BW64 with uncompressed samples, A-law or µ-law.
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
        is_riff && head.get(8..12) == Some(b"WAVE")
    }

    fn decoder(&self, _limits: &AudioLimits) -> Result<Box<dyn AudioDecoder>> {
        Ok(Box::new(WavDecoder))
    }
}

impl AudioDecoder for WavDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<AudioInfo> {
        let header = header(encoded)?;
        let codec = format!("pcm-{}", header.sample()?);
        let info = AudioInfo::new(header.sample_rate(), header.channels(), codec);
        Ok(info.with_frames(header.declared_frames()))
    }

    fn decode(
        &mut self,
        encoded: &[u8],
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<AudioDecoded> {
        let header = header(encoded)?;
        let sample = header.sample()?;
        let is_cut =
            header.is_truncated() && request.end().min(header.declared_frames()) > header.frames();
        if is_cut && !request.accepts_truncated() {
            let message = format!(
                "truncated WAV: the file has {} of {} frames",
                header.frames(),
                header.declared_frames()
            );
            let offset = encoded.len() as u64;
            return Err(Error::new(ErrorKind::Truncated, message).with_offset(offset));
        }
        let (start, end) = (request.start(), request.end().min(header.frames()));
        let frames = end.saturating_sub(start);
        out.start(header.sample_rate(), header.channels(), frames)?;
        if frames > 0 {
            let frame_bytes = usize::from(header.block_align());
            let first = header.data_range().start as usize + start as usize * frame_bytes;
            let samples = &encoded[first..first + frames as usize * frame_bytes];
            let channels: Vec<_> = out.append(frames as usize)?.collect();
            convert(samples, sample, channels);
        }
        Ok(AudioDecoded { is_truncated: is_cut })
    }
}

/// The header, also of a truncated file.
fn header(encoded: &[u8]) -> Result<WavHeader> {
    let part = |range: std::ops::Range<u64>| {
        Ok(Bytes::copy_from_slice(&encoded[range.start as usize..range.end as usize]))
    };
    WavHeader::read_with(encoded.len() as u64, OnTruncated::Partial, part)
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

/// Frames for which the samples of all channels are in the L1 cache.
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
    for (block, samples) in samples.chunks(BLOCK_FRAMES * count).enumerate() {
        let first = block * BLOCK_FRAMES;
        let frames = samples.len() / count;
        for (at, channel) in channels.iter_mut().enumerate() {
            let of_channel = samples[at..].iter().step_by(count);
            let out = &mut channel[first..first + frames];
            out.iter_mut().zip(of_channel).for_each(|(out, sample)| *out = value(*sample));
        }
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
