//! AAC in ADTS frames. Source of the format: ISO/IEC 14496-3.

use spdl_core::{Error, ErrorKind, Result};

use super::codec::{AudioCodec, AudioDecoded, AudioDecoder, AudioInfo, AudioRequest, truncated};
use super::collector::Collector;
use super::limits::AudioLimits;
use super::packets::{PacketCodec, PacketDecoder, SymphoniaPackets};
use super::waveform::Waveform;

/// The frames of audio in a frame of AAC.
const SAMPLES: u64 = 1024;
/// Frames that affect a frame, decoded before it.
const OVERLAPPING: usize = 2;

/// AAC (low complexity) in ADTS frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdtsCodec;

#[derive(Debug)]
struct AdtsDecoder {
    limits: AudioLimits,
    /// The place of the data of each frame.
    frames: Vec<std::ops::Range<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AdtsHeader {
    object_type: u8,
    rate_index: u8,
    channels: u16,
    /// The size of the header and of the frame in bytes.
    header: usize,
    size: usize,
    /// The number of raw data blocks.
    blocks: u8,
}

/// The sample rates of the indices in headers.
const RATES: [u32; 13] = [
    96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8000,
    7350,
];

impl AdtsHeader {
    fn parse(data: &[u8]) -> Option<AdtsHeader> {
        let &[0xFF, kind, format, channels, length, tail, last, ..] = data else { return None };
        if kind & 0xF6 != 0xF0 || usize::from(format >> 2 & 15) >= RATES.len() {
            return None;
        }
        let header = if kind & 1 != 0 { 7 } else { 9 };
        let size =
            usize::from(channels & 3) << 11 | usize::from(length) << 3 | usize::from(tail >> 5);
        (size > header).then_some(AdtsHeader {
            object_type: (format >> 6) + 1,
            rate_index: format >> 2 & 15,
            channels: u16::from((format & 1) << 2 | channels >> 6),
            header,
            size,
            blocks: (last & 3) + 1,
        })
    }

    fn sample_rate(self) -> u32 {
        RATES[usize::from(self.rate_index)]
    }

    fn channel_count(self) -> u16 {
        if self.channels == 7 { 8 } else { self.channels }
    }
}

impl AudioCodec for AdtsCodec {
    fn name(&self) -> &'static str {
        "aac"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        AdtsHeader::parse(head).is_some()
    }

    fn decoder(&self, limits: &AudioLimits) -> Result<Box<dyn AudioDecoder>> {
        Ok(Box::new(AdtsDecoder { limits: limits.clone(), frames: Vec::new() }))
    }
}

impl AdtsDecoder {
    /// Finds all frames. Returns the header of the first one, and whether the last one is truncated.
    fn read(&mut self, file: &[u8]) -> Result<(AdtsHeader, bool)> {
        self.frames.clear();
        let unsupported = |what: &str| {
            Err(Error::new(ErrorKind::Unsupported, format!("unsupported AAC: {what}")))
        };
        let Some(first) = AdtsHeader::parse(file) else {
            let message = "corrupt AAC: no ADTS header found";
            return Err(Error::new(ErrorKind::Corrupt, message).with_offset(0));
        };
        // The main profile without prediction is the low complexity one.
        if first.object_type > 2 {
            return unsupported("only the low complexity profile is decoded");
        }
        if first.channels == 0 {
            return unsupported("the channels are described inside the data");
        }
        let mut at = 0;
        while at < file.len() {
            let rest = &file[at..];
            match AdtsHeader::parse(rest) {
                Some(header) if header.size > rest.len() => return Ok((first, true)),
                Some(header) if header.blocks > 1 => {
                    return unsupported("several blocks in one frame");
                }
                Some(header)
                    if (header.rate_index, header.channels, header.object_type)
                        == (first.rate_index, first.channels, first.object_type) =>
                {
                    self.frames.push(at + header.header..at + header.size);
                    at += header.size;
                }
                Some(_) => return unsupported("the format changes within the file"),
                None if rest.starts_with(b"TAG") || rest.starts_with(b"ID3") => break,
                None if rest.len() < 7 => return Ok((first, true)),
                None => {
                    let message = "corrupt AAC: expected an ADTS header";
                    return Err(Error::new(ErrorKind::Corrupt, message).with_offset(at as u64));
                }
            }
        }
        Ok((first, false))
    }
}

impl AudioDecoder for AdtsDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<AudioInfo> {
        let (format, _) = self.read(encoded)?;
        self.limits.check_format(format.sample_rate(), format.channel_count())?;
        let info = AudioInfo::new(format.sample_rate(), format.channel_count(), "aac");
        Ok(info.with_frames(self.frames.len() as u64 * SAMPLES))
    }

    fn decode(
        &mut self,
        encoded: &[u8],
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<AudioDecoded> {
        let (format, is_truncated) = self.read(encoded)?;
        let has = self.frames.len() as u64 * SAMPLES;
        let is_cut = is_truncated && request.end() > has;
        if is_cut && !request.accepts_truncated() {
            return Err(truncated("AAC", encoded));
        }
        let wanted = request.start()..request.end().min(has).max(request.start());
        let channels = format.channel_count();
        out.start(format.sample_rate(), channels, wanted.end - wanted.start)?;
        if !wanted.is_empty() {
            let from = ((wanted.start / SAMPLES) as usize).saturating_sub(OVERLAPPING);
            let rate = format.sample_rate();
            let mut packets = SymphoniaPackets::new(PacketCodec::Aac, rate, channels, None)?;
            let mut collector = Collector::new(out, wanted, (from as u64 * SAMPLES) as i64);
            for frame in &self.frames[from..] {
                if collector.is_done() {
                    break;
                }
                packets.decode(&encoded[frame.clone()], frame.start, &mut collector)?;
            }
        }
        Ok(AudioDecoded { is_truncated: is_cut })
    }
}
