//! MPEG audio, layers I to III (MP3).
//!
//! | file | content |
//! |---|---|
//! | `bits` | bits of a frame |
//! | `synthesis` | the polyphase filter bank |
//! | `layer12`, `layer3` | the decoders of frames |
//!
//! This file has the headers and positions of frames, the delay and padding of encoders, and the
//! codec.
//!
//! Sources of the formats: ISO/IEC 11172-3 and 13818-3 for frames; the tags of Xing and LAME as
//! encoders write them. MPEG 2.5 is the usual extension to lower sample rates.

mod bits;
mod layer12;
mod layer3;
mod synthesis;

use spdl_core::{Error, ErrorKind, Result};

use self::layer3::Layer3;
use self::layer12::Layer12;
use super::codec::{AudioCodec, AudioDecoded, AudioDecoder, AudioInfo, AudioRequest, truncated};
use super::collector::Collector;
use super::limits::AudioLimits;
use super::packets::PacketDecoder;
use super::waveform::Waveform;

/// Bytes before the first frame, such as unknown tags, that are skipped.
const MAX_JUNK: usize = 64 << 10;
/// The delay of every decoder, in frames: 528 of the filter bank and 1.
const DECODER_DELAY: u64 = 529;
/// The frames that affect a frame through overlap and filter, decoded before it.
const OVERLAPPING: usize = 2;
/// The maximum number of bytes of earlier frames that a frame of layer III uses; at low sample
/// rates, half of them.
const MAX_RESERVOIR: usize = 511;

/// MPEG audio, layers I to III.
#[derive(Clone, Copy, Debug)]
pub(super) struct MpegCodec;

/// Decodes the frames of a layer.
trait LayerDecoder: PacketDecoder {
    /// Keeps the data of a frame for later frames.
    fn load(&mut self, frame: &[u8]);
}

/// Keeps the positions of frames.
#[derive(Debug, Default)]
struct MpegDecoder {
    limits: AudioLimits,
    stream: MpegStream,
}

/// The frames of a file.
#[derive(Debug, Default)]
struct MpegStream {
    /// The offset of each frame.
    offsets: Vec<usize>,
    /// The header of the first frame.
    format: FrameFormat,
    /// The number of frames of audio that are not played, at the start.
    delay: u64,
    /// The number of frames of audio to play.
    total: u64,
    /// The end of the last whole frame.
    end: usize,
    /// Whether the file ends before the last frame does, or has fewer of them than its tag counts.
    is_truncated: bool,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FrameFormat {
    /// 1, 2 or 3, the latter for MPEG 2.5.
    version: u8,
    layer: u8,
    sample_rate: u32,
    channels: u16,
    has_checksum: bool,
    /// The bit rate in kbit/s.
    kbps: usize,
    /// The size in bytes.
    size: usize,
}

impl AudioCodec for MpegCodec {
    fn name(&self) -> &'static str {
        "mp3"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        // The first frame may follow other bytes, zeros most of all.
        let has_frame = (0..head.len()).any(|at| FrameFormat::parse(&head[at..]).is_some());
        has_frame || (!head.is_empty() && head.iter().all(|byte| *byte == 0))
    }

    fn decoder(&self, limits: &AudioLimits) -> Result<Box<dyn AudioDecoder>> {
        Ok(Box::new(MpegDecoder { limits: limits.clone(), stream: MpegStream::default() }))
    }
}

impl FrameFormat {
    /// The header at the start of `data`; `None` if there is no valid one.
    fn parse(data: &[u8]) -> Option<FrameFormat> {
        let &[0xFF, kind, rates, mode, ..] = data else { return None };
        if kind & 0xE0 != 0xE0 {
            return None;
        }
        let version = match kind >> 3 & 3 {
            3 => 1,
            2 => 2,
            0 => 3,
            _ => return None,
        };
        let layer = 4 - (kind >> 1 & 3);
        let (rate, index) = (usize::from(rates >> 2 & 3), usize::from(rates >> 4));
        // Free bit rates, whose frames have no stored size, are not supported.
        if layer == 4 || rate == 3 || index == 0 || index == 15 {
            return None;
        }
        let sample_rate = [44_100, 48_000, 32_000][rate] >> (version - 1);
        let kbps: [usize; 14] = match (version, layer) {
            (1, 1) => [32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448],
            (1, 2) => [32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384],
            (1, _) => [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
            (_, 1) => [32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256],
            _ => [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
        };
        let kbps = kbps[index - 1];
        let bits = kbps * 1000;
        let padding = usize::from(rates >> 1 & 1);
        let size = match layer {
            1 => (12 * bits / sample_rate as usize + padding) * 4,
            3 if version > 1 => 72 * bits / sample_rate as usize + padding,
            _ => 144 * bits / sample_rate as usize + padding,
        };
        Some(FrameFormat {
            version,
            layer,
            sample_rate,
            channels: if mode >> 6 == 3 { 1 } else { 2 },
            has_checksum: kind & 1 == 0,
            kbps,
            size,
        })
    }

    /// The frames of audio in a frame.
    fn samples(self) -> u64 {
        match (self.layer, self.version) {
            (1, _) => 384,
            (3, 2 | 3) => 576,
            _ => 1152,
        }
    }

    /// Whether a frame with this header can follow in the same stream.
    fn continues(self, other: FrameFormat) -> bool {
        (self.version, self.layer, self.sample_rate, self.channels)
            == (other.version, other.layer, other.sample_rate, other.channels)
    }

    /// The size of the side information of layer III.
    fn side_size(self) -> usize {
        match (self.version, self.channels) {
            (1, 1) => 17,
            (1, _) => 32,
            (_, 1) => 9,
            _ => 17,
        }
    }

    /// The bytes of a frame that later frames can use.
    fn lent(self) -> usize {
        let head = if self.has_checksum { 6 } else { 4 };
        self.size.saturating_sub(head + self.side_size())
    }
}

impl MpegStream {
    /// Finds all frames.
    fn read(&mut self, file: &[u8]) -> Result<()> {
        self.offsets.clear();
        let Some((mut at, format)) = first_frame(file) else {
            let message = "corrupt MP3: no frames found, or their bit rate is free";
            return Err(Error::new(ErrorKind::Corrupt, message).with_offset(0));
        };
        self.format = format;
        let tag = InfoTag::parse(&file[at..], format);
        if tag.is_some() {
            at += format.size;
        }
        self.is_truncated = false;
        loop {
            let rest = &file[at..];
            match FrameFormat::parse(rest) {
                Some(next) if next.continues(format) => {
                    if next.size > rest.len() {
                        self.is_truncated = true;
                        break;
                    }
                    self.offsets.push(at);
                    at += next.size;
                }
                Some(next) if next.size <= rest.len() => {
                    let message = "unsupported MP3: the format changes within the file";
                    return Err(Error::new(ErrorKind::Unsupported, message).with_offset(at as u64));
                }
                _ if is_trailer(rest) => break,
                _ if rest.len() < 4 => {
                    self.is_truncated = true;
                    break;
                }
                _ => {
                    let message = "corrupt MP3: expected the header of a frame";
                    return Err(Error::new(ErrorKind::Corrupt, message).with_offset(at as u64));
                }
            }
        }
        self.end = at;
        let decoded = self.offsets.len() as u64 * format.samples();
        let tag = tag.unwrap_or_default();
        self.is_truncated |= tag.frames.is_some_and(|frames| frames > self.offsets.len() as u64);
        self.delay = tag.delay;
        self.total = match tag.frames {
            Some(frames) => frames.saturating_mul(format.samples()).saturating_sub(tag.padding),
            None => decoded,
        };
        self.total = self.total.saturating_sub(self.delay);
        Ok(())
    }

    /// The frames from which to load data, and from which to decode, so that the frame `first` and
    /// all later ones are exact.
    fn decode_from(&self, file: &[u8], first: usize) -> (usize, usize) {
        let decoded = first.saturating_sub(OVERLAPPING);
        let mut loaded = decoded;
        let mut needed = match (self.format.layer, self.format.version) {
            (3, 1) => MAX_RESERVOIR,
            (3, _) => MAX_RESERVOIR / 2,
            _ => 0,
        };
        while needed > 0 && loaded > 0 {
            loaded -= 1;
            let format = FrameFormat::parse(&file[self.offsets[loaded]..]);
            needed = needed.saturating_sub(format.map_or(0, FrameFormat::lent));
        }
        (loaded, decoded)
    }
}

/// The first frame that another one of the same stream follows, or that is the only one.
fn first_frame(file: &[u8]) -> Option<(usize, FrameFormat)> {
    (0..file.len().min(MAX_JUNK)).find_map(|at| {
        let rest = &file[at..];
        let format = FrameFormat::parse(rest)?;
        let is_first = match rest.get(format.size..) {
            Some(next) => {
                FrameFormat::parse(next).is_some_and(|next| next.continues(format))
                    || (at == 0 && is_trailer(next))
            }
            None => at == 0,
        };
        is_first.then_some((at, format))
    })
}

/// Whether the rest of a file is no audio: nothing, tags, or zeros.
fn is_trailer(rest: &[u8]) -> bool {
    let tags = [&b"TAG"[..], b"APETAGEX", b"LYRICSBEGIN", b"ID3", b"3DI"];
    tags.iter().any(|tag| rest.starts_with(tag)) || rest.iter().all(|byte| *byte == 0)
}

/// The tag of Xing or LAME, in place of the audio of the first frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct InfoTag {
    /// The number of frames after that of the tag.
    frames: Option<u64>,
    /// The frames of audio that are not played: at the start of the decoded ones, and at the end of
    /// those that the tag counts.
    delay: u64,
    padding: u64,
}

impl InfoTag {
    fn parse(frame: &[u8], format: FrameFormat) -> Option<InfoTag> {
        let frame = frame.get(..format.size)?;
        if format.layer != 3 {
            return None;
        }
        // A tag of Fraunhofer's encoder is always at this place; it has no delay.
        if frame.get(36..40) == Some(b"VBRI") {
            return Some(InfoTag::default());
        }
        let tag = frame.get(4 + format.side_size()..)?;
        if !tag.starts_with(b"Xing") && !tag.starts_with(b"Info") {
            return None;
        }
        let number = |at: usize| {
            let bytes = tag.get(at..at + 4)?.first_chunk()?;
            Some(u32::from_be_bytes(*bytes))
        };
        let flags = number(4)?;
        let mut at = 8;
        // An encoder that was interrupted leaves 0.
        let frames = if flags & 1 != 0 { number(at)? } else { 0 };
        let frames = (frames > 0).then_some(u64::from(frames));
        for (flag, size) in [(1, 4), (2, 4), (4, 100), (8, 4)] {
            at += if flags & flag != 0 { size } else { 0 };
        }
        let mut info = InfoTag { frames, ..InfoTag::default() };
        let lame = tag.get(at..).unwrap_or_default();
        let is_known = [b"LAME", b"Lavf", b"Lavc"].iter().any(|name| lame.starts_with(*name));
        if let (true, Some(&[a, b, c])) = (is_known, lame.get(21..24).and_then(<[u8]>::first_chunk))
        {
            let (delay, padding) =
                (u64::from(a) << 4 | u64::from(b >> 4), u64::from(b & 15) << 8 | u64::from(c));
            info.delay = delay + DECODER_DELAY;
            info.padding = padding.saturating_sub(DECODER_DELAY);
        }
        Some(info)
    }
}

fn corrupt(why: &str, offset: usize) -> Error {
    Error::new(ErrorKind::Corrupt, format!("corrupt MP3: {why}")).with_offset(offset as u64)
}

impl AudioDecoder for MpegDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<AudioInfo> {
        self.stream.read(encoded)?;
        let format = self.stream.format;
        self.limits.check_format(format.sample_rate, format.channels)?;
        let codec = ["mp1", "mp2", "mp3"][usize::from(format.layer - 1)];
        let info = AudioInfo::new(format.sample_rate, format.channels, codec);
        Ok(info.with_frames(self.stream.total))
    }

    fn decode(
        &mut self,
        encoded: &[u8],
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<AudioDecoded> {
        self.stream.read(encoded)?;
        let (stream, format) = (&self.stream, self.stream.format);
        let samples = format.samples();
        let has = (stream.offsets.len() as u64 * samples).saturating_sub(stream.delay);
        let end = request.end().min(stream.total);
        let is_cut = end > has || (stream.is_truncated && request.end() > has);
        if is_cut && !request.accepts_truncated() {
            return Err(truncated("MP3", encoded));
        }
        let wanted = request.start()..end.min(has).max(request.start());
        out.start(format.sample_rate, format.channels, wanted.end - wanted.start)?;
        let decoded = AudioDecoded { is_truncated: is_cut };
        if wanted.is_empty() {
            return Ok(decoded);
        }
        let first = ((wanted.start + stream.delay) / samples) as usize;
        let (loaded, decoded_from) = stream.decode_from(encoded, first);
        let start = (decoded_from as u64 * samples) as i64 - stream.delay as i64;
        let mut packets: Box<dyn LayerDecoder> = match format.layer {
            3 => Box::new(Layer3::new(format)),
            _ => Box::new(Layer12::new(format)),
        };
        let mut collector = Collector::new(out, wanted, start);
        for (frame, &at) in stream.offsets.iter().enumerate().skip(loaded) {
            if collector.is_done() {
                break;
            }
            let end = stream.offsets.get(frame + 1).copied().unwrap_or(stream.end);
            let packet = &encoded[at..end];
            if frame < decoded_from {
                packets.load(packet);
                continue;
            }
            let before = collector.next();
            match packets.decode(packet, at, &mut collector) {
                // None of its samples are wanted.
                Err(_) if frame < first => {
                    collector.skip(before + samples as i64);
                }
                outcome => outcome?,
            }
        }
        Ok(decoded)
    }
}
