//! FLAC, by a decoder of this crate: any frame is found without decoding those before it.
//!
//! | file | content |
//! |---|---|
//! | `bits` | bits, unary numbers and Rice codes |
//! | `frame` | frame headers, subframes, prediction, checksums |
//! | `window` | the part of a file that has a window, by reading only little of the file |
//!
//! This file has the metadata, the search for a frame in memory, and the codec. Source of the format:
//! RFC 9639. The MD5 sum of the metadata is not checked; each frame has a checksum.

mod bits;
mod frame;
mod window;

use std::ops::Range;

use spdl_core::{Error, ErrorKind, Result};

use self::frame::{FrameDecoder, FrameHeader, crc16};
use self::window::FlacWindow;
use super::codec::{
    AudioCodec, AudioDecoded, AudioDecoder, AudioInfo, AudioRequest, truncated, truncated_at,
};
use super::collector::Collector;
use super::limits::AudioLimits;
use super::waveform::Waveform;
use crate::source::MediaSource;

/// The maximum number of metadata blocks.
const MAX_BLOCKS: usize = 10_000;
/// The number of places that may be the last frame.
const MAX_CANDIDATES: usize = 16;
/// In a part of a file of this size, frames are searched one after the other.
const SEARCHED: usize = 64 << 10;

/// FLAC.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlacCodec;

#[derive(Debug)]
struct FlacDecoder {
    limits: AudioLimits,
    frames: FrameDecoder,
}

/// The metadata that decoding needs.
#[derive(Clone, Debug)]
struct StreamInfo {
    sample_rate: u32,
    channels: u16,
    bits: u32,
    max_block_size: usize,
    /// The number of frames of audio; `None` if the encoder did not know it.
    total: Option<u64>,
    /// The offset of the first frame in the file.
    start: usize,
    /// First frames of blocks and their offsets, in ascending order.
    seek_points: Vec<(u64, usize)>,
}

impl AudioCodec for FlacCodec {
    fn name(&self) -> &'static str {
        "flac"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        head.starts_with(b"fLaC")
    }

    fn has_parts(&self) -> bool {
        true
    }

    fn decoder(&self, limits: &AudioLimits) -> Result<Box<dyn AudioDecoder>> {
        Ok(Box::new(FlacDecoder { limits: limits.clone(), frames: FrameDecoder::default() }))
    }
}

impl AudioDecoder for FlacDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<AudioInfo> {
        self.inspect_source(&encoded)
    }

    fn decode(
        &mut self,
        encoded: &[u8],
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<AudioDecoded> {
        let stream = StreamInfo::read(&encoded)?;
        let wanted = stream.wanted(request);
        stream.start_waveform(encoded.len() as u64, &wanted, out)?;
        if wanted.is_empty() {
            return Ok(AudioDecoded::complete());
        }
        let (at, first) = stream.find(encoded, wanted.start);
        let outcome = self.decode_from(encoded, &stream, at, first, &wanted, out);
        let outcome = match outcome {
            // What looked like a frame may be data of another one.
            Err(error)
                if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Truncated)
                    && first > 0 =>
            {
                out.truncate(0);
                self.decode_from(encoded, &stream, stream.start, 0, &wanted, out)
            }
            outcome => outcome,
        };
        accept_truncated(outcome, request)
    }

    fn inspect_source(&mut self, file: &dyn MediaSource) -> Result<AudioInfo> {
        let stream = StreamInfo::read(file)?;
        self.limits.check_format(stream.sample_rate, stream.channels)?;
        let codec = format!("flac-int{}", stream.bits);
        let info = AudioInfo::new(stream.sample_rate, stream.channels, codec);
        let total = match stream.total {
            None => stream.total_by_last_frame(file)?,
            total => total,
        };
        Ok(match total {
            Some(total) => info.with_frames(total),
            None => info,
        })
    }

    fn decode_source(
        &mut self,
        file: &dyn MediaSource,
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<AudioDecoded> {
        let stream = StreamInfo::read(file)?;
        let wanted = stream.wanted(request);
        stream.start_waveform(file.size(), &wanted, out)?;
        if wanted.is_empty() {
            return Ok(AudioDecoded::complete());
        }
        let mut window = FlacWindow::find(&stream, file, &wanted)?;
        let mut memory = Vec::new();
        let outcome = loop {
            let part = file.read(window.bytes.clone(), &mut memory)?;
            let outcome = self.decode_from(part, &stream, 0, window.first, &wanted, out);
            match outcome {
                Err(error)
                    if error.kind() == ErrorKind::Truncated && window.bytes.end < file.size() =>
                {
                    out.truncate(0);
                    window.extend(file.size());
                }
                outcome => break outcome,
            }
        };
        let shift = |error: Error| match error.offset() {
            Some(offset) => error.with_offset(offset + window.bytes.start),
            None => error,
        };
        match outcome.map_err(shift) {
            // What looked like a frame may be data of another one.
            Err(error)
                if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Truncated)
                    && window.first > 0 =>
            {
                let whole = file.read(0..file.size(), &mut memory);
                match whole.and_then(|whole| self.decode(whole, request, out)) {
                    // The file is too large to be decoded from its start.
                    Err(other) if other.kind() == ErrorKind::LimitExceeded => Err(error),
                    decoded => decoded,
                }
            }
            outcome => accept_truncated(outcome, request),
        }
    }

    fn parts(
        &mut self,
        file: &dyn MediaSource,
        request: &AudioRequest,
    ) -> Result<Option<Vec<Range<u64>>>> {
        let stream = StreamInfo::read(file)?;
        let wanted = stream.wanted(request);
        if wanted.is_empty() {
            return Ok(Some(Vec::new()));
        }
        Ok(Some(vec![FlacWindow::find(&stream, file, &wanted)?.bytes]))
    }
}

/// The result of a decode that may end early.
fn accept_truncated(outcome: Result<()>, request: &AudioRequest) -> Result<AudioDecoded> {
    match outcome {
        Ok(()) => Ok(AudioDecoded::complete()),
        Err(error) if error.kind() == ErrorKind::Truncated && request.accepts_truncated() => {
            Ok(AudioDecoded::truncated())
        }
        Err(error) => Err(error),
    }
}

impl FlacDecoder {
    /// Decodes from the frame at the offset `at`, whose first sample is `first`, and appends the
    /// frames of `wanted`.
    fn decode_from(
        &mut self,
        encoded: &[u8],
        stream: &StreamInfo,
        mut at: usize,
        first: u64,
        wanted: &Range<u64>,
        out: &mut Waveform,
    ) -> Result<()> {
        let scale = (-(stream.bits as f32 - 1.0)).exp2();
        let mut collector = Collector::new(out, wanted.clone(), first as i64);
        while !collector.is_done() {
            let rest = &encoded[at..];
            let Some(header) = FrameHeader::parse(rest, stream) else {
                // Without a known length, the audio ends with the file, or before an ID3 tag.
                let is_end = rest.is_empty() || (rest.len() == 128 && rest.starts_with(b"TAG"));
                return match stream.total {
                    None if is_end => Ok(()),
                    _ if rest.len() < FrameHeader::MAX_SIZE => Err(truncated("FLAC", encoded)),
                    _ => Err(corrupt("expected the header of a frame", at)),
                };
            };
            if header.first as i64 != collector.next() {
                let message =
                    format!("expected frame {}, found {}", collector.next(), header.first);
                return Err(corrupt(&message, at));
            }
            at = self.frames.decode(encoded, at, &header)?;
            let blocks = self.frames.blocks().iter();
            collector.push(blocks, header.block_size, |block, part, out| {
                let samples = out.iter_mut().zip(&block[part]);
                samples.for_each(|(out, sample)| *out = *sample as f32 * scale);
            })?;
        }
        Ok(())
    }
}

impl StreamInfo {
    /// Reads the metadata. Blocks that decoding does not need, such as pictures, are skipped.
    fn read(file: &dyn MediaSource) -> Result<StreamInfo> {
        let file_size = file.size();
        let mut memory = Vec::new();
        let mut at = 4;
        let mut stream = None;
        for _ in 0..MAX_BLOCKS {
            if at as u64 + 4 > file_size {
                return Err(truncated_at("FLAC", file_size));
            }
            let header = file.read(at as u64..at as u64 + 4, &mut memory)?;
            let &[kind, a, b, c] = header.first_chunk().unwrap_or(&[0; 4]);
            let size = u32::from_be_bytes([0, a, b, c]) as usize;
            at += 4;
            let content = at as u64..(at + size) as u64;
            if content.end > file_size {
                return Err(truncated_at("FLAC", file_size));
            }
            match (kind & 0x7F, &mut stream) {
                (0, None) => {
                    stream = Some(StreamInfo::parse(file.read(content, &mut memory)?, at)?);
                }
                (_, None) => return Err(corrupt("the first block is not STREAMINFO", at - 4)),
                (3, Some(stream)) => stream.read_seek_points(file.read(content, &mut memory)?),
                _ => {}
            }
            at += size;
            if let (0x80.., Some(mut stream)) = (kind, stream.take_if(|_| kind & 0x80 != 0)) {
                stream.start = at;
                let points = stream.seek_points.iter_mut();
                points.for_each(|point| point.1 = point.1.saturating_add(at));
                return Ok(stream);
            }
        }
        let message = format!("more than {MAX_BLOCKS} metadata blocks");
        Err(Error::new(ErrorKind::LimitExceeded, message).with_offset(at as u64))
    }

    /// The frames of audio of a request that the file may have.
    fn wanted(&self, request: &AudioRequest) -> Range<u64> {
        let end = request.end().min(self.total.unwrap_or(u64::MAX));
        request.start()..end.max(request.start())
    }

    /// Sets the format of a waveform, and reserves memory for `wanted`.
    fn start_waveform(&self, size: u64, wanted: &Range<u64>, out: &mut Waveform) -> Result<()> {
        let expected = if wanted.end == u64::MAX { 0 } else { wanted.end - wanted.start };
        // A header may lie about the length, so memory is reserved for what the file can hold: a
        // block of equal samples takes at least 6 bytes and one per channel.
        let most = size / (6 + u64::from(self.channels)) * self.max_block_size as u64;
        out.start(self.sample_rate, self.channels, expected.min(most))
    }

    /// The maximum number of bytes of a frame: its uncompressed samples, and some bytes of headers.
    fn largest_frame(&self) -> usize {
        self.max_block_size * usize::from(self.channels) * 5 + 1024
    }

    /// Reads the block STREAMINFO.
    fn parse(content: &[u8], at: usize) -> Result<StreamInfo> {
        let Some(content) = content.first_chunk::<34>() else {
            return Err(corrupt("the block STREAMINFO is too short", at));
        };
        let packed = u64::from_be_bytes(std::array::from_fn(|byte| content[10 + byte]));
        let total = packed & ((1 << 36) - 1);
        let stream = StreamInfo {
            sample_rate: (packed >> 44) as u32,
            channels: (packed >> 41 & 7) as u16 + 1,
            bits: (packed >> 36 & 31) as u32 + 1,
            max_block_size: usize::from(u16::from_be_bytes([content[2], content[3]])),
            total: (total > 0).then_some(total),
            start: 0,
            seek_points: Vec::new(),
        };
        if stream.sample_rate == 0 || stream.bits < 4 || stream.max_block_size < 16 {
            return Err(corrupt("invalid values in STREAMINFO", at));
        }
        Ok(stream)
    }

    /// Reads the block SEEKTABLE. Its offsets count from the first frame.
    fn read_seek_points(&mut self, content: &[u8]) {
        let (points, _) = content.as_chunks::<18>();
        let number =
            |bytes: &[u8]| bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let points = points.iter().map(|point| (number(&point[..8]), number(&point[8..16])));
        let valid = points.take_while(|(first, _)| *first != u64::MAX);
        self.seek_points = valid.map(|(first, offset)| (first, offset as usize)).collect();
        if !self.seek_points.is_sorted() {
            self.seek_points.clear();
        }
    }

    /// The offset and the first sample of a frame at or before `sample`.
    fn find(&self, file: &[u8], sample: u64) -> (usize, u64) {
        let (mut low, mut high) = ((self.start, 0), file.len());
        let is_frame = |at: usize, first: u64| {
            let header = file.get(at..).and_then(|data| FrameHeader::parse(data, self));
            header.is_some_and(|header| header.first == first)
        };
        for &(first, at) in &self.seek_points {
            if at > low.0 && is_frame(at, first) {
                match first <= sample {
                    true => low = (at, first),
                    false => high = high.min(at),
                }
            }
        }
        while high - low.0 > SEARCHED {
            let middle = low.0 + (high - low.0) / 2;
            match self.next_frame(file, middle..high) {
                Some((at, first)) if first <= sample && first > low.1 => low = (at, first),
                _ => high = middle,
            }
        }
        // The last frame of this part that starts at or before the sample.
        let mut at = low.0 + 1;
        while let Some(found) = self.next_frame(file, at..high) {
            if found.1 > sample {
                break;
            }
            if found.1 > low.1 {
                low = found;
            }
            at = found.0 + 1;
        }
        low
    }

    /// The first frame that begins in this part of the file, and its first sample.
    fn next_frame(&self, file: &[u8], part: Range<usize>) -> Option<(usize, u64)> {
        let mut at = part.start;
        while at < part.end {
            at += file[at..part.end].iter().position(|byte| *byte == 0xFF)?;
            if let Some(header) = FrameHeader::parse(&file[at..], self) {
                return Some((at, header.first));
            }
            at += 1;
        }
        None
    }

    /// The number of frames of audio, by the last frame of the file.
    ///
    /// # Errors
    /// Those of the source.
    fn total_by_last_frame(&self, file: &dyn MediaSource) -> Result<Option<u64>> {
        let size = file.size();
        let start = size.saturating_sub(self.largest_frame() as u64).max(self.start as u64);
        let mut memory = Vec::new();
        let tail = file.read(start..size.max(start), &mut memory)?;
        let headers = (0..tail.len())
            .rev()
            .filter_map(|at| FrameHeader::parse(&tail[at..], self).map(|header| (at, header)));
        // Data that look like a header are rare.
        let last = headers.take(MAX_CANDIDATES).find(|(at, _)| crc16(&tail[*at..]) == 0);
        Ok(last.map(|(_, header)| header.first + header.block_size as u64))
    }
}

fn corrupt(message: &str, offset: usize) -> Error {
    let message = format!("corrupt FLAC: {message}");
    Error::new(ErrorKind::Corrupt, message).with_offset(offset as u64)
}
