//! Opus packets, by the crate `opus-decoder`. Sources of the formats: RFC 6716 and RFC 7845.

use opus_decoder::{OpusDecoder, OpusError, OpusMultistreamDecoder};
use spdl_core::{Error, ErrorKind, Result};

use super::PacketDecoder;
use crate::audio::collector::Collector;

/// The sample rate of decoded Opus.
pub(in crate::audio) const OPUS_RATE: u32 = 48_000;

/// The packet `OpusHead`, with which a stream begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::audio) struct OpusHeader {
    pub(in crate::audio) channels: u16,
    /// The frames at the start of the stream that are not played.
    pub(in crate::audio) pre_skip: u16,
    /// In 1/256 dB.
    gain: i16,
    streams: u8,
    coupled: u8,
    /// For each channel, the index of the decoded one.
    mapping: Vec<u8>,
}

impl OpusHeader {
    /// # Errors
    /// `Corrupt` or `Unsupported` if this is not the header of a stream that can be decoded.
    pub(in crate::audio) fn parse(packet: &[u8]) -> Result<Self> {
        let corrupt = |what| Error::new(ErrorKind::Corrupt, format!("corrupt Opus header: {what}"));
        let Some(start) = packet.first_chunk::<19>().filter(|it| it.starts_with(b"OpusHead"))
        else {
            return Err(corrupt("too short"));
        };
        let number = |at: usize| u16::from_le_bytes([start[at], start[at + 1]]);
        let channels = start[9];
        if start[8] & 0xF0 != 0 {
            let message = format!("unsupported Opus: version {} of the stream", start[8]);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let (streams, coupled, mapping) = match start[18] {
            0 if matches!(channels, 1 | 2) => (1, channels - 1, (0..channels).collect()),
            0 => return Err(corrupt("invalid number of channels")),
            1 | 255 => {
                let mapping = packet.get(21..21 + usize::from(channels));
                let mapping = mapping.ok_or_else(|| corrupt("too short"))?;
                (packet[19], packet[20], mapping.to_vec())
            }
            family => {
                let message = format!("unsupported Opus: channel mapping family {family}");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
        };
        Ok(OpusHeader {
            channels: u16::from(channels),
            pre_skip: number(10),
            gain: number(16) as i16,
            streams,
            coupled,
            mapping,
        })
    }
}

/// The number of frames of a packet at 48 kHz; `None` if it is invalid.
pub(in crate::audio) fn packet_frames(packet: &[u8]) -> Option<u32> {
    let toc = *packet.first()?;
    let config = toc >> 3;
    // In units of 2.5 ms.
    let size = match config {
        0..=11 => [4, 8, 16, 24][usize::from(config % 4)],
        12..=15 => [4, 8][usize::from(config % 2)],
        _ => [1, 2, 4, 8][usize::from(config % 4)],
    };
    let count = match toc & 3 {
        0 => 1,
        1 | 2 => 2,
        _ => u32::from(packet.get(1)? & 0x3F),
    };
    let frames = size * 120 * count;
    // At most 120 ms.
    (1..=5760).contains(&frames).then_some(frames)
}

/// A decoder of one stream.
pub(in crate::audio) struct OpusPackets {
    decoder: OpusStreams,
    channels: usize,
    gain: f32,
    /// Interleaved samples of one packet.
    samples: Vec<f32>,
}

enum OpusStreams {
    One(Box<OpusDecoder>),
    Several(Box<OpusMultistreamDecoder>),
}

impl OpusPackets {
    /// # Errors
    /// `Corrupt` if the header is invalid.
    pub(in crate::audio) fn new(header: &OpusHeader) -> Result<Self> {
        let channels = usize::from(header.channels);
        let is_plain = header.streams == 1 && header.mapping.iter().copied().eq(0..channels as u8);
        let decoder = match is_plain && usize::from(header.coupled) + 1 == channels {
            true => OpusDecoder::new(OPUS_RATE, channels).map(|it| OpusStreams::One(Box::new(it))),
            false => {
                let (streams, coupled) = (usize::from(header.streams), usize::from(header.coupled));
                OpusMultistreamDecoder::new(OPUS_RATE, channels, streams, coupled, &header.mapping)
                    .map(|it| OpusStreams::Several(Box::new(it)))
            }
        };
        let decoder = decoder.map_err(|error| fault(&error, None))?;
        let gain = 10_f32.powf(f32::from(header.gain) / (20.0 * 256.0));
        Ok(OpusPackets { decoder, channels, gain, samples: Vec::new() })
    }
}

impl PacketDecoder for OpusPackets {
    fn decode(&mut self, packet: &[u8], offset: usize, out: &mut Collector<'_>) -> Result<()> {
        let Some(frames) = packet_frames(packet) else {
            let message = "corrupt Opus: a packet is empty or too long";
            return Err(Error::new(ErrorKind::Corrupt, message).with_offset(offset as u64));
        };
        self.samples.clear();
        self.samples.resize(frames as usize * self.channels, 0.0);
        // A packet without data stands for silence.
        let packet = if packet.len() == 1 { &[] } else { packet };
        let decoded = match &mut self.decoder {
            OpusStreams::One(decoder) => decoder.decode_float(packet, &mut self.samples, false),
            OpusStreams::Several(decoder) => decoder.decode_float(packet, &mut self.samples, false),
        };
        decoded.map_err(|error| fault(&error, Some(offset)))?;
        let frames = frames as usize;
        let (samples, channels, gain) = (&self.samples, self.channels, self.gain);
        out.push(0..channels, frames, |channel, part, out| {
            let of_channel = samples[part.start * channels + channel..].iter().step_by(channels);
            out.iter_mut().zip(of_channel).for_each(|(out, sample)| *out = sample * gain);
        })
    }
}

fn fault(error: &OpusError, offset: Option<usize>) -> Error {
    let kind = match error {
        OpusError::InternalError => ErrorKind::Unsupported,
        _ => ErrorKind::Corrupt,
    };
    let error = Error::new(
        kind,
        format!(
            "{} Opus: {error}",
            match kind {
                ErrorKind::Unsupported => "unsupported",
                _ => "corrupt",
            }
        ),
    );
    match offset {
        Some(offset) => error.with_offset(offset as u64),
        None => error,
    }
}
