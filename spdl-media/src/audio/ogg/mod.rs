//! Ogg: Vorbis, Opus and FLAC in pages.
//!
//! | file | content |
//! |---|---|
//! | `pages` | pages, packets, checksums |
//!
//! This file has the streams and the codec. Sources of the formats: RFC 7845 for Opus, the Vorbis I
//! specification, and RFC 9639 for FLAC. The first stream that can be decoded is chosen; chained
//! files (a second stream after the first) are unsupported.

mod pages;

use spdl_core::{Error, ErrorKind, Result};

use self::pages::{OggPackets, OggPage, corrupt};
use super::codec::{AudioCodec, AudioDecoded, AudioDecoder, AudioInfo, AudioRequest, truncated};
use super::collector::Collector;
#[cfg(feature = "flac")]
use super::flac::FlacCodec;
use super::limits::AudioLimits;
use super::packets::PacketDecoder;
#[cfg(feature = "opus")]
use super::packets::{OpusHeader, OpusPackets, packet_frames};
#[cfg(feature = "vorbis")]
use super::packets::{PacketCodec, SymphoniaPackets};
use super::waveform::Waveform;
#[cfg(feature = "flac")]
use crate::image::OnTruncated;

/// The frames before a request that Opus decodes to settle: 80 ms at 48 kHz (RFC 7845, section 4.6).
#[cfg(feature = "opus")]
const OPUS_SETTLING: u64 = 3840;

/// Ogg.
#[derive(Clone, Copy, Debug)]
pub(super) struct OggCodec;

struct OggDecoder {
    limits: AudioLimits,
    #[cfg(feature = "flac")]
    flac: Box<dyn AudioDecoder>,
    /// A FLAC stream without pages.
    #[cfg(feature = "flac")]
    flac_file: Vec<u8>,
}

/// The audio stream of a file.
struct OggStream {
    kind: StreamKind,
    serial: u32,
    sample_rate: u32,
    channels: u16,
    /// The offset of the first page with audio.
    audio: usize,
    /// The position in pages of the first frame that is played.
    first: i64,
    /// The number of frames to play.
    total: u64,
    /// Offsets of pages with the position before them, in ascending order.
    pages: Vec<(usize, i64)>,
    is_truncated: bool,
}

enum StreamKind {
    #[cfg(feature = "vorbis")]
    Vorbis { setup: Vec<u8> },
    #[cfg(feature = "opus")]
    Opus(OpusHeader),
    #[cfg(feature = "flac")]
    Flac,
}

impl AudioCodec for OggCodec {
    fn name(&self) -> &'static str {
        "ogg"
    }

    fn sniff(&self, head: &[u8]) -> bool {
        head.starts_with(b"OggS")
    }

    fn decoder(&self, limits: &AudioLimits) -> Result<Box<dyn AudioDecoder>> {
        Ok(Box::new(OggDecoder {
            limits: limits.clone(),
            #[cfg(feature = "flac")]
            flac: FlacCodec.decoder(limits)?,
            #[cfg(feature = "flac")]
            flac_file: Vec::new(),
        }))
    }
}

impl OggStream {
    /// Reads the headers and the positions of all pages.
    fn read(file: &[u8]) -> Result<OggStream> {
        let (mut stream, headers) = OggStream::find(file)?;
        let mut packets = OggPackets::new(file, stream.serial, 0);
        let mut skipped = 0;
        let mut comments_and_more = Vec::new();
        while skipped < headers {
            let Some(packet) = packets.next()? else {
                return Err(corrupt("the stream ends inside its headers", file.len()));
            };
            if skipped > 0 {
                comments_and_more.push(packet.data);
            }
            skipped += 1;
        }
        stream.finish_headers(&comments_and_more)?;
        #[cfg(feature = "flac")]
        if matches!(stream.kind, StreamKind::Flac) {
            return Ok(stream);
        }
        stream.read_pages(file, packets.next_page())?;
        Ok(stream)
    }

    /// The first stream that can be decoded, and the number of its header packets.
    fn find(file: &[u8]) -> Result<(OggStream, usize)> {
        let mut at = 0;
        let mut found = Vec::new();
        while let Some(page) = OggPage::read(file, at)? {
            if !page.is_first {
                break;
            }
            let head = &file[page.content.clone()];
            if let Some((kind, sample_rate, channels, headers)) = stream_kind(head)? {
                let stream = OggStream {
                    kind,
                    serial: page.serial,
                    sample_rate,
                    channels,
                    audio: 0,
                    first: 0,
                    total: 0,
                    pages: Vec::new(),
                    is_truncated: false,
                };
                return Ok((stream, headers));
            }
            if found.len() < 8 {
                found.push(head[..head.len().min(8)].escape_ascii().to_string());
            }
            at = page.content.end;
        }
        let message = format!(
            "unsupported Ogg: no stream that can be decoded; streams begin with: {}",
            if found.is_empty() { "none".to_owned() } else { found.join(", ") }
        );
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Keeps what decoders need of the packets after the first.
    fn finish_headers(&mut self, packets: &[Vec<u8>]) -> Result<()> {
        match &mut self.kind {
            #[cfg(feature = "vorbis")]
            StreamKind::Vorbis { setup } => match packets {
                [_, tables] if tables.starts_with(b"\x05vorbis") => {
                    setup.extend_from_slice(tables);
                    Ok(())
                }
                _ => Err(corrupt("the Vorbis headers are incomplete", 0)),
            },
            _ => {
                let _ = packets;
                Ok(())
            }
        }
    }

    /// Reads the positions of the pages with audio.
    fn read_pages(&mut self, file: &[u8], first_page: usize) -> Result<()> {
        self.audio = first_page;
        let mut at = first_page;
        let (mut before, mut last) = (None, None);
        self.is_truncated = true;
        loop {
            let page = match OggPage::read(file, at) {
                Ok(Some(page)) => page,
                Ok(None) => break,
                Err(error) if error.kind() == ErrorKind::Truncated => break,
                Err(error) => return Err(error),
            };
            at = page.content.end;
            if page.serial != self.serial {
                if page.is_first {
                    let message = "unsupported Ogg: a chained file";
                    let error = Error::new(ErrorKind::Unsupported, message);
                    return Err(error.with_offset(page.start as u64));
                }
                continue;
            }
            if before.is_none() {
                // The position of the first frame: that after the first page, less its packets.
                let Some(position) = page.position else { continue };
                let start = self.start_of(file, position)?;
                before = Some(start);
                self.pages.push((self.audio, start));
            } else if !page.continues
                && let Some(position) = last
            {
                self.pages.push((page.start, position));
            }
            if let Some(position) = page.position {
                if last.is_some_and(|last| last > position) {
                    return Err(corrupt("positions of pages descend", page.start));
                }
                last = Some(position);
            }
            if page.is_last {
                self.is_truncated = false;
                refuse_chained(file, at)?;
                break;
            }
        }
        let start = before.unwrap_or(0);
        self.first = self.first_played(start);
        self.total = (last.unwrap_or(start) - self.first).max(0) as u64;
        Ok(())
    }

    /// The position before the packets of the first pages with audio, after which it is `position`.
    fn start_of(&self, file: &[u8], position: i64) -> Result<i64> {
        match &self.kind {
            #[cfg(feature = "opus")]
            StreamKind::Opus(_) => {
                let mut packets = OggPackets::new(file, self.serial, self.audio);
                let mut frames = 0;
                while let Some(packet) = packets.next()? {
                    frames += i64::from(packet_frames(&packet.data).unwrap_or(0));
                    if packet.position.is_some() {
                        // On the only page, the position also cuts the end.
                        return Ok(if packet.is_last { 0 } else { position - frames });
                    }
                }
                Ok(0)
            }
            #[cfg(feature = "vorbis")]
            StreamKind::Vorbis { setup } => {
                // A packet has at most half of the larger block size.
                let largest = 1_i64 << (setup.get(28).copied().unwrap_or(0) >> 4);
                let mut packets = OggPackets::new(file, self.serial, self.audio);
                let mut count = 0;
                while let Some(packet) = packets.next()? {
                    count += 1;
                    if packet.position.is_some() {
                        break;
                    }
                }
                if position > count * largest / 2 {
                    let message = "unsupported Ogg: the stream begins after the start of its audio";
                    return Err(Error::new(ErrorKind::Unsupported, message));
                }
                Ok(0)
            }
            _ => {
                let _ = (file, position);
                Ok(0)
            }
        }
    }

    fn first_played(&self, start: i64) -> i64 {
        match &self.kind {
            #[cfg(feature = "opus")]
            StreamKind::Opus(header) => start + i64::from(header.pre_skip),
            _ => start,
        }
    }

    /// The name of the codec.
    fn codec(&self) -> &'static str {
        match &self.kind {
            #[cfg(feature = "vorbis")]
            StreamKind::Vorbis { .. } => "vorbis",
            #[cfg(feature = "opus")]
            StreamKind::Opus(_) => "opus",
            #[cfg(feature = "flac")]
            StreamKind::Flac => "flac",
        }
    }

    /// The page from which to decode for a position, and the position before it.
    fn page_before(&self, position: i64) -> (usize, i64) {
        let after = self.pages.partition_point(|(_, before)| *before <= position);
        match self.pages.get(after.saturating_sub(1)) {
            Some(page) => *page,
            None => (self.audio, 0),
        }
    }
}

/// Checks that the packets had all frames that the positions of pages promise.
///
/// # Errors
/// `Corrupt` if frames are missing.
fn check_done(collector: &Collector<'_>, file: &[u8]) -> Result<()> {
    match collector.is_done() {
        true => Ok(()),
        false => {
            Err(corrupt("frames are missing before the position of the last page", file.len()))
        }
    }
}

/// Refuses another stream after the end of the first one.
///
/// # Errors
/// `Unsupported` if there is one.
fn refuse_chained(file: &[u8], at: usize) -> Result<()> {
    match OggPage::read(file, at) {
        Ok(Some(page)) if page.is_first => {
            let error = Error::new(ErrorKind::Unsupported, "unsupported Ogg: a chained file");
            Err(error.with_offset(at as u64))
        }
        _ => Ok(()),
    }
}

/// What a stream contains: its kind, sample rate, channels, and number of header packets.
fn stream_kind(head: &[u8]) -> Result<Option<(StreamKind, u32, u16, usize)>> {
    #[cfg(feature = "vorbis")]
    if head.starts_with(b"\x01vorbis") {
        let Some(header) = head.first_chunk::<30>() else {
            return Err(corrupt("the Vorbis header is too short", 0));
        };
        let rate = u32::from_le_bytes(std::array::from_fn(|byte| header[12 + byte]));
        let kind = StreamKind::Vorbis { setup: head.to_vec() };
        return Ok(Some((kind, rate, u16::from(header[11]), 3)));
    }
    #[cfg(feature = "opus")]
    if head.starts_with(b"OpusHead") {
        let header = OpusHeader::parse(head)?;
        let channels = header.channels;
        return Ok(Some((StreamKind::Opus(header), 48_000, channels, 2)));
    }
    #[cfg(feature = "flac")]
    if head.starts_with(b"\x7FFLAC") {
        return Ok(Some((StreamKind::Flac, 0, 0, 1)));
    }
    Ok(None)
}

impl OggDecoder {
    /// Joins the packets of a FLAC stream to a file. Returns whether the stream is whole.
    #[cfg(feature = "flac")]
    fn join_flac(&mut self, file: &[u8], stream: &OggStream) -> Result<bool> {
        self.flac_file.clear();
        let mut packets = OggPackets::new(file, stream.serial, 0);
        let mut is_first = true;
        loop {
            match packets.next() {
                // After 9 bytes, the first packet has the start of a file.
                Ok(Some(packet)) if is_first => {
                    self.flac_file.extend_from_slice(packet.data.get(9..).unwrap_or_default());
                    is_first = false;
                }
                Ok(Some(packet)) => self.flac_file.extend_from_slice(&packet.data),
                Ok(None) => {
                    refuse_chained(file, packets.next_page())?;
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Truncated => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    fn decode_packets(
        file: &[u8],
        stream: &OggStream,
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<()> {
        let wanted = request.start()..request.end().min(stream.total).max(request.start());
        out.start(stream.sample_rate, stream.channels, wanted.end - wanted.start)?;
        if wanted.is_empty() {
            return Ok(());
        }
        let target = stream.first + wanted.start as i64;
        match &stream.kind {
            #[cfg(feature = "opus")]
            StreamKind::Opus(header) => {
                let (page, before) = stream.page_before(target - OPUS_SETTLING as i64);
                let mut decoder = OpusPackets::new(header)?;
                let mut collector = Collector::new(out, wanted, before - stream.first);
                let mut packets = OggPackets::new(file, stream.serial, page);
                while !collector.is_done()
                    && let Some(packet) = packets.next()?
                {
                    decoder.decode(&packet.data, packet.offset, &mut collector)?;
                }
                check_done(&collector, file)
            }
            #[cfg(feature = "vorbis")]
            StreamKind::Vorbis { setup } => {
                let mut decoder = SymphoniaPackets::new(
                    PacketCodec::Vorbis,
                    stream.sample_rate,
                    stream.channels,
                    Some(setup),
                )?;
                // The first packet only prepares the overlap of the second one. The position of
                // decoded frames is known after the first page: packets before it are dropped.
                let (page, before) = stream.page_before(target);
                let is_start = page == stream.audio;
                let mut packets = OggPackets::new(file, stream.serial, page);
                let mut collector = Collector::new(out, wanted, before);
                if !is_start {
                    let earlier = stream.page_before(before - 1);
                    packets = OggPackets::new(file, stream.serial, earlier.0);
                    collector.skip(i64::MIN / 2);
                }
                while !collector.is_done()
                    && let Some(packet) = packets.next()?
                {
                    decoder.decode(&packet.data, packet.offset, &mut collector)?;
                    if let Some(position) = packet.position.filter(|_| collector.next() < 0) {
                        collector.skip(position);
                    }
                }
                check_done(&collector, file)
            }
            #[cfg(feature = "flac")]
            StreamKind::Flac => Ok(()),
        }
    }
}

impl AudioDecoder for OggDecoder {
    fn inspect(&mut self, encoded: &[u8]) -> Result<AudioInfo> {
        let stream = OggStream::read(encoded)?;
        #[cfg(feature = "flac")]
        if matches!(stream.kind, StreamKind::Flac) {
            self.join_flac(encoded, &stream)?;
            return self.flac.inspect(&self.flac_file);
        }
        self.limits.check_format(stream.sample_rate, stream.channels)?;
        let info = AudioInfo::new(stream.sample_rate, stream.channels, stream.codec());
        Ok(info.with_frames(stream.total))
    }

    fn decode(
        &mut self,
        encoded: &[u8],
        request: &AudioRequest,
        out: &mut Waveform,
    ) -> Result<AudioDecoded> {
        let stream = OggStream::read(encoded)?;
        #[cfg(feature = "flac")]
        if matches!(stream.kind, StreamKind::Flac) {
            if self.join_flac(encoded, &stream)? {
                return self.flac.decode(&self.flac_file, request, out);
            }
            let partial = request.clone().on_truncated(OnTruncated::Partial);
            self.flac.decode(&self.flac_file, &partial, out)?;
            let is_cut = request.end() > request.start().saturating_add(out.frames() as u64);
            return match is_cut && !request.accepts_truncated() {
                true => Err(truncated("Ogg", encoded)),
                false => Ok(AudioDecoded { is_truncated: is_cut }),
            };
        }
        let is_cut = stream.is_truncated && request.end() > stream.total;
        if is_cut && !request.accepts_truncated() {
            return Err(truncated("Ogg", encoded));
        }
        match OggDecoder::decode_packets(encoded, &stream, request, out) {
            Err(error) if error.kind() == ErrorKind::Truncated && is_cut => {}
            outcome => outcome?,
        }
        Ok(AudioDecoded { is_truncated: is_cut })
    }
}
